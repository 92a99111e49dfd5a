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
		var s story
		s.row(ctx, &plan, steps.PlanChange, in.TenantID)
		if first {
			s.found(ctx, tenantAttributes(in.TenantID, plan.OrgID, plan.Region)...)
		}
		switch {
		case s.err != nil:
			return s.err
		case plan.Settled && nextGeneration(ctx, 0) == again:
			continue
		case plan.Settled:
			setOutcome(ctx, string(plan.State))
			return nil
		}
		workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s** (%s in %s): putting %s into effect", in.TenantID, plan.Plan, plan.Region, plan.State))
		if err := applyEffects(ctx, steps, in.TenantID, plan); err != nil {
			setOutcome(ctx, "incomplete")
			return err
		}
		if err := do(write(ctx, "record that "+string(plan.State)+" is in effect"), nil, steps.TenantConverged, activities.ConvergedInput{TenantID: in.TenantID, State: plan.State}); err != nil {
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
		return do(call(ctx, what, effectPatience), nil, step, arg)
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
			return makeBackup(ctx, tenantID, tenant.BackupFinal)
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
		var s story
		s.step(call(ctx, "drop site and database", effectPatience), steps.DropSite, activities.DropInput{TenantID: tenantID})
		if plan.BackupsLeave {
			var stored *activities.Backups
			s.step(write(ctx, "let its backups go, the last one after a while"), stored.ExpireBackups, tenantID)
		}
		s.step(write(ctx, "free its place, and its own server"), steps.FreePlace,
			activities.FreePlaceInput{TenantID: tenantID, Reason: string(tenant.DataPurged), Fate: tenant.SiteDropped})
		return s.err
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
	step := steps.SweepTenants
	if in.TenantsOnly {
		step = steps.SweepTenantWork
	}
	return periodically[activities.SweepResult](ctx, "look for tenants, pools and queues without a run", 5*time.Minute, step)
}
