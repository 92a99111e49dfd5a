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
