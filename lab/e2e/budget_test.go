package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/benchjson"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// recordedCosts is what a server and a tenant cost, from the API call to the end of the run. Statements are all that
// the API, the gateway and the worker have Postgres execute, transaction control included, without what is asked at
// intervals. Histories are counted without tasks that timed out, which a busy machine adds.
const recordedCosts = "testdata/costs.txt"

// cost is how often what a provisioning does was done.
type cost map[string]int

// all sums what begins with a kind.
func (c cost) all(kind string) (n int) {
	for what, times := range c {
		if strings.HasPrefix(what, kind+" ") {
			n += times
		}
	}
	return n
}

// countedCell is a cell whose statements are counted. Nothing in it happens by itself.
func countedCell(tb testing.TB) (*cell, *pgtest.Counter) {
	tb.Helper()
	counter := pgtest.Count(tb, pgtest.URL(tb))
	vars := sharedVars()
	maps.Copy(vars, map[string]string{"PREGO_PACE": "1", "PREGO_AGENTGW_HEARTBEAT": "60s", "PREGO_LOG_LEVEL": "warn"})
	never := func(cfg *config.Config) {
		for _, every := range []*time.Duration{
			&cfg.Tenants.SweepEvery, &cfg.Workloads.SweepEvery, &cfg.Tenants.StorageSweep, &cfg.Worker.CatalogEvery,
			&cfg.Worker.SweepEvery, &cfg.Worker.NetworkEvery, &cfg.Worker.NetEvery, &cfg.Worker.ReconcileEvery,
		} {
			*every = 100_000 * time.Hour // schedules are aligned to the clock, so that an hour would end in some runs
		}
		cfg.Hetzner.Poll, cfg.Worker.CapacityPoll, cfg.Gateway.Flush = 50*time.Millisecond, 300*time.Millisecond, 50*time.Millisecond
	}
	// The host comes up after its create step has ended, as in any cloud.
	return newCell(tb, options{url: counter.URL, vars: vars, set: never, sim: func(cfg *sim.Config) { cfg.Profile.Boot = 500 * time.Millisecond }}), counter
}

// costOf counts a provisioning until nothing more happens for it.
func (c *cell) costOf(counter *pgtest.Counter, begin func() (workflowID string)) cost {
	c.t.Helper()
	quiet(counter)
	counter.Reset()
	calls := c.sim.Calls()
	workflowID := begin()
	c.awaitRunEnd(workflowID)
	quiet(counter)
	out := cost{}
	for _, e := range history(c.t, workflowID).Events {
		switch e.EventType {
		case enumspb.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT, enumspb.EVENT_TYPE_WORKFLOW_TASK_FAILED:
			out["event WorkflowTaskScheduled"]--
			out["event WorkflowTaskStarted"]--
		default:
			out["event "+e.EventType.String()]++
		}
	}
	for call, n := range c.sim.Calls() {
		if n -= calls[call]; n > 0 {
			out["call "+call] = n
		}
	}
	_, texts := counter.Statements()
	for text, n := range texts {
		if polled(text) {
			continue
		}
		value, _, _ := strings.Cut(text, "'") // values differ
		out["statement "+control.FindString(text)+cmp.Or(statementOn.FindString(text), control.ReplaceAllString(value, ""))] += n
	}
	return out
}

// statementOn is what a statement does first, and to what; of one that begins or ends a transaction, its first one.
var (
	statementOn = regexp.MustCompile(`(INSERT INTO|UPDATE|DELETE FROM|FROM) \w+`)
	control     = regexp.MustCompile(`^(begin|BEGIN|commit|rollback); `)
)

// polled reports whether a statement is asked at intervals, whatever is provisioned: what looks
// ask, and the gateway. Rules of hosts' firewalls are made by a look, for all that changed.
func polled(text string) bool {
	for _, part := range []string{
		pollRevoked, pollRedo, "UPDATE redo SET ", "INSERT INTO looks ", "UPDATE looks ", " FROM looks WHERE ", "SELECT EXISTS (SELECT FROM domains ", "FROM peers_due",
		"kind = 'server_peers'", "INSERT INTO server_peers ", "FROM egress", "FROM server_peers ", "UPDATE server_peers ", "SELECT jsonb_build_object('server_id', s.server_id, 'role'",
		"SELECT rebalance_id FROM rebalances WHERE state = 'running'", "FROM agent_release_servers v JOIN agent_releases r",
		"FROM fleets WHERE patch_schedule <> ''", "SELECT EXISTS (SELECT FROM backups WHERE state = 'queued')", "lost_at IS NOT NULL", "INSERT INTO server_samples ",
		"SELECT pg_is_in_recovery() OR ", // of a new connection
		"UPDATE agent_command_audit SET finished_at = now(), stderr_truncated = 'unknown",
		"WITH gone AS ( DELETE FROM ", "FROM seal_audit(", "FROM servers s WHERE status IN ('provisioning', 'draining') AND updated_at <", "SELECT ARRAY(SELECT allocation_id FROM ipv4_allocations",
	} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// pollRedo is in what processes ask about the redo log.
const pollRedo = "FROM redo"

// pollRevoked is the gateway's periodic read, independent of provisionings.
const pollRevoked = `SELECT server_id FROM servers WHERE identity_revoked_at > now() - make_interval(secs => $1)`

// quiet waits until no more statements come.
func quiet(counter *pgtest.Counter) {
	for still, last := 0, -1; still < 5; {
		time.Sleep(100 * time.Millisecond)
		now, texts := counter.Statements()
		for text, n := range texts {
			if text == pollRevoked || strings.Contains(text, pollRedo) {
				now -= n
			}
		}
		if now == last {
			still++
		} else {
			still, last = 0, now
		}
	}
}

// costs are those of a server that is not the first of its role, and of a tenant for which a pool site is ready, on a
// fleet where the placer has been at work.
func costs(tb testing.TB) map[string]cost {
	tb.Helper()
	c, counter := countedCell(tb)
	// Every half minute some worker reads all that needs attention, whatever is provisioned.
	c.exec(`INSERT INTO looks (look, holder, leased_until, began_at, every_seconds)
		VALUES ('attention', 'test', now() + interval '1 hour', now(), 30)
		ON CONFLICT (look) DO UPDATE SET holder = excluded.holder, leased_until = excluded.leased_until`)
	c.tenantReady()
	c.settledTenant(c.tenant("first", prego.PlanStarter, nil), tenant.Active)
	out := map[string]cost{
		"tenant": c.costOf(counter, func() string {
			return tenant.ProvisionWorkflowID(prego.TenantID(c.tenant("alpha", prego.PlanStarter, nil)))
		}),
		"server": c.costOf(counter, func() string {
			c.create("another", prego.RoleRedisPool, server.Spec{})
			return server.ProvisionWorkflowID(prego.ServerID(c.id("another")))
		}),
	}
	require.Equal(tb, 2, c.number(`SELECT count(*) FROM tenants WHERE state = 'active'`))
	require.Equal(tb, 4, c.number(`SELECT count(*) FROM servers WHERE status = 'active'`))
	return out
}

// TestCostsAreAsRecorded holds counts to the record, which noise cannot change: one more event, statement or call of the
// provider must be a decision, not an accident. go test ./lab/e2e -run TestCostsAreAsRecorded -record records them.
func TestCostsAreAsRecorded(t *testing.T) {
	t.Parallel()
	var now []string
	for of, c := range costs(t) {
		for what, n := range c {
			now = append(now, fmt.Sprintf("%s %s: %d", of, what, n))
		}
		now = append(now, fmt.Sprintf("%s: %d events, %d statements, %d calls", of, c.all("event"), c.all("statement"), c.all("call")))
	}
	slices.Sort(now)
	if *record {
		require.NoError(t, os.WriteFile(recordedCosts, []byte(strings.Join(now, "\n")+"\n"), 0o644))
		return
	}
	recorded, err := os.ReadFile(recordedCosts)
	require.NoError(t, err)
	was := strings.Split(strings.TrimSpace(string(recorded)), "\n")
	less := slices.DeleteFunc(slices.Clone(was), func(line string) bool { return slices.Contains(now, line) })
	more := slices.DeleteFunc(now, func(line string) bool { return slices.Contains(was, line) })
	require.Empty(t, less, "recorded, and not what is counted now:\n%s\nIf it is meant, -record records it again.", strings.Join(more, "\n"))
	require.Empty(t, more, "counted now, and not recorded. If it is meant, -record records it again.")
}

// BenchmarkCosts records what TestCostsAreAsRecorded counts.
func BenchmarkCosts(b *testing.B) {
	for b.Loop() {
		for of, c := range costs(b) {
			benchjson.Record(b, of+"_events", float64(c.all("event")), "events", 0)
			benchjson.Record(b, of+"_statements", float64(c.all("statement")), "statements", 0)
			benchjson.Record(b, of+"_calls", float64(c.all("call")), "calls", 0)
		}
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
