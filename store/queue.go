package store

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/placement/instance"
	"github.com/prego/prego/server"
)

const sqlQueuedTenants = `
SELECT row_number() OVER (PARTITION BY w.region ORDER BY ` + servedFirst + `)::int AS position, w.tenant_id AS id, t.slug AS name, t.org_id, t.region, t.plan, t.waiting_since,
    t.status_reason AS code, t.status_message AS reason, t.waiting_roles AS missing_roles, '' AS own
FROM (` + tenantTurns + `) w JOIN tenants t ON t.tenant_id = w.tenant_id ORDER BY w.region, ` + servedFirst

// Tenants whose own servers wait for the provider's stock or quota. They are after the others of their region, which
// they do not delay.
const sqlQueuedForStock = `
SELECT row_number() OVER (PARTITION BY t.region ORDER BY s.created_at, t.tenant_id)::int AS position, t.tenant_id AS id, t.slug AS name,
    t.org_id, t.region, t.plan, s.created_at AS waiting_since, s.status_reason AS code,
    'its own server ' || s.server_id || ' waits for the provider''s stock or quota: ' || s.status_message AS reason,
    ARRAY[s.role] AS missing_roles, s.server_id AS own
FROM servers s JOIN tenants t ON t.tenant_id = s.dedicated_for_tenant_id
WHERE s.status = 'provisioning' AND s.status_reason = 'awaiting_capacity' AND t.state = 'provisioning'
    AND t.waiting_since IS NULL AND t.cancel_requested_at IS NULL
ORDER BY t.region, 1`

const sqlQueuedGroups = `
SELECT g.group_id, g.name, g.org_id, g.region, g.wanted, ` + groupTried + ` AS tried, ` + groupSince + ` AS since, ` + groupSize + ` AS size, g.status_reason AS code, g.status_message AS reason,
    COALESCE(` + groupIsDue + `, false) AS due
FROM process_groups g LEFT JOIN region_room r ON r.region = g.region WHERE g.wanted > 0 AND g.deleted_at IS NULL ORDER BY g.region, g.group_id`

// Servers that take tenants or instances when they are active. Servers dedicated to one tenant
// and warm ones serve no request in the queue.
const sqlComing = `
SELECT 'server' AS kind, s.server_id AS id, CASE WHEN s.status_reason = 'awaiting_capacity' THEN s.status_reason ELSE s.status END AS status, s.region, s.role,
    f.serves_tenants IS NOT FALSE AS tenants, COALESCE(f.workload_memory_bytes, 0) > 0 AS workloads, s.created_at AS requested_at,
    COALESCE(c.tenant_capacity, 0) AS room, s.status_reason = 'awaiting_capacity' AS stock
FROM servers s LEFT JOIN fleets f ON f.fleet_id = s.fleet_id LEFT JOIN capacity_defaults c ON c.role = s.role
WHERE s.status = 'provisioning' AND s.cordoned_at IS NULL AND s.dedicated_for_tenant_id IS NULL AND s.warm_plan IS NULL
UNION ALL
SELECT 'scale_out', e.workflow_id, 'running', e.region, e.role, true, false, e.created_at, COALESCE(c.tenant_capacity, 0) * (e.requested - m.n)::int, false
FROM scaling_events e LEFT JOIN capacity_defaults c ON c.role = e.role
CROSS JOIN LATERAL (SELECT count(*) AS n FROM servers s WHERE s.server_id = ANY (e.server_ids)) m
WHERE e.finished_at IS NULL AND e.created_at > now() - interval '1 hour' AND m.n < e.requested
UNION ALL
SELECT 'scale_out', a.fleet_id || '/' || a.seq, a.status, x.region, f.role, f.serves_tenants, f.workload_memory_bytes > 0, a.created_at, 0, false
FROM fleet_actions a JOIN fleets f ON f.fleet_id = a.fleet_id
CROSS JOIN LATERAL (SELECT jsonb_array_elements_text(a.inputs -> 'regions') AS region WHERE jsonb_typeof(a.inputs -> 'regions') = 'array') x
WHERE a.status IN ('queued', 'running') AND a.action = 'CLUSTER_SCALE_OUT'
  AND NOT EXISTS (SELECT FROM fleet_action_steps p JOIN servers s ON s.server_id = p.server_id WHERE p.fleet_id = a.fleet_id AND p.seq = a.seq AND p.op = 'create')
ORDER BY 1, 2`

const sqlUsual = `
SELECT region, role, count(*)::int AS servers, percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS p50, percentile_cont(0.95) WITHIN GROUP (ORDER BY seconds) AS p95
FROM (` + activated + `) s GROUP BY region, role`

const sqlLastRounds = `
SELECT DISTINCT ON (region, role) region, role, message FROM scaling_events
WHERE trigger = 'scale_out_required' AND created_at > now() - interval '1 day' ORDER BY region, role, event_id DESC`

// usualWithin is how far back servers are looked at to see how long they take.
const usualWithin = 30 * 24 * time.Hour

// Queue lists the requests that wait for capacity in all regions, in the order of service, and
// the servers on their way.
func (s *Store) Queue(ctx context.Context) (placement.Queue, error) {
	type tenantRow struct {
		Position     int
		ID, Name     string
		OrgID        prego.OrgID
		Region       prego.Region
		Plan         prego.Plan
		WaitingSince time.Time
		Code         prego.Reason
		Reason       string
		MissingRoles []prego.Role
		Own          string
	}
	var tenants, forStock []tenantRow
	var groups []queuedGroup
	q := placement.Queue{Target: server.ActivationTarget}
	b := &pgx.Batch{}
	b.Queue(`SELECT now()`).QueryRow(func(row pgx.Row) error { return row.Scan(&q.At) })
	queueRows(b, &tenants, sqlQueuedTenants)
	queueRows(b, &forStock, sqlQueuedForStock)
	queueRows(b, &groups, sqlQueuedGroups)
	queueRows(b, &q.Coming, sqlComing)
	queueRows(b, &q.Usual, sqlUsual, usualWithin.Seconds())
	queueRows(b, &q.Rounds, sqlLastRounds)
	// A customer's position is among the waiters of all orgs.
	if err := s.pool.SendBatch(whole(ctx), b).Close(); err != nil {
		return q, failed("queue", err)
	}
	next := inTurns(groups)
	for _, region := range prego.Regions() {
		served := 0
		for _, t := range slices.Concat(tenants, forStock) {
			if t.Region == region {
				var own *placement.Coming
				if t.Own == "" {
					served = t.Position
				} else {
					t.Position += served
					own = &placement.Coming{
						Kind: placement.ComingServer, ID: t.Own, Status: string(t.Code), Region: region, Role: t.MissingRoles[0],
						Tenants: true, RequestedAt: t.WaitingSince, Stock: true,
					}
				}
				q.Waiters = append(q.Waiters, placement.Waiter{
					Position: t.Position, Kind: placement.WaiterTenant, ID: t.ID, Name: t.Name, OrgID: t.OrgID, Region: region, Plan: t.Plan,
					WaitingSince: t.WaitingSince, Code: t.Code, Reason: t.Reason, MissingRoles: t.MissingRoles, Own: own,
				})
			}
		}
		for i, g := range next[region] {
			q.Waiters = append(q.Waiters, placement.Waiter{
				Position: i + 1, Kind: placement.WaiterGroup, ID: string(g.GroupID), Name: g.Name, OrgID: g.OrgID, Region: region, WaitingSince: g.Since, Code: g.Code, Reason: g.Reason,
			})
		}
	}
	if reach, ok := access.ReachOf(ctx); ok && !reach.Everywhere {
		q.Waiters = slices.DeleteFunc(q.Waiters, func(w placement.Waiter) bool { return !reach.Includes(w.OrgID) })
		q.Coming, q.Rounds = nil, nil
	}
	return q, nil
}

// Expectations are when tenants that wait for capacity may have their places. Unlike the queue, they name nothing that
// belongs to others.
func (s *Store) Expectations(ctx context.Context) (map[prego.TenantID]*time.Time, error) {
	q, err := s.Queue(whole(ctx))
	out := map[prego.TenantID]*time.Time{}
	for _, e := range q.Expect() {
		if e.Kind == placement.WaiterTenant {
			out[prego.TenantID(e.ID)] = e.ExpectedAt
		}
	}
	return out, err
}

type queuedGroup struct {
	instance.WaitingGroup
	Name   string
	Region prego.Region
	Code   prego.Reason
	Reason string
	Due    bool // it is tried in the next pass
}

// inTurns are groups by region in the order of passes: those tried
// in the next one first.
func inTurns(groups []queuedGroup) map[prego.Region][]queuedGroup {
	out := map[prego.Region][]queuedGroup{}
	for _, region := range prego.Regions() {
		for _, due := range []bool{true, false} {
			var rows []queuedGroup
			var waiting []instance.WaitingGroup
			for _, g := range groups {
				if g.Region == region && g.Due == due {
					rows, waiting = append(rows, g), append(waiting, g.WaitingGroup)
				}
			}
			seen := make([]bool, len(rows))
			for _, i := range instance.Turns(waiting, unitsOfAGroup, math.MaxInt) {
				if !seen[i] {
					seen[i], out[region] = true, append(out[region], rows[i])
				}
			}
		}
	}
	return out
}
