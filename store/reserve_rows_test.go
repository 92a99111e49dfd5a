package store

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/tenant"
)

// reserving are the places of placeFleet, a second one of each kind, and tenants that ask for places: t, u and w, the
// enterprise tenant v, and one in another region.
func reserving(t *testing.T) *Store {
	t.Helper()
	s := New(pgtest.Pool(t))
	exec(t, s, placeFleet+`
		INSERT INTO servers SELECT (jsonb_populate_record(s,
			jsonb_build_object('server_id', server_id || '-2', 'private_address', host(private_address + 10)))).*
		FROM servers s WHERE role <> 'node';
		INSERT INTO db_shards (shard_id, server_id, region, on_node, tenant_capacity)
		VALUES ('db-2', 'db-2', 'eu', false, 3);
		INSERT INTO redis_pools (pool_id, server_id, region, on_node, tenant_capacity)
		VALUES ('redis-2', 'redis-2', 'eu', false, 3);
		INSERT INTO site_pool
			(pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, available_at)
		VALUES ('site-2', 'app-2', 'db-2', 'site-2.pool', 'pool_site_2', 'available', now());
		INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy,
			request_hash, state, created_by, generation)
		SELECT id, id, 'o', CASE id WHEN 'far' THEN 'us' ELSE 'eu' END,
			CASE id WHEN 'v' THEN 'enterprise' ELSE 'starter' END, 10, 10, 'shared', '', 'provisioning', 'test', 1
		FROM unnest('{t,u,w,v,far}'::text[]) id;`)
	return s
}

// placeOf is a tenant's reservation of the first app server, shard, pool and site.
func placeOf(tenantID prego.TenantID) tenant.Reservation {
	return tenant.Reservation{
		TenantID: tenantID, Generation: 1,
		AppServerID: "app", DBShardID: "db", RedisPoolID: "redis", PoolSiteID: "site",
		SiteName: string(tenantID) + ".sites", DatabaseName: string(tenantID), Mode: tenant.ModeShared,
		Algorithm: "best_fit", AuditAs: "best_fit", MemoryPctMax: 70, MaxTenants: 3, ReserveFor: time.Minute,
		Decision: []byte(`{}`), Policy: []byte(`{}`), Actor: "test",
	}
}

// aloneAt has a server for itself.
func aloneAt(r tenant.Reservation) tenant.Reservation {
	r.Mode, r.Dedicates = tenant.ModeOneTenantOneServer, true
	return r
}

const sqlReservable = `SELECT unnest(
	ARRAY(SELECT 'tenant ' || tenant_id FROM tenants FOR NO KEY UPDATE SKIP LOCKED)
	|| ARRAY(SELECT 'server ' || server_id FROM servers FOR NO KEY UPDATE SKIP LOCKED)
	|| ARRAY(SELECT 'shard ' || shard_id FROM db_shards FOR NO KEY UPDATE SKIP LOCKED)
	|| ARRAY(SELECT 'pool ' || pool_id FROM redis_pools FOR NO KEY UPDATE SKIP LOCKED)
	|| ARRAY(SELECT 'site ' || pool_site_id FROM site_pool FOR NO KEY UPDATE SKIP LOCKED))`

// TestReservationHoldsOnlyWhatItTakes: heartbeats and reservations of all other rows wait for none. A tenant that gets
// a dedicated shard or pool holds its server, too, so that no instance starts there meanwhile.
func TestReservationHoldsOnlyWhatItTakes(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := reserving(t)
	shared := []string{"tenant t", "server app", "shard db", "pool redis", "site site"}
	hosts := append([]string{"server db", "server redis"}, shared...)
	const enterprise = `UPDATE tenants SET plan = 'enterprise' WHERE tenant_id = 't'`
	const ownRedis = `UPDATE tenants SET dedicated_redis = true WHERE tenant_id = 't'`
	override := func(r tenant.Reservation) tenant.Reservation {
		r.Override = true
		return r
	}
	for name, tc := range map[string]struct {
		change string
		r      tenant.Reservation
		held   []string
	}{
		"shared":                    {r: placeOf("t"), held: shared},
		"a dedicated server":        {r: aloneAt(placeOf("t")), held: hosts},
		"enterprise":                {change: enterprise, r: placeOf("t"), held: hosts},
		"a Redis pool by contract":  {change: ownRedis, r: placeOf("t"), held: hosts},
		"an override":               {r: override(placeOf("t")), held: shared},
		"an override of empty ones": {r: override(aloneAt(placeOf("t"))), held: hosts},
	} {
		for _, inLine := range []bool{false, true} {
			if inLine && tc.r.Override {
				continue
			}
			t.Run(name, func(t *testing.T) {
				tx, err := s.pool.Begin(ctx)
				require.NoError(t, err)
				defer func() { _ = tx.Rollback(ctx) }()
				before, err := values[string](ctx, s.pool, sqlReservable)
				require.NoError(t, err)
				if tc.change != "" { // is not visible to others
					_, err = tx.Exec(ctx, tc.change)
					require.NoError(t, err)
				}
				out, err := reserve(ctx, tx, inLine, tc.r)
				require.NoError(t, err)
				require.Equal(t, tenant.ReservePlaced, out[0].Outcome, "%v", out)
				free, err := values[string](ctx, s.pool, sqlReservable)
				require.NoError(t, err)
				held := slices.DeleteFunc(before, func(row string) bool { return slices.Contains(free, row) })
				require.ElementsMatch(t, tc.held, held)
			})
		}
	}
}

// TestHeldRowsAreLost: a reservation never waits for a row of the fleet. Alone it waits for its own tenant's row, and
// in line for the batches of its region.
func TestHeldRowsAreLost(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := reserving(t)
	exec(t, s, `UPDATE tenants SET plan = 'business', dedicated_redis = true WHERE tenant_id = 'v';
		UPDATE db_shards SET plan_tier_lock = 'business' WHERE shard_id = 'db-2'`)
	redis := placeOf("v")
	redis.AppServerID, redis.DBShardID, redis.PoolSiteID = "app-2", "db-2", ""
	const waits = "waits"
	line := func(region string) string {
		return `SELECT pg_advisory_xact_lock(hashtextextended('prego/placements/` + region + `', 0))`
	}
	row := func(table, which string) string {
		return `SELECT FROM ` + table + ` WHERE ` + which + ` FOR NO KEY UPDATE`
	}
	for _, tc := range []struct {
		holds          string
		r              tenant.Reservation
		single, inLine string // what is lost
	}{
		{row("tenants", `tenant_id = 't'`), placeOf("t"), waits, "tenant"},
		{row("tenants", `tenant_id = 'u'`), placeOf("t"), "", ""},
		{line("eu"), placeOf("t"), "", waits},
		{line("us"), placeOf("t"), "", ""},
		{row("servers", `server_id = 'app'`), placeOf("t"), "app_server", "app_server"},
		{row("db_shards", `shard_id = 'db'`), placeOf("t"), "db_shard", "db_shard"},
		{row("redis_pools", `pool_id = 'redis'`), placeOf("t"), "redis_pool", "redis_pool"},
		{row("site_pool", `pool_site_id = 'site'`), placeOf("t"), "site", "site"},
		{row("servers", `server_id IN ('db', 'redis')`), placeOf("t"), "", ""},
		{row("servers", `server_id = 'db'`), aloneAt(placeOf("t")), "db_shard", "db_shard"},
		{row("servers", `server_id = 'redis'`), aloneAt(placeOf("t")), "redis_pool", "redis_pool"},
		{row("servers", `server_id = 'db-2'`), redis, "", ""},
		{row("servers", `server_id = 'redis'`), redis, "redis_pool", "redis_pool"},
		{row("servers", `server_id LIKE '%-2'`), placeOf("t"), "", ""},
		{row("db_shards", `shard_id <> 'db'`), placeOf("t"), "", ""},
		{row("redis_pools", `pool_id <> 'redis'`), placeOf("t"), "", ""},
		{row("site_pool", `pool_site_id <> 'site'`), placeOf("t"), "", ""},
	} {
		t.Run(tc.holds, func(t *testing.T) {
			holder, err := s.pool.Begin(ctx)
			require.NoError(t, err)
			defer func() { _ = holder.Rollback(ctx) }()
			_, err = holder.Exec(ctx, tc.holds)
			require.NoError(t, err)
			for inLine, want := range map[bool]string{false: tc.single, true: tc.inLine} {
				tx, err := s.pool.Begin(ctx)
				require.NoError(t, err)
				_, err = tx.Exec(ctx, `SET LOCAL lock_timeout = '50ms'`)
				require.NoError(t, err)
				out, err := reserve(ctx, tx, inLine, tc.r)
				require.NoError(t, tx.Rollback(ctx))
				if want == waits {
					require.ErrorContains(t, err, "lock timeout", "in line: %t", inLine)
					continue
				}
				require.NoError(t, err, "in line: %t", inLine)
				require.Equal(t, want, out[0].Lost, "in line: %t", inLine)
				require.Equal(t, want == "", out[0].Outcome == tenant.ReservePlaced)
			}
		})
	}
}

// TestOnlyAskingTenantsGetPlaces: none that ended or changed since the decision, or has a place, and no second request
// of one batch.
func TestOnlyAskingTenantsGetPlaces(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := reserving(t)
	const was = `INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name,
		database_name, infra_provider, algorithm, released_at) SELECT `
	for change, want := range map[string]tenant.ReserveOutcome{
		`SELECT`: tenant.ReservePlaced,
		`UPDATE tenants SET state = 'trial' WHERE tenant_id = 't'`:             tenant.ReservePlaced,
		`UPDATE tenants SET state = 'active' WHERE tenant_id = 't'`:            tenant.ReserveGone,
		`UPDATE tenants SET state = 'failed' WHERE tenant_id = 't'`:            tenant.ReserveGone,
		`UPDATE tenants SET state = 'terminated' WHERE tenant_id = 't'`:        tenant.ReserveGone,
		`UPDATE tenants SET state = 'active' WHERE tenant_id = 'u'`:            tenant.ReservePlaced,
		`UPDATE tenants SET cancel_requested_at = now() WHERE tenant_id = 't'`: tenant.ReserveGone,
		`UPDATE tenants SET generation = 2 WHERE tenant_id = 't'`:              tenant.ReserveGone,
		`DELETE FROM tenants WHERE tenant_id = 't'`:                            tenant.ReserveGone,
		was + `'t', 'app', 'db', 'redis', '', '', 'hetzner', 'test', NULL`:     tenant.ReserveAlready,
		was + `'t', 'app', 'db', 'redis', '', '', 'hetzner', 'test', now()`:    tenant.ReservePlaced,
		was + `'u', 'app', 'db', 'redis', '', '', 'hetzner', 'test', NULL`:     tenant.ReservePlaced,
	} {
		t.Run(change, func(t *testing.T) {
			for _, inLine := range []bool{false, true} {
				tx, err := s.pool.Begin(ctx)
				require.NoError(t, err)
				_, err = tx.Exec(ctx, change)
				require.NoError(t, err)
				out, err := reserve(ctx, tx, inLine, placeOf("t"))
				require.NoError(t, err)
				require.NoError(t, tx.Rollback(ctx))
				require.Equal(t, want, out[0].Outcome, "in line: %t, %v", inLine, out)
				require.Empty(t, out[0].Lost)
				require.Equal(t, want != tenant.ReserveGone, out[0].AllocationID > 0)
			}
		})
	}
	second := placeOf("t")
	second.PoolSiteID = ""
	out, err := s.ReserveAll(ctx, []tenant.Reservation{placeOf("t"), second})
	require.NoError(t, err)
	require.Equal(t, tenant.ReservePlaced, out[0].Outcome)
	require.Equal(t, tenant.ReserveResult{Outcome: tenant.ReserveLost, Lost: "tenant", LostID: "t"}, out[1])
	require.Equal(t, 1, count(t, s, `tenant_allocations`))
}

// TestLostPlacesAreNotWritten: a batch neither waits for the rows that a tenant lost nor reports them as changed, and
// places the others.
func TestLostPlacesAreNotWritten(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := reserving(t)
	second := placeOf("u")
	second.AppServerID, second.DBShardID, second.RedisPoolID, second.PoolSiteID = "app-2", "db-2", "redis-2", "site-2"
	for lost, held := range map[string]string{
		"app_server": `servers WHERE server_id = 'app'`, "db_shard": `db_shards WHERE shard_id = 'db'`,
		"redis_pool": `redis_pools WHERE pool_id = 'redis'`, "site": `site_pool WHERE pool_site_id = 'site'`,
	} {
		t.Run(lost, func(t *testing.T) {
			holder, err := s.pool.Begin(ctx)
			require.NoError(t, err)
			defer func() { _ = holder.Rollback(ctx) }()
			_, err = holder.Exec(ctx, `SELECT FROM `+held+` FOR NO KEY UPDATE`)
			require.NoError(t, err)
			tx, err := s.pool.Begin(ctx)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(ctx) }()
			_, err = tx.Exec(ctx, `SET LOCAL lock_timeout = '50ms'; DELETE FROM changes`)
			require.NoError(t, err)
			out, err := reserve(ctx, tx, true, placeOf("t"), second)
			require.NoError(t, err)
			require.Equal(t, []string{lost, ""}, []string{out[0].Lost, out[1].Lost})
			changed, err := values[string](ctx, tx, `SELECT kind || ' ' || id FROM changes ORDER BY 1`)
			require.NoError(t, err)
			require.Equal(t,
				[]string{"db_shards db-2", "redis_pools redis-2", "servers app-2", "site_pool site-2"}, changed)
		})
	}
}

// TestBatchesTakeNoMoreThanThereIs: tenants that need something dedicated come first, the others take what these leave,
// and a tenant that loses takes nothing.
func TestBatchesTakeNoMoreThanThereIs(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := reserving(t)
	// of are tenants at "app", "db" and "redis", or the second one of each that a "2" names, without a site.
	of := func(tenantID prego.TenantID, second string) tenant.Reservation {
		r := placeOf(tenantID)
		r.PoolSiteID = ""
		if strings.Contains(second, "a") {
			r.AppServerID = "app-2"
		}
		if strings.Contains(second, "d") {
			r.DBShardID = "db-2"
		}
		if strings.Contains(second, "r") {
			r.RedisPoolID = "redis-2"
		}
		return r
	}
	for name, tc := range map[string]struct {
		change string
		rs     []tenant.Reservation
		lost   []string // "" for a place
		rows   string   // that were written: how many more tenants, and the tenant that has it to itself
	}{
		"the app server has room for two": {
			`UPDATE servers SET tenant_count = 1 WHERE server_id = 'app'`,
			[]tenant.Reservation{of("t", ""), of("u", ""), of("w", "")},
			[]string{"", "", "app_server"},
			"app 3, db 2, redis 2",
		},
		"the shard has room for two": {
			`UPDATE db_shards SET current_tenant_count = 1 WHERE shard_id = 'db'`,
			[]tenant.Reservation{of("t", ""), of("u", ""), of("w", "")},
			[]string{"", "", "db_shard"},
			"app 2, db 3, redis 2",
		},
		"the pool has room for two": {
			`UPDATE redis_pools SET current_tenants = 1 WHERE pool_id = 'redis'`,
			[]tenant.Reservation{of("t", ""), of("u", ""), of("w", "")},
			[]string{"", "", "redis_pool"},
			"app 2, db 2, redis 3",
		},
		"room for all": {
			`SELECT`,
			[]tenant.Reservation{of("t", ""), of("u", ""), of("w", "")},
			[]string{"", "", ""},
			"app 3, db 3, redis 3",
		},
		"a site twice": {
			`SELECT`,
			[]tenant.Reservation{placeOf("t"), placeOf("u")},
			[]string{"", "site"},
			"app 1, db 1, redis 1, site t",
		},
		"enterprise first, with the app server": {
			`SELECT`,
			[]tenant.Reservation{of("t", "dr"), of("v", "")},
			[]string{"app_server", ""},
			"app 1 v, db 1 v, redis 1 v",
		},
		"enterprise first, with the shard": {
			`SELECT`,
			[]tenant.Reservation{of("t", "ar"), of("v", "")},
			[]string{"db_shard", ""},
			"app 1 v, db 1 v, redis 1 v",
		},
		"enterprise first, with the pool": {
			`SELECT`,
			[]tenant.Reservation{of("t", "ad"), of("v", "")},
			[]string{"redis_pool", ""},
			"app 1 v, db 1 v, redis 1 v",
		},
		"beside enterprise": {
			`SELECT`,
			[]tenant.Reservation{of("t", "adr"), of("v", "")},
			[]string{"", ""},
			"app 1 v, app-2 1, db 1 v, db-2 1, redis 1 v, redis-2 1",
		},
		"what is dedicated to another one stays so": {
			`UPDATE servers SET dedicated_for_tenant_id = 't' WHERE server_id = 'app-2';
			UPDATE db_shards SET dedicated_for_tenant_id = 't' WHERE shard_id = 'db-2';
			UPDATE redis_pools SET dedicated_for_tenant_id = 't' WHERE pool_id = 'redis-2'`,
			[]tenant.Reservation{of("t", "adr"), of("v", "")},
			[]string{"", ""},
			"app 1 v, app-2 1 t, db 1 v, db-2 1 t, redis 1 v, redis-2 1 t",
		},
		"own Redis first": {
			`UPDATE tenants SET plan = 'business', dedicated_redis = true WHERE tenant_id = 'u';
			UPDATE db_shards SET plan_tier_lock = 'business' WHERE shard_id = 'db-2'`,
			[]tenant.Reservation{of("t", ""), of("u", "ad")},
			[]string{"redis_pool", ""},
			"app-2 1, db-2 1, redis 1 u",
		},
		"one own Redis": {
			`UPDATE tenants SET plan = 'business', dedicated_redis = true WHERE tenant_id IN ('t', 'u');
			UPDATE db_shards SET plan_tier_lock = 'business'`,
			[]tenant.Reservation{of("t", ""), of("u", "ad")},
			[]string{"", "redis_pool"},
			"app 1, db 1, redis 1 t",
		},
		"the app server has a tenant with its own Redis": {
			`UPDATE tenants SET plan = 'business', dedicated_redis = true WHERE tenant_id = 't';
			UPDATE db_shards SET plan_tier_lock = 'business'`,
			[]tenant.Reservation{of("t", ""), of("v", "dr")},
			[]string{"", "app_server"},
			"app 1, db 1, redis 1 t",
		},
		"the shard has a tenant with its own Redis": {
			`UPDATE tenants SET plan = 'business', dedicated_redis = true WHERE tenant_id = 't';
			UPDATE db_shards SET plan_tier_lock = 'business'`,
			[]tenant.Reservation{of("t", ""), of("v", "ar")},
			[]string{"", "db_shard"},
			"app 1, db 1, redis 1 t",
		},
		"a loser takes nothing": {
			`UPDATE redis_pools SET status = 'draining' WHERE pool_id = 'redis-2'`,
			[]tenant.Reservation{of("v", "r"), of("t", "")},
			[]string{"redis_pool", ""},
			"app 1, db 1, redis 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			tx, err := s.pool.Begin(ctx)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(ctx) }()
			_, err = tx.Exec(ctx, tc.change)
			require.NoError(t, err)
			out, err := reserve(ctx, tx, true, tc.rs...)
			require.NoError(t, err)
			var lost []string
			for _, r := range out {
				lost = append(lost, r.Lost)
				require.Equal(t, r.Lost == "", r.Outcome == tenant.ReservePlaced)
			}
			require.Equal(t, tc.lost, lost)
			rows, err := value[string](ctx, tx, `SELECT string_agg(concat_ws(' ', id, n, owner), ', ' ORDER BY id)
				FROM (SELECT server_id, tenant_count, dedicated_for_tenant_id FROM servers
				UNION ALL SELECT shard_id, current_tenant_count, dedicated_for_tenant_id FROM db_shards
				UNION ALL SELECT pool_id, current_tenants, dedicated_for_tenant_id FROM redis_pools
				UNION ALL SELECT pool_site_id, NULL, tenant_id FROM site_pool) x (id, n, owner)
				WHERE n > 0 OR n IS NULL AND owner IS NOT NULL`)
			require.NoError(t, err)
			require.Equal(t, tc.rows, rows)
		})
	}
}
