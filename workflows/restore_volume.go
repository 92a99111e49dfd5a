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
	var s story
	if s.row(ctx, &plan, steps.PlanVolumeRestore, in.RestoreID); plan.Done {
		return nil
	}
	// Half a restore is worse than either: it is completed also if the run is cancelled.
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	s.found(ctx, AttrOrgID.ValueSet(string(plan.OrgID)))
	s.tell(ctx, fmt.Sprintf("**%s**: restoring volume %s from %s", in.RestoreID, plan.VolumeID, plan.BackupID))
	s.step(write(ctx, "record that it has begun"), steps.BeginVolumeRestore, in.RestoreID)
	if s.err != nil {
		return s.err
	}
	end := activities.VolumeRestoreEnd{RestoreID: in.RestoreID}
	status := workload.RestoreSucceeded
	if err := do(long(call(ctx, "fetch the backup, check it and put it in place", plan.UploadFor+plan.Step)), nil, steps.RestoreVolumeFiles, in.RestoreID); err != nil {
		status = workload.RestoreFailed
		end.Reason, end.Message = reasonOf(err, reasonRestoreFailed), errorMessage(err)+". The volume is as it was"
	}
	if err := do(call(ctx, "take the volume from the server", cleanFor), nil, steps.AfterVolumeRestore, in.RestoreID); err != nil {
		workflow.GetLogger(ctx).Warn("the volume is taken from the server later", "error", err)
	}
	setOutcome(ctx, string(status))
	because(ctx, end.Reason, end.Message)
	return do(write(ctx, "record how it ended"), nil, steps.FinishVolumeRestore, end)
}
