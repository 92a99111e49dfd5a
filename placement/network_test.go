package placement_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
)

// twoZones is a region with an app server in one network and a shard and a pool in another.
func twoZones() placement.Data {
	d := fleet()
	d.Servers, d.Shards, d.Pools, d.Sites = nil, nil, nil, nil
	d.Servers = []placement.Server{{ServerID: "app-1", Role: prego.RoleApp, Region: "eu", NetworkID: "east", InfraProvider: "hetzner", Status: server.Active}}
	d.Shards = []placement.Shard{{ShardID: "db-1", Region: "eu", NetworkID: "west", Capacity: 5, Status: server.Active}}
	d.Pools = []placement.RedisPool{{PoolID: "redis-1", Region: "eu", NetworkID: "west", Capacity: 5, Status: server.Active}}
	return d
}

func TestAPlaceIsInOneNetwork(t *testing.T) {
	t.Parallel()
	d := twoZones()
	f := placement.NewSnapshot(shared(), d)
	r := request(nil)
	got := f.Decide(r)
	require.Equal(t, placement.AwaitingCapacity, got.Outcome)
	require.Equal(t, prego.CodeInsufficientResources, got.Code)
	require.Equal(t, map[string]int{"network_zone_mismatch": 1}, got.RejectedCounts)
	require.Equal(t, []placement.Rejection{{ID: "app-1", Reason: "network_zone_mismatch"}}, got.Rejected)
	require.Equal(t, prego.NetworkID("west"), got.MissingIn, "it lacks less")
	require.Equal(t, []prego.Role{prego.RoleApp}, got.MissingRoles)
	require.Contains(t, got.SelectionReason, "network west")

	// A server's own problem is reported first.
	d.Servers[0].MemoryPct = 99
	got = placement.NewSnapshot(shared(), d).Decide(r)
	require.Equal(t, 1, got.RejectedCounts["memory_pct"])
	require.Zero(t, got.RejectedCounts["network_zone_mismatch"])
	d.Servers[0].MemoryPct = 0

	// An override doesn't make them meet.
	r.Override = &placement.Override{AppServerID: "app-1", DBShardID: "db-1", Reason: "r"}
	got = f.Decide(r)
	require.Equal(t, placement.AwaitingCapacity, got.Outcome, "no pool can be chosen")
	d.Pools = append(d.Pools, placement.RedisPool{PoolID: "redis-2", Region: "eu", NetworkID: "east", Capacity: 5, Status: server.Active})
	got = placement.NewSnapshot(shared(), d).Decide(r)
	require.Equal(t, placement.Refused, got.Outcome)
	require.Equal(t, prego.CodeInvariantViolation, got.Code)
	require.Contains(t, got.SelectionReason, "network_zone_mismatch")
	r.Override = &placement.Override{DBShardID: "db-1", Reason: "r"}
	require.Equal(t, placement.AwaitingCapacity, placement.NewSnapshot(shared(), d).Decide(r).Outcome)

	// A site on a shard of another network is no place, and neither is an adviser's choice.
	d.Sites = []placement.PoolSite{{PoolSiteID: "s-1", AppServerID: "app-1", DBShardID: "db-1"}}
	d.Shards = append(d.Shards, placement.Shard{ShardID: "db-2", Region: "eu", NetworkID: "east", Capacity: 5, Tenants: 4, Status: server.Active})
	r.Override, r.Advice = nil, &placement.Advice{AppServerID: "app-1", DBShardID: "db-1", RedisPoolID: "redis-1"}
	got = placement.NewSnapshot(shared(), d).Decide(r)
	require.Equal(t, placement.OnDemandSite, got.Outcome)
	require.Equal(t, []string{"db-2", "redis-2"}, []string{string(got.DBShardID), string(got.RedisPoolID)})

	// Those without a network yet count as of one.
	d = twoZones()
	for _, id := range []*prego.NetworkID{&d.Servers[0].NetworkID, &d.Shards[0].NetworkID, &d.Pools[0].NetworkID} {
		*id = ""
	}
	require.Equal(t, placement.OnDemandSite, placement.NewSnapshot(shared(), d).Decide(request(nil)).Outcome)
	d.Shards[0].NetworkID = "east"
	require.Equal(t, 1, placement.NewSnapshot(shared(), d).Decide(request(nil)).RejectedCounts["network_zone_mismatch"])
}

func TestGrowthIsWhereItHelps(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change  func(*placement.Data)
		network prego.NetworkID
		roles   []prego.Role
	}{
		"the network that lacks less":      {nil, "west", []prego.Role{"app"}},
		"with room for what it lacks":      {func(d *placement.Data) { d.Networks = []placement.Network{{NetworkID: "east", Room: 2}} }, "east", []prego.Role{"db-shard", "redis-pool"}},
		"not one with too little room":     {func(d *placement.Data) { d.Networks = []placement.Network{{NetworkID: "east", Room: 1}} }, "", []prego.Role{"app", "db-shard", "redis-pool"}},
		"none is open":                     {func(d *placement.Data) { d.Networks = []placement.Network{} }, "", []prego.Role{"app", "db-shard", "redis-pool"}},
		"the first of several":             {func(d *placement.Data) { d.Pools[0].Status = server.Failed }, "east", []prego.Role{"db-shard", "redis-pool"}},
		"nothing there":                    {func(d *placement.Data) { d.Servers, d.Shards, d.Pools = nil, nil, nil }, "", []prego.Role{"app", "db-shard", "redis-pool"}},
		"not beside one without a network": {func(d *placement.Data) { d.Shards[0].NetworkID, d.Pools[0].NetworkID = "", "" }, "east", []prego.Role{"db-shard", "redis-pool"}},
		"servers without a network only": {func(d *placement.Data) {
			d.Servers, d.Shards[0].NetworkID, d.Pools[0].NetworkID = nil, "", ""
		}, "", []prego.Role{"app"}},
		"servers without a network, and other regions' networks": {func(d *placement.Data) {
			d.Servers, d.Shards[0].NetworkID, d.Pools[0].NetworkID = nil, "", ""
			d.Shards = append(d.Shards, placement.Shard{ShardID: "db-2", Region: "us", NetworkID: "south", Capacity: 5, Status: server.Active})
		}, "", []prego.Role{"app"}},
		"none of another region": {func(d *placement.Data) { d.Shards[0].Region, d.Pools[0].Region = "us", "us" }, "east", []prego.Role{"db-shard", "redis-pool"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := twoZones()
			if tc.change != nil {
				tc.change(&d)
			}
			got := placement.NewSnapshot(shared(), d).Decide(request(nil))
			require.Equal(t, placement.AwaitingCapacity, got.Outcome)
			require.Equal(t, tc.network, got.MissingIn)
			require.Equal(t, tc.roles, got.MissingRoles)
		})
	}
}

// TestRequestsDoNotWaitForEver: with any placement and any full networks, a request without a place has one after its
// missing servers were created twice.
func TestRequestsDoNotWaitForEver(t *testing.T) {
	t.Parallel()
	grown := 0
	rapid.Check(t, func(t *rapid.T) {
		data := genFleet(t)
		enrich(t, &data)
		room := map[prego.NetworkID]int{}
		for _, n := range []prego.NetworkID{"n1", "n2"} {
			room[n] = rapid.IntRange(0, 4).Draw(t, "room")
		}
		r := genRequest(t, 0)
		r.Override, r.Mode, r.Constraint = nil, "shared", prego.Constraint{}
		for round := 0; ; round++ {
			data.Networks = []placement.Network{}
			for n, free := range room {
				if free > 0 {
					data.Networks = append(data.Networks, placement.Network{NetworkID: n, Room: free})
				}
			}
			d := placement.NewSnapshot(shared(), data).Decide(r)
			if d.Outcome != placement.AwaitingCapacity {
				return
			}
			require.NotEmpty(t, d.MissingRoles)
			require.Less(t, round, 2, "%s", d.SelectionReason)
			grown++
			network := d.MissingIn
			if network == "" { // the control plane chooses one with room
				network = "n3"
				room[network] = 100
			}
			require.GreaterOrEqual(t, room[network], len(d.MissingRoles), "there is no room in %s", network)
			room[network] -= len(d.MissingRoles)
			for _, role := range d.MissingRoles {
				id := fmt.Sprintf("new-%d-%s", round, role)
				provider := prego.InfraProviderID("hetzner")
				if r.DataResidency == "FR" {
					provider = "aws"
				}
				switch role {
				case prego.RoleApp:
					data.Servers = append(data.Servers, placement.Server{ServerID: prego.ServerID(id), Role: role, Region: r.Region, NetworkID: network, InfraProvider: provider, Status: server.Active})
				case prego.RoleDBShard:
					data.Shards = append(data.Shards, placement.Shard{ShardID: prego.ShardID(id), Region: r.Region, NetworkID: network, Capacity: 5, Status: server.Active, PlanTierLock: placement.ShardLockFor(r.Plan)})
				case prego.RoleRedisPool:
					data.Pools = append(data.Pools, placement.RedisPool{PoolID: id, Region: r.Region, NetworkID: network, Capacity: 5, Status: server.Active})
				case prego.RoleNode:
				}
			}
		}
	})
	require.Positive(t, grown)
}
