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
	var s story
	if s.row(ctx, &plan, steps.PlanDrill, in.DrillID); plan.Cleared {
		return nil
	}
	attrs := []temporal.SearchAttributeUpdate{AttrOrgID.ValueSet(string(plan.OrgID)), AttrServerID.ValueSet(string(plan.ServerID))}
	if plan.TenantID != "" {
		attrs = append(attrs, AttrTenantID.ValueSet(string(plan.TenantID)))
	}
	s.found(ctx, attrs...)
	last, _ := workflow.NewDisconnectedContext(ctx)
	if s.err == nil && !plan.Ended {
		workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s**: restoring backup %s of %s on %s", in.DrillID, plan.BackupID, cmp.Or(string(plan.TenantID), "volume "+string(plan.VolumeID)), plan.ServerID))
		end := tenant.DrillEnd{DrillID: in.DrillID, State: tenant.DrillPassed}
		var found activities.DrillFound
		if err := do(long(call(ctx, "restore the backup and look at it", plan.For)), &found, steps.RunDrill, in.DrillID); err != nil {
			end.State, end.Reason, end.Message = tenant.DrillFailed, reasonOf(err, reasonDrillFailed), errorMessage(err)
		}
		end.Tables, end.Rows, end.Files, end.Bytes = found.Tables, found.Rows, found.Files, found.Bytes
		s.step(write(last, "record the result"), steps.FinishDrill, end)
		s.outcome(last, string(end.State))
		because(last, end.Reason, end.Message)
	}
	s.step(call(last, "delete the restored data", effectPatience), steps.ClearDrill, in.DrillID)
	return s.err
}

// EnsureDrill starts the run of a drill unless it is running.
func (c *Client) EnsureDrill(ctx context.Context, id string) (bool, error) {
	return c.start(ctx, tenant.DrillWorkflowID(id), "Drill "+id, DrillBackup, DrillInput{DrillID: id})
}
