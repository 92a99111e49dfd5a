package production

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/sim"
)

// bounds are how many seconds each may stop when a host is lost, besides the pauses that this machine's load causes.
// With the primary, Patroni waits for the end of its lease (ttl, 20 s); otherwise an agent waits up to 20 s for an
// answer of the lost gateway.
var bounds = map[bool]map[string]float64{
	true:  {"API reads": 30, "API writes": 30, "gateway": 40, "provisioning": 60},
	false: {"API reads": 10, "API writes": 10, "gateway": 30, "provisioning": 60},
}

var whats = []string{"API reads", "API writes", "gateway", "provisioning"}

// probes are what callers, agents and tenants see of the installation: when each of these succeeded.
type probes struct {
	c      *threeHosts
	token  string
	client *http.Client
	db     *pgxpool.Pool
	stop   chan struct{}
	all    sync.WaitGroup
	next   atomic.Int64

	mu        sync.Mutex
	successes map[string][]time.Time
	written   []string          // orgs whose write was acknowledged
	tenants   map[string]string // slug → id, acknowledged
	servers   []string          // acknowledged
	wrong     []string
	heard     time.Time
	usual     map[string]float64 // the longest pauses without a loss, in seconds
}

// ask sends a request to one API after the other until one answers, like a balancer.
func (p *probes) ask(method, path, key string, body, out any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	first, last := int(p.next.Add(1)), error(nil)
	for i := range hostNames {
		url := fmt.Sprintf("http://%s%d:8080%s", hostSubnet, 1+(first+i)%len(hostNames), path)
		status, answer, err := p.once(method, url, key, text)
		switch {
		case err != nil:
			last = err
		case status == http.StatusServiceUnavailable:
			last = fmt.Errorf("%d %s", status, answer)
		case status >= 400:
			err := fmt.Errorf("%s %s: %d %s", method, path, status, answer)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.wrong = append(p.wrong, err.Error())
			return err
		case out != nil:
			return json.Unmarshal(answer, out)
		default:
			return nil
		}
	}
	return last
}

func (p *probes) once(method, url, key string, body []byte) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+p.token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, b, err
}

func (p *probes) succeeded(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.successes[what] = append(p.successes[what], time.Now())
}

func (p *probes) last(what string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.successes[what]
	if len(s) == 0 {
		return time.Time{}
	}
	return s[len(s)-1]
}

// gap is the longest time without a success from a moment on.
func (p *probes) gap(what string, from time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	longest, before := time.Duration(0), from
	for _, at := range p.successes[what] {
		if at.After(from) {
			longest, before = max(longest, at.Sub(before)), at
		}
	}
	return max(longest, time.Since(before))
}

// every does something again and again, each for itself, until the probes end.
func (p *probes) every(pause time.Duration, f func(n int)) {
	p.all.Go(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-p.stop:
				return
			case <-tick.C:
				f(n)
			}
		}
	})
}

// insist repeats a request until it is acknowledged.
func (p *probes) insist(path, key string, body, out any) bool {
	for began := time.Now(); time.Since(began) < 2*time.Minute; time.Sleep(200 * time.Millisecond) {
		if p.ask(http.MethodPost, path, key, body, out) == nil {
			return true
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wrong = append(p.wrong, path+" "+key+" is not acknowledged in two minutes")
	return false
}

func (p *probes) createServer(id, role string) {
	body := map[string]string{"server_id": id, "role": role, "region": "eu", "infra_provider": "hetzner"}
	if p.insist("/internal/servers/create", "server-"+id, body, nil) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.servers = append(p.servers, id)
	}
}

func (p *probes) createTenant(slug string) {
	var got struct {
		TenantID string `json:"tenant_id"`
	}
	body := map[string]string{"slug": slug, "org_id": "acme", "region": "eu", "plan": "starter"}
	if p.insist("/v1/tenants", "tenant-"+slug, body, &got) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.tenants[slug] = got.TenantID
	}
}

// query reads from the primary.
func (p *probes) query(into any, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	return p.db.QueryRow(ctx, sql, args...).Scan(into)
}

func (p *probes) number(t *testing.T, sql string, args ...any) (n int) {
	t.Helper()
	answered := func() bool { return p.query(&n, sql, args...) == nil }
	require.Eventually(t, answered, 30*time.Second, 100*time.Millisecond, sql)
	return n
}

func (c *threeHosts) newProbes(t *testing.T) *probes {
	first := c.hosts["prego-1"]
	token := c.must(first, "env", "PREGO_ENV=prod", "DATABASE_URL_FILE=/etc/prego/secrets/database_url",
		"prego", "token", "create", "--name", "test", "--role", "operator")
	url, err := os.ReadFile(filepath.Join(first.root, "etc/prego/secrets/database_url"))
	require.NoError(t, err)
	primary := "&connect_timeout=1&target_session_attrs=read-write"
	cfg, err := pgxpool.ParseConfig(strings.TrimSpace(string(url)) + primary)
	require.NoError(t, err)
	cfg.HealthCheckPeriod = time.Second
	db, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return &probes{
		c: c, token: strings.TrimSpace(token), db: db, stop: make(chan struct{}),
		successes: map[string][]time.Time{}, tenants: map[string]string{},
		client: &http.Client{Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: time.Second}).DialContext, MaxIdleConnsPerHost: 16,
		}},
	}
}

// start begins the requests, and records what succeeds.
func (p *probes) start() {
	p.every(100*time.Millisecond, func(int) {
		if p.ask(http.MethodGet, "/v1/tenants?limit=5", "", nil, nil) == nil {
			p.succeeded("API reads")
		}
	})
	p.every(100*time.Millisecond, func(n int) {
		id := fmt.Sprintf("org-%d", n)
		if p.ask(http.MethodPut, "/v1/orgs/"+id, "", map[string]string{"tier": "enterprise"}, nil) == nil {
			p.succeeded("API writes")
			p.mu.Lock()
			defer p.mu.Unlock()
			p.written = append(p.written, id)
		}
	})
	p.every(2*time.Second, func(n int) {
		var building int // a slow machine gets fewer
		if p.query(&building, `SELECT count(*) FROM tenants WHERE state <> 'active'`) != nil || building < 5 {
			p.createTenant(fmt.Sprintf("t%d", n))
		}
	})
	p.every(20*time.Second, func(n int) { p.createServer(fmt.Sprintf("redis-%d", n), "redis-pool") })
	// The agents report each second. The one that was not heard for longest counts.
	p.every(200*time.Millisecond, func(int) {
		var heard time.Time
		err := p.query(&heard, `SELECT min(agent_last_heartbeat_at) FROM servers
			WHERE server_id IN ('app', 'db', 'redis')`)
		if err == nil && heard.After(p.heard) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.heard = heard
			p.successes["gateway"] = append(p.successes["gateway"], heard)
		}
	})
	active := 0
	p.every(200*time.Millisecond, func(int) {
		var n int
		if p.query(&n, `SELECT count(*) FROM tenants WHERE state = 'active'`) == nil && n > active {
			active = n
			p.succeeded("provisioning")
		}
	})
}

func (p *probes) end() {
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	p.all.Wait()
}

// TestThreeHosts sets three hosts up as docs/production-three-hosts.md describes, and cuts the power of each in turn.
func TestThreeHosts(t *testing.T) {
	dir, inside := inNamespaces(t)
	if !inside {
		return
	}
	c := newThreeHosts(t, dir)
	c.settings = c.settingsOfHosts()
	c.page()
	t.Logf("all three hosts do their part after another %.0f s", c.awaitWhole(90*time.Second).Seconds())

	p := c.newProbes(t)
	defer func() {
		if t.Failed() {
			c.showTenants(p)
			for _, h := range c.hosts {
				c.showJournal(h)
			}
		}
	}()
	require.NoError(t, p.ask(http.MethodPut, "/v1/orgs/acme", "", map[string]string{"tier": "enterprise"}, nil))
	for id, role := range map[string]string{"app": "app", "db": "db-shard", "redis": "redis-pool"} {
		p.createServer(id, role)
	}
	fleet := func() bool { return p.number(t, `SELECT count(*) FROM servers WHERE status = 'active'`) == 3 }
	require.Eventually(t, fleet, 2*time.Minute, 200*time.Millisecond, "the fleet is there")
	p.start()
	t.Cleanup(p.end)
	provisioning := func() bool { return !p.last("provisioning").IsZero() }
	require.Eventually(t, provisioning, 2*time.Minute, 100*time.Millisecond, "tenants become active")
	quiet := time.Now()
	time.Sleep(15 * time.Second) // measured, not awaited
	p.usual = map[string]float64{}
	report := ""
	for _, what := range whats {
		p.usual[what] = p.gap(what, quiet).Seconds()
		report += fmt.Sprintf(", %s %.1f s", what, p.usual[what])
	}
	t.Logf("longest pauses while nothing is lost: %s", report[2:])

	// The primary's host first; then the others. One of them has it meanwhile.
	first := c.primary()
	c.lose(t, p, c.hosts[first])
	for _, name := range hostNames {
		if name != first {
			c.lose(t, p, c.hosts[name])
		}
	}
	p.end()
	c.nothingLost(t, p)
}

// lose cuts a host off, measures what stops, and brings it back.
func (c *threeHosts) lose(t *testing.T, p *probes, h *systemHost) {
	primary := c.primary() == h.name
	role := map[bool]string{true: "with the primary", false: "with a standby"}[primary]
	lost := time.Now()
	c.kill(h)
	// Everything works again, and for some seconds: what stops later counts as well.
	again := func() bool {
		for _, what := range whats {
			quiet := 3*time.Second + time.Duration(p.usual[what]*float64(time.Second))
			if p.last(what).Before(lost.Add(5*time.Second)) || time.Since(p.last(what)) > quiet {
				return false
			}
		}
		return time.Since(lost) > 8*time.Second && c.primary() != ""
	}
	require.Eventually(t, again, 2*time.Minute, 100*time.Millisecond,
		"%s (%s) is lost, and not everything works again", h.name, role)
	report, over := "", []string{}
	for _, what := range whats {
		gap := p.gap(what, lost).Seconds()
		report += fmt.Sprintf(", %s %.1f s", what, gap)
		if limit := bounds[primary][what] + 3*p.usual[what]; gap > limit {
			over = append(over, fmt.Sprintf("%s stopped for %.1f s, more than %.0f s", what, gap, limit))
		}
	}
	t.Logf("%s (%s) is lost. Longest pauses: %s", h.name, role, report[2:])
	require.Empty(t, over, "%s (%s) was lost", h.name, role)

	back := time.Now()
	c.boot(h)
	c.booted(h)
	c.awaitWhole(90 * time.Second)
	report = ""
	for _, what := range whats {
		gap := p.gap(what, back)
		report += fmt.Sprintf(", %s %.1f s", what, gap.Seconds())
	}
	t.Logf("%s is back: it does its part after %.0f s. Longest pauses: %s",
		h.name, time.Since(back).Seconds(), report[2:])
}

// nothingLost compares what was acknowledged with rows, hosts and the provider.
func (c *threeHosts) nothingLost(t *testing.T, p *probes) {
	require.Empty(t, p.wrong, "answers other than 2xx and 503")
	eventually := func(what, sql string, want int) {
		t.Helper()
		done := func() bool { return p.number(t, sql) == want }
		require.Eventually(t, done, 90*time.Second, 200*time.Millisecond, what)
	}
	eventually("every server is active", `SELECT count(*) FROM servers WHERE status <> 'active'`, 0)
	eventually("every tenant is active", `SELECT count(*) FROM tenants
		WHERE state = 'active' AND converged_state = 'active'`, len(p.tenants))
	require.Equal(t, len(p.tenants), p.number(t, `SELECT count(*) FROM tenants`))
	for slug, id := range p.tenants {
		n := p.number(t, `SELECT count(*) FROM tenants WHERE slug = $1 AND tenant_id = $2`, slug, id)
		require.Equal(t, 1, n, "tenant %s", slug)
	}
	rows, err := p.db.Query(t.Context(), `SELECT org_id FROM orgs WHERE tier = 'enterprise'`)
	require.NoError(t, err)
	orgs, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	there := map[string]bool{}
	for _, o := range orgs {
		there[o] = true
	}
	missing := slices.DeleteFunc(slices.Clone(p.written), func(o string) bool { return there[o] })
	require.Empty(t, missing, "acknowledged and lost")

	// Nothing is doubled: not at the provider, now or ever, not on a host, not in a count.
	made := madeOnce(t, c.sim, p.servers)
	require.Len(t, made, p.number(t, `SELECT count(*) FROM servers`), "every server of the provider has its row")
	require.Equal(t, len(p.tenants), p.number(t, `SELECT count(*) FROM tenant_allocations WHERE released_at IS NULL`))
	require.Zero(t, p.number(t, `SELECT count(*) FROM servers s WHERE tenant_count <>
		(SELECT count(*) FROM tenant_allocations a WHERE a.app_server_id = s.server_id AND released_at IS NULL)`))
	sites := map[string]int{}
	for _, h := range c.sim.Hosts() {
		on, err := sim.HostSites(h.Root)
		require.NoError(t, err)
		for _, site := range on {
			sites[site]++
		}
	}
	for slug := range p.tenants {
		require.Equal(t, 1, sites[slug+".sites.test"], "sites of tenant %s", slug)
	}
	slowest := p.number(t, `SELECT ceil(max(extract(epoch FROM e.at - t.created_at)))::int FROM tenants t
		JOIN events e ON e.id = t.tenant_id AND e.step = 'state_changed' AND e.status = 'active'`)
	t.Logf("%d acknowledged writes, %d tenants, %d servers: none is lost or exists twice; the slowest tenant took %d s",
		len(p.written), len(p.tenants), len(p.servers), slowest)
}

// showTenants prints what became of tenants and servers.
func (c *threeHosts) showTenants(p *probes) {
	for _, sql := range []string{
		`SELECT e::text FROM (SELECT state, waiting_roles, status_reason, status_message, count(*), min(slug)
			FROM tenants GROUP BY 1, 2, 3, 4) e`,
		`SELECT e::text FROM (SELECT server_id, status, status_reason, agent_status, agent_last_heartbeat_at
			FROM servers) e`,
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		rows, _ := p.db.Query(ctx, sql) // its error is that of the rows
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		cancel()
		c.t.Log(strings.Join(lines, "\n"), err)
	}
}
