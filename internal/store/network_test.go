package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/pgtest"
	"github.com/prego/prego/server"
)

func TestMembersOfANetworkAreCounted(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	for _, id := range []string{"n1", "n2"} {
		exec(t, s, `INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range) VALUES ($1, 'hetzner', $1, 1, '10.64.0.0/24')`, id)
	}
	members := func() map[prego.NetworkID]int {
		all, err := s.Networks(ctx)
		require.NoError(t, err)
		out := map[prego.NetworkID]int{}
		for _, n := range all {
			out[n.NetworkID] = n.Members
		}
		return out
	}
	for _, id := range []string{"a", "b", "c"} {
		insertServer(t, s, id, "active")
	}
	exec(t, s, `UPDATE servers SET network_id = 'n1', private_address = '10.64.0.2' WHERE server_id = 'a'`)
	exec(t, s, `UPDATE servers SET network_id = 'n1' WHERE server_id IN ('b', 'c')`)
	require.Equal(t, map[prego.NetworkID]int{"n1": 3, "n2": 0}, members())
	exec(t, s, `UPDATE servers SET network_id = 'n2' WHERE server_id = 'b'`)
	require.Equal(t, map[prego.NetworkID]int{"n1": 2, "n2": 1}, members())
	exec(t, s, `UPDATE servers SET status = 'terminated' WHERE server_id = 'c'`)
	require.Equal(t, map[prego.NetworkID]int{"n1": 1, "n2": 1}, members())
	exec(t, s, `UPDATE servers SET network_id = NULL WHERE server_id = 'c'`)
	exec(t, s, `UPDATE servers SET status = 'failed' WHERE server_id = 'a'`)
	require.Equal(t, map[prego.NetworkID]int{"n1": 1, "n2": 1}, members())

	in, err := s.NetworkMembers(ctx, "n1", prego.RoleApp)
	require.NoError(t, err)
	require.Equal(t, []server.NetworkMember{{ServerID: "a", Role: prego.RoleApp, Region: prego.RegionEU, Status: server.Failed, NetworkID: "n1", PrivateAddress: "10.64.0.2"}}, in)
	for _, role := range []prego.Role{prego.RoleNode, prego.RoleDBShard} {
		in, err = s.NetworkMembers(ctx, "n1", role)
		require.NoError(t, err)
		require.Empty(t, in)
	}
	in, err = s.NetworkMembers(ctx, "n2")
	require.NoError(t, err)
	require.Empty(t, in, "it has no address there yet")

	srv, err := s.GetServer(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, prego.NetworkID("n1"), srv.NetworkID)
	require.Equal(t, "10.64.0.2", srv.PrivateAddress)
	for id, want := range map[prego.ServerID]string{"a": "10.64.0.2", "b": ""} {
		address, err := s.PrivateAddress(ctx, id)
		require.NoError(t, err)
		require.Equal(t, want, address)
	}
	_, err = s.PrivateAddress(ctx, "nobody")
	require.Equal(t, prego.CodeServerNotFound, prego.CodeOf(err))
	_, err = s.Network(ctx, "n3")
	require.Equal(t, prego.CodeNetworkUnknown, prego.CodeOf(err))
}
