-- +goose Up
-- A move is from a place (app server, DB shard, Redis pool) to another; what is to change is said when
-- it is asked for, and what stays is the same on both sides. Rows of versions before have no shard and
-- no pool: theirs stay.
ALTER TABLE tenant_moves
    ADD COLUMN moves_server  boolean NOT NULL DEFAULT true,
    ADD COLUMN moves_shard   boolean NOT NULL DEFAULT false,
    ADD COLUMN moves_pool    boolean NOT NULL DEFAULT false,
    ADD COLUMN wanted_shard  text    NOT NULL DEFAULT '',
    ADD COLUMN wanted_pool   text    NOT NULL DEFAULT '',
    ADD COLUMN from_region   text    NOT NULL DEFAULT '',
    ADD COLUMN to_region     text    NOT NULL DEFAULT '',
    ADD COLUMN data_archives integer NOT NULL DEFAULT 0, -- of the database, that have arrived while the site served
    ADD COLUMN from_shard_id text    REFERENCES db_shards (shard_id),
    ADD COLUMN from_pool_id  text    REFERENCES redis_pools (pool_id),
    ADD COLUMN to_shard_id   text    REFERENCES db_shards (shard_id),
    ADD COLUMN to_pool_id    text    REFERENCES redis_pools (pool_id),
    DROP CONSTRAINT tenant_moves_check2,
    ADD CONSTRAINT tenant_moves_elsewhere CHECK (to_server_id <> from_server_id OR to_shard_id IS DISTINCT FROM from_shard_id OR to_pool_id IS DISTINCT FROM from_pool_id);
CREATE INDEX tenant_moves_shards ON tenant_moves (to_shard_id) WHERE finished_at IS NULL;
CREATE INDEX tenant_moves_from_shards ON tenant_moves (from_shard_id) WHERE finished_at IS NULL;
CREATE INDEX tenant_moves_pools ON tenant_moves (to_pool_id) WHERE finished_at IS NULL;
CREATE INDEX tenant_moves_from_pools ON tenant_moves (from_pool_id) WHERE finished_at IS NULL;
UPDATE tenant_moves m SET from_shard_id = a.db_shard_id, from_pool_id = a.redis_pool_id, from_region = t.region,
    to_shard_id = CASE WHEN m.to_server_id IS NOT NULL THEN a.db_shard_id END, to_pool_id = CASE WHEN m.to_server_id IS NOT NULL THEN a.redis_pool_id END
FROM tenant_allocations a, tenants t WHERE a.allocation_id = m.allocation_id AND t.tenant_id = m.tenant_id;
