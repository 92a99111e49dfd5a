// Package placing is a fleet on a real database, for tests that place tenants.
package placing

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/placer"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// Fleet is a fleet on a real database.
type Fleet struct {
	T     testing.TB
	Pool  *pgxpool.Pool
	Store *store.Store
	next  int
}

// New returns an empty fleet on a separate database, with up to conns connections, and the orgs parent, child, o1 and
// o2.
func New(t testing.TB, conns int32) *Fleet {
	cfg, err := pgxpool.ParseConfig(pgtest.URL(t))
	require.NoError(t, err)
	cfg.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	p := &Fleet{T: t, Pool: pool, Store: store.New(pool)}
	for _, org := range [][2]prego.OrgID{{"parent", ""}, {"o1", ""}, {"o2", ""}, {"child", "parent"}} {
		_, err := p.Store.PutOrg(context.Background(), org[0],
			tenant.PutOrgRequest{ParentOrgID: &org[1], Tier: prego.TierEnterprise}, "test")
		require.NoError(t, err)
	}
	return p
}

// Placer returns one that places tenants on the fleet; change adapts its policy.
func (p *Fleet) Placer(change func(*placement.Policy)) *placer.Placer {
	policy := placement.DefaultPolicy()
	policy.Mode = tenant.ModeShared
	if change != nil {
		change(&policy)
	}
	return &placer.Placer{
		Store: p.Store, Policy: policy, SiteDomain: "sites.test", ReserveFor: time.Minute, Metrics: placer.NewMetrics(prometheus.NewRegistry()),
	}
}

// Exec runs a statement.
func (p *Fleet) Exec(sql string, args ...any) {
	p.T.Helper()
	_, err := p.Pool.Exec(context.Background(), sql, args...)
	require.NoError(p.T, err)
}

// Number returns the number that a query selects.
func (p *Fleet) Number(sql string, args ...any) int {
	p.T.Helper()
	var n int
	require.NoError(p.T, p.Pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

// Server adds an active server with its shard and pool, if its role has them.
func (p *Fleet) Server(id prego.ServerID, role prego.Role, lock prego.Plan) {
	p.T.Helper()
	_, err := p.Store.RequestFleetServer(context.Background(),
		server.Wanted{ServerID: id, Role: role, Region: "eu", Provider: "hetzner", PlanTierLock: lock}, "test")
	require.NoError(p.T, err)
	p.Exec(`UPDATE servers SET status = 'active', agent_status = 'connected', memory_pct = 20, active_at = now()
		WHERE server_id = $1`, id)
}

// Sites adds n available pool sites on a server and shard.
func (p *Fleet) Sites(server, shard string, n int) {
	p.T.Helper()
	for i := range n {
		k := fmt.Sprintf("%s-%s-%d", server, shard, i)
		p.Exec(`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, available_at)
		        VALUES ($1, $2, $3, $1 || '.pool', $1, 'available', now())`, k, server, shard)
	}
}

// Tenant requests a tenant of a plan; change adapts the request.
func (p *Fleet) Tenant(plan prego.Plan, change func(*tenant.CreateRequest)) tenant.Tenant {
	p.T.Helper()
	p.next++
	r := tenant.CreateRequest{Slug: fmt.Sprintf("s%d", p.next), OrgID: "o1", Region: "eu", Plan: plan}
	if change != nil {
		change(&r)
	}
	require.NoError(p.T, r.Validate())
	t, _, err := p.Store.CreateTenant(context.Background(), r, prego.TenantID(fmt.Sprintf("t%d", p.next)),
		tenant.ModeShared, "", "test")
	require.NoError(p.T, err)
	return t
}

// Recount compares every count with the allocations.
func (p *Fleet) Recount() {
	p.T.Helper()
	for what, sql := range map[string]string{
		"servers": `SELECT count(*) FROM servers s WHERE tenant_count <> (SELECT count(*) FROM tenant_allocations a
			WHERE a.app_server_id = s.server_id AND released_at IS NULL)`,
		"shards": `SELECT count(*) FROM db_shards s WHERE current_tenant_count <> (SELECT count(*)
			FROM tenant_allocations a WHERE a.db_shard_id = s.shard_id AND released_at IS NULL)`,
		"pools": `SELECT count(*) FROM redis_pools s WHERE current_tenants <> (SELECT count(*)
			FROM tenant_allocations a WHERE a.redis_pool_id = s.pool_id AND released_at IS NULL)`,
		"sites that two tenants have": `SELECT count(*) FROM (SELECT pool_site_id FROM tenant_allocations
			WHERE released_at IS NULL AND pool_site_id IS NOT NULL
		    GROUP BY 1 HAVING count(*) > 1) d`,
		"sites that are on another server or shard": `SELECT count(*) FROM tenant_allocations a
			JOIN site_pool s USING (pool_site_id)
		    WHERE released_at IS NULL AND (s.app_server_id <> a.app_server_id OR s.db_shard_id <> a.db_shard_id
		    OR s.tenant_id IS DISTINCT FROM a.tenant_id)`,
		"enterprise tenants with company": `SELECT count(*) FROM tenant_allocations a JOIN tenants t USING (tenant_id)
			WHERE a.released_at IS NULL AND t.plan = 'enterprise' AND EXISTS (
		    SELECT FROM tenant_allocations b WHERE b.released_at IS NULL AND b.tenant_id <> a.tenant_id
		    AND (b.app_server_id = a.app_server_id OR b.db_shard_id = a.db_shard_id
		    OR b.redis_pool_id = a.redis_pool_id))`,
		"broken tier locks": `SELECT count(*) FROM tenant_allocations a JOIN tenants t USING (tenant_id)
			JOIN db_shards d ON d.shard_id = a.db_shard_id WHERE a.released_at IS NULL AND NOT CASE t.plan
		    WHEN 'trial' THEN d.plan_tier_lock IS NULL
		    OR d.plan_tier_lock = 'trial' WHEN 'starter' THEN d.plan_tier_lock IS NULL
		    WHEN 'business' THEN d.plan_tier_lock IS NOT DISTINCT FROM 'business' ELSE d.plan_tier_lock IS DISTINCT
		    FROM 'trial' END`,
		"more than there is room for": `SELECT (SELECT count(*) FROM db_shards
			WHERE current_tenant_count > tenant_capacity) + (SELECT count(*) FROM redis_pools
			WHERE current_tenants > tenant_capacity)`,
		"regions that differ": `SELECT count(*) FROM tenant_allocations a JOIN tenants t USING (tenant_id)
			JOIN servers s ON s.server_id = a.app_server_id
		    JOIN db_shards d ON d.shard_id = a.db_shard_id JOIN redis_pools r ON r.pool_id = a.redis_pool_id
		    WHERE NOT (s.region = t.region AND d.region = t.region AND r.region = t.region)`,
	} {
		require.Zero(p.T, p.Number(sql), what)
	}
}

// Tagged adds an active app server with tags.
func (p *Fleet) Tagged(id prego.ServerID, tags ...string) {
	p.T.Helper()
	_, err := p.Store.RequestFleetServer(context.Background(),
		server.Wanted{
			ServerID: id, Role: prego.RoleApp, Region: "eu", Provider: "hetzner",
			Spec: server.Spec{Tags: tags},
		}, "test")
	require.NoError(p.T, err)
	p.Exec(`UPDATE servers SET status = 'active', agent_status = 'connected', memory_pct = 20, active_at = now()
		WHERE server_id = $1`, id)
}

// OrgPool creates a pool and associates an org with it.
func (p *Fleet) OrgPool(org, name string, c prego.Constraint) {
	p.T.Helper()
	_, _, err := p.Store.CreatePlacementPool(context.Background(), name, c, "test")
	require.NoError(p.T, err)
	require.NoError(p.T, p.Store.AssociatePool(context.Background(), prego.OrgID(org), name, "test"))
}

// Run reads a tenant's row.
func (p *Fleet) Run(id prego.TenantID) tenant.Record {
	p.T.Helper()
	t, err := p.Store.TenantRecord(context.Background(), id)
	require.NoError(p.T, err)
	return t
}

// Text returns the text that a query selects.
func (p *Fleet) Text(sql string) (out string) {
	p.T.Helper()
	require.NoError(p.T, p.Pool.QueryRow(context.Background(), sql).Scan(&out), sql)
	return out
}
