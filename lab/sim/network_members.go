package sim

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

// Servers in private networks: which addresses they have there.

// membership is where a server's address in a network is among its others; -1 is nowhere.
func membership(srv *server, network int64) int {
	return slices.IndexFunc(srv.PrivateNet, func(p schema.ServerPrivateNet) bool { return p.Network == network })
}

// usedAddresses are the addresses of a network that servers have.
func (s *Sim) usedAddresses(network int64) map[netip.Addr]bool {
	used := make(map[netip.Addr]bool)
	for _, srv := range s.st.Servers {
		if i := membership(srv, network); i >= 0 {
			for _, a := range addressesOf(srv.PrivateNet[i]) {
				used[netip.MustParseAddr(a)] = true
			}
		}
	}
	return used
}

// addressesOf are a server's own address in a network, and then its aliases there.
func addressesOf(p schema.ServerPrivateNet) []string {
	return append([]string{p.IP}, p.AliasIPs...)
}

func notAvailable(ip string) error {
	return &apiError{status: 422, code: "ip_not_available", message: "IP '" + ip + "' is not available"}
}

// addressBook has a network's addresses during an assignment.
type addressBook struct {
	network *schema.Network
	used    map[netip.Addr]bool
}

// assignable is whether a server may have an address: neither reserved (docs.hetzner.com/cloud/networks/faq, "Are any
// IP addresses reserved?") nor used.
func (b *addressBook) assignable(a netip.Addr) bool {
	if b.used[a] || a == publicGateway || a == gatewayOf(b.network) {
		return false
	}
	for _, sub := range b.network.Subnets {
		if p := netip.MustParsePrefix(sub.IPRange); p.Contains(a) {
			return a != p.Addr() && a != lastOf(p)
		}
	}
	return false
}

// take gives out one address that was asked for.
func (b *addressBook) take(ip, field string, within []netip.Prefix) error {
	a, err := netip.ParseAddr(ip)
	if err != nil || !a.Is4() {
		return invalid("invalid input in field '"+field+"'", field)
	}
	if !slices.ContainsFunc(within, func(p netip.Prefix) bool { return p.Contains(a) }) || !b.assignable(a) {
		return notAvailable(ip)
	}
	b.used[a] = true
	return nil
}

// next gives out the first address that is free.
func (b *addressBook) next(within []netip.Prefix) (string, error) {
	for _, p := range within {
		for a := p.Addr(); p.Contains(a); a = a.Next() {
			if b.assignable(a) {
				b.used[a] = true
				return a.String(), nil
			}
		}
	}
	return "", &apiError{status: 422, code: "no_subnet_available", message: "no subnet or IP available"}
}

// place finds a server's addresses in a network that it is not in yet. It changes
// nothing; others are the networks that it is in.
func (s *Sim) place(others []schema.ServerPrivateNet, location schema.Location,
	req schema.ServerActionAttachToNetworkRequest,
) (schema.ServerPrivateNet, error) {
	out := schema.ServerPrivateNet{Network: req.Network, AliasIPs: []string{}}
	n, ok := s.st.Networks[req.Network]
	if !ok {
		return out, notFound("network", req.Network)
	}
	whole := netip.MustParsePrefix(n.IPRange)
	for _, o := range others {
		if o.Network == n.ID {
			return out, &apiError{
				status: 422, code: "server_already_attached",
				message: "server is already attached to the network",
			}
		}
		if netip.MustParsePrefix(s.st.Networks[o.Network].IPRange).Overlaps(whole) {
			return out, &apiError{
				status: 422, code: "networks_overlap",
				message: "the network overlaps with another one of the server",
			}
		}
	}
	if len(others) >= maxNetworksOfServer {
		return out, limitExceeded("networks of a server")
	}
	if len(s.networkView(n).Servers) >= maxMembers {
		return out, limitExceeded("servers of a network")
	}
	within := subnetsFor(n, location.NetworkZone, "")
	if req.IPRange != nil {
		if _, err := parseRange(*req.IPRange, "ip_range"); err != nil {
			return out, err
		}
		within = subnetsFor(n, location.NetworkZone, *req.IPRange)
	}
	if len(within) == 0 {
		return out, &apiError{
			status: 422, code: "no_subnet_available",
			message: "no subnet available for the server's location",
		}
	}
	book := &addressBook{network: n, used: s.usedAddresses(n.ID)}
	var err error
	if req.IP != nil {
		out.IP, err = *req.IP, book.take(*req.IP, "ip", within)
	} else {
		out.IP, err = book.next(within)
	}
	if err != nil {
		return out, err
	}
	if len(req.AliasIPs) > maxAliases {
		return out, limitExceeded("alias IP")
	}
	for _, a := range req.AliasIPs {
		if a == nil {
			return out, invalid("invalid input in field 'alias_ips'", "alias_ips")
		}
		if err := book.take(*a, "alias_ips", subnetsFor(n, location.NetworkZone, "")); err != nil {
			return out, err
		}
		out.AliasIPs = append(out.AliasIPs, *a)
	}
	return out, nil
}

// subnetsFor are the subnets of a network that servers of a zone may be in: all, or the
// one with a range.
func subnetsFor(n *schema.Network, zone, ipRange string) []netip.Prefix {
	var out []netip.Prefix
	for _, sub := range n.Subnets {
		if sub.NetworkZone == zone && (ipRange == "" || sub.IPRange == ipRange) {
			out = append(out, netip.MustParsePrefix(sub.IPRange))
		}
	}
	return out
}

// placeAll finds a new server's addresses in all of its networks.
func (s *Sim) placeAll(location schema.Location, networks []int64) ([]schema.ServerPrivateNet, error) {
	out := []schema.ServerPrivateNet{}
	for _, id := range networks {
		p, err := s.place(out, location, schema.ServerActionAttachToNetworkRequest{Network: id})
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// join puts a server into a network that it was placed in.
func (s *Sim) join(srv *server, p schema.ServerPrivateNet) error {
	id := s.st.id()
	p.MACAddress = fmt.Sprintf("86:00:00:%02x:%02x:%02x", id>>16&0xff, id>>8&0xff, id&0xff) // as the provider's look
	if srv.Interfaces == nil {
		srv.Interfaces = map[int64]int{}
	}
	for num := 1; ; num++ {
		if !slices.Contains(slices.Collect(maps.Values(srv.Interfaces)), num) {
			srv.Interfaces[p.Network] = num
			break
		}
	}
	srv.PrivateNet = append(srv.PrivateNet, p)
	if h, on := s.hosts[srv.ID]; on {
		return h.connect(s.privateNICs(srv)[len(srv.PrivateNet)-1])
	}
	return nil
}

// leave takes a server out of a network.
func (s *Sim) leave(srv *server, network int64) error {
	i := membership(srv, network)
	srv.PrivateNet = slices.Delete(slices.Clone(srv.PrivateNet), i, i+1)
	delete(srv.Interfaces, network)
	if h, on := s.hosts[srv.ID]; on {
		return h.disconnect(network)
	}
	return nil
}

// serverNetworkAction is an action of a server that is about a network.
func (s *Sim) serverNetworkAction(r *http.Request, srv *server) (any, error) {
	verb := r.PathValue("verb")
	var network int64
	if verb == "attach_to_network" {
		var req schema.ServerActionAttachToNetworkRequest
		if err := decode(r, &req); err != nil {
			return nil, err
		}
		p, err := s.place(srv.PrivateNet, srv.Location, req)
		if err != nil {
			return nil, err
		}
		if err := s.join(srv, p); err != nil {
			return nil, err
		}
		network = req.Network
	} else {
		var req schema.ServerActionChangeAliasIPsRequest
		if err := decode(r, &req); err != nil {
			return nil, err
		}
		n, ok := s.st.Networks[req.Network]
		if !ok {
			return nil, notFound("network", req.Network)
		}
		if membership(srv, n.ID) < 0 {
			return nil, &apiError{status: 404, code: "not_found", message: "server is not attached to the network"}
		}
		var err error
		if verb == "detach_from_network" {
			err = s.leave(srv, n.ID)
		} else {
			err = s.changeAliases(srv, n, req.AliasIPs)
		}
		if err != nil {
			return nil, err
		}
		network = n.ID
	}
	return s.did(verb, nil, serverRef(srv.ID), networkRef(network)), nil
}

// changeAliases replaces a server's further addresses in a network.
func (s *Sim) changeAliases(srv *server, n *schema.Network, aliases []string) error {
	if len(aliases) > maxAliases {
		return limitExceeded("alias IP")
	}
	i := membership(srv, n.ID)
	book := &addressBook{network: n, used: s.usedAddresses(n.ID)}
	for _, a := range srv.PrivateNet[i].AliasIPs {
		delete(book.used, netip.MustParseAddr(a))
	}
	for _, a := range aliases {
		if err := book.take(a, "alias_ips", subnetsFor(n, srv.Location.NetworkZone, "")); err != nil {
			return err
		}
	}
	srv.PrivateNet = slices.Clone(srv.PrivateNet)
	srv.PrivateNet[i].AliasIPs = append([]string{}, aliases...)
	if h, on := s.hosts[srv.ID]; on {
		return h.readdress(n.ID, addressesOf(srv.PrivateNet[i]))
	}
	return nil
}
