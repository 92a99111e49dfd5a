package store

import (
	"context"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// What is repeated keeps since when it holds; an agent that tells the same changes nothing but when.
const sqlTellPatches = `
UPDATE servers SET patch_state = $2, patches = $3, patches_at = now(),
    patches_since = CASE WHEN $2 IN ('pending', 'reboot') THEN CASE WHEN patch_state IN ('pending', 'reboot') THEN COALESCE(patches_since, now()) ELSE now() END END
WHERE server_id = $1 RETURNING server_id`

// TellPatches records which security updates a host lacks.
func (s *Store) TellPatches(ctx context.Context, id prego.ServerID, p server.Patches) error {
	_, err := get[struct{ ServerID string }](ctx, s.pool, prego.Errorf(prego.CodeServerNotFound, "there is no server %q", id), sqlTellPatches, id, p.State(), p)
	return err
}

// PatchesLate is how many days a server may lack security updates, or a reboot, before somebody
// has to see to it.
const PatchesLate = 14

const sqlPatchCounts = `
SELECT region, role, patch_state AS state, count(*)::int AS n, (count(*) FILTER (WHERE patches_since < now() - make_interval(days => $1)))::int AS late
FROM servers WHERE status IN ('active', 'failed') GROUP BY 1, 2, 3`

// PatchCounts counts servers by how they stand to security updates.
func (s *Store) PatchCounts(ctx context.Context) ([]server.PatchCount, error) {
	return collect[server.PatchCount](ctx, s, "servers by security updates", sqlPatchCounts, PatchesLate)
}

// One of each fleet (of each role and region, of servers in none), the one that has waited longest: in a
// window each is tried once.
const sqlToPatch = `
WITH busy AS (
    SELECT COALESCE(o.fleet_id, o.role || '/' || o.region) AS unit FROM server_drains d JOIN servers o ON o.server_id = d.server_id AND o.status = 'active'
    WHERE d.finished_at IS NULL OR d.kind = 'patch' AND d.status = 'failed' AND d.created_at >= $1 AND d.reason IN ('patch_failed', 'reboot_timeout')), tried AS (
    SELECT server_id FROM server_drains WHERE kind = 'patch' AND created_at >= $1
    UNION ALL SELECT server_id FROM stack_release_servers WHERE status IN ('updating', 'broken')
    UNION ALL SELECT server_id FROM agent_release_servers WHERE status = 'offered')
SELECT DISTINCT ON (COALESCE(fleet_id, role || '/' || region)) server_id FROM servers
WHERE status = 'active' AND patch_state IN ('pending', 'reboot') AND cordoned_at IS NULL AND agent_status = 'connected'
  AND COALESCE(fleet_id, role || '/' || region) NOT IN (SELECT unit FROM busy) AND server_id NOT IN (SELECT server_id FROM tried)
ORDER BY COALESCE(fleet_id, role || '/' || region), patches_since, server_id`

// ServersToPatch are the servers that are patched next in a window that has been open since a time.
func (s *Store) ServersToPatch(ctx context.Context, since time.Time) ([]prego.ServerID, error) {
	return collectValues[prego.ServerID](ctx, s, "servers to patch", sqlToPatch, since)
}
