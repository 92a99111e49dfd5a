-- The text of an entry that is hashed; AuditEntry.Encoding is the same in Go.
CREATE OR REPLACE FUNCTION audit_encoding(e audit_entries) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT audit_field(e.entry_id::text) || audit_field(to_char(e.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
        || audit_field(e.actor) || audit_field(e.actor_name) || audit_field(e.role) || audit_field(e.address) || audit_field(e.request_id) || audit_field(e.operation)
        || audit_field(e.kind) || audit_field(e.id) || audit_field(e.org_id) || audit_field(e.verb) || audit_field(e.old::text) || audit_field(e.new::text)
$$;
