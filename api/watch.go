package api

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

const (
	// watchEvery is how often a process with open streams reads their credentials, once for all: a stream ends within
	// a second of what ends its caller's access.
	watchEvery = 500 * time.Millisecond
	// watchBlind is for how long streams continue while the credentials can't be read.
	watchBlind = 10 * time.Second
)

// ErrAccessEnded is why a stream ended whose caller may not have it any more.
var ErrAccessEnded = prego.Errorf(prego.CodeUnauthenticated, "the access that this was opened with has ended")

// watches are the open streams of a process.
type watches struct {
	read   func(ctx context.Context, credentials []string) (map[string]access.Principal, error)
	log    *zap.Logger
	ending context.Context // the process's

	looking sync.Mutex // the look that begins last has the last word

	mu      sync.Mutex
	open    map[*watch]bool
	running bool
}

// watch is an open stream and what its caller may do now.
type watch struct {
	credential string
	capability access.Capability
	// narrows is that of a stream that shows what is in reach: it continues with less. Others are about one object:
	// they end when their caller loses anything, and a caller who still may opens another.
	narrows bool
	opened  access.Reach // it never shows more
	end     context.CancelCauseFunc
	ended   context.Context //nolint:containedctx // of the stream, so that a detached one can follow it

	mu  sync.Mutex
	now access.Reach
}

type watchKey struct{}

// watchOf is the watch of a stream's context, nil without one.
func watchOf(ctx context.Context) *watch {
	w, _ := ctx.Value(watchKey{}).(*watch)
	return w
}

// sees reports whether the caller may see what belongs to an org now.
func (w *watch) sees(org prego.OrgID) bool {
	if w == nil {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opened.Includes(org) && w.now.Includes(org)
}

// Watch returns a context for a stream that shows a caller what it may read by a capability, or with none only what is
// its own: the context ends within a second of the credential, its principal or the last grant of the capability. done
// must be called at the stream's end.
func (a *API) Watch(ctx context.Context, p access.Principal, c access.Capability) (watched context.Context, done func()) {
	if c != "" {
		ctx = access.WithReach(ctx, p.Reach(c))
	}
	return a.watches.add(ctx, p, &watch{capability: c, narrows: true})
}

func (s *watches) add(ctx context.Context, p access.Principal, w *watch) (watched context.Context, done func()) {
	w.opened = access.Reach{Everywhere: true}
	if reach, ok := access.ReachOf(ctx); ok {
		w.opened = reach
	}
	w.credential, w.now = p.CredentialID, w.opened
	ctx, w.end = context.WithCancelCause(context.WithValue(ctx, watchKey{}, w))
	w.ended = ctx
	stop := func() {}
	if !p.Expires.IsZero() {
		t := time.AfterFunc(time.Until(p.Expires), func() { w.end(ErrAccessEnded) })
		stop = func() { t.Stop() }
	}
	s.mu.Lock()
	if w.credential != "" {
		s.open[w] = true
	}
	if !s.running && len(s.open) > 0 {
		s.running = true
		go s.run()
	}
	s.mu.Unlock()
	return ctx, func() {
		stop()
		s.mu.Lock()
		delete(s.open, w)
		s.mu.Unlock()
		w.end(context.Canceled)
	}
}

// run reads the credentials of the open streams until there are none.
func (s *watches) run() {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for known := time.Now(); ; {
		select {
		case <-s.ending.Done():
			return
		case <-t.C:
		}
		began := time.Now()
		n, err := s.look(s.ending, time.Since(known) >= watchBlind)
		if err == nil {
			known = began
		}
		if n > 0 {
			continue
		}
		s.mu.Lock()
		if len(s.open) == 0 {
			s.running = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

// look ends the streams whose callers may not have them any more; with blind also if that can't be read. It returns how
// many there are.
func (s *watches) look(ctx context.Context, blind bool) (n int, err error) {
	s.looking.Lock()
	defer s.looking.Unlock()
	of := map[string][]*watch{}
	s.mu.Lock()
	for w := range s.open {
		of[w.credential] = append(of[w.credential], w)
	}
	s.mu.Unlock()
	if len(of) == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, watchBlind)
	defer cancel()
	now, err := s.read(ctx, slices.Collect(maps.Keys(of)))
	if err != nil && !blind {
		return len(of), err
	}
	if err != nil {
		s.log.Warn("streams end: the access of their callers cannot be read", zap.String("error", prego.Redact(err.Error())))
	}
	for credential, all := range of {
		p, ok := now[credential] // none, if they can't be read
		for _, w := range all {
			if !ok || !w.still(p) {
				w.end(ErrAccessEnded)
			}
		}
	}
	return len(of), err
}

// still reports whether a stream continues, given its caller as it is now.
func (w *watch) still(p access.Principal) bool {
	if w.capability == "" {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = p.Reach(w.capability)
	if w.narrows || w.now.Everywhere {
		return !w.now.None()
	}
	return !w.opened.Everywhere && !slices.ContainsFunc(w.opened.Orgs, func(org prego.OrgID) bool { return !w.now.Includes(org) })
}
