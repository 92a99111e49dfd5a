package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/benchjson"
	"github.com/prego/prego/lab/devstack"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/migrations"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// durable is a cluster that loses nothing; the clusters of other tests trade that for speed.
type durable struct {
	b  *testing.B
	pg *devstack.Postgres
}

func startDurable(b *testing.B) *durable {
	dir, err := os.MkdirTemp("/var/tmp", "prego-bench-")
	require.NoError(b, err)
	require.NoError(b, os.Chmod(dir, 0o755)) // postgres runs as another user
	pg, err := devstack.StartPostgres(context.Background(), devstack.PostgresConfig{Dir: filepath.Join(dir, "pg")})
	require.NoError(b, err)
	b.Cleanup(func() {
		pg.Stop(20 * time.Second)
		_ = os.RemoveAll(pg.Dir)
		_ = os.RemoveAll(dir)
	})
	return &durable{b: b, pg: pg}
}

// database migrates a new database and fills it.
func (d *durable) database(name string, fill ...string) *pgxpool.Pool {
	ctx := context.Background()
	require.NoError(d.b, d.pg.EnsureDatabase(ctx, name))
	require.NoError(d.b, migrations.Up(ctx, d.pg.URL(name)))
	pool := d.open(name, 4)
	for _, sql := range fill {
		_, err := pool.Exec(ctx, sql)
		require.NoError(d.b, err)
	}
	_, err := pool.Exec(ctx, `VACUUM ANALYZE`)
	require.NoError(d.b, err)
	return pool
}

// copyOf copies a database without connections.
func (d *durable) copyOf(name, from string) {
	conn, err := pgx.Connect(context.Background(), d.pg.URL("postgres"))
	require.NoError(d.b, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(context.Background(), "CREATE DATABASE "+name+" TEMPLATE "+from)
	require.NoError(d.b, err)
	_, err = conn.Exec(context.Background(), "CHECKPOINT")
	require.NoError(d.b, err)
}

func (d *durable) open(name string, conns int32) *pgxpool.Pool {
	pool, err := Open(context.Background(), d.pg.URL(name), conns, nil)
	require.NoError(d.b, err)
	d.b.Cleanup(pool.Close)
	return pool
}

// fleetOf returns that many app servers, shards and pools, with room for all tenants.
func fleetOf(apps, shards, pools int) []string {
	servers := func(role, prefix string, n int) string {
		return fmt.Sprintf(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, memory_pct, workflow_id, created_by, active_at)
			SELECT '%s-' || i, '', '%s', 'eu', 'hetzner', '{}', 'active', 'connected', 20, 'w', 'bench', now() FROM generate_series(0, %d) i`, prefix, role, n-1)
	}
	return []string{
		servers("app", "app", apps), servers("db-shard", "db", shards), servers("redis-pool", "redis", pools),
		`INSERT INTO db_shards (shard_id, server_id, region, tenant_capacity) SELECT server_id, server_id, region, 1000000 FROM servers WHERE role = 'db-shard'`,
		`INSERT INTO redis_pools (pool_id, server_id, region, tenant_capacity) SELECT server_id, server_id, region, 1000000 FROM servers WHERE role = 'redis-pool'`,
		`INSERT INTO orgs (org_id, tier, created_by) VALUES ('o', 'enterprise', 'bench')`,
	}
}

// tenantsOf returns n tenants that request a place, and as many sites, spread evenly.
func tenantsOf(n, apps, shards int) []string {
	return []string{
		fmt.Sprintf(`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by)
			SELECT 't-' || i, 's-' || i, 'o', 'eu', 'starter', 10, 10, 'shared', '', 'provisioning', 'bench' FROM generate_series(0, %d) i`, n-1),
		fmt.Sprintf(`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, available_at)
			SELECT 'p-' || i, 'app-' || i %% %d, 'db-' || i %% %d, 'p-' || i || '.pool', 'p_' || i, 'available', now() FROM generate_series(0, %d) i`, apps, shards, n-1),
	}
}

// placedBefore returns n tenants that already have their places, on servers that accept no others. On empty tables,
// every plan that a session keeps would scan whole tables.
func placedBefore(n int) []string {
	return []string{
		`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by)
			SELECT 'old', '', 'node', 'eu', 'hetzner', '{}', 'draining', 'w', 'bench'`,
		`INSERT INTO db_shards (shard_id, server_id, region, on_node, tenant_capacity, status) VALUES ('old', 'old', 'eu', true, 1000000, 'draining')`,
		`INSERT INTO redis_pools (pool_id, server_id, region, on_node, tenant_capacity, status) VALUES ('old', 'old', 'eu', true, 1000000, 'draining')`,
		fmt.Sprintf(`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, converged_state, created_by)
			SELECT 'old-' || i, 'old-' || i, 'o', 'eu', 'starter', 10, 10, 'shared', '', 'active', 'active', 'bench' FROM generate_series(1, %d) i`, n),
		`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
			SELECT tenant_id, 'old', 'old', 'old', tenant_id, tenant_id, 'hetzner', 'best_fit' FROM tenants WHERE state = 'active'`,
		`INSERT INTO allocation_snapshots (tenant_id, allocation_id, outcome, algorithm, decision_log, policy_json)
			SELECT tenant_id, allocation_id, 'placed', 'best_fit', '{}', '{}' FROM tenant_allocations`,
		`INSERT INTO events (kind, id, org_id, from_status, status, step, actor) SELECT 'tenant', tenant_id, 'o', 'provisioning', 'active', 'placed', 'bench' FROM tenant_allocations`,
	}
}

// The reserved rows: a decision of the size that 64 servers produce.
var (
	benchDecision = []byte(`{"tenant_id":"t-0","outcome":"placed","app_server_id":"app-17","db_shard_id":"db-17","redis_pool_id":"redis-17","pool_site_id":"p-17","infra_provider":"hetzner","decision":{"candidates":64,"eligible":64,"rejected":{},"selected":"app-17","reason":"most filled server with a ready site","runners_up":[{"server":"app-18","score":0.415},{"server":"app-19","score":0.414},{"server":"app-20","score":0.413}]}}`)
	benchPolicy   = []byte(`{"algorithm":"best_fit","mode":"shared","memory_pct_max":70,"max_tenants_per_node":1000000,"weights":{"memory":0.5,"tenants":0.3,"affinity":0.2},"empty_pool":"on_demand"}`)
)

// bareReserve writes the rows of a reservation, under the guards of the counts, in one statement. It locks nothing
// beforehand, checks nothing else, and gives no reason when it does nothing.
const bareReserve = bareBegin + bareClaim + bareRest

const (
	bareBegin = `\set k :k + 1
\set i :start + :client_id + :clients * :k
\set j :i % :servers
WITH site AS (
`
	bareClaim = `    UPDATE site_pool SET state = 'reserved', tenant_id = 't-' || :i::bigint, reserved_until = now() + interval '1 min', updated_at = now()
    WHERE pool_site_id = 'p-' || :i::bigint AND state = 'available' RETURNING pool_site_id, site_name, database_name
`
	bareRest = `), app AS (
    UPDATE servers SET tenant_count = tenant_count + 1, updated_at = now()
    WHERE server_id = 'app-' || :j::bigint AND status = 'active' AND tenant_count < 1000000 RETURNING server_id, infra_provider
), shard AS (
    UPDATE db_shards SET current_tenant_count = current_tenant_count + 1
    WHERE shard_id = 'db-' || :j::bigint AND status = 'active' AND current_tenant_count < tenant_capacity RETURNING shard_id
), pool AS (
    UPDATE redis_pools SET current_tenants = current_tenants + 1
    WHERE pool_id = 'redis-' || :j::bigint AND status = 'active' AND current_tenants < tenant_capacity RETURNING pool_id
), allocation AS (
    INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, pool_site_id, site_name, database_name, infra_provider, algorithm)
    SELECT 't-' || :i::bigint, server_id, shard_id, pool_id, pool_site_id, site_name, database_name, infra_provider, 'best_fit' FROM site, app, shard, pool
    RETURNING allocation_id, tenant_id
), snapshot AS (
    INSERT INTO allocation_snapshots (tenant_id, allocation_id, outcome, algorithm, decision_log, policy_json)
    SELECT tenant_id, allocation_id, 'placed', 'best_fit', :decision::jsonb, :policy::jsonb FROM allocation
), event AS (
    INSERT INTO events (kind, id, org_id, from_status, status, step, actor, reason)
    SELECT 'tenant', tenant_id, 'o', 'provisioning', 'provisioning', 'placed', 'bench', 'most filled server with a ready site' FROM allocation
)
UPDATE tenants SET state = 'provisioning', status_reason = '', status_message = '', waiting_since = NULL, waiting_roles = '{}', updated_at = now()
WHERE tenant_id = 't-' || :i::bigint;
`
)

// pgbench runs the bare statement for some seconds and returns its rate and count.
func (d *durable) pgbench(script, database string, clients, servers, start, seconds int) (rate float64, n int) {
	bin, err := osexec.LookPath("pgbench")
	if err != nil {
		all, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench")
		if len(all) == 0 {
			d.b.Skip("no pgbench")
		}
		bin = slices.MaxFunc(all, func(a, b string) int { return len(a) - len(b) })
	}
	cmd := osexec.Command(bin, "-n", "-M", "prepared", "-f", script, "-c", strconv.Itoa(clients), "-j", "2", "-T", strconv.Itoa(seconds),
		"-D", "k=-1", "-D", "start="+strconv.Itoa(start), "-D", "clients="+strconv.Itoa(clients), "-D", "servers="+strconv.Itoa(servers),
		"-D", "decision="+string(benchDecision), "-D", "policy="+string(benchPolicy), d.pg.URL(database))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(d.b, err, "%s", stderr.Bytes())
	for line := range strings.Lines(string(out)) {
		if after, ok := strings.CutPrefix(line, "tps = "); ok {
			rate, err = strconv.ParseFloat(strings.Fields(after)[0], 64)
			require.NoError(d.b, err)
		}
		if after, ok := strings.CutPrefix(line, "number of transactions actually processed: "); ok {
			n, err = strconv.Atoi(strings.TrimSpace(after))
			require.NoError(d.b, err)
		}
	}
	require.True(d.b, rate > 0 && n > 0, "%s", out)
	return rate, n
}

// benchReservation is the reservation of tenant i, on server, shard and pool j, with the site made for it.
func benchReservation(i, j int) tenant.Reservation {
	return tenant.Reservation{
		TenantID: prego.TenantID(fmt.Sprintf("t-%d", i)), Generation: 1, PoolSiteID: fmt.Sprintf("p-%d", i),
		AppServerID: prego.ServerID(fmt.Sprintf("app-%d", j)), DBShardID: prego.ShardID(fmt.Sprintf("db-%d", j)), RedisPoolID: prego.RedisPoolID(fmt.Sprintf("redis-%d", j)),
		Mode: tenant.ModeShared, Algorithm: "best_fit", AuditAs: "best_fit", MemoryPctMax: 70, MaxTenants: 1_000_000, ReserveFor: time.Minute,
		Decision: benchDecision, Policy: benchPolicy, Reason: "most filled server with a ready site", Actor: "bench",
	}
}

// reservations lets writers reserve for some time and returns the rate per second; every reservation must succeed.
func reservations(b *testing.B, s *Store, writers, start, limit int, during time.Duration) float64 {
	var wg sync.WaitGroup
	made, errs := make([]int, writers), make([]error, writers)
	began := time.Now()
	for w := range writers {
		wg.Go(func() {
			for i := start + w; i < limit && time.Since(began) < during; i += writers {
				out, err := s.Reserve(context.Background(), benchReservation(i, i%benchApps))
				if err != nil || out.Outcome != tenant.ReservePlaced {
					errs[w] = errors.Join(err, fmt.Errorf("tenant %d: %+v", i, out))
					return
				}
				made[w]++
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	require.NoError(b, errors.Join(errs...))
	n := 0
	for _, m := range made {
		n += m
	}
	return float64(n) / took.Seconds()
}

const benchApps = 64

// lean removes from the bare database what a claim could do without: triggers, foreign keys and the feed of changes,
// which the bare statement does not write.
const lean = `DO $$ DECLARE c record; BEGIN
    FOR c IN SELECT conrelid::regclass AS t, conname FROM pg_constraint WHERE contype = 'f' LOOP EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.t, c.conname); END LOOP;
    FOR c IN SELECT tgrelid::regclass AS t, tgname FROM pg_trigger WHERE NOT tgisinternal LOOP EXECUTE format('DROP TRIGGER %I ON %s', c.tgname, c.t); END LOOP;
    DROP TABLE changes;
END $$`

// BenchmarkReserve reserves with 1, 8 and 32 writers whose commits wait for the disk. Each writer has separate
// tenants, sites and servers. The bare limit is the rate of the same cluster for the same rows in one bare statement,
// sent by pgbench to a database with neither triggers nor foreign keys and measured alternately.
func BenchmarkReserve(b *testing.B) {
	const rounds, seconds, each = 5, 2, 320 * benchApps
	d := startDurable(b)
	script := filepath.Join(b.TempDir(), "reserve.sql")
	require.NoError(b, os.WriteFile(script, []byte(bareReserve), 0o600))
	levels := []int{1, 8, 32}
	d.database("ours", slices.Concat(fleetOf(benchApps, benchApps, benchApps), placedBefore(20_000), tenantsOf(len(levels)*rounds*each, benchApps, benchApps))...).Close()
	d.copyOf("bare", "ours")
	_, err := d.open("bare", 1).Exec(context.Background(), lean)
	require.NoError(b, err)
	for l, writers := range levels {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			ours, theirs := d.open("ours", int32(writers)), d.open("bare", 2)
			store := New(ours)
			var rates, bare []float64
			for b.Loop() {
				rates, bare = nil, nil
				for round := range rounds {
					start := (l*rounds + round) * each
					rates = append(rates, reservations(b, store, writers, start, start+each, seconds*time.Second))
					var before, after int
					require.NoError(b, theirs.QueryRow(context.Background(), `SELECT count(*) FROM tenant_allocations`).Scan(&before))
					rate, n := d.pgbench(script, "bare", writers, benchApps, start, seconds)
					require.NoError(b, theirs.QueryRow(context.Background(), `SELECT count(*) FROM tenant_allocations`).Scan(&after))
					require.Equal(b, n, after-before, "each of them placed a tenant")
					bare = append(bare, rate)
				}
			}
			b.ReportMetric(0, "ns/op")
			benchjson.Record(b, fmt.Sprintf("reserve_%d", writers), median(rates), "reservations/s", median(bare))
		})
	}
}

func median(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }

// PlaceFunc places a tenant, and NewPlacer creates one: a placer is built on the store, so an external test provides it.
type PlaceFunc = func(context.Context, tenant.Record, *placement.Override, string) (placement.Decision, error)

var NewPlacer func(*Store, placement.Policy) PlaceFunc

// BenchmarkContended places tenants on the only app server, shard and pool, with sites made on demand. 32 callers of
// one process, whose placer batches waiting requests, alternate with a single caller. Then as many callers run in
// four processes with a placer each, whose batches contend for the rows.
func BenchmarkContended(b *testing.B) {
	const rounds, tenants = 3, 50_000
	const during = 1500 * time.Millisecond
	d := startDurable(b)
	d.database("ours", slices.Concat(fleetOf(1, 1, 1), placedBefore(20_000), tenantsOf(tenants, 1, 1), []string{`DELETE FROM site_pool`})...).Close()
	s := New(d.open("ours", 32))
	policy := placement.DefaultPolicy()
	policy.Mode, policy.MaxTenantsPerNode = tenant.ModeShared, 1_000_000
	placers := make([]PlaceFunc, 4)
	for i := range placers {
		placers[i] = NewPlacer(s, policy)
	}
	var next atomic.Int64
	// rate lets callers place tenants for a while and returns the rate per second.
	rate := func(placers []PlaceFunc, callers int) float64 {
		var wg sync.WaitGroup
		placed, errs := make([]int, callers), make([]error, callers)
		began := time.Now()
		for c := range callers {
			wg.Go(func() {
				for time.Since(began) < during {
					id := strconv.FormatInt(next.Add(1)-1, 10)
					d, err := placers[c%len(placers)](context.Background(), tenant.Record{Tenant: tenant.Tenant{
						TenantID: prego.TenantID("t-" + id), Slug: "s-" + id, OrgID: "o", Region: prego.RegionEU, Plan: prego.PlanStarter, Policy: tenant.ModeShared, Generation: 1,
					}}, nil, "bench")
					if err != nil || !d.PlacesTenant() {
						errs[c] = errors.Join(err, fmt.Errorf("tenant %s of %d: %s", id, tenants, d.Outcome))
						return
					}
					placed[c]++
				}
			})
		}
		wg.Wait()
		took := time.Since(began)
		require.NoError(b, errors.Join(errs...))
		return float64(sum(placed)) / took.Seconds()
	}
	for b.Loop() {
		var single, together, apart []float64
		for range rounds {
			single = append(single, rate(placers[:1], 1))
			together = append(together, rate(placers[:1], 32))
			apart = append(apart, rate(placers, 32))
		}
		b.ReportMetric(0, "ns/op")
		benchjson.Record(b, "contended_placers", median(together), "tenants/s", median(single))
		benchjson.Record(b, "contended_processes", median(apart), "tenants/s", median(single))
	}
}

func sum(v []int) (n int) {
	for _, x := range v {
		n += x
	}
	return n
}

// BenchmarkFollow brings a snapshot up to date after one change, compared with reading the whole fleet again. The
// bare limit of both is a batch of as many statements that read nothing.
func BenchmarkFollow(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		b.Run(fmt.Sprintf("servers=%d", n), func(b *testing.B) {
			const rounds = 50
			ctx := context.Background()
			pool := pgtest.Pool(b)
			for _, sql := range slices.Concat(fleetOf(n, n/20, n/100), tenantsOf(2*n, n, n/20), []string{`VACUUM ANALYZE`}) {
				_, err := pool.Exec(ctx, sql)
				require.NoError(b, err)
			}
			s := New(pool)
			policy := placement.DefaultPolicy()
			var fleet *placement.Snapshot
			var since string
			timed := func(f func()) time.Duration {
				began := time.Now()
				f()
				return time.Since(began)
			}
			full := func() {
				c, err := s.PlacementChanges(ctx, "", nil)
				require.NoError(b, err)
				fleet, since = placement.SnapshotOf(policy, c), c.Since
			}
			follow := func() {
				c, err := s.PlacementChanges(ctx, since, nil)
				require.NoError(b, err)
				require.NotEmpty(b, c.Servers, "what changed")
				require.Less(b, len(c.Servers), 20, "and little else")
				fleet.Update(c)
				since = c.Since
			}
			nothing := func() {
				batch := &pgx.Batch{}
				for range 9 {
					batch.Queue(`SELECT WHERE $1 = ''`, since)
				}
				require.NoError(b, pool.SendBatch(ctx, batch).Close())
			}
			for b.Loop() {
				var all, one, bare []time.Duration
				full()
				nothing()
				for i := range rounds {
					if i%10 == 0 {
						all = append(all, timed(full))
					}
					_, err := pool.Exec(ctx, `UPDATE servers SET tenant_count = tenant_count + 1 WHERE server_id = $1`, fmt.Sprintf("app-%d", i*17%n))
					require.NoError(b, err)
					one = append(one, timed(follow))
					bare = append(bare, timed(nothing))
				}
				for _, v := range [][]time.Duration{all, one, bare} {
					slices.Sort(v)
				}
				ms := func(v []time.Duration) float64 { return v[len(v)/2].Seconds() * 1000 }
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(ms(all), "full-ms")
				b.ReportMetric(ms(one), "one-change-ms")
				b.ReportMetric(ms(bare), "bare-ms")
				b.ReportMetric(ms(one)/ms(bare), "x-of-bare")
				b.ReportMetric(ms(all)/ms(one), "full/one-change")
			}
		})
	}
}
