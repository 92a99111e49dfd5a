package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
)

// DecommissionServerInput names a draining server.
type DecommissionServerInput struct {
	ServerID prego.ServerID `json:"server_id"`
}

// unresolvedPoll is how long to wait before looking again for a create that may still
// complete.
const unresolvedPoll = 15 * time.Second

// DecommissionServer takes down a server at any moment of its life, even during
// provisioning: it stops that run, revokes the identity, deletes everything that the
// server owns at the provider, and keeps the row as terminated. It never gives up while
// anything is still billed.
func DecommissionServer(ctx workflow.Context, in DecommissionServerInput) error {
	var steps *activities.Servers
	var plan activities.DecommissionPlan
	if err := workflow.ExecuteLocalActivity(local(ctx, "read the row"), steps.PlanDecommission, in.ServerID).Get(ctx, &plan); err != nil {
		return err
	}
	if err := workflow.UpsertTypedSearchAttributes(ctx, AttrServerID.ValueSet(string(in.ServerID)), AttrRegion.ValueSet(string(plan.Region)),
		AttrRole.ValueSet(string(plan.Role)), AttrOutcome.ValueSet("draining")); err != nil {
		return fmt.Errorf("search attributes: %w", err)
	}
	if plan.Done {
		setOutcome(ctx, "terminated")
		return nil
	}
	tell := func(text string) {
		workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s** (%s in %s): %s", in.ServerID, plan.Role, plan.Region, text))
	}
	tell("ending its provisioning, if that is under way")
	if err := workflow.ExecuteActivity(long(call(ctx, "end a provisioning that is under way", 24*time.Hour)), steps.StopProvisioning, in.ServerID).Get(ctx, nil); err != nil {
		return err
	}
	// The row is read again: the stopped run may have made a last attempt.
	if err := workflow.ExecuteLocalActivity(local(ctx, "read the row"), steps.PlanDecommission, in.ServerID).Get(ctx, &plan); err != nil {
		return err
	}
	for {
		tell("revoking its identity and deleting what it owns")
		var result activities.DestroyResult
		if err := workflow.ExecuteActivity(call(ctx, "delete all that the server owns", 7*24*time.Hour), steps.DestroyServer,
			activities.DestroyInput{ServerID: in.ServerID, Attempt: plan.Attempt, Reason: prego.ReasonDecommission},
		).Get(ctx, &result); err != nil {
			return err
		}
		if result.Unresolved == 0 {
			break
		}
		tell("waiting for a create of unknown outcome to land or to lapse")
		if err := workflow.NewTimerWithOptions(ctx, unresolvedPoll, workflow.TimerOptions{Summary: "a create may still land"}).Get(ctx, nil); err != nil {
			return err
		}
	}
	if err := workflow.ExecuteActivity(write(ctx, "mark the server terminated"), steps.TerminateServer, in.ServerID).Get(ctx, nil); err != nil {
		return err
	}
	tell("terminated")
	setOutcome(ctx, "terminated")
	return nil
}
