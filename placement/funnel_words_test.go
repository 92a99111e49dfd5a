package placement_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// words is a funnel in a line for each part: its candidates, what each filter removed and left, and what remains.
func words(f placement.Funnel) string {
	var out []string
	for _, p := range f.Parts {
		line := fmt.Sprintf("%d %s", p.Candidates, p.Kind)
		for _, s := range p.Filters {
			line += fmt.Sprintf(" -%d %s %v =%d", s.Removed, s.Filter, s.IDs, s.Left)
		}
		line += ":"
		for _, c := range p.Scored {
			line += fmt.Sprintf(" %s%s %v", c.ID, map[bool]string{true: "*"}[c.Chosen], c.Score)
			if c.DBShardID != "" {
				line += fmt.Sprintf(" on %s %s", c.DBShardID, c.RedisPoolID)
			}
			line += " ("
			for _, name := range slices.Sorted(maps.Keys(c.Components)) {
				line += fmt.Sprintf("%s %v ", name, c.Components[name])
			}
			line = strings.TrimSpace(line) + ")"
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

func TestFunnelsInWords(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		policy  func(*placement.Policy)
		data    func(*placement.Data)
		request func(*placement.Request)
		want    string
	}{
		"best fit": {
			want: "2 app_server: app-2* 0.7 on db-1 redis-2 (app_count 0.18 app_load 0.32 db_load 0.12 redis_load " +
				"0.08) app-1 0.62 on db-1 redis-2 (app_count 0.18 app_load 0.24 db_load 0.12 redis_load 0.08)\n" +
				"2 db_shard: db-1* 0.12 (db_load 0.12) db-2 0.08 (db_load 0.08)\n" +
				"2 redis_pool: redis-2* 0.08 (redis_load 0.08) redis-1 0.06 (redis_load 0.06)",
		},
		"first fit": {
			policy: func(p *placement.Policy) { p.Algorithm = placement.FirstFit },
			want: "2 app_server: app-1* 0.6 on db-1 redis-1 (app_count 0.18 app_load 0.24 db_load 0.12 redis_load " +
				"0.06) app-2 0.68 on db-1 redis-1 (app_count 0.18 app_load 0.32 db_load 0.12 redis_load 0.06)\n" +
				"2 db_shard: db-1* 0.12 (db_load 0.12) db-2 0.08 (db_load 0.08)\n" +
				"2 redis_pool: redis-1* 0.06 (redis_load 0.06) redis-2 0.08 (redis_load 0.08)",
		},
		"new server": {
			policy: func(p *placement.Policy) { p.Algorithm = placement.NewServer },
			want: "2 app_server -2 new_server [app-1 app-2] =0:\n" +
				"0 db_shard:\n" +
				"0 redis_pool:",
		},
		"family, on its shard": {
			policy: func(p *placement.Policy) { p.SameShard = true },
			data: func(d *placement.Data) {
				d.Servers[1].ParentOrgs, d.Shards[1].ParentOrgs = map[string]int{"p": 1}, map[string]int{"p": 1}
			},
			request: func(r *placement.Request) { r.ParentOrgID = "p" },
			want: "2 app_server: app-2* 0.8 on db-1 redis-2 (affinity 0.1 app_count 0.18 app_load 0.32 db_load " +
				"0.12 redis_load 0.08) app-1 0.62 on db-1 redis-2 (app_count 0.18 app_load 0.24 db_load 0.12 " +
				"redis_load 0.08)\n" +
				"2 db_shard: db-2 0.13 (db_load 0.08 same_shard 0.05) db-1* 0.12 (db_load 0.12)\n" +
				"2 redis_pool: redis-2* 0.08 (redis_load 0.08) redis-1 0.06 (redis_load 0.06)",
		},
		"a forced server": {
			request: func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "app-1"} },
			want: "2 app_server -1 override [app-2] =1: app-1* 0.42 (app_count 0.18 app_load 0.24)\n" +
				"2 db_shard: db-1* 0.12 (db_load 0.12) db-2 0.08 (db_load 0.08)\n" +
				"2 redis_pool: redis-1* 0.06 (redis_load 0.06) redis-2 0.08 (redis_load 0.08)",
		},
		"a forced shard": {
			request: func(r *placement.Request) { r.Override = &placement.Override{DBShardID: "db-2"} },
			want: "2 app_server: app-1 0.42 on db-2  (app_count 0.18 app_load 0.24) app-2* 0.5 on db-2  " +
				"(app_count 0.18 app_load 0.32)\n" +
				"2 db_shard -1 override [db-1] =1: db-2* 0.08 (db_load 0.08)\n" +
				"2 redis_pool: redis-1* 0.06 (redis_load 0.06) redis-2 0.08 (redis_load 0.08)",
		},
		"a forced pool": {
			request: func(r *placement.Request) { r.Override = &placement.Override{RedisPoolID: "redis-2"} },
			want: "2 app_server: app-1 0.42 on db-1  (app_count 0.18 app_load 0.24) app-2* 0.5 on db-1  " +
				"(app_count 0.18 app_load 0.32)\n" +
				"2 db_shard: db-1* 0.12 (db_load 0.12) db-2 0.08 (db_load 0.08)\n" +
				"2 redis_pool -1 override [redis-1] =1: redis-2* 0.08 (redis_load 0.08)",
		},
		"a forced node": {
			data:    func(d *placement.Data) { warm(d); d.Shards[2].NotServing, d.Pools[2].NotServing = true, true },
			request: func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "node-1"} },
			want: "3 app_server -2 override [app-1 app-2] =1: node-1* 0.6 (app_count 0.2 app_load 0.4)\n" +
				"3 db_shard -2 override [db-1 db-2] =1: node-1* 0.2 (db_load 0.2)\n" +
				"3 redis_pool -2 override [redis-1 redis-2] =1: node-1* 0.1 (redis_load 0.1)",
		},
		"its own server": {
			data:    func(d *placement.Data) { warm(d); d.Servers[2].DedicatedFor = "t" },
			request: func(r *placement.Request) { r.Mode = tenant.ModeShared },
			want: "3 app_server -2 own_server [app-1 app-2] =1: node-1* 0.9 on node-1 node-1 (app_count 0.2 " +
				"app_load 0.4 db_load 0.2 redis_load 0.1)\n" +
				"3 db_shard: node-1* 0.2 (db_load 0.2) db-1 0.12 (db_load 0.12) db-2 0.08 (db_load 0.08)\n" +
				"3 redis_pool: node-1* 0.1 (redis_load 0.1) redis-2 0.08 (redis_load 0.08) redis-1 0.06 " +
				"(redis_load 0.06)",
		},
		"no pool and no shard there": {
			data: func(d *placement.Data) {
				d.Servers[0].NetworkID = "west"
				d.Pools[0].Tenants, d.Pools[1].Tenants, d.Shards[0].Tenants, d.Shards[1].Tenants = 10, 10, 10, 10
			},
			want: "2 app_server -2 no_redis_pool [app-1 app-2] =0:\n" +
				"2 db_shard -2 db_shard_full [db-1 db-2] =0:\n" +
				"2 redis_pool -2 redis_pool_full [redis-1 redis-2] =0:",
		},
		"a forced full shard of the family": {
			policy: func(p *placement.Policy) { p.SameShard = true },
			data: func(d *placement.Data) {
				d.Shards[1].Tenants, d.Shards[1].ParentOrgs = 10, map[string]int{"p": 1}
			},
			request: func(r *placement.Request) {
				r.ParentOrgID, r.Override = "p", &placement.Override{DBShardID: "db-2"}
			},
			want: "2 app_server: app-1 0.42 on db-2  (app_count 0.18 app_load 0.24) app-2* 0.5 on db-2  " +
				"(app_count 0.18 app_load 0.32)\n" +
				"2 db_shard -1 override [db-1] =1: db-2* 0 ()\n" +
				"2 redis_pool: redis-1* 0.06 (redis_load 0.06) redis-2 0.08 (redis_load 0.08)",
		},
		"shards without weight": {
			policy:  func(p *placement.Policy) { p.SameShard, p.Weights.DBLoad = true, 0 },
			data:    func(d *placement.Data) { d.Shards[1].ParentOrgs = map[string]int{"p": 1} },
			request: func(r *placement.Request) { r.ParentOrgID = "p" },
			want: "2 app_server: app-2* 0.58 on db-1 redis-2 (app_count 0.18 app_load 0.32 redis_load 0.08) app-1 " +
				"0.5 on db-1 redis-2 (app_count 0.18 app_load 0.24 redis_load 0.08)\n" +
				"2 db_shard: db-2 0.05 (same_shard 0.05) db-1* 0 ()\n" +
				"2 redis_pool: redis-2* 0.08 (redis_load 0.08) redis-1 0.06 (redis_load 0.06)",
		},
		"a forced shard beside a node": {
			data:    warm,
			request: func(r *placement.Request) { r.Override = &placement.Override{DBShardID: "db-1"} },
			want: "3 app_server -1 override [node-1] =2: app-1 0.42 on db-1  (app_count 0.18 app_load 0.24) " +
				"app-2* 0.5 on db-1  (app_count 0.18 app_load 0.32)\n" +
				"3 db_shard -2 override [db-2 node-1] =1: db-1* 0.12 (db_load 0.12)\n" +
				"3 redis_pool: node-1 0.1 (redis_load 0.1) redis-1* 0.06 (redis_load 0.06) redis-2 0.08 " +
				"(redis_load 0.08)",
		},
		"a hold": {
			policy: func(p *placement.Policy) { p.EmptyPool = placement.Hold },
			data:   func(d *placement.Data) { d.Sites = nil },
			want: "2 app_server -2 site_pool_empty [app-1 app-2] =0:\n" +
				"2 db_shard: db-1 0.12 (db_load 0.12) db-2 0.08 (db_load 0.08)\n" +
				"2 redis_pool: redis-2 0.08 (redis_load 0.08) redis-1 0.06 (redis_load 0.06)",
		},
		"thirds": {
			policy: func(p *placement.Policy) { p.Weights.AppCPU, p.Weights.RedisMemory, p.Weights.DBDisk = 0.1, 0.1, 0.1 },
			data: func(d *placement.Data) {
				d.Servers[1].MemoryPct, d.Servers[1].CPUPct = 100/3.0, new(50.0)
				d.Shards[0].DiskPct, d.Pools[0].MemoryPct = new(25.0), new(75.0)
			},
			want: "2 app_server: app-2* 0.776667 on db-1 redis-1 (app_count 0.18 app_cpu 0.05 app_load 0.266667 " +
				"db_disk 0.075 db_load 0.12 redis_load 0.06 redis_memory 0.025) app-1 0.7 on db-1 redis-1 " +
				"(app_count 0.18 app_load 0.24 db_disk 0.075 db_load 0.12 redis_load 0.06 redis_memory 0.025)\n" +
				"2 db_shard: db-1* 0.195 (db_disk 0.075 db_load 0.12) db-2 0.08 (db_load 0.08)\n" +
				"2 redis_pool: redis-1* 0.085 (redis_load 0.06 redis_memory 0.025) redis-2 0.08 (redis_load " +
				"0.08)",
		},
		"no shard there": {
			data: func(d *placement.Data) { d.Shards[0].Tenants, d.Shards[1].Tenants = 10, 10 },
			want: "2 app_server -2 no_db_shard [app-1 app-2] =0:\n" +
				"2 db_shard -2 db_shard_full [db-1 db-2] =0:\n" +
				"2 redis_pool: redis-2 0.08 (redis_load 0.08) redis-1 0.06 (redis_load 0.06)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, p := fleet(), shared()
			d.Shards = append(d.Shards, placement.Shard{ShardID: "db-2", Region: "eu", Tenants: 6, Capacity: 10, Status: "active"})
			d.Pools = append(d.Pools, placement.RedisPool{PoolID: "redis-2", Region: "eu", Tenants: 2, Capacity: 10, Status: "active"})
			if tc.data != nil {
				tc.data(&d)
			}
			if tc.policy != nil {
				tc.policy(&p)
			}
			got, funnel := placement.NewSnapshot(p, d).Funnel(request(tc.request), 9)
			require.Equal(t, tc.want, words(funnel))
			for _, part := range funnel.Parts {
				require.Equal(t, got.PlacesTenant(), part.Chosen != "")
			}
		})
	}
}
