package placement_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
)

// TestWhatIsKeptIsReplayed: after any changes and decisions since a journal began, each decision is repeated exactly
// from the written rows.
func TestWhatIsKeptIsReplayed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		data := genFleet(t)
		enrich(t, &data)
		policy := shared()
		policy.Algorithm = rapid.SampledFrom([]placement.Algorithm{placement.BestFit, placement.RoundRobin}).Draw(t, "algorithm")
		f := placement.NewSnapshot(policy, data)
		for i := range rapid.IntRange(0, 3).Draw(t, "before") { // the state is that of a snapshot in use
			r := genRequest(t, 100+i)
			f.Apply(r, f.Decide(r))
		}
		state, err := json.Marshal(f.Keep("v1"))
		require.NoError(t, err)
		var events []json.RawMessage
		add := func(e placement.KeptEvent) {
			raw, err := json.Marshal(e)
			require.NoError(t, err)
			events = append(events, raw)
		}
		for i := range 6 {
			if rapid.Bool().Draw(t, "change") {
				c := placement.Change{Providers: data.Providers, Residency: data.Residency, Networks: data.Networks, LastServer: fmt.Sprintf("app-%d", i)}
				if n := len(data.Servers); n > 0 {
					s := data.Servers[rapid.IntRange(0, n-1).Draw(t, "which")]
					if now, ok := f.Server(s.ServerID); ok {
						s = now
					}
					s.MemoryPct = float64(rapid.IntRange(0, 90).Draw(t, "memory"))
					if rapid.IntRange(0, 5).Draw(t, "gone") == 5 {
						s.Status = server.Terminated
					}
					c.Servers = append(c.Servers, s)
				}
				add(placement.KeptEvent{Change: &c})
				f.Update(c)
			}
			r := genRequest(t, i)
			d := f.Decide(r)
			add(placement.KeptEvent{Decided: &placement.KeptDecision{Request: r, Place: d.KeptPlace}})
			f.Apply(r, d)
			k, err := placement.ReadKept(state, events)
			require.NoError(t, err)
			recorded := d.Explanation()
			recorded.Input = "where the journal has it"
			replay, err := k.Replay(policy, "v2", recorded, 100)
			require.NoError(t, err)
			require.Empty(t, replay.Differences)
			require.True(t, replay.Same)
			require.Equal(t, asJSON(t, placement.LineOf(r, d)), asJSON(t, replay.Then))
			require.Equal(t, asJSON(t, k.Decision.Line(d.Explanation())), asJSON(t, replay.Now))
			// Another answer than it would give now is blamed on the program.
			k.Decision.Place.Outcome = "another"
			replay, err = k.Replay(policy, "v2", d.Explanation(), 100)
			require.NoError(t, err)
			require.False(t, replay.Same)
			require.Equal(t, []placement.Difference{{What: "code", Field: "version", Then: "v1", Now: "v2", Decisive: true}}, replay.Differences)
		}
	})
}

func asJSON(t require.TestingT, v any) string {
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return string(b)
}

// TestReplayNamesTheLineOfThePolicy: among several differences, it names the one with an effect.
func TestReplayNamesTheLineOfThePolicy(t *testing.T) {
	t.Parallel()
	policy := shared()
	f := placement.NewSnapshot(policy, fleet())
	state, err := json.Marshal(f.Keep("v1"))
	require.NoError(t, err)
	r := request(nil)
	d := f.Decide(r)
	require.Equal(t, placement.Placed, d.Outcome)
	raw, err := json.Marshal(placement.KeptEvent{Decided: &placement.KeptDecision{Request: r, Place: d.KeptPlace}})
	require.NoError(t, err)
	k, err := placement.ReadKept(state, []json.RawMessage{raw})
	require.NoError(t, err)
	now := policy
	now.MemoryPctMax, now.Weights.Affinity, now.MaxRejected = 1, 0.2, 3
	replay, err := k.Replay(now, "v1", d.Explanation(), 10)
	require.NoError(t, err)
	require.False(t, replay.Same)
	require.Equal(t, placement.AwaitingCapacity, replay.Now.Outcome)
	require.Equal(t, d.AppServerID, replay.Then.AppServerID)
	require.Equal(t, []placement.Difference{
		{What: "policy", Field: "memory_pct_max", Then: "70", Now: "1", Decisive: true},
		{What: "policy", Field: "weights.affinity", Then: "0.1", Now: "0.2"},
		{What: "policy", Field: "max_rejected", Then: "20", Now: "3"},
	}, replay.Differences)

	// Another one, and what changes nothing.
	now = policy
	now.Algorithm, now.EmptyPool, now.MaxTenantsPerNode = placement.FirstFit, placement.Hold, 19
	replay, err = k.Replay(now, "v1", d.Explanation(), 10)
	require.NoError(t, err)
	require.Equal(t, "app-1", string(replay.Now.AppServerID))
	require.Equal(t, []bool{true, false, false}, []bool{replay.Differences[0].Decisive, replay.Differences[1].Decisive, replay.Differences[2].Decisive})

	_, err = placement.ReadKept(state, nil)
	require.Error(t, err)
	_, err = placement.ReadKept(state, []json.RawMessage{json.RawMessage(`{"Change":{}}`)})
	require.ErrorContains(t, err, "no decision")
}

// TestEveryLineOfThePolicyIsCompared: a new field of the policy becomes one of the differences.
func TestEveryLineOfThePolicyIsCompared(t *testing.T) {
	t.Parallel()
	fields := 0
	var change func(path string, v reflect.Value, p *placement.Policy)
	change = func(path string, v reflect.Value, p *placement.Policy) {
		for i := range v.NumField() {
			name := path + v.Type().Field(i).Name
			switch at := v.Field(i); at.Kind() {
			case reflect.Struct:
				change(name+".", at, p)
			default:
				was := reflect.New(at.Type()).Elem()
				was.Set(at)
				switch at.Kind() {
				case reflect.String:
					at.SetString("x")
				case reflect.Bool:
					at.SetBool(!at.Bool())
				case reflect.Int:
					at.SetInt(at.Int() + 1)
				case reflect.Float64:
					at.SetFloat(at.Float() + 1)
				default:
					t.Fatalf("%s is a %s", name, at.Kind())
				}
				require.Len(t, placement.PolicyDifferences(placement.DefaultPolicy(), *p), 1, name)
				at.Set(was)
				fields++
			}
		}
	}
	p := placement.DefaultPolicy()
	change("", reflect.ValueOf(&p).Elem(), &p)
	require.Greater(t, fields, 15)
	require.Empty(t, placement.PolicyDifferences(placement.DefaultPolicy(), p))
}

func TestWhatIf(t *testing.T) {
	t.Parallel()
	plan, region, yes := prego.PlanBusiness, prego.RegionUS, true
	for name, tc := range map[string]struct {
		w       placement.WhatIf
		outcome placement.Outcome
		server  string
		code    prego.Code
	}{
		"nothing":           {outcome: placement.Placed, server: "app-2"},
		"another plan":      {w: placement.WhatIf{Plan: &plan}, outcome: placement.AwaitingCapacity},
		"another region":    {w: placement.WhatIf{Region: &region}, outcome: placement.Refused},
		"a constraint":      {w: placement.WhatIf{Constraint: &prego.Constraint{Require: []string{"gpu"}}}, outcome: placement.AwaitingCapacity},
		"a server closed":   {w: placement.WhatIf{Cordon: []string{"app-2"}}, outcome: placement.Placed, server: "app-1"},
		"an unknown closed": {w: placement.WhatIf{Cordon: []string{"nope"}}, code: prego.CodeServerUnknown},
		"both closed, and one more": {
			w: placement.WhatIf{Cordon: []string{"app-1", "app-2"}, Add: &placement.AddedServer{Role: prego.RoleApp}}, outcome: placement.OnDemandSite, server: placement.AddedID,
		},
		"one more with tags": {
			w:       placement.WhatIf{Constraint: &prego.Constraint{Require: []string{"gpu"}}, Add: &placement.AddedServer{Role: prego.RoleApp, Tags: []string{"gpu"}}},
			outcome: placement.OnDemandSite, server: placement.AddedID,
		},
		"one more node":    {w: placement.WhatIf{Cordon: []string{"app-1", "app-2"}, Add: &placement.AddedServer{Role: prego.RoleNode}}, outcome: placement.OnDemandSite, server: placement.AddedID},
		"one more shard":   {w: placement.WhatIf{Plan: &plan, Add: &placement.AddedServer{Role: prego.RoleDBShard, Capacity: 9}}, outcome: placement.OnDemandSite, server: "app-2"},
		"a dedicated pool": {w: placement.WhatIf{DedicatedRedis: &yes, Add: &placement.AddedServer{Role: prego.RoleRedisPool, Capacity: 9}}, outcome: placement.Placed, server: "app-2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := placement.NewSnapshot(shared(), fleet())
			r, err := tc.w.Apply(f, request(nil))
			if require.Equal(t, tc.code != "", err != nil, err); err != nil {
				require.Equal(t, tc.code, prego.CodeOf(err))
				return
			}
			a := f.Answer(r, 10)
			require.Equal(t, tc.outcome, a.Line.Outcome, "%+v", a.Line)
			require.Equal(t, tc.server, string(a.Line.AppServerID))
		})
	}
	require.True(t, placement.SamePlace(placement.Line{Outcome: placement.Placed, AppServerID: "a"}, placement.Line{Outcome: placement.Placed, AppServerID: "a", TenantID: "x"}))
	require.False(t, placement.SamePlace(placement.Line{Outcome: placement.Placed, AppServerID: "a"}, placement.Line{Outcome: placement.Placed, AppServerID: "b"}))
}

// TestWhatIsKeptIsACopy: the snapshot itself changes further.
func TestWhatIsKeptIsACopy(t *testing.T) {
	t.Parallel()
	data := fleet()
	data.Servers[1].ParentOrgs, data.Shards[0].ParentOrgs = map[string]int{"p": 1}, map[string]int{"p": 1}
	f := placement.NewSnapshot(shared(), data)
	k := f.Keep("v1")
	require.Nil(t, k.Data.Networks, "unknown")
	data.Networks = []placement.Network{}
	require.NotNil(t, placement.NewSnapshot(shared(), data).Keep("v1").Data.Networks, "none has room")
	data.Networks = nil
	r := request(func(r *placement.Request) { r.ParentOrgID = "p" })
	d := f.Decide(r)
	f.Apply(r, d)
	require.Equal(t, "app-2", string(d.AppServerID))
	shard, _ := f.Shard("db-1")
	require.Equal(t, map[string]int{"p": 2}, shard.ParentOrgs)
	require.Equal(t, map[string]int{"p": 1}, k.Data.Servers[1].ParentOrgs)
	require.Equal(t, map[string]int{"p": 1}, k.Data.Shards[0].ParentOrgs)
}

// kept reads a journal of a state, events and a decision.
func kept(t *testing.T, f *placement.Snapshot, events ...string) placement.Kept {
	t.Helper()
	state, err := json.Marshal(f.Keep("v1"))
	require.NoError(t, err)
	r := request(nil)
	var raw []json.RawMessage
	for _, e := range events {
		raw = append(raw, json.RawMessage(e))
	}
	decided := placement.KeptDecision{Request: r, Place: f.Decide(r).KeptPlace}
	raw = append(raw, json.RawMessage(asJSON(t, placement.KeptEvent{Decided: &decided})))
	k, err := placement.ReadKept(state, raw)
	require.NoError(t, err)
	return k
}

// TestJournalsOfDedicatedServers: of two that are dedicated to a tenant, the last is its own, also after a journal.
func TestJournalsOfDedicatedServers(t *testing.T) {
	t.Parallel()
	data := fleet()
	warm(&data)
	data.Servers[0].DedicatedFor, data.Servers[0].TenantCount, data.Servers[2].DedicatedFor = "t", 0, "t"
	data.Shards, data.Pools = data.Shards[:1], data.Pools[:1] // the node's are made here
	f := placement.NewSnapshot(shared(), data)
	first, _ := f.Server("app-1")
	f.SetServer(first)
	require.EqualValues(t, "app-1", f.Decide(request(nil)).AppServerID)
	today := shared()
	today.MaxTenantsPerNode = 7
	again, err := kept(t, f, `{}`).Snapshot(today) // an event of a later version
	require.NoError(t, err)
	require.EqualValues(t, "app-1", again.Decide(request(nil)).AppServerID)
	shard, _ := again.Shard("node-1")
	pool, _ := again.Pool("node-1")
	require.Equal(t, []int{7, 7}, []int{shard.Capacity, pool.Capacity})
	other, _ := again.Pool("redis-1")
	require.Equal(t, 10, other.Capacity)

	f = placement.NewSnapshot(shared(), fleet())
	dedicated := fleet().Servers[0]
	dedicated.DedicatedFor, dedicated.TenantCount = "t", 0
	k := kept(t, f, asJSON(t, placement.KeptEvent{
		Change: &placement.Change{Providers: fleet().Providers, Servers: []placement.Server{dedicated}},
	}))
	again, err = k.Snapshot(shared())
	require.NoError(t, err)
	require.EqualValues(t, "app-1", again.Decide(request(nil)).AppServerID)

	family := fleet()
	family.Servers[1].ParentOrgs, family.Shards[0].ParentOrgs = map[string]int{"p": 1}, map[string]int{"p": 1}
	r := request(func(r *placement.Request) { r.ParentOrgID = "p" })
	f = placement.NewSnapshot(shared(), family)
	k = kept(t, f, asJSON(t, placement.KeptEvent{
		Decided: &placement.KeptDecision{Request: r, Place: f.Decide(r).KeptPlace},
	}))
	for range 2 { // a snapshot leaves its journal as it was
		again, err = k.Snapshot(shared())
		require.NoError(t, err)
		shard, _ = again.Shard("db-1")
		app, _ := again.Server("app-2")
		require.Equal(t, []int{2, 2}, []int{shard.ParentOrgs["p"], app.ParentOrgs["p"]})
	}

	_, err = kept(t, f, `{"Change":3}`).Replay(shared(), "v1", placement.Explanation{}, 1)
	require.ErrorContains(t, err, "journal: event 0")
}

// TestReplayBlamesASmallestSet of the policy's differences.
func TestReplayBlamesASmallestSet(t *testing.T) {
	t.Parallel()
	decisive := func(data placement.Data, change func(*placement.Policy)) (out []string) {
		f := placement.NewSnapshot(shared(), data)
		now := shared()
		change(&now)
		replay, err := kept(t, f).Replay(now, "v1", f.Decide(request(nil)).Explanation(), 1)
		require.NoError(t, err)
		for _, d := range replay.Differences {
			if d.Decisive {
				out = append(out, d.Field)
			}
		}
		return out
	}
	require.Empty(t, decisive(fleet(), func(p *placement.Policy) { p.Weights.Affinity = 0.2 }))
	require.Equal(t, []string{"max_tenants_per_node"}, decisive(fleet(), func(p *placement.Policy) {
		p.MemoryPctMax, p.MaxTenantsPerNode = 1, 1 // each of them is enough
	}))
	poolless := fleet()
	poolless.Pools = nil
	require.Equal(t, []string{"memory_pct_max"}, decisive(poolless, func(p *placement.Policy) { p.MemoryPctMax = 1 }),
		"more roles are missing")
}

// TestWhatIfAddsWhereOthersAre: in the network with the most parts of the region, at the cloud that serves it.
func TestWhatIfAddsWhereOthersAre(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		servers, shards, pools []prego.NetworkID // of the parts in eu
		want                   prego.NetworkID
	}{
		"servers": {servers: []prego.NetworkID{"a", "b", "b"}, want: "b"},
		"shards":  {shards: []prego.NetworkID{"a", "b", "b"}, want: "b"},
		"pools":   {pools: []prego.NetworkID{"a", "b", "b"}, want: "b"},
		"all together": {
			servers: []prego.NetworkID{"a"}, shards: []prego.NetworkID{"b"}, pools: []prego.NetworkID{"b"}, want: "b",
		},
		"of several":       {servers: []prego.NetworkID{"b", "a"}, want: "a"},
		"none, mostly":     {servers: []prego.NetworkID{"", "", "a"}, want: ""},
		"one, mostly":      {servers: []prego.NetworkID{"", "a", "a"}, want: "a"},
		"nothing is there": {},
	} {
		var d placement.Data
		d.Providers = []placement.Provider{
			{ID: "a", Regions: []prego.Region{"eu"}},
			{ID: "b", Enabled: true, Regions: []prego.Region{"us"}},
			{ID: "d", Enabled: true, Regions: []prego.Region{"eu"}},
			{ID: "c", Enabled: true, Regions: []prego.Region{"eu"}},
		}
		for i := range 5 { // another region has most
			id := fmt.Sprintf("us-%d", i)
			server := placement.Server{ServerID: prego.ServerID(id), Role: "app", Region: "us", NetworkID: "u"}
			d.Servers = append(d.Servers, server)
			d.Shards = append(d.Shards, placement.Shard{ShardID: prego.ShardID(id), Region: "us", NetworkID: "u"})
			d.Pools = append(d.Pools, placement.RedisPool{PoolID: id, Region: "us", NetworkID: "u"})
		}
		for i, n := range tc.servers {
			id := prego.ServerID(fmt.Sprint(i))
			d.Servers = append(d.Servers, placement.Server{ServerID: id, Role: "app", Region: "eu", NetworkID: n})
		}
		for i, n := range tc.shards {
			id := prego.ShardID(fmt.Sprint(i))
			d.Shards = append(d.Shards, placement.Shard{ShardID: id, Region: "eu", NetworkID: n})
		}
		for i, n := range tc.pools {
			d.Pools = append(d.Pools, placement.RedisPool{PoolID: fmt.Sprint(i), Region: "eu", NetworkID: n})
		}
		f := placement.NewSnapshot(shared(), d)
		_, err := placement.WhatIf{Add: &placement.AddedServer{Role: prego.RoleApp}}.Apply(f, request(nil))
		require.NoError(t, err)
		got, _ := f.Server(placement.AddedID)
		require.Equal(t, []any{tc.want, prego.InfraProviderID("c"), prego.Region("eu")},
			[]any{got.NetworkID, got.InfraProvider, got.Region}, name)
	}
}

// TestWhatIfClosesAndOpensParts: a node with its shard and pool, a shard, and a pool.
func TestWhatIfClosesAndOpensParts(t *testing.T) {
	t.Parallel()
	d := fleet()
	warm(&d)
	f := placement.NewSnapshot(shared(), d)
	closed := func(id string) (out [3]bool) {
		server, _ := f.Server(prego.ServerID(id))
		shard, _ := f.Shard(id)
		pool, _ := f.Pool(id)
		return [3]bool{server.Cordoned, shard.Cordoned, pool.Cordoned}
	}
	yes := true
	w := placement.WhatIf{Cordon: []string{"node-1", "db-1", "redis-1"}, DedicatedRedis: &yes}
	r, err := w.Apply(f, request(nil))
	require.NoError(t, err)
	require.True(t, r.DedicatedRedis)
	require.Equal(t, [][3]bool{{true, true, true}, {false, true, false}, {false, false, true}},
		[][3]bool{closed("node-1"), closed("db-1"), closed("redis-1")})
	_, err = placement.WhatIf{Uncordon: []string{"node-1", "db-1", "redis-1"}}.Apply(f, r)
	require.NoError(t, err)
	require.Equal(t, [3][3]bool{}, [3][3]bool{closed("node-1"), closed("db-1"), closed("redis-1")})
	_, err = placement.WhatIf{Uncordon: []string{"db-1", "nope"}}.Apply(f, r)
	require.EqualError(t, err, `server_unknown: change.uncordon[1] there is no server "nope" that takes tenants`)
}
