package workflows

import (
	"context"
	"fmt"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// background is the priority of runs for pools and schedules.
var background = temporal.Priority{PriorityKey: 5}

// tenantPriority orders tenants' tasks by plan, and shares a task queue among the orgs
// of one plan.
func tenantPriority(plan prego.Plan, org prego.OrgID) temporal.Priority {
	p := temporal.Priority{FairnessKey: string(org), FairnessWeight: 1}
	if plan != "" {
		p.PriorityKey = plan.Priority()
	}
	return p
}

// StartTenantProvision starts the run that provisions a tenant; success if it is
// already running.
func (c *Client) StartTenantProvision(ctx context.Context, t tenant.Tenant) error {
	return c.startOrFollow(ctx, start{
		id: tenant.ProvisionWorkflowID(t.TenantID), summary: tenantSummary(t), about: aboutTenant(t),
		priority: tenantPriority(t.Plan, t.OrgID), attributes: tenantAttributes(t.TenantID, t.OrgID, t.Region),
	}, t.Generation, ProvisionTenant, ProvisionTenantInput{TenantID: t.TenantID, Generation: t.Generation})
}

func tenantSummary(t tenant.Tenant) string {
	return fmt.Sprintf("Tenant %s (%s, %s in %s)", t.TenantID, t.Slug, t.Plan, t.Region)
}

func aboutTenant(t tenant.Tenant) ops.About {
	return ops.About{OrgID: t.OrgID, Name: t.Slug, What: fmt.Sprintf("%s in %s", t.Plan, t.Region), By: t.CreatedBy}
}

// ResumeTenant starts the run of a tenant that waited for capacity without one, or signals it to read the row: it may
// be about to end.
func (c *Client) ResumeTenant(ctx context.Context, t tenant.Tenant) error {
	return c.signalWithStart(ctx, tenant.ProvisionWorkflowID(t.TenantID), SignalWake, "placed",
		client.StartWorkflowOptions{
			StaticSummary: tenantSummary(t), StaticDetails: aboutTenant(t).Details(), Priority: tenantPriority(t.Plan, t.OrgID),
			TypedSearchAttributes: temporal.NewSearchAttributes(named(aboutTenant(t), tenantAttributes(t.TenantID, t.OrgID, t.Region))...),
		}, ProvisionTenant, ProvisionTenantInput{TenantID: t.TenantID, Generation: t.Generation})
}

// EnsureTenantProvision does the same for a row that may have lost its run.
func (c *Client) EnsureTenantProvision(ctx context.Context, tenantID prego.TenantID, generation int) (bool, error) {
	return c.start(ctx, tenant.ProvisionWorkflowID(tenantID), string("Tenant "+tenantID), ProvisionTenant, ProvisionTenantInput{TenantID: tenantID, Generation: generation})
}

// CancelTenantProvision asks a tenant's run to undo its steps. A lost run needs no
// signal: the sweep starts another, which reads the cancellation from the row.
func (c *Client) CancelTenantProvision(ctx context.Context, tenantID prego.TenantID) error {
	return c.cancel(ctx, tenant.ProvisionWorkflowID(tenantID))
}

// StartTenantChange starts the run that puts a tenant's state into effect, or signals
// the running one to read the row again before it ends.
func (c *Client) StartTenantChange(ctx context.Context, tenantID prego.TenantID) error {
	return c.startOrFollow(ctx, start{id: tenant.ChangeWorkflowID(tenantID), summary: string("Change tenant " + tenantID)}, again,
		ChangeTenantState, ChangeTenantInput{TenantID: tenantID})
}

// EnsureTenantChange does the same and reports whether it started one.
func (c *Client) EnsureTenantChange(ctx context.Context, tenantID prego.TenantID) (bool, error) {
	return c.start(ctx, tenant.ChangeWorkflowID(tenantID), string("Change tenant "+tenantID), ChangeTenantState, ChangeTenantInput{TenantID: tenantID})
}

// WakeTenant signals a waiting tenant's run to read its row. Without one the sweep starts it.
func (c *Client) WakeTenant(ctx context.Context, tenantID prego.TenantID) error {
	id := tenant.ProvisionWorkflowID(tenantID)
	return unlessEnded(c.Temporal.SignalWorkflow(ctx, id, "", SignalWake, nil), "wake %s", id)
}

// demand signals a coalesced run that there is more to do, starting it if necessary.
func (c *Client) demand(ctx context.Context, id, summary, what string, workflow, in any) error {
	return c.signalWithStart(ctx, id, SignalDemand, what, client.StartWorkflowOptions{
		StaticSummary: summary,
		Priority:      background,
	}, workflow, in)
}

// EnsureScaleOut requests servers of a role in a region.
func (c *Client) EnsureScaleOut(ctx context.Context, region prego.Region, role prego.Role, trigger string) error {
	return c.demand(ctx, tenant.ScaleOutWorkflowID(c.Environment, region, role), fmt.Sprintf("Scale out %s in %s", role, region), trigger,
		ScaleOut, ScaleOutInput{Region: region, Role: role})
}

// EnsureRefill requests a refill of an app server's site pool.
func (c *Client) EnsureRefill(ctx context.Context, appServerID prego.ServerID) error {
	_, err := c.StartRefill(ctx, appServerID)
	return err
}

// StartRefill does the same and returns the run's id.
func (c *Client) StartRefill(ctx context.Context, appServerID prego.ServerID) (string, error) {
	id := tenant.RefillWorkflowID(appServerID)
	return id, c.demand(ctx, id, string("Fill the site pool of "+appServerID), "refill", RefillSitePool, RefillInput{ServerID: appServerID})
}

// EnsureWarmPool requests a refill of a warm server pool.
func (c *Client) EnsureWarmPool(ctx context.Context, region prego.Region, plan prego.Plan) error {
	_, err := c.StartWarmPool(ctx, region, plan)
	return err
}

// StartWarmPool does the same and returns the run's id.
func (c *Client) StartWarmPool(ctx context.Context, region prego.Region, plan prego.Plan) (string, error) {
	id := tenant.WarmPoolWorkflowID(c.Environment, region, plan)
	return id, c.demand(ctx, id, fmt.Sprintf("Fill the warm pool of plan %s in %s", plan, region), "fill", FillWarmPool, WarmPoolInput{Region: region, Plan: plan})
}

// StartTenantSweep starts a sweep of tenants unless one is running that a look started.
func (c *Client) StartTenantSweep(ctx context.Context) error {
	_, err := c.startPeriodic(ctx, tenant.SweepWorkflowID(c.Environment)+"/found", "See to tenants that have no run", SweepTenants, SweepTenantsInput{TenantsOnly: true})
	return err
}

// StartMeasureSites starts measuring sites unless a run is that a look started.
func (c *Client) StartMeasureSites(ctx context.Context) error {
	_, err := c.startPeriodic(ctx, tenant.StorageWorkflowID(c.Environment)+"/found", "Measure sites whose turn it is", MeasureSites)
	return err
}

// FleetRunID is the id of the runs that carry out a fleet's actions.
func (c *Client) FleetRunID(fleetID prego.FleetID) string {
	return server.FleetWorkflowID(c.Environment, fleetID)
}

// EnsureScaleFleet starts or signals the run of a fleet's actions.
func (c *Client) EnsureScaleFleet(ctx context.Context, fleetID prego.FleetID) error {
	return c.demand(ctx, c.FleetRunID(fleetID), string("Scale fleet "+fleetID), "action", ScaleFleet, ScaleFleetInput{FleetID: fleetID})
}
