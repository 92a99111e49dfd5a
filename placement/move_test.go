package placement_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
)

// TestWhereATenantMoves: to another app server in its shard's network, the one with the most
// room, past every filter; an operator's wish skips load, and nothing else.
func TestWhereATenantMoves(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		data func(*placement.Data)
		move func(*placement.Move)
		want string
		code prego.Code
	}{
		"the one with more room":        {nil, nil, "app-2", ""},
		"not where it is":               {func(d *placement.Data) { d.Servers = d.Servers[:2] }, nil, "app-2", ""},
		"nowhere else":                  {func(d *placement.Data) { d.Servers = d.Servers[:1] }, nil, "", prego.CodeInsufficientResources},
		"not to a cordoned one":         {func(d *placement.Data) { d.Servers[1].Cordoned = true }, nil, "app-3", ""},
		"not to a failed one":           {func(d *placement.Data) { d.Servers[1].Status = server.Failed }, nil, "app-3", ""},
		"not to a full one":             {func(d *placement.Data) { d.Servers[1].MemoryPct = 99 }, nil, "app-3", ""},
		"not to another's":              {func(d *placement.Data) { d.Servers[1].DedicatedFor = "t-other" }, nil, "app-3", ""},
		"not to another network":        {func(d *placement.Data) { d.Servers[1].NetworkID = "n-2" }, nil, "app-3", ""},
		"not to a node":                 {func(d *placement.Data) { d.Servers[1].Role = prego.RoleNode }, nil, "app-3", ""},
		"with its tags":                 {func(d *placement.Data) { d.Servers[2].Tags = []string{"gpu"} }, func(m *placement.Move) { m.Constraint.Require = []string{"gpu"} }, "app-3", ""},
		"as asked for":                  {nil, func(m *placement.Move) { m.To = "app-3" }, "app-3", ""},
		"as asked for, though full":     {func(d *placement.Data) { d.Servers[2].MemoryPct = 99 }, func(m *placement.Move) { m.To = "app-3" }, "app-3", ""},
		"not as asked for: cordoned":    {func(d *placement.Data) { d.Servers[2].Cordoned = true }, func(m *placement.Move) { m.To = "app-3" }, "", prego.CodeInvariantViolation},
		"not as asked for: where it is": {nil, func(m *placement.Move) { m.To = "app-1" }, "", prego.CodeInvariantViolation},
		"an unknown server":             {nil, func(m *placement.Move) { m.To = "app-9" }, "", prego.CodeServerUnknown},
		"an unknown shard":              {nil, func(m *placement.Move) { m.ShardID = "db-9" }, "", prego.CodeShardUnknown},
		"an enterprise tenant, alone":   {nil, func(m *placement.Move) { m.Plan = prego.PlanEnterprise }, "app-3", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := fleet()
			for len(d.Servers) < 3 {
				d.Servers = append(d.Servers, d.Servers[0])
			}
			d.Servers = d.Servers[:3]
			for i := range d.Servers {
				s := &d.Servers[i]
				s.ServerID, s.Role, s.NetworkID, s.TenantCount, s.MemoryPct, s.Tags = prego.ServerID([]string{"app-1", "app-2", "app-3"}[i]), prego.RoleApp, "n-1", []int{1, 1, 0}[i], []float64{10, 20, 60}[i], nil
			}
			d.Shards[0].NetworkID = "n-1"
			if tc.data != nil {
				tc.data(&d)
			}
			m := placement.Move{Request: request(nil), From: "app-1", ShardID: d.Shards[0].ShardID, PoolID: "redis-1", Server: true}
			if tc.move != nil {
				tc.move(&m)
			}
			f := placement.NewSnapshot(shared(), d)
			got := f.DecideMove(m)
			require.Equal(t, tc.want, string(got.AppServerID), "%+v", got)
			require.Equal(t, tc.code, got.Code)
			require.Equal(t, tc.want != "", got.PlacesTenant())
			require.Equal(t, m.Plan == prego.PlanEnterprise, got.Dedicates)
		})
	}
}

// noEdges has edges where tenants are, and elsewhere none that serves.
func noEdges(d *placement.Data) {
	d.Edges = []placement.EdgeNetwork{{Network: "n-1", Serves: true}, {Network: "n-2"}}
}

// TestWhereDataMoves: to another shard and pool in the network of what stays, to a node as a whole,
// and to another region.
func TestWhereDataMoves(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		data func(*placement.Data)
		move placement.Move
		want [3]string
		code prego.Code
	}{
		"the emptier shard":           {nil, placement.Move{Shard: true}, [3]string{"app-1", "db-3", "redis-1"}, ""},
		"as asked for":                {nil, placement.Move{Shard: true, ToShard: "db-2"}, [3]string{"app-1", "db-2", "redis-1"}, ""},
		"as asked for, though full":   {func(d *placement.Data) { d.Shards[1].Tenants = 10 }, placement.Move{Shard: true, ToShard: "db-2"}, [3]string{"app-1", "db-2", "redis-1"}, ""},
		"not to a full one":           {func(d *placement.Data) { d.Shards[2].Tenants = 10 }, placement.Move{Shard: true}, [3]string{"app-1", "db-2", "redis-1"}, ""},
		"not to a cordoned one":       {func(d *placement.Data) { d.Shards[1].Cordoned = true }, placement.Move{Shard: true, ToShard: "db-2"}, [3]string{}, prego.CodeInvariantViolation},
		"not to another network":      {nil, placement.Move{Shard: true, ToShard: "db-4"}, [3]string{}, prego.CodeInsufficientResources},
		"not where it is":             {nil, placement.Move{Shard: true, ToShard: "db-1"}, [3]string{}, prego.CodeInvariantViolation},
		"an unknown shard":            {nil, placement.Move{Shard: true, ToShard: "db-9"}, [3]string{}, prego.CodeShardUnknown},
		"nowhere":                     {func(d *placement.Data) { d.Shards = d.Shards[:1] }, placement.Move{Shard: true}, [3]string{}, prego.CodeInsufficientResources},
		"the pool":                    {nil, placement.Move{Pool: true}, [3]string{"app-1", "db-1", "redis-2"}, ""},
		"all in the network":          {nil, placement.Move{Server: true, Shard: true, Pool: true, To: "app-2"}, [3]string{"app-2", "db-3", "redis-2"}, ""},
		"all, to another network":     {nil, placement.Move{Server: true, Shard: true, Pool: true, To: "app-4"}, [3]string{"app-4", "db-4", "redis-4"}, ""},
		"not half to a node":          {nil, placement.Move{Server: true, To: "node-1"}, [3]string{}, prego.CodeInvariantViolation},
		"to a node":                   {nil, placement.Move{Server: true, Shard: true, Pool: true, To: "node-1"}, [3]string{"node-1", "node-1", "node-1"}, ""},
		"to another region":           {nil, placement.Move{Server: true, Shard: true, Pool: true, Request: request(func(r *placement.Request) { r.Region = "sg" })}, [3]string{"app-5", "db-5", "redis-5"}, ""},
		"not out of its residency":    {nil, placement.Move{Server: true, Shard: true, Pool: true, Request: request(func(r *placement.Request) { r.Region, r.DataResidency = "sg", "DE" })}, [3]string{}, prego.CodeResidencyViolation},
		"not where it is unreachable": {noEdges, placement.Move{Server: true, Shard: true, Pool: true, Request: request(func(r *placement.Request) { r.Region = "sg" })}, [3]string{}, prego.CodeNetworkWithoutEdges},
		"not as asked for: no edges":  {noEdges, placement.Move{Server: true, Shard: true, Pool: true, To: "app-4"}, [3]string{}, prego.CodeNetworkWithoutEdges},
		"beside edges that failed":    {func(d *placement.Data) { d.Edges = []placement.EdgeNetwork{{Network: "n-1"}} }, placement.Move{Server: true, Shard: true, Pool: true, To: "app-2"}, [3]string{"app-2", "db-3", "redis-2"}, ""},
		"where edges serve it":        {func(d *placement.Data) { noEdges(d); d.Edges[1].Serves = true }, placement.Move{Server: true, Shard: true, Pool: true, To: "app-4"}, [3]string{"app-4", "db-4", "redis-4"}, ""},
		"without any edges":           {func(d *placement.Data) { d.Edges = []placement.EdgeNetwork{{Network: "n-3", Serves: true}} }, placement.Move{Server: true, Shard: true, Pool: true, To: "app-4"}, [3]string{"app-4", "db-4", "redis-4"}, ""},
		"not a shard of another one":  {nil, placement.Move{Shard: true, ToShard: "node-1"}, [3]string{}, prego.CodeInsufficientResources},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := fleet()
			app := d.Servers[0]
			d.Servers, d.Shards, d.Pools, d.Sites = nil, nil, nil, nil
			for i, s := range []struct {
				n       string
				network prego.NetworkID
				region  prego.Region
				tenants int
			}{{"1", "n-1", "eu", 1}, {"2", "n-1", "eu", 5}, {"3", "n-1", "eu", 2}, {"4", "n-2", "eu", 9}, {"5", "n-3", "sg", 1}} {
				a := app
				a.ServerID, a.NetworkID, a.Region, a.TenantCount = prego.ServerID("app-"+s.n), s.network, s.region, 1
				if i != 2 {
					d.Servers = append(d.Servers, a)
					d.Pools = append(d.Pools, placement.RedisPool{PoolID: "redis-" + s.n, Region: s.region, NetworkID: s.network, Tenants: 1, Capacity: 10, Status: "active"})
				}
				d.Shards = append(d.Shards, placement.Shard{ShardID: prego.ShardID("db-" + s.n), Region: s.region, NetworkID: s.network, Tenants: s.tenants, Capacity: 10, Status: "active"})
			}
			node := app
			node.ServerID, node.Role, node.NetworkID, node.TenantCount = "node-1", prego.RoleNode, "n-2", 0
			d.Servers = append(d.Servers, node)
			d.Shards = append(d.Shards, placement.Shard{ShardID: "node-1", HostServerID: "node-1", Region: "eu", NetworkID: "n-2", Capacity: 10, Status: "active"})
			d.Pools = append(d.Pools, placement.RedisPool{PoolID: "node-1", HostServerID: "node-1", Region: "eu", NetworkID: "n-2", Capacity: 10, Status: "active"})
			if tc.data != nil {
				tc.data(&d)
			}
			m := tc.move
			if m.TenantID == "" {
				m.Request = request(nil)
			}
			m.From, m.ShardID, m.PoolID = "app-1", "db-1", "redis-1"
			got := placement.NewSnapshot(shared(), d).DecideMove(m)
			require.Equal(t, tc.code, got.Code, got.SelectionReason)
			if tc.code == "" {
				require.Equal(t, tc.want, [3]string{string(got.AppServerID), string(got.DBShardID), string(got.RedisPoolID)}, got.SelectionReason)
			}
		})
	}
}

// parts are three servers, shards and pools of a network, a fourth one of another, and a node.
func parts() placement.Data {
	d := fleet()
	app, shard, pool := d.Servers[0], d.Shards[0], d.Pools[0]
	d.Servers, d.Shards, d.Pools, d.Sites = nil, nil, nil, nil
	app.MemoryPct, app.TenantCount = 0, 0
	for i, network := range []prego.NetworkID{"n-1", "n-1", "n-1", "n-2"} {
		id := string(rune('1' + i))
		app.ServerID, app.NetworkID = prego.ServerID("app-"+id), network
		shard.ShardID, shard.NetworkID, shard.Tenants = prego.ShardID("db-"+id), network, 6-i
		pool.PoolID, pool.NetworkID, pool.Tenants = "redis-"+id, network, i
		d.Servers, d.Shards, d.Pools = append(d.Servers, app), append(d.Shards, shard), append(d.Pools, pool)
	}
	app.ServerID, app.Role = "node-1", prego.RoleNode
	d.Servers = append(d.Servers, app)
	return d
}

// TestMovesInWords: where each move goes, with its score, or why it goes nowhere.
func TestMovesInWords(t *testing.T) {
	t.Parallel()
	all := placement.Move{Server: true, Shard: true, Pool: true}
	with := func(m placement.Move, change func(*placement.Move)) placement.Move {
		change(&m)
		return m
	}
	const no = prego.CodeInvariantViolation
	const byShard = ": the place with the most room in the network of DB shard db-2"
	const byPool = ": the place with the most room in the network of Redis pool redis-2"
	const anywhere, chosen = ": the place with the most room in region eu", ": chosen by an operator"
	for name, tc := range map[string]struct {
		data   func(*placement.Data)
		move   placement.Move
		place  [3]string
		code   prego.Code
		words  string
		score  float64
		counts map[string]int
		forced bool
	}{
		"a server": {
			move: placement.Move{Server: true}, place: [3]string{"app-1", "db-2", "redis-2"}, score: 0.6,
			words:  "moves from app server app-2 to app-1" + byShard,
			counts: map[string]int{"busy": 1, "network_zone_mismatch": 2},
		},
		"a shard": {
			move: placement.Move{Shard: true}, place: [3]string{"app-2", "db-3", "redis-2"}, score: 0.6 + 0.2*0.6,
			words: "moves from DB shard db-2 to db-3" + byPool,
		},
		"a pool": {
			move: placement.Move{Pool: true}, place: [3]string{"app-2", "db-2", "redis-1"}, score: 0.6,
			words: "moves from Redis pool redis-2 to redis-1" + byShard,
		},
		"all": {
			data: func(d *placement.Data) { d.Servers = d.Servers[:4] },
			move: all, place: [3]string{"app-4", "db-4", "redis-4"}, score: 0.6 + 0.2*0.7,
			words: "moves from app server app-2 to app-4, from DB shard db-2 to db-4, " +
				"from Redis pool redis-2 to redis-4" + anywhere,
		},
		"all, of equals the first": {
			data: func(d *placement.Data) { d.Servers, d.Shards[3].Tenants = d.Servers[:4], 4 }, move: all,
			place: [3]string{"app-1", "db-3", "redis-1"}, score: 0.6 + 0.2*0.6,
			words: "moves from app server app-2 to app-1, from DB shard db-2 to db-3, " +
				"from Redis pool redis-2 to redis-1" + anywhere,
		},
		"past what is being reserved": {
			move: with(placement.Move{Shard: true}, func(m *placement.Move) {
				m.Request = request(func(r *placement.Request) { r.Busy = map[string]bool{"db-3": true} })
			}),
			place: [3]string{"app-2", "db-1", "redis-2"}, score: 0.6 + 0.2*0.4,
			words: "moves from DB shard db-2 to db-1" + byPool,
		},
		"to a chosen shard, the first of all": {
			move: placement.Move{Shard: true, ToShard: "db-1"}, place: [3]string{"app-2", "db-1", "redis-2"},
			score: 0.6 + 0.2*0.4, words: "moves from DB shard db-2 to db-1" + chosen, forced: true,
		},
		"to a chosen pool": {
			move: placement.Move{Pool: true, ToPool: "redis-3"}, place: [3]string{"app-2", "db-2", "redis-3"},
			score: 0.6, words: "moves from Redis pool redis-2 to redis-3" + chosen, forced: true,
		},
		"to a chosen pool that is full": {
			data: func(d *placement.Data) { d.Pools[2].Tenants, d.Pools[2].MemoryPct = 10, new(99.0) },
			move: placement.Move{Pool: true, ToPool: "redis-3"}, place: [3]string{"app-2", "db-2", "redis-3"},
			score: 0.6, words: "moves from Redis pool redis-2 to redis-3" + chosen, forced: true,
		},
		"to a node": {
			move:  with(all, func(m *placement.Move) { m.To, m.ToShard, m.ToPool = "node-1", "node-1", "node-1" }),
			place: [3]string{"node-1", "node-1", "node-1"}, score: 0.6 + 0.2, forced: true,
			words: "moves from app server app-2 to node-1, from DB shard db-2 to node-1, " +
				"from Redis pool redis-2 to node-1" + chosen,
		},
		"not to a node with another's shard": {
			move: with(all, func(m *placement.Move) { m.To, m.ToShard = "node-1", "db-1" }), code: no,
			words: "app server node-1 cannot have the tenant: network_zone_mismatch",
		},
		"not to a node with another's pool": {
			move: with(all, func(m *placement.Move) { m.To, m.ToPool = "node-1", "redis-1" }), code: no,
			words: "app server node-1 cannot have the tenant: network_zone_mismatch",
		},
		"not to a node without the shard": {
			move: placement.Move{Server: true, Pool: true, To: "node-1"}, code: no,
			words: "app server node-1 cannot have the tenant: network_zone_mismatch",
		},
		"not to a node without the pool": {
			move: placement.Move{Server: true, Shard: true, To: "node-1"}, code: no,
			words: "app server node-1 cannot have the tenant: network_zone_mismatch",
		},
		"not its shard and pool beside a node": {
			move: placement.Move{Shard: true, Pool: true, From: "node-1"}, code: prego.CodeInsufficientResources,
			words: "there is no place for the tenant in the network of app server node-1: network_zone_mismatch",
		},
		"from a full server, whose tenant only changes its shard": {
			data: func(d *placement.Data) { d.Servers[1].MemoryPct = 99 },
			move: placement.Move{Shard: true}, place: [3]string{"app-2", "db-3", "redis-2"},
			score: 0.2 + 0.4*0.01 + 0.2*0.6, words: "moves from DB shard db-2 to db-3" + byPool,
		},
		"to a chosen pool, the first of all": {
			data: func(d *placement.Data) { d.Pools[0].Tenants = 9 },
			move: placement.Move{Pool: true, ToPool: "redis-1"}, place: [3]string{"app-2", "db-2", "redis-1"},
			score: 0.6, words: "moves from Redis pool redis-2 to redis-1" + chosen, forced: true,
		},
		"not to the first pool, which is elsewhere": {
			move:  placement.Move{Pool: true, ToPool: "redis-1", From: "app-4", ShardID: "db-4"},
			code:  prego.CodeInsufficientResources,
			words: "there is no place for the tenant in the network of app server app-4: network_zone_mismatch",
		},
		"not to a server without a network": {
			data: func(d *placement.Data) { d.Servers[0].NetworkID = "" },
			move: placement.Move{Server: true, Shard: true, Pool: true, To: "app-1"}, code: no,
			words: "app server app-1 cannot have the tenant: network_zone_mismatch",
		},
		"not to a pool of another network": {
			move: placement.Move{Pool: true, ToPool: "redis-4"}, code: prego.CodeInsufficientResources,
			words: "there is no place for the tenant in the network of app server app-2: network_zone_mismatch",
		},
		"not to a node's pool": {
			data: func(d *placement.Data) { d.Servers[4].NetworkID = "n-1" },
			move: placement.Move{Pool: true, ToPool: "node-1"}, code: prego.CodeInsufficientResources,
			words: "there is no place for the tenant in the network of app server app-2: network_zone_mismatch",
		},
		"not to an unknown pool": {
			move: placement.Move{Pool: true, ToPool: "redis-9"}, code: prego.CodeServerUnknown,
			words: `there is no Redis pool "redis-9"`,
		},
		"not to the pool where it is": {
			move: placement.Move{Pool: true, ToPool: "redis-2"}, code: no,
			words: "Redis pool redis-2 cannot have the tenant: busy",
		},
		"no other pool": {
			data: func(d *placement.Data) { d.Pools = d.Pools[1:2] }, move: placement.Move{Pool: true},
			code:  prego.CodeInsufficientResources,
			words: "there is no place for the tenant in the network of app server app-2: redis_pool_full",
		},
		"a server, without any pool": {
			data: func(d *placement.Data) { d.Pools = nil }, move: placement.Move{Server: true},
			place: [3]string{"app-1", "db-2", "redis-2"}, score: 0.6,
			words: "moves from app server app-2 to app-1" + byShard,
		},
		"from a server that is gone": {
			data:  func(d *placement.Data) { d.Servers = d.Servers[:1] },
			move:  with(placement.Move{Server: true}, func(m *placement.Move) { m.From = "app-9" }),
			place: [3]string{"app-1", "db-2", "redis-2"}, score: 0.6,
			words: "moves from app server app-9 to app-1" + byShard,
		},
		"a full server that an operator chose": {
			data: func(d *placement.Data) {
				s := &d.Servers[2]
				s.MemoryPct, s.TenantCount, s.CPUPct, s.WorkerSlotsPct = 99, 20, new(99.0), new(99.0)
				s.NotServing, s.WarmPlan = true, prego.PlanBusiness
			},
			move: placement.Move{Server: true, To: "app-3"}, place: [3]string{"app-3", "db-2", "redis-2"},
			score: 0.4 * 0.01, words: "moves from app server app-2 to app-3" + chosen, forced: true,
		},
		// What an operator's choice waives hides nothing that it does not.
		"not to a failed server that does not serve": {
			data: func(d *placement.Data) { d.Servers[2].Status, d.Servers[2].NotServing = server.Failed, true },
			move: placement.Move{Server: true, To: "app-3"}, code: no,
			words: "app server app-3 cannot have the tenant: not_active",
		},
		"not to a cordoned server that does not serve": {
			data: func(d *placement.Data) { d.Servers[2].Cordoned, d.Servers[2].NotServing = true, true },
			move: placement.Move{Server: true, To: "app-3"}, code: no,
			words: "app server app-3 cannot have the tenant: cordoned",
		},
		"not to a failed shard that does not serve": {
			data: func(d *placement.Data) { d.Shards[2].Status, d.Shards[2].NotServing = server.Failed, true },
			move: placement.Move{Shard: true, ToShard: "db-3"}, code: no,
			words: "DB shard db-3 cannot have the tenant: not_active",
		},
		"not to a failed pool that does not serve": {
			data: func(d *placement.Data) { d.Pools[2].Status, d.Pools[2].NotServing = server.Failed, true },
			move: placement.Move{Pool: true, ToPool: "redis-3"}, code: no,
			words: "Redis pool redis-3 cannot have the tenant: not_active",
		},
		"no other server has room": {
			data: func(d *placement.Data) { d.Servers, d.Servers[0].MemoryPct = d.Servers[:2], 99 },
			move: placement.Move{Server: true}, code: prego.CodeInsufficientResources,
			words:  "no other app server takes the tenant in the network of DB shard db-2",
			counts: map[string]int{"busy": 1, "memory_pct": 1},
		},
		"nowhere": {
			data: func(d *placement.Data) { d.Servers = d.Servers[1:2] }, move: placement.Move{Server: true},
			code: prego.CodeInsufficientResources, counts: map[string]int{"busy": 1},
			words: "no other app server takes the tenant in the network of DB shard db-2",
		},
	} {
		d, p := parts(), shared()
		p.Algorithm = placement.FirstFit // a move goes to the best
		if tc.data != nil {
			tc.data(&d)
		}
		m := tc.move
		if m.TenantID == "" {
			m.Request = request(nil)
		}
		m.PoolID = "redis-2"
		if m.ShardID == "" {
			m.ShardID = "db-2"
		}
		if m.From == "" {
			m.From = "app-2"
		}
		got := placement.NewSnapshot(p, d).DecideMove(m)
		require.Equal(t, tc.words, got.SelectionReason, name)
		require.Equal(t, tc.code, got.Code, name)
		place := [3]string{string(got.AppServerID), string(got.DBShardID), string(got.RedisPoolID)}
		require.Equal(t, tc.place, place, name)
		require.InDelta(t, tc.score, got.Score, 1e-9, name)
		require.Equal(t, tc.forced, got.Algorithm == placement.Manual && tc.code == "", name)
		if tc.code == "" {
			require.EqualValues(t, 1, got.Confidence, name)
			require.EqualValues(t, "hetzner", got.InfraProvider, name)
		}
		if tc.counts != nil {
			require.Equal(t, tc.counts, got.RejectedCounts, name)
		}
	}
	d := parts()
	got := placement.NewSnapshot(shared(), d).DecideMove(placement.Move{
		Request: request(func(r *placement.Request) { r.Constraint.Require = []string{"gpu"} }),
		From:    "app-2", ShardID: "db-2", PoolID: "redis-2", Server: true,
	})
	require.Equal(t, map[string]int{"lacks gpu": 5}, got.Constraint.Unsatisfied)
	require.Equal(t, 15, got.CandidatesEvaluated, "servers, shards and pools")
}
