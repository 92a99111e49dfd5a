package activities

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// FleetTags are the tags of the servers that a region's fleets would create, one set
// per fleet, in order of preference.
type FleetTags func(ctx context.Context, region prego.Region, role prego.Role) ([][]string, error)

// fleetFor returns the tags of the first fleet whose servers would satisfy a
// constraint.
func (a *Tenants) fleetFor(ctx context.Context, region prego.Region, role prego.Role, c prego.Constraint) (tags []string, ok bool, err error) {
	if a.FleetTags == nil {
		return nil, false, nil
	}
	fleets, err := a.FleetTags(ctx, region, role)
	if err != nil {
		return nil, false, err
	}
	for _, tags := range fleets {
		if c.SatisfiedBy(tags) {
			return tags, true, nil
		}
	}
	return nil, false, nil
}

// newServerTags returns the tags that a new server of a region needs so that tenants
// with this constraint can use it: a fleet's tags, or else those they require. ok is
// false if no server could satisfy the constraint.
func (a *Tenants) newServerTags(ctx context.Context, region prego.Region, role prego.Role, c prego.Constraint) (tags []string, ok bool, err error) {
	if tags, ok, err = a.fleetFor(ctx, region, role, c); ok || err != nil {
		return tags, ok, err
	}
	return c.Require, c.Satisfiable(), nil
}

// shortage returns why a tenant waits, and the roles of the servers it waits for. If no server
// satisfies its constraint, none is created for it (placement-pools, "Auctioneer") unless a fleet's
// would.
func (a *Tenants) shortage(ctx context.Context, t tenant.Record, d placement.Decision) (prego.Reason, []prego.Role, error) {
	if d.Code != prego.CodeCellMismatch {
		return prego.ReasonAwaitingCapacity, d.MissingRoles, nil
	}
	_, ok, err := a.fleetFor(ctx, t.Region, prego.RoleApp, t.Effective())
	if !ok {
		return prego.ReasonCellMismatch, nil, err
	}
	return prego.ReasonCellMismatch, d.MissingRoles, nil
}

// wanted returns the servers that waiting tenants need, as the tier locks of the future
// shards, their tags and their networks.
func (a *Tenants) wanted(ctx context.Context, region prego.Region, role prego.Role, demand []tenant.Demand) (locks []prego.Plan, tags [][]string, networks []prego.NetworkID, err error) {
	for _, d := range demand {
		for _, lock := range serversFor(role, d.ShortOf, a.Placer.Policy.MaxTenantsPerNode) {
			t, ok, err := a.newServerTags(ctx, region, role, d.Constraint)
			if err != nil {
				return nil, nil, nil, err
			}
			if !ok { // a pool changed while they waited; their next attempt reports it
				break
			}
			locks, tags, networks = append(locks, lock), append(tags, t), append(networks, d.Network)
		}
	}
	return locks, tags, networks, nil
}

// demand is what tenants of a region are short of, grouped by constraint: those without
// one first.
func (a *Tenants) demand(ctx context.Context, region prego.Region, role prego.Role) ([]tenant.Demand, error) {
	var open func(context.Context, prego.InfraProviderID) (prego.NetworkID, error)
	if a.Networks != nil {
		open = func(ctx context.Context, provider prego.InfraProviderID) (prego.NetworkID, error) {
			return a.Networks(ctx, region, provider)
		}
	}
	return a.Store.Demand(ctx, region, role, a.Placer.Policy.MaxTenantsPerNode, a.Placer.Policy.MemoryPctMax, a.Placer.Policy.MeasuredLimits, open)
}

func waitingIn(demand []tenant.Demand) (n int) {
	for _, d := range demand {
		for _, w := range d.Waiting {
			n += w
		}
	}
	return n
}
