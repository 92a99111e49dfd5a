package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
)

const sqlTakeQuota = `SELECT dimension, limit_value AS "limit", current_usage, requested_delta FROM take_quota($1, $2, $3, $4, $5)`

// takeQuota takes an org's quota for what a transaction is about to create, or
// refuses it as a *org.QuotaExceeded: the first in the order given. From here to the
// end of the transaction no other transaction changes what the org uses. It is one statement.
func (s *Store) takeQuota(ctx context.Context, tx pgx.Tx, org prego.OrgID, deltas ...quota.Delta) error {
	return s.checkQuota(ctx, tx, org, false, deltas)
}

// takePromised is takeQuota for an allocation that the org was promised already: the
// promises don't count, only the usage.
func (s *Store) takePromised(ctx context.Context, tx pgx.Tx, org prego.OrgID, deltas ...quota.Delta) error {
	return s.checkQuota(ctx, tx, org, true, deltas)
}

func (s *Store) checkQuota(ctx context.Context, tx pgx.Tx, orgID prego.OrgID, promised bool, deltas []quota.Delta) error {
	names, by := make([]string, len(deltas)), make([]float64, len(deltas))
	for i, d := range deltas {
		names[i], by[i] = string(d.Dimension), d.By
	}
	over, err := find[org.QuotaExceeded](ctx, tx, sqlTakeQuota, orgID, names, by, s.tierLimits, promised)
	if err != nil || over == nil {
		return err
	}
	return over
}
