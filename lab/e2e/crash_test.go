package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// TestWorkerKilledAtEveryStep kills the worker (SIGKILL, by its own hand at a
// named point) before an effect, after it, and after it was recorded, and starts
// it again. One server, one consumed token, active.
func TestWorkerKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	cases := map[string][]string{
		// What a foundation has is looked up only once it is there: each of its steps comes first.
		"firewall": {"foundation/firewall", "create/start", "create/intended", "create/token"},
		"group":    {"foundation/group", "create/called", "create/recorded", "activate/start"},
		"running":  {"running/start", "running/seen"},
		"active":   {"containers/start", "containers/started", "activate/done"},
	}
	for _, name := range deep.Some(t, 1, slices.Sorted(maps.Keys(cases))) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timeouts, boot := quick, 600*time.Millisecond
			if name == "running" {
				// Slow enough for the provider to be asked.
				timeouts.Heartbeat, boot = prego.Duration(6*time.Second), 5*time.Second
			}
			file := filepath.Join(t.TempDir(), "crash")
			c := newCell(t, options{timeouts: timeouts, vars: map[string]string{"PREGO_TEST_CRASH": file}, sim: func(cfg *sim.Config) {
				cfg.Profile = sim.Profile{Action: 200 * time.Millisecond, Boot: boot, Restart: time.Second}
			}})
			for i, point := range cases[name] {
				killedAt(c, file, point, i+1)
			}
		})
	}
}

// killedAt makes a cell's n-th server, whose worker dies at a point.
func killedAt(c *cell, file, point string, n int) {
	c.t.Helper()
	require.NoError(c.t, os.WriteFile(file, []byte(point), 0o600))
	id := fmt.Sprintf("survivor-%d", n)
	c.create(id, prego.RoleApp, server.Spec{})
	select {
	case <-c.procs["worker"].Done():
	case <-time.After(patience):
		c.t.Fatalf("%s: the worker never came to the point where it was to die", point)
	}
	require.NoError(c.t, os.Remove(file+".hit"), point)
	delete(c.procs, "worker")
	c.start("worker")
	s := c.awaitStatus(id, server.Active)
	require.Equal(c.t, 1, s.Attempt, point)
	require.Equal(c.t, n, c.everBilled("server"), "%s: exactly one server was ever made", point)
	require.Equal(c.t, n, c.number(`SELECT count(*) FROM server_bootstrap_tokens WHERE consumed_at IS NOT NULL`), point)
	c.settled()
}

// TestRetryBeforeTheFailedRunHasEnded: the row is failed, and its run has not received the result of its write. The
// retry continues that run.
func TestRetryBeforeTheFailedRunHasEnded(t *testing.T) {
	t.Parallel()
	setUp := func(t *testing.T, point string, vars map[string]string) (c *cell, died func()) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "crash")
		require.NoError(t, os.WriteFile(file, []byte(point), 0o600))
		vars["PREGO_TEST_CRASH"] = file
		c = newCell(t, options{vars: vars})
		return c, func() {
			select {
			case <-c.procs["worker"].Done():
			case <-time.After(patience):
				t.Fatal("the worker never came to the point where it was to die")
			}
			require.FileExists(t, file+".hit")
			delete(c.procs, "worker")
		}
	}
	t.Run("server", func(t *testing.T) {
		c, died := setUp(t, "fail/done", map[string]string{})
		c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1/servers", Action: "respond", Status: 422, Code: "invalid_input", Times: 1})
		c.create("again", prego.RoleRedisPool, server.Spec{})
		died()
		status, body := c.request(http.MethodPost, "/v1/servers/"+c.id("again")+"/retry", nil)
		require.Equal(t, http.StatusAccepted, status, "%s", body)
		c.start("worker")
		s := c.awaitStatus("again", server.Active)
		require.Equal(t, 2, s.Generation)
		require.Zero(t, count(s, server.StepWorkflowRestarted), "it was not found by a sweep")
		c.settled()
	})
	t.Run("tenant", func(t *testing.T) {
		c, died := setUp(t, "tenant_fail/done", sharedVars())
		c.org("acme", "")
		c.sharedFleet(3)
		c.inject(sim.Fault{Kind: "bench", Verb: "install-app", Action: "fail_after", Message: "no", Times: 1})
		id := c.tenant("alpha", prego.PlanStarter, func(m map[string]any) { m["apps"] = []string{"erpnext"} })
		died()
		c.ask(id, "retry")
		c.start("worker")
		c.settledTenant(id, tenant.Active)
		require.Zero(t, c.number(`SELECT count(*) FROM tenant_lifecycle_events WHERE tenant_id = $1 AND step = 'workflow_restarted'`, id), "it was not found by a sweep")
		c.counted()
		c.settled()
	})
}

func TestWorkerKilledWhileDestroying(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "crash")
	c := newCell(t, options{vars: map[string]string{"PREGO_TEST_CRASH": file}})
	for i, point := range []string{"destroy/start", "destroy/deleted"} {
		require.NoError(t, os.WriteFile(file, []byte(point), 0o600))
		id := fmt.Sprintf("gone-%d", i)
		c.create(id, prego.RoleDBShard, server.Spec{VolumeGB: 10})
		c.awaitStatus(id, server.Active)
		status, _ := c.request(http.MethodDelete, "/v1/servers/"+c.id(id), nil)
		require.Equal(t, http.StatusAccepted, status)
		<-c.procs["worker"].Done()
		require.NoError(t, os.Remove(file+".hit"), point)
		delete(c.procs, "worker")
		c.start("worker")
		c.awaitStatus(id, server.Terminated)
		require.Empty(t, c.sim.Ledger(true), point)
		c.settled()
	}
}

func TestGatewayAndAPIKilledWhileAServerBoots(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{processes: true, sim: func(cfg *sim.Config) {
		cfg.Profile = sim.Profile{Action: 100 * time.Millisecond, Boot: 300 * time.Millisecond, Stage: 100 * time.Millisecond, Restart: 200 * time.Millisecond}
	}})
	for i, victim := range []string{"agentgw", "api"} {
		id := "boots-without-" + victim
		c.create(id, prego.RoleRedisPool, server.Spec{})
		c.await(id, "created", func(s api.Server) bool { return count(s, server.StepServerCreated) > 0 })
		c.kill(victim)
		c.start(victim)
		c.awaitStatus(id, server.Active)
		require.Equal(t, i+1, c.everBilled("server"), victim)
		c.settled()
	}
}

// TestRequestAcceptedWithoutARunIsStarted: the API wrote the row and died, or
// Temporal was away. The row is the truth; the reconciler starts its run.
func TestRequestAcceptedWithoutARunIsStarted(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{})
	_, err := c.pool.Exec(context.Background(), `
INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, updated_at)
VALUES ($1, '\x00', 'redis-pool', 'eu', 'hetzner', '{}', 'provisioning', 'server-provision/' || $1, 'alice', now() - interval '1 hour')`, c.id("orphaned"))
	require.NoError(t, err)
	status, body := c.request(http.MethodPost, "/internal/reconcile", nil)
	require.Equal(t, http.StatusAccepted, status, "%s", body)
	s := c.awaitStatus("orphaned", server.Active)
	require.Equal(t, 1, count(s, server.StepWorkflowRestarted))
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: map[string]string{"PREGO_ORPHAN_AGE": "1ms"}, set: func(cfg *config.Config) { cfg.Worker.AmbiguousGrace = 100 * time.Millisecond }})
	c.create("kept", prego.RoleRedisPool, server.Spec{})
	c.create("lost", prego.RoleRedisPool, server.Spec{})
	c.awaitStatus("kept", server.Active)
	s := c.awaitStatus("lost", server.Active)

	// A server is deleted at the provider, and another one with our labels is created without a row.
	c.deleteAtProvider(deref(s.Provider.ProviderServerId))
	c.provider(http.MethodPost, "/servers", map[string]any{
		"name": "stray", "server_type": "cx23", "image": "debian-12", "location": "fsn1", "user_data": "",
		"labels": map[string]string{server.LabelManagedBy: server.ManagedByPrego, server.LabelEnvironment: c.env, server.LabelServerID: "stray"},
	})
	c.provider(http.MethodPost, "/servers", map[string]any{"name": "foreign", "server_type": "cx23", "image": "debian-12", "location": "fsn1"})
	c.provider(http.MethodPost, "/volumes", map[string]any{
		"name": "stray-volume", "size": 10, "location": "fsn1",
		"labels": map[string]string{server.LabelManagedBy: server.ManagedByPrego, server.LabelEnvironment: c.env},
	})
	c.reconcile()
	require.Len(t, c.billed("volume"), 1, "one sighting destroys nothing")
	require.Len(t, c.billed("server"), 3)
	gone := c.awaitStatus("lost", server.Failed)
	require.Equal(t, "server_missing", deref(gone.StatusReason))
	c.reconcile()
	require.Empty(t, c.billed("volume"))
	names := []string{}
	for _, e := range c.billed("server") {
		names = append(names, e.Name)
	}
	require.ElementsMatch(t, []string{server.Name(c.env, prego.ServerID(c.id("kept"))), "foreign"}, names, "foreign servers are left alone")
	require.Equal(t, api.ServerStatus("active"), c.get("kept").Status)
}

func TestReconcileWithAnEmptyDatabaseDestroysNothing(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: map[string]string{"PREGO_ORPHAN_AGE": "1ms"}})
	for _, name := range []string{"a", "b"} {
		c.provider(http.MethodPost, "/servers", map[string]any{
			"name": name, "server_type": "cx23", "image": "debian-12", "location": "fsn1",
			"labels": map[string]string{server.LabelManagedBy: server.ManagedByPrego, server.LabelEnvironment: c.env, server.LabelServerID: name},
		})
	}
	for range 3 {
		c.reconcile()
	}
	require.Len(t, c.billed("server"), 2, "the database looks empty: nothing may go")
	var hit bool
	c.query(&hit, `SELECT (findings->>'breaker_hit')::bool FROM reconcile_runs ORDER BY run_id DESC LIMIT 1`)
	require.True(t, hit)
}
