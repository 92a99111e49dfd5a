package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// Snapshots are the steps of snapshots and restores of tenants' sites.
type Snapshots struct {
	Store   *store.Store
	Tenants *Tenants
	Runs    Runs
	// FetchFor is how long a backup may take to come from object storage.
	FetchFor time.Duration
}

// SnapshotPlan is the state of a snapshot or a restore.
type SnapshotPlan struct {
	OrgID    prego.OrgID    `json:"org_id"`
	TenantID prego.TenantID `json:"tenant_id"`
	Done     bool           `json:"done,omitempty"`
	Files    []string       `json:"files,omitempty"` // to restore
	// BackupID is what a restore is of, if it is in object storage; it has to be fetched.
	BackupID  prego.BackupID `json:"backup_id,omitempty"`
	Name      string         `json:"name,omitempty"` // of the download
	UploadFor time.Duration  `json:"upload_for,omitempty"`
	Step      time.Duration  `json:"step"`
	// Wait is set when other work of the org comes first: ask again when signalled, or
	// after this time.
	Wait time.Duration `json:"wait,omitempty"`
}

// turnNet is how often a waiting job checks for its turn, in case a signal is lost.
const turnNet = time.Minute

// await asks for the turn of a job that is to run.
func (a *Snapshots) await(ctx context.Context, p *SnapshotPlan, kind org.WorkKind, id string) error {
	if p.Done {
		return nil
	}
	turn, err := a.Store.BeginWork(ctx, org.LongWork{OrgID: p.OrgID, Kind: kind, Run: activity.GetInfo(ctx).WorkflowExecution.ID, IDs: []string{id}})
	if err != nil {
		return err
	}
	a.wake(ctx, turn.Wake)
	if len(turn.Begun) == 0 {
		p.Wait = turnNet
		return a.Store.JobWaits(ctx, id, org.WaitText(turn.Most))
	}
	return nil
}

// end gives a job's turn to the next.
func (a *Snapshots) end(ctx context.Context, id string) error {
	wake, err := a.Store.EndWork(ctx, id)
	a.wake(ctx, wake)
	return err
}

func (a *Snapshots) wake(ctx context.Context, runs []string) {
	if len(runs) == 0 {
		return
	}
	if err := a.Runs.WakeRuns(ctx, runs); err != nil {
		activity.GetLogger(ctx).Warn("runs whose turn has come are not woken; they ask again", "error", err)
	}
}

func underWay(s tenant.JobStatus) bool { return s == tenant.JobQueued || s == tenant.JobRunning }

// PlanSnapshot reads the snapshot's row.
func (a *Snapshots) PlanSnapshot(ctx context.Context, id prego.SnapshotID) (SnapshotPlan, error) {
	s, err := a.Store.SnapshotRecord(ctx, id)
	if err != nil {
		return SnapshotPlan{}, permanentIfCoded(err)
	}
	p := SnapshotPlan{OrgID: s.OrgID, TenantID: s.TenantID, Done: !underWay(s.Status), Step: a.Tenants.Settings.StepTimeout}
	return p, a.await(ctx, &p, org.WorkSnapshot, string(id))
}

// onHost reads a tenant whose site is still on the server that holds the snapshot.
func (a *Snapshots) onHost(ctx context.Context, s tenant.Snapshot) (tenant.Record, error) {
	t, err := a.Tenants.Store.TenantRecord(ctx, s.TenantID)
	if err != nil {
		return t, fromStore(err)
	}
	if t.Allocation == nil || t.Allocation.AppServerID != s.ServerID || t.Site != s.Site {
		return t, permanentError(ErrTypeSuperseded, fmt.Sprintf("site %s is on server %s no longer", s.Site, s.ServerID), nil)
	}
	return t, nil
}

// TakeSnapshot backs up a tenant's site on its host, under the snapshot's own name.
func (a *Snapshots) TakeSnapshot(ctx context.Context, id prego.SnapshotID) (files []string, err error) {
	s, err := a.Store.SnapshotRecord(ctx, id)
	if err != nil {
		return nil, permanentIfCoded(err)
	}
	if err := a.Store.SnapshotBegun(ctx, id); err != nil {
		return nil, err
	}
	t, err := a.onHost(ctx, s)
	if err != nil {
		return nil, err
	}
	a.Tenants.hook("snapshot/start")
	b, err := a.Tenants.backup(ctx, t, string(id), string(id))
	a.Tenants.hook("snapshot/done")
	if err != nil {
		return nil, err
	}
	return b.Paths(), a.Store.SiteSnapshotTaken(ctx, id, b)
}

// EraseSnapshot deletes the files of a deleted snapshot that is not kept any more. If the site has moved, they are gone
// already.
func (a *Snapshots) EraseSnapshot(ctx context.Context, id prego.SnapshotID) error {
	s, err := a.Store.SnapshotRecord(ctx, id)
	if err != nil {
		return permanentIfCoded(err)
	}
	if s.Status != tenant.JobDeleted || s.ErasedAt != nil || s.KeptUntil != nil {
		return nil
	}
	t, err := a.Tenants.Store.TenantRecord(ctx, s.TenantID)
	if err != nil {
		return fromStore(err)
	}
	if there := t.Allocation != nil && t.Allocation.AppServerID == s.ServerID && t.AppServerStatus != server.Terminated && t.Site == s.Site; there {
		if err := a.forget(ctx, t, string(id+"-erase"), string(id)); err != nil {
			return err
		}
	}
	a.Tenants.hook("snapshot/erased")
	return a.Store.SnapshotErased(ctx, id)
}

// forget deletes a backup of a site from its host.
func (a *Snapshots) forget(ctx context.Context, t tenant.Record, what, name string) error {
	_, err := a.Tenants.forTenant(ctx, t, fmt.Sprintf("%s-%d", what, activity.GetInfo(ctx).Attempt), a.Tenants.Settings.CommandTimeout, "--site", t.Site, "delete-backup", name)
	return err
}

// SnapshotEnd is the outcome of a snapshot or a restore.
type SnapshotEnd struct {
	ID      string           `json:"id"`
	Status  tenant.JobStatus `json:"status"`
	Files   []string         `json:"files,omitempty"`
	Message string           `json:"message,omitempty"`
}

// FinishSnapshot records the outcome of a snapshot.
func (a *Snapshots) FinishSnapshot(ctx context.Context, in SnapshotEnd) error {
	return errors.Join(a.Store.SnapshotFinished(ctx, in.ID, in.Status, in.Files, in.Message), a.end(ctx, in.ID))
}

// restored reads the tenant of a restore whose site is on the server that holds the
// snapshot.
func (a *Snapshots) restored(ctx context.Context, id string) (tenant.Record, error) {
	j, err := a.Store.RestoreRecord(ctx, id)
	if err != nil {
		return tenant.Record{}, permanentIfCoded(err)
	}
	if j.BackupID != "" {
		t, err := a.Tenants.Store.TenantRecord(ctx, j.TenantID)
		if err == nil && (t.Allocation == nil || t.Site == "") {
			return t, permanentError(ErrTypeSuperseded, fmt.Sprintf("tenant %s has no site any more", j.TenantID), nil)
		}
		return t, fromStore(err)
	}
	s, err := a.Store.SnapshotRecord(ctx, j.SnapshotID)
	if err != nil {
		return tenant.Record{}, permanentIfCoded(err)
	}
	return a.onHost(ctx, s)
}

// PlanRestore reads the rows of a restore and of its snapshot.
func (a *Snapshots) PlanRestore(ctx context.Context, id string) (SnapshotPlan, error) {
	j, err := a.Store.RestoreRecord(ctx, id)
	if err != nil {
		return SnapshotPlan{}, permanentIfCoded(err)
	}
	p := SnapshotPlan{OrgID: j.OrgID, TenantID: j.TenantID, Done: !underWay(j.Status), Step: a.Tenants.Settings.StepTimeout}
	if j.BackupID != "" {
		p.BackupID, p.Name, p.UploadFor = j.BackupID, fetchedAs(id), a.FetchFor
		return p, a.await(ctx, &p, org.WorkRestore, id)
	}
	s, err := a.Store.SnapshotRecord(ctx, j.SnapshotID)
	if err != nil {
		return SnapshotPlan{}, permanentIfCoded(err)
	}
	p.Files = s.Files
	return p, a.await(ctx, &p, org.WorkRestore, id)
}

// BeginRestore records that a restore has started.
func (a *Snapshots) BeginRestore(ctx context.Context, id string) error {
	return a.Store.RestoreBegun(ctx, id)
}

// RestoreMaintenance asks to take a site offline for its restore, or to bring it back
// afterwards.
type RestoreMaintenance struct {
	JobID string `json:"job_id"`
	Off   bool   `json:"off,omitempty"` // bring the site back online
}

// MaintainForRestore takes the site offline or brings it back. The site of a tenant
// that was suspended or ended meanwhile stays offline.
func (a *Snapshots) MaintainForRestore(ctx context.Context, in RestoreMaintenance) error {
	t, err := a.restored(ctx, in.JobID)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%s-%d", in.JobID, activity.GetInfo(ctx).Attempt)
	if in.Off {
		if t.State != tenant.Active && t.State != tenant.GracePeriod {
			return nil
		}
		return a.Tenants.putOnline(ctx, t, what)
	}
	if t.ReadOnly { // a half-restored site is never served
		if err := a.Tenants.onSite(ctx, t, what+"-offline", reading(false)); err != nil {
			return err
		}
	}
	return a.Tenants.onSite(ctx, t, what+"-offline", maintenanceOn)
}

// BackupBeforeRestore backs up a site before its restore, so that the restore can be
// undone.
func (a *Snapshots) BackupBeforeRestore(ctx context.Context, id string) ([]string, error) {
	t, err := a.restored(ctx, id)
	if err != nil {
		return nil, err
	}
	b, err := a.Tenants.backup(ctx, t, id+"-before", keptAs(id))
	a.Tenants.hook("restore/kept")
	return b.Paths(), err
}

// keptAs names the backup taken before a restore.
func keptAs(jobID string) string { return jobID + "-before" }

// fetchedAs names a backup that was fetched for a restore.
func fetchedAs(jobID string) string { return jobID + "-in" }

// ForgetKept deletes that backup after a successful restore.
func (a *Snapshots) ForgetKept(ctx context.Context, jobID string) error {
	t, err := a.restored(ctx, jobID)
	if err != nil {
		return err
	}
	return a.forget(ctx, t, jobID+"-forget", keptAs(jobID))
}

// ForgetFetched deletes what a restore fetched from object storage, however it ended.
func (a *Snapshots) ForgetFetched(ctx context.Context, jobID string) error {
	t, err := a.restored(ctx, jobID)
	if err != nil {
		return err
	}
	return a.forget(ctx, t, jobID+"-forget-fetched", fetchedAs(jobID))
}

// snapshotOf names the backup that is restored.
func (a *Snapshots) snapshotOf(ctx context.Context, jobID string) (string, error) {
	j, err := a.Store.RestoreRecord(ctx, jobID)
	if err != nil {
		return "", permanentIfCoded(err)
	}
	if j.BackupID != "" {
		return fetchedAs(jobID), nil
	}
	return string(j.SnapshotID), nil
}

// What a restore brings the site to: the snapshot, or what it held before.
const (
	RestoreApply = "apply"
	RestoreUndo  = "undo"
)

// RestoreInput names the backup to restore.
type RestoreInput struct {
	JobID string   `json:"job_id"`
	What  string   `json:"what"`
	Files []string `json:"files"` // shown in the history
}

// RestoreSite restores a site from a backup.
func (a *Snapshots) RestoreSite(ctx context.Context, in RestoreInput) error {
	t, err := a.restored(ctx, in.JobID)
	if err != nil {
		return err
	}
	name := keptAs(in.JobID)
	if in.What == RestoreApply {
		if name, err = a.snapshotOf(ctx, in.JobID); err != nil {
			return err
		}
	}
	a.Tenants.hook("restore/start")
	_, err = a.Tenants.forTenant(ctx, t, in.JobID+"-"+in.What, a.Tenants.Settings.SiteTimeout, "--site", t.Site, "restore", name, "--with-files")
	a.Tenants.hook("restore/done")
	return err
}

// FinishRestore records the outcome of a restore.
func (a *Snapshots) FinishRestore(ctx context.Context, in SnapshotEnd) error {
	return errors.Join(a.Store.RestoreFinished(ctx, in.ID, in.Status, in.Message), a.end(ctx, in.ID))
}
