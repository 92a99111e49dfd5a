package api

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/pack"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// shownMoves bounds the moves that are shown with a rebalance.
const shownMoves = 200

// PlanPacking finds moves that empty app servers. It changes nothing.
func (a *API) PlanPacking(c echo.Context, _ PlanPackingParams) error {
	var in server.PackingRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	f, catalogs, err := a.packedFleet(c.Request().Context(), in.Region)
	if err != nil {
		return err
	}
	plan, err := pack.Plan(f, catalogs, a.d.Usable, in, time.Now().UTC())
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, plan)
}

// packedFleet reads what packing plans are made from.
func (a *API) packedFleet(ctx context.Context, region prego.Region) (f server.PackedFleet, catalogs map[prego.InfraProviderID]server.CatalogState, err error) {
	if f, err = a.d.Store.PackedFleet(ctx, region); err != nil {
		return f, nil, err
	}
	catalogs = map[prego.InfraProviderID]server.CatalogState{}
	for _, s := range f.Servers {
		if _, read := catalogs[s.InfraProvider]; read {
			continue
		}
		if catalogs[s.InfraProvider], err = a.d.Store.ProviderCatalog(ctx, s.InfraProvider); err != nil {
			return f, nil, err
		}
	}
	return f, catalogs, nil
}

// CreateRebalance carries out a packing plan. A worker's look does it.
func (a *API) CreateRebalance(c echo.Context, _ CreateRebalanceParams) error {
	var in server.RebalanceRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	r, err := a.d.Store.StartRebalance(c.Request().Context(), prego.RebalanceID(newID("reb-")), in, caller(c).By())
	if err != nil {
		return err
	}
	return a.showRebalance(c, http.StatusAccepted, r)
}

// ListRebalances shows a page of rebalances.
func (a *API) ListRebalances(c echo.Context, _ ListRebalancesParams) error {
	return list(c, "rebalances", store.Rebalances.In(a.d.Store), rebalanceView)
}

// GetRebalance shows a rebalance.
func (a *API) GetRebalance(c echo.Context, id prego.RebalanceID) error {
	r, err := a.d.Store.GetRebalance(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return a.showRebalance(c, http.StatusOK, r)
}

// CancelRebalance begins nothing more.
func (a *API) CancelRebalance(c echo.Context, id prego.RebalanceID, _ CancelRebalanceParams) error {
	r, err := a.d.Store.CancelRebalance(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return a.showRebalance(c, http.StatusAccepted, r)
}

func (a *API) showRebalance(c echo.Context, status int, r server.Rebalance) error {
	moves, err := a.d.Store.RebalanceMoves(c.Request().Context(), r.RebalanceID, false, shownMoves)
	if err != nil {
		return err
	}
	out := rebalanceView(r)
	out.Moves = views(moves, viewOf[RebalanceMove])
	return c.JSON(status, out)
}

func rebalanceView(r server.Rebalance) Rebalance {
	out := viewOf[Rebalance](r)
	out.Moves = []RebalanceMove{}
	return out
}
