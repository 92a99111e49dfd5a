package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

func snapshotView(s tenant.Snapshot) Snapshot {
	files := s.Files
	if files == nil {
		files = []string{}
	}
	return Snapshot{
		SnapshotId: s.SnapshotID, OrgId: s.OrgID, TenantId: s.TenantID, ServerId: s.ServerID, Site: s.Site, Status: JobStatus(s.Status), Files: files, Bytes: s.Bytes, Message: optional(s.Message),
		WorkflowId: tenant.SnapshotWorkflowID(s.SnapshotID), CreatedBy: s.CreatedBy, CreatedAt: s.CreatedAt.UTC(), FinishedAt: utc(s.FinishedAt),
	}
}

func restoreView(j tenant.RestoreJob) RestoreJob {
	return RestoreJob{
		JobId: j.JobID, OrgId: j.OrgID, TenantId: j.TenantID, SnapshotId: j.SnapshotID, Status: JobStatus(j.Status), Message: optional(j.Message),
		WorkflowId: tenant.RestoreWorkflowID(j.JobID), CreatedBy: j.CreatedBy, CreatedAt: j.CreatedAt.UTC(), FinishedAt: utc(j.FinishedAt),
	}
}

// checkBackupPath checks the path of a tenant's snapshot or restore.
func checkBackupPath(c echo.Context, tenant string, parameters []string, ids ...[3]string) error {
	if err := checkResourcePath(c, parameters); err != nil {
		return err
	}
	if err := prego.ValidateTenantID(tenant); err != nil {
		return err
	}
	return checkResourcePath(c, parameters, ids...)
}

// CreateSnapshot asks for a backup of a tenant's site.
func (a *API) CreateSnapshot(c echo.Context, tenantID TenantID) error {
	if err := checkBackupPath(c, tenantID, nil); err != nil {
		return err
	}
	s, err := a.d.Resources.Store.CreateSnapshot(c.Request().Context(), tenantID, newID("snp-"), caller(c).Subject)
	if err != nil {
		return err
	}
	a.startRun(c, a.d.Resources.Runs.StartSnapshot, s.OrgID, s.SnapshotID, tenant.SnapshotWorkflowID(s.SnapshotID))
	return c.JSON(http.StatusAccepted, snapshotView(s))
}

// ListSnapshots shows a page of a tenant's snapshots.
func (a *API) ListSnapshots(c echo.Context, tenant TenantID, p ListSnapshotsParams) error {
	if err := checkBackupPath(c, tenant, []string{"limit", "cursor"}); err != nil {
		return err
	}
	limit, cursor, err := paging(p.Limit, p.Cursor)
	if err != nil {
		return err
	}
	list, next, err := a.d.Resources.Store.ListSnapshots(c.Request().Context(), tenant, cursor, limit)
	if err != nil {
		return err
	}
	out := SnapshotPage{Snapshots: []Snapshot{}, NextCursor: optional(next)}
	for _, s := range list {
		out.Snapshots = append(out.Snapshots, snapshotView(s))
	}
	return c.JSON(http.StatusOK, out)
}

// GetSnapshot shows a snapshot.
func (a *API) GetSnapshot(c echo.Context, tenant TenantID, id SnapshotInPath) error {
	if err := checkBackupPath(c, tenant, nil, [3]string{"snapshot_id", "snp-", id}); err != nil {
		return err
	}
	s, err := a.d.Resources.Store.GetSnapshot(c.Request().Context(), tenant, id)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, snapshotView(s))
}

// DeleteSnapshot deletes a snapshot, and has its files deleted.
func (a *API) DeleteSnapshot(c echo.Context, tenantID TenantID, id SnapshotInPath) error {
	if err := checkBackupPath(c, tenantID, nil, [3]string{"snapshot_id", "snp-", id}); err != nil {
		return err
	}
	org, err := a.d.Resources.Store.DeleteSnapshot(c.Request().Context(), tenantID, id, caller(c).Subject)
	if err != nil {
		return err
	}
	a.startRun(c, a.d.Resources.Runs.StartSnapshotErase, org, id, tenant.SnapshotEraseWorkflowID(id))
	return c.NoContent(http.StatusNoContent)
}

// CreateRestore asks for a tenant's site to be brought back to a snapshot.
func (a *API) CreateRestore(c echo.Context, tenantID TenantID) error {
	if err := checkBackupPath(c, tenantID, nil); err != nil {
		return err
	}
	var in struct {
		SnapshotID string `json:"snapshot_id"`
	}
	if err := decodeBody(c.Response(), c.Request(), &in); err != nil {
		return err
	}
	if err := prego.ValidateResourceID("snapshot_id", "snp-", in.SnapshotID); err != nil {
		return err
	}
	j, err := a.d.Resources.Store.CreateRestore(c.Request().Context(), tenantID, in.SnapshotID, newID("rst-"), caller(c).Subject)
	if err != nil {
		return err
	}
	a.startRun(c, a.d.Resources.Runs.StartRestore, j.OrgID, j.JobID, tenant.RestoreWorkflowID(j.JobID))
	return c.JSON(http.StatusAccepted, restoreView(j))
}

// ListRestores shows a page of a tenant's restores.
func (a *API) ListRestores(c echo.Context, tenant TenantID, p ListRestoresParams) error {
	if err := checkBackupPath(c, tenant, []string{"limit", "cursor"}); err != nil {
		return err
	}
	limit, cursor, err := paging(p.Limit, p.Cursor)
	if err != nil {
		return err
	}
	list, next, err := a.d.Resources.Store.ListRestores(c.Request().Context(), tenant, cursor, limit)
	if err != nil {
		return err
	}
	out := RestorePage{Restores: []RestoreJob{}, NextCursor: optional(next)}
	for _, j := range list {
		out.Restores = append(out.Restores, restoreView(j))
	}
	return c.JSON(http.StatusOK, out)
}

// GetRestore shows a restore.
func (a *API) GetRestore(c echo.Context, tenant TenantID, id RestoreInPath) error {
	if err := checkBackupPath(c, tenant, nil, [3]string{"job_id", "rst-", id}); err != nil {
		return err
	}
	j, err := a.d.Resources.Store.GetRestore(c.Request().Context(), tenant, id)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, restoreView(j))
}
