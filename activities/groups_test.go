package activities_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/placement/scale"
	"github.com/prego/prego/worker"
	"github.com/prego/prego/workload"
)

// woken records the groups that are woken, and the fleets whose runs are signalled an action.
type woken struct {
	activities.Runs
	groups []prego.GroupID
	fleets []prego.FleetID
}

func (w *woken) WakeGroup(_ context.Context, id prego.GroupID, _ prego.OrgID) error {
	w.groups = append(w.groups, id)
	return nil
}

func (*woken) WakeRuns(context.Context, []string) error { return nil }

func (w *woken) EnsureScaleFleet(_ context.Context, id prego.FleetID) error {
	w.fleets = append(w.fleets, id)
	return nil
}

// TestWhatFitsNowhereHidesNobody has more orgs whose instances fit nowhere than one pass
// considers, all of them older than one whose instance fits.
func TestWhatFitsNowhereHidesNobody(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.Exec(`INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, min_size, max_size, spec, created_by, workload_memory_bytes, workload_cpus)
		VALUES ('nodes', '', 'app', 'hetzner', 0, -1, '{}', 'test', 1 << 30, 8)`)
	p.Exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, fleet_id, location)
		VALUES ('node-1', '', 'app', 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', 'nodes', 'fsn1')`)
	const huge = 1200
	p.Exec(`INSERT INTO orgs (org_id, tier, created_by) SELECT 'w' || n, 'paid', 'test' FROM generate_series(1, $1) n`, huge+1)
	p.Exec(`INSERT INTO apps (app_id, org_id, name, created_by) SELECT 'app-' || org_id, org_id, 'a', 'test' FROM orgs WHERE org_id LIKE 'w%'`)
	p.Exec(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) SELECT 'env-' || org_id, app_id, org_id, 'e', 'eu', 'test' FROM apps`)
	p.Exec(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by, wanted, waiting_since)
		SELECT 'grp-' || lpad(n::text, 12, '0'), 'env-w' || n, 'w' || n, 'eu', 'g', '{"image": "web:1"}',
			CASE WHEN n > $1 THEN 64 << 20 ELSE 2048::bigint << 20 END, 0.1, 1, 'test', 1, now() - make_interval(secs => $1 + 1 - n)
		FROM generate_series(1, $1 + 1) n`, huge)
	var runs woken
	a := &activities.Groups{
		Store: p.Store, Runs: &runs, Settings: activities.GroupSettings{Retry: time.Minute}, Metrics: activities.NewGroupMetrics(prometheus.NewRegistry()), Log: zap.NewNop(),
	}
	served, err := a.ServeInstances(t.Context(), "eu")
	require.NoError(t, err)
	last := prego.GroupID("grp-000000001201")
	require.Equal(t, map[string]int{string(last): 1}, served.Allocated)
	require.Equal(t, []prego.GroupID{last}, runs.groups)
	require.Equal(t, huge, p.Number(`SELECT count(*) FROM process_groups WHERE status = 'unschedulable' AND status_reason = $1`, workload.ReasonNoCapacityMemory))
}

// TestAWaitingGroupIsServedWithoutARun: it plans once and then waits, without a round of its own, until its region is
// served. That is when a retry is due or room became free.
func TestAWaitingGroupIsServedWithoutARun(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.Exec(`INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, min_size, max_size, spec, created_by, workload_memory_bytes, workload_cpus)
		VALUES ('nodes', '', 'app', 'hetzner', 0, -1, '{}', 'test', 1 << 30, 8)`)
	p.Exec(`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-1', 'o1', 'a', 'test')`)
	p.Exec(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-1', 'app-1', 'o1', 'e', 'eu', 'test')`)
	p.Exec(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by)
		VALUES ('grp-1', 'env-1', 'o1', 'eu', 'web', '{"image": "web:1"}', 64 << 20, 0.1, 1, 'test')`)
	var runs woken
	a := &activities.Groups{
		Store: p.Store, Runs: &runs, Settings: activities.GroupSettings{Retry: time.Minute},
		Metrics: activities.NewGroupMetrics(prometheus.NewRegistry()), Log: zap.NewNop(),
	}
	look := func() bool {
		t.Helper()
		r, err := worker.LookAtPlaces(t.Context(), a)
		require.NoError(t, err)
		return r.Found
	}
	tries := func() int { return p.Number(`SELECT tries FROM process_groups`) }
	plan, err := a.PlanGroup(t.Context(), "grp-1")
	require.NoError(t, err)
	require.True(t, plan.Serve)
	require.Equal(t, 20*time.Minute, plan.Wait)
	require.False(t, look())
	require.Equal(t, 1, tries())
	require.False(t, look())
	require.Equal(t, 1, tries(), "its retry is not due")
	require.NoError(t, p.Store.RoomFreed(t.Context(), "eu"))
	require.False(t, look())
	require.Equal(t, 2, tries())

	p.Exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, fleet_id, location)
		VALUES ('node-1', '', 'app', 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', 'nodes', 'fsn1')`)
	p.Exec(`UPDATE process_groups SET retry_at = now()`)
	require.Empty(t, runs.groups)
	require.True(t, look())
	require.Equal(t, []prego.GroupID{"grp-1"}, runs.groups, "its run starts what was allocated")
	plan, err = a.PlanGroup(t.Context(), "grp-1")
	require.NoError(t, err)
	require.Len(t, plan.Boot, 1)
	require.Equal(t, time.Minute, plan.Wait)
}

// TestInstancesMakeFleetsGrow has three groups that wait: one needs five servers of a fleet
// that may have four, one is larger than any server, and one needs tags of no fleet.
func TestInstancesMakeFleetsGrow(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.Exec(`INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, region, min_size, max_size, spec, created_by, workload_memory_bytes, workload_cpus, serves_workloads)
		VALUES ('nodes', '', 'app', 'hetzner', NULL, 0, 5, '{"tags": ["work"]}', 'test', 1 << 30, 8, true), ('elsewhere', '', 'app', 'hetzner', 'us', 0, 5, '{}', 'test', 8::bigint << 30, 8, true)`)
	p.Exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, fleet_id, location, tags)
		VALUES ('node-1', '', 'app', 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', 'nodes', 'fsn1', '{work}')`)
	p.Exec(`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-1', 'o1', 'a', 'test')`)
	p.Exec(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-1', 'app-1', 'o1', 'e', 'eu', 'test')`)
	group := func(id string, megabytes, wanted int, require string) {
		p.Exec(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by, wanted, waiting_since, require_tags)
			VALUES ($1, 'env-1', 'o1', 'eu', $1, '{"image": "web:1"}', $2::bigint << 20, 0.1, $3, 'test', $3, now(), $4::text[])`, id, megabytes, wanted, require)
	}
	group("grp-000000000001", 600, 6, "{work}") // one fits a server
	group("grp-000000000002", 1024, 1, "{}")    // with the overhead more than any has
	group("grp-000000000003", 64, 1, "{gpu}")
	var runs woken
	a := &activities.Groups{
		Store: p.Store, Runs: &runs, Settings: activities.GroupSettings{Retry: time.Minute}, Metrics: activities.NewGroupMetrics(prometheus.NewRegistry()), Log: zap.NewNop(),
	}
	serve := func() {
		p.Exec(`UPDATE process_groups SET retry_at = now()`) // who fits nowhere would wait
		_, err := a.ServeInstances(t.Context(), "eu")
		require.NoError(t, err)
	}
	says := func(id string) (reason, message string) {
		require.NoError(t, p.Pool.QueryRow(t.Context(), `SELECT status_reason, status_message FROM process_groups WHERE group_id = $1`, id).Scan(&reason, &message))
		return reason, message
	}
	serve()
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM instances`))
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM fleet_actions WHERE fleet_id = 'nodes' AND action = 'CLUSTER_SCALE_OUT' AND inputs = '{"count": 4, "regions": ["eu"]}' AND cause = 'instances' AND status = 'queued'`))
	require.Equal(t, []prego.FleetID{"nodes"}, runs.fleets)
	reason, message := says("grp-000000000001")
	require.Equal(t, workload.ReasonNoCapacityMemory, reason)
	require.Contains(t, message, "fleet nodes")
	reason, message = says("grp-000000000002")
	require.Equal(t, workload.ReasonLargerThanServers, reason)
	require.Contains(t, message, "not even an empty server of a fleet in the region could hold it")
	reason, _ = says("grp-000000000003")
	require.Equal(t, string(prego.ReasonCellMismatch), reason)

	serve()
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM fleet_actions`), "one growth for all, however often they ask")

	// The action is planned and its servers come to life: waiting groups check again.
	action, err := p.Store.BeginFleetAction(t.Context(), "nodes", scale.Plan)
	require.NoError(t, err)
	require.Len(t, action.Steps, 4)
	p.Exec(`UPDATE fleet_actions SET status = 'succeeded', finished_at = now()`)
	p.Exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, fleet_id, location, tags)
		SELECT 'new-' || n, '', 'app', 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', 'nodes', 'fsn1', '{work}' FROM generate_series(1, 4) n`)
	serve()
	require.Equal(t, 5, p.Number(`SELECT count(*) FROM instances`))
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM fleet_actions`), "the fleet is at its maximum")
	_, message = says("grp-000000000001")
	require.Contains(t, message, "fleet nodes is at its maximum size")

	// A growth that failed is not retried immediately.
	p.Exec(`UPDATE fleets SET max_size = 6`)
	p.Exec(`UPDATE fleet_actions SET status = 'failed'`)
	serve()
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM fleet_actions`))
	p.Exec(`UPDATE fleet_actions SET finished_at = now() - interval '6 minutes'`)
	serve()
	require.Equal(t, 2, p.Number(`SELECT count(*) FROM fleet_actions`))
}
