package exec

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

var (
	errTimeout  = errors.New("the command took too long")
	errStopping = errors.New("the agent is ending")
)

// commands runs the control plane's commands: a few at a time, and each audit id once.
type commands struct {
	host    *workplace
	ctx     context.Context // of running commands
	cancel  context.CancelCauseFunc
	slots   chan struct{}
	results *results
	leases  *leases
	work    sync.WaitGroup

	mu      sync.Mutex
	running map[string]*call // by audit id, including waiting ones
}

// call is one command that runs. result and failed may be read once ended is closed.
type call struct {
	*policy.Command
	// progress is nil for an earlier result.
	progress *progress
	ended    chan struct{}
	result   wire.ExecResult
	failed   *policy.Problem
}

func newCommands(h *workplace) (*commands, error) {
	r, err := openResults(h.Path(wire.ExecResultsDir))
	if err != nil {
		return nil, err
	}
	l, err := openLeases(h.Path(wire.ExecLeasesDir))
	if err != nil {
		return nil, err
	}
	c := &commands{
		host: h, slots: make(chan struct{}, policy.MaxRunning), results: r, leases: l, running: make(map[string]*call),
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c, nil
}

// stop kills running commands, refuses new ones, and returns when none is left.
func (c *commands) stop() {
	c.mu.Lock()
	c.cancel(errStopping)
	c.mu.Unlock()
	c.work.Wait()
}

// submit checks a command and starts it, or returns the one with the same audit id.
func (c *commands) submit(in wire.ExecRequest, log *slog.Logger) (*call, *policy.Problem) {
	asked, refused := policy.Check(in)
	if refused != nil {
		return nil, refused
	}
	next := &call{Command: asked, ended: make(chan struct{}), progress: newProgress()}
	in, next.Digest = next.In, c.results.withSecrets(next.Digest, in.Secrets)
	c.mu.Lock()
	defer c.mu.Unlock()
	there, ok := c.running[in.AuditID]
	if !ok {
		there, ok = c.results.find(in.AuditID)
	}
	switch {
	case ok && there.Digest != next.Digest:
		return nil, &policy.Problem{Status: http.StatusUnprocessableEntity, Code: "audit_id_reused", Field: "auditId", Detail: "another command had this id"}
	case ok:
		return there, nil
	case c.ctx.Err() != nil:
		return nil, policy.Stopping()
	case len(c.running) >= policy.MaxRunning+policy.MaxQueued:
		return nil, &policy.Problem{Status: http.StatusTooManyRequests, Code: "busy", Detail: "too many commands wait on this host", RetryAfter: 5}
	}
	c.running[next.In.AuditID] = next
	c.work.Add(1)
	go func() {
		defer c.work.Done()
		c.run(next, log)
	}()
	return next, nil
}

// perform runs a command by its kind.
func (c *commands) perform(k *call) (wire.ExecResult, *policy.Problem) {
	if refused := c.host.owned(c.ctx, k.Command); refused != nil {
		return wire.ExecResult{}, refused
	}
	if keep, refused := c.leases.begin(k.Command); keep || refused != nil {
		return wire.ExecResult{AuditID: k.In.AuditID}, refused
	}
	out, failed := c.execute(k)
	if failed == nil && out.ExitCode == 0 {
		if failed = c.host.recordOwner(c.ctx, k.Command); failed == nil {
			failed = c.leases.undone(k.Command)
		}
	}
	return out, failed
}

// performMarked runs a command between its mark and its result: if the process dies in
// between, the command is never run again under this id.
func (c *commands) performMarked(k *call, log *slog.Logger) {
	if err := c.results.begin(k); err != nil {
		log.Error("a command can't be marked as begun", "error", err.Error())
		k.failed = &policy.Problem{Status: http.StatusServiceUnavailable, Code: "result_not_kept", Detail: "the host can't keep results; nothing ran", RetryAfter: 5}
		return
	}
	k.result, k.failed = c.perform(k)
	switch {
	case k.failed == nil:
	case k.failed.Code == "command_killed" || k.failed.Code == policy.Stopping().Code:
		c.results.lose(k)
		k.failed = outcomeUnknown()
	default:
		c.results.forget(k)
	}
}

// run waits for a slot, runs the command and notifies everyone who waits for it. Only
// the command's own outcome is remembered: if the agent was at fault, a repeated
// request runs it again.
func (c *commands) run(k *call, log *slog.Logger) {
	select {
	case c.slots <- struct{}{}:
		if c.ctx.Err() != nil {
			k.failed = policy.Stopping()
		} else {
			c.performMarked(k, log)
		}
		<-c.slots
	case <-c.ctx.Done():
		k.failed = policy.Stopping()
	}
	// Arguments are not logged: they may hold secrets.
	if log = log.With("kind", k.In.Kind, "verb", k.Verb, "audit_id", k.In.AuditID, "workflow_id", k.In.WorkflowID); k.failed != nil {
		log.Warn("command not run to its end", "code", k.failed.Code)
	} else {
		log.Info("command ended", "exit_code", k.result.ExitCode, "duration_ms", k.result.DurationMs)
		if err := c.results.keep(k); err != nil {
			log.Error("the command's result is not on disk", "error", err.Error())
		}
	}
	c.mu.Lock()
	delete(c.running, k.In.AuditID)
	c.mu.Unlock()
	close(k.ended)
}
