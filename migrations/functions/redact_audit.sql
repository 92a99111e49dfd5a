-- What of a row's columns the audit shows: not the values of secrets, also not where a document
-- has them, and not the command of a process group's spec, whose arguments may be secrets.
CREATE OR REPLACE FUNCTION redact_audit(columns jsonb, secret text[]) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT regexp_replace(regexp_replace((jsonb_set(columns, '{spec,command}', '"[redacted]"', false) || COALESCE((
            SELECT jsonb_object_agg(c, '[redacted]') FROM unnest(secret) c WHERE columns -> c <> 'null'), '{}'))::text,
        -- "db_password": "…" of any document, and user:password@ of any URL
        '("[^"]*(?:password|passwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)[^"]*": )"(?:[^"\\]|\\.)*"', '\1"[redacted]"', 'gi'),
        '(://[^\s:/@"]*:)[^\s@"]+@', '\1[redacted]@', 'g')::jsonb
$$;
