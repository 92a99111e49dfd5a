package scale_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/scale"
	"github.com/prego/prego/server"
)

// drawState is any fleet with any policies.
func drawState(t *rapid.T) server.FleetState {
	have := regions{}
	for _, r := range prego.Regions() {
		have[r] = rapid.IntRange(0, 6).Draw(t, "members in "+string(r))
	}
	var policies []server.Attachment
	add := func(kind server.PolicyType, raw string) {
		a := policy(t, kind, raw)
		a.Enabled = rapid.IntRange(0, 4).Draw(t, "off") > 0
		policies = append(policies, a)
	}
	event := rapid.SampledFrom([]string{"CLUSTER_SCALE_OUT", "CLUSTER_SCALE_IN"})
	kinds := rapid.SampledFrom([]string{"EXACT_CAPACITY", "CHANGE_IN_CAPACITY", "CHANGE_IN_PERCENTAGE"})
	if rapid.Bool().Draw(t, "scaling") {
		add(server.PolicyScaling, fmt.Sprintf(`{"event":%q,"adjustment":{"type":%q,"number":%d,"best_effort":%t}}`, event.Draw(t, "event"), kinds.Draw(t, "adjustment"),
			rapid.IntRange(1, 60).Draw(t, "number"), rapid.Bool().Draw(t, "best effort")))
	}
	if rapid.Bool().Draw(t, "placement") {
		var specs []map[string]any
		for _, r := range rapid.Permutation(prego.Regions()).Draw(t, "order")[:rapid.IntRange(1, 3).Draw(t, "listed")] {
			specs = append(specs, map[string]any{"name": r, "weight": rapid.IntRange(len(specs)&1^1, 5).Draw(t, "weight"), "cap": rapid.IntRange(-1, 8).Draw(t, "cap")})
		}
		raw, _ := json.Marshal(map[string]any{"regions": specs})
		add(server.PolicyRegionPlacement, string(raw))
	}
	if rapid.Bool().Draw(t, "deletion") {
		add(server.PolicyDeletion, fmt.Sprintf(`{"criteria":%q}`, rapid.SampledFrom([]string{"OLDEST_FIRST", "YOUNGEST_FIRST", "OLDEST_PROFILE_FIRST", "RANDOM"}).Draw(t, "criteria")))
	}
	return state(have, func(st *server.FleetState) {
		if rapid.Bool().Draw(t, "home") {
			st.Fleet.Region = rapid.SampledFrom(prego.Regions()).Draw(t, "home region")
		}
		st.Fleet.MinSize = rapid.Int64Range(0, 6).Draw(t, "min")
		if rapid.Bool().Draw(t, "bounded") {
			st.Fleet.MaxSize = st.Fleet.MinSize + rapid.Int64Range(0, 20).Draw(t, "max")
		}
		st.Usable = rapid.Permutation(prego.Regions()).Draw(t, "usable")[:rapid.IntRange(0, 3).Draw(t, "usable regions")]
		for i := range st.Members {
			st.Members[i].Tenants = max(0, rapid.IntRange(-2, 3).Draw(t, "tenants"))
			st.Members[i].Profile = rapid.IntRange(1, 2).Draw(t, "profile")
			if rapid.IntRange(0, 5).Draw(t, "broken") == 0 {
				st.Members[i].Status = server.Failed
			}
		}
	}, policies...)
}

func drawAction(t *rapid.T) server.FleetAction {
	n := rapid.IntRange(1, 9).Draw(t, "n")
	all := []server.FleetAction{
		action("CLUSTER_SCALE_OUT", `{}`), action("CLUSTER_SCALE_OUT", fmt.Sprintf(`{"count":%d}`, n)), action("CLUSTER_SCALE_OUT", fmt.Sprintf(`{"count":%d,"regions":["us","eu"]}`, n)),
		action("CLUSTER_SCALE_IN", `{}`), action("CLUSTER_SCALE_IN", fmt.Sprintf(`{"count":%d}`, n)),
		action("CLUSTER_RESIZE", fmt.Sprintf(`{"adjustment_type":"EXACT_CAPACITY","number":%d,"strict":true}`, n)), action("CLUSTER_RESIZE", fmt.Sprintf(`{"adjustment_type":"CHANGE_IN_CAPACITY","number":%d}`, n-5)),
		action("NODE_CREATE", `{}`), action("NODE_CREATE", `{"region":"sg"}`), action("CLUSTER_REPLACE", fmt.Sprintf(`{"max_surge":%d}`, n)),
	}
	return rapid.SampledFrom(all).Draw(t, "action")
}

func member(st server.FleetState, id prego.ServerID) (server.FleetMember, bool) {
	i := slices.IndexFunc(st.Members, func(m server.FleetMember) bool { return m.ServerID == id })
	if i < 0 {
		return server.FleetMember{}, false
	}
	return st.Members[i], true
}

// capOf is a region's in the placement policy that is asked, -1 for none.
func capOf(t require.TestingT, st server.FleetState, r string) int64 {
	for _, p := range st.Fleet.Policies {
		var s struct {
			Regions []struct {
				Name string `json:"name"`
				Cap  int64  `json:"cap"`
			} `json:"regions"`
		}
		if !p.Enabled || p.Type != server.PolicyRegionPlacement {
			continue
		}
		require.NoError(t, json.Unmarshal(p.Spec, &s))
		for _, x := range s.Regions {
			if x.Name == r {
				return x.Cap
			}
		}
	}
	return -1
}

// TestPlansHoldWhatTheySay for any fleet, policies and action.
func TestPlansHoldWhatTheySay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		st, a := drawState(t), drawAction(t)
		p, err := scale.Plan(st, a)
		require.NoError(t, err)
		again, err := scale.Plan(st, a)
		require.NoError(t, err)
		require.Equal(t, p, again, "the same input, the same plan")
		var data scale.NodeData
		require.NoError(t, json.Unmarshal(p.Data, &data))
		if p.Reason != "" {
			require.Empty(t, p.Steps)
			require.EqualValues(t, "ERROR", data.Status)
			require.Nil(t, data.Creation)
			require.Nil(t, data.Deletion)
			require.Nil(t, data.Replacement)
			require.Equal(t, st.Fleet.Size, p.Desired)
			return
		}
		require.EqualValues(t, "OK", data.Status)
		made, gone := map[string]int64{}, map[string]int64{}
		var victims []prego.ServerID
		for _, s := range p.Steps {
			if s.Op == server.StepOpCreate {
				require.Contains(t, st.Usable, s.Region)
				made[string(s.Region)]++
				continue
			}
			m, ok := member(st, s.ServerID)
			require.True(t, ok, "a victim is a member")
			require.Equal(t, m.Region, s.Region)
			require.NotContains(t, victims, s.ServerID, "each goes once")
			victims = append(victims, s.ServerID)
			gone[string(s.Region)]++
		}
		if a.Action == server.ClusterReplace {
			require.Equal(t, made, gone, "each is replaced in its region")
			require.EqualValues(t, len(victims), data.Replacement.Count)
			for _, id := range victims {
				m, _ := member(st, id)
				require.Less(t, m.Profile, st.Fleet.Profile)
			}
			surge := map[int]int64{}
			for _, s := range p.Steps {
				if s.Op == server.StepOpCreate {
					surge[s.Round]++
					require.LessOrEqual(t, surge[s.Round], data.Replacement.Surge)
				}
			}
			return
		}
		require.True(t, len(made) == 0 || len(gone) == 0)
		size := st.Fleet.Size
		if c := data.Creation; c != nil {
			require.Equal(t, c.Regions, made)
			size += *c.Count
			if st.Fleet.MaxSize != server.NoMaxSize {
				require.LessOrEqual(t, size, st.Fleet.MaxSize)
			}
			for r, n := range made {
				if most := capOf(t, st, r); most >= 0 && string(a.Inputs) != `{"region":"sg"}` {
					require.LessOrEqual(t, st.Fleet.Regions[prego.Region(r)]+n, most)
				}
			}
		}
		if d := data.Deletion; d != nil {
			require.Equal(t, d.Candidates, prego.Strings(victims))
			require.Len(t, victims, int(*d.Count))
			if d.Regions != nil {
				require.Equal(t, d.Regions, gone)
			}
			size -= *d.Count
			require.GreaterOrEqual(t, size, st.Fleet.MinSize)
			emptyFirst(t, st, victims, d.Regions != nil)
		}
		require.Equal(t, size, p.Desired)
	})
}

// emptyFirst: no server with tenants goes while an empty one stays that could have
// gone instead.
func emptyFirst(t *rapid.T, st server.FleetState, victims []prego.ServerID, withinRegions bool) {
	for _, id := range victims {
		m, _ := member(st, id)
		if m.Tenants == 0 {
			continue
		}
		for _, other := range st.Members {
			if other.Tenants == 0 && !slices.Contains(victims, other.ServerID) && (!withinRegions || other.Region == m.Region) {
				t.Fatalf("%s has %d tenants and goes, %s is empty and stays", id, m.Tenants, other.ServerID)
			}
		}
	}
}

// TestReplansMakeUpForWhatIsMissing lets any servers fail, round after round: no region with a failure is used again,
// no more are created than wanted, caps and bounds hold, and it ends.
func TestReplansMakeUpForWhatIsMissing(t *testing.T) {
	t.Parallel()
	rounds, bounded := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		st, a := drawState(t), drawAction(t)
		if rapid.IntRange(0, 3).Draw(t, "any fleet") > 0 { // else there is hardly ever a region to turn to
			st.Usable = prego.Regions()
			var specs []map[string]any
			for _, r := range st.Usable {
				specs = append(specs, map[string]any{"name": r, "weight": rapid.IntRange(1, 5).Draw(t, "weight"), "cap": rapid.IntRange(-1, 12).Draw(t, "cap")})
			}
			raw, err := json.Marshal(map[string]any{"regions": specs})
			require.NoError(t, err)
			st.Fleet.Policies = append(slices.DeleteFunc(st.Fleet.Policies, func(a server.Attachment) bool { return a.Type == server.PolicyRegionPlacement }),
				policy(t, server.PolicyRegionPlacement, string(raw)))
			if rapid.Bool().Draw(t, "has a largest size") {
				st.Fleet.MaxSize = max(st.Fleet.MinSize, st.Fleet.Size+rapid.Int64Range(1, 12).Draw(t, "room"))
			}
			a = action("CLUSTER_SCALE_OUT", fmt.Sprintf(`{"count":%d}`, rapid.IntRange(1, 9).Draw(t, "count")))
		}
		p, err := scale.Plan(st, a)
		require.NoError(t, err)
		a.Data, a.Steps = p.Data, slices.Clone(p.Steps)
		if p.Reason != "" || a.Action == server.ClusterReplace {
			return
		}
		wanted := 0
		for i := range a.Steps {
			a.Steps[i].ServerID, a.Steps[i].State = prego.ServerID(fmt.Sprint("s-", i)), server.FleetStepPlanned
			if a.Steps[i].Op == server.StepOpCreate {
				wanted++
			}
		}
		for round := 1; ; round++ {
			require.LessOrEqual(t, round, len(prego.Regions())+1, "each round loses a region")
			lost, failed := map[prego.Region]bool{}, false
			for i := range a.Steps {
				s := &a.Steps[i]
				if s.Op == server.StepOpCreate && s.State == server.FleetStepPlanned {
					s.State = server.FleetStepDone
					st.Fleet.Regions[s.Region]++
					st.Fleet.Size++
					if rapid.IntRange(0, 2).Draw(t, "fails") == 0 {
						s.State, failed = server.FleetStepFailed, true
						if rapid.IntRange(0, 3).Draw(t, "kept for debugging") > 0 {
							st.Fleet.Regions[s.Region]--
							st.Fleet.Size--
						}
					}
				}
				lost[s.Region] = lost[s.Region] || s.State == server.FleetStepFailed
			}
			if !failed {
				break
			}
			r, err := scale.Replan(st, a)
			require.NoError(t, err)
			require.Empty(t, r.Skip)
			added := map[prego.Region]int64{}
			if len(r.More) > 0 {
				rounds++
			}
			for i, s := range r.More {
				require.False(t, lost[s.Region], "%s failed", s.Region)
				require.Contains(t, st.Usable, s.Region)
				require.Equal(t, round+1, s.Round)
				added[s.Region]++
				if most := capOf(t, st, string(s.Region)); most >= 0 {
					require.LessOrEqual(t, st.Fleet.Regions[s.Region]+added[s.Region], most)
				}
				r.More[i].ServerID, r.More[i].State = prego.ServerID(fmt.Sprintf("r-%d-%d", round, i)), server.FleetStepPlanned
			}
			if st.Fleet.MaxSize != server.NoMaxSize && len(r.More) > 0 {
				bounded++
				require.LessOrEqual(t, st.Fleet.Size+int64(len(r.More)), st.Fleet.MaxSize)
			}
			a.Steps, a.Data = append(a.Steps, r.More...), r.Data
			stand := 0
			for _, s := range a.Steps {
				if s.Op == server.StepOpCreate && s.State != server.FleetStepFailed {
					stand++
				}
			}
			require.LessOrEqual(t, stand, wanted, "never more than were wanted")
			if len(r.More) == 0 {
				break
			}
		}
	})
	t.Logf("made up for in %d rounds, %d of them of a fleet with a largest size", rounds, bounded)
	require.Positive(t, rounds, "nothing was made up for")
	require.Positive(t, bounded, "nothing was made up for in a fleet with a largest size")
}
