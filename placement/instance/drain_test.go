package instance_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/instance"
	"github.com/prego/prego/workload"
)

func TestPlanDrain(t *testing.T) {
	t.Parallel()
	i := func(id, group string, org prego.OrgID, change ...func(*instance.DrainInstance)) instance.DrainInstance {
		v := instance.DrainInstance{ID: id, Number: int64(len(id)), GroupID: prego.GroupID(group), OrgID: org}
		for _, f := range change {
			f(&v)
		}
		return v
	}
	leaving := func(v *instance.DrainInstance) { v.Leaving = true }
	going := func(v *instance.DrainInstance) { v.Leaving, v.Going = true, true }
	for name, tc := range map[string]struct {
		state instance.DrainState
		want  []string
	}{
		"nothing is there":                {instance.DrainState{Limit: 1}, nil},
		"one at a time":                   {instance.DrainState{Limit: 1, Instances: []instance.DrainInstance{i("b", "g", "o"), i("a", "g", "o")}}, []string{"a"}},
		"a drain is in progress":          {instance.DrainState{Limit: 1, Instances: []instance.DrainInstance{i("a", "g", "o", leaving), i("b", "g", "o")}}, nil},
		"a stopping instance is not":      {instance.DrainState{Limit: 1, Instances: []instance.DrainInstance{i("a", "g", "o", going), i("b", "g", "o")}}, []string{"b"}},
		"another server's count":          {instance.DrainState{Limit: 2, Elsewhere: map[prego.OrgID]int{"o": 1}, Instances: []instance.DrainInstance{i("a", "g", "o"), i("b", "g", "o")}}, []string{"a"}},
		"orgs don't wait for each other":  {instance.DrainState{Limit: 1, Elsewhere: map[prego.OrgID]int{"o": 1}, Instances: []instance.DrainInstance{i("a", "g", "o"), i("b", "h", "p")}}, []string{"b"}},
		"groups take turns":               {instance.DrainState{Limit: 2, Instances: []instance.DrainInstance{i("a", "g", "o"), i("b", "g", "o"), i("c", "h", "o")}}, []string{"a", "c"}},
		"each goes once":                  {instance.DrainState{Limit: 5, Instances: []instance.DrainInstance{i("a", "g", "o"), i("b", "g", "o")}}, []string{"a", "b"}},
		"a group that is stuck is behind": {instance.DrainState{Limit: 2, Instances: []instance.DrainInstance{i("a", "g", "o", leaving), i("b", "g", "o"), i("c", "h", "o")}}, []string{"c"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, instance.PlanDrain(tc.state))
		})
	}
}

// drained is an instance with its server.
type drained struct {
	instance.GroupInstance
	group, server int
}

// drainWorld is groups of orgs on servers. Some servers are being emptied.
type drainWorld struct {
	*rapid.T
	groups  []instance.GroupState
	list    []drained
	closed  []bool // by server
	room    []int  // instances that a server takes, by server
	limit   int
	numbers []int64
}

func (w *drainWorld) orgOf(group int) prego.OrgID { return prego.OrgID(fmt.Sprint(group % 2)) }

func (w *drainWorld) on(server int) (n int) {
	for _, v := range w.list {
		if v.server == server {
			n++
		}
	}
	return n
}

func (w *drainWorld) add(group int, state workload.InstanceState) bool {
	for s := range w.closed {
		if !w.closed[s] && w.on(s) < w.room[s] {
			w.numbers[group]++
			w.list = append(w.list, drained{group: group, server: s, GroupInstance: instance.GroupInstance{
				ID: fmt.Sprintf("%d-%d", group, w.numbers[group]), Number: w.numbers[group], Release: 1, State: state, Drain: time.Second,
			}})
			return true
		}
	}
	return false
}

// drain takes one step of a server's drain.
func (w *drainWorld) drain(server int) {
	s := instance.DrainState{Limit: w.limit, Elsewhere: map[prego.OrgID]int{}}
	for _, v := range w.list {
		going := v.State == workload.InstanceDraining || v.State == workload.InstanceFailed
		switch {
		case v.server == server:
			s.Instances = append(s.Instances, instance.DrainInstance{
				ID: v.ID, Number: v.Number, GroupID: prego.GroupID(fmt.Sprint(v.group)), OrgID: w.orgOf(v.group), Leaving: v.Leaving, Going: going,
			})
		case v.Leaving && !going:
			s.Elsewhere[w.orgOf(v.group)]++
		}
	}
	for _, id := range instance.PlanDrain(s) {
		i := slices.IndexFunc(w.list, func(v drained) bool { return v.ID == id })
		require.Equal(w, server, w.list[i].server, "only its own instances leave")
		w.list[i].Leaving = true
	}
	moving := map[prego.OrgID]int{}
	for _, v := range w.list {
		if v.Leaving && v.State != workload.InstanceDraining && v.State != workload.InstanceFailed {
			moving[w.orgOf(v.group)]++
		}
	}
	for org, n := range moving {
		require.LessOrEqual(w, n, w.limit, "org %s", org)
	}
	if !slices.ContainsFunc(w.list, func(v drained) bool { return v.server == server && v.State == workload.InstanceRunning }) {
		return
	}
	require.True(w, slices.ContainsFunc(w.list, func(v drained) bool { return v.Leaving }), "something is under way")
}

func (w *drainWorld) state(group int) instance.GroupState {
	g := w.groups[group]
	for _, v := range w.list {
		if v.group == group {
			g.Instances = append(g.Instances, v.GroupInstance)
		}
	}
	return g
}

func (w *drainWorld) running(group int) (n int) {
	for _, v := range w.list {
		if v.group == group && v.State == workload.InstanceRunning {
			n++
		}
	}
	return n
}

// TestDrainsKeepGroupsWithinTheirBudgets plays concurrent drains of some servers in random order, with every step
// taking its time: no group ever has fewer healthy instances than its policy allows, no org more moves than its
// limit, and in the end the servers are empty and every group has its replicas elsewhere, if there is room.
func TestDrainsKeepGroupsWithinTheirBudgets(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		servers := rapid.IntRange(2, 5).Draw(t, "servers")
		w := &drainWorld{T: t, closed: make([]bool, servers), room: make([]int, servers), limit: rapid.IntRange(1, 4).Draw(t, "limit")}
		for s := range servers {
			w.room[s] = rapid.IntRange(1, 4).Draw(t, "room")
		}
		w.room[servers-1] = 100 // in the end there is room
		for g := range rapid.IntRange(1, 4).Draw(t, "groups") {
			state := instance.GroupState{Release: 1, Stable: 1, Replicas: rapid.IntRange(1, 5).Draw(t, "replicas"), Exclusive: rapid.IntRange(0, 5).Draw(t, "volume") == 0}
			state.Policy = workload.RolloutPolicy{
				MaxSurge: workload.Share{N: rapid.IntRange(0, 3).Draw(t, "surge")}, MaxUnavailable: workload.Share{N: rapid.IntRange(0, 2).Draw(t, "unavailable")},
			}
			if state.Exclusive {
				state.Replicas = 1
			}
			w.groups, w.numbers = append(w.groups, state), append(w.numbers, 0)
			for range state.Replicas {
				require.True(t, w.add(g, workload.InstanceRunning))
			}
		}
		var empties []int
		for s := range servers - 1 {
			if rapid.Bool().Draw(t, "drained") || s == 0 {
				w.closed[s] = true
				empties = append(empties, s)
			}
		}
		least := make([]int, len(w.groups))
		for g, state := range w.groups {
			surge, unavailable := state.Policy.Bounds(state.Replicas)
			if surge == 0 {
				unavailable = max(unavailable, 1)
			}
			least[g] = state.Replicas - unavailable
			if state.Exclusive {
				least[g] = 0
			}
		}
		for round := 0; slices.ContainsFunc(empties, func(s int) bool { return w.on(s) > 0 }); round++ {
			require.Less(t, round, 5000, "%+v", w.list)
			switch rapid.IntRange(0, 2).Draw(t, "who") {
			case 0:
				w.drain(rapid.SampledFrom(empties).Draw(t, "server"))
			case 1:
				w.schedule(rapid.IntRange(0, len(w.groups)-1).Draw(t, "group"))
			default:
				w.happens()
			}
			for g := range w.groups {
				require.GreaterOrEqual(t, w.running(g), least[g], "group %d: %+v", g, w.list)
			}
		}
		for range 5000 {
			for g := range w.groups {
				w.schedule(g)
			}
			w.happens()
			if !slices.ContainsFunc(w.list, func(v drained) bool { return v.State != workload.InstanceRunning }) && w.settled() {
				break
			}
		}
		for g, state := range w.groups {
			require.Equal(t, state.Replicas, w.running(g))
		}
	})
}

func (w *drainWorld) settled() bool {
	for g := range w.groups {
		if !instance.ScheduleGroup(w.state(g)).Settled {
			return false
		}
	}
	return true
}

// schedule takes one step of a group, as its run does.
func (w *drainWorld) schedule(group int) {
	s := instance.ScheduleGroup(w.state(group))
	for i := range w.list {
		if v := &w.list[i]; slices.Contains(s.Drain, v.ID) {
			if v.State == workload.InstanceBooting {
				v.Drain = 0
			}
			v.State = workload.InstanceDraining
		}
	}
	for range s.Want {
		if !w.add(group, workload.InstanceBooting) {
			return
		}
	}
}

// happens ends one thing that is under way.
func (w *drainWorld) happens() {
	var open []int
	for i, v := range w.list {
		if v.State != workload.InstanceRunning {
			open = append(open, i)
		}
	}
	if len(open) == 0 {
		return
	}
	i := rapid.SampledFrom(open).Draw(w.T, "what")
	switch v := &w.list[i]; {
	case v.State == workload.InstanceBooting:
		v.State = workload.InstanceRunning
	case v.Drain > 0:
		v.Drain = 0
	default:
		w.list = slices.Delete(w.list, i, i+1)
	}
}
