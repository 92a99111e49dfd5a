-- Notes that who may reach the shard of a pool site may have changed: the server that it is
-- made on needs its database before a tenant has it.
CREATE OR REPLACE FUNCTION note_pool_site() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO peers_due (server_id)
    SELECT d.server_id FROM db_shards d WHERE d.shard_id = COALESCE(NEW.db_shard_id, OLD.db_shard_id) AND NOT d.on_node;
    RETURN NULL;
END $$;
