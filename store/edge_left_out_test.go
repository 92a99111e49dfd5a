package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/edge"
)

// TestLeftOutSinceFirstReport: a name has been left out since the first report of it, whatever later reports add,
// until the first report without it. Refused documents also keep the time of the first refusal.
func TestLeftOutSinceFirstReport(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	exec := func(sql string) {
		t.Helper()
		_, err := s.pool.Exec(ctx, sql)
		require.NoError(t, err)
	}
	exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by)
		SELECT 'edge-' || i, '', 'edge', 'eu', 'hetzner', '{}', 'provisioning', 'w-' || i, 'test' FROM generate_series(1, 2) i`)
	exec(`INSERT INTO edges (server_id, network) SELECT server_id, 'n' FROM servers WHERE role = 'edge'`)
	host := func(name, reason string) wire.EdgeLeftOut {
		return wire.EdgeLeftOut{Kind: wire.EdgeHostPart, Name: name, Tenant: "t-1", Reason: reason}
	}
	report := func(version, refused int64, out ...wire.EdgeLeftOut) {
		t.Helper()
		_, err := s.EdgeApplied(ctx, edge.Applied{
			ServerID: "edge-1", Version: version, RefusedVersion: refused, LeftOut: out,
		})
		require.NoError(t, err)
	}
	type row struct {
		Name, Reason string
		Since        time.Time
	}
	rows := func() (out map[string]row) {
		t.Helper()
		list, err := collect[row](ctx, s, "left out", `SELECT name, reason, since FROM edge_left_out WHERE server_id = 'edge-1'`)
		require.NoError(t, err)
		out = map[string]row{}
		for _, r := range list {
			out[r.Name] = r
		}
		return out
	}
	_, err := s.EdgeApplied(ctx, edge.Applied{
		ServerID: "edge-2", Version: 1, LeftOut: []wire.EdgeLeftOut{host("a", "no")},
	})
	require.NoError(t, err)
	report(1, 0, host("a", "no"), host("b", "no"), host("b", "twice")) // the name has two addresses
	first := rows()
	require.Len(t, first, 2)
	report(2, 0, host("a", "still no"), host("c", "no"))
	second := rows()
	require.Equal(t, first["a"].Since, second["a"].Since)
	require.Equal(t, "still no", second["a"].Reason)
	require.NotContains(t, second, "b")
	require.True(t, second["c"].Since.After(first["a"].Since))
	report(3, 0)
	require.Empty(t, rows())
	others, err := value[int](ctx, s.pool, `SELECT count(*) FROM edge_left_out`)
	require.NoError(t, err)
	require.Equal(t, 1, others, "another edge's names are separate")

	since := func() (at *time.Time) {
		t.Helper()
		at, err := value[*time.Time](ctx, s.pool, `SELECT refused_since FROM edges WHERE server_id = 'edge-1'`)
		require.NoError(t, err)
		return at
	}
	require.Nil(t, since())
	report(3, 4)
	began := since()
	require.NotNil(t, began)
	report(3, 5)
	require.Equal(t, began, since())
	report(6, 0)
	require.Nil(t, since())
}
