package store

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// The engine decides on a snapshot, and the reservation looks at the rows again. What follows holds the two together:
// for each condition of a place there are rows that it alone decides on.

// placeFleet is a place of each kind for a tenant of the org o: app, db and redis, whose rows are named for their servers,
// and a node. Each has a fleet that serves tenants, is in one network, and its agent has measured a little.
const placeFleet = `
INSERT INTO orgs (org_id, tier, created_by) VALUES ('o', 'enterprise', 'test'), ('another', 'enterprise', 'test');
INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range) VALUES
	('n1', 'hetzner', 'eu-central', 1, '10.64.0.0/24'), ('n2', 'hetzner', 'eu-central', 2, '10.64.1.0/24');
INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, min_size, max_size, spec, created_by, serves_tenants)
SELECT role, '', role, 'hetzner', 0, -1, '{}', 'test', true FROM unnest('{app,db-shard,redis-pool,node}'::text[]) role;
INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, active_at,
	fleet_id, network_id, private_address, memory_pct, cpu_pct, worker_slots_pct, db_disk_pct, redis_memory_pct, tags)
SELECT id, '', role, 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', now(), role, 'n1', address::inet, 69.9, 79.9, 88.9, 87.9, 86.9, '{green}'
FROM (VALUES ('app', 'app', '10.64.0.2'), ('db', 'db-shard', '10.64.0.3'), ('redis', 'redis-pool', '10.64.0.4'), ('node', 'node', '10.64.0.5')) v (id, role, address);
INSERT INTO db_shards (shard_id, server_id, region, on_node, tenant_capacity) VALUES ('db', 'db', 'eu', false, 3), ('node', 'node', 'eu', true, 3);
INSERT INTO redis_pools (pool_id, server_id, region, on_node, tenant_capacity) VALUES ('redis', 'redis', 'eu', false, 3), ('node', 'node', 'eu', true, 3);
INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, available_at) VALUES
	('site', 'app', 'db', 'site.pool', 'pool_site', 'available', now()), ('node-site', 'node', 'node', 'node-site.pool', 'pool_node', 'available', now());`

// wish is a tenant that asks for a place, and the place.
type wish struct {
	plan             prego.Plan
	mode             tenant.PlacementMode
	redis            bool // wants a Redis pool by contract
	app, shard, pool string
	site             string
	lock             prego.Plan // of the shard
}

var placeWishes = map[string]wish{
	"trial":                 {plan: "trial", app: "app", shard: "db", pool: "redis", site: "site"},
	"starter":               {plan: "starter", app: "app", shard: "db", pool: "redis", site: "site"},
	"starter on demand":     {plan: "starter", app: "app", shard: "db", pool: "redis"},
	"starter on a node":     {plan: "starter", app: "node", shard: "node", pool: "node", site: "node-site"},
	"business, own Redis":   {plan: "business", app: "app", shard: "db", pool: "redis", site: "site", lock: "business", redis: true},
	"enterprise":            {plan: "enterprise", app: "app", shard: "db", pool: "redis", site: "site"},
	"enterprise on a node":  {plan: "enterprise", app: "node", shard: "node", pool: "node", site: "node-site"},
	"starter, own server":   {plan: "starter", mode: tenant.ModeOneTenantOneServer, app: "app", shard: "db", pool: "redis", site: "site"},
	"trial on its own node": {plan: "trial", mode: tenant.ModeOneTenantOneServer, app: "node", shard: "node", pool: "node", site: "node-site"},
}

// condition is a change of the rows named A, D, R and S: the wish's app server, shard, pool and site, and DH and
// RH, the servers of shard and pool. at names the loss that the reservation reports where the change matters; "" where
// it never does.
type condition struct{ at, change string }

var placeConditions = func() map[string]condition {
	out := map[string]condition{
		"no change": {},

		"the site is not available": {"site", `UPDATE site_pool SET state = 'draining', reserved_until = NULL
			WHERE pool_site_id = 'S'`},
		"the site is reserved":              {"site", `UPDATE site_pool SET state = 'reserved', reserved_until = now() WHERE pool_site_id = 'S'`},
		"the site is gone":                  {"site", `DELETE FROM site_pool WHERE pool_site_id = 'S'`},
		"the site is of another app server": {"site", `UPDATE site_pool SET app_server_id = 'elsewhere' WHERE pool_site_id = 'S'`},
		"the site is of another shard":      {"site", `UPDATE site_pool SET db_shard_id = 'elsewhere' WHERE pool_site_id = 'S'`},

		"the app server is gone":                  {"app_server", `DELETE FROM servers WHERE server_id = 'A'`},
		"the app server is a db-shard":            {"app_server", `UPDATE servers SET role = 'db-shard' WHERE server_id = 'A'`},
		"the app server is an edge":               {"app_server", `UPDATE servers SET role = 'edge' WHERE server_id = 'A'`},
		"the app server is cordoned":              {"app_server", `UPDATE servers SET cordoned_at = now() WHERE server_id = 'A'`},
		"the app server is in another region":     {"app_server", `UPDATE servers SET region = 'us' WHERE server_id = 'A'`},
		"the tenant is of another region":         {"app_server", `UPDATE tenants SET region = 'us'`},
		"the app server is another tenant's":      {"app_server", `UPDATE servers SET dedicated_for_tenant_id = 'x' WHERE server_id = 'A'`},
		"the app server is the tenant's":          {"", `UPDATE servers SET dedicated_for_tenant_id = 't' WHERE server_id = 'A'`},
		"the app server has a tenant":             {"app_server", `UPDATE servers SET tenant_count = 1 WHERE server_id = 'A'`},
		"the app server has room for one":         {"app_server", `UPDATE servers SET tenant_count = 2 WHERE server_id = 'A'`},
		"the app server is full":                  {"app_server", `UPDATE servers SET tenant_count = 3 WHERE server_id = 'A'`},
		"the app server refuses trials":           {"app_server", `UPDATE servers SET accepts_trial = false WHERE server_id = 'A'`},
		"memory at its limit":                     {"app_server", `UPDATE servers SET memory_pct = 70 WHERE server_id = 'A'`},
		"memory unknown":                          {"", `UPDATE servers SET memory_pct = NULL WHERE server_id = 'A'`},
		"CPU at its limit":                        {"app_server", `UPDATE servers SET cpu_pct = 80 WHERE server_id = 'A'`},
		"CPU unknown":                             {"", `UPDATE servers SET cpu_pct = NULL WHERE server_id = 'A'`},
		"worker slots at their limit":             {"app_server", `UPDATE servers SET worker_slots_pct = 89 WHERE server_id = 'A'`},
		"worker slots unknown":                    {"", `UPDATE servers SET worker_slots_pct = NULL WHERE server_id = 'A'`},
		"the app server's fleet serves no tenant": {"app_server", `UPDATE fleets SET serves_tenants = false WHERE fleet_id = (SELECT fleet_id FROM servers WHERE server_id = 'A')`},
		"a fleet that serves nobody, but the server is the tenant's": {"", `UPDATE servers SET dedicated_for_tenant_id = 't' WHERE server_id = 'A';
			UPDATE fleets SET serves_tenants = false WHERE fleet_id = (SELECT fleet_id FROM servers WHERE server_id = 'A')`},
		"no fleet":          {"", `UPDATE servers SET fleet_id = NULL`},
		"a silent agent":    {"", `UPDATE servers SET agent_status = 'disconnected' WHERE server_id = 'A'`},
		"warm for the plan": {"app_server", `UPDATE servers SET warm_plan = (SELECT plan FROM tenants) WHERE server_id = 'A'`},
		"warm for another":  {"app_server", `UPDATE servers SET warm_plan = (SELECT CASE plan WHEN 'trial' THEN 'starter' ELSE 'trial' END FROM tenants) WHERE server_id = 'A'`},
		"warm and in use":   {"app_server", `UPDATE servers SET warm_plan = (SELECT plan FROM tenants), tenant_count = 1 WHERE server_id = 'A'`},
		"warm and silent":   {"app_server", `UPDATE servers SET warm_plan = (SELECT plan FROM tenants), agent_status = 'disconnected' WHERE server_id = 'A'`},
		"warm, in use and silent": {"app_server", `UPDATE servers SET warm_plan = (SELECT plan FROM tenants), tenant_count = 1, agent_status = 'disconnected'
			WHERE server_id = 'A'`},
		"warm and the tenant's, its agent silent": {"app_server", `UPDATE servers SET warm_plan = (SELECT plan FROM tenants), dedicated_for_tenant_id = 't', agent_status = 'degraded' WHERE server_id = 'A'`},
		"warm and the tenant's":                   {"", `UPDATE servers SET warm_plan = 'business', dedicated_for_tenant_id = 't' WHERE server_id = 'A'`},

		"the provider is off":                   {"app_server", `UPDATE infra_providers SET enabled = false WHERE id = 'hetzner'`},
		"the provider has left the region":      {"app_server", `UPDATE infra_providers SET regions = '{sg,us}' WHERE id = 'hetzner'`},
		"a provider that is off":                {"app_server", `UPDATE servers SET infra_provider = 'aws' WHERE server_id = 'A'; UPDATE infra_providers SET regions = '{eu}' WHERE id = 'aws'`},
		"a provider that is not in the region":  {"app_server", `UPDATE servers SET infra_provider = 'aws' WHERE server_id = 'A'; UPDATE infra_providers SET enabled = true, regions = '{us}' WHERE id = 'aws'`},
		"residents of a country of the region":  {"", `UPDATE tenants SET data_residency = 'DE'`},
		"residents of a country elsewhere":      {"app_server", `UPDATE tenants SET data_residency = 'US'`},
		"residents of a country without a zone": {"app_server", `UPDATE tenants SET data_residency = 'ZZ'`},
		"residents kept from the provider":      {"app_server", `UPDATE tenants SET data_residency = 'DE'; UPDATE residency_zones SET providers = '{aws}' WHERE country = 'DE'`},
		"residents kept from the server's provider": {"app_server", `UPDATE tenants SET data_residency = 'DE'; UPDATE residency_zones SET providers = '{hetzner}' WHERE country = 'DE';
			UPDATE servers SET infra_provider = 'aws' WHERE server_id = 'A'; UPDATE infra_providers SET enabled = true, regions = '{eu}' WHERE id = 'aws'`},

		"the tenant requires a tag that is there":     {"", `UPDATE tenants SET require_tags = '{green}'`},
		"the tenant requires a tag that is not there": {"constraint", `UPDATE tenants SET require_tags = '{blue}'`},
		"the tenant disallows a tag that is there":    {"constraint", `UPDATE tenants SET disallow_tags = '{green}'`},
		"the org's pool requires another tag": {"constraint", `INSERT INTO placement_pools (pool_id, name, require_tags, disallow_tags, created_by, updated_by) VALUES ('p', 'p', '{blue}', '{}', 'test', 'test') ON CONFLICT DO NOTHING;
			INSERT INTO org_placement_pools (org_id, pool_id, created_by) VALUES ('o', 'p', 'test') ON CONFLICT DO NOTHING`},
		"the org's pool requires the tag": {"", `
			INSERT INTO placement_pools (pool_id, name, require_tags, disallow_tags, created_by, updated_by)
			VALUES ('p', 'p', '{green}', '{}', 'test', 'test') ON CONFLICT DO NOTHING;
			INSERT INTO org_placement_pools (org_id, pool_id, created_by) VALUES ('o', 'p', 'test') ON CONFLICT DO NOTHING`},
		"the default pool disallows the tag": {"constraint", `INSERT INTO placement_pools (pool_id, name, require_tags, disallow_tags, is_default, created_by, updated_by) VALUES ('p', 'p', '{}', '{green}', true, 'test', 'test') ON CONFLICT DO NOTHING`},
		"another org's pool requires another tag": {"", `INSERT INTO placement_pools (pool_id, name, require_tags, disallow_tags, created_by, updated_by) VALUES ('p', 'p', '{blue}', '{}', 'test', 'test') ON CONFLICT DO NOTHING;
			INSERT INTO org_placement_pools (org_id, pool_id, created_by) VALUES ('another', 'p', 'test') ON CONFLICT DO NOTHING`},

		"no network":                   {"", `UPDATE servers SET network_id = NULL, private_address = NULL`},
		"no address in any network":    {"", `UPDATE servers SET private_address = NULL`},
		"app server elsewhere":         {"db_shard", `UPDATE servers SET network_id = 'n2' WHERE server_id = 'A'`},
		"app server without address":   {"db_shard", `UPDATE servers SET private_address = NULL WHERE server_id = 'A'`},
		"shard elsewhere":              {"db_shard", `UPDATE servers SET network_id = 'n2' WHERE server_id = 'DH'`},
		"shard without address":        {"db_shard", `UPDATE servers SET private_address = NULL WHERE server_id = 'DH'`},
		"pool elsewhere":               {"redis_pool", `UPDATE servers SET network_id = 'n2' WHERE server_id = 'RH'`},
		"pool without address":         {"redis_pool", `UPDATE servers SET private_address = NULL WHERE server_id = 'RH'`},
		"the shard's lock is business": {"db_shard", `UPDATE db_shards SET plan_tier_lock = 'business' WHERE shard_id = 'D'`},
		"the shard's lock is trial":    {"db_shard", `UPDATE db_shards SET plan_tier_lock = 'trial' WHERE shard_id = 'D'`},
		"the shard's lock is starter":  {"db_shard", `UPDATE db_shards SET plan_tier_lock = 'starter' WHERE shard_id = 'D'`},
		"the shard has no lock":        {"db_shard", `UPDATE db_shards SET plan_tier_lock = NULL WHERE shard_id = 'D'`},
		"the shard's disk is full":     {"db_shard", `UPDATE servers SET db_disk_pct = 88 WHERE server_id = 'DH'`},
		"the disk is unknown":          {"", `UPDATE servers SET db_disk_pct = NULL WHERE server_id = 'DH'`},
		"the pool's memory is full":    {"redis_pool", `UPDATE servers SET redis_memory_pct = 87 WHERE server_id = 'RH'`},
		"the memory is unknown":        {"", `UPDATE servers SET redis_memory_pct = NULL WHERE server_id = 'RH'`},
	}
	for _, status := range []string{"provisioning", "draining", "failed", "terminated"} {
		out["the app server is "+status] = condition{"app_server", `UPDATE servers SET status = '` + status + `' WHERE server_id = 'A'`}
	}
	for _, state := range []string{"booting", "running", "draining", "failed", "stopped"} {
		for host, at := range map[string]string{"A": "app_server", "DH": "db_shard", "RH": "redis_pool"} {
			if state == "stopped" {
				at = ""
			}
			out["an instance on "+host+" that is "+state] = condition{at, `INSERT INTO instances (instance_id, group_id, org_id, server_id, release, number, memory_limit_bytes, cpu_request, spec, state)
				VALUES ('i', 'g', 'o', '` + host + `', 1, 1, 1, 0, '{}', '` + state + `') ON CONFLICT (instance_id) DO UPDATE SET state = excluded.state`}
		}
	}
	// Of a shard and of a pool: the table, its key, its count, the row and its server.
	for at, part := range map[string][5]string{
		"db_shard":   {"db_shards", "shard_id", "current_tenant_count", "D", "DH"},
		"redis_pool": {"redis_pools", "pool_id", "current_tenants", "R", "RH"},
	} {
		row := func(set string) string {
			return fmt.Sprintf(`UPDATE %s SET %s WHERE %s = '%s';`, part[0], set, part[1], part[3])
		}
		host := func(set string) string {
			return fmt.Sprintf(`UPDATE servers SET %s WHERE server_id = '%s';`, set, part[4])
		}
		serve := fmt.Sprintf(`UPDATE fleets SET serves_tenants = false WHERE fleet_id = (SELECT fleet_id FROM servers WHERE server_id = '%s');`, part[4])
		for name, c := range map[string]condition{
			"is gone":                             {at, fmt.Sprintf(`DELETE FROM %s WHERE %s = '%s'`, part[0], part[1], part[3])},
			"is draining":                         {at, row(`status = 'draining'`)},
			"is failed":                           {at, row(`status = 'failed'`)},
			"is terminated":                       {at, row(`status = 'terminated'`)},
			"is in another":                       {at, row(`region = 'us'`)},
			"is another tenant's":                 {at, row(`dedicated_for_tenant_id = 'x'`)},
			"is the tenant's":                     {"", row(`dedicated_for_tenant_id = 't'`)},
			"has a tenant":                        {at, row(part[2] + ` = 1`)},
			"has room for one":                    {at, row(part[2] + ` = 2`)},
			"is full":                             {at, row(part[2] + ` = 3`)},
			"is of a node":                        {at, row(`on_node = NOT on_node`)},
			"is of another node":                  {at, row(`server_id = 'elsewhere', on_node = true`) + `INSERT INTO servers SELECT (jsonb_populate_record(s, '{"server_id": "elsewhere"}')).* FROM servers s WHERE server_id = 'node' ON CONFLICT DO NOTHING`},
			"is cordoned":                         {at, host(`cordoned_at = now()`)},
			"is of a fleet that serves no tenant": {at, serve},
			"is the tenant's, of a fleet that serves nobody": {"", serve + row(`dedicated_for_tenant_id = 't'`) + fmt.Sprintf(`UPDATE servers SET dedicated_for_tenant_id = 't' WHERE server_id = '%s'`, part[4])},
		} {
			out["the "+at+" "+name] = c
		}
	}
	return out
}()

// ownRowsGone are conditions that never hold for a node: the rows of its own shard and pool are there as long as it is.
var ownRowsGone = regexp.MustCompile(`^the (db_shard|redis_pool) is (gone|terminated)$`)

// apply changes the rows.
func (w wish) apply(t require.TestingT, tx pgx.Tx, changes ...string) {
	hosts := strings.NewReplacer("'A'", "'"+w.app+"'", "'DH'", "'"+w.shard+"'", "'RH'", "'"+w.pool+"'", "'D'", "'"+w.shard+"'", "'R'", "'"+w.pool+"'", "'S'", "'"+w.site+"'")
	sql := hosts.Replace(strings.Join(changes, ";\n"))
	_, err := tx.Exec(context.Background(), sql)
	require.NoError(t, err, "%s", sql)
}

// rows are what a snapshot is made of, of the place alone.
func (w wish) rows(t require.TestingT, tx pgx.Tx) (d placement.Data) {
	var feed []changedRows
	b := &pgx.Batch{}
	queueRows(b, &feed, sqlChanges, newest, "", 100)
	queueRows(b, &d.Servers, sqlAllServers+` AND server_id = $1`, w.app)
	queueRows(b, &d.Shards, sqlAllShards+` AND d.shard_id = $1`, w.shard)
	queueRows(b, &d.Pools, sqlAllPools+` AND r.pool_id = $1`, w.pool)
	queueRows(b, &d.Sites, `SELECT pool_site_id, app_server_id, db_shard_id FROM site_pool WHERE state = 'available' AND pool_site_id = $1`, w.site)
	require.NoError(t, tx.SendBatch(context.Background(), b).Close())
	d.Providers, d.Residency, d.LastServer = feed[0].Providers, feed[0].Residency, w.app
	return d
}

// placedBy is how a wish was decided on: by an override, which may also skip the constraint, or before the rows
// changed, when the server was empty.
type placedBy struct{ override, anyTags, before bool }

// place compares the engine's result for a wish with what a reservation does, alone and together with others, and what
// both leave behind. It returns whether the tenant has the place, and what was lost.
func (w wish) place(t require.TestingT, conn *pgx.Conn, how placedBy, changes ...string) (bool, string) {
	ctx := context.Background()
	tx, err := conn.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(ctx) }()
	w.apply(t, tx, append([]string{
		fmt.Sprintf(`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by, dedicated_redis, generation)
			VALUES ('t', 't', 'o', 'eu', '%s', 10, 10, '%s', '', 'trial', 'test', %t, 1)`, w.plan, w.mode, w.redis),
		`UPDATE db_shards SET plan_tier_lock = NULLIF('` + string(w.lock) + `', '') WHERE shard_id = 'D'`,
	}, changes...)...)
	request := placement.Request{TenantID: "t", OrgID: "o", Plan: w.plan, DedicatedRedis: w.redis, Mode: w.mode}
	constraints, err := many[struct {
		Require, Disallow []string
		Region            prego.Region
		Residency         string
	}](ctx, tx, `SELECT require_tags AS require, disallow_tags AS disallow, region, COALESCE(data_residency, '') AS residency FROM tenants
		UNION ALL SELECT require_tags, disallow_tags, '', '' FROM placement_pools_of('o')`)
	require.NoError(t, err)
	for _, c := range constraints {
		request.Constraint = request.Constraint.Union(prego.Constraint{Require: c.Require, Disallow: c.Disallow})
	}
	request.Region, request.DataResidency = constraints[0].Region, constraints[0].Residency

	policy := placement.DefaultPolicy()
	policy.MemoryPctMax, policy.MaxTenantsPerNode = 70, 3
	policy.MeasuredLimits = tenant.MeasuredLimits{CPUPctMax: 80, WorkerSlotsPctMax: 89, DBDiskPctMax: 88, RedisMemoryPctMax: 87}
	snapshot := placement.NewSnapshot(policy, w.rows(t, tx))
	d := placement.Decision{KeptPlace: placement.KeptPlace{Outcome: placement.Placed, AppServerID: prego.ServerID(w.app), DBShardID: prego.ShardID(w.shard), RedisPoolID: prego.RedisPoolID(w.pool), PoolSiteID: w.site}, Mode: w.mode}
	if w.site == "" {
		d.Outcome = placement.OnDemandSite
	}
	var says error // of the engine
	if how.override {
		request.Override = &placement.Override{AppServerID: d.AppServerID, DBShardID: d.DBShardID, IgnoreConstraint: how.anyTags}
		srv, _ := snapshot.Server(d.AppServerID)
		d.InfraProvider = srv.InfraProvider
		d.Dedicates = placement.MustBeAlone(w.plan, w.mode, false) && (how.before || srv.TenantCount == 0 && !srv.RunsInstances)
		says = snapshot.CheckInvariants(request, d)
	} else if got, funnel := snapshot.Funnel(request, 9); got.Outcome != d.Outcome || got.AppServerID != d.AppServerID || got.DBShardID != d.DBShardID || got.RedisPoolID != d.RedisPoolID || got.PoolSiteID != d.PoolSiteID {
		says = fmt.Errorf("%s, %v", got.SelectionReason, got.Rejected)
		w.sees(t, tx, policy, funnel)
		d.Dedicates = placement.MustBeAlone(w.plan, w.mode, false)
	} else {
		d = got
		w.sees(t, tx, policy, funnel)
	}

	r := tenant.Reservation{
		TenantID: "t", Generation: 1, AppServerID: d.AppServerID, DBShardID: d.DBShardID, RedisPoolID: d.RedisPoolID, PoolSiteID: w.site, SiteName: "t.sites", DatabaseName: "t", Mode: w.mode,
		Algorithm: "best_fit", AuditAs: "audited", Dedicates: d.Dedicates, Override: how.override, AnyTags: how.anyTags, MemoryPctMax: policy.MemoryPctMax, MaxTenants: policy.MaxTenantsPerNode,
		MeasuredLimits: policy.MeasuredLimits, ReserveFor: time.Minute, Decision: []byte(`{"a": "decision"}`), Policy: []byte(`{"a": "policy"}`), Reason: "because", Actor: "test",
	}
	snapshot.Apply(request, d)
	var lost string
	for _, together := range []bool{false, true} {
		if together && how.override {
			continue // overrides are reserved alone
		}
		inner, err := tx.Begin(ctx)
		require.NoError(t, err)
		all, err := reserve(ctx, inner, together, r)
		require.NoError(t, err)
		out := all[0]
		if lost = out.Lost; says != nil {
			require.Equal(t, tenant.ReserveLost, out.Outcome, "together: %t; the engine reports: %v", together, says)
			require.Zero(t, w.allocations(t, inner))
		} else {
			require.Equal(t, tenant.ReservePlaced, out.Outcome, "together: %t, lost %s", together, out.Lost)
			after := placement.NewSnapshot(policy, w.rows(t, inner))
			require.Equal(t, snapshot.Keep(""), after.Keep(""), "what is left behind")
			w.written(t, inner, d)
		}
		require.NoError(t, inner.Rollback(ctx))
	}
	return says == nil, lost
}

// sees compares the result of each of the three rules for its row with the servers that the engine's filters removed.
// A node is also removed for its shard and pool.
func (w wish) sees(t require.TestingT, tx pgx.Tx, p placement.Policy, funnel placement.Funnel) {
	for i, takes := range []string{
		`server_takes(s, f, p, t, $2, false, false, ROW($3, $4, $5, $6, $7, $8)) FROM servers s JOIN infra_providers p ON p.id = s.infra_provider
			LEFT JOIN fleets f ON f.fleet_id = s.fleet_id, tenants t WHERE s.server_id = $1`,
		`shard_takes(d, s, f, t, $2, false, ROW($3, $4, $5, $6, $7, $8)) FROM db_shards d JOIN servers s ON s.server_id = d.server_id
			LEFT JOIN fleets f ON f.fleet_id = s.fleet_id, tenants t WHERE d.shard_id = $1`,
		`pool_takes(r, s, f, t, $2, false, ROW($3, $4, $5, $6, $7, $8)) FROM redis_pools r JOIN servers s ON s.server_id = r.server_id
			LEFT JOIN fleets f ON f.fleet_id = s.fleet_id, tenants t WHERE r.pool_id = $1`,
	} {
		part := funnel.Parts[i]
		if part.Candidates == 0 || i == 0 && w.app == w.shard {
			continue
		}
		filters := slices.DeleteFunc(slices.Clone(part.Filters), func(f placement.FunnelFilter) bool {
			return slices.Contains([]string{"constraint_mismatch", "network_zone_mismatch", "site_pool_empty", "no_db_shard", "no_redis_pool"}, f.Filter)
		})
		if len(filters) == 0 && len(part.Filters) > 0 && part.Filters[0].Filter == "constraint_mismatch" {
			continue // later filters were not looked at
		}
		have, err := value[bool](context.Background(), tx, `SELECT `+strings.Replace(takes, "$8)", "$8)::placement_limits", 1),
			[]string{w.app, w.shard, w.pool}[i], w.mode, p.MaxTenantsPerNode, p.MemoryPctMax, p.CPUPctMax, p.WorkerSlotsPctMax, p.DBDiskPctMax, p.RedisMemoryPctMax)
		require.NoError(t, err, takes)
		require.Equal(t, len(filters) == 0, have, "%s: %v", part.Kind, part.Filters)
	}
}

func (w wish) allocations(t require.TestingT, tx pgx.Tx) int {
	n, err := value[int](context.Background(), tx, `SELECT (SELECT count(*) FROM tenant_allocations) + (SELECT count(*) FROM allocation_snapshots) + (SELECT count(*) FROM tenant_lifecycle_events)`)
	require.NoError(t, err)
	return n
}

// written is what a reservation writes about the tenant.
func (w wish) written(t require.TestingT, tx pgx.Tx, d placement.Decision) {
	have, err := value[string](context.Background(), tx, `SELECT concat_ws(' ', t.state, a.app_server_id, a.db_shard_id, a.redis_pool_id, COALESCE(a.pool_site_id, '-'), a.site_name, a.database_name, a.infra_provider,
		a.algorithm, a.dedicated, s.outcome, s.algorithm, s.decision_log, s.policy_json, s.actor, e.from_state, e.to_state, e.step, e.actor, e.reason,
		(SELECT concat_ws(' ', p.state, p.tenant_id, p.reserved_until - now()) FROM site_pool p WHERE p.pool_site_id = a.pool_site_id))
		FROM tenants t JOIN tenant_allocations a ON a.tenant_id = t.tenant_id JOIN allocation_snapshots s ON s.allocation_id = a.allocation_id JOIN tenant_lifecycle_events e ON e.tenant_id = t.tenant_id`)
	require.NoError(t, err)
	site, outcome, claimed := "- t.sites t", "on_demand", ""
	switch w.site {
	case "site":
		site, outcome, claimed = "site site.pool pool_site", "placed", " reserved t 00:01:00"
	case "node-site":
		site, outcome, claimed = "node-site node-site.pool pool_node", "placed", " reserved t 00:01:00"
	}
	require.Equal(t, fmt.Sprintf(`provisioning %s %s %s %s %s best_fit %.1s %s audited {"a": "decision"} {"a": "policy"} test trial provisioning placed test because%s`,
		w.app, w.shard, w.pool, site, d.InfraProvider, fmt.Sprint(d.Dedicates), outcome, claimed), have)
}

// TestPlacesAreOneRule: on every row that makes a difference, and on some that make several, the engine and the
// reservation agree on who may be where, and on what becomes of the rows.
func TestPlacesAreOneRule(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, pgtest.URL(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(ctx) })
	// Rows change regardless of triggers and foreign keys, because a condition belongs to one row. Switching this
	// forgets all plans, so it stays; TestReservingTogetherIsReservingOneByOne reserves with triggers.
	_, err = conn.Exec(ctx, placeFleet+`SET session_replication_role = replica`)
	require.NoError(t, err)
	conditions, wishes := slices.Sorted(maps.Keys(placeConditions)), slices.Sorted(maps.Keys(placeWishes))
	for name, w := range placeWishes {
		if w.mode == "" {
			w.mode = tenant.ModeShared
			placeWishes[name] = w
		}
	}
	for _, name := range conditions {
		c, refused := placeConditions[name], 0
		t.Run(name, func(t *testing.T) {
			for _, who := range wishes {
				w := placeWishes[who]
				if w.app == w.shard && ownRowsGone.MatchString(name) {
					continue
				}
				t.Log(who)
				for _, how := range []placedBy{{}, {override: true}, {override: true, before: true}, {override: true, anyTags: true}} {
					if how.anyTags && c.at != "constraint" || how.before && (c.at != "app_server" || w.mode == tenant.ModeShared) {
						continue
					}
					placed, lost := w.place(t, conn, how, c.change)
					if placed {
						continue
					}
					refused++
					if w.app == w.shard && (strings.Contains(c.change, "'DH'") || strings.Contains(c.change, "'RH'")) && lost == "app_server" {
						continue // a node is the server of its shard and of its pool
					}
					require.Equal(t, c.at, lost, "%s, %+v", who, how)
				}
			}
			require.Equal(t, c.at != "", refused > 0, "%d are refused", refused)
		})
	}
	t.Run("some at a time", func(t *testing.T) {
		placed := 0
		rapid.Check(t, func(t *rapid.T) {
			w := placeWishes[rapid.SampledFrom(wishes).Draw(t, "who")]
			var changes []string
			for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(conditions), 2, 3, rapid.ID).Draw(t, "conditions") {
				if w.app != w.shard || !ownRowsGone.MatchString(name) {
					changes = append(changes, placeConditions[name].change)
				}
			}
			override := rapid.Bool().Draw(t, "override")
			how := placedBy{override, override && rapid.Bool().Draw(t, "any tags"), override && rapid.Bool().Draw(t, "before")}
			if ok, _ := w.place(t, conn, how, changes...); ok {
				placed++
			}
		})
		require.Positive(t, placed)
	})
}

// TestPlaceRulesAreInlined: each becomes a part of the statement that asks it.
func TestPlaceRulesAreInlined(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	plan, err := values[string](context.Background(), s.pool, `EXPLAIN (VERBOSE, COSTS OFF)
		SELECT server_takes(s, f, p, t, t.policy, false, false, l), shard_takes(d, s, f, t, t.policy, false, l), pool_takes(r, s, f, t, t.policy, false, l), reaches(s, s, d.on_node)
		FROM servers s LEFT JOIN fleets f ON f.fleet_id = s.fleet_id JOIN infra_providers p ON p.id = s.infra_provider, db_shards d, redis_pools r, tenants t,
			(SELECT ROW(1, 2, 3, 4, 5, 6)::placement_limits AS l OFFSET 0) limits`)
	require.NoError(t, err)
	require.NotRegexp(t, `(_takes|reaches|tier_lock_allows|must_be_alone|has_reached|network_of)\(`, strings.Join(plan, "\n"))
	require.Regexp(t, `runs_instances\(`, strings.Join(plan, "\n"), "is asked only for a tenant that must be alone")
}
