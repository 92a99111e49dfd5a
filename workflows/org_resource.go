package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// OrgResourceInput names an org's address or volume. WaitingSince is when the run began
// to wait for the provider's capacity.
type OrgResourceInput struct {
	ID           string    `json:"id"`
	WaitingSince time.Time `json:"waiting_since,omitzero"`
}

// releasePatience is how long a deletion at the provider is tried before the run fails;
// the reconciler starts another.
const releasePatience = 24 * time.Hour

// ReconcileAddress creates an env's IPv4 address at the provider while its row asks for
// it, and deletes it once the row releases it.
func ReconcileAddress(ctx workflow.Context, in OrgResourceInput) error {
	return reconcileOrgResource(ctx, in, server.ResourceFloatingIP, ReconcileAddress)
}

// ReconcileVolume does the same for an org's volume, and detaches it from servers of
// groups that no longer use it.
func ReconcileVolume(ctx workflow.Context, in OrgResourceInput) error {
	return reconcileOrgResource(ctx, in, server.ResourceVolume, ReconcileVolume)
}

// reconcileOrgResource continues until the provider agrees with the row. The row is changed by
// callers and is read again after each step; a signal says that it was changed.
func reconcileOrgResource(ctx workflow.Context, in OrgResourceInput, kind server.ResourceKind, self any) error {
	var steps *activities.OrgResources
	ref := activities.OrgResourceRef{Kind: kind, ID: in.ID}
	for first := true; ; first = false {
		var plan activities.OrgResourcePlan
		if err := workflow.ExecuteLocalActivity(local(ctx, "read the row"), steps.PlanOrgResource, ref).Get(ctx, &plan); err != nil {
			return err
		}
		if first && plan.OrgID != "" {
			if err := workflow.UpsertTypedSearchAttributes(ctx, AttrOrgID.ValueSet(string(plan.OrgID))); err != nil {
				return fmt.Errorf("search attributes: %w", err)
			}
		}
		if plan.Status != workload.ResourcePending {
			in.WaitingSince = time.Time{}
		}
		if plan.Settled() {
			if nextGeneration(ctx, 0) == again {
				continue
			}
			setOutcome(ctx, outcomeOf(plan))
			return nil
		}
		workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s** of org %s: %s", in.ID, plan.OrgID, plan.Status))
		switch {
		case plan.Left > 0:
			if err := workflow.ExecuteActivity(call(ctx, "take it from the server that has it no longer", releasePatience), steps.DetachLeftVolume, in.ID).Get(ctx, nil); err != nil {
				return err
			}
		case plan.Grow:
			if err := workflow.ExecuteActivity(call(ctx, "make it larger", releasePatience), steps.GrowVolume, in.ID).Get(ctx, nil); err != nil {
				return err
			}
		case plan.Move:
			if err := workflow.ExecuteActivity(call(ctx, "bring it to an edge", releasePatience), steps.MoveAddress, in.ID).Get(ctx, nil); err != nil {
				return err
			}
		case plan.LastBackup:
			// Only a backup that is off the host permits the deletion.
			if err := lastBackup(ctx, prego.VolumeID(in.ID)); err != nil {
				return err
			}
			if workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
				nextGeneration(ctx, 0)
				return workflow.NewContinueAsNewError(ctx, self, in)
			}
		case plan.Status == workload.ResourceReleasing:
			if err := workflow.ExecuteActivity(call(ctx, "delete it at the provider", releasePatience), steps.ReleaseOrgResource, ref).Get(ctx, nil); err != nil {
				return err
			}
		default:
			waits, err := makeOrgResource(ctx, steps, ref, plan, &in)
			if err != nil {
				return err
			}
			if !waits {
				continue
			}
			awaitChange(ctx, plan.Poll)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
				nextGeneration(ctx, 0) // the new run reads the row anyway
				return workflow.NewContinueAsNewError(ctx, self, in)
			}
		}
	}
}

// lastBackup makes the last backup of a volume, or records why there is none and waits: for the
// next try, or for a request to delete the volume without it.
func lastBackup(ctx workflow.Context, id prego.VolumeID) error {
	err := makeLastBackup(ctx, id)
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	var steps *activities.Backups
	why := activities.VolumeNotBackedUp{VolumeID: id, Reason: reasonOf(err, reasonBackupFailed), Message: errorMessage(err)}
	var wait time.Duration
	if err := workflow.ExecuteActivity(write(ctx, "record why it is still there"), steps.SayNotBackedUp, why).Get(ctx, &wait); err != nil {
		return err
	}
	awaitChange(ctx, wait)
	return ctx.Err()
}

func outcomeOf(p activities.OrgResourcePlan) string {
	if p.Status == "" {
		return "gone"
	}
	return string(p.Status)
}

// makeOrgResource creates the resource, or records why that failed: waits reports
// whether it may succeed later.
func makeOrgResource(ctx workflow.Context, steps *activities.OrgResources, ref activities.OrgResourceRef, plan activities.OrgResourcePlan, in *OrgResourceInput) (waits bool, _ error) {
	err := workflow.ExecuteActivity(call(ctx, "make it at the provider", plan.Wait), steps.MakeOrgResource, ref).Get(ctx, nil)
	if err == nil || ctx.Err() != nil {
		return false, ctx.Err()
	}
	note := activities.OrgResourceWait{Ref: ref, Reason: prego.ReasonProviderRefused, Message: errorMessage(err), Failed: true}
	if t := errType(err); t == activities.ErrTypeQuota || t == activities.ErrTypeCandidate {
		// The provider's quota, not the org's.
		note.Reason = prego.ReasonNoCapacityVolume
		if ref.Kind == server.ResourceFloatingIP {
			note.Reason = prego.ReasonIPAMExhausted
		}
		if in.WaitingSince.IsZero() {
			in.WaitingSince = workflow.Now(ctx)
		}
		note.Failed = workflow.Now(ctx).Sub(in.WaitingSince) >= plan.Wait
	}
	return !note.Failed, workflow.ExecuteActivity(write(ctx, "record why it is not there"), steps.OrgResourceWaits, note).Get(ctx, nil)
}

// awaitChange waits for a change of the row, for a limited time.
func awaitChange(ctx workflow.Context, poll time.Duration) {
	ctx, cancel := workflow.WithCancel(ctx)
	defer cancel()
	timer := workflow.NewTimerWithOptions(ctx, poll, workflow.TimerOptions{Summary: "the provider may have room then"})
	workflow.NewSelector(ctx).
		AddFuture(timer, func(workflow.Future) {}).
		AddReceive(workflow.GetSignalChannel(ctx, SignalGeneration), func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, nil) }).
		Select(ctx)
}
