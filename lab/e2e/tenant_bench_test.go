package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/benchjson"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

// bareTenantWorkflow does the steps of the run of an immediately placed tenant, with empty steps: it reads its row and
// places the tenant (a local activity), and builds its site and activates it (an activity).
func bareTenantWorkflow(ctx workflow.Context) error {
	local := workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Minute})
	if err := workflow.ExecuteLocalActivity(local, noop).Get(ctx, nil); err != nil {
		return err
	}
	remote := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	return workflow.ExecuteActivity(remote, noop).Get(ctx, nil)
}

// BenchmarkTenants prints how many tenants per second become active, 60 asked for at
// once by 16 callers on hosts where nothing takes time, with a pool site ready for
// each; beside bare workflows of the same shape whose activities do nothing, started by as
// many callers. Temporal is set as in production for both.
func BenchmarkTenants(b *testing.B) {
	const tenants, callers, apps = 60, 16, 3
	vars := sharedVars()
	maps.Copy(vars, map[string]string{
		"PREGO_LOG_LEVEL": "warn", "PREGO_API_RATE_PER_SECOND": "100000", "PLACEMENT_MAX_TENANTS_PER_NODE": "1000",
	})
	c := newCell(b, options{vars: vars, sim: func(cfg *sim.Config) { cfg.Limits.Servers = 100 }})
	w := worker.New(temporalClient, "bench-bare-tenants", worker.Options{})
	w.RegisterWorkflow(bareTenantWorkflow)
	w.RegisterActivity(noop)
	require.NoError(b, w.Start())
	b.Cleanup(w.Stop)

	c.org("acme", "")
	_, err := c.pool.Exec(context.Background(), `UPDATE capacity_defaults SET tenant_capacity = 10000`)
	require.NoError(b, err)
	for _, plan := range []string{"trial", "business"} {
		c.send(http.MethodPut, "/v1/site-pool-policies/"+plan, map[string]int{"low_watermark": 0, "target": 0, "slo_seconds": 600}, http.StatusOK, nil)
	}
	perServer := 2*tenants/apps + 1 // also if they don't spread evenly
	c.send(http.MethodPut, "/v1/site-pool-policies/starter", map[string]int{"low_watermark": perServer, "target": perServer, "slo_seconds": 600}, http.StatusOK, nil)
	servers := []string{"db", "redis"}
	c.create("db", prego.RoleDBShard, server.Spec{})
	c.create("redis", prego.RoleRedisPool, server.Spec{})
	for i := range apps {
		id := fmt.Sprintf("app%d", i)
		c.create(id, prego.RoleApp, server.Spec{})
		servers = append(servers, id)
	}
	for _, id := range servers {
		c.awaitStatus(id, server.Active)
	}
	// fill waits for full pools, and stops them from being filled meanwhile.
	policy := func(low int) {
		c.send(http.MethodPut, "/v1/site-pool-policies/starter", map[string]int{"low_watermark": low, "target": perServer, "slo_seconds": 600}, http.StatusOK, nil)
	}
	fill := func() {
		policy(perServer)
		for i := range apps {
			c.post("/v1/site-pools/"+c.id(fmt.Sprintf("app%d", i))+"/refill", nil, http.StatusAccepted, nil)
		}
		for i := range apps {
			c.awaitSites(c.id(fmt.Sprintf("app%d", i)), perServer)
		}
		policy(0)
	}
	from := func(f func(i int)) {
		var wg sync.WaitGroup
		for k := range callers {
			wg.Go(func() {
				for i := k; i < tenants; i += callers {
					f(i)
				}
			})
		}
		wg.Wait()
	}
	benches, err := filepath.Glob(filepath.Join(c.dir, "sim/hosts/*/root", wire.BenchBinary)) // of app servers
	require.NoError(b, err)
	require.Len(b, benches, apps)
	round := 0
	for b.Loop() {
		round++
		fill()
		for _, bench := range benches { // Frappe's own programs take no time, as on a host that is another machine
			require.NoError(b, os.Rename(bench, bench+".real"))
			require.NoError(b, os.Symlink("/bin/true", bench))
		}
		syscall.Sync()
		before := c.number(`SELECT count(*) FROM tenants WHERE state = 'active'`)
		began := time.Now()
		from(func(i int) { c.tenant(fmt.Sprintf("s%d-%d", round, i), prego.PlanStarter, nil) })
		eventually(b, func() bool { return c.number(`SELECT count(*) FROM tenants WHERE state = 'active'`) == before+tenants }, patience, 10*time.Millisecond)
		got := tenants / time.Since(began).Seconds()
		require.Zero(b, c.number(`SELECT count(*) FROM tenant_allocations WHERE pool_site_id IS NULL`), "each has its pool site")

		runs := make([]client.WorkflowRun, tenants)
		began = time.Now()
		from(func(i int) {
			run, err := temporalClient.ExecuteWorkflow(context.Background(), client.StartWorkflowOptions{ID: fmt.Sprintf("bare-tenant-%d-%d", round, i), TaskQueue: "bench-bare-tenants"}, bareTenantWorkflow)
			require.NoError(b, err)
			runs[i] = run
		})
		for _, run := range runs {
			require.NoError(b, run.Get(context.Background(), nil))
		}
		bare := tenants / time.Since(began).Seconds()
		for _, bench := range benches {
			require.NoError(b, os.Rename(bench+".real", bench))
		}
		b.ReportMetric(0, "ns/op")
		benchjson.Record(b, "tenants", got, "/s", bare)
		c.counted()
	}
}
