package store

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/tenant"
)

// does runs statements in a transaction, for holding.
func does(t *testing.T, sql ...string) func(tx pgx.Tx) {
	return func(tx pgx.Tx) {
		for _, s := range sql {
			_, err := tx.Exec(context.Background(), s)
			require.NoError(t, err, s)
		}
	}
}

// TestAServerIsNotRemovedUnderAPlacement: a tenant that is just placed on its shard or its pool, and an instance, are
// seen by a transaction that waited for them.
func TestAServerIsNotRemovedUnderAPlacement(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := groupBundle(t)
	group, err := s.testGroup(t, 1, "acme", 1, specOf(16))
	require.NoError(t, err)
	exec(t, s, `INSERT INTO db_shards (shard_id, server_id, region, on_node, tenant_capacity) VALUES ('node-1', 'node-1', 'eu', true, 9) ON CONFLICT DO NOTHING`)
	exec(t, s, `INSERT INTO redis_pools (pool_id, server_id, region, on_node, tenant_capacity) VALUES ('node-1', 'node-1', 'eu', true, 9) ON CONFLICT DO NOTHING`)
	for _, by := range []struct{ holds, places, leaves string }{
		{`SELECT FROM servers WHERE server_id = 'node-1' FOR NO KEY UPDATE`, `INSERT INTO instances (instance_id, org_id, group_id, number, release, spec, server_id, state, memory_limit_bytes, cpu_request) VALUES ('ins-1', 'acme', '` + group + `', 1, 1, '{}', 'node-1', 'booting', 1, 1)`, `DELETE FROM instances`},
		{`SELECT FROM db_shards WHERE shard_id = 'node-1' FOR NO KEY UPDATE`, `UPDATE db_shards SET current_tenant_count = 1 WHERE shard_id = 'node-1'`, `UPDATE db_shards SET current_tenant_count = 0`},
		{`SELECT FROM redis_pools WHERE pool_id = 'node-1' FOR NO KEY UPDATE`, `UPDATE redis_pools SET current_tenants = 1 WHERE pool_id = 'node-1'`, `UPDATE redis_pools SET current_tenants = 0`},
	} {
		for what, removes := range map[string]func() error{
			"decommission": func() error { _, err := s.RequestDecommission(ctx, "node-1", "test"); return err },
			"drain":        func() error { _, err := s.DecommissionMember(ctx, "node-1", "test"); return err },
			"freed":        func() error { _, err := s.RemoveFreed(ctx, "node-1", "test"); return err },
			"retry":        func() error { _, err := s.RequestRetry(ctx, "node-1", "test"); return err },
		} {
			if what == "retry" { // its agent fell silent while the place was taken
				exec(t, s, `UPDATE servers SET status = 'failed', status_reason = 'heartbeat_lost' WHERE server_id = 'node-1'`)
			}
			err := s.holding(t, by.holds, removes, does(t, by.places))
			require.Equal(t, prego.CodeServerHasTenants, prego.CodeOf(err), "%s, %s: %v", what, by.places, err)
			exec(t, s, by.leaves)
			exec(t, s, `UPDATE servers SET status = 'active', status_reason = '' WHERE server_id = 'node-1'`)
		}
	}
}

// TestAMoveLooksAgainAtItsServers: an instance that came to the server, the shard's or the pool's that the tenant is to
// have alone, and a release that began where the tenant is, keep it from its place.
func TestAMoveLooksAgainAtItsServers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := moveSetup(t)
	b.server("db-2", prego.RoleDBShard, "10.64.0.6")
	b.server("redis-2", prego.RoleRedisPool, "10.64.0.7")
	for _, sql := range []string{
		`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app', 'o', 'a', 'test')`,
		`INSERT INTO envs (env_id, org_id, app_id, name, region, created_by) VALUES ('env', 'o', 'app', 'e', 'eu', 'test')`,
		`INSERT INTO process_groups (group_id, org_id, env_id, name, region, replicas, spec, memory_limit_bytes, cpu_request, created_by) VALUES ('grp', 'o', 'env', 'g', 'eu', 1, '{}', 1, 1, 'test')`,
		`INSERT INTO stack_releases (name, image, rings, created_by) VALUES ('r1', 'i:1', '[]', 'test')`,
	} {
		b.exec(sql)
	}
	_, err := b.s.RequestMove(ctx, tenant.MoveAsked{ID: "mov-1", TenantID: "t-1", By: "ann", To: "any", Shard: "any", Pool: "any"})
	require.NoError(t, err)
	p := everywhere()
	p.Dedicates, p.Alone, p.OwnPool = true, true, true
	for at, comes := range map[string]string{
		"app-2": "", "db-2": "", "redis-2": "",
		"app-1": `INSERT INTO stack_release_servers (release, server_id, ring, status, phase) VALUES ('r1', 'app-1', 0, 'updating', 'waiting')`,
	} {
		if comes == "" {
			comes = `INSERT INTO instances (instance_id, org_id, group_id, number, release, spec, server_id, state, memory_limit_bytes, cpu_request) VALUES ('ins-1', 'o', 'grp', 1, 1, '{}', '` + at + `', 'booting', 1, 1)`
		}
		ok := true
		require.NoError(t, b.s.holding(t, `SELECT FROM servers WHERE server_id = '`+at+`' FOR NO KEY UPDATE`, func() (err error) {
			ok, err = b.s.ReserveMove(ctx, "mov-1", p)
			return err
		}, does(t, comes)), at)
		require.False(t, ok, at)
		b.exec(`DELETE FROM instances`)
		b.exec(`DELETE FROM stack_release_servers`)
	}
	ok, err := b.s.ReserveMove(ctx, "mov-1", p)
	require.NoError(t, err)
	require.True(t, ok)
}

// TestAServerIsNotOpenedDuringMaintenance: its instances would come back. Opening waits for the transaction that
// empties it.
func TestAServerIsNotOpenedDuringMaintenance(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := groupBundle(t)
	_, err := s.CordonServer(ctx, "node-1", "ann", "before")
	require.NoError(t, err)
	err = s.holding(t, `SELECT FROM servers WHERE server_id = 'node-1' FOR NO KEY UPDATE`, func() error {
		_, err := s.UncordonServer(ctx, "node-1", "ann")
		return err
	}, does(t, `UPDATE servers SET cordoned_by = 'bob', cordon_reason = 'drain' WHERE server_id = 'node-1'`,
		`INSERT INTO server_maintenances (server_id, number, kind, status, requested_by, was_open, total, left_now) VALUES ('node-1', 1, 'drain', 'waiting', 'bob', false, 0, 0)`))
	require.Equal(t, prego.CodeInvalidTransition, prego.CodeOf(err), "%v", err)
	srv, err := s.GetServer(ctx, "node-1")
	require.NoError(t, err)
	require.NotNil(t, srv.CordonedAt)
}

// TestAMoveThatSwitches while its old or its new server is lost is seen: the tenant lives where it is, or again where
// it was. Work accepted for its site meanwhile names the server that the site is on.
func TestAMoveThatSwitches(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	const holds = `SELECT FROM tenants WHERE tenant_id = 't-1' FOR NO KEY UPDATE`
	moving := func(t *testing.T) *peersBundle {
		b := moveSetup(t)
		b.exec(`UPDATE db_shards SET current_tenant_count = 1`)
		b.exec(`UPDATE redis_pools SET current_tenants = 1`)
		b.freezes("mov-1", tenant.MoveAsked{To: "app-2"}, somewhere)
		return b
	}
	switches := does(t, `UPDATE tenant_moves SET state = 'switched', switched_at = now()`, `UPDATE tenant_allocations SET app_server_id = 'app-2'`)
	for _, lost := range []prego.ServerID{"app-1", "app-2"} {
		t.Run("lost "+string(lost), func(t *testing.T) {
			t.Parallel()
			b := moving(t)
			require.NoError(t, b.s.holding(t, holds, func() error {
				_, err := b.s.LoseServer(impact.By(ctx, "test"), lost, "its disk died", "ann")
				return err
			}, switches))
			run, err := b.s.TenantRecord(ctx, "t-1")
			require.NoError(t, err)
			require.Equal(t, tenant.Active, run.State, run.StatusMessage)
			require.NotNil(t, run.Allocation)
			require.NotEqual(t, lost, run.Allocation.AppServerID)
		})
	}
	t.Run("a snapshot that is accepted after it", func(t *testing.T) {
		t.Parallel()
		b := moving(t)
		require.NoError(t, b.s.holding(t, holds, func() error {
			_, err := b.s.CreateSnapshot(ctx, "t-1", "snp-1", "ann")
			return err
		}, switches))
		require.Equal(t, 1, count(t, b.s, `snapshots WHERE server_id = 'app-2'`))
	})
	t.Run("a snapshot that is accepted before it", func(t *testing.T) {
		t.Parallel()
		b := moving(t)
		require.NoError(t, b.s.holding(t, `SELECT FROM tenants WHERE tenant_id = 't-1' FOR SHARE`, func() error { return b.s.SwitchMove(ctx, "mov-1", 0) },
			does(t, `INSERT INTO snapshots (snapshot_id, org_id, tenant_id, server_id, site, status, created_by) VALUES ('snp-1', 'o', 't-1', 'app-1', 't-1.example.com', 'queued', 'ann')`)))
		require.Equal(t, 1, count(t, b.s, `snapshots WHERE server_id = 'app-2'`))
	})
}

// TestARestoreAndAFreezeExclude each other: the second one sees the first, and waits for it.
func TestARestoreAndAFreezeExclude(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := moveSetup(t)
	_, err := b.s.RequestMove(ctx, tenant.MoveAsked{ID: "mov-1", TenantID: "t-1", By: "ann", To: "app-2"})
	require.NoError(t, err)
	ok, err := b.s.ReserveMove(ctx, "mov-1", somewhere)
	require.NoError(t, err)
	require.True(t, ok)
	b.exec(`INSERT INTO snapshots (snapshot_id, org_id, tenant_id, server_id, site, status, created_by) VALUES ('snp-1', 'o', 't-1', 'app-1', 't-1.example.com', 'queued', 'ann')`)
	b.exec(`INSERT INTO restore_jobs (job_id, org_id, tenant_id, snapshot_id, status, created_by) VALUES ('rst-1', 'o', 't-1', 'snp-1', 'queued', 'ann')`)
	for _, begins := range []string{`UPDATE restore_jobs SET status = 'running'`, `UPDATE snapshots SET status = 'running'`} {
		waits := ""
		require.NoError(t, b.s.holding(t, `SELECT FROM tenants WHERE tenant_id = 't-1' FOR SHARE`, func() (err error) {
			waits, err = b.s.FreezeMove(ctx, "mov-1")
			return err
		}, does(t, begins)))
		require.NotEmpty(t, waits, begins)
		b.exec(`UPDATE restore_jobs SET status = 'queued'`)
		b.exec(`UPDATE snapshots SET status = 'queued'`)
	}
	for what, begins := range map[string]func() error{
		"restore":  func() error { return b.s.RestoreBegun(ctx, "rst-1") },
		"snapshot": func() error { return b.s.SnapshotBegun(ctx, "snp-1") },
	} {
		require.NoError(t, b.s.holding(t, `SELECT FROM tenants WHERE tenant_id = 't-1' FOR NO KEY UPDATE`, begins, does(t)), what)
	}
	require.Equal(t, 1, count(t, b.s, `restore_jobs WHERE status = 'running'`))
	require.Equal(t, 1, count(t, b.s, `snapshots WHERE status = 'running'`))
}

// TestAServerStaysItsTenants: a tenant that is restored to where it moved away from has it for itself again, also
// while the move ends.
func TestAServerStaysItsTenants(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := moveSetup(t)
	b.server("db-2", prego.RoleDBShard, "10.64.0.6")
	b.server("redis-2", prego.RoleRedisPool, "10.64.0.7")
	b.exec(`UPDATE servers SET dedicated_for_tenant_id = 't-1' WHERE server_id = 'app-1'`)
	b.exec(`UPDATE db_shards SET dedicated_for_tenant_id = 't-1', current_tenant_count = 1 WHERE shard_id = 'db'`)
	b.exec(`UPDATE redis_pools SET dedicated_for_tenant_id = 't-1', current_tenants = 1 WHERE pool_id = 'redis'`)
	b.freezes("mov-1", tenant.MoveAsked{To: "any", Shard: "any", Pool: "any"}, everywhere())
	require.NoError(t, b.s.SwitchMove(ctx, "mov-1", 0))
	b.exec(`UPDATE tenant_allocations SET released_at = now()`)
	require.NoError(t, b.s.holding(t, `SELECT FROM servers WHERE server_id = 'app-1' FOR NO KEY UPDATE`, func() error {
		_, err := b.s.FinishMove(ctx, "mov-1", tenant.MoveDone, "", "")
		return err
	}, does(t, `UPDATE servers SET tenant_count = tenant_count + 1 WHERE server_id = 'app-1'`,
		`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm) VALUES ('t-1', 'app-1', 'db', 'redis', 't-1', 't-1', 'hetzner', 'best_fit')`)))
	require.Equal(t, 1, count(t, b.s, `servers WHERE server_id = 'app-1' AND dedicated_for_tenant_id = 't-1'`))
	require.Equal(t, 1, count(t, b.s, `db_shards WHERE shard_id = 'db' AND dedicated_for_tenant_id = 't-1'`))
	require.Equal(t, 1, count(t, b.s, `redis_pools WHERE pool_id = 'redis' AND dedicated_for_tenant_id = 't-1'`))
}
