package store

import (
	"context"
	"time"
)

// RateWanted is the part of a budget of requests that a process of the API wants.
type RateWanted struct {
	Budget string
	Burst  float64 // the most that the budget holds
	Tokens float64 // requests
}

// RateLease is the part that it got.
type RateLease struct {
	Budget string
	Tokens float64
	Rest   float64 // what is left in the budget
}

// A budget is full again $4 seconds after it was empty. Its row is inserted full; the wanted tokens stand in
// excluded.leased, and what they leave of a full budget in excluded.rest. Rows are locked in the order of their names.
const (
	rateBurst = `(excluded.rest + excluded.leased)`
	rateNow   = `LEAST(` + rateBurst + `, b.rest + ` + rateBurst +
		` * GREATEST(0, extract(epoch FROM excluded.at - b.at)::float8) / $4)`
	rateLeased    = `GREATEST(0, LEAST(excluded.leased, floor(` + rateNow + `)))`
	sqlLeaseRates = `
INSERT INTO rate_budgets AS b (budget, rest, leased, at)
SELECT w.budget, w.burst - w.tokens, w.tokens, clock_timestamp()
FROM unnest($1::text[], $2::float8[], $3::float8[]) AS w (budget, burst, tokens) ORDER BY w.budget
ON CONFLICT (budget) DO UPDATE SET rest = ` + rateNow + ` - ` + rateLeased + `, leased = ` + rateLeased + `,
    at = GREATEST(b.at, excluded.at)
RETURNING b.budget, b.leased AS tokens, b.rest`
)

// LeaseRates takes from budgets of requests as much of what is wanted as they have, in whole tokens. Each is wanted
// once, and is full again a window after it was empty. A process that ends loses what it has leased; it is not given
// back.
func (s *Store) LeaseRates(ctx context.Context, window time.Duration, wanted []RateWanted) ([]RateLease, error) {
	budgets, bursts, tokens := make([]string, len(wanted)), make([]float64, len(wanted)), make([]float64, len(wanted))
	for i, w := range wanted {
		budgets[i], bursts[i], tokens[i] = w.Budget, w.Burst, w.Tokens
	}
	return collect[RateLease](ctx, s, "rates of callers", sqlLeaseRates, budgets, bursts, tokens, window.Seconds())
}
