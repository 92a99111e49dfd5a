package api

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Later repeats what Temporal did not take, so that what was accepted while it was away starts
// soon after it is back. What is started reads its row: to start it twice, or late, does no
// harm. It is kept in memory, since the sweeps find it, too, if this process dies.
type Later struct {
	// Every is the time between two tries of all that is kept.
	Every time.Duration
	// Failed is told when something was not taken again; may be nil.
	Failed func(id string, err error)

	mu      sync.Mutex
	waiting map[string]func(context.Context) error
}

// maxLater bounds what is kept: the rest is left to the sweeps.
const maxLater = 50_000

// Keep repeats something, under an id of its own, until it returns no error.
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

// again tries what is kept, and stops at the first that is not taken: the others would not
// be either.
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
