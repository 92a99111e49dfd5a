package hetzner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/hetzner"
	"github.com/prego/prego/server"
)

const (
	apiToken     = "TmX3kQ9vB7wZ2nR5hJ8cL4fD6gS1aPyTmX3kQ9vB7wZ2nR5hJ8cL4fD6gS1aPy00"
	rootPassword = "not-for-your-eyes"
	userData     = "#cloud-config\n# bootstrap secret: never-to-be-seen\n"
)

// project is a provider project as far as making servers goes: names are unique,
// actions take as long as the test likes, and answers get lost in every way that
// they do.
type project struct {
	t   testing.TB
	url string

	mu      sync.Mutex
	last    int64
	servers map[int64]*schema.Server
	actions map[int64]*schema.Action
	// held keeps new actions running until the test ends them.
	held bool
	// afterAction is what an action that ends does.
	afterAction map[int64]func()
	faults      []*fault
	late        []schema.ServerCreateRequest
	requests    []request
	deleted     []schema.Server // in the order of their deletion
	headers     http.Header     // of every answer
}

type request struct {
	Method, Path, Query, Body string
}

// fault happens to the first matching call that no earlier fault took.
type fault struct {
	method, path string // path as in http.ServeMux, less wildcards: a prefix when it ends in /
	skip, times  int    // times 0 is once
	before       bool   // the call takes effect first
	late         bool   // the create takes effect when the test decides
	answer       func(w http.ResponseWriter)

	hits int
}

func newProject(t testing.TB) *project {
	p := &project{
		t: t, servers: make(map[int64]*schema.Server), actions: make(map[int64]*schema.Action), afterAction: make(map[int64]func()),
		last: 100, headers: http.Header{},
	}
	srv := httptest.NewServer(http.HandlerFunc(p.serve))
	p.url = srv.URL + "/v1"
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, f := range p.faults {
			require.NotZero(t, f.hits, "the fault of %s %s never happened", f.method, f.path)
		}
	})
	return p
}

// mayDelete lets everything be deleted: the last gate is in the database, and these tests have none.
func mayDelete(context.Context, prego.InfraProviderID, server.ResourceKind, string) error { return nil }

// provider is an adapter of the project; change may alter its configuration.
func (p *project) provider(change func(*hetzner.Config)) *hetzner.Provider {
	cfg := hetzner.Config{
		Endpoint: p.url, Token: apiToken, Environment: "test", Timeout: 5 * time.Second, Poll: 2 * time.Millisecond, Simulated: true, Budget: &ledger{},
		MayDelete: mayDelete,
	}
	if change != nil {
		change(&cfg)
	}
	h, err := hetzner.New(cfg)
	require.NoError(p.t, err)
	return h
}

func (p *project) inject(f *fault) *fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.times == 0 {
		f.times = 1
	}
	p.faults = append(p.faults, f)
	return f
}

func (p *project) hit(r *http.Request) *fault {
	for _, f := range p.faults {
		path := strings.TrimPrefix(r.URL.Path, "/v1")
		match := path == f.path || (strings.HasSuffix(f.path, "/") && strings.HasPrefix(path, f.path))
		if !match || (f.method != "" && f.method != r.Method) || f.times == f.hits {
			continue
		}
		if f.skip > 0 {
			f.skip--
			continue
		}
		f.hits++
		return f
	}
	return nil
}

func (p *project) serve(w http.ResponseWriter, r *http.Request) {
	body := new(strings.Builder)
	_, _ = copyBody(body, r)
	p.mu.Lock()
	p.requests = append(p.requests, request{r.Method, strings.TrimPrefix(r.URL.Path, "/v1"), r.URL.RawQuery, body.String()})
	maps.Copy(w.Header(), p.headers)
	f := p.hit(r)
	status, answer := 0, any(nil)
	switch {
	case f == nil || f.before:
		status, answer = p.handle(r, body.String())
	case f.late:
		var req schema.ServerCreateRequest
		require.NoError(p.t, json.Unmarshal([]byte(body.String()), &req))
		p.late = append(p.late, req)
	}
	b, err := json.Marshal(answer) // under the lock: it refers to the state
	p.mu.Unlock()
	require.NoError(p.t, err)
	if f != nil {
		f.answer(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if answer != nil {
		_, _ = w.Write(b)
	}
}

func copyBody(into *strings.Builder, r *http.Request) (int64, error) {
	b := make([]byte, 64<<10)
	n := int64(0)
	for {
		k, err := r.Body.Read(b)
		into.Write(b[:k])
		n += int64(k)
		if err != nil {
			return n, err
		}
	}
}

func refusal(status int, code, message string) (int, any) {
	return status, map[string]any{"error": map[string]any{"code": code, "message": message}}
}

func (p *project) handle(r *http.Request, body string) (int, any) {
	path := strings.TrimPrefix(r.URL.Path, "/v1")
	id, _ := strconv.ParseInt(path[strings.LastIndex(path, "/")+1:], 10, 64)
	switch route := r.Method + " " + strings.TrimRight(path, "0123456789"); route {
	case "POST /servers":
		var req schema.ServerCreateRequest
		require.NoError(p.t, json.Unmarshal([]byte(body), &req))
		s, err := p.make(req)
		if err != nil {
			return refusal(409, "uniqueness_error", err.Error())
		}
		made := *s // as it is before it starts
		create := p.act("create_server", nil)
		start := p.act("start_server", func() {
			if s.Status == "initializing" {
				s.Status = "running"
			}
		})
		password := rootPassword
		return 201, schema.ServerCreateResponse{Server: made, Action: *create, NextActions: []schema.Action{*start}, RootPassword: &password}
	case "GET /servers":
		list := []schema.Server{}
		for _, id := range slices.Sorted(maps.Keys(p.servers)) {
			if s := p.servers[id]; (r.URL.Query().Get("name") == "" || s.Name == r.URL.Query().Get("name")) && selected(r.URL.Query().Get("label_selector"), s.Labels) {
				list = append(list, *s)
			}
		}
		return 200, map[string]any{"servers": list}
	case "GET /actions":
		list := []schema.Action{}
		for _, v := range r.URL.Query()["id"] {
			id, _ := strconv.ParseInt(v, 10, 64)
			if a, ok := p.actions[id]; ok {
				list = append(list, *a)
			}
		}
		return 200, schema.ActionListResponse{Actions: list}
	case "GET /servers/", "PUT /servers/", "DELETE /servers/":
		s, ok := p.servers[id]
		if !ok {
			return refusal(404, "not_found", fmt.Sprintf("server with ID '%d' not found", id))
		}
		switch r.Method {
		case http.MethodPut:
			var req schema.ServerUpdateRequest
			require.NoError(p.t, json.Unmarshal([]byte(body), &req))
			s.Labels = *req.Labels
		case http.MethodDelete:
			if s.Protection.Delete {
				return refusal(423, "protected", "server deletion is protected")
			}
			s.Status = "deleting"
			return 200, schema.ServerDeleteResponse{Action: *p.act("delete_server", func() {
				p.deleted = append(p.deleted, *s)
				delete(p.servers, id)
			})}
		}
		return 200, schema.ServerGetResponse{Server: *s}
	}
	if at, verb, ok := strings.Cut(strings.TrimPrefix(path, "/servers/"), "/actions/"); ok && r.Method == http.MethodPost && (verb == "reboot" || verb == "reset") {
		id, _ := strconv.ParseInt(at, 10, 64)
		if _, ok := p.servers[id]; !ok {
			return refusal(404, "not_found", "server with ID '"+at+"' not found")
		}
		return 201, schema.ServerActionRebootResponse{Action: *p.act(verb+"_server", nil)}
	}
	return refusal(404, "not_found", "api route not found")
}

func selected(selector string, labels map[string]string) bool {
	for term := range strings.SplitSeq(selector, ",") {
		k, v, _ := strings.Cut(term, "=")
		if k != "" && labels[k] != v {
			return false
		}
	}
	return true
}

// act starts an action; unless the project holds them it has ended already.
func (p *project) act(command string, then func()) *schema.Action {
	p.last++
	a := &schema.Action{ID: p.last, Command: command, Status: "running", Started: time.Now(), Resources: []schema.ActionResourceReference{}}
	p.actions[a.ID] = a
	p.afterAction[a.ID] = then
	if !p.held {
		p.end(a, nil)
	}
	answer := *a
	return &answer
}

func (p *project) end(a *schema.Action, failure *schema.ActionError) {
	a.Status, a.Error = "success", failure
	if failure != nil {
		a.Status = "error"
		return
	}
	if then := p.afterAction[a.ID]; then != nil {
		then()
	}
}

// release ends every action that runs and holds no more.
func (p *project) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = false
	for _, id := range slices.Sorted(maps.Keys(p.actions)) {
		if p.actions[id].Status == "running" {
			p.end(p.actions[id], nil)
		}
	}
}

// endAction ends one action, with a failure if there is one.
func (p *project) endAction(id int64, failure *schema.ActionError) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(p.actions[id], failure)
}

// startActions starts n actions that run until they are ended.
func (p *project) startActions(n int) (ids []int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = true
	for range n {
		ids = append(ids, p.act("test", nil).ID)
	}
	return ids
}

var errNameTaken = errors.New("server name is already used")

// make enforces what all safety rests on: a name is there once.
func (p *project) make(req schema.ServerCreateRequest) (*schema.Server, error) {
	for _, s := range p.servers {
		if s.Name == req.Name {
			return nil, errNameTaken
		}
	}
	p.last += 3
	s := &schema.Server{
		ID: p.last, Name: req.Name, Status: "initializing", Created: time.Now().UTC(), Labels: *req.Labels,
		ServerType: schema.ServerType{Name: req.ServerType.Name}, Location: schema.Location{Name: req.Location},
	}
	s.PublicNet.IPv4 = schema.ServerPublicNetIPv4{ID: p.last - 1, IP: "203.0.113.9"}
	s.PublicNet.IPv6 = schema.ServerPublicNetIPv6{ID: p.last - 2, IP: "2001:db8:1::/64"}
	p.servers[s.ID] = s
	return s, nil
}

// plant adds an unexpected server.
func (p *project) plant(name string, labels map[string]string) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, err := p.make(schema.ServerCreateRequest{Name: name, Labels: &labels})
	require.NoError(p.t, err)
	s.Status = "running"
	return s.ID
}

// land lets the creates happen whose answer came long ago. Those whose name is
// taken by then never happen.
func (p *project) land() (made int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, req := range p.late {
		if s, err := p.make(req); err == nil {
			s.Status = "running"
			made++
		}
	}
	p.late = nil
	return made
}

func (p *project) seen(method, path string) (out []request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.requests {
		if r.Method == method && (r.Path == path || (strings.HasSuffix(path, "/") && strings.HasPrefix(r.Path, path))) {
			out = append(out, r)
		}
	}
	return out
}

func (p *project) list() (out []schema.Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(p.servers)) {
		out = append(out, *p.servers[id])
	}
	return out
}

// Answers that faults give.

func code(status int, code string) func(http.ResponseWriter) {
	return message(status, code, "injected")
}

func message(status int, code, message string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		_, body := refusal(status, code, message)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
}

func raw(status int, contentType, body string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

// reset cuts the connection with nothing sent.
func reset(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	_ = conn.Close()
}

// truncated promises more than it sends.
func truncated(w http.ResponseWriter) {
	conn, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = rw.WriteString("HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n{\"server\":{\"id\":4")
	_ = rw.Flush()
	_ = conn.Close()
}

// hang answers nothing until the caller has gone.
func hang(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = conn.Read(make([]byte, 1))
	_ = conn.Close()
}

// drip sends the head and then nothing until the caller has gone.
func drip(w http.ResponseWriter) {
	conn, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = rw.WriteString("HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n{")
	_ = rw.Flush()
	_, _ = conn.Read(make([]byte, 1))
	_ = conn.Close()
}

// ledger is a budget that remembers its calls and lets everything pass by default.
type ledger struct {
	mu       sync.Mutex
	acquired []string
	observed [][2]int
	blocked  []time.Duration
	// shut lanes wait until they are opened, or for their context's end.
	shut map[string]chan struct{}
	wait time.Duration
	fail error
}

func (l *ledger) Acquire(ctx context.Context, lane string) error {
	l.mu.Lock()
	l.acquired = append(l.acquired, lane)
	shut, wait, fail := l.shut[lane], l.wait, l.fail
	l.mu.Unlock()
	if shut != nil {
		select {
		case <-shut:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if wait > 0 {
		time.Sleep(wait)
	}
	return fail
}

func (l *ledger) Observe(_ context.Context, limit, remaining int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.observed = append(l.observed, [2]int{limit, remaining})
	return nil
}

func (l *ledger) Block(_ context.Context, d time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocked = append(l.blocked, d)
	return nil
}

func (l *ledger) open(lane string) { close(l.shut[lane]) }

func (l *ledger) lanes() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.acquired)
}

// order is what the tests ask the project for.
func order(change func(*server.CreateParams)) server.CreateParams {
	p := server.CreateParams{
		Environment: "test", ServerID: "app-1", Role: prego.RoleApp, Region: prego.RegionEU, Attempt: 2, SpecHash: "abc123",
		Candidate: server.Candidate{ServerType: "cx43", Location: "fsn1"}, Image: "debian-12", UserData: userData,
	}
	if change != nil {
		change(&p)
	}
	return p
}

// requireClass checks the class and code of an error, and that it exposes no secret.
func requireClass(t testing.TB, err error, class server.InfraClass, code string) server.InfraError {
	t.Helper()
	var ie *server.InfraError
	require.ErrorAs(t, err, &ie)
	require.Equal(t, class, ie.Class, "%v", err)
	require.Equal(t, code, ie.Code, "%v", err)
	requireNoSecret(t, err.Error())
	requireNoSecret(t, fmt.Sprintf("%+v", ie))
	return *ie
}

func requireNoSecret(t testing.TB, text string) {
	t.Helper()
	for _, secret := range []string{apiToken, rootPassword, "never-to-be-seen"} {
		require.NotContains(t, text, secret)
	}
}
