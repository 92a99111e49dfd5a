package devstack

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStandbyHasCommittedData kills a primary right after a commit.
func TestStandbyHasCommittedData(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dir, err := Scratch("prego-standby-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o777))
	primary, err := StartPostgres(ctx, PostgresConfig{Dir: filepath.Join(dir, "a")})
	require.NoError(t, err)
	t.Cleanup(primary.Kill)
	standby, err := StartStandby(ctx, PostgresConfig{Dir: filepath.Join(dir, "b")}, primary)
	require.NoError(t, err)
	t.Cleanup(standby.Kill)
	require.ErrorContains(t, standby.Execute(ctx, "CREATE TABLE t (n int)"), "read-only")
	require.NoError(t, primary.Execute(ctx, "CREATE TABLE t (n int)", "INSERT INTO t VALUES (7)"))
	primary.Kill()
	require.NoError(t, standby.Promote(ctx))
	var n int
	require.NoError(t, standby.Value(ctx, &n, "SELECT n FROM t"))
	require.Equal(t, 7, n)
	require.NoError(t, standby.Execute(ctx, "INSERT INTO t VALUES (8)"), "it does not wait for a standby")
	standby.Stop(10 * time.Second)
}
