package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// ListPatchWaves shows a page of waves.
func (a *API) ListPatchWaves(c echo.Context, _ ListPatchWavesParams) error {
	return list(c, "patch_waves", a.d.Store.ListPatchWaves, patchWaveView)
}

// GetPatchWave shows a wave with its servers and its timeline.
func (a *API) GetPatchWave(c echo.Context, id prego.PatchWaveID) error {
	ctx := c.Request().Context()
	w, err := a.d.Store.GetPatchWave(ctx, id)
	if err != nil {
		return err
	}
	servers, err := a.d.Store.PatchWaveServers(ctx, id)
	if err != nil {
		return err
	}
	steps, err := a.d.Store.PatchWaveSteps(ctx, id)
	if err != nil {
		return err
	}
	out := patchWaveView(w)
	out.Members = new(views(servers, func(s server.PatchWaveServer) PatchWaveServer {
		v := PatchWaveServer{
			ServerId: string(s.ServerID), FleetId: optional(string(s.FleetID)), Status: MaintenanceStatus(s.Status), Reason: optional(s.Reason), Message: optional(s.Message),
			CreatedAt: s.CreatedAt.UTC(), StartedAt: utc(s.StartedAt), FinishedAt: utc(s.FinishedAt),
		}
		if p := s.Patched; p != nil {
			v.Patched = &PatchedServer{Installed: p.Installed, Packages: packageUpdates(p.Packages)}
		}
		return v
	}))
	out.Timeline = new(views(steps, func(s server.PatchWaveStep) PatchWaveStep {
		return PatchWaveStep{At: s.At.UTC(), ServerId: string(s.ServerID), Step: string(s.Step), Reason: optional(string(s.Reason)), Message: optional(s.Message)}
	}))
	return c.JSON(http.StatusOK, out)
}

func patchWaveView(w server.PatchWave) PatchWave {
	return PatchWave{
		WaveId: string(w.WaveID), RequestedBy: w.RequestedBy, Why: optional(w.Why), Fleets: prego.Strings(w.Fleets), Servers: w.Servers, Done: w.Done, Failed: w.Failed, Cancelled: w.Cancelled,
		Installed: w.Installed, CreatedAt: w.CreatedAt.UTC(), FinishedAt: utc(w.FinishedAt),
	}
}
