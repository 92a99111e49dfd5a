package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// bench runs one command. Its audit id is derived from the command's purpose, so that a
// repeated step gets the first result.
func (a *Tenants) bench(ctx context.Context, c server.BenchCommand) (string, error) {
	c.WorkflowID = activity.GetInfo(ctx).WorkflowExecution.ID
	out, err := a.Bench.Bench(ctx, c)
	return a.again(ctx, c, out, err)
}

// again repeats a command whose outcome was lost, and gives failures their type.
func (a *Tenants) again(ctx context.Context, c server.BenchCommand, out string, err error) (string, error) {
	auditID := c.AuditID
	var ce *server.CommandError
	// The outcome is unknown. Tenants' commands on hosts are safe to run twice, under
	// another id.
	for n := 1; n <= maxUnknown && errors.As(err, &ce) && ce.Code == server.CommandUnknown; n++ {
		c.AuditID = fmt.Sprintf("%s-again%d", auditID, n)
		out, err = a.Bench.Bench(ctx, c)
	}
	if errors.As(err, &ce) {
		if ce.Permanent {
			return out, permanentError(ErrTypeCommand, ce.Error(), nil)
		}
		return out, temporal.NewApplicationError(ce.Error(), ErrTypeCommand)
	}
	return out, err
}

// maxUnknown is how often the outcome of a command may be lost with its host's executor
// before the step fails.
const maxUnknown = 5

// forTenant runs a command for a tenant where it is placed. The host refuses it if it
// names another tenant's site.
func (a *Tenants) forTenant(ctx context.Context, t tenant.Record, what string, timeout time.Duration, args ...string) (string, error) {
	if t.Updating {
		return "", temporal.NewApplicationErrorWithOptions(fmt.Sprintf("site %s is offline for a release, and is changed afterwards", t.Site), ErrTypeSiteUpdating,
			temporal.ApplicationErrorOptions{NextRetryDelay: updatingRetry})
	}
	if t.Held { // for seconds; the step is repeated
		return "", temporal.NewApplicationError(fmt.Sprintf("the site of tenant %s is being moved to another server", t.TenantID), ErrTypeMoving)
	}
	return a.bench(ctx, command(t, what, timeout, args...))
}

// updatingRetry is how often a step asks whether a release has opened its site again.
const updatingRetry = 5 * time.Second

func command(t tenant.Record, what string, timeout time.Duration, args ...string) server.BenchCommand {
	return server.BenchCommand{
		ServerID: t.Allocation.AppServerID, Addr: t.AppServerHost, AuditID: auditID(t, what), TenantID: t.TenantID, Timeout: timeout, Args: args,
	}
}

// inTurn runs short commands of one host one after the other, until one fails; done is how
// many did not.
func (a *Tenants) inTurn(ctx context.Context, cs ...server.BenchCommand) (done int, err error) {
	for i := range cs {
		cs[i].WorkflowID = activity.GetInfo(ctx).WorkflowExecution.ID
	}
	for done < len(cs) {
		n, err := a.Bench.BenchAll(ctx, cs[done:])
		if done += n; err == nil {
			break
		}
		if _, err = a.again(ctx, cs[done], "", err); err != nil {
			return done, err
		}
		done++
	}
	return done, nil
}

// forPool runs a command for a pool site, which belongs to no tenant.
func (a *Tenants) forPool(ctx context.Context, srv server.Server, auditID string, timeout time.Duration, args ...string) (string, error) {
	return a.bench(ctx, server.BenchCommand{ServerID: srv.ServerID, Addr: srv.Host, AuditID: auditID, Timeout: timeout, Args: args})
}

func asPlaced(t tenant.Record, ref tenant.Ref) (tenant.Record, error) {
	if err := inProvisioning(t, ref); err != nil {
		return t, err
	}
	if t.Allocation == nil {
		return t, permanentError(ErrTypeSuperseded, fmt.Sprintf("tenant %s has no place any more", ref.TenantID), nil)
	}
	return t, nil
}

// auditID names a command of a tenant's allocation.
func auditID(t tenant.Record, what string) string {
	return fmt.Sprintf("%s-a%d-%s", t.TenantID, t.Allocation.AllocationID, what)
}

func (a *Tenants) makeSite(ctx context.Context, ref tenant.Ref, t tenant.Record) (site string, err error) {
	site = tenant.SiteName(t.Slug, a.Settings.SiteDomain)
	if err := a.ensureDatabase(ctx, t); err != nil {
		return "", err
	}
	if err := a.obtainSite(ctx, t, site); err != nil {
		return "", err
	}
	a.hook("site/made")
	return site, a.finishSite(ctx, ref, t, site)
}

// finishSite makes a site that has its name the tenant's, with a cache.
func (a *Tenants) finishSite(ctx context.Context, ref tenant.Ref, t tenant.Record, site string) error {
	if _, err := a.bench(ctx, a.configure(t, site)); err != nil {
		return err
	}
	if err := a.awaitPool(ctx, t); err != nil {
		return err
	}
	if _, err := a.inTurn(ctx, a.cacheCommands(t, site, "")...); err != nil {
		return err
	}
	a.hook("site/configured")
	return fromStore(a.Store.SiteReady(ctx, ref, site, siteStep(t)))
}

// siteStep is how the tenant comes by its site.
func siteStep(t tenant.Record) tenant.Step {
	if t.Allocation.PoolSiteID != "" {
		return tenant.StepSitePromoted
	}
	return tenant.StepSiteCreated
}

// configure writes into the site whose it is.
func (a *Tenants) configure(t tenant.Record, site string) server.BenchCommand {
	return command(t, "configure", a.Settings.CommandTimeout, tenant.SiteConfig{
		"host_name": "https://" + site, "prego_tenant_id": t.TenantID, "prego_plan": t.Plan,
		"prego_max_users": t.ExpectedUsers, "prego_storage_quota_gb": t.StorageQuotaGB,
	}.Args(site)...)
}

// obtain promotes the pool site, or creates one.
func (a *Tenants) obtain(t tenant.Record, site string) server.BenchCommand {
	if t.Allocation.PoolSiteID != "" {
		return a.promoteSite(t, site)
	}
	return a.createSite(t)
}

// promoteSite gives a site the tenant's name.
func (a *Tenants) promoteSite(t tenant.Record, site string) server.BenchCommand {
	return command(t, "promote", a.Settings.CommandTimeout, "promote-site", t.Allocation.SiteName, site)
}

// createSite makes a site on demand, under the name that was reserved for it.
func (a *Tenants) createSite(t tenant.Record) server.BenchCommand {
	al := t.Allocation
	var shard *tenant.DataHost
	if al.OnShard {
		shard = &t.Shard
	}
	return a.newSite(command(t, "new-site", 0), shard, al.SiteName, al.DatabaseName, al.PasswordVersion)
}

// obtainSite promotes the pool site, or creates one. When repeated, it joins the
// running command or gets its result.
func (a *Tenants) obtainSite(ctx context.Context, t tenant.Record, site string) error {
	_, err := a.bench(ctx, a.obtain(t, site))
	return err
}

func (a *Tenants) installApps(ctx context.Context, ref tenant.Ref, t tenant.Record) error {
	for _, app := range t.Apps {
		if _, err := a.forTenant(ctx, t, "app-"+app, a.Settings.AppTimeout, "--site", t.Site, "install-app", app); err != nil {
			return err
		}
		a.hook("apps/installed")
	}
	return fromStore(a.Store.AddTenantEvent(ctx, tenant.Event{TenantID: t.TenantID, Step: tenant.StepAppsInstalled, Message: fmt.Sprint(t.Apps)},
		fmt.Sprintf("%s/g%d", tenant.StepAppsInstalled, ref.Generation)))
}

// opening are the commands that open a site.
func (a *Tenants) opening(t tenant.Record) []server.BenchCommand {
	var cs []server.BenchCommand
	if t.AdminEmail != "" {
		cs = append(cs, command(t, "first-user", a.Settings.CommandTimeout, "--site", t.Site, "add-user", t.AdminEmail, t.AdminName))
	}
	return append(cs, command(t, "scheduler", a.Settings.CommandTimeout, "--site", t.Site, "enable-scheduler"))
}

// opened is its message on the timeline.
func opened(t tenant.Record) []tenant.Event {
	if t.AdminEmail == "" {
		return nil
	}
	return []tenant.Event{{TenantID: t.TenantID, Step: tenant.StepUserAdded, Message: t.AdminEmail}}
}

// DropInput names the tenant whose site to drop.
type DropInput struct {
	TenantID prego.TenantID `json:"tenant_id"`
}

// DropSite erases a tenant's site under both of its possible names: directory, archive,
// database, database users, backups. A site on a server that is about to be destroyed
// goes with it, provided that its database is there too.
func (a *Tenants) DropSite(ctx context.Context, in DropInput) error {
	t, err := a.Store.TenantRecord(ctx, in.TenantID)
	if err != nil {
		return fromStore(err)
	}
	if t.Allocation == nil {
		if t.State == tenant.Provisioning {
			return nil // what it has lost stays until a restore has replaced it
		}
		return a.clearLosses(ctx, t)
	}
	if t.AppServerStatus == server.Terminated {
		if err := a.dropData(ctx, t); err != nil {
			return err
		}
		return a.Store.SiteErased(ctx, t.TenantID)
	}
	own, err := a.Store.OwnServers(ctx, in.TenantID)
	if err != nil {
		return err
	}
	for _, id := range own {
		if t.Allocation.DBShardID == prego.ShardID(t.Allocation.AppServerID) && prego.ServerID(id) == t.Allocation.AppServerID {
			return a.Store.SiteErased(ctx, t.TenantID)
		}
	}
	site := tenant.SiteName(t.Slug, a.Settings.SiteDomain)
	names := []string{site}
	if t.Allocation.SiteName != site { // the old name first, so that a late rename can't find it
		names = []string{t.Allocation.SiteName, site}
	}
	left, err := a.Store.LeftOfLosses(ctx, t.TenantID)
	if err != nil {
		return err
	}
	restoring := t.State == tenant.Provisioning && t.RestoreFrom != ""
	if restoring && t.Site == "" || slices.ContainsFunc(left, func(l tenant.LeftPlace) bool { return l.App.ServerID == t.Allocation.AppServerID }) {
		names = names[:1] // the site with the tenant's name is the lost one, not replaced yet
	}
	if t.Site == "" && (!restoring || t.Allocation.PoolSiteID == "") {
		// The command that creates the site may still be running, and would recreate a site dropped
		// before its end.
		var final *temporal.ApplicationError
		if err := a.obtainSite(ctx, t, site); err != nil && (!errors.As(err, &final) || !final.NonRetryable()) {
			return err
		}
	}
	a.hook("drop/start")
	var erased []string
	for i, name := range names {
		what := fmt.Sprintf("erase-%d-%d", i, activity.GetInfo(ctx).Attempt)
		out, err := a.forTenant(ctx, t, what, a.Settings.SiteTimeout, "erase-site", name, "--db-name", t.Allocation.DatabaseName)
		if err != nil {
			return err
		}
		erased = append(erased, strings.TrimSpace(out))
	}
	if err := a.dropData(ctx, t); err != nil {
		return err
	}
	a.hook("drop/done")
	if err := a.Store.SiteErased(ctx, t.TenantID); err != nil {
		return err
	}
	return a.Store.AddTenantEvent(ctx, tenant.Event{TenantID: t.TenantID, Step: tenant.StepSiteDropped, Message: strings.Join(erased, "; ")},
		fmt.Sprintf("%s/a%d", tenant.StepSiteDropped, t.Allocation.AllocationID))
}

// NoteSiteLeft puts on the timeline that a site could not be dropped.
func (a *Tenants) NoteSiteLeft(ctx context.Context, in FailTenantInput) error {
	a.Metrics.Leaks.Inc()
	return a.Store.AddTenantEvent(ctx, tenant.Event{TenantID: in.Tenant.TenantID, Step: tenant.StepSiteDropped, Reason: "site_left", Message: in.Message},
		fmt.Sprintf("site_left/g%d", in.Tenant.Generation))
}

// ChangePlan names the state to bring a tenant into.
type ChangePlan struct {
	State   tenant.State `json:"state"`
	Settled bool         `json:"settled"`
	Region  prego.Region `json:"region"`
	Plan    prego.Plan   `json:"plan"`
	OrgID   prego.OrgID  `json:"org_id"`
	HasSite bool         `json:"has_site"`
	// BackupsLeave: the last backup goes to object storage, and nothing is destroyed before
	// it is there.
	BackupsLeave bool `json:"backups_leave,omitempty"`
}

// PlanChange reads the state to bring a tenant into.
func (a *Tenants) PlanChange(ctx context.Context, tenantID prego.TenantID) (ChangePlan, error) {
	t, err := a.Store.TenantRecord(ctx, tenantID)
	if err != nil {
		return ChangePlan{}, fromStore(err)
	}
	return ChangePlan{
		State: t.State, Settled: t.ConvergedState == t.State, Region: t.Region, Plan: t.Plan, OrgID: t.OrgID,
		HasSite:      t.Allocation != nil && t.Site != "" && t.AppServerStatus != server.Terminated,
		BackupsLeave: a.BackupsLeave,
	}, nil
}

// OfflineInput asks to take a tenant's site offline or to bring it back.
type OfflineInput struct {
	TenantID prego.TenantID `json:"tenant_id"`
	State    tenant.State   `json:"state"` // the state that asks for it
	Off      bool           `json:"off"`   // bring the site back online
}

// SetOffline takes a site offline or brings it back. It does nothing if the tenant
// has left the state meanwhile.
func (a *Tenants) SetOffline(ctx context.Context, in OfflineInput) error {
	t, err := a.Store.TenantRecord(ctx, in.TenantID)
	if err != nil {
		return fromStore(err)
	}
	if t.State != in.State || t.Allocation == nil || t.Site == "" {
		return nil
	}
	a.hook("offline/start")
	// The time of the change is part of the audit ids: a second suspension is a new
	// command.
	what := fmt.Sprintf("%d-%d", t.UpdatedAt.UnixMicro(), activity.GetInfo(ctx).Attempt)
	if in.Off {
		err = a.putOnline(ctx, t, what)
	} else {
		if a.Drained != nil {
			if err := a.Drained(ctx, t.Allocation.AppServerID); err != nil {
				return err
			}
		}
		err = a.takeOffline(ctx, t, what)
	}
	a.hook("offline/done")
	return err
}

// onSite runs short commands on a tenant's site, one after the other, each verb once.
func (a *Tenants) onSite(ctx context.Context, t tenant.Record, what string, commands ...[]string) error {
	for _, c := range commands {
		if _, err := a.forTenant(ctx, t, what+"-"+c[0], a.Settings.CommandTimeout, append([]string{"--site", t.Site}, c...)...); err != nil {
			return err
		}
	}
	return nil
}

// Commands of a site.
var (
	maintenanceOn    = []string{"set-maintenance-mode", "on"}
	maintenanceOff   = []string{"set-maintenance-mode", "off"}
	enableScheduler  = []string{"enable-scheduler"}
	disableScheduler = []string{"disable-scheduler"}
)

// reading allows reads during maintenance (frappe app.py, init_request).
func reading(on bool) []string {
	if on {
		return []string{"configure", `{"allow_reads_during_maintenance":1}`}
	}
	return []string{"configure", `{"allow_reads_during_maintenance":null}`}
}

// takeOffline stops a site from answering requests and from running its own jobs.
func (a *Tenants) takeOffline(ctx context.Context, t tenant.Record, what string) error {
	if t.ReadOnly {
		if err := a.onSite(ctx, t, what+"-offline", reading(false)); err != nil {
			return err
		}
	}
	if err := a.onSite(ctx, t, what+"-offline", maintenanceOn, disableScheduler); err != nil {
		return err
	}
	return a.Store.SiteReadOnly(ctx, t.TenantID, false)
}

// putOnline makes a site serve again, read-only while it is above its storage quota.
func (a *Tenants) putOnline(ctx context.Context, t tenant.Record, what string) error {
	if t.StorageLevel == tenant.StorageReadOnly {
		// Recorded first, so that taking the site offline undoes it.
		if err := a.Store.SiteReadOnly(ctx, t.TenantID, true); err != nil {
			return err
		}
		return a.onSite(ctx, t, what+"-read-only", reading(true), maintenanceOn)
	}
	if err := a.onSite(ctx, t, what+"-online", maintenanceOff); err != nil {
		return err
	}
	if t.ReadOnly {
		if err := a.onSite(ctx, t, what+"-online", reading(false)); err != nil {
			return err
		}
		if err := a.Store.SiteReadOnly(ctx, t.TenantID, false); err != nil {
			return err
		}
	}
	return a.onSite(ctx, t, what+"-online", enableScheduler)
}

// FinalBackup backs up the site of an ended tenant and puts the report on the timeline.
// The backup stays on the host until the tenant is purged.
func (a *Tenants) FinalBackup(ctx context.Context, tenantID prego.TenantID) error {
	t, err := a.Store.TenantRecord(ctx, tenantID)
	if err != nil {
		return fromStore(err)
	}
	if t.Allocation == nil || t.Site == "" {
		return nil
	}
	b, err := a.backup(ctx, t, fmt.Sprintf("final-backup-%d", activity.GetInfo(ctx).Attempt), string("final-"+tenantID))
	if err != nil {
		return err
	}
	a.hook("backup/done")
	return a.Store.AddTenantEvent(ctx, tenant.Event{TenantID: tenantID, Step: tenant.StepFinalBackup, Message: backupReport(t, b)}, string(tenant.StepFinalBackup))
}

// backup backs up a tenant's site under a name. There is one backup per name, however
// often it is requested.
func (a *Tenants) backup(ctx context.Context, t tenant.Record, what, name string) (tenant.HostBackup, error) {
	out, err := a.forTenant(ctx, t, what, a.Settings.SiteTimeout, "--site", t.Site, "backup", name, "--with-files")
	if err != nil {
		return tenant.HostBackup{}, err
	}
	b, err := parseBackup(t.Site, name, out)
	if err != nil {
		return b, permanentError(ErrTypeCommand, err.Error(), nil)
	}
	return b, nil
}

// backupReport is a backup's path and size.
func backupReport(t tenant.Record, b tenant.HostBackup) string {
	parts := make([]string, 0, len(b.Files))
	for _, f := range b.Files {
		parts = append(parts, fmt.Sprintf("%s (%d bytes)", f.Path, f.Bytes))
	}
	return fmt.Sprintf("on %s: %s", t.Allocation.AppServerID, strings.Join(parts, ", "))
}

// ConvergedInput names a state whose effects are in place.
type ConvergedInput struct {
	TenantID prego.TenantID `json:"tenant_id"`
	State    tenant.State   `json:"state"`
}

// TenantConverged records that a state's effects are in place.
func (a *Tenants) TenantConverged(ctx context.Context, in ConvergedInput) error {
	return a.Store.TenantConverged(ctx, in.TenantID, in.State)
}

// RefillPlan lists the sites to build on a server.
type RefillPlan struct {
	Sites    []tenant.PoolSite `json:"sites"`
	Failed   int               `json:"failed,omitempty"` // earlier builds that may have left something behind
	Region   prego.Region      `json:"region"`
	Parallel int               `json:"parallel"`
	Step     time.Duration     `json:"step"`
}

// RefillInput names the pool.
type RefillInput struct {
	ServerID prego.ServerID `json:"server_id"`
}

// PlanRefill reserves the sites that a pool is missing.
func (a *Tenants) PlanRefill(ctx context.Context, in RefillInput) (RefillPlan, error) {
	srv, err := a.Store.GetServer(ctx, in.ServerID)
	if err != nil {
		return RefillPlan{}, fromStore(err)
	}
	s := a.Settings
	sites, err := a.Store.PlanRefill(ctx, in.ServerID, s.SiteDomain, s.ReserveFor+s.SiteTimeout, s.FailureMemory)
	if err != nil {
		return RefillPlan{}, err
	}
	failed, err := a.Store.SitesToDrop(ctx, in.ServerID)
	return RefillPlan{Sites: sites, Failed: len(failed), Region: srv.Region, Parallel: max(1, s.RefillParallel), Step: s.StepTimeout}, err
}

// BuildSite builds one pool site. If that fails, the site is marked as failed with its
// reason.
func (a *Tenants) BuildSite(ctx context.Context, site tenant.PoolSite) (built bool, err error) {
	srv, err := a.Store.GetServer(ctx, site.AppServerID)
	if err != nil {
		return false, fromStore(err)
	}
	if wanted, err := a.Store.SiteWanted(ctx, site.PoolSiteID); err != nil || !wanted {
		return false, err
	}
	a.hook("build/start")
	shard, err := a.shardOf(ctx, site)
	if err != nil {
		return false, err
	}
	if err = a.grantPoolSite(ctx, site, srv, shard); err == nil {
		err = a.buildPoolSite(ctx, site, srv, shard)
	}
	if err != nil {
		if app, ok := errors.AsType[*temporal.ApplicationError](err); ok && app.NonRetryable() {
			a.Metrics.Sites.WithLabelValues("failed").Inc()
			return false, a.Store.SiteFailed(ctx, site.PoolSiteID, app.Message())
		}
		return false, err
	}
	a.hook("build/made")
	seconds, err := a.Store.SiteBuilt(ctx, site.PoolSiteID)
	if err == nil && seconds > 0 {
		a.Metrics.Sites.WithLabelValues("available").Inc()
		a.Metrics.Build.Observe(seconds)
	}
	return err == nil, err
}

// buildPoolSite makes a pool site. When repeated, it joins the running command or gets its
// result.
func (a *Tenants) buildPoolSite(ctx context.Context, site tenant.PoolSite, srv server.Server, shard *tenant.DataHost) error {
	on := server.BenchCommand{ServerID: srv.ServerID, Addr: srv.Host, AuditID: site.PoolSiteID}
	_, err := a.bench(ctx, a.newSite(on, shard, site.SiteName, site.DatabaseName, 0))
	return err
}

// DropFailedSites erases what failed builds left on a host.
func (a *Tenants) DropFailedSites(ctx context.Context, serverID prego.ServerID) error {
	srv, err := a.Store.GetServer(ctx, serverID)
	if err != nil {
		return fromStore(err)
	}
	if srv.Status == server.Terminated {
		return nil // its disk is gone; databases on shards are erased without it
	}
	sites, err := a.Store.SitesToDrop(ctx, serverID)
	if err != nil {
		return err
	}
	for _, site := range sites {
		// The build may still be running, and would recreate the dropped site: joining it waits for its
		// end.
		var final *temporal.ApplicationError
		shard, err := a.shardOf(ctx, site)
		if err != nil {
			return err
		}
		err = a.buildPoolSite(ctx, site, srv, shard)
		if err != nil && (!errors.As(err, &final) || !final.NonRetryable()) {
			return err
		}
		id := fmt.Sprintf("%s-drop-%d", site.PoolSiteID, activity.GetInfo(ctx).Attempt)
		erased, err := a.forPool(ctx, srv, id, a.Settings.SiteTimeout, "erase-site", site.SiteName, "--db-name", site.DatabaseName)
		if err != nil {
			return err
		}
		var out wire.ErasedSite
		if err := json.Unmarshal([]byte(erased), &out); err != nil {
			return fmt.Errorf("server %s: report about the erased site %s: %w", serverID, site.SiteName, err)
		}
		// After a restore to before the site was promoted, our row still calls it a pool site. The host
		// reports the site that has the database now, and that site keeps it.
		if out.KeptFor == "" {
			if err := a.erasePoolDatabase(ctx, site, shard); err != nil {
				return err
			}
		}
		if err := a.Store.SiteDropped(ctx, site.PoolSiteID); err != nil {
			return err
		}
	}
	return nil
}

// GiveUpInput names a failed build.
type GiveUpInput struct {
	PoolSiteID string `json:"pool_site_id"`
	Reason     string `json:"reason"`
}

// GiveUpSite marks a build as failed.
func (a *Tenants) GiveUpSite(ctx context.Context, in GiveUpInput) error {
	a.Metrics.Sites.WithLabelValues("failed").Inc()
	return a.Store.SiteFailed(ctx, in.PoolSiteID, in.Reason)
}
