package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// TestCordonClosesServerToTenants in the snapshot, in the transaction that reserves, and in the count of capacity.
func TestCordonClosesServerToTenants(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	for _, id := range []string{"app", "db-shard", "redis-pool"} {
		exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by)
			VALUES ($1, '', $1, 'eu', 'hetzner', '{}', 'provisioning', 'connected', 'w', 'test')`, id)
		exec(t, s, `UPDATE servers SET status = 'active' WHERE server_id = $1`, id)
	}
	_, err := s.PlanRefill(ctx, "app", "sites.test", time.Minute, time.Minute)
	require.NoError(t, err)
	exec(t, s, `DELETE FROM site_pool`)
	_, _, err = s.CreateTenant(ctx, tenantRequest(t, "one", prego.PlanStarter), "t-1", tenant.ModeShared, "", "someone")
	require.NoError(t, err)
	room := func(role prego.Role) int {
		short, err := s.ShortOf(ctx, "eu", role, 20, 70, tenant.MeasuredLimits{})
		require.NoError(t, err)
		return short.Room[""]
	}
	low := func() []string {
		ids, err := s.LowPools(ctx, time.Hour)
		require.NoError(t, err)
		return ids
	}
	reserve := func() (tenant.ReserveResult, error) {
		return s.Reserve(ctx, tenant.Reservation{
			TenantID: "t-1", Generation: 1, AppServerID: "app", DBShardID: "db-shard", RedisPoolID: "redis-pool", Mode: tenant.ModeShared,
			MemoryPctMax: 70, MaxTenants: 20, Decision: []byte(`{}`), Policy: []byte(`{}`),
		})
	}
	require.Equal(t, []string{"app"}, low())
	for _, id := range []prego.ServerID{"app", "db-shard", "redis-pool"} {
		role := prego.Role(id)
		require.Positive(t, room(role), id)
		srv, err := s.CordonServer(ctx, id, "alice", "disk errors")
		require.NoError(t, err)
		require.NotNil(t, srv.CordonedAt)
		require.Equal(t, []string{"alice", "disk errors", "active"}, []string{srv.CordonedBy, srv.CordonReason, string(srv.Status)})

		c, err := s.PlacementChanges(ctx, "", nil)
		require.NoError(t, err)
		closed := map[prego.Role]bool{prego.RoleApp: c.Servers[0].Cordoned, prego.RoleDBShard: c.Shards[0].Cordoned, prego.RoleRedisPool: c.Pools[0].Cordoned}
		require.Equal(t, map[prego.Role]bool{prego.RoleApp: role == prego.RoleApp, prego.RoleDBShard: role == prego.RoleDBShard, prego.RoleRedisPool: role == prego.RoleRedisPool}, closed)
		require.Equal(t, []server.Status{server.Active, server.Active, server.Active}, []server.Status{c.Servers[0].Status, c.Shards[0].Status, c.Pools[0].Status}, "a cordon does not change the status")
		require.Zero(t, room(role), id)
		if role != prego.RoleRedisPool {
			require.Empty(t, low(), id)
			sites, err := s.PlanRefill(ctx, "app", "sites.test", time.Minute, time.Minute)
			require.NoError(t, err)
			require.Empty(t, sites, id)
		}
		out, err := reserve()
		require.True(t, err != nil || out.Outcome == tenant.ReserveLost, "%v", out)
		// Regardless of the shard's and the pool's own rows.
		exec(t, s, `UPDATE db_shards SET status = 'active'`)
		exec(t, s, `UPDATE redis_pools SET status = 'active'`)
		out, err = reserve()
		require.True(t, err != nil || out.Outcome == tenant.ReserveLost, "%v", out)

		n, err := s.CordonedServers(ctx)
		require.NoError(t, err)
		require.Equal(t, []server.Count{{Region: "eu", Role: role, N: 1}}, n)
		srv, err = s.UncordonServer(ctx, id, "bob")
		require.NoError(t, err)
		require.Nil(t, srv.CordonedAt)
		require.Empty(t, srv.CordonedBy+srv.CordonReason)
		require.Positive(t, room(role), id)
	}
	out, err := reserve()
	require.NoError(t, err)
	require.Equal(t, tenant.ReservePlaced, out.Outcome)
}

func TestCordonsAreReportedOnceAndRefusedTooLate(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := groupBundle(t)
	steps := func() (out []string) {
		events, err := s.ServerEvents(ctx, "node-1")
		require.NoError(t, err)
		for _, e := range events {
			out = append(out, string(e.Step)+" "+e.Message)
		}
		return out
	}
	for range 2 {
		_, err := s.CordonServer(ctx, "node-1", "alice", "")
		require.NoError(t, err)
	}
	first, err := s.CordonServer(ctx, "node-1", "bob", "noise")
	require.NoError(t, err)
	require.Equal(t, "bob", first.CordonedBy)
	for range 2 {
		_, err = s.UncordonServer(ctx, "node-1", "bob")
		require.NoError(t, err)
	}
	require.Equal(t, []string{"cordoned by alice", "cordoned by bob: noise", "uncordoned by bob"}, steps())

	_, err = s.CordonServer(ctx, "nope", "alice", "")
	code(t, err, prego.CodeServerNotFound)
	_, err = s.UncordonServer(ctx, "nope", "alice")
	code(t, err, prego.CodeServerNotFound)
	for _, status := range []string{"draining", "terminated"} {
		exec(t, s, `UPDATE servers SET status = $1`, status)
		_, err = s.CordonServer(ctx, "node-1", "alice", "")
		code(t, err, prego.CodeInvalidTransition)
		_, err = s.UncordonServer(ctx, "node-1", "alice")
		code(t, err, prego.CodeInvalidTransition)
	}
}

// TestOperatorsAndTheControlPlaneCloseAServerIndependently: a server reopened by one stays closed for the other.
func TestOperatorsAndTheControlPlaneCloseAServerIndependently(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	newFleet(t, s, "pool", nil, nil)
	grown(t, s, "pool", 1)
	st, err := s.FleetState(ctx, "pool")
	require.NoError(t, err)
	id := st.Members[0].ServerID
	shown := func() (closed bool, by string) {
		srv, err := s.GetServer(ctx, id)
		require.NoError(t, err)
		return srv.CordonedAt != nil, srv.CordonedBy
	}
	in := ask(t, s, "pool", server.ClusterScaleIn, `{}`)
	begin(t, s, "pool")
	require.Len(t, batch(t, s, "pool", in.Seq, 1), 1)
	_, err = s.UncordonServer(ctx, id, "alice")
	code(t, err, prego.CodeInvalidTransition)

	_, err = s.CordonServer(ctx, id, "alice", "")
	require.NoError(t, err)
	require.NoError(t, s.Uncordon(ctx, id)) // the fleet keeps it
	closed, by := shown()
	require.True(t, closed, "alice has not opened it")
	require.Equal(t, "alice", by)
	require.Len(t, batch(t, s, "pool", in.Seq, 1), 1) // it must be removed again
	_, err = s.UncordonServer(ctx, id, "alice")
	require.NoError(t, err)
	closed, by = shown()
	require.True(t, closed, "the fleet is about to remove it")
	require.Empty(t, by)
	_, err = s.CancelFleetAction(ctx, "pool", in.Seq, "alice")
	require.NoError(t, err)
	require.Empty(t, batch(t, s, "pool", in.Seq, 1))
	closed, _ = shown()
	require.False(t, closed)
}

func TestCordonedServerTakesNoInstance(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := groupBundle(t)
	id, err := s.testGroup(t, 1, "acme", 1, specOf(16))
	require.NoError(t, err)
	_, err = s.PlanGroup(ctx, prego.GroupID(id), time.Second)
	require.NoError(t, err)
	_, err = s.CordonServer(ctx, "node-1", "alice", "")
	require.NoError(t, err)
	place := func() workload.AllocationOutcome {
		got, err := s.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(id), ServerID: "node-1"}, time.Hour)
		require.NoError(t, err)
		return got.Outcome
	}
	require.Equal(t, workload.AllocationLost, place())
	servers, err := s.InstanceServers(ctx, "eu", nil)
	require.NoError(t, err)
	require.True(t, servers[0].Active && servers[0].Cordoned)
	_, err = s.UncordonServer(ctx, "node-1", "alice")
	require.NoError(t, err)
	require.Equal(t, workload.Allocated, place())
}
