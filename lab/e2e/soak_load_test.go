//go:build soak

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// load are the users of the installation: a handful of actors, each doing one thing at a steady pace, so that a run of
// any length does the same in each minute.
type load struct {
	*public
	residents []string // tenants that stay
	web       string   // a process group that stays

	mu     sync.Mutex
	done   map[string]float64 // by kind of work
	took   []provisioned
	errors []string
	events string // cursor of who follows them
}

// provisioned is how long a tenant took from its request to active.
type provisioned struct {
	at   time.Time
	took time.Duration
}

func (l *load) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, k := range slices.Sorted(maps.Keys(l.done)) {
		out = append(out, fmt.Sprintf("%.0f × %s", l.done[k], k))
	}
	return strings.Join(out, ", ")
}

func (l *load) did(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done[what]++
}

func (l *load) work(what string) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done[what]
}

func (l *load) begin(ctx context.Context, running *sync.WaitGroup) {
	every := func(pace time.Duration, what string, do func(ctx context.Context, n int) error) {
		running.Go(func() {
			// Tasks that take longer than their pace overlap, but never by more than eight.
			slots := make(chan struct{}, 8)
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for n := 0; ; n++ {
				slots <- struct{}{}
				running.Go(func() {
					defer func() { <-slots }()
					if err := do(ctx, n); err == nil {
						l.did(what)
					} else if ctx.Err() == nil {
						l.mu.Lock()
						l.errors = append(l.errors, fmt.Sprintf("%s %d: %v", what, n, err))
						l.mu.Unlock()
					}
				})
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
	}
	every(10*time.Second, "whole tenant life", l.tenantLife)
	every(75*time.Second, "whole server life", l.serverLife)
	every(40*time.Second, "backup", l.backUp)
	every(3*time.Minute, "move", l.moveOne)
	every(30*time.Second, "deploy", l.deployOne)
	every(time.Second, "request", l.look)
	every(45*time.Second, "log stream", l.followLogs)
	every(50*time.Second, "fault", l.breakOne)
	every(5*time.Second, "ageing", func(ctx context.Context, _ int) error { return l.age(ctx) })
}

// ask sends a request with a token; an answer that is not wanted is an error.
func (l *load) ask(ctx context.Context, token, method, path string, body any, want int, out any) error {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+l.addr("api")+path, r)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if method == http.MethodPost {
		req.Header.Set("Idempotency-Key", fmt.Sprintf("%s-%d", l.env, time.Now().UnixNano()))
	}
	resp, err := need.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != want {
		return fmt.Errorf("%s %s: %d %s", method, path, resp.StatusCode, b)
	}
	if out != nil {
		return json.Unmarshal(b, out)
	}
	return nil
}

// until reads something twice a second until it is as it should be.
func until[T any](ctx context.Context, l *load, path string, ok func(T) (bool, error)) (v T, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		var now T
		if err := l.ask(ctx, l.operator, http.MethodGet, path, nil, http.StatusOK, &now); err != nil {
			return now, err
		}
		if done, err := ok(now); done || err != nil {
			return now, err
		}
		select {
		case <-ctx.Done():
			b, _ := json.Marshal(now)
			return now, fmt.Errorf("it stayed %s: %w", b, ctx.Err())
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// tenantLife is one from its request until its data is purged; every second one is suspended
// and resumed meanwhile.
func (l *load) tenantLife(ctx context.Context, n int) error {
	var a struct {
		TenantID string `json:"tenant_id"`
	}
	began := time.Now()
	body := map[string]any{"slug": fmt.Sprintf("soak-%d", n), "org_id": "acme", "region": "eu", "plan": prego.PlanStarter}
	if err := l.ask(ctx, l.operator, http.MethodPost, "/v1/tenants", body, http.StatusAccepted, &a); err != nil {
		return err
	}
	path := "/v1/tenants/" + a.TenantID
	becomes := func(state tenant.State) error {
		_, err := until(ctx, l, path, func(t api.Tenant) (bool, error) {
			if t.State == "failed" {
				return false, fmt.Errorf("failed: %s %s", deref(t.StatusReason), deref(t.StatusMessage))
			}
			purged := t.State == "data_purged" // its row comes to rest immediately
			return t.State == state && (t.ConvergedState == string(state) || purged), nil
		})
		return err
	}
	err := becomes(tenant.Active)
	if err == nil {
		took := time.Since(began)
		l.did("tenant")
		l.mu.Lock()
		l.took = append(l.took, provisioned{time.Now(), took})
		l.mu.Unlock()
		for _, step := range []struct {
			verb string
			to   tenant.State
		}{{"suspend", tenant.Suspended}, {"resume", tenant.Active}} {
			if n%2 == 0 && err == nil {
				if err = l.ask(ctx, l.operator, http.MethodPost, path+"/"+step.verb, map[string]string{"reason": "soak"}, http.StatusAccepted, nil); err == nil {
					err = becomes(step.to)
				}
			}
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil { // failed ones are also ended, or they would pile up
		return errors.Join(err, l.ask(ctx, l.operator, http.MethodPost, path+"/terminate", map[string]string{"reason": "soak"}, http.StatusAccepted, nil))
	}
	for _, step := range []struct {
		verb string
		to   tenant.State
	}{{"cancel", tenant.GracePeriod}, {"terminate", tenant.Terminated}} {
		if err := l.ask(ctx, l.operator, http.MethodPost, path+"/"+step.verb, map[string]string{"reason": "soak"}, http.StatusAccepted, nil); err != nil {
			return err
		}
		if err := becomes(step.to); err != nil {
			return err
		}
	}
	return becomes(tenant.DataPurged)
}

// serverLife is a server's in a region without tenants.
func (l *load) serverLife(ctx context.Context, n int) error {
	id := l.id(fmt.Sprintf("brief-%d", n))
	err := l.ask(ctx, l.operator, http.MethodPost, "/internal/servers/create", server.CreateRequest{ServerID: prego.ServerID(id), Role: prego.RoleRedisPool, Region: prego.RegionUS, InfraProvider: prego.ProviderHetzner}, http.StatusAccepted, nil)
	if err != nil {
		return err
	}
	becomes := func(status server.Status) error {
		_, err := until(ctx, l, "/v1/servers/"+id, func(s api.Server) (bool, error) {
			if s.Status == "failed" && status != server.Terminated {
				return false, fmt.Errorf("failed: %s %s", deref(s.StatusReason), deref(s.StatusMessage))
			}
			return string(s.Status) == string(status), nil
		})
		return err
	}
	err = becomes(server.Active)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	l.did("server")
	if end := l.ask(ctx, l.operator, http.MethodDelete, "/v1/servers/"+id, nil, http.StatusAccepted, nil); end != nil {
		return errors.Join(err, end)
	}
	return errors.Join(err, becomes(server.Terminated))
}

// backUp makes a backup of a tenant that stays and deletes it.
func (l *load) backUp(ctx context.Context, _ int) error {
	of := "/v1/tenants/" + l.residents[0] + "/backups"
	var b api.Backup
	if err := l.ask(ctx, l.operator, http.MethodPost, of, nil, http.StatusAccepted, &b); err != nil {
		return err
	}
	becomes := func(state tenant.BackupState) error {
		_, err := until(ctx, l, of+"/"+b.BackupId, func(b api.Backup) (bool, error) {
			if b.State == tenant.BackupFailed {
				return false, fmt.Errorf("failed: %s %s", deref(b.Reason), deref(b.Message))
			}
			return b.State == state, nil
		})
		return err
	}
	if err := becomes(tenant.BackupStored); err != nil {
		return err
	}
	if err := l.ask(ctx, l.operator, http.MethodDelete, of+"/"+b.BackupId, nil, http.StatusNoContent, nil); err != nil {
		return err
	}
	return becomes(tenant.BackupDeleted)
}

// moveOne moves a tenant from one app server to the other, and back the next time.
func (l *load) moveOne(ctx context.Context, _ int) error {
	of := "/v1/tenants/" + l.residents[1] + "/moves"
	var m api.Move
	if err := l.ask(ctx, l.operator, http.MethodPost, of, nil, http.StatusAccepted, &m); err != nil {
		return err
	}
	_, err := until(ctx, l, of+"/"+m.MoveId, func(m api.Move) (bool, error) {
		if m.State.Ended() && m.State != tenant.MoveDone {
			return false, fmt.Errorf("%s: %s %s", m.State, deref(m.Reason), deref(m.Message))
		}
		return m.State == tenant.MoveDone, nil
	})
	return err
}

// deployOne rolls out a process group's other image.
func (l *load) deployOne(ctx context.Context, n int) error {
	image := fmt.Sprintf("web:%d", 2-n%2)
	if err := l.ask(ctx, l.operator, http.MethodPost, "/v1/groups/"+l.web+"/deploys", map[string]any{"spec": spec(image, 64)}, http.StatusAccepted, nil); err != nil {
		return err
	}
	_, err := until(ctx, l, "/v1/groups/"+l.web, func(g api.ProcessGroup) (bool, error) {
		return g.Status == "running" && g.StableRelease == g.Release, nil
	})
	return err
}

// look reads what callers read, a page at a time, and follows the events. Every fifth request
// is of a caller that is new and never comes back; every tenth is refused.
func (l *load) look(ctx context.Context, n int) error {
	caller := l.viewer
	if n%5 == 0 {
		caller = l.issue(fmt.Sprintf("caller-%d", n), "support")
	}
	if n%10 == 3 {
		return l.ask(ctx, caller+"x", http.MethodGet, "/v1/tenants", nil, http.StatusUnauthorized, nil)
	}
	if n%10 == 7 {
		return l.follow(ctx, caller)
	}
	paths := []string{
		"/v1/tenants?limit=50", "/v1/servers?limit=50", "/v1/orgs/acme/events?limit=50", "/v1/tenants/" + l.residents[0], "/v1/tenants/" + l.residents[0] + "/decisions",
		"/v1/groups/" + l.web + "/instances", "/v1/orgs/acme/quotas", "/v1/servers/" + l.id("app") + "/commands?limit=50", "/v1/site-pools", "/v1/scaling-events?limit=50", "/v1/server-stats",
	}
	return l.ask(ctx, caller, http.MethodGet, paths[n%len(paths)], nil, http.StatusOK, nil)
}

// follow reads the org's events from where it last was.
func (l *load) follow(ctx context.Context, caller string) error {
	l.mu.Lock()
	cursor := l.events
	l.mu.Unlock()
	var page api.OrgEventPage
	path := "/v1/orgs/acme/events?limit=100&sort=at"
	if cursor != "" {
		path += "&cursor=" + cursor
	}
	if err := l.ask(ctx, caller, http.MethodGet, path, nil, http.StatusOK, &page); err != nil {
		if strings.Contains(err.Error(), "events_gone") {
			cursor = ""
		} else {
			return err
		}
	} else if page.NextCursor != nil {
		cursor = *page.NextCursor
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = cursor
	return nil
}

// followLogs follows an instance's output for half a minute and then hangs up.
func (l *load) followLogs(ctx context.Context, _ int) error {
	var page api.InstancePage
	if err := l.ask(ctx, l.operator, http.MethodGet, "/v1/groups/"+l.web+"/instances", nil, http.StatusOK, &page); err != nil {
		return err
	}
	for _, i := range page.Instances {
		if i.State != "running" {
			continue
		}
		short, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		err := l.ask(short, l.operator, http.MethodGet, "/v1/instances/"+i.InstanceId+"/logs?follow=true&tail=5", nil, http.StatusOK, nil)
		if err != nil && short.Err() == nil {
			return err
		}
		return nil
	}
	return nil // a rollout is under way
}

// breakOne lets something go wrong that the installation lives with.
func (l *load) breakOne(_ context.Context, n int) error {
	faults := []sim.Fault{
		{Kind: "http", Method: http.MethodPost, Path: "/v1/servers", Action: "respond", Status: 503, Code: "unavailable", Times: 1},
		{Kind: "bench", Verb: "clear-cache", Action: "fail_after", Message: "soak", Times: 1},
		{Kind: "http", Method: http.MethodGet, Action: "reset", Times: 1},
		{Kind: "http", Method: http.MethodGet, Action: "respond", Status: 429, Code: "rate_limit_exceeded", Times: 1},
	}
	if n%5 == 4 {
		for _, h := range l.sim.Hosts() {
			if h.Name == "prego-"+l.env+"-"+l.id("redis") {
				return l.sim.HostAction(h.ID, "kill-agent")
			}
		}
		return errors.New("there is no host")
	}
	f := faults[n%5]
	id, err := l.sim.Inject(f)
	if err != nil {
		return err
	}
	time.AfterFunc(45*time.Second, func() { l.sim.Withdraw(id) })
	return nil
}
