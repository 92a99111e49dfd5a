package activities

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/sdk/temporal"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/placement/scale"
	"github.com/prego/prego/placer"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// FleetPlanner decides what an action does to a fleet: scale.Plan.
type FleetPlanner = func(server.FleetState, server.FleetAction) (server.FleetPlan, error)

// Bench runs bench on hosts (direct-provisioning §1, path D). A failure is a
// *server.CommandError; repeating with the same audit id runs nothing twice.
type Bench interface {
	Bench(ctx context.Context, c server.BenchCommand) (stdout string, err error)
	// BenchAll runs short commands, one after the other, until one fails; done
	// is how many did not.
	BenchAll(ctx context.Context, cs []server.BenchCommand) (done int, err error)
}

// TenantSettings are the numbers that tenants' steps and runs use.
type TenantSettings struct {
	Environment     string
	SiteDomain      string
	Image           string // the version of current servers
	Periods         tenant.LifecyclePeriods
	CapacityWait    time.Duration // how long a tenant waits for a place
	CapacityPoll    time.Duration // how often a waiting run checks by itself
	SiteTimeout     time.Duration // for bench new-site
	CommandTimeout  time.Duration // for other commands
	AppTimeout      time.Duration // for installing one app
	StepTimeout     time.Duration // for a step on a host with all its retries
	ReserveFor      time.Duration
	FailureMemory   time.Duration // how long a failed build keeps its server from being tried
	RefillParallel  int           // concurrent builds per host
	ScaleOutMaxRun  int           // servers per scale-out run
	ScaleOutMaxRole int           // servers of a role per region
	ThresholdPct    float64       // share of capacity used in percent, above which the fleet grows ahead of need; 70 by default
	OrphanQuiet     time.Duration // how long a row may be unchanged before its run is checked
	Storage         tenant.StorageRules
	StorageEvery    time.Duration // between two measurements of a site
	StorageBatch    int           // sites measured per run
	StorageHosts    int           // hosts measured concurrently
	Losses          LossSettings
}

// OpenNetwork is the private network for new servers of all roles, made for unplaced tenants of a
// region; "" when servers are in no networks.
type OpenNetwork func(ctx context.Context, region prego.Region, provider prego.InfraProviderID) (prego.NetworkID, error)

// Tenants are the steps in the lives of tenants and site pools, and of the fleet's
// growth.
type Tenants struct {
	Store  *store.Store
	Placer *placer.Placer
	// Networks may be nil: servers are in no networks.
	Networks OpenNetwork
	Bench    Bench
	// Passwords returns tenants' passwords on shards and in pools; Peers may be nil if servers let
	// everyone in.
	Passwords Passwords
	// AwaitPeers waits until the firewalls of servers let in their current users; nil without firewalls.
	AwaitPeers func(context.Context, AwaitPeersInput) error
	Runs       Runs
	Settings   TenantSettings
	Metrics    *TenantMetrics
	Log        *zap.Logger
	// FleetTags returns the tags of the servers that fleets would create; may be nil.
	FleetTags FleetTags
	// Drained waits until no edge sends requests to a site of a server that is suspended or
	// has ended; nil if there are no edges.
	Drained func(ctx context.Context, serverID prego.ServerID) error
	// BackupsLeave is set if there is object storage: last backups go there.
	BackupsLeave bool
	// Restorer is nil without object storage.
	Restorer *Backups
	Hooks
}

// TenantMetrics count events of tenants.
type TenantMetrics struct {
	Outcomes *prometheus.CounterVec // by plan and outcome
	Seconds  *prometheus.HistogramVec
	Sites    *prometheus.CounterVec // pool sites built, by outcome
	Build    prometheus.Histogram
	Leaks    prometheus.Counter // sites that could not be dropped
	Late     prometheus.Gauge   // servers whose site pool misses its SLO
	Ceiling  *prometheus.CounterVec
	Waiting  *prometheus.GaugeVec // waiting tenants, by region and missing role
	Storage  *prometheus.GaugeVec // sites, by storage level
	Unsized  prometheus.Counter   // measurements that failed
	Lost     prometheus.Gauge     // tenants without a site since their server was lost
}

// NewTenantMetrics registers them.
func NewTenantMetrics(reg prometheus.Registerer) *TenantMetrics {
	m := &TenantMetrics{
		Outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_tenant_provisionings_total", Help: "Tenants' provisionings ended, by plan and outcome."}, []string{"plan", "outcome"}),
		Seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prego_tenant_provision_seconds", Help: "Seconds from the request to an active tenant, by plan.", Buckets: []float64{.5, 1, 2, 5, 10, 30, 60, 120, 300, 900, 3600},
		}, []string{"plan"}),
		Sites: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_pool_sites_built_total", Help: "Builds of pool sites that ended, by outcome."}, []string{"outcome"}),
		Build: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "prego_pool_site_build_seconds", Help: "Seconds from planning a pool site to having it, against the pool's SLO.", Buckets: []float64{1, 5, 15, 30, 60, 120, 300, 600, 1200},
		}),
		Ceiling: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prego_scale_out_at_ceiling_total", Help: "Scale-outs that wanted more servers than their ceiling allows.",
		}, []string{"region", "role"}),
		Storage: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prego.MetricSitesByStorage, Help: "Tenants' sites, by how they stand to their storage quota."}, []string{"level"}),
		Unsized: prometheus.NewCounter(prometheus.CounterOpts{Name: prego.MetricUnmeasured, Help: "Measurements of a site's storage that failed."}),
		Waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "prego_tenants_waiting", Help: "Tenants that wait for a place, by region and missing role."}, []string{"region", "role"}),
		Late:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "prego_site_pools_beyond_slo", Help: "Servers whose site pool has been below its target for longer than its SLO."}),
		Lost:    prometheus.NewGauge(prometheus.GaugeOpts{Name: prego.MetricTenantsLost, Help: "Tenants whose server was lost and that are not restored yet."}),
		Leaks:   prometheus.NewCounter(prometheus.CounterOpts{Name: "prego_sites_left_total", Help: "Sites of ended tenants that could not be dropped."}),
	}
	reg.MustRegister(m.Outcomes, m.Seconds, m.Sites, m.Build, m.Leaks, m.Late, m.Ceiling, m.Waiting, m.Storage, m.Unsized, m.Lost)
	// A series that starts at 1 has not increased, so the first failure would raise no
	// alert.
	for _, plan := range prego.Plans() {
		for _, reason := range []prego.Reason{
			prego.ReasonFailedPlacement, prego.ReasonFailedServer, prego.ReasonFailedCapacity, prego.ReasonFailedSite, prego.ReasonFailedApps, prego.ReasonFailedRestore,
			prego.ReasonFailedInternal,
		} {
			m.Outcomes.WithLabelValues(string(plan), string(reason))
		}
	}
	for _, outcome := range []string{"available", "failed"} {
		m.Sites.WithLabelValues(outcome)
	}
	return m
}

// TenantPlan is what a tenant's run needs to know before its first step.
type TenantPlan struct {
	Region       prego.Region  `json:"region"`
	Plan         prego.Plan    `json:"plan"`
	OrgID        prego.OrgID   `json:"org_id"`
	Apps         int           `json:"apps"`
	CapacityWait time.Duration `json:"capacity_wait"`
	CapacityPoll time.Duration `json:"capacity_poll"`
	StepTimeout  time.Duration `json:"step_timeout"`
	AppTimeout   time.Duration `json:"app_timeout"`
	// RestoreFor is how long the restore from a backup may take, 0 if there is none.
	RestoreFor time.Duration `json:"restore_for,omitempty"`
	Cancelled  bool          `json:"cancelled,omitempty"`
	// Resumed: an earlier run already placed the tenant, or requested its server.
	Resumed bool `json:"resumed,omitempty"`
}

// current reads the tenant, and fails if its row no longer belongs to this generation.
func (a *Tenants) current(ctx context.Context, ref tenant.Ref) (tenant.Record, error) {
	t, err := a.Store.TenantRecord(ctx, ref.TenantID)
	if err != nil {
		return t, fromStore(err)
	}
	return t, inProvisioning(t, ref)
}

func inProvisioning(t tenant.Record, ref tenant.Ref) error {
	if t.Generation != ref.Generation || (t.State != tenant.Trial && t.State != tenant.Provisioning) {
		return permanentError(ErrTypeSuperseded, fmt.Sprintf("tenant %s is %s in generation %d", ref.TenantID, t.State, t.Generation), nil)
	}
	return nil
}

func (a *Tenants) plan(t tenant.Record) TenantPlan {
	s := a.Settings
	restoreFor := time.Duration(0)
	if t.RestoreFrom != "" {
		restoreFor = s.Losses.For
	}
	return TenantPlan{
		Region: t.Region, Plan: t.Plan, OrgID: t.OrgID, Apps: len(t.Apps),
		CapacityWait: s.CapacityWait, CapacityPoll: s.CapacityPoll, StepTimeout: s.StepTimeout, AppTimeout: s.AppTimeout, RestoreFor: restoreFor,
		Cancelled: t.CancelRequested, Resumed: t.Allocation != nil || t.OwnServerID != "",
	}
}

// PlaceResult is the result of an attempt to place a tenant.
type PlaceResult struct {
	Placed  bool              `json:"placed"`
	Outcome placement.Outcome `json:"outcome"`
	Message string            `json:"message"`
	// Behind: there is room, but other tenants are ahead in the queue.
	Behind bool `json:"behind,omitempty"`
	// Owns: there is a server for the tenant alone, which its run has to undo.
	Owns bool `json:"owns,omitempty"`
	// Refused is why no place can ever satisfy the request (BeginTenant).
	Refused string `json:"refused,omitempty"`
}

// TenantBegun is what a tenant's run knows after its first step.
type TenantBegun struct {
	Plan  TenantPlan  `json:"plan"`
	Place PlaceResult `json:"place"`
}

// BeginTenant reads the tenant's row, and decides and reserves (PlaceTenant) unless its
// provisioning was cancelled. When it is repeated after its reservation was made, it finds
// that.
func (a *Tenants) BeginTenant(ctx context.Context, ref tenant.Ref) (TenantBegun, error) {
	t, err := a.current(ctx, ref)
	if err != nil {
		return TenantBegun{}, err
	}
	out := TenantBegun{Plan: a.plan(t)}
	if t.CancelRequested {
		return out, nil
	}
	out.Place, err = a.place(ctx, ref, t)
	if impossible, ok := errors.AsType[*temporal.ApplicationError](err); ok && impossible.Type() == ErrTypePlacement {
		out.Place.Refused, err = impossible.Message(), nil
	}
	return out, err
}

// PlaceTenant decides and reserves. A tenant that can't be placed is queued, and the
// missing capacity is requested.
func (a *Tenants) PlaceTenant(ctx context.Context, ref tenant.Ref) (PlaceResult, error) {
	t, err := a.current(ctx, ref)
	if err != nil {
		return PlaceResult{}, err
	}
	return a.place(ctx, ref, t)
}

func (a *Tenants) place(ctx context.Context, ref tenant.Ref, t tenant.Record) (PlaceResult, error) {
	if t.Allocation != nil {
		if t.OwnServerID != "" { // the caller may be gone
			if err := a.RetireSpareServers(ctx, ref.TenantID); err != nil {
				return PlaceResult{}, err
			}
		}
		return PlaceResult{Placed: true, Outcome: placement.Placed}, nil
	}
	d, behind, err := a.decide(ctx, t)
	if err != nil {
		return PlaceResult{}, fromStore(err)
	}
	a.hook("place/decided")
	out := PlaceResult{
		Placed: d.PlacesTenant(), Outcome: d.Outcome, Message: d.SelectionReason, Behind: behind,
		Owns: t.OwnServerID != "",
	}
	switch d.Outcome {
	case placement.Placed:
		a.refill(ctx, d.AppServerID)
		if t.Policy == tenant.ModeOneTenantOneServer {
			a.logNotSignalled(a.Runs.EnsureWarmPool(ctx, t.Region, t.Plan))
		}
	case placement.Refused:
		var placed *tenant.Allocation
		if placed, err = a.Store.LiveAllocation(ctx, t.TenantID); err == nil && placed == nil {
			return out, permanentError(ErrTypePlacement, fmt.Sprintf("%s: %s", d.Code, d.SelectionReason), nil)
		}
		err = cmp.Or(err, store.ErrPlaced)
	case placement.NeedsServer:
		err = a.Store.AwaitTenant(ctx, ref, prego.ReasonBuildingServer, d.SelectionReason, nil, "", false)
	case placement.HoldForSite:
		err = a.Store.AwaitTenant(ctx, ref, prego.ReasonAwaitingSite, d.SelectionReason, nil, "", true)
		a.logNotSignalled(a.Runs.EnsureRefill(ctx, d.AppServerID))
	case placement.AwaitingCapacity:
		var reason prego.Reason
		var roles []prego.Role
		if reason, roles, err = a.shortage(ctx, t, d); err != nil {
			return out, err
		}
		if err = a.Store.AwaitTenant(ctx, ref, reason, d.SelectionReason, roles, d.MissingIn, true); err == nil {
			for _, role := range roles {
				a.logNotSignalled(a.Runs.EnsureScaleOut(ctx, t.Region, role, "scale_out_required"))
			}
		}
	case placement.OnDemandSite:
		a.logNotSignalled(a.Runs.EnsureRefill(ctx, d.AppServerID))
	}
	a.hook("place/recorded")
	if errors.Is(err, store.ErrPlaced) { // by an earlier attempt, which has not ended yet
		return PlaceResult{Placed: true, Outcome: placement.Placed}, nil
	}
	return out, fromStore(err)
}

// decide places a tenant, unless others of its kind already wait: then it joins the
// queue.
func (a *Tenants) decide(ctx context.Context, t tenant.Record) (d placement.Decision, behind bool, err error) {
	if t.Policy == tenant.ModeShared && t.Queued {
		d, err := a.Placer.Look(ctx, t)
		if err == nil && d.PlacesTenant() {
			d, behind = placement.Decision{
				KeptPlace:       placement.KeptPlace{Outcome: placement.AwaitingCapacity, Code: prego.CodeInsufficientResources},
				SelectionReason: "others wait for the capacity that there is, and are served first",
			}, true
		}
		return d, behind, err
	}
	d, err = a.Placer.Place(ctx, t, nil, prego.ActorPlacementEngine)
	return d, false, err
}

// refill asks for a refill of a server's site pool when a site was taken from it and it is
// low now.
func (a *Tenants) refill(ctx context.Context, appServerID prego.ServerID) {
	low, err := a.Store.MayRefill(ctx, appServerID)
	if err == nil && low {
		err = a.Runs.EnsureRefill(ctx, appServerID)
	}
	a.logNotSignalled(err)
}

// logNotSignalled logs that a run could not be signalled; the sweep will retry.
func (a *Tenants) logNotSignalled(err error) {
	if err != nil {
		a.Log.Warn("could not signal the run; the sweep will retry", zap.Error(err))
	}
}

// ServeQueue places the waiting tenants of a region in order, and wakes the runs of placed tenants.
// If another worker already serves the region, it does nothing.
func (a *Tenants) ServeQueue(ctx context.Context, region prego.Region) (placed int, err error) {
	_, err = a.Store.ServeRegion(ctx, region, func(ctx context.Context) error {
		waiting, err := a.Store.Waiting(ctx, region)
		if err != nil {
			return err
		}
		var errs []error
		none := map[int64]bool{}
		for _, w := range waiting {
			if none[w.Alike] {
				continue
			}
			served, err := a.serve(ctx, w)
			switch {
			case served == servedPlaced:
				placed++
			case served == servedNone && err == nil: // a pass only takes room
				none[w.Alike] = true
			}
			if err != nil { // the others are served all the same
				errs = append(errs, err)
			}
			if ctx.Err() != nil {
				break
			}
		}
		return errors.Join(errs...)
	})
	return placed, err
}

// served is what became of a waiting tenant.
type served int

const (
	servedPlaced  served = iota + 1
	servedNone           // it is short of the same as before
	servedChanged        // it is short of something else than before, or wants no place any more
)

// serve places one waiting tenant, or records what it is short of now.
func (a *Tenants) serve(ctx context.Context, w tenant.WaitingTenant) (served, error) {
	t, err := a.Store.TenantRecord(ctx, w.TenantID)
	if err != nil {
		return servedChanged, err
	}
	ref := tenant.Ref{TenantID: w.TenantID, Generation: w.Generation}
	switch {
	case t.State != tenant.Provisioning || t.Generation != w.Generation || t.Allocation == nil && !t.Waiting:
		return servedChanged, nil // since the queue was read
	case t.Allocation == nil:
		d, err := a.Placer.Place(ctx, t, nil, prego.ActorPlacementEngine)
		switch {
		case errors.Is(err, server.ErrSuperseded):
			return servedChanged, nil
		case err != nil:
			return servedChanged, err
		case d.Outcome == placement.NeedsServer: // which its run builds
			err := a.Store.AwaitTenant(ctx, ref, prego.ReasonBuildingServer, d.SelectionReason, nil, "", false)
			if err == nil {
				a.logNotSignalled(a.Runs.ResumeTenant(ctx, t.Tenant))
			}
			if errors.Is(err, server.ErrSuperseded) || errors.Is(err, store.ErrPlaced) {
				err = nil
			}
			return servedChanged, err
		case !d.PlacesTenant():
			// What it is short of may have changed, and scale-outs are sized by it.
			return a.requeue(ctx, ref, t, d)
		}
		a.refill(ctx, d.AppServerID)
		a.hook("queue/placed")
	}
	a.logNotSignalled(a.Runs.ResumeTenant(ctx, t.Tenant))
	return servedPlaced, nil
}

// requeue records what a waiting tenant is short of now; it keeps its position in the
// queue.
func (a *Tenants) requeue(ctx context.Context, ref tenant.Ref, t tenant.Record,
	d placement.Decision,
) (served, error) {
	reason, roles, err := a.shortage(ctx, t, d)
	if err != nil {
		return servedChanged, err
	}
	if d.Outcome == placement.HoldForSite {
		reason, roles = prego.ReasonAwaitingSite, nil
		a.logNotSignalled(a.Runs.EnsureRefill(ctx, d.AppServerID))
	}
	err = a.Store.AwaitTenant(ctx, ref, reason, d.SelectionReason, roles, d.MissingIn, true)
	switch {
	case errors.Is(err, server.ErrSuperseded) || errors.Is(err, store.ErrPlaced):
		return servedChanged, nil
	case err == nil && reason == t.StatusReason && slices.Equal(roles, t.WaitingRoles) &&
		d.MissingIn == t.WaitingNetwork:
		return servedNone, nil
	}
	return servedChanged, err
}

// failOverdue ends tenants that have waited for capacity for longer than they may.
func (a *Tenants) failOverdue(ctx context.Context) error {
	overdue, err := a.Store.Overdue(ctx, a.Settings.CapacityWait)
	if err != nil {
		return err
	}
	var try Attempts
	for _, t := range overdue {
		ref := tenant.Ref{TenantID: t.TenantID, Generation: t.Generation}
		ended, err := a.Store.FailQueued(ctx, ref, prego.ReasonFailedCapacity,
			"no place within "+a.Settings.CapacityWait.String())
		if ended {
			a.Metrics.Outcomes.WithLabelValues(string(t.Plan), string(prego.ReasonFailedCapacity)).Inc()
		}
		try.OK(err)
	}
	return try.Err()
}

// TenantNow is the state of a waiting tenant.
type TenantNow struct {
	Placed          bool           `json:"placed"`
	Cancelled       bool           `json:"cancelled"`
	OwnServer       prego.ServerID `json:"own_server,omitempty"`
	OwnServerStatus server.Status  `json:"own_server_status,omitempty"`
	OwnServerReason prego.Reason   `json:"own_server_reason,omitempty"`
}

// ReadWaitingTenant reads the state of a tenant.
func (a *Tenants) ReadWaitingTenant(ctx context.Context, ref tenant.Ref) (TenantNow, error) {
	t, err := a.current(ctx, ref)
	if err != nil {
		return TenantNow{}, err
	}
	return TenantNow{
		Placed: t.Allocation != nil, Cancelled: t.CancelRequested, OwnServer: t.OwnServerID,
		OwnServerStatus: t.OwnServerStatus, OwnServerReason: t.OwnServerReason,
	}, nil
}

// OwnServerID names the server created for a tenant, at its first try or a later one.
func OwnServerID(ref tenant.Ref, try int) string {
	id := fmt.Sprintf("n-%s-g%d", ref.TenantID, ref.Generation)
	if try > 1 {
		id += fmt.Sprintf("-%d", try)
	}
	return id
}

// OwnServerInput names the tenant and the try.
type OwnServerInput struct {
	Tenant tenant.Ref `json:"tenant"`
	Try    int        `json:"try"`
}

// RequestOwnServer requests the dedicated server of a tenant (placement-policy, "One
// tenant, one server").
func (a *Tenants) RequestOwnServer(ctx context.Context, in OwnServerInput) (ServerRef, error) {
	t, err := a.current(ctx, in.Tenant)
	if err != nil {
		return ServerRef{}, err
	}
	if id := OwnServerID(in.Tenant, in.Try); t.OwnServerID == prego.ServerID(id) { // requested before; later changes of pools do not matter
		srv, err := a.Store.GetServer(ctx, prego.ServerID(id))
		return ServerRef{ServerID: srv.ServerID, Generation: srv.Generation}, fromStore(err)
	}
	srv, err := a.Store.RequestFleetMember(ctx, server.Wanted{
		ServerID: prego.ServerID(OwnServerID(in.Tenant, in.Try)), Role: prego.RoleNode, Region: t.Region, Spec: server.Spec{Tags: t.Effective().Require},
		DedicatedFor: t.TenantID, PlanTierLock: placement.ShardLockFor(t.Plan),
	}, t.Effective(), string("tenant/"+t.TenantID), scale.Plan)
	if prego.CodeOf(err) == prego.CodeFleetFull {
		return ServerRef{}, permanentError(ErrTypeFleetFull, err.Error(), nil)
	}
	if err != nil {
		return ServerRef{}, permanentIfCoded(err)
	}
	a.hook("own_server/requested")
	return ServerRef{ServerID: srv.ServerID, Generation: srv.Generation}, nil
}

func (a *Tenants) activate(ctx context.Context, ref tenant.Ref, plan prego.Plan, done ...tenant.Event) error {
	a.hook("tenant_activate/start")
	seconds, err := a.Store.ActivateTenant(ctx, ref, a.Settings.Periods.For(tenant.Active, plan), done...)
	if errors.Is(err, store.ErrNotOpen) {
		a.hook("tenant_open/waits")
		return err
	}
	if err != nil {
		return fromStore(err)
	}
	a.hook("tenant_activate/done")
	if seconds > 0 {
		a.Metrics.Outcomes.WithLabelValues(string(plan), "active").Inc()
		if ref.Generation == 1 {
			a.Metrics.Seconds.WithLabelValues(string(plan)).Observe(seconds)
		}
	}
	return nil
}

// FailTenantInput is the reason why a tenant's provisioning failed.
type FailTenantInput struct {
	Tenant  tenant.Ref   `json:"tenant"`
	Plan    prego.Plan   `json:"plan"`
	Reason  prego.Reason `json:"reason"`
	Message string       `json:"message"`
}

// FailTenant sets a tenant's provisioning to failed.
func (a *Tenants) FailTenant(ctx context.Context, in FailTenantInput) error {
	a.Metrics.Outcomes.WithLabelValues(string(in.Plan), string(in.Reason)).Inc()
	if err := a.Store.FailTenant(ctx, in.Tenant, in.Reason, in.Message); err != nil {
		return err
	}
	a.hook("tenant_fail/done")
	return nil
}

// FreePlaceInput controls how a tenant's place is freed.
type FreePlaceInput struct {
	TenantID prego.TenantID  `json:"tenant_id"`
	Reason   string          `json:"reason"`
	Message  string          `json:"message,omitempty"` // what happened, for the timeline
	Fate     tenant.SiteFate `json:"fate"`
}

// RetireSpareServers removes servers that were created for a tenant that was placed
// elsewhere: an operator placed it while its own was being built.
func (a *Tenants) RetireSpareServers(ctx context.Context, tenantID prego.TenantID) error {
	t, err := a.Store.TenantRecord(ctx, tenantID)
	if err != nil || t.Allocation == nil {
		return fromStore(err)
	}
	own, err := a.Store.OwnServers(ctx, tenantID)
	if err != nil {
		return err
	}
	lives := string(t.Allocation.AppServerID)
	return a.retireAll(ctx, tenantID, slices.DeleteFunc(own, func(id string) bool { return id == lives }))
}

func (a *Tenants) retire(ctx context.Context, serverID prego.ServerID, by string) error {
	if _, err := a.Store.RequestDecommission(ctx, serverID, by); err != nil {
		return err
	}
	_, err := a.Runs.EnsureDecommission(ctx, serverID)
	return err
}

// FreePlace frees a tenant's place and removes its dedicated servers. It is safe to
// repeat.
func (a *Tenants) FreePlace(ctx context.Context, in FreePlaceInput) error {
	own, err := a.Store.OwnServers(ctx, in.TenantID)
	if err != nil {
		return err
	}
	if err := a.Store.FreePlace(ctx, in.TenantID, in.Reason, in.Message, in.Fate, own); err != nil {
		return err
	}
	a.hook("release/done")
	return a.retireAll(ctx, in.TenantID, own)
}

// freeLeftover is FreePlace for a tenant without a run; released is false if it was retried meanwhile.
func (a *Tenants) freeLeftover(ctx context.Context, id prego.TenantID) (released bool, err error) {
	own, err := a.Store.OwnServers(ctx, id)
	if err != nil {
		return false, err
	}
	if released, err = a.Store.FreeLeftover(ctx, id, "reservation_expired", tenant.SiteLeft, own); err != nil || !released {
		return false, err
	}
	return true, a.retireAll(ctx, id, own)
}

func (a *Tenants) retireAll(ctx context.Context, of prego.TenantID, servers []string) error {
	for _, id := range servers {
		if err := a.retire(ctx, prego.ServerID(id), string("tenant/"+of)); err != nil {
			return err
		}
	}
	return nil
}
