package store

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/edge"
	"github.com/prego/prego/tenant"
)

// Reports of a network's edges are applied one after another: each counts what the others have not.
const sqlHoldEdges = `
SELECT server_id FROM edges WHERE network = (SELECT network FROM edges WHERE server_id = $1)
ORDER BY server_id FOR NO KEY UPDATE`

const sqlWatchOf = `SELECT watch, watch_changes FROM edges WHERE server_id = $1`

// What an earlier watch has shown is counted until its end. So is what edges of the network have shown that are gone.
const (
	sqlEndWatch = `
WITH old AS (SELECT array_agg(h.tenant_id) AS tenants, array_agg(e.watched_until) AS until
    FROM edges e JOIN servers s USING (server_id) JOIN site_health h USING (server_id)
    WHERE h.seen_from >= e.watched_from
      AND (e.server_id = $1 OR s.status = 'terminated' AND e.network = (SELECT network FROM edges WHERE server_id = $1)))
INSERT INTO site_uptime AS c (tenant_id, month, up_seconds, down_seconds, counted_until)
SELECT u.* FROM old, uncounted_uptime(old.tenants, old.until) u` + sumUptime
	sqlForgetEdges = `
DELETE FROM site_health h USING servers s, edges e WHERE s.server_id = h.server_id AND s.status = 'terminated'
  AND e.server_id = h.server_id AND e.network = (SELECT network FROM edges WHERE server_id = $1)`
)

const sumUptime = `
ON CONFLICT (tenant_id, month) DO UPDATE SET up_seconds = c.up_seconds + excluded.up_seconds,
    down_seconds = c.down_seconds + excluded.down_seconds,
    counted_until = GREATEST(c.counted_until, excluded.counted_until)`

// A watch never begins before the end of the previous one, nor ends before it began.
const sqlKeepWatch = `
UPDATE edges SET watch = $2, watch_changes = $5,
    watched_until = GREATEST(watched_until, now() - make_interval(secs => $4::bigint / 1000.0)),
    watched_from = CASE WHEN watch = $2 THEN watched_from
        ELSE GREATEST(watched_until, now() - make_interval(secs => $3::bigint / 1000.0)) END
WHERE server_id = $1`

// Ages are in milliseconds.
const sqlCountUptime = `
INSERT INTO site_uptime AS c (tenant_id, month, up_seconds, down_seconds, counted_until)
SELECT u.* FROM (SELECT array_agg(a.tenant_id) AS tenants,
        array_agg(now() - make_interval(secs => a.age / 1000.0)) AS until
    FROM unnest($1::text[], $2::bigint[]) a (tenant_id, age)) old,
    uncounted_uptime(old.tenants, old.until) u` + sumUptime

// Of a site elsewhere an edge can report only that it does not probe it. A site that is still down has been down since
// the earlier report, unless the tenant has got another site since.
const sqlKeepHealth = `
WITH c AS MATERIALIZED (
    SELECT u.tenant_id, u.state, u.cause, now() - make_interval(secs => u.age / 1000.0) AS at
    FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[]) u (tenant_id, state, cause, age)),
gone AS (DELETE FROM site_health h USING c WHERE h.server_id = $1 AND h.tenant_id = c.tenant_id AND c.state = 'gone')
INSERT INTO site_health AS h (tenant_id, server_id, up, cause, since, seen_from)
SELECT c.tenant_id, e.server_id, c.state = 'up', c.cause, c.at, GREATEST(c.at, e.watched_from)
FROM c JOIN edges e ON e.server_id = $1
JOIN tenant_allocations a ON a.tenant_id = c.tenant_id AND a.released_at IS NULL
JOIN servers s ON s.server_id = a.app_server_id AND COALESCE(s.network_id, s.region) = e.network
WHERE c.state <> 'gone'
ON CONFLICT (tenant_id, server_id) DO UPDATE SET up = excluded.up, cause = excluded.cause,
    since = CASE WHEN h.up = excluded.up AND (h.since < (SELECT t.opening_since FROM tenants t
        WHERE t.tenant_id = h.tenant_id)) IS NOT TRUE THEN h.since ELSE excluded.since END,
    seen_from = CASE WHEN h.seen_from >= (SELECT watched_from FROM edges WHERE server_id = $1)
        THEN h.seen_from ELSE excluded.seen_from END`

// watch is what is recorded of an edge's current watch.
type watch struct {
	Watch        string
	WatchChanges int
}

// siteOpen is whether the site of tenant t on server s should answer: no move, restore, release, maintenance or change
// of state stops it for a while.
const siteOpen = `t.state = 'active' AND t.converged_state = t.state AND s.status <> 'draining'
      AND NOT EXISTS (SELECT FROM tenant_moves m WHERE m.tenant_id = t.tenant_id AND m.state IN ('frozen', 'switched'))
      AND NOT EXISTS (SELECT FROM restore_jobs j WHERE j.tenant_id = t.tenant_id AND j.status = 'running')
      AND NOT EXISTS (SELECT FROM server_maintenances m
        WHERE m.server_id = s.server_id AND m.finished_at IS NULL AND m.status = 'finishing')
      AND NOT ` + offlineForRelease

// A tenant's timeline has when the first edge found its site down, and when the last one found it up again, at most
// once in ten minutes: timelines are kept forever. This runs before sqlKeepHealth, with the rows of the previous
// verdicts.
const sqlNoteHealth = `
WITH c AS MATERIALIZED (
    SELECT u.tenant_id, u.state, u.cause, now() - make_interval(secs => u.age / 1000.0) AS at
    FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[]) u (tenant_id, state, cause, age))
INSERT INTO events (kind, id, org_id, from_status, status, step, actor, reason, message)
SELECT 'tenant', t.tenant_id, t.org_id, t.state, t.state, CASE c.state WHEN 'down' THEN $6 ELSE $7 END, 'system', c.cause,
    CASE WHEN c.state = 'down' THEN 'found by edge ' || $1::text
        WHEN c.at > h.since THEN 'down for ' || date_trunc('second', c.at - h.since) ELSE '' END
FROM c JOIN edges e ON e.server_id = $1
JOIN tenants t ON t.tenant_id = c.tenant_id
JOIN tenant_allocations a ON a.tenant_id = c.tenant_id AND a.released_at IS NULL
JOIN servers s ON s.server_id = a.app_server_id AND COALESCE(s.network_id, s.region) = e.network
LEFT JOIN site_health h ON h.tenant_id = c.tenant_id AND h.server_id = $1
LEFT JOIN LATERAL (SELECT v.step, v.at FROM events v WHERE v.kind = 'tenant' AND v.id = c.tenant_id
    AND v.payload IS NULL AND v.step IN ($6, $7) ORDER BY v.seq DESC LIMIT 1) l ON true
WHERE ` + siteOpen + `
    AND CASE c.state WHEN 'down' THEN h.up IS DISTINCT FROM false AND (l.at > now() - interval '10 minutes') IS NOT TRUE
        WHEN 'up' THEN h.up IS DISTINCT FROM true AND l.step = $6 ELSE false END
    AND c.tenant_id NOT IN (SELECT h.tenant_id FROM ` + probedNow + ` WHERE NOT h.up AND h.server_id <> $1)`

const sqlOpenedSites = `SELECT tenant_id FROM tenants WHERE tenant_id = ANY ($1) AND opening_since IS NOT NULL`

// EdgeProbed records what an edge found when it probed its sites, and returns the tenants that wait until one is up. It
// is not known, and nothing is recorded, if changes that were reported earlier are missing: the database was restored
// from a backup.
func (s *Store) EdgeProbed(ctx context.Context, p edge.Probed) (known bool, opened []prego.TenantID, err error) {
	err = s.inTx(ctx, "probes of edge", func(tx *txn) error {
		tx.run(ctx, sqlHoldEdges, p.ServerID)
		asks := prego.Errorf(prego.CodeNotReady, "edge %s has not requested its document yet", p.ServerID)
		w := getIn[watch](ctx, tx, asks, sqlWatchOf, p.ServerID)
		if w.Watch != p.Watch {
			w.WatchChanges = 0
		}
		if known = p.After <= w.WatchChanges; !known || tx.err != nil {
			return tx.err
		}
		if w.Watch != p.Watch {
			tx.run(ctx, sqlEndWatch, p.ServerID)
			tx.run(ctx, sqlForgetEdges, p.ServerID)
		}
		through := max(w.WatchChanges, p.After+len(p.Changes))
		tx.run(ctx, sqlKeepWatch, p.ServerID, p.Watch, p.SinceMS, p.UntilMS, through)
		rest := p.Changes[min(w.WatchChanges-p.After, len(p.Changes)):] // the answer to an earlier report was lost
		for len(rest) > 0 && tx.err == nil {
			rest = keepHealth(ctx, tx, p.ServerID, rest)
		}
		var found []string
		for _, c := range p.Changes {
			if c.State == wire.EdgeProbeUp {
				found = append(found, c.Tenant)
			}
		}
		if len(found) > 0 {
			opened = valuesIn[prego.TenantID](ctx, tx, sqlOpenedSites, found)
		}
		return nil
	})
	return known, opened, err
}

// keepHealth applies changes of different tenants, and returns those from the first on that has one twice.
func keepHealth(ctx context.Context, tx *txn, edgeID prego.ServerID, changes []wire.EdgeProbe) (rest []wire.EdgeProbe) {
	var tenants, states, causes []string
	var ages []int64
	once := map[string]bool{}
	for i, c := range changes {
		if once[c.Tenant] {
			rest = changes[i:]
			break
		}
		once[c.Tenant] = true
		tenants, ages = append(tenants, c.Tenant), append(ages, c.AgeMS)
		states, causes = append(states, string(c.State)), append(causes, string(c.Cause))
	}
	tx.run(ctx, sqlCountUptime, tenants, ages)
	tx.run(ctx, sqlNoteHealth, edgeID, tenants, states, causes, ages, tenant.StepSiteDown, tenant.StepSiteUp)
	tx.run(ctx, sqlKeepHealth, edgeID, tenants, states, causes, ages)
	return rest
}

// probedNow joins the verdicts h of the edges e that report. After a restart of an edge a site that was down is down
// until the first verdict, which takes a few minutes at most if many sites are.
const probedNow = `site_health h
    JOIN edges e ON e.server_id = h.server_id AND e.watched_until > now() - interval '1 minute'
        AND (h.seen_from >= e.watched_from OR NOT h.up AND e.watched_from > now() - interval '5 minutes')
    JOIN servers p ON p.server_id = h.server_id AND p.status IN ('active', 'draining')`

const sqlSiteHealth = `
SELECT bool_and(h.up) AS up, COALESCE(min(h.since) FILTER (WHERE NOT h.up), max(h.since)) AS since,
    COALESCE((array_agg(h.cause ORDER BY h.since) FILTER (WHERE NOT h.up))[1], '') AS cause,
    array_agg(h.server_id ORDER BY h.server_id) AS edges,
    COALESCE(array_agg(h.server_id ORDER BY h.server_id) FILTER (WHERE NOT h.up), '{}') AS down_at
FROM ` + probedNow + ` WHERE h.tenant_id = $1 HAVING count(*) > 0`

// SiteHealth returns whether a tenant's site answers, nil if no edge probes it.
func (s *Store) SiteHealth(ctx context.Context, id prego.TenantID) (*tenant.SiteHealth, error) {
	return find[tenant.SiteHealth](ctx, s.pool, sqlSiteHealth, id)
}

// A month counts from the moment when the tenant was first active.
const sqlUptime = `
SELECT to_char(m.month, 'YYYY-MM') AS month, m.up_seconds, m.down_seconds,
    GREATEST(0, extract(epoch FROM LEAST(now(), (m.month + interval '1 month') AT TIME ZONE 'UTC')
        - GREATEST(t.active_at, m.month::timestamp AT TIME ZONE 'UTC'))
        - m.up_seconds - m.down_seconds)::float8 AS unobserved_seconds
FROM tenants t JOIN (
    SELECT u.month, sum(u.up_seconds) AS up_seconds, sum(u.down_seconds) AS down_seconds FROM (
        SELECT month, up_seconds, down_seconds FROM site_uptime WHERE tenant_id = $1
        UNION ALL SELECT month, up_seconds, down_seconds FROM uncounted_uptime(ARRAY[$1], ARRAY[now()])) u
    GROUP BY u.month) m ON true
WHERE t.tenant_id = $1 ORDER BY m.month DESC LIMIT 12`

// Uptime returns how long a tenant's site was up and down, by month, the latest first.
func (s *Store) Uptime(ctx context.Context, id prego.TenantID) ([]tenant.Uptime, error) {
	return collect[tenant.Uptime](ctx, s, "uptime of tenant", sqlUptime, id)
}
