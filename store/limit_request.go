package store

import (
	"cmp"
	"context"
	"strconv"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
)

const (
	limitRequestColumns = `limit_request_id, org_id, dimension, old_limit, requested_limit, granted_limit, reason, state, answer, created_by,
    created_at, decided_by, decided_at`

	sqlCreateLimitRequest = `
INSERT INTO limit_requests (limit_request_id, org_id, dimension, old_limit, requested_limit, reason, created_by)
VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (org_id, dimension) WHERE state = 'open' DO NOTHING RETURNING ` + limitRequestColumns
	sqlOpenLimitRequest = `
SELECT limit_request_id FROM limit_requests WHERE org_id = $1 AND dimension = $2 AND state = 'open'`
	sqlGetLimitRequest   = `SELECT ` + limitRequestColumns + ` FROM limit_requests WHERE limit_request_id = $1`
	sqlOrgOfLimitRequest = `SELECT org_id FROM limit_requests WHERE limit_request_id = $1`
	sqlEndLimitRequest   = `
UPDATE limit_requests SET state = $2, granted_limit = $3, old_limit = COALESCE($4, old_limit), answer = $5, decided_by = $6, decided_at = now()
WHERE limit_request_id = $1 AND state = 'open' RETURNING ` + limitRequestColumns
)

var limitRequests = Listing[org.LimitRequest]{
	what: "limit requests", from: `SELECT ` + limitRequestColumns + ` FROM limit_requests`,
	live: `state = 'open'`, state: "state",
	filters: map[string]string{"org_id": "org_id", "dimension": "dimension", "state": "state"},
	sorts:   map[string]string{"created_at": "created_at"},
	id:      "limit_request_id",
}

func noSuchLimitRequest(id string) error {
	return prego.Errorf(prego.CodeNotFound, "there is no limit request %q", id)
}

// ListLimitRequests is a page of requests for higher limits.
func (s *Store) ListLimitRequests(
	ctx context.Context, q prego.ListQuery,
) (page []org.LimitRequest, next string, err error) {
	return limitRequests.page(ctx, s, q)
}

// GetLimitRequest reads a request for a higher limit, or CodeNotFound.
func (s *Store) GetLimitRequest(ctx context.Context, id string) (org.LimitRequest, error) {
	return get[org.LimitRequest](ctx, s.pool, noSuchLimitRequest(id), sqlGetLimitRequest, id)
}

// CreateLimitRequest requests a limit above the org's present one. Of each limit an org has one open request:
// CodeLimitRequestOpen names it.
func (s *Store) CreateLimitRequest(ctx context.Context, r org.LimitRequest) (out org.LimitRequest, err error) {
	err = s.inTx(ctx, string("limit request of org "+r.OrgID), func(tx *txn) error {
		tx.check(lockNamedOrg(ctx, tx, r.OrgID))
		now, err := s.quotasOf(ctx, tx, r.OrgID, []quota.Dimension{quota.Dimension(r.Dimension)})
		if err != nil {
			return err
		}
		if r.OldLimit = now[0].Limit; r.RequestedLimit <= r.OldLimit {
			return prego.Invalid("limit", "must be above the org's present "+r.Dimension+", "+plain(r.OldLimit))
		}
		made := findIn[org.LimitRequest](ctx, tx, sqlCreateLimitRequest, r.LimitRequestID, r.OrgID, r.Dimension, r.OldLimit, r.RequestedLimit,
			prego.Redact(r.Reason), r.CreatedBy)
		if tx.err != nil {
			return tx.err
		}
		if made == nil {
			open := valueIn[string](ctx, tx, sqlOpenLimitRequest, r.OrgID, r.Dimension)
			return prego.Errorf(prego.CodeLimitRequestOpen, "%s requests a higher %s already: withdraw it first (prego limit-request withdraw %s)",
				open, r.Dimension, open)
		}
		out = *made
		return limitEvent(ctx, tx, out, "org.limit_requested", r.CreatedBy, r.Reason)
	})
	return out, err
}

func limitEvent(ctx context.Context, tx *txn, r org.LimitRequest, typ, by, reason string) error {
	payload := map[string]any{"limit_request_id": r.LimitRequestID, "dimension": r.Dimension, "old": r.OldLimit, "requested": r.RequestedLimit}
	if r.GrantedLimit != nil {
		payload["granted"] = *r.GrantedLimit
	}
	return orgEvent(ctx, tx, org.Event{OrgID: r.OrgID, Type: typ, Subject: r.Dimension, Actor: by, Reason: reason}, payload)
}

// endLimitRequest ends an open request, with the org held. One that ended otherwise is CodeInvalidTransition; ended is
// false for one that ended in this way already.
func endLimitRequest(
	ctx context.Context, tx *txn, id string, to org.LimitRequestState, granted, old *float64, by, answer string,
) (r org.LimitRequest, ended bool, err error) {
	made := findIn[org.LimitRequest](ctx, tx, sqlEndLimitRequest, id, to, granted, old, prego.Redact(answer), by)
	if tx.err != nil {
		return r, false, tx.err
	}
	if made != nil {
		return *made, true, nil
	}
	r = oneIn[org.LimitRequest](ctx, tx, sqlGetLimitRequest, id)
	if tx.err == nil && (r.State != to || granted != nil && *r.GrantedLimit != *granted) {
		return r, false, prego.Errorf(prego.CodeInvalidTransition, "%s was %s by %s before", id, r.State, r.DecidedBy)
	}
	return r, false, tx.err
}

// EndLimitRequest refuses or withdraws an open request. Repeating it changes nothing.
func (s *Store) EndLimitRequest(
	ctx context.Context, id string, to org.LimitRequestState, by, answer string,
) (out org.LimitRequest, err error) {
	err = s.inTx(ctx, "end limit request "+id, func(tx *txn) error {
		_, err := lockOwner(ctx, tx, noSuchLimitRequest(id), sqlOrgOfLimitRequest, id)
		tx.check(err)
		var ended bool
		if out, ended, err = endLimitRequest(ctx, tx, id, to, nil, nil, by, answer); err != nil || !ended {
			return err
		}
		return limitEvent(ctx, tx, out, "org.limit_"+string(to), by, answer)
	})
	return out, err
}

// ApproveLimitRequest sets the org's limit to the requested one, or to granted if that is not 0. Approving never lowers
// a limit: the present one may have been raised meanwhile. Repeating it changes nothing.
func (s *Store) ApproveLimitRequest(
	ctx context.Context, id string, granted float64, by, answer string,
) (out org.LimitRequest, err error) {
	r, err := s.GetLimitRequest(ctx, id)
	if err != nil {
		return r, err
	}
	limit := cmp.Or(granted, r.RequestedLimit)
	reason := cmp.Or(answer, r.Reason) + " (" + id + ")"
	_, err = s.changeQuota(ctx, r.OrgID, quota.Dimension(r.Dimension), by, reason, func(tx *txn, now org.Quota) (changed bool, err error) {
		var old *float64
		if r = oneIn[org.LimitRequest](ctx, tx, sqlGetLimitRequest, id); tx.err == nil && r.State == org.LimitOpen {
			if old = &now.Limit; limit <= now.Limit {
				return false, prego.Errorf(prego.CodeInvalidTransition,
					"the %s of org %s is %s now, and %s is not above it: refuse the request, or approve it with a higher limit",
					r.Dimension, r.OrgID, plain(now.Limit), plain(limit))
			}
		}
		if out, changed, err = endLimitRequest(ctx, tx, id, org.LimitApproved, &limit, old, by, answer); err != nil || !changed {
			return false, err
		}
		tx.run(ctx, sqlSetQuota, r.OrgID, r.Dimension, limit, prego.Redact(reason), by)
		return true, limitEvent(ctx, tx, out, "org.limit_approved", by, answer)
	})
	return out, err
}

// plain is a number as people write it.
func plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
