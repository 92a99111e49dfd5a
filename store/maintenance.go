package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
)

const maintenanceColumns = `d.server_id, d.number, d.kind, d.status, d.reason, d.message, d.why, d.requested_by, d.keep_tenants, d.server_type, d.was_open, d.total, d.left_now AS "left", d.tenants_total, d.tenants_left, d.patched, COALESCE(d.wave_id, '') AS wave,
    d.deadline_at, COALESCE(d.replacement_id, '') AS replacement_id, d.cancel_requested_at, d.created_at, d.started_at, d.finished_at`

const sqlHoldServerStatus = `SELECT status FROM servers WHERE server_id = $1 FOR NO KEY UPDATE`

const sqlOpenMaintenance = `SELECT ` + maintenanceColumns + ` FROM server_maintenances d WHERE server_id = $1 AND finished_at IS NULL`

// notUpdating holds for a server on which no release is being tried, once its row is locked: a
// release also locks it before it starts there.
const notUpdating = `NOT EXISTS (SELECT FROM stack_release_servers v WHERE v.server_id = $1 AND v.status IN ('updating', 'broken'))
  AND NOT EXISTS (SELECT FROM agent_release_servers v WHERE v.server_id = $1 AND v.status = 'offered')`

const sqlUpdatedBy = `
SELECT 'release ' || release AS what, status FROM stack_release_servers WHERE server_id = $1 AND status IN ('updating', 'broken')
UNION ALL SELECT 'release ' || version || ' of the agent', status FROM agent_release_servers WHERE server_id = $1 AND status = 'offered' LIMIT 1`

// Whoever has its data on an app server, which is in no private network.
const sqlTenantsStay = `
SELECT a.tenant_id FROM tenant_allocations a JOIN servers s ON s.server_id = a.app_server_id
WHERE a.released_at IS NULL AND s.role = 'app' AND NOT a.on_shard AND (a.app_server_id = $1 OR a.db_shard_id = $1) ORDER BY 1`

const sqlRequestMaintenance = `
INSERT INTO server_maintenances AS d (server_id, number, kind, status, why, requested_by, keep_tenants, was_open, deadline_at, server_type, wave_id, accepted, total, left_now, tenants_total, tenants_left)
SELECT $1, COALESCE((SELECT max(number) FROM server_maintenances WHERE server_id = $1), 0) + 1, $2, CASE $2 WHEN 'replace' THEN 'making' ELSE 'waiting' END, $3, $4, $5, $6,
    CASE WHEN $7 > 0 THEN now() + make_interval(secs => $7) END, $8, NULLIF($9, ''), $10::jsonb, n, n, moves, moves
FROM (SELECT count(*)::int AS n FROM instances WHERE server_id = $1 AND state <> 'stopped') i
CROSS JOIN (SELECT count(*)::int AS moves FROM tenant_allocations WHERE (app_server_id = $1 OR db_shard_id = $1 OR redis_pool_id = $1) AND released_at IS NULL AND NOT $5) a RETURNING ` + maintenanceColumns

// namedTenants is how many tenants a refusal names.
const namedTenants = 20

// RequestMaintenance accepts that a server is emptied, for any purpose, and closes it to
// newcomers. Repeating the request returns the maintenance in progress; another one is
// CodeInvalidTransition, and so is a server that is not active. A server with tenants that
// cannot be moved is CodeTenantsCannotMove, unless they are to stay.
func (s *Store) RequestMaintenance(ctx context.Context, id prego.ServerID, kind server.MaintenanceKind, r server.MaintenanceRequest, by string) (d server.Maintenance, err error) {
	err = s.inTx(ctx, fmt.Sprintf("%s %s", kind, id), func(tx *txn) error {
		status := valueOr[server.Status](ctx, tx, prego.Errorf(prego.CodeServerNotFound, "there is no server %q", id), sqlHoldServerStatus, id)
		open, err := find[server.Maintenance](ctx, tx, sqlOpenMaintenance, id)
		switch {
		case err != nil:
			return err
		case open != nil && open.Kind == kind && open.ServerType == r.ServerType && open.CancelRequestedAt == nil:
			d = *open
			if open.Reason != server.MaintenanceImpactGrew {
				tx.harmless(ctx)
				return nil
			}
			demandMaintenance(ctx, tx, got(serverIn(ctx, tx, id)).in(tx), kind, open.KeepTenants, open.ServerType)
			accepted := acceptedNow(ctx)
			d = oneIn[server.Maintenance](ctx, tx, sqlAcceptMaintenance, id, accepted)
			if accepted == nil {
				return nil
			}
			return addEvent(ctx, tx, server.Event{
				ServerID: id, Step: server.StepMaintenanceRequested, Actor: prego.ActorOperator,
				Message: fmt.Sprintf("%s accepted by %s: it %s", kind, by, accepted.Summary()),
			}, "")
		case open != nil:
			return prego.Errorf(prego.CodeInvalidTransition, "a %s of server %s is %s: let it end, or cancel it", open.Kind, id, open.Status)
		case status == server.Failed && kind == server.MaintenanceReboot && r.KeepTenants:
			// A silent host is reset: what is there may still be served, and comes back with it.
			if srv := got(serverIn(ctx, tx, id)).in(tx); srv.StatusReason != prego.ReasonHeartbeatLost {
				return prego.Errorf(prego.CodeInvalidTransition, "server %s is %s (%s): a reboot does not help it", id, status, srv.StatusReason)
			}
		case status != server.Active:
			return prego.Errorf(prego.CodeInvalidTransition, "server %s is %s; only an active one can be emptied", id, status)
		}
		if update, err := find[struct{ What, Status string }](ctx, tx, sqlUpdatedBy, id); err != nil {
			return err
		} else if update != nil {
			return prego.Errorf(prego.CodeServerUpdating, "%s is %s on server %s: let it end, or cancel it", update.What, update.Status, id)
		}
		before := got(serverIn(ctx, tx, id)).in(tx)
		if kind == server.MaintenanceResize && before.ServerType == r.ServerType {
			return prego.Errorf(prego.CodeInvalidTransition, "server %s is a %s already", id, r.ServerType)
		}
		// Closed first, so that earlier placements are seen. A patch closes it when its turn comes: a
		// whole fleet may be waiting, and its tenants need places.
		if kind != server.MaintenancePatch {
			got(cordonIn(ctx, tx, id, by, cmp.Or(r.Reason, string(kind)))).in(tx)
		}
		stay := valuesIn[string](ctx, tx, sqlTenantsStay, id)
		if len(stay) > 0 && !r.KeepTenants {
			return tenantsStay(id, kind, slices.Compact(stay))
		}
		if r.Wave != "" {
			tx.run(ctx, sqlMakeWave, r.Wave, by, r.Reason)
		}
		demandMaintenance(ctx, tx, before, kind, r.KeepTenants, r.ServerType)
		d = oneIn[server.Maintenance](ctx, tx, sqlRequestMaintenance, id, kind, r.Reason, by, r.KeepTenants, before.CordonedBy == "", r.TimeoutSeconds, r.ServerType, r.Wave, acceptedNow(ctx))
		text := fmt.Sprintf("%s, %d instances, %d tenants", byWhom(by, r.Reason), d.Total, d.TenantsTotal)
		return addEvent(ctx, tx, server.Event{ServerID: id, Step: server.StepMaintenanceRequested, Message: string(kind) + " " + text, Actor: prego.ActorOperator}, "")
	})
	return d, err
}

const sqlAcceptMaintenance = `
UPDATE server_maintenances d SET accepted = $2, reason = '', message = '', updated_at = now()
WHERE server_id = $1 AND finished_at IS NULL RETURNING ` + maintenanceColumns

// demandMaintenance demands the acceptance of what a maintenance interrupts now.
func demandMaintenance(
	ctx context.Context, tx *txn, s server.Server, kind server.MaintenanceKind, keepTenants bool, serverType string,
) {
	tenants := keptTenants(kind, keepTenants)
	i := impact.Impact{Undo: "cancel it: whatever has moved stays where it is", Seconds: tx.lasted(ctx, "move")}
	if tenants == impact.Interrupts {
		i.Seconds = tx.lasted(ctx, string(kind))
	}
	if kind == server.MaintenanceResize {
		i = tx.costsResize(ctx, s, serverType).of(i)
	}
	tx.demandsOf(ctx, i, string(s.ServerID), []prego.ServerID{s.ServerID}, tenants)
}

// keptTenants is what a maintenance does to the tenants of its server.
func keptTenants(kind server.MaintenanceKind, keepTenants bool) impact.Class {
	switch {
	case !keepTenants:
		return impact.Moves
	case kind == server.MaintenanceDrain:
		return impact.None
	default:
		return impact.Interrupts
	}
}

func tenantsStay(id prego.ServerID, kind server.MaintenanceKind, tenants []string) error {
	named := tenants
	more := ""
	if len(named) > namedTenants {
		named, more = named[:namedTenants], fmt.Sprintf(" and %d more", len(tenants)-namedTenants)
	}
	hint := "cordon it and wait until they are gone, or set keep_tenants, which leaves tenants where they are"
	if kind == server.MaintenanceReplace {
		hint = "cordon it and wait until they are gone"
	}
	return prego.Errorf(prego.CodeTenantsCannotMove, "%d tenants have their databases on server %s, which is in no private network, and cannot be moved: %s%s; %s", len(tenants), id, strings.Join(named, ", "), more, hint)
}

const sqlLastMaintenance = `SELECT ` + maintenanceColumns + ` FROM server_maintenances d WHERE server_id = $1 ORDER BY number DESC LIMIT 1`

// LastMaintenance is the newest maintenance of a server, or CodeMaintenanceNotFound.
func (s *Store) LastMaintenance(ctx context.Context, id prego.ServerID) (server.Maintenance, error) {
	d, err := find[server.Maintenance](ctx, s.pool, sqlLastMaintenance, id)
	switch {
	case err != nil:
		return server.Maintenance{}, failed("maintenance of "+string(id), err)
	case d == nil:
		if _, err := s.GetServer(ctx, id); err != nil {
			return server.Maintenance{}, err
		}
		return server.Maintenance{}, prego.Errorf(prego.CodeMaintenanceNotFound, "server %s never had maintenance", id)
	}
	return *d, nil
}

// An instance without a place to go has its group's reason.
const sqlRemainingInstances = `
SELECT i.instance_id, i.group_id, g.name AS group_name, i.org_id, i.state, i.leaving,
    g.no_surge OR EXISTS (SELECT FROM volume_attachments a WHERE a.group_id = g.group_id AND a.deleted_at IS NULL) AS stops_first,
    CASE WHEN i.leaving AND g.wanted > 0 THEN g.status_reason ELSE '' END AS reason, CASE WHEN i.leaving AND g.wanted > 0 THEN g.status_message ELSE '' END AS message
FROM instances i JOIN process_groups g ON g.group_id = i.group_id
WHERE i.server_id = $1 AND i.state <> 'stopped' ORDER BY g.name, i.group_id, i.number LIMIT 200`

// The tenants that the maintenance's next step finds there, with their moves.
const sqlNamedRemaining = `
SELECT r.tenant_id, t.slug, r.org_id, t.state, COALESCE(m.move_id, '') AS move_id, COALESCE(m.state, '') AS move_state,
    CASE WHEN m.move_id IS NOT NULL THEN m.reason WHEN r.fit THEN r.reason ELSE $3 END AS reason,
    CASE WHEN m.move_id IS NOT NULL THEN m.message WHEN r.fit THEN r.message
        ELSE 'only a site in use is moved' END AS message
FROM (` + sqlRemainingTenants + `) r JOIN tenants t ON t.tenant_id = r.tenant_id
LEFT JOIN tenant_moves m ON m.tenant_id = r.tenant_id AND m.finished_at IS NULL ORDER BY t.slug LIMIT 200`

// RemainingTenants are the tenants that are still on a server, at most 200.
func (s *Store) RemainingTenants(ctx context.Context, id prego.ServerID) ([]server.RemainingTenant, error) {
	return collect[server.RemainingTenant](ctx, s, "tenants to be moved from "+string(id),
		sqlNamedRemaining, id, moveRest, server.MaintenanceTenantUnfit)
}

// RemainingInstances are the instances that are still on a server, by group, at most 200.
func (s *Store) RemainingInstances(ctx context.Context, id prego.ServerID) ([]server.RemainingInstance, error) {
	return collect[server.RemainingInstance](ctx, s, "instances to be moved from "+string(id), sqlRemainingInstances, id)
}

const sqlCancelMaintenance = `
UPDATE server_maintenances d SET cancel_requested_at = COALESCE(cancel_requested_at, now()), updated_at = now()
WHERE server_id = $1 AND finished_at IS NULL AND status <> 'finishing' RETURNING ` + maintenanceColumns

// CancelMaintenance ends the maintenance in progress on a server: moved instances stay where they are, the
// rest stays on the server, and that is opened again if the maintenance closed it. A maintenance that
// already reboots or deletes its server, or that has ended otherwise, is CodeInvalidTransition.
func (s *Store) CancelMaintenance(ctx context.Context, id prego.ServerID) (server.Maintenance, error) {
	d, err := find[server.Maintenance](ctx, s.pool, sqlCancelMaintenance, id)
	if err != nil || d != nil {
		return deref(d), failed("cancel the maintenance of "+string(id), err)
	}
	last, err := s.LastMaintenance(ctx, id)
	if err != nil || last.Status == server.MaintenanceCancelled {
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

const sqlQuietMaintenances = `SELECT server_id FROM server_maintenances WHERE finished_at IS NULL AND updated_at < now() - make_interval(secs => $1) ORDER BY md5(server_id || now()) LIMIT 200`

// QuietMaintenances are the servers whose maintenances may have lost their runs.
func (s *Store) QuietMaintenances(ctx context.Context, quiet time.Duration) ([]prego.ServerID, error) {
	return collectValues[prego.ServerID](ctx, s, "maintenances", sqlQuietMaintenances, quiet.Seconds())
}

// A maintenance that waits for others waits for its turn; with any other reason, or when it takes
// too long, it needs an operator.
const (
	maintenanceIsStuck  = `(d.reason NOT IN ('', 'fleet_budget', 'org_budget') OR d.created_at < now() - interval '6 hours')`
	sqlOpenMaintenances = `
SELECT kind, status, count(*)::int AS n, (count(*) FILTER (WHERE ` + maintenanceIsStuck + `))::int AS stuck FROM server_maintenances d WHERE finished_at IS NULL GROUP BY 1, 2`
)

// OpenMaintenances counts the maintenances that are under way.
func (s *Store) OpenMaintenances(ctx context.Context) ([]server.MaintenanceCount, error) {
	return collect[server.MaintenanceCount](ctx, s, "open maintenances", sqlOpenMaintenances)
}
