package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	"github.com/prego/prego/store"
)

// on makes an API use a store for everything.
func on(d *api.Deps, s *store.Store, t *testing.T) {
	d.Unavailable = store.Unavailable
	d.Store, d.Registries, d.Placer.Store = s, store.NewRegistries(s, box(t)), s
	d.Checks = []api.Check{{Name: "database", Run: s.Writable}}
}

// samples are values of fields that are not any text or number.
var samples = map[string]any{"to": "b-1", "host": "registry.example.com", "operation_id": "volume/vol-1"}

// bodies are request bodies that need an optional field.
var bodies = map[string]string{
	"PUT /v1/access-roles/{access_role}":    `{"capabilities":["tenant:read"]}`,
	"POST /v1/grants":                       `{"access_role":"developer","principal_id":"sa-1"}`,
	"PATCH /v1/providers/{provider}":        `{"enabled":false}`,
	"POST /v1/placements/what-if":           `{"tenant_id":"t-1","change":{}}`,
	"POST /internal/placement-overrides":    `{"tenant_id":"t-1","force_app_server_id":"app-1","reason":"r"}`,
	"POST /v1/tenants/{tenant_id}/restores": `{"snapshot_id":"snp-1"}`,
	"PATCH /v1/tenants/{tenant_id}":         `{"constraint":{"require":["a"]}}`,
	"POST /v1/envs/{env_id}/routes":         `{"group_id":"grp-1","hostname":"www.example.com","listen_port":443,"listener":"shared_v6","protocol":"https","target_port":8080}`,
	"POST /v1/policies":                     `{"policy_id":"spread","type":"region_placement","spec":{"regions":[{"name":"eu","weight":100,"cap":-1}]}}`,
}

// answered are operations that need no database, and why.
var answered = map[string]string{
	"GET /v1/access/why":             "the operation is looked up first",
	"GET /v1/whoami":                 "the token is all it reads",
	"GET /v1/login-methods":          "it is configured",
	"POST /v1/token-exchange":        "the issuer's token is verified first",
	"POST /internal/catalog/refresh": "a run is started",
	"POST /internal/reconcile":       "a run is started",
	"POST /v1/agent-releases":        "who signed it is looked at first",
}

// sample is a value that a schema allows, with what it requires only.
func sample(name string, s *openapi3.Schema) any {
	if v, ok := samples[name]; ok {
		return v
	}
	switch {
	case s.Example != nil:
		return s.Example
	case s.Default != nil:
		return s.Default
	case len(s.Enum) > 0:
		return s.Enum[0]
	case s.Type.Is("object"):
		out := map[string]any{}
		for _, field := range s.Required {
			out[field] = sample(field, s.Properties[field].Value)
		}
		return out
	case s.Type.Is("array"):
		return []any{sample("", s.Items.Value)}
	case s.Type.Is("integer"), s.Type.Is("number"):
		if s.Min != nil {
			return max(1, *s.Min)
		}
		return 1
	case s.Type.Is("boolean"):
		return true
	}
	if s.Pattern == "" {
		return "a-1"
	}
	fits, prefix := regexp.MustCompile(s.Pattern), idPrefix.FindString(strings.TrimPrefix(s.Pattern, "^"))
	for _, rest := range []string{"a-1", "1", "a1b2c3d4e5f6", "a1b2c3d4e5f6-1"} {
		if fits.MatchString(prefix + rest) {
			return prefix + rest
		}
	}
	return "a-1"
}

var idPrefix = regexp.MustCompile(`^[a-z]+-`)

// asJSON is a value's.
func asJSON(t *testing.T, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	require.NoError(t, err)
	return string(out)
}

// TestEveryPathSaysThatTheDatabaseIsAway sends every request to a database whose hosts don't listen.
func TestEveryPathSaysThatTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	cfg, err := pgxpool.ParseConfig("postgres://ghost@127.0.0.1:1,127.0.0.1:2/none?target_session_attrs=read-write")
	require.NoError(t, err)
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	b := setup(t, func(d *api.Deps) { on(d, store.New(pool), t) })
	refused := 0
	for path, item := range contract(t).Paths.Map() {
		for method, op := range item.Operations() {
			if path == "/readyz" || path == "/healthz" || strings.HasPrefix(path, "/docs") || path == "/openapi.yaml" {
				continue
			}
			url, name, kind, text := path, method+" "+path, "", ""
			for _, p := range slices.Concat(item.Parameters, op.Parameters) {
				switch value := fmt.Sprint(sample(p.Value.Name, p.Value.Schema.Value)); {
				case p.Value.In == "path":
					url = strings.ReplaceAll(url, "{"+p.Value.Name+"}", value)
				case p.Value.Required:
					url += "?" + p.Value.Name + "=" + value
				}
			}
			if op.RequestBody != nil {
				kind, text = js, bodies[name]
				if text == "" {
					text = asJSON(t, sample("", op.RequestBody.Value.Content[js].Schema.Value))
				}
			}
			if why, ok := answered[name]; ok {
				resp, body := b.send(method, url, "operator", kind, text)
				require.Less(t, resp.StatusCode, 500, "%s: %s: %s", name, why, body)
				continue
			}
			resp, body := b.do(method, url, "operator", kind, text)
			if !assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, "%s %s %s: %s", method, url, text, body) {
				continue
			}
			require.Equal(t, "not_ready", as[api.Problem](t, body).Code, "%s %s", method, url)
			require.NotEmpty(t, resp.Header.Get("Retry-After"), "%s %s", method, url)
			refused++
		}
	}
	t.Logf("%d operations were refused with 503", refused)
	require.Greater(t, refused, 200)
	resp, body := b.do("GET", "/readyz", "", "", "")
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.Contains(t, string(body), "there is no writable primary")
	require.NotContains(t, string(body), "127.0.0.1", "the connection is not disclosed")
}

// TestAHostThatTurnedReadOnlyRefusesForNow writes to a database that answers, and takes no
// writes.
func TestAHostThatTurnedReadOnlyRefusesForNow(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	cfg := b.pool.Config().Copy()
	cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	readOnly, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(readOnly.Close)
	b = setup(t, func(d *api.Deps) { on(d, store.New(readOnly), t) })
	for _, r := range [][4]string{
		{"POST", "/v1/volumes", js, `{"org_id":"acme","region":"eu","name":"data","size_bytes":10000000000}`},
		{"POST", "/v1/apps", js, `{"org_id":"acme","name":"shop"}`},
		{"PUT", "/v1/orgs/other", js, `{"tier":"free"}`},
		{"POST", create, js, valid},
	} {
		resp, body := b.do(r[0], r[1], "operator", r[2], r[3])
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, "%s %s: %s", r[0], r[1], body)
		require.Equal(t, "not_ready", as[api.Problem](t, body).Code)
		require.NotEmpty(t, resp.Header.Get("Retry-After"))
	}
	resp, body := b.do("GET", "/readyz", "", "", "")
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.Contains(t, string(body), "the database is read-only")
}

// TestAKeyIsReleasedWhenTheDatabaseIsBack: until then its request would be under way, for as
// long as a process that died may have it.
func TestAKeyIsReleasedWhenTheDatabaseIsBack(t *testing.T) {
	t.Parallel()
	var fails atomic.Int32 // as many times the end of a request can't be written, as in a failover
	fails.Store(2)
	b := tapped(t, func(sql string, _ []any) error {
		if strings.Contains(sql, "DELETE FROM request_keys") && fails.Add(-1) >= 0 {
			return &pgconn.PgError{Code: "57P01"}
		}
		return nil
	}, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- b.api.Serve(ctx, l, time.Second) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-served) })
	const path, body = "/v1/volumes", `{"org_id":"acme","region":"eu","name":"data","size_bytes":10000000000}`
	resp, answer := b.sendWith("POST", path, body, "Idempotency-Key", "k")
	require.Equal(t, "org_unknown", as[api.Problem](t, answer).Code, "%d", resp.StatusCode)
	b.org("acme", "")
	require.Eventually(t, func() bool {
		resp, _ := b.sendWith("POST", path, strings.Replace(body, "data", "other", 1), "Idempotency-Key", "k")
		return resp.StatusCode == http.StatusAccepted
	}, 30*time.Second, 50*time.Millisecond, "the key is free for another request")
	require.Negative(t, fails.Load(), "it failed twice")
}
