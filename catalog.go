package prego

import (
	"fmt"
	"slices"
	"time"
)

// Catalog maps roles and regions to what is ordered at the provider, in order of
// preference: stock flickers and types retire, so each is a list.
type Catalog struct {
	// Image is the operating system image where the spec names none.
	Image string `json:"image"`
	// ServerTypes are the machine types per role and region, best first. The
	// region "" stands for every region that is not named.
	ServerTypes map[Role]map[Region][]string `json:"server_types"`
	// Builders are the machine types on which golden images are built, per region as in
	// ServerTypes. Servers made from an image need a disk of at least its builder's.
	Builders map[Region][]string `json:"builders"`
	// Locations are the provider's locations per region, best first.
	Locations map[Region][]string `json:"locations"`
	// Timeouts override DefaultTimeouts; the first match wins.
	Timeouts []TimeoutRule `json:"timeouts"`
	// DefaultTimeouts hold where no rule matches.
	DefaultTimeouts BootTimeouts `json:"default_timeouts"`
}

// BootTimeouts are how long each step of a boot may take.
type BootTimeouts struct {
	Running   Duration `json:"running"`   // create call → provider says running
	Handshake Duration `json:"handshake"` // running, or the last sign of the boot → handshake
	// Boot is running → handshake at most, however often the host says how its boot
	// goes; 0 is Handshake.
	Boot      Duration `json:"boot"`
	Heartbeat Duration `json:"heartbeat"` // handshake → first heartbeat
}

// TimeoutRule gives the timeouts of one location, image, or both; an empty field
// matches all.
type TimeoutRule struct {
	Location string `json:"location"`
	Image    string `json:"image"`
	BootTimeouts
}

// Duration is a time.Duration that JSON writes as a string like "90s".
type Duration time.Duration

// MarshalText writes the duration as time.Duration.String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("duration: %w", err)
	}
	*d = Duration(v)
	return nil
}

// D is the duration as the standard library's type.
func (d Duration) D() time.Duration { return time.Duration(d) }

// DefaultCatalog is the catalog without configuration: dedicated types first in
// sg and us, where the shared ones are not sold or are often out of stock.
func DefaultCatalog() Catalog {
	app := map[Region][]string{"": {"cx43", "cpx42", "ccx23"}, RegionSG: {"ccx23", "cpx42"}, RegionUS: {"ccx23", "cpx42"}}
	return Catalog{
		Image: "debian-13",
		ServerTypes: map[Role]map[Region][]string{
			RoleApp:       app,
			RoleNode:      app,
			RoleDBShard:   {"": {"ccx23", "ccx33"}},
			RoleRedisPool: {"": {"cx33", "cpx32", "ccx13"}, RegionSG: {"ccx13", "cpx32"}, RegionUS: {"ccx13", "cpx32"}},
		},
		Builders: map[Region][]string{"": {"cx23", "cpx22", "ccx13"}, RegionSG: {"cpx22", "ccx13"}, RegionUS: {"cpx22", "ccx13"}},
		Locations: map[Region][]string{
			RegionEU: {"fsn1", "nbg1", "hel1"},
			RegionUS: {"ash", "hil"},
			RegionSG: {"sin"},
		},
		DefaultTimeouts: BootTimeouts{
			Running:   Duration(5 * time.Minute),
			Handshake: Duration(90 * time.Second),
			Boot:      Duration(5 * time.Minute),
			Heartbeat: Duration(90 * time.Second),
		},
	}
}

// Candidates lists what to order for a role in a region, best first: every
// location for the best type, then for the next type. What the spec pins is
// kept. The list is empty when the catalog has nothing for the role or region,
// or when the pinned location lies in another region.
func (c Catalog) Candidates(role Role, region Region, spec ServerSpec) []Candidate {
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
func (c Catalog) BuilderCandidates(region Region) []Candidate {
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

// typesFor are the machine types of a role in a region, best first.
func (c Catalog) typesFor(role Role, region Region) []string {
	if types := c.ServerTypes[role][region]; types != nil {
		return types
	}
	return c.ServerTypes[role][""]
}

// ImageFor is the image that the spec asks for, or the catalog's.
func (c Catalog) ImageFor(spec ServerSpec) string {
	if spec.Image != "" {
		return spec.Image
	}
	return c.Image
}

// TimeoutsFor are the boot timeouts of a location and image. Fields that a
// matching rule leaves at zero come from DefaultTimeouts.
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

// Validate refuses a catalog that could never order anything.
func (c Catalog) Validate() error {
	if c.Image == "" {
		return Invalid("catalog.image", "is required")
	}
	for _, role := range Roles() {
		if len(c.ServerTypes[role]) == 0 {
			return Invalid("catalog.server_types", fmt.Sprintf("has no machine type for role %s", role))
		}
	}
	if len(c.Locations) == 0 {
		return Invalid("catalog.locations", "is empty")
	}
	for region, locations := range c.Locations {
		if !region.Valid() || len(locations) == 0 {
			return Invalid("catalog.locations", fmt.Sprintf("must map known regions to locations, at %q", region))
		}
	}
	t := c.DefaultTimeouts
	if t.Running <= 0 || t.Handshake <= 0 || t.Heartbeat <= 0 {
		return Invalid("catalog.default_timeouts", "must all be above zero")
	}
	return nil
}
