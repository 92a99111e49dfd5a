-- Writes an entry for a request that changed no row that is audited. One that has an entry needs
-- no other.
CREATE OR REPLACE FUNCTION write_request_audit(request_id text, kind text, id text, org_id text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF request_id <> '' AND EXISTS (SELECT FROM audit_entries e WHERE e.request_id = write_request_audit.request_id) THEN
        RETURN;
    END IF;
    PERFORM write_audit(kind, id, org_id, 'request', NULL, NULL);
END $$;
