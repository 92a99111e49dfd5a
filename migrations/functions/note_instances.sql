-- A server's first instance and its last change what it is to tenants who must be alone.
-- Whoever comes and whoever goes wait for each other, so that the last one sees that it is.
CREATE OR REPLACE FUNCTION note_instances() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM servers WHERE server_id = NEW.server_id FOR NO KEY UPDATE;
    IF NOT EXISTS (SELECT FROM instances i WHERE i.server_id = NEW.server_id AND i.state <> 'stopped' AND i.instance_id <> NEW.instance_id) THEN
        INSERT INTO changes (kind, id) VALUES ('servers', NEW.server_id);
    END IF;
    RETURN NULL;
END $$;
