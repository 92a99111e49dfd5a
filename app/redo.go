package app

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/workflows"
)

// How often a process looks whether its database is the one that wrote the redo log, and how often a worker saves what
// has changed.
const (
	trustEvery = 500 * time.Millisecond
	redoEvery  = 2 * time.Second
)

// redoLog opens the redo log.
func (p *Process) redoLog() (*activities.RedoLog, error) {
	l := &activities.RedoLog{Store: p.db, Environment: p.cfg.Environment, Now: p.now}
	if p.cfg.Backups.Endpoint == "" {
		return l, nil
	}
	vault, err := token.OpenSealing(p.cfg.KeysDir, token.SealBackups)
	if err != nil {
		return nil, err
	}
	storage, err := newStorage(p.cfg.Backups, p.storage, p.db.MayDeleteObject)
	if err != nil {
		return nil, err
	}
	l.Objects, l.Vault = storage, vault
	return l, nil
}

// trust is whether a process may change anything by its database.
type trust struct{ refusal atomic.Pointer[prego.Error] }

// Refusal is why not, nil if it may.
func (t *trust) Refusal() error {
	if e := t.refusal.Load(); e != nil {
		return e
	}
	return nil
}

// trusted follows whether the database may be trusted, until ctx ends. What the database said last holds while it does
// not answer: nothing can be changed then.
func (p *Process) trusted(ctx context.Context) *trust {
	var t trust
	t.refusal.Store(notTrusted("the database has not answered yet"))
	look := func() {
		s, err := p.readTrust(ctx)
		if err != nil {
			return
		}
		why := s.Unverified()
		if why == "" {
			t.refusal.Store(nil)
		} else if before := t.refusal.Swap(notTrusted(why)); before == nil || before.Message != why {
			p.log.Warn("nothing is changed", zap.String("why", why))
		}
	}
	look()
	go every(ctx, trustEvery, look)
	return &t
}

// readTrust reads whether the database may be trusted, and which epoch commands to hosts carry.
func (p *Process) readTrust(ctx context.Context) (ops.RedoState, error) {
	s, err := p.db.RedoTrust(ctx)
	if err == nil {
		p.epoch.Store(s.Epoch)
	}
	return s, err
}

func notTrusted(why string) *prego.Error {
	return &prego.Error{Code: prego.CodeNotReady, Message: why}
}

func every(ctx context.Context, d time.Duration, f func()) {
	t := time.NewTicker(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}

// awaitTrust returns when the database may be trusted. Until then a worker does nothing at all, and what it would do
// waits in its queues.
func (p *Process) awaitTrust(ctx context.Context, l *activities.RedoLog) error {
	for said := ""; ; {
		why, err := l.Verify(ctx, true)
		if err == nil && why == "" {
			_, err = p.readTrust(ctx)
		}
		if err != nil {
			why = err.Error()
		}
		if why == "" {
			return nil
		}
		if why != said {
			p.log.Warn("nothing is done", zap.String("why", prego.Redact(why)))
			said = why
		}
		select {
		case <-time.After(trustEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// keepTrust ends with an error when another database has taken the place of the one that was verified, and lacks
// something: the process ends, and its successor waits. lose ends what it is doing at that moment.
func (p *Process) keepTrust(ctx context.Context, l *activities.RedoLog, lose func()) error {
	t := time.NewTicker(trustEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
		// A database that does not answer is no other database.
		if why, _ := l.Verify(ctx, false); why != "" {
			lose()
			return notTrusted(why)
		}
	}
}

// A Restore is what a restored database lacks.
type Restore = activities.Restore

// PlanRestore finds what the entries of the redo log that the database lacks would change. It changes nothing.
func PlanRestore(ctx context.Context, o Options) (r Restore, err error) {
	err = run(ctx, o, "restore-check", func(ctx context.Context, p *Process, _ *workflows.Client) error {
		l, err := p.redoLog()
		if err == nil {
			r, err = l.Plan(ctx)
		}
		return err
	})
	return r, err
}

// ApplyRestore completes the database from the redo log, or leaves it as it is, and ends Temporal's open runs: the rows
// decide what continues. Afterwards workers work again.
func ApplyRestore(ctx context.Context, o Options, asIs bool) (r Restore, err error) {
	err = run(ctx, o, "restore-apply", func(ctx context.Context, p *Process, runs *workflows.Client) error {
		l, err := p.redoLog()
		if err == nil {
			r, err = l.Apply(ctx, runs.EndRuns, asIs)
		}
		return err
	})
	return r, err
}
