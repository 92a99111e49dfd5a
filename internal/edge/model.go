// Package edge builds the document of a network's edges from rows. It is pure: the same rows give the same document.
package edge

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// Server is where a site or an instance runs.
type Server struct {
	ServerID prego.ServerID
	Region   prego.Region
	Network  string // its private network, or its region if it has none
	Address  string // in that network; "" while it has none
	Public   string // public address of an edge in use; else ""
}

// Site is a tenant's site that exists.
type Site struct {
	TenantID    prego.TenantID
	ServerID    prego.ServerID
	Name        string   // of the site
	Names       []string // verified domains
	Maintenance bool
	// The network and address of a site that has moved to another network and whose visitors may still use the
	// previous one. Open passes them on.
	LeftNetwork string
	LeftAddress string
	Open        bool
}

// Group is a process group with routes. Instances are its running and healthy instances.
type Group struct {
	GroupID   prego.GroupID
	EnvID     prego.EnvID
	Region    prego.Region
	Routes    []Route
	Instances []Instance
}

// Route is a route of a group. Its name, if it has one, is verified.
type Route struct {
	RouteID    prego.RouteID          `json:"route_id"`
	Hostname   string                 `json:"hostname"`
	Listener   workload.ListenerScope `json:"listener"`
	ListenPort int                    `json:"listen_port"`
	Protocol   workload.RouteProtocol `json:"protocol"`
	TargetPort int                    `json:"target_port"`
}

// Instance is a running, healthy instance.
type Instance struct {
	ServerID prego.ServerID         `json:"server_id"`
	Ports    []workload.PortBinding `json:"ports"`
}

// Address is a floating address that is assigned to an edge.
type Address struct {
	EnvID    prego.EnvID
	Address  string
	ServerID prego.ServerID
}

// Settings apply to all sites.
type Settings struct {
	MaxBody int64 // largest body of a request to a site, in bytes; 0 is no limit
	HSTS    int   // seconds; 0 is none
}

// Model is all that edges serve. Rows are added or replaced as they change.
type Model struct {
	settings  Settings
	servers   map[prego.ServerID]Server
	sites     map[prego.TenantID]Site
	groups    map[prego.GroupID]Group
	addresses map[prego.EnvID]Address
	onServer  map[prego.ServerID]map[prego.TenantID]bool
	left      map[prego.TenantID]bool // sites with visitors in another network
}

// NewModel makes an empty model.
func NewModel(s Settings) *Model {
	return &Model{
		settings: s, servers: map[prego.ServerID]Server{}, sites: map[prego.TenantID]Site{},
		groups: map[prego.GroupID]Group{}, addresses: map[prego.EnvID]Address{},
		onServer: map[prego.ServerID]map[prego.TenantID]bool{}, left: map[prego.TenantID]bool{},
	}
}

// replace sets rows; an id without a row is gone.
func replace[K comparable, V any](rows map[K]V, ids []K, changed []V, id func(V) K) {
	for _, k := range ids {
		delete(rows, k)
	}
	for _, v := range changed {
		rows[id(v)] = v
	}
}

// SetSites replaces sites; a tenant without a row has none any more.
func (m *Model) SetSites(ids []prego.TenantID, rows []Site) {
	for _, id := range ids {
		if s, ok := m.sites[id]; ok {
			delete(m.onServer[s.ServerID], id)
			delete(m.sites, id)
			delete(m.left, id)
		}
	}
	for _, s := range rows {
		if before, ok := m.sites[s.TenantID]; ok {
			delete(m.onServer[before.ServerID], s.TenantID)
		}
		m.sites[s.TenantID] = s
		if delete(m.left, s.TenantID); s.LeftNetwork != "" {
			m.left[s.TenantID] = true
		}
		if m.onServer[s.ServerID] == nil {
			m.onServer[s.ServerID] = map[prego.TenantID]bool{}
		}
		m.onServer[s.ServerID][s.TenantID] = true
	}
}

// Names returns the names that a document serves, sorted, each once.
func Names(d wire.EdgeDocument) []string {
	out := make([]string, 0, len(d.Hosts))
	for _, h := range d.Hosts {
		out = append(out, h.Name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Document returns what the edges of a network serve, without certificates, challenges and version.
func (m *Model) Document(network string) wire.EdgeDocument {
	b := builder{
		model: m, network: network, regions: map[prego.Region]bool{},
		hosts: map[hostKey]wire.EdgeHost{}, tcp: map[tcpKey]wire.EdgeTCP{},
	}
	for _, s := range m.servers {
		if s.Network == network {
			b.regions[s.Region] = true
		}
	}
	for id, tenants := range m.onServer {
		s, ok := m.servers[id]
		if !ok || s.Network != network {
			continue
		}
		for t := range tenants {
			b.site(m.sites[t], s)
		}
	}
	passing := map[string]bool{}
	for id := range m.left {
		t := m.sites[id]
		s := m.servers[t.ServerID]
		switch {
		case s.Network == t.LeftNetwork:
		case t.LeftNetwork == network:
			b.left(t, s)
		case s.Network == network:
			for _, address := range m.edges(t.LeftNetwork) {
				passing[address] = true
			}
		}
	}
	for _, g := range m.groups {
		b.group(g)
	}
	d := wire.EdgeDocument{
		Passing: slices.Sorted(maps.Keys(passing)),
		Hosts:   slices.Collect(maps.Values(b.hosts)), TCP: slices.Collect(maps.Values(b.tcp)),
	}
	slices.SortFunc(d.Hosts, func(a, b wire.EdgeHost) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port))
	})
	slices.SortFunc(d.TCP, func(a, b wire.EdgeTCP) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port))
	})
	for _, a := range m.addresses {
		if m.servers[a.ServerID].Network == network {
			d.Addresses = append(d.Addresses, wire.EdgeAddress{Address: a.Address, ServerID: string(a.ServerID)})
		}
	}
	slices.SortFunc(d.Addresses, func(a, b wire.EdgeAddress) int { return cmp.Compare(a.Address, b.Address) })
	return d
}

type hostKey struct {
	name, address string
	port          int
}

type tcpKey struct {
	address string
	port    int
}

type builder struct {
	model   *Model
	network string
	regions map[prego.Region]bool // that have servers in the network, and whose groups' names may lead to its edges
	hosts   map[hostKey]wire.EdgeHost
	tcp     map[tcpKey]wire.EdgeTCP
	via     []wire.EdgeUpstream // of the site that is being added
}

// add keeps the first of two hosts with the same name, ordered by tenant and route, so that the order of rows does
// not matter.
func (b *builder) add(h wire.EdgeHost) {
	k := hostKey{h.Name, h.Address, h.Port}
	if before, ok := b.hosts[k]; ok && before.Tenant+before.Route < h.Tenant+h.Route {
		return
	}
	b.hosts[k] = h
}

func (b *builder) site(t Site, s Server) {
	h := wire.EdgeHost{
		Tenant: string(t.TenantID), Site: t.Name, TLS: true, Via: b.via, State: wire.EdgeServing,
		MaxBody: b.model.settings.MaxBody, HSTS: b.model.settings.HSTS,
	}
	if t.Maintenance {
		h.State = wire.EdgeMaintenance
	}
	if s.Address != "" {
		h.Upstreams = []wire.EdgeUpstream{{Address: at(s.Address, server.PortFrontend)}}
	}
	for _, name := range append([]string{t.Name}, t.Names...) {
		h.Name = strings.ToLower(name)
		b.add(h)
	}
}

// left adds a site that has moved to another network. Until it is open, its previous address is served; then visitors
// are passed on to the edges of the other network.
func (b *builder) left(t Site, now Server) {
	there := Server{Address: t.LeftAddress}
	if t.Open {
		there.Address = ""
		for _, address := range b.model.edges(now.Network) {
			b.via = append(b.via, wire.EdgeUpstream{Address: at(address, portHTTPS)})
		}
	}
	b.site(t, there)
	b.via = nil
}

// edges are the public addresses of a network's edges.
func (m *Model) edges(network string) (out []string) {
	for _, s := range m.servers {
		if s.Public != "" && s.Network == network {
			out = append(out, s.Public)
		}
	}
	slices.Sort(out)
	return out
}

func (b *builder) group(g Group) {
	address, own := b.model.addresses[g.EnvID]
	for _, r := range g.Routes {
		listen := ""
		switch {
		case r.Listener == workload.ListenerEnvV4 && !own:
			continue // it has no address now
		case r.Listener == workload.ListenerEnvV4:
			if b.model.servers[address.ServerID].Network != b.network {
				continue
			}
			listen = address.Address
		case r.Protocol == workload.RouteTCP && (r.ListenPort == portHTTP || r.ListenPort == portHTTPS):
			continue // reserved on the shared address
		}
		upstreams := b.upstreams(g, r.TargetPort)
		if listen == "" && !b.regions[g.Region] {
			continue
		}
		if r.Protocol == workload.RouteTCP {
			b.forward(wire.EdgeTCP{Route: string(r.RouteID), Address: listen, Port: r.ListenPort, Upstreams: upstreams})
			continue
		}
		h := wire.EdgeHost{
			Name: r.Hostname, Route: string(r.RouteID), Address: listen, Port: r.ListenPort,
			TLS: r.ListenPort != portHTTP, State: wire.EdgeServing,
			Upstreams: upstreams, UpstreamTLS: r.Protocol == workload.RouteHTTPS,
		}
		if r.ListenPort == portHTTPS && !slices.ContainsFunc(g.Routes, func(o Route) bool {
			return o.Hostname == r.Hostname && o.Listener == r.Listener && o.ListenPort == portHTTP
		}) {
			h.Port = 0 // port 80 is free: it redirects here
		}
		b.add(h)
	}
}

// The ports that edges share.
const (
	portHTTP  = 80
	portHTTPS = 443
)

func (b *builder) forward(t wire.EdgeTCP) {
	k := tcpKey{t.Address, t.Port}
	if before, ok := b.tcp[k]; ok && before.Route < t.Route {
		return
	}
	b.tcp[k] = t
}

// upstreams are the addresses of a group's instances in the network, for a port of their containers.
func (b *builder) upstreams(g Group, port int) (out []wire.EdgeUpstream) {
	for _, i := range g.Instances {
		s, ok := b.model.servers[i.ServerID]
		if !ok || s.Network != b.network || s.Address == "" {
			continue
		}
		for _, p := range i.Ports {
			if p.ContainerPort == port {
				out = append(out, wire.EdgeUpstream{Address: at(s.Address, p.HostPort)})
			}
		}
	}
	slices.SortFunc(out, func(a, b wire.EdgeUpstream) int { return cmp.Compare(a.Address, b.Address) })
	return out
}

func at(address string, port int) string {
	if a, err := netip.ParseAddr(address); err == nil {
		return netip.AddrPortFrom(a, uint16(port)).String() //nolint:gosec // ports were checked before
	}
	return address + ":" + strconv.Itoa(port)
}
