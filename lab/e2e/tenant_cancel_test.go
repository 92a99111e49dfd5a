package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	sdktemporal "go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workflows"
)

// TestCancelWaitsForTheReservation: what a run undoes must have been
// done, not be done after. The steps are made up, the engine is real.
func TestCancelWaitsForTheReservation(t *testing.T) {
	t.Parallel()
	const queue = "e2e-cancel"
	w := worker.New(temporalClient, queue, worker.Options{MaxHeartbeatThrottleInterval: 50 * time.Millisecond})
	var mu sync.Mutex
	var did []string
	note := func(what string) { mu.Lock(); defer mu.Unlock(); did = append(did, what) }
	step := func(name string, f any) { w.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name}) }
	begun, finish := make(chan struct{}), make(chan struct{})
	plan := activities.TenantPlan{Region: "eu", CapacityWait: time.Hour, CapacityPoll: time.Minute, StepTimeout: time.Minute}
	place := func() (activities.PlaceResult, error) {
		close(begun)
		<-finish
		note("placed")
		return activities.PlaceResult{Placed: true, Outcome: placement.Placed}, nil
	}
	step("BeginTenant", func(context.Context, tenant.Ref) (activities.TenantBegun, error) {
		placed, err := place()
		return activities.TenantBegun{Plan: plan, Place: placed}, err
	})
	step("ReadWaitingTenant", func(context.Context, tenant.Ref) (activities.TenantNow, error) {
		return activities.TenantNow{}, nil
	})
	step("PlaceTenant", func(context.Context, tenant.Ref) (activities.PlaceResult, error) { return place() })
	// A local activity ends within its workflow task, so the run hears of the cancel after it.
	step("BuildTenant", func(ctx context.Context, _ tenant.Ref) (bool, error) {
		for ctx.Err() == nil {
			activity.RecordHeartbeat(ctx)
			time.Sleep(20 * time.Millisecond)
		}
		note("not built")
		return false, ctx.Err()
	})
	step("DropSite", func(context.Context, activities.DropInput) error { note("dropped"); return nil })
	step("FreePlace", func(context.Context, activities.FreePlaceInput) error { note("released"); return nil })
	step("FailTenant", func(_ context.Context, in activities.FailTenantInput) error { note(string(in.Reason)); return nil })
	step("ServeQueue", func(context.Context, prego.Region) (int, error) { return 0, nil })
	w.RegisterWorkflow(workflows.ProvisionTenant)
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	ctx := context.Background()
	run, err := temporalClient.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: "tenant-provision/" + queue, TaskQueue: queue},
		workflows.ProvisionTenant, workflows.ProvisionTenantInput{TenantID: "t-1", Generation: 1})
	require.NoError(t, err)
	<-begun
	require.NoError(t, temporalClient.CancelWorkflow(ctx, run.GetID(), ""))
	time.Sleep(time.Second) // for a clean-up that does not wait
	close(finish)
	var cancelled *sdktemporal.CanceledError
	require.ErrorAs(t, run.Get(ctx, nil), &cancelled)
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{"placed", "not built", "dropped", "released", "cancelled"}, did)
}
