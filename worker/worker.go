// Package worker registers workflows and activities on a task queue.
package worker

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/workflows"
)

// Options configure a worker.
type Options struct {
	TaskQueue   string
	Concurrency int           // concurrent activities
	StopTimeout time.Duration // to finish running activities when it is stopped
}

// New creates a worker with every workflow and activity registered; the caller runs it.
func New(c client.Client, o Options, servers *activities.Servers, fleet *activities.Reconciler, tenants *activities.Tenants, actions *activities.FleetActions, org *activities.OrgResources, backups *activities.Backups, groups *activities.Groups, catalogs *activities.Catalogs, images *activities.Images) (worker.Worker, error) {
	if o.TaskQueue == "" || o.Concurrency < 1 {
		return nil, fmt.Errorf("worker needs a task queue and a concurrency of at least 1")
	}
	w := worker.New(c, o.TaskQueue, worker.Options{
		MaxConcurrentActivityExecutionSize:      o.Concurrency,
		MaxConcurrentLocalActivityExecutionSize: o.Concurrency,
		WorkerStopTimeout:                       o.StopTimeout,
		MaxHeartbeatThrottleInterval:            2 * time.Second,
		DefaultHeartbeatThrottleInterval:        2 * time.Second,
	})
	Register(w)
	w.RegisterActivity(servers)
	w.RegisterActivity(fleet)
	w.RegisterActivity(tenants)
	w.RegisterActivity(actions)
	w.RegisterActivity(org)
	w.RegisterActivity(backups)
	w.RegisterActivity(groups)
	w.RegisterActivity(catalogs)
	w.RegisterActivity(images)
	return w, nil
}

// Register registers only the workflows, as replay tests need them.
func Register(r worker.WorkflowRegistry) {
	r.RegisterWorkflow(workflows.ProvisionServer)
	r.RegisterWorkflow(workflows.DecommissionServer)
	r.RegisterWorkflow(workflows.Reconcile)
	r.RegisterWorkflow(workflows.SweepHeartbeats)
	r.RegisterWorkflow(workflows.ProvisionTenant)
	r.RegisterWorkflow(workflows.ChangeTenantState)
	r.RegisterWorkflow(workflows.ScaleOut)
	r.RegisterWorkflow(workflows.ScaleFleet)
	r.RegisterWorkflow(workflows.FillWarmPool)
	r.RegisterWorkflow(workflows.RefillSitePool)
	r.RegisterWorkflow(workflows.SweepTenants)
	r.RegisterWorkflow(workflows.ReconcileAddress)
	r.RegisterWorkflow(workflows.ReconcileVolume)
	r.RegisterWorkflow(workflows.SnapshotTenant)
	r.RegisterWorkflow(workflows.RestoreTenant)
	r.RegisterWorkflow(workflows.EraseSnapshot)
	r.RegisterWorkflow(workflows.MeasureSites)
	r.RegisterWorkflow(workflows.ReconcileGroup)
	r.RegisterWorkflow(workflows.SweepGroups)
	r.RegisterWorkflow(workflows.RefreshCatalog)
	r.RegisterWorkflow(workflows.BuildImage)
	r.RegisterWorkflow(workflows.DeleteImage)
}
