package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/placement/instance"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// The group, even if deleted: its instances must still be stopped.
const sqlPlanGroup = `
SELECT g.org_id, g.region, g.replicas, g.deleted_at IS NOT NULL AS deleted, g.release, g.stable_release AS stable, g.deploy_status AS deploy, g.no_surge,
    g.surge_limit,
    CASE WHEN g.status_reason LIKE 'org_quota_exceeded:%' THEN GREATEST(g.replicas - g.held, 0) ELSE 0 END AS short,
    g.rollout_policy AS policy, g.paused_at IS NOT NULL AS paused, g.failures, g.progress_at, g.next_attempt_at AS next, g.status_reason AS reason,
    g.status_message AS message, EXISTS (SELECT FROM rollouts r WHERE r.group_id = g.group_id AND r.number = g.last_rollout AND r.release = g.release AND r.outcome IN ('under_way', 'failed')) AS open,
    clock_timestamp() AS now
FROM process_groups g WHERE g.group_id = $1 FOR NO KEY UPDATE`

// leavingInstance: the platform moves instance i away from its server s.
const leavingInstance = `(s.status = 'draining' OR i.leaving OR kept_for_tenants(s.server_id))`

const sqlPlanInstances = `
SELECT i.instance_id AS id, i.number, i.release, i.state, s.status IN ('failed', 'terminated') AS lost,
    ` + leavingInstance + ` AS leaving, i.message,
    i.started_at IS NOT NULL AS started, i.healthy_by,
    COALESCE(CASE i.state WHEN 'draining' THEN i.drain_until - clock_timestamp() ELSE make_interval(secs => (i.spec ->> 'drain_seconds')::float8) END, '0') AS drain
FROM instances i JOIN servers s ON s.server_id = i.server_id WHERE i.group_id = $1 AND i.state <> 'stopped' ORDER BY i.number`

const sqlPlanExclusive = `SELECT EXISTS (SELECT FROM volume_attachments WHERE group_id = $1 AND deleted_at IS NULL)`

const sqlLoseInstances = `UPDATE instances SET state = 'failed', healthy = false, message = 'its server failed or is gone' WHERE instance_id = ANY ($1) AND state IN ('booting', 'running')`

// Clients of a healthy instance have its drain time to leave.
const sqlDrainInstances = `
UPDATE instances SET state = 'draining', healthy = false,
    drain_until = CASE state WHEN 'running' THEN now() + make_interval(secs => (spec ->> 'drain_seconds')::float8) END
WHERE instance_id = ANY ($1) AND state IN ('booting', 'running')`

// Crashed instances whose places must not be filled yet.
const sqlPlanBackoff = `
SELECT count(*)::int AS n, COALESCE(min(retry_at) - $3, '0') AS next FROM instances WHERE group_id = $1 AND release = $2 AND retry_at > $3 AND state = 'stopped'`

const sqlRollBackGroup = `
UPDATE process_groups SET spec = stable_spec, release = stable_release, memory_limit_bytes = (stable_spec ->> 'memory_limit_bytes')::bigint,
    cpu_request = (stable_spec ->> 'cpu_request')::float8, deploy_status = 'rolled_back', deploy_message = $2, deploy_reason = $3, wanted = 0, failures = 0, next_attempt_at = NULL,
    progress_at = now(), last_rollout = last_rollout + 1, updated_at = now() WHERE group_id = $1`

const sqlFailRollout = `UPDATE process_groups SET deploy_status = 'failed', deploy_message = $2, deploy_reason = $3, updated_at = now() WHERE group_id = $1`

const sqlProveGroup = `
UPDATE process_groups SET stable_spec = spec, stable_release = release, no_surge = false, surge_limit = NULL,
    deploy_reason = CASE deploy_status WHEN 'failed' THEN '' ELSE deploy_reason END, deploy_message = CASE deploy_status WHEN 'failed' THEN '' ELSE deploy_message END,
    deploy_status = CASE WHEN deploy_status IN ('rolling', 'draining_first', 'stopping_first', 'failed') THEN 'succeeded' ELSE deploy_status END, updated_at = now()
WHERE group_id = $1`

// A group without wants is short of nothing; a group that still has some keeps the reason. A converged group holds
// what it has.
const sqlPlannedGroup = `
UPDATE process_groups SET wanted = $2, surge = $3, converged = $4, updated_at = now(),
    held = CASE WHEN $4 THEN replicas ELSE held END,
    held_memory = CASE WHEN $4 THEN replicas * memory_limit_bytes ELSE held_memory END,
    held_cpu = CASE WHEN $4 THEN replicas * cpu_request::numeric ELSE held_cpu END,
    waiting_since = CASE WHEN $2 = 0 THEN NULL ELSE COALESCE(waiting_since, now()) END,
    status = CASE WHEN $5 THEN 'running' WHEN $4 THEN 'stopped' WHEN $2 > 0 AND status = 'unschedulable' THEN status ELSE 'pending' END,
    status_reason = CASE WHEN $4 OR ($2 = 0 AND status_reason NOT IN ('instance_failed', 'crash_loop')) THEN '' ELSE status_reason END,
    status_message = CASE WHEN $4 OR ($2 = 0 AND status_reason NOT IN ('instance_failed', 'crash_loop')) THEN '' ELSE status_message END
WHERE group_id = $1`

// maxAtOnce bounds how many instances one plan starts and stops.
const maxAtOnce = 50

type groupRow struct {
	instance.GroupState
	OrgID      prego.OrgID
	Region     prego.Region
	ProgressAt time.Time
	Next       *time.Time // attempt
	Reason     string
	Message    string
	Now        time.Time
	late       []string // instances that were not healthy in time, and the reasons that they report
	lateText   []string
	watch      time.Duration // until something is late or due for a retry; 0 for never
}

// look schedules another look at the group after some time.
func (g *groupRow) look(after time.Duration) {
	if after = max(after, time.Millisecond); g.watch == 0 || after < g.watch {
		g.watch = after
	}
}

// plannedInstance is a row of an instance that is not stopped.
type plannedInstance struct {
	instance.GroupInstance
	HealthyBy *time.Time
}

// take adds the group's instances. An instance past its deadline to be healthy has failed.
func (g *groupRow) take(rows []plannedInstance) {
	for _, i := range rows {
		if i.State == workload.InstanceBooting && i.Started && i.HealthyBy != nil {
			switch left := i.HealthyBy.Sub(g.Now); {
			case left <= 0 && !i.Lost:
				text := "it was not healthy in time"
				if i.Message != "" {
					text += ": " + i.Message
				}
				i.State, i.Message = workload.InstanceFailed, text
				g.late, g.lateText = append(g.late, i.ID), append(g.lateText, text)
			default:
				g.look(left)
			}
		}
		g.Instances = append(g.Instances, i.GroupInstance)
	}
}

// roundsWithoutPlace is how many retries a group that only waits for places skips: the region's waiting groups are
// tried together, and a group that gets a place is woken. Its own look is for a wake-up that was lost.
const roundsWithoutPlace = 20

// PlanGroup decides the next steps for a group, and applies those that only concern rows. Wait is at most retry, or
// roundsWithoutPlace times that while the group only waits for places. Repeating it returns the remaining steps.
func (s *Store) PlanGroup(ctx context.Context, id prego.GroupID, retry time.Duration) (p workload.GroupPlan, err error) {
	err = s.inTx(ctx, "plan process group", func(tx *txn) error {
		g, err := readGroup(ctx, tx, id)
		if err != nil {
			return err
		}
		steps := instance.ScheduleGroup(g.GroupState)
		b := &pgx.Batch{}
		if len(steps.Lose) > 0 {
			b.Queue(sqlLoseInstances, steps.Lose)
		}
		if len(steps.Drain) > 0 {
			b.Queue(sqlDrainInstances, steps.Drain)
		}
		rolledBack := steps.Failed != nil && steps.Failed.RollBack
		if steps.Failed != nil {
			g.fail(b, id, *steps.Failed)
		}
		if steps.Proven {
			b.Queue(sqlProveGroup, id)
			b.Queue(sqlEndRollout, id, workload.RolloutSucceeded, "", "")
		}
		if steps.Next > 0 {
			g.look(steps.Next)
		}
		running := g.Replicas - steps.Want // good enough for the status: booting instances are pending below
		full := steps.Settled && g.Replicas > 0 && !g.Deleted
		b.Queue(sqlPlannedGroup, id, steps.Want, steps.Surge, steps.Settled, full)
		tx.sendBatch(ctx, b)
		p = workload.GroupPlan{
			OrgID: g.OrgID, Region: g.Region, Boot: steps.Boot, Stop: steps.Stop, Settled: steps.Settled, Wait: retry, Late: len(g.late),
			Serve: steps.Want > 0 && (g.Next == nil || !g.Next.After(g.Now) || rolledBack),
		}
		switch {
		case rolledBack:
			p.Ended = workload.RolloutRolledBack
		case steps.Failed != nil:
			p.Ended = workload.RolloutFailed
		case steps.Proven && g.Open:
			p.Ended = workload.RolloutSucceeded
		}
		p.Boot, p.Stop = p.Boot[:min(len(p.Boot), maxAtOnce)], p.Stop[:min(len(p.Stop), maxAtOnce)]
		if steps.Want > 0 && len(steps.Boot)+len(steps.Stop)+steps.Booting == 0 { // places are missing, and nothing else
			p.Wait = roundsWithoutPlace * retry
		}
		if g.watch > 0 {
			p.Wait = min(p.Wait, g.watch)
		}
		waiting := got(s.turnsToBoot(ctx, tx, id, &p)).in(tx)
		p.Details = fmt.Sprintf("%d of %d replicas have a place, %d to allocate, %d booting, %d stopping", running, g.Replicas, steps.Want, steps.Booting, len(steps.Stop))
		if waiting > 0 {
			p.Details += fmt.Sprintf(", %d waiting for their turn", waiting)
		}
		if g.Reason != "" && steps.Want > 0 {
			p.Details += ": " + g.Reason
		}
		return nil
	})
	return p, err
}

const sqlInstancesWait = `UPDATE instances SET message = $2 WHERE instance_id = ANY ($1) AND state = 'booting' AND started_at IS NULL AND message <> $2`

// turnsToBoot keeps those instances in a plan that may be started now. The others record that they wait, and their
// group is woken when their turn comes.
func (s *Store) turnsToBoot(ctx context.Context, tx *txn, id prego.GroupID, p *workload.GroupPlan) (waiting int, err error) {
	if len(p.Boot) == 0 {
		return 0, nil
	}
	turn := got(s.beginWork(ctx, tx, org.LongWork{OrgID: p.OrgID, Kind: org.WorkStart, Run: workload.GroupWorkflowID(id), IDs: p.Boot})).in(tx)
	wait := slices.DeleteFunc(p.Boot, func(id string) bool { return slices.Contains(turn.Begun, id) })
	p.Boot, p.Wake = turn.Begun, turn.Wake
	if len(wait) == 0 {
		return 0, nil
	}
	_, err = tx.Exec(ctx, sqlInstancesWait, wait, org.WaitText(turn.Most))
	return len(wait), err
}

func readGroup(ctx context.Context, tx *txn, id prego.GroupID) (g groupRow, err error) {
	g = getIn[groupRow](ctx, tx, noSuchGroup(string(id)), sqlPlanGroup, id)
	g.Exclusive = valueIn[bool](ctx, tx, sqlPlanExclusive, id)
	rows := manyIn[plannedInstance](ctx, tx, sqlPlanInstances, id)
	g.take(rows)
	if len(g.late) > 0 {
		n, _, err := failInstances(ctx, tx, id, g.Release, g.late, g.lateText)
		if err != nil {
			return g, err
		}
		g.Failures += n
		g.Message = g.lateText[0]
	}
	pauses, err := one[struct {
		N    int
		Next time.Duration
	}](ctx, tx, sqlPlanBackoff, id, g.Release, g.Now)
	if g.Backoff = pauses.N; g.Backoff > 0 {
		g.look(pauses.Next)
	}
	if g.Open && g.Deploy.UnderWay() && g.Stable != g.Release && !g.Paused && g.Replicas > 0 {
		left := g.ProgressAt.Add(g.Policy.ProgressDeadline()).Sub(g.Now)
		if g.Overdue = left <= 0; !g.Overdue {
			g.look(left)
		}
	}
	return g, err
}

// fail records that the rollout failed, and goes back to the last good release if it should.
func (g groupRow) fail(b *pgx.Batch, id prego.GroupID, f instance.FailedRollout) {
	text := fmt.Sprintf("release %d did not become healthy", f.Release)
	if f.Reason == workload.ReasonProgressDeadline {
		text += fmt.Sprintf(": no instance more within %s", g.Policy.ProgressDeadline())
	} else {
		text += fmt.Sprintf(": %d instances failed, and %d may", g.Failures, g.Policy.MaxFailures)
	}
	if why := cmp.Or(f.Message, g.Message, g.Reason); why != "" {
		text += ": " + why
	}
	event, data := "group.rollout_failed", fmt.Sprintf(`{"release": %d, "reason": %q}`, f.Release, f.Reason)
	if !f.RollBack {
		b.Queue(sqlEndRollout, id, workload.RolloutFailed, f.Reason, text)
		b.Queue(sqlFailRollout, id, text, f.Reason)
	} else {
		event, data = "group.roll_back", fmt.Sprintf(`{"release": %d, "old_release": %d, "stable_release": %d, "reason": %q}`, g.Stable, f.Release, g.Stable, f.Reason)
		b.Queue(sqlEndRollout, id, workload.RolloutRolledBack, f.Reason, text)
		b.Queue(sqlRollBackGroup, id, text, f.Reason)
		queueRollout(b, id, workload.RolloutRollback, string(prego.ActorSystem), "")
	}
	b.Queue(sqlOrgEvent, g.OrgID, event, id, string(prego.ActorSystem), "", data)
}

// ServeInstances runs f as the only allocator of instances in a region; done is false when another allocator is
// running.
func (s *Store) ServeInstances(ctx context.Context, region prego.Region, f func(context.Context) error) (done bool, err error) {
	return s.exclusively(ctx, "prego/instances/"+string(region), f)
}

// One pass over an index sums up servers. The groups that they run are counted only for the groups to place.
const sqlInstanceServers = `
SELECT s.server_id, s.location, s.tags, s.status = 'active' AND s.agent_status = 'connected' AS active, s.cordoned_at IS NOT NULL AS cordoned, s.status = 'provisioning' AS coming,
    f.workload_memory_bytes AS memory_bytes, f.workload_cpus AS cpus, f.workload_disk_bytes AS disk_bytes, COALESCE(i.disk, 0)::bigint AS disk_used,
    (COALESCE(i.memory, 0) + COALESCE(i.n, 0) * (SELECT overhead_bytes_per_instance FROM workload_settings))::bigint AS memory_used, COALESCE(i.cpu, 0) AS cpu_requested,
    COALESCE((SELECT jsonb_object_agg(group_id, n) FROM (SELECT group_id, count(*) AS n FROM instances
        WHERE server_id = s.server_id AND state <> 'stopped' AND group_id = ANY ($2) GROUP BY group_id) g), '{}') AS groups,
    kept_for_tenants(s.server_id) AS kept, v.volumes, v.group_volumes
FROM servers s JOIN fleets f ON f.fleet_id = s.fleet_id
LEFT JOIN LATERAL (SELECT count(*) AS n, sum(memory_limit_bytes) AS memory, sum(cpu_request) AS cpu, sum(disk_request_bytes) AS disk FROM instances WHERE server_id = s.server_id AND state <> 'stopped') i ON true
CROSS JOIN LATERAL (SELECT COALESCE(sum(n), 0)::int AS volumes, COALESCE(jsonb_object_agg(group_id, n) FILTER (WHERE group_id = ANY ($2)), '{}') AS group_volumes
    FROM (SELECT group_id, count(DISTINCT volume_id) AS n FROM volumes_on(s.server_id) x GROUP BY group_id) y) v
WHERE s.region = $1 AND f.workload_memory_bytes > 0 AND s.status NOT IN ('terminated') ORDER BY s.server_id`

// InstanceServers returns the servers of a region that offer room to instances, with how many they run of each of
// these groups.
func (s *Store) InstanceServers(ctx context.Context, region prego.Region, groups []prego.GroupID) ([]instance.Server, error) {
	return collect[instance.Server](ctx, s, "servers for instances", sqlInstanceServers, region, prego.Strings(groups))
}

// What a group has: instances that the platform moves away are about to be replaced.
const groupHas = `(SELECT count(*) AS n, COALESCE(sum(i.memory_limit_bytes), 0)::bigint AS memory,
    COALESCE(sum(i.cpu_request::numeric), 0) AS cpu
    FROM instances i JOIN servers s ON s.server_id = i.server_id
    WHERE i.group_id = $1 AND i.state IN ('booting', 'running', 'failed') AND NOT ` + leavingInstance + `) h`

// more_…: another instance exceeds what the group holds.
const sqlAllocatingGroup = `
SELECT org_id, region, replicas, spec, wanted, last_instance AS last, surge AND h.n >= replicas AS surge,
    COALESCE(clock_timestamp() - waiting_since, '0') AS waited,
    h.n >= held AS more_instances, h.n >= held OR h.memory + memory_limit_bytes > held_memory AS more_memory,
    h.cpu + cpu_request::numeric > held_cpu AS more_cpu,
    (SELECT overhead_bytes_per_instance FROM workload_settings) AS overhead
FROM process_groups g CROSS JOIN ` + groupHas + ` WHERE group_id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE OF g`

// A server whose state is being changed is locked: another one is tried. The group's volumes and its org's pools may
// have changed since the decision.
const sqlAllocatingServer = `
SELECT f.workload_memory_bytes AS memory, f.workload_disk_bytes AS disk FROM servers s JOIN fleets f ON f.fleet_id = s.fleet_id
WHERE s.server_id = $1 AND s.region = $2 AND s.status = 'active' AND s.agent_status = 'connected' AND s.cordoned_at IS NULL
  AND NOT EXISTS (SELECT FROM volume_attachments a JOIN volumes v ON v.volume_id = a.volume_id WHERE a.group_id = $3 AND a.deleted_at IS NULL AND v.location <> s.location)
  AND NOT EXISTS (SELECT FROM unnest($4::text[]) AS p (path) WHERE NOT EXISTS (
      SELECT FROM volume_attachments a WHERE a.group_id = $3 AND a.deleted_at IS NULL AND a.mount_path = p.path))
  AND EXISTS (SELECT FROM process_groups g WHERE g.group_id = $3 AND tags_satisfy(s.tags, g.require_tags, g.disallow_tags)
      AND NOT EXISTS (SELECT FROM placement_pools_of(g.org_id) p WHERE NOT tags_satisfy(s.tags, p.require_tags, p.disallow_tags)))
FOR NO KEY UPDATE OF s SKIP LOCKED`

// A separate statement: dedicating a shard or pool, or attaching a volume for a backup, locks the row of its server,
// and so either precedes this or sees the instance.
const sqlServerTaken = `
SELECT kept_for_tenants($1) OR COALESCE($3 < (SELECT CASE WHEN count(*) FILTER (WHERE of = $2) > 0 THEN count(DISTINCT volume_id) END FROM (
        SELECT group_id AS of, volume_id FROM volumes_on($1) UNION SELECT group_id, volume_id FROM volume_attachments WHERE group_id = $2 AND deleted_at IS NULL) x), false),
    COALESCE(sum(memory_limit_bytes + (SELECT overhead_bytes_per_instance FROM workload_settings)), 0)::bigint, COALESCE(sum(disk_request_bytes), 0)::bigint,
    COALESCE((SELECT array_agg((p ->> 'host_port')::int) FROM instances j CROSS JOIN LATERAL jsonb_array_elements(j.ports) p WHERE j.server_id = $1 AND j.state <> 'stopped'), '{}')
FROM instances WHERE server_id = $1 AND state <> 'stopped'`

const sqlAllocate = `
WITH crashed AS (
    UPDATE instances SET retry_at = NULL WHERE instance_id = (
        SELECT i.instance_id FROM instances i JOIN process_groups g USING (group_id)
        WHERE i.group_id = $1 AND i.release = g.release AND i.retry_at <= now() AND i.state = 'stopped' ORDER BY i.retry_at LIMIT 1)
    RETURNING restarts
), made AS (
    INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request, number, spec, ports, state, restarts)
    SELECT $2, g.group_id, g.org_id, $3, g.release, g.memory_limit_bytes, g.cpu_request, $4, g.spec, $5, 'booting', COALESCE((SELECT restarts + 1 FROM crashed), 0)
    FROM process_groups g WHERE g.group_id = $1)
UPDATE process_groups SET wanted = wanted - 1, last_instance = $4,
    held = GREATEST(held, LEAST(h.n + 1, replicas)),
    held_memory = GREATEST(held_memory, LEAST(h.memory + memory_limit_bytes, replicas * memory_limit_bytes)),
    held_cpu = GREATEST(held_cpu, LEAST(h.cpu + cpu_request::numeric, replicas * cpu_request::numeric)), decision = $6, next_attempt_at = NULL, refused_usage = NULL,
    tried_at = now(), tries = 0, retry_at = NULL,
    status = 'pending', status_reason = CASE WHEN status_reason IN ('instance_failed', 'crash_loop') THEN status_reason ELSE '' END,
    status_message = CASE WHEN status_reason IN ('instance_failed', 'crash_loop') THEN status_message ELSE '' END,
    waiting_since = CASE WHEN wanted = 1 THEN NULL ELSE waiting_since END, updated_at = now()
FROM ` + groupHas + ` WHERE group_id = $1`

// A group refused by quota waits again from the time when it is allowed. Only the usage is kept, without promises on
// top, to compare it with later usage. A group that was changed since wants nothing until it is planned again.
const sqlRefuseQuota = `
UPDATE process_groups g SET status = 'unschedulable', status_reason = $2 || ':' || $5, status_message = $3, next_attempt_at = now() + make_interval(secs => $4),
    refused_usage = (SELECT u.used FROM org_used(g.org_id, ARRAY[$5]) u), waiting_since = now() + make_interval(secs => $4), tried_at = now(), updated_at = now()
WHERE g.group_id = $1 AND g.wanted > 0`

const sqlRefuseSurge = `
UPDATE process_groups SET no_surge = x.extra = 0, surge_limit = x.extra, wanted = 0, waiting_since = NULL, deploy_message = CASE x.extra WHEN 0 THEN $2 ELSE deploy_message END,
    deploy_status = CASE WHEN deploy_status = 'rolling' AND x.extra = 0 THEN 'draining_first' ELSE deploy_status END, updated_at = now()
FROM (SELECT GREATEST(0, count(i.*) - g.replicas)::int AS extra FROM process_groups g LEFT JOIN instances i ON i.group_id = g.group_id AND i.state <> 'stopped' WHERE g.group_id = $1 GROUP BY g.replicas) x
WHERE group_id = $1 AND wanted > 0`

// refusedAllocation undoes a refused allocation, before the refusal is written.
type refusedAllocation struct {
	over  *org.QuotaExceeded
	surge bool
}

func (*refusedAllocation) Error() string { return "refused by the org's quota" }

// The ports of servers that reach instances.
const (
	firstHostPort = 20_000
	lastHostPort  = 29_999
)

// Allocate places an instance. It locks its group, its org and the server and checks each
// again, so that neither the quota nor the server's memory is ever exceeded, even if the
// decision was made on stale data. A group that the quota rejects is retried after retry,
// or earlier if usage drops.
func (s *Store) Allocate(ctx context.Context, place workload.InstancePlace, retry time.Duration) (out workload.InstanceAllocation, err error) {
	err = s.inTx(ctx, string("allocate an instance of "+place.GroupID), func(tx *txn) error {
		out = got(s.allocate(ctx, tx, place)).in(tx)
		return nil
	})
	var refused *refusedAllocation
	if errors.As(err, &refused) {
		return s.refuseAllocation(ctx, place.GroupID, refused, retry)
	}
	return out, err
}

func (s *Store) allocate(ctx context.Context, tx *txn, place workload.InstancePlace) (out workload.InstanceAllocation, err error) {
	type group struct {
		OrgID            prego.OrgID
		Region           prego.Region
		Replicas, Wanted int
		Spec             workload.Spec
		Surge            bool
		Last, Overhead   int64
		Waited           time.Duration
		MoreInstances    bool
		MoreMemory       bool
		MoreCPU          bool
	}
	g := findIn[group](ctx, tx, sqlAllocatingGroup, place.GroupID)
	if g == nil || g.Wanted == 0 {
		return workload.InstanceAllocation{Outcome: workload.AllocationVoid}, nil
	}
	// The extra instance of a rollout must not take capacity promised to others. The replacement of what
	// the group holds takes nothing.
	check := s.takePromised
	if g.Surge {
		check = s.takeQuota
	}
	need := surgeOf(g.Spec, g.Overhead)
	for i, more := range []bool{g.MoreInstances, g.MoreMemory, g.MoreCPU} {
		if !more {
			need[i].By = 0
		}
	}
	if err := check(ctx, tx, g.OrgID, need...); err != nil {
		var over *org.QuotaExceeded
		if errors.As(err, &over) {
			return out, &refusedAllocation{over: over, surge: g.Surge && g.Replicas > 1}
		}
		return out, err
	}
	offered, err := one[struct{ Memory, Disk int64 }](ctx, tx, sqlAllocatingServer, place.ServerID, g.Region, place.GroupID, filled(g.Spec.Volumes))
	if isNoRows(err) {
		return workload.InstanceAllocation{Outcome: workload.AllocationLost}, nil
	}
	if err != nil {
		return out, err
	}
	var kept bool
	var taken, disk int64
	var used []int
	tx.check(tx.QueryRow(ctx, sqlServerTaken, place.ServerID, place.GroupID, server.MaxServerVolumes).Scan(&kept, &taken, &disk, &used))
	ports, ok := bindPorts(g.Spec.Ports, used)
	if kept || !ok || taken+g.Spec.MemoryLimitBytes+g.Overhead > offered.Memory || g.Spec.DiskRequestBytes > 0 && disk+g.Spec.DiskRequestBytes > offered.Disk {
		return workload.InstanceAllocation{Outcome: workload.AllocationLost}, nil
	}
	out = workload.InstanceAllocation{Outcome: workload.Allocated, InstanceID: prego.InstanceID(workload.NewInstanceID(place.GroupID, g.Last+1)), Waited: max(0, g.Waited)}
	_, err = tx.Exec(ctx, sqlAllocate, place.GroupID, out.InstanceID, place.ServerID, g.Last+1, ports, decided(place.Decision))
	return out, err
}

// bindPorts finds a free port of the server for each of an instance's.
func bindPorts(ports, used []int) ([]workload.PortBinding, bool) {
	taken := make(map[int]bool, len(used))
	for _, p := range used {
		taken[p] = true
	}
	out := make([]workload.PortBinding, 0, len(ports))
	next := firstHostPort
	for _, p := range ports {
		for taken[next] {
			next++
		}
		if next > lastHostPort {
			return nil, false
		}
		out = append(out, workload.PortBinding{ContainerPort: p, HostPort: next})
		next++
	}
	return out, true
}

func (s *Store) refuseAllocation(ctx context.Context, groupID prego.GroupID, r *refusedAllocation, retry time.Duration) (out workload.InstanceAllocation, err error) {
	out.Outcome = workload.AllocationQuota
	if r.surge {
		out.Outcome = workload.AllocationSurge
		_, err = s.pool.Exec(ctx, sqlRefuseSurge, groupID, drainFirstText(r.over))
	} else {
		_, err = s.pool.Exec(ctx, sqlRefuseQuota, groupID, workload.ReasonOrgQuota, r.over.Sentence(), retry.Seconds(), r.over.Dimension)
	}
	return out, failed(string("refuse an instance of "+groupID), err)
}

const sqlNoPlace = `
UPDATE process_groups SET status = 'unschedulable', status_reason = $2, status_message = $3, decision = COALESCE($4, decision), updated_at = now(),
    tried_at = $6, tried_release = release, tries = tries + 1, retry_at = now() + make_interval(secs => LEAST($5, 2 ^ LEAST(tries, 20)))
WHERE group_id = $1 AND wanted > 0`

// NoPlace records why there was no place for a group's instance at a time. Repeated failures delay the next try, up
// to retry.
func (s *Store) NoPlace(ctx context.Context, groupID prego.GroupID, reason, message string, decision json.RawMessage, at time.Time, retry time.Duration) error {
	return s.exec(ctx, string("no place for an instance of "+groupID), sqlNoPlace, groupID, reason, message, decided(decision), retry.Seconds(), at)
}

const sqlExplainNoPlace = `
UPDATE process_groups SET status = 'unschedulable', status_reason = $2, status_message = $3, updated_at = now() WHERE group_id = $1 AND wanted > 0`

// ExplainNoPlace adds to the reason why there was no place for a group's instance.
func (s *Store) ExplainNoPlace(ctx context.Context, groupID prego.GroupID, reason, message string) error {
	return s.exec(ctx, string("no place for an instance of "+groupID), sqlExplainNoPlace, groupID, reason, prego.Redact(message))
}

const sqlInstanceHost = `
SELECT ` + instanceColumns + `, s.region, s.host, s.role, s.status AS server_status, COALESCE(host(s.private_address), '') AS private,
    (SELECT g.env_id FROM process_groups g WHERE g.group_id = i.group_id) AS env_id,
    ARRAY(SELECT volume_host_path(v.provider_id) || ':' || a.mount_path FROM volume_attachments a JOIN volumes v ON v.volume_id = a.volume_id
        WHERE a.group_id = i.group_id AND a.deleted_at IS NULL AND v.provider_id IS NOT NULL ORDER BY a.mount_path) AS binds,
    EXISTS (SELECT FROM server_maintenances d WHERE d.server_id = i.server_id AND d.finished_at IS NULL) AS drained
FROM instances i JOIN servers s ON s.server_id = i.server_id WHERE i.instance_id = $1`

// InstanceHost reads an instance with its server, or CodeInstanceNotFound.
func (s *Store) InstanceHost(ctx context.Context, id string) (workload.InstanceHost, error) {
	return get[workload.InstanceHost](ctx, s.pool, noSuchInstance(id), sqlInstanceHost, id)
}

const sqlHoldGroup = `SELECT g.group_id, g.release FROM process_groups g JOIN instances i ON i.group_id = g.group_id WHERE i.instance_id = $1 FOR NO KEY UPDATE OF g`

const sqlInstanceRunning = `
UPDATE instances SET state = 'running', healthy = true, message = '', running_at = now(), started_at = COALESCE(started_at, now()) WHERE instance_id = $1 AND state = 'booting'`

const sqlGroupRan = `
UPDATE process_groups SET progress_at = CASE release WHEN (SELECT i.release FROM instances i WHERE i.instance_id = $2) THEN now() ELSE progress_at END,
    status_reason = CASE status_reason WHEN 'instance_failed' THEN '' ELSE status_reason END,
    status_message = CASE status_reason WHEN 'instance_failed' THEN '' ELSE status_message END WHERE group_id = $1`

// InstanceRunning records that an instance is healthy; false when it must not run any more.
func (s *Store) InstanceRunning(ctx context.Context, id string) (ok bool, err error) {
	return s.changeInstance(ctx, id, sqlInstanceRunning, []any{id}, func(tx *txn, group prego.GroupID) error {
		tx.run(ctx, sqlGroupRan, group, id)
		return nil
	})
}

// An instance that became healthy before its start was recorded is not booting any more, and keeps the health that
// its agent reported.
const sqlInstanceStarted = `
UPDATE instances SET started_at = now(), healthy_by = now() + make_interval(secs => $2), message = CASE WHEN message LIKE 'waits for its turn%' OR message LIKE 'not started yet: %' THEN '' ELSE message END
WHERE instance_id = $1 AND state = 'booting' AND started_at IS NULL`

// InstanceStarted records that an instance's container runs, and how soon it must be healthy; false when it must not
// be started any more, or already was.
func (s *Store) InstanceStarted(ctx context.Context, id string, within time.Duration) (ok bool, err error) {
	return s.changeInstance(ctx, id, sqlInstanceStarted, []any{id, within.Seconds()}, func(*txn, prego.GroupID) error { return nil })
}

// InstanceRetries records why an instance's container could not be started yet, while that is tried again.
func (s *Store) InstanceRetries(ctx context.Context, id, why string) error {
	return s.exec(ctx, "instance "+id, sqlInstancesWait, []string{id}, "not started yet: "+prego.Redact(why))
}

// An instance that ran for long did not crash in a row with its predecessors. Each further crash delays the
// replacement.
const sqlFailInstances = `
UPDATE instances i SET state = 'failed', healthy = false, message = f.message, restarts = CASE WHEN i.running_at < now() - $3::interval THEN 0 ELSE i.restarts END,
    retry_at = now() + LEAST(make_interval(secs => 2 ^ CASE WHEN i.running_at < now() - $3::interval THEN 0 ELSE LEAST(i.restarts, 20) END), $4::interval)
FROM unnest($1::text[], $2::text[]) AS f (instance_id, message) WHERE i.instance_id = f.instance_id AND i.state IN ('booting', 'running')
RETURNING i.release, i.restarts + 1 AS crashes`

const sqlGroupFailed = `
UPDATE process_groups SET failures = failures + $2, refused_usage = NULL, converged = false, status_reason = $3, status_message = $4, updated_at = now()
WHERE group_id = $1`

const (
	// maxBackoff bounds how long the place of a repeatedly crashing instance stays empty.
	maxBackoff = 5 * time.Minute
	// crashesForgotten is how long an instance must have run for its crash not to count as one more in a row.
	crashesForgotten = 10 * time.Minute
	// crashLoop is how many crashes in a row are a crash loop.
	crashLoop = 3
)

// failInstances makes instances of a locked group fail. It returns how many of them were of the wanted release, and
// how many in all.
func failInstances(ctx context.Context, tx *txn, group prego.GroupID, release int, ids, messages []string) (ofRelease, all int, err error) {
	failed, err := many[struct{ Release, Crashes int }](ctx, tx, sqlFailInstances, ids, messages, crashesForgotten, maxBackoff)
	if err != nil || len(failed) == 0 {
		return 0, 0, err
	}
	reason := workload.ReasonInstanceFailed
	for _, f := range failed {
		if f.Release == release {
			ofRelease++
		}
		if f.Crashes >= crashLoop {
			reason = workload.ReasonCrashLoop
		}
	}
	_, err = tx.Exec(ctx, sqlGroupFailed, group, ofRelease, reason, cmp.Or(messages[0], "an instance failed"))
	return ofRelease, len(failed), err
}

// InstanceFailed records that an instance failed, and why; false when it must not run any more. Repeated failures
// delay its replacement.
func (s *Store) InstanceFailed(ctx context.Context, id, message string) (ok bool, err error) {
	err = s.inTx(ctx, "instance "+id, func(tx *txn) error {
		group, release, err := holdGroup(ctx, tx, id)
		if err != nil {
			return err
		}
		_, n, err := failInstances(ctx, tx, group, release, []string{id}, []string{prego.Redact(message)})
		ok = n > 0
		return err
	})
	return ok, err
}

// holdGroup locks the group of an instance.
func holdGroup(ctx context.Context, tx *txn, id string) (group prego.GroupID, release int, err error) {
	err = tx.QueryRow(ctx, sqlHoldGroup, id).Scan(&group, &release)
	return group, release, ifNoRows(err, noSuchInstance(id))
}

const sqlInstanceStopped = `
UPDATE instances SET state = 'stopped', healthy = false, stopped_at = now() WHERE instance_id = $1 AND state IN ('draining', 'failed')`

// InstanceStopped records that an instance's container is gone: it no longer counts.
func (s *Store) InstanceStopped(ctx context.Context, id string) (ok bool, err error) {
	return s.changeInstance(ctx, id, sqlInstanceStopped, []any{id}, func(*txn, prego.GroupID) error { return nil })
}

// changeInstance changes an instance and its group under the group's lock, as plans do.
func (s *Store) changeInstance(ctx context.Context, id, sql string, args []any, then func(tx *txn, group prego.GroupID) error) (ok bool, err error) {
	err = s.inTx(ctx, "instance "+id, func(tx *txn) error {
		group, _, err := holdGroup(ctx, tx, id)
		if err != nil {
			return err
		}
		if ok, err = changed(ctx, tx, sql, args...); err != nil || !ok {
			return err
		}
		return then(tx, group)
	})
	return ok, err
}

// Groups that wait for capacity in a region, in the order of service.
const sqlWaitingGroups = `
SELECT group_id, org_id FROM (
    SELECT group_id, org_id, waiting_since, row_number() OVER (PARTITION BY org_id ORDER BY waiting_since, group_id) AS turn
    FROM process_groups WHERE region = $1 AND wanted > 0 AND deleted_at IS NULL) w
ORDER BY turn, waiting_since, group_id LIMIT 200`

// WaitingGroups returns the groups that wait for capacity in a region, in their order.
func (s *Store) WaitingGroups(ctx context.Context, region prego.Region) ([]workload.GroupRef, error) {
	return collect[workload.GroupRef](ctx, s, "waiting process groups", sqlWaitingGroups, region)
}

// Each look has another order, which the clock decides, so that every group is checked eventually.
const sqlOpenGroups = `
SELECT group_id, org_id FROM process_groups WHERE NOT converged AND updated_at < now() - make_interval(secs => $1) ORDER BY md5(group_id || now()) LIMIT 200`

const sqlMovedGroups = `
UPDATE process_groups g SET converged = false WHERE g.converged AND EXISTS (
    SELECT FROM instances i JOIN servers s ON s.server_id = i.server_id WHERE i.group_id = g.group_id AND i.state <> 'stopped' AND (s.status <> 'active' OR i.leaving))
RETURNING group_id, org_id`

const sqlServersOfInstances = `
SELECT s.server_id FROM servers s JOIN fleets f ON f.fleet_id = s.fleet_id WHERE s.status = 'active' AND f.workload_memory_bytes > 0 ORDER BY 1`

const sqlUnschedulable = `SELECT status_reason, count(*)::int FROM process_groups WHERE status = 'unschedulable' AND deleted_at IS NULL GROUP BY 1`

// A volume that is lent is returned by its borrower.
const sqlIdleAttached = `
SELECT a.group_id FROM volume_attachments a JOIN process_groups g ON g.group_id = a.group_id
JOIN volumes v ON v.volume_id = a.volume_id
WHERE a.server_id IS NOT NULL AND a.deleted_at IS NULL AND v.lent_to IS NULL
    AND (g.replicas = 0 OR g.deleted_at IS NOT NULL)
    AND NOT EXISTS (SELECT FROM instances i WHERE i.group_id = a.group_id AND i.state <> 'stopped')
GROUP BY a.group_id ORDER BY md5(a.group_id || now()) LIMIT 200`

// FindGroupWork finds groups that may have no run, groups with instances on servers that
// are no longer active, and idle groups with attached volumes.
func (s *Store) FindGroupWork(ctx context.Context, quiet time.Duration) (w workload.GroupWork, err error) {
	w.Unschedulable = map[string]int{}
	b := &pgx.Batch{}
	queueRows(b, &w.Groups, sqlMovedGroups)
	queueRows(b, &w.Groups, sqlOpenGroups, quiet.Seconds())
	queueValues(b, &w.Servers, sqlServersOfInstances)
	queueValues(b, &w.Idle, sqlIdleAttached)
	b.Queue(sqlUnschedulable).Query(func(rows pgx.Rows) error {
		var reason string
		var n int
		_, err := pgx.ForEachRow(rows, []any{&reason, &n}, func() error { w.Unschedulable[reason] = n; return nil })
		return err
	})
	if err := s.pool.SendBatch(ctx, b).Close(); err != nil {
		return w, fmt.Errorf("find process groups' work: %w", err)
	}
	return w, nil
}

const sqlInstancesOn = `SELECT ` + instanceColumns + ` FROM instances i WHERE i.server_id = $1 AND i.state <> 'stopped' ORDER BY i.instance_id`

// InstancesOn returns the instances on a server that are not stopped.
func (s *Store) InstancesOn(ctx context.Context, serverID prego.ServerID) ([]workload.Instance, error) {
	return collect[workload.Instance](ctx, s, string("instances on "+serverID), sqlInstancesOn, serverID)
}
