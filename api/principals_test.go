package api_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
)

// principals makes a bundle's callers: the token is the principal's id. They can be changed between requests.
func principals(all map[string]*access.Principal) func(*api.Deps) {
	return func(d *api.Deps) {
		d.Auth = func(_ context.Context, raw string) (access.Principal, error) {
			p, ok := all[raw]
			if !ok {
				return access.Principal{}, prego.Errorf(prego.CodeUnauthenticated, "the token is not valid here")
			}
			return *p, nil
		}
	}
}

// TestIdempotencyKeysBelongToThePrincipal: two principals with one name share no key, neither of those that are kept
// with a row nor of those that are kept with an answer.
func TestIdempotencyKeysBelongToThePrincipal(t *testing.T) {
	t.Parallel()
	everything := []access.Grant{{Role: "operator"}}
	b := setup(t, principals(map[string]*access.Principal{
		"operator": {PrincipalID: "operator", Name: "operator", Grants: everything},
		"one":      {PrincipalID: "one", Kind: access.User, Name: "ada", Grants: everything},
		"two":      {PrincipalID: "two", Kind: access.User, Name: "ada", Grants: everything},
	}))
	b.org("acme", "")
	b.ok(http.StatusCreated, "POST", "/v1/fleets", aFleet)
	for _, path := range []string{"/v1/apps", "/v1/tenants", "/v1/volumes", "/v1/fleets/pool/actions"} {
		body := func(n int) string {
			switch path {
			case "/v1/apps":
				return fmt.Sprintf(`{"org_id":"acme","name":"a%d"}`, n)
			case "/v1/tenants":
				return fmt.Sprintf(`{"slug":"s%d","org_id":"acme","region":"eu","plan":"starter"}`, n)
			case "/v1/fleets/pool/actions":
				return fmt.Sprintf(`{"action":"CLUSTER_SCALE_OUT","inputs":{"count":%d}}`, n)
			}
			return fmt.Sprintf(`{"org_id":"acme","region":"eu","name":"v%d","size_bytes":10000000000}`, n)
		}
		first, answer := b.sendAs("one", "POST", path, body(1), "Idempotency-Key", "k"+path)
		require.Less(t, first.StatusCode, 300, "%s: %s", path, answer)
		second, answer := b.sendAs("two", "POST", path, body(2), "Idempotency-Key", "k"+path)
		require.Less(t, second.StatusCode, 300, "%s: %s", path, answer)
		again, answer := b.sendAs("one", "POST", path, body(2), "Idempotency-Key", "k"+path)
		require.Equal(t, http.StatusConflict, again.StatusCode, "%s: %s", path, answer)
		require.Equal(t, "idempotency_key_conflict", as[api.Problem](t, answer).Code)
	}
}

// TestKeptAnswersPassTodaysDecision: a caller who lost the access to an org does not get an answer again that it got
// while it had it, whether the answer or the row was kept.
func TestKeptAnswersPassTodaysDecision(t *testing.T) {
	t.Parallel()
	owner := []access.Grant{{Role: "org_owner", OrgID: "acme", Orgs: []prego.OrgID{"acme"}}}
	ada := &access.Principal{PrincipalID: "ada", Kind: access.User, Name: "ada"}
	b := setup(t, principals(map[string]*access.Principal{
		"operator": {PrincipalID: "operator", Name: "operator", Grants: []access.Grant{{Role: "operator"}}}, "ada": ada,
	}))
	b.org("acme", "")
	b.org("mine", "")
	ada.Grants = owner
	resp, answer := b.sendAs("ada", "POST", "/v1/apps", `{"org_id":"acme","name":"first"}`, "")
	require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", answer)
	for path, body := range map[string]string{
		"/v1/tenants": `{"slug":"kim","org_id":"acme","region":"eu","plan":"starter"}`,
		"/v1/apps":    `{"org_id":"acme","name":"second"}`,
		"/v1/apps/" + as[api.App](t, answer).AppId + "/envs": `{"name":"prod","region":"eu"}`,
		"/v1/volumes": `{"org_id":"acme","region":"eu","name":"data","size_bytes":10000000000}`,
	} {
		ada.Grants = owner
		for range 2 {
			resp, answer := b.sendAs("ada", "POST", path, body, "Idempotency-Key", "k"+path)
			require.Less(t, resp.StatusCode, 300, "%s: %s", path, answer)
		}
		ada.Grants = []access.Grant{{Role: "org_owner", OrgID: "mine", Orgs: []prego.OrgID{"mine"}}}
		resp, answer := b.sendAs("ada", "POST", path, body, "Idempotency-Key", "k"+path)
		require.Contains(t, []int{http.StatusNotFound, http.StatusUnprocessableEntity}, resp.StatusCode, "%s: %s", path, answer)
		ada.Grants = []access.Grant{{Role: "org_viewer", OrgID: "acme", Orgs: []prego.OrgID{"acme"}}}
		resp, answer = b.sendAs("ada", "POST", path, body, "Idempotency-Key", "k"+path)
		require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s: %s", path, answer)
	}
}

// TestKeptRequestsRevealNothing: neither keys nor digests that a body could be guessed with are stored.
func TestKeptRequestsRevealNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	const body = `{"org_id":"acme","region":"eu","name":"data","size_bytes":10000000000}`
	resp, answer := b.sendWith("POST", "/v1/volumes", body, "Idempotency-Key", "a-key-of-the-caller")
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", answer)
	var key string
	var hash []byte
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT key, request_hash FROM request_keys`).Scan(&key, &hash))
	require.NotContains(t, key, "caller")
	plain := sha256.Sum256([]byte("/v1/volumes\x00" + body))
	require.NotEqual(t, plain[:], hash)
}

// TestRefusedRequestsAreInTheAudit: those without the capability, those outside of the caller's orgs and those about
// absent objects, with what was refused.
func TestRefusedRequestsAreInTheAudit(t *testing.T) {
	t.Parallel()
	b := setup(t, principals(map[string]*access.Principal{
		"operator": {PrincipalID: "operator", Name: "operator", Grants: []access.Grant{{Role: "operator"}}},
		"ada":      {PrincipalID: "ada", Kind: access.User, Name: "ada", Grants: []access.Grant{{Role: "org_owner", OrgID: "mine", Orgs: []prego.OrgID{"mine"}}}},
	}))
	b.org("acme", "")
	b.org("mine", "")
	for _, r := range []struct {
		method, path string
		status       int
	}{
		{"DELETE", "/v1/servers/app-1", 403},
		{"GET", "/v1/orgs/acme", 404},
		{"GET", "/v1/orgs/acme", 404},
		{"GET", "/v1/tenants/absent", 404},
		{"GET", "/v1/orgs/mine", 200},
		{"GET", "/v1/no-such-path", 404},
	} {
		resp, answer := b.send(r.method, r.path, "ada", "", "")
		require.Equal(t, r.status, resp.StatusCode, "%s: %s", r.path, answer)
	}
	b.api.NoteRefusals(t.Context())
	entries := as[api.AuditPage](t, b.ok(200, "GET", "/v1/audit?verb=refuse&sort=at", "")).Entries
	total := map[string]float64{}
	for _, e := range entries {
		require.Equal(t, []string{"ada", "ada", "org_owner"}, []string{e.Actor, e.ActorName, e.Role})
		require.Nil(t, e.OrgId)
		total[deref(e.Operation)+" "+e.Id+" "+(*e.New)["code"].(string)] += (*e.New)["count"].(float64)
	}
	require.Equal(t, map[string]float64{"deleteServer app-1 forbidden": 1, "getOrg acme not_found": 2, "getTenant absent tenant_not_found": 1}, total)
}

// TestDryRunsNeedTheCapabilityOfTheAct: and count against the rate of the caller like the act.
func TestDryRunsNeedTheCapabilityOfTheAct(t *testing.T) {
	t.Parallel()
	in := func(role string) []access.Grant {
		return []access.Grant{{Role: role, OrgID: "mine", Orgs: []prego.OrgID{"mine"}}}
	}
	all := principals(map[string]*access.Principal{
		"operator": {PrincipalID: "operator", Name: "operator", Grants: []access.Grant{{Role: "operator"}}},
		"ada":      {PrincipalID: "ada", Name: "ada", Grants: in("org_owner")}, "bob": {PrincipalID: "bob", Name: "bob", Grants: in("org_viewer")},
	})
	b := setup(t, func(d *api.Deps) { all(d); d.RatePerSecond, d.RateBurst = 0.01, 8 })
	b.untried = true
	b.org("acme", "")
	b.org("mine", "")
	const body = `{"org_id":"mine","name":"first"}`
	for _, tc := range []struct {
		token, path, body string
		status            int
	}{
		{"ada", "/v1/apps?dry_run=true", body, 200},
		{"ada", "/v1/apps?dry_run=true", `{"org_id":"acme","name":"x"}`, 422},
		{"ada", "/v1/servers/app-1/retry?dry_run=true", "", 403},
		{"bob", "/v1/apps?dry_run=true", body, 403},
	} {
		resp, answer := b.send("POST", tc.path, tc.token, js, tc.body)
		require.Equal(t, tc.status, resp.StatusCode, "%s %s: %s", tc.token, tc.path, answer)
	}
	for range 5 {
		b.send("POST", "/v1/apps?dry_run=true", "ada", js, body)
	}
	resp, answer := b.send("POST", "/v1/apps?dry_run=true", "ada", js, body)
	require.Equal(t, http.StatusTooManyRequests, resp.StatusCode, "%s", answer)
}
