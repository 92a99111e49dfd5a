package activities_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/objects"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/server"
)

// downloads is a host that is asked for pieces: it has those below has, and fails at the last.
type downloads struct {
	asked []int // the first piece of each request
	has   int
	parts int
}

func (d *downloads) Transfer(_ context.Context, _ prego.ServerID, _ string, in wire.TransferRequest) (out wire.TransferResponse, _ error) {
	first := in.Download[0].Number
	d.asked = append(d.asked, first)
	switch {
	case first > d.has+1:
		out.Failed = &wire.TransferFailed{Number: first, Code: wire.FailedNoBackup, Message: "only some bytes are there"}
	case first+len(in.Download) > d.parts:
		out.Failed = &wire.TransferFailed{Number: d.parts, Code: wire.FailedAway, Message: "the network"}
	default:
		d.has = first + len(in.Download) - 1
	}
	return out, nil
}

// emptyHost has no backup that it could open.
type emptyHost struct{}

func (emptyHost) BenchAll(context.Context, []server.BenchCommand) (int, error) { return 0, nil }

func (emptyHost) Bench(context.Context, server.BenchCommand) (string, error) {
	return "", &server.CommandError{Kind: "bench", ExitCode: 1, Permanent: true, Stderr: "site: backup_missing: there is no sealed backup again"}
}

// failing is a host whose transfers fail with a code.
type failing string

func (f failing) Transfer(_ context.Context, _ prego.ServerID, _ string, in wire.TransferRequest) (wire.TransferResponse, error) {
	return wire.TransferResponse{Failed: &wire.TransferFailed{Number: in.Download[0].Number, Code: string(f), Message: "a test"}}, nil
}

type openVault struct{ activities.BackupVault }

func (openVault) Open(string, string, []byte) ([]byte, error) { return []byte("AGE-SECRET-KEY-1"), nil }

// fetches are downloads of one backup of 60 parts.
type fetches struct {
	*placing
	t      *testing.T
	bucket *objects.Store
	of     prego.TenantID
}

const fetchedParts = 60

func newFetches(t *testing.T) *fetches {
	t.Helper()
	f := &fetches{placing: newPlacing(t, 2), t: t}
	srv := s3test.Start(t)
	var err error
	f.bucket, err = objects.New(objects.Config{
		Endpoint: srv.Endpoint, Bucket: srv.Bucket, Region: srv.Region, AccessKey: srv.AccessKey,
		SecretKey: srv.SecretKey, PathStyle: true, MayDelete: s3test.MayDelete,
	})
	require.NoError(t, err)
	require.NoError(t, f.bucket.Put(t.Context(), "o", make([]byte, 600)))
	f.Server("node-0", prego.RoleNode, "")
	f.of = f.Tenant(prego.PlanStarter, nil).TenantID
	f.Exec(`UPDATE tenants SET state = 'active', site = 'x.test' WHERE tenant_id = $1`, f.of)
	f.Exec(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
		SELECT $1, 'node-0', (SELECT min(shard_id) FROM db_shards), (SELECT min(pool_id) FROM redis_pools), 'x.test', 'x', 'hetzner', 'best_fit'`, f.of)
	f.Exec(`INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, state, created_by, taken_at, sealed_identity, object_key, manifest_key, bytes, part_bytes, parts, sha256, plain_sha256, manifest_sha256)
		SELECT 'bak-1', org_id, tenant_id, 'node-0', 'x.test', 'manual', 'stored', 'test', now(), 'x', 'o', 'm', 600, 10, $2, 'x', 'x', 'x' FROM tenants WHERE tenant_id = $1`, f.of, fetchedParts)
	return f
}

// fails runs a failing download to a host, with the heartbeat of an earlier attempt.
func (f *fetches) fails(host activities.Transfers, details any) error {
	f.t.Helper()
	a := &activities.Backups{
		Store: f.Store, Objects: f.bucket, Vault: openVault{}, Hosts: host, Audit: f.Store, Tenants: &activities.Tenants{Store: f.Store, Bench: emptyHost{}},
		Metrics: activities.NewBackupMetrics(prometheus.NewRegistry()), Log: zap.NewNop(), Settings: activities.BackupSettings{URLTTL: time.Minute},
	}
	env := (&testsuite.WorkflowTestSuite{}).NewTestActivityEnvironment()
	env.RegisterActivity(a.FetchBackup)
	if details != nil {
		env.SetHeartbeatDetails(details)
	}
	_, err := env.ExecuteActivity(a.FetchBackup, activities.FetchInput{BackupID: "bak-1", TenantID: f.of, Name: "again"})
	require.Error(f.t, err)
	return err
}

// said returns why the backup is bad, and whether it was verified.
func (f *fetches) said() (why string, verified bool) {
	f.t.Helper()
	require.NoError(f.t, f.Pool.QueryRow(f.t.Context(), `SELECT verify_message, verified_at IS NOT NULL FROM backups`).Scan(&why, &verified))
	return why, verified
}

// TestADownloadGoesOn where the previous attempt stopped, or restarts if the host has lost its parts.
func TestADownloadGoesOn(t *testing.T) {
	t.Parallel()
	f := newFetches(t)
	const parts = fetchedParts
	at := func(name string, next int) any {
		return map[string]any{"backup_id": "bak-1", "name": name, "next": next}
	}
	host := &downloads{parts: parts} // the last piece never comes
	_ = f.fails(host, nil)
	require.Equal(t, []int{1, 25, 49}, host.asked)

	host.asked = nil
	_ = f.fails(host, at("again", 49))
	require.Equal(t, []int{49}, host.asked, "downloaded parts are not fetched again")

	lost := &downloads{parts: parts}
	_ = f.fails(lost, at("again", 25))
	require.Equal(t, []int{25, 1, 25, 49}, lost.asked, "the host was recreated meanwhile")

	forgot := &downloads{parts: parts}
	_ = f.fails(forgot, at("again", parts+1))
	require.Equal(t, []int{1, 25, 49}, forgot.asked, "the previous attempt was complete and deleted its files")
	why, _ := f.said()
	require.Empty(t, why, "it proves nothing about the backup")

	host = &downloads{parts: parts}
	_ = f.fails(host, at("another", 25))
	require.Equal(t, []int{1, 25, 49}, host.asked, "that was another download")
}

// TestWhyADownloadFails: each reason is recorded on the step, and only faults of the backup itself on the
// backup. Transient failures are retried; a full disk is left immediately, so that the partial download is
// deleted.
func TestWhyADownloadFails(t *testing.T) {
	t.Parallel()
	f := newFetches(t)
	f.Exec(`UPDATE backups SET verified_at = now()`)
	for _, c := range []struct {
		code            string
		last, ofBackups bool
	}{
		{wire.FailedURLExpired, false, false},
		{wire.FailedAway, false, false},
		{wire.FailedRefused, false, false},
		{wire.FailedDiskFull, true, false},
		{wire.FailedNoBackup, true, true},
		{wire.FailedUnreadable, true, true},
	} {
		err := f.fails(failing(c.code), nil)
		var app *temporal.ApplicationError
		require.ErrorAs(t, err, &app, c.code)
		require.Equal(t, c.code, app.Type())
		require.Equal(t, c.last, app.NonRetryable(), c.code)
		require.Equal(t, "part 1: "+c.code+": a test", app.Message())
		why, verified := f.said()
		require.Equal(t, c.ofBackups, why != "", "%s: %s", c.code, why)
		require.True(t, verified, "when it was last found good is kept")
	}
}
