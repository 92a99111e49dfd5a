package sim

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
	"go.uber.org/zap"
)

// Private networks between machines. As at the provider they are of layer 3: a machine has one address with a mask of
// 32 bits, and sends all packets to the network's gateway, which forwards them. Here each network is a router in a
// separate network namespace, with a cable to each machine, and this machine has no address and no route in any of
// them, so that ranges may equal those of other networks, other clouds and this machine.

// privateMTU is what the provider's private interfaces have.
const privateMTU = 1450

// privateNetwork is what a router has to know.
type privateNetwork struct {
	id      int64
	ipRange netip.Prefix
	gateway netip.Addr
	routes  []schema.NetworkRoute
}

func privateNetworkOf(n *schema.Network) privateNetwork {
	return privateNetwork{
		id: n.ID, ipRange: netip.MustParsePrefix(n.IPRange), gateway: gatewayOf(n),
		routes: slices.Clone(n.Routes),
	}
}

// privateNIC is a machine's interface in a private network.
type privateNIC struct {
	network   privateNetwork
	num       int // from 1
	mac       string
	addresses []string // DHCP's, and then the aliases
}

// name is what it is called on the provider's servers of all types that are sold here.
func (n privateNIC) name() string { return fmt.Sprintf("enp%ds0", 6+n.num) }

// privateNICs are a server's, in the order of its private_net. Call it with the lock held.
func (s *Sim) privateNICs(srv *server) []privateNIC {
	var out []privateNIC
	for _, p := range srv.PrivateNet {
		out = append(out, privateNIC{
			network: privateNetworkOf(s.st.Networks[p.Network]),
			num:     srv.Interfaces[p.Network], mac: p.MACAddress, addresses: addressesOf(p),
		})
	}
	return out
}

// plugNetworks plugs all of the machine's private interfaces, before it is turned on.
func (m *machineHost) plugNetworks(space string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.space = space
	for _, id := range slices.Sorted(maps.Keys(m.nics)) {
		if err := m.sim.net.plugPrivate(m.k, space, m.nics[id]); err != nil {
			return err
		}
	}
	return nil
}

func (m *machineHost) unplugNetworks() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.space = ""
	for id := range m.nics {
		if err := m.sim.net.unplugPrivate(m.k, id); err != nil {
			m.log.Warn("private network not unplugged", zap.Int64("network", id), zap.Error(err))
		}
	}
}

func (m *machineHost) connect(nic privateNIC) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nics[nic.network.id] = nic
	if m.space == "" {
		return nil
	}
	if err := m.sim.net.plugPrivate(m.k, m.space, nic); err != nil {
		return err
	}
	m.event("start", nic.name())
	return nil
}

func (m *machineHost) disconnect(network int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	nic, ok := m.nics[network]
	delete(m.nics, network)
	if !ok || m.space == "" {
		return nil
	}
	m.event("stop", nic.name())
	return m.sim.net.unplugPrivate(m.k, network)
}

func (m *machineHost) readdress(network int64, addresses []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	nic := m.nics[network]
	nic.addresses = addresses
	m.nics[network] = nic
	if m.space == "" {
		return nil
	}
	return m.sim.net.readdress(m.k, network, addresses)
}

// event does what udev does on a machine when an interface comes or goes, since there is
// none: it starts or stops the interface's unit. Before there is a system that could, there
// is nothing to do, since its boot looks for interfaces.
func (m *machineHost) event(do, device string) {
	m.sim.work.Add(1)
	go func() {
		defer m.sim.work.Done()
		ctx, cancel := context.WithTimeout(m.sim.ctx, time.Minute)
		defer cancel()
		if _, err := m.execute(ctx, nil, "systemctl", "--no-block", do, "hc-net-ifup@"+device+".service"); err != nil {
			m.log.Info("no program listens for interfaces", zap.String("interface", device), zap.Error(err))
		}
	}()
}

// privateNetworks is the provider's description of a server's private interfaces. Call it
// with the lock held.
func (s *Sim) privateNetworks(srv *server) []privateMetadata {
	out := []privateMetadata{}
	for _, p := range srv.PrivateNet {
		n := s.st.Networks[p.Network]
		m := privateMetadata{
			IP: p.IP, AliasIPs: p.AliasIPs, Interface: srv.Interfaces[n.ID], MAC: p.MACAddress, NetworkID: n.ID,
			NetworkName: n.Name, Network: n.IPRange, Gateway: gatewayOf(n).String(),
		}
		for _, sub := range n.Subnets {
			if netip.MustParsePrefix(sub.IPRange).Contains(netip.MustParseAddr(p.IP)) {
				m.Subnet = sub.IPRange
			}
		}
		out = append(out, m)
	}
	return out
}

// privateMetadata has the fields that the provider's metadata has, in its order.
type privateMetadata struct {
	IP          string   `yaml:"ip"`
	AliasIPs    []string `yaml:"alias_ips,flow"`
	Interface   int      `yaml:"interface_num"`
	MAC         string   `yaml:"mac_address"`
	NetworkID   int64    `yaml:"network_id"`
	NetworkName string   `yaml:"network_name"`
	Network     string   `yaml:"network"`
	Subnet      string   `yaml:"subnet"`
	Gateway     string   `yaml:"gateway"`
}
