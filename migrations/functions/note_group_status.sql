-- Notes since when a process group has its status.
CREATE OR REPLACE FUNCTION note_group_status() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.status_since := now();
    RETURN NEW;
END $$;
