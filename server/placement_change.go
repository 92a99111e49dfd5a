package server

import (
	"fmt"
	"strings"

	"github.com/prego/prego"
)

// MaxTenantCapacity is the highest capacity of a shard or pool.
const MaxTenantCapacity = 1_000_000

// NoLock in a PlacementChange opens a shard to the plans of unlocked ones.
const NoLock prego.Plan = "none"

// PlacementChange is the body of PATCH /v1/servers/{id}: the tenants that a server, its shard and its pool take from
// now on. Nil fields change nothing.
type PlacementChange struct {
	AcceptsTrial   *bool       `json:"accepts_trial"`
	PlanTierLock   *prego.Plan `json:"plan_tier_lock"` // NoLock for none
	TenantCapacity *int        `json:"tenant_capacity"`
	Tags           *[]string   `json:"tags"` // which are fixed
}

// Validate checks the request's own fields.
func (c PlacementChange) Validate() error {
	switch {
	case c.PlanTierLock != nil && *c.PlanTierLock != NoLock && !c.PlanTierLock.Valid():
		return prego.Invalid("plan_tier_lock", "must be one of trial, starter, business, enterprise or none")
	case c.TenantCapacity != nil && (*c.TenantCapacity < 1 || *c.TenantCapacity > MaxTenantCapacity):
		return prego.Invalid("tenant_capacity", fmt.Sprintf("must be 1 to %d", MaxTenantCapacity))
	}
	return nil
}

// Check rejects fields that never change, and those without a meaning for a server's role.
func (c PlacementChange) Check(role prego.Role) error {
	app := role == prego.RoleApp || role == prego.RoleNode
	shard := role == prego.RoleDBShard || role == prego.RoleNode
	switch {
	case c.Tags != nil:
		message := `are fixed while the server lives; replace it by servers that have them: ` +
			`POST /v1/fleets/{id}/actions {"action":"CLUSTER_REPLACE"} does that for a fleet, one after the other`
		return &prego.Error{Code: prego.CodeTagsImmutable, Field: "tags", Message: message}
	case c.AcceptsTrial != nil && !app:
		return prego.Invalid("accepts_trial", "is a property of app servers and nodes, not of a "+string(role))
	case c.PlanTierLock != nil && !shard:
		return prego.Invalid("plan_tier_lock", "is a property of db-shards and nodes, not of a "+string(role))
	case c.TenantCapacity != nil && !shard && role != prego.RoleRedisPool:
		message := "is a property of db-shards, redis-pools and nodes, not of a " + string(role)
		return prego.Invalid("tenant_capacity", message)
	}
	return nil
}

// String is for a timeline.
func (c PlacementChange) String() string {
	var parts []string
	if c.AcceptsTrial != nil {
		parts = append(parts, fmt.Sprintf("accepts_trial %t", *c.AcceptsTrial))
	}
	if c.PlanTierLock != nil {
		parts = append(parts, "plan_tier_lock "+string(*c.PlanTierLock))
	}
	if c.TenantCapacity != nil {
		parts = append(parts, fmt.Sprintf("tenant_capacity %d", *c.TenantCapacity))
	}
	return strings.Join(parts, ", ")
}
