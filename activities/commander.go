package activities

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// Agents runs commands through the agents on hosts. A failure is a
// *server.CommandError, unless ctx ended.
type Agents interface {
	Exec(ctx context.Context, serverID prego.ServerID, addr string, in wire.ExecRequest) (wire.ExecResult, error)
}

// Commander runs workflows' commands. Each has an audit row that is written before the
// command runs and completed afterwards. It is a Bench.
type Commander struct {
	Agents Agents
	Audit  *store.Store
	Hooks
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
	if err := c.Audit.MayRun(ctx, b.ServerID, wire.CommandKind(kindOf(b)), b.Args); err != nil {
		return "", err
	}
	cmd := auditedAs(b)
	if err := c.Audit.BeginCommand(ctx, cmd); err != nil {
		return "", err
	}
	outcome, err := c.run(ctx, b, cmd)
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer cancel()
	// If the row can't be completed, the step is repeated: the same audit id returns
	// the same result.
	if kept := c.Audit.FinishCommand(record, b.AuditID, outcome); kept != nil {
		return "", errors.Join(err, kept)
	}
	return outcome.Stdout, err
}

// notRun is the audit's message for a command whose predecessor failed.
const notRun = "not run: the command before it failed"

// BenchAll runs short commands of one host, one after the other, until one fails; done is
// how many did not. All their rows are written before the first one runs, and completed
// together: a repeated call returns the same results.
func (c *Commander) BenchAll(ctx context.Context, bs []server.BenchCommand) (done int, err error) {
	cmds, outcomes := make([]server.Command, len(bs)), make([]server.CommandOutcome, len(bs))
	for i, b := range bs {
		if err := c.Audit.MayRun(ctx, b.ServerID, wire.CommandKind(kindOf(b)), b.Args); err != nil {
			return 0, err
		}
		cmds[i], outcomes[i] = auditedAs(b), server.CommandOutcome{AuditID: b.AuditID, Stderr: notRun}
	}
	if err := c.Audit.BeginCommands(ctx, cmds); err != nil {
		return 0, err
	}
	for i, b := range bs {
		began := time.Now()
		outcomes[i], err = c.run(ctx, b, cmds[i])
		outcomes[i].AuditID, outcomes[i].Began = b.AuditID, began
		if err != nil {
			break
		}
		done++
		c.hook("commands/" + verbOf(b.Args))
	}
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer cancel()
	if kept := c.Audit.FinishCommands(record, outcomes); kept != nil {
		return 0, errors.Join(kept, err)
	}
	return done, err
}

// verbOf is what a command of bench does.
func verbOf(args []string) string {
	if len(args) > 2 && args[0] == "--site" {
		return args[2]
	}
	return args[0]
}

func auditedAs(b server.BenchCommand) server.Command {
	return server.Command{
		AuditID: b.AuditID, ServerID: b.ServerID, WorkflowID: b.WorkflowID, Kind: kindOf(b), Args: b.Args, Actor: prego.ActorWorkflow, Within: b.Timeout,
	}
}

func kindOf(b server.BenchCommand) string { return cmp.Or(b.Kind, string(wire.KindBench)) }

// run runs a command. Its outcome holds no secrets, nor does its error.
func (c *Commander) run(ctx context.Context, b server.BenchCommand, cmd server.Command) (server.CommandOutcome, error) {
	began := time.Now()
	var lease *wire.Lease
	if b.Undo != nil {
		lease = &wire.Lease{Seconds: int(b.Lease.Seconds()), Undo: b.Undo}
	}
	r, err := c.Agents.Exec(ctx, b.ServerID, b.Addr, wire.ExecRequest{
		Lease:      lease,
		WorkflowID: b.WorkflowID, Kind: wire.CommandKind(kindOf(b)), Args: b.Args, AuditID: b.AuditID, TenantID: string(b.TenantID), Secrets: b.Secrets,
		TimeoutSeconds: int((b.Timeout + time.Second - 1) / time.Second),
	})
	if err != nil {
		outcome := server.UnknownOutcome(err, time.Since(began))
		if ce, ok := errors.AsType[*server.CommandError](err); ok {
			masked := *ce
			masked.Message, masked.Stderr = cmd.Redact(ce.Message), cmd.Redact(ce.Stderr)
			return outcome, &masked
		}
		return outcome, fmt.Errorf("%s on %s: %w", kindOf(b), b.ServerID, err)
	}
	outcome := server.CommandOutcome{
		ExitCode: &r.ExitCode, Duration: time.Duration(r.DurationMs) * time.Millisecond, Stdout: cmd.RedactEnd(r.StdoutTruncated), Stderr: cmd.RedactEnd(r.StderrTruncated),
	}
	if r.ExitCode == 0 {
		return outcome, nil
	}
	code := server.CommandFailed
	if r.ExitCode == exitTimeout {
		code = server.CommandTimeout
	}
	return outcome, &server.CommandError{
		Kind: kindOf(b), ExitCode: r.ExitCode, Stderr: server.EndOf(outcome.Stderr, keptStderr), Permanent: true, Code: code,
	}
}
