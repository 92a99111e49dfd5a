package e2e

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/benchjson"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// What one server and one tenant may cost, from the API call to the end of the run.
// Statements are all that the API, the gateway and the worker have Postgres execute,
// transaction control included, but for what is asked at intervals. Histories are counted without what a busy machine adds: a
// task that timed out.
const (
	serverEvents, serverTasks, serverStatements = 29, 4, 54
	tenantEvents, tenantTasks, tenantStatements = 14, 2, 24
)

// cost is what one provisioning took.
type cost struct {
	run                       string
	events, tasks, statements int
}

// countedCell is a cell whose statements are counted. Nothing in it happens by itself.
func countedCell(tb testing.TB) (*cell, *pgtest.Counter) {
	tb.Helper()
	counter := pgtest.Count(tb, pgtest.URL(tb))
	vars := sharedVars()
	maps.Copy(vars, map[string]string{"PREGO_AGENTGW_HEARTBEAT": "60s", "PREGO_LOG_LEVEL": "warn"})
	for _, schedule := range []string{"PREGO_TENANT_SWEEP_EVERY", "PREGO_GROUP_SWEEP_EVERY", "PREGO_STORAGE_SWEEP_EVERY", "PREGO_CATALOG_EVERY"} {
		vars[schedule] = "1h"
	}
	// The host comes up after its create step has ended, as in any cloud.
	return newCell(tb, options{url: counter.URL, vars: vars, sim: func(cfg *sim.Config) { cfg.Profile.Boot = 500 * time.Millisecond }}), counter
}

// costOf counts a provisioning until nothing more happens for it.
func (c *cell) costOf(counter *pgtest.Counter, begin func() (workflowID string)) cost {
	c.t.Helper()
	quiet(counter)
	counter.Reset()
	workflowID := begin()
	c.awaitRunEnd(workflowID)
	quiet(counter)
	out := cost{run: workflowID}
	h := history(c.t, workflowID)
	out.events = len(h.Events)
	for _, e := range h.Events {
		switch e.EventType {
		case enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
			out.tasks++
		case enumspb.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT, enumspb.EVENT_TYPE_WORKFLOW_TASK_FAILED:
			out.events -= 3
		}
	}
	_, texts := counter.Statements()
	for text, n := range texts {
		if !polled(text) {
			out.statements += n
		}
	}
	c.t.Logf("%s: %d events, %d workflow tasks, %d statements", workflowID, out.events, out.tasks, out.statements)
	return out
}

// polled reports whether a statement is asked at intervals, whatever is provisioned: what looks
// ask, and the gateway. Rules of hosts' firewalls are made by a look, for all that changed.
func polled(text string) bool {
	for _, part := range []string{
		pollRevoked, "INSERT INTO looks ", "UPDATE looks ", " FROM looks WHERE ", "SELECT EXISTS (SELECT FROM domains ", "FROM peers_due",
		"kind = 'server_peers'", "INSERT INTO server_peers ", "FROM egress", "SELECT jsonb_build_object('server_id', s.server_id, 'role'", "UPDATE server_peers p SET rule",
		"SELECT server_id, version FROM server_peers ", "DELETE FROM server_peers ", "SELECT server_id FROM server_peers ",
		"SELECT rebalance_id FROM rebalances WHERE state = 'running'", "FROM agent_release_servers v JOIN agent_releases r",
		"FROM fleets WHERE patch_schedule <> ''", "SELECT b.server_id, s.region FROM backups b", "lost_at IS NOT NULL", "INSERT INTO server_samples ",
		"WITH gone AS ( DELETE FROM ", "FROM seal_audit(", "FROM servers s WHERE status IN ('provisioning', 'draining') AND updated_at <", "SELECT ARRAY(SELECT allocation_id FROM ipv4_allocations",
	} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// pollRevoked is what the gateway reads at intervals, whatever is provisioned.
const pollRevoked = `SELECT server_id FROM servers WHERE identity_revoked_at > now() - make_interval(secs => $1)`

// quiet waits until no more statements come.
func quiet(counter *pgtest.Counter) {
	for still, last := 0, -1; still < 5; {
		time.Sleep(100 * time.Millisecond)
		now, texts := counter.Statements()
		if now -= texts[pollRevoked]; now == last {
			still++
		} else {
			still, last = 0, now
		}
	}
}

// explain says in a failed test what was counted.
func explain(t *testing.T, counter *pgtest.Counter, workflowID string) {
	t.Helper()
	_, texts := counter.Statements()
	for _, text := range slices.SortedFunc(maps.Keys(texts), func(a, b string) int { return texts[b] - texts[a] }) {
		t.Logf("%3d × %.150s", texts[text], text)
	}
	for _, e := range history(t, workflowID).Events {
		t.Logf("%3d %s %s", e.EventId, e.EventType, e.GetActivityTaskScheduledEventAttributes().GetActivityType().GetName())
	}
}

// serverCost is that of a server that is not the first of its role.
func serverCost(tb testing.TB) (*pgtest.Counter, cost) {
	tb.Helper()
	c, counter := countedCell(tb)
	c.create("first", prego.RoleRedisPool, server.Spec{}) // makes what servers share
	c.awaitStatus("first", server.Active)
	got := c.costOf(counter, func() string {
		c.create("redis", prego.RoleRedisPool, server.Spec{})
		return server.ProvisionWorkflowID(prego.ServerID(c.id("redis")))
	})
	require.Equal(tb, 2, c.number(`SELECT count(*) FROM servers WHERE status = 'active'`))
	return counter, got
}

// tenantCost is that of a tenant for which a pool site is ready, on a fleet where the placer
// has been at work.
func tenantCost(tb testing.TB) (*pgtest.Counter, cost) {
	tb.Helper()
	c, counter := countedCell(tb)
	c.tenantReady()
	c.settledTenant(c.tenant("first", prego.PlanStarter, nil), tenant.Active)
	got := c.costOf(counter, func() string {
		return tenant.ProvisionWorkflowID(prego.TenantID(c.tenant("alpha", prego.PlanStarter, nil)))
	})
	require.Equal(tb, 2, c.number(`SELECT count(*) FROM tenants WHERE state = 'active'`))
	return counter, got
}

// within fails if a cost is above its limits: one more event or statement is to be a
// decision, not an accident.
func (got cost) within(t *testing.T, counter *pgtest.Counter, events, tasks, statements int) {
	t.Helper()
	require.Positive(t, got.statements)
	if got.events > events || got.tasks > tasks || got.statements > statements {
		explain(t, counter, got.run)
		t.Fatalf("at most %d events, %d workflow tasks and %d statements are meant: %+v", events, tasks, statements, got)
	}
}

func TestWhatAServerCosts(t *testing.T) {
	t.Parallel()
	counter, got := serverCost(t)
	got.within(t, counter, serverEvents, serverTasks, serverStatements)
}

func TestWhatATenantCosts(t *testing.T) {
	t.Parallel()
	counter, got := tenantCost(t)
	got.within(t, counter, tenantEvents, tenantTasks, tenantStatements)
}

// BenchmarkCosts records what TestWhatAServerCosts and TestWhatATenantCosts count.
func BenchmarkCosts(b *testing.B) {
	for b.Loop() {
		_, s := serverCost(b)
		benchjson.Record(b, "server_events", float64(s.events), "events", 0)
		benchjson.Record(b, "server_statements", float64(s.statements), "statements", 0)
		_, t := tenantCost(b)
		benchjson.Record(b, "tenant_events", float64(t.events), "events", 0)
		benchjson.Record(b, "tenant_statements", float64(t.statements), "statements", 0)
		b.ReportMetric(0, "ns/op")
	}
}

// tenantReady makes a fleet with pool sites ready, whose watermark is far below.
func (c *cell) tenantReady() {
	const sites = 8
	c.t.Helper()
	c.org("acme", "")
	for _, plan := range []string{"trial", "business"} {
		c.send(http.MethodPut, "/v1/site-pool-policies/"+plan, map[string]int{"low_watermark": 0, "target": 0, "slo_seconds": 600}, http.StatusOK, nil)
	}
	c.send(http.MethodPut, "/v1/site-pool-policies/starter", map[string]int{"low_watermark": 1, "target": sites, "slo_seconds": 600}, http.StatusOK, nil)
	c.create("db", prego.RoleDBShard, server.Spec{})
	c.create("redis", prego.RoleRedisPool, server.Spec{})
	c.create("app", prego.RoleApp, server.Spec{})
	for _, id := range []string{"db", "redis", "app"} {
		c.awaitStatus(id, server.Active)
	}
	c.post("/v1/site-pools/"+c.id("app")+"/refill", nil, http.StatusAccepted, nil)
	c.awaitSites(c.id("app"), sites)
	c.awaitRunEnd(tenant.RefillWorkflowID(prego.ServerID(c.id("app"))))
}
