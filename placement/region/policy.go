// Package region decides in which regions a fleet grows and shrinks (region-placement), the result of a resize, and
// which servers are removed. It is pure: no clock, no I/O, no randomness; the same input gives the same plan.
//
// # Shares
//
// A plan is made over the regions that are listed and usable. Its total is what stands in them afterwards; nodes
// elsewhere are counted apart. Each of these regions has a share of the total:
//
//   - by weight, total·weight/Σweights, as long as that is within its cap;
//   - its cap otherwise. The rest goes to the others by weight, which
//     may fill the next cap, until every share is within its cap;
//   - none where the weight is 0, unless the caps of all others leave nodes over:
//     those are shared equally by the regions of weight 0.
//
// When even the caps of all are below the total (nodes stand above a cap), every
// share is the cap. Shares are fractions: a whole part and a remainder over one
// denominator that all of them have in common, so that comparing is exact.
//
// # Plans
//
// Growing gives a node to the region with the largest deficit, share − count, that has room, n times; shrinking takes
// one from the largest surplus that has nodes. Deviation in L1 and in L2 are sums of convex functions of one count
// each, and the largest deficit is the largest gain in both, so that this greedy walk ends at the minimum of both.
// Three rules come before deviation: a cap is never passed, a region of weight 0 receives only when no other has
// room, and shrinking empties the excess above a cap first.
//
// The walk is not walked. Its steps are keys (whole part, remainder, order), one whole number apart within a region,
// and the plan is the n largest. The whole part of the last one is found by bisection, and at most one step per
// region is left to rank: O(R log N + R log R) for R regions and N nodes.
package region

import (
	"fmt"
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/prego/prego"
)

// Defaults of a region in a policy (region-placement, "Properties").
const (
	DefaultWeight int64 = 100
	NoCap         int64 = -1
)

// Input limits. With them no sum or product exceeds 64 bits, except the products that use 128.
const (
	MaxRegions       = 1_000
	MaxNameLen       = 255           // bytes
	MaxNodes   int64 = 1_000_000_000 // in one region, in one action, as a cap
	MaxWeight  int64 = 1_000_000_000
)

// Codes of impossible plans. Their messages are fixed (region-placement, S1).
const (
	CodeNoRegion prego.Code = "no_usable_region"
	CodeNoPlan   prego.Code = "no_feasible_plan"
)

var (
	errNoRegion = prego.Errorf(CodeNoRegion, "No region is found usable.")
	errNoPlan   = prego.Errorf(CodeNoPlan, "There is no feasible plan to handle all nodes.")
)

// Region is one region of a policy.
type Region struct {
	Name   string `json:"name"`
	Weight int64  `json:"weight"` // relative share; a region with 0 gets nodes only if no other has room
	Cap    int64  `json:"cap"`    // maximum number of nodes; NoCap means no limit
}

// Policy is where a fleet's nodes should be. The order of its regions breaks ties.
type Policy struct {
	Regions []Region `json:"regions"`
}

// Validate rejects impossible policies. Fields are paths within the policy, such as
// "regions[1].weight", prefixed with at.
func (p Policy) Validate(at string) error {
	switch {
	case len(p.Regions) == 0:
		return prego.Invalid(at+".regions", "must name at least one region")
	case len(p.Regions) > MaxRegions:
		return prego.Invalid(at+".regions", fmt.Sprintf("must be at most %d regions", MaxRegions))
	}
	seen := make(map[string]bool, len(p.Regions))
	var sum int64
	for i, r := range p.Regions {
		here := func(field string) string { return fmt.Sprintf("%s.regions[%d].%s", at, i, field) }
		fault := faultOfName(r.Name)
		switch {
		case fault != "":
			return prego.Invalid(here("name"), fault)
		case seen[r.Name]:
			return prego.Invalid(here("name"), "is given twice: "+r.Name)
		case r.Weight < 0 || r.Weight > MaxWeight:
			return prego.Invalid(here("weight"), fmt.Sprintf("must be 0 to %d", MaxWeight))
		case r.Cap < NoCap || r.Cap > MaxNodes:
			return prego.Invalid(here("cap"), fmt.Sprintf("must be -1 (no cap) to %d", MaxNodes))
		}
		seen[r.Name] = true
		sum += r.Weight
	}
	if sum == 0 {
		return prego.Invalid(at+".regions", "must have a weight above 0 in one region at least")
	}
	return nil
}

// faultOfName is what is wrong with a region's name, "" if nothing.
func faultOfName(name string) string {
	switch {
	case name == "":
		return "must not be empty"
	case len(name) > MaxNameLen:
		return fmt.Sprintf("must be at most %d bytes", MaxNameLen)
	case !utf8.ValidString(name):
		return "must be UTF-8"
	}
	for _, c := range name {
		if unicode.IsControl(c) || unicode.IsSpace(c) {
			return "must not hold spaces or control characters"
		}
	}
	return ""
}

func validateName(field, name string) error {
	if fault := faultOfName(name); fault != "" {
		return prego.Invalid(field, fault)
	}
	return nil
}

// validateCurrent returns the first error by name, independent of the map's order.
func validateCurrent(current map[string]int64) error {
	var faults []string
	for name, n := range current {
		if n < 0 || n > MaxNodes || faultOfName(name) != "" {
			faults = append(faults, name)
		}
	}
	if len(faults) == 0 {
		return nil
	}
	name := slices.Min(faults)
	if err := validateName("current", name); err != nil {
		return err
	}
	return prego.Invalid("current."+name, fmt.Sprintf("must be 0 to %d", MaxNodes))
}
