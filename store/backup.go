package store

import (
	"context"
	"slices"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

const backupColumns = `b.backup_id, b.org_id, COALESCE(b.tenant_id, '') AS tenant_id, COALESCE(b.volume_id, '') AS volume_id, b.entries, b.frozen_ms, b.server_id, b.site, b.kind, b.state, b.reason, b.message, b.taken_at, b.finished_at,
    b.object_key AS object, b.manifest_key AS manifest, b.plain_bytes, b.plain_sha256, b.bytes, b.sha256, b.parts, b.verified_at, b.verify_message, b.expires_at,
    b.held_at, b.held_by, b.hold_reason, b.created_by, b.created_at, b.deleted_at,
    CASE WHEN b.kept_until > now() AND b.deleted_at IS NULL THEN b.kept_until END AS kept_until`

// storageProvider is the ledger's provider of objects.
const storageProvider prego.InfraProviderID = "s3"

const sqlInsertBackup = `
INSERT INTO backups AS b (backup_id, org_id, tenant_id, server_id, site, kind, state, started_at, created_by, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, CASE WHEN $7 THEN 'making' ELSE 'queued' END, CASE WHEN $7 THEN now() END, $8, CASE WHEN $9 > 0 THEN now() + make_interval(secs => $9) END)
RETURNING ` + backupColumns

const sqlGetBackup = `SELECT ` + backupColumns + ` FROM backups b WHERE b.backup_id = $1`

func noSuchBackup(id prego.BackupID) error {
	return prego.Errorf(prego.CodeBackupNotFound, "there is no such backup %q", id)
}

// RequestBackup accepts a backup of a tenant's site. The same id again returns the same backup. While another backup
// of the tenant is under way, it is refused with CodeBackupUnderWay.
func (s *Store) RequestBackup(ctx context.Context, a tenant.BackupAsked) (out tenant.Backup, err error) {
	if out, err = one[tenant.Backup](ctx, s.pool, sqlGetBackup, a.ID); !isNoRows(err) {
		if err == nil && out.TenantID != a.TenantID {
			err = noSuchBackup(a.ID)
		}
		return out, failed("read a backup", err)
	}
	err = s.inTenant(ctx, "request a backup", a.TenantID, func(tx *txn, t tenantSite) error {
		if !t.state.HasSite() && a.Kind != tenant.BackupFinal {
			return prego.Errorf(prego.CodeInvalidTransition, "tenant %s is %s: only a tenant with a site is backed up", a.TenantID, t.state)
		}
		if a.Kind == tenant.BackupManual {
			tx.check(s.refuseAboveLimit(ctx, tx, t.org))
		}
		if out, err = one[tenant.Backup](ctx, tx, sqlInsertBackup, a.ID, t.org, a.TenantID, t.server, t.site, a.Kind, a.AtOnce, a.By, a.Keep.Seconds()); err != nil {
			if isViolation(err, "backups_under_way") {
				return prego.Errorf(prego.CodeBackupUnderWay, "a backup of tenant %s is under way already", a.TenantID)
			}
			return err
		}
		return orgEvent(ctx, tx, org.Event{OrgID: t.org, Type: "backup.create", Subject: string(a.ID), Actor: a.By}, map[string]any{"tenant_id": a.TenantID, "kind": a.Kind})
	})
	return out, err
}

// GetBackup reads one backup of a tenant or a volume, or CodeBackupNotFound. The backups of a volume that is deleted
// are there as long as they are kept.
func (s *Store) GetBackup(ctx context.Context, of tenant.BackupOwner, id prego.BackupID) (tenant.Backup, error) {
	if of.VolumeID == "" {
		if err := s.tenantExists(ctx, of.TenantID); err != nil {
			return tenant.Backup{}, err
		}
	}
	v, err := get[tenant.Backup](ctx, s.pool, noSuchBackup(id), sqlGetBackup, id)
	if err == nil && of != (tenant.BackupOwner{TenantID: v.TenantID, VolumeID: v.VolumeID}) {
		err = noSuchBackup(id)
	}
	return v, err
}

// Backups is the list of backups, without deleted ones.
var Backups = Listing[tenant.Backup]{
	what: "backups", from: `SELECT ` + backupColumns + ` FROM backups b`,
	live: `b.state <> 'deleted'`, state: "state",
	filters: map[string]string{"tenant_id": "b.tenant_id", "volume_id": "b.volume_id", "org_id": "b.org_id", "state": "b.state", "kind": "b.kind"},
	sorts:   map[string]string{"created_at": "b.created_at"},
	id:      "b.backup_id",
}

// AllBackups is the list of the backups of all tenants, without deleted ones. By server they are the backups of the
// tenants that are there now: what would bring them back, wherever it was made.
var AllBackups = Listing[tenant.Backup]{
	what: "backups of all tenants", from: `SELECT ` + backupColumns + ` FROM backups b`,
	always: `b.tenant_id IS NOT NULL`, live: `b.state <> 'deleted'`, state: "state",
	filters: map[string]string{
		"tenant_id": "b.tenant_id", "org_id": "b.org_id", "state": "b.state", "kind": "b.kind",
		"server_id": "b.tenant_id = ANY (" + onServers + ")",
	},
	sorts: map[string]string{"created_at": "b.created_at"},
	id:    "b.backup_id",
}

// usableBackup selects the backups b that a restore may choose.
const usableBackup = `backup_is_usable(b.state, b.missing_at, b.verify_message)`

// newestTaken is when the newest usable backup of a tenant t was taken.
const newestTaken = `(SELECT max(b.taken_at) FROM backups b WHERE b.tenant_id = t.tenant_id AND ` + usableBackup + `)`

const sqlRestorable = `
SELECT b.backup_id, b.taken_at, b.verified_at FROM backups b WHERE b.tenant_id = $1 AND ` + usableBackup + ` ORDER BY b.taken_at DESC LIMIT 1`

// Restorable returns a tenant's newest backup that can be restored; nil if there is none.
func (s *Store) Restorable(ctx context.Context, tenantID prego.TenantID) (*tenant.Restorable, error) {
	return find[tenant.Restorable](ctx, s.pool, sqlRestorable, tenantID)
}

const sqlBackupRecord = `SELECT ` + backupColumns + `, b.recipient, b.sealed_identity AS sealed, b.key_id, b.upload_id, b.part_bytes FROM backups b WHERE b.backup_id = $1`

// BackupRecord reads a backup with the data for its run, or CodeBackupNotFound.
func (s *Store) BackupRecord(ctx context.Context, id prego.BackupID) (tenant.BackupRecord, error) {
	return get[tenant.BackupRecord](ctx, s.pool, noSuchBackup(id), sqlBackupRecord, id)
}

const sqlBackupKey = `
UPDATE backups SET recipient = $2, sealed_identity = $3, key_id = $4 WHERE backup_id = $1 AND recipient = '' AND state IN ('making', 'uploading')`

// BackupKey stores a backup's identity before anything is encrypted to it. The first identity stays.
func (s *Store) BackupKey(ctx context.Context, id prego.BackupID, recipient string, sealed tenant.SealedIdentity) error {
	return s.exec(ctx, "identity of backup "+string(id), sqlBackupKey, id, recipient, sealed.Sealed, sealed.KeyID)
}

// The start of a dump comes from its host's clock; it orders backups and decides which are kept and restored. A time
// before the backup started or after now is wrong, and is replaced by the start of the backup.
const sqlBackupSealed = `
UPDATE backups SET state = 'uploading', plain_bytes = $3, plain_sha256 = $4, bytes = $5, sha256 = $6, part_bytes = $7, parts = $8, object_key = $9, manifest_key = $10, entries = $11, frozen_ms = $12,
    taken_at = CASE WHEN $2 BETWEEN started_at - interval '1 minute' AND now() + interval '1 minute' THEN $2 ELSE COALESCE(started_at, created_at) END,
    message = CASE WHEN $2 BETWEEN started_at - interval '1 minute' AND now() + interval '1 minute' THEN ''
        ELSE 'clock_skew: by its host''s clock it was taken at ' || to_char($2::timestamptz AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || ', which cannot be' END
WHERE backup_id = $1 AND state IN ('making', 'uploading') AND upload_id = ''`

// BackupSealed records what the host sealed, and adds the objects to upload to the ledger. A backup whose upload has
// started stays as it is.
func (s *Store) BackupSealed(ctx context.Context, id prego.BackupID, b tenant.SealedBackup, partBytes int64, object, manifest string) error {
	note := func(tx *txn) error {
		return intend(ctx, tx, storageProvider, "", 0, server.ResourceIntent{Kind: server.ResourceBackup, Name: object})
	}
	var frozen *int64
	if b.Frozen {
		frozen = &b.FrozenMS
	}
	return s.changeThen(ctx, "backup "+string(id), nil, note, sqlBackupSealed, id, b.TakenAt, b.PlainBytes, b.PlainSHA256, b.Bytes, b.SHA256, partBytes, tenant.PartCount(b.Bytes, partBytes), object, manifest, b.Entries, frozen)
}

const sqlBackupUpload = `UPDATE backups SET upload_id = $2 WHERE backup_id = $1 AND state = 'uploading' AND upload_id = $3`

// BackupUpload records a new upload in place of another ("" for none); false if another upload was recorded in the
// meantime.
func (s *Store) BackupUpload(ctx context.Context, id prego.BackupID, uploadID, instead string) (bool, error) {
	ok, err := changed(ctx, s.pool, sqlBackupUpload, id, uploadID, instead)
	return ok, failed("upload of backup "+string(id), err)
}

const sqlBackupStored = `
UPDATE backups SET state = 'stored', manifest_sha256 = $2, finished_at = now(), upload_id = '', reason = '', message = CASE WHEN message LIKE 'clock_skew: %' THEN message ELSE '' END WHERE backup_id = $1 AND state = 'uploading'
RETURNING COALESCE(tenant_id, ''), COALESCE(volume_id, ''), org_id, bytes, object_key`

// BackupStored records that a backup can be restored; repeated, it changes nothing.
func (s *Store) BackupStored(ctx context.Context, id prego.BackupID, manifestSHA256, etag string) error {
	return s.inTx(ctx, "backup "+string(id), func(tx *txn) error {
		var tenantID prego.TenantID
		var volumeID prego.VolumeID
		var orgID prego.OrgID
		var bytes int64
		var object string
		if err := tx.QueryRow(ctx, sqlBackupStored, id, manifestSHA256).Scan(&tenantID, &volumeID, &orgID, &bytes, &object); err != nil {
			return ifNoRows(err, nil)
		}
		tx.check(s.noteAboveLimit(ctx, tx, orgID, id, bytes))
		tx.check(confirmCreated(ctx, tx, storageProvider, "", 0, server.ResourceBackup, object, object+"@"+etag))
		if volumeID != "" {
			return orgEvent(ctx, tx, org.Event{OrgID: orgID, Type: "backup.stored", Subject: string(id), Actor: string(prego.ActorWorkflow)}, map[string]any{"volume_id": volumeID, "bytes": bytes})
		}
		return tenantEvent(ctx, tx, tenant.Event{TenantID: tenantID, Step: tenant.StepBackedUp, Message: "backup " + string(id) + " is in object storage"}, "backup/"+string(id))
	})
}

const sqlBackupFailed = `
UPDATE backups SET state = 'failed', reason = $2, message = $3, finished_at = now() WHERE backup_id = $1 AND state IN ('queued', 'making', 'uploading')
RETURNING COALESCE(tenant_id, ''), COALESCE(volume_id, ''), org_id`

// BackupFailed records why a backup failed; repeated, it changes nothing. Deleting the backup removes what it left in
// the storage.
func (s *Store) BackupFailed(ctx context.Context, id prego.BackupID, reason prego.Reason, message string) error {
	return s.inTx(ctx, "backup "+string(id), func(tx *txn) error { return backupFailed(ctx, tx, id, reason, message) })
}

func backupFailed(ctx context.Context, tx *txn, id prego.BackupID, reason prego.Reason, message string) error {
	var tenantID prego.TenantID
	var volumeID prego.VolumeID
	var orgID prego.OrgID
	if err := tx.QueryRow(ctx, sqlBackupFailed, id, reason, prego.Redact(message)).Scan(&tenantID, &volumeID, &orgID); err != nil {
		return ifNoRows(err, nil)
	}
	if volumeID != "" {
		event := org.Event{OrgID: orgID, Type: "backup.failed", Subject: string(id), Actor: string(prego.ActorWorkflow), Reason: string(reason)}
		return orgEvent(ctx, tx, event, map[string]any{"volume_id": volumeID, "message": message})
	}
	return tenantEvent(ctx, tx, tenant.Event{TenantID: tenantID, Step: tenant.StepBackupFailed, Reason: string(reason), Message: message}, "backup/"+string(id))
}

const sqlBackupMessage = `UPDATE backups SET message = $2 WHERE backup_id = $1 AND state IN ('making', 'uploading', 'deleting') AND message <> $2`

// BackupMessage records why a backup is slow.
func (s *Store) BackupMessage(ctx context.Context, id prego.BackupID, message string) error {
	return s.exec(ctx, "backup "+string(id), sqlBackupMessage, id, prego.Redact(message))
}

const sqlBackupVerified = `
UPDATE backups SET verified_at = CASE WHEN $2 = '' THEN now() ELSE verified_at END, verify_message = $2 WHERE backup_id = $1 AND state = 'stored'`

// BackupVerified records that a backup was restored and found good, or why not.
func (s *Store) BackupVerified(ctx context.Context, id prego.BackupID, message string) error {
	return s.exec(ctx, "backup "+string(id), sqlBackupVerified, id, prego.Redact(message))
}

const missingMessage = `'the storage does not have it any more'`

const sqlBackupMissing = `
UPDATE backups SET missing_at = COALESCE(missing_at, now()), verify_message = ` + missingMessage + ` WHERE backup_id = $1 AND state = 'stored'`

// BackupMissing records that the storage does not have a backup.
func (s *Store) BackupMissing(ctx context.Context, id prego.BackupID) error {
	return s.exec(ctx, "backup "+string(id), sqlBackupMissing, id)
}

// A backup that is found again must be verified before it is trusted: its message stays.
const sqlBackupsMissing = `
UPDATE backups SET missing_at = CASE WHEN backup_id = ANY ($1) THEN COALESCE(missing_at, now()) END,
    verify_message = CASE WHEN backup_id = ANY ($1) THEN ` + missingMessage + ` ELSE verify_message END
WHERE state = 'stored' AND (missing_at IS NOT NULL OR backup_id = ANY ($1))`

// BackupsMissing records which stored backups the storage does not have; it has all others.
func (s *Store) BackupsMissing(ctx context.Context, missing []prego.BackupID) error {
	return s.exec(ctx, "missing backups", sqlBackupsMissing, missing)
}

const (
	sqlHoldBackup    = `UPDATE backups SET held_at = now(), held_by = $3, hold_reason = $4 WHERE backup_id = $1 AND COALESCE(tenant_id, volume_id) = $2 AND state IN ('queued', 'making', 'uploading', 'stored')`
	sqlReleaseBackup = `UPDATE backups SET held_at = NULL, held_by = '', hold_reason = '' WHERE backup_id = $1 AND COALESCE(tenant_id, volume_id) = $2`
)

// HoldBackup keeps a backup from any deletion until it is released.
func (s *Store) HoldBackup(ctx context.Context, of tenant.BackupOwner, id prego.BackupID, reason, by string) (tenant.Backup, error) {
	return s.changeBackup(ctx, of, id, backupChange{
		event: "backup.hold", by: by, details: map[string]any{"reason": reason},
		none: prego.Errorf(prego.CodeBackupNotReady, "backup %s failed or is being deleted", id),
	}, sqlHoldBackup, id, of.String(), by, reason)
}

// ReleaseBackup ends a hold; a backup without one stays as it is.
func (s *Store) ReleaseBackup(ctx context.Context, of tenant.BackupOwner, id prego.BackupID, by string) (tenant.Backup, error) {
	c := backupChange{event: "backup.release", by: by, details: map[string]any{}, none: noSuchBackup(id)}
	return s.changeBackup(ctx, of, id, c, sqlReleaseBackup, id, of.String())
}

// allHeld reports whether all backups of the owner of backup b are held.
const allHeld = `EXISTS (SELECT FROM backup_holds h WHERE COALESCE(h.tenant_id, h.volume_id) = COALESCE(b.tenant_id, b.volume_id))`

// $3 is whether the policy deletes it that it was kept by.
const sqlDeleteBackup = `
UPDATE backups b SET state = 'deleting', message = '',
    kept_until = CASE WHEN state = 'stored' AND missing_at IS NULL AND NOT $3 THEN ` + keepUntil + ` ELSE kept_until END
WHERE backup_id = $1 AND COALESCE(tenant_id, volume_id) = $2 AND state IN ('stored', 'failed', 'deleting') AND held_at IS NULL
  AND NOT ` + allHeld + `
  AND NOT EXISTS (SELECT FROM restore_jobs j WHERE j.backup_id = b.backup_id AND j.status IN ('queued', 'running'))
  AND NOT EXISTS (SELECT FROM drills d WHERE d.backup_id = b.backup_id AND d.state = 'running')
  AND NOT EXISTS (SELECT FROM volume_restores r WHERE r.backup_id = b.backup_id AND r.finished_at IS NULL)`

// DeleteBackup gives up a backup that is neither under way, nor held, nor being restored. Its objects are deleted
// later: a stored one is kept for a day first, unless it is retention that deletes it, whose policy was accepted with
// the time that it keeps backups for.
func (s *Store) DeleteBackup(ctx context.Context, of tenant.BackupOwner, id prego.BackupID, by string) (tenant.Backup, error) {
	kind := "tenant"
	if of.VolumeID != "" {
		kind = "volume"
	}
	return s.changeBackup(ctx, of, id, backupChange{
		event: "backup.delete", by: by, details: map[string]any{},
		none: prego.Errorf(prego.CodeBackupNotReady,
			"backup %s is being made or restored, or it or its %s is held", id, kind),
		deletes: true,
	}, sqlDeleteBackup, id, of.String(), impact.Of(ctx) != nil && impact.Of(ctx).Standing)
}

const sqlUndeleteBackup = `
UPDATE backups SET state = 'stored', kept_until = NULL
WHERE backup_id = $1 AND COALESCE(tenant_id, volume_id) = $2 AND state = 'deleting' AND ` + canUndo

// UndeleteBackup takes back the deletion of a backup that is still kept. A stored backup stays as it is.
func (s *Store) UndeleteBackup(
	ctx context.Context, of tenant.BackupOwner, id prego.BackupID, by string,
) (tenant.Backup, error) {
	if b, err := s.GetBackup(ctx, of, id); err != nil || b.State == tenant.BackupStored {
		return b, err
	}
	return s.changeBackup(ctx, of, id, backupChange{
		event: "backup.undelete", by: by, details: map[string]any{},
		none:  prego.Errorf(prego.CodeBackupNotReady, "backup %s is not kept: nothing can be undone", id),
		gains: true,
	}, sqlUndeleteBackup, id, of.String())
}

// undeleteBackup is the command for that.
func undeleteBackup(of tenant.BackupOwner, b tenant.Backup) string {
	command := "prego backup undelete %s %s"
	if of.VolumeID != "" {
		command = "prego volume backup undelete %s %s"
	}
	return undoUntil(b.KeptUntil, command, of, b.BackupID)
}

// backupChange is what changeBackup records, refuses and demands.
type backupChange struct {
	event, by string
	details   map[string]any
	none      error // why the statement changed nothing
	deletes   bool
	gains     bool // like a new backup: its policy accepts what retention then deletes in its place
}

// changeBackup changes a backup of the given owner.
func (s *Store) changeBackup(
	ctx context.Context, of tenant.BackupOwner, id prego.BackupID, c backupChange, sql string, args ...any,
) (tenant.Backup, error) {
	if of.VolumeID != "" {
		c.details["volume_id"] = of.VolumeID
	} else {
		c.details["tenant_id"] = of.TenantID
	}
	v, err := s.GetBackup(ctx, of, id)
	if err != nil {
		return v, err
	}
	if err := s.inTx(ctx, c.event, func(tx *txn) error {
		// A restore and a drill begin while they hold the org. An UPDATE would only wait for their backup's row, and
		// after that wait it does not check for them again.
		tx.check(lockOrg(ctx, tx, v.OrgID))
		ok := false
		change := func() { ok = tx.run(ctx, sql, args...) }
		switch {
		case c.gains:
			change()
		case c.deletes:
			change()
			undo := undeleteBackup(of, oneIn[tenant.Backup](ctx, tx, sqlGetBackup, id))
			tx.demandsBackups(ctx, undo, string(id), id)
		default:
			tx.demandsSurplus(ctx, undoHold, string(id), of.String(), change)
		}
		if !ok {
			return c.none
		}
		event := org.Event{OrgID: v.OrgID, Type: c.event, Subject: string(v.BackupID), Actor: c.by}
		return orgEvent(ctx, tx, event, c.details)
	}); err != nil {
		return v, err
	}
	return s.GetBackup(ctx, of, id)
}

const (
	sqlBackupGone = `
UPDATE backups SET state = 'deleted', deleted_at = now(), sealed_identity = NULL, key_id = '', upload_id = '', message = '' WHERE backup_id = $1 AND state = 'deleting'`
	sqlBackupReleased = `
UPDATE resources SET state = 'released', released_at = now() WHERE provider = 's3' AND kind = 'backup' AND name = $1 AND state <> 'released'`
	sqlUploadGone = `UPDATE backups SET upload_id = '' WHERE backup_id = $1 AND state = 'failed'`
)

// BackupGone records that the storage has none of a backup's objects any more. A deleted backup also loses its
// identity: copies of it can't be opened.
func (s *Store) BackupGone(ctx context.Context, id prego.BackupID, object string) error {
	return s.inTx(ctx, "backup "+string(id), func(tx *txn) error {
		for _, sql := range []string{sqlBackupGone, sqlUploadGone} {
			tx.run(ctx, sql, id)
		}
		tx.run(ctx, sqlBackupReleased, object)
		return nil
	})
}

const sqlRetained = `
SELECT ` + retainedColumns + ` FROM backups b WHERE b.tenant_id = $1 AND b.state = 'stored'`

const retainedColumns = `b.backup_id, b.kind, b.taken_at, NOT ` + usableBackup + ` AS unusable, ` + usableBackup + ` AND b.verified_at IS NOT NULL AS verified,
    b.held_at IS NOT NULL OR ` + allHeld + ` AS held, b.expires_at`

// Retained returns a tenant's backups for retention.
func (s *Store) Retained(ctx context.Context, tenantID prego.TenantID) ([]tenant.Retained, error) {
	return collect[tenant.Retained](ctx, s, "stored backups", sqlRetained, tenantID)
}

// Also of a backup whose deletion may be undone later.
const sqlExpireBackups = `
UPDATE backups SET expires_at = CASE kind WHEN 'final' THEN COALESCE(expires_at, now() + make_interval(secs => $2)) ELSE now() END
WHERE tenant_id = $1 AND state IN ('stored', 'failed', 'deleting')`

// ExpireBackups ends retention for a tenant whose data is purged: its last backup stays for a while, the others are
// deleted.
func (s *Store) ExpireBackups(ctx context.Context, tenantID prego.TenantID, final time.Duration) error {
	return s.exec(ctx, "expire backups", sqlExpireBackups, tenantID, final.Seconds())
}

// A deletion relies on the last backup; a backup lost by the storage does not count.
const standsForData = `b.kind = 'final' AND b.state <> 'failed' AND (b.state <> 'stored' OR ` + usableBackup + `)`

const sqlFinalBackup = `
SELECT ` + backupColumns + ` FROM backups b WHERE b.tenant_id = $1 AND ` + standsForData + ` ORDER BY b.created_at DESC LIMIT 1`

// FinalBackup returns a tenant's last backup, unless it failed, is missing or unreadable; nil if there is none.
func (s *Store) FinalBackup(ctx context.Context, tenantID prego.TenantID) (*tenant.Backup, error) {
	return find[tenant.Backup](ctx, s.pool, sqlFinalBackup, tenantID)
}

// Each backup counts for its host, and for the host's region. At both, orgs take turns: the one that had its last turn
// longest ago is next.
const sqlAdmitBackups = `
WITH running AS MATERIALIZED (
    SELECT b.server_id, s.region FROM backups b JOIN servers s ON s.server_id = b.server_id WHERE b.state IN ('making', 'uploading')
), queued AS (
    SELECT b.backup_id, b.org_id, b.server_id, s.region, b.created_at,
        row_number() OVER (PARTITION BY b.server_id, b.org_id ORDER BY b.created_at, b.backup_id) AS turn
    FROM backups b JOIN servers s ON s.server_id = b.server_id WHERE b.state = 'queued'
), of_hosts AS (
    SELECT q.backup_id, q.org_id, q.region, q.created_at,
        row_number() OVER (PARTITION BY q.server_id ORDER BY q.turn, served.at NULLS FIRST, q.created_at, q.backup_id)
            + (SELECT count(*) FROM running r WHERE r.server_id = q.server_id) AS of_host
    FROM queued q LEFT JOIN LATERAL (
        SELECT k.started_at AS at FROM backups k WHERE k.server_id = q.server_id AND k.org_id = q.org_id AND k.started_at IS NOT NULL
        ORDER BY k.started_at DESC LIMIT 1) served ON true
    WHERE q.turn <= $1
), of_orgs AS (
    SELECT h.*, row_number() OVER (PARTITION BY h.region, h.org_id ORDER BY h.created_at, h.backup_id) AS turn
    FROM of_hosts h WHERE h.of_host <= $1
), fits AS (
    SELECT o.backup_id, row_number() OVER (PARTITION BY o.region ORDER BY o.turn, served.at NULLS FIRST, o.created_at, o.backup_id)
            + (SELECT count(*) FROM running r WHERE r.region = o.region) AS of_region
    FROM of_orgs o LEFT JOIN LATERAL (
        SELECT k.started_at AS at FROM backups k WHERE k.org_id = o.org_id AND k.started_at IS NOT NULL
        ORDER BY k.started_at DESC LIMIT 1) served ON true
)
UPDATE backups SET state = 'making', started_at = now() WHERE state = 'queued' AND backup_id IN (SELECT backup_id FROM fits WHERE of_region <= $2)
RETURNING backup_id`

const sqlBackupsQueued = `SELECT EXISTS (SELECT FROM backups WHERE state = 'queued')`

// One caller at a time begins backups, so that the next sees which they are.
const sqlOneAdmits = `SELECT pg_advisory_xact_lock(hashtextextended('prego/backups', 0))`

// AdmitBackups starts waiting backups up to a limit for each host and each region: orgs in turn, and the oldest of each
// org.
func (s *Store) AdmitBackups(ctx context.Context, perHost, perRegion int) (began []prego.BackupID, err error) {
	if queued, err := value[bool](ctx, s.pool, sqlBackupsQueued); err != nil || !queued {
		return nil, failed("waiting backups", err)
	}
	err = s.inTx(ctx, "admit backups", func(tx *txn) error {
		tx.run(ctx, sqlOneAdmits)
		began = valuesIn[prego.BackupID](ctx, tx, sqlAdmitBackups, perHost, perRegion)
		return nil
	})
	slices.Sort(began)
	return began, err
}

const sqlBackupsLeft = `
(SELECT backup_id, COALESCE(tenant_id, '') AS tenant_id, COALESCE(volume_id, '') AS volume_id, state FROM backups WHERE state IN ('making', 'uploading') AND started_at < now() - make_interval(secs => $1) ORDER BY md5(backup_id || now()) LIMIT $2)
UNION ALL
(SELECT backup_id, COALESCE(tenant_id, ''), COALESCE(volume_id, ''), state FROM backups
    WHERE state = 'deleting' AND NOT ` + isKept + ` ORDER BY md5(backup_id || now()) LIMIT $2)
UNION ALL
(SELECT b.backup_id, COALESCE(b.tenant_id, ''), COALESCE(b.volume_id, ''), b.state FROM backups b WHERE b.state IN ('stored', 'failed') AND b.held_at IS NULL AND b.expires_at < now()
   AND NOT ` + allHeld + `
   AND NOT EXISTS (SELECT FROM restore_jobs j WHERE j.backup_id = b.backup_id AND j.status IN ('queued', 'running'))
   AND NOT EXISTS (SELECT FROM volume_restores r WHERE r.backup_id = b.backup_id AND r.finished_at IS NULL) ORDER BY b.expires_at LIMIT $2)`

// BackupsLeft returns backups that started so long ago that their run may be lost, whose deletion is pending, or
// whose retention has ended.
func (s *Store) BackupsLeft(ctx context.Context, quiet time.Duration, most int) ([]tenant.BackupLeft, error) {
	return collect[tenant.BackupLeft](ctx, s, "backups that are left", sqlBackupsLeft, quiet.Seconds(), most)
}

const sqlBackupObjects = `SELECT backup_id, state, object_key AS object, manifest_key AS manifest, bytes FROM backups WHERE object_key <> '' AND state <> 'deleted'`

// BackupObjects returns the objects of all backups that have any.
func (s *Store) BackupObjects(ctx context.Context) ([]tenant.BackupObject, error) {
	return collect[tenant.BackupObject](ctx, s, "objects of backups", sqlBackupObjects)
}
