package store

import (
	"context"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org"
	"github.com/prego/prego/tenant"
)

// $2 is the state that the change was computed from: a tenant that has moved on is
// not met. A NULL deadline is none, unless the old one is kept ($7). Back in the state
// that was in effect last, the tenant is not settled: the state between may have been
// put into effect in part.
const sqlChangeTenant = `
UPDATE tenants SET state = $3, status_reason = $4, status_message = $5, updated_at = now(),
    deadline_at = CASE WHEN $7 AND deadline_at IS NOT NULL THEN deadline_at ELSE now() + make_interval(secs => $6) END,
    waiting_since = NULL, waiting_roles = '{}', cancel_requested_at = NULL,
    converged_state = CASE WHEN converged_state = $3 AND $2 <> $3 THEN '' ELSE converged_state END,
    generation = generation + CASE WHEN $3 = 'provisioning' THEN 1 ELSE 0 END
WHERE tenant_id = $1 AND state = $2 RETURNING ` + tenantColumns

const sqlCancelProvisioning = `
UPDATE tenants SET cancel_requested_at = now(), updated_at = now()
WHERE tenant_id = $1 AND state = 'provisioning' AND cancel_requested_at IS NULL RETURNING ` + tenantColumns

// ChangeTenant applies a requested action to a tenant: its state and its timer, in one
// statement conditional on the state that the change was computed from; its effects
// are for a run to bring about. by is the actor of the event. A tenant that is
// being provisioned and is cancelled stays so: its run undoes what it made and ends
// it; asking again changes nothing. One that waits for capacity has nothing to undo, and ends immediately.
func (s *Store) ChangeTenant(ctx context.Context, id prego.TenantID, action tenant.Action, periods tenant.LifecyclePeriods, by, reason string) (tenant.Tenant, error) {
	for {
		t, err := s.GetTenant(ctx, string(id))
		if err != nil {
			return t, err
		}
		if action == tenant.ActionRetry && t.State == tenant.Failed && (t.LostAt != nil || t.RestoreFrom != "") {
			// Its site is in a backup: an empty site was not requested.
			t, _, err = s.RestoreElsewhere(ctx, id, "", "", by)
			return t, err
		}
		if action == tenant.ActionCancel && t.State == tenant.Failed && t.CancelRequestedAt != nil {
			return t, nil // the request is repeated: it had no run to wait for
		}
		next, err := action.Apply(t.State)
		if action == tenant.ActionTerminate && t.State == tenant.Terminated {
			next, err = t.State, nil // it accepts the purge, if no caller has yet
		}
		if err != nil {
			return tenant.Tenant{}, err
		}
		if t.State == tenant.Provisioning && action == tenant.ActionCancel {
			if t.CancelRequestedAt != nil {
				return t, nil
			}
			t, err = s.changeTenant(ctx, t, t.State, action, by, reason, "cancel requested", sqlCancelProvisioning, id)
		} else {
			code, text := statusOf(t, action, next, reason)
			t, err = s.changeTenant(ctx, t, next, action, by, reason, string(action), sqlChangeTenant, id, t.State, next, code, text,
				seconds(periods.For(next, t.Plan)), keepsDeadline(t, action))
		}
		if !isNoRows(err) {
			return t, err
		}
		// It moved in between, and what it is now decides. Somebody got further each time
		// that this goes round.
	}
}

// statusOf is what a tenant's row records of a change: the reason that a timer has, a
// caller's words as a message, and nothing for a tenant that lives again.
func statusOf(t tenant.Tenant, action tenant.Action, next tenant.State, reason string) (code prego.Reason, text string) {
	if next == tenant.Active || next == tenant.Provisioning {
		return "", ""
	}
	if next == t.State {
		return t.StatusReason, reason
	}
	if timed, why, ok := t.State.TimedAction(); ok && timed == action && reason == string(why) {
		return why, ""
	}
	if t.State == tenant.Trial {
		return prego.ReasonCancelled, reason
	}
	return "", reason
}

// keepsDeadline: a trial's time runs while its tenant is suspended, and after, so that
// a suspension does not lengthen it. What is terminated again is not kept for longer.
func keepsDeadline(t tenant.Tenant, action tenant.Action) bool {
	return t.State == tenant.Terminated && action == tenant.ActionTerminate ||
		t.Plan == prego.PlanTrial && (action == tenant.ActionSuspend || action == tenant.ActionResume)
}

// seconds are a period's, nil for a period that never ends.
func seconds(d time.Duration) *float64 {
	if d <= 0 {
		return nil
	}
	s := d.Seconds()
	return &s
}

// changeTenant runs a conditional update with its events; pgx.ErrNoRows when the
// update met nothing.
func (s *Store) changeTenant(ctx context.Context, was tenant.Tenant, next tenant.State, action tenant.Action, by, reason, message, sql string, args ...any) (t tenant.Tenant, err error) {
	err = s.inTx(ctx, string("change tenant "+was.TenantID), func(tx *txn) error {
		switch {
		case action == tenant.ActionRetry:
			tx.check(s.takeQuotaAgain(ctx, tx, was))
		case next == tenant.Suspended:
			tx.demands(ctx, "resume it", string(was.TenantID), sqlOfTenant, impact.Interrupts)
		case next == tenant.GracePeriod:
			const undo = "reactivate it before its grace period ends"
			tx.demands(ctx, undo, string(was.TenantID), sqlOfTenant, impact.Destroys)
		case was.State == tenant.Terminated && action == tenant.ActionTerminate &&
			valueIn[bool](ctx, tx, sqlStandingAcceptance, "lifecycle", string(was.TenantID)):
			return prego.Errorf(prego.CodeInvalidTransition, "cannot %s: the tenant is %s", action, was.State)
		case next == tenant.Terminated, next == tenant.DataPurged:
			tx.demands(ctx, "", string(was.TenantID), sqlOfTenant, impact.Destroys)
		}
		t = oneIn[tenant.Tenant](ctx, tx, sql, args...)
		tx.check(tenantEvent(ctx, tx, tenant.Event{
			TenantID: was.TenantID, FromState: was.State, ToState: next, Step: tenant.StepChanged, Actor: by, Reason: reason, Message: message,
		}, ""))
		tx.check(orgEvent(ctx, tx, org.Event{
			OrgID: was.OrgID, Type: "tenant." + string(action),
			Subject: string(was.TenantID), Actor: by, Reason: reason,
		}, map[string]any{"from": was.State, "to": next}))
		if action != tenant.ActionCancel || was.State != tenant.Provisioning {
			return nil
		}
		ref := tenant.Ref{TenantID: t.TenantID, Generation: t.Generation}
		if ended, err := failQueued(ctx, tx, ref, prego.ReasonCancelled,
			tenant.ProvisioningCancelled); err != nil || !ended {
			return err // its run ends it
		}
		t = oneIn[tenant.Tenant](ctx, tx, sqlGetTenant, was.TenantID)
		return nil
	})
	if err != nil {
		return tenant.Tenant{}, err
	}
	return t, nil
}

const sqlTenantCounts = `SELECT EXISTS (SELECT FROM counted_tenants WHERE tenant_id = $1)`

// takeQuotaAgain takes what a tenant had given back when it failed. A tenant that
// still has resources counts all the time. Whether it does is read with the org's
// row held: what it gives back from now on is not taken before it counts again.
func (s *Store) takeQuotaAgain(ctx context.Context, tx *txn, t tenant.Tenant) error {
	tx.check(lockOrg(ctx, tx, t.OrgID))
	if counts, err := value[bool](ctx, tx, sqlTenantCounts, t.TenantID); err != nil || counts {
		return err
	}
	deltas := got(sizeOf(ctx, tx, t.Plan, t.StorageQuotaGB)).in(tx).deltas()
	if t.Policy == tenant.ModeOneTenantOneServer {
		deltas = append(deltas, ownServer(valueIn[int64](ctx, tx, sqlOwnServerCents, t.TenantID))...)
	}
	return s.takeQuota(ctx, tx, t.OrgID, deltas...)
}

const (
	// Held in an order, so that two such requests wait for each other.
	sqlHoldQueue = `
SELECT tenant_id FROM tenants WHERE org_id = $1 AND waiting_since IS NOT NULL AND state = 'provisioning'
    AND cancel_requested_at IS NULL AND active_at IS NULL ORDER BY tenant_id FOR NO KEY UPDATE`
	sqlFailQueue = `
UPDATE tenants t SET status_reason = 'cancelled', status_message = $2, cancel_requested_at = now(), ` + setFailed + `
WHERE t.tenant_id = ANY ($1) AND ` + hasNothing + ` RETURNING t.tenant_id`
	sqlCancelRest = `
UPDATE tenants SET cancel_requested_at = now(), updated_at = now()
WHERE tenant_id = ANY ($1) AND state = 'provisioning' RETURNING tenant_id`
	sqlQueueEvents = `
INSERT INTO events (kind, id, org_id, from_status, status, step, actor, reason, message, dedup_key)
SELECT 'tenant', tenant_id, org_id, 'provisioning', state, 'changed', $2, CASE state WHEN 'failed' THEN 'cancelled'
    ELSE $3 END, CASE state WHEN 'failed' THEN $4 ELSE 'cancel requested' END,
    CASE state WHEN 'failed' THEN 'failed/g' || generation END
FROM tenants WHERE tenant_id = ANY ($1) ` + onceByKey
	sqlQueueOrgEvents = `
INSERT INTO events (xid, kind, id, org_id, step, actor, reason, payload)
SELECT pg_current_xact_id(), 'tenant', tenant_id, org_id, 'cancel', $2, $3,
    '{"from": "provisioning", "to": "provisioning"}'
FROM tenants WHERE tenant_id = ANY ($1)`
)

// CancelQueue cancels the tenants of an org that wait for capacity, in one transaction. Those with a server end when
// their runs have undone it. Tenants that had a site before, and wait for a place for it, are left.
func (s *Store) CancelQueue(ctx context.Context, id prego.OrgID, by, reason string) (out tenant.CancelledQueue,
	err error,
) {
	out.OrgID = id
	err = s.inTx(ctx, string("cancel the queue of org "+id), func(tx *txn) error {
		if _, err := get[org.Org](ctx, tx, noSuchOrg(id), sqlGetOrg, id); err != nil {
			return err
		}
		message := tenant.ProvisioningCancelled
		if reason = prego.Redact(reason); reason != "" {
			message += ": " + reason
		}
		waiting := valuesIn[prego.TenantID](ctx, tx, sqlHoldQueue, id)
		failed := valuesIn[prego.TenantID](ctx, tx, sqlFailQueue, waiting, message)
		tx.run(ctx, sqlEndRestores, failed, message)
		ending := valuesIn[prego.TenantID](ctx, tx, sqlCancelRest, waiting)
		tx.run(ctx, sqlQueueEvents, waiting, by, reason, message)
		tx.run(ctx, sqlQueueOrgEvents, waiting, by, reason)
		out.Cancelled, out.Ending = len(failed), len(ending)
		return nil
	})
	return out, err
}
