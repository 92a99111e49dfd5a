-- Notes that a name's certificate may have to be made, lost or retired.
CREATE OR REPLACE FUNCTION note_certificate_name() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'domains' THEN INSERT INTO certificate_names_due VALUES (NEW.name) ON CONFLICT DO NOTHING;
    WHEN 'routes' THEN INSERT INTO certificate_names_due VALUES (NEW.hostname) ON CONFLICT DO NOTHING;
    END CASE;
    RETURN NULL;
END $$;
