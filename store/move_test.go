package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// moveSetup is tenant t-1 on app-1, with its data elsewhere, and app-2 beside.
func moveSetup(t testing.TB) *peersBundle {
	t.Helper()
	b := peersSetup(t)
	b.server("app-1", prego.RoleApp, "10.64.0.2")
	b.server("app-2", prego.RoleApp, "10.64.0.3")
	b.server("db", prego.RoleDBShard, "10.64.0.4")
	b.server("redis", prego.RoleRedisPool, "10.64.0.5")
	b.place("t-1", "app-1")
	b.exec(`UPDATE tenants SET site = 't-1.example.com', converged_state = 'active'`)
	b.exec(`UPDATE servers SET tenant_count = 1 WHERE server_id = 'app-1'`)
	return b
}

var somewhere = tenant.MovePlace{ServerID: "app-2", MaxTenants: 10, MemoryMax: 90, Decision: []byte("{}"), Policy: []byte("{}"), Algorithm: "best_fit"}

// everywhere is the place of a tenant that moves to another server, shard and pool.
func everywhere() tenant.MovePlace {
	p := somewhere
	p.ShardID, p.PoolID, p.DBDiskMax, p.RedisMax = "db-2", "redis-2", 90, 90
	return p
}

// freezes has t-1 move to a place until its site is held.
func (b *peersBundle) freezes(id prego.MoveID, asked tenant.MoveAsked, to tenant.MovePlace) {
	b.t.Helper()
	ctx := context.Background()
	asked.ID, asked.TenantID, asked.By = id, "t-1", "ann"
	_, err := b.s.RequestMove(ctx, asked)
	require.NoError(b.t, err)
	ok, err := b.s.ReserveMove(ctx, id, to)
	require.NoError(b.t, err)
	require.True(b.t, ok)
	_, err = b.s.FreezeMove(ctx, id)
	require.NoError(b.t, err)
}

func (b *peersBundle) counts() (out []int) {
	b.t.Helper()
	for _, id := range []string{"app-1", "app-2"} {
		n, err := value[int](context.Background(), b.s.pool, `SELECT tenant_count FROM servers WHERE server_id = $1`, id)
		require.NoError(b.t, err)
		out = append(out, n)
	}
	return out
}

// TestAMoveByItsRow: which requests are accepted, which tenants count where, what waits, and that each step can be
// repeated.
func TestAMoveByItsRow(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := moveSetup(t)
	ask := tenant.MoveAsked{ID: "mov-1", TenantID: "t-1", By: "ann"}
	m, err := b.s.RequestMove(ctx, ask)
	require.NoError(t, err)
	require.Equal(t, []any{tenant.MoveQueued, prego.ServerID("app-1")}, []any{m.State, m.FromServerID})
	ask.ID = "mov-2"
	again, err := b.s.RequestMove(ctx, ask)
	require.NoError(t, err)
	require.Equal(t, m.MoveID, again.MoveID, "repeating the request returns it")
	ask.To = "app-2"
	_, err = b.s.RequestMove(ctx, ask)
	code(t, err, prego.CodeMoveUnderWay)
	_, err = b.s.GetMove(ctx, "t-1", "mov-9")
	code(t, err, prego.CodeMoveNotFound)
	_, err = b.s.GetMove(ctx, "t-9", "mov-1")
	code(t, err, prego.CodeTenantNotFound)

	full := somewhere
	full.MaxTenants = 0
	ok, err := b.s.ReserveMove(ctx, "mov-1", full)
	require.NoError(t, err)
	require.False(t, ok, "a decision is checked again")
	require.NotContains(t, fmt.Sprint(b.wanted("db").Rule), "10.64.0.3")
	for range 2 {
		ok, err = b.s.ReserveMove(ctx, "mov-1", somewhere)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, []int{1, 1}, b.counts(), "it counts on both")
	}
	require.Contains(t, fmt.Sprint(b.wanted("db").Rule), "10.64.0.3", "the shard lets the new server in")
	require.Contains(t, fmt.Sprint(b.wanted("redis").Rule), "10.64.0.3")
	for _, closed := range []bool{true, false} {
		b.exec(`UPDATE servers SET cordoned_at = CASE WHEN $1 THEN now() END, closing = $1 WHERE server_id = 'app-2'`, closed)
		at, err := b.s.MoveRecord(ctx, "mov-1")
		require.NoError(t, err)
		require.Equal(t, closed, at.ToClosed)
	}

	b.exec(`INSERT INTO snapshots (snapshot_id, org_id, tenant_id, server_id, site, status, created_by) VALUES ('snp-1', 'o', 't-1', 'app-1', 't-1.example.com', 'running', 'ann')`)
	waits, err := b.s.FreezeMove(ctx, "mov-1")
	require.NoError(t, err)
	require.Equal(t, "a snapshot of it is being made", waits)
	b.exec(`UPDATE snapshots SET status = 'succeeded'`)
	for range 2 {
		waits, err = b.s.FreezeMove(ctx, "mov-1")
		require.NoError(t, err)
		require.Empty(t, waits)
	}
	run, err := b.s.TenantRecord(ctx, "t-1")
	require.NoError(t, err)
	require.True(t, run.Held)

	for range 2 {
		require.NoError(t, b.s.SwitchMove(ctx, "mov-1", 7))
	}
	run, err = b.s.TenantRecord(ctx, "t-1")
	require.NoError(t, err)
	require.Equal(t, []any{prego.ServerID("app-2"), true}, []any{run.Allocation.AppServerID, run.Held})
	require.Equal(t, 1, count(t, b.s, "snapshots WHERE server_id = 'app-2'"), "snapshots come along")
	_, err = b.s.CancelMove(ctx, "t-1", "mov-1")
	code(t, err, prego.CodeInvalidTransition)
	require.NoError(t, b.s.MoveOpened(ctx, "mov-1"))
	run, err = b.s.TenantRecord(ctx, "t-1")
	require.NoError(t, err)
	require.False(t, run.Held)
	for range 2 {
		m, err = b.s.FinishMove(ctx, "mov-1", tenant.MoveDone, "", "")
		require.NoError(t, err)
		require.Equal(t, tenant.MoveDone, m.State)
		require.NotNil(t, m.DowntimeMS)
		require.Equal(t, []int{0, 1}, b.counts())
	}
	require.NotContains(t, fmt.Sprint(b.wanted("db").Rule), "10.64.0.2")
	require.Contains(t, fmt.Sprint(b.wanted("db").Rule), "10.64.0.3")
}

// TestAMoveThatIsGivenUp: cancelled or overtaken, it can't switch, and gives back what it took.
func TestAMoveThatIsGivenUp(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, spoil := range map[string]func(b *peersBundle){
		"cancelled": func(b *peersBundle) {
			for range 2 {
				m, err := b.s.CancelMove(ctx, "t-1", "mov-1")
				require.NoError(b.t, err)
				require.NotNil(b.t, m.CancelRequestedAt)
			}
		},
		"the tenant has ended": func(b *peersBundle) {
			b.exec(`UPDATE tenants SET state = 'terminated', converged_state = 'terminated'`)
		},
		"its place is gone": func(b *peersBundle) {
			b.exec(`UPDATE tenant_allocations SET released_at = now()`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := moveSetup(t)
			_, err := b.s.RequestMove(ctx, tenant.MoveAsked{ID: "mov-1", TenantID: "t-1", By: "ann"})
			require.NoError(t, err)
			_, err = b.s.ReserveMove(ctx, "mov-1", somewhere)
			require.NoError(t, err)
			spoil(b)
			_, err = b.s.FreezeMove(ctx, "mov-1")
			require.ErrorIs(t, err, server.ErrSuperseded)
			require.ErrorIs(t, b.s.SwitchMove(ctx, "mov-1", 0), server.ErrSuperseded)
			m, err := b.s.FinishMove(ctx, "mov-1", tenant.MoveFailed, tenant.ReasonMoveOvertaken, "why")
			require.NoError(t, err)
			require.Equal(t, []any{tenant.MoveFailed, tenant.ReasonMoveOvertaken}, []any{m.State, m.Reason})
			require.Equal(t, []int{1, 0}, b.counts())
		})
	}
}

// TestMaintenanceNamesTenants: as many as may move concurrently; a tenant whose move failed rests, and a
// cancelled maintenance undoes the moves under way.
func TestMaintenanceNamesTenants(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := moveSetup(t)
	for _, id := range []string{"t-2", "t-3"} {
		b.place(id, "app-1")
	}
	b.exec(`UPDATE tenants SET site = tenant_id || '.example.com', converged_state = 'active'`)
	d, err := b.s.RequestMaintenance(impact.By(ctx, "test"), "app-1", server.MaintenanceDrain, server.MaintenanceRequest{}, "ann")
	require.NoError(t, err)
	require.Equal(t, 3, d.TenantsTotal)
	step := func() server.MaintenanceStep {
		t.Helper()
		st, err := b.s.StepMaintenance(ctx, "app-1", server.MaintenanceLimits{Servers: 1, Instances: 1, Tenants: 2})
		require.NoError(t, err)
		return st
	}
	require.Equal(t, []prego.TenantID{"t-1", "t-2"}, step().Tenants)
	for _, id := range []prego.TenantID{"t-1", "t-2"} {
		_, err := b.s.RequestMove(ctx, tenant.MoveAsked{ID: prego.MoveID("mov-" + id), TenantID: id, By: "workflow", MaintenanceOf: "app-1"})
		require.NoError(t, err)
	}
	require.Empty(t, step().Tenants, "the budget is used")
	_, err = b.s.FinishMove(ctx, "mov-t-1", tenant.MoveFailed, "insufficient_resources", "no other app server")
	require.NoError(t, err)
	st := step()
	require.Equal(t, []prego.TenantID{"t-3"}, st.Tenants, "what failed rests")
	require.Equal(t, "0 of 3 tenants and 0 of 0 instances moved; tenant t-1 was not moved: no other app server", st.Message)
	last, err := b.s.LastMaintenance(ctx, "app-1")
	require.NoError(t, err)
	require.Equal(t, "insufficient_resources", last.Reason)
	b.exec(`UPDATE tenant_moves SET finished_at = now() - interval '1 minute' WHERE move_id = 'mov-t-1'`)
	require.Equal(t, []prego.TenantID{"t-1"}, step().Tenants, "and is tried again")
	_, err = b.s.CancelMaintenance(ctx, "app-1")
	require.NoError(t, err)
	st = step()
	require.Equal(t, []any{server.MaintenanceCancelled, []prego.MoveID{"mov-t-2"}}, []any{st.Status, st.Cancelled})
	quiet, err := b.s.QuietMoves(ctx, -time.Second)
	require.NoError(t, err)
	require.Equal(t, []tenant.QuietMove{{MoveID: "mov-t-2"}}, quiet)
}

// TestAMoveOfALostServer: a lost server is asked for nothing, a restore waits until the move has
// ended, and a server that the tenant came back to stays dedicated to it.
func TestAMoveOfALostServer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, reason := range []prego.Reason{prego.ReasonServerMissing, prego.ReasonServerLost} {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			b := moveSetup(t)
			own := somewhere
			own.Dedicates = true
			_, err := b.s.RequestMove(ctx, tenant.MoveAsked{ID: "mov-1", TenantID: "t-1", By: "ann"})
			require.NoError(t, err)
			ok, err := b.s.ReserveMove(ctx, "mov-1", own)
			require.NoError(t, err)
			require.True(t, ok)
			for i, id := range []string{"app-1", "app-2"} {
				m, err := b.s.MoveRecord(ctx, "mov-1")
				require.NoError(t, err)
				require.Equal(t, []string{"active", "active"}[i:], []string{m.FromStatus, m.ToStatus}[i:])
				b.exec(`UPDATE servers SET status = 'failed', status_reason = $2 WHERE server_id = $1`, id, reason)
			}
			m, err := b.s.MoveRecord(ctx, "mov-1")
			require.NoError(t, err)
			require.Equal(t, []string{"terminated", "terminated"}, []string{m.FromStatus, m.ToStatus})
			run, err := b.s.TenantRecord(ctx, "t-1")
			require.NoError(t, err)
			require.True(t, run.Moving)
			ends, err := b.s.OwnServers(ctx, "t-1")
			require.NoError(t, err)
			require.NotContains(t, ends, "app-2", "the target of an open move does not end with the tenant's place")
			if reason == prego.ReasonServerLost { // restored to where it was to move
				b.exec(`UPDATE tenant_allocations SET app_server_id = 'app-2'`)
			}
			_, err = b.s.FinishMove(ctx, "mov-1", tenant.MoveFailed, tenant.ReasonMoveOvertaken, "")
			require.NoError(t, err)
			run, err = b.s.TenantRecord(ctx, "t-1")
			require.NoError(t, err)
			require.False(t, run.Moving)
			require.Equal(t, reason == prego.ReasonServerLost, count(t, b.s, "servers WHERE dedicated_for_tenant_id = 't-1'") == 1)
		})
	}
}

// TestAnOpenMoveKeepsTheOwnServers: neither the server that a lost tenant was moving to nor the one that it left ends
// with its place, for both may hold its newest data. The move's end gives them back.
func TestAnOpenMoveKeepsTheOwnServers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, switched := range map[string]bool{"before the switch": false, "after it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := dataMoveSetup(t)
			b.server("app-3", prego.RoleApp, "10.64.0.8")
			b.exec(`UPDATE servers SET dedicated_for_tenant_id = 't-1' WHERE server_id IN ('app-1', 'app-3')`)
			own := somewhere
			own.Dedicates = true
			b.freezes("mov-1", tenant.MoveAsked{To: "app-2"}, own)
			state := tenant.MoveFailed
			if switched {
				require.NoError(t, b.s.SwitchMove(ctx, "mov-1", 0))
				state = tenant.MoveDone
			}
			ends, err := b.s.OwnServers(ctx, "t-1")
			require.NoError(t, err)
			require.Equal(t, []string{"app-3"}, ends)
			_, err = b.s.LoseServer(impact.By(ctx, "test"), "db", "its disk died", "ann")
			require.NoError(t, err)
			require.Empty(t, b.place1())
			ends, err = b.s.OwnServers(ctx, "t-1")
			require.NoError(t, err)
			require.Equal(t, []string{"app-3"}, ends)
			for _, id := range ends {
				_, err = b.s.RequestDecommission(ctx, prego.ServerID(id), "ann")
				require.NoError(t, err, "what ends with the place is in no use")
			}
			_, err = b.s.FinishMove(ctx, "mov-1", state, "", "")
			require.NoError(t, err)
			require.Equal(t, []int{0, 0}, b.counts())
			require.Zero(t, count(t, b.s, "servers WHERE dedicated_for_tenant_id = 't-1' AND status = 'active'"))
		})
	}
}

// dataMoveSetup has another shard and another pool beside.
func dataMoveSetup(t testing.TB) *peersBundle {
	t.Helper()
	b := moveSetup(t)
	b.server("db-2", prego.RoleDBShard, "10.64.0.6")
	b.server("redis-2", prego.RoleRedisPool, "10.64.0.7")
	b.exec(`UPDATE db_shards SET current_tenant_count = 1 WHERE shard_id = 'db'`)
	b.exec(`UPDATE redis_pools SET current_tenants = 1 WHERE pool_id = 'redis'`)
	return b
}

func (b *peersBundle) dataCounts() (out []int) {
	b.t.Helper()
	for _, q := range []string{
		`SELECT current_tenant_count FROM db_shards WHERE shard_id = 'db'`, `SELECT current_tenant_count FROM db_shards WHERE shard_id = 'db-2'`,
		`SELECT current_tenants FROM redis_pools WHERE pool_id = 'redis'`, `SELECT current_tenants FROM redis_pools WHERE pool_id = 'redis-2'`,
	} {
		n, err := value[int](context.Background(), b.s.pool, q)
		require.NoError(b.t, err)
		out = append(out, n)
	}
	return append(out, b.counts()...)
}

// TestAMoveOfData: shard and pool are reserved with the server or without, all or none; firewall rules
// follow, and the switch takes all parts in one transaction.
func TestAMoveOfData(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	place := somewhere
	place.ShardID, place.PoolID, place.DBDiskMax, place.RedisMax = "db-2", "redis-2", 90, 90
	for name, tc := range map[string]struct {
		ask                 tenant.MoveAsked
		parts               [3]bool
		taken, done, undone []int
	}{
		"the shard":     {tenant.MoveAsked{Shard: "any"}, [3]bool{false, true, false}, []int{1, 1, 1, 0, 1, 0}, []int{0, 1, 1, 0, 1, 0}, []int{1, 0, 1, 0, 1, 0}},
		"the pool":      {tenant.MoveAsked{Pool: "redis-2"}, [3]bool{false, false, true}, []int{1, 0, 1, 1, 1, 0}, []int{1, 0, 0, 1, 1, 0}, []int{1, 0, 1, 0, 1, 0}},
		"all":           {tenant.MoveAsked{To: "any", Shard: "any", Pool: "any"}, [3]bool{true, true, true}, []int{1, 1, 1, 1, 1, 1}, []int{0, 1, 0, 1, 0, 1}, []int{1, 0, 1, 0, 1, 0}},
		"with a server": {tenant.MoveAsked{To: "app-2", Shard: "db-2"}, [3]bool{true, true, false}, []int{1, 1, 1, 0, 1, 1}, []int{0, 1, 1, 0, 0, 1}, []int{1, 0, 1, 0, 1, 0}},
	} {
		for _, undo := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, undone %v", name, undo), func(t *testing.T) {
				t.Parallel()
				b := dataMoveSetup(t)
				tc.ask.ID, tc.ask.TenantID, tc.ask.By = "mov-1", "t-1", "ann"
				p := place
				if !tc.parts[0] {
					p.ServerID = "app-1"
				}
				m, err := b.s.RequestMove(ctx, tc.ask)
				require.NoError(t, err)
				require.Equal(t, [3]bool{m.MovesServer, m.MovesShard, m.MovesPool}, tc.parts)
				again, err := b.s.RequestMove(ctx, tc.ask)
				require.NoError(t, err)
				require.Equal(t, m.MoveID, again.MoveID)
				_, err = b.s.RequestMove(ctx, tenant.MoveAsked{ID: "mov-2", TenantID: "t-1", To: "app-2", Pool: "any"})
				code(t, err, prego.CodeMoveUnderWay)
				if tc.parts[1] { // one part that is not fit leaves nothing taken of the others
					b.exec(`UPDATE db_shards SET tenant_capacity = 1, current_tenant_count = 1 WHERE shard_id = 'db-2'`)
					ok, err := b.s.ReserveMove(ctx, "mov-1", p)
					require.NoError(t, err)
					require.False(t, ok)
					require.Equal(t, []int{1, 1, 1, 0, 1, 0}, b.dataCounts())
					b.exec(`UPDATE db_shards SET tenant_capacity = 10, current_tenant_count = 0 WHERE shard_id = 'db-2'`)
				}
				for range 2 {
					ok, err := b.s.ReserveMove(ctx, "mov-1", p)
					require.NoError(t, err)
					require.True(t, ok)
					require.Equal(t, tc.taken, b.dataCounts())
				}
				app := map[bool]string{true: "10.64.0.3", false: "10.64.0.2"}[tc.parts[0]]
				for id, moves := range map[prego.ServerID]bool{"db-2": tc.parts[1], "redis-2": tc.parts[2]} {
					if moves {
						require.Contains(t, fmt.Sprint(b.wanted(id).Rule), app, "%s lets it in", id)
					}
				}
				require.Contains(t, fmt.Sprint(b.wanted("db").Rule), "10.64.0.2", "and so does what it has")
				run, err := b.s.MoveRecord(ctx, "mov-1")
				require.NoError(t, err)
				require.True(t, run.Here())
				require.Equal(t, prego.ServerID("db"), run.FromShard.ServerID)
				if undo {
					_, err := b.s.FinishMove(ctx, "mov-1", tenant.MoveFailed, tenant.ReasonMoveFailed, "")
					require.NoError(t, err)
					require.Equal(t, tc.undone, b.dataCounts())
					require.NotContains(t, fmt.Sprint(b.wanted("db-2").Rule), app)
					return
				}
				_, err = b.s.FreezeMove(ctx, "mov-1")
				require.NoError(t, err)
				for range 2 {
					require.NoError(t, b.s.SwitchMove(ctx, "mov-1", 7))
				}
				run, err = b.s.MoveRecord(ctx, "mov-1")
				require.NoError(t, err)
				require.True(t, run.There())
				at, err := b.s.TenantRecord(ctx, "t-1")
				require.NoError(t, err)
				where := []string{"app-1", "db", "redis"}
				for i, moves := range tc.parts {
					if moves {
						where[i] = []string{"app-2", "db-2", "redis-2"}[i]
					}
				}
				require.Equal(t, []string{string(at.Allocation.AppServerID), string(at.Allocation.DBShardID), string(at.Allocation.RedisPoolID)}, where)
				for range 2 {
					_, err = b.s.FinishMove(ctx, "mov-1", tenant.MoveDone, "", "")
					require.NoError(t, err)
					require.Equal(t, tc.done, b.dataCounts())
				}
				if tc.parts[1] {
					require.NotContains(t, fmt.Sprint(b.wanted("db").Rule), "3306", "no server is let in at the old place")
				}
			})
		}
	}
}

// TestDrainMovesThePartsOnTheServer: of a shard the database, of a pool the cache.
func TestDrainMovesThePartsOnTheServer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for id, want := range map[prego.ServerID][3]bool{"db": {false, true, false}, "redis": {false, false, true}, "app-1": {true, false, false}} {
		t.Run(string(id), func(t *testing.T) {
			t.Parallel()
			b := dataMoveSetup(t)
			d, err := b.s.RequestMaintenance(impact.By(ctx, "test"), id, server.MaintenanceDrain, server.MaintenanceRequest{}, "ann")
			require.NoError(t, err)
			require.Equal(t, 1, d.TenantsTotal)
			st, err := b.s.StepMaintenance(ctx, id, server.MaintenanceLimits{Servers: 1, Instances: 1, Tenants: 2})
			require.NoError(t, err)
			require.Equal(t, []prego.TenantID{"t-1"}, st.Tenants)
			m, err := b.s.RequestMove(ctx, tenant.MoveAsked{ID: "mov-1", TenantID: "t-1", By: "workflow", MaintenanceOf: id})
			require.NoError(t, err)
			require.Equal(t, want, [3]bool{m.MovesServer, m.MovesShard, m.MovesPool})
			_, err = b.s.FinishMove(ctx, "mov-1", tenant.MoveFailed, "insufficient_resources", "nowhere")
			require.NoError(t, err)
			st, err = b.s.StepMaintenance(ctx, id, server.MaintenanceLimits{Servers: 1, Instances: 1, Tenants: 2})
			require.NoError(t, err)
			require.Empty(t, st.Tenants, "what failed rests")
			require.Contains(t, st.Message, "nowhere")
		})
	}
}

// TestAMoveToAnotherRegion: all parts, and the tenant's region with them.
func TestAMoveToAnotherRegion(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := dataMoveSetup(t)
	b.exec(`UPDATE servers SET region = 'us' WHERE server_id IN ('app-2', 'db-2', 'redis-2')`)
	b.exec(`UPDATE db_shards SET region = 'us' WHERE shard_id = 'db-2'`)
	b.exec(`UPDATE redis_pools SET region = 'us' WHERE pool_id = 'redis-2'`)
	_, err := b.s.RequestMove(ctx, tenant.MoveAsked{ID: "mov-1", TenantID: "t-1", By: "ann", Region: "eu"})
	code(t, err, prego.CodeInvalidField)
	m, err := b.s.RequestMove(ctx, tenant.MoveAsked{ID: "mov-1", TenantID: "t-1", By: "ann", Region: "us"})
	require.NoError(t, err)
	require.Equal(t, []any{true, true, true, prego.Region("eu"), prego.Region("us")}, []any{m.MovesServer, m.MovesShard, m.MovesPool, m.FromRegion, m.ToRegion})
	p := everywhere()
	ok, err := b.s.ReserveMove(ctx, "mov-1", p)
	require.NoError(t, err)
	require.True(t, ok)
	_, err = b.s.FreezeMove(ctx, "mov-1")
	require.NoError(t, err)
	require.NoError(t, b.s.SwitchMove(ctx, "mov-1", 7))
	run, err := b.s.TenantRecord(ctx, "t-1")
	require.NoError(t, err)
	require.Equal(t, prego.Region("us"), run.Region)
}
