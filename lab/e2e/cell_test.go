package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/app"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/keyset"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/lab/child"
	"github.com/prego/prego/lab/devstack"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// cell is an installation with its own database, cloud, keys and processes. Only
// Temporal is shared, and there each has its task queue. Where no test needs a process, the
// processes of the control plane are parts of this one.
type cell struct {
	t         testing.TB
	env       string // PREGO_ENV
	dir       string
	url       string // database
	pool      *pgxpool.Pool
	sim       *sim.Sim
	vars      map[string]string
	bins      string // the control plane's programs, and the agent that new hosts get
	ports     map[string]int
	processes bool
	procs     map[string]*devstack.Process
	parts     map[string]*part
	operator  string
	viewer    string
	masterKey string
	set       func(*config.Config) // may be nil
	turn      bool                 // its machines may all be on
	headers   map[string]string    // that requests have besides
}

var cells atomic.Int64

type options struct {
	vars     map[string]string
	timeouts server.BootTimeouts
	sim      func(*sim.Config)
	url      string // of a separate database; "" for a clone
	// processes runs the control plane as processes, for tests that kill one, measure one, or look at what it has.
	// Benchmarks, and cells with PREGO_TEST_CRASH, have them anyway.
	processes bool
	// bins is a directory with other programs than those of this checkout.
	bins string
	// beforeStart changes the cloud before any process of the control plane runs.
	beforeStart func(*sim.Sim) error
	// set changes what no variable does. Its cell has no processes, benchmarks included.
	set func(*config.Config)
	// late are further vars, which depend on the cloud.
	late func(*sim.Sim) map[string]string
}

// quick are timeouts for tests without boot failures.
var quick = server.BootTimeouts{Running: prego.Duration(60 * time.Second), Handshake: prego.Duration(60 * time.Second), Heartbeat: prego.Duration(60 * time.Second)}

// impatient are timeouts, one of them short.
func impatient(reason prego.Reason) server.BootTimeouts {
	t, soon := quick, prego.Duration(2500*time.Millisecond)
	switch reason {
	case prego.ReasonFailedBoot:
		t.Running = soon
	case prego.ReasonFailedHandshake:
		t.Handshake = soon
	case prego.ReasonFailedNoHeartbeat:
		t.Heartbeat = soon
	}
	return t
}

// issue makes a token as the control plane's host does.
func (c *cell) issue(name, role string) string {
	raw, err := app.IssueToken(context.Background(), store.New(c.pool), name, role, "", time.Hour, "test")
	require.NoError(c.t, err)
	return raw
}

func newCell(t testing.TB, o options) *cell {
	t.Helper()
	number := cells.Add(1)
	_, measured := t.(*testing.B)
	c := &cell{t: t, env: fmt.Sprintf("t%d", number), ports: map[string]int{}, procs: map[string]*devstack.Process{}, parts: map[string]*part{}}
	c.processes = o.processes || measured && o.set == nil || o.vars["PREGO_TEST_CRASH"] != ""
	require.False(t, c.processes && o.set != nil, "a process has only its environment")
	c.set = o.set
	if c.bins = o.bins; c.bins == "" {
		c.bins = bins
	}
	c.dir = filepath.Join(scratch, strings.ReplaceAll(t.Name(), "/", "_")+"-"+c.env) // -count runs a test again
	require.NoError(t, os.MkdirAll(c.dir, 0o755))
	t.Cleanup(func() {
		if !t.Failed() {
			_ = os.RemoveAll(c.dir) // it may be kept in memory
		}
	})
	if c.url = o.url; c.url == "" {
		c.url = pgtest.URL(t)
	}
	pool, err := pgxpool.New(context.Background(), c.url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	c.pool = pool

	cfg := sim.Config{Listen: "127.0.0.1:0", StateDir: filepath.Join(c.dir, "sim"), Token: "sim-api-token-of-" + c.env, RatePerHour: 360_000, Profile: sim.Profile{Restart: 200 * time.Millisecond}, AgentPort: 8443, DockerPort: 2376, LoopbackNetworks: true}
	if o.sim != nil {
		o.sim(&cfg)
	}
	cfg.LoopbackNetworks = cfg.LoopbackNetworks && cfg.Machines == ""
	c.sim, err = sim.New(cfg)
	require.NoError(t, err)
	require.NoError(t, c.sim.Start())
	t.Cleanup(c.sim.Close)
	if o.beforeStart != nil {
		require.NoError(t, o.beforeStart(c.sim))
	}

	keys := filepath.Join(c.dir, "keys")
	require.NoError(t, pki.Init(keys, c.env))
	require.NoError(t, token.InitKeys(keys))
	c.operator, c.viewer = c.issue("alice", "operator"), c.issue("bob", "support")
	var raw [32]byte
	_, err = rand.Read(raw[:])
	require.NoError(t, err)
	c.masterKey = hex.EncodeToString(raw[:])

	catalog := server.DefaultCatalog()
	catalog.DefaultTimeouts = o.timeouts
	if o.timeouts.Running == 0 {
		catalog.DefaultTimeouts = quick
	}
	b, err := json.Marshal(catalog)
	require.NoError(t, err)
	catalogFile := filepath.Join(c.dir, "catalog.json")
	require.NoError(t, os.WriteFile(catalogFile, b, 0o600))

	for _, p := range []string{"api", "api-ops", "agentgw", "agentgw-ops", "worker-ops", "relay"} {
		c.ports[p] = freePort(t)
	}
	c.vars = map[string]string{
		"PREGO_ENV": c.env, "PREGO_KEYS_DIR": keys, "PREGO_MASTER_KEY": c.masterKey, "DATABASE_URL": c.url, "PREGO_DB_MAX_CONNS": "6",
		"TEMPORAL_ADDRESS": temporal.Address(), "TEMPORAL_TASK_QUEUE": "e2e-" + c.env, "PREGO_CATALOG_FILE": catalogFile,
		"PREGO_API_LISTEN": c.addr("api"), "PREGO_API_PUBLIC_URL": "http://" + c.addr("api"),
		"PREGO_RELAY_LISTEN": c.addr("relay"), "PREGO_RELAY_URL": "https://" + c.addr("relay"),
		"PREGO_AGENTGW_LISTEN": c.addr("agentgw"), "PREGO_AGENTGW_URL": "https://" + c.addr("agentgw"), "PREGO_AGENTGW_AGENT_BINARY": filepath.Join(c.bins, "prego-agent"),
		// What silence means follows no pace: this machine is slow at times.
		"PREGO_PACE": "0.1", "PREGO_AGENTGW_HEARTBEAT": "1s", "PREGO_DEGRADED_AFTER": "60s", "PREGO_FAILED_AFTER": "5m", "PREGO_RECONCILE_EVERY": "1h",
		"HCLOUD_ENDPOINT": c.sim.URL(), "HCLOUD_TOKEN": cfg.Token, "PREGO_SIMULATED": "true",
		"PREGO_DNS_RESOLVERS": c.sim.DNS(), "PREGO_DNS_AUTHORITATIVE": "false",
		"PREGO_EGRESS_CIDRS": "127.0.0.1/32", "PREGO_AGENT_PORT": "8443", "PREGO_DOCKER_PORT": "2376", "PREGO_CONTAINER_TIMEOUT": "45s",
		// What processes measure of their host is this machine, which the tests themselves load.
		"PLACEMENT_MEMORY_PCT_MAX": "100", "PLACEMENT_CPU_PCT_MAX": "0", "PLACEMENT_DB_DISK_PCT_MAX": "0", "PLACEMENT_WORKER_SLOTS_PCT_MAX": "0", "PLACEMENT_REDIS_MEMORY_PCT_MAX": "0",
		"PREGO_LOG_LEVEL": "debug",
		// Tests poll, several concurrently.
		"PREGO_API_RATE_PER_SECOND": "1000",
	}
	if n := c.sim.Network(); n.Gateway != "" {
		// Machines reach the gateway on their bridge, and are called from there.
		at := fmt.Sprintf("%s:%d", n.Gateway, c.ports["agentgw"])
		c.vars["PREGO_AGENTGW_LISTEN"], c.vars["PREGO_AGENTGW_URL"], c.vars["PREGO_EGRESS_CIDRS"] = at, "https://"+at, n.Gateway+"/32"
	}
	if cfg.LoopbackNetworks { // its own, so that private addresses of process hosts are also separate
		c.vars["PREGO_NETWORK_RANGE"] = devstack.NthLoopbackRange(filepath.Dir(c.dir), number)
	}
	maps.Copy(c.vars, o.vars)
	if o.late != nil {
		maps.Copy(c.vars, o.late(c.sim))
	}
	t.Cleanup(func() {
		c.stop(processNames...)
		if t.Failed() {
			c.showLogs()
		}
		c.dropSchedules()
	})
	c.start(processNames...)
	return c
}

// dropSchedules removes schedules that would keep polling the Temporal of all cells.
func (c *cell) dropSchedules() {
	for _, id := range []string{
		server.ReconcileWorkflowID(c.env), server.SweepWorkflowID(c.env), tenant.SweepWorkflowID(c.env),
		workload.GroupSweepWorkflowID(c.env), server.CatalogWorkflowID(c.env), tenant.StorageWorkflowID(c.env),
	} {
		_ = temporalClient.ScheduleClient().GetHandle(context.Background(), id).Delete(context.Background()) // some were never made
	}
}

// processNames are the control plane's.
var processNames = []string{"worker", "api", "agentgw"}

// secretsOf are the secrets of docker-compose.yml, by process. Only a worker has more than the database.
var (
	allSecrets = []string{"DATABASE_URL", "PREGO_MASTER_KEY", "HCLOUD_TOKEN"}
	secretsOf  = map[string][]string{"api": allSecrets[:1], "agentgw": allSecrets[:1], "worker": allSecrets}
)

func freePort(t testing.TB) int {
	t.Helper()
	port, err := child.FreePort()
	require.NoError(t, err)
	return port
}

func (c *cell) addr(port string) string { return fmt.Sprintf("127.0.0.1:%d", c.ports[port]) }

func (c *cell) logFile(name string) string { return filepath.Join(c.dir, name+".log") }

func (c *cell) showLogs() {
	c.showRuns()
	for _, name := range processNames {
		b, _ := os.ReadFile(c.logFile(name))
		lines := strings.Split(string(b), "\n")
		if len(lines) > 25 {
			lines = lines[len(lines)-25:]
		}
		c.t.Logf("--- %s\n%s", name, strings.Join(lines, "\n"))
	}
	// A host that ended its boot reports to no process of the control plane.
	for _, h := range c.sim.Hosts() {
		if h.Phase != "running" {
			console, _ := c.sim.Console(h.ID)
			agent, _ := os.ReadFile(filepath.Join(filepath.Dir(h.Root), "agent.log"))
			c.t.Logf("--- host %s is %s\n%s\n%s", h.Name, h.Phase, console, agent[max(0, len(agent)-4096):])
		}
	}
}

// showRuns lists what the open runs of this cell wait for.
func (c *cell) showRuns() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := temporalClient.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
		Query: "TaskQueue = '" + c.vars["TEMPORAL_TASK_QUEUE"] + "' AND ExecutionStatus = 'Running'",
	})
	if err != nil {
		c.t.Logf("open runs: %v", err)
		return
	}
	for _, e := range r.Executions {
		d, err := temporalClient.DescribeWorkflowExecution(ctx, e.Execution.WorkflowId, e.Execution.RunId)
		if err != nil {
			c.t.Logf("run %s: %v", e.Execution.WorkflowId, err)
			continue
		}
		c.t.Logf("run %s: %d events, task %v, activities %v, children %v", e.Execution.WorkflowId, d.GetWorkflowExecutionInfo().GetHistoryLength(),
			d.GetPendingWorkflowTask(), d.GetPendingActivities(), d.GetPendingChildren())
	}
}

// settingsOf are the settings, secrets and keys of a process of the control plane.
func (c *cell) settingsOf(name string) map[string]string {
	c.t.Helper()
	vars := maps.Clone(c.vars)
	vars["PREGO_KEYS_DIR"] = filepath.Join(c.dir, "keys-"+name) // to each its own, as deploy/secrets.sh does
	require.NoError(c.t, keyset.Share(c.vars["PREGO_KEYS_DIR"], name, vars["PREGO_KEYS_DIR"], -1))
	for _, secret := range allSecrets {
		if !slices.Contains(secretsOf[name], secret) {
			delete(vars, secret)
		}
	}
	vars["PREGO_METRICS_LISTEN"] = c.addr(name + "-ops")
	return vars
}

// environmentOf is the environment of a process of the control plane.
func (c *cell) environmentOf(name string) []string {
	c.t.Helper()
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.dir, "GOMAXPROCS=2"}
	for k, v := range c.settingsOf(name) {
		env = append(env, k+"="+v)
	}
	return env
}

// start starts some of the control plane's processes and waits until they are ready.
func (c *cell) start(names ...string) {
	c.t.Helper()
	c.startUntil("readyz", names...)
}

// startUnready starts a process that something it depends on is away from.
func (c *cell) startUnready(name string) {
	c.t.Helper()
	c.startUntil("healthz", name)
}

func (c *cell) startUntil(probe string, names ...string) {
	c.t.Helper()
	for _, name := range names {
		if !c.processes {
			c.parts[name] = startPart(c.t, name, c.settingsOf(name), c.set, c.logFile(name))
			continue
		}
		p, err := devstack.Start(devstack.Spec{Name: name, Path: filepath.Join(c.bins, "prego"), Args: []string{name}, Env: c.environmentOf(name), Dir: c.dir, LogFile: c.logFile(name)})
		require.NoError(c.t, err)
		c.procs[name] = p
	}
	for _, name := range names {
		ready := "http://" + c.addr("api") + "/" + probe
		if name != "api" {
			ready = "http://" + c.addr(name+"-ops") + "/" + probe
		}
		if !c.processes {
			c.parts[name].awaitHTTP(c.t, ready)
			continue
		}
		require.NoError(c.t, c.procs[name].AwaitHTTP(context.Background(), ready, 30*time.Second))
	}
}

// stop stops running processes, as an operator does.
func (c *cell) stop(names ...string) {
	c.t.Helper()
	var all sync.WaitGroup
	for _, name := range names {
		if p := c.procs[name]; p != nil {
			all.Go(func() { p.Stop(20 * time.Second) })
		}
		if p := c.parts[name]; p != nil {
			all.Go(func() { p.end(c.t, name) })
		}
		delete(c.procs, name)
		delete(c.parts, name)
	}
	all.Wait()
}

// kill kills a process as a crash would.
func (c *cell) kill(name string) {
	c.t.Helper()
	require.True(c.t, c.processes, "only a process can be killed")
	c.procs[name].Kill()
	delete(c.procs, name)
}

// request sends a request as the operator, accepts its impact, and returns status and body.
func (c *cell) request(method, path string, body any) (int, []byte) {
	c.t.Helper()
	status, b := c.requestOnce(method, path, body)
	var refused api.Problem
	if status == http.StatusConflict && json.Unmarshal(b, &refused) == nil && refused.Impact != nil {
		return c.requestOnce(method, path, body, refused.Impact.Digest)
	}
	return status, b
}

func (c *cell) requestOnce(method, path string, body any, accepted ...string) (int, []byte) {
	c.t.Helper()
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		require.NoError(c.t, err)
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, "http://"+c.addr("api")+path, r)
	require.NoError(c.t, err)
	req.Header.Set("Authorization", "Bearer "+c.operator)
	for name, value := range c.headers {
		req.Header.Set(name, value)
	}
	for _, digest := range accepted {
		req.Header.Set("Impact-Accepted", digest)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := need.HTTP.Do(req)
	require.NoError(c.t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(c.t, err)
	return resp.StatusCode, b
}

// id makes a server's name unique among the cells: they share Temporal, and a
// workflow's id is made of the server's alone.
func (c *cell) id(name string) string { return name + "-" + c.env }

func (c *cell) create(id string, role prego.Role, spec server.Spec) api.Accepted {
	c.t.Helper()
	status, body := c.request(http.MethodPost, "/internal/servers/create", server.CreateRequest{
		ServerID: prego.ServerID(c.id(id)), Role: role, Region: prego.RegionEU, InfraProvider: prego.ProviderHetzner, Spec: spec,
	})
	require.Equal(c.t, http.StatusAccepted, status, "%s", body)
	var a api.Accepted
	require.NoError(c.t, json.Unmarshal(body, &a))
	return a
}

func (c *cell) get(id string) api.Server {
	c.t.Helper()
	status, body := c.request(http.MethodGet, "/v1/servers/"+c.id(id), nil)
	require.Equal(c.t, http.StatusOK, status, "%s", body)
	var s api.Server
	require.NoError(c.t, json.Unmarshal(body, &s))
	return s
}

// await polls a server until ok returns true.
func (c *cell) await(id, what string, ok func(api.Server) bool) api.Server {
	c.t.Helper()
	return await(c.t, fmt.Sprintf("server %s never was %s", id, what), func() api.Server { return c.get(id) }, ok)
}

func (c *cell) awaitStatus(id string, status server.Status) api.Server {
	c.t.Helper()
	return c.await(id, string(status), func(s api.Server) bool {
		if s.Status != status && (s.Status == "failed" || s.Status == "active") && status != "terminated" {
			c.t.Fatalf("server %s is %s (%v %v), not %s", id, s.Status, deref(s.StatusReason), deref(s.StatusMessage), status)
		}
		return s.Status == status
	})
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// awaitFailed waits for a failure and checks its reason.
func (c *cell) awaitFailed(id string, reason prego.Reason) api.Server {
	c.t.Helper()
	s := c.awaitStatus(id, server.Failed)
	require.Equal(c.t, string(reason), deref(s.StatusReason), deref(s.StatusMessage))
	return s
}

// steps are the timeline's steps, in order.
func steps(s api.Server) []string {
	var out []string
	for _, e := range s.Timeline {
		out = append(out, e.Step)
	}
	return out
}

func count(s api.Server, step server.Step) int {
	n := 0
	for _, e := range s.Timeline {
		if e.Step == string(step) {
			n++
		}
	}
	return n
}

// billed are the servers that the cloud still bills.
func (c *cell) billed(kind string) []sim.LedgerEntry {
	var out []sim.LedgerEntry
	for _, e := range c.sim.Ledger(true) {
		if e.Kind == kind {
			out = append(out, e)
		}
	}
	return out
}

// everBilled counts the servers that there ever were.
func (c *cell) everBilled(kind string) int {
	n := 0
	for _, e := range c.sim.Ledger(false) {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// inject adds a fault, and lets the test fail when it was never hit.
func (c *cell) inject(f sim.Fault) {
	c.t.Helper()
	id, err := c.sim.Inject(f)
	require.NoError(c.t, err)
	c.t.Cleanup(func() {
		for _, f := range c.sim.Faults() {
			if f.ID == id && f.Hits == 0 && !c.t.Failed() {
				c.t.Errorf("the fault %s %s was never hit", f.Kind, f.Action)
			}
		}
	})
}

func (c *cell) query(into any, sql string, args ...any) {
	c.t.Helper()
	require.NoError(c.t, c.pool.QueryRow(context.Background(), sql, args...).Scan(into))
}

// settled checks that nothing of ours is in an unclear state: billed resources are in the ledger and the other way
// round.
func (c *cell) settled() {
	c.t.Helper()
	// A resource that is no longer billed is recorded as released a moment later.
	eventually(c.t, func() bool {
		return c.number(`SELECT count(*) FROM resources WHERE state IN ('intended', 'releasing')`) == 0
	}, patience, 20*time.Millisecond, "resources of unknown outcome")
	var owned int
	c.query(&owned, `SELECT count(*) FROM resources WHERE state = 'created' AND kind IN ('server', 'volume', 'primary_ip', 'floating_ip', 'image')`)
	require.Len(c.t, c.sim.Ledger(true), owned, "billed and owned resources differ")
}

// provider calls the cloud's API like another user with access to the project.
func (c *cell) provider(method, path string, body any) {
	c.t.Helper()
	b, err := json.Marshal(body)
	require.NoError(c.t, err)
	req, err := http.NewRequest(method, c.sim.URL()+path, bytes.NewReader(b))
	require.NoError(c.t, err)
	req.Header.Set("Authorization", "Bearer "+c.vars["HCLOUD_TOKEN"])
	resp, err := need.HTTP.Do(req)
	require.NoError(c.t, err)
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(c.t, err)
	require.Equal(c.t, 2, resp.StatusCode/100, "%s", answer)
}

// unprotect lifts a server's protection past the control plane, as a person with the provider's console may.
func (c *cell) unprotect(id string) {
	c.t.Helper()
	c.provider(http.MethodPost, "/servers/"+id+"/actions/change_protection", map[string]bool{"delete": false, "rebuild": false})
}

// deleteAtProvider deletes a server in use past the control plane.
func (c *cell) deleteAtProvider(id string) {
	c.t.Helper()
	c.unprotect(id)
	c.provider(http.MethodDelete, "/servers/"+id, nil)
}

// reconcile runs one reconciliation to its end.
func (c *cell) reconcile() {
	c.t.Helper()
	var before, after int
	c.query(&before, `SELECT count(*) FROM reconcile_runs WHERE finished_at IS NOT NULL`)
	status, body := c.request(http.MethodPost, "/internal/reconcile", nil)
	require.Equal(c.t, http.StatusAccepted, status, "%s", body)
	eventually(c.t, func() bool {
		c.query(&after, `SELECT count(*) FROM reconcile_runs WHERE finished_at IS NOT NULL`)
		return after > before
	}, patience, 30*time.Millisecond)
	// The run ends a moment after its row: a second one would be met by the first.
	eventually(c.t, func() bool {
		d, err := temporalClient.DescribeWorkflowExecution(context.Background(), server.ReconcileWorkflowID(c.env), "")
		return err == nil && d.GetWorkflowExecutionInfo().GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING
	}, patience, 30*time.Millisecond)
}
