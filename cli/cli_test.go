package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

var born = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// script is an API that answers each request by its method and path:
// with the next of several answers, and the last one for ever.
type script struct {
	mu      sync.Mutex
	say     map[string][]func(http.ResponseWriter)
	asked   []string
	bodies  map[string]string
	headers map[string]http.Header
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, _ := io.ReadAll(r.Body)
	key := r.Method + " " + r.URL.RequestURI()
	s.asked = append(s.asked, key)
	s.bodies[key], s.headers[key] = string(b), r.Header
	answers, ok := s.say[key]
	if !ok {
		if answers, ok = s.say[r.Method+" "+r.URL.EscapedPath()]; !ok {
			refuse(http.StatusNotFound, "not_found", "there is no "+key)(w)
			return
		}
		key = r.Method + " " + r.URL.EscapedPath()
	}
	if len(answers) > 1 {
		s.say[key] = answers[1:]
	}
	answers[0](w)
}

func say(status int, v any) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(status)
		switch v := v.(type) {
		case nil:
		case string:
			_, _ = io.WriteString(w, v)
		default:
			_ = json.NewEncoder(w).Encode(v)
		}
	}
}

func refuse(status int, code, detail string) func(http.ResponseWriter) {
	return say(status, api.Problem{Title: http.StatusText(status), Detail: &detail, Status: status, Code: code})
}

func hangUp(w http.ResponseWriter) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = c.Close()
	}
}

// around is what a verb has around it in a test.
type around struct {
	width int    // of the terminal; 0 for a pipe
	stdin string // of a terminal where there is a width
	env   map[string]string
	ctx   context.Context
	say   map[string][]func(http.ResponseWriter)
}

// ran is what became of a verb.
type ran struct {
	*script
	out, errs string
	code      int
	browsed   string // the URL that a browser was asked to open
}

func program(c *CLI, out io.Writer) *cobra.Command {
	root := &cobra.Command{Use: "prego", Short: "Test", SilenceUsage: true, SilenceErrors: true}
	root.SetOut(out)
	c.AddTo(root)
	return root
}

func run(t *testing.T, a around, args ...string) ran {
	t.Helper()
	s := &script{say: a.say, bodies: map[string]string{}, headers: map[string]http.Header{}}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	env := map[string]string{"PREGO_API_URL": srv.URL, "PREGO_TOKEN": "x"}
	maps.Copy(env, a.env)
	c := &CLI{Getenv: func(k string) string { return env[k] }, Now: func() time.Time { return born.Add(36 * time.Hour) }, Width: func(any) int { return a.width }}
	var out, errs bytes.Buffer
	browsed := ""
	c.Browse = func(_ context.Context, u string) error {
		browsed = u
		return nil
	}
	root := program(c, &out)
	root.SetErr(&errs)
	root.SetIn(strings.NewReader(a.stdin))
	root.SetArgs(args)
	if a.ctx == nil {
		a.ctx = t.Context()
	}
	code := Report(&errs, root.ExecuteContext(a.ctx))
	return ran{script: s, out: out.String(), errs: strings.ReplaceAll(errs.String(), srv.URL, "URL"), code: code, browsed: browsed}
}

// always is a script with one answer for each request.
func always(answers map[string]any) map[string][]func(http.ResponseWriter) {
	out := map[string][]func(http.ResponseWriter){}
	for key, v := range answers {
		out[key] = []func(http.ResponseWriter){say(http.StatusOK, v)}
	}
	return out
}

func TestATableFitsTheTerminal(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("reason ", 20)
	list := always(map[string]any{"GET /v1/servers": api.ServerPage{Servers: []api.ServerSummary{
		{ServerId: "a-server-that-people-copy", Role: "app", Region: "eu", Status: "failed", AgentStatus: "offline", CreatedAt: born, StatusReason: &long},
	}}})
	for width, cut := range map[int]bool{80: true, 120: true, 0: false, 400: false} {
		r := run(t, around{width: width, say: list, env: map[string]string{"TERM": "xterm"}}, "server", "list")
		require.Zero(t, r.code, r.errs)
		require.Equal(t, cut, strings.Contains(r.out, "…"), r.out)
		require.Contains(t, r.out, "a-server-that-people-copy")
		require.Equal(t, width > 0, strings.Contains(r.out, "\x1b[31mfailed"), "%q", r.out)
		for line := range strings.SplitSeq(strings.TrimSpace(r.out), "\n") {
			plain := strings.NewReplacer("\x1b[31m", "", "\x1b[0m", "").Replace(line)
			require.True(t, width == 0 || len([]rune(plain)) <= width, "%d: %q", width, plain)
		}
	}
	for _, env := range []map[string]string{{"NO_COLOR": "1"}, {"TERM": "dumb"}} {
		require.NotContains(t, run(t, around{width: 80, say: list, env: env}, "server", "list").out, "\x1b")
	}
}

func TestANarrowTerminalGetsFewerColumns(t *testing.T) {
	t.Parallel()
	reason, slug := "awaiting_capacity", strings.Repeat("a-long-slug-", 3)+"x"
	list := always(map[string]any{"GET /v1/tenants": api.TenantPage{Tenants: []api.TenantSummary{
		{TenantId: "t-k3jq5x2m7abc", Slug: slug, OrgId: "northwind-traders", Region: "eu", Plan: "enterprise", State: "provisioning", StatusReason: &reason, CreatedAt: born},
	}}})
	for width, want := range map[int]string{
		150: "TENANT SLUG ORG REGION PLAN STATE AGE REASON", 110: "TENANT SLUG ORG REGION STATE REASON", 104: "TENANT SLUG ORG STATE REASON", 94: "TENANT SLUG STATE REASON", 80: "TENANT SLUG STATE", 40: "TENANT SLUG STATE", 0: "TENANT SLUG ORG REGION PLAN STATE AGE REASON",
	} {
		r := run(t, around{width: width, say: list, env: map[string]string{"NO_COLOR": "1"}}, "tenant", "list")
		header, row, _ := strings.Cut(r.out, "\n")
		require.Equal(t, want, strings.Join(strings.Fields(header), " "), "at %d", width)
		require.Contains(t, row, "t-k3jq5x2m7abc  "+slug+"  ", "what identifies is never cut")
		require.Contains(t, row, "provisioning")
		require.True(t, width < 80 || len([]rune(strings.TrimSpace(row))) <= width, "%d: %q", width, row)
	}
	r := run(t, around{width: 80, say: list}, "tenant", "list", "--columns", "slug,org,plan,age,reason")
	require.Contains(t, r.out, "AGE", "columns that were asked for stay")
}

// TestImportantColumnsFitEightyColumns: with the lengths that names have in an installation.
func TestImportantColumnsFitEightyColumns(t *testing.T) {
	t.Parallel()
	server, message := "n-t-66fkcs6n4xjs-g1", "no server fits: 1 server was checked; it has 3.7 GiB free and 64 GiB are needed, until tomorrow"
	price := "15.99"
	attention := api.AttentionList{AsOf: born, Items: []api.Attention{{
		Id: "x", Kind: "tenant_waits", Severity: "critical", Message: message, Since: born, Reason: "insufficient_resources",
	}}}
	attention.Items[0].Subject.Kind, attention.Items[0].Subject.Name = "tenant", "starter-123250"
	attention.Counts.Critical = 1
	on := always(map[string]any{
		"GET /v1/attention": attention,
		"GET /v1/ledger": `{"resources":[{"name":"prego-demo-` + server + `-ip0","kind":"placement_group","owner":"server:` + server +
			`","state":"releasing","since":"2026-01-02T03:04:05Z","price_month":"` + price + `","currency":"EUR","type":"ipv4","location":"fsn1"}]}`,
		"GET /v1/audit": `{"entries":[{"entry_id":123456,"at":"2026-01-02T03:04:05Z","actor":"user-1","actor_name":"ann.of.the.operators@example.com","verb":"create",
			"kind":"quota","id":"acme/max_total_volume_bytes","from":"203.0.113.7","operation":"setOrgQuota"}]}`,
	})
	for args, want := range map[string][]string{
		"ledger list": {"prego-demo-" + server + "-ip0", "releasing", price},
		"audit list":  {"123456", "2026-01-02T03:04:05Z", "ann.of", "create", "acme/max"},
		"status":      {"critical", "tenant starter-123250", "no server fits", "64 GiB are", "until tomorrow"},
	} {
		r := run(t, around{width: 80, say: on, env: map[string]string{"NO_COLOR": "1"}}, strings.Fields(args)...)
		require.Zero(t, r.code, "%s", r.errs)
		for _, text := range want {
			require.Contains(t, r.out, text, args)
		}
		for line := range strings.SplitSeq(r.out, "\n") {
			require.LessOrEqual(t, len([]rune(line)), 80, "%s: %q", args, line)
		}
	}
}

func TestTextsAreWrappedBetweenWords(t *testing.T) {
	t.Parallel()
	require.Equal(t, "  one two\n  three", wrapped("one two three", 14, 2))
	require.Equal(t, "abcdefghijkl\nmnop", wrapped("abcdefghijklmnop", 12, 0), "a word that is too long is broken")
	require.Equal(t, "  short", wrapped("short", 80, 2))
	var out bytes.Buffer
	(&spinner{w: &out, terminal: 40}).event("    0.00s", "acme-eu          asked for a server  provisioning → failed  [ann]")
	require.Equal(t, "    0.00s  acme-eu          asked for a\n           server  provisioning → failed\n           [ann]\n", out.String())
}

func TestAnOperationIsFollowedToItsEnd(t *testing.T) {
	t.Parallel()
	const id = "server-provision/app-7"
	on := func(end api.OperationStatus) map[string][]func(http.ResponseWriter) {
		o := api.Operation{Id: id, Kind: "server-provision", Status: "running"}
		message, reason := "it is not sold", "server_type_retired"
		o.Target.Kind, o.Target.Id = "server", "app-7"
		ended := o
		if ended.Status = end; end == "failed" {
			ended.Message, ended.Reason = &message, &reason
		}
		return map[string][]func(http.ResponseWriter){"GET /v1/operations/server-provision%2Fapp-7": {say(200, o), say(200, o), say(200, o), say(200, ended)}}
	}
	r := run(t, around{say: on("succeeded")}, "operation", "show", id)
	require.Equal(t, "operation  "+id+"\nstatus     running\ntarget     server app-7\nkind       server-provision\n", r.out, r.errs)
	r = run(t, around{say: on("succeeded"), width: 100}, "operation", "show", id, "--watch")
	require.Zero(t, r.code, r.errs)
	require.Contains(t, r.out, id+" is running")
	require.Contains(t, r.out, "operation "+id+" succeeded\n")
	r = run(t, around{say: on("failed")}, "operation", "show", id, "--watch")
	require.Equal(t, ExitOutcome, r.code)
	require.Equal(t, "prego: operation "+id+" failed: server_type_retired, it is not sold\n", r.errs)
}

func TestEveryFormOfOutput(t *testing.T) {
	t.Parallel()
	next := "b"
	on := map[string][]func(http.ResponseWriter){
		"GET /v1/orgs?limit=200":          {say(200, api.OrgPage{Orgs: []api.Org{{OrgId: "b", Tier: "free", CreatedAt: born}}, NextCursor: &next})},
		"GET /v1/orgs?cursor=b&limit=200": {say(200, `{"orgs":[{"org_id":"a","tier":"paid","created_at":"2026-01-02T03:04:06Z","new_field":{"n":1,"s":"2026-01-02","empty":[]}}]}`)},
		"GET /v1/orgs?limit=1":            {say(200, api.OrgPage{Orgs: []api.Org{{OrgId: "b"}}, NextCursor: &next})},
		"GET /v1/orgs/a":                  {say(200, api.Org{OrgId: "a", Tier: "paid", CreatedAt: born})},
		"GET /v1/orgs/b":                  {say(200, api.Org{OrgId: "b", Tier: "free", CreatedAt: born})},
	}
	for args, want := range map[string]string{
		"org list --no-header --columns org,tier":       "b  free\na  paid\n",
		"org list --columns tier,org_id --sort -tier":   "TIER  ORG\npaid  a\nfree  b\n",
		"org list -q --sort -tier":                      "a\nb\n",
		"org list -q --limit 1":                         "b\n",
		"org show a -q":                                 "a\n",
		"org show a b -q":                               "a\nb\n",
		"org list --columns part-of,org --sort part-of": "PART OF  ORG\n-        b\n-        a\n",
		"org list -o csv":                               "org_id,tier,parent_org_id,created_by,created_at\r\nb,free,,,2026-01-02T03:04:05Z\r\na,paid,,,2026-01-02T03:04:06Z\r\n",
		"org list -o csv --columns tier --no-header":    "free\r\npaid\r\n",
		"org list -o csv -q":                            "b\na\n",
	} {
		r := run(t, around{say: on}, strings.Fields(args)...)
		require.Zero(t, r.code, r.errs)
		require.Equal(t, want, r.out, args)
	}
	r := run(t, around{say: on}, "org", "list", "-o", "yaml")
	require.Contains(t, r.out, "- org_id: a\n  tier: paid\n  created_at: \"2026-01-02T03:04:06Z\"\n  new_field:\n    n: 1\n    s: \"2026-01-02\"\n    empty: []\n")
	r = run(t, around{say: on}, "org", "-o", "json", "list")
	require.Contains(t, r.out, `"new_field"`, "unknown fields are also printed")
	var list []api.Org
	require.NoError(t, json.Unmarshal([]byte(r.out), &list))
	require.Len(t, list, 2)
	var one api.Org
	require.NoError(t, json.Unmarshal([]byte(run(t, around{say: on}, "org", "show", "a", "-o", "json").out), &one))
	require.NoError(t, json.Unmarshal([]byte(run(t, around{say: on}, "org", "show", "a", "b", "-o", "json").out), &list))
	require.Equal(t, "[]\n", run(t, around{say: always(map[string]any{"GET /v1/orgs": `{"orgs":[]}`})}, "org", "list", "-o", "json").out)
	for args, want := range map[string]string{
		"org list --columns teir":  `there is no column "teir"; did you mean tier?; there are org, tier, part-of, created-by, created`,
		"org list --sort creatd":   "did you mean created?",
		"org list -o xml":          "must be table, json, yaml or csv",
		"org show a -o csv":        "must be table, json or yaml",
		"org list --limit 0":       "--limit must be at least 1",
		"org list --tier pad":      "must be free, paid or enterprise; did you mean paid?",
		"org list --columnz tier":  "unknown flag: --columnz; did you mean --columns?",
		"quota set acme d 1":       `required flag(s) "reason" not set`,
		"placement simulate /none": "no such file",
	} {
		r := run(t, around{say: on}, strings.Fields(args)...)
		require.Equal(t, ExitUsage, r.code, args)
		require.Contains(t, r.errs, want, args)
		require.Empty(t, r.asked)
	}
}

func TestOneOfSeveralFails(t *testing.T) {
	t.Parallel()
	on := map[string][]func(http.ResponseWriter){
		"DELETE /v1/fleets/a": {say(204, nil)}, "DELETE /v1/fleets/b": {refuse(409, "fleet_not_empty", "it has servers")}, "DELETE /v1/fleets/c": {say(204, nil)},
	}
	r := run(t, around{say: on}, "fleet", "delete", "a", "b", "c")
	require.Equal(t, ExitRefused, r.code)
	require.Equal(t, "deleted fleet a\ndeleted fleet c\n", r.out)
	require.Equal(t, "prego: b: it has servers (fleet_not_empty)\nprego: 1 of 3 failed\n", r.errs)
}

func TestNamesStandForIDs(t *testing.T) {
	t.Parallel()
	app := func(id, org string) api.App { return api.App{AppId: id, OrgId: org, Name: "shop"} }
	on := always(map[string]any{
		"GET /v1/tenants?limit=200&slug=acme-eu": api.TenantPage{Tenants: []api.TenantSummary{{TenantId: "t-1", Slug: "acme-eu"}, {TenantId: "t-2", Slug: "acme-eu-2"}}},
		"GET /v1/tenants/t-1":                    api.Tenant{TenantId: "t-1", Slug: "acme-eu", CreatedAt: born},
		"GET /v1/tenants/t-k3jq5x2m7abc":         api.Tenant{TenantId: "t-k3jq5x2m7abc", CreatedAt: born},
		"GET /v1/apps?limit=200&name=shop":       api.AppPage{Apps: []api.App{app("app-1", "acme"), app("app-2", "corp")}},
		"GET /v1/apps?limit=200&name=app-x":      api.AppPage{Apps: []api.App{}},
		"GET /v1/apps/app-x":                     app("app-x", "acme"),
		"GET /v1/tenants?limit=200&slug=ghost":   api.TenantPage{Tenants: []api.TenantSummary{}},
	})
	r := run(t, around{say: on}, "tenant", "show", "acme-eu", "-q")
	require.Equal(t, "t-1\n", r.out, r.errs)
	r = run(t, around{say: on}, "tenant", "show", "t-k3jq5x2m7abc", "-q")
	require.Len(t, r.asked, 1, "an id needs no look-up")
	r = run(t, around{say: on}, "app", "show", "app-x", "-q")
	require.Equal(t, "app-x\n", r.out, "what looks like an id, and no name, is one")
	r = run(t, around{say: on}, "app", "show", "shop")
	require.Equal(t, ExitUsage, r.code)
	require.Contains(t, r.errs, `2 apps are called "shop"; use an id: app-1, app-2`)
	r = run(t, around{say: on}, "tenant", "cancel", "ghost")
	require.Equal(t, ExitRefused, r.code)
	require.Contains(t, r.errs, "there is no tenant ghost")
}

func TestAWatchSurvivesAnOutage(t *testing.T) {
	t.Parallel()
	server := func(status string, events int) func(http.ResponseWriter) {
		s := api.Server{ServerId: "app-7", Status: api.ServerStatus(status), CreatedAt: born}
		for i := range events {
			s.Timeline = append(s.Timeline, api.Event{Id: int64(i), At: born.Add(time.Duration(i) * time.Second), Step: "step" + string(rune('0'+i))})
		}
		return say(200, s)
	}
	on := func() map[string][]func(http.ResponseWriter) {
		return map[string][]func(http.ResponseWriter){
			"POST /v1/servers/app-7/retry": {say(202, api.Accepted{ServerId: "app-7", WorkflowId: "w"})},
			"GET /v1/servers/app-7": {
				server("failed", 3), server("provisioning", 4), hangUp, refuse(503, "not_ready", "later"), refuse(429, "rate_limited", "later"),
				say(502, "bad gateway"), server("provisioning", 5), server("active", 6),
			},
		}
	}
	r := run(t, around{say: on()}, "server", "retry", "app-7", "--watch")
	require.Zero(t, r.code, r.errs)
	for _, before := range []string{"step0", "step1", "step2"} {
		require.NotContains(t, r.out, before, "that was another operation")
	}
	for want, times := range map[string]int{"    0.00s  app-7                  step3": 1, "    1.00s  app-7                  step4": 1, "step5": 1, "waiting for the API": 1, "server app-7 is active": 1, "\x1b": 0} {
		require.Equal(t, times, strings.Count(r.out, want), "%q in %s", want, r.out)
	}
	r = run(t, around{say: on(), width: 60}, "server", "retry", "app-7", "--watch", "-o", "json")
	require.Contains(t, r.errs, "⠋ 0s  app-7 is provisioning\r\x1b[K", "on a terminal something turns")
	var s api.Server
	require.NoError(t, json.Unmarshal([]byte(r.out), &s), r.out)

	refused := on()
	refused["GET /v1/servers/app-7"] = []func(http.ResponseWriter){server("failed", 1), refuse(404, "server_not_found", "gone")}
	require.Equal(t, ExitRefused, run(t, around{say: refused}, "server", "retry", "app-7", "--watch").code, "a refusal is no outage")
	failed := on()
	failed["GET /v1/servers/app-7"] = []func(http.ResponseWriter){server("failed", 1), server("failed", 2)}
	r = run(t, around{say: failed}, "server", "retry", "app-7", "--watch")
	require.Equal(t, ExitOutcome, r.code)
	require.Contains(t, r.errs, "server app-7 is failed")

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	endless := on()
	endless["GET /v1/servers/app-7"] = []func(http.ResponseWriter){server("provisioning", 1)}
	r = run(t, around{say: endless, ctx: ctx}, "server", "retry", "app-7", "--watch")
	require.Equal(t, ExitUsage, r.code)
	require.Contains(t, r.errs, "interrupted; the operation continues. Follow it again with: prego server watch app-7")
	_, err := Until(t.Context(), func(string) {}, 300*time.Millisecond, func(context.Context) (int, error) { return 0, &Exit{Code: 1, Err: io.ErrUnexpectedEOF} }, func(int) bool { return false })
	require.ErrorIs(t, err, io.ErrUnexpectedEOF, "patience ends")
}

// TestUptimeIsNotRoundedUp: only a month without downtime has 100 %.
func TestUptimeIsNotRoundedUp(t *testing.T) {
	t.Parallel()
	nearly, all := 99.9996, 100.0
	require.Equal(t, "2026-11 99.999 %, 10s down; 2026-10 100.000 %, 0s down; 2026-09 0s down, 60m unobserved",
		uptimeText([]api.Uptime{
			{Month: "2026-11", UptimePct: &nearly, DownSeconds: 10, UpSeconds: 2_500_000},
			{Month: "2026-10", UptimePct: &all, UpSeconds: 2_678_400},
			{Month: "2026-09", UnobservedSeconds: 3600},
		}))
}
