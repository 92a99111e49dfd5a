package api

import (
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// regionFilter is a query's region, "" for all.
func regionFilter(p *Region) (prego.Region, error) {
	if p == nil {
		return "", nil
	}
	if r := prego.Region(*p); r.Valid() {
		return r, nil
	}
	return "", prego.Invalid("region", "must be one of sg, eu, us")
}

func checkPlanPath(c echo.Context, plan Plan) error {
	if err := onlyParameters(c); err != nil {
		return err
	}
	if !prego.Plan(plan).Valid() {
		return prego.Invalid("plan", "must be one of trial, starter, business, enterprise")
	}
	return nil
}

// ListSitePools shows what stands ready on each app server.
func (a *API) ListSitePools(c echo.Context, p ListSitePoolsParams) error {
	if err := onlyParameters(c, "region"); err != nil {
		return err
	}
	region, err := regionFilter(p.Region)
	if err != nil {
		return err
	}
	pools, err := a.d.Tenants.ListSitePools(c.Request().Context(), region)
	if err != nil {
		return err
	}
	out := SitePoolList{SitePools: make([]SitePool, 0, len(pools))}
	for _, v := range pools {
		out.SitePools = append(out.SitePools, SitePool{
			ServerId: v.ServerID, Region: Region(v.Region), Role: Role(v.Role), Status: ServerStatus(v.Status), TenantCount: v.TenantCount,
			Available: v.Available, Reserved: v.Reserved, Assigned: v.Assigned, Failed: v.Failed, Draining: v.Draining, OldestBuildAt: utc(v.OldestBuild),
		})
	}
	return c.JSON(http.StatusOK, out)
}

// RefillSitePool fills an app server's site pool now. There is no row that says so:
// when the run can't be started the caller has to ask again.
func (a *API) RefillSitePool(c echo.Context, id ServerID) error {
	if err := checkPath(c, id); err != nil {
		return err
	}
	srv, err := a.d.Store.GetServer(c.Request().Context(), id)
	switch {
	case err != nil:
		return err
	case srv.Role != prego.RoleApp && srv.Role != prego.RoleNode:
		return prego.Invalid("server_id", "must be an app server or a node; this is a "+string(srv.Role))
	case srv.Status != server.Active:
		return prego.Errorf(prego.CodeInvalidTransition, "only an active server is filled with sites; this one is %s", srv.Status)
	}
	ctx, cancel := startContext(c)
	defer cancel()
	run, err := a.d.TenantRuns.StartRefill(ctx, id)
	if err != nil {
		a.d.Log.Warn("refill not started", zap.String("request_id", requestID(c)), zap.String("error", prego.Redact(err.Error())))
		return prego.Errorf(prego.CodeNotReady, "the workflow engine does not answer; try again")
	}
	return c.JSON(http.StatusAccepted, WorkflowStarted{WorkflowId: run})
}

// ListSitePoolPolicies shows how many sites are kept.
func (a *API) ListSitePoolPolicies(c echo.Context) error {
	if err := onlyParameters(c); err != nil {
		return err
	}
	policies, err := a.d.Tenants.SitePoolPolicies(c.Request().Context())
	if err != nil {
		return err
	}
	out := SitePoolPolicyList{SitePoolPolicies: []SitePoolPolicy{}}
	for _, p := range policies {
		out.SitePoolPolicies = append(out.SitePoolPolicies, sitePoolPolicy(p))
	}
	return c.JSON(http.StatusOK, out)
}

func sitePoolPolicy(p tenant.SitePoolPolicy) SitePoolPolicy {
	return SitePoolPolicy{Plan: Plan(p.Plan), LowWatermark: p.LowWatermark, Target: p.Target, SloSeconds: p.SLOSeconds}
}

// Bounds of a site pool's policy: sites per app server, and seconds.
const (
	maxSitePool = 100
	maxSLO      = 86_400
)

// PutSitePoolPolicy replaces the policy of a plan tier.
func (a *API) PutSitePoolPolicy(c echo.Context, plan PlanInPath) error {
	if err := checkPlanPath(c, plan); err != nil {
		return err
	}
	var in struct {
		LowWatermark *int `json:"low_watermark"`
		Target       *int `json:"target"`
		SLOSeconds   *int `json:"slo_seconds"`
	}
	if err := decodeBody(c.Response(), c.Request(), &in); err != nil {
		return err
	}
	switch {
	case in.LowWatermark == nil || *in.LowWatermark < 0 || *in.LowWatermark > maxSitePool:
		return prego.Invalid("low_watermark", fmt.Sprintf("is required, 0 to %d sites", maxSitePool))
	case in.Target == nil || *in.Target < 0 || *in.Target > maxSitePool:
		return prego.Invalid("target", fmt.Sprintf("is required, 0 to %d sites", maxSitePool))
	case *in.Target < *in.LowWatermark:
		return prego.Invalid("target", "must be at least low_watermark")
	case in.SLOSeconds == nil || *in.SLOSeconds < 1 || *in.SLOSeconds > maxSLO:
		return prego.Invalid("slo_seconds", fmt.Sprintf("is required, 1 to %d seconds", maxSLO))
	}
	p := tenant.SitePoolPolicy{Plan: prego.Plan(plan), LowWatermark: *in.LowWatermark, Target: *in.Target, SLOSeconds: *in.SLOSeconds}
	if err := a.d.Tenants.PutSitePoolPolicy(c.Request().Context(), p); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, sitePoolPolicy(p))
}

// ListWarmPools shows the warm server pools.
func (a *API) ListWarmPools(c echo.Context) error {
	if err := onlyParameters(c); err != nil {
		return err
	}
	pools, err := a.d.Tenants.ListWarmPools(c.Request().Context())
	if err != nil {
		return err
	}
	out := WarmPoolList{WarmPools: []WarmPool{}}
	for _, p := range pools {
		out.WarmPools = append(out.WarmPools, WarmPool{
			Region: Region(p.Region), Plan: Plan(p.Plan), Target: p.Target, Claimable: p.Claimable, Building: p.Building,
			UpdatedBy: p.UpdatedBy, UpdatedAt: p.UpdatedAt.UTC(),
		})
	}
	return c.JSON(http.StatusOK, out)
}

// PutWarmPool sets how many servers stand ready. When the run that fills the pool
// can't be started the target stands all the same: the sweep starts it later.
func (a *API) PutWarmPool(c echo.Context, region RegionInPath, plan PlanInPath) error {
	if err := checkPlanPath(c, plan); err != nil {
		return err
	}
	r, err := regionFilter(&region)
	if err != nil {
		return err
	}
	var in struct {
		Target *int `json:"target"`
	}
	if err := decodeBody(c.Response(), c.Request(), &in); err != nil {
		return err
	}
	if in.Target == nil || *in.Target < 0 || *in.Target > tenant.MaxWarmPool {
		return prego.Invalid("target", fmt.Sprintf("is required, 0 to %d servers", tenant.MaxWarmPool))
	}
	if err := a.d.Tenants.PutWarmPool(c.Request().Context(), r, prego.Plan(plan), *in.Target, caller(c).Subject); err != nil {
		return err
	}
	ctx, cancel := startContext(c)
	defer cancel()
	run, err := a.d.TenantRuns.StartWarmPool(ctx, r, prego.Plan(plan))
	if err != nil {
		run = ""
		a.leftToTheSweep(c, "warm-pool", err)
	}
	return c.JSON(http.StatusAccepted, WarmPoolAccepted{Region: region, Plan: plan, Target: *in.Target, WorkflowId: optional(run)})
}

// ListScalingEvents shows what made the fleet grow.
func (a *API) ListScalingEvents(c echo.Context, p ListScalingEventsParams) error {
	if err := onlyParameters(c, "region", "limit"); err != nil {
		return err
	}
	region, err := regionFilter(p.Region)
	if err != nil {
		return err
	}
	limit := 50
	if p.Limit != nil {
		limit = *p.Limit
	}
	if limit < 1 || limit > 200 {
		return prego.Invalid("limit", "must be 1 to 200")
	}
	events, err := a.d.Tenants.ListScalingEvents(c.Request().Context(), region, limit)
	if err != nil {
		return err
	}
	out := ScalingEventList{ScalingEvents: []ScalingEvent{}}
	for _, e := range events {
		out.ScalingEvents = append(out.ScalingEvents, ScalingEvent{
			Id: e.EventID, Region: Region(e.Region), Role: Role(e.Role), Trigger: ScalingEventTrigger(e.Trigger), Waiting: e.Waiting,
			Requested: e.Requested, Made: e.Made, ServerIds: e.ServerIDs, WorkflowId: e.WorkflowID, RunUrl: optional(a.d.Orchestrator.RunURL(e.WorkflowID)),
			Message: optional(e.Message), CreatedAt: e.CreatedAt.UTC(), FinishedAt: utc(e.FinishedAt),
		})
	}
	return c.JSON(http.StatusOK, out)
}
