package frontend

import (
	"context"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	schedulepb "go.temporal.io/api/schedule/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/protobuf/proto"
)

// schedule starts a run at intervals, unless the previous one still runs.
type schedule struct {
	id   string
	spec *schedulepb.Schedule
	last *run
	turn int // of the clock; an update begins another
}

// CreateSchedule makes a schedule with one interval that skips overlaps.
func (s *Service) CreateSchedule(_ context.Context,
	in *workflowservice.CreateScheduleRequest,
) (*workflowservice.CreateScheduleResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.schedules[in.GetScheduleId()] != nil {
		return nil, serviceerror.NewWorkflowExecutionAlreadyStarted("schedule already exists", in.GetRequestId(), "")
	}
	if err := supported(in.GetSchedule()); err != nil {
		return nil, err
	}
	sc := &schedule{id: in.GetScheduleId(), spec: in.GetSchedule()}
	s.schedules[sc.id] = sc
	s.keep(sc)
	return &workflowservice.CreateScheduleResponse{}, nil
}

// UpdateSchedule replaces a schedule.
func (s *Service) UpdateSchedule(_ context.Context,
	in *workflowservice.UpdateScheduleRequest,
) (*workflowservice.UpdateScheduleResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sc := s.schedules[in.GetScheduleId()]
	if sc == nil {
		return nil, serviceerror.NewNotFound("schedule not found")
	}
	if err := supported(in.GetSchedule()); err != nil {
		return nil, err
	}
	sc.spec = in.GetSchedule()
	s.keep(sc)
	return &workflowservice.UpdateScheduleResponse{}, nil
}

// DescribeSchedule reads a schedule.
func (s *Service) DescribeSchedule(_ context.Context,
	in *workflowservice.DescribeScheduleRequest,
) (*workflowservice.DescribeScheduleResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sc := s.schedules[in.GetScheduleId()]
	if sc == nil {
		return nil, serviceerror.NewNotFound("schedule not found")
	}
	return &workflowservice.DescribeScheduleResponse{
		Schedule: proto.CloneOf(sc.spec),
		Info:     &schedulepb.ScheduleInfo{},
	}, nil
}

func supported(sc *schedulepb.Schedule) error {
	if len(sc.GetSpec().GetInterval()) != 1 || sc.GetSpec().GetInterval()[0].GetInterval().AsDuration() <= 0 ||
		sc.GetAction().GetStartWorkflow() == nil ||
		sc.GetPolicies().GetOverlapPolicy() != enumspb.SCHEDULE_OVERLAP_POLICY_SKIP {
		return serviceerror.NewUnimplemented("schedules other than one interval that starts a workflow and skips overlaps")
	}
	return nil
}

// keep restarts the schedule's clock. Call it with the lock held.
func (s *Service) keep(sc *schedule) {
	sc.turn++
	turn := sc.turn
	every := sc.spec.GetSpec().GetInterval()[0].GetInterval().AsDuration()
	at := time.Now().Truncate(every).Add(every)
	s.after(time.Until(at), fmt.Sprintf("schedule %s turn %d", sc.id, turn), func() {
		if sc.turn != turn {
			return
		}
		if sc.last == nil || sc.last.over() {
			a := sc.spec.GetAction().GetStartWorkflow()
			id := a.GetWorkflowId() + "-" + at.UTC().Format(time.RFC3339)
			if made, _, err := s.start(request(s.o.Namespace, id, a), nil); err == nil {
				sc.last = made
			}
		}
		s.keep(sc)
	})
}

func request(namespace, id string,
	a *workflowpb.NewWorkflowExecutionInfo,
) *workflowservice.StartWorkflowExecutionRequest {
	return &workflowservice.StartWorkflowExecutionRequest{
		Namespace: namespace, WorkflowId: id, WorkflowType: a.GetWorkflowType(), TaskQueue: a.GetTaskQueue(),
		Input: a.GetInput(), WorkflowExecutionTimeout: a.GetWorkflowExecutionTimeout(),
		WorkflowRunTimeout: a.GetWorkflowRunTimeout(), WorkflowTaskTimeout: a.GetWorkflowTaskTimeout(),
		Memo: a.GetMemo(), SearchAttributes: a.GetSearchAttributes(), Header: a.GetHeader(),
		UserMetadata: a.GetUserMetadata(), Priority: a.GetPriority(), RequestId: fmt.Sprintf("schedule/%s", id),
		Identity: "temporal-scheduler",
	}
}
