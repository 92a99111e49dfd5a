package store

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

const (
	sqlProviders = `SELECT id AS provider, enabled, regions FROM infra_providers ORDER BY id`

	sqlChangeProvider = `
UPDATE infra_providers SET enabled = COALESCE($2, enabled), regions = COALESCE($3, regions)
WHERE id = $1 AND (enabled, regions) IS DISTINCT FROM (COALESCE($2, enabled), COALESCE($3, regions))`

	sqlResidencyZones = `
SELECT country, regions, COALESCE(providers, '{}') AS providers FROM residency_zones ORDER BY country`

	// A tenant that is there already keeps its place only while the zone has it.
	sqlOutsideOfZone = `
SELECT COALESCE(min(t.tenant_id), '') FROM tenants t LEFT JOIN tenant_allocations a ON a.tenant_id = t.tenant_id
WHERE t.data_residency = $1 AND t.state NOT IN ('data_purged', 'failed')
  AND (NOT t.region = ANY ($2) OR cardinality($3::text[]) > 0 AND NOT a.infra_provider = ANY ($3))`

	sqlPutResidencyZone = `
INSERT INTO residency_zones AS z (country, regions, providers) VALUES ($1, $2, NULLIF($3::text[], '{}'))
ON CONFLICT (country) DO UPDATE SET regions = EXCLUDED.regions, providers = EXCLUDED.providers
WHERE (z.regions, z.providers) IS DISTINCT FROM (EXCLUDED.regions, EXCLUDED.providers)`

	sqlCapacityDefaults   = `SELECT role, tenant_capacity FROM capacity_defaults ORDER BY role`
	sqlPutCapacityDefault = `
UPDATE capacity_defaults SET tenant_capacity = $2 WHERE role = $1 AND tenant_capacity <> $2`
)

// Providers are the clouds, by id.
func (s *Store) Providers(ctx context.Context) ([]server.Provider, error) {
	return collect[server.Provider](ctx, s, "providers", sqlProviders)
}

// ChangeProvider changes whether and where new servers are made on a cloud, and tenants placed.
func (s *Store) ChangeProvider(ctx context.Context, id prego.InfraProviderID, c server.ProviderChange) error {
	if err := c.Check(id); err != nil {
		return err
	}
	return s.inTx(ctx, "provider "+string(id), func(tx *txn) error {
		tx.run(ctx, sqlChangeProvider, id, c.Enabled, c.Regions)
		return nil
	})
}

// ResidencyZones are where countries' data may be, by country.
func (s *Store) ResidencyZones(ctx context.Context) ([]server.ResidencyZone, error) {
	return collect[server.ResidencyZone](ctx, s, "residency zones", sqlResidencyZones)
}

// PutResidencyZone sets where data of a country may be, unless a tenant of it is somewhere else.
func (s *Store) PutResidencyZone(ctx context.Context, z server.ResidencyZone) error {
	return s.inTx(ctx, "residency zone "+z.Country, func(tx *txn) error {
		providers := z.Providers
		if providers == nil {
			providers = []prego.InfraProviderID{}
		}
		if t := valueIn[string](ctx, tx, sqlOutsideOfZone, z.Country, z.Regions, providers); t != "" {
			message := "tenant " + t + " of " + z.Country + " would be outside; move it first"
			return &prego.Error{Code: prego.CodeResidencyViolation, Field: "regions", Message: message}
		}
		tx.run(ctx, sqlPutResidencyZone, z.Country, z.Regions, providers)
		return nil
	})
}

// CapacityDefaults are how many tenants new servers have room for, by role.
func (s *Store) CapacityDefaults(ctx context.Context) ([]server.CapacityDefault, error) {
	return collect[server.CapacityDefault](ctx, s, "capacity defaults", sqlCapacityDefaults)
}

// PutCapacityDefault sets how many tenants the servers of a role have room for that become active from now on.
func (s *Store) PutCapacityDefault(ctx context.Context, d server.CapacityDefault) error {
	return s.inTx(ctx, "capacity of "+string(d.Role), func(tx *txn) error {
		tx.run(ctx, sqlPutCapacityDefault, d.Role, d.TenantCapacity)
		return nil
	})
}
