package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// DNS is where the records of this installation's zone are kept. Every error that it
// returns is a *server.InfraError.
type DNS interface {
	// EnsureRecordSet makes a record set, or corrects it, and waits until it is published at the
	// zone's name servers. A foreign set returns InfraForeign and stays unchanged.
	EnsureRecordSet(ctx context.Context, r server.RecordSet, known server.RecordWrite) error
	// DeleteRecordSet deletes a record set of ours; a missing one is success.
	DeleteRecordSet(ctx context.Context, zone, name string, typ server.RecordType) error
	// ListRecordSets lists ours, normalized, and the names of others' record sets.
	ListRecordSets(ctx context.Context, zone string) (ours []server.RecordSet, others []string, err error)
}

// Resolver asks the public DNS.
type Resolver interface {
	// TXT returns the texts of a name from its own name servers, bypassing caches; none if the name
	// does not exist.
	TXT(ctx context.Context, name string) ([]string, error)
	// Addresses are the addresses that a name leads to, aliases followed.
	Addresses(ctx context.Context, name string) ([]string, error)
}

// Challenges publishes the DNS answers to a certificate authority. A name may have several values.
// AddTXT returns once the provider has the value; TXTVisible reports whether the zone's own name
// servers serve it. Names implements it.
type Challenges interface {
	AddTXT(ctx context.Context, fqdn, value string) error
	RemoveTXT(ctx context.Context, fqdn, value string) error
	TXTVisible(ctx context.Context, fqdn, value string) (bool, error)
}

// Names are the steps that keep this installation's zone and orgs' names. Without a zone
// there are no records, and only orgs' names are looked up.
type Names struct {
	Store      *store.Store
	DNS        DNS
	Resolver   Resolver
	Runs       Runs
	Zone       string // "" for none
	SiteDomain string
	Rules      org.DomainRules
	Metrics    *NameMetrics
	Log        *zap.Logger
	Hooks
}

const (
	recordLease    = 3 * time.Minute // more than a try takes
	recordTry      = 2 * time.Minute
	recordsAtOnce  = 8
	recordsPerRun  = 400         // at most: half of them leave budget for servers
	domainLease    = time.Minute // a batch's questions take less; a second look meanwhile does no harm
	domainsAtOnce  = 16
	domainsPerRun  = 200
	recordRetryMax = 10 * time.Minute
)

// NamesResult counts what one run did.
type NamesResult struct {
	Wanted  int `json:"wanted"`  // record sets to make, change or delete again
	Applied int `json:"applied"` // record sets that the provider now has as planned
	Failed  int `json:"failed"`
	Looked  int `json:"looked"` // names of orgs that were looked up
}

// KeepNames brings the zone to what it shall be, and looks up orgs' names whose turn it is.
func (a *Names) KeepNames(ctx context.Context) (NamesResult, error) {
	var r NamesResult
	var try Attempts
	if a.Zone != "" {
		planned, err := a.PlanRecords(ctx)
		r.Wanted = planned.Changed
		try.OK(err)
		try.OK(a.applyDue(ctx, &r))
	}
	_, err := a.Store.ForgetDomains(ctx)
	try.OK(err)
	r.Looked, err = a.lookUp(ctx)
	try.OK(err)
	return r, try.Err()
}

// RecordsPlanned counts record sets planned for the zone, and those among them that are new,
// changed or deleted.
type RecordsPlanned struct{ Records, Changed int }

// PlanRecords writes down what the zone shall have.
func (a *Names) PlanRecords(ctx context.Context) (out RecordsPlanned, err error) {
	facts, err := a.Store.RecordFacts(ctx, a.Zone, a.SiteDomain)
	if err != nil {
		return out, err
	}
	home := facts.NextHome()
	var away []tenant.SiteAt
	if home != "" {
		if away, err = a.Store.SitesAway(ctx, home, facts.Shadowed, a.SiteDomain); err != nil {
			return out, err
		}
	}
	wanted := tenant.PlanRecords(facts, home, away)
	out.Records = len(wanted)
	out.Changed, err = a.Store.WantRecords(ctx, a.Zone, wanted)
	return out, err
}

func (a *Names) applyDue(ctx context.Context, r *NamesResult) error {
	var try Attempts
	for done := 0; done < recordsPerRun && !try.TooMany(); {
		records, err := a.Store.TakeRecords(ctx, a.Zone, min(recordsPerRun-done, 4*recordsAtOnce), recordLease)
		if try.OK(err); err != nil || len(records) == 0 {
			return try.Err()
		}
		done += len(records)
		failed := make([]error, len(records))
		var g errgroup.Group
		g.SetLimit(recordsAtOnce)
		for i, record := range records {
			g.Go(func() error {
				failed[i] = a.apply(ctx, record) // it is tried again, and keeps no other from its turn
				return ctx.Err()
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		for _, err := range failed {
			var ie *server.InfraError
			switch {
			case err == nil:
				r.Applied++
			case errors.As(err, &ie): // its row has it
				r.Failed++
			default:
				r.Failed++
				try.OK(err)
			}
		}
	}
	return try.Err()
}

// apply brings a record set that was taken to the provider.
func (a *Names) apply(ctx context.Context, r server.DNSRecord) error {
	a.hook("record/taken")
	try, cancel := context.WithTimeout(ctx, recordTry)
	defer cancel()
	var err error
	if r.State == server.ResourceReleasing {
		err = a.DNS.DeleteRecordSet(try, r.Zone, r.Name, r.Type)
	} else {
		err = a.DNS.EnsureRecordSet(try, r.RecordSet, r.Known())
	}
	a.hook("record/sent")
	if err == nil {
		return a.Store.RecordApplied(ctx, r)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	again := time.Second << min(r.Tries, 10)
	if ie, ok := errors.AsType[*server.InfraError](err); ok {
		again = max(again, ie.RetryAfter)
	} else {
		err = &server.InfraError{Class: server.InfraRetry, Code: "timeout", Message: err.Error()}
	}
	a.Log.Warn("a DNS record is not as it should be", zap.String("record", r.Key()), zap.String("owner", string(r.Owner)), zap.Int("tries", r.Tries), zap.String("error", prego.Redact(err.Error())))
	a.Metrics.failed(r.Owner)
	return errors.Join(a.Store.RecordFailed(ctx, r, err.Error(), min(again, recordRetryMax)), err)
}

// applyNow applies one record set, or waits for another process to do so, until it matches its row.
func (a *Names) applyNow(ctx context.Context, key server.RecordSet) error {
	for {
		taken, err := a.Store.TakeRecord(ctx, key, recordLease)
		if err != nil {
			return err
		}
		if taken != nil {
			if err := a.apply(ctx, *taken); err != nil {
				return fromInfra(err)
			}
			continue // it may have changed meanwhile
		}
		r, err := a.Store.GetRecord(ctx, key)
		if err != nil || r == nil || r.State == server.ResourceCreated || r.State == server.ResourceReleased {
			return err
		}
		if err := prego.Sleep(ctx, 200*time.Millisecond); err != nil { // another process has it
			return err
		}
	}
}

// AddTXT publishes a text at a name in the zone.
func (a *Names) AddTXT(ctx context.Context, fqdn, value string) error {
	return a.challenge(ctx, fqdn, value, a.Store.AddChallenge)
}

// RemoveTXT takes a text back.
func (a *Names) RemoveTXT(ctx context.Context, fqdn, value string) error {
	return a.challenge(ctx, fqdn, value, a.Store.RemoveChallenge)
}

func (a *Names) challenge(
	ctx context.Context, fqdn, value string, change func(ctx context.Context, zone, name, value string) error,
) error {
	name, within := server.RelativeName(a.Zone, fqdn)
	if a.Zone == "" || !within {
		return fmt.Errorf("%s is not in this installation's zone %q (PREGO_DNS_ZONE)", fqdn, a.Zone)
	}
	if err := change(ctx, a.Zone, name, value); err != nil {
		return err
	}
	return a.applyNow(ctx, server.RecordSet{Zone: a.Zone, Name: name, Type: server.RecordTXT})
}

// TXTVisible reports whether the name servers have a text at a name.
func (a *Names) TXTVisible(ctx context.Context, fqdn, value string) (bool, error) {
	texts, err := a.Resolver.TXT(ctx, fqdn)
	return slices.Contains(texts, value), err
}

// LeaveDNS takes a server's addresses out of all records. It succeeds once no resolver can
// have them any longer: then they may be given back to the provider, whose next customer
// would get our callers otherwise.
func (a *Names) LeaveDNS(ctx context.Context, id prego.ServerID) error {
	edge, err := a.Store.EdgeOf(ctx, id)
	if err != nil {
		return fromStore(err)
	}
	return a.leave(ctx, edge.Addresses())
}

func (a *Names) leave(ctx context.Context, addresses []string) error {
	if len(addresses) == 0 {
		return nil
	}
	named, err := a.Store.RecordsNaming(ctx, addresses)
	if err != nil {
		return err
	}
	if len(named) > 0 {
		if _, err := a.PlanRecords(ctx); err != nil {
			return err
		}
		for _, r := range named {
			if err := a.applyNow(ctx, r.RecordSet); err != nil {
				return err
			}
		}
		if named, err = a.Store.RecordsNaming(ctx, addresses); err != nil {
			return err
		}
		if len(named) > 0 {
			return fromInfra(&server.InfraError{Class: server.InfraRetry, Code: "address_in_dns", Message: fmt.Sprintf("%s still names an address that must be released", named[0].FQDN())})
		}
	}
	wait, err := a.Store.AddressDeparts(ctx, addresses)
	if err != nil || wait <= 0 {
		return err
	}
	return fromInfra(&server.InfraError{Class: server.InfraRetry, Code: "address_in_dns", Message: "resolvers may still have the address for " + wait.Round(time.Second).String(), RetryAfter: wait})
}

// lookUp asks the DNS about names whose turn it is.
func (a *Names) lookUp(ctx context.Context) (looked int, err error) {
	var try Attempts
	for looked < domainsPerRun && !try.TooMany() {
		due, err := a.Store.TakeDomains(ctx, domainsAtOnce, domainLease)
		if try.OK(err); err != nil || len(due) == 0 {
			return looked, try.Err()
		}
		ours, err := a.ours(ctx)
		if err != nil {
			return looked, err
		}
		failed := make([]error, len(due))
		var g errgroup.Group
		for i, d := range due {
			g.Go(func() error {
				look := a.look(ctx, d, ours)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				seen, err := a.Store.DomainSeen(ctx, d, look, a.Rules)
				if err == nil && seen.Status != d.Status && seen.Status != "" {
					a.Log.Info("a name changed its state", zap.String("domain_id", string(d.DomainID)), zap.String("name", d.Name), zap.String("status", string(seen.Status)), zap.String("reason", string(seen.Reason)))
				}
				failed[i] = err // it keeps no other from its turn
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return looked, err
		}
		for _, err := range failed {
			try.OK(err)
		}
		looked += len(due)
	}
	return looked, try.Err()
}

// ours are the addresses of all edges.
func (a *Names) ours(ctx context.Context) ([]string, error) {
	facts, err := a.Store.RecordFacts(ctx, a.Zone, a.SiteDomain)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range facts.Edges {
		out = append(out, e.Addresses()...)
	}
	return out, nil
}

func (a *Names) look(ctx context.Context, d org.Domain, ours []string) org.DomainAnswer {
	look := org.DomainAnswer{At: time.Now().UTC().Truncate(time.Microsecond)}
	texts, err := a.Resolver.TXT(ctx, d.ChallengeName())
	if err != nil {
		look.Failed = prego.Redact(err.Error())
		return look
	}
	look.TXT = texts
	// Whether it leads here is for people and for certificates: it proves nothing.
	addresses, err := a.Resolver.Addresses(ctx, d.Name)
	if err != nil {
		look.Elsewhere = "its addresses can't be looked up: " + prego.Redact(err.Error())
		return look
	}
	if d.Address != "" {
		ours = append(slices.Clone(ours), d.Address) // of its routes' environment
	}
	look.Points, look.Elsewhere = org.Leads(addresses, ours)
	return look
}

// CompareRecords compares the rows with our records at the provider. It rewrites records that
// differ and deletes records without a row, unless there are so many that the database is suspect.
func (a *Names) CompareRecords(ctx context.Context) (RecordsCompared, error) {
	var c RecordsCompared
	if a.Zone == "" {
		return c, nil
	}
	// A record made after this is no orphan: rows are written first, and read last.
	there, others, err := a.DNS.ListRecordSets(ctx, a.Zone)
	if err != nil {
		return c, fromInfra(err)
	}
	rows, err := a.Store.LiveRecords(ctx, a.Zone)
	if err != nil {
		return c, err
	}
	drifted, orphans := tenant.CompareRecords(rows, there)
	c.Owned, c.Drifted, c.Orphans = len(there), len(drifted), len(orphans)
	var try Attempts
	for _, d := range drifted {
		try.OK(a.Store.RecordDrifted(ctx, d.Row, d.There))
	}
	c.BreakerHit = tenant.TooManyOrphans(len(orphans), len(there))
	shadowed := tenant.ShadowedLabels(a.Zone, a.SiteDomain, others)
	if !try.OK(a.Store.ZoneCompared(ctx, a.Zone, c.Owned, c.Orphans, c.BreakerHit, shadowed)) {
		return c, try.Err()
	}
	if c.BreakerHit {
		a.Log.Error("records without a row are kept: there are too many, so this database may be wrong", zap.Int("orphans", len(orphans)), zap.Int("owned", len(there)))
		return c, try.Err()
	}
	for _, o := range orphans {
		a.Log.Warn("a DNS record has no row and is deleted", zap.String("record", o.Key()), zap.Strings("values", o.Values))
		try.OK(a.Store.RecordOrphaned(ctx, o))
	}
	return c, try.Err()
}

// RecordsCompared counts what a comparison found.
type RecordsCompared struct {
	Owned      int  `json:"owned"`
	Drifted    int  `json:"drifted"`
	Orphans    int  `json:"orphans"`
	BreakerHit bool `json:"breaker_hit"`
}
