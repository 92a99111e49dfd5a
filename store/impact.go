package store

import (
	"context"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
)

// touched is a row of what a change affects. Lost rows are data that is gone afterwards.
type touched struct {
	Kind, ID, Name string
	OrgID          prego.OrgID
	Lost           bool
	Bytes          int64
	CopyAt         *time.Time
}

const notLost = `false AS lost, 0::bigint AS bytes, NULL::timestamptz AS copy_at`

// A tenant's site with its data.
const lostSite = `'site' AS kind, t.tenant_id AS id, t.site AS name, t.org_id, true AS lost,
    COALESCE((SELECT u.database_bytes + u.files_bytes FROM site_usage u WHERE u.tenant_id = t.tenant_id), 0) AS bytes,
    ` + newestTaken + ` AS copy_at`

// What a server has: the tenants with a place there, instances that are not stopped and attached volumes; with $2 also
// the sites whose files or database are lost with it.
const sqlOnServer = `
SELECT 'tenant' AS kind, t.tenant_id AS id, t.slug AS name, t.org_id, ` + notLost + `
    FROM tenants t WHERE t.tenant_id IN (SELECT w.tenant_id FROM tenant_places w WHERE w.server_id = $1)
UNION ALL SELECT ` + lostSite + `
    FROM tenant_allocations a JOIN tenants t ON t.tenant_id = a.tenant_id
    LEFT JOIN db_shards d ON d.shard_id = a.db_shard_id
    WHERE $2 AND a.released_at IS NULL AND t.site <> '' AND (a.app_server_id = $1 OR (a.on_shard AND d.server_id = $1))
UNION ALL SELECT 'instance', i.instance_id, g.name, i.org_id, false, 0, NULL
    FROM instances i JOIN process_groups g ON g.group_id = i.group_id WHERE i.server_id = $1 AND i.state <> 'stopped'
UNION ALL SELECT 'volume', v.volume_id, v.name, v.org_id, false, 0, NULL
    FROM volumes v, servers s WHERE s.server_id = $1 AND s.provider_server_id IS NOT NULL
    AND (v.lent_to = $1 OR v.volume_id IN (SELECT a.volume_id FROM volume_attachments a WHERE a.server_id = $1))
ORDER BY kind, id`

// What a tenant has: itself, and its site with $2.
const sqlOfTenant = `
SELECT 'tenant' AS kind, t.tenant_id AS id, t.slug AS name, t.org_id, ` + notLost + `
    FROM tenants t WHERE t.tenant_id = $1
UNION ALL SELECT ` + lostSite + ` FROM tenants t WHERE $2 AND t.tenant_id = $1 AND t.site <> ''
ORDER BY kind`

// A backup, and the next newest usable one of the same tenant or volume.
const sqlOfBackup = `
SELECT 'backup' AS kind, b.backup_id AS id, b.site AS name, b.org_id, true AS lost, b.bytes,
    (SELECT max(o.taken_at) FROM backups o
        WHERE (o.tenant_id = b.tenant_id OR o.volume_id = b.volume_id) AND o.backup_id <> b.backup_id
        AND backup_is_usable(o.state, o.missing_at, o.verify_message)) AS copy_at
FROM backups b WHERE b.backup_id = $1 AND b.state <> 'deleted'`

const sqlOfVolume = `
SELECT 'volume' AS kind, v.volume_id AS id, v.name, v.org_id, true AS lost, v.size_bytes AS bytes,
    (SELECT max(b.taken_at) FROM backups b WHERE b.volume_id = v.volume_id AND ` + usableBackup + `) AS copy_at
FROM volumes v WHERE v.volume_id = $1`

const sqlOfGroup = `
SELECT 'instance' AS kind, i.instance_id AS id, g.name, i.org_id, ` + notLost + `
FROM instances i JOIN process_groups g ON g.group_id = i.group_id WHERE i.group_id = $1 AND i.state <> 'stopped'
ORDER BY i.instance_id`

// impactOf reads what a change affects.
func impactOf(ctx context.Context, tx *txn, i impact.Impact, sql string, args ...any) impact.Impact {
	i.Affected, i.Destroyed = []impact.Thing{}, []impact.Loss{}
	for _, t := range manyIn[touched](ctx, tx, sql, args...) {
		if t.Lost {
			l := impact.Loss{Kind: t.Kind, ID: t.ID, Name: t.Name, OrgID: t.OrgID, Bytes: t.Bytes, CopyAt: t.CopyAt}
			i.Destroyed = append(i.Destroyed, l)
		} else {
			i.Affected = append(i.Affected, impact.Thing{Kind: t.Kind, ID: t.ID, Name: t.Name, OrgID: t.OrgID})
		}
	}
	return i
}

// demands ends the transaction with impact.NotAccepted unless the impact of the change on a thing was accepted. It is
// computed from the rows as they are before the change. What a caller accepted is in the audit.
func (t *txn) demands(ctx context.Context, i impact.Impact, id, sql string, args ...any) {
	t.check(impact.Demand(ctx, impactOf(ctx, t, i, sql, append([]any{id}, args...)...)))
	if c := impact.Of(ctx); c != nil && c.Policy == "" && c.Impact.Digest != "" {
		t.run(ctx, sqlWriteRequestAudit, requestSetting(ctx), "impact", id, "", c.Impact)
	}
}
