package store

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// A tenant's own policy goes before its plan's.
const backupPolicyOf = `LEFT JOIN backup_policies own ON own.tenant_id = t.tenant_id JOIN backup_policies p ON p.policy_id = COALESCE(own.policy_id, 'plan/' || t.plan)`

const backupPolicyColumns = `COALESCE(p.plan, '') AS plan, COALESCE(p.tenant_id, '') AS tenant_id, COALESCE(p.org_id, '') AS org_id, COALESCE(p.volume_id, '') AS volume_id, p.schedule, p.spread_seconds, p.keep_daily, p.keep_weekly, p.keep_monthly, p.updated_by, p.updated_at`

type backupPolicyRow struct {
	Plan                                              prego.Plan
	TenantID                                          prego.TenantID
	OrgID                                             prego.OrgID
	VolumeID                                          prego.VolumeID
	Schedule                                          string
	SpreadSeconds, KeepDaily, KeepWeekly, KeepMonthly int
	UpdatedBy                                         string
	UpdatedAt                                         time.Time
}

func (r backupPolicyRow) policy() tenant.BackupPolicy {
	return tenant.BackupPolicy{
		Plan: r.Plan, TenantID: r.TenantID, OrgID: r.OrgID, VolumeID: r.VolumeID, Schedule: r.Schedule, Spread: time.Duration(r.SpreadSeconds) * time.Second,
		Retention: tenant.Retention{Daily: r.KeepDaily, Weekly: r.KeepWeekly, Monthly: r.KeepMonthly}, UpdatedBy: r.UpdatedBy, UpdatedAt: r.UpdatedAt,
	}
}

const sqlBackupPolicy = `SELECT ` + backupPolicyColumns + ` FROM tenants t ` + backupPolicyOf + ` WHERE t.tenant_id = $1`

// BackupPolicy is the policy that a tenant is backed up by.
func (s *Store) BackupPolicy(ctx context.Context, tenantID prego.TenantID) (tenant.BackupPolicy, error) {
	r, err := get[backupPolicyRow](ctx, s.pool, noSuchTenant(string(tenantID)), sqlBackupPolicy, tenantID)
	return r.policy(), err
}

// Tenants without a schedule, or whose schedule was made from another policy than theirs is now.
const sqlUnscheduledTenants = `
SELECT t.tenant_id AS id, now() AS now, NULL::timestamptz AS next_at, ` + backupPolicyColumns + `
FROM tenants t LEFT JOIN backup_schedules b ON b.tenant_id = t.tenant_id ` + backupPolicyOf + `
WHERE t.state IN ('active', 'suspended') AND t.site <> '' AND (b.tenant_id IS NULL OR b.policy_at <> p.updated_at) ORDER BY t.tenant_id LIMIT $1`

// UnscheduledTenants are tenants that need one.
func (s *Store) UnscheduledTenants(ctx context.Context, most int) ([]tenant.BackupSchedule, error) {
	return s.schedules(ctx, "tenants without a schedule", sqlUnscheduledTenants, most, scheduleOfTenant)
}

const sqlPutBackupSchedule = `
INSERT INTO backup_schedules AS b (tenant_id, policy_at, next_at) VALUES ($1, $2, $3)
ON CONFLICT (tenant_id) DO UPDATE SET policy_at = $2, next_at = $3`

// PutBackupSchedules plans the next backups of tenants and volumes.
func (s *Store) PutBackupSchedules(ctx context.Context, schedules []tenant.BackupSchedule) error {
	b := &pgx.Batch{}
	for _, t := range schedules {
		sql := sqlPutBackupSchedule
		if t.VolumeID != "" {
			sql = sqlPutVolumeBackupSchedule
		}
		b.Queue(sql, scheduledOwner(t), t.Policy.UpdatedAt, nextBackup(t))
	}
	return failed("plan backups", s.pool.SendBatch(ctx, b).Close())
}

// scheduledOwner is the tenant or the volume that is backed up.
func scheduledOwner(t tenant.BackupSchedule) string {
	return cmp.Or(string(t.TenantID), string(t.VolumeID))
}

// nextBackup is NULL for a tenant that is not backed up by schedule.
func nextBackup(t tenant.BackupSchedule) *time.Time {
	at := t.Policy.Next(scheduledOwner(t), t.Now)
	if at.IsZero() {
		return nil
	}
	return &at
}

// Orgs take turns, so that many backups of one org delay no other's.
const sqlDueBackups = `
SELECT t.tenant_id AS id, now() AS now, b.next_at, ` + backupPolicyColumns + `
FROM backup_schedules b JOIN tenants t ON t.tenant_id = b.tenant_id ` + backupPolicyOf + `
WHERE b.next_at <= now()
ORDER BY row_number() OVER (PARTITION BY t.org_id ORDER BY b.next_at, t.tenant_id), b.next_at, t.tenant_id LIMIT $1`

// DueBackups are schedules whose backup is due.
func (s *Store) DueBackups(ctx context.Context, most int) ([]tenant.BackupSchedule, error) {
	return s.schedules(ctx, "backups that are due", sqlDueBackups, most, scheduleOfTenant)
}

func scheduleOfTenant(id string) tenant.BackupSchedule {
	return tenant.BackupSchedule{TenantID: prego.TenantID(id)}
}

// schedules reads schedules by the id of their owner; next_at is NULL for an owner that has none.
func (s *Store) schedules(ctx context.Context, what, sql string, most int, of func(id string) tenant.BackupSchedule) (out []tenant.BackupSchedule, err error) {
	type row struct {
		ID     string
		Now    time.Time
		NextAt *time.Time
		backupPolicyRow
	}
	rows, err := collect[row](ctx, s, what, sql, most)
	for _, r := range rows {
		t := of(r.ID)
		t.Policy, t.Now = r.policy(), r.Now
		if r.NextAt != nil {
			t.DueAt = *r.NextAt
		}
		out = append(out, t)
	}
	return out, err
}

// tenantBackedUp is whether the tenant of schedule b has a backup since one was due. The clocks of hosts, which date
// backups, may be 5 minutes behind.
const tenantBackedUp = `EXISTS (SELECT FROM backups k WHERE k.tenant_id = b.tenant_id AND k.state = 'stored' AND k.taken_at >= b.due_at - interval '5 minutes')`

// A due backup is taken once. It stays due until one exists: otherwise a tenant whose backups all fail would
// never be late. A tenant without a site, or with a backup under way, gets none for it; the backup under way
// counts if it started since.
const sqlTakeDueBackup = `
WITH due AS (UPDATE backup_schedules b SET next_at = $3, due_at = CASE WHEN b.due_at IS NULL OR ` + tenantBackedUp + ` THEN b.next_at ELSE b.due_at END
    WHERE b.tenant_id = $1 AND b.next_at = $2 RETURNING b.tenant_id)
INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, created_by)
SELECT $4, t.org_id, t.tenant_id, a.app_server_id, t.site, 'scheduled', $5
FROM due JOIN tenants t ON t.tenant_id = due.tenant_id JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL
WHERE t.state IN ('active', 'suspended') AND t.site <> ''
ON CONFLICT (tenant_id) WHERE state IN ('queued', 'making', 'uploading') DO NOTHING`

// TakeDueBackup queues a backup that is due, under an id, and plans the next.
func (s *Store) TakeDueBackup(ctx context.Context, t tenant.BackupSchedule, id prego.BackupID, by string) (bool, error) {
	sql := sqlTakeDueBackup
	if t.VolumeID != "" {
		sql = sqlTakeDueVolumeBackup
	}
	ok, err := changed(ctx, s.pool, sql, scheduledOwner(t), t.DueAt, nextBackup(t), id, by)
	return ok, failed("queue a due backup", err)
}

const lateBackups = `
FROM backup_schedules b JOIN tenants t ON t.tenant_id = b.tenant_id
WHERE t.state IN ('active', 'suspended') AND b.next_at IS NOT NULL AND b.due_at < now() - make_interval(secs => $1) AND NOT ` + tenantBackedUp

const sqlLateBackups = `SELECT t.tenant_id` + lateBackups + ` ORDER BY b.due_at LIMIT $2`

// LateBackups are tenants of whom a backup was due so long ago, and has not been stored since.
func (s *Store) LateBackups(ctx context.Context, after time.Duration, most int) ([]prego.TenantID, error) {
	return collectValues[prego.TenantID](ctx, s, "late backups", sqlLateBackups, after.Seconds(), most)
}

// Also for a backup that was not taken, such as while no worker runs.
const sqlBackupDue = `
SELECT min(b.due_at) FROM (SELECT tenant_id, unnest(ARRAY[due_at, next_at]) AS due_at FROM backup_schedules WHERE tenant_id = $1 AND next_at IS NOT NULL) b
JOIN tenants t ON t.tenant_id = b.tenant_id WHERE t.state IN ('active', 'suspended') AND b.due_at <= now() AND NOT ` + tenantBackedUp

// BackupDue returns since when a tenant's scheduled backup has been due without a stored one; nil if none is.
func (s *Store) BackupDue(ctx context.Context, tenantID prego.TenantID) (*time.Time, error) {
	at, err := value[*time.Time](ctx, s.pool, sqlBackupDue, tenantID)
	return at, failed("read which backup is due", err)
}
