package api_test

import (
	"html"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

// shows is a page of the reference, which needs no token.
func shows(t *testing.T, b *bundle, path string) string {
	t.Helper()
	w := httptest.NewRecorder()
	b.api.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	require.Equal(t, http.StatusOK, w.Code, path)
	if strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
		require.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
		require.NotContains(t, w.Header().Get("Content-Security-Policy"), "http")
	}
	return w.Body.String()
}

// A browser shows a page of this size within a second: TestConsole measures it.
const (
	mostBytes    = 200 << 10
	mostElements = 4_000
)

var (
	anElement = regexp.MustCompile(`<[a-z]`)
	aLink     = regexp.MustCompile(`(?:src|href)="([^"#]+)[^"]*"`)
)

// TestEveryPageOfTheReferenceIsSmallAndLeadsOn: from the index every page can be reached, and each is of a size that
// opens immediately and fetches nothing from elsewhere.
func TestEveryPageOfTheReferenceIsSmallAndLeadsOn(t *testing.T) {
	t.Parallel()
	b := setup(t, func(d *api.Deps) { d.RatePerSecond, d.RateBurst = 10_000, 10_000 })
	seen, todo := map[string]bool{"/docs": true}, []string{"/docs"}
	for len(todo) > 0 {
		path := todo[0]
		todo = todo[1:]
		page := shows(t, b, path)
		if strings.HasPrefix(path, "/openapi") || strings.HasSuffix(path, ".css") || strings.HasSuffix(path, ".js") {
			continue
		}
		require.Less(t, len(page), mostBytes, path)
		require.Less(t, len(anElement.FindAllString(page, -1)), mostElements, path)
		require.NotRegexp(t, `(src|href)="?(https?:)?//|url\(|@import|style=|<script>`, page, path)
		for _, link := range aLink.FindAllStringSubmatch(page, -1) {
			if to := html.UnescapeString(link[1]); !seen[to] {
				seen[to] = true
				todo = append(todo, to)
			}
		}
	}
	operations := 0
	for _, item := range contract(t).Paths.Map() {
		for _, op := range item.Operations() {
			require.True(t, seen["/docs/operations/"+op.OperationID], op.OperationID)
			operations++
		}
	}
	require.Greater(t, operations, 200)
}

// TestAPageOfAnOperationAnswersWhatACallerAsks: what to send, how, what comes back, and what may be refused.
func TestAPageOfAnOperationAnswersWhatACallerAsks(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	page := shows(t, b, "/docs/operations/createTenant")
	text := html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " "))
	text = strings.Join(strings.Fields(text), " ")
	for _, part := range []string{
		"POST /v1/tenants", "Create a tenant", "It needs the role operator", "Idempotency-Key",
		"storage_quota_gb", "whole number, GB (10^9 bytes)", "trial, starter, business, enterprise", "org_id required",
		"prego tenant create acme-eu --org acme", `curl -H "Authorization: Bearer $TOKEN" -X POST`, `"$API/v1/tenants"`,
		"Answer 202", `"status_url": "/v1/tenants/t-7fmsahp66dxe"`, "409 quota_exceeded",
	} {
		require.Contains(t, text, part)
	}
	page = html.UnescapeString(shows(t, b, "/docs/operations/getTenant"))
	require.Contains(t, page, `"$API/v1/tenants/t-`, "an id of the example")
	resp, _ := b.send("GET", "/docs/operations/nothing", "", "", "")
	require.Equal(t, 404, resp.StatusCode)
}

// TestTheReferenceIsSearched: without a script the form finds what all its words are in.
func TestTheReferenceIsSearched(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	found := func(q string) (out []string) {
		for _, m := range regexp.MustCompile(`<li id="([^"]+)">`).FindAllStringSubmatch(shows(t, b, "/docs?q="+q), -1) {
			out = append(out, m[1])
		}
		return out
	}
	require.Greater(t, len(found("")), 200)
	require.Contains(t, found("create+TENANT"), "createTenant")
	require.Equal(t, []string{"drainServer"}, found("server+drain+SERVER"), "by its command")
	require.Empty(t, found("zzzz"))
	require.NotContains(t, shows(t, b, "/docs?q=zzzz"), `<p id="none" hidden`)
	require.Contains(t, shows(t, b, "/docs?q=%22%3E%3Cscript%3E"), `value="&#34;&gt;&lt;script&gt;"`)
}

// TestEveryCodeHasAPage: the type of a problem leads to it. It explains the code in words of its own, which name
// commands that exist.
func TestEveryCodeHasAPage(t *testing.T) {
	t.Parallel()
	b := setup(t, func(d *api.Deps) { d.RatePerSecond, d.RateBurst = 10_000, 10_000 })
	code := contract(t).Components.Schemas["Problem"].Value.Properties["code"].Value
	words, _ := code.Extensions["x-codes"].(map[string]any)
	verbs := map[string]bool{}
	api.EachVerb(func(v *api.Verb) bool {
		verb, _, _ := strings.Cut(regexp.MustCompile(` [[A-Z].*`).ReplaceAllString(v.Use, ""), " --")
		verbs[verb] = true
		return true
	})
	seen := map[string]string{}
	require.Len(t, words, len(api.Codes()))
	for _, code := range api.Codes() {
		page := shows(t, b, "/docs/errors/"+string(code))
		require.Contains(t, page, "<h1><code>"+string(code)+"</code></h1>")
		require.Contains(t, page, http.StatusText(api.Status(code)))
		about, _ := words[string(code)].(map[string]any)
		for _, part := range []string{"means", "do"} {
			text, _ := about[part].(string)
			require.Greater(t, len(text), 20, "%s: %s", code, text)
			require.True(t, strings.HasSuffix(text, "."), "%s: %s", code, text)
			require.NotContains(t, text, "  ")
			if part == "means" {
				require.Empty(t, seen[text], "%s has the words of another code", code)
				seen[text] = string(code)
			}
			for _, m := range regexp.MustCompile("`prego ([^`]+)`").FindAllStringSubmatch(text, -1) {
				verb, _, _ := strings.Cut(m[1], " --")
				require.True(t, verbs[verb] || verb == "login", "%s: there is no command %q", code, verb)
			}
		}
	}
	refused := map[string]string{"/v1/tenants/t-nope": "viewer", "/v1/tenants?limit=x": "viewer", "/v1/orgs": ""}
	for path, token := range refused {
		_, body := b.send("GET", path, token, "", "")
		problem := as[api.Problem](t, body)
		require.Contains(t, shows(t, b, problem.Type), "<code>"+problem.Code+"</code>")
	}
	page := shows(t, b, "/docs/errors/quota_exceeded")
	for _, part := range []string{
		"requested_delta", "A retry alone does not help", `href="/docs/operations/createTenant"`,
		"<code>prego limit-request create</code>",
	} {
		require.Contains(t, page, part)
	}
	require.Contains(t, shows(t, b, "/docs/errors/not_ready"), "A retry helps")
}
