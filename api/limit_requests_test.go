package api_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

// TestOwnersRequestHigherLimits and operators answer: what each sees, and what is recorded.
func TestOwnersRequestHigherLimits(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, id := range []string{"acme", "other"} {
		b.ok(200, "PUT", "/v1/orgs/"+id, `{}`)
	}
	owner, viewer := onOrg("org_owner", "acme"), onOrg("org_viewer", "acme")
	ask := func(limit string) (int, string) {
		return b.asPrincipal(owner, "POST", "/v1/limit-requests", `{"org_id":"acme","dimension":"max_apps","limit":`+limit+`,"reason":" spring "}`)
	}
	for limit, field := range map[string]string{"2": "limit must be above the org's present max_apps, 2", "1": "limit must be above", "2.5": "limit must be a whole number"} {
		status, answer := ask(limit)
		require.Equal(t, http.StatusUnprocessableEntity, status, answer)
		p := as[api.Problem](t, []byte(answer))
		require.Equal(t, "limit", deref(p.Field))
		require.Contains(t, "limit "+deref(p.Detail), field)
	}
	status, answer := b.asPrincipal(owner, "POST", "/v1/limit-requests", `{"org_id":"other","dimension":"max_apps","limit":40,"reason":"x"}`)
	require.Equal(t, http.StatusUnprocessableEntity, status, answer)
	require.Equal(t, "org_unknown", as[api.Problem](t, []byte(answer)).Code)

	status, answer = ask("40")
	require.Equal(t, http.StatusCreated, status, answer)
	r := as[api.LimitRequest](t, []byte(answer))
	require.Equal(t, []any{"open", "spring", 2.0, 40.0}, []any{string(r.State), r.Reason, r.OldLimit, r.RequestedLimit})
	status, answer = ask("50")
	require.Equal(t, http.StatusConflict, status, answer)
	p := as[api.Problem](t, []byte(answer))
	require.Equal(t, "limit_request_open", p.Code)
	require.Contains(t, deref(p.Detail), r.LimitRequestId)

	at := "/v1/limit-requests/" + r.LimitRequestId
	for _, path := range []string{"/v1/limit-requests?org_id=acme", at} {
		status, answer = b.asPrincipal(viewer, "GET", path, "")
		require.Equal(t, http.StatusOK, status, answer)
		require.Contains(t, answer, r.LimitRequestId)
	}
	for _, verb := range []string{"approve", "refuse"} {
		status, answer = b.asPrincipal(owner, "POST", at+"/"+verb, `{"reason":"please"}`)
		require.Equal(t, http.StatusForbidden, status, answer)
	}
	status, answer = b.asPrincipal(viewer, "POST", at+"/withdraw", "")
	require.Equal(t, http.StatusForbidden, status, answer)
	queue := as[api.LimitRequestPage](t, b.ok(200, "GET", "/v1/limit-requests", ""))
	require.Len(t, queue.LimitRequests, 1)
	require.Contains(t, string(b.ok(200, "GET", "/v1/attention?kind=limit_requested", "")), "requests a higher limit: spring")

	refused := as[api.LimitRequest](t, b.ok(200, "POST", at+"/refuse", `{"reason":"archive some first"}`))
	require.Equal(t, []any{"refused", "archive some first", "operator"}, []any{string(refused.State), deref(refused.Answer), deref(refused.DecidedBy)})
	again := as[api.LimitRequest](t, b.ok(200, "POST", at+"/refuse", `{"reason":"another"}`))
	require.Equal(t, refused, again)
	resp, body := b.do("POST", at+"/approve", "operator", js, `{}`)
	require.Equal(t, http.StatusConflict, resp.StatusCode, "%s", body)
	require.Equal(t, "invalid_transition", as[api.Problem](t, body).Code)
	require.Equal(t, "tier", b.quotaOf("acme", "max_apps").Source)
	require.Empty(t, as[api.LimitRequestPage](t, b.ok(200, "GET", "/v1/limit-requests", "")).LimitRequests)
	require.Len(t, as[api.LimitRequestPage](t, b.ok(200, "GET", "/v1/limit-requests?state=refused", "")).LimitRequests, 1)

	_, answer = ask("40")
	r = as[api.LimitRequest](t, []byte(answer))
	at = "/v1/limit-requests/" + r.LimitRequestId
	resp, body = b.do("POST", at+"/approve", "operator", js, `{"limit":2.5}`)
	require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode, "%s", body)
	approved := as[api.LimitRequest](t, b.ok(200, "POST", at+"/approve", `{"limit":30}`))
	require.InDelta(t, 30, *approved.GrantedLimit, 0)
	q := b.quotaOf("acme", "max_apps")
	require.Equal(t, []any{30.0, "override", "spring (" + r.LimitRequestId + ")"}, []any{q.Limit, q.Source, deref(q.Reason)})

	_, answer = ask("60")
	r = as[api.LimitRequest](t, []byte(answer))
	status, answer = b.asPrincipal(owner, "POST", "/v1/limit-requests/"+r.LimitRequestId+"/withdraw", "")
	require.Equal(t, http.StatusOK, status, answer)
	require.Equal(t, "withdrawn", string(as[api.LimitRequest](t, []byte(answer)).State))
	require.Equal(t, []string{
		"org.limit_withdrawn", "org.limit_requested", "org.quota_set", "org.limit_approved", "org.limit_requested", "org.limit_refused", "org.limit_requested", "org.create",
	}, types(b.orgEvents("acme", "")))
	audit := string(b.ok(200, "GET", "/v1/audit?kind=limit_request&org_id=acme", ""))
	for _, operation := range []string{"createLimitRequest", "refuseLimitRequest", "approveLimitRequest", "withdrawLimitRequest"} {
		require.Contains(t, audit, operation)
	}

	// A refusal states how to request more.
	resp, body = b.do("PUT", "/v1/orgs/acme/quotas/max_apps", "operator", js, `{"limit":0,"reason":"none"}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	_, body = b.do("POST", "/v1/apps", "operator", js, `{"org_id":"acme","name":"shop"}`)
	require.Contains(t, deref(as[api.Problem](t, body).Detail), "prego limit-request create")
}
