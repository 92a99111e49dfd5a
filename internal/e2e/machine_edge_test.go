//go:build machines

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// TestMachineEdge has the declared Caddy and HAProxy answer the public on a real system, by
// themselves after a reboot, too, when there is no control plane.
func TestMachineEdge(t *testing.T) {
	t.Parallel()
	// An edge gives 443 to the public, and its agent moves.
	c := machineCell(t, options{vars: map[string]string{"PREGO_STACK_FILE": declared, "PREGO_AGENT_PORT": "443"}})
	m := c.machine("edge", prego.RoleEdge, server.Spec{})
	m.awaitActive()
	m.awaitRun("systemctl is-active --quiet prego-agent.service prego-agent-bench.service")
	world, control := dialAs(c.outside()), dialAs(c.sim.Network().Gateway)
	public, private := m.host().Addr, c.privateAddress("edge")
	require.NotEmpty(t, private)
	holds := func(when string) {
		t.Helper()
		reach(t, when, []path{
			connects("outside", world, "edge", public, 80, true),
			connects("outside", world, "edge", public, 443, true),
			connects("outside", world, "its agent", public, server.EdgeAgentPort, false),
			connects("control plane", control, "its agent", public, server.EdgeAgentPort, true),
			connects("outside", world, "its Docker", public, 2376, false),
			connects("control plane", control, "its Docker", public, 2376, true),
		})
		client := &http.Client{Transport: &http.Transport{DialContext: world, DisableKeepAlives: true}, Timeout: 10 * time.Second}
		resp, err := client.Get("http://" + net.JoinHostPort(public, "80") + "/")
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		require.Equal(t, http.StatusNotFound, resp.StatusCode, "nobody has that name")
		require.Equal(t, "Caddy", resp.Header.Get("Server"))
		m.run("test -S /run/prego-edge/haproxy.sock")
	}
	holds("an edge")

	processes := []string{"worker", "api", "agentgw"}
	for _, p := range processes {
		c.kill(p)
	}
	m.run("touch /run/before")
	began := time.Now()
	m.power("reboot")
	m.awaitRun(fmt.Sprintf("! test -e /run/before && curl --silent http://%s/", private))
	t.Logf("%s after the button, it answers again", time.Since(began).Round(100*time.Millisecond))
	holds("after a reboot, without a control plane")
	for _, p := range processes {
		c.start(p)
	}
	m.awaitHeartbeat()
	m.gone()
}
