package worker

import (
	"context"

	"github.com/prego/prego/ops"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// Samples keeps what agents reported of their hosts, a sample of each in every span of server.SampleEvery.
type Samples struct{ Store *store.Store }

// LookAtSamples takes the missing samples of the current span, with one statement. Looking several times in a span also
// finds agents that were silent at first.
func LookAtSamples(a *Samples) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) {
		n, err := a.Store.TakeSamples(ctx, server.SampleEvery)
		return ops.LookResult{Found: n > 0}, err
	}
}
