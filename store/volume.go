package store

import (
	"context"
	"fmt"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

const volumeColumns = `v.volume_id, v.org_id, v.region, v.location, v.name, v.size_bytes, v.made_bytes, v.grown_bytes, v.provider, v.provider_name, COALESCE(v.provider_id, '') AS provider_id, CASE WHEN v.deleted_at IS NULL THEN v.status ELSE 'deleted' END AS status, v.reason, v.message, v.created_by, v.created_at,
    CASE WHEN v.kept_until > now() AND v.deleted_at IS NULL THEN v.kept_until END AS kept_until`

const attachmentColumns = `t.attachment_id, t.org_id, t.volume_id, t.group_id, t.mount_path, COALESCE(t.server_id, '') AS server_id, t.created_by, t.created_at, t.deleted_at`

func noSuchVolume(id string) error {
	return prego.Errorf(prego.CodeVolumeNotFound, "there is no volume %q", id)
}

func oneVolume(ctx context.Context, q querier, id, sql string, args ...any) (workload.Volume, error) {
	return get[workload.Volume](ctx, q, noSuchVolume(id), sql, args...)
}

const sqlVolumeOfName = `SELECT volume_id FROM volumes WHERE org_id = $1 AND name = $2 AND deleted_at IS NULL`

const sqlCreateVolume = `
INSERT INTO volumes AS v (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, status, created_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'pending', $9) RETURNING ` + volumeColumns

// CreateVolume requests a volume: the row is the intent that is carried out later.
func (s *Store) CreateVolume(ctx context.Context, v workload.Volume, environment, by string) (out workload.Volume, err error) {
	err = s.inTx(ctx, "create volume", func(tx *txn) error {
		tx.check(lockNamedOrg(ctx, tx, v.OrgID))
		provider := got(providerOf(ctx, tx, v.Region)).in(tx)
		tx.check(nameIsFree(ctx, tx, prego.CodeVolumeNameTaken, sqlVolumeOfName, string(v.OrgID), v.Name))
		tx.check(s.takeQuota(ctx, tx, v.OrgID, quota.Delta{Dimension: quota.MaxVolumes, By: 1}, quota.Delta{Dimension: quota.MaxTotalVolumeBytes, By: float64(v.SizeBytes)},
			quota.Cents(tx.volumePrice(ctx, provider, v.Location, float64(v.SizeBytes)/bytesPerGB).Cents)))
		out = got(oneVolume(ctx, tx, string(v.VolumeID), sqlCreateVolume, v.VolumeID, v.OrgID, v.Region, v.Location, v.Name, v.SizeBytes, provider, workload.ResourceName(environment, string(v.VolumeID)), by)).in(tx)
		tx.costsVolume(ctx, out, out.SizeBytes)
		return orgEvent(ctx, tx, org.Event{OrgID: v.OrgID, Type: "volume.create", Subject: string(v.VolumeID), Actor: by},
			map[string]any{"name": v.Name, "region": v.Region, "location": v.Location, "size_bytes": v.SizeBytes})
	})
	return out, err
}

const sqlGetVolume = `SELECT ` + volumeColumns + ` FROM volumes v WHERE v.volume_id = $1 AND v.deleted_at IS NULL`

const sqlVolumesAttachments = `SELECT ` + attachmentColumns + ` FROM volume_attachments t WHERE t.volume_id = ANY ($1) AND t.deleted_at IS NULL`

// withAttachments adds to volumes their attachments.
func (s *Store) withAttachments(ctx context.Context, volumes []workload.Volume) error {
	ids := make([]string, len(volumes))
	for i, v := range volumes {
		ids[i] = string(v.VolumeID)
	}
	list, err := collect[workload.VolumeAttachment](ctx, s, "attachments of volumes", sqlVolumesAttachments, ids)
	if err != nil {
		return err
	}
	for i := range volumes {
		for j := range list {
			if list[j].VolumeID == volumes[i].VolumeID {
				volumes[i].Attachment = &list[j]
			}
		}
	}
	return nil
}

// GetVolume reads one volume, or CodeVolumeNotFound.
func (s *Store) GetVolume(ctx context.Context, id string) (workload.Volume, error) {
	v, err := oneVolume(ctx, s.pool, id, sqlGetVolume, id)
	if err != nil {
		return v, failed("get volume", err)
	}
	one := []workload.Volume{v}
	err = s.withAttachments(ctx, one)
	return one[0], err
}

var volumes = Listing[workload.Volume]{
	what: "volumes", from: `SELECT ` + volumeColumns + ` FROM volumes v`,
	live:    `v.deleted_at IS NULL`,
	filters: map[string]string{"volume_id": "v.volume_id", "org_id": "v.org_id", "name": "v.name", "region": "v.region", "location": "v.location", "status": "v.status"},
	sorts:   map[string]string{"created_at": "v.created_at", "name": "v.name", "size_bytes": "v.size_bytes"},
	id:      "v.volume_id",
}

// ListVolumes is a page of volumes, without deleted ones.
func (s *Store) ListVolumes(ctx context.Context, q prego.ListQuery) (page []workload.Volume, next string, err error) {
	if page, next, err = volumes.page(ctx, s, q); err != nil {
		return nil, "", err
	}
	return page, next, s.withAttachments(ctx, page)
}

// Attachments is the list of attachments of volumes.
var Attachments = Listing[workload.VolumeAttachment]{
	what: "attachments", from: `SELECT ` + attachmentColumns + ` FROM volume_attachments t`,
	live:    `t.deleted_at IS NULL`,
	filters: map[string]string{"org_id": "t.org_id", "volume_id": "t.volume_id", "group_id": "t.group_id", "server_id": "t.server_id"},
	sorts:   map[string]string{"created_at": "t.created_at"},
	id:      "t.attachment_id",
}

// inVolume runs f in a transaction that holds the volume's org and the volume.
func (s *Store) inVolume(ctx context.Context, what string, id prego.VolumeID, f func(tx *txn, v workload.Volume) error) error {
	return s.inTx(ctx, what, func(tx *txn) error {
		v, err := holdVolume(ctx, tx, id)
		if err != nil {
			return err
		}
		return f(tx, v)
	})
}

func holdVolume(ctx context.Context, tx *txn, id prego.VolumeID) (workload.Volume, error) {
	v := got(oneVolume(ctx, tx, string(id), sqlGetVolume, id)).in(tx)
	tx.check(lockOrg(ctx, tx, v.OrgID))
	return oneVolume(ctx, tx, string(id), sqlHoldVolume, id)
}

const sqlHoldVolume = sqlGetVolume + ` FOR UPDATE`

const sqlVolumeAttached = `SELECT COALESCE((SELECT group_id FROM volume_attachments WHERE volume_id = $1 AND deleted_at IS NULL), '')`

// volumeHasData is whether a volume v may hold something: one that no group ever had and nothing was restored to is
// empty.
const volumeHasData = `(v.made_bytes > 0
    AND (EXISTS (SELECT FROM volume_attachments t WHERE t.volume_id = v.volume_id)
        OR EXISTS (SELECT FROM volume_restores r WHERE r.volume_id = v.volume_id)))`

const sqlVolumeReleasing = `
UPDATE volumes v SET status = 'releasing', reason = '', message = '', updated_at = now(),
    kept_until = CASE WHEN v.status = 'ready' AND ` + volumeHasData + ` THEN ` + keepUntil + ` END
WHERE v.volume_id = $1 RETURNING ` + volumeColumns

// DeleteVolume requests the deletion of a volume. An attached volume is refused. One that holds data is kept for a day
// first: it counts towards its org's quota until it is gone, since it is paid for, and can be had back without asking.
//
// Its last backup is made before it is destroyed, unless without gives a reason: also for a volume that is
// being deleted already, whose last backup does not succeed.
func (s *Store) DeleteVolume(ctx context.Context, id prego.VolumeID, without, by string) (out workload.Volume, err error) {
	err = s.inVolume(ctx, "delete volume", id, func(tx *txn, v workload.Volume) error {
		if without != "" {
			tx.check(s.withoutLastBackup(ctx, tx, v, without, by))
		}
		if out = v; v.Status == workload.ResourceReleasing {
			return nil
		}
		switch lent, err := value[string](ctx, tx, sqlLentFor, id); {
		case err != nil:
			return err
		case lent != "":
			return prego.Errorf(prego.CodeVolumeInUse, "volume %s is being worked on by %s; try again", id, lent)
		}
		group := valueIn[string](ctx, tx, sqlVolumeAttached, id)
		if group != "" {
			return prego.Errorf(prego.CodeVolumeAttached, "volume %s is attached to process group %s: detach it first", id, group)
		}
		out = got(oneVolume(ctx, tx, string(id), sqlVolumeReleasing, id)).in(tx)
		i := tx.saves(ctx, nil, v.ProviderName).of(impact.Impact{})
		i.Undo = undoUntil(out.KeptUntil, "prego volume undelete %s", v.Name)
		if out.KeptUntil != nil && i.MonthlyCents < 0 {
			cents := -i.MonthlyCents
			i.Undo += fmt.Sprintf(". Until then it costs %d.%02d %s a month", cents/100, cents%100, i.Currency)
		}
		tx.demandsAs(ctx, i, string(id), sqlOfVolume)
		return orgEvent(ctx, tx, org.Event{OrgID: v.OrgID, Type: "volume.delete", Subject: string(id), Actor: by}, map[string]any{"name": v.Name, "size_bytes": v.SizeBytes})
	})
	return out, err
}

const (
	sqlUndeleteVolume = `
UPDATE volumes v SET status = 'ready', kept_until = NULL, reason = '', message = '', last_backup = true,
    last_backup_tries = 0, last_backup_at = NULL
WHERE v.volume_id = $1 AND v.status = 'releasing' AND ` + canUndo + ` RETURNING ` + volumeColumns
	// What was its last backup is not the last any more: the next deletion makes another.
	sqlNotTheLast = `UPDATE backups SET kind = 'manual' WHERE volume_id = $1 AND kind = 'final' AND state <> 'deleted'`
)

// UndeleteVolume takes back the deletion of a volume that is still kept. A ready volume stays as it is.
func (s *Store) UndeleteVolume(ctx context.Context, id prego.VolumeID, by string) (out workload.Volume, err error) {
	err = s.inVolume(ctx, "undelete volume", id, func(tx *txn, v workload.Volume) error {
		if out = v; v.Status == workload.ResourceReady {
			tx.harmless(ctx)
			return nil
		}
		none := prego.Errorf(prego.CodeInvalidTransition, "volume %s is %s, and is not kept", id, v.Status)
		out = getIn[workload.Volume](ctx, tx, none, sqlUndeleteVolume, id)
		tx.run(ctx, sqlNotTheLast, id)
		tx.costsVolume(ctx, out, out.SizeBytes)
		return orgEvent(ctx, tx, org.Event{OrgID: v.OrgID, Type: "volume.undelete", Subject: string(id), Actor: by},
			map[string]any{"name": v.Name})
	})
	return out, err
}

const (
	sqlLentFor           = `SELECT lent_for FROM volumes WHERE volume_id = $1`
	sqlWithoutLastBackup = `UPDATE volumes SET last_backup = false WHERE volume_id = $1 AND last_backup`
)

func (s *Store) withoutLastBackup(ctx context.Context, tx *txn, v workload.Volume, reason, by string) error {
	if !tx.run(ctx, sqlWithoutLastBackup, v.VolumeID) {
		return nil
	}
	return orgEvent(ctx, tx, org.Event{OrgID: v.OrgID, Type: "volume.no_final_backup", Subject: string(v.VolumeID), Actor: by, Reason: reason}, map[string]any{"name": v.Name})
}

const sqlLastBackup = `
SELECT v.last_backup AND ` + volumeHasData + ` FROM volumes v WHERE v.volume_id = $1`

// WantsLastBackup reports whether a volume must be backed up before it is destroyed.
func (s *Store) WantsLastBackup(ctx context.Context, id prego.VolumeID) (bool, error) {
	wants, err := value[bool](ctx, s.pool, sqlLastBackup, id)
	return wants, failed("volume", err)
}

// The first tries are for failures that pass by themselves; an operator needs hours for a repair. A
// step that is repeated counts twice, which only makes the wait longer.
const sqlLastBackupFailed = `
UPDATE volumes SET reason = $2, last_backup_tries = tries, last_backup_at = now() + wait,
    message = format('it is kept, because its last backup failed: %s. Failed %s times so far; the next try is at %s, or when it is deleted once more. To delete it without a backup, say why: no_final_backup_reason',
        rtrim($3, '. '), tries, to_char((now() + wait) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"'))
FROM (SELECT tries, LEAST(interval '5 minutes' * 2 ^ LEAST(tries - 1, 10), interval '6 hours') AS wait FROM (
    SELECT last_backup_tries + 1 AS tries FROM volumes WHERE volume_id = $1) t) w
WHERE volume_id = $1 AND deleted_at IS NULL AND last_backup RETURNING tries, extract(epoch FROM wait)::float8 AS wait`

// LastBackupFailed records why a volume due for deletion is still there, and returns when its last
// backup must be tried again: after five minutes, and twice as long each time, up to six hours. Its org
// is notified the first time.
func (s *Store) LastBackupFailed(ctx context.Context, id prego.VolumeID, reason prego.Reason, message string) (wait time.Duration, err error) {
	err = s.inVolume(ctx, "last backup failed", id, func(tx *txn, v workload.Volume) error {
		got, err := one[struct {
			Tries int
			Wait  float64
		}](ctx, tx, sqlLastBackupFailed, id, reason, prego.Redact(message))
		if err != nil {
			return ifNoRows(err, nil) // it must now go without one
		}
		wait = time.Duration(got.Wait * float64(time.Second))
		if got.Tries > 1 {
			return nil
		}
		return orgEvent(ctx, tx, org.Event{OrgID: v.OrgID, Type: "volume.last_backup_failed", Subject: string(id), Actor: string(prego.ActorSystem), Reason: string(reason)}, map[string]any{"name": v.Name})
	})
	if prego.CodeOf(err) == prego.CodeVolumeNotFound {
		err = nil
	}
	return wait, err
}

const sqlGrowVolume = `
UPDATE volumes v SET size_bytes = $2, updated_at = now() WHERE v.volume_id = $1 RETURNING ` + volumeColumns

// GrowVolume requests a larger volume. The growth counts immediately.
func (s *Store) GrowVolume(ctx context.Context, id prego.VolumeID, size int64, by string) (out workload.Volume, err error) {
	err = s.inVolume(ctx, "grow volume", id, func(tx *txn, v workload.Volume) error {
		if err := v.ValidateGrowth(size); err != nil {
			return err
		}
		if v.Status != workload.ResourceReady {
			return prego.Errorf(prego.CodeInvalidTransition, "volume %s is %s: only a ready volume can grow", id, v.Status)
		}
		if out = v; size == v.SizeBytes {
			tx.harmless(ctx)
			return nil
		}
		tx.check(s.takeQuota(ctx, tx, v.OrgID, quota.Delta{Dimension: quota.MaxTotalVolumeBytes, By: float64(size - v.SizeBytes)},
			quota.Cents(tx.volumePrice(ctx, v.Provider, v.Location, float64(size)/bytesPerGB).Cents-
				tx.volumePrice(ctx, v.Provider, v.Location, float64(v.SizeBytes)/bytesPerGB).Cents)))
		tx.costsVolume(ctx, v, size-v.SizeBytes)
		out = got(oneVolume(ctx, tx, string(id), sqlGrowVolume, id, size)).in(tx)
		return orgEvent(ctx, tx, org.Event{OrgID: v.OrgID, Type: "volume.grow", Subject: string(id), Actor: by}, map[string]any{"name": v.Name, "from_bytes": v.SizeBytes, "size_bytes": size})
	})
	return out, err
}

const sqlVolumeGrown = `UPDATE volumes SET made_bytes = GREATEST(made_bytes, $2), grown_bytes = GREATEST(grown_bytes, $3) WHERE volume_id = $1`

// VolumeGrown records a volume's new size, at the provider and in its file system.
func (s *Store) VolumeGrown(ctx context.Context, id prego.VolumeID, made, grown int64) error {
	return s.inTx(ctx, fmt.Sprintf("volume %s has grown", id), func(tx *txn) error {
		tx.run(ctx, sqlVolumeGrown, id, made, grown)
		tx.run(ctx, sqlVolumeNotRefused, id)
		return nil
	})
}

const sqlVolumeServer = `SELECT COALESCE((SELECT server_id FROM volume_attachments WHERE volume_id = $1 AND server_id IS NOT NULL AND deleted_at IS NULL), '')`

// VolumeServer is the server that has a volume for a group; "" for none.
func (s *Store) VolumeServer(ctx context.Context, id prego.VolumeID) (prego.ServerID, error) {
	at, err := value[prego.ServerID](ctx, s.pool, sqlVolumeServer, id)
	return at, failed(fmt.Sprintf("server of volume %s", id), err)
}

// The group is held before its org, so that it is not scaled meanwhile.
const sqlHoldAttaching = `SELECT FROM process_groups WHERE group_id = $1 FOR NO KEY UPDATE`

const sqlAttachFacts = `SELECT region, replicas FROM process_groups WHERE group_id = $1 AND org_id = $2 AND deleted_at IS NULL`

const sqlVolumeLeft = `SELECT COALESCE((SELECT server_id FROM volume_attachments WHERE volume_id = $1 AND deleted_at IS NOT NULL AND server_id IS NOT NULL LIMIT 1), '')`

const sqlMountTaken = `SELECT EXISTS (SELECT FROM volume_attachments WHERE group_id = $1 AND mount_path = $2 AND deleted_at IS NULL)`

// Volumes of one group stand where one server can have them all.
const sqlGroupLocation = `
SELECT COALESCE((SELECT v.location FROM volume_attachments t JOIN volumes v USING (volume_id) WHERE t.group_id = $1 AND t.deleted_at IS NULL LIMIT 1), '')`

const sqlCreateAttachment = `
INSERT INTO volume_attachments AS t (attachment_id, org_id, volume_id, group_id, mount_path, created_by) VALUES ($1, $2, $3, $4, $5, $6) RETURNING ` + attachmentColumns

// What runs is replaced by a release of the same spec, so that it is mounted.
const sqlRemount = `
UPDATE process_groups g SET converged = false, next_attempt_at = NULL, updated_at = now(), wanted = CASE WHEN r.live THEN 0 ELSE wanted END,
    release = CASE WHEN r.live THEN last_release + 1 ELSE release END, last_release = CASE WHEN r.live THEN last_release + 1 ELSE last_release END,
    deploy_status = CASE WHEN r.live THEN 'stopping_first' ELSE deploy_status END, failures = CASE WHEN r.live THEN 0 ELSE failures END,
    deploy_message = CASE WHEN r.live THEN 'a volume was attached: what runs stops, and starts again with it' ELSE deploy_message END,
    deploy_reason = CASE WHEN r.live THEN '' ELSE deploy_reason END, progress_at = now(), last_rollout = CASE WHEN r.live THEN last_rollout + 1 ELSE last_rollout END
FROM (SELECT EXISTS (SELECT FROM instances WHERE group_id = $1 AND state <> 'stopped') AS live) r WHERE g.group_id = $1 RETURNING r.live`

// AttachVolume assigns a volume to a process group. The scheduler brings it to
// the group's server.
func (s *Store) AttachVolume(ctx context.Context, a workload.VolumeAttachment, by string) (out workload.VolumeAttachment, err error) {
	err = s.inTx(ctx, "attach volume", func(tx *txn) error {
		tx.run(ctx, sqlHoldAttaching, a.GroupID)
		v := got(holdVolume(ctx, tx, a.VolumeID)).in(tx)
		refuse := func(code prego.Code, field, format string, args ...any) error {
			return &prego.Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
		}
		var region prego.Region
		var replicas int
		err = tx.QueryRow(ctx, sqlAttachFacts, a.GroupID, v.OrgID).Scan(&region, &replicas)
		if err != nil {
			return ifNoRows(err, refuse(prego.CodeGroupUnknown, "group_id", "is not a process group of the volume's org"))
		}
		var attached, left, location string
		var mounted bool
		lent := valueIn[string](ctx, tx, sqlLentFor, a.VolumeID)
		tx.check(tx.QueryRow(ctx, sqlVolumeAttached, a.VolumeID).Scan(&attached))
		tx.check(tx.QueryRow(ctx, sqlVolumeLeft, a.VolumeID).Scan(&left))
		tx.check(tx.QueryRow(ctx, sqlMountTaken, a.GroupID, a.MountPath).Scan(&mounted))
		tx.check(tx.QueryRow(ctx, sqlGroupLocation, a.GroupID).Scan(&location))
		switch {
		case v.Status == workload.ResourceReleasing || v.Status == workload.ResourceFailed:
			return prego.Errorf(prego.CodeInvalidTransition, "volume %s is %s", a.VolumeID, v.Status)
		case attached != "":
			return prego.Errorf(prego.CodeVolumeAttached, "volume %s is attached to process group %s: it has one writer", a.VolumeID, attached)
		case lent != "":
			return prego.Errorf(prego.CodeVolumeInUse, "volume %s is being worked on by %s; try again", a.VolumeID, lent)
		case left != "":
			return prego.Errorf(prego.CodeVolumeInUse, "volume %s is still being taken from server %s; try again", a.VolumeID, left)
		case region != v.Region:
			return refuse(prego.CodeVolumeMismatch, "group_id", "is in region %s, the volume in %s", region, v.Region)
		case location != "" && location != v.Location:
			return refuse(prego.CodeVolumeMismatch, "group_id", "has a volume at location %s, and this one is at %s: no server has both", location, v.Location)
		case replicas > 1:
			return refuse(prego.CodeSingleWriter, "group_id", "has %d replicas, and a volume has one writer: scale it to 1 first", replicas)
		case mounted:
			return prego.Invalid("mount_path", "is that of another volume of the group")
		}
		tx.check(s.takeQuota(ctx, tx, v.OrgID, quota.Delta{Dimension: quota.MaxVolumeAttachments, By: 1}))
		out = oneIn[workload.VolumeAttachment](ctx, tx, sqlCreateAttachment, a.AttachmentID, v.OrgID, a.VolumeID, a.GroupID, a.MountPath, by)
		tx.demands(ctx, "", string(a.GroupID), sqlOfGroup)
		if valueIn[bool](ctx, tx, sqlRemount, a.GroupID) {
			tx.check(beginRollout(ctx, tx, a.GroupID, workload.RolloutRestart, by, ""))
		}
		return orgEvent(ctx, tx, org.Event{OrgID: v.OrgID, Type: "attachment.create", Subject: a.AttachmentID, Actor: by}, attachmentPayload(out))
	})
	return out, err
}

func attachmentPayload(a workload.VolumeAttachment) map[string]any {
	return map[string]any{"volume_id": a.VolumeID, "group_id": a.GroupID, "mount_path": a.MountPath}
}

const sqlHoldAttachment = `SELECT ` + attachmentColumns + ` FROM volume_attachments t WHERE t.volume_id = $1 AND t.attachment_id = $2 AND t.deleted_at IS NULL FOR UPDATE`

const sqlGroupInstances = `SELECT count(*) FROM instances WHERE group_id = $1 AND state <> 'stopped'`

const sqlDeleteAttachment = `UPDATE volume_attachments SET deleted_at = now() WHERE attachment_id = $1`

// DetachVolume takes a volume from its group. What may still write to it refuses
// that. The volume's run takes it from the server.
func (s *Store) DetachVolume(ctx context.Context, volumeID prego.VolumeID, attachmentID, by string) error {
	return s.inVolume(ctx, "detach volume", volumeID, func(tx *txn, v workload.Volume) error {
		a := getIn[workload.VolumeAttachment](ctx, tx, prego.Errorf(prego.CodeAttachmentNotFound, "volume %s has no attachment %q", volumeID, attachmentID), sqlHoldAttachment, volumeID, attachmentID)
		instances := valueIn[int](ctx, tx, sqlGroupInstances, a.GroupID)
		if instances > 0 {
			return prego.Errorf(prego.CodeVolumeInUse, "%d instances of process group %s are not stopped: scale it to 0 first", instances, a.GroupID)
		}
		tx.run(ctx, sqlDeleteAttachment, attachmentID)
		return orgEvent(ctx, tx, org.Event{OrgID: v.OrgID, Type: "attachment.delete", Subject: attachmentID, Actor: by}, attachmentPayload(a))
	})
}

// VolumeRecord reads a volume that exists or will; ok is false once it is gone.
func (s *Store) VolumeRecord(ctx context.Context, id string) (v workload.Volume, ok bool, err error) {
	v, err = oneVolume(ctx, s.pool, id, sqlGetVolume, id)
	if prego.CodeOf(err) == prego.CodeVolumeNotFound {
		return v, false, nil
	}
	return v, err == nil, failed("volume", err)
}

// If release was requested in the meantime, it stays requested, and the id is recorded.
const sqlVolumeMade = `
UPDATE volumes SET provider_id = $2, made_bytes = GREATEST(made_bytes, $3), grown_bytes = GREATEST(grown_bytes, $3), status = CASE status WHEN 'pending' THEN 'ready' ELSE status END, reason = '', message = ''
WHERE volume_id = $1 AND deleted_at IS NULL`

// VolumeMade records that the volume is there, in the row and in the ledger.
func (s *Store) VolumeMade(ctx context.Context, v workload.Volume, providerID string) error {
	return s.inTx(ctx, fmt.Sprintf("volume %s is made", v.VolumeID), func(tx *txn) error {
		tx.check(confirmCreated(ctx, tx, v.Provider, "", 0, server.ResourceVolume, v.ProviderName, providerID))
		tx.run(ctx, sqlVolumeMade, v.VolumeID, providerID, v.SizeBytes)
		return nil
	})
}

const sqlVolumeWaits = `
UPDATE volumes SET status = CASE WHEN $4 THEN 'failed' ELSE status END, reason = $2, message = $3
WHERE volume_id = $1 AND deleted_at IS NULL AND status = 'pending'`

// VolumeWaits records why the volume is not there yet or, when failed, will not be.
func (s *Store) VolumeWaits(ctx context.Context, id string, reason prego.Reason, message string, failed bool) error {
	return s.exec(ctx, fmt.Sprintf("volume %s waits", id), sqlVolumeWaits, id, reason, prego.Redact(message), failed)
}

const (
	sqlVolumeRefused = `
UPDATE volumes SET reason = 'change_refused', message = $2, updated_at = CASE reason WHEN 'change_refused' THEN
    updated_at ELSE now() END
WHERE volume_id = $1 AND deleted_at IS NULL AND status IN ('ready', 'releasing') AND (reason, message) IS DISTINCT FROM
    ('change_refused', $2)`
	sqlVolumeNotRefused = `
UPDATE volumes SET reason = '', message = '' WHERE volume_id = $1 AND status = 'ready' AND reason = 'change_refused'`
)

// VolumeRefused records why the provider does not make a volume larger, detach it or delete it as its row asks.
func (s *Store) VolumeRefused(ctx context.Context, id prego.VolumeID, message string) error {
	return s.exec(ctx, fmt.Sprintf("volume %s is refused", id), sqlVolumeRefused, id, prego.Redact(message))
}

const sqlVolumeGone = `UPDATE volumes SET deleted_at = now() WHERE volume_id = $1 AND deleted_at IS NULL`

// VolumeGone ends a volume.
func (s *Store) VolumeGone(ctx context.Context, v workload.Volume) error {
	return s.recordGone(ctx, v.Provider, server.ResourceVolume, v.ProviderName, sqlVolumeGone, string(v.VolumeID))
}

const (
	sqlVolumeNotAttached = `
UPDATE volumes SET reason = 'not_attached', message = $2, updated_at = CASE reason WHEN 'not_attached' THEN
    updated_at ELSE now() END
WHERE volume_id = $1 AND deleted_at IS NULL AND status = 'ready' AND (reason, message) IS DISTINCT FROM
    ('not_attached', $2)`
	sqlVolumeAttachedNow = `UPDATE volumes SET reason = '', message = '' WHERE volume_id = $1 AND reason =
		'not_attached'`
)

// VolumeNotAttached records why a ready volume can't be used on the server that has it according to its row.
func (s *Store) VolumeNotAttached(ctx context.Context, id prego.VolumeID, message string) error {
	return s.exec(ctx, fmt.Sprintf("volume %s is not attached", id), sqlVolumeNotAttached, id, prego.Redact(message))
}

// VolumeAttached ends that.
func (s *Store) VolumeAttached(ctx context.Context, id prego.VolumeID) error {
	return s.exec(ctx, fmt.Sprintf("volume %s is attached", id), sqlVolumeAttachedNow, id)
}

const sqlAttachedVolumes = `
SELECT v.volume_id, v.org_id, v.provider, v.provider_id, t.group_id, t.server_id, s.provider_server_id,
    ARRAY(SELECT i.instance_id FROM instances i WHERE i.group_id = t.group_id AND i.server_id = t.server_id
        AND (i.state = 'running' OR i.state = 'booting' AND i.started_at IS NOT NULL)) AS instances
FROM volume_attachments t JOIN volumes v ON v.volume_id = t.volume_id JOIN servers s ON s.server_id = t.server_id
WHERE t.deleted_at IS NULL AND t.server_id IS NOT NULL AND v.provider = $1 AND ($2 = '' OR v.volume_id = $2) AND
    v.provider_id IS NOT NULL
    AND v.deleted_at IS NULL AND v.status = 'ready' AND v.lent_for = '' AND s.status = 'active' AND
        s.provider_server_id IS NOT NULL
ORDER BY v.volume_id`

// AttachedVolumes are the volumes that servers have for process groups according to the rows: all at a provider, or
// one.
func (s *Store) AttachedVolumes(ctx context.Context, provider prego.InfraProviderID,
	only prego.VolumeID,
) ([]workload.AttachedVolume, error) {
	return collect[workload.AttachedVolume](ctx, s, "attached volumes", sqlAttachedVolumes, provider, only)
}

const sqlLeftAttached = `SELECT ` + attachmentColumns + ` FROM volume_attachments t WHERE t.volume_id = $1 AND t.deleted_at IS NOT NULL AND t.server_id IS NOT NULL ORDER BY t.attachment_id`

// LeftAttached are the ended attachments of a volume that it may still be on a
// server for.
func (s *Store) LeftAttached(ctx context.Context, volumeID prego.VolumeID) ([]workload.VolumeAttachment, error) {
	return collect[workload.VolumeAttachment](ctx, s, "ended attachments", sqlLeftAttached, volumeID)
}

const sqlGroupAttachments = `SELECT ` + attachmentColumns + ` FROM volume_attachments t WHERE t.group_id = $1 AND t.deleted_at IS NULL ORDER BY t.attachment_id`

// GroupAttachments are the volumes of a process group.
func (s *Store) GroupAttachments(ctx context.Context, groupID prego.GroupID) ([]workload.VolumeAttachment, error) {
	return collect[workload.VolumeAttachment](ctx, s, "attachments of group", sqlGroupAttachments, groupID)
}

const sqlAttachedTo = `UPDATE volume_attachments SET server_id = NULLIF($2, '') WHERE attachment_id = $1 AND ($2 = '' OR deleted_at IS NULL)`

// AttachedTo records the server that a volume is about to be on, before it is, or ""
// once it is on none. An attachment that has ended goes nowhere any more: another group
// may have the volume.
func (s *Store) AttachedTo(ctx context.Context, attachmentID string, serverID prego.ServerID) error {
	return s.inTx(ctx, "attachment "+attachmentID, func(tx *txn) error {
		// Held, so that it is not lent to a backup or a restore meanwhile.
		lent, err := value[string](ctx, tx, sqlHoldLent, attachmentID)
		if err = ifNoRows(err, nil); err != nil {
			return err
		}
		if lent != "" && serverID != "" {
			return prego.Errorf(prego.CodeVolumeInUse, "its volume is being worked on by %s, and is with its group again after that", lent)
		}
		tag, err := tx.Exec(ctx, sqlAttachedTo, attachmentID, serverID)
		if err == nil && tag.RowsAffected() == 0 {
			return prego.Errorf(prego.CodeAttachmentNotFound, "attachment %s has ended", attachmentID)
		}
		if err == nil && serverID == "" {
			_, err = tx.Exec(ctx, sqlNoneExpected, attachmentID)
		}
		return err
	})
}

// Without a server it can't be attached to a wrong one.
const sqlNoneExpected = `
UPDATE volumes SET reason = '', message = ''
WHERE volume_id = (SELECT volume_id FROM volume_attachments WHERE attachment_id = $1)
    AND (reason = 'not_attached' OR status = 'ready' AND reason = 'change_refused')`

const sqlHoldLent = `SELECT v.lent_for FROM volumes v JOIN volume_attachments t ON t.volume_id = v.volume_id WHERE t.attachment_id = $1 FOR UPDATE OF v`

// WithGroupVolumes runs f while no other process does for the same group.
func (s *Store) WithGroupVolumes(ctx context.Context, groupID prego.GroupID, f func(context.Context) error) (done bool, err error) {
	return s.exclusively(ctx, "prego/group-volumes/"+string(groupID), f)
}

const sqlGroupIdle = `
SELECT NOT EXISTS (SELECT FROM instances WHERE group_id = $1 AND state <> 'stopped')
    AND COALESCE((SELECT replicas = 0 OR deleted_at IS NOT NULL FROM process_groups WHERE group_id = $1), true)`

// GroupIdle reports whether a group runs nothing and wants nothing.
func (s *Store) GroupIdle(ctx context.Context, groupID prego.GroupID) (bool, error) {
	idle, err := value[bool](ctx, s.pool, sqlGroupIdle, groupID)
	return idle, failed(string("is "+groupID+" idle"), err)
}

const sqlOrgNames = `
SELECT 'floating_ip' AS kind, name FROM ipv4_allocations WHERE provider = $1 AND deleted_at IS NULL
UNION ALL SELECT 'volume', provider_name FROM volumes WHERE provider = $1 AND deleted_at IS NULL`

// OrgNames are the names at a provider of all that orgs have or are about to have
// there: none of it is an orphan.
func (s *Store) OrgNames(ctx context.Context, provider prego.InfraProviderID) ([]server.ResourceIntent, error) {
	return collect[server.ResourceIntent](ctx, s, "names of orgs' resources", sqlOrgNames, provider)
}

const (
	sqlIPv4Missing   = `UPDATE ipv4_allocations SET status = 'failed', reason = 'missing_at_provider', message = 'the provider no longer has it', updated_at = now() WHERE provider = $1 AND provider_id = $2 AND status = 'ready' AND deleted_at IS NULL`
	sqlVolumeMissing = `UPDATE volumes SET status = 'failed', reason = 'missing_at_provider', message = 'the provider no longer has it', updated_at = now() WHERE provider = $1 AND provider_id = $2 AND status = 'ready' AND deleted_at IS NULL`
)

// OrgResourceMissing fails an address or a volume that the provider no longer has.
func (s *Store) OrgResourceMissing(ctx context.Context, r server.ProviderResource) error {
	sql := sqlVolumeMissing
	if r.Kind == server.ResourceFloatingIP {
		sql = sqlIPv4Missing
	}
	return s.exec(ctx, fmt.Sprintf("%s %s is missing", r.Kind, r.Name), sql, r.Provider, r.ProviderID)
}

const sqlOrgWork = `
SELECT ARRAY(SELECT allocation_id FROM ipv4_allocations WHERE deleted_at IS NULL AND status IN ('pending', 'releasing') AND updated_at < now() - make_interval(secs => $1)) AS addresses,
    ARRAY(SELECT volume_id FROM volumes WHERE deleted_at IS NULL AND status IN ('pending', 'releasing') AND updated_at < now() - make_interval(secs => $1)
          UNION ALL SELECT v.volume_id FROM volumes v WHERE v.deleted_at IS NULL AND v.status = 'ready' AND v.made_bytes > 0 AND v.grown_bytes < v.size_bytes AND v.updated_at < now() - make_interval(secs => $1)
              AND (v.made_bytes < v.size_bytes OR EXISTS (SELECT FROM volume_attachments t WHERE t.volume_id = v.volume_id AND t.server_id IS NOT NULL AND t.deleted_at IS NULL))
          UNION ALL SELECT DISTINCT volume_id FROM volume_attachments WHERE server_id IS NOT NULL AND deleted_at < now() - make_interval(secs => $1)) AS volumes,
    ARRAY(SELECT snapshot_id FROM snapshots WHERE status IN ('queued', 'running') AND created_at < now() - make_interval(secs => $1)) AS snapshots,
    ARRAY(SELECT s.snapshot_id FROM snapshots s
          WHERE s.status = 'deleted' AND s.erased_at IS NULL AND NOT ` + isKeptSnapshot + `) AS erasures,
    ARRAY(SELECT job_id FROM restore_jobs WHERE status IN ('queued', 'running') AND NOT elsewhere AND created_at < now() - make_interval(secs => $1)) AS restores` // elsewhere the tenant's provisioning restores

// OrgWork are the rows that should have a run.
func (s *Store) OrgWork(ctx context.Context, quiet time.Duration) (org.Work, error) {
	w, err := one[org.Work](ctx, s.pool, sqlOrgWork, quiet.Seconds())
	return w, failed("work on orgs' resources", err)
}
