package activities_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/objects"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/store"
)

// putsNothing fails before an object is stored.
type putsNothing struct{ activities.ObjectStorage }

var errNotPut = errors.New("not stored")

func (putsNothing) Put(context.Context, string, []byte) error { return errNotPut }

func newVault(t *testing.T) activities.BackupVault {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, token.InitKeys(dir))
	vault, err := token.OpenSealing(dir, token.SealBackups)
	require.NoError(t, err)
	return vault
}

// TestTheRedoLogIsKept in a real storage: each entry once, also if the storage or the worker fails between the commit
// and the object; a database that lacks entries is told from one that failed over; and nothing but the log is believed.
func TestTheRedoLogIsKept(t *testing.T) {
	t.Parallel()
	ctx, now := context.Background(), time.Now()
	s := s3test.Start(t)
	storage, err := objects.New(objects.Config{
		Endpoint: s.Endpoint, Bucket: s.Bucket, Region: s.Region, AccessKey: s.AccessKey, SecretKey: s.SecretKey, PathStyle: true,
		MayDelete: s3test.MayDelete,
	})
	require.NoError(t, err)
	vault := newVault(t)
	open := func() (*activities.RedoLog, func(sql string, args ...any)) {
		pool := pgtest.Pool(t)
		return &activities.RedoLog{
				Store: store.New(pool), Objects: storage, Vault: vault, Environment: "test", Now: func() time.Time { return now },
			}, func(sql string, args ...any) {
				_, err := pool.Exec(ctx, sql, args...)
				require.NoError(t, err)
			}
	}
	live, change := open()
	org := func(n int) {
		change(`INSERT INTO orgs (org_id, tier, created_by) VALUES ($1, 'enterprise', 'test')`, fmt.Sprintf("org-%d", n))
	}
	saves := func(want int64) {
		t.Helper()
		n, err := live.Save(ctx)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	why, err := live.Verify(ctx, true)
	require.NoError(t, err)
	require.Empty(t, why)
	saves(0)
	org(1)
	live.Objects = putsNothing{storage}
	_, err = live.Save(ctx)
	require.ErrorIs(t, err, errNotPut)
	org(2) // in the next entry: this one is sealed
	live.Objects = storage
	saves(1)
	saves(2)
	org(3)
	saves(3)
	saves(0)

	// A database that failed over lacks nothing. The former one has a lower epoch.
	epoch := func(l *activities.RedoLog) int64 {
		s, err := l.Store.RedoTrust(ctx)
		require.NoError(t, err)
		return s.Epoch
	}
	require.Zero(t, epoch(live))
	change(`UPDATE redo SET lineage = 'another'`)
	why, err = live.Verify(ctx, false)
	require.NoError(t, err)
	require.Empty(t, why)
	require.EqualValues(t, 3, epoch(live))

	// A restored one does, on any timeline. It is completed.
	restored, onRestored := open()
	onRestored(`INSERT INTO orgs (org_id, tier, created_by) VALUES ('org-9', 'enterprise', 'test')`)
	n, err := restored.Save(ctx)
	require.NoError(t, err)
	require.Zero(t, n, "nothing is overwritten, noticed or not")
	why, err = restored.Verify(ctx, true)
	require.NoError(t, err)
	require.Contains(t, why, "ends with entry 0 of its redo log, which has 3")
	again, err := restored.Verify(ctx, false)
	require.NoError(t, err)
	require.Equal(t, why, again)
	n, err = restored.Save(ctx)
	require.NoError(t, err)
	require.Zero(t, n, "nothing is saved meanwhile")
	done, err := restored.Apply(ctx, func(ctx context.Context, _ string) (int, error) {
		_, err := restored.Store.GetOrg(ctx, "org-2")
		require.Error(t, err, "runs end before a row changes")
		return 5, nil
	}, false)
	require.NoError(t, err)
	require.Equal(t, int64(3), done.Newest)
	require.Len(t, done.Entries, 3)
	require.Equal(t, 5, done.Ended)
	require.Contains(t, done.Changes, ops.RedoChange{Table: "orgs", Name: "org-2", Is: "is added: tier enterprise"})
	why, err = restored.Verify(ctx, true)
	require.NoError(t, err)
	require.Empty(t, why)
	n, err = restored.Save(ctx)
	require.NoError(t, err)
	require.Equal(t, int64(4), n, "what was changed before it was noticed is logged")
	_, err = restored.Verify(ctx, true)
	require.NoError(t, err)
	require.EqualValues(t, 3, epoch(restored), "no worker's start raises it")

	// An entry that is missing, or that somebody else wrote, is named.
	lacking, _ := open()
	second := s.File("redo/test/000000000002")
	kept, err := os.ReadFile(second)
	require.NoError(t, err)
	third, err := os.ReadFile(s.File("redo/test/000000000003"))
	require.NoError(t, err)
	require.NoError(t, storage.Put(ctx, "redo/test/000000000002", third))
	_, _, err = lacking.Missing(ctx)
	require.ErrorContains(t, err, "entry 2 of the redo log; the database lacks 1 to 4: it was not made by this installation")
	require.NoError(t, os.Remove(second))
	_, newest, err := lacking.Missing(ctx)
	require.ErrorContains(t, err, "entry 2 of the redo log")
	require.Equal(t, int64(4), newest)
	require.NoError(t, storage.Put(ctx, "redo/test/000000000002", kept))

	// Entries older than any base backup go.
	gone, err := live.Prune(ctx)
	require.NoError(t, err)
	require.Zero(t, gone)
	now = now.AddDate(0, 0, 36)
	gone, err = live.Prune(ctx)
	require.NoError(t, err)
	require.Equal(t, 4, gone)
}
