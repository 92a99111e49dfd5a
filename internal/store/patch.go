package store

import (
	"context"

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
