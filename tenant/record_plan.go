package tenant

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// How long resolvers may keep this installation's records, in seconds. Edges come
// and go; the network of a tenant seldom changes.
const (
	EdgeTTL      = 60
	SiteTTL      = 300
	ChallengeTTL = 60
)

// EdgesLabel is the label below the site domain under which edges have their names.
const EdgesLabel = "edges"

// Edge is a server that answers the public, and its addresses.
type Edge struct {
	ServerID  prego.ServerID
	NetworkID prego.NetworkID
	Region    prego.Region
	IPv4      string
	IPv6      string // the provider's CIDR; the server has its first address; "" for none
	Silent    bool   // its agent is not heard, or it is cordoned
}

// SiteAt is a tenant's site and the network that it is in.
type SiteAt struct {
	Site      string // its full name
	NetworkID prego.NetworkID
}

// RecordFacts is what the records of a zone follow from.
type RecordFacts struct {
	Zone       string
	SiteDomain string
	Edges      []Edge
	// Home is the network that the wildcard leads to now, "" for none.
	Home prego.NetworkID
	// Sites counts the sites in each network, when there is no home.
	Sites map[prego.NetworkID]int
	// Shadowed are the labels below the site domain that the wildcard does not answer for: ShadowedLabels, and
	// EdgesLabel.
	Shadowed []string
}

// ShadowedLabels are the labels directly below the site domain at or below which a zone has one of these names,
// relative to it. Such a name exists, so that the wildcard does not answer for it (RFC 4592 §2.2.1).
func ShadowedLabels(zone, siteDomain string, names []string) []string {
	var out []string
	for _, name := range names {
		below, ok := strings.CutSuffix(server.AbsoluteName(zone, strings.ToLower(name)), "."+siteDomain)
		if label := below[strings.LastIndex(below, ".")+1:]; ok && label != "*" {
			out = append(out, label)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// EdgeName is the name of a network's or a region's edges.
func EdgeName(of, siteDomain string) string { return of + "." + EdgesLabel + "." + siteDomain }

// NextHome is the network that the wildcard of all sites leads to: it stays where it is as
// long as there are edges, since each site of another network has its own record, and
// goes to the network with most sites.
func (f RecordFacts) NextHome() prego.NetworkID {
	edges := make(map[prego.NetworkID]bool)
	for _, e := range f.Edges {
		if e.NetworkID != "" {
			edges[e.NetworkID] = true
		}
	}
	if edges[f.Home] {
		return f.Home
	}
	var home prego.NetworkID
	for _, n := range slices.Sorted(maps.Keys(edges)) {
		if home == "" || f.Sites[n] > f.Sites[home] {
			home = n
		}
	}
	return home
}

// PlanRecords returns the records that a zone shall have. sites are those outside of home.
// Each network has a name that all its edges answer to, so that an edge that comes or goes
// changes one record set, however many sites it serves.
func PlanRecords(f RecordFacts, home prego.NetworkID, sites []SiteAt) []server.DNSRecord {
	var out []server.DNSRecord
	add := func(owner server.RecordOwner, fqdn string, typ server.RecordType, ttl int, values ...string) {
		name, within := server.RelativeName(f.Zone, fqdn)
		if !within || len(values) == 0 {
			return
		}
		r := server.RecordSet{Zone: f.Zone, Name: name, Type: typ, TTL: ttl, Values: values}
		r.Normalize()
		out = append(out, server.DNSRecord{RecordSet: r, Owner: owner})
	}
	groups := make(map[string][]Edge)
	for _, e := range f.Edges {
		if e.NetworkID != "" {
			groups[string(e.NetworkID)] = append(groups[string(e.NetworkID)], e)
		}
		groups[string(e.Region)] = append(groups[string(e.Region)], e)
	}
	named := make(map[prego.NetworkID]bool) // networks whose name leads somewhere
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		v4, v6 := addressesOf(groups[name])
		add(server.RecordOfEdges, EdgeName(name, f.SiteDomain), server.RecordA, EdgeTTL, v4...)
		add(server.RecordOfEdges, EdgeName(name, f.SiteDomain), server.RecordAAAA, EdgeTTL, v6...)
		named[prego.NetworkID(name)] = len(v4)+len(v6) > 0
	}
	if named[home] {
		add(server.RecordOfSites, "*."+f.SiteDomain, server.RecordCNAME, SiteTTL, EdgeName(string(home), f.SiteDomain))
	}
	slices.SortFunc(sites, func(a, b SiteAt) int { return cmp.Compare(a.Site, b.Site) })
	for _, s := range slices.CompactFunc(sites, func(a, b SiteAt) bool { return a.Site == b.Site }) {
		label, _ := strings.CutSuffix(s.Site, "."+f.SiteDomain)
		switch shadowed := slices.Contains(f.Shadowed, label); {
		case !named[s.NetworkID]:
		case shadowed: // there is no alias beside others' records of the name
			v4, v6 := addressesOf(groups[string(s.NetworkID)])
			add(server.RecordOfSite, s.Site, server.RecordA, EdgeTTL, v4...)
			add(server.RecordOfSite, s.Site, server.RecordAAAA, EdgeTTL, v6...)
		case s.NetworkID != home:
			add(server.RecordOfSite, s.Site, server.RecordCNAME, SiteTTL, EdgeName(string(s.NetworkID), f.SiteDomain))
		}
	}
	return out
}

// addressesOf are the addresses of edges that answer; when none does, of all: it may be the
// gateway that hears none.
func addressesOf(edges []Edge) (v4, v6 []string) {
	if heard := slices.DeleteFunc(slices.Clone(edges), func(e Edge) bool { return e.Silent }); len(heard) > 0 {
		edges = heard
	}
	for _, e := range edges {
		v4 = append(v4, ipv4(e.IPv4)...)
		v6 = append(v6, ipv6(e.IPv6)...)
	}
	// The provider takes so many of a set (its specification, set_records).
	slices.Sort(v4)
	slices.Sort(v6)
	return v4[:min(len(v4), maxAddresses)], v6[:min(len(v6), maxAddresses)]
}

const maxAddresses = 50

func ipv4(s string) []string {
	if a, err := netip.ParseAddr(s); err == nil && a.Unmap().Is4() {
		return []string{a.Unmap().String()}
	}
	return nil
}

// ipv6 is the first address of the provider's network of a server: the address
// that its operating system uses.
func ipv6(cidr string) []string {
	p, err := netip.ParsePrefix(cidr)
	if err != nil || !p.Addr().Is6() || strings.Contains(p.Addr().String(), ".") {
		return nil
	}
	first := p.Masked().Addr()
	if p.Bits() < p.Addr().BitLen() {
		first = first.Next()
	}
	return []string{first.String()}
}

// Addresses are all addresses that records of an edge name.
func (e Edge) Addresses() []string { return slices.Concat(ipv4(e.IPv4), ipv6(e.IPv6)) }

// DriftedRecord is a row whose record set the provider has otherwise, or not at all.
type DriftedRecord struct {
	Row   server.DNSRecord
	There []string // the values there
}

// CompareRecords compares live rows with our records at the provider. Only settled rows can
// drift; a record without a live row is an orphan.
func CompareRecords(rows []server.DNSRecord, there []server.RecordSet) (drifted []DriftedRecord, orphans []server.RecordSet) {
	at := make(map[string]server.RecordSet, len(there))
	for _, r := range there {
		at[r.Key()] = r
	}
	known := make(map[string]bool, len(rows))
	for _, row := range rows {
		known[row.Key()] = true
		is, found := at[row.Key()]
		want := row.RecordSet
		want.Values = slices.Clone(want.Values)
		want.Normalize()
		if row.State == server.ResourceCreated && (!found || !is.Equal(want)) {
			drifted = append(drifted, DriftedRecord{Row: row, There: append([]string{}, is.Values...)})
		}
	}
	for _, r := range there {
		if !known[r.Key()] {
			orphans = append(orphans, r)
		}
	}
	return drifted, orphans
}

// orphansAlways may be deleted however few records there are.
const orphansAlways = 10

// TooManyOrphans reports whether so many records have no row that the database is rather
// to be doubted than the records: it was restored, or is another one.
func TooManyOrphans(orphans, owned int) bool {
	return orphans > orphansAlways && orphans*10 > owned
}
