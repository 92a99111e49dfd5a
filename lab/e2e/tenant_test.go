package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// tenantVars are what cells with tenants run with.
func tenantVars(more map[string]string) map[string]string {
	vars := map[string]string{"PREGO_SITE_DOMAIN": "sites.test", "PREGO_SITE_TIMEOUT": "30s"}
	maps.Copy(vars, more)
	return vars
}

func sharedVars() map[string]string {
	return tenantVars(map[string]string{"PREGO_SHARED_PLACEMENT_LEGACY": "yes"})
}

// post sends a body and expects a status; the answer is decoded into out.
func (c *cell) post(path string, body any, status int, out any) {
	c.t.Helper()
	c.send(http.MethodPost, path, body, status, out)
}

func (c *cell) send(method, path string, body any, status int, out any) {
	c.t.Helper()
	got, b := c.request(method, path, body)
	require.Equal(c.t, status, got, "%s %s: %s", method, path, b)
	if out != nil {
		require.NoError(c.t, json.Unmarshal(b, out))
	}
}

func (c *cell) org(id, parent string) {
	c.t.Helper()
	body := map[string]string{"tier": "enterprise"}
	if parent != "" {
		body["parent_org_id"] = parent
	}
	c.send(http.MethodPut, "/v1/orgs/"+id, body, http.StatusOK, nil)
}

// tenant asks for a tenant.
func (c *cell) tenant(slug string, plan prego.Plan, change func(m map[string]any)) string {
	c.t.Helper()
	m := map[string]any{"slug": slug, "org_id": "acme", "region": "eu", "plan": plan}
	if change != nil {
		change(m)
	}
	var a struct {
		TenantID prego.TenantID `json:"tenant_id"`
	}
	c.post("/v1/tenants", m, http.StatusAccepted, &a)
	return string(a.TenantID)
}

func (c *cell) getTenant(id string) api.Tenant {
	c.t.Helper()
	var t api.Tenant
	c.send(http.MethodGet, "/v1/tenants/"+id, nil, http.StatusOK, &t)
	return t
}

// awaitTenant polls a tenant until ok returns true.
func (c *cell) awaitTenant(id, what string, ok func(api.Tenant) bool) api.Tenant {
	c.t.Helper()
	return await(c.t, fmt.Sprintf("tenant %s never was %s", id, what), func() api.Tenant { return c.getTenant(id) }, ok)
}

// settledTenant waits until a tenant is in a state whose effects are in place.
func (c *cell) settledTenant(id string, state tenant.State) api.Tenant {
	c.t.Helper()
	return c.awaitTenant(id, string(state), func(t api.Tenant) bool {
		if t.State != state && t.State == "failed" {
			c.t.Fatalf("tenant %s failed: %v %v", id, deref(t.StatusReason), deref(t.StatusMessage))
		}
		return t.State == state && t.ConvergedState == string(state)
	})
}

func (c *cell) number(sql string, args ...any) int {
	c.t.Helper()
	var n int
	c.query(&n, sql, args...)
	return n
}

// counted compares every count with the allocations that there are.
func (c *cell) counted() {
	c.t.Helper()
	require.Zero(c.t, c.number(`SELECT (SELECT count(*) FROM servers s WHERE tenant_count <> (SELECT count(*) FROM tenant_allocations a WHERE a.app_server_id = s.server_id AND released_at IS NULL))
		+ (SELECT count(*) FROM db_shards s WHERE current_tenant_count <> (SELECT count(*) FROM tenant_allocations a WHERE a.db_shard_id = s.shard_id AND released_at IS NULL))
		+ (SELECT count(*) FROM redis_pools s WHERE current_tenants <> (SELECT count(*) FROM tenant_allocations a WHERE a.redis_pool_id = s.pool_id AND released_at IS NULL))`), "counts and allocations differ")
}

// hostSites are the sites that a simulated host has on its disk, through its own
// bench: what the control plane believes is not asked.
func (c *cell) hostSites(serverID prego.ServerID) []string {
	c.t.Helper()
	for _, h := range c.sim.Hosts() {
		if h.Name == fmt.Sprintf("prego-%s-%s", c.env, serverID) {
			sites, err := sim.HostSites(h.Root)
			require.NoError(c.t, err)
			return sites
		}
	}
	return nil
}

// TestATenantWaitsForCapacityAndGetsIt begins with nothing: shared placement makes
// app server, shard and pool, and the tenant lands on them.
func TestATenantWaitsForCapacityAndGetsIt(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: sharedVars()})
	c.org("acme", "")
	id := c.tenant("alpha", prego.PlanStarter, func(m map[string]any) { m["apps"] = []string{"erpnext"} })
	tn := c.settledTenant(id, tenant.Active)
	require.NotNil(t, tn.Allocation)
	require.Equal(t, "alpha.sites.test", deref(tn.Site))
	require.Contains(t, c.hostSites(prego.ServerID(tn.Allocation.AppServerId)), "alpha.sites.test")
	require.Equal(t, 3, c.number(`SELECT count(*) FROM scaling_events WHERE trigger = 'scale_out_required' AND made = 1 AND finished_at IS NOT NULL`))
	c.counted()
	c.settled()
}

// sharedFleet makes one app server, one shard and one pool by hand, and waits until
// the site pool of the app server is filled.
func (c *cell) sharedFleet(sites int) (app string) {
	c.t.Helper()
	for _, s := range []struct {
		id   string
		role prego.Role
	}{{"app", prego.RoleApp}, {"db", prego.RoleDBShard}, {"redis", prego.RoleRedisPool}} {
		c.create(s.id, s.role, server.Spec{})
	}
	for _, id := range []string{"app", "db", "redis"} {
		c.awaitStatus(id, server.Active)
	}
	c.awaitSites(c.id("app"), sites)
	return c.id("app")
}

func (c *cell) awaitSites(server string, n int) {
	c.t.Helper()
	eventually(c.t, func() bool {
		return c.number(`SELECT count(*) FROM site_pool WHERE app_server_id = $1 AND state = 'available'`, server) >= n
	}, patience, 50*time.Millisecond, "%d sites on %s", n, server)
}

func (c *cell) policies(low, target int) {
	c.t.Helper()
	for _, p := range []string{"trial", "starter", "business"} {
		c.send(http.MethodPut, "/v1/site-pool-policies/"+p, map[string]int{"low_watermark": low, "target": target, "slo_seconds": 60}, http.StatusOK, nil)
	}
}

func tenantSteps(t api.Tenant) []string {
	var out []string
	for _, e := range t.Timeline {
		out = append(out, e.Step)
	}
	return out
}

// TestATenantIsPromotedFromThePool claims a pool site, and the pool is filled again.
func TestATenantIsPromotedFromThePool(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: sharedVars()})
	c.org("acme", "")
	app := c.sharedFleet(2)
	var pools struct {
		SitePools []api.SitePool `json:"site_pools"`
	}
	c.send(http.MethodGet, "/v1/site-pools", nil, http.StatusOK, &pools)
	require.NotEmpty(t, pools.SitePools)
	id := c.tenant("alpha", prego.PlanTrial, func(m map[string]any) { m["apps"] = []string{"erpnext", "hrms"} })
	tn := c.settledTenant(id, tenant.Active)
	require.Equal(t, "placed", tn.Decision.Outcome)
	require.Equal(t, app, tn.Allocation.AppServerId)
	require.Contains(t, c.hostSites(prego.ServerID(app)), "alpha.sites.test")
	require.NotNil(t, tn.DeadlineAt, "a trial expires")
	require.Subset(t, tenantSteps(tn), []string{"requested", "placed", "site_promoted", "apps_installed", "state_changed"})
	require.Equal(t, 1, c.number(`SELECT count(*) FROM site_pool WHERE state = 'assigned' AND tenant_id = $1 AND site_name = 'alpha.sites.test'`, id))
	c.awaitSites(app, 3)
	c.post("/v1/site-pools/"+app+"/refill", nil, http.StatusAccepted, nil)
	c.counted()

	// What would happen to another, live and over a fleet that is given.
	var sim struct {
		Results []struct {
			Outcome     string         `json:"outcome"`
			AppServerID prego.ServerID `json:"app_server_id"`
			Code        string         `json:"code"`
		} `json:"results"`
	}
	request := map[string]any{"tenant_id": "x", "org_id": "acme", "region": "eu", "plan": "starter"}
	c.post("/v1/placements/simulate", map[string]any{"requests": []any{request}}, http.StatusOK, &sim)
	require.Equal(t, "placed", sim.Results[0].Outcome)
	require.Equal(t, app, string(sim.Results[0].AppServerID))
	request["region"], request["data_residency"] = "eu", "KR"
	c.post("/v1/placements/simulate", map[string]any{"requests": []any{request}}, http.StatusOK, &sim)
	require.Equal(t, "data_residency_violation", sim.Results[0].Code)
	require.Equal(t, 1, c.number(`SELECT count(*) FROM tenant_allocations`), "nothing was written")
	status, body := c.request(http.MethodPost, "/v1/tenants", map[string]any{"slug": "beta", "org_id": "acme", "region": "eu", "plan": "starter", "data_residency": "KR"})
	require.Equal(t, http.StatusUnprocessableEntity, status)
	require.Contains(t, string(body), `"data_residency_violation"`)
}

// TestEmptyPools has no site ready: the site is made while the tenant waits, or the
// tenant is held until there is one.
func TestEmptyPools(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"on_demand", "hold"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			vars := sharedVars()
			vars["PLACEMENT_EMPTY_POOL"] = mode
			c := newCell(t, options{vars: vars, sim: func(s *sim.Config) { s.Profile.BenchNewSite = 1500 * time.Millisecond }})
			c.policies(0, 0)
			c.org("acme", "")
			app := c.sharedFleet(0)
			if mode == "hold" {
				c.policies(0, 1) // filled on request
			}
			id := c.tenant("alpha", prego.PlanStarter, nil)
			if mode == "hold" {
				held := c.awaitTenant(id, "held", func(tn api.Tenant) bool { return deref(tn.StatusReason) == "awaiting_site" || tn.State == "active" })
				require.Equal(t, "awaiting_site", deref(held.StatusReason))
			}
			tn := c.settledTenant(id, tenant.Active)
			require.Equal(t, map[string]string{"on_demand": "on_demand", "hold": "placed"}[mode], tn.Decision.Outcome)
			require.Contains(t, c.hostSites(prego.ServerID(app)), "alpha.sites.test")
			if mode == "on_demand" {
				require.Equal(t, "tenant_alpha_db", tn.Allocation.DatabaseName)
			}
			c.counted()
		})
	}
}

// TestOneTenantOneServer is the default policy: the first tenant has its server
// built, the next ones claim warm servers, behind which others are made.
func TestOneTenantOneServer(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: tenantVars(nil)})
	c.org("acme", "")
	first := c.tenant("first", prego.PlanBusiness, nil)
	tn := c.awaitTenant(first, "building its server", func(tn api.Tenant) bool { return deref(tn.StatusReason) == "building_server" || tn.State == "active" })
	require.Equal(t, tenant.ModeOneTenantOneServer, tn.Policy)
	tn = c.settledTenant(first, tenant.Active)
	require.Equal(t, "n-"+first+"-g1", tn.Allocation.AppServerId)
	require.Equal(t, tn.Allocation.AppServerId, tn.Allocation.DbShardId)
	require.Equal(t, tn.Allocation.AppServerId, tn.Allocation.RedisPoolId)
	require.Equal(t, "one_tenant_one_server_v1", tn.Decision.Algorithm)
	require.Equal(t, "acme", fairnessKey(t, tenant.ProvisionWorkflowID(prego.TenantID(first))))
	require.Equal(t, "acme", fairnessKey(t, server.ProvisionWorkflowID(prego.ServerID("n-"+first+"-g1"))), "a child's")

	c.send(http.MethodPut, "/v1/warm-pools/eu/starter", map[string]int{"target": 1}, http.StatusAccepted, nil)
	claimable := func() bool {
		var pools struct {
			WarmPools []api.WarmPool `json:"warm_pools"`
		}
		c.send(http.MethodGet, "/v1/warm-pools", nil, http.StatusOK, &pools)
		return len(pools.WarmPools) == 1 && pools.WarmPools[0].Claimable == 1
	}
	eventually(t, claimable, patience, 100*time.Millisecond)
	second := c.tenant("second", prego.PlanStarter, nil)
	tn = c.settledTenant(second, tenant.Active)
	require.Contains(t, tn.Allocation.AppServerId, "warm-starter-eu-")
	require.NotEmpty(t, deref(tn.Allocation.PoolSiteId))
	require.NotContains(t, tenantSteps(tn), "server_requested")
	eventually(t, claimable, patience, 100*time.Millisecond, "another one is made behind it")
	require.Equal(t, 3, c.number(`SELECT count(*) FROM servers WHERE role = 'node' AND status = 'active'`))

	// A purged tenant's server goes with it.
	c.post("/v1/tenants/"+first+"/cancel", nil, http.StatusAccepted, nil)
	c.settledTenant(first, tenant.GracePeriod)
	require.Equal(t, "acme", fairnessKey(t, tenant.ChangeWorkflowID(prego.TenantID(first))))
	c.post("/v1/tenants/"+first+"/terminate", map[string]string{"reason": "end of contract"}, http.StatusAccepted, nil)
	c.settledTenant(first, tenant.Terminated)
	_, err := c.pool.Exec(t.Context(), `UPDATE tenants SET deadline_at = now() WHERE tenant_id = $1`, first)
	require.NoError(t, err)
	tn = c.settledTenant(first, tenant.DataPurged)
	require.Contains(t, tenantSteps(tn), "final_backup")
	eventually(t, func() bool {
		return c.number(`SELECT count(*) FROM servers WHERE server_id = $1 AND status = 'terminated'`, "n-"+first+"-g1") == 1
	}, patience, 50*time.Millisecond)
	c.counted()
	c.settled()
}

// TestManyTenantsMakeOneScaleOut lets many wait for the same: one run makes what all
// of them need.
func TestManyTenantsMakeOneScaleOut(t *testing.T) {
	t.Parallel()
	// They wait for signals, as in production. 25 that look every two seconds leave a busy machine no time for the servers' runs.
	c := newCell(t, options{vars: tenantVars(map[string]string{"PREGO_SHARED_PLACEMENT_LEGACY": "1", "PLACEMENT_MAX_TENANTS_PER_NODE": "10"}), set: func(cfg *config.Config) { cfg.Tenants.CapacityPoll = 30 * time.Second }})
	c.org("acme", "")
	c.org("corp", "")
	var ids []string
	for i := range 25 {
		ids = append(ids, c.tenant(fmt.Sprintf("s%d", i), prego.PlanStarter, func(m map[string]any) { m["org_id"] = []string{"acme", "corp"}[i%2] }))
	}
	for _, id := range ids {
		c.settledTenant(id, tenant.Active)
	}
	apps := c.number(`SELECT count(*) FROM servers WHERE role = 'app'`)
	require.LessOrEqual(t, apps, 4, "25 tenants at 10 a server, and at most one ahead of need")
	require.GreaterOrEqual(t, apps, 3)
	require.LessOrEqual(t, c.number(`SELECT count(*) FROM scaling_events WHERE role = 'db-shard'`), 1)
	c.counted()
	c.settled()
}

// TestEnterpriseTenantsAreDedicated gives an enterprise tenant an empty server, shard and pool, which no other tenant gets.
func TestEnterpriseTenantsAreDedicated(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: sharedVars()})
	c.org("acme", "")
	ent := c.tenant("ent", prego.PlanEnterprise, nil)
	tn := c.settledTenant(ent, tenant.Active)
	require.True(t, tn.Allocation.Dedicated)
	other := c.tenant("other", prego.PlanStarter, nil)
	on := c.settledTenant(other, tenant.Active)
	require.NotEqual(t, tn.Allocation.AppServerId, on.Allocation.AppServerId)
	require.NotEqual(t, tn.Allocation.DbShardId, on.Allocation.DbShardId)
	require.NotEqual(t, tn.Allocation.RedisPoolId, on.Allocation.RedisPoolId)
	status, body := c.request(http.MethodPost, "/internal/placement-overrides", map[string]any{"tenant_id": other, "force_app_server_id": tn.Allocation.AppServerId, "reason": "x"})
	require.Equal(t, http.StatusConflict, status, "%s", body)
	c.counted()
}

// TestOverride places a waiting tenant by hand, and refuses what would break an
// invariant.
func TestOverride(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: sharedVars()})
	c.org("acme", "")
	app := c.sharedFleet(2)
	id := c.tenant("picky", prego.PlanStarter, func(m map[string]any) { m["constraint"] = map[string]any{"require": []string{"Blue"}} })
	tn := c.awaitTenant(id, "waiting", func(tn api.Tenant) bool { return deref(tn.StatusReason) == "cell_mismatch" })
	require.Equal(t, "cell_mismatch", deref(tn.Decision.Code))
	require.Equal(t, "provisioning", string(tn.State))
	for _, r := range []struct {
		body   map[string]any
		status int
		code   string
	}{
		{map[string]any{"tenant_id": id, "force_app_server_id": "nowhere", "reason": "r"}, 422, "server_unknown"},
		{map[string]any{"tenant_id": id, "force_app_server_id": app, "force_db_shard_id": "nothing", "reason": "r", "ignore_constraint": true}, 422, "db_shard_unknown"},
		{map[string]any{"tenant_id": id, "force_app_server_id": c.id("db"), "reason": "r"}, 422, "server_unknown"},
		{map[string]any{"tenant_id": id, "force_app_server_id": app}, 422, "invalid_field"},
		{map[string]any{"tenant_id": id, "force_app_server_id": app, "reason": "r"}, 409, "cell_mismatch"},
		{map[string]any{"tenant_id": "t-aaaaaaaaaaaa", "force_app_server_id": app, "reason": "r"}, 404, "tenant_not_found"},
	} {
		status, body := c.request(http.MethodPost, "/internal/placement-overrides", r.body)
		require.Equal(t, r.status, status, "%s", body)
		require.Contains(t, string(body), `"`+r.code+`"`)
	}
	c.post("/internal/placement-overrides", map[string]any{"tenant_id": id, "force_app_server_id": app, "reason": "the customer insists", "ignore_constraint": true}, http.StatusOK, nil)
	tn = c.settledTenant(id, tenant.Active)
	require.Equal(t, "manual", tn.Decision.Algorithm)
	require.Equal(t, "alice", tn.Decision.Actor)
	require.Equal(t, 4, c.number(`SELECT count(*) FROM placement_overrides WHERE NOT accepted`))
	c.counted()
}

// TestAnOverrideDoesNotWaitForTheTenantsOwnServer: the server that is being made for it is
// given up.
func TestAnOverrideDoesNotWaitForTheTenantsOwnServer(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: tenantVars(nil)})
	c.org("acme", "")
	c.policies(0, 0) // with a site on an empty server the tenant would take that server, and need no other
	app := c.sharedFleet(0)
	c.inject(sim.Fault{Kind: "slow_boot", DelayMS: 120_000, Times: 1})
	id := c.tenant("alpha", prego.PlanStarter, nil)
	c.awaitTenant(id, "building its server", func(tn api.Tenant) bool {
		return deref(tn.StatusReason) == "building_server" && c.sim.Faults()[0].Hits == 1
	})
	c.post("/internal/placement-overrides", map[string]any{"tenant_id": id, "force_app_server_id": app, "reason": "now", "ignore_constraint": true}, http.StatusOK, nil)
	tn := c.settledTenant(id, tenant.Active)
	require.Equal(t, app, tn.Allocation.AppServerId)
	c.ownServersGone(id)
	c.counted()
	c.settled()
}
