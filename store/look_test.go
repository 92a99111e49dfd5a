package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops"
)

func TestALookIsTakenByOneAndTakenOverWhenItsLeaseEnds(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	take := func(who string, every time.Duration) (bool, time.Duration) {
		t.Helper()
		began, wait, err := s.BeginLook(ctx, "tenants", who, every, time.Minute)
		require.NoError(t, err)
		return began, wait
	}
	began, _ := take("a", 0)
	require.True(t, began)
	began, wait := take("b", 0)
	require.False(t, began, "a is at it")
	require.Greater(t, wait, 50*time.Second)
	held, err := s.ExtendLook(ctx, "tenants", "a", time.Hour)
	require.NoError(t, err)
	require.True(t, held)
	held, err = s.ExtendLook(ctx, "tenants", "b", time.Hour)
	require.NoError(t, err)
	require.False(t, held)

	exec(t, s, `UPDATE looks SET leased_until = now()`) // a died
	held, err = s.ExtendLook(ctx, "tenants", "a", time.Hour)
	require.NoError(t, err)
	require.False(t, held, "and woke up")
	began, _ = take("b", 0)
	require.True(t, began)
	require.NoError(t, s.EndLook(ctx, "tenants", "a", ops.LookResult{Found: true}, nil), "its end counts no more")
	looks, err := s.Looks(ctx)
	require.NoError(t, err)
	require.Nil(t, looks[0].LookedAt)

	require.NoError(t, s.EndLook(ctx, "tenants", "b", ops.LookResult{Found: true, Pause: 30 * time.Second}, nil))
	looks, err = s.Looks(ctx)
	require.NoError(t, err)
	require.Len(t, looks, 1)
	require.Equal(t, "b", looks[0].Holder)
	require.NotNil(t, looks[0].LookedAt)
	require.NotNil(t, looks[0].FoundAt)
	began, wait = take("a", 0)
	require.False(t, began, "it pauses")
	require.InDelta(t, 30*time.Second, wait, float64(10*time.Second))
	began, wait = take("a", time.Hour)
	require.False(t, began)
	require.Greater(t, wait, 50*time.Minute)

	exec(t, s, `UPDATE looks SET pause_seconds = 0`)
	began, _ = take("a", 0)
	require.True(t, began)
	require.NoError(t, s.EndLook(ctx, "tenants", "a", ops.LookResult{}, errors.New("no")))
	after, err := s.Looks(ctx)
	require.NoError(t, err)
	require.Equal(t, "no", after[0].Error)
	require.Equal(t, looks[0].LookedAt, after[0].LookedAt, "a failed look saw nothing")
}

func TestTenantLookFindsTheSweepsWork(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	pgtest.FillLarge(t, s.pool.Config().ConnString(), 20)
	exec(t, s, `UPDATE tenants SET state = 'active', converged_state = 'active', updated_at = now() - interval '1 hour'`)
	needs := func() bool {
		t.Helper()
		found, err := s.TenantsNeedSweep(ctx, time.Minute)
		require.NoError(t, err)
		return found
	}
	require.False(t, needs())
	for what, sql := range map[string]string{
		"a provisioning without a run":  `UPDATE tenants SET state = 'provisioning' WHERE tenant_id = 't-10'`,
		"a change without a run":        `UPDATE tenants SET state = 'suspended' WHERE tenant_id = 't-10'`,
		"a timer":                       `UPDATE tenants SET deadline_at = now() WHERE tenant_id = 't-10'`,
		"a waiting tenant":              `UPDATE tenants SET waiting_since = now() WHERE tenant_id = 't-10'`,
		"a build that was given up":     `UPDATE site_pool SET state = 'reserved', reserved_until = now() - interval '1 second' WHERE pool_site_id = 'p-2-1'`,
		"a failed tenant with its site": `UPDATE tenants SET state = 'failed', converged_state = 'failed' WHERE tenant_id = 't-10'`,
	} {
		var found bool
		err := s.inTx(ctx, what, func(tx *txn) (err error) {
			if _, err = tx.Exec(ctx, sql); err != nil {
				return err
			}
			if found, err = value[bool](ctx, tx, sqlTenantsNeedSweep, 60); err != nil {
				return err
			}
			return pgx.ErrTxCommitRollback
		})
		require.ErrorIs(t, err, pgx.ErrTxCommitRollback)
		require.True(t, found, what)
	}
	due, err := s.StorageDue(ctx, 2*time.Hour)
	require.NoError(t, err)
	require.False(t, due)
	due, err = s.StorageDue(ctx, time.Minute)
	require.NoError(t, err)
	require.True(t, due)
}
