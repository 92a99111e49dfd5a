package store

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// sharedServer is an active, connected server of the shared fleet in eu.
func sharedServer(t testing.TB, s *Store, id prego.ServerID, role prego.Role) {
	t.Helper()
	_, _, err := s.CreateServer(context.Background(), server.CreateRequest{ServerID: id, Role: role, Region: prego.RegionEU, InfraProvider: prego.ProviderHetzner}, "test")
	require.NoError(t, err)
	exec(t, s, `UPDATE servers SET status = 'active', agent_status = 'connected' WHERE server_id = $1`, id)
}

// TestUnclaimableSitesDoNotCount: a site is bound to its shard, and goes
// with it when that is full or dedicated to a tenant.
func TestUnclaimableSitesDoNotCount(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, change := range map[string]string{
		"full":      `UPDATE db_shards SET current_tenant_count = tenant_capacity WHERE shard_id = 'db-1'`,
		"dedicated": `UPDATE db_shards SET dedicated_for_tenant_id = 't' WHERE shard_id = 'db-1'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tenantStore(t)
			sharedServer(t, s, "app-1", prego.RoleApp)
			sharedServer(t, s, "db-1", prego.RoleDBShard)
			plan := func() []tenant.PoolSite {
				sites, err := s.PlanRefill(ctx, "app-1", "sites.test", time.Hour, time.Hour)
				require.NoError(t, err)
				return sites
			}
			require.Len(t, plan(), 3)
			exec(t, s, `UPDATE site_pool SET state = 'available', reserved_until = NULL`)
			require.Empty(t, plan())
			exec(t, s, change)
			sharedServer(t, s, "db-2", prego.RoleDBShard)
			low, err := s.LowPools(ctx, time.Hour)
			require.NoError(t, err)
			require.Equal(t, []string{"app-1"}, low)
			sites := plan()
			require.Len(t, sites, 3)
			require.Equal(t, "db-2", string(sites[0].DBShardID))
		})
	}
}

// TestAFailedSiteIsNotForgotten: the run that could not drop it is over, and the pool may need no other.
func TestAFailedSiteIsNotForgotten(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	sharedServer(t, s, "app-1", prego.RoleApp)
	sharedServer(t, s, "db-1", prego.RoleDBShard)
	sites, err := s.PlanRefill(ctx, "app-1", "sites.test", time.Hour, time.Hour)
	require.NoError(t, err)
	exec(t, s, `UPDATE site_pool SET state = 'available', reserved_until = NULL WHERE pool_site_id <> $1`, sites[0].PoolSiteID)
	require.NoError(t, s.SiteFailed(ctx, sites[0].PoolSiteID, "the host was away"))
	exec(t, s, `UPDATE servers SET cordoned_at = now() WHERE server_id = 'app-1'`)
	left := func() []string {
		ids, err := s.LeftSites(ctx, time.Hour)
		require.NoError(t, err)
		return ids
	}
	require.Empty(t, left(), "it is tried again a while later")
	exec(t, s, `UPDATE site_pool SET updated_at = now() - interval '2 hours' WHERE pool_site_id = $1`, sites[0].PoolSiteID)
	require.Equal(t, []string{"app-1"}, left(), "its pool needs no other site, and gets none")
	exec(t, s, `UPDATE servers SET agent_status = 'disconnected' WHERE server_id = 'app-1'`)
	require.Empty(t, left())
	exec(t, s, `UPDATE servers SET agent_status = 'connected' WHERE server_id = 'app-1'`)
	require.NoError(t, s.SiteDropped(ctx, sites[0].PoolSiteID))
	require.Empty(t, left())
}

// TestConcurrentRefillsCreateOnePool repeats a step whose first attempt is still under
// way.
func TestConcurrentRefillsCreateOnePool(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	sharedServer(t, s, "app-1", prego.RoleApp)
	sharedServer(t, s, "db-1", prego.RoleDBShard)
	for range 10 {
		exec(t, s, `DELETE FROM site_pool`)
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			wg.Add(1)
			go func() {
				defer wg.Done()
				_, errs[i] = s.PlanRefill(ctx, "app-1", "sites.test", time.Hour, time.Hour)
			}()
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		require.Equal(t, 3, count(t, s, "site_pool"))
	}
}
