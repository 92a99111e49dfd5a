package workflows

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// StackReleaseInput names a release of the stack that is being rolled out.
type StackReleaseInput struct {
	Name server.StackReleaseName `json:"name"`
}

// stackReleasePause is the first wait between two looks at a release. Servers whose update has ended
// and requests of operators wake it.
const stackReleasePause = time.Second

// DeployStackRelease rolls a release out: each look at the rows lets servers of the present ring
// begin, as far as the budget goes, and stops the release when one went back. It ends when
// the release rests and no server is being updated any more.
func DeployStackRelease(ctx workflow.Context, in StackReleaseInput) error {
	var steps *activities.StackReleases
	return untilRest(ctx, DeployStackRelease, in, stackReleasePause, "look at the release again", func(int) (look, error) {
		var p activities.StackReleaseProgress
		err := do(write(ctx, "decide the next step"), &p, steps.StepStackRelease, in.Name)
		workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s** %s: %s", in.Name, p.Status, p.Message))
		return look{status: string(p.Status), rests: p.Status.Rests() && !p.Busy, changed: p.Began}, err
	})
}

// BenchUpdateInput names a server that gets a release.
type BenchUpdateInput struct {
	Release  server.StackReleaseName `json:"release"`
	ServerID prego.ServerID          `json:"server_id"`
}

// BenchUpdateResult is how it ended.
type BenchUpdateResult struct {
	Status server.BenchStatus `json:"status"`
	Reason prego.Reason       `json:"reason,omitempty"`
}

// UpdateBench gives a server's bench the image of a release, and brings all its sites to it: all of
// them or none, since they share the code. While they serve, the image is fetched and they are
// backed up off the host. Then edges show the page for maintenance, each site is backed up on the
// host as it is, migrated and checked, and all are opened. If any of that fails the server gets its
// old image back, and each site its content from when it was taken offline. A cancelled run ends if
// nothing was changed yet, and otherwise undoes the update, unless its sites are already being opened.
func UpdateBench(ctx workflow.Context, in BenchUpdateInput) (BenchUpdateResult, error) {
	var steps *activities.StackReleases
	u := &benchUpdate{steps: steps, ref: activities.BenchRef{Release: in.Release, ServerID: in.ServerID}}
	forward := ctx
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	done, err := u.await(ctx, forward)
	if err != nil || done {
		return BenchUpdateResult{Status: server.BenchSkipped}, err
	}
	var s story
	s.found(ctx, serverAttributes(in.ServerID, u.plan.Region, u.plan.Role)...)
	end := activities.BenchEnd{BenchRef: u.ref, Status: server.BenchDone}
	if !u.plan.Undoing {
		if reason, failure := u.forward(ctx, forward); failure != nil {
			if forward.Err() != nil {
				if err := u.read(ctx); err != nil || u.plan.Done {
					return BenchUpdateResult{Status: server.BenchSkipped}, err
				}
				reason, failure = server.ReasonUpdateInterrupted, errCancelled
			}
			end.Status, end.Reason = server.BenchRolledBack, reason
			s.step(write(ctx, "record why it goes back"), steps.UndoBench, activities.UndoInput{BenchRef: u.ref, Reason: reason, Message: errorMessage(failure)})
		}
	}
	if s.err != nil {
		return BenchUpdateResult{}, s.err
	}
	if u.plan.Undoing || end.Status == server.BenchRolledBack {
		end.Status, end.Reason = server.BenchRolledBack, ""
		if err := u.back(ctx); err != nil {
			end.Status, end.Reason, end.Message = server.BenchBroken, server.ReasonRollbackFailed, "the way back failed: "+errorMessage(err)
		}
	}
	setOutcome(ctx, string(end.Status))
	if end.Status != server.BenchBroken {
		u.forget(ctx)
	}
	return BenchUpdateResult{Status: end.Status, Reason: end.Reason}, do(write(ctx, "record how it ended"), nil, steps.EndBench, end)
}

// errCancelled is why a server goes back whose update was cancelled.
var errCancelled = errors.New("the update was cancelled")

// benchUpdate is the update of a server under way.
type benchUpdate struct {
	steps *activities.StackReleases
	ref   activities.BenchRef
	plan  activities.BenchPlan
}

// benchWait is how often is looked whether others have left the server's sites alone.
const benchWait = 5 * time.Second

// read reads the update's row.
func (u *benchUpdate) read(ctx workflow.Context) error {
	u.plan = activities.BenchPlan{}
	err := do(write(ctx, "find the server's sites"), &u.plan, u.steps.PlanBench, u.ref)
	u.ref.Try = u.plan.Try
	return err
}

// await waits until no other run is changing a site of the server. If forward is cancelled meanwhile, the row decides.
func (u *benchUpdate) await(ctx, forward workflow.Context) (done bool, err error) {
	for {
		if err := u.read(ctx); err != nil || u.plan.Done {
			return u.plan.Done, err
		}
		if u.plan.Waits == "" {
			return false, nil
		}
		workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s** on %s waits: %s", u.ref.Release, u.ref.ServerID, u.plan.Waits))
		if forward.Err() != nil {
			return false, forward.Err()
		}
		_ = workflow.Sleep(forward, benchWait) // cancelled, the row is read once more
	}
}

// phase records the current phase.
func (u *benchUpdate) phase(ctx workflow.Context, phase string) error {
	workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s** on %s: %s", u.ref.Release, u.ref.ServerID, phase))
	return do(write(ctx, "note the phase"), nil, u.steps.NoteBench, activities.PhaseInput{BenchRef: u.ref, Phase: phase})
}

// forward updates the server; its reason goes with the error. Opening the sites is not cancelled: their visitors may
// have written since.
func (u *benchUpdate) forward(free, ctx workflow.Context) (prego.Reason, error) {
	onServer := func(what string, step, arg any) error {
		return do(long(call(ctx, what, u.plan.Step)), nil, step, arg)
	}
	onSites := func(what string, step any) error { return u.eachDoes(ctx, true, what, step) }
	for _, part := range []struct {
		phase  string
		reason prego.Reason
		do     func() error
	}{
		{"fetching the image", server.ReasonImageUnavailable, func() error { return onServer("fetch the image", u.steps.PrepareBench, u.ref) }},
		{"backing up", server.ReasonPreUpdateBackup, func() error { return u.backUp(ctx) }},
		{"closing", server.ReasonSiteNotClosed, func() error { return onServer("have edges show the page for maintenance", u.steps.CloseSites, u.ref) }},
		{"keeping", server.ReasonSiteNotClosed, func() error { return onSites("take offline and keep", u.steps.KeepSite) }},
		{"switching", server.ReasonBenchUnhealthy, func() error {
			return onServer("switch the image", u.steps.SwapBench, activities.SwapInput{BenchRef: u.ref})
		}},
		{"migrating", server.ReasonMigrateFailed, func() error { return onSites("migrate", u.steps.MigrateSite) }},
		{"checking", server.ReasonSiteNotAnswering, func() error { return onSites("check", u.steps.CheckSite) }},
		{"opening", server.ReasonUpdateInterrupted, func() error {
			return do(long(call(free, "open the sites", u.plan.Step)), nil, u.steps.OpenSites, u.ref)
		}},
	} {
		err := u.phase(ctx, part.phase)
		if err == nil {
			err = part.do()
		}
		if err != nil {
			reason := part.reason
			if errType(err) == string(server.ReasonWrongVersion) {
				reason = server.ReasonWrongVersion
			}
			return reason, err
		}
	}
	return "", nil
}

// backUp backs up all tenants' sites off the host, if there is anywhere to.
func (u *benchUpdate) backUp(ctx workflow.Context) error {
	if !u.plan.Leaves {
		return nil
	}
	of := make(map[string]prego.TenantID, len(u.plan.Sites))
	for _, s := range u.plan.Sites {
		of[s.Site] = s.TenantID
	}
	return u.each(ctx, true, func(ctx workflow.Context, site activities.SiteRef) error {
		if of[site.Site] == "" {
			return nil
		}
		return makeBackup(ctx, of[site.Site], tenant.BackupPreUpdate)
	})
}

// back undoes the update: all sites offline, the old image, what the sites held, all open.
func (u *benchUpdate) back(ctx workflow.Context) error {
	s := story{u.eachDoes(ctx, false, "take offline again", u.steps.OfflineSite)}
	s.step(long(call(ctx, "switch back to the old image", u.plan.Step)), u.steps.SwapBench, activities.SwapInput{BenchRef: u.ref, Back: true})
	if s.err == nil {
		s.err = u.eachDoes(ctx, false, "bring back what it held:", u.steps.RestoreOld)
	}
	s.step(call(ctx, "open the sites", u.plan.Step), u.steps.OpenSites, u.ref)
	return s.err
}

// eachDoes runs an activity for all sites.
func (u *benchUpdate) eachDoes(ctx workflow.Context, stop bool, what string, step any) error {
	return u.each(ctx, stop, func(ctx workflow.Context, site activities.SiteRef) error {
		return do(long(call(ctx, what+" "+site.Site, u.plan.Step)), nil, step, site)
	})
}

// forget deletes the backups on the host that would have led back. What stays goes with the
// sites.
func (u *benchUpdate) forget(ctx workflow.Context) {
	err := u.each(ctx, false, func(ctx workflow.Context, site activities.SiteRef) error {
		return do(call(ctx, "delete the kept files of "+site.Site, cleanFor), nil, u.steps.ForgetOld, site)
	})
	if err != nil {
		workflow.GetLogger(ctx).Warn("backups from before the update stay", "error", err)
	}
}

// each runs a step for all sites, up to the limit concurrently, and returns the first error. With
// stop it starts no more sites after an error.
func (u *benchUpdate) each(ctx workflow.Context, stop bool, do func(workflow.Context, activities.SiteRef) error) error {
	errs := make([]error, len(u.plan.Sites))
	slots, all, failed := workflow.NewSemaphore(ctx, int64(max(1, u.plan.Parallel))), workflow.NewWaitGroup(ctx), false
	for i, s := range u.plan.Sites {
		all.Add(1)
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer all.Done()
			if errs[i] = slots.Acquire(ctx, 1); errs[i] != nil {
				return
			}
			defer slots.Release(1)
			if stop && failed {
				return
			}
			errs[i] = do(ctx, activities.SiteRef{BenchRef: u.ref, Site: s.Site})
			failed = failed || errs[i] != nil
		})
	}
	all.Wait(ctx)
	return cmp.Or(errs...)
}

// EnsureStackRelease starts the run that rolls a release out, unless it is running.
func (c *Client) EnsureStackRelease(ctx context.Context, name server.StackReleaseName) (bool, error) {
	return c.start(ctx, server.StackReleaseWorkflowID(name), "Roll out "+string(name), DeployStackRelease, StackReleaseInput{Name: name})
}

// WakeStackRelease signals the run that rolls a release out that its rows have changed, and starts
// it if it is not running.
func (c *Client) WakeStackRelease(ctx context.Context, name server.StackReleaseName) error {
	return c.signalWithStart(ctx, server.StackReleaseWorkflowID(name), SignalDemand, "changed",
		client.StartWorkflowOptions{StaticSummary: "Roll out " + string(name)},
		DeployStackRelease, StackReleaseInput{Name: name})
}

// EnsureBenchUpdate starts the run that updates a server's bench, unless it is running.
func (c *Client) EnsureBenchUpdate(ctx context.Context, name server.StackReleaseName, serverID prego.ServerID) (bool, error) {
	return c.start(ctx, server.BenchUpdateWorkflowID(name, serverID), fmt.Sprintf("Update %s to %s", serverID, name), UpdateBench, BenchUpdateInput{Release: name, ServerID: serverID})
}

// CancelBenchUpdate asks the run that updates a server's bench to let go of it.
func (c *Client) CancelBenchUpdate(ctx context.Context, name server.StackReleaseName, serverID prego.ServerID) error {
	return c.cancel(ctx, server.BenchUpdateWorkflowID(name, serverID))
}
