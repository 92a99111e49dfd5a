package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/s3test"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// TestServersAreFreed: three tenants on three servers come to live on one, as the plan says,
// although the worker dies before and after it has asked for a move; the servers that are free
// are deleted.
func TestServersAreFreed(t *testing.T) {
	t.Parallel()
	crash := filepath.Join(t.TempDir(), "crash")
	c := newCell(t, options{vars: backupVars(s3test.Start(t), map[string]string{
		"PREGO_MOVE_GRACE": "200ms", "PREGO_REBALANCE_EVERY": "200ms", "PREGO_TEST_CRASH": crash, "PLACEMENT_MEMORY_PCT_MAX": "100",
	})})
	c.org("acme", "")
	c.create("db", prego.RoleDBShard, server.Spec{})
	c.create("redis", prego.RoleRedisPool, server.Spec{})
	var ids []string
	for i, name := range []string{"app-a", "app-b", "app-c", "app-idle"} {
		c.create(name, prego.RoleApp, server.Spec{})
		for _, id := range []string{"db", "redis", name} {
			c.awaitStatus(id, server.Active)
		}
		if i < 3 {
			id := c.tenant(fmt.Sprintf("tenant-%d", i), prego.PlanStarter, nil)
			require.Equal(t, c.id(name), c.settledTenant(id, tenant.Active).Allocation.AppServerId)
			ids = append(ids, id)
			c.post("/v1/servers/"+c.id(name)+"/cordon", nil, http.StatusOK, nil)
		}
	}
	for _, name := range []string{"app-a", "app-b", "app-c"} {
		c.post("/v1/servers/"+c.id(name)+"/uncordon", nil, http.StatusOK, nil)
	}
	var plan api.PackingPlan
	require.Eventually(t, func() bool { // each has to have said what it uses
		c.post("/v1/packing-plans", map[string]any{"region": "eu"}, http.StatusOK, &plan)
		return len(plan.Frees) == 2 && (plan.Unknown == nil || len(*plan.Unknown) == 0)
	}, patience, 100*time.Millisecond, "%+v", plan)
	require.Len(t, plan.Moves, 2)
	require.Equal(t, 3, *plan.Servers)

	require.NoError(t, os.WriteFile(crash, []byte("rebalance/stepped"), 0o600))
	var r api.Rebalance
	c.post("/v1/rebalances", map[string]any{"plan": plan, "at_once": 1, "remove_servers": true}, http.StatusAccepted, &r)
	for _, point := range []string{"rebalance/asked", ""} {
		require.Eventually(t, func() bool { return !exists(crash) }, patience, 20*time.Millisecond)
		c.kill("worker")
		if point != "" {
			require.NoError(t, os.WriteFile(crash, []byte(point), 0o600))
		}
		c.start("worker")
	}
	require.Eventually(t, func() bool {
		c.send(http.MethodGet, "/v1/rebalances/"+r.RebalanceId, nil, http.StatusOK, &r)
		return r.State != string(server.RebalanceRunning)
	}, 2*patience, 50*time.Millisecond, "%+v", r)
	require.Equal(t, "done", r.State, "%s", deref(r.Message))
	require.Equal(t, []int{2, 2, 0, 0}, []int{r.Total, r.Moved, r.Failed, r.Skipped})
	for _, m := range plan.Moves {
		require.Equal(t, m.To, c.getTenant(m.TenantId).Allocation.AppServerId)
	}
	require.Equal(t, 2, c.number(`SELECT count(*) FROM tenant_moves`), "each was asked for once")
	stays := plan.Moves[0].To
	for _, id := range ids {
		require.Equal(t, stays, c.settledTenant(id, tenant.Active).Allocation.AppServerId)
	}
	for _, f := range plan.Frees {
		require.Eventually(t, func() bool {
			return c.text(`SELECT status FROM servers WHERE server_id = $1`, f.ServerId) == string(server.Terminated)
		}, patience, 50*time.Millisecond)
	}
	t.Logf("%d moves freed %d of %d servers: %s", r.Moved, len(r.Freed), *plan.Servers, strings.Join(r.Freed, ", "))
	c.settled()
}
