package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

func volumeBackupView(b tenant.Backup) VolumeBackup {
	out := viewOf[VolumeBackup](b)
	out.Verified = b.Verified()
	if b.Bytes > 0 {
		out.Entries = &b.Entries
	}
	return out
}

// CreateVolumeBackup requests a backup of a volume. A worker begins it when its host has room.
func (a *API) CreateVolumeBackup(c echo.Context, id VolumeInPath, _ CreateVolumeBackupParams) error {
	return requestBackup(c, a.d.Store.RequestVolumeBackup, tenant.BackupAsked{VolumeID: id}, func(b tenant.Backup) VolumeBackup {
		out := volumeBackupView(b)
		out.Operation = a.operation(c, out.WorkflowId)
		return out
	})
}

// ListVolumeBackups shows a page of a volume's backups.
func (a *API) ListVolumeBackups(c echo.Context, id VolumeInPath, _ ListVolumeBackupsParams) error {
	return list(c, "backups", store.Backups.In(a.d.Store), volumeBackupView, "volume_id", string(id))
}

// GetVolumeBackup shows a backup.
func (a *API) GetVolumeBackup(c echo.Context, volume VolumeInPath, id BackupInPath) error {
	return showBackup(c, a.d.Store.GetBackup, tenant.BackupOwner{VolumeID: volume}, id, volumeBackupView)
}

// DeleteVolumeBackup gives a backup up. A worker deletes its objects.
func (a *API) DeleteVolumeBackup(
	c echo.Context, volume VolumeInPath, id BackupInPath, _ DeleteVolumeBackupParams,
) error {
	return giveUpBackup(c, a.d.Store.DeleteBackup, tenant.BackupOwner{VolumeID: volume}, id)
}

// HoldVolumeBackup keeps a backup until it is released.
func (a *API) HoldVolumeBackup(c echo.Context, volume VolumeInPath, id BackupInPath, _ HoldVolumeBackupParams) error {
	return hold(c, a.d.Store.HoldBackup, tenant.BackupOwner{VolumeID: volume}, id, volumeBackupView)
}

// ReleaseVolumeBackup ends a hold.
func (a *API) ReleaseVolumeBackup(
	c echo.Context, volume VolumeInPath, id BackupInPath, _ ReleaseVolumeBackupParams,
) error {
	return release(c, a.d.Store.ReleaseBackup, tenant.BackupOwner{VolumeID: volume}, id, volumeBackupView)
}

// UndeleteVolumeBackup takes back the deletion of a backup.
func (a *API) UndeleteVolumeBackup(
	c echo.Context, volume VolumeInPath, id BackupInPath, _ UndeleteVolumeBackupParams,
) error {
	return release(c, a.d.Store.UndeleteBackup, tenant.BackupOwner{VolumeID: volume}, id, volumeBackupView)
}

// CreateVolumeRestore requests a restore of a volume that replaces its contents.
func (a *API) CreateVolumeRestore(c echo.Context, id VolumeInPath, _ CreateVolumeRestoreParams) error {
	var in struct {
		BackupID prego.BackupID `json:"backup_id"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	r, err := a.d.Store.CreateVolumeRestore(c.Request().Context(), workload.VolumeRestore{RestoreID: newID("vrs-"), VolumeID: id, BackupID: in.BackupID, CreatedBy: caller(c).By()})
	if err != nil {
		return err
	}
	out := viewOf[VolumeRestore](r)
	a.startRun(c, a.d.Runs.StartVolumeRestore, r.OrgID, r.RestoreID, out.WorkflowId)
	out.Operation = a.operation(c, out.WorkflowId)
	return c.JSON(http.StatusAccepted, out)
}

// ListVolumeRestores shows a page of a volume's restores.
func (a *API) ListVolumeRestores(c echo.Context, id VolumeInPath, _ ListVolumeRestoresParams) error {
	return list(c, "restores", store.VolumeRestores.In(a.d.Store), viewOf[VolumeRestore], "volume_id", string(id))
}

// GetVolumeRestore shows a restore.
func (a *API) GetVolumeRestore(c echo.Context, volume VolumeInPath, id VolumeRestoreInPath) error {
	r, err := a.d.Store.GetVolumeRestore(c.Request().Context(), volume, id)
	return answer(c, http.StatusOK, r, err, viewOf[VolumeRestore])
}

// CloneVolume requests a volume from another volume's backup.
func (a *API) CloneVolume(c echo.Context, id VolumeInPath, _ CloneVolumeParams) error {
	var in struct {
		Name      string         `json:"name"`
		BackupID  prego.BackupID `json:"backup_id"`
		SizeBytes int64          `json:"size_bytes"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	d, by := a.d.Resources, caller(c).By()
	v, r, err := a.d.Store.CloneVolume(c.Request().Context(), id, workload.Volume{VolumeID: prego.VolumeID(newID("vol-")), Name: in.Name, SizeBytes: in.SizeBytes},
		workload.VolumeRestore{RestoreID: newID("vrs-"), BackupID: in.BackupID, CreatedBy: by}, d.Environment)
	if err == nil {
		a.startRun(c, a.d.Runs.StartVolumeRestore, r.OrgID, r.RestoreID, workload.VolumeRestoreWorkflowID(r.RestoreID))
	}
	return a.volumeAccepted(c, v, err)
}
