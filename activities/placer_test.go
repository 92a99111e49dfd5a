package activities_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// placing is a fleet on a real database.
type placing struct {
	t     testing.TB
	pool  *pgxpool.Pool
	store *store.Store
	next  int
}

func newPlacing(t testing.TB, conns int32) *placing {
	cfg, err := pgxpool.ParseConfig(pgtest.URL(t))
	require.NoError(t, err)
	cfg.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	p := &placing{t: t, pool: pool, store: store.New(pool)}
	for _, org := range [][2]prego.OrgID{{"parent", ""}, {"o1", ""}, {"o2", ""}, {"child", "parent"}} {
		_, err := p.store.PutOrg(context.Background(), org[0], tenant.PutOrgRequest{ParentOrgID: &org[1], Tier: prego.TierEnterprise}, "test")
		require.NoError(t, err)
	}
	return p
}

func (p *placing) exec(sql string, args ...any) {
	p.t.Helper()
	_, err := p.pool.Exec(context.Background(), sql, args...)
	require.NoError(p.t, err)
}

func (p *placing) number(sql string, args ...any) int {
	p.t.Helper()
	var n int
	require.NoError(p.t, p.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

// server adds an active server with its shard and pool, if its role has them.
func (p *placing) server(id prego.ServerID, role prego.Role, lock prego.Plan) {
	p.t.Helper()
	_, err := p.store.RequestFleetServer(context.Background(), server.Wanted{ServerID: id, Role: role, Region: "eu", Provider: "hetzner", PlanTierLock: lock}, "test")
	require.NoError(p.t, err)
	p.exec(`UPDATE servers SET status = 'active', agent_status = 'connected', memory_pct = 20, active_at = now() WHERE server_id = $1`, id)
}

func (p *placing) sites(server, shard string, n int) {
	p.t.Helper()
	for i := range n {
		k := fmt.Sprintf("%s-%s-%d", server, shard, i)
		p.exec(`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, available_at)
		        VALUES ($1, $2, $3, $1 || '.pool', $1, 'available', now())`, k, server, shard)
	}
}

func (p *placing) tenant(plan prego.Plan, change func(*tenant.CreateRequest)) tenant.Tenant {
	p.t.Helper()
	p.next++
	r := tenant.CreateRequest{Slug: fmt.Sprintf("s%d", p.next), OrgID: "o1", Region: "eu", Plan: plan}
	if change != nil {
		change(&r)
	}
	require.NoError(p.t, r.Validate())
	t, _, err := p.store.CreateTenant(context.Background(), r, prego.TenantID(fmt.Sprintf("t%d", p.next)), tenant.ModeShared, "", "test")
	require.NoError(p.t, err)
	return t
}

func (p *placing) placer(change func(*placement.Policy)) *activities.Placer {
	policy := placement.DefaultPolicy()
	policy.Mode = tenant.ModeShared
	if change != nil {
		change(&policy)
	}
	return &activities.Placer{
		Store: p.store, Policy: policy, SiteDomain: "sites.test", ReserveFor: time.Minute, Metrics: activities.NewPlacementMetrics(prometheus.NewRegistry()),
	}
}

// recount compares every count with what the allocations say.
func (p *placing) recount() {
	p.t.Helper()
	for what, sql := range map[string]string{
		"servers": `SELECT count(*) FROM servers s WHERE tenant_count <> (SELECT count(*) FROM tenant_allocations a WHERE a.app_server_id = s.server_id AND released_at IS NULL)`,
		"shards":  `SELECT count(*) FROM db_shards s WHERE current_tenant_count <> (SELECT count(*) FROM tenant_allocations a WHERE a.db_shard_id = s.shard_id AND released_at IS NULL)`,
		"pools":   `SELECT count(*) FROM redis_pools s WHERE current_tenants <> (SELECT count(*) FROM tenant_allocations a WHERE a.redis_pool_id = s.pool_id AND released_at IS NULL)`,
		"sites that two tenants have": `SELECT count(*) FROM (SELECT pool_site_id FROM tenant_allocations WHERE released_at IS NULL AND pool_site_id IS NOT NULL
		    GROUP BY 1 HAVING count(*) > 1) d`,
		"sites that are on another server or shard": `SELECT count(*) FROM tenant_allocations a JOIN site_pool s USING (pool_site_id)
		    WHERE released_at IS NULL AND (s.app_server_id <> a.app_server_id OR s.db_shard_id <> a.db_shard_id OR s.tenant_id IS DISTINCT FROM a.tenant_id)`,
		"enterprise tenants with company": `SELECT count(*) FROM tenant_allocations a JOIN tenants t USING (tenant_id) WHERE a.released_at IS NULL AND t.plan = 'enterprise' AND EXISTS (
		    SELECT FROM tenant_allocations b WHERE b.released_at IS NULL AND b.tenant_id <> a.tenant_id
		    AND (b.app_server_id = a.app_server_id OR b.db_shard_id = a.db_shard_id OR b.redis_pool_id = a.redis_pool_id))`,
		"broken tier locks": `SELECT count(*) FROM tenant_allocations a JOIN tenants t USING (tenant_id) JOIN db_shards d ON d.shard_id = a.db_shard_id WHERE a.released_at IS NULL AND NOT CASE t.plan
		    WHEN 'trial' THEN d.plan_tier_lock IS NULL OR d.plan_tier_lock = 'trial' WHEN 'starter' THEN d.plan_tier_lock IS NULL
		    WHEN 'business' THEN d.plan_tier_lock IS NOT DISTINCT FROM 'business' ELSE d.plan_tier_lock IS DISTINCT FROM 'trial' END`,
		"more than there is room for": `SELECT (SELECT count(*) FROM db_shards WHERE current_tenant_count > tenant_capacity) + (SELECT count(*) FROM redis_pools WHERE current_tenants > tenant_capacity)`,
		"regions that differ": `SELECT count(*) FROM tenant_allocations a JOIN tenants t USING (tenant_id) JOIN servers s ON s.server_id = a.app_server_id
		    JOIN db_shards d ON d.shard_id = a.db_shard_id JOIN redis_pools r ON r.pool_id = a.redis_pool_id WHERE NOT (s.region = t.region AND d.region = t.region AND r.region = t.region)`,
	} {
		require.Zero(p.t, p.number(sql), what)
	}
}

// TestPlacersRace lets 64 placers, in as many processes' worth of snapshots, place
// tenants of every plan on too small a fleet at once: P8 and the invariants of
// placement-policy §6 hold in the rows, whatever each believed.
func TestPlacersRace(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 40)
	for i := range 6 {
		p.server(prego.ServerID(fmt.Sprintf("app-%d", i)), prego.RoleApp, "")
	}
	for i, lock := range []prego.Plan{"", "", "business", "", "trial"} {
		p.server(prego.ServerID(fmt.Sprintf("db-%d", i)), prego.RoleDBShard, lock)
	}
	for i := range 3 {
		p.server(prego.ServerID(fmt.Sprintf("redis-%d", i)), prego.RoleRedisPool, "")
	}
	p.exec(`UPDATE db_shards SET tenant_capacity = 30`)
	p.exec(`UPDATE redis_pools SET tenant_capacity = 40`)
	for i := range 6 {
		for j := range 3 {
			p.sites(fmt.Sprintf("app-%d", i), fmt.Sprintf("db-%d", j), 4)
		}
	}
	plans := []prego.Plan{"trial", "starter", "business", "starter", "trial", "business", "starter", "enterprise"}
	var tenants []tenant.Tenant
	for i := range 160 {
		tenants = append(tenants, p.tenant(plans[i%len(plans)], func(r *tenant.CreateRequest) {
			if i%3 == 0 {
				r.OrgID = "child"
			}
		}))
	}
	const placers = 64
	var wg sync.WaitGroup
	outcomes := make([]placement.Outcome, len(tenants))
	errs := make([]error, len(tenants))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for w := range placers {
		wg.Add(1)
		placer := p.placer(func(x *placement.Policy) { x.MaxTenantsPerNode = 15 })
		go func() {
			defer wg.Done()
			for i := w; i < len(tenants); i += placers {
				d, err := placer.Place(ctx, tenant.Run{Tenant: tenants[i]}, nil, "test")
				outcomes[i], errs[i] = d.Outcome, err
				if err == nil && d.PlacesTenant() && rand.IntN(6) == 0 { // some leave again
					errs[i] = p.store.ReleaseAllocation(ctx, tenants[i].TenantID, "left", "", tenant.SiteUntouched, false)
				}
			}
		}()
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	p.recount()
	placed := 0
	for _, o := range outcomes {
		require.Contains(t, []placement.Outcome{placement.Placed, placement.OnDemandSite, placement.AwaitingCapacity}, o)
		if o == placement.Placed || o == placement.OnDemandSite {
			placed++
		}
	}
	require.Greater(t, placed, 40)
	require.Equal(t, p.number(`SELECT count(*) FROM tenant_allocations`), p.number(`SELECT count(*) FROM allocation_snapshots WHERE allocation_id IS NOT NULL`), "each with its decision")
	require.Equal(t, p.number(`SELECT count(*) FROM tenant_allocations`), p.number(`SELECT count(*) FROM tenant_lifecycle_events WHERE step = 'placed' AND actor = 'test'`), "and its event")
	require.LessOrEqual(t, p.number(`SELECT max(tenant_count) FROM servers`), 15)
}

// TestNaiveTwinsAreCaught keeps the checks honest: a claim that reads and then
// writes breaks under the same race, and the recount sees it.
func TestNaiveTwinsAreCaught(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 20)
	p.server("app-0", prego.RoleApp, "")
	p.server("db-0", prego.RoleDBShard, "")
	p.server("redis-0", prego.RoleRedisPool, "")
	p.sites("app-0", "db-0", 1)
	const racers = 8
	tenants := make([]tenant.Tenant, racers)
	for i := range tenants {
		tenants[i] = p.tenant("starter", nil)
	}
	naive := func(ctx context.Context, tenantID prego.TenantID, read *sync.WaitGroup) error {
		var site string
		err := p.pool.QueryRow(ctx, `SELECT pool_site_id FROM site_pool WHERE state = 'available' LIMIT 1`).Scan(&site)
		read.Done()
		read.Wait() // everybody has read before anybody writes
		if err != nil {
			return err
		}
		_, err = p.pool.Exec(ctx, `INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, pool_site_id, site_name, database_name, infra_provider, algorithm)
			VALUES ($1, 'app-0', 'db-0', 'redis-0', $2, '', '', 'hetzner', 'naive')`, tenantID, site)
		return err
	}
	var wg, read sync.WaitGroup
	read.Add(racers)
	for _, tn := range tenants {
		wg.Add(1)
		go func() { defer wg.Done(); _ = naive(context.Background(), tn.TenantID, &read) }()
	}
	wg.Wait()
	require.Positive(t, p.number(`SELECT count(*) FROM (SELECT pool_site_id FROM tenant_allocations GROUP BY 1 HAVING count(*) > 1) d`), "the check sees a site that two tenants have")
}

// TestReserveChecksEveryInvariant gives the database reservations that a stale
// snapshot could make: it takes none of them, and nothing changes.
func TestReserveChecksEveryInvariant(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.server("app-0", prego.RoleApp, "")
	p.server("db-0", prego.RoleDBShard, "")
	p.server("redis-0", prego.RoleRedisPool, "")
	p.server("node-0", prego.RoleNode, "")
	p.sites("app-0", "db-0", 1)
	for name, tc := range map[string]struct {
		plan           prego.Plan
		request        func(*tenant.CreateRequest)
		break_, mend   string
		change         func(*tenant.Reservation)
		lost           string
		evenOverridden bool
	}{
		"server not active":        {break_: `UPDATE servers SET status = 'failed' WHERE server_id = 'app-0'`, mend: `UPDATE servers SET status = 'active' WHERE server_id = 'app-0'`, lost: "app_server", evenOverridden: true},
		"memory at the threshold":  {break_: `UPDATE servers SET memory_pct = 70 WHERE server_id = 'app-0'`, mend: `UPDATE servers SET memory_pct = 10 WHERE server_id = 'app-0'`, lost: "app_server"},
		"server full":              {break_: `UPDATE servers SET tenant_count = 20 WHERE server_id = 'app-0'`, mend: `UPDATE servers SET tenant_count = 0 WHERE server_id = 'app-0'`, lost: "app_server"},
		"dedicated to another":     {break_: `UPDATE servers SET dedicated_for_tenant_id = 'x' WHERE server_id = 'app-0'`, mend: `UPDATE servers SET dedicated_for_tenant_id = NULL WHERE server_id = 'app-0'`, lost: "app_server", evenOverridden: true},
		"no trials":                {plan: "trial", break_: `UPDATE servers SET accepts_trial = false WHERE server_id = 'app-0'`, mend: `UPDATE servers SET accepts_trial = true WHERE server_id = 'app-0'`, lost: "app_server"},
		"shard full":               {break_: `UPDATE db_shards SET current_tenant_count = 100 WHERE shard_id = 'db-0'`, mend: `UPDATE db_shards SET current_tenant_count = 0 WHERE shard_id = 'db-0'`, lost: "db_shard"},
		"tier lock":                {break_: `UPDATE db_shards SET plan_tier_lock = 'business' WHERE shard_id = 'db-0'`, mend: `UPDATE db_shards SET plan_tier_lock = NULL WHERE shard_id = 'db-0'`, lost: "db_shard", evenOverridden: true},
		"business without lock":    {plan: "business", lost: "db_shard", evenOverridden: true},
		"trial lock, paying":       {break_: `UPDATE db_shards SET plan_tier_lock = 'trial' WHERE shard_id = 'db-0'`, mend: `UPDATE db_shards SET plan_tier_lock = NULL WHERE shard_id = 'db-0'`, lost: "db_shard", evenOverridden: true},
		"pool full":                {break_: `UPDATE redis_pools SET current_tenants = 200 WHERE pool_id = 'redis-0'`, mend: `UPDATE redis_pools SET current_tenants = 0 WHERE pool_id = 'redis-0'`, lost: "redis_pool"},
		"pool in another region":   {break_: `UPDATE redis_pools SET region = 'sg' WHERE pool_id = 'redis-0'`, mend: `UPDATE redis_pools SET region = 'eu' WHERE pool_id = 'redis-0'`, lost: "redis_pool", evenOverridden: true},
		"enterprise with company":  {plan: "enterprise", break_: `UPDATE servers SET tenant_count = 1 WHERE server_id = 'app-0'`, mend: `UPDATE servers SET tenant_count = 0 WHERE server_id = 'app-0'`, lost: "app_server", evenOverridden: true},
		"enterprise, shard in use": {plan: "enterprise", break_: `UPDATE db_shards SET current_tenant_count = 1 WHERE shard_id = 'db-0'`, mend: `UPDATE db_shards SET current_tenant_count = 0 WHERE shard_id = 'db-0'`, lost: "db_shard", evenOverridden: true},
		"residency":                {request: func(r *tenant.CreateRequest) { r.DataResidency = "DE" }, break_: `UPDATE residency_zones SET regions = '{sg}' WHERE country = 'DE'`, mend: `UPDATE residency_zones SET regions = '{eu}' WHERE country = 'DE'`, lost: "app_server", evenOverridden: true},
		"constraint":               {request: func(r *tenant.CreateRequest) { r.Constraint.Require = []string{"blue"} }, lost: "constraint", evenOverridden: true},
		"site taken":               {break_: `UPDATE site_pool SET state = 'draining'`, mend: `UPDATE site_pool SET state = 'available'`, lost: "site", evenOverridden: true},
		"site of another shard":    {change: func(r *tenant.Reservation) { r.DBShardID = "node-0" }, lost: "site", evenOverridden: true},
		"shard of a node":          {change: func(r *tenant.Reservation) { r.DBShardID, r.PoolSiteID = "node-0", "" }, lost: "db_shard", evenOverridden: true},
		"pool of a node":           {change: func(r *tenant.Reservation) { r.RedisPoolID = "node-0" }, lost: "redis_pool", evenOverridden: true},
	} {
		t.Run(name, func(t *testing.T) { // one after the other: they share the fleet
			plan := tc.plan
			if plan == "" {
				plan = prego.PlanStarter
			}
			tn := p.tenant(plan, tc.request)
			if tc.break_ != "" {
				p.exec(tc.break_)
			}
			r := tenant.Reservation{
				TenantID: tn.TenantID, Generation: 1, AppServerID: "app-0", DBShardID: "db-0", RedisPoolID: "redis-0", PoolSiteID: "app-0-db-0-0",
				Mode: tenant.ModeShared, Algorithm: "best_fit", AuditAs: "best_fit", MemoryPctMax: 70, MaxTenants: 20, ReserveFor: time.Minute,
				Decision: []byte(`{}`), Policy: []byte(`{}`), Actor: "test",
			}
			if tc.change != nil {
				tc.change(&r)
			}
			for _, override := range []bool{false, true} {
				if override && !tc.evenOverridden {
					continue
				}
				r.Override = override
				out, err := p.store.Reserve(context.Background(), r)
				require.NoError(t, err)
				require.Equal(t, tenant.ReserveLost, out.Outcome)
				require.Equal(t, tc.lost, out.Lost)
			}
			r.Override = false
			together, err := p.store.ReserveAll(context.Background(), []tenant.Reservation{r})
			require.NoError(t, err)
			require.Equal(t, tenant.ReserveLost, together[0].Outcome)
			require.Equal(t, tc.lost, together[0].Lost)
			require.Zero(t, p.number(`SELECT count(*) FROM tenant_allocations`))
			require.Zero(t, p.number(`SELECT count(*) FROM allocation_snapshots`))
			if tc.mend != "" {
				p.exec(tc.mend)
			}
		})
	}
}

// TestReserveWaitsForNobody holds each row in another transaction.
func TestReserveWaitsForNobody(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.server("app-0", prego.RoleApp, "")
	p.server("db-0", prego.RoleDBShard, "")
	p.server("redis-0", prego.RoleRedisPool, "")
	p.sites("app-0", "db-0", 1)
	tn := p.tenant("starter", nil)
	for lost, sql := range map[string]string{
		"site": `SELECT FROM site_pool FOR UPDATE`, "app_server": `SELECT FROM servers WHERE server_id = 'app-0' FOR UPDATE`,
		"db_shard": `SELECT FROM db_shards FOR UPDATE`, "redis_pool": `SELECT FROM redis_pools FOR UPDATE`,
	} {
		tx, err := p.pool.Begin(context.Background())
		require.NoError(t, err)
		_, err = tx.Exec(context.Background(), sql)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		r := tenant.Reservation{
			TenantID: tn.TenantID, Generation: 1, AppServerID: "app-0", DBShardID: "db-0", RedisPoolID: "redis-0", PoolSiteID: "app-0-db-0-0",
			Mode: tenant.ModeShared, MemoryPctMax: 70, MaxTenants: 20, ReserveFor: time.Minute, Decision: []byte(`{}`), Policy: []byte(`{}`),
		}
		out, err := p.store.Reserve(ctx, r)
		require.NoError(t, err)
		require.Equal(t, lost, out.Lost)
		together, err := p.store.ReserveAll(ctx, []tenant.Reservation{r})
		cancel()
		require.NoError(t, err)
		require.Equal(t, lost, together[0].Lost)
		require.NoError(t, tx.Rollback(context.Background()))
	}
	d, err := p.placer(nil).Place(context.Background(), tenant.Run{Tenant: tn}, nil, "test")
	require.NoError(t, err)
	require.Equal(t, placement.Placed, d.Outcome)
	again, err := p.placer(nil).Place(context.Background(), tenant.Run{Tenant: tn}, nil, "test")
	require.NoError(t, err, "a repeated step")
	require.True(t, again.PlacesTenant() || again.Outcome == placement.AwaitingCapacity)
	require.Equal(t, 1, p.number(`SELECT count(*) FROM tenant_allocations`))
	p.recount()
}

// TestTheSnapshotFollows changes rows behind a placer's back.
func TestTheSnapshotFollows(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	placer := p.placer(nil)
	place := func(plan prego.Plan) placement.Decision {
		d, err := placer.Place(context.Background(), tenant.Run{Tenant: p.tenant(plan, nil)}, nil, "test")
		require.NoError(t, err)
		return d
	}
	require.Equal(t, placement.AwaitingCapacity, place("starter").Outcome)
	p.server("app-0", prego.RoleApp, "")
	p.server("db-0", prego.RoleDBShard, "")
	p.server("redis-0", prego.RoleRedisPool, "")
	require.Equal(t, placement.OnDemandSite, place("starter").Outcome, "a fleet that came after")
	p.sites("app-0", "db-0", 1)
	time.Sleep(150 * time.Millisecond) // until the snapshot is looked after again
	require.Equal(t, placement.Placed, place("starter").Outcome, "a site that came after")
	p.exec(`UPDATE servers SET memory_pct = 80 WHERE server_id = 'app-0'`)
	d := place("starter")
	require.Equal(t, placement.AwaitingCapacity, d.Outcome)
	require.Equal(t, map[string]int{"memory_pct": 1}, d.RejectedCounts)
	p.exec(`UPDATE servers SET memory_pct = 30 WHERE server_id = 'app-0'`)
	p.exec(`UPDATE db_shards SET plan_tier_lock = 'business'`)
	require.Equal(t, placement.OnDemandSite, place("business").Outcome)
	p.exec(`UPDATE servers SET status = 'failed' WHERE server_id = 'db-0'`)
	require.Equal(t, placement.AwaitingCapacity, place("business").Outcome, "a shard fails with its server")
}

func TestWaitingTenantsAreServedInTurn(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	var order []string
	wait := func(plan prego.Plan, org prego.OrgID) string {
		tn := p.tenant(plan, func(r *tenant.CreateRequest) { r.OrgID = org })
		require.NoError(t, p.store.AwaitTenant(context.Background(), tenant.Ref{TenantID: tn.TenantID, Generation: 1}, prego.ReasonAwaitingCapacity, "", []prego.Role{"app"}, "", true))
		return string(tn.TenantID)
	}
	a1, a2, a3 := wait("starter", "o1"), wait("starter", "o1"), wait("starter", "o1")
	b1 := wait("starter", "o2")
	e := wait("enterprise", "o1")
	c := wait("trial", "o2")
	waiting, err := p.store.Waiting(context.Background(), "eu")
	require.NoError(t, err)
	for _, w := range waiting {
		order = append(order, string(w.TenantID))
	}
	require.Equal(t, []string{e, a1, b1, a2, a3, c}, order, "by plan, then by turns among the orgs, then by age")
	o, err := p.store.ShortOf(context.Background(), "eu", prego.RoleApp, 20, 70, tenant.MeasuredLimits{})
	require.NoError(t, err)
	require.Equal(t, map[prego.Plan]int{"enterprise": 1, "starter": 4, "trial": 1}, o.Waiting)
	require.True(t, p.run(prego.TenantID(a1)).Queued, "others wait")
	p.exec(`UPDATE tenants SET status_reason = 'cell_mismatch' WHERE tenant_id <> $1`, a1)
	require.False(t, p.run(prego.TenantID(a1)).Queued, "those for whom there is no server hold up nobody")
}

func TestOverrides(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	for i := range 2 {
		p.server(prego.ServerID(fmt.Sprintf("app-%d", i)), prego.RoleApp, "")
		p.server(prego.ServerID(fmt.Sprintf("db-%d", i)), prego.RoleDBShard, []prego.Plan{"", "business"}[i])
	}
	p.server("redis-0", prego.RoleRedisPool, "")
	p.exec(`UPDATE servers SET memory_pct = 95, tenant_count = 0 WHERE server_id = 'app-0'`)
	placer := p.placer(nil)
	woken := prego.TenantID("")
	placer.Wake = func(_ context.Context, id prego.TenantID) { woken = id }
	tn := p.tenant("starter", nil)
	ctx := context.Background()
	for field, o := range map[string]tenant.PlacementOverride{
		string(prego.CodeServerUnknown):      {TenantID: tn.TenantID, ForceAppServerID: "app-9", Reason: "r"},
		string(prego.CodeShardUnknown):       {TenantID: tn.TenantID, ForceAppServerID: "app-0", ForceDBShardID: "db-9", Reason: "r"},
		string(prego.CodeInvariantViolation): {TenantID: tn.TenantID, ForceAppServerID: "app-0", ForceDBShardID: "db-1", Reason: "r"},
	} {
		_, err := placer.Override(ctx, o, "alice")
		require.Equal(t, field, string(prego.CodeOf(err)), "%v", err)
	}
	require.Equal(t, 3, p.number(`SELECT count(*) FROM placement_overrides WHERE NOT accepted AND actor = 'alice' AND refusal <> ''`), "refused ones are on record")
	require.Zero(t, p.number(`SELECT count(*) FROM tenant_allocations`))
	d, err := placer.Override(ctx, tenant.PlacementOverride{TenantID: tn.TenantID, ForceAppServerID: "app-0", Reason: "near its parent"}, "alice")
	require.NoError(t, err)
	require.Equal(t, "app-0", string(d.AppServerID), "however full its memory")
	require.Equal(t, tn.TenantID, woken)
	require.Equal(t, 1, p.number(`SELECT count(*) FROM allocation_snapshots WHERE allocation_id IS NOT NULL AND algorithm = 'manual' AND actor = 'alice' AND policy_json->>'algorithm' = 'manual'`))
	require.Equal(t, 1, p.number(`SELECT count(*) FROM placement_overrides WHERE accepted`))
	_, err = placer.Override(ctx, tenant.PlacementOverride{TenantID: tn.TenantID, ForceAppServerID: "app-1", Reason: "again"}, "alice")
	require.Equal(t, prego.CodeTenantPlaced, prego.CodeOf(err))
	p.recount()
}
