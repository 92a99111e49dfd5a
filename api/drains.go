package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/server"
)

// DrainServer empties a server.
func (a *API) DrainServer(c echo.Context, id ServerID, _ DrainServerParams) error {
	return a.requestDrain(c, id, server.DrainOnly)
}

// RebootServer empties a server and restarts its host.
func (a *API) RebootServer(c echo.Context, id ServerID, _ RebootServerParams) error {
	return a.requestDrain(c, id, server.DrainReboot)
}

// ResizeServer empties a server and gives it another type of the provider's.
func (a *API) ResizeServer(c echo.Context, id ServerID, _ ResizeServerParams) error {
	return a.requestDrain(c, id, server.DrainResize)
}

// InstallPatches empties a server, installs security updates and restarts its host if they need that.
func (a *API) InstallPatches(c echo.Context, id ServerID, _ InstallPatchesParams) error {
	return a.requestDrain(c, id, server.DrainPatch)
}

// ReplaceServer makes another server, empties this one and deletes it.
func (a *API) ReplaceServer(c echo.Context, id ServerID, _ ReplaceServerParams) error {
	return a.requestDrain(c, id, server.DrainReplace)
}

func (a *API) requestDrain(c echo.Context, id ServerID, kind server.DrainKind) error {
	var in server.DrainRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := in.Validate(kind); err != nil {
		return err
	}
	d, err := a.d.Store.RequestDrain(c.Request().Context(), id, kind, in, caller(c).Subject)
	if err != nil {
		return err
	}
	return a.drainAccepted(c, d)
}

// drainAccepted wakes the run of a drain. If that fails, the request stays accepted: a look
// starts the run later.
func (a *API) drainAccepted(c echo.Context, d server.Drain) error {
	if !d.Status.Ended() {
		ctx, cancel := startContext(c)
		defer cancel()
		if err := a.d.Orchestrator.WakeDrain(ctx, d.ServerID); err != nil {
			a.notStarted(c, server.DrainWorkflowID(d.ServerID), err)
		}
	}
	return a.showDrain(c, d, http.StatusAccepted)
}

// CancelDrain ends what empties a server.
func (a *API) CancelDrain(c echo.Context, id ServerID) error {
	d, err := a.d.Store.CancelDrain(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return a.drainAccepted(c, d)
}

// GetDrain shows what empties a server, or did last.
func (a *API) GetDrain(c echo.Context, id ServerID) error {
	d, err := a.d.Store.LastDrain(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return a.showDrain(c, d, http.StatusOK)
}

func (a *API) showDrain(c echo.Context, d server.Drain, status int) error {
	run := server.DrainWorkflowID(d.ServerID)
	out := Drain{
		ServerId: string(d.ServerID), Number: d.Number, Kind: DrainKind(d.Kind), Status: DrainStatus(d.Status), Reason: optional(d.Reason), Message: optional(d.Message), Why: optional(d.Why),
		RequestedBy: d.RequestedBy, KeepTenants: d.KeepTenants, ServerType: optional(d.ServerType), Wave: optional(string(d.Wave)), Total: d.Total, Left: d.Left, TenantsTotal: d.TenantsTotal, TenantsLeft: d.TenantsLeft, DeadlineAt: utc(d.DeadlineAt), ReplacementId: optional(string(d.ReplacementID)),
		CancelRequestedAt: utc(d.CancelRequestedAt), CreatedAt: d.CreatedAt.UTC(), StartedAt: utc(d.StartedAt), FinishedAt: utc(d.FinishedAt), Instances: []DrainedInstance{},
		WorkflowId: run, RunUrl: optional(a.d.Orchestrator.RunURL(run)), Operation: *a.operation(c, run),
	}
	if p := d.Patched; p != nil {
		out.Patched = &PatchedServer{Installed: p.Installed, Packages: packageUpdates(p.Packages)}
	}
	if !d.Status.Ended() {
		left, err := a.d.Store.DrainedInstances(c.Request().Context(), d.ServerID)
		if err != nil {
			return err
		}
		for _, i := range left {
			out.Instances = append(out.Instances, DrainedInstance{
				InstanceId: string(i.InstanceID), GroupId: string(i.GroupID), OrgId: string(i.OrgID), State: i.State, Leaving: i.Leaving, StopsFirst: i.StopsFirst,
				Reason: optional(i.Reason), Message: optional(i.Message),
			})
		}
	}
	return c.JSON(status, out)
}
