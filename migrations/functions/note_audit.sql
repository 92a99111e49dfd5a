-- Notes a change of a row in the audit: who, from where, by which request, and the changed columns. Its arguments are
-- the kind of thing, the columns of its id, the column of its org (principal_id: of the principal's), columns with secret
-- values, and omitted columns.
-- The actor is the setting prego.request of the transaction; without it, the database's user.
CREATE OR REPLACE FUNCTION note_audit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    left_out text[] := string_to_array(TG_ARGV[4], ' ');
    was    jsonb;
    became jsonb;
    whole  jsonb;
    what   text := lower(TG_OP);
BEGIN
    CASE TG_OP
    WHEN 'INSERT' THEN
        what := 'create';
        became := jsonb_strip_nulls(to_jsonb(NEW) - left_out);
        whole := became;
    WHEN 'DELETE' THEN
        was := jsonb_strip_nulls(to_jsonb(OLD) - left_out);
        whole := was;
        -- It ended when it expired: to prune it later takes no access away.
        IF TG_ARGV[0] IN ('credential', 'login_link') AND (whole ->> 'expires_at')::timestamptz < now() THEN
            RETURN NULL;
        END IF;
    WHEN 'TRUNCATE' THEN
        what := 'delete';
        whole := '{}';
    ELSE
        whole := to_jsonb(NEW);
        SELECT jsonb_object_agg(o.key, o.value), jsonb_object_agg(o.key, whole -> o.key) INTO was, became
        FROM jsonb_each(to_jsonb(OLD) - left_out) o WHERE o.value IS DISTINCT FROM whole -> o.key;
        IF was IS NULL THEN
            RETURN NULL;
        END IF;
        IF was ? 'deleted_at' AND was ->> 'deleted_at' IS NULL THEN
            what := 'delete';
        END IF;
    END CASE;
    PERFORM write_audit(TG_ARGV[0],
        CASE WHEN TG_OP = 'TRUNCATE' THEN '*' ELSE (SELECT string_agg(whole ->> c, '/' ORDER BY n) FROM unnest(string_to_array(TG_ARGV[1], ' ')) WITH ORDINALITY u (c, n)) END,
        COALESCE(CASE TG_ARGV[2] WHEN 'principal_id' THEN (SELECT p.org_id FROM principals p WHERE p.principal_id = whole ->> 'principal_id')
            ELSE whole ->> TG_ARGV[2] END, ''), what,
        redact_audit(was, string_to_array(TG_ARGV[3], ' ')), redact_audit(became, string_to_array(TG_ARGV[3], ' ')));
    RETURN NULL;
END $$;
