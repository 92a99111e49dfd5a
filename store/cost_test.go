package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/cost"
	"github.com/prego/prego/server"
)

func september(day, hour, minute int) time.Time {
	return time.Date(2026, 9, day, hour, minute, 0, 0, time.UTC)
}

const (
	costServer = `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, server_type, location, attempt, warm_plan, dedicated_for_tenant_id, fleet_id)
		VALUES ($1, '', $2, 'eu', 'hetzner', '{}', 'active', 'w', 'test', 'cx43', 'fsn1', 1, $3, $4, $5)`
	costMade = `INSERT INTO resources (provider, kind, name, server_id, attempt, state, provider_id, created_at, details) VALUES ('hetzner', $1, $2, $3, 1, 'created', $2, $4, '{"type": "cx43", "location": "fsn1"}')`
	costGone = `UPDATE resources SET state = 'released', released_at = $2 WHERE name = $1`
)

// costWorld is an org with a tenant on a shared app server, and prices that change.
func costWorld(t *testing.T) *Store {
	t.Helper()
	s := tenantStore(t)
	exec(t, s, `INSERT INTO orgs (org_id, tier, created_by) VALUES ('acme', 'paid', 'test') ON CONFLICT DO NOTHING`)
	exec(t, s, `INSERT INTO provider_catalogs (provider, document, refreshed_at) VALUES ('hetzner', '{"server_types": [{"name": "cx43", "memory_gb": 16}]}', now()) ON CONFLICT (provider) DO UPDATE SET document = EXCLUDED.document`)
	exec(t, s, `TRUNCATE provider_prices`)
	exec(t, s, `INSERT INTO provider_prices (provider, kind, type, location, per_gb, hourly, monthly, currency, valid_from, valid_to) VALUES
		('hetzner', 'server', 'cx43', 'fsn1', false, 20000, 10000000, 'EUR', '2026-08-01Z', '2026-09-16Z'), ('hetzner', 'server', 'cx43', 'fsn1', false, 30000, 12000000, 'EUR', '2026-09-16Z', NULL),
		('hetzner', 'primary_ip', 'ipv4', 'fsn1', false, 1000, 500000, 'EUR', '2026-08-01Z', NULL), ('hetzner', 'volume', '', '', true, NULL, 44000, 'EUR', '2026-08-01Z', NULL)`)
	return s
}

// TestMonthIsCountedExactly: servers come and go, prices change, the worker is away for three days, and each count
// is made twice. The sum is exact to the millionth.
func TestMonthIsCountedExactly(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := costWorld(t)
	exec(t, s, `SET session_replication_role = replica;
		INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by) VALUES
			('t-1', 'one', 'acme', 'eu', 'starter', 1, 1, 'shared', '', 'active', 'test'), ('t-2', 'two', 'acme', 'eu', 'business', 1, 1, 'one_tenant_one_server', '', 'active', 'test');
		INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm) VALUES ('t-1', 'app-1', 'gone', 'gone', 's', 'd', 'hetzner', 'a');
		INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, made_bytes, provider, provider_name, status, created_by) VALUES ('vol-1', 'acme', 'eu', 'fsn1', 'data', 10000000000, 10000000000, 'hetzner', 'v-1', 'ready', 'test');
		INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, min_size, max_size, spec, created_by) VALUES ('web', '', 'node', 'hetzner', 0, -1, '{}', 'test')`)
	type event struct {
		at   time.Time
		sql  string
		args []any
	}
	birth := func(at time.Time, id, role string, warm, dedicated, fleet any) []event {
		return []event{{at, costServer, []any{id, role, warm, dedicated, fleet}}, {at, costMade, []any{"server", id, id, at}}}
	}
	var events []event
	for _, e := range [][]event{
		birth(september(1, 0, 0).AddDate(0, 0, -12), "app-1", "app", nil, nil, nil), // also billed earlier; not counted
		birth(september(1, 0, 0), "edge-1", "edge", nil, nil, nil),
		birth(september(10, 12, 30), "node-1", "node", nil, "t-2", nil),
		{{september(10, 12, 30), costMade, []any{"primary_ip", "node-1-ip0", "node-1", september(10, 12, 30)}}},
		{{september(12, 12, 45), costGone, []any{"node-1", september(12, 12, 45)}}, {september(12, 12, 45), costGone, []any{"node-1-ip0", september(12, 12, 45)}}},
		birth(september(15, 3, 0), "node-2", "node", nil, nil, "web"), // comes and goes while the worker is away
		{{september(15, 5, 0), costGone, []any{"node-2", september(15, 5, 0)}}},
		{{september(16, 0, 0), costMade, []any{"volume", "v-1", nil, september(16, 0, 0)}}},
		birth(september(20, 0, 0), "warm-1", "node", "starter", nil, nil),
		{{september(29, 0, 0), `INSERT INTO orphan_sightings (provider, kind, provider_id, name, location, size_gb, made_at, first_seen_at) VALUES ('hetzner', 'volume', '99', 'lost', 'fsn1', 20, $1, $2)`, []any{september(29, 0, 0), september(29, 4, 0)}}},
	} {
		events = append(events, e...)
	}
	for at := september(1, 0, 0); at.Before(time.Date(2026, 10, 1, 6, 0, 0, 0, time.UTC)); at = at.Add(5*time.Hour + 17*time.Minute) {
		for len(events) > 0 && !events[0].at.After(at) {
			exec(t, s, events[0].sql, events[0].args...)
			events = events[1:]
		}
		if at.After(september(14, 6, 0)) && at.Before(september(17, 6, 0)) {
			continue
		}
		for range 2 {
			_, err := s.CountCosts(ctx, at, nil)
			require.NoError(t, err)
		}
		if at.Hour() < 6 { // about once a day
			overviewCostsAgree(t, s, at)
		}
	}
	require.Empty(t, events)
	month := september(1, 0, 0)
	check := func() {
		t.Helper()
		m, err := s.Costs(ctx, cost.ByTenant, month)
		require.NoError(t, err)
		r := cost.Summarize(cost.ByTenant, m.Lines, 100)
		require.Equal(t, []cost.Row{
			{Kind: "tenant", ID: "t-2", Name: "two", OrgID: "acme", Cost: 49*20000 + 49*1000, Basis: cost.Own},   // 48 h 15 min
			{Kind: "tenant", ID: "t-1", Name: "one", OrgID: "acme", Cost: 12_000_000 / 16, Basis: cost.ByWeight}, // a GiB of 16
			{Kind: "none", ID: "none", Name: "without one", Cost: 10 * 44000 / 2, Basis: cost.Own},               // half a month
			{Kind: "shared", ID: "shared", Name: "shared by all", Cost: 12_000_000, Basis: cost.NoBasis},
			{Kind: "idle", ID: "idle", Name: "idle capacity", Cost: 12_000_000/16*15 + 2*20000 + 11*24*30000, Idle: 12_000_000/16*15 + 2*20000 + 11*24*30000, Basis: cost.NoBasis},
			{Kind: "untracked", ID: "untracked", Name: "owned by no row", Cost: 58667, Basis: cost.NoBasis}, // two of thirty days of 0.88
		}, r.Rows)
		require.Equal(t, "EUR", m.Currency)
		require.Zero(t, m.Unpriced)
		require.True(t, m.Complete(month, september(30, 0, 0).AddDate(0, 0, 2), time.Hour))
		var days cost.Micro
		for _, d := range m.Days {
			days += d.Cost
		}
		require.Equal(t, r.Total, days)
		for _, by := range []cost.By{cost.ByOrg, cost.ByServer, cost.ByPool, cost.ByFleet, cost.ByRegion, cost.ByKind} {
			m, err := s.Costs(ctx, by, month)
			require.NoError(t, err)
			other := cost.Summarize(by, m.Lines, 100)
			require.Equal(t, r.Total, other.Total, by)
			require.Equal(t, r.Idle, other.Idle, by)
		}
	}
	check()
	servers, err := s.Costs(ctx, cost.ByServer, month)
	require.NoError(t, err)
	for _, row := range cost.Summarize(cost.ByServer, servers.Lines, 100).Rows {
		if row.ID == "app-1" {
			require.Equal(t, cost.Row{Kind: "server", ID: "app-1", Name: "app-1", Cost: 12_000_000, Idle: 11_250_000, Basis: cost.ByWeight}, row)
		}
	}
	// The past stays as it was, even if resources go and prices change.
	exec(t, s, `SET session_replication_role = replica; DELETE FROM tenant_allocations; DELETE FROM orphan_sightings; DELETE FROM resources; UPDATE provider_prices SET monthly = monthly * 2, hourly = hourly * 2`)
	_, err = s.CountCosts(ctx, time.Date(2026, 10, 2, 0, 0, 0, 0, time.UTC), nil)
	require.NoError(t, err)
	check()
}

// TestTenantCostsItsShares: a tenant costs a month its share of each of its servers, by the rule that months are divided
// by, and its backups.
func TestTenantCostsItsShares(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := costWorld(t)
	exec(t, s, `SET session_replication_role = replica;
		INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by)
		SELECT id, id, 'acme', 'eu', plan, 1, 1, 'shared', '', 'active', 'test'
		FROM (VALUES ('t-1', 'starter'), ('t-2', 'business'), ('t-3', 'starter'), ('t-4', 'starter')) v (id, plan);
		INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
		SELECT id, app, 'shard', 'gone', 's', 'd', 'hetzner', 'a' FROM (VALUES ('t-1', 'app-1'), ('t-2', 'app-1'), ('t-3', 'node-1')) v (id, app);
		INSERT INTO db_shards (shard_id, region, server_id, status, tenant_capacity) VALUES ('shard', 'eu', 'db-1', 'active', 6)`)
	for _, id := range []string{"app-1", "db-1", "node-1"} {
		role, dedicated := map[string]string{"app-1": "app", "db-1": "db-shard", "node-1": "node"}[id], any(nil)
		if id == "node-1" {
			dedicated = "t-3"
		}
		exec(t, s, costServer, id, role, nil, dedicated, nil)
		exec(t, s, costMade, "server", id, id, september(1, 0, 0))
	}
	exec(t, s, costMade, "primary_ip", "app-1-ip0", "app-1", september(1, 0, 0))
	of := func(id prego.TenantID) *cost.PerMonth {
		t.Helper()
		c, err := s.TenantCost(ctx, id)
		require.NoError(t, err)
		return c
	}
	const server, address, shard = 12_000_000, 500_000, 12_000_000 * 3 / 6
	require.Equal(t, &cost.PerMonth{
		Currency: "EUR", Total: server/16 + address/16 + shard/4,
		Parts: []cost.PartPerMonth{{ServerID: "db-1", Cost: shard / 4}, {ServerID: "app-1", Cost: server/16 + address/16}},
	}, of("t-1"), "a GiB of 16, and a quarter of the three slots that are taken")
	require.EqualValues(t, 2*(server/16+address/16)+shard/2, of("t-2").Total)
	require.EqualValues(t, server+shard/4, of("t-3").Total, "its own server is all its own")
	require.Nil(t, of("t-4"), "it has nothing yet")
	exec(t, s, `UPDATE provider_prices SET valid_to = now() WHERE kind = 'primary_ip'`)
	require.Equal(t, 1, of("t-1").Unpriced)
	require.EqualValues(t, server/16+shard/4, of("t-1").Total)
}

// overviewCostsAgree compares the month so far in the overview with the costs of the month.
func overviewCostsAgree(t *testing.T, s *Store, at time.Time) {
	t.Helper()
	o, err := s.Overview(t.Context(), at)
	require.NoError(t, err)
	m, err := s.Costs(t.Context(), cost.ByKind, cost.MonthOf(at))
	require.NoError(t, err)
	r := cost.Summarize(cost.ByKind, m.Lines, 100)
	require.Equal(t, r.Total, o.Costs.Total, at)
	require.NotEmpty(t, o.Costs.Kinds)
	require.LessOrEqual(t, len(o.Costs.Days), 7)
	for i := range min(len(m.Days), len(o.Costs.Days)) {
		require.Equal(t, m.Days[len(m.Days)-1-i], o.Costs.Days[len(o.Costs.Days)-1-i])
	}
}

// TestPriceHistoryIsKept: reading the same list again adds nothing, and a changed price ends when the next
// begins.
func TestPriceHistoryIsKept(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	exec(t, s, `TRUNCATE provider_prices`)
	c := server.ProviderCatalog{Currency: "EUR", ServerTypes: []server.OfferedType{{Name: "cx43", At: []server.OfferedAt{{Location: "fsn1", PeriodPrice: server.PeriodPrice{
		Hourly: server.Price{Net: "0.0256"}, Monthly: server.Price{Net: "15.99"},
	}}}}}, VolumeGBMonth: server.Price{Net: "0.044"}, ImageGBMonth: server.Price{Net: "free"}}
	for range 2 {
		require.NoError(t, s.SaveProviderCatalog(ctx, prego.ProviderHetzner, c))
	}
	count := func(where string) int {
		t.Helper()
		n, err := value[int](ctx, s.pool, `SELECT count(*)::int FROM provider_prices WHERE `+where)
		require.NoError(t, err)
		return n
	}
	require.Equal(t, 2, count("true"), "an invalid amount is unknown")
	c.ServerTypes[0].At[0].Monthly.Net = "16.49"
	require.NoError(t, s.SaveProviderCatalog(ctx, prego.ProviderHetzner, c))
	require.Equal(t, 3, count("true"))
	require.Equal(t, 1, count("kind = 'server' AND monthly = 15990000 AND valid_to IS NOT NULL"))
	require.Equal(t, 1, count("kind = 'server' AND monthly = 16490000 AND hourly = 25600 AND valid_to IS NULL"))
	c.ServerTypes = nil
	require.NoError(t, s.SaveProviderCatalog(ctx, prego.ProviderHetzner, c))
	require.Equal(t, 1, count("kind = 'server' AND valid_to IS NULL"), "earlier resources still cost")
}

// TestLedgerNamesOwners: each kind of resource with its owner and price, and those without a row, by
// filters.
func TestLedgerNamesOwners(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := costWorld(t)
	exec(t, s, costServer, "app-1", "app", nil, nil, nil)
	exec(t, s, costMade, "server", "app-1", "app-1", september(1, 0, 0))
	exec(t, s, costMade, "primary_ip", "app-1-ip0", "app-1", september(1, 0, 0))
	exec(t, s, costServer, "warm-1", "node", "starter", nil, nil)
	exec(t, s, costMade, "server", "warm-1", "warm-1", september(2, 0, 0))
	exec(t, s, costMade, "firewall", "fw", nil, september(3, 0, 0))
	exec(t, s, costMade, "server", "gone", nil, september(1, 0, 0))
	exec(t, s, costGone, "gone", september(2, 0, 0))
	exec(t, s, `INSERT INTO orphan_sightings (provider, kind, provider_id, name) VALUES ('hetzner', 'server', '99', 'lost'), ('hetzner', 'server', 'app-1', 'has a row')`)
	list := func(q prego.ListQuery) (out []string) {
		t.Helper()
		q.Limit = 2
		for {
			page, next, err := Ledger.In(s)(ctx, q)
			require.NoError(t, err)
			for _, r := range page {
				price := "?"
				if r.PriceKnown() {
					price = r.PriceMonth.String()
				}
				out = append(out, r.Name+" "+string(r.State)+" "+string(r.OwnerKind)+":"+r.OwnerID+" "+price)
			}
			if next == "" {
				return out
			}
			q.Cursor = next
		}
	}
	filter := func(field string, values ...string) prego.ListQuery {
		return prego.ListQuery{Sort: "name", Filters: map[string][]string{field: values}}
	}
	require.Equal(t, []string{
		"app-1 created server:app-1 12.00", "app-1-ip0 created server:app-1 0.50", "fw created environment: 0.00", "lost untracked none: ?", "warm-1 created pool:warm/eu/starter 12.00",
	}, list(prego.ListQuery{Sort: "name"}))
	require.Equal(t, []string{"lost untracked none: ?"}, list(filter("state", "untracked")))
	require.Equal(t, []string{"gone released environment: 12.00"}, list(filter("state", "released")))
	require.Equal(t, []string{"warm-1 created pool:warm/eu/starter 12.00"}, list(filter("owner", "pool:warm/eu/starter")))
	require.Len(t, list(filter("owner", "server", "none")), 3)
	require.Len(t, list(filter("kind", "server")), 3)
	require.Len(t, list(filter("location", "fsn1")), 4)
	require.Equal(t, "lost untracked none: ?", list(prego.ListQuery{Sort: "price_month"})[0], "unknown prices come first")
}
