package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/workload"
)

const groupColumns = `g.group_id, g.env_id, g.org_id, g.region, g.name, g.spec, g.release, g.stable_release, g.replicas, jsonb_build_object('require', g.require_tags, 'disallow', g.disallow_tags) AS "constraint",
    g.deploy_status, g.deploy_reason, g.deploy_message, g.rollout_policy AS policy, g.paused_at, g.status, g.status_reason, g.status_message, g.decision,
    COALESCE(g.next_attempt_at, (SELECT min(i.retry_at) FROM instances i WHERE i.group_id = g.group_id AND i.retry_at > now())) AS next_attempt_at, g.waiting_since,
    g.created_by, g.created_at, g.updated_at, g.deleted_at, g.converged,
    COALESCE((SELECT jsonb_object_agg(state, n) FROM (SELECT state, count(*) AS n FROM instances i WHERE i.group_id = g.group_id AND i.state <> 'stopped' GROUP BY state) s), '{}') AS instances`

func noSuchGroup(id string) error {
	return prego.Errorf(prego.CodeGroupNotFound, "there is no process group %q", id)
}

func noSuchInstance(id string) error {
	return prego.Errorf(prego.CodeInstanceNotFound, "there is no instance %q", id)
}

// oneGroup runs a statement that returns a group, or CodeGroupNotFound.
func oneGroup(ctx context.Context, q querier, sql, id string, args ...any) (g workload.Group, err error) {
	return get[workload.Group](ctx, q, noSuchGroup(id), sql, append([]any{id}, args...)...)
}

const sqlGetGroup = `SELECT ` + groupColumns + ` FROM process_groups g WHERE g.group_id = $1 AND g.deleted_at IS NULL`

// GetGroup reads a process group, or CodeGroupNotFound.
func (s *Store) GetGroup(ctx context.Context, id string) (workload.Group, error) {
	return oneGroup(ctx, s.pool, sqlGetGroup, id)
}

// Groups is the list of process groups.
var Groups = Listing[workload.Group]{
	what: "process groups", from: `SELECT ` + groupColumns + ` FROM process_groups g`,
	live:    `g.deleted_at IS NULL`,
	filters: map[string]string{"group_id": "g.group_id", "env_id": "g.env_id", "org_id": "g.org_id", "name": "g.name", "region": "g.region", "status": "g.status", "app_id": "g.env_id IN (SELECT e.env_id FROM envs e WHERE e.app_id = ANY ($?))"},
	sorts:   map[string]string{"created_at": "g.created_at", "name": "g.name"},
	id:      "g.group_id",
}

const sqlGroupOfName = `SELECT ` + groupColumns + ` FROM process_groups g WHERE g.env_id = $1 AND g.name = $2 AND g.deleted_at IS NULL`

const sqlOverhead = `SELECT overhead_bytes_per_instance FROM workload_settings`

const sqlInsertGroup = `
INSERT INTO process_groups AS g (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, require_tags, disallow_tags, created_by, rollout_policy, last_rollout)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 1) RETURNING ` + groupColumns

// CreateGroup creates a process group and takes the quota for its replicas. Repeating the
// request returns the existing group; a different one with that name is CodeGroupExists.
func (s *Store) CreateGroup(ctx context.Context, id prego.GroupID, envID prego.EnvID, r workload.CreateGroupRequest, by string) (g workload.Group, created bool, err error) {
	err = s.inEnv(ctx, "create process group", envID, func(tx *txn, orgID prego.OrgID, region prego.Region) error {
		policy, err := r.Policy()
		if err != nil {
			return err
		}
		g, err = oneGroup(ctx, tx, sqlGroupOfName, string(envID), r.Name)
		if err == nil {
			return sameGroup(g, r, policy)
		}
		if prego.CodeOf(err) != prego.CodeGroupNotFound {
			return err
		}
		overhead := valueIn[int64](ctx, tx, sqlOverhead)
		tx.check(s.takeQuota(ctx, tx, orgID, promised(promise{replicas: *r.Replicas, memory: r.Spec.MemoryLimitBytes + overhead, cpu: r.Spec.CPURequest})...))
		g = oneIn[workload.Group](ctx, tx, sqlInsertGroup, id, envID, orgID, region, r.Name, r.Spec, r.Spec.MemoryLimitBytes, r.Spec.CPURequest, *r.Replicas,
			filled(r.Spec.Constraint.Require), filled(r.Spec.Constraint.Disallow), by, policy)
		tx.check(beginRollout(ctx, tx, id, workload.RolloutCreate, by, ""))
		created = true
		return orgEvent(ctx, tx, org.Event{OrgID: orgID, Type: "group.create", Subject: string(id), Actor: by},
			map[string]any{"env_id": envID, "name": r.Name, "image": r.Spec.Image, "replicas": *r.Replicas, "memory_limit_bytes": r.Spec.MemoryLimitBytes, "cpu_request": r.Spec.CPURequest})
	})
	if err != nil {
		return workload.Group{}, false, err
	}
	return g, created, nil
}

// sameGroup reports, as an error, whether a request differs from the existing group of its name.
func sameGroup(g workload.Group, r workload.CreateGroupRequest, policy workload.RolloutPolicy) error {
	if g.Spec.Equal(r.Spec) && g.Replicas == *r.Replicas && g.Constraint.Equal(*r.Spec.Constraint) && g.Policy == policy {
		return nil
	}
	return &prego.Error{Code: prego.CodeGroupExists, Field: "name", Message: "belongs to another process group of this environment"}
}

// promise compares a group's requirement, replicas of a size, with its allocations: have replicas that use haveMemory
// and haveCPU.
type promise struct {
	replicas   int
	memory     int64 // of one, with the overhead
	cpu        float64
	have       int
	haveMemory int64
	haveCPU    float64
}

// promised is the part that is not allocated yet, as org_reserved_view counts it.
func promised(p promise) []quota.Delta {
	return []quota.Delta{
		{Dimension: quota.MaxInstances, By: float64(max(0, p.replicas-p.have))},
		{Dimension: quota.MaxTotalMemoryBytes, By: float64(max(0, int64(p.replicas)*p.memory-p.haveMemory))},
		{Dimension: quota.MaxTotalCPURequest, By: max(0, float64(p.replicas)*p.cpu-p.haveCPU)},
	}
}

// lockedGroup is a group whose row is locked. The order of locks is group, org, server.
type lockedGroup struct {
	workload.Group
	overhead int64
	have     promise
	// The group's volumes: a volume has one writer.
	volumes, routes int
}

const sqlLockGroup = `SELECT ` + groupColumns + ` FROM process_groups g WHERE g.group_id = $1 AND g.deleted_at IS NULL FOR NO KEY UPDATE OF g`

// A second statement, because the subqueries of the first don't see commits made while it waited for the lock.
const sqlGroupHas = `
SELECT (SELECT overhead_bytes_per_instance FROM workload_settings), count(*),
    COALESCE(sum(memory_limit_bytes + (SELECT overhead_bytes_per_instance FROM workload_settings)), 0)::bigint, COALESCE(sum(cpu_request), 0),
    (SELECT count(*) FROM volume_attachments a WHERE a.group_id = $1 AND a.deleted_at IS NULL),
    (SELECT count(*) FROM routes r WHERE r.group_id = $1 AND r.deleted_at IS NULL)
FROM instances WHERE group_id = $1 AND state IN ('booting', 'running', 'failed')`

func lockGroup(ctx context.Context, tx *txn, id prego.GroupID) (g lockedGroup, err error) {
	g.Group = got(oneGroup(ctx, tx, sqlLockGroup, string(id))).in(tx)
	return g, g.count(ctx, tx)
}

// count reads what the group has.
func (g *lockedGroup) count(ctx context.Context, tx *txn) error {
	if err := tx.QueryRow(ctx, sqlGroupHas, g.GroupID).Scan(&g.overhead, &g.have.have, &g.have.haveMemory, &g.have.haveCPU, &g.volumes, &g.routes); err != nil {
		return fmt.Errorf("what process group %s has: %w", g.GroupID, err)
	}
	return nil
}

// promise returns the group's promise with other replicas or another spec.
func (g lockedGroup) promise(replicas int, spec workload.Spec) promise {
	p := g.have
	p.replicas, p.memory, p.cpu = replicas, spec.MemoryLimitBytes+g.overhead, spec.CPURequest
	return p
}

// grow returns what a change of the group takes of its org's quota.
func (g lockedGroup) grow(replicas int, spec workload.Spec) []quota.Delta {
	now, then := promised(g.promise(g.Replicas, g.Spec)), promised(g.promise(replicas, spec))
	for i := range then {
		then[i].By = max(0, then[i].By-now[i].By)
	}
	return then
}

// A change cancels earlier wants: the group's run decides again.
const sqlScaleGroup = `
UPDATE process_groups SET replicas = $2, wanted = 0, converged = false, next_attempt_at = NULL, refused_usage = NULL, progress_at = now(), updated_at = now() WHERE group_id = $1`

// ScaleGroup sets how many instances a group should have. Growth is checked against the org's quota under the org's
// lock; scaling down never is.
func (s *Store) ScaleGroup(ctx context.Context, id prego.GroupID, replicas int, by string) (g workload.Group, err error) {
	err = s.inTx(ctx, "scale process group", func(tx *txn) error {
		locked := got(lockGroup(ctx, tx, id)).in(tx)
		if locked.volumes > 0 && replicas > 1 {
			return prego.Invalid("replicas", "must be 0 or 1: a volume is attached to the group, and has one writer")
		}
		if replicas != locked.Replicas {
			if replicas == 0 {
				tx.demands(ctx, "scale it again", string(id), sqlOfGroup)
			} else {
				tx.harmless(ctx)
			}
			if replicas > locked.Replicas {
				tx.check(s.takeQuota(ctx, tx, locked.OrgID, locked.grow(replicas, locked.Spec)...))
			}
			tx.run(ctx, sqlScaleGroup, id, replicas)
			tx.run(ctx, sqlForgetCrashes, id)
			tx.check(orgEvent(ctx, tx, org.Event{OrgID: locked.OrgID, Type: "group.scale", Subject: string(id), Actor: by},
				map[string]any{"old": locked.Replicas, "new": replicas}))
		}
		g = got(oneGroup(ctx, tx, sqlGetGroup, string(id))).in(tx)
		return nil
	})
	return g, err
}

const sqlDeleteGroup = `UPDATE process_groups SET deleted_at = now(), wanted = 0, waiting_since = NULL, converged = false, updated_at = now() WHERE group_id = $1`

// DeleteGroup deletes a group. Its instances are stopped afterwards and count until then. A
// group with routes or volumes is CodeGroupInUse.
func (s *Store) DeleteGroup(ctx context.Context, id prego.GroupID, by string) (g workload.Group, err error) {
	err = s.inTx(ctx, "delete process group", func(tx *txn) error {
		locked := got(lockGroup(ctx, tx, id)).in(tx)
		// Creating a route also locks the org, so a concurrent route is counted.
		tx.check(lockOrg(ctx, tx, locked.OrgID))
		tx.check(locked.count(ctx, tx))
		if locked.volumes > 0 || locked.routes > 0 {
			return prego.Errorf(prego.CodeGroupInUse, "%d routes and %d volumes belong to the group: delete and detach them first", locked.routes, locked.volumes)
		}
		g = locked.Group
		tx.demands(ctx, "", string(id), sqlOfGroup)
		tx.run(ctx, sqlDeleteGroup, id)
		return orgEvent(ctx, tx, org.Event{OrgID: g.OrgID, Type: "group.delete", Subject: string(id), Actor: by}, map[string]any{"env_id": g.EnvID, "name": g.Name, "replicas": g.Replicas})
	})
	return g, err
}

const instanceColumns = `i.instance_id, i.group_id, i.org_id, i.server_id, i.number, i.release, i.spec, i.ports, i.state, i.healthy, i.message, i.restarts, i.created_at, i.started_at, i.running_at, i.stopped_at`

// Instances is the list of one group's instances, without stopped ones. Their numbers grow with time.
var Instances = Listing[workload.Instance]{
	what: "instances", from: `SELECT ` + instanceColumns + ` FROM instances i`,
	live: `i.state <> 'stopped'`, state: "state",
	filters: map[string]string{"group_id": "i.group_id", "state": "i.state", "server_id": "i.server_id"},
	sorts:   map[string]string{"created_at": "i.number"},
	id:      "i.number",
}

// AllInstances is the list of the instances of all groups, without stopped ones.
var AllInstances = Listing[workload.Instance]{
	what: "instances of all groups", from: `SELECT ` + instanceColumns + ` FROM instances i`,
	live: `i.state <> 'stopped'`, state: "state",
	filters: map[string]string{
		"instance_id": "i.instance_id", "org_id": "i.org_id", "group_id": "i.group_id", "server_id": "i.server_id", "state": "i.state",
		"env_id": "i.group_id = ANY (ARRAY(SELECT g.group_id FROM process_groups g WHERE g.env_id = ANY ($?)))",
	},
	sorts: map[string]string{"created_at": "i.created_at"},
	id:    "i.instance_id",
}

const sqlGetInstance = `SELECT ` + instanceColumns + ` FROM instances i WHERE i.instance_id = $1`

// GetInstance reads an instance, or CodeInstanceNotFound.
func (s *Store) GetInstance(ctx context.Context, id string) (workload.Instance, error) {
	return get[workload.Instance](ctx, s.pool, noSuchInstance(id), sqlGetInstance, id)
}

// decided returns a decision for a column that may be NULL.
func decided(d json.RawMessage) any {
	if len(d) == 0 {
		return nil
	}
	return d
}
