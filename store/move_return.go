package store

import (
	"context"
	"fmt"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/tenant"
)

// Until a move begins to clear it, the old place still has what the tenant had when nothing could be written
// any more. When a part of the new place is lost before, the tenant is given that back, unless a
// backup is newer; the move is undone then, as before its switch.

// $1 is the server that is lost, with a part that had moved there. What did not move is as it was in both places.
const sqlReturnable = `
SELECT m.move_id, m.tenant_id, t.org_id, t.state, t.deadline_at AS deadline, m.allocation_id, m.moves_shard, m.frozen_at, m.from_server_id, m.site,
    (SELECT LEAST(COALESCE(s.agent_last_heartbeat_at, now()), now()) FROM servers s WHERE s.server_id = $1) AS lost_at,
    ` + newestTaken + ` AS taken_at
FROM tenant_moves m JOIN tenants t ON t.tenant_id = m.tenant_id JOIN tenant_allocations a ON a.allocation_id = m.allocation_id AND a.released_at IS NULL
JOIN servers f ON f.server_id = m.from_server_id JOIN db_shards d ON d.shard_id = m.from_shard_id JOIN servers dh ON dh.server_id = d.server_id
LEFT JOIN redis_pools r ON r.pool_id = m.from_pool_id LEFT JOIN servers rh ON rh.server_id = r.server_id
WHERE m.finished_at IS NULL AND m.state = 'switched' AND m.clearing_at IS NULL AND m.returned_at IS NULL AND has_site(t.state)
  AND (m.moves_server AND m.to_server_id = $1
    OR m.moves_shard AND EXISTS (SELECT FROM db_shards x WHERE x.shard_id = m.to_shard_id AND x.server_id = $1)
    OR m.moves_pool AND NOT m.moves_shard AND EXISTS (SELECT FROM redis_pools x WHERE x.pool_id = m.to_pool_id AND x.server_id = $1))
  AND NOT EXISTS (SELECT FROM unnest(ARRAY[f.server_id, dh.server_id, rh.server_id]) g (id) JOIN servers l ON l.server_id = g.id
      WHERE l.server_id = $1 OR l.status NOT IN ('active', 'draining') OR l.status_reason IN ('server_missing', 'server_lost'))
ORDER BY m.tenant_id FOR NO KEY UPDATE OF t, m`

const (
	sqlReturnMove       = `UPDATE tenant_moves SET state = 'frozen', returned_at = now(), message = $2, updated_at = now() WHERE move_id = $1`
	sqlReturnAllocation = `
UPDATE tenant_allocations a SET app_server_id = m.from_server_id, db_shard_id = m.from_shard_id, redis_pool_id = m.from_pool_id, infra_provider = f.infra_provider,
    on_shard = CASE WHEN m.moves_shard THEN f.role = 'app' ELSE a.on_shard END, on_pool = CASE WHEN m.moves_pool THEN f.role = 'app' ELSE a.on_pool END
FROM tenant_moves m JOIN servers f ON f.server_id = m.from_server_id WHERE m.move_id = $1 AND a.allocation_id = m.allocation_id`
	sqlReturnRegion    = `UPDATE tenants t SET region = m.from_region, updated_at = now() FROM tenant_moves m WHERE m.move_id = $1 AND t.tenant_id = m.tenant_id AND m.to_region <> ''`
	sqlReturnSnapshots = `
UPDATE snapshots n SET server_id = m.from_server_id FROM tenant_moves m
WHERE m.move_id = $1 AND m.moves_server AND n.tenant_id = m.tenant_id AND n.server_id = m.to_server_id AND n.erased_at IS NULL AND n.created_at < m.frozen_at`
	sqlNoteReturn = `
INSERT INTO tenant_losses (tenant_id, allocation_id, server_id, state, deadline_at, lost_at, taken_at, restored_at, cleared_at) VALUES ($1, $2, $3, $4, $5, $6, $7, now(), now())`
)

type returnable struct {
	lostTenant
	MoveID       prego.MoveID
	MovesShard   bool
	FrozenAt     time.Time
	FromServerID prego.ServerID
}

// returnMoves gives tenants that had moved to a server that is lost back to where they were, if less is
// lost by that than by a restore.
func (s *Store) returnMoves(ctx context.Context, tx *txn, serverID prego.ServerID, actor prego.Actor) {
	moves := manyIn[returnable](ctx, tx, sqlReturnable, serverID)
	for _, m := range moves {
		if m.MovesShard && m.TakenAt != nil && m.TakenAt.After(m.FrozenAt) {
			continue // that backup has more than the database before
		}
		tx.check(returnMove(ctx, tx, m, serverID, actor))
	}
}

func returnMove(ctx context.Context, tx *txn, m returnable, serverID prego.ServerID, actor prego.Actor) error {
	since, what := m.LostAt, "no row of its database is lost"
	if m.MovesShard {
		since = m.FrozenAt
		what = fmt.Sprintf("its database there is of %s: %d min are lost", since.UTC().Format(time.RFC3339), tenant.LostMinutes(since, m.LostAt))
	}
	message := fmt.Sprintf("server %s is gone, where the tenant had moved to. It is on %s again; %s", serverID, m.FromServerID, what)
	for _, st := range []struct {
		sql  string
		args []any
	}{
		{sqlReturnMove, []any{m.MoveID, message}},
		{sqlReturnAllocation, []any{m.MoveID}},
		{sqlReturnRegion, []any{m.MoveID}},
		{sqlReturnSnapshots, []any{m.MoveID}},
		{sqlNoteReturn, []any{m.TenantID, m.AllocationID, serverID, m.State, m.Deadline, m.LostAt, since}},
	} {
		tx.run(ctx, st.sql, st.args...)
	}
	tx.check(tenantEvent(ctx, tx, tenant.Event{
		TenantID: m.TenantID, Step: tenant.StepMoveReturned, Actor: string(actor), Reason: string(prego.ReasonServerLost), Message: message,
	}, "returned/"+string(m.MoveID)))
	details := map[string]any{"server_id": serverID, "lost_at": m.LostAt.UTC(), "move_id": m.MoveID, "lost_minutes": tenant.LostMinutes(since, m.LostAt)}
	return orgEvent(ctx, tx, org.Event{OrgID: m.OrgID, Type: "tenant.server_lost", Subject: string(m.TenantID), Actor: string(actor), Reason: string(prego.ReasonServerLost)}, details)
}

const sqlClearingMove = `UPDATE tenant_moves SET clearing_at = COALESCE(clearing_at, now()), updated_at = now() WHERE move_id = $1 AND state = 'switched'`

// ClearingMove records that the old place is about to be cleared: there is no way back to it any more. ok is
// false if the tenant was given back to it.
func (s *Store) ClearingMove(ctx context.Context, id prego.MoveID) (ok bool, err error) {
	err = s.inTx(ctx, "clear after move "+string(id), func(tx *txn) (err error) {
		ok, err = changed(ctx, tx, sqlClearingMove, id)
		return err
	})
	return ok, err
}

const sqlQuietMoves = `
SELECT move_id, lost FROM (
    SELECT m.move_id, m.updated_at, m.returned_at IS NOT NULL
        OR m.state = 'switched' AND NOT EXISTS (SELECT FROM tenant_allocations a WHERE a.allocation_id = m.allocation_id AND a.released_at IS NULL) AS lost
    FROM tenant_moves m WHERE m.finished_at IS NULL) q
WHERE lost OR updated_at < now() - make_interval(secs => $1) ORDER BY md5(move_id || now()) LIMIT 200`

// QuietMoves are moves that may have lost their runs, and moves that must end because the new place is
// lost.
func (s *Store) QuietMoves(ctx context.Context, quiet time.Duration) ([]tenant.QuietMove, error) {
	return collect[tenant.QuietMove](ctx, s, "moves", sqlQuietMoves, quiet.Seconds())
}
