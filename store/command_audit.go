package store

import (
	"cmp"
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

// The row exists before the command runs. A resent command already has it.
const sqlBeginCommand = `
INSERT INTO agent_command_audit (audit_id, server_id, workflow_id, command_kind, args_redacted, actor,
    requested_by, started_at, ends_by)
VALUES ($1, $2, NULLIF($3, ''), $4, $5, $6, $7, now(), now() + make_interval(secs => $8)) ON CONFLICT (audit_id) DO
    NOTHING`

// recordedArgs are a command's arguments as stored: without values that the table of commands does not declare public.
func recordedArgs(c server.Command) string {
	line, _ := policy.Recorded(wire.CommandKind(c.Kind), c.Args)
	return prego.Redact(line)
}

// BeginCommand records that a command is about to run.
func (s *Store) BeginCommand(ctx context.Context, c server.Command) error {
	return s.exec(recording(ctx), "audit command "+c.AuditID, sqlBeginCommand,
		c.AuditID, c.ServerID, c.WorkflowID, c.Kind, recordedArgs(c), c.Actor, c.By, endsWithin(ctx, c).Seconds())
}

const (
	// commandSlack is how much later than its limit the end of a command may be written.
	commandSlack = time.Minute
	// commandLimit is that of a command whose process has no limit.
	commandLimit = 24 * time.Hour
)

// endsWithin is after how long a command without an end has none, because the process that ran it died.
func endsWithin(ctx context.Context, c server.Command) time.Duration {
	limit := c.Within
	if deadline, has := ctx.Deadline(); has && limit == 0 {
		limit = time.Until(deadline)
	}
	return cmp.Or(limit, commandLimit) + commandSlack
}

const sqlEndLostCommands = `
UPDATE agent_command_audit SET finished_at = now(), stderr_truncated = 'unknown: the process that ran it died'
WHERE finished_at IS NULL AND ends_by < now()`

// EndLostCommands ends commands whose end no process will record any more, and returns their number.
func (s *Store) EndLostCommands(ctx context.Context) (int64, error) {
	tag, err := s.pool.Exec(ctx, sqlEndLostCommands)
	return tag.RowsAffected(), failed("commands without an end", err)
}

// An unknown end never overwrites a known one.
const sqlFinishCommand = `
UPDATE agent_command_audit SET finished_at = now(), exit_code = $2, duration_ms = $3, stdout_truncated = $4, stderr_truncated = $5
WHERE audit_id = $1 AND (exit_code IS NULL OR $2::int IS NOT NULL)`

// FinishCommand records how it ended, without secrets.
func (s *Store) FinishCommand(ctx context.Context, auditID string, o server.CommandOutcome) error {
	return s.exec(recording(ctx), "audit command "+auditID, sqlFinishCommand, auditID, o.ExitCode, o.Duration.Milliseconds(), auditedOutput(o.Stdout), auditedOutput(o.Stderr))
}

const sqlBeginCommands = `
INSERT INTO agent_command_audit (audit_id, server_id, workflow_id, command_kind, args_redacted, actor,
    requested_by, ends_by)
SELECT audit_id, server_id, NULLIF(workflow_id, ''), kind, args, actor, by, now() + make_interval(secs => $8)
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[]) c (audit_id, server_id, workflow_id, kind, args, actor, by)
ON CONFLICT (audit_id) DO NOTHING`

// BeginCommands records that commands are about to run, one after the other. Their start times are written with their
// ends.
func (s *Store) BeginCommands(ctx context.Context, cs []server.Command) error {
	var columns [7][]string
	var within time.Duration // all of them: each may begin when the previous one has ended
	for _, c := range cs {
		within += endsWithin(ctx, c)
		for i, v := range []string{
			c.AuditID, string(c.ServerID), c.WorkflowID, c.Kind, recordedArgs(c), string(c.Actor), c.By,
		} {
			columns[i] = append(columns[i], v)
		}
	}
	return s.exec(recording(ctx), "audit commands", sqlBeginCommands, columns[0], columns[1], columns[2], columns[3],
		columns[4], columns[5], columns[6], within.Seconds())
}

const sqlFinishCommands = `
UPDATE agent_command_audit a SET started_at = COALESCE(a.started_at, now() - make_interval(secs => o.ago)), finished_at = now() - make_interval(secs => GREATEST(o.ago - o.took, 0)),
    exit_code = o.exit_code, duration_ms = round(o.took * 1000), stdout_truncated = o.stdout, stderr_truncated = o.stderr
FROM unnest($1::text[], $2::float8[], $3::int[], $4::float8[], $5::text[], $6::text[]) o (audit_id, ago, exit_code, took, stdout, stderr)
WHERE a.audit_id = o.audit_id AND (a.exit_code IS NULL OR o.exit_code IS NOT NULL)`

// FinishCommands records how they ended, without secrets.
func (s *Store) FinishCommands(ctx context.Context, outcomes []server.CommandOutcome) error {
	var ids, stdout, stderr []string
	var ago []*float64
	var took []float64
	var codes []*int
	for _, o := range outcomes {
		var since *float64
		if !o.Began.IsZero() {
			since = new(time.Since(o.Began).Seconds())
		}
		ids, ago, codes, took = append(ids, o.AuditID), append(ago, since), append(codes, o.ExitCode), append(took, o.Duration.Seconds())
		stdout, stderr = append(stdout, auditedOutput(o.Stdout)), append(stderr, auditedOutput(o.Stderr))
	}
	return s.exec(ctx, "audit commands", sqlFinishCommands, ids, ago, codes, took, stdout, stderr)
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

// Commands is the list of the commands that ran on servers' hosts.
var Commands = Listing[server.AuditedCommand]{
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

// A bootstrap command is complete when it is written, so it starts and finishes at the same time; exit code 0 is
// success.
const sqlAuditBootstrap = `
INSERT INTO agent_command_audit (audit_id, server_id, workflow_id, command_kind, args_redacted, actor, started_at, finished_at, exit_code, duration_ms)
SELECT $1, server_id, workflow_id, 'bootstrap', $3, $4, now(), now(), $5, 0 FROM servers WHERE server_id = $2`

// auditBootstrap records an issue or a consumption of a bootstrap token
// (direct-provisioning §4). The arguments hold ids and hashes only, and are stored as they are.
func auditBootstrap(ctx context.Context, q querier, serverID prego.ServerID, args string, actor prego.Actor, exitCode int) error {
	if _, err := q.Exec(ctx, sqlAuditBootstrap, uuid.NewString(), serverID, args, actor, exitCode); err != nil {
		return fmt.Errorf("audit bootstrap of %s: %w", serverID, err)
	}
	return nil
}
