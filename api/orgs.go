package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
)

func checkOrgPath(c echo.Context, id string) error {
	if err := onlyParameters(c); err != nil {
		return err
	}
	return prego.ValidateOrgID("org_id", id)
}

func orgView(o org.Org) Org {
	return Org{OrgId: o.OrgID, Tier: Tier(o.Tier), ParentOrgId: optional(o.ParentOrgID), CreatedBy: o.CreatedBy, CreatedAt: o.CreatedAt.UTC()}
}

// PutOrg makes an org, or changes its parent or tier.
func (a *API) PutOrg(c echo.Context, id OrgID) error {
	if err := checkOrgPath(c, id); err != nil {
		return err
	}
	var in struct {
		ParentOrgID string     `json:"parent_org_id"`
		Tier        prego.Tier `json:"tier"`
	}
	if err := decodeBody(c.Response(), c.Request(), &in); err != nil {
		return err
	}
	if in.ParentOrgID != "" {
		if err := prego.ValidateOrgID("parent_org_id", in.ParentOrgID); err != nil {
			return err
		}
	}
	if in.Tier != "" && !in.Tier.Valid() {
		return prego.Invalid("tier", "must be free, paid or enterprise")
	}
	org, err := a.d.Tenants.PutOrg(c.Request().Context(), org.Org{OrgID: id, ParentOrgID: in.ParentOrgID, Tier: in.Tier}, caller(c).Subject)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, orgView(org))
}

// GetOrg shows an org.
func (a *API) GetOrg(c echo.Context, id OrgID) error {
	if err := checkOrgPath(c, id); err != nil {
		return err
	}
	org, err := a.d.Tenants.GetOrg(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, orgView(org))
}

// ListOrgs shows a page of orgs, by id.
func (a *API) ListOrgs(c echo.Context, p ListOrgsParams) error {
	if err := onlyParameters(c, "limit", "cursor"); err != nil {
		return err
	}
	after := ""
	if p.Cursor != nil {
		after = *p.Cursor
		if err := prego.ValidateOrgID("cursor", after); err != nil {
			return err
		}
	}
	limit, err := pageSize(p.Limit)
	if err != nil {
		return err
	}
	orgs, more, err := a.d.Tenants.ListOrgs(c.Request().Context(), after, limit)
	if err != nil {
		return err
	}
	out := OrgPage{Orgs: []Org{}}
	for _, o := range orgs {
		out.Orgs = append(out.Orgs, orgView(o))
	}
	if more {
		out.NextCursor = &out.Orgs[len(out.Orgs)-1].OrgId
	}
	return c.JSON(http.StatusOK, out)
}
