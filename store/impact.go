package store

import (
	"context"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
)

// touched is a row of what a change affects. What it destroys is data that is gone afterwards.
type touched struct {
	Kind, ID, Name string
	OrgID          prego.OrgID
	Class          impact.Class
	Bytes          int64
	CopyAt         *time.Time
	UnverifiedAt   *time.Time // of the newest backup, which may be the verified one
}

const (
	// What is not destroyed, behind its class.
	notLost = `0::bigint AS bytes, ` + noCopy
	noCopy  = `NULL::timestamptz AS copy_at, NULL::timestamptz AS unverified_at`
	// The newest of the backups b that follow.
	newestCopies = `max(b.taken_at) FILTER (WHERE b.verified_at IS NOT NULL) AS copy_at,
    max(b.taken_at) AS unverified_at
    FROM backups b WHERE ` + usableBackup + ` AND `

	// A tenant's site with its data.
	lostSite = `'site' AS kind, t.tenant_id AS id, COALESCE(NULLIF(t.site, ''), t.slug) AS name, t.org_id, 'destroys' AS class,
    COALESCE((SELECT u.database_bytes + u.files_bytes FROM site_usage u WHERE u.tenant_id = t.tenant_id), 0) AS bytes,
    c.copy_at, c.unverified_at`
	siteCopies = `CROSS JOIN LATERAL (SELECT ` + newestCopies + `b.tenant_id = t.tenant_id) c`

	// Whether an instance i of a group g leaves its group without a running one until it runs elsewhere.
	stopsFirst = `((g.no_surge
        OR EXISTS (SELECT FROM volume_attachments a WHERE a.group_id = g.group_id AND a.deleted_at IS NULL))
    AND NOT EXISTS (SELECT FROM instances o
        WHERE o.group_id = g.group_id AND o.state = 'running' AND o.server_id <> i.server_id))`
)

// The tenants with a place on servers. $2 is what happens to them: none, moves, interrupts or destroys.
const sqlTenantsOn = `
SELECT 'tenant' AS kind, t.tenant_id AS id, t.slug AS name, t.org_id,
    CASE $2::text WHEN 'moves' THEN 'moves' ELSE 'interrupts' END AS class, ` + notLost + `
    FROM tenants t
    WHERE $2 <> 'none' AND t.tenant_id IN (SELECT w.tenant_id FROM tenant_places w WHERE w.server_id = ANY ($1))`

// What servers have: these tenants, and if $2 destroys them the sites whose files or database are there, instances that
// are not stopped and attached volumes. Instances move, unless all is destroyed.
const sqlOnServers = sqlTenantsOn + `
UNION ALL SELECT ` + lostSite + `
    FROM tenant_allocations a JOIN tenants t ON t.tenant_id = a.tenant_id
    LEFT JOIN db_shards d ON d.shard_id = a.db_shard_id ` + siteCopies + `
    WHERE $2 = 'destroys' AND a.released_at IS NULL AND t.site <> ''
    AND (a.app_server_id = ANY ($1) OR (a.on_shard AND d.server_id = ANY ($1)))
UNION ALL SELECT 'instance', i.instance_id, g.name, i.org_id,
    CASE WHEN $2 = 'destroys' OR ` + stopsFirst + ` THEN 'interrupts' ELSE 'moves' END, ` + notLost + `
    FROM instances i JOIN process_groups g ON g.group_id = i.group_id
    WHERE i.server_id = ANY ($1) AND i.state <> 'stopped'
UNION ALL SELECT 'volume', v.volume_id, v.name, v.org_id,
    CASE $2 WHEN 'destroys' THEN 'interrupts' ELSE 'moves' END, ` + notLost + `
    FROM volumes v WHERE EXISTS (SELECT FROM servers s WHERE s.server_id = ANY ($1) AND s.provider_server_id IS NOT NULL
    AND (v.lent_to = s.server_id
        OR v.volume_id IN (SELECT a.volume_id FROM volume_attachments a WHERE a.server_id = s.server_id)))
ORDER BY kind, id`

// What a tenant has: itself, and its site if $2 destroys it.
const sqlOfTenant = `
SELECT 'tenant' AS kind, t.tenant_id AS id, t.slug AS name, t.org_id,
    CASE $2::text WHEN 'moves' THEN 'moves' ELSE 'interrupts' END AS class, ` + notLost + `
    FROM tenants t WHERE t.tenant_id = $1
UNION ALL SELECT ` + lostSite + ` FROM tenants t ` + siteCopies + `
    WHERE $2 = 'destroys' AND t.tenant_id = $1 AND (t.site <> '' OR EXISTS (
        SELECT FROM lost_data l WHERE l.tenant_id = $1 AND l.cleared_at IS NULL))
ORDER BY kind`

// Backups, and the newest usable one of the same tenant or volume that stays.
const sqlOfBackups = `
SELECT 'backup' AS kind, l.backup_id AS id, l.site AS name, l.org_id, 'destroys' AS class, l.bytes,
    c.copy_at, c.unverified_at
FROM backups l CROSS JOIN LATERAL (SELECT ` + newestCopies + `(b.tenant_id = l.tenant_id OR b.volume_id = l.volume_id)
    AND b.backup_id <> ALL ($1)) c
WHERE l.backup_id = ANY ($1) AND l.state <> 'deleted' ORDER BY l.backup_id`

const sqlOfVolume = `
SELECT 'volume' AS kind, v.volume_id AS id, v.name, v.org_id, 'destroys' AS class, v.size_bytes AS bytes,
    c.copy_at, c.unverified_at
FROM volumes v CROSS JOIN LATERAL (SELECT ` + newestCopies + `b.volume_id = v.volume_id) c WHERE v.volume_id = $1`

const sqlOfGroup = `
SELECT 'instance' AS kind, i.instance_id AS id, g.name, i.org_id, 'interrupts' AS class, ` + notLost + `
FROM instances i JOIN process_groups g ON g.group_id = i.group_id
WHERE i.group_id = $1 AND i.state NOT IN ('stopped', 'failed')
ORDER BY i.instance_id`

// Instances of an org that run one of some images, or will run it.
const sqlOfImages = `
SELECT 'instance' AS kind, i.instance_id AS id, g.name, i.org_id, 'interrupts' AS class, ` + notLost + `
FROM instances i JOIN process_groups g ON g.group_id = i.group_id
WHERE i.state <> 'stopped' AND i.spec ->> 'image' = ANY ($1) AND i.org_id = $2 ORDER BY i.instance_id`

// A golden image that a build has verified and that may be deleted. One that failed holds nothing.
const sqlOfImage = `
SELECT 'image' AS kind, g.image_id AS id, g.base_image AS name, '' AS org_id, 'destroys' AS class,
    (g.size_gb * 1e9)::bigint AS bytes, ` + noCopy + `
FROM golden_images g WHERE g.image_id = $1 AND g.status = 'ready' AND NOT g.current AND NOT ` + imageInUse

// A snapshot that is being deleted and is its site's newest copy. One whose site is elsewhere cannot be restored, and
// is none.
const sqlOfSnapshot = `
SELECT 'snapshot' AS kind, s.snapshot_id AS id, s.site AS name, s.org_id, 'destroys' AS class,
    COALESCE(s.bytes, 0) AS bytes, c.copy_at, c.unverified_at
FROM snapshots s JOIN tenants t ON t.tenant_id = s.tenant_id ` + siteCopies + `
WHERE s.snapshot_id = $1 AND ` + isKeptSnapshot + `
  AND NOT EXISTS (SELECT FROM backups b
    WHERE b.tenant_id = s.tenant_id AND b.taken_at >= s.created_at AND ` + usableBackup + `)
  AND NOT EXISTS (SELECT FROM snapshots o WHERE o.tenant_id = s.tenant_id AND o.server_id = s.server_id
    AND o.status = 'succeeded' AND (o.created_at, o.snapshot_id) > (s.created_at, s.snapshot_id))`

const sqlOfAddress = `
SELECT 'address' AS kind, a.allocation_id AS id, a.address AS name, a.org_id, 'interrupts' AS class, ` + notLost + `
FROM ipv4_allocations a WHERE a.allocation_id = $1 AND a.status = 'ready'`

// A route that is published and leads to something that runs.
const sqlOfRoute = `
SELECT 'route' AS kind, r.route_id AS id, COALESCE(NULLIF(r.hostname, ''), 'port ' || r.listen_port) AS name, r.org_id,
    'interrupts' AS class, ` + notLost + `
FROM routes r WHERE r.route_id = $1 AND r.deleted_at IS NULL
  AND (r.hostname = '' OR EXISTS (SELECT FROM domains d WHERE d.org_id = r.org_id AND d.name = r.hostname
    AND d.status = 'verified' AND d.deleted_at IS NULL))
  AND EXISTS (SELECT FROM instances i WHERE i.group_id = r.group_id AND i.state = 'running')`

// A verified name of a tenant with a site. That of a route is deleted with the last route.
const sqlOfDomain = `
SELECT 'domain' AS kind, d.domain_id AS id, d.name, d.org_id, 'interrupts' AS class, ` + notLost + `
FROM domains d JOIN tenants t ON t.tenant_id = d.tenant_id
WHERE d.domain_id = $1 AND d.status = 'verified' AND d.deleted_at IS NULL AND has_site(t.state)`

// The mail of a tenant whose site has mail settings.
const sqlOfMail = `
SELECT 'mail' AS kind, t.tenant_id AS id, t.mail ->> 'server' AS name, t.org_id, 'interrupts' AS class, ` + notLost + `
FROM tenants t WHERE t.tenant_id = $1 AND t.mail IS NOT NULL`

// A tenant whose site would be full with a lower quota of $2 GB: it becomes read-only, immediately or after a grace
// period.
const sqlOfFullSite = `
SELECT 'tenant' AS kind, t.tenant_id AS id, t.slug AS name, t.org_id, 'interrupts' AS class, ` + notLost + `
FROM tenants t JOIN site_usage u USING (tenant_id)
WHERE t.tenant_id = $1 AND has_site(t.state) AND $2 < t.storage_quota_gb
  AND u.database_bytes + u.files_bytes >= $2 * 1000000000::bigint`

// The tenants whose sites a release is going to migrate.
const sqlOfRelease = `
SELECT 'tenant' AS kind, t.tenant_id AS id, t.slug AS name, t.org_id, 'interrupts' AS class, ` + notLost + `
FROM stack_release_servers v
JOIN tenant_allocations a ON a.app_server_id = v.server_id AND a.released_at IS NULL
JOIN tenants t ON t.tenant_id = a.tenant_id
WHERE v.release = $1 AND v.status IN ('pending', 'updating') AND has_site(t.state) ORDER BY id`

// impactOf reads what a change affects.
func impactOf(ctx context.Context, tx *txn, i impact.Impact, sql string, args ...any) impact.Impact {
	i.Affected, i.Destroyed = []impact.Thing{}, []impact.Loss{}
	for _, t := range manyIn[touched](ctx, tx, sql, args...) {
		if t.Class == impact.Destroys {
			l := impact.Loss{Kind: t.Kind, ID: t.ID, Name: t.Name, OrgID: t.OrgID, Bytes: t.Bytes, CopyAt: t.CopyAt}
			if t.UnverifiedAt != nil && (t.CopyAt == nil || t.UnverifiedAt.After(*t.CopyAt)) {
				l.UnverifiedAt = t.UnverifiedAt
			}
			i.Destroyed = append(i.Destroyed, l)
		} else {
			a := impact.Thing{Kind: t.Kind, ID: t.ID, Name: t.Name, OrgID: t.OrgID, Class: t.Class}
			i.Affected = append(i.Affected, a)
		}
	}
	return i
}

// demands ends the transaction with impact.NotAccepted unless the impact of the change on a thing was accepted. The
// statement reads what is affected, by the thing's id. What a caller accepted is in the audit.
func (t *txn) demands(ctx context.Context, undo, id, sql string, args ...any) {
	t.demandsAs(ctx, impact.Impact{Undo: undo}, id, sql, args...)
}

// demandsAs is demands of an impact with figures.
func (t *txn) demandsAs(ctx context.Context, i impact.Impact, id, sql string, args ...any) {
	t.demand(ctx, id, impactOf(ctx, t, i, sql, append([]any{id}, args...)...))
}

// demandsOf is demands of a change that affects what servers have.
func (t *txn) demandsOf(
	ctx context.Context, i impact.Impact, id string, servers []prego.ServerID, tenants impact.Class,
) {
	t.demand(ctx, id, impactOf(ctx, t, i, sqlOnServers, servers, tenants))
}

// MayRemoveMail refuses the removal of a site's mail settings unless its impact was accepted.
func (s *Store) MayRemoveMail(ctx context.Context, id prego.TenantID) error {
	return s.inTx(ctx, "mail of tenant "+string(id), func(tx *txn) error {
		tx.demands(ctx, "set the mail server again, with its password", string(id), sqlOfMail)
		return nil
	})
}

// MayRepair refuses the repair of a server's containers unless its impact was accepted. Its host decides which it
// recreates: it may be any.
func (s *Store) MayRepair(ctx context.Context, id prego.ServerID) error {
	return s.inTx(ctx, "containers of server "+string(id), func(tx *txn) error {
		on := impactOf(ctx, tx, impact.Impact{}, sqlTenantsOn, []prego.ServerID{id}, impact.Interrupts)
		tx.demand(ctx, string(id), on)
		return nil
	})
}

// MayExec refuses a caller's command on a host unless its impact was accepted: that on the tenant whose site it names,
// otherwise on all of the server.
func (s *Store) MayExec(ctx context.Context, id prego.ServerID, of prego.TenantID, class impact.Class) error {
	return s.inTx(ctx, "command on server "+string(id), func(tx *txn) error {
		sql, on := sqlTenantsOn, any([]prego.ServerID{id})
		if of != "" {
			sql, on = sqlOfTenant, of
		}
		tx.demand(ctx, string(id), impactOf(ctx, tx, impact.Impact{}, sql, on, class))
		return nil
	})
}

func (t *txn) demand(ctx context.Context, id string, i impact.Impact) {
	err := impact.Demand(ctx, i)
	t.limited(ctx) // what a token may not do needs no acceptance
	t.check(err)
	switch c := impact.Of(ctx); {
	case c == nil || c.Impact.Digest == "":
	case c.Standing && c.Impact.Class == impact.Destroys && !valueIn[bool](ctx, t, sqlStandingAcceptance, c.Policy, id):
		t.check(&impact.NotAccepted{Impact: c.Impact})
	case c.Policy == "":
		t.run(ctx, sqlWriteRequestAudit, requestSetting(ctx), "impact", id, "", c.Impact)
	}
}

// acceptedNow is what a run keeps of the impact that the context's caller has just accepted, to compare it with the
// impact of later steps; nil without a caller.
func acceptedNow(ctx context.Context) *impact.Impact {
	c := impact.Of(ctx)
	if c == nil || c.Policy != "" {
		return nil
	}
	accepted := c.Impact.Asking()
	return &accepted
}

const sqlStandingAcceptance = `SELECT EXISTS (SELECT FROM standing_acceptances a WHERE a.policy = $1 AND a.id = $2)`
