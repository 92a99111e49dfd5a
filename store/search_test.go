package store

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops"
)

func TestEverySearchFitsTheSchema(t *testing.T) {
	t.Parallel()
	conn, err := pgtest.Pool(t).Acquire(context.Background())
	require.NoError(t, err)
	defer conn.Release()
	for i, k := range searchable {
		statements := []string{k.beginnings()}
		if k.newest != "" {
			statements = append(statements, k.parts())
		}
		for _, sql := range statements {
			_, err := conn.Conn().Prepare(context.Background(), fmt.Sprintf("search%d/%d", i, len(sql)), sql)
			require.NoError(t, err, sql)
		}
	}
}

// lookFor returns hits as "kind id field rank", with "gone" at the end of deleted ones.
func lookFor(t *testing.T, s *Store, q ops.SearchQuery) (out []string) {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 50
	}
	found, _, err := s.Search(t.Context(), q)
	require.NoError(t, err)
	for _, f := range found {
		text := fmt.Sprintf("%s %s %s %d", f.Kind, f.ID, f.Field, f.Rank)
		if f.Gone {
			text += " gone"
		}
		out = append(out, text)
	}
	return out
}

// TestEverythingIsFound by each of its fields: by the whole value, by its beginning, and by a part of
// it, also when it is gone.
func TestEverythingIsFound(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, host, ipv6, provider_server_id)
		VALUES ('app-1', '', 'app', 'eu', 'hetzner', '{}', 'active', 'w', 'ann', '203.0.113.7', '2001:db8::7', '77123'), ('app-2', '', 'app', 'eu', 'hetzner', '{}', 'terminated', 'w', 'ann', '203.0.113.8', '', NULL)`)
	exec(t, s, `SET session_replication_role = replica; UPDATE servers SET private_address = '10.1.0.7' WHERE server_id = 'app-1'`)
	exec(t, s, toldRows)
	exec(t, s, `UPDATE tenants SET site = 'one.sites.example.com'; UPDATE volumes SET provider_id = '55001'; UPDATE ipv4_allocations SET address = '198.51.100.9', provider_id = '66001';
		UPDATE certificates SET serial = '4a1f';
		INSERT INTO routes (route_id, org_id, env_id, group_id, hostname, listener_scope, listen_port, protocol, target_port, created_by, deleted_at)
			VALUES ('rte-1', 'acme', 'env-1', 'grp-1', 'www.shop.example.net', 'shared_v6', 443, 'https', 80, 'ann', now());
		INSERT INTO domains (domain_id, org_id, name, token, sought_until, created_by) VALUES ('dom-1', 'acme', 'shop.example.org', 'x', now(), 'ann');
		INSERT INTO resources (provider, kind, name, provider_id, server_id, state) VALUES ('hetzner', 'server', 'prego-app-1-a1', '99001', 'app-1', 'released');
		INSERT INTO policies (policy_id, type, spec, created_by) VALUES ('spread', 'scaling', '{}', 'ann');
		INSERT INTO placement_pools (pool_id, name, created_by, updated_by) VALUES ('gold', 'Gold', 'ann', 'ann');
		INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range, provider_network_id) VALUES ('hetzner-eu-central-9', 'hetzner', 'eu-central', 9, '10.9.0.0/16', '88001');
		INSERT INTO registries (host, username, sealed, key_id, created_by, updated_by) VALUES ('registry.example.com', 'u', '', 'k', 'ann', 'ann')`)
	type thing struct{ value, kind, id, field string }
	for _, x := range []thing{
		{"app-2", "server", "app-2", "id"},
		{"203.0.113.7", "server", "app-1", "address"},
		{"203.0.113.8", "server", "app-2", "address"},
		{"2001:db8::7", "server", "app-1", "address"},
		{"10.1.0.7", "server", "app-1", "private_address"},
		{"77123", "server", "app-1", "provider_id"},
		{"99001", "resource", "1", "provider_id"},
		{"prego-app-1-a1", "resource", "1", "name"},
		{"t-1", "tenant", "t-1", "id"},
		{"one.sites.example.com", "tenant", "t-1", "hostname"},
		{"acme", "org", "acme", "id"},
		{"env-1", "env", "env-1", "id"},
		{"prod", "env", "env-1", "name"},
		{"shop", "app", "app-1", "name"},
		{"grp-1", "group", "grp-1", "id"},
		{"web", "group", "grp-1", "name"},
		{"ins-1", "instance", "ins-1", "id"},
		{"rte-1", "route", "rte-1", "id"},
		{"www.shop.example.net", "route", "rte-1", "hostname"},
		{"ip4-1", "ipv4", "ip4-1", "id"},
		{"198.51.100.9", "ipv4", "ip4-1", "address"},
		{"66001", "ipv4", "ip4-1", "provider_id"},
		{"vol-1", "volume", "vol-1", "id"},
		{"data", "volume", "vol-1", "name"},
		{"55001", "volume", "vol-1", "provider_id"},
		{"vat-1", "attachment", "vat-1", "id"},
		{"dom-1", "domain", "dom-1", "id"},
		{"shop.example.org", "domain", "dom-1", "hostname"},
		{"crt-1", "certificate", "crt-1", "id"},
		{"shop.example.com", "certificate", "crt-1", "hostname"},
		{"4a1f", "certificate", "crt-1", "serial"},
		{"snp-1", "snapshot", "snp-1", "id"},
		{"bak-1", "backup", "bak-1", "id"},
		{"rst-1", "restore", "rst-1", "id"},
		{"vrs-1", "volume_restore", "vrs-1", "id"},
		{"drl-1", "drill", "drl-1", "id"},
		{"mov-1", "move", "mov-1", "id"},
		{"web", "fleet", "web", "id"},
		{"spread", "policy", "spread", "id"},
		{"gold", "placement_pool", "gold", "id"},
		{"img-1", "image", "img-1", "id"},
		{"hetzner-eu-central-9", "network", "hetzner-eu-central-9", "id"},
		{"88001", "network", "hetzner-eu-central-9", "provider_id"},
		{"v15", "release", "v15", "id"},
		{"1.2.3", "agent_release", "1.2.3", "id"},
		{"reb-1", "rebalance", "reb-1", "id"},
		{"wav-1", "patch_wave", "wav-1", "id"},
		{"registry.example.com", "registry", "registry.example.com", "hostname"},
		{"tenant-move/mov-1", "operation", "tenant-move/mov-1", "workflow_id"},
		{"server-provision/app-1", "operation", "server-provision/app-1", "workflow_id"},
	} {
		has := func(q string, rank int) bool {
			for _, found := range lookFor(t, s, ops.SearchQuery{Text: q, Kinds: []string{x.kind}}) {
				if strings.HasPrefix(found+" ", fmt.Sprintf("%s %s %s %d ", x.kind, x.id, x.field, rank)) {
					return true
				}
			}
			return false
		}
		require.True(t, has(x.value, 0), "%v", x)
		require.True(t, has(strings.ToUpper(x.value), 0), "%v, in capitals", x)
		if only := map[string]bool{"attachment": true, "snapshot": true, "backup": true, "restore": true, "volume_restore": true, "drill": true, "move": true, "operation": true}; only[x.kind] {
			continue // by the whole id only
		}
		if x.kind != "certificate" || x.field != "hostname" {
			require.True(t, has(x.value[:len(x.value)-1], 1), "%v, its beginning", x)
		}
		if len(x.value) > 3 {
			require.True(t, has(x.value[1:], 2), "%v, a part", x)
		}
	}
	require.Equal(t, []string{"server app-2 id 0 gone"}, lookFor(t, s, ops.SearchQuery{Text: "app-2"}))
	require.Equal(t, []string{"route rte-1 id 0 gone"}, lookFor(t, s, ops.SearchQuery{Text: "rte-1"}))
	require.Equal(t, []string{"server app-1 id 0", "app app-1 id 0", "resource 1 name 2 gone"}[:2], lookFor(t, s, ops.SearchQuery{Text: "app-1"}), "the ledger's row adds nothing")
	found, more, err := s.Search(t.Context(), ops.SearchQuery{Text: "shop", Limit: 2})
	require.NoError(t, err)
	require.True(t, more)
	require.Equal(t, "app", found[0].Kind, "an equal match comes first")
	require.Equal(t, 1, found[1].Rank, "then what begins so")
}

// TestNothingInASearchIsSpecial: wildcards, quotes and markup are only characters.
func TestNothingInASearchIsSpecial(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	exec(t, s, `INSERT INTO orgs (org_id, created_by) VALUES ('a_b', 'x'), ('axb', 'x'), ('a%c', 'x'), ('azzc', 'x'), ('<b>org', 'x'), ('é-org', 'x')`)
	for q, want := range map[string][]string{
		"a_b": {"org a_b id 0"}, "a_": {"org a_b id 1"}, "a%c": {"org a%c id 0"}, "%c": nil, "__": nil, "%%%": nil, "a*": nil, ".*": nil, "'; DROP TABLE orgs; --": nil, `\`: nil, `a\_b`: nil,
		"<b>": {"org <b>org id 1"}, "b>o": {"org <b>org id 2"}, "É-": {"org é-org id 1"}, "😀😀😀": nil, "a\U0010FFFF": nil, strings.Repeat("x", 200): nil, "/": nil, "tenant-provision/": nil, "reconcile/x@99999999999999999999": nil,
	} {
		require.Equal(t, want, lookFor(t, s, ops.SearchQuery{Text: q, Kinds: []string{"org", "operation"}}), q)
		lookFor(t, s, ops.SearchQuery{Text: q})
	}
	require.Empty(t, lookFor(t, s, ops.SearchQuery{Text: "acme", Kinds: []string{"nothing"}}))
}

// TestBeginningsAreFoundWithIndexes of all kinds that can be many: the plan reads no table.
func TestBeginningsAreFoundWithIndexes(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pgtest.FillLarge(t, url, 200)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(t.Context(), `SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan`)
	require.NoError(t, err)
	few := map[string]bool{"fleet": true, "policy": true, "placement_pool": true, "image": true, "network": true, "release": true, "agent_release": true, "rebalance": true, "patch_wave": true, "registry": true}
	for i, k := range searchable {
		if few[k.kind] {
			continue
		}
		name := fmt.Sprintf("begin%d", i)
		_, err := conn.Exec(t.Context(), fmt.Sprintf(`PREPARE %s (text, int) AS %s`, name, k.beginnings()))
		require.NoError(t, err)
		rows, err := conn.Query(t.Context(), fmt.Sprintf(`EXPLAIN EXECUTE %s ('xyz', 50)`, name))
		require.NoError(t, err)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.NotContains(t, strings.Join(plan, "\n"), "Seq Scan", k.kind)
	}
}
