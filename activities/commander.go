package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

// Agents runs commands through the agents on hosts. A failure is a
// *server.CommandError, unless ctx ended.
type Agents interface {
	Exec(ctx context.Context, serverID prego.ServerID, addr string, in wire.ExecRequest) (wire.ExecResult, error)
}

// CommandStore keeps the audit of commands run on hosts.
type CommandStore interface {
	BeginCommand(ctx context.Context, c server.Command) error
	FinishCommand(ctx context.Context, auditID string, o server.CommandOutcome) error
}

// Commander runs workflows' commands. Each has an audit row that is written before the
// command runs and completed afterwards. It is a Bench.
type Commander struct {
	Agents Agents
	Audit  CommandStore
}

// exitTimeout is the exit code of a command that was killed at its timeout.
const exitTimeout = 124

// keptStderr is how many bytes of a failed command's stderr are in its error.
const keptStderr = 1 << 10

// recordWithin is the time for completing a row, even after the step's own time is
// over.
const recordWithin = 5 * time.Second

// Bench runs bench on a host and returns the end of its output, with secrets removed.
func (c *Commander) Bench(ctx context.Context, b server.BenchCommand) (stdout string, err error) {
	cmd := server.Command{
		AuditID: b.AuditID, ServerID: b.ServerID, WorkflowID: b.WorkflowID, Kind: string(wire.KindBench), Args: b.Args, Actor: prego.ActorWorkflow,
	}
	if err := c.Audit.BeginCommand(ctx, cmd); err != nil {
		return "", err
	}
	began := time.Now()
	r, err := c.Agents.Exec(ctx, b.ServerID, b.Addr, wire.ExecRequest{
		WorkflowID: b.WorkflowID, Kind: wire.KindBench, Args: b.Args, AuditID: b.AuditID, TenantID: string(b.TenantID),
		TimeoutSeconds: int((b.Timeout + time.Second - 1) / time.Second),
	})
	outcome := server.CommandOutcome{
		ExitCode: &r.ExitCode, Duration: time.Duration(r.DurationMs) * time.Millisecond, Stdout: cmd.RedactEnd(r.StdoutTruncated), Stderr: cmd.RedactEnd(r.StderrTruncated),
	}
	if err != nil {
		outcome = server.UnknownOutcome(err, time.Since(began))
	}
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer cancel()
	// If the row can't be completed, the step is repeated: the same audit id returns
	// the same result.
	if kept := c.Audit.FinishCommand(record, b.AuditID, outcome); kept != nil {
		return "", errors.Join(err, kept)
	}
	switch {
	case err != nil:
		var ce *server.CommandError
		if errors.As(err, &ce) {
			masked := *ce
			masked.Message, masked.Stderr = cmd.Redact(ce.Message), cmd.Redact(ce.Stderr)
			return "", &masked
		}
		return "", fmt.Errorf("%s on %s: %w", wire.KindBench, b.ServerID, err)
	case r.ExitCode != 0:
		code := server.CommandFailed
		if r.ExitCode == exitTimeout {
			code = server.CommandTimeout
		}
		return outcome.Stdout, &server.CommandError{
			Kind: string(wire.KindBench), ExitCode: r.ExitCode, Stderr: server.EndOf(outcome.Stderr, keptStderr), Permanent: true, Code: code,
		}
	}
	return outcome.Stdout, nil
}
