package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/edge"
	"github.com/prego/prego/lab/pgtest"
)

// TestAnEdgeKeepsItsDocumentWhenTheDatabaseIsRestored: to an earlier moment. No version comes from a clock. The edge
// has a later version than the rows: no document replaces it until one is made from a change, or a process waits for it.
// The version of that one is above all that edges report.
func TestAnEdgeKeepsItsDocumentWhenTheDatabaseIsRestored(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s, ctx := New(pool), t.Context()
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := pool.Exec(ctx, sql, args...)
		require.NoError(t, err)
	}
	for _, id := range []string{"edge-1", "edge-2"} {
		exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id,
				created_by)
			VALUES ($1, '', 'edge', 'eu', 'hetzner', '{}', 'active', 'w', 'test')`, id)
	}
	snapshot := func() string {
		t.Helper()
		s, err := value[string](ctx, pool, `SELECT pg_current_snapshot()::text`)
		require.NoError(t, err)
		return s
	}
	var last string
	publish := func(digest string, awaited bool) int64 {
		t.Helper()
		last = digest
		version, ok, err := s.PublishEdges(ctx, "eu", []byte(digest), snapshot(), awaited)
		require.NoError(t, err)
		require.True(t, ok)
		return version
	}
	asks := func(id string, version int64) {
		t.Helper()
		network, err := s.EdgeAsks(ctx, prego.ServerID(id), version)
		require.NoError(t, err)
		require.Equal(t, "eu", network)
	}
	takes := func(id string, version int64) {
		t.Helper()
		require.NoError(t, s.EdgeOffered(ctx, prego.ServerID(id), version, snapshot()))
		_, err := s.EdgeApplied(ctx, edge.Applied{ServerID: prego.ServerID(id), Version: version})
		require.NoError(t, err)
	}
	behind := func() []string {
		t.Helper()
		_, barrier, err := s.EdgeBarrier(ctx, []prego.ServerID{"edge-1"})
		require.NoError(t, err)
		publish(last, false) // which has seen the barrier
		list, err := s.EdgesBehind(ctx, []string{"eu"}, barrier)
		require.NoError(t, err)
		return list
	}
	asks("edge-1", 0)
	asks("edge-2", 0)
	require.EqualValues(t, 1, publish("one", false))
	require.EqualValues(t, 1, publish("one", true), "the same content has the same version")
	require.EqualValues(t, 2, publish("two", false))
	takes("edge-1", 2)
	takes("edge-2", 2)
	asks("edge-1", 2)
	require.EqualValues(t, 2, publish("two", true))

	restored := func(digest string) {
		t.Helper()
		exec(`UPDATE edge_documents SET version = 2, digest = $1`, []byte(digest))
		exec(`UPDATE edges SET version = 2, offered = 2`)
	}
	// The edges have 7 and 8, and the first to report is the one with 7.
	restored("two")
	asks("edge-1", 7)
	require.EqualValues(t, 2, publish("two", false), "the edges keep what they have")
	require.EqualValues(t, 8, publish("three", false), "a change replaces what has been reported")
	takes("edge-1", 8)
	asks("edge-2", 8)
	require.EqualValues(t, 8, publish("three", false))
	require.Equal(t, []string{"eu/edge-2"}, behind(), "it has another document by that number")
	require.EqualValues(t, 9, publish("four", false))
	takes("edge-1", 9)
	takes("edge-2", 9)
	require.Empty(t, behind())

	// A process that waits for edges needs them to have the rows' document, whatever they have.
	restored("two")
	asks("edge-2", 9)
	require.EqualValues(t, 10, publish("two", true))
	require.EqualValues(t, 10, publish("two", true), "by another gateway")
	exec(`DELETE FROM edge_documents`)
	require.EqualValues(t, 1, publish("two", false))
	require.EqualValues(t, 10, publish("two", true))
	takes("edge-2", 10)

	exec(`UPDATE edges SET version = 1::bigint << 60`)
	require.EqualValues(t, 11, publish("five", false), "an edge can't use the numbers up")
}
