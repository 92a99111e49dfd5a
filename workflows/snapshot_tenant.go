package workflows

import (
	"fmt"
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/tenant"
)

// SnapshotInput names a snapshot to take.
type SnapshotInput struct {
	SnapshotID prego.SnapshotID `json:"snapshot_id"`
}

// SnapshotTenant backs up a tenant's site on its host.
func SnapshotTenant(ctx workflow.Context, in SnapshotInput) error {
	var steps *activities.Snapshots
	var plan activities.SnapshotPlan
	s := story{awaitTurn(ctx, steps.PlanSnapshot, in.SnapshotID, &plan)}
	if plan.Done {
		return s.err
	}
	s.found(ctx, AttrTenantID.ValueSet(string(plan.TenantID)), AttrOrgID.ValueSet(string(plan.OrgID)))
	if s.err != nil {
		return s.err
	}
	workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s**: backing up the site of %s", in.SnapshotID, plan.TenantID))
	end := activities.SnapshotEnd{ID: string(in.SnapshotID), Status: tenant.JobSucceeded}
	if err := do(long(call(ctx, "back the site up", plan.Step)), &end.Files, steps.TakeSnapshot, in.SnapshotID); err != nil {
		end.Status, end.Files, end.Message = tenant.JobFailed, nil, errorMessage(err)
	}
	// However the run ends, it must be recorded: an unfinished row counts for the org.
	last, _ := workflow.NewDisconnectedContext(ctx)
	setOutcome(last, string(end.Status))
	because(last, "", end.Message)
	return do(write(last, "record how it ended"), nil, steps.FinishSnapshot, end)
}

// awaitTurn reads a job's row until it may begin. A run that is cancelled meanwhile continues in
// order to record that.
func awaitTurn(ctx workflow.Context, read, id any, plan *activities.SnapshotPlan) error {
	signals := workflow.GetSignalChannel(ctx, SignalDemand)
	for {
		plan.Wait = 0
		if err := workflow.ExecuteLocalActivity(local(ctx, "read the row"), read, id).Get(ctx, plan); err != nil || plan.Wait == 0 || plan.Done {
			return err
		}
		over := waits(ctx, plan.Wait, "its turn, while other work of the org is under way")
		signals.ReceiveWithTimeout(ctx, plan.Wait, nil)
		over()
		if ctx.Err() != nil {
			return nil //nolint:nilerr // what follows ends with it, and is recorded
		}
		drainSignals(signals)
	}
}

// RestoreJobInput names a restore to carry out.
type RestoreJobInput struct {
	JobID string `json:"job_id"`
}

// RestoreTenant restores a tenant's site from a snapshot. The site is offline
// meanwhile. Its contents are backed up first, and put back if the restore fails. A
// restore that has begun is completed even if the run is cancelled: half a restore is
// worse than either.
func RestoreTenant(ctx workflow.Context, in RestoreJobInput) error {
	var steps *activities.Snapshots
	var plan activities.SnapshotPlan
	s := story{awaitTurn(ctx, steps.PlanRestore, in.JobID, &plan)}
	if plan.Done {
		return s.err
	}
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	s.found(ctx, AttrTenantID.ValueSet(string(plan.TenantID)), AttrOrgID.ValueSet(string(plan.OrgID)))
	s.tell(ctx, fmt.Sprintf("**%s**: restoring the site of %s", in.JobID, plan.TenantID))
	s.step(write(ctx, "record that it has begun"), steps.BeginRestore, in.JobID)
	if s.err != nil {
		return s.err
	}
	end := activities.SnapshotEnd{ID: in.JobID, Status: tenant.JobSucceeded}
	said := fetchBackup(ctx, plan)
	if said == "" {
		said = restoreSite(ctx, steps, in.JobID, plan)
	}
	if said != "" {
		end.Status, end.Message = tenant.JobFailed, said
	}
	if plan.BackupID != "" {
		afterFetched(ctx, steps, in.JobID, plan, said == "")
	}
	setOutcome(ctx, string(end.Status))
	because(ctx, "", end.Message)
	return do(write(ctx, "record how it ended"), nil, steps.FinishRestore, end)
}

// fetchBackup brings a backup from object storage to the site's host, while the site serves.
func fetchBackup(ctx workflow.Context, plan activities.SnapshotPlan) string {
	if plan.BackupID == "" {
		return ""
	}
	var stored *activities.Backups
	in := activities.FetchInput{BackupID: plan.BackupID, TenantID: plan.TenantID, Name: plan.Name}
	if err := do(long(call(ctx, "fetch the backup and check it", plan.UploadFor)), nil, stored.FetchBackup, in); err != nil {
		return fmt.Sprintf("the backup could not be fetched: %s. The site is as it was", errorMessage(err))
	}
	return ""
}

// afterFetched deletes the download, and records that the backup was good.
func afterFetched(ctx workflow.Context, steps *activities.Snapshots, jobID string, plan activities.SnapshotPlan, good bool) {
	var stored *activities.Backups
	if err := do(call(ctx, "delete the download", cleanFor), nil, steps.ForgetFetched, jobID); err != nil {
		workflow.GetLogger(ctx).Warn("the download stays until the site goes", "error", err)
	}
	if good {
		if err := do(write(ctx, "record that the backup was good"), nil, stored.Restored, plan.BackupID); err != nil {
			workflow.GetLogger(ctx).Warn("the backup is not recorded as verified", "error", err)
		}
	}
}

// restoreSite restores the site, and returns what went wrong and what state the site is
// in then.
func restoreSite(ctx workflow.Context, steps *activities.Snapshots, jobID string, plan activities.SnapshotPlan) string {
	host := func(what string, out, step, arg any) error {
		return do(long(call(ctx, what, plan.Step)), out, step, arg)
	}
	online := func() error {
		return host("bring the site back", nil, steps.MaintainForRestore, activities.RestoreMaintenance{JobID: jobID, Off: true})
	}
	asBefore := func(why string) string {
		if err := online(); err != nil {
			return fmt.Sprintf("%s. The site holds what it held, and is in maintenance: %s", why, errorMessage(err))
		}
		return why + ". The site is as it was"
	}
	if err := host("take the site offline", nil, steps.MaintainForRestore, activities.RestoreMaintenance{JobID: jobID}); err != nil {
		return asBefore("the site could not be taken offline: " + errorMessage(err))
	}
	var kept []string
	if err := host("keep what the site holds", &kept, steps.BackupBeforeRestore, jobID); err != nil {
		return asBefore("what the site holds could not be kept: " + errorMessage(err))
	}
	if err := host("restore the snapshot", nil, steps.RestoreSite, activities.RestoreInput{JobID: jobID, What: activities.RestoreApply, Files: plan.Files}); err != nil {
		why := "the snapshot could not be restored: " + errorMessage(err)
		if undo := host("put back what the site held", nil, steps.RestoreSite, activities.RestoreInput{JobID: jobID, What: activities.RestoreUndo, Files: kept}); undo != nil {
			return fmt.Sprintf("%s. What the site held could not be put back either: %s. The site stays in maintenance; what it held is in %s",
				why, errorMessage(undo), strings.Join(kept, ", "))
		}
		return asBefore(why)
	}
	if err := online(); err != nil {
		return "the site holds the snapshot, and could not be brought back from maintenance: " + errorMessage(err)
	}
	if err := host("delete the kept files", nil, steps.ForgetKept, jobID); err != nil {
		workflow.GetLogger(ctx).Warn("the backup from before the restore stays until the site goes", "error", err)
	}
	return ""
}

// EraseSnapshot deletes the files of a deleted snapshot.
func EraseSnapshot(ctx workflow.Context, in SnapshotInput) error {
	var steps *activities.Snapshots
	return do(long(call(ctx, "delete the snapshot's files", effectPatience)), nil, steps.EraseSnapshot, in.SnapshotID)
}
