package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/placement/scale"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// newFleet makes a fleet of redis pools, with a policy of each spec given.
func newFleet(t testing.TB, s *Store, id prego.FleetID, change func(*server.CreateFleetRequest), policies map[server.PolicyType]string) server.Fleet {
	t.Helper()
	ctx := context.Background()
	r := server.CreateFleetRequest{FleetID: id, Role: prego.RoleRedisPool, Region: prego.RegionEU, InfraProvider: prego.ProviderHetzner}
	if change != nil {
		change(&r)
	}
	require.NoError(t, r.Validate())
	f, created, err := s.CreateFleet(ctx, r, "test")
	require.NoError(t, err)
	require.True(t, created)
	for kind, raw := range policies {
		f = attach(t, s, id, fmt.Sprintf("%s-%s", id, strings.ReplaceAll(string(kind), "_", "-")), kind, raw)
	}
	return f
}

func attach(t testing.TB, s *Store, fleet prego.FleetID, policy string, kind server.PolicyType, raw string) server.Fleet {
	t.Helper()
	ctx := context.Background()
	spec, err := scale.ParsePolicy(kind, json.RawMessage(raw))
	require.NoError(t, err)
	_, _, err = s.CreatePolicy(ctx, server.FleetPolicy{PolicyID: prego.PolicyID(policy), Type: kind, Spec: spec, CreatedBy: "test"})
	require.NoError(t, err)
	f, err := s.AttachPolicy(ctx, fleet, prego.PolicyID(policy), nil, true)
	require.NoError(t, err)
	return f
}

func ask(t testing.TB, s *Store, fleet string, action server.FleetActionKind, inputs string) server.FleetAction {
	t.Helper()
	a, err := s.RequestFleetAction(context.Background(), server.FleetActionRequest{FleetID: prego.FleetID(fleet), Action: action, Inputs: json.RawMessage(inputs), Cause: "operator", By: "test"}, scale.Plan)
	require.NoError(t, err)
	return a
}

func begin(t testing.TB, s *Store, fleet string) server.FleetAction {
	t.Helper()
	a, err := s.BeginFleetAction(context.Background(), prego.FleetID(fleet), scale.Plan)
	require.NoError(t, err)
	require.NotNil(t, a)
	return *a
}

func batch(t testing.TB, s *Store, fleet string, seq, limit int) []server.FleetStep {
	t.Helper()
	b, err := s.NextFleetBatch(context.Background(), prego.FleetID(fleet), seq, limit)
	require.NoError(t, err)
	return b.Steps
}

// results report how a batch went: it succeeded, except for the servers named.
func results(steps []server.FleetStep, state server.FleetStepState, but ...string) (out []server.FleetStepResult) {
	for _, st := range steps {
		r := server.FleetStepResult{ServerID: st.ServerID, Op: st.Op, State: server.FleetStepDone}
		for _, id := range but {
			if prego.ServerID(id) == st.ServerID {
				r.State, r.Message = state, "no stock"
			}
		}
		out = append(out, r)
	}
	return out
}

func record(t testing.TB, s *Store, fleet string, seq int, r []server.FleetStepResult) {
	t.Helper()
	require.NoError(t, s.RecordFleetSteps(context.Background(), prego.FleetID(fleet), seq, r, scale.Replan))
}

// live makes a fleet's servers active, as their runs would.
func live(t testing.TB, s *Store, fleet string) {
	t.Helper()
	exec(t, s, `UPDATE servers SET status = 'active', active_at = now(), agent_status = 'connected' WHERE fleet_id = $1 AND status = 'provisioning'`, fleet)
}

// grown is a fleet with n active servers, made by an action.
func grown(t testing.TB, s *Store, fleet string, n int) {
	t.Helper()
	a := ask(t, s, fleet, server.ClusterScaleOut, fmt.Sprintf(`{"count":%d}`, n))
	require.Equal(t, server.ActionRunning, begin(t, s, fleet).Status)
	steps := batch(t, s, fleet, a.Seq, 100)
	require.Len(t, steps, n)
	live(t, s, fleet)
	record(t, s, fleet, a.Seq, results(steps, ""))
	ended, err := s.FinishFleetAction(context.Background(), prego.FleetID(fleet), a.Seq)
	require.NoError(t, err)
	require.Equal(t, server.ActionSucceeded, ended.Status)
}

func code(t testing.TB, err error, want prego.Code) {
	t.Helper()
	require.Equal(t, want, prego.CodeOf(err), "%v", err)
}

func TestFleetsAreMadeChangedAndForgotten(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	most := int64(5)
	r := server.CreateFleetRequest{FleetID: "pool", Role: prego.RoleRedisPool, InfraProvider: prego.ProviderHetzner, MaxSize: &most, Spec: server.Spec{Tags: []string{"a"}}}
	require.NoError(t, r.Validate())
	f, created, err := s.CreateFleet(ctx, r, "test")
	require.NoError(t, err)
	require.True(t, created)
	require.Equal(t, []any{int64(0), int64(5), 1, int64(0)}, []any{f.MinSize, f.MaxSize, f.Profile, f.Size})
	_, created, err = s.CreateFleet(ctx, r, "test")
	require.NoError(t, err)
	require.False(t, created, "the same request meets it")
	other := r
	other.MinSize = 1
	_, _, err = s.CreateFleet(ctx, other, "test")
	code(t, err, prego.CodeFleetConflict)
	for name, tc := range map[string]struct {
		change func(*server.CreateFleetRequest)
		code   prego.Code
	}{
		"unknown provider":           {func(r *server.CreateFleetRequest) { r.InfraProvider = "acme" }, prego.CodeProviderUnknown},
		"unknown provider, a region": {func(r *server.CreateFleetRequest) { r.InfraProvider, r.Region = "acme", prego.RegionEU }, prego.CodeProviderUnknown},
	} {
		bad := r
		bad.FleetID = "bad"
		tc.change(&bad)
		_, _, err := s.CreateFleet(ctx, bad, "test")
		require.Equal(t, tc.code, prego.CodeOf(err), "%s: %v", name, err)
	}
	exec(t, s, `UPDATE infra_providers SET enabled = false`)
	bad := r
	bad.FleetID = "bad"
	_, _, err = s.CreateFleet(ctx, bad, "test")
	code(t, err, prego.CodeProviderDisabled)
	exec(t, s, `UPDATE infra_providers SET enabled = true`)
	_, err = s.GetFleet(ctx, "bad")
	code(t, err, prego.CodeFleetNotFound)

	q := prego.ListQuery{Sort: "fleet_id", Limit: 1}.Of("role", "redis-pool")
	page, next, err := Fleets.In(s)(ctx, q)
	require.NoError(t, err)
	require.NotEmpty(t, next)
	require.Equal(t, "pool", string(page[0].FleetID))
	q.Cursor, q.Limit = next, 10
	page, next, err = Fleets.In(s)(ctx, q)
	require.NoError(t, err)
	require.Empty(t, next)
	require.Len(t, page, 1, "the default one: %v", page)

	least := int64(6)
	_, err = s.UpdateFleet(ctx, "pool", server.UpdateFleetRequest{MinSize: &least})
	code(t, err, prego.CodeInvalidField)
	_, err = s.UpdateFleet(ctx, "pool", server.UpdateFleetRequest{Constraint: &prego.Constraint{}})
	code(t, err, prego.CodeConstraintImmutable)
	_, err = s.UpdateFleet(ctx, "nope", server.UpdateFleetRequest{})
	code(t, err, prego.CodeFleetNotFound)
	f, err = s.UpdateFleet(ctx, "pool", server.UpdateFleetRequest{Spec: &server.Spec{Tags: []string{"a"}}})
	require.NoError(t, err)
	require.Equal(t, 1, f.Profile, "the same spec is no change")
	f, err = s.UpdateFleet(ctx, "pool", server.UpdateFleetRequest{Spec: &server.Spec{Tags: []string{"b"}}})
	require.NoError(t, err)
	require.Equal(t, 2, f.Profile)
	require.EqualValues(t, 5, f.MaxSize, "an omitted field stays")

	require.NoError(t, s.DeleteFleet(ctx, "pool"))
	code(t, s.DeleteFleet(ctx, "pool"), prego.CodeFleetNotFound)
}

func TestAFleetWithServersOrActionsIsNotForgotten(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	newFleet(t, s, "pool", nil, nil)
	ask(t, s, "pool", server.ClusterScaleOut, `{}`)
	code(t, s.DeleteFleet(ctx, "pool"), prego.CodeFleetBusy)
	begin(t, s, "pool")
	code(t, s.DeleteFleet(ctx, "pool"), prego.CodeFleetNotEmpty) // planned servers are members
	require.Len(t, batch(t, s, "pool", 1, 10), 1)
	exec(t, s, `UPDATE fleet_actions SET status = 'succeeded'`)
	code(t, s.DeleteFleet(ctx, "pool"), prego.CodeFleetNotEmpty)
	exec(t, s, `UPDATE servers SET status = 'terminated'`)
	require.NoError(t, s.DeleteFleet(ctx, "pool"))
	require.Zero(t, count(t, s, `fleet_actions`)+count(t, s, `fleet_action_steps`))
	require.Equal(t, 1, count(t, s, `servers WHERE fleet_id IS NULL`), "its servers' rows stay")

	// The next fleet of that id does not meet the servers of the last.
	newFleet(t, s, "pool", nil, nil)
	a := ask(t, s, "pool", server.ClusterScaleOut, `{}`)
	begin(t, s, "pool")
	require.Equal(t, server.FleetStepPlanned, batch(t, s, "pool", a.Seq, 10)[0].State)
	require.Equal(t, 2, count(t, s, `servers WHERE server_id LIKE 'pool-%-1'`))
}

func TestPoliciesAreMadeAttachedAndDetached(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	newFleet(t, s, "pool", nil, nil)
	p := server.FleetPolicy{PolicyID: "oldest", Type: server.PolicyDeletion, Spec: json.RawMessage(`{"criteria":"OLDEST_FIRST"}`), CreatedBy: "test"}
	_, created, err := s.CreatePolicy(ctx, p)
	require.NoError(t, err)
	require.True(t, created)
	p.Spec = json.RawMessage(`{ "criteria": "OLDEST_FIRST" }`)
	_, created, err = s.CreatePolicy(ctx, p)
	require.NoError(t, err)
	require.False(t, created)
	p.Spec = json.RawMessage(`{"criteria":"RANDOM"}`)
	_, _, err = s.CreatePolicy(ctx, p)
	code(t, err, prego.CodePolicyConflict)
	got, err := s.UpdatePolicy(ctx, "oldest", server.PolicyDeletion, p.Spec)
	require.NoError(t, err)
	require.JSONEq(t, `{"criteria":"RANDOM"}`, string(got.Spec))
	_, err = s.UpdatePolicy(ctx, "nope", server.PolicyDeletion, p.Spec)
	code(t, err, prego.CodePolicyNotFound)
	_, err = s.GetPolicy(ctx, "nope")
	code(t, err, prego.CodePolicyNotFound)

	for range 2 {
		f, err := s.AttachPolicy(ctx, "pool", "oldest", nil, true)
		require.NoError(t, err)
		require.Len(t, f.Policies, 1)
		require.Equal(t, 10, f.Policies[0].Position, "attached again it stays where it is")
	}
	first := 5
	attach(t, s, "pool", "out", server.PolicyScaling, `{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":1}}`)
	f, err := s.AttachPolicy(ctx, "pool", "out", &first, false)
	require.NoError(t, err)
	require.Equal(t, "out", string(f.Policies[0].PolicyID))
	require.False(t, f.Policies[0].Enabled)
	attach(t, s, "pool", "in", server.PolicyScaling, `{"event":"CLUSTER_SCALE_IN","adjustment":{"number":1}}`)
	p.PolicyID = "youngest"
	_, _, err = s.CreatePolicy(ctx, p)
	require.NoError(t, err)
	_, err = s.AttachPolicy(ctx, "pool", "youngest", nil, true)
	code(t, err, prego.CodePolicyTypeAttached)
	_, err = s.AttachPolicy(ctx, "pool", "nope", nil, true)
	code(t, err, prego.CodePolicyNotFound)
	_, err = s.AttachPolicy(ctx, "nope", "oldest", nil, true)
	code(t, err, prego.CodeFleetNotFound)

	page, next, err := Policies.In(s)(ctx, prego.ListQuery{Sort: "policy_id", Limit: 1}.Of("type", "scaling"))
	require.NoError(t, err)
	require.NotEmpty(t, next)
	require.Equal(t, "in", string(page[0].PolicyID))
	code(t, s.DeletePolicy(ctx, "oldest"), prego.CodePolicyInUse)
	for range 2 {
		require.NoError(t, s.DetachPolicy(ctx, "pool", "oldest"))
	}
	code(t, s.DetachPolicy(ctx, "nope", "oldest"), prego.CodeFleetNotFound)
	require.NoError(t, s.DeletePolicy(ctx, "oldest"))
	code(t, s.DeletePolicy(ctx, "oldest"), prego.CodePolicyNotFound)
}

func TestOneKeyIsOneAction(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	newFleet(t, s, "pool", nil, nil)
	r := server.FleetActionRequest{FleetID: "pool", Action: server.ClusterScaleOut, Inputs: json.RawMessage(`{"count":2}`), Cause: "operator", By: "test", IdempotencyKey: "k"}
	var wg sync.WaitGroup
	seqs := make([]int, 16)
	for i := range seqs {
		wg.Go(func() {
			a, err := s.RequestFleetAction(ctx, r, scale.Plan)
			if err == nil {
				seqs[i] = a.Seq
			}
		})
	}
	wg.Wait()
	for _, n := range seqs {
		require.Equal(t, 1, n)
	}
	require.Equal(t, 1, count(t, s, `fleet_actions`))
	r.Inputs = json.RawMessage(`{ "count" : 2 }`)
	_, err := s.RequestFleetAction(ctx, r, scale.Plan)
	require.NoError(t, err, "the same body, written in another way")
	r.Inputs = json.RawMessage(`{"count":3}`)
	_, err = s.RequestFleetAction(ctx, r, scale.Plan)
	code(t, err, prego.CodeIdempotencyConflict)
	r.FleetID = "nope"
	_, err = s.RequestFleetAction(ctx, r, scale.Plan)
	code(t, err, prego.CodeFleetNotFound)

	// Without keys, each is a separate action.
	r.FleetID, r.IdempotencyKey = "pool", ""
	for range 32 {
		wg.Go(func() { _, _ = s.RequestFleetAction(ctx, r, scale.Plan) })
	}
	wg.Wait()
	require.Equal(t, 33, count(t, s, `fleet_actions`))
	q := prego.ListQuery{Limit: 30}.Of("fleet_id", "pool")
	page, next, err := FleetActions.In(s)(ctx, q)
	require.NoError(t, err)
	require.NotEmpty(t, next)
	require.Equal(t, []int{33, 4}, []int{page[0].Seq, page[29].Seq})
	q.Cursor = next
	page, next, err = FleetActions.In(s)(ctx, q)
	require.NoError(t, err)
	require.Empty(t, next)
	require.Len(t, page, 3)
}

// TestConcurrentPlannersStayWithinTheFleet has operators' actions, tenants' scale-outs
// and tenants' own servers planned concurrently: all count what the others did.
func TestConcurrentPlannersStayWithinTheFleet(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	exec(t, s, `UPDATE fleets SET serves_tenants = false`) // the default ones
	most := int64(9)
	newFleet(t, s, "pool", func(r *server.CreateFleetRequest) { r.Region, r.MaxSize, r.Serves = "", &most, true }, map[server.PolicyType]string{
		server.PolicyRegionPlacement: `{"regions":[{"name":"eu","cap":5},{"name":"us","cap":2},{"name":"sg"}]}`,
	})
	var wg sync.WaitGroup
	errs := make(chan error, 200)
	for i := range 32 {
		where := []prego.Region{prego.RegionEU, prego.RegionUS, prego.RegionSG}[i%3]
		wg.Go(func() {
			switch i % 4 {
			case 0:
				round := tenant.ScalingRound{Round: fmt.Sprint("r", i), ScalingEvent: tenant.ScalingEvent{
					Region: where, Role: prego.RoleRedisPool, Trigger: "scale_out_required", Requested: 2, WorkflowID: "scale-out/test",
				}, TierLocks: []prego.Plan{"", ""}, Tags: [][]string{{}, {}}}
				_, err := s.BeginFleetScaling(ctx, round, scale.Plan)
				errs <- err
			case 1, 2:
				_, err := s.RequestFleetMember(ctx, server.Wanted{ServerID: prego.ServerID(fmt.Sprint("own-", i)), Role: prego.RoleRedisPool, Region: where, Provider: prego.ProviderHetzner}, prego.Constraint{}, "tenant", scale.Plan)
				if prego.CodeOf(err) == prego.CodeFleetFull {
					err = nil
				}
				errs <- err
			default:
				_, err := s.RequestFleetAction(ctx, server.FleetActionRequest{FleetID: "pool", Action: server.ClusterScaleOut, Inputs: json.RawMessage(`{"count":1}`), Cause: "operator", By: "test"}, scale.Plan)
				errs <- err
				a, err := s.BeginFleetAction(ctx, "pool", scale.Plan)
				errs <- err
				if a != nil && a.Status == server.ActionRunning {
					_, err = s.NextFleetBatch(ctx, "pool", a.Seq, 10)
					errs <- err
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	f, err := s.GetFleet(ctx, "pool")
	require.NoError(t, err)
	require.LessOrEqual(t, f.Size, int64(9), "%v", f.Regions)
	require.LessOrEqual(t, f.Regions[prego.RegionEU], int64(5))
	require.LessOrEqual(t, f.Regions[prego.RegionUS], int64(2))
	require.GreaterOrEqual(t, f.Size, int64(8), "and they fill it: %v", f.Regions)
	require.Equal(t, count(t, s, `fleet_action_steps`), count(t, s, `(SELECT DISTINCT server_id FROM fleet_action_steps) d`), "no name is given twice")
}

func TestStepsBearRepetition(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	newFleet(t, s, "pool", func(r *server.CreateFleetRequest) { r.Region = "" }, map[server.PolicyType]string{
		server.PolicyRegionPlacement: `{"regions":[{"name":"eu"},{"name":"us"},{"name":"sg","weight":0}]}`,
		server.PolicyDeletion:        `{"criteria":"YOUNGEST_FIRST"}`,
	})
	a := ask(t, s, "pool", server.ClusterScaleOut, `{"count":4}`)
	first := begin(t, s, "pool")
	require.Len(t, first.Steps, 4)
	again := begin(t, s, "pool")
	require.Equal(t, first.Seq, again.Seq)
	require.Equal(t, server.ActionRunning, again.Status)
	require.JSONEq(t, string(first.Data), string(again.Data))
	require.Equal(t, 4, count(t, s, `fleet_action_steps`))

	steps := batch(t, s, "pool", a.Seq, 3)
	require.Len(t, steps, 3)
	spec := server.Spec{Tags: []string{"changed"}}
	_, err := s.UpdateFleet(ctx, "pool", server.UpdateFleetRequest{Spec: &spec})
	require.NoError(t, err)
	require.Equal(t, steps, batch(t, s, "pool", a.Seq, 3), "also when the spec has changed")
	require.Equal(t, 3, count(t, s, `servers WHERE fleet_id = 'pool' AND fleet_profile = 1`))

	// One fails: missing servers are created elsewhere, once.
	exec(t, s, `UPDATE servers SET status = 'terminated' WHERE server_id = $1`, steps[0].ServerID)
	for range 2 {
		record(t, s, "pool", a.Seq, results(steps, server.FleetStepFailed, string(steps[0].ServerID)))
	}
	got, err := s.GetFleetAction(ctx, "pool", a.Seq)
	require.NoError(t, err)
	require.Len(t, got.Steps, 5)
	require.True(t, got.Steps[4].Replan)
	require.Equal(t, 2, got.Steps[4].Round)
	require.NotEqual(t, steps[0].Region, got.Steps[4].Region)
	require.NotZero(t, got.Steps[4].At)
	for len(batch(t, s, "pool", a.Seq, 10)) > 0 {
		record(t, s, "pool", a.Seq, results(batch(t, s, "pool", a.Seq, 10), ""))
	}
	live(t, s, "pool")
	for range 2 {
		ended, err := s.FinishFleetAction(ctx, "pool", a.Seq)
		require.NoError(t, err)
		require.Equal(t, server.ActionSucceeded, ended.Status)
		require.NotNil(t, ended.FinishedAt)
	}
	none, err := s.BeginFleetAction(ctx, "pool", scale.Plan)
	require.NoError(t, err)
	require.Nil(t, none)

	in := ask(t, s, "pool", server.ClusterScaleIn, `{"count":2}`)
	begin(t, s, "pool")
	goes := batch(t, s, "pool", in.Seq, 10)
	require.Len(t, goes, 2)
	require.Equal(t, goes, batch(t, s, "pool", in.Seq, 10))
	require.Equal(t, 2, count(t, s, `servers WHERE cordoned_at IS NOT NULL`))
	for range 2 {
		srv, err := s.DecommissionMember(ctx, goes[0].ServerID, "test")
		require.NoError(t, err)
		require.Equal(t, server.Decommissioning, srv.Status)
		require.NoError(t, s.Uncordon(ctx, goes[1].ServerID))
	}
	require.Equal(t, 1, count(t, s, `servers WHERE cordoned_at IS NOT NULL`))
	closed, err := s.CordonedFor(ctx, goes[1].ServerID)
	require.NoError(t, err)
	require.Zero(t, closed)
	_, err = s.DecommissionMember(ctx, "nope", "test")
	code(t, err, prego.CodeServerNotFound)
}

// TestServerWithAStepsNameIsNoMember: an operator's server has the name that a
// step would give.
func TestServerWithAStepsNameIsNoMember(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	newFleet(t, s, "pool", nil, nil)
	a := ask(t, s, "pool", server.ClusterScaleOut, `{}`)
	begun := begin(t, s, "pool")
	id := begun.Steps[0].ServerID
	_, _, err := s.CreateServer(ctx, server.CreateRequest{ServerID: id, Role: prego.RoleApp, Region: prego.RegionEU, InfraProvider: prego.ProviderHetzner}, "op")
	require.NoError(t, err)
	steps := batch(t, s, "pool", a.Seq, 10)
	require.Equal(t, server.FleetStepFailed, steps[0].State)
	require.Contains(t, steps[0].Message, "requested with another body")
	record(t, s, "pool", a.Seq, []server.FleetStepResult{{ServerID: id, Op: server.StepOpCreate, State: steps[0].State, Message: steps[0].Message}})
	ended, err := s.FinishFleetAction(ctx, "pool", a.Seq)
	require.NoError(t, err)
	require.Equal(t, "servers_failed", ended.Reason)
}

func TestCancellingLeavesNothingClosed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	newFleet(t, s, "pool", nil, nil)
	grown(t, s, "pool", 3)
	waits := ask(t, s, "pool", server.ClusterScaleOut, `{}`)
	got, err := s.CancelFleetAction(ctx, "pool", waits.Seq, "me")
	require.NoError(t, err)
	require.Equal(t, server.ActionCancelled, got.Status)
	require.Equal(t, "cancelled by me", got.Message)
	_, err = s.CancelFleetAction(ctx, "pool", waits.Seq, "me")
	code(t, err, prego.CodeInvalidTransition)
	_, err = s.CancelFleetAction(ctx, "pool", 99, "me")
	code(t, err, prego.CodeActionNotFound)

	// The run dies right after it has closed the servers; then it is cancelled.
	in := ask(t, s, "pool", server.ClusterScaleIn, `{"count":3}`)
	begin(t, s, "pool")
	steps := batch(t, s, "pool", in.Seq, 10)
	require.Len(t, steps, 3)
	_, err = s.DecommissionMember(ctx, steps[0].ServerID, "test")
	require.NoError(t, err)
	for range 2 {
		got, err = s.CancelFleetAction(ctx, "pool", in.Seq, "me")
		require.NoError(t, err)
		require.Equal(t, server.ActionRunning, got.Status)
	}
	left := batch(t, s, "pool", in.Seq, 10)
	require.Len(t, left, 1, "a server being taken down is taken down to the end")
	require.Equal(t, 2, count(t, s, `servers WHERE status = 'active' AND cordoned_at IS NULL`))
	record(t, s, "pool", in.Seq, results(left, ""))
	ended, err := s.FinishFleetAction(ctx, "pool", in.Seq)
	require.NoError(t, err)
	require.Equal(t, server.ActionCancelled, ended.Status)
	require.Contains(t, ended.Message, "2 of 3")
}

// TestACancelledActionIsNotTakenUp cancels while the action is being planned.
func TestACancelledActionIsNotTakenUp(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	newFleet(t, s, "pool", nil, nil)
	a := ask(t, s, "pool", server.ClusterScaleOut, `{}`)
	done := make(chan error, 1)
	_, err := s.BeginFleetAction(ctx, "pool", func(st server.FleetState, act server.FleetAction) (server.FleetPlan, error) {
		go func() {
			_, err := s.CancelFleetAction(ctx, "pool", a.Seq, "me")
			done <- err
		}()
		time.Sleep(100 * time.Millisecond)
		return scale.Plan(st, act)
	})
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.Equal(t, 1, count(t, s, `fleet_actions WHERE status = 'running' AND cancel_requested AND finished_at IS NULL`))
	require.Empty(t, batch(t, s, "pool", a.Seq, 10))
	ended, err := s.FinishFleetAction(ctx, "pool", a.Seq)
	require.NoError(t, err)
	require.Equal(t, server.ActionCancelled, ended.Status)
}

// TestAnOvertakenRequestReturnsItsServer: an earlier attempt requested it as the last member that the fleet takes.
func TestAnOvertakenRequestReturnsItsServer(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := New(pool)
	exec(t, s, `UPDATE fleets SET serves_tenants = false`)
	most := int64(1)
	newFleet(t, s, "pool", func(r *server.CreateFleetRequest) { r.MaxSize, r.Serves = &most, true }, nil)
	request := func(s *Store) (server.Server, error) {
		return s.RequestFleetMember(context.Background(), server.Wanted{
			ServerID: "own-1", Role: prego.RoleRedisPool, Region: prego.RegionEU, Provider: prego.ProviderHetzner,
		}, prego.Constraint{}, "tenant/t-1", scale.Plan)
	}
	once := sync.Once{}
	second := New(pgtest.Tapped(t, pool, func(sql string, _ []any) (err error) {
		if sql == sqlServingFleets {
			once.Do(func() { _, err = request(s) })
		}
		return err
	}))
	srv, err := request(second)
	require.NoError(t, err)
	require.Equal(t, "own-1", string(srv.ServerID))
	require.Equal(t, 1, count(t, s, "servers"))
}

// TestAReplacementLeavesRoomForTenants: only the round that is next counts as
// members, and tenants' servers are planned meanwhile.
func TestAReplacementLeavesRoomForTenants(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	exec(t, s, `UPDATE fleets SET serves_tenants = false`)
	most := int64(6)
	newFleet(t, s, "pool", func(r *server.CreateFleetRequest) { r.MaxSize, r.Serves = &most, true }, nil)
	grown(t, s, "pool", 4)
	_, err := s.UpdateFleet(ctx, "pool", server.UpdateFleetRequest{Spec: &server.Spec{Tags: []string{"new"}}})
	require.NoError(t, err)
	a := ask(t, s, "pool", server.ClusterReplace, `{}`)
	require.Len(t, begin(t, s, "pool").Steps, 8)
	f, err := s.GetFleet(ctx, "pool")
	require.NoError(t, err)
	require.EqualValues(t, 5, f.Size)
	own := server.Wanted{ServerID: "own-1", Role: prego.RoleRedisPool, Region: prego.RegionEU, Provider: prego.ProviderHetzner}
	for range 2 {
		srv, err := s.RequestFleetMember(ctx, own, prego.Constraint{}, "tenant/t-1", scale.Plan)
		require.NoError(t, err)
		require.Equal(t, "own-1", string(srv.ServerID))
		require.Equal(t, []string{"new"}, srv.Tags)
	}
	require.Equal(t, 1, count(t, s, `fleet_actions WHERE driven_by = 'tenant/t-1' AND status = 'succeeded'`))
	own.ServerID = "own-2"
	_, err = s.RequestFleetMember(ctx, own, prego.Constraint{}, "tenant/t-2", scale.Plan)
	code(t, err, prego.CodeFleetFull)

	// The old server of the first round has tenants: the fleet does not grow on.
	steps := batch(t, s, "pool", a.Seq, 10)
	require.Len(t, steps, 1)
	live(t, s, "pool")
	record(t, s, "pool", a.Seq, results(steps, ""))
	steps = batch(t, s, "pool", a.Seq, 10)
	require.Equal(t, server.StepOpDelete, steps[0].Op)
	record(t, s, "pool", a.Seq, results(steps, server.FleetStepKept, string(steps[0].ServerID)))
	require.Empty(t, batch(t, s, "pool", a.Seq, 10))
	ended, err := s.FinishFleetAction(ctx, "pool", a.Seq)
	require.NoError(t, err)
	require.Equal(t, string(prego.CodeServerHasTenants), ended.Reason)
	require.Equal(t, 6, count(t, s, `servers WHERE fleet_id = 'pool'`))
}

// TestALostDemandIsSettled: the run of a scale-out is gone permanently.
func TestALostDemandIsSettled(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	round := tenant.ScalingRound{Round: "r1", ScalingEvent: tenant.ScalingEvent{Region: prego.RegionEU, Role: prego.RoleNode, Trigger: "scale_out_required", Requested: 3, WorkflowID: "scale-out/x"}, TierLocks: []prego.Plan{"", "", ""}, Tags: [][]string{{}, {}, {}}}
	begun, err := s.BeginFleetScaling(ctx, round, scale.Plan)
	require.NoError(t, err)
	require.Len(t, begun.ServerIDs, 3)
	twice, err := s.BeginFleetScaling(ctx, round, scale.Plan)
	require.NoError(t, err)
	require.Equal(t, begun.EventID, twice.EventID)
	require.Equal(t, 1, count(t, s, `fleet_actions`), "the second one is undone")
	_, err = s.CancelFleetAction(ctx, "tenants-node", 1, "me")
	code(t, err, prego.CodeInvalidTransition)
	exec(t, s, `UPDATE servers SET status = 'active', active_at = now() WHERE server_id = $1`, begun.ServerIDs[0])
	require.NoError(t, s.SettleDemand(ctx, time.Hour))
	require.Equal(t, 3, count(t, s, `fleet_action_steps WHERE state = 'planned'`), "it is young")
	exec(t, s, `UPDATE fleet_actions SET started_at = now() - interval '2 hours'`)
	require.NoError(t, s.SettleDemand(ctx, time.Hour))
	require.Equal(t, 2, count(t, s, `fleet_action_steps WHERE state = 'planned'`), "two are on their way")
	require.Equal(t, 1, count(t, s, `fleet_actions WHERE status = 'running'`))
	exec(t, s, `UPDATE servers SET status = 'failed', status_message = 'no stock' WHERE server_id = ANY ($1)`, begun.ServerIDs[1:])
	for range 2 {
		require.NoError(t, s.SettleDemand(ctx, time.Hour))
	}
	a, err := s.GetFleetAction(ctx, "tenants-node", 1)
	require.NoError(t, err)
	require.Equal(t, server.ActionFailed, a.Status)
	require.Equal(t, []server.FleetStepState{server.FleetStepDone, server.FleetStepFailed, server.FleetStepFailed}, []server.FleetStepState{a.Steps[0].State, a.Steps[1].State, a.Steps[2].State})

	require.Equal(t, 1, count(t, s, `scaling_events WHERE finished_at IS NULL`), "it is young")
	exec(t, s, `UPDATE servers SET status = 'provisioning' WHERE server_id = $1`, begun.ServerIDs[2])
	exec(t, s, `UPDATE scaling_events SET created_at = now() - interval '2 hours'`)
	require.NoError(t, s.SettleDemand(ctx, time.Hour))
	require.Equal(t, 1, count(t, s, `scaling_events WHERE finished_at IS NULL`), "one is on its way")
	exec(t, s, `UPDATE servers SET status = 'failed' WHERE server_id = $1`, begun.ServerIDs[2])
	require.NoError(t, s.SettleDemand(ctx, time.Hour))
	require.Equal(t, 1, count(t, s, `scaling_events WHERE made = 1 AND message LIKE '%its run ended early'`))

	require.NoError(t, s.FinishScaling(ctx, begun.EventID, "late"), "its run was not lost after all")
	open, err := s.OpenFleets(ctx, 0)
	require.NoError(t, err)
	require.Empty(t, open, "demand has no run of the fleet's")
}

func TestDemandGoesToTheNewestFleetThatHasRoom(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	most := int64(1)
	newFleet(t, s, "first", func(r *server.CreateFleetRequest) { r.MaxSize, r.Serves = &most, true }, nil)
	newFleet(t, s, "second", func(r *server.CreateFleetRequest) { r.MaxSize, r.Serves = &most, true }, nil)
	newFleet(t, s, "idle", nil, nil)
	for i, want := range []string{"second", "first", "tenants-redis"} {
		_, err := s.RequestFleetMember(ctx, server.Wanted{ServerID: prego.ServerID(fmt.Sprint("own-", i)), Role: prego.RoleRedisPool, Region: prego.RegionEU, Provider: prego.ProviderHetzner}, prego.Constraint{}, "tenant", scale.Plan)
		require.NoError(t, err)
		require.Equal(t, 1, count(t, s, fmt.Sprintf(`servers WHERE server_id = 'own-%d' AND fleet_id = '%s'`, i, want)))
	}
	// A fleet below its least size also serves them.
	exec(t, s, `UPDATE fleets SET min_size = 3 WHERE fleet_id = 'tenants-redis'`)
	_, err := s.RequestFleetMember(ctx, server.Wanted{ServerID: "own-9", Role: prego.RoleRedisPool, Region: prego.RegionUS, Provider: prego.ProviderHetzner}, prego.Constraint{}, "tenant", scale.Plan)
	require.NoError(t, err)
}

func TestOpenFleetsAreFound(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	newFleet(t, s, "pool", nil, nil)
	ask(t, s, "pool", server.ClusterScaleOut, `{}`)
	open, err := s.OpenFleets(ctx, time.Minute)
	require.NoError(t, err)
	require.Empty(t, open, "its run is about to begin")
	exec(t, s, `UPDATE fleet_actions SET created_at = now() - interval '2 minutes'`)
	open, err = s.OpenFleets(ctx, time.Minute)
	require.NoError(t, err)
	require.Equal(t, []string{"pool"}, open)
}

// TestCordonedServerTakesNoTenant: the decision was made right before.
func TestCordonedServerTakesNoTenant(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	_, _, err := s.CreateTenant(ctx, tenantRequest(t, "one", prego.PlanStarter), "t-1", tenant.ModeShared, "", "someone")
	require.NoError(t, err)
	newFleet(t, s, "nodes", func(r *server.CreateFleetRequest) { r.Role, r.Serves = prego.RoleNode, true }, nil)
	grown(t, s, "nodes", 1)
	st, err := s.FleetState(ctx, "nodes")
	require.NoError(t, err)
	id := st.Members[0].ServerID
	reserve := func() (tenant.ReserveResult, error) {
		return s.Reserve(ctx, tenant.Reservation{
			TenantID: "t-1", Generation: 1, AppServerID: id, DBShardID: prego.ShardID(id), RedisPoolID: prego.RedisPoolID(id), Mode: tenant.ModeOneTenantOneServer,
			MemoryPctMax: 70, MaxTenants: 20, Decision: []byte(`{}`), Policy: []byte(`{}`), Dedicates: true,
		})
	}
	in := ask(t, s, "nodes", server.ClusterScaleIn, `{}`)
	begin(t, s, "nodes")
	require.Len(t, batch(t, s, "nodes", in.Seq, 1), 1)
	out, err := reserve()
	require.True(t, err != nil || out.Outcome != tenant.ReservePlaced, "%v", out)
	require.Zero(t, count(t, s, `servers WHERE tenant_count > 0`))
	require.NoError(t, s.Uncordon(ctx, id))
	out, err = reserve()
	require.NoError(t, err)
	require.Equal(t, tenant.ReservePlaced, out.Outcome)
	_, err = s.DecommissionMember(ctx, id, "test")
	code(t, err, prego.CodeServerHasTenants)
	require.Equal(t, 1, count(t, s, `servers WHERE status = 'active' AND tenant_count = 1`))
}

// TestPlanCountsConcurrentPlan: another plan has the fleet's lock, and takes the
// last room while this one waits for it.
func TestPlanCountsConcurrentPlan(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	most := int64(1)
	newFleet(t, s, "pool", func(r *server.CreateFleetRequest) { r.MaxSize = &most }, nil)
	ask(t, s, "pool", server.ClusterScaleOut, `{}`)
	tx, err := s.pool.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, sqlLockFleet, "pool")
	require.NoError(t, err)
	held := &txn{Tx: tx}
	_, _, err = insertServerIn(ctx, held, fleetServer(server.Wanted{
		ServerID: "own-1", Role: prego.RoleRedisPool, Region: prego.RegionEU, Provider: prego.ProviderHetzner, FleetID: "pool", FleetProfile: 1,
	}, "tenant"))
	require.NoError(t, cmp.Or(held.err, err))
	planned := make(chan *server.FleetAction, 1)
	go func() {
		a, err := s.BeginFleetAction(ctx, "pool", scale.Plan)
		if err != nil {
			t.Error(err)
		}
		planned <- a
	}()
	require.Eventually(t, func() bool {
		return count(t, s, `pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
	}, 10*time.Second, 5*time.Millisecond)
	require.NoError(t, tx.Commit(ctx))
	a := <-planned
	require.NotNil(t, a)
	require.Equal(t, "target_above_fleet_max_size", a.Reason)
	require.Equal(t, 1, count(t, s, `servers`))
}
