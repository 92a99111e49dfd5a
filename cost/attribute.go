package cost

import (
	"cmp"
	"slices"

	"github.com/prego/prego"
)

// Holding is the ownership of something while an amount is counted: one owner, no owner for a
// reason, or several owners.
type Holding struct {
	Whole Owner // if it has a kind, all of it is this owner's
	Part  Part  // Shared or Untracked if it has no owner; "" otherwise
	// Capacity is its usable amount, and Uses are the owners' parts of that, in one unit. The
	// unused rest is idle.
	Capacity int64
	Uses     []Use
	Pool     string // that it is part of, "" for none
}

// Entry is a part of an amount.
type Entry struct {
	Part   Part
	Owner  Owner
	Pool   string
	Basis  Basis
	Amount Micro
}

// Attribute divides an amount among whose it is. Entries add up to the amount, and none is
// negative or empty.
func (h Holding) Attribute(amount Micro) []Entry {
	nobody := Owner{Kind: OfNobody}
	switch {
	case amount <= 0:
		return nil
	case h.Whole.Kind != "":
		return []Entry{{Part: Used, Owner: h.Whole, Pool: h.Pool, Basis: Own, Amount: amount}}
	case h.Part != "":
		return []Entry{{Part: h.Part, Owner: nobody, Pool: h.Pool, Basis: NoBasis, Amount: amount}}
	}
	shares, idle := Split(amount, h.Capacity, h.Uses)
	var out []Entry
	for _, s := range shares {
		basis := ByWeight
		if s.Owner.Kind == OfOrg {
			basis = ByMemory
		}
		out = append(out, Entry{Part: Used, Owner: s.Owner, Pool: h.Pool, Basis: basis, Amount: s.Cost})
	}
	if idle > 0 {
		out = append(out, Entry{Part: Idle, Owner: nobody, Pool: h.Pool, Basis: NoBasis, Amount: idle})
	}
	return out
}

// InSlots weighs uses of something with a number of slots for tenants of any size: each takes
// a slot, and the taken slots are paid for by the tenants' weights. Uses of the
// same owner count once.
func InSlots(slots int64, uses []Use) (capacity int64, weighed []Use) {
	var sum int64
	for _, u := range uses {
		sum += u.Weight
	}
	n := int64(len(uses))
	for _, u := range uses {
		weighed = append(weighed, Use{Owner: u.Owner, Weight: u.Weight * n})
	}
	return slots * sum, weighed
}

// Merge adds up uses of the same owner, in the order of owners.
func Merge(uses []Use) []Use {
	uses = slices.Clone(uses)
	slices.SortFunc(uses, func(a, b Use) int { return compareOwners(a.Owner, b.Owner) })
	var out []Use
	for _, u := range uses {
		if n := len(out); n > 0 && out[n-1].Owner == u.Owner {
			out[n-1].Weight += u.Weight
			continue
		}
		out = append(out, u)
	}
	return out
}

func compareOwners(a, b Owner) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID), cmp.Compare(a.OrgID, b.OrgID))
}

// Thing is something that is billed, with what decides whose it is.
type Thing struct {
	OwnerKind OwnerKind
	OwnerID   string
	OrgID     prego.OrgID
	Untracked bool
	// What follows is of the server that it is, or belongs to; "" if there is none.
	ServerID       prego.ServerID
	Role           prego.Role
	Region         prego.Region
	WarmPlan       string // of a server that waits for a tenant
	DedicatedTo    prego.TenantID
	DedicatedOrg   prego.OrgID
	MemoryBytes    int64  // of its machine, 0 if it is not known
	WorkloadMemory int64  // that its fleet offers to instances only, 0 for all of it
	Slots          int64  // tenants that a shard or a Redis pool takes
	PoolID         string // of that shard or Redis pool
	Uses           []Use
}

// Holding is whose it is.
func (t Thing) Holding() Holding {
	switch {
	case t.Untracked:
		return Holding{Part: Untracked}
	case t.ServerID != "":
		return t.server()
	}
	switch t.OwnerKind {
	case OfTenant:
		return Holding{Whole: Owner{Kind: OfTenant, ID: t.OwnerID, OrgID: t.OrgID}}
	case OfOrg, OfEnv:
		return Holding{Whole: Owner{Kind: OfOrg, ID: string(t.OrgID), OrgID: t.OrgID}}
	case OfServer, OfFleet, OfPool, OfEnvironment, OfNobody:
	}
	return Holding{Part: Shared}
}

func (t Thing) server() Holding {
	var h Holding
	switch {
	case t.WarmPlan != "":
		h.Pool = "warm/" + string(t.Region) + "/" + t.WarmPlan
	case t.Role == prego.RoleDBShard:
		h.Pool = "shard/" + cmp.Or(t.PoolID, string(t.ServerID))
	case t.Role == prego.RoleRedisPool:
		h.Pool = "redis/" + cmp.Or(t.PoolID, string(t.ServerID))
	case t.Role == prego.RoleApp:
		h.Pool = "sites/" + string(t.ServerID)
	}
	switch {
	case t.DedicatedTo != "":
		h.Whole = Owner{Kind: OfTenant, ID: string(t.DedicatedTo), OrgID: t.DedicatedOrg}
	case t.Role == prego.RoleEdge:
		h.Part = Shared
	case t.Role == prego.RoleDBShard || t.Role == prego.RoleRedisPool:
		h.Capacity, h.Uses = InSlots(max(1, t.Slots), Merge(t.Uses))
	default:
		h.Capacity, h.Uses = max(1, cmp.Or(t.WorkloadMemory, t.MemoryBytes)), Merge(t.Uses)
	}
	return h
}
