package workflows

import (
	"fmt"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/tenant"
)

// RefillInput names an app server.
type RefillInput struct {
	ServerID prego.ServerID `json:"server_id"`
}

// buildAttempts is how often a build is tried before the site is marked as failed.
const buildAttempts = 3

// RefillSitePool keeps the pre-built sites of one app server at their target
// (placement-policy §2.6). One run serves all claims: claiming a site signals it.
func RefillSitePool(ctx workflow.Context, in RefillInput) error {
	signals := workflow.GetSignalChannel(ctx, SignalDemand)
	if err := searchable(ctx, AttrServerID.ValueSet(string(in.ServerID)), AttrOutcome.ValueSet("filling")); err != nil {
		return err
	}
	var steps *activities.Tenants
	for round := 1; ; round++ {
		listen(ctx, signals)
		var plan activities.RefillPlan
		if err := do(write(ctx, "reserve the sites that are missing"), &plan, steps.PlanRefill, activities.RefillInput{ServerID: in.ServerID}); err != nil {
			return err
		}
		if len(plan.Sites) == 0 && plan.Failed == 0 && signals.Len() == 0 {
			setOutcome(ctx, "done")
			return nil
		}
		workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s**: building %d sites", in.ServerID, len(plan.Sites)))
		built, err := buildSites(ctx, steps, plan)
		if err != nil {
			return err
		}
		if built < len(plan.Sites) || plan.Failed > 0 {
			if err := do(long(call(ctx, "drop the remains of failed builds", plan.Step)), nil, steps.DropFailedSites, in.ServerID); err != nil {
				workflow.GetLogger(ctx).Warn("failed builds not dropped; the next refill does it", "error", err)
				setOutcome(ctx, "incomplete")
				return nil
			}
		}
		if built > 0 {
			serveQueue(ctx, steps, plan.Region)
		}
		if round >= maxRounds || workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			drainSignals(signals)
			return workflow.NewContinueAsNewError(ctx, RefillSitePool, in)
		}
	}
}

// buildSites builds a few sites concurrently: the host also has tenants to serve.
func buildSites(ctx workflow.Context, steps *activities.Tenants, plan activities.RefillPlan) (built int, err error) {
	free := workflow.NewSemaphore(ctx, int64(max(1, plan.Parallel)))
	wg := workflow.NewWaitGroup(ctx)
	var failed error
	for _, site := range plan.Sites {
		if err := free.Acquire(ctx, 1); err != nil {
			return built, err
		}
		wg.Add(1)
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer wg.Done()
			defer free.Release(1)
			ok, err := buildSite(ctx, steps, site, plan)
			if ok {
				built++
			}
			if err != nil {
				failed = err
			}
		})
	}
	wg.Wait(ctx)
	return built, failed
}

func buildSite(ctx workflow.Context, steps *activities.Tenants, site tenant.PoolSite, plan activities.RefillPlan) (bool, error) {
	options := long(call(ctx, "build "+site.SiteName, plan.Step))
	ao := workflow.GetActivityOptions(options)
	retry := *ao.RetryPolicy
	retry.MaximumAttempts = buildAttempts
	ao.RetryPolicy = &retry
	var built bool
	err := do(workflow.WithActivityOptions(ctx, ao), &built, steps.BuildSite, site)
	if err == nil || temporal.IsCanceledError(err) {
		return built, err
	}
	return false, do(write(ctx, "give the build up"), nil, steps.GiveUpSite, activities.GiveUpInput{PoolSiteID: site.PoolSiteID, Reason: errorMessage(err)})
}
