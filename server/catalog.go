package server

import (
	"fmt"
	"slices"
	"time"

	"github.com/prego/prego"
)

// Catalog maps roles and regions to the provider's offers to order, in order of
// preference. Each is a list, since stock comes and goes and types retire.
type Catalog struct {
	// Image is the operating system image of specs that name none.
	Image string `json:"image"`
	// ServerTypes are the machine types per role and region, best first. The region ""
	// applies to every region that is not listed.
	ServerTypes map[prego.Role]map[prego.Region][]string `json:"server_types"`
	// Builders are the machine types that build golden images, per region as in
	// ServerTypes. Servers created from an image need at least its builder's disk size.
	Builders map[prego.Region][]string `json:"builders"`
	// Locations are the provider's locations per region, best first.
	Locations map[prego.Region][]string `json:"locations"`
	// Timeouts override DefaultTimeouts; the first match wins.
	Timeouts []TimeoutRule `json:"timeouts"`
	// DefaultTimeouts apply where no rule matches.
	DefaultTimeouts BootTimeouts `json:"default_timeouts"`
}

// BootTimeouts are how long each step of a boot may take.
type BootTimeouts struct {
	Running   prego.Duration `json:"running"`   // create call → the provider reports running
	Handshake prego.Duration `json:"handshake"` // running, or the last sign of life of the boot → handshake
	// Boot is running → handshake in total, however often the host reports progress; 0
	// means Handshake.
	Boot      prego.Duration `json:"boot"`
	Heartbeat prego.Duration `json:"heartbeat"` // handshake → first heartbeat
}

// TimeoutRule sets the timeouts of one location, image, or both; an empty field matches
// all.
type TimeoutRule struct {
	Location string `json:"location"`
	Image    string `json:"image"`
	BootTimeouts
}

// DefaultCatalog is the built-in catalog: dedicated types first in sg and us, where
// shared ones are not sold or are often out of stock.
func DefaultCatalog() Catalog {
	app := map[prego.Region][]string{"": {"cx43", "cpx42", "ccx23"}, prego.RegionSG: {"ccx23", "cpx42"}, prego.RegionUS: {"ccx23", "cpx42"}}
	small := map[prego.Region][]string{"": {"cx33", "cpx32", "ccx13"}, prego.RegionSG: {"ccx13", "cpx32"}, prego.RegionUS: {"ccx13", "cpx32"}}
	return Catalog{
		Image: "debian-13",
		ServerTypes: map[prego.Role]map[prego.Region][]string{
			prego.RoleApp:       app,
			prego.RoleNode:      app,
			prego.RoleDBShard:   {"": {"ccx23", "ccx33"}},
			prego.RoleRedisPool: small,
			prego.RoleEdge:      small,
		},
		Builders: map[prego.Region][]string{"": {"cx23", "cpx22", "ccx13"}, prego.RegionSG: {"cpx22", "ccx13"}, prego.RegionUS: {"cpx22", "ccx13"}},
		Locations: map[prego.Region][]string{
			prego.RegionEU: {"fsn1", "nbg1", "hel1"},
			prego.RegionUS: {"ash", "hil"},
			prego.RegionSG: {"sin"},
		},
		DefaultTimeouts: BootTimeouts{
			Running:   prego.Duration(5 * time.Minute),
			Handshake: prego.Duration(90 * time.Second),
			Boot:      prego.Duration(5 * time.Minute),
			Heartbeat: prego.Duration(90 * time.Second),
		},
	}
}

// Candidates lists what to order for a role in a region, best first: every location for
// the best type, then for the next type. What the spec pins is kept. The list is empty
// if the catalog has nothing for the role or region, or if the pinned location is in
// another region.
func (c Catalog) Candidates(role prego.Role, region prego.Region, spec Spec) []Candidate {
	types := c.typesFor(role, region)
	if spec.ServerType != "" {
		types = []string{spec.ServerType}
	}
	locations := c.Locations[region]
	if spec.Location != "" {
		if !slices.Contains(locations, spec.Location) {
			return nil
		}
		locations = []string{spec.Location}
	}
	out := make([]Candidate, 0, len(types)*len(locations))
	for _, t := range types {
		for _, l := range locations {
			out = append(out, Candidate{ServerType: t, Location: l})
		}
	}
	return out
}

// BuilderCandidates lists what to order to build an image on, best first.
func (c Catalog) BuilderCandidates(region prego.Region) []Candidate {
	types := c.Builders[region]
	if types == nil {
		types = c.Builders[""]
	}
	var out []Candidate
	for _, t := range types {
		for _, l := range c.Locations[region] {
			out = append(out, Candidate{ServerType: t, Location: l})
		}
	}
	return out
}

// typesFor returns the machine types of a role in a region, best first.
func (c Catalog) typesFor(role prego.Role, region prego.Region) []string {
	if types := c.ServerTypes[role][region]; types != nil {
		return types
	}
	return c.ServerTypes[role][""]
}

// ImageFor returns the spec's image, or else the catalog's.
func (c Catalog) ImageFor(spec Spec) string {
	if spec.Image != "" {
		return spec.Image
	}
	return c.Image
}

// TimeoutsFor returns the boot timeouts of a location and image. Fields that a matching
// rule leaves at zero come from DefaultTimeouts.
func (c Catalog) TimeoutsFor(location, image string) BootTimeouts {
	out := c.DefaultTimeouts
	for _, r := range c.Timeouts {
		if (r.Location != "" && r.Location != location) || (r.Image != "" && r.Image != image) {
			continue
		}
		if r.Running > 0 {
			out.Running = r.Running
		}
		if r.Handshake > 0 {
			out.Handshake = r.Handshake
		}
		if r.Boot > 0 {
			out.Boot = r.Boot
		}
		if r.Heartbeat > 0 {
			out.Heartbeat = r.Heartbeat
		}
		return out
	}
	return out
}

// Validate rejects a catalog that allows no order.
func (c Catalog) Validate() error {
	if c.Image == "" {
		return prego.Invalid("catalog.image", "is required")
	}
	for _, role := range prego.Roles() {
		if len(c.ServerTypes[role]) == 0 {
			return prego.Invalid("catalog.server_types", fmt.Sprintf("has no machine type for role %s", role))
		}
	}
	if len(c.Locations) == 0 {
		return prego.Invalid("catalog.locations", "is empty")
	}
	for region, locations := range c.Locations {
		if !region.Valid() || len(locations) == 0 {
			return prego.Invalid("catalog.locations", fmt.Sprintf("must map known regions to locations, at %q", region))
		}
	}
	t := c.DefaultTimeouts
	if t.Running <= 0 || t.Handshake <= 0 || t.Heartbeat <= 0 {
		return prego.Invalid("catalog.default_timeouts", "must all be above zero")
	}
	return nil
}
