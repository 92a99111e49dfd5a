package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/benchjson"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// idleFor is how long an idle system is watched. What its schedules will do is known; this
// is for what else starts runs.
const idleFor = time.Minute

// BenchmarkIdle prints the number of workflow runs that an idle system starts in an hour, with production's settings:
// the runs of its schedules, which are read from Temporal, and others that start while it watches. It also prints the
// share of a core that its processes took.
func BenchmarkIdle(b *testing.B) {
	c := newCell(b, options{vars: map[string]string{
		"PREGO_PACE": "1", "PREGO_RECONCILE_EVERY": "5m", "PREGO_AGENTGW_HEARTBEAT": "30s", "PREGO_LOG_LEVEL": "info",
	}})
	c.create("idle", prego.RoleRedisPool, server.Spec{})
	c.awaitStatus("idle", server.Active)
	time.Sleep(20 * time.Second) // what a worker does when it starts
	for b.Loop() {
		began, busy := time.Now(), c.cpu(b)
		time.Sleep(idleFor)
		besides := c.startedBesides(b, began)
		core := (c.cpu(b) - busy).Seconds() / time.Since(began).Seconds()
		scheduled := c.scheduledAnHour(b)
		b.Logf("%.0f runs an hour by schedules; %d besides them in %s", scheduled, besides, idleFor)
		benchjson.Record(b, "idle_runs_per_hour", scheduled+float64(besides)*float64(time.Hour/idleFor), "runs", 0)
		benchjson.Record(b, "idle_core_pct", 100*core, "%", 0)
	}
}

// startedBesides is how many runs were started since then but by schedules.
func (c *cell) startedBesides(tb testing.TB, since time.Time) (n int) {
	tb.Helper()
	time.Sleep(2 * time.Second) // until they are listed
	r, err := temporalClient.ListWorkflow(context.Background(), &workflowservice.ListWorkflowExecutionsRequest{
		Query: fmt.Sprintf("TaskQueue = 'e2e-%s' AND StartTime >= '%s'", c.env, since.UTC().Format(time.RFC3339Nano)), PageSize: 1000,
	})
	require.NoError(tb, err)
	for _, e := range r.GetExecutions() {
		if id := e.GetExecution().GetWorkflowId(); !strings.Contains(id, "/scheduled") {
			tb.Logf("started: %s", id)
			n++
		}
	}
	return n
}

// scheduledAnHour is how many runs the schedules start in an hour.
func (c *cell) scheduledAnHour(tb testing.TB) (n float64) {
	tb.Helper()
	for _, id := range []string{
		server.ReconcileWorkflowID(c.env), server.SweepWorkflowID(c.env), tenant.SweepWorkflowID(c.env),
		workload.GroupSweepWorkflowID(c.env), server.CatalogWorkflowID(c.env), tenant.StorageWorkflowID(c.env),
	} {
		d, err := temporalClient.ScheduleClient().GetHandle(context.Background(), id).Describe(context.Background())
		require.NoError(tb, err)
		for _, i := range d.Schedule.Spec.Intervals {
			n += float64(time.Hour) / float64(i.Every)
		}
	}
	return n
}

// cpu is the time that the cell's processes have taken of a core.
func (c *cell) cpu(tb testing.TB) (took time.Duration) {
	tb.Helper()
	for _, p := range c.procs {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		require.NoError(tb, err)
		_, own, _ := taken(tb, stat)
		took += own
	}
	return took
}
