package store

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/pgtest"
)

// TestEdgeVersionIsNeverReused restores the rows of documents to an earlier moment. An edge with a later
// document requests newer versions only, and would keep it if another document had the same version.
func TestEdgeVersionIsNeverReused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := New(pool)
	given := map[int64]string{}
	publish := func(digest string) int64 {
		t.Helper()
		var snapshot string
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT pg_current_snapshot()::text`).Scan(&snapshot))
		version, ok, err := s.PublishEdges(t.Context(), "eu", []byte(digest), snapshot)
		require.NoError(t, err)
		require.True(t, ok)
		if was := given[version]; was != "" {
			require.Equal(t, was, digest, "version %d", version)
		}
		given[version] = digest
		return version
	}
	// A restore takes longer than the millisecond that a version is worth.
	restored := func(statement string, args ...any) {
		t.Helper()
		require.Eventually(t, func() bool {
			var later bool
			err := pool.QueryRow(t.Context(), `SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint > $1`, slices.Max(slices.Collect(maps.Keys(given)))).Scan(&later)
			return err == nil && later
		}, 10*time.Second, time.Millisecond)
		_, err := pool.Exec(t.Context(), statement, args...)
		require.NoError(t, err)
	}
	first := publish("one")
	require.Equal(t, first, publish("one"), "the same document has the same version")
	require.Greater(t, publish("lost"), first)
	restored(`UPDATE edge_documents SET version = $1, digest = 'one'`, first)
	require.Greater(t, publish("another"), first)
	restored(`DELETE FROM edge_documents`)
	publish("before there was one")
	// A clock that was ahead does not stop versions from counting up.
	restored(`UPDATE edge_documents SET version = version + 86400000`)
	require.Greater(t, publish("by a clock behind it"), first+86400000)
}
