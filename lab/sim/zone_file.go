package sim

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
	"github.com/miekg/dns"
)

// Zone files ([RFC 1035] §5): a zone can be written as one, and read from one.
//
// [RFC 1035]: https://www.rfc-editor.org/rfc/rfc1035

func (s *Sim) exportZone(r *http.Request) (int, any, error) {
	z, err := s.zoneOf(r)
	if err != nil {
		return 0, nil, err
	}
	var out strings.Builder
	fmt.Fprintf(&out, "$ORIGIN\t%s.\n$TTL\t%d\n\n", z.Name, z.TTL)
	for _, key := range slices.Sorted(maps.Keys(z.RRSets)) {
		set := z.RRSets[key]
		for _, rec := range set.Records {
			ttl := ""
			if set.TTL != nil {
				ttl = fmt.Sprint(*set.TTL)
			}
			fmt.Fprintf(&out, "%s\t%s\tIN\t%s\t%s\n", set.Name, ttl, set.Type, rec.Value)
		}
	}
	return http.StatusOK, map[string]any{"zonefile": out.String()}, nil
}

// maxZoneRecords bounds what a file makes of a zone: one line, $GENERATE, can mean 65,535 records.
const maxZoneRecords = 2000

// readZone are the record sets of a zone file, without its SOA record, which is the
// provider's.
func readZone(zone, file string) ([]schema.ZoneRRSetCreateRequest, error) {
	p := dns.NewZoneParser(strings.NewReader(file), zone+".", "")
	p.SetIncludeAllowed(false) // a stranger's file reads none of ours
	sets := make(map[string]*schema.ZoneRRSetCreateRequest)
	var order []string
	records := 0
	for rr, ok := p.Next(); ok; rr, ok = p.Next() {
		if records++; records > maxZoneRecords {
			return nil, invalid(fmt.Sprintf("a zone file has at most %d records here", maxZoneRecords), "zonefile")
		}
		h := rr.Header()
		name, inside := relative(h.Name, zone)
		if !inside {
			return nil, invalid("a record is outside of the zone", "zonefile")
		}
		typ := dns.TypeToString[h.Rrtype]
		if typ == "SOA" {
			continue
		}
		key := setKey(name, typ)
		if sets[key] == nil {
			sets[key] = &schema.ZoneRRSetCreateRequest{Name: name, Type: typ}
			if h.Ttl >= 60 {
				sets[key].TTL = new(int(h.Ttl))
			}
			order = append(order, key)
		}
		sets[key].Records = append(sets[key].Records,
			schema.ZoneRRSetRecord{Value: strings.TrimPrefix(rr.String(), h.String())})
	}
	if p.Err() != nil {
		return nil, invalid("the zone file can't be read", "zonefile")
	}
	out := make([]schema.ZoneRRSetCreateRequest, 0, len(order))
	for _, key := range order {
		out = append(out, *sets[key])
	}
	return out, nil
}

func relative(name, zone string) (string, bool) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if name == zone {
		return "@", true
	}
	return strings.CutSuffix(name, "."+zone)
}

// importZone replaces all record sets of a zone by a file's.
func (s *Sim) importZone(z *zone, file string) (schema.Action, error) {
	sets, err := readZone(z.Name, file)
	if err != nil {
		return schema.Action{}, err
	}
	before := z.RRSets
	for _, set := range before {
		if set.Protection.Change {
			return schema.Action{},
				&apiError{status: http.StatusLocked, code: "protected", message: "rrset is protected against changes"}
		}
	}
	z.RRSets = map[string]*schema.ZoneRRSet{setKey("@", "SOA"): before[setKey("@", "SOA")]}
	for _, set := range sets {
		if err := z.add(set); err != nil {
			z.RRSets = before
			return schema.Action{}, err
		}
	}
	keys := slices.Concat(slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(z.RRSets)))
	return s.publishRecords("import_zonefile", z, keys...), nil
}

// with are records after some were added; an equal one is refused by checkRecords.
func with(have, more []schema.ZoneRRSetRecord) []schema.ZoneRRSetRecord {
	return slices.Concat(have, more)
}

// without are records after some were removed, which all have to be there.
func without(have, less []schema.ZoneRRSetRecord) ([]schema.ZoneRRSetRecord, error) {
	out := slices.Clone(have)
	for _, r := range less {
		i := slices.IndexFunc(out, func(o schema.ZoneRRSetRecord) bool { return o.Value == r.Value })
		if i < 0 {
			return nil, invalid("record not found", "records")
		}
		out = slices.Delete(out, i, i+1)
	}
	return out, nil
}

// commented are records with other comments.
func commented(have, changed []schema.ZoneRRSetRecord) ([]schema.ZoneRRSetRecord, error) {
	out := slices.Clone(have)
	for _, r := range changed {
		i := slices.IndexFunc(out, func(o schema.ZoneRRSetRecord) bool { return o.Value == r.Value })
		if i < 0 {
			return nil, invalid("record not found", "records")
		}
		out[i].Comment = r.Comment
	}
	return out, nil
}
