package pack

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// Usable is how much of a server tenants may take, in percent, and how many may live there (placement-policy §2.4).
// Disk and number are ignored if they are 0.
type Usable struct {
	MemoryPct, DiskPct float64
	Tenants            int
}

// TenantsBelow is how many tenants may live on a server with a maximum of most if all together must stay below the
// share, in percent, that triggers scale-out ahead of need: a plan that reached it would make the control plane
// create new servers in place of the freed ones. At least 1; a threshold of 0 is none.
func TenantsBelow(most int, thresholdPct float64) int {
	if thresholdPct <= 0 {
		return most
	}
	return max(1, min(most, int(math.Ceil(float64(most)*thresholdPct/100))-1))
}

// unknownSize is the size of a server whose type is missing from the catalog: only servers of one such type are
// compared.
const unknownSize = 100

// Plan finds moves of tenants that empty app servers. A tenant's memory is its share of the usage above an empty server
// of that type, since hosts don't measure it by tenant; its disk is its files. catalogs are by provider.
func Plan(
	f server.PackedFleet, catalogs map[prego.InfraProviderID]server.CatalogState, usable Usable,
	r server.PackingRequest, now time.Time,
) (server.PackingPlan, error) {
	out, _, err := PlanWithFill(f, catalogs, usable, r, now)
	return out, err
}

// Fill is a server that a plan changes, as it is and as the plan leaves it.
type Fill struct {
	server.PackedServer
	MemoryMB       int64 // 0 if the catalog does not know the type
	MemoryPctAfter *float64
	TenantsAfter   int
	Freed          bool
}

// PlanWithFill is Plan, with the servers that the plan changes: first the freed ones, then by id.
func PlanWithFill(
	f server.PackedFleet, catalogs map[prego.InfraProviderID]server.CatalogState, usable Usable,
	r server.PackingRequest, now time.Time,
) (server.PackingPlan, []Fill, error) {
	out := server.PackingPlan{MadeAt: now, Moves: []server.PlannedMove{}, Frees: []server.FreedServer{}}
	on := map[prego.ServerID][]server.PackedTenant{}
	for _, t := range f.Tenants {
		on[t.ServerID] = append(on[t.ServerID], t)
	}
	idle := idleMemory(f, on)
	var hosts []Host
	var residents []Resident
	size := map[prego.ServerID]float64{}
	for _, s := range f.Servers {
		if s.MemoryPct == nil || s.DiskPct == nil {
			if len(on[s.ServerID]) > 0 {
				out.Unknown = append(out.Unknown, s.ServerID)
			}
			continue
		}
		traits := []string{string(s.Region), string(s.NetworkID), string(s.InfraProvider)}
		place := strings.Join(append(traits, slices.Sorted(slices.Values(s.Tags))...), "\n")
		memory, disk := float64(unknownSize), float64(unknownSize)
		catalog := catalogs[s.InfraProvider]
		if typ, ok := catalog.Type(s.ServerType); ok {
			memory, disk = typ.MemoryGB*(1<<30), float64(typ.DiskGB)*1e9
		} else {
			place += "\n" + s.ServerType
		}
		size[s.ServerID] = memory
		base := min(idle[s.ServerType], *s.MemoryPct) / 100 * memory
		used := *s.MemoryPct/100*memory - base
		others := *s.DiskPct / 100 * disk
		known := disk != unknownSize && usable.DiskPct > 0 // otherwise the bytes of files mean nothing
		if known {
			for _, t := range on[s.ServerID] {
				others -= float64(t.Bytes)
			}
		}
		for _, t := range on[s.ServerID] {
			demand := map[string]float64{"memory": used / float64(len(on[s.ServerID]))}
			if known {
				demand["disk"] = float64(t.Bytes)
			}
			if usable.Tenants > 0 {
				demand["tenants"] = 1
			}
			residents = append(residents, Resident{
				ID: string(t.TenantID), Host: string(s.ServerID), Demand: demand, Bytes: t.Bytes, Stays: t.Stays,
			})
		}
		h := Host{
			ID: string(s.ServerID), Place: place, Takes: s.Takes,
			Leaves:   s.Leaves && (r.FleetID == "" || r.FleetID == s.FleetID),
			Capacity: map[string]float64{"memory": max(0, usable.MemoryPct/100*memory-base)},
		}
		if usable.DiskPct > 0 {
			h.Capacity["disk"] = max(0, usable.DiskPct/100*disk-max(0, others))
		}
		if usable.Tenants > 0 { // otherwise a move to a requested server is not refused for the number there
			h.Capacity["tenants"] = float64(usable.Tenants)
		}
		if cost, ok := catalog.ServerCost(s.ServerType, s.Location, s.Spec.VolumeGB); ok {
			h.Price, out.Currency = cost.Monthly.NetAmount(), cost.Currency
		}
		hosts = append(hosts, h)
	}
	limits := ConsolidationLimits{Moves: cmp.Or(r.MaxMoves, server.MaxPlannedMoves), Bytes: r.MaxBytes}
	c, err := Consolidate(hosts, residents, limits)
	if err != nil {
		return out, nil, err
	}
	out.Bytes, out.Monthly, out.Servers, out.Needed = c.Bytes, c.Price, c.Used, c.LowerBound
	for _, m := range c.Moves {
		out.Moves = append(out.Moves, server.PlannedMove{
			TenantID: prego.TenantID(m.ID), From: prego.ServerID(m.From), To: prego.ServerID(m.To), Bytes: m.Bytes,
		})
	}
	for _, h := range c.Freed {
		out.Frees = append(out.Frees, server.FreedServer{
			ServerID: prego.ServerID(h.ID), Monthly: h.Price, Moves: h.Moves, Bytes: h.Bytes,
		})
	}
	return out, fills(f, out, residents, size), nil
}

func fills(
	f server.PackedFleet, plan server.PackingPlan, residents []Resident, size map[prego.ServerID]float64,
) []Fill {
	memory := make(map[prego.TenantID]float64, len(residents))
	for _, r := range residents {
		memory[prego.TenantID(r.ID)] = r.Demand["memory"]
	}
	change, tenants := map[prego.ServerID]float64{}, map[prego.ServerID]int{}
	for _, m := range plan.Moves {
		change[m.From] -= memory[m.TenantID]
		change[m.To] += memory[m.TenantID]
		tenants[m.From]--
		tenants[m.To]++
	}
	freed := map[prego.ServerID]bool{}
	for _, s := range plan.Frees {
		freed[s.ServerID] = true
	}
	var out []Fill
	for _, s := range f.Servers {
		if _, moved := tenants[s.ServerID]; !moved {
			continue
		}
		v := Fill{PackedServer: s, TenantsAfter: s.Tenants + tenants[s.ServerID], Freed: freed[s.ServerID]}
		if size[s.ServerID] != unknownSize {
			v.MemoryMB = int64(size[s.ServerID]) >> 20
		}
		// Servers with unknown fill are in no plan.
		after := min(100, max(0, *s.MemoryPct+100*change[s.ServerID]/size[s.ServerID]))
		v.MemoryPctAfter = &after
		out = append(out, v)
	}
	slices.SortStableFunc(out, func(a, b Fill) int {
		switch {
		case a.Freed == b.Freed:
			return cmp.Compare(a.ServerID, b.ServerID)
		case a.Freed:
			return -1
		}
		return 1
	})
	return out
}

// idleMemory is what servers of a type use without tenants, in percent: the lowest measurement. A type without an
// empty server uses 0, so that tenants seem to take more than they do.
func idleMemory(f server.PackedFleet, on map[prego.ServerID][]server.PackedTenant) map[string]float64 {
	out := map[string]float64{}
	for _, s := range f.Servers {
		if s.MemoryPct == nil || len(on[s.ServerID]) > 0 {
			continue
		}
		if least, ok := out[s.ServerType]; !ok || *s.MemoryPct < least {
			out[s.ServerType] = *s.MemoryPct
		}
	}
	return out
}
