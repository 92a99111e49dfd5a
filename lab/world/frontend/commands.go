package frontend

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	commandpb "go.temporal.io/api/command/v1"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/protobuf/proto"
)

// PollWorkflowTaskQueue waits for a workflow task.
func (s *Service) PollWorkflowTaskQueue(ctx context.Context,
	in *workflowservice.PollWorkflowTaskQueueRequest,
) (*workflowservice.PollWorkflowTaskQueueResponse, error) {
	if in.GetTaskQueue().GetKind() == enumspb.TASK_QUEUE_KIND_STICKY {
		return nil, serviceerror.NewUnimplemented("sticky task queues: set the size of the workers' cache to 0")
	}
	if got, ok := s.poll(ctx, queueKey{
		in.GetTaskQueue().GetName(),
		enumspb.TASK_QUEUE_TYPE_WORKFLOW,
	}).(*workflowservice.PollWorkflowTaskQueueResponse); ok {
		return got, nil
	}
	return &workflowservice.PollWorkflowTaskQueueResponse{}, nil
}

// PollActivityTaskQueue waits for an activity.
func (s *Service) PollActivityTaskQueue(ctx context.Context,
	in *workflowservice.PollActivityTaskQueueRequest,
) (*workflowservice.PollActivityTaskQueueResponse, error) {
	if got, ok := s.poll(ctx, queueKey{
		in.GetTaskQueue().GetName(),
		enumspb.TASK_QUEUE_TYPE_ACTIVITY,
	}).(*workflowservice.PollActivityTaskQueueResponse); ok {
		return got, nil
	}
	return &workflowservice.PollActivityTaskQueueResponse{}, nil
}

// taskOf finds the workflow task of a token. Call it with the lock held.
func (s *Service) taskOf(token []byte) (*run, error) {
	runID, id, _ := strings.Cut(string(token), "/")
	r := s.runs[runID]
	if r == nil || r.over() || r.task == nil || r.task.token != id {
		return nil, serviceerror.NewNotFound("Workflow task not found.")
	}
	return r, nil
}

// RespondWorkflowTaskFailed reports that a worker could not carry out a workflow task.
func (s *Service) RespondWorkflowTaskFailed(_ context.Context,
	in *workflowservice.RespondWorkflowTaskFailedRequest,
) (*workflowservice.RespondWorkflowTaskFailedResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.taskOf(in.GetTaskToken())
	if err != nil {
		return nil, err
	}
	s.failures = append(s.failures,
		TaskFailure{WorkflowID: r.id, Cause: in.GetCause(), Message: in.GetFailure().GetMessage()})
	r.failTask(in.GetCause(), in)
	return &workflowservice.RespondWorkflowTaskFailedResponse{}, nil
}

func (r *run) failTask(cause enumspb.WorkflowTaskFailedCause, in *workflowservice.RespondWorkflowTaskFailedRequest) {
	r.write(&historypb.HistoryEvent{
		EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_FAILED,
		Attributes: &historypb.HistoryEvent_WorkflowTaskFailedEventAttributes{WorkflowTaskFailedEventAttributes: &historypb.WorkflowTaskFailedEventAttributes{
			ScheduledEventId: r.task.scheduledID, StartedEventId: r.task.startedID, Cause: cause,
			Failure: in.GetFailure(), Identity: in.GetIdentity(),
		}},
	})
	if cause == enumspb.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND {
		r.task.attempt = 0 // not the worker's fault
	}
	r.again()
}

// RespondWorkflowTaskCompleted carries out the commands of a workflow task.
func (s *Service) RespondWorkflowTaskCompleted(_ context.Context,
	in *workflowservice.RespondWorkflowTaskCompletedRequest) (*workflowservice.RespondWorkflowTaskCompletedResponse,
	error,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.taskOf(in.GetTaskToken())
	if err != nil {
		return nil, err
	}
	if in.GetIntermediatePage() || in.GetPageNumber() > 0 || len(in.GetMessages()) > 0 ||
		len(in.GetQueryResults()) > 0 {
		return nil, serviceerror.NewUnimplemented("pages of commands, updates and queries")
	}
	for _, c := range in.GetCommands() {
		if err := known(c); err != nil {
			return nil, err
		}
	}
	// A run does not end before it has seen everything.
	if len(r.buffered) > 0 && slices.ContainsFunc(in.GetCommands(), ends) {
		r.failTask(enumspb.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
			&workflowservice.RespondWorkflowTaskFailedRequest{Identity: in.GetIdentity()})
		return nil, serviceerror.NewInvalidArgument("UnhandledCommand")
	}
	t := r.task
	t.clock.Stop()
	done := r.write(&historypb.HistoryEvent{
		EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
		Attributes: &historypb.HistoryEvent_WorkflowTaskCompletedEventAttributes{WorkflowTaskCompletedEventAttributes: &historypb.WorkflowTaskCompletedEventAttributes{
			ScheduledEventId: t.scheduledID, StartedEventId: t.startedID, Identity: in.GetIdentity(),
			SdkMetadata: in.GetSdkMetadata(), MeteringMetadata: in.GetMeteringMetadata(),
			WorkerVersion: in.GetWorkerVersionStamp(), BinaryChecksum: in.GetBinaryChecksum(), //nolint:staticcheck // as workers send it
		}},
	})
	r.attempt = 1
	var next bool // there is already something for the workflow to learn
	for _, c := range in.GetCommands() {
		next = r.carryOut(done.EventId, c) || next
		if r.over() {
			return &workflowservice.RespondWorkflowTaskCompletedResponse{}, nil
		}
	}
	r.task = nil
	next = r.flush() || next
	out := &workflowservice.RespondWorkflowTaskCompletedResponse{}
	switch {
	case in.GetForceCreateNewWorkflowTask() && in.GetReturnNewWorkflowTask():
		e := r.write(&historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
			Attributes: &historypb.HistoryEvent_WorkflowTaskScheduledEventAttributes{WorkflowTaskScheduledEventAttributes: &historypb.WorkflowTaskScheduledEventAttributes{
				TaskQueue: r.started.TaskQueue, StartToCloseTimeout: r.started.WorkflowTaskTimeout, Attempt: 1,
			}},
		})
		r.task = &workflowTask{scheduledID: e.EventId, attempt: 1}
		out.WorkflowTask = r.startTask(r.task, in.GetIdentity())
	case next || in.GetForceCreateNewWorkflowTask():
		r.schedule()
	}
	return out, nil
}

func ends(c *commandpb.Command) bool {
	switch c.GetCommandType() {
	case enumspb.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION, enumspb.COMMAND_TYPE_FAIL_WORKFLOW_EXECUTION,
		enumspb.COMMAND_TYPE_CANCEL_WORKFLOW_EXECUTION,
		enumspb.COMMAND_TYPE_CONTINUE_AS_NEW_WORKFLOW_EXECUTION:
		return true
	}
	return false
}

func known(c *commandpb.Command) error {
	switch c.GetCommandType() {
	case enumspb.COMMAND_TYPE_SCHEDULE_ACTIVITY_TASK, enumspb.COMMAND_TYPE_REQUEST_CANCEL_ACTIVITY_TASK,
		enumspb.COMMAND_TYPE_START_TIMER, enumspb.COMMAND_TYPE_CANCEL_TIMER,
		enumspb.COMMAND_TYPE_RECORD_MARKER, enumspb.COMMAND_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
		enumspb.COMMAND_TYPE_START_CHILD_WORKFLOW_EXECUTION,
		enumspb.COMMAND_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION:
		return nil
	}
	if ends(c) {
		return nil
	}
	return serviceerror.NewUnimplemented(c.GetCommandType().String())
}

// carryOut carries out one command, and reports whether the workflow can continue immediately.
func (r *run) carryOut(task int64, c *commandpb.Command) bool {
	meta := c.GetUserMetadata()
	switch c.GetCommandType() {
	case enumspb.COMMAND_TYPE_SCHEDULE_ACTIVITY_TASK:
		in := c.GetScheduleActivityTaskCommandAttributes()
		attrs := &historypb.ActivityTaskScheduledEventAttributes{
			ActivityId: in.ActivityId, ActivityType: in.ActivityType, TaskQueue: in.TaskQueue, Header: in.Header,
			Input: in.Input, ScheduleToCloseTimeout: in.ScheduleToCloseTimeout,
			ScheduleToStartTimeout: in.ScheduleToStartTimeout, StartToCloseTimeout: in.StartToCloseTimeout,
			HeartbeatTimeout: in.HeartbeatTimeout, RetryPolicy: in.RetryPolicy, WorkflowTaskCompletedEventId: task,
			Priority: in.Priority,
		}
		if attrs.TaskQueue.GetName() == "" {
			attrs.TaskQueue = r.started.TaskQueue
		}
		e := r.write(&historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, UserMetadata: meta,
			Attributes: &historypb.HistoryEvent_ActivityTaskScheduledEventAttributes{ActivityTaskScheduledEventAttributes: attrs},
		})
		a := &activity{scheduledID: e.EventId, scheduledAt: e.EventTime, attrs: attrs, attempt: 1}
		r.activities[e.EventId] = a
		if d := attrs.GetScheduleToCloseTimeout().AsDuration(); d > 0 {
			a.whole = r.s.after(d, "activity-timeout "+r.activityName(a),
				func() { r.timedOut(a, enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE) })
		}
		r.offer(a)
	case enumspb.COMMAND_TYPE_REQUEST_CANCEL_ACTIVITY_TASK:
		scheduled := c.GetRequestCancelActivityTaskCommandAttributes().GetScheduledEventId()
		e := r.write(&historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED,
			Attributes: &historypb.HistoryEvent_ActivityTaskCancelRequestedEventAttributes{ActivityTaskCancelRequestedEventAttributes: &historypb.ActivityTaskCancelRequestedEventAttributes{
				ScheduledEventId: scheduled, WorkflowTaskCompletedEventId: task,
			}},
		})
		if a := r.activities[scheduled]; a != nil {
			a.cancelID = e.EventId
			if a.token == "" { // no worker has it: it ends immediately
				a.stop()
				delete(r.activities, scheduled)
				last := canceled(a, nil, "")
				last.EventTime = now()
				r.buffered = append(r.buffered, last) // after the events of all commands, whose ids workers count
			}
		}
	case enumspb.COMMAND_TYPE_START_TIMER:
		in := c.GetStartTimerCommandAttributes()
		e := r.write(&historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_TIMER_STARTED, UserMetadata: meta,
			Attributes: &historypb.HistoryEvent_TimerStartedEventAttributes{TimerStartedEventAttributes: &historypb.TimerStartedEventAttributes{
				TimerId: in.TimerId, StartToFireTimeout: in.StartToFireTimeout, WorkflowTaskCompletedEventId: task,
			}},
		})
		t := &timer{startedID: e.EventId}
		r.timers[in.TimerId] = t
		t.clock = r.s.after(in.StartToFireTimeout.AsDuration(), "timer "+r.id+"/"+in.TimerId, func() {
			if r.timers[in.TimerId] != t || r.over() {
				return
			}
			delete(r.timers, in.TimerId)
			r.happen(&historypb.HistoryEvent{
				EventType: enumspb.EVENT_TYPE_TIMER_FIRED,
				Attributes: &historypb.HistoryEvent_TimerFiredEventAttributes{TimerFiredEventAttributes: &historypb.TimerFiredEventAttributes{
					TimerId: in.TimerId, StartedEventId: t.startedID,
				}},
			})
		})
	case enumspb.COMMAND_TYPE_CANCEL_TIMER:
		r.cancelTimer(task, c.GetCancelTimerCommandAttributes().GetTimerId())
	case enumspb.COMMAND_TYPE_RECORD_MARKER:
		in := c.GetRecordMarkerCommandAttributes()
		r.write(&historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_MARKER_RECORDED, UserMetadata: meta,
			Attributes: &historypb.HistoryEvent_MarkerRecordedEventAttributes{MarkerRecordedEventAttributes: &historypb.MarkerRecordedEventAttributes{
				MarkerName: in.MarkerName, Details: in.Details, WorkflowTaskCompletedEventId: task, Header: in.Header,
				Failure: in.Failure,
			}},
		})
	case enumspb.COMMAND_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES:
		in := c.GetUpsertWorkflowSearchAttributesCommandAttributes()
		r.write(&historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
			Attributes: &historypb.HistoryEvent_UpsertWorkflowSearchAttributesEventAttributes{UpsertWorkflowSearchAttributesEventAttributes: &historypb.UpsertWorkflowSearchAttributesEventAttributes{
				WorkflowTaskCompletedEventId: task, SearchAttributes: in.SearchAttributes,
			}},
		})
		if r.attributes == nil {
			r.attributes = &commonpb.SearchAttributes{}
		}
		if r.attributes.IndexedFields == nil {
			r.attributes.IndexedFields = map[string]*commonpb.Payload{}
		}
		maps.Copy(r.attributes.IndexedFields, in.GetSearchAttributes().GetIndexedFields())
	case enumspb.COMMAND_TYPE_START_CHILD_WORKFLOW_EXECUTION:
		in := c.GetStartChildWorkflowExecutionCommandAttributes()
		attrs := &historypb.StartChildWorkflowExecutionInitiatedEventAttributes{
			Namespace: r.s.o.Namespace, WorkflowId: in.WorkflowId, WorkflowType: in.WorkflowType,
			TaskQueue: in.TaskQueue, Input: in.Input, WorkflowExecutionTimeout: in.WorkflowExecutionTimeout,
			WorkflowRunTimeout: in.WorkflowRunTimeout, WorkflowTaskTimeout: in.WorkflowTaskTimeout,
			ParentClosePolicy: in.ParentClosePolicy, Control: in.Control, WorkflowTaskCompletedEventId: task,
			WorkflowIdReusePolicy: in.WorkflowIdReusePolicy, RetryPolicy: in.RetryPolicy, CronSchedule: in.CronSchedule,
			Header: in.Header, Memo: in.Memo, SearchAttributes: in.SearchAttributes, Priority: in.Priority,
		}
		if attrs.TaskQueue.GetName() == "" {
			attrs.TaskQueue = r.started.TaskQueue
		}
		e := r.write(&historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED, UserMetadata: meta,
			Attributes: &historypb.HistoryEvent_StartChildWorkflowExecutionInitiatedEventAttributes{StartChildWorkflowExecutionInitiatedEventAttributes: attrs},
		})
		r.children[e.EventId] = &child{id: in.WorkflowId, typ: in.WorkflowType, policy: in.ParentClosePolicy}
		r.s.ready("child "+in.WorkflowId, func() { r.startChild(e.EventId, attrs) })
	case enumspb.COMMAND_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION:
		in := c.GetRequestCancelExternalWorkflowExecutionCommandAttributes()
		e := r.write(&historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED,
			Attributes: &historypb.HistoryEvent_RequestCancelExternalWorkflowExecutionInitiatedEventAttributes{RequestCancelExternalWorkflowExecutionInitiatedEventAttributes: &historypb.RequestCancelExternalWorkflowExecutionInitiatedEventAttributes{
				WorkflowTaskCompletedEventId: task, Namespace: r.s.o.Namespace,
				WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: in.WorkflowId, RunId: in.RunId},
				Control:           in.Control, ChildWorkflowOnly: in.ChildWorkflowOnly, Reason: in.Reason, //nolint:staticcheck // as workers send it
			}},
		})
		r.s.ready("cancel "+in.WorkflowId, func() { r.cancelOther(e) })
	case enumspb.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION:
		r.close(enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, &historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
			Attributes: &historypb.HistoryEvent_WorkflowExecutionCompletedEventAttributes{WorkflowExecutionCompletedEventAttributes: &historypb.WorkflowExecutionCompletedEventAttributes{
				Result:                       c.GetCompleteWorkflowExecutionCommandAttributes().GetResult(),
				WorkflowTaskCompletedEventId: task,
			}},
		})
	case enumspb.COMMAND_TYPE_FAIL_WORKFLOW_EXECUTION:
		r.close(enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, &historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
			Attributes: &historypb.HistoryEvent_WorkflowExecutionFailedEventAttributes{WorkflowExecutionFailedEventAttributes: &historypb.WorkflowExecutionFailedEventAttributes{
				Failure: c.GetFailWorkflowExecutionCommandAttributes().GetFailure(), WorkflowTaskCompletedEventId: task,
				RetryState: enumspb.RETRY_STATE_RETRY_POLICY_NOT_SET,
			}},
		})
	case enumspb.COMMAND_TYPE_CANCEL_WORKFLOW_EXECUTION:
		r.close(enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED, &historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
			Attributes: &historypb.HistoryEvent_WorkflowExecutionCanceledEventAttributes{WorkflowExecutionCanceledEventAttributes: &historypb.WorkflowExecutionCanceledEventAttributes{
				Details:                      c.GetCancelWorkflowExecutionCommandAttributes().GetDetails(),
				WorkflowTaskCompletedEventId: task,
			}},
		})
	case enumspb.COMMAND_TYPE_CONTINUE_AS_NEW_WORKFLOW_EXECUTION:
		r.continueAsNew(task, c.GetContinueAsNewWorkflowExecutionCommandAttributes())
	}
	return false
}

func canceled(a *activity, details *commonpb.Payloads, identity string) *historypb.HistoryEvent {
	return &historypb.HistoryEvent{
		EventType: enumspb.EVENT_TYPE_ACTIVITY_TASK_CANCELED,
		Attributes: &historypb.HistoryEvent_ActivityTaskCanceledEventAttributes{ActivityTaskCanceledEventAttributes: &historypb.ActivityTaskCanceledEventAttributes{
			Details: details, LatestCancelRequestedEventId: a.cancelID, ScheduledEventId: a.scheduledID,
			Identity: identity,
		}},
	}
}

// cancelTimer cancels a timer, also one fired during the current task.
func (r *run) cancelTimer(task int64, id string) {
	var startedID int64
	if t := r.timers[id]; t != nil {
		t.clock.Stop()
		delete(r.timers, id)
		startedID = t.startedID
	}
	r.buffered = slices.DeleteFunc(r.buffered, func(e *historypb.HistoryEvent) bool {
		fired := e.GetTimerFiredEventAttributes()
		if fired.GetTimerId() == id && fired != nil {
			startedID = fired.StartedEventId
			return true
		}
		return false
	})
	r.write(&historypb.HistoryEvent{
		EventType: enumspb.EVENT_TYPE_TIMER_CANCELED,
		Attributes: &historypb.HistoryEvent_TimerCanceledEventAttributes{TimerCanceledEventAttributes: &historypb.TimerCanceledEventAttributes{
			TimerId: id, StartedEventId: startedID, WorkflowTaskCompletedEventId: task,
		}},
	})
}

// cancelOther asks another run to end, and reports to this one whether it exists.
func (r *run) cancelOther(initiated *historypb.HistoryEvent) {
	in := initiated.GetRequestCancelExternalWorkflowExecutionInitiatedEventAttributes()
	other, err := r.s.findRunning(in.GetWorkflowExecution())
	if err != nil {
		r.happen(&historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_FAILED,
			Attributes: &historypb.HistoryEvent_RequestCancelExternalWorkflowExecutionFailedEventAttributes{RequestCancelExternalWorkflowExecutionFailedEventAttributes: &historypb.RequestCancelExternalWorkflowExecutionFailedEventAttributes{
				Cause:                        enumspb.CANCEL_EXTERNAL_WORKFLOW_EXECUTION_FAILED_CAUSE_EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND,
				WorkflowTaskCompletedEventId: in.WorkflowTaskCompletedEventId, Namespace: r.s.o.Namespace,
				WorkflowExecution: in.WorkflowExecution, InitiatedEventId: initiated.EventId,
			}},
		})
		return
	}
	other.cancel(in.GetReason(), "", &link{run: r, initiated: initiated.EventId})
	r.happen(&historypb.HistoryEvent{
		EventType: enumspb.EVENT_TYPE_EXTERNAL_WORKFLOW_EXECUTION_CANCEL_REQUESTED,
		Attributes: &historypb.HistoryEvent_ExternalWorkflowExecutionCancelRequestedEventAttributes{ExternalWorkflowExecutionCancelRequestedEventAttributes: &historypb.ExternalWorkflowExecutionCancelRequestedEventAttributes{
			InitiatedEventId: initiated.EventId, Namespace: r.s.o.Namespace, WorkflowExecution: in.WorkflowExecution,
		}},
	})
}

func (r *run) continueAsNew(task int64, in *commandpb.ContinueAsNewWorkflowExecutionCommandAttributes) {
	if in.GetTaskQueue().GetName() == "" {
		in.TaskQueue = r.started.TaskQueue
	}
	last := &historypb.WorkflowExecutionContinuedAsNewEventAttributes{
		WorkflowType: in.WorkflowType, TaskQueue: in.TaskQueue, Input: in.Input,
		WorkflowRunTimeout: in.WorkflowRunTimeout, WorkflowTaskTimeout: in.WorkflowTaskTimeout,
		WorkflowTaskCompletedEventId: task, Initiator: enumspb.CONTINUE_AS_NEW_INITIATOR_WORKFLOW, Header: in.Header,
		Memo: in.Memo, SearchAttributes: in.SearchAttributes,
	}
	r.close(enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW, &historypb.HistoryEvent{
		EventType:  enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
		Attributes: &historypb.HistoryEvent_WorkflowExecutionContinuedAsNewEventAttributes{WorkflowExecutionContinuedAsNewEventAttributes: last},
	})
	next := r.s.begin(&workflowservice.StartWorkflowExecutionRequest{
		Namespace: r.s.o.Namespace, WorkflowId: r.id, WorkflowType: in.WorkflowType, TaskQueue: in.TaskQueue,
		Input: in.Input, WorkflowRunTimeout: in.WorkflowRunTimeout, WorkflowTaskTimeout: in.WorkflowTaskTimeout,
		Memo: in.Memo, SearchAttributes: r.attributes, Header: in.Header, Priority: r.started.Priority,
		WorkflowStartDelay: in.BackoffStartInterval,
	}, r.parent, r)
	last.NewExecutionRunId = next.runID
	if r.parent != nil {
		if c := r.parent.run.children[r.parent.initiated]; c != nil {
			c.run = next
		}
	}
}

// activityOf finds the activity of a token. Call it with the lock held.
func (s *Service) activityOf(token []byte) (*run, *activity, error) {
	parts := strings.SplitN(string(token), "/", 3)
	if len(parts) == 3 {
		if r := s.runs[parts[0]]; r != nil && !r.over() {
			id, _ := strconv.ParseInt(parts[1], 10, 64)
			if a := r.activities[id]; a != nil && a.token == parts[2] {
				return r, a, nil
			}
		}
	}
	return nil, nil, serviceerror.NewNotFound("activity execution not found or timed out")
}

// RecordActivityTaskHeartbeat notes a heartbeat and returns whether the activity must end.
func (s *Service) RecordActivityTaskHeartbeat(_ context.Context,
	in *workflowservice.RecordActivityTaskHeartbeatRequest) (*workflowservice.RecordActivityTaskHeartbeatResponse,
	error,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, a, err := s.activityOf(in.GetTaskToken())
	if err != nil {
		return nil, err
	}
	a.details = proto.CloneOf(in.GetDetails())
	r.heartbeat(a)
	return &workflowservice.RecordActivityTaskHeartbeatResponse{CancelRequested: a.cancelID > 0}, nil
}

// RespondActivityTaskCompleted reports that an activity succeeded.
func (s *Service) RespondActivityTaskCompleted(_ context.Context,
	in *workflowservice.RespondActivityTaskCompletedRequest) (*workflowservice.RespondActivityTaskCompletedResponse,
	error,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, a, err := s.activityOf(in.GetTaskToken())
	if err != nil {
		return nil, err
	}
	r.endActivity(a, &historypb.HistoryEvent{
		EventType: enumspb.EVENT_TYPE_ACTIVITY_TASK_COMPLETED,
		Attributes: &historypb.HistoryEvent_ActivityTaskCompletedEventAttributes{ActivityTaskCompletedEventAttributes: &historypb.ActivityTaskCompletedEventAttributes{
			Result: in.GetResult(), ScheduledEventId: a.scheduledID, Identity: in.GetIdentity(),
		}},
	})
	return &workflowservice.RespondActivityTaskCompletedResponse{}, nil
}

// RespondActivityTaskFailed reports that an attempt of an activity failed.
func (s *Service) RespondActivityTaskFailed(_ context.Context,
	in *workflowservice.RespondActivityTaskFailedRequest,
) (*workflowservice.RespondActivityTaskFailedResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, a, err := s.activityOf(in.GetTaskToken())
	if err != nil {
		return nil, err
	}
	if in.GetLastHeartbeatDetails() != nil {
		a.details = proto.CloneOf(in.GetLastHeartbeatDetails())
	}
	var asked time.Duration
	if d := in.GetFailure().GetApplicationFailureInfo().GetNextRetryDelay(); d != nil {
		asked = d.AsDuration()
	}
	state := r.retry(a, in.GetFailure(), asked)
	if state != enumspb.RETRY_STATE_IN_PROGRESS {
		r.endActivity(a, &historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_ACTIVITY_TASK_FAILED,
			Attributes: &historypb.HistoryEvent_ActivityTaskFailedEventAttributes{ActivityTaskFailedEventAttributes: &historypb.ActivityTaskFailedEventAttributes{
				Failure: in.GetFailure(), ScheduledEventId: a.scheduledID, Identity: in.GetIdentity(),
				RetryState: state,
			}},
		})
	}
	return &workflowservice.RespondActivityTaskFailedResponse{}, nil
}

// RespondActivityTaskCanceled reports that an activity ended on request.
func (s *Service) RespondActivityTaskCanceled(_ context.Context,
	in *workflowservice.RespondActivityTaskCanceledRequest) (*workflowservice.RespondActivityTaskCanceledResponse,
	error,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, a, err := s.activityOf(in.GetTaskToken())
	if err != nil {
		return nil, err
	}
	if a.cancelID == 0 {
		return nil, serviceerror.NewInvalidArgument(fmt.Sprintf("activity %s was not asked to cancel",
			a.attrs.ActivityId))
	}
	r.endActivity(a, canceled(a, in.GetDetails(), in.GetIdentity()))
	return &workflowservice.RespondActivityTaskCanceledResponse{}, nil
}
