package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/instance"
	"github.com/prego/prego/server"
)

const drainColumns = `d.server_id, d.number, d.kind, d.status, d.reason, d.message, d.why, d.requested_by, d.keep_tenants, d.server_type, d.was_open, d.total, d.left_now AS "left", d.tenants_total, d.tenants_left, d.patched,
    d.deadline_at, COALESCE(d.replacement_id, '') AS replacement_id, d.cancel_requested_at, d.created_at, d.started_at, d.finished_at`

const sqlHoldDrained = `SELECT status FROM servers WHERE server_id = $1 FOR NO KEY UPDATE`

const sqlOpenDrain = `SELECT ` + drainColumns + ` FROM server_drains d WHERE server_id = $1 AND finished_at IS NULL`

// notUpdating holds for a server on which no release is being tried, once its row is locked: a
// release locks it, too, before it begins there.
const notUpdating = `NOT EXISTS (SELECT FROM stack_release_servers v WHERE v.server_id = $1 AND v.status IN ('updating', 'broken'))
  AND NOT EXISTS (SELECT FROM agent_release_servers v WHERE v.server_id = $1 AND v.status = 'offered')`

const sqlUpdatedBy = `
SELECT 'release ' || release AS what, status FROM stack_release_servers WHERE server_id = $1 AND status IN ('updating', 'broken')
UNION ALL SELECT 'release ' || version || ' of the agent', status FROM agent_release_servers WHERE server_id = $1 AND status = 'offered' LIMIT 1`

// Only what a drain can empty: with tenants that cannot be moved, or without storage through which they move ($4), the
// fleet waits for them instead.
const sqlDrainFleetMember = `
INSERT INTO server_drains (server_id, number, kind, status, requested_by, was_open, by_fleet, total, left_now, deadline_at, keep_tenants, tenants_total, tenants_left)
SELECT s.server_id, COALESCE((SELECT max(number) FROM server_drains WHERE server_id = $1), 0) + 1, 'drain', 'waiting', $2, false, true, i.n, i.n, now() + make_interval(secs => $3), NOT $4, s.tenant_count, s.tenant_count
FROM servers s CROSS JOIN (SELECT count(*)::int AS n FROM instances WHERE server_id = $1 AND state <> 'stopped') i
WHERE s.server_id = $1 AND s.status = 'active' AND s.cordoned_at IS NOT NULL AND s.dedicated_for_tenant_id IS NULL AND i.n + s.tenant_count > 0 AND ($4 OR s.tenant_count = 0)
  AND NOT EXISTS (` + sqlTenantsStay + `)
  AND NOT EXISTS (SELECT FROM db_shards d WHERE d.server_id = $1 AND d.current_tenant_count > 0) AND NOT EXISTS (SELECT FROM redis_pools r WHERE r.server_id = $1 AND r.current_tenants > 0)
  AND ` + notUpdating + `
  AND NOT EXISTS (SELECT FROM server_drains p WHERE p.server_id = $1 AND p.by_fleet AND p.requested_by = $2 AND p.status = 'failed') -- it had its time
ON CONFLICT DO NOTHING`

const sqlFleetDrainLeft = `SELECT COALESCE(max(deadline_at) - now(), '0') FROM server_drains WHERE server_id = $1 AND by_fleet AND finished_at IS NULL`

// DrainFleetMember empties a server that its fleet is about to remove, if only what can move is in
// the way: instances, and tenants if they move. It returns how much time that has left of within; 0 if
// nothing is under way or it failed before. begun is set if it began now.
func (s *Store) DrainFleetMember(ctx context.Context, id prego.ServerID, by string, within time.Duration, tenantsMove bool) (left time.Duration, begun bool, err error) {
	err = s.inTx(ctx, "drain "+string(id), func(tx pgx.Tx) error {
		if _, err := value[server.Status](ctx, tx, sqlHoldDrained, id); err != nil {
			return ifNoRows(err, nil)
		}
		if begun, err = changed(ctx, tx, sqlDrainFleetMember, id, by, within.Seconds(), tenantsMove); err != nil {
			return err
		}
		if left, err = value[time.Duration](ctx, tx, sqlFleetDrainLeft, id); err != nil || !begun {
			return err
		}
		return addEvent(ctx, tx, server.Event{ServerID: id, Step: server.StepDrainRequested, Message: "by " + by, Actor: prego.ActorWorkflow}, "")
	})
	return max(0, left), begun, err
}

const sqlWhyOccupied = `
SELECT s.tenant_count AS tenants, (SELECT count(*)::int FROM (` + sqlTenantsStay + `) t) AS stay, COALESCE(s.dedicated_for_tenant_id, '') AS dedicated,
    COALESCE((SELECT d.reason || ': ' || d.message FROM server_drains d WHERE d.server_id = $1 AND d.by_fleet AND d.status = 'failed' AND d.requested_by = $2 ORDER BY d.number DESC LIMIT 1), '') AS failed
FROM servers s WHERE s.server_id = $1`

// WhyOccupied says what keeps a server that its fleet is about to remove, for whoever reads why it
// was kept.
func (s *Store) WhyOccupied(ctx context.Context, id prego.ServerID, by string, tenantsMove bool) (string, error) {
	w, err := find[struct {
		Tenants, Stay     int
		Dedicated, Failed string
	}](ctx, s.pool, sqlWhyOccupied, id, by)
	if err != nil || w == nil {
		return "", failed("tenants of "+string(id), err)
	}
	switch {
	case w.Failed != "":
		return "it was not emptied: " + w.Failed, nil
	case w.Stay > 0:
		return fmt.Sprintf("%d tenants have their databases or caches on it, which cannot be moved yet", w.Stay), nil
	case w.Dedicated != "":
		return "it is tenant " + w.Dedicated + "'s alone", nil
	case w.Tenants > 0 && !tenantsMove:
		return fmt.Sprintf("%d tenants live on it, and without object storage (PREGO_BACKUP_ENDPOINT) they cannot be moved", w.Tenants), nil
	case w.Tenants > 0:
		return fmt.Sprintf("%d tenants live on it", w.Tenants), nil
	}
	return "", nil
}

const sqlKeepFleetMember = `
UPDATE server_drains SET cancel_requested_at = COALESCE(cancel_requested_at, now()), updated_at = now() WHERE server_id = $1 AND by_fleet AND finished_at IS NULL`

// KeepFleetMember ends what DrainFleetMember began: the fleet keeps the server.
func (s *Store) KeepFleetMember(ctx context.Context, id prego.ServerID) (ended bool, err error) {
	ended, err = changed(ctx, s.pool, sqlKeepFleetMember, id)
	return ended, failed("keep "+string(id), err)
}

// Whoever has its data on an app server, which is in no private network.
const sqlTenantsStay = `
SELECT a.tenant_id FROM tenant_allocations a JOIN servers s ON s.server_id = a.app_server_id
WHERE a.released_at IS NULL AND s.role = 'app' AND NOT a.on_shard AND (a.app_server_id = $1 OR a.db_shard_id = $1) ORDER BY 1`

// Whoever has anything on a server (a shard and a pool have their server's id), or is not cleared
// away from it yet.
const sqlDrainedTenants = `
SELECT a.tenant_id, t.org_id, m.move_id IS NOT NULL AS moving, has_site(t.state) AS fit, t.state,
    COALESCE(f.reason, '') AS reason, COALESCE(f.message, '') AS message, COALESCE(f.finished_at > now() - make_interval(secs => $2), false) AS rests
FROM tenant_allocations a JOIN tenants t ON t.tenant_id = a.tenant_id
LEFT JOIN tenant_moves m ON m.tenant_id = a.tenant_id AND m.finished_at IS NULL
LEFT JOIN LATERAL (SELECT state, reason, message, finished_at FROM tenant_moves WHERE tenant_id = a.tenant_id AND $1 IN (from_server_id, from_shard_id, from_pool_id) ORDER BY created_at DESC LIMIT 1) f ON f.state = 'failed'
WHERE (a.app_server_id = $1 OR a.db_shard_id = $1 OR a.redis_pool_id = $1) AND a.released_at IS NULL
UNION ALL SELECT tenant_id, org_id, true, true, '', '', '', false FROM tenant_moves
WHERE state = 'switched' AND (moves_server AND from_server_id = $1 OR moves_shard AND from_shard_id = $1 OR moves_pool AND from_pool_id = $1)
ORDER BY 1`

// moveRest is how long a tenant whose move failed is left alone by a drain, in seconds.
const moveRest = 30

const sqlLetTenantsStay = `
UPDATE tenant_moves SET cancel_requested_at = COALESCE(cancel_requested_at, now()), updated_at = now()
WHERE drain_of = $1 AND state IN ('queued', 'copying', 'frozen') RETURNING move_id`

const sqlRequestDrain = `
INSERT INTO server_drains AS d (server_id, number, kind, status, why, requested_by, keep_tenants, was_open, deadline_at, server_type, total, left_now, tenants_total, tenants_left)
SELECT $1, COALESCE((SELECT max(number) FROM server_drains WHERE server_id = $1), 0) + 1, $2, CASE $2 WHEN 'replace' THEN 'making' ELSE 'waiting' END, $3, $4, $5, $6,
    CASE WHEN $7 > 0 THEN now() + make_interval(secs => $7) END, $8, n, n, moves, moves
FROM (SELECT count(*)::int AS n FROM instances WHERE server_id = $1 AND state <> 'stopped') i
CROSS JOIN (SELECT count(*)::int AS moves FROM tenant_allocations WHERE (app_server_id = $1 OR db_shard_id = $1 OR redis_pool_id = $1) AND released_at IS NULL AND NOT $5) a RETURNING ` + drainColumns

// namedTenants is how many tenants a refusal names.
const namedTenants = 20

// RequestDrain accepts that a server is emptied, for whatever comes then, and closes it to
// newcomers. The same request again is met by the drain that is under way; another one is
// CodeInvalidTransition, and so is a server that is not active. A server with tenants that
// cannot be moved is CodeTenantsCannotMove, unless they are to stay.
func (s *Store) RequestDrain(ctx context.Context, id prego.ServerID, kind server.DrainKind, r server.DrainRequest, by string) (d server.Drain, err error) {
	err = s.inTx(ctx, fmt.Sprintf("%s %s", kind, id), func(tx pgx.Tx) error {
		status, err := value[server.Status](ctx, tx, sqlHoldDrained, id)
		if err != nil {
			return ifNoRows(err, prego.Errorf(prego.CodeServerNotFound, "there is no server %q", id))
		}
		open, err := find[server.Drain](ctx, tx, sqlOpenDrain, id)
		switch {
		case err != nil:
			return err
		case open != nil && open.Kind == kind && open.ServerType == r.ServerType && open.CancelRequestedAt == nil:
			d = *open
			return nil
		case open != nil:
			return prego.Errorf(prego.CodeInvalidTransition, "a %s of server %s is %s: let it end, or cancel it", open.Kind, id, open.Status)
		case status != server.Active:
			return prego.Errorf(prego.CodeInvalidTransition, "server %s is %s; only an active one can be emptied", id, status)
		}
		if update, err := find[struct{ What, Status string }](ctx, tx, sqlUpdatedBy, id); err != nil {
			return err
		} else if update != nil {
			return prego.Errorf(prego.CodeServerUpdating, "%s is %s on server %s: let it end, or cancel it", update.What, update.Status, id)
		}
		before, err := serverIn(ctx, tx, id)
		if err != nil {
			return err
		}
		if kind == server.DrainResize && before.ServerType == r.ServerType {
			return prego.Errorf(prego.CodeInvalidTransition, "server %s is a %s already", id, r.ServerType)
		}
		// Closed first: whoever got a place before is seen then. A patch closes it when its turn comes: a
		// whole fleet may be waiting, and its tenants need places.
		if kind != server.DrainPatch {
			if _, err := cordonIn(ctx, tx, id, by, cmp.Or(r.Reason, string(kind))); err != nil {
				return err
			}
		}
		tenants, err := values[string](ctx, tx, sqlTenantsStay, id)
		if err != nil {
			return err
		}
		if len(tenants) > 0 && !r.KeepTenants {
			return tenantsStay(id, kind, slices.Compact(tenants))
		}
		if d, err = one[server.Drain](ctx, tx, sqlRequestDrain, id, kind, r.Reason, by, r.KeepTenants, before.CordonedBy == "", r.TimeoutSeconds, r.ServerType); err != nil {
			return err
		}
		text := fmt.Sprintf("%s, %d instances, %d tenants", byWhom(by, r.Reason), d.Total, d.TenantsTotal)
		return addEvent(ctx, tx, server.Event{ServerID: id, Step: server.StepDrainRequested, Message: string(kind) + " " + text, Actor: prego.ActorOperator}, "")
	})
	return d, err
}

func tenantsStay(id prego.ServerID, kind server.DrainKind, tenants []string) error {
	named := tenants
	more := ""
	if len(named) > namedTenants {
		named, more = named[:namedTenants], fmt.Sprintf(" and %d more", len(tenants)-namedTenants)
	}
	hint := "cordon it and wait until they are gone, or set keep_tenants, which leaves tenants where they are"
	if kind == server.DrainReplace {
		hint = "cordon it and wait until they are gone"
	}
	return prego.Errorf(prego.CodeTenantsCannotMove, "%d tenants have their databases on server %s, which is in no private network, and cannot be moved: %s%s; %s", len(tenants), id, strings.Join(named, ", "), more, hint)
}

const sqlLastDrain = `SELECT ` + drainColumns + ` FROM server_drains d WHERE server_id = $1 ORDER BY number DESC LIMIT 1`

// LastDrain is the newest drain of a server, or CodeDrainNotFound.
func (s *Store) LastDrain(ctx context.Context, id prego.ServerID) (server.Drain, error) {
	d, err := find[server.Drain](ctx, s.pool, sqlLastDrain, id)
	switch {
	case err != nil:
		return server.Drain{}, failed("drain of "+string(id), err)
	case d == nil:
		if _, err := s.GetServer(ctx, id); err != nil {
			return server.Drain{}, err
		}
		return server.Drain{}, prego.Errorf(prego.CodeDrainNotFound, "server %s was never drained", id)
	}
	return *d, nil
}

// What has no place to go says why; its group knows.
const sqlDrainedInstances = `
SELECT i.instance_id, i.group_id, i.org_id, i.state, i.leaving,
    g.no_surge OR EXISTS (SELECT FROM volume_attachments a WHERE a.group_id = g.group_id AND a.deleted_at IS NULL) AS stops_first,
    CASE WHEN i.leaving AND g.wanted > 0 THEN g.status_reason ELSE '' END AS reason, CASE WHEN i.leaving AND g.wanted > 0 THEN g.status_message ELSE '' END AS message
FROM instances i JOIN process_groups g ON g.group_id = i.group_id WHERE i.server_id = $1 AND i.state <> 'stopped' ORDER BY i.instance_id LIMIT 200`

// DrainedInstances are the instances that are still on a server, at most 200.
func (s *Store) DrainedInstances(ctx context.Context, id prego.ServerID) ([]server.DrainedInstance, error) {
	return collect[server.DrainedInstance](ctx, s, "instances to be moved from "+string(id), sqlDrainedInstances, id)
}

const sqlCancelDrain = `
UPDATE server_drains d SET cancel_requested_at = COALESCE(cancel_requested_at, now()), updated_at = now()
WHERE server_id = $1 AND finished_at IS NULL AND status <> 'finishing' RETURNING ` + drainColumns

// CancelDrain asks that what is under way on a server ends: what has moved stays where it is, the
// rest stays on the server, and that is opened again if the drain closed it. One that is
// being rebooted or deleted by now, or that has ended otherwise, is CodeInvalidTransition.
func (s *Store) CancelDrain(ctx context.Context, id prego.ServerID) (server.Drain, error) {
	d, err := find[server.Drain](ctx, s.pool, sqlCancelDrain, id)
	if err != nil || d != nil {
		return deref(d), failed("cancel the drain of "+string(id), err)
	}
	last, err := s.LastDrain(ctx, id)
	if err != nil || last.Status == server.DrainCancelled {
		return last, err
	}
	return last, prego.Errorf(prego.CodeInvalidTransition, "the %s of server %s is %s", last.Kind, id, last.Status)
}

func deref[T any](v *T) (out T) {
	if v != nil {
		out = *v
	}
	return out
}

const sqlQuietDrains = `SELECT server_id FROM server_drains WHERE finished_at IS NULL AND updated_at < now() - make_interval(secs => $1) ORDER BY server_id LIMIT 200`

// QuietDrains are the servers whose drains may have lost their runs.
func (s *Store) QuietDrains(ctx context.Context, quiet time.Duration) ([]prego.ServerID, error) {
	return collectValues[prego.ServerID](ctx, s, "drains", sqlQuietDrains, quiet.Seconds())
}

// A drain that waits for others waits for its turn; what has another reason, or takes longer
// than anything should, needs somebody.
const sqlOpenDrains = `
SELECT kind, status, count(*)::int AS n, (count(*) FILTER (WHERE reason NOT IN ('', 'fleet_budget', 'org_budget') OR created_at < now() - interval '6 hours'))::int AS stuck
FROM server_drains WHERE finished_at IS NULL GROUP BY 1, 2`

// OpenDrains counts the drains that are under way.
func (s *Store) OpenDrains(ctx context.Context) ([]server.DrainCount, error) {
	return collect[server.DrainCount](ctx, s, "open drains", sqlOpenDrains)
}

// One at a time: the limits hold over all drains.
const sqlOneDrain = `SELECT pg_advisory_xact_lock(hashtextextended('prego/drains', 0))`

const sqlDrainNow = `
SELECT ` + drainColumns + `, s.role, s.region, s.status AS server_status, s.agent_status = 'connected' AS connected, s.agent_boot_id, COALESCE(d.boot_id, '') AS boot_id, d.left_dns, d.by_fleet, d.refused, s.server_type AS has_type, d.checked_at, d.to_patch, d.patching_at, d.patched_at, s.docker_state,
    COALESCE(s.fleet_id, '') AS fleet_id, COALESCE(r.status, '') AS made, COALESCE(r.status_message, '') AS made_message, clock_timestamp() AS now, d.acted_at
FROM server_drains d JOIN servers s ON s.server_id = d.server_id LEFT JOIN servers r ON r.server_id = d.replacement_id
WHERE d.server_id = $1 AND d.finished_at IS NULL FOR NO KEY UPDATE OF d`

// Drains of the same fleet; servers in none are a fleet by region and role.
const sqlFleetDrains = `
SELECT count(*)::int FROM server_drains d JOIN servers s ON s.server_id = d.server_id
WHERE d.finished_at IS NULL AND d.status IN ('moving', 'finishing') AND d.server_id <> $1
  AND COALESCE(s.fleet_id, '') = $2 AND ($2 <> '' OR s.role = $3 AND s.region = $4)`

// A server of the same fleet whose last drain is a patch that failed after it began.
const sqlPatchBroke = `
SELECT s.server_id, d.message FROM servers s
CROSS JOIN LATERAL (SELECT kind, status, reason, message FROM server_drains WHERE server_id = s.server_id ORDER BY number DESC LIMIT 1) d
WHERE s.server_id <> $1 AND s.status = 'active' AND s.cordoned_at IS NOT NULL AND COALESCE(s.fleet_id, '') = $2 AND ($2 <> '' OR s.role = $3 AND s.region = $4)
  AND d.kind = 'patch' AND d.status = 'failed' AND d.reason IN ('patch_failed', 'reboot_timeout') ORDER BY 1 LIMIT 1`

const sqlDrainInstancesOf = `
SELECT instance_id AS id, number, group_id, org_id, leaving, state IN ('draining', 'failed') AS going FROM instances WHERE server_id = $1 AND state <> 'stopped' ORDER BY number`

const sqlLeavingElsewhere = `
SELECT org_id, count(*)::int AS n FROM instances WHERE leaving AND state IN ('booting', 'running') AND server_id <> $1 AND org_id = ANY ($2) GROUP BY 1`

const sqlLetLeave = `UPDATE instances SET leaving = true WHERE instance_id = ANY ($1) AND state IN ('booting', 'running')`

// A group without a rollout forgets that its quota had no room for one more at once: it may
// have some by now.
const sqlGroupsOfLeaving = `
UPDATE process_groups g SET converged = false, updated_at = now(),
    no_surge = no_surge AND deploy_status IN ('draining_first', 'stopping_first'), surge_limit = CASE WHEN deploy_status = 'rolling' THEN surge_limit END
WHERE group_id IN (SELECT group_id FROM instances WHERE instance_id = ANY ($1)) RETURNING group_id, org_id`

const sqlLetStay = `
WITH stays AS (UPDATE instances SET leaving = false WHERE server_id = $1 AND leaving AND state IN ('booting', 'running') RETURNING group_id)
UPDATE process_groups g SET converged = false, updated_at = now() WHERE group_id IN (SELECT group_id FROM stays) RETURNING group_id, org_id`

const sqlDrainProgress = `
UPDATE server_drains SET status = $3, reason = $4, message = $5, total = GREATEST(total, $6), left_now = $6, updated_at = now(),
    started_at = CASE WHEN $3 IN ('moving', 'finishing') THEN COALESCE(started_at, now()) END, boot_id = COALESCE(boot_id, $7),
    tenants_total = GREATEST(tenants_total, $8), tenants_left = $8 WHERE server_id = $1 AND number = $2`

const sqlEndDrain = `
UPDATE server_drains SET status = $3, reason = $4, message = $5, left_now = $6, tenants_left = $7, finished_at = now(), updated_at = now() WHERE server_id = $1 AND number = $2 AND finished_at IS NULL`

const sqlOtherDrains = `SELECT 'server-drain/' || server_id FROM server_drains WHERE finished_at IS NULL AND server_id <> $1 ORDER BY server_id`

const sqlWhyNotMoved = `
SELECT g.status_reason AS reason, g.group_id || ': ' || g.status_message AS message FROM process_groups g
WHERE g.status = 'unschedulable' AND g.wanted > 0 AND EXISTS (SELECT FROM instances i WHERE i.group_id = g.group_id AND i.server_id = $1 AND i.leaving AND i.state <> 'stopped')
ORDER BY g.group_id LIMIT 1`

// drainRow is a drain with what its next step depends on.
type drainRow struct {
	server.Drain
	Role         prego.Role
	Region       prego.Region
	ServerStatus server.Status
	Connected    bool
	AgentBootID  string
	BootID       string // before the reboot; "" if none is under way
	LeftDNS      bool
	ByFleet      bool
	FleetID      prego.FleetID
	Made         server.Status // of the replacement
	MadeMessage  string
	Refused      string // by the provider
	HasType      string // of the server now
	CheckedAt    *time.Time
	ToPatch      string // what its host has told is to be done
	PatchingAt   *time.Time
	PatchedAt    *time.Time
	DockerState  string
	Now          time.Time
	ActedAt      *time.Time
}

// drainStep is a step under way.
type drainStep struct {
	drainRow
	tx     pgx.Tx
	out    server.DrainStep
	status server.DrainStatus
	reason string
	text   string
	left   int
	stay   int // tenants that are still there
}

const (
	// softReboot is how long a host may take to follow the provider's button before it is
	// reset, rebootWithin how long in all until its agent is heard of.
	softReboot   = 2 * time.Minute
	rebootWithin = 15 * time.Minute
)

// StepDrain decides what comes next for a server that is being emptied, and applies what only
// concerns rows. Repeating it returns what is left to do. If nothing is under way it returns
// the drain that ended last.
func (s *Store) StepDrain(ctx context.Context, id prego.ServerID, limits server.DrainLimits) (out server.DrainStep, err error) {
	err = s.inTx(ctx, "drain "+string(id), func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlOneDrain); err != nil {
			return err
		}
		d, err := find[drainRow](ctx, tx, sqlDrainNow, id)
		if err != nil {
			return err
		}
		if d == nil {
			last, err := find[server.Drain](ctx, tx, sqlLastDrain, id)
			if err == nil && last == nil {
				err = prego.Errorf(prego.CodeDrainNotFound, "server %s was never drained", id)
			}
			if err == nil {
				out = server.DrainStep{Status: last.Status, Kind: last.Kind, Message: last.Message}
			}
			return err
		}
		st := &drainStep{drainRow: *d, tx: tx, status: d.Status, left: d.Left, stay: d.TenantsLeft, out: server.DrainStep{Kind: d.Kind, Role: d.Role, Region: d.Region}}
		if err := st.take(ctx, limits); err != nil {
			return err
		}
		st.out.Status, st.out.Message = st.status, st.text
		if st.status.Ended() || st.left < d.Left || st.stay < d.TenantsLeft {
			if st.out.Runs, err = values[string](ctx, tx, sqlOtherDrains, id); err != nil {
				return err
			}
		}
		out = st.out
		return nil
	})
	return out, err
}

func (d *drainStep) take(ctx context.Context, limits server.DrainLimits) error {
	switch gone := d.ServerStatus == server.Draining || d.ServerStatus == server.Terminated; {
	case d.Status == server.DrainFinishing && d.Kind == server.DrainReplace:
		if d.ServerStatus == server.Terminated {
			return d.end(ctx, server.DrainDone, "", "replaced by "+string(d.ReplacementID))
		}
		d.out.Act = server.ActDelete
		return d.progress(ctx)
	case gone && d.ByFleet:
		return d.end(ctx, server.DrainDone, "", d.movedText())
	case gone:
		return d.end(ctx, server.DrainCancelled, server.DrainServerGone, "the server is "+string(d.ServerStatus))
	case d.Status == server.DrainFinishing:
		return d.reboot(ctx)
	case d.CancelRequestedAt != nil:
		return d.end(ctx, server.DrainCancelled, "", d.movedText())
	case d.DeadlineAt != nil && !d.Now.Before(*d.DeadlineAt):
		return d.end(ctx, server.DrainFailed, server.DrainTimeout, d.movedText()+"; "+cmp.Or(d.Message, "the time for it is over"))
	}
	if d.status == server.DrainMaking {
		switch d.Made {
		case server.Active:
			d.status = server.DrainWaiting
		case "":
			d.out.Act = server.ActMake
			d.text = "its replacement is being made"
			return d.progress(ctx)
		case server.Provisioning:
			d.text = "its replacement " + string(d.ReplacementID) + " is being made"
			return d.progress(ctx)
		case server.Failed, server.Draining, server.Terminated:
			return d.end(ctx, server.DrainFailed, server.DrainReplacementFailed, fmt.Sprintf("%s is %s: %s", d.ReplacementID, d.Made, d.MadeMessage))
		}
	}
	if d.status == server.DrainWaiting {
		others, err := value[int](ctx, d.tx, sqlFleetDrains, d.ServerID, d.FleetID, d.Role, d.Region)
		if err != nil {
			return err
		}
		if others >= limits.Servers {
			d.reason, d.text = server.DrainFleetBudget, fmt.Sprintf("%d other servers of its fleet are being emptied, and %d may be at once", others, limits.Servers)
			return d.progress(ctx)
		}
		if d.Kind == server.DrainPatch {
			// What broke one server is not done to the next.
			broken, err := find[struct{ ServerID, Message string }](ctx, d.tx, sqlPatchBroke, d.ServerID, d.FleetID, d.Role, d.Region)
			if err != nil {
				return err
			}
			if broken != nil {
				d.reason, d.text = server.DrainPatchElsewhere, fmt.Sprintf("the patch of server %s of its fleet failed, and that is still cordoned: %s", broken.ServerID, broken.Message)
				return d.progress(ctx)
			}
			// Nobody moves for a host that lacks nothing, or that can't tell.
			switch {
			case d.Refused != "":
				return d.end(ctx, server.DrainFailed, server.DrainPatchRefused, d.Refused)
			case d.CheckedAt == nil:
				d.out.Act, d.text = server.ActCheck, "its host looks which security updates are missing"
				return d.progress(ctx)
			case d.ToPatch == "":
				return d.end(ctx, server.DrainDone, "", "nothing to install, and no reboot is needed")
			}
			if _, err := cordonIn(ctx, d.tx, d.ServerID, d.RequestedBy, cmp.Or(d.Why, string(d.Kind))); err != nil {
				return err
			}
			if stays, err := values[string](ctx, d.tx, sqlTenantsStay, d.ServerID); err != nil || len(stays) > 0 && !d.KeepTenants {
				if err == nil {
					err = d.end(ctx, server.DrainFailed, server.DrainPatchRefused, fmt.Sprintf("%d tenants that cannot be moved came meanwhile", len(stays)))
				}
				return err
			}
		}
		d.status = server.DrainMoving
		if err := d.event(ctx, server.StepDrainStarted, "", fmt.Sprintf("%d instances and %d tenants to move", d.Total, d.TenantsTotal)); err != nil {
			return err
		}
	}
	return d.move(ctx, limits)
}

// move lets the next instances leave, and notices when none is there any more.
func (d *drainStep) move(ctx context.Context, limits server.DrainLimits) error {
	stuck, err := d.moveTenants(ctx, limits.Tenants)
	if err != nil {
		return err
	}
	limit := limits.Instances
	list, err := many[instance.DrainInstance](ctx, d.tx, sqlDrainInstancesOf, d.ServerID)
	if err != nil {
		return err
	}
	if d.left = len(list); d.left == 0 && d.stay == 0 {
		return d.empty(ctx)
	}
	state := instance.DrainState{Instances: list, Limit: limit, Elsewhere: map[prego.OrgID]int{}}
	orgs := make([]string, len(list))
	for i, v := range list {
		orgs[i] = string(v.OrgID)
	}
	elsewhere, err := many[struct {
		OrgID prego.OrgID
		N     int
	}](ctx, d.tx, sqlLeavingElsewhere, d.ServerID, orgs)
	if err != nil {
		return err
	}
	for _, o := range elsewhere {
		state.Elsewhere[o.OrgID] = o.N
	}
	leave := instance.PlanDrain(state)
	if len(leave) > 0 {
		if _, err := d.tx.Exec(ctx, sqlLetLeave, leave); err != nil {
			return err
		}
		if d.out.Groups, err = many[server.DrainedGroup](ctx, d.tx, sqlGroupsOfLeaving, leave); err != nil {
			return err
		}
	}
	wait := 0
	for _, i := range list {
		if !i.Leaving && !i.Going && !slices.Contains(leave, i.ID) {
			wait++
		}
	}
	if err := d.explain(ctx, wait, limit, stuck); err != nil {
		return err
	}
	if d.left < d.Left || d.stay < d.TenantsLeft {
		if err := d.event(ctx, server.StepDrainProgress, "", d.movedText()); err != nil {
			return err
		}
	}
	return d.progress(ctx)
}

// explain says what a drain waits for.
func (d *drainStep) explain(ctx context.Context, wait, limit int, tenant *drainedTenant) error {
	type why struct{ Reason, Message string }
	stuck, err := find[why](ctx, d.tx, sqlWhyNotMoved, d.ServerID)
	if err != nil {
		return err
	}
	d.text = d.movedText()
	switch {
	case stuck != nil:
		d.reason, d.text = stuck.Reason, d.text+"; no place for an instance of "+stuck.Message
	case tenant != nil && tenant.Fit:
		d.reason, d.text = tenant.Reason, fmt.Sprintf("%s; tenant %s was not moved: %s", d.text, tenant.TenantID, tenant.Message)
	case tenant != nil:
		d.reason, d.text = server.DrainTenantUnfit, fmt.Sprintf("%s; tenant %s is %s, and only a site in use is moved", d.text, tenant.TenantID, tenant.State)
	case wait > 0:
		d.reason, d.text = server.DrainOrgBudget, fmt.Sprintf("%s; %d wait: %d of an org are moved at once", d.text, wait, limit)
	}
	if d.reason != d.Reason && (stuck != nil || tenant != nil) {
		return d.event(ctx, server.StepDrainWaits, prego.Reason(d.reason), d.text)
	}
	return nil
}

func (d *drainStep) movedText() string {
	total, tenants := max(d.Total, d.left), max(d.TenantsTotal, d.stay)
	text := fmt.Sprintf("%d of %d instances moved", total-d.left, total)
	if tenants > 0 {
		text = fmt.Sprintf("%d of %d tenants and %d of %d instances moved", tenants-d.stay, tenants, total-d.left, total)
	}
	return text
}

// drainedTenant is a tenant of a server that is being emptied.
type drainedTenant struct {
	TenantID prego.TenantID
	OrgID    prego.OrgID
	Moving   bool // or being cleared away
	Fit      bool // it has a site in use
	State    string
	Reason   string // of its last move, if that failed
	Message  string
	Rests    bool
}

// moveTenants names the tenants whose moves are to begin, limit at once, and returns one that can't
// be moved now.
func (d *drainStep) moveTenants(ctx context.Context, limit int) (stuck *drainedTenant, err error) {
	if d.stay = 0; d.KeepTenants {
		return nil, nil //nolint:nilnil // nobody is to move
	}
	all, err := many[drainedTenant](ctx, d.tx, sqlDrainedTenants, d.ServerID, moveRest)
	if err != nil {
		return nil, err
	}
	d.stay = len(all)
	for _, t := range all {
		if t.Moving {
			limit--
		}
	}
	for i, t := range all {
		switch {
		case t.Moving:
		case !t.Fit || t.Rests:
			stuck = cmp.Or(stuck, &all[i])
		case limit > 0:
			limit--
			d.out.Tenants = append(d.out.Tenants, t.TenantID)
		}
	}
	return stuck, nil
}

// empty goes on with a server that has no instance any more.
func (d *drainStep) empty(ctx context.Context) error {
	if d.Role == prego.RoleEdge && !d.LeftDNS {
		d.out.Act, d.text = server.ActLeaveDNS, "its addresses leave the DNS"
		return d.progress(ctx)
	}
	if d.Kind == server.DrainOnly {
		return d.end(ctx, server.DrainDone, "", d.movedText())
	}
	if err := d.event(ctx, server.StepDrained, "", d.movedText()); err != nil {
		return err
	}
	d.status = server.DrainFinishing
	if d.Kind == server.DrainReplace {
		d.out.Act, d.text = server.ActDelete, "it is being deleted"
		return d.progress(ctx)
	}
	d.BootID = d.AgentBootID
	return d.reboot(ctx)
}

// patchWithin is how long a host may take to install what is missing, with all repetitions.
const patchWithin = 45 * time.Minute

// patch follows a host that installs security updates, and then its reboot if it needs one.
func (d *drainStep) patch(ctx context.Context) error {
	d.text = d.ToPatch + " are being installed"
	switch {
	case d.Refused != "":
		return d.end(ctx, server.DrainFailed, server.DrainPatchFailed, d.Refused)
	case d.PatchedAt == nil && d.PatchingAt != nil && d.Now.After(d.PatchingAt.Add(patchWithin)):
		return d.end(ctx, server.DrainFailed, server.DrainPatchFailed, "its host did not tell of an end within "+patchWithin.String())
	case d.PatchedAt == nil:
		d.out.Act = server.ActPatch
		return d.progress(ctx)
	case !d.needsReboot():
		return d.end(ctx, server.DrainDone, "", d.installedText()+"; no reboot was needed")
	}
	return d.restart(ctx)
}

func (d *drainStep) needsReboot() bool {
	return d.Patched != nil && !d.Patched.Now.RebootSince.IsZero()
}

func (d *drainStep) installedText() string {
	if d.Patched == nil || d.Patched.Installed == 0 {
		return "nothing was to be installed"
	}
	first := d.Patched.Packages[0]
	text := fmt.Sprintf("%d packages installed, %s %s among them", d.Patched.Installed, first.Name, first.To)
	if d.Patched.Installed == 1 {
		text = fmt.Sprintf("%s %s installed", first.Name, first.To)
	}
	return text
}

// resize follows a host that gets another type until its agent tells of another boot. What the
// provider refuses leaves it as it was.
func (d *drainStep) resize(ctx context.Context) error {
	d.text = "it is switched off and becomes a " + d.ServerType + ": a few minutes"
	switch {
	case d.HasType == d.ServerType && d.AgentBootID != d.BootID && d.Connected && d.ActedAt != nil:
		return d.end(ctx, server.DrainDone, "", fmt.Sprintf("it is a %s now, and was away for %s", d.ServerType, d.Now.Sub(*d.ActedAt).Round(time.Second)))
	case d.Refused != "":
		return d.end(ctx, server.DrainFailed, server.DrainResizeRefused, d.Refused)
	case d.ActedAt == nil:
		d.out.Act = server.ActResize
	case d.Now.After(d.ActedAt.Add(rebootWithin)):
		return d.end(ctx, server.DrainFailed, server.DrainRebootTimeout, "its agent was not heard of within "+rebootWithin.String())
	case d.HasType != d.ServerType && d.Now.After(d.ActedAt.Add(softReboot)):
		d.out.Act = server.ActResize // its step was lost; it goes on where that was
	}
	return d.progress(ctx)
}

// reboot follows a host until its agent tells of another boot than the one before.
func (d *drainStep) reboot(ctx context.Context) error {
	switch d.Kind {
	case server.DrainResize:
		return d.resize(ctx)
	case server.DrainPatch:
		return d.patch(ctx)
	case server.DrainOnly, server.DrainReboot, server.DrainReplace:
	}
	return d.restart(ctx)
}

func (d *drainStep) restart(ctx context.Context) error {
	d.text = "it is being rebooted"
	switch {
	case d.Kind == server.DrainPatch && d.AgentBootID != d.BootID && d.Connected && d.DockerState != "stopped" && d.ActedAt != nil:
		return d.end(ctx, server.DrainDone, "", fmt.Sprintf("%s; rebooted (%s), and away for %s", d.installedText(), d.Patched.Now.RebootFor, d.Now.Sub(*d.ActedAt).Round(time.Second)))
	case d.Kind != server.DrainPatch && d.AgentBootID != d.BootID && d.Connected:
		return d.end(ctx, server.DrainDone, "", "rebooted")
	case d.ActedAt == nil:
		d.out.Act = server.ActReboot
	case d.StartedAt != nil && d.Now.After(d.ActedAt.Add(rebootWithin)):
		return d.end(ctx, server.DrainFailed, server.DrainRebootTimeout, "its agent was not heard of within "+rebootWithin.String())
	case d.AgentBootID == d.BootID && d.Now.After(d.ActedAt.Add(softReboot)):
		d.out.Act, d.text = server.ActReset, "its host does not follow the button, and is reset"
	}
	return d.progress(ctx)
}

func (d *drainStep) progress(ctx context.Context) error {
	boot := any(nil)
	if (d.Kind == server.DrainReboot || d.Kind == server.DrainResize || d.Kind == server.DrainPatch) && d.status == server.DrainFinishing {
		boot = d.BootID
	}
	_, err := d.tx.Exec(ctx, sqlDrainProgress, d.ServerID, d.Number, d.status, d.reason, d.text, d.left, boot, d.stay)
	return err
}

// end closes a drain. What has not left stays, and is nobody's to replace; a server that
// is rebooted, or was not emptied after all because somebody changed their mind, is opened if the drain
// closed it.
func (d *drainStep) end(ctx context.Context, status server.DrainStatus, reason, text string) (err error) {
	d.status, d.reason, d.text = status, reason, text
	if status != server.DrainDone {
		if d.out.Groups, err = many[server.DrainedGroup](ctx, d.tx, sqlLetStay, d.ServerID); err != nil {
			return err
		}
		if d.out.Cancelled, err = values[prego.MoveID](ctx, d.tx, sqlLetTenantsStay, d.ServerID); err != nil {
			return err
		}
	}
	if _, err := d.tx.Exec(ctx, sqlEndDrain, d.ServerID, d.Number, status, reason, text, d.left, d.stay); err != nil {
		return err
	}
	step := map[server.DrainStatus]server.Step{server.DrainDone: server.StepDrained, server.DrainFailed: server.StepDrainFailed, server.DrainCancelled: server.StepDrainCancelled}[status]
	if d.Kind == server.DrainReboot && status == server.DrainDone {
		step = server.StepRebooted
	}
	if d.Kind == server.DrainResize && status == server.DrainDone {
		step = server.StepResized
	}
	if d.Kind == server.DrainPatch && status == server.DrainDone {
		step = server.StepPatched
	}
	if err := d.event(ctx, step, prego.Reason(reason), text); err != nil {
		return err
	}
	if reason == server.DrainPatchFailed && d.WasOpen {
		// Whoever sees that it is closed sees why.
		if _, err := cordonIn(ctx, d.tx, d.ServerID, d.RequestedBy, strings.ToValidUTF8(reason+": "+text[:min(len(text), 400)], "")); err != nil {
			return err
		}
	}
	opens := status == server.DrainCancelled && reason == "" || status == server.DrainDone && (d.Kind == server.DrainReboot || d.Kind == server.DrainResize || d.Kind == server.DrainPatch) || reason == server.DrainResizeRefused || reason == server.DrainPatchRefused
	if !opens || !d.WasOpen {
		return nil
	}
	srv, err := uncordonIn(ctx, d.tx, d.ServerID, d.RequestedBy)
	d.out.Opened = err == nil && srv.CordonedAt == nil
	return err
}

func (d *drainStep) event(ctx context.Context, step server.Step, reason prego.Reason, text string) error {
	return addEvent(ctx, d.tx, server.Event{ServerID: d.ServerID, Step: step, Reason: reason, Message: text, Actor: prego.ActorWorkflow}, "")
}

const sqlDrainLeftDNS = `UPDATE server_drains SET left_dns = true, updated_at = now() WHERE server_id = $1 AND finished_at IS NULL`

// DrainLeftDNS says that no resolver has the addresses of an edge any more.
func (s *Store) DrainLeftDNS(ctx context.Context, id prego.ServerID) error {
	return s.exec(ctx, "edge "+string(id), sqlDrainLeftDNS, id)
}

const sqlDrainActed = `UPDATE server_drains SET acted_at = CASE kind WHEN 'resize' THEN COALESCE(acted_at, now()) ELSE now() END, updated_at = now() WHERE server_id = $1 AND finished_at IS NULL AND status = 'finishing'`

// DrainActed says that the provider is asked to reboot a server now.
func (s *Store) DrainActed(ctx context.Context, id prego.ServerID) error {
	return s.exec(ctx, "reboot "+string(id), sqlDrainActed, id)
}

// A spec that names a type names the one that it has: a server that is made anew is like it.
const sqlResized = `
UPDATE servers SET server_type = $2, spec = CASE WHEN COALESCE(spec ->> 'server_type', '') <> '' THEN jsonb_set(spec, '{server_type}', to_jsonb($2::text)) ELSE spec END, updated_at = now()
WHERE server_id = $1 AND server_type <> $2`

// ServerResized records the type that the provider gave a server.
func (s *Store) ServerResized(ctx context.Context, id prego.ServerID, serverType string) error {
	return s.exec(ctx, "resize "+string(id), sqlResized, id, serverType)
}

const sqlResizeRefused = `UPDATE server_drains SET refused = $2, updated_at = now() WHERE server_id = $1 AND finished_at IS NULL AND kind = 'resize' AND status = 'finishing'`

// ResizeRefused records why the provider does not give a server its new type.
func (s *Store) ResizeRefused(ctx context.Context, id prego.ServerID, message string) error {
	return s.exec(ctx, "resize "+string(id), sqlResizeRefused, id, prego.Redact(message))
}

const (
	sqlPatchChecked  = `UPDATE server_drains SET checked_at = now(), to_patch = $2, refused = $3, updated_at = now() WHERE server_id = $1 AND finished_at IS NULL AND kind = 'patch' AND checked_at IS NULL`
	sqlPatchBegins   = `UPDATE server_drains SET patching_at = COALESCE(patching_at, now()), updated_at = now() WHERE server_id = $1 AND finished_at IS NULL AND kind = 'patch' AND status = 'finishing' AND patched_at IS NULL AND refused = ''`
	sqlServerPatched = `UPDATE server_drains SET patched_at = COALESCE(patched_at, now()), patched = COALESCE(patched, $2), updated_at = now() WHERE server_id = $1 AND finished_at IS NULL AND kind = 'patch' AND status = 'finishing' AND patched_at IS NULL`
)

// PatchChecked records what a host has told that is to be done, "" for nothing, or why it could not.
func (s *Store) PatchChecked(ctx context.Context, id prego.ServerID, todo, refused string) error {
	return s.exec(ctx, "patch "+string(id), sqlPatchChecked, id, todo, prego.Redact(refused))
}

// PatchBegins records that a host is told to install security updates; false if that has ended
// meanwhile.
func (s *Store) PatchBegins(ctx context.Context, id prego.ServerID) (bool, error) {
	ok, err := changed(ctx, s.pool, sqlPatchBegins, id)
	return ok, failed("patch "+string(id), err)
}

// ServerPatched records what a host has installed.
func (s *Store) ServerPatched(ctx context.Context, id prego.ServerID, done server.Patched) error {
	return s.exec(ctx, "patch "+string(id), sqlServerPatched, id, done)
}

const sqlPatchRefused = `UPDATE server_drains SET refused = $2, updated_at = now() WHERE server_id = $1 AND finished_at IS NULL AND kind = 'patch' AND status = 'finishing' AND patched_at IS NULL`

// PatchRefused records why a host has not installed security updates.
func (s *Store) PatchRefused(ctx context.Context, id prego.ServerID, message string) error {
	return s.exec(ctx, "patch "+string(id), sqlPatchRefused, id, prego.Redact(message))
}

const sqlReplaced = `
SELECT s.role, s.region, s.infra_provider, s.spec, s.tags, COALESCE(s.network_id, '') AS network_id, COALESCE(s.fleet_id, '') AS fleet_id, s.fleet_profile, COALESCE(s.plan_tier_lock, '') AS plan_tier_lock,
    s.server_type, s.location, d.number, d.requested_by
FROM server_drains d JOIN servers s ON s.server_id = d.server_id WHERE d.server_id = $1 AND d.finished_at IS NULL AND d.kind = 'replace' AND d.status = 'making' FOR NO KEY UPDATE OF d`

const sqlHasReplacement = `UPDATE server_drains SET replacement_id = $2, updated_at = now() WHERE server_id = $1 AND finished_at IS NULL`

// MakeReplacement asks for the server that takes a server's place: of its role, fleet, tags,
// location and network. Repeated, it meets its row; nil if nobody waits for one any more.
func (s *Store) MakeReplacement(ctx context.Context, id prego.ServerID) (made *server.Server, err error) {
	err = s.inTx(ctx, "replace "+string(id), func(tx pgx.Tx) error {
		old, err := find[struct {
			Role                 prego.Role
			Region               prego.Region
			InfraProvider        prego.InfraProviderID
			Spec                 server.Spec
			Tags                 []string
			NetworkID            prego.NetworkID
			FleetID              prego.FleetID
			FleetProfile         int
			PlanTierLock         prego.Plan
			ServerType, Location string
			Number               int
			RequestedBy          string
		}](ctx, tx, sqlReplaced, id)
		if err != nil || old == nil {
			return err
		}
		spec := old.Spec
		spec.Network, spec.Tags = old.NetworkID, old.Tags
		if old.NetworkID == "" {
			spec.Location = cmp.Or(spec.Location, old.Location)
		}
		srv, _, err := insertServerIn(ctx, tx, fleetServer(server.Wanted{
			ServerID: replacementID(id, old.Number), Role: old.Role, Region: old.Region, Provider: old.InfraProvider, Spec: spec,
			FleetID: old.FleetID, FleetProfile: old.FleetProfile, PlanTierLock: old.PlanTierLock,
		}, old.RequestedBy))
		if err != nil {
			return err
		}
		made = &srv
		_, err = tx.Exec(ctx, sqlHasReplacement, id, srv.ServerID)
		return err
	})
	return made, err
}

// replacementID is the id of the server that takes another one's place.
func replacementID(id prego.ServerID, number int) prego.ServerID {
	suffix := fmt.Sprintf("-r%d", number)
	base := string(id)
	if most := prego.MaxServerIDLen - len(suffix); len(base) > most {
		base = strings.TrimRight(base[:most], "-")
	}
	return prego.ServerID(base + suffix)
}
