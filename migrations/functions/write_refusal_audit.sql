-- Writes an entry for requests that were refused. The actor is the setting prego.request.
CREATE OR REPLACE FUNCTION write_refusal_audit(asked text, kind text, id text, refused jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM set_config('prego.request', asked, true);
    PERFORM write_audit(kind, id, '', 'refuse', NULL, refused);
END $$;
