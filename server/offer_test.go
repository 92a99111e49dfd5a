package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

// TestAnOfferFitsTheMachine: what a fleet promises to instances is what its smallest
// machine has beside the stack and the system.
func TestAnOfferFitsTheMachine(t *testing.T) {
	t.Parallel()
	catalog := CatalogState{RefreshedAt: time.Now(), ProviderCatalog: ProviderCatalog{ServerTypes: []OfferedType{
		{Name: "small", MemoryGB: 8, DiskGB: 80}, {Name: "large", MemoryGB: 16, DiskGB: 40},
	}}}
	configured := Catalog{ServerTypes: map[prego.Role]map[prego.Region][]string{prego.RoleApp: {"": {"large", "small", "retired"}, prego.RegionUS: {"large"}}}}
	stack := Stack{prego.RoleApp: {{MemoryMB: 1024}, {MemoryBytes: 1 << 30}, {}}}
	for name, tc := range map[string]struct {
		fleet Fleet
		field string // "" if it fits
		says  string
	}{
		"as much as the smallest has": {fleet: Fleet{Region: "eu", WorkloadMemory: 5 << 30, WorkloadDisk: 20 << 30}},
		"more memory": {
			fleet: Fleet{Region: "eu", WorkloadMemory: 5<<30 + 1}, field: "workload_memory_bytes",
			says: "must be at most 5120 MiB: of the 8 GiB of small, the smallest machine type of the fleet, its stack takes 2048 MiB and the system 1024 MiB",
		},
		"more disk": {
			fleet: Fleet{Region: "eu", WorkloadDisk: 20<<30 + 1}, field: "workload_disk_bytes",
			says: "must be at most 20 GiB: of the 40 GiB of large, the smallest machine type of the fleet, the system and images take 20 GiB",
		},
		"a region of larger ones":   {fleet: Fleet{Region: "us", WorkloadMemory: 13 << 30}},
		"any region":                {fleet: Fleet{WorkloadMemory: 13 << 30}, field: "workload_memory_bytes"},
		"its own type":              {fleet: Fleet{Region: "eu", Spec: Spec{ServerType: "large"}, WorkloadMemory: 13 << 30}},
		"an unknown type":           {fleet: Fleet{Region: "eu", Spec: Spec{ServerType: "retired"}, WorkloadMemory: 13 << 40}},
		"it offers nothing":         {fleet: Fleet{Region: "eu"}},
		"a role without containers": {fleet: Fleet{Region: "eu", Role: prego.RoleNode, Spec: Spec{ServerType: "small"}, WorkloadMemory: 7 << 30}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.fleet.Role == "" {
				tc.fleet.Role = prego.RoleApp
			}
			err := catalog.CheckOffer(configured, stack, tc.fleet)
			if tc.field == "" {
				require.NoError(t, err)
				return
			}
			var refused *prego.Error
			require.ErrorAs(t, err, &refused)
			require.Equal(t, prego.CodeInvalidField, refused.Code)
			require.Equal(t, tc.field, refused.Field)
			require.Contains(t, refused.Message, tc.says)
			require.NoError(t, CatalogState{ProviderCatalog: catalog.ProviderCatalog}.CheckOffer(configured, stack, tc.fleet), "a catalog that was never read")
		})
	}
}
