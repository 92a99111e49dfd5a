package server

import (
	"fmt"

	"github.com/prego/prego"
)

// What a machine keeps for itself: the system, the agent and the engine; on the disk also
// the images.
const (
	hostMemory = 1 << 30
	hostDisk   = 20 << 30
)

// MemoryBytes is what the containers of a role may take together. One without a limit
// counts nothing.
func (s Stack) MemoryBytes(role prego.Role) int64 {
	var sum int64
	for _, c := range s[role] {
		sum += c.MemoryBytes + c.MemoryMB<<20
	}
	return sum
}

// CheckOffer rejects a fleet that promises more memory or disk to instances than the
// smallest machine type that it may order has, less what its role's stack and the system
// take, naming the field at fault. Types that the provider does not sell are not looked at,
// and nothing is rejected until the catalog has been read once.
func (s CatalogState) CheckOffer(c Catalog, stack Stack, f Fleet) error {
	if f.WorkloadMemory == 0 && f.WorkloadDisk == 0 || !s.Known() {
		return nil
	}
	memory, disk, known := s.smallest(c.orderedBy(f))
	if !known {
		return nil
	}
	taken := stack.MemoryBytes(f.Role)
	if most := max(0, int64(memory.MemoryGB*(1<<30))-taken-hostMemory); f.WorkloadMemory > most {
		return prego.Invalid("workload_memory_bytes", fmt.Sprintf("must be at most %d MiB: of the %g GiB of %s, the smallest machine type of the fleet, its stack takes %d MiB and the system %d MiB",
			most>>20, memory.MemoryGB, memory.Name, taken>>20, int64(hostMemory)>>20))
	}
	if most := max(0, int64(disk.DiskGB)<<30-hostDisk); f.WorkloadDisk > most {
		return prego.Invalid("workload_disk_bytes", fmt.Sprintf("must be at most %d GiB: of the %d GiB of %s, the smallest machine type of the fleet, the system and images take %d GiB",
			most>>30, disk.DiskGB, disk.Name, int64(hostDisk)>>30))
	}
	return nil
}

// orderedBy are the machine types of a fleet's servers.
func (c Catalog) orderedBy(f Fleet) []string {
	if f.Spec.ServerType != "" {
		return []string{f.Spec.ServerType}
	}
	if f.Region != "" {
		return c.typesFor(f.Role, f.Region)
	}
	var types []string
	for _, r := range prego.Regions() {
		types = append(types, c.typesFor(f.Role, r)...)
	}
	return types
}

// smallest are the types with the least memory and the least disk.
func (p ProviderCatalog) smallest(names []string) (memory, disk OfferedType, known bool) {
	for _, name := range names {
		t, sold := p.Type(name)
		if !sold {
			continue
		}
		if !known || t.MemoryGB < memory.MemoryGB {
			memory = t
		}
		if !known || t.DiskGB < disk.DiskGB {
			disk = t
		}
		known = true
	}
	return memory, disk, known
}
