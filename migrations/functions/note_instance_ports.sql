-- Notes that the ports that instances publish on a server have changed.
CREATE OR REPLACE FUNCTION note_instance_ports() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO peers_due (server_id) VALUES (NEW.server_id);
    RETURN NULL;
END $$;
