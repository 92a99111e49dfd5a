package activities_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// blueAndPlain is a fleet of one blue app server and a plain one with more room.
func blueAndPlain(t *testing.T) *placing {
	p := newPlacing(t, 4)
	p.Tagged("app-blue", "blue")
	p.Server("app-plain", prego.RoleApp, "")
	p.Exec(`UPDATE servers SET memory_pct = 60 WHERE server_id = 'app-blue'`)
	p.Server("db-0", prego.RoleDBShard, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	return p
}

// TestPoolsDecideWhereAnOrgLives: their constraints are united with the request's, also in
// simulations.
func TestPoolsDecideWhereAnOrgLives(t *testing.T) {
	t.Parallel()
	p := blueAndPlain(t)
	p.OrgPool("o1", "blue", prego.Constraint{Require: []string{"blue"}})
	placer := p.Placer(nil)
	mine, others := p.Tenant(prego.PlanStarter, nil), p.Tenant(prego.PlanStarter, func(r *tenant.CreateRequest) { r.OrgID = "o2" })
	d, err := placer.Place(t.Context(), p.Run(mine.TenantID), nil, "test")
	require.NoError(t, err)
	require.Equal(t, "app-blue", string(d.AppServerID))
	last, err := p.Store.LastDecision(t.Context(), mine.TenantID)
	require.NoError(t, err)
	require.JSONEq(t, `{"require":["blue"],"disallow":[],"placement_pools":["blue"],"servers_looked_at":2,"servers_satisfying":1,"unsatisfied":{"lacks blue":1}}`,
		jsonPath(t, last.Decision, "constraint"), "the decision explains itself")
	d, err = placer.Place(t.Context(), p.Run(others.TenantID), nil, "test")
	require.NoError(t, err)
	require.Equal(t, "app-plain", string(d.AppServerID))

	both := p.Tenant(prego.PlanStarter, func(r *tenant.CreateRequest) { r.Constraint.Disallow = []string{"blue"} })
	d, err = placer.Place(t.Context(), p.Run(both.TenantID), nil, "test")
	require.NoError(t, err)
	require.Equal(t, prego.CodeCellMismatch, d.Code, "the union contradicts itself")

	sim, err := placer.Simulate(t.Context(), []placement.Request{{TenantID: "x", OrgID: "o1", Region: "eu", Plan: prego.PlanStarter}, {TenantID: "y", OrgID: "o2", Region: "eu", Plan: prego.PlanStarter}})
	require.NoError(t, err)
	require.Equal(t, []string{"app-blue", "app-plain"}, []string{string(sim[0].AppServerID), string(sim[1].AppServerID)})
}

// TestAChangeOfAPoolIsForLaterPlacements, even when it comes between a decision and its
// reservation: then it is decided again.
func TestAChangeOfAPoolIsForLaterPlacements(t *testing.T) {
	t.Parallel()
	p := blueAndPlain(t)
	placer := p.Placer(nil)
	first, second := p.Tenant(prego.PlanStarter, nil), p.Tenant(prego.PlanStarter, nil)
	d, err := placer.Place(t.Context(), p.Run(first.TenantID), nil, "test")
	require.NoError(t, err)
	require.Equal(t, "app-plain", string(d.AppServerID))
	read := p.Run(second.TenantID)
	p.OrgPool("o1", "blue", prego.Constraint{Require: []string{"blue"}})
	d, err = placer.Place(t.Context(), read, nil, "test")
	require.NoError(t, err)
	require.Equal(t, "app-blue", string(d.AppServerID))
	require.Equal(t, "app-plain", string(p.Run(first.TenantID).Allocation.AppServerID), "a placed tenant keeps its place")
	p.Recount()
}

func TestOverridesGoAgainstAPoolOnlyWhenTheySaySo(t *testing.T) {
	t.Parallel()
	p := blueAndPlain(t)
	p.OrgPool("o1", "blue", prego.Constraint{Require: []string{"blue"}})
	placer := p.Placer(nil)
	tn := p.Tenant(prego.PlanStarter, nil)
	o := tenant.PlacementOverride{TenantID: tn.TenantID, ForceAppServerID: "app-plain", Reason: "r"}
	_, err := placer.Override(t.Context(), o, "alice")
	require.Equal(t, prego.CodeCellMismatch, prego.CodeOf(err))
	o.IgnoreConstraint = true
	d, err := placer.Override(t.Context(), o, "alice")
	require.NoError(t, err)
	require.Equal(t, "app-plain", string(d.AppServerID))
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM placement_overrides WHERE accepted AND ignore_constraint`))
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM allocation_snapshots WHERE (decision_log #>> '{constraint,ignored}')::boolean`))
}

// growing are steps that may ask for servers.
func (p *placing) growing() *steps {
	s := p.steps(p.Placer(nil))
	s.Settings.ScaleOutMaxRun, s.Settings.ScaleOutMaxRole = 10, 50
	return s
}

// TestScaleOutMakesServersThatTheWaitingCanUse: requests with a constraint get servers with the
// required tags, and a repeated plan is the same.
func TestScaleOutMakesServersThatTheWaitingCanUse(t *testing.T) {
	t.Parallel()
	p := blueAndPlain(t)
	p.OrgPool("o1", "blue", prego.Constraint{Require: []string{"blue"}})
	p.Exec(`UPDATE servers SET tenant_count = 20 WHERE role = 'app'`)
	s := p.growing()
	var ids []string
	for range 3 {
		tn := p.Tenant(prego.PlanStarter, nil)
		ids = append(ids, string(tn.TenantID))
		out, err := s.PlaceTenant(t.Context(), tenant.Ref{TenantID: tn.TenantID, Generation: 1})
		require.NoError(t, err)
		require.Equal(t, placement.AwaitingCapacity, out.Outcome)
	}
	require.Equal(t, 3, p.Number(`SELECT count(*) FROM tenants WHERE status_reason = 'awaiting_capacity' AND status_message LIKE '%1 of 2 servers satisfy it%'`))
	in := activities.ScaleOutInput{Region: "eu", Role: prego.RoleApp, Trigger: "scale_out_required", WorkflowID: "w", Key: "k1"}
	plan, err := s.PlanScaleOut(t.Context(), in)
	require.NoError(t, err)
	require.Len(t, plan.Servers, 1)
	require.Equal(t, 3, plan.Waiting)
	require.NoError(t, p.Store.DissociatePool(t.Context(), "o1", "blue"))
	again, err := s.PlanScaleOut(t.Context(), in)
	require.NoError(t, err)
	require.Equal(t, plan, again, "even if the pools have changed")
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM servers WHERE server_id = $1 AND tags = '{blue}'`, plan.Servers[0].ServerID))
	require.NoError(t, p.Store.AssociatePool(t.Context(), "o1", "blue", "test"))
	in.Key = "k2"
	none, err := s.PlanScaleOut(t.Context(), in)
	require.NoError(t, err)
	require.Empty(t, none.Servers, "one is on its way")
	p.Exec(`UPDATE servers SET status = 'active', agent_status = 'connected', memory_pct = 20 WHERE server_id = $1`, plan.Servers[0].ServerID)
	placed, err := s.ServeQueue(t.Context(), "eu")
	require.NoError(t, err)
	require.Equal(t, 3, placed)
	require.Equal(t, plan.Servers[0].ServerID, p.Run(prego.TenantID(ids[0])).Allocation.AppServerID)
}

// TestWithoutAServerThatSatisfiesNoneIsMade, unless a fleet's would be one.
func TestWithoutAServerThatSatisfiesNoneIsMade(t *testing.T) {
	t.Parallel()
	p := blueAndPlain(t)
	s := p.growing()
	ask := func(c prego.Constraint) tenant.Record {
		tn := p.Tenant(prego.PlanStarter, func(r *tenant.CreateRequest) { r.Constraint = c })
		out, err := s.PlaceTenant(t.Context(), tenant.Ref{TenantID: tn.TenantID, Generation: 1})
		require.NoError(t, err)
		require.Equal(t, placement.AwaitingCapacity, out.Outcome)
		return p.Run(tn.TenantID)
	}
	key := 0
	made := func() []activities.ServerRef {
		key++
		plan, err := s.PlanScaleOut(t.Context(), activities.ScaleOutInput{Region: "eu", Role: prego.RoleApp, Trigger: "scale_out_required", WorkflowID: "w", Key: string(rune('a' + key))})
		require.NoError(t, err)
		return plan.Servers
	}
	for _, c := range []prego.Constraint{{Require: []string{"green"}}, {Require: []string{"blue"}, Disallow: []string{"blue"}}} {
		tn := ask(c)
		require.Equal(t, prego.ReasonCellMismatch, tn.StatusReason)
		require.Contains(t, tn.StatusMessage, "0 of 2 servers satisfy it")
		require.Empty(t, made())
	}
	s.FleetTags = func(context.Context, prego.Region, prego.Role) ([][]string, error) {
		return [][]string{{"red"}, {"green", "new"}}, nil
	}
	tn := ask(prego.Constraint{Require: []string{"green"}})
	require.Equal(t, prego.ReasonCellMismatch, tn.StatusReason)
	servers := made()
	require.Len(t, servers, 1)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM servers WHERE server_id = $1 AND tags = '{green,new}'`, servers[0].ServerID), "as the fleet makes them")
	ask(prego.Constraint{Require: []string{"blue"}, Disallow: []string{"blue"}})
	require.Empty(t, made(), "no fleet's would")
}

// TestNothingIsAskedForInTheDark: without the demand and the fleets' plans, no server is requested.
// An unsatisfiable constraint does not block others.
func TestNothingIsAskedForInTheDark(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	s := p.growing()
	plan := func() (activities.ScaleOutPlan, error) {
		return s.PlanScaleOut(t.Context(), activities.ScaleOutInput{Region: "eu", Role: prego.RoleApp, Trigger: "scale_out_required", WorkflowID: "w", Key: "k"})
	}
	waits := func(c prego.Constraint) {
		tn := p.Tenant(prego.PlanStarter, func(r *tenant.CreateRequest) { r.Constraint = c })
		require.NoError(t, p.Store.AwaitTenant(t.Context(), tenant.Ref{TenantID: tn.TenantID, Generation: 1}, prego.ReasonCellMismatch, "", []prego.Role{prego.RoleApp}, "", true))
	}
	waits(prego.Constraint{Require: []string{"green"}})
	s.Store = p.stumbling("AS dedicated")
	_, err := plan()
	require.ErrorIs(t, err, errStore)
	s.Store = p.Store
	away := errors.New("away")
	s.FleetTags = func(context.Context, prego.Region, prego.Role) ([][]string, error) { return nil, away }
	_, err = plan()
	require.ErrorIs(t, err, away)
	require.Zero(t, p.Number(`SELECT count(*) FROM servers`))

	s.FleetTags = nil
	waits(prego.Constraint{Require: []string{"blue"}, Disallow: []string{"blue"}})
	out, err := plan()
	require.NoError(t, err)
	require.Equal(t, 2, out.Waiting)
	require.Len(t, out.Servers, 1)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM servers WHERE tags = '{green}'`))
}

// TestATenantsOwnServerHasTheTagsThatItsPoolsRequire, and asking again, after they
// changed, asks for the same server.
func TestATenantsOwnServerHasTheTagsThatItsPoolsRequire(t *testing.T) {
	t.Parallel()
	p := blueAndPlain(t)
	p.OrgPool("o1", "green", prego.Constraint{Require: []string{"green"}})
	s := p.growing()
	tn := p.Tenant(prego.PlanStarter, func(r *tenant.CreateRequest) {
		r.Policy, r.Constraint.Require = tenant.ModeOneTenantOneServer, []string{"own"}
	})
	in := activities.OwnServerInput{Tenant: tenant.Ref{TenantID: tn.TenantID, Generation: 1}, Try: 1}
	first, err := s.RequestOwnServer(t.Context(), in)
	require.NoError(t, err)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM servers WHERE server_id = $1 AND tags = '{green,own}'`, first.ServerID))
	require.NoError(t, p.Store.DissociatePool(t.Context(), "o1", "green"))
	again, err := s.RequestOwnServer(t.Context(), in)
	require.NoError(t, err)
	require.Equal(t, first, again)
}

func jsonPath(t *testing.T, doc []byte, field string) string {
	t.Helper()
	var m map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(doc, &m))
	return string(m[field])
}
