package api

import (
	lru "container/list"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/prego/prego"
)

// callerLimiter gives each caller its own rate. It remembers the most recent callers
// only, so its memory is bounded.
type callerLimiter struct {
	every rate.Limit
	burst int

	mu    sync.Mutex
	order *lru.List // of *callerRate, most recent first
	byKey map[string]*lru.Element
}

type callerRate struct {
	key     string
	limiter *rate.Limiter
}

const maxCallers = 10_000

func newCallerLimiter(perSecond float64, burst int) *callerLimiter {
	return &callerLimiter{every: rate.Limit(perSecond), burst: burst, order: lru.New(), byKey: make(map[string]*lru.Element)}
}

// limitedError is a refusal with the time of the next try.
type limitedError struct {
	refusal *prego.Error
	after   time.Duration
}

func (e *limitedError) Error() string { return e.refusal.Error() }
func (e *limitedError) Unwrap() error { return e.refusal }

// allow counts one request against a caller's rate, or refuses it. It returns how many
// more are allowed immediately, and when the full burst is available again.
func (l *callerLimiter) allow(key string) (left int, reset time.Duration, err error) {
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
	now := time.Now()
	of := e.Value.(*callerRate).limiter
	r := of.ReserveN(now, 1)
	after := r.DelayFrom(now)
	tokens := max(0, of.TokensAt(now))
	reset = time.Duration(min((float64(l.burst)-tokens)/float64(l.every), time.Hour.Seconds()) * float64(time.Second))
	if r.OK() && after == 0 {
		return int(tokens), reset, nil
	}
	r.CancelAt(now)
	return 0, reset, &limitedError{
		refusal: prego.Errorf(prego.CodeRateLimited, "too many requests; the limit is %g per second", float64(l.every)),
		after:   min(after, time.Hour),
	}
}

// Network is that of a request: an IPv4 address, or the /64 of an IPv6 address, since a
// caller has all of it.
func Network(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if addr = addr.Unmap().WithZone(""); addr.Is6() {
		if p, err := addr.Prefix(64); err == nil {
			return p.String()
		}
	}
	return addr.String()
}

// Address is where a request came from.
func Address(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
