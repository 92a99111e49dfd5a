package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Budget is a provider project's request budget, shared by every worker: a token
// bucket in one row, refilled by the database's clock.
type Budget struct {
	pool    *pgxpool.Pool
	project string

	mu   sync.Mutex
	last bucket // as this process last saw it
}

// bucket is the row's content.
type bucket struct {
	tokens, capacity, refill float64
	at                       time.Time
}

// most is how many tokens there can be now: others only take some.
func (b bucket) most(now time.Time) float64 {
	return min(b.capacity, b.tokens+b.refill*now.Sub(b.at).Seconds())
}

// reserves are the shares of the bucket that a lane leaves to the more urgent
// ones: deleting may use all of it.
var reserves = map[string]float64{"delete": 0, "create": 0.1, "poll": 0.3}

const sqlInitBudget = `
INSERT INTO provider_budgets (project, capacity, refill_per_s, tokens) VALUES ($1, $2, $3, $2)
ON CONFLICT (project) DO NOTHING`

// NewBudget creates the bucket unless it is there; capacity in requests.
func NewBudget(ctx context.Context, pool *pgxpool.Pool, project string, capacity, refillPerSecond float64) (*Budget, error) {
	if _, err := pool.Exec(ctx, sqlInitBudget, project, capacity, refillPerSecond); err != nil {
		return nil, fmt.Errorf("request budget: %w", err)
	}
	return &Budget{pool: pool, project: project}, nil
}

// One statement takes a token or returns how long to wait for one. The row is
// written either way, so that the refill is accounted for once.
const sqlAcquire = `
WITH b AS (
    SELECT project, capacity, refill_per_s, blocked_until,
           LEAST(capacity, tokens + refill_per_s * GREATEST(0, EXTRACT(EPOCH FROM clock_timestamp() - refilled_at))) AS level
    FROM provider_budgets WHERE project = $1 FOR UPDATE
), verdict AS (
    SELECT *, (blocked_until IS NULL OR blocked_until <= clock_timestamp()) AND level - 1 >= capacity * $2::float8 AS ok FROM b
), updated AS (
    UPDATE provider_budgets p SET tokens = v.level - CASE WHEN v.ok THEN 1 ELSE 0 END, refilled_at = clock_timestamp()
    FROM verdict v WHERE p.project = v.project
)
SELECT ok, GREATEST(
    COALESCE(EXTRACT(EPOCH FROM blocked_until - clock_timestamp())::float8, 0),
    (capacity * $2::float8 + 1 - level) / refill_per_s, 0.005), level - CASE WHEN ok THEN 1 ELSE 0 END, capacity, refill_per_s
FROM verdict`

// Acquire waits until the lane may send one request.
func (b *Budget) Acquire(ctx context.Context, lane string) error {
	reserve, ok := reserves[lane]
	if !ok {
		return fmt.Errorf("request budget: unknown lane %q", lane)
	}
	for {
		var granted bool
		var seconds float64
		var now bucket
		if err := b.pool.QueryRow(ctx, sqlAcquire, b.project, reserve).Scan(&granted, &seconds, &now.tokens, &now.capacity, &now.refill); err != nil {
			return fmt.Errorf("request budget: %w", err)
		}
		now.at = time.Now()
		b.mu.Lock()
		b.last = now
		b.mu.Unlock()
		if granted {
			return nil
		}
		// Others may be served first: the wait is looked at again at least each second.
		t := time.NewTimer(min(time.Duration(seconds*float64(time.Second)), time.Second))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("request budget: lane %s: %w", lane, ctx.Err())
		}
	}
}

// The provider's remaining count is trusted when it is less than ours:
// others may use the project too. Answers arrive out of order, so it never gives
// tokens back; the refill does that. The capacity follows the provider's limit.
const sqlObserve = `
UPDATE provider_budgets SET
    tokens = $3, refilled_at = clock_timestamp(), refill_per_s = $2::float8 / 3600, capacity = $2
WHERE project = $1 AND (capacity <> $2 OR
    LEAST(capacity, tokens + refill_per_s * GREATEST(0, EXTRACT(EPOCH FROM clock_timestamp() - refilled_at))) > $3 + 1)`

// observed is the share of the limit by which the row may exceed the provider's count
// before it is corrected.
const observed = 0.001

// Observe takes over the provider's rate-limit headers: limit requests per hour,
// remaining of them left. Nothing is written while the row can't be above that by more
// than a thousandth of the limit.
func (b *Budget) Observe(ctx context.Context, limit, remaining int) error {
	if limit <= 0 {
		return nil
	}
	b.mu.Lock()
	last := b.last
	b.mu.Unlock()
	if last.capacity == float64(limit) && last.most(time.Now()) <= float64(remaining)+1+observed*float64(limit) {
		return nil
	}
	if _, err := b.pool.Exec(ctx, sqlObserve, b.project, float64(limit), float64(remaining)); err != nil {
		return fmt.Errorf("request budget: %w", err)
	}
	return nil
}

const sqlBlock = `
UPDATE provider_budgets SET blocked_until = GREATEST(blocked_until, clock_timestamp() + make_interval(secs => $2))
WHERE project = $1`

// Block lets no caller send before d has passed.
func (b *Budget) Block(ctx context.Context, d time.Duration) error {
	if _, err := b.pool.Exec(ctx, sqlBlock, b.project, d.Seconds()); err != nil {
		return fmt.Errorf("request budget: %w", err)
	}
	return nil
}
