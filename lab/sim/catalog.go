package sim

import (
	"strconv"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

var locations = []schema.Location{
	{
		ID: 1, Name: "fsn1", Description: "Falkenstein DC Park 1", Country: "DE", City: "Falkenstein",
		Latitude: 50.47612, Longitude: 12.370071, NetworkZone: "eu-central",
	},
	{
		ID: 2, Name: "nbg1", Description: "Nuremberg DC Park 1", Country: "DE", City: "Nuremberg", Latitude: 49.452102,
		Longitude: 11.076665, NetworkZone: "eu-central",
	},
	{
		ID: 3, Name: "hel1", Description: "Helsinki DC Park 1", Country: "FI", City: "Helsinki", Latitude: 60.169855,
		Longitude: 24.938379, NetworkZone: "eu-central",
	},
	{
		ID: 4, Name: "ash", Description: "Ashburn, VA", Country: "US", City: "Ashburn, VA", Latitude: 39.045821,
		Longitude: -77.487073, NetworkZone: "us-east",
	},
	{
		ID: 5, Name: "hil", Description: "Hillsboro, OR", Country: "US", City: "Hillsboro, OR", Latitude: 45.54222,
		Longitude: -122.951924, NetworkZone: "us-west",
	},
	{
		ID: 6, Name: "sin", Description: "Singapore", Country: "SG", City: "Singapore", Latitude: 1.283333,
		Longitude: 103.833333, NetworkZone: "ap-southeast",
	},
}

type machine struct {
	id       int64
	name     string
	cores    int
	memory   float32
	disk     int
	cpu      string
	category string
	monthly  float64
	euOnly   bool
}

var machines = []machine{
	{104, "cx23", 2, 4, 40, "shared", "cost_optimized", 5.49, true},
	{105, "cx33", 4, 8, 80, "shared", "cost_optimized", 8.49, true},
	{106, "cx43", 8, 16, 160, "shared", "cost_optimized", 15.99, true},
	{107, "cx53", 16, 32, 320, "shared", "cost_optimized", 29.49, true},
	{108, "cpx22", 2, 4, 80, "shared", "regular_purpose", 19.49, false},
	{109, "cpx32", 4, 8, 160, "shared", "regular_purpose", 35.49, false},
	{110, "cpx42", 8, 16, 320, "shared", "regular_purpose", 69.49, false},
	{96, "ccx13", 2, 8, 80, "dedicated", "general_purpose", 42.99, false},
	{97, "ccx23", 4, 16, 160, "dedicated", "general_purpose", 85.99, false},
	{98, "ccx33", 8, 32, 240, "dedicated", "general_purpose", 138.49, false},
}

func findLocation(name string) (schema.Location, bool) {
	for _, l := range locations {
		if l.Name == name || strconv.FormatInt(l.ID, 10) == name {
			return l, true
		}
	}
	return schema.Location{}, false
}

func findMachine(idOrName string) (machine, bool) {
	for _, m := range machines {
		if m.name == idOrName || strconv.FormatInt(m.id, 10) == idOrName {
			return m, true
		}
	}
	return machine{}, false
}

func (m machine) soldIn(location string) bool {
	return !m.euOnly || location == "fsn1" || location == "nbg1" || location == "hel1"
}

func price(v float64) schema.Price {
	s := strconv.FormatFloat(v, 'f', 4, 64)
	return schema.Price{Net: s, Gross: strconv.FormatFloat(v*1.19, 'f', 4, 64)}
}

func (s *Sim) serverType(m machine) schema.ServerType {
	t := schema.ServerType{
		ID: m.id, Name: m.name, Description: m.name, Category: m.category, Cores: m.cores, Memory: m.memory,
		Disk: m.disk, StorageType: "local", CPUType: m.cpu, Architecture: "x86",
	}
	for _, l := range locations {
		if !m.soldIn(l.Name) {
			continue
		}
		t.Prices = append(t.Prices, schema.PricingServerTypePrice{
			Location: l.Name, PriceHourly: price(m.monthly / 624), PriceMonthly: price(m.monthly),
			IncludedTraffic: 20 << 40, PricePerTBTraffic: price(1),
		})
		at := schema.ServerTypeLocation{ID: l.ID, Name: l.Name, Recommended: true, Available: s.inStock(m.name, l.Name)}
		if d, ok := s.retiring(m.name, l.Name); ok {
			at.Deprecation, at.Recommended = &d, false
			at.Available = at.Available && time.Now().Before(d.UnavailableAfter)
		}
		t.Locations = append(t.Locations, at)
	}
	return t
}

func (s *Sim) inStock(typ, location string) bool {
	out := s.st.StockOut
	return !out[typ+"/"+location] && !out[typ+"/*"] && !out["*/"+location] && !out["*/*"]
}

func (s *Sim) retiring(typ, location string) (schema.DeprecationInfo, bool) {
	if d, ok := s.st.Retiring[typ+"/"+location]; ok {
		return d, true
	}
	d, ok := s.st.Retiring[typ+"/*"]
	return d, ok
}

// Retire announces the retirement of a machine type at a location, "*" for all, at a
// time.
func (s *Sim) Retire(typ, location string, after time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st.Retiring[typ+"/"+location] = schema.DeprecationInfo{
		Announced:        after.AddDate(0, -3, 0).UTC(),
		UnavailableAfter: after.UTC(),
	}
	s.changed()
}

func (s *Sim) serverTypes() []schema.ServerType {
	out := make([]schema.ServerType, 0, len(machines))
	for _, m := range machines {
		out = append(out, s.serverType(m))
	}
	return out
}

var images = []schema.Image{
	image(114690387, "debian-12", "Debian 12", "debian", "12"),
	image(161547269, "ubuntu-24.04", "Ubuntu 24.04", "ubuntu", "24.04"),
	image(310557660, "debian-13", "Debian 13", "debian", "13"),
}

func image(id int64, name, description, flavor, version string) schema.Image {
	return schema.Image{
		ID: id, Status: "available", Type: "system", Name: &name, Description: description, DiskSize: 5,
		Created: new(time.Date(2025, 8, 13, 9, 0, 0, 0, time.UTC)), OSFlavor: flavor, OSVersion: &version,
		Architecture: "x86", RapidDeploy: true, Labels: map[string]string{},
	}
}

// balancerTypes are the load balancers on the provider's price list. There are none to create.
var balancerTypes = []struct {
	name    string
	monthly float64
}{{"lb11", 5.39}, {"lb21", 16.40}, {"lb31", 32.90}}

func (s *Sim) pricing() schema.Pricing {
	p := schema.Pricing{
		Currency: "EUR", VATRate: "19.00", Image: schema.PricingImage{PricePerGBMonth: price(0.011)},
		FloatingIPs: []schema.PricingFloatingIPType{}, ServerBackup: schema.PricingServerBackup{Percentage: "20.00"},
		LoadBalancerTypes: []schema.PricingLoadBalancerType{},
		Volume:            schema.PricingVolume{PricePerGBPerMonth: price(0.044)},
		FloatingIP:        schema.PricingFloatingIP{PriceMonthly: price(3)},
		Traffic:           schema.PricingTraffic{PricePerTB: price(1)},
	}
	for _, typ := range []string{"ipv4", "ipv6"} {
		ft := schema.PricingFloatingIPType{Type: typ}
		for _, l := range locations {
			ft.Prices = append(ft.Prices,
				schema.PricingFloatingIPTypePrice{Location: l.Name, PriceMonthly: price(floatingMonthly[typ])})
		}
		p.FloatingIPs = append(p.FloatingIPs, ft)
	}
	for i, t := range balancerTypes {
		lb := schema.PricingLoadBalancerType{ID: int64(i + 1), Name: t.name}
		for _, l := range locations {
			lb.Prices = append(lb.Prices, schema.PricingLoadBalancerTypePrice{
				Location: l.Name, PriceHourly: price(t.monthly / 624), PriceMonthly: price(t.monthly),
				IncludedTraffic: 20 << 40, PricePerTBTraffic: price(1),
			})
		}
		p.LoadBalancerTypes = append(p.LoadBalancerTypes, lb)
	}
	for _, t := range s.serverTypes() {
		p.ServerTypes = append(p.ServerTypes, schema.PricingServerType{ID: t.ID, Name: t.Name, Prices: t.Prices})
	}
	for _, typ := range []string{"ipv4", "ipv6"} {
		pt := schema.PricingPrimaryIP{Type: typ}
		for _, l := range locations {
			v := 0.5
			if typ == "ipv6" {
				v = 0
			}
			pt.Prices = append(pt.Prices,
				schema.PricingPrimaryIPTypePrice{Location: l.Name, PriceHourly: price(v / 624), PriceMonthly: price(v)})
		}
		p.PrimaryIPs = append(p.PrimaryIPs, pt)
	}
	return p
}

func valueOf[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
