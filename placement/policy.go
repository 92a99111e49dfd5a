// Package placement decides which app server, DB shard, Redis pool and pool site a tenant gets (placement-policy). It
// is pure: a decision is a function of a Snapshot and a Request, the same for the same input, with ties broken by id;
// the transaction that reserves it checks every invariant again.
package placement

import (
	"fmt"
	"math"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// Algorithm is how a candidate is chosen among those passing all filters (placement-policy §1.2, §8).
type Algorithm string

// The algorithms. A policy may name the first four. Manual is an operator's override.
const (
	BestFit    Algorithm = "best_fit"
	FirstFit   Algorithm = "first_fit"
	RoundRobin Algorithm = "round_robin"
	NewServer  Algorithm = "new_server"
	Manual     Algorithm = "manual"
	// AIRecommended: an adviser's proposal was taken, among candidates that pass every filter.
	AIRecommended Algorithm = "ai_recommended"
)

// Valid reports whether a policy may use a.
func (a Algorithm) Valid() bool {
	return a == BestFit || a == FirstFit || a == RoundRobin || a == NewServer
}

// EmptyPool is what to do if servers have capacity but none has a site left (placement-policy §2.6).
type EmptyPool string

// The choices: create the site while the tenant waits, or wait for a refill.
const (
	OnDemand EmptyPool = "on_demand"
	Hold     EmptyPool = "hold"
)

// Weights of the composite score (placement-policy §2.5). Their sum is the maximum score; it is 1 by default.
type Weights struct {
	AppLoad   float64 `json:"app_load"`
	AppCount  float64 `json:"app_count"`
	DBLoad    float64 `json:"db_load"`
	RedisLoad float64 `json:"redis_load"`
	Affinity  float64 `json:"affinity"`
	// The dimensions of placement-policy §4 that its formula omits weigh nothing unless an operator sets a weight.
	AppCPU         float64 `json:"app_cpu"`
	AppWorkerSlots float64 `json:"app_worker_slots"`
	DBDisk         float64 `json:"db_disk"`
	RedisMemory    float64 `json:"redis_memory"`
}

// DefaultWeights are placement-policy §2.5's.
func DefaultWeights() Weights {
	return Weights{AppLoad: 0.4, AppCount: 0.2, DBLoad: 0.2, RedisLoad: 0.1, Affinity: 0.1}
}

// AffinityDelta is how far a server may score below the best and still be preferred
// because the parent org is there (placement-policy §5).
const AffinityDelta = 0.05

// epsilon: scores that differ by less, by rounding, are equal.
const epsilon = 1e-9

// Policy is what an operator configures.
type Policy struct {
	Mode         tenant.PlacementMode `json:"mode"`
	Algorithm    Algorithm            `json:"algorithm"`
	MemoryPctMax float64              `json:"memory_pct_max"` // 0–100; servers at or above it get no new tenants
	tenant.MeasuredLimits
	MaxTenantsPerNode int       `json:"max_tenants_per_node"`
	Weights           Weights   `json:"weights"`
	EmptyPool         EmptyPool `json:"empty_pool"`
	// SameShard prefers the DB shard of the parent org, within AffinityDelta. Off by
	// default: it concentrates the blast radius (placement-policy §5).
	SameShard bool `json:"same_shard_affinity"`
	// MaxRejected is how many rejected candidates a decision lists, by id; the counts per reason are always exact.
	MaxRejected int `json:"max_rejected"`
}

// DefaultPolicy is the built-in policy (placement-policy §2.4).
func DefaultPolicy() Policy {
	return Policy{
		Mode: tenant.ModeOneTenantOneServer, Algorithm: BestFit, MemoryPctMax: 70, MaxTenantsPerNode: 20,
		MeasuredLimits: tenant.MeasuredLimits{CPUPctMax: 85, WorkerSlotsPctMax: 90, DBDiskPctMax: 80, RedisMemoryPctMax: 90},
		Weights:        DefaultWeights(), EmptyPool: OnDemand, MaxRejected: 20,
	}
}

// Validate rejects impossible policies.
func (p Policy) Validate() error {
	switch {
	case !p.Mode.Valid():
		return prego.Invalid("policy.mode", "must be shared or one_tenant_one_server")
	case !p.Algorithm.Valid():
		return prego.Invalid("policy.algorithm", "must be best_fit, first_fit, round_robin or new_server")
	case math.IsNaN(p.MemoryPctMax) || p.MemoryPctMax <= 0 || p.MemoryPctMax > 100:
		return prego.Invalid("policy.memory_pct_max", "must be above 0 and at most 100")
	case p.MaxTenantsPerNode < 1 || p.MaxTenantsPerNode > 100_000:
		return prego.Invalid("policy.max_tenants_per_node", "must be 1 to 100000")
	case p.EmptyPool != OnDemand && p.EmptyPool != Hold:
		return prego.Invalid("policy.empty_pool", "must be on_demand or hold")
	case p.MaxRejected < 0:
		return prego.Invalid("policy.max_rejected", "must not be negative")
	}
	for _, f := range policyFields {
		if f.number == nil {
			continue
		}
		if v := *f.number(&p); math.IsNaN(v) || v < 0 || v > f.most {
			return prego.Invalid("policy."+f.name, fmt.Sprintf("must be 0 to %g", f.most))
		}
	}
	return nil
}

// AuditName is the algorithm that the audit of a decision names (placement-policy, "One tenant, one server").
func AuditName(mode tenant.PlacementMode, a Algorithm) string {
	if mode == tenant.ModeOneTenantOneServer && a != Manual {
		return "one_tenant_one_server_v1"
	}
	return string(a)
}

// Request is one tenant that needs a place. Its fields must be valid.
type Request struct {
	TenantID       prego.TenantID
	OrgID          prego.OrgID
	ParentOrgID    prego.OrgID
	Region         prego.Region
	Plan           prego.Plan
	DataResidency  string
	Constraint     prego.Constraint // normalized, merged with the pools'
	Pools          []string         // placement pools whose constraints are part of Constraint, for the explanation
	DedicatedRedis bool
	Mode           tenant.PlacementMode // "" for the policy's
	Algorithm      Algorithm            // "" for the policy's
	Override       *Override
	Advice         *Advice // may be nil; ignored with an override
	// Busy are ids of servers, shards, pools and sites that other reservations hold
	// right now: they are skipped, so that no reservation waits for another.
	Busy map[string]bool
}

// Override forces a placement (placement-policy §8): one to three of its parts. It skips capacity and ranking,
// never the invariants, and the constraint only on request. The parts that are not forced have room, or the most
// room if none has enough.
type Override struct {
	AppServerID prego.ServerID
	DBShardID   prego.ShardID
	RedisPoolID prego.RedisPoolID
	Reason      string
	// IgnoreConstraint also skips the request's constraint.
	IgnoreConstraint bool
}

// Outcome is the outcome of a decision.
type Outcome string

// The outcomes. OnDemandSite is a placement whose site is still to be created.
const (
	Placed           Outcome = "placed"
	OnDemandSite     Outcome = "on_demand"
	AwaitingCapacity Outcome = "awaiting_capacity"
	HoldForSite      Outcome = "hold"
	NeedsServer      Outcome = "new_server"
	Refused          Outcome = "rejected"
)

// Rejection is a rejected candidate, with the first filter that it failed.
type Rejection struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// Decision is an outcome with its explanation (placement-policy §1.2, §7).
type Decision struct {
	KeptPlace
	// MissingIn is the private network that lacks MissingRoles, "" for any.
	MissingIn prego.NetworkID

	Mode                tenant.PlacementMode
	Algorithm           Algorithm
	CandidatesEvaluated int // app servers, DB shards and Redis pools considered
	SelectionReason     string
	// Confidence is the margin of the winner's score over the runner-up's, the best other app server, within 0 to 1;
	// 1 when there was no other. It is 0 when affinity or an adviser chose a server over one with a higher score.
	Confidence     float64
	Score          float64
	Rejected       []Rejection
	RejectedCounts map[string]int
	// Constraint is the result of the constraint, nil if there is none.
	Constraint *ConstraintReport
	// Input names the stored input, "" for none.
	Input string
}

// PlacesTenant reports whether the decision assigns a server.
func (p KeptPlace) PlacesTenant() bool { return p.Outcome == Placed || p.Outcome == OnDemandSite }

// Explanation is a decision's explanation as it is stored and shown.
type Explanation struct {
	Algorithm           Algorithm      `json:"algorithm"`
	CandidatesEvaluated int            `json:"candidates_evaluated"`
	SelectionReason     string         `json:"selection_reason"`
	ConfidenceScore     float64        `json:"confidence_score"`
	Score               float64        `json:"score"`
	Rejected            []Rejection    `json:"rejected"`
	RejectedCounts      map[string]int `json:"rejected_counts"`
	// Constraint is absent if every server satisfied it.
	Constraint *ConstraintReport `json:"constraint,omitempty"`
	// Input names the stored input of the decision.
	Input string `json:"input,omitempty"`
}

// Explanation returns d's explanation.
func (d Decision) Explanation() Explanation {
	e := Explanation{
		Algorithm: d.Algorithm, CandidatesEvaluated: d.CandidatesEvaluated, SelectionReason: d.SelectionReason,
		ConfidenceScore: round6(d.Confidence), Score: round6(d.Score), Rejected: d.Rejected, RejectedCounts: d.RejectedCounts,
		Constraint: d.Constraint, Input: d.Input,
	}
	if e.Rejected == nil {
		e.Rejected = []Rejection{}
	}
	if e.RejectedCounts == nil {
		e.RejectedCounts = map[string]int{}
	}
	return e
}

func round6(v float64) float64 { return math.Round(v*1e6) / 1e6 }

// TierLockAllows is placement-policy §2.3: which shards a plan may use.
func TierLockAllows(plan prego.Plan, lock prego.Plan) bool {
	switch plan {
	case prego.PlanTrial:
		return lock == "" || lock == prego.PlanTrial
	case prego.PlanStarter:
		return lock == ""
	case prego.PlanBusiness:
		return lock == prego.PlanBusiness
	case prego.PlanEnterprise:
		return lock != prego.PlanTrial
	}
	return false
}

// MustBeAlone reports whether a tenant needs a dedicated server, shard and pool (placement-policy §2.3, §6). An
// override may let tenants share, but never with an enterprise tenant.
func MustBeAlone(plan prego.Plan, mode tenant.PlacementMode, override bool) bool {
	return plan == prego.PlanEnterprise || mode == tenant.ModeOneTenantOneServer && !override
}

// ShardLockFor is the lock of a shard created for tenants of a plan.
func ShardLockFor(plan prego.Plan) prego.Plan {
	if plan == prego.PlanBusiness {
		return prego.PlanBusiness
	}
	return ""
}

func (r Request) String() string {
	return fmt.Sprintf("tenant %s (%s in %s)", r.TenantID, r.Plan, r.Region)
}
