package store

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/cost"
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
	s.past.Store(nil) // as in another process
	o, err = s.Overview(t.Context(), time.Now())
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

// TestPastIsReadOnceADay: with 60,000 rows of ended months, a minute reads those of the open month, by an index. What
// has ended is kept, and read again after a day.
func TestPastIsReadOnceADay(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	exec(t, s, `SET session_replication_role = replica;
INSERT INTO site_uptime (tenant_id, month, up_seconds, down_seconds, counted_until)
SELECT 't-' || i, date_trunc('month', now()) - make_interval(months => m), 99, 1, now()
FROM generate_series(5, 0, -1) m, generate_series(1, 10000) i;
INSERT INTO server_samples (at, server_id, memory_pct)
SELECT date_trunc('hour', now()) - make_interval(hours => h), 'app-' || i, 50
FROM generate_series(0, 23) h, generate_series(1, 10) i;
INSERT INTO cost_entries (day, meter_id, part, owner_kind, basis, amount, currency)
SELECT current_date - d, i, 'used', 'tenant', 'own', 100, 'EUR' FROM generate_series(0, 6) d, generate_series(1, 10) i;
ANALYZE site_uptime`)
	now := time.Now().UTC()
	first, err := s.Overview(t.Context(), now)
	require.NoError(t, err)
	require.Len(t, first.Tenants.Months, 6)
	require.Len(t, first.Servers.Hours, 24)
	require.Len(t, first.Costs.Days, 7)

	month, hour, day := s.past.Load().from(now.Add(time.Minute))
	require.False(t, month.Before(cost.MonthOf(now.Add(-pastSettles))))
	require.WithinDuration(t, now, hour, pastSettles+time.Hour)
	require.WithinDuration(t, now, day, pastSettles+24*time.Hour)
	var plan []struct{ Plan map[string]any }
	require.NoError(t, s.pool.QueryRow(t.Context(),
		`EXPLAIN (ANALYZE, FORMAT json) `+sqlOverviewMonths, cost.MonthOf(now)).Scan(&plan))
	rows, discarded := scanned(plan[0].Plan)
	require.Equal(t, 10000, rows, "the rows of one month of six")
	require.Zero(t, discarded, "no other row is looked at")

	exec(t, s, `UPDATE site_uptime SET down_seconds = 99;
UPDATE server_samples SET memory_pct = 70; UPDATE cost_entries SET amount = 200`)
	again, err := s.Overview(t.Context(), now.Add(2*time.Minute))
	require.NoError(t, err)
	require.Len(t, again.Tenants.Months, 6)
	require.Len(t, again.Costs.Days, 7)
	require.Equal(t, first.Tenants.Months[:4], again.Tenants.Months[:4], "ended months are not read again")
	require.Equal(t, first.Costs.Days[:5], again.Costs.Days[:5])
	require.InDelta(t, 50, *again.Tenants.Months[5].UptimePct, 0.001)
	require.InDelta(t, 50, *again.Servers.Hours[0].MemoryPct, 0.001)
	require.InDelta(t, 70, *again.Servers.Hours[len(again.Servers.Hours)-1].MemoryPct, 0.001)
	require.Equal(t, 2*first.Costs.Days[6].Cost, again.Costs.Days[6].Cost)
	later, err := s.Overview(t.Context(), now.Add(24*time.Hour))
	require.NoError(t, err)
	require.InDelta(t, 50, *later.Tenants.Months[0].UptimePct, 0.001, "a day later all is read")
}

// scanned adds up the rows that a plan's scans return, and those that they read and discard.
func scanned(node map[string]any) (rows, discarded int) {
	kind, _ := node["Node Type"].(string)
	if strings.HasSuffix(kind, "Scan") && kind != "Bitmap Index Scan" {
		n, _ := node["Actual Rows"].(float64)
		rows = int(n)
	}
	for name, of := range node {
		if n, ok := of.(float64); ok && strings.HasPrefix(name, "Rows Removed") {
			discarded += int(n)
		}
	}
	children, _ := node["Plans"].([]any)
	for _, child := range children {
		r, d := scanned(child.(map[string]any))
		rows, discarded = rows+r, discarded+d
	}
	return rows, discarded
}
