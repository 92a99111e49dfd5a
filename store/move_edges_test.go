package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/edge"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// TestEdgesLearnOfMovesToAnotherNetwork: where a site was is in the feed from the switch until the move ends, and
// its name leads to the new edges as soon as they know it.
func TestEdgesLearnOfMovesToAnotherNetwork(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := dataMoveSetup(t)
	b.exec(`INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range) SELECT 'other', infra_provider, zone, 9, ip_range FROM networks LIMIT 1`)
	home := prego.NetworkID(textOf(t, b.s, `SELECT network_id FROM servers WHERE server_id = 'app-1'`))
	b.exec(`UPDATE servers SET network_id = 'other' WHERE server_id IN ('app-2', 'db-2', 'redis-2')`)
	b.exec(`UPDATE tenant_allocations SET site_name = 't-1.example.com'`)
	first, err := b.s.EdgeChanges(ctx, "")
	require.NoError(t, err)
	since := first.Since
	told := func() []edge.Site {
		t.Helper()
		c, err := b.s.EdgeChanges(ctx, since)
		require.NoError(t, err)
		since = c.Since
		require.False(t, c.Full)
		return c.Sites
	}
	away := func() []tenant.SiteAt {
		t.Helper()
		sites, err := b.s.SitesAway(ctx, home, []string{"edges"}, "example.com")
		require.NoError(t, err)
		return sites
	}
	b.freezes("mov-1", tenant.MoveAsked{To: "any", Shard: "any", Pool: "any"}, everywhere())
	require.Empty(t, told())
	require.NoError(t, b.s.SwitchMove(ctx, "mov-1", 0))
	run, err := b.s.MoveRecord(ctx, "mov-1")
	require.NoError(t, err)
	require.True(t, run.Crosses)
	site := edge.Site{TenantID: "t-1", ServerID: "app-2", Name: "t-1.example.com", Names: []string{}, LeftNetwork: string(home), LeftAddress: "10.64.0.2"}
	require.Equal(t, []edge.Site{site}, told())
	require.Empty(t, away(), "the new edges may not know it yet")
	require.NoError(t, b.s.MoveOpened(ctx, "mov-1"))
	site.Open = true
	require.Equal(t, []edge.Site{site}, told())
	require.Equal(t, []tenant.SiteAt{{Site: "t-1.example.com", NetworkID: "other"}}, away())
	_, err = b.s.FinishMove(ctx, "mov-1", tenant.MoveDone, "", "")
	require.NoError(t, err)
	site.LeftNetwork, site.LeftAddress, site.Open = "", "", false
	require.Equal(t, []edge.Site{site}, told())
	require.Equal(t, []tenant.SiteAt{{Site: "t-1.example.com", NetworkID: "other"}}, away())

	// And home again: its record goes when the edges at home know it.
	p := everywhere()
	p.ServerID, p.ShardID, p.PoolID = "app-1", "db", "redis"
	b.freezes("mov-2", tenant.MoveAsked{To: "any", Shard: "any", Pool: "any"}, p)
	require.NoError(t, b.s.SwitchMove(ctx, "mov-2", 0))
	require.Len(t, away(), 1)
	require.NoError(t, b.s.MoveOpened(ctx, "mov-2"))
	require.Empty(t, away())
}

func textOf(t testing.TB, s *Store, query string) string {
	t.Helper()
	v, err := value[string](context.Background(), s.pool, query)
	require.NoError(t, err)
	return v
}

// TestMovesRequireReachableEdges: to a network without edges, unless there are none here either. A
// request is refused immediately, and a decision is checked again.
func TestMovesRequireReachableEdges(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := dataMoveSetup(t)
	b.exec(`INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range) SELECT 'other', infra_provider, zone, 9, ip_range FROM networks LIMIT 1`)
	home := textOf(t, b.s, `SELECT network_id FROM servers WHERE server_id = 'app-1'`)
	b.exec(`UPDATE servers SET network_id = 'other' WHERE server_id IN ('app-2', 'db-2', 'redis-2')`)
	edgeIn := func(id, network, region, status string) {
		b.exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, network_id) VALUES ($1, '', 'edge', $2, 'hetzner', '{}', $3, 'w', 'test', $4)`, id, region, status, network)
	}
	all := tenant.MoveAsked{ID: "mov-1", TenantID: "t-1", By: "ann", To: "app-2", Shard: "any", Pool: "any"}
	abroad := tenant.MoveAsked{ID: "mov-2", TenantID: "t-1", By: "ann", Region: "us"}
	refused := func(a tenant.MoveAsked, field string) {
		t.Helper()
		_, err := b.s.RequestMove(ctx, a)
		code(t, err, prego.CodeNetworkWithoutEdges)
		var e *prego.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, field, e.Field)
		require.Contains(t, e.Message, "prego fleet create")
	}
	edgeIn("edge-1", home, "eu", "failed")
	edgeIn("edge-2", "other", "eu", "provisioning")
	refused(all, "to_server_id")
	refused(abroad, "region")
	changes, err := b.s.PlacementChanges(ctx, "", nil)
	require.NoError(t, err)
	require.ElementsMatch(t, []placement.EdgeNetwork{{Network: home}, {Network: "other"}}, changes.Edges)
	b.exec(`UPDATE servers SET status = 'active' WHERE server_id = 'edge-2'`)
	_, err = b.s.RequestMove(ctx, all)
	require.NoError(t, err)
	p := everywhere()
	b.exec(`UPDATE servers SET status = 'draining' WHERE server_id = 'edge-2'`)
	ok, err := b.s.ReserveMove(ctx, "mov-1", p)
	require.NoError(t, err)
	require.False(t, ok, "its edges left meanwhile")
	b.exec(`UPDATE servers SET status = 'terminated' WHERE role = 'edge'`)
	ok, err = b.s.ReserveMove(ctx, "mov-1", p)
	require.NoError(t, err)
	require.True(t, ok, "it has no edges here either")
	_, err = b.s.FinishMove(ctx, "mov-1", tenant.MoveCancelled, "", "")
	require.NoError(t, err)
	_, err = b.s.RequestMove(ctx, abroad)
	require.NoError(t, err)
}
