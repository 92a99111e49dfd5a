//go:build machines

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// TestMachineAgentIsUpdated updates the agent of a real Debian under its units, and has it back after a release without
// heartbeats, also when the host is rebooted during the trial.
func TestMachineAgentIsUpdated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := machineCell(t, options{vars: map[string]string{"PREGO_AGENTGW_AGENT_RELEASES": dir}})
	m := c.machine("agent", prego.RoleApp, server.Spec{Image: "debian-12"})
	m.awaitActive()
	m.run("systemctl is-active prego-agent-update.service prego-agent-update.socket")
	m.run(`mkdir -p /etc/systemd/system/prego-agent-update.service.d
printf '[Service]\nExecStart=\nExecStart=/var/lib/prego/updater update --root / --caller prego-agent --trial 25s\n' >/etc/systemd/system/prego-agent-update.service.d/test.conf
systemctl daemon-reload && systemctl restart prego-agent-update.service`)
	runs := func(version string) {
		t.Helper()
		eventually(t, func() bool {
			return c.text(`SELECT agent_version FROM servers WHERE server_id = $1 AND agent_last_heartbeat_at > now() - interval '5 seconds'`, c.id("agent")) == version
		}, 2*time.Minute, 100*time.Millisecond, "%s: %s", version, later(func() string {
			out, _ := m.try("journalctl --no-pager --quiet --lines 40 -u prego-agent-update -u prego-agent")
			return out
		}))
	}
	runs("e2e")
	r := &agentReleases{cell: c, dir: dir, serial: time.Now().Unix()}
	r.offer("e2e-2", built(t, "e2e-2", "./cmd/prego-agent"), agentReleaseKey)
	r.rests("e2e-2", "done")
	runs("e2e-2")
	same := "cmp /var/lib/prego/updater /usr/local/bin/prego-agent && test \"$(/usr/local/bin/prego-agent version)\" = e2e-2"
	m.awaitRun(same)
	// What runs commands follows.
	m.awaitRun("test /proc/$(systemctl show --property MainPID --value prego-agent-exec)/exe -ef /usr/local/bin/prego-agent")

	r.offer("e2e-3", built(t, "e2e-3", "./lab/e2e/testdata/mute-agent"), agentReleaseKey)
	m.awaitRun("test \"$(/usr/local/bin/prego-agent version)\" = e2e-3")
	m.power("reboot")
	stopped := r.rests("e2e-3", "stopped")
	require.Equal(t, "went_back", deref(stopped.Reason))
	require.Contains(t, deref(stopped.Message), "the host was started again")
	m.awaitRun(same)
	runs("e2e-2")
}
