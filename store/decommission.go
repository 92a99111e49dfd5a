package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

const sqlTerminate = `
UPDATE servers SET status = 'terminated', status_message = '', terminated_at = now(), updated_at = now(),
    agent_status = CASE WHEN agent_first_seen_at IS NULL THEN agent_status ELSE 'disconnected' END
WHERE server_id = $1 AND status = 'draining'
  AND NOT EXISTS (SELECT FROM resources r WHERE r.server_id = $1 AND r.state <> 'released')`

// Its agent's last report of containers means nothing without it; reports of a terminated server are refused.
const sqlForgetReports = `DELETE FROM container_reports WHERE server_id = $1`

const sqlIsTerminated = `SELECT EXISTS (SELECT FROM servers WHERE server_id = $1 AND status = 'terminated')`

// Terminate ends a server's life once all its resources are released. Repeating it succeeds without effect.
func (s *Store) Terminate(ctx context.Context, serverID prego.ServerID) error {
	return s.inTx(ctx, fmt.Sprintf("terminate %s", serverID), func(tx pgx.Tx) error {
		// Before the server's row is held, as when a place is freed. Only a server whose deletion was forced has any.
		if err := s.loseTenants(ctx, tx, serverID, prego.ActorSystem); err != nil {
			return err
		}
		terminated, err := changed(ctx, tx, sqlTerminate, serverID)
		if err != nil {
			return err
		}
		if !terminated {
			return doneBefore(ctx, tx, errors.New("it is not draining, or still owns resources"), sqlIsTerminated, serverID)
		}
		for _, sql := range []string{sqlLeaveGroup, sqlForgetReports} {
			if _, err := tx.Exec(ctx, sql, serverID); err != nil {
				return err
			}
		}
		return addEvent(ctx, tx, server.Event{
			ServerID: serverID, Step: server.StepTerminated, Reason: prego.ReasonDecommission,
		}, string(server.StepTerminated))
	})
}
