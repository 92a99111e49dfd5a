package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
)

func (b *peersBundle) tenantsOn(servers ...string) []string {
	b.t.Helper()
	ids := []string{}
	q := prego.ListQuery{Filters: map[string][]string{"server_id": servers}, Sort: "slug"}
	for _, t := range walkList(b.t.(*testing.T), b.s, Tenants, q) {
		ids = append(ids, string(t.TenantID))
	}
	return ids
}

// TestTenantsOfAServer: a tenant is on the servers of its site, its database and its cache, on both sides of its open
// move, and on the server that is being built for it.
func TestTenantsOfAServer(t *testing.T) {
	t.Parallel()
	b := dataMoveSetup(t)
	b.place("t-2", "app-1")
	b.exec(`SET session_replication_role = replica;
		UPDATE db_shards SET shard_id = 'shard-' || shard_id; UPDATE redis_pools SET pool_id = 'pool-' || pool_id;
		UPDATE tenant_allocations SET db_shard_id = 'shard-db', redis_pool_id = 'pool-redis'`)
	const switched = `UPDATE tenant_allocations
		SET app_server_id = 'app-2', db_shard_id = 'shard-db-2', redis_pool_id = 'pool-redis-2' WHERE tenant_id = `
	b.exec(switched + `'t-2'`)
	at := func(want map[string][]string) {
		t.Helper()
		for _, id := range []string{"app-1", "app-2", "db", "db-2", "redis", "redis-2"} {
			require.Equal(t, append([]string{}, want[id]...), b.tenantsOn(id), id)
		}
		for _, listed := range walkList(t, b.s, Tenants, prego.ListQuery{}) { // the same, by tenant
			on := []prego.ServerID{}
			for id, tenants := range want {
				if slices.Contains(tenants, string(listed.TenantID)) {
					on = append(on, prego.ServerID(id))
				}
			}
			slices.Sort(on)
			require.Equal(t, on, listed.ServerIDs, listed.TenantID)
		}
	}
	one, two, both := []string{"t-1"}, []string{"t-2"}, []string{"t-1", "t-2"}
	at(map[string][]string{"app-1": one, "db": one, "redis": one, "app-2": two, "db-2": two, "redis-2": two})
	require.Equal(t, both, b.tenantsOn("redis", "app-2"), "on any of them")
	require.Empty(t, b.tenantsOn("nowhere"))

	listed := walkList(t, b.s, Tenants, prego.ListQuery{Filters: map[string][]string{"tenant_id": {"t-1"}}})
	require.Equal(t, []prego.ServerID{"app-1", "db", "redis"}, listed[0].ServerIDs)

	// While it moves it is at both ends of what moves.
	b.exec(`INSERT INTO tenant_moves (move_id, org_id, tenant_id, allocation_id, requested_by, site, database_name,
			from_server_id, to_server_id, from_shard_id, to_shard_id, from_pool_id, to_pool_id)
		SELECT 'mov-1', t.org_id, 't-1', 1, 'ann', 's', 'd',
			'app-1', 'app-2', 'shard-db', 'shard-db-2', 'pool-redis', 'pool-redis-2'
		FROM tenants t WHERE t.tenant_id = 't-1'`)
	at(map[string][]string{"app-1": one, "db": one, "redis": one, "app-2": both, "db-2": both, "redis-2": both})
	b.exec(switched + `'t-1'; UPDATE tenant_moves SET state = 'switched'`)
	at(map[string][]string{"app-1": one, "db": one, "redis": one, "app-2": both, "db-2": both, "redis-2": both})
	b.exec(`UPDATE tenant_moves SET state = 'done', finished_at = now()`)
	at(map[string][]string{"app-2": both, "db-2": both, "redis-2": both})

	// A place that was given up counts no more; a server that is being built counts before there is a place.
	b.exec(`UPDATE tenant_allocations SET released_at = now() WHERE tenant_id = 't-1'`)
	at(map[string][]string{"app-2": two, "db-2": two, "redis-2": two})
	b.exec(`UPDATE servers SET dedicated_for_tenant_id = 't-1', status = 'provisioning' WHERE server_id = 'app-1'`)
	at(map[string][]string{"app-1": one, "app-2": two, "db-2": two, "redis-2": two})
	b.exec(`UPDATE servers SET status = 'failed' WHERE server_id = 'app-1'`)
	require.Empty(t, b.tenantsOn("app-1"))
}

// TestBackupsOfAServer: they are the backups of the tenants that are there, and not the ones that were made there.
func TestBackupsOfAServer(t *testing.T) {
	t.Parallel()
	s := backupTenants(t, 3)
	for i, from := range []string{"n-2", "n-1", "n-2"} {
		exec(t, s, `INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, state, created_by)
			VALUES ($1, 'acme', $2, $3, 's', 'manual', 'failed', 'ann')`,
			fmt.Sprintf("bak-%d", i), fmt.Sprintf("t-%d", i), from)
	}
	for server, want := range map[string]string{"n-0": "bak-0", "n-1": "bak-1", "n-2": "bak-2"} {
		found := walkList(t, s, AllBackups, prego.ListQuery{Filters: map[string][]string{"server_id": {server}}})
		require.Len(t, found, 1)
		require.Equal(t, want, string(found[0].BackupID))
	}
	require.Len(t, walkList(t, s, AllBackups, prego.ListQuery{}), 3)
}

// TestSitePoolsOfAServer: the sites of an app server, or the ones that have their database on a shard's server.
func TestSitePoolsOfAServer(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	warmNode(t, s, "node-1")
	warmNode(t, s, "node-2")
	warmNode(t, s, "node-3")
	for i, at := range []string{"node-1", "node-1", "node-2"} {
		poolSite(t, s, at, "available", i)
	}
	exec(t, s, `UPDATE site_pool SET db_shard_id = 'node-3' WHERE pool_site_id = 'node-1-available-0'`)
	sites := func(on ...prego.ServerID) (out []string) {
		pools, err := s.ListSitePools(t.Context(), "", on...)
		require.NoError(t, err)
		for _, p := range pools {
			out = append(out, fmt.Sprintf("%s %d", p.ServerID, p.Available))
		}
		return out
	}
	require.Equal(t, []string{"node-1 2", "node-2 1", "node-3 0"}, sites())
	require.Equal(t, []string{"node-2 1"}, sites("node-2"))
	require.Equal(t, []string{"node-1 1", "node-3 0"}, sites("node-3"), "one of node-1 has its database there")
	require.Equal(t, []string{"node-1 2", "node-2 1"}, sites("node-1", "node-2"))
}

// TestTenantsOfAServerAreReadByIndex: of 10,000 tenants only those on the server are read, and only the places of those
// on the page.
func TestTenantsOfAServerAreReadByIndex(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pgtest.FillLarge(t, url, 1000)
	pool, err := Open(t.Context(), url, 2, nil)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := New(pool)
	require.Equal(t, 10_000, count(t, s, "tenants"))
	for server, more := range map[string]int{"s-2": 5, "s-0": 100, "s-1": 100} { // an app server, a shard's, a pool's
		q := prego.ListQuery{Limit: 50, Filters: map[string][]string{"server_id": {server}}}
		sql, args, _, err := Tenants.statement(q)
		require.NoError(t, err)
		plan, err := values[string](t.Context(), pool, `EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) `+sql, args...)
		require.NoError(t, err)
		text := strings.Join(plan, "\n")
		for _, table := range []string{"tenants", "tenant_allocations", "servers"} {
			require.NotRegexp(t, `Seq Scan on `+table+`\b`, text, server)
		}
		require.Contains(t, text, "tenants_pkey", server)
		began := time.Now()
		found := walkAll(t, s, q)
		t.Logf("%d tenants of %s were read in %s", found, server, time.Since(began))
		require.Greater(t, found, more, server)
	}
}

// TestAffectedTenantsAreReadByIndex: however many tenants there are, naming a server's reads only its own.
func TestAffectedTenantsAreReadByIndex(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pgtest.FillLarge(t, url, 1000)
	pool, err := Open(t.Context(), url, 2, nil)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	plan, err := values[string](t.Context(), pool, `EXPLAIN (ANALYZE, COSTS OFF) `+sqlAffected,
		[]harmed{{Subject: "server", ID: "s-0"}, {N: 1, Subject: "server", ID: "s-2"}})
	require.NoError(t, err)
	text := strings.Join(plan, "\n")
	t.Log(plan[len(plan)-1])
	require.NotRegexp(t, `Seq Scan on tenants\b`, text)
	require.Regexp(t, `Index Scan using tenants_\w+ on tenants\b`, text)
	require.Contains(t, text, "tenant_allocations_by_server")
}

// walkAll counts what a list of tenants has, by whole pages.
func walkAll(t *testing.T, s *Store, q prego.ListQuery) (n int) {
	t.Helper()
	for {
		page, next, err := Tenants.page(t.Context(), s, q)
		require.NoError(t, err)
		n += len(page)
		if q.Cursor = next; next == "" {
			return n
		}
	}
}
