package world

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// always are statements that must find nothing, after whatever commit.
var always = []invariant{
	{"I1 two live rows of one provider resource", `SELECT kind || ' ' || provider_id FROM resources WHERE state <> 'released' AND provider_id IS NOT NULL GROUP BY provider, kind, provider_id HAVING count(*) > 1`},
	{"I1 a live resource of a server that is terminated", `SELECT r.kind || ' ' || r.name FROM resources r JOIN servers s USING (server_id) WHERE s.status = 'terminated' AND r.state = 'created' AND r.kind IN ('server', 'primary_ip')`},
	{"I2 a site has one tenant", `SELECT site FROM tenants WHERE site <> '' AND state NOT IN ('terminated', 'data_purged', 'failed') GROUP BY site HAVING count(*) > 1`},
	{"I2 a pool site has one tenant", `SELECT pool_site_id FROM tenant_allocations WHERE released_at IS NULL AND pool_site_id IS NOT NULL GROUP BY pool_site_id HAVING count(*) > 1`},
	{"I2 a database has one tenant", `SELECT db_shard_id || '/' || database_name FROM tenant_allocations WHERE released_at IS NULL GROUP BY db_shard_id, database_name HAVING count(*) > 1`},
	{"I3 tenants counted", `SELECT server_id FROM servers s WHERE tenant_count <> (SELECT count(*) FROM tenant_allocations a WHERE a.app_server_id = s.server_id AND released_at IS NULL)`},
	{"I3 tenants of shards counted", `SELECT shard_id FROM db_shards s WHERE current_tenant_count <> (SELECT count(*) FROM tenant_allocations a WHERE a.db_shard_id = s.shard_id AND released_at IS NULL)`},
	{"I3 tenants of pools counted", `SELECT pool_id FROM redis_pools s WHERE current_tenants <> (SELECT count(*) FROM tenant_allocations a WHERE a.redis_pool_id = s.pool_id AND released_at IS NULL)`},
	{"I4 a token has one key", `SELECT t.server_id FROM server_bootstrap_tokens t WHERE consumed_at IS NOT NULL GROUP BY server_id, attempt HAVING count(*) > 1`},
	{"I5 an active tenant has a place", `SELECT tenant_id FROM tenants t WHERE state = 'active' AND NOT EXISTS (SELECT FROM tenant_allocations a WHERE a.tenant_id = t.tenant_id AND released_at IS NULL)`},
	{"I5 an active tenant has a site", `SELECT tenant_id FROM tenants WHERE state = 'active' AND site = ''`},
	{"I8 an active server has an agent and a provider's server", `SELECT server_id FROM servers WHERE status = 'active' AND (provider_server_id IS NULL OR agent_key_sha256 IS NULL OR host = '')`},
	{"I8 a server is active after its first heartbeat", `SELECT server_id FROM servers WHERE status = 'active' AND agent_first_heartbeat_at IS NULL`},
	{"I10 a state has its event", `SELECT server_id FROM servers s WHERE status = 'active' AND NOT EXISTS (SELECT FROM server_events e WHERE e.server_id = s.server_id AND e.step = 'active')`},
	{"I10 a tenant's state has its event", `SELECT tenant_id FROM tenants t WHERE state = 'active' AND NOT EXISTS (SELECT FROM tenant_lifecycle_events e WHERE e.tenant_id = t.tenant_id AND e.step = 'state_changed' AND e.to_state = 'active')`},
}

// seldom are those that cost more than all others together.
var seldom = []invariant{
	{"I3 usage is exact", `SELECT o.org_id || ' ' || d.dimension || ' ' || d.used || ' counted ' || d.counted FROM orgs o, org_usage_drift(o.org_id, (SELECT array_agg(DISTINCT dimension) FROM org_counters)) d`},
}

type invariant struct{ name, sql string }

// together asks all of them with one statement, which names those that found something.
func together(all []invariant) string {
	var out []string
	for _, inv := range all {
		out = append(out, fmt.Sprintf("SELECT '%s: ' || string_agg(found, ', ') FROM (%s) f (found) HAVING count(*) > 0", strings.ReplaceAll(inv.name, "'", "''"), inv.sql))
	}
	return strings.Join(out, " UNION ALL ")
}

var alwaysSQL, seldomSQL, openSQL = together(always), together(seldom), together(open)

// check asks whether everything is as it must always be.
func (w *World) check(watch *pgxpool.Pool, rare bool) {
	asked := []string{alwaysSQL}
	if rare {
		asked = append(asked, seldomSQL)
	}
	for _, sql := range asked {
		found, err := w.rows(watch, sql)
		if err != nil {
			w.violationf("invariants: %v", err)
		}
		for _, f := range found {
			w.violationf("%s", f)
		}
	}
	w.checkBills(watch)
}

// checkBills compares the bills with the rows at any moment: a row is there before what it
// stands for, and until that is gone.
func (w *World) checkBills(watch *pgxpool.Pool) {
	live, err := w.rows(watch, `SELECT name FROM resources WHERE state <> 'released' AND kind IN ('server', 'volume')`)
	if err != nil {
		w.violationf("I1 bills: %v", err)
		return
	}
	for _, e := range w.cloud.Ledger(true) {
		if (e.Kind == "server" || e.Kind == "volume") && !slices.Contains(live, e.Name) {
			w.violationf("I1 what is billed has a row: %s %s", e.Kind, e.Name)
		}
	}
}

// open are statements that find what is still under way.
var open = []invariant{
	{"servers", `SELECT server_id || ' ' || status FROM servers WHERE status IN ('provisioning', 'draining')`},
	{"tenants", `SELECT tenant_id || ' ' || state || '/' || converged_state FROM tenants WHERE state IN ('provisioning', 'grace_period', 'terminated') OR (converged_state <> state AND state IN ('active', 'suspended', 'terminated', 'grace_period'))`},
	{"resources", `SELECT kind || ' ' || name || ' ' || state FROM resources WHERE state IN ('intended', 'releasing')`},
	{"scale-outs", `SELECT event_id::text || ' ' || role FROM scaling_events WHERE finished_at IS NULL`},
}

// unsettled says what is still under way, "" for nothing.
func (w *World) unsettled(watch *pgxpool.Pool) string {
	out, err := w.rows(watch, openSQL)
	if err != nil {
		return err.Error()
	}
	return strings.Join(append(out, w.billed(watch)...), "; ")
}

// billed compares what is billed with what is owned.
func (w *World) billed(watch *pgxpool.Pool) []string {
	owned, err := w.rows(watch, `SELECT kind || ' ' || provider_id FROM resources WHERE state = 'created' AND kind IN ('server', 'volume', 'primary_ip', 'floating_ip', 'image') ORDER BY 1`)
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

// final asks what must be so once nothing happens any more.
func (w *World) final(watch *pgxpool.Pool) {
	ctx := context.Background()
	rows, err := watch.Query(ctx, `SELECT t.tenant_id, t.state, t.site, COALESCE(s.host, '') FROM tenants t LEFT JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL
		LEFT JOIN servers s ON s.server_id = a.app_server_id ORDER BY 1`)
	if err != nil {
		w.violationf("final: %v", err)
		return
	}
	defer rows.Close()
	for rows.Next() {
		var id, state, name, addr string
		if err := rows.Scan(&id, &state, &name, &addr); err != nil {
			w.violationf("final: %v", err)
			return
		}
		w.Met("tenant ends " + state)
		if state != "active" {
			continue
		}
		s, ok := w.hosts.sitesOf(addr)[name]
		switch {
		case !ok:
			w.violationf("I9 tenant %s is active, and its host %s has no site %s", id, addr, name)
		case s.Tenant != id:
			w.violationf("I9 site %s is of tenant %s, and its host says %q", name, id, s.Tenant)
		case !s.Scheduler:
			w.violationf("I9 tenant %s is active, and its scheduler is off", id)
		}
	}
	w.events(watch, time.Now())
}

// events count what the play met.
func (w *World) events(watch *pgxpool.Pool, _ time.Time) {
	for _, q := range []string{
		`SELECT 'server ' || step FROM server_events`, `SELECT 'tenant ' || step FROM tenant_lifecycle_events`, `SELECT 'server ends ' || status FROM servers`,
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
}
