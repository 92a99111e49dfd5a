-- reserve_placement gives a tenant its place, in one round trip (placement-policy
-- §2.6, §6, §7). It locks the rows that it needs before it writes any, and never
-- waits: a row that another tenant's transaction holds is a lost race, and so is one
-- that has changed. The answer says which row it was: 'placed', 'already' with the
-- allocation that there is, 'lost' and the row, or 'gone' when the tenant no longer
-- asks. A server whose tags are wrong by now is lost to 'constraint'. A lost race has
-- locked rows and written none: its commit waits for no disk, so that it doesn't keep the
-- locks meanwhile. It must be called in a transaction of its own.
--
-- - A tenant that is to be alone on its server is so on its shard and pool, too, and these
--   are its alone from then on. With an override, which may put it beside others, what is
--   empty is. Alone means that no instances run there either.
-- - Servers of fleets that do not serve tenants are passed over, but for an override and
--   for a tenant's own.
-- - Shard and pool are in the app server's private network, whatever an override says: no way
--   leads from one network to another.
-- - The constraint is the tenant's and its pools'. An override skips it when it says so.
-- - A limit that is NULL and a value that is not known refuse nobody.
CREATE OR REPLACE FUNCTION reserve_placement(
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
    a_network text; -- the private network that they all have to be in; NULL for none
    held boolean;
    alone boolean; -- on server, shard and pool
    pooled boolean; -- there are placement pools
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
    SELECT (SELECT allocation_id FROM tenant_allocations WHERE tenant_id = p_tenant AND released_at IS NULL), EXISTS (SELECT FROM placement_pools) INTO allocation, pooled;
    IF allocation IS NOT NULL THEN
        outcome := 'already';
        RETURN;
    END IF;
    alone := must_be_alone(t.plan, p_mode, p_override);
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
    SELECT s.infra_provider, s.region, s.role, network_of(s.network_id, s.private_address) INTO a_provider, a_region, a_role, a_network FROM servers s
    WHERE s.server_id = p_app AND s.status = 'active' AND s.cordoned_at IS NULL AND s.role IN ('app', 'node') AND s.region = t.region
      AND (s.dedicated_for_tenant_id IS NULL OR s.dedicated_for_tenant_id = p_tenant)
      AND (s.tenant_count = 0 OR NOT (alone OR p_dedicates))
      AND (p_override OR ((s.accepts_trial OR t.plan <> 'trial') AND COALESCE(s.memory_pct, 0) < p_memory_max AND s.tenant_count < p_max_tenants
           AND (s.dedicated_for_tenant_id IS NOT NULL OR NOT EXISTS (SELECT FROM fleets f WHERE f.fleet_id = s.fleet_id AND NOT f.serves_tenants))
           -- what an empty server is busy with is its own start; what is not known refuses nobody
           AND (alone OR NOT (has_reached(s.cpu_pct, p_cpu_max) OR has_reached(s.worker_slots_pct, p_worker_slots_max)))
           -- a warm server is for those of its plan who get a server to themselves
           AND (s.warm_plan IS NULL OR s.dedicated_for_tenant_id IS NOT NULL OR (p_mode = 'one_tenant_one_server' AND s.warm_plan = t.plan))))
      -- a warm server whose agent is silent could not be used at once
      AND (s.warm_plan IS NULL OR s.tenant_count > 0 OR s.agent_status = 'connected')
      AND (p_any_tags OR tags_satisfy(s.tags, t.require_tags, t.disallow_tags))
      AND EXISTS (SELECT FROM infra_providers i WHERE i.id = s.infra_provider AND (p_override OR (i.enabled AND s.region = ANY (i.regions))))
      AND residency_allows(t.data_residency, s.region, s.infra_provider)
    FOR NO KEY UPDATE SKIP LOCKED;
    held := FOUND;
    -- Satisfying the request's constraint and every pool's is what satisfying their union is.
    IF held AND pooled AND NOT p_any_tags THEN
        held := NOT EXISTS (SELECT FROM servers s, placement_pools_of(t.org_id) p WHERE s.server_id = p_app AND NOT tags_satisfy(s.tags, p.require_tags, p.disallow_tags));
    END IF;
    IF NOT held THEN
        -- Tags are fixed: when they are what is wrong a pool has changed, and the tenant's
        -- constraint is to be read again.
        IF NOT p_any_tags AND EXISTS (SELECT FROM servers s WHERE s.server_id = p_app AND (NOT tags_satisfy(s.tags, t.require_tags, t.disallow_tags)
            OR EXISTS (SELECT FROM placement_pools_of(t.org_id) p WHERE NOT tags_satisfy(s.tags, p.require_tags, p.disallow_tags)))) THEN
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
      AND tier_lock_allows(t.plan, d.plan_tier_lock)
      AND (d.dedicated_for_tenant_id IS NULL OR d.dedicated_for_tenant_id = p_tenant)
      AND (d.current_tenant_count = 0 OR NOT alone)
      AND (p_override OR (d.current_tenant_count < d.tenant_capacity AND EXISTS (
           SELECT FROM servers h LEFT JOIN fleets f ON f.fleet_id = h.fleet_id WHERE h.server_id = d.server_id
             AND NOT has_reached(h.db_disk_pct, p_db_disk_max) AND (d.on_node OR d.dedicated_for_tenant_id IS NOT NULL OR f.serves_tenants IS NOT FALSE))))
      AND (a_role = 'node') = d.on_node AND (NOT d.on_node OR d.server_id = p_app)
      AND EXISTS (SELECT FROM servers h WHERE h.server_id = d.server_id AND h.cordoned_at IS NULL AND network_of(h.network_id, h.private_address) IS NOT DISTINCT FROM a_network)
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
             AND NOT has_reached(h.redis_memory_pct, p_redis_memory_max) AND (r.on_node OR r.dedicated_for_tenant_id IS NOT NULL OR f.serves_tenants IS NOT FALSE))))
      AND (a_role = 'node') = r.on_node AND (NOT r.on_node OR r.server_id = p_app)
      AND EXISTS (SELECT FROM servers h WHERE h.server_id = r.server_id AND h.cordoned_at IS NULL AND network_of(h.network_id, h.private_address) IS NOT DISTINCT FROM a_network)
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN PERFORM set_config('synchronous_commit', 'off', true); RETURN; END IF;
    IF r_alone THEN
        r_alone := hold_for_tenant(r_host, p_app);
        IF r_alone IS NULL OR own_pool AND NOT r_alone THEN PERFORM set_config('synchronous_commit', 'off', true); RETURN; END IF;
    END IF;

    -- Everything is held: from here on nothing can fail but the database itself. That one
    -- statement writes all of it, and notes the changes itself, is for speed: make bench. So is
    -- that whose it is from now on, which is seldom anybody's, is none of the columns that it
    -- sets: whatever has to do with a column is looked at for each statement that sets it.
    IF p_dedicates OR alone THEN UPDATE servers SET dedicated_for_tenant_id = p_tenant WHERE server_id = p_app; END IF;
    IF d_alone THEN UPDATE db_shards SET dedicated_for_tenant_id = p_tenant WHERE shard_id = p_shard; END IF;
    IF r_alone THEN UPDATE redis_pools SET dedicated_for_tenant_id = p_tenant WHERE pool_id = p_pool; END IF;
    WITH site AS (
        UPDATE site_pool SET state = 'reserved', tenant_id = p_tenant, updated_at = now(), changed_xid = pg_current_xact_id(),
            reserved_until = now() + make_interval(secs => p_reserve_seconds) WHERE pool_site_id = p_site
    ), server AS (
        UPDATE servers SET tenant_count = tenant_count + 1, updated_at = now(), changed_xid = pg_current_xact_id() WHERE server_id = p_app
    ), shard AS (
        UPDATE db_shards SET current_tenant_count = current_tenant_count + 1, changed_xid = pg_current_xact_id() WHERE shard_id = p_shard
    ), redis AS (
        UPDATE redis_pools SET current_tenants = current_tenants + 1, changed_xid = pg_current_xact_id() WHERE pool_id = p_pool
    ), noted AS (
        INSERT INTO changes (kind, id) SELECT c.kind, c.id FROM (VALUES ('servers', p_app), ('db_shards', p_shard), ('redis_pools', p_pool), ('site_pool', p_site)) c (kind, id)
        WHERE c.id IS NOT NULL
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
