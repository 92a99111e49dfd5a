package store

import (
	"context"
	"slices"
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

// TestRunsSayWhatTheyAreAbout: people find a run by the name of its tenant, volume or server, and a run that makes a row
// of an org true has that org, whose turn its tasks take. Each kind of run is either an org's or the platform's.
func TestRunsSayWhatTheyAreAbout(t *testing.T) {
	t.Parallel()
	s := backupTenants(t, 1)
	exec(t, s, `INSERT INTO certificates (certificate_id, names, challenge, created_by)
		VALUES ('crt-1', '{"*.sites.test"}', 'dns-01', 'test')`)
	for id, want := range map[string]ops.About{
		"tenant-provision/t-0": {OrgID: "acme", Name: "t-0", What: "starter in eu", By: "someone"}, "tenant-change/t-0": {OrgID: "acme", Name: "t-0", What: "starter in eu", By: "someone"},
		"tenant-change/t-9": {}, "certificate/crt-1": {Name: "*.sites.test", What: "a certificate", By: "test"},
		"server-provision/n-0": {Name: "n-0", What: "node in eu", By: "test"}, "server-maintenance/n-9": {}, "backup/bak-9": {}, "nonsense": {},
	} {
		got, err := s.AboutRun(t.Context(), id)
		require.NoError(t, err, id)
		require.Equal(t, want, got, id)
	}
	require.Equal(t, "**s-0**, starter in eu, of org acme, requested by alice", ops.About{OrgID: "acme", Name: "s-0", What: "starter in eu", By: "alice"}.Details())
	platform := []string{"release", "site-pool-refill", "warm-pool", "image-build", "image-delete", "fleet-scale", "reconcile", "refresh-catalog"}
	for kind := range operationKinds {
		_, known := abouts[kind]
		require.NotEqual(t, known, slices.Contains(platform, kind), kind)
	}
}
