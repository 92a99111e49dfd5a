package hetzner

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/prego/prego/server"
)

// Catalog reads what the project can order and at which prices, in about five requests for a fleet of any size. An
// incomplete answer is an error, so that it never replaces a good catalog.
func (p *Provider) Catalog(ctx context.Context) (server.ProviderCatalog, error) {
	ctx = WithLane(ctx, LanePoll)
	list := hcloud.ListOpts{PerPage: 50}
	var out server.ProviderCatalog
	locations, err := p.read.Location.AllWithOpts(ctx, hcloud.LocationListOpts{ListOpts: list})
	if err != nil {
		return out, p.classify(err)
	}
	for _, l := range locations {
		out.Locations = append(out.Locations, server.OfferedLocation{
			Name: l.Name, City: l.City, Country: l.Country, NetworkZone: string(l.NetworkZone),
		})
	}
	types, err := p.read.ServerType.AllWithOpts(ctx, hcloud.ServerTypeListOpts{ListOpts: list})
	if err != nil {
		return out, p.classify(err)
	}
	for _, t := range types {
		out.ServerTypes = append(out.ServerTypes, offeredType(t))
	}
	images, err := p.read.Image.AllWithOpts(ctx, hcloud.ImageListOpts{ListOpts: list, IncludeDeprecated: true})
	if err != nil {
		return out, p.classify(err)
	}
	for _, i := range images {
		out.Images = append(out.Images, offeredImage(i))
	}
	pricing, _, err := p.read.Pricing.Get(ctx)
	if err != nil {
		return out, p.classify(err)
	}
	priceList(&out, pricing)
	if len(out.Locations) == 0 || len(out.ServerTypes) == 0 || len(out.Images) == 0 || out.Currency == "" {
		return out, infraError(server.InfraRetry, "incomplete_catalog",
			"the provider's catalog lacks locations, machine types, images or prices")
	}
	slices.SortFunc(out.Locations, func(a, b server.OfferedLocation) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(out.ServerTypes, func(a, b server.OfferedType) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func offeredType(t *hcloud.ServerType) server.OfferedType {
	out := server.OfferedType{
		Name: t.Name, Cores: t.Cores, MemoryGB: float64(t.Memory), DiskGB: t.Disk,
		CPU: string(t.CPUType), Architecture: string(t.Architecture),
	}
	for _, l := range t.Locations {
		at := server.OfferedAt{Location: l.Location.Name, Available: l.Available}
		if d := l.Deprecation; d != nil {
			at.DeprecatedAt, at.UnavailableAfter = timeOrNil(d.Announced), timeOrNil(d.UnavailableAfter)
		}
		for _, price := range t.Pricings {
			if price.Location != nil && price.Location.Name == at.Location {
				at.PeriodPrice = server.PeriodPrice{Hourly: priceOf(price.Hourly), Monthly: priceOf(price.Monthly)}
				at.IncludedTraffic, at.TrafficTB = price.IncludedTraffic, priceOf(price.PerTBTraffic)
			}
		}
		out.At = append(out.At, at)
	}
	slices.SortFunc(out.At, func(a, b server.OfferedAt) int { return strings.Compare(a.Location, b.Location) })
	return out
}

func offeredImage(i *hcloud.Image) server.OfferedImage {
	out := server.OfferedImage{
		ID: strconv.FormatInt(i.ID, 10), Name: i.Name, Kind: string(i.Type), Architecture: string(i.Architecture),
		DiskGB:       float64(i.DiskSize),
		DeprecatedAt: timeOrNil(i.Deprecated), //nolint:staticcheck // the specification has no other field
	}
	if i.Deprecation != nil {
		out.DeprecatedAt = timeOrNil(i.Deprecation.Announced)
	}
	return out
}

func priceList(out *server.ProviderCatalog, p hcloud.Pricing) {
	out.Currency, out.VATRate = p.Currency, p.VATRate
	out.VolumeGBMonth, out.ImageGBMonth = priceOf(p.Volume.PerGBMonthly), priceOf(p.Image.PerGBMonth)
	out.ServerBackupPct = p.ServerBackup.Percentage
	out.IPv4, out.IPv6 = make(map[string]server.PeriodPrice), make(map[string]server.PeriodPrice)
	families := map[string]map[string]server.PeriodPrice{
		string(hcloud.PrimaryIPTypeIPv4): out.IPv4, string(hcloud.PrimaryIPTypeIPv6): out.IPv6,
	}
	for _, ip := range p.PrimaryIPs {
		for _, at := range ip.Pricings {
			if family := families[ip.Type]; family != nil {
				family[at.Location] = server.PeriodPrice{Hourly: server.Price(at.Hourly), Monthly: server.Price(at.Monthly)}
			}
		}
	}
	out.FloatingIPs = make(map[string]map[string]server.Price)
	for _, ip := range p.FloatingIPs {
		family := make(map[string]server.Price, len(ip.Pricings))
		for _, at := range ip.Pricings {
			if at.Location != nil {
				family[at.Location.Name] = priceOf(at.Monthly)
			}
		}
		out.FloatingIPs[string(ip.Type)] = family
	}
	out.LoadBalancers = make(map[string]map[string]server.PeriodPrice)
	for _, lb := range p.LoadBalancerTypes {
		if lb.LoadBalancerType == nil {
			continue
		}
		typ := make(map[string]server.PeriodPrice, len(lb.Pricings))
		for _, at := range lb.Pricings {
			if at.Location != nil {
				typ[at.Location.Name] = server.PeriodPrice{Hourly: priceOf(at.Hourly), Monthly: priceOf(at.Monthly)}
			}
		}
		out.LoadBalancers[lb.LoadBalancerType.Name] = typ
	}
}

func priceOf(p hcloud.Price) server.Price { return server.Price{Net: p.Net, Gross: p.Gross} }

// timeOrNil returns nil for the zero time.
func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
