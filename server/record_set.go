package server

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/prego/prego"
)

// RecordType is the type of a DNS record.
type RecordType string

// The types of records that the control plane makes.
const (
	RecordA     RecordType = "A"
	RecordAAAA  RecordType = "AAAA"
	RecordCNAME RecordType = "CNAME"
	RecordTXT   RecordType = "TXT"
)

// Apex is the relative name of a zone itself.
const Apex = "@"

// MinRecordTTL is the least time to live that the provider takes, in seconds (its
// specification, POST /zones/{id_or_name}/rrsets).
const MinRecordTTL = 60

// RecordSet is all records of one name and type in a zone.
type RecordSet struct {
	Zone   string // "example.com"
	Name   string // relative to the zone: "eu-central-1.edges", "*.sites", or Apex
	Type   RecordType
	TTL    int // seconds
	Values []string
}

// Key identifies a record set: there is one per name and type.
func (r RecordSet) Key() string { return r.Zone + "/" + r.Name + "/" + string(r.Type) }

// FQDN is the full name, without the trailing dot.
func (r RecordSet) FQDN() string { return AbsoluteName(r.Zone, r.Name) }

// AbsoluteName is the full name of a relative one.
func AbsoluteName(zone, name string) string {
	if name == Apex {
		return zone
	}
	return name + "." + zone
}

// RelativeName is a name as its zone has it; false when it is in another one.
func RelativeName(zone, fqdn string) (string, bool) {
	if fqdn == zone {
		return Apex, true
	}
	return strings.CutSuffix(fqdn, "."+zone)
}

// Normalize sorts the values and removes doubles, so that equal sets are equal.
func (r *RecordSet) Normalize() {
	slices.Sort(r.Values)
	r.Values = slices.Compact(r.Values)
}

// Equal reports whether two normalized sets are the same.
func (r RecordSet) Equal(other RecordSet) bool {
	return r.Key() == other.Key() && r.TTL == other.TTL && slices.Equal(r.Values, other.Values)
}

// Validate checks a record set. Texts are written plainly, hosts without a trailing dot:
// the adapter quotes and completes them.
func (r RecordSet) Validate() error {
	switch {
	case r.Zone == "" || r.Name == "" || strings.HasSuffix(r.Name, "."):
		return prego.Invalid("name", "must be relative to its zone")
	case r.TTL < MinRecordTTL:
		return prego.Invalid("ttl", fmt.Sprintf("must be at least %d seconds", MinRecordTTL))
	case len(r.Values) == 0:
		return prego.Invalid("values", "must not be empty")
	case r.Type == RecordCNAME && (len(r.Values) != 1 || r.Name == Apex):
		return prego.Invalid("values", "of a CNAME must be one, and a zone's apex has none")
	}
	for _, v := range r.Values {
		ok := false
		switch r.Type {
		case RecordA, RecordAAAA:
			a, err := netip.ParseAddr(v)
			ok = err == nil && a.Is4() == (r.Type == RecordA)
		case RecordCNAME:
			ok = !strings.HasSuffix(v, ".") && !strings.ContainsAny(v, " \"")
		case RecordTXT:
			ok = v != "" && len(v) <= 255 && !strings.ContainsAny(v, "\"\\")
		}
		if !ok {
			return prego.Invalid("values", fmt.Sprintf("of a record of type %s must not be %q", r.Type, v))
		}
	}
	return nil
}

// RecordState is the state of a row of dns_records. A row is written before the provider
// is called, and is released only when the provider has nothing of it.
type RecordState = ResourceState

// RecordOwner is the purpose of a record set.
type RecordOwner string

// The owners of record sets.
const (
	RecordOfEdges     RecordOwner = "edges"     // the addresses of a network's or a region's edges
	RecordOfSites     RecordOwner = "sites"     // the wildcard of all sites
	RecordOfSite      RecordOwner = "site"      // one tenant's site
	RecordOfChallenge RecordOwner = "challenge" // a certificate authority's question
)

// DNSRecord is a row of dns_records: what a record set shall be, and how far that is.
type DNSRecord struct {
	RecordSet
	Owner   RecordOwner
	State   RecordState
	Version int64 // of what it shall be
	Made    bool  // the provider confirmed it
	Tries   int   // with this one, since the provider's last confirmation
	Error   string
}

// Known is the known state of the record set when it was taken for a try.
func (r DNSRecord) Known() RecordWrite {
	switch {
	case r.Tries > 1:
		return RecordUnsure
	case r.Made:
		return RecordKnown
	}
	return RecordNew
}

// RecordWrite is the known state of a record set to write.
type RecordWrite int

// What may be known of it.
const (
	// RecordNew was never sent: it is created without a look.
	RecordNew RecordWrite = iota
	// RecordKnown is there, or may be: it is looked up, and written if it differs.
	RecordKnown
	// RecordUnsure was sent, and its publication failed: it is written even if it looks
	// the same.
	RecordUnsure
)
