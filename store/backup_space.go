package store

import (
	"context"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/tenant"
)

// The space of an org's backups: those being uploaded, those stored, and those whose deletion the storage has not
// confirmed yet.
const backupBytesOf = `(SELECT COALESCE(sum(b.bytes), 0)::bigint FROM backups b WHERE b.org_id = o.org_id AND b.state IN ('uploading', 'stored', 'deleting'))`

const sqlBackupSpace = `
SELECT o.org_id, ` + backupBytesOf + ` AS used_bytes,
    COALESCE(o.backup_limit_bytes, LEAST($2 * l.limit_value, 9e18)::bigint) AS limit_bytes, o.backup_limit_bytes IS NOT NULL AS own
FROM orgs o CROSS JOIN LATERAL org_limits(o.org_id, $3, $4) l WHERE o.org_id = $1`

var storageDimension = []quota.Dimension{quota.MaxTotalVolumeBytes}

func (s *Store) backupSpace(ctx context.Context, q querier, orgID prego.OrgID) (tenant.BackupSpace, error) {
	return get[tenant.BackupSpace](ctx, q, noSuchOrg(orgID), sqlBackupSpace, orgID, tenant.BackupSpaceFactor, storageDimension, s.tierLimits)
}

const sqlBackupSpaceOf = `
SELECT COALESCE(tenant_id, '') AS tenant_id, COALESCE(volume_id, '') AS volume_id, count(*)::int AS backups, sum(bytes)::bigint AS bytes FROM backups
WHERE org_id = $1 AND state IN ('uploading', 'stored', 'deleting') GROUP BY tenant_id, volume_id ORDER BY bytes DESC, tenant_id, volume_id LIMIT $2`

// BackupSpace returns the size of an org's backups and its limit, with the tenants whose backups are largest.
func (s *Store) BackupSpace(ctx context.Context, orgID prego.OrgID, most int) (tenant.BackupSpace, error) {
	out, err := s.backupSpace(ctx, s.pool, orgID)
	if err != nil {
		return out, err
	}
	out.Largest, err = collect[tenant.BackupsOfTenant](ctx, s, "backups of tenants", sqlBackupSpaceOf, orgID, most)
	return out, err
}

const sqlBackupLimit = `UPDATE orgs SET backup_limit_bytes = $2 WHERE org_id = $1 AND backup_limit_bytes IS DISTINCT FROM $2`

// SetBackupLimit sets an org's limit in bytes; nil removes it.
func (s *Store) SetBackupLimit(ctx context.Context, orgID prego.OrgID, limit *int64, reason, by string) error {
	return s.inTx(ctx, "limit of backups", func(tx *txn) error {
		tx.check(lockOrg(ctx, tx, orgID))
		before := got(s.backupSpace(ctx, tx, orgID)).in(tx)
		if !tx.run(ctx, sqlBackupLimit, orgID, limit) {
			return nil
		}
		after := got(s.backupSpace(ctx, tx, orgID)).in(tx)
		return orgEvent(ctx, tx, org.Event{OrgID: orgID, Type: "org.backup_limit_set", Subject: string(orgID), Actor: by, Reason: reason}, map[string]any{
			"old": before.LimitBytes, "new": after.LimitBytes, "own": after.Own,
		})
	})
}

func gigabytes(n int64) string { return fmt.Sprintf("%.1f GB", float64(n)/1e9) }

// refuseAboveLimit refuses a requested backup while the org's backups exceed their limit. Backups by schedule and
// before data is moved or deleted are exempt: protecting data then is their purpose.
func (s *Store) refuseAboveLimit(ctx context.Context, tx *txn, orgID prego.OrgID) error {
	space, err := s.backupSpace(ctx, tx, orgID)
	if err == nil && space.Over() {
		err = prego.Errorf(prego.CodeBackupLimit, "the backups of org %s have %s, and its limit is %s: delete some, keep fewer (prego backup policy set), or ask for a higher limit. Scheduled backups continue",
			orgID, gigabytes(space.UsedBytes), gigabytes(space.LimitBytes))
	}
	return err
}

// noteAboveLimit writes an event when a backup of so many bytes took its org above the limit.
func (s *Store) noteAboveLimit(ctx context.Context, tx *txn, orgID prego.OrgID, id prego.BackupID, bytes int64) error {
	space, err := s.backupSpace(ctx, tx, orgID)
	if err != nil || !space.Over() || space.UsedBytes-bytes >= space.LimitBytes {
		return err
	}
	return orgEvent(ctx, tx, org.Event{OrgID: orgID, Type: "backup.limit_reached", Subject: string(id), Actor: string(prego.ActorSystem)}, map[string]any{
		"used": space.UsedBytes, "limit": space.LimitBytes,
	})
}

// Orgs without backups can't be above a limit.
const (
	backupsOfOrgs = `SELECT org_id, sum(bytes)::bigint AS bytes FROM backups WHERE state IN ('uploading', 'stored', 'deleting') GROUP BY org_id`
	withLimits    = `used u JOIN orgs o ON o.org_id = u.org_id CROSS JOIN LATERAL org_limits(o.org_id, $2, $3) l`
	areOver       = `u.bytes >= COALESCE(o.backup_limit_bytes, $1 * l.limit_value)`

	sqlBackupSpaces = `
WITH used AS MATERIALIZED (` + backupsOfOrgs + `)
SELECT count(*) FILTER (WHERE ` + areOver + `)::int AS over, COALESCE(sum(u.bytes), 0)::bigint AS bytes FROM ` + withLimits
)

// BackupSpaces counts orgs whose backups are above their limit, and the bytes of all backups.
func (s *Store) BackupSpaces(ctx context.Context) (orgsOver int, bytes int64, err error) {
	type row struct {
		Over  int
		Bytes int64
	}
	r, err := one[row](ctx, s.pool, sqlBackupSpaces, tenant.BackupSpaceFactor, storageDimension, s.tierLimits)
	return r.Over, r.Bytes, failed("bytes of backups", err)
}
