-- +goose Up

-- Customers. A parent groups organizations for affinity (placement-policy §5).
CREATE TABLE orgs (
    org_id        text PRIMARY KEY,
    parent_org_id text REFERENCES orgs (org_id),
    created_by    text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    CHECK (parent_org_id IS DISTINCT FROM org_id)
);

-- Where data of a country's residents may be (placement-policy §2.1, §2.2).
CREATE TABLE residency_zones (
    country   text PRIMARY KEY CHECK (country ~ '^[A-Z]{2}$'),
    regions   text[] NOT NULL CHECK (regions <@ ARRAY['sg', 'eu', 'us'] AND cardinality(regions) > 0),
    providers text[] CHECK (cardinality(providers) > 0) -- NULL: every enabled one
);
INSERT INTO residency_zones (country, regions) VALUES
    ('KR', '{sg}'), ('SG', '{sg}'), ('MY', '{sg}'), ('VN', '{sg}'), ('ID', '{sg}'), ('TH', '{sg}'), ('JP', '{sg}'), ('AU', '{sg}'),
    ('AT', '{eu}'), ('BE', '{eu}'), ('BG', '{eu}'), ('CY', '{eu}'), ('CZ', '{eu}'), ('DE', '{eu}'), ('DK', '{eu}'), ('EE', '{eu}'),
    ('ES', '{eu}'), ('FI', '{eu}'), ('FR', '{eu}'), ('GR', '{eu}'), ('HR', '{eu}'), ('HU', '{eu}'), ('IE', '{eu}'), ('IT', '{eu}'),
    ('LT', '{eu}'), ('LU', '{eu}'), ('LV', '{eu}'), ('MT', '{eu}'), ('NL', '{eu}'), ('PL', '{eu}'), ('PT', '{eu}'), ('RO', '{eu}'),
    ('SE', '{eu}'), ('SI', '{eu}'), ('SK', '{eu}'), ('GB', '{eu}'), ('CH', '{eu}'), ('NO', '{eu}'),
    ('US', '{us}'), ('CA', '{us}');

-- What placement needs to know of servers. changed_xid lets a snapshot follow what
-- changed: it is the transaction that last changed something that placement looks at,
-- so whoever reads every row from the oldest transaction under way on misses none.
ALTER TABLE servers
    ADD COLUMN tenant_count            integer NOT NULL DEFAULT 0 CHECK (tenant_count >= 0),
    ADD COLUMN accepts_trial           boolean NOT NULL DEFAULT true,
    ADD COLUMN dedicated_for_tenant_id text,
    -- the plan of the warm pool that a server was made for
    ADD COLUMN warm_plan               text CHECK (warm_plan IN ('trial', 'starter', 'business', 'enterprise')),
    -- the lock of the shard that a db-shard or node becomes
    ADD COLUMN plan_tier_lock          text CHECK (plan_tier_lock IN ('trial', 'starter', 'business', 'enterprise')),
    ADD COLUMN changed_xid             xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX servers_changed ON servers (changed_xid);
CREATE INDEX servers_dedicated ON servers (dedicated_for_tenant_id) WHERE dedicated_for_tenant_id IS NOT NULL;

CREATE TABLE db_shards (
    shard_id                text PRIMARY KEY,
    server_id               text NOT NULL REFERENCES servers (server_id),
    region                  text NOT NULL CHECK (region IN ('sg', 'eu', 'us')),
    on_node                 boolean NOT NULL DEFAULT false, -- part of a node, which alone may use it
    plan_tier_lock          text CHECK (plan_tier_lock IN ('trial', 'starter', 'business', 'enterprise')),
    dedicated_for_tenant_id text,
    current_tenant_count    integer NOT NULL DEFAULT 0 CHECK (current_tenant_count >= 0),
    tenant_capacity         integer NOT NULL CHECK (tenant_capacity > 0),
    status                  text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'draining', 'terminated', 'failed')),
    created_at              timestamptz NOT NULL DEFAULT now(),
    changed_xid             xid8 NOT NULL DEFAULT pg_current_xact_id()
) WITH (fillfactor = 70);
CREATE INDEX db_shards_changed ON db_shards (changed_xid);
CREATE INDEX db_shards_by_server ON db_shards (server_id);

CREATE TABLE redis_pools (
    pool_id                 text PRIMARY KEY,
    server_id               text NOT NULL REFERENCES servers (server_id),
    region                  text NOT NULL CHECK (region IN ('sg', 'eu', 'us')),
    on_node                 boolean NOT NULL DEFAULT false,
    dedicated_for_tenant_id text,
    current_tenants         integer NOT NULL DEFAULT 0 CHECK (current_tenants >= 0),
    tenant_capacity         integer NOT NULL CHECK (tenant_capacity > 0),
    status                  text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'draining', 'terminated', 'failed')),
    created_at              timestamptz NOT NULL DEFAULT now(),
    changed_xid             xid8 NOT NULL DEFAULT pg_current_xact_id()
) WITH (fillfactor = 70);
CREATE INDEX redis_pools_changed ON redis_pools (changed_xid);
CREATE INDEX redis_pools_by_server ON redis_pools (server_id);

CREATE TABLE tenants (
    tenant_id         text PRIMARY KEY,
    slug              text NOT NULL,
    org_id            text NOT NULL REFERENCES orgs (org_id),
    parent_org_id     text REFERENCES orgs (org_id),
    region            text NOT NULL CHECK (region IN ('sg', 'eu', 'us')),
    plan              text NOT NULL CHECK (plan IN ('trial', 'starter', 'business', 'enterprise')),
    expected_users    integer NOT NULL CHECK (expected_users >= 0),
    storage_quota_gb  integer NOT NULL CHECK (storage_quota_gb >= 0),
    data_residency    text,
    require_tags      text[] NOT NULL DEFAULT '{}',
    disallow_tags     text[] NOT NULL DEFAULT '{}',
    dedicated_redis   boolean NOT NULL DEFAULT false,
    apps              text[] NOT NULL DEFAULT '{}',
    policy            text NOT NULL CHECK (policy IN ('shared', 'one_tenant_one_server')),
    request_hash      bytea NOT NULL,

    state             text NOT NULL CHECK (state IN ('trial', 'provisioning', 'active', 'suspended', 'grace_period', 'terminated', 'data_purged', 'failed')),
    status_reason     text NOT NULL DEFAULT '',
    status_message    text NOT NULL DEFAULT '',
    generation        integer NOT NULL DEFAULT 1 CHECK (generation >= 1),
    -- the last state whose effects on the host are all in place
    converged_state   text NOT NULL DEFAULT '',
    site              text NOT NULL DEFAULT '',
    -- when the state's timer runs out: trial expiry, grace period, retention
    deadline_at       timestamptz,
    -- roles that this tenant waits for, and since when
    waiting_since     timestamptz,
    waiting_roles     text[] NOT NULL DEFAULT '{}',
    cancel_requested_at timestamptz,
    created_by        text NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now(),
    active_at         timestamptz
) WITH (fillfactor = 80);
-- A slug is free again when nothing is left of the tenant.
CREATE UNIQUE INDEX tenants_slug ON tenants (slug) WHERE state <> 'data_purged';
CREATE INDEX tenants_listing ON tenants (created_at DESC, tenant_id DESC);
CREATE INDEX tenants_by_org ON tenants (org_id);
CREATE INDEX tenants_waiting ON tenants (region, waiting_since) WHERE waiting_since IS NOT NULL;
CREATE INDEX tenants_deadline ON tenants (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE INDEX tenants_unsettled ON tenants (updated_at) WHERE state IN ('trial', 'provisioning') OR converged_state <> state;

CREATE TABLE idempotency_keys (
    subject      text NOT NULL,
    key          text NOT NULL,
    request_hash bytea NOT NULL,
    tenant_id    text NOT NULL REFERENCES tenants (tenant_id),
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (subject, key)
);

-- Pre-made sites (placement-policy §2.6). A site that is being built is reserved by
-- nobody, until its reservation runs out.
CREATE TABLE site_pool (
    pool_site_id   text PRIMARY KEY,
    app_server_id  text NOT NULL REFERENCES servers (server_id),
    db_shard_id    text NOT NULL REFERENCES db_shards (shard_id),
    site_name      text NOT NULL UNIQUE,
    database_name  text NOT NULL,
    state          text NOT NULL CHECK (state IN ('available', 'reserved', 'assigned', 'failed', 'draining')),
    tenant_id      text REFERENCES tenants (tenant_id),
    reserved_until timestamptz,
    reason         text NOT NULL DEFAULT '',
    created_at     timestamptz NOT NULL DEFAULT now(),
    available_at   timestamptz,
    dropped_at     timestamptz, -- of a failed one: nothing of it is left on its host
    updated_at     timestamptz NOT NULL DEFAULT now(),
    changed_xid    xid8 NOT NULL DEFAULT pg_current_xact_id(),
    CHECK ((state = 'reserved') = (reserved_until IS NOT NULL)),
    CHECK (state <> 'assigned' OR tenant_id IS NOT NULL),
    CHECK (state <> 'available' OR tenant_id IS NULL)
);
CREATE INDEX site_pool_by_server ON site_pool (app_server_id, state);
CREATE INDEX site_pool_changed ON site_pool (changed_xid);
CREATE INDEX site_pool_reserved ON site_pool (reserved_until) WHERE state = 'reserved';
CREATE UNIQUE INDEX site_pool_tenant ON site_pool (tenant_id) WHERE tenant_id IS NOT NULL AND state IN ('reserved', 'assigned');

-- placement-policy §7. The live allocation of a tenant is the one not released.
CREATE TABLE tenant_allocations (
    allocation_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id      text NOT NULL REFERENCES tenants (tenant_id),
    app_server_id  text NOT NULL REFERENCES servers (server_id),
    db_shard_id    text NOT NULL REFERENCES db_shards (shard_id),
    redis_pool_id  text NOT NULL REFERENCES redis_pools (pool_id),
    pool_site_id   text REFERENCES site_pool (pool_site_id) ON DELETE SET NULL, -- NULL: made on demand, or dropped since
    site_name      text NOT NULL,
    database_name  text NOT NULL,
    infra_provider text NOT NULL REFERENCES infra_providers (id),
    algorithm      text NOT NULL,
    dedicated      boolean NOT NULL DEFAULT false,
    created_at     timestamptz NOT NULL DEFAULT now(),
    released_at    timestamptz,
    release_reason text NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX tenant_allocations_live ON tenant_allocations (tenant_id) WHERE released_at IS NULL;
CREATE INDEX tenant_allocations_by_server ON tenant_allocations (app_server_id) WHERE released_at IS NULL;

-- Every decision, also those that placed nobody.
CREATE TABLE allocation_snapshots (
    snapshot_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id     text NOT NULL REFERENCES tenants (tenant_id),
    allocation_id bigint REFERENCES tenant_allocations (allocation_id),
    outcome       text NOT NULL,
    code          text NOT NULL DEFAULT '',
    algorithm     text NOT NULL,
    decision_log  jsonb NOT NULL,
    policy_json   jsonb NOT NULL,
    actor         text NOT NULL DEFAULT 'placement_engine',
    created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX allocation_snapshots_by_tenant ON allocation_snapshots (tenant_id, snapshot_id);

CREATE TABLE tenant_lifecycle_events (
    event_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id  text NOT NULL REFERENCES tenants (tenant_id),
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    from_state text NOT NULL,
    to_state   text NOT NULL,
    step       text NOT NULL,
    actor      text NOT NULL,
    reason     text NOT NULL DEFAULT '',
    message    text NOT NULL DEFAULT '',
    dedup_key  text,
    UNIQUE (tenant_id, dedup_key)
);
CREATE INDEX tenant_lifecycle_events_by_tenant ON tenant_lifecycle_events (tenant_id, event_id);

-- An operator's override stands until the tenant is placed (placement-policy §8).
CREATE TABLE placement_overrides (
    override_id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id           text NOT NULL,
    force_app_server_id text,
    force_db_shard_id   text,
    reason              text NOT NULL,
    actor               text NOT NULL,
    accepted            boolean NOT NULL,
    refusal_code        text NOT NULL DEFAULT '',
    refusal             text NOT NULL DEFAULT '',
    created_at          timestamptz NOT NULL DEFAULT now(),
    used_at             timestamptz
);
CREATE INDEX placement_overrides_by_tenant ON placement_overrides (tenant_id, override_id);

-- placement-policy §3
CREATE TABLE scaling_events (
    event_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    region      text NOT NULL,
    role        text NOT NULL,
    trigger     text NOT NULL CHECK (trigger IN ('scale_out_required', 'threshold', 'warm_pool')),
    waiting     integer NOT NULL DEFAULT 0, -- tenants that were short of this role
    requested   integer NOT NULL,           -- servers
    made        integer NOT NULL DEFAULT 0, -- that became active
    server_ids  text[] NOT NULL DEFAULT '{}',
    tier_locks  text[] NOT NULL DEFAULT '{}', -- of the shards that they become, '' for none
    workflow_id text NOT NULL,
    round       text NOT NULL, -- of the run: a repeated step meets its event
    message     text NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    UNIQUE (workflow_id, round)
);
CREATE INDEX scaling_events_by_region ON scaling_events (region, role, event_id);

-- Low watermark, target and SLO of site pools, per plan tier (sites per app server).
CREATE TABLE site_pool_policies (
    plan          text PRIMARY KEY CHECK (plan IN ('trial', 'starter', 'business', 'enterprise')),
    low_watermark integer NOT NULL CHECK (low_watermark >= 0),
    target        integer NOT NULL CHECK (target >= low_watermark AND target <= 100),
    slo_seconds   integer NOT NULL CHECK (slo_seconds > 0) -- from below the watermark back to the target
);
INSERT INTO site_pool_policies (plan, low_watermark, target, slo_seconds) VALUES
    ('trial', 2, 3, 600), ('starter', 2, 3, 600), ('business', 1, 2, 600), ('enterprise', 0, 0, 600);

-- Warm servers per region and plan tier: booted, enrolled, with a site.
CREATE TABLE warm_pools (
    region     text NOT NULL CHECK (region IN ('sg', 'eu', 'us')),
    plan       text NOT NULL CHECK (plan IN ('trial', 'starter', 'business', 'enterprise')),
    target     integer NOT NULL CHECK (target >= 0 AND target <= 100),
    updated_by text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (region, plan)
);

-- +goose StatementBegin
CREATE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_xid := pg_current_xact_id();
    RETURN NEW;
END $$;
-- +goose StatementEnd

-- Heartbeats change rows all the time; only a change of memory by some points, or of
-- what else placement looks at, is noted. A statement that notes its change itself
-- spares the call.
CREATE TRIGGER servers_note_change BEFORE UPDATE ON servers FOR EACH ROW
    WHEN (OLD.changed_xid = NEW.changed_xid AND (OLD.status IS DISTINCT FROM NEW.status OR OLD.tenant_count IS DISTINCT FROM NEW.tenant_count
       OR OLD.dedicated_for_tenant_id IS DISTINCT FROM NEW.dedicated_for_tenant_id OR OLD.accepts_trial IS DISTINCT FROM NEW.accepts_trial
       OR OLD.warm_plan IS DISTINCT FROM NEW.warm_plan OR OLD.image IS DISTINCT FROM NEW.image
       OR (OLD.agent_status = 'connected') IS DISTINCT FROM (NEW.agent_status = 'connected')
       OR floor(OLD.memory_pct / 5) IS DISTINCT FROM floor(NEW.memory_pct / 5)))
    EXECUTE FUNCTION note_change();
CREATE TRIGGER db_shards_note_change BEFORE UPDATE ON db_shards FOR EACH ROW WHEN (OLD.changed_xid = NEW.changed_xid) EXECUTE FUNCTION note_change();
CREATE TRIGGER redis_pools_note_change BEFORE UPDATE ON redis_pools FOR EACH ROW WHEN (OLD.changed_xid = NEW.changed_xid) EXECUTE FUNCTION note_change();
CREATE TRIGGER site_pool_note_change BEFORE UPDATE ON site_pool FOR EACH ROW WHEN (OLD.changed_xid = NEW.changed_xid) EXECUTE FUNCTION note_change();

-- Tenants that a new shard, pool or node has room for.
CREATE TABLE capacity_defaults (
    role            text PRIMARY KEY CHECK (role IN ('db-shard', 'redis-pool', 'node')),
    tenant_capacity integer NOT NULL CHECK (tenant_capacity > 0)
);
INSERT INTO capacity_defaults VALUES ('db-shard', 100), ('redis-pool', 200), ('node', 20);

-- A server that became active is ready for placement: a db-shard or node has its
-- shard, a redis-pool or node its pool, from the same statement on. What leaves the
-- fleet takes them along.
-- +goose StatementBegin
CREATE FUNCTION keep_shards_and_pools() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    capacity integer;
BEGIN
    IF NEW.status IN ('draining', 'terminated') THEN
        UPDATE site_pool SET state = 'draining', updated_at = now()
        WHERE state = 'available' AND (app_server_id = NEW.server_id OR db_shard_id IN (SELECT shard_id FROM db_shards WHERE server_id = NEW.server_id));
    END IF;
    SELECT tenant_capacity INTO capacity FROM capacity_defaults c WHERE c.role = NEW.role;
    IF NEW.role NOT IN ('db-shard', 'redis-pool', 'node') OR NEW.status = 'provisioning' THEN
        RETURN NULL;
    END IF;
    IF NEW.status = 'active' THEN
        IF NEW.role IN ('db-shard', 'node') THEN
            INSERT INTO db_shards (shard_id, server_id, region, on_node, plan_tier_lock, tenant_capacity)
            VALUES (NEW.server_id, NEW.server_id, NEW.region, NEW.role = 'node', NEW.plan_tier_lock, capacity)
            ON CONFLICT (shard_id) DO UPDATE SET status = 'active';
        END IF;
        IF NEW.role IN ('redis-pool', 'node') THEN
            INSERT INTO redis_pools (pool_id, server_id, region, on_node, tenant_capacity)
            VALUES (NEW.server_id, NEW.server_id, NEW.region, NEW.role = 'node', capacity)
            ON CONFLICT (pool_id) DO UPDATE SET status = 'active';
        END IF;
    ELSE
        UPDATE db_shards SET status = NEW.status WHERE server_id = NEW.server_id AND status IS DISTINCT FROM NEW.status;
        UPDATE redis_pools SET status = NEW.status WHERE server_id = NEW.server_id AND status IS DISTINCT FROM NEW.status;
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER servers_keep_shards_and_pools AFTER UPDATE ON servers FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION keep_shards_and_pools();

-- Servers that were active before there was placement.
INSERT INTO db_shards (shard_id, server_id, region, on_node, tenant_capacity)
SELECT server_id, server_id, region, role = 'node', CASE WHEN role = 'node' THEN 20 ELSE 100 END
FROM servers WHERE status = 'active' AND role IN ('db-shard', 'node');
INSERT INTO redis_pools (pool_id, server_id, region, on_node, tenant_capacity)
SELECT server_id, server_id, region, role = 'node', CASE WHEN role = 'node' THEN 20 ELSE 200 END
FROM servers WHERE status = 'active' AND role IN ('redis-pool', 'node');

-- reserve_placement gives a tenant its place, in one round trip (placement-policy
-- §2.6, §6, §7). It locks the rows that it needs before it writes any, and never
-- waits: a row that another tenant's transaction holds is a lost race, and so is one
-- that has changed. The answer says which row it was: 'placed', 'already' with the
-- allocation that there is, 'lost' and the row, or 'gone' when the tenant no longer
-- asks. A lost race has locked rows and written none: its commit waits for no disk, so
-- that it doesn't keep the locks meanwhile. It must be called in a transaction of its own.
-- +goose StatementBegin
CREATE FUNCTION reserve_placement(
    p_tenant text, p_generation integer, p_app text, p_shard text, p_pool text, p_site text, p_site_name text, p_database text,
    p_mode text, p_algorithm text, p_audit_algorithm text, p_dedicates boolean, p_override boolean,
    p_memory_max double precision, p_max_tenants integer, p_reserve_seconds double precision,
    p_decision jsonb, p_policy jsonb, p_reason text, p_actor text,
    OUT outcome text, OUT lost text, OUT lost_id text, OUT allocation bigint)
LANGUAGE plpgsql AS $$
DECLARE
    t tenants%ROWTYPE;
    a_provider text;
    a_region text;
    a_role text;
    alone boolean;
    own_pool boolean;
    v_site text;
    v_site_name text := p_site_name;
    v_database text := p_database;
BEGIN
    SELECT * INTO t FROM tenants WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
    IF NOT FOUND OR t.generation <> p_generation OR t.state NOT IN ('trial', 'provisioning') OR t.cancel_requested_at IS NOT NULL THEN
        outcome := 'gone';
        RETURN;
    END IF;
    SELECT allocation_id INTO allocation FROM tenant_allocations WHERE tenant_id = p_tenant AND released_at IS NULL;
    IF FOUND THEN
        outcome := 'already';
        RETURN;
    END IF;
    alone := t.plan = 'enterprise';
    own_pool := alone OR t.dedicated_redis;
    outcome := 'lost';

    IF p_site IS NOT NULL THEN
        lost := 'site'; lost_id := p_site;
        SELECT pool_site_id, site_name, database_name INTO v_site, v_site_name, v_database FROM site_pool
        WHERE pool_site_id = p_site AND state = 'available' AND app_server_id = p_app AND db_shard_id = p_shard
        FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN PERFORM set_config('synchronous_commit', 'off', true); RETURN; END IF;
    END IF;

    lost := 'app_server'; lost_id := p_app;
    SELECT s.infra_provider, s.region, s.role INTO a_provider, a_region, a_role FROM servers s
    WHERE s.server_id = p_app AND s.status = 'active' AND s.role IN ('app', 'node') AND s.region = t.region
      AND (s.dedicated_for_tenant_id IS NULL OR s.dedicated_for_tenant_id = p_tenant)
      AND (s.tenant_count = 0 OR NOT (alone OR (p_mode = 'one_tenant_one_server' AND NOT p_override)))
      AND (p_override OR ((s.accepts_trial OR t.plan <> 'trial') AND COALESCE(s.memory_pct, 0) < p_memory_max AND s.tenant_count < p_max_tenants
           AND s.tags @> t.require_tags AND NOT s.tags && t.disallow_tags
           -- a warm server whose agent is silent could not be used at once
           AND (s.warm_plan IS NULL OR s.tenant_count > 0 OR s.agent_status = 'connected')))
      AND EXISTS (SELECT FROM infra_providers i WHERE i.id = s.infra_provider AND (p_override OR (i.enabled AND s.region = ANY (i.regions))))
      AND (t.data_residency IS NULL OR EXISTS (SELECT FROM residency_zones z WHERE z.country = t.data_residency
           AND s.region = ANY (z.regions) AND (z.providers IS NULL OR s.infra_provider = ANY (z.providers))))
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN PERFORM set_config('synchronous_commit', 'off', true); RETURN; END IF;

    lost := 'db_shard'; lost_id := p_shard;
    PERFORM FROM db_shards d
    WHERE d.shard_id = p_shard AND d.status = 'active' AND d.region = a_region
      AND CASE t.plan WHEN 'trial' THEN d.plan_tier_lock IS NULL OR d.plan_tier_lock = 'trial' WHEN 'starter' THEN d.plan_tier_lock IS NULL
                      WHEN 'business' THEN d.plan_tier_lock = 'business' ELSE d.plan_tier_lock IS DISTINCT FROM 'trial' END
      AND (d.dedicated_for_tenant_id IS NULL OR d.dedicated_for_tenant_id = p_tenant)
      AND (d.current_tenant_count = 0 OR NOT alone)
      AND (p_override OR d.current_tenant_count < d.tenant_capacity)
      AND (a_role = 'node') = d.on_node AND (NOT d.on_node OR d.server_id = p_app)
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN PERFORM set_config('synchronous_commit', 'off', true); RETURN; END IF;

    lost := 'redis_pool'; lost_id := p_pool;
    PERFORM FROM redis_pools r
    WHERE r.pool_id = p_pool AND r.status = 'active' AND r.region = a_region
      AND (r.dedicated_for_tenant_id IS NULL OR r.dedicated_for_tenant_id = p_tenant)
      AND (r.current_tenants = 0 OR NOT own_pool)
      AND (p_override OR r.current_tenants < r.tenant_capacity)
      AND (a_role = 'node') = r.on_node AND (NOT r.on_node OR r.server_id = p_app)
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN PERFORM set_config('synchronous_commit', 'off', true); RETURN; END IF;

    -- Everything is held: from here on nothing can fail but the database itself. That one
    -- statement writes all of it, and notes the changes itself, is for speed: make bench.
    WITH site AS (
        UPDATE site_pool SET state = 'reserved', tenant_id = p_tenant, updated_at = now(), changed_xid = pg_current_xact_id(),
            reserved_until = now() + make_interval(secs => p_reserve_seconds) WHERE pool_site_id = p_site
    ), server AS (
        UPDATE servers SET tenant_count = tenant_count + 1, updated_at = now(), changed_xid = pg_current_xact_id(),
            dedicated_for_tenant_id = CASE WHEN p_dedicates OR alone THEN p_tenant ELSE dedicated_for_tenant_id END WHERE server_id = p_app
    ), shard AS (
        UPDATE db_shards SET current_tenant_count = current_tenant_count + 1, changed_xid = pg_current_xact_id(),
            dedicated_for_tenant_id = CASE WHEN alone THEN p_tenant ELSE dedicated_for_tenant_id END WHERE shard_id = p_shard
    ), redis AS (
        UPDATE redis_pools SET current_tenants = current_tenants + 1, changed_xid = pg_current_xact_id(),
            dedicated_for_tenant_id = CASE WHEN own_pool THEN p_tenant ELSE dedicated_for_tenant_id END WHERE pool_id = p_pool
    ), tenant AS (
        UPDATE tenants SET state = 'provisioning', status_reason = '', status_message = '', waiting_since = NULL, waiting_roles = '{}', updated_at = now()
        WHERE tenant_id = p_tenant
    ), event AS (
        INSERT INTO tenant_lifecycle_events (tenant_id, from_state, to_state, step, actor, reason)
        VALUES (p_tenant, t.state, 'provisioning', 'placed', p_actor, p_reason)
    ), placed AS (
        INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, pool_site_id, site_name, database_name, infra_provider, algorithm, dedicated)
        VALUES (p_tenant, p_app, p_shard, p_pool, p_site, v_site_name, v_database, a_provider, p_algorithm, p_dedicates OR alone)
        RETURNING allocation_id
    )
    INSERT INTO allocation_snapshots (tenant_id, allocation_id, outcome, algorithm, decision_log, policy_json, actor)
    SELECT p_tenant, allocation_id, CASE WHEN p_site IS NULL THEN 'on_demand' ELSE 'placed' END, p_audit_algorithm, p_decision, p_policy, p_actor FROM placed
    RETURNING allocation_id INTO allocation;
    outcome := 'placed'; lost := NULL; lost_id := NULL;
END $$;
-- +goose StatementEnd
