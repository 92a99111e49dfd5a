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

func instanceServer(id prego.ServerID, change func(*instance.Server)) instance.Server {
	s := instance.Server{ServerID: id, Location: "fsn1", Active: true, MemoryBytes: 1000, CPUs: 4}
	if change != nil {
		change(&s)
	}
	return s
}

func TestPlaceInstance(t *testing.T) {
	t.Parallel()
	type server = instance.Server
	r := instance.Request{GroupID: "g", MemoryBytes: 100, CPURequest: 1}
	for name, tc := range map[string]struct {
		change  func(*instance.Request)
		servers []server
		want    string // a server, or a code
	}{
		"no server offers room": {nil, nil, "no_nodes_active"},
		"no server is active":   {nil, []server{instanceServer("a", func(s *server) { s.Active = false })}, "no_nodes_active"},
		"no server satisfies": {
			func(r *instance.Request) { r.Constraint.Require = []string{"gpu"} },
			[]server{instanceServer("a", nil), instanceServer("b", func(s *server) { s.Active = false })},
			"cell_mismatch",
		},
		"who satisfies is not active": {
			func(r *instance.Request) { r.Constraint.Require = []string{"gpu"} },
			[]server{instanceServer("a", nil), instanceServer("b", func(s *server) { s.Active, s.Tags = false, []string{"gpu"} })},
			"no_nodes_active",
		},
		"who satisfies is cordoned": {nil, []server{instanceServer("a", func(s *server) { s.Cordoned = true })}, "no_nodes_active"},
		"a tenant has it to itself": {nil, []server{
			instanceServer("a", func(s *server) { s.Kept = true }), instanceServer("b", func(s *server) { s.CPURequested = 400 }),
		}, "b"},
		"who satisfies stands elsewhere": {func(r *instance.Request) { r.Locations = []string{"nbg1"} }, []server{instanceServer("a", nil)}, "volume_locality_no_node"},
		"volumes stand apart":            {func(r *instance.Request) { r.Locations = []string{"fsn1", "nbg1"} }, []server{instanceServer("a", nil)}, "volume_locality_no_node"},
		"memory is a hard limit":         {nil, []server{instanceServer("a", func(s *server) { s.MemoryUsed = 901 })}, "no_capacity_memory"},
		"memory may be used up":          {nil, []server{instanceServer("a", func(s *server) { s.MemoryUsed = 900 })}, "a"},
		"disk is a hard limit": {
			func(r *instance.Request) { r.DiskBytes = 10 }, []server{instanceServer("a", func(s *server) { s.DiskBytes, s.DiskUsed = 100, 91 }), instanceServer("b", nil)}, "no_capacity_disk",
		},
		"disk may be used up":          {func(r *instance.Request) { r.DiskBytes = 10 }, []server{instanceServer("a", func(s *server) { s.DiskBytes, s.DiskUsed = 100, 90 })}, "a"},
		"who needs none fits anywhere": {nil, []server{instanceServer("a", func(s *server) { s.DiskUsed = 5 })}, "a"},
		"spread comes first": {nil, []server{
			instanceServer("a", func(s *server) { s.Groups = map[string]int{"g": 1} }), instanceServer("b", func(s *server) { s.CPURequested = 40 }),
		}, "b"},
		"a location without the group": {nil, []server{
			instanceServer("a", func(s *server) { s.Groups = map[string]int{"g": 1} }), instanceServer("b", nil), instanceServer("c", func(s *server) { s.Location, s.CPURequested = "nbg1", 3 }),
		}, "c"},
		"a lone server is not filled": {nil, []server{
			instanceServer("a", func(s *server) { s.Groups = map[string]int{"g": 2} }), instanceServer("b", nil), instanceServer("c", func(s *server) { s.Location, s.Groups = "nbg1", map[string]int{"g": 1} }),
		}, "b"},
		"then CPU": {nil, []server{instanceServer("a", func(s *server) { s.CPURequested = 2 }), instanceServer("b", func(s *server) { s.CPUs, s.CPURequested = 16, 3 })}, "b"},
		"no CPU comes last": {nil, []server{
			instanceServer("a", func(s *server) { s.CPUs = 0 }), instanceServer("b", func(s *server) { s.CPURequested = 400 }),
		}, "b"},
		"then CPU with it":               {nil, []server{instanceServer("a", func(s *server) { s.CPUs = 1 }), instanceServer("b", func(s *server) { s.CPURequested = 1 })}, "b"},
		"then CPU with it, in any order": {nil, []server{instanceServer("b", func(s *server) { s.CPURequested = 1 }), instanceServer("a", func(s *server) { s.CPUs = 1 })}, "b"},
		"no CPU comes last, in any order": {nil, []server{
			instanceServer("b", func(s *server) { s.CPURequested = 400 }), instanceServer("a", func(s *server) { s.CPUs = 0 }),
		}, "b"},
		"no CPU comes last, also for what requests none": {
			func(r *instance.Request) { r.CPURequest = 0 },
			[]server{instanceServer("b", nil), instanceServer("a", func(s *server) { s.CPUs = 0 })},
			"b",
		},
		"of those without CPU, what is requested": {nil, []server{
			instanceServer("a", func(s *server) { s.CPUs, s.CPURequested = 0, 2 }), instanceServer("b", func(s *server) { s.CPUs, s.CPURequested = 0, 1 }),
		}, "b"},
		"a server without CPU is last in any order": {nil, []server{
			instanceServer("b", func(s *server) { s.CPUs, s.CPURequested = 0, -9 }), instanceServer("a", nil),
		}, "a"},
		"then the id": {nil, []server{instanceServer("b", nil), instanceServer("a", nil)}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := r
			if tc.change != nil {
				tc.change(&r)
			}
			d := instance.Place(r, tc.servers)
			require.Equal(t, tc.want, string(d.ServerID)+d.Code, "%+v", d)
			require.NotEmpty(t, d.SelectionReason)
		})
	}
	d := instance.Place(r, []server{instanceServer("a", func(s *server) { s.MemoryUsed = 950 }), instanceServer("b", func(s *server) { s.Active = false })})
	require.Equal(t,
		"no server fits: of 2 servers not_active 1, memory 1; "+
			"it needs 100 bytes, and at most 50 bytes are free", d.SelectionReason)
	d = instance.Place(r, []server{instanceServer("a", func(s *server) { s.Cordoned = true }), instanceServer("b", func(s *server) { s.Active = false })})
	require.Equal(t, "no server fits: of 2 servers not_active 1, cordoned 1", d.SelectionReason)
	d = instance.Place(r, []server{instanceServer("a", func(s *server) { s.Kept = true })})
	require.Equal(t, "no server fits: of 1 servers kept_for_tenants 1", d.SelectionReason)

	onDisk := r
	onDisk.DiskBytes = 3 << 29
	d = instance.Place(onDisk, []server{
		instanceServer("a", func(s *server) { s.DiskBytes, s.DiskUsed = 2<<30, 1<<30 }),
		instanceServer("b", func(s *server) { s.DiskBytes, s.DiskUsed = 2<<30, 2<<30-1<<20 }),
		instanceServer("c", func(s *server) { s.DiskBytes, s.MemoryUsed = 9<<30, 950 }),
	})
	require.Equal(t, "no server fits: of 3 servers memory 1, disk 2; it needs 1.5 GiB of disk, and at most 1 GiB are free",
		d.SelectionReason)
	require.EqualValues(t, 1<<30, d.LargestFreeDisk)
	onDisk.DiskBytes = 2 << 20
	d = instance.Place(onDisk, []server{instanceServer("b", func(s *server) { s.DiskBytes, s.DiskUsed = 2<<30, 2<<30-1<<20 })})
	require.Contains(t, d.SelectionReason, "it needs 2 MiB of disk, and at most 1 MiB are free")
	d = instance.Place(r, []server{
		instanceServer("a", func(s *server) { s.DiskBytes = 9 }), instanceServer("b", func(s *server) { s.CPURequested = 2 }),
		instanceServer("c", func(s *server) { s.MemoryUsed = 950 }),
	})
	require.Equal(t, "2 of 3 servers fit; this one runs 0 of the group, its location 0, and has 1.00 of 4.00 CPUs requested with it",
		d.SelectionReason)
	require.Zero(t, d.LargestFreeDisk, "it needs none")
	onDisk.DiskBytes = 3
	d = instance.Place(onDisk, []server{instanceServer("a", func(s *server) { s.DiskBytes, s.DiskUsed = 9, 2 })})
	require.EqualValues(t, 7, d.LargestFreeDisk)
}

// TestPlaceInstanceHolds places instances one after the other on random servers.
func TestPlaceInstanceHolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var servers []instance.Server
		for i := range rapid.IntRange(0, 6).Draw(t, "servers") {
			servers = append(servers, instance.Server{
				ServerID: prego.ServerID(fmt.Sprintf("s-%d", i)), Location: rapid.SampledFrom([]string{"fsn1", "nbg1"}).Draw(t, "location"), Active: rapid.Bool().Draw(t, "active"), Cordoned: rapid.IntRange(0, 3).Draw(t, "cordoned") == 0,
				Kept:        rapid.IntRange(0, 3).Draw(t, "kept") == 0,
				Tags:        rapid.SampledFrom([][]string{nil, {"a"}, {"a", "b"}}).Draw(t, "tags"),
				MemoryBytes: rapid.Int64Range(0, 500).Draw(t, "memory"), DiskBytes: rapid.Int64Range(0, 100).Draw(t, "disk"), CPUs: rapid.Float64Range(0, 8).Draw(t, "cpus"), Groups: map[string]int{},
			})
		}
		for range rapid.IntRange(1, 12).Draw(t, "instances") {
			r := instance.Request{
				GroupID: prego.GroupID(rapid.SampledFrom([]string{"g", "h"}).Draw(t, "group")), MemoryBytes: rapid.Int64Range(1, 200).Draw(t, "needed"),
				DiskBytes:  rapid.Int64Range(0, 50).Draw(t, "disk needed"),
				Constraint: rapid.SampledFrom([]prego.Constraint{{}, {Require: []string{"a"}}, {Disallow: []string{"b"}}}).Draw(t, "constraint"),
				Locations:  rapid.SampledFrom([][]string{nil, {"fsn1"}}).Draw(t, "locations"),
			}
			d := instance.Place(r, servers)
			shuffled := rapid.Permutation(servers).Draw(t, "order")
			require.Equal(t, d, instance.Place(r, shuffled), "the order does not matter")
			fits := func(s instance.Server) bool {
				return s.Active && !s.Cordoned && !s.Kept && r.Constraint.SatisfiedBy(s.Tags) && s.MemoryBytes-s.MemoryUsed >= r.MemoryBytes && (r.DiskBytes == 0 || s.DiskBytes-s.DiskUsed >= r.DiskBytes) && (len(r.Locations) == 0 || s.Location == r.Locations[0])
			}
			require.Equal(t, slices.ContainsFunc(servers, fits), d.ServerID != "", "a place is found when there is one")
			rejected := 0
			for _, n := range d.RejectedCounts {
				rejected += n
			}
			if d.ServerID == "" {
				require.Equal(t, len(servers), rejected)
				continue
			}
			i := slices.IndexFunc(servers, func(s instance.Server) bool { return s.ServerID == d.ServerID })
			require.True(t, fits(servers[i]))
			crowd := func(s instance.Server) int {
				n := 2 * s.Groups[string(r.GroupID)]
				for _, o := range servers {
					if o.Location == s.Location {
						n += o.Groups[string(r.GroupID)]
					}
				}
				return n
			}
			for _, s := range servers {
				require.True(t, !fits(s) || crowd(s) >= crowd(servers[i]), "spread")
			}
			servers[i].MemoryUsed += r.MemoryBytes
			servers[i].Groups[string(r.GroupID)]++
			require.LessOrEqual(t, servers[i].MemoryUsed, servers[i].MemoryBytes)
		}
	})
}

// TestGroupsSpreadOverLocations: where every location has an idle server for each of its
// instances, no location runs two more of a group than another one. Room at one location
// only is no reason to refuse.
func TestGroupsSpreadOverLocations(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		locations := rapid.IntRange(1, 4).Draw(t, "locations")
		replicas := rapid.IntRange(1, 12).Draw(t, "replicas")
		var servers []instance.Server
		for l := range locations {
			for i := range replicas/locations + 1 + rapid.IntRange(0, 3).Draw(t, "spare") {
				servers = append(servers, instance.Server{
					ServerID: prego.ServerID(fmt.Sprintf("s-%d-%d", l, i)), Location: fmt.Sprintf("l%d", l), Active: true, MemoryBytes: 1000, CPUs: 4,
					CPURequested: rapid.Float64Range(0, 8).Draw(t, "cpu"), Groups: map[string]int{},
				})
			}
		}
		at := map[string]int{}
		for range replicas {
			d := instance.Place(instance.Request{GroupID: "g", MemoryBytes: 10}, servers)
			i := slices.IndexFunc(servers, func(s instance.Server) bool { return s.ServerID == d.ServerID })
			require.Equal(t, at[servers[i].Location], d.GroupAtLocation)
			require.Equal(t, servers[i].Location, d.Location)
			servers[i].Groups["g"]++
			at[servers[i].Location]++
			require.Equal(t, 1, servers[i].Groups["g"], "a server each")
		}
		for l := range locations {
			require.GreaterOrEqual(t, at[fmt.Sprintf("l%d", l)], replicas/locations)
			require.LessOrEqual(t, at[fmt.Sprintf("l%d", l)], replicas/locations+1)
		}
		for i := range servers { // only one location is left
			servers[i].Active = servers[i].Location == "l0"
		}
		require.Equal(t, "l0", instance.Place(instance.Request{GroupID: "g", MemoryBytes: 10}, servers).Location)
	})
}

// TestAServerHasSixteenVolumes: what the group itself has there is not counted twice.
func TestAServerHasSixteenVolumes(t *testing.T) {
	t.Parallel()
	s := instance.Server{ServerID: "s-1", Location: "fsn1", Active: true, MemoryBytes: 1 << 30, Volumes: 15}
	r := instance.Request{GroupID: "grp-a", MemoryBytes: 1, Locations: []string{"fsn1"}, Volumes: 1}
	require.Equal(t, prego.ServerID("s-1"), instance.Place(r, []instance.Server{s}).ServerID)
	r.Volumes = 2
	d := instance.Place(r, []instance.Server{s})
	require.Empty(t, d.ServerID)
	require.Equal(t, []any{workload.ReasonNoVolumeSlots, 1}, []any{d.Code, d.RejectedCounts["volume_slots"]})
	s.Volumes, s.GroupVolumes = 16, map[string]int{"grp-a": 2}
	require.Equal(t, prego.ServerID("s-1"), instance.Place(r, []instance.Server{s}).ServerID, "they are there already")
	r.Volumes, r.GroupID = 0, "grp-b"
	require.Equal(t, prego.ServerID("s-1"), instance.Place(r, []instance.Server{s}).ServerID, "it needs none")
}
