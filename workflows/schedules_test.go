package workflows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/mocks"

	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// TestSchedulesThatStartNothingAreMadeAgain: one was deleted, one paused, one has lost its timer, and one can't be
// read. One that works, and one whose run takes long, are left alone.
func TestSchedulesThatStartNothingAreMadeAgain(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	const env = "test"
	ran := func(ago time.Duration) client.ScheduleInfo {
		return client.ScheduleInfo{
			CreatedAt: now.Add(-24 * time.Hour), RecentActions: []client.ScheduleActionResult{{ActualTime: now.Add(-ago)}},
		}
	}
	busy := ran(3 * time.Hour)
	busy.RunningWorkflows = []client.ScheduleWorkflowExecution{{WorkflowID: "w"}}
	var deleted, made []string
	schedules := &mocks.ScheduleClient{}
	is := func(id string, d *client.ScheduleDescription, err error) {
		handle := &mocks.ScheduleHandle{}
		handle.On("Describe", mock.Anything).Return(d, err)
		handle.On("Delete", mock.Anything).Run(func(mock.Arguments) { deleted = append(deleted, id) }).Return(nil)
		schedules.On("GetHandle", mock.Anything, id).Return(handle)
	}
	is(server.ReconcileWorkflowID(env), nil, serviceerror.NewNotFound("no schedule"))
	is(server.SweepWorkflowID(env), &client.ScheduleDescription{
		Schedule: client.Schedule{State: &client.ScheduleState{Paused: true}}, Info: ran(time.Minute),
	}, nil)
	is(tenant.SweepWorkflowID(env), &client.ScheduleDescription{Info: ran(48 * time.Minute)}, nil)
	is(workload.GroupSweepWorkflowID(env), &client.ScheduleDescription{Info: ran(46 * time.Minute)}, nil)
	is(server.CatalogWorkflowID(env), &client.ScheduleDescription{Info: busy}, nil)
	is(tenant.StorageWorkflowID(env), nil, errAway)
	schedules.On("Create", mock.Anything, mock.Anything).
		Run(func(args mock.Arguments) { made = append(made, args.Get(1).(client.ScheduleOptions).ID) }).Return(nil, nil)
	temporal := &mocks.Client{}
	temporal.On("ScheduleClient").Return(schedules)
	c := &Client{Temporal: temporal, TaskQueue: "prego", Environment: env}

	s := ScheduleSettings{ReconcileEvery: 5 * time.Minute, CatalogEvery: time.Hour, NetEvery: 15 * time.Minute}
	found, err := c.RearmSchedules(t.Context(), s, now)
	require.ErrorIs(t, err, errAway)
	require.Equal(t, []string{
		server.ReconcileWorkflowID(env) + " was deleted", server.SweepWorkflowID(env) + " was paused",
		tenant.SweepWorkflowID(env) + " started nothing for 48m0s",
	}, found)
	require.Equal(t, []string{
		server.ReconcileWorkflowID(env), server.SweepWorkflowID(env),
		tenant.SweepWorkflowID(env),
	}, made)
	require.Equal(t, []string{server.SweepWorkflowID(env), tenant.SweepWorkflowID(env)}, deleted,
		"what was left of them")
}
