package migrations_test

import (
	"context"
	"database/sql"
	"os"
	"testing"

	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/migrations"
)

// TestCountersBeginWithWhatThereIs: orgs that had something before there were counters.
func TestCountersBeginWithWhatThereIs(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db, url := database(t)
	_, err := db.Exec(ctx, `DROP SCHEMA public CASCADE; CREATE SCHEMA public`)
	require.NoError(t, err)
	conn, err := sql.Open("pgx", url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	p, err := goose.NewProvider(goose.DialectPostgres, conn, os.DirFS("."))
	require.NoError(t, err)
	_, err = p.UpTo(ctx, 12)
	require.NoError(t, err)
	_, err = db.Exec(ctx, `
		INSERT INTO orgs (org_id, created_by) VALUES ('acme', 't'), ('none', 't');
		INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, dedicated_for_tenant_id)
			VALUES ('node-1', '', 'node', 'eu', 'hetzner', '{}', 'active', 'w', 't', 't-2');
		INSERT INTO apps (app_id, org_id, name, created_by, deleted_at) VALUES ('app-1', 'acme', 'a', 't', NULL), ('app-2', 'acme', 'b', 't', now());
		INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-1', 'app-1', 'acme', 'e', 'eu', 't');
		INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by)
			VALUES ('grp-1', 'env-1', 'acme', 'eu', 'web', '{}', 1000, 0.1, 3, 't');
		INSERT INTO instances (instance_id, group_id, org_id, server_id, number, spec, release, memory_limit_bytes, cpu_request, state)
			VALUES ('ins-1', 'grp-1', 'acme', 'node-1', 1, '{}', 1, 1000, 0.1, 'running'), ('ins-2', 'grp-1', 'acme', 'node-1', 2, '{}', 1, 1000, 0.1, 'stopped');
		INSERT INTO routes (route_id, org_id, env_id, group_id, hostname, listener_scope, listen_port, protocol, target_port, created_by)
			VALUES ('rte-1', 'acme', 'env-1', 'grp-1', 'a.example', 'shared_v6', 443, 'https', 80, 't'), ('rte-2', 'acme', 'env-1', 'grp-1', 'a.example', 'env_v4', 443, 'https', 80, 't');
		INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, status, created_by)
			VALUES ('vol-1', 'acme', 'eu', 'fsn1', 'v', 10000000000, 'hetzner', 'v', 'ready', 't');
		INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by)
			VALUES ('t-1', 't-1', 'acme', 'eu', 'trial', 1, 1, 'shared', '', 'active', 't'), ('t-2', 't-2', 'acme', 'eu', 'starter', 1, 1, 'shared', '', 'failed', 't'),
				('t-3', 't-3', 'acme', 'eu', 'starter', 1, 1, 'shared', '', 'failed', 't')`)
	require.NoError(t, err)
	require.NoError(t, migrations.Up(ctx, url))
	const dimensions = `'{max_instances,max_total_memory_bytes,max_total_cpu_request,max_envs,max_apps,max_routes,max_public_ports,max_hostnames,max_volumes,max_total_volume_bytes}'`
	for range 2 { // before they are folded, and after
		for _, org := range []string{"acme", "none"} {
			var wrong int
			require.NoError(t, db.QueryRow(ctx, `SELECT count(*) FROM org_usage_drift($1, `+dimensions+`)`, org).Scan(&wrong))
			require.Zero(t, wrong)
		}
		_, err = db.Exec(ctx, `SELECT fold_org_usage('acme')`)
		require.NoError(t, err)
	}
	var used, promised float64
	require.NoError(t, db.QueryRow(ctx, `SELECT used, promised FROM org_counters WHERE org_id = 'acme' AND dimension = 'max_instances'`).Scan(&used, &promised))
	require.Equal(t, []float64{3, 2}, []float64{used, promised})
}
