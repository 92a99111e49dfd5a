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
	"github.com/prego/prego/placement/instance"
	"github.com/prego/prego/server"
)

// Whoever has anything on a server (a shard and a pool have their server's id), or is not cleared
// away from it yet.
const sqlRemainingTenants = `
SELECT a.tenant_id, t.org_id, m.move_id IS NOT NULL AS moving, has_site(t.state) AS fit, t.state,
    COALESCE(f.reason, '') AS reason, COALESCE(f.message, '') AS message, COALESCE(f.finished_at > now() - make_interval(secs => $2), false) AS rests
FROM tenant_allocations a JOIN tenants t ON t.tenant_id = a.tenant_id
LEFT JOIN tenant_moves m ON m.tenant_id = a.tenant_id AND m.finished_at IS NULL
LEFT JOIN LATERAL (SELECT state, reason, message, finished_at FROM tenant_moves WHERE tenant_id = a.tenant_id AND $1 IN (from_server_id, from_shard_id, from_pool_id) ORDER BY created_at DESC LIMIT 1) f ON f.state = 'failed'
WHERE (a.app_server_id = $1 OR a.db_shard_id = $1 OR a.redis_pool_id = $1) AND a.released_at IS NULL
UNION ALL SELECT tenant_id, org_id, true, true, '', '', '', false FROM tenant_moves
WHERE state = 'switched' AND (moves_server AND from_server_id = $1 OR moves_shard AND from_shard_id = $1 OR moves_pool AND from_pool_id = $1)
ORDER BY 1`

// moveRest is how long a tenant whose move failed is left alone by a maintenance, in seconds.
const moveRest = 30

const sqlLetTenantsStay = `
UPDATE tenant_moves SET cancel_requested_at = COALESCE(cancel_requested_at, now()), updated_at = now()
WHERE maintenance_of = $1 AND state IN ('queued', 'copying', 'frozen') RETURNING move_id`

// One at a time: the limits hold over all maintenances.
const sqlOneMaintenance = `SELECT pg_advisory_xact_lock(hashtextextended('prego/maintenances', 0))`

const sqlMaintenanceNow = `
SELECT ` + maintenanceColumns + `, s.role, s.region, s.status AS server_status, s.agent_status = 'connected' AS connected, s.agent_boot_id, COALESCE(d.boot_id, '') AS boot_id, d.left_dns, d.by_fleet, d.refused, s.server_type AS has_type, d.checked_at, d.to_patch, d.patching_at, d.patched_at, s.docker_state, d.accepted,
    COALESCE(s.fleet_id, '') AS fleet_id, COALESCE(r.status, '') AS made, COALESCE(r.status_message, '') AS made_message, clock_timestamp() AS now, d.acted_at, d.reset_at
FROM server_maintenances d JOIN servers s ON s.server_id = d.server_id LEFT JOIN servers r ON r.server_id = d.replacement_id
WHERE d.server_id = $1 AND d.finished_at IS NULL FOR NO KEY UPDATE OF d`

// Maintenances of the same fleet; servers in none are a fleet by region and role.
const sqlFleetMaintenances = `
SELECT count(*)::int FROM server_maintenances d JOIN servers s ON s.server_id = d.server_id
WHERE d.finished_at IS NULL AND d.status IN ('moving', 'finishing') AND d.server_id <> $1
  AND COALESCE(s.fleet_id, '') = $2 AND ($2 <> '' OR s.role = $3 AND s.region = $4)`

const sqlMaintenanceInstances = `
SELECT instance_id AS id, number, group_id, org_id, leaving, state IN ('draining', 'failed') AS going FROM instances WHERE server_id = $1 AND state <> 'stopped' ORDER BY number`

const sqlLeavingElsewhere = `
SELECT org_id, count(*)::int AS n FROM instances WHERE leaving AND state IN ('booting', 'running') AND server_id <> $1 AND org_id = ANY ($2) GROUP BY 1`

const sqlLetLeave = `UPDATE instances SET leaving = true WHERE instance_id = ANY ($1) AND state IN ('booting', 'running')`

// A group without a rollout forgets that its quota had no room for one more instance: there
// may be room now.
const sqlGroupsOfLeaving = `
UPDATE process_groups g SET converged = false, updated_at = now(),
    no_surge = no_surge AND deploy_status IN ('draining_first', 'stopping_first'), surge_limit = CASE WHEN deploy_status = 'rolling' THEN surge_limit END
WHERE group_id IN (SELECT group_id FROM instances WHERE instance_id = ANY ($1)) RETURNING group_id, org_id`

const sqlLetStay = `
WITH stays AS (UPDATE instances SET leaving = false WHERE server_id = $1 AND leaving AND state IN ('booting', 'running') RETURNING group_id)
UPDATE process_groups g SET converged = false, updated_at = now() WHERE group_id IN (SELECT group_id FROM stays) RETURNING group_id, org_id`

// Instances that have left, and whose groups have no place for a replacement yet.
const sqlNotReplaced = `
SELECT COALESCE(sum(LEAST(x.gone, g.replicas - h.n)), 0)::int
FROM (SELECT group_id, count(*) AS gone FROM instances
    WHERE server_id = $1 AND leaving AND state = 'stopped' AND stopped_at >= $2 GROUP BY group_id) x
JOIN process_groups g ON g.group_id = x.group_id AND g.deleted_at IS NULL
CROSS JOIN LATERAL (
    SELECT count(*) AS n FROM instances i WHERE i.group_id = g.group_id AND i.state IN ('booting', 'running')) h
WHERE g.replicas > h.n`

const sqlMaintenanceProgress = `
UPDATE server_maintenances SET status = $3, reason = $4, message = $5, total = GREATEST(total, $6), left_now = $6, updated_at = now(),
    started_at = CASE WHEN $3 IN ('moving', 'finishing') THEN COALESCE(started_at, now()) END, boot_id = COALESCE(boot_id, $7),
    tenants_total = GREATEST(tenants_total, $8), tenants_left = $8 WHERE server_id = $1 AND number = $2`

const sqlEndMaintenance = `
UPDATE server_maintenances SET status = $3, reason = $4, message = $5, left_now = $6, tenants_left = $7, finished_at = now(), updated_at = now() WHERE server_id = $1 AND number = $2 AND finished_at IS NULL`

const sqlOtherMaintenances = `SELECT 'server-maintenance/' || server_id FROM server_maintenances WHERE finished_at IS NULL AND server_id <> $1 ORDER BY server_id`

const sqlWhyNotMoved = `
SELECT g.status_reason AS reason, g.group_id || ': ' || g.status_message AS message FROM process_groups g
WHERE g.status = 'unschedulable' AND g.wanted > 0 AND EXISTS (SELECT FROM instances i WHERE i.group_id = g.group_id AND i.server_id = $1 AND i.leaving AND i.state <> 'stopped')
ORDER BY g.group_id LIMIT 1`

// maintenanceRow is a maintenance with the input of its next step.
type maintenanceRow struct {
	server.Maintenance
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
	ToPatch      string // the work that its host reported
	PatchingAt   *time.Time
	PatchedAt    *time.Time
	DockerState  string
	Accepted     *impact.Impact
	Now          time.Time
	ActedAt      *time.Time
	ResetAt      *time.Time
}

// maintenanceStep is a step under way.
type maintenanceStep struct {
	maintenanceRow
	tx     *txn
	out    server.MaintenanceStep
	status server.MaintenanceStatus
	reason string
	text   string
	left   int
	gone   int // instances that have left without a replacement
	stay   int // tenants that are still there
}

// StepMaintenance decides the next step for a server that is being emptied, and applies steps that only
// concern rows. Repeating it returns the remaining steps. If nothing is under way it returns
// the maintenance that ended last.
func (s *Store) StepMaintenance(ctx context.Context, id prego.ServerID, limits server.MaintenanceLimits) (out server.MaintenanceStep, err error) {
	err = s.inTx(ctx, "maintenance of "+string(id), func(tx *txn) error {
		tx.run(ctx, sqlOneMaintenance)
		d := findIn[maintenanceRow](ctx, tx, sqlMaintenanceNow, id)
		if d == nil {
			last, err := find[server.Maintenance](ctx, tx, sqlLastMaintenance, id)
			if err == nil && last == nil {
				err = prego.Errorf(prego.CodeMaintenanceNotFound, "server %s never had maintenance", id)
			}
			if err == nil {
				out = server.MaintenanceStep{Status: last.Status, Kind: last.Kind, Message: last.Message}
			}
			return err
		}
		st := &maintenanceStep{maintenanceRow: *d, tx: tx, status: d.Status, left: d.Left, stay: d.TenantsLeft, out: server.MaintenanceStep{Kind: d.Kind, Role: d.Role, Region: d.Region}}
		st.gone = valueIn[int](ctx, tx, sqlNotReplaced, id, d.CreatedAt)
		if err := st.take(ctx, limits); err != nil {
			return err
		}
		if st.status.Ended() && st.Wave != "" {
			tx.run(ctx, sqlWaveMaintenanceEnded, id, st.Number)
		}
		st.out.Status, st.out.Message = st.status, st.text
		if st.status.Ended() || st.left < d.Left || st.stay < d.TenantsLeft {
			st.out.Runs = valuesIn[string](ctx, tx, sqlOtherMaintenances, id)
		}
		out = st.out
		return nil
	})
	return out, err
}

func (d *maintenanceStep) take(ctx context.Context, limits server.MaintenanceLimits) error {
	switch gone := d.ServerStatus == server.Decommissioning || d.ServerStatus == server.Terminated; {
	case d.Status == server.MaintenanceFinishing && d.Kind == server.MaintenanceReplace:
		if d.ServerStatus == server.Terminated {
			return d.end(ctx, server.MaintenanceDone, "", "replaced by "+string(d.ReplacementID))
		}
		d.out.Act = server.ActDelete
		return d.progress(ctx)
	case gone && d.ByFleet:
		return d.end(ctx, server.MaintenanceDone, "", d.movedText())
	case gone:
		return d.end(ctx, server.MaintenanceCancelled, server.MaintenanceServerGone, "the server is "+string(d.ServerStatus))
	case d.Status == server.MaintenanceFinishing:
		return d.reboot(ctx)
	case d.CancelRequestedAt != nil:
		return d.end(ctx, server.MaintenanceCancelled, "", d.movedText())
	case d.DeadlineAt != nil && !d.Now.Before(*d.DeadlineAt):
		return d.end(ctx, server.MaintenanceFailed, server.MaintenanceTimeout, d.movedText()+"; "+cmp.Or(d.Message, "the time for it is over"))
	}
	if d.status == server.MaintenanceMaking {
		switch d.Made {
		case server.Active:
			d.status = server.MaintenanceWaiting
		case "":
			d.out.Act = server.ActMake
			d.text = "its replacement is being made"
			return d.progress(ctx)
		case server.Provisioning:
			d.text = "its replacement " + string(d.ReplacementID) + " is being made"
			return d.progress(ctx)
		case server.Failed, server.Decommissioning, server.Terminated:
			return d.end(ctx, server.MaintenanceFailed, server.MaintenanceReplacementFailed, fmt.Sprintf("%s is %s: %s", d.ReplacementID, d.Made, d.MadeMessage))
		}
	}
	if d.status == server.MaintenanceWaiting {
		others, err := value[int](ctx, d.tx, sqlFleetMaintenances, d.ServerID, d.FleetID, d.Role, d.Region)
		if err != nil {
			return err
		}
		if others >= limits.Servers {
			d.reason, d.text = server.MaintenanceFleetBudget, fmt.Sprintf("%d other servers of its fleet are being emptied, and the limit is %d", others, limits.Servers)
			return d.progress(ctx)
		}
		if d.Kind == server.MaintenancePatch {
			if begins, err := d.beginPatch(ctx); err != nil || !begins {
				return err
			}
		}
	}
	if grew, err := d.beyondAccepted(ctx); err != nil || grew {
		return err
	}
	if d.status == server.MaintenanceWaiting {
		d.status = server.MaintenanceMoving
		if err := d.event(ctx, server.StepMaintenanceStarted, "", fmt.Sprintf("%d instances and %d tenants to move", d.Total, d.TenantsTotal)); err != nil {
			return err
		}
	}
	return d.move(ctx, limits)
}

// beyondAccepted holds a maintenance that would now interrupt more than its caller accepted: nothing more leaves, and
// the host is neither rebooted nor deleted, until that is accepted, or is no longer so.
func (d *maintenanceStep) beyondAccepted(ctx context.Context) (bool, error) {
	if d.Accepted == nil {
		return false, nil
	}
	of := keptTenants(d.Kind, d.KeepTenants)
	now := impactOf(ctx, d.tx, impact.Impact{}, sqlOnServers, []prego.ServerID{d.ServerID}, of)
	more := now.Beyond(*d.Accepted)
	if d.tx.err != nil || more.Class == impact.None {
		return false, d.tx.err
	}
	d.reason = server.MaintenanceImpactGrew
	d.text = fmt.Sprintf("it now also %s; it was accepted that it %s", more.Summary(), d.Accepted.Summary())
	if d.reason != d.Reason {
		if err := d.event(ctx, server.StepMaintenanceWaits, prego.Reason(d.reason), d.text); err != nil {
			return true, err
		}
	}
	return true, d.progress(ctx)
}

// move lets the next instances leave, and notices when none is there any more.
func (d *maintenanceStep) move(ctx context.Context, limits server.MaintenanceLimits) error {
	stuck, err := d.moveTenants(ctx, limits.Tenants)
	if err != nil {
		return err
	}
	limit := limits.Instances
	list, err := many[instance.DrainInstance](ctx, d.tx, sqlMaintenanceInstances, d.ServerID)
	if err != nil {
		return err
	}
	// Nothing can be stopped on a host that is silent or without dockerd: a reboot that waited for that
	// would never come, though it is the remedy.
	helpless := d.Kind == server.MaintenanceReboot && (!d.Connected || d.DockerState == "stopped")
	if d.left = len(list); d.stay == 0 && (d.left == 0 || helpless) {
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
		if d.out.Groups, err = many[server.MaintenanceGroup](ctx, d.tx, sqlGroupsOfLeaving, leave); err != nil {
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
		if err := d.event(ctx, server.StepMaintenanceProgress, "", d.movedText()); err != nil {
			return err
		}
	}
	return d.progress(ctx)
}

// explain records what a maintenance waits for.
func (d *maintenanceStep) explain(ctx context.Context, wait, limit int, tenant *remainingTenant) error {
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
		d.reason, d.text = server.MaintenanceTenantUnfit, fmt.Sprintf("%s; tenant %s is %s, and only a site in use is moved", d.text, tenant.TenantID, tenant.State)
	case wait > 0:
		d.reason, d.text = server.MaintenanceOrgBudget, fmt.Sprintf("%s; %d wait: an org has at most %d moved concurrently", d.text, wait, limit)
	}
	if d.reason != d.Reason && (stuck != nil || tenant != nil) {
		return d.event(ctx, server.StepMaintenanceWaits, prego.Reason(d.reason), d.text)
	}
	return nil
}

func (d *maintenanceStep) movedText() string {
	total, tenants := max(d.Total, d.left), max(d.TenantsTotal, d.stay)
	moved := max(0, total-d.left-d.gone)
	text := fmt.Sprintf("%d of %d instances moved", moved, total)
	if tenants > 0 {
		text = fmt.Sprintf("%d of %d tenants and %d of %d instances moved", tenants-d.stay, tenants, moved, total)
	}
	return text
}

// remainingTenant is a tenant of a server that is being emptied.
type remainingTenant struct {
	TenantID prego.TenantID
	OrgID    prego.OrgID
	Moving   bool // or being cleared away
	Fit      bool // it has a site in use
	State    string
	Reason   string // of its last move, if that failed
	Message  string
	Rests    bool
}

// moveTenants names up to limit tenants whose moves must start, and returns one tenant that can't
// be moved now.
func (d *maintenanceStep) moveTenants(ctx context.Context, limit int) (stuck *remainingTenant, err error) {
	if d.stay = 0; d.KeepTenants {
		return nil, nil //nolint:nilnil // no tenant moves
	}
	all, err := many[remainingTenant](ctx, d.tx, sqlRemainingTenants, d.ServerID, moveRest)
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

// empty continues with a server that has no instance any more.
func (d *maintenanceStep) empty(ctx context.Context) error {
	if d.Role == prego.RoleEdge && !d.LeftDNS {
		d.out.Act, d.text = server.ActLeaveDNS, "its addresses leave the DNS"
		return d.progress(ctx)
	}
	if d.Kind == server.MaintenanceDrain {
		return d.end(ctx, server.MaintenanceDone, "", d.movedText())
	}
	if err := d.event(ctx, server.StepDrained, "", d.movedText()); err != nil {
		return err
	}
	d.status = server.MaintenanceFinishing
	if d.Kind == server.MaintenanceReplace {
		d.out.Act, d.text = server.ActDelete, "it is being deleted"
		return d.progress(ctx)
	}
	d.BootID = d.AgentBootID
	return d.reboot(ctx)
}

func (d *maintenanceStep) progress(ctx context.Context) error {
	boot := any(nil)
	if (d.Kind == server.MaintenanceReboot || d.Kind == server.MaintenanceResize || d.Kind == server.MaintenancePatch) && d.status == server.MaintenanceFinishing {
		boot = d.BootID
	}
	_, err := d.tx.Exec(ctx, sqlMaintenanceProgress, d.ServerID, d.Number, d.status, d.reason, d.text, d.left, boot, d.stay)
	return err
}

// end closes a maintenance. The remaining instances stay, and are no longer replaced; a server that
// is rebooted, or was not emptied after all because the request was withdrawn, is opened if the maintenance
// closed it.
func (d *maintenanceStep) end(ctx context.Context, status server.MaintenanceStatus, reason, text string) (err error) {
	d.status, d.reason, d.text = status, reason, text
	if status != server.MaintenanceDone {
		if d.out.Groups, err = many[server.MaintenanceGroup](ctx, d.tx, sqlLetStay, d.ServerID); err != nil {
			return err
		}
		if d.out.Cancelled, err = values[prego.MoveID](ctx, d.tx, sqlLetTenantsStay, d.ServerID); err != nil {
			return err
		}
	}
	if _, err := d.tx.Exec(ctx, sqlEndMaintenance, d.ServerID, d.Number, status, reason, text, d.left, d.stay); err != nil {
		return err
	}
	step := map[server.MaintenanceStatus]server.Step{server.MaintenanceDone: server.StepDrained, server.MaintenanceFailed: server.StepMaintenanceFailed, server.MaintenanceCancelled: server.StepMaintenanceCancelled}[status]
	if d.Kind == server.MaintenanceReboot && status == server.MaintenanceDone {
		step = server.StepRebooted
	}
	if d.Kind == server.MaintenanceResize && status == server.MaintenanceDone {
		step = server.StepResized
	}
	if d.Kind == server.MaintenancePatch && status == server.MaintenanceDone {
		step = server.StepPatched
	}
	if err := d.event(ctx, step, prego.Reason(reason), text); err != nil {
		return err
	}
	if reason == server.MaintenancePatchFailed && d.WasOpen {
		// Whoever sees that it is closed sees why.
		if _, err := cordonIn(ctx, d.tx, d.ServerID, d.RequestedBy, strings.ToValidUTF8(reason+": "+text[:min(len(text), 400)], "")); err != nil {
			return err
		}
	}
	opens := status == server.MaintenanceCancelled && reason == "" || status == server.MaintenanceDone && (d.Kind == server.MaintenanceReboot || d.Kind == server.MaintenanceResize || d.Kind == server.MaintenancePatch) || reason == server.MaintenanceResizeRefused || reason == server.MaintenancePatchRefused
	if !opens || !d.WasOpen {
		return nil
	}
	srv, err := uncordonIn(ctx, d.tx, d.ServerID, d.RequestedBy)
	d.out.Opened = err == nil && srv.CordonedAt == nil
	return err
}

func (d *maintenanceStep) event(ctx context.Context, step server.Step, reason prego.Reason, text string) error {
	return addEvent(ctx, d.tx, server.Event{ServerID: d.ServerID, Step: step, Reason: reason, Message: text, Actor: prego.ActorWorkflow}, "")
}
