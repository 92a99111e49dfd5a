package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// RestoredSite is a restored site's backup, and the checks of the site.
type RestoredSite struct {
	Backup  tenant.Backup
	Checked wire.CheckedSite
}

// LossSettings configure the handling of tenants whose server is gone.
type LossSettings struct {
	Plans  []prego.Plan  // whose tenants are restored elsewhere without being asked
	AtOnce int           // tenants
	For    time.Duration // how long a restore may take
}

// buildFromBackup makes a tenant's site at its place and restores it from a backup, after its
// server was lost or as a copy of another tenant. A restored site needs neither apps nor a first
// user.
//
// The site of a lost tenant is restored under another name, with a database of another name, beside what the lost
// place may have left on the same servers. Only when it stands, and was compared with the backup, is that erased, and
// the site gets its name. A repeated step knows by the site's name in the row how far it was.
func (a *Tenants) buildFromBackup(ctx context.Context, ref tenant.Ref, t tenant.Record) error {
	if t.RestoreFrom == "" {
		return permanentErrorIn(StepRestore, ErrTypePermanent, "the tenant's site was lost, and an empty one is not made in its place")
	}
	if a.Restorer == nil {
		return permanentErrorIn(StepRestore, string(tenant.ReasonNoStorage), "no object storage is configured (PREGO_BACKUP_ENDPOINT)")
	}
	limit := a.Settings.StepTimeout
	if t.Site == "" {
		if err := a.part(ctx, StepSite, limit, func(ctx context.Context) error { return a.makeToRestore(ctx, t) }); err != nil {
			return err
		}
		if err := a.part(ctx, StepRestore, limit+a.Settings.Losses.For, func(ctx context.Context) error { return a.restoreInto(ctx, ref, t) }); err != nil {
			return err
		}
	}
	a.hook("site/restored")
	t.Site = tenant.SiteName(t.Slug, a.Settings.SiteDomain)
	limit += a.Settings.Losses.For + a.Settings.StepTimeout
	if err := a.part(ctx, StepSite, limit, func(ctx context.Context) error { return a.replaceLost(ctx, ref, t) }); err != nil {
		return err
	}
	limit += a.Settings.StepTimeout
	if err := a.part(ctx, StepOpen, limit, func(ctx context.Context) error {
		var unmute []server.BenchCommand
		if !t.Muted {
			unmute = a.onSiteInTurn(t, "unmute", tenant.Unmute(true))
		}
		_, err := a.openInTurn(ctx, t, unmute...)
		return err
	}); err != nil {
		return err
	}
	a.hook("site/opened")
	if err := a.activate(ctx, ref, t.Plan); err != nil {
		return err
	}
	// A suspended tenant is suspended again, and its site does not know yet.
	_, err := a.Runs.EnsureTenantChange(ctx, t.TenantID)
	a.logNotSignalled(err)
	return nil
}

// makeToRestore makes the site that a backup is restored into. A pool site already exists.
func (a *Tenants) makeToRestore(ctx context.Context, t tenant.Record) error {
	if t.Allocation.PoolSiteID == "" {
		if err := a.ensureDatabase(ctx, t); err != nil {
			return err
		}
		if _, err := a.bench(ctx, a.createSite(t)); err != nil {
			return err
		}
	}
	a.hook("site/made")
	return nil
}

// restoreInto restores the tenant's backup into the site that was reserved. A backup that turns out to be missing or
// unreadable gives way to the next older one, unless the caller named it.
func (a *Tenants) restoreInto(ctx context.Context, ref tenant.Ref, t tenant.Record) error {
	t.Site = t.Allocation.SiteName
	for {
		back, err := a.Restorer.RestoreInto(ctx, t)
		if err == nil {
			return fromStore(a.Store.SiteRestored(ctx, ref, t.Site, restored(t, back)))
		}
		reason := unusableFor(err)
		if reason == "" {
			return err
		}
		var why *temporal.ApplicationError
		errors.As(err, &why)
		older, failed := a.Store.RestoreFromOlder(ctx, ref, t.RestoreFrom, reason, why.Message())
		if failed != nil {
			return fromStore(failed)
		}
		if older == "" {
			return because(true, reason, fmt.Sprintf("backup %s: %s. No other one is used: it was named, or none that is older can be read", t.RestoreFrom, why.Message()))
		}
		t.RestoreFrom = older
	}
}

// replaceLost erases obstacles to a restored site and makes the site the tenant's.
func (a *Tenants) replaceLost(ctx context.Context, ref tenant.Ref, t tenant.Record) error {
	if t.Moving {
		// One of its two servers was lost. Now that the site is replaced, the move clears the other one.
		now, err := a.Store.TenantRecord(ctx, t.TenantID)
		if err != nil {
			return fromStore(err)
		}
		if now.Moving {
			return temporal.NewApplicationErrorWithOptions(fmt.Sprintf("a move of tenant %s is still to end", t.TenantID), ErrTypeMoving, temporal.ApplicationErrorOptions{NextRetryDelay: movingRetry})
		}
	}
	if err := a.clearLosses(ctx, t); err != nil {
		return err
	}
	a.hook("losses/cleared")
	if t.Allocation.SiteName != t.Site {
		if _, err := a.bench(ctx, a.promoteSite(t, t.Site)); err != nil {
			return err
		}
	}
	return a.finishSite(ctx, ref, t, t.Site)
}

// movingRetry is how often a restore and the tenant's move ask whether the other has come so far.
const movingRetry = time.Second

// restored is its message on the timeline.
func restored(t tenant.Record, back RestoredSite) tenant.Event {
	message := fmt.Sprintf("backup %s of %s: %d tables, %d rows, %d files", back.Backup.BackupID, back.Backup.TakenAt.UTC().Format(time.RFC3339), back.Checked.Tables, back.Checked.Rows, back.Checked.Files)
	if t.LostAt != nil {
		message += fmt.Sprintf(". Changes made in the %d min before the server was lost are lost", tenant.LostMinutes(*back.Backup.TakenAt, *t.LostAt))
	}
	return tenant.Event{TenantID: t.TenantID, Step: tenant.StepRestored, Message: message}
}

// onSiteInTurn are short commands on a tenant's site.
func (a *Tenants) onSiteInTurn(t tenant.Record, what string, commands [][]string) (cs []server.BenchCommand) {
	for i, args := range commands {
		cs = append(cs, command(t, fmt.Sprintf("%s-%d", what, i), a.Settings.CommandTimeout, append([]string{"--site", t.Site}, args...)...))
	}
	return cs
}

// clearLosses erases the remains of a tenant's lost places on surviving servers, once the tenant is restored or its
// data is purged. Remains on servers of the new place must go before that place gets the tenant's names; the next sweep
// retries the rest.
func (a *Tenants) clearLosses(ctx context.Context, t tenant.Record) error {
	left, err := a.Store.LeftOfLosses(ctx, t.TenantID)
	if err != nil {
		return err
	}
	for _, l := range left {
		err := a.eraseLeft(ctx, t, l)
		if err == nil {
			err = a.Store.LossCleared(ctx, l.LossID)
		}
		if err != nil {
			if t.Allocation != nil && (l.App.ServerID == t.Allocation.AppServerID || l.Shard.ServerID == t.Shard.ServerID) {
				return err
			}
			a.Log.Warn("what a lost place left could not be erased; it is tried again", zap.String("tenant_id", string(t.TenantID)), zap.Error(err))
		}
	}
	return nil
}

// clearAllLosses does so for tenants without a run. It continues after a failure.
func (a *Tenants) clearAllLosses(ctx context.Context) error {
	ids, err := a.Store.UnclearedLosses(ctx)
	var try Attempts
	try.OK(err)
	for id := range Each(&try, ids) {
		t, err := a.Store.TenantRecord(ctx, id)
		if err == nil {
			err = a.clearLosses(ctx, t)
		}
		try.OK(err)
	}
	return try.Err()
}

func (a *Tenants) eraseLeft(ctx context.Context, t tenant.Record, l tenant.LeftPlace) error {
	ctx, cancel := context.WithTimeout(ctx, a.Settings.SiteTimeout)
	defer cancel()
	was := t
	was.Allocation, was.AppServerHost, was.Shard, was.Pool = &l.Allocation, l.App.Host, l.Shard, l.Pool
	if l.App.Status == server.Active {
		names := []string{tenant.SiteName(t.Slug, a.Settings.SiteDomain)}
		if l.Allocation.SiteName != "" && l.Allocation.SiteName != names[0] {
			names = append(names, l.Allocation.SiteName)
		}
		for i, name := range names {
			what := fmt.Sprintf("lost-%d-%d", i, activity.GetInfo(ctx).Attempt)
			if _, err := a.forTenant(ctx, was, what, a.Settings.SiteTimeout, "erase-site", name, "--db-name", l.Allocation.DatabaseName); err != nil {
				return err
			}
		}
	}
	for _, h := range []*tenant.DataHost{&was.Shard, &was.Pool} {
		if h.Status != server.Active { // its data went with it, or does
			h.Status = server.Terminated
		}
	}
	return a.dropData(ctx, was)
}

// ErrNotRestored is the type of a restore's failure without a specific reason.
const ErrNotRestored = "not_restored"

// RestoreInto fetches the backup that a tenant is restored from to the host of its new site,
// restores it there, held back, and compares the site with it.
func (a *Backups) RestoreInto(ctx context.Context, t tenant.Record) (out RestoredSite, err error) {
	b, _, err := a.run(ctx, t.RestoreFrom)
	if err != nil {
		return out, err
	}
	out.Backup = b.Backup
	at, name := atOf(t), fmt.Sprintf("in-a%d-%s", t.Allocation.AllocationID, b.BackupID)
	forget := func() error {
		_, err := a.Tenants.bench(ctx, at.command(fmt.Sprintf("%s-forget-%d", name, activity.GetInfo(ctx).Attempt), a.Tenants.Settings.CommandTimeout, "delete-backup", name))
		return err
	}
	if err = a.fetch(ctx, b, at, name); err == nil {
		out.Checked, err = a.restoreAt(ctx, b, at, name)
	}
	if err != nil {
		if unusableFor(err) != "" { // the next one needs the room
			if left := forget(); left != nil {
				a.Log.Warn("the downloaded parts of an unrestorable backup stay with the site", zap.String("backup_id", string(b.BackupID)), zap.Error(left))
			}
		}
		return out, err
	}
	// The code here may be newer than the backup's.
	if _, err := a.Tenants.bench(ctx, at.command(name+"-migrate", a.Tenants.Settings.SiteTimeout, "migrate")); err != nil {
		return out, err
	}
	if err := forget(); err != nil {
		return out, err
	}
	return out, a.Store.BackupVerified(ctx, b.BackupID, "")
}

// restoreAt restores a backup that a host has opened into a site, and compares the two. The site
// is held back before anything of the backup is in it.
func (a *Backups) restoreAt(ctx context.Context, b tenant.BackupRecord, at siteAt, name string) (out wire.CheckedSite, err error) {
	for i, args := range append(tenant.Mute(), []string{"adopt-config", name}) {
		if _, err := a.Tenants.bench(ctx, at.command(fmt.Sprintf("%s-mute-%d", name, i), a.Tenants.Settings.CommandTimeout, args...)); err != nil {
			return out, err
		}
	}
	a.Tenants.hook("stored-restore/adopted")
	if _, err := a.Tenants.bench(ctx, at.command(name+"-restore", a.Tenants.Settings.SiteTimeout, "restore", name, "--with-files")); err != nil {
		return out, a.notGood(ctx, b.BackupID, verbReason(err))
	}
	a.Tenants.hook("stored-restore/restored")
	text, err := a.Tenants.bench(ctx, at.command(fmt.Sprintf("%s-check-%d", name, activity.GetInfo(ctx).Attempt), a.Tenants.Settings.SiteTimeout, "check-restored", name))
	if err != nil {
		return out, a.notGood(ctx, b.BackupID, verbReason(err))
	}
	if json.Unmarshal([]byte(text), &out) != nil || out.Tables == 0 {
		return out, permanentError(ErrNotRestored, "the host's report of what it restored can't be read", nil)
	}
	return out, nil
}

// RestoreLost has a tenant restored whose server was lost.
func (a *Tenants) RestoreLost(ctx context.Context, id prego.TenantID) error {
	t, _, err := a.Store.RestoreElsewhere(ctx, id, "", "", "policy")
	if prego.CodeOf(err) == prego.CodeInvalidTransition { // another process was faster
		return nil
	}
	if err == nil {
		_, err = a.Runs.EnsureTenantProvision(ctx, id, t.Generation)
	}
	return err
}
