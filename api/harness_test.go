package api_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/oidc"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/placement/pack"
	"github.com/prego/prego/placer"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// runs stands for the workflow engine; what it is asked is remembered.
type runs struct {
	mu      sync.Mutex
	started []string
	fail    error
	// hold, when set, is called with the context of a start.
	hold func(context.Context)
}

func (r *runs) note(ctx context.Context, s string) error {
	if impact.Trying(ctx) { // as workflows.Untried
		return nil
	}
	if r.hold != nil {
		r.hold(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = append(r.started, s)
	return r.fail
}

func (r *runs) asked() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.started...)
}

func (r *runs) StartProvision(ctx context.Context, s server.Server) error {
	return r.note(ctx, string("provision "+s.ServerID))
}

func (r *runs) StartDecommission(ctx context.Context, id prego.ServerID) error {
	return r.note(ctx, string("decommission "+id))
}

func (r *runs) WakeStackRelease(ctx context.Context, name server.StackReleaseName) error {
	return r.note(ctx, server.StackReleaseWorkflowID(name))
}

func (r *runs) WakeMaintenance(ctx context.Context, id prego.ServerID) error {
	return r.note(ctx, string("drain "+id))
}

func (r *runs) FleetRunID(id prego.FleetID) string { return string("fleet-scale/test/" + id) }

func (r *runs) EnsureScaleFleet(ctx context.Context, id prego.FleetID) error {
	return r.note(ctx, string("scale "+id))
}

func (r *runs) WakeGroup(ctx context.Context, id prego.GroupID, org prego.OrgID) error {
	return r.note(ctx, string("group "+id+" of ")+string(org))
}

func (r *runs) StartReconcile(ctx context.Context) (string, error) {
	return "reconcile/test", r.note(ctx, "reconcile")
}

func (r *runs) StartCatalogRefresh(ctx context.Context) (string, error) {
	return "refresh-catalog/test", r.note(ctx, "catalog")
}

func (r *runs) EnsureImageBuild(ctx context.Context, id prego.ImageID) (bool, error) {
	return true, r.note(ctx, "image build")
}

func (r *runs) EnsureCertificate(ctx context.Context, id prego.CertificateID) (bool, error) {
	return true, r.note(ctx, "certificate "+string(id))
}

func (r *runs) EnsureImageDelete(ctx context.Context, id prego.ImageID) (bool, error) {
	return true, r.note(ctx, "image delete")
}

func (r *runs) CancelImageBuild(ctx context.Context, id prego.ImageID) error {
	return r.note(ctx, "image cancel")
}

func (r *runs) RunURL(id string) string { return "http://ui/" + id }

// granted is a caller with an access role on the installation.
func granted(name, role string) access.Principal {
	return access.Principal{PrincipalID: name, Kind: access.ServiceAccount, Name: name, Grants: []access.Grant{{Role: role}}}
}

// token makes a token of a service account with an access role on the installation.
func (b *bundle) token(name, role string) string {
	b.t.Helper()
	secret, err := access.NewSecret(access.Token, rand.Reader)
	require.NoError(b.t, err)
	_, err = b.store.EnsureAccount(b.t.Context(), store.NewAccount{
		Name: name, AccessRole: role, IDs: [2]string{name, "grant-" + name},
		Token: store.Credential{
			CredentialID: rand.Text(), Kind: access.Token, Hash: access.SecretHash(secret), Prefix: access.SecretPrefix(secret), Name: name, CreatedBy: "test",
			ExpiresAt: time.Now().Add(time.Hour),
		},
	})
	require.NoError(b.t, err)
	return secret
}

func auth(_ context.Context, raw string) (access.Principal, error) {
	switch raw {
	case "operator":
		return granted(raw, "operator"), nil
	case "viewer":
		return granted(raw, "support"), nil
	case "expired":
		return access.Principal{}, prego.Errorf(prego.CodeTokenExpired, "the token has expired")
	}
	return access.Principal{}, prego.Errorf(prego.CodeUnauthenticated, "the token is not valid here")
}

type imports struct{}

func (imports) IssueImport(_ context.Context, s server.Server) (string, error) {
	return string("#cloud-config\n# " + s.ServerID), nil
}

func box(t *testing.T) *token.Box {
	t.Helper()
	b, err := token.NewBox(strings.Repeat("5e", 32))
	require.NoError(t, err)
	return b
}

type bundle struct {
	t      *testing.T
	srv    *httptest.Server
	api    *api.API
	pool   *pgxpool.Pool
	store  *store.Store
	runs   *runs
	reg    *prometheus.Registry
	hosts  *fakeHosts
	router routers.Router
	logs   *observer.ObservedLogs
	// untried is set by tests that count requests or send them concurrently: a dry run before each would be one too many.
	untried bool
}

func setup(t *testing.T, change func(*api.Deps)) *bundle { return tapped(t, nil, change) }

// tapped is setup with an API whose statements wait for tap, and fail with what it returns.
func tapped(t *testing.T, tap func(sql string, args []any) error, change func(*api.Deps)) *bundle {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	b := &bundle{t: t, pool: pgtest.Pool(t), runs: &runs{}, hosts: &fakeHosts{}, logs: logs}
	b.store = store.New(b.pool)
	// The callers of auth. They are there from the beginning, without entries of the audit.
	b.sql(`SET session_replication_role = replica;
		INSERT INTO principals (principal_id, kind, name, created_by) VALUES ('operator', 'service_account', 'operator', 'test'), ('viewer', 'service_account', 'viewer', 'test');
		RESET session_replication_role`)
	policy := placement.DefaultPolicy()
	policy.Mode = tenant.ModeShared
	d := api.Deps{
		Store: b.store, Runs: b.runs, Auth: auth, Issuers: oidc.NewIssuers(true), Importer: imports{}, Log: zap.New(core), Registry: prometheus.NewRegistry(),
		Registries: store.NewRegistries(b.store, box(t)), Shell: b.hosts, Containers: b.hosts,
		Catalog: api.CatalogDeps{Configured: server.DefaultCatalog(), StaleAfter: time.Hour},
		Resources: api.ResourceDeps{
			Environment: "test", SiteDomain: "sites.test", Locations: server.DefaultCatalog().Locations,
			EdgePorts: []int{server.EdgeAgentPort, 2376},
		},
		Placer: b.placer(b.store, policy), Usable: pack.Usable{MemoryPct: 70, DiskPct: 80}, Mode: tenant.ModeShared, Periods: periods,
		Attention:     attention.Limits{DegradedAfter: time.Minute, FailedAfter: 5 * time.Minute, FreezePct: 20, FreezeMin: 10, CatalogStale: 3 * time.Hour, BackupLate: 2 * time.Hour, DrillOverdue: 24 * time.Hour},
		RatePerSecond: 10_000, RateBurst: 10_000, Checks: []api.Check{{Name: "database", Run: b.store.Ping}},
	}
	if tap != nil {
		d.Store = store.New(pgtest.Tapped(t, b.pool, tap))
	}
	if change != nil {
		change(&d)
	}
	b.api, b.reg = api.New(d), d.Registry
	b.srv = httptest.NewServer(b.api.Handler())
	t.Cleanup(b.srv.Close)
	var err error
	b.router, err = router()
	require.NoError(t, err)
	return b
}

// metrics are those of the API's process, which it serves elsewhere.
func (b *bundle) metrics() string {
	w := httptest.NewRecorder()
	promhttp.HandlerFor(b.reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	return w.Body.String()
}

// placer places on a store.
func (b *bundle) placer(s *store.Store, p placement.Policy) *placer.Placer {
	return &placer.Placer{
		Store: s, Policy: p, SiteDomain: "sites.test", ReserveFor: time.Minute, Metrics: placer.NewMetrics(prometheus.NewRegistry()),
		Wake: func(_ context.Context, t tenant.Tenant) {
			_ = b.runs.note(context.Background(), string("wake "+t.TenantID))
		},
	}
}

// document and router are read once: that takes longer than most tests do.
var (
	document = sync.OnceValues(func() (*openapi3.T, error) {
		text, err := os.ReadFile("openapi.yaml")
		if err != nil {
			return nil, err
		}
		doc, err := openapi3.NewLoader().LoadFromData(text)
		if err != nil {
			return nil, err
		}
		return doc, doc.Validate(context.Background())
	})
	router = sync.OnceValues(func() (routers.Router, error) {
		doc, err := document()
		if err != nil {
			return nil, err
		}
		return gorillamux.NewRouter(doc)
	})
)

// contract is the document, which a test must not change.
func contract(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := document()
	require.NoError(t, err)
	return doc
}

// rows counts all that a request could have written.
func (b *bundle) rows() (n int) {
	require.NoError(b.t, b.pool.QueryRow(context.Background(), `
SELECT (SELECT count(*) FROM servers) + (SELECT count(*) FROM server_events) + (SELECT count(*) FROM tenants)
    + (SELECT count(*) FROM tenant_lifecycle_events) + (SELECT count(*) FROM request_keys WHERE created_id IS NOT NULL) + (SELECT count(*) FROM orgs)
    + (SELECT count(*) FROM warm_pools) + (SELECT count(*) FROM site_pool_policies WHERE target > 3)`).Scan(&n))
	return n
}

// set writes a server's state as the workflow would.
func (b *bundle) set(id string, status server.Status) {
	_, err := b.pool.Exec(context.Background(), `UPDATE servers SET status = $2 WHERE server_id = $1`, id, status)
	require.NoError(b.t, err)
}

func request(t *testing.T, base, method, path, token, contentType, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequest(method, base+path, strings.NewReader(body))
	require.NoError(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	return req
}

// send sends a request and returns the answer as it is.
func (b *bundle) send(method, path, token, contentType, body string) (*http.Response, []byte) {
	b.t.Helper()
	resp, err := need.HTTP.Do(request(b.t, b.srv.URL, method, path, token, contentType, body))
	require.NoError(b.t, err)
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(b.t, err)
	return resp, answer
}

// sendWith is send with one more header, which may be given more than once.
func (b *bundle) sendWith(method, path, body, header string, values ...string) (*http.Response, []byte) {
	b.t.Helper()
	return b.sendAs("operator", method, path, body, header, values...)
}

func (b *bundle) sendAs(token, method, path, body, header string, values ...string) (*http.Response, []byte) {
	b.t.Helper()
	req := request(b.t, b.srv.URL, method, path, token, js, body)
	for _, v := range values {
		req.Header.Add(header, v)
	}
	resp, err := need.HTTP.Do(req)
	require.NoError(b.t, err)
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(b.t, err)
	return resp, answer
}

// do sends a request and accepts its impact. It checks that the answer is in the contract and, when it was accepted,
// that the request is too.
func (b *bundle) do(method, path, token, contentType, body string) (*http.Response, []byte) {
	b.t.Helper()
	var tried *http.Response
	if !b.untried {
		tried = b.try(method, path, token, contentType, body)
	}
	resp, answer := b.send(method, path, token, contentType, body)
	if resp.StatusCode == http.StatusConflict {
		if p := as[api.Problem](b.t, answer); p.Impact != nil {
			resp, answer = b.sendAs(token, method, path, body, "Impact-Accepted", p.Impact.Digest)
		}
	}
	if tried != nil {
		require.Equal(b.t, min(resp.StatusCode, 300) < 300, tried.StatusCode == http.StatusOK, "%s %s: %d %s, and its dry run %d", method, path, resp.StatusCode, answer, tried.StatusCode)
	}
	plain := request(b.t, "", method, path, token, contentType, body)
	route, params, err := b.router.FindRoute(plain)
	if err != nil {
		require.GreaterOrEqual(b.t, resp.StatusCode, 400, "%s %s is answered and not in the contract", method, path)
		return resp, answer
	}
	in := &openapi3filter.RequestValidationInput{Request: plain, Route: route, PathParams: params, Options: &openapi3filter.Options{
		AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true,
	}}
	require.NoError(b.t, openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: resp.StatusCode, Header: resp.Header, Body: io.NopCloser(bytes.NewReader(answer)),
	}), "%s %s: %d %s", method, path, resp.StatusCode, answer)
	if r := route.Operation.Responses.Status(resp.StatusCode); resp.StatusCode >= 400 && r.Value.Content["application/problem+json"] != nil {
		code := as[api.Problem](b.t, answer).Code
		require.Contains(b.t, r.Value.Content["application/problem+json"].Examples, code, "%s %s: the operation does not declare this code", method, path)
	}
	if resp.StatusCode == http.StatusAccepted {
		b.shown(as[struct{ Operation api.Operation }](b.t, answer).Operation)
	}
	if resp.StatusCode < 300 && method != http.MethodGet && !strings.Contains(path, "dry_run=true") && route.Operation.Extensions["x-changes"] != "nothing" {
		var n int
		require.NoError(b.t, b.pool.QueryRow(context.Background(), `SELECT count(*) FROM audit_entries WHERE request_id = $1 AND (actor = $2 OR $2 LIKE 'prego\_%') AND operation = $3`,
			resp.Header.Get("X-Request-Id"), token, route.Operation.OperationID).Scan(&n))
		require.NotZero(b.t, n, "%s %s is accepted and not in the audit", method, path)
	}
	if resp.StatusCode < 300 {
		require.NoError(b.t, openapi3filter.ValidateRequest(context.Background(), in), "%s %s is accepted and against the contract", method, path)
	}
	return resp, answer
}

// try sends a request as a dry run, which changes nothing: each test of a change is one of its dry run. It returns nil
// for a request that has none.
func (b *bundle) try(method, path, token, contentType, body string) *http.Response {
	b.t.Helper()
	route, _, err := b.router.FindRoute(request(b.t, "", method, path, token, contentType, body))
	if err != nil || method == http.MethodGet || route.Operation.Extensions["x-dry-run"] != nil || strings.Contains(path, "dry_run=") {
		return nil
	}
	mark := "?"
	if strings.Contains(path, "?") {
		mark = "&"
	}
	before, asked := b.kept(), len(b.runs.asked())
	resp, answer := b.send(method, path+mark+"dry_run=true", token, contentType, body)
	if resp.StatusCode == http.StatusOK {
		require.Equal(b.t, "application/vnd.prego.impact+json", resp.Header.Get("Content-Type"), "%s %s: %s", method, path, answer)
	}
	require.Equal(b.t, before, b.kept(), "the dry run of %s %s changes rows", method, path)
	require.Len(b.t, b.runs.asked(), asked, "the dry run of %s %s asks Temporal", method, path)
	return resp
}

// planned decodes the plan in the answer to a dry run.
func planned[T any](t *testing.T, body []byte) T {
	t.Helper()
	return as[struct{ Plan T }](t, body).Plan
}

// kept is how many rows there are of what every change writes.
func (b *bundle) kept() (n [4]int) {
	require.NoError(b.t, b.pool.QueryRow(context.Background(), `SELECT (SELECT count(*) FROM audit_entries WHERE verb <> 'refuse'), (SELECT count(*) FROM events),
		(SELECT count(*) FROM changes), (SELECT count(*) FROM request_keys)`).Scan(&n[0], &n[1], &n[2], &n[3]))
	return n
}

// shown requires that an operation is at the path in its answer.
func (b *bundle) shown(op api.Operation) {
	b.t.Helper()
	resp, answer := b.send("GET", op.Href, "viewer", "", "") // the router of the tests does not unescape
	require.Equal(b.t, http.StatusOK, resp.StatusCode, "%s: %s", op.Id, answer)
	again := as[api.Operation](b.t, answer)
	require.Equal(b.t, []string{op.Id, op.Kind, op.Target.Kind, op.Target.Id}, []string{again.Id, again.Kind, again.Target.Kind, again.Target.Id})
}

// contractRefuses reports whether the contract alone refuses a request.
func (b *bundle) contractRefuses(method, path, contentType, body string) bool {
	b.t.Helper()
	req := request(b.t, "", method, path, "", contentType, body)
	route, params, err := b.router.FindRoute(req)
	require.NoError(b.t, err)
	return openapi3filter.ValidateRequest(context.Background(), &openapi3filter.RequestValidationInput{
		Request: req, Route: route, PathParams: params, Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
	}) != nil
}

// as decodes an answer.
func as[T any](t *testing.T, body []byte) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal(body, &v), "%s", body)
	return v
}

// show reads a server over HTTP.
func (b *bundle) show(id string) api.Server {
	b.t.Helper()
	resp, body := b.do("GET", "/v1/servers/"+id, "viewer", "", "")
	require.Equal(b.t, http.StatusOK, resp.StatusCode, "%s", body)
	return as[api.Server](b.t, body)
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

const (
	js     = "application/json"
	create = "/internal/servers/create"
	valid  = `{"server_id":"app-1","role":"app","region":"eu","infra_provider":"hetzner","spec":{}}`
	taken  = `{"server_id":"db-1","role":"db-shard","region":"eu","infra_provider":"hetzner","provider_server_id":"4711","managed_by":"pulumi"}`
)

// verified is what a look at the DNS comes to when the TXT record of the name's oldest claim
// is there.
func (b *bundle) verified(name string) {
	b.t.Helper()
	var id string
	require.NoError(b.t, b.pool.QueryRow(context.Background(), `SELECT domain_id FROM domains WHERE name = $1 AND deleted_at IS NULL ORDER BY created_at LIMIT 1`, name).Scan(&id))
	d, err := b.store.GetDomain(context.Background(), id)
	require.NoError(b.t, err)
	d, err = b.store.DomainSeen(context.Background(), d, org.DomainAnswer{At: time.Now(), TXT: []string{d.ChallengeValue()}}, org.DomainRules{Retry: time.Second, RetryMax: time.Hour, Recheck: time.Hour})
	require.NoError(b.t, err)
	require.Equal(b.t, org.DomainVerified, d.Status)
}
