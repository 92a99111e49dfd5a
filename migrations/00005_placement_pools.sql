-- +goose Up

-- Constraints with names (placement-pools, "CC Support"). Case does not matter in a
-- name: pool_id is the name in lower case. Tags are lower-case.
CREATE TABLE placement_pools (
    pool_id       text PRIMARY KEY CHECK (pool_id = lower(name)),
    name          text NOT NULL,
    require_tags  text[] NOT NULL DEFAULT '{}' CHECK (require_tags::text = lower(require_tags::text)),
    disallow_tags text[] NOT NULL DEFAULT '{}' CHECK (disallow_tags::text = lower(disallow_tags::text)),
    is_default    boolean NOT NULL DEFAULT false,
    created_by    text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_by    text NOT NULL,
    updated_at    timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX placement_pools_default ON placement_pools (is_default) WHERE is_default;

-- A pool that an org is associated with can't go.
CREATE TABLE org_placement_pools (
    org_id     text NOT NULL REFERENCES orgs (org_id),
    pool_id    text NOT NULL REFERENCES placement_pools (pool_id),
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, pool_id)
);
CREATE INDEX org_placement_pools_by_pool ON org_placement_pools (pool_id, org_id);

-- The pools that apply to an org's tenants: those that it is associated with, or else
-- the default one.
-- +goose StatementBegin
CREATE FUNCTION placement_pools_of(p_org text) RETURNS SETOF placement_pools LANGUAGE sql STABLE AS $$
    SELECT p.* FROM placement_pools p JOIN org_placement_pools o ON o.pool_id = p.pool_id WHERE o.org_id = p_org
    UNION ALL
    SELECT p.* FROM placement_pools p WHERE p.is_default AND NOT EXISTS (SELECT FROM org_placement_pools o WHERE o.org_id = p_org)
$$;
-- +goose StatementEnd

-- Neither a running server's tags nor a tenant's constraint change (placement-pools,
-- "Are Placement Pools dynamic?"), whoever asks.
-- +goose StatementBegin
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % is fixed', TG_ARGV[0], TG_TABLE_NAME USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
END $$;
-- +goose StatementEnd
CREATE TRIGGER servers_tags_fixed BEFORE UPDATE OF tags ON servers FOR EACH ROW
    WHEN (OLD.tags IS DISTINCT FROM NEW.tags) EXECUTE FUNCTION refuse_change('tags');
CREATE TRIGGER tenants_constraint_fixed BEFORE UPDATE OF require_tags, disallow_tags ON tenants FOR EACH ROW
    WHEN (OLD.require_tags IS DISTINCT FROM NEW.require_tags OR OLD.disallow_tags IS DISTINCT FROM NEW.disallow_tags) EXECUTE FUNCTION refuse_change('constraint');

-- What the agent says that its host was given; NULL until it says so.
ALTER TABLE servers ADD COLUMN agent_tags text[];

ALTER TABLE placement_overrides ADD COLUMN ignore_constraint boolean NOT NULL DEFAULT false;

-- The tags of the servers that a round asks for, beside server_ids.
ALTER TABLE scaling_events ADD COLUMN server_tags jsonb NOT NULL DEFAULT '[]';

-- As before, but for the constraint: the pools' counts, too, and an override skips it
-- only when it says so: processes of the version before never do. A server whose tags are wrong by now is lost to 'constraint'.
DROP FUNCTION reserve_placement;
-- +goose StatementBegin
CREATE FUNCTION reserve_placement(
    p_tenant text, p_generation integer, p_app text, p_shard text, p_pool text, p_site text, p_site_name text, p_database text,
    p_mode text, p_algorithm text, p_audit_algorithm text, p_dedicates boolean, p_override boolean,
    p_memory_max double precision, p_max_tenants integer, p_reserve_seconds double precision,
    p_decision jsonb, p_policy jsonb, p_reason text, p_actor text, p_any_tags boolean DEFAULT false,
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
           -- a warm server whose agent is silent could not be used at once
           AND (s.warm_plan IS NULL OR s.tenant_count > 0 OR s.agent_status = 'connected')))
      -- satisfying the request's constraint and every pool's is what satisfying their union is
      AND (p_any_tags OR (s.tags @> t.require_tags AND NOT s.tags && t.disallow_tags
           AND NOT EXISTS (SELECT FROM placement_pools_of(t.org_id) p WHERE NOT s.tags @> p.require_tags OR s.tags && p.disallow_tags)))
      AND EXISTS (SELECT FROM infra_providers i WHERE i.id = s.infra_provider AND (p_override OR (i.enabled AND s.region = ANY (i.regions))))
      AND (t.data_residency IS NULL OR EXISTS (SELECT FROM residency_zones z WHERE z.country = t.data_residency
           AND s.region = ANY (z.regions) AND (z.providers IS NULL OR s.infra_provider = ANY (z.providers))))
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        -- Tags are fixed: when they are what is wrong a pool has changed, and the tenant's
        -- constraint is to be read again.
        IF NOT p_any_tags AND EXISTS (SELECT FROM servers s WHERE s.server_id = p_app AND (NOT s.tags @> t.require_tags OR s.tags && t.disallow_tags
            OR EXISTS (SELECT FROM placement_pools_of(t.org_id) p WHERE NOT s.tags @> p.require_tags OR s.tags && p.disallow_tags))) THEN
            lost := 'constraint';
        END IF;
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN;
    END IF;

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
