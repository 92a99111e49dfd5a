package rooted

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/cloudinit"
	"github.com/prego/prego/lab/agenttest"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/netns"
	peer "github.com/prego/prego/server"
)

// testNetwork is network namespaces, each with an address in a private and one in a public network, and a firewall.
type testNetwork struct {
	t      testing.TB
	prefix string
	ip     string
	nft    string
}

// spaces numbers the networks of this process.
var spaces atomic.Int64

func newTestNetwork(t testing.TB) *testNetwork {
	t.Helper()
	need.Root(t, "it makes network namespaces")
	n := &testNetwork{t: t, prefix: fmt.Sprintf("pp%d-%d", os.Getpid()%100000, spaces.Add(1)), ip: need.Program(t, "ip"), nft: need.Program(t, "nft")}
	n.space("sw")
	for _, bridge := range []string{"private", "public"} {
		n.in("sw", n.ip, "link", "add", bridge, "type", "bridge")
		n.in("sw", n.ip, "link", "set", bridge, "up")
	}
	return n
}

func (n *testNetwork) do(name string, args ...string) {
	n.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(n.t, err, "%s %v: %s", name, args, out)
}

func (n *testNetwork) in(space string, args ...string) {
	n.t.Helper()
	n.do(n.ip, append([]string{"netns", "exec", n.prefix + space}, args...)...)
}

func (n *testNetwork) space(name string) {
	n.t.Helper()
	n.do(n.ip, "netns", "add", n.prefix+name)
	n.t.Cleanup(func() { _ = exec.Command(n.ip, "netns", "del", n.prefix+name).Run() })
	n.in(name, n.ip, "link", "set", "lo", "up")
}

// host is a namespace with an address in each network, whose last number is the same.
func (n *testNetwork) host(name string, number int) {
	n.t.Helper()
	n.space(name)
	for bridge, address := range map[string]string{"private": "10.64.0.%d/24", "public": "203.0.113.%d/24"} {
		out := fmt.Sprintf("%s%d", bridge[:2], number)
		n.do(n.ip, "link", "add", out, "netns", n.prefix+"sw", "type", "veth", "peer", "name", bridge, "netns", n.prefix+name)
		n.in("sw", n.ip, "link", "set", out, "master", bridge, "up")
		n.in(name, n.ip, "addr", "add", fmt.Sprintf(address, number), "dev", bridge)
		n.in(name, n.ip, "link", "set", bridge, "up")
	}
}

// container is a namespace behind a bridge of a host, as Docker makes it, with a port that
// is published at the host's private address.
func (n *testNetwork) container(host, address string, published, port int) {
	n.t.Helper()
	name := host + "c"
	n.space(name)
	n.in(host, n.ip, "link", "add", "docker0", "type", "bridge")
	n.in(host, n.ip, "addr", "add", "172.17.0.1/16", "dev", "docker0")
	n.in(host, n.ip, "link", "set", "docker0", "up")
	n.do(n.ip, "link", "add", "box", "netns", n.prefix+host, "type", "veth", "peer", "name", "eth0", "netns", n.prefix+name)
	n.in(host, n.ip, "link", "set", "box", "master", "docker0", "up")
	n.in(name, n.ip, "addr", "add", "172.17.0.2/16", "dev", "eth0")
	n.in(name, n.ip, "link", "set", "eth0", "up")
	n.in(name, n.ip, "route", "add", "default", "via", "172.17.0.1")
	n.in(host, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	n.load(host, fmt.Sprintf("table ip docker_nat { chain pre { type nat hook prerouting priority dstnat; ip daddr %s tcp dport %d dnat to 172.17.0.2:%d; }; }\n", address, published, port))
	n.listen(name, "172.17.0.2:"+strconv.Itoa(port))
}

func (n *testNetwork) load(space, ruleset string) {
	n.t.Helper()
	require.NoError(n.t, n.run(space)(context.Background(), ruleset))
}

// run runs nft in a namespace.
func (n *testNetwork) run(space string) func(context.Context, string, ...string) error {
	return func(_ context.Context, ruleset string, args ...string) error {
		cmd := exec.Command(n.ip, append([]string{"netns", "exec", n.prefix + space, n.nft, "--file", "-"}, args...)...)
		cmd.Stdin = strings.NewReader(ruleset)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	}
}

// enter calls f in a namespace.
func (n *testNetwork) enter(space string, f func() error) error {
	return netns.In("/run/netns/"+n.prefix+space, f)
}

// listen echoes at an address.
func (n *testNetwork) listen(space, address string) {
	n.t.Helper()
	var l net.Listener
	require.NoError(n.t, n.enter(space, func() (err error) {
		l, err = net.Listen("tcp4", address)
		return err
	}))
	n.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				b := make([]byte, 64)
				for {
					k, err := conn.Read(b)
					if err != nil {
						_ = conn.Close()
						return
					}
					_, _ = conn.Write(b[:k])
				}
			}()
		}
	}()
}

// patience is how long a dropped packet is waited for; a repeated one comes after a second.
const patience = 700 * time.Millisecond

func (n *testNetwork) dial(from, to string, within time.Duration) (conn net.Conn, err error) {
	err = n.enter(from, func() (err error) {
		conn, err = (&net.Dialer{Timeout: within}).Dial("tcp4", to)
		return err
	})
	return conn, err
}

// echoes reports whether an open connection carries data.
func echoes(conn net.Conn, within time.Duration) bool {
	_ = conn.SetDeadline(time.Now().Add(within))
	if _, err := conn.Write([]byte("x")); err != nil {
		return false
	}
	_, err := conn.Read(make([]byte, 1))
	return err == nil
}

// reach tries all rows concurrently: "from to:port" is expected to connect or not.
func (n *testNetwork) reach(why string, rows map[string]bool) {
	n.t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := make(map[string]bool, len(rows))
	for row, want := range rows {
		wg.Go(func() {
			from, to, _ := strings.Cut(row, " ")
			within := patience
			if want {
				within = 10 * time.Second // this machine may be slow
			}
			conn, err := n.dial(from, to, within)
			if err == nil {
				_ = conn.Close()
			}
			mu.Lock()
			defer mu.Unlock()
			got[row] = err == nil
		})
	}
	wg.Wait()
	require.Equal(n.t, rows, got, why)
}

const (
	shardAt, poolAt, edgeAt, aAt, bAt, strangerAt = "10.64.0.2", "10.64.0.3", "10.64.0.4", "10.64.0.10", "10.64.0.11", "10.64.0.66"

	controlAt = "203.0.113.7"
)

// cluster is hosts with their keepers in a network.
type cluster struct {
	*testNetwork
	key     agenttest.PeersKey
	hosts   map[string]*host.Host
	keepers map[string]*PeersFirewall
	version int64
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{testNetwork: newTestNetwork(t), key: agenttest.NewPeersKey(t, "k1"), hosts: map[string]*host.Host{}, keepers: map[string]*PeersFirewall{}}
	for name, number := range map[string]int{"shard": 2, "pool": 3, "edge": 4, "a": 10, "b": 11, "stranger": 66, "control": 7, "world": 99} {
		c.host(name, number)
	}
	c.container("shard", shardAt, 3306, 3306) // published, as the stack's containers are
	c.container("a", aAt, 8080, 80)
	for space, ports := range map[string][]string{"shard": {"8443", "2376", "22"}, "pool": {"6379", "8443"}, "a": {"8443", "20000", "3306"}, "b": {"8443"}, "edge": {"80", "443", "8443", "2376"}} {
		for _, p := range ports {
			c.listen(space, "0.0.0.0:"+p)
		}
	}
	for name, role := range map[string]string{"shard": "db-shard", "pool": "redis-pool", "a": "app", "b": "app", "edge": "edge"} {
		root := t.TempDir()
		h := &host.Host{Root: root, Config: wire.HostConfig{ServerID: name, Environment: "test", Role: role, AgentPort: 8443, DockerPort: 2376}, Pause: host.Sleep}
		b, err := json.Marshal(map[string]string{c.key.ID: c.key.Public})
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(h.Path(wire.PeersKeysPath)), 0o755))
		require.NoError(t, os.WriteFile(h.Path(wire.PeersKeysPath), b, 0o600))
		c.hosts[name] = h
		c.boot(name)
	}
	return c
}

// boot is what a host does before its network is up: the ruleset of the first boot, and then
// the last document.
func (c *cluster) boot(name string) {
	c.t.Helper()
	c.load(name, "delete table inet prego\n", "table inet prego\n")
	c.load(name, cloudinit.Firewall([]string{controlAt + "/32"}, []int{8443, 2376}))
	c.keepers[name] = NewPeersFirewall(c.hosts[name], true, slog.New(slog.DiscardHandler))
	c.keepers[name].nft = c.run(name)
}

// state is what a host keeps of its document.
func (c *cluster) state(name string) (state peersState) {
	c.t.Helper()
	b, err := os.ReadFile(c.hosts[name].Path(peersFile))
	require.NoError(c.t, err)
	require.NoError(c.t, json.Unmarshal(b, &state))
	return state
}

func (c *cluster) load(name string, rulesets ...string) {
	c.t.Helper()
	// Reversed, so that deletes come before creations.
	text := ""
	for _, r := range rulesets {
		text = r + text
	}
	c.testNetwork.load(name, text)
}

func peerAt(id string, role prego.Role, address string) peer.PeerHost {
	return peer.PeerHost{ServerID: prego.ServerID(id), Role: role, Address: address, Network: "n"}
}

// document is a host's document by the control plane's rule.
func (c *cluster) document(name string, in peer.PeersInput) wire.PeersDocument {
	c.version++
	in.Egress, in.AgentPort, in.DockerPort = []string{controlAt + "/32"}, 8443, 2376
	rule := peer.Peers(in)
	doc := wire.PeersDocument{Environment: "test", ServerID: name, Version: c.version, Address: rule.Address, Control: wire.PeersControl(rule.Control)}
	for _, g := range rule.Access {
		doc.Access = append(doc.Access, wire.PeersAccess(g))
	}
	return doc
}

func (c *cluster) put(name string, doc wire.PeersDocument) host.PeersAnswer {
	c.t.Helper()
	return c.keepers[name].Apply(context.Background(), host.PeersRequest{Signed: c.key.Sign(c.t, doc)})
}

func (c *cluster) shard(users ...peer.PeerHost) wire.PeersDocument {
	return c.document("shard", peer.PeersInput{Server: peerAt("shard", prego.RoleDBShard, shardAt), Users: users})
}

// TestPeersNetwork has hosts in separate namespaces, with their firewalls, and tests the rules with real connections.
func TestPeersNetwork(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b := peerAt("a", prego.RoleApp, aAt), peerAt("b", prego.RoleApp, bAt)
	edge := peerAt("edge", prego.RoleEdge, edgeAt)
	public := func(at string) string { return strings.Replace(at, "10.64.0.", "203.0.113.", 1) }

	first := map[string]bool{
		"control " + public(shardAt) + ":8443": true, "control " + public(shardAt) + ":2376": true, "control " + public(edgeAt) + ":8443": true,
		"control " + public(shardAt) + ":22": false, "world " + public(shardAt) + ":8443": false, "world " + public(edgeAt) + ":443": false,
		"a " + shardAt + ":3306": false, "a " + poolAt + ":6379": false, "edge " + aAt + ":8080": false, "stranger " + shardAt + ":3306": false, "a " + shardAt + ":8443": false,
	}
	c.reach("at a host's first boot: only the control plane", first)

	require.Empty(t, c.put("shard", c.shard(a)).Refused)
	require.Empty(t, c.put("pool", c.document("pool", peer.PeersInput{Server: peerAt("pool", prego.RoleRedisPool, poolAt), Users: []peer.PeerHost{a}})).Refused)
	require.Empty(t, c.put("a", c.document("a", peer.PeersInput{Server: a, Edges: []peer.PeerHost{edge}, InstancePorts: []int{20000}})).Refused)
	require.Empty(t, c.put("b", c.document("b", peer.PeersInput{Server: b, Edges: []peer.PeerHost{edge}})).Refused)
	require.Empty(t, c.put("edge", c.document("edge", peer.PeersInput{Server: edge})).Refused)

	rows := map[string]bool{}
	for from := range map[string]string{"a": aAt, "b": bAt, "edge": edgeAt, "stranger": strangerAt, "pool": poolAt, "shard": shardAt, "world": ""} {
		for to, who := range map[string]string{
			shardAt + ":3306": "a", poolAt + ":6379": "a", aAt + ":8080": "edge", aAt + ":20000": "edge",
			edgeAt + ":443": "*", edgeAt + ":80": "*",
			// Nobody but the control plane, which is not in the private network.
			shardAt + ":8443": "", shardAt + ":2376": "", shardAt + ":22": "", poolAt + ":8443": "", aAt + ":8443": "", aAt + ":3306": "", edgeAt + ":8443": "", edgeAt + ":2376": "",
		} {
			host, port, _ := strings.Cut(to, ":")
			itself := map[string]string{"a": aAt, "b": bAt, "edge": edgeAt, "pool": poolAt, "shard": shardAt}[from] == host
			if from == "world" {
				// At the public address, published and privately open ports are closed.
				rows["world "+public(host)+":"+port] = who == "*"
			}
			if !itself {
				rows[from+" "+to] = who == "*" || who == from
				rows[from+" "+public(host)+":"+port] = who == "*"
			}
		}
	}
	for at := range map[string]bool{shardAt: true, poolAt: true, aAt: true, edgeAt: true} {
		rows["control "+public(at)+":8443"] = true
	}
	rows["control "+public(aAt)+":20000"] = false
	require.Greater(t, len(rows), 100)
	c.reach("the rules hold", rows)

	held, err := c.dial("a", shardAt+":3306", 10*time.Second)
	require.NoError(t, err)
	require.True(t, echoes(held, 10*time.Second))
	require.Empty(t, c.put("shard", c.shard(a, b)).Refused)
	require.True(t, echoes(held, 10*time.Second), "what stays allowed is not disturbed")
	require.Empty(t, c.put("shard", c.shard(b)).Refused)
	rows["a "+shardAt+":3306"], rows["b "+shardAt+":3306"] = false, true
	require.False(t, echoes(held, patience), "a peer that loses its access also loses open connections")
	c.reach("after the document has changed", rows)

	// A document of another origin or host, an old or a bad one changes nothing.
	other := agenttest.NewPeersKey(t, "k1")
	good := c.shard(a)
	old := good
	old.Version = 1
	for name, signed := range map[string]*wire.SignedPeers{
		"forged":           other.Sign(t, good),
		"of an old day":    c.key.Sign(t, old),
		"of another host":  c.key.Sign(t, func() wire.PeersDocument { d := good; d.ServerID = "pool"; return d }()),
		"elsewhere":        c.key.Sign(t, func() wire.PeersDocument { d := good; d.Environment = "prod"; return d }()),
		"no control plane": c.key.Sign(t, func() wire.PeersDocument { d := good; d.Control.CIDRs = nil; return d }()),
		"changed on its way": func() *wire.SignedPeers {
			s := c.key.Sign(t, good)
			s.Document = bytes.Replace(s.Document, []byte("10.64.0.10"), []byte("10.64.0.66"), 1)
			return s
		}(),
		"trusting no key":   c.key.Sign(t, func() wire.PeersDocument { d := good; d.Keys = map[string]string{}; return d }()),
		"no longer its own": c.key.Sign(t, func() wire.PeersDocument { d := good; d.Keys = map[string]string{"k2": other.Public}; return d }()),
	} {
		answer := c.keepers["shard"].Apply(context.Background(), host.PeersRequest{Signed: signed})
		require.NotEmpty(t, answer.Refused, name)
		require.Equal(t, c.version-1, answer.Applied, name)
	}
	answer := c.keepers["shard"].Apply(context.Background(), host.PeersRequest{Signed: c.key.Sign(t, good), Caller: "198.51.100.1"})
	require.Contains(t, answer.Refused, "would shut out the control plane, which calls from 198.51.100.1")
	nft := c.keepers["shard"].nft
	for _, fails := range []string{"--check", ""} { // as when the kernel lacks something, or is out of memory
		c.keepers["shard"].nft = func(ctx context.Context, ruleset string, args ...string) error {
			if strings.Join(args, "") == fails {
				return errors.New("nft failed")
			}
			return nft(ctx, ruleset, args...)
		}
		refused := c.put("shard", good)
		require.Equal(t, "nft failed", refused.Refused)
		require.Equal(t, c.version-1, refused.Applied)
	}
	c.keepers["shard"].nft = nft
	c.reach("bad documents change nothing", rows)

	// A bad part costs itself: of names for ports and peers, and of what nft refuses.
	partly := c.shard(b)
	partly.Control.CIDRs = append(partly.Control.CIDRs, "10.0.0.0/99")
	partly.Control.Ports = append(partly.Control.Ports, -1)
	partly.Access[0].Ports = append(partly.Access[0].Ports, 0, 70000)
	partly.Access[0].From = append(partly.Access[0].From, aAt+" } accept ; #", "fd00::1")
	partly.Access = append(partly.Access,
		wire.PeersAccess{Ports: []int{2376, 8443}, From: []string{wire.PeersEveryone}},
		wire.PeersAccess{Ports: []int{22}, From: []string{wire.PeersEveryone, aAt}},
		wire.PeersAccess{Ports: []int{22}},
		wire.PeersAccess{Ports: []int{6666}, From: []string{aAt}})
	refuses := func(ctx context.Context, ruleset string, args ...string) error {
		if strings.Contains(ruleset, "6666") {
			return errors.New("nft failed")
		}
		return nft(ctx, ruleset, args...)
	}
	c.keepers["shard"].nft = refuses
	answer = c.put("shard", partly)
	require.Empty(t, answer.Refused)
	require.Equal(t, partly.Version, answer.Applied)
	require.LessOrEqual(t, len(answer.LeftOut), wire.MaxPeersRefused)
	for _, part := range []string{
		`"10.0.0.0/99"`, "port -1: ", "port 0: ", "port 70000: ", `"` + aAt + ` } accept ; #"`, `"fd00::1"`, "port 2376: ",
		"port 8443: ", "[22]: they", "[22] for []", "[6666]: nft failed",
	} {
		require.Contains(t, strings.Join(c.state("shard").LeftOut, "; "), part)
	}
	c.reach("bad parts change nothing", rows)
	require.Equal(t, answer, c.keepers["shard"].Apply(t.Context(), host.PeersRequest{}))
	c.boot("shard")
	c.keepers["shard"].nft = refuses
	require.NoError(t, c.keepers["shard"].Restore(t.Context()))
	require.Equal(t, answer, c.keepers["shard"].Apply(t.Context(), host.PeersRequest{}))
	c.reach("bad parts after a reboot", rows)
	c.keepers["shard"].nft = nft
	answer = c.put("shard", c.shard(b))
	require.Empty(t, answer.Refused+answer.LeftOut)

	for name := range c.hosts {
		c.boot(name)
	}
	c.reach("a reboot, before the document", first)
	for _, k := range c.keepers {
		require.NoError(t, k.Restore(t.Context()))
	}
	c.reach("a reboot", rows)

	require.NoError(t, os.WriteFile(c.hosts["shard"].Path(peersFile), []byte(`{"signed":`), 0o600))
	c.boot("shard")
	require.Error(t, c.keepers["shard"].Restore(t.Context()))
	c.reach("garbage on disk: only the control plane", map[string]bool{
		"control " + public(shardAt) + ":8443": true, "b " + shardAt + ":3306": false, "a " + shardAt + ":3306": false, "stranger " + shardAt + ":3306": false,
	})
	require.Empty(t, c.put("shard", good).Refused, "and the next document mends it")
	c.reach("mended", map[string]bool{"a " + shardAt + ":3306": true, "b " + shardAt + ":3306": false, "control " + public(shardAt) + ":8443": true})
}

// TestPeersChangeHasNoGap changes documents during connection attempts: the control plane and permanent peers are
// never shut out, and strangers never let in.
func TestPeersChangeHasNoGap(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b := peerAt("a", prego.RoleApp, aAt), peerAt("b", prego.RoleApp, bAt)
	require.Empty(t, c.put("shard", c.shard(a)).Refused)
	held, err := c.dial("a", shardAt+":3306", 10*time.Second)
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var tries, intruded, shut atomic.Int64
	for _, row := range []struct {
		from, to string
		let      bool
	}{{"control", "203.0.113.2:8443", true}, {"a", shardAt + ":3306", true}, {"stranger", shardAt + ":3306", false}, {"stranger", shardAt + ":8443", false}, {"world", "203.0.113.2:8443", false}} {
		wg.Go(func() {
			for ctx.Err() == nil {
				within := 100 * time.Millisecond
				if row.let {
					within = 10 * time.Second
				}
				conn, err := c.dial(row.from, row.to, within)
				tries.Add(1)
				switch {
				case err == nil && !row.let:
					intruded.Add(1)
				case err == nil:
					shut.Add(resent(conn))
				case row.let:
					shut.Add(1)
				}
				if err == nil {
					_ = conn.Close()
				}
			}
		})
	}
	const changes = 40
	for i := range changes {
		doc := c.shard(a)
		if i%2 == 0 {
			doc = c.shard(a, b)
		}
		require.Empty(t, c.put("shard", doc).Refused)
	}
	stop()
	wg.Wait()
	require.Zero(t, intruded.Load(), "a stranger got in")
	require.Zero(t, shut.Load(), "a peer was shut out")
	require.Greater(t, tries.Load(), int64(changes))
	require.True(t, echoes(held, 10*time.Second), "a connection that is allowed lives through all of them")
}

// resent is how many dropped packets of a connection had to be sent again.
func resent(conn net.Conn) (n int64) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 1
	}
	if raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			n = 1
			return
		}
		n = int64(info.Total_retrans)
	}) != nil {
		return 1
	}
	return n
}

// The first boot's ruleset and a document without peers admit the same.
func TestRulesetWithoutPeers(t *testing.T) {
	t.Parallel()
	h := &host.Host{Config: wire.HostConfig{AgentPort: 443, DockerPort: 2376}}
	got, _, err := ruleset(h, wire.PeersDocument{Control: wire.PeersControl{CIDRs: []string{"203.0.113.7/32", "2001:db8::/64"}, Ports: []int{443, 2376}}})
	require.NoError(t, err)
	for line := range strings.Lines(cloudinit.Firewall([]string{"203.0.113.7/32", "2001:db8::/64"}, []int{443, 2376})) {
		if strings.Contains(line, "saddr") || strings.Contains(line, "daddr") {
			require.Contains(t, got, strings.TrimSpace(line))
		}
	}
	_, _, err = ruleset(h, wire.PeersDocument{Control: wire.PeersControl{CIDRs: []string{"203.0.113.7"}}})
	require.ErrorContains(t, err, "shut out the control plane")
	require.True(t, netip.MustParseAddr(shardAt).IsPrivate())
}
