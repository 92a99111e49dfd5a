package rooted

import (
	"fmt"
	"strconv"
	"testing"
)

// box is a container on a bridge of a host, as Docker makes it, with a port that is published
// at the host's private address. It is the n-th of its bridge, of the network 172.k.0.0/24.
func (n *testNetwork) box(host, name, bridge string, k, number, published int) {
	n.t.Helper()
	gateway, address := fmt.Sprintf("172.%d.0.1", k), fmt.Sprintf("172.%d.0.%d", k, number+1)
	n.space(name)
	if number == 1 {
		n.in(host, n.ip, "link", "add", bridge, "type", "bridge")
		n.in(host, n.ip, "addr", "add", gateway+"/24", "dev", bridge)
		n.in(host, n.ip, "link", "set", bridge, "up")
	}
	out := fmt.Sprintf("v%d-%d", k, number)
	n.do(n.ip, "link", "add", out, "netns", n.prefix+host, "type", "veth", "peer", "name", "eth0", "netns", n.prefix+name)
	n.in(host, n.ip, "link", "set", out, "master", bridge, "up")
	n.in(name, n.ip, "addr", "add", address+"/24", "dev", "eth0")
	n.in(name, n.ip, "link", "set", "eth0", "up")
	n.in(name, n.ip, "route", "add", "default", "via", gateway)
	if published > 0 {
		n.load(host, fmt.Sprintf("table ip nat%d { chain pre { type nat hook prerouting priority dstnat; ip daddr %s tcp dport %d dnat to %s:80; }; }\n", published, aAt, published, address))
	}
	n.listen(name, address+":80")
}

// TestContainersOfOrgsAreIsolated tries who reaches what, over bridges and addresses as
// Docker makes them: first without the rules, where all of it can be reached.
func TestContainersOfOrgsAreIsolated(t *testing.T) {
	t.Parallel()
	n := newTestNetwork(t)
	n.host("a", 10)
	n.host("shard", 2)
	n.host("web", 7)
	n.in("a", "sysctl", "-qw", "net.ipv4.ip_forward=1")
	n.box("a", "one", "br-env000000001", 21, 1, 20001) // of one env
	n.box("a", "two", "br-env000000002", 22, 1, 20002) // of another org's
	n.box("a", "stack", "br-0123456789ab", 23, 1, 0)   // a tenant's own stack
	// What containers send out comes from the host.
	n.load("a", `table ip out { chain post { type nat hook postrouting priority srcnat; oifname { "private", "public" } masquerade; }; }
`)
	n.listen("a", "0.0.0.0:9443") // the agent
	n.listen("a", "0.0.0.0:2376") // Docker
	n.listen("shard", "0.0.0.0:3306")
	n.listen("shard", "0.0.0.0:53")
	n.listen("web", "0.0.0.0:443")
	rows := map[string]bool{}
	all := func(refused bool) map[string]bool {
		for _, to := range []string{
			"172.22.0.2:80",     // another org's container
			aAt + ":20002",      // the same, by its published port
			"203.0.113.10:9443", // the host's agent, at each of its addresses
			"172.21.0.1:9443",
			aAt + ":2376",     // Docker
			"172.23.0.2:80",   // what serves tenants
			shardAt + ":3306", // others' databases
		} {
			rows["one "+to] = !refused
		}
		rows["one 203.0.113.7:443"] = true // the world
		rows["one "+shardAt+":53"] = true  // a resolver
		rows["shard "+aAt+":20001"] = true // who may reach a published port does: an edge
		rows["a 172.21.0.2:80"] = true     // the agent's checks
		rows["stack "+shardAt+":3306"] = true
		rows["a "+shardAt+":"+strconv.Itoa(3306)] = true
		return rows
	}
	n.reach("without the rules", all(false))
	n.load("a", isolation)
	n.reach("with the rules", all(true))
	n.load("a", isolation)
	n.reach("loaded again", all(true))
}
