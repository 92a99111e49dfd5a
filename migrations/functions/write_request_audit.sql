-- Writes an entry for a request: that it accepted an impact, or that it changed no audited row, unless it has an entry.
-- The actor is the setting prego.request.
CREATE OR REPLACE FUNCTION write_request_audit(asked text, kind text, id text, org_id text, accepted jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    request text := COALESCE(NULLIF(convert_from(decode(asked, 'base64'), 'UTF8'), '')::jsonb ->> 'request_id', '');
BEGIN
    IF accepted IS NULL AND request <> '' AND EXISTS (SELECT FROM audit_entries e WHERE e.request_id = request) THEN
        RETURN;
    END IF;
    PERFORM set_config('prego.request', asked, true);
    PERFORM write_audit(kind, id, org_id, 'request', NULL, accepted);
END $$;
