package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/placement/scale"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// ScaleOutInput names a region and what it may be short of.
type ScaleOutInput struct {
	Region     prego.Region `json:"region"`
	Role       prego.Role   `json:"role"`
	Trigger    string       `json:"trigger"` // scale_out_required, threshold
	WorkflowID string       `json:"workflow_id"`
	// Key makes the servers' names: the same key gives the same names.
	Key string `json:"key"`
}

// ScaleOutPlan lists the servers to create.
type ScaleOutPlan struct {
	EventID int64       `json:"event_id"` // 0 if there is nothing to do
	Servers []ServerRef `json:"servers"`
	Waiting int         `json:"waiting"`
}

// PlanScaleOut sizes a scale-out for all waiting tenants, minus existing capacity and
// servers already being provisioned, within the ceilings, and requests the servers
// (placement-policy §3).
func (a *Tenants) PlanScaleOut(ctx context.Context, in ScaleOutInput) (ScaleOutPlan, error) {
	round, begun, err := a.Store.FindScaling(ctx, in.WorkflowID, in.Key)
	if err != nil {
		return ScaleOutPlan{}, err
	}
	demand, err := a.demand(ctx, in.Region, in.Role)
	if err != nil {
		return ScaleOutPlan{}, err
	}
	if !begun {
		if round, err = a.sizeScaleOut(ctx, in, demand); err != nil {
			return ScaleOutPlan{}, err
		}
		wanted := round.Requested
		if wanted > 0 {
			round, err = a.Store.BeginFleetScaling(ctx, round, scale.Plan)
		}
		if err != nil {
			return ScaleOutPlan{}, err
		}
		if round.Requested < wanted {
			a.atCeiling(in.Region, in.Role, round.Message)
		}
	}
	plan := ScaleOutPlan{EventID: round.EventID, Waiting: round.Waiting}
	a.hook("scale_out/requested")
	for _, id := range round.ServerIDs {
		srv, err := a.Store.GetServer(ctx, id)
		if err != nil {
			return plan, fromStore(err)
		}
		plan.Servers = append(plan.Servers, ServerRef{ServerID: srv.ServerID, Generation: srv.Generation})
	}
	return plan, nil
}

// aboveThreshold reports whether so much of the capacity is used that the fleet should
// grow ahead of need (placement-policy §3); a threshold of 0 disables that.
func (a *Tenants) aboveThreshold(o tenant.ShortOf) bool {
	return a.Settings.ThresholdPct > 0 && o.UsedPct >= a.Settings.ThresholdPct
}

// sizeScaleOut decides what one round requests.
func (a *Tenants) sizeScaleOut(ctx context.Context, in ScaleOutInput, demand []tenant.Demand) (tenant.ScalingRound, error) {
	o := demand[0].ShortOf
	round := tenant.ScalingRound{Round: in.Key, ScalingEvent: tenant.ScalingEvent{Region: in.Region, Role: in.Role, Trigger: in.Trigger, WorkflowID: in.WorkflowID}}
	round.Waiting = waitingIn(demand)
	want, tags, networks, err := a.wanted(ctx, in.Region, in.Role, demand)
	if err != nil {
		return round, err
	}
	if len(want) == 0 && in.Trigger == "threshold" && a.aboveThreshold(o) && len(o.InFlight) == 0 {
		if tags, err = a.untagged(ctx, in.Region, in.Role); err != nil {
			return round, err
		}
		want, networks = []prego.Plan{""}, []prego.NetworkID{""}
	}
	if room := min(a.Settings.ScaleOutMaxRun, a.Settings.ScaleOutMaxRole-o.Servers); len(want) > room {
		round.Message = fmt.Sprintf("%d wanted, the ceiling allows %d", len(want), max(0, room))
		a.atCeiling(in.Region, in.Role, round.Message)
		want = want[:max(0, room)]
	}
	round.Requested, round.TierLocks, round.Tags, round.Networks = len(want), want, tags[:len(want)], networks[:len(want)]
	return round, nil
}

// untagged are the tags of one server that is not created for a particular tenant.
func (a *Tenants) untagged(ctx context.Context, region prego.Region, role prego.Role) ([][]string, error) {
	tags, _, err := a.newServerTags(ctx, region, role, prego.Constraint{})
	return [][]string{tags}, err
}

func (a *Tenants) atCeiling(region prego.Region, role prego.Role, message string) {
	a.Metrics.Ceiling.WithLabelValues(string(region), string(role)).Inc()
	a.Log.Warn("scale-out at its ceiling", zap.String("region", string(region)), zap.String("role", string(role)), zap.String("message", message))
}

// requestRound requests the servers of a round; servers that were requested already are
// returned again.
func (a *Tenants) requestRound(ctx context.Context, round tenant.ScalingRound, like server.Wanted) ([]ServerRef, error) {
	var out []ServerRef
	for i, id := range round.ServerIDs {
		like.ServerID, like.PlanTierLock, like.Spec.Tags = id, round.TierLocks[i], nil
		if i < len(round.Tags) && len(round.Tags[i]) > 0 { // absent in rounds that began before servers had tags
			like.Spec.Tags = round.Tags[i]
		}
		srv, err := a.Store.RequestFleetMember(ctx, like, prego.Constraint{}, round.WorkflowID, scale.Plan)
		if prego.CodeOf(err) == prego.CodeFleetFull { // create as many as there is room for
			a.atCeiling(like.Region, like.Role, err.Error())
			return out, nil
		}
		if err != nil {
			return out, permanentIfCoded(err)
		}
		out = append(out, ServerRef{ServerID: srv.ServerID, Generation: srv.Generation})
	}
	return out, nil
}

// serversFor returns how many servers of a role the waiting tenants need beyond
// existing room and servers being provisioned, as the tier locks of the future shards
// ("" for none).
func serversFor(role prego.Role, o tenant.ShortOf, maxTenants int) []prego.Plan {
	per := maxTenants
	if role != prego.RoleApp {
		per = o.Capacities[role]
	}
	per = max(1, per)
	alone := o.Waiting[prego.PlanEnterprise]
	shared := map[prego.Plan]int{} // by required lock
	for plan, n := range o.Waiting {
		switch {
		case plan == prego.PlanEnterprise:
		case role == prego.RoleDBShard:
			shared[placement.ShardLockFor(plan)] += n
		default:
			shared[""] += n
		}
	}
	if role == prego.RoleRedisPool {
		alone += o.Dedicated
		shared[""] -= o.Dedicated
	}
	var out []prego.Plan
	for _, lock := range []prego.Plan{prego.PlanBusiness, ""} {
		n := ceil(max(0, shared[lock]-o.Room[lock]), per) - o.InFlight[lock]
		if lock == "" {
			n += max(0, alone-o.Empty)
		}
		for range n {
			out = append(out, lock)
		}
	}
	return out
}

func ceil(n, per int) int { return (n + per - 1) / per }

// FinishScaleOutInput closes a scaling event.
type FinishScaleOutInput struct {
	EventID int64    `json:"event_id"`
	Message string   `json:"message"`
	Failed  []string `json:"failed"` // servers that failed
}

// FinishScaleOut records the outcome of a scale-out and retires the servers that
// failed, except those whose containers failed: they are kept for debugging.
func (a *Tenants) FinishScaleOut(ctx context.Context, in FinishScaleOutInput) error {
	for _, id := range in.Failed {
		srv, err := a.Store.GetServer(ctx, prego.ServerID(id))
		if err != nil {
			return fromStore(err)
		}
		if srv.Status == server.Failed && srv.StatusReason != prego.ReasonFailedContainer {
			if err := a.retire(ctx, prego.ServerID(id), fmt.Sprintf("scaling/%d", in.EventID)); err != nil {
				return err
			}
		}
	}
	return a.Store.FinishScaling(ctx, in.EventID, in.Message)
}

// FillWarmServers builds the sites of warm servers that have none.
func (a *Tenants) FillWarmServers(ctx context.Context, serverIDs []prego.ServerID) error {
	for _, id := range serverIDs {
		if err := a.Runs.EnsureRefill(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// WarmPoolInput names a warm server pool.
type WarmPoolInput struct {
	Region     prego.Region `json:"region"`
	Plan       prego.Plan   `json:"plan"`
	WorkflowID string       `json:"workflow_id"`
	Key        string       `json:"key"`
}

// WarmPoolPlan is what a warm pool is missing.
type WarmPoolPlan struct {
	EventID int64            `json:"event_id"`
	Servers []ServerRef      `json:"servers"` // to create
	Bare    []prego.ServerID `json:"bare"`    // active, but without a site
}

// PlanWarmPool requests the servers that a warm pool is missing. It yields to tenants
// that wait for servers in the region.
func (a *Tenants) PlanWarmPool(ctx context.Context, in WarmPoolInput) (WarmPoolPlan, error) {
	var plan WarmPoolPlan
	w, err := a.Store.WarmPool(ctx, in.Region, in.Plan, a.Settings.Image)
	if err != nil {
		return plan, err
	}
	if plan.Bare, err = a.Store.WarmBare(ctx, in.Region, in.Plan); err != nil {
		return plan, err
	}
	if w.Claimable >= w.Target { // enough healthy servers exist: unusable ones can be retired
		stale, err := a.Store.WarmStale(ctx, in.Region, in.Plan, a.Settings.Image, a.Settings.FailureMemory)
		if err != nil {
			return plan, err
		}
		for _, id := range stale {
			if err := a.retire(ctx, prego.ServerID(id), in.WorkflowID); err != nil && prego.CodeOf(err) != prego.CodeServerHasTenants {
				return plan, err
			}
		}
	}
	round, begun, err := a.Store.FindScaling(ctx, in.WorkflowID, in.Key)
	if err != nil {
		return plan, err
	}
	if !begun {
		missing := a.missingWarm(w)
		if missing == 0 {
			return plan, nil
		}
		round = tenant.ScalingRound{Round: in.Key, ScalingEvent: tenant.ScalingEvent{Region: in.Region, Role: prego.RoleNode, Trigger: "warm_pool", Requested: missing, WorkflowID: in.WorkflowID}}
		for i := range missing {
			round.ServerIDs = append(round.ServerIDs, prego.ServerID(fmt.Sprintf("warm-%s-%s-%s-%d", in.Plan, in.Region, in.Key, i+1)))
			round.TierLocks = append(round.TierLocks, placement.ShardLockFor(in.Plan))
		}
		if round, err = a.Store.BeginScaling(ctx, round); err != nil {
			return plan, err
		}
	}
	plan.EventID = round.EventID
	plan.Servers, err = a.requestRound(ctx, round, server.Wanted{Role: prego.RoleNode, Region: in.Region, Provider: w.Provider, WarmPlan: in.Plan})
	return plan, err
}

// SweepResult counts what the periodic sweep of tenants started.
type SweepResult struct {
	Restarted int `json:"restarted"`
	Changed   int `json:"changed"`
	Expired   int `json:"expired"`
	Released  int `json:"released"`
	Refills   int `json:"refills"`
	Regions   int `json:"regions"`
	Fleets    int `json:"fleets,omitempty"` // fleets, regions and warm pools whose runs were started
}

// SweepTenants starts what no run handles: lost runs, expired timers, leftover
// reservations, pools below their watermark, and waiting tenants.
func (a *Tenants) SweepTenants(ctx context.Context) (SweepResult, error) {
	r, err := a.sweepTenants(ctx)
	fleet := a.sweepFleet(ctx, &r)
	return r, errors.Join(err, fleet)
}

// SweepTenantWork is SweepTenants without what concerns the fleet.
func (a *Tenants) SweepTenantWork(ctx context.Context) (SweepResult, error) {
	return a.sweepTenants(ctx)
}

func (a *Tenants) sweepTenants(ctx context.Context) (r SweepResult, err error) {
	w, leftovers, err := a.Store.FindTenantWork(ctx, a.Settings.OrphanQuiet, a.Settings.ReserveFor)
	if err != nil {
		return r, err
	}
	var try Attempts
	for t := range Each(&try, w.Expired) {
		changed, err := a.Store.ExpireTenant(ctx, t.TenantID, a.Settings.Periods)
		if try.OK(err) && changed {
			r.Expired++
			w.Changes = append(w.Changes, string(t.TenantID))
		}
	}
	for t := range Each(&try, w.Provisions) {
		started, err := a.Runs.EnsureTenantProvision(ctx, t.TenantID, t.Generation)
		if try.OK(err) && started {
			r.Restarted++
			try.OK(a.Store.AddTenantEvent(ctx, tenant.Event{TenantID: t.TenantID, Step: tenant.StepRunRestarted, Actor: string(prego.ActorSystem)}, ""))
		}
	}
	for id := range Each(&try, w.Changes) {
		started, err := a.Runs.EnsureTenantChange(ctx, prego.TenantID(id))
		if try.OK(err) && started {
			r.Changed++
		}
	}
	for id := range Each(&try, leftovers) {
		released, err := a.freeLeftover(ctx, prego.TenantID(id))
		if try.OK(err) && released {
			r.Released++
		}
	}
	try.OK(a.failOverdue(ctx))
	for _, region := range w.Regions {
		r.Regions++
		_, err := a.ServeQueue(ctx, region)
		try.OK(err)
	}
	for _, clear := range []func(context.Context) error{a.dropLeftDatabases, a.clearAllLosses} {
		clearing, cancel := context.WithTimeout(ctx, waitOutside) // a host that does not answer must not keep others waiting
		try.OK(clear(clearing))
		cancel()
	}
	return r, try.Err()
}

// SweepFleet starts what pools and fleets are short of. It only reads, and starts runs.
func (a *Tenants) SweepFleet(ctx context.Context) (r SweepResult, err error) {
	err = a.sweepFleet(ctx, &r)
	return r, err
}

func (a *Tenants) sweepFleet(ctx context.Context, r *SweepResult) error {
	var try Attempts
	try.OK(a.sweepPools(ctx, r))
	try.OK(a.Store.SettleDemand(ctx, time.Hour))
	fleets, err := a.Store.OpenFleets(ctx, a.Settings.OrphanQuiet)
	try.OK(err)
	for _, id := range fleets {
		r.Fleets++
		try.OK(a.Runs.EnsureScaleFleet(ctx, prego.FleetID(id)))
	}
	for _, region := range prego.Regions() {
		for _, role := range []prego.Role{prego.RoleApp, prego.RoleDBShard, prego.RoleRedisPool} {
			demand, err := a.demand(ctx, region, role)
			if !try.OK(err) {
				continue
			}
			want, _, _, err := a.wanted(ctx, region, role, demand)
			if !try.OK(err) {
				continue
			}
			a.Metrics.Waiting.WithLabelValues(string(region), string(role)).Set(float64(waitingIn(demand)))
			var trigger string
			switch o := demand[0].ShortOf; {
			case len(want) > 0:
				trigger = "scale_out_required"
			case a.aboveThreshold(o) && len(o.InFlight) == 0:
				trigger = "threshold"
			default:
				continue
			}
			r.Fleets++
			try.OK(a.Runs.EnsureScaleOut(ctx, region, role, trigger))
		}
	}
	return try.Err()
}

func (a *Tenants) sweepPools(ctx context.Context, r *SweepResult) error {
	late, err := a.Store.PoolsBeyondSLO(ctx)
	if err != nil {
		return err
	}
	a.Metrics.Late.Set(late)
	low, err := a.Store.LowPools(ctx, a.Settings.FailureMemory)
	if err != nil {
		return err
	}
	left, err := a.Store.LeftSites(ctx, a.Settings.FailureMemory)
	if err != nil {
		return err
	}
	var try Attempts
	need := slices.Concat(low, left)
	slices.Sort(need)
	for _, id := range slices.Compact(need) {
		if try.OK(a.Runs.EnsureRefill(ctx, prego.ServerID(id))) {
			r.Refills++
		}
	}
	warm, err := a.Store.WarmPoolKeys(ctx)
	try.OK(err)
	for _, p := range warm {
		needed, err := a.warmPoolNeedsRun(ctx, p.Region, p.Plan)
		if try.OK(err) && needed && try.OK(a.Runs.EnsureWarmPool(ctx, p.Region, p.Plan)) {
			r.Fleets++
		}
	}
	return try.Err()
}

// missingWarm is how many servers a warm pool may create now.
func (a *Tenants) missingWarm(w tenant.WarmState) int {
	if w.TenantsWait || w.Provider == "" {
		return 0
	}
	return max(0, min(w.Target-w.Claimable-w.Coming, 2*w.Target-w.Claimable-w.Coming-w.Broken, a.Settings.ScaleOutMaxRun))
}

// warmPoolNeedsRun reports whether PlanWarmPool would find something to do.
func (a *Tenants) warmPoolNeedsRun(ctx context.Context, region prego.Region, plan prego.Plan) (bool, error) {
	w, err := a.Store.WarmPool(ctx, region, plan, a.Settings.Image)
	if err != nil || a.missingWarm(w) > 0 {
		return true, err
	}
	bare, err := a.Store.WarmBare(ctx, region, plan)
	if err != nil || len(bare) > 0 || w.Claimable < w.Target {
		return len(bare) > 0, err
	}
	stale, err := a.Store.WarmStale(ctx, region, plan, a.Settings.Image, a.Settings.FailureMemory)
	return len(stale) > 0, err
}
