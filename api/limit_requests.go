package api

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
)

// ListLimitRequests shows a page of requests for higher limits: the open ones are operators' queue.
func (a *API) ListLimitRequests(c echo.Context, _ ListLimitRequestsParams) error {
	return list(c, "limit_requests", a.d.Store.ListLimitRequests, viewOf[LimitRequest])
}

// GetLimitRequest shows a request for a higher limit.
func (a *API) GetLimitRequest(c echo.Context, id LimitRequestInPath) error {
	r, err := a.d.Store.GetLimitRequest(c.Request().Context(), id)
	return answer(c, http.StatusOK, r, err, viewOf[LimitRequest])
}

// CreateLimitRequest requests a higher limit for an org.
func (a *API) CreateLimitRequest(c echo.Context, _ CreateLimitRequestParams) error {
	var in struct {
		OrgID     prego.OrgID `json:"org_id"`
		Dimension string      `json:"dimension"`
		Limit     float64     `json:"limit"`
		Reason    string      `json:"reason"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := quota.ValidateLimit(quota.Dimension(in.Dimension), in.Limit); err != nil {
		return err
	}
	r, err := a.d.Store.CreateLimitRequest(c.Request().Context(), org.LimitRequest{
		LimitRequestID: newID("lreq-"), OrgID: in.OrgID, Dimension: in.Dimension, RequestedLimit: in.Limit,
		Reason: strings.TrimSpace(in.Reason), CreatedBy: caller(c).By(),
	})
	return answer(c, http.StatusCreated, r, err, viewOf[LimitRequest])
}

// ApproveLimitRequest sets the org's limit.
func (a *API) ApproveLimitRequest(c echo.Context, id LimitRequestInPath, _ ApproveLimitRequestParams) error {
	var in struct {
		Limit  *float64 `json:"limit"`
		Reason string   `json:"reason"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	ctx := c.Request().Context()
	if in.Limit != nil {
		r, err := a.d.Store.GetLimitRequest(ctx, id)
		if err != nil {
			return err
		}
		if err := quota.ValidateLimit(quota.Dimension(r.Dimension), *in.Limit); err != nil {
			return err
		}
	}
	r, err := a.d.Store.ApproveLimitRequest(ctx, id, deref(in.Limit), caller(c).By(), strings.TrimSpace(in.Reason))
	return answer(c, http.StatusOK, r, err, viewOf[LimitRequest])
}

// RefuseLimitRequest ends a request, with the reason.
func (a *API) RefuseLimitRequest(c echo.Context, id LimitRequestInPath, _ RefuseLimitRequestParams) error {
	var in struct {
		Reason string `json:"reason"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	r, err := a.d.Store.EndLimitRequest(c.Request().Context(), id, org.LimitRefused, caller(c).By(), strings.TrimSpace(in.Reason))
	return answer(c, http.StatusOK, r, err, viewOf[LimitRequest])
}

// WithdrawLimitRequest ends a request that its org no longer needs.
func (a *API) WithdrawLimitRequest(c echo.Context, id LimitRequestInPath, _ WithdrawLimitRequestParams) error {
	r, err := a.d.Store.EndLimitRequest(c.Request().Context(), id, org.LimitWithdrawn, caller(c).By(), "")
	return answer(c, http.StatusOK, r, err, viewOf[LimitRequest])
}
