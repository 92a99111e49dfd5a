-- Makes rows of a table what an entry of the redo log says: rows replace those of the same key, and gone are the keys
-- of deleted ones. Columns that the entry does not know keep their values, or get their defaults. So do those about
-- transactions, which were another database's. redo_mode comes before and after.
CREATE OR REPLACE FUNCTION apply_redo(p_tbl text, p_rows jsonb, p_gone jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    same text;
    pk   text;
    sets text;
    cols text;
BEGIN
    SELECT string_agg(format('t.%I = q.%1$I', a.attname), ' AND '), string_agg(quote_ident(a.attname), ', ')
    INTO STRICT same, pk
    FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
    WHERE i.indrelid = p_tbl::regclass AND i.indisprimary;
    SELECT string_agg(format('%I', a.attname), ', '),
        COALESCE(string_agg(format('%I = q.%1$I', a.attname), ', ') FILTER (WHERE a.attidentity = ''), '')
    INTO cols, sets
    FROM pg_attribute a
    WHERE a.attrelid = p_tbl::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
      AND a.atttypid <> ALL ('{xid8,pg_snapshot}'::regtype[]) AND p_rows -> 0 ? a.attname;
    EXECUTE format('DELETE FROM %I t USING jsonb_populate_recordset(NULL::%1$I, $1) q WHERE %s', p_tbl, same)
    USING p_gone;
    -- Unique values that rows exchange are in the way of one another while they are updated: then the rows are made
    -- again.
    BEGIN
        IF sets <> '' THEN
            EXECUTE format('UPDATE %I t SET %s FROM jsonb_populate_recordset(NULL::%1$I, $1) q WHERE %3$s',
                p_tbl, sets, same)
            USING p_rows;
        END IF;
    EXCEPTION WHEN unique_violation THEN
        EXECUTE format('DELETE FROM %I t USING jsonb_populate_recordset(NULL::%1$I, $1) q WHERE %s', p_tbl, same)
        USING p_rows;
    END;
    IF cols <> '' THEN
        EXECUTE format('INSERT INTO %I (%s) OVERRIDING SYSTEM VALUE SELECT %2$s'
            ' FROM jsonb_populate_recordset(NULL::%1$I, $1) ON CONFLICT (%3$s) DO NOTHING', p_tbl, cols, pk)
        USING p_rows;
    END IF;
END $$;
