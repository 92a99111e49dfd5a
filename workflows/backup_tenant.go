package workflows

import (
	"cmp"
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/tenant"
)

// BackupInput names a backup whose turn it is.
type BackupInput struct {
	BackupID prego.BackupID `json:"backup_id"`
}

// BackupResult is what became of it.
type BackupResult struct {
	State  tenant.BackupState `json:"state"`
	Reason prego.Reason       `json:"reason,omitempty"`
	// Message is the reason of a failure.
	Message string `json:"message,omitempty"`
}

// reasonBackupFailed is for failures without a specific reason.
const reasonBackupFailed prego.Reason = "backup_failed"

// BackupTenant makes a backup in object storage, of a tenant or of a volume: the host dumps,
// compresses and encrypts the site or the volume's files, uploads it in parts, and the manifest seals it. What a failed one left in the storage
// is deleted.
func BackupTenant(ctx workflow.Context, in BackupInput) (BackupResult, error) {
	var steps *activities.Backups
	var plan activities.BackupPlan
	var s story
	s.row(ctx, &plan, steps.PlanStoredBackup, in.BackupID)
	of := []temporal.SearchAttributeUpdate{AttrTenantID.ValueSet(string(plan.TenantID)), AttrOrgID.ValueSet(string(plan.OrgID))}
	if plan.VolumeID != "" {
		of = of[1:]
	}
	if s.found(ctx, of...); s.err != nil {
		return BackupResult{}, s.err
	}
	if !plan.Done {
		s.tell(ctx, fmt.Sprintf("**%s**: backing up %s (%s)", in.BackupID, cmp.Or(string(plan.TenantID), string(plan.VolumeID)), plan.Kind))
		s.step(long(call(ctx, "dump and encrypt the site on its host", plan.Step)), steps.MakeBackup, in.BackupID)
		s.step(long(call(ctx, "upload it in parts", plan.UploadFor)), steps.UploadBackup, in.BackupID)
		s.step(call(ctx, "complete it and write its manifest", plan.UploadFor), steps.SealManifest, in.BackupID)
	}
	// However the run ends, it must be recorded: a backup under way keeps others waiting.
	last, _ := workflow.NewDisconnectedContext(ctx)
	out := BackupResult{State: tenant.BackupStored}
	if s.err != nil {
		out = BackupResult{State: tenant.BackupFailed, Reason: reasonOf(s.err, reasonBackupFailed), Message: errorMessage(s.err)}
		end := activities.BackupEnd{BackupID: in.BackupID, Kind: plan.Kind, Reason: out.Reason, Message: out.Message}
		if err := do(write(last, "record why it failed"), nil, steps.FailBackup, end); err != nil {
			return out, err
		}
	}
	setOutcome(last, string(out.State))
	clean := func(what string, step, arg any) {
		if err := do(call(last, what, cleanFor), nil, step, arg); err != nil {
			workflow.GetLogger(last).Warn("left for later", "what", what, "error", err)
		}
	}
	clean("delete what the host has of it", steps.ClearHost, in.BackupID)
	switch {
	case out.State == tenant.BackupFailed:
		clean("delete what the storage has of it", steps.EraseBackup, in.BackupID)
	case plan.VolumeID != "":
		clean("delete what retention does not keep", steps.RetainVolumeBackups, plan.VolumeID)
	default:
		clean("delete what retention does not keep", steps.RetainBackups, plan.TenantID)
	}
	return out, nil
}

// cleanFor is how long is tried to clean up after a backup. The host's part goes with the
// site, the storage's is deleted with the row.
const cleanFor = 10 * time.Minute

// DeleteBackup deletes a backup's objects until the storage reports them gone. It retries while the
// storage is away.
func DeleteBackup(ctx workflow.Context, in BackupInput) error {
	var steps *activities.Backups
	return do(call(ctx, "delete the backup's objects", effectPatience), nil, steps.EraseBackup, in.BackupID)
}

// makeBackup makes a backup of a tenant as part of another run, and returns once it is stored.
// A tenant without a site has none.
func makeBackup(ctx workflow.Context, tenantID prego.TenantID, kind tenant.BackupKind) error {
	var steps *activities.Backups
	var id prego.BackupID
	if kind != tenant.BackupFinal {
		// Of this run's, so that a repeated step asks for the same one.
		info := workflow.GetInfo(ctx)
		id = prego.BackupID(fmt.Sprintf("bak-%s", shortHash(info.WorkflowExecution.RunID, string(kind), string(tenantID))))
	}
	return awaitBackup(ctx, "ask for a backup", steps.WantBackup, activities.BackupWanted{TenantID: tenantID, Kind: kind, BackupID: id})
}

// makeLastBackup makes the last backup of a volume before it is destroyed.
func makeLastBackup(ctx workflow.Context, id prego.VolumeID) error {
	var steps *activities.Backups
	return awaitBackup(ctx, "ask for its last backup", steps.WantVolumeBackup, id)
}

// awaitBackup requests a backup, and returns once it is stored.
func awaitBackup(ctx workflow.Context, summary string, want, of any) error {
	var granted activities.BackupGranted
	if err := do(call(ctx, summary, effectPatience), &granted, want, of); err != nil || granted.Stored || granted.None {
		return err
	}
	run := child(ctx, tenant.BackupWorkflowID(granted.BackupID), string("Backup "+granted.BackupID))
	var result BackupResult
	if err := workflow.ExecuteChildWorkflow(run, BackupTenant, BackupInput{BackupID: granted.BackupID}).Get(ctx, &result); err != nil {
		return err
	}
	if result.State != tenant.BackupStored {
		return temporal.NewNonRetryableApplicationError(fmt.Sprintf("backup %s: %s", granted.BackupID, result.Message), string(result.Reason), nil)
	}
	return nil
}
