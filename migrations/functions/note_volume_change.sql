-- Sets the time of the last change on a volume's row, for every writer.
CREATE OR REPLACE FUNCTION note_volume_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.updated_at := now();
    RETURN NEW;
END $$;
