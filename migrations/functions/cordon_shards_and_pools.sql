-- A server's shard and pool are draining while it is cordoned, and come back with it.
CREATE OR REPLACE FUNCTION cordon_shards_and_pools() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE db_shards SET status = CASE WHEN NEW.cordoned_at IS NULL THEN 'active' ELSE 'draining' END
    WHERE server_id = NEW.server_id AND status IN ('active', 'draining');
    UPDATE redis_pools SET status = CASE WHEN NEW.cordoned_at IS NULL THEN 'active' ELSE 'draining' END
    WHERE server_id = NEW.server_id AND status IN ('active', 'draining');
    RETURN NULL;
END $$;
