package api

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/server"
)

// DrainServer empties a server.
func (a *API) DrainServer(c echo.Context, id ServerID, _ DrainServerParams) error {
	return a.requestMaintenance(c, id, server.MaintenanceDrain)
}

// RebootServer empties a server and restarts its host.
func (a *API) RebootServer(c echo.Context, id ServerID, _ RebootServerParams) error {
	return a.requestMaintenance(c, id, server.MaintenanceReboot)
}

// ResizeServer empties a server and gives it another type of the provider's.
func (a *API) ResizeServer(c echo.Context, id ServerID, _ ResizeServerParams) error {
	return a.requestMaintenance(c, id, server.MaintenanceResize)
}

// InstallPatches empties a server, installs security updates and restarts its host if they need that.
func (a *API) InstallPatches(c echo.Context, id ServerID, _ InstallPatchesParams) error {
	return a.requestMaintenance(c, id, server.MaintenancePatch)
}

// ReplaceServer makes another server, empties this one and deletes it.
func (a *API) ReplaceServer(c echo.Context, id ServerID, _ ReplaceServerParams) error {
	return a.requestMaintenance(c, id, server.MaintenanceReplace)
}

func (a *API) requestMaintenance(c echo.Context, id ServerID, kind server.MaintenanceKind) error {
	var in server.MaintenanceRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := in.Validate(kind); err != nil {
		return err
	}
	d, err := a.d.Store.RequestMaintenance(c.Request().Context(), id, kind, in, caller(c).By())
	if err != nil {
		return err
	}
	return a.maintenanceAccepted(c, d)
}

// maintenanceAccepted wakes the run of a maintenance. If that fails, the request stays accepted: a look
// starts the run later.
func (a *API) maintenanceAccepted(c echo.Context, d server.Maintenance) error {
	if !d.Status.Ended() {
		a.started(c, server.MaintenanceWorkflowID(d.ServerID), func(ctx context.Context) error {
			return a.d.Runs.WakeMaintenance(ctx, d.ServerID)
		})
	}
	return a.showMaintenance(c, d, http.StatusAccepted)
}

// CancelMaintenance ends what empties a server.
func (a *API) CancelMaintenance(c echo.Context, id ServerID, _ CancelMaintenanceParams) error {
	d, err := a.d.Store.CancelMaintenance(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return a.maintenanceAccepted(c, d)
}

// GetMaintenance shows what empties a server, or did last.
func (a *API) GetMaintenance(c echo.Context, id ServerID) error {
	d, err := a.d.Store.LastMaintenance(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return a.showMaintenance(c, d, http.StatusOK)
}

func (a *API) showMaintenance(c echo.Context, d server.Maintenance, status int) error {
	out := viewOf[Maintenance](d)
	out.RunUrl, out.Operation = optional(a.d.Runs.RunURL(out.WorkflowId)), *a.operation(c, out.WorkflowId)
	out.Instances, out.Tenants = []RemainingInstance{}, []RemainingTenant{}
	if !d.Status.Ended() {
		left, err := a.d.Store.RemainingInstances(c.Request().Context(), d.ServerID)
		if err != nil {
			return err
		}
		out.Instances = views(left, viewOf[RemainingInstance])
	}
	if !d.Status.Ended() && !d.KeepTenants {
		tenants, err := a.d.Store.RemainingTenants(c.Request().Context(), d.ServerID)
		if err != nil {
			return err
		}
		out.Tenants = views(tenants, viewOf[RemainingTenant])
	}
	return c.JSON(status, out)
}
