package store

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/workload"
)

// A release that there was before keeps its number, so that its instances that still run
// are not replaced.
const sqlReleaseGroup = `
UPDATE process_groups SET spec = $2, memory_limit_bytes = $3, cpu_request = $4, release = COALESCE(NULLIF($5, 0), last_release + 1),
    last_release = GREATEST(last_release, COALESCE(NULLIF($5, 0), last_release + 1)), last_rollout = last_rollout + 1, deploy_status = $6, deploy_message = $7, deploy_reason = '',
    no_surge = $8, surge_limit = NULL, wanted = 0, failures = 0, progress_at = now(), converged = false, next_attempt_at = NULL, refused_usage = NULL, updated_at = now()
WHERE group_id = $1`

const sqlSupersedeRollout = `UPDATE rollouts SET outcome = 'superseded', ended_at = now() WHERE group_id = $1 AND outcome = 'under_way'`

// After the group's row was changed.
const sqlBeginRollout = `
INSERT INTO rollouts (group_id, number, release, kind, spec, created_by, request) SELECT group_id, last_rollout, release, $2, spec, $3, NULLIF($4, '') FROM process_groups WHERE group_id = $1`

// The last of a release that may be gone back to stays.
const sqlPruneRollouts = `
DELETE FROM rollouts r USING process_groups g WHERE g.group_id = $1 AND r.group_id = $1 AND r.number <= g.last_rollout - $2
  AND (r.release NOT IN (g.release, g.stable_release) OR EXISTS (SELECT FROM rollouts n WHERE n.group_id = $1 AND n.release = r.release AND n.number > r.number))`

// Crashed instances no longer wait: the group was changed.
const sqlForgetCrashes = `UPDATE instances SET retry_at = NULL WHERE group_id = $1 AND retry_at IS NOT NULL`

const sqlEndRollout = `
UPDATE rollouts r SET outcome = $2, reason = $3, message = $4, ended_at = now() FROM process_groups g
WHERE g.group_id = $1 AND r.group_id = $1 AND r.number = g.last_rollout AND r.release = g.release AND r.outcome IN ('under_way', 'failed')`

// queueRollout records that a rollout began: the group's row names its release.
func queueRollout(b *pgx.Batch, id prego.GroupID, kind workload.RolloutKind, by, request string) {
	b.Queue(sqlSupersedeRollout, id)
	b.Queue(sqlBeginRollout, id, kind, by, request)
	b.Queue(sqlPruneRollouts, id, workload.KeptRollouts)
	b.Queue(sqlForgetCrashes, id)
}

func beginRollout(ctx context.Context, tx *txn, id prego.GroupID, kind workload.RolloutKind, by, request string) error {
	b := &pgx.Batch{}
	queueRollout(b, id, kind, by, request)
	return tx.SendBatch(ctx, b).Close()
}

// release is a change of a group's workload.
type release struct {
	kind    workload.RolloutKind
	release int // 0 for the next one
	spec    workload.Spec
	by      string
	request string // the caller and its key, "" without one
	event   string
	data    map[string]any // of the event
}

// rollOut begins to replace what a group runs. Quota is taken for what the release needs
// beyond the present one, and for one extra instance, if the policy has any. Without
// room for that, a group of several replicas stops one before starting the next, and a
// group of one is rejected, because nothing of it would run in between.
func (s *Store) rollOut(ctx context.Context, tx *txn, g lockedGroup, r release) (workload.Group, error) {
	tx.check(s.takeQuota(ctx, tx, g.OrgID, g.grow(g.Replicas, r.spec)...))
	status, message, err := s.strategy(ctx, tx, g, r.spec)
	if err != nil {
		return g.Group, err
	}
	surge, unavailable := g.Policy.Bounds(g.Replicas)
	first := g.volumes > 0 || (status == workload.DeployDrainingFirst || surge == 0) && unavailable >= g.Replicas
	if first {
		tx.demands(ctx, "", string(g.GroupID), sqlOfGroup)
	}
	tx.run(ctx, sqlReleaseGroup, g.GroupID, r.spec, r.spec.MemoryLimitBytes, r.spec.CPURequest, r.release, status, message, status == workload.DeployDrainingFirst)
	tx.check(beginRollout(ctx, tx, g.GroupID, r.kind, r.by, r.request))
	out := got(oneGroup(ctx, tx, sqlGetGroup, string(g.GroupID))).in(tx)
	data := map[string]any{"release": out.Release, "image": r.spec.Image, "memory_limit_bytes": r.spec.MemoryLimitBytes, "cpu_request": r.spec.CPURequest, "strategy": status}
	maps.Copy(data, r.data)
	return out, orgEvent(ctx, tx, org.Event{OrgID: g.OrgID, Type: r.event, Subject: string(g.GroupID), Actor: r.by}, data)
}

const sqlSetRolloutPolicy = `UPDATE process_groups SET rollout_policy = $2, converged = false, updated_at = now() WHERE group_id = $1`

// DeployGroup starts another release, and changes how it and later ones are rolled out if
// change is not nil. Deploying the present spec is not a new release.
func (s *Store) DeployGroup(ctx context.Context, id prego.GroupID, spec workload.Spec, change *workload.RolloutChange, by string) (g workload.Group, err error) {
	err = s.inTx(ctx, "deploy process group", func(tx *txn) error {
		locked := got(lockGroup(ctx, tx, id)).in(tx)
		if spec.Constraint != nil && !spec.Constraint.Equal(locked.Constraint) {
			return &prego.Error{Code: prego.CodeConstraintImmutable, Field: "spec.constraint", Message: "is fixed when the group is created: create another group"}
		}
		spec.Constraint = locked.Spec.Constraint
		policy, err := locked.Policy.Change(change, "rollout_policy")
		if err != nil {
			return err
		}
		if policy != locked.Policy {
			tx.run(ctx, sqlSetRolloutPolicy, id, policy)
			tx.check(orgEvent(ctx, tx, org.Event{OrgID: locked.OrgID, Type: "group.set_policy", Subject: string(id), Actor: by}, map[string]any{"old": locked.Policy, "new": policy}))
			locked.Policy = policy
		}
		if spec.Equal(locked.Spec) {
			g = got(oneGroup(ctx, tx, sqlGetGroup, string(id))).in(tx)
			return nil
		}
		g = got(s.rollOut(ctx, tx, locked, release{kind: workload.RolloutDeploy, spec: spec, by: by, event: "group.deploy"})).in(tx)
		return nil
	})
	return g, err
}

const sqlRolloutOfRequest = `SELECT EXISTS (SELECT FROM rollouts WHERE group_id = $1 AND request = $2)`

// requested returns whether a request began a rollout already, and names it.
func requested(ctx context.Context, tx *txn, id prego.GroupID, by, key string) (request string, done bool, err error) {
	if key == "" {
		return "", false, nil
	}
	request = keptKey(keyOwner(ctx, by), key)
	done, err = value[bool](ctx, tx, sqlRolloutOfRequest, id, request)
	return request, done, err
}

// RestartGroup replaces all instances by others of the same spec. With the key of a request
// that did so it changes nothing.
func (s *Store) RestartGroup(ctx context.Context, id prego.GroupID, by, key string) (g workload.Group, err error) {
	err = s.inTx(ctx, "restart process group", func(tx *txn) error {
		locked := got(lockGroup(ctx, tx, id)).in(tx)
		request, done, err := requested(ctx, tx, id, by, key)
		if err != nil || done {
			g = locked.Group
			return err
		}
		g = got(s.rollOut(ctx, tx, locked, release{kind: workload.RolloutRestart, spec: locked.Spec, by: by, request: request, event: "group.restart"})).in(tx)
		return nil
	})
	return g, err
}

// The last good release besides the present one, or the requested one.
const sqlRolloutTarget = `
SELECT release, spec FROM rollouts WHERE group_id = $1 AND release <> $2 AND CASE $3::int WHEN 0 THEN outcome = 'succeeded' ELSE release = $3 END ORDER BY number DESC LIMIT 1`

// RollBackGroup goes back to a kept release, or for 0 to the last good
// release besides the present one. CodeReleaseNotFound if there is none. Going back to the
// present release changes nothing, and neither does the key of a request that went back.
func (s *Store) RollBackGroup(ctx context.Context, id prego.GroupID, to int, by, key string) (g workload.Group, err error) {
	err = s.inTx(ctx, "roll back process group", func(tx *txn) error {
		locked := got(lockGroup(ctx, tx, id)).in(tx)
		request, done, err := requested(ctx, tx, id, by, key)
		if err != nil || done || to == locked.Release {
			g = locked.Group
			return err
		}
		type target struct {
			Release int
			Spec    workload.Spec
		}
		t, err := find[target](ctx, tx, sqlRolloutTarget, id, locked.Release, to)
		switch {
		case err != nil:
			return err
		case t == nil && to == 0:
			return prego.Errorf(prego.CodeReleaseNotFound, "no release before this one was good")
		case t == nil:
			return prego.Errorf(prego.CodeReleaseNotFound, "release %d is not among the rollouts that are kept", to)
		}
		t.Spec.Constraint = locked.Spec.Constraint
		g, err = s.rollOut(ctx, tx, locked, release{
			kind: workload.RolloutRollback, release: t.Release, spec: t.Spec, by: by, request: request, event: "group.roll_back", data: map[string]any{"old_release": locked.Release},
		})
		return err
	})
	return g, err
}

const sqlPauseGroup = `
UPDATE process_groups SET paused_at = CASE WHEN $2 THEN now() END, progress_at = now(), converged = false, updated_at = now() WHERE group_id = $1`

// PauseGroup holds up rollouts of a group, or lets them continue.
func (s *Store) PauseGroup(ctx context.Context, id prego.GroupID, pause bool, by string) (g workload.Group, err error) {
	event := map[bool]string{true: "group.pause", false: "group.resume"}[pause]
	err = s.inTx(ctx, event, func(tx *txn) error {
		locked := got(lockGroup(ctx, tx, id)).in(tx)
		if (locked.PausedAt != nil) == pause {
			g = locked.Group
			return nil
		}
		tx.run(ctx, sqlPauseGroup, id, pause)
		tx.check(orgEvent(ctx, tx, org.Event{OrgID: locked.OrgID, Type: event, Subject: string(id), Actor: by}, map[string]any{"release": locked.Release}))
		g = got(oneGroup(ctx, tx, sqlGetGroup, string(id))).in(tx)
		return nil
	})
	return g, err
}

const rolloutColumns = `r.group_id, r.number, r.release, r.kind, r.spec, r.outcome, r.reason, r.message, r.created_by, r.created_at, r.ended_at`

// Rollouts is the list of a group's rollouts. Their numbers grow with time.
var Rollouts = Listing[workload.Rollout]{
	what: "rollouts", from: `SELECT ` + rolloutColumns + ` FROM rollouts r`,
	filters: map[string]string{"group_id": "r.group_id", "outcome": "r.outcome"},
	sorts:   map[string]string{"created_at": "r.number"},
	id:      "r.number",
}

// strategy decides how a deploy replaces running instances.
func (s *Store) strategy(ctx context.Context, tx *txn, g lockedGroup, spec workload.Spec) (workload.DeployStatus, string, error) {
	surge, unavailable := g.Policy.Bounds(g.Replicas)
	rolling := fmt.Sprintf("at most %d instances more than replicas, and %d fewer", surge, unavailable)
	switch {
	case g.volumes > 0:
		return workload.DeployStoppingFirst, "a volume has one writer: what runs stops before the release starts", nil
	case g.have.have == 0:
		return workload.DeployRolling, "nothing runs: the release is proven by the first instances that do", nil
	case surge == 0:
		return workload.DeployRolling, rolling, nil
	}
	// On top of all that the group will have.
	more := append(g.grow(g.Replicas, spec), surgeOf(spec, g.overhead)...)
	for i := range more[:3] {
		more[i].By += more[i+3].By
	}
	err := s.takeQuota(ctx, tx, g.OrgID, more[:3]...)
	var over *org.QuotaExceeded
	switch {
	case err == nil:
		return workload.DeployRolling, rolling, nil
	case !errors.As(err, &over) || g.Replicas <= 1 && unavailable == 0:
		return "", "", err
	}
	return workload.DeployDrainingFirst, drainFirstText(over), nil
}

func drainFirstText(over *org.QuotaExceeded) string {
	return fmt.Sprintf("the org's %s has no room for one instance more: an instance is drained before the next one starts, so that the group has one less meanwhile", over.Dimension)
}

// surgeOf is the quota of one instance.
func surgeOf(spec workload.Spec, overhead int64) []quota.Delta {
	return promised(promise{replicas: 1, memory: spec.MemoryLimitBytes + overhead, cpu: spec.CPURequest})
}
