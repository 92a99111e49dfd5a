package workflows

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// Client starts, signals and stops runs. Ids are deterministic, and the row, not
// Temporal, decides whether a request is a repetition.
type Client struct {
	Temporal    client.Client
	TaskQueue   string
	Namespace   string
	Environment string
	UIURL       string // base of links to runs; "" for none
	// TaskTimeout is how long a worker has for a task of a run; 0 for the usual time.
	TaskTimeout time.Duration
	// About returns what a run is about: the runs of one org share its turns with each other, and people find a run by
	// its name in Temporal's UI. nil if nothing is known of any.
	About func(ctx context.Context, workflowID string) (ops.About, error)
	// NotTaken gets each request that Temporal did not take and may take later, to repeat it until it
	// returns no error; nil leaves that to the caller.
	NotTaken func(what string, again func(context.Context) error)
}

// StartProvision starts the run of a provisioning row; success if it is already
// running.
func (c *Client) StartProvision(ctx context.Context, s server.Server) error {
	return c.startOrFollow(ctx, start{
		id: server.ProvisionWorkflowID(s.ServerID), summary: fmt.Sprintf("Provision %s (%s in %s)", s.ServerID, s.Role, s.Region),
		about:      ops.About{Name: string(s.ServerID), What: fmt.Sprintf("%s in %s", s.Role, s.Region), By: s.CreatedBy},
		attributes: serverAttributes(s.ServerID, s.Region, s.Role),
	}, s.Generation, ProvisionServer, ProvisionServerInput{ServerID: s.ServerID, Generation: s.Generation})
}

// EnsureProvision does the same for a row that may have lost its run; started reports
// whether it had.
func (c *Client) EnsureProvision(ctx context.Context, serverID prego.ServerID, generation int) (bool, error) {
	return c.start(ctx, server.ProvisionWorkflowID(serverID), string("Provision "+serverID), ProvisionServer,
		ProvisionServerInput{ServerID: serverID, Generation: generation})
}

// StartDecommission starts the run that decommissions a draining server.
func (c *Client) StartDecommission(ctx context.Context, serverID prego.ServerID) error {
	_, err := c.EnsureDecommission(ctx, serverID)
	return err
}

// EnsureDecommission does the same and reports whether it started one.
func (c *Client) EnsureDecommission(ctx context.Context, serverID prego.ServerID) (bool, error) {
	return c.start(ctx, server.DecommissionWorkflowID(serverID), string("Decommission "+serverID), DecommissionServer, DecommissionServerInput{ServerID: serverID})
}

// StartReconcile starts a reconciliation now, or returns the running one.
func (c *Client) StartReconcile(ctx context.Context) (string, error) {
	id := server.ReconcileWorkflowID(c.Environment)
	_, err := c.startPeriodic(ctx, id, "Reconcile "+c.Environment, Reconcile)
	return id, err
}

// StartCatalogRefresh reads the providers' catalogs now, or returns the running
// refresh.
func (c *Client) StartCatalogRefresh(ctx context.Context) (string, error) {
	id := server.CatalogWorkflowID(c.Environment)
	_, err := c.startPeriodic(ctx, id, "Read the provider's catalog", RefreshCatalog)
	return id, err
}

// start starts a run unless one with this id is running.
func (c *Client) start(ctx context.Context, id, summary string, workflow any, args ...any) (bool, error) {
	return c.startFor(ctx, start{id: id, summary: summary}, workflow, args...)
}

// startPeriodic does the same for periodic work.
func (c *Client) startPeriodic(ctx context.Context, id, summary string, workflow any, args ...any) (bool, error) {
	return c.startFor(ctx, start{id: id, summary: summary, attributes: []temporal.SearchAttributeUpdate{AttrKind.ValueSet(KindPeriodic)}}, workflow, args...)
}

// taskTimeout is how long a worker has for a task of a run. A stopped worker with a live connection
// takes a task from its own queue, and perhaps another one from the shared queue: that costs a run
// at most 10 s. The limit also applies to children and later runs of a chain.
const taskTimeout = 5 * time.Second

func (c *Client) taskTimeout() time.Duration { return cmp.Or(c.TaskTimeout, taskTimeout) }

// start configures how a run is started.
type start struct {
	id, summary string
	about       ops.About         // if the caller has the row; otherwise it is looked up
	priority    temporal.Priority // of its tasks
	attributes  []temporal.SearchAttributeUpdate
}

// startFor starts a run unless one with its id is running.
func (c *Client) startFor(ctx context.Context, s start, workflow any, args ...any) (started bool, err error) {
	err = c.attempt(ctx, "start "+s.id, func(ctx context.Context) (err error) {
		started, err = c.startNow(ctx, s, workflow, args...)
		return err
	})
	return started, err
}

// about is what a run is about. Without an answer the run is started all the same, and has its turn among those without
// an org.
func (c *Client) about(ctx context.Context, id string) (a ops.About) {
	if c.About != nil {
		a, _ = c.About(ctx, id)
	}
	return a
}

// named adds the name that people search for.
func named(a ops.About, attributes []temporal.SearchAttributeUpdate) []temporal.SearchAttributeUpdate {
	if a.Name == "" {
		return attributes
	}
	return append(slices.Clip(attributes), AttrName.ValueSet(a.Name))
}

// fair is the priority of a run with the fairness key of its org, which its activities and children inherit: a task
// queue gives orgs turns, so that a backlog of one org does not delay the others.
func fair(org prego.OrgID, p temporal.Priority) temporal.Priority {
	if p.FairnessKey == "" && org != "" {
		p.FairnessKey, p.FairnessWeight = string(org), 1
	}
	return p
}

func (c *Client) startNow(ctx context.Context, s start, workflow any, args ...any) (bool, error) {
	id, about := s.id, s.about
	if about.Name == "" {
		about = c.about(ctx, id)
	}
	_, err := c.Temporal.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: id, TaskQueue: c.TaskQueue, StaticSummary: s.summary, StaticDetails: about.Details(), Priority: fair(about.OrgID, s.priority),
		TypedSearchAttributes:                    temporal.NewSearchAttributes(named(about, s.attributes)...),
		WorkflowTaskTimeout:                      c.taskTimeout(),
		WorkflowIDReusePolicy:                    enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		WorkflowIDConflictPolicy:                 enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		WorkflowExecutionErrorWhenAlreadyStarted: true,
	}, workflow, args...)
	if _, ok := errors.AsType[*serviceerror.WorkflowExecutionAlreadyStarted](err); ok {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("start %s: %w", id, err)
	}
	return true, nil
}

// startOrFollow starts a run for a generation, and never loses it to the previous run, which may
// still be running between its last write to the row and its end: that run is signalled the
// generation to continue with (followed).
func (c *Client) startOrFollow(ctx context.Context, s start, generation int, workflow any, args ...any) error {
	return c.attempt(ctx, "follow "+s.id, func(ctx context.Context) error { return c.startOrFollowNow(ctx, s, generation, workflow, args...) })
}

func (c *Client) startOrFollowNow(ctx context.Context, s start, generation int, workflow any, args ...any) error {
	for {
		started, err := c.startNow(ctx, s, workflow, args...)
		if err != nil || started || generation == 1 {
			return err
		}
		err = c.Temporal.SignalWorkflow(ctx, s.id, "", SignalGeneration, generation)
		var ended *serviceerror.NotFound
		if err == nil {
			return nil
		}
		if !errors.As(err, &ended) {
			return fmt.Errorf("signal %s: %w", s.id, err)
		}
	}
}

// AgentHeartbeat signals a provisioning run that its agent sent a heartbeat.
func (c *Client) AgentHeartbeat(ctx context.Context, serverID prego.ServerID, attempt int) error {
	return c.signal(ctx, serverID, AgentSignal{Kind: SignalHeartbeat, Attempt: attempt})
}

// BootstrapRefused signals a provisioning run that a second key presented its token.
func (c *Client) BootstrapRefused(ctx context.Context, serverID prego.ServerID, attempt int) error {
	return c.signal(ctx, serverID, AgentSignal{Kind: SignalBootstrapRefused, Attempt: attempt})
}

// BootFailed signals a provisioning run that its host reported a failed boot.
func (c *Client) BootFailed(ctx context.Context, serverID prego.ServerID, attempt int) error {
	return c.signal(ctx, serverID, AgentSignal{Kind: SignalBootFailed, Attempt: attempt})
}

// WakeProvision has a run that waits for capacity try its candidates now.
func (c *Client) WakeProvision(ctx context.Context, serverID prego.ServerID) error {
	return c.signal(ctx, serverID, AgentSignal{Kind: SignalStock})
}

// signal sends a hint. A run that has ended needs none.
func (c *Client) signal(ctx context.Context, serverID prego.ServerID, s AgentSignal) error {
	return unlessEnded(c.Temporal.SignalWorkflow(ctx, server.ProvisionWorkflowID(serverID), "", SignalAgent, s), "signal %s of %s", s.Kind, serverID)
}

// unlessEnded is the error of a call for a run; a run that has ended, or never began, needs none.
func unlessEnded(err error, format string, args ...any) error {
	if _, ended := errors.AsType[*serviceerror.NotFound](err); err == nil || ended {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// cancel asks a run to undo what it did.
func (c *Client) cancel(ctx context.Context, id string) error {
	return unlessEnded(c.Temporal.CancelWorkflow(ctx, id, ""), "cancel %s", id)
}

// StopProvisioning cancels a server's provisioning run and waits until it has
// cleaned up after itself. The caller's context bounds the wait.
func (c *Client) StopProvisioning(ctx context.Context, serverID prego.ServerID, _ func()) error {
	id := server.ProvisionWorkflowID(serverID)
	if err := c.cancel(ctx, id); err != nil {
		return err
	}
	err := c.Temporal.GetWorkflow(ctx, id, "").Get(ctx, nil)
	if _, ended := errors.AsType[*temporal.WorkflowExecutionError](err); ended {
		return nil
	}
	return unlessEnded(err, "await the end of %s", id)
}

// Ready reports whether Temporal answers.
func (c *Client) Ready(ctx context.Context) error {
	if _, err := c.Temporal.CheckHealth(ctx, &client.CheckHealthRequest{}); err != nil {
		return fmt.Errorf("temporal: %w", err)
	}
	return nil
}

// RunURL links to a run in Temporal's UI, "" when there is none.
func (c *Client) RunURL(workflowID string) string {
	if c.UIURL == "" {
		return ""
	}
	return fmt.Sprintf("%s/namespaces/%s/workflows/%s", c.UIURL, url.PathEscape(c.Namespace), url.PathEscape(workflowID))
}

// ScheduleSettings configure how often the periodic runs start.
type ScheduleSettings struct {
	ReconcileEvery time.Duration
	CatalogEvery   time.Duration
	// NetEvery is how often the sweeps run that a worker looks for by itself.
	NetEvery time.Duration
}

// schedule is one of the periodic runs.
type schedule struct {
	id       string
	every    time.Duration
	workflow any
	args     []any
}

func (c *Client) schedules(s ScheduleSettings) []schedule {
	return []schedule{
		{id: server.ReconcileWorkflowID(c.Environment), every: s.ReconcileEvery, workflow: Reconcile},
		{id: server.SweepWorkflowID(c.Environment), every: s.NetEvery, workflow: SweepHeartbeats},
		{id: tenant.SweepWorkflowID(c.Environment), every: s.NetEvery, workflow: SweepTenants, args: []any{SweepTenantsInput{}}},
		{id: workload.GroupSweepWorkflowID(c.Environment), every: s.NetEvery, workflow: SweepGroups},
		{id: server.CatalogWorkflowID(c.Environment), every: s.CatalogEvery, workflow: RefreshCatalog},
		{id: tenant.StorageWorkflowID(c.Environment), every: s.NetEvery, workflow: MeasureSites},
	}
}

// EnsureSchedules creates or updates the schedules of the periodic runs.
func (c *Client) EnsureSchedules(ctx context.Context, s ScheduleSettings) error {
	for _, e := range c.schedules(s) {
		if err := c.ensureSchedule(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) ensureSchedule(ctx context.Context, e schedule) error {
	spec := client.ScheduleSpec{
		Intervals: []client.ScheduleIntervalSpec{{Every: e.every}},
		Jitter:    e.every / 10,
	}
	action := &client.ScheduleWorkflowAction{
		ID: e.id + "/scheduled", Workflow: e.workflow, Args: e.args,
		TaskQueue: c.TaskQueue, TypedSearchAttributes: temporal.NewSearchAttributes(AttrKind.ValueSet(KindPeriodic)), WorkflowTaskTimeout: c.taskTimeout(),
	}
	_, err := c.Temporal.ScheduleClient().Create(ctx, client.ScheduleOptions{
		ID: e.id, Spec: spec, Action: action,
		Overlap: enumspb.SCHEDULE_OVERLAP_POLICY_SKIP, CatchupWindow: e.every,
	})
	if errors.Is(err, temporal.ErrScheduleAlreadyRunning) {
		err = c.Temporal.ScheduleClient().GetHandle(ctx, e.id).Update(ctx, client.ScheduleUpdateOptions{
			DoUpdate: func(in client.ScheduleUpdateInput) (*client.ScheduleUpdate, error) {
				in.Description.Schedule.Spec = &spec
				in.Description.Schedule.Action = action
				return &client.ScheduleUpdate{Schedule: &in.Description.Schedule}, nil
			},
		})
	}
	if err != nil {
		return fmt.Errorf("schedule %s: %w", e.id, err)
	}
	return nil
}

// RearmSchedules creates schedules again that start nothing: deleted and paused ones, and those whose timer was lost.
// It returns what was wrong with each.
func (c *Client) RearmSchedules(ctx context.Context, s ScheduleSettings, now time.Time) (found []string, err error) {
	var errs []error
	for _, e := range c.schedules(s) {
		why, err := c.idleSchedule(ctx, e, now)
		if err == nil && why != "" {
			err = c.ensureSchedule(ctx, e)
			found = append(found, fmt.Sprintf("%s %s", e.id, why))
		}
		errs = append(errs, err)
	}
	return found, errors.Join(errs...)
}

// scheduleSlack is how much later than three of its intervals a schedule may have started its last run.
const scheduleSlack = 2 * time.Minute

// idleSchedule returns why a schedule starts nothing, "" if it does. What was left of it is deleted.
func (c *Client) idleSchedule(ctx context.Context, e schedule, now time.Time) (why string, err error) {
	handle := c.Temporal.ScheduleClient().GetHandle(ctx, e.id)
	d, err := handle.Describe(ctx)
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
		return "was deleted", nil
	}
	if err != nil {
		return "", fmt.Errorf("schedule %s: %w", e.id, err)
	}
	last := d.Info.CreatedAt
	for _, a := range d.Info.RecentActions {
		if a.ActualTime.After(last) {
			last = a.ActualTime
		}
	}
	switch idle := now.Sub(last); {
	case d.Schedule.State != nil && d.Schedule.State.Paused:
		why = "was paused"
	case idle > 3*e.every+scheduleSlack && len(d.Info.RunningWorkflows) == 0:
		why = "started nothing for " + idle.Round(time.Second).String()
	default:
		return "", nil
	}
	if err := unlessEnded(handle.Delete(ctx), "delete schedule %s", e.id); err != nil {
		return "", err
	}
	return why, nil
}

// EnsureMaintenance starts the run that empties a server, unless it is running, and reports
// whether it did.
func (c *Client) EnsureMaintenance(ctx context.Context, serverID prego.ServerID) (bool, error) {
	return c.start(ctx, server.MaintenanceWorkflowID(serverID), string("Empty "+serverID), MaintainServer, MaintainServerInput{ServerID: serverID})
}

// WakeMaintenance signals the run that empties a server that its row has changed, and starts it if
// it is not running.
func (c *Client) WakeMaintenance(ctx context.Context, serverID prego.ServerID) error {
	id := server.MaintenanceWorkflowID(serverID)
	return c.signalWithStart(ctx, id, SignalDemand, "changed",
		client.StartWorkflowOptions{StaticSummary: string("Empty " + serverID)},
		MaintainServer, MaintainServerInput{ServerID: serverID})
}

// signalWithStart signals a run that there is something to do, starting it if necessary.
func (c *Client) signalWithStart(ctx context.Context, id, signal, what string, o client.StartWorkflowOptions,
	workflow, in any,
) error {
	o.ID, o.TaskQueue, o.WorkflowIDReusePolicy, o.WorkflowTaskTimeout = id, c.TaskQueue, enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE, c.taskTimeout()
	return c.attempt(ctx, "wake "+id, func(ctx context.Context) error {
		if o.StaticDetails == "" {
			about := c.about(ctx, id)
			o.StaticDetails, o.TypedSearchAttributes = about.Details(), temporal.NewSearchAttributes(named(about, nil)...)
			o.Priority = fair(about.OrgID, o.Priority)
		}
		if _, err := c.Temporal.SignalWithStartWorkflow(ctx, id, signal, what, o, workflow, in); err != nil {
			return fmt.Errorf("wake %s: %w", id, err)
		}
		return nil
	})
}
