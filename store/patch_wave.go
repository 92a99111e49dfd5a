package store

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

const sqlMakeWave = `INSERT INTO patch_waves (wave_id, requested_by, why) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`

// Its last events carry the clock's time, and belong to its wave.
const sqlWaveMaintenanceEnded = `UPDATE server_maintenances SET finished_at = clock_timestamp() WHERE server_id = $1 AND number = $2`

const selectWaves = `
SELECT w.wave_id, w.requested_by, w.why, w.created_at, d.fleets, d.servers, d.done, d.failed, d.cancelled, d.installed, d.finished_at
FROM patch_waves w CROSS JOIN LATERAL (
    SELECT count(*)::int AS servers, (count(*) FILTER (WHERE x.status = 'done'))::int AS done, (count(*) FILTER (WHERE x.status = 'failed'))::int AS failed,
        (count(*) FILTER (WHERE x.status = 'cancelled'))::int AS cancelled, COALESCE(sum((x.patched ->> 'installed')::int), 0)::int AS installed,
        CASE WHEN count(*) = count(x.finished_at) THEN max(x.finished_at) END AS finished_at,
        COALESCE(array_agg(DISTINCT s.fleet_id) FILTER (WHERE s.fleet_id IS NOT NULL), '{}') AS fleets
    FROM server_maintenances x JOIN servers s ON s.server_id = x.server_id WHERE x.wave_id = w.wave_id) d`

const sqlGetWave = selectWaves + ` WHERE w.wave_id = $1`

// GetPatchWave reads a wave, or CodePatchWaveNotFound.
func (s *Store) GetPatchWave(ctx context.Context, id prego.PatchWaveID) (server.PatchWave, error) {
	return get[server.PatchWave](ctx, s.pool, prego.Errorf(prego.CodePatchWaveNotFound, "there is no patch wave %q", id), sqlGetWave, id)
}

var patchWaves = listing[server.PatchWave]{
	what: "patch waves", from: selectWaves,
	filters: map[string]string{"requested_by": "w.requested_by"},
	sorts:   map[string]string{"created_at": "w.created_at"},
	id:      "w.wave_id",
}

// ListPatchWaves is a page of waves.
func (s *Store) ListPatchWaves(ctx context.Context, q prego.ListQuery) (page []server.PatchWave, next string, err error) {
	return patchWaves.page(ctx, s, q)
}

const sqlWaveServers = `
SELECT d.server_id, COALESCE(s.fleet_id, '') AS fleet_id, d.status, d.reason, d.message, d.patched, d.created_at, d.started_at, d.finished_at
FROM server_maintenances d JOIN servers s ON s.server_id = d.server_id WHERE d.wave_id = $1 ORDER BY d.started_at NULLS LAST, d.created_at, d.server_id LIMIT 1000`

// PatchWaveServers are the servers of a wave as they had their turns, at most 1,000.
func (s *Store) PatchWaveServers(ctx context.Context, id prego.PatchWaveID) ([]server.PatchWaveServer, error) {
	return collect[server.PatchWaveServer](ctx, s, "servers of wave "+string(id), sqlWaveServers, id)
}

// What happened on its servers from when their patches were asked for until they ended.
const sqlWaveSteps = `
SELECT e.at, e.server_id, e.step, e.reason, e.message
FROM server_maintenances d JOIN server_events e ON e.server_id = d.server_id AND e.at >= d.created_at AND e.at <= COALESCE(d.finished_at, now())
WHERE d.wave_id = $1 AND e.step IN ('maintenance_requested', 'maintenance_started', 'maintenance_waits', 'drained', 'maintenance_failed', 'maintenance_cancelled', 'patched', 'cordoned', 'uncordoned')
ORDER BY e.at DESC, e.event_id DESC LIMIT 500`

// PatchWaveSteps is the timeline of a wave, the newest first, at most 500 lines.
func (s *Store) PatchWaveSteps(ctx context.Context, id prego.PatchWaveID) ([]server.PatchWaveStep, error) {
	return collect[server.PatchWaveStep](ctx, s, "timeline of wave "+string(id), sqlWaveSteps, id)
}
