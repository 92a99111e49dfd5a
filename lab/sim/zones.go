package sim

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
	"golang.org/x/net/publicsuffix"
)

// DNS zones as the provider has them: record sets change in the API immediately, and are published to the name servers
// by an action, which can fail. The published records are served over DNS (zone_dns.go).

// zone is a DNS zone with its record sets, by "name/type".
type zone struct {
	schema.Zone
	RRSets map[string]*schema.ZoneRRSet `json:"rrsets"`
	// Published is what the name servers have.
	Published map[string]schema.ZoneRRSet `json:"published"`
	Serial    uint32                      `json:"serial"`

	existing   map[string]bool // names, as of a serial
	existingAt uint32
}

// nameservers are assigned to every zone (the specification's example of a zone file).
var nameservers = []string{"hydrogen.ns.hetzner.com.", "oxygen.ns.hetzner.com.", "helium.ns.hetzner.de."}

func (z *zone) view() schema.Zone {
	out := z.Zone
	out.RecordCount = 0
	for _, set := range z.RRSets {
		out.RecordCount += len(set.Records)
	}
	return out
}

func zoneRef(id int64) schema.ActionResourceReference {
	return schema.ActionResourceReference{ID: id, Type: "zone"}
}

// zoneOf finds the zone that a path names by its id or its name.
func (s *Sim) zoneOf(r *http.Request) (*zone, error) {
	key := r.PathValue("zone")
	id, _ := strconv.ParseInt(key, 10, 64)
	if z, ok := s.st.Zones[id]; ok {
		return z, nil
	}
	if z := s.zoneNamed(key); z != nil {
		return z, nil
	}
	return nil, &apiError{status: 404, code: "not_found", message: "zone with ID or name '" + key + "' not found"}
}

func (s *Sim) zoneNamed(name string) *zone {
	for _, z := range s.st.Zones {
		if z.Name == name {
			return z
		}
	}
	return nil
}

func (s *Sim) listZones(r *http.Request) (int, any, error) {
	var items []item
	for _, z := range s.st.Zones {
		items = append(items, item{id: z.ID, name: z.Name, labels: z.Labels, created: z.Created, body: z.view()})
	}
	return list(r, "zones", items)
}

func (s *Sim) getZone(r *http.Request) (int, any, error) {
	z, err := s.zoneOf(r)
	if err != nil {
		return 0, nil, err
	}
	return 200, map[string]any{"zone": z.view()}, nil
}

// checkZoneName refuses what the specification rules out: subdomains, capitals, a trailing
// dot. Suffixes that are on no list, such as that of a development installation, are taken
// for suffixes.
func checkZoneName(name string) error {
	if registrable, err := publicsuffix.EffectiveTLDPlusOne(name); err != nil || registrable != name ||
		name != strings.ToLower(name) || len(name) > 255 {
		return invalid("invalid input in field 'name'", "name")
	}
	return nil
}

func checkTTL(ttl int) error {
	if ttl < 60 || ttl > 2147483647 {
		return invalid("invalid input in field 'ttl'", "ttl")
	}
	return nil
}

func (s *Sim) createZone(r *http.Request) (int, any, error) {
	var req schema.ZoneCreateRequest
	if err := decode(r, &req); err != nil {
		return 0, nil, err
	}
	ttl := 3600
	if req.TTL != nil {
		ttl = *req.TTL
	}
	switch {
	case req.Mode != "primary":
		return 0, nil, invalid("the simulator has zones in primary mode only", "mode")
	case req.Zonefile != "" && len(req.RRSets) > 0:
		return 0, nil, invalid("rrsets and zonefile are mutually exclusive", "zonefile")
	}
	if err := checkZoneName(req.Name); err != nil {
		return 0, nil, err
	}
	if err := checkTTL(ttl); err != nil {
		return 0, nil, err
	}
	if s.zoneNamed(req.Name) != nil {
		return 0, nil, unique("zone")
	}
	labels, err := labelsOf(req.Labels)
	if err != nil {
		return 0, nil, err
	}
	z := newZone(s.st.id(), req.Name, ttl, labels)
	for _, set := range req.RRSets {
		if err := z.add(schema.ZoneRRSetCreateRequest{
			Name: set.Name, Type: set.Type, TTL: set.TTL, Labels: set.Labels,
			Records: set.Records,
		}); err != nil {
			return 0, nil, err
		}
	}
	if req.Zonefile != "" {
		sets, err := readZone(z.Name, req.Zonefile)
		if err != nil {
			return 0, nil, err
		}
		delete(z.RRSets, setKey("@", "NS")) // the file has its own, or none
		for _, set := range sets {
			if err := z.add(set); err != nil {
				return 0, nil, err
			}
		}
	}
	s.st.Zones[z.ID] = z
	return 201, map[string]any{
		"zone":   z.view(),
		"action": s.publishRecords("create_zone", z, slices.Collect(maps.Keys(z.RRSets))...),
	}, nil
}

// newZone is a zone as it is made: with a SOA and three NS records.
func newZone(id int64, name string, ttl int, labels map[string]string) *zone {
	now := time.Now().UTC()
	z := &zone{Zone: schema.Zone{
		ID: id, Name: name, Created: now, TTL: ttl, Mode: "primary", Labels: labels,
		PrimaryNameservers: []schema.ZonePrimaryNameserver{},
		AuthoritativeNameservers: schema.ZoneAuthoritativeNameservers{
			Assigned: nameservers, Delegated: nameservers,
			DelegationLastCheck: now, DelegationStatus: "valid",
		},
		Registrar: "other", Status: "ok",
	}, RRSets: make(map[string]*schema.ZoneRRSet), Published: make(map[string]schema.ZoneRRSet)}
	z.put("@", "SOA", new(3600), nil,
		[]schema.ZoneRRSetRecord{{Value: nameservers[0] + " dns.hetzner.com. 2026010100 86400 10800 3600000 3600"}})
	var ns []schema.ZoneRRSetRecord
	for _, n := range nameservers {
		ns = append(ns, schema.ZoneRRSetRecord{Value: n})
	}
	z.put("@", "NS", new(3600), nil, ns)
	return z
}

// haveZones makes the zones that the configuration names, unless an earlier run did.
func (s *Sim) haveZones() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.cfg.Zones {
		if s.zoneNamed(name) != nil {
			continue
		}
		if err := checkZoneName(name); err != nil {
			return fmt.Errorf("sim: zone %q: %w", name, err)
		}
		z := newZone(s.st.id(), name, 3600, map[string]string{})
		s.st.Zones[z.ID] = z
		s.publishRecords("create_zone", z, slices.Collect(maps.Keys(z.RRSets))...)
	}
	return nil
}

func (s *Sim) updateZone(r *http.Request) (int, any, error) {
	z, err := s.zoneOf(r)
	if err != nil {
		return 0, nil, err
	}
	var req schema.ZoneUpdateRequest
	if err := decode(r, &req); err != nil {
		return 0, nil, err
	}
	if err := relabel(&z.Labels, req.Labels); err != nil {
		return 0, nil, err
	}
	return 200, map[string]any{"zone": z.view()}, nil
}

func (s *Sim) deleteZone(r *http.Request) (int, any, error) {
	z, err := s.zoneOf(r)
	switch {
	case err != nil:
		return 0, nil, err
	case z.Protection.Delete:
		return 0, nil, &apiError{status: 423, code: "protected", message: "zone deletion is protected"}
	}
	delete(s.st.Zones, z.ID)
	return 201, map[string]any{"action": s.act("delete_zone", s.cfg.Profile.Action/4, nil, zoneRef(z.ID))}, nil
}

func (s *Sim) zoneActions(r *http.Request) (int, any, error) {
	z, err := s.zoneOf(r)
	if err != nil {
		return 0, nil, err
	}
	r.SetPathValue("id", strconv.FormatInt(z.ID, 10))
	return s.resourceActions("zone")(r)
}

func (s *Sim) zoneAction(r *http.Request) (int, any, error) {
	z, err := s.zoneOf(r)
	if err != nil {
		return 0, nil, err
	}
	switch verb := r.PathValue("verb"); verb {
	case "change_ttl":
		var req schema.ZoneChangeTTLRequest
		if err := decode(r, &req); err != nil {
			return 0, nil, err
		}
		if err := checkTTL(req.TTL); err != nil {
			return 0, nil, err
		}
		z.TTL = req.TTL
		return 201, map[string]any{"action": s.publishRecords(verb, z)}, nil
	case "import_zonefile":
		var req schema.ZoneImportZonefileRequest
		if err := decode(r, &req); err != nil {
			return 0, nil, err
		}
		a, err := s.importZone(z, req.Zonefile)
		if err != nil {
			return 0, nil, err
		}
		return 201, map[string]any{"action": a}, nil
	case "change_primary_nameservers":
		return 0, nil, refused("incorrect_zone_mode", "the operation is not supported for the zone's mode")
	case "change_protection":
		var req schema.ZoneChangeProtectionRequest
		if err := decode(r, &req); err != nil {
			return 0, nil, err
		}
		replace(&z.Protection.Delete, req.Delete)
		return 201, map[string]any{"action": s.act(verb, s.cfg.Profile.Action/4, nil, zoneRef(z.ID))}, nil
	}
	return 0, nil, &apiError{status: 404, code: "not_found", message: "api route not found"}
}
