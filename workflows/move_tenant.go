package workflows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/api/serviceerror"
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
	if err := workflow.ExecuteLocalActivity(local(ctx, "read the row"), steps.PlanMove, in.MoveID).Get(ctx, &plan); err != nil {
		return tenant.MoveResult{}, err
	}
	if err := workflow.UpsertTypedSearchAttributes(ctx, AttrTenantID.ValueSet(string(plan.TenantID)), AttrOrgID.ValueSet(string(plan.OrgID)), AttrServerID.ValueSet(string(plan.From))); err != nil {
		return tenant.MoveResult{}, fmt.Errorf("search attributes: %w", err)
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
			if err := workflow.ExecuteActivity(write(last, "read whether it has switched"), steps.PlanMove, in.MoveID).Get(last, &plan); err != nil {
				return tenant.MoveResult{}, err
			}
		}
		if err != nil && plan.State.Undoable() {
			end.State, end.Reason, end.Message = tenant.MoveFailed, reasonOf(err, tenant.ReasonMoveFailed), errorMessage(err)
			if temporal.IsCanceledError(err) || plan.Cancelled {
				end.State, end.Reason, end.Message = tenant.MoveCancelled, "", "cancelled; the tenant is where it was"
			}
			workflow.SetCurrentDetails(last, fmt.Sprintf("**%s**: %s stays on %s: %s", in.MoveID, plan.TenantID, plan.From, end.Message))
			if err := workflow.ExecuteActivity(call(last, "undo the move", effectPatience), steps.UndoMove, in.MoveID).Get(last, nil); err != nil {
				return tenant.MoveResult{}, err
			}
		}
	} else if plan.State.Ended() {
		end.State = plan.State
	}
	if end.State == tenant.MoveDone && !returned {
		var err error
		if returned, err = clearMoved(last, steps, in.MoveID, plan); err != nil {
			return tenant.MoveResult{}, err
		}
	}
	if returned {
		end.State, end.Reason = tenant.MoveFailed, tenant.ReasonMoveTarget
		workflow.SetCurrentDetails(last, fmt.Sprintf("**%s**: where %s had moved to is lost; it is on %s again", in.MoveID, plan.TenantID, plan.From))
		if err := workflow.ExecuteActivity(call(last, "undo the move", effectPatience), steps.UndoMove, in.MoveID).Get(last, nil); err != nil {
			return tenant.MoveResult{}, err
		}
	}
	var out tenant.MoveResult
	err := workflow.ExecuteActivity(write(last, "record how it ended"), steps.FinishMove, end).Get(last, &out)
	setOutcome(last, string(end.State))
	return out, err
}

// bringTenant does everything up to the switch, and returns the server where the tenant lives then.
func bringTenant(ctx workflow.Context, steps *activities.Moves, id prego.MoveID, plan activities.MovePlan) (to prego.ServerID, err error) {
	say := func(what string) {
		workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s**: %s from %s: %s", id, plan.TenantID, plan.From, what))
	}
	say("looking for a place")
	if err := workflow.ExecuteActivity(call(ctx, "choose a server and reserve it", placePatience), steps.PlaceMove, id).Get(ctx, nil); err != nil {
		return "", err
	}
	if err := workflow.ExecuteActivity(call(ctx, "let the new server in", plan.Step), steps.PrepareMove, id).Get(ctx, nil); err != nil {
		return "", err
	}
	say("copying while the site serves")
	if err := workflow.ExecuteActivity(long(call(ctx, "copy the site while it serves", plan.CopyFor)), steps.CopySite, id).Get(ctx, nil); err != nil {
		return "", err
	}
	if err := workflow.ExecuteActivity(call(ctx, "keep others away from the site", plan.Step), steps.FreezeMove, id).Get(ctx, nil); err != nil {
		return "", err
	}
	say("read-only; copying what has changed")
	sent := activities.SwitchInput{MoveID: id}
	if err := workflow.ExecuteActivity(call(ctx, "hold the site, copy the rest, try it there", plan.FreezeFor), steps.CatchUp, id).Get(ctx, &sent.Bytes); err != nil {
		return "", err
	}
	return to, workflow.ExecuteActivity(write(ctx, "switch"), steps.SwitchMove, sent).Get(ctx, &to)
}

// clearMoved opens the site at its new place, and clears the old server. returned reports that the
// new place was lost meanwhile, and the tenant is back at the old one.
func clearMoved(ctx workflow.Context, steps *activities.Moves, id prego.MoveID, plan activities.MovePlan) (returned bool, err error) {
	var edges *activities.Edges
	workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s**: %s has left %s, which is being cleared", id, plan.TenantID, plan.From))
	if err := workflow.ExecuteActivity(call(ctx, "let the site write at its new place", effectPatience), steps.FreeMoved, id).Get(ctx, nil); err != nil {
		return false, err
	}
	await := activities.AwaitEdgesInput{ServerIDs: []prego.ServerID{plan.From}}
	if plan.To != "" && plan.To != plan.From {
		await.ServerIDs = append(await.ServerIDs, plan.To) // which may be in another region
	}
	if err := workflow.ExecuteActivity(call(ctx, "wait for the edges", effectPatience), edges.AwaitEdges, await).Get(ctx, nil); err != nil {
		return false, err
	}
	if err := workflow.ExecuteActivity(write(ctx, "record that it is open"), steps.MoveOpened, id).Get(ctx, nil); err != nil {
		return false, err
	}
	if err := workflow.ExecuteActivity(call(ctx, "bring late files after", effectPatience), steps.SweepLate, id).Get(ctx, nil); err != nil {
		return false, err
	}
	if returned, err := restMoved(ctx, steps, id); err != nil || returned {
		return returned, err
	}
	if err := workflow.ExecuteActivity(call(ctx, "clear the old server", effectPatience), steps.ClearMove, id).Get(ctx, nil); err != nil {
		return false, err
	}
	// Lost just before it was cleared?
	err = workflow.ExecuteActivity(write(ctx, "read whether it is cleared"), steps.PlanMove, id).Get(ctx, &plan)
	return plan.Returned, err
}

// restMoved keeps the old place for a while, unless a server of the new one is lost.
func restMoved(ctx workflow.Context, steps *activities.Moves, id prego.MoveID) (returned bool, err error) {
	lost := workflow.GetSignalChannel(ctx, SignalDemand)
	for {
		var rest activities.MoveRest
		if err := workflow.ExecuteActivity(write(ctx, "read for how long the old copy is kept"), steps.RestMove, id).Get(ctx, &rest); err != nil || rest.Returned || rest.For <= 0 {
			return rest.Returned, err
		}
		timed, cancel := workflow.WithCancel(ctx)
		over := workflow.NewTimerWithOptions(timed, rest.For, workflow.TimerOptions{Summary: "keep the old copy for a while"})
		workflow.NewSelector(ctx).AddFuture(over, func(workflow.Future) {}).
			AddReceive(lost, func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, nil) }).Select(ctx)
		cancel()
		for lost.ReceiveAsync(nil) { // one look is enough for all of them
		}
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
	err := c.Temporal.CancelWorkflow(ctx, tenant.MoveWorkflowID(id), "")
	var gone *serviceerror.NotFound
	if err != nil && !errors.As(err, &gone) {
		return fmt.Errorf("cancel %s: %w", tenant.MoveWorkflowID(id), err)
	}
	return nil
}
