package e2e

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/tenant"
)

// loseRun ends a tenant's run as if Temporal had lost it.
func (c *cell) loseRun(tenantID prego.TenantID) {
	c.t.Helper()
	require.NoError(c.t, temporalClient.TerminateWorkflow(context.Background(), tenant.ProvisionWorkflowID(tenantID), "", "lost"))
}

func (c *cell) failedTenant(id string, reason prego.Reason) api.Tenant {
	c.t.Helper()
	tn := c.awaitTenant(id, "failed", func(tn api.Tenant) bool { return tn.State == "failed" })
	require.Equal(c.t, string(reason), deref(tn.StatusReason), "%s", deref(tn.StatusMessage))
	return tn
}

// ownServersGone waits until the servers that were made for a tenant are no more.
func (c *cell) ownServersGone(id string) {
	c.t.Helper()
	eventually(c.t, func() bool {
		return c.number(`SELECT count(*) FROM servers WHERE server_id LIKE 'n-' || $1 || '-%' AND status <> 'terminated'`, id) == 0
	}, patience, 50*time.Millisecond)
}

// TestCancelWithALostRunLeavesNoServer cancels a tenant whose server is created by a separate run, when the tenant's
// run is lost, and when the sweep has started another.
func TestCancelWithALostRunLeavesNoServer(t *testing.T) {
	t.Parallel()
	for name, found := range map[string]bool{"lost": false, "lost and found": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCell(t, options{vars: tenantVars(nil)})
			c.inject(sim.Fault{Kind: "no_cloud_init", Times: 1})
			c.org("acme", "")
			id := c.tenant("alpha", prego.PlanStarter, nil)
			c.awaitTenant(id, "building its server", func(api.Tenant) bool { return c.sim.Faults()[0].Hits == 1 })
			c.loseRun(prego.TenantID(id))
			if found {
				c.awaitTenant(id, "restarted", func(tn api.Tenant) bool { return slices.Contains(tenantSteps(tn), "workflow_restarted") })
			}
			c.post("/v1/tenants/"+id+"/cancel", nil, http.StatusAccepted, nil)
			c.failedTenant(id, prego.ReasonCancelled)
			c.ownServersGone(id)
			c.counted()
			c.settled()
		})
	}
}

// TestSiteFailureOnADedicatedServer: the server goes, and another is created. When that one also fails, the
// tenant reports the site as the cause.
func TestSiteFailureOnADedicatedServer(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: tenantVars(nil)})
	c.inject(sim.Fault{Kind: "bench", Verb: "new-site", Action: "fail", Message: "mariadb is down", Times: 3})
	c.org("acme", "")
	id := c.tenant("alpha", prego.PlanStarter, nil)
	tn := c.failedTenant(id, prego.ReasonFailedSite)
	require.Contains(t, deref(tn.StatusMessage), "mariadb is down")
	c.ownServersGone(id)
	c.post("/v1/tenants/"+id+"/retry", nil, http.StatusAccepted, nil)
	tn = c.settledTenant(id, tenant.Active)
	require.Equal(t, "n-"+id+"-g2-2", tn.Allocation.AppServerId, "the third fault cost one more")
	c.counted()
	c.settled()
}

// TestAWaitingTenantsTimeEndsWithoutARun: the run of a tenant without a place has ended, and the row ends its waiting.
func TestAWaitingTenantsTimeEndsWithoutARun(t *testing.T) {
	t.Parallel()
	vars := sharedVars()
	vars["PREGO_TENANT_CAPACITY_WAIT"] = "4s"
	c := newCell(t, options{vars: vars})
	c.policies(0, 0)
	c.org("acme", "")
	c.sharedFleet(0)
	picky := c.tenant("picky", prego.PlanStarter, func(m map[string]any) { m["constraint"] = map[string]any{"require": []string{"blue"}} })
	c.awaitTenant(picky, "waiting", func(tn api.Tenant) bool { return deref(tn.StatusReason) == "cell_mismatch" })
	run := temporalClient.GetWorkflow(context.Background(), tenant.ProvisionWorkflowID(prego.TenantID(picky)), "")
	require.NoError(t, run.Get(context.Background(), nil))
	tn := c.failedTenant(picky, prego.ReasonFailedCapacity)
	require.NotContains(t, tenantSteps(tn), "workflow_restarted")
}
