package activities

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

func TestEachServerHasItsTurn(t *testing.T) {
	t.Parallel()
	var ids []string
	for i := range 21 {
		ids = append(ids, fmt.Sprintf("s-%02d", 20-i))
	}
	seen := map[string]int{}
	for run := int64(7); run < 7+3; run++ {
		turn := Turn(ids, run, 8)
		require.LessOrEqual(t, len(turn), 8)
		for _, id := range turn {
			seen[id]++
		}
	}
	require.Len(t, seen, 21)
	for id, n := range seen {
		require.Equal(t, 1, n, id)
	}
	require.Len(t, Turn(ids[:5], 3, 8), 5, "all, when they are few")
	require.Empty(t, Turn(ids, 3, 0))
	require.Empty(t, Turn(nil, 3, 8))
}

func TestAReconciliationLooksAtAFewHostsAtOnce(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int32
	f := &Reconciler{DriftHosts: 8, Log: zap.NewNop(), Check: func(_ context.Context, id prego.ServerID) (ContainerReport, error) {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer now.Add(-1)
		time.Sleep(20 * time.Millisecond)
		switch id {
		case "away":
			return ContainerReport{ServerID: id}, errors.New("no answer")
		case "draining":
			return ContainerReport{ServerID: id, Skipped: "the server is draining"}, nil
		case "b-changed", "a-changed":
			return ContainerReport{ServerID: id, Drift: []server.ContainerDrift{{Container: "bench", Kind: server.DriftMissing}}}, nil
		}
		return ContainerReport{ServerID: id}, nil
	}}
	var result ReconcileResult
	f.checkContainers(t.Context(), []string{"ok", "away", "draining", "b-changed", "a-changed", "fine"}, &result)
	require.Equal(t, 5, result.ContainersChecked)
	require.Equal(t, 1, result.ContainersUnknown)
	require.Len(t, result.Drift, 2)
	require.Equal(t, "a-changed", string(result.Drift[0].ServerID))
	require.LessOrEqual(t, most.Load(), int32(driftParallel))
}

// host is a Containers and the part of a Store that its steps use.
type fakeHost struct {
	Store
	Containers
	mu     sync.Mutex
	state  server.ProvisionState
	drift  []server.ContainerDrift
	err    error
	events map[string]server.Event
}

func (f *fakeHost) ProvisionState(context.Context, prego.ServerID) (server.ProvisionState, error) {
	return f.state, nil
}

func (f *fakeHost) AddEvent(_ context.Context, e server.Event, key string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events[fmt.Sprint(e.Step, " ", key)] = e
	return nil
}

func (f *fakeHost) CheckContainers(context.Context, prego.ServerID, string, prego.Role) ([]server.ContainerDrift, error) {
	return f.drift, f.err
}

func (f *fakeHost) RepairContainers(context.Context, prego.ServerID, string, prego.Role) ([]server.ContainerDrift, error) {
	return f.drift, f.err
}

func TestDriftGoesOnTheTimeline(t *testing.T) {
	t.Parallel()
	f := &fakeHost{events: map[string]server.Event{}, state: server.ProvisionState{Status: server.Active, Host: "192.0.2.1", Role: prego.RoleApp, Now: time.Now()}}
	a := &Servers{Store: f, Containers: f, Metrics: NewMetrics(prometheus.NewRegistry()), Log: zap.NewNop()}
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivity(a)
	run := func(activity any) (ContainerReport, error) {
		var r ContainerReport
		v, err := env.ExecuteActivity(activity, prego.ServerID("app-1"))
		if err == nil {
			err = v.Get(&r)
		}
		return r, err
	}
	r, err := run(a.CheckContainers)
	require.NoError(t, err)
	require.Empty(t, r.Drift)
	require.Empty(t, f.events)

	f.drift = []server.ContainerDrift{{Container: "bench", Kind: server.DriftChanged, Detail: "memory"}}
	for range 2 {
		r, err = run(a.CheckContainers)
		require.NoError(t, err)
		require.Equal(t, f.drift, r.Drift)
	}
	require.Len(t, f.events, 1, "the same drift is told once an hour")
	for _, e := range f.events {
		require.Equal(t, server.StepContainerDrift, e.Step)
		require.Equal(t, "bench: changed (memory)", e.Message)
	}
	_, err = run(a.RepairContainers)
	require.NoError(t, err)
	require.Len(t, f.events, 2)

	f.err = &server.ContainerError{Container: "bench", Message: "it dies in a loop"}
	_, err = run(a.RepairContainers)
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.Equal(t, ErrTypeContainer, app.Type())
	require.True(t, app.NonRetryable())

	// The host would fail, so that whoever looked at it all the same would be noticed.
	for says, st := range map[string]server.ProvisionState{
		"the server is draining": {Status: server.Decommissioning}, "the server was imported with containers of its own": {Status: server.Active, Purpose: server.PurposeImportExisting},
	} {
		f.state = st
		for _, activity := range []any{a.CheckContainers, a.RepairContainers} {
			r, err = run(activity)
			require.NoError(t, err)
			require.Equal(t, ContainerReport{ServerID: "app-1", Skipped: says}, r)
		}
	}
	require.Len(t, f.events, 2, "and nothing was told of them")
}
