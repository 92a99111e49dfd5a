package e2e

import (
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// TestServersAreFreed: tenants spread over servers are packed on few, according to the plan and on an operator's
// request, although the worker dies before and after it has requested a move; the freed servers are deleted. In `make
// test-deep` they are 100 servers of two regions, and a receiving server falls silent first, which stops everything
// until there is another plan.
func TestServersAreFreed(t *testing.T) {
	t.Parallel()
	all := deep.Times(1) > 1
	regions, apps, spread, more, most, atOnce := []prego.Region{prego.RegionEU}, 4, 3, 1, 8, 2
	if all {
		regions, apps, spread, more, most, atOnce = append(regions, prego.RegionUS), 50, 40, 15, 12, 10
	}
	crash := filepath.Join(t.TempDir(), "crash")
	s := s3test.Start(t)
	c := newCell(t, options{sim: func(cfg *sim.Config) { cfg.Limits.Servers = 130 }, vars: backupVars(s, map[string]string{
		"PREGO_MOVE_GRACE": "200ms", "PREGO_TEST_CRASH": crash, "PREGO_LOG_LEVEL": "info",
		"PLACEMENT_MEMORY_PCT_MAX": "100", "PLACEMENT_MAX_TENANTS_PER_NODE": "1", "PREGO_DEGRADED_AFTER": "30s",
		// While a server takes one tenant, most are full: the fleet would grow ahead of need.
		"PREGO_SCALE_OUT_THRESHOLD_PCT": "0",
	})})
	c.awaitCatalog(func(cat api.Catalog) bool { return cat.Known })
	c.policies(0, 0)
	c.org("acme", "")
	var servers []string
	for _, region := range regions {
		make := func(name string, role prego.Role) {
			c.post("/internal/servers/create", server.CreateRequest{
				ServerID: prego.ServerID(c.id(name)), Role: role, Region: region, InfraProvider: prego.ProviderHetzner,
			}, http.StatusAccepted, nil)
			servers = append(servers, name)
		}
		make("db-"+string(region), prego.RoleDBShard)
		make("redis-"+string(region), prego.RoleRedisPool)
		for i := range apps / 2 {
			make(fmt.Sprintf("app-%s-%02d", region, i), prego.RoleApp)
		}
		// As most that tenants need, the others are of a fleet.
		fleet := c.id("packed-" + string(region))
		c.post("/v1/fleets", map[string]any{"fleet_id": fleet, "role": prego.RoleApp, "region": region, "infra_provider": "hetzner", "serves_tenants": true}, http.StatusCreated, nil)
		c.act(fleet, "CLUSTER_SCALE_OUT", map[string]any{"count": apps - apps/2})
	}
	began := time.Now()
	for _, name := range servers {
		c.awaitStatus(name, server.Active)
	}
	for _, region := range regions {
		c.awaitAction(c.id("packed-"+string(region)), 1, "succeeded")
	}
	t.Logf("%d servers in %s", c.number(`SELECT count(*) FROM servers WHERE status = 'active'`), time.Since(began).Round(time.Second))
	began = time.Now()
	var ids []string
	settle := func(n int) {
		first := len(ids)
		for _, region := range regions {
			for range n {
				ids = append(ids, c.tenant(fmt.Sprintf("tenant-%d", len(ids)), prego.PlanStarter, func(m map[string]any) { m["region"] = region }))
			}
		}
		for _, id := range ids[first:] {
			c.settledTenant(id, tenant.Active)
		}
	}
	atMost := func(n int) {
		c.vars["PLACEMENT_MAX_TENANTS_PER_NODE"] = strconv.Itoa(n)
		delete(c.vars, "PREGO_SCALE_OUT_THRESHOLD_PCT") // it grows ahead of need again, as a plan must expect
		for _, name := range []string{"worker", "api"} {
			c.kill(name)
			c.start(name)
		}
	}
	settle(spread) // each on a separate server
	require.Equal(t, len(regions)*spread, c.number(`SELECT count(*) FROM servers WHERE tenant_count = 1 AND role = 'app'`))
	atMost(2)
	settle(more)
	atMost(most)
	t.Logf("%d tenants in %s", len(ids), time.Since(began).Round(time.Second))

	// Tenants of a network that has too few servers were given more. What is still on its way would be billed later, and
	// not for the moves.
	eventually(t, func() bool {
		return c.number(`SELECT count(*) FROM servers WHERE status = 'provisioning'`)+
			c.number(`SELECT count(*) FROM scaling_events WHERE finished_at IS NULL`) == 0
	}, patience, 50*time.Millisecond, "servers are on their way")
	ordered := c.number(`SELECT count(*) FROM scaling_events`)
	plan := c.packingPlan()
	if all {
		c.stopsForASilentServer(plan)
		plan = c.packingPlan()
	}
	var saved big.Rat
	for _, f := range plan.Frees {
		var v api.Server
		c.send(http.MethodGet, "/v1/servers/"+f.ServerId, nil, http.StatusOK, &v)
		net, ok := new(big.Rat).SetString(v.Cost.Monthly.Net)
		require.True(t, ok)
		saved.Add(&saved, net)
	}
	euros, _ := saved.Float64()
	require.InDelta(t, euros, *plan.Monthly, 0.005, "what the provider asks for them")
	require.Positive(t, euros)
	require.Equal(t, "EUR", deref(plan.Currency))
	t.Logf("a plan of %d moves frees %d of %d servers, %d of them needed", len(plan.Moves), len(plan.Frees), *plan.Servers, *plan.Needed)
	require.GreaterOrEqual(t, len(plan.Frees), *plan.Servers-*plan.Needed-len(regions), "a server per region more than there must be, at most")
	want := c.places()
	for _, m := range plan.Moves {
		require.Equal(t, m.From, want[m.TenantId])
		want[m.TenantId] = m.To
	}

	billed := len(c.billed("server"))
	require.NoError(t, os.WriteFile(crash, []byte("rebalance/stepped"), 0o600))
	began = time.Now()
	r := c.rebalance(plan, "--remove-servers", "--at-once", strconv.Itoa(atOnce))
	c.dies(crash, "rebalance/stepped")
	require.NoError(t, os.WriteFile(crash, []byte("rebalance/asked"), 0o600))
	c.start("worker")
	c.dies(crash, "rebalance/asked")
	c.start("worker")
	r = c.rebalanced(r, server.RebalanceDone, time.Duration(len(plan.Moves))*patience)
	took := time.Since(began).Round(time.Second)
	n := len(plan.Moves)
	require.Equal(t, []int{n, n, 0, 0}, []int{r.Total, r.Moved, r.Failed, r.Skipped})
	require.Equal(t, n, c.number(`SELECT count(*) FROM tenant_moves WHERE move_id LIKE $1 || '%' AND state = 'done'`, r.RebalanceId), "each was asked for once")
	require.Equal(t, want, c.places(), "the plan's, line by line")
	sites := map[string][]string{} // that there are, by server
	require.Equal(t, len(ids), c.number(`SELECT count(*) FROM tenants WHERE state = $1`, tenant.Active))
	for i, id := range ids {
		sites[want[id]] = append(sites[want[id]], fmt.Sprintf("tenant-%d.sites.test", i))
	}
	for app, expected := range sites {
		require.ElementsMatch(t, expected, c.hostSites(prego.ServerID(app)), app)
		for _, site := range expected {
			require.Equal(t, "off", c.maintenance(app, site))
		}
	}
	for _, f := range plan.Frees {
		eventually(t, func() bool {
			return c.text(`SELECT status FROM servers WHERE server_id = $1`, f.ServerId) == string(server.Terminated)
		}, patience, 50*time.Millisecond)
	}
	require.Equal(t, ordered, c.number(`SELECT count(*) FROM scaling_events`), "none was ordered in their place")
	require.Len(t, c.billed("server"), billed-len(plan.Frees), "and none was made")
	require.Equal(t, fmt.Sprintf("%d of %d tenants were moved", n, n), deref(r.Message), "no server is kept")
	objects, err := filepath.Glob(s.File(c.env + "/moves/*/*"))
	require.NoError(t, err)
	require.Empty(t, objects)
	t.Logf("%d moves in %s freed %d of %d servers with tenants, who need %d at least; %.2f EUR per month are saved", n, took, len(plan.Frees), *plan.Servers, *plan.Needed, euros)
	c.counted()
	c.settled()
}

// places are the app servers of tenants.
func (c *cell) places() map[string]string {
	c.t.Helper()
	rows, err := c.pool.Query(c.t.Context(), `SELECT tenant_id, app_server_id FROM tenant_allocations WHERE released_at IS NULL`)
	require.NoError(c.t, err)
	defer rows.Close()
	out := map[string]string{}
	for rows.Next() {
		var id, app string
		require.NoError(c.t, rows.Scan(&id, &app))
		out[id] = app
	}
	require.NoError(c.t, rows.Err())
	return out
}

// packingPlan requests a plan as an operator does. All hosts are this machine, so their measures are meaningless for
// tenants: each tenant takes a twentieth, and no host reports anything else meanwhile.
func (c *cell) packingPlan() (plan api.PackingPlan) {
	c.t.Helper()
	c.kill("agentgw")
	c.exec(`UPDATE servers SET memory_pct = 20 + 5 * tenant_count, disk_pct = 10 WHERE role = 'app' AND status = 'active'`)
	out, said, status := c.cli(c.operator, "rebalance", "plan", "-o", "json")
	require.Zero(c.t, status, said)
	require.NoError(c.t, json.Unmarshal([]byte(out), &plan))
	c.start("agentgw")
	require.Empty(c.t, plan.Unknown)
	require.NotEmpty(c.t, plan.Frees)
	return plan
}

// rebalance hands a plan in.
func (c *cell) rebalance(plan api.PackingPlan, flags ...string) (r api.Rebalance) {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "plan.json")
	text, err := json.Marshal(plan)
	require.NoError(c.t, err)
	require.NoError(c.t, os.WriteFile(file, text, 0o600))
	out, said, status := c.cli(c.operator, append([]string{"rebalance", "start", "--plan", file, "-o", "json"}, flags...)...)
	require.Zero(c.t, status, said)
	require.NoError(c.t, json.Unmarshal([]byte(out), &r))
	return r
}

// rebalanced waits for the end of a rebalance.
func (c *cell) rebalanced(r api.Rebalance, want server.RebalanceState, within time.Duration) api.Rebalance {
	c.t.Helper()
	eventually(c.t, func() bool {
		c.send(http.MethodGet, "/v1/rebalances/"+r.RebalanceId, nil, http.StatusOK, &r)
		return server.RebalanceState(r.State).Ended()
	}, max(within, patience), 100*time.Millisecond, "%+v", &r)
	require.Equal(c.t, string(want), r.State, "%s %s: %s", deref(r.Reason), deref(r.Message), asJSON(r.Moves))
	return r
}

func asJSON(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// stopsForASilentServer carries a plan out whose first target has fallen silent: no further move starts, and servers
// with tenants are open again.
func (c *cell) stopsForASilentServer(plan api.PackingPlan) {
	c.t.Helper()
	silent := plan.Moves[0].To
	pid := c.agentPID(silent)
	require.NoError(c.t, syscall.Kill(pid, syscall.SIGSTOP))
	r := c.rebalance(plan, "--at-once", "1")
	r = c.rebalanced(r, server.RebalanceStopped, 2*patience)
	require.Equal(c.t, string(server.RebalanceServerSilent), deref(r.Reason))
	require.Contains(c.t, deref(r.Message), silent)
	require.Equal(c.t, 1, r.Moving, "a started move continues")
	require.Zero(c.t, c.number(`SELECT count(*) FROM servers WHERE role = 'app' AND cordoned_at IS NOT NULL AND tenant_count > 0`))
	require.NoError(c.t, syscall.Kill(pid, syscall.SIGCONT))
	eventually(c.t, func() bool {
		return c.number(`SELECT count(*) FROM tenant_moves WHERE finished_at IS NULL`)+c.number(`SELECT count(*) FROM servers WHERE status = 'active' AND agent_status <> 'connected'`) == 0
	}, 2*patience, 50*time.Millisecond)
	c.t.Logf("stopped: %s", deref(r.Message))
}
