package store

import (
	"context"
	"time"

	"github.com/prego/prego/tenant"
)

// A new bucket is full, and follows changes of its limit.
const sqlTouchIssueBucket = `
INSERT INTO acme_budgets AS b (bucket, capacity, refill_per_s, tokens) VALUES ($1, $2, $3, $2)
ON CONFLICT (bucket) DO UPDATE SET capacity = $2, refill_per_s = $3, refilled_at = clock_timestamp(),
    tokens = LEAST($2, b.tokens + b.refill_per_s * GREATEST(0, EXTRACT(EPOCH FROM clock_timestamp() - b.refilled_at)))
RETURNING tokens, COALESCE(GREATEST(0, EXTRACT(EPOCH FROM blocked_until - clock_timestamp())), 0)::float8`

const sqlTakeIssue = `UPDATE acme_budgets SET tokens = GREATEST(0, tokens - $2) WHERE bucket = $1`

// takeIssue takes what an order costs out of all its buckets, or out of none. Then it returns how long until it can,
// and the bucket that takes longest. All callers lock buckets in the order of charges.
func takeIssue(ctx context.Context, tx *txn, charges []tenant.IssueCharge) (wait time.Duration, bucket string) {
	for _, c := range charges {
		var tokens, blocked float64
		tx.check(tx.QueryRow(ctx, sqlTouchIssueBucket, c.Bucket, float64(c.Limit.Most), c.Limit.PerSecond()).Scan(&tokens, &blocked))
		seconds := blocked
		if lacks := max(c.Take, c.Keep) - tokens; lacks > 1e-9 {
			seconds = max(seconds, lacks/c.Limit.PerSecond())
		}
		if d := time.Duration(seconds * float64(time.Second)); d > wait {
			wait, bucket = d, c.Bucket
		}
	}
	if wait > 0 {
		return wait, bucket
	}
	for _, c := range charges {
		tx.run(ctx, sqlTakeIssue, c.Bucket, c.Take)
	}
	return 0, ""
}

const sqlBlockIssue = `
INSERT INTO acme_budgets AS b (bucket, capacity, refill_per_s, tokens, blocked_until) VALUES ($1, $2, $3, $2, now() + make_interval(secs => $4))
ON CONFLICT (bucket) DO UPDATE SET blocked_until = GREATEST(b.blocked_until, now() + make_interval(secs => $4))`
