package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	historypb "go.temporal.io/api/history/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	pregoworker "github.com/prego/prego/worker"
)

func fleetVars(more map[string]string) map[string]string {
	vars := map[string]string{"PREGO_FLEET_PARALLEL": "4"}
	maps.Copy(vars, more)
	return vars
}

// fleet makes a fleet that is spread over regions by weight, with a deletion policy.
func (c *cell) fleet(id string, role prego.Role, regions []map[string]any, more map[string]any) {
	c.t.Helper()
	body := map[string]any{"fleet_id": id, "role": role, "infra_provider": "hetzner"}
	maps.Copy(body, more)
	c.post("/v1/fleets", body, http.StatusCreated, nil)
	if regions != nil {
		c.post("/v1/policies", map[string]any{"policy_id": id + "-spread", "type": "region_placement", "spec": map[string]any{"regions": regions}}, http.StatusCreated, nil)
		c.send(http.MethodPut, "/v1/fleets/"+id+"/policies/"+id+"-spread", map[string]any{}, http.StatusOK, nil)
	}
}

func (c *cell) act(fleet, action string, inputs map[string]any) api.FleetActionAccepted {
	c.t.Helper()
	var out api.FleetActionAccepted
	c.post("/v1/fleets/"+fleet+"/actions", map[string]any{"action": action, "inputs": inputs}, http.StatusAccepted, &out)
	return out
}

func (c *cell) action(fleet string, seq int) (a api.FleetAction) {
	c.t.Helper()
	c.send(http.MethodGet, fmt.Sprintf("/v1/fleets/%s/actions/%d", fleet, seq), nil, http.StatusOK, &a)
	return a
}

func (c *cell) awaitAction(fleet string, seq int, status string) (a api.FleetAction) {
	c.t.Helper()
	eventually(c.t, func() bool {
		a = c.action(fleet, seq)
		return a.FinishedAt != nil
	}, patience, 100*time.Millisecond, "action %d of %s never ended: %+v", seq, fleet, &a)
	require.EqualValues(c.t, status, a.Status, "%s: %s %s", a.Data, deref(a.Reason), deref(a.Message))
	return a
}

func (c *cell) getFleet(id string) (f api.Fleet) {
	c.t.Helper()
	c.send(http.MethodGet, "/v1/fleets/"+id, nil, http.StatusOK, &f)
	return f
}

func weighted(name string, weight, limit int) map[string]any {
	return map[string]any{"name": name, "weight": weight, "cap": limit}
}

// TestFleetGrowsShrinksAndIsReplaced walks a fleet over three regions through every
// action, with a cap that binds.
func TestFleetGrowsShrinksAndIsReplaced(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: fleetVars(nil)})
	c.fleet("pool", prego.RoleRedisPool, []map[string]any{weighted("eu", 50, -1), weighted("us", 25, 1), weighted("sg", 25, -1)}, map[string]any{"max_size": 7})

	var tried struct{ Plan api.FleetActionPlan }
	c.post("/v1/fleets/pool/actions?dry_run=true", map[string]any{"action": "CLUSTER_SCALE_OUT", "inputs": map[string]any{"count": 5}}, http.StatusOK, &tried)
	require.JSONEq(t, `{"status":"OK","creation":{"count":5,"regions":{"eu":3,"us":1,"sg":1}}}`, string(tried.Plan.Data))
	require.Zero(t, c.getFleet("pool").Size, "a dry run does nothing")

	// Two concurrent ones: the second waits for the first.
	first := c.act("pool", "CLUSTER_SCALE_OUT", map[string]any{"count": 3})
	second := c.act("pool", "CLUSTER_RESIZE", map[string]any{"adjustment_type": "EXACT_CAPACITY", "number": 5})
	a := c.awaitAction("pool", first.Seq, "succeeded")
	require.JSONEq(t, `{"status":"OK","creation":{"count":3,"regions":{"eu":1,"us":1,"sg":1}}}`, string(a.Data))
	a = c.awaitAction("pool", second.Seq, "succeeded")
	require.JSONEq(t, `{"status":"OK","creation":{"count":2,"regions":{"eu":2}}}`, string(a.Data))
	require.False(t, a.StartedAt.Before(*c.action("pool", first.Seq).FinishedAt), "one at a time")
	f := c.getFleet("pool")
	require.Equal(t, map[string]int64{"eu": 3, "us": 1, "sg": 1}, f.Regions)
	require.EqualValues(t, 5, f.DesiredCapacity)

	a = c.awaitAction("pool", c.act("pool", "CLUSTER_SCALE_OUT", map[string]any{"count": 3}).Seq, "failed")
	require.Equal(t, "target_above_fleet_max_size", deref(a.Reason))

	// The oldest go first, in each region.
	c.post("/v1/policies", map[string]any{"policy_id": "oldest", "type": "deletion", "spec": map[string]any{"criteria": "OLDEST_FIRST"}}, http.StatusCreated, nil)
	c.send(http.MethodPut, "/v1/fleets/pool/policies/oldest", map[string]any{}, http.StatusOK, nil)
	a = c.awaitAction("pool", c.act("pool", "CLUSTER_SCALE_IN", map[string]any{"count": 2}).Seq, "succeeded")
	require.Len(t, *a.Steps, 2)
	require.EqualValues(t, 3, c.getFleet("pool").Size)
	require.Len(t, c.billed("server"), 3)

	// New tags come with new servers, one more than there are at a time.
	c.send(http.MethodPatch, "/v1/fleets/pool", map[string]any{"spec": map[string]any{"tags": []string{"stack:jammy"}}}, http.StatusOK, nil)
	old := map[string]bool{}
	for _, e := range c.billed("server") {
		old[e.Name] = true
	}
	a = c.awaitAction("pool", c.act("pool", "CLUSTER_REPLACE", map[string]any{"max_surge": 1}).Seq, "succeeded")
	require.Len(t, *a.Steps, 6)
	for _, e := range c.billed("server") {
		require.False(t, old[e.Name], "%s is of the old profile", e.Name)
	}
	require.Equal(t, 3, c.number(`SELECT count(*) FROM servers WHERE fleet_id = 'pool' AND status = 'active' AND tags = '{stack:jammy}'`))

	a = c.awaitAction("pool", c.act("pool", "NODE_CREATE", map[string]any{"region": "us"}).Seq, "succeeded")
	require.EqualValues(t, "us", (*a.Steps)[0].Region, "the node's own region takes precedence, also over a cap")
	status, body := c.request(http.MethodDelete, "/v1/fleets/pool", nil)
	require.Equal(t, http.StatusConflict, status, "%s", body)
	require.Contains(t, string(body), "fleet_not_empty")
	c.awaitAction("pool", c.act("pool", "CLUSTER_RESIZE", map[string]any{"adjustment_type": "EXACT_CAPACITY", "number": 0}).Seq, "succeeded")
	require.Empty(t, c.sim.Ledger(true))
	c.send(http.MethodDelete, "/v1/fleets/pool", nil, http.StatusNoContent, nil)
	c.settled()
}

// TestFleetPlansAroundSoldOutRegions, also when the worker dies midway.
func TestFleetPlansAroundSoldOutRegions(t *testing.T) {
	t.Parallel()
	points := deep.Some(t, 1, []string{"fleet/planned", "fleet/requested", "create/called"})
	for i, point := range append(points, "") {
		fleet := fmt.Sprintf("wide-%d", i) // the cells share Temporal, and with it the ids of runs
		t.Run("killed at "+point, func(t *testing.T) {
			t.Parallel()
			crash := filepath.Join(t.TempDir(), "crash")
			c := newCell(t, options{vars: fleetVars(map[string]string{"PREGO_TEST_CRASH": crash, "PREGO_PACE": "0.01"})})
			c.sim.SetStock("*", "ash", false)
			c.sim.SetStock("*", "hil", false)
			c.fleet(fleet, prego.RoleRedisPool, []map[string]any{weighted("eu", 100, -1), weighted("us", 100, -1), weighted("sg", 100, -1)}, nil)
			if point != "" {
				require.NoError(t, os.WriteFile(crash, []byte(point), 0o600))
			}
			got := c.act(fleet, "CLUSTER_SCALE_OUT", map[string]any{"count": 4})
			if point != "" {
				select {
				case <-c.procs["worker"].Done():
				case <-time.After(patience):
					t.Fatal("the worker never came to the point where it was to die")
				}
				delete(c.procs, "worker")
				c.start("worker")
			}
			a := c.awaitAction(fleet, got.Seq, "succeeded")
			require.JSONEq(t, `{"status":"OK","creation":{"count":4,"regions":{"eu":2,"sg":2}}}`, string(a.Data))
			require.Equal(t, map[string]int64{"eu": 2, "sg": 2}, c.getFleet(fleet).Regions)
			require.Len(t, c.billed("server"), 4, "none is lost, and none is extra")
			require.Equal(t, 4, c.number(`SELECT count(*) FROM servers WHERE fleet_id = $1 AND status = 'active'`, fleet))
			c.settled()
		})
	}
}

// TestFleetKeepsServersThatHaveTenants: a server before its removal accepts no new tenants, and is kept when its
// tenants are still there at the end of the grace period. They leave where they can.
func TestFleetKeepsServersThatHaveTenants(t *testing.T) {
	t.Parallel()
	vars := sharedVars()
	maps.Copy(vars, fleetVars(nil))
	c := newCell(t, options{vars: vars})
	c.org("acme", "")
	id := c.tenant("alpha", prego.PlanStarter, nil)
	tn := c.settledTenant(id, tenant.Active)
	home := tn.Allocation.AppServerId
	require.Equal(t, "tenants-app", c.fleetOf(home), "what tenants need is made by a fleet")
	c.post("/v1/policies", map[string]any{"policy_id": "patient", "type": "deletion", "spec": map[string]any{"criteria": "OLDEST_FIRST", "grace_period": 2}}, http.StatusCreated, nil)
	c.send(http.MethodPut, "/v1/fleets/tenants-app/policies/patient", map[string]any{}, http.StatusOK, nil)
	shrink := c.act("tenants-app", "CLUSTER_RESIZE", map[string]any{"adjustment_type": "EXACT_CAPACITY", "number": 0})
	eventually(t, func() bool {
		return c.number(`SELECT count(*) FROM servers WHERE server_id = $1 AND cordoned_at IS NOT NULL`, home) == 1
	}, patience, 10*time.Millisecond)
	a := c.awaitAction("tenants-app", shrink.Seq, "failed")
	require.Equal(t, "server_has_tenants", deref(a.Reason))
	require.Equal(t, 1, c.number(`SELECT count(*) FROM servers WHERE server_id = $1 AND cordoned_at IS NULL AND status = 'active'`, home))
	require.EqualValues(t, "active", c.getTenant(id).State)

	// With an hour of grace the queue would stand still; cancelling does not wait for it.
	c.send(http.MethodPut, "/v1/policies/patient", map[string]any{"spec": map[string]any{"grace_period": 3600}}, http.StatusOK, nil)
	shrink = c.act("tenants-app", "CLUSTER_RESIZE", map[string]any{"adjustment_type": "EXACT_CAPACITY", "number": 0})
	eventually(t, func() bool {
		return c.number(`SELECT count(*) FROM servers WHERE server_id = $1 AND cordoned_at IS NOT NULL`, home) == 1
	}, patience, 10*time.Millisecond)
	c.post(fmt.Sprintf("/v1/fleets/tenants-app/actions/%d/cancel", shrink.Seq), nil, http.StatusAccepted, nil)
	c.awaitAction("tenants-app", shrink.Seq, "cancelled")
	require.Equal(t, 1, c.number(`SELECT count(*) FROM servers WHERE server_id = $1 AND cordoned_at IS NULL AND status = 'active'`, home))

	// Where its site has object storage to go through, it moves: of two servers with tenants the older one goes.
	c.vars = backupVars(s3test.Start(t), c.vars)
	c.vars["PREGO_MOVE_GRACE"] = "200ms"
	c.stop("worker", "api")
	c.start("worker", "api")
	c.awaitAction("tenants-app", c.act("tenants-app", "NODE_CREATE", map[string]any{"region": "eu"}).Seq, "succeeded")
	c.post("/v1/servers/"+home+"/cordon", nil, http.StatusOK, nil)
	beta := c.tenant("beta", prego.PlanStarter, nil)
	next := c.settledTenant(beta, tenant.Active).Allocation.AppServerId
	require.NotEqual(t, home, next)
	c.post("/v1/servers/"+home+"/uncordon", nil, http.StatusOK, nil)
	w := c.typist(home, id, "alpha.sites.test")
	w.more(3)
	a = c.awaitAction("tenants-app", c.act("tenants-app", "CLUSTER_SCALE_IN", map[string]any{"count": 1}).Seq, "succeeded")
	require.Equal(t, home, (*a.Steps)[0].ServerId)
	tn = c.settledTenant(id, tenant.Active)
	require.Equal(t, next, tn.Allocation.AppServerId)
	require.Contains(t, c.hostSites(prego.ServerID(next)), "alpha.sites.test")
	rows, _ := w.ends(c, next, tn.Allocation.DatabaseName)
	require.GreaterOrEqual(t, rows, 3)
	require.Equal(t, 1, c.number(`SELECT count(*) FROM tenant_moves WHERE tenant_id = $1 AND state = 'done' AND switched_at IS NOT NULL`, id))
	require.EqualValues(t, 1, c.getFleet("tenants-app").Size)
	for _, e := range c.billed("server") {
		require.NotContains(t, e.Name, home)
	}
	c.counted()
	c.settled()
}

func (c *cell) fleetOf(server string) (fleet string) {
	c.t.Helper()
	c.query(&fleet, `SELECT COALESCE(fleet_id, '') FROM servers WHERE server_id = $1`, server)
	return fleet
}

// TestScaleOutForTenantsHoldsAFleetsCaps: the fleet that serves tenants is full, so
// that they wait, until it may grow.
func TestScaleOutForTenantsHoldsAFleetsCaps(t *testing.T) {
	t.Parallel()
	vars := tenantVars(nil)
	maps.Copy(vars, fleetVars(nil))
	c := newCell(t, options{vars: vars})
	c.org("acme", "")
	c.send(http.MethodPatch, "/v1/fleets/tenants-node", map[string]any{"max_size": 1}, http.StatusOK, nil)
	first := c.tenant("alpha", prego.PlanStarter, nil)
	c.settledTenant(first, tenant.Active)
	second := c.tenant("beta", prego.PlanStarter, nil)
	time.Sleep(2 * time.Second) // its requests fail
	require.EqualValues(t, "provisioning", c.getTenant(second).State)
	require.Len(t, c.billed("server"), 1)
	c.send(http.MethodPatch, "/v1/fleets/tenants-node", map[string]any{"max_size": 2}, http.StatusOK, nil)
	c.settledTenant(second, tenant.Active)
	require.Len(t, c.billed("server"), 2)
	c.counted()
	c.settled()
}

// TestActionIsCancelled: unstarted steps are left out.
func TestActionIsCancelled(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: fleetVars(map[string]string{"PREGO_FLEET_PARALLEL": "1"}), sim: func(cfg *sim.Config) { cfg.Profile.Boot = time.Second }})
	c.fleet("slow", prego.RoleRedisPool, nil, map[string]any{"region": "eu"})
	a := c.act("slow", "CLUSTER_SCALE_OUT", map[string]any{"count": 5})
	queued := c.act("slow", "CLUSTER_SCALE_OUT", map[string]any{})
	eventually(t, func() bool { return len(c.billed("server")) > 0 }, patience, 20*time.Millisecond)
	c.post(fmt.Sprintf("/v1/fleets/slow/actions/%d/cancel", queued.Seq), nil, http.StatusAccepted, nil)
	c.post(fmt.Sprintf("/v1/fleets/slow/actions/%d/cancel", a.Seq), nil, http.StatusAccepted, nil)
	c.awaitAction("slow", a.Seq, "cancelled")
	c.awaitAction("slow", queued.Seq, "cancelled")
	n := len(c.billed("server"))
	require.Less(t, n, 5)
	require.EqualValues(t, n, c.getFleet("slow").Size)
	c.settled()
}

// TestRecordFleetHistories does for fleets what TestRecordHistories does for servers.
func TestRecordFleetHistories(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: fleetVars(nil)})
	c.sim.SetStock("*", "ash", false)
	c.sim.SetStock("*", "hil", false)
	c.fleet("wide", prego.RoleRedisPool, []map[string]any{weighted("eu", 1, -1), weighted("us", 1, -1)}, nil)
	c.awaitAction("wide", c.act("wide", "CLUSTER_SCALE_OUT", map[string]any{"count": 2}).Seq, "succeeded")
	keepActionHistory(t, c, "fleet-replans", "wide", 1)
	c.send(http.MethodPatch, "/v1/fleets/wide", map[string]any{"spec": map[string]any{"tags": []string{"new"}}}, http.StatusOK, nil)
	c.awaitAction("wide", c.act("wide", "CLUSTER_REPLACE", map[string]any{}).Seq, "succeeded")
	keepActionHistory(t, c, "fleet-replaced", "wide", 2)
	c.awaitAction("wide", c.act("wide", "CLUSTER_SCALE_IN", map[string]any{"count": 2}).Seq, "succeeded")
	keepActionHistory(t, c, "fleet-shrinks", "wide", 3)
	c.awaitAction("wide", c.act("wide", "CLUSTER_SCALE_IN", map[string]any{"count": 2}).Seq, "failed")
	keepActionHistory(t, c, "fleet-refused", "wide", 4)
	keepHistory(t, c, "fleet-idle", server.FleetWorkflowID(c.env, "wide"))
	c.settled()
}

// keepActionHistory is keepHistory for the run that carried out an action.
func keepActionHistory(t *testing.T, c *cell, name, fleet string, seq int) {
	t.Helper()
	ctx := context.Background()
	var run *historypb.History
	eventually(t, func() bool {
		r, err := temporalClient.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
			Query: "TaskQueue = '" + c.vars["TEMPORAL_TASK_QUEUE"] + "' AND WorkflowId = '" + server.FleetWorkflowID(c.env, prego.FleetID(fleet)) + "' AND ExecutionStatus = 'ContinuedAsNew'",
		})
		if err != nil || len(r.Executions) < seq {
			return false
		}
		slices.SortFunc(r.Executions, func(a, b *workflowpb.WorkflowExecutionInfo) int {
			return a.StartTime.AsTime().Compare(b.StartTime.AsTime())
		})
		run = historyOf(t, server.FleetWorkflowID(c.env, prego.FleetID(fleet)), r.Executions[seq-1].Execution.RunId)
		return true
	}, patience, 100*time.Millisecond, "the run of action %d", seq)
	r, err := pregoworker.Replayer()
	require.NoError(t, err)
	require.NoError(t, r.ReplayWorkflowHistory(nil, run))
	writeHistory(t, name, run)
}
