// Package region decides in which regions a fleet grows and shrinks
// (region-placement), what a resize asks for, and which servers go. It is pure: no
// clock, no I/O, no randomness of its own; the same input gives the same plan.
package region

import (
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/prego/prego"
)

// Defaults of a region in a policy (region-placement, "Properties").
const (
	DefaultWeight int64 = 100
	NoCap         int64 = -1
)

// Limits of what is taken. With them no sum or product leaves 64 bits, but for the
// products that are made in 128.
const (
	MaxRegions       = 1_000
	MaxNameLen       = 255           // bytes
	MaxNodes   int64 = 1_000_000_000 // in one region, in one action, as a cap
	MaxWeight  int64 = 1_000_000_000
)

// Codes of plans that cannot be made. Their sentences are the seed's, word for word.
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
	Weight int64  `json:"weight"` // of the nodes; 0 takes none while another region has room
	Cap    int64  `json:"cap"`    // most nodes; NoCap is no limit
}

// Policy is where a fleet's nodes are to be. The order of its regions breaks ties.
type Policy struct {
	Regions []Region `json:"regions"`
}

// Validate refuses a policy that cannot be meant. Fields are paths from the
// policy, such as "regions[1].weight"; at is put before them.
func (p Policy) Validate(at string) error {
	if at != "" {
		at += "."
	}
	switch {
	case len(p.Regions) == 0:
		return prego.Invalid(at+"regions", "must name at least one region")
	case len(p.Regions) > MaxRegions:
		return prego.Invalid(at+"regions", fmt.Sprintf("must be at most %d regions", MaxRegions))
	}
	seen := make(map[string]bool, len(p.Regions))
	var sum int64
	for i, r := range p.Regions {
		here := fmt.Sprintf("%sregions[%d]", at, i)
		if err := validateName(here+".name", r.Name); err != nil {
			return err
		}
		switch {
		case seen[r.Name]:
			return prego.Invalid(here+".name", "is given twice: "+r.Name)
		case r.Weight < 0 || r.Weight > MaxWeight:
			return prego.Invalid(here+".weight", fmt.Sprintf("must be 0 to %d", MaxWeight))
		case r.Cap < NoCap || r.Cap > MaxNodes:
			return prego.Invalid(here+".cap", fmt.Sprintf("must be -1 (no cap) to %d", MaxNodes))
		}
		seen[r.Name] = true
		sum += r.Weight
	}
	if sum == 0 {
		return prego.Invalid(at+"regions", "must have a weight above 0 in one region at least")
	}
	return nil
}

func validateName(field, name string) error {
	switch {
	case name == "":
		return prego.Invalid(field, "must not be empty")
	case len(name) > MaxNameLen:
		return prego.Invalid(field, fmt.Sprintf("must be at most %d bytes", MaxNameLen))
	case !utf8.ValidString(name):
		return prego.Invalid(field, "must be UTF-8")
	}
	for _, c := range name {
		if unicode.IsControl(c) || unicode.IsSpace(c) {
			return prego.Invalid(field, "must not hold spaces or control characters")
		}
	}
	return nil
}

// Unlisted counts the nodes that stand in regions that the policy does not list.
// No plan touches them, and they are in no share.
func (p Policy) Unlisted(current map[string]int64) map[string]int64 {
	listed := make(map[string]bool, len(p.Regions))
	for _, r := range p.Regions {
		listed[r.Name] = true
	}
	out := make(map[string]int64)
	for name, n := range current {
		if !listed[name] && n > 0 {
			out[name] = n
		}
	}
	return out
}
