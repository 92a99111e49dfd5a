package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/edge"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops/attention"
)

// TestOneEdgeGetsADocumentFirst: the others get it when that edge has it and does not find sites closed that should be
// open. If it does not acknowledge, another becomes the first.
func TestOneEdgeGetsADocumentFirst(t *testing.T) {
	t.Parallel()
	s := groupBundle(t)
	ctx := context.Background()
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := s.pool.Exec(ctx, sql, args...)
		require.NoError(t, err)
	}
	for _, sql := range []string{pgtest.WellInstallation, `DELETE FROM site_health; DELETE FROM edges`} {
		runEach(t, s.pool, sql)
	}
	snapshot := func() (text string) {
		t.Helper()
		require.NoError(t, s.pool.QueryRow(ctx, `SELECT pg_current_snapshot()::text`).Scan(&text))
		return text
	}
	publish := func(digest string) (version int64) {
		t.Helper()
		version, ok, err := s.PublishEdges(ctx, "eu", []byte(digest), snapshot(), false)
		require.NoError(t, err)
		require.True(t, ok)
		return version
	}
	takes := func(id prego.ServerID, version int64, closed ...string) (released int64) {
		t.Helper()
		require.NoError(t, s.EdgeOffered(ctx, id, version, snapshot()))
		released, err := s.EdgeApplied(ctx, edge.Applied{ServerID: id, Version: version, Closed: closed})
		require.NoError(t, err)
		return released
	}
	turn := func(first prego.ServerID, released int64, why string) {
		t.Helper()
		turns, err := s.EdgeTurns(ctx, []string{"eu"})
		require.NoError(t, err)
		require.Len(t, turns, 1)
		require.Equal(t, first, turns[0].First, why)
		require.Equal(t, released, turns[0].Released, why)
	}
	asks := func(ids ...prego.ServerID) {
		t.Helper()
		for _, id := range ids {
			_, err := s.EdgeAsks(ctx, id, 0)
			require.NoError(t, err)
		}
	}
	const a, b, c = "edge-a", "edge-b", "edge-c"
	for _, id := range []prego.ServerID{a, b, c} {
		exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id,
				created_by)
			VALUES ($1, '', 'edge', 'eu', 'hetzner', '{}', 'active', 'w', 'test')`, id)
	}
	asks(b)
	require.EqualValues(t, 1, publish("one"))
	turn(b, 0, "there is no other")
	exec(`UPDATE edges SET asked_at = now() - interval '41 seconds'`)
	turn("", 0, "none requests it")
	asks(b)
	require.EqualValues(t, 1, takes(b, 1, "t-1", "t-2"), "it holds back nothing")

	asks(a, c)
	require.EqualValues(t, 2, publish("two"))
	turn(b, 1, "the others do not have what is released")
	takes(a, 1)
	takes(c, 1)
	turn(a, 1, "")
	exec(`UPDATE edge_documents SET held_since = now() - interval '6 seconds'`)
	turn(b, 1, "the first did not acknowledge")
	require.EqualValues(t, 2, takes(b, 2))
	require.EqualValues(t, 3, publish("three"))
	turn(b, 2, "the first of before is behind")
	takes(a, 2)
	_, err := s.EdgeApplied(ctx, edge.Applied{ServerID: a, Version: 2, RefusedVersion: 3})
	require.NoError(t, err)
	turn(b, 2, "it refuses it")
	require.EqualValues(t, 3, takes(b, 3))
	takes(a, 3)
	takes(c, 3)

	// A wait for edges ends while they are behind with later changes.
	networks, barrier, err := s.EdgeBarrier(ctx, []prego.ServerID{a})
	require.NoError(t, err)
	behind := func() []string {
		t.Helper()
		list, err := s.EdgesBehind(ctx, networks, barrier)
		require.NoError(t, err)
		return list
	}
	require.EqualValues(t, 4, publish("with it"))
	require.EqualValues(t, 4, takes(a, 4))
	require.Equal(t, []string{"eu/edge-b", "eu/edge-c"}, behind())
	takes(b, 4)
	require.EqualValues(t, 5, publish("later"))
	require.Equal(t, []string{"eu/edge-c"}, behind())
	takes(c, 4)
	require.Empty(t, behind())
	require.EqualValues(t, 5, takes(a, 5))
	takes(b, 5)
	takes(c, 5)

	// The database was restored: it does not know some tenants, and leads to others where they no longer are.
	require.EqualValues(t, 6, publish("four"))
	turn(a, 5, "")
	require.EqualValues(t, 5, takes(a, 6, "t-2", "t-3", "t-8", "unknown"))
	exec(`UPDATE edge_documents SET held_since = now() - interval '7 seconds'`)
	turn(a, 5, "it closes them at no other edge")
	line := func() (out []attention.Item) {
		t.Helper()
		all, _, err := s.Attention(ctx, attention.Limits{})
		require.NoError(t, err)
		for _, i := range attention.List(all) {
			if i.Kind == attention.EdgeBehind {
				out = append(out, i)
			}
		}
		return out
	}
	found := line()
	require.Len(t, found, 1)
	require.Equal(t, attention.Critical, found[0].Severity)
	require.Equal(t, "it alone has document 6, which closes 3 of 0 sites that answer: shop-2, shop-3, unknown. "+
		"The other edges keep document 5", found[0].Message)
	require.EqualValues(t, 7, publish("five"))
	require.EqualValues(t, 5, takes(a, 7, "t-2", "t-3", "unknown"), "a later one closes them as well")
	require.Len(t, line(), 1)

	exec(`UPDATE tenants SET state = 'suspended' WHERE tenant_id IN ('t-2', 't-3')`)
	exec(`INSERT INTO site_health (tenant_id, server_id, up, since, seen_from) SELECT 't-' || i, $1, true, now(), now()
		FROM generate_series(4, 5) i`, b)
	require.EqualValues(t, 7, takes(a, 7, "t-2", "t-3", "unknown"), "two should be closed, and one site is not many")
	require.Empty(t, line())
	turn(a, 7, "all may have it")
}
