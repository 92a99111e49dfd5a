package store

import (
	"cmp"
	"context"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

const sqlInsertVolumeBackup = `
INSERT INTO backups AS b (backup_id, org_id, volume_id, server_id, site, kind, state, started_at, created_by, expires_at)
VALUES ($1, $2, $3, $4, '', $5, CASE WHEN $6 THEN 'making' ELSE 'queued' END, CASE WHEN $6 THEN now() END, $7, CASE WHEN $8 > 0 THEN now() + make_interval(secs => $8) END)
RETURNING ` + backupColumns

const sqlVolumeHost = `SELECT COALESCE(volume_host($1), '')`

// RequestVolumeBackup accepts a backup of a volume's files. The same id again is the same backup.
// While another backup of the volume is under way it is refused with CodeBackupUnderWay. A volume that
// is on no server is lent to one at its location; if there is none, it is refused with
// CodeInsufficientResources.
func (s *Store) RequestVolumeBackup(ctx context.Context, a tenant.BackupAsked) (out tenant.Backup, err error) {
	if out, err = one[tenant.Backup](ctx, s.pool, sqlGetBackup, a.ID); !isNoRows(err) {
		if err == nil && out.VolumeID != a.VolumeID {
			err = noSuchBackup(a.ID)
		}
		return out, failed("read a backup", err)
	}
	err = s.inVolume(ctx, "request a backup", a.VolumeID, func(tx *txn, v workload.Volume) error {
		if v.Status != workload.ResourceReady && a.Kind != tenant.BackupFinal {
			return prego.Errorf(prego.CodeInvalidTransition, "volume %s is %s: only a ready volume can be backed up", a.VolumeID, v.Status)
		}
		if a.Kind == tenant.BackupManual {
			tx.check(s.refuseAboveLimit(ctx, tx, v.OrgID))
		}
		host := valueIn[prego.ServerID](ctx, tx, sqlVolumeHost, a.VolumeID)
		if host == "" {
			return prego.Errorf(prego.CodeInsufficientResources, "volume %s is on no server, and none at %s can have it for a while: its last backup stands", a.VolumeID, v.Location)
		}
		if out, err = one[tenant.Backup](ctx, tx, sqlInsertVolumeBackup, a.ID, v.OrgID, a.VolumeID, host, a.Kind, a.AtOnce, a.By, a.Keep.Seconds()); err != nil {
			if isViolation(err, "backups_of_volume_under_way") {
				return prego.Errorf(prego.CodeBackupUnderWay, "a backup of volume %s is under way already", a.VolumeID)
			}
			return err
		}
		return orgEvent(ctx, tx, org.Event{OrgID: v.OrgID, Type: "backup.create", Subject: string(a.ID), Actor: a.By}, map[string]any{"volume_id": a.VolumeID, "kind": a.Kind})
	})
	return out, err
}

const sqlVolumeRestorable = `
SELECT b.backup_id, b.taken_at, b.verified_at FROM backups b WHERE b.volume_id = $1 AND ` + usableBackup + ` ORDER BY b.taken_at DESC LIMIT 1`

// VolumeRestorable is a volume's newest backup that can be restored; nil if there is none.
func (s *Store) VolumeRestorable(ctx context.Context, volumeID prego.VolumeID) (*tenant.Restorable, error) {
	return find[tenant.Restorable](ctx, s.pool, sqlVolumeRestorable, volumeID)
}

const sqlVolumeRetained = `
SELECT ` + retainedColumns + ` FROM backups b WHERE b.volume_id = $1 AND b.state = 'stored'`

// VolumeRetained are a volume's backups that retention looks at.
func (s *Store) VolumeRetained(ctx context.Context, volumeID prego.VolumeID) ([]tenant.Retained, error) {
	return collect[tenant.Retained](ctx, s, "stored backups", sqlVolumeRetained, volumeID)
}

const sqlExpireVolumeBackups = `
UPDATE backups b SET expires_at = CASE WHEN b.backup_id = (SELECT n.backup_id FROM backups n WHERE n.volume_id = $1 AND n.state = 'stored'
        ORDER BY backup_is_usable(n.state, n.missing_at, n.verify_message) DESC, n.taken_at DESC LIMIT 1)
    THEN COALESCE(b.expires_at, now() + make_interval(secs => $2)) ELSE now() END
WHERE b.volume_id = $1 AND b.state IN ('stored', 'failed', 'deleting')`

// ExpireVolumeBackups ends retention for a volume that is being destroyed: its newest usable backup stays
// for a while, the others go.
func (s *Store) ExpireVolumeBackups(ctx context.Context, volumeID prego.VolumeID, final time.Duration) error {
	return s.exec(ctx, "expire backups", sqlExpireVolumeBackups, volumeID, final.Seconds())
}

const sqlFinalVolumeBackup = `
SELECT ` + backupColumns + ` FROM backups b WHERE b.volume_id = $1 AND ` + standsForData + ` ORDER BY b.created_at DESC LIMIT 1`

// FinalVolumeBackup is a volume's last backup, unless it failed, is missing or unreadable; nil if there is none.
func (s *Store) FinalVolumeBackup(ctx context.Context, volumeID prego.VolumeID) (*tenant.Backup, error) {
	return find[tenant.Backup](ctx, s.pool, sqlFinalVolumeBackup, volumeID)
}

// A volume's own policy goes before its org's, and that before the policy of all volumes.
const volumePolicyOf = `JOIN LATERAL (SELECT * FROM backup_policies c WHERE c.policy_id IN ('volume/' || v.volume_id, 'org/' || v.org_id, 'volumes')
    ORDER BY c.volume_id IS NULL, c.org_id IS NULL LIMIT 1) p ON true`

const sqlVolumeBackupPolicy = `SELECT ` + backupPolicyColumns + ` FROM volumes v ` + volumePolicyOf + ` WHERE v.volume_id = $1`

// VolumeBackupPolicy is the policy that a volume is backed up by.
func (s *Store) VolumeBackupPolicy(ctx context.Context, volumeID prego.VolumeID) (tenant.BackupPolicy, error) {
	r, err := get[backupPolicyRow](ctx, s.pool, noSuchVolume(string(volumeID)), sqlVolumeBackupPolicy, volumeID)
	return r.policy(), err
}

const sqlOrgVolumesPolicy = `SELECT ` + backupPolicyColumns + ` FROM backup_policies p WHERE p.policy_id IN ('org/' || $1::text, 'volumes') ORDER BY p.org_id IS NULL LIMIT 1`

// OrgVolumesBackupPolicy is the policy of an org's volumes; of all volumes for "".
func (s *Store) OrgVolumesBackupPolicy(ctx context.Context, orgID prego.OrgID) (tenant.BackupPolicy, error) {
	r, err := one[backupPolicyRow](ctx, s.pool, sqlOrgVolumesPolicy, orgID)
	return r.policy(), failed("backup policy of volumes", err)
}

// Volumes that a group has and that have no schedule, or one from another policy than theirs is now.
const sqlUnscheduledVolumes = `
SELECT v.volume_id AS id, now() AS now, NULL::timestamptz AS next_at, ` + backupPolicyColumns + `
FROM volumes v LEFT JOIN volume_backup_schedules b ON b.volume_id = v.volume_id ` + volumePolicyOf + `
WHERE v.deleted_at IS NULL AND v.status = 'ready' AND (b.volume_id IS NULL OR b.policy_at <> p.updated_at) ORDER BY v.volume_id LIMIT $1`

// UnscheduledVolumes are volumes that need one.
func (s *Store) UnscheduledVolumes(ctx context.Context, most int) ([]tenant.BackupSchedule, error) {
	return s.schedules(ctx, "volumes without a schedule", sqlUnscheduledVolumes, most, scheduleOfVolume)
}

const sqlPutVolumeBackupSchedule = `
INSERT INTO volume_backup_schedules AS b (volume_id, policy_at, next_at) VALUES ($1, $2, $3)
ON CONFLICT (volume_id) DO UPDATE SET policy_at = $2, next_at = $3`

const sqlDueVolumeBackups = `
SELECT v.volume_id AS id, now() AS now, b.next_at, ` + backupPolicyColumns + `
FROM volume_backup_schedules b JOIN volumes v ON v.volume_id = b.volume_id ` + volumePolicyOf + `
WHERE b.next_at <= now()
ORDER BY row_number() OVER (PARTITION BY v.org_id ORDER BY b.next_at, v.volume_id), b.next_at, v.volume_id LIMIT $1`

// DueVolumeBackups are schedules whose backup is due.
func (s *Store) DueVolumeBackups(ctx context.Context, most int) ([]tenant.BackupSchedule, error) {
	return s.schedules(ctx, "backups that are due", sqlDueVolumeBackups, most, scheduleOfVolume)
}

func scheduleOfVolume(id string) tenant.BackupSchedule {
	return tenant.BackupSchedule{VolumeID: prego.VolumeID(id)}
}

const volumeBackedUp = `EXISTS (SELECT FROM backups k WHERE k.volume_id = b.volume_id AND k.state = 'stored' AND k.taken_at >= b.due_at - interval '5 minutes')`

// A volume that is on no server has not changed since it was on one, and is not backed up by
// schedule: its last backup stands, and no backup is missed meanwhile.
const sqlTakeDueVolumeBackup = `
WITH due AS (UPDATE volume_backup_schedules b SET next_at = $3, due_at = CASE WHEN b.due_at IS NULL OR ` + volumeBackedUp + `
        OR NOT EXISTS (SELECT FROM volume_attachments a WHERE a.volume_id = b.volume_id AND a.deleted_at IS NULL AND a.server_id IS NOT NULL) THEN b.next_at ELSE b.due_at END
    WHERE b.volume_id = $1 AND b.next_at = $2 RETURNING b.volume_id)
INSERT INTO backups (backup_id, org_id, volume_id, server_id, site, kind, created_by)
SELECT $4, v.org_id, v.volume_id, a.server_id, '', 'scheduled', $5
FROM due JOIN volumes v ON v.volume_id = due.volume_id JOIN volume_attachments a ON a.volume_id = v.volume_id AND a.deleted_at IS NULL AND a.server_id IS NOT NULL
WHERE v.status = 'ready' AND v.deleted_at IS NULL
ON CONFLICT (volume_id) WHERE volume_id IS NOT NULL AND state IN ('queued', 'making', 'uploading') DO NOTHING`

const lateVolumeBackups = `
FROM volume_backup_schedules b JOIN volume_attachments a ON a.volume_id = b.volume_id AND a.deleted_at IS NULL AND a.server_id IS NOT NULL
WHERE b.next_at IS NOT NULL AND b.due_at < now() - make_interval(secs => $1) AND NOT ` + volumeBackedUp

const sqlLateVolumeBackups = `SELECT b.volume_id` + lateVolumeBackups + ` ORDER BY b.due_at LIMIT $2`

// LateVolumeBackups are volumes on a server whose backup was due so long ago, and has not been
// stored since.
func (s *Store) LateVolumeBackups(ctx context.Context, after time.Duration, most int) ([]prego.VolumeID, error) {
	return collectValues[prego.VolumeID](ctx, s, "late backups", sqlLateVolumeBackups, after.Seconds(), most)
}

const (
	sqlVolumeOnServer = `
SELECT COALESCE((SELECT server_id FROM volume_attachments WHERE volume_id = $1 AND server_id IS NOT NULL ORDER BY deleted_at NULLS FIRST LIMIT 1), '')`
	sqlVolumeLent = `SELECT COALESCE(lent_to, '') AS lent_to, lent_for FROM volumes WHERE volume_id = $1`
	sqlLendVolume = `UPDATE volumes SET lent_to = $2, lent_for = $3 WHERE volume_id = $1 AND (lent_for = '' OR lent_for = $3)`
)

// LendVolume has a volume that no group has on a server for a backup or a restore, on the server
// that it returns: the wanted one, if any. For a volume that is with its group lent is false.
// Until it is returned no group gets it.
func (s *Store) LendVolume(ctx context.Context, id prego.VolumeID, want prego.ServerID, work string) (at prego.ServerID, lent bool, err error) {
	err = s.inVolume(ctx, "lend volume", id, func(tx *txn, v workload.Volume) error {
		if at, err = value[prego.ServerID](ctx, tx, sqlVolumeOnServer, id); err != nil || at != "" {
			return err
		}
		type row struct {
			LentTo  prego.ServerID
			LentFor string
		}
		now := oneIn[row](ctx, tx, sqlVolumeLent, id)
		if now.LentFor != "" && now.LentFor != work {
			return prego.Errorf(prego.CodeVolumeInUse, "volume %s is being worked on by %s", id, now.LentFor)
		}
		if at = cmp.Or(now.LentTo, want); at == "" {
			at = valueIn[prego.ServerID](ctx, tx, sqlVolumeHost, id)
		}
		if at == "" {
			return prego.Errorf(prego.CodeInsufficientResources, "no server at %s can have volume %s for a while", v.Location, id)
		}
		if now.LentTo == "" {
			tx.check(hasVolumeSlot(ctx, tx, at, id))
		}
		lent = true
		return change(ctx, tx, nil, sqlLendVolume, id, at, work)
	})
	return at, lent, err
}

const (
	sqlHoldServerSlots = `SELECT FROM servers WHERE server_id = $1 FOR NO KEY UPDATE`
	sqlOthersVolumes   = `SELECT count(DISTINCT volume_id) AS n, kept_for_tenants($1) AS kept FROM volumes_on($1) WHERE volume_id <> $2`
)

// hasVolumeSlot ensures that a server can have one more volume. Its row is held, as a placement of an
// instance and a dedication to a tenant hold it, so that of two requests for the last slot one sees the other.
func hasVolumeSlot(ctx context.Context, tx *txn, at prego.ServerID, id prego.VolumeID) error {
	tx.run(ctx, sqlHoldServerSlots, at)
	has, err := one[struct {
		N    int
		Kept bool
	}](ctx, tx, sqlOthersVolumes, at, id)
	switch {
	case err != nil:
		return err
	case has.Kept:
		return prego.Errorf(prego.CodeInsufficientResources, "server %s has become dedicated to a tenant", at)
	case has.N >= server.MaxServerVolumes:
		return prego.Errorf(prego.CodeInsufficientResources, "server %s has %d volumes, and the provider attaches no more than %d", at, has.N, server.MaxServerVolumes)
	}
	return nil
}

const sqlVolumeLentFor = `SELECT COALESCE((SELECT lent_to FROM volumes WHERE volume_id = $1 AND lent_for = $2), '')`

// VolumeLent is the server that has a volume for a backup or a restore; "" for none.
func (s *Store) VolumeLent(ctx context.Context, id prego.VolumeID, work string) (prego.ServerID, error) {
	at, err := value[prego.ServerID](ctx, s.pool, sqlVolumeLentFor, id, work)
	return at, failed("lent volume", err)
}

const sqlReturnVolume = `UPDATE volumes SET lent_to = NULL, lent_for = '' WHERE volume_id = $1 AND lent_for = $2`

// ReturnVolume records that a volume is on no server any more.
func (s *Store) ReturnVolume(ctx context.Context, id prego.VolumeID, work string) error {
	return s.exec(ctx, "return volume", sqlReturnVolume, id, work)
}

const volumeRestoreColumns = `r.restore_id, r.org_id, r.volume_id, r.backup_id, r.status, r.reason, r.message, r.created_by, r.created_at, r.finished_at`

const sqlCreateVolumeRestore = `INSERT INTO volume_restores AS r (restore_id, org_id, volume_id, backup_id, created_by, named) VALUES ($1, $2, $3, $4, $5, $6) RETURNING ` + volumeRestoreColumns

const sqlVolumeBackupState = `SELECT state, missing_at FROM backups WHERE backup_id = $1 AND volume_id = $2 AND state <> 'deleted' FOR SHARE`

const sqlNewestVolumeBackup = `SELECT b.backup_id FROM backups b WHERE b.volume_id = $1 AND ` + usableBackup + ` ORDER BY b.taken_at DESC LIMIT 1`

func insertVolumeRestore(ctx context.Context, tx *txn, r workload.VolumeRestore, of prego.VolumeID, named bool) (workload.VolumeRestore, error) {
	b, err := one[backupStands](ctx, tx, sqlVolumeBackupState, r.BackupID, of)
	if isNoRows(err) {
		return r, &prego.Error{Code: prego.CodeBackupUnknown, Field: "backup_id", Message: "is not a backup of this volume"}
	}
	if err = cmp.Or(err, b.refusal()); err != nil {
		return r, err
	}
	out, err := one[workload.VolumeRestore](ctx, tx, sqlCreateVolumeRestore, r.RestoreID, r.OrgID, r.VolumeID, r.BackupID, r.CreatedBy, named)
	if err != nil {
		if isViolation(err, "volume_restores_under_way") {
			return out, prego.Errorf(prego.CodeRestoreUnderWay, "volume %s is being restored already", r.VolumeID)
		}
		return out, err
	}
	return out, orgEvent(ctx, tx, org.Event{OrgID: r.OrgID, Type: "restore.create", Subject: r.RestoreID, Actor: r.CreatedBy}, map[string]any{"volume_id": r.VolumeID, "backup_id": r.BackupID})
}

const sqlVolumeInstances = `
SELECT count(*) FROM volume_attachments a JOIN instances i ON i.group_id = a.group_id WHERE a.volume_id = $1 AND a.deleted_at IS NULL AND i.state <> 'stopped'`

const sqlVolumeBusy = `SELECT EXISTS (SELECT FROM backups WHERE volume_id = $1 AND state IN ('making', 'uploading'))`

// CreateVolumeRestore accepts a restore of a volume in place of its content. Its group must be
// stopped, and stays so until it is done.
func (s *Store) CreateVolumeRestore(ctx context.Context, r workload.VolumeRestore) (out workload.VolumeRestore, err error) {
	err = s.inVolume(ctx, "restore volume", r.VolumeID, func(tx *txn, v workload.Volume) error {
		if v.Status != workload.ResourceReady {
			return prego.Errorf(prego.CodeInvalidTransition, "volume %s is %s: only a ready volume can be restored", r.VolumeID, v.Status)
		}
		n := valueIn[int](ctx, tx, sqlVolumeInstances, r.VolumeID)
		if n > 0 {
			return prego.Errorf(prego.CodeVolumeInUse, "%d instances that write to volume %s are not stopped: scale its process group to 0 first", n, r.VolumeID)
		}
		if valueIn[bool](ctx, tx, sqlVolumeBusy, r.VolumeID) {
			return prego.Errorf(prego.CodeBackupUnderWay, "a backup of volume %s is under way", r.VolumeID)
		}
		tx.check(s.takeQuota(ctx, tx, v.OrgID, quota.Delta{Dimension: quota.MaxRestoreJobs, By: 1}))
		tx.demands(ctx, "", string(r.VolumeID), sqlOfVolume)
		r.OrgID = v.OrgID
		out = got(insertVolumeRestore(ctx, tx, r, r.VolumeID, true)).in(tx)
		return nil
	})
	return out, err
}

// CloneVolume requests a volume with the content of another one's backup; without a backup, of its
// newest. It has the other one's location, and its size if it is given none.
func (s *Store) CloneVolume(ctx context.Context, of prego.VolumeID, v workload.Volume, r workload.VolumeRestore, environment string) (out workload.Volume, job workload.VolumeRestore, err error) {
	err = s.inTx(ctx, "clone volume", func(tx *txn) error {
		// Also of a deleted volume, while its last backup is kept.
		from := got(oneVolume(ctx, tx, string(of), sqlVolumeEver, of)).in(tx)
		tx.check(lockOrg(ctx, tx, from.OrgID))
		v.OrgID, v.Region, v.Location = from.OrgID, from.Region, from.Location
		if v.SizeBytes == 0 {
			v.SizeBytes = from.SizeBytes
		}
		if err := v.Validate(); err != nil {
			return err
		}
		named := r.BackupID != ""
		if !named {
			newest := valueOr[prego.BackupID](ctx, tx, prego.Errorf(prego.CodeBackupNotFound, "volume %s has no backup", of), sqlNewestVolumeBackup, of)
			r.BackupID = newest
		}
		tx.check(nameIsFree(ctx, tx, prego.CodeVolumeNameTaken, sqlVolumeOfName, string(v.OrgID), v.Name))
		tx.check(s.takeQuota(ctx, tx, v.OrgID, quota.Delta{Dimension: quota.MaxVolumes, By: 1},
			quota.Delta{Dimension: quota.MaxTotalVolumeBytes, By: float64(v.SizeBytes)}, quota.Delta{Dimension: quota.MaxRestoreJobs, By: 1},
			quota.Cents(tx.volumePrice(ctx, from.Provider, v.Location, float64(v.SizeBytes)/bytesPerGB).Cents)))
		out = got(oneVolume(ctx, tx, string(v.VolumeID), sqlCreateVolume, v.VolumeID, v.OrgID, v.Region, v.Location, v.Name, v.SizeBytes, from.Provider, workload.ResourceName(environment, string(v.VolumeID)), r.CreatedBy)).in(tx)
		tx.check(orgEvent(ctx, tx, org.Event{OrgID: v.OrgID, Type: "volume.create", Subject: string(v.VolumeID), Actor: r.CreatedBy},
			map[string]any{"name": v.Name, "region": v.Region, "location": v.Location, "size_bytes": v.SizeBytes, "copy_of": of}))
		r.OrgID, r.VolumeID = v.OrgID, v.VolumeID
		job = got(insertVolumeRestore(ctx, tx, r, of, named)).in(tx)
		return nil
	})
	return out, job, err
}

const sqlVolumeEver = `SELECT ` + volumeColumns + ` FROM volumes v WHERE v.volume_id = $1`

// VolumeEver reads a volume, including a deleted one.
func (s *Store) VolumeEver(ctx context.Context, id prego.VolumeID) (workload.Volume, error) {
	return oneVolume(ctx, s.pool, string(id), sqlVolumeEver, id)
}

const sqlLentLeft = `
SELECT v.volume_id, v.lent_for FROM volumes v WHERE v.lent_to IS NOT NULL
  AND NOT EXISTS (SELECT FROM backups b WHERE b.backup_id = v.lent_for AND b.state IN ('queued', 'making'))
  AND NOT EXISTS (SELECT FROM volume_restores r WHERE r.restore_id = v.lent_for AND r.finished_at IS NULL) ORDER BY md5(v.volume_id || now()) LIMIT $1`

// LentVolumes are volumes whose loans have ended, by what they are lent for.
func (s *Store) LentVolumes(ctx context.Context, most int) (map[prego.VolumeID]string, error) {
	type row struct {
		VolumeID prego.VolumeID
		LentFor  string
	}
	rows, err := collect[row](ctx, s, "lent volumes", sqlLentLeft, most)
	out := make(map[prego.VolumeID]string, len(rows))
	for _, r := range rows {
		out[r.VolumeID] = r.LentFor
	}
	return out, err
}

const sqlGetVolumeRestore = `SELECT ` + volumeRestoreColumns + ` FROM volume_restores r WHERE r.restore_id = $1`

// VolumeRestoreRecord reads a restore, or CodeRestoreNotFound.
func (s *Store) VolumeRestoreRecord(ctx context.Context, id string) (workload.VolumeRestore, error) {
	return get[workload.VolumeRestore](ctx, s.pool, prego.Errorf(prego.CodeRestoreNotFound, "there is no restore %q", id), sqlGetVolumeRestore, id)
}

// GetVolumeRestore reads one restore of a volume, or CodeRestoreNotFound.
func (s *Store) GetVolumeRestore(ctx context.Context, volumeID prego.VolumeID, id string) (workload.VolumeRestore, error) {
	r, err := s.VolumeRestoreRecord(ctx, id)
	if err == nil && r.VolumeID != volumeID {
		err = prego.Errorf(prego.CodeRestoreNotFound, "there is no restore %q of this volume", id)
	}
	return r, err
}

// VolumeRestores is the list of restores of volumes.
var VolumeRestores = Listing[workload.VolumeRestore]{
	what: "restores of volumes", from: `SELECT ` + volumeRestoreColumns + ` FROM volume_restores r`,
	filters: map[string]string{"volume_id": "r.volume_id"},
	sorts:   map[string]string{"created_at": "r.created_at"},
	id:      "r.restore_id",
}

const (
	sqlVolumeRestoreBegun = `UPDATE volume_restores SET status = 'running' WHERE restore_id = $1 AND status = 'queued'`
	// What a restore's message has besides what it waits for.
	restoreFrom           = `rtrim(split_part(r.message, 'not restored yet: ', 1), '; ')`
	sqlVolumeRestoreWaits = `
UPDATE volume_restores r SET message = concat_ws('; ', NULLIF(` + restoreFrom + `, ''), 'not restored yet: ' || $2)
WHERE restore_id = $1 AND finished_at IS NULL`
	sqlVolumeRestoreFromOlder = `
UPDATE volume_restores r SET backup_id = n.backup_id,
    message = 'backup ' || $2 || ' can''t be restored (' || $3 || '): it is restored from backup ' || n.backup_id
FROM (SELECT b.backup_id FROM backups was JOIN backups b ON b.volume_id = was.volume_id AND b.taken_at <= was.taken_at
    WHERE was.backup_id = $2 AND b.backup_id <> $2 AND ` + usableBackup + ` ORDER BY b.taken_at DESC, b.backup_id LIMIT 1) n
WHERE r.restore_id = $1 AND r.backup_id IN ($2, n.backup_id) AND r.finished_at IS NULL AND NOT r.named`
	sqlVolumeRestoreFinished = `
UPDATE volume_restores r SET status = CASE WHEN $2 = '' THEN 'succeeded' ELSE 'failed' END, reason = $2, message = CASE WHEN $2 = '' THEN ` + restoreFrom + ` ELSE $3 END, finished_at = now() WHERE restore_id = $1 AND finished_at IS NULL`
)

// VolumeRestoreBegun records that a restore has started.
func (s *Store) VolumeRestoreBegun(ctx context.Context, id string) error {
	return s.exec(ctx, "restore "+id, sqlVolumeRestoreBegun, id)
}

// VolumeRestoreWaits records why a restore has not succeeded yet, while it is tried again.
func (s *Store) VolumeRestoreWaits(ctx context.Context, id, why string) error {
	return s.exec(ctx, "restore "+id, sqlVolumeRestoreWaits, id, prego.Redact(why))
}

// VolumeRestoreFromOlder has a restore continue with the next older backup than an unusable one, which is
// recorded before. ok is false if none is left, or the caller has named that one. Repeated, it finds that it does.
func (s *Store) VolumeRestoreFromOlder(ctx context.Context, id string, bad prego.BackupID, why string) (ok bool, err error) {
	err = s.inTx(ctx, "restore "+id, func(tx *txn) error {
		got(lockOwner(ctx, tx, noSuchBackup(bad), sqlOrgOfBackup, bad)).in(tx)
		ok, err = changed(ctx, tx, sqlVolumeRestoreFromOlder, id, bad, prego.Redact(why))
		return err
	})
	return ok, err
}

const sqlOrgOfBackup = `SELECT org_id FROM backups WHERE backup_id = $1`

// VolumeRestoreFinished records how a restore ended: with a reason if it failed.
func (s *Store) VolumeRestoreFinished(ctx context.Context, id string, reason prego.Reason, message string) error {
	return s.exec(ctx, "restore "+id, sqlVolumeRestoreFinished, id, reason, prego.Redact(message))
}

const sqlVolumeRestoresLeft = `SELECT restore_id FROM volume_restores WHERE finished_at IS NULL AND created_at < now() - make_interval(secs => $1) ORDER BY md5(restore_id || now()) LIMIT $2`

// VolumeRestoresLeft are restores that may have no run.
func (s *Store) VolumeRestoresLeft(ctx context.Context, quiet time.Duration, most int) ([]string, error) {
	return collectValues[string](ctx, s, "restores that are left", sqlVolumeRestoresLeft, quiet.Seconds(), most)
}
