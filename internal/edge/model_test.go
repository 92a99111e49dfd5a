package edge

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/workload"
)

func modelOf(c Change) *Model {
	m := NewModel(Settings{MaxBody: 100, HSTS: 60})
	c.Full = true
	m.Apply(c)
	return m
}

var servers = []Server{
	{ServerID: "app-1", Region: "eu", Network: "n1", Address: "10.0.0.1"},
	{ServerID: "app-2", Region: "eu", Network: "n1", Address: "10.0.0.2"},
	{ServerID: "app-3", Region: "eu", Network: "n2", Address: "10.1.0.3"},
	{ServerID: "new", Region: "eu", Network: "n1"},
	{ServerID: "far", Region: "us", Network: "n3", Address: "10.2.0.4"},
}

func TestSites(t *testing.T) {
	t.Parallel()
	m := modelOf(Change{Servers: servers, Sites: []Site{
		{TenantID: "t2", ServerID: "app-2", Name: "two.example.com", Maintenance: true},
		{TenantID: "t1", ServerID: "app-1", Name: "One.example.com", Names: []string{"www.one.org"}},
		{TenantID: "t3", ServerID: "app-3", Name: "three.example.com"},
		{TenantID: "t4", ServerID: "new", Name: "four.example.com"},
	}})
	host := wire.EdgeHost{TLS: true, State: wire.EdgeServing, MaxBody: 100, HSTS: 60}
	with := func(name, tenant, site, upstream string) wire.EdgeHost {
		h := host
		h.Name, h.Tenant, h.Site = name, tenant, site
		if upstream != "" {
			h.Upstreams = []wire.EdgeUpstream{{Address: upstream}}
		}
		return h
	}
	two := with("two.example.com", "t2", "two.example.com", "10.0.0.2:8080")
	two.State = wire.EdgeMaintenance
	require.Equal(t, []wire.EdgeHost{
		with("four.example.com", "t4", "four.example.com", ""),
		with("one.example.com", "t1", "One.example.com", "10.0.0.1:8080"),
		two,
		with("www.one.org", "t1", "One.example.com", "10.0.0.1:8080"),
	}, m.Document("n1").Hosts)
	require.Equal(t, []string{"three.example.com"}, Names(m.Document("n2")))

	// A site moves, and one goes.
	m.Apply(Change{TenantIDs: []prego.TenantID{"t1", "t2"}, Sites: []Site{{TenantID: "t1", ServerID: "app-3", Name: "one.example.com"}}})
	require.Equal(t, []string{"four.example.com"}, Names(m.Document("n1")))
	require.Equal(t, []string{"one.example.com", "three.example.com"}, Names(m.Document("n2")))
	// A server gets its address.
	m.Apply(Change{ServerIDs: []prego.ServerID{"new"}, Servers: []Server{{ServerID: "new", Region: "eu", Network: "n1", Address: "10.0.0.9"}}})
	require.Equal(t, "10.0.0.9:8080", m.Document("n1").Hosts[0].Upstreams[0].Address)
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	ports := []workload.PortBinding{{ContainerPort: 80, HostPort: 20001}, {ContainerPort: 90, HostPort: 20002}}
	route := func(id, name string, listener workload.ListenerScope, port int, protocol workload.RouteProtocol) Route {
		return Route{RouteID: prego.RouteID(id), Hostname: name, Listener: listener, ListenPort: port, Protocol: protocol, TargetPort: 80}
	}
	m := modelOf(Change{
		Servers: servers, Addresses: []Address{{EnvID: "env-1", Address: "203.0.113.7", ServerID: "app-1"}},
		Groups: []Group{{
			GroupID: "g", EnvID: "env-1", Region: "eu",
			Routes: []Route{
				route("r1", "a.example.com", workload.ListenerSharedV6, 443, workload.RouteHTTP),
				route("r2", "b.example.com", workload.ListenerSharedV6, 443, workload.RouteHTTPS), route("r3", "b.example.com", workload.ListenerSharedV6, 80, workload.RouteHTTP),
				route("r4", "c.example.com", workload.ListenerSharedV6, 8443, workload.RouteHTTP),
				route("r5", "d.example.com", workload.ListenerEnvV4, 80, workload.RouteHTTP),
				route("r6", "", workload.ListenerEnvV4, 5432, workload.RouteTCP),
				route("r7", "", workload.ListenerSharedV6, 5433, workload.RouteTCP),
				route("r8", "", workload.ListenerSharedV6, 443, workload.RouteTCP), // reserved on the shared address
			},
			Instances: []Instance{{ServerID: "app-2", Ports: ports}, {ServerID: "app-1", Ports: ports}, {ServerID: "app-3", Ports: ports}, {ServerID: "gone", Ports: ports}, {ServerID: "new", Ports: ports}},
		}, {
			GroupID: "h", EnvID: "env-2", Region: "eu", Routes: []Route{route("r9", "e.example.com", workload.ListenerEnvV4, 80, workload.RouteHTTP)}, // has no address
		}},
	})
	both := []wire.EdgeUpstream{{Address: "10.0.0.1:20001"}, {Address: "10.0.0.2:20001"}}
	d := m.Document("n1")
	require.Equal(t, []wire.EdgeHost{
		{Name: "a.example.com", Route: "r1", TLS: true, State: wire.EdgeServing, Upstreams: both}, // port 80 leads to it
		{Name: "b.example.com", Route: "r3", Port: 80, State: wire.EdgeServing, Upstreams: both},
		{Name: "b.example.com", Route: "r2", Port: 443, TLS: true, State: wire.EdgeServing, Upstreams: both, UpstreamTLS: true},
		{Name: "c.example.com", Route: "r4", Port: 8443, TLS: true, State: wire.EdgeServing, Upstreams: both},
		{Name: "d.example.com", Route: "r5", Address: "203.0.113.7", Port: 80, State: wire.EdgeServing, Upstreams: both},
	}, d.Hosts)
	require.Equal(t, []wire.EdgeTCP{
		{Route: "r7", Port: 5433, Upstreams: both}, {Route: "r6", Address: "203.0.113.7", Port: 5432, Upstreams: both},
	}, d.TCP)
	require.Equal(t, []wire.EdgeAddress{{Address: "203.0.113.7", ServerID: "app-1"}}, d.Addresses)
	// The region's other network has its own instance and not the address; another region has nothing.
	require.Len(t, m.Document("n2").Hosts, 4)
	require.Equal(t, "10.1.0.3:20001", m.Document("n2").Hosts[0].Upstreams[0].Address)
	require.Empty(t, m.Document("n3").Hosts)
}

// TestTheOrderOfRowsSaysNothing: the same rows give the same bytes, or every look would make
// another version.
func TestTheOrderOfRowsSaysNothing(t *testing.T) {
	t.Parallel()
	var c, reversed Change
	c.Servers = servers
	for i := range 300 {
		c.Sites = append(c.Sites, Site{TenantID: prego.TenantID(fmt.Sprint("t", i)), ServerID: servers[i%3].ServerID, Name: fmt.Sprintf("s%d.example.com", i%290)})
	}
	for i := range c.Sites {
		reversed.Sites = append(reversed.Sites, c.Sites[len(c.Sites)-1-i])
	}
	reversed.Servers = servers
	one, err := json.Marshal(modelOf(c).Document("n1"))
	require.NoError(t, err)
	for range 5 {
		two, err := json.Marshal(modelOf(reversed).Document("n1"))
		require.NoError(t, err)
		require.Equal(t, string(one), string(two))
	}
}

// BenchmarkDocument makes a network's document of 10,000 sites.
func BenchmarkDocument(b *testing.B) {
	c := Change{Servers: servers}
	for i := range 10_000 {
		c.Sites = append(c.Sites, Site{TenantID: prego.TenantID(fmt.Sprint("t", i)), ServerID: servers[i%2].ServerID, Name: fmt.Sprintf("s%d.example.com", i)})
	}
	m := modelOf(c)
	for b.Loop() {
		if len(m.Document("n1").Hosts) != 10_000 {
			b.Fatal("hosts are missing")
		}
	}
}

// TestASiteOfAnotherNetwork: the edges before send its visitors where it was until it is open where it is, and
// pass them on then; the new ones know whom to believe.
func TestASiteOfAnotherNetwork(t *testing.T) {
	t.Parallel()
	all := append([]Server{
		{ServerID: "edge-1", Region: "eu", Network: "n1", Address: "10.0.0.5", Public: "203.0.113.1"},
		{ServerID: "edge-2", Region: "us", Network: "n3", Address: "10.2.0.6", Public: "203.0.113.3"},
		{ServerID: "edge-3", Region: "us", Network: "n3", Address: "10.2.0.5", Public: "203.0.113.2"},
	}, servers...)
	site := Site{TenantID: "t1", ServerID: "far", Name: "one.example.com", Names: []string{"www.one.org"}, LeftNetwork: "n1", LeftAddress: "10.0.0.1"}
	m := modelOf(Change{Servers: all, Sites: []Site{site}})
	hosts := func(network string) (out []string) {
		for _, h := range m.Document(network).Hosts {
			require.Equal(t, []string{"t1", "one.example.com"}, []string{h.Tenant, h.Site})
			out = append(out, fmt.Sprintf("%s %v %v", h.Name, h.Upstreams, h.Via))
		}
		return out
	}
	there := []string{"one.example.com [{10.2.0.4:8080 0}] []", "www.one.org [{10.2.0.4:8080 0}] []"}
	require.Equal(t, []string{"one.example.com [{10.0.0.1:8080 0}] []", "www.one.org [{10.0.0.1:8080 0}] []"}, hosts("n1"))
	require.Equal(t, there, hosts("n3"))
	require.Equal(t, []string{"203.0.113.1"}, m.Document("n3").Passing)
	require.Empty(t, m.Document("n1").Passing)
	require.Empty(t, hosts("n2"))

	site.Open = true
	m.Apply(Change{TenantIDs: []prego.TenantID{"t1"}, Sites: []Site{site}})
	via := " [] [{203.0.113.2:443 0} {203.0.113.3:443 0}]"
	require.Equal(t, []string{"one.example.com" + via, "www.one.org" + via}, hosts("n1"))
	require.Equal(t, there, hosts("n3"))

	// Its move has ended; or the tenant has no site any more.
	ended := site
	ended.LeftNetwork = ""
	m.Apply(Change{TenantIDs: []prego.TenantID{"t1"}, Sites: []Site{ended}})
	require.Empty(t, hosts("n1"))
	require.Equal(t, there, hosts("n3"))
	require.Empty(t, m.Document("n3").Passing)
	m.Apply(Change{TenantIDs: []prego.TenantID{"t1"}, Sites: []Site{site}})
	m.Apply(Change{TenantIDs: []prego.TenantID{"t1"}})
	require.Empty(t, hosts("n1"))
}
