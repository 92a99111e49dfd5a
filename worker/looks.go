package worker

import (
	"context"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/ops"
)

// Looks are what a worker repeats without a run: a statement that finds out whether there is work, which then gets a run.

// At is a look at what a is about.
func At[T any](a T, look func(context.Context, T) (ops.LookResult, error)) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) { return look(ctx, a) }
}

// startIf starts a run if there is something to do.
func startIf(ctx context.Context, found bool, err error, start func(context.Context) error) (ops.LookResult, error) {
	if err == nil && found {
		err = start(ctx)
	}
	return ops.LookResult{Found: found}, err
}

// startLost starts the runs of things that may have lost theirs. One that can't be started keeps no other from its
// start.
func startLost[T any](ctx context.Context, quiet []T, err error, ensure func(context.Context, T) (bool, error)) (ops.LookResult, error) {
	found := false
	var try activities.Attempts
	try.OK(err)
	for id := range activities.Each(&try, quiet) {
		started, startErr := ensure(ctx, id)
		try.OK(startErr)
		found = found || started
	}
	return ops.LookResult{Found: found}, try.Err()
}
