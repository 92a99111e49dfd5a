package store

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

const drillColumns = `d.drill_id, d.org_id, COALESCE(d.tenant_id, '') AS tenant_id, COALESCE(d.volume_id, '') AS volume_id, d.backup_id, d.server_id, d.state, d.reason, d.message, d.tables, d.rows, d.files, d.bytes, d.created_by, d.created_at, d.finished_at`

// drillable selects the backups b that a drill may try, including those found bad, because a later drill can find
// them good again. A backup lost by the storage can't be tried.
const drillable = `b.state = 'stored' AND b.missing_at IS NULL`

// Owners whose newest backup was never restored, and whose last drill was long ago. A volume on no server is
// included: its last backup changes only if the storage loses it.
const (
	sqlDueDrills = `
SELECT due.tenant_id, due.volume_id, due.drilled_at FROM (
    SELECT d.*, row_number() OVER (PARTITION BY d.org_id ORDER BY d.drilled_at NULLS FIRST, d.tenant_id, d.volume_id) AS turn FROM (
(SELECT t.org_id, u.tenant_id, '' AS volume_id, u.drilled_at FROM backup_schedules u JOIN tenants t ON t.tenant_id = u.tenant_id
WHERE (u.drilled_at IS NULL OR u.drilled_at < now() - make_interval(secs => $1)) AND t.state IN ('active', 'suspended')
  AND EXISTS (SELECT FROM backups b WHERE b.tenant_id = u.tenant_id AND ` + drillable + `))
UNION ALL
(SELECT v.org_id, '', u.volume_id, u.drilled_at FROM volume_backup_schedules u JOIN volumes v ON v.volume_id = u.volume_id
WHERE (u.drilled_at IS NULL OR u.drilled_at < now() - make_interval(secs => $1)) AND v.status = 'ready' AND v.deleted_at IS NULL
  AND EXISTS (SELECT FROM backups b WHERE b.volume_id = u.volume_id AND ` + drillable + `))
    ) d
) due LEFT JOIN LATERAL (SELECT o.created_at AS at FROM drills o WHERE o.org_id = due.org_id ORDER BY o.created_at DESC LIMIT 1) served ON true
ORDER BY due.turn, served.at NULLS FIRST, due.drilled_at NULLS FIRST, due.tenant_id, due.volume_id LIMIT $2`

	sqlDrillsUnderWay = `SELECT count(*) FROM drills WHERE cleared_at IS NULL`
)

// DueDrills lists at most so many tenants and volumes with a backup to drill: orgs in turn, and of each org the one
// that has waited longest.
func (s *Store) DueDrills(ctx context.Context, every time.Duration, most int) ([]tenant.BackupOwner, error) {
	type row struct {
		tenant.BackupOwner
		DrilledAt *time.Time
	}
	rows, err := collect[row](ctx, s, "drills that are due", sqlDueDrills, every.Seconds(), most)
	out := make([]tenant.BackupOwner, len(rows))
	for i, r := range rows {
		out[i] = r.BackupOwner
	}
	return out, err
}

// DrillsUnderWay counts the drills that may have left something on a server.
func (s *Store) DrillsUnderWay(ctx context.Context) (int, error) {
	n, err := value[int](ctx, s.pool, sqlDrillsUnderWay)
	return n, failed("drills under way", err)
}

const sqlLastDrill = `
SELECT ` + drillColumns + ` FROM drills d WHERE d.tenant_id = $1 ORDER BY d.created_at DESC LIMIT 1`

// LastDrill returns a tenant's newest drill, nil if there was none.
func (s *Store) LastDrill(ctx context.Context, tenantID prego.TenantID) (*tenant.Drill, error) {
	return find[tenant.Drill](ctx, s.pool, sqlLastDrill, tenantID)
}

const sqlDrillBackup = `
SELECT b.backup_id FROM backups b WHERE b.tenant_id = $1 AND ` + drillable + ` AND ($2 = '' OR b.backup_id = $2) ORDER BY b.taken_at DESC LIMIT 1 FOR SHARE`

// The server for a drill: where the tenant could be, preferably a server tagged for it, away from the tenant, and
// with most memory. Data that must stay in a place stays there. A host has one drill at a time.
const sqlDrillPlace = `
SELECT s.server_id, d.shard_id
FROM tenants t JOIN servers s ON s.region = t.region LEFT JOIN fleets f ON f.fleet_id = s.fleet_id
LEFT JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL
CROSS JOIN LATERAL (
    SELECT d.shard_id FROM db_shards d JOIN servers h ON h.server_id = d.server_id
    WHERE d.status = 'active' AND d.region = s.region AND (d.dedicated_for_tenant_id IS NULL OR d.dedicated_for_tenant_id = t.tenant_id)
      AND (s.role = 'node') = d.on_node AND (NOT d.on_node OR d.server_id = s.server_id) AND h.status = 'active' AND h.cordoned_at IS NULL
      AND network_of(h.network_id, h.private_address) IS NOT DISTINCT FROM network_of(s.network_id, s.private_address)
    ORDER BY d.current_tenant_count, d.shard_id LIMIT 1) d
WHERE t.tenant_id = $1 AND s.status = 'active' AND s.cordoned_at IS NULL AND s.agent_status = 'connected' AND s.role IN ('app', 'node')
  AND (s.dedicated_for_tenant_id IS NULL OR s.dedicated_for_tenant_id = t.tenant_id)
  AND ('drill' = ANY (s.tags) OR f.serves_tenants IS NOT FALSE)
  AND tags_satisfy(s.tags, t.require_tags, t.disallow_tags) AND residency_allows(t.data_residency, s.region, s.infra_provider)
  AND NOT EXISTS (SELECT FROM drills o WHERE o.server_id = s.server_id AND o.cleared_at IS NULL)
ORDER BY 'drill' = ANY (s.tags) DESC, s.server_id IS NOT DISTINCT FROM a.app_server_id, COALESCE(s.memory_pct, 0), s.server_id LIMIT 1`

// One drill finds a place at a time, so that the next sees which host it took.
const sqlOneDrillPlace = `SELECT pg_advisory_xact_lock(hashtextextended('prego/drill-places', 0))`

const sqlDrillSite = `
INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, reason) VALUES ('dr-' || $1, $2, $3, 'drill-' || $1 || '.' || $4, 'pool_drill_' || $1, 'draining', 'a drill')`

const sqlInsertDrill = `
INSERT INTO drills AS d (drill_id, org_id, tenant_id, backup_id, server_id, pool_site_id, created_by)
SELECT 'drl-' || $1, org_id, tenant_id, $3, $4, 'dr-' || $1, $5 FROM tenants WHERE tenant_id = $2 RETURNING ` + drillColumns

const sqlBackupDrilled = `UPDATE backup_schedules SET drilled_at = now() WHERE tenant_id = $1`

// BeginDrill accepts a drill of a tenant's backup, the newest if none is named, and finds a place for it. It is
// refused without a place (CodeInsufficientResources), without a backup (CodeBackupNotFound), and while another drill
// of the tenant runs (CodeRestoreUnderWay).
func (s *Store) BeginDrill(ctx context.Context, tenantID prego.TenantID, backupID prego.BackupID, domain, by string) (out tenant.Drill, err error) {
	key := strings.ReplaceAll(uuid.NewString(), "-", "")[:16]
	err = s.inTx(ctx, string("drill tenant "+tenantID), func(tx *txn) error {
		got(lockOwner(ctx, tx, noSuchTenant(string(tenantID)), sqlTenantOrg, tenantID)).in(tx)
		backup := valueOr[prego.BackupID](ctx, tx, prego.Errorf(prego.CodeBackupNotFound, "there is no such backup of tenant %s in object storage", tenantID), sqlDrillBackup, tenantID, backupID)
		tx.run(ctx, sqlOneDrillPlace)
		place := getIn[struct {
			ServerID prego.ServerID
			ShardID  prego.ShardID
		}](ctx, tx, prego.Errorf(prego.CodeInsufficientResources, "no server can take a drill of tenant %s now", tenantID), sqlDrillPlace, tenantID)
		tx.run(ctx, sqlDrillSite, key, place.ServerID, place.ShardID, domain)
		if out, err = one[tenant.Drill](ctx, tx, sqlInsertDrill, key, tenantID, backup, place.ServerID, by); err != nil {
			if isViolation(err, "drills_running") {
				return prego.Errorf(prego.CodeRestoreUnderWay, "a drill of tenant %s is under way already", tenantID)
			}
			return err
		}
		tx.run(ctx, sqlBackupDrilled, tenantID)
		return nil
	})
	return out, err
}

const sqlDrillRecord = `
SELECT ` + drillColumns + `, d.cleared_at IS NOT NULL AS cleared, d.pool_site_id, p.db_shard_id, COALESCE(p.site_name, '') AS site_name, COALESCE(p.database_name, '') AS database_name, COALESCE(p.on_shard, false) AS on_shard
FROM drills d LEFT JOIN site_pool p ON p.pool_site_id = d.pool_site_id WHERE d.drill_id = $1`

// DrillRecord reads a drill with its site.
func (s *Store) DrillRecord(ctx context.Context, id string) (tenant.DrillRecord, error) {
	type row struct {
		tenant.Drill
		Cleared                bool
		PoolSiteID             string
		DBShardID              *prego.ShardID
		SiteName, DatabaseName string
		OnShard                bool
	}
	r, err := get[row](ctx, s.pool, prego.Errorf(prego.CodeBackupNotFound, "there is no drill %q", id), sqlDrillRecord, id)
	out := tenant.DrillRecord{Drill: r.Drill, Cleared: r.Cleared, Site: tenant.PoolSite{
		PoolSiteID: r.PoolSiteID, AppServerID: r.ServerID, SiteName: r.SiteName, DatabaseName: r.DatabaseName, OnShard: r.OnShard,
	}}
	if r.DBShardID != nil {
		out.Site.DBShardID = *r.DBShardID
	}
	return out, err
}

const sqlFinishDrill = `
WITH ended AS (
    UPDATE drills SET state = $2, reason = $3, message = $4, tables = $5, rows = $6, files = $7, bytes = $9, finished_at = now() WHERE drill_id = $1 AND state = 'running' RETURNING tenant_id, volume_id
), of_volume AS (
    UPDATE volume_backup_schedules u SET drill_failed = CASE WHEN $10 THEN u.drill_failed ELSE $2 = 'failed' END, drilled_at = CASE $2 WHEN 'failed' THEN now() - make_interval(secs => $8) ELSE now() END FROM ended e WHERE u.volume_id = e.volume_id
)
UPDATE backup_schedules u SET drill_failed = CASE WHEN $10 THEN u.drill_failed ELSE $2 = 'failed' END, drilled_at = CASE $2 WHEN 'failed' THEN now() - make_interval(secs => $8) ELSE now() END FROM ended e WHERE u.tenant_id = e.tenant_id`

// FinishDrill records how a drill ended. A failed drill is retried before passed ones: its turn counts as having come
// that much sooner. An undecided drill leaves the previous result.
func (s *Store) FinishDrill(ctx context.Context, e tenant.DrillEnd, sooner time.Duration) error {
	return s.exec(ctx, "drill "+e.DrillID, sqlFinishDrill, e.DrillID, e.State, e.Reason, prego.Redact(e.Message), e.Tables, e.Rows, e.Files, sooner.Seconds(), e.Bytes, e.Undecided)
}

const sqlDrillCleared = `
WITH cleared AS (UPDATE drills SET cleared_at = now() WHERE drill_id = $1 AND cleared_at IS NULL RETURNING pool_site_id)
DELETE FROM site_pool p USING cleared c WHERE p.pool_site_id = c.pool_site_id`

// DrillCleared records that nothing of a drill is left on its server.
func (s *Store) DrillCleared(ctx context.Context, id string) error {
	return s.exec(ctx, "drill "+id, sqlDrillCleared, id)
}

const sqlDrillsLeft = `SELECT drill_id, state FROM drills WHERE cleared_at IS NULL AND created_at < now() - make_interval(secs => $1) ORDER BY created_at LIMIT 100`

// DrillsLeft lists drills that are not cleared and were begun a while ago.
func (s *Store) DrillsLeft(ctx context.Context, quiet time.Duration) ([]tenant.DrillLeft, error) {
	return collect[tenant.DrillLeft](ctx, s, "drills that are left", sqlDrillsLeft, quiet.Seconds())
}

const (
	drillsFailed       = ` FROM backup_schedules u JOIN tenants t ON t.tenant_id = u.tenant_id WHERE u.drill_failed AND t.state IN ('active', 'suspended')`
	volumeDrillsFailed = ` FROM volume_backup_schedules u JOIN volumes v ON v.volume_id = u.volume_id WHERE u.drill_failed AND v.status = 'ready' AND v.deleted_at IS NULL`
	drillsOverdue      = ` FROM backup_schedules u JOIN tenants t ON t.tenant_id = u.tenant_id
    WHERE (u.drilled_at IS NULL OR u.drilled_at < now() - make_interval(secs => $1)) AND COALESCE(u.drilled_at, t.active_at) < now() - make_interval(secs => $1) AND t.state IN ('active', 'suspended')`
	volumeDrillsOverdue = ` FROM volume_backup_schedules u JOIN volumes v ON v.volume_id = u.volume_id
    WHERE COALESCE(u.drilled_at, v.created_at) < now() - make_interval(secs => $1) AND v.status = 'ready' AND v.deleted_at IS NULL
      AND EXISTS (SELECT FROM backups b WHERE b.volume_id = u.volume_id AND ` + drillable + `)`
	sqlDrillsFailed  = `SELECT (SELECT count(*)` + drillsFailed + `) + (SELECT count(*)` + volumeDrillsFailed + `)`
	sqlDrillsOverdue = `SELECT (SELECT count(*)` + drillsOverdue + `) + (SELECT count(*)` + volumeDrillsOverdue + `)`
)

// CountDrills counts the tenants and volumes whose last drill failed, and those without one for too long.
func (s *Store) CountDrills(ctx context.Context, overdue time.Duration) (failedDrills, late int, err error) {
	if failedDrills, err = value[int](ctx, s.pool, sqlDrillsFailed); err == nil {
		late, err = value[int](ctx, s.pool, sqlDrillsOverdue, overdue.Seconds())
	}
	return failedDrills, late, failed("count drills", err)
}

// Drills is the list of drills.
var Drills = Listing[tenant.Drill]{
	what: "drills", from: `SELECT ` + drillColumns + ` FROM drills d`,
	filters: map[string]string{"tenant_id": "d.tenant_id", "volume_id": "d.volume_id", "state": "d.state"},
	sorts:   map[string]string{"created_at": "d.created_at"},
	id:      "d.drill_id",
}

const sqlDrillVolumeBackup = `
SELECT b.backup_id, b.bytes + b.plain_bytes AS needed FROM backups b WHERE b.volume_id = $1 AND ` + drillable + ` AND ($2 = '' OR b.backup_id = $2) ORDER BY b.taken_at DESC LIMIT 1 FOR SHARE`

// Where a volume's backup is restored for a look: on the own disk of a server of its region, which
// keeps a tenth free; how large the disk is the provider's catalog knows, and if it doesn't, the host
// handles it. A server tagged for it comes first, then preferably not the volume's own, and the server with
// most room. Nothing is attached, so that any location will do.
const sqlVolumeDrillPlace = `
SELECT s.server_id FROM volumes v JOIN servers s ON s.region = v.region AND s.infra_provider = v.provider
LEFT JOIN LATERAL (SELECT (y ->> 'disk_gb')::float8 * 1e9 AS bytes FROM provider_catalogs c, jsonb_array_elements(c.document -> 'server_types') y
    WHERE c.provider = s.infra_provider AND y ->> 'name' = s.server_type LIMIT 1) d ON true
WHERE v.volume_id = $1 AND s.role IN ('app', 'node') AND s.status = 'active' AND s.agent_status = 'connected' AND s.cordoned_at IS NULL AND NOT s.closing AND NOT kept_for_tenants(s.server_id)
  AND (d.bytes IS NULL OR d.bytes * (0.9 - COALESCE(s.disk_pct, 0) / 100) > $2)
  AND NOT EXISTS (SELECT FROM drills o WHERE o.server_id = s.server_id AND o.cleared_at IS NULL)
ORDER BY 'drill' = ANY (s.tags) DESC, s.server_id IN (SELECT t.server_id FROM volume_attachments t WHERE t.volume_id = v.volume_id), COALESCE(s.disk_pct, 0), s.server_id LIMIT 1`

const (
	sqlInsertVolumeDrill = `
INSERT INTO drills AS d (drill_id, org_id, volume_id, backup_id, server_id, created_by) VALUES ('drl-' || $1, $2, $3, $4, $5, $6) RETURNING ` + drillColumns

	sqlVolumeBackupDrilled = `UPDATE volume_backup_schedules SET drilled_at = now() WHERE volume_id = $1`
)

// BeginVolumeDrill accepts a drill of a volume's backup, as BeginDrill does for a tenant's.
func (s *Store) BeginVolumeDrill(ctx context.Context, volumeID prego.VolumeID, backupID prego.BackupID, by string) (out tenant.Drill, err error) {
	key := strings.ReplaceAll(uuid.NewString(), "-", "")[:16]
	err = s.inVolume(ctx, string("drill volume "+volumeID), volumeID, func(tx *txn, v workload.Volume) error {
		backup := getIn[struct {
			BackupID prego.BackupID
			Needed   int64
		}](ctx, tx, prego.Errorf(prego.CodeBackupNotFound, "there is no such backup of volume %s in object storage", volumeID), sqlDrillVolumeBackup, volumeID, backupID)
		tx.run(ctx, sqlOneDrillPlace)
		at := valueOr[prego.ServerID](ctx, tx, prego.Errorf(prego.CodeInsufficientResources, "no server in %s can take a drill of volume %s now: it needs %s of free local disk, and no other drill", v.Region, volumeID, gigabytes(backup.Needed)), sqlVolumeDrillPlace, volumeID, backup.Needed)
		if out, err = one[tenant.Drill](ctx, tx, sqlInsertVolumeDrill, key, v.OrgID, volumeID, backup.BackupID, at, by); err != nil {
			if isViolation(err, "drills_of_volume_running") {
				return prego.Errorf(prego.CodeRestoreUnderWay, "a drill of volume %s is under way already", volumeID)
			}
			return err
		}
		tx.run(ctx, sqlVolumeBackupDrilled, volumeID)
		return nil
	})
	return out, err
}
