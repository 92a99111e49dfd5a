package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

const sqlFleetServerTraits = `
UPDATE servers SET dedicated_for_tenant_id = NULLIF($2, ''), warm_plan = NULLIF($3, ''), plan_tier_lock = NULLIF($4, ''),
    fleet_id = NULLIF($5, ''), fleet_profile = $6 WHERE server_id = $1`

// RequestFleetServer accepts a server that the control plane requests by itself,
// in one transaction with its purpose. Repeated, it returns its row.
func (s *Store) RequestFleetServer(ctx context.Context, f server.Wanted, by string) (server.Server, error) {
	if f.FleetID != "" {
		if member, err := memberIn(ctx, s.pool, f.ServerID, f.FleetID); err != nil || member {
			if err != nil {
				return server.Server{}, fmt.Errorf("request fleet server: %w", err)
			}
			return s.GetServer(ctx, f.ServerID)
		}
	}
	server, _, err := s.insertServer(ctx, fleetServer(f, by))
	return server, err
}

func fleetServer(f server.Wanted, by string) newServer {
	r := server.CreateRequest{ServerID: f.ServerID, Role: f.Role, Region: f.Region, InfraProvider: f.Provider, Spec: f.Spec}
	hash := r.Hash()
	return newServer{
		id: string(r.ServerID), hash: hash[:], role: r.Role, region: r.Region, provider: r.InfraProvider, spec: r.Spec, by: by,
		managedBy: prego.ManagedByWorkerDirect, purpose: server.PurposeAgentBootstrap, step: server.StepRequested, traits: &f,
	}
}

// The tenants short of a role, the servers on their way, and how full the fleet is. Servers
// that belong to a tenant or to a warm pool are not capacity for others, nor are cordoned
// ones, servers of fleets that do not serve tenants, servers without the tags of $5 or with one of $6.
const sqlShortOf = `
WITH serving AS (
    SELECT s.* FROM servers s LEFT JOIN fleets f ON f.fleet_id = s.fleet_id WHERE s.region = $1 AND s.role = $2 AND f.serves_tenants IS NOT FALSE
), reachable AS ( -- all, or those of network $11, with those that are in none yet if it is where tenants are to be that may be anywhere
    SELECT * FROM serving WHERE $11 = '' OR network_id = $11 OR network_id IS NULL AND $12
), members AS ( -- active ones of the shared fleet, what they have left by tier lock, and whether they measure as full
    SELECT '' AS lock, $3::int - tenant_count AS room, tenant_count = 0 AND NOT runs_instances(server_id) AS empty,
        COALESCE(memory_pct, 0) >= $4::float8 OR has_reached(cpu_pct, $7) OR has_reached(worker_slots_pct, $8) AS over FROM reachable
    WHERE $2 = 'app' AND status = 'active' AND cordoned_at IS NULL AND dedicated_for_tenant_id IS NULL
      AND tenant_count < $3::int AND tags_satisfy(tags, $5, $6)
    UNION ALL SELECT COALESCE(d.plan_tier_lock, ''), d.tenant_capacity - d.current_tenant_count, d.current_tenant_count = 0 AND NOT runs_instances(d.server_id),
        has_reached(s.db_disk_pct, $9)
    FROM db_shards d JOIN reachable s USING (server_id)
    WHERE $2 = 'db-shard' AND d.status = 'active' AND d.dedicated_for_tenant_id IS NULL AND d.current_tenant_count < d.tenant_capacity
    UNION ALL SELECT '', r.tenant_capacity - r.current_tenants, r.current_tenants = 0 AND NOT runs_instances(r.server_id), has_reached(s.redis_memory_pct, $10)
    FROM redis_pools r JOIN reachable s USING (server_id)
    WHERE $2 = 'redis-pool' AND r.status = 'active' AND r.dedicated_for_tenant_id IS NULL AND r.current_tenants < r.tenant_capacity
), room AS ( -- three that nobody is on and that measure as full count: one more of their kind would be so, too
    SELECT lock, room, empty FROM members WHERE NOT over OR empty AND (SELECT count(*) FROM members WHERE over AND empty) >= 3
)
SELECT
    COALESCE((SELECT jsonb_object_agg(plan, n) FROM (SELECT plan, count(*) AS n FROM tenants
        WHERE region = $1 AND waiting_since IS NOT NULL AND $2 = ANY (waiting_roles) GROUP BY plan) w), '{}'),
    (SELECT count(*) FROM tenants WHERE region = $1 AND waiting_since IS NOT NULL AND $2 = ANY (waiting_roles) AND plan = 'business' AND dedicated_redis),
    COALESCE((SELECT jsonb_object_agg(lock, n) FROM (SELECT COALESCE(plan_tier_lock, '') AS lock, count(*) AS n FROM reachable
        WHERE status = 'provisioning' AND cordoned_at IS NULL AND dedicated_for_tenant_id IS NULL AND warm_plan IS NULL
          AND tags_satisfy(tags, $5, $6) GROUP BY 1) f), '{}'),
    (SELECT count(*) FROM servers WHERE region = $1 AND role = $2 AND status <> 'terminated'),
    COALESCE(CASE $2
        WHEN 'app' THEN (SELECT 100.0 * sum(tenant_count) / NULLIF(count(*) * $3::int, 0) FROM serving WHERE status = 'active' AND cordoned_at IS NULL AND dedicated_for_tenant_id IS NULL)
        WHEN 'db-shard' THEN (SELECT 100.0 * sum(d.current_tenant_count) / sum(d.tenant_capacity) FROM db_shards d JOIN serving USING (server_id)
            WHERE d.status = 'active' AND d.dedicated_for_tenant_id IS NULL)
        ELSE (SELECT 100.0 * sum(r.current_tenants) / sum(r.tenant_capacity) FROM redis_pools r JOIN serving USING (server_id)
            WHERE r.status = 'active' AND r.dedicated_for_tenant_id IS NULL)
    END, 0)::float8,
    COALESCE((SELECT id FROM infra_providers WHERE enabled AND $1 = ANY (regions) ORDER BY id LIMIT 1), ''),
    (SELECT jsonb_object_agg(role, tenant_capacity) FROM capacity_defaults),
    COALESCE((SELECT jsonb_object_agg(lock, room) FROM (SELECT lock, sum(room) AS room FROM room GROUP BY lock) r), '{}'),
    (SELECT count(*) FROM room WHERE empty AND tier_lock_allows('enterprise', NULLIF(lock, '')))`

// ShortOf counts demand and supply of a role in a region (placement-policy §3).
func (s *Store) ShortOf(ctx context.Context, region prego.Region, role prego.Role, maxTenants int, memoryPctMax float64, m tenant.MeasuredLimits) (tenant.ShortOf, error) {
	return s.shortOf(ctx, region, role, maxTenants, memoryPctMax, m, prego.Constraint{}, "", true)
}

func (s *Store) shortOf(ctx context.Context, region prego.Region, role prego.Role, maxTenants int, memoryPctMax float64, m tenant.MeasuredLimits,
	c prego.Constraint, network prego.NetworkID, open bool,
) (tenant.ShortOf, error) {
	var o tenant.ShortOf
	err := s.pool.QueryRow(ctx, sqlShortOf, region, role, maxTenants, memoryPctMax, filled(c.Require), filled(c.Disallow),
		m.CPUPctMax, m.WorkerSlotsPctMax, m.DBDiskPctMax, m.RedisMemoryPctMax, network, open).
		Scan(&o.Waiting, &o.Dedicated, &o.InFlight, &o.Servers, &o.UsedPct, &o.Provider, &o.Capacities, &o.Room, &o.Empty)
	return o, failed(fmt.Sprintf("demand for %s in %s", role, region), err)
}

const sqlDemand = `
SELECT org_id AS org, require_tags AS require, disallow_tags AS disallow, COALESCE(waiting_network, '') AS network, plan,
    count(*) AS n, count(*) FILTER (WHERE plan = 'business' AND dedicated_redis) AS dedicated FROM tenants
WHERE region = $1 AND waiting_since IS NOT NULL AND $2 = ANY (waiting_roles) GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5`

// Demand is ShortOf for each constraint and private network that tenants wait with, first
// without any, in an order that repeats. Constraints are about app servers: a tenant
// short of another role is so without one. open is the network of servers for
// tenants that may be in any; nil means that servers are in no networks.
func (s *Store) Demand(ctx context.Context, region prego.Region, role prego.Role, maxTenants int, memoryPctMax float64, m tenant.MeasuredLimits,
	open func(context.Context, prego.InfraProviderID) (prego.NetworkID, error),
) ([]tenant.Demand, error) {
	o, err := s.ShortOf(ctx, region, role, maxTenants, memoryPctMax, m)
	if err != nil || role != prego.RoleApp && open == nil {
		return []tenant.Demand{{ShortOf: o}}, err
	}
	type waiting struct {
		Org               string
		Require, Disallow []string
		Network           prego.NetworkID
		Plan              prego.Plan
		N, Dedicated      int
	}
	all, err := collect[waiting](ctx, s, "demand", sqlDemand, region, role)
	if err != nil {
		return nil, err
	}
	orgs, anywhere := make([]string, len(all)), prego.NetworkID("")
	for i, w := range all {
		orgs[i] = w.Org
		if open != nil && w.Network == "" && anywhere == "" {
			if anywhere, err = open(ctx, o.Provider); err != nil {
				return nil, err
			}
		}
	}
	pools, err := s.PoolsOf(ctx, prego.IDs[prego.OrgID](orgs))
	if err != nil {
		return nil, err
	}
	o.Waiting, o.Dedicated = map[prego.Plan]int{}, 0
	out := []tenant.Demand{{ShortOf: o}}
	for _, w := range all {
		var c prego.Constraint
		if role == prego.RoleApp {
			c = prego.EffectiveConstraint(prego.Constraint{Require: w.Require, Disallow: w.Disallow}, pools[w.Org])
		}
		network := w.Network
		switch {
		case open == nil:
			network = ""
		case network == "":
			network = anywhere
		}
		i := slices.IndexFunc(out, func(d tenant.Demand) bool { return d.Constraint.Equal(c) && d.Network == network })
		if i < 0 {
			if o, err = s.shortOf(ctx, region, role, maxTenants, memoryPctMax, m, c, network, network == anywhere); err != nil {
				return nil, err
			}
			o.Waiting, o.Dedicated = map[prego.Plan]int{}, 0
			i, out = len(out), append(out, tenant.Demand{Constraint: c, Network: network, ShortOf: o})
		}
		out[i].Waiting[w.Plan] += w.N
		out[i].Dedicated += w.Dedicated
	}
	return out, nil
}

const sqlBeginScaling = `
INSERT INTO scaling_events (region, role, trigger, waiting, requested, server_ids, tier_locks, workflow_id, round, message, server_tags)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (workflow_id, round) DO NOTHING RETURNING event_id`

// BeginScaling records which servers will be requested. It is written before
// they are, so that a repeated step finds the first one's decision.
func (s *Store) BeginScaling(ctx context.Context, e tenant.ScalingRound) (tenant.ScalingRound, error) {
	err := s.pool.QueryRow(ctx, sqlBeginScaling, e.Region, e.Role, e.Trigger, e.Waiting, e.Requested, filled(e.ServerIDs), filled(e.TierLocks), e.WorkflowID, e.Round, e.Message, filled(e.Tags)).Scan(&e.EventID)
	if isNoRows(err) {
		return s.begunScaling(ctx, e)
	}
	return e, failed("scaling event", err)
}

// begunScaling is a round that another step began before this one.
func (s *Store) begunScaling(ctx context.Context, e tenant.ScalingRound) (tenant.ScalingRound, error) {
	found, ok, err := s.FindScaling(ctx, e.WorkflowID, e.Round)
	if err == nil && !ok {
		err = fmt.Errorf("scaling round %s of %s is gone", e.Round, e.WorkflowID)
	}
	return found, err
}

const sqlFindScaling = `SELECT event_id, waiting, server_ids, tier_locks, server_tags FROM scaling_events WHERE workflow_id = $1 AND round = $2`

// FindScaling is the round that a run began, if it did.
func (s *Store) FindScaling(ctx context.Context, workflowID, round string) (e tenant.ScalingRound, ok bool, err error) {
	e.WorkflowID, e.Round = workflowID, round
	err = s.pool.QueryRow(ctx, sqlFindScaling, workflowID, round).Scan(&e.EventID, &e.Waiting, &e.ServerIDs, &e.TierLocks, &e.Tags)
	if isNoRows(err) {
		return e, false, nil
	}
	return e, true, failed("scaling event", err)
}

const (
	scalingEnds = `scaling_events e SET finished_at = now(), message = CASE WHEN message = '' THEN $2 ELSE message || '; ' || $2 END,
    made = (SELECT count(*) FROM servers WHERE server_id = ANY (server_ids) AND active_at IS NOT NULL)
WHERE finished_at IS NULL AND `
	sqlFinishScaling = `UPDATE ` + scalingEnds + `event_id = $1`
	// Rounds whose runs were lost.
	sqlSettleScaling = `UPDATE ` + scalingEnds + `created_at < now() - make_interval(secs => $1) AND NOT EXISTS (
    SELECT FROM servers s WHERE s.server_id = ANY (e.server_ids) AND s.status = 'provisioning')`
)

// FinishScaling records how it went.
func (s *Store) FinishScaling(ctx context.Context, eventID int64, message string) error {
	if _, err := s.pool.Exec(ctx, sqlFinishScaling, eventID, prego.Redact(message)); err != nil {
		return fmt.Errorf("scaling event %d: %w", eventID, err)
	}
	return s.finishDemand(ctx, eventID)
}

// By plan, then by turns among the orgs, then by age: an org with many waiting
// tenants delays another's first by one tenant at most.
const (
	tenantTurns = `
    SELECT tenant_id, generation, region, waiting_since,
        CASE plan WHEN 'enterprise' THEN 1 WHEN 'business' THEN 2 WHEN 'starter' THEN 3 ELSE 4 END AS priority,
        row_number() OVER (PARTITION BY region, plan, org_id ORDER BY waiting_since, tenant_id) AS turn,
        hashtextextended(ROW(org_id, parent_org_id, plan, policy, data_residency, require_tags, disallow_tags,
            dedicated_redis,
            status_reason, waiting_roles, waiting_network)::text, 0) AS alike
    FROM tenants WHERE waiting_since IS NOT NULL AND state = 'provisioning' AND cancel_requested_at IS NULL`
	servedFirst = `w.priority, w.turn, w.waiting_since, w.tenant_id`
	sqlWaiting  = `SELECT tenant_id, generation, alike FROM (` + tenantTurns + ` AND region = $1) w ORDER BY
		` + servedFirst
)

const sqlOverdue = `
SELECT tenant_id, generation, plan FROM tenants WHERE waiting_since < now() - make_interval(secs => $1) AND state =
    'provisioning' LIMIT 1000`

// Overdue lists tenants that have waited for capacity for longer than they may.
func (s *Store) Overdue(ctx context.Context, wait time.Duration) ([]tenant.OverdueTenant, error) {
	return collect[tenant.OverdueTenant](ctx, s, "tenants that waited too long", sqlOverdue, wait.Seconds())
}

// Waiting lists the tenants that are short of capacity in a region, in the order of
// service.
func (s *Store) Waiting(ctx context.Context, region prego.Region) ([]tenant.WaitingTenant, error) {
	return collect[tenant.WaitingTenant](ctx, s, "waiting tenants", sqlWaiting, region)
}

// ServeRegion runs f as the only process that serves a region's queue; done is false
// when another process already does.
func (s *Store) ServeRegion(ctx context.Context, region prego.Region, f func(context.Context) error) (done bool, err error) {
	return s.exclusively(ctx, "prego/waiting/"+string(region), f)
}

// Each look has another order, which the clock decides, so that every tenant is checked eventually. A tenant that waits
// for capacity has no run, unless it has a server.
const sqlProvisionsToCheck = `
SELECT tenant_id, generation FROM tenants t WHERE state IN ('trial', 'provisioning') AND updated_at < now() -
    make_interval(secs => $1)
    AND (waiting_since IS NULL OR cancel_requested_at IS NOT NULL
        OR EXISTS (SELECT FROM servers s WHERE s.dedicated_for_tenant_id = t.tenant_id AND s.status <> 'terminated'))
ORDER BY md5(tenant_id || now()) LIMIT 200`

const sqlChangesToCheck = `
SELECT tenant_id FROM tenants WHERE (converged_state <> state) IS TRUE AND state NOT IN ('trial', 'provisioning') AND updated_at < now() - make_interval(secs => $1) ORDER BY md5(tenant_id || now()) LIMIT 200`

const sqlExpired = `SELECT tenant_id, generation FROM tenants WHERE deadline_at <= now() ORDER BY deadline_at LIMIT 200`

const sqlWaitingRegions = `SELECT DISTINCT region FROM tenants WHERE waiting_since IS NOT NULL ORDER BY 1`

const sqlAbandonedBuilds = `
UPDATE site_pool SET state = 'failed', reserved_until = NULL, reason = 'its build was given up', updated_at = now()
WHERE state = 'reserved' AND tenant_id IS NULL AND reserved_until < now()`

// A tenant's reservation whose time is over while the tenant no longer provisions
// is a leftover; one whose run is merely slow is prolonged.
const sqlProlongReservations = `
UPDATE site_pool p SET reserved_until = now() + make_interval(secs => $1), updated_at = now()
FROM tenants t WHERE p.state = 'reserved' AND p.tenant_id = t.tenant_id AND p.reserved_until < now() AND t.state IN ('trial', 'provisioning')`

const sqlLeftoverReservations = `
SELECT p.tenant_id FROM site_pool p JOIN tenants t ON t.tenant_id = p.tenant_id
WHERE p.state = 'reserved' AND p.reserved_until < now() AND t.state IN ('failed', 'data_purged')
UNION
SELECT a.tenant_id FROM tenant_allocations a JOIN tenants t ON t.tenant_id = a.tenant_id
WHERE a.released_at IS NULL AND t.state = 'failed' AND t.updated_at < now() - make_interval(secs => $1)`

// FindTenantWork looks for work without a run: lost runs, timers that
// ran out, tenants that wait. Rows younger than quiet are left to their own runs.
func (s *Store) FindTenantWork(ctx context.Context, quiet, reserveFor time.Duration) (tenant.Work, []string, error) {
	var w tenant.Work
	var leftovers []string
	b := &pgx.Batch{}
	queueRows(b, &w.Provisions, sqlProvisionsToCheck, quiet.Seconds())
	queueRows(b, &w.Expired, sqlExpired)
	queueValues(b, &w.Changes, sqlChangesToCheck, quiet.Seconds())
	queueValues(b, &w.Regions, sqlWaitingRegions)
	b.Queue(sqlAbandonedBuilds)
	b.Queue(sqlProlongReservations, reserveFor.Seconds())
	queueValues(b, &leftovers, sqlLeftoverReservations, quiet.Seconds())
	if err := s.pool.SendBatch(ctx, b).Close(); err != nil {
		return w, nil, fmt.Errorf("find tenants' work: %w", err)
	}
	return w, leftovers, nil
}
