//go:build machines

package e2e

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

// The boot matrix: what the world does to a boot, on real systems. Each ends active, or
// failed with the cause in the reason.

// minimally lets servers of a name boot from the root that has nothing but what boots.
func (c *cell) minimally(name, image string) server.Spec {
	c.t.Helper()
	require.NoError(c.t, c.sim.SetRoot("*-"+c.id(name), image+"-minimal"))
	return server.Spec{Image: image}
}

// awaitStage waits until the boot reported something.
func (m *machine) awaitStage(pattern string) {
	m.t.Helper()
	re := regexp.MustCompile(pattern)
	var s api.Server
	eventually(m.t, func() bool {
		s = m.get(m.server)
		require.NotEqual(m.t, api.ServerStatus("failed"), s.Status, "%s: %s %q", deref(s.StatusReason), deref(s.StatusMessage), stages(s))
		return slices.ContainsFunc(stages(s), re.MatchString)
	}, 3*time.Minute, 100*time.Millisecond, "%s was not reported", pattern)
}

// hasFailed waits until provisioning has failed, with a reason and a cause.
func (m *machine) hasFailed(reason prego.Reason, cause string) {
	m.t.Helper()
	var s api.Server
	eventually(m.t, func() bool {
		s = m.get(m.server)
		return s.Status == "failed" || s.Status == "active"
	}, 4*time.Minute, 100*time.Millisecond)
	require.Equal(m.t, string(reason), deref(s.StatusReason), deref(s.StatusMessage))
	require.Regexp(m.t, cause, deref(s.StatusMessage))
	require.Regexp(m.t, cause, strings.Join(stages(s), "\n"), "and on the timeline")
}

// early runs a command as soon as there is a system that could run it.
func (m *machine) early(script string) {
	m.t.Helper()
	m.awaitRun("test -d /run/systemd/system || exit 1; " + script)
}

func TestMachineBootContinues(t *testing.T) {
	t.Parallel()
	c := machineCell(t, options{vars: map[string]string{"PREGO_PROVISION_RETRIES": "0"}, set: func(cfg *config.Config) { cfg.Worker.BootPatience = 80 * time.Second }})

	t.Run("after power cuts", func(t *testing.T) {
		t.Parallel()
		c := c.in(t)
		m := c.machine("cut", prego.RoleRedisPool, c.minimally("cut", "debian-12"))
		cut := func() {
			m.power("poweroff")
			m.power("poweron")
		}
		m.early("pgrep -f cloud-init") // while it fetches and writes what it shall do
		cut()
		m.awaitStage("^cloud_init_started")
		m.awaitRun("pgrep -x dpkg || test -e /usr/sbin/nft") // within a package, or soon after
		cut()
		m.awaitStage("^firewall_ready")
		m.awaitRun("pgrep -x dpkg") // Docker and what it takes
		cut()
		m.awaitStage("^docker_installed")
		cut()
		s := m.awaitActive()
		require.Equal(t, 1, s.Attempt)
		m.run(`test -z "$(dpkg --audit)"`)
		m.run("test -e /var/lib/cloud/instance/prego-booted")
		m.portsHold()
	})

	t.Run("when names come back, and the lock is given free, and the mirror is slow", func(t *testing.T) {
		t.Parallel()
		c := c.in(t)
		spec := c.minimally("names", "debian-13")
		away, err := c.sim.Inject(sim.Fault{Kind: "dns", Action: "fail", Server: "*-" + c.id("names")})
		require.NoError(t, err)
		c.inject(sim.Fault{Kind: "mirror", Action: "delay", DelayMS: 200, Server: "*-" + c.id("names")})
		m := c.machine("names", prego.RoleRedisPool, spec)
		m.awaitStage(`^retrying: packages: apt-get update: .*mirror\.cloud\.example`)
		m.run(holdLock(12))
		require.True(t, c.sim.Withdraw(away))
		require.Equal(t, 1, m.awaitActive().Attempt)
		m.portsHold()
	})
}

// holdLock keeps the package manager's lock for some seconds, as unattended upgrades do.
func holdLock(seconds int) string {
	return fmt.Sprintf(`setsid python3 -c 'import fcntl,time
f=open("/var/lib/dpkg/lock-frontend","w")
fcntl.lockf(f, fcntl.LOCK_EX)
time.sleep(%d)' >/dev/null 2>&1 </dev/null &`, seconds)
}

func TestMachineBootReportsItsFailure(t *testing.T) {
	t.Parallel()
	// None waits for the deadlines of minutes that a silent host would be given.
	c := machineCell(t, options{vars: map[string]string{"PREGO_PROVISION_RETRIES": "0"}, set: func(cfg *config.Config) { cfg.Worker.BootPatience = 8 * time.Second }})
	for name, tc := range map[string]struct {
		image string
		sabot func(c *cell, name string)
		early string
		cause string
	}{
		"mirror": {"debian-12-minimal", func(c *cell, name string) {
			c.inject(sim.Fault{Kind: "mirror", Action: "respond", Status: 503, Server: "*-" + c.id(name)})
		}, "true", `packages: apt-get update: .*503`},
		"lock": {"debian-13-minimal", func(*cell, string) {}, holdLock(600), `packages: .*(Could not get lock|lock was locked)`},
		"disk": {"debian-12", func(*cell, string) {}, `fallocate -l $(($(stat -f -c '%a*%S' /)-(20<<20))) /filler`, `docker: apt-get install.*(free space|No space left)`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := c.in(t)
			spec := server.Spec{Image: strings.TrimSuffix(tc.image, "-minimal")}
			if spec.Image != tc.image {
				spec = c.minimally(name, spec.Image)
			}
			tc.sabot(c, name)
			m := c.machine(name, prego.RoleRedisPool, spec)
			m.early(tc.early)
			m.hasFailed(prego.ReasonFailedBoot, tc.cause)
		})
	}
}

// portsHold publishes a port on a separate network and connects from outside: it opens without the firewall's rules,
// unless the engine bound it to the host itself, and never with them.
func (m *machine) portsHold() {
	m.t.Helper()
	const engine = `curl --silent --show-error --fail-with-body --unix-socket /run/docker.sock -H 'Content-Type: application/json' http://docker`
	m.run(engine + `/networks/create -d '{"Name":"open"}'`)
	// It has no name where it was pulled by its digest.
	image := m.run(engine + `/containers/json | grep -o '"ImageID":"[^"]*"' | head -n 1 | cut -d'"' -f4`)
	m.run(engine + `/containers/create?name=open -d '{"Image":"` + image + `","Cmd":["` + sim.StandInProgram + `","stand-in","x"],
"ExposedPorts":{"8000/tcp":{}},"HostConfig":{"NetworkMode":"open","PortBindings":{"8000/tcp":[{"HostPort":"9998"}]}}}'`)
	m.run(engine + `/containers/open/start -X POST`)
	m.run(`cd /; pid=$(` + engine + `/containers/open/json | grep -o '"Pid":[0-9]*' | cut -d: -f2)
setsid nsenter --target "$pid" --net python3 -m http.server 8000 >/dev/null 2>&1 </dev/null &
until nsenter --target "$pid" --net curl --silent --output /dev/null http://127.0.0.1:8000/; do sleep 0.1; done`)
	opens := func() bool {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(m.host().Addr, "9998"), time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}
	bound := strings.Contains(m.run(engine+`/containers/open/json`), `"HostIp":"127.0.0.1"`)
	require.Equal(m.t, strings.HasPrefix(m.run(". /etc/os-release; echo $VERSION_ID"), "13"), bound, "an engine that knows the option binds to the host itself")
	require.False(m.t, opens(), "a published port is not open to the world")
	m.run("nft delete table inet prego")
	require.Equal(m.t, !bound, opens(), "without the rules it is, where the engine does not know better")
	m.run("systemctl restart prego-firewall.service")
	require.False(m.t, opens())
	m.run(engine + `/containers/open?force=1 -X DELETE && ` + engine + `/networks/open -X DELETE`)
}
