// Package instance places the instances of process groups on servers, and decides the next step of a rollout
// (quotas-and-fairness). It is pure.
package instance

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// Server is a server that offers capacity to instances.
type Server struct {
	ServerID     prego.ServerID
	Location     string
	Tags         []string // lower-case
	Active       bool     // active, and its agent connected
	Cordoned     bool     // closed to newcomers
	Coming       bool     // being created
	MemoryBytes  int64    // capacity offered
	CPUs         float64  // capacity offered
	MemoryUsed   int64    // used by instances, with their overhead
	CPURequested float64
	DiskBytes    int64          // capacity offered
	DiskUsed     int64          // requested by instances
	Groups       map[string]int // instances of each group
	Volumes      int            // attached now or soon
	GroupVolumes map[string]int // the volumes of each group, among them
	Kept         bool           // dedicated to a tenant, now or soon: the server, its shard or its pool
}

// Request is one instance that needs a place.
type Request struct {
	GroupID     prego.GroupID
	MemoryBytes int64 // including the overhead
	CPURequest  float64
	DiskBytes   int64 // 0 fits anywhere
	Constraint  prego.Constraint
	Locations   []string // of its volumes; must all be the server's
	Volumes     int      // that it needs
}

// Decision is where an instance goes and why, as JSON.
type Decision struct {
	ServerID            prego.ServerID `json:"server_id,omitempty"`
	Code                string         `json:"code,omitempty"` // why there is no place
	SelectionReason     string         `json:"selection_reason"`
	CandidatesEvaluated int            `json:"candidates_evaluated"`
	RejectedCounts      map[string]int `json:"rejected_counts"`
	NeededBytes         int64          `json:"needed_bytes"`
	LargestFreeBytes    int64          `json:"largest_free_bytes"` // among servers that only lacked memory, or had it
	NeededDiskBytes     int64          `json:"needed_disk_bytes,omitempty"`
	LargestFreeDisk     int64          `json:"largest_free_disk_bytes,omitempty"` // among servers with enough memory
	Location            string         `json:"location,omitempty"`
	GroupAtLocation     int            `json:"group_at_location"` // instances of the group there, before this one
	Require             []string       `json:"require,omitempty"`
	Disallow            []string       `json:"disallow,omitempty"`
	Locations           []string       `json:"locations,omitempty"`
}

// The filters, in order. If no server passes all of them, the last filter that any server reached is the reason: it
// is the most specific.
var filters = []struct{ rejected, code string }{
	{"constraint", string(prego.ReasonCellMismatch)},
	{"kept_for_tenants", workload.ReasonNoNodesActive},
	{"not_active", workload.ReasonNoNodesActive},
	{"cordoned", workload.ReasonNoNodesActive},
	{"volume_locality", workload.ReasonVolumeLocality},
	{"volume_slots", workload.ReasonNoVolumeSlots},
	{"memory", workload.ReasonNoCapacityMemory},
	{"disk", workload.ReasonNoCapacityDisk},
}

// Place decides where an instance goes. A server must satisfy the constraint, not be dedicated to a tenant, be active
// and not cordoned, be at the location of the volumes, be able to have them all attached, and have the memory and
// disk, which are hard limits. It prefers the server where the group is sparsest, at the location and on the server,
// then the fewest instances of the group, then the lowest share of CPU requested, then the lowest id. The order of
// servers does not matter.
func Place(r Request, servers []Server) Decision {
	d := Decision{
		CandidatesEvaluated: len(servers), RejectedCounts: map[string]int{},
		NeededBytes: r.MemoryBytes, NeededDiskBytes: r.DiskBytes,
		Require: r.Constraint.Require, Disallow: r.Constraint.Disallow, Locations: r.Locations,
	}
	there := map[string]int{} // instances of the group by location
	for i := range servers {
		there[servers[i].Location] += servers[i].Groups[string(r.GroupID)]
	}
	var best *Server
	furthest, fit := -1, 0
	for i := range servers {
		s := &servers[i]
		stage := instanceStage(r, s)
		if stage >= len(filters)-1 && r.DiskBytes > 0 {
			d.LargestFreeDisk = max(d.LargestFreeDisk, s.DiskBytes-s.DiskUsed)
		}
		if stage >= len(filters)-2 {
			d.LargestFreeBytes = max(d.LargestFreeBytes, s.MemoryBytes-s.MemoryUsed)
		}
		if stage < len(filters) {
			d.RejectedCounts[filters[stage].rejected]++
			furthest = max(furthest, stage)
			continue
		}
		fit++
		if best == nil || compareInstanceServers(r, there, s, best) < 0 {
			best = s
		}
	}
	switch {
	case best != nil:
		d.ServerID, d.Location, d.GroupAtLocation = best.ServerID, best.Location, there[best.Location]
		d.SelectionReason = fmt.Sprintf("%d of %d servers fit; this one runs %d of the group, its location %d, and %s",
			fit, len(servers), best.Groups[string(r.GroupID)], there[best.Location], pressureText(r, best))
	case furthest < 0:
		d.Code, d.SelectionReason = workload.ReasonNoNodesActive, "no server in the region offers room to instances"
	default:
		d.Code = filters[furthest].code
		d.SelectionReason = "no server fits: " + d.rejections()
		switch d.Code {
		case workload.ReasonNoCapacityMemory:
			d.SelectionReason += fmt.Sprintf("; it needs %s, and at most %s are free",
				size(d.NeededBytes), size(d.LargestFreeBytes))
		case workload.ReasonNoCapacityDisk:
			d.SelectionReason += fmt.Sprintf("; it needs %s of disk, and at most %s are free",
				size(d.NeededDiskBytes), size(d.LargestFreeDisk))
		}
	}
	return d
}

// instanceStage is the index of the filter that rejects a server, len(filters) if none does.
func instanceStage(r Request, s *Server) int {
	switch {
	case !r.Constraint.SatisfiedBy(s.Tags):
		return 0
	case s.Kept:
		return 1
	case !s.Active:
		return 2
	case s.Cordoned:
		return 3
	case slices.ContainsFunc(r.Locations, func(l string) bool { return l != s.Location }):
		return 4
	case r.Volumes > 0 && s.Volumes-s.GroupVolumes[string(r.GroupID)]+r.Volumes > server.MaxServerVolumes:
		return 5
	case s.MemoryBytes-s.MemoryUsed < r.MemoryBytes:
		return 6
	case r.DiskBytes > 0 && s.DiskBytes-s.DiskUsed < r.DiskBytes:
		return 7
	}
	return len(filters)
}

// compareInstanceServers spreads a group over locations and servers. An instance on the same server weighs as much as
// two at the same location: a lone server at a location must not run half of a group while others stand empty
// elsewhere.
func compareInstanceServers(r Request, there map[string]int, a, b *Server) int {
	crowd := func(s *Server) int { return there[s.Location] + 2*s.Groups[string(r.GroupID)] }
	return cmp.Or(
		cmp.Compare(crowd(a), crowd(b)),
		cmp.Compare(a.Groups[string(r.GroupID)], b.Groups[string(r.GroupID)]),
		comparePressure(r, a, b),
		strings.Compare(string(a.ServerID), string(b.ServerID)),
	)
}

// comparePressure orders servers without CPU last; CPU is soft, so they may be used.
func comparePressure(r Request, a, b *Server) int {
	switch {
	case a.CPUs <= 0 && b.CPUs <= 0:
		return cmp.Compare(a.CPURequested, b.CPURequested)
	case a.CPUs <= 0:
		return 1
	case b.CPUs <= 0:
		return -1
	}
	return cmp.Compare((a.CPURequested+r.CPURequest)/a.CPUs, (b.CPURequested+r.CPURequest)/b.CPUs)
}

func pressureText(r Request, s *Server) string {
	return fmt.Sprintf("has %.2f of %.2f CPUs requested with it", s.CPURequested+r.CPURequest, s.CPUs)
}

// size is a number of bytes for people.
func size(bytes int64) string {
	switch {
	case bytes >= 1<<30:
		return strconv.FormatFloat(math.Round(float64(bytes)/(1<<30)*10)/10, 'f', -1, 64) + " GiB"
	case bytes >= 1<<20:
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d bytes", bytes)
}

// rejections are the counts in the order of the filters.
func (d Decision) rejections() string {
	var parts []string
	for _, f := range filters {
		if n := d.RejectedCounts[f.rejected]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", f.rejected, n))
		}
	}
	return fmt.Sprintf("of %d servers %s", d.CandidatesEvaluated, strings.Join(parts, ", "))
}
