package server

import "github.com/prego/prego"

// Provider is a cloud that servers can be made on (placement-policy §2.2).
type Provider struct {
	Provider prego.InfraProviderID
	Enabled  bool
	Regions  []prego.Region
}

// ProviderChange is the body of PATCH /v1/providers/{id}. Nil fields change nothing.
type ProviderChange struct {
	Enabled *bool           `json:"enabled"`
	Regions *[]prego.Region `json:"regions"`
}

// Check refuses a provider that no server could be made on: the first enabled one of a region gets its new servers.
func (c ProviderChange) Check(id prego.InfraProviderID) error {
	if c.Enabled != nil && *c.Enabled && !id.HasAdapter() {
		message := "prego has no adapter for " + string(id)
		return &prego.Error{Code: prego.CodeProviderUnknown, Field: "enabled", Message: message}
	}
	return nil
}

// ResidencyZone is where data of a country's residents may be (placement-policy §2.1, §2.2).
type ResidencyZone struct {
	Country   string // ISO 3166
	Regions   []prego.Region
	Providers []prego.InfraProviderID // empty for every enabled one
}

// CapacityDefault is how many tenants a new shard, pool or node has room for.
type CapacityDefault struct {
	Role           prego.Role
	TenantCapacity int
}
