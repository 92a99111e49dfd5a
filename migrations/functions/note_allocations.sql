-- Notes that the permitted peers of new allocations' shards and pools may have changed. A node's shard and pool serve
-- only the node.
CREATE OR REPLACE FUNCTION note_allocations() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO peers_due (server_id)
    SELECT d.server_id FROM made m JOIN db_shards d ON d.shard_id = m.db_shard_id WHERE NOT d.on_node
    UNION SELECT r.server_id FROM made m JOIN redis_pools r ON r.pool_id = m.redis_pool_id WHERE NOT r.on_node;
    RETURN NULL;
END $$;
