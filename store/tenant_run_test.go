package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/tenant"
)

// TestAPlaceIsGivenBackWhole: server, shard and pool count one tenant less, once, and the timeline records it.
func TestAPlaceIsGivenBackWhole(t *testing.T) {
	t.Parallel()
	s := backupTenants(t, 7) // t-0, t-3 and t-6 on n-0
	counted(t, s)
	require.Equal(t, 1, count(t, s, `org_events WHERE type = 'tenant.create' AND subject = 't-0'`), "the org was notified")
	for range 2 {
		require.NoError(t, s.FreePlace(t.Context(), "t-0", "failed_site", "", tenant.SiteDropped, nil))
		require.Equal(t, 0, count(t, s, `tenant_allocations WHERE tenant_id = 't-0' AND released_at IS NULL`))
		require.Equal(t, 2, count(t, s, `generate_series(1, (SELECT tenant_count FROM servers WHERE server_id = 'n-0'))`))
		require.Equal(t, 2, count(t, s, `generate_series(1, (SELECT current_tenant_count FROM db_shards WHERE shard_id = 'n-0'))`))
		require.Equal(t, 2, count(t, s, `generate_series(1, (SELECT current_tenants FROM redis_pools WHERE pool_id = 'n-0'))`))
		require.Equal(t, 1, count(t, s, `tenant_lifecycle_events WHERE tenant_id = 't-0' AND step = 'reservation_released' AND reason = 'failed_site'`))
	}
	require.Equal(t, 2, count(t, s, `tenant_allocations WHERE app_server_id = 'n-0' AND released_at IS NULL`), "the others stay")
}

// TestDeadlinesAreNotCutShort: a state ends when its time is over, and not a minute before.
func TestDeadlinesAreNotCutShort(t *testing.T) {
	t.Parallel()
	s := backupTenants(t, 1)
	periods := tenant.LifecyclePeriods{Grace: time.Hour, Retention: time.Hour}
	expire := func(want bool) {
		t.Helper()
		due, _, err := s.FindTenantWork(t.Context(), time.Hour, time.Hour)
		require.NoError(t, err)
		require.Equal(t, want, len(due.Expired) == 1)
		changed, err := s.ExpireTenant(t.Context(), "t-0", periods)
		require.NoError(t, err)
		require.Equal(t, want, changed)
	}
	_, err := s.ChangeTenant(impact.By(t.Context(), "test"), "t-0", tenant.ActionCancel, periods, "test", "")
	require.NoError(t, err)
	expire(false)
	exec(t, s, `UPDATE tenants SET deadline_at = now() + interval '1 minute'`)
	expire(false)
	exec(t, s, `UPDATE tenants SET deadline_at = now() - interval '1 second'`)
	expire(true)
	require.Equal(t, 1, count(t, s, `tenants WHERE state = 'terminated' AND deadline_at > now() + interval '59 minutes'`))
}

// TestARetriedTenantKeepsItsPlace: a sweep that found it as a leftover looks again before the place is freed.
func TestARetriedTenantKeepsItsPlace(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 2), t.Context()
	counted(t, s)
	exec(t, s, `UPDATE tenants SET state = 'failed', site = '', updated_at = now() - interval '1 hour'`)
	_, leftovers, err := s.FindTenantWork(ctx, time.Minute, time.Minute)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"t-0", "t-1"}, leftovers)
	for id, retried := range map[prego.TenantID]string{"t-0": `UPDATE tenants SET state = 'provisioning', generation = generation + 1 WHERE tenant_id = 't-0'`, "t-1": `SELECT`} {
		released := false
		require.NoError(t, s.holding(t, `SELECT FROM tenants WHERE tenant_id = '`+string(id)+`' FOR NO KEY UPDATE`, func() (err error) {
			released, err = s.FreeLeftover(ctx, id, "reservation_expired", tenant.SiteLeft, nil)
			return err
		}, does(t, retried)))
		require.Equal(t, id == "t-1", released)
	}
	require.Equal(t, 1, count(t, s, `tenant_allocations WHERE released_at IS NULL`))
	require.Equal(t, 1, count(t, s, `tenant_allocations WHERE tenant_id = 't-0' AND released_at IS NULL`))
}
