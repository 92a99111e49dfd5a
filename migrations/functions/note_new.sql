-- Notes new rows, as note_change does changed ones.
CREATE OR REPLACE FUNCTION note_new() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'servers' THEN INSERT INTO changes (kind, id) SELECT TG_TABLE_NAME, server_id FROM made;
    WHEN 'db_shards' THEN INSERT INTO changes (kind, id) SELECT TG_TABLE_NAME, shard_id FROM made;
    WHEN 'redis_pools' THEN INSERT INTO changes (kind, id) SELECT TG_TABLE_NAME, pool_id FROM made;
    WHEN 'site_pool' THEN INSERT INTO changes (kind, id) SELECT TG_TABLE_NAME, pool_site_id FROM made;
    END CASE;
    RETURN NULL;
END $$;
