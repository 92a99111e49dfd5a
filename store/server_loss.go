package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// The tenants that have anything on a server, or are moving from it or to it. Their rows are held before the rows of
// their places, as in a reservation, and by a separate statement: a move that switches right now is seen then.
const sqlHoldTenantsToLose = `
SELECT FROM tenants WHERE tenant_id IN (
    SELECT a.tenant_id FROM tenant_allocations a
    WHERE a.released_at IS NULL AND (a.app_server_id = $1 OR a.db_shard_id IN (SELECT shard_id FROM db_shards WHERE server_id = $1))
    UNION SELECT m.tenant_id FROM tenant_moves m
    WHERE m.finished_at IS NULL AND ($1 IN (m.from_server_id, m.to_server_id) OR EXISTS (SELECT FROM db_shards d WHERE d.server_id = $1 AND d.shard_id IN (m.from_shard_id, m.to_shard_id))
        OR EXISTS (SELECT FROM redis_pools r WHERE r.server_id = $1 AND r.pool_id IN (m.from_pool_id, m.to_pool_id))))
ORDER BY tenant_id FOR NO KEY UPDATE`

// Whose site or database is on a server.
const sqlTenantsToLose = `
SELECT t.tenant_id, t.org_id, t.state, t.site, t.deadline_at AS deadline, a.allocation_id,
    (SELECT LEAST(COALESCE(s.agent_last_heartbeat_at, now()), now()) FROM servers s WHERE s.server_id = $1) AS lost_at,
    ` + newestTaken + ` AS taken_at
FROM tenants t JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL LEFT JOIN db_shards d ON d.shard_id = a.db_shard_id
WHERE (has_site(t.state) OR t.state = 'terminated') AND (a.app_server_id = $1 OR (a.on_shard AND d.server_id = $1))
ORDER BY t.tenant_id FOR NO KEY UPDATE OF t`

const sqlLoseTenant = `
UPDATE tenants SET state = 'failed', converged_state = 'failed', status_reason = 'server_lost', status_message = $2, lost_at = $3, site = '', deadline_at = NULL,
    cancel_requested_at = NULL, updated_at = now()
WHERE tenant_id = $1`

// A terminated tenant stays so: nothing brings its site back.
const sqlLoseTerminated = `
UPDATE tenants SET status_reason = 'server_lost', status_message = $2, site = '', updated_at = now()
WHERE tenant_id = $1`

// Its last backup was made after it was offline.
const sqlHasLastBackup = `
SELECT EXISTS (SELECT FROM backups b WHERE b.tenant_id = $1 AND b.kind = 'final' AND ` + usableBackup + `)`

const sqlInsertLoss = `
INSERT INTO tenant_losses (tenant_id, allocation_id, server_id, state, deadline_at, lost_at) VALUES ($1, $2, $3, $4, $5, $6)`

const (
	sqlEndRestores  = `UPDATE restore_jobs SET status = 'failed', message = $2, finished_at = now() WHERE tenant_id = ANY ($1) AND status IN ('queued', 'running')`
	sqlForgetLimits = `UPDATE site_usage SET read_only = false WHERE tenant_id = $1 AND read_only`
)

// lostTenant is a tenant whose place is lost with a server.
type lostTenant struct {
	TenantID     prego.TenantID
	OrgID        prego.OrgID
	State        tenant.State
	Site         string
	Deadline     *time.Time
	AllocationID int64
	LostAt       time.Time
	TakenAt      *time.Time // of its newest backup, nil for none
}

// loseTenants fails the tenants whose site or database was on a server that is gone, frees
// their places and notifies their orgs. A terminated tenant stays so, and has the loss on record.
func (s *Store) loseTenants(ctx context.Context, tx *txn, serverID prego.ServerID, actor prego.Actor) {
	tx.run(ctx, sqlHoldTenantsToLose, serverID)
	s.returnMoves(ctx, tx, serverID, actor)
	lost := manyIn[lostTenant](ctx, tx, sqlTenantsToLose, serverID)
	for _, t := range lost {
		tx.check(s.loseTenant(ctx, tx, t, serverID, actor))
	}
}

func (s *Store) loseTenant(
	ctx context.Context, tx *txn, t lostTenant, serverID prego.ServerID, actor prego.Actor,
) error {
	message := fmt.Sprintf("server %s is gone, and there is no backup", serverID)
	details := map[string]any{"server_id": serverID, "lost_at": t.LostAt.UTC()}
	ended := t.State == tenant.Terminated
	if t.TakenAt != nil {
		details["backup_taken_at"] = t.TakenAt.UTC()
		message = fmt.Sprintf("server %s is gone. The newest backup is of %s", serverID, t.TakenAt.UTC().Format(time.RFC3339))
		if ended && valueIn[bool](ctx, tx, sqlHasLastBackup, t.TenantID) {
			message += ", after the site was offline: nothing is lost"
		} else {
			details["lost_minutes"] = tenant.LostMinutes(*t.TakenAt, t.LostAt)
			message += fmt.Sprintf(": %d min are lost", details["lost_minutes"])
		}
	}
	tx.check(freePlace(ctx, tx, t.TenantID, string(prego.ReasonServerLost), "", tenant.SiteDropped, nil))
	endJobsOn(ctx, tx, t.TenantID, serverID)
	if t.Site == "" {
		return nil
	}
	to := tenant.Failed
	if ended {
		to = t.State
		tx.run(ctx, sqlLoseTerminated, t.TenantID, message)
	} else {
		tx.run(ctx, sqlLoseTenant, t.TenantID, message, t.LostAt)
		tx.run(ctx, sqlForgetLimits, t.TenantID)
	}
	tx.run(ctx, sqlInsertLoss, t.TenantID, t.AllocationID, serverID, t.State, t.Deadline, t.LostAt)
	tx.run(ctx, sqlEndRestores, []prego.TenantID{t.TenantID}, "the site's server was lost")
	tx.check(tenantEvent(ctx, tx, tenant.Event{
		TenantID: t.TenantID, FromState: t.State, ToState: to, Step: tenant.StepChanged, Actor: string(actor),
		Reason: string(prego.ReasonServerLost), Message: message,
	}, ""))
	return orgEvent(ctx, tx, org.Event{
		OrgID: t.OrgID, Type: "tenant.server_lost", Subject: string(t.TenantID), Actor: string(actor),
		Reason: string(prego.ReasonServerLost),
	}, details)
}

const (
	sqlBackupsOn      = `SELECT backup_id FROM backups WHERE tenant_id = $1 AND server_id = $2 AND state IN ('queued', 'making', 'uploading') ORDER BY 1 FOR UPDATE`
	sqlEndSnapshotsOn = `
UPDATE snapshots SET status = 'failed', message = $3, finished_at = now() WHERE tenant_id = $1 AND server_id = $2 AND status IN ('queued', 'running')`
)

// endJobsOn ends the backups and snapshots of a tenant that are being made on a server that is gone: what they read,
// and what a backup would still upload, was there. Otherwise the tenant would get no other backup until their runs give
// up.
func endJobsOn(ctx context.Context, tx *txn, id prego.TenantID, serverID prego.ServerID) {
	why := fmt.Sprintf("server %s is gone", serverID)
	backups := valuesIn[prego.BackupID](ctx, tx, sqlBackupsOn, id, serverID)
	for _, b := range backups {
		tx.check(backupFailed(ctx, tx, b, tenant.ReasonBackupSuperseded, why))
	}
	tx.run(ctx, sqlEndSnapshotsOn, id, serverID, why)
}

const sqlLoseServer = `
UPDATE servers SET status = 'draining', status_reason = 'server_lost', status_message = $2,
    decommission_requested_at = COALESCE(decommission_requested_at, now()),
    agent_status = 'disconnected', identity_revoked_at = COALESCE(identity_revoked_at, now()), updated_at = now()
WHERE server_id = $1 AND status NOT IN ('provisioning', 'terminated') RETURNING ` + serverColumns

// Tenants whose site or database is on a server, and whose site answers although no restore, release or move decides
// that at the moment.
const sqlAnswering = `
SELECT t.slug FROM tenant_allocations a JOIN tenants t ON t.tenant_id = a.tenant_id
JOIN servers s ON s.server_id = a.app_server_id LEFT JOIN db_shards d ON d.shard_id = a.db_shard_id
WHERE a.released_at IS NULL AND (a.app_server_id = $1 OR a.on_shard AND d.server_id = $1) AND ` + siteOpen + `
  AND EXISTS (SELECT FROM ` + probedNow + ` WHERE h.tenant_id = t.tenant_id AND h.up)
ORDER BY t.slug`

// LoseServer declares a server lost: its tenants are lost immediately, its identity is revoked, so that its host holds
// its jobs if it returns, and everything the provider still has of it must be destroyed. A terminated server is
// returned as it is. While edges find that a site of the server answers, it is refused.
func (s *Store) LoseServer(ctx context.Context, id prego.ServerID, reason, by string) (srv server.Server, err error) {
	err = s.inTx(ctx, string("lose server "+id), func(tx *txn) error {
		if up := valuesIn[string](ctx, tx, sqlAnswering, id); len(up) > 0 {
			return prego.Errorf(prego.CodeSiteAnswers, "server %s is not lost: the sites of %d tenants there answer (%s). "+
				"Drain it, or switch it off at the provider first", id, len(up), strings.Join(up[:min(len(up), 5)], ", "))
		}
		gone := []prego.ServerID{id}
		tx.demandsOf(ctx, tx.saves(ctx, gone, "").of(impact.Impact{}), string(id), gone, impact.Destroys)
		s.loseTenants(ctx, tx, id, prego.ActorOperator)
		// Held before it is changed: a server that becomes active meanwhile is seen by both statements.
		tx.run(ctx, sqlHoldServer, id)
		lost := findIn[server.Server](ctx, tx, sqlLoseServer, id, prego.Redact(reason))
		if lost == nil {
			srv, err = serverIn(ctx, tx, id)
			if err == nil && srv.Status == server.Provisioning {
				err = prego.Errorf(prego.CodeInvalidTransition, "server %s is being provisioned: delete it", id)
			}
			return err
		}
		srv = *lost
		return addEvent(ctx, tx, server.Event{
			ServerID: id, Step: server.StepDecommissionAsked, Reason: prego.ReasonServerLost, Message: "declared lost by " + by, Actor: prego.ActorOperator,
		}, "")
	})
	return srv, err
}

const sqlNewestBackup = `
SELECT b.backup_id, b.taken_at FROM backups b WHERE b.tenant_id = $1 AND ` + usableBackup + ` ORDER BY b.taken_at DESC LIMIT 1`

// The newest usable backup of whom backup $1 is of that is no newer than it: itself, as long as it is usable.
const sqlUsableUpTo = `
SELECT b.backup_id, b.taken_at FROM backups was JOIN backups b ON b.tenant_id = was.tenant_id AND b.taken_at <= was.taken_at
WHERE was.backup_id = $1 AND ` + usableBackup + ` ORDER BY b.taken_at DESC, b.backup_id LIMIT 1`

const sqlTenantToRestore = `SELECT ` + tenantColumns + ` FROM tenants WHERE tenant_id = $1 FOR NO KEY UPDATE`

const sqlRestoreTenant = `
UPDATE tenants SET state = 'provisioning', status_reason = '', status_message = '', generation = generation + 1, restore_from = $2, waiting_since = NULL, waiting_roles = '{}',
    cancel_requested_at = NULL, deadline_at = NULL, updated_at = now()
WHERE tenant_id = $1 RETURNING ` + tenantColumns

const sqlInsertElsewhere = `
INSERT INTO restore_jobs AS j (job_id, org_id, tenant_id, backup_id, status, created_by, elsewhere, named) VALUES ($1, $2, $3, $4, 'queued', $5, true, $6) RETURNING ` + restoreColumns

// RestoreElsewhere has a failed tenant whose site was lost, or whose restore failed, provisioned
// again from a backup: the newest if none is named. Quotas refuse nothing: the lost tenant was
// accepted once.
func (s *Store) RestoreElsewhere(ctx context.Context, id prego.TenantID, backupID prego.BackupID, jobID, by string) (t tenant.Tenant, job tenant.RestoreJob, err error) {
	if jobID == "" {
		jobID = "rst-" + strings.ReplaceAll(uuid.NewString(), "-", "")[:12]
	}
	err = s.inTx(ctx, string("restore tenant "+id), func(tx *txn) error {
		got(lockOwner(ctx, tx, noSuchTenant(string(id)), sqlTenantOrg, id)).in(tx)
		was, err := one[tenant.Tenant](ctx, tx, sqlTenantToRestore, id)
		switch {
		case err != nil:
			return err
		case was.State != tenant.Failed || (was.LostAt == nil && was.RestoreFrom == ""):
			return prego.Errorf(prego.CodeInvalidTransition, "tenant %s is %s, and its site was not lost", id, was.State)
		}
		named := backupID != ""
		if !named && was.LostAt == nil { // a copy of another tenant's
			backupID = was.RestoreFrom
			named = valueIn[bool](ctx, tx, sqlBackupWasNamed, id)
		}
		backupID = got(s.toRestore(ctx, tx, was, backupID, named)).in(tx)
		t = oneIn[tenant.Tenant](ctx, tx, sqlRestoreTenant, id, backupID)
		job = oneIn[tenant.RestoreJob](ctx, tx, sqlInsertElsewhere, jobID, t.OrgID, id, backupID, by, named)
		tx.check(tenantEvent(ctx, tx, tenant.Event{
			TenantID: id, FromState: was.State, ToState: tenant.Provisioning, Step: tenant.StepChanged, Actor: by, Message: fmt.Sprintf("restore elsewhere from backup %s", backupID),
		}, ""))
		return orgEvent(ctx, tx, org.Event{OrgID: t.OrgID, Type: "restore.create", Subject: jobID, Actor: by}, map[string]any{"tenant_id": id, "backup_id": backupID, "elsewhere": true})
	})
	return t, job, err
}

const sqlBackupWasNamed = `SELECT COALESCE((SELECT named FROM restore_jobs WHERE tenant_id = $1 AND elsewhere ORDER BY created_at DESC LIMIT 1), false)`

// chosenBackup is a backup that a restore has chosen.
type chosenBackup struct {
	BackupID prego.BackupID
	TakenAt  time.Time
}

// toRestore is the backup that a tenant is restored from elsewhere: its own, or that of
// another tenant whose copy its site should have been. A backup that the caller named is not exchanged
// for another.
func (s *Store) toRestore(ctx context.Context, tx *txn, t tenant.Tenant, id prego.BackupID, named bool) (prego.BackupID, error) {
	switch {
	case named && id == t.RestoreFrom: // whose it is was checked when it was named first
		b, err := one[backupStands](ctx, tx, sqlBackupStateOf, id)
		return id, cmp.Or(err, b.refusal())
	case named:
		return id, restorable(ctx, tx, t.TenantID, tenant.RestoreOf{BackupID: id}, tenantSite{})
	}
	sql, of := sqlNewestBackup, string(t.TenantID)
	if id != "" {
		sql, of = sqlUsableUpTo, string(id)
	}
	chosen := findIn[chosenBackup](ctx, tx, sql, of)
	if chosen == nil {
		return "", prego.Errorf(prego.CodeBackupNotFound, "there is no backup of tenant %s in object storage that can be read; name one to try it all the same", t.TenantID)
	}
	return chosen.BackupID, nil
}

const sqlBackupStateOf = `SELECT state, missing_at FROM backups WHERE backup_id = $1 FOR SHARE`

// backupStands is whether the storage has a backup, as far as is known.
type backupStands struct {
	State     tenant.BackupState
	MissingAt *time.Time
}

// refusal is why a backup can't be restored although a caller named it, or nil. A backup found
// unreadable can be tried again.
func (b backupStands) refusal() error {
	message := fmt.Sprintf("is of a backup that is %s", b.State)
	if b.State == tenant.BackupStored {
		if b.MissingAt == nil {
			return nil
		}
		message = fmt.Sprintf("is of a backup that has been missing in the storage since %s", b.MissingAt.UTC().Format(time.RFC3339))
	}
	return &prego.Error{Code: prego.CodeBackupNotReady, Field: "backup_id", Message: message}
}

const (
	sqlRestoreFromOlder = `
UPDATE tenants SET restore_from = $4, updated_at = now()
WHERE tenant_id = $1 AND generation = $2 AND state = 'provisioning' AND restore_from IN ($3, $4)`
	sqlOlderOfJob = `
UPDATE restore_jobs SET backup_id = $2, message = $3 WHERE tenant_id = $1 AND elsewhere AND NOT named AND status IN ('queued', 'running')`
)

// RestoreFromOlder has a tenant restored from the next older backup than an unusable one, which is
// recorded before. It returns "" if none is left, or the caller has named that one. Repeated, it returns the same one.
func (s *Store) RestoreFromOlder(ctx context.Context, ref tenant.Ref, bad prego.BackupID, reason prego.Reason, why string) (older prego.BackupID, err error) {
	err = s.inTx(ctx, string("older backup of tenant "+ref.TenantID), func(tx *txn) error {
		older = ""
		got(lockOwner(ctx, tx, noSuchTenant(string(ref.TenantID)), sqlTenantOrg, ref.TenantID)).in(tx)
		next := findIn[chosenBackup](ctx, tx, sqlUsableUpTo, bad)
		if next == nil || next.BackupID == bad {
			return nil
		}
		message := fmt.Sprintf("backup %s can't be restored (%s): it is restored from backup %s of %s", bad, why, next.BackupID, next.TakenAt.UTC().Format(time.RFC3339))
		if !tx.run(ctx, sqlOlderOfJob, ref.TenantID, next.BackupID, prego.Redact(message)) {
			return nil
		}
		tx.must(ctx, server.ErrSuperseded, sqlRestoreFromOlder, ref.TenantID, ref.Generation, bad, next.BackupID)
		older = next.BackupID
		return tenantEvent(ctx, tx, tenant.Event{TenantID: ref.TenantID, Step: tenant.StepBackupSkipped, Reason: string(reason), Message: message}, fmt.Sprintf("%s/g%d/%s", tenant.StepBackupSkipped, ref.Generation, bad))
	})
	return older, err
}

// Those whose restore failed are for operators.
const sqlLostTenants = `
SELECT t.tenant_id FROM tenants t
WHERE t.lost_at IS NOT NULL AND t.state = 'failed' AND t.status_reason = 'server_lost' AND t.plan = ANY($1)
  AND EXISTS (SELECT FROM backups b WHERE b.tenant_id = t.tenant_id AND ` + usableBackup + `)
ORDER BY t.lost_at, t.tenant_id LIMIT GREATEST(0, $2 - (SELECT count(*) FROM tenants r
    WHERE r.restore_from IS NOT NULL AND r.state = 'provisioning' AND r.opening_since IS NULL))`

// LostTenants lists tenants of some plans that must be restored elsewhere and can be, as long
// as fewer than most are being restored.
func (s *Store) LostTenants(ctx context.Context, plans []prego.Plan, most int) ([]prego.TenantID, error) {
	return collectValues[prego.TenantID](ctx, s, "lost tenants", sqlLostTenants, plans, most)
}

const (
	isLost       = `t.lost_at IS NOT NULL AND t.state IN ('failed', 'provisioning')`
	sqlCountLost = `SELECT count(*) FROM tenants t WHERE ` + isLost
)

// CountLost is how many tenants are without a site since their server was lost.
func (s *Store) CountLost(ctx context.Context) (int, error) {
	n, err := value[int](ctx, s.pool, sqlCountLost)
	return n, failed("count lost tenants", err)
}

const sqlTenantLoss = `
SELECT l.server_id, l.state, l.lost_at, l.noted_at, COALESCE(l.backup_id, '') AS backup_id, l.taken_at, l.restored_at FROM tenant_losses l WHERE l.tenant_id = $1 ORDER BY l.loss_id DESC LIMIT 1`

// TenantLoss is the last loss of a tenant's site with its server; nil for none.
func (s *Store) TenantLoss(ctx context.Context, id prego.TenantID) (*tenant.Loss, error) {
	return find[tenant.Loss](ctx, s.pool, sqlTenantLoss, id)
}

// What a lost place may have left on servers that live on: the directory of a site whose shard
// is gone, the database and the cache's user of one whose app server is.
const sqlLeftOfLosses = `
SELECT l.loss_id, a.allocation_id, a.app_server_id, a.db_shard_id, a.redis_pool_id, a.site_name, a.database_name, a.on_shard, a.on_pool,
    s.host AS app_host, s.status AS app_status, COALESCE(d.server_id, '') AS shard_server_id, COALESCE(dh.host, '') AS shard_host, COALESCE(dh.status, 'terminated') AS shard_status,
    COALESCE(r.server_id, '') AS pool_server_id, COALESCE(rh.host, '') AS pool_host, COALESCE(rh.status, 'terminated') AS pool_status
FROM tenant_losses l JOIN tenant_allocations a ON a.allocation_id = l.allocation_id JOIN servers s ON s.server_id = a.app_server_id
LEFT JOIN db_shards d ON d.shard_id = a.db_shard_id LEFT JOIN servers dh ON dh.server_id = d.server_id
LEFT JOIN redis_pools r ON r.pool_id = a.redis_pool_id LEFT JOIN servers rh ON rh.server_id = r.server_id
WHERE l.tenant_id = $1 AND l.cleared_at IS NULL ORDER BY l.loss_id`

// LeftOfLosses lists possible remains of places that a tenant has lost.
func (s *Store) LeftOfLosses(ctx context.Context, id prego.TenantID) ([]tenant.LeftPlace, error) {
	type row struct {
		LossID                      int64
		AllocationID                int64
		AppServerID                 prego.ServerID
		DBShardID                   prego.ShardID
		RedisPoolID                 prego.RedisPoolID
		SiteName                    string
		DatabaseName                string
		OnShard                     bool
		OnPool                      bool
		AppHost                     string
		AppStatus                   server.Status
		ShardServerID, PoolServerID prego.ServerID
		ShardHost, PoolHost         string
		ShardStatus, PoolStatus     server.Status
	}
	rows, err := collect[row](ctx, s, string("remains of tenant "+id), sqlLeftOfLosses, id)
	out := make([]tenant.LeftPlace, 0, len(rows))
	for _, r := range rows {
		out = append(out, tenant.LeftPlace{
			LossID: r.LossID,
			Allocation: tenant.Allocation{
				AllocationID: r.AllocationID, TenantID: id, AppServerID: r.AppServerID, DBShardID: r.DBShardID, RedisPoolID: r.RedisPoolID, SiteName: r.SiteName, DatabaseName: r.DatabaseName,
				OnShard: r.OnShard, OnPool: r.OnPool,
			},
			App:   tenant.DataHost{ServerID: r.AppServerID, Host: r.AppHost, Status: r.AppStatus},
			Shard: tenant.DataHost{ServerID: r.ShardServerID, Host: r.ShardHost, Status: r.ShardStatus},
			Pool:  tenant.DataHost{ServerID: r.PoolServerID, Host: r.PoolHost, Status: r.PoolStatus},
		})
	}
	return out, err
}

const sqlLossCleared = `UPDATE tenant_losses SET cleared_at = now() WHERE loss_id = $1 AND cleared_at IS NULL`

// LossCleared records that nothing is left of a lost place.
func (s *Store) LossCleared(ctx context.Context, lossID int64) error {
	return s.exec(ctx, "remains of a lost place", sqlLossCleared, lossID)
}

// A tenant that is being restored clears its own places, and a tenant restored to the same servers has done so before.
// What survives of a terminated tenant stays until its data is purged. The order is another one each time, so that
// servers that do not answer keep no other waiting.
const sqlUnclearedLosses = `
SELECT l.tenant_id FROM tenant_losses l JOIN tenants t ON t.tenant_id = l.tenant_id
JOIN tenant_allocations o ON o.allocation_id = l.allocation_id LEFT JOIN tenant_allocations a ON a.tenant_id = l.tenant_id AND a.released_at IS NULL
WHERE l.cleared_at IS NULL AND (l.restored_at IS NOT NULL OR t.state = 'data_purged')
  AND a.app_server_id IS DISTINCT FROM o.app_server_id AND a.db_shard_id IS DISTINCT FROM o.db_shard_id
GROUP BY l.tenant_id ORDER BY md5(l.tenant_id || now()) LIMIT 50`

// UnclearedLosses lists tenants without a run whose lost places may have left something on servers that
// still exist.
func (s *Store) UnclearedLosses(ctx context.Context) ([]prego.TenantID, error) {
	return collectValues[prego.TenantID](ctx, s, "what lost places left", sqlUnclearedLosses)
}

const sqlCloneFrom = `UPDATE tenants SET restore_from = $2, muted = true, updated_at = now() WHERE tenant_id = $1 RETURNING ` + tenantColumns

// CloneTenant accepts a tenant like another tenant, whose site is a copy of that tenant's, from a backup: the newest
// if none is named. The site is muted.
func (s *Store) CloneTenant(ctx context.Context, of prego.TenantID, r tenant.CloneRequest, id prego.TenantID, jobID, by string) (t tenant.Tenant, err error) {
	err = s.inTx(ctx, string("clone tenant "+of), func(tx *txn) error {
		got(lockOwner(ctx, tx, noSuchTenant(string(of)), sqlTenantOrg, of)).in(tx)
		src := oneIn[tenant.Tenant](ctx, tx, sqlGetTenant, of)
		backup := got(s.toRestore(ctx, tx, src, r.BackupID, r.BackupID != "")).in(tx)
		made := r.Like(src)
		hash := made.Hash()
		got(s.createTenant(ctx, tx, made, hash[:], id, src.Policy, by)).in(tx)
		t = oneIn[tenant.Tenant](ctx, tx, sqlCloneFrom, id, backup)
		tx.check(s.takeQuota(ctx, tx, t.OrgID, quota.Delta{Dimension: quota.MaxRestoreJobs, By: 1}))
		if _, err := one[tenant.RestoreJob](ctx, tx, sqlInsertElsewhere, jobID, t.OrgID, id, backup, by, r.BackupID != ""); err != nil {
			return err
		}
		return tenantEvent(ctx, tx, tenant.Event{TenantID: id, Step: tenant.StepCloned, Actor: by, Message: fmt.Sprintf("of tenant %s, backup %s", of, backup)}, string(tenant.StepCloned))
	})
	return t, err
}

const sqlUnmuteTenant = `UPDATE tenants SET muted = false, updated_at = now() WHERE tenant_id = $1`

// UnmuteTenant records that a site sends mail and runs its jobs again.
func (s *Store) UnmuteTenant(ctx context.Context, id prego.TenantID, by string) error {
	return s.tenantStep(ctx, tenant.Event{TenantID: id, Step: tenant.StepUnmuted, Actor: by}, "", pgx.ErrNoRows, sqlUnmuteTenant, id)
}

const sqlTerminate = `
UPDATE servers SET status = 'terminated', status_message = '', terminated_at = now(), updated_at = now(),
    agent_status = CASE WHEN agent_first_seen_at IS NULL THEN agent_status ELSE 'disconnected' END
WHERE server_id = $1 AND status = 'draining'
  AND NOT EXISTS (SELECT FROM resources r WHERE r.server_id = $1 AND r.state <> 'released')`

// Its agent's last report of containers means nothing without it; reports of a terminated server are refused.
const sqlForgetReports = `DELETE FROM container_reports WHERE server_id = $1`

const sqlIsTerminated = `SELECT EXISTS (SELECT FROM servers WHERE server_id = $1 AND status = 'terminated')`

// Terminate ends a server's life once all its resources are released. Repeating it succeeds without effect.
func (s *Store) Terminate(ctx context.Context, serverID prego.ServerID) error {
	return s.inTx(ctx, fmt.Sprintf("terminate %s", serverID), func(tx *txn) error {
		// Before the server's row is held, as when a place is freed. Only a server whose deletion was forced has any.
		s.loseTenants(ctx, tx, serverID, prego.ActorSystem)
		if !tx.run(ctx, sqlTerminate, serverID) {
			return doneBefore(ctx, tx, errors.New("it is not draining, or still owns resources"), sqlIsTerminated, serverID)
		}
		for _, sql := range []string{sqlLeaveGroup, sqlForgetReports} {
			tx.run(ctx, sql, serverID)
		}
		return addEvent(ctx, tx, server.Event{
			ServerID: serverID, Step: server.StepTerminated, Reason: prego.ReasonDecommission,
		}, string(server.StepTerminated))
	})
}
