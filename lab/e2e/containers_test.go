package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/dockerhost"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

// engineOf reaches the engine of a server's host as the control plane does.
func (c *cell) engineOf(name string) *dockerhost.Host {
	c.t.Helper()
	return c.engineAt(prego.ServerID(c.id(name)))
}

// engineAt is engineOf by the server's whole id.
func (c *cell) engineAt(serverID prego.ServerID) *dockerhost.Host {
	c.t.Helper()
	ca, err := pki.Open(filepath.Join(c.dir, "keys"), c.env)
	require.NoError(c.t, err)
	var addr string
	c.query(&addr, `SELECT host FROM servers WHERE server_id = $1`, serverID)
	h, err := dockerhost.New(dockerhost.Config{TLS: ca.DockerClientTLS(), Port: 2376, CheckAddr: func(string) error { return nil }}).Host(serverID, addr)
	require.NoError(c.t, err)
	c.t.Cleanup(h.Close)
	return h
}

func (c *cell) findings() (r activities.ReconcileResult) {
	c.t.Helper()
	var b string
	c.query(&b, `SELECT findings::text FROM reconcile_runs WHERE finished_at IS NOT NULL ORDER BY run_id DESC LIMIT 1`)
	require.NoError(c.t, json.Unmarshal([]byte(b), &r))
	return r
}

func TestContainersOfEachRoleRunAndTheirDriftIsReported(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{})
	site := []string{"backend", "configurator", "frontend", "mariadb", "queue-long", "queue-short", "redis-cache", "redis-queue", "scheduler", "websocket"}
	want := map[prego.Role][]string{prego.RoleApp: site, prego.RoleNode: site, prego.RoleDBShard: {"mariadb"}, prego.RoleRedisPool: {"redis"}}
	for role := range want {
		c.create("c-"+string(role), role, server.Spec{})
	}
	for role, names := range want {
		c.awaitStatus("c-"+string(role), server.Active)
		list, err := c.engineOf("c-" + string(role)).List(t.Context())
		require.NoError(t, err)
		var got []string
		for _, i := range list {
			state := "running"
			if i.Name == "configurator" {
				state = "exited" // it ran to its end
			}
			require.Equal(t, state, i.State, i.Name)
			got = append(got, i.Name)
		}
		slices.Sort(got)
		require.Equal(t, names, got)
	}
	c.reconcile()
	found := c.findings()
	require.Equal(t, 4, found.ContainersChecked)
	require.Zero(t, found.ContainersUnknown)
	require.Empty(t, found.Drift)

	h := c.engineOf("c-app")
	require.NoError(t, h.Stop(t.Context(), "redis-queue"))
	require.NoError(t, h.Remove(t.Context(), "backend"))
	var logs bytes.Buffer
	require.NoError(t, h.Logs(t.Context(), "mariadb", dockerhost.LogOptions{Tail: 1}, &logs))
	require.Contains(t, logs.String(), "is running")
	stats, err := h.Stats(t.Context(), "mariadb")
	require.NoError(t, err)
	require.EqualValues(t, 5120<<20, stats.MemoryLimit)
	for range 2 {
		c.reconcile()
		require.Equal(t, []activities.ContainerReport{{ServerID: prego.ServerID(c.id("c-app")), Drift: []server.ContainerDrift{
			{Container: "redis-queue", Kind: server.DriftStopped, Detail: "exited"}, {Container: "backend", Kind: server.DriftMissing},
		}}}, c.findings().Drift)
	}
	s := c.get("c-app")
	require.Equal(t, string(server.Active), string(s.Status))
	require.LessOrEqual(t, count(s, server.StepContainerDrift), 2, "at most one per hour while it stays the same")
	require.Positive(t, count(s, server.StepContainerDrift))
}

// TestAServerWithARealEngine provisions a server whose host runs a real dockerd.
func TestAServerWithARealEngine(t *testing.T) {
	t.Parallel()
	need.Program(t, "dockerd")
	need.Root(t, "it runs dockerd")
	stack := server.Stack{}
	for _, role := range prego.Roles() {
		for _, name := range []string{"first", "second"} {
			stack[role] = append(stack[role], server.ContainerSpec{
				Name: name, Image: sim.StandIn, Command: []string{sim.StandInProgram, "stand-in", "${server_id}"}, Network: "none", MemoryMB: 64,
				Env: map[string]string{"PASSWORD": "${secret:p}"}, Health: &server.ContainerHealth{Command: []string{sim.StandInProgram, "stand-in", "--check"}, Interval: prego.Duration(300e6)},
			})
		}
	}
	// It dies, and is never healthy: a check that passes could be quicker than its death.
	broken := []string{sim.StandInProgram, "no-such-verb"}
	stack[prego.RoleDBShard][1].Command, stack[prego.RoleDBShard][1].Health.Command = broken, broken
	b, err := json.Marshal(stack)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "stack.json")
	require.NoError(t, os.WriteFile(file, b, 0o600))
	c := newCell(t, options{vars: map[string]string{"PREGO_STACK_FILE": file}, sim: func(cfg *sim.Config) {
		cfg.RealDocker, cfg.StandIn = true, filepath.Join(bins, "prego-lab")
	}})
	c.create("real", prego.RoleApp, server.Spec{})
	c.create("loops", prego.RoleDBShard, server.Spec{})
	c.awaitStatus("real", server.Active)
	h := c.engineOf("real")
	list, err := h.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2)
	for _, i := range list {
		require.Equal(t, "running", i.State)
		require.Equal(t, "healthy", i.Health)
	}
	eventually(t, func() bool { // the engine writes what a program printed a moment later
		var logs bytes.Buffer
		return h.Logs(t.Context(), "first", dockerhost.LogOptions{}, &logs) == nil && strings.Contains(logs.String(), c.id("real"))
	}, patience, 20*time.Millisecond, "its program prints the server's id")

	require.NoError(t, h.Remove(t.Context(), "second"))
	c.reconcile()
	require.Equal(t, []server.ContainerDrift{{Container: "second", Kind: server.DriftMissing}}, c.findings().Drift[0].Drift)

	s := c.awaitFailed("loops", prego.ReasonFailedContainer)
	require.Contains(t, deref(s.StatusMessage), "dies in a loop")
	require.Contains(t, deref(s.StatusMessage), "no-such-verb")
	require.Len(t, c.billed("server"), 2, "kept for debugging")
}
