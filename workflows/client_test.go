package workflows

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/mocks"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

var errAway = errors.New("temporal is away")

// away is a Temporal that takes nothing, and notes what it was asked to start.
type away struct {
	*mocks.Client
	started []client.StartWorkflowOptions
}

func newAway() *away {
	a := &away{Client: &mocks.Client{}}
	note := func(o client.StartWorkflowOptions) { a.started = append(a.started, o) }
	a.On("ExecuteWorkflow", mock.Anything, mock.Anything, mock.Anything, mock.Anything).Maybe().
		Run(func(args mock.Arguments) { note(args.Get(1).(client.StartWorkflowOptions)) }).Return(nil, errAway)
	a.On("ExecuteWorkflow", mock.Anything, mock.Anything, mock.Anything).Maybe().
		Run(func(args mock.Arguments) { note(args.Get(1).(client.StartWorkflowOptions)) }).Return(nil, errAway)
	a.On("SignalWithStartWorkflow", mock.Anything, mock.Anything, mock.Anything, mock.Anything, mock.Anything, mock.Anything, mock.Anything).Maybe().
		Run(func(args mock.Arguments) { note(args.Get(4).(client.StartWorkflowOptions)) }).Return(nil, errAway)
	return a
}

// TestWhatIsStartedWhileTemporalIsAwayIsRepeated calls every function that starts a run. Each is kept for
// later, each run's tasks have a deadline, so that a stuck worker costs little, and each run that belongs to an org
// has that org's fairness key.
func TestWhatIsStartedWhileTemporalIsAwayIsRepeated(t *testing.T) {
	t.Parallel()
	kinds := reflect.TypeFor[*Client]()
	tried, people := 0, 0
	for m := range kinds.Methods() {
		if verb := m.Name; !strings.HasPrefix(verb, "Start") && !strings.HasPrefix(verb, "Ensure") && !strings.HasPrefix(verb, "Wake") ||
			verb == "EnsureSchedules" || verb == "WakeTenant" || verb == "WakeRuns" || verb == "WakeProvision" { // these signal who runs, and the sweeps find the rest
			continue
		}
		temporal := newAway()
		var kept []func(context.Context) error
		c := &Client{Temporal: temporal, TaskQueue: "prego", Environment: "test", NotTaken: func(_ string, again func(context.Context) error) { kept = append(kept, again) }}
		c.About = func(_ context.Context, id string) (ops.About, error) {
			return ops.About{OrgID: prego.OrgID("owner of " + id), Name: "acme-eu", What: "starter in eu", By: "ann"}, nil
		}
		in := []reflect.Value{reflect.ValueOf(c), reflect.ValueOf(t.Context())}
		for n := len(in); n < m.Type.NumIn(); n++ {
			in = append(in, sample(m.Type.In(n)))
		}
		out := m.Func.Call(in)
		err, _ := out[len(out)-1].Interface().(error)
		require.ErrorIs(t, err, errAway, m.Name)
		require.Len(t, kept, 1, "%s is repeated later", m.Name)
		require.ErrorIs(t, kept[0](t.Context()), errAway, m.Name)
		require.Len(t, temporal.started, 2, m.Name)
		for _, o := range temporal.started {
			require.NotEmpty(t, o.ID, m.Name)
			if m.Name != "StartProvision" { // which has the row, of a server: the platform's
				require.Contains(t, []string{"x-1", "owner of " + o.ID}, o.Priority.FairnessKey, m.Name)
				require.InDelta(t, 1, o.Priority.FairnessWeight, 0, m.Name)
			}
			require.Equal(t, 5*time.Second, o.WorkflowTaskTimeout, m.Name)
			if name, named := o.TypedSearchAttributes.GetKeyword(AttrName); named {
				require.Contains(t, o.StaticDetails, "**"+name+"**, ", m.Name)
				people++
			}
		}
		tried++
	}
	require.Greater(t, tried, 30)
	require.Greater(t, people, 40, "runs that people find by name, each tried twice")
}

// sample is some argument of a type.
func sample(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	switch t {
	case reflect.TypeFor[server.Server]():
		v.Set(reflect.ValueOf(server.Server{ServerID: "srv-1", Generation: 1}))
		return v
	case reflect.TypeFor[tenant.Tenant]():
		v.Set(reflect.ValueOf(tenant.Tenant{TenantID: "t-1"}))
		return v
	}
	switch t.Kind() {
	case reflect.String:
		v.SetString("x-1")
	case reflect.Int:
		v.SetInt(1)
	}
	return v
}

// TestScheduledRunsHaveTheSameDeadline for their tasks.
func TestScheduledRunsHaveTheSameDeadline(t *testing.T) {
	t.Parallel()
	schedules := &mocks.ScheduleClient{}
	seen := 0
	schedules.On("Create", mock.Anything, mock.MatchedBy(func(o client.ScheduleOptions) bool {
		action, ok := o.Action.(*client.ScheduleWorkflowAction)
		return ok && action.WorkflowTaskTimeout == 5*time.Second
	})).Run(func(mock.Arguments) { seen++ }).Return(nil, nil)
	temporal := &mocks.Client{}
	temporal.On("ScheduleClient").Return(schedules)
	c := &Client{Temporal: temporal, TaskQueue: "prego", Environment: "test"}
	require.NoError(t, c.EnsureSchedules(t.Context(), ScheduleSettings{ReconcileEvery: time.Minute, CatalogEvery: time.Minute, NetEvery: time.Minute}))
	require.Equal(t, 6, seen)
}
