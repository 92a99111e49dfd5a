// Package prego holds what every area of the domain needs: regions, roles, plans and
// tiers, reasons, coded errors, constraints on tags, ids and redaction.
//
// The package is pure: it knows no clock, no network and no database, and it imports
// nothing of the project. Everything else may import it.
package prego

import (
	"slices"
)

// Role is a server's purpose (placement-policy §2, direct-provisioning §2).
type Role string

// The roles a server can have. A node runs the whole single-node stack: app,
// database and cache on one host (placement-policy, "One tenant, one server").
const (
	RoleApp       Role = "app"
	RoleDBShard   Role = "db-shard"
	RoleRedisPool Role = "redis-pool"
	RoleNode      Role = "node"
	RoleEdge      Role = "edge"
)

// Roles lists every role in the order of display.
func Roles() []Role { return []Role{RoleApp, RoleDBShard, RoleRedisPool, RoleNode, RoleEdge} }

// Valid reports whether r is a known role.
func (r Role) Valid() bool { return slices.Contains(Roles(), r) }

// StartsContainers reports whether provisioning a server of this role includes
// the container step (direct-provisioning §2, step 8).
func (r Role) StartsContainers() bool { return r.Valid() }

// Region is a part of the world that tenants choose; configuration maps it to
// provider locations (placement-policy §1.1).
type Region string

// The regions tenants can choose.
const (
	RegionSG Region = "sg"
	RegionEU Region = "eu"
	RegionUS Region = "us"
)

// Regions lists every region in the order of display.
func Regions() []Region { return []Region{RegionSG, RegionEU, RegionUS} }

// Valid reports whether r is a known region.
func (r Region) Valid() bool { return slices.Contains(Regions(), r) }

// InfraProviderID names a cloud (direct-provisioning §7).
type InfraProviderID string

// The clouds that have names (placement-policy §1.2). Only Hetzner has an adapter; the others
// exist as disabled rows of infra_providers.
const (
	ProviderHetzner InfraProviderID = "hetzner"
	ProviderAWS     InfraProviderID = "aws"
	ProviderGCP     InfraProviderID = "gcp"
)

// HasAdapter reports whether servers can be made there.
func (p InfraProviderID) HasAdapter() bool { return p == ProviderHetzner }

// InfraProviders lists every provider.
func InfraProviders() []InfraProviderID {
	return []InfraProviderID{ProviderHetzner, ProviderAWS, ProviderGCP}
}

// ManagedBy is the creator of a server (direct-provisioning §6).
type ManagedBy string

// The values of servers.managed_by.
const (
	ManagedByWorkerDirect ManagedBy = "worker_direct"
	ManagedByPulumi       ManagedBy = "pulumi"
)

// Tier is the service tier of an org; it decides the limits that the org has by default
// (quotas-and-fairness, "Quota configuration model").
type Tier string

// The tiers.
const (
	TierFree       Tier = "free"
	TierPaid       Tier = "paid"
	TierEnterprise Tier = "enterprise"
)

// Tiers lists every tier.
func Tiers() []Tier { return []Tier{TierFree, TierPaid, TierEnterprise} }

// Valid reports whether t is a known tier.
func (t Tier) Valid() bool { return slices.Contains(Tiers(), t) }

// Actor is the author of an action (direct-provisioning §6, agent_command_audit.actor).
type Actor string

// The actors of events and audit rows.
const (
	ActorWorkflow Actor = "workflow"
	ActorOperator Actor = "operator"
	ActorSystem   Actor = "system"
)

// Plan is what a tenant pays for (placement-policy §1.1).
type Plan string

// The plans.
const (
	PlanTrial      Plan = "trial"
	PlanStarter    Plan = "starter"
	PlanBusiness   Plan = "business"
	PlanEnterprise Plan = "enterprise"
)

// Plans lists every plan, the least first.
func Plans() []Plan { return []Plan{PlanTrial, PlanStarter, PlanBusiness, PlanEnterprise} }

// Valid reports whether p is a known plan.
func (p Plan) Valid() bool { return slices.Contains(Plans(), p) }

// Priority orders waiting tenants: 1 is served first. It is also Temporal's priority
// key.
func (p Plan) Priority() int {
	switch p {
	case PlanEnterprise:
		return 1
	case PlanBusiness:
		return 2
	case PlanStarter:
		return 3
	default:
		return 4
	}
}

// DefaultUsers and DefaultStorageGB apply where a request of the plan
// sets none (placement-policy §1.1).
func (p Plan) DefaultUsers() int {
	return map[Plan]int{PlanTrial: 3, PlanStarter: 10, PlanBusiness: 50, PlanEnterprise: 250}[p]
}

// DefaultStorageGB is the storage that a plan includes.
func (p Plan) DefaultStorageGB() int {
	return map[Plan]int{PlanTrial: 1, PlanStarter: 10, PlanBusiness: 50, PlanEnterprise: 250}[p]
}

// ActorPlacementEngine is the actor of placement events (placement-policy §7).
const ActorPlacementEngine = "placement_engine"
