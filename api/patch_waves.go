package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/store"
)

// ListPatchWaves shows a page of waves.
func (a *API) ListPatchWaves(c echo.Context, _ ListPatchWavesParams) error {
	return list(c, "patch_waves", store.PatchWaves.In(a.d.Store), viewOf[PatchWave])
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
	out := viewOf[PatchWave](w)
	out.Members, out.Timeline = new(views(servers, viewOf[PatchWaveServer])), new(views(steps, viewOf[PatchWaveStep]))
	return c.JSON(http.StatusOK, out)
}
