package api

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// ListProviders shows the clouds that servers can be made on.
func (a *API) ListProviders(c echo.Context) error {
	return every(c, "providers", a.d.Store.Providers, viewOf[Provider])
}

// GetProvider shows a cloud.
func (a *API) GetProvider(c echo.Context, id ProviderInPath) error {
	is := func(p server.Provider) bool { return string(p.Provider) == string(id) }
	return oneOf(c, a.d.Store.Providers, is, viewOf[Provider])
}

// PatchProvider changes whether and where servers are made on a cloud.
func (a *API) PatchProvider(c echo.Context, id ProviderInPath, _ PatchProviderParams) error {
	var in server.ProviderChange
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := a.d.Store.ChangeProvider(c.Request().Context(), prego.InfraProviderID(id), in); err != nil {
		return err
	}
	return a.GetProvider(c, id)
}

// ListResidencyZones shows where data of countries may be.
func (a *API) ListResidencyZones(c echo.Context) error {
	return every(c, "residency_zones", a.d.Store.ResidencyZones, zoneView)
}

func zoneView(z server.ResidencyZone) ResidencyZone {
	out := viewOf[ResidencyZone](z)
	if len(z.Providers) == 0 {
		out.Providers = nil
	}
	return out
}

// GetResidencyZone shows where data of a country may be.
func (a *API) GetResidencyZone(c echo.Context, country CountryInPath) error {
	is := func(z server.ResidencyZone) bool { return z.Country == country }
	return oneOf(c, a.d.Store.ResidencyZones, is, zoneView)
}

// PutResidencyZone sets where data of a country may be.
func (a *API) PutResidencyZone(c echo.Context, country CountryInPath, _ PutResidencyZoneParams) error {
	var in struct {
		Regions   []prego.Region          `json:"regions"`
		Providers []prego.InfraProviderID `json:"providers"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	z := server.ResidencyZone{Country: country, Regions: in.Regions, Providers: in.Providers}
	if err := a.d.Store.PutResidencyZone(c.Request().Context(), z); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, zoneView(z))
}

// ListCapacityDefaults shows how many tenants new servers have room for.
func (a *API) ListCapacityDefaults(c echo.Context) error {
	return every(c, "capacity_defaults", a.d.Store.CapacityDefaults, viewOf[CapacityDefault])
}

// GetCapacityDefault shows how many tenants new servers of a role have room for.
func (a *API) GetCapacityDefault(c echo.Context, role CapacityRoleInPath) error {
	is := func(d server.CapacityDefault) bool { return string(d.Role) == string(role) }
	return oneOf(c, a.d.Store.CapacityDefaults, is, viewOf[CapacityDefault])
}

// PutCapacityDefault sets how many tenants new servers of a role have room for.
func (a *API) PutCapacityDefault(c echo.Context, role CapacityRoleInPath, _ PutCapacityDefaultParams) error {
	var in struct {
		TenantCapacity int `json:"tenant_capacity"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	d := server.CapacityDefault{Role: prego.Role(role), TenantCapacity: in.TenantCapacity}
	if err := a.d.Store.PutCapacityDefault(c.Request().Context(), d); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, viewOf[CapacityDefault](d))
}

// oneOf answers with the requested item of a short list.
func oneOf[T, V any](c echo.Context, list func(context.Context) ([]T, error), is func(T) bool, view func(T) V) error {
	all, err := list(c.Request().Context())
	one, err := among(all, err, is)
	return answer(c, http.StatusOK, one, err, view)
}
