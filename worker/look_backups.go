package worker

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/tenant"
)

// LookAtBackups queues the backups that are due, starts as many as hosts and regions may have concurrently, and
// restarts lost runs.
func LookAtBackups(ctx context.Context, a *activities.Backups) (ops.LookResult, error) {
	n, err := a.BeginBackups(ctx)
	return ops.LookResult{Found: n > 0}, err
}

// mostLate bounds the count of late backups.
const mostLate = 2000

// LookAtBackupSchedules schedules the backups of tenants that are new or whose policy has changed, and counts late
// backups. It reads every tenant, so it is rarer than LookAtBackups.
func LookAtBackupSchedules(ctx context.Context, a *activities.Backups) (ops.LookResult, error) {
	if a.Objects == nil {
		return ops.LookResult{}, nil
	}
	n, err := a.PlanBackups(ctx)
	if err != nil {
		return ops.LookResult{}, err
	}
	late, err := a.Store.LateBackups(ctx, a.Settings.LateAfter, mostLate)
	lateVolumes, volumesErr := a.Store.LateVolumeBackups(ctx, a.Settings.LateAfter, mostLate)
	if err = errors.Join(err, volumesErr); err == nil {
		a.Metrics.Late.Set(float64(len(late) + len(lateVolumes)))
	}
	over, bytes, spaceErr := a.Store.BackupSpaces(ctx)
	if spaceErr == nil {
		a.Metrics.Over.Set(float64(over))
		a.Metrics.Kept.Set(float64(bytes))
	}
	return ops.LookResult{Found: n > 0}, errors.Join(err, spaceErr)
}

// LookAtBackupStorage compares the storage with the rows.
func LookAtBackupStorage(ctx context.Context, a *activities.Backups) (ops.LookResult, error) {
	if a.Objects == nil {
		return ops.LookResult{}, nil
	}
	c, err := a.CompareStorage(ctx, time.Now())
	if err != nil {
		return ops.LookResult{}, err
	}
	a.Metrics.Objects.WithLabelValues("unknown").Set(float64(len(c.Unknown)))
	a.Metrics.Objects.WithLabelValues("missing").Set(float64(len(c.Missing)))
	if len(c.Unknown)+len(c.Missing) > 0 {
		a.Log.Warn("the bucket of backups and the rows do not match", zap.Strings("unknown", c.Unknown[:min(10, len(c.Unknown))]), zap.Strings("missing", prego.Strings(c.Missing[:min(10, len(c.Missing))])))
	}
	return ops.LookResult{Found: c.Aborted > 0}, nil
}

// LookAtDrills starts drills that are due, and lost runs.
func LookAtDrills(ctx context.Context, a *activities.Drills) (ops.LookResult, error) {
	if a.Backups.Objects == nil {
		return ops.LookResult{}, nil
	}
	left, err := a.Store.DrillsLeft(ctx, a.Settings.Quiet)
	_, err = startLost(ctx, left, err, func(ctx context.Context, d tenant.DrillLeft) (bool, error) { return a.Runs.EnsureDrill(ctx, d.DrillID) })
	if err != nil || a.Settings.Every == 0 {
		return ops.LookResult{}, err
	}
	n, err := a.BeginDrills(ctx)
	if err != nil {
		return ops.LookResult{Found: n > 0}, err
	}
	failed, late, err := a.Store.CountDrills(ctx, a.Settings.Overdue())
	if err == nil {
		a.Metrics.Failed.Set(float64(failed))
		a.Metrics.Late.Set(float64(late))
	}
	return ops.LookResult{Found: n > 0}, err
}
