package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

// TestAServerIsResized: what has the disk for it gets another type and comes back, although the
// worker dies in the middle; what has not stays as it is, and on.
func TestAServerIsResized(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "crash")
	c := newCell(t, options{vars: groupVars(map[string]string{"PREGO_TEST_CRASH": file})})
	fleet := c.id("n")
	c.fleet(fleet, prego.RoleApp, nil, map[string]any{"region": "eu", "spec": map[string]any{"server_type": "cx43"}})
	c.awaitAction(fleet, c.act(fleet, "CLUSTER_SCALE_OUT", map[string]any{"count": 1}).Seq, "succeeded")
	require.Eventually(t, func() bool { return c.number(`SELECT count(*) FROM servers WHERE agent_status = 'connected'`) == 1 }, patience, 50*time.Millisecond)
	var id, before, after string
	c.query(&id, `SELECT server_id FROM servers WHERE status = 'active'`)
	resize := func(serverType string) {
		t.Helper()
		c.query(&before, `SELECT agent_boot_id FROM servers WHERE server_id = $1`, id)
		c.post("/v1/servers/"+id+"/resize", map[string]any{"server_type": serverType}, http.StatusAccepted, nil)
	}
	open := func() int {
		return c.number(`SELECT count(*) FROM servers WHERE server_id = $1 AND cordoned_at IS NULL AND status = 'active' AND server_type = 'cx53'`, id)
	}
	require.NoError(t, os.WriteFile(file, []byte("drain/resized"), 0o600))
	began := time.Now()
	resize("cx53")
	require.Eventually(t, func() bool {
		_, err := os.Stat(file + ".hit")
		return err == nil
	}, patience, 50*time.Millisecond)
	require.NoError(t, os.Remove(file+".hit"))
	c.kill("worker")
	c.start("worker")
	done := c.drained(id)
	require.Contains(t, deref(done.Message), "it is a cx53 now, and was away for")
	t.Logf("%s; %s since it was asked for", deref(done.Message), time.Since(began).Round(time.Second))
	c.query(&after, `SELECT agent_boot_id FROM servers WHERE server_id = $1`, id)
	require.NotEqual(t, before, after)
	require.Equal(t, 1, open())
	keepHistory(t, c, "drain-resize", server.DrainWorkflowID(prego.ServerID(id)))

	resize("cx23")
	refused := c.awaitDrain(id, "refused", func(d api.Drain) bool { return d.Status == "failed" })
	require.Equal(t, "resize_refused", deref(refused.Reason))
	require.Contains(t, deref(refused.Message), "disks don't shrink")
	c.query(&after, `SELECT agent_boot_id FROM servers WHERE server_id = $1`, id)
	require.Equal(t, before, after, "it was not switched off for that")
	require.Equal(t, 1, open())
}
