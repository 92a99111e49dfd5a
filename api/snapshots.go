package api

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// CreateSnapshot requests a snapshot of a tenant's site.
func (a *API) CreateSnapshot(c echo.Context, tenantID TenantID, _ CreateSnapshotParams) error {
	s, err := a.d.Store.CreateSnapshot(c.Request().Context(), tenantID, newID("snp-"), caller(c).By())
	if err != nil {
		return err
	}
	a.startRun(c, a.d.Runs.StartSnapshot, s.OrgID, string(s.SnapshotID), tenant.SnapshotWorkflowID(s.SnapshotID))
	return accepted(a, c, s, viewOf[Snapshot])
}

// ListSnapshots shows a page of a tenant's snapshots.
func (a *API) ListSnapshots(c echo.Context, tenant TenantID, _ ListSnapshotsParams) error {
	of := store.Snapshots.In(a.d.Store)
	return within(c, a.d.Store.GetTenant, "snapshots", of, viewOf[Snapshot], "tenant_id", string(tenant))
}

// GetSnapshot shows a snapshot.
func (a *API) GetSnapshot(c echo.Context, tenant TenantID, id SnapshotInPath) error {
	s, err := a.d.Store.GetSnapshot(c.Request().Context(), tenant, id)
	return answer(c, http.StatusOK, s, err, viewOf[Snapshot])
}

// DeleteSnapshot deletes a snapshot, and its files unless they are kept for a while.
func (a *API) DeleteSnapshot(c echo.Context, tenantID TenantID, id SnapshotInPath, _ DeleteSnapshotParams) error {
	s, err := a.d.Store.DeleteSnapshot(c.Request().Context(), tenantID, id, caller(c).By())
	if err == nil && s.KeptUntil == nil {
		a.startRun(c, a.d.Runs.StartSnapshotErase, s.OrgID, string(id), tenant.SnapshotEraseWorkflowID(id))
	}
	return noContent(c, err)
}

// UndeleteSnapshot takes back the deletion of a snapshot.
func (a *API) UndeleteSnapshot(c echo.Context, tenantID TenantID, id SnapshotInPath, _ UndeleteSnapshotParams) error {
	s, err := a.d.Store.UndeleteSnapshot(c.Request().Context(), tenantID, id, caller(c).By())
	return answer(c, http.StatusOK, s, err, viewOf[Snapshot])
}

// CreateRestore requests a restore of a tenant's site from a snapshot or a backup.
func (a *API) CreateRestore(c echo.Context, tenantID TenantID, _ CreateRestoreParams) error {
	var in struct {
		SnapshotID prego.SnapshotID `json:"snapshot_id"`
		BackupID   prego.BackupID   `json:"backup_id"`
		Elsewhere  bool             `json:"elsewhere"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	if in.Elsewhere {
		if in.SnapshotID != "" {
			return prego.Invalid("snapshot_id", "is lost with its server: name a backup, or none for the newest")
		}
		return a.restoreElsewhere(c, tenantID, in.BackupID)
	}
	if (in.SnapshotID == "") == (in.BackupID == "") {
		return prego.Invalid("snapshot_id", "or backup_id must be given, and not both")
	}
	j, err := a.d.Store.CreateRestore(c.Request().Context(), tenantID, tenant.RestoreOf{SnapshotID: in.SnapshotID, BackupID: in.BackupID}, newID("rst-"), caller(c).By())
	if err != nil {
		return err
	}
	a.startRun(c, a.d.Runs.StartRestore, j.OrgID, j.JobID, tenant.RestoreWorkflowID(j.JobID))
	return accepted(a, c, j, viewOf[RestoreJob])
}

// restoreElsewhere has a tenant provisioned again from a backup.
func (a *API) restoreElsewhere(c echo.Context, tenantID prego.TenantID, backupID prego.BackupID) error {
	t, j, err := a.d.Store.RestoreElsewhere(c.Request().Context(), tenantID, backupID, newID("rst-"), caller(c).By())
	if err != nil {
		return err
	}
	a.started(c, j.WorkflowID(), func(ctx context.Context) error { return a.d.Runs.StartTenantProvision(ctx, t) })
	return accepted(a, c, j, viewOf[RestoreJob])
}

// ListRestores shows a page of a tenant's restores.
func (a *API) ListRestores(c echo.Context, tenant TenantID, _ ListRestoresParams) error {
	of := store.Restores.In(a.d.Store)
	return within(c, a.d.Store.GetTenant, "restores", of, viewOf[RestoreJob], "tenant_id", string(tenant))
}

// GetRestore shows a restore.
func (a *API) GetRestore(c echo.Context, tenant TenantID, id RestoreInPath) error {
	j, err := a.d.Store.GetRestore(c.Request().Context(), tenant, id)
	return answer(c, http.StatusOK, j, err, viewOf[RestoreJob])
}
