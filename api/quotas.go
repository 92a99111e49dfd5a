package api

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
)

// ListOrgQuotas shows what an org may use, and what it uses.
func (a *API) ListOrgQuotas(c echo.Context, id OrgID) error {
	ctx := c.Request().Context()
	org, err := a.d.Store.GetOrg(ctx, id)
	if err != nil {
		return err
	}
	quotas, err := a.d.Store.OrgQuotas(ctx, id)
	if err != nil {
		return err
	}
	out := OrgQuotas{OrgId: string(id), Tier: org.Tier, Quotas: make([]OrgQuota, len(quotas))}
	for i, q := range quotas {
		out.Quotas[i] = quotaView(q)
	}
	return c.JSON(http.StatusOK, out)
}

func quotaView(q org.Quota) OrgQuota {
	out := viewOf[OrgQuota](q)
	out.Source, out.Headroom = "tier", q.Headroom()
	if q.Override {
		out.Source = "override"
	}
	return out
}

// GetOrgQuota shows one limit of an org, and its usage.
func (a *API) GetOrgQuota(c echo.Context, id OrgID, dimension DimensionInPath) error {
	if _, err := a.tag(c, prego.ReplaceableQuota, id, dimension); err != nil {
		return err
	}
	all, err := a.d.Store.OrgQuotas(c.Request().Context(), id)
	q, err := among(all, err, func(q org.Quota) bool { return q.Dimension == dimension })
	return answer(c, http.StatusOK, q, err, quotaView)
}

// SetOrgQuota sets an org's own limit.
func (a *API) SetOrgQuota(c echo.Context, id OrgID, dimension DimensionInPath, _ SetOrgQuotaParams) error {
	d := quota.Dimension(dimension)
	var in SetQuota
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := quota.ValidateLimit(d, in.Limit); err != nil {
		return err
	}
	q, err := a.d.Store.SetQuota(c.Request().Context(), id, d, in.Limit+0, caller(c).By(), strings.TrimSpace(in.Reason), ifMatch(c)...) // -0 is 0
	return answer(c, http.StatusOK, q, err, quotaView)
}

// UnsetOrgQuota returns an org to its tier's limit.
func (a *API) UnsetOrgQuota(c echo.Context, id OrgID, dimension DimensionInPath, _ UnsetOrgQuotaParams) error {
	d := quota.Dimension(dimension)
	var in QuotaReason
	if err := decode(c, &in); err != nil {
		return err
	}
	q, err := a.d.Store.UnsetQuota(c.Request().Context(), id, d, caller(c).By(), strings.TrimSpace(deref(in.Reason)))
	return answer(c, http.StatusOK, q, err, quotaView)
}

// ListOrgEvents shows a page of an org's events, newest first.
func (a *API) ListOrgEvents(c echo.Context, id OrgID, _ ListOrgEventsParams) error {
	return within(c, a.d.Store.GetOrg, "events", a.d.Store.ListOrgEvents, viewOf[OrgEvent], "org_id", id)
}
