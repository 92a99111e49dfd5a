package workflows

import (
	"fmt"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"
)

// story is a sequence of a run's steps: once one fails, the later ones do nothing.
type story struct{ err error }

// step runs an activity with the options of ctx.
func (s *story) step(ctx workflow.Context, activity any, args ...any) {
	s.get(ctx, nil, activity, args...)
}

// get does the same and keeps the result.
func (s *story) get(ctx workflow.Context, result, activity any, args ...any) {
	if s.err == nil {
		s.err = do(ctx, result, activity, args...)
	}
}

// row reads what the run is about.
func (s *story) row(ctx workflow.Context, plan, activity any, args ...any) {
	if s.err == nil {
		s.err = workflow.ExecuteLocalActivity(local(ctx, "read the row"), activity, args...).Get(ctx, plan)
	}
}

// found makes the run searchable.
func (s *story) found(ctx workflow.Context, by ...temporal.SearchAttributeUpdate) {
	if s.err == nil {
		s.err = searchable(ctx, by...)
	}
}

// tell shows what the run is doing.
func (s *story) tell(ctx workflow.Context, details string) {
	if s.err == nil {
		workflow.SetCurrentDetails(ctx, details)
	}
}

// outcome makes how the run ended searchable.
func (s *story) outcome(ctx workflow.Context, outcome string) {
	if s.err == nil {
		setOutcome(ctx, outcome)
	}
}

// failed is the error of a run that failed, or was cancelled, once that is recorded.
func (s *story) failed(ctx workflow.Context, err error, why *stepError) error {
	if s.err != nil {
		return s.err
	}
	setOutcome(ctx, string(why.reason))
	if temporal.IsCanceledError(err) {
		return err
	}
	return failReason(why.reason, why.text)
}

// pause lets time pass.
func (s *story) pause(ctx workflow.Context, d time.Duration, why string) {
	if s.err == nil {
		s.err = sleep(ctx, d, why)
	}
}

// do runs an activity with the options of ctx.
func do(ctx workflow.Context, result, activity any, args ...any) error {
	return workflow.ExecuteActivity(ctx, activity, args...).Get(ctx, result)
}

// waits adds to what a run is doing until when it waits, at most, and for what. What it returns takes that back.
func waits(ctx workflow.Context, most time.Duration, why string) (over func()) {
	doing := workflow.GetCurrentDetails(ctx)
	until := workflow.Now(ctx).Add(most).UTC().Format(time.DateTime) //workflowcheck:ignore // UTC needs no file
	waiting := strings.TrimSpace(fmt.Sprintf("%s\n\nWaits until %s UTC at most: %s", doing, until, why))
	workflow.SetCurrentDetails(ctx, waiting)
	return func() {
		if workflow.GetCurrentDetails(ctx) == waiting { // nothing else has been begun meanwhile
			workflow.SetCurrentDetails(ctx, doing)
		}
	}
}

// sleep waits for a time.
func sleep(ctx workflow.Context, d time.Duration, why string) error {
	defer waits(ctx, d, why)()
	return workflow.NewTimerWithOptions(ctx, d, workflow.TimerOptions{Summary: why}).Get(ctx, nil)
}

// periodically runs a step of periodic work.
func periodically[T any](ctx workflow.Context, summary string, patience time.Duration, activity any, args ...any) (result T, err error) {
	err = do(periodic(call(ctx, summary, patience)), &result, activity, args...)
	return result, err
}

// child are the options of a run that another one starts, and that outlives it.
func child(ctx workflow.Context, id, summary string) workflow.Context {
	return workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
		WorkflowID: id, WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		ParentClosePolicy: enumspb.PARENT_CLOSE_POLICY_ABANDON, WaitForCancellation: true, StaticSummary: summary,
	})
}

func searchable(ctx workflow.Context, by ...temporal.SearchAttributeUpdate) error {
	if err := workflow.UpsertTypedSearchAttributes(ctx, by...); err != nil {
		return fmt.Errorf("search attributes: %w", err)
	}
	return nil
}
