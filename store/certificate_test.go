package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/tenant"
)

// certificateBundle is a database with an org, an account and a separate clock.
type certificateBundle struct {
	*Store
	t *testing.T
}

func certificatesIn(t *testing.T) certificateBundle {
	t.Helper()
	b := certificateBundle{New(pgtest.Pool(t)), t}
	b.do(`INSERT INTO orgs (org_id, created_by, tier) VALUES ('o1', 'a', 'paid'), ('o2', 'a', 'paid')`)
	b.do(`INSERT INTO acme_accounts (account_id, directory, name, sealed_key, key_id) VALUES ('acc', 'https://ca.example', '1', '\x00', 'k')`)
	return b
}

func (b certificateBundle) do(sql string, args ...any) {
	b.t.Helper()
	_, err := b.pool.Exec(context.Background(), sql, args...)
	require.NoError(b.t, err)
}

func (b certificateBundle) domain(name, org, status string, points bool) {
	b.t.Helper()
	b.do(`INSERT INTO domains (domain_id, org_id, name, token, sought_until, created_by) VALUES ($1, $2, $3, 'x', now() + interval '1 day', 'a') ON CONFLICT DO NOTHING`, "dom-"+name+org, org, name)
	b.do(`UPDATE domains SET status = $3, points = $4 WHERE name = $1 AND org_id = $2`, name, org, status, points)
}

func (b certificateBundle) sync() int {
	b.t.Helper()
	n, err := b.SyncCertificateNames(context.Background(), 100)
	require.NoError(b.t, err)
	return n
}

// issued gives a certificate a chain to serve.
func (b certificateBundle) issued(name string) prego.CertificateID {
	b.t.Helper()
	ctx := context.Background()
	id := tenant.CertificateID([]string{name})
	o, err := b.BeginOrder(ctx, tenant.CertificateOrder{OrderID: "ord-" + name + fmt.Sprint(time.Now().UnixNano()), CertificateID: id, AccountID: "acc", CSR: []byte{0}, SealedKey: []byte("sealed"), KeyID: "k1"}, nil)
	require.NoError(b.t, err)
	now := time.Now()
	require.NoError(b.t, b.CertificateIssued(ctx, o, "https://ca.example", tenant.IssuedCertificate{
		Chain: "chain", Digest: "d", Serial: "1", Issuer: "i", NotBefore: now, NotAfter: now.Add(24 * time.Hour),
	}, now.Add(16*time.Hour), now.Add(time.Hour)))
	return id
}

// TestCertificatesFollowNames: a verified name that leads here and is used has a certificate. While the name is lost,
// the certificate is served and not renewed. Without a domain there is none, and its key is deleted.
func TestCertificatesFollowNames(t *testing.T) {
	t.Parallel()
	b := certificatesIn(t)
	ctx := t.Context()
	b.do(`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app', 'o1', 'a', 'a')`)
	b.do(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env', 'app', 'o1', 'a', 'eu', 'a')`)
	b.do(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by) VALUES ('grp', 'env', 'o1', 'eu', 'a', '{}', 1, 0, 1, 'a')`)

	b.domain("www.example.org", "o1", "verified", false)
	b.sync()
	c, err := b.CertificateFor(ctx, "www.example.org")
	require.NoError(t, err)
	require.Nil(t, c, "it does not lead here")
	b.domain("www.example.org", "o1", "verified", true)
	b.sync()
	c, err = b.CertificateFor(ctx, "www.example.org")
	require.NoError(t, err)
	require.Nil(t, c, "it is unused")
	b.do(`INSERT INTO routes (route_id, org_id, env_id, group_id, hostname, listener_scope, listen_port, protocol, target_port, created_by)
		VALUES ('rte-1', 'o1', 'env', 'grp', 'www.example.org', 'shared_v6', 80, 'http', 80, 'a')`)
	require.Zero(t, b.sync(), "without TLS")
	b.do(`INSERT INTO routes (route_id, org_id, env_id, group_id, hostname, listener_scope, listen_port, protocol, target_port, created_by)
		VALUES ('rte-2', 'o1', 'env', 'grp', 'www.example.org', 'shared_v6', 443, 'http', 80, 'a')`)
	need, err := b.CertificatesNeedSweep(ctx, time.Now(), []string{"k1"})
	require.NoError(t, err)
	require.True(t, need)
	require.Equal(t, 1, b.sync())
	require.Zero(t, b.sync())
	c, err = b.CertificateFor(ctx, "www.example.org")
	require.NoError(t, err)
	require.Equal(t, []any{tenant.CertificatePending, prego.OrgID("o1"), tenant.ChallengeHTTP}, []any{c.Status, *c.OrgID, c.Challenge})

	id := b.issued("www.example.org")
	served := func() int {
		list, err := b.ServedCertificates(ctx, []string{"www.example.org"})
		require.NoError(t, err)
		return len(list)
	}
	require.Equal(t, 1, served())
	renewal, err := b.BeginOrder(ctx, tenant.CertificateOrder{OrderID: "ord-renewal", CertificateID: id, AccountID: "acc", CSR: []byte{0}, SealedKey: []byte("sealed"), KeyID: "k1"}, nil)
	require.NoError(t, err)
	b.domain("www.example.org", "o1", "lost", false)
	b.sync()
	renewal, err = b.GetCertificateOrder(ctx, renewal.OrderID)
	require.NoError(t, err)
	require.Equal(t, tenant.OrderFailed, renewal.State, "no run would pick it up")
	require.Empty(t, renewal.SealedKey)
	got, err := b.GetCertificate(ctx, id)
	require.NoError(t, err)
	require.Equal(t, []any{tenant.CertificateActive, false, (*time.Time)(nil)}, []any{got.Status, got.Renews, got.DueAt})
	require.Equal(t, 1, served())

	// Another org shows that it owns it.
	b.do(`UPDATE routes SET org_id = 'o2'`)
	b.domain("www.example.org", "o2", "verified", true)
	b.sync()
	got, err = b.GetCertificate(ctx, id)
	require.NoError(t, err)
	require.Equal(t, []any{true, prego.OrgID("o2")}, []any{got.Renews, *got.OrgID})
	require.NotNil(t, got.DueAt)

	b.do(`UPDATE domains SET deleted_at = now()`)
	b.sync()
	got, err = b.GetCertificate(ctx, id)
	require.NoError(t, err)
	require.Equal(t, tenant.CertificateRetired, got.Status)
	require.Zero(t, served())
	var keys int
	require.NoError(t, b.pool.QueryRow(ctx, `SELECT count(*) FROM certificates WHERE sealed_key IS NOT NULL`).Scan(&keys))
	require.Zero(t, keys)

	b.do(`UPDATE domains SET deleted_at = NULL WHERE org_id = 'o2'`)
	b.sync()
	got, err = b.GetCertificate(ctx, id)
	require.NoError(t, err)
	require.Equal(t, tenant.CertificatePending, got.Status, "wanted again")
}

// TestNoOrderOutlivesItsCertificate: none is begun for a retired one, and one that was begun while the sweep waited ends.
func TestNoOrderOutlivesItsCertificate(t *testing.T) {
	t.Parallel()
	b := certificatesIn(t)
	ctx := t.Context()
	b.do(`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app', 'o1', 'a', 'a')`)
	b.do(`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, policy, storage_quota_gb, created_by, state, expected_users, request_hash)
		VALUES ('t1', 't1', 'o1', 'eu', 'starter', 'shared', 10, 'a', 'active', 1, '\x00')`)
	b.domain("www.example.org", "o1", "verified", true)
	b.do(`UPDATE domains SET tenant_id = 't1'`)
	require.Positive(t, b.sync())
	id := tenant.CertificateID([]string{"www.example.org"})
	b.do(`UPDATE domains SET deleted_at = now()`)

	tx, err := b.pool.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(ctx, `SELECT FROM certificates WHERE certificate_id = $1 FOR UPDATE`, id)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, sqlIntendOrder, "ord-1", id, "acc", "", []byte{0}, []byte("sealed"), "k1")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := b.SyncCertificateNames(ctx, 100)
		done <- err
	}()
	require.Eventually(t, func() bool {
		return count(t, b.Store, `pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
	}, time.Minute, 10*time.Millisecond)
	require.NoError(t, tx.Commit(ctx))
	require.NoError(t, <-done)
	order, err := b.GetCertificateOrder(ctx, "ord-1")
	require.NoError(t, err)
	require.Equal(t, prego.Reason("certificate_gone"), order.Reason)

	_, err = b.BeginOrder(ctx, tenant.CertificateOrder{OrderID: "ord-2", CertificateID: id, AccountID: "acc", CSR: []byte{0}}, nil)
	require.Equal(t, prego.CodeCertificateNotFound, prego.CodeOf(err))
}

// TestADeletedDomainEndsItsOrder: the next look of the run that proves the name reports it, edges serve no answer
// anymore, and TXT records are removed without waiting for the run.
func TestADeletedDomainEndsItsOrder(t *testing.T) {
	t.Parallel()
	b := certificatesIn(t)
	ctx := t.Context()
	b.do(`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, policy, storage_quota_gb, created_by, state, expected_users, request_hash)
		VALUES ('t1', 't1', 'o1', 'eu', 'starter', 'shared', 10, 'a', 'active', 1, '\x00')`)
	for name, kind := range map[string]string{"www.example.org": "http-01", "dns.example.org": "dns-01"} {
		b.domain(name, "o1", "verified", true)
		b.do(`UPDATE domains SET tenant_id = 't1'`)
		require.Positive(t, b.sync())
		id := tenant.CertificateID([]string{name})
		o, err := b.BeginOrder(ctx, tenant.CertificateOrder{
			OrderID: "ord-" + kind, CertificateID: id, AccountID: "acc", CSR: []byte{0}, SealedKey: []byte("sealed"), KeyID: "k1",
		}, nil)
		require.NoError(t, err)
		o.State = tenant.OrderPending
		require.NoError(t, b.OrderPlaced(ctx, o, []tenant.CertificateChallenge{
			{AuthzURL: "a", URL: "u", Kind: tenant.ChallengeKind(kind), Name: name, Token: "token", Answer: "answer"},
		}))
		live, err := b.LiveChallenges(ctx, o.OrderID)
		require.NoError(t, err)
		require.Len(t, live, 1)
	}
	served, err := b.ServedChallenges(ctx)
	require.NoError(t, err)
	require.Len(t, served, 1)

	for _, name := range []string{"www.example.org", "dns.example.org"} {
		require.NoError(t, b.DeleteDomain(impact.By(ctx, "a"), prego.DomainID("dom-"+name+"o1"), "a"))
	}
	require.Positive(t, b.sync())
	for _, kind := range []string{"http-01", "dns-01"} {
		_, err = b.LiveChallenges(ctx, "ord-"+kind)
		require.Equal(t, prego.CodeCertificateNotFound, prego.CodeOf(err), "%s: %v", kind, err)
	}
	served, err = b.ServedChallenges(ctx)
	require.NoError(t, err)
	require.Empty(t, served)
	now := time.Now()
	needs, err := b.CertificatesNeedSweep(ctx, now, nil)
	require.NoError(t, err)
	require.True(t, needs)
	due, err := b.CertificatesDue(ctx, now, 10)
	require.NoError(t, err)
	require.Equal(t, []prego.CertificateID{tenant.CertificateID([]string{"dns.example.org"})}, due, "a TXT record is left")
}

// TestServedCertificates by name and by the wildcard above it; an ended certificate is not served.
func TestServedCertificates(t *testing.T) {
	t.Parallel()
	b := certificatesIn(t)
	ctx := t.Context()
	_, err := b.WantCertificates(ctx, []tenant.CertificateWant{tenant.SiteCertificate("sites.example.com"), tenant.HostCertificate("a.sites.example.com", nil, nil)}, "a")
	require.NoError(t, err)
	n, err := b.WantCertificates(ctx, []tenant.CertificateWant{tenant.SiteCertificate("sites.example.com")}, "a")
	require.NoError(t, err)
	require.Zero(t, n)
	wild := b.issued("*.sites.example.com")
	names := func(hosts ...string) (out []prego.CertificateID) {
		list, err := b.ServedCertificates(ctx, hosts)
		require.NoError(t, err)
		for _, c := range list {
			out = append(out, c.CertificateID)
		}
		return out
	}
	require.Equal(t, []prego.CertificateID{wild}, names("x.sites.example.com", "y.sites.example.com", "other.example.com"))
	require.Empty(t, names("x.y.sites.example.com"), "a wildcard is for one label")
	c, err := b.CertificateFor(ctx, "a.sites.example.com")
	require.NoError(t, err)
	require.Equal(t, tenant.CertificateID([]string{"a.sites.example.com"}), c.CertificateID, "the exact name first")
	b.do(`UPDATE certificates SET not_after = now()`)
	require.Empty(t, names("x.sites.example.com"))
}

// TestBudgetIsTakenWhole: racers never take more than there is, and a racer that can't take from all buckets takes
// from none.
func TestBudgetIsTakenWhole(t *testing.T) {
	t.Parallel()
	b := certificatesIn(t)
	limits := tenant.IssueLimits{Orders: tenant.IssueLimit{Most: 100, Per: time.Hour}, Domain: tenant.IssueLimit{Most: 5, Per: 7 * 24 * time.Hour}}
	const racers = 16
	var wg sync.WaitGroup
	var mu sync.Mutex
	took, refused := 0, 0
	for i := range racers {
		name := fmt.Sprintf("n%d.example.org", i)
		_, err := b.WantCertificates(t.Context(), []tenant.CertificateWant{tenant.HostCertificate(name, nil, nil)}, "a")
		require.NoError(t, err)
		wg.Go(func() {
			_, err := b.BeginOrder(context.Background(), tenant.CertificateOrder{
				OrderID: fmt.Sprint("ord-", i), CertificateID: tenant.CertificateID([]string{name}), AccountID: "acc", CSR: []byte{0}, SealedKey: []byte{0}, KeyID: "k",
			}, limits.Charges("https://ca.example", "1", []string{name}, false))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				took++
				return
			}
			refused++
			var e *tenant.IssueError
			if !errors.As(err, &e) || e.Class != tenant.IssueBudget || e.RetryAfter < 30*time.Hour {
				t.Errorf("%v", err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, []int{5, racers - 5}, []int{took, refused})
	var left float64
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT tokens FROM acme_budgets WHERE bucket = $1`, tenant.OrderBucket("https://ca.example", "1")).Scan(&left))
	require.InDelta(t, 95, left, 0.5, "a refusal by the domain's bucket takes no order")
}

// TestIssueFailureCountsOnce: the step may run twice, and a certificate whose renewal was requested since is not delayed.
func TestIssueFailureCountsOnce(t *testing.T) {
	t.Parallel()
	b := certificatesIn(t)
	_, err := b.WantCertificates(t.Context(), []tenant.CertificateWant{tenant.HostCertificate("www.example.org", nil, nil)}, "a")
	require.NoError(t, err)
	id := tenant.CertificateID([]string{"www.example.org"})
	f := tenant.IssueFailure{CertificateID: id, Reason: "r", Message: "m", Again: time.Hour, Counted: &tenant.IssueCharge{Bucket: "b", Limit: tenant.IssueLimit{Most: 5, Per: time.Hour}}}
	for i, want := range []bool{true, false} {
		recorded, err := b.IssueFailed(t.Context(), f)
		require.NoError(t, err)
		require.Equal(t, want, recorded, i)
	}
	c, err := b.GetCertificate(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, []any{1, tenant.CertificateFailed}, []any{c.Failures, c.Status})
	var left float64
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT tokens FROM acme_budgets WHERE bucket = 'b'`).Scan(&left))
	require.InDelta(t, 4, left, 0.1)
	_, err = b.RenewCertificate(t.Context(), id)
	require.NoError(t, err)
	f.Failures = 1
	recorded, err := b.IssueFailed(t.Context(), f)
	require.NoError(t, err)
	require.False(t, recorded)
	_, err = b.RenewCertificate(t.Context(), "crt-x")
	require.Equal(t, prego.CodeCertificateNotFound, prego.CodeOf(err))
}

// TestChangedNameIsCheckedAgain: a noted name that changes again is checked after the change, not right before.
func TestChangedNameIsCheckedAgain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := certificatesIn(t)
	b.domain("shop.example.org", "o1", "verified", false) // it is noted
	owner := prego.OrgID("o1")
	want := tenant.HostCertificate("shop.example.org", &owner, nil)
	b.do(sqlWantCertificate, tenant.CertificateID(want.Names), want.Names, want.Challenge, want.OrgID, want.TenantID, "test")
	require.NoError(t, b.inTx(ctx, "test", func(tx *txn) error {
		does(t, `UPDATE domains SET status = 'lost'`)(tx)
		b.sync() // sees it as it was before
		return nil
	}))
	b.sync()
	require.Equal(t, 1, count(t, b.Store, `certificates WHERE NOT renews`))
}
