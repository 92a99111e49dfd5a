package e2e

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/dockerhost"
	"github.com/prego/prego/internal/pki"
)

// engineOf reaches the engine of a server's host as the control plane does.
func (c *cell) engineOf(name string) *dockerhost.Host {
	c.t.Helper()
	ca, err := pki.Open(filepath.Join(c.dir, "keys"), c.env)
	require.NoError(c.t, err)
	var addr string
	c.query(&addr, `SELECT host FROM servers WHERE server_id = $1`, c.id(name))
	h, err := dockerhost.New(dockerhost.Config{TLS: ca.DockerClientTLS(), Port: 2376, CheckAddr: func(string) error { return nil }}).Host(c.id(name), addr)
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
	want := map[prego.Role][]string{
		prego.RoleApp: {"bench", "mariadb", "redis"}, prego.RoleNode: {"bench", "mariadb", "redis"}, prego.RoleDBShard: {"mariadb"}, prego.RoleRedisPool: {"redis"},
	}
	for role := range want {
		c.create("c-"+string(role), role, prego.ServerSpec{})
	}
	for role, names := range want {
		c.awaitStatus("c-"+string(role), prego.ServerActive)
		list, err := c.engineOf("c-" + string(role)).List(t.Context())
		require.NoError(t, err)
		var got []string
		for _, i := range list {
			require.Equal(t, "running", i.State)
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
	require.NoError(t, h.Stop(t.Context(), "redis"))
	require.NoError(t, h.Remove(t.Context(), "bench"))
	var logs bytes.Buffer
	require.NoError(t, h.Logs(t.Context(), "mariadb", dockerhost.LogOptions{Tail: 1}, &logs))
	require.Contains(t, logs.String(), "is running")
	stats, err := h.Stats(t.Context(), "mariadb")
	require.NoError(t, err)
	require.EqualValues(t, 6144<<20, stats.MemoryLimit)
	for range 2 {
		c.reconcile()
		require.Equal(t, []activities.ContainerReport{{ServerID: c.id("c-app"), Drift: []prego.ContainerDrift{
			{Container: "redis", Kind: prego.DriftStopped, Detail: "exited"}, {Container: "bench", Kind: prego.DriftMissing},
		}}}, c.findings().Drift)
	}
	s := c.get("c-app")
	require.Equal(t, string(prego.ServerActive), string(s.Status))
	require.LessOrEqual(t, count(s, prego.StepContainerDrift), 2, "at most one per hour while it stays the same")
	require.Positive(t, count(s, prego.StepContainerDrift))
}
