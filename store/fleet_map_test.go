package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/server"
)

func TestFleetMapGroupsSimilarServers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url := pgtest.URL(t)
	pgtest.FillLarge(t, url, 300,
		`UPDATE servers SET server_type = 'cx33'`,
		`INSERT INTO provider_catalogs (provider, document, refreshed_at) VALUES ('hetzner', '{"server_types": [{"name": "cx33", "memory_gb": 8}]}', now())`,
		`UPDATE servers SET memory_pct = NULL WHERE server_id = 's-2'`,
		`UPDATE servers SET memory_pct = 95 WHERE server_id = 's-3'`,
		`UPDATE servers SET agent_status = 'disconnected' WHERE server_id = 's-4'`,
		`UPDATE servers SET cordoned_at = now() WHERE server_id = 's-5'`,
		`UPDATE servers SET status = 'terminated' WHERE server_id = 's-6'`)
	pool, err := Open(t.Context(), url, 4, nil)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := New(pool)
	of := func(q server.FleetMapQuery) (tiles []server.FleetTile, byID map[string]server.FleetTile, groups []server.FleetTile) {
		tiles, err := s.FleetMap(ctx, q)
		require.NoError(t, err)
		byID = map[string]server.FleetTile{}
		n := 0
		for _, v := range tiles {
			n += v.Servers
			require.Equal(t, int64(v.Servers)*8192, v.MemoryMB)
			if v.ServerID == "" {
				groups = append(groups, v)
				require.Greater(t, v.Total, server.FleetMapMost)
			} else {
				require.Equal(t, 1, v.Servers)
				byID[string(v.ServerID)] = v
			}
		}
		want := `servers WHERE status <> 'terminated'`
		if q.Region != "" {
			want += ` AND region = '` + string(q.Region) + `'`
		}
		require.Equal(t, count(t, s, want), n)
		return tiles, byID, groups
	}
	_, byID, groups := of(server.FleetMapQuery{})
	require.NotEmpty(t, groups)
	require.Contains(t, byID, "s-0", "shards are few")
	require.NotContains(t, byID, "s-3", "app servers outside fleets are many")
	seen := map[string]bool{}
	for _, g := range groups {
		seen[g.State+" "+g.Fill+" "+g.Alarm] = true
	}
	require.True(t, seen["active 90-100 memory_full"] && seen["silent 0-25 agent_silent"] && seen["cordoned 0-25 "] && seen["active 0-25 "], "%v", seen)

	_, byID, groups = of(server.FleetMapQuery{Region: "eu", Expand: &server.FleetInRegion{Region: "eu"}})
	require.Empty(t, groups)
	require.Equal(t, "agent_silent", byID["s-4"].Alarm)
	require.True(t, byID["s-5"].Cordoned)
	require.Nil(t, byID["s-2"].MemoryPct)
	require.NotContains(t, byID, "s-6")
}
