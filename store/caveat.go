package store

import (
	"context"

	"github.com/prego/prego/access"
	"github.com/prego/prego/ops/impact"
)

// limited compares the impact of the context's change with the caveats of its token, and notes what it spends.
func (t *txn) limited(ctx context.Context) {
	l, c := access.LimitsOf(ctx), impact.Of(ctx)
	if l == nil || c == nil || !c.Computed {
		return
	}
	t.check(l.RefuseImpact(c.Impact))
	t.cents += max(0, c.Impact.MonthlyCents) // what is saved raises no budget: it may have been another's
	t.seconds += access.SecondsDown(c.Impact)
}

// harmless states that a request affects and costs nothing more, such as the repetition of one.
func (t *txn) harmless(ctx context.Context) {
	if c := impact.Of(ctx); c != nil {
		c.Computed = true
	}
}

const sqlSpend = `SELECT caveat, most, spent FROM spend($1, $2, $3)`

// spend ends a transaction of a token with caveats: it counts what the changes spend, and refuses what is more than the
// rest of a budget. A change whose impact was not computed is refused by the worst that its operation may do. The rows
// of budgets are locked last, so that the transactions of a token wait for each other as briefly as possible, and never
// while they hold them for a lock of another kind.
func (t *txn) spend(ctx context.Context) error {
	l, c := access.LimitsOf(ctx), impact.Of(ctx)
	if t.err != nil || l == nil || c == nil {
		return t.err
	}
	if !c.Computed {
		return l.RefuseBound()
	}
	if !l.Budgets() || t.cents == 0 && t.seconds == 0 {
		return nil
	}
	over, err := find[struct {
		Caveat      string
		Most, Spent int64
	}](ctx, t, sqlSpend, l.CredentialID, t.cents, t.seconds)
	if err != nil || over == nil {
		return err
	}
	wanted := t.cents
	if over.Caveat == access.CaveatSecondsDown {
		wanted = t.seconds
	}
	return l.Refuse(access.Overspent(over.Caveat, wanted, over.Spent, over.Most))
}
