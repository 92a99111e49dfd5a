package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// PutOrg creates an org, or changes its parent or tier.
func (a *API) PutOrg(c echo.Context, id OrgID, _ PutOrgParams) error {
	var in tenant.PutOrgRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	p := caller(c)
	var heirs []store.NewGrant
	for _, role := range p.Heirs(deref(in.ParentOrgID)) {
		heirs = append(heirs, store.NewGrant{GrantID: newID("grant-"), PrincipalID: p.PrincipalID, AccessRole: role})
	}
	may := mayPutOrg(p.Reach, p.MayGiveAccess, id, in)
	org, err := a.d.Store.PutOrgIf(c.Request().Context(), id, in, may, heirs, p.By(), ifMatch(c)...)
	return answer(c, http.StatusOK, org, err, viewOf[Org])
}

// GetOrg shows an org.
func (a *API) GetOrg(c echo.Context, id OrgID, _ GetOrgParams) error {
	return a.showTagged(c, prego.ReplaceableOrg, []any{id}, func() error { return show(c, a.d.Store.GetOrg, id, viewOf[Org]) })
}

// ListOrgs shows a page of orgs, by id.
func (a *API) ListOrgs(c echo.Context, _ ListOrgsParams) error {
	return list(c, "orgs", store.Orgs.In(a.d.Store), viewOf[Org])
}
