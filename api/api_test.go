package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/pgtest"
	"github.com/prego/prego/internal/store"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// runs stands for the workflow engine; what it is asked is remembered.
type runs struct {
	mu      sync.Mutex
	started []string
	fail    error
}

func (r *runs) note(s string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = append(r.started, s)
	return r.fail
}

func (r *runs) StartProvision(_ context.Context, s prego.Server) error {
	return r.note("provision " + s.ServerID)
}

func (r *runs) StartDecommission(_ context.Context, id string) error {
	return r.note("decommission " + id)
}

func (r *runs) StartReconcile(context.Context) (string, error) {
	return "reconcile/test", r.note("reconcile")
}
func (r *runs) RunURL(id string) string { return "http://ui/" + id }

type auth struct{}

func (auth) Authenticate(_ context.Context, raw string) (api.Principal, error) {
	switch raw {
	case "operator", "viewer":
		return api.Principal{Subject: raw, Operator: raw == "operator"}, nil
	case "expired":
		return api.Principal{}, prego.Errorf(prego.CodeTokenExpired, "the token has expired")
	}
	return api.Principal{}, prego.Errorf(prego.CodeUnauthenticated, "the token is not valid here")
}

type imports struct{}

func (imports) IssueImport(context.Context, prego.Server) (string, error) {
	return "#cloud-config\n", nil
}

type bundle struct {
	t      *testing.T
	srv    *httptest.Server
	store  *store.Store
	runs   *runs
	router routers.Router
	rows   func() int
}

func setup(t *testing.T, change func(*api.Deps)) *bundle {
	t.Helper()
	pool := pgtest.Pool(t)
	b := &bundle{t: t, store: store.New(pool), runs: &runs{}}
	d := api.Deps{
		Store: b.store, Orchestrator: b.runs, Auth: auth{}, Importer: imports{}, Log: zap.NewNop(), Registry: prometheus.NewRegistry(),
		RatePerSecond: 10_000, RateBurst: 10_000, Checks: []api.Check{{Name: "database", Run: b.store.Ping}},
	}
	if change != nil {
		change(&d)
	}
	b.srv = httptest.NewServer(api.New(d).Handler())
	t.Cleanup(b.srv.Close)
	b.rows = func() (n int) {
		require.NoError(t, pool.QueryRow(context.Background(), `SELECT count(*) FROM servers`).Scan(&n))
		return n
	}
	contract, err := os.ReadFile("openapi.yaml")
	require.NoError(t, err)
	doc, err := openapi3.NewLoader().LoadFromData(contract)
	require.NoError(t, err)
	require.NoError(t, doc.Validate(context.Background()))
	b.router, err = gorillamux.NewRouter(doc)
	require.NoError(t, err)
	return b
}

// do sends a request, checks that the answer is one that the contract knows, and
// returns it.
func (b *bundle) do(method, path, token, contentType, body string) (*http.Response, []byte) {
	b.t.Helper()
	req, err := http.NewRequest(method, b.srv.URL+path, strings.NewReader(body))
	require.NoError(b.t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(b.t, err)
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(b.t, err)
	plain, err := http.NewRequest(method, path, nil)
	require.NoError(b.t, err)
	if route, params, err := b.router.FindRoute(plain); err == nil {
		err := openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
			RequestValidationInput: &openapi3filter.RequestValidationInput{Request: plain, Route: route, PathParams: params},
			Status:                 resp.StatusCode, Header: resp.Header, Body: io.NopCloser(bytes.NewReader(answer)),
		})
		require.NoError(b.t, err, "%s %s: %s", method, path, answer)
	}
	return resp, answer
}

const valid = `{"server_id":"app-1","role":"app","region":"eu","infra_provider":"hetzner","spec":{}}`

func TestBadInputIsRefusedAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	with := func(old, replaced string) string { return strings.Replace(valid, old, replaced, 1) }
	create := "/internal/servers/create"
	js := "application/json"
	for name, tc := range map[string]struct {
		method, path, token, contentType, body string
		status                                 int
		code, field                            string
	}{
		"no token":               {"POST", create, "", js, valid, 401, "unauthenticated", ""},
		"wrong token":            {"POST", create, "nonsense", js, valid, 401, "unauthenticated", ""},
		"expired token":          {"GET", "/v1/servers", "expired", "", "", 401, "token_expired", ""},
		"viewer creates":         {"POST", create, "viewer", js, valid, 403, "forbidden", ""},
		"viewer deletes":         {"DELETE", "/v1/servers/app-1", "viewer", "", "", 403, "forbidden", ""},
		"viewer reconciles":      {"POST", "/internal/reconcile", "viewer", "", "", 403, "forbidden", ""},
		"no body":                {"POST", create, "operator", js, "", 400, "invalid_json", ""},
		"not JSON":               {"POST", create, "operator", js, "{", 400, "invalid_json", ""},
		"an array":               {"POST", create, "operator", js, "[]", 400, "invalid_json", ""},
		"null":                   {"POST", create, "operator", js, "null", 400, "invalid_json", ""},
		"two documents":          {"POST", create, "operator", js, valid + valid, 400, "invalid_json", ""},
		"deep nesting":           {"POST", create, "operator", js, strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000), 400, "invalid_json", ""},
		"form":                   {"POST", create, "operator", "application/x-www-form-urlencoded", "a=b", 415, "unsupported_media_type", ""},
		"no content type":        {"POST", create, "operator", "", valid, 415, "unsupported_media_type", ""},
		"unknown field":          {"POST", create, "operator", js, with(`"spec"`, `"sepc":1,"spec"`), 400, "unknown_field", "sepc"},
		"unknown nested field":   {"POST", create, "operator", js, with(`{}`, `{"disk":1}`), 400, "unknown_field", "disk"},
		"other case":             {"POST", create, "operator", js, with(`"role"`, `"Role"`), 400, "unknown_field", "Role"},
		"duplicate field":        {"POST", create, "operator", js, with(`"role":"app"`, `"role":"app","role":"node"`), 400, "duplicate_field", "role"},
		"nested duplicate":       {"POST", create, "operator", js, with(`{}`, `{"image":"a","image":"b"}`), 400, "duplicate_field", "spec.image"},
		"wrong type":             {"POST", create, "operator", js, with(`"app-1"`, `7`), 422, "invalid_field", "server_id"},
		"wrong nested type":      {"POST", create, "operator", js, with(`{}`, `{"volume_gb":"ten"}`), 422, "invalid_field", "spec.volume_gb"},
		"fraction":               {"POST", create, "operator", js, with(`{}`, `{"volume_gb":10.5}`), 422, "invalid_field", "spec.volume_gb"},
		"wrong role":             {"POST", create, "operator", js, with(`"app"`, `"king"`), 422, "invalid_field", "role"},
		"wrong region":           {"POST", create, "operator", js, with(`"eu"`, `"mars"`), 422, "invalid_field", "region"},
		"unknown provider":       {"POST", create, "operator", js, with(`hetzner`, `acme`), 422, "infra_provider_unknown", "infra_provider"},
		"disabled provider":      {"POST", create, "operator", js, with(`hetzner`, `aws`), 422, "infra_provider_disabled", "infra_provider"},
		"no provider":            {"POST", create, "operator", js, with(`"hetzner"`, `""`), 422, "invalid_field", "infra_provider"},
		"no id":                  {"POST", create, "operator", js, with(`"app-1"`, `""`), 422, "invalid_field", "server_id"},
		"id with a slash":        {"POST", create, "operator", js, with(`app-1`, `../../etc`), 422, "invalid_field", "server_id"},
		"id with YAML":           {"POST", create, "operator", js, with(`app-1`, `a: {b}\n- c`), 422, "invalid_field", "server_id"},
		"id with capitals":       {"POST", create, "operator", js, with(`app-1`, `App`), 422, "invalid_field", "server_id"},
		"id too long":            {"POST", create, "operator", js, with(`app-1`, strings.Repeat("a", 49)), 422, "invalid_field", "server_id"},
		"volume too small":       {"POST", create, "operator", js, with(`{}`, `{"volume_gb":9}`), 422, "invalid_field", "spec.volume_gb"},
		"volume negative":        {"POST", create, "operator", js, with(`{}`, `{"volume_gb":-1}`), 422, "invalid_field", "spec.volume_gb"},
		"empty tag":              {"POST", create, "operator", js, with(`{}`, `{"tags":[""]}`), 422, "invalid_field", "spec.tags"},
		"tag of 64":              {"POST", create, "operator", js, with(`{}`, `{"tags":["`+strings.Repeat("a", 64)+`"]}`), 422, "invalid_field", "spec.tags"},
		"tag with a space":       {"POST", create, "operator", js, with(`{}`, `{"tags":["a b"]}`), 422, "invalid_field", "spec.tags"},
		"hostile image":          {"POST", create, "operator", js, with(`{}`, `{"image":"a\n- b"}`), 422, "invalid_field", "spec.image"},
		"hostile type":           {"POST", create, "operator", js, with(`{}`, `{"server_type":"$(reboot)"}`), 422, "invalid_field", "spec.server_type"},
		"too large":              {"POST", create, "operator", js, `{"server_id":"` + strings.Repeat("a", 70_000) + `"}`, 413, "body_too_large", ""},
		"query on create":        {"POST", create + "?dry=1", "operator", js, valid, 400, "unknown_field", "dry"},
		"unknown path":           {"GET", "/v2/servers", "operator", "", "", 404, "not_found", ""},
		"unknown path, no token": {"GET", "/v2/servers", "", "", "", 401, "unauthenticated", ""},
		"wrong method":           {"PUT", "/v1/servers", "operator", js, "{}", 405, "method_not_allowed", ""},
		"unknown server":         {"GET", "/v1/servers/nope", "viewer", "", "", 404, "server_not_found", ""},
		"bad id in path":         {"GET", "/v1/servers/NOPE", "viewer", "", "", 422, "invalid_field", "server_id"},
		"retry of unknown":       {"POST", "/v1/servers/nope/retry", "operator", "", "", 404, "server_not_found", ""},
		"delete of unknown":      {"DELETE", "/v1/servers/nope", "operator", "", "", 404, "server_not_found", ""},
		"filter misspelt":        {"GET", "/v1/servers?rol=app", "viewer", "", "", 400, "unknown_field", "rol"},
		"filter twice":           {"GET", "/v1/servers?role=app&role=node", "viewer", "", "", 422, "invalid_field", "role"},
		"filter unknown value":   {"GET", "/v1/servers?role=king", "viewer", "", "", 422, "invalid_field", "role"},
		"limit 0":                {"GET", "/v1/servers?limit=0", "viewer", "", "", 422, "invalid_field", "limit"},
		"limit 201":              {"GET", "/v1/servers?limit=201", "viewer", "", "", 422, "invalid_field", "limit"},
		"limit not a number":     {"GET", "/v1/servers?limit=ten", "viewer", "", "", 422, "invalid_field", "limit"},
		"bad cursor":             {"GET", "/v1/servers?cursor=x", "viewer", "", "", 422, "invalid_field", "cursor"},
		"import without id":      {"POST", "/v1/servers/import", "operator", js, `{"server_id":"a","role":"app","region":"eu","infra_provider":"hetzner","provider_server_id":"x1"}`, 422, "invalid_field", "provider_server_id"},
	} {
		resp, body := b.do(tc.method, tc.path, tc.token, tc.contentType, tc.body)
		require.Equal(t, tc.status, resp.StatusCode, "%s: %s", name, body)
		require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"), name)
		var p api.Problem
		require.NoError(t, json.Unmarshal(body, &p), name)
		require.Equal(t, tc.code, p.Code, "%s: %s", name, body)
		field := ""
		if p.Field != nil {
			field = *p.Field
		}
		require.Equal(t, tc.field, field, "%s: %s", name, body)
		if tc.status == 401 {
			require.NotEmpty(t, resp.Header.Get("WWW-Authenticate"))
		}
	}
	require.Zero(t, b.rows(), "a refused request writes nothing")
	require.Empty(t, b.runs.started)
}

func FuzzStrictJSON(f *testing.F) {
	f.Add(valid)
	f.Add(`{"role":"app","role":"node"}`)
	f.Add(`{"a":[{"b":{"c":1,"c":2}}]}`)
	f.Fuzz(func(t *testing.T, body string) {
		var in prego.CreateServerRequest
		if api.DecodeStrict([]byte(body), &in) != nil {
			return
		}
		// What is taken means the same to every reader: it is one object, and written
		// out again it decodes to the same request.
		require.True(t, json.Valid([]byte(body)))
		out, err := json.Marshal(in)
		require.NoError(t, err)
		var again prego.CreateServerRequest
		require.NoError(t, api.DecodeStrict(out, &again))
		require.Equal(t, in.Hash(), again.Hash())
	})
}

func TestConcurrentCreatesOfOneServerMakeOneRow(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	var wg sync.WaitGroup
	codes := make([]int, 32)
	for i := range codes {
		wg.Add(1)
		go func() {
			defer wg.Done()
			body := valid
			if i%2 == 1 {
				body = strings.Replace(valid, `"app"`, `"node"`, 1)
			}
			req, _ := http.NewRequest(http.MethodPost, b.srv.URL+"/internal/servers/create", strings.NewReader(body))
			req.Header.Set("Authorization", "Bearer operator")
			req.Header.Set("Content-Type", "application/json")
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				codes[i] = resp.StatusCode
				_ = resp.Body.Close()
			}
		}()
	}
	wg.Wait()
	count := map[int]int{}
	for _, c := range codes {
		count[c]++
	}
	require.Equal(t, map[int]int{202: 16, 409: 16}, count, "one of the two bodies won")
	require.Equal(t, 1, b.rows())
	events, err := b.store.ServerEvents(context.Background(), "app-1")
	require.NoError(t, err)
	require.Len(t, events, 1)
}

func TestAcceptedAlthoughTheEngineIsAway(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.runs.fail = errors.New("temporal is away")
	resp, body := b.do("POST", "/internal/servers/create", "operator", "application/json", valid)
	require.Equal(t, 202, resp.StatusCode, "%s", body)
	require.Equal(t, 1, b.rows())
	resp, _ = b.do("POST", "/internal/reconcile", "operator", "", "")
	require.Equal(t, 503, resp.StatusCode)
}

func TestLifecycleRefusals(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.do("POST", "/internal/servers/create", "operator", "application/json", valid)
	resp, body := b.do("POST", "/v1/servers/app-1/retry", "operator", "", "")
	require.Equal(t, 409, resp.StatusCode)
	require.Contains(t, string(body), "invalid_transition")
	for range 2 {
		resp, _ = b.do("DELETE", "/v1/servers/app-1", "operator", "", "")
		require.Equal(t, 202, resp.StatusCode)
	}
	_, body = b.do("GET", "/v1/servers/app-1", "viewer", "", "")
	require.Contains(t, string(body), `"status":"draining"`)
	require.Equal(t, 1, strings.Count(string(body), "decommission_requested_at"))
	resp, body = b.do("POST", "/v1/servers/app-1/retry", "operator", "", "")
	require.Equal(t, 409, resp.StatusCode, "%s", body)
}

func TestPagingMeetsEachServerOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ctx := context.Background()
	for i := range 57 {
		r := prego.CreateServerRequest{ServerID: fmt.Sprintf("s-%03d", i), Role: prego.Roles()[i%4], Region: prego.RegionEU, InfraProvider: prego.ProviderHetzner, Spec: prego.ServerSpec{Tags: []string{fmt.Sprintf("t%d", i%3)}}}
		_, _, err := b.store.CreateServer(ctx, r, "test")
		require.NoError(t, err)
	}
	n := 57
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.IntRange(1, 60).Draw(rt, "limit")
		grow := rapid.Bool().Draw(rt, "grow")
		seen := map[string]int{}
		f := prego.ServerFilter{Limit: limit}
		for {
			page, next, err := b.store.ListServers(ctx, f)
			require.NoError(rt, err)
			for _, s := range page {
				seen[s.ServerID]++
			}
			if grow && n < 90 { // rows that come in while somebody pages
				_, _, err := b.store.CreateServer(ctx, prego.CreateServerRequest{ServerID: fmt.Sprintf("late-%d", n), Role: prego.RoleApp, Region: prego.RegionUS, InfraProvider: prego.ProviderHetzner}, "test")
				require.NoError(rt, err)
				n++
			}
			if next == "" {
				break
			}
			f.Cursor = next
		}
		for i := range 57 {
			require.Equal(rt, 1, seen[fmt.Sprintf("s-%03d", i)])
		}
	})
	page, _, err := b.store.ListServers(ctx, prego.ServerFilter{Limit: 200, Role: prego.RoleApp, Tag: "t0", Region: prego.RegionEU})
	require.NoError(t, err)
	require.Len(t, page, 5)
}

func TestCallersAreLimitedEachOnTheirOwn(t *testing.T) {
	t.Parallel()
	b := setup(t, func(d *api.Deps) { d.RatePerSecond, d.RateBurst = 0.001, 3 })
	for range 3 {
		resp, _ := b.do("GET", "/v1/servers", "viewer", "", "")
		require.Equal(t, 200, resp.StatusCode)
	}
	resp, body := b.do("GET", "/v1/servers", "viewer", "", "")
	require.Equal(t, 429, resp.StatusCode, "%s", body)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	resp, _ = b.do("GET", "/v1/servers", "operator", "", "")
	require.Equal(t, 200, resp.StatusCode)
}

func TestOperationsEndpoints(t *testing.T) {
	t.Parallel()
	b := setup(t, func(d *api.Deps) {
		d.Checks = append(d.Checks, api.Check{Name: "temporal", Run: func(context.Context) error { return errors.New("does not answer") }})
	})
	resp, _ := b.do("GET", "/healthz", "", "", "")
	require.Equal(t, 200, resp.StatusCode)
	resp, body := b.do("GET", "/readyz", "", "", "")
	require.Equal(t, 503, resp.StatusCode)
	require.JSONEq(t, `{"ready":false,"checks":{"database":"ok","temporal":"does not answer"}}`, string(body))
	_, body = b.do("GET", "/metrics", "", "", "")
	require.Contains(t, string(body), "prego_api_request_seconds")
	_, body = b.do("GET", "/openapi.yaml", "", "", "")
	require.Contains(t, string(body), "openapi: 3.0.3")
	_, body = b.do("GET", "/docs", "", "", "")
	require.Contains(t, string(body), "/internal/servers/create")
	require.NotContains(t, string(body), "https://", "the page fetches nothing from elsewhere")
}
