package store

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

const recordColumns = `r.zone, r.name, r.type, r.ttl, r.content AS "values", r.owner, r.state, r.version, r.made, r.tries, r.error`

const sqlEdgesNow = `
SELECT server_id, COALESCE(network_id, '') AS network_id, region, host AS ipv4, ipv6, agent_status <> 'connected' OR cordoned_at IS NOT NULL AS silent
FROM servers WHERE role = 'edge' AND status = 'active' AND host <> '' ORDER BY server_id`

// Others' records, as last compared.
const sqlShadowed = `SELECT COALESCE((SELECT shadowed FROM dns_comparisons WHERE zone = $1), '{}')`

// The wildcard's target shows where home is.
const sqlSitesHome = `SELECT content[1] FROM dns_records WHERE zone = $1 AND owner = 'sites' AND state IN ('intended', 'created')`

const sqlSitesByNetwork = `
SELECT s.network_id, sum(s.tenant_count)::integer FROM servers s WHERE s.network_id IS NOT NULL AND s.role IN ('app', 'node') AND s.status <> 'terminated' GROUP BY s.network_id`

// RecordFacts reads the facts that determine the records of a zone.
func (s *Store) RecordFacts(ctx context.Context, zone, siteDomain string) (f tenant.RecordFacts, err error) {
	f = tenant.RecordFacts{Zone: zone, SiteDomain: siteDomain, Sites: make(map[prego.NetworkID]int)}
	if f.Edges, err = collect[tenant.Edge](ctx, s, "edges", sqlEdgesNow); err != nil {
		return f, err
	}
	if f.Shadowed, err = value[[]string](ctx, s.pool, sqlShadowed, zone); err != nil {
		return f, failed("shadowed names", err)
	}
	f.Shadowed = append(f.Shadowed, tenant.EdgesLabel) // the edges' names are below it
	target, err := value[string](ctx, s.pool, sqlSitesHome, zone)
	if err != nil && !isNoRows(err) {
		return f, failed("where the wildcard leads", err)
	}
	for _, e := range f.Edges {
		if target == tenant.EdgeName(string(e.NetworkID), siteDomain) {
			f.Home = e.NetworkID
		}
	}
	if f.Home != "" || len(f.Edges) == 0 {
		return f, nil // no caller needs the network with most sites
	}
	rows, err := s.pool.Query(ctx, sqlSitesByNetwork)
	if err != nil {
		return f, failed("sites by network", err)
	}
	var network prego.NetworkID
	var n int
	_, err = pgx.ForEachRow(rows, []any{&network, &n}, func() error {
		f.Sites[network] = n
		return nil
	})
	return f, failed("sites by network", err)
}

// Only the sites of networks other than home are read, and the one site whose name the wildcard does not answer for.
// An allocation has the name that its site had in the pool. During a move, resolvers get the old edges until the new
// ones know the site.
const (
	sqlSiteAnswers = `COALESCE(NULLIF(t.site, ''), t.slug || '.' || $3)`
	sqlSitesAway   = `
SELECT ` + sqlSiteAnswers + ` AS site, s.network_id FROM networks n JOIN servers s ON s.network_id = n.network_id
JOIN tenant_allocations a ON a.app_server_id = s.server_id AND a.released_at IS NULL JOIN tenants t ON t.tenant_id = a.tenant_id
WHERE n.network_id <> $1 AND NOT EXISTS (SELECT FROM tenant_moves m WHERE m.tenant_id = a.tenant_id AND m.allocation_id = a.allocation_id AND m.finished_at IS NULL
    AND m.state = 'switched' AND m.opened_at IS NULL)
UNION ALL
SELECT m.site, f.network_id FROM tenant_moves m JOIN servers f ON f.server_id = m.from_server_id
JOIN tenant_allocations a ON a.allocation_id = m.allocation_id AND a.released_at IS NULL
WHERE m.finished_at IS NULL AND m.state = 'switched' AND m.opened_at IS NULL AND f.network_id <> $1
UNION ALL
SELECT ` + sqlSiteAnswers + `, s.network_id FROM tenants t JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL JOIN servers s ON s.server_id = a.app_server_id
WHERE t.slug = ANY ($2) AND s.network_id = $1`
)

// SitesAway returns the sites in networks other than home, and those whose label is shadowed.
func (s *Store) SitesAway(
	ctx context.Context, home prego.NetworkID, shadowed []string, siteDomain string,
) ([]tenant.SiteAt, error) {
	return collect[tenant.SiteAt](ctx, s, "sites away from home", sqlSitesAway, home, shadowed, siteDomain)
}

// The wanted records are compared with the rows in one statement each: new or changed ones, and those no longer
// wanted. Unchanged rows are not locked. The planner holds the zone.
const (
	sqlHoldZone    = `SELECT pg_advisory_xact_lock(hashtextextended('prego/zone/' || $1, 0))`
	sqlWantRecords = `
INSERT INTO dns_records AS r (zone, name, type, ttl, content, owner, state)
SELECT $1, w.name, w.type, w.ttl, string_to_array(w.content, ' '), w.owner, 'intended'
FROM unnest($2::text[], $3::text[], $4::integer[], $5::text[], $6::text[]) w (name, type, ttl, content, owner)
WHERE NOT EXISTS (SELECT FROM dns_records h WHERE h.zone = $1 AND h.name = w.name AND h.type = w.type AND h.state IN ('intended', 'created')
    AND h.ttl = w.ttl AND h.content = string_to_array(w.content, ' ') AND h.owner = w.owner)
ON CONFLICT (zone, name, type) DO UPDATE SET ttl = excluded.ttl, content = excluded.content, owner = excluded.owner, state = 'intended', version = r.version + 1,
    next_try = now(), changed_at = now(), error = ''
WHERE r.state IN ('releasing', 'released') OR r.ttl <> excluded.ttl OR r.content <> excluded.content OR r.owner <> excluded.owner`
	sqlUnwantRecords = `
UPDATE dns_records r SET state = 'releasing', version = r.version + 1, next_try = now(), changed_at = now(), error = ''
WHERE r.zone = $1 AND r.owner IN ('edges', 'sites', 'site') AND r.state IN ('intended', 'created')
  AND NOT EXISTS (SELECT FROM unnest($2::text[], $3::text[]) w (name, type) WHERE w.name = r.name AND w.type = r.type)`
	sqlForgetDepartures = `DELETE FROM dns_departures WHERE until < now() - interval '1 day'`
)

// WantRecords stores the records that a zone should have for edges and sites; changed is how many record sets must be
// created, changed or deleted for it. Challenges are not touched. A record that the database rejects is left out.
func (s *Store) WantRecords(ctx context.Context, zone string, wanted []server.DNSRecord) (changed int, err error) {
	keep := func(part []server.DNSRecord) error {
		n, err := s.wantRecords(ctx, zone, part, wanted)
		changed += n
		return err
	}
	if len(wanted) == 0 {
		return changed, keep(nil)
	}
	name := func(r server.DNSRecord) string { return r.FQDN() + " " + string(r.Type) }
	_, err = siftNoted(ctx, s, batchDNSRecords, wanted, name, keep)
	return changed, err
}

// wantRecords stores a part of the wanted records. A record is deleted only if no part has it.
func (s *Store) wantRecords(
	ctx context.Context, zone string, part, all []server.DNSRecord,
) (changed int, err error) {
	var names, types, contents, owners, kept, keptTypes []string
	var ttls []int
	for _, w := range part {
		names, types, ttls = append(names, w.Name), append(types, string(w.Type)), append(ttls, w.TTL)
		contents, owners = append(contents, joined(w.Values)), append(owners, string(w.Owner))
	}
	for _, w := range all {
		kept, keptTypes = append(kept, w.Name), append(keptTypes, string(w.Type))
	}
	err = s.inTx(ctx, "records of "+zone, func(tx *txn) error {
		tx.run(ctx, sqlHoldZone, zone)
		a, err := tx.Exec(ctx, sqlWantRecords, zone, names, types, ttls, contents, owners)
		if err != nil {
			return err
		}
		b, err := tx.Exec(ctx, sqlUnwantRecords, zone, kept, keptTypes)
		if err != nil {
			return err
		}
		changed = int(a.RowsAffected() + b.RowsAffected())
		tx.run(ctx, sqlForgetDepartures)
		return nil
	})
	if err != nil {
		changed = 0
	}
	return changed, err
}

// joined puts addresses and names, which have no spaces, into one text.
func joined(values []string) string {
	out := ""
	for i, v := range values {
		if i > 0 {
			out += " "
		}
		out += v
	}
	return out
}

const sqlRecordsDue = `
SELECT EXISTS (SELECT FROM dns_records WHERE zone = $1 AND state IN ('intended', 'releasing') AND next_try <= now() AND (taken_until IS NULL OR taken_until <= now()))`

// RecordsDue reports whether some record set must be written or deleted.
func (s *Store) RecordsDue(ctx context.Context, zone string) (bool, error) {
	due, err := value[bool](ctx, s.pool, sqlRecordsDue, zone)
	return due, failed("records due", err)
}

// Addresses go before aliases. A record set is noted before it is sent. A try is RecordNew when nothing was ever
// sent, and RecordUnsure when an earlier try may have succeeded.
const takeRecord = `
    SET taken_until = now() + make_interval(secs => $2), tries = r.tries + 1,
    sent = CASE r.state WHEN 'intended' THEN ARRAY(SELECT unnest(r.sent || r.content) ORDER BY 1) ELSE r.sent END`

const (
	sqlTakeRecords = `
UPDATE dns_records r` + takeRecord + `
WHERE (r.zone, r.name, r.type) IN (SELECT zone, name, type FROM dns_records
    WHERE zone = $1 AND state IN ('intended', 'releasing') AND next_try <= now() AND (taken_until IS NULL OR taken_until <= now())
    ORDER BY owner IN ('site', 'sites'), next_try LIMIT $3 FOR UPDATE SKIP LOCKED)
RETURNING ` + recordColumns
	sqlTakeRecord = `
UPDATE dns_records r` + takeRecord + `
WHERE r.zone = $1 AND r.name = $3 AND r.type = $4 AND r.state IN ('intended', 'releasing') AND (r.taken_until IS NULL OR r.taken_until <= now())
RETURNING ` + recordColumns
)

// TakeRecords takes due record sets, addresses first. No other caller has them for as long as the lease.
func (s *Store) TakeRecords(ctx context.Context, zone string, limit int, lease time.Duration) ([]server.DNSRecord, error) {
	out, err := collect[server.DNSRecord](ctx, s, "records to apply", sqlTakeRecords, zone, lease.Seconds(), limit)
	// An UPDATE returns rows in no particular order.
	last := func(r server.DNSRecord) int {
		if r.Owner == server.RecordOfSite || r.Owner == server.RecordOfSites {
			return 1
		}
		return 0
	}
	slices.SortFunc(out, func(a, b server.DNSRecord) int {
		return cmp.Or(cmp.Compare(last(a), last(b)), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Type, b.Type))
	})
	return out, err
}

// TakeRecord takes one record set, if it must be applied and no other caller has it.
func (s *Store) TakeRecord(ctx context.Context, r server.RecordSet, lease time.Duration) (*server.DNSRecord, error) {
	return find[server.DNSRecord](ctx, s.pool, sqlTakeRecord, r.Zone, lease.Seconds(), r.Name, r.Type)
}

// Values that the provider no longer has may stay in caches for their TTL.
const (
	sqlRecordDeparts = `
INSERT INTO dns_departures AS d (address, until)
SELECT DISTINCT v, now() + make_interval(secs => r.ttl) FROM dns_records r CROSS JOIN LATERAL unnest(r.sent) v
WHERE r.zone = $1 AND r.name = $2 AND r.type = $3 AND r.type IN ('A', 'AAAA') AND NOT v = ANY ($4::text[])
ON CONFLICT (address) DO UPDATE SET until = GREATEST(d.until, excluded.until)`
	sqlRecordApplied = `
UPDATE dns_records r SET sent = $4::text[], made = $5, tries = 0, applied_at = now(), taken_until = NULL, error = '',
    state = CASE WHEN r.version <> $6 THEN r.state WHEN r.state = 'releasing' THEN 'released' ELSE 'created' END
WHERE r.zone = $1 AND r.name = $2 AND r.type = $3`
	sqlRecordFailed = `
UPDATE dns_records r SET taken_until = NULL, error = $4, next_try = CASE WHEN r.version = $5 THEN now() + make_interval(secs => $6) ELSE now() END
WHERE r.zone = $1 AND r.name = $2 AND r.type = $3`
)

// RecordApplied notes that the provider has a record set as it was when taken.
func (s *Store) RecordApplied(ctx context.Context, r server.DNSRecord) error {
	has := r.Values
	if r.State == server.ResourceReleasing {
		has = []string{}
	}
	return s.inTx(ctx, "record "+r.Key(), func(tx *txn) error {
		tx.run(ctx, sqlRecordDeparts, r.Zone, r.Name, r.Type, has)
		tx.run(ctx, sqlRecordApplied, r.Zone, r.Name, r.Type, has, r.State != server.ResourceReleasing, r.Version)
		return nil
	})
}

// RecordFailed notes why a record set could not be applied, and when it is tried again.
func (s *Store) RecordFailed(ctx context.Context, r server.DNSRecord, why string, again time.Duration) error {
	return s.exec(ctx, "record "+r.Key(), sqlRecordFailed, r.Zone, r.Name, r.Type, prego.Redact(why), r.Version, again.Seconds())
}

// The name of a challenge may have several values.
const (
	sqlAddChallenge = `
INSERT INTO dns_records AS r (zone, name, type, ttl, content, owner, state) VALUES ($1, $2, 'TXT', $3, ARRAY[$4::text], 'challenge', 'intended')
ON CONFLICT (zone, name, type) DO UPDATE SET state = 'intended', version = r.version + 1, next_try = now(), changed_at = now(), error = '', owner = 'challenge', ttl = excluded.ttl,
    content = CASE WHEN r.state IN ('releasing', 'released') THEN excluded.content ELSE ARRAY(SELECT DISTINCT v FROM unnest(r.content || excluded.content) v ORDER BY v) END
WHERE r.state IN ('releasing', 'released') OR NOT r.content @> excluded.content`
	sqlRemoveChallenge = `
UPDATE dns_records r SET version = r.version + 1, next_try = now(), changed_at = now(), error = '',
    content = CASE WHEN r.content = ARRAY[$3::text] THEN r.content ELSE array_remove(r.content, $3) END,
    state = CASE WHEN r.content = ARRAY[$3::text] THEN 'releasing' ELSE 'intended' END
WHERE r.zone = $1 AND r.name = $2 AND r.type = 'TXT' AND r.owner = 'challenge' AND r.state IN ('intended', 'created') AND r.content @> ARRAY[$3::text]`
	sqlGetRecord = `SELECT ` + recordColumns + ` FROM dns_records r WHERE r.zone = $1 AND r.name = $2 AND r.type = $3`
)

// AddChallenge stores a text to publish at a name.
func (s *Store) AddChallenge(ctx context.Context, zone, name, text string) error {
	return s.exec(ctx, "challenge at "+name, sqlAddChallenge, zone, name, tenant.ChallengeTTL, text)
}

// RemoveChallenge stores that a text must no longer be published at a name.
func (s *Store) RemoveChallenge(ctx context.Context, zone, name, text string) error {
	return s.exec(ctx, "challenge at "+name, sqlRemoveChallenge, zone, name, text)
}

// GetRecord reads a row; nil when there is none.
func (s *Store) GetRecord(ctx context.Context, r server.RecordSet) (*server.DNSRecord, error) {
	return find[server.DNSRecord](ctx, s.pool, sqlGetRecord, r.Zone, r.Name, r.Type)
}

const sqlLiveRecords = `SELECT ` + recordColumns + ` FROM dns_records r WHERE r.zone = $1 AND r.state <> 'released' ORDER BY r.name, r.type`

// LiveRecords returns all rows of a zone whose record sets may be at the provider.
func (s *Store) LiveRecords(ctx context.Context, zone string) ([]server.DNSRecord, error) {
	return collect[server.DNSRecord](ctx, s, "records of "+zone, sqlLiveRecords, zone)
}

const (
	sqlRecordDrifted = `
UPDATE dns_records r SET state = 'intended', version = r.version + 1, next_try = now(), changed_at = now(), sent = ARRAY(SELECT DISTINCT unnest(r.sent || $4::text[]) ORDER BY 1)
WHERE r.zone = $1 AND r.name = $2 AND r.type = $3 AND r.state = 'created' AND r.version = $5`
	sqlRecordOrphaned = `
INSERT INTO dns_records AS r (zone, name, type, ttl, content, sent, owner, state, made) VALUES ($1, $2, $3, $4, $5, $5, $6, 'releasing', true)
ON CONFLICT (zone, name, type) DO UPDATE SET state = 'releasing', version = r.version + 1, next_try = now(), changed_at = now(), made = true,
    sent = ARRAY(SELECT DISTINCT unnest(r.sent || excluded.sent) ORDER BY 1)
WHERE r.state = 'released'`
)

// RecordDrifted schedules a record set to be written again, because the provider lacks or differs from it.
func (s *Store) RecordDrifted(ctx context.Context, r server.DNSRecord, there []string) error {
	return s.exec(ctx, "record "+r.Key(), sqlRecordDrifted, r.Zone, r.Name, r.Type, there, r.Version)
}

// RecordOrphaned deletes an unwanted record set of ours.
func (s *Store) RecordOrphaned(ctx context.Context, r server.RecordSet) error {
	owner := server.RecordOfEdges
	switch r.Type {
	case server.RecordCNAME:
		owner = server.RecordOfSite
	case server.RecordTXT:
		owner = server.RecordOfChallenge
	case server.RecordA, server.RecordAAAA:
	}
	return s.exec(ctx, "record "+r.Key(), sqlRecordOrphaned, r.Zone, r.Name, r.Type, max(r.TTL, server.MinRecordTTL), r.Values, owner)
}

const sqlZoneCompared = `
INSERT INTO dns_comparisons AS z (zone, compared_at, owned, orphans, shadowed, breaker_since)
VALUES ($1, now(), $2, $3, $5, CASE WHEN $4 THEN now() END)
ON CONFLICT (zone) DO UPDATE SET compared_at = now(), owned = $2, orphans = $3, shadowed = $5, breaker_since = CASE WHEN $4 THEN COALESCE(z.breaker_since, now()) END`

// ZoneCompared records the result of a comparison of a zone with the rows, and whether it differs too much to delete
// anything. shadowed are tenant.ShadowedLabels of others' names.
func (s *Store) ZoneCompared(
	ctx context.Context, zone string, owned, orphans int, tripped bool, shadowed []string,
) error {
	return s.exec(ctx, "comparison of "+zone, sqlZoneCompared, zone, owned, orphans, tripped, filled(shadowed))
}

const (
	sqlRecordsNaming  = `SELECT ` + recordColumns + ` FROM dns_records r WHERE r.sent && $1::text[] AND r.type IN ('A', 'AAAA')`
	sqlAddressDeparts = `SELECT COALESCE(EXTRACT(EPOCH FROM max(until) - now()), 0)::float8 FROM dns_departures WHERE address = ANY ($1::text[])`
	sqlEdgeInDNS      = `SELECT server_id, COALESCE(network_id, '') AS network_id, region, host AS ipv4, ipv6, false AS silent FROM servers WHERE server_id = $1`
)

// RecordsNaming returns the record sets that may name an address at the provider.
func (s *Store) RecordsNaming(ctx context.Context, addresses []string) ([]server.DNSRecord, error) {
	return collect[server.DNSRecord](ctx, s, "records of an address", sqlRecordsNaming, addresses)
}

// AddressDeparts returns how long resolvers may still have one of the addresses; 0 or less when they may not.
func (s *Store) AddressDeparts(ctx context.Context, addresses []string) (time.Duration, error) {
	seconds, err := value[float64](ctx, s.pool, sqlAddressDeparts, addresses)
	return time.Duration(seconds * float64(time.Second)), failed("departure of an address", err)
}

// EdgeOf returns a server as records name it.
func (s *Store) EdgeOf(ctx context.Context, id prego.ServerID) (tenant.Edge, error) {
	return get[tenant.Edge](ctx, s.pool, prego.Errorf(prego.CodeNotFound, "there is no server %q", id), sqlEdgeInDNS, id)
}
