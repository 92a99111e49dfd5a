package store

import (
	"context"

	"github.com/prego/prego/tenant"
)

// A tenant's site has two names until it is finished, and is on two servers during a move.
const sqlHostSites = `
SELECT s.server_id, s.host, COALESCE((SELECT jsonb_agg(jsonb_build_object('site', x.site, 'tenant_id', x.tenant_id, 'state', x.state, 'finished', x.finished) ORDER BY x.site) FROM (
    SELECT t.site, t.tenant_id, t.state, t.state <> 'failed' AND NOT EXISTS (SELECT FROM tenant_moves m WHERE m.tenant_id = t.tenant_id AND m.finished_at IS NULL) AS finished
    FROM tenant_allocations a JOIN tenants t ON t.tenant_id = a.tenant_id WHERE a.app_server_id = s.server_id AND a.released_at IS NULL AND t.site <> ''
    UNION ALL SELECT v.site, t.tenant_id, t.state, false FROM tenant_allocations a JOIN tenants t ON t.tenant_id = a.tenant_id
        CROSS JOIN LATERAL (VALUES (a.site_name), (t.slug || '.' || $1)) v (site)
    WHERE a.app_server_id = s.server_id AND a.released_at IS NULL AND t.site = ''
    UNION ALL SELECT t.site, t.tenant_id, t.state, false FROM tenant_moves m JOIN tenants t ON t.tenant_id = m.tenant_id
    WHERE m.finished_at IS NULL AND s.server_id IN (m.from_server_id, m.to_server_id) AND t.site <> ''
    UNION ALL SELECT p.site_name, '', '', p.state = 'available' FROM site_pool p WHERE p.app_server_id = s.server_id AND p.dropped_at IS NULL AND p.state <> 'assigned'
) x), '[]') AS sites
FROM servers s WHERE s.status = 'active' AND s.role IN ('app', 'node') ORDER BY s.server_id`

// HostSites returns the sites that may be on active servers; domain is that of tenants' sites.
func (s *Store) HostSites(ctx context.Context, domain string) ([]tenant.HostSites, error) {
	return collect[tenant.HostSites](ctx, s, "sites of hosts", sqlHostSites, domain)
}
