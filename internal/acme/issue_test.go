package acme_test

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/testsuite"
	sdk "go.temporal.io/sdk/worker"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/acme"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/lab/acmetest"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/worker"
	"github.com/prego/prego/workflows"
)

// letsEncrypt are the limits of Let's Encrypt (https://letsencrypt.org/docs/rate-limits/).
var letsEncrypt = tenant.IssueLimits{
	Orders: tenant.IssueLimit{Most: 300, Per: 3 * time.Hour}, Domain: tenant.IssueLimit{Most: 50, Per: 7 * 24 * time.Hour},
	Duplicates: tenant.IssueLimit{Most: 5, Per: 7 * 24 * time.Hour}, Failures: tenant.IssueLimit{Most: 5, Per: time.Hour},
}

func TestMain(m *testing.M) { pgtest.Main(m) }

// testBundle is a worker's part for certificates, over a database and an authority that are
// real.
type testBundle struct {
	*activities.Certificates
	activities.Runs // the test starts none but a certificate's
	t               *testing.T
	db              *store.Store
	pool            *pgxpool.Pool
	pebble          *acmetest.Pebble
	gateway         *token.Sealing
	keys            string

	mu    sync.Mutex
	now   time.Time
	runs  []prego.CertificateID
	fails prego.CertificateID // its run can't be started
}

// StartCertificateSweep implements activities.Runs.
func (b *testBundle) StartCertificateSweep(context.Context) error { return nil }

// EnsureCertificate implements activities.Runs.
func (b *testBundle) EnsureCertificate(_ context.Context, id prego.CertificateID) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.runs = append(b.runs, id)
	if id == b.fails {
		return false, errors.New("the engine refuses it")
	}
	return true, nil
}

func (b *testBundle) clock() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Now().Add(b.now.Sub(time.Time{}))
}

// later moves the clock.
func (b *testBundle) later(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
}

func setup(t *testing.T, o acmetest.Options) *testBundle {
	t.Helper()
	b := &testBundle{t: t, pool: pgtest.Pool(t), pebble: acmetest.Start(t, o), keys: t.TempDir()}
	b.db = store.New(b.pool)
	require.NoError(t, token.InitSealing(b.keys, token.SealCertificates))
	box, err := token.NewBox(master("a"))
	require.NoError(t, err)
	b.Certificates = &activities.Certificates{
		Store: b.db, Authority: b.authority(b.pebble.Directory), Keys: box, DNS: b.pebble, Runs: b,
		Probe: acme.NewProbe(acme.ProbeConfig{Port: b.pebble.HTTPPort, Resolver: b.pebble.DNS, AnyAddress: true}),
		Settings: activities.CertificateSettings{
			Account: "1", Contact: "ops@example.com", SiteDomains: []string{"sites.example.com"}, Limits: letsEncrypt,
			ServeWithin: time.Hour, IssueWithin: time.Hour, Poll: 50 * time.Millisecond, AskEvery: 24 * time.Hour,
		},
		Metrics: activities.NewCertificateMetrics(prometheus.NewRegistry()), Log: zap.NewNop(), Now: b.clock,
	}
	b.reseal()
	b.pebble.ServeHTTP(func(name, tok string) (string, bool) {
		list, err := b.db.ServedChallenges(context.Background())
		if err != nil {
			return "", false
		}
		for _, c := range list {
			if c.Name == name && c.Token == tok {
				return c.Answer, true
			}
		}
		return "", false
	})
	b.exec(`INSERT INTO orgs (org_id, created_by, tier) VALUES ('o1', 'a', 'paid')`)
	return b
}

func master(s string) string { return strings.Repeat(hex.EncodeToString([]byte(s)), 32) }

func (b *testBundle) authority(directory string) *acme.Authority {
	b.t.Helper()
	a, err := acme.New(acme.Config{Directory: directory, UserAgent: "prego-test", Roots: b.pebble.Roots(), Timeout: 10 * time.Second})
	require.NoError(b.t, err)
	return a
}

// reseal reads the sealing keys again, as a restarted worker and gateway do.
func (b *testBundle) reseal() {
	b.t.Helper()
	var err error
	b.gateway, err = token.OpenSealing(b.keys, token.SealCertificates)
	require.NoError(b.t, err)
	b.Sealing = b.gateway
}

func (b *testBundle) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.pool.Exec(context.Background(), sql, args...)
	require.NoError(b.t, err)
}

func (b *testBundle) one(sql string, args ...any) (n int) {
	b.t.Helper()
	require.NoError(b.t, b.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

// want makes the row of a certificate.
func (b *testBundle) want(w tenant.CertificateWant) prego.CertificateID {
	b.t.Helper()
	_, err := b.db.WantCertificates(context.Background(), []tenant.CertificateWant{w}, "test")
	require.NoError(b.t, err)
	return tenant.CertificateID(w.Names)
}

func host(name string) tenant.CertificateWant {
	org := prego.OrgID("o1")
	return tenant.HostCertificate(name, &org, nil)
}

// issue runs the workflow with the real steps.
func (b *testBundle) issue(id prego.CertificateID, prepare ...func(*testsuite.TestWorkflowEnvironment)) error {
	b.t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(2 * time.Minute)
	env.SetStartTime(b.clock())
	env.RegisterActivity(b.Certificates)
	steps := &stepsUnderWay{}
	env.SetWorkerOptions(sdk.Options{Interceptors: []interceptor.WorkerInterceptor{steps}})
	for _, f := range prepare {
		f(env)
	}
	env.ExecuteWorkflow(workflows.IssueCertificate, workflows.IssueCertificateInput{CertificateID: id})
	require.True(b.t, env.IsWorkflowCompleted())
	steps.Wait()
	return env.GetWorkflowError()
}

// stepsUnderWay counts steps that have not ended. A real server's run waits for a cancelled step; the run in tests
// does not.
type stepsUnderWay struct {
	interceptor.WorkerInterceptorBase
	sync.WaitGroup
}

type countedStep struct {
	interceptor.ActivityInboundInterceptorBase
	all *stepsUnderWay
}

func (s *stepsUnderWay) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &countedStep{ActivityInboundInterceptorBase: interceptor.ActivityInboundInterceptorBase{Next: next}, all: s}
}

func (c *countedStep) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	c.all.Add(1)
	defer c.all.Done()
	out, err := c.Next.ExecuteActivity(ctx, in)
	// The run's clock skips the pauses between two looks at an order, and before a step is repeated. The authority is a
	// real process, and needs them: Pebble answers 500 to a renewal if it has not yet noted down the first certificate.
	step, ok := out.(activities.OrderStep)
	if err != nil || ok && (step.State == tenant.OrderPending || step.State == tenant.OrderProcessing) {
		time.Sleep(200 * time.Millisecond)
	}
	return out, err
}

func (b *testBundle) certificate(id prego.CertificateID) tenant.Certificate {
	b.t.Helper()
	c, err := b.db.GetCertificate(context.Background(), id)
	require.NoError(b.t, err)
	return c
}

// serve presents what edges would present, and has a visitor check it against Pebble's root.
func (b *testBundle) serve(name string) *x509.Certificate {
	b.t.Helper()
	list, err := b.db.ServedCertificates(context.Background(), []string{name})
	require.NoError(b.t, err)
	require.Len(b.t, list, 1, name)
	key, err := b.gateway.Open(tenant.CertificateKeyFor(list[0].CertificateID), list[0].KeyID, list[0].SealedKey)
	require.NoError(b.t, err)
	pair, err := tls.X509KeyPair([]byte(list[0].Chain), key)
	require.NoError(b.t, err)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("here")) }))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	defer s.Close()
	var d tls.Dialer
	d.Config = &tls.Config{RootCAs: b.pebble.Trust(), ServerName: name, MinVersion: tls.VersionTLS12}
	conn, err := d.DialContext(context.Background(), "tcp", s.Listener.Addr().String())
	require.NoError(b.t, err, "a visitor of %s", name)
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
}

// orders counts what the authority has of this account, by asking it.
func (b *testBundle) orders() int {
	b.t.Helper()
	row, err := b.db.IssuerAccount(context.Background(), tenant.IssuerAccountID(b.Authority.Directory(), "1"))
	require.NoError(b.t, err)
	require.NotNil(b.t, row)
	n, err := b.Authority.(*acme.Authority).CountOrders(context.Background(), b.account(*row))
	require.NoError(b.t, err)
	return n
}

// forgetShown makes the authority ask again for names that were shown to it. It otherwise takes them as shown in a
// part of the orders, and Pebble does so in one of a hundred even if it is told never to.
func (b *testBundle) forgetShown() {
	b.t.Helper()
	row, err := b.db.IssuerAccount(context.Background(), tenant.IssuerAccountID(b.Authority.Directory(), "1"))
	require.NoError(b.t, err)
	require.NotNil(b.t, row)
	require.NoError(b.t, b.Authority.(*acme.Authority).ForgetShown(context.Background(), b.account(*row)))
}

func (b *testBundle) account(row tenant.IssuerAccount) tenant.AuthorityAccount {
	b.t.Helper()
	text, err := b.Keys.Open(tenant.AccountKeyFor(row.AccountID), row.KeyID, row.SealedKey)
	require.NoError(b.t, err)
	block, _ := pem.Decode(text)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	require.NoError(b.t, err)
	return tenant.AuthorityAccount{Location: row.Location, OrdersURL: row.OrdersURL, Key: key.(crypto.Signer)}
}

func (b *testBundle) attempts(outcome string) int {
	b.t.Helper()
	var m dto.Metric
	require.NoError(b.t, b.Metrics.Attempts.WithLabelValues(outcome).Write(&m))
	return int(m.GetCounter().GetValue())
}

// TestOverHTTPAndDNS: a customer's name and the wildcard of all sites, validated for real;
// a visitor trusts both, and nothing is left of the challenges.
func TestOverHTTPAndDNS(t *testing.T) {
	t.Parallel()
	b := setup(t, acmetest.Options{})
	for name, w := range map[string]tenant.CertificateWant{"shop.example.org": host("shop.example.org"), "acme.sites.example.com": tenant.SiteCertificate("sites.example.com")} {
		id := b.want(w)
		require.NoError(t, b.issue(id))
		c := b.certificate(id)
		require.Equal(t, tenant.CertificateActive, c.Status, "%s: %s", c.Reason, c.Message)
		require.EqualValues(t, 1, c.Version)
		leaf := b.serve(name)
		require.Equal(t, w.Names, leaf.DNSNames)
		require.Equal(t, c.Serial, leaf.SerialNumber.Text(16))
		share := c.DueAt.Sub(*c.NotBefore).Seconds() / c.NotAfter.Sub(*c.NotBefore).Seconds()
		require.InDelta(t, 0.64, share, 0.03, "renewed at two thirds of its life, or a little earlier")

		require.NoError(t, b.issue(id), "there is nothing to do")
		require.EqualValues(t, 1, b.certificate(id).Version)
	}
	require.Zero(t, b.one(`SELECT count(*) FROM acme_challenges WHERE removed_at IS NULL`))
	require.Equal(t, 2, b.one(`SELECT count(*) FROM acme_orders WHERE state = 'valid' AND sealed_key IS NULL`), "an order's key is in the certificate's row alone")
	require.Equal(t, 1, b.one(`SELECT count(*) FROM acme_accounts`))
	require.Equal(t, 1, b.one(`SELECT count(*) FROM org_events WHERE type = 'certificate.issued' AND org_id = 'o1'`))
	require.Equal(t, 2, b.orders())
	require.Equal(t, 2, b.attempts("issued"))
	visible, err := b.pebble.TXTVisible(t.Context(), "_acme-challenge.sites.example.com", "x")
	require.True(t, err != nil || !visible)
}

// TestChaosOfTheAuthority: nonces that are refused, authorizations that are there already or
// not, and short polls change nothing.
func TestChaosOfTheAuthority(t *testing.T) {
	t.Parallel()
	b := setup(t, acmetest.Options{Env: []string{"PEBBLE_WFE_NONCEREJECT=30", "PEBBLE_AUTHZREUSE=100"}})
	for i := range 4 {
		id := b.want(host(fmt.Sprintf("www%d.example.org", i)))
		require.NoError(t, b.issue(id))
		require.Equal(t, tenant.CertificateActive, b.certificate(id).Status, b.certificate(id).Message)
	}
	// The name is known to be ours: no challenge.
	before := b.one(`SELECT count(*) FROM acme_challenges`)
	id := tenant.CertificateID([]string{"www0.example.org"})
	_, err := b.db.RenewCertificate(t.Context(), id)
	require.NoError(t, err)
	require.NoError(t, b.issue(id))
	require.EqualValues(t, 2, b.certificate(id).Version)
	require.Equal(t, before, b.one(`SELECT count(*) FROM acme_challenges`))
	b.serve("www0.example.org")
}

// TestKilledAtEveryStep: a worker that dies after any effect, and its successor, get one certificate with one order.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	b := setup(t, acmetest.Options{})
	points := []string{
		"account-kept", "registered", "intended", "placed", "recorded", "shown", "served", "accepting", "accepted",
		"finalizing", "finalized", "downloaded", "stored", "removed",
	}
	for i, point := range points {
		w := tenant.SiteCertificate(fmt.Sprintf("s%d.example.com", i))
		if i%2 == 1 && point != "shown" {
			w = host(fmt.Sprintf("h%d.example.org", i))
		}
		id := b.want(w)
		var hits atomic.Int32
		b.Hook = func(at string) {
			if at == "certificate/"+point && hits.Add(1) == 1 {
				panic("killed at " + at)
			}
		}
		if point == "account-kept" || point == "registered" {
			// A new account, so that the point is met.
			b.Settings.Account = point
		}
		require.NoError(t, b.issue(id), point)
		require.Positive(t, hits.Load(), "%s was never met", point)
		c := b.certificate(id)
		require.Equal(t, tenant.CertificateActive, c.Status, "%s: %s: %s", point, c.Reason, c.Message)
		require.EqualValues(t, 1, c.Version, point)
		require.Equal(t, 1, b.one(`SELECT count(*) FROM acme_orders WHERE certificate_id = $1`, id), point)
		b.serve(strings.Replace(w.Names[0], "*.", "x.", 1))
		if point == "registered" {
			b.Settings.Account = "1"
		}
	}
	require.Zero(t, b.one(`SELECT count(*) FROM acme_challenges WHERE removed_at IS NULL`))
	require.Equal(t, len(points)-2, b.orders(), "an order each, also where the answer was lost")
}

// TestCancelledAtEveryStep: a run that is cancelled leaves its order open with its answers, at
// which the authority may be looking; the next run takes both up, and cleans up.
func TestCancelledAtEveryStep(t *testing.T) {
	t.Parallel()
	b := setup(t, acmetest.Options{})
	points := []string{"intended", "placed", "recorded", "served", "accepted", "finalizing", "finalized", "downloaded"}
	for i, point := range points {
		id := b.want(host(fmt.Sprintf("c%d.example.org", i)))
		var env *testsuite.TestWorkflowEnvironment
		var once sync.Once
		b.Hook = func(at string) {
			if at == "certificate/"+point {
				once.Do(func() { env.CancelWorkflow() })
			}
		}
		_ = b.issue(id, func(e *testsuite.TestWorkflowEnvironment) { env = e }) // the step under way may be the last
		require.Zero(t, b.certificate(id).Failures, "%s: no step failed", point)
		b.Hook = nil
		require.NoError(t, b.issue(id), point)
		require.Equal(t, tenant.CertificateActive, b.certificate(id).Status, point)
		require.Equal(t, 1, b.one(`SELECT count(*) FROM acme_orders WHERE certificate_id = $1`, id), point)
		require.Zero(t, b.one(`SELECT count(*) FROM acme_challenges WHERE removed_at IS NULL`), point)
	}
	require.Equal(t, len(points), b.orders())
}

// TestWhatCannotBeSeenIsNotAsked: a name that leads elsewhere costs no validation of the authority; a name that the
// authority can't look up is counted and its reason reported.
func TestWhatCannotBeSeenIsNotAsked(t *testing.T) {
	t.Parallel()
	b := setup(t, acmetest.Options{})
	b.Settings.ServeWithin = 300 * time.Millisecond
	failures := func(name string) int {
		return b.one(`SELECT COALESCE((SELECT round(capacity - tokens)::int FROM acme_budgets WHERE bucket = $1), 0)`, tenant.FailureBucket(b.pebble.Directory, name))
	}

	b.pebble.SetDNS("add-a", map[string]any{"host": "away.example.org", "addresses": []string{"127.0.0.9"}})
	id := b.want(host("away.example.org"))
	require.NoError(t, b.issue(id))
	c := b.certificate(id)
	require.Equal(t, []any{tenant.CertificateFailed, prego.Reason("certificate_not_served"), 1}, []any{c.Status, c.Reason, c.Failures})
	require.Contains(t, c.Message, "away.example.org can't be reached")
	require.Zero(t, failures("away.example.org"))
	require.Zero(t, b.one(`SELECT count(*) FROM acme_challenges WHERE removed_at IS NULL`))
	require.True(t, c.DueAt.After(time.Now().Add(time.Minute)))
	require.NoError(t, b.issue(id), "not due")
	require.Equal(t, 1, b.certificate(id).Failures)
	require.Equal(t, 1, b.one(`SELECT count(*) FROM org_events WHERE type = 'certificate.failed'`))

	// What the authority can't see although we do.
	b.Settings.ServeWithin = time.Hour
	seen := b.Probe
	b.Probe = probe(func(_, tok string) string {
		list, err := b.db.ServedChallenges(context.Background())
		require.NoError(t, err)
		for _, l := range list {
			if l.Token == tok {
				return l.Answer
			}
		}
		return ""
	})
	for name, tc := range map[string]struct {
		class   tenant.IssueClass
		prepare func(name string)
	}{
		"refused.example.org": {tenant.IssueConnection, func(n string) {
			b.pebble.SetDNS("add-a", map[string]any{"host": n, "addresses": []string{"127.0.0.9"}})
		}},
		"servfail.example.org": {tenant.IssueConnection, func(n string) { b.pebble.SetDNS("set-servfail", map[string]any{"host": n}) }},
		"blocked.example":      {tenant.IssueRejected, func(string) {}},
	} {
		tc.prepare(name)
		id := b.want(host(name))
		require.NoError(t, b.issue(id))
		c := b.certificate(id)
		require.Equal(t, tc.class.Reason(), c.Reason, "%s: %s", name, c.Message)
		require.Equal(t, map[bool]int{true: 1}[slices.Contains([]tenant.IssueClass{tenant.IssueUnauthorized, tenant.IssueCAA, tenant.IssueDNS, tenant.IssueConnection}, tc.class)], failures(name), name)
		require.NotContains(t, c.Message, "PRIVATE")
	}
	require.Equal(t, []int{2, 1, 1}, []int{b.attempts("connection"), b.attempts("rejected"), b.attempts("not_served")})
	b.Probe = probe(func(string, string) string { return "something else" })
	b.Settings.ServeWithin = 200 * time.Millisecond
	id = b.want(host("parked.example.org"))
	require.NoError(t, b.issue(id))
	require.Contains(t, b.certificate(id).Message, "does not lead to this installation")

	// Repaired and requested again: the existing order continues.
	b.Probe, b.Settings.ServeWithin = seen, time.Hour
	_, err := b.db.RenewCertificate(t.Context(), id)
	require.NoError(t, err)
	require.NoError(t, b.issue(id))
	require.Equal(t, tenant.CertificateActive, b.certificate(id).Status)
	require.Equal(t, 1, b.one(`SELECT count(*) FROM acme_orders WHERE certificate_id = $1`, id))
}

// TestADeletedNameEndsItsRun: at the next look, long before the time for showing answers is over, and without a
// failure on record.
func TestADeletedNameEndsItsRun(t *testing.T) {
	t.Parallel()
	b := setup(t, acmetest.Options{})
	b.exec(`INSERT INTO domains (domain_id, org_id, name, token, status, points, sought_until, created_by)
		VALUES ('dom-1', 'o1', 'gone.example.org', 'x', 'verified', true, now() + interval '1 day', 'a')`)
	id := b.want(host("gone.example.org"))
	looks := 0
	b.Probe = probe(func(string, string) string {
		if looks++; looks == 2 {
			b.exec(`UPDATE domains SET deleted_at = now()`)
			_, err := b.db.SyncCertificateNames(context.Background(), 100)
			require.NoError(t, err)
		}
		return "not there yet"
	})
	require.NoError(t, b.issue(id))
	require.Equal(t, 2, looks)
	require.Equal(t, 1, b.one(`SELECT count(*) FROM acme_orders WHERE reason = 'certificate_gone'`))
	require.Zero(t, b.one(`SELECT count(*) FROM acme_challenges WHERE removed_at IS NULL`))
	c := b.certificate(id)
	require.Equal(t, []any{tenant.CertificateRetired, 0}, []any{c.Status, c.Failures})
}

type probe func(name, token string) string

func (p probe) Answer(_ context.Context, name, token string) (string, error) {
	return p(name, token), nil
}

// TestTheBudgetIsKept: what the authority would refuse is not asked for.
func TestTheBudgetIsKept(t *testing.T) {
	t.Parallel()
	b := setup(t, acmetest.Options{})
	b.Settings.Limits.Domain = tenant.IssueLimit{Most: 2, Per: 7 * 24 * time.Hour}
	for i := range 3 {
		id := b.want(host(fmt.Sprintf("n%d.example.org", i)))
		require.NoError(t, b.issue(id))
		c := b.certificate(id)
		if i < 2 {
			require.Equal(t, tenant.CertificateActive, c.Status)
			continue
		}
		require.Equal(t, []any{tenant.CertificateFailed, prego.Reason("certificate_budget")}, []any{c.Status, c.Reason})
		require.Contains(t, c.Message, "example.org")
		require.True(t, c.DueAt.After(time.Now().Add(3*24*time.Hour)), "when one has come back: %s", c.DueAt)
	}
	require.Equal(t, 2, b.orders())
	other := b.want(host("n.example.net"))
	require.NoError(t, b.issue(other))
	require.Equal(t, tenant.CertificateActive, b.certificate(other).Status, "another domain has its own")

	// A renewal that names what it replaces is exempt.
	id := tenant.CertificateID([]string{"n0.example.org"})
	_, err := b.db.RenewCertificate(t.Context(), id)
	require.NoError(t, err)
	require.NoError(t, b.issue(id))
	require.EqualValues(t, 2, b.certificate(id).Version)
	require.Equal(t, 1, b.one(`SELECT count(*) FROM acme_orders WHERE certificate_id = $1 AND replaces <> ''`, id))
}

// TestTheAuthorityLimits: a 429 with Retry-After is believed: nothing more is asked of that
// domain until then.
func TestTheAuthorityLimits(t *testing.T) {
	t.Parallel()
	b := setup(t, acmetest.Options{})
	limiting := &limiter{}
	b.Authority = b.through(limiting)
	limiting.say(http.StatusTooManyRequests, `{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many certificates already issued for \"example.org\"","status":429}`)
	id := b.want(host("a.example.org"))
	require.NoError(t, b.issue(id))
	c := b.certificate(id)
	require.Equal(t, prego.Reason("certificate_rate_limited"), c.Reason, c.Message)
	require.Contains(t, c.Message, "too many certificates already issued")
	require.InDelta(t, 7200, time.Until(*c.DueAt).Seconds(), 800)
	asked := limiting.asked.Load()
	require.EqualValues(t, 1, asked, "not again within the run")

	limiting.say(0, "")
	second := b.want(host("b.example.org"))
	require.NoError(t, b.issue(second))
	require.Equal(t, prego.Reason("certificate_budget"), b.certificate(second).Reason, "the domain is blocked until then")
	require.Equal(t, asked, limiting.asked.Load())
	third := b.want(host("c.example.net"))
	require.NoError(t, b.issue(third))
	require.Equal(t, tenant.CertificateActive, b.certificate(third).Status)

	// The order was never placed, and is when the time has come.
	b.exec(`UPDATE acme_budgets SET blocked_until = now() - interval '1 s'`)
	b.exec(`UPDATE certificates SET due_at = now()`)
	require.NoError(t, b.issue(id))
	require.Equal(t, tenant.CertificateActive, b.certificate(id).Status, b.certificate(id).Message)
}

// TestAFailingAuthority: an order whose answer is lost is found, never placed twice; an
// authority that is down is tried again within the run.
func TestAFailingAuthority(t *testing.T) {
	t.Parallel()
	b := setup(t, acmetest.Options{})
	limiting := &limiter{}
	b.Authority = b.through(limiting)
	limiting.lose(1)
	id := b.want(host("lost.example.org"))
	require.NoError(t, b.issue(id))
	require.Equal(t, tenant.CertificateActive, b.certificate(id).Status, b.certificate(id).Message)
	require.EqualValues(t, 1, limiting.lost.Load())
	require.Equal(t, 1, b.orders(), "the order whose answer was lost")
}

// TestTheAuthorityForgets: an authority that lost account and order midway gets both created again.
func TestTheAuthorityForgets(t *testing.T) {
	t.Parallel()
	b := setup(t, acmetest.Options{})
	id := b.want(host("again.example.org"))
	var once sync.Once
	b.Hook = func(at string) {
		if at == "certificate/recorded" {
			once.Do(func() {
				b.pebble.Kill()
				b.pebble.Boot()
			})
		}
	}
	for range 4 { // the account, then the order
		require.NoError(t, b.issue(id))
		if b.certificate(id).Status == tenant.CertificateActive {
			break
		}
		require.Contains(t, []prego.Reason{"certificate_account", "certificate_gone"}, b.certificate(id).Reason, b.certificate(id).Message)
		b.exec(`UPDATE certificates SET due_at = now()`)
	}
	require.Equal(t, tenant.CertificateActive, b.certificate(id).Status, b.certificate(id).Message)
	b.serve("again.example.org")
	require.Equal(t, 1, b.orders())
}

// TestRenewal: the next certificate is ordered at two thirds of the life. The previous one is served until then, and
// if the renewal fails, until its end.
func TestRenewal(t *testing.T) {
	t.Parallel()
	b := setup(t, acmetest.Options{Validity: 20 * time.Hour, Env: []string{"PEBBLE_AUTHZREUSE=100"}})
	id := b.want(host("www.example.org"))
	require.NoError(t, b.issue(id))
	first := b.serve("www.example.org").SerialNumber
	b.forgetShown()
	require.Zero(t, b.orders(), "Pebble no longer lists an order that is not authorized")

	look := worker.At(b.Certificates, worker.LookAtCertificates)
	b.exec(`DELETE FROM certificates WHERE challenge = 'dns-01'`)
	b.DNS = nil // no wildcard
	r, err := look(t.Context())
	require.NoError(t, err)
	require.False(t, r.Found, "nothing is due")
	b.later(14 * time.Hour)
	r, err = look(t.Context())
	require.NoError(t, err)
	require.True(t, r.Found)
	did, err := b.SweepCertificates(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, did.Started)
	require.Equal(t, []prego.CertificateID{id}, b.runs)

	b.Settings.ServeWithin = 200 * time.Millisecond
	seen := b.Probe
	b.Probe = probe(func(string, string) string { return "" })
	require.NoError(t, b.issue(id))
	c := b.certificate(id)
	require.Equal(t, []any{tenant.CertificateActive, prego.Reason("certificate_not_served"), int64(1)}, []any{c.Status, c.Reason, c.Version})
	require.Equal(t, first, b.serve("www.example.org").SerialNumber, "the old one is served")
	counts, err := b.db.CertificateCounts(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{1, 1}, []int{counts.Active, counts.Failing})

	b.Probe, b.Settings.ServeWithin = seen, time.Hour
	b.exec(`UPDATE certificates SET due_at = now()`)
	require.NoError(t, b.issue(id))
	require.NotEqual(t, first, b.serve("www.example.org").SerialNumber)
	c = b.certificate(id)
	require.Equal(t, []any{int64(2), 0, prego.Reason("")}, []any{c.Version, c.Failures, c.Reason})
	require.Equal(t, 1, b.orders(), "the attempt in between took up the open order")
}

// TestTheAuthorityWantsItEarlier: a window that it suggests (RFC 9773), as before a
// revocation, brings the renewal forward; a late one does not put it off.
func TestTheAuthorityWantsItEarlier(t *testing.T) {
	t.Parallel()
	b := setup(t, acmetest.Options{})
	b.DNS = nil
	id := b.want(host("www.example.org"))
	require.NoError(t, b.issue(id))
	usual := *b.certificate(id).DueAt
	chain, err := b.db.CertificateChain(t.Context(), id)
	require.NoError(t, err)
	suggest := func(start, end time.Time) {
		leaf, _ := pem.Decode([]byte(chain))
		window := fmt.Sprintf(`{"suggestedWindow":{"start":%q,"end":%q},"explanationURL":"https://ca.example/why"}`, start.UTC().Format(time.RFC3339), end.UTC().Format(time.RFC3339))
		body, err := json.Marshal(map[string]string{"Certificate": string(pem.EncodeToMemory(leaf)), "ARIResponse": window})
		require.NoError(t, err)
		b.pebble.Manage(http.MethodPost, "/set-renewal-info/", body)
	}
	suggest(time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour))
	b.later(25 * time.Hour)
	did, err := b.SweepCertificates(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{1, 1}, []int{did.Asked, did.Started})
	c := b.certificate(id)
	require.True(t, c.DueAt.Before(time.Now()), "%s", c.DueAt)
	require.Equal(t, "https://ca.example/why", c.AriURL)
	require.NoError(t, b.issue(id))
	require.EqualValues(t, 2, b.certificate(id).Version)

	chain, err = b.db.CertificateChain(t.Context(), id)
	require.NoError(t, err)
	suggest(usual.Add(20*24*time.Hour), usual.Add(21*24*time.Hour))
	usual = *b.certificate(id).DueAt
	b.later(25 * time.Hour)
	did, err = b.SweepCertificates(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, did.Asked)
	require.Equal(t, usual, *b.certificate(id).DueAt)
}

// hanging is an authority that does not answer when it is asked about renewals.
type hanging struct {
	activities.CertificateAuthority
	givenUp time.Time
}

func (h *hanging) RenewalInfo(ctx context.Context, _ string) (w tenant.RenewalWindow, ok bool, err error) {
	h.givenUp, _ = ctx.Deadline()
	return w, false, context.DeadlineExceeded
}

// TestAnAuthorityThatHangsKeepsNoCertificateWaiting: it is asked again later, and those that are due get their runs.
func TestAnAuthorityThatHangsKeepsNoCertificateWaiting(t *testing.T) {
	t.Parallel()
	b := setup(t, acmetest.Options{})
	b.DNS = nil
	require.NoError(t, b.issue(b.want(host("www.example.org"))))
	due := b.want(host("due.example.org"))
	h := &hanging{CertificateAuthority: b.Authority}
	b.Authority = h
	b.later(25 * time.Hour)
	for asked := 1; asked >= 0; asked-- {
		b.runs = nil
		did, err := b.SweepCertificates(t.Context())
		require.NoError(t, err)
		require.Equal(t, asked, did.Asked)
		require.Contains(t, b.runs, due)
		require.WithinRange(t, h.givenUp, time.Now(), time.Now().Add(21*time.Second))
	}
}

// TestAnUnknownPredecessor: an authority that refuses to replace a certificate still renews it.
func TestAnUnknownPredecessor(t *testing.T) {
	t.Parallel()
	b := setup(t, acmetest.Options{})
	b.DNS = nil
	id, other := b.want(host("www.example.org")), b.want(host("other.example.org"))
	require.NoError(t, b.issue(id))
	require.NoError(t, b.issue(other))
	b.exec(`UPDATE certificates SET due_at = now(), chain_pem = (SELECT chain_pem FROM certificates WHERE certificate_id = $2) WHERE certificate_id = $1`, id, other)
	require.NoError(t, b.issue(id))
	require.Equal(t, prego.Reason("certificate_server"), b.certificate(id).Reason)
	b.exec(`UPDATE certificates SET due_at = now() WHERE certificate_id = $1`, id)
	require.NoError(t, b.issue(id))
	require.EqualValues(t, 2, b.certificate(id).Version, b.certificate(id).Message)
	require.Equal(t, []string{"www.example.org"}, b.serve("www.example.org").DNSNames)
}

// TestKeysAtRest: a reader of the database gets no key. Removing a sealing key renews its certificates, and the open
// order. An account's key follows the master key, and is never silently replaced.
func TestKeysAtRest(t *testing.T) {
	t.Parallel()
	b := setup(t, acmetest.Options{})
	b.DNS = nil
	id := b.want(host("www.example.org"))
	require.NoError(t, b.issue(id))
	old := b.certificate(id)
	open := b.want(host("open.example.org"))
	b.Hook = func(at string) {
		if at == "certificate/intended" {
			panic("killed")
		}
	}
	_, err := func() (s activities.OrderStep, err error) {
		defer func() { _ = recover() }()
		return b.PlaceOrder(t.Context(), activities.CertificateRef{CertificateID: open})
	}()
	require.NoError(t, err)
	b.Hook = nil
	require.Equal(t, 1, b.one(`SELECT count(*) FROM acme_orders WHERE certificate_id = $1 AND ended_at IS NULL`, open))
	for _, table := range []string{"certificates", "acme_orders", "acme_accounts"} {
		require.Zero(t, b.one(`SELECT count(*) FROM `+table+` t WHERE position('PRIVATE KEY' in t::text) > 0 OR position(encode('PRIVATE KEY', 'hex') in t::text) > 0`), table)
	}

	require.NoError(t, token.AddSealing(b.keys, token.SealCertificates))
	b.reseal()
	did, err := b.SweepCertificates(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, did.Started, "only the open one: the previous key is still known")
	files, err := token.SealingFiles(b.keys, token.SealCertificates)
	require.NoError(t, err)
	require.NoError(t, os.Remove(files[0]))
	b.reseal()
	found, err := worker.LookAtCertificates(t.Context(), b.Certificates)
	require.NoError(t, err)
	require.True(t, found.Found)
	for _, b.fails = range []prego.CertificateID{id, open, ""} {
		b.runs = nil
		_, err = b.SweepCertificates(t.Context())
		require.Equal(t, b.fails == "", err == nil, err)
		require.ElementsMatch(t, []prego.CertificateID{id, open}, b.runs, "one keeps no other from its start")
	}
	for _, c := range b.runs {
		require.NoError(t, b.issue(c))
	}
	require.Greater(t, b.certificate(id).Version, old.Version)
	b.serve("www.example.org")
	b.serve("open.example.org")
	found, err = worker.LookAtCertificates(t.Context(), b.Certificates)
	require.NoError(t, err)
	require.False(t, found.Found)

	// The master key: with the previous key the account's key is sealed again; without it, the reason is reported and
	// nothing is replaced.
	key := func() (id string) {
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT key_id FROM acme_accounts`).Scan(&id))
		return id
	}
	before := key()
	b.Keys, err = token.NewBox(master("b"))
	require.NoError(t, err)
	_, err = b.db.RenewCertificate(t.Context(), id)
	require.NoError(t, err)
	require.NoError(t, b.issue(id))
	require.Equal(t, prego.Reason("certificate_sealed"), b.certificate(id).Reason)
	require.Contains(t, b.certificate(id).Message, "PREGO_MASTER_KEY_EARLIER")
	require.Equal(t, before, key())
	b.Keys, err = token.NewBox(master("b"), master("a"))
	require.NoError(t, err)
	_, err = b.db.RenewCertificate(t.Context(), id)
	require.NoError(t, err)
	require.NoError(t, b.issue(id))
	require.Empty(t, b.certificate(id).Reason, b.certificate(id).Message)
	require.NotEqual(t, before, key())
}
