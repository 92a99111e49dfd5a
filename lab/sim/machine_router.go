package sim

import (
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/prego/prego/lab/netns"
)

// router forwards between the machines of one network.
type router struct {
	space  string
	net    privateNetwork
	cables map[int]*cable      // by the machine's number
	routes map[string][]string // by destination, as the kernel has them
}

// cable is the router's end of one.
type cable struct {
	name      string
	mac       net.HardwareAddr
	addresses []string
	dhcp      net.PacketConn
}

// routers are the routers of one cloud.
type routers struct {
	mu sync.Mutex
	by map[int64]*router
}

func (w *network) routerSpace(id int64) string { return fmt.Sprintf("%snet-%d", w.prefix(), id) }

// routerOf finds the router of a network, or sets it up.
func (w *network) routerOf(p privateNetwork) (*router, error) {
	if r, ok := w.routers.by[p.id]; ok {
		return r, nil
	}
	r := &router{space: w.routerSpace(p.id), net: p, cables: map[int]*cable{}, routes: map[string][]string{}}
	for _, args := range [][]string{
		{"netns", "add", r.space},
		{"-n", r.space, "link", "set", "lo", "up"},
		{"-n", r.space, "address", "add", p.gateway.String() + "/32", "dev", "lo"},
		// With rp_filter no machine sends from an unassigned address.
		{
			"netns", "exec", r.space, "sh", "-c",
			"cd /proc/sys/net/ipv4 && echo 1 >conf/all/rp_filter && echo 1 >conf/default/rp_filter && echo 1 >ip_forward",
		},
	} {
		if err := run("ip", args...); err != nil {
			_ = run("ip", "netns", "delete", r.space)
			return nil, err
		}
	}
	if w.routers.by == nil {
		w.routers.by = map[int64]*router{}
	}
	w.routers.by[p.id] = r
	return r, nil
}

// wants are the routes that there have to be, as ip's arguments, by destination.
func (r *router) wants() map[string][]string {
	// Unassigned addresses do not exist, regardless of other routes.
	out := map[string][]string{r.net.ipRange.String(): {"unreachable", r.net.ipRange.String()}}
	for _, c := range r.cables {
		for _, a := range c.addresses {
			out[a+"/32"] = []string{a + "/32", "dev", c.name}
		}
		for _, route := range r.net.routes {
			if slices.Contains(c.addresses, route.Gateway) {
				out[route.Destination] = []string{route.Destination, "via", route.Gateway, "dev", c.name, "onlink"}
			}
		}
	}
	return out
}

// sync has the kernel route as it should.
func (r *router) sync() error {
	wants := r.wants()
	for _, dest := range slices.Sorted(maps.Keys(r.routes)) {
		if slices.Equal(wants[dest], r.routes[dest]) {
			continue
		}
		if err := run("ip", append([]string{"-n", r.space, "route", "delete"}, r.routes[dest]...)...); err != nil {
			return err
		}
		delete(r.routes, dest)
	}
	for _, dest := range slices.Sorted(maps.Keys(wants)) {
		if _, there := r.routes[dest]; there {
			continue
		}
		if err := run("ip", append([]string{"-n", r.space, "route", "add"}, wants[dest]...)...); err != nil {
			return err
		}
		r.routes[dest] = wants[dest]
	}
	return nil
}

// unplug takes a machine's cable away, if it has one.
func (r *router) unplug(k int) {
	c, ok := r.cables[k]
	if !ok {
		return
	}
	delete(r.cables, k)
	if c.dhcp != nil {
		_ = c.dhcp.Close()
	}
	// The machine may have gone with its end.
	_ = run("ip", "-n", r.space, "link", "delete", c.name)
	for dest, args := range r.routes {
		if slices.Contains(args, c.name) {
			delete(r.routes, dest)
		}
	}
}

// plugPrivate gives machine k, whose namespace is space, an interface in a network. It has
// no address before it asks for one.
func (w *network) plugPrivate(k int, space string, nic privateNIC) error {
	w.routers.mu.Lock()
	defer w.routers.mu.Unlock()
	r, err := w.routerOf(nic.network)
	if err != nil {
		return err
	}
	r.unplug(k)
	c := &cable{name: fmt.Sprintf("m%d", k), addresses: nic.addresses}
	if c.mac, err = net.ParseMAC(nic.mac); err != nil {
		return err
	}
	r.cables[k] = c
	mtu := strconv.Itoa(privateMTU)
	for _, args := range [][]string{
		{
			"-n", r.space, "link", "add", c.name, "mtu", mtu, "type", "veth", "peer", "name", nic.name(), "address",
			nic.mac, "mtu", mtu, "netns", space,
		},
		{"-n", r.space, "link", "set", c.name, "up"},
	} {
		if err := run("ip", args...); err != nil {
			r.unplug(k)
			return err
		}
	}
	if err := r.sync(); err != nil {
		r.unplug(k)
		return err
	}
	if c.dhcp, err = listenDHCP(r.space, c.name); err != nil {
		r.unplug(k)
		return err
	}
	go w.servePrivate(r, c)
	return nil
}

func (w *network) unplugPrivate(k int, id int64) error {
	w.routers.mu.Lock()
	defer w.routers.mu.Unlock()
	r, ok := w.routers.by[id]
	if !ok {
		return nil
	}
	r.unplug(k)
	return r.sync()
}

// readdress changes the addresses that a machine may use in a network.
func (w *network) readdress(k int, id int64, addresses []string) error {
	w.routers.mu.Lock()
	defer w.routers.mu.Unlock()
	r, ok := w.routers.by[id]
	if !ok {
		return nil
	}
	if c, ok := r.cables[k]; ok {
		c.addresses = addresses
	}
	return r.sync()
}

// reroute updates a router after changes of its network.
func (w *network) reroute(p privateNetwork) error {
	w.routers.mu.Lock()
	defer w.routers.mu.Unlock()
	r, ok := w.routers.by[p.id]
	if !ok {
		return nil
	}
	r.net = p
	return r.sync()
}

func (w *network) removeRouter(id int64) error {
	w.routers.mu.Lock()
	defer w.routers.mu.Unlock()
	r, ok := w.routers.by[id]
	if !ok {
		return nil
	}
	for k := range r.cables {
		r.unplug(k)
	}
	delete(w.routers.by, id)
	return run("ip", "netns", "delete", r.space)
}

// listenDHCP opens the port of DHCP servers on one interface of a namespace.
func listenDHCP(space, device string) (c net.PacketConn, err error) {
	err = netns.In(filepath.Join("/run/netns", space), func() error {
		lc := onDevice(device)
		c, err = lc.ListenPacket(context.Background(), "udp4", "0.0.0.0:67")
		return err
	})
	return c, err
}

// servePrivate gives a machine its address in a network, until the cable is unplugged.
func (w *network) servePrivate(r *router, c *cable) {
	b := make([]byte, 1500)
	for {
		n, _, err := c.dhcp.ReadFrom(b)
		if err != nil {
			return
		}
		w.routers.mu.Lock()
		answer, to := r.lease(c, b[:n])
		w.routers.mu.Unlock()
		if answer != nil {
			_, _ = c.dhcp.WriteTo(answer, to)
		}
	}
}

// lease answers a machine's question: its address alone, and the way to the others.
func (r *router) lease(c *cable, b []byte) ([]byte, net.Addr) {
	q, ok := parseDHCP(b)
	if !ok || q.mac.String() != c.mac.String() {
		return nil, nil
	}
	gateway := r.net.gateway.AsSlice()
	routes := append([]byte{32}, gateway...)
	routes = append(routes, 0, 0, 0, 0) // the gateway is on the link
	routes = append(routes, byte(r.net.ipRange.Bits()))
	routes = append(routes, r.net.ipRange.Addr().AsSlice()[:(r.net.ipRange.Bits()+7)/8]...)
	routes = append(routes, gateway...)
	return q.answer(net.ParseIP(c.addresses[0]).To4(), gateway, []dhcpOption{
		{optMask, []byte{255, 255, 255, 255}},
		{optMTU, []byte{privateMTU >> 8, privateMTU & 0xff}},
		{optRoutes, routes},
	})
}
