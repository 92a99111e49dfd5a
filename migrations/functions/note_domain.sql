-- note_domain notifies the edges, by the feed of changes, of a name that is served from now on, or no longer.
CREATE OR REPLACE FUNCTION note_domain() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO changes (kind, id) VALUES ('domains', NEW.domain_id);
    RETURN NULL;
END $$;
