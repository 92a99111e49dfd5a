package api

import (
	"container/list"
	"sync"

	"golang.org/x/time/rate"

	"github.com/prego/prego"
)

// callerLimiter gives each caller a rate of its own. It remembers the callers
// that were seen last, so its memory is bounded.
type callerLimiter struct {
	every rate.Limit
	burst int

	mu    sync.Mutex
	order *list.List // of *callerRate, last seen in front
	byKey map[string]*list.Element
}

type callerRate struct {
	key     string
	limiter *rate.Limiter
}

const maxCallers = 10_000

func newCallerLimiter(perSecond float64, burst int) *callerLimiter {
	return &callerLimiter{every: rate.Limit(perSecond), burst: burst, order: list.New(), byKey: make(map[string]*list.Element)}
}

func (l *callerLimiter) allow(key string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.byKey[key]
	if ok {
		l.order.MoveToFront(e)
	} else {
		e = l.order.PushFront(&callerRate{key: key, limiter: rate.NewLimiter(l.every, l.burst)})
		l.byKey[key] = e
		if l.order.Len() > maxCallers {
			last := l.order.Back()
			delete(l.byKey, l.order.Remove(last).(*callerRate).key)
		}
	}
	if !e.Value.(*callerRate).limiter.Allow() {
		return prego.Errorf(prego.CodeRateLimited, "too many requests; the limit is %g per second", float64(l.every))
	}
	return nil
}
