package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/store"
)

// replicas are limiters of several processes on one database, which counts their statements.
type replicas struct {
	*store.Store
	pool       *pgxpool.Pool
	all        []*callerLimiter
	statements atomic.Int64
	fails      atomic.Pointer[error]
}

// hardlyAny is a rate without a refill during a test.
const hardlyAny = 0.001

func replicasOf(t testing.TB, n int, perSecond float64, burst int) *replicas {
	t.Helper()
	pool := pgtest.Pool(t)
	r := &replicas{Store: store.New(pool), pool: pool}
	for range n {
		l := newCallerLimiter(perSecond, burst)
		l.lease = func(ctx context.Context, window time.Duration, wanted []store.RateWanted) ([]store.RateLease, error) {
			r.statements.Add(1)
			if err := r.fails.Load(); err != nil {
				return nil, *err
			}
			return r.LeaseRates(ctx, window, wanted)
		}
		r.all = append(r.all, l)
	}
	return r
}

func (r *replicas) exec(t testing.TB, sql string) {
	t.Helper()
	_, err := r.pool.Exec(t.Context(), sql)
	require.NoError(t, err)
}

func tokenOf(id string) []budget { return []budget{{policy: "token", key: id, times: 1}} }

// sent sends until a request is refused, at most so many.
func sent(t testing.TB, l *callerLimiter, of []budget, most int) (n int) {
	t.Helper()
	for ; n < most; n++ {
		if _, err := l.allow(t.Context(), of); err != nil {
			require.Equal(t, prego.CodeRateLimited, prego.CodeOf(err), "%v", err)
			return n
		}
	}
	return n
}

// TestReplicasShareARate: all of them together accept what one would; a process that gets all requests of a caller may
// spend nearly all of it.
func TestReplicasShareARate(t *testing.T) {
	t.Parallel()
	r := replicasOf(t, 3, hardlyAny, 100)
	require.Equal(t, 1, sent(t, r.all[0], tokenOf("a"), 1))
	most := sent(t, r.all[1], tokenOf("a"), 1000)
	require.Equal(t, 95, most, "all but the slice that the first holds")
	require.Zero(t, sent(t, r.all[2], tokenOf("a"), 1))
	require.Equal(t, 4, sent(t, r.all[0], tokenOf("a"), 1000))
	for _, l := range r.all {
		require.Zero(t, sent(t, l, tokenOf("a"), 1))
		require.Equal(t, 1, sent(t, l, tokenOf("b"), 1), "another caller has its own")
	}

	// In turns, as a load balancer does it, and concurrently.
	n := 0
	for range 200 {
		for _, l := range r.all {
			n += sent(t, l, tokenOf("c"), 1)
		}
	}
	require.Equal(t, 100, n)
	var all atomic.Int64
	var wait sync.WaitGroup
	for i := range 60 {
		wait.Go(func() { all.Add(int64(sent(t, r.all[i%3], tokenOf("d"), 20))) })
	}
	wait.Wait()
	require.EqualValues(t, 100, all.Load())
}

// TestRequestsOfAllKindsShareARate: a token's, its principal's and its org's, at two replicas.
func TestRequestsOfAllKindsShareARate(t *testing.T) {
	t.Parallel()
	r := replicasOf(t, 2, hardlyAny, 20)
	of := func(principal, credential string) []budget {
		return budgetsOf(access.Principal{
			PrincipalID: principal, CredentialID: credential,
			Grants: []access.Grant{{Role: "developer", OrgID: "acme", Orgs: []prego.OrgID{"acme"}}},
		})
	}
	total := 0
	for i := range 10 {
		for _, l := range r.all {
			n := sent(t, l, of(fmt.Sprint("p-", i/3), fmt.Sprint("c-", i)), 100)
			require.LessOrEqual(t, n, 20)
			total += n
		}
	}
	require.Equal(t, 80, total, "the org's")
}

// TestLeasesAreSeldom: a busy caller's grow, an idle one's are none, and a slow one's last.
func TestLeasesAreSeldom(t *testing.T) {
	t.Parallel()
	r := replicasOf(t, 1, 1000, 2000)
	require.Equal(t, 500, sent(t, r.all[0], tokenOf("busy"), 500))
	require.LessOrEqual(t, r.statements.Load(), int64(3), "100, 200 and 400 requests")
	before := r.statements.Load()
	require.Equal(t, 50, sent(t, r.all[0], tokenOf("slow"), 50))
	require.Equal(t, before+1, r.statements.Load())
	var rows int
	require.NoError(t, r.pool.QueryRow(t.Context(), `SELECT count(*) FROM rate_budgets`).Scan(&rows))
	require.Equal(t, 2, rows)

	// A refused caller causes at most ten statements a second.
	r = replicasOf(t, 1, hardlyAny, 1)
	require.Equal(t, 1, sent(t, r.all[0], tokenOf("a"), 2))
	asked := r.statements.Load()
	for range 100 {
		require.Zero(t, sent(t, r.all[0], tokenOf("a"), 1))
	}
	require.LessOrEqual(t, r.statements.Load(), asked+1)
}

// TestARateIsThereAgain: as fast as stated, and no more than a burst; a lease that was not spent in time is lost.
func TestARateIsThereAgain(t *testing.T) {
	t.Parallel()
	r := replicasOf(t, 1, 1, 100)
	l := r.all[0]
	require.Equal(t, 100, sent(t, l, tokenOf("a"), 1000))
	later := func(d time.Duration) {
		r.exec(t, fmt.Sprintf(`UPDATE rate_budgets SET at = at - interval '%d milliseconds'`, d.Milliseconds()))
		for _, e := range l.byKey {
			of := e.Value.(*callerRate)
			of.at, of.leasedAt, of.nextAt = of.at.Add(-d), of.leasedAt.Add(-d), of.nextAt.Add(-d)
		}
	}
	later(10 * time.Second)
	require.InDelta(t, 10, sent(t, l, tokenOf("a"), 1000), 1)
	later(time.Hour)
	require.InDelta(t, 100, sent(t, l, tokenOf("a"), 1000), 1)
	require.Equal(t, 1, sent(t, l, tokenOf("b"), 1))
	held := l.of(tokenOf("b")[0]).leased
	require.EqualValues(t, 4, held)
	later(sliceHeld + time.Second)
	require.Equal(t, 1, sent(t, l, tokenOf("b"), 1))
	require.LessOrEqual(t, l.of(tokenOf("b")[0]).leased, held, "the old one is not spent any more")
}

// TestTheAnswerStatesWhatIsLeft over all replicas, as far as this one knows.
func TestTheAnswerStatesWhatIsLeft(t *testing.T) {
	t.Parallel()
	r := replicasOf(t, 2, 1, 100)
	left := func(l *callerLimiter) allowance {
		a, err := l.allow(t.Context(), tokenOf("a"))
		require.NoError(t, err)
		return a
	}
	a := left(r.all[0])
	require.Equal(t, []any{"token", 99}, []any{a.policy, a.left})
	require.InDelta(t, 1, a.reset.Seconds(), 1)
	require.Equal(t, 30, sent(t, r.all[1], tokenOf("a"), 30))
	for range 5 { // it asks again when its slice is spent
		a = left(r.all[0])
	}
	require.LessOrEqual(t, a.left, 100-30-6+2)
	require.Positive(t, sent(t, r.all[0], tokenOf("a"), 1000))
	a, err := r.all[0].allow(t.Context(), tokenOf("a"))
	require.Equal(t, prego.CodeRateLimited, prego.CodeOf(err), "%v", err)
	require.Zero(t, a.left)
	require.LessOrEqual(t, a.reset, 1100*time.Millisecond)
	require.Positive(t, a.reset)
}

// TestProcessesCountAloneWithoutLeases, and networks of unknown callers always: they make no statement.
func TestProcessesCountAloneWithoutLeases(t *testing.T) {
	t.Parallel()
	r := replicasOf(t, 2, hardlyAny, 100)
	require.Equal(t, 100, sent(t, r.all[0], budgetOf("address", httptest.NewRequest(http.MethodGet, "/", nil)), 1000))
	require.Zero(t, r.statements.Load())
	away := errors.New("the database is away")
	r.fails.Store(&away)
	for _, l := range r.all {
		require.Equal(t, 100, sent(t, l, tokenOf("a"), 1000))
	}
	require.EqualValues(t, 2, r.statements.Load(), "no request waits again for a second")
	r.fails.Store(nil)
	for _, l := range r.all {
		l.of(tokenOf("a")[0]).aloneUntil = time.Time{}
	}
	require.Equal(t, 100, sent(t, r.all[0], tokenOf("a"), 1000)+sent(t, r.all[1], tokenOf("a"), 1000))

	// A request that ends while it waits takes nothing.
	wait := make(chan struct{})
	lease := r.all[0].lease
	r.all[0].lease = func(ctx context.Context, window time.Duration, wanted []store.RateWanted) ([]store.RateLease, error) {
		<-wait
		return lease(ctx, window, wanted)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.all[0].allow(ctx, tokenOf("b"))
	require.ErrorIs(t, err, context.Canceled)
	close(wait)
	require.Equal(t, 100, sent(t, r.all[0], tokenOf("b"), 1000))
}

// BenchmarkRate is the cost of a request that is counted against three budgets: in this process, with leases, and if each
// request made a statement.
func BenchmarkRate(b *testing.B) {
	of := budgetsOf(access.Principal{
		PrincipalID: "p", CredentialID: "c",
		Grants: []access.Grant{{Role: "developer", OrgID: "acme", Orgs: []prego.OrgID{"acme"}}},
	})
	const perSecond, burst = 1e7, 2e7
	shared := replicasOf(b, 1, perSecond, burst)
	for name, l := range map[string]*callerLimiter{"alone": newCallerLimiter(perSecond, burst), "leased": shared.all[0]} {
		b.Run(name, func(b *testing.B) {
			shared.statements.Store(0)
			for b.Loop() {
				if _, err := l.allow(b.Context(), of); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(shared.statements.Load())/float64(b.N), "statements/op")
		})
	}
	b.Run("statement", func(b *testing.B) {
		wanted := []store.RateWanted{
			{Budget: "a", Burst: burst, Tokens: 1}, {Budget: "b", Burst: burst, Tokens: 1}, {Budget: "c", Burst: burst, Tokens: 1},
		}
		for b.Loop() {
			if _, err := shared.LeaseRates(b.Context(), 2*time.Second, wanted); err != nil {
				b.Fatal(err)
			}
		}
	})
}
