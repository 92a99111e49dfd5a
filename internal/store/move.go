package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

const moveColumns = `m.move_id, m.org_id, m.tenant_id, m.state, m.reason, m.message, m.why, m.wanted, COALESCE(m.drain_of, '') AS drain_of, m.requested_by, m.site,
    m.from_server_id, COALESCE(m.to_server_id, '') AS to_server_id, m.copied_bytes, m.delta_bytes, (EXTRACT(EPOCH FROM m.opened_at - m.frozen_at) * 1000)::bigint AS downtime_ms,
    m.cancel_requested_at, m.created_at, m.started_at, m.frozen_at, m.switched_at, m.opened_at, m.finished_at`

const sqlOpenMove = `SELECT ` + moveColumns + ` FROM tenant_moves m WHERE m.tenant_id = $1 AND m.finished_at IS NULL`

const sqlRequestMove = `
INSERT INTO tenant_moves AS m (move_id, org_id, tenant_id, allocation_id, why, wanted, drain_of, requested_by, site, database_name, from_server_id)
SELECT $1, t.org_id, t.tenant_id, a.allocation_id, $3, $4, NULLIF($5, ''), $6, t.site, a.database_name, a.app_server_id
FROM tenants t JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL WHERE t.tenant_id = $2 RETURNING ` + moveColumns

const sqlMovable = `
SELECT t.plan, a.on_shard, s.role FROM tenants t JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL JOIN servers s ON s.server_id = a.app_server_id WHERE t.tenant_id = $1`

// RequestMove accepts that a tenant moves to another app server. While it moves the same request
// is met by that move, and another one is CodeMoveUnderWay. A tenant whose database is on its
// app server is CodeTenantsCannotMove.
func (s *Store) RequestMove(ctx context.Context, a tenant.MoveAsked) (out tenant.Move, err error) {
	err = s.inTenant(ctx, "move tenant "+string(a.TenantID), a.TenantID, func(tx pgx.Tx, t tenantSite) error {
		out, err = requestMove(ctx, tx, a, t)
		return err
	})
	return out, err
}

func requestMove(ctx context.Context, tx pgx.Tx, a tenant.MoveAsked, t tenantSite) (out tenant.Move, err error) {
	open, err := find[tenant.Move](ctx, tx, sqlOpenMove, a.TenantID)
	switch {
	case err != nil:
		return out, err
	case open != nil && open.Wanted == a.To && open.CancelRequestedAt == nil && open.State.Undoable():
		return *open, nil
	case open != nil:
		return out, prego.Errorf(prego.CodeMoveUnderWay, "tenant %s is moved from %s to %s already: move %s is %s", a.TenantID, open.FromServerID, open.ToServerID, open.MoveID, open.State)
	case !t.state.HasSite():
		return out, prego.Errorf(prego.CodeInvalidTransition, "tenant %s is %s: only one with a site in use is moved", a.TenantID, t.state)
	case a.To != "" && string(a.To) == t.server:
		return out, &prego.Error{Code: prego.CodeInvalidField, Field: "to_server_id", Message: "is where the tenant is"}
	}
	at, err := one[struct {
		Plan    prego.Plan
		OnShard bool
		Role    prego.Role
	}](ctx, tx, sqlMovable, a.TenantID)
	if err != nil {
		return out, err
	}
	if !at.OnShard || at.Role != prego.RoleApp {
		return out, prego.Errorf(prego.CodeTenantsCannotMove, "the database of tenant %s is on its %s %s, and moves with the site only from a backup: restore it elsewhere", a.TenantID, at.Role, t.server)
	}
	if out, err = one[tenant.Move](ctx, tx, sqlRequestMove, a.ID, a.TenantID, a.Why, a.To, a.DrainOf, a.By); err != nil {
		return out, err
	}
	if err := tenantEvent(ctx, tx, tenant.Event{TenantID: a.TenantID, Step: tenant.StepMoveRequested, Actor: a.By, Message: fmt.Sprintf("%s: from %s", a.ID, t.server)}, "move/"+string(a.ID)); err != nil {
		return out, err
	}
	return out, orgEvent(ctx, tx, org.Event{OrgID: t.org, Type: "move.create", Subject: string(a.ID), Actor: a.By}, map[string]any{"tenant_id": a.TenantID, "to_server_id": a.To})
}

const (
	sqlGetMove    = `SELECT ` + moveColumns + ` FROM tenant_moves m WHERE m.move_id = $1`
	sqlTenantMove = sqlGetMove + ` AND m.tenant_id = $2`
)

func noSuchMove(id prego.MoveID) error {
	return prego.Errorf(prego.CodeMoveNotFound, "there is no move %q of this tenant", id)
}

// GetMove reads one move of a tenant, or CodeMoveNotFound.
func (s *Store) GetMove(ctx context.Context, tenantID prego.TenantID, id prego.MoveID) (tenant.Move, error) {
	m, err := find[tenant.Move](ctx, s.pool, sqlTenantMove, id, tenantID)
	if err != nil || m != nil {
		return deref(m), failed("move "+string(id), err)
	}
	if err := s.tenantExists(ctx, tenantID); err != nil {
		return tenant.Move{}, err
	}
	return tenant.Move{}, noSuchMove(id)
}

var moves = listing[tenant.Move]{
	what: "moves", from: `SELECT ` + moveColumns + ` FROM tenant_moves m`,
	filters: map[string]string{"tenant_id": "m.tenant_id", "org_id": "m.org_id", "state": "m.state"},
	sorts:   map[string]string{"created_at": "m.created_at"},
	id:      "m.move_id",
}

// ListMoves is a page of moves.
func (s *Store) ListMoves(ctx context.Context, q prego.ListQuery) (page []tenant.Move, next string, err error) {
	return moves.page(ctx, s, q)
}

const sqlCancelMove = `
UPDATE tenant_moves m SET cancel_requested_at = COALESCE(cancel_requested_at, now()), updated_at = now()
WHERE move_id = $1 AND tenant_id = $2 AND state IN ('queued', 'copying', 'frozen') RETURNING ` + moveColumns

// CancelMove asks that a move is undone. One that has switched is CodeInvalidTransition: the
// way back is another move.
func (s *Store) CancelMove(ctx context.Context, tenantID prego.TenantID, id prego.MoveID) (tenant.Move, error) {
	m, err := find[tenant.Move](ctx, s.pool, sqlCancelMove, id, tenantID)
	if err != nil || m != nil {
		return deref(m), failed("cancel move "+string(id), err)
	}
	was, err := s.GetMove(ctx, tenantID, id)
	if err != nil || was.State == tenant.MoveCancelled {
		return was, err
	}
	return was, prego.Errorf(prego.CodeInvalidTransition, "move %s is %s: the way back is another move", id, was.State)
}

// A server that is lost answers no more: what a move would do there is done, as on one that is
// terminated.
const sqlMoveRun = `
SELECT ` + moveColumns + `, m.allocation_id, m.database_name, f.host AS from_host, COALESCE(host(f.private_address), '') AS from_address,
    CASE WHEN f.status_reason IN ('server_missing', 'server_lost') THEN 'terminated' ELSE f.status END AS from_status,
    COALESCE(g.host, '') AS to_host, COALESCE(host(g.private_address), '') AS to_address,
    CASE WHEN g.status_reason IN ('server_missing', 'server_lost') THEN 'terminated' ELSE COALESCE(g.status, '') END AS to_status, g.cordoned_at IS NOT NULL AS to_closed, t.state AS tenant_state,
    COALESCE((SELECT a.app_server_id FROM tenant_allocations a WHERE a.allocation_id = m.allocation_id AND a.released_at IS NULL), '') AS allocation_server
FROM tenant_moves m JOIN servers f ON f.server_id = m.from_server_id LEFT JOIN servers g ON g.server_id = m.to_server_id JOIN tenants t ON t.tenant_id = m.tenant_id
WHERE m.move_id = $1`

// MoveRun reads a move for its run, or CodeMoveNotFound.
func (s *Store) MoveRun(ctx context.Context, id prego.MoveID) (tenant.MoveRun, error) {
	return get[tenant.MoveRun](ctx, s.pool, noSuchMove(id), sqlMoveRun, id)
}

// The target's row is held while it is checked again; who is refused here decides again.
const sqlHoldMove = `SELECT state, cancel_requested_at IS NOT NULL AS cancelled FROM tenant_moves WHERE move_id = $1 FOR NO KEY UPDATE`

const sqlReserveMove = `
UPDATE servers s SET tenant_count = s.tenant_count + 1, updated_at = now(),
    dedicated_for_tenant_id = CASE WHEN $3 THEN t.tenant_id ELSE s.dedicated_for_tenant_id END
FROM tenant_moves m JOIN tenants t ON t.tenant_id = m.tenant_id JOIN tenant_allocations a ON a.allocation_id = m.allocation_id AND a.released_at IS NULL
JOIN db_shards d ON d.shard_id = a.db_shard_id JOIN servers h ON h.server_id = d.server_id
WHERE m.move_id = $1 AND s.server_id = $2 AND s.server_id <> m.from_server_id AND a.app_server_id = m.from_server_id
  AND s.status = 'active' AND s.cordoned_at IS NULL AND s.role = 'app' AND s.region = t.region AND s.private_address IS NOT NULL
  AND (s.dedicated_for_tenant_id IS NULL OR s.dedicated_for_tenant_id = t.tenant_id)
  AND (s.tenant_count = 0 AND NOT runs_instances(s.server_id) OR NOT $3)
  AND ($4 OR s.tenant_count < $5 AND COALESCE(s.memory_pct, 0) < $6)
  AND s.bench_image = (SELECT f.bench_image FROM servers f WHERE f.server_id = m.from_server_id) -- what a newer image migrated opens with no older one
  AND NOT EXISTS (SELECT FROM stack_release_servers u WHERE u.server_id IN (s.server_id, m.from_server_id) AND u.status IN ('updating', 'broken'))
  AND network_of(s.network_id, s.private_address) IS NOT DISTINCT FROM network_of(h.network_id, h.private_address)
  AND residency_allows(t.data_residency, s.region, s.infra_provider)
  AND tags_satisfy(s.tags, t.require_tags, t.disallow_tags)
  AND NOT EXISTS (SELECT FROM placement_pools_of(t.org_id) p WHERE NOT tags_satisfy(s.tags, p.require_tags, p.disallow_tags))`

const sqlMovePlaced = `
UPDATE tenant_moves SET state = 'copying', to_server_id = $2, started_at = now(), updated_at = now(), message = '' WHERE move_id = $1 AND state = 'queued' AND cancel_requested_at IS NULL`

const sqlMoveDecision = `
INSERT INTO allocation_snapshots (tenant_id, allocation_id, outcome, algorithm, decision_log, policy_json, actor)
SELECT tenant_id, allocation_id, 'moved', $2, $3, $4, requested_by FROM tenant_moves WHERE move_id = $1`

// ReserveMove gives a move the server that was chosen for it. ok is false if the server is not
// fit any more: then another one is chosen. Repeated, it finds its place.
func (s *Store) ReserveMove(ctx context.Context, id prego.MoveID, p tenant.MovePlace) (ok bool, err error) {
	err = s.inTx(ctx, "reserve a place for move "+string(id), func(tx pgx.Tx) error {
		at, err := one[struct {
			State     tenant.MoveState
			Cancelled bool
		}](ctx, tx, sqlHoldMove, id)
		switch {
		case err != nil:
			return ifNoRows(err, noSuchMove(id))
		case at.State != tenant.MoveQueued:
			ok = true
			return nil
		case at.Cancelled:
			return server.ErrSuperseded
		}
		if ok, err = changed(ctx, tx, sqlReserveMove, id, p.ServerID, p.Dedicates, p.Override, p.MaxTenants, p.MemoryMax); err != nil || !ok {
			return err
		}
		if _, err := tx.Exec(ctx, sqlMovePlaced, id, p.ServerID); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, sqlMoveDecision, id, p.Algorithm, json.RawMessage(p.Decision), json.RawMessage(p.Policy))
		return err
	})
	return ok, err
}

const sqlMoveCopied = `UPDATE tenant_moves SET copied_bytes = $2, updated_at = now() WHERE move_id = $1`

// MoveCopied records how much was copied while the site served.
func (s *Store) MoveCopied(ctx context.Context, id prego.MoveID, bytes int64) error {
	return s.exec(ctx, "move "+string(id), sqlMoveCopied, id, bytes)
}

// Whatever works on the site has to end first, and what comes later waits (TenantRun, held).
const sqlMoveWaitsFor = `
SELECT CASE WHEN t.state <> t.converged_state THEN 'its state is being changed'
    WHEN EXISTS (SELECT FROM restore_jobs j WHERE j.tenant_id = t.tenant_id AND j.status = 'running') THEN 'it is being restored'
    WHEN EXISTS (SELECT FROM snapshots j WHERE j.tenant_id = t.tenant_id AND j.status = 'running') THEN 'a snapshot of it is being made'
    WHEN EXISTS (SELECT FROM stack_release_servers u WHERE u.server_id IN (m.from_server_id, m.to_server_id) AND u.status IN ('updating', 'broken')) THEN 'a release is being installed there'
    WHEN EXISTS (SELECT FROM backups b WHERE b.tenant_id = t.tenant_id AND b.state = 'making') THEN 'a backup of it is being made' ELSE '' END
FROM tenant_moves m JOIN tenants t ON t.tenant_id = m.tenant_id WHERE m.move_id = $1 FOR NO KEY UPDATE OF t`

const sqlFreezeMove = `
UPDATE tenant_moves m SET state = 'frozen', frozen_at = COALESCE(frozen_at, clock_timestamp()), updated_at = now() FROM tenants t, tenant_allocations a
WHERE m.move_id = $1 AND m.state IN ('copying', 'frozen') AND m.cancel_requested_at IS NULL AND t.tenant_id = m.tenant_id AND has_site(t.state)
  AND a.allocation_id = m.allocation_id AND a.released_at IS NULL AND a.app_server_id = m.from_server_id`

// FreezeMove says that the tenant's site is held from now on. waits says what has to end first,
// "" for nothing. server.ErrSuperseded: the tenant has no site there, or the move was cancelled.
func (s *Store) FreezeMove(ctx context.Context, id prego.MoveID) (waits string, err error) {
	err = s.inTx(ctx, "freeze for move "+string(id), func(tx pgx.Tx) error {
		if waits, err = value[string](ctx, tx, sqlMoveWaitsFor, id); err != nil || waits != "" {
			return ifNoRows(err, noSuchMove(id))
		}
		ok, err := changed(ctx, tx, sqlFreezeMove, id)
		if err == nil && !ok {
			err = server.ErrSuperseded
		}
		return err
	})
	return waits, err
}

const (
	sqlSwitchMove = `
UPDATE tenant_moves SET state = 'switched', switched_at = now(), updated_at = now(), delta_bytes = $2
WHERE move_id = $1 AND state = 'frozen' AND cancel_requested_at IS NULL`
	sqlSwitchAllocation = `
UPDATE tenant_allocations a SET app_server_id = m.to_server_id, pool_site_id = NULL, infra_provider = s.infra_provider FROM tenant_moves m JOIN servers s ON s.server_id = m.to_server_id
WHERE m.move_id = $1 AND a.allocation_id = m.allocation_id AND a.released_at IS NULL AND a.app_server_id = m.from_server_id`
	// A site of the pool is that no more; its name and its database are the tenant's alone.
	sqlForgetMovedSite = `DELETE FROM site_pool p USING tenant_moves m WHERE m.move_id = $1 AND p.tenant_id = m.tenant_id AND p.app_server_id = m.from_server_id`
	// Snapshots are in the site's directory, and came along.
	sqlMoveSnapshots = `
UPDATE snapshots n SET server_id = m.to_server_id FROM tenant_moves m WHERE m.move_id = $1 AND n.tenant_id = m.tenant_id AND n.server_id = m.from_server_id AND n.erased_at IS NULL`
	sqlHasSwitched = `SELECT EXISTS (SELECT FROM tenant_moves WHERE move_id = $1 AND switched_at IS NOT NULL)`
)

// SwitchMove makes the new server the tenant's: from here on there is no way back but another
// move. Repeated, it is the same success; server.ErrSuperseded if the move was cancelled, or the tenant
// has no place any more.
func (s *Store) SwitchMove(ctx context.Context, id prego.MoveID, delta int64) error {
	return s.inTx(ctx, "switch move "+string(id), func(tx pgx.Tx) error {
		ok, err := changed(ctx, tx, sqlSwitchMove, id, delta)
		if err == nil && !ok {
			return doneBefore(ctx, tx, server.ErrSuperseded, sqlHasSwitched, id)
		}
		if err == nil {
			ok, err = changed(ctx, tx, sqlSwitchAllocation, id)
		}
		if err == nil && !ok {
			return server.ErrSuperseded
		}
		for _, sql := range []string{sqlForgetMovedSite, sqlMoveSnapshots} {
			if err == nil {
				_, err = tx.Exec(ctx, sql, id)
			}
		}
		if err != nil {
			return err
		}
		m, err := one[tenant.Move](ctx, tx, sqlGetMove, id)
		if err != nil {
			return err
		}
		return tenantEvent(ctx, tx, tenant.Event{TenantID: m.TenantID, Step: tenant.StepMoved, Message: fmt.Sprintf("%s: from %s to %s", id, m.FromServerID, m.ToServerID)}, "moved/"+string(id))
	})
}

const sqlMoveOpened = `UPDATE tenant_moves SET opened_at = COALESCE(opened_at, clock_timestamp()), updated_at = now() WHERE move_id = $1 AND state = 'switched'`

// MoveOpened records that the site can be written to at its new place.
func (s *Store) MoveOpened(ctx context.Context, id prego.MoveID) error {
	return s.exec(ctx, "move "+string(id), sqlMoveOpened, id)
}

const (
	sqlFinishMove = `
UPDATE tenant_moves SET state = $2, reason = $3, message = $4, finished_at = now(), updated_at = now() WHERE move_id = $1 AND finished_at IS NULL
  AND (state = 'switched') = ($2 = 'done') RETURNING CASE state WHEN 'done' THEN from_server_id ELSE COALESCE(to_server_id, '') END AS server_id, tenant_id`
	sqlLeaveMoveServer = `
UPDATE servers SET tenant_count = tenant_count - 1, updated_at = now(),
    dedicated_for_tenant_id = CASE WHEN EXISTS (SELECT FROM tenant_allocations WHERE app_server_id = $1 AND tenant_id = $2 AND released_at IS NULL) -- restored there, after the other one was lost
        THEN dedicated_for_tenant_id ELSE NULLIF(dedicated_for_tenant_id, $2) END
WHERE server_id = $1`
)

// FinishMove ends a move: done, and what it had is given back where it was, or failed or
// cancelled, and its reservation is. Repeated, it returns how it ended.
func (s *Store) FinishMove(ctx context.Context, id prego.MoveID, state tenant.MoveState, reason prego.Reason, message string) (out tenant.Move, err error) {
	err = s.inTx(ctx, "finish move "+string(id), func(tx pgx.Tx) error {
		left, err := find[struct {
			ServerID prego.ServerID
			TenantID prego.TenantID
		}](ctx, tx, sqlFinishMove, id, state, reason, prego.Redact(message))
		if err == nil && left != nil && left.ServerID != "" {
			_, err = tx.Exec(ctx, sqlLeaveMoveServer, left.ServerID, left.TenantID)
		}
		if err == nil {
			out, err = one[tenant.Move](ctx, tx, sqlGetMove, id)
		}
		if err != nil || left == nil {
			return err
		}
		step := map[tenant.MoveState]tenant.Step{tenant.MoveDone: tenant.StepMoveCleared, tenant.MoveFailed: tenant.StepMoveFailed, tenant.MoveCancelled: tenant.StepMoveCancelled}[state]
		return tenantEvent(ctx, tx, tenant.Event{TenantID: left.TenantID, Step: step, Reason: string(reason), Message: fmt.Sprintf("%s: %s", id, message)}, string(step)+"/"+string(id))
	})
	return out, err
}

const sqlQuietMoves = `SELECT move_id FROM tenant_moves WHERE finished_at IS NULL AND updated_at < now() - make_interval(secs => $1) ORDER BY move_id LIMIT 200`

// QuietMoves are moves that may have lost their runs.
func (s *Store) QuietMoves(ctx context.Context, quiet time.Duration) ([]prego.MoveID, error) {
	return collectValues[prego.MoveID](ctx, s, "moves", sqlQuietMoves, quiet.Seconds())
}
