-- +goose Up

-- What agents measure beside memory, in percent, each averaged over some minutes by the
-- agent but for the disk; NULL where nobody says so. The disk is the one that MariaDB's
-- data is on, the memory what Redis may use.
ALTER TABLE servers
    ADD COLUMN cpu_pct          double precision,
    ADD COLUMN worker_slots_pct double precision,
    ADD COLUMN db_disk_pct      double precision,
    ADD COLUMN redis_memory_pct double precision;

-- As before, with what is measured. A shard and a pool are looked at again when their
-- server has changed.
DROP TRIGGER servers_note_change ON servers;
CREATE TRIGGER servers_note_change BEFORE UPDATE ON servers FOR EACH ROW
    WHEN (OLD.changed_xid = NEW.changed_xid AND (OLD.status IS DISTINCT FROM NEW.status OR OLD.tenant_count IS DISTINCT FROM NEW.tenant_count
       OR OLD.dedicated_for_tenant_id IS DISTINCT FROM NEW.dedicated_for_tenant_id OR OLD.accepts_trial IS DISTINCT FROM NEW.accepts_trial
       OR OLD.warm_plan IS DISTINCT FROM NEW.warm_plan OR OLD.image IS DISTINCT FROM NEW.image OR OLD.fleet_id IS DISTINCT FROM NEW.fleet_id
       OR (OLD.agent_status = 'connected') IS DISTINCT FROM (NEW.agent_status = 'connected')
       OR floor(OLD.memory_pct / 5) IS DISTINCT FROM floor(NEW.memory_pct / 5)
       OR floor(OLD.cpu_pct / 5) IS DISTINCT FROM floor(NEW.cpu_pct / 5)
       OR floor(OLD.worker_slots_pct / 5) IS DISTINCT FROM floor(NEW.worker_slots_pct / 5)
       OR floor(OLD.db_disk_pct / 5) IS DISTINCT FROM floor(NEW.db_disk_pct / 5)
       OR floor(OLD.redis_memory_pct / 5) IS DISTINCT FROM floor(NEW.redis_memory_pct / 5)))
    EXECUTE FUNCTION note_change();

-- Tenants land on servers of fleets that serve them, and on those of no fleet.
-- +goose StatementBegin
CREATE FUNCTION note_fleet_serves() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM servers WHERE fleet_id = NEW.fleet_id ORDER BY server_id FOR NO KEY UPDATE; -- in the order of heartbeats
    UPDATE servers SET changed_xid = pg_current_xact_id() WHERE fleet_id = NEW.fleet_id;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER fleets_note_serves AFTER UPDATE OF serves_tenants ON fleets FOR EACH ROW
    WHEN (OLD.serves_tenants IS DISTINCT FROM NEW.serves_tenants) EXECUTE FUNCTION note_fleet_serves();

-- Whether a server is not empty because of instances, whosever they are.
CREATE FUNCTION runs_instances(p_server text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM instances i WHERE i.server_id = p_server AND i.state <> 'stopped')
$$;

-- Whether a server takes no instances, because what is on it is one tenant's alone: the
-- server, its shard or its pool. A warm one is about to be.
CREATE FUNCTION kept_for_tenants(p_server text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM servers s WHERE s.server_id = p_server AND (s.dedicated_for_tenant_id IS NOT NULL OR (s.warm_plan IS NOT NULL AND s.tenant_count = 0)))
        OR EXISTS (SELECT FROM db_shards d WHERE d.server_id = p_server AND d.dedicated_for_tenant_id IS NOT NULL)
        OR EXISTS (SELECT FROM redis_pools r WHERE r.server_id = p_server AND r.dedicated_for_tenant_id IS NOT NULL)
$$;

-- A server's first instance and its last change what it is to tenants who must be alone.
-- Whoever comes and whoever goes wait for each other, so that the last one sees that it is.
-- +goose StatementBegin
CREATE FUNCTION note_instances() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM servers WHERE server_id = NEW.server_id FOR NO KEY UPDATE;
    IF NOT EXISTS (SELECT FROM instances i WHERE i.server_id = NEW.server_id AND i.state <> 'stopped' AND i.instance_id <> NEW.instance_id) THEN
        UPDATE servers SET changed_xid = pg_current_xact_id() WHERE server_id = NEW.server_id;
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER instances_came AFTER INSERT ON instances FOR EACH ROW WHEN (NEW.state <> 'stopped') EXECUTE FUNCTION note_instances();
CREATE TRIGGER instances_went AFTER UPDATE OF state ON instances FOR EACH ROW
    WHEN ((OLD.state = 'stopped') <> (NEW.state = 'stopped')) EXECUTE FUNCTION note_instances();

-- hold_for_tenant keeps instances off the server that a shard or pool is on, for the rest
-- of the transaction, and reports whether it runs none; NULL when somebody else holds its
-- row. The app server's is held already.
-- +goose StatementBegin
CREATE FUNCTION hold_for_tenant(p_server text, p_app text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF p_server <> p_app THEN
        PERFORM FROM servers WHERE server_id = p_server FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN RETURN NULL; END IF;
    END IF;
    RETURN NOT runs_instances(p_server);
END $$;
-- +goose StatementEnd

-- As before, but that
-- - a tenant that is to be alone on its server is so on its shard and pool, too, and these
--   are its alone from then on. With an override, which may put it beside others, what is empty is;
-- - alone means that no instances run there either;
-- - servers of fleets that do not serve tenants are passed over, but for an override and for
--   a tenant's own;
-- - CPU, worker slots, database disk and Redis memory are looked at. A limit that is NULL, as
--   from processes of the version before, and a value that is not known, refuse nobody.
DROP FUNCTION reserve_placement;
-- +goose StatementBegin
CREATE FUNCTION reserve_placement(
    p_tenant text, p_generation integer, p_app text, p_shard text, p_pool text, p_site text, p_site_name text, p_database text,
    p_mode text, p_algorithm text, p_audit_algorithm text, p_dedicates boolean, p_override boolean,
    p_memory_max double precision, p_max_tenants integer, p_reserve_seconds double precision,
    p_decision jsonb, p_policy jsonb, p_reason text, p_actor text, p_any_tags boolean DEFAULT false,
    p_cpu_max double precision DEFAULT NULL, p_worker_slots_max double precision DEFAULT NULL,
    p_db_disk_max double precision DEFAULT NULL, p_redis_memory_max double precision DEFAULT NULL,
    OUT outcome text, OUT lost text, OUT lost_id text, OUT allocation bigint)
LANGUAGE plpgsql AS $$
DECLARE
    t tenants%ROWTYPE;
    a_provider text;
    a_region text;
    a_role text;
    alone boolean; -- on server, shard and pool
    own_pool boolean;
    d_alone boolean; -- the shard becomes the tenant's alone
    r_alone boolean;
    d_host text;
    r_host text;
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
    alone := t.plan = 'enterprise' OR (p_mode = 'one_tenant_one_server' AND NOT p_override);
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
      AND (s.tenant_count = 0 OR NOT (alone OR p_dedicates))
      AND (p_override OR ((s.accepts_trial OR t.plan <> 'trial') AND COALESCE(s.memory_pct, 0) < p_memory_max AND s.tenant_count < p_max_tenants
           AND (s.dedicated_for_tenant_id IS NOT NULL OR NOT EXISTS (SELECT FROM fleets f WHERE f.fleet_id = s.fleet_id AND NOT f.serves_tenants))
           -- what an empty server is busy with is its own start; what is not known refuses nobody
           AND (alone OR (COALESCE(s.cpu_pct < p_cpu_max, true) AND COALESCE(s.worker_slots_pct < p_worker_slots_max, true)))
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
    -- Whoever allocates an instance holds the server's row: one that came before is seen by
    -- a statement that begins now, and the next one sees this tenant.
    IF (alone OR p_dedicates) AND runs_instances(p_app) THEN PERFORM set_config('synchronous_commit', 'off', true); RETURN; END IF;

    lost := 'db_shard'; lost_id := p_shard;
    SELECT d.server_id, alone OR (p_dedicates AND d.current_tenant_count = 0) INTO d_host, d_alone FROM db_shards d
    WHERE d.shard_id = p_shard AND d.status = 'active' AND d.region = a_region
      AND CASE t.plan WHEN 'trial' THEN d.plan_tier_lock IS NULL OR d.plan_tier_lock = 'trial' WHEN 'starter' THEN d.plan_tier_lock IS NULL
                      WHEN 'business' THEN d.plan_tier_lock = 'business' ELSE d.plan_tier_lock IS DISTINCT FROM 'trial' END
      AND (d.dedicated_for_tenant_id IS NULL OR d.dedicated_for_tenant_id = p_tenant)
      AND (d.current_tenant_count = 0 OR NOT alone)
      AND (p_override OR (d.current_tenant_count < d.tenant_capacity AND EXISTS (
           SELECT FROM servers h LEFT JOIN fleets f ON f.fleet_id = h.fleet_id WHERE h.server_id = d.server_id
             AND COALESCE(h.db_disk_pct < p_db_disk_max, true) AND (d.on_node OR d.dedicated_for_tenant_id IS NOT NULL OR f.serves_tenants IS NOT FALSE))))
      AND (a_role = 'node') = d.on_node AND (NOT d.on_node OR d.server_id = p_app)
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN PERFORM set_config('synchronous_commit', 'off', true); RETURN; END IF;
    IF d_alone THEN
        d_alone := hold_for_tenant(d_host, p_app);
        IF d_alone IS NULL OR alone AND NOT d_alone THEN PERFORM set_config('synchronous_commit', 'off', true); RETURN; END IF;
    END IF;

    lost := 'redis_pool'; lost_id := p_pool;
    SELECT r.server_id, own_pool OR (p_dedicates AND r.current_tenants = 0) INTO r_host, r_alone FROM redis_pools r
    WHERE r.pool_id = p_pool AND r.status = 'active' AND r.region = a_region
      AND (r.dedicated_for_tenant_id IS NULL OR r.dedicated_for_tenant_id = p_tenant)
      AND (r.current_tenants = 0 OR NOT own_pool)
      AND (p_override OR (r.current_tenants < r.tenant_capacity AND EXISTS (
           SELECT FROM servers h LEFT JOIN fleets f ON f.fleet_id = h.fleet_id WHERE h.server_id = r.server_id
             AND COALESCE(h.redis_memory_pct < p_redis_memory_max, true) AND (r.on_node OR r.dedicated_for_tenant_id IS NOT NULL OR f.serves_tenants IS NOT FALSE))))
      AND (a_role = 'node') = r.on_node AND (NOT r.on_node OR r.server_id = p_app)
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN PERFORM set_config('synchronous_commit', 'off', true); RETURN; END IF;
    IF r_alone THEN
        r_alone := hold_for_tenant(r_host, p_app);
        IF r_alone IS NULL OR own_pool AND NOT r_alone THEN PERFORM set_config('synchronous_commit', 'off', true); RETURN; END IF;
    END IF;

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
            dedicated_for_tenant_id = CASE WHEN d_alone THEN p_tenant ELSE dedicated_for_tenant_id END WHERE shard_id = p_shard
    ), redis AS (
        UPDATE redis_pools SET current_tenants = current_tenants + 1, changed_xid = pg_current_xact_id(),
            dedicated_for_tenant_id = CASE WHEN r_alone THEN p_tenant ELSE dedicated_for_tenant_id END WHERE pool_id = p_pool
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

-- The shards and pools of nodes that are one tenant's alone.
UPDATE db_shards d SET dedicated_for_tenant_id = a.tenant_id
FROM tenant_allocations a JOIN servers s ON s.server_id = a.app_server_id
WHERE a.released_at IS NULL AND d.shard_id = a.db_shard_id AND d.on_node AND s.dedicated_for_tenant_id = a.tenant_id
  AND d.dedicated_for_tenant_id IS NULL AND d.current_tenant_count = 1;
UPDATE redis_pools r SET dedicated_for_tenant_id = a.tenant_id
FROM tenant_allocations a JOIN servers s ON s.server_id = a.app_server_id
WHERE a.released_at IS NULL AND r.pool_id = a.redis_pool_id AND r.on_node AND s.dedicated_for_tenant_id = a.tenant_id
  AND r.dedicated_for_tenant_id IS NULL AND r.current_tenants = 1;

-- Instances that were put beside such a tenant leave, as from a server that is drained.
UPDATE process_groups g SET converged = false, updated_at = now()
WHERE EXISTS (SELECT FROM instances i WHERE i.group_id = g.group_id AND i.state <> 'stopped' AND kept_for_tenants(i.server_id));
