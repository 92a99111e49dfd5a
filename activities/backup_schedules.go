package activities

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// lookMost bounds what one look at backups does of each kind.
const lookMost = 200

// BeginBackups queues the backups that are due, starts as many as hosts and regions may run
// concurrently, and takes up abandoned ones.
func (a *Backups) BeginBackups(ctx context.Context) (n int, err error) {
	if a.Objects == nil {
		return a.admit(ctx) // they fail with a reason
	}
	for _, f := range []func(context.Context) (int, error){a.takeDue, a.admit, a.seeToLeft, a.seeToVolumes} {
		found, foundErr := f(ctx)
		n += found
		err = errors.Join(err, foundErr)
	}
	return n, err
}

// PlanBackups schedules tenants that are new, or whose policy has changed.
func (a *Backups) PlanBackups(ctx context.Context) (int, error) {
	unscheduled, err := a.Store.UnscheduledTenants(ctx, lookMost)
	if err == nil && len(unscheduled) > 0 {
		err = a.Store.PutBackupSchedules(ctx, unscheduled)
	}
	if err != nil {
		return 0, err
	}
	volumes, err := a.Store.UnscheduledVolumes(ctx, lookMost)
	if err == nil && len(volumes) > 0 {
		err = a.Store.PutBackupSchedules(ctx, volumes)
	}
	return len(unscheduled) + len(volumes), err
}

// takeDue queues the backups of tenants and volumes that are due. A volume that is on no
// server is passed over.
func (a *Backups) takeDue(ctx context.Context) (n int, err error) {
	lists := []func(context.Context, int) ([]tenant.BackupSchedule, error){a.Store.DueBackups, a.Store.DueVolumeBackups}
	var try Attempts
	for _, list := range lists {
		due, err := list(ctx, lookMost)
		try.OK(err)
		for t := range Each(&try, due) {
			queued, err := a.Store.TakeDueBackup(ctx, t, a.NewID(), "schedule")
			if !try.OK(err) {
				continue
			}
			if !queued {
				a.Log.Info("a scheduled backup is passed over: one is under way, or there is nothing to back up", zap.String("tenant_id", string(t.TenantID)), zap.String("volume_id", string(t.VolumeID)))
			}
			n++
		}
	}
	return n, try.Err()
}

func (a *Backups) admit(ctx context.Context) (n int, err error) {
	ids, err := a.Store.AdmitBackups(ctx, a.Settings.PerHost, a.Settings.PerRegion)
	var try Attempts
	try.OK(err)
	for id := range Each(&try, ids) {
		// One whose run is not started here is found by seeToLeft.
		if _, err := a.Runs.EnsureBackup(ctx, id); try.OK(err) {
			n++
		}
	}
	return n, try.Err()
}

// seeToLeft starts lost runs and deletes expired backups.
func (a *Backups) seeToLeft(ctx context.Context) (n int, err error) {
	left, err := a.Store.BackupsLeft(ctx, a.Settings.Quiet, lookMost)
	var try Attempts
	try.OK(err)
	for b := range Each(&try, left) {
		started, err := false, error(nil)
		switch b.State {
		case tenant.BackupMaking, tenant.BackupUploading:
			started, err = a.Runs.EnsureBackup(ctx, b.BackupID)
		case tenant.BackupDeleting:
			started, err = a.Runs.EnsureBackupDelete(ctx, b.BackupID)
		case tenant.BackupStored, tenant.BackupFailed:
			started, err = true, a.giveUp(ctx, b)
		case tenant.BackupQueued, tenant.BackupDeleted:
		}
		if try.OK(err) && started {
			n++
		}
	}
	return n, try.Err()
}

// staleUpload is the age of an abandoned upload: no backup takes that long.
const staleUpload = 24 * time.Hour

// StorageCompared is what a comparison of the storage with the rows found.
type StorageCompared struct {
	Objects int
	Aborted int      // uploads that were stale
	Unknown []string // objects without a row; they are left alone, since rows may have been lost
	Missing []prego.BackupID
}

// CompareStorage compares the bucket with the rows. Objects without a row are reported and not
// touched: after a restore of the database they may be all that is left of a tenant.
func (a *Backups) CompareStorage(ctx context.Context, now time.Time) (out StorageCompared, err error) {
	prefix := a.Settings.Environment + "/"
	there := make(map[string]int64)
	for after := ""; ; {
		page, err := a.Objects.List(ctx, prefix, after, 1000)
		if err != nil {
			return out, err
		}
		if len(page) == 0 {
			break
		}
		for _, o := range page {
			there[o.Key] = o.Bytes
			out.Objects++
		}
		after = page[len(page)-1].Key
	}
	rows, err := a.Store.BackupObjects(ctx)
	if err != nil {
		return out, err
	}
	known := make(map[string]bool)
	for _, r := range rows {
		known[r.Object], known[r.Manifest] = true, true
		_, manifest := there[r.Manifest]
		if size, ok := there[r.Object]; r.State == tenant.BackupStored && (!ok || size != r.Bytes || !manifest) {
			out.Missing = append(out.Missing, r.BackupID)
		}
	}
	if err := a.Store.BackupsMissing(ctx, out.Missing); err != nil {
		return out, err
	}
	for key := range there {
		if !known[key] {
			out.Unknown = append(out.Unknown, key)
		}
	}
	uploads, err := a.Objects.Uploads(ctx, prefix)
	if err != nil {
		return out, err
	}
	for _, u := range uploads {
		if now.Sub(u.Initiated) > staleUpload {
			if err := a.Objects.Abort(ctx, u.Key, u.ID); err != nil {
				return out, err
			}
			out.Aborted++
		}
	}
	return out, nil
}
