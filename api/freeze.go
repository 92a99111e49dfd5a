package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/ops"
)

// GetFreeze shows whether deletions are frozen.
func (a *API) GetFreeze(c echo.Context) error {
	f, err := a.d.Store.Frozen(c.Request().Context())
	return answer(c, http.StatusOK, f, err, viewOf[Freeze])
}

// Freeze stops everything that deletes.
func (a *API) Freeze(c echo.Context, _ FreezeParams) error {
	var in FreezeRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	f, err := a.d.Store.Freeze(c.Request().Context(), in.Reason, caller(c).By())
	return answer(c, http.StatusOK, f, err, viewOf[Freeze])
}

// Unfreeze lets deletions continue.
func (a *API) Unfreeze(c echo.Context, _ UnfreezeParams) error {
	err := a.d.Store.Unfreeze(c.Request().Context(), caller(c).By())
	return answer(c, http.StatusOK, ops.Freeze{}, err, viewOf[Freeze])
}
