package api_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/ops/attention"
)

func TestAttentionIsFilteredAndCounted(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	get := func(query string) (out api.AttentionList) {
		t.Helper()
		resp, body := b.do("GET", "/v1/attention"+query, "viewer", "", "")
		require.Equal(t, 200, resp.StatusCode, "%s", body)
		return as[api.AttentionList](t, body)
	}
	require.Empty(t, get("").Items)
	for _, sql := range []string{
		`INSERT INTO looks (look, holder, leased_until, began_at, every_seconds, looked_at, error) VALUES ('fleet', 'w', now(), now(), 15, now() - interval '1 hour', 'oh no <b>')`,
		`INSERT INTO looks (look, holder, leased_until, began_at, every_seconds)
			VALUES ('agentgw', 'cp-1/x', now(), now() - interval '1 hour', 10)`,
		`INSERT INTO warm_pools (region, plan, target, updated_by) VALUES ('eu', 'trial', 1, 'test')`,
	} {
		_, err := b.pool.Exec(context.Background(), sql)
		require.NoError(t, err)
	}
	all := get("")
	require.Equal(t, api.AttentionCounts{Critical: 1, Warning: 3}, all.Counts)
	require.Len(t, all.Items, 4)
	require.Equal(t, "process_down/agentgw", all.Items[0].Id)
	require.Equal(t, "look_late/fleet", all.Items[1].Id)
	require.Equal(t, "oh no <b>", all.Items[2].Message)
	for query, n := range map[string]int{"?severity=critical": 1, "?kind=look_failing,warm_pool_low": 2, "?severity=info": 0, "?limit=1": 1} {
		some := get(query)
		require.Len(t, some.Items, n, query)
		require.Equal(t, all.Counts, some.Counts, "whatever is filtered")
	}
	for _, query := range []string{"?severity=bad", "?kind=nope", "?limit=501"} {
		resp, body := b.do("GET", "/v1/attention"+query, "viewer", "", "")
		require.Equal(t, 422, resp.StatusCode, "%s", body)
	}
	require.Equal(t, attention.LookLate, all.Items[1].Kind)
	require.Nil(t, all.Items[1].Affected)

	_, err := b.pool.Exec(context.Background(),
		`INSERT INTO orgs (org_id, tier, created_by) VALUES ('acme', 'enterprise', 'test')`)
	require.NoError(t, err)
	_, err = b.pool.Exec(context.Background(), `INSERT INTO tenants (tenant_id, slug, org_id, region, plan,
		expected_users, storage_quota_gb, policy, request_hash, state, status_reason, created_by)
		SELECT 't-' || n, 's-' || n, 'acme', 'eu', 'starter', 1, 1, 'shared', '', 'failed', 'failed_site', 'test'
		FROM generate_series(1, 30) n`)
	require.NoError(t, err)
	affected := get("?kind=tenant_failed").Items[0].Affected
	require.Equal(t, "30 tenants: s-1, s-10, s-11 and 27 more", affected.Summary)
	require.Len(t, affected.Tenants, 20)
	require.Equal(t, attention.Customer{ID: "t-1", Name: "s-1", OrgID: "acme"}, affected.Tenants[0])
	require.Equal(t, 30, affected.TenantCount)
	require.Equal(t, []prego.OrgID{"acme"}, affected.Orgs)
}

func TestTheQueueHasPages(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, sql := range []string{
		`INSERT INTO orgs (org_id, tier, created_by) VALUES ('acme', 'enterprise', 'test'), ('bulk', 'enterprise', 'test')`,
		`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, waiting_since, waiting_roles, status_reason, status_message, created_by)
			SELECT 't-' || i, 's-' || i, CASE i WHEN 5 THEN 'acme' ELSE 'bulk' END, 'eu', 'starter', 1, 1, 'shared', '', 'provisioning', now() - make_interval(mins => 10 - i), '{app}', 'awaiting_capacity', 'no room', 'test' FROM generate_series(1, 5) i`,
	} {
		_, err := b.pool.Exec(context.Background(), sql)
		require.NoError(t, err)
	}
	get := func(query string) (out api.QueuePage) {
		t.Helper()
		resp, body := b.do("GET", "/v1/queue"+query, "viewer", "", "")
		require.Equal(t, 200, resp.StatusCode, "%s", body)
		return as[api.QueuePage](t, body)
	}
	ids := func(p api.QueuePage) (out []string) {
		for _, e := range p.Entries {
			out = append(out, e.Id)
		}
		return out
	}
	require.Equal(t, []string{"t-1", "t-5", "t-2", "t-3", "t-4"}, ids(get("")), "orgs take turns")
	first := get("?limit=3")
	require.Equal(t, []string{"t-1", "t-5", "t-2"}, ids(first))
	require.NotNil(t, first.NextCursor)
	rest := get("?limit=3&cursor=" + *first.NextCursor)
	require.Equal(t, []string{"t-3", "t-4"}, ids(rest))
	require.Nil(t, rest.NextCursor)
	own := get("?org_id=acme")
	require.Equal(t, []string{"t-5"}, ids(own))
	require.Equal(t, 2, own.Entries[0].Position, "among all")
	require.Equal(t, "no server of role app is being made in eu", own.Entries[0].ExpectedBecause)
	require.Empty(t, ids(get("?kind=group")))
	require.Empty(t, ids(get("?region=us")))
	for _, query := range []string{"?cursor=x", "?cursor=-1", "?kind=server", "?limit=0"} {
		resp, body := b.do("GET", "/v1/queue"+query, "viewer", "", "")
		require.Equal(t, 422, resp.StatusCode, "%s", body)
	}
}
