package instance_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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

// stepsText is a short text of the steps.
func stepsText(s instance.GroupSteps) string {
	var out []string
	add := func(what string, ids []string) {
		if len(ids) > 0 {
			out = append(out, what+" "+strings.Join(ids, ","))
		}
	}
	add("lose", s.Lose)
	if f := s.Failed; f != nil {
		out = append(out, map[bool]string{true: "roll back: ", false: "failed: "}[f.RollBack]+f.Reason)
	}
	add("drain", s.Drain)
	if s.Want > 0 {
		out = append(out, fmt.Sprintf("want %d%s", s.Want, map[bool]string{true: " surge"}[s.Surge]))
	}
	add("boot", s.Boot)
	add("stop", s.Stop)
	if s.Next > 0 {
		out = append(out, fmt.Sprint("next in ", s.Next))
	}
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
	failing := func(g *instance.GroupState) { rolling(g); g.Failures = 3 }
	by := func(surge, unavailable workload.Share, then ...func(*instance.GroupState)) func(*instance.GroupState) {
		return func(g *instance.GroupState) {
			rolling(g)
			g.Policy.MaxSurge, g.Policy.MaxUnavailable = surge, unavailable
			for _, f := range then {
				f(g)
			}
		}
	}
	n := func(n int) workload.Share { return workload.Share{N: n} }
	percent := func(n int) workload.Share { return workload.Share{N: n, Percent: true} }
	slow := func(g *instance.GroupState) {
		for i := range g.Instances {
			g.Instances[i].Drain = 20 * time.Second
		}
	}
	four := "1:running 1:running 1:running 1:running "
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
		"from nothing":               {3, nil, "", "want 3"},
		"some boot":                  {3, nil, "1:booting 1:running", "want 1; boot 1"},
		"one is watched":             {2, nil, "1:booting/started 1:running", ""},
		"all run for the first time": {2, func(g *instance.GroupState) { g.Stable = 0 }, "1:running 1:running", "proven; settled"},
		"all run":                    {2, nil, "1:running 1:running", "settled"},
		"fewer are wanted":           {1, nil, "1:running 1:running 1:booting", "drain 3,2; stop 2,3"},
		"none is wanted":             {0, nil, "1:running 1:booting", "drain 2,1; stop 1,2"},
		"none is left":               {0, nil, "", "settled"},
		"the quota refuses two of four": {
			4, func(g *instance.GroupState) { g.Short = 2 },
			"1:running 1:running 1:running/leaving 1:running/leaving", "drain 4,3; want 1; stop 3,4",
		},
		"a volume's group that was scaled down": {
			1, func(g *instance.GroupState) { g.Exclusive = true }, "1:running 1:running", "drain 2; stop 2",
		},
		"a volume's group keeps its new instance": {1, exclusive, "1:running 2:booting", "drain 1; boot 2; stop 1"},
		"many that drain hold no place":           {2, nil, "1:running 1:draining 1:draining 1:draining", "want 1; stop 2,3,4"},
		"what drains holds no place":              {2, nil, "1:running 1:draining", "want 1; stop 2"},
		"a failed instance is stopped first":      {2, nil, "1:running 1:failed", "stop 2"},
		"a server went":                           {2, nil, "1:running 1:running/lost", "lose 2; stop 2"},
		"a server with a draining one went":       {1, nil, "1:running 1:draining/lost", "stop 2"},
		"a server is leaving":                     {2, nil, "1:running 1:running/leaving", "want 1 surge"},
		"a server may leave":                      {2, nil, "1:running 1:running/leaving 1:running", "drain 2; stop 2"},
		"the group is deleted":                    {2, func(g *instance.GroupState) { g.Deleted = true }, "1:running", "drain 1; stop 1"},
		"rolling begins with one more":            {2, rolling, "1:running 1:running", "want 1 surge"},
		"rolling awaits the new one":              {2, rolling, "1:running 1:running 2:booting", "boot 3"},
		"rolling lets an old one go":              {2, rolling, "1:running 1:running 2:running", "drain 2; stop 2"},
		"rolling counts what drains":              {2, rolling, "1:running 1:draining 2:running", "stop 2"},
		"rolling continues":                       {2, rolling, "1:running 2:running", "want 1 surge"},
		"rolling ends":                            {2, rolling, "2:running 2:running", "proven; settled"},
		"rolling fills a missing replica":         {3, rolling, "1:running 1:running", "want 2 surge"},
		"rolling with fewer replicas":             {1, rolling, "1:running 1:running 2:running", "drain 2,1; stop 1,2; proven"},
		"booting old instances are useless":       {1, rolling, "1:booting", "drain 1; want 1; stop 1"},
		"some failures are none":                  {2, func(g *instance.GroupState) { rolling(g); g.Failures = 2 }, "1:running 1:running 2:failed", "stop 3"},
		"one failure more rolls back":             {2, failing, "1:running 1:running 2:failed", "roll back: instance_failed; stop 3"},
		"rolled back, the new ones are the old":   {2, failing, "1:running 2:running 2:failed", "roll back: instance_failed; stop 3"},
		"rolled back, the new ones go":            {2, failing, "1:running 1:running 2:running 2:failed", "roll back: instance_failed; drain 3; stop 3,4"},
		"the failure of a server does not":        {2, rolling, "1:running 1:running 2:booting/lost", "lose 3; stop 3"},
		"a failing old instance does not":         {2, rolling, "1:running 1:failed", "want 1 surge; stop 2"},
		"the first release has nothing before it": {1, func(g *instance.GroupState) { g.Stable = 0 }, "1:failed", "stop 1"},
		"draining first begins with one less":     {3, drainFirst, "1:running 1:running 1:running", "drain 3; stop 3"},
		"draining first awaits its end":           {3, drainFirst, "1:running 1:running 1:draining", "stop 3"},
		"draining first replaces it":              {3, drainFirst, "1:running 1:running", "want 1"},
		"draining first awaits the new one":       {3, drainFirst, "1:running 1:running 2:booting", "boot 3"},
		"draining first continues":                {3, drainFirst, "1:running 1:running 2:running", "drain 2; stop 2"},
		"draining first rolls back":               {3, func(g *instance.GroupState) { drainFirst(g); g.Failures = 3 }, "1:running 1:running 2:failed", "roll back: instance_failed; stop 3"},
		"with a volume all stop":                  {1, exclusive, "1:running", "drain 1; stop 1"},
		"with a volume none comes before":         {1, exclusive, "1:draining", "stop 1"},
		"with a volume the next one comes":        {1, exclusive, "", "want 1"},
		"with a volume the failed one is first":   {1, func(g *instance.GroupState) { exclusive(g); g.Failures = 3 }, "2:failed", "roll back: instance_failed; stop 1"},
		"no progress in time rolls back":          {2, by(n(1), n(0), func(g *instance.GroupState) { g.Overdue = true }), "1:running 1:running", "roll back: progress_deadline_exceeded; proven; settled"},
		"it can be left as it is":                 {2, by(n(1), n(0), func(g *instance.GroupState) { g.Overdue, g.Policy.AutoRollback = true, false }), "1:running 1:running", "failed: progress_deadline_exceeded; want 1 surge"},
		"nothing was ever good":                   {1, by(n(1), n(0), func(g *instance.GroupState) { g.Overdue, g.Stable = true, 0 }), "2:booting", "failed: progress_deadline_exceeded; boot 1"},
		"late without replicas is no failure":     {0, by(n(1), n(0), func(g *instance.GroupState) { g.Overdue = true }), "", "settled"},
		"two more together":                       {4, by(n(2), n(0)), four, "want 2 surge"},
		"two more and one less":                   {4, by(n(2), n(1)), four, "drain 4; want 2 surge; stop 4"},
		"the next wave":                           {4, by(n(2), n(0)), four + "2:running 2:running", "drain 4,3; stop 3,4"},
		"it continues while one boots":            {4, by(n(2), n(0)), four + "2:booting", "want 1 surge; boot 5"},
		"half less and none more":                 {4, by(n(0), percent(50)), four, "drain 4,3; stop 3,4"},
		"percentages that are nothing are one":    {4, by(percent(0), percent(10)), four, "drain 4; stop 4"},
		"a quarter of five more is two":           {5, by(percent(25), n(0)), four + "1:running", "want 2 surge"},
		"a quarter of five less is one":           {5, by(n(1), percent(25)), four + "1:running", "drain 5; want 1; stop 5"},
		"the quota allows half of two":            {4, by(n(2), n(0), func(g *instance.GroupState) { one := 1; g.SurgeLimit = &one }), four, "want 1 surge"},
		"the quota allows none":                   {4, by(n(2), n(0), func(g *instance.GroupState) { none := 0; g.SurgeLimit = &none }), four, "drain 4; stop 4"},
		"what drains takes its time":              {2, by(n(1), n(0), slow), "1:running 1:running 2:running", "drain 2; next in 20s"},
		"what drains is not replaced before":      {2, by(n(1), n(0), slow), "1:running 1:draining 2:running", "next in 20s"},
		"what boots needs none":                   {1, by(n(1), n(0), slow), "1:booting 2:running", "drain 1; stop 1; proven"},
		"a lost server needs none":                {1, by(n(1), n(0), slow), "1:draining/lost 2:running", "stop 1; proven"},
		"a crash is waited out":                   {2, by(n(1), n(0), func(g *instance.GroupState) { g.Backoff = 1 }), "1:running 1:running", ""},
		"a crash holds up no other place":         {4, by(n(2), n(0), func(g *instance.GroupState) { g.Backoff = 1 }), four, "want 1 surge"},
		"a crash without a rollout":               {3, func(g *instance.GroupState) { g.Backoff = 1 }, "1:running", "want 1"},
		"paused nothing is replaced":              {2, by(n(1), n(0), func(g *instance.GroupState) { g.Paused = true }), "1:running 1:running", "settled"},
		"paused, missing ones are made":           {2, by(n(1), n(0), func(g *instance.GroupState) { g.Paused = true }), "1:running", "want 1"},
		"paused too many go":                      {1, by(n(1), n(0), func(g *instance.GroupState) { g.Paused = true }), "1:running 2:running", "drain 2; stop 2"},
		"paused nothing fails":                    {1, by(n(1), n(0), func(g *instance.GroupState) { g.Paused, g.Overdue = true, true }), "1:running", "settled"},
		"a rollback that is done":                 {1, func(g *instance.GroupState) { g.Open = true }, "1:running", "proven; settled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := instance.GroupState{
				Replicas: tc.replicas, Release: 1, Stable: 1, Deploy: workload.DeployNone, Policy: workload.DefaultRolloutPolicy(), Instances: instances(tc.instances),
			}
			if tc.change != nil {
				tc.change(&g)
			}
			require.Equal(t, tc.want, stepsText(instance.ScheduleGroup(g)))
		})
	}
}

// world plays the effects of a group's steps.
type world struct {
	*rapid.T
	g        instance.GroupState
	number   int64
	failures int // that are still to come
}

func (w *world) add(release int, state workload.InstanceState) {
	w.number++
	w.g.Instances = append(w.g.Instances, instance.GroupInstance{
		ID: fmt.Sprint(w.number), Number: w.number, Release: release, State: state, Drain: time.Duration(rapid.IntRange(0, 1).Draw(w.T, "drain")),
	})
}

func (w *world) count(states ...workload.InstanceState) (n int) {
	for _, v := range w.g.Instances {
		if slices.Contains(states, v.State) {
			n++
		}
	}
	return n
}

func (w *world) set(ids []string, state workload.InstanceState) {
	for i := range w.g.Instances {
		if v := &w.g.Instances[i]; slices.Contains(ids, v.ID) {
			if v.State == workload.InstanceBooting {
				v.Drain = 0
			}
			v.State = state
		}
	}
}

// apply applies one transaction, and then one of the steps with containers, or none: the process died.
func (w *world) apply(s instance.GroupSteps) {
	if f := s.Failed; f != nil {
		w.g.Deploy = workload.DeployFailed
		if f.RollBack {
			w.g.Release, w.g.Deploy, w.g.Open, w.g.Backoff, w.g.Failures = w.g.Stable, workload.DeployRolledBack, true, 0, 0
		}
	}
	if s.Proven {
		w.g.Stable, w.g.Open = w.g.Release, false
	}
	w.set(s.Drain, workload.InstanceDraining)
	again := instance.ScheduleGroup(w.g)
	require.Equal(w, []int{s.Want, len(s.Boot), len(s.Stop), 0}, []int{again.Want, len(again.Boot), len(again.Stop), len(again.Drain)}, "who died before them has the same steps to take: %+v", w.g)
	for range rapid.IntRange(0, s.Want).Draw(w.T, "allocated") {
		w.add(w.g.Release, workload.InstanceBooting)
	}
	// One of the running steps ends.
	var open []int
	for i, v := range w.g.Instances {
		if v.State != workload.InstanceRunning {
			open = append(open, i)
		}
	}
	if w.g.Backoff > 0 && (len(open) == 0 || rapid.Bool().Draw(w.T, "a pause ends")) {
		w.g.Backoff--
		return
	}
	if len(open) == 0 {
		return
	}
	i := rapid.SampledFrom(open).Draw(w.T, "next")
	switch v := &w.g.Instances[i]; {
	case v.State == workload.InstanceBooting && w.failures > 0 && rapid.Bool().Draw(w.T, "fails"):
		v.State = workload.InstanceFailed
		w.failures--
		w.g.Failures++
	case v.State == workload.InstanceBooting:
		v.State = workload.InstanceRunning
	case v.State == workload.InstanceDraining && v.Drain > 0:
		v.Drain = 0
	case !slices.Contains(s.Stop, v.ID): // allocated just now, or not seen yet
	default:
		if v.State == workload.InstanceFailed && v.Release == w.g.Release {
			w.g.Backoff++
		}
		w.g.Instances = slices.Delete(w.g.Instances, i, i+1)
	}
}

// TestScheduleGroupSaysWhatItWaitsFor: how many instances boot, when the first of those that drain is to be stopped, and
// what the newest instance of a failed release reported.
func TestScheduleGroupSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	g := instance.GroupState{Replicas: 2, Release: 1, Stable: 1, Deploy: workload.DeploySucceeded}
	g.Instances = instances("1:draining 1:draining 1:draining 1:booting 1:booting/started 1:running")
	for i, seconds := range []int{30, 10, 20} {
		g.Instances[i].Drain = time.Duration(seconds) * time.Second
	}
	slices.Reverse(g.Instances)
	s := instance.ScheduleGroup(g)
	require.Equal(t, []string{"5"}, s.Drain, "the newest of those that boot")
	require.Equal(t, 1, s.Booting)
	require.Equal(t, 10*time.Second, s.Next)

	g = instance.GroupState{Replicas: 1, Release: 2, Stable: 1, Deploy: workload.DeployRolling, Failures: 3}
	g.Policy.MaxFailures = 2
	g.Instances = instances("2:failed 2:failed 2:failed/lost 1:failed 2:booting 2:failed")
	for i := range g.Instances[:5] {
		g.Instances[i].Message = fmt.Sprint("of ", i+1)
	}
	slices.Reverse(g.Instances)
	require.Equal(t, "of 2", instance.ScheduleGroup(g).Failed.Message)
	g.Failures, g.Overdue = 0, true
	require.Equal(t, "of 5", instance.ScheduleGroup(g).Failed.Message, "it does not start")
	g.Deploy = workload.DeploySucceeded
	require.Nil(t, instance.ScheduleGroup(g).Failed)
	g.Deploy, g.Stable = workload.DeployRolling, 2
	require.Nil(t, instance.ScheduleGroup(g).Failed)
}

// TestScheduleGroupConverges plays the world after each plan, in random order, with
// failures that end and processes that die between any two steps. There are never more
// than replicas and max_surge, never fewer healthy ones by a decision than replicas less
// max_unavailable, never two with a volume, and in the end all is as it should be.
func TestScheduleGroupConverges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		share := func(what string) workload.Share {
			return workload.Share{N: rapid.IntRange(0, 4).Draw(t, what), Percent: false}
		}
		w := &world{T: t, g: instance.GroupState{Release: 2, Stable: 1, Open: true, Deploy: workload.DeployRolling, Replicas: rapid.IntRange(0, 8).Draw(t, "replicas")}}
		w.g.Policy = workload.RolloutPolicy{
			MaxSurge: share("surge"), MaxUnavailable: share("unavailable"), MaxFailures: rapid.IntRange(0, 3).Draw(t, "max failures"), AutoRollback: rapid.Bool().Draw(t, "auto rollback"),
		}
		if rapid.Bool().Draw(t, "percent") {
			w.g.Policy.MaxSurge = workload.Share{N: rapid.IntRange(0, 100).Draw(t, "surge %"), Percent: true}
			w.g.Policy.MaxUnavailable = workload.Share{N: rapid.IntRange(0, 100).Draw(t, "unavailable %"), Percent: true}
		}
		w.g.Exclusive = rapid.Bool().Draw(t, "exclusive")
		if w.g.Exclusive {
			w.g.Replicas = min(w.g.Replicas, 1)
		}
		w.g.NoSurge = rapid.Bool().Draw(t, "no surge")
		for range w.g.Replicas {
			w.add(1, workload.InstanceRunning)
		}
		w.failures = rapid.IntRange(0, 5).Draw(t, "failures")
		changes := rapid.IntRange(0, 3).Draw(t, "changes")
		for round := 0; ; round++ {
			require.Less(t, round, 2000, "%+v", w.g)
			if changes > 0 && rapid.IntRange(0, 9).Draw(t, "change") == 0 {
				changes--
				switch rapid.IntRange(0, 3).Draw(t, "which") {
				case 0:
					if !w.g.Exclusive {
						w.g.Replicas = rapid.IntRange(0, 8).Draw(t, "scaled")
					}
				case 1: // another deploy takes over
					w.g.Release, w.g.Deploy, w.g.Failures, w.g.Backoff, w.g.Open = w.g.Release+1, workload.DeployRolling, 0, 0, true
				case 2:
					w.g.Overdue = !w.g.Overdue
				case 3:
					w.g.Paused = !w.g.Paused
				}
			}
			s := instance.ScheduleGroup(w.g)
			if s.Settled && changes == 0 {
				if w.g.Paused {
					w.g.Paused = false
					continue
				}
				if !s.Proven {
					break
				}
			}
			before, total, healthy := w.g, len(w.g.Instances), w.count(workload.InstanceRunning)
			w.apply(s)
			surge, unavailable := before.Policy.Bounds(before.Replicas)
			if before.NoSurge {
				surge, unavailable = 0, max(1, unavailable)
			}
			if most := before.Replicas + surge; before.Exclusive {
				require.LessOrEqual(t, len(w.g.Instances), max(1, total))
			} else if s.Want > 0 && slices.ContainsFunc(w.g.Instances, func(v instance.GroupInstance) bool { return v.Release != w.g.Release }) && !w.g.Paused {
				require.LessOrEqual(t, total+s.Want, most, "%+v", w.g)
			}
			if least := before.Replicas - unavailable; !before.Exclusive && len(s.Drain) > 0 && healthy >= least {
				require.GreaterOrEqual(t, w.count(workload.InstanceRunning), least, "%+v", w.g)
			}
		}
		require.Equal(t, w.g.Replicas, w.count(workload.InstanceRunning))
		require.Len(t, w.g.Instances, w.g.Replicas)
		for _, v := range w.g.Instances {
			require.Equal(t, w.g.Release, v.Release)
		}
	})
}
