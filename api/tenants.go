package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// CreateTenant accepts a request for a tenant.
func (a *API) CreateTenant(c echo.Context, p CreateTenantParams) error {
	var in tenant.CreateRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	t, _, err := a.d.Store.CreateTenant(c.Request().Context(), in, prego.TenantID(a.d.NewTenantID()), a.d.Mode, deref(p.IdempotencyKey), caller(c).By())
	if err != nil {
		return err
	}
	if t.State == tenant.Trial || t.State == tenant.Provisioning {
		a.startProvisioning(c, t)
	}
	return c.JSON(http.StatusAccepted, a.tenantAccepted(c, t, tenant.ProvisionWorkflowID(t.TenantID)))
}

// startProvisioning starts the run of an accepted tenant. If that fails, the request
// stays accepted: the sweep starts the run later.
func (a *API) startProvisioning(c echo.Context, t tenant.Tenant) {
	a.started(c, tenant.ProvisionWorkflowID(t.TenantID), func(ctx context.Context) error {
		return a.d.Runs.StartTenantProvision(ctx, t)
	})
}

func (a *API) tenantAccepted(c echo.Context, t tenant.Tenant, workflowID string) TenantAccepted {
	return TenantAccepted{Operation: a.operation(c, workflowID), TenantId: string(t.TenantID), WorkflowId: workflowID, StatusUrl: string("/v1/tenants/" + t.TenantID), State: t.State}
}

// ListTenants shows a page of tenants.
func (a *API) ListTenants(c echo.Context, _ ListTenantsParams) error {
	return list(c, "tenants", store.Tenants.In(a.d.Store), listedTenant)
}

// GetTenant shows a tenant.
func (a *API) GetTenant(c echo.Context, id TenantID) error {
	ctx := c.Request().Context()
	t, err := a.d.Store.GetTenant(ctx, string(id))
	if err != nil {
		return err
	}
	events, err := a.d.Store.TenantEvents(ctx, id)
	if err != nil {
		return err
	}
	allocation, err := a.d.Store.LiveAllocation(ctx, id)
	if err != nil {
		return err
	}
	decision, err := a.d.Store.LastDecision(ctx, id)
	if err != nil {
		return err
	}
	out, err := a.tenantView(ctx, t, events, allocation, decision)
	if err != nil {
		return err
	}
	usage, err := a.d.Store.SiteUsage(ctx, id)
	if err != nil {
		return err
	}
	if usage != nil {
		s := storageView(t, *usage)
		out.Storage = &s
	}
	restorable, err := a.d.Store.Restorable(ctx, id)
	if err != nil {
		return err
	}
	out.LastRestorable = restorableView(restorable)
	if out.BackupDueSince, err = a.d.Store.BackupDue(ctx, id); err != nil {
		return err
	}
	drill, err := a.d.Store.LastDrill(ctx, id)
	if err != nil {
		return err
	}
	if drill != nil {
		out.LastDrill = new(drillView(*drill))
	}
	perMonth, err := a.d.Store.TenantCost(ctx, id)
	if err != nil {
		return err
	}
	out.Cost = tenantCostView(perMonth)
	loss, err := a.d.Store.TenantLoss(ctx, id)
	if err != nil {
		return err
	}
	out.Loss = lossView(loss)
	if err := a.addHealth(ctx, &out, id); err != nil {
		return err
	}
	certificate, err := a.siteCertificate(ctx, t.Site)
	if err != nil {
		return err
	}
	out.Certificate = certificate
	return c.JSON(http.StatusOK, out)
}

// PatchTenant rejects changes of a tenant: its constraint is fixed for its lifetime
// (placement-pools, "Task/DesiredLRP").
func (a *API) PatchTenant(c echo.Context, id TenantID) error {
	var in PatchTenant
	if err := decode(c, &in); err != nil {
		return err
	}
	field := "constraint"
	if in.Constraint == nil {
		field = "stack"
	}
	if _, err := a.d.Store.GetTenant(c.Request().Context(), string(id)); err != nil {
		return err
	}
	return &prego.Error{Code: prego.CodeConstraintImmutable, Field: field, Message: "is fixed while the tenant lives; request another tenant with the one that is wanted"}
}

// ListDecisions lists the placement decisions of a tenant, with their reasons.
func (a *API) ListDecisions(c echo.Context, id TenantID) error {
	ctx := c.Request().Context()
	if _, err := a.d.Store.GetTenant(ctx, string(id)); err != nil {
		return err
	}
	records, err := a.d.Store.ListDecisions(ctx, id)
	if err != nil {
		return err
	}
	out := DecisionList{Decisions: []Decision{}}
	for _, r := range records {
		d, err := decisionView(r)
		if err != nil {
			return err
		}
		redactDecision(ctx, &d)
		out.Decisions = append(out.Decisions, d)
	}
	return c.JSON(http.StatusOK, out)
}

// SuspendTenant takes an active tenant offline.
func (a *API) SuspendTenant(c echo.Context, id TenantID, _ SuspendTenantParams) error {
	return a.changeTenant(c, id, tenant.ActionSuspend)
}

// ResumeTenant brings a suspended tenant back online.
func (a *API) ResumeTenant(c echo.Context, id TenantID, _ ResumeTenantParams) error {
	return a.changeTenant(c, id, tenant.ActionResume)
}

// CancelTenant cancels a tenant.
func (a *API) CancelTenant(c echo.Context, id TenantID, _ CancelTenantParams) error {
	return a.changeTenant(c, id, tenant.ActionCancel)
}

// ReactivateTenant reactivates a cancelled tenant.
func (a *API) ReactivateTenant(c echo.Context, id TenantID, _ ReactivateTenantParams) error {
	return a.changeTenant(c, id, tenant.ActionReactivate)
}

// TerminateTenant terminates a tenant now.
func (a *API) TerminateTenant(c echo.Context, id TenantID, _ TerminateTenantParams) error {
	return a.changeTenant(c, id, tenant.ActionTerminate)
}

// RetryTenant provisions a failed tenant again.
func (a *API) RetryTenant(c echo.Context, id TenantID, _ RetryTenantParams) error {
	return a.changeTenant(c, id, tenant.ActionRetry)
}

// changeTenant writes the requested state to the tenant's row, and starts the run that
// puts it into effect.
func (a *API) changeTenant(c echo.Context, id prego.TenantID, action tenant.Action) error {
	var in TenantChange
	if err := decode(c, &in); err != nil {
		return err
	}
	t, err := a.d.Store.ChangeTenant(c.Request().Context(), id, action, a.d.Periods, caller(c).By(), strings.TrimSpace(deref(in.Reason)))
	if err != nil {
		return err
	}
	run := tenant.ProvisionWorkflowID(id)
	switch {
	case action == tenant.ActionRetry:
		a.startProvisioning(c, t)
	case t.State == tenant.Failed: // it waited for capacity without a run
	case t.State == tenant.Provisioning: // cancelled: its run undoes its steps
		a.started(c, run, func(ctx context.Context) error { return a.d.Runs.CancelTenantProvision(ctx, id) })
	default:
		run = tenant.ChangeWorkflowID(id)
		a.started(c, run, func(ctx context.Context) error { return a.d.Runs.StartTenantChange(ctx, id) })
	}
	return c.JSON(http.StatusAccepted, a.tenantAccepted(c, t, run))
}

// newTenantID makes a tenant id.
func newTenantID() string { return newID("t-") }
