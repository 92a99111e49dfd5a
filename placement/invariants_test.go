package placement

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// sound is a fleet, a request and a decision that break no invariant.
func sound() (Data, Request, Decision) {
	d := Data{
		Servers: []Server{
			{ServerID: "app-1", Role: prego.RoleApp, Region: "eu", InfraProvider: "hetzner", Status: "active", Tags: []string{"blue"}},
			{ServerID: "node-1", Role: prego.RoleNode, Region: "eu", InfraProvider: "hetzner", Status: "active"},
			{ServerID: "node-2", Role: prego.RoleNode, Region: "eu", InfraProvider: "hetzner", Status: "active"},
		},
		Shards: []Shard{{ShardID: "db-1", Region: "eu", Capacity: 10, Status: "active"}, {ShardID: "db-2", Region: "eu", Capacity: 10, Status: "active"}},
		Pools:  []RedisPool{{PoolID: "redis-1", Region: "eu", Capacity: 10, Status: "active"}},
		Sites: []PoolSite{
			{PoolSiteID: "s-1", AppServerID: "app-1", DBShardID: "db-1"},
			{PoolSiteID: "s-2", AppServerID: "app-1", DBShardID: "db-2"},
			{PoolSiteID: "s-n", AppServerID: "node-1", DBShardID: "node-1"},
		},
		Providers: []Provider{{ID: "hetzner", Enabled: true, Regions: []prego.Region{"eu"}}},
		Residency: map[string]Zone{"DE": {Regions: []prego.Region{"eu"}, Providers: []prego.InfraProviderID{"hetzner"}}},
	}
	r := Request{TenantID: "t", Region: "eu", Plan: prego.PlanStarter, DataResidency: "DE", Constraint: prego.Constraint{Require: []string{"blue"}}}
	return d, r, Decision{KeptPlace: KeptPlace{Outcome: Placed, AppServerID: "app-1", DBShardID: "db-1", RedisPoolID: "redis-1", PoolSiteID: "s-1", InfraProvider: "hetzner"}, Mode: tenant.ModeShared}
}

// TestEveryInvariantIsChecked breaks each by itself (placement-policy §6). The filters
// let none of these through, so that nothing but this test would miss a check.
func TestEveryInvariantIsChecked(t *testing.T) {
	t.Parallel()
	node := func(d *Data, r *Request, x *Decision) {
		x.AppServerID, x.DBShardID, x.RedisPoolID, x.PoolSiteID, r.Constraint = "node-1", "node-1", "node-1", "s-n", prego.Constraint{}
	}
	enterprise := func(_ *Data, r *Request, _ *Decision) { r.Plan = prego.PlanEnterprise }
	single := func(_ *Data, _ *Request, x *Decision) { x.Mode, x.Dedicates = tenant.ModeOneTenantOneServer, true }
	business := func(d *Data, r *Request, _ *Decision) {
		r.Plan, r.DedicatedRedis, d.Shards[0].PlanTierLock = prego.PlanBusiness, true, prego.PlanBusiness
	}
	type change = func(*Data, *Request, *Decision)
	for name, tc := range map[string]struct {
		code  prego.Code // "" for none
		says  string
		apply []change
	}{
		"none":             {},
		"none, on a node":  {apply: []change{node}},
		"none, enterprise": {apply: []change{enterprise}},
		"none, with its own": {apply: []change{enterprise, func(d *Data, _ *Request, _ *Decision) {
			d.Servers[0].DedicatedFor, d.Shards[0].DedicatedFor, d.Pools[0].DedicatedFor = "t", "t", "t"
		}}},
		"none, one tenant":            {apply: []change{single}},
		"none, with a dedicated pool": {apply: []change{business}},
		"no such server":              {code: prego.CodeServerUnknown, says: "app-9", apply: []change{func(_ *Data, _ *Request, x *Decision) { x.AppServerID = "app-9" }}},
		"no such shard":               {code: prego.CodeShardUnknown, says: "db-9", apply: []change{func(_ *Data, _ *Request, x *Decision) { x.DBShardID = "db-9" }}},
		"no such pool":                {code: prego.CodePoolUnknown, says: "redis-9", apply: []change{func(_ *Data, _ *Request, x *Decision) { x.RedisPoolID = "redis-9" }}},
		"server draining":             {says: "app server app-1 is draining", apply: []change{func(d *Data, _ *Request, _ *Decision) { d.Servers[0].Status = server.Decommissioning }}},
		"server cordoned":             {says: "app server app-1 is cordoned", apply: []change{func(d *Data, _ *Request, _ *Decision) { d.Servers[0].Cordoned = true }}},
		"shard draining":              {says: "DB shard db-1 is draining", apply: []change{func(d *Data, _ *Request, _ *Decision) { d.Shards[0].Status = server.Decommissioning }}},
		"pool failed":                 {says: "Redis pool redis-1 is failed", apply: []change{func(d *Data, _ *Request, _ *Decision) { d.Pools[0].Status = server.Failed }}},
		"shard elsewhere":             {says: "eu, sg and eu", apply: []change{func(d *Data, _ *Request, _ *Decision) { d.Shards[0].Region = "sg" }}},
		"pool elsewhere":              {says: "eu, eu and us", apply: []change{func(d *Data, _ *Request, _ *Decision) { d.Pools[0].Region = "us" }}},
		"all elsewhere":               {says: "in region eu, not sg", apply: []change{func(_ *Data, r *Request, _ *Decision) { r.Region = "sg" }}},
		"constraint":                  {code: prego.CodeCellMismatch, apply: []change{func(_ *Data, r *Request, _ *Decision) { r.Constraint.Disallow = []string{"blue"} }}},
		"constraint, overridden":      {code: prego.CodeCellMismatch, apply: []change{func(_ *Data, r *Request, _ *Decision) { r.Constraint.Require[0], r.Override = "red", &Override{} }}},
		"constraint, ignored": {apply: []change{func(_ *Data, r *Request, _ *Decision) {
			r.Constraint.Require[0], r.Override = "red", &Override{IgnoreConstraint: true}
		}}},
		"tier lock": {says: "locked to plan business, which plan starter", apply: []change{func(d *Data, _ *Request, _ *Decision) { d.Shards[0].PlanTierLock = prego.PlanBusiness }}},
		"trial on a business shard": {says: "locked to plan business, which plan trial", apply: []change{func(d *Data, r *Request, _ *Decision) {
			d.Shards[0].PlanTierLock, r.Plan = prego.PlanBusiness, prego.PlanTrial
		}}},
		"business on an open shard":                   {says: "locked to no plan, which plan business", apply: []change{func(_ *Data, r *Request, _ *Decision) { r.Plan = prego.PlanBusiness }}},
		"enterprise, server in use":                   {says: "enterprise tenant needs an empty server, and app-1 has 1", apply: []change{enterprise, func(d *Data, _ *Request, _ *Decision) { d.Servers[0].TenantCount = 1 }}},
		"enterprise, shard in use":                    {says: "enterprise tenant needs an empty DB shard, and db-1 has 2", apply: []change{enterprise, func(d *Data, _ *Request, _ *Decision) { d.Shards[0].Tenants = 2 }}},
		"enterprise, pool in use":                     {says: "enterprise tenant needs an empty Redis pool, and redis-1 has 3", apply: []change{enterprise, func(d *Data, _ *Request, _ *Decision) { d.Pools[0].Tenants = 3 }}},
		"enterprise, overridden":                      {says: "empty server", apply: []change{enterprise, func(d *Data, r *Request, _ *Decision) { d.Servers[0].TenantCount, r.Override = 1, &Override{} }}},
		"enterprise beside instances":                 {says: "app-1 runs instances", apply: []change{enterprise, func(d *Data, _ *Request, _ *Decision) { d.Servers[0].RunsInstances = true }}},
		"one tenant, server in use":                   {says: "one_tenant_one_server mode needs an empty server", apply: []change{single, func(d *Data, _ *Request, x *Decision) { d.Servers[0].TenantCount, x.Dedicates = 1, false }}},
		"one tenant beside instances":                 {says: "app-1 runs instances", apply: []change{single, func(d *Data, _ *Request, x *Decision) { d.Servers[0].RunsInstances, x.Dedicates = true, false }}},
		"one tenant, shard in use":                    {says: "empty DB shard", apply: []change{single, func(d *Data, _ *Request, _ *Decision) { d.Shards[0].Tenants = 1 }}},
		"one tenant, instances on the shard's server": {says: "db-1 runs instances", apply: []change{single, func(d *Data, _ *Request, _ *Decision) { d.Shards[0].RunsInstances = true }}},
		"one tenant, pool in use":                     {says: "empty Redis pool", apply: []change{single, func(d *Data, _ *Request, _ *Decision) { d.Pools[0].Tenants = 1 }}},
		"one tenant, instances on the pool's server":  {says: "redis-1 runs instances", apply: []change{single, func(d *Data, _ *Request, _ *Decision) { d.Pools[0].RunsInstances = true }}},
		"one tenant, overridden": {apply: []change{single, func(d *Data, r *Request, x *Decision) {
			d.Servers[0].TenantCount, d.Shards[0].Tenants, d.Pools[0].Tenants, x.Dedicates, r.Override = 1, 1, 1, false, &Override{}
		}}},
		"dedicating what is in use":     {says: "a dedicating placement needs an empty server, and app-1 has 1", apply: []change{single, func(d *Data, r *Request, _ *Decision) { d.Servers[0].TenantCount, r.Override = 1, &Override{} }}},
		"dedicating beside instances":   {says: "a dedicating placement needs an empty server, and app-1 runs", apply: []change{single, func(d *Data, r *Request, _ *Decision) { d.Servers[0].RunsInstances, r.Override = true, &Override{} }}},
		"a dedicated pool, in use":      {says: "dedicated Redis pool must be empty", apply: []change{business, func(d *Data, _ *Request, _ *Decision) { d.Pools[0].Tenants = 1 }}},
		"a dedicated pool by instances": {says: "redis-1 runs instances", apply: []change{business, func(d *Data, _ *Request, _ *Decision) { d.Pools[0].RunsInstances = true }}},
		"instances beside who may share": {apply: []change{func(d *Data, _ *Request, _ *Decision) {
			d.Servers[0].RunsInstances, d.Shards[0].RunsInstances, d.Pools[0].RunsInstances = true, true, true
		}}},
		"another tenant's server":    {says: "dedicated to another", apply: []change{func(d *Data, _ *Request, _ *Decision) { d.Servers[0].DedicatedFor = "u" }}},
		"another tenant's shard":     {says: "dedicated to another", apply: []change{func(d *Data, _ *Request, _ *Decision) { d.Shards[0].DedicatedFor = "u" }}},
		"another tenant's pool":      {says: "dedicated to another", apply: []change{func(d *Data, _ *Request, _ *Decision) { d.Pools[0].DedicatedFor = "u" }}},
		"a node with a shard":        {says: "is a whole stack", apply: []change{node, func(_ *Data, _ *Request, x *Decision) { x.DBShardID, x.PoolSiteID = "db-1", "" }}},
		"a node with a pool":         {says: "is a whole stack", apply: []change{node, func(_ *Data, _ *Request, x *Decision) { x.RedisPoolID = "redis-1" }}},
		"a node with another's":      {says: "is a whole stack", apply: []change{node, func(_ *Data, _ *Request, x *Decision) { x.DBShardID, x.PoolSiteID = "node-2", "" }}},
		"an app with a node's shard": {says: "db shard node-1 is part of node node-1", apply: []change{func(_ *Data, _ *Request, x *Decision) { x.DBShardID, x.PoolSiteID = "node-1", "" }}},
		"an app with a node's pool":  {says: "redis pool node-1 is part of node node-1", apply: []change{func(_ *Data, _ *Request, x *Decision) { x.RedisPoolID = "node-1" }}},
		"provider disabled":          {says: "provider hetzner of app server app-1 is disabled", apply: []change{func(d *Data, _ *Request, _ *Decision) { d.Providers[0].Enabled = false }}},
		"provider disabled, overridden": {says: "provider hetzner", apply: []change{func(d *Data, r *Request, _ *Decision) {
			d.Providers[0].Enabled, r.Override = false, &Override{}
		}}},
		"provider elsewhere": {says: "does not serve region eu", apply: []change{func(d *Data, r *Request, _ *Decision) {
			d.Providers[0].Regions, r.Override = []prego.Region{"sg"}, &Override{}
		}}},
		"provider unknown": {says: "provider hetzner", apply: []change{func(d *Data, r *Request, _ *Decision) { d.Providers, r.Override = nil, &Override{} }}},
		"trial refused": {says: "app-1 accepts no trial tenants", apply: []change{func(d *Data, r *Request, _ *Decision) {
			d.Servers[0].RefusesTrials, r.Plan, r.Override = true, prego.PlanTrial, &Override{}
		}}},
		"trials refused, but a starter": {apply: []change{func(d *Data, _ *Request, _ *Decision) { d.Servers[0].RefusesTrials = true }}},
		"residency of nowhere":          {says: "residents of XX", apply: []change{func(_ *Data, r *Request, _ *Decision) { r.DataResidency = "XX" }}},
		"residency elsewhere":           {says: "residents of DE", apply: []change{func(d *Data, _ *Request, _ *Decision) { d.Residency["DE"] = Zone{Regions: []prego.Region{"sg"}} }}},
		"residency, provider": {says: "residents of DE may not be on hetzner", apply: []change{func(d *Data, _ *Request, _ *Decision) {
			d.Residency["DE"] = Zone{Regions: []prego.Region{"eu"}, Providers: []prego.InfraProviderID{"aws"}}
		}}},
		"residency, any provider":  {apply: []change{func(d *Data, _ *Request, _ *Decision) { d.Residency["DE"] = Zone{Regions: []prego.Region{"eu"}} }}},
		"a site of another shard":  {says: "site s-2 is not available", apply: []change{func(_ *Data, _ *Request, x *Decision) { x.PoolSiteID = "s-2" }}},
		"a site of another server": {says: "site s-n is not available", apply: []change{func(_ *Data, _ *Request, x *Decision) { x.PoolSiteID = "s-n" }}},
		"no site":                  {apply: []change{func(_ *Data, _ *Request, x *Decision) { x.PoolSiteID = "" }}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, r, x := sound()
			for _, change := range tc.apply {
				change(&d, &r, &x)
			}
			err := NewSnapshot(DefaultPolicy(), d).CheckInvariants(r, x)
			if tc.code == "" && tc.says == "" {
				require.NoError(t, err)
				return
			}
			if tc.code == "" {
				tc.code = prego.CodeInvariantViolation
			}
			require.Equal(t, tc.code, prego.CodeOf(err), "%v", err)
			require.Contains(t, toLower(err.Error()), toLower(tc.says))
		})
	}
}

func toLower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// TestInvariantsAreCheckedAfterScoring corrupts what the filters read, so that they let
// through what must not be: the decision is refused all the same, an override's too.
func TestInvariantsAreCheckedAfterScoring(t *testing.T) {
	t.Parallel()
	p := DefaultPolicy()
	p.Mode = tenant.ModeShared
	d, r, _ := sound()
	d.Servers = d.Servers[:1]
	f := NewSnapshot(p, d)
	require.Equal(t, Placed, f.Decide(r).Outcome)
	f.servers[0].Status = server.Decommissioning // hot still has it as active
	got := f.Decide(r)
	require.Equal(t, Refused, got.Outcome)
	require.Equal(t, prego.CodeInvariantViolation, got.Code)
	require.Empty(t, got.AppServerID)
	f.Apply(r, got)
	require.Zero(t, f.servers[0].TenantCount)

	f = NewSnapshot(p, d)
	f.shards.items[1].DedicatedFor = "another"
	r.Override = &Override{AppServerID: "app-1", DBShardID: "db-2", Reason: "because"}
	got = f.Decide(r)
	require.Equal(t, Refused, got.Outcome)
	require.Equal(t, prego.CodeInvariantViolation, got.Code)
}
