package api_test

import (
	"context"
	"encoding/csv"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/console"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// consoleBundle is a bundle with the console on top of its API.
type consoleBundle struct {
	*bundle
	deps console.Deps
	srv  *httptest.Server
}

func setupConsole(t *testing.T, change func(*consoleBundle)) *consoleBundle {
	t.Helper()
	return (&consoleBundle{bundle: setup(t, nil)}).withConsole(change)
}

// withConsole starts the console of a bundle's API.
func (b *consoleBundle) withConsole(change func(*consoleBundle)) *consoleBundle {
	t := b.t
	t.Helper()
	b.deps = console.Deps{API: b.api.Handler(), Allow: b.api.Allow, Refusal: b.api.Refusal, Auth: api.Authenticate(b.store), Store: b.store, Feed: b.api.Subscribe, Watch: b.api.Watch, Now: time.Now, Log: zap.NewNop()}
	b.srv = httptest.NewUnstartedServer(nil)
	b.deps.URL = "http://" + b.srv.Listener.Addr().String()
	if change != nil {
		change(b)
	}
	b.srv.Config.Handler = console.New(b.deps).Handler()
	b.srv.Start()
	t.Cleanup(b.srv.Close)
	return b
}

// page is what the console answered.
type page struct {
	status int
	header http.Header
	body   string
}

// browser keeps cookies and follows no redirects.
type browser struct {
	b      *consoleBundle
	client *http.Client
	csrf   string
}

func (b *consoleBundle) browser() *browser {
	jar, err := cookiejar.New(nil)
	require.NoError(b.t, err)
	return &browser{b: b, client: &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

var csrfInput = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

// login is a browser that has logged in.
func (b *consoleBundle) login(token string) *browser {
	b.t.Helper()
	switch token {
	case "operator":
		token = b.token(token, "operator")
	case "viewer":
		token = b.token(token, "support")
	}
	v := b.browser()
	p := v.post("/console/login", url.Values{"token": {token}})
	require.Equal(b.t, http.StatusSeeOther, p.status, p.body)
	m := csrfInput.FindStringSubmatch(v.get("/console/servers").body)
	require.NotNil(b.t, m)
	v.csrf = m[1]
	return v
}

func (v *browser) send(method, path string, body io.Reader, header ...string) page {
	v.b.t.Helper()
	r, err := http.NewRequestWithContext(v.b.t.Context(), method, v.b.srv.URL+path, body)
	require.NoError(v.b.t, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := v.client.Do(r)
	require.NoError(v.b.t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(v.b.t, err)
	return page{resp.StatusCode, resp.Header, string(text)}
}

func (v *browser) get(path string, header ...string) page {
	v.b.t.Helper()
	return v.send(http.MethodGet, path, http.NoBody, header...)
}

func (v *browser) post(path string, form url.Values, header ...string) page {
	v.b.t.Helper()
	if v.csrf != "" && !form.Has("csrf") {
		form.Set("csrf", v.csrf)
	}
	return v.send(http.MethodPost, path, strings.NewReader(form.Encode()), append([]string{"Content-Type", "application/x-www-form-urlencoded"}, header...)...)
}

// TestConsoleRunsACommand: a command reports many events before it ends, and the page shows the end, as its
// row does.
func TestConsoleRunsACommand(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	b.reachable("app-1")
	three := 3
	b.hosts.run = func(_ context.Context, _ server.Command, onLine func(stream, line string)) (server.CommandOutcome, error) {
		onLine("stdout", "first")
		onLine("stdout", "second")
		return server.CommandOutcome{ExitCode: &three, Duration: time.Millisecond, Stdout: "all of it"}, nil
	}
	p := b.login("operator").post("/console/do/execOnServer", url.Values{"server_id": {"app-1"}, "f.kind": {"bench"}, "f.args": {"list-sites"}})
	require.Equal(t, http.StatusOK, p.status, p.body)
	require.Contains(t, p.body, "all of it")
	require.Contains(t, p.body, "ended with the exit code 3")
	require.NotContains(t, p.body, `class="verdict good"`)
	var ended int
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM agent_command_audit WHERE exit_code = 3 AND finished_at IS NOT NULL`).Scan(&ended))
	require.Equal(t, 1, ended)
}

// TestConsoleFormsOfOtherSites: a page of another site can't make a browser log in as another user, whatever
// origin the browser claims.
func TestConsoleFormsOfOtherSites(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	for name, header := range map[string][]string{
		"by its origin":        {"Origin", "https://evil.example"},
		"in a frame without":   {"Origin", "null"},
		"by fetch metadata":    {"Sec-Fetch-Site", "cross-site"},
		"on another subdomain": {"Sec-Fetch-Site", "same-site", "Origin", "https://other.example.com"},
	} {
		p := b.browser().post("/console/login", url.Values{"token": {"operator"}}, header...)
		require.Equal(t, http.StatusForbidden, p.status, name)
		require.Empty(t, p.header.Values("Set-Cookie"), name)
	}
	p := b.browser().post("/console/login", url.Values{"token": {b.token("ann", "operator")}}, "Origin", b.srv.URL, "Sec-Fetch-Site", "same-origin")
	require.Equal(t, http.StatusSeeOther, p.status)
	v := b.login("operator")
	p = v.send(http.MethodPost, "/console/logout?csrf="+url.QueryEscape(v.csrf), strings.NewReader(""), "Content-Type", "application/x-www-form-urlencoded")
	require.Equal(t, http.StatusForbidden, p.status, "the mark is of a form, not of an address")
}

// TestConsoleLogin: a wrong login is reported, counted and forgotten; a correct one leads to the requested page.
func TestConsoleLogin(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	counted := map[string]int{}
	b := setupConsole(t, func(b *consoleBundle) {
		b.deps.Allow = func(p access.Principal, _ *http.Request) error {
			mu.Lock()
			defer mu.Unlock()
			key := "principal " + p.PrincipalID
			if p.PrincipalID == "" {
				key = "address"
			}
			if counted[key]++; key == "address" && counted[key] > 2 {
				return prego.Errorf(prego.CodeRateLimited, "too many")
			}
			return nil
		}
	})
	v := b.browser()
	p := v.get("/console/servers?region=eu")
	require.Equal(t, "/console/login?next=%2Fconsole%2Fservers%3Fregion%3Deu", p.header.Get("Location"))
	p = v.post("/console/login", url.Values{"token": {"wrong"}, "next": {"/console/servers?region=eu"}})
	require.Equal(t, http.StatusUnauthorized, p.status)
	require.Contains(t, p.body, `name="next" value="/console/servers?region=eu"`, "also after a typing error")
	p = v.get("/console/servers", "Cookie", "prego_console=made-up")
	require.Equal(t, http.StatusSeeOther, p.status)
	require.Equal(t, http.StatusTooManyRequests, v.get("/console/servers", "Cookie", "prego_console=made-up").status, "cookies that are made up are counted")
	require.Equal(t, http.StatusTooManyRequests, v.post("/console/login", url.Values{"token": {"wrong"}}).status)
	p = v.post("/console/login", url.Values{"token": {b.token("ann", "operator")}, "next": {"/console/servers?region=eu"}})
	require.Equal(t, http.StatusSeeOther, p.status, "others at the same address are not kept out")
	require.Equal(t, "/console/servers?region=eu", p.header.Get("Location"))

	// Whoever logs in again leaves no session behind.
	first := p.header.Get("Set-Cookie")
	p = v.post("/console/login", url.Values{"token": {b.token("bob", "support")}, "next": {"//evil.example"}})
	require.Equal(t, "/console", p.header.Get("Location"))
	first, _, _ = strings.Cut(first, ";")
	mu.Lock()
	clear(counted)
	mu.Unlock()
	require.Equal(t, http.StatusSeeOther, b.browser().get("/console/servers", "Cookie", first).status)
	require.Equal(t, http.StatusOK, v.get("/console/servers").status)
}

// TestConsoleFormsAreSmall: no form fills memory or disk, least of all a stranger's.
func TestConsoleFormsAreSmall(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	p := b.browser().post("/console/login", url.Values{"token": {strings.Repeat("a", 1<<20)}})
	require.Equal(t, http.StatusRequestEntityTooLarge, p.status)
	v := b.login("operator")
	require.Equal(t, http.StatusRequestEntityTooLarge, v.post("/console/theme", url.Values{"theme": {strings.Repeat("a", 17<<20)}}).status)
	body := "--x\r\nContent-Disposition: form-data; name=\"token\"\r\n\r\noperator\r\n--x--\r\n"
	require.Equal(t, http.StatusUnauthorized, b.browser().send(http.MethodPost, "/console/login", strings.NewReader(body), "Content-Type", `multipart/form-data; boundary=x`).status, "files are not taken")
}

// TestConsoleLinksToForms: a link fills in a form, but not what makes sending it safe.
func TestConsoleLinksToForms(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	v := b.login("operator")
	resp, body := b.do(http.MethodPut, "/v1/orgs/acme", "operator", js, `{"tier":"paid"}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	p := v.get("/console/do/putOrg?org_id=acme&key=known&etag=%22stolen%22")
	require.Equal(t, http.StatusOK, p.status)
	require.NotContains(t, p.body, `name="key" value="known"`)
	require.Regexp(t, `name="etag" value="&#34;[^&]+&#34;"`, p.body)
}

// TestConsoleOffersWhatIsAllowed: viewers are offered nothing that the API refuses them, and links keep leading where
// they should from a page with a query.
func TestConsoleOffersWhatIsAllowed(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	b.sql(`INSERT INTO orgs (org_id, tier, created_by) VALUES ('acme', 'free', 'x')`)
	b.sql(`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by)
VALUES ('t-1', 't-1', 'acme', 'eu', 'starter', 1, 1, 'shared', '', 'provisioning', 'x')`)
	var id string
	require.NoError(t, b.pool.QueryRow(t.Context(), `INSERT INTO allocation_snapshots (tenant_id, outcome, code, algorithm, decision_log, policy_json)
VALUES ('t-1', 'awaiting_capacity', 'insufficient_resources', 'best_fit', '{"selection_reason": "because"}', '{}') RETURNING snapshot_id::text`).Scan(&id))
	operator, viewer := b.login("operator"), b.login("viewer")
	require.Contains(t, operator.get("/console/decisions/"+id+"?from=mail").body, `href="/console/decisions/`+id+`/replay"`)
	p := viewer.get("/console/decisions/" + id)
	require.Equal(t, http.StatusOK, p.status)
	require.Contains(t, p.body, `href="/console/decisions/`+id+`/replay"`, "it changes nothing")
	require.Equal(t, http.StatusOK, viewer.get("/console/what-if").status)
	require.Equal(t, http.StatusConflict, viewer.get("/console/decisions/"+id+"/replay").status, "its input was not kept")
	require.Equal(t, http.StatusForbidden, viewer.get("/console/do/putOrg").status)
}

// TestConsoleSaysWhenToComeBack: while the database is away, pages are refused as the API refuses requests.
func TestConsoleSaysWhenToComeBack(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, func(b *consoleBundle) {
		away := store.New(pgtest.Tapped(t, b.pool, func(string, []any) error { return &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED} }))
		b.deps.Auth = api.Authenticate(away)
	})
	v := b.browser()
	u, err := url.Parse(b.srv.URL)
	require.NoError(t, err)
	v.client.Jar.SetCookies(u, []*http.Cookie{{Name: "prego_console", Value: b.token("ann", "operator"), Path: "/console"}})
	p := v.get("/console/servers")
	require.Equal(t, http.StatusServiceUnavailable, p.status, p.body)
	require.Equal(t, "1", p.header.Get("Retry-After"))
	require.Contains(t, p.body, "not_ready")
}

// TestConsoleShowsWhatIsSo: a form that would change nothing reports that, and a filter for several values is shown as it is.
func TestConsoleShowsWhatIsSo(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	resp, body := b.do(http.MethodPut, "/v1/orgs/acme", "operator", js, `{"tier":"paid"}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	v := b.login("operator")
	p := v.post("/console/do/putOrg", url.Values{"org_id": {"acme"}, "f.tier": {"paid"}, "key": {"k"}, "compare": {"1"}})
	require.Equal(t, http.StatusOK, p.status, p.body)
	require.Contains(t, p.body, "What it would change")
	require.Contains(t, p.body, "Nothing changes.")
	p = v.get("/console/servers?status=active,failed")
	require.Contains(t, p.body, "<option selected>active,failed</option>")
}

// TestConsoleExportsAll: the CSV has all pages of a list from any page.
func TestConsoleExportsAll(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	b.sql(`INSERT INTO resources (provider, kind, name, attempt, state, provider_id, created_at, details)
SELECT 'hetzner', 'server', 'app-' || n, 1, 'created', n::text, now() - make_interval(hours => n), '{"type": "cx43", "location": "fsn1"}' FROM generate_series(1, 320) AS n`)
	v := b.login("viewer")
	second := regexp.MustCompile(`href="(/console/ledger\?[^"]*)" rel="next"`).FindStringSubmatch(v.get("/console/ledger?kind=server").body)
	require.NotNil(t, second)
	export := regexp.MustCompile(`href="(/console/ledger\.csv\?[^"]*)"`).FindStringSubmatch(v.get(html.UnescapeString(second[1])).body)
	require.NotNil(t, export)
	p := v.get(html.UnescapeString(export[1]))
	require.Equal(t, http.StatusOK, p.status)
	require.Equal(t, "no-store", p.header.Get("Cache-Control"))
	require.Equal(t, `attachment; filename="ledger.csv"`, p.header.Get("Content-Disposition"))
	rows, err := csv.NewReader(strings.NewReader(p.body)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 1+320)
	names := map[string]bool{}
	for _, r := range rows[1:] {
		names[r[3]] = true
	}
	require.Len(t, names, 320)
}

// TestLoginsEndWithTheirToken: revoking a leaked token also ends everything started with it: logins, and unused links,
// including the links that a login made.
func TestLoginsEndWithTheirToken(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	token := b.token("ann", "operator")
	v := b.login(token)
	links := make([]string, 2)
	for i := range links {
		code := regexp.MustCompile(`/console/login\?code=(\w+)`).FindStringSubmatch(v.post("/console/do/createConsoleLogin", url.Values{}).body)
		require.NotNil(t, code)
		links[i] = code[1]
	}
	other := b.browser()
	require.Contains(t, other.get("/console/login?code="+links[0]).body, "This link logs you in once.")
	require.Equal(t, http.StatusSeeOther, other.post("/console/login", url.Values{"code": {links[0]}}).status)
	require.Equal(t, http.StatusUnauthorized, b.browser().post("/console/login", url.Values{"code": {links[0]}}).status, "once")
	require.Equal(t, http.StatusOK, other.get("/console/servers").status)
	p, err := b.store.Authenticate(t.Context(), access.SecretHash(token))
	require.NoError(t, err)
	require.NoError(t, b.store.EndCredential(t.Context(), p.CredentialID, "bob"))
	require.Equal(t, http.StatusSeeOther, v.get("/console/servers").status)
	require.Equal(t, http.StatusSeeOther, other.get("/console/servers").status)
	require.Equal(t, http.StatusUnauthorized, b.browser().post("/console/login", url.Values{"code": {links[1]}}).status)
	require.Equal(t, http.StatusUnauthorized, b.browser().post("/console/login", url.Values{"token": {token}}).status)
}

// TestConsoleIsReachedFromElsewhere: a browser that follows a link of another site, such as a chat, does not send the cookie.
// It is asked to retry by itself before a logged-in user has to log in again.
func TestConsoleIsReachedFromElsewhere(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	const path = "/console/servers?region=eu&status=active"
	p := b.browser().get(path, "Sec-Fetch-Site", "cross-site")
	require.Equal(t, http.StatusOK, p.status)
	require.Contains(t, p.body, `<meta http-equiv="refresh" content="0; url=`+html.EscapeString(path)+`">`)
	require.Contains(t, p.body, `href="`+html.EscapeString(path)+`"`)
	for _, stream := range []string{"/console/events", "/console/servers/app-1/logs/backend/stream"} {
		require.Equal(t, http.StatusUnauthorized, b.browser().get(stream, "Accept", "text/event-stream", "Sec-Fetch-Site", "same-origin").status, stream)
	}
	for name, header := range map[string][]string{
		"the second time":     {"Sec-Fetch-Site", "same-origin"},
		"typed":               {"Sec-Fetch-Site", "none"},
		"with another cookie": {"Sec-Fetch-Site", "cross-site", "Cookie", "prego_console=ended"},
	} {
		require.Equal(t, http.StatusSeeOther, b.browser().get(path, header...).status, name)
	}
}

// TestConsoleAcceptsAnImpact: the form shows what would be lost, and sends the acceptance with the typed name. A link
// can't accept.
func TestConsoleAcceptsAnImpact(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	b.org("acme", "")
	b.fleet("app-1", "db-1", "redis-1")
	b.site("bakery")
	v := b.login("operator")
	form := url.Values{"server_id": {"app-1"}}
	p := v.post("/console/do/deleteServer", url.Values{"server_id": {"app-1"}, "dry": {"1"}})
	require.Equal(t, http.StatusOK, p.status, p.body)
	require.Contains(t, p.body, "bakery.sites.test")
	p = v.post("/console/do/deleteServer", form)
	require.Equal(t, http.StatusConflict, p.status, p.body)
	require.Contains(t, p.body, "bakery.sites.test")
	digest := regexp.MustCompile(`name="accepted" value="([^"]+)"`).FindStringSubmatch(p.body)
	require.Len(t, digest, 2, p.body)
	require.NotContains(t, v.get("/console/do/deleteServer?server_id=app-1&accepted="+digest[1]).body, `name="accepted"`)
	form.Set("accepted", digest[1])
	form.Set("typed", "app-2")
	require.Equal(t, http.StatusUnprocessableEntity, v.post("/console/do/deleteServer", form).status)
	require.Equal(t, api.ServerStatus("active"), b.show("app-1").Status)
	form.Set("typed", "app-1")
	p = v.post("/console/do/deleteServer", form)
	require.Equal(t, http.StatusOK, p.status, p.body)
	require.Equal(t, api.ServerStatus("draining"), b.show("app-1").Status)
}
