// Package frontend is Temporal's workflow service in one process: the parts that prego's workflows, clients and workers
// use, kept in memory. The SDK's real client and worker run against it. It has no sockets and no clock, so that it runs
// in a bubble of testing/synctest, and it asks for the next actor wherever the real one decides by chance.
// Unsupported requests fail with Unimplemented; nothing is accepted and then ignored.
package frontend

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	namespacepb "go.temporal.io/api/namespace/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Options of a service.
type Options struct {
	Namespace string
	// Ready learns of each thing that can happen next: a task that can be handed out, a timer that is due. It returns
	// immediately, and has do called, once and by another goroutine, when it happens. By default everything happens as
	// soon as it can.
	Ready func(name string, do func())
	// NewID makes ids of runs.
	NewID func() string
	// LongPoll is how long polls wait, by default as long as the real service's.
	LongPoll time.Duration
}

// Service is a workflow service with one namespace.
type Service struct {
	workflowservice.UnimplementedWorkflowServiceServer
	o Options

	mu        sync.Mutex
	runs      map[string]*run // by run id
	latest    map[string]*run // by workflow id
	order     []*run          // as they began
	queues    map[queueKey]*queue
	schedules map[string]*schedule
	tokens    int64
	failures  []TaskFailure
	closed    chan struct{}
}

// TaskFailure is a workflow task that its worker could not carry out: a bug in a workflow, or
// a history that does not replay.
type TaskFailure struct {
	WorkflowID string
	Cause      enumspb.WorkflowTaskFailedCause
	Message    string
}

type queueKey struct {
	name string
	kind enumspb.TaskQueueType
}

// queue holds tasks without a worker, and waiting pollers.
type queue struct {
	tasks   []func() any // make the answer; nil if the task is no more
	pollers []chan any
}

// New makes a service without runs.
func New(o Options) *Service {
	if o.Ready == nil {
		o.Ready = func(_ string, do func()) { go do() }
	}
	o.LongPoll = cmp.Or(o.LongPoll, time.Minute)
	return &Service{
		o: o, runs: map[string]*run{}, latest: map[string]*run{}, queues: map[queueKey]*queue{},
		schedules: map[string]*schedule{}, closed: make(chan struct{}),
	}
}

// Close ends all polls and timers. Nothing happens afterwards.
func (s *Service) Close() {
	s.mu.Lock()
	close(s.closed)
	for _, r := range s.order {
		r.stopClocks()
	}
	s.mu.Unlock()
}

func (s *Service) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// ready has do called with the lock held when its turn comes.
func (s *Service) ready(name string, do func()) {
	s.o.Ready(name, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.isClosed() {
			do()
		}
	})
}

// after has do called with the lock held when its turn comes after d.
func (s *Service) after(d time.Duration, name string, do func()) *time.Timer {
	return time.AfterFunc(max(d, 0), func() { s.ready(name, do) })
}

// Failures are the workflow tasks that workers failed.
func (s *Service) Failures() []TaskFailure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.failures)
}

// History is what happened in one run.
type History struct {
	WorkflowID, RunID, Type string
	Status                  enumspb.WorkflowExecutionStatus
	Events                  *historypb.History
}

// Histories are the histories of all runs, in the order of their start.
func (s *Service) Histories() []History {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]History, 0, len(s.order))
	for _, r := range s.order {
		out = append(out, History{
			WorkflowID: r.id, RunID: r.runID, Type: r.started.WorkflowType.GetName(),
			Status: r.status, Events: r.history(),
		})
	}
	return out
}

// enqueue makes a task available.
func (s *Service) enqueue(key queueKey, name string, take func() any) {
	s.ready(name, func() {
		q := s.queue(key)
		if len(q.pollers) == 0 {
			q.tasks = append(q.tasks, take)
			return
		}
		if answer := take(); answer != nil {
			q.pollers[0] <- answer // has room for one
			q.pollers = q.pollers[1:]
		}
	})
}

func (s *Service) queue(key queueKey) *queue {
	q := s.queues[key]
	if q == nil {
		q = &queue{}
		s.queues[key] = q
	}
	return q
}

// poll waits for a task; nil if there was none. A task that is handed to a poll that has
// just ended is lost, as with the real service: its time runs out.
func (s *Service) poll(ctx context.Context, key queueKey) any {
	s.mu.Lock()
	q := s.queue(key)
	for len(q.tasks) > 0 {
		take := q.tasks[0]
		q.tasks = q.tasks[1:]
		if answer := take(); answer != nil {
			s.mu.Unlock()
			return answer
		}
	}
	p := make(chan any, 1)
	q.pollers = append(q.pollers, p)
	s.mu.Unlock()
	t := time.NewTimer(s.o.LongPoll)
	defer t.Stop()
	select {
	case answer := <-p:
		return answer
	case <-t.C:
	case <-ctx.Done():
	case <-s.closed:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q.pollers = slices.DeleteFunc(q.pollers, func(other chan any) bool { return other == p })
	select {
	case answer := <-p: // it came at the same moment
		return answer
	default:
		return nil
	}
}

func (s *Service) token() []byte {
	s.tokens++
	return fmt.Appendf(nil, "%d", s.tokens)
}

// find returns the run of an execution: the newest if no run is named.
func (s *Service) find(e *commonpb.WorkflowExecution) (*run, error) {
	var r *run
	if e.GetRunId() != "" {
		r = s.runs[e.GetRunId()]
	} else {
		r = s.latest[e.GetWorkflowId()]
	}
	if r == nil || r.id != e.GetWorkflowId() {
		return nil, serviceerror.NewNotFound("workflow not found for ID: " + e.GetWorkflowId())
	}
	return r, nil
}

func (s *Service) findRunning(e *commonpb.WorkflowExecution) (*run, error) {
	r, err := s.find(e)
	if err == nil && r.over() {
		return nil, serviceerror.NewNotFound("workflow execution already completed")
	}
	return r, err
}

// GetSystemInfo returns the service's capabilities.
func (s *Service) GetSystemInfo(context.Context,
	*workflowservice.GetSystemInfoRequest,
) (*workflowservice.GetSystemInfoResponse, error) {
	return &workflowservice.GetSystemInfoResponse{
		ServerVersion: "1.30.0",
		Capabilities: &workflowservice.GetSystemInfoResponse_Capabilities{
			SignalAndQueryHeader: true, InternalErrorDifferentiation: true, ActivityFailureIncludeHeartbeat: true,
			SupportsSchedules: true, EncodedFailureAttributes: true, BuildIdBasedVersioning: true, UpsertMemo: true,
			SdkMetadata: true,
		},
	}, nil
}

// DescribeNamespace knows the one namespace.
func (s *Service) DescribeNamespace(_ context.Context,
	in *workflowservice.DescribeNamespaceRequest,
) (*workflowservice.DescribeNamespaceResponse, error) {
	if in.GetNamespace() != s.o.Namespace {
		return nil, serviceerror.NewNamespaceNotFound(in.GetNamespace())
	}
	return &workflowservice.DescribeNamespaceResponse{
		NamespaceInfo: &namespacepb.NamespaceInfo{
			Name: s.o.Namespace, State: enumspb.NAMESPACE_STATE_REGISTERED,
			Id: "00000000-0000-4000-8000-000000000000",
		},
		Config: &namespacepb.NamespaceConfig{WorkflowExecutionRetentionTtl: durationpb.New(24 * time.Hour)},
	}, nil
}

// ShutdownWorker is called by ending workers; their polls end by themselves.
func (s *Service) ShutdownWorker(context.Context,
	*workflowservice.ShutdownWorkerRequest,
) (*workflowservice.ShutdownWorkerResponse, error) {
	return &workflowservice.ShutdownWorkerResponse{}, nil
}

// StartWorkflowExecution starts a run.
func (s *Service) StartWorkflowExecution(_ context.Context,
	in *workflowservice.StartWorkflowExecutionRequest,
) (*workflowservice.StartWorkflowExecutionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, fresh, err := s.start(in, nil)
	if err != nil {
		return nil, err
	}
	return &workflowservice.StartWorkflowExecutionResponse{RunId: r.runID, Started: fresh, Status: r.status}, nil
}

// start starts a run according to its policies. Call it with the lock held.
func (s *Service) start(in *workflowservice.StartWorkflowExecutionRequest, parent *link) (r *run, fresh bool,
	err error,
) {
	switch {
	case in.GetWorkflowId() == "" || in.GetWorkflowType().GetName() == "" || in.GetTaskQueue().GetName() == "":
		return nil, false, serviceerror.NewInvalidArgument("WorkflowId, WorkflowType and TaskQueue are required")
	case in.GetCronSchedule() != "" || in.GetRetryPolicy() != nil || in.GetRequestEagerExecution():
		return nil, false, serviceerror.NewUnimplemented("cron, retries of runs and eager starts")
	}
	if last := s.latest[in.GetWorkflowId()]; last != nil {
		if last.requestID == in.GetRequestId() && in.GetRequestId() != "" {
			return last, false, nil // the same request again
		}
		if !last.over() {
			switch in.GetWorkflowIdConflictPolicy() {
			case enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING:
				return last, false, nil
			case enumspb.WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING:
				s.terminate(last, "TerminateIfRunning WorkflowIdReusePolicy Policy", "history-service")
			default:
				return nil, false, serviceerror.NewWorkflowExecutionAlreadyStarted("Workflow execution is already running. WorkflowId: "+last.id+", RunId: "+last.runID+".", last.requestID, last.runID)
			}
		} else if refuses(in.GetWorkflowIdReusePolicy(), last.status) {
			return nil, false, serviceerror.NewWorkflowExecutionAlreadyStarted("Workflow execution already finished.",
				last.requestID, last.runID)
		}
	}
	return s.begin(in, parent, nil), true, nil
}

func refuses(p enumspb.WorkflowIdReusePolicy, last enumspb.WorkflowExecutionStatus) bool {
	switch p {
	case enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE:
		return true
	case enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY:
		return last == enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED ||
			last == enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW
	}
	return false
}

// SignalWorkflowExecution signals a running run.
func (s *Service) SignalWorkflowExecution(_ context.Context,
	in *workflowservice.SignalWorkflowExecutionRequest,
) (*workflowservice.SignalWorkflowExecutionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.findRunning(in.GetWorkflowExecution())
	if err != nil {
		return nil, err
	}
	r.signal(in.GetSignalName(), in.GetInput(), in.GetIdentity(), in.GetHeader(), in.GetRequestId())
	return &workflowservice.SignalWorkflowExecutionResponse{}, nil
}

// SignalWithStartWorkflowExecution signals the running run or starts one with the signal.
func (s *Service) SignalWithStartWorkflowExecution(_ context.Context,
	in *workflowservice.SignalWithStartWorkflowExecutionRequest,
) (*workflowservice.SignalWithStartWorkflowExecutionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.GetWorkflowIdConflictPolicy() == enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL {
		return nil, serviceerror.NewInvalidArgument("Invalid WorkflowIDConflictPolicy: WORKFLOW_ID_CONFLICT_POLICY_FAIL is not supported for this operation.")
	}
	r := s.latest[in.GetWorkflowId()]
	fresh := false
	if r == nil || r.over() {
		var err error
		r, fresh, err = s.start(&workflowservice.StartWorkflowExecutionRequest{
			Namespace: in.Namespace, WorkflowId: in.WorkflowId, WorkflowType: in.WorkflowType, TaskQueue: in.TaskQueue,
			Input: in.Input, WorkflowExecutionTimeout: in.WorkflowExecutionTimeout,
			WorkflowRunTimeout: in.WorkflowRunTimeout, WorkflowTaskTimeout: in.WorkflowTaskTimeout,
			Identity: in.Identity, RequestId: in.RequestId, WorkflowIdReusePolicy: in.WorkflowIdReusePolicy,
			RetryPolicy: in.RetryPolicy, CronSchedule: in.CronSchedule, Memo: in.Memo,
			SearchAttributes: in.SearchAttributes, Header: in.Header, WorkflowStartDelay: in.WorkflowStartDelay,
			UserMetadata: in.UserMetadata, Priority: in.Priority,
		}, nil)
		if err != nil {
			return nil, err
		}
	}
	r.signal(in.GetSignalName(), in.GetSignalInput(), in.GetIdentity(), in.GetHeader(), in.GetRequestId())
	return &workflowservice.SignalWithStartWorkflowExecutionResponse{RunId: r.runID, Started: fresh}, nil
}

// RequestCancelWorkflowExecution asks a run to end; an ended run needs nothing.
func (s *Service) RequestCancelWorkflowExecution(_ context.Context,
	in *workflowservice.RequestCancelWorkflowExecutionRequest) (*workflowservice.RequestCancelWorkflowExecutionResponse,
	error,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.find(in.GetWorkflowExecution())
	if err != nil {
		return nil, err
	}
	r.cancel(in.GetReason(), in.GetIdentity(), nil)
	return &workflowservice.RequestCancelWorkflowExecutionResponse{}, nil
}

// TerminateWorkflowExecution ends a run without asking it.
func (s *Service) TerminateWorkflowExecution(_ context.Context,
	in *workflowservice.TerminateWorkflowExecutionRequest) (*workflowservice.TerminateWorkflowExecutionResponse,
	error,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.findRunning(in.GetWorkflowExecution())
	if err != nil {
		return nil, err
	}
	s.terminate(r, in.GetReason(), in.GetIdentity())
	return &workflowservice.TerminateWorkflowExecutionResponse{}, nil
}

func (s *Service) terminate(r *run, reason, identity string) {
	r.flush()
	r.close(enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, &historypb.HistoryEvent{
		EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
		Attributes: &historypb.HistoryEvent_WorkflowExecutionTerminatedEventAttributes{WorkflowExecutionTerminatedEventAttributes: &historypb.WorkflowExecutionTerminatedEventAttributes{
			Reason: reason, Identity: identity,
		}},
	})
}

// DescribeWorkflowExecution returns the state of a run.
func (s *Service) DescribeWorkflowExecution(_ context.Context,
	in *workflowservice.DescribeWorkflowExecutionRequest,
) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.find(in.GetExecution())
	if err != nil {
		return nil, err
	}
	info := &workflowpb.WorkflowExecutionInfo{
		Execution: r.execution(), Type: r.started.WorkflowType, StartTime: r.events[0].EventTime, Status: r.status,
		HistoryLength: int64(len(r.events)), SearchAttributes: r.attributes, TaskQueue: r.started.TaskQueue.GetName(),
		FirstRunId: r.first,
	}
	if r.over() {
		info.CloseTime = r.events[len(r.events)-1].EventTime
	}
	return &workflowservice.DescribeWorkflowExecutionResponse{WorkflowExecutionInfo: info}, nil
}

// GetWorkflowExecutionHistory reads a history, or waits for its end.
func (s *Service) GetWorkflowExecutionHistory(ctx context.Context,
	in *workflowservice.GetWorkflowExecutionHistoryRequest) (*workflowservice.GetWorkflowExecutionHistoryResponse,
	error,
) {
	s.mu.Lock()
	e := in.GetExecution()
	if len(in.GetNextPageToken()) > 0 { // of a poll that ended before the run: it named the run
		e = &commonpb.WorkflowExecution{WorkflowId: e.GetWorkflowId(), RunId: string(in.GetNextPageToken())}
	}
	r, err := s.find(e)
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	closing := in.GetHistoryEventFilterType() == enumspb.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT
	if in.GetWaitNewEvent() && !r.over() {
		if !closing {
			s.mu.Unlock()
			return nil, serviceerror.NewUnimplemented("waiting for events other than the last")
		}
		ended := r.ended
		s.mu.Unlock()
		t := time.NewTimer(s.o.LongPoll)
		defer t.Stop()
		select {
		case <-ended:
		case <-t.C:
		case <-ctx.Done():
			return nil, serviceerror.FromStatus(statusOf(ctx.Err()))
		case <-s.closed:
			return nil, serviceerror.NewUnavailable("the service has ended")
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	out := r.history()
	if closing {
		if !r.over() {
			return &workflowservice.GetWorkflowExecutionHistoryResponse{
				History:       &historypb.History{},
				NextPageToken: []byte(r.runID),
			}, nil
		}
		out.Events = out.Events[len(out.Events)-1:]
	}
	return &workflowservice.GetWorkflowExecutionHistoryResponse{History: out}, nil
}

func now() *timestamppb.Timestamp { return timestamppb.New(time.Now()) }

// ListWorkflowExecutions lists the runs that are open, whatever the query: the only one that is asked.
func (s *Service) ListWorkflowExecutions(_ context.Context, _ *workflowservice.ListWorkflowExecutionsRequest,
) (*workflowservice.ListWorkflowExecutionsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &workflowservice.ListWorkflowExecutionsResponse{}
	for _, r := range s.order {
		if !r.over() {
			out.Executions = append(out.Executions, &workflowpb.WorkflowExecutionInfo{
				Execution: r.execution(), Type: r.started.WorkflowType, Status: r.status,
			})
		}
	}
	return out, nil
}
