package store

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// A site that is being built is not reserved. On a shard's server are the sites that have their databases there.
const sqlListSitePools = `
SELECT s.server_id, s.region, s.role, s.status, s.tenant_count,
    count(*) FILTER (WHERE p.state = 'available') AS available, count(*) FILTER (WHERE p.state = 'reserved') AS reserved,
    count(*) FILTER (WHERE p.state = 'assigned') AS assigned, count(*) FILTER (WHERE p.state = 'failed') AS failed, count(*) FILTER (WHERE p.state = 'draining') AS draining,
    min(p.created_at) FILTER (WHERE p.state = 'reserved' AND p.tenant_id IS NULL) AS oldest_build
FROM servers s LEFT JOIN site_pool p ON p.app_server_id = s.server_id AND (cardinality($2::text[]) = 0
    OR s.server_id = ANY ($2)
    OR p.db_shard_id = ANY (ARRAY(SELECT d.shard_id FROM db_shards d WHERE d.server_id = ANY ($2))))
WHERE s.role IN ('app', 'node') AND s.status IN ('active', 'draining', 'failed') AND ($1 = '' OR s.region = $1)
  AND (cardinality($2) = 0 OR s.server_id = ANY ($2) OR p.pool_site_id IS NOT NULL)
GROUP BY s.server_id ORDER BY s.server_id`

// ListSitePools counts the ready sites on each app server and node, by id; region "" is all of them. With servers it
// counts only the sites that are on one of them, or have their database there.
func (s *Store) ListSitePools(
	ctx context.Context, region prego.Region, on ...prego.ServerID,
) ([]tenant.SitePool, error) {
	return collect[tenant.SitePool](ctx, s, "list site pools", sqlListSitePools, region, filled(on))
}

const sqlSitePoolPolicies = `
SELECT plan, low_watermark, target, slo_seconds FROM site_pool_policies
ORDER BY array_position(ARRAY['trial', 'starter', 'business', 'enterprise'], plan)`

// SitePoolPolicies are how many sites are kept for each plan tier, the least plan
// first.
func (s *Store) SitePoolPolicies(ctx context.Context) ([]tenant.SitePoolPolicy, error) {
	return collect[tenant.SitePoolPolicy](ctx, s, "site pool policies", sqlSitePoolPolicies)
}

const sqlPutSitePoolPolicy = `
INSERT INTO site_pool_policies (plan, low_watermark, target, slo_seconds) VALUES ($1, $2, $3, $4)
ON CONFLICT (plan) DO UPDATE SET low_watermark = EXCLUDED.low_watermark, target = EXCLUDED.target, slo_seconds = EXCLUDED.slo_seconds`

// PutSitePoolPolicy replaces the policy of a plan tier. With match, see holdVersion.
func (s *Store) PutSitePoolPolicy(ctx context.Context, p tenant.SitePoolPolicy, match ...string) error {
	return s.replacing(ctx, match, prego.ReplaceableSitePoolPolicy, []any{p.Plan}, func(tx *txn) error {
		tx.run(ctx, sqlPutSitePoolPolicy, p.Plan, p.LowWatermark, p.Target, p.SLOSeconds)
		return nil
	})
}

// A node that was created for the plan and has no tenant is claimable, building, or
// broken: with a site that failed it takes no place in the pool.
const sqlListWarmPools = `
SELECT w.region, w.plan, w.target,
    count(*) FILTER (WHERE n.claimable) AS claimable,
    count(*) FILTER (WHERE NOT n.claimable AND (n.status = 'provisioning' OR NOT n.site_failed)) AS building,
    w.updated_by, w.updated_at
FROM warm_pools w LEFT JOIN LATERAL (
    SELECT s.status,
        s.status = 'active' AND s.agent_status = 'connected'
            AND EXISTS (SELECT FROM site_pool p WHERE p.app_server_id = s.server_id AND p.state = 'available') AS claimable,
        EXISTS (SELECT FROM site_pool p WHERE p.app_server_id = s.server_id AND p.state = 'failed') AS site_failed
    FROM servers s
    WHERE s.status IN ('provisioning', 'active') AND s.cordoned_at IS NULL AND s.region = w.region AND s.role = 'node' AND s.warm_plan = w.plan
      AND s.tenant_count = 0 AND s.dedicated_for_tenant_id IS NULL) n ON true
GROUP BY w.region, w.plan ORDER BY w.region, array_position(ARRAY['trial', 'starter', 'business', 'enterprise'], w.plan)`

// ListWarmPools are the requested warm server pools, with how far
// they are.
func (s *Store) ListWarmPools(ctx context.Context) ([]tenant.WarmPool, error) {
	return collect[tenant.WarmPool](ctx, s, "list warm pools", sqlListWarmPools)
}

const sqlPutWarmPool = `
INSERT INTO warm_pools (region, plan, target, updated_by) VALUES ($1, $2, $3, $4)
ON CONFLICT (region, plan) DO UPDATE SET target = EXCLUDED.target, updated_by = EXCLUDED.updated_by, updated_at = now()`

// PutWarmPool sets how many servers a warm pool must hold. With match, see holdVersion.
func (s *Store) PutWarmPool(ctx context.Context, region prego.Region, plan prego.Plan, target int, by string, match ...string) error {
	return s.replacing(ctx, match, prego.ReplaceableWarmPool, []any{region, plan}, func(tx *txn) error {
		tx.run(ctx, sqlPutWarmPool, region, plan, target, by)
		return nil
	})
}

// ScalingEvents is the list of the events that made the fleet grow.
var ScalingEvents = Listing[tenant.ScalingEvent]{
	what: "scaling events", from: sqlScalingEvents,
	filters: map[string]string{"region": "region", "role": "role", "trigger": "trigger"},
	sorts:   map[string]string{"created_at": "event_id"},
	id:      "event_id",
	table:   "scaling_events",
	dimensions: []dimension{
		{"region", prego.Strings(prego.Regions())}, {"role", prego.Strings(prego.Roles())}, {"trigger", []string{"scale_out_required", "threshold", "warm_pool"}},
	},
}

const sqlScalingEvents = `
SELECT event_id, region, role, trigger, waiting, requested, made, server_ids, workflow_id, message, created_at, finished_at
FROM scaling_events`

const sqlRecordOverride = `
INSERT INTO placement_overrides (tenant_id, force_app_server_id, force_db_shard_id, reason, actor, accepted, refusal_code, refusal, ignore_constraint,
    force_redis_pool_id)
VALUES ($1, NULLIF($2, ''), NULLIF($3, ''), $4, $5, $6, $7, $8, $9, NULLIF($10, ''))`

// RecordOverride keeps an operator's override for audit, refused ones too; of an
// accepted one code and refusal are "" (placement-policy §8).
func (s *Store) RecordOverride(ctx context.Context, o tenant.PlacementOverride, by string, accepted bool, code prego.Code, refusal string) error {
	return s.exec(ctx, string("record override of tenant "+o.TenantID), sqlRecordOverride, o.TenantID, o.ForceAppServerID, o.ForceDBShardID, o.Reason, by, accepted, code, refusal,
		o.IgnoreConstraint, o.ForceRedisPoolID)
}
