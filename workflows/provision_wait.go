package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
)

// wait is the event that a run waits for, and the run's result if it does not come.
type wait struct {
	what    string
	reached func(activities.Progress) bool
	reason  prego.Reason
	none    string // the message of that failure
	boot    bool   // a host that reports a failed boot ends it
}

func handshakeWait() wait {
	return wait{
		what:    "the agent's handshake",
		reached: func(p activities.Progress) bool { return p.Handshake },
		reason:  prego.ReasonFailedHandshake,
		none:    "no handshake",
		boot:    true,
	}
}

func heartbeatWait() wait {
	return wait{
		what:    "the first heartbeat",
		reached: func(p activities.Progress) bool { return p.FirstHeartbeat },
		reason:  prego.ReasonFailedNoHeartbeat,
		none:    "no heartbeat",
	}
}

// awaitAgent waits for the first heartbeat. The gateway signals it, so a punctual boot takes one
// timer and one read of the row. The provider is asked whether the machine runs only if the
// host is late.
func (p *provisionServer) awaitAgent(ctx workflow.Context, t server.BootTimeouts) error {
	if err := p.awaitInTime(ctx, t); err != nil || p.seen.FirstHeartbeat {
		return err
	}
	return p.await(ctx, max(t.Heartbeat.D()-p.seen.HandshakeAge, 0), 0, heartbeatWait())
}

// late is how long a host may be silent before the provider is asked about its machine.
func late(t server.BootTimeouts) time.Duration {
	return min(t.Running.D(), t.Handshake.D(), t.Heartbeat.D()) / 2
}

// awaitInTime waits until the agent completed its handshake.
func (p *provisionServer) awaitInTime(ctx workflow.Context, t server.BootTimeouts) error {
	p.details(ctx, "waiting for the agent")
	timerCtx, stop := workflow.WithCancel(ctx)
	defer stop()
	patience := workflow.NewTimerWithOptions(timerCtx, late(t), workflow.TimerOptions{Summary: "then the provider is asked about the machine"})
	for isLate := false; !isLate; {
		s := workflow.NewSelector(ctx)
		s.AddReceive(p.signals, func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, nil) })
		s.AddFuture(patience, func(workflow.Future) { isLate = true })
		s.Select(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, done, err := p.look(ctx, handshakeWait()); err != nil || done {
			return err
		}
	}
	t.Running -= prego.Duration(late(t))
	return p.awaitHandshake(ctx, t)
}

// awaitHandshake waits until the machine runs and then for its agent. A handshake is
// the better proof of life: if it comes first, the provider's status is not waited for.
func (p *provisionServer) awaitHandshake(ctx workflow.Context, t server.BootTimeouts) error {
	p.details(ctx, "waiting for the machine to run")
	runCtx, stop := workflow.WithCancel(ctx)
	defer stop()
	running := workflow.ExecuteActivity(call(runCtx, "wait until the provider reports it running", t.Running.D()), p.steps.AwaitRunning,
		activities.AwaitRunningInput{Server: serverRef(p.in, p.attempt), Handle: p.handle})
	h := handshakeWait()
	for {
		var ran, signalled bool
		var runErr error
		s := workflow.NewSelector(ctx)
		s.AddFuture(running, func(f workflow.Future) { ran, runErr = true, f.Get(ctx, nil) })
		s.AddReceive(p.signals, func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, nil); signalled = true })
		s.Select(ctx)
		if signalled {
			_, done, err := p.look(ctx, h)
			if err != nil || done {
				return err
			}
		}
		if ran {
			if runErr == nil {
				return p.await(ctx, t.Handshake.D(), t.Boot.D(), h)
			}
			if isSuperseded(runErr) || temporal.IsCanceledError(runErr) {
				return runErr
			}
			if _, done, err := p.look(ctx, h); err != nil || done {
				return err
			}
			return &stepError{reason: prego.ReasonFailedBoot, text: "the machine did not come up: " + errorMessage(runErr), retry: true}
		}
	}
}

// await waits for a signal, and reads the row whenever one arrives and when the time is
// up: a signal is a hint, and may have been lost. Each sign of life of the boot
// restarts the limit, up to most in total: a host that reports what it waits for is not
// silent. The lookup alone decides what follows.
func (p *provisionServer) await(ctx workflow.Context, limit, most time.Duration, w wait) error {
	p.details(ctx, "waiting for "+w.what)
	timerCtx, stop := workflow.WithCancel(ctx)
	defer stop()
	began := workflow.Now(ctx)
	deadline := workflow.NewTimerWithOptions(timerCtx, limit, workflow.TimerOptions{Summary: "deadline for " + w.what})
	waits(ctx, limit, w.what)
	for {
		if _, done, err := p.look(ctx, w); err != nil || done {
			return err
		}
		expired := false
		s := workflow.NewSelector(ctx)
		s.AddReceive(p.signals, func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, nil) })
		s.AddFuture(deadline, func(f workflow.Future) { expired = true })
		s.Select(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		if !expired {
			continue
		}
		progress, done, err := p.look(ctx, w)
		if err != nil || done {
			return err
		}
		waited := workflow.Now(ctx).Sub(began)
		more := min(limit-progress.BootSignAge, most-waited)
		if progress.BootSign == "" || more <= 0 {
			missed := stepError{reason: w.reason, text: fmt.Sprintf("%s within %s", w.none, waited.Round(100*time.Millisecond)), retry: true}
			if progress.BootSign != "" {
				missed.text += fmt.Sprintf("; the last sign of the boot, %s ago: %s", progress.BootSignAge.Round(time.Second), progress.BootSign)
			}
			if progress.BootSignReason == prego.ReasonClockSkew {
				missed.reason = prego.ReasonClockSkew
			}
			return &missed
		}
		p.details(ctx, fmt.Sprintf("waiting for %s; the boot goes on: %s", w.what, progress.BootSign))
		deadline = workflow.NewTimerWithOptions(timerCtx, more, workflow.TimerOptions{Summary: "deadline for " + w.what})
		waits(ctx, more, w.what)
	}
}

// look reads the row.
func (p *provisionServer) look(ctx workflow.Context, w wait) (progress activities.Progress, done bool, err error) {
	for p.signals.ReceiveAsync(nil) { // one read serves several hints
	}
	if err := workflow.ExecuteLocalActivity(local(ctx, "look for "+w.what), p.steps.ReadProgress, serverRef(p.in, p.attempt)).Get(ctx, &progress); err != nil {
		return progress, false, err
	}
	p.seen = progress
	switch {
	case progress.BootstrapRefused:
		return progress, false, &stepError{reason: prego.ReasonFailedBootstrap, text: "the bootstrap token was presented by a second key"}
	case w.reached(progress):
		return progress, true, nil
	case w.boot && progress.BootFailed != "":
		return progress, false, &stepError{reason: progress.BootFailed, text: progress.BootFailure, retry: true}
	}
	return progress, false, nil
}
