package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
)

const actionColumns = `a.fleet_id, a.seq, a.key, a.action, a.inputs, a.data, a.status, a.reason, a.message, a.cause, a.requested_by, a.cancel_requested,
    a.created_at, a.started_at, a.finished_at`

// drivenByFleet marks actions that run one after the other.
const drivenByFleet = "fleet"

const sqlActionOfKey = `SELECT ` + actionColumns + ` FROM fleet_actions a WHERE fleet_id = $1 AND idempotency_key = $2`

const sqlQueueAction = `
WITH next AS (UPDATE fleets SET last_seq = last_seq + 1 WHERE fleet_id = $1 RETURNING last_seq)
INSERT INTO fleet_actions AS a (fleet_id, seq, action, inputs, status, cause, driven_by, requested_by, idempotency_key)
SELECT $1, last_seq, $2, $3, 'queued', $4, $5, $6, NULLIF($7, '') FROM next RETURNING ` + actionColumns

const sqlActionAccepted = `UPDATE fleet_actions SET accepted = $3 WHERE fleet_id = $1 AND seq = $2`

// RequestFleetAction queues an action. Repeating the request with the same key returns the
// existing action; a different request with that key is CodeIdempotencyConflict. What it interrupts is read from the
// steps that plan returns now: the action makes its plan when it begins.
func (s *Store) RequestFleetAction(
	ctx context.Context, r server.FleetActionRequest, plan planner,
) (a server.FleetAction, err error) {
	err = s.inTx(ctx, "request action", func(tx *txn) error {
		f := got(lockFleet(ctx, tx, r.FleetID)).in(tx)
		if r.IdempotencyKey != "" {
			r.IdempotencyKey = keptKey(keyOwner(ctx, r.By), r.IdempotencyKey)
			met, err := find[server.FleetAction](ctx, tx, sqlActionOfKey, r.FleetID, r.IdempotencyKey)
			switch {
			case err != nil:
				return err
			case met != nil && (met.Action != r.Action || !sameJSON(met.Inputs, r.Inputs)):
				return &prego.Error{Code: prego.CodeIdempotencyConflict, Field: "Idempotency-Key", Message: "was sent with another body"}
			case met != nil:
				a = *met
				return nil
			}
		}
		a = oneIn[server.FleetAction](ctx, tx, sqlQueueAction, r.FleetID, r.Action, r.Inputs, r.Cause, drivenByFleet, r.By, r.IdempotencyKey)
		p := got(plan(got(fleetState(ctx, tx, f)).in(tx), a)).in(tx)
		removed := []prego.ServerID{}
		for _, step := range p.Steps {
			if step.Op == server.StepOpDelete {
				removed = append(removed, step.ServerID)
			}
		}
		i := tx.saves(ctx, removed, "").of(impact.Impact{Undo: "cancel it: servers that it has not removed stay"})
		if len(removed) > 0 {
			i.Seconds = tx.lasted(ctx, "move")
		}
		tx.demandsOf(ctx, i, string(f.FleetID), removed, impact.Moves)
		tx.run(ctx, sqlActionAccepted, a.FleetID, a.Seq, acceptedNow(ctx))
		return nil
	})
	return a, err
}

func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

const sqlFleetMembers = `
SELECT s.server_id, s.region, s.status, s.fleet_profile AS profile, s.created_at,
    s.tenant_count + COALESCE((SELECT sum(current_tenant_count) FROM db_shards d WHERE d.server_id = s.server_id), 0)
                   + COALESCE((SELECT sum(current_tenants) FROM redis_pools r WHERE r.server_id = s.server_id), 0)
    + CASE WHEN s.dedicated_for_tenant_id IS NULL THEN 0 ELSE 1 END -- one that is to live there
    + (SELECT count(*) FROM instances i WHERE i.server_id = s.server_id AND i.state <> 'stopped') AS tenants
FROM servers s WHERE s.fleet_id = $1 AND s.status NOT IN ('draining', 'terminated') ORDER BY s.server_id`

const sqlUsableRegions = `SELECT COALESCE((SELECT regions FROM infra_providers WHERE id = $1 AND enabled), '{}'), now()`

// fleetState reads the basis for planning an action.
func fleetState(ctx context.Context, q querier, f server.Fleet) (st server.FleetState, err error) {
	st.Fleet = f
	if st.Members, err = many[server.FleetMember](ctx, q, sqlFleetMembers, f.FleetID); err != nil {
		return st, err
	}
	return st, q.QueryRow(ctx, sqlUsableRegions, f.InfraProvider).Scan(&st.Usable, &st.Now)
}

// FleetState reads the basis for planning an action of a fleet now.
func (s *Store) FleetState(ctx context.Context, id prego.FleetID) (st server.FleetState, err error) {
	f, err := getFleet(ctx, s.pool, string(id))
	if err == nil {
		st, err = fleetState(ctx, s.pool, f)
	}
	return st, failed("fleet state", err)
}

// The running action, or else the oldest queued one.
const sqlTakeAction = `
SELECT ` + actionColumns + ` FROM fleet_actions a WHERE fleet_id = $1 AND status IN ('queued', 'running') AND driven_by = $2
ORDER BY status = 'queued', seq LIMIT 1`

const sqlStartAction = `
UPDATE fleet_actions a SET status = $3, data = $4, reason = $5, message = $6, started_at = now(), finished_at = CASE WHEN $3 <> 'running' THEN now() END
WHERE fleet_id = $1 AND seq = $2 RETURNING ` + actionColumns

const sqlFleetAim = `UPDATE fleets SET desired_capacity = $2, updated_at = now() WHERE fleet_id = $1`

const sqlPolicyUsed = `UPDATE fleet_policies SET last_used_at = now() WHERE fleet_id = $1 AND policy_id = ANY ($2)`

type planner = func(server.FleetState, server.FleetAction) (server.FleetPlan, error)

// BeginFleetAction starts the oldest queued action with the steps that plan returns, or returns the one already
// running; nil if there is none. An action without possible steps fails, and is returned as failed.
func (s *Store) BeginFleetAction(ctx context.Context, fleetID prego.FleetID, plan planner) (taken *server.FleetAction, err error) {
	err = s.inTx(ctx, "begin action", func(tx *txn) error {
		f, err := lockFleet(ctx, tx, fleetID)
		if prego.CodeOf(err) == prego.CodeFleetNotFound {
			return nil
		}
		if err != nil {
			return err
		}
		if taken, err = find[server.FleetAction](ctx, tx, sqlTakeAction, fleetID, drivenByFleet); err != nil || taken == nil || taken.Status == server.ActionRunning {
			return err
		}
		*taken, err = planAction(ctx, tx, f, *taken, plan)
		return err
	})
	return taken, err
}

// planAction records the steps of an action of a locked fleet.
func planAction(ctx context.Context, tx *txn, f server.Fleet, a server.FleetAction, plan planner) (server.FleetAction, error) {
	st, err := fleetState(ctx, tx, f)
	if err != nil {
		return a, err
	}
	p, err := plan(st, a)
	if err != nil {
		return a, err
	}
	status := server.ActionRunning
	if p.Reason != "" {
		status = server.ActionFailed
	}
	if a, err = one[server.FleetAction](ctx, tx, sqlStartAction, a.FleetID, a.Seq, status, p.Data, p.Reason, p.Message); err != nil || status == server.ActionFailed {
		return a, err
	}
	tx.run(ctx, sqlFleetAim, f.FleetID, p.Desired)
	tx.run(ctx, sqlPolicyUsed, f.FleetID, filled(p.Used))
	a.Steps, err = addSteps(ctx, tx, a, 0, p.Steps)
	return a, err
}

const sqlAddStep = `
INSERT INTO fleet_action_steps (fleet_id, seq, server_id, op, region, round, replan) VALUES ($1, $2, $3, $4, $5, $6, $7)`

// addSteps stores the steps and names the servers to create, counting on from the number
// already made.
func addSteps(ctx context.Context, tx *txn, a server.FleetAction, made int, steps []server.FleetStep) ([]server.FleetStep, error) {
	b := &pgx.Batch{}
	for i := range steps {
		st := &steps[i]
		if st.Op == server.StepOpCreate {
			made++
			st.ServerID = prego.ServerID(fmt.Sprintf("%s-%s-%d", a.FleetID, a.Key, made))
		}
		st.State = server.FleetStepPlanned
		b.Queue(sqlAddStep, a.FleetID, a.Seq, st.ServerID, st.Op, st.Region, st.Round, st.Replan)
	}
	return steps, tx.SendBatch(ctx, b).Close()
}

const sqlGetAction = `SELECT ` + actionColumns + ` FROM fleet_actions a WHERE fleet_id = $1 AND seq = $2`

const sqlActionSteps = `
SELECT op, server_id, region, round, replan, state, message, at FROM fleet_action_steps WHERE fleet_id = $1 AND seq = $2
ORDER BY round, op, server_id COLLATE "C"`

func getAction(ctx context.Context, q querier, fleetID prego.FleetID, seq int) (a server.FleetAction, err error) {
	a, err = get[server.FleetAction](ctx, q, prego.Errorf(prego.CodeActionNotFound, "fleet %q has no action %d", fleetID, seq), sqlGetAction, fleetID, seq)
	if err != nil {
		return a, err
	}
	a.Steps, err = many[server.FleetStep](ctx, q, sqlActionSteps, fleetID, seq)
	return a, err
}

// GetFleetAction reads an action with its steps, or CodeActionNotFound.
func (s *Store) GetFleetAction(ctx context.Context, fleetID prego.FleetID, seq int) (server.FleetAction, error) {
	return getAction(ctx, s.pool, fleetID, seq)
}

// FleetActions is the list of one fleet's actions, without their steps.
var FleetActions = Listing[server.FleetAction]{
	what: "actions", from: `SELECT ` + actionColumns + ` FROM fleet_actions a`,
	filters: map[string]string{"fleet_id": "a.fleet_id", "status": "a.status", "action": "a.action"},
	sorts:   map[string]string{"created_at": "a.seq"},
	id:      "a.seq",
}

const sqlCancelAction = `
UPDATE fleet_actions a SET cancel_requested = true, status = CASE status WHEN 'queued' THEN 'cancelled' ELSE status END,
    finished_at = CASE status WHEN 'queued' THEN now() END, message = CASE status WHEN 'queued' THEN 'cancelled by ' || $3 ELSE message END
WHERE fleet_id = $1 AND seq = $2 AND status IN ('queued', 'running') AND driven_by = $4 RETURNING ` + actionColumns

// CancelFleetAction cancels a queued action. For a running action, steps that have not begun are skipped.
func (s *Store) CancelFleetAction(ctx context.Context, fleetID prego.FleetID, seq int, by string) (server.FleetAction, error) {
	var a *server.FleetAction
	err := s.inTx(ctx, "cancel action", func(tx *txn) (err error) {
		// The lock waits for an action that is being started.
		tx.run(ctx, sqlLockFleet, fleetID)
		a = findIn[server.FleetAction](ctx, tx, sqlCancelAction, fleetID, seq, by, drivenByFleet)
		return nil
	})
	if err != nil {
		return server.FleetAction{}, err
	}
	if a != nil {
		return *a, nil
	}
	now, err := s.GetFleetAction(ctx, fleetID, seq)
	if err != nil {
		return now, err
	}
	if !now.Status.Ended() {
		return now, prego.Errorf(prego.CodeInvalidTransition, "the action serves waiting tenants; operators can't cancel it")
	}
	return now, prego.Errorf(prego.CodeInvalidTransition, "the action is %s", now.Status)
}

// Servers that are being created or destroyed are completed. Servers that stay are
// opened again, unless an operator has cordoned them.
const sqlSkipSteps = `
WITH skipped AS (
    UPDATE fleet_action_steps st SET state = 'skipped', message = $3, at = now() WHERE fleet_id = $1 AND seq = $2 AND state = 'planned'
      AND NOT EXISTS (SELECT FROM servers s WHERE s.server_id = st.server_id AND s.fleet_id = st.fleet_id AND (st.op = 'create' OR s.status IN ('draining', 'terminated')))
    RETURNING op, server_id)
UPDATE servers SET cordoned_at = CASE WHEN cordoned_by IS NOT NULL THEN cordoned_at END, closing = false, updated_at = now()
WHERE server_id IN (SELECT server_id FROM skipped WHERE op = 'delete') AND cordoned_at IS NOT NULL AND status NOT IN ('draining', 'terminated')`

const sqlNextSteps = `
SELECT op, server_id, region, round, replan, state, message, at FROM fleet_action_steps st
WHERE fleet_id = $1 AND seq = $2 AND state = 'planned'
  AND (round, op) = (SELECT round, op FROM fleet_action_steps WHERE fleet_id = $1 AND seq = $2 AND state = 'planned' ORDER BY round, op LIMIT 1)
ORDER BY server_id COLLATE "C" LIMIT $3`

const sqlCordon = `
UPDATE servers SET cordoned_at = COALESCE(cordoned_at, now()), closing = true, updated_at = now()
WHERE server_id = ANY ($1) AND NOT (closing AND cordoned_at IS NOT NULL) AND status IN ('active', 'failed', 'provisioning')`

const sqlFailStep = `UPDATE fleet_action_steps SET state = $5, message = $6, at = now() WHERE fleet_id = $1 AND seq = $2 AND server_id = $3 AND op = $4 AND state = 'planned'`

// NextFleetBatch returns the next steps of an action, at most limit and all of one kind. It inserts the rows of
// servers to create, and cordons servers to delete. Repeating it returns the same steps.
func (s *Store) NextFleetBatch(ctx context.Context, fleetID prego.FleetID, seq, limit int) (b server.FleetRound, err error) {
	err = s.inTx(ctx, "next steps", func(tx *txn) error {
		b.Fleet = got(lockFleet(ctx, tx, fleetID)).in(tx)
		b.Action = got(getAction(ctx, tx, fleetID, seq)).in(tx)
		b.Action.Steps = nil
		if b.Action.CancelRequested {
			tx.run(ctx, sqlSkipSteps, fleetID, seq, "the action was cancelled")
		}
		b.Steps = manyIn[server.FleetStep](ctx, tx, sqlNextSteps, fleetID, seq, limit)
		if len(b.Steps) > 0 && b.Steps[0].Op == server.StepOpDelete {
			ids := make([]string, len(b.Steps))
			for i, st := range b.Steps {
				ids[i] = string(st.ServerID)
			}
			tx.run(ctx, sqlCordon, ids)
			return nil
		}
		for i := range b.Steps {
			tx.check(askFor(ctx, tx, b.Fleet, b.Action, &b.Steps[i]))
		}
		return nil
	})
	return b, err
}

const sqlIsMember = `SELECT EXISTS (SELECT FROM servers WHERE server_id = $1 AND fleet_id = $2)`

// memberIn reports whether a server is a member of the fleet. An existing member counts
// even if the fleet's spec has changed since it was requested.
func memberIn(ctx context.Context, q querier, serverID prego.ServerID, fleetID prego.FleetID) (member bool, err error) {
	err = q.QueryRow(ctx, sqlIsMember, serverID, fleetID).Scan(&member)
	return member, err
}

// askFor inserts the row of a server to create; if that is rejected, the step fails.
func askFor(ctx context.Context, tx *txn, f server.Fleet, a server.FleetAction, st *server.FleetStep) error {
	if member, err := memberIn(ctx, tx, st.ServerID, f.FleetID); err != nil || member {
		return err
	}
	err := pgx.BeginFunc(ctx, tx.Tx, sticky(func(tx *txn) error {
		_, _, err := insertServerIn(ctx, tx, fleetServer(server.Wanted{
			ServerID: st.ServerID, Role: f.Role, Region: st.Region, Provider: f.InfraProvider, Spec: f.Spec, FleetID: f.FleetID, FleetProfile: f.Profile,
		}, fmt.Sprintf("fleet %s, action %d", f.FleetID, a.Seq)))
		return err
	}))
	var refusal *prego.Error
	if errors.As(err, &refusal) {
		st.State, st.Message = server.FleetStepFailed, refusal.Error()
		return nil
	}
	return err
}

const sqlMadeSteps = `SELECT count(*) FROM fleet_action_steps WHERE fleet_id = $1 AND seq = $2 AND op = 'create'`

// RecordFleetSteps stores the results of steps. After a failure, replan may add steps, or
// skip remaining ones.
func (s *Store) RecordFleetSteps(ctx context.Context, fleetID prego.FleetID, seq int, results []server.FleetStepResult,
	replan func(server.FleetState, server.FleetAction) (server.FleetReplan, error),
) error {
	err := s.inTx(ctx, "record steps", func(tx *txn) error {
		tx.run(ctx, sqlLockFleet, fleetID)
		failed := false
		for _, r := range results {
			tag, err := tx.Exec(ctx, sqlFailStep, fleetID, seq, r.ServerID, r.Op, r.State, prego.Redact(r.Message))
			if err != nil {
				return err
			}
			failed = failed || tag.RowsAffected() == 1 && r.State != server.FleetStepDone
		}
		if !failed {
			return nil // also when already recorded
		}
		a, err := getAction(ctx, tx, fleetID, seq)
		if err != nil || a.CancelRequested {
			return err
		}
		f, err := getFleet(ctx, tx, string(fleetID)) // without members that have failed
		if err != nil {
			return err
		}
		st, err := fleetState(ctx, tx, f)
		if err != nil {
			return err
		}
		p, err := replan(st, a)
		if err != nil {
			return err
		}
		for _, skip := range p.Skip {
			tx.run(ctx, sqlFailStep, fleetID, seq, skip.ServerID, skip.Op, server.FleetStepSkipped, skip.Message)
		}
		made := valueIn[int](ctx, tx, sqlMadeSteps, fleetID, seq)
		got(addSteps(ctx, tx, a, made, p.More)).in(tx)
		tx.run(ctx, sqlActionData, fleetID, seq, p.Data)
		return nil
	})
	return err
}

const sqlActionData = `UPDATE fleet_actions SET data = $3 WHERE fleet_id = $1 AND seq = $2`

const sqlFinishAction = `
UPDATE fleet_actions a SET finished_at = now(), status = $3, reason = $4, message = $5
WHERE fleet_id = $1 AND seq = $2 AND status = 'running' RETURNING ` + actionColumns

// FinishFleetAction ends an action with the result of its steps.
func (s *Store) FinishFleetAction(ctx context.Context, fleetID prego.FleetID, seq int) (a server.FleetAction, err error) {
	err = s.inTx(ctx, "finish action", func(tx *txn) error {
		if a, err = getAction(ctx, tx, fleetID, seq); err != nil || a.Status.Ended() {
			return err
		}
		status, reason, message := a.Outcome()
		ended, err := one[server.FleetAction](ctx, tx, sqlFinishAction, fleetID, seq, status, reason, message)
		if isNoRows(err) { // another step just ended it
			a = got(getAction(ctx, tx, fleetID, seq)).in(tx)
			return nil
		}
		if err == nil {
			ended.Steps = a.Steps
			a = ended
		}
		return err
	})
	return a, err
}

// A server cordoned by an operator stays closed.
const sqlUncordon = `
UPDATE servers SET cordoned_at = CASE WHEN cordoned_by IS NOT NULL THEN cordoned_at END, closing = false, updated_at = now() WHERE server_id = $1 AND cordoned_at IS NOT NULL AND status NOT IN ('draining', 'terminated')`

const sqlCordonedFor = `SELECT COALESCE(now() - cordoned_at, '0') FROM servers WHERE server_id = $1`

// CordonedFor returns how long a server has been closed to new tenants.
func (s *Store) CordonedFor(ctx context.Context, serverID prego.ServerID) (time.Duration, error) {
	d, err := value[time.Duration](ctx, s.pool, sqlCordonedFor, serverID)
	return d, failed(string("cordon of "+serverID), err)
}

// Uncordon gives a server back to placement.
func (s *Store) Uncordon(ctx context.Context, serverID prego.ServerID) error {
	return s.exec(ctx, string("uncordon "+serverID), sqlUncordon, serverID)
}

// A lost workflow run leaves its action open, which would reserve room in the fleet
// forever. A run requests its servers right after it begins the action, so if there are no
// rows after an hour, none will come.
const sqlSettleDemand = `
WITH lost AS (
    SELECT fleet_id, seq FROM fleet_actions WHERE status = 'running' AND driven_by <> 'fleet' AND started_at < now() - make_interval(secs => $1)
), settled AS (
    UPDATE fleet_action_steps st SET at = now(),
        state = CASE WHEN s.server_id IS NULL THEN 'skipped' WHEN s.active_at IS NULL THEN 'failed' ELSE 'done' END,
        message = CASE WHEN s.server_id IS NULL THEN 'it was never asked for' WHEN s.active_at IS NULL THEN s.status_message ELSE '' END
    FROM lost l, fleet_action_steps x LEFT JOIN servers s ON s.server_id = x.server_id AND s.fleet_id = x.fleet_id
    WHERE x.fleet_id = l.fleet_id AND x.seq = l.seq AND x.state = 'planned' AND (s.server_id IS NULL OR s.status <> 'provisioning')
      AND (st.fleet_id, st.seq, st.server_id, st.op) = (x.fleet_id, x.seq, x.server_id, x.op)
    RETURNING st.fleet_id, st.seq, st.server_id)
SELECT l.fleet_id, l.seq FROM lost l WHERE NOT EXISTS (
    SELECT FROM fleet_action_steps x WHERE x.fleet_id = l.fleet_id AND x.seq = l.seq AND x.state = 'planned'
      AND NOT EXISTS (SELECT FROM settled d WHERE (d.fleet_id, d.seq, d.server_id) = (x.fleet_id, x.seq, x.server_id)))`

// SettleDemand ends actions and scaling events older than age whose runs were lost, once none of their servers
// is still being created.
func (s *Store) SettleDemand(ctx context.Context, age time.Duration) error {
	type ref struct {
		FleetID prego.FleetID
		Seq     int
	}
	lost, err := collect[ref](ctx, s, "settle demand", sqlSettleDemand, age.Seconds())
	if err != nil {
		return err
	}
	for _, a := range lost {
		if _, err := s.FinishFleetAction(ctx, a.FleetID, a.Seq); err != nil {
			return err
		}
	}
	return s.exec(ctx, "settle scaling events", sqlSettleScaling, age.Seconds(), "its run ended early")
}

const sqlOpenFleets = `
SELECT DISTINCT fleet_id FROM fleet_actions a WHERE status IN ('queued', 'running') AND driven_by = 'fleet'
  AND GREATEST(created_at, COALESCE(started_at, created_at)) < now() - make_interval(secs => $1)`

// OpenFleets lists fleets with actions older than quiet, whose runs may have been lost.
func (s *Store) OpenFleets(ctx context.Context, quiet time.Duration) ([]string, error) {
	return collectValues[string](ctx, s, "open fleets", sqlOpenFleets, quiet.Seconds())
}
