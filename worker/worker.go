// Package worker registers workflows and activities on their task queues.
package worker

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/workflows"
)

// Options configure a worker.
type Options struct {
	TaskQueue   string            // of the main queue; the others' names begin with it
	Queues      []workflows.Queue // which to serve
	Slots       Slots             // concurrent activities
	StopTimeout time.Duration     // to finish running activities when it is stopped
	Lost        <-chan struct{}   // ends running activities immediately when it is closed; nil never is
}

// Slots are the concurrent activities of each queue.
type Slots struct{ Main, Long, Periodic int }

func (s Slots) of(q workflows.Queue) int {
	switch q {
	case workflows.QueueLong:
		return s.Long
	case workflows.QueuePeriodic:
		return s.Periodic
	case workflows.QueueMain:
	}
	return s.Main
}

// until is a context that ends when a channel is closed; nil for a nil channel.
func until(closed <-chan struct{}) context.Context {
	if closed == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-closed; cancel() }()
	return ctx
}

// Worker serves one or more task queues.
type Worker []worker.Worker

// Start starts serving; when it fails, nothing is served.
func (w Worker) Start() error {
	for i, one := range w {
		if err := one.Start(); err != nil {
			w[:i].Stop()
			return err
		}
	}
	return nil
}

// Stop lets running activities finish, of all queues at the same time.
func (w Worker) Stop() {
	var wg sync.WaitGroup
	for _, one := range w {
		wg.Go(one.Stop)
	}
	wg.Wait()
}

// Identify names the program in the reset points of runs. Without it each start of a worker
// reads and hashes its whole program, which takes as long as all the rest of it.
func Identify(version string) { worker.SetBinaryChecksum(version) }

// New creates a worker with every workflow and activity registered, including more; the caller runs it.
func New(c client.Client, o Options, servers *activities.Servers, fleet *activities.Reconciler, tenants *activities.Tenants, actions *activities.FleetActions, org *activities.OrgResources, snapshots *activities.Snapshots, groups *activities.Groups, catalogs *activities.Catalogs, images *activities.Images, more ...any) (Worker, error) {
	if o.TaskQueue == "" || len(o.Queues) == 0 || slices.ContainsFunc(o.Queues, func(q workflows.Queue) bool { return o.Slots.of(q) < 1 }) {
		return nil, fmt.Errorf("worker needs a task queue and at least 1 slot in each of its queues")
	}
	all := make(Worker, 0, len(o.Queues))
	for _, q := range o.Queues {
		w := worker.New(c, q.Name(o.TaskQueue), worker.Options{
			MaxConcurrentActivityExecutionSize:      o.Slots.of(q),
			MaxConcurrentLocalActivityExecutionSize: o.Slots.of(q),
			DisableWorkflowWorker:                   q != workflows.QueueMain,
			WorkerStopTimeout:                       o.StopTimeout,
			BackgroundActivityContext:               until(o.Lost),
			Interceptors:                            []interceptor.WorkerInterceptor{&activities.Heartbeats{}},
			MaxHeartbeatThrottleInterval:            2 * time.Second,
			DefaultHeartbeatThrottleInterval:        2 * time.Second,
		})
		if q == workflows.QueueMain {
			Register(w)
		}
		for _, a := range append([]any{servers, fleet, tenants, actions, org, snapshots, groups, catalogs, images}, more...) {
			w.RegisterActivity(a)
		}
		all = append(all, w)
	}
	return all, nil
}

// Replayer replays histories of prego's workflows, for tests. It does not take a machine that
// does nothing for a second for a workflow that hangs.
func Replayer(through ...interceptor.WorkerInterceptor) (worker.WorkflowReplayer, error) {
	r, err := worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{Interceptors: through, DisableDeadlockDetection: true})
	if err == nil {
		Register(r)
	}
	return r, err
}

// Register registers only the workflows, as replay tests need them.
func Register(r worker.WorkflowRegistry) {
	r.RegisterWorkflow(workflows.ProvisionServer)
	register(r, workflows.DecommissionServer)
	register(r, workflows.MaintainServer)
	register(r, workflows.DeployStackRelease)
	r.RegisterWorkflow(workflows.UpdateBench)
	r.RegisterWorkflow(workflows.Reconcile)
	r.RegisterWorkflow(workflows.SweepHeartbeats)
	register(r, workflows.ProvisionTenant)
	register(r, workflows.ChangeTenantState)
	register(r, workflows.ScaleOut)
	register(r, workflows.ScaleFleet)
	register(r, workflows.FillWarmPool)
	register(r, workflows.RefillSitePool)
	r.RegisterWorkflow(workflows.SweepTenants)
	register(r, workflows.ReconcileAddress)
	register(r, workflows.ReconcileVolume)
	register(r, workflows.SnapshotTenant)
	register(r, workflows.RestoreTenant)
	register(r, workflows.EraseSnapshot)
	r.RegisterWorkflow(workflows.MeasureSites)
	r.RegisterWorkflow(workflows.KeepNames)
	register(r, workflows.ReconcileGroup)
	r.RegisterWorkflow(workflows.SweepGroups)
	r.RegisterWorkflow(workflows.RefreshCatalog)
	r.RegisterWorkflow(workflows.BuildImage)
	register(r, workflows.DeleteImage)
	register(r, workflows.IssueCertificate)
	r.RegisterWorkflow(workflows.SweepCertificates)
	r.RegisterWorkflow(workflows.BackupTenant)
	register(r, workflows.RestoreVolume)
	register(r, workflows.DrillBackup)
	register(r, workflows.DeleteBackup)
	r.RegisterWorkflow(workflows.MoveTenant)
}

// register registers a workflow whose result is its outcome, under the workflow's own name.
func register[In any](r worker.WorkflowRegistry, run func(workflow.Context, In) error) {
	name := runtime.FuncForPC(reflect.ValueOf(run).Pointer()).Name()
	name = name[strings.LastIndexByte(name, '.')+1:]
	r.RegisterWorkflowWithOptions(workflows.WithOutcome(run), workflow.RegisterOptions{Name: name})
}
