package store

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// warmNode is an active, connected node of the warm pool of starter in eu.
func warmNode(t testing.TB, s *Store, id prego.ServerID) {
	t.Helper()
	ctx := context.Background()
	_, _, err := s.CreateServer(ctx, server.CreateRequest{ServerID: id, Role: prego.RoleNode, Region: prego.RegionEU, InfraProvider: prego.ProviderHetzner}, "test")
	require.NoError(t, err)
	exec(t, s, `UPDATE servers SET status = 'active', agent_status = 'connected', warm_plan = 'starter' WHERE server_id = $1`, id)
}

func poolSite(t testing.TB, s *Store, server, state string, n int) {
	t.Helper()
	exec(t, s, `INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, reserved_until)
VALUES ($1, $2, $2, $1, $1, $3, CASE WHEN $3 = 'reserved' THEN now() END)`, fmt.Sprintf("%s-%s-%d", server, state, n), server, state)
}

func TestWarmPoolsCountClaimableSites(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, tc := range map[string]struct {
		change    string
		sites     []string
		claimable int
		building  int
	}{
		"ready":                    {"", []string{"available"}, 1, 0},
		"two sites are one server": {"", []string{"available", "reserved"}, 1, 0},
		"no site yet":              {"", nil, 0, 1},
		"site being built":         {"", []string{"reserved"}, 0, 1},
		"site failed":              {"", []string{"failed"}, 0, 0},
		"one failed, one ready":    {"", []string{"failed", "available"}, 1, 0},
		"booting":                  {"status = 'provisioning'", nil, 0, 1},
		"failed":                   {"status = 'failed'", []string{"available"}, 0, 0},
		"draining":                 {"status = 'draining'", []string{"available"}, 0, 0},
		"silent":                   {"agent_status = 'degraded'", []string{"available"}, 0, 1},
		"taken":                    {"tenant_count = 1, dedicated_for_tenant_id = 't-1'", []string{"available"}, 0, 0},
		"dedicated":                {"dedicated_for_tenant_id = 't-1'", []string{"available"}, 0, 0},
		"of another plan":          {"warm_plan = 'business'", []string{"available"}, 0, 0},
		"of no plan":               {"warm_plan = NULL", []string{"available"}, 0, 0},
		"elsewhere":                {"region = 'us'", []string{"available"}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := New(pgtest.Pool(t))
			require.NoError(t, s.PutWarmPool(ctx, prego.RegionEU, prego.PlanStarter, 1, "a"))
			require.NoError(t, s.PutWarmPool(ctx, prego.RegionEU, prego.PlanStarter, 3, "b"))
			warmNode(t, s, "node-1")
			for i, state := range tc.sites {
				poolSite(t, s, "node-1", state, i)
			}
			if tc.change != "" {
				exec(t, s, `UPDATE servers SET `+tc.change)
			}
			pools, err := s.ListWarmPools(ctx)
			require.NoError(t, err)
			require.Len(t, pools, 1)
			require.Equal(t, []int{3, tc.claimable, tc.building}, []int{pools[0].Target, pools[0].Claimable, pools[0].Building})
			require.Equal(t, "b", pools[0].UpdatedBy)
		})
	}
}

func TestSitePools(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	warmNode(t, s, "node-1")
	warmNode(t, s, "node-2")
	for i, state := range []string{"available", "available", "reserved", "failed", "draining"} {
		poolSite(t, s, "node-1", state, i)
	}
	pools, err := s.ListSitePools(ctx, "")
	require.NoError(t, err)
	require.Len(t, pools, 2)
	require.NotNil(t, pools[0].OldestBuild)
	require.Nil(t, pools[1].OldestBuild)
	pools[0].OldestBuild = nil
	require.Equal(t, tenant.SitePool{ServerID: "node-1", Region: "eu", Role: "node", Status: "active", Available: 2, Reserved: 1, Failed: 1, Draining: 1}, pools[0])
	require.Equal(t, tenant.SitePool{ServerID: "node-2", Region: "eu", Role: "node", Status: "active"}, pools[1])
	exec(t, s, `UPDATE servers SET status = 'terminated' WHERE server_id = 'node-2'`)
	pools, err = s.ListSitePools(ctx, prego.RegionEU)
	require.NoError(t, err)
	require.Len(t, pools, 1)
}

// TestPoolsBeyondTheirSLO: a site that is in the making, or failed, for longer than the
// tightest promise counts its server, once.
func TestPoolsBeyondTheirSLO(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	for _, p := range []prego.Plan{"trial", "starter", "business", "enterprise"} {
		require.NoError(t, s.PutSitePoolPolicy(ctx, tenant.SitePoolPolicy{Plan: p, LowWatermark: 1, Target: 2, SLOSeconds: 300}))
	}
	exec(t, s, `UPDATE site_pool_policies SET slo_seconds = 60 WHERE plan = 'starter'`)
	warmNode(t, s, "node-1")
	warmNode(t, s, "node-2")
	poolSite(t, s, "node-1", "reserved", 1)
	poolSite(t, s, "node-1", "failed", 2)
	poolSite(t, s, "node-2", "available", 1)
	for age, want := range map[int]float64{30: 0, 61: 1} {
		exec(t, s, `UPDATE site_pool SET created_at = now() - make_interval(secs => $1)`, age)
		got, err := s.PoolsBeyondSLO(ctx)
		require.NoError(t, err)
		require.InDelta(t, want, got, 0, "%d s", age)
	}
	exec(t, s, `UPDATE site_pool SET state = 'available', reserved_until = NULL`)
	got, err := s.PoolsBeyondSLO(ctx)
	require.NoError(t, err)
	require.Zero(t, got, "ready servers are not late")
}

func TestOverridesAreKept(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	o := tenant.PlacementOverride{TenantID: "t-1", ForceAppServerID: "app-1", Reason: "because"}
	require.NoError(t, s.RecordOverride(ctx, o, "op", true, "", ""))
	require.NoError(t, s.RecordOverride(ctx, o, "op", false, prego.CodeInvariantViolation, "app server app-1 is draining"))
	require.Equal(t, 1, count(t, s, "placement_overrides WHERE accepted AND refusal_code = '' AND force_db_shard_id IS NULL"))
	require.Equal(t, 1, count(t, s, "placement_overrides WHERE NOT accepted AND refusal_code = 'invariant_violation' AND actor = 'op'"))
}
