package sim

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

// Private networks: their ranges, subnets and routes. Which servers have which of their
// addresses is in network_members.go; how machines reach each other by them is in
// machine_private.go. They cost nothing, so the ledger does not know them, as it does not
// know firewalls.
//
// Behaviour follows the provider's specification, its FAQ (docs.hetzner.com/cloud/networks/faq) and, where these are
// silent, issues: words for routes (hetznercloud/hcloud-cloud-controller-manager #577), a subnet with servers is not
// deleted (hetznercloud/terraform-provider-hcloud #388). Interfaces on machines follow "Server configuration" and
// "Architecture" there, and hetznercloud/hc-utils. Undocumented is not_found for detaching from a network that is not
// attached and for deleting a subnet or route that does not exist.

// Limits of one network, and of one server: the FAQ; the answer at 100 servers is that of
// mysticaltech/terraform-hcloud-kube-hetzner #894, the networks of a server are from
// hetzneronline/community-content #946.
const (
	maxSubnets, maxRoutes, maxMembers = 50, 100, 100
	maxNetworksOfServer, maxAliases   = 3, 5
)

var (
	// privateRanges are the ranges of RFC 1918.
	privateRanges = []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("192.168.0.0/16"),
	}
	// publicGateway is the gateway of servers' public interfaces at the provider, wherever
	// they are: no network may use it.
	publicGateway = netip.MustParseAddr("172.31.1.1")
	loopback      = netip.MustParsePrefix("127.0.0.0/8")
	anywhere      = netip.MustParsePrefix("0.0.0.0/0")
)

func networkRef(id int64) schema.ActionResourceReference {
	return schema.ActionResourceReference{ID: id, Type: "network"}
}

// networkView is a network with the servers that are in it.
func (s *Sim) networkView(n *schema.Network) schema.Network {
	out := *n
	out.Servers = []int64{}
	for id, srv := range s.st.Servers {
		if membership(srv, n.ID) >= 0 {
			out.Servers = append(out.Servers, id)
		}
	}
	slices.Sort(out.Servers)
	return out
}

func (s *Sim) networks() *kind[schema.Network] {
	return &kind[schema.Network]{
		sim: s, one: "network", many: "networks", title: "network", all: s.st.Networks,
		show: func(n *schema.Network) item {
			return item{id: n.ID, name: n.Name, labels: n.Labels, created: n.Created, body: s.networkView(n)}
		},
		name:      func(n *schema.Network) *string { return &n.Name },
		labels:    func(n *schema.Network) *map[string]string { return &n.Labels },
		protected: func(n *schema.Network) *bool { return &n.Protection.Delete },
		create:    s.createNetwork, remove: s.removeNetwork,
		update: func(n *schema.Network, c changes) error {
			if len(valueOf(c.Name)) > maxName {
				return invalid("invalid input in field 'name'", "name")
			}
			replace(&n.ExposeRoutesToVSwitch, c.ExposeRoutesToVSwitch)
			return nil
		},
		actions: map[string]action[schema.Network]{
			"add_subnet": networkAction(s, addSubnet), "add_route": networkAction(s, addRoute),
			"delete_route": networkAction(s, deleteRoute),
			"delete_subnet": networkAction(s,
				func(n *schema.Network, req schema.NetworkActionDeleteSubnetRequest) error {
					return s.deleteSubnet(n, req.IPRange)
				}),
			"change_ip_range": networkAction(s,
				func(n *schema.Network, req schema.NetworkActionChangeIPRangeRequest) error {
					return s.changeRange(n, req.IPRange)
				}),
		},
	}
}

// maxName is the longest name of a network.
const maxName = 128

func (s *Sim) createNetwork(r *http.Request) (any, error) {
	var req schema.NetworkCreateRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if len(req.Name) > maxName {
		return nil, invalid("invalid input in field 'name'", "name")
	}
	if err := s.networks().free(req.Name, 0); err != nil {
		return nil, err
	}
	if len(s.st.Networks) >= s.cfg.Limits.Networks {
		return nil, limitExceeded("network")
	}
	labels, err := labelsOf(req.Labels)
	if err != nil {
		return nil, err
	}
	if _, err := s.networkRange(req.IPRange); err != nil {
		return nil, err
	}
	n := &schema.Network{
		Name: req.Name, Created: time.Now().UTC(), IPRange: req.IPRange, Labels: labels,
		ExposeRoutesToVSwitch: req.ExposeRoutesToVSwitch, Subnets: []schema.NetworkSubnet{},
		Routes: []schema.NetworkRoute{}, Servers: []int64{}, LoadBalancers: []int64{},
	}
	for _, sub := range req.Subnets {
		if err := addSubnet(n, schema.NetworkActionAddSubnetRequest{
			Type: sub.Type, IPRange: sub.IPRange,
			NetworkZone: sub.NetworkZone, VSwitchID: sub.VSwitchID,
		}); err != nil {
			return nil, err
		}
	}
	for _, route := range req.Routes {
		if err := addRoute(n, route); err != nil {
			return nil, err
		}
	}
	n.ID = s.st.id()
	s.st.Networks[n.ID] = n
	return schema.NetworkCreateResponse{Network: *n}, nil
}

// removeNetwork deletes a network; servers that are in it are detached, as the specification
// has it: attached resources are detached automatically.
func (s *Sim) removeNetwork(n *schema.Network) (any, error) {
	for _, srv := range s.st.Servers {
		if membership(srv, n.ID) >= 0 {
			if err := s.leave(srv, n.ID); err != nil {
				return nil, err
			}
		}
	}
	delete(s.st.Networks, n.ID)
	if s.net != nil {
		if err := s.net.removeRouter(n.ID); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// networkAction is an action that changes a network, and thereby where its router sends
// what.
func networkAction[R any](s *Sim, change func(n *schema.Network, req R) error) action[schema.Network] {
	return func(r *http.Request, n *schema.Network) (any, error) {
		var req R
		if err := decode(r, &req); err != nil {
			return nil, err
		}
		if err := change(n, req); err != nil {
			return nil, err
		}
		if s.net != nil {
			if err := s.net.reroute(privateNetworkOf(n)); err != nil {
				return nil, err
			}
		}
		return s.did(r.PathValue("verb"), nil, networkRef(n.ID)), nil
	}
}

// parseRange reads a range in the form that the provider writes it.
func parseRange(v, field string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(v)
	if err != nil || !p.Addr().Is4() || p.Masked() != p {
		return p, invalid("invalid input in field '"+field+"'", field)
	}
	return p, nil
}

// contains is whether one range lies within another.
func contains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

func private(p netip.Prefix) bool {
	return slices.ContainsFunc(privateRanges, func(r netip.Prefix) bool { return contains(r, p) })
}

// networkRange reads the range of a network. The provider allows private ones. Process hosts' networks may be on
// loopback, like hosts' public addresses.
func (s *Sim) networkRange(v string) (netip.Prefix, error) {
	p, err := parseRange(v, "ip_range")
	switch {
	case err != nil:
		return p, err
	case !private(p) && (!s.cfg.LoopbackNetworks || !contains(loopback, p)):
		return p, invalid("ip_range must be one of the private ranges of RFC1918", "ip_range")
	case p.Bits() > 24:
		return p, invalid("ip_range must be at least a /24", "ip_range")
	}
	return p, nil
}

// gatewayOf is the first address of a network.
func gatewayOf(n *schema.Network) netip.Addr {
	return netip.MustParsePrefix(n.IPRange).Addr().Next()
}

// overlaps is whether a range meets a subnet or the destination of a route. The route to
// everywhere is none that it could meet.
func overlaps(n *schema.Network, p netip.Prefix) bool {
	for _, sub := range n.Subnets {
		if netip.MustParsePrefix(sub.IPRange).Overlaps(p) {
			return true
		}
	}
	for _, route := range n.Routes {
		if d := netip.MustParsePrefix(route.Destination); d != anywhere && d.Overlaps(p) {
			return true
		}
	}
	return false
}

func addSubnet(n *schema.Network, req schema.NetworkActionAddSubnetRequest) error {
	switch req.Type {
	case "cloud", "server":
	case "vswitch":
		return invalid("there are no vSwitches here", "type")
	default:
		return invalid("invalid input in field 'type'", "type")
	}
	if !slices.ContainsFunc(locations, func(l schema.Location) bool { return l.NetworkZone == req.NetworkZone }) {
		return invalid("network zone not found", "network_zone")
	}
	if len(n.Subnets) > 0 && n.Subnets[0].NetworkZone != req.NetworkZone {
		return invalid("all subnets of a network have to be in one network zone", "network_zone")
	}
	if len(n.Subnets) >= maxSubnets {
		return limitExceeded("subnet")
	}
	whole := netip.MustParsePrefix(n.IPRange)
	if req.IPRange == "" {
		free, ok := freeRange(n)
		if !ok {
			return invalid("no /24 is left in the network", "ip_range")
		}
		req.IPRange = free.String()
	}
	p, err := parseRange(req.IPRange, "ip_range")
	switch {
	case err != nil:
		return err
	case p.Bits() > 30:
		return invalid("ip_range must be at least a /30", "ip_range")
	case !contains(whole, p):
		return invalid("ip_range is not within that of the network", "ip_range")
	case overlaps(n, p):
		return invalid("ip_range overlaps with another subnetwork or network route", "ip_range")
	}
	n.Subnets = append(n.Subnets, schema.NetworkSubnet{
		Type: req.Type, IPRange: req.IPRange,
		NetworkZone: req.NetworkZone, Gateway: gatewayOf(n).String(),
	})
	return nil
}

// freeRange is the first /24 of a network that nothing else meets.
func freeRange(n *schema.Network) (netip.Prefix, bool) {
	whole := netip.MustParsePrefix(n.IPRange)
	for a := whole.Addr(); whole.Contains(a); {
		p := netip.PrefixFrom(a, 24)
		if !overlaps(n, p) {
			return p, true
		}
		last := lastOf(p)
		a = last.Next()
	}
	return netip.Prefix{}, false
}

// lastOf is the last address of a range.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	return netip.AddrFrom4(b)
}

func (s *Sim) deleteSubnet(n *schema.Network, ipRange string) error {
	i := slices.IndexFunc(n.Subnets, func(sub schema.NetworkSubnet) bool { return sub.IPRange == ipRange })
	if i < 0 {
		return &apiError{status: 404, code: "not_found", message: "subnet '" + ipRange + "' not found"}
	}
	p := netip.MustParsePrefix(ipRange)
	for a := range s.usedAddresses(n.ID) {
		if p.Contains(a) {
			return &apiError{
				status: 422, code: "service_error",
				message: "cannot remove subnet because servers are attached to it",
			}
		}
	}
	n.Subnets = slices.Delete(n.Subnets, i, i+1)
	return nil
}

func addRoute(n *schema.Network, route schema.NetworkRoute) error {
	d, err := parseRange(route.Destination, "destination")
	if err != nil {
		return err
	}
	gateway, err := netip.ParseAddr(route.Gateway)
	whole := netip.MustParsePrefix(n.IPRange)
	same := slices.ContainsFunc(n.Routes,
		func(r schema.NetworkRoute) bool { return r.Destination == route.Destination })
	switch {
	case len(n.Routes) >= maxRoutes:
		return limitExceeded("route")
	case d != anywhere && !private(d):
		return invalid("destination must be one of the private ranges of RFC1918, or 0.0.0.0/0", "destination")
	case d != anywhere && d.Contains(publicGateway), same, d != anywhere && overlaps(n, d):
		return invalid("network route destination overlaps with another subnetwork or network route", "destination")
	case err != nil, gateway == gatewayOf(n), gateway == publicGateway, !whole.Contains(gateway):
		return invalid("invalid input in field 'gateway'", "gateway")
	}
	n.Routes = append(n.Routes, route)
	return nil
}

func deleteRoute(n *schema.Network, route schema.NetworkRoute) error {
	i := slices.Index(n.Routes, route)
	if i < 0 {
		return &apiError{status: 404, code: "not_found", message: "route to '" + route.Destination + "' not found"}
	}
	n.Routes = slices.Delete(n.Routes, i, i+1)
	return nil
}

// changeRange extends a network: its first address stays.
func (s *Sim) changeRange(n *schema.Network, ipRange string) error {
	old := netip.MustParsePrefix(n.IPRange)
	p, err := s.networkRange(ipRange)
	if err != nil {
		return err
	}
	if p.Addr() != old.Addr() || p.Bits() >= old.Bits() {
		return invalid(fmt.Sprintf("ip_range must extend %s at its end", old), "ip_range")
	}
	n.IPRange = ipRange
	return nil
}

func limitExceeded(what string) error {
	return &apiError{status: 403, code: "resource_limit_exceeded", message: what + " limit reached"}
}
