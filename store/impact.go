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
}

const (
	// What is not destroyed, behind its class.
	notLost = `0::bigint AS bytes, NULL::timestamptz AS copy_at`

	// A tenant's site with its data.
	lostSite = `'site' AS kind, t.tenant_id AS id, t.site AS name, t.org_id, 'destroys' AS class,
    COALESCE((SELECT u.database_bytes + u.files_bytes FROM site_usage u WHERE u.tenant_id = t.tenant_id), 0) AS bytes,
    ` + newestTaken + ` AS copy_at`

	// Whether an instance i of a group g leaves its group without a running one until it runs elsewhere.
	stopsFirst = `((g.no_surge
        OR EXISTS (SELECT FROM volume_attachments a WHERE a.group_id = g.group_id AND a.deleted_at IS NULL))
    AND NOT EXISTS (SELECT FROM instances o
        WHERE o.group_id = g.group_id AND o.state = 'running' AND o.server_id <> i.server_id))`
)

// What servers have: the tenants with a place there, instances that are not stopped and attached volumes. $2 is what
// happens to tenants: none, moves, interrupts or destroys, which includes the sites whose files or database are there.
// Instances move, unless all is destroyed.
const sqlOnServers = `
SELECT 'tenant' AS kind, t.tenant_id AS id, t.slug AS name, t.org_id,
    CASE $2::text WHEN 'moves' THEN 'moves' ELSE 'interrupts' END AS class, ` + notLost + `
    FROM tenants t
    WHERE $2 <> 'none' AND t.tenant_id IN (SELECT w.tenant_id FROM tenant_places w WHERE w.server_id = ANY ($1))
UNION ALL SELECT ` + lostSite + `
    FROM tenant_allocations a JOIN tenants t ON t.tenant_id = a.tenant_id
    LEFT JOIN db_shards d ON d.shard_id = a.db_shard_id
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
UNION ALL SELECT ` + lostSite + ` FROM tenants t WHERE $2 = 'destroys' AND t.tenant_id = $1 AND t.site <> ''
ORDER BY kind`

// A backup, and the next newest usable one of the same tenant or volume.
const sqlOfBackup = `
SELECT 'backup' AS kind, b.backup_id AS id, b.site AS name, b.org_id, 'destroys' AS class, b.bytes,
    (SELECT max(o.taken_at) FROM backups o
        WHERE (o.tenant_id = b.tenant_id OR o.volume_id = b.volume_id) AND o.backup_id <> b.backup_id
        AND backup_is_usable(o.state, o.missing_at, o.verify_message)) AS copy_at
FROM backups b WHERE b.backup_id = $1 AND b.state <> 'deleted'`

const sqlOfVolume = `
SELECT 'volume' AS kind, v.volume_id AS id, v.name, v.org_id, 'destroys' AS class, v.size_bytes AS bytes,
    (SELECT max(b.taken_at) FROM backups b WHERE b.volume_id = v.volume_id AND ` + usableBackup + `) AS copy_at
FROM volumes v WHERE v.volume_id = $1`

const sqlOfGroup = `
SELECT 'instance' AS kind, i.instance_id AS id, g.name, i.org_id, 'interrupts' AS class, ` + notLost + `
FROM instances i JOIN process_groups g ON g.group_id = i.group_id WHERE i.group_id = $1 AND i.state <> 'stopped'
ORDER BY i.instance_id`

// impactOf reads what a change affects.
func impactOf(ctx context.Context, tx *txn, i impact.Impact, sql string, args ...any) impact.Impact {
	i.Affected, i.Destroyed = []impact.Thing{}, []impact.Loss{}
	for _, t := range manyIn[touched](ctx, tx, sql, args...) {
		if t.Class == impact.Destroys {
			l := impact.Loss{Kind: t.Kind, ID: t.ID, Name: t.Name, OrgID: t.OrgID, Bytes: t.Bytes, CopyAt: t.CopyAt}
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
	t.demand(ctx, id, impactOf(ctx, t, impact.Impact{Undo: undo}, sql, append([]any{id}, args...)...))
}

// demandsOf is demands of a change that affects what servers have.
func (t *txn) demandsOf(ctx context.Context, undo, id string, servers []prego.ServerID, tenants impact.Class) {
	t.demand(ctx, id, impactOf(ctx, t, impact.Impact{Undo: undo}, sqlOnServers, servers, tenants))
}

func (t *txn) demand(ctx context.Context, id string, i impact.Impact) {
	t.check(impact.Demand(ctx, i))
	if c := impact.Of(ctx); c != nil && c.Policy == "" && c.Impact.Digest != "" {
		t.run(ctx, sqlWriteRequestAudit, requestSetting(ctx), "impact", id, "", c.Impact)
	}
}
