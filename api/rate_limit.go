package api

import (
	"cmp"
	lru "container/list"
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/store"
)

// A request counts against the rate of its token or login, of its principal and, if all grants of the principal are on
// one org, of that org, so that neither many tokens nor many service accounts multiply what an org may send. A
// principal may send twice what a token may: its old and new token are both in use while it rotates them.
const (
	principalTokens = 2
	orgTokens       = 4
)

// A process leases a slice of a budget, which all processes share in the database, and spends it without asking again.
// All of them together exceed a rate at most by the slices that they hold, one each.
const (
	// sliceHeld is how long a slice may be spent: a caller that seldom sends makes no statement per request.
	sliceHeld = time.Minute
	// sliceLasts is how long a slice should last. It doubles when it was spent sooner, up to what a budget regains in
	// that time, and halves when it lasted several times as long.
	sliceLasts = time.Second
	// leastSlice is the smallest part of a budget that is leased: a twentieth.
	leastSlice = 20
	// drainedFor is how long no process asks for more of a budget that had too little.
	drainedFor = 100 * time.Millisecond
	// leaseWithin bounds a statement that leases. If it fails, the process counts for itself for aloneFor: what only
	// reads still works while nothing can be written, as on a full disk.
	leaseWithin = time.Second
	aloneFor    = time.Second
	// maxWait bounds the stated time of the next try.
	maxWait = time.Hour
)

// budget is what a request counts against.
type budget struct {
	policy string // in the answer's RateLimit
	key    string
	times  int  // of the rate of a token
	alone  bool // each process counts for itself
}

// budgetsOf are those of a caller.
func budgetsOf(p access.Principal) []budget {
	out := []budget{
		{policy: "token", key: cmp.Or(p.CredentialID, p.PrincipalID), times: 1},
		{policy: "principal", key: p.PrincipalID, times: principalTokens},
	}
	if len(p.Grants) == 0 || p.Grants[0].OrgID == "" {
		return out
	}
	org := p.Grants[0].OrgID
	if slices.ContainsFunc(p.Grants, func(g access.Grant) bool { return g.OrgID != org }) {
		return out
	}
	return append(out, budget{policy: "org", key: string(org), times: orgTokens})
}

// budgetOf is that of a request without a caller, by its network. The database is not asked: without a token
// no request may make it write.
func budgetOf(policy string, r *http.Request) []budget {
	return []budget{{policy: policy, key: Network(r), times: 1, alone: true}}
}

// callerLimiter gives each key its rate. It remembers the most recent ones only, so its memory is bounded.
type callerLimiter struct {
	perSecond float64
	burst     int
	// lease takes from the budgets that all processes share; nil if this is the only one.
	lease func(ctx context.Context, window time.Duration, wanted []store.RateWanted) ([]store.RateLease, error)

	mu      sync.Mutex
	order   *lru.List // of *callerRate, most recent first
	byKey   map[string]*lru.Element
	next    *leasing // what the next statement leases, nil for nothing
	leasing bool     // a statement is under way
}

// leasing is a statement that leases for all requests that came while the previous one was under way.
type leasing struct {
	requests map[*callerRate]int // that wait for it
	done     chan struct{}
}

// callerRate is what is left of a budget: of a shared one, what this process has leased, and what it last saw of the
// rest.
type callerRate struct {
	key        string
	aloneUntil time.Time // this process counts for itself
	rate, most float64

	rest float64 // at that time
	at   time.Time

	leased   float64
	slice    float64   // the size of the last lease
	leasedAt time.Time // zero before the first
	nextAt   time.Time // before it nothing can be leased
}

// restAt is what the budget itself has.
func (r *callerRate) restAt(now time.Time) float64 {
	return min(r.most, r.rest+r.rate*max(0, now.Sub(r.at).Seconds()))
}

// leasedNow is what this process may spend without asking.
func (r *callerRate) leasedNow(now time.Time) float64 {
	if now.Sub(r.leasedAt) > sliceHeld {
		return 0
	}
	return r.leased
}

func (r *callerRate) alone(now time.Time) bool { return now.Before(r.aloneUntil) }

// has reports whether one more request may be sent.
func (r *callerRate) has(now time.Time) bool {
	return r.leasedNow(now) >= 1 || r.alone(now) && r.restAt(now) >= 1
}

// wait is how long it takes until it is worth trying again.
func (r *callerRate) wait(now time.Time) time.Duration {
	after := r.nextAt.Sub(now)
	if r.alone(now) {
		after = seconds((1 - r.restAt(now)) / r.rate)
	}
	return min(max(0, after), maxWait)
}

func (r *callerRate) take(now time.Time) {
	if r.leasedNow(now) >= 1 {
		r.leased--
	} else {
		r.rest, r.at = r.restAt(now)-1, now
	}
}

// wants is how much the next lease is, for so many requests that wait for it.
func (r *callerRate) wants(requests int, now time.Time) float64 {
	least := max(1, math.Floor(r.most/leastSlice))
	switch lasted := now.Sub(r.leasedAt); {
	case lasted < sliceLasts:
		r.slice = min(2*r.slice, r.rate*sliceLasts.Seconds())
	case lasted > 4*sliceLasts:
		r.slice /= 2
	}
	r.slice = max(math.Floor(r.slice), least)
	return min(r.most, max(r.slice, float64(requests)))
}

// got adds a lease.
func (r *callerRate) got(wanted float64, l store.RateLease, now time.Time) {
	r.leased = r.leasedNow(now) + l.Tokens
	r.leasedAt, r.rest, r.at = now, l.Rest, now
	if l.Tokens < wanted {
		r.nextAt = now.Add(max(drainedFor, seconds((1-l.Rest)/r.rate)))
	}
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s, maxWait.Seconds()) * float64(time.Second))
}

const maxCallers = 10_000

// forever is later than any request.
var forever = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func newCallerLimiter(perSecond float64, burst int) *callerLimiter {
	return &callerLimiter{perSecond: perSecond, burst: burst, order: lru.New(), byKey: make(map[string]*lru.Element)}
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

// of returns the rate of a budget; l.mu must be held.
func (l *callerLimiter) of(b budget) *callerRate {
	key := b.policy + " " + b.key
	e, ok := l.byKey[key]
	if ok {
		l.order.MoveToFront(e)
	} else {
		most := float64(l.burst * b.times)
		r := &callerRate{key: key, rate: l.perSecond * float64(b.times), most: most, rest: most, at: time.Now()}
		if b.alone || l.lease == nil {
			r.aloneUntil = forever
		}
		e = l.order.PushFront(r)
		l.byKey[key] = e
		if l.order.Len() > maxCallers {
			last := l.order.Back()
			delete(l.byKey, l.order.Remove(last).(*callerRate).key)
		}
	}
	return e.Value.(*callerRate)
}

// allow counts one request against all budgets, or refuses it and counts it against none. It returns what is left of
// the one that is closest to its end. It may wait for a lease.
func (l *callerLimiter) allow(ctx context.Context, budgets []budget) (least allowance, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rates := make([]*callerRate, len(budgets))
	for {
		now := time.Now()
		var lacks []*callerRate
		for i, b := range budgets {
			r := l.of(b)
			if rates[i] = r; r.has(now) {
				continue
			}
			if after := r.wait(now); r.alone(now) || after > 0 {
				return allowance{b.policy, 0, after}, &limitedError{
					refusal: prego.Errorf(prego.CodeRateLimited, "too many requests; the limit of a %s is %g per second", b.policy, r.rate),
					after:   after,
				}
			}
			lacks = append(lacks, r)
		}
		if len(lacks) == 0 {
			for i, r := range rates {
				r.take(now)
				tokens := max(0, min(r.most, r.leasedNow(now)+r.restAt(now)))
				if left := int(tokens); i == 0 || left < least.left {
					least = allowance{budgets[i].policy, left, seconds((r.most - tokens) / r.rate)}
				}
			}
			return least, nil
		}
		if err := l.await(ctx, lacks); err != nil {
			return least, err
		}
	}
}

// await waits for a lease of what a request lacks. l.mu must be held; it is free meanwhile.
func (l *callerLimiter) await(ctx context.Context, lacks []*callerRate) error {
	if l.next == nil {
		l.next = &leasing{requests: map[*callerRate]int{}, done: make(chan struct{})}
	}
	next := l.next
	for _, r := range lacks {
		next.requests[r]++
	}
	if !l.leasing {
		l.leasing = true
		go l.leaseAll()
	}
	l.mu.Unlock()
	defer l.mu.Lock()
	select {
	case <-next.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leaseAll leases until no request waits. A statement is for all requests that wait, and no request's own: it continues
// when its request ends.
func (l *callerLimiter) leaseAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.next != nil {
		next := l.next
		l.next = nil
		l.leaseFor(next.requests)
		close(next.done)
	}
	l.leasing = false
}

// leaseFor leases by one statement for requests that wait. What the previous statement has got for others is theirs.
func (l *callerLimiter) leaseFor(requests map[*callerRate]int) {
	now := time.Now()
	rates := make(map[string]*callerRate, len(requests))
	wants := make(map[string]float64, len(requests))
	wanted := make([]store.RateWanted, 0, len(requests))
	for r, n := range requests {
		if r.leasedNow(now) < float64(n) && r.wait(now) == 0 {
			rates[r.key], wants[r.key] = r, r.wants(n, now)
			wanted = append(wanted, store.RateWanted{Budget: r.key, Burst: r.most, Tokens: wants[r.key]})
		}
	}
	if len(wanted) == 0 {
		return
	}
	window := time.Duration(float64(l.burst) / l.perSecond * float64(time.Second))
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), leaseWithin)
	leased, err := l.lease(ctx, window, wanted)
	cancel()
	l.mu.Lock()
	now = time.Now()
	if err != nil {
		for _, r := range rates {
			r.aloneUntil = now.Add(aloneFor)
		}
	}
	for _, got := range leased {
		rates[got.Budget].got(wants[got.Budget], got, now)
	}
}

// policies are the budgets as RateLimit-Policy lists them: a burst and the seconds that it takes to be there again.
func (l *callerLimiter) policies(budgets []budget) string {
	var out []string
	for _, b := range budgets {
		out = append(out, fmt.Sprintf("%q;q=%d;w=%d", b.policy, l.burst*b.times, max(1, int(math.Ceil(float64(l.burst)/l.perSecond)))))
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
