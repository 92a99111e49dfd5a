package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
)

// wait says what a run waits for, and how it ends when that does not come.
type wait struct {
	what    string
	reached func(activities.Progress) bool
	missed  stepError
}

func handshakeWait(limit time.Duration) wait {
	return wait{
		what:    "the agent's handshake",
		reached: func(p activities.Progress) bool { return p.Handshake },
		missed:  stepError{reason: prego.ReasonFailedHandshake, text: fmt.Sprintf("no handshake within %s", limit), retry: true},
	}
}

func heartbeatWait(limit time.Duration) wait {
	return wait{
		what:    "the first heartbeat",
		reached: func(p activities.Progress) bool { return p.FirstHeartbeat },
		missed:  stepError{reason: prego.ReasonFailedNoHeartbeat, text: fmt.Sprintf("no heartbeat within %s", limit), retry: true},
	}
}

// awaitHandshake waits for the machine to run and then for its agent. The
// handshake is the better proof of life: when it comes first, the provider's
// word is not waited for.
func (p *provisionServer) awaitHandshake(ctx workflow.Context, t prego.BootTimeouts) error {
	p.details(ctx, "waiting for the machine to run")
	runCtx, stop := workflow.WithCancel(ctx)
	defer stop()
	running := workflow.ExecuteActivity(call(runCtx, "wait until the provider reports it running", t.Running.D()), p.steps.AwaitRunning,
		activities.AwaitRunningInput{Server: serverRef(p.in, p.attempt), Handle: p.handle})
	h := handshakeWait(t.Handshake.D())
	for {
		var ran, signalled bool
		var runErr error
		s := workflow.NewSelector(ctx)
		s.AddFuture(running, func(f workflow.Future) { ran, runErr = true, f.Get(ctx, nil) })
		s.AddReceive(p.signals, func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, nil); signalled = true })
		s.Select(ctx)
		if signalled {
			done, err := p.look(ctx, h)
			if err != nil || done {
				return err
			}
		}
		if ran {
			if runErr == nil {
				return p.await(ctx, t.Handshake.D(), h)
			}
			if isSuperseded(runErr) || temporal.IsCanceledError(runErr) {
				return runErr
			}
			if done, err := p.look(ctx, h); err != nil || done {
				return err
			}
			return &stepError{reason: prego.ReasonFailedBoot, text: "the machine did not come up: " + message(runErr), retry: true}
		}
	}
}

func (p *provisionServer) awaitHeartbeat(ctx workflow.Context, t prego.BootTimeouts) error {
	return p.await(ctx, t.Heartbeat.D(), heartbeatWait(t.Heartbeat.D()))
}

// await waits for a signal, at most limit, and reads the row whenever one comes
// and when the time is up: a signal is a hint, and may have been lost.
func (p *provisionServer) await(ctx workflow.Context, limit time.Duration, w wait) error {
	p.details(ctx, "waiting for "+w.what)
	timerCtx, stop := workflow.WithCancel(ctx)
	defer stop()
	deadline := workflow.NewTimerWithOptions(timerCtx, limit, workflow.TimerOptions{Summary: "deadline for " + w.what})
	for {
		if done, err := p.look(ctx, w); err != nil || done {
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
		if done, err := p.look(ctx, w); err != nil || done {
			return err
		}
		missed := w.missed
		return &missed
	}
}

// look reads the row.
func (p *provisionServer) look(ctx workflow.Context, w wait) (bool, error) {
	for p.signals.ReceiveAsync(nil) { // several hints are answered by one look
	}
	var progress activities.Progress
	if err := workflow.ExecuteLocalActivity(local(ctx, "look for "+w.what), p.steps.ReadProgress, serverRef(p.in, p.attempt)).Get(ctx, &progress); err != nil {
		return false, err
	}
	if progress.BootstrapRefused {
		return false, &stepError{reason: prego.ReasonFailedBootstrap, text: "the bootstrap token was presented by a second key"}
	}
	return w.reached(progress), nil
}
