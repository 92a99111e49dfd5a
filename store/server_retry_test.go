package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// silent fails a server as if its agent had been silent for long.
const silent = `UPDATE servers SET status = 'failed', status_reason = 'heartbeat_lost', provider_server_id = 'p-' || server_id, agent_status = 'disconnected', agent_first_heartbeat_at = now() WHERE server_id = $1`

// requireKept requires that a failed server is neither provisioned again nor deleted, and that the refusals name what it has.
func requireKept(t *testing.T, s *Store, id prego.ServerID, has string) {
	t.Helper()
	ctx := context.Background()
	before, err := s.GetServer(ctx, id)
	require.NoError(t, err)
	events := count(t, s, `server_events`)
	_, err = s.RequestRetry(ctx, id, "ann")
	code(t, err, prego.CodeServerHasTenants)
	require.Contains(t, err.Error(), "server "+string(id)+" has "+has+",")
	require.Contains(t, err.Error(), "declare the server lost")
	_, err = s.RequestDecommission(ctx, id, "ann")
	code(t, err, prego.CodeServerHasTenants)
	require.Contains(t, err.Error(), "server "+string(id)+" has "+has+":")
	after, err := s.GetServer(ctx, id)
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.Equal(t, events, count(t, s, `server_events`))
}

// TestRetryKeepsServerContent: while anything is on a failed server that would be lost with its machine, a retry is
// refused. An empty one is provisioned again.
func TestRetryKeepsServerContent(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := groupBundle(t)
	group, err := s.testGroup(t, 1, "acme", 1, specOf(16))
	require.NoError(t, err)
	s.volumeOf(t, "vol-1", "fsn1")
	for i, on := range []struct{ has, comes, goes string }{
		{"2 tenants", `UPDATE servers SET tenant_count = 2`, `UPDATE servers SET tenant_count = 0`},
		{"1 tenant", `INSERT INTO db_shards (shard_id, server_id, region, tenant_capacity, current_tenant_count) VALUES ('s', 'node-1', 'eu', 9, 1)`, `UPDATE db_shards SET current_tenant_count = 0`},
		{"1 tenant", `INSERT INTO redis_pools (pool_id, server_id, region, tenant_capacity, current_tenants) VALUES ('r', 'node-1', 'eu', 9, 1)`, `UPDATE redis_pools SET current_tenants = 0`},
		{
			"3 tenants", `UPDATE servers SET tenant_count = 2; UPDATE db_shards SET current_tenant_count = 3; UPDATE redis_pools SET current_tenants = 3`,
			`UPDATE servers SET tenant_count = 0; UPDATE db_shards SET current_tenant_count = 0; UPDATE redis_pools SET current_tenants = 0`,
		},
		{
			"1 instance", `INSERT INTO instances (instance_id, org_id, group_id, number, release, spec, server_id, state, memory_limit_bytes, cpu_request) VALUES ('ins-1', 'acme', '` + group + `', 1, 1, '{}', 'node-1', 'failed', 1, 1)`,
			`UPDATE instances SET state = 'stopped', stopped_at = now()`,
		},
		{
			"1 volume", `INSERT INTO volume_attachments (attachment_id, org_id, volume_id, group_id, mount_path, server_id, created_by) VALUES ('vat-1', 'acme', 'vol-1', '` + group + `', '/data', 'node-1', 'test')`,
			`UPDATE volume_attachments SET server_id = NULL`,
		},
		{"1 volume", `UPDATE volumes SET lent_to = 'node-1', lent_for = 'bak-1'`, `UPDATE volumes SET lent_to = NULL, lent_for = ''`},
		{"1 tenant and 1 volume", `UPDATE servers SET tenant_count = 1; UPDATE volumes SET lent_to = 'node-1', lent_for = 'bak-1'`, `UPDATE servers SET tenant_count = 0; UPDATE volumes SET lent_to = NULL, lent_for = ''`},
	} {
		exec(t, s, silent, "node-1")
		exec(t, s, on.comes)
		requireKept(t, s, "node-1", on.has)
		exec(t, s, on.goes)
		srv, err := s.RequestRetry(ctx, "node-1", "ann")
		require.NoError(t, err, on.comes)
		require.Equal(t, server.Provisioning, srv.Status)
		require.Equal(t, i+2, srv.Generation)
	}
	_, err = s.RequestRetry(ctx, "node-1", "ann")
	code(t, err, prego.CodeInvalidTransition)
	_, err = s.RequestRetry(ctx, "nope", "ann")
	code(t, err, prego.CodeServerNotFound)
}

// TestARetryKeepsBothEndsOfAMove: a tenant that moves has data where it leaves and where it comes to, until the move is over.
func TestARetryKeepsBothEndsOfAMove(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := moveSetup(t)
	b.server("db-2", prego.RoleDBShard, "10.64.0.6")
	b.server("redis-2", prego.RoleRedisPool, "10.64.0.7")
	b.exec(`UPDATE db_shards SET current_tenant_count = 1 WHERE shard_id = 'db'`)
	b.exec(`UPDATE redis_pools SET current_tenants = 1 WHERE pool_id = 'redis'`)
	kept := func(ids ...prego.ServerID) {
		t.Helper()
		for _, id := range ids {
			b.exec(silent, id)
			requireKept(t, b.s, id, "1 tenant")
		}
		b.exec(`UPDATE servers SET status = 'active', status_reason = '', agent_status = 'connected'`)
		b.exec(`UPDATE db_shards SET status = 'active'`)
		b.exec(`UPDATE redis_pools SET status = 'active'`)
	}
	b.freezes("mov-1", tenant.MoveAsked{To: "any", Shard: "any", Pool: "any"}, everywhere())
	kept("app-1", "app-2", "db", "db-2", "redis", "redis-2")
	require.NoError(t, b.s.SwitchMove(ctx, "mov-1", 0))
	kept("app-1", "app-2", "db", "db-2", "redis", "redis-2")
	_, err := b.s.FinishMove(ctx, "mov-1", tenant.MoveDone, "", "")
	require.NoError(t, err)
	kept("app-2", "db-2", "redis-2")
	for _, id := range []prego.ServerID{"app-1", "db", "redis"} {
		b.exec(silent, id)
		_, err := b.s.RequestRetry(ctx, id, "ann")
		require.NoError(t, err, id)
	}
}

// TestARetryOfAnImportKeepsTheMachine and its content: it is taken over again, so nothing refuses it.
func TestARetryOfAnImportKeepsTheMachine(t *testing.T) {
	t.Parallel()
	b := moveSetup(t)
	b.exec(`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, on_shard) VALUES ('ps-1', 'app-1', 'db', 'ps-1', 'ps_1', 'available', true)`)
	b.exec(`UPDATE servers SET purpose = 'import_existing_server', attempt = 1`)
	b.exec(silent, "app-1")
	srv, err := b.s.RequestRetry(context.Background(), "app-1", "ann")
	require.NoError(t, err)
	require.Equal(t, server.Provisioning, srv.Status)
	require.Equal(t, 2, srv.Attempt, "its agent gets another token")
	require.Equal(t, 1, count(t, b.s, `site_pool WHERE state = 'available'`))
}

// TestNoSiteOfAPoolOutlivesItsMachine: sites on a replaced machine, or with their database there, are given to no tenant.
func TestNoSiteOfAPoolOutlivesItsMachine(t *testing.T) {
	t.Parallel()
	for id, gone := range map[prego.ServerID]map[string]string{
		"app-2": {"a2-db": "failed", "a2-own": "failed, dropped", "a2-built": "failed"},
		"db":    {"a1-db": "failed", "a2-db": "failed", "a2-built": "failed"},
	} {
		b := moveSetup(t)
		b.exec(`UPDATE servers SET tenant_count = 0`)
		b.exec(`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, on_shard, state, reserved_until) VALUES
			('a1-db', 'app-1', 'db', 'a1-db', 'a1-db', true, 'available', NULL), ('a2-db', 'app-2', 'db', 'a2-db', 'a2-db', true, 'available', NULL),
			('a2-own', 'app-2', 'db', 'a2-own', 'a2-own', false, 'available', NULL), ('a2-built', 'app-2', 'db', 'a2-built', 'a2-built', true, 'reserved', now() + interval '1 hour'),
			('a1-own', 'app-1', 'db', 'a1-own', 'a1-own', false, 'available', NULL)`)
		b.exec(`UPDATE site_pool SET on_shard = false WHERE pool_site_id LIKE '%-own'`) // as before servers had a network
		b.exec(silent, id)
		_, err := b.s.RequestRetry(context.Background(), id, "ann")
		require.NoError(t, err)
		type row struct{ ID, State string }
		rows, err := many[row](context.Background(), b.s.pool, `SELECT pool_site_id AS id, state || CASE WHEN dropped_at IS NULL THEN '' ELSE ', dropped' END AS state FROM site_pool WHERE state = 'failed'`)
		require.NoError(t, err)
		got := map[string]string{}
		for _, r := range rows {
			got[r.ID] = r.State
		}
		require.Equal(t, gone, got, id)
	}
}
