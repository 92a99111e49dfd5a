package store

import (
	"context"
	"unicode/utf8"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// The row exists before the command runs. A command that is sent again already has it.
const sqlBeginCommand = `
INSERT INTO agent_command_audit (audit_id, server_id, workflow_id, command_kind, args_redacted, actor, requested_by, started_at)
VALUES ($1, $2, NULLIF($3, ''), $4, $5, $6, $7, now()) ON CONFLICT (audit_id) DO NOTHING`

// BeginCommand records that a command is about to run.
func (s *Store) BeginCommand(ctx context.Context, c server.Command) error {
	return s.exec(ctx, "audit command "+c.AuditID, sqlBeginCommand, c.AuditID, c.ServerID, c.WorkflowID, c.Kind, c.RedactedArgs(), c.Actor, c.By)
}

// A known end is never overwritten by an unknown one.
const sqlFinishCommand = `
UPDATE agent_command_audit SET finished_at = now(), exit_code = $2, duration_ms = $3, stdout_truncated = $4, stderr_truncated = $5
WHERE audit_id = $1 AND (exit_code IS NULL OR $2::int IS NOT NULL)`

// FinishCommand records how it ended, without secrets.
func (s *Store) FinishCommand(ctx context.Context, auditID string, o server.CommandOutcome) error {
	return s.exec(ctx, "audit command "+auditID, sqlFinishCommand, auditID, o.ExitCode, o.Duration.Milliseconds(), auditedOutput(o.Stdout), auditedOutput(o.Stderr))
}

// auditedOutput is the last part of an output stream, as it is stored. The whole stream is
// redacted first, so that no secret is cut in two and missed.
func auditedOutput(s string) string {
	s = prego.Redact(s)
	if len(s) > server.MaxAuditedOutput {
		s = s[len(s)-server.MaxAuditedOutput:]
	}
	out := make([]rune, 0, len(s))
	for _, r := range s {
		if r != utf8.RuneError && r != 0 {
			out = append(out, r)
		}
	}
	return string(out)
}

var commands = listing[server.AuditedCommand]{
	what: "commands", from: sqlCommands,
	order:   "-requested_at",
	filters: map[string]string{"server_id": "server_id", "kind": "command_kind", "actor": "actor"},
	sorts:   map[string]string{"requested_at": "requested_at"},
	id:      "audit_id",
}

const sqlCommands = `
SELECT audit_id, server_id, COALESCE(workflow_id, '') AS workflow_id, command_kind AS kind, args_redacted AS args, actor, requested_by AS by, requested_at, started_at, finished_at,
       exit_code, duration_ms, COALESCE(stdout_truncated, '') AS stdout, COALESCE(stderr_truncated, '') AS stderr
FROM agent_command_audit`

// ListCommands is a page of the commands that ran on servers' hosts.
func (s *Store) ListCommands(ctx context.Context, q prego.ListQuery) (page []server.AuditedCommand, next string, err error) {
	return commands.page(ctx, s, q)
}
