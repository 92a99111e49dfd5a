package e2e

import (
	"testing"

	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/sim"
)

// TestHealthIsCheckedOverTheNetwork runs groups whose hosts check them by HTTP and by TCP, and deploys a release
// without a listener on its port.
func TestHealthIsCheckedOverTheNetwork(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: groupVars(nil)})
	env := c.workloads("acme", "enterprise")
	c.nodes("n", 1, 4096*mb)
	c.inject(sim.Fault{Kind: "container", Image: "deaf:1", Action: "unhealthy"})
	for _, kind := range []string{"http", "tcp"} {
		checked := func(image string) map[string]any {
			s := spec(image, 64)
			s["start_timeout_seconds"] = 2
			s["health"] = map[string]any{"kind": kind, "interval_seconds": 1, "timeout_seconds": 1, "retries": 2}
			return s
		}
		g := c.group(env, kind, 2, checked("web:1"))
		c.settledGroup(g.GroupId)
		c.deploy(g.GroupId, checked("deaf:1"))
		c.awaitGroup(g.GroupId, "rolled back", func(p api.ProcessGroup) bool {
			return p.Converged && p.DeployStatus == "rolled_back" && p.Release == 1 && p.Instances["running"] == 2
		})
	}
}
