-- The rows that changed since the newest entry of the redo log, at most so many changes, as they are now; val is NULL
-- for one that is gone. It is called in a transaction that sees one moment.
CREATE OR REPLACE FUNCTION take_redo(p_most integer) RETURNS TABLE (tbl text, key jsonb, val jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    t    text;
    keys jsonb;
BEGIN
    FOR t, keys IN
        WITH gone AS (
            DELETE FROM redo_due d WHERE d.ctid IN (SELECT o.ctid FROM redo_due o LIMIT p_most) RETURNING d.tbl, d.key)
        SELECT g.tbl, jsonb_agg(DISTINCT g.key) FROM gone g GROUP BY g.tbl ORDER BY g.tbl
    LOOP
        RETURN QUERY SELECT * FROM redo_rows(t, keys);
    END LOOP;
END $$;
