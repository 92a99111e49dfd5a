package placement_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// TestOverridesAnswerInWords: what is forced, what is chosen beside it, and what a refusal reports.
func TestOverridesAnswerInWords(t *testing.T) {
	t.Parallel()
	more := func(d *placement.Data) { // a shard and a pool that have more room
		d.Shards = append(d.Shards, placement.Shard{ShardID: "db-2", Region: "eu", Tenants: 1, Capacity: 10, Status: "active"})
		d.Pools = append(d.Pools, placement.RedisPool{PoolID: "redis-2", Region: "eu", Tenants: 1, Capacity: 10, Status: "active"})
	}
	for name, tc := range map[string]struct {
		data    func(*placement.Data)
		force   placement.Override
		request func(*placement.Request)
		words   string
		code    prego.Code
		place   [3]string
		missing []prego.Role
		counts  map[string]int // of rejections
		looked  int
	}{
		"a server, with its site's shard": {
			data: more, force: placement.Override{AppServerID: "app-1", Reason: "why"}, words: "manual: why",
			place: [3]string{"app-1", "db-1", "redis-1"}, looked: 6,
		},
		"a server, with a site on the second shard": {
			data: func(d *placement.Data) {
				more(d)
				d.Sites = []placement.PoolSite{{PoolSiteID: "s-0", AppServerID: "app-1", DBShardID: "db-2"}}
			},
			force: placement.Override{AppServerID: "app-1"}, words: "manual: ",
			place: [3]string{"app-1", "db-2", "redis-1"}, looked: 6,
		},
		"a server and a pool": {
			data: more, force: placement.Override{AppServerID: "app-1", RedisPoolID: "redis-2"}, words: "manual: ",
			place: [3]string{"app-1", "db-1", "redis-2"}, looked: 6,
		},
		"a server, and its companions full or absent": {
			data:  func(d *placement.Data) { d.Shards[0].Tenants, d.Pools = 10, nil },
			force: placement.Override{AppServerID: "app-1"}, code: prego.CodeInsufficientResources,
			words:   "the forced server has no companion in region eu; short of: [db-shard redis-pool]",
			missing: []prego.Role{"db-shard", "redis-pool"}, counts: map[string]int{"db_shard_full": 1}, looked: 3,
		},
		"a server, and its pool full": {
			data:  func(d *placement.Data) { d.Pools[0].Tenants = 10 },
			force: placement.Override{AppServerID: "app-1"}, words: "manual: ",
			place: [3]string{"app-1", "db-1", "redis-1"}, looked: 4,
		},
		"a server, and no shard": {
			data:  func(d *placement.Data) { d.Shards, d.Sites = nil, nil },
			force: placement.Override{AppServerID: "app-1"}, code: prego.CodeInsufficientResources,
			words:   "the forced server has no companion in region eu; short of: [db-shard]",
			missing: []prego.Role{"db-shard"}, looked: 3,
		},
		"the same, with a constraint that none satisfies": {
			data:  func(d *placement.Data) { d.Pools = nil },
			force: placement.Override{AppServerID: "app-1", IgnoreConstraint: true}, code: prego.CodeInsufficientResources,
			request: func(r *placement.Request) { r.Constraint.Require = []string{"blue"} },
			words:   "the forced server has no companion in region eu; short of: [redis-pool]",
			missing: []prego.Role{"redis-pool"}, looked: 3,
		},
		"a pool, where there is none": {
			data:  func(d *placement.Data) { d.Pools = nil },
			force: placement.Override{RedisPoolID: "redis-9"}, code: "redis_pool_unknown",
			words: `there is no Redis pool "redis-9"`,
		},
		"a cordoned server, without a pool": {
			data:  func(d *placement.Data) { d.Servers[0].Cordoned, d.Pools = true, nil },
			force: placement.Override{AppServerID: "app-1"}, code: prego.CodeInvariantViolation,
			words: "app server app-1 is cordoned: it takes no new tenants",
		},
		"a server in another region, without a pool": {
			data:  func(d *placement.Data) { d.Servers[0].Region, d.Pools = "sg", nil },
			force: placement.Override{AppServerID: "app-1"}, code: prego.CodeInvariantViolation,
			words: "app server app-1 is active in region sg, and the tenant belongs on an active one in eu",
		},
		"a failed server, without a pool": {
			data:  func(d *placement.Data) { d.Servers[0].Status, d.Pools = server.Failed, nil },
			force: placement.Override{AppServerID: "app-1"}, code: prego.CodeInvariantViolation,
			words: "app server app-1 is failed in region eu, and the tenant belongs on an active one in eu",
		},
		"an unknown shard, without a pool": {
			data:  func(d *placement.Data) { d.Pools = nil },
			force: placement.Override{AppServerID: "app-1", DBShardID: "db-9"}, code: prego.CodeShardUnknown,
			words: `there is no DB shard "db-9"`, looked: 3,
		},
		"a server against the constraint": {
			force:   placement.Override{AppServerID: "app-1"},
			request: func(r *placement.Request) { r.Constraint.Require = []string{"blue"} },
			code:    prego.CodeCellMismatch, looked: 2,
			words: "app server app-1 does not satisfy the constraint (require blue); ignore_constraint forces it",
		},
	} {
		d := fleet()
		if tc.data != nil {
			tc.data(&d)
		}
		r := request(tc.request)
		r.Override = &tc.force
		got := placement.NewSnapshot(shared(), d).Decide(r)
		require.Equal(t, tc.words, got.SelectionReason, name)
		require.Equal(t, tc.code, got.Code, name)
		place := [3]string{string(got.AppServerID), string(got.DBShardID), string(got.RedisPoolID)}
		require.Equal(t, tc.place, place, name)
		require.Equal(t, tc.missing, got.MissingRoles, name)
		require.Equal(t, tc.looked, got.CandidatesEvaluated, name)
		require.Equal(t, placement.Manual, got.Algorithm, name)
		require.False(t, got.Dedicates, name)
		if tc.counts == nil {
			tc.counts = map[string]int{}
		}
		require.Equal(t, tc.counts, got.RejectedCounts, name)
	}
}

// TestOverridesDedicateForEnterpriseOnly: an empty server that an operator forces is otherwise shared.
func TestOverridesDedicateForEnterpriseOnly(t *testing.T) {
	t.Parallel()
	for plan, dedicates := range map[prego.Plan]bool{prego.PlanStarter: false, prego.PlanEnterprise: true} {
		for _, o := range []placement.Override{{AppServerID: "app-1"}, {DBShardID: "db-1"}, {RedisPoolID: "redis-1"}} {
			d := fleet()
			d.Servers = d.Servers[:1]
			d.Servers[0].TenantCount, d.Shards[0].Tenants, d.Pools[0].Tenants = 0, 0, 0
			got := placement.NewSnapshot(shared(), d).Decide(request(func(r *placement.Request) {
				r.Plan, r.Override = plan, &o
			}))
			require.Equal(t, placement.Placed, got.Outcome, got.SelectionReason)
			require.Equal(t, dedicates, got.Dedicates)
		}
	}
}

// TestForcedPartsChooseTheirServer: the best server with a site for them, or else the best one.
func TestForcedPartsChooseTheirServer(t *testing.T) {
	t.Parallel()
	second := func(d *placement.Data) {
		d.Shards, d.Pools = append(d.Shards, d.Shards[0]), append(d.Pools, d.Pools[0])
		d.Shards[1].ShardID, d.Pools[1].PoolID = "db-2", "redis-2"
	}
	apart := func(d *placement.Data) { // a server and a shard in one network, a server and a pool in another
		d.Servers[0].NetworkID, d.Shards[0].NetworkID = "west", "west"
		d.Servers[1].NetworkID, d.Pools[0].NetworkID = "east", "east"
	}
	for name, tc := range map[string]struct {
		data    func(*placement.Data)
		policy  func(*placement.Policy)
		force   placement.Override
		mode    string
		want    [4]string // with the site
		outcome placement.Outcome
		words   string
		counts  map[string]int
	}{
		"a shard, where it has a site": {
			data: func(d *placement.Data) {
				second(d)
				site := placement.PoolSite{PoolSiteID: "s-0", AppServerID: "app-1", DBShardID: "db-2"}
				d.Sites = append(d.Sites, site)
			},
			force: placement.Override{DBShardID: "db-2"}, want: [4]string{"app-1", "db-2", "redis-1", "s-0"},
		},
		"the first shard, where another's site is better": {
			data:  func(d *placement.Data) { second(d); d.Sites[1].DBShardID = "db-2" },
			force: placement.Override{DBShardID: "db-1"}, want: [4]string{"app-1", "db-1", "redis-1", "s-1"},
		},
		"a node's shard with another pool": {
			data: warm, force: placement.Override{DBShardID: "node-1", RedisPoolID: "redis-1"},
			outcome: placement.Refused,
			words:   "node node-1 is a whole stack: it uses only its own DB shard and Redis pool",
		},
		"a shard without sites": {
			data: second, force: placement.Override{DBShardID: "db-2"},
			want: [4]string{"app-2", "db-2", "redis-1"}, outcome: placement.OnDemandSite,
		},
		"a shard, of equal servers the first": {
			data:  func(d *placement.Data) { d.Servers[1].MemoryPct = 40 },
			force: placement.Override{DBShardID: "db-1"}, want: [4]string{"app-1", "db-1", "redis-1", "s-1"},
		},
		"a shard, past a failed server": {
			data:  func(d *placement.Data) { d.Servers[1].Status = server.Failed },
			force: placement.Override{DBShardID: "db-1"}, want: [4]string{"app-1", "db-1", "redis-1", "s-1"},
			counts: map[string]int{"not_active": 1},
		},
		"a server in no network, apart": {
			data:  func(d *placement.Data) { d.Shards[0].NetworkID = "west" },
			force: placement.Override{AppServerID: "app-1", DBShardID: "db-1"}, outcome: placement.Refused,
			words: "app server app-1 is in no network, DB shard db-1 in network west and Redis pool redis-1 in no " +
				"network: the networks are not connected (network_zone_mismatch)",
		},
		"a pool, where there is a site": {
			data:  func(d *placement.Data) { second(d); d.Sites = d.Sites[:1] },
			force: placement.Override{RedisPoolID: "redis-2"}, want: [4]string{"app-1", "db-1", "redis-2", "s-1"},
		},
		"a shard, past a node": {
			data:  func(d *placement.Data) { warm(d); d.Servers, d.Sites = d.Servers[1:], nil },
			force: placement.Override{DBShardID: "db-1"}, want: [4]string{"app-2", "db-1", "redis-1"},
			outcome: placement.OnDemandSite,
		},
		"a shard, and every pool full": {
			data:  func(d *placement.Data) { d.Pools[0].Tenants = 10 },
			force: placement.Override{DBShardID: "db-1"}, want: [4]string{"app-2", "db-1", "redis-1", "s-2"},
		},
		"a shard, past a server in another network": {
			data: func(d *placement.Data) {
				d.Servers[1].NetworkID, d.Shards[0].NetworkID, d.Pools[0].NetworkID = "west", "west", "west"
			},
			force: placement.Override{DBShardID: "db-1"}, want: [4]string{"app-2", "db-1", "redis-1", "s-2"},
			counts: map[string]int{"network_zone_mismatch": 1},
		},
		"a pool without sites": {
			data: func(d *placement.Data) { d.Sites = nil }, force: placement.Override{RedisPoolID: "redis-1"},
			want: [4]string{"app-2", "db-1", "redis-1"}, outcome: placement.OnDemandSite,
		},
		"a pool without a shard": {
			data:    func(d *placement.Data) { d.Shards, d.Sites = nil, nil },
			force:   placement.Override{RedisPoolID: "redis-1"},
			outcome: placement.AwaitingCapacity,
			words:   "no candidate has room in region eu; short of: [app db-shard]",
		},
		"a shard without a pool": {
			data: func(d *placement.Data) { d.Pools = nil }, force: placement.Override{DBShardID: "db-1"},
			outcome: placement.AwaitingCapacity,
			words:   "no candidate has room in region eu; short of: [app redis-pool]",
		},
		"an unknown shard": {
			force: placement.Override{DBShardID: "db-9"}, outcome: placement.Refused,
			words: `there is no DB shard "db-9"`,
		},
		"a node's shard": {
			data: warm, force: placement.Override{DBShardID: "node-1"},
			want: [4]string{"node-1", "node-1", "node-1", "s-n"},
		},
		"a node's pool": {
			data: warm, force: placement.Override{RedisPoolID: "node-1"},
			want: [4]string{"node-1", "node-1", "node-1", "s-n"},
		},
		"a shard and a pool that are apart": {
			data: apart, force: placement.Override{DBShardID: "db-1", RedisPoolID: "redis-1"},
			outcome: placement.Refused,
			words: "app server app-1 is in network west, DB shard db-1 in network west and Redis pool redis-1 in " +
				"network east: the networks are not connected (network_zone_mismatch)",
		},
		"a server without a site, held": {
			data: func(d *placement.Data) { d.Sites = nil }, force: placement.Override{AppServerID: "app-1"},
			policy: func(p *placement.Policy) { p.EmptyPool = placement.Hold }, want: [4]string{"app-1"},
			outcome: placement.HoldForSite,
			words:   "the forced server has no site left on the forced shard: the placement waits for a refill",
		},
		"a server without a site for one tenant": {
			data: func(d *placement.Data) { d.Sites = nil }, force: placement.Override{AppServerID: "app-1"},
			policy: func(p *placement.Policy) { p.EmptyPool = placement.Hold }, mode: "one_tenant_one_server",
			want: [4]string{"app-1", "db-1", "redis-1"}, outcome: placement.OnDemandSite,
		},
	} {
		d, p := fleet(), shared()
		if tc.data != nil {
			tc.data(&d)
		}
		if tc.policy != nil {
			tc.policy(&p)
		}
		r := request(func(r *placement.Request) { r.Override, r.Mode = &tc.force, tenant.PlacementMode(tc.mode) })
		got, funnel := placement.NewSnapshot(p, d).Funnel(r, 10)
		for _, part := range funnel.Parts {
			require.LessOrEqual(t, part.Remaining, part.Candidates, "%s: %s", name, part.Kind)
		}
		require.Equal(t, placement.NewSnapshot(p, d).Decide(r), got, name)
		if tc.outcome == "" {
			tc.outcome = placement.Placed
		}
		require.Equal(t, tc.outcome, got.Outcome, "%s: %s", name, got.SelectionReason)
		require.Equal(t, tc.want, [4]string{
			string(got.AppServerID), string(got.DBShardID), string(got.RedisPoolID), got.PoolSiteID,
		}, name)
		if tc.words != "" {
			require.Equal(t, tc.words, got.SelectionReason, name)
		}
		if tc.counts != nil {
			require.Equal(t, tc.counts, got.RejectedCounts, name)
		}
	}
}

// TestAForcedServerUsesItsSites, also where a shard before theirs was added later.
func TestAForcedServerUsesItsSites(t *testing.T) {
	t.Parallel()
	f := placement.NewSnapshot(shared(), fleet())
	later := fleet().Shards[0]
	later.ShardID = "db-0"
	f.SetShard(later)
	got := f.Decide(request(func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "app-1"} }))
	require.Equal(t, []string{"db-1", "s-1"}, []string{string(got.DBShardID), got.PoolSiteID})
}
