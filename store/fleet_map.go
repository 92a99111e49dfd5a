package store

import (
	"context"

	"github.com/prego/prego/server"
)

// The query reads each server once, and groups similar servers into one row where a map of all would be too large. A
// machine's memory comes from the catalog entry of its type.
const sqlFleetMap = `
WITH types AS MATERIALIZED (
    SELECT c.provider, t.name, max(t.memory_gb * 1024)::bigint AS memory_mb
    FROM provider_catalogs c CROSS JOIN LATERAL jsonb_to_recordset(COALESCE(c.document -> 'server_types', '[]')) AS t (name text, memory_gb double precision) GROUP BY 1, 2
), busy AS MATERIALIZED (
    SELECT server_id, count(*)::int AS n FROM instances WHERE state <> 'stopped' GROUP BY 1
), emptied AS MATERIALIZED (
    SELECT DISTINCT server_id FROM server_maintenances WHERE finished_at IS NULL
), one AS MATERIALIZED (
    SELECT s.server_id, s.region, COALESCE(s.fleet_id, '') AS fleet_id, s.role, s.status, s.agent_status, s.cordoned_at IS NOT NULL AS cordoned, s.server_type, s.location,
        s.status = 'draining' OR e.server_id IS NOT NULL AS draining, s.warm_plan IS NOT NULL AND s.tenant_count = 0 AS warm,
        COALESCE(t.memory_mb, 0) AS memory_mb, s.memory_pct, s.disk_pct, s.tenant_count AS tenants, COALESCE(b.n, 0) AS instances,
        s.status = 'active' AND s.agent_status IN ('disconnected', 'unknown') AS silent,
        (count(*) OVER (PARTITION BY s.region, s.fleet_id, s.role))::int AS total
    FROM servers s LEFT JOIN types t ON t.provider = s.infra_provider AND t.name = s.server_type LEFT JOIN busy b ON b.server_id = s.server_id LEFT JOIN emptied e ON e.server_id = s.server_id
    WHERE s.status <> 'terminated' AND ($1 = '' OR s.region = $1)
), judged AS (
    SELECT o.*, CASE WHEN status IN ('provisioning', 'failed') THEN status WHEN silent THEN 'silent' WHEN draining THEN 'draining' WHEN cordoned THEN 'cordoned' ELSE 'active' END AS state,
        CASE WHEN memory_pct IS NULL THEN 'unknown' WHEN memory_pct < 25 THEN '0-25' WHEN memory_pct < 50 THEN '25-50' WHEN memory_pct < 75 THEN '50-75' WHEN memory_pct < 90 THEN '75-90' ELSE '90-100' END AS fill,
        CASE WHEN status = 'failed' THEN 'provisioning_failed' WHEN silent THEN 'agent_silent' WHEN memory_pct >= 90 THEN 'memory_full' WHEN disk_pct >= 90 THEN 'disk_full' ELSE '' END AS alarm,
        CASE WHEN total <= $2 OR region = $3 AND fleet_id = $4 THEN server_id ELSE '' END AS tile
    FROM one o
)
SELECT region, fleet_id, role, total, tile AS server_id, count(*)::int AS servers, state, fill, alarm, sum(memory_mb)::bigint AS memory_mb, avg(memory_pct) AS memory_pct, avg(disk_pct) AS disk_pct,
    sum(tenants)::int AS tenants, sum(instances)::int AS instances, max(status) AS status, max(agent_status) AS agent_status, bool_or(cordoned) AS cordoned, bool_or(draining) AS draining, bool_or(warm) AS warm,
    max(server_type) AS server_type, max(location) AS location, now() AS as_of
FROM judged GROUP BY region, fleet_id, role, total, tile, state, fill, alarm ORDER BY region, fleet_id, role, tile, state, fill, alarm`

// FleetMap returns every server that is not terminated: one by one, or grouped by state and fill if there are more
// than FleetMapMost.
func (s *Store) FleetMap(ctx context.Context, q server.FleetMapQuery) ([]server.FleetTile, error) {
	var expand server.FleetInRegion
	if q.Expand != nil {
		expand = *q.Expand
	}
	return collect[server.FleetTile](ctx, s, "fleet map", sqlFleetMap, q.Region, server.FleetMapMost, expand.Region, expand.FleetID)
}
