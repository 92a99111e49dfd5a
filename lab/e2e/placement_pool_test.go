package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// TestPlacementPools gives an org dedicated servers by their tags: its pool keeps its tenants on them, the default pool
// keeps the others off, and unsatisfiable constraints create no server.
func TestPlacementPools(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: tenantVars(map[string]string{
		"PREGO_SHARED_PLACEMENT_LEGACY": "yes", "PLACEMENT_MAX_TENANTS_PER_NODE": "2",
		"PREGO_SCALE_OUT_THRESHOLD_PCT": "0", // no server is made ahead of need, which could take the last tenant
	})})
	c.org("skynet", "")
	c.org("acme", "")
	c.create("sky", prego.RoleApp, server.Spec{Tags: []string{"SkyNet", "staging"}})
	app, sky := c.sharedFleet(2), c.id("sky")
	c.awaitStatus("sky", server.Active)

	// What the hosts were tagged with comes back from them.
	var server api.Server
	eventually(t, func() bool {
		c.send(http.MethodGet, "/v1/servers/"+sky, nil, http.StatusOK, &server)
		return server.Agent.Tags != nil
	}, patience, 50*time.Millisecond)
	require.Equal(t, []string{"skynet", "staging"}, server.Tags)
	require.ElementsMatch(t, server.Tags, *server.Agent.Tags)
	require.False(t, *server.Agent.TagsDiffer)
	c.send(http.MethodPatch, "/v1/servers/"+sky, map[string]any{"tags": []string{}}, http.StatusConflict, nil)

	c.post("/v1/placement-pools", map[string]any{"name": "skynet", "require": []string{"SKYNET"}}, http.StatusCreated, nil)
	c.post("/v1/placement-pools", map[string]any{"name": "all-orgs", "disallow": []string{"skynet"}}, http.StatusCreated, nil)
	c.send(http.MethodPut, "/v1/placement-pools/all-orgs/default", nil, http.StatusOK, nil)
	c.send(http.MethodPut, "/v1/orgs/skynet/placement-pools/Skynet", nil, http.StatusOK, nil)
	c.send(http.MethodDelete, "/v1/placement-pools/skynet", nil, http.StatusConflict, nil)
	of := func(org string) func(map[string]any) { return func(m map[string]any) { m["org_id"] = org } }
	first := c.tenant("first", prego.PlanStarter, of("skynet"))
	other := c.tenant("other", prego.PlanStarter, of("acme"))
	require.Equal(t, sky, c.settledTenant(first, tenant.Active).Allocation.AppServerId)
	tn := c.settledTenant(other, tenant.Active)
	require.Equal(t, app, tn.Allocation.AppServerId)
	require.Equal(t, []string{"all-orgs"}, tn.Decision.DecisionLog.Constraint.PlacementPools)
	c.send(http.MethodPatch, "/v1/tenants/"+first, map[string]any{"constraint": map[string]any{}}, http.StatusConflict, nil)

	// A contradiction is accepted, waits, and creates no server, under any policy.
	servers := c.number(`SELECT count(*) FROM servers`)
	for _, policy := range []string{"shared", "one_tenant_one_server"} {
		id := c.tenant("never-"+policy[:3], prego.PlanStarter, func(m map[string]any) {
			m["policy"], m["stack"], m["constraint"] = policy, "lucid64", map[string]any{"disallow": []string{"stack:LUCID64"}}
		})
		tn := c.awaitTenant(id, "waiting", func(tn api.Tenant) bool { return deref(tn.StatusReason) == "cell_mismatch" })
		require.Equal(t, "cell_mismatch", deref(tn.Decision.Code))
		require.Contains(t, deref(tn.StatusMessage), "0 of 2 servers satisfy it", "the caller gets the counts")
		require.Equal(t, 2, tn.Decision.DecisionLog.Constraint.LookedAt)
		time.Sleep(2500 * time.Millisecond) // some sweeps and polls
		require.Equal(t, servers, c.number(`SELECT count(*) FROM servers`))
		c.post("/v1/tenants/"+id+"/cancel", nil, http.StatusAccepted, nil)
		c.awaitTenant(id, "cancelled", func(tn api.Tenant) bool { return tn.State == "failed" })
	}
	require.Zero(t, c.number(`SELECT count(*) FROM scaling_events`))

	// Full servers that satisfy it are another matter: one more of them is created.
	second := c.tenant("second", prego.PlanStarter, of("skynet"))
	require.Equal(t, sky, c.settledTenant(second, tenant.Active).Allocation.AppServerId)
	third := c.tenant("third", prego.PlanStarter, of("skynet"))
	tn = c.settledTenant(third, tenant.Active)
	require.Contains(t, tenantSteps(tn), "awaiting_capacity")
	require.NotEqual(t, sky, tn.Allocation.AppServerId)
	require.Equal(t, 1, c.number(`SELECT count(*) FROM servers WHERE server_id = $1 AND tags = '{skynet}' AND agent_tags = tags`, tn.Allocation.AppServerId))
	require.Equal(t, 1, c.number(`SELECT count(*) FROM allocation_snapshots WHERE tenant_id = $1 AND code = 'insufficient_resources'
		AND decision_log #>> '{constraint,servers_satisfying}' = '1'`, third))

	// A change of the pool is for the next tenant.
	c.send(http.MethodPut, "/v1/placement-pools/skynet", map[string]any{"disallow": []string{"skynet"}}, http.StatusOK, nil)
	fourth := c.tenant("fourth", prego.PlanStarter, of("skynet"))
	got := c.settledTenant(fourth, tenant.Active)
	var log string
	c.query(&log, `SELECT string_agg(decision_log::text, ' || ' ORDER BY created_at) FROM allocation_snapshots WHERE tenant_id = $1`, fourth)
	require.Equal(t, app, got.Allocation.AppServerId, "%s", log)
	require.Equal(t, sky, c.getTenant(first).Allocation.AppServerId)
	c.counted()
	c.settled()
}
