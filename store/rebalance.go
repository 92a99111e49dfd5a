package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// App servers shared by several tenants, and which of them can be emptied: servers that
// keep nothing else. Tenants of the same place can move among them, since tags decide who may
// live where, and shard and pool stay.
const sqlPackedServers = `
SELECT s.server_id, s.region, COALESCE(s.network_id, '') AS network_id, s.infra_provider, COALESCE(s.fleet_id, '') AS fleet_id, s.tags,
    s.server_type, s.location, s.memory_pct, s.disk_pct, s.tenant_count AS tenants, s.spec,
    s.agent_status = 'connected' AND s.cordoned_at IS NULL AND s.dedicated_for_tenant_id IS NULL AND COALESCE(f.serves_tenants, true) AS takes,
    s.cordoned_at IS NULL AND s.dedicated_for_tenant_id IS NULL
        AND NOT EXISTS (SELECT FROM instances i WHERE i.server_id = s.server_id AND i.state <> 'stopped')
        AND NOT EXISTS (SELECT FROM server_maintenances d WHERE d.server_id = s.server_id AND d.finished_at IS NULL) AS leaves
FROM servers s LEFT JOIN fleets f ON f.fleet_id = s.fleet_id
WHERE s.role = 'app' AND s.status = 'active' AND ($1 = '' OR s.region = $1) ORDER BY s.server_id`

// The tenants on them. A tenant that is being changed, or that has a right to its own server, stays.
const sqlPackedTenants = `
SELECT a.tenant_id, a.app_server_id AS server_id, COALESCE(u.files_bytes, 0) AS bytes,
    a.dedicated OR t.state NOT IN ('active', 'suspended') OR t.converged_state <> t.state OR NOT a.on_shard
        OR EXISTS (SELECT FROM tenant_moves m WHERE m.tenant_id = a.tenant_id AND m.finished_at IS NULL) AS stays
FROM tenant_allocations a JOIN servers s ON s.server_id = a.app_server_id JOIN tenants t ON t.tenant_id = a.tenant_id
    LEFT JOIN site_usage u ON u.tenant_id = a.tenant_id
WHERE a.released_at IS NULL AND s.role = 'app' AND s.status = 'active' AND ($1 = '' OR s.region = $1) ORDER BY a.tenant_id`

// PackedFleet reads the input of a packing plan.
func (s *Store) PackedFleet(ctx context.Context, region prego.Region) (f server.PackedFleet, err error) {
	err = s.inView(ctx, "read the fleet", func(tx *txn) error {
		f.Servers = manyIn[server.PackedServer](ctx, tx, sqlPackedServers, region)
		f.Tenants = manyIn[server.PackedTenant](ctx, tx, sqlPackedTenants, region)
		return nil
	})
	return f, err
}

const rebalanceColumns = `r.rebalance_id, r.state, r.reason, r.message, r.why, r.requested_by, r.at_once, r.max_failures, r.remove_servers, r.monthly, r.currency, r.frees,
    r.cancel_requested_at, r.created_at, r.finished_at, c.total, c.waiting, c.moving, c.moved, c.failed, c.skipped,
    ARRAY(SELECT f FROM unnest(r.frees) f WHERE NOT EXISTS (SELECT FROM tenant_allocations a WHERE a.app_server_id = f AND a.released_at IS NULL) ORDER BY 1) AS freed`

const fromRebalances = ` FROM rebalances r CROSS JOIN LATERAL (
    SELECT count(*)::int AS total, count(*) FILTER (WHERE m.state = 'waiting')::int AS waiting, count(*) FILTER (WHERE m.state = 'moving')::int AS moving,
        count(*) FILTER (WHERE m.state = 'moved')::int AS moved, count(*) FILTER (WHERE m.state = 'failed')::int AS failed, count(*) FILTER (WHERE m.state = 'skipped')::int AS skipped
    FROM rebalance_moves m WHERE m.rebalance_id = r.rebalance_id) c`

const (
	sqlGetRebalance     = `SELECT ` + rebalanceColumns + fromRebalances + ` WHERE r.rebalance_id = $1`
	sqlHoldRebalance    = `SELECT rebalance_id FROM rebalances WHERE rebalance_id = $1 FOR UPDATE`
	sqlRunningRebalance = `SELECT rebalance_id FROM rebalances WHERE state = 'running'`

	sqlBeginRebalance = `
INSERT INTO rebalances (rebalance_id, why, requested_by, at_once, max_failures, remove_servers, monthly, currency, frees, closed) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`
	sqlBeginRebalanceMoves = `
INSERT INTO rebalance_moves (rebalance_id, seq, tenant_id, from_server_id, to_server_id, bytes)
SELECT $1, n, t, f, o, b FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[]) WITH ORDINALITY AS m (t, f, o, b, n)`

	// What a plan names that is not so any more.
	sqlPlanOvertaken = `
SELECT m.t FROM unnest($1::text[], $2::text[], $3::text[]) AS m (t, f, o)
WHERE NOT EXISTS (SELECT FROM tenant_allocations a WHERE a.tenant_id = m.t AND a.app_server_id = m.f AND a.released_at IS NULL)
   OR NOT EXISTS (SELECT FROM servers s WHERE s.server_id = m.o AND s.role = 'app' AND s.status = 'active') ORDER BY 1 LIMIT 1`

	sqlOpenOf = `SELECT server_id FROM servers WHERE server_id = ANY ($1) AND cordoned_at IS NULL AND status = 'active' ORDER BY server_id FOR NO KEY UPDATE`
)

// StartRebalance accepts a plan. The servers that it frees are closed to newcomers. It is
// refused with CodeInvalidTransition while another one runs, or if the plan was overtaken.
func (s *Store) StartRebalance(ctx context.Context, id prego.RebalanceID, in server.RebalanceRequest, by string) (out server.Rebalance, err error) {
	err = s.inTx(ctx, "start a rebalance", func(tx *txn) error {
		running := valuesIn[string](ctx, tx, sqlRunningRebalance)
		if len(running) > 0 {
			return prego.Errorf(prego.CodeInvalidTransition, "rebalance %s is running: let it end, or cancel it", running[0])
		}
		n := len(in.Plan.Moves)
		tenants, from, to, bytes := make([]string, n), make([]string, n), make([]string, n), make([]int64, n)
		for i, m := range in.Plan.Moves {
			tenants[i], from[i], to[i], bytes[i] = string(m.TenantID), string(m.From), string(m.To), m.Bytes
		}
		overtaken := valuesIn[string](ctx, tx, sqlPlanOvertaken, tenants, from, to)
		if len(overtaken) > 0 {
			return prego.Errorf(prego.CodeInvalidTransition, "the plan is outdated: tenant %s lives on another server, or its target accepts no tenants; create another plan", overtaken[0])
		}
		frees := make([]string, len(in.Plan.Frees))
		for i, f := range in.Plan.Frees {
			frees[i] = string(f.ServerID)
		}
		slices.Sort(frees)
		closed := valuesIn[prego.ServerID](ctx, tx, sqlOpenOf, frees)
		for _, f := range closed {
			got(cordonIn(ctx, tx, f, rebalanceActor(id), "its tenants are moved away")).in(tx)
		}
		if _, err = tx.Exec(ctx, sqlBeginRebalance, id, in.Reason, by, in.AtOnce, in.MaxFailures, in.RemoveServers, in.Plan.Monthly, in.Plan.Currency, frees, prego.Strings(closed)); err != nil {
			if isViolation(err, "rebalances_running") {
				return prego.Errorf(prego.CodeInvalidTransition, "a rebalance is running: let it end, or cancel it")
			}
			return err
		}
		tx.run(ctx, sqlBeginRebalanceMoves, id, tenants, from, to, bytes)
		out = oneIn[server.Rebalance](ctx, tx, sqlGetRebalance, id)
		return nil
	})
	return out, err
}

// rebalanceActor is the actor that closes servers for a rebalance.
func rebalanceActor(id prego.RebalanceID) string { return "rebalance " + string(id) }

func noSuchRebalance(id prego.RebalanceID) error {
	return prego.Errorf(prego.CodeRebalanceNotFound, "there is no rebalance %q", id)
}

// GetRebalance reads a rebalance, or CodeRebalanceNotFound.
func (s *Store) GetRebalance(ctx context.Context, id prego.RebalanceID) (server.Rebalance, error) {
	return get[server.Rebalance](ctx, s.pool, noSuchRebalance(id), sqlGetRebalance, id)
}

const sqlRebalanceMoves = `
SELECT m.seq, m.tenant_id, m.from_server_id AS "from", m.to_server_id AS "to", m.bytes, m.state, m.reason, m.message, v.state AS move_state
FROM rebalance_moves m LEFT JOIN tenant_moves v ON v.move_id = m.rebalance_id || '-' || m.seq
WHERE m.rebalance_id = $1 AND ($2 OR m.state NOT IN ('waiting', 'moved')) ORDER BY m.seq LIMIT $3`

// RebalanceMoves are the moves of a rebalance that are under way or did not succeed, or all, at most limit.
func (s *Store) RebalanceMoves(ctx context.Context, id prego.RebalanceID, all bool, limit int) ([]server.RebalanceMove, error) {
	return collect[server.RebalanceMove](ctx, s, "moves of "+string(id), sqlRebalanceMoves, id, all, limit)
}

// Rebalances is the list of rebalances.
var Rebalances = Listing[server.Rebalance]{
	what: "rebalances", from: `SELECT ` + rebalanceColumns + fromRebalances,
	state:   "state",
	filters: map[string]string{"state": "r.state"},
	sorts:   map[string]string{"created_at": "r.created_at"},
	id:      "r.rebalance_id",
}

const sqlCancelRebalance = `UPDATE rebalances SET cancel_requested_at = COALESCE(cancel_requested_at, now()), updated_at = now() WHERE rebalance_id = $1 AND state = 'running'`

// CancelRebalance asks that nothing more is begun. Moves that are under way end.
func (s *Store) CancelRebalance(ctx context.Context, id prego.RebalanceID) (server.Rebalance, error) {
	asked, err := changed(ctx, s.pool, sqlCancelRebalance, id)
	if err != nil {
		return server.Rebalance{}, failed("cancel "+string(id), err)
	}
	r, err := s.GetRebalance(ctx, id)
	if err == nil && !asked && r.State != server.RebalanceCancelled {
		err = prego.Errorf(prego.CodeInvalidTransition, "rebalance %s is %s", id, r.State)
	}
	return r, err
}

// OpenRebalances are the running ones.
func (s *Store) OpenRebalances(ctx context.Context) ([]prego.RebalanceID, error) {
	return collectValues[prego.RebalanceID](ctx, s, "rebalances", sqlRunningRebalance)
}

const (
	// What became of moves that have begun.
	sqlFollowRebalance = `
UPDATE rebalance_moves m SET state = CASE v.state WHEN 'done' THEN 'moved' ELSE 'failed' END, reason = v.reason, message = v.message
FROM tenant_moves v WHERE m.rebalance_id = $1 AND m.state = 'moving' AND v.move_id = m.rebalance_id || '-' || m.seq AND v.finished_at IS NOT NULL`

	// A tenant that left by itself, or whose server is emptied by another request, is not looked for.
	sqlSkipRebalance = `
UPDATE rebalance_moves m SET state = 'skipped', reason = 'tenant_changed', message = 'it does not live there any more'
WHERE m.rebalance_id = $1 AND m.state = 'waiting'
  AND NOT EXISTS (SELECT FROM tenant_allocations a WHERE a.tenant_id = m.tenant_id AND a.app_server_id = m.from_server_id AND a.released_at IS NULL)`

	// Servers that get tenants and don't answer.
	sqlRebalanceSilent = `
SELECT s.server_id FROM servers s WHERE s.server_id IN (SELECT to_server_id FROM rebalance_moves WHERE rebalance_id = $1 AND state IN ('waiting', 'moving'))
  AND (s.status <> 'active' OR s.agent_status <> 'connected') ORDER BY 1 LIMIT 1`

	sqlTakeRebalance = `
UPDATE rebalance_moves SET state = 'moving' WHERE rebalance_id = $1 AND seq IN (
    SELECT seq FROM rebalance_moves WHERE rebalance_id = $1 AND state = 'waiting' ORDER BY seq LIMIT $2)`

	// Moves that have started here, but whose tenant does not know yet, or whose run may not know:
	// a repeated request has no second effect.
	sqlRebalanceBegun = `
SELECT m.seq, m.tenant_id, m.from_server_id AS "from", m.to_server_id AS "to", m.bytes FROM rebalance_moves m
WHERE m.rebalance_id = $1 AND m.state = 'moving' AND NOT EXISTS (SELECT FROM tenant_moves v WHERE v.move_id = m.rebalance_id || '-' || m.seq AND v.state <> 'queued') ORDER BY m.seq`

	sqlEndRebalance = `UPDATE rebalances SET state = $2, reason = $3, message = $4, finished_at = now(), updated_at = now() WHERE rebalance_id = $1 AND state = 'running'`

	// Of the servers that it closed, those with tenants are opened again.
	sqlReopenAfterRebalance = `
UPDATE servers SET cordoned_at = CASE WHEN closing THEN cordoned_at END, cordoned_by = NULL, cordon_reason = NULL, updated_at = now()
WHERE server_id IN (SELECT unnest(closed) FROM rebalances WHERE rebalance_id = $1) AND cordoned_by = $2 AND status = 'active'
  AND EXISTS (SELECT FROM tenant_allocations a WHERE a.app_server_id = server_id AND a.released_at IS NULL)
RETURNING server_id`

	sqlRebalanceRemovable = `
SELECT s.server_id FROM servers s JOIN rebalances r ON r.rebalance_id = $1 AND r.remove_servers AND s.server_id = ANY (r.frees)
WHERE s.status = 'active' AND ` + fleetSpares + ` AND s.tenant_count = 0 AND NOT EXISTS (SELECT FROM tenant_allocations a WHERE a.app_server_id = s.server_id AND a.released_at IS NULL)
  AND NOT EXISTS (SELECT FROM rebalance_moves m WHERE m.rebalance_id = $1 AND m.from_server_id = s.server_id AND m.state NOT IN ('moved', 'skipped')) ORDER BY 1`
)

// fleetSpares: a fleet keeps its least number of members, without the members that its actions are about to remove.
const fleetSpares = `(s.fleet_id IS NULL OR (SELECT f.min_size FROM fleets f WHERE f.fleet_id = s.fleet_id) < (
    SELECT count(*) FROM servers v WHERE v.fleet_id = s.fleet_id AND v.status NOT IN ('draining', 'terminated') AND NOT EXISTS (
        SELECT FROM fleet_action_steps d JOIN fleet_actions a ON a.fleet_id = d.fleet_id AND a.seq = d.seq
        WHERE d.server_id = v.server_id AND v.server_id <> s.server_id AND d.op = 'delete' AND d.state = 'planned' AND a.status = 'running')))`

const (
	sqlRemoveFreed = `
UPDATE servers s SET status = 'draining', status_reason = 'decommission_requested', status_message = '', decommission_requested_at = now(), updated_at = now()
WHERE s.server_id = $1 AND s.status = 'active' AND ` + emptied + ` AND ` + fleetSpares + ` RETURNING ` + serverColumns
	sqlFleetOfServer = `SELECT COALESCE(fleet_id, '') FROM servers WHERE server_id = $1`

	// Servers that should have been deleted and stay, and why.
	sqlRebalanceKept = `
SELECT s.server_id, COALESCE(s.fleet_id, '') AS fleet_id, s.status, NOT ` + fleetSpares + ` AS least FROM servers s JOIN rebalances r ON r.rebalance_id = $1 AND r.remove_servers AND s.server_id = ANY (r.frees)
WHERE s.status NOT IN ('draining', 'terminated') ORDER BY 1`
)

// RemoveFreed starts to take down a server that a plan has emptied. It is CodeServerHasTenants if the server
// is in use, or if its fleet would have fewer members than its minimum.
func (s *Store) RemoveFreed(ctx context.Context, id prego.ServerID, by string) (srv server.Server, err error) {
	err = s.inTx(ctx, "remove "+string(id), func(tx *txn) error {
		fleet := valueOr[prego.FleetID](ctx, tx, prego.Errorf(prego.CodeServerNotFound, "there is no server %q", id), sqlFleetOfServer, id)
		if fleet != "" { // of two removals of a member each sees the other
			got(lockFleet(ctx, tx, fleet)).in(tx)
		}
		tx.check(holdUsed(ctx, tx, id))
		removed := findIn[server.Server](ctx, tx, sqlRemoveFreed, id)
		if removed != nil {
			srv = *removed
			return addEvent(ctx, tx, server.Event{ServerID: id, Step: server.StepDecommissionAsked, Reason: prego.ReasonDecommission, Message: "by " + by, Actor: prego.ActorOperator}, "")
		}
		if srv, err = serverIn(ctx, tx, id); err == nil && srv.Status != server.Decommissioning && srv.Status != server.Terminated {
			err = prego.Errorf(prego.CodeServerHasTenants, "server %s is in use, or its fleet has only its minimum of members", id)
		}
		return err
	})
	return srv, err
}

// keptServers are the servers that should have been deleted after a plan and stay, in words.
func keptServers(ctx context.Context, tx *txn, id prego.RebalanceID) (string, error) {
	kept, err := many[struct {
		ServerID prego.ServerID
		FleetID  prego.FleetID
		Status   server.Status
		Least    bool
	}](ctx, tx, sqlRebalanceKept, id)
	if err != nil || len(kept) == 0 {
		return "", err
	}
	var why []string
	for i, k := range kept {
		if i == maxKeptNamed {
			why = append(why, fmt.Sprintf("and %d more", len(kept)-i))
			break
		}
		switch {
		case k.Status != server.Active:
			why = append(why, fmt.Sprintf("%s is %s", k.ServerID, k.Status))
		case k.Least:
			why = append(why, fmt.Sprintf("%s is needed for the minimum size of fleet %s", k.ServerID, k.FleetID))
		default:
			why = append(why, fmt.Sprintf("%s is used", k.ServerID))
		}
	}
	return "; not deleted: " + strings.Join(why, ", "), nil
}

// maxKeptNamed bounds the servers in a rebalance's message.
const maxKeptNamed = 10

// StepRebalance decides the next step, and records ended moves.
func (s *Store) StepRebalance(ctx context.Context, id prego.RebalanceID) (st server.RebalanceStep, err error) {
	err = s.inTx(ctx, "step "+string(id), func(tx *txn) error {
		valueOr[string](ctx, tx, noSuchRebalance(id), sqlHoldRebalance, id)
		for _, sql := range []string{sqlFollowRebalance, sqlSkipRebalance} {
			tx.run(ctx, sql, id)
		}
		r, err := one[server.Rebalance](ctx, tx, sqlGetRebalance, id)
		if err != nil || r.State.Ended() {
			st.State = r.State
			return err
		}
		silent := valuesIn[string](ctx, tx, sqlRebalanceSilent, id)
		state, reason, message := r.Next(silent)
		if state == server.RebalanceRunning && r.CancelRequestedAt == nil && r.Moving < r.AtOnce {
			tx.run(ctx, sqlTakeRebalance, id, r.AtOnce-r.Moving)
		}
		st.Begin = manyIn[server.PlannedMoveSeq](ctx, tx, sqlRebalanceBegun, id)
		st.Remove = valuesIn[prego.ServerID](ctx, tx, sqlRebalanceRemovable, id)
		// The end waits for servers to be deleted, except those that are in use again.
		if state == server.RebalanceDone && len(st.Remove) > 0 {
			state = server.RebalanceRunning
		}
		if st.State = state; state == server.RebalanceRunning {
			return nil
		}
		if state == server.RebalanceDone {
			kept := got(keptServers(ctx, tx, id)).in(tx)
			message += kept
		}
		tx.must(ctx, noSuchRebalance(id), sqlEndRebalance, id, state, reason, message)
		opened := valuesIn[prego.ServerID](ctx, tx, sqlReopenAfterRebalance, id, rebalanceActor(id))
		for _, o := range opened {
			tx.check(addEvent(ctx, tx, server.Event{ServerID: o, Step: server.StepUncordoned, Message: "by " + rebalanceActor(id), Actor: prego.ActorWorkflow}, ""))
		}
		return nil
	})
	return st, err
}

const sqlRebalanceMoveFailed = `UPDATE rebalance_moves SET state = 'failed', reason = $3, message = $4 WHERE rebalance_id = $1 AND seq = $2 AND state = 'moving'`

// RebalanceMoveRefused records that a move could not begin.
func (s *Store) RebalanceMoveRefused(ctx context.Context, id prego.RebalanceID, seq int, code prego.Code, message string) error {
	return s.exec(ctx, fmt.Sprintf("move %d of %s", seq, id), sqlRebalanceMoveFailed, id, seq, code, message)
}
