package store

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/pgtest"
)

func newBudget(t *testing.T, pool *pgxpool.Pool, capacity, refillPerSecond float64) *Budget {
	t.Helper()
	b, err := NewBudget(context.Background(), pool, "p", capacity, refillPerSecond)
	require.NoError(t, err)
	return b
}

// drain takes what a lane gives until it has to wait. The bucket must refill slowly.
func drain(b *Budget, lane string) (n int) {
	take := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		return b.Acquire(ctx, lane)
	}
	for take() == nil {
		n++
	}
	return n
}

// set makes the bucket hold tokens as of some time ago.
func set(t *testing.T, pool *pgxpool.Pool, tokens float64, ago time.Duration) {
	t.Helper()
	_, err := pool.Exec(context.Background(),
		`UPDATE provider_budgets SET tokens = $1, refilled_at = clock_timestamp() - make_interval(secs => $2)`, tokens, ago.Seconds())
	require.NoError(t, err)
}

// contend lets n callers of each budget take from a lane until ctx ends.
func contend(ctx context.Context, n int, lane string, budgets ...*Budget) (granted *atomic.Int64, done *sync.WaitGroup) {
	granted, done = new(atomic.Int64), new(sync.WaitGroup)
	for _, b := range budgets {
		for range n {
			done.Add(1)
			go func() {
				defer done.Done()
				for b.Acquire(ctx, lane) == nil {
					granted.Add(1)
				}
			}()
		}
	}
	return granted, done
}

func TestBudgetIsNeverOverdrawn(t *testing.T) {
	t.Parallel()
	b := newBudget(t, pgtest.Pool(t), 100, 0.001)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	granted, done := contend(ctx, 16, "delete", b)
	done.Wait()
	require.EqualValues(t, 100, granted.Load())
}

// TestNaiveBudgetIsOverdrawn is the same as two statements, which the test above
// would catch: every racer reads before any of them writes.
func TestNaiveBudgetIsOverdrawn(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	newBudget(t, pool, 100, 0.001)
	set(t, pool, 1, 0)
	var read, done sync.WaitGroup
	var granted atomic.Int64
	for range 4 {
		read.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			var tokens float64
			err := pool.QueryRow(ctx, `SELECT tokens FROM provider_budgets`).Scan(&tokens)
			read.Done()
			read.Wait()
			if err == nil && tokens >= 1 {
				if _, err := pool.Exec(ctx, `UPDATE provider_budgets SET tokens = $1`, tokens-1); err == nil {
					granted.Add(1)
				}
			}
		}()
	}
	done.Wait()
	require.Greater(t, granted.Load(), int64(1), "one token was there")
}

// TestBudgetIsSharedByWorkers has four processes take from one bucket while it is
// refilled: no more than there was, and nearly all of it.
func TestBudgetIsSharedByWorkers(t *testing.T) {
	t.Parallel()
	const capacity, refill = 40, 100
	url := pgtest.URL(t)
	var workers []*Budget
	var pool *pgxpool.Pool
	for range 4 {
		var err error
		pool, err = pgxpool.New(context.Background(), url)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		workers = append(workers, newBudget(t, pool, capacity, refill))
	}
	began := time.Now()
	set(t, pool, 0, 0)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	granted, done := contend(ctx, 6, "delete", workers...)
	done.Wait()
	earned := time.Since(began).Seconds() * refill
	t.Logf("%d granted, %.0f earned", granted.Load(), earned)
	require.LessOrEqual(t, float64(granted.Load()), earned+2)
	require.GreaterOrEqual(t, float64(granted.Load()), earned/2, "little is lost to contention")
}

func TestBudgetLanesKeepReserves(t *testing.T) {
	t.Parallel()
	b := newBudget(t, pgtest.Pool(t), 100, 0.001)
	require.Equal(t, 70, drain(b, "poll"), "polling leaves 30 %")
	require.Equal(t, 20, drain(b, "create"), "creating leaves 10 %")
	require.Equal(t, 10, drain(b, "delete"), "deleting uses the rest")
	require.ErrorContains(t, b.Acquire(context.Background(), "browse"), `unknown lane "browse"`)
}

// TestUrgentLanesGoFirst: while deletions take all that is refilled, creates and polls wait, however many they are; and
// they continue afterwards. The bucket has 20 tokens, of which creates leave 2, and polls 6.
func TestUrgentLanesGoFirst(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	b := newBudget(t, pool, 20, 0.0001)
	set(t, pool, 0, 0)
	lane := func(n int, name string) (granted *atomic.Int64, stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		granted, done := contend(ctx, n, name, b)
		stop = func() { cancel(); done.Wait() }
		t.Cleanup(stop)
		return granted, stop
	}
	// A statement may take a token after its caller has gone: there are some again each time.
	refill := func(tokens float64, granted *atomic.Int64, n int64) {
		t.Helper()
		require.Eventually(t, func() bool { set(t, pool, tokens, 0); return granted.Load() >= n }, 20*time.Second, 20*time.Millisecond)
	}
	deleted, stopDeleting := lane(4, "delete")
	created, stopCreating := lane(8, "create")
	polled, _ := lane(16, "poll")
	refill(2, deleted, 8)
	require.Zero(t, created.Load())
	stopDeleting()
	refill(6, created, 8)
	require.Zero(t, polled.Load(), "creates go before polls")
	stopCreating()
	refill(8, polled, 2)
}

func TestBudgetObeysTheProvider(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := newBudget(t, pgtest.Pool(t), 3600, 1)
	require.NoError(t, b.Observe(ctx, 3600, 5))
	require.NoError(t, b.Observe(ctx, 3600, 3000), "an older answer gives nothing back")
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, b.Acquire(short, "poll"), context.DeadlineExceeded)
	require.NoError(t, b.Acquire(ctx, "delete"))

	require.NoError(t, b.Observe(ctx, 36000, 20000), "a new limit is learnt")
	require.NoError(t, b.Acquire(ctx, "poll"))
	require.NoError(t, b.Block(ctx, 400*time.Millisecond))
	blocked := time.Now()
	require.NoError(t, b.Acquire(ctx, "delete"))
	require.GreaterOrEqual(t, time.Since(blocked), 350*time.Millisecond)
}

// TestObserveCountsTheRefillOnce: the provider's remaining count includes what was
// refilled until then, however long no tokens were taken.
func TestObserveCountsTheRefillOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	for _, tokens := range []float64{30, 3} {
		b := newBudget(t, pool, 36, 0.01) // another process, which has seen no row yet
		set(t, pool, tokens, time.Hour)
		require.NoError(t, b.Observe(ctx, 36, 5))
		require.Equal(t, 5, drain(b, "delete"), "from %v", tokens)
	}
}

func TestObserveIgnoresNonsense(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := newBudget(t, pgtest.Pool(t), 10, 0.001)
	require.NoError(t, b.Observe(ctx, 0, 0))
	require.NoError(t, b.Observe(ctx, -3600, 5000))
	require.Equal(t, 10, drain(b, "delete"))
}

// TestObserversRace: many concurrent answers, in any order, leave the least of their
// counts.
func TestObserversRace(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := newBudget(t, pgtest.Pool(t), 36, 0.01)
	var wg sync.WaitGroup
	errs := make([]error, 32)
	for i := range errs {
		wg.Add(1)
		go func() { defer wg.Done(); errs[i] = b.Observe(ctx, 36, 4+i) }()
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	n := drain(b, "delete")
	require.GreaterOrEqual(t, n, 4)
	require.LessOrEqual(t, n, 5, "the least was 4; one may be under way")
}

func TestBlockIsNeverShortened(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	b, other := newBudget(t, pool, 100, 1), newBudget(t, pool, 100, 1)
	began := time.Now()
	require.NoError(t, b.Block(ctx, 500*time.Millisecond))
	require.NoError(t, other.Block(ctx, 10*time.Millisecond))
	require.NoError(t, other.Block(ctx, -time.Hour))
	var wg sync.WaitGroup
	waited := make([]time.Duration, 3)
	for i, lane := range []string{"delete", "create", "poll"} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if other.Acquire(ctx, lane) == nil {
				waited[i] = time.Since(began)
			}
		}()
	}
	wg.Wait()
	for _, w := range waited {
		require.GreaterOrEqual(t, w, 450*time.Millisecond, "a block is for every worker and lane")
	}
}

func TestBudgetOutlivesItsWorkers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	require.Equal(t, 10, drain(newBudget(t, pool, 10, 0.001), "delete"))
	require.Zero(t, drain(newBudget(t, pool, 10, 0.001), "delete"), "a restart fills nothing")
	other, err := NewBudget(context.Background(), pool, "q", 5, 0.001)
	require.NoError(t, err)
	require.Equal(t, 5, drain(other, "delete"), "each project has its own")
}

func TestWaitingForBudgetCostsNothing(t *testing.T) {
	t.Parallel()
	b := newBudget(t, pgtest.Pool(t), 100, 0.001)
	require.Equal(t, 70, drain(b, "poll"))
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	granted, done := contend(ctx, 16, "poll", b)
	done.Wait()
	require.Zero(t, granted.Load())
	require.Equal(t, 30, drain(b, "delete"), "who gave up took nothing")
}

func TestBudgetSurvivesOddClocks(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	b := newBudget(t, pool, 10, 0.01)
	set(t, pool, 2, -time.Hour)
	require.Equal(t, 2, drain(b, "delete"), "a clock that was put back takes nothing away")
	set(t, pool, 2, 10*365*24*time.Hour)
	require.Equal(t, 10, drain(b, "delete"), "it is never more than full")
	_, err := pool.Exec(ctx, `DELETE FROM provider_budgets`)
	require.NoError(t, err)
	require.ErrorContains(t, b.Acquire(ctx, "delete"), "request budget")
}
