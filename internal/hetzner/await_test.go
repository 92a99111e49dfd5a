package hetzner_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
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

// TestMain fails when an action poller outlives its waiters.
func TestMain(m *testing.M) {
	code := m.Run()
	if left := pollersLeft(5 * time.Second); code == 0 && left != "" {
		fmt.Fprintln(os.Stderr, "a poller runs on without waiters:\n"+left)
		code = 1
	}
	os.Exit(code)
}

func pollersLeft(patience time.Duration) string {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		b := make([]byte, 16<<20)
		stacks := string(b[:runtime.Stack(b, true)])
		if !strings.Contains(stacks, "(*actionPoller).run") {
			return ""
		}
		if time.Now().After(deadline) {
			return stacks
		}
	}
}

func noBeat(string) {}

// running is a server that runs, to be waited for with the given actions.
func (p *project) running(serverID prego.ServerID, actions ...int64) server.Handle {
	id := p.plant(string("prego-test-"+serverID), order(nil).Labels())
	return server.Handle{ProviderServerID: fmt.Sprint(id), ActionIDs: actions}
}

func TestAwaitFollowsAServerUntilItRuns(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	hz := p.provider(nil)
	p.mu.Lock()
	p.held = true
	p.mu.Unlock()
	made, err := hz.CreateServer(t.Context(), order(nil))
	require.NoError(t, err)

	var mu sync.Mutex
	var beats []string
	done := make(chan server.Handle, 1)
	go func() {
		h, err := hz.AwaitRunning(t.Context(), made, func(s string) { mu.Lock(); defer mu.Unlock(); beats = append(beats, s) })
		if err == nil {
			done <- h
		}
		close(done)
	}()
	require.Eventually(t, func() bool { return len(p.seen("GET", "/actions")) > 1 }, 5*time.Second, time.Millisecond)
	require.Empty(t, p.seen("GET", "/servers/"), "the server is not asked about while its actions run")
	p.endAction(made.ActionIDs[0], nil)
	p.mu.Lock()
	p.afterAction[made.ActionIDs[1]] = nil // the action ends, and the server takes its time
	p.mu.Unlock()
	p.endAction(made.ActionIDs[1], nil)
	require.Eventually(t, func() bool { return len(p.seen("GET", "/servers/")) > 2 }, 5*time.Second, time.Millisecond)
	p.mu.Lock()
	for _, s := range p.servers {
		s.Status = "running"
	}
	p.mu.Unlock()
	h, ok := <-done
	require.True(t, ok)
	require.Equal(t, "running", h.Status)
	require.Equal(t, made.ProviderServerID, h.ProviderServerID)
	require.Equal(t, "203.0.113.9", h.IPv4)
	require.Equal(t, "initializing", beats[1])
	require.Equal(t, "running", beats[len(beats)-1])
	require.Equal(t, len(p.seen("GET", "/servers/")), len(beats)-1, "a beat with every look")
}

// TestWaitersShareRequests lets 60 servers wait for two actions each.
func TestWaitersShareRequests(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	ids := p.startActions(120)
	hz := p.provider(func(c *hetzner.Config) { c.Poll = 20 * time.Millisecond })
	var wg sync.WaitGroup
	errs := make([]error, 60)
	for i := range errs {
		h := p.running(prego.ServerID(fmt.Sprintf("s%d", i)), ids[2*i], ids[2*i+1])
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, errs[i] = hz.AwaitRunning(t.Context(), h, noBeat)
		}()
	}
	asked := func() (ids map[string]bool, widest int) {
		ids = make(map[string]bool)
		for _, r := range p.seen("GET", "/actions") {
			q, err := url.ParseQuery(r.Query)
			require.NoError(t, err)
			widest = max(widest, len(q["id"]))
			for _, id := range q["id"] {
				ids[id] = true
			}
		}
		return ids, widest
	}
	require.Eventually(t, func() bool { ids, _ := asked(); return len(ids) >= 60 }, 5*time.Second, time.Millisecond)
	failed := 17
	p.endAction(ids[2*failed], &schema.ActionError{Code: "resource_unavailable", Message: "out of stock"})
	p.release()
	wg.Wait()
	for i, err := range errs {
		if i == failed {
			_ = requireClass(t, err, server.InfraNext, "resource_unavailable")
			continue
		}
		require.NoError(t, err, "one action's failure does not affect others")
	}
	_, widest := asked()
	require.LessOrEqual(t, widest, 25, "ids in one request")
	require.Greater(t, widest, 20, "requests are shared")
	n := len(p.seen("GET", "/actions"))
	require.Less(t, n, 60, "fewer requests than waiters")
	t.Logf("120 actions of 60 waiters took %d requests", n)
}

func TestPollerSurvivesFailures(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	ids := p.startActions(1)
	f := p.inject(&fault{method: "GET", path: "/actions", times: 3, answer: code(500, "server_error")})
	done := make(chan error, 1)
	h := p.running("app-1", ids...)
	go func() { _, err := p.provider(nil).AwaitRunning(t.Context(), h, noBeat); done <- err }()
	require.Eventually(t, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return f.hits == 3 }, 5*time.Second, time.Millisecond)
	p.release()
	require.NoError(t, <-done)
}

func TestPollerOutlivesAWaiter(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	ids := p.startActions(1)
	hz := p.provider(nil)
	h := p.running("app-1", ids...)
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := hz.AwaitRunning(ctx, h, noBeat); first <- err }()
	go func() { _, err := hz.AwaitRunning(t.Context(), h, noBeat); second <- err }()
	require.Eventually(t, func() bool { return len(p.seen("GET", "/actions")) > 2 }, 5*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-first, context.Canceled)
	p.release()
	require.NoError(t, <-second, "two may wait for one action, and one may leave")
}

// TestPollerStartsAgain: the poller ends with the last waiter, and the next one is
// served as the first was.
func TestPollerStartsAgain(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	hz := p.provider(nil)
	for round := range 3 {
		ids := p.startActions(1)
		h := p.running(prego.ServerID(fmt.Sprintf("app-%d", round)), ids...)
		done := make(chan error, 1)
		before := len(p.seen("GET", "/actions"))
		go func() { _, err := hz.AwaitRunning(t.Context(), h, noBeat); done <- err }()
		require.Eventually(t, func() bool { return len(p.seen("GET", "/actions")) > before }, 5*time.Second, time.Millisecond)
		p.release()
		require.NoError(t, <-done)
	}
	// Without waiters no request follows the running ones.
	quiet := func() bool {
		n := len(p.seen("GET", "/actions"))
		time.Sleep(20 * time.Millisecond) // ten intervals
		return n == len(p.seen("GET", "/actions"))
	}
	require.Eventually(t, quiet, 5*time.Second, time.Millisecond)
}

func TestAwaitFails(t *testing.T) {
	t.Parallel()
	t.Run("the action is unknown", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		_, err := p.provider(nil).AwaitRunning(t.Context(), p.running("app-1", 9999), noBeat)
		_ = requireClass(t, err, server.InfraNotFound, "not_found")
	})
	t.Run("the server is gone", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		_, err := p.provider(nil).AwaitRunning(t.Context(), server.Handle{ProviderServerID: "42"}, noBeat)
		_ = requireClass(t, err, server.InfraNotFound, "not_found")
	})
	t.Run("the id is none", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		_, err := p.provider(nil).AwaitRunning(t.Context(), server.Handle{ProviderServerID: "../actions"}, noBeat)
		_ = requireClass(t, err, server.InfraPermanent, "invalid_input")
		require.Empty(t, p.requests)
	})
	t.Run("it never runs", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		h := p.running("app-1")
		p.mu.Lock()
		for _, s := range p.servers {
			s.Status = "starting"
		}
		p.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := p.provider(nil).AwaitRunning(ctx, h, noBeat)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
	})
	t.Run("the time is up in the middle of a read", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		h := p.running("app-1")
		p.inject(&fault{method: "GET", path: "/servers/", answer: hang})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := p.provider(nil).AwaitRunning(ctx, h, noBeat)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("an action never ends", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		h := p.running("app-1", p.startActions(1)...)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := p.provider(nil).AwaitRunning(ctx, h, noBeat)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// TestActionErrors: an action's error has the class that a call's would.
func TestActionErrors(t *testing.T) {
	t.Parallel()
	for code, class := range map[string]server.InfraClass{
		"action_failed": server.InfraRetry, "never_heard_of": server.InfraRetry, "timeout": server.InfraRetry, "": server.InfraRetry,
		"resource_unavailable": server.InfraNext, "placement_error": server.InfraNext, "resource_limit_exceeded": server.InfraQuota,
		"server_not_found": server.InfraNotFound, "forbidden": server.InfraPermanent,
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			p := newProject(t)
			ids := p.startActions(1)
			p.endAction(ids[0], &schema.ActionError{Code: code, Message: "failed for token " + apiToken})
			_, err := p.provider(nil).AwaitRunning(t.Context(), p.running("app-1", ids...), noBeat)
			_ = requireClass(t, err, class, code)
		})
	}
}

// TestActionErrorMasksAnyToken holds also for a token that does not look like a secret.
func TestActionErrorMasksAnyToken(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	ids := p.startActions(1)
	p.endAction(ids[0], &schema.ActionError{Code: "action_failed", Message: "refused hunter2"})
	hz := p.provider(func(c *hetzner.Config) { c.Token = "hunter2" })
	_, err := hz.AwaitRunning(t.Context(), p.running("app-1", ids...), noBeat)
	require.ErrorContains(t, err, "refused")
	require.NotContains(t, err.Error(), "hunter2")
}

func TestDestroy(t *testing.T) {
	t.Parallel()
	t.Run("returns when it is gone", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		h := p.running("app-1")
		p.mu.Lock()
		p.held = true
		p.mu.Unlock()
		done := make(chan error, 1)
		go func() { done <- p.provider(nil).DestroyServer(t.Context(), prego.ServerID(h.ProviderServerID)) }()
		require.Eventually(t, func() bool { return len(p.seen("GET", "/actions")) > 2 }, 5*time.Second, time.Millisecond)
		select {
		case err := <-done:
			t.Fatalf("returned while the deletion runs: %v", err)
		default:
		}
		p.release()
		require.NoError(t, <-done)
		require.Empty(t, p.list())
		require.Len(t, p.seen("DELETE", "/servers/"), 1)
	})
	t.Run("twice", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		h := p.running("app-1")
		hz := p.provider(nil)
		require.NoError(t, hz.DestroyServer(t.Context(), prego.ServerID(h.ProviderServerID)))
		require.NoError(t, hz.DestroyServer(t.Context(), prego.ServerID(h.ProviderServerID)))
		require.NoError(t, hz.DeleteResource(t.Context(), server.ResourceServer, prego.ServerID(h.ProviderServerID)))
	})
	t.Run("the answer is lost", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		h := p.running("app-1")
		p.inject(&fault{method: "DELETE", path: "/servers/", before: true, answer: reset})
		hz := p.provider(nil)
		_ = requireClass(t, hz.DestroyServer(t.Context(), prego.ServerID(h.ProviderServerID)), server.InfraAmbiguous, "connection_lost")
		require.NoError(t, hz.DestroyServer(t.Context(), prego.ServerID(h.ProviderServerID)))
	})
	t.Run("the action fails", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		h := p.running("app-1")
		p.mu.Lock()
		p.held = true
		p.mu.Unlock()
		done := make(chan error, 1)
		go func() { done <- p.provider(nil).DestroyServer(t.Context(), prego.ServerID(h.ProviderServerID)) }()
		require.Eventually(t, func() bool { return len(p.seen("GET", "/actions")) > 0 }, 5*time.Second, time.Millisecond)
		p.endAction(p.last, &schema.ActionError{Code: "action_failed", Message: "no"})
		_ = requireClass(t, <-done, server.InfraRetry, "action_failed")
		require.Len(t, p.list(), 1)
	})
	t.Run("protected", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		h := p.running("app-1")
		for _, s := range p.servers {
			s.Protection.Delete = true
		}
		_ = requireClass(t, p.provider(nil).DestroyServer(t.Context(), prego.ServerID(h.ProviderServerID)), server.InfraPermanent, "protected")
		require.Len(t, p.list(), 1)
	})
	// Only the provider's word counts: what it has not confirmed may be billed.
	for name, answer := range map[string]func(http.ResponseWriter){
		"a proxy's 404":  raw(404, "text/html", "<html>Not Found</html>"),
		"an empty 404":   raw(404, "text/plain", ""),
		"a 404 too soon": code(404, "not_found"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProject(t)
			h := p.running("app-1")
			p.inject(&fault{method: "DELETE", path: "/servers/", answer: answer})
			err := p.provider(nil).DestroyServer(t.Context(), prego.ServerID(h.ProviderServerID))
			if name == "a 404 too soon" {
				require.NoError(t, err)
				return
			}
			_ = requireClass(t, err, server.InfraAmbiguous, "no_valid_answer")
		})
	}
}

// TestDeletingNeedsNoPolling: a deletion ends even if only the reserve for deletions is left of the budget. Billed
// resources must always be deletable.
func TestDeletingNeedsNoPolling(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	h := p.running("app-1")
	waiting := p.running("app-2", p.startActions(1)...)
	p.mu.Lock()
	p.held = false // from here on
	p.mu.Unlock()
	budget := &ledger{shut: map[string]chan struct{}{"poll": make(chan struct{}), "create": make(chan struct{})}}
	hz := p.provider(func(c *hetzner.Config) { c.Budget = budget })
	ctx, cancel := context.WithCancel(t.Context())
	stuck := make(chan error, 1)
	go func() { _, err := hz.AwaitRunning(ctx, waiting, noBeat); stuck <- err }()
	require.Eventually(t, func() bool { return slices.Contains(budget.lanes(), "poll") }, 5*time.Second, time.Millisecond)
	limited, stop := context.WithTimeout(t.Context(), 5*time.Second)
	defer stop()
	require.NoError(t, hz.DestroyServer(limited, prego.ServerID(h.ProviderServerID)))
	require.Len(t, p.list(), 1)
	cancel()
	require.ErrorIs(t, <-stuck, context.Canceled)
	budget.open("poll") // lets the poller see that there are no waiters
}

// TestWhoMayDeleteIsAsked before the provider is, whatever is to be deleted.
func TestWhoMayDeleteIsAsked(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	frozen := errors.New("frozen")
	var asked []string
	hz := p.provider(func(c *hetzner.Config) {
		c.MayDelete = func(_ context.Context, provider prego.InfraProviderID, kind server.ResourceKind, id string) error {
			asked = append(asked, fmt.Sprintf("%s/%s/%s", provider, kind, id))
			return frozen
		}
	})
	h := p.running("app-1")
	require.ErrorIs(t, hz.DestroyServer(t.Context(), prego.ServerID(h.ProviderServerID)), frozen)
	want := []string{"hetzner/server/" + h.ProviderServerID}
	for _, kind := range []server.ResourceKind{
		server.ResourceServer, server.ResourceVolume, server.ResourcePrimaryIP, server.ResourceFloatingIP, server.ResourceFirewall,
		server.ResourcePlacementGroup, server.ResourceImage, server.ResourceNetwork,
	} {
		require.ErrorIs(t, hz.DeleteResource(t.Context(), kind, "7"), frozen)
		want = append(want, fmt.Sprintf("hetzner/%s/7", kind))
	}
	require.Equal(t, want, asked)
	require.Len(t, p.list(), 1)
}
