package instance_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego/placement/instance"
	"github.com/prego/prego/workload"
)

// instances reads "1:running 2:booting" as instances of those releases, numbered from
// 1; "1:running/lost" and "1:running/leaving" stand on servers like that, and the container of
// "1:booting/started" runs.
func instances(text string) (out []instance.GroupInstance) {
	for i, f := range strings.Fields(text) {
		v := instance.GroupInstance{Number: int64(i + 1), ID: fmt.Sprint(i + 1)}
		f, on, _ := strings.Cut(f, "/")
		v.Lost, v.Leaving, v.Started = on == "lost", on == "leaving", on == "started"
		release, state, _ := strings.Cut(f, ":")
		_, _ = fmt.Sscan(release, &v.Release)
		v.State = workload.InstanceState(state)
		out = append(out, v)
	}
	return out
}

// stepsText is what is to be done, short.
func stepsText(s instance.GroupSteps) string {
	var out []string
	add := func(what string, ids []string) {
		if len(ids) > 0 {
			out = append(out, what+" "+strings.Join(ids, ","))
		}
	}
	add("lose", s.Lose)
	if s.RollBack != nil {
		out = append(out, "roll back for "+s.RollBack.ID)
	}
	add("drain", s.Drain)
	if s.Want > 0 {
		out = append(out, fmt.Sprintf("want %d%s", s.Want, map[bool]string{true: " surge"}[s.Surge]))
	}
	add("boot", s.Boot)
	add("stop", s.Stop)
	if s.Proven {
		out = append(out, "proven")
	}
	if s.Settled {
		out = append(out, "settled")
	}
	return strings.Join(out, "; ")
}

func TestScheduleGroup(t *testing.T) {
	t.Parallel()
	rolling := func(g *instance.GroupState) { g.Release, g.Stable, g.Deploy = 2, 1, workload.DeployRolling }
	drainFirst := func(g *instance.GroupState) {
		g.Release, g.Stable, g.Deploy, g.NoSurge = 2, 1, workload.DeployDrainingFirst, true
	}
	exclusive := func(g *instance.GroupState) {
		g.Release, g.Stable, g.Deploy, g.Exclusive = 2, 1, workload.DeployStoppingFirst, true
	}
	for name, tc := range map[string]struct {
		replicas  int
		change    func(*instance.GroupState)
		instances string
		want      string
	}{
		"from nothing":                            {3, nil, "", "want 3"},
		"some boot":                               {3, nil, "1:booting 1:running", "want 1; boot 1"},
		"one is watched":                          {2, nil, "1:booting/started 1:running", ""},
		"all run for the first time":              {2, func(g *instance.GroupState) { g.Stable = 0 }, "1:running 1:running", "proven; settled"},
		"all run":                                 {2, nil, "1:running 1:running", "settled"},
		"fewer are wanted":                        {1, nil, "1:running 1:running 1:booting", "drain 3,2; stop 2,3"},
		"none is wanted":                          {0, nil, "1:running 1:booting", "drain 2,1; stop 1,2"},
		"none is left":                            {0, nil, "", "settled"},
		"what drains holds no place":              {2, nil, "1:running 1:draining", "want 1; stop 2"},
		"one that failed is stopped first":        {2, nil, "1:running 1:failed", "stop 2"},
		"a server went":                           {2, nil, "1:running 1:running/lost", "lose 2; stop 2"},
		"a server went with one that drains":      {1, nil, "1:running 1:draining/lost", "stop 2"},
		"a server is leaving":                     {2, nil, "1:running 1:running/leaving", "want 1 surge"},
		"a server may leave":                      {2, nil, "1:running 1:running/leaving 1:running", "drain 2; stop 2"},
		"the group is deleted":                    {2, func(g *instance.GroupState) { g.Deleted = true }, "1:running", "drain 1; stop 1"},
		"rolling begins with one more":            {2, rolling, "1:running 1:running", "want 1 surge"},
		"rolling awaits the new one":              {2, rolling, "1:running 1:running 2:booting", "boot 3"},
		"rolling lets an old one go":              {2, rolling, "1:running 1:running 2:running", "drain 2; stop 2"},
		"rolling counts what drains":              {2, rolling, "1:running 1:draining 2:running", "stop 2"},
		"rolling goes on":                         {2, rolling, "1:running 2:running", "want 1 surge"},
		"rolling ends":                            {2, rolling, "2:running 2:running", "proven; settled"},
		"rolling fills a place that is free":      {3, rolling, "1:running 1:running", "want 1"},
		"rolling with fewer replicas":             {1, rolling, "1:running 1:running 2:running", "drain 2,1; stop 1,2; proven"},
		"old ones that boot are of no use":        {1, rolling, "1:booting", "drain 1; stop 1"},
		"a failure rolls back":                    {2, rolling, "1:running 1:running 2:failed", "roll back for 3; stop 3"},
		"rolled back, the new ones are the old":   {2, rolling, "1:running 2:running 2:failed", "roll back for 3; stop 3"},
		"rolled back, the new ones go":            {2, rolling, "1:running 1:running 2:running 2:failed", "roll back for 4; drain 3; stop 3,4"},
		"the failure of a server does not":        {2, rolling, "1:running 1:running 2:booting/lost", "lose 3; stop 3"},
		"an old one that fails does not":          {2, rolling, "1:running 1:failed", "want 1 surge; stop 2"},
		"the first release has nothing before it": {1, func(g *instance.GroupState) { g.Stable = 0 }, "1:failed", "stop 1"},
		"draining first begins with one less":     {3, drainFirst, "1:running 1:running 1:running", "drain 3; stop 3"},
		"draining first awaits its end":           {3, drainFirst, "1:running 1:running 1:draining", "stop 3"},
		"draining first fills the place":          {3, drainFirst, "1:running 1:running", "want 1"},
		"draining first awaits the new one":       {3, drainFirst, "1:running 1:running 2:booting", "boot 3"},
		"draining first goes on":                  {3, drainFirst, "1:running 1:running 2:running", "drain 2; stop 2"},
		"draining first rolls back":               {3, drainFirst, "1:running 1:running 2:failed", "roll back for 3; stop 3"},
		"with a volume all stop":                  {1, exclusive, "1:running", "drain 1; stop 1"},
		"with a volume none comes before":         {1, exclusive, "1:draining", "stop 1"},
		"with a volume the next one comes":        {1, exclusive, "", "want 1"},
		"with a volume one that failed is first":  {1, exclusive, "2:failed", "roll back for 1; stop 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := instance.GroupState{Replicas: tc.replicas, Release: 1, Stable: 1, Deploy: workload.DeployNone, Instances: instances(tc.instances)}
			if tc.change != nil {
				tc.change(&g)
			}
			require.Equal(t, tc.want, stepsText(instance.ScheduleGroup(g)))
		})
	}
}

// TestScheduleGroupConverges plays the world after each plan, in random order and with
// random failures that end, and counts: never more than one above the replicas, never
// two with a volume, and in the end all is as it should be.
func TestScheduleGroupConverges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		g := instance.GroupState{Release: 2, Stable: 1, Deploy: workload.DeployRolling, Replicas: rapid.IntRange(0, 5).Draw(t, "replicas")}
		g.Exclusive = rapid.Bool().Draw(t, "exclusive")
		if g.Exclusive {
			g.Replicas = min(g.Replicas, 1)
		}
		g.NoSurge = g.Replicas > 1 && rapid.Bool().Draw(t, "no surge")
		number := int64(0)
		add := func(release int, state workload.InstanceState) {
			number++
			g.Instances = append(g.Instances, instance.GroupInstance{ID: fmt.Sprint(number), Number: number, Release: release, State: state})
		}
		for range g.Replicas {
			add(1, workload.InstanceRunning)
		}
		failures := rapid.IntRange(0, 2).Draw(t, "failures")
		for round := 0; ; round++ {
			require.Less(t, round, 400, "%+v", g)
			s := instance.ScheduleGroup(g)
			if s.Settled {
				break
			}
			set := func(ids []string, state workload.InstanceState) {
				for i := range g.Instances {
					for _, id := range ids {
						if g.Instances[i].ID == id {
							g.Instances[i].State = state
						}
					}
				}
			}
			if s.RollBack != nil {
				g.Release, g.Deploy = g.Stable, workload.DeployRolledBack
			}
			set(s.Drain, workload.InstanceDraining)
			for range s.Want {
				add(g.Release, workload.InstanceBooting)
			}
			most := g.Replicas + 1
			if g.NoSurge || g.Exclusive {
				most = max(g.Replicas, 1)
			}
			require.LessOrEqual(t, len(g.Instances), most)
			// One of what is under way comes to its end.
			var open []int
			for i, v := range g.Instances {
				if v.State != workload.InstanceRunning {
					open = append(open, i)
				}
			}
			if len(open) == 0 {
				continue
			}
			i := rapid.SampledFrom(open).Draw(t, "next")
			switch v := &g.Instances[i]; {
			case v.State == workload.InstanceBooting && failures > 0 && rapid.Bool().Draw(t, "fails"):
				v.State = workload.InstanceFailed
				failures--
			case v.State == workload.InstanceBooting:
				v.State = workload.InstanceRunning
			default:
				g.Instances = append(g.Instances[:i], g.Instances[i+1:]...)
			}
		}
		require.Len(t, g.Instances, g.Replicas)
		for _, v := range g.Instances {
			require.Equal(t, g.Release, v.Release)
		}
	})
}
