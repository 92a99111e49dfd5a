-- count_change records how an updated row changes its org's usage, as count_rows does for new and deleted rows. Its
-- triggers' conditions let pass only relevant changes. A tenant that does not live counts as long as a part of it
-- exists: that is looked up when the change is counted (lingering_tenants), because the state, the place and the
-- server change in transactions that do not see each other.
CREATE OR REPLACE FUNCTION count_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'apps', 'envs', 'ipv4_allocations', 'volume_attachments' THEN
        INSERT INTO org_usage_changes (org_id, kind, n) VALUES (NEW.org_id, TG_TABLE_NAME, CASE WHEN NEW.deleted_at IS NULL THEN 1 ELSE -1 END);
    WHEN 'restore_jobs', 'volume_restores' THEN
        INSERT INTO org_usage_changes (org_id, kind, n) VALUES (NEW.org_id, 'restore_jobs', CASE WHEN NEW.status IN ('queued', 'running') THEN 1 ELSE -1 END);
    WHEN 'volumes' THEN
        INSERT INTO org_usage_changes (org_id, kind, n, bytes)
        SELECT NEW.org_id, TG_TABLE_NAME, sum(c.sign), sum(c.sign * c.bytes)
        FROM (VALUES (1, NEW.deleted_at, NEW.size_bytes), (-1, OLD.deleted_at, OLD.size_bytes)) c (sign, deleted_at, bytes) WHERE c.deleted_at IS NULL;
    WHEN 'routes' THEN
        INSERT INTO org_usage_changes (org_id, kind, key, n)
        SELECT NEW.org_id, k.kind, k.key, sum(c.sign)
        FROM (VALUES (1, NEW.deleted_at, port_binding(NEW.listener_scope, NEW.env_id, NEW.listen_port)),
                     (-1, OLD.deleted_at, port_binding(OLD.listener_scope, OLD.env_id, OLD.listen_port))) c (sign, deleted_at, port)
        CROSS JOIN LATERAL (VALUES ('routes', ''), ('port', c.port)) k (kind, key)
        WHERE c.deleted_at IS NULL GROUP BY 2, 3 HAVING sum(c.sign) <> 0;
    WHEN 'domains' THEN
        INSERT INTO org_usage_changes (org_id, kind, key, n)
        VALUES (NEW.org_id, 'hostname', NEW.name, CASE WHEN NEW.status = 'verified' AND NEW.deleted_at IS NULL THEN 1 ELSE -1 END);
    WHEN 'instances' THEN
        INSERT INTO org_usage_changes (org_id, kind, key, n, memory, cpu)
        SELECT NEW.org_id, k.kind, k.key, sum(c.sign), sum(c.sign * c.memory), sum(c.sign * c.cpu)
        FROM (VALUES (1, NEW.state, NEW.memory_limit_bytes, NEW.cpu_request::numeric), (-1, OLD.state, OLD.memory_limit_bytes, OLD.cpu_request::numeric)) c (sign, state, memory, cpu)
        CROSS JOIN LATERAL (VALUES ('instances', '', c.state <> 'stopped'), ('group', NEW.group_id, c.state NOT IN ('stopped', 'draining'))) k (kind, key, counts)
        WHERE k.counts GROUP BY 2, 3;
    WHEN 'process_groups' THEN
        INSERT INTO org_usage_changes (org_id, kind, key) VALUES (NEW.org_id, 'group', NEW.group_id);
    WHEN 'tenants' THEN
        -- Changes between the states of a living tenant do not matter.
        IF tenant_lives(OLD.state) AND tenant_lives(NEW.state) AND OLD.plan = NEW.plan AND OLD.storage_quota_gb = NEW.storage_quota_gb THEN RETURN NULL; END IF;
        INSERT INTO org_usage_changes (org_id, kind, n, memory, cpu, bytes)
        SELECT NEW.org_id, 'tenants', sum(c.sign), sum(c.sign * z.memory_bytes), sum(c.sign * z.cpu_request::numeric),
            sum(c.sign * GREATEST(z.storage_bytes, c.gb::bigint * 1000000000))
        FROM (VALUES (1, NEW.state, NEW.plan, NEW.storage_quota_gb), (-1, OLD.state, OLD.plan, OLD.storage_quota_gb)) c (sign, state, plan, gb)
        JOIN tenant_sizes z ON z.plan = c.plan WHERE tenant_lives(c.state) HAVING count(*) > 0;
        INSERT INTO org_usage_changes (org_id, kind, key) VALUES (NEW.org_id, 'tenant', NEW.tenant_id);
    WHEN 'tenant_allocations' THEN
        INSERT INTO org_usage_changes (org_id, kind, key) SELECT org_id, 'tenant', tenant_id FROM tenants WHERE tenant_id = NEW.tenant_id;
    WHEN 'servers' THEN
        INSERT INTO org_usage_changes (org_id, kind, key) SELECT org_id, 'tenant', tenant_id FROM tenants
        WHERE tenant_id = NEW.dedicated_for_tenant_id OR (TG_OP = 'UPDATE' AND tenant_id = OLD.dedicated_for_tenant_id);
    END CASE;
    RETURN NULL;
END $$;
