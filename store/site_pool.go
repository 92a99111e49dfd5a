package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// One statement plans a refill. For every plan tier that has fewer sites (available or
// being built) than its target, it picks the emptiest shard that the tier may use and
// reserves the missing sites. A node gets one site, on its own shard, and none once it is
// occupied. A tier whose tenants must be alone gets one site per server: on an empty shard,
// which may have a lock for another tier, and also only while the server is empty. Sites on
// a shard that accepts no tenants don't count. Recent failures count as available, so that
// builds are not retried endlessly on a server where they fail.
const sqlPlanRefill = `
WITH server AS (
    SELECT server_id, region, role, tenant_count = 0 AND NOT runs_instances(server_id) AS empty FROM servers
    WHERE server_id = $1 AND status = 'active' AND cordoned_at IS NULL AND role IN ('app', 'node')
      AND (dedicated_for_tenant_id IS NULL) AND (role = 'app' OR tenant_count = 0)
      AND NOT EXISTS (SELECT FROM fleets f WHERE f.fleet_id = servers.fleet_id AND NOT f.serves_tenants)
    FOR NO KEY UPDATE
), tiers AS (
    SELECT p.plan, p.target, must_be_alone(p.plan, 'shared', false) AS alone FROM site_pool_policies p, server s WHERE s.role = 'app' AND p.target > 0
    UNION ALL SELECT 'node', 1, false FROM server s WHERE s.role = 'node'
), fits AS (
    SELECT t.plan, t.alone, d.shard_id, d.plan_tier_lock, LEAST(t.target, d.tenant_capacity - d.current_tenant_count, CASE WHEN t.alone THEN 1 END) AS target,
        row_number() OVER (PARTITION BY t.plan ORDER BY d.current_tenant_count::float8 / d.tenant_capacity, d.plan_tier_lock IS NOT NULL AND t.alone, d.shard_id) AS n
    FROM tiers t, server s, db_shards d
    WHERE d.status = 'active' AND d.region = s.region AND d.dedicated_for_tenant_id IS NULL AND d.current_tenant_count < d.tenant_capacity
      AND NOT EXISTS (SELECT FROM servers h JOIN fleets f ON f.fleet_id = h.fleet_id WHERE h.server_id = d.server_id AND NOT f.serves_tenants)
      AND CASE t.plan WHEN 'node' THEN d.server_id = s.server_id ELSE NOT d.on_node AND tier_lock_allows(t.plan, d.plan_tier_lock) END
      AND (NOT t.alone OR (s.empty AND d.current_tenant_count = 0 AND NOT runs_instances(d.server_id)))
), have AS (
    SELECT l.shard_id, l.target,
        (SELECT count(*) FROM site_pool p, db_shards d WHERE p.app_server_id = $1 AND d.shard_id = p.db_shard_id
           AND d.plan_tier_lock IS NOT DISTINCT FROM l.plan_tier_lock AND d.status = 'active'
           AND (((p.state = 'available' OR (p.state = 'reserved' AND p.tenant_id IS NULL))
                 AND d.dedicated_for_tenant_id IS NULL AND d.current_tenant_count < d.tenant_capacity
                 AND (NOT l.alone OR (d.current_tenant_count = 0 AND NOT runs_instances(d.server_id))))
                OR (p.state = 'failed' AND p.updated_at > now() - make_interval(secs => $4)))) AS n
    FROM fits l WHERE l.n = 1
), missing AS (
    SELECT h.shard_id, generate_series(1, max(h.target - h.n)) AS i FROM have h GROUP BY h.shard_id -- tiers that share a shard share its sites
), made AS (
    INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, reserved_until)
    SELECT 'ps-' || k, $1, shard_id, 'pool-' || k || '.' || $2, 'pool_' || k, 'reserved', now() + make_interval(secs => $3)
    FROM (SELECT shard_id, substr(replace(gen_random_uuid()::text, '-', ''), 1, 16) AS k FROM missing) m
    RETURNING pool_site_id, app_server_id, db_shard_id, site_name, database_name, on_shard
)
SELECT pool_site_id, app_server_id, db_shard_id, site_name, database_name, on_shard FROM made
UNION ALL
SELECT pool_site_id, app_server_id, db_shard_id, site_name, database_name, on_shard FROM site_pool
WHERE app_server_id = $1 AND state = 'reserved' AND tenant_id IS NULL
ORDER BY 1`

// A separate statement, so that the next one sees what another plan committed while this
// one waited.
const sqlHoldServer = `SELECT FROM servers WHERE server_id = $1 FOR NO KEY UPDATE`

// PlanRefill reserves the sites that an app server's pool lacks, and returns them
// with those whose build was begun earlier.
func (s *Store) PlanRefill(ctx context.Context, serverID prego.ServerID, domain string, buildFor, failureMemory time.Duration) (out []tenant.PoolSite, err error) {
	err = s.inTx(ctx, string("plan refill of "+serverID), func(tx *txn) error {
		tx.run(ctx, sqlHoldServer, serverID)
		out = manyIn[tenant.PoolSite](ctx, tx, sqlPlanRefill, serverID, domain, buildFor.Seconds(), failureMemory.Seconds())
		return nil
	})
	return out, err
}

const sqlSiteWanted = `SELECT count(*)::float8 FROM site_pool WHERE pool_site_id = $1 AND state = 'reserved' AND tenant_id IS NULL`

// SiteWanted reports whether a site is still to be built: it may have been given up while
// its build was queued.
func (s *Store) SiteWanted(ctx context.Context, poolSiteID string) (bool, error) {
	n, err := s.oneNumber(ctx, sqlSiteWanted, poolSiteID)
	return n > 0, err
}

const sqlSiteBuilt = `
UPDATE site_pool SET state = 'available', reserved_until = NULL, available_at = now(), updated_at = now(), reason = ''
WHERE pool_site_id = $1 AND state = 'reserved' AND tenant_id IS NULL
RETURNING EXTRACT(EPOCH FROM now() - created_at)::float8`

// SiteBuilt makes a finished site available and returns how many seconds its build took. If
// the build was given up in the meantime it changes nothing and returns 0.
func (s *Store) SiteBuilt(ctx context.Context, poolSiteID string) (float64, error) {
	return s.oneNumber(ctx, sqlSiteBuilt, poolSiteID)
}

const sqlSiteFailed = `
UPDATE site_pool SET state = 'failed', reserved_until = NULL, updated_at = now(), reason = $2
WHERE pool_site_id = $1 AND state = 'reserved' AND tenant_id IS NULL RETURNING 1::float8`

// SiteFailed gives a build up, with its reason.
func (s *Store) SiteFailed(ctx context.Context, poolSiteID, reason string) error {
	_, err := s.oneNumber(ctx, sqlSiteFailed, poolSiteID, prego.Redact(reason))
	return err
}

func (s *Store) oneNumber(ctx context.Context, sql string, args ...any) (float64, error) {
	n, err := value[float64](ctx, s.pool, sql, args...)
	return n, failed("pool site", ifNoRows(err, nil))
}

// App servers, and warm nodes, with fewer sites than their watermark; also empty app
// servers without the one site for a tenant that must be alone. What a region's pools need
// depends on its shards, and is worked out once.
const sqlLowPools = `
WITH room AS MATERIALIZED (
    SELECT DISTINCT d.region, d.plan_tier_lock AS lock, d.current_tenant_count = 0 AND NOT runs_instances(d.server_id) AS empty
    FROM db_shards d JOIN servers h ON h.server_id = d.server_id LEFT JOIN fleets f ON f.fleet_id = h.fleet_id
    WHERE d.status = 'active' AND NOT d.on_node AND d.dedicated_for_tenant_id IS NULL AND d.current_tenant_count < d.tenant_capacity AND f.serves_tenants IS NOT FALSE
), wanted AS (
    SELECT region, sum(low) AS n FROM (
        SELECT r.region, max(p.low_watermark) AS low FROM site_pool_policies p JOIN room r ON tier_lock_allows(p.plan, r.lock)
        WHERE p.target > 0 AND NOT must_be_alone(p.plan, 'shared', false) GROUP BY r.region, p.plan = 'business') l
    GROUP BY region
), alone AS MATERIALIZED (
    SELECT DISTINCT r.region, p.plan FROM site_pool_policies p JOIN room r ON r.empty AND tier_lock_allows(p.plan, r.lock)
    WHERE p.low_watermark > 0 AND must_be_alone(p.plan, 'shared', false)
)
SELECT s.server_id
FROM servers s LEFT JOIN fleets f ON f.fleet_id = s.fleet_id LEFT JOIN wanted w ON w.region = s.region LEFT JOIN (
    SELECT p.app_server_id, count(*) AS n FROM site_pool p JOIN db_shards d ON d.shard_id = p.db_shard_id
    WHERE (p.state = 'available' OR (p.state = 'reserved' AND p.tenant_id IS NULL))
      AND d.status = 'active' AND d.dedicated_for_tenant_id IS NULL AND d.current_tenant_count < d.tenant_capacity
    GROUP BY p.app_server_id) h ON h.app_server_id = s.server_id
WHERE s.status = 'active' AND s.cordoned_at IS NULL AND s.agent_status = 'connected' AND s.dedicated_for_tenant_id IS NULL AND f.serves_tenants IS NOT FALSE
  AND (s.role = 'app' OR (s.role = 'node' AND s.warm_plan IS NOT NULL AND s.tenant_count = 0))
  AND (COALESCE(h.n, 0) < CASE s.role WHEN 'node' THEN 1 ELSE COALESCE(w.n, 0) END
    OR (s.role = 'app' AND s.tenant_count = 0 AND s.region IN (SELECT region FROM alone) AND NOT runs_instances(s.server_id)
      AND EXISTS (SELECT FROM alone a WHERE a.region = s.region AND NOT EXISTS (
          SELECT FROM site_pool q JOIN db_shards e ON e.shard_id = q.db_shard_id
          WHERE q.app_server_id = s.server_id AND (q.state = 'available' OR (q.state = 'reserved' AND q.tenant_id IS NULL))
            AND e.status = 'active' AND e.dedicated_for_tenant_id IS NULL AND e.current_tenant_count = 0 AND tier_lock_allows(a.plan, e.plan_tier_lock)
            AND NOT runs_instances(e.server_id)))))
  AND NOT EXISTS (SELECT FROM site_pool p WHERE p.app_server_id = s.server_id AND p.state = 'failed' AND p.updated_at > now() - make_interval(secs => $1))
ORDER BY md5(s.server_id || now()) LIMIT 100`

// LowPools lists the servers whose site pool is below its watermark, except those where a
// build failed within failureMemory.
func (s *Store) LowPools(ctx context.Context, failureMemory time.Duration) ([]string, error) {
	return collectValues[string](ctx, s, "low site pools", sqlLowPools, failureMemory.Seconds())
}

// As sqlLowPools, without a look at the shards that the sites are on: it costs the same
// however many there are. A pool whose sites are on shards that fill up is found by the sweep.
const sqlMayRefill = `
SELECT (SELECT count(*) FROM site_pool WHERE app_server_id = $1 AND (state = 'available' OR (state = 'reserved' AND tenant_id IS NULL)))
    < (SELECT COALESCE(sum(low), 0) FROM (SELECT max(low_watermark) AS low FROM site_pool_policies WHERE target > 0 GROUP BY plan = 'business') l)`

// MayRefill reports whether an app server's site pool may be below its watermark. A pool
// above it needs no refill.
func (s *Store) MayRefill(ctx context.Context, serverID prego.ServerID) (bool, error) {
	may, err := value[bool](ctx, s.pool, sqlMayRefill, serverID)
	return may, failed("site pool of "+string(serverID), err)
}

// A member is claimable, coming or broken. Only claimable ones count toward the target. At
// most as many broken members are replaced as the pool is large, so that a fault that
// breaks every server does not order servers forever; servers that were destroyed before
// they became active count as broken for an hour. While tenants in the region are building
// their own servers, the pool waits.
const sqlWarmDeficit = `
WITH members AS (
    SELECT s.server_id, s.status,
        s.status = 'active' AND s.tenant_count = 0 AND s.dedicated_for_tenant_id IS NULL AND s.agent_status = 'connected' AND s.image = $3
            AND NOT EXISTS (SELECT FROM fleets f WHERE f.fleet_id = s.fleet_id AND NOT f.serves_tenants)
            AND EXISTS (SELECT FROM site_pool p WHERE p.app_server_id = s.server_id AND p.state = 'available') AS claimable,
        s.status = 'provisioning' OR (s.status = 'active' AND s.tenant_count = 0 AND s.dedicated_for_tenant_id IS NULL AND s.image = $3
            AND NOT EXISTS (SELECT FROM site_pool p WHERE p.app_server_id = s.server_id AND p.state = 'failed')) AS coming
    FROM servers s
    WHERE s.region = $1 AND s.warm_plan = $2 AND s.cordoned_at IS NULL AND s.status <> 'terminated' AND s.tenant_count = 0 AND s.dedicated_for_tenant_id IS NULL AND s.status <> 'draining'
), counts AS (
    SELECT count(*) FILTER (WHERE claimable) AS claimable, count(*) FILTER (WHERE coming AND NOT claimable) AS coming,
           count(*) FILTER (WHERE NOT claimable AND NOT coming)
           + (SELECT count(*) FROM servers s WHERE s.region = $1 AND s.warm_plan = $2 AND s.status IN ('draining', 'terminated')
                AND s.active_at IS NULL AND s.created_at > now() - interval '1 hour') AS broken FROM members
), target AS (
    SELECT COALESCE((SELECT target FROM warm_pools WHERE region = $1 AND plan = $2), 0) AS n
)
SELECT claimable, coming, broken, t.n AS target, COALESCE((SELECT id FROM infra_providers WHERE enabled AND $1 = ANY (regions) ORDER BY id LIMIT 1), '') AS provider,
    EXISTS (SELECT FROM tenants WHERE region = $1 AND state = 'provisioning' AND status_reason IN ('awaiting_capacity', 'building_server')) AS tenants_wait
FROM counts, target t`

// WarmPool counts the members of a warm pool; only those with the current image are usable.
func (s *Store) WarmPool(ctx context.Context, region prego.Region, plan prego.Plan, image string) (tenant.WarmState, error) {
	w, err := one[tenant.WarmState](ctx, s.pool, sqlWarmDeficit, region, plan, image)
	return w, failed(fmt.Sprintf("warm pool %s/%s", region, plan), err)
}

const sqlWarmPoolKeys = `SELECT region, plan FROM warm_pools WHERE target > 0 ORDER BY 1, 2`

// WarmPoolKeys lists the warm pools that are wanted.
func (s *Store) WarmPoolKeys(ctx context.Context) ([]tenant.WarmPool, error) {
	rows, err := s.pool.Query(ctx, sqlWarmPoolKeys)
	if err != nil {
		return nil, fmt.Errorf("warm pools: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[tenant.WarmPool])
	return out, failed("warm pools", err)
}

// Warm nodes without a site, for the run that fills their pool.
const sqlWarmBare = `
SELECT server_id FROM servers s
WHERE region = $1 AND warm_plan = $2 AND status = 'active' AND cordoned_at IS NULL AND tenant_count = 0 AND dedicated_for_tenant_id IS NULL AND agent_status = 'connected'
  AND NOT EXISTS (SELECT FROM site_pool p WHERE p.app_server_id = s.server_id) ORDER BY server_id`

// WarmBare are the warm servers of a pool that have no site yet.
func (s *Store) WarmBare(ctx context.Context, region prego.Region, plan prego.Plan) ([]prego.ServerID, error) {
	return collectValues[prego.ServerID](ctx, s, fmt.Sprintf("warm pool %s/%s", region, plan), sqlWarmBare, region, plan)
}

// Unusable members of a warm pool: those with another image, and those whose site failed a
// while ago.
const sqlWarmStale = `
SELECT server_id FROM servers s
WHERE region = $1 AND warm_plan = $2 AND status = 'active' AND cordoned_at IS NULL AND tenant_count = 0 AND dedicated_for_tenant_id IS NULL
  AND (image <> $3 OR (NOT EXISTS (SELECT FROM site_pool p WHERE p.app_server_id = s.server_id AND p.state IN ('available', 'reserved'))
       AND EXISTS (SELECT FROM site_pool p WHERE p.app_server_id = s.server_id AND p.state = 'failed' AND p.updated_at < now() - make_interval(secs => $4))))
ORDER BY server_id`

// WarmStale lists the members of a warm pool that no tenant should get.
func (s *Store) WarmStale(ctx context.Context, region prego.Region, plan prego.Plan, image string, failureMemory time.Duration) ([]string, error) {
	return collectValues[string](ctx, s, fmt.Sprintf("warm pool %s/%s", region, plan), sqlWarmStale, region, plan, image, failureMemory.Seconds())
}

const sqlSitesToDrop = `
SELECT pool_site_id, app_server_id, db_shard_id, site_name, database_name, on_shard FROM site_pool
WHERE app_server_id = $1 AND state = 'failed' AND dropped_at IS NULL ORDER BY pool_site_id LIMIT 50`

// SitesToDrop lists the failed sites of a server that may have left something on its host.
func (s *Store) SitesToDrop(ctx context.Context, serverID prego.ServerID) ([]tenant.PoolSite, error) {
	return collect[tenant.PoolSite](ctx, s, fmt.Sprintf("failed sites of %s", serverID), sqlSitesToDrop, serverID)
}

// Only where the host can be reached: elsewhere it would fail again.
const sqlLeftSites = `
SELECT p.app_server_id FROM site_pool p JOIN servers s ON s.server_id = p.app_server_id
WHERE p.state = 'failed' AND p.dropped_at IS NULL AND p.updated_at < now() - make_interval(secs => $1) AND s.status = 'active' AND s.agent_status = 'connected'
GROUP BY p.app_server_id ORDER BY md5(p.app_server_id || now()) LIMIT 100`

// LeftSites lists the servers with a site that failed longer than failureMemory ago and could not be
// dropped then, whether or not their pool needs another one.
func (s *Store) LeftSites(ctx context.Context, failureMemory time.Duration) ([]string, error) {
	return collectValues[string](ctx, s, "failed sites that are left", sqlLeftSites, failureMemory.Seconds())
}

const sqlSiteDropped = `UPDATE site_pool SET dropped_at = now() WHERE pool_site_id = $1 AND state = 'failed' RETURNING 1::float8`

// SiteDropped records that nothing is left of a failed site.
func (s *Store) SiteDropped(ctx context.Context, poolSiteID string) error {
	_, err := s.oneNumber(ctx, sqlSiteDropped, poolSiteID)
	return err
}

// Servers whose pool has missed the tightest SLO it serves: a site has been building, or
// failed, for longer than that.
const beyondSLO = `
FROM site_pool p
WHERE ((p.state = 'reserved' AND p.tenant_id IS NULL) OR (p.state = 'failed' AND p.dropped_at IS NULL))
  AND p.created_at < now() - make_interval(secs => (SELECT min(slo_seconds) FROM site_pool_policies WHERE target > 0))`

const sqlBeyondSLO = `SELECT count(DISTINCT p.app_server_id)::float8` + beyondSLO

// PoolsBeyondSLO counts the servers whose site pool misses its SLO.
func (s *Store) PoolsBeyondSLO(ctx context.Context) (float64, error) {
	return s.oneNumber(ctx, sqlBeyondSLO)
}
