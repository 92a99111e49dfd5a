package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/tenant"
	pregoworker "github.com/prego/prego/worker"
)

// runOf finds the id of a run of this cell by its type.
func (c *cell) runOf(workflowType string) string {
	c.t.Helper()
	var id string
	eventually(c.t, func() bool {
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
	c := newCell(t, options{vars: sharedVars(), set: func(cfg *config.Config) { cfg.Worker.NetEvery = 2 * time.Second }})
	c.org("acme", "")
	// From nothing: it waits while app server, shard and pool are made.
	waited := c.tenant("waited", prego.PlanStarter, nil)
	c.settledTenant(waited, tenant.Active)
	keepHistory(t, c, "tenant-waited", tenant.ProvisionWorkflowID(prego.TenantID(waited)))
	keepHistory(t, c, "scale-out", c.runOf("ScaleOut"))
	app := c.getTenant(waited).Allocation.AppServerId
	c.awaitSites(app, 2)
	keepHistory(t, c, "refill", tenant.RefillWorkflowID(prego.ServerID(app)))

	promoted := c.tenant("promoted", prego.PlanStarter, func(m map[string]any) { m["apps"] = []string{"erpnext"} })
	c.settledTenant(promoted, tenant.Active)
	keepHistory(t, c, "tenant-opened", tenant.ProvisionWorkflowID(prego.TenantID(promoted)))
	c.awaitSites(app, 2)
	plain := c.tenant("plain", prego.PlanStarter, nil)
	c.settledTenant(plain, tenant.Active)
	keepHistory(t, c, "tenant-promoted", tenant.ProvisionWorkflowID(prego.TenantID(plain)))
	c.ask(promoted, "suspend")
	c.settledTenant(promoted, tenant.Suspended)
	keepHistory(t, c, "tenant-suspended", tenant.ChangeWorkflowID(prego.TenantID(promoted)))
	c.ask(promoted, "cancel")
	c.settledTenant(promoted, tenant.GracePeriod)
	c.expire(promoted)
	c.settledTenant(promoted, tenant.Terminated)
	keepHistory(t, c, "tenant-terminated", tenant.ChangeWorkflowID(prego.TenantID(promoted)))
	c.expire(promoted)
	c.settledTenant(promoted, tenant.DataPurged)
	keepHistory(t, c, "tenant-erased", tenant.ChangeWorkflowID(prego.TenantID(promoted)))

	c.awaitSites(app, 2)
	c.inject(sim.Fault{Kind: "bench", Verb: "clear-cache", Action: "fail", Message: "no", Times: 2})
	failed := c.tenant("failed", prego.PlanStarter, nil)
	c.awaitTenant(failed, "failed", func(tn api.Tenant) bool { return tn.State == "failed" })
	keepHistory(t, c, "tenant-failed", tenant.ProvisionWorkflowID(prego.TenantID(failed)))

	own := c.tenant("own", prego.PlanBusiness, func(m map[string]any) { m["policy"] = "one_tenant_one_server" })
	c.settledTenant(own, tenant.Active)
	keepHistory(t, c, "tenant-own-server", tenant.ProvisionWorkflowID(prego.TenantID(own)))

	c.send("PUT", "/v1/warm-pools/eu/starter", map[string]int{"target": 1}, 202, nil)
	keepHistory(t, c, "warm-pool", tenant.WarmPoolWorkflowID(c.env, "eu", "starter"))

	picky := c.tenant("picky", prego.PlanStarter, func(m map[string]any) { m["constraint"] = map[string]any{"require": []string{"blue"}} })
	c.awaitTenant(picky, "waiting", func(tn api.Tenant) bool { return deref(tn.StatusReason) == "cell_mismatch" })
	c.ask(picky, "cancel")
	c.awaitTenant(picky, "failed", func(tn api.Tenant) bool { return tn.State == "failed" })
	keepHistory(t, c, "tenant-queued", tenant.ProvisionWorkflowID(prego.TenantID(picky)))
	keepHistory(t, c, "sweep-tenants", c.runOf("SweepTenants"))
	keepHistory(t, c, "measure-sites", c.runOf("MeasureSites"))
}

// keepHistory checks that a run's history replays and, with -record, writes it.
func keepHistory(t *testing.T, c *cell, name, workflowID string) {
	t.Helper()
	c.awaitRunEnd(workflowID)
	h := history(t, workflowID)
	r, err := pregoworker.Replayer()
	require.NoError(t, err)
	require.NoError(t, r.ReplayWorkflowHistory(nil, h))
	writeHistory(t, name, h)
}
