package instance_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/instance"
	"github.com/prego/prego/workload"
)

func TestFleetsGrowForInstances(t *testing.T) {
	t.Parallel()
	wants := func(id string, memory int64, tags ...string) instance.Request {
		return instance.Request{GroupID: prego.GroupID(id), MemoryBytes: memory, Constraint: prego.Constraint{Require: tags}}
	}
	plain := instance.Offer{FleetID: "plain", MemoryBytes: 100, Serves: true, Room: 10}
	with := func(f func(o *instance.Offer)) instance.Offer {
		o := plain
		f(&o)
		return o
	}
	three := []instance.Request{wants("a", 40), wants("a", 40), wants("a", 40)}
	for name, tc := range map[string]struct {
		waiting []instance.Request
		coming  []instance.Server
		offers  []instance.Offer
		grow    []instance.Growth
		says    map[prego.GroupID]instance.Waiting
	}{
		"sized for all of them":      {waiting: three, offers: []instance.Offer{plain}, grow: []instance.Growth{{FleetID: "plain", Servers: 2}}, says: map[prego.GroupID]instance.Waiting{"a": {Text: "fleet plain creates a server"}}},
		"coming servers are first":   {waiting: three, coming: []instance.Server{{ServerID: "c", MemoryBytes: 100}}, offers: []instance.Offer{plain}, grow: []instance.Growth{{FleetID: "plain", Servers: 1}}, says: map[prego.GroupID]instance.Waiting{"a": {Text: "fleet plain creates a server"}}},
		"no more than there is room": {waiting: three, offers: []instance.Offer{with(func(o *instance.Offer) { o.Room = 1 })}, grow: []instance.Growth{{FleetID: "plain", Servers: 1}}, says: map[prego.GroupID]instance.Waiting{"a": {Text: "fleet plain is at its maximum size"}}},
		"the next fleet has room":    {waiting: three[:1], offers: []instance.Offer{with(func(o *instance.Offer) { o.Room = 0 }), with(func(o *instance.Offer) { o.FleetID = "next" })}, grow: []instance.Growth{{FleetID: "next", Servers: 1}}, says: map[prego.GroupID]instance.Waiting{"a": {Text: "fleet next creates a server"}}},
		"only fleets that serve":     {waiting: three, offers: []instance.Offer{with(func(o *instance.Offer) { o.Serves = false })}, says: map[prego.GroupID]instance.Waiting{}},
		"a growing fleet is awaited": {waiting: three[:1], offers: []instance.Offer{with(func(o *instance.Offer) { o.Growing = true })}, says: map[prego.GroupID]instance.Waiting{"a": {Text: "fleet plain is growing, or its last growth failed less than five minutes ago"}}},
		"too large for any":          {waiting: []instance.Request{wants("a", 101)}, offers: []instance.Offer{plain}, says: map[prego.GroupID]instance.Waiting{"a": {Code: workload.ReasonLargerThanServers, Text: "not even an empty server of a fleet in the region could hold it"}}},
		"too large for serving fleets": {
			waiting: []instance.Request{wants("a", 101)}, offers: []instance.Offer{plain, {FleetID: "large", MemoryBytes: 200}}, says: map[prego.GroupID]instance.Waiting{},
		},
		"too large for its disk": {waiting: []instance.Request{{GroupID: "a", MemoryBytes: 1, DiskBytes: 1}}, offers: []instance.Offer{plain}, says: map[prego.GroupID]instance.Waiting{"a": {Code: workload.ReasonLargerThanServers, Text: "not even an empty server of a fleet in the region could hold it"}}},
		"tags without a server":  {waiting: []instance.Request{wants("a", 10, "gpu")}, offers: []instance.Offer{plain}, says: map[prego.GroupID]instance.Waiting{}},
		"tags of a fleet":        {waiting: []instance.Request{wants("a", 10, "gpu")}, offers: []instance.Offer{plain, with(func(o *instance.Offer) { o.FleetID, o.Tags = "gpus", []string{"gpu"} })}, grow: []instance.Growth{{FleetID: "gpus", Servers: 1}}, says: map[prego.GroupID]instance.Waiting{"a": {Text: "fleet gpus creates a server"}}},
		"a volume's place":       {waiting: []instance.Request{{GroupID: "a", MemoryBytes: 1, Locations: []string{"fsn1"}}}, offers: []instance.Offer{plain, with(func(o *instance.Offer) { o.FleetID, o.Location = "there", "fsn1" })}, grow: []instance.Growth{{FleetID: "there", Servers: 1}}, says: map[prego.GroupID]instance.Waiting{"a": {Text: "fleet there creates a server"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			grow, says := instance.Grow(tc.waiting, tc.coming, tc.offers)
			require.Equal(t, tc.grow, grow)
			require.Equal(t, tc.says, says)
		})
	}
}

// TestComingServersAreFilledLikeOthers: with all that instances need, spread over the servers that come.
func TestComingServersAreFilledLikeOthers(t *testing.T) {
	t.Parallel()
	coming := []instance.Server{
		{ServerID: "c", MemoryBytes: 100, DiskBytes: 10, CPUs: 4, Groups: map[string]int{"a": 7}},
		{ServerID: "d", MemoryBytes: 100, DiskBytes: 10, CPUs: 4},
	}
	fleet := []instance.Offer{{FleetID: "f", MemoryBytes: 100, DiskBytes: 10, CPUs: 4, Serves: true, Room: 10}}
	wants := func(group prego.GroupID, disk int64, cpu float64) instance.Request {
		return instance.Request{GroupID: group, MemoryBytes: 10, DiskBytes: disk, CPURequest: cpu}
	}
	grow, _ := instance.Grow([]instance.Request{wants("a", 6, 1), wants("a", 6, 1)}, coming, fleet)
	require.Empty(t, grow, "one on each")
	require.Equal(t, map[string]int{"a": 7}, coming[0].Groups)
	grow, says := instance.Grow([]instance.Request{wants("a", 6, 1), wants("b", 6, 1), wants("c", 6, 1)}, coming, fleet)
	require.Equal(t, []instance.Growth{{FleetID: "f", Servers: 1}}, grow, "their disks are full")
	require.Equal(t, "a server is being created", says["b"].Text)
	require.Equal(t, "fleet f creates a server", says["c"].Text)
	// The first goes to c, the second to d, which has less requested, or none of its group. Then each has room for one.
	grow, _ = instance.Grow([]instance.Request{wants("a", 5, 1), wants("b", 4, 1), wants("e", 6, 1), wants("f", 5, 1)}, coming, fleet)
	require.Empty(t, grow, "by what is requested of their CPUs")
	grow, _ = instance.Grow([]instance.Request{wants("a", 5, 0), wants("a", 4, 0), wants("e", 6, 0), wants("f", 5, 0)}, coming, fleet)
	require.Empty(t, grow, "by the instances of a group")
	grow, _ = instance.Grow([]instance.Request{
		wants("a", 5, 0), wants("b", 1, 0), wants("a", 4, 0), wants("e", 5, 0), wants("f", 5, 0),
	}, coming, fleet)
	require.Len(t, grow, 1, "the second of a is on d, and d has no room for two more")
	_, says = instance.Grow([]instance.Request{{GroupID: "a", MemoryBytes: 101}}, nil, []instance.Offer{{FleetID: "f", MemoryBytes: 100}})
	require.Empty(t, says, "no fleet serves instances")
}

// TestGrowthEnds: waiting instances are placed when the servers are ready, and the rest ask again. In the end no
// instance waits that a fleet with room could take, no fleet is beyond its room, and each growth places an instance.
func TestGrowthEnds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tag := rapid.SampledFrom([]string{"", "", "gpu"})
		tags := func() []string {
			if v := tag.Draw(t, "tag"); v != "" {
				return []string{v}
			}
			return nil
		}
		var offers []instance.Offer
		for i := range rapid.IntRange(1, 4).Draw(t, "fleets") {
			offers = append(offers, instance.Offer{
				FleetID: prego.FleetID(fmt.Sprintf("f%d", i)), Tags: tags(), MemoryBytes: int64(rapid.IntRange(1, 20).Draw(t, "memory")), CPUs: 4,
				Serves: rapid.IntRange(0, 3).Draw(t, "serves") > 0, Room: int64(rapid.IntRange(0, 5).Draw(t, "room")),
			})
		}
		var coming []instance.Server
		for i := range rapid.IntRange(0, 2).Draw(t, "coming") {
			coming = append(coming, instance.Server{ServerID: prego.ServerID(fmt.Sprintf("c%d", i)), Tags: tags(), MemoryBytes: int64(rapid.IntRange(1, 20).Draw(t, "memory"))})
		}
		var waiting []instance.Request
		for i := range rapid.IntRange(1, 12).Draw(t, "waiting") {
			waiting = append(waiting, instance.Request{GroupID: prego.GroupID(fmt.Sprintf("g%d", i)), MemoryBytes: int64(rapid.IntRange(1, 22).Draw(t, "needs")), Constraint: prego.Constraint{Require: tags()}})
		}
		before := slices.Clone(coming)
		_, _ = instance.Grow(waiting, coming, offers)
		require.Equal(t, before, coming)
		servers := slices.Clone(coming)
		for i := range servers {
			servers[i].Active = true
		}
		place := func() {
			waiting = slices.DeleteFunc(waiting, func(r instance.Request) bool {
				i := slices.IndexFunc(servers, func(s instance.Server) bool { return s.ServerID == instance.Place(r, servers).ServerID })
				if i >= 0 {
					servers[i].MemoryUsed += r.MemoryBytes
				}
				return i >= 0
			})
		}
		for place(); ; place() {
			growths, says := instance.Grow(waiting, nil, offers)
			if len(growths) == 0 {
				for _, r := range waiting {
					for _, o := range offers {
						fits := r.Constraint.SatisfiedBy(o.Tags) && r.MemoryBytes <= o.MemoryBytes
						require.False(t, fits && o.Serves && o.Room > 0, "fleet %s has room for %s", o.FleetID, r.GroupID)
						require.False(t, fits && says[r.GroupID].Code != "", "%s fits", r.GroupID)
					}
				}
				return
			}
			before := len(waiting)
			for _, g := range growths {
				i := slices.IndexFunc(offers, func(o instance.Offer) bool { return o.FleetID == g.FleetID })
				require.True(t, offers[i].Serves)
				require.LessOrEqual(t, g.Servers, min(offers[i].Room, int64(before)))
				for range g.Servers {
					servers = append(servers, instance.Server{
						ServerID: prego.ServerID(fmt.Sprintf("%s-%d", g.FleetID, len(servers))), Tags: offers[i].Tags, Active: true, MemoryBytes: offers[i].MemoryBytes, CPUs: offers[i].CPUs,
					})
				}
				offers[i].Room -= g.Servers
			}
			place()
			require.Less(t, len(waiting), before, "it grew without placing an instance")
		}
	})
}
