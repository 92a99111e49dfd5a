package activities_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// passwords are easy to distinguish.
type passwords struct{}

func (passwords) Password(use, name string, version int) string {
	return fmt.Sprintf("password of %s %s v%d", use, name, version)
}

// AwaitPeers is noted among the hosts' commands.
func (h *hosts) AwaitPeers(_ context.Context, in activities.AwaitPeersInput) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range in.ServerIDs {
		h.ran = append(h.ran, []string{string(id), "(peers)"})
	}
	return nil
}

// inNetwork gives the servers of p addresses in a private network.
func (p *placing) inNetwork() {
	p.Exec(`INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range) VALUES ('n-1', 'hetzner', 'eu-central', 1, '10.64.0.0/24')`)
	p.Exec(`UPDATE servers SET network_id = 'n-1', private_address = ('10.64.0.' || 10 + (SELECT count(*) FROM servers o WHERE o.server_id < servers.server_id))::inet`)
}

// networked is toBuild with servers that reach each other.
func networked(t *testing.T, pooled bool) (*placing, *steps, tenant.Ref) {
	t.Helper()
	p := newPlacing(t, 1)
	p.Server("app-0", prego.RoleApp, "")
	p.Server("db-0", prego.RoleDBShard, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	p.inNetwork() // app 10.64.0.10, shard .11, pool .12
	if pooled {
		p.Exec(`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state) VALUES ('ps-1', 'app-0', 'db-0', 'pool-1.sites.test', 'pool_1', 'available')`)
	}
	s := p.steps(p.Placer(nil))
	s.Settings.StepTimeout, s.Settings.AppTimeout = time.Minute, time.Minute
	tn := p.Tenant(prego.PlanStarter, nil)
	ref := tenant.Ref{TenantID: tn.TenantID, Generation: 1}
	_, err := s.env.ExecuteActivity(s.BeginTenant, ref)
	require.NoError(t, err)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM tenant_allocations WHERE on_shard AND on_pool`))
	return p, s, ref
}

// TestATenantsDataIsOnItsShardAndInItsPool: checks each host's commands, their order and their
// secrets, and that all data is dropped with the tenant.
func TestATenantsDataIsOnItsShardAndInItsPool(t *testing.T) {
	t.Parallel()
	for name, pooled := range map[string]bool{"a pool site": true, "a new site": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, s, ref := networked(t, pooled)
			database := p.Text(`SELECT database_name FROM tenant_allocations`)
			number := fmt.Sprint(tenant.CacheDB(int64(p.Number(`SELECT allocation_id FROM tenant_allocations`))))
			site := p.Text(`SELECT slug FROM tenants`) + ".sites.test"
			_, err := s.env.ExecuteActivity(s.BuildTenant, ref)
			require.NoError(t, err)
			want := [][]string{
				{"redis-0", "(peers)"},
				{"app-0", "promote-site", "pool-1.sites.test", site},
				{"app-0", "configure"},
				{"redis-0", "create-user", database, number},
				{"app-0", "--site", site, "connect-cache", "10.64.0.12", number},
				{"app-0", "--site", site, "enable-scheduler"},
				{"app-0", "--site", site, "answers"},
			}
			if !pooled {
				want = slices.Concat([][]string{
					{"db-0", "(peers)"},
					{"db-0", "grant-database", database, "10.64.0.10", "app-0"},
					{"app-0", "new-site", site, "--db-name", database, "--db-host", "10.64.0.11"},
					{"app-0", "configure"},
				}, want[:1], want[3:])
			}
			got := slices.Clone(s.hosts.ran)
			for i := range got {
				if verb(got[i][1:]) == "configure" {
					got[i] = []string{got[i][0], "configure"}
				}
			}
			require.Equal(t, want, got)
			secrets := map[string]map[string]string{}
			for _, c := range s.hosts.all {
				if c.Secrets != nil {
					secrets[verb(c.Args)] = c.Secrets
				}
				require.Equal(t, c.ServerID == "app-0", c.TenantID != "", "only bench knows whose site it is")
				require.Equal(t, map[prego.ServerID]string{"db-0": "mariadb", "redis-0": "redis-cli", "app-0": ""}[c.ServerID], c.Kind)
			}
			cache := map[string]string{wire.SecretCachePassword: "password of cache " + database + " v0"}
			wantSecrets := map[string]map[string]string{"create-user": cache, "connect-cache": cache}
			if !pooled {
				own := map[string]string{wire.SecretDatabasePassword: "password of database " + database + " v0"}
				wantSecrets["grant-database"], wantSecrets["new-site"] = own, own
			}
			require.Equal(t, wantSecrets, secrets)

			s.hosts.ran = nil
			p.Exec(`UPDATE tenants SET state = 'data_purged'`)
			_, err = s.env.ExecuteActivity(s.DropSite, activities.DropInput{TenantID: ref.TenantID})
			require.NoError(t, err)
			require.Equal(t, [][]string{{"redis-0", "erase-user", database, number}, {"db-0", "erase-database", database}}, s.hosts.ran[len(s.hosts.ran)-2:])

			// The app server is gone, the others are not.
			s.hosts.ran = nil
			p.Exec(`UPDATE servers SET status = 'terminated' WHERE server_id IN ('app-0', 'redis-0')`)
			_, err = s.env.ExecuteActivity(s.DropSite, activities.DropInput{TenantID: ref.TenantID})
			require.NoError(t, err)
			require.Equal(t, [][]string{{"db-0", "erase-database", database}}, s.hosts.ran)
		})
	}
}

// withShard is an app server and a shard that reach each other.
func withShard(t *testing.T) (*placing, *steps) {
	t.Helper()
	p := newPlacing(t, 1)
	p.Server("app-0", prego.RoleApp, "")
	p.Server("db-0", prego.RoleDBShard, "")
	p.inNetwork()
	return p, p.steps(p.Placer(nil))
}

// TestAPoolSitesDatabase: it is made before the site, and dropped when the site's server is
// gone.
func TestAPoolSitesDatabase(t *testing.T) {
	t.Parallel()
	p, s := withShard(t)
	p.Exec(`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, reserved_until)
		VALUES ('ps-1', 'app-0', 'db-0', 'pool-1.sites.test', 'pool_1', 'reserved', now() + interval '1 hour')`)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM site_pool WHERE on_shard`))
	_, err := s.env.ExecuteActivity(s.BuildSite, tenant.PoolSite{PoolSiteID: "ps-1", AppServerID: "app-0", DBShardID: "db-0", SiteName: "pool-1.sites.test", DatabaseName: "pool_1", OnShard: true})
	require.NoError(t, err)
	require.Equal(t, [][]string{
		{"db-0", "(peers)"}, {"db-0", "grant-database", "pool_1", "10.64.0.10", "app-0"}, {"app-0", "new-site", "pool-1.sites.test", "--db-name", "pool_1", "--db-host", "10.64.0.11"},
	}, s.hosts.ran)

	sweep := func() [][]string {
		s.hosts.ran = nil
		_, err := s.env.ExecuteActivity(s.SweepTenantWork)
		require.NoError(t, err)
		return s.hosts.ran
	}
	needed := func() bool {
		need, err := p.Store.TenantsNeedSweep(t.Context(), time.Hour)
		require.NoError(t, err)
		return need
	}
	require.Empty(t, sweep())
	require.False(t, needed())
	p.Exec(`UPDATE servers SET status = 'terminated' WHERE server_id = 'app-0'`)
	require.True(t, needed())
	require.Equal(t, [][]string{{"db-0", "erase-database", "pool_1"}}, sweep())
	require.False(t, needed())
	require.Empty(t, sweep())
}

// TestAShardThatHangsKeepsNoneWaiting: the databases on another are dropped, and a sweep ends.
func TestAShardThatHangsKeepsNoneWaiting(t *testing.T) {
	t.Parallel()
	p, s := withShard(t)
	p.Server("db-1", prego.RoleDBShard, "")
	p.Exec(`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state)
		SELECT 'ps-' || n, 'app-0', CASE n WHEN 99 THEN 'db-1' ELSE 'db-0' END, 'pool-' || n || '.sites.test', 'pool_' || n, 'failed' FROM generate_series(40, 99) n`)
	p.Exec(`UPDATE site_pool SET on_shard = true`)
	p.Exec(`UPDATE servers SET status = 'terminated' WHERE server_id = 'app-0'`)
	s.hosts.hangs = "db-0"
	for n := 0; len(s.hosts.ran) == 0; n++ {
		require.Less(t, n, 200)
		_, err := s.env.ExecuteActivity(s.SweepTenantWork)
		require.ErrorContains(t, err, context.DeadlineExceeded.Error())
		require.WithinRange(t, s.hosts.givenUp, time.Now(), time.Now().Add(21*time.Second))
	}
	require.Equal(t, [][]string{{"db-1", "erase-database", "pool_99"}}, s.hosts.ran)
}

// TestAFailedPoolSitesDatabase: it is dropped with what the host has of the site, unless a site that was promoted
// from it has it: the row is then of a control plane's database that is older than the promotion.
func TestAFailedPoolSitesDatabase(t *testing.T) {
	t.Parallel()
	for says, erased := range map[string]bool{
		`{"site":"pool-1.sites.test","directory":true}`:                                true,
		`{"site":"pool-1.sites.test","directory":false,"kept_for":"gamma.sites.test"}`: false,
	} {
		t.Run(fmt.Sprintf("erased %v", erased), func(t *testing.T) {
			t.Parallel()
			p, s := withShard(t)
			s.hosts.says = map[string]string{"erase-site": says}
			p.Exec(`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state) VALUES ('ps-1', 'app-0', 'db-0', 'pool-1.sites.test', 'pool_1', 'failed')`)
			_, err := s.env.ExecuteActivity(s.DropFailedSites, prego.ServerID("app-0"))
			require.NoError(t, err)
			require.Contains(t, s.hosts.ran, []string{"app-0", "erase-site", "pool-1.sites.test", "--db-name", "pool_1"})
			require.Equal(t, erased, slices.ContainsFunc(s.hosts.ran, func(c []string) bool { return c[1] == "erase-database" }), "%v", s.hosts.ran)
			require.Equal(t, 1, p.Number(`SELECT count(*) FROM site_pool WHERE dropped_at IS NOT NULL`), "nothing of the pool site is left")
		})
	}
}

// TestWhatIsOnNoNetworkStays: the data of a tenant stays on an app server that reaches no
// shard, and that of one placed before stays where it is.
func TestWhatIsOnNoNetworkStays(t *testing.T) {
	t.Parallel()
	p, s, ref := toBuild(t, true)
	p.inNetwork()
	_, err := s.env.ExecuteActivity(s.BuildTenant, ref)
	require.NoError(t, err)
	for _, c := range s.hosts.all {
		require.Equal(t, prego.ServerID("app-0"), c.ServerID, "%v", c.Args)
		require.Empty(t, c.Secrets)
	}
}

func TestSecretsOfCommandsAreInNoAudit(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 1)
	p.Server("db-0", prego.RoleDBShard, "")
	var got []map[string]string
	c := &activities.Commander{Audit: p.Store, Agents: agentsFunc(func(in wire.ExecRequest) (wire.ExecResult, error) {
		got = append(got, in.Secrets)
		return wire.ExecResult{AuditID: in.AuditID}, nil
	})}
	command := server.BenchCommand{Kind: "mariadb", ServerID: "db-0", AuditID: "a", Args: []string{"erase-database", "pool_1"}, Secrets: map[string]string{"database_password": "not-for-the-audit"}}
	_, err := c.Bench(t.Context(), command)
	require.NoError(t, err)
	_, err = c.BenchAll(t.Context(), []server.BenchCommand{command})
	require.NoError(t, err)
	require.Equal(t, []map[string]string{command.Secrets, command.Secrets}, got)
	require.Zero(t, p.Number(`SELECT count(*) FROM agent_command_audit a WHERE a::text LIKE '%not-for-the-audit%'`))
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM agent_command_audit WHERE command_kind = 'mariadb'`))
}
