package world

import (
	"bytes"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/proto"

	"github.com/prego/prego/agent/wire"
)

// plainKey is how a private key begins that is not sealed.
const plainKey = "PRIVATE KEY"

// alwaysOfNames are statements about names and certificates that must find nothing, as [always].
var alwaysOfNames = []invariant{
	{
		"I2 a name has one tenant",
		`SELECT name FROM domains WHERE status = 'verified' AND deleted_at IS NULL GROUP BY name HAVING count(*) > 1`,
	},
	{
		"I10 a verified name has its event",
		`SELECT domain_id FROM domains d WHERE status = 'verified' AND NOT EXISTS (SELECT FROM org_events e
			WHERE e.org_id = d.org_id AND e.subject = d.domain_id AND e.type = 'domain.verified')`,
	},
	{
		"I10 an issued certificate has its event",
		`SELECT certificate_id FROM certificates c WHERE version > 0 AND org_id IS NOT NULL
			AND NOT EXISTS (SELECT FROM org_events e WHERE e.subject = c.certificate_id
			AND e.type = 'certificate.issued')`,
	},
	// Only edges count that were alive at that moment and have asked for nothing since. A site may go down afterwards.
	// What edges found is not in the redo log: a restored database has forgotten it.
	{
		"I9 a tenant is active when an edge finds its site up",
		`SELECT t.tenant_id FROM tenants t JOIN tenant_allocations a ON a.tenant_id = t.tenant_id
			AND a.released_at IS NULL JOIN servers s ON s.server_id = a.app_server_id
			JOIN edges e ON e.network = COALESCE(s.network_id, s.region)
			JOIN servers p ON p.server_id = e.server_id AND p.status = 'active'
		WHERE t.state = 'active' AND t.updated_at = t.active_at AND e.asked_at < t.active_at
			AND e.asked_at > t.active_at - interval '35 s' AND NOT EXISTS (SELECT FROM redo WHERE epoch > 0)
			AND NOT EXISTS (SELECT FROM site_health h WHERE h.tenant_id = t.tenant_id AND (h.up OR h.since > t.active_at))`,
	},
	{
		"I4 no key outlives its order or certificate",
		`SELECT order_id FROM acme_orders WHERE ended_at IS NOT NULL AND sealed_key IS NOT NULL
			UNION ALL SELECT certificate_id FROM certificates WHERE status = 'retired' AND sealed_key IS NOT NULL`,
	},
	{
		"I9 a certificate that is served has its key",
		`SELECT certificate_id FROM certificates WHERE status = 'active' AND (sealed_key IS NULL OR chain_pem = '')`,
	},
	{"I6 no private key is in plain", `SELECT k.of FROM (SELECT certificate_id AS of, sealed_key FROM certificates
		UNION ALL SELECT order_id, sealed_key FROM acme_orders UNION ALL SELECT account_id, sealed_key
		FROM acme_accounts) k
		WHERE position('\x` + hex.EncodeToString([]byte(plainKey)) + `'::bytea IN k.sealed_key) > 0`},
	{
		"I3 the account of the authority's limits is kept",
		`SELECT bucket FROM acme_budgets WHERE tokens < 0 OR tokens > capacity`,
	},
	{
		"I3 an order is taken out of the account",
		`SELECT b.bucket FROM acme_budgets b JOIN (SELECT max(created_at) AS at FROM acme_orders
			WHERE replaces = '') o ON o.at IS NOT NULL
		WHERE b.bucket LIKE '%/orders/%' AND b.tokens > b.capacity - 1 + b.refill_per_s * EXTRACT(EPOCH
		FROM b.refilled_at - o.at) + 0.001`,
	},
}

// records are the rows of what may be in the zone, and the addresses of edges that may be there.
var records = invariant{"I1 records", `SELECT 'record ' || name || ' ' || type FROM dns_records
	WHERE state <> 'released' UNION ALL SELECT 'address ' || host FROM servers WHERE role = 'edge'
	AND status <> 'terminated' AND host <> ''`}

// checkRecords compares the zone with the rows at any moment: a row exists before its record set, and until that is
// gone; and none has an address that its edge has lost, which may belong to another customer.
func (w *World) checkRecords(named []string) {
	known := map[string]bool{}
	for _, row := range named {
		known[row] = true
	}
	zone := w.names.zone()
	for _, key := range slices.Sorted(maps.Keys(zone)) {
		if !known["record "+key] {
			w.violationf("I1 a record has a row: %s %v", key, zone[key])
		}
		for _, value := range zone[key] {
			if strings.HasSuffix(key, " A") && !known["address "+value] {
				w.violationf("I5 a record leads to an edge that is there: %s %s", key, value)
			}
		}
	}
}

// openOfNames find unfinished work, as [open].
var openOfNames = []invariant{
	{"records", `SELECT name || ' ' || type || ' ' || state FROM dns_records WHERE state IN ('intended', 'releasing')`},
	{"certificates", `SELECT certificate_id || ' ' || status || ' ' || reason FROM certificates
		WHERE status IN ('pending', 'failed') AND renews`},
	{"orders", `SELECT order_id || ' ' || state FROM acme_orders WHERE ended_at IS NULL`},
	{"challenges", `SELECT order_id || ' ' || name FROM acme_challenges WHERE removed_at IS NULL`},
	{
		"ended certificates",
		`SELECT certificate_id FROM certificates WHERE status = 'active' AND renews AND not_after <= now()`,
	},
	{"names of certificates", `SELECT name FROM certificate_names_due`},
	{"names of ended tenants", `SELECT domain_id FROM domains d JOIN tenants t USING (tenant_id)
		WHERE t.state = 'data_purged' AND d.deleted_at IS NULL`},
}

// servedSite is a site as the edges of its network are to serve it.
type servedSite struct {
	tenant, state, site, network, address, name string
	own, points                                 bool
}

// unserved describes deviations from the final state: the zone matches the rows, and its names lead to edges; each edge
// serves exactly the sites of its network with their names, each with a certificate that covers it.
func (w *World) unserved(watch *pgxpool.Pool) []string {
	if !w.names.on {
		return nil
	}
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	rows, err := w.rows(watch,
		`SELECT name || ' ' || type || '|' || array_to_string(content, ' ') FROM dns_records WHERE state <> 'released'`)
	if err != nil {
		return []string{err.Error()}
	}
	left, err := w.rows(watch, `SELECT name FROM dns_records WHERE owner = 'challenge' AND state = 'created'`)
	if err != nil {
		return []string{err.Error()}
	}
	for _, name := range left {
		say("%s answers a challenge that is over", name)
	}
	zone := w.names.zone()
	for _, row := range rows {
		key, content, _ := strings.Cut(row, "|")
		if got := valuesOf(zone[key]); got != content {
			say("record %s is %q, and not %q", key, got, content)
		}
		delete(zone, key)
	}
	for key := range zone {
		say("record %s has no owner", key)
	}
	edges, err := w.rows(watch, `SELECT concat_ws('|', host, COALESCE(network_id, region), server_id) FROM servers
		WHERE role = 'edge' AND status = 'active' ORDER BY 1`)
	if err != nil {
		return []string{err.Error()}
	}
	sites, err := w.servedSites(watch)
	if err != nil {
		return []string{err.Error()}
	}
	at := map[string][]string{} // addresses of edges, by network
	for _, e := range edges {
		f := strings.Split(e, "|")
		at[f[1]] = append(at[f[1]], f[0])
	}
	for _, s := range sites {
		if len(at[s.network]) == 0 || s.own {
			continue
		}
		leads := w.names.addresses(s.name)
		if len(leads) == 0 ||
			slices.ContainsFunc(leads, func(a string) bool { return !slices.Contains(at[s.network], a) }) {
			say("%s leads to %v, and its edges are at %v", s.name, leads, at[s.network])
		}
	}
	all := w.hosts.all()
	for _, e := range edges {
		f := strings.Split(e, "|")
		h := all[f[0]]
		if h == nil || h.edge == nil {
			say("edge %s serves nothing", f[2])
			continue
		}
		h.mu.Lock()
		for _, problem := range h.edge.lacks(f[1], sites) {
			say("edge %s: %s", f[2], problem)
		}
		h.mu.Unlock()
	}
	unprobed, err := w.rows(watch, notFoundUp)
	if err != nil {
		return []string{err.Error()}
	}
	out = append(out, unprobed...)
	return append(out, w.claimsNotMet(watch)...)
}

// notFoundUp are the sites that an edge should have found up, and has not.
const notFoundUp = `SELECT format('edge %s has not found %s up: %s', e.server_id, t.slug, COALESCE(h.cause, 'no verdict'))
	FROM edges e JOIN servers s ON s.server_id = e.server_id AND s.status = 'active'
	JOIN tenants t ON t.state = 'active' AND t.site <> ''
	JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL
	JOIN servers p ON p.server_id = a.app_server_id AND COALESCE(p.network_id, p.region) = e.network
	LEFT JOIN site_health h ON h.tenant_id = t.tenant_id AND h.server_id = e.server_id
	WHERE (h.up AND h.seen_from >= e.watched_from) IS NOT TRUE ORDER BY 1`

// lasting gives up on deviations without unfinished work that have lasted long after the last fault.
func (w *World) lasting(lacks string) {
	if lacks != w.lacks || !w.Faults.isStopped() {
		w.lacks, w.lackSince = lacks, time.Now()
	}
	if lacks != "" && time.Since(w.lackSince) > 25*time.Minute {
		w.violationf("names do not converge: %s", lacks)
	}
}

// valuesOf are the values of a record set as its row has them.
func valuesOf(values []string) string {
	out := slices.Clone(values)
	for i, v := range out {
		out[i] = strings.TrimSuffix(strings.Trim(v, `"`), ".")
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (w *World) servedSites(watch *pgxpool.Pool) (out []servedSite, err error) {
	found, err := w.rows(watch, `SELECT concat_ws('|', t.tenant_id, t.state, t.site, COALESCE(s.network_id, s.region), host(s.private_address), n.name, n.own, n.points)
		FROM tenants t JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL
		JOIN servers s ON s.server_id = a.app_server_id
		CROSS JOIN LATERAL (SELECT t.site AS name, false AS own, true AS points UNION ALL SELECT d.name, true, d.points
		FROM domains d WHERE d.tenant_id = t.tenant_id AND d.status = 'verified' AND d.deleted_at IS NULL) n
		WHERE t.state IN ('active', 'suspended', 'grace_period') AND t.site <> '' ORDER BY 1`)
	for _, row := range found {
		f := strings.Split(row, "|")
		out = append(out, servedSite{
			tenant: f[0], state: f[1], site: f[2], network: f[3], address: f[4], name: f[5],
			own: f[6] == "t", points: f[7] == "t",
		})
	}
	return out, err
}

// lacks are an edge's differences from its network's sites.
func (e *edgeServer) lacks(network string, sites []servedSite) (out []string) {
	hosts := map[string]wire.EdgeHost{}
	for _, h := range e.document.Hosts {
		hosts[h.Name] = h
	}
	for _, s := range sites {
		if s.network != network {
			continue
		}
		h, ok := hosts[s.name]
		delete(hosts, s.name)
		want := wire.EdgeServing
		if s.state == "suspended" {
			want = wire.EdgeMaintenance
		}
		switch {
		case !ok:
			out = append(out, s.name+" is not served")
		case h.Tenant != s.tenant || h.Site != s.site:
			out = append(out, fmt.Sprintf("%s is of %s, and served for %s", s.name, s.tenant, h.Tenant))
		case s.state != "grace_period" && h.State != want:
			out = append(out, fmt.Sprintf("%s is %s, and served as %s", s.name, s.state, h.State))
		case len(h.Upstreams) != 1 || h.Upstreams[0].Address != s.address+":8080":
			out = append(out, fmt.Sprintf("%s is at %s, and sent to %v", s.name, s.address, h.Upstreams))
		case s.points && !e.covers(s.name):
			out = append(out, s.name+" has no certificate")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		out = append(out, name+" is served without an owner")
	}
	return out
}

// covers reports whether an edge has a certificate for a name that has not ended.
func (e *edgeServer) covers(name string) bool {
	for _, c := range e.certs {
		block, _ := pem.Decode([]byte(c.Chain))
		if block == nil {
			continue
		}
		if leaf, err := x509.ParseCertificate(block.Bytes); err == nil && leaf.VerifyHostname(name) == nil &&
			time.Now().Before(leaf.NotAfter) {
			return true
		}
	}
	return false
}

// claimsNotMet are tenants' own names without their expected result.
func (w *World) claimsNotMet(watch *pgxpool.Pool) (out []string) {
	w.names.mu.Lock()
	claims := maps.Clone(w.names.claims)
	w.names.mu.Unlock()
	for _, slug := range slices.Sorted(maps.Keys(claims)) {
		name, comes := nameOf(slug), claims[slug]
		is, err := w.rows(watch, `SELECT COALESCE((SELECT d.status FROM domains d WHERE d.tenant_id = t.tenant_id
			AND d.name = $2 AND d.deleted_at IS NULL), $3) FROM tenants t WHERE t.slug = $1
			AND t.state <> 'data_purged'`, slug, name, nameGone)
		if err != nil {
			return []string{err.Error()}
		}
		of, err := w.rows(watch, `SELECT DISTINCT tenant_id FROM domains WHERE name = $1`, name)
		if err != nil {
			return []string{err.Error()}
		}
		disputed := len(of) > 1 && comes == nameVerified // the first claim has it
		if len(is) > 0 && is[0] != comes && !disputed {
			out = append(out, fmt.Sprintf("%s is %s, and must be %s", name, is[0], comes))
		}
	}
	left, err := w.rows(watch, `SELECT c.certificate_id || ' ' || n FROM certificates c
		CROSS JOIN LATERAL unnest(c.names) n WHERE c.status <> 'retired' AND c.challenge = 'http-01'
		AND NOT EXISTS (SELECT FROM domains d WHERE d.name = n AND d.deleted_at IS NULL)`)
	if err != nil {
		return []string{err.Error()}
	}
	for _, f := range left {
		out = append(out, "a certificate without an owner: "+f)
	}
	return out
}

// finalOfNames asks what must be so of names in the end: no private key is anywhere but on edges.
func (w *World) finalOfNames(watch *pgxpool.Pool) {
	if !w.names.on {
		return
	}
	tables, err := w.rows(watch, `SELECT string_agg(format('SELECT %L FROM %I t WHERE t::text ~ %L', relname, relname, $1::text), ' UNION ALL ') FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace`,
		plainKey+"|"+hex.EncodeToString([]byte(plainKey)))
	if err != nil || len(tables) != 1 {
		w.violationf("final: %v", err)
		return
	}
	found, err := w.rows(watch, tables[0])
	if err != nil || len(found) > 0 {
		w.violationf("I6 a private key is in plain in %v: %v", found, err)
	}
	for _, run := range w.Frontend.Histories() {
		raw, err := proto.Marshal(run.Events)
		// As text, and as JSON has bytes.
		if err == nil && (bytes.Contains(raw, []byte(plainKey)) ||
			bytes.Contains(raw, []byte("LS0tLS1CRUdJTiBQUklWQVRF"))) {
			w.violationf("I6 a private key is in the history of %s", run.WorkflowID)
		}
	}
	for _, q := range []string{
		`SELECT 'domain ends ' || status || CASE WHEN deleted_at IS NULL THEN '' ELSE ', given up' END FROM domains`,
		`SELECT 'certificate ends ' || status FROM certificates`,
		`SELECT 'order ends ' || state || ' ' || reason FROM acme_orders`,
		`SELECT 'record of ' || owner || ' ends ' || state FROM dns_records`,
		`SELECT 'certificate was waited for: ' || reason FROM certificates WHERE reason <> ''`,
	} {
		found, err := w.rows(watch, q)
		if err != nil {
			w.violationf("final: %v", err)
		}
		for _, f := range found {
			w.Met(f)
		}
	}
}
