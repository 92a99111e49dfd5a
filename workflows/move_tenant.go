package workflows

import (
	"context"
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/tenant"
)

// MoveInput names a move to carry out.
type MoveInput struct {
	MoveID prego.MoveID `json:"move_id"`
}

// placePatience is how long a place is looked for that others take at the same time.
const placePatience = 2 * time.Minute

// MoveTenant moves a tenant, or parts of it, to another place: a reservation, a copy while the site serves, the
// later changes while it is read-only, the switch, and the clearing of the old server. Until the switch a failure or
// a cancellation leaves the tenant where it was, and nothing elsewhere; after it the run continues to the end. A
// lost run resumes from the row.
func MoveTenant(ctx workflow.Context, in MoveInput) (tenant.MoveResult, error) {
	var steps *activities.Moves
	var plan activities.MovePlan
	var s story
	s.row(ctx, &plan, steps.PlanMove, in.MoveID)
	s.found(ctx, AttrTenantID.ValueSet(string(plan.TenantID)), AttrOrgID.ValueSet(string(plan.OrgID)), AttrServerID.ValueSet(string(plan.From)))
	if s.err != nil {
		return tenant.MoveResult{}, s.err
	}
	last, _ := workflow.NewDisconnectedContext(ctx)
	end := activities.MoveEnd{MoveID: in.MoveID, State: tenant.MoveDone}
	returned := plan.Returned
	if plan.State.Undoable() && !returned {
		err := temporal.NewCanceledError()
		if !plan.Cancelled {
			plan.To, err = bringTenant(ctx, steps, in.MoveID, plan)
		}
		// The row decides whether it has switched: a step can fail after its effect.
		if err != nil {
			s.get(write(last, "read whether it has switched"), &plan, steps.PlanMove, in.MoveID)
		}
		if err != nil && s.err == nil && plan.State.Undoable() {
			end.State, end.Reason, end.Message = tenant.MoveFailed, reasonOf(err, tenant.ReasonMoveFailed), errorMessage(err)
			if temporal.IsCanceledError(err) || plan.Cancelled {
				end.State, end.Reason, end.Message = tenant.MoveCancelled, "", "cancelled; the tenant is where it was"
			}
			s.tell(last, fmt.Sprintf("**%s**: %s stays on %s: %s", in.MoveID, plan.TenantID, plan.From, end.Message))
			s.step(call(last, "undo the move", effectPatience), steps.UndoMove, in.MoveID)
		}
	} else if plan.State.Ended() {
		end.State = plan.State
	}
	if end.State == tenant.MoveDone && !returned && s.err == nil {
		returned, s.err = clearMoved(last, steps, in.MoveID, plan)
	}
	if returned {
		end.State, end.Reason = tenant.MoveFailed, tenant.ReasonMoveTarget
		s.tell(last, fmt.Sprintf("**%s**: where %s had moved to is lost; it is on %s again", in.MoveID, plan.TenantID, plan.From))
		s.step(call(last, "undo the move", effectPatience), steps.UndoMove, in.MoveID)
	}
	if s.err != nil {
		return tenant.MoveResult{}, s.err
	}
	var out tenant.MoveResult
	s.get(write(last, "record how it ended"), &out, steps.FinishMove, end)
	setOutcome(last, string(end.State))
	return out, s.err
}

// bringTenant does everything up to the switch, and returns the server where the tenant lives then.
func bringTenant(ctx workflow.Context, steps *activities.Moves, id prego.MoveID, plan activities.MovePlan) (to prego.ServerID, err error) {
	var s story
	say := func(what string) {
		s.tell(ctx, fmt.Sprintf("**%s**: %s from %s: %s", id, plan.TenantID, plan.From, what))
	}
	say("looking for a place")
	s.step(call(ctx, "choose a server and reserve it", placePatience), steps.PlaceMove, id)
	s.step(call(ctx, "let the new server in", plan.Step), steps.PrepareMove, id)
	say("copying while the site serves")
	s.step(long(call(ctx, "copy the site while it serves", plan.CopyFor)), steps.CopySite, id)
	s.step(call(ctx, "keep others away from the site", plan.Step), steps.FreezeMove, id)
	say("read-only; copying what has changed")
	sent := activities.SwitchInput{MoveID: id}
	s.get(call(ctx, "hold the site, copy the rest, try it there", plan.FreezeFor), &sent.Bytes, steps.CatchUp, id)
	s.get(write(ctx, "switch"), &to, steps.SwitchMove, sent)
	return to, s.err
}

// clearMoved opens the site at its new place, and clears the old server. returned reports that the
// new place was lost meanwhile, and the tenant is back at the old one.
func clearMoved(ctx workflow.Context, steps *activities.Moves, id prego.MoveID, plan activities.MovePlan) (returned bool, err error) {
	var edges *activities.Edges
	var s story
	s.tell(ctx, fmt.Sprintf("**%s**: %s has left %s, which is being cleared", id, plan.TenantID, plan.From))
	s.step(call(ctx, "let the site write at its new place", effectPatience), steps.FreeMoved, id)
	await := activities.AwaitEdgesInput{ServerIDs: []prego.ServerID{plan.From}}
	if plan.To != "" && plan.To != plan.From {
		await.ServerIDs = append(await.ServerIDs, plan.To) // which may be in another region
	}
	s.step(call(ctx, "wait for the edges", effectPatience), edges.AwaitEdges, await)
	s.step(write(ctx, "record that it is open"), steps.MoveOpened, id)
	s.step(call(ctx, "bring late files after", effectPatience), steps.SweepLate, id)
	if s.err != nil {
		return false, s.err
	}
	if returned, err := restMoved(ctx, steps, id); err != nil || returned {
		return returned, err
	}
	s.step(call(ctx, "clear the old server", effectPatience), steps.ClearMove, id)
	// Lost just before it was cleared?
	s.get(write(ctx, "read whether it is cleared"), &plan, steps.PlanMove, id)
	return plan.Returned, s.err
}

// restMoved keeps the old place for a while, unless a server of the new one is lost.
func restMoved(ctx workflow.Context, steps *activities.Moves, id prego.MoveID) (returned bool, err error) {
	lost := workflow.GetSignalChannel(ctx, SignalDemand)
	for {
		var rest activities.MoveRest
		if err := do(write(ctx, "read for how long the old copy is kept"), &rest, steps.RestMove, id); err != nil || rest.Returned || rest.For <= 0 {
			return rest.Returned, err
		}
		_ = awaitSignal(ctx, rest.For, "keep the old copy for a while", lost) // it can't be cancelled
		drainSignals(lost)                                                    // one look is enough for all of them
	}
}

// EnsureMove starts the run that moves a tenant unless it is running.
func (c *Client) EnsureMove(ctx context.Context, id prego.MoveID) (bool, error) {
	return c.start(ctx, tenant.MoveWorkflowID(id), string("Move "+id), MoveTenant, MoveInput{MoveID: id})
}

// StartMove does the same for a request.
func (c *Client) StartMove(ctx context.Context, org, id string) error {
	move := prego.MoveID(id)
	_, err := c.startFor(ctx, start{id: tenant.MoveWorkflowID(move), summary: "Move " + id, priority: orgPriority(org)}, MoveTenant, MoveInput{MoveID: move})
	return err
}

// CancelMove has the run of a move undo what it did. A lost run needs no signal: the look starts
// another, which reads the cancellation from the row.
func (c *Client) CancelMove(ctx context.Context, id prego.MoveID) error {
	return c.cancel(ctx, tenant.MoveWorkflowID(id))
}
