-- reserve_placements gives tenants their places, all in one round trip and each row written once (placement-policy §2.6,
-- §6, §7). The arrays have an element for each tenant. Each gets the outcome that it would get if they came one by one:
-- first the tenants that need a dedicated server, shard or pool, and the others after them, both in the order of the
-- arrays. A losing tenant takes nothing from the others.
--
-- All rows are held before they are judged, and judged before any is written. It never waits for a row of the fleet: a
-- row that another transaction holds is a lost race, and so is a changed row. The answer names the row:
-- 'placed', 'already' with the existing allocation, 'lost' and the row, or 'gone' when the tenant no longer asks. A
-- server whose tags no longer match is lost to 'constraint'. It must be called in a separate transaction.
--
-- - p_in_line: it waits for calls of other processes in its region, one after the other, because they want the same rows
--   and would lose all their decisions; and a tenant whose row is held is lost to 'tenant'. Otherwise it waits only for
--   the tenants' rows.
-- - A tenant with a dedicated server also gets a dedicated shard and pool, which are marked as dedicated.
--   With an override, which may put it beside others, empty ones are. Dedicated also means without instances.
-- - The constraint is the tenant's and its pools'. p_any_tags skips it.
CREATE OR REPLACE FUNCTION reserve_placements(
    p_tenant text[], p_generation integer[], p_app text[], p_shard text[], p_pool text[], p_site text[], p_site_name text[], p_database text[],
    p_mode text[], p_algorithm text[], p_audit_algorithm text[], p_dedicates boolean[],
    p_decision jsonb[], p_policy jsonb[], p_reason text[], p_actor text[],
    p_limits placement_limits, p_reserve_seconds double precision, p_in_line boolean, p_override boolean, p_any_tags boolean,
    OUT outcome text, OUT lost text, OUT lost_id text, OUT allocation bigint)
RETURNS SETOF record LANGUAGE plpgsql
-- Rows are found by their keys, however few a table has, and by plans that are kept: one for these very arrays, which the planner
-- thinks better of each time, takes longer to make than all the rest.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    n integer := cardinality(p_tenant);
    apart boolean; -- some tenants need something for themselves
    hosts text[] := '{}'; -- servers of what they need
    -- Rows that are held.
    held_tenants text[]; held_servers text[]; held_shards text[]; held_pools text[]; held_sites text[];
    j record;
    -- By place in the arrays: the answers.
    outcomes text[] := array_fill(NULL::text, ARRAY[n]); what text[] := outcomes; allocations bigint[] := array_fill(NULL::bigint, ARRAY[n]);
    -- By where in the arrays a row is named first: how many it gets, and whose alone it becomes.
    app_new integer[] := array_fill(0, ARRAY[n]); shard_new integer[] := app_new; pool_new integer[] := app_new; site_new integer[] := app_new;
    app_owner text[] := outcomes; shard_owner text[] := outcomes; pool_owner text[] := outcomes;
BEGIN
    IF p_in_line THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('prego/placements/' || t.region, 0)) FROM tenants t WHERE t.tenant_id = p_tenant[1];
    ELSE
        PERFORM FROM tenants t WHERE t.tenant_id = ANY (p_tenant) FOR NO KEY UPDATE;
    END IF;
    SELECT COALESCE(array_agg(t.tenant_id), '{}'), COALESCE(bool_or(p_dedicates[i.ord] OR t.dedicated_redis OR must_be_alone(t.plan, p_mode[i.ord], p_override)), false)
    INTO held_tenants, apart
    FROM unnest(p_tenant) WITH ORDINALITY i (tenant, ord)
    CROSS JOIN LATERAL (SELECT t.tenant_id, t.plan, t.dedicated_redis FROM tenants t WHERE t.tenant_id = i.tenant FOR NO KEY UPDATE SKIP LOCKED) t;
    -- An allocation of an instance holds the server's row: the judging statement sees an earlier one, and a later one
    -- sees this tenant.
    IF apart THEN
        hosts := ARRAY(SELECT d.server_id FROM db_shards d WHERE d.shard_id = ANY (p_shard) UNION SELECT r.server_id FROM redis_pools r WHERE r.pool_id = ANY (p_pool));
    END IF;
    SELECT ARRAY(SELECT s.server_id FROM servers s WHERE s.server_id = ANY (p_app || hosts) FOR NO KEY UPDATE SKIP LOCKED),
        ARRAY(SELECT d.shard_id FROM db_shards d WHERE d.shard_id = ANY (p_shard) FOR NO KEY UPDATE SKIP LOCKED),
        ARRAY(SELECT r.pool_id FROM redis_pools r WHERE r.pool_id = ANY (p_pool) FOR NO KEY UPDATE SKIP LOCKED),
        ARRAY(SELECT s.pool_site_id FROM site_pool s WHERE s.pool_site_id = ANY (p_site) FOR NO KEY UPDATE SKIP LOCKED)
    INTO held_servers, held_shards, held_pools, held_sites;

    -- Held rows stay as a statement that begins now reads them.
    FOR j IN
        SELECT i.ord, i.tenant, i.site, l.allocation_id AS allocation,
            CASE
            WHEN t.tenant_id IS NULL OR t.generation <> i.generation OR t.state NOT IN ('trial', 'provisioning') OR t.cancel_requested_at IS NOT NULL THEN 'gone'
            WHEN NOT t.tenant_id = ANY (held_tenants) OR i.ord <> array_position(p_tenant, i.tenant) THEN 'lost'
            WHEN l.tenant_id IS NOT NULL THEN 'already' END AS outcome,
            CASE
            WHEN i.site IS NOT NULL AND (i.site = ANY (held_sites) AND p.state = 'available' AND p.app_server_id = i.app AND p.db_shard_id = i.shard) IS NOT TRUE THEN 'site'
            -- Tags are fixed: if they do not match, a pool has changed, and the tenant's constraint must be read
            -- again.
            WHEN NOT p_any_tags AND (NOT tags_satisfy(a.tags, t.require_tags, t.disallow_tags)
                OR EXISTS (SELECT FROM placement_pools_of(t.org_id) c WHERE NOT tags_satisfy(a.tags, c.require_tags, c.disallow_tags))) THEN 'constraint'
            WHEN (i.app = ANY (held_servers) AND server_takes(a, af, ap, t, i.mode, i.dedicates, p_override, p_limits)) IS NOT TRUE THEN 'app_server'
            WHEN (i.shard = ANY (held_shards) AND shard_takes(d, dh, df, t, i.mode, p_override, p_limits) AND reaches(a, dh, d.on_node)
                AND (d.server_id = ANY (held_servers) OR NOT w.own_shard)) IS NOT TRUE THEN 'db_shard'
            WHEN (i.pool = ANY (held_pools) AND pool_takes(r, rh, rf, t, i.mode, p_override, p_limits) AND reaches(a, rh, r.on_node)
                AND (r.server_id = ANY (held_servers) OR NOT w.own_pool)) IS NOT TRUE THEN 'redis_pool' END AS lost,
            CASE WHEN p_override THEN n ELSE p_limits.max_tenants - a.tenant_count END AS app_room,
            CASE WHEN p_override THEN n ELSE d.tenant_capacity - d.current_tenant_count END AS shard_room,
            CASE WHEN p_override THEN n ELSE r.tenant_capacity - r.current_tenants END AS pool_room,
            w.own_app, w.own_shard AND NOT runs_instances(d.server_id) AS own_shard, w.own_pool AND NOT runs_instances(r.server_id) AS own_pool,
            array_position(p_app, i.app) AS app_at, array_position(p_shard, i.shard) AS shard_at, array_position(p_pool, i.pool) AS pool_at, array_position(p_site, i.site) AS site_at
        FROM (SELECT o.tenant, o.ord, p_generation[o.ord] AS generation, p_mode[o.ord] AS mode, p_dedicates[o.ord] AS dedicates, p_app[o.ord] AS app, p_shard[o.ord] AS shard, p_pool[o.ord] AS pool,
            p_site[o.ord] AS site FROM unnest(p_tenant) WITH ORDINALITY AS o (tenant, ord)) i
        LEFT JOIN tenants t ON t.tenant_id = i.tenant
        LEFT JOIN tenant_allocations l ON l.tenant_id = i.tenant AND l.released_at IS NULL
        LEFT JOIN site_pool p ON p.pool_site_id = i.site
        LEFT JOIN servers a ON a.server_id = i.app LEFT JOIN fleets af ON af.fleet_id = a.fleet_id LEFT JOIN infra_providers ap ON ap.id = a.infra_provider
        LEFT JOIN db_shards d ON d.shard_id = i.shard LEFT JOIN servers dh ON dh.server_id = d.server_id LEFT JOIN fleets df ON df.fleet_id = dh.fleet_id
        LEFT JOIN redis_pools r ON r.pool_id = i.pool LEFT JOIN servers rh ON rh.server_id = r.server_id LEFT JOIN fleets rf ON rf.fleet_id = rh.fleet_id
        CROSS JOIN LATERAL (SELECT must_be_alone(t.plan, i.mode, p_override) AS alone) m
        CROSS JOIN LATERAL (SELECT m.alone OR i.dedicates AS own_app, m.alone OR i.dedicates AND d.current_tenant_count = 0 AS own_shard,
            m.alone OR t.dedicated_redis OR i.dedicates AND r.current_tenants = 0 AS own_pool) w
        ORDER BY w.own_pool DESC, i.ord -- also of those that need a dedicated server, unless by an override, which is alone
    LOOP
        IF j.outcome = 'lost' THEN
            j.lost := 'tenant';
        ELSIF j.outcome IS NULL THEN -- the first that is lost, as a row or to those before
            j.lost := CASE
                WHEN j.lost = 'site' OR site_new[j.site_at] > 0 THEN 'site'
                WHEN j.lost IN ('constraint', 'app_server') THEN j.lost
                WHEN app_owner[j.app_at] IS NOT NULL OR app_new[j.app_at] >= j.app_room OR j.own_app AND app_new[j.app_at] > 0 THEN 'app_server'
                WHEN j.lost = 'db_shard' OR shard_owner[j.shard_at] IS NOT NULL OR shard_new[j.shard_at] >= j.shard_room OR j.own_shard AND shard_new[j.shard_at] > 0 THEN 'db_shard'
                -- before a tenant with a dedicated pool are only others with one
                WHEN j.lost = 'redis_pool' OR pool_owner[j.pool_at] IS NOT NULL OR pool_new[j.pool_at] >= j.pool_room THEN 'redis_pool' END;
            j.outcome := 'lost';
            IF j.lost IS NULL THEN
                j.outcome := 'placed'; j.allocation := nextval('tenant_allocations_allocation_id_seq');
                app_new[j.app_at] := app_new[j.app_at] + 1; shard_new[j.shard_at] := shard_new[j.shard_at] + 1; pool_new[j.pool_at] := pool_new[j.pool_at] + 1;
                IF j.site IS NOT NULL THEN site_new[j.site_at] := 1; END IF;
                IF j.own_app THEN app_owner[j.app_at] := j.tenant; END IF;
                IF j.own_shard THEN shard_owner[j.shard_at] := j.tenant; END IF;
                IF j.own_pool THEN pool_owner[j.pool_at] := j.tenant; END IF;
            END IF;
        END IF;
        outcomes[j.ord] := j.outcome; what[j.ord] := CASE j.outcome WHEN 'lost' THEN j.lost END;
        allocations[j.ord] := CASE WHEN j.outcome IN ('placed', 'already') THEN j.allocation END;
    END LOOP;

    IF 'placed' = ANY (outcomes) THEN
        -- The owner's columns are not in the statement below, for speed: they seldom change, and everything that
        -- depends on a column is checked for each statement that sets it.
        IF apart THEN
            UPDATE servers s SET dedicated_for_tenant_id = c.owner FROM unnest(p_app, app_owner) c (id, owner) WHERE c.owner IS NOT NULL AND s.server_id = c.id;
            UPDATE db_shards d SET dedicated_for_tenant_id = c.owner FROM unnest(p_shard, shard_owner) c (id, owner) WHERE c.owner IS NOT NULL AND d.shard_id = c.id;
            UPDATE redis_pools r SET dedicated_for_tenant_id = c.owner FROM unnest(p_pool, pool_owner) c (id, owner) WHERE c.owner IS NOT NULL AND r.pool_id = c.id;
        END IF;
        -- So is that one statement writes all the rest, and notes the changes itself: make bench.
        WITH item AS (
            SELECT i.ord, i.tenant, p_app[i.ord] AS app, p_shard[i.ord] AS shard, p_pool[i.ord] AS pool, p_site[i.ord] AS site, allocations[i.ord] AS allocation, t.state, t.org_id AS org, s.infra_provider,
                COALESCE(p.site_name, p_site_name[i.ord]) AS site_name, COALESCE(p.database_name, p_database[i.ord]) AS database_name
            FROM unnest(p_tenant) WITH ORDINALITY AS i (tenant, ord)
            JOIN tenants t ON t.tenant_id = i.tenant JOIN servers s ON s.server_id = p_app[i.ord] LEFT JOIN site_pool p ON p.pool_site_id = p_site[i.ord]
            WHERE outcomes[i.ord] = 'placed'
        ), site AS (
            UPDATE site_pool s SET state = 'reserved', tenant_id = i.tenant, updated_at = now(), changed_xid = pg_current_xact_id(),
                reserved_until = now() + make_interval(secs => p_reserve_seconds)
            FROM item i WHERE s.pool_site_id = i.site
        ), server AS (
            UPDATE servers s SET tenant_count = tenant_count + app_new[c.ord], updated_at = now(), changed_xid = pg_current_xact_id()
            FROM unnest(p_app) WITH ORDINALITY c (id, ord) WHERE app_new[c.ord] > 0 AND s.server_id = c.id
        ), shard AS (
            UPDATE db_shards d SET current_tenant_count = current_tenant_count + shard_new[c.ord], changed_xid = pg_current_xact_id()
            FROM unnest(p_shard) WITH ORDINALITY c (id, ord) WHERE shard_new[c.ord] > 0 AND d.shard_id = c.id
        ), redis AS (
            UPDATE redis_pools r SET current_tenants = current_tenants + pool_new[c.ord], changed_xid = pg_current_xact_id()
            FROM unnest(p_pool) WITH ORDINALITY c (id, ord) WHERE pool_new[c.ord] > 0 AND r.pool_id = c.id
        ), noted AS (
            INSERT INTO changes (kind, id)
            SELECT c.kind, c.id FROM unnest(p_app) WITH ORDINALITY i (app, ord)
            CROSS JOIN LATERAL (VALUES ('servers', i.app, app_new[i.ord]), ('db_shards', p_shard[i.ord], shard_new[i.ord]), ('redis_pools', p_pool[i.ord], pool_new[i.ord]),
                ('site_pool', p_site[i.ord], site_new[i.ord])) c (kind, id, new)
            WHERE c.new > 0
        ), tenant AS (
            UPDATE tenants t SET state = 'provisioning', status_reason = '', status_message = '', waiting_since = NULL, waiting_roles = '{}', updated_at = now()
            FROM item i WHERE t.tenant_id = i.tenant
        ), event AS (
            INSERT INTO events (kind, id, org_id, from_status, status, step, actor, reason)
            SELECT 'tenant', i.tenant, i.org, i.state, 'provisioning', 'placed', p_actor[i.ord], p_reason[i.ord] FROM item i
        ), snapshot AS (
            INSERT INTO allocation_snapshots (tenant_id, allocation_id, outcome, algorithm, decision_log, policy_json, actor)
            SELECT i.tenant, i.allocation, CASE WHEN i.site IS NULL THEN 'on_demand' ELSE 'placed' END, p_audit_algorithm[i.ord], p_decision[i.ord], p_policy[i.ord], p_actor[i.ord] FROM item i
        )
        INSERT INTO tenant_allocations (allocation_id, tenant_id, app_server_id, db_shard_id, redis_pool_id, pool_site_id, site_name, database_name, infra_provider, algorithm, dedicated)
        OVERRIDING SYSTEM VALUE
        SELECT i.allocation, i.tenant, i.app, i.shard, i.pool, i.site, i.site_name, i.database_name, i.infra_provider, p_algorithm[i.ord], (i.tenant = ANY (app_owner)) IS TRUE FROM item i;
    ELSE -- a commit that wrote nothing waits for no disk while it holds locks
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;

    FOR i IN 1..n LOOP
        outcome := outcomes[i]; lost := what[i]; allocation := allocations[i];
        lost_id := CASE lost WHEN 'tenant' THEN p_tenant[i] WHEN 'site' THEN p_site[i] WHEN 'app_server' THEN p_app[i] WHEN 'constraint' THEN p_app[i]
            WHEN 'db_shard' THEN p_shard[i] WHEN 'redis_pool' THEN p_pool[i] END;
        RETURN NEXT;
    END LOOP;
END $$;
