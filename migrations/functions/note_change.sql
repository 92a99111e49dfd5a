-- Notes a changed row for the followers of changes: in the feed, and on the row the transaction. A statement that
-- sets changed_xid itself also appends to the feed itself.
CREATE OR REPLACE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_xid := pg_current_xact_id();
    CASE TG_TABLE_NAME
    WHEN 'servers' THEN INSERT INTO changes (kind, id) VALUES (TG_TABLE_NAME, NEW.server_id);
    WHEN 'db_shards' THEN INSERT INTO changes (kind, id) VALUES (TG_TABLE_NAME, NEW.shard_id);
    WHEN 'redis_pools' THEN INSERT INTO changes (kind, id) VALUES (TG_TABLE_NAME, NEW.pool_id);
    WHEN 'site_pool' THEN INSERT INTO changes (kind, id) VALUES (TG_TABLE_NAME, NEW.pool_site_id);
    END CASE;
    RETURN NEW;
END $$;
