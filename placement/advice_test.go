package placement_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// advisable is fleet with a second shard, pool and site on app-1.
func advisable() placement.Data {
	d := fleet()
	d.Shards = append(d.Shards,
		placement.Shard{ShardID: "db-2", Region: "eu", Tenants: 6, Capacity: 10, Status: "active"},
		placement.Shard{ShardID: "db-3", Region: "eu", Tenants: 10, Capacity: 10, Status: "active"},
		placement.Shard{ShardID: "db-4", Region: "eu", Tenants: 5, Capacity: 10, Status: "active"})
	d.Pools = append(d.Pools, placement.RedisPool{PoolID: "redis-2", Region: "eu", Tenants: 9, Capacity: 10, Status: "active"}, placement.RedisPool{PoolID: "redis-3", Region: "sg", Capacity: 10, Status: "active"})
	d.Sites = append(d.Sites, placement.PoolSite{PoolSiteID: "s-3", AppServerID: "app-1", DBShardID: "db-2"})
	d.Servers = append(d.Servers, placement.Server{ServerID: "app-3", Role: prego.RoleApp, Region: "eu", InfraProvider: "hetzner", Status: "draining"})
	return d
}

func advised(a placement.Advice) func(*placement.Request) {
	return func(r *placement.Request) { r.Advice = &a }
}

// TestAdviceChoosesAmongWhatPasses: its place is taken where it passes.
func TestAdviceChoosesAmongWhatPasses(t *testing.T) {
	t.Parallel()
	f := placement.NewSnapshot(shared(), advisable())
	got := f.Decide(request(advised(placement.Advice{AppServerID: "app-1", Reason: "quiet at night\x1b[2J"})))
	require.Equal(t, placement.Placed, got.Outcome)
	require.Equal(t, placement.AIRecommended, got.Algorithm)
	require.Equal(t, []string{"app-1", "db-1", "redis-1", "s-1"}, []string{string(got.AppServerID), string(got.DBShardID), string(got.RedisPoolID), got.PoolSiteID})
	require.InDelta(t, 0.4*0.6+0.2*0.9+0.2*0.6+0.1*0.6, got.Score, 1e-9)
	require.Zero(t, got.Confidence, "another server scored more")
	require.Equal(t, `ai_recommended: app-1 scored 0.6000, the best 0.6800; the adviser's reason: "quiet at night [2J"; site s-1 from its pool`, got.SelectionReason)

	got = f.Decide(request(advised(placement.Advice{AppServerID: "app-1", DBShardID: "db-2", RedisPoolID: "redis-2", Reason: strings.Repeat("very ", 100)})))
	require.Equal(t, []string{"ai_recommended", "app-1", "db-2", "redis-2", "s-3"}, []string{string(got.Algorithm), string(got.AppServerID), string(got.DBShardID), string(got.RedisPoolID), got.PoolSiteID})
	require.InDelta(t, 0.4*0.6+0.2*0.9+0.2*0.4+0.1*0.1, got.Score, 1e-9)
	require.Less(t, len(got.SelectionReason), 400)
	for n, shown := range map[int]int{200: 200, 201: 200} {
		reason := advised(placement.Advice{AppServerID: "app-1", Reason: strings.Repeat("é", n)})
		words := f.Decide(request(reason)).SelectionReason
		require.Equal(t, shown, strings.Count(words, "é"))
		require.Equal(t, n > shown, strings.Contains(words, "…"))
	}

	got = f.Decide(request(advised(placement.Advice{AppServerID: "app-2", DBShardID: "db-1"})))
	require.Equal(t, []string{"ai_recommended", "app-2"}, []string{string(got.Algorithm), string(got.AppServerID)})
	require.InDelta(t, 0.08, got.Confidence, 1e-9, "the best all the same")
	require.NotContains(t, got.SelectionReason, "reason:")

	d := advisable()
	d.Sites = nil
	got = placement.NewSnapshot(shared(), d).Decide(request(advised(placement.Advice{AppServerID: "app-1", DBShardID: "db-4"})))
	weightless := shared()
	weightless.Weights.DBLoad, weightless.Weights.DBDisk = 0, 0
	there := advised(placement.Advice{AppServerID: "app-1", DBShardID: "db-4"})
	zero := placement.NewSnapshot(weightless, d).Decide(request(there))
	require.EqualValues(t, "db-4", zero.DBShardID, "a score of 0 passes")
	require.Equal(t, []string{"on_demand", "ai_recommended", "app-1", "db-4", ""}, []string{string(got.Outcome), string(got.Algorithm), string(got.AppServerID), string(got.DBShardID), got.PoolSiteID})
}

// TestAdviceThatMayNotBeTakenChangesNothing: the decision is the one without it, to the
// last word.
func TestAdviceThatMayNotBeTakenChangesNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		advice  placement.Advice
		data    func(*placement.Data)
		request func(*placement.Request)
	}{
		"nothing":                          {},
		"a server that isn't":              {advice: placement.Advice{AppServerID: "app-9"}},
		"a draining server":                {advice: placement.Advice{AppServerID: "app-3"}},
		"a full server":                    {advice: placement.Advice{AppServerID: "app-1"}, data: func(d *placement.Data) { d.Servers[0].MemoryPct = 70 }},
		"another tenant's server":          {advice: placement.Advice{AppServerID: "app-1"}, data: func(d *placement.Data) { d.Servers[0].DedicatedFor = "u" }},
		"the constraint":                   {advice: placement.Advice{AppServerID: "app-1"}, data: func(d *placement.Data) { d.Servers[1].Tags = []string{"blue"} }, request: func(r *placement.Request) { r.Constraint.Require = []string{"blue"} }},
		"no site, where others have one":   {advice: placement.Advice{AppServerID: "app-1"}, data: func(d *placement.Data) { d.Sites = d.Sites[1:2] }},
		"a shard that isn't":               {advice: placement.Advice{AppServerID: "app-1", DBShardID: "db-9"}},
		"a full shard":                     {advice: placement.Advice{AppServerID: "app-1", DBShardID: "db-3"}},
		"a shard without a site":           {advice: placement.Advice{AppServerID: "app-1", DBShardID: "db-4"}},
		"a pool that isn't":                {advice: placement.Advice{AppServerID: "app-1", RedisPoolID: "redis-9"}},
		"a pool in another region":         {advice: placement.Advice{AppServerID: "app-1", RedisPoolID: "redis-3"}},
		"a node's shard":                   {advice: placement.Advice{AppServerID: "app-1", DBShardID: "node-1"}, data: warm},
		"a node's pool":                    {advice: placement.Advice{AppServerID: "app-1", RedisPoolID: "node-1"}, data: warm},
		"another shard for a node":         {advice: placement.Advice{AppServerID: "node-1", DBShardID: "db-1"}, data: warm},
		"another pool for a node":          {advice: placement.Advice{AppServerID: "node-1", RedisPoolID: "redis-1"}, data: warm},
		"a place for who needs a server":   {advice: placement.Advice{AppServerID: "app-1"}, request: func(r *placement.Request) { r.Mode = tenant.ModeOneTenantOneServer }},
		"a place for an enterprise tenant": {advice: placement.Advice{AppServerID: "app-1"}, request: func(r *placement.Request) { r.Plan = prego.PlanEnterprise }},
		"residency":                        {advice: placement.Advice{AppServerID: "app-1"}, request: func(r *placement.Request) { r.DataResidency = "KR" }},
		"an override":                      {advice: placement.Advice{AppServerID: "app-1"}, request: func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "app-2", Reason: "x"} }},
		"while a refill is waited for":     {advice: placement.Advice{AppServerID: "app-1"}, data: func(d *placement.Data) { d.Sites = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, p := advisable(), shared()
			if tc.data != nil {
				tc.data(&d)
			}
			if strings.Contains(name, "refill") {
				p.EmptyPool = placement.Hold
			}
			f, r := placement.NewSnapshot(p, d), request(tc.request)
			want := f.Decide(r)
			r.Advice = &tc.advice
			require.Equal(t, want, f.Decide(r))
		})
	}
}

// TestAdviceBypassesNothing draws fleets, requests and advice, sound or not: the decision satisfies every rule, and
// has the same outcome as without advice.
func TestAdviceBypassesNothing(t *testing.T) {
	t.Parallel()
	taken := 0
	rapid.Check(t, func(t *rapid.T) {
		data := genFleet(t)
		enrich(t, &data)
		policy := shared()
		policy.EmptyPool = rapid.SampledFrom([]placement.EmptyPool{"on_demand", "hold"}).Draw(t, "empty pool")
		w, f := newWorld(data, policy), placement.NewSnapshot(policy, data)
		for i := range rapid.IntRange(1, 8).Draw(t, "requests") {
			r := genRequest(t, i)
			plain := f.Decide(r)
			candidates := f.Candidates(r, 20)
			server := rapid.SampledFrom([]string{"app-0", "app-1", "app-7", "app-8", "app-9", "app-10", "app-11"}).Draw(t, "server")
			r.Advice = &placement.Advice{
				AppServerID: prego.ServerID(server), DBShardID: prego.ShardID(rapid.SampledFrom([]string{"", "", "db-0", "db-5", "db-6", "db-7", server}).Draw(t, "db")),
				RedisPoolID: prego.RedisPoolID(rapid.SampledFrom([]string{"", "", "redis-0", "redis-5", "redis-6", server}).Draw(t, "redis")),
			}
			if len(candidates) > 0 && rapid.Bool().Draw(t, "sound") {
				c := rapid.SampledFrom(candidates).Draw(t, "candidate")
				r.Advice = &placement.Advice{AppServerID: c.AppServerID, DBShardID: c.DBShardID, RedisPoolID: c.RedisPoolID}
			}
			d := f.Decide(r)
			require.Equal(t, plain.Outcome, d.Outcome)
			require.Equal(t, plain.Code, d.Code)
			if d.Algorithm == placement.AIRecommended {
				taken++
				require.Equal(t, r.Advice.AppServerID, d.AppServerID)
				require.Contains(t, []string{"", string(d.DBShardID)}, string(r.Advice.DBShardID))
				require.Contains(t, []string{"", string(d.RedisPoolID)}, string(r.Advice.RedisPoolID))
			} else {
				require.Equal(t, plain, d)
			}
			if d.PlacesTenant() && r.Override == nil { // an adviser that is shown all can choose the engine's own
				require.Contains(t, candidates, placement.Candidate{
					AppServerID: plain.AppServerID, DBShardID: plain.DBShardID, RedisPoolID: plain.RedisPoolID, Score: plain.Explanation().Score, Site: plain.Outcome == placement.Placed,
				})
				for _, c := range candidates {
					ask := r
					ask.Advice = &placement.Advice{AppServerID: c.AppServerID, DBShardID: c.DBShardID, RedisPoolID: c.RedisPoolID}
					got := f.Decide(ask)
					require.Equal(t, placement.AIRecommended, got.Algorithm, "every candidate may be chosen")
					require.Equal(t, c.Score, got.Explanation().Score)
				}
			}
			f.Apply(r, d)
			w.check(t, r, d)
		}
	})
	require.Positive(t, taken)
}

func TestCandidates(t *testing.T) {
	t.Parallel()
	d := advisable()
	f := placement.NewSnapshot(shared(), d)
	best := placement.Candidate{AppServerID: "app-2", DBShardID: "db-1", RedisPoolID: "redis-1", Score: 0.68, Site: true}
	require.Equal(t, []placement.Candidate{best, {AppServerID: "app-1", DBShardID: "db-1", RedisPoolID: "redis-1", Score: 0.6, Site: true}}, f.Candidates(request(nil), 20))
	require.Equal(t, []placement.Candidate{best}, f.Candidates(request(nil), 1))
	require.Empty(t, f.Candidates(request(func(r *placement.Request) { r.DataResidency = "KR" }), 20))
	require.Empty(t, f.Candidates(request(func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "app-1"} }), 20))
	require.Equal(t, placement.AdviceRequest{
		TenantID: "t", OrgID: "o", ParentOrgID: "p", Region: "eu", Plan: prego.PlanStarter, Mode: tenant.ModeShared, Candidates: []placement.Candidate{best},
	}, f.AskFor(request(func(r *placement.Request) { r.ParentOrgID = "p" }), 1))
	d.Sites = d.Sites[:1]
	got := placement.NewSnapshot(shared(), d).Candidates(request(nil), 20)
	require.Len(t, got, 1, "a server without a site loses to a server with a site")
	d.Sites = nil
	got = placement.NewSnapshot(shared(), d).Candidates(request(nil), 20)
	require.Equal(t, []bool{false, false}, []bool{got[0].Site, got[1].Site})
}
