package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

const sqlCloneFrom = `UPDATE tenants SET restore_from = $2, muted = true, updated_at = now() WHERE tenant_id = $1 RETURNING ` + tenantColumns

// CloneTenant accepts a tenant like another tenant, whose site is a copy of that tenant's, from a backup: the newest
// if none is named. The site is muted.
func (s *Store) CloneTenant(ctx context.Context, of prego.TenantID, r tenant.CloneRequest, id prego.TenantID, jobID, by string) (t tenant.Tenant, err error) {
	err = s.inTx(ctx, string("clone tenant "+of), func(tx pgx.Tx) error {
		if _, err := lockOwner(ctx, tx, noSuchTenant(string(of)), sqlTenantOrg, of); err != nil {
			return err
		}
		src, err := one[tenant.Tenant](ctx, tx, sqlGetTenant, of)
		if err != nil {
			return err
		}
		backup, err := s.toRestore(ctx, tx, src, r.BackupID, r.BackupID != "")
		if err != nil {
			return err
		}
		made := r.Like(src)
		hash := made.Hash()
		if _, err := s.createTenant(ctx, tx, made, hash[:], id, src.Policy, by); err != nil {
			return err
		}
		if t, err = one[tenant.Tenant](ctx, tx, sqlCloneFrom, id, backup); err != nil {
			return err
		}
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
