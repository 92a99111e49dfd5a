package worker

import (
	"context"
	"time"

	"github.com/prego/prego/ops"
	"github.com/prego/prego/server"
)

// SampleStore keeps what hosts reported.
type SampleStore interface {
	TakeSamples(ctx context.Context, every time.Duration) (int, error)
}

// Samples keeps what agents reported of their hosts, a sample of each in every span of server.SampleEvery.
type Samples struct{ Store SampleStore }

// LookAtSamples takes the missing samples of the current span, with one statement. Looking several times in a span also
// finds agents that were silent at first.
func LookAtSamples(a *Samples) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) {
		n, err := a.Store.TakeSamples(ctx, server.SampleEvery)
		return ops.LookResult{Found: n > 0}, err
	}
}
