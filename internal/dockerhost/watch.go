package dockerhost

import (
	"context"
	"sync"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"github.com/prego/prego/agent/wire"
)

// watch wakes the waiters of a host's containers when the engine reports events.
type watch struct {
	mu    sync.Mutex
	live  bool
	wakes map[string]chan struct{} // by the container's id
}

// look is how often a container is inspected without events, and netEvery how often with them: an event can be lost
// while a stream starts.
const (
	look     = 200 * time.Millisecond
	netEvery = time.Second
)

// watch follows the engine's events until ctx ends.
func (h *Host) watch(ctx context.Context) *watch {
	w := &watch{live: true, wakes: make(map[string]chan struct{})}
	stream := h.c.Events(ctx, client.EventsListOptions{Filters: client.Filters{}.
		Add("label", wire.LabelServer+"="+string(h.serverID)).Add("type", string(events.ContainerEventType)).
		Add("event", string(events.ActionStart), string(events.ActionDie), string(events.ActionHealthStatus),
			string(events.ActionExecDie))})
	go func() {
		for {
			select {
			case e := <-stream.Messages:
				w.wake(e.Actor.ID)
			case <-stream.Err:
				w.end()
				return
			}
		}
	}()
	return w
}

func (w *watch) of(id string) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.wakes[id]
	if c == nil {
		c = make(chan struct{}, 1)
		w.wakes[id] = c
	}
	return c
}

func (w *watch) wake(id string) {
	select {
	case w.of(id) <- struct{}{}:
	default:
	}
}

// end wakes all waiters: from now on they inspect by themselves.
func (w *watch) end() {
	w.mu.Lock()
	w.live = false
	ids := make([]string, 0, len(w.wakes))
	for id := range w.wakes {
		ids = append(ids, id)
	}
	w.mu.Unlock()
	for _, id := range ids {
		w.wake(id)
	}
}

// wait returns after an event of a container, or when most has passed.
func (w *watch) wait(ctx context.Context, id string, most time.Duration) error {
	w.mu.Lock()
	if w.live {
		most = min(most, netEvery)
	} else {
		most = min(most, look)
	}
	w.mu.Unlock()
	t := time.NewTimer(max(most, time.Millisecond))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.of(id):
	case <-t.C:
	}
	return nil
}
