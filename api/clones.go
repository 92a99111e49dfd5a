package api

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// CloneTenant creates a tenant whose site is a copy of another one's.
func (a *API) CloneTenant(c echo.Context, id TenantID, _ CloneTenantParams) error {
	var in tenant.CloneRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	t, err := a.d.Store.CloneTenant(c.Request().Context(), id, in, prego.TenantID(a.d.NewTenantID()), newID("rst-"), caller(c).By())
	if err != nil {
		return err
	}
	a.startProvisioning(c, t)
	return c.JSON(http.StatusAccepted, a.tenantAccepted(c, t, tenant.ProvisionWorkflowID(t.TenantID)))
}

// UnmuteTenant lets a site send mail and run its jobs. A site that is not muted is left alone.
func (a *API) UnmuteTenant(c echo.Context, id TenantID, _ UnmuteTenantParams) error {
	t, st, err := a.liveSite(c.Request().Context(), id)
	if err != nil {
		return err
	}
	for _, args := range tenant.Unmute(t.State == tenant.Active) {
		if err := a.siteCommand(c, t, st, nil, append([]string{"--site", t.Site}, args...)...); err != nil {
			return err
		}
	}
	if err := a.d.Store.UnmuteTenant(context.WithoutCancel(c.Request().Context()), id, caller(c).By()); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, tenantSummary(t))
}
