package sim

import (
	"cmp"
	"net/http"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
	"github.com/miekg/dns"
)

// recordTypes are all that the specification has.
var recordTypes = []string{
	"A", "AAAA", "CAA", "CNAME", "DS", "HINFO", "HTTPS", "MX", "NS", "PTR", "RP", "SOA", "SRV",
	"SVCB", "TLSA", "TXT",
}

// maxRecords is the most records of a set (the specification, set_records).
const maxRecords = 50

var recordName = regexp.MustCompile(`^(@|(\*|[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*)$`)

func setKey(name, typ string) string { return name + "/" + typ }

func absolute(z *zone, name string) string {
	if name == "@" {
		return z.Name + "."
	}
	return name + "." + z.Name + "."
}

func (z *zone) put(name, typ string, ttl *int, labels map[string]string, records []schema.ZoneRRSetRecord) {
	if labels == nil {
		labels = map[string]string{}
	}
	set := &schema.ZoneRRSet{
		ID: setKey(name, typ), Name: name, Type: typ, TTL: ttl, Labels: labels, Records: records,
		Zone: z.ID,
	}
	z.RRSets[set.ID] = set
}

// add makes a record set, or refuses it.
func (z *zone) add(req schema.ZoneRRSetCreateRequest) error {
	switch {
	case !recordName.MatchString(req.Name), len(absolute(z, req.Name)) > 254, prefixed(z, req.Name):
		return invalid("invalid input in field 'name'", "name")
	case !slices.Contains(recordTypes, req.Type):
		return invalid("invalid input in field 'type'", "type")
	case z.RRSets[setKey(req.Name, req.Type)] != nil:
		return &apiError{status: 409, code: "uniqueness_error", message: "rrset with name and type is already used"}
	}
	if req.TTL != nil {
		if err := checkTTL(*req.TTL); err != nil {
			return err
		}
	}
	if err := z.checkRecords(req.Name, req.Type, req.Records); err != nil {
		return err
	}
	labels, err := labelsOf(req.Labels)
	if err != nil {
		return err
	}
	// RFC 1034 §3.6.2: where there is an alias, there is nothing else.
	for _, other := range z.RRSets {
		if other.Name == req.Name && (other.Type == "CNAME" || req.Type == "CNAME") {
			return invalid("a CNAME record can't be beside other records of the same name", "type")
		}
	}
	z.put(req.Name, req.Type, req.TTL, labels, req.Records)
	return nil
}

// prefixed reports whether a name ends with its zone's, which the specification rules out.
func prefixed(z *zone, name string) bool {
	return name == z.Name || strings.HasSuffix(name, "."+z.Name)
}

// checkRecords refuses what the type's form rules out: each has to be a record of a zone file.
func (z *zone) checkRecords(name, typ string, records []schema.ZoneRRSetRecord) error {
	if len(records) == 0 || len(records) > maxRecords {
		return invalid("invalid input in field 'records'", "records")
	}
	seen := make(map[string]bool)
	for _, r := range records {
		rr, err := dns.NewRR(absolute(z, name) + " 60 IN " + typ + " " + r.Value)
		bad := err != nil || rr == nil || seen[r.Value] || strings.ContainsAny(r.Value, "\n\r")
		switch typ {
		case "TXT":
			bad = bad || !strings.HasPrefix(r.Value, `"`) || !strings.HasSuffix(r.Value, `"`)
		case "A", "AAAA":
			a, err := netip.ParseAddr(r.Value)
			bad = bad || err != nil || a.Is4() != (typ == "A")
		case "CNAME":
			bad = bad || len(records) > 1 || name == "@"
		}
		if bad {
			return invalid("invalid input in field 'records'", "records")
		}
		seen[r.Value] = true
	}
	return nil
}

func (s *Sim) listRecordSets(r *http.Request) (int, any, error) {
	z, err := s.zoneOf(r)
	if err != nil {
		return 0, nil, err
	}
	types := r.URL.Query()["type"]
	sets := make([]*schema.ZoneRRSet, 0, len(z.RRSets))
	for _, set := range z.RRSets {
		if len(types) == 0 || slices.Contains(types, set.Type) {
			sets = append(sets, set)
		}
	}
	slices.SortFunc(sets, func(a, b *schema.ZoneRRSet) int { return cmp.Compare(a.ID, b.ID) })
	items := make([]item, 0, len(sets))
	for i, set := range sets {
		items = append(items, item{id: int64(i), name: set.Name, labels: set.Labels, body: set})
	}
	return list(r, "rrsets", items)
}

// recordSetOf finds the record set that a path names.
func (s *Sim) recordSetOf(r *http.Request) (*zone, *schema.ZoneRRSet, error) {
	z, err := s.zoneOf(r)
	if err != nil {
		return nil, nil, err
	}
	set, ok := z.RRSets[setKey(r.PathValue("name"), r.PathValue("type"))]
	if !ok {
		return z, nil, &apiError{status: 404, code: "not_found", message: "rrset not found"}
	}
	return z, set, nil
}

func (s *Sim) getRecordSet(r *http.Request) (int, any, error) {
	_, set, err := s.recordSetOf(r)
	if err != nil {
		return 0, nil, err
	}
	return 200, map[string]any{"rrset": set}, nil
}

func (s *Sim) createRecordSet(r *http.Request) (int, any, error) {
	z, err := s.zoneOf(r)
	if err != nil {
		return 0, nil, err
	}
	var req schema.ZoneRRSetCreateRequest
	if err := decode(r, &req); err != nil {
		return 0, nil, err
	}
	if err := z.add(req); err != nil {
		return 0, nil, err
	}
	key := setKey(req.Name, req.Type)
	return 201, map[string]any{"rrset": z.RRSets[key], "action": s.publishRecords("create_rrset", z, key)}, nil
}

func (s *Sim) updateRecordSet(r *http.Request) (int, any, error) {
	_, set, err := s.recordSetOf(r)
	if err != nil {
		return 0, nil, err
	}
	var req schema.ZoneRRSetUpdateRequest
	if err := decode(r, &req); err != nil {
		return 0, nil, err
	}
	if err := relabel(&set.Labels, req.Labels); err != nil {
		return 0, nil, err
	}
	return 200, map[string]any{"rrset": set}, nil
}

func (s *Sim) deleteRecordSet(r *http.Request) (int, any, error) {
	z, set, err := s.recordSetOf(r)
	if err != nil {
		return 0, nil, err
	}
	if err := changeable(set); err != nil {
		return 0, nil, err
	}
	delete(z.RRSets, set.ID)
	return 201, map[string]any{"action": s.publishRecords("delete_rrset", z, set.ID)}, nil
}

func changeable(set *schema.ZoneRRSet) error {
	switch {
	case set.Protection.Change:
		return &apiError{status: 423, code: "protected", message: "rrset is protected against changes"}
	case set.Type == "SOA":
		return invalid("the SOA record can't be changed this way", "type")
	}
	return nil
}

func (s *Sim) recordSetAction(r *http.Request) (int, any, error) {
	verb := r.PathValue("verb")
	z, set, err := s.recordSetOf(r)
	if err != nil && verb == "add_records" { // it makes the set
		return s.createBy(r, z)
	}
	if err != nil {
		return 0, nil, err
	}
	if verb == "change_protection" {
		var req schema.ZoneRRSetChangeProtectionRequest
		if err := decode(r, &req); err != nil {
			return 0, nil, err
		}
		replace(&set.Protection.Change, req.Change)
		return 201, map[string]any{"action": s.act(verb, s.cfg.Profile.Action/4, nil, zoneRef(z.ID))}, nil
	}
	if err := changeable(set); err != nil {
		return 0, nil, err
	}
	switch verb {
	case "change_ttl":
		var req schema.ZoneRRSetChangeTTLRequest
		if err := decode(r, &req); err != nil {
			return 0, nil, err
		}
		if req.TTL != nil {
			if err := checkTTL(*req.TTL); err != nil {
				return 0, nil, err
			}
		}
		set.TTL = req.TTL
	case "set_records":
		var req schema.ZoneRRSetSetRecordsRequest
		if err := decode(r, &req); err != nil {
			return 0, nil, err
		}
		if err := z.checkRecords(set.Name, set.Type, req.Records); err != nil {
			return 0, nil, err
		}
		set.Records = req.Records
	case "add_records", "remove_records", "update_records":
		var req schema.ZoneRRSetAddRecordsRequest // has all that the others have
		if err := decode(r, &req); err != nil {
			return 0, nil, err
		}
		if err := z.edit(set, verb, req); err != nil {
			return 0, nil, err
		}
		if verb == "update_records" { // comments are not published
			return 200, map[string]any{"action": s.publishRecords(verb, z)}, nil
		}
	default:
		return 0, nil, &apiError{status: 404, code: "not_found", message: "api route not found"}
	}
	return 201, map[string]any{"action": s.publishRecords(verb, z, set.ID)}, nil
}

// createBy answers add_records of a set that is not there: it is made (the specification).
func (s *Sim) createBy(r *http.Request, z *zone) (int, any, error) {
	if z == nil {
		_, err := s.zoneOf(r)
		return 0, nil, err
	}
	var req schema.ZoneRRSetAddRecordsRequest
	if err := decode(r, &req); err != nil {
		return 0, nil, err
	}
	name, typ := r.PathValue("name"), r.PathValue("type")
	if err := z.add(schema.ZoneRRSetCreateRequest{
		Name: name, Type: typ, TTL: req.TTL,
		Records: req.Records,
	}); err != nil {
		return 0, nil, err
	}
	return 201, map[string]any{"action": s.publishRecords("add_records", z, setKey(name, typ))}, nil
}

// edit adds records to a set, removes some, which removes the set with its last one, or
// changes their comments.
func (z *zone) edit(set *schema.ZoneRRSet, verb string, req schema.ZoneRRSetAddRecordsRequest) error {
	records, err := with(set.Records, req.Records), error(nil)
	switch verb {
	case "remove_records":
		records, err = without(set.Records, req.Records)
		if err == nil && len(records) == 0 {
			delete(z.RRSets, set.ID)
			return nil
		}
	case "update_records":
		records, err = commented(set.Records, req.Records)
	default:
		if req.TTL != nil && (set.TTL == nil || *set.TTL != *req.TTL) {
			return invalid("ttl has to be the set's", "ttl")
		}
	}
	if err == nil {
		err = z.checkRecords(set.Name, set.Type, records)
	}
	if err == nil {
		set.Records = records
	}
	return err
}

// publishRecords starts the action that brings record sets to the name servers, as they
// are when it ends. When it fails, the name servers keep what they have.
func (s *Sim) publishRecords(command string, z *zone, keys ...string) schema.Action {
	z.Status = "updating"
	var hit *Fault
	for _, key := range keys {
		if f := s.recordFault(z, key); f != nil {
			hit = f
		}
	}
	return s.act(command, s.cfg.Profile.Action/4, func() *schema.ActionError {
		if hit != nil {
			z.Status = "error"
			return &schema.ActionError{Code: hit.code("action_failed"), Message: "Action failed"}
		}
		z.Status = "ok"
		z.Serial++
		for _, key := range keys {
			if set, ok := z.RRSets[key]; ok {
				out := *set
				out.Records = slices.Clone(set.Records)
				z.Published[key] = out
			} else {
				delete(z.Published, key)
			}
		}
		return nil
	}, zoneRef(z.ID))
}

// recordFault is the fault that happens to the publication of a record set now.
func (s *Sim) recordFault(z *zone, key string) *Fault {
	name, _, _ := strings.Cut(key, "/")
	full := strings.TrimSuffix(absolute(z, name), ".")
	for _, f := range s.faults {
		if ok, _ := path.Match(f.Record, full); f.Kind == "publish" && (f.Record == "" || ok) && f.fires() {
			return f
		}
	}
	return nil
}

// RecordSets are the record sets of a zone that have a label, as the API has them: name and type, and the values,
// sorted by name.
func (s *Sim) RecordSets(zone, label string) []schema.ZoneRRSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	z := s.zoneNamed(zone)
	if z == nil {
		return nil
	}
	var out []schema.ZoneRRSet
	for _, set := range z.RRSets {
		if _, ok := set.Labels[label]; ok {
			is := *set
			is.Records = slices.Clone(set.Records)
			out = append(out, is)
		}
	}
	slices.SortFunc(out, func(a, b schema.ZoneRRSet) int { return cmp.Compare(a.ID, b.ID) })
	return out
}
