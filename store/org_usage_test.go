package store

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
)

// usageTables are the tables whose rows count, with what may happen to a row of them. %s is
// the org and %d a number, so that the same row is met again.
func usageTables() map[string][]string {
	return map[string][]string{
		"apps": {
			`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-%[1]s-%[2]d', '%[1]s', 'a%[2]d', 't') ON CONFLICT DO NOTHING`,
			`UPDATE apps SET deleted_at = CASE WHEN deleted_at IS NULL THEN now() END WHERE app_id = 'app-%[1]s-%[2]d'`,
			`DELETE FROM apps WHERE app_id = 'app-%[1]s-%[2]d'`,
		},
		"envs": {
			`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-%[1]s-%[2]d', 'app-%[1]s', '%[1]s', 'e%[2]d', 'eu', 't') ON CONFLICT DO NOTHING`,
			`UPDATE envs SET deleted_at = CASE WHEN deleted_at IS NULL THEN now() END WHERE env_id = 'env-%[1]s-%[2]d'`,
		},
		"process_groups": {
			`UPDATE process_groups SET replicas = %[2]d WHERE group_id = 'grp-%[1]s'`,
			`UPDATE process_groups SET memory_limit_bytes = 1000000 * %[2]d, cpu_request = 0.1 * %[2]d WHERE group_id = 'grp-%[1]s'`,
			`UPDATE process_groups SET deleted_at = CASE WHEN deleted_at IS NULL THEN now() END WHERE group_id = 'grp-%[1]s'`,
		},
		"instances": {
			`INSERT INTO instances (instance_id, group_id, org_id, server_id, number, spec, release, memory_limit_bytes, cpu_request, state)
				VALUES ('ins-%[1]s-%[2]d', 'grp-%[1]s', '%[1]s', 'old', 1, '{}', 1, 1000000 * %[2]d, 0.1 * %[2]d, 'booting') ON CONFLICT DO NOTHING`,
			`UPDATE instances SET state = (ARRAY['running', 'draining', 'failed', 'stopped'])[1 + %[2]d %% 4] WHERE instance_id = 'ins-%[1]s-%[3]d'`,
			`UPDATE instances SET state = 'stopped' WHERE org_id = '%[1]s' AND state = 'draining'`,
			`DELETE FROM instances WHERE instance_id = 'ins-%[1]s-%[2]d'`,
		},
		"volumes": {
			`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, status, created_by)
				VALUES ('vol-%[1]s-%[2]d', '%[1]s', 'eu', 'fsn1', 'v%[2]d', 10000000000, 'hetzner', 'v-%[1]s-%[2]d', 'ready', 't') ON CONFLICT DO NOTHING`,
			`UPDATE volumes SET size_bytes = 10000000000 + %[2]d WHERE volume_id = 'vol-%[1]s-%[2]d'`,
			`UPDATE volumes SET deleted_at = CASE WHEN deleted_at IS NULL THEN now() END WHERE volume_id = 'vol-%[1]s-%[2]d'`,
		},
		"volume_attachments": {
			`INSERT INTO volume_attachments (attachment_id, org_id, volume_id, group_id, mount_path, created_by)
				SELECT 'vat-%[1]s-%[2]d', '%[1]s', volume_id, 'grp-%[1]s', volume_id, 't' FROM volumes WHERE volume_id = 'vol-%[1]s-%[2]d' ON CONFLICT DO NOTHING`,
			`UPDATE volume_attachments SET deleted_at = now() WHERE attachment_id = 'vat-%[1]s-%[2]d'`,
		},
		"ipv4_allocations": {
			`INSERT INTO ipv4_allocations (allocation_id, org_id, env_id, provider, location, name, status, created_by)
				VALUES ('ip4-%[1]s-%[2]d', '%[1]s', 'env-%[1]s', 'hetzner', 'fsn1', 'ip4-%[1]s-%[2]d', 'pending', 't') ON CONFLICT DO NOTHING`,
			`UPDATE ipv4_allocations SET deleted_at = now() WHERE allocation_id = 'ip4-%[1]s-%[2]d'`,
		},
		"routes": {
			`INSERT INTO routes (route_id, org_id, env_id, group_id, hostname, listener_scope, listen_port, protocol, target_port, created_by)
				VALUES ('rte-%[1]s-%[2]d', '%[1]s', 'env-%[1]s', 'grp-%[1]s', (ARRAY['', 'a.%[1]s', 'b.%[1]s'])[1 + %[2]d %% 3], (ARRAY['shared_v6', 'env_v4'])[1 + %[3]d %% 2], 80 + %[3]d, 'tcp', 80, 't') ON CONFLICT DO NOTHING`,
			`UPDATE routes SET deleted_at = now() WHERE route_id = 'rte-%[1]s-%[2]d'`,
			`UPDATE routes SET hostname = 'c%[3]d.%[1]s' WHERE route_id = 'rte-%[1]s-%[2]d'`,
			`DELETE FROM routes WHERE route_id = 'rte-%[1]s-%[2]d'`,
		},
		"domains": {
			`INSERT INTO domains (domain_id, org_id, name, status, token, sought_until, created_by)
				VALUES ('dom-%[1]s-%[2]d', '%[1]s', 'd%[2]d.%[1]s', (ARRAY['pending', 'verified'])[1 + %[3]d %% 2], 't', now(), 't') ON CONFLICT DO NOTHING`,
			`UPDATE domains SET status = (ARRAY['pending', 'verified', 'lost'])[1 + %[3]d %% 3] WHERE domain_id = 'dom-%[1]s-%[2]d'`,
			`UPDATE domains SET deleted_at = now() WHERE domain_id = 'dom-%[1]s-%[2]d'`,
			`DELETE FROM domains WHERE domain_id = 'dom-%[1]s-%[2]d'`,
		},
		"tenants": {
			`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by)
				VALUES ('t-%[1]s-%[2]d', 't-%[1]s-%[2]d', '%[1]s', 'eu', (ARRAY['trial', 'starter', 'business'])[1 + %[2]d %% 3], 1, %[3]d, 'shared', '', 'provisioning', 't') ON CONFLICT DO NOTHING`,
			`UPDATE tenants SET state = (ARRAY['active', 'provisioning', 'failed', 'terminated', 'grace_period', 'data_purged'])[1 + %[3]d %% 6] WHERE tenant_id = 't-%[1]s-%[2]d'`,
			`UPDATE tenants SET converged_state = state WHERE tenant_id = 't-%[1]s-%[2]d'`,
			`UPDATE tenants SET storage_quota_gb = 10 * %[3]d WHERE tenant_id = 't-%[1]s-%[2]d'`,
		},
		"tenant_allocations": {
			`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
				SELECT tenant_id, 'old', 'old', 'old', 's', 'd', 'hetzner', 'best_fit' FROM tenants WHERE tenant_id = 't-%[1]s-%[2]d' AND state = 'provisioning' ON CONFLICT DO NOTHING`,
			`UPDATE tenant_allocations SET released_at = now() WHERE tenant_id = 't-%[1]s-%[2]d' AND released_at IS NULL`,
		},
		"servers": {
			`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, dedicated_for_tenant_id)
				SELECT gen_random_uuid(), '', 'node', 'eu', 'hetzner', '{}', 'draining', 'w', 't', 't-%[1]s-%[2]d'
				WHERE NOT EXISTS (SELECT FROM servers WHERE dedicated_for_tenant_id = 't-%[1]s-%[2]d' AND status <> 'terminated')`,
			`UPDATE servers SET status = 'terminated' WHERE dedicated_for_tenant_id = 't-%[1]s-%[2]d'`,
			`UPDATE servers SET dedicated_for_tenant_id = 't-%[1]s-%[3]d' WHERE dedicated_for_tenant_id = 't-%[1]s-%[2]d'`,
		},
		"volume_restores": {
			`INSERT INTO volume_restores (restore_id, org_id, volume_id, backup_id, created_by)
				SELECT 'vrs-%[1]s-%[2]d', '%[1]s', volume_id, 'bak-%[1]s', 't' FROM volumes WHERE volume_id = 'vol-%[1]s-%[2]d' ON CONFLICT DO NOTHING`,
			`UPDATE volume_restores SET status = (ARRAY['queued', 'running', 'succeeded', 'failed'])[1 + %[3]d %% 4], finished_at = CASE WHEN %[3]d %% 4 > 1 THEN now() END
				WHERE restore_id = 'vrs-%[1]s-%[2]d'`,
			`DELETE FROM volume_restores WHERE restore_id = 'vrs-%[1]s-%[2]d'`,
		},
		"restore_jobs": {
			`INSERT INTO restore_jobs (job_id, org_id, tenant_id, snapshot_id, status, created_by)
				SELECT 'rst-%[1]s-%[2]d', '%[1]s', tenant_id, 'snp-%[1]s', 'queued', 't' FROM tenants WHERE tenant_id = 't-%[1]s-%[2]d' ON CONFLICT DO NOTHING`,
			`UPDATE restore_jobs SET status = (ARRAY['queued', 'running', 'succeeded', 'failed'])[1 + %[3]d %% 4] WHERE job_id = 'rst-%[1]s-%[2]d'`,
		},
	}
}

// usageOps are the operations in a fixed order.
func usageOps() (ops []string) {
	for _, table := range slices.Sorted(maps.Keys(usageTables())) {
		ops = append(ops, usageTables()[table]...)
	}
	return ops
}

// usageBundle is a store and orgs with an app, an env and a group each, a child of another
// org: what a child uses is not its parent's.
func usageBundle(t testing.TB, orgs ...string) *Store {
	t.Helper()
	s := New(pgtest.Pool(t))
	for _, sql := range append(placedBefore(0)[:3], `INSERT INTO orgs (org_id, tier, created_by) VALUES ('parent', 'enterprise', 't')`) {
		_, err := s.pool.Exec(context.Background(), sql)
		require.NoError(t, err)
	}
	for _, id := range orgs {
		s.usageOrg(t, id)
	}
	return s
}

func (s *Store) usageOrg(t require.TestingT, id string) {
	for _, sql := range []string{
		`INSERT INTO orgs (org_id, tier, parent_org_id, created_by) VALUES ('%[1]s', 'enterprise', 'parent', 't')`,
		`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-%[1]s', '%[1]s', 'base', 't')`,
		`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-%[1]s', 'app-%[1]s', '%[1]s', 'base', 'eu', 't')`,
		`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by)
			VALUES ('grp-%[1]s', 'env-%[1]s', '%[1]s', 'eu', 'web', '{}', 1000000, 0.1, 3, 't')`,
		`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by)
			VALUES ('t-%[1]s', 't-%[1]s', '%[1]s', 'eu', 'trial', 1, 1, 'shared', '', 'active', 't')`,
		`INSERT INTO snapshots (snapshot_id, org_id, tenant_id, server_id, site, status, created_by) VALUES ('snp-%[1]s', '%[1]s', 't-%[1]s', 'old', 's', 'succeeded', 't')`,
		`INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, created_by) VALUES ('bak-%[1]s', '%[1]s', 't-%[1]s', 'old', 's', 'manual', 't')`,
	} {
		_, err := s.pool.Exec(context.Background(), fmt.Sprintf(sql, id))
		require.NoError(t, err, sql)
	}
}

func (s *Store) takeNothing(ctx context.Context, id string) error {
	return s.inTx(ctx, "test", func(tx *txn) error {
		return s.takeQuota(ctx, tx, prego.OrgID(id), quota.Delta{Dimension: quota.MaxApps, By: 1}, quota.Delta{Dimension: quota.MaxInstances, By: 1})
	})
}

// TestCountersAgreeWithTheRows changes rows at random, several in a transaction and some of
// those undone, and compares the counters with what there is after each.
func TestCountersAgreeWithTheRows(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s, ops, n := usageBundle(t), usageOps(), 0
	deep.Check(t, 30, func(rt *rapid.T) {
		n++
		id := fmt.Sprintf("o%d", n)
		s.usageOrg(rt, id)
		for range rapid.IntRange(5, 60).Draw(rt, "transactions") {
			tx, err := s.pool.Begin(ctx)
			require.NoError(rt, err)
			for range rapid.IntRange(1, 3).Draw(rt, "statements") {
				op := rapid.SampledFrom(ops).Draw(rt, "op")
				sql := fmt.Sprintf(op+"/* %[3]d */", id, rapid.IntRange(1, 4).Draw(rt, "i"), rapid.IntRange(1, 6).Draw(rt, "j"))
				if _, err := tx.Exec(ctx, "SAVEPOINT s"); err == nil {
					_, err = tx.Exec(ctx, sql)
					if err != nil { // it breaks another rule
						_, err = tx.Exec(ctx, "ROLLBACK TO s")
					}
					require.NoError(rt, err)
				}
			}
			switch rapid.IntRange(0, 5).Draw(rt, "end") {
			case 0:
				require.NoError(rt, tx.Rollback(ctx))
			case 1: // taking sees what the transaction did itself
				require.NoError(rt, s.takeQuota(ctx, &txn{Tx: tx}, prego.OrgID(id), quota.Delta{Dimension: quota.MaxApps, By: 1}))
				require.NoError(rt, tx.Commit(ctx))
			default:
				require.NoError(rt, tx.Commit(ctx))
			}
			if rapid.IntRange(0, 9).Draw(rt, "fold") == 0 {
				require.NoError(rt, s.foldUsage(ctx))
			}
			drift, err := s.usageDrift(ctx, s.pool, prego.OrgID(id))
			require.NoError(rt, err)
			require.Empty(rt, string(drift))
		}
		var left int
		require.NoError(rt, s.pool.QueryRow(ctx, `SELECT count(*) FROM org_counters WHERE org_id = 'parent'`).Scan(&left))
		require.Zero(rt, left, "what a child uses is not its parent's")
	})
}

// TestATriggerThatIsOffIsNoticed: each trigger counts something that no other one does, and
// the sweep finds what is missing without it, and repairs it.
func TestATriggerThatIsOffIsNoticed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := usageBundle(t)
	triggers, err := values[string](ctx, s.pool, `SELECT tgname::text FROM pg_trigger WHERE tgfoid IN ('count_rows'::regproc, 'count_change'::regproc) ORDER BY 1`)
	require.NoError(t, err)
	require.Greater(t, len(triggers), 30)
	tables := usageTables()
	tables["deleted"] = []string{ // rarely, and with all that refers to them
		`DELETE FROM restore_jobs WHERE org_id = '%[1]s'`, `DELETE FROM volume_restores WHERE org_id = '%[1]s'`, `DELETE FROM volume_attachments WHERE org_id = '%[1]s'`, `DELETE FROM volumes WHERE volume_id = 'vol-%[1]s-%[2]d'`,
		`DELETE FROM ipv4_allocations WHERE org_id = '%[1]s'`, `DELETE FROM envs WHERE env_id = 'env-%[1]s-%[2]d'`, `DELETE FROM tenants WHERE tenant_id = 't-%[1]s-%[2]d'`,
		`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by)
			VALUES ('grp-%[1]s-%[2]d', 'env-%[1]s', '%[1]s', 'eu', 'w%[2]d', '{}', 1000000, 0.1, 3, 't') ON CONFLICT DO NOTHING`,
		`DELETE FROM process_groups WHERE group_id = 'grp-%[1]s-%[2]d'`,
	}
	var ops []string
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		ops = append(ops, tables[table]...)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i, trigger := range triggers {
		id := fmt.Sprintf("m%d", i)
		s.usageOrg(t, id)
		table := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(trigger, "_in"), "_out"), "_counted")
		_, err := s.pool.Exec(ctx, fmt.Sprintf(`ALTER TABLE %s DISABLE TRIGGER %s`, table, trigger))
		require.NoError(t, err)
		noticed := false
		for range 3000 {
			from := ops
			if random.IntN(2) == 0 { // mostly what the trigger is about
				from = slices.Concat(tables[table], usageTables()["tenants"])
			}
			_, _ = s.pool.Exec(ctx, fmt.Sprintf(from[random.IntN(len(from))]+"/* %[3]d */", id, 1+random.IntN(4), 1+random.IntN(6)))
			if random.IntN(4) != 0 { // to look costs more than to change
				continue
			}
			drift, err := s.usageDrift(ctx, s.pool, prego.OrgID(id))
			require.NoError(t, err)
			if noticed = drift != nil; noticed {
				break
			}
			if random.IntN(2) == 0 { // what is not folded yet is looked up again each time
				require.NoError(t, s.foldUsage(ctx))
			}
		}
		require.True(t, noticed, "the sweep does not notice that trigger %s is off", trigger)
		_, err = s.pool.Exec(ctx, fmt.Sprintf(`ALTER TABLE %s ENABLE TRIGGER %s`, table, trigger))
		require.NoError(t, err)
		var found org.UsageCheck
		require.NoError(t, s.checkUsage(ctx, prego.OrgID(id), &found))
		require.Len(t, found.Repaired, 1)
		require.NoError(t, s.checkUsage(ctx, prego.OrgID(id), &found))
		require.Len(t, found.Repaired, 1, "it is mended")
	}
}

// TestTheSweepTakesTurns: page by page, from the first again after the last, and an org that
// was wrong is reported until it is found right.
func TestTheSweepTakesTurns(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := usageBundle(t, "a", "b", "c", "d")
	sweep := func() org.UsageCheck {
		c, err := s.CheckUsage(ctx, 2, time.Minute)
		require.NoError(t, err)
		return c
	}
	require.Equal(t, org.UsageCheck{Checked: 2}, sweep())
	_, err := s.pool.Exec(ctx, `UPDATE org_counters SET used = used + 1 WHERE org_id = 'd' AND dimension = 'max_apps'`)
	require.NoError(t, err)
	c := sweep() // c and d
	require.Len(t, c.Repaired, 1)
	require.Equal(t, prego.OrgID("d"), c.Repaired[0].OrgID)
	require.JSONEq(t, `[{"dimension": "max_apps", "used": 2, "counted": 1, "promised": 0, "reserved": 0}]`, string(c.Repaired[0].Drift))
	require.Equal(t, 1, c.Drifted)
	require.Equal(t, org.UsageCheck{Checked: 1, Drifted: 1}, sweep(), "parent, the last")
	require.Equal(t, org.UsageCheck{Checked: 2, Drifted: 1}, sweep())
	require.Equal(t, org.UsageCheck{Checked: 2}, sweep(), "d is right")
	_, err = s.CheckUsage(ctx, 5, 0)
	require.NoError(t, err)
	require.Equal(t, "parent", asks[string](t, s, `SELECT last_id FROM org_usage_sweep`), "one at least, however short its patience")
}

// TestATenantEndsInTransactionsThatDoNotSeeEachOther: its place is released and its server
// goes while its state changes, none committed before all are done.
func TestATenantEndsInTransactionsThatDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for turn := range 6 {
		s := usageBundle(t, "o")
		for _, sql := range []string{
			`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
				VALUES ('t-o', 'old', 'old', 'old', 's', 'd', 'hetzner', 'best_fit')`,
			`UPDATE servers SET dedicated_for_tenant_id = 't-o' WHERE server_id = 'old'`,
		} {
			_, err := s.pool.Exec(ctx, sql)
			require.NoError(t, err)
		}
		require.NoError(t, s.foldUsage(ctx))
		var txs []pgx.Tx
		for _, sql := range []string{
			`UPDATE tenants SET state = 'terminated' WHERE tenant_id = 't-o'`,
			`UPDATE tenant_allocations SET released_at = now() WHERE tenant_id = 't-o'`,
			`UPDATE servers SET status = 'terminated' WHERE server_id = 'old'`,
		} {
			tx, err := s.pool.Begin(ctx)
			require.NoError(t, err)
			_, err = tx.Exec(ctx, sql)
			require.NoError(t, err)
			txs = append(txs, tx)
		}
		order := [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}[turn]
		for i, which := range order {
			require.NoError(t, txs[which].Commit(ctx))
			if turn%2 == 0 {
				require.NoError(t, s.foldUsage(ctx))
			}
			drift, err := s.usageDrift(ctx, s.pool, "o")
			require.NoError(t, err)
			require.Empty(t, string(drift), "after %d of %v", i+1, order)
		}
		require.Zero(t, usedOf(t, s, "o", quota.MaxInstances))
	}
}

// TestCountersUnderLoad: many concurrent writers change and take without deadlocks, and in the
// end the counters are right.
func TestCountersUnderLoad(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s, ops := usageBundle(t, "o"), usageOps()
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for w := range errs {
		random := rand.New(rand.NewPCG(uint64(w), 7))
		wg.Go(func() {
			for i := range 80 {
				// Each row has one writer, except the group: all writers share its rows.
				sql := fmt.Sprintf(ops[random.IntN(len(ops))]+"/* %[3]d */", "o", 10*w+random.IntN(4), 10*w+random.IntN(4))
				if strings.Contains(sql, "WHERE org_id") {
					continue
				}
				_, _ = s.pool.Exec(ctx, sql)
				switch i % 10 {
				case 3:
					errs[w] = s.takeNothing(ctx, "o")
				case 7:
					errs[w] = s.foldUsage(ctx)
				}
				if errs[w] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	drift, err := s.usageDrift(ctx, s.pool, "o")
	require.NoError(t, err)
	require.Empty(t, string(drift))
	require.Zero(t, asks[int](t, s, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`))
}

// TestGivingBackQuotaDoesNotWait: a decrease of usage is written while another transaction holds the
// org, and taking sees it as soon as it is committed.
func TestGivingBackQuotaDoesNotWait(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := usageBundle(t, "o")
	require.NoError(t, s.inTx(ctx, "test", func(tx *txn) error {
		require.NoError(t, s.takeQuota(ctx, tx, "o", quota.Delta{Dimension: quota.MaxApps, By: 1}))
		limited, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		_, err := s.pool.Exec(limited, `UPDATE tenants SET state = 'failed' WHERE tenant_id = 't-o'`)
		require.NoError(t, err)
		ok, err := value[bool](ctx, s.pool, sqlFoldUsage, "o")
		require.NoError(t, err)
		require.False(t, ok, "the holder of the org counts it")
		require.Zero(t, usedOf(t, s, "o", quota.MaxInstances))
		return nil
	}))
}

// TestChangesAreCountedInTime: few changes wait to be counted.
func TestChangesAreCountedInTime(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := usageBundle(t, "o")
	for i := range 40 {
		require.NoError(t, s.inTx(ctx, "test", func(tx *txn) error {
			if err := s.takeQuota(ctx, tx, "o", quota.Delta{Dimension: quota.MaxApps, By: 1}); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, fmt.Sprintf(usageTables()["apps"][0], "o", i))
			return err
		}))
		require.Less(t, asks[int](t, s, `SELECT count(*) FROM org_usage_changes WHERE org_id = 'o'`), 20)
	}
	require.InDelta(t, 41, usedOf(t, s, "o", quota.MaxApps), 0)
}

// TestOnlyOpenSessionsAreCounted: neither closed ones nor those whose process died, which ends their lease, and of
// started ones those of the last hour.
func TestOnlyOpenSessionsAreCounted(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	exec(t, s, `INSERT INTO orgs (org_id, tier, created_by)
		VALUES ('acme', 'enterprise', 'test'), ('other', 'enterprise', 'test')`)
	add := func(orgID, kind, opened, lease, closed string, n int) {
		exec(t, s, `INSERT INTO org_sessions
				(session_id, org_id, kind, subject, actor, opened_at, lease_until, closed_at)
			SELECT gen_random_uuid()::text, $1, $2, 's', 'test', now() + $3::interval, now() + $4::interval,
				now() + $5::interval
			FROM generate_series(1, $6)`, orgID, kind, opened, lease, orNull(closed), n)
	}
	for _, kind := range []string{"exec", "logs"} {
		add("acme", kind, "-1 minute", "1 minute", "", 1)
		add("acme", kind, "-61 minutes", "1 minute", "", 2)
		add("acme", kind, "-59 minutes", "1 minute", "-1 minute", 4)
		add("acme", kind, "-59 minutes", "-1 minute", "", 8)
		add("other", kind, "-1 minute", "1 minute", "", 16)
	}
	add("acme", "logs", "-1 minute", "1 minute", "", 32)
	for dimension, want := range map[string]float64{
		"max_log_streams": 32 + 3, "max_exec_sessions": 3, "max_exec_sessions_per_hour": 13,
	} {
		require.InDelta(t, want, asks[float64](t, s, `SELECT org_open('acme', $1)`, dimension), 0, dimension)
	}
}
