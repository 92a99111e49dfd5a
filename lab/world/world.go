// Package world is the seeded world: prego's real API, gateway, worker, store and provider client in one process, with
// the simulated provider, hosts and an in-process workflow service, in a bubble of testing/synctest. One actor runs at
// a time; a seed decides which, and which faults happen. docs/reliability.md describes it.
package world

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/lab/world/frontend"
)

// Namespace of the workflow service.
const Namespace = "world"

// ProviderToken is the simulated provider's token.
const ProviderToken = "world-token"

// System wires the processes, as app does.
type System interface {
	// API returns its handler, for an operator.
	API(l *Life) (http.Handler, error)
	// Gateway returns its handler, and what runs beside it until the context ends.
	Gateway(l *Life) (handler http.Handler, run func(ctx context.Context), err error)
	// Worker starts a worker, and returns what stops it.
	Worker(l *Life) (stop func(), err error)
	// Restore saves what has changed, has the database lost and restored, and completes it. It may be repeated.
	Restore(l *Life, lose func() error) error
}

// World is one play.
type World struct {
	Seed     uint64
	Schedule *Scheduler
	Faults   *Faults
	Frontend *frontend.Service

	t        testing.TB
	system   System
	database string
	bridge   *bridge
	cloud    *sim.Sim
	provider http.Handler
	hosts    *hosts
	storage  *storage
	names    *names
	// authority issues certificates.
	authority *authority
	rng       *rand.Rand // of the play's requests

	lives   map[string]int
	ending  sync.WaitGroup
	asking  atomic.Int32 // callers
	api, gw *Life
	worker  *Life
	// processes are all that ever were.
	processes []*Life
	apiHTTP   http.Handler
	gwHTTP    http.Handler
	commits   int
	mayLose   bool
	lost      atomic.Bool // the database is
	provided  atomic.Bool // the provider did something
	changed   atomic.Bool // objects in the storage did
	problems  []string
	limited   map[string]bool     // orgs
	ends      map[string][]string // how tenants must end, by slug
	counters  map[string]int
	written   map[string]contents // acknowledged writes to sites, by their names
	writes    int                 // of all visitors
	wroteAt   map[int]string      // the name of the host that took each
	makes     map[string]int      // how often the provider made something of a name
	active    map[string]bool     // slugs of tenants that ever were, when it was last looked
	states    map[string]string   // of tenants by slug, and of backups, moves, restores, maintenances and servers by id, then
	sealed    map[string]contents // contents of archives, by the digest of the sealed file
	zoned     atomic.Bool         // our records changed
	lacks     string              // missing on edges
	lackSince time.Time
	mu        sync.Mutex
}

// Outcome is the result of a seed.
type Outcome struct {
	Seed       uint64
	Steps      int
	Locks      int
	Virtual    time.Duration
	Real       time.Duration
	Sum        uint64 // of the timeline
	Violations []string
	Faults     []Fault
	Swarm      string
	Counters   map[string]int
	Timeline   []string
	Histories  []frontend.History
}

// Options of a play.
type Options struct {
	Keep bool            // the timeline
	Only map[string]bool // faults that may happen, as Fault names them; nil for all
	Calm bool            // no faults
	// Named gives the play private networks, edges, a zone, tenants' own names and a certificate authority.
	Named bool
	// Loses has the play lose its database, and complete it from its redo log.
	Loses bool
}

// hung is how long the next step of a play may take in real time, on the busiest machine.
const hung = 10 * time.Minute

// Epoch is when every play begins.
var Epoch = time.Date(2027, 1, 4, 9, 0, 0, 0, time.UTC)

// Play plays a seed on a separate database.
func Play(t *testing.T, system System, seed uint64, o Options) Outcome {
	t.Helper()
	at := takePlace(t)
	defer at.giveBack()
	cryptotest.SetGlobalRandom(t, seed)
	steady(seed, 0)
	began := time.Now()
	ended := make(chan struct{})
	defer close(ended)
	go at.bridge.watchSteps(seed, ended)
	var out Outcome
	synctest.Test(t, func(t *testing.T) { out = play(t, system, seed, o, at) })
	out.Real = time.Since(began)
	return out
}

// watchSteps panics when the play of a seed makes no steps any more.
func (b *bridge) watchSteps(seed uint64, ended <-chan struct{}) {
	last := b.steps.Load()
	for still := 0; ; still++ {
		select {
		case <-ended:
			return
		case <-time.After(hung / 10):
		}
		if now := b.steps.Load(); now != last {
			last, still = now, 0
		}
		if still == 10 {
			panic(fmt.Sprintf("world: seed %d has hung for %s:\n%s", seed, hung, holding()))
		}
	}
}

// holding are the goroutines that keep a bubble's clock from moving, and those outside of bubbles.
func holding() string {
	var all bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&all, 2)
	return strings.Join(slices.DeleteFunc(strings.Split(all.String(), "\n\n"), func(g string) bool {
		head, _, _ := strings.Cut(g, "\n")
		return strings.Contains(head, "(durable)")
	}), "\n\n")
}

func play(t *testing.T, system System, seed uint64, o Options, at *place) Outcome {
	time.Sleep(time.Until(Epoch))
	w := &World{
		Seed: seed, t: t, system: system, database: at.url, bridge: at.bridge, rng: rand.New(rand.NewPCG(seed, 3)),
		lives: map[string]int{}, counters: map[string]int{}, limited: map[string]bool{}, ends: map[string][]string{},
		written: map[string]contents{}, active: map[string]bool{}, states: map[string]string{}, makes: map[string]int{},
		sealed: map[string]contents{}, wroteAt: map[int]string{},
	}
	w.mayLose = o.Loses
	w.Schedule = newScheduler(at.bridge, seed)
	w.Schedule.keep = o.Keep
	habits := rand.New(rand.NewPCG(seed, 4))
	w.Schedule.stay = []float64{0, 0.3, 0.8}[habits.IntN(3)]
	w.Schedule.slow = []float64{0, 0, 0.01, 0.03}[habits.IntN(4)]
	w.Faults = newFaults(seed, w.Schedule.Sayf)
	if o.Calm {
		w.Faults.on = map[string]float64{}
	}
	w.Faults.only = o.Only
	w.Schedule.before = w.before
	ids := rand.New(rand.NewPCG(seed, 5))
	w.Frontend = frontend.New(frontend.Options{Namespace: Namespace, Ready: w.Schedule.ready, NewID: func() string {
		return fmt.Sprintf("%08x-0000-4000-8000-%012x", ids.Uint32(), ids.Uint64()&0xffffffffffff)
	}})
	w.hosts, w.storage, w.names, w.authority = newHosts(w), newStorage(w), newNames(w, o.Named), newAuthority(w)
	var err error
	w.cloud, err = sim.New(sim.Config{
		StateDir: t.TempDir(), Token: ProviderToken, Guest: w.hosts.run, RatePerHour: 360_000,
		Zones: []string{Zone, customerZone}, Profile: sim.Profile{Action: 6 * time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	if w.provider, err = w.cloud.Within(context.Background()); err != nil {
		t.Fatal(err)
	}
	at.bridge.written() // of the play before
	if err := w.story(); err != nil {
		w.violationf("the play: %v", err)
	}
	out := Outcome{
		Seed: seed, Steps: w.Schedule.Steps, Locks: w.Schedule.Locks, Virtual: time.Since(w.Schedule.began),
		Sum: w.Schedule.sum, Faults: w.Faults.Log(), Swarm: w.Faults.Swarm(), Timeline: w.Schedule.trace,
		Histories: w.Frontend.Histories(),
	}
	for _, f := range w.Frontend.Failures() {
		if strings.Contains(f.Message, "workflow task heartbeat") {
			w.Met("a worker lost its workflow task") // it was slower than its deadline; another takes it
			continue
		}
		w.violationf("a workflow task failed: %s: %s %s", f.WorkflowID, f.Cause, f.Message)
	}
	w.mu.Lock()
	out.Violations, out.Counters = w.problems, w.counters
	w.mu.Unlock()
	w.close()
	return out
}

// close ends everything that runs.
func (w *World) close() {
	w.Faults.stop()
	w.Schedule.Free()
	w.mu.Lock()
	all := w.processes
	w.mu.Unlock()
	for _, l := range all {
		l.kill()
	}
	w.Frontend.Close()
	w.cloud.CloseWithin()
	w.ending.Wait()
	time.Sleep(time.Hour) // remaining polls of dead processes end by themselves
}

func (w *World) violationf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.Schedule.Sayf("VIOLATION %s", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, text)
}

// Met counts something that a run of many seeds must have met.
func (w *World) Met(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counters[what]++
}

func (w *World) committed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.commits++
}

// start starts a process.
func (w *World) start(kind string) error {
	w.Schedule.yield(nil, "start "+kind, "begins")
	if w.lost.Load() {
		return errNoDatabase
	}
	l, err := w.born(kind)
	if err != nil {
		return err
	}
	switch kind {
	case "api":
		var handler http.Handler
		if handler, err = w.system.API(l); err == nil {
			w.api, w.apiHTTP = l, handler
		}
	case "gateway":
		var handler http.Handler
		var run func(context.Context)
		if handler, run, err = w.system.Gateway(l); err == nil {
			ended := make(chan struct{})
			go func() { defer close(ended); run(l.Context) }()
			l.runs(func() { <-ended })
			w.gw, w.gwHTTP = l, handler
		}
	case "worker":
		var stop func()
		if stop, err = w.system.Worker(l); err == nil {
			l.runs(stop)
			w.worker = l
		}
	}
	if err != nil && !l.dead.Load() {
		l.kill()
		return err
	}
	w.Schedule.Sayf("%s starts", l.Name)
	return nil // if it has died meanwhile, another one is on its way
}

func (w *World) gateway() (*Life, http.Handler) {
	if w.gw == nil || w.gw.dead.Load() {
		return nil, nil
	}
	return w.gw, w.gwHTTP
}

// before lets the clock jump, and a process die before its next step.
func (w *World) before(t *turn) bool {
	if w.Faults.hit("clock_jump", t.String()) {
		time.Sleep(time.Duration(1+w.Schedule.rng.IntN(8)) * time.Minute)
	}
	if t.life == nil || t.life.dead.Load() {
		return true
	}
	if !w.Faults.hit(t.life.Kind+"_dies", t.String()) {
		return true
	}
	l := t.life
	w.dies(l) // its turns come to nothing
	close(t.goOn)
	w.Met(l.Kind + " died")
	if l.Kind != "restore" {
		w.restart(l.Kind)
	}
	return false
}

// restart starts a process again in a moment, like a process manager.
func (w *World) restart(kind string) {
	w.ending.Add(1)
	time.AfterFunc(3*time.Second, func() {
		defer w.ending.Done()
		if w.over() {
			return
		}
		if err := w.start(kind); err != nil {
			w.Schedule.Sayf("%s does not start: %v", kind, err)
			w.restart(kind)
		}
	})
}

// Exists reports whether the provider has a server with this id.
func (w *World) Exists(id int64) bool {
	req := httptest.NewRequestWithContext(context.Background(), http.MethodGet, fmt.Sprintf("/v1/servers/%d", id),
		http.NoBody)
	req.Header.Set("Authorization", "Bearer "+ProviderToken)
	rec := httptest.NewRecorder()
	w.provider.ServeHTTP(rec, req)
	return rec.Code == http.StatusOK
}

// Provider is how a process reaches the provider.
func (l *Life) Provider() http.RoundTripper { return provider{l} }

type provider struct{ l *Life }

// sent is the body of a request with a waiting caller.
func sent(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, r.Context().Err()
	}
	body, err := io.ReadAll(r.Body)
	_ = r.Body.Close()
	return body, cmp.Or(err, r.Context().Err())
}

func (p provider) RoundTrip(r *http.Request) (*http.Response, error) {
	w, ctx := p.l.w, r.Context()
	what := r.Method + " " + r.URL.Path
	if err := p.l.step(ctx, "provider "+what); err != nil {
		return nil, err
	}
	body, err := sent(r)
	if err != nil {
		return nil, err
	}
	where := p.l.actor(ctx) + " " + what
	answer := func(status int, code string) *http.Response {
		rec := httptest.NewRecorder()
		rec.Header().Set("Content-Type", "application/json")
		rec.WriteHeader(status)
		_ = json.NewEncoder(rec).Encode(map[string]any{"error": map[string]any{"code": code, "message": "world"}})
		resp := rec.Result()
		resp.Request = r
		return resp
	}
	send := func() *http.Response {
		again := httptest.NewRequestWithContext(context.WithoutCancel(ctx), r.Method, r.URL.RequestURI(),
			bytes.NewReader(body))
		again.Header = r.Header.Clone()
		rec := httptest.NewRecorder()
		w.provider.ServeHTTP(rec, again)
		resp := rec.Result()
		resp.Request = r
		return resp
	}
	f, kind := w.Faults, "provider"
	if strings.HasPrefix(r.URL.Path, "/v1/zones") {
		kind = "dns"
		defer w.zoned.Store(true)
	}
	switch {
	case f.hit(kind+"_refused", where):
		return nil, errors.New("connection refused")
	case f.hit(kind+"_500", where):
		return answer(http.StatusInternalServerError, "service_error"), nil
	case f.hit("provider_429", where):
		return answer(http.StatusTooManyRequests, "rate_limit_exceeded"), nil
	case f.hit("provider_slow", where):
		if err := pause(ctx, 45*time.Second); err != nil {
			return nil, err
		}
	case kind == "provider" && r.Method != http.MethodGet && f.hit("provider_late", where):
		w.ending.Add(1)
		already := w.created(r, body, 0)
		go func() {
			defer w.ending.Done()
			time.Sleep(time.Minute)
			w.Schedule.yield(nil, "late "+where, "provider "+what)
			if w.created(r, body, 0) > already {
				// A repeated creation may have been carried out and deleted meanwhile: a provider that then creates it
				// twice leaves an orphan, which the reconciler deletes when it is old enough.
				return
			}
			_ = send().Body.Close()
			w.provided.Store(true)
		}()
		return nil, errLost
	}
	resp := send()
	if r.Method != http.MethodGet {
		w.provided.Store(true)
	}
	if resp.StatusCode == http.StatusCreated {
		w.created(r, body, 1)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		steady(w.Seed, uint64(w.Schedule.Steps)) //nolint:gosec // not negative
	}
	if f.hit(kind+"_lost", where) {
		return nil, errLost
	}
	if err := p.l.step(ctx, "provider answers "+what); err != nil {
		return nil, err
	}
	return resp, nil
}

// created counts the creations of each name, including added ones.
func (w *World) created(r *http.Request, body []byte, more int) int {
	var named struct{ Name string }
	if r.Method != http.MethodPost || json.Unmarshal(body, &named) != nil || named.Name == "" {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.makes[r.URL.Path+" "+named.Name] += more
	return w.makes[r.URL.Path+" "+named.Name]
}

// open connects to the play's database from within the bubble, without faults and turns.
func (w *World) open() (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(w.database)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 1
	cfg.MaxConnLifetime, cfg.MaxConnIdleTime, cfg.HealthCheckPeriod = 1e6*time.Hour, 1e6*time.Hour, 1e5*time.Hour
	watcher := &Life{w: w, Name: "watcher", watches: true, conns: map[*conn]struct{}{}}
	cfg.ConnConfig.DialFunc = watcher.dial
	cfg.ConnConfig.ConnectTimeout = 0
	return pgxpool.NewWithConfig(context.Background(), cfg)
}
