//go:build scale

package e2e

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

var (
	scaleServers  = flag.Int("servers", 100_000, "servers of the largest database; tenants are ten times as many")
	scaleAgents   = flag.Int("agents", 10_000, "agents that are connected to it")
	scaleArrivals = flag.Int("arrivals", 200, "tenants that arrive, at 200 a minute")
	scaleFleet    = flag.Int("fleet", 1000, "servers of the fleet that is replaced")
	scaleSizes    = flag.Int("sizes", 2, "smaller databases before it: 2, 1 or 0")
	scaleReport   = flag.String("report", "", "the file of the report; it is printed in any case")
)

// TestScale prints what a large installation costs: tenants that arrive in databases of
// three sizes, and in the largest 10,000 agents over mTLS, a region that is lost, and a
// fleet that is replaced. It is no test of the code but of what its numbers are; it fails
// if something is lost, not if something is slow.
func TestScale(t *testing.T) {
	r := &report{}
	n := *scaleServers
	for _, size := range []int{n / 100, n / 10}[2-*scaleSizes:] {
		few := max(*scaleArrivals/5, 1)
		c, _ := scaleCell(t, size, few)
		r.size(c, size, arrive(c, few))
		c.stop(processNames...)
	}
	c, clients := scaleCell(t, n, 2**scaleArrivals)
	agents := startAgents(c, clients, min(*scaleAgents, n))
	r.size(c, n, arrive(c, *scaleArrivals))
	r.printf("%d agents beat every %s: %s", len(agents.all), agents.every, agents.latency())
	loseRegion(c, r, agents)
	replaceFleet(c, r)
	agents.stop()
	c.settled()
	fmt.Print(r)
	if *scaleReport != "" {
		require.NoError(t, os.WriteFile(*scaleReport, []byte(r.String()), 0o644))
	}
}

// fullAndAtRest makes the filled rows such that placement looks at each server and finds
// no room on any, and that nothing of them has work left.
var fullAndAtRest = []string{
	`UPDATE servers SET memory_pct = 99, agent_last_heartbeat_at = now() + interval '3 hours', status = CASE status WHEN 'draining' THEN 'active' ELSE status END`,
	`UPDATE db_shards SET current_tenant_count = tenant_capacity WHERE region = 'eu'`,
	`UPDATE redis_pools SET current_tenants = tenant_capacity WHERE region = 'eu'`,
	`UPDATE tenants SET state = 'failed', converged_state = 'failed' WHERE state = 'provisioning'`,
	`UPDATE tenants SET converged_state = state`,
	`UPDATE process_groups SET wanted = 0, status = 'running', status_reason = '', waiting_since = NULL, converged = true`,
	`UPDATE snapshots SET status = 'succeeded' WHERE status = 'running'`,
}

// poolSites is how many sites the pool of each real app server has ready.
const poolSites = 90

// scaleCell is a cell whose database has n full servers, besides a shard, a pool and as
// many app servers as have a site for each arrival, which are real.
func scaleCell(t *testing.T, n, arrivals int) (*cell, *agentClients) {
	t.Helper()
	url := pgtest.URL(t)
	began := time.Now()
	pgtest.FillLarge(t, url, n, fullAndAtRest...)
	t.Logf("%d servers and %d tenants made in %s", n, 10*n, time.Since(began).Round(time.Second))
	vars := sharedVars()
	maps.Copy(vars, map[string]string{
		"PREGO_PACE": "0.1", "PREGO_LOG_LEVEL": "warn", "PREGO_API_RATE_PER_SECOND": "100000", "PLACEMENT_MAX_TENANTS_PER_NODE": "10000",
		"PREGO_AGENTGW_HEARTBEAT": "30s", "PREGO_DEGRADED_AFTER": "60s",
		"PREGO_FLEET_PARALLEL": "32", "PREGO_DB_MAX_CONNS": "20",
	})
	c := newCell(t, options{processes: true, url: url, vars: vars, sim: func(cfg *sim.Config) {
		cfg.Limits.Servers, cfg.RatePerHour, cfg.RunAgent = 100_000, 100_000_000, agentInside
		cfg.Limits.PlacementGroups = 10_000
	}})
	_, err := c.pool.Exec(context.Background(), `UPDATE capacity_defaults SET tenant_capacity = 100000`)
	require.NoError(t, err)
	c.org("acme", "")
	// No pool is ever low: pools of the filled servers can't be refilled.
	for plan, target := range map[string]int{"trial": 0, "business": 0, "starter": poolSites} {
		c.send(http.MethodPut, "/v1/site-pool-policies/"+plan, map[string]int{"low_watermark": 0, "target": target, "slo_seconds": 600}, http.StatusOK, nil)
	}
	c.create("real-db", prego.RoleDBShard, server.Spec{})
	c.create("real-redis", prego.RoleRedisPool, server.Spec{})
	apps := make([]string, max(1, (arrivals+poolSites-1)/poolSites))
	for i := range apps {
		apps[i] = fmt.Sprintf("real-app%d", i)
		c.create(apps[i], prego.RoleApp, server.Spec{})
	}
	for _, id := range append([]string{"real-db", "real-redis"}, apps...) {
		c.awaitStatus(id, server.Active)
	}
	for _, id := range apps {
		c.post("/v1/site-pools/"+c.id(id)+"/refill", nil, http.StatusAccepted, nil)
	}
	for _, id := range apps {
		eventually(t, func() bool {
			return c.number(`SELECT count(*) FROM site_pool WHERE app_server_id = $1 AND state = 'available'`, c.id(id)) >= poolSites
		}, 10*time.Minute, time.Second)
	}
	return c, c.agentClients()
}

// agentInside runs the agent of a fleet's server in this process; the others, which make
// sites, are processes.
func agentInside(name string) func(context.Context, string, string, string) error {
	if strings.Contains(name, "real-") {
		return nil
	}
	return runAgent
}

// durations are of things of one kind.
type durations []time.Duration

func (d durations) String() string {
	if len(d) == 0 {
		return "none"
	}
	return fmt.Sprintf("p50 %s, p99 %s, worst %s", d.at(0.5), d.at(0.99), d.at(1))
}

func (d durations) at(p float64) time.Duration {
	s := slices.Clone(d)
	slices.Sort(s)
	return s[min(int(p*float64(len(s))), len(s)-1)].Round(100 * time.Microsecond)
}

type arrivals struct {
	answer durations // of the API
	active durations // from the request until the tenant is active
}

// arrive lets n tenants arrive at 200 a minute, whether or not those before are done.
func arrive(c *cell, n int) arrivals {
	c.t.Helper()
	var a arrivals
	var ids []string
	var asked []time.Time
	round := rand.IntN(1 << 30)
	tick := time.NewTicker(time.Minute / 200)
	defer tick.Stop()
	for i := range n {
		<-tick.C
		began := time.Now()
		ids = append(ids, c.tenant(fmt.Sprintf("n%d-%d", round, i), prego.PlanStarter, nil))
		asked = append(asked, began)
		a.answer = append(a.answer, time.Since(began))
	}
	deadline := time.Now().Add(3 * time.Minute)
	for c.number(`SELECT count(*) FROM tenants WHERE tenant_id = ANY($1) AND state <> 'active'`, ids) > 0 {
		require.True(c.t, time.Now().Before(deadline), "not all tenants became active")
		time.Sleep(50 * time.Millisecond)
	}
	c.t.Logf("placement %.1f ms each", 1000*c.metric("worker", "prego_placement_seconds_sum")/c.metric("worker", "prego_placement_seconds_count"))
	for i, id := range ids {
		var at time.Time
		c.query(&at, `SELECT max(at) FROM tenant_lifecycle_events WHERE tenant_id = $1 AND to_state = 'active'`, id)
		a.active = append(a.active, at.Sub(asked[i]))
	}
	return a
}

// report is what the run prints.
type report struct {
	lines []string
	table [][]string
}

func (r *report) printf(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	fmt.Println(line)
	r.lines = append(r.lines, line)
}

// size adds what a database of one size costs.
func (r *report) size(c *cell, n int, a arrivals) {
	c.t.Helper()
	row := []string{fmt.Sprint(n), fmt.Sprint(10 * n), a.answer.at(0.5).String(), a.active.at(0.5).String(), a.active.at(0.99).String()}
	for _, path := range []string{"/v1/tenants?limit=50", "/v1/tenants?state=failed&limit=50", "/v1/servers?status=failed&limit=50"} {
		var d durations
		for range 20 {
			began := time.Now()
			if status, _ := c.request(http.MethodGet, path, nil); status != http.StatusOK {
				d = nil
				break
			}
			d = append(d, time.Since(began))
		}
		if d == nil {
			continue
		}
		row = append(row, d.at(0.5).String())
	}
	fmt.Println(strings.Join(row, " | "))
	r.table = append(r.table, row)
}

func (r *report) String() string {
	var b strings.Builder
	b.WriteString("| servers | tenants | answer p50 | active p50 | active p99 | list tenants | failed tenants | failed servers |\n|---|---|---|---|---|---|---|---|\n")
	for _, row := range r.table {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	b.WriteString("\n")
	for _, l := range r.lines {
		fmt.Fprintf(&b, "- %s\n", l)
	}
	b.WriteString(plot("Time until a tenant is active (p50)", r.table, 3))
	b.WriteString(plot("First page of the tenants", r.table, 5))
	return b.String()
}

// plot draws a column of durations against the servers of the rows, in milliseconds.
func plot(title string, table [][]string, column int) string {
	var x, y []string
	for _, row := range table {
		if column >= len(row) {
			return ""
		}
		d, err := time.ParseDuration(row[column])
		if err != nil {
			return ""
		}
		x, y = append(x, row[0]), append(y, fmt.Sprintf("%.1f", d.Seconds()*1000))
	}
	return fmt.Sprintf("\n```mermaid\nxychart-beta\n  title %q\n  x-axis \"servers\" [%s]\n  y-axis \"ms\" 0\n  line [%s]\n```\n", title, strings.Join(x, ", "), strings.Join(y, ", "))
}

// beating are agents that send heartbeats until stopped.
type beating struct {
	all   []*agentClient
	every time.Duration

	end  context.CancelFunc
	done sync.WaitGroup

	mu     sync.Mutex
	took   durations
	failed atomic.Int64
	silent sync.Map // prego.ServerID to true
}

// startAgents connects agents for the first n servers of the filled database.
func startAgents(c *cell, clients *agentClients, n int) *beating {
	c.t.Helper()
	ctx, end := context.WithCancel(context.Background())
	g := &beating{every: 30 * time.Second, end: end}
	began := time.Now()
	ids, keys := make([]string, n), make([][]byte, n)
	for i := range n {
		a := clients.make(prego.ServerID(fmt.Sprintf("s-%d", i)))
		g.all, ids[i], keys[i] = append(g.all, a), string(a.id), a.key[:]
	}
	_, err := c.pool.Exec(ctx, `UPDATE servers s SET agent_key_sha256 = a.key FROM unnest($1::text[], $2::bytea[]) a(id, key) WHERE server_id = a.id`, ids, keys)
	require.NoError(c.t, err)
	// The others are reported healthy for as long as this takes.
	_, err = c.pool.Exec(ctx, `UPDATE servers SET agent_last_heartbeat_at = now() + interval '2 hours' WHERE agent_key_sha256 IS NULL`)
	require.NoError(c.t, err)
	c.t.Logf("%d identities issued in %s", n, time.Since(began).Round(time.Second))
	for _, a := range g.all {
		first := time.Duration(rand.Int64N(int64(g.every)))
		g.done.Go(func() { g.beat(ctx, a, first) })
	}
	c.t.Cleanup(g.stop)
	time.Sleep(g.every + time.Second) // each has beaten once
	return g
}

func (g *beating) beat(ctx context.Context, a *agentClient, wait time.Duration) {
	defer a.close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = g.every
		if _, silent := g.silent.Load(a.id); silent {
			continue
		}
		began := time.Now()
		if err := a.beat(); err != nil {
			g.failed.Add(1)
			continue
		}
		g.mu.Lock()
		g.took = append(g.took, time.Since(began))
		g.mu.Unlock()
	}
}

func (g *beating) stop() {
	g.end()
	g.done.Wait()
}

func (g *beating) latency() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return fmt.Sprintf("%d beats, %d failed, %s", len(g.took), g.failed.Load(), g.took)
}

// loseRegion silences all servers of a region, a third of the fleet, while tenants keep arriving in another. So many
// together look like a broken gateway: nothing is marked failed, and an operator is alerted (direct-provisioning §5).
func loseRegion(c *cell, r *report, agents *beating) {
	c.t.Helper()
	lost := c.number(`SELECT count(*) FROM servers WHERE region = 'us'`)
	for _, a := range agents.all {
		var region string
		c.query(&region, `SELECT region FROM servers WHERE server_id = $1`, a.id)
		if region == "us" {
			agents.silent.Store(a.id, true)
		}
	}
	_, err := c.pool.Exec(context.Background(), `UPDATE servers SET agent_last_heartbeat_at = now() WHERE region = 'us'`)
	require.NoError(c.t, err)
	began := time.Now()
	frozen := make(chan time.Duration, 1)
	go func() {
		for {
			if c.metric("worker", "prego_sweep_frozen") > 0 {
				frozen <- time.Since(began)
				return
			}
			if time.Since(began) > 3*time.Minute {
				frozen <- -1
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
	}()
	a := arrive(c, *scaleArrivals)
	took := <-frozen
	require.Positive(c.t, took, "the sweep never froze")
	r.printf("region lost: %d servers silent; nothing is marked, and the alert is raised, after %s (silent for 60s, a sweep every 10s); tenants that arrive elsewhere meanwhile are active after %s", lost, took.Round(time.Second), a.active)
	require.Zero(c.t, c.number(`SELECT count(*) FROM servers WHERE region = 'us' AND status = 'failed' AND status_reason = 'heartbeat_lost' AND updated_at > now() - interval '10 minutes'`))
	agents.silent.Clear()
	_, err = c.pool.Exec(context.Background(), `UPDATE servers SET agent_last_heartbeat_at = now() + interval '2 hours' WHERE region = 'us' AND agent_key_sha256 IS NULL`)
	require.NoError(c.t, err)
}

// replaceFleet creates a fleet and replaces every server of it. Meanwhile it has at most the requested size: a fleet's
// limit also bounds that.
func replaceFleet(c *cell, r *report) {
	c.t.Helper()
	surge := max(*scaleFleet/10, 1)
	size := *scaleFleet - surge
	c.fleet("many", prego.RoleRedisPool, []map[string]any{weighted("eu", 50, -1), weighted("sg", 50, -1)}, map[string]any{"max_size": -1})
	began := time.Now()
	c.awaitLong("many", c.act("many", "CLUSTER_SCALE_OUT", map[string]any{"count": size}).Seq)
	made := time.Since(began)
	r.printf("a fleet of %d servers made in %s: %.1f servers/s", size, made.Round(time.Second), float64(size)/made.Seconds())
	require.Equal(c.t, size, c.number(`SELECT count(*) FROM servers WHERE fleet_id = 'many' AND status = 'active'`))
	// Only servers that differ from the fleet's spec are replaced.
	c.send(http.MethodPatch, "/v1/fleets/many", map[string]any{"spec": map[string]any{"tags": []string{"stack:next"}}}, http.StatusOK, nil)
	began = time.Now()
	c.awaitLong("many", c.act("many", "CLUSTER_REPLACE", map[string]any{"max_surge": surge}).Seq)
	took := time.Since(began)
	require.Equal(c.t, size, c.number(`SELECT count(*) FROM servers WHERE fleet_id = 'many' AND status = 'active' AND tags @> '{stack:next}'`))
	billed := c.billed("server")
	billed = slices.DeleteFunc(billed, func(e sim.LedgerEntry) bool { return !strings.Contains(e.Name, "-many-") })
	require.Len(c.t, billed, size, "none is left over")
	r.printf("all of them replaced in %s, %d more than that at a time: %.1f servers/s", took.Round(time.Second), surge, float64(size)/took.Seconds())
}

// awaitLong waits for an action of many servers.
func (c *cell) awaitLong(fleet string, seq int) {
	c.t.Helper()
	deadline := time.Now().Add(20 * time.Minute)
	for {
		a := c.action(fleet, seq)
		if a.FinishedAt != nil {
			require.EqualValues(c.t, "succeeded", a.Status, "%s %s", deref(a.Reason), deref(a.Message))
			return
		}
		require.True(c.t, time.Now().Before(deadline), "the action never ended")
		time.Sleep(time.Second)
	}
}
