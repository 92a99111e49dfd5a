package api_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

func TestCreateTenant(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("group", "")
	b.org("acme", "group")
	resp, body := b.do("POST", "/v1/tenants", "operator", js, order)
	require.Equal(t, 202, resp.StatusCode, "%s", body)
	a := as[api.TenantAccepted](t, body)
	require.Regexp(t, `^t-[a-z2-7]{12}$`, a.TenantId)
	require.Equal(t, "tenant-provision/"+a.TenantId, a.WorkflowId)
	require.Equal(t, "/v1/tenants/"+a.TenantId, a.StatusUrl)
	require.Equal(t, api.TenantState("provisioning"), a.State)
	require.Equal(t, []string{"provision acme-kr"}, b.runs.asked())
	s := b.showTenant(a.TenantId)
	require.Equal(t, "group", deref(s.ParentOrgId), "the org's")
	require.Equal(t, 10, s.ExpectedUsers, "what the plan includes")
	require.Equal(t, 10, s.StorageQuotaGb)
	require.Equal(t, "KR", deref(s.DataResidency))
	require.Equal(t, []string{"erpnext"}, s.Apps)
	require.Equal(t, api.PlacementMode("shared"), s.Policy, "the configured one")
	require.Equal(t, "http://ui/"+a.WorkflowId, deref(s.RunUrl))
	require.Nil(t, s.Allocation)
	require.Nil(t, s.Decision)
	require.Len(t, s.Timeline, 1)
	require.Equal(t, "requested", s.Timeline[0].Step)
	require.Equal(t, "operator", s.Timeline[0].Actor)

	trial := b.tenant(`{"slug":"try","org_id":"acme","parent_org_id":"group","region":"eu","plan":"trial","policy":"one_tenant_one_server","constraint":{"require":["Stack:Blue"]}}`)
	s = b.showTenant(trial)
	require.Equal(t, api.TenantState("trial"), s.State)
	require.Equal(t, api.PlacementMode("one_tenant_one_server"), s.Policy)
	require.Equal(t, []string{"stack:blue"}, *s.Constraint.Require)
}

func TestIdempotencyKeys(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	rows := b.rows()
	var mu sync.Mutex
	ids, wg := map[string]int{}, sync.WaitGroup{}
	for range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			resp, body := b.sendWith("POST", "/v1/tenants", order, "Idempotency-Key", "k1")
			mu.Lock()
			defer mu.Unlock()
			ids[fmt.Sprint(resp.StatusCode, " ", as[api.TenantAccepted](t, body).TenantId)]++
		}()
	}
	wg.Wait()
	require.Len(t, ids, 1, "one tenant and one answer: %v", ids)
	require.Equal(t, rows+3, b.rows(), "a tenant, its event and its key")
	for name, tc := range map[string]struct {
		body   string
		keys   []string
		status int
		code   string
		field  string
	}{
		"another body":    {strings.Replace(order, "acme-kr", "other", 1), []string{"k1"}, 409, "idempotency_key_conflict", "Idempotency-Key"},
		"another key":     {order, []string{"k2"}, 409, "slug_taken", "slug"},
		"no key":          {order, nil, 409, "slug_taken", "slug"},
		"empty key":       {order, []string{""}, 422, "invalid_field", "Idempotency-Key"},
		"key with spaces": {order, []string{"a b"}, 422, "invalid_field", "Idempotency-Key"},
		"long key":        {order, []string{strings.Repeat("k", 256)}, 422, "invalid_field", "Idempotency-Key"},
		"two keys":        {order, []string{"k1", "k2"}, 422, "invalid_field", "Idempotency-Key"},
	} {
		resp, body := b.sendWith("POST", "/v1/tenants", tc.body, "Idempotency-Key", tc.keys...)
		require.Equal(t, tc.status, resp.StatusCode, "%s: %s", name, body)
		p := as[api.Problem](t, body)
		require.Equal(t, tc.code, p.Code, name)
		require.Equal(t, tc.field, deref(p.Field), name)
	}
	require.Equal(t, rows+3, b.rows())
	b.sql(`UPDATE tenants SET state = 'data_purged'`)
	resp, _ := b.sendWith("POST", "/v1/tenants", order, "Idempotency-Key", "k1")
	require.Equal(t, 202, resp.StatusCode, "the repeat finds its row in any state")
	resp, _ = b.sendWith("POST", "/v1/tenants", order, "Idempotency-Key", "k3")
	require.Equal(t, 202, resp.StatusCode, "the slug is free again")
}

// TestTenantsAreFoundByTheCallersReference: exactly in the list, by its beginning or a part in the search.
func TestTenantsAreFoundByTheCallersReference(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	const ref = "Kunde Ü-10482/b"
	with := func(slug, ref string) string {
		return `{"slug":"` + slug + `","org_id":"acme","region":"eu","plan":"starter","external_ref":"` + ref + `"}`
	}
	first, second := b.tenant(with("one", ref)), b.tenant(with("two", ref))
	b.tenant(with("three", ""))
	require.Equal(t, ref, deref(b.showTenant(first).ExternalRef))
	_, body := b.do("GET", "/v1/tenants?sort=slug&external_ref="+url.QueryEscape(ref), "viewer", "", "")
	page := as[api.TenantPage](t, body)
	require.Len(t, page.Tenants, 2, "it is not unique")
	require.Equal(t, []string{first, second, ref}, []string{page.Tenants[0].TenantId, page.Tenants[1].TenantId, deref(page.Tenants[0].ExternalRef)})
	_, body = b.do("GET", "/v1/tenants?external_ref=Kunde", "viewer", "", "")
	require.Empty(t, as[api.TenantPage](t, body).Tenants)
	for _, text := range []string{ref, "kunde", "10482"} {
		_, body = b.do("GET", "/v1/search?q="+url.QueryEscape(text), "viewer", "", "")
		found := as[api.SearchResults](t, body).Results
		require.Len(t, found, 2, "%s: %s", text, body)
		require.Equal(t, "external_ref", found[0].Field)
	}
	for _, bad := range []string{strings.Repeat("x", 201), `a\nb`} {
		resp, body := b.do("POST", "/v1/tenants", "operator", js, with("four", bad))
		require.Equal(t, 422, resp.StatusCode, "%s", body)
		require.Equal(t, "external_ref", deref(as[api.Problem](t, body).Field))
	}
	resp, body := b.do("POST", "/v1/tenants", "operator", js, with("five", strings.Repeat("Ü", 200)))
	require.Equal(t, 202, resp.StatusCode, "%s: characters, not bytes", body)
}

func TestTenantActions(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	id := b.tenant(order)
	act := func(action, body string) (int, api.TenantAccepted, api.Problem) {
		contentType := ""
		if body != "" {
			contentType = js
		}
		resp, answer := b.do("POST", "/v1/tenants/"+id+"/"+action, "operator", contentType, body)
		return resp.StatusCode, as[api.TenantAccepted](t, answer), as[api.Problem](t, answer)
	}
	allowed := map[string][]string{
		"suspend": {"active"}, "resume": {"suspended"}, "cancel": {"trial", "provisioning", "active", "suspended"}, "reactivate": {"grace_period"},
		"terminate": {"trial", "grace_period", "failed"}, "retry": {"failed"},
	}
	for _, state := range tenant.States() {
		for action, from := range allowed {
			if action == "terminate" && state == tenant.Terminated {
				continue // allowed until its purge is accepted: TestTerminatingAgainAcceptsTheHeldPurge
			}
			b.sql(`UPDATE tenants SET state = $1, cancel_requested_at = NULL`, state)
			started := len(b.runs.asked())
			status, accepted, problem := act(action, `{"reason":"because"}`)
			if !strings.Contains(" "+strings.Join(from, " ")+" ", " "+string(state)+" ") {
				require.Equal(t, 409, status, "%s of %s", action, state)
				require.Equal(t, "invalid_transition", problem.Code)
				require.Len(t, b.runs.asked(), started)
				continue
			}
			require.Equal(t, 202, status, "%s of %s", action, state)
			want, run := "change", "tenant-change/"+id
			switch {
			case action == "retry":
				want, run = "provision acme-kr", "tenant-provision/"+id
			case action == "cancel" && state == tenant.Provisioning:
				want, run = "cancel", "tenant-provision/"+id
			}
			require.Equal(t, want, b.runs.asked()[started], "%s of %s", action, state)
			require.Equal(t, run, accepted.WorkflowId)
			s := b.showTenant(id)
			require.Equal(t, accepted.State, s.State)
			require.Equal(t, run, s.WorkflowId)
			last := s.Timeline[len(s.Timeline)-1]
			require.Equal(t, []string{"state_changed", "operator", "because", string(state)}, []string{last.Step, last.Actor, deref(last.Reason), last.FromState})
		}
	}
	b.sql(`UPDATE tenants SET state = 'active'`)
	b.runs.fail = errors.New("temporal is away")
	status, accepted, _ := act("suspend", "")
	require.Equal(t, 202, status, "a body is not needed, and neither is the engine")
	require.Equal(t, api.TenantState("suspended"), accepted.State)
	require.Equal(t, 1, b.logs.FilterMessage("run not started; the worker will start it").Len())
}

// TestAnOrgsQueueIsCancelled: one request cancels what of an org waits for capacity; its dry run counts it. A caller
// who only reads may not.
func TestAnOrgsQueueIsCancelled(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	id := b.tenant(order)
	b.sql(`UPDATE tenants SET state = 'provisioning', status_reason = 'awaiting_capacity', waiting_since = now()`)
	const path = "/v1/orgs/acme/queue/cancel"
	resp, _ := b.do("POST", path, "viewer", "", "")
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
	all := api.CancelledQueue{OrgId: "acme", Cancelled: 1}
	require.Equal(t, all, planned[api.CancelledQueue](t, b.ok(200, "POST", path+"?dry_run=true", "")))
	require.Equal(t, api.TenantState("provisioning"), b.showTenant(id).State)
	asked := len(b.runs.asked())
	require.Equal(t, all, as[api.CancelledQueue](t, b.ok(200, "POST", path, `{"reason":"the test is over"}`)))
	s := b.showTenant(id)
	require.Equal(t, api.TenantState("failed"), s.State)
	require.Equal(t, "the provisioning was cancelled: the test is over", deref(s.StatusMessage))
	require.Len(t, b.runs.asked(), asked, "no run takes part")
	require.Equal(t, api.CancelledQueue{OrgId: "acme"}, as[api.CancelledQueue](t, b.ok(200, "POST", path, "")))
	b.ok(404, "POST", "/v1/orgs/ghost/queue/cancel", "")
	again := as[api.TenantAccepted](t, b.ok(202, "POST", "/v1/tenants/"+id+"/cancel", ""))
	require.Equal(t, s.State, again.State)
	require.Len(t, b.showTenant(id).Timeline, len(s.Timeline), "the same answer, and nothing else")
}

func TestShowingWhyATenantIsThere(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	id := b.tenant(order)
	b.sql(`UPDATE tenants SET status_reason = 'awaiting_capacity', waiting_since = now(), waiting_roles = '{app,db-shard}'`)
	b.sql(`INSERT INTO allocation_snapshots (tenant_id, outcome, code, algorithm, decision_log, policy_json)
VALUES ($1, 'awaiting_capacity', 'insufficient_resources', 'best_fit',
    '{"algorithm":"best_fit","candidates_evaluated":3,"selection_reason":"short of app","rejected":[{"id":"app-1","reason":"memory_pct"}],"rejected_counts":{"memory_pct":1}}', '{"mode":"shared"}')`, id)
	s := b.showTenant(id)
	require.Equal(t, "awaiting_capacity", deref(s.StatusReason))
	require.NotNil(t, s.WaitingSince)
	require.Equal(t, []api.Role{"app", "db-shard"}, s.WaitingRoles)
	require.Equal(t, "insufficient_resources", deref(s.Decision.Code))
	require.Equal(t, map[string]int{"memory_pct": 1}, s.Decision.DecisionLog.RejectedCounts)
	require.Equal(t, "shared", s.Decision.Policy["mode"])

	b.do("POST", create, "operator", js, strings.Replace(valid, `"app"`, `"node"`, 1))
	b.set("app-1", server.Active)
	b.sql(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm, dedicated)
VALUES ($1, 'app-1', 'app-1', 'app-1', 'acme-kr.example.com', 'tenant_acme_kr_db', 'hetzner', 'best_fit', true)`, id)
	b.sql(`INSERT INTO allocation_snapshots (tenant_id, allocation_id, outcome, algorithm, decision_log, policy_json)
SELECT $1, allocation_id, 'on_demand', 'best_fit', '{"selection_reason":"the best of one"}', '{}' FROM tenant_allocations`, id)
	b.sql(`UPDATE tenants SET state = 'active', converged_state = 'active', site = 'acme-kr.example.com', deadline_at = now()`)
	s = b.showTenant(id)
	require.Equal(t, "app-1", s.Allocation.AppServerId)
	require.True(t, s.Allocation.Dedicated)
	require.Equal(t, "the best of one", s.Allocation.Decision.SelectionReason)
	require.Equal(t, "on_demand", s.Decision.Outcome)
	require.Equal(t, "https://acme-kr.example.com", deref(s.SiteUrl))
	require.WithinDuration(t, time.Now(), *s.DeadlineAt, time.Minute)
	_, body := b.do("GET", "/v1/tenants/"+id+"/decisions", "viewer", "", "")
	all := as[api.DecisionList](t, body).Decisions
	require.Len(t, all, 2)
	require.Equal(t, "on_demand", all[0].Outcome, "newest first")
}

func TestListingTenants(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.org("beta", "")
	for i := range 23 {
		b.tenant(fmt.Sprintf(`{"slug":"s%d","org_id":"%s","region":"%s","plan":"%s"}`, i, []string{"acme", "beta"}[i%2], prego.Regions()[i%3], prego.Plans()[i%4]))
	}
	b.sql(`UPDATE tenants SET created_at = date_trunc('second', now()) WHERE slug < 's2'`) // times that are equal
	seen := map[string]int{}
	for cursor := ""; ; {
		_, body := b.do("GET", "/v1/tenants?limit=5"+cursor, "viewer", "", "")
		page := as[api.TenantPage](t, body)
		for _, v := range page.Tenants {
			seen[v.Slug]++
		}
		if page.NextCursor == nil {
			break
		}
		cursor = "&cursor=" + *page.NextCursor
	}
	require.Len(t, seen, 23)
	for slug, times := range seen {
		require.Equal(t, 1, times, slug)
	}
	for query, want := range map[string]int{"?region=sg": 8, "?plan=trial": 6, "?state=trial": 6, "?state=active": 0, "?org_id=beta": 11, "?org_id=ghost": 0, "?org_id=acme&region=sg&plan=trial&state=trial": 2} {
		_, body := b.do("GET", "/v1/tenants"+query, "viewer", "", "")
		require.Len(t, as[api.TenantPage](t, body).Tenants, want, query)
	}
}

func TestOrgs(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, id := range []string{"a", "b", "c"} {
		b.org(id, "")
	}
	b.org("b", "a")
	b.org("c", "b")
	resp, body := b.do("GET", "/v1/orgs/c", "viewer", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "b", deref(as[api.Org](t, body).ParentOrgId))
	b.ok(200, "PUT", "/v1/orgs/b", `{"tier":"enterprise"}`)
	require.NotNil(t, as[api.Org](t, b.ok(200, "GET", "/v1/orgs/b", "")).ParentOrgId, "left out, kept")
	b.ok(200, "PUT", "/v1/orgs/b", `{"parent_org_id":""}`)
	_, body = b.do("GET", "/v1/orgs?limit=2&sort=org_id", "viewer", "", "")
	page := as[api.OrgPage](t, body)
	require.Len(t, page.Orgs, 2)
	require.Nil(t, page.Orgs[1].ParentOrgId, "taken away")
	_, body = b.do("GET", "/v1/orgs?limit=2&sort=org_id&cursor="+*page.NextCursor, "viewer", "", "")
	page = as[api.OrgPage](t, body)
	require.Len(t, page.Orgs, 1)
	require.Nil(t, page.NextCursor)
}
