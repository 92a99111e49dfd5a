-- Notes that the rules of a new, deleted or moved server and of the servers that it may reach may have changed: for
-- an edge, all with a bench in its network; for an app server, its tenants' shards and pools.
CREATE OR REPLACE FUNCTION note_server_peers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO peers_due (server_id) VALUES (NEW.server_id);
    IF TG_OP = 'INSERT' THEN
        RETURN NULL;
    END IF;
    IF NEW.role = 'edge' THEN
        INSERT INTO peers_due (server_id)
        SELECT server_id FROM servers WHERE network_id IN (OLD.network_id, NEW.network_id) AND role IN ('app', 'node') AND status <> 'terminated';
    ELSIF NEW.role = 'app' THEN
        INSERT INTO peers_due (server_id)
        SELECT d.server_id FROM tenant_allocations a JOIN db_shards d ON d.shard_id = a.db_shard_id WHERE a.app_server_id = NEW.server_id AND a.released_at IS NULL
        UNION SELECT r.server_id FROM tenant_allocations a JOIN redis_pools r ON r.pool_id = a.redis_pool_id WHERE a.app_server_id = NEW.server_id AND a.released_at IS NULL
        UNION SELECT d.server_id FROM site_pool p JOIN db_shards d ON d.shard_id = p.db_shard_id WHERE p.app_server_id = NEW.server_id AND p.dropped_at IS NULL;
    END IF;
    RETURN NULL;
END $$;
