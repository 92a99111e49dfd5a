package pgtest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// FillLarge fills a migrated database with n servers, 10 n tenants in n/10 orgs, n/10
// process groups with ten instances each, and what belongs to them. One in a thousand of
// each is not as it should be. What lists filter by is skewed: org o-0 has a tenth of all
// tenants, and some plans, states and tags occur only in the oldest rows. Triggers and
// foreign keys are off meanwhile: the rows are as they would have left them. Then it runs
// more statements, also without triggers.
func FillLarge(t testing.TB, url string, n int, more ...string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	settings := []string{
		`SET session_replication_role = replica`, `SET synchronous_commit = off`,
		`SET maintenance_work_mem = '512MB'`,
	}
	for _, sql := range slices.Concat(settings, largeRows(n), more,
		[]string{`RESET session_replication_role`, `VACUUM ANALYZE`}) {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("pgtest: %v: %s", err, sql)
		}
	}
}

func largeRows(n int) []string {
	orgs, groups := max(n/10, 1), max(n/10, 1)
	rows := func(insert string, n int, args ...any) string {
		return fmt.Sprintf(insert, args...) + fmt.Sprintf(" FROM generate_series(0, %d) i", n-1)
	}
	return []string{
		rows(`INSERT INTO orgs (org_id, tier, created_by, created_at, parent_org_id)
			SELECT 'o-' || i, CASE WHEN i = 0 THEN 'paid' ELSE 'enterprise' END, 'bench', now() - make_interval(secs => %[1]d - i), CASE WHEN i %% 1000 = 5 THEN 'o-0' END`, orgs, orgs),
		`INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, min_size, max_size, spec, created_by, workload_memory_bytes, workload_cpus)
			SELECT 'nodes-' || i, '', 'app', 'hetzner', 0, -1, '{}', 'bench', 64::bigint << 30, 16 FROM generate_series(0, 9) i`,
		rows(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, tags, status, status_reason, agent_status, agent_last_heartbeat_at, memory_pct, workflow_id,
				created_by, created_at, updated_at, active_at, tenant_count, provider_server_id, location, fleet_id, host)
			SELECT 's-' || i, '', CASE i %% 20 WHEN 0 THEN 'db-shard' WHEN 1 THEN 'redis-pool' ELSE 'app' END, (ARRAY['eu', 'us', 'sg'])[1 + i / 20 %% 3], 'hetzner', '{}',
				CASE WHEN i >= %[1]d * 9 / 10 THEN '{oldest}'::text[] WHEN i %% 1000 = 3 THEN '{few}' WHEN i %% 2 = 0 THEN '{many}' ELSE '{}' END,
				CASE WHEN i %% 1000 = 7 THEN 'failed' WHEN i > %[1]d - 50 THEN 'draining' ELSE 'active' END, CASE WHEN i %% 1000 = 7 THEN 'heartbeat_lost' ELSE '' END,
				CASE WHEN i %% 1000 = 7 THEN 'disconnected' WHEN i > %[1]d - 80 THEN 'degraded' ELSE 'connected' END,
				now(), 20, 'w', 'bench', now() - make_interval(secs => i), now() - make_interval(secs => i), now() - make_interval(secs => i),
				CASE WHEN i %% 20 > 1 AND i %% 1000 <> 9 THEN 11 ELSE 0 END, i::text, 'fsn1', CASE WHEN i %% 100 = 2 THEN 'nodes-' || i / 100 %% 10 END, '10.0.0.1'`, n, n),
		`INSERT INTO db_shards (shard_id, server_id, region, tenant_capacity, current_tenant_count, plan_tier_lock)
			SELECT server_id, server_id, region, 1000, 200, CASE WHEN substr(server_id, 3)::int % 200 = 0 THEN 'business' END FROM servers WHERE role = 'db-shard'`,
		`INSERT INTO redis_pools (pool_id, server_id, region, tenant_capacity, current_tenants) SELECT server_id, server_id, region, 1000, 200 FROM servers WHERE role = 'redis-pool'`,
		rows(`INSERT INTO tenants (tenant_id, slug, org_id, parent_org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, converged_state, site, created_by, created_at, updated_at)
			SELECT 't-' || i, 'slug-' || i, CASE WHEN i %% 10 = 0 THEN 'o-0' ELSE 'o-' || i %% %[2]d END, CASE WHEN i %% 1000 = 5 THEN 'o-0' END, (ARRAY['eu', 'us', 'sg'])[1 + i %% 3],
				CASE WHEN i >= %[1]d - 100 THEN 'enterprise' ELSE (ARRAY['starter', 'business'])[1 + i %% 2] END, 10, 10, 'shared', '', state, CASE state WHEN 'provisioning' THEN '' ELSE state END,
				CASE WHEN state IN ('active', 'suspended', 'grace_period') THEN 't-' || i ELSE '' END, 'bench', now() - make_interval(secs => i), now() - make_interval(secs => i)
			FROM (SELECT i, CASE WHEN i %% 1000 = 1 THEN 'provisioning' WHEN i %% 1000 = 2 THEN 'failed' WHEN i %% 1000 = 3 THEN 'suspended' WHEN i %% 1000 = 4 THEN 'data_purged'
				WHEN i > %[1]d - 50 THEN 'grace_period' WHEN i < %[1]d / 500 THEN 'data_purged' ELSE 'active' END AS state`, 10*n, 10*n, orgs) + `) i`,
		fmt.Sprintf(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
			SELECT tenant_id, 's-' || (i %% %[1]d / 18 * 20 + 2 + i %% 18), 's-' || (i %% %[1]d / 18 * 20), 's-' || (i %% %[1]d / 18 * 20 + 1), 't-' || i, 'd' || i, 'hetzner', 'best_fit'
			FROM (SELECT tenant_id, substr(tenant_id, 3)::int AS i FROM tenants WHERE state IN ('active', 'suspended', 'grace_period')) t`, n*9/10),
		`INSERT INTO site_usage (tenant_id, database_bytes, files_bytes, tried_at, measured_at, quota_gb, level)
			SELECT tenant_id, 1 << 28, 1 << 28, now() - make_interval(secs => i % 3000), now(), 10, CASE WHEN i % 1000 = 8 THEN 'over' ELSE 'ok' END FROM (SELECT tenant_id, substr(tenant_id, 3)::int AS i FROM tenant_allocations) a`,
		`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, available_at)
			SELECT 'p-' || i || '-' || k, server_id, 's-' || i / 20 * 20, 'p-' || i || '-' || k, 'x', 'available', now()
			FROM (SELECT server_id, substr(server_id, 3)::int AS i FROM servers WHERE role = 'app') s CROSS JOIN generate_series(1, 3) k WHERE i % 1000 <> 11 OR k = 1`,
		`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, available_at, tenant_id)
			SELECT 'q-' || tenant_id, app_server_id, db_shard_id, 'q-' || tenant_id, 'x', 'assigned', now(), tenant_id FROM tenant_allocations WHERE allocation_id % 2 = 0`,
		rows(`INSERT INTO apps (app_id, org_id, name, created_by, created_at) SELECT 'a-' || i, 'o-' || i, 'a', 'bench', now() - make_interval(secs => i)`, orgs),
		rows(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by, created_at)
			SELECT 'e-' || i, 'a-' || i, 'o-' || i, 'e', CASE WHEN i >= %[1]d - 10 THEN 'sg' ELSE 'eu' END, 'bench', now() - make_interval(secs => i)`, orgs, orgs),
		rows(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by, created_at, wanted, status, status_reason, waiting_since, converged)
			SELECT 'g-' || i, 'e-' || i, 'o-' || i, CASE WHEN i >= %[1]d - 10 THEN 'sg' ELSE 'eu' END, CASE WHEN i >= %[1]d - 10 THEN 'oldest' ELSE 'g' END, '{"image": "web:1"}', 1 << 28, 0.1, 10, 'bench',
				now() - make_interval(secs => i), CASE WHEN i %% 100 = 3 THEN 1 ELSE 0 END, CASE WHEN i >= %[1]d - 10 THEN 'stopped' WHEN i %% 100 = 3 THEN 'unschedulable' ELSE 'running' END,
				CASE WHEN i %% 100 = 3 THEN 'no_capacity_memory' ELSE '' END, CASE WHEN i %% 100 = 3 THEN now() END, i %% 100 <> 3`, groups, groups),
		rows(`INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request, number, spec, ports, state)
			SELECT 'i-' || i, 'g-' || i %% %[1]d, 'o-' || i %% %[1]d, 's-' || (i %% %[2]d / 100 * 100 + 2), 1, 1 << 28, 0.1, i, '{}', '[]', CASE WHEN i %% 100 = 7 THEN 'stopped' ELSE 'running' END`, 10*groups, groups, n),
		rows(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, status, created_by, created_at)
			SELECT 'v-' || i, 'o-' || i, CASE WHEN i >= %[1]d - 10 THEN 'us' ELSE 'eu' END, CASE WHEN i >= %[1]d - 10 THEN 'ash' ELSE 'fsn1' END, 'v', 10000000000::bigint + i, 'hetzner', 'v-' || i,
				CASE WHEN i >= %[1]d - 10 THEN 'pending' ELSE 'ready' END, 'bench', now() - make_interval(secs => i)`,
			orgs, orgs),
		rows(`INSERT INTO routes (route_id, org_id, env_id, group_id, hostname, listener_scope, listen_port, protocol, target_port, created_by, created_at)
			SELECT 'r-' || i, 'o-' || i, 'e-' || i, 'g-' || i, 'h-' || i || '.example.com', 'shared_v6', 443, 'https', 8080, 'bench', now() - make_interval(secs => i)`, orgs),
		rows(`INSERT INTO agent_command_audit (audit_id, server_id, workflow_id, command_kind, args_redacted, actor, requested_at)
			SELECT 'c-' || i, 's-' || i %% %[1]d, 'w-' || i, CASE WHEN i >= 10 * %[1]d - 20 THEN 'redis-cli' ELSE 'bench' END, '[]', CASE WHEN i >= 10 * %[1]d - 20 THEN 'operator' ELSE 'workflow' END,
				now() - make_interval(secs => i)`, 10*n, n),
		rows(`INSERT INTO events (org_id, at, kind, step, id, actor, payload) SELECT CASE WHEN i %% 10 = 0 THEN 'o-0' ELSE 'o-' || i %% %[2]d END, now() - make_interval(secs => %[1]d - i),
				CASE WHEN i < 20 THEN 'volume' ELSE 'group' END, CASE WHEN i < 20 THEN 'create' ELSE 'scale' END, 'g-' || i, CASE WHEN i < 20 THEN 'ann' ELSE 'operator' END, '{}'`, 10*n, 10*n, orgs),
		rows(`INSERT INTO snapshots (snapshot_id, org_id, tenant_id, status, server_id, site, created_by, created_at, finished_at)
			SELECT 'n-' || i, CASE WHEN i %% 10 = 0 THEN 'o-0' ELSE 'o-' || i %% %[2]d END, 't-' || i %% (%[1]d / 3), CASE WHEN i >= %[1]d - 20 THEN 'running' WHEN i < %[1]d / 500 THEN 'deleted' ELSE 'succeeded' END, 's-2', 't',
				'bench', now() - make_interval(secs => i), now()`, 10*n, 10*n, orgs),
		rows(`INSERT INTO restore_jobs (job_id, org_id, tenant_id, snapshot_id, status, created_by, created_at)
			SELECT 'j-' || i, CASE WHEN i %% 10 = 0 THEN 'o-0' ELSE 'o-' || i %% %[2]d END, 't-' || i, 'n-' || i, CASE WHEN i >= %[1]d - 20 THEN 'failed' ELSE 'succeeded' END, 'bench', now() - make_interval(secs => i)`, n, n, orgs),
		rows(`INSERT INTO scaling_events (region, role, trigger, requested, workflow_id, round)
			SELECT CASE WHEN i < 20 THEN 'sg' ELSE 'eu' END, CASE WHEN i < 20 THEN 'node' ELSE 'app' END, CASE WHEN i < 20 THEN 'warm_pool' ELSE 'threshold' END, 1, 'w', i::text`, n),
		rows(`INSERT INTO fleet_actions (fleet_id, seq, action, inputs, status, cause, driven_by, requested_by)
			SELECT 'nodes-' || i %% 10, i / 10, CASE WHEN i < 200 THEN 'NODE_CREATE' ELSE 'CLUSTER_RESIZE' END, '{}', CASE WHEN i < 200 THEN 'failed' ELSE 'succeeded' END, 'operator', 'fleet', 'bench'`, n),
	}
}
