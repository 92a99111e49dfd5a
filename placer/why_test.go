package placer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/placer"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// whyFleet is a small fleet with sites.
func whyFleet(t testing.TB) *placing {
	p := newPlacing(t, 16)
	p.Server("db", prego.RoleDBShard, "")
	p.Server("redis", prego.RoleRedisPool, "")
	for i := range 3 {
		id := fmt.Sprintf("app-%d", i)
		p.Server(prego.ServerID(id), prego.RoleApp, "")
		p.Sites(id, "db", 5)
	}
	return p
}

func (p *placing) decisions(id prego.TenantID) []tenant.DecisionRecord {
	p.T.Helper()
	all, err := p.Store.ListDecisions(context.Background(), id)
	require.NoError(p.T, err)
	return all
}

// TestEveryDecisionCanBeReplayed covers single and batched decisions, with lost races and without a place, made by
// independent processes.
func TestEveryDecisionCanBeReplayed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := whyFleet(t)
	a, b := p.Placer(nil), p.Placer(nil)
	a.Version, b.Version = "v1", "v1"
	var tenants []tenant.Tenant
	for i := range 18 { // three more than there are sites
		tenants = append(tenants, p.Tenant(prego.PlanStarter, func(r *tenant.CreateRequest) {
			if i%3 == 0 {
				r.OrgID = "child"
			}
		}))
	}
	var wg sync.WaitGroup
	for i, tn := range tenants {
		pl := []*placer.Placer{a, b}[i%2]
		if i < 6 {
			_, err := pl.Place(ctx, tenant.Record{Tenant: tn}, nil, "test")
			require.NoError(t, err)
			continue
		}
		wg.Go(func() {
			_, err := pl.Place(ctx, tenant.Record{Tenant: tn}, nil, "test")
			require.NoError(t, err)
		})
	}
	wg.Wait()
	none := p.Tenant(prego.PlanBusiness, nil)
	d, err := a.Place(ctx, tenant.Record{Tenant: none}, nil, "test")
	require.NoError(t, err)
	require.False(t, d.PlacesTenant())

	judge := p.Placer(nil)
	judge.Version = "v1"
	for _, tn := range append(tenants, none) {
		all := p.decisions(tn.TenantID)
		require.NotEmpty(t, all)
		k, r, err := judge.Replay(ctx, all[0])
		require.NoError(t, err)
		require.Empty(t, r.Differences)
		require.True(t, r.Same)
		require.Equal(t, tn.TenantID, k.Decision.Request.TenantID)
		if all[0].AllocationID != nil {
			require.Equal(t, 1, p.Number(`SELECT count(*) FROM tenant_allocations WHERE tenant_id = $1 AND app_server_id = $2 AND db_shard_id = $3 AND redis_pool_id = $4`,
				tn.TenantID, r.Then.AppServerID, r.Then.DBShardID, r.Then.RedisPoolID))
		}
		_, funnel, err := judge.Explain(ctx, all[0])
		require.NoError(t, err)
		require.Equal(t, string(r.Then.AppServerID), funnel.Parts[0].Chosen)
	}

	// Another policy today, and the line of it that matters.
	strict := p.Placer(func(p *placement.Policy) { p.MemoryPctMax, p.MaxRejected = 10, 3 })
	_, r, err := strict.Replay(ctx, p.decisions(tenants[0].TenantID)[0])
	require.NoError(t, err)
	require.False(t, r.Same)
	require.Equal(t, placement.AwaitingCapacity, r.Now.Outcome)
	require.Equal(t, []placement.Difference{
		{What: "policy", Field: "memory_pct_max", Then: "70", Now: "10", Decisive: true}, {What: "policy", Field: "max_rejected", Then: "20", Now: "3"},
	}, r.Differences)

	// Missing input is reported, never guessed.
	p.Exec(`DELETE FROM decision_inputs WHERE first = 0`)
	_, _, err = judge.Explain(ctx, p.decisions(tenants[0].TenantID)[0])
	require.Equal(t, prego.CodeInputNotKept, prego.CodeOf(err))
}

// TestPlacementGoesOnWithoutItsInput: a tenant is placed if its input can't be stored, and later
// decisions are replayed from another journal.
func TestPlacementGoesOnWithoutItsInput(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := whyFleet(t)
	pl := p.Placer(nil)
	var broken atomic.Bool // inputs are not kept
	broken.Store(true)
	pl.Store = store.New(pgtest.Tapped(t, p.Pool, func(sql string, _ []any) error {
		if broken.Load() && strings.Contains(sql, "INTO decision_inputs") {
			return errors.New("no")
		}
		return nil
	}))
	first, second := p.Tenant(prego.PlanStarter, nil), p.Tenant(prego.PlanStarter, nil)
	d, err := pl.Place(ctx, tenant.Record{Tenant: first}, nil, "test")
	require.NoError(t, err)
	require.True(t, d.PlacesTenant())
	_, _, err = pl.Replay(ctx, p.decisions(first.TenantID)[0])
	require.Equal(t, prego.CodeInputNotKept, prego.CodeOf(err))
	broken.Store(false)
	_, err = pl.Place(ctx, tenant.Record{Tenant: second}, nil, "test")
	require.NoError(t, err)
	_, r, err := pl.Replay(ctx, p.decisions(second.TenantID)[0])
	require.NoError(t, err)
	require.True(t, r.Same)
}

// TestWhatIfOfATenant: with another fleet than there is, and without a trace.
func TestWhatIfOfATenant(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := whyFleet(t)
	pl := p.Placer(nil)
	tn := p.Tenant(prego.PlanStarter, nil)
	answers, err := pl.WhatIf(ctx, tn.TenantID, placement.Request{}, placement.WhatIf{Cordon: []string{"app-0"}})
	require.NoError(t, err)
	require.Equal(t, "app-0", string(answers[0].Line.AppServerID))
	require.Equal(t, "app-1", string(answers[1].Line.AppServerID))
	require.Equal(t, "cordoned", answers[1].Funnel.Parts[0].Filters[0].Filter)
	plan := prego.PlanBusiness
	answers, err = pl.WhatIf(ctx, "", placement.Request{TenantID: "x", OrgID: "o1", Region: "eu", Plan: prego.PlanStarter},
		placement.WhatIf{Plan: &plan, Add: &placement.AddedServer{Role: prego.RoleDBShard, Capacity: 5}})
	require.NoError(t, err)
	require.Equal(t, []any{placement.Placed, placement.OnDemandSite, prego.ShardID(placement.AddedID)}, []any{answers[0].Line.Outcome, answers[1].Line.Outcome, answers[1].Line.DBShardID})
	_, err = pl.WhatIf(ctx, "unknown", placement.Request{}, placement.WhatIf{})
	require.Equal(t, prego.CodeTenantNotFound, prego.CodeOf(err))
	require.Zero(t, p.Number(`SELECT count(*) FROM allocation_snapshots`)+p.Number(`SELECT count(*) FROM decision_inputs`))
}

// BenchmarkKeep measures what the input of a decision costs among 1,000 servers: time, and bytes in the database for
// all journals with their states.
func BenchmarkKeep(b *testing.B) {
	ctx := context.Background()
	p := whyFleet(b)
	p.Exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, memory_pct, workflow_id, created_by)
		SELECT 's-' || i, '', 'app', 'eu', 'hetzner', '{}', 'active', 'connected', 20 + i % 60, 'w', 'b' FROM generate_series(1, 1000) i`)
	p.Exec(`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, available_at)
		SELECT 'p-' || i || '-' || k, 's-' || i, 'db', 'p-' || i || '-' || k, 'x', 'available', now() FROM generate_series(1, 1000) i, generate_series(1, 3) k`)
	p.Exec(`UPDATE db_shards SET tenant_capacity = 100000`)
	p.Exec(`UPDATE redis_pools SET tenant_capacity = 100000`)
	p.Exec(`UPDATE servers SET memory_pct = 99 WHERE server_id LIKE 'app-%'`)
	pl := p.Placer(nil)
	n := 0
	for b.Loop() {
		b.StopTimer()
		tn := p.Tenant(prego.PlanStarter, nil)
		b.StartTimer()
		_, err := pl.Place(ctx, tenant.Record{Tenant: tn}, nil, "bench")
		require.NoError(b, err)
		n++
	}
	bytes := p.Number(`SELECT sum(length(body)) FROM decision_inputs`)
	b.ReportMetric(float64(bytes)/float64(n), "B/decision")
	b.ReportMetric(float64(p.Number(`SELECT max(length(body)) FROM decision_inputs WHERE first = 0`)), "B/state")
	b.ReportMetric(float64(p.Number(`SELECT count(*) FROM decision_inputs WHERE first = 0`)), "journals")
}
