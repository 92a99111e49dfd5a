-- +goose Up

-- Orgs have a tier, whose limits are data of the program; an org may have limits of
-- its own (quotas-and-fairness, "Quota configuration model"). Orgs from before
-- there were quotas keep working.
ALTER TABLE orgs ADD COLUMN tier text NOT NULL DEFAULT 'enterprise' CHECK (tier IN ('free', 'paid', 'enterprise'));
ALTER TABLE orgs ALTER COLUMN tier SET DEFAULT 'free';

CREATE TABLE org_quotas (
    org_id      text NOT NULL REFERENCES orgs (org_id),
    dimension   text NOT NULL,
    limit_value double precision NOT NULL CHECK (limit_value >= 0), -- whole but for max_total_cpu_request
    reason      text NOT NULL DEFAULT '',
    updated_by  text NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, dimension)
);

-- What happened to an org's resources. Payloads hold no secret.
CREATE TABLE org_events (
    event_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    org_id   text NOT NULL REFERENCES orgs (org_id),
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    type     text NOT NULL, -- app.create, group.scale, route.delete, org.quota_set, …
    subject  text NOT NULL, -- the id of what it happened to
    actor    text NOT NULL,
    reason   text NOT NULL DEFAULT '',
    payload  jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX org_events_by_org ON org_events (org_id, event_id DESC);

CREATE TABLE apps (
    app_id     text PRIMARY KEY, -- app-…
    org_id     text NOT NULL REFERENCES orgs (org_id),
    name       text NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz
);
CREATE UNIQUE INDEX apps_name ON apps (org_id, name) WHERE deleted_at IS NULL;

CREATE TABLE envs (
    env_id       text PRIMARY KEY, -- env-…
    app_id       text NOT NULL REFERENCES apps (app_id),
    org_id       text NOT NULL REFERENCES orgs (org_id),
    name         text NOT NULL,
    region       text NOT NULL CHECK (region IN ('sg', 'eu', 'us')),
    created_by   text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    deleted_at   timestamptz
);
CREATE UNIQUE INDEX envs_name ON envs (app_id, name) WHERE deleted_at IS NULL;
CREATE INDEX envs_by_org ON envs (org_id) WHERE deleted_at IS NULL;

-- A process group: what runs (the spec of a release), and how many of it.
CREATE TABLE process_groups (
    group_id           text PRIMARY KEY, -- grp-…
    env_id             text NOT NULL REFERENCES envs (env_id),
    org_id             text NOT NULL REFERENCES orgs (org_id),
    region             text NOT NULL,
    name               text NOT NULL,
    spec               jsonb NOT NULL, -- WorkloadSpec of the release that is wanted
    release            integer NOT NULL DEFAULT 1,
    stable_spec        jsonb, -- of the last release that was healthy; NULL until one was
    stable_release     integer NOT NULL DEFAULT 0,
    memory_limit_bytes bigint NOT NULL CHECK (memory_limit_bytes > 0), -- of the wanted release
    cpu_request        double precision NOT NULL CHECK (cpu_request >= 0),
    replicas           integer NOT NULL CHECK (replicas BETWEEN 0 AND 10000),
    require_tags       text[] NOT NULL DEFAULT '{}',
    disallow_tags      text[] NOT NULL DEFAULT '{}',
    deploy_status      text NOT NULL DEFAULT 'none' CHECK (deploy_status IN ('none', 'rolling', 'draining_first', 'stopping_first', 'succeeded', 'rolled_back')),
    deploy_message     text NOT NULL DEFAULT '',
    status             text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'unschedulable', 'stopped')),
    status_reason      text NOT NULL DEFAULT '', -- org_quota_exceeded:<dimension>, no_capacity_memory, …
    status_message     text NOT NULL DEFAULT '',
    decision           jsonb, -- the last placement and its explanation
    next_attempt_at    timestamptz, -- after a refusal by quota: not before this, unless usage falls
    refused_usage      double precision, -- of the dimension that refused, then
    waiting_since      timestamptz, -- set while instances are to be allocated
    wanted             integer NOT NULL DEFAULT 0 CHECK (wanted >= 0), -- instances to allocate now
    surge              boolean NOT NULL DEFAULT false, -- they come on top of replicas
    no_surge           boolean NOT NULL DEFAULT false, -- an instance goes before the next one comes
    failures           integer NOT NULL DEFAULT 0, -- of instances since one ran
    last_release       integer NOT NULL DEFAULT 1,
    last_instance      bigint NOT NULL DEFAULT 0, -- the number in the id of the newest
    converged          boolean NOT NULL DEFAULT false, -- nothing is to be done until something changes
    created_by         text NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT now(),
    updated_at         timestamptz NOT NULL DEFAULT now(),
    deleted_at         timestamptz
);
CREATE UNIQUE INDEX process_groups_name ON process_groups (env_id, name) WHERE deleted_at IS NULL;
CREATE INDEX process_groups_by_org ON process_groups (org_id) WHERE deleted_at IS NULL;
CREATE INDEX process_groups_wanting ON process_groups (region, waiting_since) WHERE wanted > 0;
CREATE INDEX process_groups_open ON process_groups (updated_at) WHERE NOT converged;

-- An instance is a container on a server. It counts until it is stopped.
CREATE TABLE instances (
    instance_id        text PRIMARY KEY, -- ins-…
    group_id           text NOT NULL REFERENCES process_groups (group_id),
    org_id             text NOT NULL REFERENCES orgs (org_id),
    server_id          text NOT NULL REFERENCES servers (server_id),
    release            integer NOT NULL,
    memory_limit_bytes bigint NOT NULL CHECK (memory_limit_bytes > 0),
    cpu_request        double precision NOT NULL CHECK (cpu_request >= 0),
    number             bigint NOT NULL, -- in its group, and in its id
    spec               jsonb NOT NULL, -- WorkloadSpec of its release
    ports              jsonb NOT NULL DEFAULT '[]', -- [{container_port, host_port}]
    state              text NOT NULL CHECK (state IN ('booting', 'running', 'draining', 'failed', 'stopped')),
    healthy            boolean NOT NULL DEFAULT false,
    message            text NOT NULL DEFAULT '',
    created_at         timestamptz NOT NULL DEFAULT now(),
    running_at         timestamptz,
    stopped_at         timestamptz
);
CREATE INDEX instances_by_group ON instances (group_id) INCLUDE (state, memory_limit_bytes, cpu_request) WHERE state <> 'stopped';
CREATE INDEX instances_listing ON instances (group_id, number);
CREATE INDEX instances_by_org ON instances (org_id) INCLUDE (memory_limit_bytes, cpu_request, group_id, state) WHERE state <> 'stopped';
CREATE INDEX instances_by_server ON instances (server_id) WHERE state <> 'stopped';

-- What a server of a fleet offers to instances; 0 is nothing.
ALTER TABLE fleets
    ADD COLUMN workload_memory_bytes bigint NOT NULL DEFAULT 0 CHECK (workload_memory_bytes >= 0),
    ADD COLUMN workload_cpus         double precision NOT NULL DEFAULT 0 CHECK (workload_cpus >= 0);

CREATE TABLE routes (
    route_id       text PRIMARY KEY, -- rte-…
    org_id         text NOT NULL REFERENCES orgs (org_id),
    env_id         text NOT NULL REFERENCES envs (env_id),
    group_id       text NOT NULL REFERENCES process_groups (group_id),
    hostname       text NOT NULL DEFAULT '', -- lower-case; '' for raw TCP
    listener_scope text NOT NULL CHECK (listener_scope IN ('shared_v6', 'env_v4')), -- the address that it listens on
    listen_port    integer NOT NULL CHECK (listen_port BETWEEN 1 AND 65535),
    protocol       text NOT NULL CHECK (protocol IN ('http', 'https', 'tcp')),
    target_port    integer NOT NULL CHECK (target_port BETWEEN 1 AND 65535),
    created_by     text NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    deleted_at     timestamptz
);
-- The same name may be served on a shared address and on one of the env's own.
CREATE UNIQUE INDEX routes_hostname ON routes (hostname, listener_scope, listen_port) WHERE deleted_at IS NULL AND hostname <> '';
CREATE INDEX routes_by_port ON routes (listener_scope, listen_port) WHERE deleted_at IS NULL;
CREATE INDEX routes_by_env ON routes (env_id, route_id) WHERE deleted_at IS NULL;
CREATE INDEX routes_by_org ON routes (org_id) INCLUDE (listener_scope, env_id, listen_port) WHERE deleted_at IS NULL;

-- The IPv4 add-on of an environment: a primary IP at the provider.
CREATE TABLE ipv4_allocations (
    allocation_id text PRIMARY KEY, -- ip4-…
    org_id        text NOT NULL REFERENCES orgs (org_id),
    env_id        text NOT NULL REFERENCES envs (env_id),
    provider      text NOT NULL REFERENCES infra_providers (id),
    name          text NOT NULL UNIQUE, -- at the provider
    location      text NOT NULL, -- of the provider
    provider_id   text,
    address       text NOT NULL DEFAULT '',
    status        text NOT NULL CHECK (status IN ('pending', 'ready', 'releasing', 'failed')),
    reason        text NOT NULL DEFAULT '', -- ipam_exhausted, …
    message       text NOT NULL DEFAULT '',
    created_by    text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(), -- when the wish last changed
    deleted_at    timestamptz
);
CREATE UNIQUE INDEX ipv4_allocations_env ON ipv4_allocations (env_id) WHERE deleted_at IS NULL;
CREATE INDEX ipv4_allocations_by_org ON ipv4_allocations (org_id) WHERE deleted_at IS NULL;
CREATE INDEX ipv4_allocations_moving ON ipv4_allocations (updated_at) WHERE deleted_at IS NULL AND status IN ('pending', 'releasing');

CREATE TABLE volumes (
    volume_id   text PRIMARY KEY, -- vol-…
    org_id      text NOT NULL REFERENCES orgs (org_id),
    region      text NOT NULL CHECK (region IN ('sg', 'eu', 'us')),
    location    text NOT NULL, -- of the provider: who attaches it stands there
    name        text NOT NULL,
    size_bytes  bigint NOT NULL CHECK (size_bytes >= 10000000000),
    provider    text NOT NULL REFERENCES infra_providers (id),
    provider_name text NOT NULL UNIQUE, -- its name at the provider
    provider_id text,
    status      text NOT NULL CHECK (status IN ('pending', 'ready', 'releasing', 'failed')),
    reason      text NOT NULL DEFAULT '', -- no_capacity_volume, …
    message     text NOT NULL DEFAULT '',
    created_by  text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(), -- when the wish last changed
    deleted_at  timestamptz
);
CREATE UNIQUE INDEX volumes_name ON volumes (org_id, name) WHERE deleted_at IS NULL;
CREATE INDEX volumes_by_org ON volumes (org_id) INCLUDE (size_bytes) WHERE deleted_at IS NULL;
CREATE INDEX volumes_moving ON volumes (updated_at) WHERE deleted_at IS NULL AND status IN ('pending', 'releasing');

-- One writer: a volume is attached to one process group at a time, and its instance
-- is on the server that has the volume.
CREATE TABLE volume_attachments (
    attachment_id text PRIMARY KEY, -- vat-…
    org_id        text NOT NULL REFERENCES orgs (org_id),
    volume_id     text NOT NULL REFERENCES volumes (volume_id),
    group_id      text NOT NULL REFERENCES process_groups (group_id),
    mount_path    text NOT NULL,
    server_id     text REFERENCES servers (server_id), -- where it is attached at the provider now
    created_by    text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    deleted_at    timestamptz
);
CREATE UNIQUE INDEX volume_attachments_one ON volume_attachments (volume_id) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX volume_attachments_path ON volume_attachments (group_id, mount_path) WHERE deleted_at IS NULL;
CREATE INDEX volume_attachments_by_org ON volume_attachments (org_id) WHERE deleted_at IS NULL;
CREATE INDEX volume_attachments_by_group ON volume_attachments (group_id) WHERE deleted_at IS NULL;

-- Backups of tenants' sites. A tenant's site is what quotas-and-fairness calls its volume.
CREATE TABLE snapshots (
    snapshot_id text PRIMARY KEY, -- snp-…
    org_id      text NOT NULL REFERENCES orgs (org_id),
    tenant_id   text NOT NULL REFERENCES tenants (tenant_id),
    status      text NOT NULL CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'deleted')),
    server_id   text NOT NULL REFERENCES servers (server_id), -- whose disk it is on
    site        text NOT NULL,
    files       jsonb NOT NULL DEFAULT '[]', -- on the host, as bench named them
    message     text NOT NULL DEFAULT '',
    created_by  text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);
CREATE INDEX snapshots_by_org ON snapshots (org_id, tenant_id) WHERE status IN ('queued', 'running');
CREATE INDEX snapshots_by_tenant ON snapshots (tenant_id, created_at DESC);

CREATE TABLE restore_jobs (
    job_id      text PRIMARY KEY, -- rst-…
    org_id      text NOT NULL REFERENCES orgs (org_id),
    tenant_id   text NOT NULL REFERENCES tenants (tenant_id),
    snapshot_id text NOT NULL REFERENCES snapshots (snapshot_id),
    status      text NOT NULL CHECK (status IN ('queued', 'running', 'succeeded', 'failed')),
    message     text NOT NULL DEFAULT '',
    created_by  text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);
CREATE INDEX restore_jobs_by_org ON restore_jobs (org_id) WHERE status IN ('queued', 'running');
CREATE UNIQUE INDEX restore_jobs_one ON restore_jobs (tenant_id) WHERE status IN ('queued', 'running');
CREATE INDEX restore_jobs_by_tenant ON restore_jobs (tenant_id, created_at DESC);

-- Exec sessions and log streams. One whose process died is over when its lease is.
CREATE TABLE org_sessions (
    session_id text PRIMARY KEY,
    org_id     text NOT NULL REFERENCES orgs (org_id),
    kind       text NOT NULL CHECK (kind IN ('exec', 'logs')),
    subject    text NOT NULL,
    actor      text NOT NULL,
    opened_at  timestamptz NOT NULL DEFAULT now(),
    lease_until timestamptz NOT NULL,
    closed_at  timestamptz
);
CREATE INDEX org_sessions_open ON org_sessions (org_id, kind, lease_until) WHERE closed_at IS NULL;
CREATE INDEX org_sessions_hour ON org_sessions (org_id, kind, opened_at);

-- A tenant is an instance of its org, of its plan's size. The storage is what the plan
-- includes: a tenant that asks for more counts with what it asks for.
CREATE TABLE tenant_sizes (
    plan          text PRIMARY KEY CHECK (plan IN ('trial', 'starter', 'business', 'enterprise')),
    memory_bytes  bigint NOT NULL CHECK (memory_bytes > 0),
    cpu_request   double precision NOT NULL CHECK (cpu_request >= 0),
    storage_bytes bigint NOT NULL CHECK (storage_bytes >= 0)
);
INSERT INTO tenant_sizes VALUES
    ('trial', 536870912, 0.25, 1000000000), ('starter', 1073741824, 0.5, 10000000000),
    ('business', 2147483648, 1, 50000000000), ('enterprise', 8589934592, 4, 250000000000);

-- The memory that an instance costs beside its own limit.
CREATE TABLE workload_settings (
    one                              boolean PRIMARY KEY DEFAULT true CHECK (one),
    overhead_bytes_per_instance      bigint NOT NULL CHECK (overhead_bytes_per_instance >= 0)
);
INSERT INTO workload_settings (overhead_bytes_per_instance) VALUES (33554432);

-- Purged tenants stay as rows for ever; what is left of one is looked for only until
-- its purge is in effect.
CREATE INDEX tenants_counted ON tenants (org_id) INCLUDE (tenant_id, state, plan, storage_quota_gb) WHERE NOT (state = 'data_purged' AND converged_state = 'data_purged');

-- The tenants that count: those that live, and of the others those that still have a
-- place or a server of their own. One that failed is not free before what was made for
-- it is gone, else limits could be passed by failing again and again.
CREATE VIEW counted_tenants AS
SELECT t.tenant_id, t.org_id, z.memory_bytes, z.cpu_request, GREATEST(z.storage_bytes, t.storage_quota_gb::bigint * 1000000000) AS storage_bytes
FROM tenants t JOIN tenant_sizes z ON z.plan = t.plan
WHERE NOT (t.state = 'data_purged' AND t.converged_state = 'data_purged')
  AND (t.state IN ('trial', 'provisioning', 'active', 'suspended', 'grace_period')
       OR EXISTS (SELECT FROM tenant_allocations a WHERE a.tenant_id = t.tenant_id AND a.released_at IS NULL)
       OR EXISTS (SELECT FROM servers s WHERE s.dedicated_for_tenant_id = t.tenant_id AND s.status <> 'terminated'));

-- org_usage counts what an org uses of each dimension asked for, and nothing else
-- (quotas-and-fairness, "What counts as usage"). It is the one place that knows what
-- counts. Its statements are planned once per session: to plan them for each org takes
-- longer than to count.
-- +goose StatementBegin
CREATE FUNCTION org_usage(p_org text, p_dimensions text[]) RETURNS TABLE (dimension text, usage float8) LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    instances float8 := 0; memory float8 := 0; cpu float8 := 0; storage float8 := 0;
    i_n float8; i_memory float8; i_cpu float8; overhead float8;
BEGIN
    IF p_dimensions && '{max_instances,max_total_memory_bytes,max_total_cpu_request,max_total_volume_bytes}'::text[] THEN
        SELECT overhead_bytes_per_instance INTO STRICT overhead FROM workload_settings;
        SELECT count(*), COALESCE(sum(memory_bytes), 0) + count(*) * overhead, COALESCE(sum(cpu_request), 0), COALESCE(sum(storage_bytes), 0)
        INTO instances, memory, cpu, storage FROM counted_tenants t WHERE t.org_id = p_org;
    END IF;
    IF p_dimensions && '{max_instances,max_total_memory_bytes,max_total_cpu_request}'::text[] THEN
        SELECT count(*), COALESCE(sum(memory_limit_bytes), 0) + count(*) * overhead, COALESCE(sum(cpu_request), 0)
        INTO i_n, i_memory, i_cpu FROM instances i WHERE i.org_id = p_org AND i.state <> 'stopped';
        instances := instances + i_n; memory := memory + i_memory; cpu := cpu + i_cpu;
    END IF;
    FOREACH dimension IN ARRAY p_dimensions LOOP
        CASE dimension
        WHEN 'max_instances' THEN usage := instances;
        WHEN 'max_total_memory_bytes' THEN usage := memory;
        WHEN 'max_total_cpu_request' THEN usage := cpu;
        WHEN 'max_apps' THEN SELECT count(*) INTO usage FROM apps a WHERE a.org_id = p_org AND a.deleted_at IS NULL;
        WHEN 'max_envs' THEN SELECT count(*) INTO usage FROM envs e WHERE e.org_id = p_org AND e.deleted_at IS NULL;
        WHEN 'max_routes' THEN SELECT count(*) INTO usage FROM routes r WHERE r.org_id = p_org AND r.deleted_at IS NULL;
        WHEN 'max_hostnames' THEN SELECT count(DISTINCT hostname) INTO usage FROM routes r WHERE r.org_id = p_org AND r.deleted_at IS NULL AND r.hostname <> '';
        WHEN 'max_public_ports' THEN
            -- a binding is an address and a port: the address is everybody's, or that of the env
            SELECT count(*) INTO usage FROM (SELECT DISTINCT listener_scope, CASE listener_scope WHEN 'env_v4' THEN env_id END, listen_port
                FROM routes r WHERE r.org_id = p_org AND r.deleted_at IS NULL) p;
        WHEN 'max_ipv4_allocations' THEN SELECT count(*) INTO usage FROM ipv4_allocations a WHERE a.org_id = p_org AND a.deleted_at IS NULL;
        WHEN 'max_volumes' THEN SELECT count(*) INTO usage FROM volumes v WHERE v.org_id = p_org AND v.deleted_at IS NULL;
        WHEN 'max_total_volume_bytes' THEN SELECT storage + COALESCE(sum(size_bytes), 0) INTO usage FROM volumes v WHERE v.org_id = p_org AND v.deleted_at IS NULL;
        WHEN 'max_volume_attachments' THEN SELECT count(*) INTO usage FROM volume_attachments a WHERE a.org_id = p_org AND a.deleted_at IS NULL;
        WHEN 'max_snapshots_per_volume' THEN
            SELECT COALESCE(max(n), 0) INTO usage FROM (SELECT count(*) AS n FROM snapshots s
                WHERE s.org_id = p_org AND s.status IN ('queued', 'running') GROUP BY tenant_id) s;
        WHEN 'max_restore_jobs' THEN SELECT count(*) INTO usage FROM restore_jobs j WHERE j.org_id = p_org AND j.status IN ('queued', 'running');
        WHEN 'max_log_streams' THEN
            SELECT count(*) INTO usage FROM org_sessions s WHERE s.org_id = p_org AND s.kind = 'logs' AND s.closed_at IS NULL AND s.lease_until > now();
        WHEN 'max_exec_sessions' THEN
            SELECT count(*) INTO usage FROM org_sessions s WHERE s.org_id = p_org AND s.kind = 'exec' AND s.closed_at IS NULL AND s.lease_until > now();
        WHEN 'max_exec_sessions_per_hour' THEN
            SELECT count(*) INTO usage FROM org_sessions s WHERE s.org_id = p_org AND s.kind = 'exec' AND s.opened_at > now() - interval '1 hour';
        END CASE; -- another one is an error: nothing that is not counted may be taken
        RETURN NEXT;
    END LOOP;
END $$;
-- +goose StatementEnd

-- What each org uses, by dimension.
CREATE VIEW org_usage_view AS
SELECT o.org_id, u.dimension, u.usage
FROM orgs o CROSS JOIN LATERAL org_usage(o.org_id, '{max_instances,max_total_memory_bytes,max_total_cpu_request,max_envs,max_apps,max_routes,max_public_ports,max_ipv4_allocations,max_hostnames,max_volumes,max_total_volume_bytes,max_volume_attachments,max_snapshots_per_volume,max_restore_jobs,max_log_streams,max_exec_sessions,max_exec_sessions_per_hour}') u;

-- org_limits are the limits that hold: the org's own, else those of its tier, which the
-- caller has. Enforcement and display read them here. A limit that nobody gave is 0.
CREATE FUNCTION org_limits(p_org text, p_dimensions text[], p_tier_limits jsonb)
RETURNS TABLE (dimension text, limit_value float8, own boolean) LANGUAGE sql STABLE AS $$
    SELECT d.dimension, COALESCE(q.limit_value, (p_tier_limits -> o.tier ->> d.dimension)::float8, 0), q.limit_value IS NOT NULL
    FROM orgs o CROSS JOIN unnest(p_dimensions) AS d (dimension)
    LEFT JOIN org_quotas q ON q.org_id = o.org_id AND q.dimension = d.dimension
    WHERE o.org_id = p_org
$$;

-- What is promised to an org's process groups and not allocated yet: an instance that
-- is draining holds nobody's place. Only what is allocated is usage.
CREATE VIEW org_reserved_view AS
SELECT o.org_id, u.dimension, u.reserved
FROM orgs o
CROSS JOIN LATERAL (
    SELECT COALESCE(sum(GREATEST(g.replicas - COALESCE(i.n, 0), 0)), 0)::float8 AS n,
        COALESCE(sum(GREATEST(g.replicas * (g.memory_limit_bytes + s.overhead_bytes_per_instance)::float8
            - COALESCE(i.memory + i.n * s.overhead_bytes_per_instance, 0)::float8, 0)), 0) AS memory,
        COALESCE(sum(GREATEST(g.replicas * g.cpu_request - COALESCE(i.cpu, 0), 0)), 0) AS cpu
    FROM process_groups g CROSS JOIN workload_settings s
    LEFT JOIN (
        SELECT group_id, count(*) AS n, sum(memory_limit_bytes) AS memory, sum(cpu_request) AS cpu
        FROM instances WHERE org_id = o.org_id AND state <> 'stopped' AND state <> 'draining' GROUP BY group_id) i ON i.group_id = g.group_id
    WHERE g.org_id = o.org_id AND g.deleted_at IS NULL) g
CROSS JOIN LATERAL (VALUES ('max_instances', g.n), ('max_total_memory_bytes', g.memory), ('max_total_cpu_request', g.cpu)) AS u (dimension, reserved);

-- take_quota checks what a transaction is about to take, in one round trip. It locks
-- the org's row, so that whoever else takes something of this org waits, and sees what
-- this one took; only then it counts, the dimensions asked for and no others: what is
-- used and what is promised, or, for who allocates what was promised before, what is used
-- alone. It answers with the first dimension, in the order asked, that would be above its
-- limit, or with no row. A delta of 0 or less is never refused: giving back is always
-- allowed, also above the limit. CPUs are sums of fractions, so a hair is let pass.
-- +goose StatementBegin
CREATE FUNCTION take_quota(p_org text, p_dimensions text[], p_deltas float8[], p_tier_limits jsonb, p_allocating boolean DEFAULT false)
RETURNS TABLE (dimension text, limit_value float8, current_usage float8, requested_delta float8) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    asked    text[];
    deltas   float8[];
    promised jsonb := '{}';
BEGIN
    PERFORM FROM orgs WHERE org_id = p_org FOR NO KEY UPDATE;
    SELECT array_agg(w.d ORDER BY w.n), array_agg(w.delta ORDER BY w.n) INTO asked, deltas
    FROM (SELECT d, sum(delta) AS delta, min(n) AS n FROM unnest(p_dimensions, p_deltas) WITH ORDINALITY AS u (d, delta, n) GROUP BY d) w
    WHERE w.delta > 0;
    IF asked IS NULL THEN RETURN; END IF;
    IF NOT p_allocating AND asked && '{max_instances,max_total_memory_bytes,max_total_cpu_request}'::text[] THEN
        SELECT COALESCE(jsonb_object_agg(r.dimension, r.reserved), '{}') INTO promised FROM org_reserved_view r WHERE r.org_id = p_org;
    END IF;
    RETURN QUERY
    SELECT l.dimension, l.limit_value, c.value, w.delta
    FROM unnest(asked, deltas) WITH ORDINALITY AS w (d, delta, n)
    JOIN org_limits(p_org, asked, p_tier_limits) l ON l.dimension = w.d
    JOIN org_usage(p_org, asked) u ON u.dimension = w.d
    CROSS JOIN LATERAL (SELECT u.usage + COALESCE((promised ->> w.d)::float8, 0) AS value) c
    WHERE c.value + w.delta > l.limit_value + 1e-6
    ORDER BY w.n LIMIT 1;
END $$;
-- +goose StatementEnd

-- The keys of requests that made something of an org other than a tenant.
CREATE TABLE org_idempotency_keys (
    subject      text NOT NULL,
    key          text NOT NULL,
    request_hash bytea NOT NULL,
    resource_id  text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (subject, key)
);
