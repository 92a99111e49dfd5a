package store

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

// volumeOf makes a volume of acme at a location.
func (s *Store) volumeOf(t *testing.T, id, location string) {
	t.Helper()
	_, err := s.CreateVolume(context.Background(), prego.Volume{VolumeID: id, OrgID: "acme", Region: "eu", Location: location, Name: id, SizeBytes: 10e9}, "test", "test")
	require.NoError(t, err)
}

// holding runs do beside a transaction that holds a row, and once do waits for it has
// the transaction go on with then: it must not wait for what do holds.
func (s *Store) holding(t *testing.T, hold string, do func() error, then func(tx pgx.Tx)) error {
	t.Helper()
	ctx := context.Background()
	done := make(chan error, 1)
	require.NoError(t, s.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, hold); err != nil {
			return err
		}
		go func() { done <- do() }()
		require.Eventually(t, func() bool {
			var waits bool
			require.NoError(t, s.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits))
			return waits
		}, 10*time.Second, 5*time.Millisecond, "it waits for who came first")
		then(tx)
		return nil
	}))
	return <-done
}

// TestLocksAreTakenInOneOrder: of two that need the same rows one waits for the other,
// and never both.
func TestLocksAreTakenInOneOrder(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := groupBundle(t)
	group, err := s.testGroup(t, 1, "acme", 0, workload(16))
	require.NoError(t, err)
	s.volumeOf(t, "vol-1", "fsn1")
	free := func(sql string) func(tx pgx.Tx) {
		return func(tx pgx.Tx) {
			_, err := tx.Exec(ctx, sql)
			require.NoError(t, err)
		}
	}
	const org, ofOrg = `SELECT FROM orgs WHERE org_id = 'acme' FOR NO KEY UPDATE`, `SELECT FROM orgs WHERE org_id = 'acme' FOR NO KEY UPDATE NOWAIT`
	// Who scales a group holds it, and then the org.
	require.NoError(t, s.holding(t, `SELECT FROM process_groups FOR NO KEY UPDATE`, func() error {
		_, err := s.AttachVolume(ctx, prego.VolumeAttachment{AttachmentID: "vat-1", VolumeID: "vol-1", GroupID: group, MountPath: "/data"}, "test")
		return err
	}, free(ofOrg)))
	// Who deletes an env holds the org, and then the env.
	require.NoError(t, s.holding(t, org, func() error {
		_, err := s.testGroup(t, 2, "acme", 0, workload(16))
		return err
	}, free(`SELECT FROM envs WHERE env_id = 'env-acme' FOR UPDATE NOWAIT`)))
}

// TestAGroupIsNotDeletedUnderARoute: who makes a route holds the org, and saw the group.
func TestAGroupIsNotDeletedUnderARoute(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := groupBundle(t)
	group, err := s.testGroup(t, 1, "acme", 0, workload(16))
	require.NoError(t, err)
	err = s.holding(t, `SELECT FROM orgs WHERE org_id = 'acme' FOR NO KEY UPDATE`, func() error {
		_, err := s.DeleteGroup(ctx, group, "test")
		return err
	}, func(tx pgx.Tx) {
		_, err := tx.Exec(ctx, sqlCreateRoute, "rte-1", "acme", "env-acme", group, "www.example.com", "shared_v6", 443, "https", 80, "test")
		require.NoError(t, err)
	})
	require.Equal(t, prego.CodeGroupInUse, prego.CodeOf(err), "%v", err)
}

// TestAnAllocationLooksAtTheVolumesAgain: a volume that was attached after the place was
// decided on keeps the instance from a server that can't have it.
func TestAnAllocationLooksAtTheVolumesAgain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := groupBundle(t)
	group, err := s.testGroup(t, 1, "acme", 1, workload(16))
	require.NoError(t, err)
	_, err = s.PlanGroup(ctx, group, time.Second)
	require.NoError(t, err)
	s.volumeOf(t, "vol-1", "hel1")
	a := prego.VolumeAttachment{AttachmentID: "vat-1", VolumeID: "vol-1", GroupID: group, MountPath: "/data"}
	_, err = s.AttachVolume(ctx, a, "test")
	require.NoError(t, err)
	got, err := s.Allocate(ctx, prego.InstancePlace{GroupID: group, ServerID: "node-1"}, time.Hour)
	require.NoError(t, err)
	require.Equal(t, prego.AllocationLost, got.Outcome)
	require.NoError(t, s.DetachVolume(ctx, "vol-1", "vat-1", "test"))
	got, err = s.Allocate(ctx, prego.InstancePlace{GroupID: group, ServerID: "node-1"}, time.Hour)
	require.NoError(t, err)
	require.Equal(t, prego.Allocated, got.Outcome)
	// A step that comes late finds the attachment ended, and brings the volume nowhere.
	require.Error(t, s.AttachedTo(ctx, "vat-1", "node-1"))
	left, err := s.LeftAttached(ctx, "vol-1")
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, s.AttachedTo(ctx, "vat-1", ""))
}
