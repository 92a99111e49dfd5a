package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

func TestAWrongURLIsNamed(t *testing.T) {
	t.Parallel()
	for base, want := range map[string]string{
		"127.0.0.1:8080":         `"127.0.0.1:8080" is not the URL of an API: write http://127.0.0.1:8080`,
		"localhost:8080":         `"localhost:8080" is not the URL of an API: write http://localhost:8080`,
		"prego.example.com":      `"prego.example.com" is not the URL of an API: write https://prego.example.com`,
		"prego.example.com:8443": `write https://prego.example.com:8443`,
		"ftp://prego":            `"ftp://prego" is not the URL of an API: it must begin with http:// or https:// and a host`,
		"http://":                `must begin with http:// or https:// and a host`,
	} {
		for _, args := range [][]string{{"server", "list"}, {"context", "add", "x"}, {"login"}} {
			r := run(t, around{env: map[string]string{"PREGO_API_URL": base, "XDG_CONFIG_HOME": t.TempDir()}}, args...)
			require.Equal(t, ExitUsage, r.code, args)
			require.Contains(t, r.errs, want, args)
		}
	}
}

func TestAnotherProgramsAnswerIsNamed(t *testing.T) {
	t.Parallel()
	page := "<!doctype html><title>Welcome</title>"
	for name, other := range map[string]http.HandlerFunc{
		"GET URL/v1/servers answered text/html": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page) },
		"GET URL/v1/servers answered 404 Not Found, text/html": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, page)
		},
		"GET URL/v1/servers answered without servers": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"ok":true}`) },
	} {
		srv := httptest.NewServer(other)
		t.Cleanup(srv.Close)
		r := run(t, around{env: map[string]string{"PREGO_API_URL": srv.URL}}, "server", "list")
		require.Equal(t, ExitUsage, r.code)
		require.Equal(t, "prego: this is not prego's API: "+name+"\n", strings.ReplaceAll(r.errs, srv.URL, "URL"))
	}
	r := run(t, around{say: map[string][]func(http.ResponseWriter){"GET /v1/servers": {say(502, "<html>")}}}, "server", "list")
	require.Equal(t, "prego: the API answered 502 Bad Gateway\n", r.errs, "that is a proxy's")
}

func TestNothingFound(t *testing.T) {
	t.Parallel()
	on := func() map[string][]func(http.ResponseWriter) {
		return map[string][]func(http.ResponseWriter){
			"GET /v1/tenants": {say(200, `{"tenants":[]}`)}, "GET /v1/orgs": {say(200, `{"orgs":[]}`)},
			"GET /v1/search": {say(200, `{"results":[],"truncated":false}`)}, "GET /v1/orgs/acme": {say(200, `{}`)},
			"GET /v1/orgs/nope": {refuse(404, "not_found", "there is no org nope")}, "GET /v1/orgs/away": {say(503, "")},
		}
	}
	for args, want := range map[string]string{
		"search zzzzzz":          "nothing found\n",
		"org list":               "nothing found\n",
		"tenant list":            "nothing found; --all includes what has ended\n",
		"tenant list --all":      "nothing found\n",
		"tenant list --org acme": "nothing found; --all includes what has ended\n",
		"tenant list --org away": "nothing found; --all includes what has ended\n",
	} {
		r := run(t, around{say: on(), width: 80}, strings.Fields(args)...)
		require.Zero(t, r.code, args)
		require.Empty(t, r.out, args)
		require.Equal(t, want, r.errs, args)
	}
	r := run(t, around{say: on()}, "org", "list")
	require.Equal(t, "ORG  TIER  PART OF  CREATED BY  CREATED\n", r.out, "a pipe gets the header")
	require.Empty(t, r.errs)
	r = run(t, around{say: on(), width: 80}, "org", "list", "-o", "json")
	require.Equal(t, "[]\n", r.out)
	require.Empty(t, r.errs)
	for _, width := range []int{0, 80} {
		r = run(t, around{say: on(), width: width}, "tenant", "list", "--org", "nope")
		require.Equal(t, ExitRefused, r.code)
		require.Equal(t, "prego: there is no org nope\n", r.errs)
	}
}

func TestAnEndedTenantIsNamed(t *testing.T) {
	t.Parallel()
	r := run(t, around{say: always(map[string]any{
		"GET /v1/tenants?limit=200&slug=acme-eu": `{"tenants":[]}`,
		"GET /v1/tenants?all=true&limit=200&slug=acme-eu": api.TenantPage{Tenants: []api.TenantSummary{
			{TenantId: "t-k3jq5x2m7abc", Slug: "acme-eu", State: "terminated"},
		}},
	})}, "tenant", "show", "acme-eu")
	require.Equal(t, ExitRefused, r.code)
	require.Equal(t, "prego: tenant acme-eu is terminated: prego tenant list --all lists it, and prego tenant show t-k3jq5x2m7abc shows it\n", r.errs)
}

func TestASizeWithoutAUnitIsAMistake(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"volume create acme data --size 20": `invalid argument "20" for "--size" flag: 20 is 20 bytes: did you mean 20GB?`,
	} {
		r := run(t, around{}, strings.Fields(args)...)
		require.Equal(t, ExitUsage, r.code, args)
		require.Contains(t, r.errs, want)
		require.Empty(t, r.asked)
	}
}

func TestATenantStandsForItsLastDecision(t *testing.T) {
	t.Parallel()
	decisions := api.DecisionList{Decisions: []api.Decision{{Id: 12}, {Id: 7}}}
	on := always(map[string]any{
		"GET /v1/tenants?limit=200&slug=bakery": api.TenantPage{Tenants: []api.TenantSummary{
			{TenantId: "t-aaaabbbbcccc", Slug: "bakery"},
		}},
		"GET /v1/tenants/t-aaaabbbbcccc/decisions": decisions,
		"GET /v1/decisions/12":                     api.ExplainedDecision{Decision: api.Decision{Id: 12}},
		"GET /v1/tenants/t-ddddeeeeffff/decisions": api.DecisionList{Decisions: []api.Decision{}},
	})
	for _, given := range []string{"bakery", "t-aaaabbbbcccc", "12"} {
		r := run(t, around{say: on}, "decision", "show", given)
		require.Zero(t, r.code, r.errs)
		require.Equal(t, "GET /v1/decisions/12", r.asked[len(r.asked)-1])
	}
	r := run(t, around{say: on}, "decision", "show", "t-ddddeeeeffff")
	require.Equal(t, ExitRefused, r.code)
	require.Equal(t, "prego: no decision about tenant t-ddddeeeeffff is kept\n", r.errs)
}

func TestAQuotasChangeIsInWords(t *testing.T) {
	t.Parallel()
	limit := func(n float64, why string) *map[string]any {
		return &map[string]any{"org_id": "acme", "dimension": "max_instances", "limit_value": n, "reason": why}
	}
	for want, e := range map[string]api.AuditEntry{
		"limit the tier's→5, because growth": {Verb: "create", New: limit(5, "growth")},
		"limit 5→7, because more growth": {
			Verb: "update", Old: &map[string]any{"limit_value": 5.0, "reason": "growth"},
			New: &map[string]any{"limit_value": 7.0, "reason": "more growth"},
		},
		"because asked twice": {
			Verb: "update", Old: &map[string]any{"reason": "growth"}, New: &map[string]any{"reason": "asked twice"},
		},
		"limit 7→the tier's": {Verb: "delete", Old: limit(7, "growth")},
	} {
		e.Kind, e.Id, e.At, e.Actor = "quota", "acme/max_instances", born, "ann"
		page := api.AuditPage{Entries: []api.AuditEntry{e}}
		r := run(t, around{say: always(map[string]any{"GET /v1/audit": page})}, "audit", "list", "--kind", "quota")
		require.Zero(t, r.code, r.errs)
		require.Contains(t, r.out, want)
	}
}

func TestExecsHelpListsItsCommands(t *testing.T) {
	t.Parallel()
	r := run(t, around{}, "exec", "--help")
	for _, line := range []string{
		"bench:", "  --site SITE list-apps", "mariadb:", "  processlist", "redis-cli:", "  info SECTION",
	} {
		require.Contains(t, r.out, line+"\n")
	}
	require.NotContains(t, r.out, "set-admin-password", "what needs a secret is the control plane's own")
}

func TestNoColumnIsThereTwice(t *testing.T) {
	t.Parallel()
	page := api.ServerPage{Servers: []api.ServerSummary{{ServerId: "app-1", CreatedAt: born}}}
	r := run(t, around{say: always(map[string]any{"GET /v1/servers": page})}, "server", "list", "-o", "csv")
	header, _, _ := strings.Cut(r.out, "\r\n")
	require.Equal(t, 1, strings.Count(header, "created_at"), header)

	costs := func(by string) string {
		c := api.Costs{By: api.CostBy(by), Month: "2026-11", Rows: []api.CostRow{{Id: "acme", Cost: "1.00"}}}
		r := run(t, around{say: always(map[string]any{"GET /v1/costs": c})}, "cost", "--by", by)
		return strings.Split(r.out, "\n")[1]
	}
	require.Equal(t, 1, strings.Count(costs("org"), "ORG"), costs("org"))
	require.Equal(t, 1, strings.Count(costs("tenant"), "ORG"), costs("tenant"))
}
