//go:build machines

package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/acmetest"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/server"
)

// openSite is a tenant's, with all the machines that it needs, another tenant beside it, and a
// node, which is in the same network and has nothing to do with either.
type openSite struct {
	*cell
	authority                          *acmetest.Pebble
	store                              *s3test.Server
	edge, app, app2, shard, pool, node *machine
	own, other                         api.Tenant
	from                               string // an address outside
	visitor                            *http.Client
}

// in is the site as another test sees it.
func (s *openSite) in(t *testing.T) *openSite {
	d := *s
	d.cell = s.cell.in(t)
	for _, m := range []**machine{&d.edge, &d.app, &d.app2, &d.shard, &d.pool, &d.node} {
		*m = &machine{cell: d.cell, server: (*m).server}
	}
	return &d
}

// opens requests both tenants' sites by name, from outside.
func (s *openSite) opens() {
	t := s.t.(*testing.T)
	t.Helper()
	for _, tn := range []api.Tenant{s.own, s.other} {
		took := shows(t, s.visitor, deref(tn.SiteUrl), deref(tn.Site), 2*time.Minute)
		t.Logf("%s  200  after %s", deref(tn.SiteUrl), took)
	}
	resp, err := s.visitor.Get("http://" + deref(s.own.Site) + "/path")
	require.NoError(t, err)
	_ = resp.Body.Close()
	require.Equal(t, http.StatusPermanentRedirect, resp.StatusCode)
	resp, err = s.visitor.Get("https://unknown.sites.machines.test/") // the certificate is for all of them
	require.NoError(t, err)
	_ = resp.Body.Close()
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
}

// private is a machine's address in the network of the environment.
func (s *openSite) private(m *machine) string {
	address := s.privateAddress(m.server)
	require.NotEmpty(s.t, address, "%s is in no network", m.server)
	return address
}

// matrix lists who reaches what. Refusals come from the path between, not from a missing target: another client reaches
// the same.
func (s *openSite) matrix() {
	t := s.t.(*testing.T)
	t.Helper()
	world, control := dialAs(s.from), dialAs(s.sim.Network().Gateway)
	edge, app, shard, pool, node := s.private(s.edge), s.private(s.app), s.private(s.shard), s.private(s.pool), s.private(s.node)
	const agent, edgeAgent, docker = 443, server.EdgeAgentPort, 2376
	var rows []path
	add := func(from string, dial dialFunc, to, address string, port int, open bool) {
		rows = append(rows, connects(from, dial, to, address, port, open))
	}
	for _, port := range []int{80, 443} {
		add("outside", world, "edge", s.edge.host().Addr, port, true)
	}
	add("outside", world, "edge's agent", s.edge.host().Addr, edgeAgent, false)
	add("control plane", control, "edge's agent", s.edge.host().Addr, edgeAgent, true)
	for _, m := range []*machine{s.app, s.shard, s.pool} {
		add("outside", world, m.server+"'s agent", m.host().Addr, agent, false)
		add("control plane", control, m.server+"'s agent", m.host().Addr, agent, true)
	}
	for _, m := range []*machine{s.edge, s.app, s.shard, s.pool} {
		add("outside", world, m.server+"'s Docker", m.host().Addr, docker, false)
		add("control plane", control, m.server+"'s Docker", m.host().Addr, docker, true)
		add("node", s.node.dial, m.server+"'s Docker", s.private(m), docker, false)
	}
	add("outside", world, "app", s.app.host().Addr, server.PortFrontend, false)
	add("outside", world, "shard", s.shard.host().Addr, server.PortMariaDB, false)
	add("outside", world, "pool", s.pool.host().Addr, server.PortRedis, false)
	add("control plane", control, "pool", s.pool.host().Addr, server.PortRedis, false)
	add("pool", s.pool.dial, "pool, inside", pool, server.PortRedis, true)
	require.Equal(t, pool, s.text(`SELECT COALESCE(host(agent_private_address), '') FROM servers WHERE server_id = $1`, s.id("redis-pool")), "its agent also has the address")

	add("edge", s.edge.dial, "app", app, server.PortFrontend, true)
	add("node", s.node.dial, "app", app, server.PortFrontend, false)
	add("shard", s.shard.dial, "app", app, server.PortFrontend, false)
	add("app", s.app.dial, "shard", shard, server.PortMariaDB, true)
	add("node", s.node.dial, "shard", shard, server.PortMariaDB, false)
	add("edge", s.edge.dial, "shard", shard, server.PortMariaDB, false)
	add("pool", s.pool.dial, "shard", shard, server.PortMariaDB, false)
	add("app", s.app.dial, "pool", pool, server.PortRedis, true)
	add("node", s.node.dial, "pool", pool, server.PortRedis, false)
	add("edge", s.edge.dial, "pool", pool, server.PortRedis, false)
	add("node", s.node.dial, "edge, inside", edge, 443, true)
	add("node", s.node.dial, "edge's agent, inside", edge, edgeAgent, false)
	reach(t, "firewalls", rows)

	own, other := s.app.credentialsOf(deref(s.own.Site)), s.app.credentialsOf(deref(s.other.Site))
	require.Equal(t, shard, own.Host, "its database is on the shard")
	require.NotEqual(t, own.Database, other.Database)
	require.Contains(t, own.Cache, pool+":6379", "its cache is in the pool")
	with := s.app.clientTLS()
	without := with.Clone()
	without.Certificates = nil
	another := with.Clone()
	another.Certificates = []tls.Certificate{s.clientOf("app-of-another")}
	wrong := own
	wrong.Password = other.Password

	closed := []path{{from: "node, A's user, A's certificate", to: "A's database", try: own.reads(s.node.dial, own.Database, with), why: "i/o timeout"}}
	rows = []path{
		{from: "app, A's user", to: "A's database", open: true, try: own.reads(s.app.dial, own.Database, with)},
		{from: "app, A's user", to: "B's database", try: own.reads(s.app.dial, other.Database, with), why: "Access denied"},
		{from: "app, B's user", to: "B's database", open: true, try: other.reads(s.app.dial, other.Database, with)},
		{from: "app, A's user, B's password", to: "A's database", try: wrong.reads(s.app.dial, own.Database, with), why: "Access denied"},
		{from: "app, A's user, no certificate", to: "A's database", try: own.reads(s.app.dial, own.Database, without), why: "Access denied"},
		{from: "app, A's user, no TLS", to: "A's database", try: own.reads(s.app.dial, own.Database, nil)},
		{from: "app, A's user, another server's certificate", to: "A's database", try: own.reads(s.app.dial, own.Database, another), why: "Access denied"},
		{from: "app, A's user", to: "A's cache", open: true, try: own.pings(s.app.dial, with)},
		{from: "app, A's user, no certificate", to: "A's cache", try: own.pings(s.app.dial, without)},
	}
	reach(t, "the app server", append(rows, closed...))

	closeShard, closePool := s.shard.opened(node), s.pool.opened(node)
	reach(t, "the node, with the firewalls of shard and pool opened by hand", []path{
		connects("node", s.node.dial, "shard", shard, server.PortMariaDB, true),
		connects("node", s.node.dial, "pool", pool, server.PortRedis, true),
		{from: "node, A's user, A's certificate (stolen)", to: "A's database", try: own.reads(s.node.dial, own.Database, with), why: "Access denied"},
		{from: "node, A's user, no TLS", to: "A's database", try: own.reads(s.node.dial, own.Database, nil)},
		{from: "node, A's user, no certificate", to: "A's database", try: own.reads(s.node.dial, own.Database, without), why: "Access denied"},
		{from: "node, A's user, another server's certificate", to: "A's database", try: own.reads(s.node.dial, own.Database, another), why: "Access denied"},
		{from: "node, A's user, no certificate", to: "A's cache", try: own.pings(s.node.dial, without)},
	})
	closeShard()
	closePool()
	reach(t, "and closed again", append(closed, connects("node", s.node.dial, "pool", pool, server.PortRedis, false), connects("app", s.app.dial, "shard", shard, server.PortMariaDB, true)))
}

// alone takes the control plane away, and then reboots the edge and the pool: they answer by
// themselves.
func (s *openSite) alone() {
	t := s.t.(*testing.T)
	t.Helper()
	processes := []string{"worker", "api", "agentgw"}
	for _, p := range processes {
		s.kill(p)
	}
	shows(t, s.visitor, deref(s.own.SiteUrl), deref(s.own.Site), 10*time.Second)
	for _, m := range []*machine{s.edge, s.pool} {
		m.run("touch /run/before")
		m.power("reboot")
	}
	eventually(t, func() bool { _, err := s.edge.try("! test -e /run/before"); return err == nil }, 2*time.Minute, 200*time.Millisecond, "the edge starts again")
	took := shows(t, s.visitor, deref(s.own.SiteUrl), deref(s.own.Site), 2*time.Minute)
	t.Logf("without a control plane: %s answers again %s after the edge's kernel has", deref(s.own.SiteUrl), took)
	rules := s.edge.run("nft list chain inet prego input")
	require.True(t, strings.Contains(rules, "80") && strings.Contains(rules, "443"), "%s", rules)
	reach(t, "the edge after its reboot, without a control plane", []path{
		connects("outside", dialAs(s.from), "edge", s.edge.host().Addr, 443, true),
		connects("outside", dialAs(s.from), "edge's agent", s.edge.host().Addr, server.EdgeAgentPort, false),
		connects("outside", dialAs(s.from), "edge's Docker", s.edge.host().Addr, 2376, false),
	})
	client := &http.Client{Transport: &http.Transport{DialContext: dialAs(s.from), DisableKeepAlives: true}, Timeout: 10 * time.Second}
	resp, err := client.Get("http://" + net.JoinHostPort(s.edge.host().Addr, "80") + "/")
	require.NoError(t, err)
	_ = resp.Body.Close()
	require.Equal(t, http.StatusNotFound, resp.StatusCode, "the name is unknown")
	require.Equal(t, "Caddy", resp.Header.Get("Server"))
	s.edge.run("test -S /run/prego-edge/haproxy.sock")
	s.poolComesBack()
	for _, p := range processes {
		s.start(p)
	}
	s.edge.awaitHeartbeat()
	s.pool.awaitHeartbeat()
}

// poolComesBack has the Redis of a pool that was rebooted at its private address again, although Docker may
// be faster than the network.
func (s *openSite) poolComesBack() {
	s.t.Helper()
	m, private := s.pool, s.private(s.pool)
	listening := fmt.Sprintf("ss --no-header --listening --numeric --tcp 'sport = %d' | grep --quiet --fixed-strings '%s:'", server.PortRedis, private)
	m.awaitRun("! test -e /run/before && " + listening)
	// The worst case, as long as it takes: the address comes after the container.
	m.awaitRun("ip -4 -oneline address show dev enp7s0 | grep --quiet " + private)
	m.run(fmt.Sprintf(`ip address del %s/32 dev enp7s0
id=$(curl --silent --unix-socket /run/docker.sock http://docker/containers/json | grep -o '"Id":"[0-9a-f]*"' | cut -d'"' -f4)
curl --silent --show-error --fail-with-body --unix-socket /run/docker.sock -X POST "http://docker/containers/$id/restart?t=3"
ip address add %s/32 dev enp7s0`, private, private))
	m.awaitRun(listening)
	eventually(s.t, func() bool {
		conn, err := m.dial(s.t.Context(), "tcp", fmt.Sprintf("%s:%d", private, server.PortRedis))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 20*time.Second, 100*time.Millisecond)
}

// forgotten has resolvers forget edges immediately, instead of after the minute that an edge waits between its leaving
// the DNS and its end.
func (s *openSite) forgotten() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_, _ = s.cell.pool.Exec(ctx, `UPDATE dns_departures SET until = now()`)
			time.Sleep(500 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-done }
}
