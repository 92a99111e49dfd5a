package store

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/server"
)

type peersBundle struct {
	t    testing.TB
	s    *Store
	exec func(sql string, args ...any)
}

func peersSetup(t testing.TB) *peersBundle {
	t.Helper()
	pool := pgtest.Pool(t)
	b := &peersBundle{t: t, s: New(pool)}
	b.exec = func(sql string, args ...any) {
		_, err := pool.Exec(context.Background(), sql, args...)
		require.NoError(t, err)
	}
	b.exec(`INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range) VALUES ('n-1', 'hetzner', 'eu-central', 1, '10.64.0.0/24'), ('n-2', 'hetzner', 'eu-central', 2, '10.64.1.0/24')`)
	b.exec(`INSERT INTO orgs (org_id, tier, created_by) VALUES ('o', 'enterprise', 'test')`)
	_, changed, err := b.s.SetEgress(context.Background(), []string{"203.0.113.7/32"}, time.Hour)
	require.NoError(t, err)
	require.True(t, changed)
	return b
}

func (b *peersBundle) server(id string, role prego.Role, address string) {
	b.exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, active_at, network_id, private_address)
		VALUES ($1, '', $2, 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', now(), 'n-1', $3::inet)`, id, role, address)
	switch role {
	case prego.RoleDBShard:
		b.exec(`INSERT INTO db_shards (shard_id, server_id, region, tenant_capacity) VALUES ($1, $1, 'eu', 10)`, id)
	case prego.RoleRedisPool:
		b.exec(`INSERT INTO redis_pools (pool_id, server_id, region, tenant_capacity) VALUES ($1, $1, 'eu', 10)`, id)
	}
}

func (b *peersBundle) place(tenant, app string) {
	b.exec(`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by)
		VALUES ($1, $1, 'o', 'eu', 'starter', 10, 10, 'shared', '', 'active', 'test')`, tenant)
	b.exec(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm) VALUES ($1, $2, 'db', 'redis', $1, $1, 'hetzner', 'best_fit')`, tenant, app)
}

func peersPorts(prego.Role) (agent, docker int) { return 8443, 2376 }

// settle makes all that is due.
func (b *peersBundle) settle() {
	b.t.Helper()
	for {
		n, err := b.s.MakeDuePeers(context.Background(), 3, peersPorts)
		require.NoError(b.t, err)
		if n == 0 {
			return
		}
	}
}

func (b *peersBundle) wanted(id prego.ServerID) server.PeersWanted {
	b.t.Helper()
	b.settle()
	st, err := b.s.PeersState(context.Background(), id)
	require.NoError(b.t, err)
	w, err := b.s.AckPeers(context.Background(), id, st.AppliedVersion, st.Refused)
	require.NoError(b.t, err)
	return w
}

func TestPeersFollowRows(t *testing.T) {
	t.Parallel()
	b := peersSetup(t)
	b.server("db", prego.RoleDBShard, "10.64.0.2")
	b.server("redis", prego.RoleRedisPool, "10.64.0.3")
	b.server("a", prego.RoleApp, "10.64.0.10")
	b.server("b", prego.RoleApp, "10.64.0.11")

	first := b.wanted("db")
	require.Positive(t, first.Version)
	require.Equal(t, server.PeersRule{Address: "10.64.0.2", Control: server.PeersControl{CIDRs: []string{"203.0.113.7/32"}, Ports: []int{2376, 8443}}}, first.Rule)

	b.place("t-1", "a")
	let := func(port int, from ...string) []server.PeersGrant {
		return []server.PeersGrant{{Ports: []int{port}, From: from}}
	}
	db := b.wanted("db")
	require.Equal(t, let(3306, "10.64.0.10"), db.Rule.Access)
	require.Greater(t, db.Version, first.Version)
	require.Equal(t, let(6379, "10.64.0.10"), b.wanted("redis").Rule.Access)
	require.Empty(t, b.wanted("a").Rule.Access)

	b.place("t-2", "a")
	require.Equal(t, db.Version, b.wanted("db").Version, "another tenant of the same server changes nothing")
	b.place("t-3", "b")
	require.Equal(t, let(3306, "10.64.0.10", "10.64.0.11"), b.wanted("db").Rule.Access)
	b.exec(`UPDATE tenant_allocations SET app_server_id = 'a' WHERE tenant_id = 't-3'`)
	require.Equal(t, let(3306, "10.64.0.10"), b.wanted("db").Rule.Access, "moved")
	b.exec(`UPDATE tenant_allocations SET released_at = now()`)
	require.Empty(t, b.wanted("db").Rule.Access)
	require.Empty(t, b.wanted("redis").Rule.Access)

	b.exec(`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, available_at) VALUES ('p-1', 'b', 'db', 'p-1', 'p-1', 'available', now())`)
	require.Equal(t, let(3306, "10.64.0.11"), b.wanted("db").Rule.Access, "a pool site is made in the shard")
	b.exec(`UPDATE servers SET private_address = '10.64.0.12' WHERE server_id = 'b'`)
	require.Equal(t, let(3306, "10.64.0.12"), b.wanted("db").Rule.Access)
	b.exec(`UPDATE servers SET network_id = 'n-2' WHERE server_id = 'b'`)
	require.Empty(t, b.wanted("db").Rule.Access, "another network")
	b.exec(`UPDATE servers SET network_id = 'n-1' WHERE server_id = 'b'`)
	b.exec(`DELETE FROM site_pool`)
	require.Empty(t, b.wanted("db").Rule.Access)

	b.place("t-4", "b")
	require.NotEmpty(t, b.wanted("db").Rule.Access)
	_, err := b.s.PeersOfLost(t.Context(), "db")
	require.Equal(t, prego.CodeIdentityRevoked, prego.CodeOf(err), "a predecessor of its host is no lost server")
	b.exec(`UPDATE servers SET identity_revoked_at = now() WHERE server_id = 'db'`)
	closed := b.wanted("db")
	require.Empty(t, closed.Rule.Access, "whatever rows still name it")
	require.NotEmpty(t, closed.Rule.Control.CIDRs)
	lost, err := b.s.PeersOfLost(t.Context(), "db")
	require.NoError(t, err)
	require.Equal(t, closed, lost)
	b.exec(`UPDATE servers SET identity_revoked_at = NULL WHERE server_id = 'db'`)
	require.NotEmpty(t, b.wanted("db").Rule.Access)
	b.exec(`UPDATE servers SET status = 'terminated', terminated_at = now() WHERE server_id = 'b'`)
	require.Empty(t, b.wanted("db").Rule.Access, "its address is another's soon")
	none, err := b.s.MakePeers(t.Context(), []prego.ServerID{"unknown"}, peersPorts)
	require.NoError(t, err)
	require.Empty(t, none)
}

func TestPeersVersionsGoOneWay(t *testing.T) {
	t.Parallel()
	b := peersSetup(t)
	ctx := t.Context()
	b.server("db", prego.RoleDBShard, "10.64.0.2")
	b.server("redis", prego.RoleRedisPool, "10.64.0.3")
	all, err := b.s.PeersVersions(ctx, "")
	require.NoError(t, err)
	require.True(t, all.Full)
	w := b.wanted("db")
	news, err := b.s.PeersVersions(ctx, all.Since)
	require.NoError(t, err)
	require.False(t, news.Full)
	require.Contains(t, news.Versions, server.PeersVersion{ServerID: "db", Version: w.Version})
	// A transaction of another test, which began before, is waited for.
	require.Eventually(t, func() bool {
		news, err = b.s.PeersVersions(ctx, news.Since)
		require.NoError(t, err)
		return len(news.Versions) == 0
	}, 30*time.Second, 20*time.Millisecond)

	// Many concurrent calls: each sees all that was there when it got its turn.
	var wg sync.WaitGroup
	for i := range 8 {
		app := fmt.Sprintf("app-%d", i)
		b.server(app, prego.RoleApp, fmt.Sprintf("10.64.0.%d", 100+i))
		wg.Go(func() {
			b.place("t-"+app, app)
			if _, err := b.s.MakePeers(context.Background(), []prego.ServerID{"redis", "db"}, peersPorts); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	st, err := b.s.PeersState(ctx, "db")
	require.NoError(t, err)
	last, err := b.s.AckPeers(ctx, "db", 0, "")
	require.NoError(t, err)
	require.Len(t, last.Rule.Access[0].From, 8)
	require.Equal(t, st.Version, last.Version)

	acks := func(applied int64) server.PeersWanted {
		t.Helper()
		w, err := b.s.AckPeers(ctx, "db", applied, "")
		require.NoError(t, err)
		return w
	}
	behind := func() (ids []string) {
		t.Helper()
		all, err := b.s.PeersBehind(ctx, 100)
		require.NoError(t, err)
		for _, st := range all {
			if st.ServerID == "db" {
				ids = append(ids, "db")
			}
		}
		return ids
	}
	acks(last.Version)
	require.Empty(t, behind())
	_, err = b.s.AckPeers(ctx, "db", last.Version, "left out: port 0: there is no such port")
	require.NoError(t, err)
	require.Equal(t, []string{"db"}, behind())
	acks(last.Version)
	require.Empty(t, behind())

	// The database was restored, and the host has a later version than its row. It keeps that document until the rule
	// changes, or a process waits for the host. No version comes from a clock.
	beyond := last.Version + 5000
	require.Equal(t, last.Version, acks(beyond).Version)
	require.Equal(t, []string{"db"}, behind())
	b.exec(`INSERT INTO peers_due (server_id) VALUES ('db')`)
	b.settle()
	require.Equal(t, last.Version, acks(beyond).Version)
	made, err := b.s.MakePeers(ctx, []prego.ServerID{"db"}, peersPorts)
	require.NoError(t, err)
	require.Equal(t, beyond+1, made["db"])
	require.Equal(t, beyond+1, acks(beyond).Version)
	acks(beyond + 1)
	require.Empty(t, behind())
	b.exec(`UPDATE server_peers SET version = $1, applied_version = $1, offered = $1 WHERE server_id = 'db'`, last.Version)
	acks(beyond)
	b.exec(`UPDATE tenant_allocations SET released_at = now()`)
	b.settle()
	require.Equal(t, beyond+1, acks(beyond).Version)
	b.exec(`UPDATE server_peers SET version = $1, offered = 7 WHERE server_id = 'db'`, beyond)
	require.Equal(t, []string{"db"}, behind(), "it has another document by that number")
	absurd := int64(1 << 60)
	acks(absurd)
	made, err = b.s.MakePeers(ctx, []prego.ServerID{"db"}, peersPorts)
	require.NoError(t, err)
	require.Equal(t, beyond, made["db"], "a host can't use the numbers up")
	none, err := b.s.AckPeers(ctx, "unknown", 0, "")
	require.NoError(t, err)
	require.Zero(t, none.Version)
}

func TestEgressLeavesWhenEveryHostHasTheNew(t *testing.T) {
	t.Parallel()
	b := peersSetup(t)
	ctx := t.Context()
	b.server("a", prego.RoleApp, "10.64.0.10")
	b.server("b", prego.RoleApp, "10.64.0.11")
	b.server("away", prego.RoleApp, "10.64.0.12")
	b.exec(`UPDATE servers SET agent_status = 'disconnected' WHERE server_id = 'away'`)
	ack := func(id prego.ServerID) {
		w := b.wanted(id)
		_, err := b.s.AckPeers(ctx, id, w.Version, "")
		require.NoError(t, err)
	}
	set := func(cidrs ...string) server.Egress {
		e, _, err := b.s.SetEgress(ctx, cidrs, 0)
		require.NoError(t, err)
		return e
	}
	ack("a")
	ack("b")
	e := set("198.51.100.1/32")
	require.Equal(t, server.Egress{Epoch: 2, CIDRs: []string{"198.51.100.1/32", "203.0.113.7/32"}, Leaving: []string{"203.0.113.7/32"}}, e)
	require.Equal(t, e.CIDRs, b.wanted("a").Rule.Control.CIDRs)
	require.Equal(t, e, set("198.51.100.1/32"))
	ack("a")
	require.Equal(t, e, set("198.51.100.1/32"), "b has not reported it")

	back := set("203.0.113.7/32") // a worker with the settings of before
	require.Equal(t, e.CIDRs, back.CIDRs)
	require.Equal(t, []string{"198.51.100.1/32"}, back.Leaving)
	require.Equal(t, e, set("198.51.100.1/32"))

	ack("b")
	gone := set("198.51.100.1/32")
	require.Equal(t, server.Egress{Epoch: 3, CIDRs: []string{"198.51.100.1/32"}, Leaving: []string{}}, gone)
	require.Equal(t, gone.CIDRs, b.wanted("away").Rule.Control.CIDRs)
	require.Equal(t, gone, set(), "nothing set is no wish to be shut out")
	held, _, err := b.s.SetEgress(ctx, []string{"192.0.2.1/32"}, time.Hour)
	require.NoError(t, err)
	ack("a")
	ack("b")
	again, _, err := b.s.SetEgress(ctx, []string{"192.0.2.1/32"}, time.Hour)
	require.NoError(t, err)
	require.Equal(t, held, again, "workers of before may still run")
}
