package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/server"
)

func TestAnOperationFollowsItsRows(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	_, _, err := s.CreateServer(ctx, server.CreateRequest{ServerID: "app-1", Role: prego.RoleApp, Region: prego.RegionEU, InfraProvider: prego.ProviderHetzner}, "test")
	require.NoError(t, err)
	is := func(id string, want ops.OperationStatus) {
		t.Helper()
		op, err := s.Operation(ctx, id)
		require.NoError(t, err)
		require.Equal(t, want, op.Status)
	}
	is("server-provision/app-1", ops.OperationRunning)
	exec(t, s, `UPDATE servers SET status = 'failed', status_reason = 'failed_handshake'`)
	is("server-provision/app-1", ops.OperationFailed)
	exec(t, s, `UPDATE servers SET status = 'active', active_at = now()`)
	is("server-provision/app-1", ops.OperationSucceeded)
	for _, id := range []string{"server-decommission/app-1", "server-provision/nope", "nope/app-1", "server-provision", "reconcile/test", "reconcile/test@x", "reconcile/test@99999999999999"} {
		_, err := s.Operation(ctx, id)
		code(t, err, prego.CodeOperationNotFound)
	}
	is("reconcile/test@1", ops.OperationRunning)
	exec(t, s, `INSERT INTO reconcile_runs (finished_at) VALUES (now())`)
	is("reconcile/test@1", ops.OperationSucceeded)
	is("refresh-catalog/test@1", ops.OperationRunning)
	_, err = s.RequestDecommission(ctx, "app-1", "test")
	require.NoError(t, err)
	is("server-decommission/app-1", ops.OperationRunning)
}
