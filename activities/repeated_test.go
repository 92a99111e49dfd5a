package activities_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
)

// flaky is an engine whose next call fails.
type flaky struct {
	activities.Benches
	activities.InstanceEngine
	fails bool
}

func (f *flaky) answer() error {
	if f.fails {
		f.fails = false
		return errors.New("registry.example: connection refused, password=hunter2")
	}
	return nil
}

func (f *flaky) StartInstance(context.Context, prego.ServerID, string, prego.OrgID, server.ContainerSpec) error {
	return f.answer()
}

func (f *flaky) PrepareBench(context.Context, prego.ServerID, string, string) error {
	return f.answer()
}

// TestRepeatedStepsAreExplained: the first failure of a step that is repeated is on the row that waits for it.
func TestRepeatedStepsAreExplained(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.Exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, location)
		VALUES ('node-1', '', 'app', 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', 'fsn1')`)
	text := func(sql string) (s string) {
		t.Helper()
		require.NoError(t, p.Pool.QueryRow(t.Context(), sql).Scan(&s))
		return s
	}

	t.Run("instance", func(t *testing.T) {
		p.Exec(`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-1', 'o1', 'a', 'test')`)
		p.Exec(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-1', 'app-1', 'o1', 'e', 'eu', 'test')`)
		p.Exec(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by)
			VALUES ('grp-1', 'env-1', 'o1', 'eu', 'g', '{"image": "web:1"}', 64 << 20, 0.1, 1, 'test')`)
		p.Exec(`INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request, spec, number, state)
			VALUES ('ins-1', 'grp-1', 'o1', 'node-1', 1, 64 << 20, 0.1, '{"image": "web:1"}', 1, 'booting')`)
		engine := &flaky{fails: true}
		a := &activities.Groups{
			Store: p.Store, Engine: engine, Runs: &woken{}, Settings: activities.GroupSettings{Retry: time.Minute},
			Metrics: activities.NewGroupMetrics(prometheus.NewRegistry()), Log: zap.NewNop(),
		}
		const message = `SELECT state || ' ' || message FROM instances`
		require.ErrorContains(t, a.BootInstance(t.Context(), "ins-1"), "connection refused")
		require.Equal(t, "booting not started yet: registry.example: connection refused, password=[redacted]", text(message))
		require.NoError(t, a.BootInstance(t.Context(), "ins-1"))
		require.Equal(t, "booting ", text(message), "it is explained only while it is repeated")
	})
	t.Run("bench", func(t *testing.T) {
		p.Exec(`INSERT INTO stack_releases (name, image, rings, created_by, status) VALUES ('r1', 'i:1', '[{"name": "rest"}]', 'test', 'rolling')`)
		p.Exec(`INSERT INTO stack_release_servers (release, server_id, ring, status, phase, try) VALUES ('r1', 'node-1', 0, 'updating', 'fetching the image', 1)`)
		a := &activities.StackReleases{Store: p.Store, Containers: &flaky{fails: true}, Log: zap.NewNop()}
		ref := activities.BenchRef{Release: "r1", ServerID: "node-1", Try: 1}
		const message = `SELECT message FROM stack_release_servers`
		require.ErrorContains(t, a.PrepareBench(t.Context(), ref), "connection refused")
		require.Equal(t, "registry.example: connection refused, password=[redacted]", text(message))
		require.NoError(t, a.PrepareBench(t.Context(), ref))
		require.NoError(t, a.NoteBench(t.Context(), activities.PhaseInput{BenchRef: ref, Phase: "backing up"}))
		require.Empty(t, text(message), "it is explained only while it is repeated")
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		a := &activities.StackReleases{Store: p.Store, Containers: &flaky{fails: true}, Log: zap.NewNop()}
		require.Error(t, a.PrepareBench(ctx, activities.BenchRef{Release: "r1", ServerID: "node-1", Try: 1}))
		require.Empty(t, text(`SELECT message FROM stack_release_servers`))
	})
}

// benchRuns records the runs of servers' updates.
type benchRuns struct {
	activities.Runs
	asked []string
}

func (r *benchRuns) EnsureBenchUpdate(context.Context, server.StackReleaseName, prego.ServerID) (bool, error) {
	r.asked = append(r.asked, "start")
	return true, nil
}

func (r *benchRuns) CancelBenchUpdate(context.Context, server.StackReleaseName, prego.ServerID) error {
	r.asked = append(r.asked, "cancel")
	return nil
}

func (*benchRuns) WakeStackRelease(context.Context, server.StackReleaseName) error { return nil }

// TestACancelledReleaseLetsGoOfItsServers: the next look cancels the run of a server, and the run lets go of it.
func TestACancelledReleaseLetsGoOfItsServers(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.Exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, location, closing, cordoned_at)
		VALUES ('node-1', '', 'app', 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', 'fsn1', true, now())`)
	p.Exec(`INSERT INTO stack_releases (name, image, rings, created_by, status) VALUES ('r1', 'i:1', '[{"name": "rest"}]', 'test', 'rolling')`)
	p.Exec(`INSERT INTO stack_release_servers (release, server_id, ring, status, phase, try) VALUES ('r1', 'node-1', 0, 'updating', 'fetching the image', 1)`)
	var runs benchRuns
	a := &activities.StackReleases{Store: p.Store, Runs: &runs, Ended: activities.NewBenchUpdates(prometheus.NewRegistry()), Log: zap.NewNop()}
	step := func() {
		t.Helper()
		_, err := a.StepStackRelease(t.Context(), "r1")
		require.NoError(t, err)
	}
	step()
	require.Equal(t, []string{"start"}, runs.asked)
	_, err := p.Store.CancelStackRelease(t.Context(), "r1", "ann")
	require.NoError(t, err)
	step()
	require.Equal(t, []string{"start", "start", "cancel"}, runs.asked)
	plan, err := a.PlanBench(t.Context(), activities.BenchRef{Release: "r1", ServerID: "node-1"})
	require.NoError(t, err)
	require.True(t, plan.Done)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM servers WHERE NOT closing AND cordoned_at IS NULL`))
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM stack_release_servers WHERE status = 'skipped' AND message = 'the release was cancelled'`))
	step()
	require.Len(t, runs.asked, 3, "nothing is being updated any more")
}
