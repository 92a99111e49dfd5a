package placement_test

import (
	"encoding/json"
	"strings"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
)

// build reads a document whose parts are given, each as "name": value.
func build(t *testing.T, parts ...string) (placement.Policy, placement.Data, []placement.Request, error) {
	t.Helper()
	var d placement.Document
	require.NoError(t, jsonv2.Unmarshal([]byte("{"+strings.Join(parts, ",")+"}"), &d))
	return d.Build(placement.DefaultPolicy())
}

// TestDocumentsAreRead: every field of a document becomes its row's.
func TestDocumentsAreRead(t *testing.T) {
	t.Parallel()
	policy, data, requests, err := build(t,
		`"policy":{"mode":"","algorithm":"first_fit","memory_pct_max":null,"max_tenants_per_node":3,"empty_pool":""}`,
		`"infra_providers":[{"id":"hetzner","enabled":true,"regions":["eu","us"]}]`,
		`"residency":{"DE":["eu"],"KR":["sg"]}`,
		`"db_shards":[{"shard_id":"d","region":"eu","plan_tier_lock":"business","dedicated_for_tenant_id":"t",
			"current_tenant_count":1,"tenant_capacity":2,"status":"draining","not_serving":true,"runs_instances":true,
			"cordoned":true,"disk_pct":100},{"shard_id":"n","region":"eu"},{"shard_id":"a","region":"eu"}]`,
		`"redis_pools":[{"pool_id":"r","region":"us","current_tenants":1,"tenant_capacity":2,
			"dedicated_for_tenant_id":"t","status":"failed","not_serving":true,"runs_instances":true,"cordoned":true,
			"memory_pct":0},{"pool_id":"n","region":"eu"},{"pool_id":"a","region":"eu"}]`,
		`"servers":[{"server_id":"a","role":"app","region":"sg","infra_provider":"aws","status":"terminated",
			"memory_pct":100,"tenant_count":4,"tags":["Blue"],"accepts_trial":false,"not_serving":true,
			"runs_instances":true,"cordoned":true,"cpu_pct":0,"worker_slots_pct":100,"dedicated_for_tenant_id":"t",
			"tenants":[{"tenant_id":"x","parent_org_id":"p","plan":"trial"},{"tenant_id":"y","plan":"starter"}]},
			{"server_id":"n","role":"node","region":"eu","accepts_trial":true,
			"tenants":[{"tenant_id":"e","plan":"enterprise"}]}]`,
		`"site_pool":[{"pool_site_id":"1","app_server_id":"a","db_shard_id":"d","state":"available"},
			{"pool_site_id":"n","state":"reserved"},{"pool_site_id":"3","state":"assigned"},
			{"pool_site_id":"4","state":"failed"},{"pool_site_id":"5","state":"draining"}]`,
		`"requests":[{"tenant_id":"t","org_id":"o","parent_org_id":"p","region":"eu","plan":"business",
			"data_residency":"DE","constraint":{"require":["Blue"],"disallow":["red"]},"stack":"v15",
			"dedicated_redis":true,"override":{"force_app_server_id":"a","reason":"why","ignore_constraint":true}},
			{"tenant_id":"e","region":"us","plan":"enterprise","dedicated_redis":true,
			"override":{"force_db_shard_id":"d"}},
			{"tenant_id":"f","region":"sg","plan":"trial","override":{"force_redis_pool_id":"r"}},
			{"tenant_id":"5","region":"sg","plan":"starter","override":{"reason":"none is forced"}}]`)
	require.NoError(t, err)
	want := placement.DefaultPolicy()
	want.Algorithm, want.MaxTenantsPerNode = placement.FirstFit, 3
	require.Equal(t, want, policy)
	require.Equal(t, placement.Data{
		Providers: []placement.Provider{{ID: "hetzner", Enabled: true, Regions: []prego.Region{"eu", "us"}}},
		Residency: map[string]placement.Zone{
			"DE": {Regions: []prego.Region{"eu"}}, "KR": {Regions: []prego.Region{"sg"}},
		},
		Shards: []placement.Shard{
			{
				ShardID: "d", Region: "eu", PlanTierLock: "business", DedicatedFor: "t", Tenants: 1, Capacity: 2,
				Status: "draining", NotServing: true, RunsInstances: true, Cordoned: true, DiskPct: new(100.0),
			},
			{ShardID: "n", HostServerID: "n", Region: "eu", Status: "active"},
			{ShardID: "a", Region: "eu", Status: "active"},
		},
		Pools: []placement.RedisPool{
			{
				PoolID: "r", Region: "us", DedicatedFor: "t", Tenants: 1, Capacity: 2, Status: "failed",
				NotServing: true, RunsInstances: true, Cordoned: true, MemoryPct: new(0.0),
			},
			{PoolID: "n", HostServerID: "n", Region: "eu", Status: "active"},
			{PoolID: "a", Region: "eu", Status: "active"},
		},
		Servers: []placement.Server{
			{
				ServerID: "a", Role: "app", Region: "sg", InfraProvider: "aws", Status: "terminated", MemoryPct: 100,
				TenantCount: 4, Tags: []string{"blue"}, RefusesTrials: true, NotServing: true, RunsInstances: true,
				Cordoned: true, CPUPct: new(0.0), WorkerSlotsPct: new(100.0), DedicatedFor: "t",
				ParentOrgs: map[string]int{"p": 1},
			},
			{ServerID: "n", Role: "node", Region: "eu", Status: "active", Tags: []string{}, DedicatedFor: "e"},
		},
		Sites: []placement.PoolSite{{PoolSiteID: "1", AppServerID: "a", DBShardID: "d"}},
	}, data)
	require.Equal(t, []placement.Request{
		{
			TenantID: "t", OrgID: "o", ParentOrgID: "p", Region: "eu", Plan: "business", DataResidency: "DE",
			Constraint:     prego.Constraint{Require: []string{"blue", "stack:v15"}, Disallow: []string{"red"}},
			DedicatedRedis: true,
			Override:       &placement.Override{AppServerID: "a", Reason: "why", IgnoreConstraint: true},
		},
		{
			TenantID: "e", Region: "us", Plan: "enterprise", DedicatedRedis: true,
			Override: &placement.Override{DBShardID: "d"},
		},
		{TenantID: "f", Region: "sg", Plan: "trial", Override: &placement.Override{RedisPoolID: "r"}},
		{TenantID: "5", Region: "sg", Plan: "starter"},
	}, requests)

	policy, _, _, err = build(t, `"policy":{"mode":"shared","empty_pool":"hold"}`)
	require.NoError(t, err)
	require.Equal(t, []string{"shared", "best_fit", "hold"},
		[]string{string(policy.Mode), string(policy.Algorithm), string(policy.EmptyPool)})
	policy, _, _, err = build(t)
	require.NoError(t, err)
	require.Equal(t, placement.DefaultPolicy(), policy)
}

func TestDocumentsNameTheirFaults(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{`"policy":{"memory_pct_max":101}`, "policy.memory_pct_max"},
		{`"infra_providers":[{"regions":["eu"]}]`, "infra_providers[0].id"},
		{`"infra_providers":[{"id":"x","regions":["eu","mars"]}]`, "infra_providers[0].regions[1]"},
		{`"residency":{"DE":["mars"]}`, "residency.DE[0]"},
		{`"db_shards":[{"region":"eu"}]`, "db_shards[0].shard_id"},
		{`"db_shards":[{"shard_id":"d","region":"eu"},{"shard_id":"d","region":"eu"}]`, "db_shards[1].shard_id"},
		{`"db_shards":[{"shard_id":"d","region":"mars"}]`, "db_shards[0].region"},
		{`"db_shards":[{"shard_id":"d","region":"eu","tenant_capacity":-1}]`, "db_shards[0].tenant_capacity"},
		{`"db_shards":[{"shard_id":"d","region":"eu","current_tenant_count":-1}]`, "db_shards[0].current_tenant_count"},
		{`"db_shards":[{"shard_id":"d","region":"eu","status":"up"}]`, "db_shards[0].status"},
		{`"db_shards":[{"shard_id":"d","region":"eu","plan_tier_lock":""}]`, "db_shards[0].plan_tier_lock"},
		{`"db_shards":[{"shard_id":"d","region":"eu","disk_pct":-0.1}]`, "db_shards[0].disk_pct"},
		{`"db_shards":[{"shard_id":"d","region":"eu","disk_pct":100.1}]`, "db_shards[0].disk_pct"},
		{`"redis_pools":[{"region":"eu"}]`, "redis_pools[0].pool_id"},
		{`"redis_pools":[{"pool_id":"r","region":"eu"},{"pool_id":"r","region":"eu"}]`, "redis_pools[1].pool_id"},
		{`"redis_pools":[{"pool_id":"r","region":"eu","tenant_capacity":-1}]`, "redis_pools[0].tenant_capacity"},
		{`"redis_pools":[{"pool_id":"r","region":"eu","current_tenants":-1}]`, "redis_pools[0].current_tenants"},
		{`"redis_pools":[{"pool_id":"r","region":"eu","memory_pct":101}]`, "redis_pools[0].memory_pct"},
		{`"servers":[{"role":"app","region":"eu"}]`, "servers[0].server_id"},
		{
			`"servers":[{"server_id":"a","role":"app","region":"eu"},{"server_id":"a","role":"app","region":"eu"}]`,
			"servers[1].server_id",
		},
		{`"servers":[{"server_id":"a","role":"cook","region":"eu"}]`, "servers[0].role"},
		{`"servers":[{"server_id":"a","role":"app","region":"eu","tenant_count":-1}]`, "servers[0].tenant_count"},
		{`"servers":[{"server_id":"a","role":"app","region":"eu","memory_pct":-0.1}]`, "servers[0].memory_pct"},
		{`"servers":[{"server_id":"a","role":"app","region":"eu","memory_pct":100.1}]`, "servers[0].memory_pct"},
		{`"servers":[{"server_id":"a","role":"app","region":"eu","cpu_pct":101}]`, "servers[0].cpu_pct"},
		{`"servers":[{"server_id":"a","role":"app","region":"eu","tags":[" "]}]`, "servers[0].tags"},
		{
			`"servers":[{"server_id":"a","role":"app","region":"eu","tenants":[{"plan":"x"}]}]`,
			"servers[0].tenants[0].plan",
		},
		{`"site_pool":[{"state":"available"}]`, "site_pool[0].pool_site_id"},
		{
			`"site_pool":[{"pool_site_id":"s","state":"available"},{"pool_site_id":"s","state":"available"}]`,
			"site_pool[1].pool_site_id",
		},
		{`"site_pool":[{"pool_site_id":"s","state":"new"}]`, "site_pool[0].state"},
		{`"requests":[{"region":"eu","plan":"trial"}]`, "requests[0].tenant_id"},
		{
			`"requests":[{"tenant_id":"t","region":"eu","plan":"trial"},{"tenant_id":"t","region":"eu","plan":"trial"}]`,
			"requests[1].tenant_id",
		},
		{`"requests":[{"tenant_id":"t","region":"mars","plan":"trial"}]`, "requests[0].region"},
		{`"requests":[{"tenant_id":"t","region":"eu","plan":"gold"}]`, "requests[0].plan"},
		{
			`"requests":[{"tenant_id":"t","region":"eu","plan":"trial","dedicated_redis":true}]`,
			"requests[0].dedicated_redis",
		},
		{
			`"requests":[{"tenant_id":"t","region":"eu","plan":"trial","constraint":{"require":[" "]}}]`,
			"requests[0].constraint.require",
		},
		{`"requests":[{"tenant_id":"t","region":"eu","plan":"trial","stack":"a b"}]`, "requests[0].stack"},
		// The first fault is reported.
		{`"db_shards":[{"region":"mars"}]`, "db_shards[0].shard_id"},
		{`"db_shards":[{"region":"eu"}],"requests":[{"tenant_id":"t","region":"eu","plan":"trial",
			"constraint":{"require":[" "]}}]`, "db_shards[0].shard_id"},
	} {
		_, _, _, err := build(t, c[0])
		var e *prego.Error
		require.ErrorAs(t, err, &e, c[0])
		require.Equal(t, prego.CodeInvalidField, e.Code)
		require.Equal(t, c[1], e.Field, e.Message)
	}
	for raw, at := range map[string]string{
		`{"policy":{"memory_pct_max":"70"}}`:    "/policy/memory_pct_max",
		`{"policy":{"weights":{"db_load":[]}}}`: "/policy/weights/db_load",
	} {
		var d placement.Document
		var wrong *jsonv2.SemanticError
		require.ErrorAs(t, jsonv2.Unmarshal([]byte(raw), &d), &wrong)
		require.EqualValues(t, at, wrong.JSONPointer)
	}
	var d placement.Document
	require.Error(t, jsonv2.Unmarshal([]byte(`{"policy":`), &d))
}

func TestLinesOfDecisions(t *testing.T) {
	t.Parallel()
	f := placement.NewSnapshot(shared(), fleet())
	r := request(nil)
	line, err := json.Marshal(placement.LineOf(r, f.Decide(r)))
	require.NoError(t, err)
	require.Contains(t, string(line), `{"tenant_id":"t","outcome":"placed","app_server_id":"app-2",`+
		`"db_shard_id":"db-1","redis_pool_id":"redis-1","pool_site_id":"s-2","infra_provider":"hetzner","decision":{`)
	held := shared()
	held.EmptyPool = placement.Hold
	d := fleet()
	d.Sites = nil
	line, err = json.Marshal(placement.LineOf(r, placement.NewSnapshot(held, d).Decide(r)))
	require.NoError(t, err)
	require.Contains(t, string(line), `{"tenant_id":"t","outcome":"hold","code":"site_pool_empty","decision":{`)
}
