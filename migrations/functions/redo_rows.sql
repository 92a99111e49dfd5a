-- The rows of a table by their primary keys, which come as an array of objects; val is NULL for one that does not
-- exist.
CREATE OR REPLACE FUNCTION redo_rows(p_tbl text, p_keys jsonb) RETURNS TABLE (tbl text, key jsonb, val jsonb)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE format(
        'SELECT %L, k.key, to_jsonb(r) FROM jsonb_array_elements($1) k (key)'
        ' CROSS JOIN LATERAL jsonb_populate_record(NULL::%I, k.key) q LEFT JOIN %2$I r ON %s ORDER BY k.key::text',
        p_tbl, p_tbl, (SELECT string_agg(format('r.%I = q.%1$I', c), ' AND ') FROM jsonb_object_keys(p_keys -> 0) c))
    USING p_keys;
END $$;
