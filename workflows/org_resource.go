package workflows

import (
	"cmp"
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
		var s story
		s.row(ctx, &plan, steps.PlanOrgResource, ref)
		if first && plan.OrgID != "" {
			s.found(ctx, AttrOrgID.ValueSet(string(plan.OrgID)))
		}
		if s.err != nil {
			return s.err
		}
		if plan.Status != workload.ResourcePending {
			in.WaitingSince = time.Time{}
		}
		if plan.Settled() {
			if nextGeneration(ctx, 0) == again {
				continue
			}
			setOutcome(ctx, cmp.Or(string(plan.Status), "gone"))
			return nil
		}
		workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s** of org %s: %s", in.ID, plan.OrgID, plan.Status))
		waited := false
		switch {
		case plan.Left > 0:
			s.step(call(ctx, "take it from the server that has it no longer", releasePatience), steps.DetachLeftVolume, in.ID)
		case plan.Grow:
			s.step(call(ctx, "make it larger", releasePatience), steps.GrowVolume, in.ID)
		case plan.Move:
			s.step(call(ctx, "bring it to an edge", releasePatience), steps.MoveAddress, in.ID)
		case plan.LastBackup:
			// Only a backup that is off the host permits the deletion.
			waited, s.err = true, lastBackup(ctx, prego.VolumeID(in.ID))
		case plan.Kept > 0:
			waited, s.err = true, awaitChange(ctx, plan.Kept, "it is kept until then")
		case plan.Status == workload.ResourceReleasing:
			s.step(call(ctx, "delete it at the provider", releasePatience), steps.ReleaseOrgResource, ref)
		default:
			if waited, s.err = makeOrgResource(ctx, steps, ref, plan, &in); waited && s.err == nil {
				s.err = awaitChange(ctx, plan.Poll, "the provider may have room then")
			}
		}
		if s.err != nil {
			return s.err
		}
		if waited && workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			nextGeneration(ctx, 0) // the new run reads the row anyway
			return workflow.NewContinueAsNewError(ctx, self, in)
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
	if err := do(write(ctx, "record why it is still there"), &wait, steps.SayNotBackedUp, why); err != nil {
		return err
	}
	return awaitChange(ctx, wait, "its last backup is tried again then")
}

// makeOrgResource creates the resource, or records why that failed: waits reports
// whether it may succeed later.
func makeOrgResource(ctx workflow.Context, steps *activities.OrgResources, ref activities.OrgResourceRef, plan activities.OrgResourcePlan, in *OrgResourceInput) (waits bool, _ error) {
	err := do(call(ctx, "make it at the provider", plan.Wait), nil, steps.MakeOrgResource, ref)
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
	return !note.Failed, do(write(ctx, "record why it is not there"), nil, steps.OrgResourceWaits, note)
}

// awaitChange waits for a change of the row, for a limited time.
func awaitChange(ctx workflow.Context, most time.Duration, summary string) error {
	signals := workflow.GetSignalChannel(ctx, SignalGeneration)
	if err := awaitSignal(ctx, most, summary, signals); err != nil {
		return err
	}
	signals.ReceiveAsync(nil)
	return nil
}
