package api

import (
	"cmp"
	lru "container/list"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

// A request counts against the rate of its token or login, of its principal and, if all grants of the principal are on one
// org, of that org, so that neither many tokens nor many service accounts multiply what an org may send. A principal may
// send twice what a token may: its old and new token are both in use while it rotates them. Each process counts for
// itself, without the database.
const (
	principalTokens = 2
	orgTokens       = 4
)

// budget is what a request counts against.
type budget struct {
	policy string // in the answer's RateLimit
	key    string
	times  int // of the rate of a token
}

// budgetsOf are those of a caller.
func budgetsOf(p access.Principal) []budget {
	out := []budget{{"token", cmp.Or(p.CredentialID, p.PrincipalID), 1}, {"principal", p.PrincipalID, principalTokens}}
	if len(p.Grants) == 0 || p.Grants[0].OrgID == "" {
		return out
	}
	org := p.Grants[0].OrgID
	if slices.ContainsFunc(p.Grants, func(g access.Grant) bool { return g.OrgID != org }) {
		return out
	}
	return append(out, budget{"org", string(org), orgTokens})
}

// budgetOf is that of a request without a caller, by its network.
func budgetOf(policy string, r *http.Request) []budget { return []budget{{policy, Network(r), 1}} }

// callerLimiter gives each key its own rate. It remembers the most recent ones only, so its memory is bounded.
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

// allowance is what is left of a budget.
type allowance struct {
	policy string
	left   int
	reset  time.Duration // until all of it is there or, if nothing is left, until the next try
}

// of returns the limiter of a budget; l.mu must be held.
func (l *callerLimiter) of(b budget) *rate.Limiter {
	key := b.policy + " " + b.key
	e, ok := l.byKey[key]
	if ok {
		l.order.MoveToFront(e)
	} else {
		e = l.order.PushFront(&callerRate{key: key, limiter: rate.NewLimiter(l.every*rate.Limit(b.times), l.burst*b.times)})
		l.byKey[key] = e
		if l.order.Len() > maxCallers {
			last := l.order.Back()
			delete(l.byKey, l.order.Remove(last).(*callerRate).key)
		}
	}
	return e.Value.(*callerRate).limiter
}

// allow counts one request against all budgets, or refuses it and counts it against none. It returns what is left of the
// one that is closest to its end.
func (l *callerLimiter) allow(budgets []budget) (least allowance, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	taken := make([]*rate.Reservation, 0, len(budgets))
	for i, b := range budgets {
		of := l.of(b)
		r := of.ReserveN(now, 1)
		taken = append(taken, r)
		if after := min(r.DelayFrom(now), time.Hour); !r.OK() || after > 0 {
			for _, t := range taken {
				t.CancelAt(now)
			}
			return allowance{b.policy, 0, after}, &limitedError{
				refusal: prego.Errorf(prego.CodeRateLimited, "too many requests; the limit of a %s is %g per second", b.policy, float64(of.Limit())),
				after:   after,
			}
		}
		tokens := max(0, of.TokensAt(now))
		if left := int(tokens); i == 0 || left < least.left {
			full := min((float64(of.Burst())-tokens)/float64(of.Limit()), time.Hour.Seconds())
			least = allowance{b.policy, left, time.Duration(full * float64(time.Second))}
		}
	}
	return least, nil
}

// policies are the budgets as RateLimit-Policy lists them: a burst and the seconds that it takes to be there again.
func (l *callerLimiter) policies(budgets []budget) string {
	var out []string
	for _, b := range budgets {
		out = append(out, fmt.Sprintf("%q;q=%d;w=%d", b.policy, l.burst*b.times, max(1, int(math.Ceil(float64(l.burst)/float64(l.every))))))
	}
	return strings.Join(out, ", ")
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
