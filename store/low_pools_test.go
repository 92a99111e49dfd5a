package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/deep"
)

// The rule of low pools for one server after the other, as it reads.
const sqlLowPoolsOneByOne = `
SELECT s.server_id FROM servers s
WHERE s.status = 'active' AND s.cordoned_at IS NULL AND s.agent_status = 'connected' AND s.dedicated_for_tenant_id IS NULL
  AND NOT EXISTS (SELECT FROM fleets f WHERE f.fleet_id = s.fleet_id AND NOT f.serves_tenants)
  AND (s.role = 'app' OR (s.role = 'node' AND s.warm_plan IS NOT NULL AND s.tenant_count = 0))
  AND ((SELECT count(*) FROM site_pool p JOIN db_shards d ON d.shard_id = p.db_shard_id
         WHERE p.app_server_id = s.server_id AND (p.state = 'available' OR (p.state = 'reserved' AND p.tenant_id IS NULL))
           AND d.status = 'active' AND d.dedicated_for_tenant_id IS NULL AND d.current_tenant_count < d.tenant_capacity)
    < CASE s.role WHEN 'node' THEN 1 ELSE (SELECT COALESCE(sum(low), 0) FROM (SELECT max(low_watermark) AS low FROM site_pool_policies p
          WHERE p.target > 0 AND NOT must_be_alone(p.plan, 'shared', false) AND EXISTS (SELECT FROM db_shards d WHERE d.status = 'active' AND d.region = s.region AND NOT d.on_node
              AND d.current_tenant_count < d.tenant_capacity AND d.dedicated_for_tenant_id IS NULL
              AND NOT EXISTS (SELECT FROM servers h JOIN fleets f ON f.fleet_id = h.fleet_id WHERE h.server_id = d.server_id AND NOT f.serves_tenants)
              AND tier_lock_allows(p.plan, d.plan_tier_lock))
          GROUP BY p.plan = 'business') l) END
    OR (s.role = 'app' AND s.tenant_count = 0 AND NOT runs_instances(s.server_id)
      AND EXISTS (SELECT FROM site_pool_policies p JOIN db_shards d ON tier_lock_allows(p.plan, d.plan_tier_lock)
          WHERE p.low_watermark > 0 AND must_be_alone(p.plan, 'shared', false) AND d.status = 'active' AND d.region = s.region AND NOT d.on_node
            AND d.current_tenant_count = 0 AND d.dedicated_for_tenant_id IS NULL AND NOT runs_instances(d.server_id)
            AND NOT EXISTS (SELECT FROM servers h JOIN fleets f ON f.fleet_id = h.fleet_id WHERE h.server_id = d.server_id AND NOT f.serves_tenants)
            AND NOT EXISTS (SELECT FROM site_pool q JOIN db_shards e ON e.shard_id = q.db_shard_id
                WHERE q.app_server_id = s.server_id AND (q.state = 'available' OR (q.state = 'reserved' AND q.tenant_id IS NULL))
                  AND e.status = 'active' AND e.dedicated_for_tenant_id IS NULL AND e.current_tenant_count = 0 AND tier_lock_allows(p.plan, e.plan_tier_lock)
                  AND NOT runs_instances(e.server_id)))))
  AND NOT EXISTS (SELECT FROM site_pool p WHERE p.app_server_id = s.server_id AND p.state = 'failed' AND p.updated_at > now() - make_interval(secs => $1))
ORDER BY s.server_id`

func TestLowPoolsInOnePassAreThoseOfEachServer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	exec(t, s, `INSERT INTO orgs (org_id, tier, created_by) VALUES ('o', 'paid', 'test') ON CONFLICT DO NOTHING`)
	exec(t, s, `INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, min_size, max_size, spec, created_by, serves_tenants) VALUES ('web', '', 'app', 'hetzner', 0, -1, '{}', 'test', false)`)
	some := 0
	for seed := range uint64(deep.Times(12)) {
		r := rand.New(rand.NewPCG(seed, 1))
		pick := func(of ...string) string { return of[r.IntN(len(of))] }
		exec(t, s, `TRUNCATE site_pool, instances, process_groups, db_shards, servers CASCADE`)
		for _, plan := range []string{"trial", "starter", "business", "enterprise"} {
			low := r.IntN(3)
			exec(t, s, `UPDATE site_pool_policies SET low_watermark = $2, target = $3 WHERE plan = $1`, plan, low, low+r.IntN(2))
		}
		exec(t, s, `SET session_replication_role = replica; INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by)
			VALUES ('g', 'e', 'o', 'eu', 'g', '{}', 1, 1, 1, 'test')`)
		var shards []string
		for i := range 12 {
			id := fmt.Sprintf("s-%02d", i)
			role := pick("app", "app", "app", "node", "db-shard")
			exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, tenant_count, fleet_id, warm_plan, dedicated_for_tenant_id, cordoned_at)
				VALUES ($1, '', $2, $3, 'hetzner', '{}', $4, $5, 'w', 'test', $6, NULLIF($7, ''), NULLIF($8, ''), NULLIF($9, ''), CASE WHEN $10 THEN now() END)`, id, role, pick("eu", "us"), pick("active", "active", "active", "failed"),
				pick("connected", "connected", "degraded"), r.IntN(2), pick("", "", "", "web"), pick("", "starter"), pick("", "", "", "t"), (i+int(seed))%6 == 0)
			if role != "app" {
				shards = append(shards, id)
				exec(t, s, `INSERT INTO db_shards (shard_id, server_id, region, on_node, plan_tier_lock, dedicated_for_tenant_id, current_tenant_count, tenant_capacity, status)
					VALUES ($1, $1, $2, $3, NULLIF($4, ''), NULLIF($5, ''), $6, 2, $7)`, id, pick("eu", "us"), role == "node", pick("", "", "trial", "business"), pick("", "", "", "t"), r.IntN(3), pick("active", "active", "draining"))
			}
			if r.IntN(4) == 0 {
				exec(t, s, `INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request, number, spec, ports, state)
					VALUES ($1, 'g', 'o', $1, 1, 1, 1, 1, '{}', '[]', $2)`, id, pick("running", "stopped"))
			}
			for k := range r.IntN(4) {
				if len(shards) > 0 {
					state := pick("available", "available", "reserved", "failed")
					exec(t, s, `INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, reserved_until, updated_at)
						VALUES ($1, $2, $3, $1, 'd', $4, CASE WHEN $4 = 'reserved' THEN now() END, now() - make_interval(mins => $5))`, fmt.Sprintf("%s-%d", id, k), id, pick(shards...), state, r.IntN(120))
				}
			}
		}
		want, err := values[string](ctx, s.pool, sqlLowPoolsOneByOne, time.Hour.Seconds())
		require.NoError(t, err)
		got, err := s.LowPools(ctx, time.Hour)
		require.NoError(t, err)
		require.ElementsMatch(t, want, got, "seed %d", seed)
		some += len(want)
	}
	require.Positive(t, some)
}
