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

// TestMachineOfEachRole is a server's whole life on real systems, for roles whose boot no other test checks:
// TestMachineLives has a pool on Debian 13, TestMachineConformance an app server on it, and TestMachineServesATenant a
// pool on Debian 12.
func TestMachineOfEachRole(t *testing.T) {
	t.Parallel()
	c := machineCell(t, options{})
	for _, of := range []struct {
		role  prego.Role
		image string
	}{{prego.RoleApp, "debian-12"}, {prego.RoleDBShard, "debian-12"}, {prego.RoleDBShard, "debian-13"}} {
		t.Run(fmt.Sprintf("%s on %s", of.role, of.image), func(t *testing.T) {
			t.Parallel()
			spec := server.Spec{Image: of.image}
			if of.role == prego.RoleDBShard {
				spec.VolumeGB = 10
			}
			m := c.in(t).machine(string(of.role)+"-"+strings.TrimPrefix(of.image, "debian-"), of.role, spec)
			m.awaitActive()
			m.bootedAs(of.image)
			// Path C: the engine, with the certificates that came from the control plane.
			m.containersRun()
			if of.role == prego.RoleDBShard {
				require.Equal(t, "ext4 /dev/sdb", strings.Join(strings.Fields(m.run("findmnt --noheadings --output FSTYPE,SOURCE /srv/data && touch /srv/data/kept")), " "))
				m.comesBack(func() { m.power("reboot") })
				m.run("mountpoint /srv/data && test -e /srv/data/kept")
			}
			m.gone()
		})
	}
}

// bootedAs looks at a machine that has just become active.
func (m *machine) bootedAs(image string) {
	m.t.Helper()
	require.Equal(m.t, bootStages, stages(m.get(m.server)))
	require.Equal(m.t, "hetzner", m.run("cloud-id"))
	require.Equal(m.t, strings.TrimPrefix(image, "debian-"), m.run(`. /etc/os-release; echo "$VERSION_ID"`))
	m.awaitRun(`[ "$(systemctl is-system-running)" = running ]`)
	require.Contains(m.t, m.console(), "Cloud-init v.")
	m.run("! test -e /etc/prego-agent/bootstrap.token")
}

// TestMachineConformance holds machines to what process hosts are held to.
func TestMachineConformance(t *testing.T) {
	t.Parallel()
	conform(t, machineCell(t, options{}), func(m *machine) { m.bootedAs("debian-13") })
}
