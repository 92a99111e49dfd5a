package store

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
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
// seen by whoever waited for them.
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
			"decommission": func() error { _, err := s.RequestDecommission(ctx, "node-1", "test", false); return err },
			"drain":        func() error { _, err := s.DrainMember(ctx, "node-1", "test"); return err },
			"freed":        func() error { _, err := s.RemoveFreed(ctx, "node-1", "test"); return err },
		} {
			err := s.holding(t, by.holds, removes, does(t, by.places))
			require.Equal(t, prego.CodeServerHasTenants, prego.CodeOf(err), "%s, %s: %v", what, by.places, err)
			exec(t, s, by.leaves)
			exec(t, s, `UPDATE servers SET status = 'active' WHERE server_id = 'node-1'`)
		}
	}
}
