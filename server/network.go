package server

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/prego/prego"
)

// Network is a private network at a provider. Servers in it reach each other by their
// private addresses; no way leads from one network to another, so that what belongs
// together has to be in one. It lies in one network zone.
type Network struct {
	NetworkID prego.NetworkID
	Provider  prego.InfraProviderID
	Zone      string
	Ordinal   int    // from 1, in its zone
	IPRange   string // CIDR
	// ProviderNetworkID is "" until it is made, and again when it is found to be gone.
	ProviderNetworkID string
	Members           int // servers in it, present or planned
}

// NetworkMember is a server in a network that has its address there.
type NetworkMember struct {
	ServerID       prego.ServerID
	Role           prego.Role
	Region         prego.Region
	Status         Status
	NetworkID      prego.NetworkID
	PrivateAddress string
}

// NetworkSize is how many servers a network may have at Hetzner
// (docs.hetzner.com/networking/networks/overview).
const NetworkSize = 100

// NetworkReserve is how many of them are kept for shards, pools and edges: without those
// the app servers of a network are of no use.
const NetworkReserve = 10

// NetworkName is a network's name at the provider.
func NetworkName(environment, zone string, ordinal int) string {
	return fmt.Sprintf("prego-%s-%s-%d", environment, zone, ordinal)
}

// NetworkParams describe a network. It has one subnet, which is all of it.
type NetworkParams struct {
	Environment string
	Name        string
	Zone        string
	IPRange     string // CIDR
}

// PrivateAddress is a server's address in a network, by the provider's id of that.
type PrivateAddress struct {
	ProviderNetworkID string `json:"network"`
	IP                string `json:"ip"`
}

// PrivateIn is the server's address in a network, "" if it has none there.
func (h Handle) PrivateIn(providerNetworkID string) string {
	for _, p := range h.Private {
		if p.ProviderNetworkID == providerNetworkID && p.IP != "" {
			return p.IP
		}
	}
	return ""
}

// networkZones are Hetzner's network zones by location, for when the provider's catalog
// has not been read or lacks them (docs.hetzner.com/cloud/general/locations).
var networkZones = map[string]string{
	"fsn1": "eu-central", "nbg1": "eu-central", "hel1": "eu-central",
	"ash": "us-east", "hil": "us-west", "sin": "ap-southeast",
}

// ZoneOf is the network zone of a location, "" if unknown.
func (p ProviderCatalog) ZoneOf(location string) string {
	for _, l := range p.Locations {
		if l.Name == location && l.NetworkZone != "" {
			return l.NetworkZone
		}
	}
	return networkZones[location]
}

// ZonesOf are the network zones of some locations, in their order.
func (p ProviderCatalog) ZonesOf(locations []string) []string {
	var out []string
	for _, l := range locations {
		if zone := p.ZoneOf(l); zone != "" && !slices.Contains(out, zone) {
			out = append(out, zone)
		}
	}
	return out
}

// InZone are the candidates whose location is in a network zone; all of them for "".
func (p ProviderCatalog) InZone(candidates []Candidate, zone string) []Candidate {
	if zone == "" {
		return candidates
	}
	return slices.DeleteFunc(slices.Clone(candidates), func(c Candidate) bool { return p.ZoneOf(c.Location) != zone })
}

// NetworkRange is the range that networks are cut from, checked: a private one (RFC
// 1918) of at least a /24. In a simulator whose hosts are processes it may be on loopback.
func NetworkRange(cidr string, simulated bool) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(cidr)
	switch {
	case err != nil || !p.Addr().Is4() || p.Masked() != p:
		return p, fmt.Errorf("%q is not an IPv4 range such as 10.64.0.0/10", cidr)
	case p.Bits() > NetworkBits:
		return p, fmt.Errorf("%s is too small: one network alone is a /%d", p, NetworkBits)
	case simulated && p.Addr().IsLoopback():
	case !p.Addr().IsPrivate() || !lastOf(p).IsPrivate():
		return p, fmt.Errorf("%s is not private (RFC 1918)", p)
	}
	return p, nil
}

// lastOf is the last address of an IPv4 range.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	return netip.AddrFrom4(b)
}

// NetworkBits is the size of one network's range: 253 addresses for NetworkSize servers.
const NetworkBits = 24
