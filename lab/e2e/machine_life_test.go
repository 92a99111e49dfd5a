//go:build machines

package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

// TestMachineLives is what happens to a server that is active.
func TestMachineLives(t *testing.T) {
	t.Parallel()
	c := machineCell(t, options{vars: map[string]string{"PREGO_PROVISION_RETRIES": "0"}})
	m := c.machine("lives", prego.RoleRedisPool, server.Spec{Image: "debian-13"})
	m.awaitActive()
	m.awaitRun("test -e /var/lib/cloud/instance/prego-booted")
	m.bootedAs("debian-13")
	m.portsHold()
	until := func(what string, ok func(api.Server) bool) {
		t.Helper()
		eventually(t, func() bool { return ok(m.get(m.server)) }, time.Minute, 100*time.Millisecond, what)
	}
	beats := func(what string) {
		t.Helper()
		from := *m.get(m.server).Agent.LastHeartbeatAt
		until(what, func(s api.Server) bool { return s.Agent.LastHeartbeatAt.After(from.Add(2 * time.Second)) })
		require.Equal(t, api.ServerStatus("active"), m.get(m.server).Status)
	}
	told := func(step server.Step) func(api.Server) bool {
		return func(s api.Server) bool { return count(s, step) > 0 }
	}
	s := m.get(m.server)
	require.InDelta(t, 0, *s.Agent.ClockAheadSeconds, 5)
	require.False(t, *s.Agent.ClockSkewed)

	// As on a golden image, where everything is there: no mirror is asked.
	mirror, err := c.sim.Inject(sim.Fault{Kind: "mirror", Action: "respond", Status: 503, Server: "*-" + c.id("lives")})
	require.NoError(t, err)
	m.run("sh /usr/local/lib/prego/bootstrap.sh")
	for _, f := range c.sim.Faults() {
		require.Zero(t, f.Matched, "packages that are there cost nothing")
	}
	m.run("! apt-get --quiet update -o APT::Update::Error-Mode=any")
	require.True(t, c.sim.Withdraw(mirror))

	m.act("kill-agent")
	beats("a killed agent is started again")

	// A renewed certificate reaches dockerd, which restarts for it; containers keep running. An unchanged one does not.
	const dockerd = "systemctl show --property=MainPID --value docker.service"
	before, started := m.run(dockerd), m.run(containersStarted)
	m.run("systemctl start prego-docker-certs.service")
	require.Equal(t, before, m.run(dockerd))
	m.run(fmt.Sprintf(`mkdir -p /run/prego-agent-bench; exec 9>>/run/prego-agent-bench/lock; flock --shared 9 # as a command that runs
echo >>/var/lib/prego-agent/docker/cert.pem; sleep 2; [ "$(%s)" = %s ]`, dockerd, before))
	m.awaitRun(fmt.Sprintf(`[ "$(%s)" != %s ] && [ ! -e /etc/docker/prego/restart ] && cmp /var/lib/prego-agent/docker/cert.pem /etc/docker/prego/cert.pem`, dockerd, before))
	m.awaitRun(fmt.Sprintf(`[ "$(%s)" = %q ]`, containersStarted, started))

	m.run("systemctl stop docker.service docker.socket")
	until("a dead dockerd is reported", told(server.StepDockerStopped))
	m.run("systemctl start docker.socket docker.service")
	until("and that it is back", told(server.StepDockerRunning))

	// An agent that starts would drop the expired token from its file.
	m.run(`echo "0123456789abcdef 1" >>/var/lib/prego-agent/used-tokens; head -c 5000 /dev/zero >/filler.first
fallocate -l $(stat -f -c '%a*%S' / | sed 's/.*/$((&))/;s/^/echo /' | sh) /filler || true
cat /dev/zero >>/filler 2>/dev/null || true; df / >&2`)
	m.act("kill-agent")
	beats("an agent starts on a full disk")
	until("which is reported", func(s api.Server) bool { return s.Agent.DiskPct != nil && *s.Agent.DiskPct > 99 })
	m.run("rm -f /filler /filler.first")

	// A system that shuts down stops every process for a moment, and ends it. Nobody who ran a
	// command there may be kept waiting by it, nor keep the system waiting.
	ended := make(chan error, 1)
	go func() { _, err := m.try("exec sleep 61"); ended <- err }()
	m.awaitRun("pgrep -f '^sleep 61'")
	m.run("pkill -STOP -f '^sleep 61'; sleep 0.5; pkill -KILL -f '^sleep 61'")
	eventually(t, func() bool {
		select {
		case err := <-ended:
			require.ErrorContains(t, err, "exit status 137")
			return true
		default:
			return false
		}
	}, 10*time.Second, 10*time.Millisecond)
	m.awaitRun("! pgrep -f '^sleep 61'")

	m.isPatched(archives(t))

	for _, gone := range []string{"a resize", "a power cut"} {
		m.run("touch /run/before")
		if gone == "a resize" { // by its system's shutdown
			m.isResized()
		} else {
			m.power("poweroff")
			m.power("poweron")
		}
		m.awaitRun("! test -e /run/before")
		m.awaitRun(`systemctl is-active --quiet prego-agent.service docker.service prego-firewall.service`)
		beats("a server comes back after " + gone)
		m.awaitRun(`[ "$(curl -s --unix-socket /run/docker.sock http://docker/containers/json | grep -o '"State":"running"' | wc -l)" = 2 ]`)
	}
	m.run(`! systemctl --failed --no-legend --plain | grep -q prego`)
}

// containersStarted prints when each of the role's containers was started.
const containersStarted = `for id in $(curl -s --unix-socket /run/docker.sock http://docker/containers/json | grep -o '"Id":"[0-9a-f]*"' | cut -d'"' -f4); do
curl -s --unix-socket /run/docker.sock "http://docker/containers/$id/json" | grep -o '"StartedAt":"[^"]*"'; done | sort | tr -d '"\n'`

// isResized has the provider give the machine the next larger type.
func (m *machine) isResized() {
	m.t.Helper()
	id := m.id(m.server)
	const ofType = `SELECT server_type FROM servers WHERE server_id = $1`
	was := m.text(ofType, id)
	m.post("/v1/servers/"+id+"/resize", map[string]any{"server_type": "cx53"}, http.StatusAccepted, nil)
	d := m.drained(id)
	m.t.Logf("a %s: %s", was, deref(d.Message))
	require.Contains(m.t, deref(d.Message), "it is a cx53 now, and was away for")
	require.NotEqual(m.t, "cx53", was)
	require.Equal(m.t, "cx53", m.text(ofType, id))
	require.Nil(m.t, m.get(m.server).CordonedAt)
}
