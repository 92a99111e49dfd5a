package api

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

func backupView(b tenant.Backup) Backup {
	out := viewOf[Backup](b)
	out.Verified = b.Verified()
	return out
}

// CreateBackup requests a backup of a tenant's site. A worker begins it when its host has room.
func (a *API) CreateBackup(c echo.Context, tenantID TenantID, _ CreateBackupParams) error {
	return requestBackup(c, a.d.Store.RequestBackup, tenant.BackupAsked{TenantID: tenantID}, func(b tenant.Backup) Backup {
		out := backupView(b)
		out.Operation = a.operation(c, out.WorkflowId)
		return out
	})
}

// ListBackups shows a page of a tenant's backups.
func (a *API) ListBackups(c echo.Context, tenant TenantID, _ ListBackupsParams) error {
	return within(c, a.d.Store.GetTenant, "backups", store.Backups.In(a.d.Store), backupView, "tenant_id", string(tenant))
}

// ListAllBackups shows a page of the backups of all tenants.
func (a *API) ListAllBackups(c echo.Context, _ ListAllBackupsParams) error {
	return list(c, "backups", store.AllBackups.In(a.d.Store), backupView)
}

// GetBackup shows a backup.
func (a *API) GetBackup(c echo.Context, tenantID TenantID, id BackupInPath) error {
	return showBackup(c, a.d.Store.GetBackup, tenant.BackupOwner{TenantID: tenantID}, id, backupView)
}

// DeleteBackup gives a backup up. A worker deletes its objects.
func (a *API) DeleteBackup(c echo.Context, tenantID TenantID, id BackupInPath, _ DeleteBackupParams) error {
	return giveUpBackup(c, a.d.Store.DeleteBackup, tenant.BackupOwner{TenantID: tenantID}, id)
}

// HoldBackup keeps a backup until it is released.
func (a *API) HoldBackup(c echo.Context, tenantID TenantID, id BackupInPath, _ HoldBackupParams) error {
	return hold(c, a.d.Store.HoldBackup, tenant.BackupOwner{TenantID: tenantID}, id, backupView)
}

// ReleaseBackup ends a hold.
func (a *API) ReleaseBackup(c echo.Context, tenantID TenantID, id BackupInPath, _ ReleaseBackupParams) error {
	return release(c, a.d.Store.ReleaseBackup, tenant.BackupOwner{TenantID: tenantID}, id, backupView)
}

// UndeleteBackup takes back the deletion of a backup.
func (a *API) UndeleteBackup(c echo.Context, tenantID TenantID, id BackupInPath, _ UndeleteBackupParams) error {
	return release(c, a.d.Store.UndeleteBackup, tenant.BackupOwner{TenantID: tenantID}, id, backupView)
}

// What follows is the same for backups of tenants and of volumes: do is the store's part of it.

// requestBackup requests a backup of an owner for who calls.
func requestBackup[V any](c echo.Context, do func(ctx context.Context, asked tenant.BackupAsked) (tenant.Backup, error), of tenant.BackupAsked, view func(tenant.Backup) V) error {
	of.ID, of.Kind, of.By = prego.BackupID(newID("bak-")), tenant.BackupManual, caller(c).By()
	b, err := do(c.Request().Context(), of)
	return answer(c, http.StatusAccepted, b, err, view)
}

// hold keeps a backup of an owner for the reason in the body.
func hold[V any](c echo.Context, do func(ctx context.Context, owner tenant.BackupOwner, id prego.BackupID, reason, by string) (tenant.Backup, error), owner tenant.BackupOwner, id prego.BackupID, view func(tenant.Backup) V) error {
	var in struct {
		Reason string `json:"reason"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	b, err := do(c.Request().Context(), owner, id, in.Reason, caller(c).By())
	return answer(c, http.StatusOK, b, err, view)
}

// release ends a hold, or the deletion, of a backup of an owner.
func release[V any](c echo.Context, do func(ctx context.Context, owner tenant.BackupOwner, id prego.BackupID, by string) (tenant.Backup, error), owner tenant.BackupOwner, id prego.BackupID, view func(tenant.Backup) V) error {
	b, err := do(c.Request().Context(), owner, id, caller(c).By())
	return answer(c, http.StatusOK, b, err, view)
}

// showBackup shows a backup of an owner.
func showBackup[V any](c echo.Context, do func(ctx context.Context, owner tenant.BackupOwner, id prego.BackupID) (tenant.Backup, error), owner tenant.BackupOwner, id prego.BackupID, view func(tenant.Backup) V) error {
	b, err := do(c.Request().Context(), owner, id)
	return answer(c, http.StatusOK, b, err, view)
}

// giveUpBackup gives a backup up. A worker deletes its objects.
func giveUpBackup(c echo.Context, do func(ctx context.Context, owner tenant.BackupOwner, id prego.BackupID, by string) (tenant.Backup, error), owner tenant.BackupOwner, id prego.BackupID) error {
	_, err := do(c.Request().Context(), owner, id, caller(c).By())
	return noContent(c, err)
}

func restorableView(r *tenant.Restorable) *LastRestorable {
	out := viewOf[*LastRestorable](r)
	if r != nil {
		out.Verified = r.VerifiedAt != nil
	}
	return out
}

func lossView(l *tenant.Loss) *TenantLoss {
	out := viewOf[*TenantLoss](l)
	if l != nil {
		out.LostMinutes = l.Minutes()
	}
	return out
}
