package store

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

func TestMembersOfANetworkAreCounted(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	for _, id := range []string{"n1", "n2"} {
		exec(t, s, `INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range) VALUES ($1, 'hetzner', $1, 1, '10.64.0.0/24')`, id)
	}
	members := func() map[prego.NetworkID]int {
		all, err := s.Networks(ctx)
		require.NoError(t, err)
		out := map[prego.NetworkID]int{}
		for _, n := range all {
			out[n.NetworkID] = n.Members
		}
		return out
	}
	for _, id := range []string{"a", "b", "c"} {
		insertServer(t, s, id, "active")
	}
	exec(t, s, `UPDATE servers SET network_id = 'n1', private_address = '10.64.0.2' WHERE server_id = 'a'`)
	exec(t, s, `UPDATE servers SET network_id = 'n1' WHERE server_id IN ('b', 'c')`)
	require.Equal(t, map[prego.NetworkID]int{"n1": 3, "n2": 0}, members())
	exec(t, s, `UPDATE servers SET network_id = 'n2' WHERE server_id = 'b'`)
	require.Equal(t, map[prego.NetworkID]int{"n1": 2, "n2": 1}, members())
	exec(t, s, `UPDATE servers SET status = 'terminated' WHERE server_id = 'c'`)
	require.Equal(t, map[prego.NetworkID]int{"n1": 1, "n2": 1}, members())
	exec(t, s, `UPDATE servers SET network_id = NULL WHERE server_id = 'c'`)
	exec(t, s, `UPDATE servers SET status = 'failed' WHERE server_id = 'a'`)
	require.Equal(t, map[prego.NetworkID]int{"n1": 1, "n2": 1}, members())

	srv, err := s.GetServer(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, prego.NetworkID("n1"), srv.NetworkID)
	require.Equal(t, "10.64.0.2", srv.PrivateAddress)
	for id, want := range map[prego.ServerID]string{"a": "10.64.0.2", "b": ""} {
		address, _, err := s.ContainerPlace(ctx, id)
		require.NoError(t, err)
		require.Equal(t, want, address)
	}
	_, _, err = s.ContainerPlace(ctx, "unknown")
	require.Equal(t, prego.CodeServerNotFound, prego.CodeOf(err))
	_, err = s.Network(ctx, "n3")
	require.Equal(t, prego.CodeNetworkUnknown, prego.CodeOf(err))
}

func TestNetworksAreAssigned(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	const servers = 230
	ids := make([]prego.ServerID, servers)
	for i := range servers {
		ids[i] = prego.ServerID(fmt.Sprintf("s-%03d", i))
		insertServer(t, s, string(ids[i]), "provisioning")
	}
	var wg sync.WaitGroup
	got := make([]server.Network, servers)
	for i := range servers {
		wg.Go(func() {
			n, ok, err := s.AssignNetwork(ctx, ids[i], "eu-central", "10.64.0.0/22", nil)
			if err == nil && ok {
				got[i] = n
			}
		})
	}
	wg.Wait()
	count := map[prego.NetworkID]int{}
	for _, n := range got {
		count[n.NetworkID]++
	}
	require.Equal(t, map[prego.NetworkID]int{"hetzner-eu-central-1": 90, "hetzner-eu-central-2": 90, "hetzner-eu-central-3": 50}, count, "places are kept for shards, pools and edges")

	insertServer(t, s, "db", "provisioning")
	exec(t, s, `UPDATE servers SET role = 'db-shard' WHERE server_id = 'db'`)
	db, ok, err := s.AssignNetwork(ctx, "db", "eu-central", "10.64.0.0/22", nil)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, server.Network{NetworkID: "hetzner-eu-central-1", Provider: "hetzner", Zone: "eu-central", Ordinal: 1, IPRange: "10.64.0.0/24", Members: 91}, db)

	again, _, err := s.AssignNetwork(ctx, ids[0], "eu-central", "10.64.0.0/22", nil)
	require.NoError(t, err)
	require.Equal(t, got[0].NetworkID, again.NetworkID, "it keeps its network")

	moved, _, err := s.AssignNetwork(ctx, "db", "eu-central", "10.64.0.0/22", []prego.NetworkID{"hetzner-eu-central-1"})
	require.NoError(t, err)
	require.Equal(t, prego.NetworkID("hetzner-eu-central-2"), moved.NetworkID, "it leaves the network that the provider refused")
	insertServer(t, s, "db2", "provisioning")
	exec(t, s, `UPDATE servers SET role = 'db-shard' WHERE server_id = 'db2'`)
	next, _, err := s.AssignNetwork(ctx, "db2", "eu-central", "10.64.0.0/22", nil)
	require.NoError(t, err)
	require.Equal(t, prego.NetworkID("hetzner-eu-central-2"), next.NetworkID, "so do others")
	var first prego.ServerID
	for i, n := range got {
		if n.NetworkID == "hetzner-eu-central-1" {
			first = ids[i]
		}
	}
	exec(t, s, `UPDATE servers SET status = 'terminated' WHERE server_id = $1`, first)
	insertServer(t, s, "db3", "provisioning")
	exec(t, s, `UPDATE servers SET role = 'db-shard' WHERE server_id = 'db3'`)
	next, _, err = s.AssignNetwork(ctx, "db3", "eu-central", "10.64.0.0/22", nil)
	require.NoError(t, err)
	require.Equal(t, prego.NetworkID("hetzner-eu-central-1"), next.NetworkID, "until a server leaves it permanently")

	insertServer(t, s, "us", "provisioning")
	us, _, err := s.AssignNetwork(ctx, "us", "us-east", "10.64.0.0/22", nil)
	require.NoError(t, err)
	require.Equal(t, "10.64.3.0/24", us.IPRange, "no range is used twice")
	require.Equal(t, 1, us.Ordinal)
	insertServer(t, s, "sg", "provisioning")
	_, ok, err = s.AssignNetwork(ctx, "sg", "ap-southeast", "10.64.0.0/22", nil)
	require.NoError(t, err)
	require.False(t, ok, "the range is used up")
	sg, ok, err := s.AssignNetwork(ctx, "sg", "ap-southeast", "10.64.0.0/21", nil)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "10.64.4.0/24", sg.IPRange)
	west, _, err := s.AssignNetwork(ctx, "us", "us-west", "10.64.0.0/21", nil)
	require.NoError(t, err)
	require.Equal(t, prego.NetworkID("hetzner-us-west-1"), west.NetworkID, "its location is in another zone now")
}

// TestAnOvertakenAttemptKeepsItsNetwork: an earlier attempt of the same server took the last place of the last range.
func TestAnOvertakenAttemptKeepsItsNetwork(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	insertServer(t, s, "a", "provisioning")
	insertServer(t, s, "b", "provisioning")
	_, ok, err := s.AssignNetwork(t.Context(), "a", "eu-central", "10.64.0.0/24", nil)
	require.NoError(t, err)
	require.True(t, ok)
	exec(t, s, `UPDATE networks SET members = 89`)
	require.NoError(t, s.holding(t, `SELECT FROM assign_network('b', 'eu-central', '10.64.0.0/24', 24, 100, 10, '{}')`,
		func() error {
			var n server.Network
			n, ok, err = s.AssignNetwork(context.Background(), "b", "eu-central", "10.64.0.0/24", nil)
			assert.Equal(t, "hetzner-eu-central-1", string(n.NetworkID))
			return err
		}, func(pgx.Tx) {}))
	require.True(t, ok)
	require.Equal(t, 90, count(t, s, `networks n, generate_series(1, n.members)`))
}

func TestANetworkIsMadeAndLost(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	insertServer(t, s, "a", "active")
	exec(t, s, `UPDATE servers SET provider_server_id = '7', location = 'fsn1' WHERE server_id = 'a'`)
	unattached := func() []prego.ServerID {
		ids, err := s.Unattached(ctx, 10)
		require.NoError(t, err)
		return ids
	}
	require.Equal(t, []prego.ServerID{"a"}, unattached())
	n, _, err := s.AssignNetwork(ctx, "a", "eu-central", "10.64.0.0/10", nil)
	require.NoError(t, err)
	require.NoError(t, s.NetworkMade(ctx, n.NetworkID, "42", "10.64.0.0/23"))
	require.Equal(t, []prego.ServerID{"a"}, unattached(), "it has no address yet")
	for range 2 {
		require.NoError(t, s.Attached(ctx, "a", n.NetworkID, "10.64.0.2"))
	}
	require.NoError(t, s.Attached(ctx, "a", "hetzner-eu-central-9", "10.64.9.2"))
	require.Empty(t, unattached())
	srv, err := s.GetServer(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, "10.64.0.2", srv.PrivateAddress)
	events, err := s.ServerEvents(ctx, "a")
	require.NoError(t, err)
	require.Len(t, events, 1)
	require.Equal(t, server.StepNetworkAttached, events[0].Step)
	n, err = s.Network(ctx, n.NetworkID)
	require.NoError(t, err)
	require.Equal(t, "42", n.ProviderNetworkID)
	require.Equal(t, "10.64.0.0/23", n.IPRange)

	require.NoError(t, s.NetworkGone(ctx, "hetzner", "41"))
	require.Empty(t, unattached())
	require.NoError(t, s.NetworkGone(ctx, "hetzner", "42"))
	require.Equal(t, []prego.ServerID{"a"}, unattached())
	n, err = s.Network(ctx, n.NetworkID)
	require.NoError(t, err)
	require.Empty(t, n.ProviderNetworkID)
	require.Equal(t, 1, n.Members, "it must be there again")
}

// placeable is an app server, a shard and a pool with room, and a tenant that asks for them.
func placeable(t *testing.T, s *Store) tenant.Reservation {
	t.Helper()
	exec(t, s, `INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range) VALUES ('east', 'hetzner', 'us-east', 1, '10.64.0.0/24'), ('west', 'hetzner', 'us-west', 1, '10.64.1.0/24')`)
	exec(t, s, `INSERT INTO orgs (org_id, tier, created_by) VALUES ('o', 'enterprise', 'test')`)
	for i, role := range []string{"app", "db-shard", "redis-pool"} {
		exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by) VALUES ($1, '', $1, 'us', 'hetzner', '{}', 'provisioning', $1, 'test')`, role)
		exec(t, s, `UPDATE servers SET status = 'active', active_at = now(), network_id = 'east', private_address = $2 WHERE server_id = $1`, role, fmt.Sprintf("10.64.0.%d", 2+i))
	}
	exec(t, s, `INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by, generation)
		VALUES ('t-1', 't-1', 'o', 'us', 'starter', 10, 10, 'shared', '', 'provisioning', 'test', 1)`)
	return tenant.Reservation{
		TenantID: "t-1", Generation: 1, AppServerID: "app", DBShardID: "db-shard", RedisPoolID: "redis-pool", SiteName: "t-1.sites", DatabaseName: "t_1", Mode: tenant.ModeShared,
		Algorithm: "best_fit", AuditAs: "best_fit", MemoryPctMax: 70, MaxTenants: 3, ReserveFor: time.Minute, Decision: []byte(`{}`), Policy: []byte(`{}`), Reason: "r", Actor: "workflow",
	}
}

// TestAReservationIsInOneNetwork: one at a time, together, and with any override.
func TestAReservationIsInOneNetwork(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"db_shard", "redis_pool", ""} {
		for _, how := range []string{"alone", "override", "together"} {
			for what, change := range map[string]string{
				"elsewhere": `UPDATE servers SET network_id = 'west' WHERE server_id = $1`, "without network": `UPDATE servers SET network_id = NULL, private_address = NULL WHERE server_id = $1`,
				"without address": `UPDATE servers SET private_address = NULL WHERE server_id = $1`,
			} {
				t.Run(how+" "+lost+" "+what, func(t *testing.T) {
					t.Parallel()
					ctx := context.Background()
					s := New(pgtest.Pool(t))
					r := placeable(t, s)
					if lost != "" {
						exec(t, s, change, map[string]string{"db_shard": "db-shard", "redis_pool": "redis-pool"}[lost])
					} else { // all of them
						for _, id := range []string{"app", "db-shard", "redis-pool"} {
							exec(t, s, change, id)
						}
					}
					r.Override = how == "override"
					var got tenant.ReserveResult
					var err error
					if how == "together" {
						var all []tenant.ReserveResult
						all, err = s.ReserveAll(ctx, []tenant.Reservation{r})
						require.Len(t, all, 1)
						got = all[0]
					} else {
						got, err = s.Reserve(ctx, r)
					}
					require.NoError(t, err)
					require.Equal(t, lost, got.Lost)
					require.Equal(t, lost == "", got.Outcome == tenant.ReservePlaced)
				})
			}
		}
	}
}

// TestPlacementFollowsNetworks: what a server's network is, and which take more servers.
func TestPlacementFollowsNetworks(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	placeable(t, s)
	c, err := s.PlacementChanges(ctx, "", nil)
	require.NoError(t, err)
	require.Equal(t, []prego.NetworkID{"east", "east", "east"}, []prego.NetworkID{c.Servers[0].NetworkID, c.Shards[0].NetworkID, c.Pools[0].NetworkID})
	require.ElementsMatch(t, []placement.Network{{NetworkID: "east", Room: 97}, {NetworkID: "west", Room: 100}}, c.Networks)
	for _, id := range []string{"app", "db-shard"} {
		exec(t, s, `UPDATE servers SET private_address = NULL WHERE server_id = $1`, id)
	}
	exec(t, s, `UPDATE servers SET network_id = 'west' WHERE server_id = 'redis-pool'`)
	exec(t, s, `UPDATE networks SET full_at = now() WHERE network_id = 'east'`)
	c, err = s.PlacementChanges(ctx, c.Since, nil)
	require.NoError(t, err)
	require.Len(t, c.Servers, 1)
	require.Equal(t, []prego.NetworkID{"", "", "west"}, []prego.NetworkID{c.Servers[0].NetworkID, c.Shards[0].NetworkID, c.Pools[0].NetworkID})
	require.Equal(t, []placement.Network{{NetworkID: "west", Room: 99}}, c.Networks)
}

// TestDemandIsOfANetwork: room elsewhere is of no use, and tenants that may be
// anywhere are where the control plane decides.
func TestDemandIsOfANetwork(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	placeable(t, s)
	exec(t, s, `INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by, generation)
		SELECT t, t, 'o', 'us', 'starter', 10, 10, 'shared', '', 'provisioning', 'test', 1 FROM unnest('{t-2,t-3}'::text[]) t`)
	for id, network := range map[prego.TenantID]prego.NetworkID{"t-1": "west", "t-2": "west", "t-3": ""} {
		require.NoError(t, s.AwaitTenant(ctx, tenant.Ref{TenantID: id, Generation: 1}, prego.ReasonAwaitingCapacity, "", prego.Roles(), network, true))
	}
	opened := 0
	open := func(context.Context, prego.InfraProviderID) (prego.NetworkID, error) {
		opened++
		return "east", nil
	}
	for _, role := range []prego.Role{prego.RoleApp, prego.RoleDBShard, prego.RoleRedisPool} {
		demand, err := s.Demand(ctx, "us", role, 20, 70, tenant.MeasuredLimits{}, open)
		require.NoError(t, err)
		got := map[prego.NetworkID][2]int{}
		for _, d := range demand {
			got[d.Network] = [2]int{d.Waiting[prego.PlanStarter], d.Room[""]}
		}
		room := demand[0].Room[""]
		require.Positive(t, room)
		require.Equal(t, map[prego.NetworkID][2]int{"": {0, room}, "west": {2, 0}, "east": {1, room}}, got, "%s", role)
	}
	require.Equal(t, 3, opened)
	demand, err := s.Demand(ctx, "us", prego.RoleDBShard, 20, 70, tenant.MeasuredLimits{}, nil)
	require.NoError(t, err)
	require.Len(t, demand, 1)
	require.Equal(t, 3, demand[0].Waiting[prego.PlanStarter], "servers are in no networks")
}

func TestTheOpenNetworkHasRoomForAll(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	open := func(base string) prego.NetworkID {
		id, err := s.OpenNetwork(ctx, "hetzner", []string{"us-east", "us-west"}, base)
		require.NoError(t, err)
		return id
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if id, err := s.OpenNetwork(ctx, "hetzner", []string{"us-east", "us-west"}, "10.64.0.0/22"); err != nil || id != "hetzner-us-east-1" {
				t.Error(id, err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, prego.NetworkID("hetzner-us-east-1"), open("10.64.0.0/22"))
	exec(t, s, `UPDATE networks SET members = 80`)
	exec(t, s, `INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range, members) VALUES ('hetzner-us-west-1', 'hetzner', 'us-west', 1, '10.64.1.0/24', 79)`)
	require.Equal(t, prego.NetworkID("hetzner-us-west-1"), open("10.64.0.0/22"), "it is there")
	exec(t, s, `UPDATE networks SET full_at = now()`)
	require.Equal(t, prego.NetworkID("hetzner-us-east-2"), open("10.64.0.0/22"))
	exec(t, s, `UPDATE networks SET full_at = now()`)
	require.Empty(t, open("10.64.0.0/23"), "the range is used up")
}

// TestServerRequestMayNameANetwork: it has its place there from its request on.
func TestServerRequestMayNameANetwork(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	placeable(t, s)
	r := server.CreateRequest{ServerID: "edge", Role: prego.RoleApp, Region: "us", InfraProvider: "hetzner", Spec: server.Spec{Network: "west"}}
	srv, created, err := s.CreateServer(ctx, r, "test")
	require.NoError(t, err)
	require.True(t, created)
	require.Equal(t, prego.NetworkID("west"), srv.NetworkID)
	west, err := s.Network(ctx, "west")
	require.NoError(t, err)
	require.Equal(t, 1, west.Members)
	kept, ok, err := s.AssignNetwork(ctx, "edge", "us-west", "10.64.0.0/10", nil)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, prego.NetworkID("west"), kept.NetworkID)
	r.ServerID, r.Spec.Network = "edge-2", "south"
	_, _, err = s.CreateServer(ctx, r, "test")
	require.Equal(t, prego.CodeNetworkUnknown, prego.CodeOf(err))
}
