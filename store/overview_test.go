package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOverviewCountsWhatIsThere: numbers are of what exists now, and their past is what was recorded.
func TestOverviewCountsWhatIsThere(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	o, err := s.Overview(t.Context(), time.Now())
	require.NoError(t, err)
	require.Zero(t, o.Tenants.Total+o.Sites.Up+o.Sites.Down+o.Servers.Total+o.Waiting.Count)
	require.Nil(t, o.Waiting.Since)
	require.Nil(t, o.Servers.MemoryPct)
	exec(t, s, `SET session_replication_role = replica;
INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, memory_pct,
    workflow_id, created_by)
SELECT 'app-' || i, '', 'app', 'eu', 'hetzner', '{}',
    (ARRAY['active', 'active', 'failed', 'terminated'])[i], 20 * i, 'w', 'test'
FROM generate_series(1, 4) i;
INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by)
VALUES ('edge-1', '', 'edge', 'eu', 'hetzner', '{}', 'active', 'w', 'test');
UPDATE servers SET agent_status = 'connected' WHERE server_id = 'app-1';
INSERT INTO edges (server_id, network, watched_from, watched_until)
VALUES ('edge-1', 'eu', now() - interval '1 hour', now());
INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash,
    state, converged_state, created_by)
SELECT 't-' || i, 's-' || i, 'acme', 'eu', 'starter', 1, 1, 'shared', '', state, state, 'test'
FROM (SELECT i, (ARRAY['active', 'active', 'active', 'suspended', 'terminated'])[i] AS state
    FROM generate_series(1, 5) i) x;
INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name,
    infra_provider, algorithm)
SELECT 't-' || i, 'app-1', 'd', 'r', 's-' || i, 'd-' || i, 'hetzner', 'a' FROM generate_series(1, 4) i;
INSERT INTO site_health (tenant_id, server_id, up, cause, since, seen_from)
SELECT 't-' || i, 'edge-1', i <= 2, CASE WHEN i <= 2 THEN '' ELSE 'timeout' END, now(), now()
FROM generate_series(1, 4) i;
INSERT INTO site_uptime (tenant_id, month, up_seconds, down_seconds, counted_until)
SELECT 't-' || i, date_trunc('month', now()), 99, i - 1, now() FROM generate_series(1, 3) i;
INSERT INTO server_samples (at, server_id, memory_pct)
SELECT date_trunc('hour', now()) - make_interval(mins => 5 * m), 'app-' || i, 10 * i
FROM generate_series(0, 300) m, generate_series(1, 2) i`)
	o, err = s.Overview(t.Context(), time.Now())
	require.NoError(t, err)
	require.Equal(t, 4, o.Tenants.Total)
	require.Empty(t, o.Servers.Hours, "the past is read once a minute")
	o, err = s.Overview(t.Context(), time.Now().Add(time.Minute))
	require.NoError(t, err)
	require.Equal(t, 3, o.Tenants.Active)
	require.Equal(t, 2, o.Sites.Up)
	require.Equal(t, 1, o.Sites.Down, "the suspended tenant's site should not answer")
	require.Equal(t, 4, o.Servers.Total)
	require.Equal(t, 3, o.Servers.Active)
	require.Equal(t, 2, o.Servers.Silent, "no agent was heard of yet, except app-1's")
	require.InDelta(t, 30, *o.Servers.MemoryPct, 0.001)
	require.Len(t, o.Servers.Hours, 24)
	for _, h := range o.Servers.Hours {
		require.Equal(t, 2, h.Servers)
		require.InDelta(t, 15, *h.MemoryPct, 0.001)
	}
	require.Len(t, o.Tenants.Months, 1)
	require.Equal(t, 3, o.Tenants.Months[0].Sites)
	require.InDelta(t, 99, *o.Tenants.Months[0].UptimePct, 0.001)
}
