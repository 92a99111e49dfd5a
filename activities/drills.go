package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// DrillSettings are the numbers of drills.
type DrillSettings struct {
	Every  time.Duration // from a tenant's or a volume's drill to its next; 0 for none
	Retry  time.Duration // after a failed drill
	AtOnce int
	Quiet  time.Duration // a drill that was begun so long ago may have lost its run
}

// Overdue is how long after its last drill a tenant or a volume should have had another; 0 if
// there are no drills.
func (s DrillSettings) Overdue() time.Duration { return s.Every * 3 / 2 }

// Drills are the steps that restore backups to see whether they can be.
type Drills struct {
	Store    *store.Store
	Backups  *Backups
	Runs     Runs
	Settings DrillSettings
	Metrics  *DrillMetrics
}

// DrillMetrics count drills.
type DrillMetrics struct {
	Ended  *prometheus.CounterVec // by outcome: passed, or the reason of failure
	Failed prometheus.Gauge       // tenants and volumes whose last drill failed
	Late   prometheus.Gauge       // those without a drill for too long
}

// NewDrillMetrics registers them.
func NewDrillMetrics(reg prometheus.Registerer) *DrillMetrics {
	m := &DrillMetrics{
		Ended:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_drills_total", Help: "Drills that ended, by outcome: passed, or the reason of failure."}, []string{"outcome"}),
		Failed: prometheus.NewGauge(prometheus.GaugeOpts{Name: prego.MetricDrillsFailed, Help: "Tenants and volumes whose last drill failed: their backup could not be restored."}),
		Late:   prometheus.NewGauge(prometheus.GaugeOpts{Name: prego.MetricDrillsLate, Help: "Tenants and volumes without a backup drill for half as long again as PREGO_DRILL_EVERY."}),
	}
	reg.MustRegister(m.Ended, m.Failed, m.Late)
	m.Ended.WithLabelValues(string(tenant.DrillPassed))
	return m
}

// DrillPlan is the state of a drill.
type DrillPlan struct {
	TenantID prego.TenantID `json:"tenant_id,omitempty"`
	VolumeID prego.VolumeID `json:"volume_id,omitempty"`
	OrgID    prego.OrgID    `json:"org_id"`
	BackupID prego.BackupID `json:"backup_id"`
	ServerID prego.ServerID `json:"server_id"`
	Ended    bool           `json:"ended,omitempty"`
	Cleared  bool           `json:"cleared,omitempty"`
	For      time.Duration  `json:"for"`
}

// PlanDrill reads the drill's row.
func (a *Drills) PlanDrill(ctx context.Context, id string) (DrillPlan, error) {
	d, err := a.Store.DrillRecord(ctx, id)
	s := a.Backups.Tenants.Settings
	return DrillPlan{
		TenantID: d.TenantID, VolumeID: d.VolumeID, OrgID: d.OrgID, BackupID: d.BackupID, ServerID: d.ServerID, Ended: d.State.Ended(), Cleared: d.Cleared,
		For: s.Losses.For + 2*s.StepTimeout,
	}, permanentIfCoded(err)
}

// DrillFound is what a drill found: what it restored, all of it compared with the backup.
type DrillFound struct {
	wire.CheckedSite
	Bytes int64 `json:"bytes,omitempty"` // of a volume's files
}

// place reads a drill, its server and its database's.
func (a *Drills) place(ctx context.Context, id string) (d tenant.DrillRecord, srv server.Server, shard *tenant.DataHost, err error) {
	if d, err = a.Store.DrillRecord(ctx, id); err != nil {
		return d, srv, nil, permanentIfCoded(err)
	}
	if srv, err = a.Backups.Tenants.Store.GetServer(ctx, d.ServerID); err != nil {
		return d, srv, nil, fromStore(err)
	}
	if srv.Status != server.Active {
		return d, srv, nil, permanentError(ErrTypeGone, fmt.Sprintf("server %s is %s", srv.ServerID, srv.Status), nil)
	}
	if d.Site.SiteName != "" {
		shard, err = a.Backups.Tenants.shardOf(ctx, d.Site)
	}
	return d, srv, shard, err
}

// RunDrill restores a backup and compares the result with it. The type of its error is the reason.
func (a *Drills) RunDrill(ctx context.Context, id string) (out DrillFound, err error) {
	d, srv, shard, err := a.place(ctx, id)
	if err != nil || d.State.Ended() {
		return out, err
	}
	a.Backups.Tenants.hook("drill/start")
	if d.VolumeID != "" {
		out.Files, out.Bytes, err = a.Backups.tryVolume(ctx, d, srv)
	} else {
		out.CheckedSite, err = a.trySite(ctx, d, srv, shard)
	}
	if err != nil {
		return out, err
	}
	return out, a.Backups.Store.BackupVerified(ctx, d.BackupID, "")
}

// trySite makes a site, restores the backup into it, held back, compares it with the backup and
// asks it for an answer.
func (a *Drills) trySite(ctx context.Context, d tenant.DrillRecord, srv server.Server, shard *tenant.DataHost) (out wire.CheckedSite, err error) {
	id, t := d.DrillID, a.Backups.Tenants
	if err := t.grantPoolSite(ctx, d.Site, srv, shard); err != nil {
		return out, err
	}
	if err := t.buildPoolSite(ctx, d.Site, srv, shard); err != nil {
		return out, err
	}
	b, _, err := a.Backups.run(ctx, d.BackupID)
	if err != nil {
		return out, err
	}
	at := siteAt{ServerID: srv.ServerID, Addr: srv.Host, Site: d.Site.SiteName, ID: id}
	name := "in-" + id
	if err := a.Backups.fetch(ctx, b, at, name); err != nil {
		return out, err
	}
	t.hook("drill/fetched")
	if out, err = a.Backups.restoreAt(ctx, b, at, name); err != nil {
		return out, err
	}
	t.hook("drill/restored")
	if _, err := t.bench(ctx, at.command(fmt.Sprintf("answers-%d", activity.GetInfo(ctx).Attempt), t.Settings.CommandTimeout, "answers")); answeredNo(err) {
		return out, because(true, tenant.ReasonIncomplete, "the site does not answer: "+err.Error())
	} else if err != nil {
		return out, err // the host was not reached
	}
	return out, nil
}

// answeredNo reports whether a host has run a command, and it failed.
func answeredNo(err error) bool {
	var app *temporal.ApplicationError
	return errors.As(err, &app) && app.NonRetryable()
}

// FinishDrill records how a drill ended. A drill that lost its server proves nothing and is due again immediately.
func (a *Drills) FinishDrill(ctx context.Context, in tenant.DrillEnd) error {
	outcome := string(in.State)
	if in.State == tenant.DrillFailed {
		outcome = string(in.Reason)
	}
	a.Metrics.Ended.WithLabelValues(outcome).Inc()
	sooner := max(0, a.Settings.Every-a.Settings.Retry)
	in.Undecided = in.Reason == ErrTypeGone
	if in.Undecided {
		sooner = a.Settings.Every
	}
	return a.Store.FinishDrill(ctx, in, sooner)
}

// ClearDrill erases what a drill left on its server.
func (a *Drills) ClearDrill(ctx context.Context, id string) error {
	d, srv, shard, err := a.place(ctx, id)
	if isBecause(err, prego.Reason(ErrTypeGone)) && srv.Released() {
		return a.clearShard(ctx, d)
	}
	if err != nil || d.Cleared {
		return err
	}
	t := a.Backups.Tenants
	if d.VolumeID != "" {
		at, err := a.Backups.placeOfVolume(ctx, d.VolumeID, d.ServerID)
		if err == nil {
			err = a.Backups.dropSealed(ctx, at, id)
		}
		if err != nil {
			return err
		}
		t.hook("drill/erased")
		return a.Store.DrillCleared(ctx, id)
	}
	// The site may still be made: joining that waits for its end. Without its shard it can't be.
	var final *temporal.ApplicationError
	if shard == nil || shard.Status == server.Active {
		if err := t.buildPoolSite(ctx, d.Site, srv, shard); err != nil && (!errors.As(err, &final) || !final.NonRetryable()) {
			return err
		}
	}
	erase := fmt.Sprintf("%s-erase-%d", id, activity.GetInfo(ctx).Attempt)
	if _, err := t.forPool(ctx, srv, erase, t.Settings.SiteTimeout, "erase-site", d.Site.SiteName, "--db-name", d.Site.DatabaseName); err != nil {
		return err
	}
	if err := t.erasePoolDatabase(ctx, d.Site, shard); err != nil {
		return err
	}
	t.hook("drill/erased")
	return a.Store.DrillCleared(ctx, id)
}

// clearShard erases the database of a drill whose server runs nothing any more. What is on the server goes with its
// disk, which may be kept for long: until the tenants that were lost with it are restored.
func (a *Drills) clearShard(ctx context.Context, d tenant.DrillRecord) error {
	if !d.Cleared && d.Site.SiteName != "" {
		shard, err := a.Backups.Tenants.shardOf(ctx, d.Site)
		if err != nil {
			return err
		}
		if err := a.Backups.Tenants.erasePoolDatabase(ctx, d.Site, shard); err != nil {
			return err
		}
	}
	return a.Store.DrillCleared(ctx, d.DrillID)
}

// BeginDrills begins drills that are due, up to as many as may be under way. Who finds no place stays due,
// and is passed over: others may find one.
func (a *Drills) BeginDrills(ctx context.Context) (n int, err error) {
	there, err := a.Store.DrillsUnderWay(ctx)
	if err != nil || there >= a.Settings.AtOnce {
		return 0, err
	}
	due, err := a.Store.DueDrills(ctx, a.Settings.Every, a.Settings.AtOnce+drillsPassedOver)
	if err != nil {
		return 0, err
	}
	var try Attempts
	for _, of := range due {
		if there+n >= a.Settings.AtOnce || try.TooMany() {
			break
		}
		var d tenant.Drill
		if of.VolumeID != "" {
			d, err = a.Store.BeginVolumeDrill(ctx, of.VolumeID, "", "schedule")
		} else {
			d, err = a.Store.BeginDrill(ctx, of.TenantID, "", a.Backups.Tenants.Settings.SiteDomain, "schedule")
		}
		switch prego.CodeOf(err) {
		case prego.CodeInsufficientResources, prego.CodeRestoreUnderWay, prego.CodeBackupNotFound, prego.CodeVolumeNotFound:
			continue
		}
		if !try.OK(err) {
			continue
		}
		n++
		_, err = a.Runs.EnsureDrill(ctx, d.DrillID)
		try.OK(err)
	}
	return n, try.Err()
}

// drillsPassedOver is how many that find no place a look passes over.
const drillsPassedOver = 20
