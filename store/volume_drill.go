package store

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

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
	err = s.inVolume(ctx, string("drill volume "+volumeID), volumeID, func(tx pgx.Tx, v workload.Volume) error {
		backup, err := one[struct {
			BackupID prego.BackupID
			Needed   int64
		}](ctx, tx, sqlDrillVolumeBackup, volumeID, backupID)
		if err != nil {
			return ifNoRows(err, prego.Errorf(prego.CodeBackupNotFound, "there is no such backup of volume %s in object storage", volumeID))
		}
		if _, err := tx.Exec(ctx, sqlOneDrillPlace); err != nil {
			return err
		}
		at, err := value[prego.ServerID](ctx, tx, sqlVolumeDrillPlace, volumeID, backup.Needed)
		if err != nil {
			return ifNoRows(err, prego.Errorf(prego.CodeInsufficientResources, "no server in %s can take a drill of volume %s now: it needs %s of free local disk, and no other drill", v.Region, volumeID, gigabytes(backup.Needed)))
		}
		if out, err = one[tenant.Drill](ctx, tx, sqlInsertVolumeDrill, key, v.OrgID, volumeID, backup.BackupID, at, by); err != nil {
			if isViolation(err, "drills_of_volume_running") {
				return prego.Errorf(prego.CodeRestoreUnderWay, "a drill of volume %s is under way already", volumeID)
			}
			return err
		}
		_, err = tx.Exec(ctx, sqlVolumeBackupDrilled, volumeID)
		return err
	})
	return out, err
}
