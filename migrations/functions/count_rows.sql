-- count_rows records how inserted or deleted rows change the usage of their orgs; count_change does it for an updated
-- row. Each appends to org_usage_changes and locks nothing, so that giving back never waits.
CREATE OR REPLACE FUNCTION count_rows() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    sign integer := CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END;
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'apps', 'envs', 'ipv4_allocations', 'volume_attachments' THEN
        INSERT INTO org_usage_changes (org_id, kind, n)
        SELECT org_id, TG_TABLE_NAME, sign * count(*) FROM changed WHERE deleted_at IS NULL GROUP BY org_id;
    WHEN 'restore_jobs', 'volume_restores' THEN
        INSERT INTO org_usage_changes (org_id, kind, n)
        SELECT org_id, 'restore_jobs', sign * count(*) FROM changed WHERE status IN ('queued', 'running') GROUP BY org_id;
    WHEN 'volumes' THEN
        INSERT INTO org_usage_changes (org_id, kind, n, bytes)
        SELECT org_id, TG_TABLE_NAME, sign * count(*), sign * sum(size_bytes) FROM changed WHERE deleted_at IS NULL GROUP BY org_id;
    WHEN 'routes' THEN
        INSERT INTO org_usage_changes (org_id, kind, key, n)
        SELECT c.org_id, k.kind, k.key, sign * count(*) FROM changed c
        CROSS JOIN LATERAL (VALUES ('routes', ''), ('port', port_binding(c.listener_scope, c.env_id, c.listen_port))) k (kind, key)
        WHERE c.deleted_at IS NULL GROUP BY 1, 2, 3;
    WHEN 'domains' THEN
        INSERT INTO org_usage_changes (org_id, kind, key, n)
        SELECT org_id, 'hostname', name, sign * count(*) FROM changed WHERE deleted_at IS NULL AND status = 'verified' GROUP BY org_id, name;
    WHEN 'instances' THEN
        INSERT INTO org_usage_changes (org_id, kind, key, n, memory, cpu)
        SELECT c.org_id, k.kind, k.key, sign * count(*), sign * sum(c.memory_limit_bytes), sign * sum(c.cpu_request::numeric) FROM changed c
        CROSS JOIN LATERAL (VALUES ('instances', '', c.state <> 'stopped'), ('group', c.group_id, c.state NOT IN ('stopped', 'draining'))) k (kind, key, counts)
        WHERE k.counts GROUP BY 1, 2, 3;
    WHEN 'process_groups' THEN
        INSERT INTO org_usage_changes (org_id, kind, key) SELECT org_id, 'group', group_id FROM changed;
    WHEN 'tenants' THEN
        INSERT INTO org_usage_changes (org_id, kind, n, memory, cpu, bytes)
        SELECT c.org_id, 'tenants', sign * count(*), sign * sum(z.memory_bytes), sign * sum(z.cpu_request::numeric),
            sign * sum(GREATEST(z.storage_bytes, c.storage_quota_gb::bigint * 1000000000))
        FROM changed c JOIN tenant_sizes z ON z.plan = c.plan WHERE tenant_lives(c.state) GROUP BY c.org_id;
        INSERT INTO org_usage_changes (org_id, kind, key)
        SELECT org_id, 'tenant', tenant_id FROM changed WHERE NOT tenant_lives(state);
    END CASE;
    RETURN NULL;
END $$;
