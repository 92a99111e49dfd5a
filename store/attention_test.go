package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops/attention"
)

var attentionLimits = attention.Limits{
	DegradedAfter: time.Minute, FailedAfter: 5 * time.Minute, FreezePct: 20, FreezeMin: 10, CatalogStale: 3 * time.Hour, BackupLate: 2 * time.Hour, DrillOverdue: 24 * time.Hour,
}

const (
	wellInstallation = pgtest.WellInstallation
	maintenanceOf    = pgtest.MaintenanceOf
)

var ailments = pgtest.Ailments

// runEach runs statements one after the other.
func runEach(t *testing.T, db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, statements string,
) {
	t.Helper()
	for sql := range strings.SplitSeq(statements, ";") {
		_, err := db.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
}

// TestUnschedulableGroupKeepsItsStart although its quota is requested repeatedly, and although the missing
// resource changes.
func TestUnschedulableGroupKeepsItsStart(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	conn, err := s.pool.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	runEach(t, conn, `SET session_replication_role = replica;`+wellInstallation+`;SET session_replication_role = DEFAULT`)
	since := func(set string) (at time.Time) {
		t.Helper()
		require.NoError(t, conn.QueryRow(ctx, `UPDATE process_groups SET `+set+` RETURNING status_since`).Scan(&at))
		return at
	}
	running := since(`status = 'running', updated_at = now()`)
	first := since(`status = 'unschedulable', status_reason = 'org_quota_exceeded:max_apps', waiting_since = now() + interval '30 seconds'`)
	require.True(t, first.After(running))
	require.Equal(t, first, since(`status = 'unschedulable', status_reason = 'no_capacity_memory', waiting_since = now() + interval '60 seconds'`))
	require.True(t, since(`status = 'pending'`).After(first))
}

// TestAttentionFindsEachKind creates each state of rows, and finds exactly that; and nothing in a healthy
// installation.
func TestAttentionFindsEachKind(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	conn, err := s.pool.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	all, err := conn.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = all.Rollback(ctx) }()
	runEach(t, all, `SET LOCAL session_replication_role = replica;`+wellInstallation)
	with := func(sql string, limits attention.Limits) (found []attention.Finding) {
		t.Helper()
		tx, err := all.Begin(ctx)
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback(ctx)) }()
		if sql != "" {
			runEach(t, tx, sql)
		}
		found, at, err := s.attentionIn(ctx, &txn{Tx: tx}, limits)
		require.NoError(t, err, sql)
		for _, f := range found {
			require.False(t, f.Since.IsZero() || f.Since.After(at), "%+v", f)
			require.NotEmpty(t, f.By)
			require.NotEmpty(t, f.ByID)
		}
		return found
	}
	require.Empty(t, with("", attentionLimits), "in a healthy installation")
	for _, kind := range attention.Kinds() {
		require.NotEmpty(t, ailments[kind], kind)
		for _, a := range ailments[kind] {
			found := with(a.SQL, attentionLimits)
			require.Len(t, found, 1, "%s: %s: %+v", kind, a.SQL, found)
			require.Equal(t, kind, found[0].Kind)
			require.Equal(t, a.Is, found[0].ID+" "+found[0].Reason)
			require.Equal(t, 1, found[0].Count)
			require.NotEmpty(t, attention.List(found)[0].Actions, "%s is about a %s", kind, found[0].Subject)
		}
	}

	waiting := func(n int) []attention.Finding {
		return with(fmt.Sprintf(`UPDATE tenants SET state = 'provisioning', waiting_since = now() - make_interval(mins => 2 + substr(tenant_id, 3)::int), status_reason = 'awaiting_capacity'
			WHERE substr(tenant_id, 3)::int <= %d`, n), attentionLimits)
	}
	require.Len(t, waiting(attention.Many), attention.Many)
	sum := waiting(attention.Many + 1)
	require.Len(t, sum, 1)
	require.Equal(t, attention.Many+1, sum[0].Count)
	require.Equal(t, "t-6", sum[0].ID, "the oldest")
	require.Equal(t, "eu", sum[0].ByID)

	tiny := attentionLimits
	tiny.FreezeMin = 100
	require.Empty(t, with(ailments[attention.SweepFrozen][0].SQL, tiny))
	for _, off := range []attention.Kind{attention.BackupLate, attention.BackupUnverified, attention.CatalogStale} {
		require.Empty(t, with(ailments[off][0].SQL, attention.Limits{}), off)
	}
}

// TestIntendedActionsRaiseNoAlarm: what prego does on purpose, and for as long as it may take. After that time, or
// without the action, the same rows do.
func TestIntendedActionsRaiseNoAlarm(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := tenantStore(t)
	conn, err := s.pool.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	all, err := conn.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = all.Rollback(ctx) }()
	runEach(t, all, `SET LOCAL session_replication_role = replica;`+wellInstallation+`;
		INSERT INTO db_shards (shard_id, server_id, region, tenant_capacity) VALUES ('d', 'app-3', 'eu', 9)`)
	kinds := func(sql string) (out []string) {
		t.Helper()
		tx, err := all.Begin(ctx)
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback(ctx)) }()
		runEach(t, tx, sql)
		found, _, err := s.attentionIn(ctx, &txn{Tx: tx}, attentionLimits)
		require.NoError(t, err, sql)
		for _, f := range found {
			out = append(out, string(f.Kind)+" "+f.ID)
		}
		return out
	}
	restart := func(server, kind, ago string) string {
		return fmt.Sprintf(`INSERT INTO server_maintenances
			(server_id, number, kind, requested_by, was_open, status, acted_at) VALUES ('%s', 1, '%s', 'test', true, 'finishing', now() - interval '%s')`, server, kind, ago)
	}
	const (
		silent  = `UPDATE servers SET agent_status = 'degraded' WHERE server_id = 'app-1'`
		gone    = `UPDATE servers SET status = 'failed', status_reason = 'heartbeat_lost' WHERE server_id = 'app-1'`
		docker  = `UPDATE servers SET docker_state = 'stopped' WHERE server_id = 'app-1'`
		down    = `UPDATE site_health SET up = false, cause = 'refused' WHERE tenant_id = 't-2'`
		ended   = `;UPDATE server_maintenances SET status = 'done', finished_at = now() - interval '`
		waiting = `UPDATE tenants SET state = 'provisioning', waiting_since = now() - interval '`
	)
	for _, kind := range []string{"reboot", "resize", "patch"} {
		for finding, sql := range map[string]string{
			"agent_silent app-1": silent, "server_failed app-1": gone, "docker_stopped app-1": docker,
		} {
			require.Equal(t, []string{finding}, kinds(sql))
			require.Empty(t, kinds(sql+";"+restart("app-1", kind, "14 minutes")), kind)
			require.Equal(t, []string{finding}, kinds(sql+";"+restart("app-1", kind, "16 minutes")), kind)
			require.Equal(t, []string{finding}, kinds(sql+";"+restart("app-2", kind, "1 minute")), kind)
		}
		for _, place := range []string{"app-1", "app-3"} { // of the site, and of its database
			require.Empty(t, kinds(down+";"+restart(place, kind, "1 minute")), kind)
			require.Empty(t, kinds(down+";"+restart(place, kind, "9 minutes")+ended+`1 minute'`), "it starts")
			require.Equal(t, []string{"site_down t-2"}, kinds(down+";"+restart(place, kind, "9 minutes")+ended+`3 minutes'`))
		}
		require.Equal(t, []string{"site_down t-2"}, kinds(down+";"+restart("app-9", kind, "1 minute")))
	}
	require.Empty(t, kinds(waiting+`1 minute' WHERE tenant_id = 't-8'`), "a scale-out is made for it")
	require.Equal(t, []string{"tenants_waiting t-8"}, kinds(waiting+`3 minutes' WHERE tenant_id = 't-8'`))
	require.Empty(t, kinds(`UPDATE tenants SET state = 'failed', status_reason = 'cancelled' WHERE tenant_id = 't-8'`))
	for name, sql := range map[string]string{
		"a suspension": `UPDATE tenants SET state = 'suspended' WHERE tenant_id = 't-2'`,
		"a move": `INSERT INTO tenant_moves (move_id, org_id, tenant_id, allocation_id, requested_by, site, database_name,
			from_server_id, to_server_id, state) VALUES ('m', 'acme', 't-2', 1, 'test', 's', 'd', 'app-1', 'app-2', 'frozen')`,
		"a restore": `INSERT INTO restore_jobs (job_id, org_id, tenant_id, snapshot_id, status, created_by)
			VALUES ('r', 'acme', 't-2', 'snp', 'running', 'test')`,
		"a release": `INSERT INTO stack_releases (name, image, rings, created_by, status)
			VALUES ('1', 'i', '[]', 'test', 'rolling');
			INSERT INTO stack_release_sites (release, server_id, site, tenant_id, offline_at)
			VALUES ('1', 'app-1', 's', 't-2', now())`,
		"a drain": maintenanceOf + `status) VALUES ('app-1', 1, 'drain', 'test', true, 'moving')`,
		"a deletion": `UPDATE servers SET status = 'draining', decommission_requested_at = now(),
			agent_status = 'disconnected' WHERE server_id = 'app-1'`,
	} {
		if name != "a drain" {
			sql += ";" + down
		}
		require.Empty(t, kinds(sql), name)
	}
}

// affectsNobody are the kinds that name no customers, and the findings of other kinds that don't, with the reason.
var affectsNobody = map[attention.Kind]string{
	"edge_behind app-1 document_refused": "another edge has the document",
	"operation_stuck web running":        "members serve as before",
	"operation_stuck img building":       "servers are made from the previous image",

	attention.Recovering:          "sites serve, and what waits is every customer's",
	attention.BreakGlass:          "a person has access",
	attention.DeletionsFrozen:     "nothing is deleted",
	attention.ReconcileBreaker:    "nothing is deleted",
	attention.DNSBreaker:          "nothing is deleted",
	attention.ProcessDown:         "requests of all customers wait, and sites serve",
	attention.LookLate:            "other looks find the same later",
	attention.LookFailing:         "other looks find the same later",
	attention.ProviderBlocked:     "requests of all customers wait",
	attention.CatalogStale:        "choices use the last catalog",
	attention.WarmPoolLow:         "tenants that wait are listed as waiting",
	attention.FleetActionFailed:   "members serve as before",
	attention.RebalanceStopped:    "a tenant whose move failed is listed itself",
	attention.AgentReleaseStopped: "a host whose agent fails is listed itself",
	attention.ImageFailed:         "servers are made from the previous image",
	attention.ProviderUntracked:   "prego has no row of it",
}

// TestFindingsNameTheirCustomers: every finding of a kind that harms customers names them, although only the server,
// the volume or the name is wrong.
func TestFindingsNameTheirCustomers(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := tenantStore(t)
	conn, err := s.pool.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	all, err := conn.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = all.Rollback(ctx) }()
	runEach(t, all, `SET LOCAL session_replication_role = replica;`+wellInstallation+`;
		UPDATE tenants SET status_reason = 'awaiting_site', state = 'provisioning' WHERE tenant_id = 't-6';
		UPDATE tenants SET site = 'shop.example.com' WHERE tenant_id = 't-2';
		UPDATE servers SET network_id = 'n' WHERE server_id IN ('app-1', 'app-2');
		INSERT INTO stack_release_sites (release, server_id, site, tenant_id, offline_at)
			VALUES ('15.80', 'app-1', 's', 't-4', now());
		INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name,
			infra_provider, algorithm)
		SELECT 't-' || n, 'app-2', 'd', 'r', '', '', 'hetzner', 'a' FROM generate_series(5, 7) n;
		INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request,
			number, spec, state) VALUES ('i-1', 'grp-a', 'acme', 'app-2', 1, 1, 0, 1, '{}', 'running')`)
	var silent []string
	for _, kind := range attention.Kinds() {
		for _, a := range ailments[kind] {
			tx, err := all.Begin(ctx)
			require.NoError(t, err)
			runEach(t, tx, a.SQL)
			found, _, err := s.attentionIn(ctx, &txn{Tx: tx}, attentionLimits)
			require.NoError(t, err)
			require.NoError(t, tx.Rollback(ctx))
			for _, f := range found {
				switch named := f.Affected.OrgCount > 0; {
				case f.Kind != kind:
				case affectsNobody[kind] != "" || affectsNobody[attention.Kind(string(kind)+" "+a.Is)] != "":
					require.False(t, named, "%s", a.Is)
				case !named:
					silent = append(silent, string(kind)+" "+a.Is)
				}
			}
		}
	}
	require.Empty(t, silent)
}

// TestAServersFindingNamesWhoIsThere: one server's tenants and the orgs of its instances, and of a sum those of all its
// servers.
func TestAServersFindingNamesWhoIsThere(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	conn, err := s.pool.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	runEach(t, conn, `SET session_replication_role = replica;`+wellInstallation+`;
		DELETE FROM tenant_allocations;
		INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name,
			infra_provider, algorithm)
		SELECT tenant_id, CASE tenant_id WHEN 't-1' THEN 'app-1' ELSE 'app-2' END, 'app-9', 'app-9', 's', 'd',
			'hetzner', 'a' FROM tenants;
		INSERT INTO db_shards (shard_id, server_id, region, tenant_capacity) VALUES ('app-9', 'app-9', 'eu', 9);
		INSERT INTO redis_pools (pool_id, server_id, region, tenant_capacity) VALUES ('app-9', 'app-9', 'eu', 9);
		UPDATE tenants SET state = 'terminated', converged_state = state WHERE tenant_id = 't-3';
		UPDATE tenants SET plan = 'enterprise' WHERE tenant_id = 't-7';
		INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request,
			number, spec, state)
		SELECT 'i-' || n, 'grp-a', CASE WHEN n = 1 THEN 'zeta' ELSE 'acme' END, 'app-2', 1, 1, 0, n, '{}',
			CASE n WHEN 4 THEN 'stopped' ELSE 'running' END
		FROM generate_series(1, 4) n`)
	finds := func(sql string) []attention.Finding {
		t.Helper()
		runEach(t, conn, sql)
		found, _, err := s.Attention(ctx, attentionLimits)
		require.NoError(t, err)
		return found
	}
	affected := func(sql string) string {
		t.Helper()
		found := finds(sql)
		// A network without a live edge has its own line.
		found = slices.DeleteFunc(found, func(f attention.Finding) bool { return f.Reason == "no_edge" })
		items := attention.List(found)
		require.Len(t, items, 1, "%+v", items)
		if items[0].Affected == nil {
			return ""
		}
		require.Contains(t, items[0].Affected.Orgs, prego.OrgID("acme"))
		return items[0].Affected.Summary
	}
	const well = `;UPDATE servers SET agent_status = 'connected', status = 'active', docker_state = 'running';`
	const there = "6 tenants: shop-7, shop-2, shop-4 and 3 more; 3 instances; 2 orgs: acme, zeta"
	const silent, ofApp2 = `UPDATE servers SET agent_status = 'degraded' WHERE server_id `, ` WHERE server_id = 'app-2'`
	require.Equal(t, "1 tenant: shop-1", affected(silent+`= 'app-1'`))
	require.Equal(t, there, affected(well+silent+`= 'app-2'`))
	require.Equal(t, "7 tenants: shop-7, shop-1, shop-2 and 4 more",
		affected(well+silent+`= 'app-9'`), "the server of their shard")
	require.Empty(t, affected(well+silent+`= 'app-5'`))
	require.Equal(t, "7 tenants: shop-7, shop-1, shop-2 and 4 more; 3 instances; 2 orgs: acme, zeta",
		affected(well+silent+`IN ('app-1', 'app-2', 'app-3', 'app-4', 'app-5', 'app-6')`))
	for _, sql := range []string{
		`UPDATE servers SET status = 'failed', status_reason = 'heartbeat_lost'`,
		`UPDATE servers SET docker_state = 'stopped'`,
		`UPDATE servers SET status = 'draining', decommission_requested_at = now() - interval '61 minutes'`,
	} {
		require.Equal(t, there, affected(well+sql+ofApp2), sql)
	}
	each := map[string]int{}
	for _, f := range finds(well + silent + `IN ('app-1', 'app-2')`) {
		each[f.ID] = f.Affected.TenantCount
	}
	require.Equal(t, map[string]int{"app-1": 1, "app-2": 6}, each, "each names its own")
	for _, kind := range []attention.Kind{attention.MaintenanceStuck, attention.MaintenanceFailed} {
		require.Equal(t, there, affected(well+`DELETE FROM server_maintenances;`+ailments[kind][0].SQL), kind)
	}
	require.Contains(t, affected(well+`DELETE FROM server_maintenances;
		UPDATE servers SET status = 'provisioning', status_reason = 'awaiting_capacity', dedicated_for_tenant_id = 't-5'
		WHERE server_id = 'app-6'`), "1 tenant: shop-5", "which waits for it")

	const edge = `;UPDATE servers SET status = 'active', dedicated_for_tenant_id = NULL;
		UPDATE servers SET role = 'edge', agent_status = 'degraded' WHERE server_id = 'app-12'`
	require.Equal(t, "7 tenants: shop-7, shop-1, shop-2 and 4 more",
		affected(well+edge), "the only edge of its network")
	require.Contains(t, affected(`INSERT INTO edges (server_id, network) VALUES ('app-12', 'eu')`), "7 tenants: ",
		"it has just requested its document")
	require.Empty(t, affected(`DELETE FROM edges WHERE server_id = 'app-12';
		INSERT INTO edges (server_id, network) VALUES ('app-11', 'eu')`))
	require.Contains(t, affected(`UPDATE edges SET asked_at = now() - interval '1 minute' WHERE server_id = 'app-11'`),
		"7 tenants: ", "the other edge does not request its document")
	require.Empty(t, affected(well+`UPDATE servers SET role = 'app';
		UPDATE edges SET asked_at = now(), refused_version = 9, refused_reason = 'no',
			refused_since = now() - interval '1 hour'
		WHERE server_id = 'app-11'; UPDATE tenants SET created_at = now() - interval '1 day'`))
	require.Equal(t, "1 tenant: shop-2",
		affected(`UPDATE tenants SET created_at = now() WHERE tenant_id = 't-2'`), "which does not open")
	require.Equal(t, "1 tenant: shop-4", affected(`UPDATE edges SET refused_version = 0;
		INSERT INTO stack_releases (name, image, rings, created_by, status, message)
		VALUES ('1', 'i', '[]', 'test', 'stopped', 'broken');
		INSERT INTO stack_release_sites (release, server_id, site, tenant_id, offline_at)
		VALUES ('1', 'app-2', 's', 't-4', now())`))
}

// TestOnlyEmptyServersAreProposedForDeletion: rows show whether a failed or stuck server may hold data.
func TestOnlyEmptyServersAreProposedForDeletion(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := groupBundle(t)
	destroying := func(sql string) (cli []string) {
		t.Helper()
		tx, err := s.pool.Begin(ctx)
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback(ctx)) }()
		runEach(t, tx, sql)
		found, _, err := s.attentionIn(ctx, &txn{Tx: tx}, attentionLimits)
		require.NoError(t, err)
		items := attention.List(found)
		require.NotEmpty(t, items, sql)
		for _, a := range items[0].Actions {
			if a.Destroys {
				cli = append(cli, a.CLI)
			}
		}
		return cli
	}
	const (
		unmade   = `UPDATE servers SET status = 'failed', status_reason = 'failed_boot'`
		kept     = `UPDATE servers SET status = 'failed', status_reason = 'failed_container', provider_server_id = '1', agent_first_heartbeat_at = now()`
		lost     = `UPDATE servers SET status = 'failed', status_reason = 'heartbeat_lost', provider_server_id = '1', agent_first_heartbeat_at = now(), agent_status = 'disconnected'`
		stuck    = `UPDATE servers SET status = 'provisioning', updated_at = now() - interval '2 hours'`
		deleting = `UPDATE servers SET status = 'draining', decommission_requested_at = now() - interval '2 hours', provider_server_id = '1', agent_first_heartbeat_at = now(), agent_status = 'disconnected'`
	)
	both, one := []string{"prego server retry node-1", "prego server delete node-1"}, []string{"prego server delete node-1"}
	require.Equal(t, both, destroying(unmade))
	require.Equal(t, both, destroying(kept), "for debugging; no tenant was ever placed on it")
	require.Equal(t, one, destroying(stuck))
	require.Equal(t, one, destroying(deleting))
	require.Empty(t, destroying(lost), "although no row of a tenant is on it")
	require.Empty(t, destroying(`UPDATE servers SET status = 'failed', status_reason = 'failed_container', provider_server_id = '1', agent_first_heartbeat_at = now(), agent_status = 'disconnected'`))
	for _, used := range []string{`, tenant_count = 1`, `, purpose = 'import_existing_server'`} {
		for _, state := range []string{unmade, kept, lost, stuck, deleting} {
			require.Empty(t, destroying(state+used), state+used)
		}
	}
}

// TestAServerIsGivenUpLast: only after no site of it answers and a reset did not bring it back, and with the name of
// each tenant and the minutes that it loses.
func TestAServerIsGivenUpLast(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	conn, err := s.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	runEach(t, conn, `SET session_replication_role = replica;`+wellInstallation+`;
		UPDATE servers SET status = 'failed', status_reason = 'heartbeat_lost', agent_status = 'disconnected',
			agent_last_heartbeat_at = now() - interval '20 minutes' WHERE server_id = 'app-1';
		UPDATE edges SET server_id = 'app-7'; UPDATE site_health SET server_id = 'app-7', up = false, cause = 'timeout';
		UPDATE backups SET tenant_id = 't-2', taken_at = now() - interval '50 minutes'`)
	given := func(sql string) string {
		t.Helper()
		runEach(t, conn, sql)
		found, _, err := s.Attention(t.Context(), attentionLimits)
		require.NoError(t, err)
		for _, i := range attention.List(found) {
			for _, a := range i.Actions {
				if i.Kind == attention.ServerFailed && a.CLI == "prego server lose app-1" {
					return i.Todo
				}
			}
			require.NotContains(t, i.Todo, "server lose")
		}
		return ""
	}
	require.Empty(t, given(`SELECT 1`), "nobody has reset it")
	const reset = `INSERT INTO server_maintenances (server_id, number, kind, requested_by, was_open, status, reason,
		finished_at, acted_at, reset_at) VALUES ('app-1', 1, 'reboot', 'test', true, 'failed', 'reboot_timeout', now(), now(), now())`
	todo := given(reset)
	require.Contains(t, todo, "is lost: shop-3 everything, without a backup, shop-4 everything, without a backup, "+
		"shop-2 30 min.")
	require.Empty(t, given(`UPDATE site_health SET up = true, cause = '' WHERE tenant_id = 't-3'`), "a site answers")
	require.Empty(t, given(`DELETE FROM site_health WHERE tenant_id = 't-3'`), "nobody knows whether it does")
	require.NotEmpty(t, given(`UPDATE tenants SET state = 'suspended' WHERE tenant_id = 't-3'`), "it need not")
	require.Empty(t, given(`UPDATE server_maintenances SET reset_at = now() - interval '1 hour'`), "an earlier reset")
	require.Empty(t, given(`UPDATE server_maintenances SET reset_at = NULL`), "only the button was pressed")
	require.NotEmpty(t, given(`UPDATE server_maintenances SET reset_at = now()`))
	require.Empty(t, given(`UPDATE edges SET watched_until = now() - interval '2 minutes'`), "no edge probes")
}

func TestAttentionReadsOneSnapshot(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	exec(t, s, `INSERT INTO reconcile_runs (started_at, finished_at, findings) VALUES (now() - interval '2 minutes', now(), '{"breaker_hit": true}'), (now(), now(), '{"breaker_hit": true}')`)
	found, at, err := s.Attention(t.Context(), attentionLimits)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, attention.ReconcileBreaker, found[0].Kind)
	require.Greater(t, at.Sub(found[0].Since), time.Minute, "since the first of the runs that found it")
	require.Equal(t, prego.OrgID(""), found[0].OrgID)
}

// TestSinceNeverRestarts: for each kind, what is repeated between two reads (attempts, reports, heartbeats: each writes
// the present into all times of the rows) leaves its start as it was first found. Once it is well, the next is a new one.
func TestSinceNeverRestarts(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := tenantStore(t)
	exec(t, s, `INSERT INTO attention_since VALUES ('well/x', now())`)
	require.NoError(t, s.KeepAttention(ctx, attentionLimits))
	require.Zero(t, count(t, s, "attention_since"), "it is well")

	first := time.Now().Add(-time.Hour).Truncate(time.Second)
	for _, kind := range attention.Kinds() {
		f := attention.Finding{Kind: kind, Subject: attention.Subjects()[kind][0], ID: "x", Since: first}
		items := attention.List([]attention.Finding{f})
		earlier := map[string]time.Time{items[0].ID: first}
		f.Since, f.Reason = time.Now(), "" // of the next attempt
		require.Equal(t, first, attention.Since(attention.List([]attention.Finding{f}), earlier)[0].Since, kind)
	}

	since := func(id string) (at time.Time) {
		t.Helper()
		items, _, err := s.AttentionItems(ctx, attentionLimits)
		require.NoError(t, err)
		for _, i := range items {
			if i.ID == id {
				at = i.Since
			}
		}
		require.NoError(t, s.KeepAttention(ctx, attentionLimits))
		return at
	}
	exec(t, s, `INSERT INTO certificates (certificate_id, names, challenge, created_by, status, failures, updated_at)
		VALUES ('crt-a', '{a.example.com}', 'http-01', 'test', 'failed', 1, now() - interval '1 hour')`)
	was := since("certificate_failing/crt-a")
	exec(t, s, `UPDATE certificates SET failures = 2, updated_at = now()`)
	require.Equal(t, was, since("certificate_failing/crt-a"), "another attempt")
	exec(t, s, `UPDATE certificates SET status = 'pending', updated_at = now()`)
	require.Zero(t, since("certificate_failing/crt-a"))
	exec(t, s, `UPDATE certificates SET status = 'failed', updated_at = now()`)
	require.True(t, since("certificate_failing/crt-a").After(was.Add(time.Minute)), "after it was well")
}
