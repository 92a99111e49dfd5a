package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/store"
)

// shownOrgs is how many of a pool's orgs are listed with it.
const shownOrgs = 200

func placementPool(p prego.PlacementPool) PlacementPool {
	out := viewOf[PlacementPool](p)
	out.Require, out.Disallow = p.Constraint.Require, p.Constraint.Disallow
	return out
}

// CreatePlacementPool creates a placement pool: a named constraint.
func (a *API) CreatePlacementPool(c echo.Context, _ CreatePlacementPoolParams) error {
	var in struct {
		Name     string   `json:"name"`
		Require  []string `json:"require"`
		Disallow []string `json:"disallow"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	constraint := prego.Constraint{Require: in.Require, Disallow: in.Disallow}
	if err := constraint.Validate(""); err != nil {
		return err
	}
	p, created, err := a.d.Store.CreatePlacementPool(c.Request().Context(), in.Name, constraint, caller(c).By())
	return answer(c, madeOrMet(created), p, err, placementPool)
}

// ListPlacementPools shows a page of pools, by name.
func (a *API) ListPlacementPools(c echo.Context, _ ListPlacementPoolsParams) error {
	return list(c, "placement_pools", store.PlacementPools.In(a.d.Store), placementPool)
}

// GetPlacementPool shows a pool and its associated orgs.
func (a *API) GetPlacementPool(c echo.Context, pool PlacementPoolInPath) error {
	ctx := c.Request().Context()
	if _, err := a.tag(c, prego.ReplaceablePlacementPool, pool); err != nil {
		return err
	}
	p, err := a.d.Store.GetPlacementPool(ctx, pool)
	if err != nil {
		return err
	}
	orgs, err := a.d.Store.PlacementPoolOrgs(ctx, pool, shownOrgs)
	if err != nil {
		return err
	}
	out := placementPool(p)
	if orgs == nil {
		orgs = []string{}
	}
	out.OrgIds = &orgs
	return c.JSON(http.StatusOK, out)
}

// PutPlacementPool replaces a pool's constraint, for placements from now on.
func (a *API) PutPlacementPool(c echo.Context, pool PlacementPoolInPath, _ PutPlacementPoolParams) error {
	var in prego.Constraint
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := in.Validate(""); err != nil {
		return err
	}
	p, err := a.d.Store.PutPlacementPool(c.Request().Context(), pool, in, caller(c).By(), ifMatch(c)...)
	return answer(c, http.StatusOK, p, err, placementPool)
}

// DeletePlacementPool deletes an unused pool.
func (a *API) DeletePlacementPool(c echo.Context, pool PlacementPoolInPath, _ DeletePlacementPoolParams) error {
	return noContent(c, a.d.Store.DeletePlacementPool(c.Request().Context(), pool))
}

// SetDefaultPlacementPool makes a pool the default of orgs without an associated one.
func (a *API) SetDefaultPlacementPool(c echo.Context, pool PlacementPoolInPath, _ SetDefaultPlacementPoolParams) error {
	return a.defaultPool(c, pool, true)
}

// UnsetDefaultPlacementPool unsets the default pool.
func (a *API) UnsetDefaultPlacementPool(
	c echo.Context, pool PlacementPoolInPath, _ UnsetDefaultPlacementPoolParams,
) error {
	return a.defaultPool(c, pool, false)
}

func (a *API) defaultPool(c echo.Context, pool string, on bool) error {
	p, err := a.d.Store.SetDefaultPool(c.Request().Context(), pool, on, caller(c).By())
	return answer(c, http.StatusOK, p, err, placementPool)
}

// ListOrgPlacementPools shows the pools that apply to an org's tenants.
func (a *API) ListOrgPlacementPools(c echo.Context, org OrgID) error {
	return a.orgPools(c, org)
}

func (a *API) orgPools(c echo.Context, org prego.OrgID) error {
	pools, err := a.d.Store.OrgPlacementPools(c.Request().Context(), org)
	if err != nil {
		return err
	}
	out := OrgPlacementPools{PlacementPools: []PlacementPool{}}
	var union prego.Constraint
	for _, p := range pools {
		out.PlacementPools = append(out.PlacementPools, placementPool(p))
		union = union.Union(p.Constraint)
	}
	out.Constraint = viewOf[Constraint](union)
	return c.JSON(http.StatusOK, out)
}

// AssociatePlacementPool applies a pool to an org's tenants.
func (a *API) AssociatePlacementPool(
	c echo.Context, org OrgID, pool PlacementPoolInPath, _ AssociatePlacementPoolParams,
) error {
	if err := a.d.Store.AssociatePool(c.Request().Context(), org, pool, caller(c).By()); err != nil {
		return err
	}
	return a.orgPools(c, org)
}

// DissociatePlacementPool stops applying a pool to an org's tenants.
func (a *API) DissociatePlacementPool(
	c echo.Context, org OrgID, pool PlacementPoolInPath, _ DissociatePlacementPoolParams,
) error {
	if err := a.d.Store.DissociatePool(c.Request().Context(), org, pool); err != nil {
		return err
	}
	return a.orgPools(c, org)
}
