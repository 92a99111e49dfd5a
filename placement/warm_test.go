package placement_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// TestWarmNodesTakeTheirPlan: a node that was made ahead takes a tenant of its plan that has a server alone, and then
// that tenant, whatever its plan becomes.
func TestWarmNodesTakeTheirPlan(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		warm  prego.Plan
		owner prego.TenantID
		mode  tenant.PlacementMode
		takes bool
	}{
		"its plan":                {prego.PlanStarter, "", tenant.ModeOneTenantOneServer, true},
		"another plan":            {prego.PlanBusiness, "", tenant.ModeOneTenantOneServer, false},
		"its plan, beside others": {prego.PlanStarter, "", tenant.ModeShared, false},
		"its tenant":              {prego.PlanBusiness, "t", tenant.ModeOneTenantOneServer, true},
		"another tenant's":        {prego.PlanStarter, "u", tenant.ModeOneTenantOneServer, false},
	} {
		d := fleet()
		warm(&d)
		d.Servers, d.Shards, d.Pools = d.Servers[2:], d.Shards[1:], d.Pools[1:]
		d.Servers[0].WarmPlan = tc.warm
		d.Servers[0].DedicatedFor, d.Shards[0].DedicatedFor, d.Pools[0].DedicatedFor = tc.owner, tc.owner, tc.owner
		got := placement.NewSnapshot(shared(), d).Decide(request(func(r *placement.Request) { r.Mode = tc.mode }))
		require.Equal(t, tc.takes, got.PlacesTenant(), "%s: %s", name, got.SelectionReason)
	}
}
