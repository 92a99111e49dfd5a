package api

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
)

const (
	// refusalsEvery is how soon a first refusal is in the audit.
	refusalsEvery = time.Second
	// refusalsFor is how long the refusals of a principal at an operation are counted into one entry.
	refusalsFor = time.Minute
	// maxRefusals bounds the memory: principals times operations within a minute.
	maxRefusals = 10_000
)

// outOfReach is the refusal of an object outside of the caller's reach, or an absent one: callers can't tell them
// apart, and neither does the audit.
type outOfReach struct{ error }

func (e outOfReach) Unwrap() error { return e.error }

// noteRefusals notes requests that were refused because of who sent them, also questions. The answer never waits for
// the entry: its time would show whether an object is new to the audit.
func (a *API) noteRefusals(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		err := next(c)
		op := a.contract.operation(c)
		if err == nil || op == nil || caller(c).PrincipalID == "" {
			return err
		}
		code := prego.CodeOf(err)
		if outside := (outOfReach{}); code == prego.CodeForbidden || code == prego.CodeCaveat || code != "" && errors.As(err, &outside) {
			kind, id := about(c)
			a.refusals.add(ops.Refusal{Source: auditSource(c, op), Kind: kind, ID: clipped(id, mostInField), Code: code})
		}
		return err
	}
}

// refusals are those that wait for their entry of the audit, or are counted into the next.
type refusals struct {
	write  func(context.Context, ops.Refusal) error
	log    *zap.Logger
	ending context.Context // the process's

	mu      sync.Mutex
	of      map[refusalKey]*counted
	lost    int
	running bool
}

type refusalKey struct{ principal, operation string }

// counted are the refusals of a key: those without an entry.
type counted struct {
	ops.Refusal
	noted bool // the first one has an entry
}

// add counts a refusal.
func (r *refusals) add(one ops.Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := refusalKey{one.Source.Actor, one.Source.Operation}
	met := r.of[k]
	switch {
	case met != nil:
		met.Count++
	case len(r.of) >= maxRefusals:
		r.lost++
	default:
		one.Count, one.Since = 1, time.Now()
		r.of[k] = &counted{Refusal: one}
	}
	if !r.running {
		r.running = true
		go r.run()
	}
}

// run writes while there is something to write, or to count.
func (r *refusals) run() {
	t := time.NewTicker(refusalsEvery)
	defer t.Stop()
	for {
		select {
		case <-r.ending.Done(): // end writes the rest
			return
		case <-t.C:
			r.flush(r.ending, false)
		}
		r.mu.Lock()
		if len(r.of) == 0 {
			r.running = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
	}
}

// flush writes first refusals, and what was counted for long enough; with all also what was counted since. While the
// database cannot be used it keeps them.
func (r *refusals) flush(ctx context.Context, all bool) {
	r.mu.Lock()
	var due []*counted
	for k, c := range r.of {
		over := all || time.Since(c.Since) >= refusalsFor
		switch {
		case c.Count > 0 && (over || !c.noted):
			due = append(due, c)
		case over:
			delete(r.of, k)
		}
	}
	lost := r.lost
	r.lost = 0
	r.mu.Unlock()
	if lost > 0 {
		r.log.Warn("refused requests are not in the audit: there are too many", zap.Int("requests", lost))
	}
	for _, c := range due {
		r.mu.Lock()
		one := c.Refusal
		r.mu.Unlock()
		try, cancel := context.WithTimeout(ctx, recordWithin)
		err := r.write(try, one)
		cancel()
		if err != nil {
			r.log.Warn("refused requests are not in the audit yet", zap.String("error", prego.Redact(err.Error())))
			return
		}
		r.mu.Lock()
		if c.Count -= one.Count; c.noted {
			c.Since = time.Now() // the next one is a first one again
		}
		c.noted = !c.noted
		if c.Count == 0 && !c.noted {
			delete(r.of, refusalKey{c.Source.Actor, c.Source.Operation})
		}
		r.mu.Unlock()
	}
}
