package placement_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
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
		"a server with two sites, the first shard": {
			data: func(d *placement.Data) {
				more(d)
				d.Sites = append(d.Sites, placement.PoolSite{PoolSiteID: "s-0", AppServerID: "app-1", DBShardID: "db-2"})
			},
			force: placement.Override{AppServerID: "app-1"}, words: "manual: ",
			place: [3]string{"app-1", "db-1", "redis-1"}, looked: 6,
		},
		"a server, and its companions full or absent": {
			data:  func(d *placement.Data) { d.Shards[0].Tenants, d.Pools = 10, nil },
			force: placement.Override{AppServerID: "app-1"}, code: prego.CodeInsufficientResources,
			words:   "the forced server has no companion in region eu; short of: [db-shard redis-pool]",
			missing: []prego.Role{"db-shard", "redis-pool"}, counts: map[string]int{"db_shard_full": 1}, looked: 3,
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
		require.Equal(t, tc.place, [3]string{string(got.AppServerID), string(got.DBShardID), string(got.RedisPoolID)}, name)
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
