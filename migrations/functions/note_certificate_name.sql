-- Notes that a name's certificate may have to be made, lost or retired. One that is noted already is held until the
-- change is committed: whoever takes it out passes it over, and would not see the change yet.
CREATE OR REPLACE FUNCTION note_certificate_name() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'domains' THEN INSERT INTO certificate_names_due VALUES (NEW.name) ON CONFLICT (name) DO UPDATE SET name = EXCLUDED.name;
    WHEN 'routes' THEN INSERT INTO certificate_names_due VALUES (NEW.hostname) ON CONFLICT (name) DO UPDATE SET name = EXCLUDED.name;
    END CASE;
    RETURN NULL;
END $$;
