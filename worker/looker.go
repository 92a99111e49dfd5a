package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/store"
)

// A Look is repeated by one of all workers.
type Look struct {
	Name  string
	Every time.Duration // from start to start
	Do    func(ctx context.Context) (ops.LookResult, error)
}

// Looker repeats looks. All workers have the same looks; each time, one worker takes it. A find starts a run, so that
// looking without a find costs a statement and leaves no history.
type Looker struct {
	Store  *store.Store
	Holder string // this worker, a name that no other one has
	Looks  []Look
	Log    *zap.Logger
	// Lease is how long a look may go without a sign of life of its worker.
	Lease time.Duration
	// Spread is by how much a wait is longer that has at most d added; nil is by chance.
	Spread func(d time.Duration) time.Duration
}

const (
	// LookLease is how long after a worker's death in the middle of a look another one
	// looks.
	LookLease = 5 * time.Second
	// lookPatience bounds one look.
	lookPatience = 5 * time.Minute
	// lookAgain is how long is waited after the database did not answer.
	lookAgain = 2 * time.Second
)

// Run looks until the context ends.
func (l *Looker) Run(ctx context.Context) error {
	var g errgroup.Group
	for _, look := range l.Looks {
		g.Go(func() error {
			l.repeat(ctx, look)
			return nil
		})
	}
	<-ctx.Done()
	return g.Wait()
}

func (l *Looker) repeat(ctx context.Context, look Look) {
	log := l.Log.With(zap.String("look", look.Name))
	for {
		began, wait, err := l.Store.BeginLook(ctx, look.Name, l.Holder, look.Every, l.Lease)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.Warn("cannot determine which worker looks next", zap.String("error", prego.Redact(err.Error())))
			wait = lookAgain
		case began:
			l.look(ctx, look, log)
			continue // the row decides which worker is next
		}
		// Workers that wait for the same moment don't ask simultaneously.
		wait += l.spread(20*time.Millisecond + look.Every/50)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

func (l *Looker) spread(d time.Duration) time.Duration {
	if l.Spread != nil {
		return l.Spread(d)
	}
	return time.Duration(rand.Int64N(int64(d)))
}

func (l *Looker) look(ctx context.Context, look Look, log *zap.Logger) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	ended := make(chan struct{})
	go l.extend(ctx, cancel, look.Name, ended, log)
	result, err := do(ctx, look)
	close(ended)
	if err != nil && ctx.Err() == nil {
		log.Warn("a look failed; it is repeated", zap.String("error", prego.Redact(err.Error())))
	}
	// If this worker is stopped in the middle of a look, another one may start immediately.
	rest, stop := context.WithTimeout(context.WithoutCancel(ctx), l.Lease)
	defer stop()
	if err := l.Store.EndLook(rest, look.Name, l.Holder, result, err); err != nil {
		log.Warn("the end of a look is not recorded; the next one waits for its lease", zap.String("error", prego.Redact(err.Error())))
	}
}

// do turns a panic into an error: the worker has other work.
func do(ctx context.Context, look Look) (r ops.LookResult, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return look.Do(ctx)
}

// extend keeps the lease until the look has ended, and cancels one whose lease was lost.
func (l *Looker) extend(ctx context.Context, cancel context.CancelFunc, name string, ended <-chan struct{}, log *zap.Logger) {
	t := time.NewTicker(l.Lease / 3)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			held, err := l.Store.ExtendLook(ctx, name, l.Holder, l.Lease)
			if err == nil && !held {
				log.Warn("a look took longer than its lease, which another worker may have taken")
				cancel()
				return
			}
		case <-ended:
			return
		case <-ctx.Done():
			return
		}
	}
}
