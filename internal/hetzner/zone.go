package hetzner

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/hetznercloud/hcloud-go/v2/hcloud/exp/zoneutil"

	"github.com/prego/prego/server"
)

// A record set is unique by its name and type in a zone, as a server is by its name in a project, so creates that are
// repeated or late can't make two. Ours carry the environment's labels; others are never touched. The zone itself is
// created and delegated by people.

// EnsureRecordSet makes a record set, or corrects it, and waits until it is published.
func (p *Provider) EnsureRecordSet(ctx context.Context, r server.RecordSet, known server.RecordWrite) error {
	if err := r.Validate(); err != nil {
		return infraError(server.InfraPermanent, "invalid_input", "%s", err)
	}
	r.Normalize()
	if known != server.RecordNew {
		set, err := p.recordSet(ctx, r)
		if err != nil {
			return err
		}
		if set != nil {
			return p.correct(ctx, set, r, known == server.RecordUnsure)
		}
	}
	created, _, err := p.write.Zone.CreateRRSet(ctx, zoneOf(r.Zone), hcloud.ZoneRRSetCreateOpts{
		Name: r.Name, Type: hcloud.ZoneRRSetType(r.Type), TTL: new(r.TTL), Labels: ownerLabels(p.environment),
		Records: encode(r),
	})
	if err == nil {
		return p.done(ctx)(created.Action, nil, nil)
	}
	if err = p.classify(err); isNotFound(err) {
		return noZone(r.Zone)
	}
	// The specification does not define the answer to a second create: read the set if it may exist.
	code := hcloud.ErrorCode(infraOf(err).Code)
	if !mayExist(err) && code != hcloud.ErrorCodeConflict && code != hcloud.ErrorCodeInvalidInput {
		return err
	}
	set, findErr := p.recordSet(ctx, r)
	switch {
	case findErr != nil:
		return findErr
	case set == nil && mayExist(err):
		return ambiguous(err, nil)
	case set == nil:
		return err
	}
	// The action of the create is unknown, and with it whether the set was published.
	return p.correct(ctx, set, r, true)
}

// correct writes what differs; with force, the records in any case.
func (p *Provider) correct(ctx context.Context, set *hcloud.ZoneRRSet, r server.RecordSet, force bool) error {
	if err := checkOwner("record", r.FQDN()+" "+string(r.Type), set.Labels, p.environment); err != nil {
		return err
	}
	was := decodeSet(r.Zone, set)
	if force || !slices.Equal(was.Values, r.Values) {
		to := hcloud.ZoneRRSetSetRecordsOpts{Records: encode(r)}
		if err := p.done(ctx)(p.write.Zone.SetRRSetRecords(ctx, set, to)); err != nil {
			return err
		}
	}
	if was.TTL == r.TTL {
		return nil
	}
	return p.done(ctx)(p.write.Zone.ChangeRRSetTTL(ctx, set, hcloud.ZoneRRSetChangeTTLOpts{TTL: new(r.TTL)}))
}

// DeleteRecordSet deletes a record set of ours, and waits until the name servers no longer have it; a missing one is
// success.
func (p *Provider) DeleteRecordSet(ctx context.Context, zone, name string, typ server.RecordType) error {
	ctx = WithLane(ctx, LaneDelete)
	r := server.RecordSet{Zone: zone, Name: name, Type: typ}
	set, err := p.recordSet(ctx, r)
	if err != nil || set == nil {
		return err
	}
	if err := checkOwner("record", r.FQDN()+" "+string(typ), set.Labels, p.environment); err != nil {
		return err
	}
	deleted, _, err := p.write.Zone.DeleteRRSet(ctx, set)
	if err != nil || (deleted.Action != nil && deleted.Action.Status == hcloud.ActionStatusSuccess) {
		return p.gone(err)
	}
	return p.deletions.wait(ctx, actionIDs(deleted.Action, nil))
}

// recordSet looks a record set up; nil if there is none. A missing zone is an error.
func (p *Provider) recordSet(ctx context.Context, r server.RecordSet) (*hcloud.ZoneRRSet, error) {
	set, _, err := p.read.Zone.GetRRSetByNameAndType(ctx, zoneOf(r.Zone), r.Name, hcloud.ZoneRRSetType(r.Type))
	if err != nil {
		return nil, p.classify(err)
	}
	if set != nil {
		set.Zone = zoneOf(r.Zone) // by name, as requested
	}
	return set, nil
}

// recordsPerPage is the provider's limit for a page of record sets (its specification, GET
// /zones/{id_or_name}/rrsets).
const recordsPerPage = 100

// ListRecordSets lists ours of a zone, normalized, and the names of others' record sets.
func (p *Provider) ListRecordSets(ctx context.Context, zone string) (ours []server.RecordSet, others []string, err error) {
	sets, err := p.read.Zone.AllRRSetsWithOpts(ctx, zoneOf(zone), hcloud.ZoneRRSetListOpts{
		ListOpts: hcloud.ListOpts{PerPage: recordsPerPage},
	})
	if err != nil {
		if err = p.classify(err); isNotFound(err) {
			err = noZone(zone)
		}
		return nil, nil, err
	}
	for _, s := range sets {
		if checkOwner("record", s.Name, s.Labels, p.environment) == nil {
			ours = append(ours, decodeSet(zone, s))
		} else {
			others = append(others, s.Name)
		}
	}
	return ours, others, nil
}

func noZone(zone string) error {
	return infraError(server.InfraPermanent, "zone_not_found",
		"the project has no zone %s: create it, and delegate the domain to it", zone)
}

func zoneOf(name string) *hcloud.Zone { return &hcloud.Zone{Name: name} }

// encode writes values as zone files do: texts quoted, names absolute.
func encode(r server.RecordSet) []hcloud.ZoneRRSetRecord {
	out := make([]hcloud.ZoneRRSetRecord, 0, len(r.Values))
	for _, v := range r.Values {
		switch r.Type {
		case server.RecordCNAME:
			v += "."
		case server.RecordTXT:
			v = zoneutil.FormatTXTRecord(v)
		case server.RecordA, server.RecordAAAA:
		}
		out = append(out, hcloud.ZoneRRSetRecord{Value: v})
	}
	return out
}

func decodeSet(zone string, s *hcloud.ZoneRRSet) server.RecordSet {
	r := server.RecordSet{Zone: zone, Name: s.Name, Type: server.RecordType(s.Type)}
	if s.TTL != nil {
		r.TTL = *s.TTL
	}
	for _, record := range s.Records {
		v := record.Value
		switch r.Type {
		case server.RecordCNAME:
			v = strings.TrimSuffix(v, ".")
		case server.RecordTXT:
			v = zoneutil.ParseTXTRecord(v)
		case server.RecordA, server.RecordAAAA:
			if a, err := netip.ParseAddr(v); err == nil {
				v = a.String() // in canonical form
			}
		}
		r.Values = append(r.Values, v)
	}
	r.Normalize()
	return r
}
