package api

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/store"
)

func (a *API) domainView(d org.Domain) Domain {
	out := viewOf[Domain](d)
	out.Records = views(d.Records(a.d.Resources.SiteDomain), viewOf[DomainRecord])
	return out
}

// claim records that an org wants a name served, and returns the DNS records to create.
func (a *API) claim(c echo.Context, d org.Domain) error {
	var err error
	if d.Name, err = org.NormalizeDomain(d.Name, a.d.Resources.SiteDomain); err != nil {
		return err
	}
	d.DomainID, d.Token = prego.DomainID(newID("dom-")), org.NewDomainToken()
	d, err = a.d.Store.ClaimDomain(c.Request().Context(), d, caller(c).By())
	return answer(c, http.StatusCreated, d, err, a.domainView)
}

// CreateDomain claims a name for an org's routes.
func (a *API) CreateDomain(c echo.Context, _ CreateDomainParams) error {
	var in struct {
		OrgID prego.OrgID `json:"org_id"`
		Name  string      `json:"name"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	return a.claim(c, org.Domain{OrgID: in.OrgID, Name: in.Name})
}

// CreateTenantDomain claims a name for a tenant's site.
func (a *API) CreateTenantDomain(c echo.Context, tenant TenantID, _ CreateTenantDomainParams) error {
	var in struct {
		Name string `json:"name"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	return a.claim(c, org.Domain{TenantID: tenant, Name: in.Name})
}

// ListDomains shows a page of domains.
func (a *API) ListDomains(c echo.Context, _ ListDomainsParams) error {
	return list(c, "domains", named("name", store.Domains.In(a.d.Store)), a.domainView)
}

// ListTenantDomains shows a page of a tenant's domains.
func (a *API) ListTenantDomains(c echo.Context, tenant TenantID, _ ListTenantDomainsParams) error {
	return within(c, a.d.Store.GetTenant, "domains", named("name", store.Domains.In(a.d.Store)), a.domainView,
		"tenant_id", string(tenant))
}

// GetDomain shows a domain.
func (a *API) GetDomain(c echo.Context, id DomainInPath) error {
	return show(c, a.d.Store.GetDomain, string(id), a.domainView)
}

// CheckDomain has a name looked up now.
func (a *API) CheckDomain(c echo.Context, id DomainInPath, _ CheckDomainParams) error {
	d, err := a.d.Store.CheckDomain(c.Request().Context(), id)
	return answer(c, http.StatusOK, d, err, a.domainView)
}

// DeleteDomain gives a name up.
func (a *API) DeleteDomain(c echo.Context, id DomainInPath, _ DeleteDomainParams) error {
	return noContent(c, a.d.Store.DeleteDomain(c.Request().Context(), id, caller(c).By()))
}

// DeleteTenantDomain gives a tenant's name up.
func (a *API) DeleteTenantDomain(c echo.Context, tenant TenantID, id DomainInPath, _ DeleteTenantDomainParams) error {
	return noContent(c, a.deleteTenantDomain(c.Request().Context(), tenant, id, caller(c).By()))
}

func (a *API) deleteTenantDomain(ctx context.Context, tenant prego.TenantID, id prego.DomainID, by string) error {
	d, err := a.d.Store.GetDomain(ctx, string(id))
	if err != nil {
		return err
	}
	if d.TenantID != tenant {
		return prego.Errorf(prego.CodeDomainNotFound, "there is no domain %q of this tenant", id)
	}
	return a.d.Store.DeleteDomain(ctx, id, by)
}
