package store

import (
	"context"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

const sqlShardHost = `
SELECT h.server_id, h.host, COALESCE(host(h.private_address), '') AS address, h.status
FROM db_shards d JOIN servers h ON h.server_id = d.server_id WHERE d.shard_id = $1`

// ShardHost is the server of a shard.
func (s *Store) ShardHost(ctx context.Context, id prego.ShardID) (tenant.DataHost, error) {
	h, err := one[tenant.DataHost](ctx, s.pool, sqlShardHost, id)
	return h, failed(fmt.Sprintf("server of shard %s", id), err)
}

// A site of a pool leaves its database on the shard when its server is destroyed. The shard's own end takes all with
// it. The order is another one each time, so that shards that do not answer keep no other waiting.
const sqlLeftDatabases = `
SELECT p.pool_site_id, p.app_server_id, p.db_shard_id, p.site_name, p.database_name, p.on_shard
FROM site_pool p JOIN servers s ON s.server_id = p.app_server_id AND s.status = 'terminated'
JOIN db_shards d ON d.shard_id = p.db_shard_id JOIN servers h ON h.server_id = d.server_id AND h.status = 'active'
WHERE p.on_shard AND p.dropped_at IS NULL AND p.state IN ('draining', 'failed') ORDER BY md5(p.pool_site_id || now()) LIMIT 50`

// LeftDatabases lists sites of pools whose server is gone and whose database is not.
func (s *Store) LeftDatabases(ctx context.Context) ([]tenant.PoolSite, error) {
	return collect[tenant.PoolSite](ctx, s, "databases that are left", sqlLeftDatabases)
}

const sqlDatabaseErased = `UPDATE site_pool SET dropped_at = now() WHERE pool_site_id = $1 AND dropped_at IS NULL RETURNING 1::float8`

// DatabaseErased records that a site's database is gone from its shard.
func (s *Store) DatabaseErased(ctx context.Context, poolSiteID string) error {
	_, err := s.oneNumber(ctx, sqlDatabaseErased, poolSiteID)
	return err
}
