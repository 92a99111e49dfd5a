package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
)

// TestWhoIsOnAServer: tenants, site pools and backups are found by the servers that they depend on.
func TestWhoIsOnAServer(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.fleet("app-1", "db-1", "redis-1", "app-2")
	one, two := b.withSite("acme", "one"), b.withSite("acme", "two")
	b.sql(`UPDATE tenant_allocations SET app_server_id = 'app-2' WHERE tenant_id = $1`, two)
	slugs := func(query string) (out []string) {
		for _, v := range as[api.TenantPage](t, b.ok(200, "GET", "/v1/tenants?sort=slug&"+query, "")).Tenants {
			out = append(out, v.Slug)
		}
		return out
	}
	require.Equal(t, []string{"one"}, slugs("server_id=app-1"))
	require.Equal(t, []string{"two"}, slugs("server_id=app-2"))
	require.Equal(t, []string{"one", "two"}, slugs("server_id=db-1"))
	require.Equal(t, []string{"one", "two"}, slugs("server_id=app-1,app-2"))
	require.Empty(t, slugs("server_id=gone"))
	require.Equal(t, []string{"two"}, slugs("server_id=redis-1&tenant_id="+two))
	page := as[api.TenantPage](t, b.ok(200, "GET", "/v1/tenants?tenant_id="+one, ""))
	require.Equal(t, []string{"app-1", "db-1", "redis-1"}, *page.Tenants[0].ServerIds)

	b.sql(`INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, created_by)
		SELECT 'bak-' || slug, org_id, tenant_id, 'app-1', slug, 'manual', 'ann' FROM tenants`)
	backups := as[api.BackupPage](t, b.ok(200, "GET", "/v1/backups?server_id=app-2", "")).Backups
	require.Len(t, backups, 1)
	require.Equal(t, "bak-two", backups[0].BackupId)
	require.Len(t, as[api.BackupPage](t, b.ok(200, "GET", "/v1/backups?org_id=acme", "")).Backups, 2)

	pools := as[api.SitePoolList](t, b.ok(200, "GET", "/v1/site-pools?server_id=app-2", "")).SitePools
	require.Len(t, pools, 1)
	require.Equal(t, "app-2", pools[0].ServerId)
}

// TestConsoleShowsWhoIsOnAServer: the page of a server loads its tenants once the rest is there.
func TestConsoleShowsWhoIsOnAServer(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	b.org("acme", "")
	b.fleet("app-1", "db-1", "redis-1")
	one := b.withSite("acme", "one")
	v := b.login("viewer")
	link := `<a href="/console/tenants/` + one + `">one</a>`
	require.Contains(t, v.get("/console/servers/db-1").body, link)
	require.NotContains(t, v.get("/console/servers/db-1?tab=host").body, link)
	part := v.get("/console/tenants?server_id=db-1").body
	require.Contains(t, part, `<div id="part">`)
	require.Contains(t, part, link)
	require.NotContains(t, v.get("/console/tenants?server_id=app-9").body, one)
	require.Contains(t, v.get("/console/orgs/acme").body, link)
}

// TestWhoIsLeftOnADrainedServer: its maintenance names the tenants that are left, in the console beside the instances.
func TestWhoIsLeftOnADrainedServer(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	b.workloads()
	b.sql(`UPDATE orgs SET tier = 'enterprise'`)
	b.fleet("app-1", "db-1", "redis-1")
	one := b.withSite("acme", "one")
	b.sql(`UPDATE tenant_allocations SET on_shard = true`)
	b.sql(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request,
			replicas, created_by) SELECT 'grp-a', env_id, org_id, 'eu', 'web', '{}', 1, 0, 1, 'ann' FROM envs LIMIT 1`)
	b.sql(`INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request,
			number, spec, state)
		SELECT 'ins-a', group_id, org_id, 'app-1', 1, 1, 0, 1, '{}', 'running' FROM process_groups`)
	d := as[api.Maintenance](t, b.ok(202, "POST", "/v1/servers/app-1/drain", ""))
	require.Equal(t, []api.RemainingTenant{{TenantId: one, Slug: "one", OrgId: "acme", State: "active"}}, d.Tenants)
	require.Equal(t, "web", d.Instances[0].GroupName)
	page := b.login("viewer").get("/console/servers/app-1").body
	for _, want := range []string{
		"<h3>instances</h3>", "<h3>tenants</h3>", ">one<", `href="/console/tenants/` + one + `"`,
	} {
		require.Contains(t, page, want)
	}
	b.ok(202, "DELETE", "/v1/servers/app-1/maintenance", "")
	kept := as[api.Maintenance](t, b.ok(200, "GET", "/v1/servers/app-1/maintenance", ""))
	require.Len(t, kept.Tenants, 1, "until it has ended")
}

func TestWhoami(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for name, role := range map[string]string{"operator": "operator", "viewer": "support"} {
		resp, body := b.do("GET", "/v1/whoami", name, "", "")
		require.Equal(t, 200, resp.StatusCode, string(body))
		who := as[api.Caller](t, body)
		require.Equal(t, api.Caller{
			PrincipalId: name, Kind: access.ServiceAccount, Name: name, Grants: []api.CallerGrant{{AccessRole: role}}, ApiVersion: "dev",
		}, who)
	}
	resp, _ := b.do("GET", "/v1/whoami", "", "", "")
	require.Equal(t, 401, resp.StatusCode)
}
