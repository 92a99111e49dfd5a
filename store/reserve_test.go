package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/tenant"
)

// sqlPlaced is everything that reservations write, as one text.
const sqlPlaced = `SELECT jsonb_build_array(
	(SELECT jsonb_agg(to_jsonb(x) - 'allocation_id' - 'created_at' ORDER BY tenant_id) FROM tenant_allocations x),
	(SELECT jsonb_agg(jsonb_build_array(tenant_id, outcome, algorithm, decision_log, policy_json, actor, allocation_id IS NOT NULL) ORDER BY tenant_id) FROM allocation_snapshots),
	(SELECT jsonb_agg(jsonb_build_array(tenant_id, from_state, to_state, step, actor, reason) ORDER BY tenant_id) FROM tenant_lifecycle_events),
	(SELECT jsonb_agg(jsonb_build_array(tenant_id, state, status_reason, waiting_since, waiting_roles) ORDER BY tenant_id) FROM tenants),
	(SELECT jsonb_agg(jsonb_build_array(server_id, tenant_count, dedicated_for_tenant_id) ORDER BY server_id) FROM servers),
	(SELECT jsonb_agg(jsonb_build_array(shard_id, current_tenant_count, dedicated_for_tenant_id) ORDER BY shard_id) FROM db_shards),
	(SELECT jsonb_agg(jsonb_build_array(pool_id, current_tenants, dedicated_for_tenant_id) ORDER BY pool_id) FROM redis_pools),
	(SELECT jsonb_agg(jsonb_build_array(pool_site_id, state, tenant_id, reserved_until) ORDER BY pool_site_id) FROM site_pool))::text`

// drawFleet writes a small fleet and the tenants that want a place in it, and returns what
// they try to reserve, whether or not it is theirs to have.
func drawFleet(t *rapid.T, tx pgx.Tx) []tenant.Reservation {
	exec := func(sql string, args ...any) {
		_, err := tx.Exec(context.Background(), sql, args...)
		require.NoError(t, err, "%s", sql)
	}
	some := func(name string, in int) bool { return rapid.IntRange(1, in).Draw(t, name) == in }
	id := func(prefix string, most int) string {
		return fmt.Sprintf("%s-%d", prefix, rapid.IntRange(0, most).Draw(t, prefix))
	}
	maybe := func(name string, v any, in int) any {
		if some(name, in) {
			return v
		}
		return nil
	}
	exec(`INSERT INTO orgs (org_id, tier, created_by) VALUES ('o', 'enterprise', 'test'), ('p', 'enterprise', 'test')`)
	exec(`INSERT INTO placement_pools (pool_id, name, require_tags, disallow_tags, created_by, updated_by) VALUES ('blue', 'blue', '{blue}', '{}', 'test', 'test')`)
	exec(`INSERT INTO org_placement_pools (org_id, pool_id, created_by) VALUES ('p', 'blue', 'test')`)
	exec(`UPDATE infra_providers SET enabled = $1 WHERE id = 'hetzner'`, !some("provider off", 12))
	exec(`INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range) VALUES ('n1', 'hetzner', 'eu-central', 1, '10.64.0.0/24'), ('n2', 'hetzner', 'eu-central', 2, '10.64.1.0/24')`)
	networks := some("networks", 2)
	server := func(id string, role prego.Role) {
		tags := []string{}
		if some("blue", 3) {
			tags = []string{"blue"}
		}
		exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, memory_pct, cpu_pct, db_disk_pct, redis_memory_pct, workflow_id, created_by,
			active_at, tags, accepts_trial, warm_plan, cordoned_at, dedicated_for_tenant_id)
			VALUES ($1, '', $2, $3, 'hetzner', '{}', $4, 'connected', $5, $6, $7, $8, 'w', 'test', now(), $9, $10, $11, $12, $13)`,
			id, role, rapid.SampledFrom([]string{"eu", "eu", "eu", "eu", "eu", "eu", "eu", "eu", "eu", "us"}).Draw(t, "region"), rapid.SampledFrom([]string{"active", "active", "active", "active", "active", "active", "active", "failed"}).Draw(t, "status"),
			maybe("memory", 75, 8), maybe("cpu", 95, 8), maybe("disk", 95, 10), maybe("redis memory", 95, 10), tags, !some("no trials", 6), maybe("warm", "starter", 8),
			maybe("cordoned", time.Now(), 10), maybe("dedicated", "t-1", 8))
		if networks { // one without an address is not there yet
			exec(`UPDATE servers SET network_id = $2, private_address = $3 WHERE server_id = $1`, id,
				rapid.SampledFrom([]string{"n1", "n1", "n1", "n1", "n1", "n1", "n2"}).Draw(t, "network"), rapid.SampledFrom([]any{"10.64.0.7", "10.64.0.7", "10.64.0.7", "10.64.0.7", "10.64.0.7", "10.64.0.7", nil}).Draw(t, "address"))
		}
	}
	part := func(shard, onNode bool, id, server string) {
		n := rapid.IntRange(1, 4).Draw(t, "capacity")
		if shard {
			exec(`INSERT INTO db_shards (shard_id, server_id, region, on_node, tenant_capacity, plan_tier_lock, dedicated_for_tenant_id) SELECT $1, server_id, region, $3, $4, $5, $6 FROM servers WHERE server_id = $2`,
				id, server, onNode, n, maybe("lock", rapid.SampledFrom([]string{"trial", "business"}).Draw(t, "to"), 4), maybe("dedicated", "t-2", 8))
			return
		}
		exec(`INSERT INTO redis_pools (pool_id, server_id, region, on_node, tenant_capacity, dedicated_for_tenant_id) SELECT $1, server_id, region, $3, $4, $5 FROM servers WHERE server_id = $2`,
			id, server, onNode, n, maybe("dedicated", "t-2", 8))
	}
	for i := range 3 {
		server(fmt.Sprintf("app-%d", i), prego.RoleApp)
	}
	server("node-0", prego.RoleNode)
	part(true, true, "node-0", "node-0")
	part(false, true, "node-0", "node-0")
	for i := range 2 {
		for _, kind := range []string{"db", "redis"} {
			host := fmt.Sprintf("%s-%d", kind, i)
			server(host, map[string]prego.Role{"db": prego.RoleDBShard, "redis": prego.RoleRedisPool}[kind])
			part(kind == "db", false, host, host)
		}
	}
	for i := range 4 {
		app, shard := id("app", 2), id("db", 1)
		exec(`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, available_at) VALUES ($1, $2, $3, $1 || '.pool', $1, $4, now())`,
			fmt.Sprintf("site-%d", i), app, shard, rapid.SampledFrom([]string{"available", "available", "available", "draining"}).Draw(t, "state"))
	}
	var apart, others []tenant.Reservation
	for i := range rapid.IntRange(1, 10).Draw(t, "tenants") {
		name, mode := fmt.Sprintf("t-%d", i), tenant.ModeShared
		plan := rapid.SampledFrom([]prego.Plan{"trial", "starter", "starter", "starter", "business", "enterprise"}).Draw(t, "plan")
		if some("own server", 8) {
			mode = tenant.ModeOneTenantOneServer
		}
		redis := plan == prego.PlanBusiness && some("own redis", 3)
		tags := []string{}
		if some("wants blue", 8) {
			tags = []string{"blue"}
		}
		exec(`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by, require_tags, data_residency, dedicated_redis, generation, waiting_since, status_reason)
			VALUES ($1, $1, $2, $3, $4, 10, 10, $5, '', $6, 'test', $7, $8, $9, 1, now(), 'awaiting_capacity')`,
			name, rapid.SampledFrom([]string{"o", "o", "o", "p"}).Draw(t, "org"), rapid.SampledFrom([]string{"eu", "eu", "eu", "eu", "eu", "eu", "eu", "eu", "eu", "us"}).Draw(t, "region"), plan, mode,
			rapid.SampledFrom([]string{"provisioning", "provisioning", "provisioning", "provisioning", "trial", "trial", "active"}).Draw(t, "state"), tags, maybe("residency", "DE", 6), redis)
		if some("placed before", 10) {
			exec(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm) VALUES ($1, 'app-0', 'db-0', 'redis-0', '', '', 'hetzner', 'before')`, name)
		}
		r := tenant.Reservation{
			TenantID: prego.TenantID(name), Generation: 1, AppServerID: prego.ServerID(id("app", 2)), DBShardID: prego.ShardID(id("db", 1)), RedisPoolID: prego.RedisPoolID(id("redis", 1)),
			SiteName: name + ".sites", DatabaseName: name, Mode: mode, Algorithm: "best_fit", AuditAs: "best_fit", Dedicates: plan == prego.PlanEnterprise || mode != tenant.ModeShared,
			MemoryPctMax: 70, MaxTenants: 3, MeasuredLimits: tenant.MeasuredLimits{CPUPctMax: 90, DBDiskPctMax: 90, RedisMemoryPctMax: 90}, ReserveFor: time.Minute,
			Decision: fmt.Appendf(nil, `{"tenant_id": %q}`, name), Policy: []byte(`{"a": [1, "\"x\\"]}`), Reason: "because, {it} \"is\"", Actor: "test",
		}
		if some("node", 5) {
			r.AppServerID = "node-0"
			if !some("torn", 4) {
				r.DBShardID, r.RedisPoolID = "node-0", "node-0"
			}
		}
		if some("site", 2) {
			r.PoolSiteID = id("site", 3)
			if err := tx.QueryRow(context.Background(), `SELECT app_server_id, db_shard_id FROM site_pool WHERE pool_site_id = $1`, r.PoolSiteID).Scan(&r.AppServerID, &r.DBShardID); err != nil {
				require.NoError(t, err)
			}
		}
		if some("another generation", 12) {
			r.Generation = 2
		}
		if some("unknown", 15) {
			r.TenantID = "unknown"
		}
		if r.Dedicates || redis {
			apart = append(apart, r)
		} else {
			others = append(others, r)
		}
	}
	return append(apart, others...)
}

// TestReservingTogetherIsReservingOneByOne: each gets the outcome that it would get alone after those before it, and what
// is left behind is the same. TestPlacesAreOneRule checks which outcome that is.
func TestReservingTogetherIsReservingOneByOne(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, pgtest.URL(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(ctx) })
	outcomes := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(ctx) }()
		rs := drawFleet(t, tx)
		attempt := func(f func(tx pgx.Tx) []tenant.ReserveResult) (out []tenant.ReserveResult, rows string) {
			inner, err := tx.Begin(ctx)
			require.NoError(t, err)
			out = f(inner)
			rows, err = value[string](ctx, inner, sqlPlaced)
			require.NoError(t, err)
			require.NoError(t, inner.Rollback(ctx))
			for i := range out { // numbers of allocations continue
				require.Equal(t, out[i].Outcome == tenant.ReservePlaced || out[i].Outcome == tenant.ReserveAlready, out[i].AllocationID > 0)
				out[i].AllocationID = 0
			}
			return out, rows
		}
		alone, rows := attempt(func(tx pgx.Tx) (out []tenant.ReserveResult) {
			for _, r := range rs {
				one, err := reserve(ctx, tx, false, r)
				require.NoError(t, err)
				out = append(out, one...)
			}
			return out
		})
		together, theirs := attempt(func(tx pgx.Tx) []tenant.ReserveResult {
			out, err := reserve(ctx, tx, true, rs...)
			require.NoError(t, err)
			return out
		})
		require.Equal(t, alone, together)
		require.Equal(t, rows, theirs)
		for _, r := range together {
			outcomes[string(r.Outcome)+" "+r.Lost]++
		}
	})
	for _, o := range []string{"placed ", "already ", "gone ", "lost site", "lost constraint", "lost app_server", "lost db_shard", "lost redis_pool"} {
		require.Positive(t, outcomes[o], "%q was never met: %v", o, outcomes)
	}
}
