package api

import (
	"context"
	"slices"

	"github.com/prego/prego/access"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// Customers' decisions and timelines don't name what belongs to others: a server may have another tenant's id in its
// name.

// redactDecision leaves the candidates out of what a customer sees of a decision. Their numbers stay.
func redactDecision(ctx context.Context, d *Decision) {
	if access.OfCustomer(ctx) {
		d.DecisionLog.Rejected, d.DecisionLog.SelectionReason, d.DecisionLog.Input = []placement.Rejection{}, "", ""
		d.DecisionLog.Constraint, d.Policy = nil, map[string]any{}
	}
}

// placing are the steps of a tenant whose messages name servers that were considered.
var placing = []tenant.Step{
	tenant.StepPlaced, tenant.StepAwaitingCapacity, tenant.StepAwaitingSite, tenant.StepServerRequested, tenant.StepReleased, tenant.StepOverridden,
	tenant.StepMoveRequested, tenant.StepMoved, tenant.StepMoveCleared, tenant.StepMoveFailed, tenant.StepMoveReturned,
}

// redactEvents leaves the messages about placement out of what a customer sees of a tenant's timeline. Steps and
// reasons stay.
func redactEvents(ctx context.Context, events []tenant.Event) []tenant.Event {
	if !access.OfCustomer(ctx) {
		return events
	}
	out := slices.Clone(events)
	for i := range out {
		if slices.Contains(placing, out[i].Step) {
			out[i].Message = ""
		}
	}
	return out
}
