package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/prego/prego"
)

// A bootstrap command is complete when it is written, so it starts and finishes at the same time; exit code 0 is
// success.
const sqlAuditBootstrap = `
INSERT INTO agent_command_audit (audit_id, server_id, workflow_id, command_kind, args_redacted, actor, started_at, finished_at, exit_code, duration_ms)
SELECT $1, server_id, workflow_id, 'bootstrap', $3, $4, now(), now(), $5, 0 FROM servers WHERE server_id = $2`

// auditBootstrap records an issue or a consumption of a bootstrap token
// (direct-provisioning §4).
func auditBootstrap(ctx context.Context, q querier, serverID prego.ServerID, args string, actor prego.Actor, exitCode int) error {
	if _, err := q.Exec(ctx, sqlAuditBootstrap, uuid.NewString(), serverID, prego.Redact(args), actor, exitCode); err != nil {
		return fmt.Errorf("audit bootstrap of %s: %w", serverID, err)
	}
	return nil
}
