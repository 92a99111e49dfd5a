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

// Tenants without a turn, or whose turn was made from another policy than theirs is now.
const sqlTenantsWithoutTurn = `
SELECT t.tenant_id AS id, now() AS now, NULL::timestamptz AS next_at, ` + backupPolicyColumns + `
FROM tenants t LEFT JOIN backup_turns b ON b.tenant_id = t.tenant_id ` + backupPolicyOf + `
WHERE t.state IN ('active', 'suspended') AND t.site <> '' AND (b.tenant_id IS NULL OR b.policy_at <> p.updated_at) ORDER BY t.tenant_id LIMIT $1`

// TenantsWithoutTurn are tenants that need one.
func (s *Store) TenantsWithoutTurn(ctx context.Context, most int) ([]tenant.BackupTurn, error) {
	return s.turns(ctx, "tenants without a turn", sqlTenantsWithoutTurn, most, turnOfTenant)
}

const sqlPutTurn = `
INSERT INTO backup_turns AS b (tenant_id, policy_at, next_at) VALUES ($1, $2, $3)
ON CONFLICT (tenant_id) DO UPDATE SET policy_at = $2, next_at = $3`

// PutBackupTurns plans tenants' next backups.
func (s *Store) PutBackupTurns(ctx context.Context, turns []tenant.BackupTurn) error {
	return s.putTurns(ctx, sqlPutTurn, turns)
}

func (s *Store) putTurns(ctx context.Context, sql string, turns []tenant.BackupTurn) error {
	b := &pgx.Batch{}
	for _, t := range turns {
		b.Queue(sql, ownerOfTurn(t), t.Policy.UpdatedAt, nextBackupTurn(t))
	}
	return failed("plan backups", s.pool.SendBatch(ctx, b).Close())
}

// ownerOfTurn is the tenant or the volume that is backed up.
func ownerOfTurn(t tenant.BackupTurn) string { return cmp.Or(string(t.TenantID), string(t.VolumeID)) }

// nextBackupTurn is NULL for a tenant that is not backed up by schedule.
func nextBackupTurn(t tenant.BackupTurn) *time.Time {
	at := t.Policy.Next(ownerOfTurn(t), t.Now)
	if at.IsZero() {
		return nil
	}
	return &at
}

const sqlDueTurns = `
SELECT t.tenant_id AS id, now() AS now, b.next_at, ` + backupPolicyColumns + `
FROM backup_turns b JOIN tenants t ON t.tenant_id = b.tenant_id ` + backupPolicyOf + `
WHERE b.next_at <= now() ORDER BY b.next_at LIMIT $1`

// DueBackupTurns are turns that have come.
func (s *Store) DueBackupTurns(ctx context.Context, most int) ([]tenant.BackupTurn, error) {
	return s.turns(ctx, "turns that have come", sqlDueTurns, most, turnOfTenant)
}

func turnOfTenant(id string) tenant.BackupTurn {
	return tenant.BackupTurn{TenantID: prego.TenantID(id)}
}

// turns reads turns by the id of their owner; next_at is NULL for an owner that has none.
func (s *Store) turns(ctx context.Context, what, sql string, most int, of func(id string) tenant.BackupTurn) (out []tenant.BackupTurn, err error) {
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

// tenantBackedUp is whether the tenant of turns b has a backup since one was due. The clocks of hosts, which say when a
// backup was taken, may be 5 minutes behind.
const tenantBackedUp = `EXISTS (SELECT FROM backups k WHERE k.tenant_id = b.tenant_id AND k.state = 'stored' AND k.taken_at >= b.due_at - interval '5 minutes')`

// A turn is taken once. What has been due stays so until there is a backup: otherwise one that fails at each turn
// would never be late. A tenant that has no site any more, or of which a backup is under
// way, gets none for it; the latter is as good as the one that was due if it began since.
const sqlTakeTurn = `
WITH turn AS (UPDATE backup_turns b SET next_at = $3, due_at = CASE WHEN b.due_at IS NULL OR ` + tenantBackedUp + ` THEN b.next_at ELSE b.due_at END
    WHERE b.tenant_id = $1 AND b.next_at = $2 RETURNING b.tenant_id)
INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, created_by)
SELECT $4, t.org_id, t.tenant_id, a.app_server_id, t.site, 'scheduled', $5
FROM turn JOIN tenants t ON t.tenant_id = turn.tenant_id JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL
WHERE t.state IN ('active', 'suspended') AND t.site <> ''
ON CONFLICT (tenant_id) WHERE state IN ('queued', 'making', 'uploading') DO NOTHING`

// TakeBackupTurn queues the backup of a turn that has come, under an id, and plans the next.
func (s *Store) TakeBackupTurn(ctx context.Context, t tenant.BackupTurn, id prego.BackupID, by string) (bool, error) {
	ok, err := changed(ctx, s.pool, sqlTakeTurn, t.TenantID, t.DueAt, nextBackupTurn(t), id, by)
	return ok, failed("take a turn", err)
}

const lateBackups = `
FROM backup_turns b JOIN tenants t ON t.tenant_id = b.tenant_id
WHERE t.state IN ('active', 'suspended') AND b.next_at IS NOT NULL AND b.due_at < now() - make_interval(secs => $1) AND NOT ` + tenantBackedUp

const sqlLateBackups = `SELECT t.tenant_id` + lateBackups + ` ORDER BY b.due_at LIMIT $2`

// LateBackups are tenants of whom a backup was due so long ago, and has not been stored since.
func (s *Store) LateBackups(ctx context.Context, after time.Duration, most int) ([]prego.TenantID, error) {
	return collectValues[prego.TenantID](ctx, s, "late backups", sqlLateBackups, after.Seconds(), most)
}

// Also of a turn that nobody has taken, as while no worker runs.
const sqlBackupDue = `
SELECT min(b.due_at) FROM (SELECT tenant_id, unnest(ARRAY[due_at, next_at]) AS due_at FROM backup_turns WHERE tenant_id = $1 AND next_at IS NOT NULL) b
JOIN tenants t ON t.tenant_id = b.tenant_id WHERE t.state IN ('active', 'suspended') AND b.due_at <= now() AND NOT ` + tenantBackedUp

// BackupDue is since when a backup of a tenant by schedule has been due, without one that was stored; nil if none is.
func (s *Store) BackupDue(ctx context.Context, tenantID prego.TenantID) (*time.Time, error) {
	at, err := value[*time.Time](ctx, s.pool, sqlBackupDue, tenantID)
	return at, failed("read which backup is due", err)
}
