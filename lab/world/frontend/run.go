package frontend

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// run is one execution. All of it is used with the service's lock held.
type run struct {
	s         *Service
	id, runID string
	requestID string
	first     string // run id of the first of the chain that continued as new
	started   *historypb.WorkflowExecutionStartedEventAttributes
	parent    *link

	events []*historypb.HistoryEvent
	// buffered happened while a workflow task was being worked on; its outcome comes first.
	buffered []*historypb.HistoryEvent
	status   enumspb.WorkflowExecutionStatus
	ended    chan struct{}

	task       *workflowTask // scheduled or started
	attempt    int32         // of the next workflow task
	cancelled  bool
	activities map[int64]*activity // open, by the id of the event that scheduled them
	timers     map[string]*timer
	children   map[int64]*child // open, by the id of the event that initiated them
	attributes *commonpb.SearchAttributes
	signals    map[string]bool // request ids
}

// link is what a child knows of its parent.
type link struct {
	run       *run
	initiated int64
}

type child struct {
	id        string
	typ       *commonpb.WorkflowType
	policy    enumspb.ParentClosePolicy
	run       *run // nil until it has started
	startedID int64
}

type timer struct {
	startedID int64
	clock     *time.Timer
}

// workflowTask is scheduled, and started once a worker has it.
type workflowTask struct {
	scheduledID, startedID int64
	attempt                int32
	token                  string
	clock                  *time.Timer
}

type activity struct {
	scheduledID int64
	scheduledAt *timestamppb.Timestamp
	attrs       *historypb.ActivityTaskScheduledEventAttributes
	attempt     int32
	readyAt     time.Time // of this attempt
	startedAt   *timestamppb.Timestamp
	identity    string
	token       string // "" while no worker has it
	details     *commonpb.Payloads
	lastFailure *failurepb.Failure
	cancelID    int64 // of the event that asked for its cancellation
	beat        *time.Timer
	startClose  *time.Timer
	whole       *time.Timer // schedule to close
	queued      *time.Timer // schedule to start
	retry       *time.Timer
}

func (a *activity) stop() {
	for _, t := range []*time.Timer{a.beat, a.startClose, a.whole, a.queued, a.retry} {
		if t != nil {
			t.Stop()
		}
	}
}

func (r *run) execution() *commonpb.WorkflowExecution {
	return &commonpb.WorkflowExecution{WorkflowId: r.id, RunId: r.runID}
}

func (r *run) over() bool { return r.status != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING }

func (r *run) history() *historypb.History {
	out := &historypb.History{Events: make([]*historypb.HistoryEvent, len(r.events))}
	for i, e := range r.events {
		out.Events[i] = proto.CloneOf(e)
	}
	return out
}

// begin makes a run and its first workflow task.
func (s *Service) begin(in *workflowservice.StartWorkflowExecutionRequest, parent *link, before *run) *run {
	r := &run{
		s: s, id: in.GetWorkflowId(), runID: s.o.NewID(), requestID: in.GetRequestId(), parent: parent,
		status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, attempt: 1, ended: make(chan struct{}),
		activities: map[int64]*activity{}, timers: map[string]*timer{}, children: map[int64]*child{},
		signals: map[string]bool{}, attributes: proto.CloneOf(in.GetSearchAttributes()),
	}
	taskTimeout := in.GetWorkflowTaskTimeout()
	if taskTimeout.AsDuration() == 0 {
		taskTimeout = durationpb.New(10 * time.Second)
	}
	r.first = r.runID
	r.started = &historypb.WorkflowExecutionStartedEventAttributes{
		WorkflowType: in.GetWorkflowType(), TaskQueue: in.GetTaskQueue(), Input: in.GetInput(),
		WorkflowExecutionTimeout: in.GetWorkflowExecutionTimeout(), WorkflowRunTimeout: in.GetWorkflowRunTimeout(),
		WorkflowTaskTimeout: taskTimeout, Identity: in.GetIdentity(), OriginalExecutionRunId: r.runID, Attempt: 1,
		FirstWorkflowTaskBackoff: in.GetWorkflowStartDelay(), Memo: in.GetMemo(),
		SearchAttributes: in.GetSearchAttributes(), Header: in.GetHeader(), WorkflowId: r.id,
		Priority: in.GetPriority(), RootWorkflowExecution: r.execution(),
	}
	if before != nil {
		r.first = before.first
		r.started.ContinuedExecutionRunId = before.runID
		r.started.Initiator = enumspb.CONTINUE_AS_NEW_INITIATOR_WORKFLOW
	}
	r.started.FirstExecutionRunId = r.first
	if parent != nil {
		r.started.ParentWorkflowNamespace, r.started.ParentWorkflowExecution, r.started.ParentInitiatedEventId = s.o.Namespace, parent.run.execution(), parent.initiated
		r.started.RootWorkflowExecution = parent.run.started.GetRootWorkflowExecution()
	}
	s.runs[r.runID], s.latest[r.id] = r, r
	s.order = append(s.order, r)
	r.write(&historypb.HistoryEvent{
		EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED, UserMetadata: in.GetUserMetadata(),
		Attributes: &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{WorkflowExecutionStartedEventAttributes: r.started},
	})
	if d := in.GetWorkflowRunTimeout().AsDuration(); d > 0 {
		s.after(d, "run-timeout "+r.id, func() { r.timeOut() })
	}
	if d := in.GetWorkflowStartDelay().AsDuration(); d > 0 {
		s.after(d, "start-delay "+r.id, func() { r.schedule() })
	} else {
		r.schedule()
	}
	return r
}

// write adds an event to the history.
func (r *run) write(e *historypb.HistoryEvent) *historypb.HistoryEvent {
	e.EventId, e.EventTime = int64(len(r.events)+1), now()
	r.events = append(r.events, e)
	return e
}

// happen adds an event for a workflow: immediately, or after the current task.
func (r *run) happen(e *historypb.HistoryEvent) {
	if r.over() {
		return
	}
	if r.task != nil && r.task.startedID > 0 {
		e.EventTime = now()
		r.buffered = append(r.buffered, e)
		return
	}
	r.write(e)
	r.schedule()
}

// flush writes the held back events, and reports whether there were any.
func (r *run) flush() bool {
	had := len(r.buffered) > 0
	for _, e := range r.buffered {
		at := e.EventTime
		r.write(e)
		e.EventTime = at
		r.wrote(e)
	}
	r.buffered = nil
	return had
}

// wrote notes the ids that buffered events got.
func (r *run) wrote(e *historypb.HistoryEvent) {
	switch e.EventType {
	case enumspb.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
		if c := r.children[e.GetChildWorkflowExecutionStartedEventAttributes().GetInitiatedEventId()]; c != nil {
			c.startedID = e.EventId
		}
	case enumspb.EVENT_TYPE_ACTIVITY_TASK_STARTED:
		// the event of its end follows, and has to name it
		for _, other := range r.buffered {
			setStarted(other, e.GetActivityTaskStartedEventAttributes().GetScheduledEventId(), e.EventId)
		}
	}
}

func setStarted(e *historypb.HistoryEvent, scheduled, started int64) {
	switch e.EventType {
	case enumspb.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
		if a := e.GetActivityTaskCompletedEventAttributes(); a.ScheduledEventId == scheduled {
			a.StartedEventId = started
		}
	case enumspb.EVENT_TYPE_ACTIVITY_TASK_FAILED:
		if a := e.GetActivityTaskFailedEventAttributes(); a.ScheduledEventId == scheduled {
			a.StartedEventId = started
		}
	case enumspb.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
		if a := e.GetActivityTaskTimedOutEventAttributes(); a.ScheduledEventId == scheduled {
			a.StartedEventId = started
		}
	case enumspb.EVENT_TYPE_ACTIVITY_TASK_CANCELED:
		if a := e.GetActivityTaskCanceledEventAttributes(); a.ScheduledEventId == scheduled {
			a.StartedEventId = started
		}
	}
}

// schedule makes a workflow task unless there is one.
func (r *run) schedule() {
	if r.over() || r.task != nil {
		return
	}
	e := r.write(&historypb.HistoryEvent{
		EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
		Attributes: &historypb.HistoryEvent_WorkflowTaskScheduledEventAttributes{WorkflowTaskScheduledEventAttributes: &historypb.WorkflowTaskScheduledEventAttributes{
			TaskQueue: r.started.TaskQueue, StartToCloseTimeout: r.started.WorkflowTaskTimeout, Attempt: r.attempt,
		}},
	})
	t := &workflowTask{scheduledID: e.EventId, attempt: r.attempt}
	r.task = t
	r.s.enqueue(queueKey{r.started.TaskQueue.GetName(), enumspb.TASK_QUEUE_TYPE_WORKFLOW}, "task "+r.id, func() any {
		if r.over() || r.task != t {
			return nil
		}
		return r.startTask(t, "")
	})
}

// startTask hands a workflow task to a worker.
func (r *run) startTask(t *workflowTask, identity string) *workflowservice.PollWorkflowTaskQueueResponse {
	var previous int64
	for _, e := range slices.Backward(r.events) {
		if e.EventType == enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED {
			previous = e.GetWorkflowTaskCompletedEventAttributes().StartedEventId
			break
		}
	}
	e := r.write(&historypb.HistoryEvent{
		EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_STARTED,
		Attributes: &historypb.HistoryEvent_WorkflowTaskStartedEventAttributes{WorkflowTaskStartedEventAttributes: &historypb.WorkflowTaskStartedEventAttributes{
			ScheduledEventId: t.scheduledID, Identity: identity, RequestId: "r",
			HistorySizeBytes: int64(len(r.events) * 200),
		}},
	})
	t.startedID, t.token = e.EventId, string(r.s.token())
	t.clock = r.s.after(r.started.WorkflowTaskTimeout.AsDuration(), "task-timeout "+r.id, func() {
		if r.task != t || r.over() {
			return
		}
		r.write(&historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
			Attributes: &historypb.HistoryEvent_WorkflowTaskTimedOutEventAttributes{WorkflowTaskTimedOutEventAttributes: &historypb.WorkflowTaskTimedOutEventAttributes{
				ScheduledEventId: t.scheduledID, StartedEventId: t.startedID,
				TimeoutType: enumspb.TIMEOUT_TYPE_START_TO_CLOSE,
			}},
		})
		r.again()
	})
	return &workflowservice.PollWorkflowTaskQueueResponse{
		TaskToken: []byte(r.runID + "/" + t.token), WorkflowExecution: r.execution(),
		WorkflowType: r.started.WorkflowType, PreviousStartedEventId: previous, StartedEventId: t.startedID,
		Attempt: t.attempt, History: r.history(), WorkflowExecutionTaskQueue: r.started.TaskQueue,
		ScheduledTime: r.events[t.scheduledID-1].EventTime, StartedTime: e.EventTime,
	}
}

// again schedules the workflow task that replaces a failed one.
func (r *run) again() {
	if r.task.clock != nil {
		r.task.clock.Stop()
	}
	r.attempt = r.task.attempt + 1
	r.task = nil
	r.flush()
	if r.attempt <= 2 {
		r.schedule()
		return
	}
	wait := min(time.Second<<min(r.attempt-3, 6), time.Minute)
	r.s.after(wait, "task-retry "+r.id, func() { r.schedule() })
}

func (r *run) signal(name string, input *commonpb.Payloads, identity string, header *commonpb.Header,
	requestID string,
) {
	if requestID != "" {
		if r.signals[requestID] {
			return // the same request again
		}
		r.signals[requestID] = true
	}
	r.happen(&historypb.HistoryEvent{
		EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
		Attributes: &historypb.HistoryEvent_WorkflowExecutionSignaledEventAttributes{WorkflowExecutionSignaledEventAttributes: &historypb.WorkflowExecutionSignaledEventAttributes{
			SignalName: name, Input: input, Identity: identity, Header: header, RequestId: requestID,
		}},
	})
}

func (r *run) cancel(reason, identity string, by *link) {
	if r.cancelled || r.over() {
		return
	}
	r.cancelled = true
	a := &historypb.WorkflowExecutionCancelRequestedEventAttributes{Cause: reason, Identity: identity}
	if by != nil {
		a.ExternalWorkflowExecution, a.ExternalInitiatedEventId = by.run.execution(), by.initiated
	}
	r.happen(&historypb.HistoryEvent{
		EventType:  enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED,
		Attributes: &historypb.HistoryEvent_WorkflowExecutionCancelRequestedEventAttributes{WorkflowExecutionCancelRequestedEventAttributes: a},
	})
}

func (r *run) timeOut() {
	if r.over() {
		return
	}
	r.flush()
	r.close(enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT, &historypb.HistoryEvent{
		EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
		Attributes: &historypb.HistoryEvent_WorkflowExecutionTimedOutEventAttributes{WorkflowExecutionTimedOutEventAttributes: &historypb.WorkflowExecutionTimedOutEventAttributes{
			RetryState: enumspb.RETRY_STATE_TIMEOUT,
		}},
	})
}

func (r *run) stopClocks() {
	if r.task != nil && r.task.clock != nil {
		r.task.clock.Stop()
	}
	for _, a := range r.activities {
		a.stop()
	}
	for _, t := range r.timers {
		t.clock.Stop()
	}
}

// close writes the last event, notifies the parent, and applies the children's close policies.
func (r *run) close(status enumspb.WorkflowExecutionStatus, last *historypb.HistoryEvent) {
	r.write(last)
	r.status = status
	r.stopClocks()
	close(r.ended)
	for _, id := range slices.Sorted(maps.Keys(r.children)) {
		c := r.children[id]
		if c.run == nil || c.run.over() {
			continue
		}
		switch c.policy {
		case enumspb.PARENT_CLOSE_POLICY_ABANDON:
		case enumspb.PARENT_CLOSE_POLICY_REQUEST_CANCEL:
			r.s.ready("cancel "+c.id, func() { c.run.cancel("parent closed", "", nil) })
		default: // also of one continued as new
			r.s.ready("terminate "+c.id, func() {
				if !c.run.over() {
					r.s.terminate(c.run, "by parent close policy", "")
				}
			})
		}
	}
	if status != enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW && r.parent != nil {
		p := *r.parent
		r.s.ready("child-ended "+r.id, func() { p.run.childEnded(p.initiated, r, last) })
	}
}

func (r *run) childEnded(initiated int64, ended *run, last *historypb.HistoryEvent) {
	c := r.children[initiated]
	if c == nil || r.over() {
		return
	}
	delete(r.children, initiated)
	e := &historypb.HistoryEvent{}
	started := func() int64 { return c.startedID }
	switch last.EventType {
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
		e.EventType = enumspb.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED
		e.Attributes = &historypb.HistoryEvent_ChildWorkflowExecutionCompletedEventAttributes{ChildWorkflowExecutionCompletedEventAttributes: &historypb.ChildWorkflowExecutionCompletedEventAttributes{
			Result: last.GetWorkflowExecutionCompletedEventAttributes().GetResult(), Namespace: r.s.o.Namespace,
			WorkflowExecution: ended.execution(), WorkflowType: c.typ, InitiatedEventId: initiated,
			StartedEventId: started(),
		}}
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
		e.EventType = enumspb.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED
		e.Attributes = &historypb.HistoryEvent_ChildWorkflowExecutionFailedEventAttributes{ChildWorkflowExecutionFailedEventAttributes: &historypb.ChildWorkflowExecutionFailedEventAttributes{
			Failure: last.GetWorkflowExecutionFailedEventAttributes().GetFailure(), Namespace: r.s.o.Namespace,
			WorkflowExecution: ended.execution(), WorkflowType: c.typ, InitiatedEventId: initiated,
			StartedEventId: started(), RetryState: enumspb.RETRY_STATE_RETRY_POLICY_NOT_SET,
		}}
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED:
		e.EventType = enumspb.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED
		e.Attributes = &historypb.HistoryEvent_ChildWorkflowExecutionCanceledEventAttributes{ChildWorkflowExecutionCanceledEventAttributes: &historypb.ChildWorkflowExecutionCanceledEventAttributes{
			Details: last.GetWorkflowExecutionCanceledEventAttributes().GetDetails(), Namespace: r.s.o.Namespace,
			WorkflowExecution: ended.execution(), WorkflowType: c.typ, InitiatedEventId: initiated,
			StartedEventId: started(),
		}}
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT:
		e.EventType = enumspb.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT
		e.Attributes = &historypb.HistoryEvent_ChildWorkflowExecutionTimedOutEventAttributes{ChildWorkflowExecutionTimedOutEventAttributes: &historypb.ChildWorkflowExecutionTimedOutEventAttributes{
			Namespace: r.s.o.Namespace, WorkflowExecution: ended.execution(), WorkflowType: c.typ,
			InitiatedEventId: initiated, StartedEventId: started(), RetryState: enumspb.RETRY_STATE_TIMEOUT,
		}}
	default:
		e.EventType = enumspb.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED
		e.Attributes = &historypb.HistoryEvent_ChildWorkflowExecutionTerminatedEventAttributes{ChildWorkflowExecutionTerminatedEventAttributes: &historypb.ChildWorkflowExecutionTerminatedEventAttributes{
			Namespace: r.s.o.Namespace, WorkflowExecution: ended.execution(), WorkflowType: c.typ,
			InitiatedEventId: initiated, StartedEventId: started(),
		}}
	}
	r.happen(e)
}

// startChild starts a child that a command asked for.
func (r *run) startChild(initiated int64, in *historypb.StartChildWorkflowExecutionInitiatedEventAttributes) {
	c := r.children[initiated]
	if c == nil || r.over() {
		return
	}
	made, _, err := r.s.start(&workflowservice.StartWorkflowExecutionRequest{
		Namespace: r.s.o.Namespace, WorkflowId: in.WorkflowId, WorkflowType: in.WorkflowType, TaskQueue: in.TaskQueue,
		Input: in.Input, WorkflowExecutionTimeout: in.WorkflowExecutionTimeout,
		WorkflowRunTimeout: in.WorkflowRunTimeout, WorkflowTaskTimeout: in.WorkflowTaskTimeout,
		WorkflowIdReusePolicy: in.WorkflowIdReusePolicy, RetryPolicy: in.RetryPolicy, Memo: in.Memo,
		SearchAttributes: in.SearchAttributes, Header: in.Header, Priority: in.Priority,
		RequestId: fmt.Sprintf("%s/%d", r.runID, initiated),
	}, &link{run: r, initiated: initiated})
	if err != nil {
		delete(r.children, initiated)
		r.happen(&historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED,
			Attributes: &historypb.HistoryEvent_StartChildWorkflowExecutionFailedEventAttributes{StartChildWorkflowExecutionFailedEventAttributes: &historypb.StartChildWorkflowExecutionFailedEventAttributes{
				Namespace: r.s.o.Namespace, WorkflowId: in.WorkflowId, WorkflowType: in.WorkflowType,
				Cause:            enumspb.START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE_WORKFLOW_ALREADY_EXISTS,
				InitiatedEventId: initiated, WorkflowTaskCompletedEventId: in.WorkflowTaskCompletedEventId,
			}},
		})
		return
	}
	c.run = made
	e := &historypb.HistoryEvent{
		EventType: enumspb.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED,
		Attributes: &historypb.HistoryEvent_ChildWorkflowExecutionStartedEventAttributes{ChildWorkflowExecutionStartedEventAttributes: &historypb.ChildWorkflowExecutionStartedEventAttributes{
			Namespace: r.s.o.Namespace, InitiatedEventId: initiated, WorkflowExecution: made.execution(),
			WorkflowType: in.WorkflowType, Header: in.Header,
		}},
	}
	r.happen(e)
	c.startedID = e.EventId // 0 while it is held back
}

// offer makes an attempt of an activity available to workers.
func (r *run) offer(a *activity) {
	a.readyAt = time.Now()
	attempt := a.attempt
	if d := a.attrs.GetScheduleToStartTimeout().AsDuration(); d > 0 {
		a.queued = r.s.after(d, "activity-timeout "+r.activityName(a), func() {
			if a.token == "" && a.attempt == attempt {
				r.timedOut(a, enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START)
			}
		})
	}
	r.s.enqueue(queueKey{a.attrs.TaskQueue.GetName(), enumspb.TASK_QUEUE_TYPE_ACTIVITY}, "activity "+r.activityName(a),
		func() any {
			if r.activities[a.scheduledID] != a || a.token != "" || a.attempt != attempt {
				return nil
			}
			return r.startActivity(a)
		})
}

func (r *run) activityName(a *activity) string {
	return fmt.Sprintf("%s/%s#%d.%d", r.id, a.attrs.ActivityType.GetName(), a.scheduledID, a.attempt)
}

func (r *run) startActivity(a *activity) *workflowservice.PollActivityTaskQueueResponse {
	a.token, a.startedAt = string(r.s.token()), now()
	if a.queued != nil {
		a.queued.Stop()
	}
	token := a.token
	if d := a.attrs.GetStartToCloseTimeout().AsDuration(); d > 0 {
		a.startClose = r.s.after(d, "activity-timeout "+r.activityName(a), func() {
			if a.token == token {
				r.timedOut(a, enumspb.TIMEOUT_TYPE_START_TO_CLOSE)
			}
		})
	}
	r.heartbeat(a)
	return &workflowservice.PollActivityTaskQueueResponse{
		TaskToken: r.activityToken(a), WorkflowNamespace: r.s.o.Namespace, WorkflowType: r.started.WorkflowType,
		WorkflowExecution: r.execution(), ActivityType: a.attrs.ActivityType, ActivityId: a.attrs.ActivityId,
		Header: a.attrs.Header, Input: proto.CloneOf(a.attrs.Input), HeartbeatDetails: proto.CloneOf(a.details),
		ScheduledTime: a.scheduledAt, CurrentAttemptScheduledTime: timestamppb.New(a.readyAt), StartedTime: a.startedAt,
		Attempt: a.attempt, ScheduleToCloseTimeout: a.attrs.ScheduleToCloseTimeout,
		StartToCloseTimeout: a.attrs.StartToCloseTimeout, HeartbeatTimeout: a.attrs.HeartbeatTimeout,
		RetryPolicy: a.attrs.RetryPolicy, Priority: a.attrs.Priority,
	}
}

func (r *run) activityToken(a *activity) []byte {
	return fmt.Appendf(nil, "%s/%d/%s", r.runID, a.scheduledID, a.token)
}

// heartbeat begins the time within which the next one is expected.
func (r *run) heartbeat(a *activity) {
	d := a.attrs.GetHeartbeatTimeout().AsDuration()
	if d == 0 {
		return
	}
	if a.beat != nil {
		a.beat.Stop()
	}
	token := a.token
	var mine *time.Timer
	mine = r.s.after(d, "heartbeat-timeout "+r.activityName(a), func() {
		if a.token == token && a.beat == mine {
			r.timedOut(a, enumspb.TIMEOUT_TYPE_HEARTBEAT)
		}
	})
	a.beat = mine
}

func (r *run) timedOut(a *activity, kind enumspb.TimeoutType) {
	if r.activities[a.scheduledID] != a || r.over() {
		return
	}
	f := &failurepb.Failure{
		Message: "activity " + kind.String() + " timeout", Source: "Server",
		FailureInfo: &failurepb.Failure_TimeoutFailureInfo{TimeoutFailureInfo: &failurepb.TimeoutFailureInfo{TimeoutType: kind, LastHeartbeatDetails: a.details}},
	}
	state := enumspb.RETRY_STATE_NON_RETRYABLE_FAILURE
	switch kind {
	case enumspb.TIMEOUT_TYPE_START_TO_CLOSE, enumspb.TIMEOUT_TYPE_HEARTBEAT:
		if state = r.retry(a, f, 0); state == enumspb.RETRY_STATE_IN_PROGRESS {
			return
		}
	case enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE:
		state = enumspb.RETRY_STATE_TIMEOUT
	}
	if state == enumspb.RETRY_STATE_TIMEOUT && kind != enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE {
		f = &failurepb.Failure{
			Message: "Not enough time to schedule next retry before activity ScheduleToClose timeout, giving up retrying", Source: "Server", Cause: f,
			FailureInfo: &failurepb.Failure_TimeoutFailureInfo{TimeoutFailureInfo: &failurepb.TimeoutFailureInfo{TimeoutType: enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, LastHeartbeatDetails: a.details}},
		}
	} else if kind == enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE && a.lastFailure != nil {
		f.Cause = a.lastFailure
	}
	r.endActivity(a, &historypb.HistoryEvent{
		EventType: enumspb.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT,
		Attributes: &historypb.HistoryEvent_ActivityTaskTimedOutEventAttributes{ActivityTaskTimedOutEventAttributes: &historypb.ActivityTaskTimedOutEventAttributes{
			Failure: f, ScheduledEventId: a.scheduledID, RetryState: state,
		}},
	})
}

// retry starts the wait for the next attempt, or returns why there is none.
func (r *run) retry(a *activity, f *failurepb.Failure, asked time.Duration) enumspb.RetryState {
	p := a.attrs.GetRetryPolicy()
	initial := cmp.Or(p.GetInitialInterval().AsDuration(), time.Second)
	most := cmp.Or(p.GetMaximumInterval().AsDuration(), 100*initial)
	coefficient := p.GetBackoffCoefficient()
	if coefficient == 0 {
		coefficient = 2
	}
	if info := f.GetApplicationFailureInfo(); info != nil &&
		(info.NonRetryable || slices.Contains(p.GetNonRetryableErrorTypes(), info.Type)) {
		return enumspb.RETRY_STATE_NON_RETRYABLE_FAILURE
	}
	if f.GetCanceledFailureInfo() != nil || f.GetTerminatedFailureInfo() != nil ||
		f.GetServerFailureInfo().GetNonRetryable() {
		return enumspb.RETRY_STATE_NON_RETRYABLE_FAILURE
	}
	if n := p.GetMaximumAttempts(); n > 0 && a.attempt >= n {
		return enumspb.RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED
	}
	if a.cancelID > 0 {
		return enumspb.RETRY_STATE_CANCEL_REQUESTED
	}
	wait := time.Duration(min(float64(initial)*math.Pow(coefficient, float64(a.attempt-1)), float64(most)))
	if asked > 0 {
		wait = asked
	}
	if d := a.attrs.GetScheduleToCloseTimeout().AsDuration(); d > 0 &&
		time.Now().Add(wait).After(a.scheduledAt.AsTime().Add(d)) {
		return enumspb.RETRY_STATE_TIMEOUT
	}
	for _, t := range []*time.Timer{a.beat, a.startClose} {
		if t != nil {
			t.Stop()
		}
	}
	a.attempt++
	a.token, a.lastFailure = "", f
	attempt := a.attempt
	a.retry = r.s.after(wait, "retry "+r.activityName(a), func() {
		if r.activities[a.scheduledID] == a && a.attempt == attempt && !r.over() {
			r.offer(a)
		}
	})
	return enumspb.RETRY_STATE_IN_PROGRESS
}

// endActivity writes how an activity ended, after the event of its last start.
func (r *run) endActivity(a *activity, last *historypb.HistoryEvent) {
	a.stop()
	delete(r.activities, a.scheduledID)
	if a.token != "" {
		started := &historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_ACTIVITY_TASK_STARTED,
			Attributes: &historypb.HistoryEvent_ActivityTaskStartedEventAttributes{ActivityTaskStartedEventAttributes: &historypb.ActivityTaskStartedEventAttributes{
				ScheduledEventId: a.scheduledID, Identity: a.identity, RequestId: "r", Attempt: a.attempt,
				LastFailure: a.lastFailure,
			}},
		}
		if r.task != nil && r.task.startedID > 0 {
			r.happen(started)
		} else {
			r.write(started)
			setStarted(last, a.scheduledID, started.EventId)
		}
	}
	a.token = ""
	r.happen(last)
}
