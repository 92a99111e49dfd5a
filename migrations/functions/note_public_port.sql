-- Notes that the public ports of a region's edges may have changed.
CREATE OR REPLACE FUNCTION note_public_port() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO peers_due (server_id)
    SELECT s.server_id FROM servers s WHERE s.role = 'edge' AND s.status <> 'terminated' AND s.region = (SELECT e.region FROM envs e WHERE e.env_id = NEW.env_id);
    RETURN NULL;
END $$;
