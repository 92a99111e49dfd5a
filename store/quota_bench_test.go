package store

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/benchjson"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/org/quota"
)

// The least that keeps two takers of one org apart.
const bareHold = `SELECT org_id FROM orgs WHERE org_id = $1 FOR NO KEY UPDATE`

// BenchmarkTakeQuota is what a change pays for the check, in a database of 10,000 orgs:
// one statement that holds the org, reads its counters and compares, beside a statement that only
// holds the org, in the same transaction's place. "changed" is the check of an org
// that gave something back just before.
func BenchmarkTakeQuota(b *testing.B) {
	ctx := context.Background()
	s := New(pgtest.Pool(b))
	fill := append(placedBefore(0)[:3],
		`INSERT INTO orgs (org_id, tier, created_by) SELECT 'o' || i, 'enterprise', 'bench' FROM generate_series(1, 10000) i`,
		`INSERT INTO apps (app_id, org_id, name, created_by) SELECT 'app-' || i, 'o' || i, 'base', 'bench' FROM generate_series(1, 10000) i`,
		`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) SELECT 'env-' || i, 'app-' || i, 'o' || i, 'base', 'eu', 'bench' FROM generate_series(1, 10000) i`,
		`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by)
			SELECT 'grp-' || i, 'env-' || i, 'o' || i, 'eu', 'web', '{}', 1, 0, 0, 'bench' FROM generate_series(1, 10000) i`,
		`INSERT INTO org_quotas (org_id, dimension, limit_value, updated_by) SELECT org_id, d, 1000000000000000, 'bench' FROM orgs, unnest('{max_instances,max_total_memory_bytes,max_volumes}'::text[]) d`)
	// o1 has one of each, o2 ten thousand, o3 a hundred thousand, all others two.
	const sizes = `(SELECT i, CASE i WHEN 1 THEN 1 WHEN 2 THEN 10000 WHEN 3 THEN 100000 ELSE 2 END AS n FROM generate_series(1, 10000) i) z, generate_series(1, z.n) j`
	fill = append(fill,
		`INSERT INTO instances (instance_id, group_id, org_id, server_id, number, spec, release, memory_limit_bytes, cpu_request, state)
			SELECT 'ins-' || i || '-' || j, 'grp-' || i, 'o' || i, 'old', j, '{}', 1, 67108864, 0.01, 'running' FROM `+sizes,
		`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, status, created_by)
			SELECT 'vol-' || i || '-' || j, 'o' || i, 'eu', 'fsn1', 'v' || j, 10000000000, 'hetzner', 'v-' || i || '-' || j, 'ready', 'bench' FROM `+sizes,
		`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, converged_state, created_by)
			SELECT 't-' || i || '-' || j, 't-' || i || '-' || j, 'o' || i, 'eu', 'trial', 1, 1, 'shared', '', 'active', 'active', 'bench' FROM `+sizes+` WHERE i = 3 AND j <= 1000`,
		`VACUUM ANALYZE`)
	for _, sql := range fill {
		_, err := s.pool.Exec(ctx, sql)
		require.NoError(b, err)
	}
	require.NoError(b, s.foldUsage(ctx))
	deltas := map[string][]quota.Delta{
		"instance": {{Dimension: quota.MaxInstances, By: 1}, {Dimension: quota.MaxTotalMemoryBytes, By: 1}, {Dimension: quota.MaxTotalCPURequest, By: .1}},
		"volume":   {{Dimension: quota.MaxVolumes, By: 1}},
		"app":      {{Dimension: quota.MaxApps, By: 1}},
		"changed":  {{Dimension: quota.MaxApps, By: 1}, {Dimension: quota.MaxInstances, By: 1}},
	}
	// timed is how long f takes in a separate transaction that writes nothing.
	timed := func(f func(tx pgx.Tx) error) time.Duration {
		tx, err := s.pool.Begin(ctx)
		require.NoError(b, err)
		defer func() { _ = tx.Rollback(ctx) }()
		began := time.Now()
		require.NoError(b, f(tx))
		return time.Since(began)
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/2].Microseconds())
	}
	for i, resources := range []int{1, 10_000, 100_000} {
		org := fmt.Sprintf("o%d", i+1)
		for _, kind := range []string{"instance", "volume", "app", "changed"} {
			b.Run(fmt.Sprintf("%s/resources=%d", kind, resources), func(b *testing.B) {
				var taken, held []time.Duration
				for b.Loop() {
					taken, held = nil, nil
					for turn := range 220 {
						if kind == "changed" {
							_, err := s.pool.Exec(ctx, `UPDATE apps SET deleted_at = CASE WHEN deleted_at IS NULL THEN now() END WHERE org_id = $1`, org)
							require.NoError(b, err)
							if turn%15 == 14 { // as taking does when its transaction is committed
								require.NoError(b, s.foldUsage(ctx))
							}
						}
						h := timed(func(tx pgx.Tx) error { var id string; return tx.QueryRow(ctx, bareHold, org).Scan(&id) })
						k := timed(func(tx pgx.Tx) error { return s.takeQuota(ctx, &txn{Tx: tx}, prego.OrgID(org), deltas[kind]...) })
						if turn >= 20 { // statements are prepared and planned
							held, taken = append(held, h), append(taken, k)
						}
					}
				}
				b.ReportMetric(0, "ns/op")
				if kind == "instance" {
					benchjson.Record(b, fmt.Sprintf("quota_%d", resources), median(taken), "µs", median(held))
					return
				}
				b.ReportMetric(median(taken), "µs/take")
				b.ReportMetric(median(held), "µs/bare")
				b.ReportMetric(median(taken)/median(held), "ratio")
			})
		}
	}
	b.Run("all orgs for metrics", func(b *testing.B) {
		for b.Loop() {
			began := time.Now()
			_, err := s.UsageNearLimits(ctx, 50)
			require.NoError(b, err)
			b.ReportMetric(time.Since(began).Seconds(), "s/read")
		}
	})
}
