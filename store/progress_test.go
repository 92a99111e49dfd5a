package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/ops"
)

// TestProgressCountsWhatIsDone: each kind of work has its units, and the names of what is being worked on. Moves that
// a drain or a packing plan counts are listed only for their tenants.
func TestProgressCountsWhatIsDone(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	exec(t, s, `SET session_replication_role = replica;
INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by)
SELECT 'app-' || i, '', 'app', 'eu', 'hetzner', '{}', 'active', 'w', 'test' FROM generate_series(1, 5) i;
INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash,
    state, converged_state, created_by)
SELECT 't-' || i, 'slug-' || i, 'acme', 'eu', 'starter', 1, 1, 'shared', '', 'active', 'active', 'test'
FROM generate_series(1, 5) i;
INSERT INTO patch_waves (wave_id, requested_by) VALUES ('openssl', 'ann');
INSERT INTO server_maintenances (server_id, number, kind, status, requested_by, was_open, tenants_total, tenants_left,
    total, left_now, created_at, started_at, finished_at, wave_id)
SELECT 'app-' || app, number, kind, status, 'ann', true, tenants, tenants_left, instances, instances_left,
    now() - make_interval(mins => ago), now() - make_interval(mins => ago),
    CASE WHEN status = 'done' THEN now() END, wave
FROM (VALUES (1, 1, 'drain', 'done', 9, 0, 0, 0, 60, NULL), (1, 2, 'drain', 'moving', 7, 5, 0, 0, 8, NULL),
    (2, 1, 'patch', 'done', 1, 0, 3, 0, 7, 'openssl'), (3, 1, 'patch', 'moving', 1, 1, 3, 1, 1, 'openssl'),
    (4, 1, 'patch', 'waiting', 0, 0, 3, 3, 0, 'openssl'))
    d (app, number, kind, status, tenants, tenants_left, instances, instances_left, ago, wave);
INSERT INTO tenant_moves (move_id, org_id, tenant_id, allocation_id, state, requested_by, site, database_name,
    from_server_id, to_server_id, maintenance_of, created_at, finished_at)
SELECT 'mov-' || i, 'acme', 't-' || i, i, state, 'ann', 's', 'd', 'app-' || from_app, 'app-5', of,
    now() - interval '6 min', ended::timestamptz
FROM (VALUES (1, 'copying', 1, 'app-1', NULL), (2, 'queued', 1, 'app-1', NULL), (3, 'frozen', 2, NULL, NULL),
    (4, 'copying', 2, NULL, NULL), (5, 'done', 1, 'app-1', now())) m (i, state, from_app, of, ended);
INSERT INTO rebalances (rebalance_id, requested_by, at_once, max_failures, remove_servers, monthly, frees, closed,
    created_at)
VALUES ('reb-1', 'ann', 1, 1, false, 0, '{}', '{}', now() - interval '5 min');
INSERT INTO rebalance_moves (rebalance_id, seq, tenant_id, from_server_id, to_server_id, bytes, state)
VALUES ('reb-1', 1, 't-5', 'app-2', 'app-5', 0, 'moved'), ('reb-1', 2, 't-4', 'app-2', 'app-5', 0, 'moving'),
    ('reb-1', 3, 't-1', 'app-2', 'app-5', 0, 'waiting');
INSERT INTO restore_jobs (job_id, org_id, tenant_id, status, created_by, backup_id, created_at)
VALUES ('rst-1', 'acme', 't-5', 'running', 'ann', 'bak-1', now() - interval '4 min'),
    ('rst-2', 'acme', 't-4', 'succeeded', 'ann', 'bak-1', now());
INSERT INTO stack_releases (name, image, rings, status, created_by, started_at)
VALUES ('15.80', 'i', '[]', 'rolling', 'ann', now() - interval '3 min'), ('15.79', 'i', '[]', 'created', 'ann', now());
INSERT INTO stack_release_servers (release, server_id, ring, status, phase)
SELECT '15.80', 'app-' || i, 0, (ARRAY['done', 'updating', 'pending'])[i], 'migrate' FROM generate_series(1, 3) i;
INSERT INTO agent_releases (version, serial, sha256, document, signature, rings, status, created_by, started_at)
VALUES ('v2', 1, '', '', '', '[]', 'paused', 'ann', now() - interval '2 min');
INSERT INTO agent_release_servers (version, server_id, ring, status)
SELECT 'v2', 'app-' || i, 0, (ARRAY['done', 'offered', 'pending'])[i] FROM generate_series(1, 3) i;
INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas,
    release, deploy_status, last_rollout, created_by)
VALUES ('grp-1', 'env-1', 'acme', 'eu', 'web', '{}', 1, 0, 3, 2, 'rolling', 2, 'ann');
INSERT INTO rollouts (group_id, number, release, kind, spec, created_by, created_at)
VALUES ('grp-1', 2, 2, 'deploy', '{}', 'ann', now() - interval '1 min');
INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request, number, spec,
    state, healthy)
SELECT 'ins-' || i, 'grp-1', 'acme', 'app-1', r, 1, 0, i, '{}', 'running', i <> 3
FROM (VALUES (1, 1), (2, 2), (3, 2)) x (i, r)`)
	messages := func(ids ...string) (out []string) {
		all, err := s.Progress(t.Context(), ids, 50)
		require.NoError(t, err)
		for _, p := range all {
			out = append(out, p.Message())
		}
		return out
	}
	require.Equal(t, []string{
		"app-1 is being emptied: 2 of 7 tenants moved, slug-1 copying",
		"security updates openssl are being installed: 1 of 3 servers, app-3 moving",
		"slug-3 is moving: frozen",
		"packing plan reb-1 is being carried out: 1 of 3 tenants moved, slug-4 copying",
		"slug-5 is being restored",
		"release 15.80 is rolling out: 1 of 3 servers, app-2 migrate",
		"agent v2 is rolling out: 1 of 3 servers, paused, app-2 offered",
		"web is being deployed: 1 of 3 instances",
	}, messages())
	all, err := s.Progress(t.Context(), []string{"app-1"}, 50)
	require.NoError(t, err)
	require.Equal(t, []ops.ProgressPart{{Kind: "tenant", ID: "t-1", Name: "slug-1", State: "copying"}}, all[0].Current)
	require.Equal(t, []string{"slug-1 is moving: copying", "slug-4 is moving: copying"}, messages("t-1", "t-4"))
	require.Equal(t, []string{"app-3 gets security updates: 2 of 4 tenants and instances moved"}, messages("app-3"))
	require.Empty(t, messages("t-2000"))
	exec(t, s, `SET session_replication_role = replica;
UPDATE tenant_moves SET state = 'switched', opened_at = now() WHERE move_id IN ('mov-1', 'mov-3')`)
	require.Empty(t, messages("t-3"), "its site is open at the new place")
	require.Equal(t, []string{"app-1 is being emptied: 2 of 7 tenants moved"}, messages("app-1"))
	first, err := s.Progress(t.Context(), nil, 1)
	require.NoError(t, err)
	require.Len(t, first, 1)
}
