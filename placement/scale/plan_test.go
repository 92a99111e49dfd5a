package scale_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/scale"
	"github.com/prego/prego/server"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// state is a fleet whose members are as many as given in each region: the first of a
// region is its oldest.
func state(regions map[prego.Region]int, change func(*server.FleetState), policies ...server.Attachment) server.FleetState {
	st := server.FleetState{Now: now, Usable: prego.Regions(), Fleet: server.Fleet{FleetID: "pool", Role: prego.RoleApp, MaxSize: server.NoMaxSize, Profile: 2, Regions: map[prego.Region]int64{}}}
	for _, r := range slices.Sorted(maps.Keys(regions)) {
		for i := range regions[r] {
			st.Members = append(st.Members, server.FleetMember{
				ServerID: prego.ServerID(fmt.Sprintf("%s-%d", r, i+1)), Region: r, Status: server.Active, Profile: 2, CreatedAt: now.Add(-time.Duration(100-i) * time.Hour),
			})
			st.Fleet.Regions[r]++
			st.Fleet.Size++
		}
	}
	st.Fleet.Policies = policies
	if change != nil {
		change(&st)
	}
	return st
}

func policy(t require.TestingT, kind server.PolicyType, raw string) server.Attachment {
	spec, err := scale.ParsePolicy(kind, json.RawMessage(raw))
	require.NoError(t, err, raw)
	return server.Attachment{FleetPolicy: server.FleetPolicy{PolicyID: prego.PolicyID("p-" + string(kind)), Type: kind, Spec: spec}, Enabled: true}
}

func off(a server.Attachment) server.Attachment {
	a.Enabled = false
	return a
}

func usedAt(a server.Attachment, ago time.Duration) server.Attachment {
	at := now.Add(-ago)
	a.LastUsedAt = &at
	return a
}

func action(kind server.FleetActionKind, inputs string) server.FleetAction {
	return server.FleetAction{FleetID: "pool", Seq: 3, Action: kind, Inputs: json.RawMessage(inputs)}
}

type regions = map[prego.Region]int

func TestPlan(t *testing.T) {
	t.Parallel()
	spread := func(raw string) server.Attachment {
		return policy(t, server.PolicyRegionPlacement, `{"regions":`+raw+`}`)
	}
	three := spread(`[{"name":"eu","weight":50},{"name":"us","weight":25,"cap":1},{"name":"sg","weight":25}]`)
	scaling := func(raw string) server.Attachment { return policy(t, server.PolicyScaling, raw) }
	deletion := func(raw string) server.Attachment { return policy(t, server.PolicyDeletion, raw) }
	home := func(r prego.Region) func(*server.FleetState) {
		return func(st *server.FleetState) { st.Fleet.Region = r }
	}
	bounds := func(least, most int64) func(*server.FleetState) {
		return func(st *server.FleetState) { st.Fleet.Region, st.Fleet.MinSize, st.Fleet.MaxSize = "eu", least, most }
	}
	const above3 = `{"status":"ERROR","reason":"The target capacity (4) is greater than the fleet's max_size (3)."}`
	for name, c := range map[string]struct {
		st      server.FleetState
		kind    server.FleetActionKind
		inputs  string
		data    string
		reason  string
		desired int64
		used    []string
	}{
		// S2: scale out.
		"out by one without a word":        {state(nil, home("eu")), "CLUSTER_SCALE_OUT", `{}`, `{"status":"OK","creation":{"count":1,"regions":{"eu":1}}}`, "", 1, nil},
		"out, no policy and no region":     {state(nil, nil), "CLUSTER_SCALE_OUT", `{}`, `{"status":"ERROR","reason":"No region is found usable."}`, "no_usable_region", 0, nil},
		"out, its region is not served":    {state(nil, func(st *server.FleetState) { st.Fleet.Region, st.Usable = "eu", []prego.Region{"us"} }), "CLUSTER_SCALE_OUT", `{}`, `{"status":"ERROR","reason":"No region is found usable."}`, "no_usable_region", 0, nil},
		"out, provider disabled":           {state(nil, func(st *server.FleetState) { st.Usable = []prego.Region{} }, three), "CLUSTER_SCALE_OUT", `{}`, `{"status":"ERROR","reason":"No region is found usable."}`, "no_usable_region", 0, nil},
		"out over regions, a cap binds":    {state(nil, nil, three), "CLUSTER_SCALE_OUT", `{"count":5}`, `{"status":"OK","creation":{"count":5,"regions":{"eu":3,"us":1,"sg":1}}}`, "", 5, []string{"p-region_placement"}},
		"out, no room below the caps":      {state(nil, nil, spread(`[{"name":"eu","cap":1}]`)), "CLUSTER_SCALE_OUT", `{"count":2}`, `{"status":"ERROR","reason":"There is no feasible plan to handle all nodes."}`, "no_feasible_plan", 0, nil},
		"out, policy disabled":             {state(nil, home("sg"), off(three)), "CLUSTER_SCALE_OUT", `{"count":2}`, `{"status":"OK","creation":{"count":2,"regions":{"sg":2}}}`, "", 2, nil},
		"out, only in one region":          {state(nil, nil, three), "CLUSTER_SCALE_OUT", `{"count":2,"regions":["sg"]}`, `{"status":"OK","creation":{"count":2,"regions":{"sg":2}}}`, "", 2, []string{"p-region_placement"}},
		"out, only in one region, no home": {state(nil, nil), "CLUSTER_SCALE_OUT", `{"regions":["sg"]}`, `{"status":"OK","creation":{"count":1,"regions":{"sg":1}}}`, "", 1, nil},
		"out, only where it is not":        {state(nil, home("eu")), "CLUSTER_SCALE_OUT", `{"regions":["us"]}`, `{"status":"ERROR","reason":"No region is found usable."}`, "no_usable_region", 0, nil},
		"out, scaling sets the count":      {state(regions{"eu": 4}, nil, scaling(`{"event":"CLUSTER_SCALE_OUT","adjustment":{"type":"CHANGE_IN_PERCENTAGE","number":50}}`), three), "CLUSTER_SCALE_OUT", `{}`, `{"status":"OK","creation":{"count":2,"regions":{"us":1,"sg":1}}}`, "", 6, []string{"p-scaling", "p-region_placement"}},
		"out, the count has priority":      {state(regions{"eu": 4}, nil, scaling(`{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":9}}`), three), "CLUSTER_SCALE_OUT", `{"count":1}`, `{"status":"OK","creation":{"count":1,"regions":{"sg":1}}}`, "", 5, []string{"p-region_placement"}},
		"out, scaling of the other event":  {state(nil, home("eu"), scaling(`{"event":"CLUSTER_SCALE_IN","adjustment":{"number":9}}`)), "CLUSTER_SCALE_OUT", `{}`, `{"status":"OK","creation":{"count":1,"regions":{"eu":1}}}`, "", 1, nil},
		"out, to an exact size":            {state(regions{"eu": 1}, home("eu"), scaling(`{"event":"CLUSTER_SCALE_OUT","adjustment":{"type":"EXACT_CAPACITY","number":3}}`)), "CLUSTER_SCALE_OUT", `{}`, `{"status":"OK","creation":{"count":2,"regions":{"eu":2}}}`, "", 3, []string{"p-scaling"}},
		"out, beyond the exact size":       {state(regions{"eu": 4}, nil, scaling(`{"event":"CLUSTER_SCALE_OUT","adjustment":{"type":"EXACT_CAPACITY","number":3}}`), three), "CLUSTER_SCALE_OUT", `{}`, `{"status":"OK"}`, "", 4, []string{"p-scaling"}},
		"out, cooling down":                {state(nil, home("eu"), usedAt(scaling(`{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":1,"cooldown":60}}`), 20*time.Second)), "CLUSTER_SCALE_OUT", `{}`, `{"status":"ERROR","reason":"Policy p-scaling cooldown is still in progress, for 40s more."}`, "policy_cooldown", 0, nil},
		"out, cooled down":                 {state(nil, home("eu"), usedAt(scaling(`{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":2,"cooldown":60}}`), time.Minute)), "CLUSTER_SCALE_OUT", `{}`, `{"status":"OK","creation":{"count":2,"regions":{"eu":2}}}`, "", 2, []string{"p-scaling"}},
		"out, cooling down, a count given": {state(nil, home("eu"), usedAt(scaling(`{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":1,"cooldown":60}}`), 0)), "CLUSTER_SCALE_OUT", `{"count":1}`, `{"status":"OK","creation":{"count":1,"regions":{"eu":1}}}`, "", 1, nil},
		"out, above max":                   {state(regions{"eu": 2}, bounds(0, 3)), "CLUSTER_SCALE_OUT", `{"count":2}`, `{"status":"ERROR","reason":"The target capacity (4) is greater than the fleet's max_size (3)."}`, "target_above_fleet_max_size", 2, nil},
		"out by default, above max":        {state(regions{"eu": 3}, bounds(0, 3)), "CLUSTER_SCALE_OUT", `{}`, `{"status":"ERROR","reason":"The target capacity (4) is greater than the fleet's max_size (3)."}`, "target_above_fleet_max_size", 3, nil},
		"out, scaling above max":           {state(regions{"eu": 3}, bounds(0, 3), scaling(`{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":1}}`)), "CLUSTER_SCALE_OUT", `{}`, `{"status":"ERROR","reason":"The target capacity (4) is greater than the fleet's max_size (3)."}`, "target_above_fleet_max_size", 3, nil},
		"out, as far as max":               {state(regions{"eu": 2}, bounds(0, 3), scaling(`{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":5,"best_effort":true}}`)), "CLUSTER_SCALE_OUT", `{}`, `{"status":"OK","creation":{"count":1,"regions":{"eu":1}}}`, "", 3, []string{"p-scaling"}},
		"out, still below min":             {state(nil, bounds(5, 9)), "CLUSTER_SCALE_OUT", `{"count":2}`, `{"status":"OK","creation":{"count":2,"regions":{"eu":2}}}`, "", 2, nil},
		"out by a policy, still below min": {state(nil, bounds(5, 9), scaling(`{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":2}}`)), "CLUSTER_SCALE_OUT", `{}`, `{"status":"OK","creation":{"count":2,"regions":{"eu":2}}}`, "", 2, []string{"p-scaling"}},
		"out, above the service":           {state(regions{"eu": 1}, home("eu")), "CLUSTER_SCALE_OUT", `{"count":1000}`, `{"status":"ERROR","reason":"The target capacity (1001) is greater than the maximum number of nodes allowed per fleet (1000)."}`, "target_above_service_limit", 1, nil},
		"out, inputs that cannot be":       {state(nil, home("eu")), "CLUSTER_SCALE_OUT", `{"count":0}`, `{}`, "invalid_field", 0, nil},
		// S1: scale in.
		"in by one without a word":          {state(regions{"eu": 2}, nil), "CLUSTER_SCALE_IN", `{}`, `{"status":"OK","deletion":{"count":1,"candidates":["eu-1"]}}`, "", 1, nil},
		"in over regions":                   {state(regions{"eu": 4, "us": 3}, nil, spread(`[{"name":"eu"},{"name":"us"}]`)), "CLUSTER_SCALE_IN", `{"count":3}`, `{"status":"OK","deletion":{"count":3,"regions":{"eu":2,"us":1},"candidates":["eu-1","eu-2","us-1"]}}`, "", 4, []string{"p-region_placement"}},
		"in, the youngest of each region":   {state(regions{"eu": 4, "us": 3}, nil, spread(`[{"name":"eu"},{"name":"us"}]`), deletion(`{"criteria":"YOUNGEST_FIRST","grace_period":90}`)), "CLUSTER_SCALE_IN", `{"count":3}`, `{"status":"OK","deletion":{"count":3,"regions":{"eu":2,"us":1},"candidates":["eu-4","eu-3","us-3"],"grace_period":90}}`, "", 4, []string{"p-region_placement", "p-deletion"}},
		"in, the policy listed first":       {state(regions{"eu": 2}, nil, deletion(`{"criteria":"YOUNGEST_FIRST"}`), spread(`[{"name":"eu"}]`)), "CLUSTER_SCALE_IN", `{}`, `{"status":"OK","deletion":{"count":1,"regions":{"eu":1},"candidates":["eu-2"]}}`, "", 1, []string{"p-deletion", "p-region_placement"}},
		"in, the oldest profile":            {state(regions{"eu": 3}, func(st *server.FleetState) { st.Members[2].Profile = 1 }, deletion(`{"criteria":"OLDEST_PROFILE_FIRST"}`)), "CLUSTER_SCALE_IN", `{}`, `{"status":"OK","deletion":{"count":1,"candidates":["eu-3"]}}`, "", 2, []string{"p-deletion"}},
		"in, failed, empty, then the other": {state(regions{"eu": 3}, func(st *server.FleetState) { st.Members[0].Tenants = 2; st.Members[2].Status = server.Failed }), "CLUSTER_SCALE_IN", `{"count":3}`, `{"status":"OK","deletion":{"count":3,"candidates":["eu-3","eu-2","eu-1"]}}`, "", 0, nil},
		"in, failed with tenants goes last": {state(regions{"eu": 2}, func(st *server.FleetState) { st.Members[0].Tenants = 1; st.Members[0].Status = server.Failed }), "CLUSTER_SCALE_IN", `{}`, `{"status":"OK","deletion":{"count":1,"candidates":["eu-2"]}}`, "", 1, nil},
		"in, empty ones within the regions": {state(regions{"eu": 2, "us": 2}, func(st *server.FleetState) { st.Members[0].Tenants = 1; st.Members[2].Tenants = 1 }, spread(`[{"name":"eu"},{"name":"us"}]`)), "CLUSTER_SCALE_IN", `{"count":2}`, `{"status":"OK","deletion":{"count":2,"regions":{"eu":1,"us":1},"candidates":["eu-2","us-2"]}}`, "", 2, []string{"p-region_placement"}},
		"in, a scaling policy":              {state(regions{"eu": 4}, nil, scaling(`{"event":"CLUSTER_SCALE_IN","adjustment":{"number":2}}`)), "CLUSTER_SCALE_IN", `{}`, `{"status":"OK","deletion":{"count":2,"candidates":["eu-1","eu-2"]}}`, "", 2, []string{"p-scaling"}},
		"in, below the exact size":          {state(regions{"eu": 2}, nil, scaling(`{"event":"CLUSTER_SCALE_IN","adjustment":{"type":"EXACT_CAPACITY","number":3}}`)), "CLUSTER_SCALE_IN", `{}`, `{"status":"OK"}`, "", 2, []string{"p-scaling"}},
		"in, below min":                     {state(regions{"eu": 2}, bounds(2, -1)), "CLUSTER_SCALE_IN", `{}`, `{"status":"ERROR","reason":"The target capacity (1) is less than the fleet's min_size (2)."}`, "target_below_fleet_min_size", 2, nil},
		"in, still above max":               {state(regions{"eu": 5}, bounds(0, 2)), "CLUSTER_SCALE_IN", `{}`, `{"status":"OK","deletion":{"count":1,"candidates":["eu-1"]}}`, "", 4, nil},
		"in, more than there are":           {state(regions{"eu": 2}, nil), "CLUSTER_SCALE_IN", `{"count":3}`, `{"status":"ERROR","reason":"The target capacity (-1) is less than the fleet's min_size (0)."}`, "target_below_fleet_min_size", 2, nil},
		"in, elsewhere than listed":         {state(regions{"sg": 2}, nil, spread(`[{"name":"eu"}]`)), "CLUSTER_SCALE_IN", `{}`, `{"status":"ERROR","reason":"There is no feasible plan to handle all nodes."}`, "no_feasible_plan", 2, nil},
		"in, some are not requested yet":    {state(regions{"eu": 1}, func(st *server.FleetState) { st.Fleet.Size, st.Fleet.Regions["eu"] = 3, 3 }), "CLUSTER_SCALE_IN", `{"count":2}`, `{"status":"ERROR","reason":"2 servers must be removed, more than there are."}`, "too_few_nodes", 3, nil},
		// The bounds come before the policies.
		"node above max, and unusable": {
			state(regions{"eu": 3}, bounds(0, 3), spread(`[{"name":"sg","cap":0}]`)), "NODE_CREATE", `{}`,
			above3, "target_above_fleet_max_size", 3, nil,
		},
		"out above max, and unusable": {
			state(regions{"eu": 3}, bounds(0, 3), spread(`[{"name":"sg","cap":0}]`)),
			"CLUSTER_SCALE_OUT", `{"count":1}`, above3, "target_above_fleet_max_size", 3, nil,
		},
		"in below min, and unusable": {
			state(regions{"eu": 3}, bounds(3, 3), spread(`[{"name":"sg"}]`)), "CLUSTER_SCALE_IN", `{"count":1}`,
			`{"status":"ERROR","reason":"The target capacity (2) is less than the fleet's min_size (3)."}`,
			"target_below_fleet_min_size", 3, nil,
		},
		"out, a scaling policy above": {
			state(regions{"eu": 1}, bounds(0, 3), scaling(`{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":3}}`)),
			"CLUSTER_SCALE_OUT", `{}`, above3, "target_above_fleet_max_size", 1, nil,
		},
		"out, best effort up to min": {
			state(regions{"eu": 1}, bounds(5, 9),
				scaling(`{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":1,"best_effort":true}}`)),
			"CLUSTER_SCALE_OUT", `{}`, `{"status":"OK","creation":{"count":4,"regions":{"eu":4}}}`, "", 5,
			[]string{"p-scaling"},
		},
		// S3: resize.
		"resize up":                  {state(regions{"eu": 1}, nil, three), "CLUSTER_RESIZE", `{"adjustment_type":"EXACT_CAPACITY","number":4}`, `{"status":"OK","creation":{"count":3,"regions":{"eu":1,"us":1,"sg":1}}}`, "", 4, []string{"p-region_placement"}},
		"resize down":                {state(regions{"eu": 3}, nil, three), "CLUSTER_RESIZE", `{"adjustment_type":"CHANGE_IN_CAPACITY","number":-2}`, `{"status":"OK","deletion":{"count":2,"regions":{"eu":2},"candidates":["eu-1","eu-2"]}}`, "", 1, []string{"p-region_placement"}},
		"resize by percent":          {state(regions{"eu": 3}, home("eu")), "CLUSTER_RESIZE", `{"adjustment_type":"CHANGE_IN_PERCENTAGE","number":10,"min_step":2}`, `{"status":"OK","creation":{"count":2,"regions":{"eu":2}}}`, "", 5, nil},
		"resize to what it is":       {state(regions{"eu": 3}, nil, three), "CLUSTER_RESIZE", `{"adjustment_type":"EXACT_CAPACITY","number":3}`, `{"status":"OK"}`, "", 3, nil},
		"resize, refused":            {state(regions{"eu": 1}, bounds(0, 3)), "CLUSTER_RESIZE", `{"adjustment_type":"EXACT_CAPACITY","number":4,"strict":true}`, `{"status":"ERROR","reason":"The target capacity (4) is greater than the fleet's max_size (3)."}`, "target_above_fleet_max_size", 1, nil},
		"resize, within the bounds":  {state(regions{"eu": 1}, bounds(0, 3)), "CLUSTER_RESIZE", `{"adjustment_type":"EXACT_CAPACITY","number":4,"strict":false}`, `{"status":"OK","creation":{"count":2,"regions":{"eu":2}}}`, "", 3, nil},
		"resize to the bounds given": {state(regions{"eu": 1}, bounds(0, 9)), "CLUSTER_RESIZE", `{"min_size":2}`, `{"status":"OK","creation":{"count":1,"regions":{"eu":1}}}`, "", 2, nil},
		"resize, below the given min": {
			state(regions{"eu": 1}, bounds(0, 9)), "CLUSTER_RESIZE", `{"adjustment_type":"EXACT_CAPACITY","number":1,"min_size":2,"strict":true}`,
			`{"status":"ERROR","reason":"The target capacity (1) is less than the specified min_size (2)."}`, "target_below_min_size", 1, nil,
		},
		"resize passes over scaling": {state(regions{"eu": 1}, home("eu"), scaling(`{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":9}}`)), "CLUSTER_RESIZE", `{"adjustment_type":"CHANGE_IN_CAPACITY","number":1}`, `{"status":"OK","creation":{"count":1,"regions":{"eu":1}}}`, "", 2, nil},
		// S4: node create.
		"node by policy":                {state(regions{"eu": 1}, nil, three), "NODE_CREATE", `{}`, `{"status":"OK","creation":{"count":1,"regions":{"us":1}}}`, "", 2, []string{"p-region_placement"}},
		"node in its region over a cap": {state(regions{"us": 1}, nil, three), "NODE_CREATE", `{"region":"us"}`, `{"status":"OK","creation":{"count":1,"regions":{"us":1}}}`, "", 2, []string{"p-region_placement"}},
		"node in a region not served":   {state(nil, func(st *server.FleetState) { st.Usable = []prego.Region{"eu"} }, three), "NODE_CREATE", `{"region":"us"}`, `{"status":"ERROR","reason":"No region is found usable."}`, "no_usable_region", 0, nil},
		"node at home":                  {state(nil, home("eu")), "NODE_CREATE", `{}`, `{"status":"OK","creation":{"count":1,"regions":{"eu":1}}}`, "", 1, nil},
		"node above max":                {state(regions{"eu": 3}, bounds(0, 3)), "NODE_CREATE", `{}`, `{"status":"ERROR","reason":"The target capacity (4) is greater than the fleet's max_size (3)."}`, "target_above_fleet_max_size", 3, nil},
		"node below min":                {state(nil, bounds(3, 3)), "NODE_CREATE", `{}`, `{"status":"OK","creation":{"count":1,"regions":{"eu":1}}}`, "", 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := scale.Plan(c.st, action(c.kind, c.inputs))
			require.NoError(t, err)
			require.JSONEq(t, c.data, string(p.Data))
			require.Equal(t, c.reason, p.Reason, p.Message)
			require.Equal(t, c.used, used(p, c.used))
			if c.reason != "" {
				require.NotEmpty(t, p.Message)
				require.Empty(t, p.Steps)
			}
			if c.inputs != `{"count":0}` {
				require.Equal(t, c.desired, p.Desired)
			}
		})
	}
}

// used are the policies that took part; a refused plan does not keep them.
func used(p server.FleetPlan, want []string) []string {
	if p.Reason != "" {
		return want
	}
	return p.Used
}

// TestPlansWithUnreadablePolicies: stored specs are valid, unless somebody changed the rows.
func TestPlansWithUnreadablePolicies(t *testing.T) {
	t.Parallel()
	attached := func(kind server.PolicyType, spec string) server.Attachment {
		f := server.FleetPolicy{PolicyID: "x", Type: kind, Spec: json.RawMessage(spec)}
		return server.Attachment{FleetPolicy: f, Enabled: true}
	}
	for _, kind := range []server.PolicyType{"scaling", "region_placement", "deletion"} {
		_, err := scale.Plan(state(regions{"eu": 1}, nil, attached(kind, `[`)), action(server.ClusterScaleIn, `{}`))
		require.EqualError(t, err, "policy x: unexpected end of JSON input")
	}
	newest := attached("deletion", `{"criteria":"NEWEST"}`)
	p, err := scale.Plan(state(regions{"eu": 1}, nil, newest), action(server.ClusterScaleIn, `{}`))
	require.NoError(t, err)
	require.Equal(t, "invalid_field", p.Reason)
}

// TestRandomVictimsDifferByAction: the seed is the fleet's name and the action's number.
func TestRandomVictimsDifferByAction(t *testing.T) {
	t.Parallel()
	st := state(regions{"eu": 9}, nil, policy(t, server.PolicyDeletion, `{"criteria":"RANDOM"}`))
	seen := map[string]bool{}
	for seq := range 20 {
		a := action(server.ClusterScaleIn, `{}`)
		a.Seq = seq
		p, err := scale.Plan(st, a)
		require.NoError(t, err)
		seen[string(p.Data)] = true
	}
	require.Greater(t, len(seen), 1)
}

func TestPlanOfAReplacement(t *testing.T) {
	t.Parallel()
	old := func(ids ...prego.ServerID) func(*server.FleetState) {
		return func(st *server.FleetState) {
			for i := range st.Members {
				if slices.Contains(ids, st.Members[i].ServerID) {
					st.Members[i].Profile = 1
				}
			}
		}
	}
	steps := func(p server.FleetPlan) (out []string) {
		for _, s := range p.Steps {
			out = append(out, fmt.Sprintf("%d %s %s%s", s.Round, s.Op, s.Region, s.ServerID))
		}
		return out
	}
	p, err := scale.Plan(state(regions{"eu": 2, "us": 2}, old("eu-1", "us-1", "us-2")), action(server.ClusterReplace, `{"max_surge":2}`))
	require.NoError(t, err)
	require.JSONEq(t, `{"status":"OK","replacement":{"count":3,"regions":{"eu":1,"us":2},"max_surge":2}}`, string(p.Data))
	require.Equal(t, []string{"1 create eu", "1 delete eueu-1", "1 create us", "1 delete usus-1", "2 create us", "2 delete usus-2"}, steps(p))
	require.EqualValues(t, 4, p.Desired)

	p, err = scale.Plan(state(regions{"eu": 2}, nil), action(server.ClusterReplace, `{}`))
	require.NoError(t, err)
	require.JSONEq(t, `{"status":"OK","replacement":{"count":0,"regions":{},"max_surge":1}}`, string(p.Data))
	require.Empty(t, p.Steps)

	p, err = scale.Plan(state(regions{"eu": 1}, func(st *server.FleetState) { old("eu-1")(st); st.Usable = nil }), action(server.ClusterReplace, `{}`))
	require.NoError(t, err)
	require.Equal(t, "no_usable_region", p.Reason)
	require.Empty(t, p.Steps)

	p, err = scale.Plan(state(regions{"eu": 3}, func(st *server.FleetState) { old("eu-1", "eu-2")(st); st.Fleet.Size = server.MaxFleetSize - 1 }), action(server.ClusterReplace, `{"max_surge":2}`))
	require.NoError(t, err)
	require.Equal(t, "target_above_service_limit", p.Reason)
	almost := func(st *server.FleetState) { old("eu-1", "eu-2")(st); st.Fleet.Size = 999 }
	p, err = scale.Plan(state(regions{"eu": 3}, almost), action(server.ClusterReplace, `{"max_surge":1}`))
	require.NoError(t, err)
	require.Empty(t, p.Reason, "a surge to the limit itself")
}

func step(op server.FleetStepOp, id prego.ServerID, r prego.Region, round int, st server.FleetStepState, replan ...bool) server.FleetStep {
	return server.FleetStep{Op: op, ServerID: id, Region: r, Round: round, State: st, Replan: len(replan) > 0}
}

func TestReplan(t *testing.T) {
	t.Parallel()
	three := policy(t, server.PolicyRegionPlacement, `{"regions":[{"name":"eu","cap":3},{"name":"us"},{"name":"sg"}]}`)
	make3 := `{"status":"OK","creation":{"count":3,"regions":{"eu":1,"us":1,"sg":1}}}`
	first := []server.FleetStep{
		step("create", "a", "eu", 1, server.FleetStepDone), step("create", "b", "us", 1, server.FleetStepFailed), step("create", "c", "sg", 1, server.FleetStepDone),
	}
	more := func(s ...server.FleetStep) []server.FleetStep { return append(slices.Clone(first), s...) }
	for name, c := range map[string]struct {
		st     server.FleetState
		kind   server.FleetActionKind
		inputs string
		steps  []server.FleetStep
		want   []string // round region
		data   string
	}{
		"elsewhere":                  {state(regions{"eu": 1, "sg": 1}, nil, three), "CLUSTER_SCALE_OUT", `{"count":3}`, first, []string{"2 eu"}, `{"status":"OK","creation":{"count":3,"regions":{"eu":2,"sg":1}}}`},
		"made up for":                {state(regions{"eu": 2, "sg": 1}, nil, three), "CLUSTER_SCALE_OUT", `{"count":3}`, more(step("create", "d", "eu", 2, server.FleetStepDone, true)), nil, make3},
		"failed there as well":       {state(regions{"eu": 1, "sg": 1}, nil, three), "CLUSTER_SCALE_OUT", `{"count":3}`, more(step("create", "d", "eu", 2, server.FleetStepFailed, true)), []string{"3 sg"}, `{"status":"OK","creation":{"count":3,"regions":{"eu":1,"sg":2}}}`},
		"failed everywhere":          {state(regions{"eu": 1}, nil, three), "CLUSTER_SCALE_OUT", `{"count":3}`, more(step("create", "d", "eu", 2, server.FleetStepFailed, true), step("create", "e", "sg", 3, server.FleetStepFailed, true)), nil, make3},
		"caps hold":                  {state(regions{"eu": 3, "sg": 1}, func(st *server.FleetState) { st.Usable = []prego.Region{"eu", "us"} }, three), "CLUSTER_SCALE_OUT", `{"count":3}`, first, nil, make3},
		"the bounds hold":            {state(regions{"eu": 1, "sg": 2}, func(st *server.FleetState) { st.Fleet.MaxSize = 3 }, three), "CLUSTER_SCALE_OUT", `{"count":3}`, first, nil, make3},
		"no policy":                  {state(regions{"eu": 2}, nil), "CLUSTER_SCALE_OUT", `{"count":3}`, first, nil, make3},
		"policy disabled":            {state(regions{"eu": 2}, nil, off(three)), "CLUSTER_SCALE_OUT", `{"count":3}`, first, nil, make3},
		"only in the regions asked":  {state(regions{"eu": 1, "sg": 1}, nil, three), "CLUSTER_SCALE_OUT", `{"count":3,"regions":["us","sg"]}`, first, []string{"2 sg"}, `{"status":"OK","creation":{"count":3,"regions":{"eu":1,"sg":2}}}`},
		"a node in a given region":   {state(nil, nil, three), "NODE_CREATE", `{"region":"us"}`, first[1:2], nil, make3},
		"a node of any region":       {state(nil, nil, three), "NODE_CREATE", `{}`, first[1:2], []string{"2 eu"}, `{"status":"OK","creation":{"count":3,"regions":{"eu":1}}}`},
		"only a server that is kept": {state(nil, nil, three), "CLUSTER_SCALE_IN", `{}`, []server.FleetStep{step("delete", "a", "eu", 1, server.FleetStepKept)}, nil, make3},
		"the service limit holds": {
			state(regions{"eu": 1, "sg": 1}, func(st *server.FleetState) { st.Fleet.Size = 999 }, three),
			"CLUSTER_SCALE_OUT", `{"count":3}`, more(first[1]),
			[]string{"2 eu"},
			`{"status":"OK","creation":{"count":3,"regions":{"eu":2,"sg":1}}}`,
		},
		"and leaves none": {
			state(regions{"eu": 1, "sg": 1}, func(st *server.FleetState) { st.Fleet.Size = 1000 }, three),
			"CLUSTER_SCALE_OUT", `{"count":3}`, first, nil, make3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := action(c.kind, c.inputs)
			a.Data, a.Steps = json.RawMessage(make3), c.steps
			r, err := scale.Replan(c.st, a)
			require.NoError(t, err)
			require.Empty(t, r.Skip)
			var got []string
			for _, s := range r.More {
				require.True(t, s.Replan)
				require.Equal(t, server.StepOpCreate, s.Op)
				got = append(got, fmt.Sprintf("%d %s", s.Round, s.Region))
			}
			require.Equal(t, c.want, got)
			require.JSONEq(t, c.data, string(r.Data))
		})
	}
	a := action(server.ClusterScaleOut, `{}`)
	a.Data = json.RawMessage(`[`)
	_, err := scale.Replan(state(nil, nil), a)
	require.ErrorContains(t, err, "data of action 3: unexpected end of JSON input")
	a.Data = json.RawMessage(make3)
	three.Spec = json.RawMessage(`[`)
	_, err = scale.Replan(state(nil, nil, three), a)
	require.EqualError(t, err, "policy p-region_placement: unexpected end of JSON input")
}

// TestReplanOfAReplacement: old servers are removed only once new ones are ready.
func TestReplanOfAReplacement(t *testing.T) {
	t.Parallel()
	const planned, done, failed, kept = server.FleetStepPlanned, server.FleetStepDone, server.FleetStepFailed, server.FleetStepKept
	for name, c := range map[string]struct {
		steps []server.FleetStep
		skip  []string
	}{
		"the new one failed": {[]server.FleetStep{
			step("create", "n1", "eu", 1, failed), step("delete", "o1", "eu", 1, planned), step("create", "n2", "eu", 2, planned), step("delete", "o2", "eu", 2, planned),
		}, []string{"o1", "n2", "o2"}},
		"half of them failed": {[]server.FleetStep{
			step("create", "n1", "eu", 1, failed), step("create", "n2", "eu", 1, done), step("delete", "o1", "eu", 1, planned), step("delete", "o2", "eu", 1, planned), step("create", "n3", "eu", 2, planned),
		}, []string{"o2", "n3"}},
		"elsewhere one stands": {[]server.FleetStep{
			step("create", "n1", "eu", 1, failed), step("create", "n2", "us", 1, done), step("delete", "o1", "eu", 1, planned), step("delete", "o2", "us", 1, planned),
		}, []string{"o1"}},
		"the old one stays": {[]server.FleetStep{
			step("create", "n1", "eu", 1, done), step("delete", "o1", "eu", 1, kept), step("create", "n2", "eu", 2, planned), step("delete", "o2", "eu", 2, planned),
		}, []string{"n2", "o2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := action(server.ClusterReplace, `{}`)
			a.Data, a.Steps = json.RawMessage(`{"status":"OK"}`), c.steps
			r, err := scale.Replan(state(regions{"eu": 2}, nil), a)
			require.NoError(t, err)
			require.Empty(t, r.More)
			var got []string
			for _, s := range r.Skip {
				require.NotEmpty(t, s.Message)
				got = append(got, string(s.ServerID))
			}
			require.Equal(t, c.skip, got)
			require.JSONEq(t, `{"status":"OK"}`, string(r.Data))
		})
	}
}

func TestGracePeriod(t *testing.T) {
	t.Parallel()
	a := action(server.ClusterScaleIn, `{}`)
	a.Data = json.RawMessage(`{"status":"OK","deletion":{"count":1,"grace_period":90}}`)
	require.Equal(t, 90*time.Second, scale.GracePeriod(a))
	a.Data = json.RawMessage(`{"status":"OK","deletion":{"count":1}}`)
	require.Zero(t, scale.GracePeriod(a))
	require.Equal(t, time.Minute, scale.GracePeriod(action(server.ClusterReplace, `{"grace_period":60}`)))
	require.Zero(t, scale.GracePeriod(action(server.ClusterReplace, `{}`)))
	require.Zero(t, scale.GracePeriod(action(server.ClusterReplace, `{"grace_period":-1}`)))
	a.Data = json.RawMessage(`[`)
	require.Zero(t, scale.GracePeriod(a))
	a.Data = json.RawMessage(`{"status":"OK"}`)
	require.Zero(t, scale.GracePeriod(a))
}
