package hetzner

import (
	"context"
	"slices"
	"sync"
)

// turns lets one request of a process at a time take from the budget, and gives each org with waiting requests its
// turn: an org that sends many delays another's request by one.
type turns struct {
	mu      sync.Mutex
	taken   bool
	orgs    []string                   // with waiting requests, in the order of their turns
	waiting map[string][]chan struct{} // by org, the first that came first
}

func newTurns() *turns { return &turns{waiting: map[string][]chan struct{}{}} }

// take waits for a turn of an org; give ends it.
func (t *turns) take(ctx context.Context, org string) error {
	t.mu.Lock()
	if !t.taken {
		t.taken = true
		t.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	if len(t.waiting[org]) == 0 {
		t.orgs = append(t.orgs, org)
	}
	t.waiting[org] = append(t.waiting[org], mine)
	t.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	i := slices.Index(t.waiting[org], mine)
	if i >= 0 {
		t.waiting[org] = slices.Delete(t.waiting[org], i, i+1)
		t.orgs = slices.DeleteFunc(t.orgs, func(o string) bool { return o == org && len(t.waiting[org]) == 0 })
	}
	t.mu.Unlock()
	if i < 0 { // it came meanwhile
		t.give()
	}
	return ctx.Err()
}

func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.orgs) == 0 {
		t.taken = false
		return
	}
	org := t.orgs[0]
	t.orgs = t.orgs[1:]
	next := t.waiting[org][0]
	if t.waiting[org] = t.waiting[org][1:]; len(t.waiting[org]) > 0 {
		t.orgs = append(t.orgs, org)
	} else {
		delete(t.waiting, org)
	}
	close(next)
}
