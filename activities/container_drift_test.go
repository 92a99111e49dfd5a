package activities_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
)

// fakeHost is a host's containers.
type fakeHost struct {
	activities.Containers
	drift []server.ContainerDrift
	err   error
}

func (f *fakeHost) CheckContainers(context.Context, prego.ServerID, string, prego.Role) ([]server.ContainerDrift, error) {
	return f.drift, f.err
}

func TestDriftGoesOnTheTimeline(t *testing.T) {
	t.Parallel()
	p, f := newPlacing(t, 4), &fakeHost{}
	p.machine("app-1", server.Active, 1, "1")
	a, env := p.servers(&cloud{}, p.Store)
	a.Containers, a.Log = f, zap.NewNop()
	run := func(activity any) (activities.ContainerReport, error) {
		var r activities.ContainerReport
		v, err := env.ExecuteActivity(activity, prego.ServerID("app-1"))
		if err == nil {
			err = v.Get(&r)
		}
		return r, err
	}
	r, err := run(a.CheckContainers)
	require.NoError(t, err)
	require.Empty(t, r.Drift)
	require.Zero(t, p.Number(`SELECT count(*) FROM server_events`))

	f.drift = []server.ContainerDrift{{Container: "bench", Kind: server.DriftChanged, Detail: "memory"}}
	for range 2 {
		r, err = run(a.CheckContainers)
		require.NoError(t, err)
		require.Equal(t, f.drift, r.Drift)
	}
	require.LessOrEqual(t, p.Number(`SELECT count(*) FROM server_events`), 2, "the same drift is reported once an hour")
	require.Equal(t, "container_drift bench: changed (memory)", p.Text(`SELECT DISTINCT step || ' ' || message FROM server_events`))
	told := p.Number(`SELECT count(*) FROM server_events`)

	f.err = &server.ContainerError{Container: "bench", Message: "it dies in a loop"}
	_, err = run(a.CheckContainers)
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.Equal(t, activities.ErrTypeContainer, app.Type())
	require.True(t, app.NonRetryable())

	// The host would fail, so any check of it is noticed.
	for says, sql := range map[string]string{
		"the server is draining":                          `UPDATE servers SET status = 'draining'`,
		"the server was imported with its own containers": `UPDATE servers SET status = 'active', purpose = 'import_existing_server'`,
	} {
		p.Exec(sql)
		r, err = run(a.CheckContainers)
		require.NoError(t, err)
		require.Equal(t, activities.ContainerReport{ServerID: "app-1", Skipped: says}, r)
	}
	require.Equal(t, told, p.Number(`SELECT count(*) FROM server_events`), "and nothing was reported about them")
}
