-- reserve_placements gives tenants their places as reserve_placement does, all in one
-- transaction and each row written once. The arrays have an element for each tenant. Each
-- gets the outcome that it would get if they came one by one: those that need a server,
-- shard or pool for themselves first, and the others after them, both in the order of the
-- arrays. One that loses takes nothing from the others.
--
-- - It waits for those of other processes in its region, one after the other: they want the
--   same rows, and would lose all that they decided. It waits for nothing else. A tenant
--   whose row somebody holds is lost to 'tenant': alone it waits.
-- - Those that need something for themselves are placed by reserve_placement, in the same
--   transaction.
-- - There are no overrides here.
CREATE OR REPLACE FUNCTION reserve_placements(
    p_tenant text[], p_generation integer[], p_app text[], p_shard text[], p_pool text[], p_site text[], p_site_name text[], p_database text[],
    p_mode text[], p_algorithm text[], p_audit_algorithm text[], p_dedicates boolean[],
    p_decision jsonb[], p_policy jsonb[], p_reason text[], p_actor text[],
    p_memory_max double precision, p_max_tenants integer, p_reserve_seconds double precision,
    p_cpu_max double precision, p_worker_slots_max double precision, p_db_disk_max double precision, p_redis_memory_max double precision,
    OUT outcome text, OUT lost text, OUT lost_id text, OUT allocation bigint)
RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
    n integer := cardinality(p_tenant);
    v_held text[]; -- tenants
    v_verdict text[]; -- the outcomes, by place in the arrays; NULL where there is none yet
    v_what text[] := array_fill(NULL::text, ARRAY[n]);
    v_allocations bigint[] := array_fill(NULL::bigint, ARRAY[n]);
    v_made bigint[];
    -- Beside the tenants: where in the arrays the row of each is named first, and there how
    -- many it can still take.
    v_app_at integer[]; v_app_room integer[];
    v_shard_at integer[]; v_shard_room integer[];
    v_pool_at integer[]; v_pool_room integer[];
    v_site_at integer[]; v_site_room integer[];
    one record;
    v_commits text := current_setting('synchronous_commit');
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('prego/placements/' || t.region, 0)) FROM tenants t WHERE t.tenant_id = p_tenant[1];
    SELECT COALESCE(array_agg(h.tenant_id), '{}') INTO v_held
    FROM (SELECT t.tenant_id FROM tenants t WHERE t.tenant_id = ANY (p_tenant) FOR NO KEY UPDATE SKIP LOCKED) h;

    -- The tenants are held: what a statement that begins now reads of them stays so.
    WITH item AS (
        SELECT * FROM unnest(p_tenant, p_generation, p_mode, p_dedicates) WITH ORDINALITY AS i (tenant, generation, mode, dedicates, ord)
    ), judged AS (
        SELECT i.ord, CASE
            WHEN t.tenant_id IS NULL OR t.generation <> i.generation OR t.state NOT IN ('trial', 'provisioning') OR t.cancel_requested_at IS NOT NULL THEN 'gone'
            WHEN NOT t.tenant_id = ANY (v_held) OR i.ord <> min(i.ord) OVER (PARTITION BY i.tenant) THEN 'lost'
            WHEN l.tenant_id IS NOT NULL THEN 'already'
            WHEN i.dedicates OR t.dedicated_redis OR must_be_alone(t.plan, i.mode, false) THEN 'apart' END AS verdict
        FROM item i LEFT JOIN tenants t ON t.tenant_id = i.tenant
        LEFT JOIN tenant_allocations l ON l.tenant_id = i.tenant AND l.released_at IS NULL
    )
    SELECT array_agg(j.verdict ORDER BY j.ord) INTO v_verdict FROM judged j;

    FOR i IN 1..n LOOP
        CASE v_verdict[i]
        WHEN 'lost' THEN
            v_what[i] := 'tenant';
        WHEN 'already' THEN
            v_allocations[i] := (SELECT l.allocation_id FROM tenant_allocations l WHERE l.tenant_id = p_tenant[i] AND l.released_at IS NULL);
        WHEN 'apart' THEN
            SELECT r.* INTO one FROM reserve_placement(
                p_tenant[i], p_generation[i], p_app[i], p_shard[i], p_pool[i], p_site[i], p_site_name[i], p_database[i],
                p_mode[i], p_algorithm[i], p_audit_algorithm[i], p_dedicates[i], false, p_memory_max, p_max_tenants, p_reserve_seconds,
                p_decision[i], p_policy[i], p_reason[i], p_actor[i], false, p_cpu_max, p_worker_slots_max, p_db_disk_max, p_redis_memory_max) r;
            v_verdict[i] := one.outcome; v_what[i] := one.lost; v_allocations[i] := one.allocation;
        ELSE
        END CASE;
    END LOOP;

    -- Rows that another transaction has just changed are judged as it left them.
    WITH site AS MATERIALIZED (
        SELECT s.pool_site_id, s.app_server_id, s.db_shard_id FROM site_pool s
        WHERE s.pool_site_id = ANY (p_site) AND s.state = 'available' FOR NO KEY UPDATE SKIP LOCKED
    ), app AS MATERIALIZED (
        SELECT s.server_id, s.region, s.role, s.infra_provider, network_of(s.network_id, s.private_address) AS network, s.dedicated_for_tenant_id, s.accepts_trial, s.warm_plan, p_max_tenants - s.tenant_count AS room
        FROM servers s
        WHERE s.server_id = ANY (p_app) AND s.status = 'active' AND s.cordoned_at IS NULL AND s.role IN ('app', 'node')
          AND COALESCE(s.memory_pct, 0) < p_memory_max AND NOT has_reached(s.cpu_pct, p_cpu_max) AND NOT has_reached(s.worker_slots_pct, p_worker_slots_max)
          AND (s.dedicated_for_tenant_id IS NOT NULL OR NOT EXISTS (SELECT FROM fleets f WHERE f.fleet_id = s.fleet_id AND NOT f.serves_tenants))
          -- a warm server whose agent is silent could not be used at once
          AND (s.warm_plan IS NULL OR s.tenant_count > 0 OR s.agent_status = 'connected')
          AND EXISTS (SELECT FROM infra_providers i WHERE i.id = s.infra_provider AND i.enabled AND s.region = ANY (i.regions))
        FOR NO KEY UPDATE SKIP LOCKED
    ), shard AS MATERIALIZED (
        SELECT d.shard_id, d.server_id, d.region, d.on_node, (SELECT network_of(h.network_id, h.private_address) FROM servers h WHERE h.server_id = d.server_id) AS network, d.plan_tier_lock, d.dedicated_for_tenant_id, d.tenant_capacity - d.current_tenant_count AS room
        FROM db_shards d
        WHERE d.shard_id = ANY (p_shard) AND d.status = 'active' AND EXISTS (
            SELECT FROM servers h LEFT JOIN fleets f ON f.fleet_id = h.fleet_id WHERE h.server_id = d.server_id AND h.cordoned_at IS NULL
              AND NOT has_reached(h.db_disk_pct, p_db_disk_max) AND (d.on_node OR d.dedicated_for_tenant_id IS NOT NULL OR f.serves_tenants IS NOT FALSE))
        FOR NO KEY UPDATE SKIP LOCKED
    ), redis AS MATERIALIZED (
        SELECT r.pool_id, r.server_id, r.region, r.on_node, (SELECT network_of(h.network_id, h.private_address) FROM servers h WHERE h.server_id = r.server_id) AS network, r.dedicated_for_tenant_id, r.tenant_capacity - r.current_tenants AS room
        FROM redis_pools r
        WHERE r.pool_id = ANY (p_pool) AND r.status = 'active' AND EXISTS (
            SELECT FROM servers h LEFT JOIN fleets f ON f.fleet_id = h.fleet_id WHERE h.server_id = r.server_id AND h.cordoned_at IS NULL
              AND NOT has_reached(h.redis_memory_pct, p_redis_memory_max) AND (r.on_node OR r.dedicated_for_tenant_id IS NOT NULL OR f.serves_tenants IS NOT FALSE))
        FOR NO KEY UPDATE SKIP LOCKED
    ), item AS (
        SELECT * FROM unnest(p_tenant, p_app, p_shard, p_pool, p_site, v_verdict, v_what) WITH ORDINALITY AS i (tenant, app, shard, pool, site, verdict, what, ord)
    ), judged AS (
        SELECT i.ord, a.room AS app_room, d.room AS shard_room, r.room AS pool_room,
            min(i.ord) OVER (PARTITION BY i.app) AS app_at, min(i.ord) OVER (PARTITION BY i.shard) AS shard_at,
            min(i.ord) OVER (PARTITION BY i.pool) AS pool_at, min(i.ord) OVER (PARTITION BY i.site) AS site_at,
            CASE
            WHEN i.verdict IS NOT NULL THEN i.what
            WHEN i.site IS NOT NULL AND s.pool_site_id IS NULL THEN 'site'
            -- Tags are fixed: when they are what is wrong a pool has changed, and the
            -- tenant's constraint is to be read again.
            WHEN EXISTS (SELECT FROM servers o WHERE o.server_id = i.app AND (NOT tags_satisfy(o.tags, t.require_tags, t.disallow_tags)
                 OR EXISTS (SELECT FROM placement_pools_of(t.org_id) p WHERE NOT tags_satisfy(o.tags, p.require_tags, p.disallow_tags)))) THEN 'constraint'
            WHEN a.server_id IS NULL OR a.region <> t.region OR a.dedicated_for_tenant_id <> i.tenant OR NOT (a.accepts_trial OR t.plan <> 'trial') OR (a.warm_plan IS NOT NULL AND a.dedicated_for_tenant_id IS NULL)
              OR NOT residency_allows(t.data_residency, a.region, a.infra_provider) THEN 'app_server'
            WHEN d.shard_id IS NULL OR d.region <> a.region OR d.dedicated_for_tenant_id <> i.tenant OR NOT tier_lock_allows(t.plan, d.plan_tier_lock)
              OR (a.role = 'node') <> d.on_node OR d.on_node AND d.server_id <> i.app OR d.network IS DISTINCT FROM a.network THEN 'db_shard'
            WHEN r.pool_id IS NULL OR r.region <> a.region OR r.dedicated_for_tenant_id <> i.tenant
              OR (a.role = 'node') <> r.on_node OR r.on_node AND r.server_id <> i.app OR r.network IS DISTINCT FROM a.network THEN 'redis_pool'
            END AS why
        FROM item i LEFT JOIN tenants t ON t.tenant_id = i.tenant
        LEFT JOIN site s ON s.pool_site_id = i.site AND s.app_server_id = i.app AND s.db_shard_id = i.shard
        LEFT JOIN app a ON a.server_id = i.app LEFT JOIN shard d ON d.shard_id = i.shard LEFT JOIN redis r ON r.pool_id = i.pool
    )
    SELECT array_agg(j.why ORDER BY j.ord), array_agg(j.app_at ORDER BY j.ord), array_agg(j.app_room ORDER BY j.ord), array_agg(j.shard_at ORDER BY j.ord),
        array_agg(j.shard_room ORDER BY j.ord), array_agg(j.pool_at ORDER BY j.ord), array_agg(j.pool_room ORDER BY j.ord), array_agg(j.site_at ORDER BY j.ord)
    INTO v_what, v_app_at, v_app_room, v_shard_at, v_shard_room, v_pool_at, v_pool_room, v_site_at FROM judged j;
    v_site_room := array_fill(1, ARRAY[n]);

    FOR i IN 1..n LOOP
        CONTINUE WHEN v_verdict[i] IS NOT NULL;
        v_what[i] := CASE -- in the order in which reserve_placement looks
            WHEN v_what[i] = 'site' OR p_site[i] IS NOT NULL AND v_site_room[v_site_at[i]] < 1 THEN 'site'
            WHEN v_what[i] IN ('constraint', 'app_server') THEN v_what[i]
            WHEN v_app_room[v_app_at[i]] < 1 THEN 'app_server'
            WHEN v_what[i] = 'db_shard' OR v_shard_room[v_shard_at[i]] < 1 THEN 'db_shard'
            WHEN v_what[i] = 'redis_pool' OR v_pool_room[v_pool_at[i]] < 1 THEN 'redis_pool' END;
        IF v_what[i] IS NOT NULL THEN
            v_verdict[i] := 'lost';
            CONTINUE;
        END IF;
        v_verdict[i] := 'place';
        v_site_room[v_site_at[i]] := 0;
        v_app_room[v_app_at[i]] := v_app_room[v_app_at[i]] - 1;
        v_shard_room[v_shard_at[i]] := v_shard_room[v_shard_at[i]] - 1;
        v_pool_room[v_pool_at[i]] := v_pool_room[v_pool_at[i]] - 1;
    END LOOP;

    -- Everything is held. Each row is written once, however many tenants it is for.
    WITH item AS (
        SELECT i.* FROM unnest(p_tenant, p_app, p_shard, p_pool, p_site, p_site_name, p_database, p_algorithm, p_audit_algorithm, p_decision, p_policy, p_reason, p_actor, v_verdict)
            WITH ORDINALITY AS i (tenant, app, shard, pool, site, site_name, database, algorithm, audit_algorithm, decision, policy, reason, actor, verdict, ord)
        WHERE i.verdict = 'place'
    ), site AS (
        UPDATE site_pool s SET state = 'reserved', tenant_id = i.tenant, updated_at = now(), changed_xid = pg_current_xact_id(),
            reserved_until = now() + make_interval(secs => p_reserve_seconds)
        FROM item i WHERE s.pool_site_id = i.site
    ), server AS (
        UPDATE servers s SET tenant_count = tenant_count + c.n, updated_at = now(), changed_xid = pg_current_xact_id()
        FROM (SELECT app, count(*)::integer AS n FROM item GROUP BY app) c WHERE s.server_id = c.app
    ), shard AS (
        UPDATE db_shards d SET current_tenant_count = current_tenant_count + c.n, changed_xid = pg_current_xact_id()
        FROM (SELECT shard, count(*)::integer AS n FROM item GROUP BY shard) c WHERE d.shard_id = c.shard
    ), redis AS (
        UPDATE redis_pools r SET current_tenants = current_tenants + c.n, changed_xid = pg_current_xact_id()
        FROM (SELECT pool, count(*)::integer AS n FROM item GROUP BY pool) c WHERE r.pool_id = c.pool
    ), noted AS (
        INSERT INTO changes (kind, id)
        SELECT DISTINCT c.kind, c.id FROM item i CROSS JOIN LATERAL (VALUES ('servers', i.app), ('db_shards', i.shard), ('redis_pools', i.pool), ('site_pool', i.site)) c (kind, id)
        WHERE c.id IS NOT NULL
    ), tenant AS (
        UPDATE tenants t SET state = 'provisioning', status_reason = '', status_message = '', waiting_since = NULL, waiting_roles = '{}', updated_at = now()
        FROM item i WHERE t.tenant_id = i.tenant
    ), event AS (
        INSERT INTO tenant_lifecycle_events (tenant_id, from_state, to_state, step, actor, reason)
        SELECT i.tenant, t.state, 'provisioning', 'placed', i.actor, i.reason FROM item i JOIN tenants t ON t.tenant_id = i.tenant ORDER BY i.ord
    ), allocation AS (
        INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, pool_site_id, site_name, database_name, infra_provider, algorithm, dedicated)
        SELECT i.tenant, i.app, i.shard, i.pool, i.site, COALESCE(p.site_name, i.site_name), COALESCE(p.database_name, i.database), s.infra_provider, i.algorithm, false
        FROM item i JOIN servers s ON s.server_id = i.app LEFT JOIN site_pool p ON p.pool_site_id = i.site ORDER BY i.ord
        RETURNING tenant_id, allocation_id
    ), snapshot AS (
        INSERT INTO allocation_snapshots (tenant_id, allocation_id, outcome, algorithm, decision_log, policy_json, actor)
        SELECT i.tenant, m.allocation_id, CASE WHEN i.site IS NULL THEN 'on_demand' ELSE 'placed' END, i.audit_algorithm, i.decision, i.policy, i.actor
        FROM item i JOIN allocation m ON m.tenant_id = i.tenant ORDER BY i.ord
    )
    SELECT array_agg(m.allocation_id ORDER BY o.ord) INTO v_made
    FROM unnest(p_tenant, v_verdict) WITH ORDINALITY AS o (tenant, verdict, ord) LEFT JOIN allocation m ON m.tenant_id = o.tenant AND o.verdict = 'place';

    FOR i IN 1..n LOOP
        outcome := CASE v_verdict[i] WHEN 'place' THEN 'placed' ELSE v_verdict[i] END;
        lost := v_what[i]; allocation := COALESCE(v_made[i], v_allocations[i]);
        lost_id := CASE lost WHEN 'tenant' THEN p_tenant[i] WHEN 'site' THEN p_site[i] WHEN 'app_server' THEN p_app[i] WHEN 'constraint' THEN p_app[i]
            WHEN 'db_shard' THEN p_shard[i] WHEN 'redis_pool' THEN p_pool[i] END;
        RETURN NEXT;
    END LOOP;
    -- As for one: a commit that wrote nothing waits for no disk while it holds locks, and one
    -- that did waits as the session has it, whatever those that lost have set.
    PERFORM set_config('synchronous_commit', CASE WHEN v_verdict && '{place,placed}' THEN v_commits ELSE 'off' END, true);
END $$;
