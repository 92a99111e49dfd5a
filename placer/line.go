package placer

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

const (
	// batchMost is how many tenants are placed together at most.
	batchMost = 128
	// gatherFor is the longest time that waiting tenants wait for more to come.
	gatherFor = 5 * time.Millisecond
	// batchWithin is the longest time that a batch may take. It does not end with any of its callers.
	batchWithin = 15 * time.Second
	// racesTogether is how often a tenant that loses its race is placed along with others. Against batches of another
	// process a few tries suffice. A row that is held for long must be waited for alone.
	racesTogether = 4
)

// asking is a tenant that asks for a place.
type asking struct {
	tenant  tenant.Tenant
	request placement.Request
	learnt  []string // rows to reread
	actor   string
	race    int
	answer  chan answer // of one
}

// answer is a decision and, if it places the tenant, what became of its reservation.
type answer struct {
	d     placement.Decision
	res   tenant.ReserveResult
	alone bool // the batch failed: to be tried alone
}

// lines hold the tenants of each region that wait while others are placed.
type lines struct {
	mu sync.Mutex
	of map[prego.Region]*line
}

// line is that of one region. Its fields belong to the lock of the lines.
type line struct {
	busy    bool // a tenant or a batch is being placed
	waiting []*asking
	enough  int           // as many as the last batch had
	full    chan struct{} // closed when enough tenants wait; nil unless gather waits
	took    time.Duration // the last batch
}

// try decides on a tenant once, and reserves the place if there is one. Tenants that ask at the same time are placed
// together; a single tenant is placed immediately.
func (p *Placer) try(ctx context.Context, a *asking) (placement.Decision, tenant.ReserveResult, error) {
	if a.request.Override != nil || a.request.Advice != nil || a.race >= racesTogether {
		return p.alone(ctx, a)
	}
	l, first := p.lines.enter(a)
	if first && a.race == 0 {
		defer p.advance(ctx, l)
		p.Metrics.Batch.Observe(1)
		return p.alone(ctx, a)
	}
	if first { // it lost to another process: it waits for its turn among the batches
		p.advance(ctx, l)
	}
	select {
	case got := <-a.answer:
		if got.alone {
			return p.alone(ctx, a)
		}
		return got.d, got.res, nil
	case <-ctx.Done():
		// If it is already being placed, repeating the request returns the place, as after a lost answer.
		p.lines.leave(l, a)
		return placement.Decision{}, tenant.ReserveResult{}, ctx.Err()
	}
}

// alone decides on one tenant and reserves.
func (p *Placer) alone(ctx context.Context, a *asking) (d placement.Decision, res tenant.ReserveResult, err error) {
	all, err := p.decideAll(ctx, []placement.Request{a.request}, a.learnt)
	if err != nil {
		return d, res, err
	}
	if d = all[0]; !d.PlacesTenant() {
		return d, res, nil
	}
	p.keep(ctx)
	r, err := p.reservation(a.tenant, a.request, d, a.actor)
	if err == nil {
		res, err = p.Store.Reserve(ctx, r)
	}
	if err != nil {
		p.forget()
	}
	return d, res, err
}

// enter puts a tenant in the line of its region. The first caller advances the line. Unless it has lost a race, it
// places its own tenant beforehand, without waiting in the line.
func (ls *lines) enter(a *asking) (l *line, first bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.of == nil {
		ls.of = map[prego.Region]*line{}
	}
	if l = ls.of[a.request.Region]; l == nil {
		l = &line{}
		ls.of[a.request.Region] = l
	}
	first = !l.busy
	if first {
		l.busy, l.enough = true, 1
		if a.race == 0 {
			return l, first
		}
	}
	a.answer = make(chan answer, 1)
	l.waiting = append(l.waiting, a)
	if l.full != nil && len(l.waiting) >= l.enough {
		close(l.full)
		l.full = nil
	}
	return l, first
}

// leave takes a tenant whose caller has gone out of the line.
func (ls *lines) leave(l *line, a *asking) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if i := slices.Index(l.waiting, a); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// advance starts a batch for the waiting tenants. The batch outlives the caller that was placed before it, and keeps
// the caller's context values.
func (p *Placer) advance(ctx context.Context, l *line) {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	if len(l.waiting) == 0 {
		l.busy = false
		return
	}
	go p.serveLine(context.WithoutCancel(ctx), l)
}

// serveLine places the waiting tenants batch by batch until the line is empty.
func (p *Placer) serveLine(ctx context.Context, l *line) {
	for {
		p.lines.gather(l)
		batch := p.lines.take(l, p.Policy)
		if len(batch) == 0 {
			return
		}
		began := time.Now()
		p.placeTogether(ctx, batch)
		p.lines.mu.Lock()
		l.enough, l.took = len(batch), time.Since(began)
		p.lines.mu.Unlock()
	}
}

// gather waits until as many tenants wait as the last batch had, because those often come back, but no longer than
// that batch took. It does not delay a single tenant.
func (ls *lines) gather(l *line) {
	runtime.Gosched()
	ls.mu.Lock()
	if len(l.waiting) < 2 || len(l.waiting) >= min(l.enough, batchMost) {
		ls.mu.Unlock()
		return
	}
	full := make(chan struct{})
	l.full = full
	wait := min(gatherFor, l.took)
	ls.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-full:
	case <-timer.C:
		ls.mu.Lock()
		l.full = nil
		ls.mu.Unlock()
	}
}

// take takes the next batch out of the line in the order of decisions: the orgs take turns. A tenant that waits twice
// is in it once. An empty line becomes free.
func (ls *lines) take(l *line, policy placement.Policy) (batch []*asking) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	requests := make([]placement.Request, len(l.waiting))
	for i, a := range l.waiting {
		requests[i] = a.request
	}
	tenants := make(map[prego.TenantID]bool, batchMost)
	taken := make([]bool, len(l.waiting))
	for _, i := range policy.Turns(requests) {
		a := l.waiting[i]
		if len(batch) == batchMost {
			break
		}
		if !tenants[a.tenant.TenantID] {
			tenants[a.tenant.TenantID], taken[i] = true, true
			batch = append(batch, a)
		}
	}
	left := l.waiting[:0]
	for i, a := range l.waiting {
		if !taken[i] {
			left = append(left, a)
		}
	}
	clear(l.waiting[len(left):])
	l.waiting = left
	l.busy = len(batch) > 0
	return batch
}

// placeTogether decides on a batch, reserves the places and answers every caller in it.
func (p *Placer) placeTogether(ctx context.Context, batch []*asking) {
	ctx, cancel := context.WithTimeout(ctx, batchWithin)
	defer cancel()
	p.Metrics.Batch.Observe(float64(len(batch)))
	requests := make([]placement.Request, len(batch))
	var learnt []string
	for i, a := range batch {
		requests[i] = a.request
		learnt = append(learnt, a.learnt...)
	}
	answers := make([]answer, len(batch))
	defer func() {
		if recover() != nil { // it is raised again where each tries alone, and reported there
			giveUp(answers)
		}
		for i, a := range batch {
			a.answer <- answers[i]
		}
	}()
	if all, err := p.decideAll(ctx, requests, learnt); err != nil {
		giveUp(answers)
	} else if err := p.reserveAll(ctx, batch, all, answers); err != nil {
		// Each tries alone and gets its own error, or the place that it has.
		p.forget()
		giveUp(answers)
	}
}

func giveUp(answers []answer) {
	for i := range answers {
		answers[i] = answer{alone: true}
	}
}

// reserveAll reserves all places that were decided, in one transaction.
func (p *Placer) reserveAll(ctx context.Context, batch []*asking, all []placement.Decision, answers []answer) error {
	var rs []tenant.Reservation
	var of []int
	for i, d := range all {
		answers[i].d = d
		if !d.PlacesTenant() {
			continue
		}
		r, err := p.reservation(batch[i].tenant, batch[i].request, d, batch[i].actor)
		if err != nil {
			return err
		}
		rs, of = append(rs, r), append(of, i)
	}
	if len(rs) > 0 {
		p.keep(ctx)
	}
	if len(rs) == 1 && batch[of[0]].race == 0 {
		res, err := p.Store.Reserve(ctx, rs[0])
		answers[of[0]].res = res
		return err
	}
	results, err := p.Store.ReserveAll(ctx, rs)
	if err != nil {
		return err
	}
	for k, res := range results {
		answers[of[k]].res = res
	}
	return nil
}
