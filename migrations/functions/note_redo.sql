-- Notes that a row changed, for the next entry of the redo log. The arguments are the columns of its primary key.
CREATE OR REPLACE FUNCTION note_redo() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    r jsonb := CASE WHEN TG_OP = 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;
BEGIN
    INSERT INTO redo_due (tbl, key)
    SELECT TG_TABLE_NAME, jsonb_object_agg(c, r -> c) FROM unnest(TG_ARGV) c;
    RETURN NULL;
END $$;
