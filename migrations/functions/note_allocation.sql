-- The same for an allocation that was moved or released.
CREATE OR REPLACE FUNCTION note_allocation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO peers_due (server_id)
    SELECT d.server_id FROM db_shards d WHERE d.shard_id IN (OLD.db_shard_id, NEW.db_shard_id) AND NOT d.on_node
    UNION SELECT r.server_id FROM redis_pools r WHERE r.pool_id IN (OLD.redis_pool_id, NEW.redis_pool_id) AND NOT r.on_node;
    RETURN NULL;
END $$;
