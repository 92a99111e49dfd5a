package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
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

func (b *peersBundle) counts() (out []int) {
	b.t.Helper()
	for _, id := range []string{"app-1", "app-2"} {
		n, err := value[int](context.Background(), b.s.pool, `SELECT tenant_count FROM servers WHERE server_id = $1`, id)
		require.NoError(b.t, err)
		out = append(out, n)
	}
	return out
}

// TestAMoveByItsRow: who is let in, who counts where, what waits, and that each step can be
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
	require.Equal(t, m.MoveID, again.MoveID, "the same request is met by it")
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
	require.False(t, ok, "what was decided is checked again")
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
		at, err := b.s.MoveRun(ctx, "mov-1")
		require.NoError(t, err)
		require.Equal(t, closed, at.ToClosed)
	}

	b.exec(`INSERT INTO snapshots (snapshot_id, org_id, tenant_id, server_id, site, status, created_by, name) VALUES ('snp-1', 'o', 't-1', 'app-1', 't-1.example.com', 'running', 'ann', 'snp-1')`)
	waits, err := b.s.FreezeMove(ctx, "mov-1")
	require.NoError(t, err)
	require.Equal(t, "a snapshot of it is being made", waits)
	b.exec(`UPDATE snapshots SET status = 'succeeded'`)
	for range 2 {
		waits, err = b.s.FreezeMove(ctx, "mov-1")
		require.NoError(t, err)
		require.Empty(t, waits)
	}
	run, err := b.s.TenantRun(ctx, "t-1")
	require.NoError(t, err)
	require.True(t, run.Held)

	for range 2 {
		require.NoError(t, b.s.SwitchMove(ctx, "mov-1", 7))
	}
	run, err = b.s.TenantRun(ctx, "t-1")
	require.NoError(t, err)
	require.Equal(t, []any{prego.ServerID("app-2"), true}, []any{run.Allocation.AppServerID, run.Held})
	require.Equal(t, 1, count(t, b.s, "snapshots WHERE server_id = 'app-2'"), "snapshots come along")
	_, err = b.s.CancelMove(ctx, "t-1", "mov-1")
	code(t, err, prego.CodeInvalidTransition)
	require.NoError(t, b.s.MoveOpened(ctx, "mov-1"))
	run, err = b.s.TenantRun(ctx, "t-1")
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

// TestADrainNamesTenants: as many as may move at once; one whose move failed rests, and a drain that is
// cancelled undoes those under way.
func TestADrainNamesTenants(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := moveSetup(t)
	for _, id := range []string{"t-2", "t-3"} {
		b.place(id, "app-1")
	}
	b.exec(`UPDATE tenants SET site = tenant_id || '.example.com', converged_state = 'active'`)
	d, err := b.s.RequestDrain(ctx, "app-1", server.DrainOnly, server.DrainRequest{}, "ann")
	require.NoError(t, err)
	require.Equal(t, 3, d.TenantsTotal)
	step := func() server.DrainStep {
		t.Helper()
		st, err := b.s.StepDrain(ctx, "app-1", server.DrainLimits{Servers: 1, Instances: 1, Tenants: 2})
		require.NoError(t, err)
		return st
	}
	require.Equal(t, []prego.TenantID{"t-1", "t-2"}, step().Tenants)
	for _, id := range []prego.TenantID{"t-1", "t-2"} {
		_, err := b.s.RequestMove(ctx, tenant.MoveAsked{ID: prego.MoveID("mov-" + id), TenantID: id, By: "workflow", DrainOf: "app-1"})
		require.NoError(t, err)
	}
	require.Empty(t, step().Tenants, "the budget is used")
	_, err = b.s.FinishMove(ctx, "mov-t-1", tenant.MoveFailed, "insufficient_resources", "no other app server")
	require.NoError(t, err)
	st := step()
	require.Equal(t, []prego.TenantID{"t-3"}, st.Tenants, "what failed rests")
	require.Equal(t, "0 of 3 tenants and 0 of 0 instances moved; tenant t-1 was not moved: no other app server", st.Message)
	last, err := b.s.LastDrain(ctx, "app-1")
	require.NoError(t, err)
	require.Equal(t, "insufficient_resources", last.Reason)
	b.exec(`UPDATE tenant_moves SET finished_at = now() - interval '1 minute' WHERE move_id = 'mov-t-1'`)
	require.Equal(t, []prego.TenantID{"t-1"}, step().Tenants, "and is tried again")
	_, err = b.s.CancelDrain(ctx, "app-1")
	require.NoError(t, err)
	st = step()
	require.Equal(t, []any{server.DrainCancelled, []prego.MoveID{"mov-t-2"}}, []any{st.Status, st.Cancelled})
	quiet, err := b.s.QuietMoves(ctx, -time.Second)
	require.NoError(t, err)
	require.Equal(t, []prego.MoveID{"mov-t-2"}, quiet)
}

// TestAMoveOfALostServer: what is lost is asked for nothing, a restore waits until the move has
// ended, and a server that the tenant came back to stays its own.
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
				m, err := b.s.MoveRun(ctx, "mov-1")
				require.NoError(t, err)
				require.Equal(t, []string{"active", "active"}[i:], []string{m.FromStatus, m.ToStatus}[i:])
				b.exec(`UPDATE servers SET status = 'failed', status_reason = $2 WHERE server_id = $1`, id, reason)
			}
			m, err := b.s.MoveRun(ctx, "mov-1")
			require.NoError(t, err)
			require.Equal(t, []string{"terminated", "terminated"}, []string{m.FromStatus, m.ToStatus})
			run, err := b.s.TenantRun(ctx, "t-1")
			require.NoError(t, err)
			require.True(t, run.Moving)
			if reason == prego.ReasonServerLost { // restored to where it was to move
				b.exec(`UPDATE tenant_allocations SET app_server_id = 'app-2'`)
			}
			_, err = b.s.FinishMove(ctx, "mov-1", tenant.MoveFailed, tenant.ReasonMoveOvertaken, "")
			require.NoError(t, err)
			run, err = b.s.TenantRun(ctx, "t-1")
			require.NoError(t, err)
			require.False(t, run.Moving)
			require.Equal(t, reason == prego.ReasonServerLost, count(t, b.s, "servers WHERE dedicated_for_tenant_id = 't-1'") == 1)
		})
	}
}
