-- A server's first instance and its last change its suitability for dedicated tenants. Arriving and leaving instances
-- wait for each other, so that the last one notices.
CREATE OR REPLACE FUNCTION note_instances() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM servers WHERE server_id = NEW.server_id FOR NO KEY UPDATE;
    IF NOT EXISTS (SELECT FROM instances i WHERE i.server_id = NEW.server_id AND i.state <> 'stopped' AND i.instance_id <> NEW.instance_id) THEN
        INSERT INTO changes (kind, id) VALUES ('servers', NEW.server_id);
    END IF;
    RETURN NULL;
END $$;
