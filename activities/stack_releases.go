package activities

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// Benches keeps the containers of benches, and fetches images for them.
type Benches interface {
	Containers
	PrepareBench(ctx context.Context, serverID prego.ServerID, addr, image string) error
}

// StackReleases are the steps that roll releases of the stack out.
type StackReleases struct {
	Store      *store.Store
	Tenants    *Tenants
	Containers Benches
	Runs       Runs
	Limits     server.StackReleaseLimits
	// Parallel is how many sites of one server are worked on concurrently.
	Parallel int
	// AnswerFor is how long a site may take until it answers again.
	AnswerFor time.Duration
	Quiet     time.Duration // a release whose row is unchanged for so long may have lost its run
	// Ended counts updates of servers, by outcome.
	Ended *prometheus.CounterVec
	Log   *zap.Logger
	Hooks
}

// NewBenchUpdates registers the counter of updates of servers.
func NewBenchUpdates(reg prometheus.Registerer) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prego.MetricBenchUpdates, Help: "Updates of servers' benches by releases that ended, by outcome (done, rolled_back, broken, skipped)."}, []string{"outcome"})
	reg.MustRegister(c)
	for _, s := range []server.BenchStatus{server.BenchDone, server.BenchRolledBack, server.BenchBroken, server.BenchSkipped} {
		c.WithLabelValues(string(s))
	}
	return c
}

// StackReleaseProgress is the next step of a release's run.
type StackReleaseProgress struct {
	Status  server.ReleaseStatus `json:"status"`
	Message string               `json:"message,omitempty"`
	// Busy is set while servers are being updated, in any status of the release.
	Busy  bool `json:"busy,omitempty"`
	Began bool `json:"began,omitempty"`
}

// StepStackRelease decides the next step of a release, and starts the runs of the servers to
// update. Those of a cancelled release are cancelled; they read in the rows what that means for their server.
func (a *StackReleases) StepStackRelease(ctx context.Context, name server.StackReleaseName) (StackReleaseProgress, error) {
	a.hook("release/step")
	st, err := a.Store.StepStackRelease(ctx, name, a.Limits)
	if err != nil {
		return StackReleaseProgress{}, permanentIfCoded(err)
	}
	a.hook("release/stepped")
	for _, id := range st.Updating {
		if _, err := a.Runs.EnsureBenchUpdate(ctx, name, id); err != nil {
			return StackReleaseProgress{}, err
		}
		if st.Status != server.ReleaseCancelled {
			continue
		}
		if err := a.Runs.CancelBenchUpdate(ctx, name, id); err != nil {
			return StackReleaseProgress{}, err
		}
	}
	return StackReleaseProgress{Status: st.Status, Message: st.Message, Busy: len(st.Updating) > 0, Began: st.Began}, nil
}

// BenchRef names the update of a server's bench by a release.
type BenchRef struct {
	Release  server.StackReleaseName `json:"release"`
	ServerID prego.ServerID          `json:"server_id"`
	Try      int                     `json:"try,omitempty"` // since PlanBench
}

// BenchPlan is what the run that updates a server needs to know.
type BenchPlan struct {
	Done    bool `json:"done,omitempty"` // it has ended, or the server is gone
	Undoing bool `json:"undoing,omitempty"`
	// Cancelled is set if the release is, and the server must go back.
	Cancelled bool   `json:"cancelled,omitempty"`
	Waits     string `json:"waits,omitempty"` // the work that must end first
	Try       int    `json:"try,omitempty"`   // counts the server's updates by this release

	Region   prego.Region              `json:"region,omitempty"`
	Role     prego.Role                `json:"role,omitempty"`
	Sites    []server.StackReleaseSite `json:"sites,omitempty"`
	Parallel int                       `json:"parallel,omitempty"`
	Step     time.Duration             `json:"step,omitempty"`
	// Leaves is set if there is object storage that backups go to.
	Leaves bool `json:"leaves,omitempty"`
}

// PlanBench finds the sites of a server to update, once no other run is changing one. It lets go of the server if the
// release was cancelled before anything there was changed.
func (a *StackReleases) PlanBench(ctx context.Context, ref BenchRef) (BenchPlan, error) {
	v, err := a.Store.BeginBenchUpdate(ctx, ref.Release, ref.ServerID)
	if err != nil {
		return BenchPlan{}, permanentIfCoded(err)
	}
	a.hook("bench/planned")
	if v.Gone && v.Status == server.BenchUpdating {
		ref.Try = v.Try
		return BenchPlan{Done: true}, a.end(ctx, ref, server.BenchSkipped, "", "the server is gone")
	}
	if v.Cancelled && v.Untouched && v.Status == server.BenchUpdating {
		ref.Try = v.Try
		return BenchPlan{Done: true}, a.end(ctx, ref, server.BenchSkipped, "", "the release was cancelled")
	}
	return BenchPlan{
		Done: v.Status != server.BenchUpdating, Undoing: v.Undoing, Cancelled: v.Cancelled, Waits: v.Waits, Try: v.Try, Region: v.Region, Role: v.Role, Sites: v.Sites,
		Parallel: max(1, a.Parallel), Step: a.Tenants.Settings.StepTimeout, Leaves: a.Tenants.BackupsLeave,
	}, nil
}

// tag distinguishes the tries of a server's update in names of backups and commands.
func tag(v server.BenchRecord) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d", v.Release, v.ServerID, v.Try))
	return "upd-" + hex.EncodeToString(sum[:6])
}

// explain records on the server's row why a phase is repeated.
func (a *StackReleases) explain(ctx context.Context, ref BenchRef, err *error) {
	noteWhy(ctx, a.Log, *err, func(ctx context.Context, why string) error {
		return a.Store.BenchRetries(ctx, ref.Release, ref.ServerID, why)
	})
}

// PrepareBench fetches the release's image while the sites serve.
func (a *StackReleases) PrepareBench(ctx context.Context, ref BenchRef) (err error) {
	defer a.explain(ctx, ref, &err)
	v, err := a.Store.BenchRecord(ctx, ref.Release, ref.ServerID)
	if err != nil {
		return permanentIfCoded(err)
	}
	a.hook("bench/prepare")
	return fromContainers(a.Containers.PrepareBench(ctx, ref.ServerID, v.Host, v.Image))
}

// PhaseInput is the current phase of a server's update.
type PhaseInput struct {
	BenchRef
	Phase string `json:"phase"`
}

// NoteBench records the current phase of a server's update.
func (a *StackReleases) NoteBench(ctx context.Context, in PhaseInput) error {
	return a.Store.BenchPhase(ctx, in.Release, in.ServerID, in.Phase)
}

// CloseSites has edges show the page for maintenance instead of the server's sites, and waits
// until they do.
func (a *StackReleases) CloseSites(ctx context.Context, ref BenchRef) (err error) {
	defer a.explain(ctx, ref, &err)
	if err := a.Store.CloseBenchSites(ctx, ref.Release, ref.ServerID); err != nil {
		return err
	}
	a.hook("bench/closed")
	if a.Tenants.Drained == nil {
		return nil
	}
	return a.Tenants.Drained(ctx, ref.ServerID)
}

// SiteRef names a site of a server that is being updated.
type SiteRef struct {
	BenchRef
	Site string `json:"site"`
}

// errSiteGone means that a site has left the server and needs no work.
var errSiteGone = errors.New("the site is gone")

// benchSite is a site of a server that is being updated. Its tenant is zero for a pool site.
type benchSite struct {
	run  server.BenchRecord
	site server.StackReleaseSite
	t    tenant.Record
	// what prefixes the ids of the step's commands, once those of commands that a repeated step joins.
	what, once string
}

func (s benchSite) pooled() bool { return s.site.TenantID == "" }

// serves reports whether the site must answer visitors, or edges that have not opened it yet.
func (s benchSite) serves() bool {
	state := s.t.State
	return !s.pooled() && (state == tenant.Active || state == tenant.GracePeriod || s.t.OpeningSince != nil)
}

func (a *StackReleases) site(ctx context.Context, ref SiteRef) (s benchSite, err error) {
	if s.run, err = a.Store.BenchRecord(ctx, ref.Release, ref.ServerID); err != nil {
		return s, permanentIfCoded(err)
	}
	i := slices.IndexFunc(s.run.Sites, func(x server.StackReleaseSite) bool { return x.Site == ref.Site })
	if i < 0 {
		return s, errSiteGone
	}
	s.site = s.run.Sites[i]
	info := activity.GetInfo(ctx)
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s", info.WorkflowExecution.RunID, ref.Site))
	s.once = tag(s.run) + "-" + hex.EncodeToString(sum[:6])
	s.what = fmt.Sprintf("%s-%s-%d", s.once, info.ActivityID, info.Attempt)
	if s.pooled() {
		return s, nil
	}
	if s.t, err = a.Tenants.Store.TenantRecord(ctx, s.site.TenantID); err != nil {
		return s, fromStore(err)
	}
	if s.t.Allocation == nil || s.t.Allocation.AppServerID != ref.ServerID || s.t.Site != ref.Site {
		return s, errSiteGone
	}
	s.t.Updating = false // by this step
	return s, nil
}

// onBench runs a command of the site.
func (a *StackReleases) onBench(ctx context.Context, s benchSite, what string, timeout time.Duration, args ...string) (string, error) {
	c := server.BenchCommand{
		ServerID: s.run.ServerID, Addr: s.run.Host, AuditID: what + "-" + args[0], TenantID: s.site.TenantID, Timeout: timeout,
		Args: append([]string{"--site", s.site.Site}, args...),
	}
	return a.Tenants.bench(ctx, c)
}

// KeepSite takes a site offline, and backs it up on its host: until it is open again nothing
// of it changes but by the update.
func (a *StackReleases) KeepSite(ctx context.Context, ref SiteRef) (err error) {
	defer a.explain(ctx, ref.BenchRef, &err)
	s, err := a.site(ctx, ref)
	if err != nil || s.site.Status != server.SiteWaiting {
		return ifGone(err)
	}
	if !s.pooled() {
		if err := a.offline(ctx, s); err != nil {
			return err
		}
		a.hook("bench/offline")
		if _, err := a.onBench(ctx, s, s.once, a.Tenants.Settings.SiteTimeout, "backup", tag(s.run), "--with-files"); err != nil {
			return err
		}
	}
	a.hook("bench/kept")
	return a.Store.BenchSiteStep(ctx, ref.Release, ref.ServerID, ref.Site, server.SiteKept)
}

func ifGone(err error) error {
	if errors.Is(err, errSiteGone) {
		return nil
	}
	return err
}

func (a *StackReleases) offline(ctx context.Context, s benchSite) error {
	if s.t.ReadOnly { // a half-updated site is never served
		if err := a.Tenants.onSite(ctx, s.t, s.what+"-offline", reading(false)); err != nil {
			return err
		}
	}
	return a.Tenants.onSite(ctx, s.t, s.what+"-offline", maintenanceOn)
}

// SwapInput names the image for a server's bench.
type SwapInput struct {
	BenchRef
	Back bool `json:"back,omitempty"` // to the previous image
}

// SwapBench gives a server's bench another image, and waits until its containers are healthy.
func (a *StackReleases) SwapBench(ctx context.Context, in SwapInput) (err error) {
	defer a.explain(ctx, in.BenchRef, &err)
	v, err := a.Store.BenchRecord(ctx, in.Release, in.ServerID)
	if err != nil {
		return permanentIfCoded(err)
	}
	image := v.Image
	if in.Back {
		image = v.FromImage
	}
	if err := a.Store.SetBenchImage(ctx, in.Release, in.ServerID, image); err != nil {
		return err
	}
	a.hook("bench/swap")
	if _, err := a.Containers.RepairContainers(ctx, in.ServerID, v.Host, v.Role); err != nil {
		return fromContainers(err)
	}
	a.hook("bench/swapped")
	drift, err := a.Containers.CheckContainers(ctx, in.ServerID, v.Host, v.Role)
	if err == nil && len(drift) > 0 {
		return temporal.NewApplicationError(fmt.Sprintf("container %s: %s", drift[0].Container, drift[0]), ErrTypeContainer)
	}
	return fromContainers(err)
}

// MigrateSite brings a site's database to the new code.
func (a *StackReleases) MigrateSite(ctx context.Context, ref SiteRef) (err error) {
	defer a.explain(ctx, ref.BenchRef, &err)
	s, err := a.site(ctx, ref)
	if err != nil || (s.site.Status != server.SiteKept && s.site.Status != server.SiteMigrating) {
		return ifGone(err)
	}
	if err := a.Store.BenchSiteStep(ctx, ref.Release, ref.ServerID, ref.Site, server.SiteMigrating); err != nil {
		return err
	}
	a.hook("bench/migrate")
	if _, err := a.onBench(ctx, s, s.once, a.Tenants.Settings.SiteTimeout, "migrate"); err != nil {
		return err
	}
	a.hook("bench/migrated")
	return a.Store.BenchSiteStep(ctx, ref.Release, ref.ServerID, ref.Site, server.SiteMigrated)
}

// CheckSite checks that a site has the versions that the release asks for, and answers. Edges keep
// showing the maintenance page.
func (a *StackReleases) CheckSite(ctx context.Context, ref SiteRef) (err error) {
	defer a.explain(ctx, ref.BenchRef, &err)
	s, err := a.site(ctx, ref)
	if err != nil || s.site.Status != server.SiteMigrated {
		return ifGone(err)
	}
	printed, err := a.onBench(ctx, s, s.what, a.Tenants.Settings.CommandTimeout, "versions")
	if err != nil {
		return err
	}
	has := map[string]string{}
	if err := json.Unmarshal([]byte(printed), &has); err != nil {
		return permanentError(ErrTypeCommand, "the versions of site "+ref.Site+" can't be read", nil)
	}
	for _, app := range slices.Sorted(maps.Keys(s.run.Apps)) {
		if got, installed := has[app]; installed && got != s.run.Apps[app] {
			return because(true, server.ReasonWrongVersion, fmt.Sprintf("site %s has %s %s instead of %s", ref.Site, app, got, s.run.Apps[app]))
		}
	}
	if err := a.online(ctx, s); err != nil {
		return err
	}
	a.hook("bench/checked")
	return a.Store.BenchSiteStep(ctx, ref.Release, ref.ServerID, ref.Site, server.SiteChecked)
}

// answerPause is between two requests to a site that does not answer yet.
const answerPause = time.Second

// online brings a site back, if it is to serve, and waits until it answers.
func (a *StackReleases) online(ctx context.Context, s benchSite) error {
	if !s.serves() {
		return nil
	}
	if err := a.Tenants.putOnline(ctx, s.t, s.what); err != nil {
		return err
	}
	end := time.Now().Add(a.AnswerFor)
	for n := 1; ; n++ {
		_, err := a.onBench(ctx, s, fmt.Sprintf("%s-%d", s.what, n), a.Tenants.Settings.CommandTimeout, "answers")
		switch {
		case err == nil:
			return nil
		case time.Now().After(end):
			return because(true, server.ReasonSiteNotAnswering, err.Error())
		}
		if err := prego.Sleep(ctx, answerPause); err != nil {
			return err
		}
	}
}

// OpenSites has edges show the server's sites again.
func (a *StackReleases) OpenSites(ctx context.Context, ref BenchRef) error {
	v, err := a.Store.BenchRecord(ctx, ref.Release, ref.ServerID)
	if err != nil {
		return permanentIfCoded(err)
	}
	if err := a.Store.OpenBenchSites(ctx, ref.Release, ref.ServerID); err != nil {
		return err
	}
	a.hook("bench/opened")
	for _, s := range v.Sites {
		e := tenant.Event{TenantID: s.TenantID, Step: tenant.StepSiteUpdated, Message: fmt.Sprintf("release %s", v.Release)}
		if v.Undoing {
			e.Step, e.Reason, e.Message = tenant.StepSiteUpdateUndone, string(v.Reason), fmt.Sprintf("release %s: %s", v.Release, v.Message)
		}
		if s.TenantID == "" || !s.Closed {
			continue
		}
		if err := a.Tenants.Store.AddTenantEvent(ctx, e, string(e.Step)+"/"+tag(v)); err != nil {
			return err
		}
	}
	return nil
}

// OfflineSite takes a site offline that goes back.
func (a *StackReleases) OfflineSite(ctx context.Context, ref SiteRef) error {
	s, err := a.site(ctx, ref)
	if err != nil || s.pooled() || !s.site.Closed {
		return ifGone(err)
	}
	return a.offline(ctx, s)
}

// RestoreOld brings a site back to what it held when it was taken offline, and online.
func (a *StackReleases) RestoreOld(ctx context.Context, ref SiteRef) error {
	s, err := a.site(ctx, ref)
	if err != nil || s.pooled() || !s.site.Closed {
		return ifGone(err)
	}
	switch s.site.Status {
	case server.SiteMigrating, server.SiteMigrated, server.SiteChecked:
		a.hook("bench/restore")
		if _, err := a.onBench(ctx, s, s.once, a.Tenants.Settings.SiteTimeout, "restore", tag(s.run), "--with-files"); err != nil {
			return err
		}
		if err := a.Store.BenchSiteStep(ctx, ref.Release, ref.ServerID, ref.Site, server.SiteRestored); err != nil {
			return err
		}
		a.hook("bench/restored")
	case server.SiteWaiting, server.SiteKept, server.SiteRestored: // it holds what it held
	}
	return a.online(ctx, s)
}

// ForgetOld deletes the backup on the host that would have led back.
func (a *StackReleases) ForgetOld(ctx context.Context, ref SiteRef) error {
	s, err := a.site(ctx, ref)
	if err != nil || s.pooled() || !s.site.Closed {
		return ifGone(err)
	}
	_, err = a.onBench(ctx, s, s.what, a.Tenants.Settings.CommandTimeout, "delete-backup", tag(s.run))
	return err
}

// UndoInput is the reason why a server goes back.
type UndoInput struct {
	BenchRef
	Reason  prego.Reason `json:"reason"`
	Message string       `json:"message"`
}

// UndoBench records that a server goes back.
func (a *StackReleases) UndoBench(ctx context.Context, in UndoInput) error {
	return a.Store.UndoBench(ctx, in.Release, in.ServerID, in.Try, in.Reason, in.Message)
}

// BenchEnd is the outcome of a server's update.
type BenchEnd struct {
	BenchRef
	Status  server.BenchStatus `json:"status"`
	Reason  prego.Reason       `json:"reason,omitempty"`
	Message string             `json:"message,omitempty"`
}

// EndBench records how the update of a server ended, and wakes the release.
func (a *StackReleases) EndBench(ctx context.Context, in BenchEnd) error {
	return a.end(ctx, in.BenchRef, in.Status, in.Reason, in.Message)
}

func (a *StackReleases) end(ctx context.Context, ref BenchRef, status server.BenchStatus, reason prego.Reason, message string) error {
	if err := a.Store.EndBench(ctx, ref.Release, ref.ServerID, ref.Try, status, reason, message); err != nil {
		return err
	}
	a.hook("bench/ended")
	a.Ended.WithLabelValues(string(status)).Inc()
	if err := a.Runs.WakeStackRelease(ctx, ref.Release); err != nil {
		a.Log.Warn("the release is not woken; it looks by itself", zap.Error(err))
	}
	return nil
}
