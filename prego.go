// Package prego holds the words of the domain: identifiers, roles, regions,
// states and the transitions between them, coded errors, and the values that
// cross from one room to another.
//
// The package is pure. It knows no clock, no network and no database, and it
// imports nothing of the project; everything else may import it.
package prego

import "slices"

// Role says what a server is for (placement-policy §2, direct-provisioning §2).
type Role string

// The roles a server can have. A node runs the whole single-node stack: app,
// database and cache on one host (placement-policy, "One tenant, one server").
const (
	RoleApp       Role = "app"
	RoleDBShard   Role = "db-shard"
	RoleRedisPool Role = "redis-pool"
	RoleNode      Role = "node"
)

// Roles lists every role in the order in which they are shown.
func Roles() []Role { return []Role{RoleApp, RoleDBShard, RoleRedisPool, RoleNode} }

// Valid reports whether r is one of Roles.
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

// Regions lists every region in the order in which they are shown.
func Regions() []Region { return []Region{RegionSG, RegionEU, RegionUS} }

// Valid reports whether r is one of Regions.
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

// ManagedBy says who created a server (direct-provisioning §6).
type ManagedBy string

// The values of servers.managed_by.
const (
	ManagedByWorkerDirect ManagedBy = "worker_direct"
	ManagedByPulumi       ManagedBy = "pulumi"
)
