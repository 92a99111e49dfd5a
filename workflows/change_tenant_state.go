package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/tenant"
)

// ChangeTenantInput names a tenant whose state must take effect.
type ChangeTenantInput struct {
	TenantID prego.TenantID `json:"tenant_id"`
}

// again is sent to such a run in place of a generation.
const again = 2

// effectPatience is how long a state's effects are tried before the run fails; the
// sweep starts another.
const effectPatience = 6 * time.Hour

// ChangeTenantState puts a tenant's state into effect on its host: suspended and terminated take
// the site offline, terminated takes the final backup, active brings the site back, data_purged
// erases everything. The caller has already changed the state in the row; the run continues until
// the host agrees with the row.
func ChangeTenantState(ctx workflow.Context, in ChangeTenantInput) error {
	var steps *activities.Tenants
	for first := true; ; first = false {
		var plan activities.ChangePlan
		if err := workflow.ExecuteLocalActivity(local(ctx, "read the row"), steps.PlanChange, in.TenantID).Get(ctx, &plan); err != nil {
			return err
		}
		if first {
			if err := workflow.UpsertTypedSearchAttributes(ctx, AttrTenantID.ValueSet(string(in.TenantID)), AttrOrgID.ValueSet(string(plan.OrgID)), AttrRegion.ValueSet(string(plan.Region))); err != nil {
				return fmt.Errorf("search attributes: %w", err)
			}
		}
		if plan.Settled && nextGeneration(ctx, 0) == again {
			continue
		}
		if plan.Settled {
			setOutcome(ctx, string(plan.State))
			return nil
		}
		workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s** (%s in %s): putting %s into effect", in.TenantID, plan.Plan, plan.Region, plan.State))
		if err := applyEffects(ctx, steps, in.TenantID, plan); err != nil {
			setOutcome(ctx, "incomplete")
			return err
		}
		if err := workflow.ExecuteActivity(write(ctx, "record that "+string(plan.State)+" is in effect"), steps.TenantConverged,
			activities.ConvergedInput{TenantID: in.TenantID, State: plan.State}).Get(ctx, nil); err != nil {
			return err
		}
		if plan.State == tenant.DataPurged {
			serveQueue(ctx, steps, plan.Region)
		}
	}
}

// applyEffects does what a state requires on the host.
func applyEffects(ctx workflow.Context, steps *activities.Tenants, tenantID prego.TenantID, plan activities.ChangePlan) error {
	host := func(what string, step any, arg any) error {
		return workflow.ExecuteActivity(call(ctx, what, effectPatience), step, arg).Get(ctx, nil)
	}
	// Purging erases everything, so a final backup is only useful before that, during
	// the retention window.
	switch plan.State {
	case tenant.Suspended, tenant.Terminated:
		if !plan.HasSite {
			return nil
		}
		if err := host("take the site offline", steps.SetOffline, activities.OfflineInput{TenantID: tenantID, State: plan.State}); err != nil {
			return err
		}
		if plan.State == tenant.Terminated && plan.BackupsLeave {
			err := makeBackup(ctx, tenantID, tenant.BackupFinal)
			return err
		}
		if plan.State == tenant.Terminated {
			return host("back the site up for the last time", steps.FinalBackup, tenantID)
		}
	case tenant.Active:
		if plan.HasSite {
			return host("bring the site back", steps.SetOffline, activities.OfflineInput{TenantID: tenantID, State: plan.State, Off: true})
		}
	case tenant.DataPurged:
		if plan.HasSite && plan.BackupsLeave {
			// It is stored since the termination, unless storage came later.
			if err := makeBackup(ctx, tenantID, tenant.BackupFinal); err != nil {
				return err
			}
		}
		if err := host("drop site and database", steps.DropSite, activities.DropInput{TenantID: tenantID}); err != nil {
			return err
		}
		if plan.BackupsLeave {
			var stored *activities.Backups
			if err := workflow.ExecuteActivity(write(ctx, "let its backups go, the last one after a while"), stored.ExpireBackups, tenantID).Get(ctx, nil); err != nil {
				return err
			}
		}
		return workflow.ExecuteActivity(write(ctx, "free its place, and its own server"), steps.FreePlace,
			activities.FreePlaceInput{TenantID: tenantID, Reason: string(tenant.DataPurged), Fate: tenant.SiteDropped}).Get(ctx, nil)
	case tenant.Trial, tenant.Provisioning, tenant.GracePeriod, tenant.Failed:
	}
	return nil
}

// SweepTenantsInput selects the checks of a sweep.
type SweepTenantsInput struct {
	// TenantsOnly leaves out pools and fleets: a worker looks at them by itself.
	TenantsOnly bool `json:"tenants_only,omitempty"`
}

// SweepTenants starts what no run handles: on a schedule, and when a worker saw that there
// is something.
func SweepTenants(ctx workflow.Context, in SweepTenantsInput) (activities.SweepResult, error) {
	var steps *activities.Tenants
	var result activities.SweepResult
	step := steps.SweepTenants
	if in.TenantsOnly {
		step = steps.SweepTenantWork
	}
	err := workflow.ExecuteActivity(periodic(call(ctx, "look for tenants, pools and queues without a run", 5*time.Minute)), step).Get(ctx, &result)
	return result, err
}
