-- hold_for_tenant keeps instances off the server that a shard or pool is on, for the rest
-- of the transaction, and reports whether it runs none; NULL when somebody else holds its
-- row. The app server's is held already.
CREATE OR REPLACE FUNCTION hold_for_tenant(p_server text, p_app text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF p_server <> p_app THEN
        PERFORM FROM servers WHERE server_id = p_server FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN RETURN NULL; END IF;
    END IF;
    RETURN NOT runs_instances(p_server);
END $$;
