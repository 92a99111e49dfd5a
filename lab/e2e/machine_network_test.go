//go:build machines

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/prego/prego/lab/sim"
)

// TestMachinePrivateNetwork has machines meet in private networks, and not meet across them.
// There is no control plane: the provider's own command line attaches, and the machines are
// as the provider's images leave them.
func TestMachinePrivateNetwork(t *testing.T) {
	t.Parallel()
	// One for its three machines, which install and run nothing.
	takeTurn(t, 1)
	require.Zero(t, os.Getuid(), "machines need root")
	state := t.TempDir()
	cloud, err := sim.New(sim.Config{Listen: "127.0.0.1:0", StateDir: state, Token: "secret", RatePerHour: 1_000_000, Machines: machineRoots(), StandIn: filepath.Join(bins, "prego-lab"), Log: zaptest.NewLogger(t)})
	require.NoError(t, err)
	require.NoError(t, cloud.Start())
	routes := routesHere(t)
	closed := false
	t.Cleanup(func() {
		if !closed {
			cloud.Close()
		}
		consoles, _ := filepath.Glob(filepath.Join(state, "hosts", "*", "console.log"))
		for _, c := range consoles {
			if b, _ := os.ReadFile(c); t.Failed() {
				t.Logf("%s:\n%s", c, b)
			}
		}
	})
	p := &privateCloud{T: t, sim: cloud, client: hcloud.NewClient(hcloud.WithEndpoint(cloud.URL()), hcloud.WithToken("secret"))}
	p.hcloud("network", "create", "--name", "lan", "--ip-range", "10.0.0.0/16")
	p.hcloud("network", "add-subnet", "lan", "--type", "cloud", "--network-zone", "eu-central", "--ip-range", "10.0.1.0/24")
	p.hcloud("network", "create", "--name", "twin", "--ip-range", "10.0.0.0/16")
	p.hcloud("network", "add-subnet", "twin", "--type", "cloud", "--network-zone", "eu-central", "--ip-range", "10.0.1.0/24")
	a, b, c := p.machine("a", "debian-12", "lan"), p.machine("b", "debian-13", ""), p.machine("c", "debian-12", "twin")
	// What all has to hold; the addresses of a and c are the same, in networks of the same
	// range.
	meet := func() {
		t.Helper()
		a.has("10.0.1.1")
		b.has("10.0.1.7")
		c.has("10.0.1.1")
		a.reaches("10.0.1.7", "b")
		b.reaches("10.0.1.1", "a")
		c.misses("10.0.1.7")
	}
	for _, m := range []*privateMachine{a, b, c} {
		m.awaitRun("systemctl is-system-running --wait | grep -E 'running|degraded'")
	}
	require.Empty(t, b.run("ls /sys/class/net | grep enp || true"))
	p.hcloud("server", "attach-to-network", "b", "--network", "lan", "--ip", "10.0.1.7") // while it runs
	meet()
	require.Equal(t, routes, routesHere(t), "this machine has no part in them")

	metadata := a.run("curl --silent --fail http://169.254.169.254/hetzner/v1/metadata/private-networks")
	mac := a.run("cat /sys/class/net/enp7s0/address")
	for _, line := range []string{"- ip: 10.0.1.1", "alias_ips: []", "interface_num: 1", "mac_address: " + mac, "network_name: lan", "network: 10.0.0.0/16", "subnet: 10.0.1.0/24", "gateway: 10.0.0.1"} {
		require.Contains(t, metadata, line)
	}
	require.Equal(t, mac, a.server().PrivateNet[0].MACAddress)
	a.run("ping -c 1 -W 5 10.0.0.1")
	a.run("ping -c 1 -W 5 -M do -s 1422 10.0.1.7") // 1450 with its headers
	_, err = a.try("ping -c 1 -W 2 -M do -s 1423 10.0.1.7")
	require.Error(t, err, "the interface is of the provider's MTU")
	_, err = a.try("ping -c 1 -W 2 10.0.1.8")
	require.Error(t, err, "the address is unused")

	// An alias is routed, and configured by hand; unassigned addresses are not forwarded.
	a.run("ip address add 10.0.1.50/32 dev enp7s0; ip address add 10.0.1.51/32 dev enp7s0")
	p.hcloud("server", "change-alias-ips", "a", "--network", "lan", "--alias-ips", "10.0.1.50")
	b.reaches("10.0.1.50", "a")
	b.misses("10.0.1.51")
	_, err = a.try("ping -c 1 -W 2 -I 10.0.1.51 10.0.1.7")
	require.Error(t, err, "no machine sends from another's address")
	// A route leads to the machine that is its gateway.
	b.run("ip address add 10.200.0.1/32 dev lo")
	p.hcloud("network", "add-route", "lan", "--destination", "10.200.0.0/24", "--gateway", "10.0.1.7")
	a.run("ip route add 10.200.0.0/24 via 10.0.0.1 dev enp7s0")
	a.reaches("10.200.0.1", "b")
	p.hcloud("network", "remove-route", "lan", "--destination", "10.200.0.0/24", "--gateway", "10.0.1.7")
	a.misses("10.200.0.1")

	for _, m := range []*privateMachine{a, b, c} {
		m.reboot()
	}
	meet()

	// One can be in both, since their ranges don't overlap; the second interface stays
	// the second when the first goes.
	p.hcloud("network", "create", "--name", "back", "--ip-range", "192.168.7.0/24")
	p.hcloud("network", "add-subnet", "back", "--type", "cloud", "--network-zone", "eu-central")
	for _, name := range []string{"b", "c"} {
		p.hcloud("server", "attach-to-network", name, "--network", "back")
	}
	c.awaitRun("ip -4 -o address show dev enp8s0 | grep -w 192.168.7.3/32")
	b.reaches("192.168.7.3", "c")
	b.awaitRun("ip -4 -o address show dev enp8s0 | grep -w 192.168.7.2/32")
	c.misses("10.0.1.7")
	p.hcloud("server", "detach-from-network", "b", "--network", "lan")
	b.awaitRun("! test -e /sys/class/net/enp7s0")
	a.misses("10.0.1.7")
	b.awaitRun("! systemctl is-active hc-net-ifup@enp7s0")
	b.reboot()
	b.awaitRun("ip -4 -o address show dev enp8s0 | grep -w 192.168.7.2/32")
	require.Empty(t, b.run("ls /sys/class/net | grep enp7 || true"))

	p.hcloud("network", "delete", "lan") // a is in it
	a.awaitRun("! test -e /sys/class/net/enp7s0")
	// Routers go with their cloud. What else it leaves is looked at where machines are deleted:
	// here a machine of another test, which started meanwhile, may still know a disk.
	routers := "/run/netns/prego-" + strings.Split(a.host().Addr, ".")[2] + "-net-*"
	spaces, err := filepath.Glob(routers)
	require.NoError(t, err)
	require.Len(t, spaces, 2, "that of lan is gone already")
	closed = true
	cloud.Close()
	spaces, err = filepath.Glob(routers)
	require.NoError(t, err)
	require.Empty(t, spaces)
}

// privateCloud is a cloud of machines without a control plane.
type privateCloud struct {
	*testing.T
	sim    *sim.Sim
	client *hcloud.Client
}

// hcloud runs the provider's command line.
func (p *privateCloud) hcloud(args ...string) {
	p.Helper()
	bin, err := exec.LookPath("hcloud")
	require.NoError(p, err)
	cmd := exec.Command(bin, args...)
	cmd.Env = []string{"HCLOUD_TOKEN=secret", "HCLOUD_ENDPOINT=" + p.sim.URL(), "HOME=" + p.TempDir(), "PATH=" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	require.NoError(p, err, "hcloud %v: %s", args, out)
}

type privateMachine struct {
	*privateCloud
	name string
	id   int64
}

// machine creates a machine that answers with its name, in a network if any is named.
func (p *privateCloud) machine(name, image, network string) *privateMachine {
	p.Helper()
	opts := hcloud.ServerCreateOpts{
		Name: name, ServerType: &hcloud.ServerType{Name: "cx23"}, Image: &hcloud.Image{Name: image}, Location: &hcloud.Location{Name: "fsn1"},
		UserData: "#cloud-config\nwrite_files:\n- path: /srv/index.html\n  content: " + name + "\n",
	}
	if network != "" {
		n, _, err := p.client.Network.GetByName(p.Context(), network)
		require.NoError(p, err)
		opts.Networks = []*hcloud.Network{n}
	}
	made, _, err := p.client.Server.Create(p.Context(), opts)
	require.NoError(p, err)
	return &privateMachine{privateCloud: p, name: name, id: made.Server.ID}
}

func (m *privateMachine) server() *hcloud.Server {
	m.Helper()
	s, _, err := m.client.Server.GetByID(m.Context(), m.id)
	require.NoError(m, err)
	return s
}

func (m *privateMachine) host() sim.HostInfo {
	for _, h := range m.sim.Hosts() {
		if h.ID == m.id {
			return h
		}
	}
	return sim.HostInfo{}
}

func (m *privateMachine) try(script string) (string, error) {
	ctx, cancel := context.WithTimeout(m.Context(), 2*time.Minute)
	defer cancel()
	out, err := m.sim.HostExec(ctx, m.id, nil, "sh", "-c", script)
	return strings.TrimSpace(string(out)), err
}

func (m *privateMachine) run(script string) string {
	m.Helper()
	out, err := m.try(script)
	require.NoError(m, err, "%s: %s", m.name, out)
	return out
}

func (m *privateMachine) awaitRun(script string) {
	m.Helper()
	eventually(m, func() bool { _, err := m.try(script); return err == nil }, 2*time.Minute, 200*time.Millisecond, "%s: %s", m.name, script)
}

// has waits until the machine has an address of the network 10.0.0.0/16, as the provider's have it.
func (m *privateMachine) has(ip string) {
	m.Helper()
	m.awaitRun("ip -4 -o address show dev enp7s0 | grep -w " + ip + "/32")
	m.awaitRun("ip route show 10.0.0.1 dev enp7s0 | grep link")
	m.awaitRun("ip route show 10.0.0.0/16 dev enp7s0 | grep 'via 10.0.0.1'")
	require.Equal(m, "1450", m.run("cat /sys/class/net/enp7s0/mtu"))
	require.Equal(m, net.JoinHostPort(ip, "80"), m.serve(ip))
	require.Equal(m, "10.99", m.run("ip route show default")[len("default via "):][:5], "the way out stays")
}

// serve has the machine answer with its name on all of its addresses.
func (m *privateMachine) serve(ip string) string {
	m.Helper()
	m.run("systemctl is-active name || systemd-run --quiet --unit=name --working-directory=/srv python3 -m http.server 80")
	m.awaitRun(fmt.Sprintf("curl --silent --fail --max-time 5 http://%s/ | grep -x %s", ip, m.name))
	return net.JoinHostPort(ip, "80")
}

// reaches fetches the name of the machine that has an address.
func (m *privateMachine) reaches(ip, name string) {
	m.Helper()
	m.awaitRun(fmt.Sprintf("curl --silent --fail --max-time 5 http://%s/ | grep -x %s", ip, name))
	m.run("ping -c 1 -W 5 " + ip)
}

func (m *privateMachine) misses(ip string) {
	m.Helper()
	for _, script := range []string{"ping -c 1 -W 2 " + ip, "curl --silent --max-time 3 http://" + ip + "/"} {
		_, err := m.try(script)
		require.Error(m, err, "%s reaches %s", m.name, ip)
	}
}

// reboot asks the machine's system, and waits for the next one.
func (m *privateMachine) reboot() {
	m.Helper()
	lives := func() int {
		b, err := m.sim.Console(m.id)
		require.NoError(m, err)
		return bytes.Count(b, []byte("] power on\n"))
	}
	before := lives()
	_, _, err := m.client.Server.Reboot(m.Context(), m.server())
	require.NoError(m, err)
	eventually(m, func() bool { return lives() > before }, 2*time.Minute, 100*time.Millisecond, "%s does not start again", m.name)
	m.awaitRun("systemctl is-system-running --wait | grep -E 'running|degraded'")
}

// routesHere are this machine's own routes, without simulated clouds' bridges.
func routesHere(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("ip", "-4", "route", "show", "table", "all").CombinedOutput()
	require.NoError(t, err, "%s", out)
	var kept []string
	for line := range strings.SplitSeq(string(out), "\n") {
		if !strings.Contains(line, "dev prego") {
			kept = append(kept, strings.TrimSpace(line))
		}
	}
	return strings.Join(kept, "\n")
}
