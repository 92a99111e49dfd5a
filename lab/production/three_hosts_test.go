package production

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/child"
	"github.com/prego/prego/lab/devstack"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/sim"
)

// hostSubnet is the private network of the three hosts: prego-1 is .1, and this machine is .254.
const hostSubnet = "10.213.0."

// hostNames are those that docs/production-three-hosts.md gives.
var hostNames = []string{"prego-1", "prego-2", "prego-3"}

// gatewayName leads to all three gateways, as the page says.
const gatewayName = "gateway.test"

// threeHosts are three Debians with systemd, each in its own network namespace, on one bridge.
type threeHosts struct {
	t        *testing.T
	repo     string
	id       string // of this run, in names of control groups
	dir      string
	lower    string // what the disks of all three lie over
	sim      *sim.Sim
	token    string // the provider's
	settings string // /etc/prego/prego.env, as its editor leaves it
	hosts    map[string]*systemHost
}

// systemHost is one of them.
type systemHost struct {
	name, address string
	root          string // its file system
	console       string
	run           *child.Process
	init          int // its first process, while it is on
}

// inNamespaces runs a test again, alone in new namespaces: what it starts and mounts ends with it, however it ends, and
// no other process has its addresses and ports. In that second run it returns a directory for it.
func inNamespaces(t *testing.T) (dir string, inside bool) {
	const mark = "PREGO_TEST_INSIDE"
	if dir := os.Getenv(mark); dir != "" {
		return dir, true
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command("unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc",
		self, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=20m", "-test.count=1")
	cmd.Env = append(os.Environ(), mark+"="+t.TempDir())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	p, err := child.Start(cmd, syscall.SIGKILL)
	require.NoError(t, err)
	t.Cleanup(p.Kill)
	require.NoError(t, p.Wait())
	return "", false
}

// newThreeHosts boots them as a provider delivers them: with Debian, and the packages of the page.
func newThreeHosts(t *testing.T, dir string) *threeHosts {
	repo, err := filepath.Abs("../..")
	require.NoError(t, err)
	id := fmt.Sprintf("three-%x-", time.Now().UnixNano())
	c := &threeHosts{t: t, repo: repo, dir: dir, id: id, hosts: map[string]*systemHost{}}
	require.NoError(t, os.Chmod(filepath.Dir(c.dir), 0o755))
	upper, err := filepath.EvalSymlinks(filepath.Join(repo, ".prego/machines/three-hosts"))
	require.NoError(t, err, "make test-three-hosts builds it")
	debian, err := filepath.EvalSymlinks(filepath.Join(repo, ".prego/machines/current"))
	require.NoError(t, err, "make machines builds it")
	c.lower = upper + ":" + filepath.Join(debian, "debian-13-minimal")

	require.NoError(t, os.MkdirAll("/run/netns", 0o755))
	for _, args := range [][]string{
		{"mount", "-t", "tmpfs", "-o", "size=6g,mode=0755", "tmpfs", c.dir},
		{"mount", "-t", "tmpfs", "tmpfs", "/run/netns"},
		{"ip", "link", "set", "lo", "up"},
		{"ip", "link", "add", "hosts", "type", "bridge"},
		{"ip", "addr", "add", hostSubnet + "254/24", "dev", "hosts"},
		{"ip", "link", "set", "hosts", "up"},
		// Simulated hosts are on loopback: the three reach them through this machine.
		{"sysctl", "-qw", "net.ipv4.conf.hosts.route_localnet=1"},
	} {
		command(t, args[0], args[1:]...)
	}
	names := "127.0.0.1 localhost\n"
	for i, name := range hostNames {
		names += fmt.Sprintf("%s%d %s\n%s%d %s\n", hostSubnet, i+1, name, hostSubnet, i+1, gatewayName)
	}
	known := filepath.Join(c.dir, "hosts")
	require.NoError(t, os.WriteFile(known, []byte(names), 0o644))
	command(t, "mount", "--bind", known, "/etc/hosts")

	c.token = strings.Repeat("0123456789abcdef", 4)
	c.sim, err = sim.New(sim.Config{
		Listen: hostSubnet + "254:0", StateDir: filepath.Join(c.dir, "sim"), Token: c.token, RatePerHour: 360_000,
		AgentPort: 8443, DockerPort: 2376, LoopbackNetworks: true,
		Profile: sim.Profile{
			Action: 50 * time.Millisecond, Boot: 200 * time.Millisecond, Restart: 200 * time.Millisecond,
		},
	})
	require.NoError(t, err)
	require.NoError(t, c.sim.Start())
	t.Cleanup(c.sim.Close)

	for i, name := range hostNames {
		disk := filepath.Join(c.dir, name)
		h := &systemHost{
			name: name, address: fmt.Sprintf("%s%d", hostSubnet, i+1),
			root: filepath.Join(disk, "root"), console: filepath.Join(disk, "console.log"),
		}
		c.hosts[name] = h
		for _, d := range []string{"root", "upper", "work"} {
			require.NoError(t, os.MkdirAll(filepath.Join(disk, d), 0o755))
		}
		layers := "lowerdir=" + c.lower + ",upperdir=" + disk + "/upper,workdir=" + disk + "/work"
		command(t, "mount", "-t", "overlay", "overlay", "-o", layers, h.root)
		for file, text := range map[string]string{
			"etc/hostname": name + "\n", "etc/hosts": names, "etc/cloud/cloud-init.disabled": "",
		} {
			require.NoError(t, os.WriteFile(filepath.Join(h.root, file), []byte(text), 0o644))
		}
		// Its network is there, and its names are in /etc/hosts.
		for _, unit := range []string{
			"systemd-networkd-wait-online.service", "systemd-networkd.service", "systemd-networkd.socket",
			"systemd-resolved.service",
		} {
			_ = os.Remove(filepath.Join(h.root, "etc/systemd/system", unit))
			require.NoError(t, os.Symlink("/dev/null", filepath.Join(h.root, "etc/systemd/system", unit)))
		}
		c.boot(h)
	}
	for _, h := range c.hosts {
		c.booted(h)
	}
	return c
}

// boot switches a host on, and its link with it.
func (c *threeHosts) boot(h *systemHost) {
	t := c.t
	command(t, "ip", "netns", "add", h.name)
	for _, args := range [][]string{
		{"link", "add", "eth0", "type", "veth", "peer", "name", h.name, "netns", fmt.Sprint(os.Getpid())},
		{"link", "set", "lo", "up"},
		{"addr", "add", h.address + "/24", "dev", "eth0"},
		{"link", "set", "eth0", "up"},
		{"route", "add", "default", "via", hostSubnet + "254"},
		{"route", "del", "local", "127.0.0.0/8", "dev", "lo", "table", "local"},
		{"route", "add", "127.0.0.0/8", "via", hostSubnet + "254", "dev", "eth0", "src", h.address},
	} {
		command(t, "ip", append([]string{"-n", h.name}, args...)...)
	}
	command(t, "ip", "netns", "exec", h.name, "sysctl", "-qw", "net.ipv4.conf.eth0.route_localnet=1")
	command(t, "ip", "link", "set", h.name, "master", "hosts", "up")

	// With control groups of version 1, nspawn needs one that is empty otherwise.
	group := filepath.Join("/sys/fs/cgroup/systemd", c.id+h.name)
	if _, err := os.Stat(filepath.Dir(group)); err == nil {
		require.NoError(t, os.MkdirAll(group, 0o755))
		t.Cleanup(func() { removeGroup(group) })
	} else {
		group = ""
	}
	out, err := os.OpenFile(h.console, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	defer func() { _ = out.Close() }()
	script := `[ -z "$1" ] || echo $$ >"$1/cgroup.procs"; shift; exec "$@"`
	cmd := exec.Command("sh", "-euc", script, "sh", group,
		"nsenter", "--net=/run/netns/"+h.name, "systemd-nspawn", "--quiet", "--boot",
		"--directory="+h.root, "--machine="+h.name, "--register=no", "--keep-unit", "--kill-signal=SIGRTMIN+3",
		"--resolv-conf=off", "--timezone=off", "--link-journal=no", "--console=read-only")
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "SYSTEMD_NSPAWN_API_VFS_WRITABLE=network"}
	cmd.Stdout, cmd.Stderr = out, out
	h.run, err = child.Start(cmd, syscall.SIGKILL)
	require.NoError(t, err)
}

// removeGroup removes a control group and those in it, once they are empty.
func removeGroup(group string) {
	for range 50 {
		_ = exec.Command("find", group, "-depth", "-type", "d", "-exec", "rmdir", "{}", "+").Run()
		if _, err := os.Stat(group); err != nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// booted waits until a host's systemd has started everything.
func (c *threeHosts) booted(h *systemHost) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		select {
		case <-h.run.Done():
			return false
		default:
		}
		out, err := exec.Command("pgrep", "-P", fmt.Sprint(h.run.PID())).Output()
		if err != nil {
			return false
		}
		if _, err := fmt.Sscan(string(out), &h.init); err != nil {
			return false
		}
		state, _ := c.try(h, "", "systemctl", "is-system-running")
		return strings.HasPrefix(state, "running") || strings.HasPrefix(state, "degraded")
	}, 2*time.Minute, 200*time.Millisecond, "%s does not boot: %s", h.name, tail(h.console))
}

// try runs a command on a host, as root there.
func (c *threeHosts) try(h *systemHost, stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{
		"--target", fmt.Sprint(h.init), "--mount", "--uts", "--ipc", "--pid", "--net", "--cgroup", "--root", "--",
		"/usr/bin/env", "-i", "--chdir=/root", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// must runs a command that has to succeed.
func (c *threeHosts) must(h *systemHost, args ...string) string {
	c.t.Helper()
	out, err := c.try(h, "", args...)
	if err != nil {
		c.showJournal(h)
	}
	require.NoError(c.t, err, "%s: %s\n%s", h.name, strings.Join(args, " "), out)
	return out
}

// page runs the commands of docs/production-three-hosts.md: those of each fence on the hosts that its first line names.
func (c *threeHosts) page() {
	t := c.t
	text, err := os.ReadFile(filepath.Join(c.repo, "docs/production-three-hosts.md"))
	require.NoError(t, err)
	fences := regexp.MustCompile("(?ms)^```sh\n# on ([^\n]*)\n(.*?)^```").FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, fences)
	began := time.Now()
	for _, f := range fences {
		on := regexp.MustCompile(`prego-\d`).FindAllString(f[1], -1)
		if f[1] == "each host" {
			on = hostNames
		}
		require.NotEmpty(t, on, "# on %s", f[1])
		for _, name := range on {
			for line := range strings.SplitSeq(strings.TrimSpace(f[2]), "\n") {
				c.line(c.hosts[name], line)
			}
			lines := strings.ReplaceAll(strings.TrimSpace(f[2]), "\n", "; ")
			t.Logf("%5.1fs  %s: %s", time.Since(began).Seconds(), name, lines)
		}
	}
}

// line runs a line of the page. What needs a person, the internet or SSH is done for it.
func (c *threeHosts) line(h *systemHost, line string) {
	t := c.t
	t.Helper()
	switch {
	case strings.HasPrefix(line, "apt install -y ./prego"):
		c.installRelease(h)
	case strings.HasPrefix(line, "editor /etc/prego/prego.env"):
		require.NoError(t, os.WriteFile(filepath.Join(h.root, "etc/prego/prego.env"), []byte(c.settings), 0o644))
	case strings.HasPrefix(line, "install -m 0600 /dev/stdin"):
		out, err := c.try(h, c.token+"\n", "bash", "-euc", line)
		require.NoError(t, err, out)
	case strings.Contains(line, "ssh"):
		require.Equal(t, "for host in prego-2 prego-3; do tar -C /etc -c prego | ssh $host tar -C /etc -x; done", line)
		for _, to := range hostNames[1:] {
			archive, err := c.try(h, "", "tar", "-C", "/etc", "-c", "prego")
			require.NoError(t, err)
			out, err := c.try(c.hosts[to], archive, "tar", "-C", "/etc", "-x")
			require.NoError(t, err, out)
		}
	case strings.HasPrefix(line, "prego health"):
		ready := func() bool { _, err := c.try(h, "", "prego", "health"); return err == nil }
		require.Eventually(t, ready, time.Minute, 500*time.Millisecond, "prego is not ready on %s", h.name)
	default:
		c.must(h, "bash", "-euo", "pipefail", "-c", line)
	}
}

// installRelease installs what the Debian package and Temporal's release contain (tools/release/deb.go).
func (c *threeHosts) installRelease(h *systemHost) {
	put := func(mode, from, to string) {
		command(c.t, "install", "-D", "-m", mode, from, filepath.Join(h.root, to))
	}
	in := func(file string) string { return filepath.Join(c.repo, file) }
	put("755", in("bin/prego"), "usr/bin/prego")
	put("755", in("bin/prego-agent"), "usr/lib/prego/prego-agent")
	put("755", in("deploy/systemd/prego-secrets"), "usr/sbin/prego-secrets")
	put("644", in("deploy/systemd/prego.env"), "etc/prego/prego.env")
	put("644", in("deploy/systemd/prego.sysusers"), "usr/lib/sysusers.d/prego.conf")
	require.NoError(c.t, os.MkdirAll(filepath.Join(h.root, "etc/prego/secrets"), 0o700))
	for _, process := range []string{"api", "agentgw", "worker", "migrate"} {
		put("644", in("deploy/systemd/prego-"+process+".service"), "usr/lib/systemd/system/prego-"+process+".service")
	}
	for _, dir := range []string{"postgres", "temporal", "three-hosts"} {
		files, err := filepath.Glob(in("deploy/" + dir + "/*"))
		require.NoError(c.t, err)
		for _, f := range files {
			mode := "644"
			if strings.HasSuffix(f, ".sh") {
				mode = "755"
			}
			put(mode, f, "usr/share/prego/"+dir+"/"+filepath.Base(f))
		}
	}
	real := os.Getenv("TEMPORAL_SERVER")
	require.NotEmpty(c.t, real, "make test-three-hosts sets TEMPORAL_SERVER")
	put("755", filepath.Join(real, "temporal-server"), "usr/local/bin/temporal-server")
	put("755", filepath.Join(real, "temporal-sql-tool"), "usr/local/bin/temporal-sql-tool")
	temporal, err := filepath.EvalSymlinks(in(".prego/bin/temporal"))
	require.NoError(c.t, err)
	put("755", temporal, "usr/local/bin/temporal")
	c.must(h, "systemd-sysusers", "prego.conf")
	c.must(h, "systemctl", "daemon-reload")
}

// kill cuts a host's network and power.
func (c *threeHosts) kill(h *systemHost) {
	command(c.t, "ip", "link", "set", h.name, "down")
	require.NoError(c.t, syscall.Kill(h.init, syscall.SIGKILL))
	select {
	case <-h.run.Done():
	case <-time.After(30 * time.Second):
		c.t.Fatalf("%s does not end", h.name)
	}
	command(c.t, "ip", "link", "del", h.name)
	command(c.t, "ip", "netns", "del", h.name)
}

// members are the roles and states of Postgres by host, as Patroni reports them on any host.
func (c *threeHosts) members() map[string]string {
	for _, h := range c.hosts {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.address+":8008/cluster", http.NoBody)
		resp, err := need.HTTP.Do(req)
		if err != nil {
			cancel()
			continue
		}
		var got struct {
			Members []struct{ Name, Role, State string }
		}
		err = json.NewDecoder(resp.Body).Decode(&got)
		_ = resp.Body.Close()
		cancel()
		if err != nil {
			continue
		}
		out := map[string]string{}
		for _, m := range got.Members {
			out[m.Name] = m.Role + " " + m.State
		}
		return out
	}
	return nil
}

// primary is the name of the host with Postgres's primary.
func (c *threeHosts) primary() string {
	for name, state := range c.members() {
		if state == "leader running" {
			return name
		}
	}
	return ""
}

// whole reports what is missing until all three hosts do their part again; "" is nothing.
func (c *threeHosts) whole() string {
	members := c.members()
	leaders := 0
	for _, name := range hostNames {
		switch members[name] {
		case "leader running":
			leaders++
		case "quorum_standby streaming":
		default:
			return fmt.Sprintf("Postgres: %v", members)
		}
	}
	if leaders != 1 {
		return fmt.Sprintf("Postgres: %v", members)
	}
	for _, h := range c.hosts {
		for _, check := range [][]string{
			{"etcdctl", "endpoint", "health", "--cluster"},
			{"systemctl", "is-active", "--quiet", "etcd", "patroni", "haproxy", "temporal"},
			{"prego", "health"},
		} {
			if out, err := c.try(h, "", check...); err != nil {
				return fmt.Sprintf("%s: %s: %s", h.name, strings.Join(check, " "), out)
			}
		}
	}
	return ""
}

func (c *threeHosts) awaitWhole(limit time.Duration) time.Duration {
	c.t.Helper()
	began, missing := time.Now(), ""
	for time.Since(began) < limit {
		if missing = c.whole(); missing == "" {
			return time.Since(began)
		}
		time.Sleep(500 * time.Millisecond)
	}
	for _, h := range c.hosts {
		c.showJournal(h)
	}
	require.Fail(c.t, "not all hosts do their part", "after %s: %s", limit, missing)
	return 0
}

// showJournal prints what a host's units logged last.
func (c *threeHosts) showJournal(h *systemHost) {
	for _, unit := range []string{
		"etcd", "patroni", "haproxy", "temporal", "prego-migrate", "prego-api", "prego-agentgw", "prego-worker",
	} {
		out, _ := c.try(h, "", "journalctl", "--no-pager", "-q", "-o", "short-precise", "-n", "12", "-u", unit)
		c.t.Logf("--- %s: %s\n%s", h.name, unit, out)
	}
}

// settingsOfHosts is /etc/prego/prego.env as an operator leaves it, for the simulated cloud.
func (c *threeHosts) settingsOfHosts() string {
	text, err := os.ReadFile(filepath.Join(c.repo, "deploy/systemd/prego.env"))
	require.NoError(c.t, err)
	lines := strings.Split(string(text), "\n")
	for name, value := range map[string]string{
		"PREGO_ENV": "prod", "PREGO_AGENTGW_URL": "https://" + gatewayName + ":8443",
		"PREGO_EGRESS_CIDRS": hostSubnet + "0/24", "PREGO_API_PUBLIC_URL": "http://api.test",
	} {
		i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "#"+name+"=") })
		require.GreaterOrEqual(c.t, i, 0, "deploy/systemd/prego.env lacks %s", name)
		lines[i] = name + "=" + value
	}
	return strings.Join(lines, "\n") + `
PREGO_SIMULATED=true
PREGO_AGENT_PORT=8443
PREGO_AGENTGW_HEARTBEAT=1s
PREGO_SHARED_PLACEMENT_LEGACY=yes
PREGO_SITE_DOMAIN=sites.test
PREGO_API_RATE_PER_SECOND=500
HCLOUD_ENDPOINT=` + c.sim.URL() + `
PREGO_NETWORK_RANGE=` + devstack.LoopbackRange(c.dir) + "\n"
}
