package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// Only what a maintenance can empty: with tenants that cannot be moved, or without storage through which they move ($4), the
// fleet waits for them instead.
const sqlEmptyFleetMember = `
INSERT INTO server_maintenances (server_id, number, kind, status, requested_by, was_open, by_fleet, total, left_now, deadline_at, keep_tenants, tenants_total, tenants_left)
SELECT s.server_id, COALESCE((SELECT max(number) FROM server_maintenances WHERE server_id = $1), 0) + 1, 'drain', 'waiting', $2, false, true, i.n, i.n, now() + make_interval(secs => $3), NOT $4, s.tenant_count, s.tenant_count
FROM servers s CROSS JOIN (SELECT count(*)::int AS n FROM instances WHERE server_id = $1 AND state <> 'stopped') i
WHERE s.server_id = $1 AND s.status = 'active' AND s.cordoned_at IS NOT NULL AND s.dedicated_for_tenant_id IS NULL AND i.n + s.tenant_count > 0 AND ($4 OR s.tenant_count = 0)
  AND NOT EXISTS (` + sqlTenantsStay + `)
  AND NOT EXISTS (SELECT FROM db_shards d WHERE d.server_id = $1 AND d.current_tenant_count > 0) AND NOT EXISTS (SELECT FROM redis_pools r WHERE r.server_id = $1 AND r.current_tenants > 0)
  AND ` + notUpdating + `
  AND NOT EXISTS (SELECT FROM server_maintenances p WHERE p.server_id = $1 AND p.by_fleet AND p.requested_by = $2 AND p.status = 'failed') -- it had its time
ON CONFLICT DO NOTHING`

const sqlFleetMaintenanceLeft = `SELECT COALESCE(max(deadline_at) - now(), '0') FROM server_maintenances WHERE server_id = $1 AND by_fleet AND finished_at IS NULL`

// EmptyFleetMember empties a server that its fleet is about to remove, if only what can move is in
// the way: instances, and tenants if they move. It returns how much time that has left of within; 0 if
// nothing is under way or it failed before. begun is set if it began now.
func (s *Store) EmptyFleetMember(ctx context.Context, id prego.ServerID, by string, within time.Duration, tenantsMove bool) (left time.Duration, begun bool, err error) {
	err = s.inTx(ctx, "maintenance of "+string(id), func(tx pgx.Tx) error {
		if _, err := value[server.Status](ctx, tx, sqlHoldServerStatus, id); err != nil {
			return ifNoRows(err, nil)
		}
		if begun, err = changed(ctx, tx, sqlEmptyFleetMember, id, by, within.Seconds(), tenantsMove); err != nil {
			return err
		}
		if left, err = value[time.Duration](ctx, tx, sqlFleetMaintenanceLeft, id); err != nil || !begun {
			return err
		}
		return addEvent(ctx, tx, server.Event{ServerID: id, Step: server.StepMaintenanceRequested, Message: "by " + by, Actor: prego.ActorWorkflow}, "")
	})
	return max(0, left), begun, err
}

const sqlWhyOccupied = `
SELECT s.tenant_count AS tenants, (SELECT count(*)::int FROM (` + sqlTenantsStay + `) t) AS stay, COALESCE(s.dedicated_for_tenant_id, '') AS dedicated,
    COALESCE((SELECT d.reason || ': ' || d.message FROM server_maintenances d WHERE d.server_id = $1 AND d.by_fleet AND d.status = 'failed' AND d.requested_by = $2 ORDER BY d.number DESC LIMIT 1), '') AS failed
FROM servers s WHERE s.server_id = $1`

// WhyOccupied reports what keeps a server that its fleet is about to remove, to explain why it
// was kept.
func (s *Store) WhyOccupied(ctx context.Context, id prego.ServerID, by string, tenantsMove bool) (string, error) {
	w, err := find[struct {
		Tenants, Stay     int
		Dedicated, Failed string
	}](ctx, s.pool, sqlWhyOccupied, id, by)
	if err != nil || w == nil {
		return "", failed("tenants of "+string(id), err)
	}
	switch {
	case w.Failed != "":
		return "it was not emptied: " + w.Failed, nil
	case w.Stay > 0:
		return fmt.Sprintf("%d tenants have their databases or caches on it, which cannot be moved yet", w.Stay), nil
	case w.Dedicated != "":
		return "it is tenant " + w.Dedicated + "'s alone", nil
	case w.Tenants > 0 && !tenantsMove:
		return fmt.Sprintf("%d tenants live on it, and without object storage (PREGO_BACKUP_ENDPOINT) they cannot be moved", w.Tenants), nil
	case w.Tenants > 0:
		return fmt.Sprintf("%d tenants live on it", w.Tenants), nil
	}
	return "", nil
}

const sqlKeepFleetMember = `
UPDATE server_maintenances SET cancel_requested_at = COALESCE(cancel_requested_at, now()), updated_at = now() WHERE server_id = $1 AND by_fleet AND finished_at IS NULL`

// KeepFleetMember ends what EmptyFleetMember began: the fleet keeps the server.
func (s *Store) KeepFleetMember(ctx context.Context, id prego.ServerID) (ended bool, err error) {
	ended, err = changed(ctx, s.pool, sqlKeepFleetMember, id)
	return ended, failed("keep "+string(id), err)
}
