package activities

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// lend brings a volume to a server for a backup or a restore, unless its group has it on one. It
// prefers the requested server, if any.
func (a *Backups) lend(ctx context.Context, v workload.Volume, want prego.ServerID, work string) (srv server.Server, lent bool, err error) {
	at, lent, err := a.Store.LendVolume(ctx, v.VolumeID, want, work)
	switch prego.CodeOf(err) {
	case prego.CodeInsufficientResources:
		return srv, lent, because(false, tenant.ReasonNoHost, err.Error())
	case prego.CodeVolumeInUse: // it is returned after a while
		return srv, lent, err
	}
	if err != nil {
		return srv, lent, permanentIfCoded(err)
	}
	if srv, err = a.Volumes.Store.GetServer(ctx, at); err != nil || !lent {
		return srv, lent, fromStore(err)
	}
	if srv.Status != server.Active {
		return srv, lent, because(true, tenant.ReasonBackupSuperseded, fmt.Sprintf("server %s, planned for the volume, is %s", at, srv.Status))
	}
	infra, err := a.Volumes.infra(v.Provider)
	if err != nil {
		return srv, lent, err
	}
	a.Tenants.hook("volume-lend/intended")
	if err := infra.AttachVolume(ctx, prego.VolumeID(v.ProviderID), prego.ServerID(srv.ProviderServerID)); err != nil {
		return srv, lent, fromInfra(err)
	}
	a.Tenants.hook("volume-lend/attached")
	_, err = a.Volumes.mountVolume(ctx, srv, v)
	return srv, lent, err
}

// giveBack takes a volume from the server that had it for a backup or a restore.
func (a *Backups) giveBack(ctx context.Context, id prego.VolumeID, work string) error {
	at, err := a.Store.VolumeLent(ctx, id, work)
	if err != nil || at == "" {
		return err
	}
	v, err := a.Volumes.Store.VolumeEver(ctx, id)
	if err != nil {
		return permanentIfCoded(err)
	}
	if err := a.Volumes.detach(ctx, at, v); err != nil {
		return err
	}
	a.Tenants.hook("volume-lend/detached")
	return a.Store.ReturnVolume(ctx, id, work)
}

// volumeVerb runs a verb on a volume that takes long. The reported failure is the error's type.
func (a *Backups) volumeVerb(ctx context.Context, srv server.Server, what string, secrets map[string]string, args ...string) (string, error) {
	info := activity.GetInfo(ctx)
	out, err := a.Volumes.Hosts.Bench(ctx, server.BenchCommand{
		Kind: string(wire.KindVolume), ServerID: srv.ServerID, Addr: srv.Host, AuditID: fmt.Sprintf("%s-%s-%d", what, info.WorkflowExecution.RunID, info.Attempt), WorkflowID: info.WorkflowExecution.ID,
		Timeout: a.Tenants.Settings.SiteTimeout, Args: args, Secrets: secrets,
	})
	var ce *server.CommandError
	switch {
	case err == nil:
		return out, nil
	case errors.As(err, &ce) && ce.ExitCode > 0:
		text := strings.TrimSpace(ce.Stderr)
		if m := verbFailed.FindStringSubmatch(text); m != nil {
			return out, because(m[1] != wire.FailedInterrupts, prego.Reason(m[1]), m[0])
		}
		return out, permanentError(ErrTypeCommand, text, nil)
	}
	return out, err
}

// placeOf is where a backup is made: a tenant's site, or a volume on a server.
func (a *Backups) placeOf(ctx context.Context, b tenant.BackupRecord, t tenant.Record) (siteAt, error) {
	if b.VolumeID == "" {
		return atOf(t), nil
	}
	return a.placeOfVolume(ctx, b.VolumeID, b.ServerID)
}

func (a *Backups) placeOfVolume(ctx context.Context, id prego.VolumeID, at prego.ServerID) (siteAt, error) {
	v, err := a.Volumes.Store.VolumeEver(ctx, id)
	if err != nil {
		return siteAt{}, permanentIfCoded(err)
	}
	srv, err := a.Volumes.Store.GetServer(ctx, at)
	if err != nil {
		return siteAt{}, fromStore(err)
	}
	return siteAt{ServerID: srv.ServerID, Addr: srv.Host, Volume: v.ProviderID, ID: string(id)}, nil
}

// makeVolumeBackup has the host seal the volume's files as they are at one moment.
func (a *Backups) makeVolumeBackup(ctx context.Context, b tenant.BackupRecord) error {
	v, err := a.Volumes.Store.VolumeEver(ctx, b.VolumeID)
	if err != nil {
		return permanentIfCoded(err)
	}
	srv, _, err := a.lend(ctx, v, b.ServerID, string(b.BackupID))
	if err != nil {
		return err
	}
	if srv.ServerID != b.ServerID {
		return because(true, tenant.ReasonBackupSuperseded, fmt.Sprintf("volume %s is on server %s no longer", b.VolumeID, b.ServerID))
	}
	a.Tenants.hook("stored-backup/start")
	report, err := a.volumeVerb(ctx, srv, string(b.BackupID)+"-seal", nil, "seal-volume", v.ProviderID, string(b.BackupID), b.Recipient)
	if err != nil {
		return err
	}
	object, manifest := tenant.VolumeBackupKeys(a.Settings.Environment, b.VolumeID, b.BackupID)
	if err := a.sealed(ctx, b, report, 0, object, manifest); err != nil {
		return err
	}
	// The files to upload are on the host's own disk.
	return a.giveBack(ctx, b.VolumeID, string(b.BackupID))
}

// clearVolumesHost deletes what the host has of a volume's backup, and takes the volume from it.
func (a *Backups) clearVolumesHost(ctx context.Context, b tenant.BackupRecord) error {
	if err := a.giveBack(ctx, b.VolumeID, string(b.BackupID)); err != nil {
		return err
	}
	at, err := a.placeOfVolume(ctx, b.VolumeID, b.ServerID)
	if err != nil {
		return err
	}
	return a.dropSealed(ctx, at, string(b.BackupID))
}

func (a *Backups) dropSealed(ctx context.Context, at siteAt, name string) error {
	srv, err := a.Volumes.Store.GetServer(ctx, at.ServerID)
	if err != nil || srv.Status == server.Terminated {
		return fromStore(err)
	}
	_, err = a.volumeVerb(ctx, srv, name+"-drop", nil, "drop-sealed", at.Volume, name)
	return err
}

// RetainVolumeBackups deletes what retention does not keep of a volume's backups.
func (a *Backups) RetainVolumeBackups(ctx context.Context, id prego.VolumeID) (deleted int, err error) {
	p, err := a.Store.VolumeBackupPolicy(ctx, id)
	if err != nil {
		return 0, permanentIfCoded(err)
	}
	all, err := a.Store.VolumeRetained(ctx, id)
	return a.giveUpSurplus(ctx, tenant.BackupLeft{VolumeID: id}, p, all, err)
}

// seeToVolumes starts restores whose run was lost, and takes idle volumes back.
func (a *Backups) seeToVolumes(ctx context.Context) (n int, err error) {
	left, err := a.Store.VolumeRestoresLeft(ctx, a.Settings.Quiet, lookMost)
	var try Attempts
	try.OK(err)
	for id := range Each(&try, left) {
		started, err := a.Runs.EnsureVolumeRestore(ctx, id)
		if try.OK(err) && started {
			n++
		}
	}
	lent, err := a.Store.LentVolumes(ctx, lookMost)
	try.OK(err)
	ctx, cancel := context.WithTimeout(ctx, waitOutside) // a host that does not answer must not keep other backups waiting
	defer cancel()
	for id, work := range lent {
		if e := a.giveBack(ctx, id, work); e != nil {
			try.OK(fmt.Errorf("volume %s: %w", id, e))
			continue
		}
		n++
	}
	return n, try.Err()
}

// WantsFinalOf reports whether a volume's last backup must still be made.
func (a *Backups) WantsFinalOf(ctx context.Context, id prego.VolumeID) (bool, error) {
	if a.Objects == nil {
		return false, nil
	}
	wants, err := a.Store.WantsLastBackup(ctx, id)
	if err != nil || !wants {
		return false, err
	}
	b, err := a.Store.FinalVolumeBackup(ctx, id)
	return b == nil || b.State != tenant.BackupStored, err
}

// LetGoOf ends retention for a volume that is about to be destroyed.
func (a *Backups) LetGoOf(ctx context.Context, id prego.VolumeID) error {
	return a.Store.ExpireVolumeBackups(ctx, id, a.Settings.FinalFor)
}

// WantVolumeBackup accepts the last backup of a volume that will be deleted. There is one, unless
// it failed.
func (a *Backups) WantVolumeBackup(ctx context.Context, id prego.VolumeID) (BackupGranted, error) {
	b, err := a.Store.FinalVolumeBackup(ctx, id)
	if err != nil {
		return BackupGranted{}, err
	}
	if b != nil && (b.State == tenant.BackupStored || b.State.UnderWay()) {
		return BackupGranted{BackupID: b.BackupID, Stored: b.State == tenant.BackupStored}, nil
	}
	made, err := a.Store.RequestVolumeBackup(ctx, tenant.BackupAsked{ID: a.NewID(), VolumeID: id, Kind: tenant.BackupFinal, By: string(prego.ActorWorkflow), AtOnce: true, Keep: a.Settings.FinalFor})
	switch prego.CodeOf(err) {
	case prego.CodeInsufficientResources:
		err = because(true, tenant.ReasonNoHost, err.Error())
	case prego.CodeBackupUnderWay: // another one; it ends
	default:
		err = permanentIfCoded(err)
	}
	return BackupGranted{BackupID: made.BackupID}, err
}

// VolumeNotBackedUp is the reason why a released volume still exists.
type VolumeNotBackedUp struct {
	VolumeID prego.VolumeID `json:"volume_id"`
	Reason   prego.Reason   `json:"reason"`
	Message  string         `json:"message"`
}

// SayNotBackedUp records it, and returns the delay of the next try, which grows with each failure.
func (a *Backups) SayNotBackedUp(ctx context.Context, in VolumeNotBackedUp) (time.Duration, error) {
	return a.Store.LastBackupFailed(ctx, in.VolumeID, in.Reason, in.Message)
}

// tryVolume restores a volume's backup into a directory of a server's own disk, where all of it is
// read again and compared with the list in it, and the directory deleted.
func (a *Backups) tryVolume(ctx context.Context, d tenant.DrillRecord, srv server.Server) (files, bytes int64, err error) {
	b, _, err := a.run(ctx, d.BackupID)
	if err != nil {
		return 0, 0, err
	}
	at, err := a.placeOfVolume(ctx, d.VolumeID, srv.ServerID)
	if err != nil {
		return 0, 0, err
	}
	identity, err := a.identityOf(ctx, b)
	if err != nil {
		return 0, 0, err
	}
	var tried wire.OpenedVolume
	err = a.fetchWith(ctx, b, at, d.DrillID, func(what string) error {
		text, err := a.volumeVerb(ctx, srv, d.DrillID+"-"+what, map[string]string{wire.SecretBackupIdentity: string(identity)},
			"try-volume", at.Volume, d.DrillID, b.SHA256, b.PlainSHA256, strconv.FormatInt(b.PlainBytes, 10), strconv.FormatInt(b.Entries, 10))
		if err != nil {
			return err
		}
		if json.Unmarshal([]byte(text), &tried) != nil || tried.Name != d.DrillID {
			return permanentError(ErrTypeCommand, "the host's report of what it restored can't be read", nil)
		}
		if int64(tried.Entries) != b.Entries {
			return because(true, tenant.ReasonIncomplete, fmt.Sprintf("%d files, directories and links came back, of %d", tried.Entries, b.Entries))
		}
		return nil
	})
	if err == nil {
		a.Tenants.hook("drill/restored")
	}
	return int64(tried.Entries), tried.Bytes, err
}

// VolumeRestorePlan is the state of a restore.
type VolumeRestorePlan struct {
	OrgID     prego.OrgID    `json:"org_id"`
	VolumeID  prego.VolumeID `json:"volume_id"`
	BackupID  prego.BackupID `json:"backup_id"`
	Done      bool           `json:"done,omitempty"`
	Step      time.Duration  `json:"step"`
	UploadFor time.Duration  `json:"upload_for"`
}

// PlanVolumeRestore reads the restore's row.
func (a *Backups) PlanVolumeRestore(ctx context.Context, id string) (VolumeRestorePlan, error) {
	r, err := a.Store.VolumeRestoreRecord(ctx, id)
	return VolumeRestorePlan{
		OrgID: r.OrgID, VolumeID: r.VolumeID, BackupID: r.BackupID, Done: r.FinishedAt != nil, Step: a.Tenants.Settings.StepTimeout, UploadFor: a.Settings.UploadFor,
	}, permanentIfCoded(err)
}

// BeginVolumeRestore records that it has started.
func (a *Backups) BeginVolumeRestore(ctx context.Context, id string) error {
	return a.Store.VolumeRestoreBegun(ctx, id)
}

// RestoreVolumeFiles restores a volume from a backup: it brings both to a server, and replaces the
// volume's content once all files are verified against the backup. Until then the volume stays
// unchanged. Why it is repeated is on its row. Instead of a missing or unreadable backup it takes the next older one, unless the
// caller named it.
func (a *Backups) RestoreVolumeFiles(ctx context.Context, id string) (err error) {
	defer func() {
		noteWhy(ctx, a.Log, err, func(ctx context.Context, why string) error {
			return a.Store.VolumeRestoreWaits(ctx, id, why)
		})
	}()
	for {
		r, err := a.Store.VolumeRestoreRecord(ctx, id)
		if err != nil {
			return permanentIfCoded(err)
		}
		err = a.restoreVolumeFrom(ctx, id, r)
		if unusableFor(err) == "" {
			return err
		}
		if older, failed := a.Store.VolumeRestoreFromOlder(ctx, id, r.BackupID, err.Error()); failed != nil || !older {
			return cmp.Or(failed, err)
		}
	}
}

func (a *Backups) restoreVolumeFrom(ctx context.Context, id string, r workload.VolumeRestore) error {
	b, _, err := a.run(ctx, r.BackupID)
	if err != nil {
		return err
	}
	v, err := a.Volumes.Store.VolumeEver(ctx, r.VolumeID)
	if err != nil {
		return permanentIfCoded(err)
	}
	switch v.Status {
	case workload.ResourceReady:
	case workload.ResourcePending:
		return fmt.Errorf("volume %s is not made yet", v.VolumeID)
	default:
		return because(true, tenant.ReasonBackupSuperseded, fmt.Sprintf("volume %s is %s", v.VolumeID, v.Status))
	}
	identity, err := a.identityOf(ctx, b)
	if err != nil {
		return err
	}
	srv, lent, err := a.lend(ctx, v, "", id)
	if err != nil {
		return err
	}
	if !lent {
		return fmt.Errorf("volume %s is still on server %s for its process group", v.VolumeID, srv.ServerID)
	}
	at := siteAt{ServerID: srv.ServerID, Addr: srv.Host, Volume: v.ProviderID, ID: string(v.VolumeID)}
	a.Tenants.hook("stored-restore/start")
	return a.fetchWith(ctx, b, at, id, func(what string) error {
		_, err := a.volumeVerb(ctx, srv, fmt.Sprintf("%s-%s-%s", id, b.BackupID, what), map[string]string{wire.SecretBackupIdentity: string(identity)}, "open-volume", v.ProviderID, id, b.SHA256, b.PlainSHA256)
		return err
	})
}

// AfterVolumeRestore deletes what the host has of the backup, and takes the volume from it.
func (a *Backups) AfterVolumeRestore(ctx context.Context, id string) error {
	r, err := a.Store.VolumeRestoreRecord(ctx, id)
	if err != nil {
		return permanentIfCoded(err)
	}
	srv, err := a.Store.VolumeLent(ctx, r.VolumeID, id)
	if err != nil || srv == "" {
		return err
	}
	at, err := a.placeOfVolume(ctx, r.VolumeID, srv)
	if err != nil {
		return err
	}
	dropped := a.dropSealed(ctx, at, id) // or the host itself, after two days
	return errors.Join(a.giveBack(ctx, r.VolumeID, id), dropped)
}

// VolumeRestoreEnd is how a restore ended.
type VolumeRestoreEnd struct {
	RestoreID string       `json:"restore_id"`
	Reason    prego.Reason `json:"reason,omitempty"` // "" if it succeeded
	Message   string       `json:"message,omitempty"`
}

// FinishVolumeRestore records it; a backup that was restored is verified.
func (a *Backups) FinishVolumeRestore(ctx context.Context, in VolumeRestoreEnd) error {
	if in.Reason == "" {
		r, err := a.Store.VolumeRestoreRecord(ctx, in.RestoreID)
		if err != nil {
			return permanentIfCoded(err)
		}
		if err := a.Store.BackupVerified(ctx, r.BackupID, ""); err != nil {
			return err
		}
	}
	return a.Store.VolumeRestoreFinished(ctx, in.RestoreID, in.Reason, in.Message)
}
