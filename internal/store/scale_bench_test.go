package store

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/pgtest"
	"github.com/prego/prego/server"
)

// scaleServers is how large the database of BenchmarkPeriodic and BenchmarkLists is.
// Tenants are ten times as many.
var scaleServers = flag.Int("scale-servers", 10_000, "servers of the database for BenchmarkPeriodic and BenchmarkLists")

// large is a database with n servers, 10 n tenants in n/10 orgs, n/10 process groups with
// ten instances each, and what belongs to them. One in a thousand of each is not as it
// should be. Triggers and foreign keys are off while it is filled: the rows are as they
// would have left them.
func large(b *testing.B, n int) *pgxpool.Pool {
	b.Helper()
	ctx := context.Background()
	pool := pgtest.Pool(b)
	conn, err := pool.Acquire(ctx)
	require.NoError(b, err)
	defer conn.Release()
	orgs, apps, groups := max(n/10, 1), n*9/10, max(n/10, 1)
	for _, sql := range []string{
		`SET session_replication_role = replica`,
		fmt.Sprintf(`INSERT INTO orgs (org_id, tier, created_by) SELECT 'o-' || i, 'enterprise', 'bench' FROM generate_series(0, %d) i`, orgs-1),
		`INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, min_size, max_size, spec, created_by, workload_memory_bytes, workload_cpus)
			SELECT 'nodes-' || i, '', 'app', 'hetzner', 0, -1, '{}', 'bench', 64::bigint << 30, 16 FROM generate_series(0, 9) i`,
		fmt.Sprintf(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, status_reason, agent_status, agent_last_heartbeat_at, memory_pct, workflow_id,
				created_by, created_at, updated_at, active_at, tenant_count, provider_server_id, location, fleet_id, host)
			SELECT 's-' || i, '', CASE i %% 20 WHEN 0 THEN 'db-shard' WHEN 1 THEN 'redis-pool' ELSE 'app' END, (ARRAY['eu', 'us', 'sg'])[1 + i %% 3], 'hetzner', '{}',
				CASE WHEN i %% 1000 = 7 THEN 'failed' ELSE 'active' END, CASE WHEN i %% 1000 = 7 THEN 'heartbeat_lost' ELSE '' END, CASE WHEN i %% 1000 = 7 THEN 'disconnected' ELSE 'connected' END,
				now(), 20, 'w', 'bench', now() - make_interval(secs => i), now() - make_interval(secs => i), now() - make_interval(secs => i),
				CASE WHEN i %% 20 > 1 THEN 11 ELSE 0 END, i::text, 'fsn1', CASE WHEN i %% 100 = 2 THEN 'nodes-' || i / 100 %% 10 END, '10.0.0.1'
			FROM generate_series(0, %d) i`, n-1),
		`INSERT INTO db_shards (shard_id, server_id, region, tenant_capacity, current_tenant_count) SELECT server_id, server_id, region, 1000, 200 FROM servers WHERE role = 'db-shard'`,
		`INSERT INTO redis_pools (pool_id, server_id, region, tenant_capacity, current_tenants) SELECT server_id, server_id, region, 1000, 200 FROM servers WHERE role = 'redis-pool'`,
		fmt.Sprintf(`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, converged_state, created_by, created_at, updated_at)
			SELECT 't-' || i, 'slug-' || i, 'o-' || i %% %d, (ARRAY['eu', 'us', 'sg'])[1 + i %% 3], (ARRAY['starter', 'business'])[1 + i %% 2], 10, 10, 'shared', '',
				CASE i %% 1000 WHEN 1 THEN 'provisioning' WHEN 2 THEN 'failed' WHEN 3 THEN 'suspended' WHEN 4 THEN 'data_purged' ELSE 'active' END,
				CASE i %% 1000 WHEN 1 THEN '' WHEN 2 THEN 'failed' WHEN 3 THEN 'suspended' WHEN 4 THEN 'data_purged' ELSE 'active' END,
				'bench', now() - make_interval(secs => i), now() - make_interval(secs => i)
			FROM generate_series(0, %d) i`, orgs, 10*n-1),
		fmt.Sprintf(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
			SELECT 't-' || i, 's-' || (i %% %[1]d / 18 * 20 + 2 + i %% 18), 's-' || (i %% %[1]d / 18 * 20), 's-' || (i %% %[1]d / 18 * 20 + 1), 't-' || i, 'd' || i, 'hetzner', 'best_fit'
			FROM generate_series(0, %[2]d) i WHERE i %% 1000 NOT IN (1, 2, 4)`, apps, 10*n-1),
		`INSERT INTO site_usage (tenant_id, database_bytes, files_bytes, tried_at, measured_at, quota_gb) SELECT tenant_id, 1 << 28, 1 << 28, now(), now(), 10 FROM tenant_allocations`,
		`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, available_at)
			SELECT 'p-' || server_id || '-' || k, server_id, (SELECT shard_id FROM db_shards LIMIT 1), 'p-' || server_id || '-' || k, 'x', 'available', now()
			FROM servers CROSS JOIN generate_series(1, 2) k WHERE role = 'app'`,
		fmt.Sprintf(`INSERT INTO apps (app_id, org_id, name, created_by) SELECT 'a-' || i, 'o-' || i, 'a', 'bench' FROM generate_series(0, %d) i`, orgs-1),
		fmt.Sprintf(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) SELECT 'e-' || i, 'a-' || i, 'o-' || i, 'e', 'eu', 'bench' FROM generate_series(0, %d) i`, orgs-1),
		fmt.Sprintf(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by, created_at, wanted, status, status_reason, waiting_since, converged)
			SELECT 'g-' || i, 'e-' || i, 'o-' || i, 'eu', 'g', '{"image": "web:1"}', 1 << 28, 0.1, 10, 'bench', now() - make_interval(secs => i), CASE WHEN i %% 100 = 3 THEN 1 ELSE 0 END,
				CASE WHEN i %% 100 = 3 THEN 'unschedulable' ELSE 'running' END, CASE WHEN i %% 100 = 3 THEN 'no_capacity_memory' ELSE '' END, CASE WHEN i %% 100 = 3 THEN now() END, i %% 100 <> 3
			FROM generate_series(0, %d) i`, groups-1),
		fmt.Sprintf(`INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request, number, spec, ports, state)
			SELECT 'i-' || i, 'g-' || i %% %[1]d, 'o-' || i %% %[1]d, 's-' || (i %% %[2]d / 100 * 100 + 2), 1, 1 << 28, 0.1, i, '{}', '[]', 'running' FROM generate_series(0, %[3]d) i`, groups, n, 10*groups-1),
		fmt.Sprintf(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, status, created_by, created_at)
			SELECT 'v-' || i, 'o-' || i, 'eu', 'fsn1', 'v', 10000000000, 'hetzner', 'v-' || i, 'ready', 'bench', now() - make_interval(secs => i) FROM generate_series(0, %d) i`, orgs-1),
		`RESET session_replication_role`,
		`VACUUM ANALYZE`,
	} {
		_, err := conn.Exec(ctx, sql)
		require.NoError(b, err, sql)
	}
	return pool
}

// slowest runs each of f several times, and returns the one with the longest time that
// all but the slowest of its runs kept. Sessions decide on a generic plan at the sixth run.
func slowest(b *testing.B, f map[string]func() error) (name string, took time.Duration) {
	b.Helper()
	const runs = 8
	for what, run := range f {
		var all []time.Duration
		for range runs {
			began := time.Now()
			require.NoError(b, run(), what)
			all = append(all, time.Since(began))
		}
		slices.Sort(all)
		at := all[runs-2]
		b.Logf("%8.2f ms  %s", float64(at.Microseconds())/1000, what)
		if at > took {
			name, took = what, at
		}
	}
	return name, took
}

// BenchmarkPeriodic times each statement that runs on a schedule, in a large database.
func BenchmarkPeriodic(b *testing.B) {
	s := New(large(b, *scaleServers))
	ctx := context.Background()
	none := func(_ any, err error) error { return err }
	statements := map[string]func() error{
		"tenants' work":    func() error { _, _, err := s.FindTenantWork(ctx, 10*time.Minute, 10*time.Minute); return err },
		"low pools":        func() error { return none(s.LowPools(ctx, time.Hour)) },
		"pools beyond SLO": func() error { return none(s.PoolsBeyondSLO(ctx)) },
		"settle demand":    func() error { return s.SettleDemand(ctx, time.Hour) },
		"open fleets":      func() error { return none(s.OpenFleets(ctx, time.Minute)) },
		"groups' work":     func() error { return none(s.FindGroupWork(ctx, time.Minute)) },
		"instance demand":  func() error { return none(s.InstanceDemand(ctx, prego.RegionEU, 500, nil)) },
		"instance servers": func() error { return none(s.InstanceServers(ctx, prego.RegionEU)) },
		"silent agents": func() error {
			return none(s.SweepSilent(ctx, server.SweepParams{DegradedAfter: time.Hour, FailedAfter: 2 * time.Hour, FreezePct: 50, FreezeMin: 10}))
		},
		"rows to reconcile": func() error { return none(s.FleetRows(ctx, prego.ProviderHetzner)) },
		"usage near limits": func() error { return none(s.UsageNearLimits(ctx, 100)) },
		"storage levels":    func() error { return none(s.StorageLevels(ctx)) },
		"storage turns":     func() error { return none(s.TakeStorageTurns(ctx, time.Hour, 100)) },
		"revoked servers":   func() error { return none(s.RevokedServers(ctx, time.Hour)) },
		"warm pool":         func() error { return none(s.WarmPool(ctx, prego.RegionEU, prego.PlanStarter, "image")) },
	}
	for b.Loop() {
		name, took := slowest(b, statements)
		b.Logf("the slowest: %s", name)
		b.ReportMetric(float64(took.Microseconds())/1000, "ms/worst")
	}
}

// BenchmarkLists times the first page of each list, for each of its filters and orders, in
// a large database.
func BenchmarkLists(b *testing.B) {
	s := New(large(b, *scaleServers))
	ctx := context.Background()
	value := map[string]string{
		"region": "us", "plan": "business", "state": "failed", "status": "failed", "agent_status": "disconnected", "role": "redis-pool", "infra_provider": "hetzner", "location": "fsn1",
		"org_id": "o-7", "parent_org_id": "none", "tenant_id": "t-77", "slug": "slug-77", "server_id": "s-77", "fleet_id": "nodes-7", "tag": "none", "group_id": "g-7", "env_id": "e-7", "app_id": "a-7",
		"name": "g", "volume_id": "v-7",
	}
	pages := map[string]func() error{}
	add := func(list string, filters, sorts map[string]string, page func(prego.ListQuery) error) {
		sorted := func(name string, q prego.ListQuery) {
			pages[name] = func() error { return page(q) }
			for by := range sorts {
				for _, order := range []string{by, "-" + by} {
					q := q
					q.Sort = order
					pages[name+" by "+order] = func() error { return page(q) }
				}
			}
		}
		sorted(list, prego.ListQuery{Limit: 50})
		for field := range filters {
			require.NotEmpty(b, value[field], "a value of %s", field)
			sorted(list+" of "+field, prego.ListQuery{Limit: 50, Filters: map[string][]string{field: {value[field]}}})
		}
	}
	add("tenants", tenants.filters, tenants.sorts, func(q prego.ListQuery) error { _, _, err := s.ListTenants(ctx, q); return err })
	add("servers", servers.filters, servers.sorts, func(q prego.ListQuery) error { _, _, err := s.ListServers(ctx, q); return err })
	add("process groups", groups.filters, groups.sorts, func(q prego.ListQuery) error { _, _, err := s.ListGroups(ctx, q); return err })
	add("volumes", volumes.filters, volumes.sorts, func(q prego.ListQuery) error { _, _, err := s.ListVolumes(ctx, q); return err })
	for b.Loop() {
		name, took := slowest(b, pages)
		b.Logf("the slowest: %s", name)
		b.ReportMetric(float64(took.Microseconds())/1000, "ms/worst")
	}
}
