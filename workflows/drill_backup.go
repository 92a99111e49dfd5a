package workflows

import (
	"cmp"
	"context"
	"fmt"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/tenant"
)

// DrillInput names a drill.
type DrillInput struct {
	DrillID string `json:"drill_id"`
}

// reasonDrillFailed is for failures without a specific reason.
const reasonDrillFailed prego.Reason = "drill_failed"

// DrillBackup restores a backup on some server, checks it, records the result, and always deletes
// it afterwards.
func DrillBackup(ctx workflow.Context, in DrillInput) error {
	var steps *activities.Drills
	var plan activities.DrillPlan
	if err := workflow.ExecuteLocalActivity(local(ctx, "read the row"), steps.PlanDrill, in.DrillID).Get(ctx, &plan); err != nil {
		return err
	}
	if plan.Cleared {
		return nil
	}
	attrs := []temporal.SearchAttributeUpdate{AttrOrgID.ValueSet(string(plan.OrgID)), AttrServerID.ValueSet(string(plan.ServerID))}
	if plan.TenantID != "" {
		attrs = append(attrs, AttrTenantID.ValueSet(string(plan.TenantID)))
	}
	if err := workflow.UpsertTypedSearchAttributes(ctx, attrs...); err != nil {
		return fmt.Errorf("search attributes: %w", err)
	}
	last, _ := workflow.NewDisconnectedContext(ctx)
	if !plan.Ended {
		workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s**: restoring backup %s of %s on %s", in.DrillID, plan.BackupID, cmp.Or(string(plan.TenantID), "volume "+string(plan.VolumeID)), plan.ServerID))
		end := tenant.DrillEnd{DrillID: in.DrillID, State: tenant.DrillPassed}
		var found activities.DrillFound
		if err := workflow.ExecuteActivity(long(call(ctx, "restore the backup and look at it", plan.For)), steps.RunDrill, in.DrillID).Get(ctx, &found); err != nil {
			end.State, end.Reason, end.Message = tenant.DrillFailed, reasonOf(err, reasonDrillFailed), errorMessage(err)
		}
		end.Tables, end.Rows, end.Files, end.Bytes = found.Tables, found.Rows, found.Files, found.Bytes
		if err := workflow.ExecuteActivity(write(last, "record the result"), steps.FinishDrill, end).Get(last, nil); err != nil {
			return err
		}
		setOutcome(last, string(end.State))
	}
	return workflow.ExecuteActivity(call(last, "delete the restored data", effectPatience), steps.ClearDrill, in.DrillID).Get(last, nil)
}

// EnsureDrill starts the run of a drill unless it is running.
func (c *Client) EnsureDrill(ctx context.Context, id string) (bool, error) {
	return c.start(ctx, tenant.DrillWorkflowID(id), "Drill "+id, DrillBackup, DrillInput{DrillID: id})
}
