package api_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	chromium "github.com/prego/prego/lab/browser"
	"github.com/prego/prego/lab/need"
)

// signUps is an API with a sign-up form's token, and a tenant of its org and one of another org.
func signUps(t *testing.T) (b *bundle, token, mine, foreign string) {
	t.Helper()
	b = setup(t, rowsOrFakes)
	b.org("acme", "")
	b.org("canary", "")
	token = b.tokenIn("acme", "signup", "provisioner", "")
	mine = b.tenant(`{"slug":"bakery","org_id":"acme","region":"eu","plan":"starter","admin_email":"canary@example.com"}`)
	foreign = b.tenant(`{"slug":"canary-1","org_id":"canary","region":"eu","plan":"starter"}`)
	return b, token, mine, foreign
}

// share makes a token that follows a tenant, as the backend of a sign-up form does.
func (b *bundle) share(token, tenant string) api.CreatedToken {
	b.t.Helper()
	body := `{"name":"visitor","expires_in_seconds":1800,"caveats":{"progress_of":"` + tenant + `"}}`
	return as[api.CreatedToken](b.t, b.want(http.StatusCreated, "POST", "/v1/tokens", token, body))
}

// becomes moves a tenant on as its run does, and has its event.
func (b *bundle) becomes(tenant, state, more string) {
	b.t.Helper()
	b.sql(`UPDATE tenants SET state = $2`+more+` WHERE tenant_id = $1`, tenant, state)
	b.sql(`INSERT INTO events (kind, id, org_id, step, status) SELECT 'tenant', tenant_id, org_id, 'state_changed', state FROM tenants WHERE tenant_id = $1`, tenant)
}

// TestAVisitorFollowsOneTenant to the URL of its site, and learns nothing else. The token is in no log, metric or row.
func TestAVisitorFollowsOneTenant(t *testing.T) {
	t.Parallel()
	b, token, mine, foreign := signUps(t)
	shared := b.share(token, mine)
	require.Equal(t, "signup", *shared.ParentId)
	require.Equal(t, "/v1/tenants/"+mine+"/progress?access_token="+shared.Secret, *shared.ProgressUrl)

	resp, body := b.send("GET", *shared.ProgressUrl, "", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	require.Equal(t, []string{"*", "no-store", "no-referrer"}, []string{
		resp.Header.Get("Access-Control-Allow-Origin"), resp.Header.Get("Cache-Control"), resp.Header.Get("Referrer-Policy"),
	})
	require.Empty(t, resp.Header.Get("Access-Control-Allow-Credentials"))
	require.Equal(t, "The site is being built.", as[api.TenantProgress](t, body).Message)

	s := b.open("GET", *shared.ProgressUrl, "", "")
	seen := s.until(t, "data: ")
	b.becomes(foreign, "failed", ", status_message = 'canary'")
	b.becomes(mine, "provisioning", ", waiting_since = now(), status_reason = 'no_capacity', status_message = 'app-canary is full'")
	seen = append(seen, s.until(t, "waits for a server with room")...)
	b.becomes(mine, "active", ", waiting_since = NULL, site = 'bakery.sites.test'")
	seen = append(seen, s.until(t, "")...)
	require.Contains(t, seen[len(seen)-1], `"site_url":"https://bakery.sites.test"`)
	require.Contains(t, seen, "id: finished")
	require.NotContains(t, strings.Join(seen, "\n"), "canary")
	require.NotContains(t, strings.Join(seen, "\n"), "acme")
	// A browser that connects again stops at this answer.
	again := request(t, b.srv.URL, "GET", *shared.ProgressUrl, "", "", "")
	again.Header.Set("Accept", "text/event-stream")
	again.Header.Set("Last-Event-Id", "finished")
	resp, err := need.HTTP.Do(again)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusNoContent, resp.StatusCode)

	for _, e := range b.logs.All() {
		require.NotContains(t, e.Message+toString(e.ContextMap()), shared.Secret)
	}
	require.NotContains(t, b.metrics(), shared.Secret)
	var rows string
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT concat((SELECT jsonb_agg(a) FROM audit_entries a), (SELECT jsonb_agg(e) FROM events e),
		(SELECT jsonb_agg(k) FROM request_keys k), (SELECT jsonb_agg(c) FROM credentials c))`).Scan(&rows))
	require.NotContains(t, rows, shared.Secret)
}

// TestWhatMayBeInAURL is a token of one tenant's progress, at that alone.
func TestWhatMayBeInAURL(t *testing.T) {
	t.Parallel()
	b, token, mine, foreign := signUps(t)
	second := b.tenant(`{"slug":"second","org_id":"acme","region":"eu","plan":"starter"}`)
	shared := b.share(token, mine)
	of := func(tenant, secret string) string {
		return "/v1/tenants/" + tenant + "/progress?access_token=" + secret
	}
	for _, tc := range []struct {
		what, method, path, header string
		status                     int
		code, says                 string
	}{
		{"another tenant of the org", "GET", of(second, shared.Secret), "", 403, "caveat", "progress_of"},
		{"a tenant of another org", "GET", of(foreign, shared.Secret), "", 403, "caveat", "progress_of"},
		{"no tenant", "GET", of("t-none", shared.Secret), "", 403, "caveat", "progress_of"},
		{"the account's own token", "GET", of(mine, token), "", 401, "unauthenticated", "revoke this token"},
		{"two tokens", "GET", of(mine, shared.Secret), token, 401, "unauthenticated", "two tokens"},
		{"another operation", "GET", "/v1/tenants/" + mine + "?access_token=" + shared.Secret, "", 401, "unauthenticated", "URLs are logged"},
		{"another method", "POST", of(mine, shared.Secret), "", 401, "unauthenticated", "URLs are logged"},
		{"an unknown token", "GET", of(mine, "prego_token_x"), "", 401, "unauthenticated", ""},
		{"in the header, the tenant", "GET", "/v1/tenants/" + mine, shared.Secret, 403, "caveat", "progress_of"},
		{"in the header, all progress", "GET", "/v1/progress", shared.Secret, 403, "caveat", "progress_of"},
		{"in the header, the caller", "GET", "/v1/whoami", shared.Secret, 403, "caveat", "progress_of"},
		{"in the header, events", "GET", "/v1/events", shared.Secret, 403, "caveat", "progress_of"},
		{"in the header, another token", "POST", "/v1/tokens", shared.Secret, 403, "caveat", "progress_of"},
		{"in the header, a login", "POST", "/v1/console-logins", shared.Secret, 403, "caveat", "progress_of"},
		{"in the header, a dry run", "POST", "/v1/tenants/" + mine + "/cancel?dry_run=true", shared.Secret, 403, "caveat", "progress_of"},
	} {
		body := ""
		if tc.method == "POST" {
			body = `{"name":"x","expires_in_seconds":60}`
		}
		resp, answer := b.send(tc.method, tc.path, tc.header, js, body)
		p := as[api.Problem](t, answer)
		require.Equal(t, []any{tc.status, tc.code}, []any{resp.StatusCode, p.Code}, "%s: %s", tc.what, answer)
		require.Contains(t, deref(p.Detail), tc.says, tc.what)
		require.NotContains(t, string(answer), shared.Secret, tc.what)
		require.NotContains(t, string(answer), "acme", tc.what)
	}
	head, _ := b.send("HEAD", *shared.ProgressUrl, "", "", "")
	require.Equal(t, http.StatusOK, head.StatusCode)
	req := request(t, b.srv.URL, "HEAD", *shared.ProgressUrl, "", "", "")
	req.Header.Set("Accept", "text/event-stream")
	resp, err := need.HTTP.Do(req)
	require.NoError(t, err, "HEAD does not wait for the end of a stream")
	require.NoError(t, resp.Body.Close())

	// Nobody shares what it may not, or for longer than minutes.
	viewer := b.tokenIn("acme", "viewer-acme", "org_viewer", "")
	for _, tc := range []struct{ token, tenant, seconds, field string }{
		{viewer, mine, "60", "caveats.progress_of"},
		{token, foreign, "60", "caveats.progress_of"},
		{token, "t-none", "60", "caveats.progress_of"},
		{token, mine, "7260", "expires_in_seconds"},
	} {
		resp, answer := b.send("POST", "/v1/tokens", tc.token, js, `{"name":"x","expires_in_seconds":`+tc.seconds+`,"caveats":{"progress_of":"`+tc.tenant+`"}}`)
		require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode, "%s", answer)
		require.Equal(t, tc.field, deref(as[api.Problem](t, answer).Field), "%s", answer)
	}
	resp, answer := b.send("POST", "/v1/tokens/"+shared.TokenId+"/rotate", "operator", js, `{"expires_in_seconds":31622400}`)
	require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode, "%s", answer)

	b.sql(`UPDATE credentials SET expires_at = now() WHERE credential_id = $1`, shared.TokenId)
	resp, answer = b.send("GET", *shared.ProgressUrl, "", "", "")
	require.Equal(t, []any{http.StatusUnauthorized, "*"}, []any{resp.StatusCode, resp.Header.Get("Access-Control-Allow-Origin")})
	require.Equal(t, "token_expired", as[api.Problem](t, answer).Code)
}

// TestAVisitorsStreamEnds with the token that its own was narrowed from. A token has few streams, and those of an account's
// visitors count neither against its streams nor against its rate.
func TestAVisitorsStreamEnds(t *testing.T) {
	t.Parallel()
	b, token, mine, _ := signUps(t)
	first, second := b.share(token, mine), b.share(token, mine)
	var open []*opened
	for range api.MaxVisitorsOfOne {
		open = append(open, b.open("GET", *first.ProgressUrl, "", ""))
		open[len(open)-1].until(t, "data: ")
	}
	require.Equal(t, http.StatusTooManyRequests, b.open("GET", *first.ProgressUrl, "", "").status)
	other := b.open("GET", *second.ProgressUrl, "", "")
	other.until(t, "data: ")
	b.sql(`UPDATE credentials SET revoked_at = now() WHERE credential_id = $1`, first.TokenId)
	began := time.Now()
	for _, s := range open {
		s.until(t, "")
	}
	require.Less(t, time.Since(began), 5*time.Second) // see TestStreamsEndWithTheirAccess for the limit
	other.isOpen(t)
	resp, _ := b.send("DELETE", "/v1/tokens/signup", "operator", "", "")
	require.Equal(t, http.StatusNoContent, resp.StatusCode)
	other.until(t, "")
	require.Equal(t, http.StatusUnauthorized, b.open("GET", *second.ProgressUrl, "", "").status)
}

// TestVisitorsDoNotUseUpTheirAccount: a visitor who sends too much is refused, and the sign-up form is not.
func TestVisitorsDoNotUseUpTheirAccount(t *testing.T) {
	t.Parallel()
	b := setup(t, func(d *api.Deps) {
		rowsOrFakes(d)
		d.RatePerSecond, d.RateBurst = 0.001, 20
	})
	b.sql(`INSERT INTO orgs (org_id, created_by) VALUES ('acme', 'test')`)
	token := b.tokenIn("acme", "signup", "provisioner", "")
	resp, body := b.send("POST", "/v1/tenants", token, js, `{"slug":"bakery","org_id":"acme","region":"eu","plan":"starter"}`)
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", body)
	shared := b.share(token, as[api.TenantAccepted](t, body).TenantId)
	status := 0
	for range 100 {
		resp, _ := b.send("GET", *shared.ProgressUrl, "", "", "")
		status = resp.StatusCode
	}
	require.Equal(t, http.StatusTooManyRequests, status)
	resp, body = b.send("GET", "/v1/tenants", token, "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
}

// TestABrowserOfAnotherOriginFollowsATenant with EventSource, which stops when the site is open.
func TestABrowserOfAnotherOriginFollowsATenant(t *testing.T) {
	t.Parallel()
	b, token, mine, _ := signUps(t)
	shared := b.share(token, mine)
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, `<!doctype html><title>Sign up</title><link rel="icon" href="data:,"><p id="progress"></p><script>
const source = new EventSource(%q)
source.onmessage = e => {
  const p = JSON.parse(e.data)
  document.querySelector("#progress").textContent = p.message + " " + (p.site_url || "")
}
</script>`, b.srv.URL+*shared.ProgressUrl)
	}))
	t.Cleanup(page.Close)
	program, end, err := chromium.Start(context.Background(), need.Program(t, "chromium"), filepath.Join(t.TempDir(), rand.Text()))
	require.NoError(t, err)
	t.Cleanup(end)
	tab, endTab, err := program.NewTab(page.URL)
	require.NoError(t, err)
	t.Cleanup(endTab)
	require.NoError(t, tab.Go(page.URL))
	require.NoError(t, tab.Wait(`document.querySelector("#progress").textContent.includes("being built")`))
	b.becomes(mine, "active", ", site = 'bakery.sites.test'")
	require.NoError(t, tab.Wait(`document.querySelector("#progress").textContent === "The site is ready. https://bakery.sites.test"`))
	require.NoError(t, tab.Wait(`source.readyState === EventSource.CLOSED`), "it connects once more, and stops")
	require.Empty(t, tab.Problems())
}
