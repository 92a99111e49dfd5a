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
	"github.com/prego/prego/workload"
)

// woken records the groups that are woken.
type woken []prego.GroupID

func (w *woken) WakeGroup(_ context.Context, id prego.GroupID, _ prego.OrgID) error {
	*w = append(*w, id)
	return nil
}

// TestWhatFitsNowhereHidesNobody has more orgs whose instances fit nowhere than one pass
// considers, all of them older than one whose instance fits.
func TestWhatFitsNowhereHidesNobody(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.exec(`INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, min_size, max_size, spec, created_by, workload_memory_bytes, workload_cpus)
		VALUES ('nodes', '', 'app', 'hetzner', 0, -1, '{}', 'test', 1 << 30, 8)`)
	p.exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, fleet_id, location)
		VALUES ('node-1', '', 'app', 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', 'nodes', 'fsn1')`)
	const huge = 1200
	p.exec(`INSERT INTO orgs (org_id, tier, created_by) SELECT 'w' || n, 'paid', 'test' FROM generate_series(1, $1) n`, huge+1)
	p.exec(`INSERT INTO apps (app_id, org_id, name, created_by) SELECT 'app-' || org_id, org_id, 'a', 'test' FROM orgs WHERE org_id LIKE 'w%'`)
	p.exec(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) SELECT 'env-' || org_id, app_id, org_id, 'e', 'eu', 'test' FROM apps`)
	p.exec(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by, wanted, waiting_since)
		SELECT 'grp-' || lpad(n::text, 12, '0'), 'env-w' || n, 'w' || n, 'eu', 'g', '{"image": "web:1"}',
			CASE WHEN n > $1 THEN 64 << 20 ELSE 2048::bigint << 20 END, 0.1, 1, 'test', 1, now() - make_interval(secs => $1 + 1 - n)
		FROM generate_series(1, $1 + 1) n`, huge)
	var runs woken
	a := &activities.Groups{
		Store: p.store, Runs: &runs, Settings: activities.GroupSettings{Retry: time.Minute}, Metrics: activities.NewGroupMetrics(prometheus.NewRegistry()), Log: zap.NewNop(),
	}
	served, err := a.ServeInstances(t.Context(), "eu")
	require.NoError(t, err)
	last := prego.GroupID("grp-000000001201")
	require.Equal(t, map[string]int{string(last): 1}, served.Allocated)
	require.Equal(t, woken{last}, runs)
	require.Equal(t, huge, p.number(`SELECT count(*) FROM process_groups WHERE status = 'unschedulable' AND status_reason = $1`, workload.ReasonNoCapacityMemory))
}
