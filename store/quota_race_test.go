package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/tenant"
)

// writers is how many concurrently take the quota of one org, each on a connection.
const writers = 64

// crowd is an org whose instances many writers make: tenants through their gate,
// instances as the scheduler does, apps beside them.
type crowd struct {
	t testing.TB
	s *Store
	// check lets a transaction take what it is about to take.
	check func(ctx context.Context, tx *txn, deltas ...quota.Delta) error
	taken atomic.Int64
}

func newCrowd(t testing.TB) *crowd {
	cfg, err := pgxpool.ParseConfig(pgtest.URL(t))
	require.NoError(t, err)
	cfg.MaxConns = writers + 2
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	c := &crowd{t: t, s: New(pool)}
	c.check = func(ctx context.Context, tx *txn, deltas ...quota.Delta) error {
		return c.s.takeQuota(ctx, tx, "acme", deltas...)
	}
	_, err = c.s.PutOrg(context.Background(), "acme", tenant.PutOrgRequest{Tier: prego.TierEnterprise}, "test")
	require.NoError(t, err)
	for _, sql := range append(placedBefore(0)[:3],
		`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-1', 'acme', 'base', 'test')`,
		`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-1', 'app-1', 'acme', 'base', 'eu', 'test')`,
		`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by)
			VALUES ('grp-1', 'env-1', 'acme', 'eu', 'web', '{}', 1, 0, 0, 'test')`) {
		_, err := pool.Exec(context.Background(), sql)
		require.NoError(t, err)
	}
	return c
}

func (c *crowd) limit(d quota.Dimension, n float64) org.Quota {
	q, err := c.s.SetQuota(context.Background(), "acme", d, n, "test", "tight")
	require.NoError(c.t, err)
	return q
}

const instanceMemory = 64 << 20

// instance makes an instance as the scheduler does.
func (c *crowd) instance(id string) error {
	ctx := context.Background()
	return c.s.inTx(ctx, "test", func(tx *txn) error {
		if err := c.check(ctx, tx, quota.Delta{Dimension: quota.MaxInstances, By: 1}, quota.Delta{Dimension: quota.MaxTotalMemoryBytes, By: instanceMemory + instanceOverhead}); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO instances (instance_id, group_id, org_id, server_id, number, spec, release, memory_limit_bytes, cpu_request, state)
			VALUES ($1, 'grp-1', 'acme', 'old', 1, '{}', 1, $2, 0, 'booting')`, id, instanceMemory)
		return err
	})
}

// rush lets all writers try until each was refused, and calls after when so many have
// been accepted.
func (c *crowd) rush(n int64, after func(), take func(id string, w int) error) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	var once sync.Once
	for w := range writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			<-start
			for i := range 200 {
				err := take(fmt.Sprintf("w%d-%d", w, i), w)
				var refused *org.QuotaExceeded
				if errors.As(err, &refused) {
					return
				}
				if err != nil {
					c.t.Errorf("%v", err)
					return
				}
				if c.taken.Add(1) >= n && after != nil {
					once.Do(after)
				}
			}
		}()
	}
	close(start)
	wg.Wait()
}

// recount counts the rows with other statements than the limit uses.
func (c *crowd) recount() (instances int, bytes float64) {
	require.NoError(c.t, c.s.pool.QueryRow(context.Background(), `
SELECT (SELECT count(*) FROM instances WHERE state <> 'stopped') + (SELECT count(*) FROM tenants),
    (SELECT COALESCE(sum(memory_limit_bytes + 33554432), 0) FROM instances WHERE state <> 'stopped')
    + (SELECT COALESCE(sum(536870912 + 33554432), 0) FROM tenants)`).Scan(&instances, &bytes))
	return instances, bytes
}

func (c *crowd) tenantOrInstance(id string, w int) error {
	if w%2 == 0 {
		return c.instance(id)
	}
	r := tenant.CreateRequest{Slug: id, OrgID: "acme", Region: prego.RegionEU, Plan: prego.PlanTrial}
	if err := r.Validate(); err != nil {
		return err
	}
	_, _, err := c.s.CreateTenant(context.Background(), r, prego.TenantID("t-"+id), tenant.ModeShared, "", "test")
	return err
}

// TestNoInterleavingExceedsALimit has 64 writers make tenants and instances of one org
// until none is taken any more, while the limit is lowered underneath.
func TestNoInterleavingExceedsALimit(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		dimension quota.Dimension
		limit     float64
		lowered   float64
	}{
		"a tight limit":       {quota.MaxInstances, 50, 0},
		"lowered underneath":  {quota.MaxInstances, 200, 60},
		"bytes, not a count":  {quota.MaxTotalMemoryBytes, 10e9, 0},
		"lowered below usage": {quota.MaxInstances, 300, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t)
			c.limit(tc.dimension, tc.limit)
			most := tc.limit
			var after func()
			if tc.lowered > 0 {
				after = func() { most = max(tc.lowered, c.limit(tc.dimension, tc.lowered).Usage) }
			}
			c.rush(30, after, c.tenantOrInstance)
			instances, bytes := c.recount()
			shown, err := c.s.OrgQuotas(context.Background(), "acme")
			require.NoError(t, err)
			require.Equal(t, []float64{float64(instances), bytes}, []float64{shown[0].Usage, shown[1].Usage}, "the view counts the same")
			if tc.dimension == quota.MaxInstances {
				require.InDelta(t, most, instances, 0, "all that was allowed, and not one more")
				return
			}
			require.LessOrEqual(t, bytes, most)
			require.Greater(t, bytes+instanceMemory+instanceOverhead, most, "there is no room for another instance")
		})
	}
}

// TestTakingHoldsOneOrg: others take meanwhile.
func TestTakingHoldsOneOrg(t *testing.T) {
	t.Parallel()
	c, ctx := newCrowd(t), context.Background()
	_, err := c.s.PutOrg(ctx, "beta", tenant.PutOrgRequest{Tier: prego.TierEnterprise}, "test")
	require.NoError(t, err)
	take := func(tx *txn, of prego.OrgID) error {
		return c.s.takeQuota(ctx, tx, of, quota.Delta{Dimension: quota.MaxApps, By: 1})
	}
	require.NoError(t, c.s.inTx(ctx, "one", func(tx *txn) error {
		require.NoError(t, take(tx, "acme"))
		err := c.s.inTx(ctx, "another", func(other *txn) error {
			other.run(ctx, "SET LOCAL lock_timeout = '100ms'")
			require.NoError(t, take(other, "beta"))
			return take(other, "acme")
		})
		require.ErrorContains(t, err, "lock timeout")
		return nil
	}))
}

// TestOpenWorkOfAQuietOrgIsLimited: it is counted from its rows, though no other usage of the org has changed.
func TestOpenWorkOfAQuietOrgIsLimited(t *testing.T) {
	t.Parallel()
	c, ctx := newCrowd(t), context.Background()
	_, err := value[bool](ctx, c.s.pool, sqlFoldUsage, "acme")
	require.NoError(t, err)
	require.Zero(t, count(t, c.s, "org_usage_changes WHERE org_id = 'acme'"))
	c.limit(quota.MaxLogStreams, 1)
	open := func(id string) error {
		return c.s.inTx(ctx, "open", func(tx *txn) error {
			if err := c.s.takeQuota(ctx, tx, "acme", quota.Delta{Dimension: quota.MaxLogStreams, By: 1}); err != nil {
				return err
			}
			tx.run(ctx, `INSERT INTO org_sessions (session_id, org_id, kind, subject, actor, lease_until) VALUES ($1, 'acme', 'logs', 's', 'test', now() + interval '1 hour')`, id)
			return nil
		})
	}
	require.NoError(t, open("one"))
	var refused *org.QuotaExceeded
	require.ErrorAs(t, open("two"), &refused)
}

// TestTheRecountCatchesANaiveCheck shows that the test above can fail: who counts without
// holding the org takes too much.
func TestTheRecountCatchesANaiveCheck(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	c.limit(quota.MaxInstances, 50)
	c.check = func(ctx context.Context, tx *txn, deltas ...quota.Delta) error {
		q, err := c.s.quotasOf(ctx, tx, "acme", []quota.Dimension{quota.MaxInstances})
		if err != nil {
			return err
		}
		if q[0].Usage+1 <= q[0].Limit {
			time.Sleep(2 * time.Millisecond) // as long as a commit takes: others count meanwhile
			return nil
		}
		return &org.QuotaExceeded{Dimension: q[0].Dimension, Limit: q[0].Limit, CurrentUsage: q[0].Usage, RequestedDelta: 1}
	}
	c.rush(0, nil, func(id string, _ int) error { return c.instance(id) })
	instances, _ := c.recount()
	require.Greater(t, instances, 50)
}

// TestFreedQuotaIsTakenOnce frees a place while writers wait for one: it is given to one
// of them.
func TestFreedQuotaIsTakenOnce(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	c.limit(quota.MaxInstances, 10)
	c.rush(0, nil, func(id string, _ int) error { return c.instance("a" + id) })
	for round := range 5 {
		_, err := c.s.pool.Exec(context.Background(), `UPDATE instances SET state = 'stopped' WHERE instance_id = (SELECT min(instance_id) FROM instances WHERE state <> 'stopped')`)
		require.NoError(t, err)
		before := c.taken.Load()
		c.rush(0, nil, func(id string, _ int) error { return c.instance(fmt.Sprintf("b%d%s", round, id)) })
		require.Equal(t, before+1, c.taken.Load())
	}
	instances, _ := c.recount()
	require.Equal(t, 10, instances)
}
