package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/cost"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/tenant"
)

// The rows of two orgs are in every table that customers may read. Each text of theirs has the org's name in it.
const (
	seenOrg   = "alpha"
	hiddenOrg = "bravo"
)

// reading is the context of a customer's request that changes nothing.
func reading(ctx context.Context, orgs ...prego.OrgID) context.Context {
	return access.WithReach(ctx, access.Reach{Orgs: orgs, ReadOnly: true})
}

// changing is the context of a customer's request that changes something.
func changing(ctx context.Context, orgs ...prego.OrgID) context.Context {
	return access.WithReach(ctx, access.Reach{Orgs: orgs})
}

// sharedHosts are what hosts both.
const sharedHosts = `
INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, active_at)
VALUES ('shared-1', '', 'node', 'eu', 'hetzner', '{}', 'active', 'w', 'test', now());
INSERT INTO edges (server_id, network, watched_from, watched_until) VALUES ('shared-1', 'eu', now() - interval '1 hour', now() + interval '1 hour');
INSERT INTO db_shards (shard_id, server_id, region, tenant_capacity) VALUES ('shared-1', 'shared-1', 'eu', 9);
INSERT INTO redis_pools (pool_id, server_id, region, tenant_capacity) VALUES ('shared-1', 'shared-1', 'eu', 9)`

// moreOfOrgs are rows besides the first one of a table.
const moreOfOrgs = `
INSERT INTO events (kind, id, org_id, step, actor, payload) SELECT 'app', 'app-' || org_id, org_id, 'create', 'someone of ' || org_id, '{}' FROM orgs;
INSERT INTO cost_entries (day, meter_id, part, owner_kind, owner_id, org_id, basis, amount, currency)
SELECT '2026-01-16', 1, 'used', 'tenant', 'tenant-' || org_id, org_id, 'own', 5, 'EUR' FROM orgs;
INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by, waiting_since)
SELECT 'waits-' || org_id, 'waits-' || org_id, org_id, 'eu', 'starter', 1, 1, 'shared', '', 'provisioning', 'test', now() FROM orgs;
INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, dedicated_for_tenant_id)
SELECT 'own-' || org_id, '', 'node', 'eu', 'hetzner', '{}', 'provisioning', 'w', 'test', 'tenant-' || org_id FROM orgs;
INSERT INTO db_shards (shard_id, server_id, region, tenant_capacity, dedicated_for_tenant_id) SELECT 'own-' || org_id, 'own-' || org_id, 'eu', 1, 'tenant-' || org_id FROM orgs;
INSERT INTO redis_pools (pool_id, server_id, region, tenant_capacity, dedicated_for_tenant_id) SELECT 'own-' || org_id, 'own-' || org_id, 'eu', 1, 'tenant-' || org_id FROM orgs;
INSERT INTO resources (provider, kind, name, provider_id, server_id, state) VALUES ('hetzner', 'server', 'shared-1', '1', 'shared-1', 'created');
INSERT INTO cost_meters (provider, kind, provider_id, region, server_id, started_at) VALUES ('hetzner', 'server', '1', 'eu', 'shared-1', '2026-01-01')`

// ownValues are what the columns of a table have otherwise than by their type; NULL leaves a column out.
var ownValues = map[string]string{
	"backup_policy_changes.policy_id": "'org/ORG'", "principals.kind": "'service_account'", "credentials.hash": "sha256('ORG')", "login_links.hash": "sha256('ORG')", "login_links.access_role": "NULL",
	"credentials.parent_id": "NULL", "login_links.parent_id": "NULL",
	"site_usage.measured_at": "now()", "backup_schedules.next_at": "now()", "backup_schedules.due_at": "now()",
	"tenants.state": "'active'", "tenants.converged_state": "'active'", "tenants.plan": "'starter'", "tenants.active_at": "now()",
	"tenants.external_ref": "'ref-ORG'", "tenants.site": "'ORG.example.com'",
	"backups.state": "'stored'", "backups.taken_at": "'2026-01-01'", "backups.sealed_identity": `'\x00'`, "backups.bytes": "1", "backups.sha256": "'x'",
	"backups.plain_sha256": "'x'", "backups.manifest_sha256": "'x'", "backups.volume_id": "NULL",
	"backup_holds.volume_id": "NULL", "backup_policies.tenant_id": "NULL", "backup_policies.volume_id": "NULL",
	"backup_policies.policy_id": "'org/ORG'", "backup_policies.keep_daily": "1", "drills.volume_id": "NULL",
	"drills.cleared_at": "now()", "restore_jobs.backup_id": "NULL", "tenant_moves.to_server_id": "'shared-2'",
	"volumes.size_bytes": "10000000000", "volumes.status": "'ready'", "routes.hostname": "'www.ORG.example.com'", "routes.listen_port": "443",
	"domains.name": "'www.ORG.example.com'", "certificates.names": "'{www.ORG.example.com}'", "events.kind": "'tenant'", "events.id": "'tenant-ORG'",
	"events.step": "'created'", "events.xid": "DEFAULT", "audit_entries.actor": "'someone of ORG'", "audit_entries.verb": "'create'",
	"cost_entries.day": "'2026-01-15'", "cost_entries.owner_kind": "'org'", "cost_entries.owner_id": "'ORG'", "cost_entries.part": "'used'",
	"site_health.up": "true", "orgs.parent_org_id": "NULL", "tenants.parent_org_id": "NULL", "tenants.restore_from": "NULL",
	"instances.state": "'running'", "org_usage_drifts.drift": "'{}'", "org_placement_pools.pool_id": "'pool-ORG'", "placement_pools.name": "'pool-ORG'",
	"placement_pools.require_tags": "'{}'", "tenant_allocations.app_server_id": "'shared-1'", "tenant_allocations.db_shard_id": "'shared-1'",
	"tenant_allocations.redis_pool_id": "'shared-1'", "volumes.provider_id": "'vol-ORG'", "volumes.lent_to": "NULL",
	"org_usage_parts.kind": "'group'", "snapshots.status": "'succeeded'", "process_groups.replicas": "1", "placement_pools.pool_id": "'pool-ORG'",
}

// fillOrg inserts a row of an org into every table under a policy.
func fillOrg(t *testing.T, db *pgxpool.Pool, org string, n int) {
	t.Helper()
	ctx := t.Context()
	tx, err := db.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(ctx) }()
	_, err = tx.Exec(ctx, `SET LOCAL session_replication_role = replica`)
	require.NoError(t, err)
	for _, table := range policedTables(t, db) {
		if slices.Contains([]string{"servers", "db_shards", "redis_pools"}, table) {
			continue
		}
		type column struct {
			Name, Kind string
			Needed     bool
			Allowed    *string
		}
		rows, err := tx.Query(ctx, `
SELECT a.attname AS name, format_type(a.atttypid, NULL) AS kind, a.attnotnull AND NOT a.atthasdef AS needed,
    (SELECT min(pg_get_constraintdef(c.oid)) FROM pg_constraint c WHERE c.conrelid = a.attrelid AND c.contype = 'c' AND c.conkey = ARRAY[a.attnum]) AS allowed
FROM pg_attribute a WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum`, table)
		require.NoError(t, err)
		columns, err := pgx.CollectRows(rows, pgx.RowToStructByName[column])
		require.NoError(t, err)
		var names, values []string
		for _, c := range columns {
			v := ownValues[table+"."+c.Name]
			if v == "" && (c.Needed || c.Kind == "text" && strings.HasSuffix(c.Name, "_id")) {
				v = generated(c.Name, c.Kind, c.Allowed, n)
			}
			if v != "" {
				names, values = append(names, c.Name), append(values, strings.ReplaceAll(v, "ORG", org))
			}
		}
		_, err = tx.Exec(ctx, fmt.Sprintf(`INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE VALUES (%s)`, table, strings.Join(names, ", "), strings.Join(values, ", ")))
		require.NoError(t, err, table)
	}
	require.NoError(t, tx.Commit(ctx))
}

var quotedText = regexp.MustCompile(`'([^']+)'::text`)

func generated(name, kind string, allowed *string, n int) string {
	switch kind {
	case "text":
		if allowed != nil {
			if m := quotedText.FindStringSubmatch(*allowed); m != nil {
				return "'" + m[1] + "'"
			}
		}
		switch {
		case name == "org_id":
			return "'ORG'"
		case strings.HasSuffix(name, "server_id"):
			return "'shared-1'"
		case name == "provider" || name == "infra_provider":
			return "'hetzner'"
		case name == "region":
			return "'eu'"
		case name == "plan":
			return "NULL"
		}
		return "'" + strings.TrimSuffix(name, "_id") + "-ORG'"
	case "jsonb":
		return "'{}'"
	case "text[]":
		return "'{}'"
	case "bytea":
		return `'\x00'`
	case "timestamp with time zone", "date":
		return "now()"
	case "boolean":
		return "false"
	case "pg_snapshot":
		return "NULL"
	}
	return fmt.Sprint(n)
}

// policedTables are the tables whose rows customers see by policies.
func policedTables(t *testing.T, db *pgxpool.Pool) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relrowsecurity AND relnamespace = 'public'::regnamespace ORDER BY 1`)
	require.NoError(t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Greater(t, len(tables), 40)
	return tables
}

// customersStore has rows of two orgs.
func customersStore(t *testing.T) *Store {
	t.Helper()
	db := pgtest.Pool(t)
	_, err := db.Exec(t.Context(), sharedHosts)
	require.NoError(t, err)
	fillOrg(t, db, seenOrg, 1)
	fillOrg(t, db, hiddenOrg, 2)
	_, err = db.Exec(t.Context(), moreOfOrgs)
	require.NoError(t, err)
	return New(db)
}

// TestCustomersReadOnlyTheirOrgs: every statement of a customer's reads may run, finds what is of the org in reach and
// nothing of another one.
func TestCustomersReadOnlyTheirOrgs(t *testing.T) {
	t.Parallel()
	s := customersStore(t)
	ctx := t.Context()
	for name, read := range customersReads(s) {
		t.Run(name, func(t *testing.T) {
			seen, err := read(reading(ctx, seenOrg))
			require.NoError(t, err)
			require.NotContains(t, text(t, seen), hiddenOrg)
			none, err := read(reading(ctx))
			if err == nil {
				require.NotContains(t, text(t, none), seenOrg, "without an org in reach")
				require.NotContains(t, text(t, none), hiddenOrg, "without an org in reach")
			}
			// The feed of events ends where a transaction of any database of the cluster is open.
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				all, err := read(reading(ctx, seenOrg, hiddenOrg))
				require.NoError(c, err)
				require.Contains(c, text(t, all), seenOrg, "the read finds nothing")
			}, 30*time.Second, 20*time.Millisecond)
		})
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return string(b)
}

type customersRead func(context.Context) (any, error)

func customersReads(s *Store) map[string]customersRead {
	out := map[string]customersRead{}
	all := prego.ListQuery{Limit: 100, All: true}
	addList(out, s, "tenants", Tenants, all)
	addList(out, s, "decisions", Decisions, all)
	addList(out, s, "backups", Backups, all)
	addList(out, s, "all backups", AllBackups, all)
	addList(out, s, "snapshots", Snapshots, all)
	addList(out, s, "restores", Restores, all)
	addList(out, s, "volume restores", VolumeRestores, all)
	addList(out, s, "moves", Moves, all)
	addList(out, s, "drills", Drills, all)
	addList(out, s, "domains", Domains, all)
	addList(out, s, "certificates", Certificates, all)
	addList(out, s, "apps", Apps, all)
	addList(out, s, "envs", Envs, all)
	addList(out, s, "groups", Groups, all)
	addList(out, s, "rollouts", Rollouts, prego.ListQuery{Limit: 100})
	addList(out, s, "instances", Instances, all)
	addList(out, s, "all instances", AllInstances, all)
	addList(out, s, "routes", Routes, all)
	addList(out, s, "ipv4", IPv4s, all)
	addList(out, s, "attachments", Attachments, all)
	addList(out, s, "orgs", Orgs, all)
	addList(out, s, "audit", AuditEntries, prego.ListQuery{Limit: 100})
	maps.Copy(out, map[string]customersRead{
		"volumes": func(ctx context.Context) (any, error) { v, _, err := s.ListVolumes(ctx, all); return v, err },
		"backup policies": func(ctx context.Context) (any, error) {
			v, _, err := s.ListBackupPolicies(ctx, prego.ListQuery{Limit: 100})
			return v, err
		},
		"org events": func(ctx context.Context) (any, error) {
			v, _, err := s.ListOrgEvents(ctx, prego.ListQuery{Limit: 100}.Of("org_id", seenOrg))
			return v, err
		},
		"tenant":           func(ctx context.Context) (any, error) { return s.GetTenant(ctx, "tenant-alpha") },
		"timeline":         func(ctx context.Context) (any, error) { return s.TenantEvents(ctx, "tenant-alpha") },
		"allocation":       func(ctx context.Context) (any, error) { return s.LiveAllocation(ctx, "tenant-alpha") },
		"last decision":    func(ctx context.Context) (any, error) { return s.LastDecision(ctx, "tenant-alpha") },
		"tenant decisions": func(ctx context.Context) (any, error) { return s.ListDecisions(ctx, "tenant-alpha") },
		"decision":         func(ctx context.Context) (any, error) { return s.GetDecision(ctx, 1) },
		"backup": func(ctx context.Context) (any, error) {
			return s.GetBackup(ctx, tenant.BackupOwner{TenantID: "tenant-alpha"}, "backup-alpha")
		},
		"restorable": func(ctx context.Context) (any, error) { return s.Restorable(ctx, "tenant-alpha") },
		"last drill": func(ctx context.Context) (any, error) { return s.LastDrill(ctx, "tenant-alpha") },
		"snapshot":   func(ctx context.Context) (any, error) { return s.GetSnapshot(ctx, "tenant-alpha", "snapshot-alpha") },
		"restore":    func(ctx context.Context) (any, error) { return s.GetRestore(ctx, "tenant-alpha", "job-alpha") },
		"volume restore": func(ctx context.Context) (any, error) {
			return s.GetVolumeRestore(ctx, "volume-alpha", "restore-alpha")
		},
		"move":        func(ctx context.Context) (any, error) { return s.GetMove(ctx, "tenant-alpha", "move-alpha") },
		"domain":      func(ctx context.Context) (any, error) { return s.GetDomain(ctx, "domain-alpha") },
		"certificate": func(ctx context.Context) (any, error) { return s.GetCertificate(ctx, "certificate-alpha") },
		"app":         func(ctx context.Context) (any, error) { return s.GetApp(ctx, "app-alpha") },
		"env":         func(ctx context.Context) (any, error) { return s.GetEnv(ctx, "env-alpha") },
		"group":       func(ctx context.Context) (any, error) { return s.GetGroup(ctx, "group-alpha") },
		"instance":    func(ctx context.Context) (any, error) { return s.GetInstance(ctx, "instance-alpha") },
		"route":       func(ctx context.Context) (any, error) { return s.GetRoute(ctx, "env-alpha", "route-alpha") },
		"env's ipv4":  func(ctx context.Context) (any, error) { return s.GetIPv4(ctx, "env-alpha") },
		"volume":      func(ctx context.Context) (any, error) { return s.GetVolume(ctx, "volume-alpha") },
		"org":         func(ctx context.Context) (any, error) { return s.GetOrg(ctx, seenOrg) },
		"org's pools": func(ctx context.Context) (any, error) { return s.OrgPlacementPools(ctx, seenOrg) },
		"audit entry": func(ctx context.Context) (any, error) { return s.GetAuditEntry(ctx, 1) },
		"operation":   func(ctx context.Context) (any, error) { return s.Operation(ctx, "tenant-provision/tenant-alpha") },
		"search": func(ctx context.Context) (any, error) {
			v, _, err := s.Search(ctx, ops.SearchQuery{Text: "tenant-", Limit: 100})
			return v, err
		},
		"search parts": func(ctx context.Context) (any, error) {
			v, _, err := s.Search(ctx, ops.SearchQuery{Text: "enant-", Limit: 100})
			return v, err
		},
		"feed's end": func(ctx context.Context) (any, error) { return s.Events(ctx, ops.EventQuery{Tail: 100, Limit: 100}) },
		"feed":       func(ctx context.Context) (any, error) { return s.Events(ctx, ops.EventQuery{Since: "0-0", Limit: 100}) },
		"costs": func(ctx context.Context) (any, error) {
			return s.Costs(ctx, cost.ByOrg, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
		},
		"costs of tenants": func(ctx context.Context) (any, error) {
			return s.Costs(ctx, cost.ByTenant, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
		},
		"progress": func(ctx context.Context) (any, error) { return s.Progress(ctx, nil, 100) },
		"queue":    func(ctx context.Context) (any, error) { return s.Queue(ctx) },
		// What the others hold no text of the org.
		"due":         func(ctx context.Context) (any, error) { return mentions(s.BackupDue(ctx, "tenant-alpha")) },
		"cost":        func(ctx context.Context) (any, error) { return mentions(s.TenantCost(ctx, "tenant-alpha")) },
		"loss":        func(ctx context.Context) (any, error) { return mentions(s.TenantLoss(ctx, "tenant-alpha")) },
		"health":      func(ctx context.Context) (any, error) { return mentions(s.SiteHealth(ctx, "tenant-alpha")) },
		"uptime":      func(ctx context.Context) (any, error) { return mentions(s.Uptime(ctx, "tenant-alpha")) },
		"usage":       func(ctx context.Context) (any, error) { return mentions(s.SiteUsage(ctx, "tenant-alpha")) },
		"quotas":      func(ctx context.Context) (any, error) { return mentions(s.OrgQuotas(ctx, seenOrg)) },
		"space":       func(ctx context.Context) (any, error) { return mentions(s.BackupSpace(ctx, seenOrg, 5)) },
		"org version": func(ctx context.Context) (any, error) { return mentions(s.Version(ctx, prego.ReplaceableOrg, seenOrg)) },
		"quota version": func(ctx context.Context) (any, error) {
			return mentions(s.Version(ctx, prego.ReplaceableQuota, seenOrg, "max_apps"))
		},
	})
	return out
}

// mentions is an answer that names no org.
func mentions[T any](v T, err error) (any, error) {
	if b, _ := json.Marshal(v); err != nil || slices.Contains([]string{"null", "[]", `""`}, string(b)) {
		return nil, err
	}
	return []any{seenOrg, v}, nil
}

func addList[T any](out map[string]customersRead, s *Store, name string, l Listing[T], q prego.ListQuery) {
	out["list of "+name] = func(ctx context.Context) (any, error) {
		v, _, err := l.In(s)(ctx, q)
		return v, err
	}
}

// readWhole are the tables without a policy that customers may read, and why, with the columns if they are not all.
var readWhole = map[string]string{
	"access_roles":    "which capabilities custom access roles include",
	"infra_providers": "which clouds and regions there are", "residency_zones": "which regions a country allows",
	"tenant_sizes": "what plans count", "workload_settings": "what an instance costs beside its own limit",
	"capacity_defaults": "how many tenants a server takes", "provider_prices": "list prices",
	"cost_progress": "until when costs are counted", "pruned": "until when events are deleted",
	"server_maintenances": "(server_id number kind status finished_at) whether a site is offline for its server's maintenance",
	"edges":               "(server_id network watched_from watched_until) whether an edge probes sites now",
	"cost_meters":         "(meter_id kind region started_at hours ended_at priced) what kind of thing an entry of costs is about",
}

// kept are the tables that name orgs or what belongs to them, and that no read of customers needs.
var kept = []string{
	"org_usage_drifts", "placement_overrides", "site_pool", "rebalance_moves", "edge_left_out",
}

// TestEveryTableIsUnderAPolicyOrOutOfReach: whoever adds a table decides what customers see of it, in the last section
// of the schema.
func TestEveryTableIsUnderAPolicyOrOutOfReach(t *testing.T) {
	t.Parallel()
	db := pgtest.Pool(t)
	rows, err := db.Query(t.Context(), `
SELECT c.relname::text AS name, c.relrowsecurity AS policed,
    has_any_column_privilege('prego_customer', c.oid, 'SELECT') AS read,
    has_table_privilege('prego_customer', c.oid, 'SELECT') AS whole,
    has_table_privilege('prego_customer', c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER') AS written,
    COALESCE((SELECT string_agg(a.attname, ' ' ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
        AND has_column_privilege('prego_customer', c.oid, a.attnum, 'SELECT')), '') AS columns,
    EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname IN ('org_id', 'tenant_id', 'volume_id', 'group_id', 'env_id', 'app_id')) AS owned,
    (SELECT count(*)::int FROM pg_policies p WHERE p.tablename = c.relname AND p.roles = '{prego_customer}' AND p.permissive = 'PERMISSIVE') AS policies
FROM pg_class c WHERE c.relkind IN ('r', 'p', 'm', 'f') AND c.relnamespace = 'public'::regnamespace`)
	require.NoError(t, err)
	type table struct {
		Name                                 string
		Policed, Read, Whole, Written, Owned bool
		Columns                              string
		Policies                             int
	}
	tables, err := pgx.CollectRows(rows, pgx.RowToStructByName[table])
	require.NoError(t, err)
	for _, at := range tables {
		why, listed := readWhole[at.Name]
		require.False(t, at.Written, "customers' requests write %s as prego_customer", at.Name)
		switch {
		case at.Policed:
			require.Equal(t, 1, at.Policies, at.Name)
			require.False(t, listed || slices.Contains(kept, at.Name), at.Name)
		case at.Read:
			require.True(t, listed, "customers read %s whole: give it a policy, or say in readWhole why that is harmless", at.Name)
			if !at.Whole {
				require.True(t, strings.HasPrefix(why, "("+at.Columns+")"), "of %s customers read %s", at.Name, at.Columns)
			}
		case at.Owned:
			require.Contains(t, kept, at.Name, "%s has rows of orgs: give it a policy, or add it to kept", at.Name)
		default:
			require.False(t, listed, at.Name)
		}
	}
	var unsafe []string
	rows, err = db.Query(t.Context(), `SELECT relname::text FROM pg_class WHERE relkind = 'v' AND relnamespace = 'public'::regnamespace
		AND NOT COALESCE(reloptions, '{}') @> '{security_invoker=true}'`)
	require.NoError(t, err)
	unsafe, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Empty(t, unsafe, "views read their tables as their owner, who sees everything")
}

// TestPoliciesShowOnlyRowsOfTheirOrgs: every table and view, whatever statement reads it.
func TestPoliciesShowOnlyRowsOfTheirOrgs(t *testing.T) {
	t.Parallel()
	s := customersStore(t)
	ctx := t.Context()
	relations, err := values[string](ctx, s.pool, `
SELECT format('SELECT COALESCE(json_agg(to_jsonb(x)), ''[]'')::text FROM (SELECT %s FROM %I) x', string_agg(format('%I', a.attname), ', '), c.relname)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'public'::regnamespace AND (c.relrowsecurity AND has_column_privilege('prego_customer', c.oid, a.attnum, 'SELECT') OR c.relkind = 'v')
GROUP BY c.relname ORDER BY c.relname`)
	require.NoError(t, err)
	require.Greater(t, len(relations), 50)
	seen := 0
	for _, sql := range relations {
		system, err := value[string](ctx, s.pool, sql)
		require.NoError(t, err, sql)
		own, err := value[string](reading(ctx, seenOrg), s.pool, sql)
		if strings.Contains(fmt.Sprint(err), "permission denied") {
			require.NotContains(t, sql, "org_id", sql) // a view of what hosts them
			continue
		}
		require.NoError(t, err, sql)
		require.NotContains(t, own, hiddenOrg, sql)
		for _, ctx := range []context.Context{reading(ctx), access.WithReach(ctx, access.Reach{Orgs: []prego.OrgID{"charly", `c"h\\arly'`}, ReadOnly: true})} {
			none, err := value[string](ctx, s.pool, sql)
			require.NoError(t, err, sql)
			require.NotContains(t, none, seenOrg, sql)
			require.NotContains(t, none, hiddenOrg, sql)
		}
		if strings.Contains(system, seenOrg) {
			require.Contains(t, own, seenOrg, sql)
			require.Contains(t, system, hiddenOrg, sql)
			seen++
		}
	}
	require.Greater(t, seen, 45, "tables with rows of both orgs")
}

// TestWithoutTheSettingNothingIsSeen: the role alone fails closed.
func TestWithoutTheSettingNothingIsSeen(t *testing.T) {
	t.Parallel()
	s := customersStore(t)
	ctx := t.Context()
	tx, err := s.pool.Pool.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(ctx) }()
	_, err = tx.Exec(ctx, `SET LOCAL ROLE prego_customer`)
	require.NoError(t, err)
	for _, table := range []string{"orgs", "tenants", "tenant_allocations", "events", "audit_entries"} {
		n, err := value[int](ctx, tx, `SELECT count(*) FROM `+table)
		require.NoError(t, err)
		require.Zero(t, n, table)
	}
}

// TestNothingOfARequestStaysOnItsConnection: the next user of a connection has its own rights, however the previous
// request ended.
func TestNothingOfARequestStaysOnItsConnection(t *testing.T) {
	t.Parallel()
	cfg := customersStore(t).pool.Config()
	cfg.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := New(pool)
	ctx := t.Context()
	const tenants = `SELECT string_agg(org_id, ' ' ORDER BY org_id) FROM tenants WHERE slug LIKE 'slug-%'`
	for name, request := range map[string]func(context.Context) error{
		"a row": func(ctx context.Context) error { _, err := value[string](ctx, s.pool, tenants); return err },
		"rows":  func(ctx context.Context) error { _, err := values[string](ctx, s.pool, tenants); return err },
		"a page": func(ctx context.Context) error {
			_, _, err := Tenants.In(s)(ctx, prego.ListQuery{Limit: 1})
			return err
		},
		"a view": func(ctx context.Context) error {
			return s.inView(ctx, "view", func(tx *txn) error { _, err := value[string](ctx, tx, tenants); return err })
		},
		"a batch": func(ctx context.Context) error {
			b := &pgx.Batch{}
			b.Queue(tenants)
			return s.pool.SendBatch(ctx, b).Close()
		},
		"a change": func(ctx context.Context) error { return s.exec(ctx, "x", `UPDATE tenants SET slug = slug`) },
		"an error": func(ctx context.Context) error { return s.exec(ctx, "x", `SELECT 1 / 0`) },
		"a transaction's error": func(ctx context.Context) error {
			return s.inTx(ctx, "x", func(tx *txn) error { tx.run(ctx, `SELECT 1 / 0`); return nil })
		},
		"unread rows": func(ctx context.Context) error {
			rows, err := s.pool.Query(ctx, `SELECT generate_series(1, 1000)`)
			if err == nil {
				rows.Close()
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 3 { // and their plans are not mixed up
				err := request(reading(ctx, seenOrg))
				if !strings.Contains(name, "error") && name != "a change" {
					require.NoError(t, err)
				} else {
					require.Error(t, err)
				}
				orgs, err := value[string](reading(ctx, hiddenOrg), s.pool, tenants)
				require.NoError(t, err)
				require.Equal(t, hiddenOrg, orgs)
				orgs, err = value[string](ctx, s.pool, tenants)
				require.NoError(t, err)
				require.Equal(t, seenOrg+" "+hiddenOrg, orgs)
				left, err := value[string](ctx, s.pool, `SELECT concat_ws('|', current_user = session_user, current_setting('transaction_read_only'),
					current_setting('prego.orgs', true), COALESCE(current_setting('prego.request', true), ''), current_setting('plan_cache_mode'))`)
				require.NoError(t, err)
				require.Equal(t, "t|off|||auto", left)
			}
		})
	}
}

// TestPoliciesReadTheOrgsOnce: the setting is read by an init-plan and not for each row, and indexes are used.
func TestPoliciesReadTheOrgsOnce(t *testing.T) {
	t.Parallel()
	s := customersStore(t)
	ctx := t.Context()
	for _, table := range policedTables(t, s.pool.Pool) {
		plan, err := values[string](reading(ctx, seenOrg), s.pool, `EXPLAIN (VERBOSE) SELECT count(*) FROM `+table)
		require.NoError(t, err, table)
		text := strings.Join(plan, "\n")
		require.Contains(t, text, "InitPlan", table)
		for _, line := range plan {
			if strings.Contains(line, "current_setting") || strings.Contains(line, "prego_orgs") {
				require.Contains(t, line, "Output: (NULLIF(current_setting(", text)
			}
		}
	}
	plan, err := values[string](reading(ctx, seenOrg), s.pool, `EXPLAIN (ANALYZE, VERBOSE, TIMING OFF) SELECT * FROM generate_series(1, 1000) CROSS JOIN LATERAL (SELECT org_id FROM tenants) t`)
	require.NoError(t, err)
	require.Regexp(t, `(?s)InitPlan.*Result  \([^)]*\) \(actual rows=1 loops=1\)`, strings.Join(plan, "\n"))
}

// TestACustomersPageReadsItsOrgs: of 10,000 tenants only the reached ones are read, by a plan that a connection
// makes once.
func TestACustomersPageReadsItsOrgs(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pgtest.FillLarge(t, url, 1000)
	pool, err := Open(t.Context(), url, 1, nil)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := New(pool)
	const tenantsRead = `SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'tenants') +
		(SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'tenants') FROM pg_stat_force_next_flush()`
	read := func() int {
		_, err := values[string](t.Context(), s.pool, `SELECT pg_stat_force_next_flush()::text`)
		require.NoError(t, err)
		n, err := value[int](t.Context(), s.pool, tenantsRead)
		require.NoError(t, err)
		return n
	}
	own := count(t, s, `tenants WHERE org_id IN ('o-7', 'o-8') AND state NOT IN ('terminated', 'data_purged')`)
	require.Positive(t, own)
	for range 3 {
		before := read()
		page, _, err := Tenants.In(s)(reading(t.Context(), "o-7", "o-8"), prego.ListQuery{Limit: 100})
		require.NoError(t, err)
		require.Len(t, page, min(own, 100))
		require.Less(t, read()-before, 20*len(page), "rows that were read of tenants")
	}
	plans, err := value[string](t.Context(), s.pool, `SELECT string_agg(generic_plans || ' ' || custom_plans, ', ') FROM pg_prepared_statements
		WHERE statement LIKE '%FROM tenants%prego_customer' AND statement LIKE '%server_ids%'`)
	require.NoError(t, err)
	require.Equal(t, "3 0", plans)
}

// unguarded are the tables under a policy whose rows are written for any org: by triggers, or about rows that are
// guarded, or by no request of a customer.
var unguarded = []string{
	"allocation_snapshots", "audit_chain", "audit_entries", "backup_policy_changes", "cost_entries", "db_shards", "events", "org_counters",
	"org_usage_changes", "org_usage_parts", "placement_pools", "redis_pools", "servers", "site_health", "site_uptime", "stack_release_sites",
}

// TestCustomersChangeOnlyTheirOrgs: whatever statement a customer's request that changes something runs.
func TestCustomersChangeOnlyTheirOrgs(t *testing.T) {
	t.Parallel()
	s := customersStore(t)
	const foreign = "belongs to an org that the request does not reach"
	guarded, changedOne := 0, errors.New("changed a row")
	for _, table := range policedTables(t, s.pool.Pool) {
		columns, err := values[string](t.Context(), s.pool, `SELECT attname::text FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
			ORDER BY attidentity <> '', attname = 'state', attnum DESC`, table)
		require.NoError(t, err)
		of := func(org string) string {
			return fmt.Sprintf(` FROM %s x WHERE to_jsonb(x)::text LIKE '%%%s%%'`, table, org)
		}
		change := func(org, what string, reach ...prego.OrgID) error {
			update := fmt.Sprintf(`UPDATE %s SET %[2]s = %[2]s WHERE ctid IN (SELECT ctid%[3]s)`, table, columns[0], of(org))
			sql := map[string]string{
				"update": update, "delete": fmt.Sprintf(`DELETE FROM %s WHERE ctid IN (SELECT ctid%s)`, table, of(org)),
				"insert": fmt.Sprintf(`INSERT INTO %s (%[2]s) OVERRIDING SYSTEM VALUE SELECT %[2]s%s`, table, strings.Join(columns, ", "), of(org)),
			}[what]
			ctx := changing(t.Context(), reach...)
			return s.inTx(ctx, "change", func(tx *txn) error {
				tx.must(ctx, errors.New("no row"), sql)
				return changedOne // and nothing stays changed
			})
		}
		if slices.Contains(unguarded, table) {
			continue
		}
		guarded++
		for _, what := range []string{"insert", "update", "delete"} {
			require.ErrorContains(t, change(hiddenOrg, what, seenOrg), foreign, "%s %s", what, table)
			require.ErrorContains(t, change(seenOrg, what), foreign, "%s %s without an org in reach", what, table)
			require.NotContains(t, fmt.Sprint(change(seenOrg, what, seenOrg)), foreign, "%s %s", what, table)
		}
		require.ErrorIs(t, change(seenOrg, "update", seenOrg), changedOne, table)
	}
	require.Greater(t, guarded, 30)
	ctx := changing(t.Context(), seenOrg)
	require.ErrorContains(t, s.exec(ctx, "give away", `UPDATE apps SET org_id = 'bravo' WHERE org_id = 'alpha'`), foreign)
	require.NoError(t, s.exec(whole(ctx), "move", `UPDATE apps SET org_id = org_id`))
}

// TestAChangeSeesEverything: what decides whether something is destroyed, taken or unique knows the rows of all orgs,
// also in a customer's request. A last gate that saw only its orgs would find a shared server empty.
func TestAChangeSeesEverything(t *testing.T) {
	t.Parallel()
	s := customersStore(t)
	const onShared = `SELECT string_agg(DISTINCT tenant_id, ' ' ORDER BY tenant_id) FROM tenant_places WHERE server_id = 'shared-1'`
	const both = "tenant-alpha tenant-bravo"
	for _, ctx := range []context.Context{t.Context(), changing(t.Context(), seenOrg), whole(reading(t.Context(), seenOrg)), recording(reading(t.Context(), seenOrg))} {
		found, err := value[string](ctx, s.pool, onShared)
		require.NoError(t, err)
		require.Equal(t, both, found)
		require.NoError(t, s.Try(ctx, func(dry context.Context) error {
			found, err := value[string](dry, s.pool, onShared)
			require.Equal(t, both, found)
			return err
		}))
	}
	found, err := value[string](reading(t.Context(), seenOrg), s.pool, onShared)
	require.NoError(t, err)
	require.Equal(t, "tenant-alpha", found, "what the gate would find under row-level security")
	// A site of the other org is not erased for this one, and a request that only reads passes no gate.
	err = s.MayErase(changing(t.Context(), seenOrg), "shared-1", "site_name-"+hiddenOrg, "database_name-"+hiddenOrg)
	require.ErrorContains(t, err, "tenant slug-bravo is active, and its data is on server shared-1")
	require.Error(t, s.MayErase(reading(t.Context(), seenOrg), "shared-1", "site_name-"+hiddenOrg, "database_name-"+hiddenOrg))
}
