package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/worker"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/sim"
	pregoworker "github.com/prego/prego/worker"
)

// runOf finds the id of a run of this cell by its type.
func (c *cell) runOf(workflowType string) string {
	c.t.Helper()
	var id string
	require.Eventually(c.t, func() bool {
		r, err := temporalClient.ListWorkflow(context.Background(), &workflowservice.ListWorkflowExecutionsRequest{
			Query: "TaskQueue = '" + c.vars["TEMPORAL_TASK_QUEUE"] + "' AND WorkflowType = '" + workflowType + "' AND ExecutionStatus = 'Completed'",
		})
		if err != nil || len(r.Executions) == 0 {
			return false
		}
		id = r.Executions[len(r.Executions)-1].Execution.WorkflowId
		return true
	}, patience, 100*time.Millisecond, "a run of %s", workflowType)
	return id
}

// TestRecordTenantHistories does for tenants what TestRecordHistories does for
// servers.
func TestRecordTenantHistories(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: tenantVars(map[string]string{"PREGO_SHARED_PLACEMENT_LEGACY": "yes", "PREGO_STORAGE_SWEEP_EVERY": "2s"})})
	c.org("acme", "")
	// From nothing: it waits while app server, shard and pool are made.
	waited := c.tenant("waited", prego.PlanStarter, nil)
	c.settledTenant(waited, prego.TenantActive)
	keepHistory(t, c, "tenant-waited", prego.TenantProvisionWorkflowID(waited))
	keepHistory(t, c, "scale-out", c.runOf("ScaleOut"))
	app := c.getTenant(waited).Allocation.AppServerId
	c.awaitSites(app, 2)
	keepHistory(t, c, "refill", prego.RefillWorkflowID(app))

	promoted := c.tenant("promoted", prego.PlanStarter, func(m map[string]any) { m["apps"] = []string{"erpnext"} })
	c.settledTenant(promoted, prego.TenantActive)
	keepHistory(t, c, "tenant-opened", prego.TenantProvisionWorkflowID(promoted))
	c.ask(promoted, "suspend")
	c.settledTenant(promoted, prego.TenantSuspended)
	keepHistory(t, c, "tenant-suspended", prego.TenantChangeWorkflowID(promoted))
	c.ask(promoted, "cancel")
	c.settledTenant(promoted, prego.TenantGracePeriod)
	c.expire(promoted)
	c.settledTenant(promoted, prego.TenantTerminated)
	keepHistory(t, c, "tenant-terminated", prego.TenantChangeWorkflowID(promoted))
	c.expire(promoted)
	c.settledTenant(promoted, prego.TenantDataPurged)
	keepHistory(t, c, "tenant-erased", prego.TenantChangeWorkflowID(promoted))

	c.awaitSites(app, 2)
	c.inject(sim.Fault{Kind: "bench", Verb: "clear-cache", Action: "fail", Message: "no", Times: 2})
	failed := c.tenant("failed", prego.PlanStarter, nil)
	c.awaitTenant(failed, "failed", func(tn api.Tenant) bool { return tn.State == "failed" })
	keepHistory(t, c, "tenant-failed", prego.TenantProvisionWorkflowID(failed))

	own := c.tenant("own", prego.PlanBusiness, func(m map[string]any) { m["policy"] = "one_tenant_one_server" })
	c.settledTenant(own, prego.TenantActive)
	keepHistory(t, c, "tenant-own-server", prego.TenantProvisionWorkflowID(own))

	c.send("PUT", "/v1/warm-pools/eu/starter", map[string]int{"target": 1}, 202, nil)
	keepHistory(t, c, "warm-pool", prego.WarmPoolWorkflowID(c.env, "eu", "starter"))

	picky := c.tenant("picky", prego.PlanStarter, func(m map[string]any) { m["constraint"] = map[string]any{"require": []string{"blue"}} })
	c.awaitTenant(picky, "waiting", func(tn api.Tenant) bool { return deref(tn.StatusReason) == "cell_mismatch" })
	c.ask(picky, "cancel")
	c.awaitTenant(picky, "failed", func(tn api.Tenant) bool { return tn.State == "failed" })
	keepHistory(t, c, "tenant-cancelled", prego.TenantProvisionWorkflowID(picky))
	keepHistory(t, c, "sweep-tenants", c.runOf("SweepTenants"))
	keepHistory(t, c, "measure-sites", c.runOf("MeasureSites"))
}

// keepHistory checks that a run's history replays and, with -record, writes it.
func keepHistory(t *testing.T, c *cell, name, workflowID string) {
	t.Helper()
	c.awaitRunEnd(workflowID)
	h := history(t, workflowID)
	r := worker.NewWorkflowReplayer()
	pregoworker.Register(r)
	require.NoError(t, r.ReplayWorkflowHistory(nil, h))
	writeHistory(t, name, h)
}
