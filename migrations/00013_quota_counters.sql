-- +goose Up

-- What an org uses and was promised, by dimension: what limits are held against. Only who
-- holds the org's row writes here.
CREATE TABLE org_counters (
    org_id    text NOT NULL REFERENCES orgs (org_id),
    dimension text NOT NULL,
    used      numeric NOT NULL DEFAULT 0,
    promised  numeric NOT NULL DEFAULT 0, -- to process groups, and not allocated yet
    PRIMARY KEY (org_id, dimension)
) WITH (fillfactor = 70);

-- What changed and is not in the counters yet. Triggers append to it in the transaction of
-- the change, so that it waits for nobody and nobody waits for it; who holds the org's row
-- adds it to the counters and deletes it. kind is the table that changed, with n rows,
-- memory (without the overhead of each instance), CPUs and bytes more; or the part (key) of
-- which the counters can't be told by adding up: 'tenant', 'group', 'hostname', 'port'.
CREATE TABLE org_usage_changes (
    org_id text NOT NULL,
    kind   text NOT NULL,
    key    text NOT NULL DEFAULT '',
    n      bigint NOT NULL DEFAULT 0,
    memory bigint NOT NULL DEFAULT 0,
    cpu    numeric NOT NULL DEFAULT 0,
    bytes  bigint NOT NULL DEFAULT 0
);
CREATE INDEX org_usage_changes_by_org ON org_usage_changes (org_id);

-- What the counters have of each such part: what a tenant counts that does not live and of
-- which something stands; what a group has, and what it is promised; how many routes have a
-- hostname or a port.
CREATE TABLE org_usage_parts (
    org_id          text NOT NULL,
    kind            text NOT NULL CHECK (kind IN ('tenant', 'group', 'hostname', 'port')),
    key             text NOT NULL,
    n               bigint NOT NULL DEFAULT 0,
    memory          bigint NOT NULL DEFAULT 0,
    cpu             numeric NOT NULL DEFAULT 0,
    bytes           bigint NOT NULL DEFAULT 0,
    promised_n      bigint NOT NULL DEFAULT 0,
    promised_memory bigint NOT NULL DEFAULT 0,
    promised_cpu    numeric NOT NULL DEFAULT 0,
    PRIMARY KEY (org_id, kind, key)
) WITH (fillfactor = 70);

-- Orgs whose counters were found wrong when they were last compared with the rows, and how
-- far the comparison has come.
CREATE TABLE org_usage_drifts (
    org_id   text PRIMARY KEY REFERENCES orgs (org_id),
    found_at timestamptz NOT NULL DEFAULT now(),
    drift    jsonb NOT NULL
);
CREATE TABLE org_usage_sweep (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    last_id text NOT NULL DEFAULT ''
);
INSERT INTO org_usage_sweep DEFAULT VALUES;

-- Of the last hour, of all orgs.
CREATE INDEX org_sessions_opened ON org_sessions (opened_at);

-- The tenants of counted_tenants that do not live.
CREATE VIEW lingering_tenants AS
SELECT t.tenant_id, t.org_id, z.memory_bytes, z.cpu_request, GREATEST(z.storage_bytes, t.storage_quota_gb::bigint * 1000000000) AS storage_bytes
FROM tenants t JOIN tenant_sizes z ON z.plan = t.plan
WHERE NOT (t.state = 'data_purged' AND t.converged_state = 'data_purged')
  AND t.state NOT IN ('trial', 'provisioning', 'active', 'suspended', 'grace_period')
  AND (EXISTS (SELECT FROM tenant_allocations a WHERE a.tenant_id = t.tenant_id AND a.released_at IS NULL)
       OR EXISTS (SELECT FROM servers s WHERE s.dedicated_for_tenant_id = t.tenant_id AND s.status <> 'terminated'));

-- +goose StatementBegin
CREATE FUNCTION port_binding(p_scope text, p_env text, p_port integer) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT p_scope || '/' || CASE p_scope WHEN 'env_v4' THEN p_env ELSE '' END || '/' || p_port
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION tenant_lives(p_state text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT p_state IN ('trial', 'provisioning', 'active', 'suspended', 'grace_period')
$$;
-- +goose StatementEnd

-- All that there is, as the changes that would have made it: what an org is counted anew from.
CREATE VIEW org_usage_rows AS
SELECT org_id, 'apps' AS kind, '' AS key, count(*) AS n, 0::bigint AS memory, 0::numeric AS cpu, 0::numeric AS bytes FROM apps WHERE deleted_at IS NULL GROUP BY org_id
UNION ALL SELECT org_id, 'envs', '', count(*), 0, 0, 0 FROM envs WHERE deleted_at IS NULL GROUP BY org_id
UNION ALL SELECT org_id, 'ipv4_allocations', '', count(*), 0, 0, 0 FROM ipv4_allocations WHERE deleted_at IS NULL GROUP BY org_id
UNION ALL SELECT org_id, 'volume_attachments', '', count(*), 0, 0, 0 FROM volume_attachments WHERE deleted_at IS NULL GROUP BY org_id
UNION ALL SELECT org_id, 'restore_jobs', '', count(*), 0, 0, 0 FROM restore_jobs WHERE status IN ('queued', 'running') GROUP BY org_id
UNION ALL SELECT org_id, 'volumes', '', count(*), 0, 0, sum(size_bytes) FROM volumes WHERE deleted_at IS NULL GROUP BY org_id
UNION ALL SELECT r.org_id, k.kind, k.key, count(*), 0, 0, 0 FROM routes r
    CROSS JOIN LATERAL (VALUES ('routes', ''), ('hostname', r.hostname), ('port', port_binding(r.listener_scope, r.env_id, r.listen_port))) k (kind, key)
    WHERE r.deleted_at IS NULL AND (k.kind <> 'hostname' OR k.key <> '') GROUP BY r.org_id, k.kind, k.key
UNION ALL SELECT org_id, 'instances', '', count(*), sum(memory_limit_bytes)::bigint, sum(cpu_request::numeric), 0 FROM instances WHERE state <> 'stopped' GROUP BY org_id
UNION ALL SELECT org_id, 'group', group_id, count(*), sum(memory_limit_bytes)::bigint, sum(cpu_request::numeric), 0 FROM instances
    WHERE state <> 'stopped' AND state <> 'draining' GROUP BY org_id, group_id
UNION ALL SELECT org_id, 'group', group_id, 0, 0, 0, 0 FROM process_groups WHERE deleted_at IS NULL
UNION ALL SELECT t.org_id, 'tenants', '', count(*), sum(z.memory_bytes)::bigint, sum(z.cpu_request::numeric), sum(GREATEST(z.storage_bytes, t.storage_quota_gb::bigint * 1000000000))
    FROM tenants t JOIN tenant_sizes z ON z.plan = t.plan
    WHERE t.state IN ('trial', 'provisioning', 'active', 'suspended', 'grace_period') GROUP BY t.org_id
UNION ALL SELECT org_id, 'tenant', tenant_id, 0, 0, 0, 0 FROM lingering_tenants;

-- +goose StatementBegin
CREATE FUNCTION count_rows() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    sign integer := CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END;
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'apps', 'envs', 'ipv4_allocations', 'volume_attachments' THEN
        INSERT INTO org_usage_changes (org_id, kind, n)
        SELECT org_id, TG_TABLE_NAME, sign * count(*) FROM changed WHERE deleted_at IS NULL GROUP BY org_id;
    WHEN 'restore_jobs' THEN
        INSERT INTO org_usage_changes (org_id, kind, n)
        SELECT org_id, TG_TABLE_NAME, sign * count(*) FROM changed WHERE status IN ('queued', 'running') GROUP BY org_id;
    WHEN 'volumes' THEN
        INSERT INTO org_usage_changes (org_id, kind, n, bytes)
        SELECT org_id, TG_TABLE_NAME, sign * count(*), sign * sum(size_bytes) FROM changed WHERE deleted_at IS NULL GROUP BY org_id;
    WHEN 'routes' THEN
        INSERT INTO org_usage_changes (org_id, kind, key, n)
        SELECT c.org_id, k.kind, k.key, sign * count(*) FROM changed c
        CROSS JOIN LATERAL (VALUES ('routes', ''), ('hostname', c.hostname), ('port', port_binding(c.listener_scope, c.env_id, c.listen_port))) k (kind, key)
        WHERE c.deleted_at IS NULL AND (k.kind <> 'hostname' OR k.key <> '') GROUP BY 1, 2, 3;
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
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION count_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'apps', 'envs', 'ipv4_allocations', 'volume_attachments' THEN
        INSERT INTO org_usage_changes (org_id, kind, n) VALUES (NEW.org_id, TG_TABLE_NAME, CASE WHEN NEW.deleted_at IS NULL THEN 1 ELSE -1 END);
    WHEN 'restore_jobs' THEN
        INSERT INTO org_usage_changes (org_id, kind, n) VALUES (NEW.org_id, TG_TABLE_NAME, CASE WHEN NEW.status IN ('queued', 'running') THEN 1 ELSE -1 END);
    WHEN 'volumes' THEN
        INSERT INTO org_usage_changes (org_id, kind, n, bytes)
        SELECT NEW.org_id, TG_TABLE_NAME, sum(c.sign), sum(c.sign * c.bytes)
        FROM (VALUES (1, NEW.deleted_at, NEW.size_bytes), (-1, OLD.deleted_at, OLD.size_bytes)) c (sign, deleted_at, bytes) WHERE c.deleted_at IS NULL;
    WHEN 'routes' THEN
        INSERT INTO org_usage_changes (org_id, kind, key, n)
        SELECT NEW.org_id, k.kind, k.key, sum(c.sign)
        FROM (VALUES (1, NEW.deleted_at, NEW.hostname, port_binding(NEW.listener_scope, NEW.env_id, NEW.listen_port)),
                     (-1, OLD.deleted_at, OLD.hostname, port_binding(OLD.listener_scope, OLD.env_id, OLD.listen_port))) c (sign, deleted_at, hostname, port)
        CROSS JOIN LATERAL (VALUES ('routes', ''), ('hostname', c.hostname), ('port', c.port)) k (kind, key)
        WHERE c.deleted_at IS NULL AND (k.kind <> 'hostname' OR k.key <> '') GROUP BY 2, 3 HAVING sum(c.sign) <> 0;
    WHEN 'instances' THEN
        INSERT INTO org_usage_changes (org_id, kind, key, n, memory, cpu)
        SELECT NEW.org_id, k.kind, k.key, sum(c.sign), sum(c.sign * c.memory), sum(c.sign * c.cpu)
        FROM (VALUES (1, NEW.state, NEW.memory_limit_bytes, NEW.cpu_request::numeric), (-1, OLD.state, OLD.memory_limit_bytes, OLD.cpu_request::numeric)) c (sign, state, memory, cpu)
        CROSS JOIN LATERAL (VALUES ('instances', '', c.state <> 'stopped'), ('group', NEW.group_id, c.state NOT IN ('stopped', 'draining'))) k (kind, key, counts)
        WHERE k.counts GROUP BY 2, 3;
    WHEN 'process_groups' THEN
        INSERT INTO org_usage_changes (org_id, kind, key) VALUES (NEW.org_id, 'group', NEW.group_id);
    WHEN 'tenants' THEN
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
-- +goose StatementEnd

CREATE TRIGGER apps_counted_in AFTER INSERT ON apps REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER apps_counted_out AFTER DELETE ON apps REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER envs_counted_in AFTER INSERT ON envs REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER envs_counted_out AFTER DELETE ON envs REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER ipv4_allocations_counted_in AFTER INSERT ON ipv4_allocations REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER ipv4_allocations_counted_out AFTER DELETE ON ipv4_allocations REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER volume_attachments_counted_in AFTER INSERT ON volume_attachments REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER volume_attachments_counted_out AFTER DELETE ON volume_attachments REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER restore_jobs_counted_in AFTER INSERT ON restore_jobs REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER restore_jobs_counted_out AFTER DELETE ON restore_jobs REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER volumes_counted_in AFTER INSERT ON volumes REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER volumes_counted_out AFTER DELETE ON volumes REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER routes_counted_in AFTER INSERT ON routes REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER routes_counted_out AFTER DELETE ON routes REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER instances_counted_in AFTER INSERT ON instances REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER instances_counted_out AFTER DELETE ON instances REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER process_groups_counted_in AFTER INSERT ON process_groups REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER process_groups_counted_out AFTER DELETE ON process_groups REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER tenants_counted_in AFTER INSERT ON tenants REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER tenants_counted_out AFTER DELETE ON tenants REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();

CREATE TRIGGER apps_counted AFTER UPDATE ON apps FOR EACH ROW
    WHEN ((OLD.deleted_at IS NULL) <> (NEW.deleted_at IS NULL)) EXECUTE FUNCTION count_change();
CREATE TRIGGER envs_counted AFTER UPDATE ON envs FOR EACH ROW
    WHEN ((OLD.deleted_at IS NULL) <> (NEW.deleted_at IS NULL)) EXECUTE FUNCTION count_change();
CREATE TRIGGER ipv4_allocations_counted AFTER UPDATE ON ipv4_allocations FOR EACH ROW
    WHEN ((OLD.deleted_at IS NULL) <> (NEW.deleted_at IS NULL)) EXECUTE FUNCTION count_change();
CREATE TRIGGER volume_attachments_counted AFTER UPDATE ON volume_attachments FOR EACH ROW
    WHEN ((OLD.deleted_at IS NULL) <> (NEW.deleted_at IS NULL)) EXECUTE FUNCTION count_change();
CREATE TRIGGER restore_jobs_counted AFTER UPDATE ON restore_jobs FOR EACH ROW
    WHEN ((OLD.status IN ('queued', 'running')) <> (NEW.status IN ('queued', 'running'))) EXECUTE FUNCTION count_change();
CREATE TRIGGER volumes_counted AFTER UPDATE ON volumes FOR EACH ROW
    WHEN ((OLD.deleted_at IS NULL) <> (NEW.deleted_at IS NULL) OR OLD.size_bytes <> NEW.size_bytes) EXECUTE FUNCTION count_change();
CREATE TRIGGER routes_counted AFTER UPDATE ON routes FOR EACH ROW
    WHEN ((OLD.deleted_at IS NULL) <> (NEW.deleted_at IS NULL) OR OLD.hostname <> NEW.hostname OR OLD.listener_scope <> NEW.listener_scope OR OLD.listen_port <> NEW.listen_port) EXECUTE FUNCTION count_change();
CREATE TRIGGER instances_counted AFTER UPDATE ON instances FOR EACH ROW
    WHEN ((OLD.state = 'stopped') <> (NEW.state = 'stopped') OR (OLD.state IN ('stopped', 'draining')) <> (NEW.state IN ('stopped', 'draining'))
       OR OLD.memory_limit_bytes <> NEW.memory_limit_bytes OR OLD.cpu_request <> NEW.cpu_request) EXECUTE FUNCTION count_change();
CREATE TRIGGER process_groups_counted AFTER UPDATE ON process_groups FOR EACH ROW
    WHEN (OLD.replicas <> NEW.replicas OR OLD.memory_limit_bytes <> NEW.memory_limit_bytes OR OLD.cpu_request <> NEW.cpu_request
       OR (OLD.deleted_at IS NULL) <> (NEW.deleted_at IS NULL)) EXECUTE FUNCTION count_change();
-- What goes on between the states of a tenant that lives changes nothing.
CREATE TRIGGER tenants_counted AFTER UPDATE ON tenants FOR EACH ROW
    WHEN (OLD.plan <> NEW.plan OR OLD.storage_quota_gb <> NEW.storage_quota_gb
       OR ((OLD.state <> NEW.state OR OLD.converged_state <> NEW.converged_state)
           AND NOT (OLD.state IN ('trial', 'provisioning', 'active', 'suspended', 'grace_period') AND NEW.state IN ('trial', 'provisioning', 'active', 'suspended', 'grace_period')))) EXECUTE FUNCTION count_change();
-- A tenant that gets a place lives, and counts already: reserve_placement holds its row.
CREATE TRIGGER tenant_allocations_counted AFTER UPDATE OF released_at ON tenant_allocations FOR EACH ROW
    WHEN ((OLD.released_at IS NULL) <> (NEW.released_at IS NULL)) EXECUTE FUNCTION count_change();
CREATE TRIGGER servers_counted_in AFTER INSERT ON servers FOR EACH ROW WHEN (NEW.dedicated_for_tenant_id IS NOT NULL) EXECUTE FUNCTION count_change();
CREATE TRIGGER servers_counted AFTER UPDATE OF dedicated_for_tenant_id, status ON servers FOR EACH ROW
    WHEN (OLD.dedicated_for_tenant_id IS DISTINCT FROM NEW.dedicated_for_tenant_id
       OR (NEW.dedicated_for_tenant_id IS NOT NULL AND (OLD.status = 'terminated') <> (NEW.status = 'terminated'))) EXECUTE FUNCTION count_change();

-- Whoever writes waits from the first trigger on until this is committed: nothing is missed
-- between counting and noting. Each org's counters come to be when it is first looked at.
INSERT INTO org_usage_changes (org_id, kind, key, n, memory, cpu, bytes) SELECT org_id, kind, key, n, memory, cpu, bytes FROM org_usage_rows;
