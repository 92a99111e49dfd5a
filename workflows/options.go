// Package workflows is the durable orchestration: a file per workflow, each to be read
// from top to bottom. Side effects happen in activities.
package workflows

import (
	"errors"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
)

// Search attributes for finding runs. All are keywords.
var (
	AttrServerID = temporal.NewSearchAttributeKeyKeyword("server_id")
	AttrRegion   = temporal.NewSearchAttributeKeyKeyword("region")
	AttrRole     = temporal.NewSearchAttributeKeyKeyword("role")
	AttrTenantID = temporal.NewSearchAttributeKeyKeyword("tenant_id")
	AttrOrgID    = temporal.NewSearchAttributeKeyKeyword("org_id")
	AttrFleetID  = temporal.NewSearchAttributeKeyKeyword("fleet_id")
	AttrName     = temporal.NewSearchAttributeKeyKeyword("name")
	AttrOutcome  = temporal.NewSearchAttributeKeyKeyword("outcome")
	AttrKind     = temporal.NewSearchAttributeKeyKeyword("kind")
)

// KindPeriodic is the kind of sweeps, reconciliations and measurements, however they were started.
// All other runs have no kind, so a list without periodic runs filters by kind IS NULL.
const KindPeriodic = "periodic"

// SearchAttributes lists the names to register in the namespace.
func SearchAttributes() []string {
	return []string{AttrServerID.GetName(), AttrRegion.GetName(), AttrRole.GetName(), AttrTenantID.GetName(), AttrOrgID.GetName(), AttrFleetID.GetName(), AttrName.GetName(), AttrOutcome.GetName(), AttrKind.GetName()}
}

// SignalAgent is the channel for the gateway's signals to a provisioning run about its agent. A
// signal is a hint: the run reads the row again.
const SignalAgent = "agent"

// AgentSignal is the gateway's observation.
type AgentSignal struct {
	Kind    AgentSignalKind `json:"kind"`
	Attempt int             `json:"attempt"`
}

// AgentSignalKind is the kind of an AgentSignal.
type AgentSignalKind string

// The kinds of agent signals.
const (
	SignalHeartbeat        AgentSignalKind = "heartbeat"
	SignalBootstrapRefused AgentSignalKind = "bootstrap_refused"
	SignalBootFailed       AgentSignalKind = "boot_failed"
	SignalStock            AgentSignalKind = "stock" // what the provider sells has changed
)

// SignalGeneration is the channel that notifies an ending run of its row's next generation, which
// it then continues with. For changes of state, which have no generations, any number means: read
// the row again.
const SignalGeneration = "generation"

// nextGeneration returns the newest generation that the run was signalled, at least its
// own. It is called last: the server does not let a run complete before it has seen all
// its signals.
func nextGeneration(ctx workflow.Context, own int) int {
	signals := workflow.GetSignalChannel(ctx, SignalGeneration)
	newest := own
	for told := 0; signals.ReceiveAsync(&told); {
		newest = max(newest, told)
	}
	return newest
}

// heartbeatTimeout is how soon the death of a worker is noticed. Steps heartbeat every
// 2 s.
const heartbeatTimeout = 10 * time.Second

// storeRetry retries steps that only use the database until it is back.
var storeRetry = &temporal.RetryPolicy{InitialInterval: 200 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 10 * time.Second}

// local are the options of short steps that only read the database.
func local(ctx workflow.Context, summary string) workflow.Context {
	return workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		ScheduleToCloseTimeout: time.Hour, StartToCloseTimeout: 15 * time.Second, RetryPolicy: storeRetry, Summary: summary,
	})
}

// unstoppable are the options of short steps that change the database as part of a
// workflow task. A cancelled run waits for the step, as with write: the caller then looks
// at ctx.
func unstoppable(ctx workflow.Context, summary string) workflow.Context {
	free, _ := workflow.NewDisconnectedContext(ctx)
	return local(free, summary)
}

// write are the options of short steps that change the database; they are retried until
// the change is written. A cancelled run waits for the running step: otherwise the step
// could come after its own compensation.
func write(ctx workflow.Context, summary string) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: 15 * time.Second, WaitForCancellation: true, RetryPolicy: storeRetry, Summary: summary,
	})
}

// call are the options of steps that call the provider or a host: heartbeats reveal a
// dead worker, and total bounds all retries.
func call(ctx workflow.Context, summary string, total time.Duration) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		ScheduleToCloseTimeout: total, StartToCloseTimeout: total, HeartbeatTimeout: heartbeatTimeout, WaitForCancellation: true,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 500 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 30 * time.Second},
		Summary:     summary,
	})
}

// finishing are the options of a last step, which calls hosts and then writes that all is
// done: it is retried until that is written, and bounds itself what it does on hosts.
// within is how long that may take.
func finishing(ctx workflow.Context, summary string, within time.Duration) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: within + time.Minute, HeartbeatTimeout: heartbeatTimeout, WaitForCancellation: true,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 500 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 30 * time.Second},
		Summary:     summary,
	})
}

// errType is the stable type of an activity's error, "" for others.
func errType(err error) string {
	if app, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		return app.Type()
	}
	return ""
}

// reasonOf returns why a step failed: the code of the activity's error, or a common one for errors without a code.
// These carry the name of their Go type instead, as joinError, which is no reason.
func reasonOf(err error, otherwise prego.Reason) prego.Reason {
	if t := errType(err); t != "" && !strings.ContainsFunc(t, func(r rune) bool { return (r < 'a' || r > 'z') && r != '_' }) {
		return prego.Reason(t)
	}
	return otherwise
}

// errorMessage is an activity's error without Temporal's wrapping.
func errorMessage(err error) string {
	if app, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		return app.Message()
	}
	if _, ok := errors.AsType[*temporal.TimeoutError](err); ok {
		return "no answer in time"
	}
	return err.Error()
}

func isSuperseded(err error) bool { return errType(err) == activities.ErrTypeSuperseded }

// setOutcome makes what a run came to searchable, and its result.
func setOutcome(ctx workflow.Context, outcome string) {
	setState(ctx, outcome)
	if err := workflow.UpsertTypedSearchAttributes(ctx, AttrOutcome.ValueSet(outcome)); err != nil {
		workflow.GetLogger(ctx).Warn("outcome not searchable", "error", err)
	}
}

// succeeded replaces an outdated outcome: of this run while it waited, or of the run that it continues. A completed run
// needs none: its status is enough.
func succeeded(ctx workflow.Context) {
	setState(ctx, "active")
	if _, has := workflow.GetTypedSearchAttributes(ctx).GetKeyword(AttrOutcome); has {
		setOutcome(ctx, "active")
	}
}

func serverRef(in ProvisionServerInput, attempt int) activities.ServerRef {
	return activities.ServerRef{ServerID: in.ServerID, Generation: in.Generation, Attempt: attempt}
}

// failReason is the error of a server's run that did not become active: it is shown as
// failed in the UI, with the reason as the error's type.
func failReason(reason prego.Reason, text string) error {
	return temporal.NewNonRetryableApplicationError(text, string(reason), nil)
}
