package server

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/prego/prego"
)

// ProviderCatalog is a provider's offer, as last read: the configured Catalog is a
// wish, this is the available stock. It is read on a schedule and stored; decisions never
// call the provider.
type ProviderCatalog struct {
	Currency    string            `json:"currency"` // "EUR"
	VATRate     string            `json:"vat_rate"` // per cent
	Locations   []OfferedLocation `json:"locations"`
	ServerTypes []OfferedType     `json:"server_types"`
	Images      []OfferedImage    `json:"images"`
	// IPv4 are the prices of a primary IPv4 address by location.
	IPv4 map[string]PeriodPrice `json:"ipv4"`
	// IPv6 are the prices of a primary IPv6 network.
	IPv6 map[string]PeriodPrice `json:"ipv6,omitempty"`
	// FloatingIPs are the monthly prices of floating addresses, by family (ipv4, ipv6) and
	// location.
	FloatingIPs map[string]map[string]Price `json:"floating_ips,omitempty"`
	// LoadBalancers are the prices of load balancers, by type and location. The control plane
	// makes none.
	LoadBalancers map[string]map[string]PeriodPrice `json:"load_balancers,omitempty"`
	// ServerBackupPct is what the provider's own backups of a server cost, in per cent of it.
	ServerBackupPct string `json:"server_backup_pct,omitempty"`
	// VolumeGBMonth and ImageGBMonth are the monthly prices of a GB.
	VolumeGBMonth Price `json:"volume_gb_month"`
	ImageGBMonth  Price `json:"image_gb_month"`
}

// CatalogState is a stored ProviderCatalog with its age.
type CatalogState struct {
	Provider prego.InfraProviderID
	ProviderCatalog
	RefreshedAt time.Time // zero if it was never read; the catalog is then empty
	AttemptedAt time.Time
	Failure     string // of the last attempt, "" when it succeeded
}

// Known reports whether the catalog was ever read.
func (s CatalogState) Known() bool { return !s.RefreshedAt.IsZero() }

// OfferedLocation is a location of the provider.
type OfferedLocation struct {
	Name        string `json:"name"`
	City        string `json:"city"`
	Country     string `json:"country"` // ISO 3166-1 alpha-2
	NetworkZone string `json:"network_zone"`
}

// OfferedType is a machine type.
type OfferedType struct {
	Name         string      `json:"name"`
	Cores        int         `json:"cores"`
	MemoryGB     float64     `json:"memory_gb"`
	DiskGB       int         `json:"disk_gb"`
	CPU          string      `json:"cpu"`          // shared or dedicated
	Architecture string      `json:"architecture"` // x86 or arm
	At           []OfferedAt `json:"at"`
}

// OfferedAt is a machine type at a location where it is sold.
type OfferedAt struct {
	Location string `json:"location"`
	// Available is whether it was in stock when the catalog was read.
	Available        bool       `json:"available"`
	DeprecatedAt     *time.Time `json:"deprecated_at,omitempty"`
	UnavailableAfter *time.Time `json:"unavailable_after,omitempty"`
	// IncludedTraffic is what a server may send in a month without paying for it, in bytes;
	// TrafficTB is the price of each TB beyond.
	IncludedTraffic uint64 `json:"included_traffic,omitempty"`
	TrafficTB       Price  `json:"traffic_tb,omitzero"`
	PeriodPrice
}

// Retired reports whether the type can't be ordered there any more.
func (o OfferedAt) Retired(now time.Time) bool {
	return o.UnavailableAfter != nil && !now.Before(*o.UnavailableAfter)
}

// OfferedImage is an operating system image, or a snapshot of the project. Only
// the provider's own images have a name.
type OfferedImage struct {
	ID           string     `json:"id"`
	Name         string     `json:"name,omitempty"`
	Kind         string     `json:"kind"` // system, app, snapshot or backup
	Architecture string     `json:"architecture"`
	DiskGB       float64    `json:"disk_gb"`
	DeprecatedAt *time.Time `json:"deprecated_at,omitempty"`
}

// Price is a decimal amount in the catalog's currency, without and with tax.
type Price struct {
	Net   string `json:"net"`
	Gross string `json:"gross"`
}

// PeriodPrice is a price by the hour, capped by the month.
type PeriodPrice struct {
	Hourly  Price `json:"hourly"`
	Monthly Price `json:"monthly"`
}

// Type finds a machine type by name.
func (p ProviderCatalog) Type(name string) (OfferedType, bool) {
	i := slices.IndexFunc(p.ServerTypes, func(t OfferedType) bool { return t.Name == name })
	if i < 0 {
		return OfferedType{}, false
	}
	return p.ServerTypes[i], true
}

// AtLocation finds the offer of the type at a location.
func (t OfferedType) AtLocation(location string) (OfferedAt, bool) {
	i := slices.IndexFunc(t.At, func(a OfferedAt) bool { return a.Location == location })
	if i < 0 {
		return OfferedAt{}, false
	}
	return t.At[i], true
}

// image finds an image by name or id that runs on the architecture; "" is any.
func (p ProviderCatalog) image(nameOrID, architecture string) (OfferedImage, bool) {
	for _, i := range p.Images {
		if (i.Name == nameOrID || i.ID == nameOrID) && (architecture == "" || i.Architecture == architecture) {
			return i, true
		}
	}
	return OfferedImage{}, false
}

func (p ProviderCatalog) hasLocation(name string) bool {
	return slices.ContainsFunc(p.Locations, func(l OfferedLocation) bool { return l.Name == name })
}

// SkippedCandidate is a machine type at a location that is not ordered, and why.
type SkippedCandidate struct {
	Candidate
	Why string `json:"why"`
}

func (s SkippedCandidate) String() string { return s.Candidate.String() + " " + s.Why }

// Usable sorts the candidates by the provider's catalog. Those in stock come first,
// each part in the given order; those out of stock follow, since stock changes faster
// than the catalog is read. A deprecated type is used only if there is no other; what
// is not sold, or can't run the image, never.
func (p ProviderCatalog) Usable(candidates []Candidate, image string, now time.Time) (usable []Candidate, skipped []SkippedCandidate) {
	var inStock, outOfStock, deprecated []Candidate
	var aged []SkippedCandidate
	skip := func(c Candidate, why string) { skipped = append(skipped, SkippedCandidate{c, why}) }
	for _, c := range candidates {
		typ, known := p.Type(c.ServerType)
		at, sold := typ.AtLocation(c.Location)
		_, runs := p.image(image, typ.Architecture)
		switch {
		case !known:
			skip(c, "is not a machine type of the provider")
		case !sold:
			skip(c, "is not sold there")
		case at.Retired(now):
			skip(c, "was retired on "+at.UnavailableAfter.UTC().Format(time.DateOnly))
		case !runs && p.runsElsewhere(image, typ.Architecture):
			skip(c, fmt.Sprintf("is %s, without an image %s", typ.Architecture, image))
		case at.DeprecatedAt != nil:
			deprecated = append(deprecated, c)
			aged = append(aged, SkippedCandidate{c, "is deprecated"})
		case !at.Available:
			outOfStock = append(outOfStock, c)
		default:
			inStock = append(inStock, c)
		}
	}
	if usable = slices.Concat(inStock, outOfStock); len(usable) == 0 {
		return deprecated, skipped
	}
	return usable, append(skipped, aged...)
}

// runsElsewhere reports whether the image is known for another architecture only. An
// unknown image may be newer than the catalog.
func (p ProviderCatalog) runsElsewhere(image, architecture string) bool {
	return slices.ContainsFunc(p.Images, func(i OfferedImage) bool {
		return (i.Name == image || i.ID == image) && i.Architecture != architecture
	})
}

// CheckSpec rejects a spec that pins something not sold, naming the field at fault. The
// region is "" for a fleet without one. Until the catalog has been read once, the spec
// is only checked against the configured locations.
func (s CatalogState) CheckSpec(c Catalog, region prego.Region, spec Spec, now time.Time) error {
	locations := c.Locations[region]
	if region == "" {
		for _, r := range prego.Regions() {
			locations = append(slices.Clone(locations), c.Locations[r]...)
		}
	}
	if spec.Location != "" {
		switch {
		case slices.Contains(locations, spec.Location):
		case s.hasLocation(spec.Location) || c.knowsLocation(spec.Location):
			return &prego.Error{Code: prego.CodeLocationNotInRegion, Field: "spec.location", Message: fmt.Sprintf("must be a location of region %s, one of %v, not %q", region, locations, spec.Location)}
		default:
			return &prego.Error{Code: prego.CodeLocationUnknown, Field: "spec.location", Message: fmt.Sprintf("must be a location of the provider, not %q; prego catalog lists them", spec.Location)}
		}
		locations = []string{spec.Location}
	}
	if !s.Known() {
		return nil
	}
	if spec.Location != "" && !s.hasLocation(spec.Location) {
		return &prego.Error{Code: prego.CodeLocationUnknown, Field: "spec.location", Message: fmt.Sprintf("%q is configured, but the provider has no such location; prego catalog lists them", spec.Location)}
	}
	architecture := ""
	if spec.ServerType != "" {
		typ, known := s.Type(spec.ServerType)
		if !known {
			return &prego.Error{Code: prego.CodeServerTypeUnknown, Field: "spec.server_type", Message: fmt.Sprintf("must be a machine type of the provider, not %q; prego catalog lists them", spec.ServerType)}
		}
		if err := typ.soldIn(locations, now); err != nil {
			return err
		}
		architecture = typ.Architecture
	}
	if spec.Image == "" {
		return nil
	}
	if _, known := s.image(spec.Image, ""); !known {
		return &prego.Error{Code: prego.CodeImageUnknown, Field: "spec.image", Message: fmt.Sprintf("must be an image of the provider, not %q; prego catalog lists them", spec.Image)}
	}
	if _, runs := s.image(spec.Image, architecture); !runs {
		return &prego.Error{Code: prego.CodeImageUnknown, Field: "spec.image", Message: fmt.Sprintf("%q is not made for %s, which %s is", spec.Image, architecture, spec.ServerType)}
	}
	return nil
}

// soldIn rejects a type that none of the locations sells any more.
func (t OfferedType) soldIn(locations []string, now time.Time) error {
	retired := false
	for _, l := range locations {
		at, sold := t.AtLocation(l)
		if sold && !at.Retired(now) {
			return nil
		}
		retired = retired || sold
	}
	if retired {
		return &prego.Error{Code: prego.CodeServerTypeRetired, Field: "spec.server_type", Message: fmt.Sprintf("%q was retired by the provider in %v", t.Name, locations)}
	}
	return &prego.Error{Code: prego.CodeServerTypeNotSold, Field: "spec.server_type", Message: fmt.Sprintf("%q is not sold in %v; prego catalog lists the locations", t.Name, locations)}
}

func (c Catalog) knowsLocation(name string) bool {
	for _, l := range c.Locations {
		if slices.Contains(l, name) {
			return true
		}
	}
	return false
}

// CatalogProblem is something configured that is not sold, or not for much longer.
type CatalogProblem struct {
	Kind    string `json:"kind"` // server_type, location or image
	Name    string `json:"name"`
	Message string `json:"message"`
}

func (p CatalogProblem) String() string { return p.Kind + " " + p.Name + " " + p.Message }

// Problems compares the configured catalog with what the provider sells. There are none
// until the catalog has been read once.
func (s CatalogState) Problems(c Catalog, now time.Time) []CatalogProblem {
	if !s.Known() {
		return nil
	}
	var out []CatalogProblem
	add := func(kind, name, format string, args ...any) {
		p := CatalogProblem{kind, name, fmt.Sprintf(format, args...)}
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	if i, known := s.image(c.Image, ""); !known {
		add("image", c.Image, "is not an image of the provider")
	} else if i.DeprecatedAt != nil {
		add("image", c.Image, "is deprecated since %s", i.DeprecatedAt.UTC().Format(time.DateOnly))
	}
	for _, region := range prego.Regions() {
		for _, l := range c.Locations[region] {
			if !s.hasLocation(l) {
				add("location", l, "is not a location of the provider")
			}
		}
		for _, role := range prego.Roles() {
			for _, name := range c.typesFor(role, region) {
				s.typeProblems(name, region, c.Locations[region], now, add)
			}
		}
	}
	return out
}

func (s CatalogState) typeProblems(name string, region prego.Region, locations []string, now time.Time, add func(kind, name, format string, args ...any)) {
	if len(locations) == 0 {
		return
	}
	typ, known := s.Type(name)
	if !known {
		add("server_type", name, "is not a machine type of the provider")
		return
	}
	sold := 0
	for _, l := range locations {
		at, ok := typ.AtLocation(l)
		switch {
		case !ok:
		case at.Retired(now):
			add("server_type", name, "was retired in %s on %s", l, at.UnavailableAfter.UTC().Format(time.DateOnly))
		case at.DeprecatedAt != nil && at.UnavailableAfter != nil:
			add("server_type", name, "is deprecated in %s and ends on %s", l, at.UnavailableAfter.UTC().Format(time.DateOnly))
			sold++
		case at.DeprecatedAt != nil:
			add("server_type", name, "is deprecated in %s", l)
			sold++
		default:
			sold++
		}
	}
	if sold == 0 {
		add("server_type", name, "can't be ordered anywhere in region %s", region)
	}
}

// Cost is a price as the sum of its parts.
type Cost struct {
	Currency string
	PeriodPrice
	Parts []string // the counted parts, for people
}

// ServerCost is the price of a server with its IPv4 address and its data volume; false
// if the catalog does not have it.
func (s CatalogState) ServerCost(serverType, location string, volumeGB int) (Cost, bool) {
	typ, _ := s.Type(serverType)
	at, ok := typ.AtLocation(location)
	if !ok {
		return Cost{}, false
	}
	c := Cost{Currency: s.Currency, PeriodPrice: at.PeriodPrice, Parts: []string{serverType}}
	if ip, ok := s.IPv4[location]; ok {
		c.PeriodPrice = c.plus(ip)
		c.Parts = append(c.Parts, "IPv4 address")
	}
	if volumeGB > 0 {
		monthly := s.VolumeGBMonth.times(float64(volumeGB))
		c.PeriodPrice = c.plus(PeriodPrice{Monthly: monthly, Hourly: monthly.times(1.0 / hoursPerMonth)})
		c.Parts = append(c.Parts, fmt.Sprintf("volume of %d GB", volumeGB))
	}
	return c, true
}

// hoursPerMonth converts monthly prices where the provider gives no hourly ones.
const hoursPerMonth = 730

func (p PeriodPrice) plus(q PeriodPrice) PeriodPrice {
	return PeriodPrice{Hourly: p.Hourly.plus(q.Hourly), Monthly: p.Monthly.plus(q.Monthly)}
}

func (p Price) plus(q Price) Price {
	return Price{Net: formatPrice(parsePrice(p.Net) + parsePrice(q.Net)), Gross: formatPrice(parsePrice(p.Gross) + parsePrice(q.Gross))}
}

func (p Price) times(n float64) Price {
	return Price{Net: formatPrice(parsePrice(p.Net) * n), Gross: formatPrice(parsePrice(p.Gross) * n)}
}

// NetAmount is the price without tax.
func (p Price) NetAmount() float64 { return parsePrice(p.Net) }

// parsePrice parses a decimal amount; anything else is 0.
func parsePrice(s string) float64 {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0
	}
	return v
}

func formatPrice(v float64) string { return strconv.FormatFloat(v, 'f', 4, 64) }
