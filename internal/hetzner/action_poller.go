package hetzner

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"go.uber.org/zap"

	"github.com/prego/prego/server"
)

// actionChunk is how many actions one request polls.
const actionChunk = 25

// actionPoller polls the actions of all waiters together: one request per actionChunk of them and interval, however
// many servers are being created. One action's failure does not affect the others.
type actionPoller struct {
	interval time.Duration
	list     func(ctx context.Context, ids []int64) ([]*hcloud.Action, error)
	classify func(error) error // of an action's failure
	log      *zap.Logger

	mu      sync.Mutex
	waiters map[int64][]chan error
	running bool
}

// newActionPoller creates a poller whose requests use a lane of the budget.
func newActionPoller(p *Provider, lane Lane) *actionPoller {
	return &actionPoller{
		interval: p.poll, classify: p.classify, log: p.log, waiters: make(map[int64][]chan error),
		list: func(ctx context.Context, ids []int64) ([]*hcloud.Action, error) {
			return p.read.Action.AllWithOpts(WithLane(ctx, lane), hcloud.ActionListOpts{ID: ids})
		},
	}
}

// done waits for the action of a call, whose results it takes. An action may have ended with the answer.
func (p *Provider) done(ctx context.Context) func(*hcloud.Action, *hcloud.Response, error) error {
	return func(action *hcloud.Action, _ *hcloud.Response, err error) error {
		if err != nil || (action != nil && action.Status == hcloud.ActionStatusSuccess) {
			return p.classify(err)
		}
		return p.actions.wait(ctx, actionIDs(action, nil))
	}
}

// wait returns when all of the actions have ended, with the first failure.
func (a *actionPoller) wait(ctx context.Context, ids []int64) error {
	for _, id := range ids {
		ch := a.subscribe(id)
		select {
		case err := <-ch:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			a.unsubscribe(id, ch)
			return ctx.Err()
		}
	}
	return nil
}

func (a *actionPoller) subscribe(id int64) chan error {
	ch := make(chan error, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiters[id] = append(a.waiters[id], ch)
	if !a.running {
		a.running = true
		go a.run()
	}
	return ch
}

func (a *actionPoller) unsubscribe(id int64, ch chan error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiters[id] = slices.DeleteFunc(a.waiters[id], func(c chan error) bool { return c == ch })
	if len(a.waiters[id]) == 0 {
		delete(a.waiters, id)
	}
}

// run polls while there are waiters.
func (a *actionPoller) run() {
	for {
		a.mu.Lock()
		if len(a.waiters) == 0 {
			a.running = false
			a.mu.Unlock()
			return
		}
		ids := make([]int64, 0, len(a.waiters))
		for id := range a.waiters {
			ids = append(ids, id)
		}
		a.mu.Unlock()
		slices.Sort(ids)
		for chunk := range slices.Chunk(ids, actionChunk) {
			a.pollChunk(chunk)
		}
		time.Sleep(a.interval)
	}
}

// pollChunk settles ended actions. A failed request is repeated in the next round; waiters have their own deadlines.
func (a *actionPoller) pollChunk(ids []int64) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	actions, err := a.list(ctx, ids)
	if err != nil {
		a.log.Warn("actions could not be read", zap.Int("actions", len(ids)), zap.Error(a.classify(err)))
		return
	}
	seen := make(map[int64]bool, len(actions))
	for _, action := range actions {
		seen[action.ID] = true
		switch action.Status {
		case hcloud.ActionStatusSuccess:
			a.settle(action.ID, nil)
		case hcloud.ActionStatusError:
			a.settle(action.ID, a.classify(hcloud.ActionError{Code: action.ErrorCode, Message: action.ErrorMessage}))
		case hcloud.ActionStatusRunning:
		}
	}
	for _, id := range ids {
		if !seen[id] {
			a.settle(id, infraError(server.InfraNotFound, "not_found", "the provider does not know the action"))
		}
	}
}

func (a *actionPoller) settle(id int64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, ch := range a.waiters[id] {
		ch <- err
	}
	delete(a.waiters, id)
}
