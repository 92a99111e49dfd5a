package console

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego/cli"
)

// request is a request to an API.
type request struct {
	Method, Path string
	Query        url.Values
	Body         any // nil for none
}

// recorder is an API that accepts everything, and keeps the last request, which may be
// a read.
type recorder struct {
	reads bool
	lists bool // the read returns a list
	mu    sync.Mutex
	last  *request
}

func (a *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Method == http.MethodGet && !a.reads {
		_, _ = io.WriteString(w, `{}`)
		return
	}
	got := &request{Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.Query()}
	if b, _ := io.ReadAll(r.Body); len(bytes.TrimSpace(b)) > 0 {
		_ = json.Unmarshal(b, &got.Body)
	}
	a.last = got
	answer := `{"data":{}}` // of a plan
	if r.Method == http.MethodGet {
		answer = `{}`
	}
	switch {
	case strings.HasSuffix(got.Path, "/exec"):
		w.Header().Set("Content-Type", "text/event-stream")
		answer = "event: result\ndata: {\"exit_code\":0}\n\n"
	case a.lists:
		answer = everyList()
	}
	_, _ = io.WriteString(w, answer)
}

// everyList is an answer with every list there is, each with one item.
var everyList = sync.OnceValue(func() string {
	out := map[string]any{}
	listings, _ := described()
	for _, l := range listings {
		out[l.Items] = []any{map[string]any{}}
	}
	out["results"] = []any{map[string]any{}} // of a search
	b, _ := json.Marshal(out)
	return string(b)
})

// split returns a command line's words as a shell reads them, and the command's piped input.
func split(t *testing.T, line string) (args []string, input string) {
	t.Helper()
	var word strings.Builder
	began := false
	end := func() {
		if began {
			args = append(args, word.String())
		}
		word.Reset()
		began = false
	}
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == ' ':
			end()
		case c == '\'':
			n := strings.IndexByte(line[i+1:], '\'')
			require.GreaterOrEqual(t, n, 0, "a quote is open: %s", line)
			word.WriteString(line[i+1 : i+1+n])
			i, began = i+1+n, true
		case c == '\\':
			i++
			word.WriteByte(line[i])
			began = true
		case c == '#' && !began:
			return args, input
		case c == '|':
			end()
			require.Len(t, args, 3, line)
			require.Equal(t, []string{"printf", "%s"}, args[:2], line)
			args, input = nil, args[2]
		case strings.IndexByte("$`\"*?~!&;<>(){}[]", c) >= 0:
			t.Fatalf("a shell does something about %q: %s", c, line)
		default:
			word.WriteByte(c)
			began = true
		}
	}
	end()
	return args, input
}

// runLine runs a command line against an API.
func runLine(t *testing.T, a *recorder, line, typed string) error {
	t.Helper()
	srv := httptest.NewServer(a)
	defer srv.Close()
	args, input := split(t, line)
	require.Equal(t, "prego", args[0], line)
	root := program(srv.URL)
	root.SetIn(strings.NewReader(input + typed))
	root.SetArgs(args[1:])
	return root.ExecuteContext(t.Context())
}

// program is the program with the verbs that call an API.
func program(base string) *cobra.Command {
	c := cli.New(func(name string) string { return map[string]string{"PREGO_API_URL": base, "PREGO_TOKEN": "x"}[name] })
	c.Width = func(any) int { return 0 }
	root := &cobra.Command{Use: "prego", SilenceUsage: true, SilenceErrors: true}
	c.AddTo(root)
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	return root
}

// filling are the texts in inputs by name, or by operation and name; others depend on what their
// input takes. Ids have the form that needs no look-up.
var filling = map[string]string{
	"server_id": "app-7", "tenant_id": "t-k3jq5x2m7abc", "org_id": "acme", "parent_org_id": "holding", "app_id": "app-k3jq5x2m7abc", "env_id": "env-k3jq5x2m7abc", "group_id": "grp-k3jq5x2m7abc",
	"account_id": "sa-k3jq5x2m7abc", "token_id": "token-k3jq5x2m7abc", "user_id": "usr-k3jq5x2m7abc", "domain_id": "dom-k3jq5x2m7abc", "volume_id": "vol-k3jq5x2m7abc", "backup_id": "bak-1", "snapshot_id": "snp-1", "owner": "starter", "version": "v1.4.0", "region": "eu", "image": "team/web:2", "infra_provider": "hetzner",
	"size_bytes": "20000000000", "limit_bytes": "700000000001", "spec.ports": "[80, 81]", "rollout_policy.max_surge": `"25%"`, "rollout_policy.max_unavailable": "1", "spec.cpu_request": "0.5",
	"spec.health.command": "/check, --quick", "schedule": "0 1,13 * * *", "patch_window.schedule": "0 2 * * 6", "password": "s3cret", "tier": "paid", "args": "--site, it's.example, list-apps",
	"createPolicy.spec": `{"criteria": "OLDEST_FIRST", "note": "it's\n\"so\""}`, "putPolicy.spec": `{"criteria": "RANDOM"}`, "plan": `{"moves": [], "frees": []}`, "cloneTenant.plan": "trial", "createTenant.plan": "starter", "putWarmPool.plan": "starter", "change.plan": "trial", "request.plan": "starter",
	"apps": "erpnext, hrms", "putTokenTrust.claims": `{"ref": "main", "repository": "acme/shop"}`, "createRelease.apps": `{"erpnext": "15.80.0", "frappe": "15.80.1"}`, "addTenantUser.password": "none",
	"rings":           `[{"name": "canary", "tenants": ["t-1"], "soak_seconds": 60}, {"name": "early", "percent": 5, "soak_seconds": 60}, {"name": "rest"}]`,
	"timeout_seconds": "90", "workload_cpus": "1.5", "spec.memory_limit_bytes": "268435457",
}

// fill is a text for an input.
func (f field) fill(op string, last bool) string {
	name := f.Name[strings.LastIndexByte(f.Name, '.')+1:]
	for _, key := range []string{op + "." + f.Name, f.Name, name} {
		if v := filling[key]; v != "" && (!last || len(f.Values) == 0) {
			return v
		}
	}
	switch f.Kind {
	case "yesno":
		return map[bool]string{true: "false", false: "true"}[last]
	case "choice":
		all := slices.DeleteFunc(slices.Clone(f.Values), func(v string) bool { return v == "" })
		if last {
			return all[len(all)-1]
		}
		return all[0]
	case "number", "memory", "disk", "duration":
		return "3"
	case "list":
		return "gpu, say \"hi\""
	case "json":
		return `[1]`
	}
	return "it's 5 % \\ of " + name
}

// needed reports whether a form has to have a field: the API and all that it is in need it.
func needed(op *operation, name string) bool {
	s := op.body
	if s == nil || op.parameter(name) != nil {
		return false
	}
	for part := range strings.SplitSeq(name, ".") {
		for len(s.AllOf) == 1 {
			s = s.AllOf[0].Value
		}
		if !slices.Contains(s.Required, part) {
			return false
		}
		s = s.Properties[part].Value
	}
	return true
}

// forms are the forms compared for an operation, besides the minimal and the full one.
var forms = map[string][]map[string]string{
	"createFleetAction": {
		{"action": "CLUSTER_SCALE_OUT"},
		{"action": "CLUSTER_SCALE_OUT", "inputs": `{"count": 4, "regions": ["eu", "us"]}`},
		{"action": "CLUSTER_SCALE_OUT", "inputs": `{"max_surge": 1}`, "without": "inputs.max_surge"},
		{"action": "CLUSTER_SCALE_IN", "inputs": `{"count": 1}`},
		{"action": "CLUSTER_RESIZE", "inputs": `{"adjustment_type": "EXACT_CAPACITY", "number": 5}`},
		{"action": "CLUSTER_RESIZE", "inputs": `{"adjustment_type": "CHANGE_IN_CAPACITY", "number": -2, "strict": false}`},
		{"action": "CLUSTER_RESIZE", "inputs": `{"adjustment_type": "CHANGE_IN_PERCENTAGE", "number": 50, "min_step": 2, "min_size": 1, "max_size": 9}`},
		{"action": "CLUSTER_REPLACE", "inputs": `{"max_surge": 2, "grace_period": 3600}`},
		{"action": "NODE_CREATE", "inputs": `{"region": "sg"}`},
	},
	"createRestore": {{"backup_id": "bak-7", "elsewhere": "false"}, {"snapshot_id": "snp-7"}, {"elsewhere": "true"}, {"elsewhere": "true", "backup_id": "bak-7"}},
	"createGroup": {
		{"name": "web", "spec.image": "web:1", "spec.memory_limit_bytes": "1048576", "spec.cpu_request": "1", "spec.health.kind": "http", "spec.health.path": "/up", "spec.health.port": "81", "spec.health.interval_seconds": "7", "spec.health.timeout_seconds": "8", "spec.health.retries": "4", "spec.health.start_period_seconds": "60", "replicas": "2"},
		{"name": "web", "spec.image": "web:1", "spec.memory_limit_bytes": "1048576", "spec.cpu_request": "1", "spec.health.kind": "tcp", "spec.health.port": "81", "spec.ports": "[81]", "spec.volumes": "/a, /b", "spec.constraint.require": "gpu", "spec.constraint.disallow": "old, slow", "replicas": "2"},
		{"name": "web", "spec.image": "web:1", "spec.memory_limit_bytes": "1048576", "spec.cpu_request": "1", "spec.health.kind": "command", "spec.health.command": "/check, say \"hi\"", "spec.command": "serve, --quiet, it's", "spec.disk_request_bytes": "1024", "spec.drain_seconds": "20", "spec.stop_timeout_seconds": "5", "rollout_policy.auto_rollback": "false", "rollout_policy.max_failures": "0", "rollout_policy.max_surge": "2", "rollout_policy.progress_deadline_seconds": "300", "replicas": "2"},
	},
	"addTenantUser": {{"email": "a@b.c", "password": "generate"}},
	"createRelease": {
		{"name": "15.80", "image": "i:1", "rings": `[{"name": "a", "percent": 1}, {"name": "b", "percent": 50}, {"name": "rest"}]`},
	},
	"whatIf": {
		{"tenant_id": "t-k3jq5x2m7abc", "change.cordon": "app-1, app-2"},
		{"request.region": "eu", "request.plan": "starter", "change.plan": "trial"},
		{"request.region": "eu", "request.plan": "starter", "request.tenant_id": "what-if", "request.org_id": "acme", "request.data_residency": "DE", "request.constraint.require": "gpu", "change.region": "us"},
		{"tenant_id": "t-k3jq5x2m7abc", "change.add_server.role": "app", "change.add_server.capacity": "7", "change.dedicated_redis": "true", "without": "change.add_server.capacity, change.dedicated_redis"},
	},
}

// unsaid are the fields that a command has no flag for.
var unsaid = map[string][]string{
	"replaceServer": {"keep_tenants"},
}

// own is what a command sends although it was not asked to, or leaves out although it was: its
// field and value, and why that is the same.
type own struct {
	field, value string // as JSON
	why          string
}

var adds = map[string][]own{
	"attachPolicy":      {{"enabled", "true", "the API's default"}},
	"buildImage":        {{"region", `"eu"`, "the API's default"}},
	"createFleet":       {{"max_size", "-1", "the API's default"}},
	"createGroup":       {{"replicas", "1", "the API's default"}},
	"createRebalance":   {{"at_once", "4", "the API's default"}, {"max_failures", "0", "the API's default"}, {"remove_servers", "false", no}},
	"createFleetAction": {{"inputs", "{}", says}},
	"execOnServer":      {{"timeout_seconds", "60", "the API's default"}},
	"importServer":      {{"managed_by", `"worker_direct"`, "the API's default"}},
	"putTenantMail":     {{"tls", "false", no}},
	"putBackupPolicy":   {{"spread_seconds", "21600", "the API's default"}},
	"whatIf":            {{"request.tenant_id", `"what-if"`, "a name for whom there is none of yet"}},
}

var leavesOut = map[string][]own{
	"addTenantUser": {{"password", `"generate"`, "the API's default"}},
	"createRestore": {{"elsewhere", "false", no}},
}

const (
	says = "it adds nothing"
	no   = "absent means no"
)

// onlyForms are operations whose fields exclude each other.
var onlyForms = []string{"createFleetAction", "createRestore", "whatIf"}

// withoutOwn removes a body's own fields.
func withoutOwn(t *testing.T, body any, others any, list []own, used map[own]bool) any {
	t.Helper()
	m, ok := body.(map[string]any)
	if !ok {
		return body
	}
	o, _ := others.(map[string]any)
	for _, d := range list {
		if d.field == "" { // an empty body
			if len(m) == 0 && others == nil {
				used[d] = true
				return nil
			}
			continue
		}
		if object(o).at(d.field) != nil || object(m).at(d.field) == nil {
			continue
		}
		b, err := json.Marshal(object(m).at(d.field))
		require.NoError(t, err)
		if string(b) == d.value {
			remove(m, strings.Split(d.field, "."))
			used[d] = true
		}
	}
	return m
}

// remove removes a field, and objects that it leaves empty.
func remove(m map[string]any, path []string) {
	if in, ok := m[path[0]].(map[string]any); ok && len(path) > 1 {
		if remove(in, path[1:]); len(in) > 0 {
			return
		}
	}
	delete(m, path[0])
}

// TestCommandsDoTheSame sends forms, runs the command lines that are printed beside them, and
// compares what the API was asked for.
func TestCommandsDoTheSame(t *testing.T) {
	t.Parallel()
	noForm := []string{"createConsoleLogin", "simulatePlacements", "replayDecision", "planPacking", "createAgentRelease"} // see TestWhatChangesThingsIsOffered
	for id, op := range operations() {
		if op.Method == http.MethodGet || len(op.verbs()) == 0 || slices.Contains(noForm, id) {
			continue
		}
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			used := map[own]bool{}
			change := []string{"updateFleet", "patchServer", "patchProvider"} // which have nothing to change then
			if !slices.Contains(onlyForms, id) && !slices.Contains(change, id) {
				sameDone(t, op, filled(op, func(f field) bool { return needed(op, f.Name) }, false), nil, used)
			}
			for _, last := range []bool{false, true} {
				if slices.Contains(onlyForms, id) {
					break
				}
				sameDone(t, op, filled(op, func(f field) bool { return !slices.Contains(unsaid[id], f.Name) }, last), nil, used)
			}
			for _, more := range forms[id] {
				form := filled(op, func(field) bool { return false }, false)
				for name, v := range more {
					if op.parameter(name) == nil {
						name = fieldOf + name
					}
					form.Set(name, v)
				}
				sameDone(t, op, form, names(more["without"]), used)
			}
			if missing := unsaid[id]; missing != nil {
				sameDone(t, op, filled(op, func(field) bool { return true }, false), missing, used)
			}
			for _, d := range slices.Concat(adds[id], leavesOut[id]) {
				require.True(t, used[d], "%s: the command does not differ in %s %s", id, d.field, d.value)
			}
		})
	}
}

// filled is a form whose inputs have texts.
func filled(op *operation, with func(f field) bool, last bool) url.Values {
	form := url.Values{}
	for _, p := range op.query {
		f := field{Name: p.Name, Kind: "text", Values: values(p.Schema.Value)}
		if p.Schema.Value.Type.Is("boolean") {
			f.Kind = "yesno"
		}
		if p.Required || with(f) && !last {
			form.Set(f.Name, f.fill(op.OperationID, false))
		}
	}
	for _, f := range op.fields() {
		if with(f) {
			form.Set(fieldOf+f.Name, f.fill(op.OperationID, last))
		}
	}
	return form
}

// sameDone sends a form, and runs its command line.
func sameDone(t *testing.T, op *operation, form url.Values, missing []string, used map[own]bool) {
	t.Helper()
	for _, p := range op.path {
		f := field{Name: p.Name, Kind: "text", Values: values(p.Schema.Value)}
		if len(f.Values) > 0 {
			f.Kind = "choice"
		}
		form.Set(p.Name, f.fill(op.OperationID, false))
		form.Set("typed", form.Get(p.Name)) // the last one is the name to confirm
	}
	var api recorder
	c := New(Deps{API: &api, Now: time.Now, Log: zap.NewNop()})
	visit := func() (echo.Context, *httptest.ResponseRecorder) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/console/do/"+op.OperationID, strings.NewReader(form.Encode()))
		r.Header.Set(echo.HeaderContentType, echo.MIMEApplicationForm)
		w := httptest.NewRecorder()
		ec := c.echo.NewContext(r, w)
		ec.SetParamNames("operation")
		ec.SetParamValues(op.OperationID)
		ec.Set(visitorKey, operator)
		require.NoError(t, readForm(ec, maxForm))
		return ec, w
	}
	ec, w := visit()
	require.NoError(t, c.act(ec))
	require.Equal(t, http.StatusOK, w.Code, "%v\n%s", form, w.Body)
	require.NotNil(t, api.last, "%v\n%s", form, w.Body)
	want := *api.last

	ec, _ = visit()
	a, err := c.asking(ec, form)
	require.NoError(t, err)
	require.Equal(t, "prego", a.Lines[0].Name)
	line := a.Lines[0].Line
	typed := ""
	for _, f := range a.Fields {
		if f.Kind == "secret" {
			require.NotContains(t, line, filling["password"])
			typed = f.Value + "\n"
		}
	}
	if len(missing) > 0 {
		require.Contains(t, line, "# without "+strings.Join(missing, ", ")+", which")
	} else {
		require.NotContains(t, line, " # ")
	}
	api.last = nil
	err = runLine(t, &api, line, typed)
	require.NoError(t, err, line)
	require.NotNil(t, api.last, line)
	for _, name := range missing {
		if m, ok := want.Body.(map[string]any); ok {
			remove(m, strings.Split(name, "."))
		}
	}
	got := *api.last
	theirs, ours := want.Body, got.Body
	got.Body = withoutOwn(t, ours, theirs, adds[op.OperationID], used)
	want.Body = withoutOwn(t, theirs, ours, leavesOut[op.OperationID], used)
	require.Equal(t, want, got, line)
}

// TestEveryOfferHasACommand: every form has a command line, except operations without a verb.
func TestEveryOfferHasACommand(t *testing.T) {
	t.Parallel()
	lacking := []string{"patchTenant", "putSitePoolPolicy"}
	all := names(general)
	listings, things := described()
	for _, l := range listings {
		all = append(all, names(l.Do)...)
	}
	for _, th := range things {
		all = append(all, names(th.Do)...)
	}
	for _, id := range all {
		assertTrue(t, len(operations()[id].verbs()) > 0 != slices.Contains(lacking, id), "%s: is there a verb or not?", id)
	}
}

// TestListsHaveTheirCommands runs the command line beside each list, with each of its filters and
// sorts, and compares what it reads with what the page reads.
func TestListsHaveTheirCommands(t *testing.T) {
	t.Parallel()
	ids := func(name string) string { return field{Name: name}.fill("", false) }
	listings, _ := described()
	for _, l := range listings {
		t.Run(l.Page, func(t *testing.T) {
			t.Parallel()
			op := l.Op
			params := map[string]string{}
			for _, p := range op.path {
				params[p.Name] = ids(p.Name)
			}
			queries := []url.Values{{}}
			for _, p := range op.query {
				switch s := p.Schema.Value; {
				case hidden(p):
				case s.Type.Is("boolean"):
					queries = append(queries, url.Values{p.Name: {"true"}})
				case len(values(s)) > 0:
					queries = append(queries, url.Values{p.Name: {values(s)[0]}})
				default:
					queries = append(queries, url.Values{p.Name: {ids(p.Name)}})
				}
			}
			sorts, _ := op.sorts()
			for _, s := range sorts {
				queries = append(queries, url.Values{"sort": {s}}, url.Values{"sort": {"-" + s}})
			}
			for _, q := range queries {
				line := op.readLine(q, params)
				require.NotContains(t, line, " # ")
				api := recorder{reads: true, lists: true}
				require.NoError(t, runLine(t, &api, line, ""), line)
				api.last.Query.Del("limit")
				path := fill(op.Path, from(params))
				switch l.Page { // these read the list of all, narrowed
				case "tenants/{tenant_id}/domains":
					q.Set("tenant_id", params["tenant_id"])
					path = "/v1/domains"
				case "tenants/{tenant_id}/backups":
					q.Set("tenant_id", params["tenant_id"])
					path = "/v1/backups"
				case "groups/{group_id}/instances":
					q.Set("group_id", params["group_id"])
					path = "/v1/instances"
				}
				require.Equal(t, request{Method: http.MethodGet, Path: path, Query: q}, *api.last, line)
			}
		})
	}
}

// TestThingsHaveTheirCommands runs the command line beside each page about one thing.
func TestThingsHaveTheirCommands(t *testing.T) {
	t.Parallel()
	whole := map[string]string{ // which have no verb for one
		"/v1/warm-pools/{region}/{plan}": "/v1/warm-pools", "/v1/site-pool-policies/{plan}": "/v1/site-pool-policies",
		"/v1/providers/{provider}": "/v1/providers", "/v1/residency-zones/{country}": "/v1/residency-zones",
		"/v1/capacity-defaults/{role}": "/v1/capacity-defaults",
	}
	_, things := described()
	for _, th := range things {
		t.Run(th.Page, func(t *testing.T) {
			t.Parallel()
			params := map[string]string{}
			for _, p := range placeholders.FindAllStringSubmatch(th.Page, -1) {
				params[p[1]] = field{Name: p[1]}.fill("", false)
			}
			if params["decision_id"] != "" { // anything else is a tenant's name
				params["decision_id"] = "4711"
			}
			line := th.Op.readLine(nil, params)
			path, all := whole[th.Op.Path]
			if !all {
				path = fill(th.Op.Path, from(params))
			}
			api := recorder{reads: true, lists: all}
			require.NoError(t, runLine(t, &api, line, ""), line)
			require.Equal(t, request{Method: http.MethodGet, Path: path, Query: url.Values{}}, *api.last, line)
		})
	}
}

// TestOtherPagesHaveTheirCommands covers pages that are neither lists nor about one thing.
func TestOtherPagesHaveTheirCommands(t *testing.T) {
	t.Parallel()
	for id, q := range map[string]url.Values{
		"getFleetMap": {"expand": {"eu/web"}}, "getCosts": {"by": {"tenant"}, "month": {"2026-11"}},
		"listAttention": {"severity": {"critical"}, "kind": {"server_failed"}}, "search": {"q": {"a b"}},
	} {
		op := operations()[id]
		line := op.readLine(q, nil)
		api := recorder{reads: true, lists: id == "search"}
		require.NoError(t, runLine(t, &api, line, ""), line)
		require.Equal(t, op.Path, api.last.Path, line)
		for name := range q {
			require.Equal(t, q[name], api.last.Query[name], line)
		}
	}
}

// TestACommandsEndIsShown: a command on a host answers with events.
func TestACommandsEndIsShown(t *testing.T) {
	t.Parallel()
	o, err := lastEvent("event: progress\ndata: {\"line\":\"a\"}\n\nevent: result\ndata: {\"exit_code\":3,\"stdout\":\"a\"}\n\n")
	require.NoError(t, err)
	require.Equal(t, "3", o.text("exit_code"))
	_, err = lastEvent("event: progress\ndata: {\"line\":\"a\"}\n\nevent: error\ndata: {\"code\":\"agent_unreachable\",\"status\":502,\"title\":\"Bad Gateway\",\"detail\":\"it does not answer\"}\n\n")
	require.EqualError(t, err, "it does not answer")
}
