package workflows

import (
	"fmt"

	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/workload"
)

// VolumeRestoreInput names a restore of a volume.
type VolumeRestoreInput struct {
	RestoreID string `json:"restore_id"`
}

// reasonRestoreFailed is for failures without a specific reason.
const reasonRestoreFailed prego.Reason = "restore_failed"

// RestoreVolume restores a volume from a backup. Nobody else has the volume meanwhile; if the
// restore fails it is as it was.
func RestoreVolume(ctx workflow.Context, in VolumeRestoreInput) error {
	var steps *activities.Backups
	var plan activities.VolumeRestorePlan
	if err := workflow.ExecuteLocalActivity(local(ctx, "read the row"), steps.PlanVolumeRestore, in.RestoreID).Get(ctx, &plan); err != nil || plan.Done {
		return err
	}
	// Half a restore is worse than either: it is completed also if the run is cancelled.
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	if err := workflow.UpsertTypedSearchAttributes(ctx, AttrOrgID.ValueSet(string(plan.OrgID))); err != nil {
		return fmt.Errorf("search attributes: %w", err)
	}
	workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s**: restoring volume %s from %s", in.RestoreID, plan.VolumeID, plan.BackupID))
	if err := workflow.ExecuteActivity(write(ctx, "record that it has begun"), steps.BeginVolumeRestore, in.RestoreID).Get(ctx, nil); err != nil {
		return err
	}
	end := activities.VolumeRestoreEnd{RestoreID: in.RestoreID}
	status := workload.RestoreSucceeded
	if err := workflow.ExecuteActivity(long(call(ctx, "fetch the backup, check it and put it in place", plan.UploadFor+plan.Step)), steps.RestoreVolumeFiles, in.RestoreID).Get(ctx, nil); err != nil {
		status = workload.RestoreFailed
		end.Reason, end.Message = reasonOf(err, reasonRestoreFailed), errorMessage(err)+". The volume is as it was"
	}
	if err := workflow.ExecuteActivity(call(ctx, "take the volume from the server", cleanFor), steps.AfterVolumeRestore, in.RestoreID).Get(ctx, nil); err != nil {
		workflow.GetLogger(ctx).Warn("the volume is taken from the server later", "error", err)
	}
	setOutcome(ctx, string(status))
	return workflow.ExecuteActivity(write(ctx, "record how it ended"), steps.FinishVolumeRestore, end).Get(ctx, nil)
}
