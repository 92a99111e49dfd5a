package cost

import (
	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// Prices selects from a provider's price list the prices of things that the control plane creates. A price
// that can't be read is left out, so that it is unknown rather than free.
func Prices(provider prego.InfraProviderID, c server.ProviderCatalog) (out []Price) {
	add := func(kind server.ResourceKind, typ, location string, perGB bool, hourly, monthly string) {
		p := Price{Provider: provider, Kind: kind, Type: typ, Location: location, PerGB: perGB, Currency: c.Currency}
		var ok bool
		if p.Monthly, ok = Parse(monthly); !ok {
			return
		}
		if h, ok := Parse(hourly); ok {
			p.Hourly = &h
		}
		out = append(out, p)
	}
	for _, t := range c.ServerTypes {
		for _, at := range t.At {
			add(server.ResourceServer, t.Name, at.Location, false, at.Hourly.Net, at.Monthly.Net)
		}
	}
	for typ, list := range map[string]map[string]server.PeriodPrice{"ipv4": c.IPv4, "ipv6": c.IPv6} {
		for location, p := range list {
			add(server.ResourcePrimaryIP, typ, location, false, p.Hourly.Net, p.Monthly.Net)
		}
	}
	for typ, list := range c.FloatingIPs {
		for location, p := range list {
			add(server.ResourceFloatingIP, typ, location, false, "", p.Net)
		}
	}
	add(server.ResourceVolume, "", "", true, "", c.VolumeGBMonth.Net)
	add(server.ResourceImage, "", "", true, "", c.ImageGBMonth.Net)
	return out
}

// StoragePrice is the price of a GB of backups in object storage, which no provider of servers
// publishes; false if the setting is empty.
func StoragePrice(gbMonth, currency string) (Price, bool) {
	m, ok := Parse(gbMonth)
	return Price{Provider: "s3", Kind: server.ResourceBackup, PerGB: true, Monthly: m, Currency: currency}, ok && currency != ""
}
