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
	// gatherFor is the longest time that tenants who wait already wait for more to come.
	gatherFor = 5 * time.Millisecond
	// batchWithin is the longest time that a batch may take. It does not end with any
	// of its callers.
	batchWithin = 15 * time.Second
	// racesTogether is how often a tenant that loses its race is placed along with others.
	// Another process's batches let it win within a few. What it loses alone for another
	// reason, such as a row that is held for long, it waits for alone.
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
	full    chan struct{} // closed when as many wait; nil unless somebody gathers
	took    time.Duration // the last batch
}

// try decides on a tenant once, and reserves the decision if it is a place. It is placed
// together with those that ask at the same time; alone, and at once, if nobody does.
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
		// If it is being placed already that is like an answer that was lost: whoever
		// asks again is told the place.
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

// enter puts a tenant in the line of its region. The caller of the first one advances the
// line; if that has lost no race it does not wait, but is to be placed by its caller before.
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

// advance lets whoever waits be placed. The batch outlives the caller that was placed
// before it, and takes its values along.
func (p *Placer) advance(ctx context.Context, l *line) {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	if len(l.waiting) == 0 {
		l.busy = false
		return
	}
	go p.serveLine(context.WithoutCancel(ctx), l)
}

// serveLine places those who wait, batch by batch, until nobody does.
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

// gather waits until as many wait as were placed together last, because those often come
// back, but no longer than that took. It doesn't keep a tenant that is the only one.
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

// take takes the next batch out of the line, in the order in which it is decided: the orgs
// take turns. A tenant that waits twice is in it once. If nobody waits the line is free.
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

// placeTogether decides on a batch and reserves what it decided, and answers everyone in
// it.
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
		// Each tries alone and hears of its own error, or of the place that it has.
		p.forget()
		giveUp(answers)
	}
}

func giveUp(answers []answer) {
	for i := range answers {
		answers[i] = answer{alone: true}
	}
}

// reserveAll reserves the decisions that place somebody, in one transaction.
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
