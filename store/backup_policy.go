package store

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

const sqlPlanBackupPolicy = `SELECT ` + backupPolicyColumns + ` FROM backup_policies p WHERE p.policy_id = 'plan/' || $1::text`

// PlanBackupPolicy returns the policy of a plan's tenants, or CodePolicyNotFound.
func (s *Store) PlanBackupPolicy(ctx context.Context, plan prego.Plan) (tenant.BackupPolicy, error) {
	r, err := get[backupPolicyRow](ctx, s.pool, prego.Errorf(prego.CodePolicyNotFound, "there is no plan %q", plan), sqlPlanBackupPolicy, plan)
	return r.policy(), err
}

var backupPolicies = Listing[backupPolicyRow]{
	what: "backup policies", from: `SELECT ` + backupPolicyColumns + ` FROM backup_policies p`,
	order:   "-updated_at",
	filters: map[string]string{"plan": "p.plan", "tenant_id": "p.tenant_id", "volume_id": "p.volume_id"},
	sorts:   map[string]string{"updated_at": "p.updated_at"},
	id:      "p.policy_id",
}

// ListBackupPolicies returns a page of the policies of plans and of tenants with their own.
func (s *Store) ListBackupPolicies(ctx context.Context, q prego.ListQuery) (page []tenant.BackupPolicy, next string, err error) {
	rows, next, err := backupPolicies.page(ctx, s, q)
	for _, r := range rows {
		page = append(page, r.policy())
	}
	return page, next, err
}

const (
	sqlPutBackupPolicy = `
INSERT INTO backup_policies (policy_id, plan, tenant_id, org_id, volume_id, schedule, spread_seconds, keep_daily, keep_weekly, keep_monthly, updated_by)
VALUES ($1, NULLIF($2, ''), NULLIF($3, ''), NULLIF($4, ''), NULLIF($5, ''), $6, $7, $8, $9, $10, $11)
ON CONFLICT (policy_id) DO UPDATE SET schedule = EXCLUDED.schedule, spread_seconds = EXCLUDED.spread_seconds, keep_daily = EXCLUDED.keep_daily,
    keep_weekly = EXCLUDED.keep_weekly, keep_monthly = EXCLUDED.keep_monthly, updated_by = EXCLUDED.updated_by, updated_at = now()`

	sqlBackupPolicyChange = `INSERT INTO backup_policy_changes (policy_id, changed_by, policy) VALUES ($1, $2, $3)`
)

// keptPolicy is the form of a policy in the record of its changes.
type keptPolicy struct {
	Schedule      string `json:"schedule"`
	SpreadSeconds int    `json:"spread_seconds"`
	Daily         int    `json:"keep_daily"`
	Weekly        int    `json:"keep_weekly"`
	Monthly       int    `json:"keep_monthly"`
}

// PutBackupPolicy stores a valid policy for its owner.
func (s *Store) PutBackupPolicy(ctx context.Context, p tenant.BackupPolicy, by string) error {
	kept := keptPolicy{p.Schedule, int(p.Spread.Seconds()), p.Retention.Daily, p.Retention.Weekly, p.Retention.Monthly}
	return s.changeBackupPolicy(ctx, p, by, &kept,
		sqlPutBackupPolicy, p.ID(), p.Plan, p.TenantID, p.OrgID, p.VolumeID, kept.Schedule, kept.SpreadSeconds, kept.Daily, kept.Weekly, kept.Monthly, by)
}

const sqlDeleteBackupPolicy = `DELETE FROM backup_policies WHERE policy_id = $1`

// DeleteBackupPolicy gives a tenant the policy of its plan again, a volume that of its org, and the volumes of an org
// that of all volumes. An owner without a separate policy stays as it is.
func (s *Store) DeleteBackupPolicy(ctx context.Context, of tenant.BackupPolicy, by string) error {
	return s.changeBackupPolicy(ctx, of, by, nil, sqlDeleteBackupPolicy, of.ID())
}

func (s *Store) changeBackupPolicy(ctx context.Context, of tenant.BackupPolicy, by string, kept *keptPolicy, sql string, args ...any) error {
	var text []byte
	if kept != nil {
		text, _ = json.Marshal(kept) // numbers and a word
	}
	apply := func(tx *txn, org func(event string, details map[string]any) error) error {
		ok := false
		undo := "set the former retention again before the next backup of each"
		tx.demandsSurplus(ctx, undo, of.ID(), of.ID(), func() { ok = tx.run(ctx, sql, args...) })
		if !ok {
			return nil
		}
		tx.run(ctx, sqlBackupPolicyChange, of.ID(), by, text)
		details := map[string]any{"policy": kept}
		switch {
		case of.TenantID != "":
			details["tenant_id"] = of.TenantID
		case of.VolumeID != "":
			details["volume_id"] = of.VolumeID
		}
		return org("backup.policy_set", details)
	}
	subject := cmp.Or(string(of.TenantID), string(of.VolumeID), string(of.OrgID))
	asOrg := func(tx *txn, orgID prego.OrgID) error {
		return apply(tx, func(event string, details map[string]any) error {
			return orgEvent(ctx, tx, org.Event{OrgID: orgID, Type: event, Subject: subject, Actor: by}, details)
		})
	}
	switch {
	case of.VolumeID != "":
		return s.inVolume(ctx, "backup policy", of.VolumeID, func(tx *txn, v workload.Volume) error { return asOrg(tx, v.OrgID) })
	case of.OrgID != "":
		return s.inTx(ctx, "backup policy", func(tx *txn) error {
			tx.check(lockNamedOrg(ctx, tx, of.OrgID))
			return asOrg(tx, of.OrgID)
		})
	case of.Default():
		return s.inTx(ctx, "backup policy", func(tx *txn) error {
			return apply(tx, func(string, map[string]any) error { return nil })
		})
	}
	return s.ofTenant(ctx, "backup policy", of.TenantID, asOrg)
}

// ofTenant runs f in a transaction that holds the tenant's org.
func (s *Store) ofTenant(ctx context.Context, what string, tenantID prego.TenantID, f func(tx *txn, orgID prego.OrgID) error) error {
	return s.inTx(ctx, what, func(tx *txn) error {
		orgID, err := lockOwner(ctx, tx, noSuchTenant(string(tenantID)), sqlTenantOrg, tenantID)
		if err != nil {
			return err
		}
		return f(tx, orgID)
	})
}

const sqlBackupPolicyChanges = `
SELECT changed_at, changed_by, policy FROM backup_policy_changes WHERE policy_id = $1 ORDER BY change_id DESC LIMIT $2`

// BackupPolicyChanges returns the last changes of a plan's or a tenant's own policy, newest first.
func (s *Store) BackupPolicyChanges(ctx context.Context, policyID string, most int) (out []tenant.BackupPolicyChange, err error) {
	type row struct {
		ChangedAt time.Time
		ChangedBy string
		Policy    *keptPolicy
	}
	rows, err := collect[row](ctx, s, "changes of a backup policy", sqlBackupPolicyChanges, policyID, most)
	for _, r := range rows {
		c := tenant.BackupPolicyChange{ChangedAt: r.ChangedAt, ChangedBy: r.ChangedBy}
		if k := r.Policy; k != nil {
			c.Policy = &tenant.BackupPolicy{Schedule: k.Schedule, Spread: time.Duration(k.SpreadSeconds) * time.Second, Retention: tenant.Retention{Daily: k.Daily, Weekly: k.Weekly, Monthly: k.Monthly}}
		}
		out = append(out, c)
	}
	return out, err
}

const (
	sqlHoldTenantBackups = `
INSERT INTO backup_holds (tenant_id, reason, held_by) VALUES ($1, $2, $3)
ON CONFLICT (tenant_id) DO UPDATE SET reason = EXCLUDED.reason, held_by = EXCLUDED.held_by WHERE backup_holds.reason <> EXCLUDED.reason`
	sqlHoldVolumeBackups = `
INSERT INTO backup_holds (volume_id, reason, held_by) VALUES ($1, $2, $3)
ON CONFLICT (volume_id) DO UPDATE SET reason = EXCLUDED.reason, held_by = EXCLUDED.held_by WHERE backup_holds.reason <> EXCLUDED.reason`
	sqlReleaseBackups = `DELETE FROM backup_holds WHERE COALESCE(tenant_id, volume_id) = $1`
	sqlBackupHold     = `SELECT reason, held_by, held_at FROM backup_holds WHERE COALESCE(tenant_id, volume_id) = $1`
)

const undoHold = "hold them again before the next backup"

// HoldBackups keeps all backups of a tenant or a volume, including future ones, until ReleaseBackups.
func (s *Store) HoldBackups(ctx context.Context, of tenant.BackupOwner, reason, by string) error {
	sql := sqlHoldTenantBackups
	if of.VolumeID != "" {
		sql = sqlHoldVolumeBackups
	}
	return s.changeHold(ctx, of, "backup.hold_all", by, map[string]any{"reason": reason}, sql, of.String(), reason, by)
}

// ReleaseBackups ends a hold; an owner without one stays as it is.
func (s *Store) ReleaseBackups(ctx context.Context, of tenant.BackupOwner, by string) error {
	return s.changeHold(ctx, of, "backup.release_all", by, nil, sqlReleaseBackups, of.String())
}

func (s *Store) changeHold(ctx context.Context, of tenant.BackupOwner, event, by string, details map[string]any, sql string, args ...any) error {
	change := func(tx *txn, orgID prego.OrgID) error {
		ok := false
		tx.demandsSurplus(ctx, undoHold, of.String(), of.String(), func() { ok = tx.run(ctx, sql, args...) })
		if !ok {
			return nil
		}
		return orgEvent(ctx, tx, org.Event{OrgID: orgID, Type: event, Subject: of.String(), Actor: by}, details)
	}
	if of.VolumeID == "" {
		return s.ofTenant(ctx, event, of.TenantID, change)
	}
	// Also for a deleted owner: its last backup is kept for a while, and may be kept longer.
	return s.inTx(ctx, event, func(tx *txn) error {
		v := got(oneVolume(ctx, tx, string(of.VolumeID), sqlVolumeEver, of.VolumeID)).in(tx)
		tx.check(lockOrg(ctx, tx, v.OrgID))
		return change(tx, v.OrgID)
	})
}

// BackupHold returns the hold on all backups of a tenant or of a volume; nil for none.
func (s *Store) BackupHold(ctx context.Context, of tenant.BackupOwner) (*tenant.BackupHold, error) {
	return find[tenant.BackupHold](ctx, s.pool, sqlBackupHold, of.String())
}
