package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/pack"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// packedFleet is n app servers, each with up to most tenants, whose databases are on one shard.
func packedFleet(t *testing.T, n, most int) *Store {
	t.Helper()
	s := tenantStore(t)
	exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by) VALUES
		('db', '', 'db-shard', 'eu', 'hetzner', '{}', 'active', 'w', 'test'), ('redis', '', 'redis-pool', 'eu', 'hetzner', '{}', 'active', 'w', 'test')`)
	exec(t, s, `INSERT INTO db_shards (shard_id, server_id, region, on_node, tenant_capacity) VALUES ('db', 'db', 'eu', false, 10000)`)
	exec(t, s, `INSERT INTO redis_pools (pool_id, server_id, region, on_node, tenant_capacity) VALUES ('redis', 'redis', 'eu', false, 10000)`)
	exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, server_type, location, memory_pct, disk_pct)
		SELECT 'app-' || lpad(i::text, 3, '0'), '', 'app', 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', 'cx32', 'fsn1', 10, 10 FROM generate_series(1, $1::int) i`, n)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		for j := range r.IntN(most + 1) {
			id := fmt.Sprintf("t-%d-%d", i+1, j)
			_, _, err := s.CreateTenant(context.Background(), tenantRequest(t, id, prego.PlanStarter), prego.TenantID(id), tenant.ModeShared, "", "someone")
			require.NoError(t, err)
			exec(t, s, `UPDATE tenants SET state = 'active', converged_state = 'active', site = tenant_id || '.example.com' WHERE tenant_id = $1`, id)
			exec(t, s, `INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm, on_shard)
				VALUES ($1, $2, 'db', 'redis', $1, $1, 'hetzner', 'best_fit', true)`, id, fmt.Sprintf("app-%03d", i+1))
			exec(t, s, `INSERT INTO site_usage (tenant_id, quota_gb, files_bytes) VALUES ($1, 10, $2) ON CONFLICT (tenant_id) DO UPDATE SET files_bytes = excluded.files_bytes`, id, r.Int64N(1e9))
		}
	}
	counted(t, s)
	exec(t, s, `UPDATE servers SET memory_pct = 10 + 5 * tenant_count WHERE role = 'app'`)
	return s
}

func packingPlan(t *testing.T, s *Store, r server.PackingRequest) server.PackingPlan {
	t.Helper()
	f, err := s.PackedFleet(context.Background(), r.Region)
	require.NoError(t, err)
	catalog := server.CatalogState{}
	catalog.Currency = "EUR"
	catalog.ServerTypes = []server.OfferedType{{Name: "cx32", MemoryGB: 8, DiskGB: 80, At: []server.OfferedAt{{Location: "fsn1", PeriodPrice: server.PeriodPrice{Monthly: server.Price{Net: "6.80"}}}}}}
	p, err := pack.Plan(f, map[prego.InfraProviderID]server.CatalogState{"hetzner": catalog}, pack.Usable{MemoryPct: 70, DiskPct: 80, Tenants: pack.TenantsBelow(16, 70)}, r, time.Now())
	require.NoError(t, err)
	return p
}

// asksForNone: the fleet is not full enough to grow ahead of need, where a server takes 16 tenants and the threshold
// is 70 %.
func asksForNone(t *testing.T, s *Store) {
	t.Helper()
	o, err := s.ShortOf(context.Background(), prego.RegionEU, prego.RoleApp, 16, 70, tenant.MeasuredLimits{})
	require.NoError(t, err)
	require.Less(t, o.UsedPct, 70.0, "moves make the control plane request a server")
}

// carriedOut acts as the runs of moves: they end with end's state, once, and tenants live there.
func carriedOut(t *testing.T, s *Store, id prego.RebalanceID, end func(m server.PlannedMoveSeq) (state string)) server.RebalanceStep {
	t.Helper()
	ctx := context.Background()
	for range 10_000 {
		st, err := s.StepRebalance(ctx, id)
		require.NoError(t, err)
		for _, m := range st.Begin {
			v, err := s.RequestMove(ctx, tenant.MoveAsked{ID: prego.MoveID(m.MoveID(id)), TenantID: m.TenantID, To: m.To, By: "test"})
			require.NoError(t, err)
			require.Equal(t, m.From, v.FromServerID)
			// A worker that died, and looks again, asks for the same move.
			again, err := s.StepRebalance(ctx, id)
			require.NoError(t, err)
			require.Contains(t, again.Begin, m)
			same, err := s.RequestMove(ctx, tenant.MoveAsked{ID: prego.MoveID(m.MoveID(id)), TenantID: m.TenantID, To: m.To, By: "test"})
			require.NoError(t, err)
			require.Equal(t, v.MoveID, same.MoveID)
			exec(t, s, `UPDATE tenant_moves SET state = 'copying', to_server_id = wanted, started_at = now() WHERE move_id = $1`, m.MoveID(id))
			again, err = s.StepRebalance(ctx, id)
			require.NoError(t, err)
			require.NotContains(t, again.Begin, m, "it is under way")
			state := end(m)
			exec(t, s, `UPDATE tenant_moves SET state = $2, reason = CASE $2 WHEN 'done' THEN '' ELSE 'no_room' END, finished_at = now() WHERE move_id = $1`, m.MoveID(id), state)
			if state == "done" {
				exec(t, s, `UPDATE tenant_allocations SET app_server_id = $2 WHERE tenant_id = $1 AND released_at IS NULL`, m.TenantID, m.To)
			}
		}
		counted(t, s)
		for _, f := range st.Remove {
			if _, err := s.RemoveFreed(ctx, f, "test"); err != nil {
				code(t, err, prego.CodeServerHasTenants)
			}
		}
		if st.State.Ended() {
			return st
		}
	}
	t.Fatal("it does not end")
	return server.RebalanceStep{}
}

// TestAPackingPlanOf100ServersIsCarriedOut to the end, and the final placement is the plan's.
func TestAPackingPlanOf100ServersIsCarriedOut(t *testing.T) {
	t.Parallel()
	s, ctx := packedFleet(t, 100, 6), context.Background()
	exec(t, s, `UPDATE servers SET cordoned_at = now(), cordoned_by = 'test' WHERE role = 'app' AND tenant_count = 0`)
	p := packingPlan(t, s, server.PackingRequest{})
	require.Empty(t, p.Unknown)
	want := map[string]string{}
	rows, err := s.pool.Query(ctx, `SELECT tenant_id, app_server_id FROM tenant_allocations WHERE released_at IS NULL`)
	require.NoError(t, err)
	for rows.Next() {
		var id, at string
		require.NoError(t, rows.Scan(&id, &at))
		want[id] = at
	}
	require.NoError(t, rows.Err())
	for _, m := range p.Moves {
		want[string(m.TenantID)] = string(m.To)
	}
	in := server.RebalanceRequest{Plan: p, AtOnce: 7, RemoveServers: true}
	require.NoError(t, in.Validate())
	r, err := s.StartRebalance(ctx, "reb-1", in, "operator")
	require.NoError(t, err)
	require.Equal(t, server.RebalanceRunning, r.State)
	_, err = s.StartRebalance(ctx, "reb-2", in, "operator")
	code(t, err, prego.CodeInvalidTransition)
	require.Equal(t, len(p.Frees), count(t, s, `servers WHERE cordoned_by = 'rebalance reb-1'`), "no tenant comes to a server that must become free")

	asksForNone(t, s)
	st := carriedOut(t, s, "reb-1", func(server.PlannedMoveSeq) string {
		asksForNone(t, s)
		return "done"
	})
	asksForNone(t, s)
	require.Equal(t, server.RebalanceDone, st.State)
	r, err = s.GetRebalance(ctx, "reb-1")
	require.NoError(t, err)
	require.Equal(t, len(p.Moves), r.Moved)
	require.Len(t, r.Freed, len(p.Frees))
	for id, at := range want {
		require.Equal(t, 1, count(t, s, fmt.Sprintf(`tenant_allocations WHERE tenant_id = '%s' AND app_server_id = '%s' AND released_at IS NULL`, id, at)), "%s is on %s", id, at)
	}
	require.Equal(t, len(p.Frees), count(t, s, `servers WHERE role = 'app' AND status = 'draining'`), "free servers are removed")
	require.GreaterOrEqual(t, p.Servers-len(p.Frees), p.Needed)
	t.Logf("%d moves of %.1f GB freed %d of %d servers (%d are needed at least) and save %.2f %s a month", len(p.Moves), float64(p.Bytes)/1e9, len(p.Frees), p.Servers, p.Needed, p.Monthly, p.Currency)
	require.Empty(t, packingPlan(t, s, server.PackingRequest{MaxMoves: 1}).Moves, "nothing is left to free in one move")
	_, err = s.StartRebalance(ctx, "reb-3", in, "operator")
	code(t, err, prego.CodeInvalidTransition) // the plan was overtaken: by itself
}

// TestFreedMembersOfFleetsAreRemoved: no servers are created in their place. A fleet keeps its least number, without
// the members that it is removing already, and the rebalance reports which servers stay.
func TestFreedMembersOfFleetsAreRemoved(t *testing.T) {
	t.Parallel()
	s, ctx := packedFleet(t, 20, 4), context.Background()
	p := packingPlan(t, s, server.PackingRequest{})
	require.Greater(t, len(p.Frees), 6)
	frees := make([]string, len(p.Frees))
	for i, f := range p.Frees {
		frees[i] = string(f.ServerID)
	}
	slices.Sort(frees)
	_, _, err := s.CreateFleet(ctx, server.CreateFleetRequest{FleetID: "few", Role: prego.RoleApp, Region: prego.RegionEU, InfraProvider: "hetzner", MinSize: 2, MaxSize: new(int64(10))}, "test")
	require.NoError(t, err)
	exec(t, s, `UPDATE servers SET fleet_id = 'tenants-app' WHERE server_id = ANY ($1)`, frees[:2])
	// Of these five one is going, and two have to stay.
	exec(t, s, `UPDATE servers SET fleet_id = 'few' WHERE server_id = ANY ($1)`, frees[2:6])
	exec(t, s, `UPDATE servers SET fleet_id = 'few' WHERE server_id = $1`, p.Moves[0].To)
	exec(t, s, `INSERT INTO fleet_actions (fleet_id, seq, action, inputs, status, cause, driven_by, requested_by) VALUES ('few', 1, 'CLUSTER_SCALE_IN', '{}', 'running', 'operator', 'fleet', 'test')`)
	exec(t, s, `INSERT INTO fleet_action_steps (fleet_id, seq, server_id, op, region, round) VALUES ('few', 1, $1, 'delete', 'eu', 0)`, p.Moves[0].To)
	in := server.RebalanceRequest{Plan: p, AtOnce: 7, RemoveServers: true}
	require.NoError(t, in.Validate())
	_, err = s.StartRebalance(ctx, "reb-1", in, "operator")
	require.NoError(t, err)
	require.Equal(t, server.RebalanceDone, carriedOut(t, s, "reb-1", func(server.PlannedMoveSeq) string { return "done" }).State)
	require.Equal(t, 2, count(t, s, `servers WHERE fleet_id = 'tenants-app' AND status = 'draining'`), "a fleet without bounds keeps none")
	require.Equal(t, 2, count(t, s, `servers WHERE fleet_id = 'few' AND status = 'draining'`))
	require.Equal(t, len(frees)-2, count(t, s, `servers WHERE status = 'draining'`))
	r, err := s.GetRebalance(ctx, "reb-1")
	require.NoError(t, err)
	for _, id := range frees {
		kept := count(t, s, fmt.Sprintf(`servers WHERE server_id = '%s' AND status = 'active'`, id)) == 1
		require.Equal(t, kept, strings.Contains(r.Message, id+" is needed for the minimum size of fleet few"), "%s: %s", id, r.Message)
	}
	again, err := s.RemoveFreed(ctx, prego.ServerID(frees[0]), "test")
	require.NoError(t, err, "repeated, it is the same success")
	require.Equal(t, server.Decommissioning, again.Status)
}

func TestARebalanceStops(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	begin := func(t *testing.T, failures int) (*Store, server.PackingPlan) {
		s := packedFleet(t, 12, 4)
		p := packingPlan(t, s, server.PackingRequest{})
		require.Greater(t, len(p.Moves), 4)
		_, err := s.StartRebalance(ctx, "reb-1", server.RebalanceRequest{Plan: p, AtOnce: 1, MaxFailures: failures}, "operator")
		require.NoError(t, err)
		return s, p
	}
	t.Run("when more moves fail than may", func(t *testing.T) {
		t.Parallel()
		s, p := begin(t, 1)
		st := carriedOut(t, s, "reb-1", func(m server.PlannedMoveSeq) string { return map[bool]string{true: "failed", false: "done"}[m.Seq > 2] })
		require.Equal(t, server.RebalanceStopped, st.State)
		r, err := s.GetRebalance(ctx, "reb-1")
		require.NoError(t, err)
		require.Equal(t, server.RebalanceMovesFailed, r.Reason)
		require.Equal(t, []int{2, 2, len(p.Moves) - 4}, []int{r.Moved, r.Failed, r.Waiting})
		require.Zero(t, count(t, s, `servers v WHERE cordoned_at IS NOT NULL AND tenant_count > 0`), "servers with tenants are open again")
		moves, err := s.RebalanceMoves(ctx, "reb-1", false, 10)
		require.NoError(t, err)
		require.Len(t, moves, 2)
		require.Equal(t, prego.Reason("no_room"), moves[0].Reason)
	})
	t.Run("when a server falls silent", func(t *testing.T) {
		t.Parallel()
		s, p := begin(t, 100)
		exec(t, s, `UPDATE servers SET agent_status = 'disconnected' WHERE server_id = $1`, p.Moves[0].To)
		st, err := s.StepRebalance(ctx, "reb-1")
		require.NoError(t, err)
		require.Equal(t, server.RebalanceStopped, st.State)
		require.Empty(t, st.Begin)
		r, err := s.GetRebalance(ctx, "reb-1")
		require.NoError(t, err)
		require.Equal(t, server.RebalanceServerSilent, r.Reason)
		require.Contains(t, r.Message, p.Moves[0].To)
	})
	t.Run("when it is cancelled", func(t *testing.T) {
		t.Parallel()
		s, p := begin(t, 0)
		exec(t, s, `UPDATE tenant_allocations SET released_at = now() WHERE tenant_id = $1`, p.Moves[0].TenantID)
		st, err := s.StepRebalance(ctx, "reb-1")
		require.NoError(t, err)
		require.Len(t, st.Begin, 1)
		require.Equal(t, p.Moves[1].TenantID, st.Begin[0].TenantID, "a tenant that has left by itself is not looked for")
		_, err = s.CancelRebalance(ctx, "reb-1")
		require.NoError(t, err)
		st, err = s.StepRebalance(ctx, "reb-1")
		require.NoError(t, err)
		require.Equal(t, server.RebalanceRunning, st.State, "moves under way end")
		require.NoError(t, s.RebalanceMoveRefused(ctx, "reb-1", st.Begin[0].Seq, prego.CodeMoveUnderWay, "no"))
		st, err = s.StepRebalance(ctx, "reb-1")
		require.NoError(t, err)
		require.Equal(t, server.RebalanceCancelled, st.State)
		_, err = s.CancelRebalance(ctx, "reb-1")
		require.NoError(t, err, "once more is no fault")
		_, err = s.CancelRebalance(ctx, "reb-0")
		code(t, err, prego.CodeRebalanceNotFound)
	})
}
