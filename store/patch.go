package store

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// A repeated report keeps since when it holds; an agent that reports the same changes nothing but when.
const sqlTellPatches = `
UPDATE servers SET patch_state = $2, patches = $3, patches_at = now(),
    patches_since = CASE WHEN $2 IN ('pending', 'reboot') THEN CASE WHEN patch_state IN ('pending', 'reboot') THEN COALESCE(patches_since, now()) ELSE now() END END
WHERE server_id = $1 RETURNING server_id`

// TellPatches records which security updates a host lacks.
func (s *Store) TellPatches(ctx context.Context, id prego.ServerID, p server.Patches) error {
	_, err := get[struct{ ServerID string }](ctx, s.pool, prego.Errorf(prego.CodeServerNotFound, "there is no server %q", id), sqlTellPatches, id, p.State(), p)
	return err
}

// PatchesLate is how many days a server may lack security updates, or a reboot, before an operator
// must act.
const PatchesLate = 14

const (
	lackPatches    = `s.patches_since < now() - make_interval(days => $1)`
	sqlPatchCounts = `
SELECT region, role, patch_state AS state, count(*)::int AS n, (count(*) FILTER (WHERE ` + lackPatches + `))::int AS late
FROM servers s WHERE status IN ('active', 'failed') GROUP BY 1, 2, 3`
)

// PatchCounts counts servers by how they stand to security updates.
func (s *Store) PatchCounts(ctx context.Context) ([]server.PatchCount, error) {
	return collect[server.PatchCount](ctx, s, "servers by security updates", sqlPatchCounts, PatchesLate)
}

const sqlFleetWindows = `SELECT fleet_id, jsonb_build_object('schedule', patch_schedule, 'seconds', patch_seconds) AS "window" FROM fleets WHERE patch_schedule <> '' ORDER BY fleet_id`

// FleetWindows are the windows of fleets that have their own.
func (s *Store) FleetWindows(ctx context.Context) ([]server.FleetWindow, error) {
	return collect[server.FleetWindow](ctx, s, "patch windows of fleets", sqlFleetWindows)
}

// The longest waiting server of each fleet (of each role and region, for servers in none) whose window is open: in a
// window each is tried once. Fleets without their own window have the environment's ($1), if that is open; $4 is when
// the first of all that are opened.
const sqlToPatch = `
WITH fleet_windows AS (
    SELECT * FROM unnest($2::text[], $3::timestamptz[]) AS w (fleet_id, since)), lacking AS (
    SELECT s.server_id, COALESCE(s.fleet_id, s.role || '/' || s.region) AS unit, COALESCE(s.fleet_id, 'no-fleet-' || s.role || '-' || s.region) AS name, s.patches_since,
        CASE WHEN COALESCE(f.patch_schedule, '') = '' THEN $1::timestamptz ELSE w.since END AS since
    FROM servers s LEFT JOIN fleets f ON f.fleet_id = s.fleet_id LEFT JOIN fleet_windows w ON w.fleet_id = s.fleet_id
    WHERE s.status = 'active' AND s.patch_state IN ('pending', 'reboot') AND s.cordoned_at IS NULL AND s.agent_status = 'connected'), busy AS (
    SELECT COALESCE(o.fleet_id, o.role || '/' || o.region) AS unit, CASE WHEN d.finished_at IS NULL THEN 'infinity' ELSE d.created_at END AS at
    FROM server_maintenances d JOIN servers o ON o.server_id = d.server_id AND o.status = 'active'
    WHERE d.finished_at IS NULL OR d.kind = 'patch' AND d.status = 'failed' AND d.created_at >= $4 AND d.reason IN ('patch_failed', 'reboot_timeout')), tried AS (
    SELECT server_id, created_at AS at FROM server_maintenances WHERE kind = 'patch' AND created_at >= $4
    UNION ALL SELECT server_id, 'infinity' FROM stack_release_servers WHERE status IN ('updating', 'broken')
    UNION ALL SELECT server_id, 'infinity' FROM agent_release_servers WHERE status = 'offered')
SELECT DISTINCT ON (l.unit) l.server_id, l.name AS unit, l.since FROM lacking l
WHERE l.since IS NOT NULL AND NOT EXISTS (SELECT FROM busy b WHERE b.unit = l.unit AND b.at >= l.since)
  AND NOT EXISTS (SELECT FROM tried t WHERE t.server_id = l.server_id AND t.at >= l.since)
ORDER BY l.unit, l.patches_since, l.server_id`

// ServersToPatch are the servers that are patched next in the windows that are open.
func (s *Store) ServersToPatch(ctx context.Context, open server.OpenPatchWindows) ([]server.ToPatch, error) {
	ids, since := make([]prego.FleetID, 0, len(open.Fleets)), make([]time.Time, 0, len(open.Fleets))
	var first time.Time
	if open.Since != nil {
		first = *open.Since
	}
	for id, at := range open.Fleets {
		ids, since = append(ids, id), append(since, at)
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return collect[server.ToPatch](ctx, s, "servers to patch", sqlToPatch, open.Since, ids, since, first)
}

// A server of the same fleet whose last maintenance is a patch that failed after it began.
const sqlPatchBroke = `
SELECT s.server_id, d.message FROM servers s
CROSS JOIN LATERAL (SELECT kind, status, reason, message FROM server_maintenances WHERE server_id = s.server_id ORDER BY number DESC LIMIT 1) d
WHERE s.server_id <> $1 AND s.status = 'active' AND s.cordoned_at IS NOT NULL AND COALESCE(s.fleet_id, '') = $2 AND ($2 <> '' OR s.role = $3 AND s.region = $4)
  AND d.kind = 'patch' AND d.status = 'failed' AND d.reason IN ('patch_failed', 'reboot_timeout') ORDER BY 1 LIMIT 1`

// beginPatch closes a server whose turn it is, if it has anything to install. Otherwise it waits,
// or the patch has ended.
func (d *maintenanceStep) beginPatch(ctx context.Context) (begins bool, err error) {
	// What broke one server is not done to the next.
	broken, err := find[struct{ ServerID, Message string }](ctx, d.tx, sqlPatchBroke, d.ServerID, d.FleetID, d.Role, d.Region)
	if err != nil {
		return false, err
	}
	if broken != nil {
		d.reason, d.text = server.MaintenancePatchElsewhere, fmt.Sprintf("the patch of server %s of its fleet failed, and that is still cordoned: %s", broken.ServerID, broken.Message)
		return false, d.progress(ctx)
	}
	// No instance moves for a host that lacks nothing, or that can't report it.
	switch {
	case d.Refused != "":
		return false, d.end(ctx, server.MaintenanceFailed, server.MaintenancePatchRefused, d.Refused)
	case d.CheckedAt == nil:
		d.out.Act, d.text = server.ActCheck, "its host looks which security updates are missing"
		return false, d.progress(ctx)
	case d.ToPatch == "":
		return false, d.end(ctx, server.MaintenanceDone, "", "nothing to install, and no reboot is needed")
	}
	if _, err := cordonIn(ctx, d.tx, d.ServerID, d.RequestedBy, cmp.Or(d.Why, string(d.Kind))); err != nil {
		return false, err
	}
	stays, err := values[string](ctx, d.tx, sqlTenantsStay, d.ServerID)
	if err != nil {
		return false, err
	}
	if len(stays) > 0 && !d.KeepTenants {
		return false, d.end(ctx, server.MaintenanceFailed, server.MaintenancePatchRefused, fmt.Sprintf("%d tenants that cannot be moved came meanwhile", len(stays)))
	}
	return true, nil
}

// patchWithin is how long a host may take to install missing updates, with all repetitions.
const patchWithin = 45 * time.Minute

// patch follows a host that installs security updates, and then its reboot if it needs one.
func (d *maintenanceStep) patch(ctx context.Context) error {
	d.text = d.ToPatch + " are being installed"
	switch {
	case d.Refused != "":
		return d.end(ctx, server.MaintenanceFailed, server.MaintenancePatchFailed, d.Refused)
	case d.PatchedAt == nil && d.PatchingAt != nil && d.Now.After(d.PatchingAt.Add(patchWithin)):
		return d.end(ctx, server.MaintenanceFailed, server.MaintenancePatchFailed, "its host did not report an end within "+patchWithin.String())
	case d.PatchedAt == nil:
		d.out.Act = server.ActPatch
		return d.progress(ctx)
	case !d.needsReboot():
		return d.end(ctx, server.MaintenanceDone, "", d.installedText()+"; no reboot was needed")
	}
	return d.restart(ctx)
}

func (d *maintenanceStep) needsReboot() bool {
	return d.Patched != nil && !d.Patched.Now.RebootSince.IsZero()
}

func (d *maintenanceStep) installedText() string {
	if d.Patched == nil || d.Patched.Installed == 0 {
		return "nothing needed installing"
	}
	first := d.Patched.Packages[0]
	text := fmt.Sprintf("%d packages installed, %s %s among them", d.Patched.Installed, first.Name, first.To)
	if d.Patched.Installed == 1 {
		text = fmt.Sprintf("%s %s installed", first.Name, first.To)
	}
	return text
}

const (
	sqlPatchChecked  = `UPDATE server_maintenances SET checked_at = now(), to_patch = $2, refused = $3, updated_at = now() WHERE server_id = $1 AND finished_at IS NULL AND kind = 'patch' AND checked_at IS NULL`
	sqlPatchBegins   = `UPDATE server_maintenances SET patching_at = COALESCE(patching_at, now()), updated_at = now() WHERE server_id = $1 AND finished_at IS NULL AND kind = 'patch' AND status = 'finishing' AND patched_at IS NULL AND refused = ''`
	sqlServerPatched = `UPDATE server_maintenances SET patched_at = COALESCE(patched_at, now()), patched = COALESCE(patched, $2), updated_at = now() WHERE server_id = $1 AND finished_at IS NULL AND kind = 'patch' AND status = 'finishing' AND patched_at IS NULL`
)

// PatchChecked records the work that a host reported, "" for nothing, or why it could not.
func (s *Store) PatchChecked(ctx context.Context, id prego.ServerID, todo, refused string) error {
	return s.exec(ctx, "patch "+string(id), sqlPatchChecked, id, todo, prego.Redact(refused))
}

// PatchBegins records that a host will install security updates; false if the maintenance has ended
// meanwhile.
func (s *Store) PatchBegins(ctx context.Context, id prego.ServerID) (bool, error) {
	ok, err := changed(ctx, s.pool, sqlPatchBegins, id)
	return ok, failed("patch "+string(id), err)
}

// ServerPatched records what a host has installed.
func (s *Store) ServerPatched(ctx context.Context, id prego.ServerID, done server.Patched) error {
	return s.exec(ctx, "patch "+string(id), sqlServerPatched, id, done)
}

const sqlPatchRefused = `UPDATE server_maintenances SET refused = $2, updated_at = now() WHERE server_id = $1 AND finished_at IS NULL AND kind = 'patch' AND status = 'finishing' AND patched_at IS NULL`

// PatchRefused records why a host has not installed security updates.
func (s *Store) PatchRefused(ctx context.Context, id prego.ServerID, message string) error {
	return s.exec(ctx, "patch "+string(id), sqlPatchRefused, id, prego.Redact(message))
}

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

// PatchWaves is the list of waves.
var PatchWaves = Listing[server.PatchWave]{
	what: "patch waves", from: selectWaves,
	filters: map[string]string{"requested_by": "w.requested_by"},
	sorts:   map[string]string{"created_at": "w.created_at"},
	id:      "w.wave_id",
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
