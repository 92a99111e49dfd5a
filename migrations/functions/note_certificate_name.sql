-- Notes that a name's certificate may have to be made, lost or retired. An existing note is held until the change is
-- committed: otherwise it could be taken out without seeing the change.
CREATE OR REPLACE FUNCTION note_certificate_name() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'domains' THEN INSERT INTO certificate_names_due VALUES (NEW.name) ON CONFLICT (name) DO UPDATE SET name = EXCLUDED.name;
    WHEN 'routes' THEN INSERT INTO certificate_names_due VALUES (NEW.hostname) ON CONFLICT (name) DO UPDATE SET name = EXCLUDED.name;
    END CASE;
    RETURN NULL;
END $$;
