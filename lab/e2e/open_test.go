package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/websocket"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/acmetest"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/org"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// public is a cell with all that the public needs: zones in the DNS, an authority that
// looks names up there, and the programs of edges.
type public struct {
	*cell
	authority *acmetest.Pebble
	dialer    *net.Dialer
}

// Zones of the cloud's DNS: the installation's, and a customer's.
const ourZone, customersZone = "example.test", "customer.org"

// shop is the customer's name of a route.
const shop = "shop." + customersZone

func newPublic(t *testing.T, more map[string]string) *public {
	t.Helper()
	return newPublicOn(t, more, "")
}

// newPublicOn is a public cell with a separate database.
func newPublicOn(t *testing.T, more map[string]string, url string) *public {
	t.Helper()
	need.Root(t, "edges listen on ports 80 and 443")
	p := &public{}
	vars := maps.Clone(more)
	vars["PREGO_SITE_DOMAIN"], vars["PREGO_DNS_ZONE"] = "sites."+ourZone, ourZone
	p.cell = newCell(t, options{
		processes: true, url: url, vars: vars,
		sim: func(cfg *sim.Config) {
			cfg.Zones = []string{ourZone, customersZone}
			cfg.Programs = map[string]string{"caddy": need.Program(t, "caddy"), "haproxy": need.Program(t, "haproxy")}
		},
		beforeStart: func(s *sim.Sim) error {
			p.authority = acmetest.Start(t, acmetest.Options{DNS: s.DNS(), HTTPPort: 80})
			maps.Copy(vars, map[string]string{"PREGO_ACME_DIRECTORY": p.authority.Directory, "PREGO_ACME_CA_FILE": p.authority.CAFile})
			return nil
		},
	})
	p.dialer = &net.Dialer{Timeout: 5 * time.Second, Resolver: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", p.sim.DNS())
	}}}
	return p
}

func (p *public) tls() *tls.Config {
	return &tls.Config{RootCAs: p.authority.Trust(), MinVersion: tls.VersionTLS12}
}

// visitor is an outside client: names are looked up in the DNS, and chains lead to the authority's root.
func (p *public) visitor() *http.Client {
	transport := &http.Transport{DialContext: p.dialer.DialContext, TLSClientConfig: p.tls(), ForceAttemptHTTP2: true}
	p.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// visit requests a URL on a new connection.
func visit(client *http.Client, url string) (status int, body string, err error) {
	client.CloseIdleConnections()
	resp, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// opens waits until a URL shows a page.
func (p *public) opens(client *http.Client, url, page string) {
	p.t.Helper()
	var last string
	eventually(p.t, func() bool {
		status, body, err := visit(client, url)
		last = fmt.Sprintf("%d %v %.2000s", status, err, body)
		return status == http.StatusOK && strings.Contains(body, page)
	}, patience, 50*time.Millisecond, "%s: %s", url, later(func() string { return last }))
}

// later is text that is made when it is printed.
type later func() string

func (l later) String() string { return l() }

// shows checks that a URL shows a page immediately.
func (p *public) shows(client *http.Client, url, page, when string) {
	p.t.Helper()
	status, body, err := visit(client, url)
	require.NoError(p.t, err, when)
	require.Equal(p.t, http.StatusOK, status, when)
	require.Contains(p.t, body, page, when)
}

// login is the cookie of a session of the site's administrator.
func (p *public) login(client *http.Client, url, tenantID string) (cookie string) {
	p.t.Helper()
	var shown api.AdminPassword
	p.post("/v1/tenants/"+tenantID+"/admin-password", nil, http.StatusOK, &shown)
	resp, err := client.PostForm(url+"/api/method/login", map[string][]string{"usr": {shown.User}, "pwd": {shown.Password}})
	require.NoError(p.t, err)
	defer func() { _ = resp.Body.Close() }()
	require.Equal(p.t, http.StatusOK, resp.StatusCode)
	cookie, _, _ = strings.Cut(resp.Header.Get("Set-Cookie"), ";")
	return cookie
}

// events opens the connection on which a site reports to a browser what happens. Like a browser it dials again when a
// reload of the edge cuts the handshake: Go's server closes a connection whose request arrives after its shutdown
// began (docs/adr/0030).
func (p *public) events(host, site, cookie string) *websocket.Conn {
	p.t.Helper()
	ws, err := p.dialEvents(host, cookie)
	for range 3 {
		if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			break
		}
		ws, err = p.dialEvents(host, cookie)
	}
	require.NoError(p.t, err)
	require.Contains(p.t, heard(p.t, ws), `0{"sid":`)
	require.NoError(p.t, websocket.Message.Send(ws, "40/"+site+","))
	for {
		if said := heard(p.t, ws); said != "2" { // which asks whether we are there
			require.Contains(p.t, said, "40/"+site+",{")
			return ws
		}
	}
}

func (p *public) dialEvents(host, cookie string) (*websocket.Conn, error) {
	p.t.Helper()
	raw, err := p.dialer.DialContext(p.t.Context(), "tcp", host+":443")
	require.NoError(p.t, err)
	settings := p.tls()
	settings.ServerName = host
	conn := tls.Client(raw, settings)
	p.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(p.t, conn.SetDeadline(time.Now().Add(2*patience)))
	config, err := websocket.NewConfig("wss://"+host+"/socket.io/?EIO=4&transport=websocket", "https://"+host)
	require.NoError(p.t, err)
	config.Header.Set("Cookie", cookie)
	return websocket.NewClient(config, conn)
}

func heard(t testing.TB, ws *websocket.Conn) (packet string) {
	t.Helper()
	require.NoError(t, websocket.Message.Receive(ws, &packet))
	return packet
}

// upload sends a file to a site as its page does.
func (p *public) upload(client *http.Client, url, cookie string, size int64) (status int, body string) {
	p.t.Helper()
	const head, tail = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"large.bin\"\r\nContent-Type: application/octet-stream\r\n\r\n", "\r\n--x--\r\n"
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, url+"/api/method/upload_file", io.MultiReader(strings.NewReader(head), io.LimitReader(zeros{}, size), strings.NewReader(tail)))
	require.NoError(p.t, err)
	req.ContentLength = int64(len(head)) + size + int64(len(tail))
	req.Header.Set("Content-Type", "multipart/form-data; boundary=x")
	req.Header.Set("Cookie", cookie)
	resp, err := client.Do(req)
	require.NoError(p.t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(p.t, err)
	return resp.StatusCode, string(b)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// programOf finds the process of a program that a host runs: its arguments name files of the
// host by the short name of its root.
func (p *public) programOf(serverID, name string) int {
	p.t.Helper()
	if all := p.processesOf(serverID, name); len(all) > 0 {
		return all[0]
	}
	return 0
}

// processesOf are the processes of a program: HAProxy is more than one.
func (p *public) processesOf(serverID, name string) (pids []int) {
	p.t.Helper()
	root := p.rootOf(serverID)
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(p.t, err)
	for _, file := range all {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		words := bytes.Split(b, []byte{0})
		if filepath.Base(string(words[0])) != name {
			continue
		}
		for _, word := range words {
			dir, _, below := strings.Cut(string(word), wire.EdgeDir)
			if at, err := os.Readlink(dir); below && err == nil && at == root {
				pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
				require.NoError(p.t, err)
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

var peakMemory = regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB$`)

// peak is the most memory that a process has used, in bytes.
func peak(t testing.TB, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	found := peakMemory.FindSubmatch(b)
	require.NotNil(t, found)
	kb, err := strconv.Atoi(string(found[1]))
	require.NoError(t, err)
	return kb << 10
}

// record makes a record in the customer's zone, as the customer does; "" deletes it.
func (p *public) record(typ, name, value string) {
	p.t.Helper()
	hetzner := hcloud.NewClient(hcloud.WithEndpoint(p.sim.URL()), hcloud.WithToken(p.vars["HCLOUD_TOKEN"]))
	zone := &hcloud.Zone{Name: customersZone}
	name = strings.TrimSuffix(name, "."+customersZone)
	var err error
	if value == "" {
		_, _, err = hetzner.Zone.DeleteRRSet(p.t.Context(), &hcloud.ZoneRRSet{Zone: zone, Name: name, Type: hcloud.ZoneRRSetType(typ)})
	} else {
		if typ == "TXT" {
			value = strconv.Quote(value)
		} else {
			value += "."
		}
		_, _, err = hetzner.Zone.CreateRRSet(p.t.Context(), zone, hcloud.ZoneRRSetCreateOpts{Name: name, Type: hcloud.ZoneRRSetType(typ), Records: []hcloud.ZoneRRSetRecord{{Value: value}}})
	}
	require.NoError(p.t, err)
}

// TestASiteOpens: a tenant's site is requested by its name, through the DNS, an edge with a certificate of the
// authority, and the private network; it keeps answering while the control plane is away and when programs of the edge
// are killed. A customer's own name also leads there, until its TXT record goes away.
func TestASiteOpens(t *testing.T) {
	t.Parallel()
	crash := filepath.Join(t.TempDir(), "crash")
	vars := sharedVars()
	maps.Copy(vars, map[string]string{"PREGO_GROUP_RETRY": "2s", "PREGO_TEST_CRASH": crash})
	p := newPublic(t, vars)
	p.org("acme", "")
	for id, role := range map[string]prego.Role{"edge": prego.RoleEdge, "app": prego.RoleApp, "db": prego.RoleDBShard, "redis": prego.RoleRedisPool} {
		p.create(id, role, server.Spec{})
	}
	for _, id := range []string{"edge", "app", "db", "redis"} {
		p.awaitStatus(id, server.Active)
		require.NotEmpty(t, p.privateAddress(id), id)
	}
	var open []string
	for _, f := range p.cloud(http.MethodGet, "/firewalls?name=prego-"+p.env+"-edge", nil)["firewalls"].([]any) {
		firewall := f.(map[string]any)
		require.Len(t, firewall["applied_to"], 1)
		for _, r := range firewall["rules"].([]any) {
			rule := r.(map[string]any)
			require.Equal(t, []any{"0.0.0.0/0", "::/0"}, rule["source_ips"])
			open = append(open, rule["port"].(string))
		}
	}
	require.Equal(t, []string{"80", "443"}, open, "the provider lets everyone in at the edge, and there alone")
	id := p.tenant("alpha", prego.PlanStarter, nil)
	alpha := p.settledTenant(id, tenant.Active)
	const site = "alpha.sites." + ourZone
	const url, page = "https://" + site, "<h1>" + site + "</h1>"
	require.Equal(t, url, deref(alpha.SiteUrl))
	require.Equal(t, []string{p.id("app"), p.id("db"), p.id("redis")}, []string{alpha.Allocation.AppServerId, alpha.Allocation.DbShardId, alpha.Allocation.RedisPoolId})

	visitor := p.visitor()
	p.opens(visitor, url, page)
	status, _, err := visit(visitor, "http://"+site+"/path")
	require.NoError(t, err)
	require.Equal(t, http.StatusPermanentRedirect, status, "plain HTTP is sent to HTTPS")
	// Unknown names: a name of ours, under the wildcard's certificate, and a foreign one.
	status, body, err := visit(visitor, "https://unknown.sites."+ourZone)
	require.NoError(t, err)
	require.Equal(t, http.StatusNotFound, status)
	require.Contains(t, body, "There is no site with this name here")
	edge := p.resolves(site)
	require.Len(t, edge, 1)
	others := p.tls()
	others.ServerName = "www.others.org"
	_, err = (&tls.Dialer{Config: others}).DialContext(t.Context(), "tcp", net.JoinHostPort(edge[0], "443"))
	require.ErrorContains(t, err, "tls: ", "there is no certificate of theirs")

	// A browser's work: a session, events, a large file.
	cookie := p.login(visitor, url, id)
	events := p.events(site, site, cookie)
	status, body = p.upload(visitor, url, cookie, 26<<20)
	require.Equal(t, http.StatusExpectationFailed, status, "Frappe's own limit: %s", body)
	p.setSiteConfig(p.id("app"), site, "max_file_size", 1<<30)
	const large = 200 << 20
	status, body = p.upload(visitor, url, cookie, large)
	require.Equal(t, http.StatusOK, status, body)
	require.Contains(t, body, fmt.Sprintf(`"file_size": %d`, large))
	caddy := p.programOf(p.id("edge"), "caddy")
	require.NotZero(t, caddy)
	require.Less(t, peak(t, caddy), large/2, "bodies pass through the edge, and are not kept")

	// The customer's own name, whose order a worker leaves in the middle.
	var d api.Domain
	p.post("/v1/tenants/"+id+"/domains", map[string]any{"name": "www." + customersZone}, http.StatusCreated, &d)
	require.NoError(t, os.WriteFile(crash, []byte("certificate/accepted"), 0o600))
	for _, r := range d.Records {
		p.record(string(r.Type), r.Name, r.Value)
	}
	p.dies(crash, "certificate/accepted")
	require.Equal(t, 1, p.number(`SELECT count(*) FROM acme_orders WHERE ended_at IS NULL`))
	p.start("worker")
	const own = "https://www." + customersZone
	p.opens(visitor, own, page)
	require.Equal(t, 2, p.number(`SELECT count(*) FROM acme_orders`), "the order was taken up")
	p.events("www."+customersZone, site, cookie)

	p.deployUnderLoad()

	// The control plane is away, and then ever more of the edge.
	for _, name := range []string{"worker", "api", "agentgw"} {
		p.kill(name)
	}
	p.shows(visitor, url, page, "with the control plane away")
	require.Equal(t, "2", heard(t, events), "and the open one continues")
	host := p.hostOf(p.id("edge"))
	require.NoError(t, p.sim.HostAction(host, "kill-agent"))
	p.shows(visitor, url, page, "with its agent killed")
	require.NoError(t, syscall.Kill(caddy, syscall.SIGKILL))
	eventually(t, func() bool { pid := p.programOf(p.id("edge"), "caddy"); return pid != 0 && pid != caddy }, patience, 20*time.Millisecond)
	p.opens(visitor, url, page)
	p.opens(visitor, own, page)
	forwards := p.processesOf(p.id("edge"), "haproxy")
	require.NotEmpty(t, forwards)
	for _, pid := range forwards {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			require.ErrorIs(t, err, syscall.ESRCH, "a process that a reload replaced ends by itself")
		}
	}
	p.shows(visitor, url, page, "without what forwards to instances")
	p.opens(visitor, "https://"+shop, "")

	// It comes back, and all is as it should be: another tenant opens, and a name that its
	// owner took back does not.
	for _, name := range []string{"worker", "api", "agentgw"} {
		p.start(name)
	}
	beta := p.settledTenant(p.tenant("beta", prego.PlanStarter, nil), tenant.Active)
	p.opens(visitor, deref(beta.SiteUrl), "<h1>beta.sites."+ourZone+"</h1>")
	p.shows(visitor, own, page, "while its TXT record is there")
	p.record("TXT", d.Records[0].Name, "")
	eventually(t, func() bool {
		// A look, and a day without the record.
		_, err := p.pool.Exec(t.Context(), `UPDATE domains SET next_check = now(), missing_since = missing_since - interval '1 day' WHERE domain_id = $1`, d.DomainId)
		require.NoError(t, err)
		p.send(http.MethodGet, "/v1/domains/"+d.DomainId, nil, http.StatusOK, &d)
		return d.Status == org.DomainLost
	}, patience, 50*time.Millisecond, "%+v", &d)
	eventually(t, func() bool {
		_, _, err := visit(visitor, own)
		return err != nil && strings.Contains(err.Error(), "tls: ")
	}, patience, 50*time.Millisecond, "it has no certificate here any more")
	p.shows(visitor, url, page, "and the site's own name stays")
	p.counted()
}

// deployUnderLoad deploys a group of 10 behind a route while it is asked for pages without a
// pause, over connections that are kept and over new ones.
func (p *public) deployUnderLoad() {
	t := p.t
	t.Helper()
	env := p.workloads("acme", "enterprise")
	p.nodes("n", 1, 8192*mb)
	const replicas, name = 20, shop
	var g api.ProcessGroup
	p.post(string("/v1/envs/"+env+"/groups"), map[string]any{"name": "web", "spec": spec("web:1", 64), "replicas": replicas, "rollout_policy": map[string]any{"max_surge": 5}}, http.StatusCreated, &g)
	p.post(string("/v1/envs/"+env+"/routes"), map[string]any{
		"group_id": g.GroupId, "hostname": name, "listener": "shared_v6", "listen_port": 443, "protocol": "http", "target_port": 8080,
	}, http.StatusCreated, nil)
	var page api.DomainPage
	p.send(http.MethodGet, "/v1/domains?name="+name, nil, http.StatusOK, &page)
	require.Len(t, page.Domains, 1)
	for _, r := range page.Domains[0].Records {
		p.record(string(r.Type), r.Name, r.Value)
	}
	p.settledGroup(g.GroupId)
	p.opens(p.visitor(), "https://"+name, "")

	var mu sync.Mutex
	var failed []string
	answered, by := 0, map[string]bool{}
	loaded, stop := context.WithCancel(t.Context())
	var visitors sync.WaitGroup
	for i := range 6 {
		client := p.visitor()
		visitors.Go(func() {
			for loaded.Err() == nil {
				if i%2 == 0 {
					client.CloseIdleConnections()
				}
				resp, err := client.Get("https://" + name + "/")
				var body []byte
				if err == nil {
					body, err = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
				}
				mu.Lock()
				if err != nil || resp.StatusCode != http.StatusOK {
					failed = append(failed, fmt.Sprint(resp, err))
				}
				answered++
				by[string(body)] = true
				mu.Unlock()
				time.Sleep(5 * time.Millisecond) // the control plane shares this machine
			}
		})
	}
	was := p.instanceIDs(g.GroupId)
	began := time.Now()
	p.deploy(g.GroupId, spec("web:2", 64))
	p.awaitGroup(g.GroupId, "deployed", func(g api.ProcessGroup) bool { return g.DeployStatus == "succeeded" && g.Converged })
	took := time.Since(began)
	now := p.instanceIDs(g.GroupId)
	require.Len(t, now, replicas)
	answers := func(instance string) bool { // with its container's name, which ends with its own
		mu.Lock()
		defer mu.Unlock()
		for body := range by {
			if strings.HasSuffix(body, instance+"\n") {
				return true
			}
		}
		return false
	}
	eventually(t, func() bool {
		return !slices.ContainsFunc(now, func(instance string) bool { return !answers(instance) })
	}, patience, 50*time.Millisecond, "each new instance answers")
	stop()
	visitors.Wait()
	t.Logf("%d requests while %d instances were replaced in %.1f s, %d failed", answered, replicas, took.Seconds(), len(failed))
	require.Empty(t, failed)
	require.True(t, slices.ContainsFunc(was, answers), "the old ones also answered")
	require.Empty(t, slices.DeleteFunc(was, func(instance string) bool { return !slices.Contains(now, instance) }))
}

// instanceIDs are a group's instances that run.
func (p *public) instanceIDs(group string) (ids []string) {
	p.t.Helper()
	for _, i := range p.instances(group) {
		if i.State == "running" {
			ids = append(ids, i.InstanceId)
		}
	}
	return ids
}

func (p *public) hostOf(serverID string) int64 {
	p.t.Helper()
	for _, h := range p.sim.Hosts() {
		if h.Name == server.Name(p.env, prego.ServerID(serverID)) {
			return h.ID
		}
	}
	p.t.Fatalf("no host of server %s", serverID)
	return 0
}

// setSiteConfig sets what an operator sets with bench set-config.
func (c *cell) setSiteConfig(serverID, site, key string, value any) {
	c.t.Helper()
	file := filepath.Join(c.rootOf(serverID), wire.BenchDir, "sites", site, "site_config.json")
	config := c.readJSON(file)
	config[key] = value
	b, err := json.Marshal(config)
	require.NoError(c.t, err)
	require.NoError(c.t, os.WriteFile(file, b, 0o600))
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
