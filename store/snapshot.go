package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/tenant"
)

const snapshotColumns = `s.snapshot_id, s.org_id, s.tenant_id, s.server_id, s.site, s.status, s.files, s.message,
    s.created_by, s.created_at, s.finished_at, s.bytes, s.erased_at,
    CASE WHEN ` + isKeptSnapshot + ` THEN s.kept_until END AS kept_until`

// isKeptSnapshot is whether the deletion of a snapshot s can be undone. It is gone with its site.
const isKeptSnapshot = `(s.status = 'deleted' AND s.erased_at IS NULL AND COALESCE(s.kept_until > now(), false))`

const sqlTenantOrg = `SELECT org_id FROM tenants WHERE tenant_id = $1`

// The tenant is held, so that its state and its place stay while its backup or restore is
// accepted. Held before it is read: a move that switches right now also holds it.
const sqlShareTenant = `SELECT FROM tenants WHERE tenant_id = $1 FOR SHARE`

const sqlHoldTenantSite = `
SELECT t.state, t.site, COALESCE((SELECT app_server_id FROM tenant_allocations a WHERE a.tenant_id = t.tenant_id AND a.released_at IS NULL), ''),
    (SELECT count(*) FROM snapshots s WHERE s.tenant_id = t.tenant_id AND s.status IN ('queued', 'running') AND has_place_on(s.tenant_id, s.server_id))
FROM tenants t WHERE t.tenant_id = $1 FOR SHARE OF t`

// tenantSite is where a tenant's site is.
type tenantSite struct {
	org          prego.OrgID
	site, server string
	state        tenant.State
	underWay     float64 // snapshots of this tenant
}

// inTenant runs f in a transaction that holds the tenant's org and the tenant, which
// has a site.
func (s *Store) inTenant(ctx context.Context, what string, tenantID prego.TenantID, f func(tx *txn, t tenantSite) error) error {
	return s.inTx(ctx, what, func(tx *txn) error {
		var t tenantSite
		t.org = got(lockOwner(ctx, tx, noSuchTenant(string(tenantID)), sqlTenantOrg, tenantID)).in(tx)
		tx.run(ctx, sqlShareTenant, tenantID)
		tx.check(tx.QueryRow(ctx, sqlHoldTenantSite, tenantID).Scan(&t.state, &t.site, &t.server, &t.underWay))
		if t.site == "" || t.server == "" {
			return prego.Errorf(prego.CodeInvalidTransition, "tenant %s is %s and has no site", tenantID, t.state)
		}
		return f(tx, t)
	})
}

const sqlCreateSnapshot = `
INSERT INTO snapshots AS s (snapshot_id, org_id, tenant_id, server_id, site, status, created_by) VALUES ($1, $2, $3, $4, $5, 'queued', $6) RETURNING ` + snapshotColumns

const sqlSnapshotLimit = `SELECT limit_value FROM org_limits($1, '{max_snapshots_per_volume}', $2)`

// CreateSnapshot accepts a backup of a tenant's site. How many are under way is
// limited per tenant; the org's usage is that of the tenant that has most.
func (s *Store) CreateSnapshot(ctx context.Context, tenantID prego.TenantID, id, by string) (out tenant.Snapshot, err error) {
	err = s.inTenant(ctx, "create snapshot", tenantID, func(tx *txn, t tenantSite) error {
		if t.state != tenant.Active && t.state != tenant.Suspended {
			return prego.Errorf(prego.CodeInvalidTransition, "tenant %s is %s: only an active or suspended tenant can be backed up", tenantID, t.state)
		}
		// The org is held. What another tenant has does not matter, so this is not takeQuota.
		limit := valueIn[float64](ctx, tx, sqlSnapshotLimit, t.org, s.tierLimits)
		if over := quota.Check([]quota.Delta{{Dimension: quota.MaxSnapshotsPerVolume, By: 1}},
			map[quota.Dimension]float64{quota.MaxSnapshotsPerVolume: t.underWay}, func(quota.Dimension) float64 { return limit }); over != nil {
			return over
		}
		out = oneIn[tenant.Snapshot](ctx, tx, sqlCreateSnapshot, id, t.org, tenantID, t.server, t.site, by)
		return orgEvent(ctx, tx, org.Event{OrgID: t.org, Type: "snapshot.create", Subject: id, Actor: by}, map[string]any{"tenant_id": tenantID})
	})
	return out, err
}

func (s *Store) tenantExists(ctx context.Context, tenantID prego.TenantID) error {
	_, err := value[string](ctx, s.pool, sqlTenantOrg, tenantID)
	return ifNoRows(err, noSuchTenant(string(tenantID)))
}

const sqlGetSnapshot = `SELECT ` + snapshotColumns + ` FROM snapshots s WHERE s.snapshot_id = $1`

func noSuchSnapshot(id prego.SnapshotID) error {
	return prego.Errorf(prego.CodeSnapshotNotFound, "there is no snapshot %q of this tenant", id)
}

// SnapshotRecord reads a snapshot, or CodeSnapshotNotFound.
func (s *Store) SnapshotRecord(ctx context.Context, id prego.SnapshotID) (tenant.Snapshot, error) {
	return get[tenant.Snapshot](ctx, s.pool, noSuchSnapshot(id), sqlGetSnapshot, id)
}

// GetSnapshot reads one snapshot of a tenant, or CodeSnapshotNotFound.
func (s *Store) GetSnapshot(ctx context.Context, tenantID prego.TenantID, id prego.SnapshotID) (tenant.Snapshot, error) {
	if err := s.tenantExists(ctx, tenantID); err != nil {
		return tenant.Snapshot{}, err
	}
	v, err := s.SnapshotRecord(ctx, id)
	if err == nil && (v.TenantID != tenantID || v.Status == tenant.JobDeleted && v.KeptUntil == nil) {
		err = noSuchSnapshot(id)
	}
	return v, err
}

// Snapshots is the list of snapshots, without deleted ones that are not kept.
var Snapshots = Listing[tenant.Snapshot]{
	what: "snapshots", from: `SELECT ` + snapshotColumns + ` FROM snapshots s`,
	live: `(s.status <> 'deleted' OR ` + isKeptSnapshot + `)`, state: "status",
	filters: map[string]string{"tenant_id": "s.tenant_id", "org_id": "s.org_id", "status": "s.status"},
	sorts:   map[string]string{"created_at": "s.created_at"},
	id:      "s.snapshot_id",
}

const sqlSnapshotInRestore = `SELECT EXISTS (SELECT FROM restore_jobs WHERE snapshot_id = $1 AND status IN ('queued', 'running'))`

// One whose site has moved away, or that failed, can't be restored.
const sqlDeleteSnapshot = `
UPDATE snapshots s SET status = 'deleted',
    kept_until = CASE WHEN s.status = 'succeeded' AND has_place_on(s.tenant_id, s.server_id) THEN ` + keepUntil + ` END
WHERE s.snapshot_id = $1 AND s.tenant_id = $2 AND s.status IN ('succeeded', 'failed') RETURNING ` + snapshotColumns

// DeleteSnapshot gives a snapshot up that is neither being made nor restored. Its files are deleted later: those of one
// that can be restored are kept for a day first.
func (s *Store) DeleteSnapshot(
	ctx context.Context, tenantID prego.TenantID, id prego.SnapshotID, by string,
) (v tenant.Snapshot, err error) {
	if v, err = s.GetSnapshot(ctx, tenantID, id); err != nil || v.Status == tenant.JobDeleted {
		return v, err
	}
	err = s.inTx(ctx, "delete snapshot", func(tx *txn) error {
		tx.check(lockOrg(ctx, tx, v.OrgID))
		if valueIn[bool](ctx, tx, sqlSnapshotInRestore, id) {
			return prego.Errorf(prego.CodeRestoreUnderWay, "snapshot %s is being restored", id)
		}
		none := prego.Errorf(prego.CodeSnapshotNotReady, "snapshot %s is still being made", id)
		v = getIn[tenant.Snapshot](ctx, tx, none, sqlDeleteSnapshot, id, tenantID)
		undo := undoUntil(v.KeptUntil, "prego snapshot undelete %s %s", tenantID, id)
		tx.demands(ctx, undo, string(id), sqlOfSnapshot)
		event := org.Event{OrgID: v.OrgID, Type: "snapshot.delete", Subject: string(id), Actor: by}
		return orgEvent(ctx, tx, event, map[string]any{"tenant_id": tenantID})
	})
	return v, err
}

const sqlUndeleteSnapshot = `
UPDATE snapshots s SET status = 'succeeded', kept_until = NULL
WHERE s.snapshot_id = $1 AND s.tenant_id = $2 AND s.status = 'deleted' AND s.erased_at IS NULL AND ` + canUndo + `
RETURNING ` + snapshotColumns

// UndeleteSnapshot takes back the deletion of a snapshot that is still kept. A finished snapshot stays as it is.
func (s *Store) UndeleteSnapshot(
	ctx context.Context, tenantID prego.TenantID, id prego.SnapshotID, by string,
) (v tenant.Snapshot, err error) {
	if v, err = s.GetSnapshot(ctx, tenantID, id); err != nil || v.Status == tenant.JobSucceeded {
		return v, err
	}
	err = s.inTx(ctx, "undelete snapshot", func(tx *txn) error {
		none := prego.Errorf(prego.CodeSnapshotNotReady, "snapshot %s is %s, and is not kept", id, v.Status)
		tx.check(lockOrg(ctx, tx, v.OrgID))
		v = getIn[tenant.Snapshot](ctx, tx, none, sqlUndeleteSnapshot, id, tenantID)
		event := org.Event{OrgID: v.OrgID, Type: "snapshot.undelete", Subject: string(id), Actor: by}
		return orgEvent(ctx, tx, event, map[string]any{"tenant_id": tenantID})
	})
	return v, err
}

const (
	sqlSnapshotBegun    = `UPDATE snapshots SET status = 'running', message = '' WHERE snapshot_id = $1 AND status IN ('queued', 'running')`
	sqlSnapshotFinished = `UPDATE snapshots SET status = $2, files = $3, message = $4, finished_at = now() WHERE snapshot_id = $1 AND status IN ('queued', 'running')`
)

const (
	sqlShareSnapshots = `SELECT FROM tenants WHERE tenant_id = (SELECT tenant_id FROM snapshots WHERE snapshot_id = $1) FOR SHARE`
	sqlShareRestores  = `SELECT FROM tenants WHERE tenant_id = (SELECT tenant_id FROM restore_jobs WHERE job_id = $1) FOR SHARE`
)

// begun records that work on a site has begun, with its tenant held: a move that holds the site from now on waits for
// that work, or was before, and is seen by it.
func (s *Store) begun(ctx context.Context, what, share, sql, id string) error {
	return s.inTx(ctx, what+" "+id, func(tx *txn) error {
		tx.run(ctx, share, id)
		tx.run(ctx, sql, id)
		return nil
	})
}

// SnapshotBegun records that a snapshot is being made.
func (s *Store) SnapshotBegun(ctx context.Context, id prego.SnapshotID) error {
	return s.begun(ctx, "snapshot", sqlShareSnapshots, sqlSnapshotBegun, string(id))
}

const sqlSiteSnapshotTaken = `UPDATE snapshots SET bytes = $2 WHERE snapshot_id = $1`

// SiteSnapshotTaken records the size of a snapshot's files on its host.
func (s *Store) SiteSnapshotTaken(ctx context.Context, id prego.SnapshotID, b tenant.HostBackup) error {
	return s.exec(ctx, string("snapshot "+id), sqlSiteSnapshotTaken, id, b.Bytes)
}

const sqlSnapshotErased = `UPDATE snapshots SET erased_at = now() WHERE snapshot_id = $1 AND status = 'deleted' AND erased_at IS NULL`

// SnapshotErased records that the files of a deleted snapshot are gone.
func (s *Store) SnapshotErased(ctx context.Context, id prego.SnapshotID) error {
	return s.exec(ctx, string("snapshot "+id), sqlSnapshotErased, id)
}

// SnapshotFinished records how a snapshot ended; repeated, it changes nothing.
func (s *Store) SnapshotFinished(ctx context.Context, id string, status tenant.JobStatus, files []string, message string) error {
	b, err := json.Marshal(filled(files))
	if err != nil {
		return fmt.Errorf("snapshot %s: %w", id, err)
	}
	return s.exec(ctx, "snapshot "+id, sqlSnapshotFinished, id, status, b, prego.Redact(message))
}

const (
	sqlSnapshotWaits = `UPDATE snapshots SET message = $2 WHERE snapshot_id = $1 AND status = 'queued'`
	sqlRestoreWaits  = `UPDATE restore_jobs SET message = $2 WHERE job_id = $1 AND status = 'queued'`
)

// JobWaits records why a snapshot or a restore is not under way yet.
func (s *Store) JobWaits(ctx context.Context, id, message string) error {
	b := &pgx.Batch{}
	b.Queue(sqlSnapshotWaits, id, message)
	b.Queue(sqlRestoreWaits, id, message)
	return failed(id+" waits", s.pool.SendBatch(ctx, b).Close())
}

const restoreColumns = `j.job_id, j.org_id, j.tenant_id, COALESCE(j.snapshot_id, '') AS snapshot_id, COALESCE(j.backup_id, '') AS backup_id, j.status, j.message, j.created_by, j.created_at, j.finished_at, j.elsewhere`

const sqlTenantRestores = `SELECT EXISTS (SELECT FROM restore_jobs WHERE tenant_id = $1 AND status IN ('queued', 'running'))`

const sqlCreateRestore = `
INSERT INTO restore_jobs AS j (job_id, org_id, tenant_id, snapshot_id, backup_id, status, created_by) VALUES ($1, $2, $3, NULLIF($4, ''), NULLIF($5, ''), 'queued', $6) RETURNING ` + restoreColumns

// CreateRestore accepts a restore of a tenant's site.
func (s *Store) CreateRestore(ctx context.Context, tenantID prego.TenantID, of tenant.RestoreOf, id, by string) (out tenant.RestoreJob, err error) {
	err = s.inTenant(ctx, "create restore", tenantID, func(tx *txn, t tenantSite) error {
		if t.state != tenant.Active {
			return prego.Errorf(prego.CodeInvalidTransition, "tenant %s is %s: only an active tenant can be restored", tenantID, t.state)
		}
		tx.check(restorable(ctx, tx, tenantID, of, t))
		if valueIn[bool](ctx, tx, sqlTenantRestores, tenantID) {
			return prego.Errorf(prego.CodeRestoreUnderWay, "tenant %s is being restored already", tenantID)
		}
		tx.check(s.takeQuota(ctx, tx, t.org, quota.Delta{Dimension: quota.MaxRestoreJobs, By: 1}))
		i := impact.Impact{Seconds: tx.lasted(ctx, "restore")}
		tx.demandsAs(ctx, i, string(tenantID), sqlOfTenant, impact.Destroys)
		out = oneIn[tenant.RestoreJob](ctx, tx, sqlCreateRestore, id, t.org, tenantID, of.SnapshotID, of.BackupID, by)
		details := map[string]any{"tenant_id": tenantID, "snapshot_id": of.SnapshotID}
		if of.BackupID != "" {
			details = map[string]any{"tenant_id": tenantID, "backup_id": of.BackupID}
		}
		return orgEvent(ctx, tx, org.Event{OrgID: t.org, Type: "restore.create", Subject: id, Actor: by}, details)
	})
	return out, err
}

// A backup that is being deleted is not restored: both hold the tenant's org.
const sqlBackupState = `SELECT state, missing_at FROM backups WHERE backup_id = $1 AND tenant_id = $2 AND state <> 'deleted' FOR SHARE`

// restorable refuses what a tenant's site can't be restored from.
func restorable(ctx context.Context, tx *txn, tenantID prego.TenantID, of tenant.RestoreOf, t tenantSite) error {
	if of.BackupID != "" {
		b, err := one[backupStands](ctx, tx, sqlBackupState, of.BackupID, tenantID)
		if isNoRows(err) {
			return &prego.Error{Code: prego.CodeBackupUnknown, Field: "backup_id", Message: "is not a backup of this tenant"}
		}
		return cmp.Or(err, b.refusal())
	}
	snap, err := one[tenant.Snapshot](ctx, tx, sqlGetSnapshot, of.SnapshotID)
	switch {
	case isNoRows(err), err == nil && (snap.TenantID != tenantID || snap.Status == tenant.JobDeleted):
		return &prego.Error{Code: prego.CodeSnapshotUnknown, Field: "snapshot_id", Message: "is not a snapshot of this tenant"}
	case err != nil:
		return err
	case snap.Status != tenant.JobSucceeded:
		return &prego.Error{Code: prego.CodeSnapshotNotReady, Field: "snapshot_id", Message: fmt.Sprintf("is of a snapshot that is %s", snap.Status)}
	case snap.ServerID != prego.ServerID(t.server) || snap.Site != t.site:
		return &prego.Error{Code: prego.CodeSnapshotNotReady, Field: "snapshot_id", Message: fmt.Sprintf("is of a snapshot on server %s, and the site is on %s now", snap.ServerID, t.server)}
	}
	return nil
}

const sqlGetRestore = `SELECT ` + restoreColumns + ` FROM restore_jobs j WHERE j.job_id = $1`

// RestoreRecord reads a restore, or CodeRestoreNotFound.
func (s *Store) RestoreRecord(ctx context.Context, id string) (tenant.RestoreJob, error) {
	return get[tenant.RestoreJob](ctx, s.pool, prego.Errorf(prego.CodeRestoreNotFound, "there is no restore %q of this tenant", id), sqlGetRestore, id)
}

// GetRestore reads one restore of a tenant, or CodeRestoreNotFound.
func (s *Store) GetRestore(ctx context.Context, tenantID prego.TenantID, id string) (tenant.RestoreJob, error) {
	if err := s.tenantExists(ctx, tenantID); err != nil {
		return tenant.RestoreJob{}, err
	}
	v, err := s.RestoreRecord(ctx, id)
	if err == nil && v.TenantID != tenantID {
		err = prego.Errorf(prego.CodeRestoreNotFound, "there is no restore %q of this tenant", id)
	}
	return v, err
}

// Restores is the list of restores.
var Restores = Listing[tenant.RestoreJob]{
	what: "restores", from: `SELECT ` + restoreColumns + ` FROM restore_jobs j`,
	filters: map[string]string{"tenant_id": "j.tenant_id", "org_id": "j.org_id", "status": "j.status"},
	sorts:   map[string]string{"created_at": "j.created_at"},
	id:      "j.job_id",
}

const (
	sqlRestoreBegun = `UPDATE restore_jobs SET status = 'running', message = '',
    begun_at = COALESCE(begun_at, now()) WHERE job_id = $1 AND status IN ('queued', 'running')`
	sqlRestoreFinished = `UPDATE restore_jobs SET status = $2, message = $3, finished_at = now() WHERE job_id = $1 AND status IN ('queued', 'running')`
)

// RestoreBegun records that a restore is under way.
func (s *Store) RestoreBegun(ctx context.Context, id string) error {
	return s.begun(ctx, "restore", sqlShareRestores, sqlRestoreBegun, id)
}

// RestoreFinished records how a restore ended; repeated, it changes nothing.
func (s *Store) RestoreFinished(ctx context.Context, id string, status tenant.JobStatus, message string) error {
	return s.exec(ctx, "restore "+id, sqlRestoreFinished, id, status, prego.Redact(message))
}

const (
	sqlOpenSession  = `INSERT INTO org_sessions (session_id, org_id, kind, subject, actor, lease_until) VALUES ($1, $2, $3, $4, $5, now() + make_interval(secs => $6))`
	sqlRenewSession = `UPDATE org_sessions SET lease_until = now() + make_interval(secs => $2) WHERE session_id = $1 AND closed_at IS NULL`
	sqlCloseSession = `UPDATE org_sessions SET closed_at = now() WHERE session_id = $1 AND closed_at IS NULL`
)

// The owner of what a session is opened on: a site's tenant, otherwise the tenant that the server, a shard or a pool is
// dedicated to. A shared server has none; the caller may name a tenant with a place there.
const sqlSessionOwner = `
SELECT COALESCE(o.owner, '') AS owner, EXISTS (SELECT FROM tenants WHERE tenant_id = $3) AS known,
    CASE WHEN $4 <> '' THEN EXISTS (
            SELECT FROM tenants t JOIN instances i ON i.org_id = t.org_id WHERE t.tenant_id = $3 AND i.instance_id = $4)
        ELSE COALESCE(o.owner = $3, EXISTS (SELECT FROM tenant_allocations a
            LEFT JOIN db_shards d ON d.shard_id = a.db_shard_id LEFT JOIN redis_pools p ON p.pool_id = a.redis_pool_id
            WHERE a.tenant_id = $3 AND a.released_at IS NULL AND $1 IN (a.app_server_id, d.server_id, p.server_id)))
    END AS fits
FROM servers s CROSS JOIN LATERAL (SELECT COALESCE(
    (SELECT t.tenant_id FROM tenants t
        LEFT JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL
        WHERE t.site = $2 AND $2 <> ''
        ORDER BY a.app_server_id = s.server_id DESC NULLS LAST, t.created_at DESC LIMIT 1),
    s.dedicated_for_tenant_id,
    (SELECT max(d.dedicated_for_tenant_id) FROM db_shards d
        WHERE d.server_id = s.server_id AND d.status <> 'terminated'),
    (SELECT max(p.dedicated_for_tenant_id) FROM redis_pools p
        WHERE p.server_id = s.server_id AND p.status <> 'terminated')) AS owner) o
WHERE s.server_id = $1`

// SessionOwner is the tenant or instance whose org a session counts for; neither on what no tenant owns. A tenant that
// the caller names must be that owner.
func (s *Store) SessionOwner(ctx context.Context, at org.SessionAt) (of org.SessionOf, err error) {
	o, err := one[struct {
		Owner       prego.TenantID
		Known, Fits bool
	}](recording(ctx), s.pool, sqlSessionOwner, at.ServerID, at.Site, at.TenantID, at.InstanceID)
	switch {
	case err != nil:
		return of, failed("owner of a session", err)
	case at.TenantID != "" && !o.Known:
		return of, &prego.Error{
			Code: prego.CodeTenantUnknown, Field: "tenant_id", Message: "is not a tenant that is known here",
		}
	case at.TenantID != "" && !o.Fits:
		return of, prego.Invalid("tenant_id", "is not the tenant whose site or server this is")
	case at.InstanceID != "":
		return org.SessionOf{InstanceID: at.InstanceID}, nil
	}
	return org.SessionOf{TenantID: cmp.Or(o.Owner, at.TenantID)}, nil
}

const sqlInstanceOrg = `SELECT org_id FROM instances WHERE instance_id = $1`

// OpenSession counts an exec session or a log stream for the org of a tenant or an
// instance. It counts until it is closed, or its lease ends with the process that
// renews it.
func (s *Store) OpenSession(ctx context.Context, id string, of org.SessionOf, kind org.SessionKind, subject, actor string, lease time.Duration) error {
	ctx = recording(ctx)
	deltas := []quota.Delta{{Dimension: quota.MaxLogStreams, By: 1}}
	if kind == org.SessionExec {
		deltas = []quota.Delta{{Dimension: quota.MaxExecSessions, By: 1}, {Dimension: quota.MaxExecSessionsPerHour, By: 1}}
	}
	return s.inTx(ctx, "open session", func(tx *txn) error {
		var org prego.OrgID
		sql, owner := sqlTenantOrg, of.TenantID
		if of.InstanceID != "" {
			sql, owner = sqlInstanceOrg, prego.TenantID(of.InstanceID)
		}
		err := tx.QueryRow(ctx, sql, owner).Scan(&org)
		if isNoRows(err) {
			if of.InstanceID != "" {
				return noSuchInstance(string(of.InstanceID))
			}
			return &prego.Error{Code: prego.CodeTenantUnknown, Field: "tenant_id", Message: "is not a tenant that is known here"}
		}
		if err != nil {
			return err
		}
		tx.check(s.takeQuota(ctx, tx, org, deltas...))
		tx.run(ctx, sqlOpenSession, id, org, kind, subject, actor, lease.Seconds())
		return nil
	})
}

// RenewSession lengthens a session's lease.
func (s *Store) RenewSession(ctx context.Context, id string, lease time.Duration) error {
	return s.exec(recording(ctx), "renew session "+id, sqlRenewSession, id, lease.Seconds())
}

// CloseSession ends a session.
func (s *Store) CloseSession(ctx context.Context, id string) error {
	return s.exec(recording(ctx), "close session "+id, sqlCloseSession, id)
}
