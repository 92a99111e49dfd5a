package store

import (
	"context"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
)

const sqlOrgQuotas = `
SELECT l.dimension, l.limit_value AS "limit", l.own AS override, u.used AS usage, u.promised AS reserved, COALESCE(q.reason, '') AS reason, COALESCE(q.updated_by, '') AS updated_by, q.updated_at
FROM unnest($2::text[]) WITH ORDINALITY AS d (dimension, n)
JOIN org_limits($1, $2, $3) l ON l.dimension = d.dimension
JOIN org_used($1, $2) u ON u.dimension = d.dimension
LEFT JOIN org_quotas q ON q.org_id = $1 AND q.dimension = d.dimension
ORDER BY d.n`

// OrgQuotas are an org's limits and usage, of every dimension, or CodeNotFound.
func (s *Store) OrgQuotas(ctx context.Context, org prego.OrgID) ([]org.Quota, error) {
	return s.quotasOf(ctx, s.pool, org, quota.Dimensions())
}

func (s *Store) quotasOf(ctx context.Context, q querier, orgID prego.OrgID, dimensions []quota.Dimension) ([]org.Quota, error) {
	out, err := many[org.Quota](ctx, q, sqlOrgQuotas, orgID, dimensions, s.tierLimits)
	if err != nil {
		return nil, fmt.Errorf("quotas of org %s: %w", orgID, err)
	}
	if len(out) == 0 {
		return nil, noSuchOrg(orgID)
	}
	return out, nil
}

const sqlSetQuota = `
INSERT INTO org_quotas (org_id, dimension, limit_value, reason, updated_by) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (org_id, dimension) DO UPDATE SET limit_value = EXCLUDED.limit_value, reason = EXCLUDED.reason, updated_by = EXCLUDED.updated_by, updated_at = now()`

// SetQuota gives an org its own limit. A limit below present usage takes nothing away;
// it only rejects more. Setting the same limit changes nothing. With match, see
// holdVersion.
func (s *Store) SetQuota(ctx context.Context, orgID prego.OrgID, d quota.Dimension, limit float64, by, reason string, match ...string) (org.Quota, error) {
	return s.changeQuota(ctx, orgID, d, by, reason, func(tx *txn, now org.Quota) (bool, error) {
		tx.check(holdVersion(ctx, tx, match, prego.ReplaceableQuota, orgID, d))
		if now.Override && now.Limit == limit {
			return false, nil
		}
		_, err := tx.Exec(ctx, sqlSetQuota, orgID, d, limit, prego.Redact(reason), by)
		return true, err
	})
}

const sqlUnsetQuota = `DELETE FROM org_quotas WHERE org_id = $1 AND dimension = $2`

// UnsetQuota gives an org the limit of its tier again. Repeated, it changes nothing.
func (s *Store) UnsetQuota(ctx context.Context, orgID prego.OrgID, d quota.Dimension, by, reason string) (org.Quota, error) {
	return s.changeQuota(ctx, orgID, d, by, reason, func(tx *txn, _ org.Quota) (bool, error) {
		tag, err := tx.Exec(ctx, sqlUnsetQuota, orgID, d)
		return tag.RowsAffected() > 0, err
	})
}

// changeQuota changes a limit with the org's row held, so that nothing is taken under the
// old limit once the new one is returned, and records the old and the new value.
func (s *Store) changeQuota(ctx context.Context, orgID prego.OrgID, d quota.Dimension, by, reason string, change func(*txn, org.Quota) (bool, error)) (q org.Quota, err error) {
	err = s.inTx(ctx, string("quota of org "+orgID), func(tx *txn) error {
		tx.check(lockOrg(ctx, tx, orgID))
		before, err := s.quotasOf(ctx, tx, orgID, []quota.Dimension{d})
		if err != nil {
			return err
		}
		q = before[0]
		changed, err := change(tx, q)
		if err != nil || !changed {
			return err
		}
		after, err := s.quotasOf(ctx, tx, orgID, []quota.Dimension{d})
		if err != nil {
			return err
		}
		q = after[0]
		return orgEvent(ctx, tx, org.Event{OrgID: orgID, Type: "org.quota_set", Subject: string(d), Actor: by, Reason: reason}, map[string]any{
			"dimension": d, "old": before[0].Limit, "new": q.Limit, "old_source": source(before[0]), "new_source": source(q),
		})
	})
	return q, err
}

func source(q org.Quota) string {
	if q.Override {
		return "override"
	}
	return "tier"
}

var orgEvents = Listing[org.Event]{
	what: "org events", from: `SELECT event_id, org_id, at, type, subject, actor, reason, payload FROM org_events`,
	order:   "-at",
	filters: map[string]string{"org_id": "org_id", "subject": "subject", "actor": "actor", "type": "type ^@ $each"},
	sorts:   map[string]string{"at": "event_id"},
	id:      "event_id",
}

// ListOrgEvents is a page of what happened to orgs; a type is the beginning of one. A caller that follows
// them, oldest first, gets CodeEventsGone if some after the cursor were pruned.
func (s *Store) ListOrgEvents(ctx context.Context, q prego.ListQuery) (page []org.Event, next string, err error) {
	if q.Cursor != "" && q.Sort == "at" {
		after, _, err := orgEvents.read(q, orgEvents.sorts[q.Sort])
		if err != nil {
			return nil, "", err
		}
		if err := s.eventsGone(ctx, after.(int64)); err != nil {
			return nil, "", err
		}
	}
	return orgEvents.page(ctx, s, q)
}

const sqlTakeQuota = `SELECT dimension, limit_value AS "limit", current_usage, requested_delta FROM take_quota($1, $2, $3, $4, $5)`

// takeQuota takes an org's quota for what a transaction is about to create, or
// refuses it as a *org.QuotaExceeded: the first in the order given. From here to the
// end of the transaction no other transaction changes what the org uses. It is one statement.
func (s *Store) takeQuota(ctx context.Context, tx *txn, org prego.OrgID, deltas ...quota.Delta) error {
	return s.checkQuota(ctx, tx, org, false, deltas)
}

// takePromised is takeQuota for an allocation that the org was promised already: the
// promises don't count, only the usage.
func (s *Store) takePromised(ctx context.Context, tx *txn, org prego.OrgID, deltas ...quota.Delta) error {
	return s.checkQuota(ctx, tx, org, true, deltas)
}

func (s *Store) checkQuota(ctx context.Context, tx *txn, orgID prego.OrgID, promised bool, deltas []quota.Delta) error {
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
