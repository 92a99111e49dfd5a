-- Notes an entry that must be sealed.
CREATE OR REPLACE FUNCTION queue_audit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO audit_unsealed (entry_id) VALUES (NEW.entry_id);
    RETURN NULL;
END $$;
