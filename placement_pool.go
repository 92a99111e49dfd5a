package prego

import "time"

// PlacementPool is a constraint with a name, for the tenants of the orgs that it is
// associated with (placement-pools, "CC Support").
type PlacementPool struct {
	PoolID     string // the name in lower case, the key of lookups
	Name       string // as it was given; case does not matter
	Constraint Constraint
	// Default: it is the pool of the orgs that are associated with none. At most one is.
	Default   bool `json:"is_default"`
	Orgs      int  `json:"org_count"` // that are associated with it
	CreatedBy string
	CreatedAt time.Time
	UpdatedBy string
	UpdatedAt time.Time
}

// AppliedPool is what placement needs to know of a pool that applies to a tenant.
type AppliedPool struct {
	Name     string   `json:"name"`
	Require  []string `json:"require"`
	Disallow []string `json:"disallow"`
}

// Constraint is the pool's.
func (p AppliedPool) Constraint() Constraint {
	return Constraint{Require: p.Require, Disallow: p.Disallow}
}

// EffectiveConstraint is what a placement goes by: what the request asks for together
// with all that the pools do.
func EffectiveConstraint(request Constraint, pools []AppliedPool) Constraint {
	others := make([]Constraint, len(pools))
	for i, p := range pools {
		others[i] = p.Constraint()
	}
	return request.Union(others...)
}

// Bounds of placement pools. MaxOrgPools bounds what one placement has to look at.
const (
	MaxOrgPools = 16
)
