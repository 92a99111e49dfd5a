package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

// The control plane sees the same of each kind of host: the light hosts, which most tests use, are compared with real
// machines. The other half of this is TestMachineConformance.
func TestProcessHostConformance(t *testing.T) {
	t.Parallel()
	conform(t, newCell(t, options{vars: map[string]string{"PREGO_STACK_FILE": lightStack(t)}}))
}

func conform(t *testing.T, c *cell, looks ...func(*machine)) {
	t.Helper()
	m := c.machine("conform", prego.RoleApp, server.Spec{})
	m.awaitActive()
	for _, look := range looks {
		look(m)
	}
	for _, s := range []struct {
		name string
		test func(t *testing.T, m *machine)
	}{
		{"the boot is reported stage by stage", conformBoot},
		{"containers run", conformContainers},
		{"a killed agent is started again", func(t *testing.T, m *machine) { conformKill(t, m, "agent") }},
		{"a killed executor is started again", func(t *testing.T, m *machine) { conformKill(t, m, "exec") }},
		{"volumes come and go", conformVolumes},
		{"a reboot keeps what there is", func(t *testing.T, m *machine) { m.comesBack(func() { m.power("reboot") }) }},
		{"so does a reset", func(t *testing.T, m *machine) { m.comesBack(func() { m.power("reset") }) }},
		{"so does a power cut", func(t *testing.T, m *machine) {
			m.comesBack(func() { m.power("poweroff"); m.off(); m.power("poweron") })
		}},
		{"so does a shutdown", func(t *testing.T, m *machine) {
			m.comesBack(func() { m.power("shutdown"); m.off(); m.power("poweron") })
		}},
		{"a rebuild keeps nothing", conformRebuild},
		{"a deleted server leaves nothing", conformDelete},
	} {
		if !t.Run(s.name, func(t *testing.T) { s.test(t, &machine{cell: m.in(t), server: m.server}) }) {
			return
		}
	}
}

// stages are the reported stages of a boot, in order.
func stages(s api.Server) []string {
	var out []string
	for _, e := range s.Timeline {
		if e.Step == string(server.StepBootStage) {
			out = append(out, deref(e.Message))
		}
	}
	return out
}

var bootStages = []string{
	string(wire.StageCloudInitStarted), string(wire.StageFirewallReady), string(wire.StageDockerInstalled), string(wire.StageAgentInstalled), string(wire.StageAgentStarted),
}

func conformBoot(t *testing.T, m *machine) {
	s := m.get(m.server)
	require.Equal(t, bootStages, stages(s))
	require.Equal(t, 1, count(s, server.StepHandshake))
	require.Equal(t, 1, count(s, server.StepFirstHeartbeat))
	require.NotEmpty(t, m.console())
	require.NoFileExists(t, filepath.Join(m.host().Root, wire.BootstrapTokenPath), "its token is used up")
}

// conformContainers reaches the engine and the executor.
func conformContainers(t *testing.T, m *machine) {
	m.containersRun()
	_, errs, status := m.cli(m.operator, "exec", m.id(m.server), "redis", "--", "PING")
	require.NotZero(t, status, "there is no Redis")
	require.NotContains(t, errs, "server_not_reachable")
}

func (m *machine) containersRun() {
	m.t.Helper()
	h := m.engineOf(m.server)
	eventually(m.t, func() bool {
		list, err := h.List(m.t.Context())
		if err != nil || len(list) != 2 {
			return false
		}
		for _, i := range list {
			if i.State != "running" || i.Health != "healthy" {
				return false
			}
		}
		return true
	}, patience, 100*time.Millisecond, "not all containers of %s run", m.server)
}

// awaitHeartbeat waits for a heartbeat from after now.
func (m *machine) awaitHeartbeat() {
	m.t.Helper()
	var began time.Time
	m.query(&began, `SELECT now()`)
	m.await(m.server, "heard of", func(s api.Server) bool {
		return s.Agent.LastHeartbeatAt != nil && s.Agent.LastHeartbeatAt.After(began)
	})
}

func conformKill(t *testing.T, m *machine, what string) {
	pid := func() int {
		if what == "exec" {
			return m.host().ExecPID
		}
		return m.host().AgentPID
	}
	before := pid()
	require.NotZero(t, before)
	m.act("kill-" + what)
	eventually(t, func() bool { now := pid(); return now != 0 && now != before }, patience, 50*time.Millisecond)
	m.awaitHeartbeat()
	require.Equal(t, api.ServerStatus("active"), m.get(m.server).Status)
}

// off waits until the provider reports the server as off.
func (m *machine) off() {
	m.t.Helper()
	eventually(m.t, func() bool { return m.providerStatus() == "off" }, patience, 50*time.Millisecond)
}

// comesBack checks that the server is as it was after its power was gone.
func (m *machine) comesBack(gone func()) {
	m.t.Helper()
	kept := filepath.Join(m.host().Root, "var/lib/prego-agent/identity.json")
	identity, err := os.ReadFile(kept)
	require.NoError(m.t, err)
	pid := m.host().AgentPID
	gone()
	eventually(m.t, func() bool {
		for _, h := range m.sim.Hosts() {
			if h.ID == m.providerID() && h.AgentPID != 0 && h.AgentPID != pid {
				return true
			}
		}
		return false
	}, patience, 50*time.Millisecond, "no agent after the start")
	m.awaitHeartbeat()
	m.containersRun()
	again, err := os.ReadFile(kept)
	require.NoError(m.t, err)
	require.Equal(m.t, string(identity), string(again))
	s := m.get(m.server)
	require.Equal(m.t, api.ServerStatus("active"), s.Status)
	require.Equal(m.t, 1, count(s, server.StepHandshake), "it is who it was")
	require.Equal(m.t, bootStages, stages(s), "cloud-init ran once")
}

func conformVolumes(t *testing.T, m *machine) {
	id := m.createVolume(m.id("extra"))
	for range 2 {
		m.provider(http.MethodPost, fmt.Sprintf("/volumes/%d/actions/attach", id), map[string]any{"server": m.providerID()})
		m.provider(http.MethodPost, fmt.Sprintf("/volumes/%d/actions/detach", id), nil)
	}
	m.provider(http.MethodDelete, fmt.Sprintf("/volumes/%d", id), nil)
	require.Empty(t, m.billed("volume"))
}

func conformRebuild(t *testing.T, m *machine) {
	root := m.host().Root
	identity := filepath.Join(root, "var/lib/prego-agent/identity.json")
	require.FileExists(t, identity)
	m.unprotect(fmt.Sprint(m.providerID()))
	m.provider(http.MethodPost, fmt.Sprintf("/servers/%d/actions/rebuild", m.providerID()), map[string]any{"image": "debian-12"})
	eventually(t, func() bool {
		_, err := os.Stat(identity)
		_, booted := os.Stat(filepath.Join(root, wire.HostConfigPath))
		return os.IsNotExist(err) && booted == nil && m.providerStatus() == "running"
	}, patience, 50*time.Millisecond, "it has another disk, and its user_data")
}

func conformDelete(t *testing.T, m *machine) { m.gone() }

// gone deletes the server and checks that nothing of it is left.
func (m *machine) gone() {
	m.t.Helper()
	h := m.host()
	status, body := m.request(http.MethodDelete, "/v1/servers/"+m.id(m.server), nil)
	require.Equal(m.t, http.StatusAccepted, status, "%s", body)
	m.waits(server.Terminated)
	eventually(m.t, func() bool { _, err := os.Stat(filepath.Dir(h.Root)); return os.IsNotExist(err) }, patience, 50*time.Millisecond)
	nothingLeft(m.t, h)
	for _, e := range m.sim.Ledger(true) {
		require.NotEqual(m.t, h.ID, e.ID)
	}
}
