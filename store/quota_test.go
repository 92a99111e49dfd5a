package store

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// usedOf is what an org uses of one dimension.
func usedOf(t testing.TB, s *Store, org prego.OrgID, d quota.Dimension) float64 {
	t.Helper()
	q, err := s.quotasOf(context.Background(), s.pool, org, []quota.Dimension{d})
	require.NoError(t, err)
	return q[0].Usage
}

// TestATenantCountsWhileSomethingOfItStands walks through the ends of tenants: a tenant that
// fails repeatedly must not pass a limit, and a tenant that is gone must not count against its org.
func TestATenantCountsWhileSomethingOfItStands(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	exec := func(sql string, args ...any) {
		_, err := s.pool.Exec(ctx, sql, args...)
		require.NoError(t, err, sql)
	}
	for _, sql := range placedBefore(0)[:3] {
		exec(sql)
	}
	_, _, err := s.CreateTenant(ctx, tenantRequest(t, "one", prego.PlanStarter), "t-1", tenant.ModeShared, "", "someone")
	require.NoError(t, err)
	set := func(state, converged string) {
		exec(`UPDATE tenants SET state = $1, converged_state = $2 WHERE tenant_id = 't-1'`, state, converged)
	}
	expect := func(n float64, why string) {
		t.Helper()
		require.Equal(t, n, usedOf(t, s, "acme", quota.MaxInstances), why)
	}
	for _, state := range []string{"trial", "provisioning", "active", "suspended", "grace_period"} {
		set(state, "")
		expect(1, state)
	}
	for _, state := range []string{"failed", "terminated", "data_purged"} {
		set(state, "")
		expect(0, state+", and never had a place")
		set("provisioning", "") // only who lives gets a place
		exec(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
			VALUES ('t-1', 'old', 'old', 'old', 's', 'd', 'hetzner', 'best_fit')`)
		set(state, "")
		expect(1, state+", and its site stands")
		exec(`UPDATE tenant_allocations SET released_at = now()`)
		expect(0, state+", and its place is free")
		exec(`UPDATE servers SET dedicated_for_tenant_id = 't-1', status = 'draining' WHERE server_id = 'old'`)
		expect(1, state+", and its own server is being taken down")
		if state == "data_purged" {
			set(state, state)
			expect(0, "the purge is in effect")
		}
		exec(`UPDATE servers SET status = 'terminated' WHERE server_id = 'old'`)
		expect(0, state+", and nothing is left")
		exec(`UPDATE servers SET status = 'draining', dedicated_for_tenant_id = NULL WHERE server_id = 'old'`)
	}
}

// TestTenantSizesAreThePlans: a plan's size counts, also for a tenant that requests less.
func TestTenantSizesAreThePlans(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	for _, p := range prego.Plans() {
		var storage float64
		require.NoError(t, s.pool.QueryRow(context.Background(), `SELECT storage_bytes FROM tenant_sizes WHERE plan = $1`, p).Scan(&storage))
		require.Equal(t, 1e9*float64(p.DefaultStorageGB()), storage, p)
	}
}

func TestAnUnknownDimensionIsNeverTaken(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	tx, err := s.pool.Begin(context.Background())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	require.NoError(t, s.takeQuota(context.Background(), &txn{Tx: tx}, "acme", quota.Delta{Dimension: quota.MaxApps, By: 1}), "a known org is")
	err = s.takeQuota(context.Background(), &txn{Tx: tx}, "acme", quota.Delta{Dimension: "max_fun", By: 1})
	require.ErrorContains(t, err, "case not found", "SQL knows every dimension by name")
	require.Equal(t, prego.CodeInternal, prego.CodeOf(err), "it is a fault of ours, not the org's limit")
}

// TestMissingLimitIsZero: tiers are whole, but if they were not, nothing is free.
func TestMissingLimitIsZero(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	s.tierLimits = json.RawMessage(`{}`)
	_, _, err := s.CreateApp(context.Background(), workload.App{AppID: "app-1", OrgID: "acme", Name: "a", CreatedBy: "test"}, "")
	require.Equal(t, prego.CodeQuotaExceeded, prego.CodeOf(err))
}

// TestDeltasOfOneDimensionAddUp: two halves are no way around a limit.
func TestDeltasOfOneDimensionAddUp(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	_, err := s.SetQuota(ctx, "acme", quota.MaxVolumes, 1, "test", "tight")
	require.NoError(t, err)
	take := func(deltas ...quota.Delta) error {
		tx, err := s.pool.Begin(ctx)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(ctx) }()
		return s.takeQuota(ctx, &txn{Tx: tx}, "acme", deltas...)
	}
	more := quota.Delta{Dimension: quota.MaxVolumes, By: 1}
	require.NoError(t, take(more))
	require.Equal(t, &org.QuotaExceeded{Dimension: "max_volumes", Limit: 1, RequestedDelta: 2}, take(more, more))
	require.NoError(t, take(more, more, quota.Delta{Dimension: quota.MaxVolumes, By: -1}))
	_, err = s.SetQuota(ctx, "acme", quota.MaxVolumes, 0, "test", "none")
	require.NoError(t, err)
	require.NoError(t, take(quota.Delta{Dimension: quota.MaxVolumes, By: -1}), "giving back is always allowed")
	require.NoError(t, take())
}

// TestUsageNearLimits lists the orgs nearest to a limit one by one, and the rest as one.
func TestUsageNearLimits(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	for i, limit := range []float64{100, 2, 4, 0} {
		org := fmt.Sprintf("o%d", i)
		_, err := s.PutOrg(ctx, prego.OrgID(org), tenant.PutOrgRequest{}, "test")
		require.NoError(t, err)
		for j := range 2 {
			_, _, err := s.CreateApp(ctx, workload.App{AppID: prego.AppID(fmt.Sprintf("app-%d-%d", i, j)), OrgID: prego.OrgID(org), Name: fmt.Sprint(j), CreatedBy: "test"}, "")
			require.NoError(t, err)
		}
		_, err = s.SetQuota(ctx, prego.OrgID(org), quota.MaxApps, limit, "test", "test")
		require.NoError(t, err)
	}
	rows, err := s.UsageNearLimits(ctx, 2)
	require.NoError(t, err)
	require.Len(t, rows, 3*len(quota.Dimensions()))
	got := map[string][2]float64{}
	for _, r := range rows {
		if r.Dimension == string(quota.MaxApps) {
			got[string(r.OrgID)] = [2]float64{r.Usage, r.Limit}
		}
	}
	require.Equal(t, map[string][2]float64{"o3": {2, 0}, "o1": {2, 2}, "": {4, 104}}, got)
	rows, err = s.UsageNearLimits(ctx, 0)
	require.NoError(t, err)
	require.Len(t, rows, len(quota.Dimensions()))
}

// TestRepeatedCreationReturnsDeletedObject: a lost answer is repeated, even when
// its object is deleted since; nothing is created again.
func TestRepeatedCreationReturnsDeletedObject(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	app := workload.App{AppID: "app-1", OrgID: "acme", Name: "a", CreatedBy: "test"}
	_, _, err := s.CreateApp(ctx, app, "key-app")
	require.NoError(t, err)
	env := workload.Env{EnvID: "env-1", AppID: "app-1", Name: "prod", Region: prego.RegionEU, CreatedBy: "test"}
	_, _, err = s.CreateEnv(ctx, env, "key-env")
	require.NoError(t, err)
	require.NoError(t, s.DeleteEnv(ctx, "env-1", "test"))
	require.NoError(t, s.DeleteApp(ctx, "app-1", "test"))

	app.AppID, env.EnvID = "app-2", "env-2"
	gotEnv, created, err := s.CreateEnv(ctx, env, "key-env")
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, prego.EnvID("env-1"), gotEnv.EnvID)
	require.NotNil(t, gotEnv.DeletedAt)
	gotApp, created, err := s.CreateApp(ctx, app, "key-app")
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, prego.AppID("app-1"), gotApp.AppID)
	require.NotNil(t, gotApp.DeletedAt)
}
