-- Notes that the server of a move may reach shards and pools from now on, or no longer.
CREATE OR REPLACE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO peers_due (server_id)
    SELECT d.server_id FROM tenant_allocations a JOIN db_shards d ON d.shard_id IN (a.db_shard_id, NEW.from_shard_id, NEW.to_shard_id) WHERE a.allocation_id = NEW.allocation_id AND NOT d.on_node
    UNION SELECT r.server_id FROM tenant_allocations a JOIN redis_pools r ON r.pool_id IN (a.redis_pool_id, NEW.from_pool_id, NEW.to_pool_id) WHERE a.allocation_id = NEW.allocation_id AND NOT r.on_node;
    RETURN NULL;
END $$;
