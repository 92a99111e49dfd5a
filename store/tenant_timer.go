package store

import (
	"cmp"
	"context"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/tenant"
)

const sqlTimedChange = `SELECT state FROM tenants WHERE tenant_id = $1 AND deadline_at <= now()`

const sqlHoldExpired = `UPDATE tenants SET status_message = $2 WHERE tenant_id = $1 AND status_message <> $2`

// ExpireTenant does what the timer of a tenant's state requires, if it ran out. What that destroys must have been
// accepted: else the tenant stays as it is, and its message states why.
func (s *Store) ExpireTenant(ctx context.Context, id prego.TenantID, p tenant.LifecyclePeriods) (changed bool, err error) {
	state, err := value[tenant.State](ctx, s.pool, sqlTimedChange, id)
	if isNoRows(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("timer of tenant %s: %w", id, err)
	}
	action, reason, ok := state.TimedAction()
	if !ok {
		return false, nil
	}
	_, err = s.ChangeTenant(impact.Standing(ctx, "lifecycle"), id, action, p, string(prego.ActorSystem), string(reason))
	if prego.CodeOf(err) == prego.CodeImpactNotAccepted {
		message := "its data is kept: its time is over, and no caller has ended it. The timer's change " + err.Error()
		return false, cmp.Or(s.exec(ctx, "hold tenant "+string(id), sqlHoldExpired, id, message), err)
	}
	if prego.CodeOf(err) == prego.CodeInvalidTransition {
		return false, nil // it moved on meanwhile
	}
	return err == nil, err
}
