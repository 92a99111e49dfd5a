package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/devstack"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/migrations"
	"github.com/prego/prego/tenant"
)

// failoverClientTimeout is what callers wait for an answer: more than the API lets a request last.
const failoverClientTimeout = 30 * time.Second

// databasePair are a primary and its synchronous standby.
type databasePair struct {
	primary, standby *devstack.Postgres
	url              string // names both
}

func newDatabasePair(t testing.TB) *databasePair {
	t.Helper()
	ctx := t.Context()
	dir, err := os.MkdirTemp("/var/tmp", "prego-failover-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o777)) // the standby's directory is made by Postgres's user
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &databasePair{}
	p.primary, err = devstack.StartPostgres(ctx, devstack.PostgresConfig{Dir: filepath.Join(dir, "a")})
	require.NoError(t, err)
	t.Cleanup(p.primary.Kill)
	require.NoError(t, p.primary.EnsureDatabase(ctx, "prego"))
	require.NoError(t, migrations.Up(ctx, p.primary.URL("prego")))
	p.standby, err = devstack.StartStandby(ctx, devstack.PostgresConfig{Dir: filepath.Join(dir, "b")}, p.primary)
	require.NoError(t, err)
	t.Cleanup(p.standby.Kill)
	p.url = fmt.Sprintf("postgres://prego@127.0.0.1:%d,127.0.0.1:%d/prego?sslmode=disable&target_session_attrs=read-write", p.primary.Port, p.standby.Port)
	return p
}

// callers send requests to the API all the time, and remember what it acknowledged.
type callers struct {
	c      *cell
	client *http.Client
	stop   chan struct{}
	all    sync.WaitGroup
	number atomic.Int64

	mu           sync.Mutex
	acknowledged []string // orgs, whose tier and quota were confirmed
	answers      map[int]int
	wrong        []string // what may not be answered
	longest      time.Duration
	firstAfter   time.Time // the first acknowledged write that began after since
	since        time.Time
}

func (c *cell) callAllTheTime(writers int) *callers {
	w := &callers{c: c, client: &http.Client{Timeout: failoverClientTimeout}, stop: make(chan struct{}), answers: map[int]int{}}
	for range writers {
		w.all.Go(func() { w.loop(w.write) })
	}
	w.all.Go(func() {
		w.loop(func() {
			w.ask(http.MethodGet, "/v1/tenants?limit=5", nil)
			w.ask(http.MethodGet, "/v1/servers?limit=5", nil)
		})
	})
	return w
}

// loop bounds how often something is done.
func (w *callers) loop(do func()) {
	pace := time.NewTicker(40 * time.Millisecond)
	defer pace.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-pace.C:
			do()
		}
	}
}

// write makes an org and gives it a quota. Each is repeated until it is acknowledged, as a caller would.
func (w *callers) write() {
	n := w.number.Add(1)
	id, began := fmt.Sprintf("org-%d", n), time.Now()
	for _, r := range []struct {
		path string
		body any
	}{
		{"/v1/orgs/" + id, map[string]string{"tier": "enterprise"}},
		{"/v1/orgs/" + id + "/quotas/max_volumes", map[string]any{"limit": n, "reason": "failover"}},
	} {
		if !w.ask(http.MethodPut, r.path, r.body) {
			return
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acknowledged = append(w.acknowledged, id)
	if !w.since.IsZero() && w.firstAfter.IsZero() && began.After(w.since) {
		w.firstAfter = time.Now()
	}
}

// ask reports whether a request was acknowledged. A refusal must be temporary.
func (w *callers) ask(method, path string, body any) bool {
	var r io.Reader
	if body != nil {
		b, _ := json.Marshal(body)
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, "http://"+w.c.addr("api")+path, r)
	if err != nil {
		panic(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.c.operator)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	began := time.Now()
	resp, err := w.client.Do(req)
	var text []byte
	if err == nil {
		text, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.longest = max(w.longest, time.Since(began))
	switch {
	case err != nil:
		w.wrong = append(w.wrong, fmt.Sprintf("%s %s: %v", method, path, err))
		return false
	case resp.StatusCode/100 == 2:
	case resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != "":
	default:
		w.wrong = append(w.wrong, fmt.Sprintf("%s %s: %d %s", method, path, resp.StatusCode, text))
	}
	w.answers[resp.StatusCode]++
	return resp.StatusCode/100 == 2
}

func (w *callers) acknowledgedSoFar() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.acknowledged)
}

// TestAStandbyTakesOver loses the primary while a tenant is provisioned and callers write: by
// SIGKILL of its postmaster, or because it turns read-only. The standby is promoted, and no
// process of the control plane is started again.
func TestAStandbyTakesOver(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, p *databasePair){
		"killed": func(t *testing.T, p *databasePair) {
			require.NoError(t, syscall.Kill(p.primary.PID(), syscall.SIGKILL))
		},
		"read-only": func(t *testing.T, p *databasePair) {
			require.NoError(t, p.primary.Execute(t.Context(), "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dbs := newDatabasePair(t)
			crash := filepath.Join(t.TempDir(), "crash")
			vars := sharedVars()
			maps.Copy(vars, map[string]string{"PREGO_TEST_CRASH": crash})
			c := newCell(t, options{url: dbs.url, vars: vars})
			c.org("acme", "")
			c.sharedFleet(1)
			require.NoError(t, os.WriteFile(crash, []byte("hold:site/made"), 0o600))
			w := c.callAllTheTime(3)
			t.Cleanup(func() {
				select {
				case <-w.stop:
				default:
					close(w.stop)
				}
				w.all.Wait()
			})
			id := c.tenant("alpha", prego.PlanStarter, func(m map[string]any) { m["apps"] = []string{"erpnext"} })
			eventually(t, func() bool { return exists(crash + ".hit") }, patience, 5*time.Millisecond, "the tenant is in the midst of its way")
			eventually(t, func() bool { return w.acknowledgedSoFar() > 20 }, patience, 20*time.Millisecond)

			lost := time.Now()
			lose(t, dbs)
			require.NoError(t, os.Remove(crash+".hit")) // the worker continues, without a database
			for _, p := range []string{"api", "agentgw-ops", "worker-ops"} {
				eventually(t, func() bool {
					resp, err := need.HTTP.Get("http://" + c.addr(p) + "/readyz")
					if err != nil {
						return false
					}
					defer func() { _ = resp.Body.Close() }()
					return resp.StatusCode == http.StatusServiceUnavailable
				}, patience, 20*time.Millisecond, "%s reports that it is not ready", p)
			}
			before := w.acknowledgedSoFar()
			require.NoError(t, dbs.standby.Promote(t.Context()))
			promoted := time.Now()
			w.mu.Lock()
			w.since = promoted
			w.mu.Unlock()
			eventually(t, func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return !w.firstAfter.IsZero()
			}, patience, 5*time.Millisecond, "the API takes writes again")
			w.mu.Lock()
			back := w.firstAfter.Sub(promoted)
			w.mu.Unlock()
			c.pool.Reset()
			for _, p := range []string{"api", "agentgw-ops", "worker-ops"} {
				require.NoError(t, c.procs[map[string]string{"api": "api", "agentgw-ops": "agentgw", "worker-ops": "worker"}[p]].AwaitHTTP(t.Context(), "http://"+c.addr(p)+"/readyz", patience))
			}
			eventually(t, func() bool {
				status, _ := c.request(http.MethodGet, "/v1/tenants/"+id, nil)
				return status == http.StatusOK
			}, patience, 20*time.Millisecond)
			c.settledTenant(id, tenant.Active)
			settled := time.Since(promoted)
			close(w.stop)
			w.all.Wait()

			there := map[string]bool{}
			rows, err := c.pool.Query(t.Context(), `SELECT org_id FROM orgs JOIN org_quotas USING (org_id) WHERE tier = 'enterprise' AND 'org-' || limit_value = org_id`)
			require.NoError(t, err)
			for rows.Next() {
				var org string
				require.NoError(t, rows.Scan(&org))
				there[org] = true
			}
			require.NoError(t, rows.Err())
			missing := slices.DeleteFunc(slices.Clone(w.acknowledged), func(id string) bool { return there[id] })
			t.Logf("failover (%s): %d acknowledged writes (%d before the promotion), %d lost; answers %v, longest %.1f s; promoted %.1f s after the loss, the API back %.1f s later, the tenant active %.1f s later",
				name, len(w.acknowledged), before, len(missing), w.answers, w.longest.Seconds(), promoted.Sub(lost).Seconds(), back.Seconds(), settled.Seconds())
			require.Empty(t, missing, "acknowledged and lost")
			require.Empty(t, w.wrong, "answers other than 2xx and 503 with Retry-After")
			require.NotZero(t, w.answers[http.StatusServiceUnavailable], "the failover was noticed")
			require.LessOrEqual(t, back, 15*time.Second)
			require.Equal(t, 1, c.number(`SELECT count(*) FROM tenant_allocations WHERE tenant_id = $1`, id))
			var replica bool
			c.query(&replica, `SELECT pg_is_in_recovery() OR inet_server_port() <> $1`, dbs.standby.Port)
			require.False(t, replica, "the rows were read from the new primary")
			c.counted()
			c.settled()
		})
	}
}
