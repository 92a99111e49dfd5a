package placer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	fleet "github.com/prego/prego/lab/placing"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// placing is a fleet with a placer.
type placing struct{ *fleet.Fleet }

// newPlacing returns a placing with a separate database.
func newPlacing(t testing.TB, conns int32) *placing { return &placing{fleet.New(t, conns)} }

// TestPlacersRace lets 64 placers, each with a separate snapshot, concurrently place tenants of every plan on too
// small a fleet: P8 and the invariants of placement-policy §6 hold in the rows, whatever the snapshots showed.
func TestPlacersRace(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 40)
	for i := range 6 {
		p.Server(prego.ServerID(fmt.Sprintf("app-%d", i)), prego.RoleApp, "")
	}
	for i, lock := range []prego.Plan{"", "", "business", "", "trial"} {
		p.Server(prego.ServerID(fmt.Sprintf("db-%d", i)), prego.RoleDBShard, lock)
	}
	for i := range 3 {
		p.Server(prego.ServerID(fmt.Sprintf("redis-%d", i)), prego.RoleRedisPool, "")
	}
	p.Exec(`UPDATE db_shards SET tenant_capacity = 30`)
	p.Exec(`UPDATE redis_pools SET tenant_capacity = 40`)
	for i := range 6 {
		for j := range 3 {
			p.Sites(fmt.Sprintf("app-%d", i), fmt.Sprintf("db-%d", j), 4)
		}
	}
	plans := []prego.Plan{"trial", "starter", "business", "starter", "trial", "business", "starter", "enterprise"}
	var tenants []tenant.Tenant
	for i := range 160 {
		tenants = append(tenants, p.Tenant(plans[i%len(plans)], func(r *tenant.CreateRequest) {
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
		pl := p.Placer(func(x *placement.Policy) { x.MaxTenantsPerNode = 15 })
		go func() {
			defer wg.Done()
			for i := w; i < len(tenants); i += placers {
				d, err := pl.Place(ctx, tenant.Record{Tenant: tenants[i]}, nil, "test")
				outcomes[i], errs[i] = d.Outcome, err
				if err == nil && d.PlacesTenant() && rand.IntN(6) == 0 { // some leave again
					errs[i] = p.Store.FreePlace(ctx, tenants[i].TenantID, "left", "", tenant.SiteUntouched, nil)
				}
			}
		}()
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	p.Recount()
	placed := 0
	for _, o := range outcomes {
		require.Contains(t, []placement.Outcome{placement.Placed, placement.OnDemandSite, placement.AwaitingCapacity}, o)
		if o == placement.Placed || o == placement.OnDemandSite {
			placed++
		}
	}
	require.Greater(t, placed, 40)
	require.Equal(t, p.Number(`SELECT count(*) FROM tenant_allocations`), p.Number(`SELECT count(*) FROM allocation_snapshots WHERE allocation_id IS NOT NULL`), "each with its decision")
	require.Equal(t, p.Number(`SELECT count(*) FROM tenant_allocations`), p.Number(`SELECT count(*) FROM tenant_lifecycle_events WHERE step = 'placed' AND actor = 'test'`), "and its event")
	require.LessOrEqual(t, p.Number(`SELECT max(tenant_count) FROM servers`), 15)
}

// TestNaiveTwinsAreCaught keeps the checks honest: a claim that reads and then
// writes breaks under the same race, and the recount sees it.
func TestNaiveTwinsAreCaught(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 20)
	p.Server("app-0", prego.RoleApp, "")
	p.Server("db-0", prego.RoleDBShard, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	p.Sites("app-0", "db-0", 1)
	const racers = 8
	tenants := make([]tenant.Tenant, racers)
	for i := range tenants {
		tenants[i] = p.Tenant("starter", nil)
	}
	naive := func(ctx context.Context, tenantID prego.TenantID, read *sync.WaitGroup) error {
		var site string
		err := p.Pool.QueryRow(ctx, `SELECT pool_site_id FROM site_pool WHERE state = 'available' LIMIT 1`).Scan(&site)
		read.Done()
		read.Wait() // all have read before the first writes
		if err != nil {
			return err
		}
		_, err = p.Pool.Exec(ctx, `INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, pool_site_id, site_name, database_name, infra_provider, algorithm)
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
	require.Positive(t, p.Number(`SELECT count(*) FROM (SELECT pool_site_id FROM tenant_allocations GROUP BY 1 HAVING count(*) > 1) d`), "the check sees a site that two tenants have")
}

// TestReserveWaitsForNobody holds each row in another transaction.
func TestReserveWaitsForNobody(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.Server("app-0", prego.RoleApp, "")
	p.Server("db-0", prego.RoleDBShard, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	p.Sites("app-0", "db-0", 1)
	tn := p.Tenant("starter", nil)
	for lost, sql := range map[string]string{
		"site": `SELECT FROM site_pool FOR UPDATE`, "app_server": `SELECT FROM servers WHERE server_id = 'app-0' FOR UPDATE`,
		"db_shard": `SELECT FROM db_shards FOR UPDATE`, "redis_pool": `SELECT FROM redis_pools FOR UPDATE`,
	} {
		tx, err := p.Pool.Begin(context.Background())
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		_, err = tx.Exec(context.Background(), sql)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		r := tenant.Reservation{
			TenantID: tn.TenantID, Generation: 1, AppServerID: "app-0", DBShardID: "db-0", RedisPoolID: "redis-0", PoolSiteID: "app-0-db-0-0",
			Mode: tenant.ModeShared, MemoryPctMax: 70, MaxTenants: 20, ReserveFor: time.Minute, Decision: []byte(`{}`), Policy: []byte(`{}`),
		}
		out, err := p.Store.Reserve(ctx, r)
		require.NoError(t, err)
		require.Equal(t, lost, out.Lost)
		together, err := p.Store.ReserveAll(ctx, []tenant.Reservation{r})
		cancel()
		require.NoError(t, err)
		require.Equal(t, lost, together[0].Lost)
		require.NoError(t, tx.Rollback(context.Background()))
	}
	// A dedicated tenant also needs the servers of its shard and pool.
	for host, lost := range map[string]string{"db-0": "db_shard", "redis-0": "redis_pool"} {
		tx, err := p.Pool.Begin(context.Background())
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		_, err = tx.Exec(context.Background(), `SELECT FROM servers WHERE server_id = $1 FOR UPDATE`, host)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		out, err := p.Store.Reserve(ctx, tenant.Reservation{
			TenantID: tn.TenantID, Generation: 1, AppServerID: "app-0", DBShardID: "db-0", RedisPoolID: "redis-0", PoolSiteID: "app-0-db-0-0",
			Mode: tenant.ModeOneTenantOneServer, Dedicates: true, MemoryPctMax: 70, MaxTenants: 20, ReserveFor: time.Minute, Decision: []byte(`{}`), Policy: []byte(`{}`),
		})
		cancel()
		require.NoError(t, err)
		require.Equal(t, lost, out.Lost)
		require.NoError(t, tx.Rollback(context.Background()))
	}
	d, err := p.Placer(nil).Place(context.Background(), tenant.Record{Tenant: tn}, nil, "test")
	require.NoError(t, err)
	require.Equal(t, placement.Placed, d.Outcome)
	again, err := p.Placer(nil).Place(context.Background(), tenant.Record{Tenant: tn}, nil, "test")
	require.NoError(t, err, "a repeated step")
	require.True(t, again.PlacesTenant() || again.Outcome == placement.AwaitingCapacity)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM tenant_allocations`))
	p.Recount()
}

// TestTheSnapshotFollows changes rows behind a placer's back.
func TestTheSnapshotFollows(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	pl := p.Placer(nil)
	place := func(plan prego.Plan) placement.Decision {
		d, err := pl.Place(context.Background(), tenant.Record{Tenant: p.Tenant(plan, nil)}, nil, "test")
		require.NoError(t, err)
		return d
	}
	require.Equal(t, placement.AwaitingCapacity, place("starter").Outcome)
	p.Server("app-0", prego.RoleApp, "")
	p.Server("db-0", prego.RoleDBShard, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	require.Equal(t, placement.OnDemandSite, place("starter").Outcome, "a fleet that came after")
	p.Sites("app-0", "db-0", 1)
	time.Sleep(150 * time.Millisecond) // until the snapshot is looked after again
	require.Equal(t, placement.Placed, place("starter").Outcome, "a site that came after")
	p.Exec(`UPDATE servers SET memory_pct = 80 WHERE server_id = 'app-0'`)
	d := place("starter")
	require.Equal(t, placement.AwaitingCapacity, d.Outcome)
	require.Equal(t, map[string]int{"memory_pct": 1}, d.RejectedCounts)
	p.Exec(`UPDATE servers SET memory_pct = 30 WHERE server_id = 'app-0'`)
	p.Exec(`UPDATE db_shards SET plan_tier_lock = 'business'`)
	require.Equal(t, placement.OnDemandSite, place("business").Outcome)
	p.Exec(`UPDATE servers SET status = 'failed' WHERE server_id = 'db-0'`)
	require.Equal(t, placement.AwaitingCapacity, place("business").Outcome, "a shard fails with its server")
}

func TestWaitingTenantsAreServedInTurn(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	var order []string
	wait := func(plan prego.Plan, org prego.OrgID) string {
		tn := p.Tenant(plan, func(r *tenant.CreateRequest) { r.OrgID = org })
		require.NoError(t, p.Store.AwaitTenant(context.Background(), tenant.Ref{TenantID: tn.TenantID, Generation: 1}, prego.ReasonAwaitingCapacity, "", []prego.Role{"app"}, "", true))
		return string(tn.TenantID)
	}
	a1, a2, a3 := wait("starter", "o1"), wait("starter", "o1"), wait("starter", "o1")
	b1 := wait("starter", "o2")
	e := wait("enterprise", "o1")
	c := wait("trial", "o2")
	waiting, err := p.Store.Waiting(context.Background(), "eu")
	require.NoError(t, err)
	for _, w := range waiting {
		order = append(order, string(w.TenantID))
	}
	require.Equal(t, []string{e, a1, b1, a2, a3, c}, order, "by plan, then by turns among the orgs, then by age")
	o, err := p.Store.ShortOf(context.Background(), "eu", prego.RoleApp, 20, 70, tenant.MeasuredLimits{})
	require.NoError(t, err)
	require.Equal(t, map[prego.Plan]int{"enterprise": 1, "starter": 4, "trial": 1}, o.Waiting)
	require.True(t, p.Run(prego.TenantID(a1)).Queued, "others wait")
	p.Exec(`UPDATE tenants SET status_reason = 'cell_mismatch' WHERE tenant_id <> $1`, a1)
	require.False(t, p.Run(prego.TenantID(a1)).Queued, "tenants without a possible server do not block the queue")
}

func TestOverrides(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	for i := range 2 {
		p.Server(prego.ServerID(fmt.Sprintf("app-%d", i)), prego.RoleApp, "")
		p.Server(prego.ServerID(fmt.Sprintf("db-%d", i)), prego.RoleDBShard, []prego.Plan{"", "business"}[i])
	}
	p.Server("redis-0", prego.RoleRedisPool, "")
	p.Exec(`UPDATE servers SET memory_pct = 95, tenant_count = 0 WHERE server_id = 'app-0'`)
	pl := p.Placer(nil)
	woken := prego.TenantID("")
	pl.Wake = func(_ context.Context, t tenant.Tenant) { woken = t.TenantID }
	tn := p.Tenant("starter", nil)
	ctx := context.Background()
	for field, o := range map[string]tenant.PlacementOverride{
		string(prego.CodeServerUnknown):      {TenantID: tn.TenantID, ForceAppServerID: "app-9", Reason: "r"},
		string(prego.CodeShardUnknown):       {TenantID: tn.TenantID, ForceAppServerID: "app-0", ForceDBShardID: "db-9", Reason: "r"},
		string(prego.CodePoolUnknown):        {TenantID: tn.TenantID, ForceRedisPoolID: "redis-9", Reason: "r"},
		string(prego.CodeInvariantViolation): {TenantID: tn.TenantID, ForceAppServerID: "app-0", ForceDBShardID: "db-1", Reason: "r"},
	} {
		_, err := pl.Override(ctx, o, "alice")
		require.Equal(t, field, string(prego.CodeOf(err)), "%v", err)
	}
	p.Exec(`UPDATE servers SET accepts_trial = false WHERE server_id = 'app-0'`)
	trial := p.Tenant("trial", nil)
	_, err := pl.Override(ctx, tenant.PlacementOverride{TenantID: trial.TenantID, ForceAppServerID: "app-0", Reason: "r"}, "alice")
	require.Equal(t, prego.CodeInvariantViolation, prego.CodeOf(err), "%v", err)
	require.Equal(t, 5, p.Number(`SELECT count(*) FROM placement_overrides WHERE NOT accepted AND actor = 'alice' AND refusal <> ''`), "refused ones are on record")
	require.Zero(t, p.Number(`SELECT count(*) FROM tenant_allocations`))
	d, err := pl.Override(ctx, tenant.PlacementOverride{TenantID: tn.TenantID, ForceAppServerID: "app-0", Reason: "near its parent"}, "alice")
	require.NoError(t, err)
	require.Equal(t, "app-0", string(d.AppServerID), "however full its memory")
	require.Equal(t, tn.TenantID, woken)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM allocation_snapshots WHERE allocation_id IS NOT NULL AND algorithm = 'manual' AND actor = 'alice' AND policy_json->>'algorithm' = 'manual'`))
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM placement_overrides WHERE accepted`))
	_, err = pl.Override(ctx, tenant.PlacementOverride{TenantID: tn.TenantID, ForceAppServerID: "app-1", Reason: "again"}, "alice")
	require.Equal(t, prego.CodeTenantPlaced, prego.CodeOf(err))

	// A forced pool takes one more than its capacity, and so do companions if nothing else is there.
	p.Exec(`UPDATE redis_pools SET tenant_capacity = 1`)
	for _, o := range []tenant.PlacementOverride{{ForceRedisPoolID: "redis-0"}, {ForceAppServerID: "app-0"}} {
		o.TenantID, o.Reason = p.Tenant("starter", nil).TenantID, "r"
		d, err := pl.Override(ctx, o, "alice")
		require.NoError(t, err)
		require.Equal(t, []string{"db-0", "redis-0"}, []string{string(d.DBShardID), string(d.RedisPoolID)})
	}
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM placement_overrides WHERE accepted AND force_redis_pool_id = 'redis-0'`))
	require.Equal(t, 3, p.Number(`SELECT current_tenants FROM redis_pools`))
	p.Exec(`UPDATE redis_pools SET tenant_capacity = 3`)
	p.Recount()
}
