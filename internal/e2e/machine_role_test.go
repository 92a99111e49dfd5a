//go:build machines

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// TestMachineOfEachRole is a server's whole life on real systems.
func TestMachineOfEachRole(t *testing.T) {
	t.Parallel()
	c := machineCell(t, options{})
	for _, image := range []string{"debian-12", "debian-13"} {
		for _, role := range []prego.Role{prego.RoleApp, prego.RoleDBShard, prego.RoleRedisPool} {
			t.Run(fmt.Sprintf("%s on %s", role, image), func(t *testing.T) {
				t.Parallel()
				spec := server.Spec{Image: image}
				if role == prego.RoleDBShard {
					spec.VolumeGB = 10
				}
				m := c.in(t).machine(string(role)+"-"+strings.TrimPrefix(image, "debian-"), role, spec)
				s := m.awaitActive()
				require.Equal(t, bootStages, stages(s))

				require.Equal(t, "hetzner", m.run("cloud-id"))
				require.Equal(t, strings.TrimPrefix(image, "debian-"), m.run(`. /etc/os-release; echo "$VERSION_ID"`))
				m.awaitRun(`[ "$(systemctl is-system-running)" = running ]`)
				require.Contains(t, m.console(), "Cloud-init v.")
				m.run("! test -e /etc/prego-agent/bootstrap.token")

				// Path C: the engine, with the certificates that came from the control plane.
				m.containersRun()
				if role == prego.RoleDBShard {
					require.Equal(t, "ext4 /dev/sdb", strings.Join(strings.Fields(m.run("findmnt --noheadings --output FSTYPE,SOURCE /srv/data && touch /srv/data/kept")), " "))
					m.comesBack(func() { m.power("reboot") })
					m.run("mountpoint /srv/data && test -e /srv/data/kept")
				}
				m.gone()
			})
		}
	}
}

// TestMachineConformance holds machines to what process hosts are held to.
func TestMachineConformance(t *testing.T) {
	t.Parallel()
	conform(t, machineCell(t, options{}))
}
