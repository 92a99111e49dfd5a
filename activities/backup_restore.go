package activities

import (
	"context"
	"fmt"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// FetchInput asks to bring a backup to the host of a tenant's site.
type FetchInput struct {
	BackupID prego.BackupID `json:"backup_id"`
	// TenantID names the tenant whose site is restored. The site exists; the backup may be another
	// site's.
	TenantID prego.TenantID `json:"tenant_id"`
	// Name is what the host calls it then: "bench restore NAME" takes it.
	Name string `json:"name"`
}

// FetchBackup downloads a backup to a host, piece by piece, and has it checked and opened
// there. The host gets the identity of this one backup for that, and nothing of the site is
// touched.
func (a *Backups) FetchBackup(ctx context.Context, in FetchInput) error {
	b, _, err := a.run(ctx, in.BackupID)
	if err != nil {
		return err
	}
	t, err := a.Tenants.Store.TenantRecord(ctx, in.TenantID)
	if err != nil {
		return fromStore(err)
	}
	if t.Allocation == nil || t.Site == "" {
		return because(true, tenant.ReasonNothingToBackUp, fmt.Sprintf("tenant %s has no site to restore to", in.TenantID))
	}
	return a.fetch(ctx, b, atOf(t), in.Name)
}

// fetched is the progress of a download: a repeated step continues there.
type fetched struct {
	BackupID prego.BackupID `json:"backup_id"`
	Name     string         `json:"name"`
	Next     int            `json:"next"` // part
}

// fetching is a running download.
type fetching struct {
	fetched
	resumed bool // continues an earlier attempt
}

// newFetch begins where an earlier attempt at the same download was.
func newFetch(ctx context.Context, id prego.BackupID, name string) *fetching {
	f := &fetching{fetched: fetched{BackupID: id, Name: name, Next: 1}}
	var before fetched
	if activity.HasHeartbeatDetails(ctx) && activity.GetHeartbeatDetails(ctx, &before) == nil && before.BackupID == id && before.Name == name && before.Next > 1 {
		f.fetched, f.resumed = before, true
	}
	return f
}

// reached notes the part that is next, for the step that repeats this one.
func (f *fetching) reached(ctx context.Context, next int) {
	f.Next = next
	activity.RecordHeartbeat(ctx, f.fetched)
}

// again begins at the first part.
func (f *fetching) again(ctx context.Context) {
	f.resumed = false
	f.reached(ctx, 1)
}

// siteAt is the site that a restore writes to, with or without a tenant.
type siteAt struct {
	ServerID prego.ServerID
	Addr     string
	TenantID prego.TenantID
	Site     string
	Volume   string // the provider's id, of a volume instead of a site
	ID       string // prefix of the ids of its commands
}

// atOf is the site of a tenant's allocation.
func atOf(t tenant.Record) siteAt {
	return siteAt{ServerID: t.Allocation.AppServerID, Addr: t.AppServerHost, TenantID: t.TenantID, Site: t.Site, ID: fmt.Sprintf("%s-a%d", t.TenantID, t.Allocation.AllocationID)}
}

func (s siteAt) command(what string, timeout time.Duration, args ...string) server.BenchCommand {
	return server.BenchCommand{
		ServerID: s.ServerID, Addr: s.Addr, AuditID: s.ID + "-" + what, TenantID: s.TenantID, Timeout: timeout, Args: append([]string{"--site", s.Site}, args...),
	}
}

// identityOf opens what opens a backup that is there.
func (a *Backups) identityOf(ctx context.Context, b tenant.BackupRecord) ([]byte, error) {
	if b.State != tenant.BackupStored {
		return nil, because(true, tenant.ReasonStorageRefused, fmt.Sprintf("backup %s is %s", b.BackupID, b.State))
	}
	// A host would be refused until its time is over.
	if _, there, err := a.Objects.Head(ctx, b.Object); err != nil {
		return nil, ofStorage(err)
	} else if !there {
		if err := a.Store.BackupMissing(ctx, b.BackupID); err != nil {
			return nil, err
		}
		return nil, because(true, prego.Reason(wire.FailedNoBackup), fmt.Sprintf("object %s is not in the storage", b.Object))
	}
	identity, err := a.Vault.Open(tenant.BackupKeyFor(b.BackupID), b.KeyID, b.Sealed)
	if err != nil {
		return nil, a.notGood(ctx, b.BackupID, because(true, tenant.ReasonSealedElsewhere, fmt.Sprintf("backup %s was sealed under key %s, which is not among PREGO_KEYS_DIR/backup", b.BackupID, b.KeyID)))
	}
	return identity, nil
}

// fetch has a host download a backup for a site, and check and open it.
func (a *Backups) fetch(ctx context.Context, b tenant.BackupRecord, at siteAt, name string) error {
	identity, err := a.identityOf(ctx, b)
	if err != nil {
		return err
	}
	a.Tenants.hook("stored-restore/start")
	return a.fetchWith(ctx, b, at, name, func(what string) error {
		c := at.command(fmt.Sprintf("%s-%s-%d", name, what, activity.GetInfo(ctx).Attempt), a.Tenants.Settings.SiteTimeout, "open-backup", name, b.SHA256, b.PlainSHA256)
		c.Secrets = map[string]string{wire.SecretBackupIdentity: string(identity)}
		_, err := a.Tenants.bench(ctx, c)
		return verbReason(err)
	})
}

// fetchWith downloads a backup and has the host open it. opens runs as another command if it is repeated.
func (a *Backups) fetchWith(ctx context.Context, b tenant.BackupRecord, at siteAt, name string, opens func(what string) error) error {
	done := newFetch(ctx, b.BackupID, name)
	open := func(what string) error {
		if err := a.downloadAll(ctx, b, at, done); err != nil {
			return err
		}
		return opens(what)
	}
	err := open("open")
	if done.resumed && isBecause(err, prego.Reason(wire.FailedNoBackup)) {
		// An earlier attempt had come so far that it had the host forget the backup again.
		done.again(ctx)
		err = open("reopen")
	}
	if err != nil {
		return a.notGood(ctx, b.BackupID, err)
	}
	a.Tenants.hook("stored-restore/opened")
	return nil
}

// downloadAll downloads the parts of a backup that the host lacks. If the host reports that an
// earlier attempt's parts are lost, everything is downloaded.
func (a *Backups) downloadAll(ctx context.Context, b tenant.BackupRecord, at siteAt, done *fetching) error {
	for done.Next <= b.Parts {
		next, err := a.downloadParts(ctx, b, at, done.Name, done.Next)
		if done.resumed && isBecause(err, prego.Reason(wire.FailedNoBackup)) {
			next, err = 1, nil
		}
		if err != nil {
			return a.notGood(ctx, b.BackupID, err)
		}
		done.resumed = false
		done.reached(ctx, next)
		a.Tenants.hook("stored-restore/downloaded")
	}
	return nil
}

// unusable are the reasons why a backup can't be restored anywhere: it is missing, or can't be read.
var unusable = []prego.Reason{tenant.ReasonUnreadable, tenant.ReasonDigest, prego.Reason(wire.FailedNoBackup), tenant.ReasonSealedElsewhere}

// unusableFor returns the one that ended a restore, or "". A restored site that lacks parts of the backup is no such
// reason: it may be the host's fault, and then each backup would be spoilt in turn.
func unusableFor(err error) prego.Reason {
	if !answeredNo(err) {
		return ""
	}
	for _, r := range unusable {
		if isBecause(err, r) {
			return r
		}
	}
	return ""
}

// notGood keeps on the row that a backup can't be restored, if that is why.
func (a *Backups) notGood(ctx context.Context, id prego.BackupID, err error) error {
	for _, r := range append([]prego.Reason{tenant.ReasonIncomplete}, unusable...) {
		if isBecause(err, r) {
			if kept := a.Store.BackupVerified(ctx, id, err.Error()); kept != nil {
				return kept // the step is repeated
			}
		}
	}
	return err
}

// downloadParts downloads some parts from one on, and returns the next.
func (a *Backups) downloadParts(ctx context.Context, b tenant.BackupRecord, at siteAt, name string, from int) (next int, err error) {
	url, err := a.Objects.PresignGet(ctx, b.Object, a.Settings.URLTTL)
	if err != nil {
		return from, ofStorage(err)
	}
	in := wire.TransferRequest{Site: at.Site, Volume: at.Volume, Backup: name}
	for next = from; next <= b.Parts && len(in.Download) < min(batchPieces, int(max(1, batchBytes/b.PartBytes))); next++ {
		offset, bytes := partOf(b, next)
		in.Download = append(in.Download, wire.Piece{Number: next, Offset: offset, Bytes: bytes, URL: url})
	}
	out, err := a.transfer(ctx, at, "download", string(b.BackupID), in)
	if err != nil {
		return from, err
	}
	if f := out.Failed; f != nil {
		// Give up immediately on a full disk: retrying would keep it full.
		last := f.Code == wire.FailedNoBackup || f.Code == wire.FailedUnreadable || f.Code == wire.FailedDiskFull
		return from, because(last, prego.Reason(f.Code), fmt.Sprintf("part %d: %s: %s", f.Number, f.Code, f.Message))
	}
	return next, nil
}

// Restored records that a backup was restored and found good.
func (a *Backups) Restored(ctx context.Context, id prego.BackupID) error {
	return a.Store.BackupVerified(ctx, id, "")
}
