package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/placement"
)

// TestTheQueueIsInTheOrderInWhichItIsServed compares it with what the scheduler takes.
func TestTheQueueIsInTheOrderInWhichItIsServed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := tenantStore(t)
	exec(t, s, `INSERT INTO orgs (org_id, tier, created_by) VALUES ('bulk', 'enterprise', 'test'), ('small', 'enterprise', 'test')`)
	// An org with many, others with few, plans and regions mixed, and some that do not count.
	exec(t, s, `INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, waiting_since, waiting_roles, status_reason, status_message, created_by, cancel_requested_at)
		SELECT 't-' || i, 's-' || i, CASE WHEN i % 7 = 0 THEN 'small' WHEN i % 5 = 0 THEN 'acme' ELSE 'bulk' END, CASE WHEN i % 4 = 0 THEN 'sg' ELSE 'eu' END,
			(ARRAY['trial', 'starter', 'business', 'enterprise'])[1 + i % 3], 1, 1, 'shared', '', 'provisioning', now() - make_interval(mins => (i * 37) % 50), '{app}', 'awaiting_capacity', 'no room', 'test',
			CASE WHEN i = 11 THEN now() END
		FROM generate_series(1, 40) i`)
	exec(t, s, `INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-a', 'acme', 'a', 'test')`)
	exec(t, s, `INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-a', 'app-a', 'acme', 'prod', 'eu', 'test')`)
	exec(t, s, `INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, status, status_reason, wanted, waiting_since, tried_at, retry_at, release, tried_release, created_by)
		SELECT 'grp-' || lpad(i::text, 2, '0'), 'env-a', CASE WHEN i % 3 = 0 THEN 'small' ELSE 'bulk' END, 'eu', 'web-' || i, '{}', (1 + i % 4) * 1073741824::bigint, 0.1, 9, 'unschedulable', 'no_capacity_memory',
			1 + i % 5, now() - make_interval(mins => (i * 17) % 23), CASE WHEN i % 2 = 0 THEN now() - make_interval(secs => i) END, CASE WHEN i > 15 THEN now() + interval '1 hour' END, 1, 1, 'test'
		FROM generate_series(1, 18) i`)

	q, err := s.Queue(ctx)
	require.NoError(t, err)
	o, err := s.Overview(ctx, time.Now())
	require.NoError(t, err)
	oldest := slices.MinFunc(q.Waiters, func(a, b placement.Waiter) int {
		return a.WaitingSince.Compare(b.WaitingSince)
	})
	require.Len(t, q.Waiters, o.Waiting.Count)
	require.True(t, oldest.WaitingSince.Equal(*o.Waiting.Since))
	require.Equal(t, 40, o.Tenants.Total)
	listed := map[prego.Region]map[placement.WaiterKind][]string{}
	for _, w := range q.Waiters {
		if listed[w.Region] == nil {
			listed[w.Region] = map[placement.WaiterKind][]string{}
		}
		listed[w.Region][w.Kind] = append(listed[w.Region][w.Kind], w.ID)
		require.Equal(t, len(listed[w.Region][w.Kind]), w.Position)
	}
	n := 0
	for _, region := range prego.Regions() {
		waiting, err := s.Waiting(ctx, region)
		require.NoError(t, err)
		var served []string
		for _, w := range waiting {
			served = append(served, string(w.TenantID))
		}
		require.Equal(t, served, listed[region][placement.WaiterTenant], region)
		n += len(served)
	}
	require.Equal(t, 39, n, "one is cancelled")

	demand, err := s.InstanceDemand(ctx, prego.RegionEU, 1000, nil)
	require.NoError(t, err)
	var served []string
	seen := map[prego.GroupID]bool{}
	for _, d := range demand {
		if !seen[d.GroupID] {
			seen[d.GroupID], served = true, append(served, string(d.GroupID))
		}
	}
	groups := listed[prego.RegionEU][placement.WaiterGroup]
	require.Len(t, served, 15)
	require.Equal(t, served, groups[:15])
	require.ElementsMatch(t, []string{"grp-16", "grp-17", "grp-18"}, groups[15:], "groups that back off come last")

	last := map[placement.WaiterKind]*time.Time{}
	for _, e := range q.Expect() {
		require.Nil(t, e.ExpectedAt, "nothing comes")
		require.NotEmpty(t, e.Because)
		require.Empty(t, e.Coming)
	}
	exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, warm_plan, dedicated_for_tenant_id)
		SELECT 'app-' || i, '', 'app', 'eu', 'hetzner', '{}', 'provisioning', 'w', 'test', CASE WHEN i = 3 THEN 'trial' END, CASE WHEN i = 4 THEN 't-1' END FROM generate_series(1, 4) i`)
	exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, created_at, active_at)
		SELECT 'old-' || i, '', 'app', 'eu', 'hetzner', '{}', 'active', 'w', 'test', now() - interval '1 day', now() - interval '1 day' + make_interval(secs => 60 + i) FROM generate_series(1, 9) i`)
	exec(t, s, `INSERT INTO scaling_events (region, role, trigger, waiting, requested, server_ids, tier_locks, workflow_id, round, message)
		VALUES ('sg', 'app', 'scale_out_required', 3, 2, '{x-1,x-2}', '{}', 'scale-out/test/sg/app', '1', '')`)
	q, err = s.Queue(ctx)
	require.NoError(t, err)
	require.Equal(t, []placement.Usual{{Region: prego.RegionEU, Role: prego.RoleApp, Servers: 9, P50: 65, P95: 68.6}}, q.Usual)
	for _, e := range q.Expect() {
		if e.Kind == placement.WaiterGroup {
			require.Nil(t, e.ExpectedAt, "these servers take no instances")
			continue
		}
		require.NotNil(t, e.ExpectedAt, "%s: %s", e.ID, e.Because)
		require.False(t, e.ExpectedAt.Before(q.At))
		if e.Region == prego.RegionEU {
			require.Len(t, e.Coming, 2, "neither a warm nor a dedicated one")
			if p := last[e.Kind]; p != nil {
				require.False(t, e.ExpectedAt.Before(*p))
			}
			last[e.Kind] = e.ExpectedAt
		} else {
			require.Equal(t, placement.ComingScaleOut, e.Coming[0].Kind)
			require.Equal(t, "scale-out/test/sg/app", e.Coming[0].ID)
		}
	}
}

// TestTenantsThatWaitForStockAreInTheQueue: a business or enterprise tenant waits for its own server alone, and nothing
// else showed which tenant lacks the provider's stock.
func TestTenantsThatWaitForStockAreInTheQueue(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	exec(t, s, `INSERT INTO orgs (org_id, tier, created_by) VALUES ('bulk', 'enterprise', 'test')`)
	exec(t, s, `INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy,
			request_hash, state, waiting_since, waiting_roles, status_reason, created_by)
		SELECT 't-' || i, 's-' || i, 'bulk', 'eu', 'business', 1, 1, 'shared', '', 'provisioning',
			CASE WHEN i < 3 THEN now() END, '{}', 'building_server', 'test' FROM generate_series(1, 6) i`)
	exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id,
			created_by, status_reason, status_message, dedicated_for_tenant_id, created_at)
		SELECT 'n-' || i, '', 'node', 'eu', 'hetzner', '{}', 'provisioning', 'w', 'test',
			CASE i WHEN 5 THEN '' ELSE 'awaiting_capacity' END, 'no cpx42', CASE WHEN i < 7 THEN 't-' || i END,
			now() - make_interval(mins => i) FROM generate_series(3, 7) i`)
	exec(t, s, `UPDATE tenants SET cancel_requested_at = now() WHERE tenant_id = 't-6'`)
	q, err := s.Queue(t.Context())
	require.NoError(t, err)
	var got []string
	for _, e := range q.Expect() {
		got = append(got, fmt.Sprint(e.ID, " ", e.Position, " ", e.Code, " ", len(e.Coming), " ", e.ExpectedAt == nil, " ", e.Because))
	}
	require.Equal(t, []string{
		"t-1 1 building_server 0 true it lacks no server: it waits for its site, or for its turn",
		"t-2 2 building_server 0 true it lacks no server: it waits for its site, or for its turn",
		"t-4 3 awaiting_capacity 1 true server n-4 waits for the provider's stock or quota",
		"t-3 4 awaiting_capacity 1 true server n-3 waits for the provider's stock or quota",
	}, got)
	w := q.Waiters[2]
	require.Equal(t, "its own server n-4 waits for the provider's stock or quota: no cpx42", w.Reason)
	require.Equal(t, "s-4", w.Name)

	found, _, err := s.Attention(t.Context(), attentionLimits)
	require.NoError(t, err)
	var lines []string
	for _, i := range attention.List(found) {
		if i.Kind == attention.ServerAwaitingStock {
			lines = append(lines, i.Message)
		}
	}
	require.Contains(t, lines, "the own server of s-4 (business) waits for the provider's stock or quota: no cpx42")
	require.Contains(t, lines, "it waits for the provider's stock or quota: no cpx42")
}
