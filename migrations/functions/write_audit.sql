-- Writes an entry of the audit.
CREATE OR REPLACE FUNCTION write_audit(kind text, id text, org_id text, verb text, was jsonb, became jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    asked text := current_setting('prego.request', true);
    who   jsonb;
BEGIN
    IF asked <> '' THEN
        who := convert_from(decode(asked, 'base64'), 'UTF8')::jsonb;
    ELSE
        who := jsonb_build_object('actor', session_user, 'actor_name', session_user, 'role', 'database', 'from', COALESCE(host(inet_client_addr()), ''), 'operation', current_setting('application_name'));
    END IF;
    INSERT INTO audit_entries (actor, actor_name, role, address, request_id, operation, kind, id, org_id, verb, old, new)
    VALUES (COALESCE(who ->> 'actor', ''), COALESCE(who ->> 'actor_name', ''), COALESCE(who ->> 'role', ''), COALESCE(who ->> 'from', ''), COALESCE(who ->> 'request_id', ''), COALESCE(who ->> 'operation', ''),
        kind, COALESCE(id, ''), org_id, verb, was, became);
END $$;
REVOKE EXECUTE ON FUNCTION write_audit FROM PUBLIC;
