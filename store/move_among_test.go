package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// TestAMoveAmongOthers: while a tenant moves, another move of it is refused, a maintenance waits for the move under
// way, and a release and the move let each other end.
func TestAMoveAmongOthers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := dataMoveSetup(t)
	ask := tenant.MoveAsked{ID: "mov-1", TenantID: "t-1", By: "ann"}
	_, err := b.s.RequestMove(ctx, ask)
	require.NoError(t, err)
	ok, err := b.s.ReserveMove(ctx, "mov-1", somewhere)
	require.NoError(t, err)
	require.True(t, ok)

	again := ask
	again.ID = "mov-2"
	m, err := b.s.RequestMove(ctx, again)
	require.NoError(t, err)
	require.Equal(t, prego.MoveID("mov-1"), m.MoveID, "repeating the request returns the move in progress")
	for _, other := range []tenant.MoveAsked{{To: "app-2"}, {Shard: "any"}, {Pool: "redis-2"}, {Region: "us"}} {
		other.ID, other.TenantID, other.By = "mov-3", "t-1", "ann"
		_, err = b.s.RequestMove(ctx, other)
		code(t, err, prego.CodeMoveUnderWay)
	}

	// The server before is emptied: by the move that there is.
	_, err = b.s.RequestMaintenance(impact.By(ctx, "test"), "app-1", server.MaintenanceDrain, server.MaintenanceRequest{}, "ann")
	require.NoError(t, err)
	step := func() server.MaintenanceStep {
		t.Helper()
		st, err := b.s.StepMaintenance(ctx, "app-1", server.MaintenanceLimits{Servers: 1, Instances: 1, Tenants: 2})
		require.NoError(t, err)
		return st
	}
	st := step()
	require.Empty(t, st.Tenants)
	require.Equal(t, "0 of 1 tenants and 0 of 0 instances moved", st.Message)
	remaining := func(want ...server.RemainingTenant) {
		t.Helper()
		found, err := b.s.RemainingTenants(ctx, "app-1")
		require.NoError(t, err)
		require.Equal(t, append([]server.RemainingTenant{}, want...), found)
	}
	left := server.RemainingTenant{TenantID: "t-1", Slug: "t-1", OrgID: "o", State: "active"}
	moving := left
	moving.MoveID, moving.MoveState = "mov-1", "copying"
	remaining(moving)

	// A release on both servers waits for the move, which does not wait for it.
	_, err = b.s.CreateStackRelease(ctx, server.CreateStackReleaseRequest{Name: "r1", Image: "i:1", Rings: []server.ReleaseRing{{Name: "all"}}}, "ann")
	require.NoError(t, err)
	_, err = b.s.StartStackRelease(impact.By(ctx, "test"), "r1", "ann")
	require.NoError(t, err)
	b.exec(`INSERT INTO stack_release_servers (release, server_id, ring, status, phase) VALUES ('r1', 'app-1', 0, 'updating', 'waiting'), ('r1', 'app-2', 0, 'updating', 'waiting')
		ON CONFLICT (release, server_id) DO UPDATE SET status = 'updating', phase = 'waiting'`)
	waits := func(want string) {
		t.Helper()
		for _, id := range []prego.ServerID{"app-1", "app-2"} {
			run, err := b.s.BeginBenchUpdate(ctx, "r1", id)
			require.NoError(t, err)
			require.Equal(t, want, run.Waits, id)
		}
	}
	waits("tenant t-1 is being moved")
	reason, err := b.s.FreezeMove(ctx, "mov-1")
	require.NoError(t, err)
	require.Empty(t, reason)
	waits("tenant t-1 is being moved")
	require.NoError(t, b.s.SwitchMove(ctx, "mov-1", 0))
	waits("tenant t-1 is being moved")
	moving.MoveState = "switched"
	remaining(moving)
	require.NoError(t, b.s.MoveOpened(ctx, "mov-1"))
	waits("")
	require.Empty(t, step().Tenants, "it is not cleared away yet")
	_, err = b.s.RequestMove(ctx, again)
	code(t, err, prego.CodeMoveUnderWay)
	_, err = b.s.FinishMove(ctx, "mov-1", tenant.MoveDone, "", "")
	require.NoError(t, err)
	require.Equal(t, "1 of 1 tenants and 0 of 0 instances moved", step().Message)
	remaining()

	// A tenant whose move failed or that cannot move now is named with the reason.
	b.exec(`UPDATE tenant_allocations SET app_server_id = 'app-1';
		UPDATE tenant_moves SET state = 'failed', reason = 'copy_failed', message = 'no room'`)
	failed := left
	failed.Reason, failed.Message = "copy_failed", "no room"
	remaining(failed)
	b.exec(`UPDATE tenants SET state = 'terminated'`)
	unfit := left
	unfit.State, unfit.Reason = "terminated", server.MaintenanceTenantUnfit
	unfit.Message = "only a site in use is moved"
	remaining(unfit)
	b.exec(`UPDATE tenants SET state = 'active';
		UPDATE tenant_allocations SET app_server_id = 'app-2'; UPDATE tenant_moves SET state = 'done'`)

	// A release that has begun is what the next move waits for.
	b.exec(`UPDATE stack_release_servers SET status = 'done'`)
	b.exec(`DELETE FROM server_maintenances`)
	b.exec(`UPDATE servers SET cordoned_at = NULL`)
	_, err = b.s.RequestMove(ctx, again)
	require.NoError(t, err)
	p := somewhere
	p.ServerID = "app-1"
	ok, err = b.s.ReserveMove(ctx, "mov-2", p)
	require.NoError(t, err)
	require.True(t, ok)
	b.exec(`UPDATE stack_release_servers SET status = 'updating', phase = 'preparing' WHERE server_id = 'app-2'`)
	reason, err = b.s.FreezeMove(ctx, "mov-2")
	require.NoError(t, err)
	require.Equal(t, "a release is being installed there", reason)
}
