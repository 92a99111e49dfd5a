package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// feedCursor is the next cursor of a feed, and whether it has all changes since the one of cut ($1 and $2): it was not
// pruned, and the database server was not started since. A standby that is promoted, a restored database, or a server
// after a crash may give numbers again that transactions had before: what they change now would seem read.
const feedCursor = `pg_snapshot_xmin(pg_current_snapshot())::text || '@' || pg_postmaster_start_time() AS since,
    (SELECT pruned_xid FROM changes_pruned) <= $1::text::xid8 AND $2 = pg_postmaster_start_time()::text AS kept`

// newest is a transaction after which nothing has changed.
const newest = "18446744073709551615"

// cut returns a cursor's transaction, and when the database server was started; "" is a cursor after which nothing has
// changed.
func cut(cursor string) (xid, started string) {
	xid, started, _ = strings.Cut(cursor, "@")
	return cmp.Or(xid, newest), started
}

// The changes since a cursor, and the next cursor, as of one moment: later commits are returned
// the next time. Small tables come with it whole.
const sqlChanges = `
WITH c AS MATERIALIZED (SELECT DISTINCT kind, id FROM changes WHERE xid >= $1::text::xid8)
SELECT ` + feedCursor + `,
    ARRAY(SELECT id FROM c WHERE kind = 'servers') AS servers, ARRAY(SELECT id FROM c WHERE kind = 'db_shards') AS shards,
    ARRAY(SELECT id FROM c WHERE kind = 'redis_pools') AS pools, ARRAY(SELECT id FROM c WHERE kind = 'site_pool') AS sites,
    COALESCE((SELECT jsonb_agg(jsonb_build_object('id', id, 'enabled', enabled, 'regions', regions) ORDER BY id) FROM infra_providers), '[]') AS providers,
    COALESCE((SELECT jsonb_object_agg(country, jsonb_build_object('regions', regions, 'providers', COALESCE(providers, '{}'))) FROM residency_zones), '{}') AS residency,
    COALESCE((SELECT jsonb_agg(jsonb_build_object('networkid', network_id, 'room', $3 - members)) FROM networks WHERE members < $3 AND full_at IS NULL), '[]') AS networks,
    COALESCE((SELECT jsonb_agg(e) FROM (SELECT COALESCE(network_id, region) AS network, bool_or(status = 'active') AS serves FROM servers WHERE role = 'edge' AND status <> 'terminated' GROUP BY 1) e), '[]') AS edges,
    COALESCE((SELECT app_server_id FROM tenant_allocations ORDER BY allocation_id DESC LIMIT 1), '') AS last_server`

const sqlFleetServers = `
SELECT server_id, role, region, infra_provider, CASE WHEN private_address IS NULL THEN '' ELSE COALESCE(network_id, '') END AS network_id,
       -- a warm server whose agent is silent could not be used at once
       CASE WHEN warm_plan IS NOT NULL AND tenant_count = 0 AND status = 'active' AND agent_status <> 'connected' THEN 'failed' ELSE status END AS status,
       COALESCE(memory_pct, 0) AS memory_pct, tenant_count, tags, COALESCE(dedicated_for_tenant_id, '') AS dedicated_for,
       NOT accepts_trial AS refuses_trials, COALESCE(warm_plan, '') AS warm_plan, EXISTS (SELECT FROM fleets f WHERE f.fleet_id = s.fleet_id AND NOT f.serves_tenants) AS not_serving,
       runs.instances AS runs_instances, cordoned_at IS NOT NULL AS cordoned, cpu_pct, worker_slots_pct
FROM servers s CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM instances i WHERE i.server_id = s.server_id AND i.state <> 'stopped') AS instances) runs
WHERE role IN ('app', 'node')`

const sqlFleetShards = `
SELECT d.shard_id, d.region, CASE WHEN s.private_address IS NULL THEN '' ELSE COALESCE(s.network_id, '') END AS network_id, CASE WHEN d.on_node THEN d.server_id ELSE '' END AS host_server_id, COALESCE(d.plan_tier_lock, '') AS plan_tier_lock,
       COALESCE(d.dedicated_for_tenant_id, '') AS dedicated_for, d.current_tenant_count AS tenants, d.tenant_capacity AS capacity,
       CASE WHEN s.cordoned_at IS NOT NULL AND s.status = 'active' THEN 'active' ELSE d.status END AS status, s.cordoned_at IS NOT NULL AS cordoned, -- the row is draining meanwhile
       NOT d.on_node AND f.serves_tenants IS FALSE AS not_serving,
       EXISTS (SELECT FROM instances i WHERE i.server_id = d.server_id AND i.state <> 'stopped') AS runs_instances, s.db_disk_pct AS disk_pct
FROM db_shards d JOIN servers s ON s.server_id = d.server_id LEFT JOIN fleets f ON f.fleet_id = s.fleet_id`

const sqlFleetPools = `
SELECT r.pool_id, r.region, CASE WHEN s.private_address IS NULL THEN '' ELSE COALESCE(s.network_id, '') END AS network_id, CASE WHEN r.on_node THEN r.server_id ELSE '' END AS host_server_id, COALESCE(r.dedicated_for_tenant_id, '') AS dedicated_for,
       r.current_tenants AS tenants, r.tenant_capacity AS capacity,
       CASE WHEN s.cordoned_at IS NOT NULL AND s.status = 'active' THEN 'active' ELSE r.status END AS status, s.cordoned_at IS NOT NULL AS cordoned, NOT r.on_node AND f.serves_tenants IS FALSE AS not_serving,
       EXISTS (SELECT FROM instances i WHERE i.server_id = r.server_id AND i.state <> 'stopped') AS runs_instances, s.redis_memory_pct AS memory_pct
FROM redis_pools r JOIN servers s ON s.server_id = r.server_id LEFT JOIN fleets f ON f.fleet_id = s.fleet_id`

const sqlFleetSites = `SELECT pool_site_id, app_server_id, db_shard_id, state = 'available' AS available FROM site_pool`

// Everything that is not over. Other rows are of no use to a decision.
const (
	sqlAllServers = sqlFleetServers + ` AND status <> 'terminated'`
	sqlAllShards  = sqlFleetShards + ` WHERE d.status <> 'terminated'`
	sqlAllPools   = sqlFleetPools + ` WHERE r.status <> 'terminated'`
	sqlAllSites   = sqlFleetSites + ` WHERE state = 'available'`
)

// Changed rows, by id. A shard and a pool have changed when they did or their server, which
// reports how full the disk and the memory are.
const (
	sqlChangedServers = sqlFleetServers + ` AND server_id = ANY ($1)`
	sqlChangedShards  = sqlFleetShards + ` WHERE d.shard_id = ANY (ARRAY(SELECT unnest($1::text[]) UNION SELECT c.shard_id FROM db_shards c WHERE c.server_id = ANY ($2)))`
	sqlChangedPools   = sqlFleetPools + ` WHERE r.pool_id = ANY (ARRAY(SELECT unnest($1::text[]) UNION SELECT c.pool_id FROM redis_pools c WHERE c.server_id = ANY ($2)))`
	sqlChangedSites   = sqlFleetSites + ` WHERE pool_site_id = ANY ($1)`
)

// The tenants of a parent org change only along with a count, so reading those of changed
// servers and shards is enough. Each kind is found by its own index: an OR of both would
// read all allocations.
const sqlFleetFamilies = `
WITH a AS (
    SELECT allocation_id, tenant_id, app_server_id, db_shard_id FROM tenant_allocations
    WHERE released_at IS NULL AND app_server_id = ANY ($1)
    UNION
    SELECT allocation_id, tenant_id, app_server_id, db_shard_id FROM tenant_allocations
    WHERE released_at IS NULL AND db_shard_id = ANY (ARRAY(SELECT unnest($2::text[]) UNION SELECT d.shard_id FROM db_shards d WHERE d.server_id = ANY ($1)))
)
SELECT a.app_server_id AS app, a.db_shard_id AS shard, t.parent_org_id AS org, count(*) AS n
FROM a CROSS JOIN LATERAL ( -- the offset keeps this from becoming a join that reads all tenants
    SELECT parent_org_id FROM tenants WHERE tenant_id = a.tenant_id AND parent_org_id IS NOT NULL OFFSET 0) t
GROUP BY 1, 2, 3`

const sqlAllFamilies = `
SELECT a.app_server_id AS app, a.db_shard_id AS shard, t.parent_org_id AS org, count(*) AS n
FROM tenant_allocations a JOIN tenants t ON t.tenant_id = a.tenant_id
WHERE a.released_at IS NULL AND t.parent_org_id IS NOT NULL
GROUP BY 1, 2, 3`

// changedRows are the ids of what the feed lists after a cursor.
type changedRows struct {
	Since                         string
	Kept                          bool
	Servers, Shards, Pools, Sites []string
	Providers                     []placement.Provider
	Residency                     map[string]placement.Zone
	Networks                      []placement.Network
	Edges                         []placement.EdgeNetwork
	LastServer                    string
}

// PlacementChanges reads what changed since an earlier answer's cursor, and the rows
// named by ids whether or not they changed; since "" reads everything, and so does a cursor
// that is older than the feed, or from before the database server was started or another took
// its place.
func (s *Store) PlacementChanges(ctx context.Context, since string, ids []string) (placement.Change, error) {
	c := placement.Change{Full: since == ""}
	xid, started := cut(since)
	changed, err := one[changedRows](ctx, s.pool, sqlChanges, xid, started, server.NetworkSize)
	if err != nil {
		return c, fmt.Errorf("placement changes: %w", err)
	}
	c.Since, c.Providers, c.Residency, c.Networks, c.Edges, c.LastServer = changed.Since, changed.Providers, changed.Residency, changed.Networks, changed.Edges, changed.LastServer
	c.Full = c.Full || !changed.Kept
	var families []struct {
		App, Shard, Org string
		N               int
	}
	b := &pgx.Batch{}
	if c.Full {
		queueRows(b, &families, sqlAllFamilies)
		queueRows(b, &c.Servers, sqlAllServers)
		queueRows(b, &c.Shards, sqlAllShards)
		queueRows(b, &c.Pools, sqlAllPools)
		queueRows(b, &c.Sites, sqlAllSites)
	} else {
		servers, shards := slices.Concat(changed.Servers, ids), slices.Concat(changed.Shards, ids)
		pools, sites := slices.Concat(changed.Pools, ids), slices.Concat(changed.Sites, ids)
		if len(servers)+len(shards) > 0 {
			queueRows(b, &families, sqlFleetFamilies, servers, shards)
			queueRows(b, &c.Shards, sqlChangedShards, shards, servers)
		}
		if len(servers) > 0 {
			queueRows(b, &c.Servers, sqlChangedServers, servers)
		}
		if len(servers)+len(pools) > 0 {
			queueRows(b, &c.Pools, sqlChangedPools, pools, servers)
		}
		if len(sites) > 0 {
			queueRows(b, &c.Sites, sqlChangedSites, sites)
		}
	}
	if b.Len() == 0 {
		return c, nil
	}
	if err := s.pool.SendBatch(ctx, b).Close(); err != nil {
		return c, fmt.Errorf("placement changes: %w", err)
	}
	parents := map[string]map[string]int{} // of servers and shards by id
	for _, f := range families {
		for _, id := range []string{"a/" + f.App, "d/" + f.Shard} {
			if parents[id] == nil {
				parents[id] = map[string]int{}
			}
			parents[id][f.Org] += f.N
		}
	}
	for i := range c.Servers {
		c.Servers[i].ParentOrgs = parents["a/"+string(c.Servers[i].ServerID)]
	}
	for i := range c.Shards {
		c.Shards[i].ParentOrgs = parents["d/"+string(c.Shards[i].ShardID)]
	}
	return c, nil
}

// Changes older than the mark, set keep ago, are pruned, and a new mark is set; all workers share the mark.
// A transaction id from a cluster that the database was copied from is none of ours.
const sqlPruneChanges = `
WITH due AS (
    UPDATE changes_pruned SET pruned_xid = next_xid, next_xid = pg_snapshot_xmin(pg_current_snapshot()), marked_at = now()
    WHERE marked_at < now() - make_interval(secs => $1) RETURNING pruned_xid
)
DELETE FROM changes USING due WHERE xid < due.pruned_xid OR xid >= pg_snapshot_xmax(pg_current_snapshot())`

// PruneChanges deletes what the feed of changes has had for keep, and at most twice as long
// if it is called as often. A reader with an older cursor reads everything again.
func (s *Store) PruneChanges(ctx context.Context, keep time.Duration) error {
	return s.exec(ctx, "prune changes", sqlPruneChanges, keep.Seconds())
}

// A decision equal to the last one, with the same constraint, adds nothing, and one made
// before the tenant was placed is out of date.
const sqlRecordDecision = `
INSERT INTO allocation_snapshots (tenant_id, outcome, code, algorithm, decision_log, policy_json, actor)
SELECT $1, $2, $3, $4, $5, $6, $7
WHERE NOT EXISTS (SELECT FROM (SELECT outcome, code, algorithm, decision_log FROM allocation_snapshots WHERE tenant_id = $1 ORDER BY snapshot_id DESC LIMIT 1) l
                  WHERE l.outcome = $2 AND l.code = $3 AND l.algorithm = $4
                    AND (l.decision_log #> '{constraint,require}', l.decision_log #> '{constraint,disallow}')
                        IS NOT DISTINCT FROM ($5::jsonb #> '{constraint,require}', $5::jsonb #> '{constraint,disallow}'))
  AND NOT EXISTS (SELECT FROM tenant_allocations WHERE tenant_id = $1 AND released_at IS NULL)`

// RecordDecision stores a decision that placed no tenant, unless it adds nothing.
func (s *Store) RecordDecision(ctx context.Context, d tenant.DecisionRecord) (recorded bool, err error) {
	recorded, err = changed(ctx, s.pool, sqlRecordDecision, d.TenantID, d.Outcome, d.Code, d.Algorithm, d.Decision, d.Policy, d.Actor)
	return recorded, failed("record decision for tenant "+string(d.TenantID), err)
}
