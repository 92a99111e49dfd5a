//go:build machines

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// TestMachinePool has a pool's Redis at its private address and nowhere else, and there again
// after a reboot at which Docker is faster than the network, without a control plane.
func TestMachinePool(t *testing.T) {
	t.Parallel()
	c := machineCell(t, options{vars: map[string]string{"PREGO_STACK_FILE": declared}})
	m := c.machine("pool", prego.RoleRedisPool, server.Spec{Image: "debian-12"})
	m.awaitActive()
	private := c.privateAddress("pool")
	require.NotEmpty(t, private)
	require.Eventually(t, func() bool {
		return c.text(`SELECT COALESCE(host(agent_private_address), '') FROM servers WHERE server_id = $1`, c.id("pool")) == private
	}, 20*time.Second, 100*time.Millisecond, "the agent has the address, too")
	reach(t, "a pool", []path{
		connects("outside", dialAs(c.outside()), "pool", m.host().Addr, server.PortRedis, false),
		connects("control plane", dialAs(c.sim.Network().Gateway), "pool", m.host().Addr, server.PortRedis, false),
		connects("pool", m.dial, "pool, inside", private, server.PortRedis, true),
	})
	for _, p := range []string{"worker", "api", "agentgw"} {
		c.kill(p)
	}
	listening := fmt.Sprintf("ss --no-header --listening --numeric --tcp 'sport = %d' | grep --quiet --fixed-strings '%s:'", server.PortRedis, private)
	m.run("touch /run/before")
	m.power("reboot")
	m.awaitRun("! test -e /run/before && " + listening)
	// The worst case, as long as it takes: the address comes after the container.
	m.awaitRun("ip -4 -oneline address show dev enp7s0 | grep --quiet " + private)
	m.run(fmt.Sprintf(`ip address del %s/32 dev enp7s0
id=$(curl --silent --unix-socket /run/docker.sock http://docker/containers/json | grep -o '"Id":"[0-9a-f]*"' | cut -d'"' -f4)
curl --silent --show-error --fail-with-body --unix-socket /run/docker.sock -X POST "http://docker/containers/$id/restart?t=3"
ip address add %s/32 dev enp7s0`, private, private))
	m.awaitRun(listening)
	require.Eventually(t, func() bool {
		conn, err := m.dial(t.Context(), "tcp", fmt.Sprintf("%s:%d", private, server.PortRedis))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 20*time.Second, 100*time.Millisecond)
}
