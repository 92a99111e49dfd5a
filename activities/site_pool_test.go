package activities_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/placement"
)

// TestAnEnterpriseSitePoolFills takes a site from the pool's policy to the tenant that
// lives in it. An enterprise tenant is alone on its server and shard (placement-policy
// §2.3), so only a site on an empty shard is one for it, and of those one per server.
func TestAnEnterpriseSitePoolFills(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		shared int    // the target of trial and starter
		setup  string // of the servers app-1, db-1 and db-2
		refill int    // sites that are built
		shard  string // of the tenant's site; "" where there is none for it
		low    bool   // the pool is reported as to be filled
	}{
		"alone":                                {refill: 1, shard: "db-1", low: true},
		"with sites that others may take":      {shared: 3, refill: 3, shard: "db-1", low: true},
		"the first shard has a tenant":         {setup: `UPDATE db_shards SET current_tenant_count = 1 WHERE shard_id = 'db-1'`, refill: 1, shard: "db-2", low: true},
		"the first shard is for trials":        {setup: `UPDATE db_shards SET plan_tier_lock = 'trial' WHERE shard_id = 'db-1'`, refill: 1, shard: "db-2", low: true},
		"the first shard is for business":      {setup: `UPDATE db_shards SET plan_tier_lock = 'business' WHERE shard_id = 'db-1'`, refill: 1, shard: "db-2", low: true},
		"others' sites are on a used shard":    {shared: 1, setup: usedShardWithSite, refill: 1, shard: "db-2", low: true},
		"every shard has a tenant":             {setup: `UPDATE db_shards SET current_tenant_count = 1`},
		"the app server has a tenant":          {setup: `UPDATE servers SET tenant_count = 1 WHERE server_id = 'app-1'`},
		"the app server and others' targets":   {shared: 3, setup: `UPDATE servers SET tenant_count = 1 WHERE server_id = 'app-1'`, refill: 3, low: true},
		"instances run beside the first shard": {setup: instanceBeside, refill: 1, shard: "db-2", low: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			p := newPlacing(t, 4)
			p.Server("app-1", prego.RoleApp, "")
			p.Server("db-1", prego.RoleDBShard, "")
			p.Server("db-2", prego.RoleDBShard, "")
			p.Server("redis-1", prego.RoleRedisPool, "")
			p.Exec(`UPDATE site_pool_policies SET low_watermark = 2, target = 4 WHERE plan = 'enterprise'`)
			p.Exec(`UPDATE site_pool_policies SET low_watermark = 0, target = 0 WHERE plan = 'business'`)
			p.Exec(`UPDATE site_pool_policies SET low_watermark = $1, target = $1 WHERE plan IN ('trial', 'starter')`, tt.shared)
			if tt.setup != "" {
				p.Exec(tt.setup)
			}

			steps := activities.Tenants{Store: p.Store, Settings: activities.TenantSettings{
				SiteDomain: "sites.test", ReserveFor: time.Minute, SiteTimeout: time.Minute, FailureMemory: time.Hour,
			}}
			low, err := p.Store.LowPools(ctx, time.Hour)
			require.NoError(t, err)
			require.Equal(t, tt.low, len(low) > 0, "%v", low)
			plan, err := steps.PlanRefill(ctx, activities.RefillInput{ServerID: "app-1"})
			require.NoError(t, err)
			require.Len(t, plan.Sites, tt.refill)
			for _, site := range plan.Sites {
				_, err := p.Store.SiteBuilt(ctx, site.PoolSiteID)
				require.NoError(t, err)
			}
			again, err := steps.PlanRefill(ctx, activities.RefillInput{ServerID: "app-1"})
			require.NoError(t, err)
			require.Empty(t, again.Sites)
			low, err = p.Store.LowPools(ctx, time.Hour)
			require.NoError(t, err)
			require.Empty(t, low, "a filled pool is not low")

			tenant, err := p.Store.TenantRecord(ctx, p.Tenant(prego.PlanEnterprise, nil).TenantID)
			require.NoError(t, err)
			d, err := p.Placer(nil).Place(ctx, tenant, nil, prego.ActorPlacementEngine)
			require.NoError(t, err)
			if tt.shard == "" {
				require.NotEqual(t, placement.Placed, d.Outcome)
				return
			}
			require.Equal(t, placement.Placed, d.Outcome, d.SelectionReason)
			require.Equal(t, tt.shard, string(d.DBShardID))
			p.recountEnterprise()
			again, err = steps.PlanRefill(ctx, activities.RefillInput{ServerID: "app-1"})
			require.NoError(t, err)
			require.Empty(t, again.Sites, "its server is its own")
		})
	}
}

// A shard in use, with the site of app-1 that trial and starter want.
const usedShardWithSite = `
WITH used AS (UPDATE db_shards SET current_tenant_count = 1 WHERE shard_id = 'db-1')
INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, available_at)
VALUES ('ps-1', 'app-1', 'db-1', 'one.pool', 'one', 'available', now())`

// An instance of a process group on the server of the first shard.
const instanceBeside = `
WITH a AS (INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-a', 'o1', 'a', 'test')),
e AS (INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-a', 'app-a', 'o1', 'a', 'eu', 'test')),
g AS (INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by)
      VALUES ('grp-a', 'env-a', 'o1', 'eu', 'a', '{}', 1, 1, 1, 'test'))
INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request, number, spec, state)
VALUES ('ins-a', 'grp-a', 'o1', 'db-1', 1, 1, 1, 1, '{}', 'running')`

// recountEnterprise counts one placed tenant, with dedicated resources.
func (p *placing) recountEnterprise() {
	p.T.Helper()
	require.Equal(p.T, 1, p.Number(`SELECT count(*) FROM tenant_allocations a
		JOIN site_pool s ON s.pool_site_id = a.pool_site_id AND s.tenant_id = a.tenant_id
		JOIN servers v ON v.server_id = a.app_server_id AND v.dedicated_for_tenant_id = a.tenant_id
		JOIN db_shards d ON d.shard_id = a.db_shard_id AND d.dedicated_for_tenant_id = a.tenant_id`))
}
