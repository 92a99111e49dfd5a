package store

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/server"
)

const (
	// The newest fleet that may create servers for tenants, as sqlServingFleets orders them.
	sqlOwnServerFleet = `
SELECT f.infra_provider AS provider, f.spec FROM fleets f JOIN infra_providers i ON i.id = f.infra_provider
WHERE f.serves_tenants AND f.role = 'node' AND i.enabled AND $1 = ANY (i.regions) ORDER BY f.created_at DESC, f.fleet_id LIMIT 1`
	sqlOwnServerCents = `SELECT own_server_cents FROM tenants WHERE tenant_id = $1`

	// What a tenant's first server is held against: the servers of the org's other tenants that exist.
	sqlOwnServersStanding = `
SELECT f.org_id, f.first, u.servers, u.cents + org_priced_cents(f.org_id) AS cents
FROM (SELECT t.org_id, t.active_at IS NULL AND t.lost_at IS NULL AS first FROM tenants t WHERE t.tenant_id = $1) f
CROSS JOIN LATERAL (SELECT count(*) AS servers, COALESCE(sum(c.own_server_cents), 0)::bigint AS cents FROM counted_tenants c
    WHERE c.org_id = f.org_id AND c.policy = 'one_tenant_one_server' AND c.tenant_id <> $1
        AND EXISTS (SELECT FROM servers s WHERE s.dedicated_for_tenant_id = c.tenant_id AND s.status <> 'terminated')) u`
	sqlLimits            = `SELECT dimension, limit_value AS "limit" FROM org_limits($1, $2, $3)`
	sqlSetOwnServerCents = `UPDATE tenants SET own_server_cents = $2 WHERE tenant_id = $1 AND own_server_cents <> $2`
)

// ownServer is what a tenant with its own server takes besides its size.
func ownServer(cents int64) []quota.Delta {
	return []quota.Delta{{Dimension: quota.MaxServers, By: 1}, quota.Cents(cents)}
}

// ownServerCents is the list price of the server that a tenant in a region would get; 0 while that is unknown.
func (s *Store) ownServerCents(ctx context.Context, tx *txn, region prego.Region) int64 {
	f := findIn[struct {
		Provider prego.InfraProviderID
		Spec     server.Spec
	}](ctx, tx, sqlOwnServerFleet, region)
	if f == nil {
		return 0
	}
	return s.firstPrice(ctx, tx, f.Provider, region, f.Spec)
}

// firstPrice is the price of the first machine on the list to order that has one.
func (s *Store) firstPrice(ctx context.Context, tx *txn, at prego.InfraProviderID, region prego.Region, spec server.Spec) int64 {
	for _, c := range s.machines.Candidates(prego.RoleNode, region, spec) {
		if m := tx.serverPrice(ctx, at, c.Location, c.ServerType); m.Cents > 0 {
			return m.Cents
		}
	}
	return 0
}

// holdOwner holds the org of a tenant for which a server is ordered.
func holdOwner(ctx context.Context, tx *txn, id prego.TenantID) error {
	_, err := lockOwner(ctx, tx, noSuchTenant(string(id)), sqlTenantOrg, id)
	return err
}

// checkOwnServer checks the org's limits again when the first server of a tenant is ordered, at the price of what is
// ordered. A server that replaces one needs no free quota.
func (s *Store) checkOwnServer(ctx context.Context, tx *txn, n server.Wanted) error {
	have := oneIn[struct {
		OrgID          prego.OrgID
		First          bool
		Servers, Cents int64
	}](ctx, tx, sqlOwnServersStanding, n.DedicatedFor)
	cents := s.firstPrice(ctx, tx, n.Provider, n.Region, n.Spec)
	if tx.err != nil || !have.First {
		return tx.err
	}
	dimensions := []quota.Dimension{quota.MaxServers, quota.MaxMonthlyEuros}
	limits := map[quota.Dimension]float64{}
	for _, l := range manyIn[struct {
		Dimension quota.Dimension
		Limit     float64
	}](ctx, tx, sqlLimits, have.OrgID, dimensions, s.tierLimits) {
		limits[l.Dimension] = l.Limit
	}
	used := map[quota.Dimension]float64{quota.MaxServers: float64(have.Servers), quota.MaxMonthlyEuros: quota.Cents(have.Cents).By}
	if over := quota.Check(ownServer(cents), used, func(d quota.Dimension) float64 { return limits[d] }); tx.err == nil && over != nil {
		return over
	}
	tx.run(ctx, sqlSetOwnServerCents, n.DedicatedFor, cents)
	return tx.err
}
