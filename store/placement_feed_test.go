package store

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// follower looks at what changed, again and again.
type follower struct {
	t     *testing.T
	s     *Store
	since string
}

func (f *follower) look() placement.Change {
	f.t.Helper()
	c, err := f.s.PlacementChanges(context.Background(), f.since, nil)
	require.NoError(f.t, err)
	f.since = c.Since
	return c
}

// TestTheFeedMissesNoCommit: transactions that began early and commit late are read, whatever
// committed in between. While an older one runs, later changes are read again each time.
func TestTheFeedMissesNoCommit(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := sharingBundle(t)
	f := &follower{t: t, s: s}
	require.True(t, f.look().Full)
	// Each is begun before the ones after it, and they end in another order.
	var running []pgx.Tx
	servers := []string{"app-0", "node-0", "node-1"}
	for i, id := range servers {
		tx, err := s.pool.Begin(ctx)
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback(ctx) })
		_, err = tx.Exec(ctx, `UPDATE servers SET memory_pct = $2 WHERE server_id = $1`, id, 50+10*i)
		require.NoError(t, err)
		running = append(running, tx)
		f.look()
	}
	// Changes with an older transaction of another test are read again, as they were.
	seen := func(i int) bool {
		return slices.ContainsFunc(f.look().Servers, func(v placement.Server) bool {
			return string(v.ServerID) == servers[i] && v.MemoryPct == float64(50+10*i)
		})
	}
	for _, i := range []int{2, 0, 1} {
		require.False(t, seen(i), "%s is not committed", servers[i])
		require.NoError(t, running[i].Commit(ctx))
		require.True(t, seen(i), servers[i])
	}
}

// TestTheFeedHasNewRows: servers, shards, pools and sites that were not there, and a
// reservation's four rows, which it notes itself.
func TestTheFeedHasNewRows(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	f := &follower{t: t, s: s}
	full := f.look()
	require.True(t, full.Full)
	for _, sql := range slices.Concat(fleetOf(2, 2, 2), tenantsOf(4, 2, 2)) {
		exec(t, s, sql)
	}
	c := f.look()
	require.False(t, c.Full)
	require.Equal(t, []int{2, 2, 2, 4}, []int{len(c.Servers), len(c.Shards), len(c.Pools), len(c.Sites)})
	out, err := s.Reserve(ctx, benchReservation(1, 1))
	require.NoError(t, err)
	require.Equal(t, tenant.ReservePlaced, out.Outcome, "%+v", out)
	c = f.look() // and earlier changes, if another test's transaction is older
	fleet := placement.SnapshotOf(placement.DefaultPolicy(), full)
	fleet.Update(c)
	app, _ := fleet.Server("app-1")
	shard, _ := fleet.Shard("db-1")
	pool, _ := fleet.Pool("redis-1")
	require.Equal(t, []int{1, 1, 1}, []int{app.TenantCount, shard.Tenants, pool.Tenants})
	require.True(t, slices.ContainsFunc(c.Sites, func(v placement.SiteChange) bool { return v.PoolSiteID == "p-1" && !v.Available }))
	require.Equal(t, 4, count(t, s, `changes WHERE xid = (SELECT max(xid) FROM changes)`), "each once")
}

// TestPrunedFeedIsReadAgain: a reader with a cursor before the pruned changes gets everything, a reader
// after them only the changes.
func TestPrunedFeedIsReadAgain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := sharingBundle(t)
	old, recent := &follower{t: t, s: s}, &follower{t: t, s: s}
	old.look()
	exec(t, s, `UPDATE servers SET memory_pct = 50 WHERE server_id = 'app-0'`)
	require.NoError(t, s.PruneChanges(ctx, time.Hour))
	require.Positive(t, count(t, s, `changes`), "not yet")
	// Once to mark and once to prune; more often while an older transaction runs elsewhere.
	require.Eventually(t, func() bool {
		require.NoError(t, s.PruneChanges(ctx, 0))
		return count(t, s, `changes`) == 0
	}, 20*time.Second, 50*time.Millisecond)
	require.True(t, recent.look().Full)
	exec(t, s, `UPDATE servers SET memory_pct = 70 WHERE server_id = 'node-0'`)
	require.True(t, old.look().Full)
	c := recent.look()
	require.False(t, c.Full)
	require.Len(t, c.Servers, 1)
	require.NoError(t, s.PruneChanges(ctx, 0))
	require.Equal(t, 1, count(t, s, `changes`), "changes after the mark are kept")
	// Of a cluster that the database was copied from: the number means nothing here.
	exec(t, s, `INSERT INTO changes (xid, kind, id) VALUES ('18446744073709551000', 'servers', 'app-0')`)
	require.NoError(t, s.PruneChanges(ctx, 0))
	require.Zero(t, count(t, s, `changes WHERE xid = '18446744073709551000'`))
}

// TestUpdatesStayInTheirPages: heartbeats and reservations change no indexed column of a
// server, a shard or a pool, so that Postgres need not touch any of their indexes.
func TestUpdatesStayInTheirPages(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	cfg, err := pgxpool.ParseConfig(pgtest.URL(t))
	require.NoError(t, err)
	cfg.MaxConns = 1 // that its statistics are all there
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := New(pool)
	const n = 40
	for _, sql := range slices.Concat(fleetOf(4, 4, 4), tenantsOf(n, 4, 4), []string{`UPDATE servers SET agent_key_sha256 = sha256(convert_to('key-' || server_id, 'UTF8'))`, `VACUUM ANALYZE`}) {
		exec(t, s, sql)
	}
	type updates struct{ All, Hot int }
	counted := func(table string) updates {
		exec(t, s, `SELECT pg_stat_force_next_flush()`)
		u, err := one[updates](ctx, pool, `SELECT n_tup_upd AS all, n_tup_hot_upd AS hot FROM pg_stat_user_tables WHERE relname = $1`, table)
		require.NoError(t, err)
		return u
	}
	tables := []string{"servers", "db_shards", "redis_pools"}
	before := map[string]updates{}
	for _, table := range tables {
		before[table] = counted(table)
	}
	beats := 0
	for i := range n {
		out, err := s.Reserve(ctx, benchReservation(i, i%4))
		require.NoError(t, err)
		require.Equal(t, tenant.ReservePlaced, out.Outcome, "%+v", out)
		var batch []server.Heartbeat
		for j := range 4 {
			h := heartbeatOf(prego.ServerID(fmt.Sprintf("app-%d", j)))
			h.MemoryPct = float64(7 * i % 65) // a step of five points, that placement reads, each time
			batch = append(batch, h)
		}
		heard, err := s.FlushHeartbeats(ctx, batch)
		require.NoError(t, err)
		beats += len(heard)
	}
	require.Equal(t, 4*n, beats)
	for _, table := range tables {
		now := counted(table)
		all, hot := now.All-before[table].All, now.Hot-before[table].Hot
		require.GreaterOrEqual(t, all, n, table)
		// Not all: while another test's transaction is older, dead rows fill the pages. With
		// the column in an index there would be none.
		require.Greater(t, hot, all/2, "%s: %d of %d", table, hot, all)
	}
	require.Positive(t, count(t, s, `changes WHERE kind = 'servers' AND id = 'app-1'`))
}

// TestRowsOfAPlacementStay: reservations refer to rows without a foreign key, and
// those are not deleted all the same; a site is, and its allocation forgets it.
func TestRowsOfAPlacementStay(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	for _, sql := range slices.Concat(fleetOf(2, 2, 2), tenantsOf(2, 2, 2)) {
		exec(t, s, sql)
	}
	_, err := s.Reserve(ctx, benchReservation(1, 1))
	require.NoError(t, err)
	exec(t, s, `UPDATE site_pool SET state = 'available', tenant_id = NULL, reserved_until = NULL`)
	for _, sql := range []string{
		`DELETE FROM tenants WHERE tenant_id = 't-1'`, `DELETE FROM servers WHERE server_id = 'app-1'`, `DELETE FROM db_shards WHERE shard_id = 'db-1'`,
		`DELETE FROM redis_pools WHERE pool_id = 'redis-1'`, `DELETE FROM tenant_allocations`, `DELETE FROM infra_providers WHERE id = 'hetzner'`,
	} {
		_, err := s.pool.Exec(ctx, sql)
		require.ErrorContains(t, err, "SQLSTATE 23503", sql)
	}
	exec(t, s, `DELETE FROM site_pool WHERE pool_site_id = 'p-1'`)
	require.Equal(t, 1, count(t, s, `tenant_allocations WHERE pool_site_id IS NULL`))
	exec(t, s, `DELETE FROM site_pool`)
	exec(t, s, `DELETE FROM tenants WHERE tenant_id = 't-0'`)
	exec(t, s, `DELETE FROM redis_pools WHERE pool_id = 'redis-0'`)
}
