package api

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/ops"
)

// GetOverview shows the installation in a few numbers.
func (a *API) GetOverview(c echo.Context) error {
	o, err := a.d.Store.Overview(c.Request().Context(), time.Now().UTC())
	return answer(c, http.StatusOK, o, err, overviewView)
}

func overviewView(o ops.Overview) Overview {
	costs := OverviewCosts{
		Month: o.Costs.Month.Format("2006-01"), Currency: optional(o.Costs.Currency), Total: o.Costs.Total.String(),
		Kinds: []OverviewKind{}, Days: []CostDay{},
	}
	for _, k := range o.Costs.Kinds {
		costs.Kinds = append(costs.Kinds, OverviewKind{Kind: k.Kind, Cost: k.Cost.String()})
	}
	for _, d := range o.Costs.Days {
		costs.Days = append(costs.Days, costDayView(d))
	}
	return Overview{
		Tenants: viewOf[OverviewTenants](o.Tenants), Sites: viewOf[OverviewSites](o.Sites),
		Servers: viewOf[OverviewServers](o.Servers), Waiting: viewOf[OverviewWaiting](o.Waiting),
		Costs: costs, AsOf: o.AsOf.UTC(),
	}
}
