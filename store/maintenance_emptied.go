package store

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

const (
	// softReboot is how long a host may take to follow the provider's button before it is
	// reset, rebootWithin how long in all until its agent is heard of.
	softReboot   = 2 * time.Minute
	rebootWithin = 15 * time.Minute
)

// resize follows a host that gets another type until its agent reports another boot. A refusal by
// the provider leaves it as it was.
func (d *maintenanceStep) resize(ctx context.Context) error {
	d.text = "it is switched off and becomes a " + d.ServerType + ": a few minutes"
	switch {
	case d.HasType == d.ServerType && d.AgentBootID != d.BootID && d.Connected && d.ActedAt != nil:
		return d.end(ctx, server.MaintenanceDone, "", fmt.Sprintf("it is a %s now, and was away for %s", d.ServerType, d.Now.Sub(*d.ActedAt).Round(time.Second)))
	case d.Refused != "":
		return d.end(ctx, server.MaintenanceFailed, server.MaintenanceResizeRefused, d.Refused)
	case d.ActedAt == nil:
		d.out.Act = server.ActResize
	case d.Now.After(d.ActedAt.Add(rebootWithin)):
		return d.end(ctx, server.MaintenanceFailed, server.MaintenanceRebootTimeout, "its agent was not heard of within "+rebootWithin.String())
	case d.HasType != d.ServerType && d.Now.After(d.ActedAt.Add(softReboot)):
		d.out.Act = server.ActResize // its step was lost; it continues from there
	}
	return d.progress(ctx)
}

// reboot follows a host until its agent reports another boot than the previous one.
func (d *maintenanceStep) reboot(ctx context.Context) error {
	switch d.Kind {
	case server.MaintenanceResize:
		return d.resize(ctx)
	case server.MaintenancePatch:
		return d.patch(ctx)
	case server.MaintenanceDrain, server.MaintenanceReboot, server.MaintenanceReplace:
	}
	return d.restart(ctx)
}

func (d *maintenanceStep) restart(ctx context.Context) error {
	d.text = "it is being rebooted"
	switch {
	case d.Kind == server.MaintenancePatch && d.AgentBootID != d.BootID && d.Connected && d.DockerState != "stopped" && d.ActedAt != nil:
		return d.end(ctx, server.MaintenanceDone, "", fmt.Sprintf("%s; rebooted (%s), and away for %s", d.installedText(), d.Patched.Now.RebootFor, d.Now.Sub(*d.ActedAt).Round(time.Second)))
	case d.Kind != server.MaintenancePatch && d.AgentBootID != d.BootID && d.Connected:
		return d.end(ctx, server.MaintenanceDone, "", "rebooted")
	case d.ActedAt == nil:
		d.out.Act = server.ActReboot
	case d.StartedAt != nil && d.Now.After(d.ActedAt.Add(rebootWithin)):
		return d.end(ctx, server.MaintenanceFailed, server.MaintenanceRebootTimeout, "its agent was not heard of within "+rebootWithin.String())
	case d.AgentBootID == d.BootID && d.Now.After(cmp.Or(d.ResetAt, d.ActedAt).Add(softReboot)):
		d.out.Act, d.text = server.ActReset, "its host does not follow the button, and is reset"
	}
	return d.progress(ctx)
}

const sqlMaintenanceLeftDNS = `UPDATE server_maintenances SET left_dns = true, updated_at = now() WHERE server_id = $1 AND finished_at IS NULL`

// MaintenanceLeftDNS records that no resolver has the addresses of an edge any more.
func (s *Store) MaintenanceLeftDNS(ctx context.Context, id prego.ServerID) error {
	return s.exec(ctx, "edge "+string(id), sqlMaintenanceLeftDNS, id)
}

// The time for a host to return counts from the first request: a dead one is reset every two minutes until then.
const sqlMaintenanceActed = `
UPDATE server_maintenances SET acted_at = COALESCE(acted_at, now()), reset_at = CASE WHEN acted_at IS NOT NULL THEN now() END, updated_at = now()
WHERE server_id = $1 AND finished_at IS NULL AND status = 'finishing'`

// MaintenanceActed records that the provider is asked to reboot a server now.
func (s *Store) MaintenanceActed(ctx context.Context, id prego.ServerID) error {
	return s.exec(ctx, "reboot "+string(id), sqlMaintenanceActed, id)
}

// A spec that names a type is updated to the server's type: a rebuilt server gets the same one.
const sqlResized = `
UPDATE servers SET server_type = $2, spec = CASE WHEN COALESCE(spec ->> 'server_type', '') <> '' THEN jsonb_set(spec, '{server_type}', to_jsonb($2::text)) ELSE spec END, updated_at = now()
WHERE server_id = $1 AND server_type <> $2`

// ServerResized records the type that the provider gave a server.
func (s *Store) ServerResized(ctx context.Context, id prego.ServerID, serverType string) error {
	return s.exec(ctx, "resize "+string(id), sqlResized, id, serverType)
}

const sqlResizeRefused = `UPDATE server_maintenances SET refused = $2, updated_at = now() WHERE server_id = $1 AND finished_at IS NULL AND kind = 'resize' AND status = 'finishing'`

// ResizeRefused records why the provider does not give a server its new type.
func (s *Store) ResizeRefused(ctx context.Context, id prego.ServerID, message string) error {
	return s.exec(ctx, "resize "+string(id), sqlResizeRefused, id, prego.Redact(message))
}

const sqlReplaced = `
SELECT s.role, s.region, s.infra_provider, s.spec, s.tags, COALESCE(s.network_id, '') AS network_id, COALESCE(s.fleet_id, '') AS fleet_id, s.fleet_profile, COALESCE(s.plan_tier_lock, '') AS plan_tier_lock,
    s.server_type, s.location, d.number, d.requested_by
FROM server_maintenances d JOIN servers s ON s.server_id = d.server_id WHERE d.server_id = $1 AND d.finished_at IS NULL AND d.kind = 'replace' AND d.status = 'making' FOR NO KEY UPDATE OF d`

const sqlHasReplacement = `UPDATE server_maintenances SET replacement_id = $2, updated_at = now() WHERE server_id = $1 AND finished_at IS NULL`

// MakeReplacement requests the server that takes a server's place: of its role, fleet, tags,
// location and network. Repeated, it returns its row; nil if no maintenance waits for one any more.
func (s *Store) MakeReplacement(ctx context.Context, id prego.ServerID) (made *server.Server, err error) {
	err = s.inTx(ctx, "replace "+string(id), func(tx *txn) error {
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
		tx.run(ctx, sqlHasReplacement, id, srv.ServerID)
		return nil
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

// Only what a maintenance can empty: with tenants that cannot be moved, or without storage through which they move
// ($4), the fleet waits for them instead.
const sqlEmptyFleetMember = `
INSERT INTO server_maintenances (server_id, number, kind, status, requested_by, was_open, by_fleet, total, left_now, deadline_at, keep_tenants, tenants_total, tenants_left, accepted)
SELECT s.server_id, COALESCE((SELECT max(number) FROM server_maintenances WHERE server_id = $1), 0) + 1, 'drain', 'waiting', $2, false, true, i.n, i.n, now() + make_interval(secs => $3), NOT $4, s.tenant_count, s.tenant_count,
    (SELECT a.accepted FROM fleet_action_steps t JOIN fleet_actions a USING (fleet_id, seq)
        WHERE t.server_id = $1 AND t.op = 'delete' AND t.state = 'planned' AND a.status = 'running')
FROM servers s CROSS JOIN (SELECT count(*)::int AS n FROM instances WHERE server_id = $1 AND state <> 'stopped') i
WHERE s.server_id = $1 AND s.status = 'active' AND s.cordoned_at IS NOT NULL AND s.dedicated_for_tenant_id IS NULL AND i.n + s.tenant_count > 0 AND ($4 OR s.tenant_count = 0)
  AND NOT EXISTS (` + sqlTenantsStay + `)
  AND NOT EXISTS (SELECT FROM db_shards d WHERE d.server_id = $1 AND d.current_tenant_count > 0) AND NOT EXISTS (SELECT FROM redis_pools r WHERE r.server_id = $1 AND r.current_tenants > 0)
  AND ` + notUpdating + `
  AND NOT EXISTS (SELECT FROM server_maintenances p WHERE p.server_id = $1 AND p.by_fleet AND p.requested_by = $2 AND p.status = 'failed') -- it had its time
ON CONFLICT DO NOTHING`

const sqlFleetMaintenanceLeft = `SELECT COALESCE(max(deadline_at) - now(), '0') FROM server_maintenances WHERE server_id = $1 AND by_fleet AND finished_at IS NULL`

// EmptyFleetMember empties a server that its fleet is about to remove, if only what can move is in
// the way: instances, and tenants if they move. It returns how much time that has left of within; 0 if
// nothing is under way or it failed before. begun is set if it began now.
func (s *Store) EmptyFleetMember(ctx context.Context, id prego.ServerID, by string, within time.Duration, tenantsMove bool) (left time.Duration, begun bool, err error) {
	err = s.inTx(ctx, "maintenance of "+string(id), func(tx *txn) error {
		if _, err := value[server.Status](ctx, tx, sqlHoldServerStatus, id); err != nil {
			return ifNoRows(err, nil)
		}
		if begun, err = changed(ctx, tx, sqlEmptyFleetMember, id, by, within.Seconds(), tenantsMove); err != nil {
			return err
		}
		if left, err = value[time.Duration](ctx, tx, sqlFleetMaintenanceLeft, id); err != nil || !begun {
			return err
		}
		return addEvent(ctx, tx, server.Event{ServerID: id, Step: server.StepMaintenanceRequested, Message: "by " + by, Actor: prego.ActorWorkflow}, "")
	})
	return max(0, left), begun, err
}

const sqlWhyOccupied = `
SELECT s.tenant_count AS tenants, (SELECT count(*)::int FROM (` + sqlTenantsStay + `) t) AS stay, COALESCE(s.dedicated_for_tenant_id, '') AS dedicated,
    COALESCE((SELECT d.reason || ': ' || d.message FROM server_maintenances d WHERE d.server_id = $1 AND d.by_fleet AND d.status = 'failed' AND d.requested_by = $2 ORDER BY d.number DESC LIMIT 1), '') AS failed
FROM servers s WHERE s.server_id = $1`

// WhyOccupied reports what keeps a server that its fleet is about to remove, to explain why it
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
UPDATE server_maintenances SET cancel_requested_at = COALESCE(cancel_requested_at, now()), updated_at = now() WHERE server_id = $1 AND by_fleet AND finished_at IS NULL`

// KeepFleetMember ends what EmptyFleetMember began: the fleet keeps the server.
func (s *Store) KeepFleetMember(ctx context.Context, id prego.ServerID) (ended bool, err error) {
	ended, err = changed(ctx, s.pool, sqlKeepFleetMember, id)
	return ended, failed("keep "+string(id), err)
}
