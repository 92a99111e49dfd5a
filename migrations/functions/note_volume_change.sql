-- A volume's row says when it was changed last, whoever changes it.
CREATE OR REPLACE FUNCTION note_volume_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.updated_at := now();
    RETURN NEW;
END $$;
