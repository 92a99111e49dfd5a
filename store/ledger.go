package store

import (
	"github.com/prego/prego/cost"
)

// What the ledger knows of each resource besides its row: its owner, and the facts by which the
// provider bills it. A resource made for an attempt has the type and the location of that attempt; a
// server of this one may have been resized since.
const ledgerRows = `
SELECT r.resource_id::text AS ledger_id, r.provider, r.kind, COALESCE(r.provider_id, '') AS provider_id, r.name, r.server_id,
    CASE r.kind
        WHEN 'server' THEN COALESCE(CASE WHEN r.attempt = s.attempt THEN NULLIF(s.server_type, '') END, r.details ->> 'type', NULLIF(s.server_type, ''), g.server_type, '')
        WHEN 'primary_ip' THEN CASE WHEN r.name LIKE '%-ip1' THEN 'ipv6' ELSE 'ipv4' END
        WHEN 'floating_ip' THEN 'ipv4' ELSE '' END AS type,
    COALESCE(v.location, a.location, r.details ->> 'location', NULLIF(s.location, ''), CASE WHEN r.kind <> 'image' THEN g.location END, '') AS location,
    COALESCE(s.region, v.region, (SELECT e.region FROM envs e WHERE e.env_id = a.env_id), CASE WHEN r.kind <> 'image' THEN g.region END, '') AS region,
    COALESCE(v.made_bytes / 1e9, b.bytes / 1e9, CASE WHEN r.kind = 'image' THEN g.size_gb END,
        CASE WHEN r.kind = 'volume' THEN (s.spec ->> 'volume_gb')::float8 END, 0)::float8 AS size_gb,
    CASE
        WHEN r.kind = 'server' AND s.dedicated_for_tenant_id IS NOT NULL THEN 'tenant'
        WHEN r.kind = 'server' AND s.fleet_id IS NOT NULL THEN 'fleet'
        WHEN r.kind = 'server' AND s.warm_plan IS NOT NULL AND s.tenant_count = 0 THEN 'pool'
        WHEN s.server_id IS NOT NULL THEN 'server'
        WHEN a.env_id IS NOT NULL THEN 'env'
        WHEN b.tenant_id IS NOT NULL THEN 'tenant'
        WHEN COALESCE(v.org_id, b.org_id) IS NOT NULL THEN 'org'
        ELSE 'environment' END AS owner_kind,
    COALESCE(CASE WHEN r.kind = 'server' THEN COALESCE(s.dedicated_for_tenant_id, s.fleet_id, CASE WHEN s.tenant_count = 0 THEN 'warm/' || s.region || '/' || s.warm_plan END) END,
        s.server_id, a.env_id, b.tenant_id, v.org_id, b.org_id, '') AS owner_id,
    COALESCE(t.org_id, a.org_id, v.org_id, b.org_id, '') AS org_id,
    r.state, COALESCE(r.created_at, r.intended_at) AS since, r.released_at AS until
FROM resources r
LEFT JOIN servers s ON s.server_id = r.server_id
LEFT JOIN tenants t ON t.tenant_id = s.dedicated_for_tenant_id
LEFT JOIN ipv4_allocations a ON r.kind = 'floating_ip' AND r.server_id IS NULL AND a.provider = r.provider AND a.name = r.name
LEFT JOIN volumes v ON r.kind = 'volume' AND r.server_id IS NULL AND v.provider = r.provider AND v.provider_name = r.name
LEFT JOIN backups b ON r.kind = 'backup' AND b.object_key = r.name
LEFT JOIN golden_images g ON r.kind IN ('server', 'primary_ip', 'image') AND r.server_id IS NULL AND g.provider = r.provider AND position(g.image_id IN r.name) > 0`

// Resources seen at the provider that belong to no row.
const untrackedRows = `
SELECT 'untracked/' || o.kind || '/' || o.provider_id AS ledger_id, o.provider, o.kind, o.provider_id, o.name, NULL AS server_id, o.type, o.location, '' AS region, o.size_gb,
    'none' AS owner_kind, '' AS owner_id, '' AS org_id, CASE WHEN o.destroyed_at IS NULL THEN 'untracked' ELSE 'released' END AS state, COALESCE(o.made_at, o.first_seen_at) AS since, o.destroyed_at AS until
FROM orphan_sightings o
WHERE NOT EXISTS (
    SELECT FROM resources r WHERE r.provider = o.provider AND r.kind = o.kind AND r.provider_id = o.provider_id AND r.state <> 'released')`

// What providers limit and do not bill.
const freeKinds = `('firewall', 'placement_group', 'network')`

// The current price of a resource x a month, -1 if none is known.
const (
	priceNow = `CASE WHEN x.kind IN ` + freeKinds + ` THEN 0
        WHEN p.per_gb THEN round(p.monthly * x.size_gb::numeric)::bigint ELSE COALESCE(p.monthly, -1) END AS price_month,
        COALESCE(p.currency, '') AS currency`
	joinPriceNow = `LEFT JOIN provider_prices p ON p.provider = x.provider AND p.kind = x.kind AND p.type = x.type
        AND p.location IN ('', x.location) AND p.valid_to IS NULL`
)

const selectLedger = `
SELECT l.ledger_id, l.provider, l.kind, l.provider_id, l.name, l.type, l.location, l.size_gb, l.owner_kind, l.owner_id, l.org_id, l.state, l.since, l.until, l.price_month, l.currency
FROM (SELECT x.*, ` + priceNow + `
    FROM (` + ledgerRows + ` UNION ALL ` + untrackedRows + `) x
    ` + joinPriceNow + `) l`

// Ledger is the list of billed or limited resources, without released ones.
var Ledger = Listing[cost.Resource]{
	what: "the ledger", from: selectLedger,
	live: `l.state <> 'released'`, state: "state",
	filters: map[string]string{
		"kind": "l.kind", "org_id": "l.org_id", "state": "l.state", "location": "l.location",
		"owner": "(l.owner_kind = ANY ($?) OR l.owner_kind || ':' || l.owner_id = ANY ($?))",
	},
	sorts: map[string]string{"since": "l.since", "name": "l.name", "price_month": "l.price_month"},
	order: "-since",
	id:    "l.ledger_id",
}
