// Package placer decides on the live fleet: it keeps a snapshot, places tenants in batches, reserves what was
// decided, and journals the inputs of decisions so that each can be replayed.
package placer

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// Placer decides on a snapshot of the fleet and reserves the decision. The snapshot follows the rows through a change
// feed. A stale snapshot can cost a lost race, after which it decides again on fresh rows, but never writes a wrong
// row. Tenants of a region that ask while another is being placed are placed together.
type Placer struct {
	Store  *store.Store
	Policy placement.Policy
	// SiteDomain is the suffix of tenants' host names.
	SiteDomain string
	// ReserveFor is how long a claimed site is reserved for a run that went silent.
	ReserveFor time.Duration
	// Adviser may propose a place among those that pass; nil for none.
	Adviser Adviser
	// AdviceWithin is how long a placement waits for the adviser.
	AdviceWithin time.Duration
	// Wake starts a tenant's run, or signals it, because it was placed; may be nil.
	Wake func(ctx context.Context, t tenant.Tenant)
	// Draw returns how long the loser of a race waits, from [0, n); nil draws at random.
	Draw    func(n int) int
	Metrics *Metrics
	// NewJournalID makes the id of a journal; default random ones.
	NewJournalID func() string
	// Version of the program, stored with the inputs of decisions.
	Version string

	mu     gate
	fleet  *placement.Snapshot
	since  string
	read   time.Time
	reread []string // rows that the snapshot may have wrong

	journal *journal           // of what happens to fleet; nil until a decision begins one
	unkept  []tenant.KeptInput // of earlier journals

	lines lines
}

// Metrics count placements.
type Metrics struct {
	Decisions *prometheus.CounterVec // by outcome
	Lost      *prometheus.CounterVec // lost races, by kind of row
	Advice    *prometheus.CounterVec // of advisers, by outcome
	Seconds   prometheus.Histogram   // of a decision with its reservation
	Batch     prometheus.Histogram   // tenants that were placed together
	Inputs    *prometheus.CounterVec // stored inputs of decisions, by outcome
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		Decisions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_placement_decisions_total", Help: "Placement decisions, by outcome."}, []string{"outcome"}),
		Lost:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_placement_lost_races_total", Help: "Reservations that another one was ahead of, by kind of row."}, []string{"row"}),
		Advice:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_placement_advice_total", Help: "What became of asking the adviser: taken, ignored, failed or late."}, []string{"outcome"}),
		Seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "prego_placement_seconds", Help: "Seconds from a request to its reserved place.", Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .5, 2},
		}),
		Batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "prego_placement_batch_tenants", Help: "Tenants whose places were decided and reserved together.", Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128},
		}),
		Inputs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_placement_inputs_total", Help: "Inputs of decisions that were written for replays, by outcome: kept or lost."}, []string{"outcome"}),
	}
	reg.MustRegister(m.Decisions, m.Lost, m.Advice, m.Seconds, m.Batch, m.Inputs)
	return m
}

const (
	// freshEnough is the maximum age of a snapshot used for a decision. "No place" is
	// only ever answered from a newer one.
	freshEnough = 100 * time.Millisecond
	maxRaces    = 200
)

// RequestOf returns what placement considers of a tenant: its own constraint merged
// with those of the pools that apply now.
func RequestOf(t tenant.Record) placement.Request {
	var pools []string
	for _, p := range t.Pools {
		pools = append(pools, p.Name)
	}
	return placement.Request{
		TenantID: t.TenantID, OrgID: t.OrgID, ParentOrgID: t.ParentOrgID, Region: t.Region, Plan: t.Plan, DataResidency: t.DataResidency,
		Constraint: t.Effective(), Pools: pools, DedicatedRedis: t.DedicatedRedis, Mode: t.Policy,
	}
}

// refresh brings the snapshot up to date; ids names rows to read even if the feed does not list them. The lock must
// be held.
func (p *Placer) refresh(ctx context.Context, ids []string) error {
	c, err := p.Store.PlacementChanges(ctx, p.since, ids)
	if err != nil {
		return err
	}
	if c.Full {
		p.endJournal()
		p.fleet = placement.SnapshotOf(p.Policy, c)
	} else {
		p.changed(c)
		p.fleet.Update(c)
	}
	p.since, p.read = c.Since, time.Now()
	return nil
}

// decideAll decides on requests in order, each on top of the previous ones. It rereads the snapshot if it is old or has
// no place for one of them. The snapshot counts the tenants immediately, so that the next decision sees them.
func (p *Placer) decideAll(
	ctx context.Context, requests []placement.Request, learnt []string,
) ([]placement.Decision, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	learnt = slices.Concat(learnt, p.reread)
	fresh := false
	if p.fleet == nil || len(learnt) > 0 || time.Since(p.read) > freshEnough {
		if err := p.refresh(ctx, learnt); err != nil {
			return nil, err
		}
		p.reread, fresh = nil, true
	}
	all := p.decide(requests)
	if !fresh && slices.ContainsFunc(all, func(d placement.Decision) bool { return !d.PlacesTenant() }) {
		// Reread the rows of the places that were just given, and decide again.
		var given []string
		for _, d := range all {
			given = append(given, rowsOf(d)...)
		}
		if err := p.refresh(ctx, given); err != nil {
			p.endJournal()
			p.fleet, p.since = nil, ""
			return nil, err
		}
		all = p.decide(requests)
	}
	return all, nil
}

// rowsOf are the rows that a decision changes.
func rowsOf(d placement.Decision) []string {
	if !d.PlacesTenant() {
		return nil
	}
	return []string{string(d.AppServerID), string(d.DBShardID), string(d.RedisPoolID), d.PoolSiteID}
}

func (p *Placer) draw(n int) int {
	if p.Draw != nil {
		return p.Draw(n)
	}
	return rand.IntN(n)
}

// Place finds a place for a tenant and reserves it. Decisions without a place are recorded and returned.
// server.ErrSuperseded means that the tenant no longer wants a place.
func (p *Placer) Place(
	ctx context.Context, t tenant.Record, override *placement.Override, actor string,
) (d placement.Decision, err error) {
	began := time.Now()
	r := RequestOf(t)
	r.Override = override
	if r.Advice, err = p.advise(ctx, r); err != nil {
		return d, err
	}
	var learnt []string
	for race := 0; ; race++ {
		var res tenant.ReserveResult
		d, res, err = p.try(ctx, &asking{tenant: t.Tenant, request: r, learnt: learnt, actor: actor, race: race})
		if err != nil {
			return d, err
		}
		if !d.PlacesTenant() && len(r.Busy) > 0 {
			// Only places that others are reserving right now are left, which is settled in a moment. The more races
			// were lost, the longer the wait, so that the losers' reads do not slow down the winners.
			r.Busy, learnt = nil, []string{""}
			select {
			case <-time.After(time.Duration(2+p.draw(10<<min(race, 5))) * time.Millisecond):
			case <-ctx.Done():
				return d, ctx.Err()
			}
			continue
		}
		if !d.PlacesTenant() {
			p.Metrics.Decisions.WithLabelValues(string(d.Outcome)).Inc()
			if override != nil { // recorded as a refused override
				return d, nil
			}
			return d, p.record(ctx, t.Tenant, d, actor)
		}
		switch res.Outcome {
		case tenant.ReservePlaced:
			p.Metrics.Decisions.WithLabelValues(string(d.Outcome)).Inc()
			p.Metrics.Seconds.Observe(time.Since(began).Seconds())
			p.countAdvice(r, d)
			return d, nil
		case tenant.ReserveAlready:
			p.doubt(d)
			if override != nil { // a concurrent caller requested something else
				return d, prego.Errorf(prego.CodeTenantPlaced, "tenant %s was placed meanwhile", t.TenantID)
			}
			return d, nil
		case tenant.ReserveGone:
			p.doubt(d)
			return d, server.ErrSuperseded
		}
		p.Metrics.Lost.WithLabelValues(res.Lost).Inc()
		if race >= maxRaces {
			p.doubt(d)
			return d, errors.New("the fleet changes faster than a place can be reserved")
		}
		if res.Lost == "constraint" { // a pool changed since the tenant was read
			fresh, err := p.Store.TenantRecord(ctx, t.TenantID)
			if err != nil {
				return d, err
			}
			if again := RequestOf(fresh); !again.Constraint.Equal(r.Constraint) {
				p.doubt(d)
				again.Override, again.Advice = override, r.Advice
				t, r, learnt = fresh, again, nil
				continue
			}
		}
		if res.Lost == "tenant" { // another transaction holds its row: wait for it alone
			race = max(race, racesTogether-1)
		}
		if r.Busy == nil {
			r.Busy = map[string]bool{}
		}
		r.Busy[res.LostID] = true
		learnt = rowsOf(d)
	}
}

// doubt makes the next decision reread the rows of a decision that was not carried out:
// the snapshot counts the tenant there.
func (p *Placer) doubt(d placement.Decision) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reread = append(p.reread, rowsOf(d)...)
}

// forget makes the next decision reread everything, because the outcome of the reservation is unknown.
func (p *Placer) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endJournal()
	p.fleet, p.since, p.reread = nil, "", nil
}

// reservation is what a decision asks of the store.
func (p *Placer) reservation(t tenant.Tenant, r placement.Request, d placement.Decision, actor string) (tenant.Reservation, error) {
	decision, policy, err := p.logs(d)
	site, database := t.NewSite(p.SiteDomain)
	return tenant.Reservation{
		TenantID: t.TenantID, Generation: t.Generation, AppServerID: d.AppServerID, DBShardID: d.DBShardID, RedisPoolID: d.RedisPoolID, PoolSiteID: d.PoolSiteID,
		SiteName: site, DatabaseName: database, Mode: d.Mode, Algorithm: string(d.Algorithm),
		AuditAs: placement.AuditName(d.Mode, d.Algorithm), Dedicates: d.Dedicates, Override: r.Override != nil,
		AnyTags:      r.Override != nil && r.Override.IgnoreConstraint,
		MemoryPctMax: p.Policy.MemoryPctMax, MaxTenants: p.Policy.MaxTenantsPerNode, MeasuredLimits: p.Policy.MeasuredLimits, ReserveFor: p.ReserveFor,
		Decision: decision, Policy: policy, Reason: d.SelectionReason, Actor: actor,
	}, err
}

// logs are decision_log and policy_json (placement-policy §7).
func (p *Placer) logs(d placement.Decision) (decision, policy json.RawMessage, err error) {
	if decision, err = json.Marshal(d.Explanation()); err != nil {
		return nil, nil, err
	}
	policy, err = json.Marshal(map[string]any{
		"algorithm": placement.AuditName(d.Mode, d.Algorithm), "mode": d.Mode, "memory_pct_max": p.Policy.MemoryPctMax,
		"max_tenants_per_node": p.Policy.MaxTenantsPerNode,
		"cpu_pct_max":          p.Policy.CPUPctMax, "worker_slots_pct_max": p.Policy.WorkerSlotsPctMax, "db_disk_pct_max": p.Policy.DBDiskPctMax, "redis_memory_pct_max": p.Policy.RedisMemoryPctMax,
		"weights": p.Policy.Weights, "empty_pool": p.Policy.EmptyPool,
	})
	return decision, policy, err
}

func (p *Placer) record(ctx context.Context, t tenant.Tenant, d placement.Decision, actor string) error {
	decision, policy, err := p.logs(d)
	if err != nil {
		return err
	}
	recorded, err := p.Store.RecordDecision(ctx, tenant.DecisionRecord{
		TenantID: t.TenantID, Outcome: string(d.Outcome), Code: string(d.Code), Algorithm: placement.AuditName(d.Mode, d.Algorithm),
		Decision: decision, Policy: policy, Actor: actor,
	})
	if recorded {
		p.keep(ctx)
	}
	return err
}

// Look decides on a tenant without reserving anything.
func (p *Placer) Look(ctx context.Context, t tenant.Record) (placement.Decision, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refresh(ctx, nil); err != nil {
		return placement.Decision{}, err
	}
	return p.fleet.Decide(RequestOf(t)), nil
}

// Simulate decides on requests over live data, each on top of the previous ones. Nothing is written.
func (p *Placer) Simulate(ctx context.Context, requests []placement.Request) ([]placement.Decision, error) {
	c, err := p.Store.PlacementChanges(ctx, "", nil)
	if err != nil {
		return nil, err
	}
	orgs := make([]prego.OrgID, len(requests))
	for i, r := range requests {
		orgs[i] = r.OrgID
	}
	slices.Sort(orgs)
	pools, err := p.Store.PoolsOf(ctx, slices.Compact(orgs))
	if err != nil {
		return nil, err
	}
	fleet := placement.SnapshotOf(p.Policy, c)
	out := make([]placement.Decision, len(requests))
	for i, r := range requests {
		if err := ctx.Err(); errors.Is(err, context.DeadlineExceeded) {
			return nil, placement.ErrOutOfTime
		} else if err != nil {
			return nil, err
		}
		out[i] = fleet.Decide(withPools(r, pools[string(r.OrgID)]))
		fleet.Apply(r, out[i])
	}
	return out, nil
}

// withPools returns the request with the names and the constraints of its org's pools.
func withPools(r placement.Request, pools []prego.AppliedPool) placement.Request {
	for _, pool := range pools {
		r.Pools = append(r.Pools, pool.Name)
	}
	r.Constraint = prego.EffectiveConstraint(r.Constraint, pools)
	return r
}

// Override places a tenant where an operator decides (placement-policy §8). It is recorded even if it is refused.
func (p *Placer) Override(ctx context.Context, o tenant.PlacementOverride, by string) (placement.Decision, error) {
	t, err := p.Store.TenantRecord(ctx, o.TenantID)
	if err != nil {
		return placement.Decision{}, err
	}
	d, err := p.override(ctx, t, o, by)
	var refused *prego.Error
	if err != nil && !errors.As(err, &refused) {
		return d, err
	}
	if refused != nil {
		return d, errors.Join(refused, p.Store.RecordOverride(ctx, o, by, false, refused.Code, refused.Message))
	}
	if p.Wake != nil {
		p.Wake(ctx, t.Tenant)
	}
	return d, p.Store.RecordOverride(ctx, o, by, true, "", "")
}

func (p *Placer) override(ctx context.Context, t tenant.Record, o tenant.PlacementOverride, by string) (placement.Decision, error) {
	switch {
	case t.Allocation != nil:
		return placement.Decision{}, prego.Errorf(prego.CodeTenantPlaced,
			"tenant %s is already placed on %s", t.TenantID, t.Allocation.AppServerID)
	case t.State != tenant.Trial && t.State != tenant.Provisioning:
		return placement.Decision{}, prego.Errorf(prego.CodeInvalidTransition, "cannot place the tenant: it is %s", t.State)
	}
	d, err := p.Place(ctx, t, &placement.Override{
		AppServerID: o.ForceAppServerID, DBShardID: o.ForceDBShardID, RedisPoolID: o.ForceRedisPoolID,
		Reason: o.Reason, IgnoreConstraint: o.IgnoreConstraint,
	}, by)
	switch {
	case errors.Is(err, server.ErrSuperseded):
		return d, prego.Errorf(prego.CodeInvalidTransition, "tenant %s has changed in the meantime", t.TenantID)
	case err != nil:
		return d, err
	case d.PlacesTenant():
		return d, nil
	}
	refused := prego.Errorf(d.Code, "%s", d.SelectionReason)
	switch d.Code {
	case prego.CodeServerUnknown:
		refused.Field = "force_app_server_id"
	case prego.CodeShardUnknown:
		refused.Field = "force_db_shard_id"
	case prego.CodePoolUnknown:
		refused.Field = "force_redis_pool_id"
	}
	return d, refused
}
