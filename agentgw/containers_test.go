package agentgw_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/workload"
)

// TestContainersReports: a report is written before it is answered, belongs to the server
// of the certificate, and wakes the group.
func TestContainersReports(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{wire.LabelInstance, wire.LabelHealth}, []string{workload.LabelInstance, workload.LabelHealth}, "what one side writes the other reads")
	var check wire.HealthCheck
	b, err := json.Marshal(workload.HealthCheck{Kind: workload.HealthHTTP, Path: "/", Port: 80, IntervalSeconds: 1, TimeoutSeconds: 2, Retries: 3, StartPeriodSeconds: 4})
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &check))
	require.Equal(t, wire.HealthCheck{Kind: wire.HealthHTTP, Path: "/", Port: 80, IntervalSeconds: 1, TimeoutSeconds: 2, Retries: 3, StartPeriodSeconds: 4}, check)

	g := setup(t, nil)
	for _, sql := range []string{
		`INSERT INTO orgs (org_id, tier, created_by) VALUES ('acme', 'paid', 'test')`,
		`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-1', 'acme', 'shop', 'test')`,
		`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-1', 'app-1', 'acme', 'live', 'eu', 'test')`,
		`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by)
		 VALUES ('grp-0123456789ab', 'env-1', 'acme', 'eu', 'g', '{}', 64, 0.1, 1, 'test')`,
	} {
		g.exec(sql)
	}
	g.server("s1")
	g.server("s2")
	g.exec(`INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request, number, spec, state)
		SELECT 'ins-0123456789ab-' || n, 'grp-0123456789ab', 'acme', 's' || n, 1, 64, 0.1, n, '{}', 'booting' FROM generate_series(1, 2) n`)
	key := newKey(t)
	status, _, id := g.handshake("s1", key, nil)
	require.Equal(t, http.StatusOK, status)
	c := g.client(certificate(t, id.Certificates.AgentClient, key))
	report := func(seq int64, full bool, seen ...wire.Container) (int, wire.Problem, wire.ContainersResponse) {
		body, err := json.Marshal(wire.ContainersRequest{Stream: "x", Seq: seq, Full: full, Containers: seen})
		require.NoError(t, err)
		status, p, answer := g.post(c, wire.PathContainers, id.Token, "application/json", body)
		var out wire.ContainersResponse
		if status == http.StatusOK {
			require.NoError(t, json.Unmarshal(answer, &out))
		}
		return status, p, out
	}
	status, _, out := report(2, false)
	require.Equal(t, http.StatusOK, status)
	require.True(t, out.Resync)
	state := func(n string) (s string) {
		require.NoError(t, g.pool.QueryRow(t.Context(), `SELECT state || ' ' || message FROM instances WHERE instance_id = 'ins-0123456789ab-' || $1`, n).Scan(&s))
		return s
	}
	status, _, out = report(1, true, wire.Container{Instance: "ins-0123456789ab-1", Health: wire.HealthHealthy}, wire.Container{Instance: "ins-0123456789ab-2", Ended: true})
	require.Equal(t, http.StatusOK, status)
	require.False(t, out.Resync)
	require.Equal(t, []string{"running ", "booting "}, []string{state("1"), state("2")},
		"an agent reports only its own server")
	require.Eventually(t, func() bool { return slices.Contains(g.signals.all(), "group grp-0123456789ab") }, 5*time.Second, time.Millisecond)
	for n, health := range []wire.ContainerHealth{wire.HealthStarting, wire.HealthUnhealthy, "ill"} {
		status, _, _ = report(int64(2+n), false, wire.Container{Instance: "ins-0123456789ab-2", Health: health})
		require.Equal(t, health == "ill", status != http.StatusOK, "%s: %d", health, status)
	}
	status, _, _ = report(4, false, wire.Container{Instance: "ins-0123456789ab-1", Ended: true, Detail: "it ended\x00 with status 1"})
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "failed it ended with status 1", state("1"))
	g.exec(`CREATE FUNCTION poisoned() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'poisoned' USING ERRCODE = 'check_violation'; END $$`)
	g.exec(`CREATE TRIGGER poisoned BEFORE UPDATE ON container_reports FOR EACH ROW EXECUTE FUNCTION poisoned()`)
	status, _, _ = report(5, false)
	require.Equal(t, http.StatusServiceUnavailable, status, "it is not written, so the agent repeats it")
	g.exec(`DROP TRIGGER poisoned ON container_reports`)
	status, _, _ = report(5, false)
	require.Equal(t, http.StatusOK, status)

	for _, bad := range []wire.ContainersRequest{
		{Stream: "", Seq: 1},
		{Stream: "x"},
		{Stream: "a b", Seq: 1},
		{Stream: "x", Seq: 3, Containers: []wire.Container{{Instance: "../x", Ended: true}}},
		{Stream: "x", Seq: 3, Containers: []wire.Container{{Instance: "ins-0123456789ab-1"}}},
		{Stream: "x", Seq: 3, Containers: []wire.Container{{Instance: "ins-0123456789ab-1", Ended: true}, {Instance: "ins-0123456789ab-1", Ended: true}}},
	} {
		body, err := json.Marshal(bad)
		require.NoError(t, err)
		status, p, _ := g.post(c, wire.PathContainers, id.Token, "application/json", body)
		require.Equal(t, http.StatusUnprocessableEntity, status, "%s", body)
		require.Equal(t, "invalid_field", p.Code)
	}
	status, p, _ := g.post(g.client(nil), wire.PathContainers, id.Token, "application/json", []byte(`{"stream":"x","seq":9}`))
	require.Equal(t, http.StatusUnauthorized, status)
	require.Equal(t, "certificate_invalid", p.Code)
}
