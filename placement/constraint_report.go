package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// ConstraintReport compares the servers of a snapshot with a constraint (placement-pools, "Auctioneer"): how many of
// the considered app servers and nodes satisfy it, and why the others do not. A server that takes no tenant of the
// region, whatever its room, is not there for a constraint: it neither makes a tenant wait for its room nor lets a
// server be bought beside it.
type ConstraintReport struct {
	Require        []string `json:"require"`
	Disallow       []string `json:"disallow"`
	PlacementPools []string `json:"placement_pools"` // whose constraints it includes
	LookedAt       int      `json:"servers_looked_at"`
	Satisfying     int      `json:"servers_satisfying"`
	// Unsatisfied counts the others by the first rule that each breaks: "lacks <tag>", "has <tag>", "in another region",
	// "not active", "cordoned".
	Unsatisfied map[string]int `json:"unsatisfied"`
	// Ignored: an operator's override went against it.
	Ignored bool `json:"ignored,omitempty"`
}

// String returns the constraint and its counts.
func (c ConstraintReport) String() string {
	out := prego.Constraint{Require: c.Require, Disallow: c.Disallow}.String()
	if len(c.PlacementPools) > 0 {
		out += fmt.Sprintf(" with placement pools %s", strings.Join(c.PlacementPools, ", "))
	}
	out += fmt.Sprintf(": %d of %d servers satisfy it", c.Satisfying, c.LookedAt)
	for _, why := range slices.Sorted(maps.Keys(c.Unsatisfied)) {
		out += fmt.Sprintf(", %d %s", c.Unsatisfied[why], why)
	}
	return out
}

// reportConstraint counts the servers that satisfy the request's constraint. It loops
// separately, so that requests without one don't pay for it.
func (s *search) reportConstraint() {
	c := s.r.Constraint
	if c.Empty() {
		return
	}
	lacks, has := make([]int, len(c.Require)), make([]int, len(c.Disallow))
	r := &ConstraintReport{
		Require: notNil(c.Require), Disallow: notNil(c.Disallow), PlacementPools: notNil(s.r.Pools),
		LookedAt: len(s.f.servers), Unsatisfied: map[string]int{},
	}
	for i := range s.f.servers {
		srv := &s.f.servers[i]
		tags := srv.Tags
		if n := slices.IndexFunc(c.Require, func(t string) bool { return !slices.Contains(tags, t) }); n >= 0 {
			lacks[n]++
		} else if n := slices.IndexFunc(c.Disallow, func(t string) bool { return slices.Contains(tags, t) }); n >= 0 {
			has[n]++
		} else if why := s.absent(&srv.Server); why != "" {
			r.Unsatisfied[why]++
		} else {
			r.Satisfying++
		}
	}
	for i, n := range lacks {
		if n > 0 {
			r.Unsatisfied["lacks "+c.Require[i]] = n
		}
	}
	for i, n := range has {
		if n > 0 {
			r.Unsatisfied["has "+c.Disallow[i]] = n
		}
	}
	if o := s.r.Override; o != nil && o.IgnoreConstraint {
		r.Ignored, s.r.Constraint = true, prego.Constraint{}
	}
	s.report = r
}

// absent is why a server takes no tenant of the region whatever its room; "" if it may.
func (s *search) absent(srv *Server) string {
	switch {
	case srv.Region != s.r.Region:
		return "in another region"
	case srv.Status != server.Active:
		return "not active"
	case srv.Cordoned:
		return "cordoned"
	}
	return ""
}

func notNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
