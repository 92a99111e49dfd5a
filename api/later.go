package api

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Later repeats requests that Temporal did not accept, so that what was accepted during its outage starts
// soon after it is back. A workflow reads its row, so starting it twice or late does no
// harm. The queue is in memory: if this process dies, the sweeps also find the requests.
type Later struct {
	// Every is the time between two tries of all that is kept.
	Every time.Duration
	// Failed is called when a retry failed; it may be nil.
	Failed func(id string, err error)

	mu      sync.Mutex
	waiting map[string]func(context.Context) error
}

// maxLater bounds the queue: the sweeps handle the rest.
const maxLater = 50_000

// Keep repeats something, under its own id, until it returns no error.
func (l *Later) Keep(id string, again func(context.Context) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == nil {
		l.waiting = map[string]func(context.Context) error{}
	}
	if _, met := l.waiting[id]; met || len(l.waiting) < maxLater {
		l.waiting[id] = again
	}
}

// Run tries again until the context ends.
func (l *Later) Run(ctx context.Context) {
	t := time.NewTicker(l.Every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			l.again(ctx)
		}
	}
}

// again retries the queue, and stops at the first failure: the others would
// fail as well.
func (l *Later) again(ctx context.Context) {
	l.mu.Lock()
	ids := slices.Sorted(maps.Keys(l.waiting))
	l.mu.Unlock()
	for _, id := range ids {
		l.mu.Lock()
		do := l.waiting[id]
		l.mu.Unlock()
		try, cancel := context.WithTimeout(ctx, startPatience)
		err := do(try)
		cancel()
		if err != nil {
			if l.Failed != nil {
				l.Failed(id, err)
			}
			return
		}
		l.mu.Lock()
		delete(l.waiting, id)
		l.mu.Unlock()
	}
}
