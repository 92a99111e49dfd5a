package worker

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
)

// readPatience bounds one read of a scrape.
const readPatience = 20 * time.Second

// lastRead answers scrapes from memory, and reads anew at most every so often, however
// many scrape. A read that fails is logged, and the last value stays.
type lastRead[T any] struct {
	every   time.Duration
	read    func(context.Context) (T, error)
	failing string // what is logged then
	log     *zap.Logger
	now     func() time.Time

	mu    sync.Mutex
	tried time.Time
	at    time.Time
	value T
}

// get returns the value and when it was read, the zero time if it never was.
func (r *lastRead[T]) get() (value T, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := r.now(); r.tried.IsZero() || now.Sub(r.tried) >= r.every {
		r.tried = now
		ctx, cancel := context.WithTimeout(context.Background(), readPatience)
		defer cancel()
		if value, err := r.read(ctx); err != nil {
			r.log.Warn(r.failing, zap.String("error", prego.Redact(err.Error())))
		} else {
			r.value, r.at = value, now
		}
	}
	return r.value, r.at
}
