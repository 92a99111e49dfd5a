package production

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

// caller asks the replicas of the API in turn and, when one does not answer, the next: all that is
// asked of a caller.
type caller struct {
	s     *stack
	token string
	next  atomic.Int64
	// worst is the most attempts that one request took, and how long it took.
	mu       sync.Mutex
	attempts int
	took     time.Duration
	retried  int
	asked    int
}

// patience is how long a caller sends a request again. One replica is away at a time, so the other one
// answers; how many attempts that takes depends on what else runs here.
const patience = 15 * time.Second

// ask sends a request until it is answered with something else than that it can't be now.
func (c *caller) ask(method, path, key string, body, out any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	began := time.Now()
	first := int(c.next.Add(1))
	var last error
	for i := 1; time.Since(began) < patience; i++ {
		status, answer, err := c.once(first+i, method, path, key, text)
		switch {
		case err != nil:
			last = err
		case status == http.StatusServiceUnavailable || status == http.StatusBadGateway:
			last = fmt.Errorf("%d %s", status, answer)
		case status >= 400:
			return fmt.Errorf("%s %s: %d %s", method, path, status, answer)
		default:
			c.mu.Lock()
			c.attempts, c.took, c.asked, c.retried = max(c.attempts, i), max(c.took, time.Since(began)), c.asked+1, c.retried+i-1
			c.mu.Unlock()
			if out != nil {
				return json.Unmarshal(answer, out)
			}
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("%s %s: given up after %s: %w", method, path, time.Since(began), last)
}

func (c *caller) once(replica int, method, path, key string, body []byte) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	resp, err := c.send(ctx, replica, method, path, key, body)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, b, err
}

func (c *caller) send(ctx context.Context, replica int, method, path, key string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.s.address("edge", "api", replica%replicas("api"))+":8080"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	return need.HTTP.Do(req)
}

// exec has a command run on a host, once, and returns its result.
func (c *caller) exec(server string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	resp, err := c.send(ctx, int(c.next.Add(1)), http.MethodPost, "/v1/servers/"+server+"/exec", "", []byte(`{"kind":"bench","args":["list-sites"]}`))
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%d %s", resp.StatusCode, b)
	}
	events := wire.NewEventReader(resp.Body)
	for {
		name, data, err := events.Next()
		switch {
		case err != nil:
			return err
		case name == wire.EventError:
			return fmt.Errorf("%s", data)
		case name == wire.EventResult:
			var r struct {
				ExitCode int `json:"exit_code"`
			}
			if err := json.Unmarshal(data, &r); err != nil || r.ExitCode != 0 {
				return fmt.Errorf("%s: %w", data, errors.Join(err))
			}
			return nil
		}
	}
}

// load is what callers ask for, and what they were promised.
type load struct {
	*caller
	t       *testing.T
	victim  atomic.Value // which service is being killed
	stop    chan struct{}
	wg      sync.WaitGroup
	mu      sync.Mutex
	servers []string
	tenants map[string]string // slug → id
	wrong   []string
	// execs by the killed process: their number, and which failed.
	execs  map[string]int
	failed map[string][]string
}

func (l *load) failf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

// repeat does something again and again, until the load ends.
func (l *load) repeat(pause time.Duration, f func(n int)) {
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		for n := 0; ; n++ {
			f(n)
			select {
			case <-l.stop:
				return
			case <-time.After(pause):
			}
		}
	}()
}

func (l *load) createServer(id, role string) {
	var got struct {
		ServerID prego.ServerID `json:"server_id"`
	}
	if err := l.ask(http.MethodPost, "/internal/servers/create", "", map[string]any{"server_id": id, "role": role, "region": "eu", "infra_provider": "hetzner"}, &got); err != nil {
		l.failf("server %s: %v", id, err)
		return
	}
	l.mu.Lock()
	l.servers = append(l.servers, id)
	l.mu.Unlock()
}

func (l *load) createTenant(slug string) {
	var got struct {
		TenantID prego.TenantID `json:"tenant_id"`
	}
	if err := l.ask(http.MethodPost, "/v1/tenants", "key-"+slug, map[string]any{"slug": slug, "org_id": "acme", "region": "eu", "plan": "starter"}, &got); err != nil {
		l.failf("tenant %s: %v", slug, err)
		return
	}
	l.mu.Lock()
	l.tenants[slug] = string(got.TenantID)
	l.mu.Unlock()
}

func (s *stack) newLoad(t *testing.T) *load {
	cmd := exec.CommandContext(t.Context(), filepath.Join(s.bin, "prego"), "token", "create", "--name", "test", "--role", "operator")
	cmd.Env = append(os.Environ(), "PREGO_ENV=prod", "DATABASE_URL="+s.databaseURL(t))
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, "%s", &errs)
	l := &load{caller: &caller{s: s, token: strings.TrimSpace(string(out))}, t: t, stop: make(chan struct{}), tenants: map[string]string{}, execs: map[string]int{}, failed: map[string][]string{}}
	l.victim.Store("nothing")
	return l
}

// databaseURL leads to the database from outside of the stack's networks.
func (s *stack) databaseURL(t *testing.T) string {
	b, err := os.ReadFile(filepath.Join(s.secrets, "database_url"))
	require.NoError(t, err)
	return strings.ReplaceAll(strings.TrimSpace(string(b)), "@postgres:", "@"+s.address("database", "postgres", 0)+":")
}

func (s *stack) database(t *testing.T) *pgxpool.Pool {
	pool, err := pgxpool.New(t.Context(), s.databaseURL(t))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// showServers prints the progress of each server.
func (s *stack) showServers(t *testing.T, db *pgxpool.Pool) {
	rows, err := db.Query(context.Background(), `SELECT e::text FROM (SELECT server_id, at::time(1), step, attempt, status, reason, message FROM server_events ORDER BY server_id, event_id) e`)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	t.Log(strings.Join(lines, "\n"))
	rows, err = db.Query(context.Background(), `SELECT e::text FROM (SELECT state, waiting_roles, status_reason, status_message, count(*), min(slug) FROM tenants GROUP BY 1, 2, 3, 4) e`)
	require.NoError(t, err)
	lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	t.Log(strings.Join(lines, "\n"))
	for _, h := range s.sim.Hosts() {
		t.Logf("--- %s %s", h.Name, tail(filepath.Join(filepath.Dir(h.Root), "agent.log")))
	}
}

// killedUnderLoad kills each of two replicas of each process, by both signals, while
// callers ask and hosts report.
func (s *stack) killedUnderLoad(t *testing.T) {
	l, db := s.newLoad(t), s.database(t)
	number := func(sql string, args ...any) (n int) {
		t.Helper()
		require.NoError(t, db.QueryRow(context.Background(), sql, args...).Scan(&n))
		return n
	}
	eventually := func(what string, ok func() bool) {
		t.Helper()
		require.Eventually(t, ok, 2*time.Minute, 100*time.Millisecond, what)
	}
	require.NoError(t, l.ask(http.MethodPut, "/v1/orgs/acme", "", map[string]string{"tier": "enterprise"}, nil))
	for id, role := range map[string]string{"app": "app", "db": "db-shard", "redis": "redis-pool"} {
		l.createServer(id, role)
	}
	defer func() {
		if t.Failed() {
			s.showServers(t, db)
		}
	}()
	eventually("the fleet is there", func() bool { return number(`SELECT count(*) FROM servers WHERE status = 'active'`) == 3 })

	l.repeat(2*time.Second, func(n int) { l.createServer(fmt.Sprintf("redis-%d", n), "redis-pool") })
	l.repeat(1500*time.Millisecond, func(n int) { l.createTenant(fmt.Sprintf("a%d", n)) })
	l.repeat(1500*time.Millisecond, func(n int) { l.createTenant(fmt.Sprintf("b%d", n)) })
	l.repeat(100*time.Millisecond, func(int) {
		if err := l.ask(http.MethodGet, "/v1/servers/app", "", nil, nil); err != nil {
			l.failf("%v", err)
		}
	})
	for range 2 {
		l.repeat(50*time.Millisecond, func(int) {
			before := l.victim.Load().(string)
			err := l.exec("app")
			if after := l.victim.Load().(string); after == "api" {
				before = after
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.execs[before]++
			if err != nil {
				l.failed[before] = append(l.failed[before], err.Error())
			}
		})
	}
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		for _, service := range []string{"api", "agentgw", "worker"} {
			for n := range replicas(service) {
				l.victim.Store(service)
				require.NoError(t, s.restart(service, n, sig))
				time.Sleep(300 * time.Millisecond)
			}
		}
	}
	l.victim.Store("nothing")
	close(l.stop)
	l.wg.Wait()
	t.Logf("%d requests, %d sent again, at most %d attempts and %s for one; %d servers, %d tenants, commands on a host %v, failed %d",
		l.asked, l.retried, l.attempts, l.took.Round(time.Millisecond), len(l.servers), len(l.tenants), l.execs, len(l.failed["api"]))

	// Callers: all that they asked for was accepted, within bounds.
	require.Empty(t, l.wrong)
	require.LessOrEqual(t, l.took, patience)
	// A command continues without its worker; only a lost API leaves its caller without an answer.
	require.Empty(t, l.failed["worker"])
	require.Empty(t, l.failed["agentgw"])
	require.Empty(t, l.failed["nothing"])
	for _, victim := range []string{"api", "agentgw", "worker"} {
		require.Positive(t, l.execs[victim], "no command ran while %s was killed", victim)
	}

	// Nothing is lost: accepted requests are carried out.
	eventually("every server is active", func() bool { return number(`SELECT count(*) FROM servers WHERE status <> 'active'`) == 0 })
	eventually("every tenant is active", func() bool {
		return number(`SELECT count(*) FROM tenants WHERE state = 'active' AND converged_state = 'active'`) == len(l.tenants)
	})
	require.Equal(t, len(l.tenants), number(`SELECT count(*) FROM tenants`))
	for slug, id := range l.tenants {
		require.Equal(t, 1, number(`SELECT count(*) FROM tenants WHERE slug = $1 AND tenant_id = $2`, slug, id), "tenant %s", slug)
	}
	var rows []string
	require.NoError(t, db.QueryRow(context.Background(), `SELECT array_agg(server_id ORDER BY server_id) FROM servers`).Scan(&rows))
	for _, id := range l.servers {
		require.Contains(t, rows, id)
	}

	// Nothing is doubled: not at the provider, now or ever, not on a host, not in a count.
	made := madeOnce(t, s.sim, l.servers)
	require.LessOrEqual(t, len(made), number(`SELECT count(*) FROM servers`), "every server has its row")
	require.Equal(t, len(l.tenants), number(`SELECT count(*) FROM tenant_allocations WHERE released_at IS NULL`))
	require.Zero(t, number(`SELECT count(*) FROM servers s WHERE tenant_count <> (SELECT count(*) FROM tenant_allocations a WHERE a.app_server_id = s.server_id AND released_at IS NULL)`))
	var sites []string
	for _, h := range s.sim.Hosts() {
		on, err := sim.HostSites(h.Root)
		require.NoError(t, err)
		sites = append(sites, on...)
	}
	for slug := range l.tenants {
		n := 0
		for _, site := range sites {
			if site == slug+".sites.test" {
				n++
			}
		}
		require.Equal(t, 1, n, "sites of tenant %s", slug)
	}
	// A server that is asked for late may be on its way still.
	var twice []string
	require.NoError(t, db.QueryRow(context.Background(), `
		SELECT coalesce(array_agg(server_id || ' consumed ' || n), '{}') FROM (
			SELECT server_id, count(*) FILTER (WHERE consumed_at IS NOT NULL) AS n
			FROM server_bootstrap_tokens JOIN servers USING (server_id) WHERE status = 'active' GROUP BY server_id) s
		WHERE n <> 1`).Scan(&twice))
	require.Empty(t, twice, "servers that did not come up once")

	// Hosts: each kept reporting.
	eventually("every host reports", func() bool {
		return number(`SELECT count(*) FROM servers WHERE agent_status <> 'connected' OR agent_last_heartbeat_at < now() - interval '5 seconds'`) == 0
	})
}

// madeOnce are the names of the servers that the provider ever had, each of them once, with those of these ids.
func madeOnce(t *testing.T, provider *sim.Sim, ids []string) map[string]int {
	t.Helper()
	made := map[string]int{}
	for _, e := range provider.Ledger(false) {
		if e.Kind == "server" {
			made[e.Name]++
		}
	}
	for name, n := range made {
		require.Equal(t, 1, n, "%s was created again", name)
	}
	for _, id := range ids {
		require.Contains(t, made, server.Name("prod", prego.ServerID(id)))
	}
	return made
}
