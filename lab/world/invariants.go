package world

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	enumspb "go.temporal.io/api/enums/v1"
	"google.golang.org/protobuf/proto"

	"github.com/prego/prego/agent/wire"
)

// always are statements that must find nothing, after any commit: the ones that read the columns of a commit run after
// it (watch.go), and all of them every [checkEvery] commits. Conditions that may be violated between two commits belong
// to [open], which runs until it finds nothing, or to [atLast].
var always = append(alwaysOfNames, []invariant{
	{
		"I1 two live rows of one provider resource",
		`SELECT kind || ' ' || provider_id FROM resources WHERE state <> 'released' AND provider_id IS NOT NULL
			GROUP BY provider, kind, provider_id HAVING count(*) > 1`,
	},
	{
		"I1 a live resource of a server that is terminated",
		`SELECT r.kind || ' ' || r.name FROM resources r JOIN servers s USING (server_id) WHERE s.status = 'terminated'
			AND r.state = 'created' AND r.kind IN ('server', 'primary_ip')`,
	},
	{"I2 a site has one tenant", `SELECT site FROM tenants WHERE site <> ''
		AND state NOT IN ('terminated', 'data_purged', 'failed') GROUP BY site HAVING count(*) > 1`},
	{"I2 a pool site has one tenant", `SELECT pool_site_id FROM tenant_allocations WHERE released_at IS NULL
		AND pool_site_id IS NOT NULL GROUP BY pool_site_id HAVING count(*) > 1`},
	{"I2 a database has one tenant", `SELECT db_shard_id || '/' || database_name FROM tenant_allocations
		WHERE released_at IS NULL GROUP BY db_shard_id, database_name HAVING count(*) > 1`},
	{"I3 tenants counted", `SELECT server_id FROM servers s WHERE tenant_count <> (SELECT count(*)
		FROM tenant_allocations a WHERE a.app_server_id = s.server_id
		AND released_at IS NULL) + ` + away("server") + `s.server_id)`},
	{"I3 tenants of shards counted", `SELECT shard_id FROM db_shards s WHERE current_tenant_count <> (SELECT count(*)
		FROM tenant_allocations a WHERE a.db_shard_id = s.shard_id
		AND released_at IS NULL) + ` + away("shard") + `s.shard_id)`},
	{"I3 tenants of pools counted", `SELECT pool_id FROM redis_pools s WHERE current_tenants <> (SELECT count(*)
		FROM tenant_allocations a WHERE a.redis_pool_id = s.pool_id
		AND released_at IS NULL) + ` + away("pool") + `s.pool_id)`},
	{"I4 a token has one key", `SELECT t.server_id FROM server_bootstrap_tokens t WHERE consumed_at IS NOT NULL
		GROUP BY server_id, attempt HAVING count(*) > 1`},
	{
		"I4 a terminated server has no token",
		`SELECT t.server_id FROM server_bootstrap_tokens t JOIN servers s USING (server_id)
			WHERE s.status = 'terminated' AND t.superseded_at IS NULL`,
	},
	{
		"I4 a terminated server has no identity",
		`SELECT server_id FROM servers WHERE status = 'terminated' AND agent_first_seen_at IS NOT NULL
			AND identity_revoked_at IS NULL`,
	},
	{
		"I5 a tenant has one place",
		`SELECT tenant_id FROM tenant_allocations WHERE released_at IS NULL GROUP BY tenant_id HAVING count(*) > 1`,
	},
	// Whoever is being provisioned has no site to lose, and gives up the place when its run next looks.
	{
		"I5 no place is on a deleted server",
		`SELECT a.tenant_id FROM tenant_allocations a JOIN servers s ON s.server_id = a.app_server_id
			JOIN tenants t ON t.tenant_id = a.tenant_id
		WHERE a.released_at IS NULL AND s.status = 'terminated' AND t.state NOT IN ('trial', 'provisioning')`,
	},
	{
		"I5 a dedicated server has no other tenant",
		`SELECT s.server_id FROM servers s JOIN tenant_allocations a ON a.app_server_id = s.server_id
			AND a.released_at IS NULL WHERE s.dedicated_for_tenant_id <> a.tenant_id`,
	},
	{
		"I5 a dedicated place is on the tenant's server",
		`SELECT a.tenant_id FROM tenant_allocations a JOIN servers s ON s.server_id = a.app_server_id
			WHERE a.released_at IS NULL AND a.dedicated AND s.dedicated_for_tenant_id IS DISTINCT FROM a.tenant_id`,
	},
	{"I5 an active tenant has a place", `SELECT tenant_id FROM tenants t WHERE state = 'active'
		AND NOT EXISTS (SELECT FROM tenant_allocations a WHERE a.tenant_id = t.tenant_id AND released_at IS NULL)`},
	{"I5 an active tenant has a site", `SELECT tenant_id FROM tenants WHERE state = 'active' AND site = ''`},
	{"I8 an active server has an agent and a provider's server", `SELECT server_id FROM servers WHERE status = 'active' AND (provider_server_id IS NULL OR agent_key_sha256 IS NULL OR host = '')`},
	{"I8 a server is active after its first heartbeat", `SELECT server_id FROM servers WHERE status = 'active' AND agent_first_heartbeat_at IS NULL`},
	{"I3 no org is above its limit", `SELECT o.org_id || ' ' || q.dimension FROM orgs o JOIN org_quotas q USING (org_id) JOIN LATERAL org_used(o.org_id, ARRAY[q.dimension]) u ON true WHERE u.used > q.limit_value`},
	{"I10 a tenant's state is that of its last event", `SELECT tenant_id FROM tenants t WHERE state <> (SELECT to_state FROM tenant_lifecycle_events e WHERE e.tenant_id = t.tenant_id ORDER BY event_id DESC LIMIT 1)`},
	{"I10 a place has its event", `SELECT tenant_id FROM tenant_allocations a WHERE (SELECT count(*) FROM tenant_lifecycle_events e WHERE e.tenant_id = a.tenant_id AND e.step = 'placed') < (SELECT count(*) FROM tenant_allocations b WHERE b.tenant_id = a.tenant_id)`},
	{"I10 a place that was freed has its event", `SELECT tenant_id FROM tenant_allocations a WHERE released_at IS NOT NULL AND NOT EXISTS (SELECT FROM tenant_lifecycle_events e WHERE e.tenant_id = a.tenant_id AND e.step = 'reservation_released')`},
	{"I10 an org knows of its tenants", `SELECT tenant_id FROM tenants t WHERE NOT EXISTS (SELECT FROM org_events e WHERE e.org_id = t.org_id AND e.subject = t.tenant_id AND e.type = 'tenant.create')`},
	{"I10 a state has its event", `SELECT server_id FROM servers s WHERE status = 'active' AND NOT EXISTS (SELECT FROM server_events e WHERE e.server_id = s.server_id AND e.step = 'active')`},
	{"I10 a tenant's state has its event", `SELECT tenant_id FROM tenants t WHERE state = 'active' AND NOT EXISTS (SELECT FROM tenant_lifecycle_events e WHERE e.tenant_id = t.tenant_id AND e.step = 'state_changed' AND e.to_state = 'active')`},
	{"I5 a tenant is purged once its last backup is off its host", `SELECT tenant_id FROM tenants t WHERE state = 'data_purged' AND converged_state = 'data_purged' AND active_at IS NOT NULL AND NOT EXISTS (SELECT FROM tenant_losses l WHERE l.tenant_id = t.tenant_id)
		AND NOT EXISTS (SELECT FROM backups b WHERE b.tenant_id = t.tenant_id AND b.kind = 'final' AND b.state = 'stored')`},
	{"I5 a tenant has one backup under way", `SELECT tenant_id FROM backups WHERE tenant_id IS NOT NULL AND state IN ('queued', 'making', 'uploading') GROUP BY tenant_id HAVING count(*) > 1`},
	{"I5 a tenant has one move under way", `SELECT tenant_id FROM tenant_moves WHERE finished_at IS NULL GROUP BY tenant_id HAVING count(*) > 1`},
	{"I5 a tenant is at its move's place", `SELECT m.move_id FROM tenant_moves m JOIN tenant_allocations a ON a.allocation_id = m.allocation_id AND a.released_at IS NULL
		WHERE m.finished_at IS NULL AND a.app_server_id <> CASE m.state WHEN 'switched' THEN m.to_server_id ELSE m.from_server_id END`},
	{"I5 a server that was emptied is empty", `SELECT d.server_id FROM server_maintenances d JOIN servers s USING (server_id) JOIN tenant_allocations a ON a.app_server_id = d.server_id AND a.released_at IS NULL
		WHERE d.status = 'done' AND d.kind = 'drain' AND NOT d.keep_tenants AND s.cordoned_at IS NOT NULL AND NOT EXISTS (SELECT FROM tenant_moves m WHERE m.tenant_id = a.tenant_id AND m.returned_at IS NOT NULL)`},
	{"I10 a move's end has its event", `SELECT move_id FROM tenant_moves m WHERE finished_at IS NOT NULL AND NOT EXISTS (SELECT FROM tenant_lifecycle_events e WHERE e.tenant_id = m.tenant_id
		AND e.step = CASE m.state WHEN 'done' THEN 'move_cleared' ELSE 'move_' || m.state END AND e.message LIKE m.move_id || '%')`},
	{"I10 a backup is stored with its event", `SELECT backup_id FROM backups b WHERE state = 'stored' AND NOT EXISTS (SELECT FROM tenant_lifecycle_events e WHERE e.tenant_id = b.tenant_id AND e.step = 'backed_up' AND e.message LIKE '%' || b.backup_id || '%')`},
	{"I10 a reason is a code", `SELECT kind || ' ' || id || ': ' || reason FROM (SELECT 'tenant' AS kind, tenant_id AS id, status_reason AS reason FROM tenants UNION ALL SELECT 'server', server_id, status_reason FROM servers
		UNION ALL SELECT 'move', move_id, reason FROM tenant_moves UNION ALL SELECT 'backup', backup_id, reason FROM backups UNION ALL SELECT 'maintenance', server_id, reason FROM server_maintenances) r WHERE reason !~ '^[a-z0-9_:]*$'`},
	{"I1 a backup that is stored is in the ledger", `SELECT backup_id FROM backups b WHERE state = 'stored' AND NOT EXISTS (SELECT FROM resources r WHERE r.provider = 's3' AND r.kind = 'backup' AND r.name = b.object_key AND r.state = 'created')`},
	{"I3 usage is exact", `SELECT o.org_id || ' ' || d.dimension || ' ' || d.used || ' counted ' || d.counted FROM orgs o
		CROSS JOIN (SELECT array_agg(dimension) AS counted FROM (SELECT dimension FROM org_counters UNION SELECT dimension FROM org_quotas UNION SELECT 'max_instances') x) x -- a column, so that the function is a part of the plan
		CROSS JOIN LATERAL org_usage_drift(o.org_id, x.counted) d`},
}...)

type invariant struct{ name, sql string }

// away is how many tenants have a place besides that of their allocation, because they are on their way: what a move
// has reserved, or, once it has switched, what it has not cleared yet.
func away(part string) string {
	return "(SELECT count(*) FROM tenant_moves m WHERE m.finished_at IS NULL AND m.to_server_id IS NOT NULL AND m.moves_" + part + " AND CASE m.state WHEN 'switched' THEN m.from_" + part + "_id ELSE m.to_" + part + "_id END = "
}

// together runs all of them in one statement, which names the ones with findings.
func together(all []invariant) string {
	var out []string
	for _, inv := range all {
		out = append(out, fmt.Sprintf("SELECT '%s: ' || string_agg(found, ', ') FROM (%s) f (found) HAVING count(*) > 0", strings.ReplaceAll(inv.name, "'", "''"), inv.sql))
	}
	return strings.Join(out, " UNION ALL ")
}

var openSQL = together(slices.Concat(open, openOfNames))

// check asks whether everything is as it must always be.
func (w *World) check(watch *pgxpool.Pool) {
	which := make([]int, len(watched()))
	for i := range which {
		which[i] = i
	}
	w.ask(watch, which)
}

// bills are the rows of billed resources, the promised ones first.
var bills = invariant{"I1 bills", `SELECT CASE state WHEN 'created' THEN '` + stands +
	`' ELSE '' END || kind || ' ' || name FROM resources WHERE state <> 'released' AND kind IN ('server', 'volume')`}

// stands starts a row of something that is not being deleted.
const stands = "stands: "

// checkBills compares the bills with the rows at any moment: a row exists before its resource, and until that is gone;
// and nothing is deleted before its row records the deletion.
func (w *World) checkBills(live []string) {
	rows, billed := map[string]bool{}, map[string]bool{}
	for _, e := range w.cloud.Ledger(true) {
		billed[e.Kind+" "+e.Name] = true
	}
	for _, row := range live {
		name, stood := strings.CutPrefix(row, stands)
		rows[name] = true
		if stood && !billed[name] {
			w.violationf("I5 nothing that is owned is destroyed: %s", name)
		}
	}
	for _, e := range w.cloud.Ledger(true) {
		if name := e.Kind + " " + e.Name; (e.Kind == "server" || e.Kind == "volume") && !rows[name] {
			w.violationf("I1 a billed resource has a row: %s", name)
		}
	}
}

// promises are the backups that can be restored, some after their deletion is undone.
var promises = invariant{"I5 promises", `SELECT concat_ws('|', backup_id, object_key, bytes, sha256, parts, manifest_key,
		manifest_sha256) FROM backups WHERE state = 'stored' OR state = 'deleting' AND kept_until > now()`}

// checkPromises compares the backups that are promised with the bucket: each has its object, in as many parts and of
// as many bytes as were sealed, and its manifest.
func (w *World) checkPromises(stored []string) {
	for _, row := range stored {
		f := strings.Split(row, "|")
		if len(f) != 7 {
			w.violationf("I5 a backup that is promised is described: %s", row)
			continue
		}
		o, m := w.storage.has(f[1]), w.storage.has(f[5])
		switch {
		case o == nil || m == nil:
			w.violationf("I5 a backup that is promised exists: %s: object %v, manifest %v", f[0], o != nil, m != nil)
		case strconv.Itoa(len(o.body)) != f[2] || strconv.Itoa(o.parts) != f[4] || o.sum() != f[3]:
			w.violationf("I5 a promised backup is as sealed: %s has %d bytes in %d parts: %s", f[0], len(o.body),
				o.parts, row)
		case m.sum() != f[6] || !strings.Contains(string(m.body), f[3]):
			w.violationf("I5 a backup that is promised has its manifest: %s", f[0])
		}
	}
}

// keptServers are the lost servers whose machines are kept: a tenant that was lost with them has no site yet. It is
// written here once more, since it judges what the store writes.
const keptServers = `(SELECT l.server_id FROM tenant_losses l JOIN tenants t USING (tenant_id)
		WHERE l.restored_at IS NULL AND t.state IN ('failed', 'provisioning'))`

// open are statements that find unfinished work.
var open = []invariant{
	{"backups", `SELECT backup_id || ' ' || state FROM backups
		WHERE state IN ('queued', 'making', 'uploading', 'deleting') AND (kept_until > now()) IS NOT TRUE`},
	// The move of a tenant whose restore failed keeps its data until an operator restores it.
	{"moves", `SELECT m.move_id || ' ' || m.state FROM tenant_moves m JOIN tenants t USING (tenant_id)
		WHERE m.finished_at IS NULL AND NOT (t.state = 'failed' AND t.lost_at IS NOT NULL)`},
	{"maintenances", `SELECT server_id || ' ' || status FROM server_maintenances WHERE finished_at IS NULL`},
	{"drills", `SELECT drill_id || ' ' || state || ' on ' || server_id FROM drills WHERE cleared_at IS NULL`},
	{"restores", `SELECT job_id || ' ' || status FROM restore_jobs WHERE status IN ('queued', 'running')`},
	{"servers", `SELECT server_id || ' ' || status FROM servers
		WHERE status = 'provisioning' OR status = 'draining' AND server_id NOT IN ` + keptServers},
	{"tenants", `SELECT tenant_id || ' ' || state || '/' || converged_state FROM tenants
		WHERE state IN ('provisioning', 'grace_period', 'terminated') OR (converged_state <> state
		AND state IN ('active', 'suspended', 'terminated', 'grace_period', 'data_purged'))`},
	{"resources", `SELECT kind || ' ' || name || ' ' || state FROM resources
		WHERE state = 'intended' OR state = 'releasing' AND (server_id IN ` + keptServers + `) IS NOT TRUE`},
	{"pool sites", `SELECT pool_site_id || ' ' || state FROM site_pool p JOIN servers s ON s.server_id = p.app_server_id
		WHERE s.status NOT IN ('failed', 'terminated') AND (state = 'reserved' OR state = 'failed'
		AND dropped_at IS NULL)`},
	{"scale-outs", `SELECT event_id::text || ' ' || role FROM scaling_events WHERE finished_at IS NULL`},
}

// unsettled describes unfinished work, "" for none.
func (w *World) unsettled(watch *pgxpool.Pool) string {
	out, err := w.rows(watch, openSQL)
	if err != nil {
		return err.Error()
	}
	out = slices.Concat(out, w.billed(watch), w.unknown(watch))
	if len(out) == 0 {
		out = w.unserved(watch)
		w.lasting(strings.Join(out, "; "))
	}
	return strings.Join(out, "; ")
}

// unknown are objects in the bucket that no row has. Uploads that were begun and whose answer was lost are aborted
// after a day (activities/backup_schedules.go), and may be there.
func (w *World) unknown(watch *pgxpool.Pool) []string {
	known, err := w.rows(watch, `SELECT unnest(ARRAY[object_key, manifest_key]) FROM backups WHERE state <> 'deleted'`)
	if err != nil {
		return []string{err.Error()}
	}
	objects, uploads := w.storage.keys()
	var out []string
	for _, key := range objects {
		if !slices.Contains(known, key) && !strings.HasPrefix(key, "redo/") {
			out = append(out, "object without a row: "+key)
		}
	}
	if len(uploads) > 0 && len(w.Faults.Log()) == 0 {
		out = append(out, "uploads without an end: "+strings.Join(uploads, ", "))
	}
	return out
}

// billed compares billed resources with owned ones.
func (w *World) billed(watch *pgxpool.Pool) []string {
	owned, err := w.rows(watch, `SELECT kind || ' ' || provider_id FROM resources
		WHERE (state = 'created' OR state = 'releasing' AND server_id IN `+keptServers+`) AND kind IN ('server', 'volume', 'primary_ip', 'floating_ip', 'image') ORDER BY 1`)
	if err != nil {
		return []string{err.Error()}
	}
	var bills []string
	for _, e := range w.cloud.Ledger(true) {
		bills = append(bills, fmt.Sprintf("%s %d", e.Kind, e.ID))
	}
	var out []string
	for _, b := range bills {
		if !slices.Contains(owned, b) {
			out = append(out, "billed and not owned: "+b)
		}
	}
	for _, o := range owned {
		if !slices.Contains(bills, o) {
			out = append(out, "owned and not billed: "+o)
		}
	}
	return out
}

// atLast are statements that must find nothing once everything has converged.
var atLast = []invariant{
	{
		"I5 who failed or is gone has no place",
		`SELECT t.tenant_id || ' ' || t.state FROM tenants t JOIN tenant_allocations a USING (tenant_id)
			WHERE a.released_at IS NULL AND t.state IN ('failed', 'data_purged')`,
	},
	{
		"I5 no server is kept for an ended tenant",
		`SELECT s.server_id FROM servers s JOIN tenants t ON t.tenant_id = s.dedicated_for_tenant_id
			WHERE s.status = 'active' AND t.state IN ('failed', 'data_purged')
			AND NOT EXISTS (SELECT FROM tenant_moves m
				WHERE s.server_id IN (m.from_server_id, m.to_server_id) AND m.finished_at IS NULL)`,
	},
	// The periods match newPlayed (app/world_test.go). They are counted from the beginning of the transaction, and
	// events have the time of their statement, which may have waited in between.
	{
		"I10 data is kept for the grace period and the retention",
		`SELECT e.tenant_id || ' ' || e.to_state FROM tenant_lifecycle_events e WHERE e.actor = 'system'
			AND e.from_state <> e.to_state
			AND (e.from_state, e.to_state) IN (('grace_period', 'terminated'), ('terminated', 'data_purged'))
		AND e.at < (SELECT max(b.at) FROM tenant_lifecycle_events b WHERE b.tenant_id = e.tenant_id
		AND b.to_state = e.from_state AND b.from_state <> b.to_state AND b.event_id < e.event_id)
			+ CASE e.to_state WHEN 'terminated' THEN interval '10 minutes' ELSE interval '8 minutes' END - interval '2 minutes'`,
	},
	{
		"I1 a server that failed to be made has nothing left",
		`SELECT r.server_id || ' ' || r.kind FROM resources r JOIN servers s USING (server_id) WHERE s.status = 'failed'
			AND r.state <> 'released' AND s.status_reason IN ('failed_create', 'failed_boot', 'failed_bootstrap', 'failed_internal', 'failed_cloud_init')`,
	},
}

var atLastSQL = together(atLast)

// final asks what must be so once nothing happens any more.
func (w *World) final(watch *pgxpool.Pool) {
	ctx := context.Background()
	found, err := w.rows(watch, atLastSQL)
	if err != nil {
		w.violationf("final: %v", err)
	}
	for _, f := range found {
		w.violationf("%s", f)
	}
	if len(w.Faults.Log()) == 0 && w.Schedule.slow == 0 { // else an end may be unknown: a repeated step has another id
		found, err := w.rows(watch, `SELECT audit_id FROM agent_command_audit WHERE finished_at IS NULL`)
		if err != nil || len(found) > 0 {
			w.violationf("I7 each command's end is in the audit: %v %v", found, err)
		}
	}
	w.lostWrites(watch)
	rows, err := watch.Query(ctx, `SELECT t.tenant_id, t.state, t.site, COALESCE(s.host, ''), COALESCE(a.database_name, ''), t.apps, t.slug, t.muted, EXISTS (SELECT FROM tenant_losses l WHERE l.tenant_id = t.tenant_id)
		FROM tenants t LEFT JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL
		LEFT JOIN servers s ON s.server_id = a.app_server_id ORDER BY 1`)
	if err != nil {
		w.violationf("final: %v", err)
		return
	}
	defer rows.Close()
	owners, databases := map[string]string{}, map[string]bool{}
	for rows.Next() {
		var id, state, name, addr, database, slug string
		var apps []string
		var muted, wasLost bool
		if err := rows.Scan(&id, &state, &name, &addr, &database, &apps, &slug, &muted, &wasLost); err != nil {
			w.violationf("final: %v", err)
			return
		}
		w.Met("tenant ends " + state)
		if wasLost {
			w.Met("tenant that lost its server ends " + state)
		} else {
			w.expect(slug, state)
		}
		owners[name], databases[database] = addr, true
		s, ok := w.hosts.sitesOf(addr)[name]
		switch {
		case state == "suspended" && ok && !s.Offline:
			w.violationf("I9 tenant %s is suspended, and its site is online", id)
		case state != "active":
		case !ok:
			w.violationf("I9 tenant %s is active, and its host %s has no site %s", id, addr, name)
		case s.Tenant != id:
			w.violationf("I9 site %s belongs to tenant %s, and its host has %q", name, id, s.Tenant)
		case s.Arriving || s.Held || s.Frozen:
			w.violationf("I9 tenant %s is active, and its site is held", id)
		case !s.same(w.written[name]):
			w.violationf("I9 each write to the site of tenant %s is there once: %v and %v, and not %v", id, s.Rows,
				s.Files, w.written[name].Rows)
		case muted != (len(s.Settings) == 2):
			w.violationf("I9 tenant %s is active, and muted %v, and its site has %v", id, muted, s.Settings)
		case !muted && !s.Scheduler:
			w.violationf("I9 tenant %s is active, and its scheduler is off", id)
		case s.Offline:
			w.violationf("I9 tenant %s is active, and its site is offline", id)
		case !slices.Equal(s.Apps, apps):
			w.violationf("I9 tenant %s asked for %v and has %v", id, apps, s.Apps)
		}
	}
	if len(w.Faults.Log()) == 0 {
		w.nothingFailed(watch)
	}
	w.lastBackups(watch)
	w.drills(watch)
	w.leftOnHosts(watch, owners, databases)
	w.finalOfNames(watch)
	w.events(watch, time.Now())
}

// nothingFailed checks a play without faults: only tenants that should end may have failed, with their dedicated
// servers.
func (w *World) nothingFailed(watch *pgxpool.Pool) {
	for _, sql := range []string{
		`SELECT slug || '/' || tenant_id || ': ' || COALESCE(status_reason, '') FROM tenants t WHERE state = 'failed'
			AND NOT EXISTS (SELECT FROM tenant_losses l WHERE l.tenant_id = t.tenant_id)`,
		// A drill whose server was terminated meanwhile is no verdict on the backup.
		`SELECT drill_id || '/' || drill_id || ' of ' || backup_id || ': ' || reason || ' ' || message FROM drills
			WHERE state = 'failed' AND reason <> 'server_gone'`,
		`SELECT COALESCE((SELECT slug FROM tenants
			WHERE server_id LIKE 'n-' || tenant_id || '-g%'), server_id) || '/' || server_id || ': ' || COALESCE(status_reason, '') FROM servers WHERE status = 'failed'`,
	} {
		found, err := w.rows(watch, sql)
		if err != nil {
			w.violationf("final: %v", err)
		}
		for _, f := range found {
			name, what, _ := strings.Cut(f, "/")
			w.mu.Lock()
			asked := w.ends[name] != nil
			w.mu.Unlock()
			if !asked {
				w.violationf("I10 without any fault, this failed: %s", what)
			}
		}
	}
}

// lastBackups have the content of the sites at their end.
func (w *World) lastBackups(watch *pgxpool.Pool) {
	found, err := w.rows(watch, `SELECT concat_ws('|', b.backup_id, b.site, b.plain_sha256) FROM backups b
		JOIN tenants t USING (tenant_id) WHERE b.kind = 'final' AND b.state = 'stored'
		AND t.state IN ('terminated', 'data_purged')`)
	if err != nil {
		w.violationf("final: %v", err)
	}
	for _, f := range found {
		row := strings.Split(f, "|")
		if got, want := w.sealed[row[2]], w.written[row[1]]; !got.same(want) {
			w.violationf("I5 the last backup %s has all writes: %v and %v, and not %v", row[0], got.Rows, got.Files,
				want.Rows)
		}
	}
}

// drills that passed have found their backup's content, and none failed because of it: nothing in the bucket is broken.
func (w *World) drills(watch *pgxpool.Pool) {
	found, err := w.rows(watch, `SELECT concat_ws('|', d.drill_id, b.plain_sha256, d.rows, d.files) FROM drills d
		JOIN backups b USING (backup_id) WHERE d.state = 'passed'`)
	if err != nil {
		w.violationf("final: %v", err)
	}
	for _, f := range found {
		row := strings.Split(f, "|")
		if is := w.sealed[row[1]]; row[2] != strconv.Itoa(len(is.Rows)) || row[3] != strconv.Itoa(len(is.Files)) {
			w.violationf("I5 the drill %s has found %s rows and %s files, and not %v and %v", row[0], row[2], row[3],
				is.Rows, is.Files)
		}
	}
	blamed, err := w.rows(watch, `SELECT drill_id || ': ' || reason || ' ' || message FROM drills
		WHERE reason IN ('digest_mismatch', 'backup_unreadable', 'backup_missing', 'sealed', 'restore_incomplete')`)
	if err != nil {
		w.violationf("final: %v", err)
	}
	for _, f := range blamed {
		w.violationf("I5 a drill blames a backup that is as it was sealed: %s", f)
	}
}

// leftOnHosts looks for data without an owner, for commands without an audit row, and for leaked secrets.
func (w *World) leftOnHosts(watch *pgxpool.Pool, owners map[string]string, databases map[string]bool) {
	audited, err := w.rows(watch, `SELECT audit_id FROM agent_command_audit`)
	if err != nil {
		w.violationf("final: %v", err)
		return
	}
	known := map[string]bool{}
	for _, id := range audited {
		known[id] = true
	}
	// A pool site has no tenant; what a lost place left elsewhere is erased when its tenant is restored, or ends.
	pooled, err := w.rows(watch, `SELECT unnest(ARRAY[site_name, database_name]) FROM site_pool
		UNION ALL SELECT unnest(ARRAY[a.site_name, a.database_name]) FROM tenant_losses l
		JOIN tenant_allocations a USING (allocation_id) WHERE l.cleared_at IS NULL`)
	if err != nil {
		w.violationf("final: %v", err)
		return
	}
	told, err := w.rows(watch, `SELECT string_agg(message, ' ') FROM server_events`)
	if err != nil {
		w.violationf("final: %v", err)
		return
	}
	off, err := w.rows(watch, `SELECT server_id FROM servers WHERE status = 'draining' AND server_id IN `+keptServers)
	if err != nil {
		w.violationf("final: %v", err)
		return
	}
	histories := w.Frontend.Histories()
	for addr, h := range w.hosts.all() {
		if slices.ContainsFunc(off, func(id string) bool { return strings.HasSuffix(h.guest.Name, "-"+id) }) {
			continue
		}
		h.mu.Lock()
		for name, s := range h.sites {
			if owners[name] != addr && !slices.Contains(pooled, name) {
				w.violationf("I9 site %s of tenant %q is on %s without an owner", name, s.Tenant, h.guest.Name)
			}
			for pack := range s.spool {
				// what a backup leaves goes with the site
				if len(w.Faults.Log()) == 0 || strings.HasPrefix(pack, "mov-") {
					w.violationf("I9 archive %s of site %s is on %s still", pack, name, h.guest.Name)
				}
			}
		}
		for name := range h.databases {
			if !databases[name] && !slices.Contains(pooled, name) {
				w.violationf("I9 database %s is on %s without an owner", name, h.guest.Name)
			}
		}
		for id := range h.ran {
			if id != "" && !known[id] {
				w.violationf("I7 command %s ran on %s, and is not in the audit", id, h.guest.Name)
			}
		}
		secret := strings.TrimSpace(h.guest.Files[wire.BootstrapTokenPath])
		h.mu.Unlock()
		if secret == "" {
			continue
		}
		if len(told) > 0 && strings.Contains(told[0], secret) {
			w.violationf("I6 the bootstrap token of %s is on a timeline", h.guest.Name)
		}
		for _, run := range histories {
			if raw, err := proto.Marshal(run.Events); err == nil && bytes.Contains(raw, []byte(secret)) {
				w.violationf("I6 the bootstrap token of %s is in the history of %s", h.guest.Name, run.WorkflowID)
			}
		}
	}
}

// events count what the play met.
func (w *World) events(watch *pgxpool.Pool, _ time.Time) {
	for _, q := range []string{
		`SELECT 'server ' || step FROM server_events`, `SELECT 'tenant ' || step FROM tenant_lifecycle_events`, `SELECT 'server ends ' || status FROM servers`,
		`SELECT 'placement ' || outcome FROM allocation_snapshots`, `SELECT 'backup ' || kind || ' ends ' || state FROM backups`,
		`SELECT 'move ends ' || state || ' ' || reason FROM tenant_moves`, `SELECT 'restore ends ' || status FROM restore_jobs`, `SELECT 'drill ends ' || state || ' ' || reason FROM drills`, `SELECT 'maintenance ends ' || status FROM server_maintenances`,
	} {
		found, err := w.rows(watch, q)
		if err != nil {
			w.violationf("final: %v", err)
			return
		}
		for _, f := range found {
			w.Met(f)
		}
	}
	for range w.Schedule.Locks {
		w.Met("a statement waited for a lock")
	}
	for _, run := range w.Frontend.Histories() {
		w.Met("run ends " + run.Status.String())
		for _, e := range run.Events.GetEvents() {
			switch e.EventType {
			case enumspb.EVENT_TYPE_ACTIVITY_TASK_STARTED:
				if e.GetActivityTaskStartedEventAttributes().GetAttempt() > 1 {
					w.Met("an activity was tried again")
				}
			case enumspb.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
				w.Met("an activity's time ran out")
			case enumspb.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT:
				w.Met("a workflow task's time ran out")
			case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
				w.Met("a run was signalled")
			case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED:
				w.Met("a run was asked to end")
			}
		}
	}
}
