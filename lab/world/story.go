package world

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/prego/prego/api"
)

// troubled is how long faults happen, calm how long everything then has to converge.
const (
	troubled = 25 * time.Minute
	calm     = 100 * time.Minute
	// checkEvery is the number of transactions between checks of all invariants. Invariants that read a transaction's
	// columns are checked when it has ended.
	checkEvery = 40
	// endless is more steps than any play takes: some actor repeats itself.
	endless = 60_000
)

// story has the requests and their expected results.
func (w *World) story() error {
	watch, err := w.open()
	if err != nil {
		return err
	}
	defer watch.Close()
	slow := w.Schedule.slow
	w.Schedule.slow, w.Faults.stopped = 0, true
	started := make(chan error, 3)
	for _, kind := range []string{"api", "gateway", "worker"} {
		go func() { started <- w.start(kind) }()
	}
	w.Schedule.Run(func() bool { return len(started) == 3 }, time.Now().Add(time.Minute))
	for range 3 {
		select {
		case err := <-started:
			if err != nil {
				return err
			}
		default:
			return fmt.Errorf("the processes do not start within a minute")
		}
	}
	w.Schedule.slow = slow
	w.Faults.stopped = false
	w.callers()
	if w.mayLose {
		w.loses()
	}
	checked := 0
	look := func() bool {
		w.mu.Lock()
		commits := w.commits
		w.mu.Unlock()
		if commits >= checked+checkEvery {
			checked = commits
			w.broken()
			w.check(watch)
		} else if which := w.broken(); len(which) > 0 {
			w.ask(watch, which)
		}
		if w.Schedule.Steps > endless {
			w.violationf("after %d steps no end is in sight: %s is next", w.Schedule.Steps, w.Schedule.last)
		}
		return len(w.problems) > 0
	}
	next := time.Now()
	open := ""
	settled := func() bool {
		if w.lost.Load() { // until it is completed, it is not what the world is compared with
			return false
		}
		if look() {
			return true
		}
		if time.Now().Before(next) {
			return false
		}
		next = time.Now().Add(30 * time.Second)
		w.lookAround(watch)
		if n := w.asking.Load(); n > 0 {
			open = fmt.Sprintf("%d callers", n)
			return false
		}
		open = w.unsettled(watch)
		return open == ""
	}
	w.Schedule.Run(settled, time.Now().Add(troubled))
	w.Faults.stop()
	w.Schedule.Sayf("--- the faults stop")
	next = time.Now()
	w.Schedule.Run(settled, time.Now().Add(calm))
	if len(w.problems) == 0 && open != "" {
		return fmt.Errorf("not converged %s after the last fault: %s", calm, open)
	}
	w.check(watch)
	w.final(watch)
	return nil
}

// callers are the authors of requests.
func (w *World) callers() {
	orgs := 1 + w.rng.IntN(2)
	known := map[string]chan struct{}{}
	for i := range orgs {
		org := fmt.Sprintf("org-%d", i+1)
		there := make(chan struct{})
		known[org] = there
		limit := []int{0, 0, 1, 2}[w.rng.IntN(4)]
		w.limited[org] = limit > 0
		w.caller("org "+org, 0, func(c *caller) {
			c.ask(http.MethodPut, "/v1/orgs/"+org, "", map[string]any{"tier": "enterprise"}, http.StatusOK)
			if limit > 0 {
				c.ask(http.MethodPut, "/v1/orgs/"+org+"/quotas/max_instances", "",
					map[string]any{"limit": limit, "reason": "world"}, http.StatusOK)
			}
			close(there)
		})
	}
	tenants := 1 + w.rng.IntN(4)
	own := rand.New(rand.NewPCG(w.Seed, 8)) // of names: other requests do not depend on them
	var regions []string
	for i := range tenants {
		slug := fmt.Sprintf("t%d", i+1)
		body := map[string]any{
			"slug": slug, "org_id": fmt.Sprintf("org-%d", 1+w.rng.IntN(orgs)),
			"region": []string{"eu", "us"}[w.rng.IntN(2)],
			"plan":   []string{"starter", "business", "enterprise"}[w.rng.IntN(3)],
		}
		if w.rng.IntN(3) == 0 {
			body["apps"] = []string{"erpnext"}
		}
		body["policy"] = []string{"one_tenant_one_server", "shared"}[w.rng.IntN(2)]
		after := time.Duration(w.rng.IntN(120)) * time.Second
		then := lives[w.rng.IntN(len(lives))]
		later := time.Duration(w.rng.IntN(400)) * time.Second
		if then.node {
			body["policy"] = "one_tenant_one_server"
		}
		there := known[body["org_id"].(string)]
		region := body["region"].(string)
		if !slices.Contains(regions, region) {
			regions = append(regions, region)
		}
		named := w.named(own)
		w.caller("tenant "+slug, 10*time.Second+after, func(c *caller) {
			<-there
			var made struct {
				TenantID string `json:"tenant_id"`
			}
			fine := []int{http.StatusAccepted}
			if w.limited[body["org_id"].(string)] {
				fine = append(fine, http.StatusConflict)
			}
			if !c.askUntil(http.MethodPost, "/v1/tenants", "key-"+slug, body, &made, fine) {
				return
			}
			if made.TenantID == "" {
				w.Met("tenant refused by the quota")
				return
			}
			w.Met("tenant accepted")
			w.visitors(slug)
			t := &wanted{id: made.TenantID, slug: slug, region: region}
			named(t)
			time.Sleep(later)
			then.do(c, t)
		})
	}
	if w.names.on {
		w.edges(regions, own)
	}
	for i := range w.rng.IntN(3) {
		id := fmt.Sprintf("srv-%d", i+1)
		body := map[string]any{
			"server_id": id, "role": []string{"redis-pool", "db-shard", "app"}[w.rng.IntN(3)],
			"region": "eu", "infra_provider": "hetzner", "spec": map[string]any{},
		}
		after := time.Duration(w.rng.IntN(120)) * time.Second
		gone := w.rng.IntN(2) == 0
		later := time.Duration(w.rng.IntN(300)) * time.Second
		w.caller("server "+id, after, func(c *caller) {
			if !c.ask(http.MethodPost, "/internal/servers/create", "", body, http.StatusAccepted) {
				return
			}
			w.Met("server accepted")
			if gone {
				time.Sleep(later)
				w.expected(id, "terminated", "failed")
				c.ask(http.MethodDelete, "/v1/servers/"+id, "", nil, http.StatusAccepted, http.StatusConflict)
			}
		})
	}
}

// caller sends requests, and repeats unanswered ones.
type caller struct {
	w       *World
	name    string
	accepts string // the digest of an impact
}

func (w *World) caller(name string, after time.Duration, do func(c *caller)) {
	w.ending.Add(1)
	w.asking.Add(1)
	go func() {
		defer w.ending.Done()
		defer w.asking.Add(-1)
		time.Sleep(after)
		do(&caller{w: w, name: name})
	}()
}

// answered asks, and returns the status that it was answered; 999 if it was not.
func (c *caller) answered(method, path, key string, fine ...int) int {
	status := 999
	c.askUntil(method, path, key, nil, &status, fine)
	return status
}

func (c *caller) ask(method, path, key string, body any, fine ...int) bool {
	return c.askUntil(method, path, key, body, nil, fine)
}

func (c *caller) askUntil(method, path, key string, body, into any, fine []int) bool {
	c.accepts = ""
	for try := range 200 {
		status, answer := c.send(method, path, key, body)
		var refused api.Problem
		switch {
		case status == http.StatusConflict && json.Unmarshal(answer, &refused) == nil && refused.Impact != nil:
			c.accepts = refused.Impact.Digest
		case status == 0 || status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests:
		case status == http.StatusConflict &&
			bytes.Contains(answer, []byte(`"request_under_way"`)): // of a process that died before it answered
		case status >= 500:
			c.w.violationf("%s: %s %s answered %d: %s", c.name, method, path, status, answer)
			return false
		default:
			if slices.Contains(fine, status) {
				if code, ok := into.(*int); ok {
					*code = status
				} else if into != nil {
					_ = json.Unmarshal(answer, into)
				}
				return true
			}
			c.w.violationf("%s: %s %s answered %d: %s", c.name, method, path, status, answer)
			return false
		}
		time.Sleep(time.Duration(1+try) * time.Second)
		if c.w.over() {
			return false
		}
	}
	c.w.violationf("%s: %s %s was never answered", c.name, method, path)
	return false
}

// expected notes a tenant's or a server's end, from its accepted requests.
func (w *World) expected(slug string, states ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends[slug] = states
}

func (w *World) expect(slug, state string) {
	w.mu.Lock()
	want := w.ends[slug]
	w.mu.Unlock()
	if want != nil && !slices.Contains(want, state) {
		w.violationf("I10 tenant %s ends %s, and its accepted requests require %v", slug, state, want)
	}
}

func (w *World) over() bool {
	w.Schedule.mu.Lock()
	defer w.Schedule.mu.Unlock()
	return w.Schedule.free
}

// send sends one request; status 0 is no answer.
func (c *caller) send(method, path, key string, body any) (int, []byte) {
	w := c.w
	w.Schedule.yield(nil, "caller "+c.name, method+" "+path)
	l, handler := w.api, w.apiHTTP
	if l.dead.Load() {
		return 0, nil
	}
	var r io.Reader = http.NoBody
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			panic(err)
		}
		r = bytes.NewReader(b)
	}
	ctx, cancel := context.WithTimeout(As(context.Background(), c.name), time.Minute)
	defer cancel()
	req := httptest.NewRequestWithContext(ctx, method, "http://api"+path, r)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	if c.accepts != "" {
		req.Header.Set("Impact-Accepted", c.accepts)
	}
	rec := httptest.NewRecorder()
	handler.ServeHTTP(rec, req)
	if rec.Code == http.StatusServiceUnavailable {
		w.Met("answered 503")
		if rec.Header().Get("Retry-After") == "" {
			w.violationf("%s: %s %s answered 503 without Retry-After: %s", c.name, method, path, rec.Body.Bytes())
		}
	}
	if l.dead.Load() || w.Faults.hit("api_lost", c.name+" "+method+" "+path) {
		return 0, nil
	}
	return rec.Code, rec.Body.Bytes()
}

// rows reads what a statement that looks for something wrong found.
func (w *World) rows(watch *pgxpool.Pool, sql string, args ...any) ([]string, error) {
	rows, err := watch.Query(context.Background(), sql, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var s *string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		if s != nil {
			out = append(out, *s)
		}
	}
	return out, rows.Err()
}
