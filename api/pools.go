package api

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// ListSitePools shows the site pool of each app server, or what of them is on some servers.
func (a *API) ListSitePools(c echo.Context, p ListSitePoolsParams) error {
	return every(c, "site_pools", func(ctx context.Context) ([]tenant.SitePool, error) {
		return a.d.Store.ListSitePools(ctx, deref(p.Region), deref(p.ServerId)...)
	}, viewOf[SitePool])
}

// RefillSitePool refills an app server's site pool now. No row records the request: if
// the run can't be started, the caller has to ask again.
func (a *API) RefillSitePool(c echo.Context, id ServerID, _ RefillSitePoolParams) error {
	srv, err := a.d.Store.GetServer(c.Request().Context(), id)
	switch {
	case err != nil:
		return err
	case srv.Role != prego.RoleApp && srv.Role != prego.RoleNode:
		return prego.Invalid("server_id", "must be an app server or a node; this is a "+string(srv.Role))
	case srv.Status != server.Active:
		return prego.Errorf(prego.CodeInvalidTransition, "sites are only built on active servers; this one is %s", srv.Status)
	}
	ctx, cancel := startContext(c)
	defer cancel()
	run, err := a.d.Runs.StartRefill(ctx, id)
	if err != nil {
		a.d.Log.Warn("refill not started", zap.String("request_id", requestID(c)), zap.String("error", prego.Redact(err.Error())))
		return prego.Errorf(prego.CodeNotReady, "the workflow engine does not answer; try again")
	}
	return c.JSON(http.StatusAccepted, WorkflowStarted{WorkflowId: run, Operation: a.operation(c, run)})
}

// ListSitePoolPolicies shows how many sites are kept.
func (a *API) ListSitePoolPolicies(c echo.Context) error {
	return every(c, "site_pool_policies", a.d.Store.SitePoolPolicies, viewOf[SitePoolPolicy])
}

// GetSitePoolPolicy shows how many sites are kept for a plan.
func (a *API) GetSitePoolPolicy(c echo.Context, plan PlanInPath, _ GetSitePoolPolicyParams) error {
	return a.showTagged(c, prego.ReplaceableSitePoolPolicy, []any{plan}, func() error {
		all, err := a.d.Store.SitePoolPolicies(c.Request().Context())
		p, err := among(all, err, func(p tenant.SitePoolPolicy) bool { return p.Plan == plan })
		return answer(c, http.StatusOK, p, err, viewOf[SitePoolPolicy])
	})
}

// PutSitePoolPolicy replaces the policy of a plan tier.
func (a *API) PutSitePoolPolicy(c echo.Context, plan PlanInPath, _ PutSitePoolPolicyParams) error {
	var in PutSitePoolPolicy
	if err := decode(c, &in); err != nil {
		return err
	}
	if in.Target < in.LowWatermark {
		return prego.Invalid("target", "must be at least low_watermark")
	}
	p := tenant.SitePoolPolicy{Plan: plan, LowWatermark: in.LowWatermark, Target: in.Target, SLOSeconds: in.SloSeconds}
	if err := a.d.Store.PutSitePoolPolicy(c.Request().Context(), p, ifMatch(c)...); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, viewOf[SitePoolPolicy](p))
}

// ListWarmPools shows the warm server pools.
func (a *API) ListWarmPools(c echo.Context) error {
	return every(c, "warm_pools", a.d.Store.ListWarmPools, viewOf[WarmPool])
}

// GetWarmPool shows one warm pool.
func (a *API) GetWarmPool(c echo.Context, region RegionInPath, plan PlanInPath) error {
	if _, err := a.tag(c, prego.ReplaceableWarmPool, region, plan); err != nil {
		return err
	}
	all, err := a.d.Store.ListWarmPools(c.Request().Context())
	p, err := among(all, err, func(p tenant.WarmPool) bool { return p.Region == region && p.Plan == plan })
	return answer(c, http.StatusOK, p, err, viewOf[WarmPool])
}

// PutWarmPool sets the number of warm servers. If the run that fills the pool can't be
// started, the target is stored all the same: the sweep starts it later.
func (a *API) PutWarmPool(c echo.Context, region RegionInPath, plan PlanInPath, _ PutWarmPoolParams) error {
	var in PutWarmPool
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := a.d.Store.PutWarmPool(c.Request().Context(), region, plan, in.Target, caller(c).By(), ifMatch(c)...); err != nil {
		return err
	}
	ctx, cancel := startContext(c)
	defer cancel()
	run, err := a.d.Runs.StartWarmPool(ctx, region, plan)
	if err != nil {
		run = ""
		a.notStarted(c, "warm-pool", err)
	}
	out := WarmPoolAccepted{Region: region, Plan: plan, Target: in.Target, WorkflowId: optional(run)}
	out.Operation = a.operation(c, tenant.WarmPoolWorkflowID(a.d.Resources.Environment, region, plan))
	return c.JSON(http.StatusAccepted, out)
}

// ListScalingEvents shows what made the fleet grow.
func (a *API) ListScalingEvents(c echo.Context, _ ListScalingEventsParams) error {
	return list(c, "scaling_events", store.ScalingEvents.In(a.d.Store), a.scalingEventView)
}

func (a *API) scalingEventView(e tenant.ScalingEvent) ScalingEvent {
	out := viewOf[ScalingEvent](e)
	out.RunUrl = optional(a.d.Runs.RunURL(e.WorkflowID))
	return out
}
