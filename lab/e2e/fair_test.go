package e2e

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/benchjson"
	"github.com/prego/prego/lab/sim"
)

// TestUnhealthyInstancesDoNotBlockOthers has many more instances than slots that never become healthy. If each held a
// slot until it is, no other work would run.
func TestUnhealthyInstancesDoNotBlockOthers(t *testing.T) {
	t.Parallel()
	besideNeverHealthy(t, 60, 1)
}

// BenchmarkNeverHealthy prints what a tenant and an instance of one org take while 1,000
// instances of another org never become healthy, beside what they took before.
func BenchmarkNeverHealthy(b *testing.B) {
	for b.Loop() {
		quietTenant, loudTenant, quietInstance, loudInstance := besideNeverHealthy(b, 1000, 7)
		benchjson.Record(b, "fair_tenant", loudTenant.Seconds(), "s", quietTenant.Seconds())
		benchjson.Record(b, "fair_instance", loudInstance.Seconds(), "s", quietInstance.Seconds())
	}
}

// besideNeverHealthy starts instances of one org that never become healthy, and measures
// the shortest of some times that another org's tenants and instances take, before and
// after. There are 8 slots for long steps.
func besideNeverHealthy(t testing.TB, noisy, samples int) (quietTenant, loudTenant, quietInstance, loudInstance time.Duration) {
	t.Helper()
	const groups = 4
	vars := sharedVars()
	maps.Copy(vars, rareSweeps())
	maps.Copy(vars, map[string]string{
		"PREGO_WORKER_CONCURRENCY": "16", "PREGO_WORKER_LONG_CONCURRENCY": "8",
	})
	c := newCell(t, options{vars: vars, set: neverSweep})
	c.org("acme", "")
	c.policies(2*samples+2, 2*samples+2)
	c.sharedFleet(2*samples + 2)
	c.policies(0, 2*samples+2)
	env, theirs := c.workloads("quiet", "paid"), c.workloads("noisy", "paid")
	for dimension, limit := range map[string]float64{"max_instances": float64(2 * noisy), "max_total_memory_bytes": 1 << 42, "max_total_cpu_request": 1000} {
		c.limit("noisy", dimension, limit)
		c.limit("quiet", dimension, limit)
	}
	const nodes = 4
	c.nodes("n", nodes, 4096*mb)
	// More than such a machine has: the containers exist in name only.
	_, err := c.pool.Exec(t.Context(), `UPDATE fleets SET workload_memory_bytes = 16::bigint << 30 WHERE workload_memory_bytes > 0`)
	require.NoError(t, err)
	eventually(t, func() bool { return c.number(`SELECT count(*) FROM container_reports`) >= nodes }, patience, 10*time.Millisecond)

	small := func(image string) map[string]any {
		return map[string]any{
			"image": image, "memory_limit_bytes": 6 * mb, "cpu_request": 0, "health": map[string]any{"command": []string{"/check"}}, "start_timeout_seconds": 600,
		}
	}
	asked := 0
	// best is the shortest time of some tries: what else this machine does adds to the others.
	best := func(try func(n int)) (least time.Duration) {
		for range samples {
			asked++
			began := time.Now()
			try(asked)
			if took := time.Since(began); least == 0 || took < least {
				least = took
			}
		}
		return least
	}
	until := func(sql string, id string) {
		deadline := time.Now().Add(patience)
		for c.number(sql, id) == 0 {
			require.Less(t, time.Now(), deadline, "%s: %s", sql, id)
			time.Sleep(2 * time.Millisecond)
		}
	}
	tenant := func(n int) {
		until(`SELECT count(*) FROM tenants WHERE tenant_id = $1 AND state = 'active'`, c.tenant(fmt.Sprintf("t%d", n), prego.PlanStarter, nil))
	}
	instance := func(n int) {
		until(`SELECT count(*) FROM instances WHERE group_id = $1 AND state = 'running'`, c.group(env, fmt.Sprintf("g%d", n), 1, small("web:1")).GroupId)
	}
	quietTenant, quietInstance = best(tenant), best(instance)

	c.inject(sim.Fault{Kind: "container", Image: "slow:1", Action: "unhealthy"})
	began := time.Now()
	for i := range groups {
		c.group(theirs, fmt.Sprintf("slow%d", i), noisy/groups, small("slow:1"))
	}
	eventually(t, func() bool {
		return c.number(`SELECT count(*) FROM instances WHERE org_id = 'noisy' AND started_at IS NOT NULL`) == noisy
	}, 5*time.Minute, 50*time.Millisecond)
	t.Logf("%d instances started after %s", noisy, time.Since(began))
	eventually(t, func() bool { return c.number(`SELECT count(*) FROM org_work`) == 0 }, patience, 20*time.Millisecond, "something is still under way")
	loudTenant, loudInstance = best(tenant), best(instance)
	require.Equal(t, noisy, c.number(`SELECT count(*) FROM instances WHERE org_id = 'noisy' AND state = 'booting' AND message <> ''`), "all of them still wait, and state their reason")
	return quietTenant, loudTenant, quietInstance, loudInstance
}
