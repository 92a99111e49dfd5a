package workflows

// Tenants' provisionings that began before ProvisionTenantInput had a Format. This file,
// and each "Format == 0" in provision_tenant.go, may be deleted once no run that such a
// version started is open: when TENANT_CAPACITY_WAIT has passed since the last worker and
// API of such a version stopped; together with the histories tenant-*.json without a format
// in testdata.

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
)

func (p *provisionTenant) runV0(ctx workflow.Context) error {
	if err := workflow.ExecuteLocalActivity(local(ctx, "read the row"), p.steps.PlanTenant, p.ref()).Get(ctx, &p.plan); err != nil {
		return err
	}
	if err := workflow.UpsertTypedSearchAttributes(ctx, AttrTenantID.ValueSet(string(p.in.TenantID)), AttrOrgID.ValueSet(string(p.plan.OrgID)),
		AttrRegion.ValueSet(string(p.plan.Region)), AttrOutcome.ValueSet("provisioning")); err != nil {
		return fmt.Errorf("search attributes: %w", err)
	}
	p.placed, p.begun = p.plan.Resumed, p.plan.Resumed
	if p.plan.Cancelled {
		return &stepError{reason: prego.ReasonCancelled, text: "the provisioning was cancelled"}
	}
	for p.try = 1; ; p.try++ {
		if err := p.place(ctx, nil); err != nil {
			return err
		}
		err := p.makeSiteV0(ctx)
		if err == nil {
			break
		}
		if errType(err) != activities.ErrTypeCommand || p.try == maxSites {
			return stepFailed(err, prego.ReasonFailedSite)
		}
		p.details(ctx, "the site could not be made ("+errorMessage(err)+"): dropping it and taking another place")
		if err := p.release(ctx, &stepError{reason: prego.ReasonFailedSite, text: errorMessage(err)}); err != nil {
			return err
		}
	}
	if p.plan.Apps > 0 {
		p.details(ctx, "installing apps")
		if err := workflow.ExecuteActivity(long(call(ctx, fmt.Sprintf("install %d apps", p.plan.Apps), time.Duration(p.plan.Apps)*p.plan.AppTimeout+p.plan.StepTimeout)),
			p.steps.InstallApps, p.ref()).Get(ctx, nil); err != nil {
			return stepFailed(err, prego.ReasonFailedApps)
		}
	}
	if workflow.GetVersion(ctx, "open-site", workflow.DefaultVersion, 1) > workflow.DefaultVersion {
		p.details(ctx, "opening the site")
		if err := workflow.ExecuteActivity(call(ctx, "make the first user, enable the scheduler", p.plan.StepTimeout), p.steps.OpenSite, p.ref()).Get(ctx, nil); err != nil {
			return stepFailed(err, prego.ReasonFailedSite)
		}
	}
	return workflow.ExecuteActivity(write(ctx, "make the tenant active"), p.steps.ActivateTenant, p.ref()).Get(ctx, nil)
}

func (p *provisionTenant) makeSiteV0(ctx workflow.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.begun = true
	p.details(ctx, "making the site")
	return workflow.ExecuteActivity(call(ctx, "promote the pool site, or make one", p.plan.StepTimeout), p.steps.MakeSite, p.ref()).Get(ctx, nil)
}
