package worker

import (
	"context"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/ops"
)

// LookAtRedo saves what has changed in the redo log, all of it.
func LookAtRedo(ctx context.Context, l *activities.RedoLog) (ops.LookResult, error) {
	found := false
	for {
		n, err := l.Save(ctx)
		if err != nil || n == 0 {
			return ops.LookResult{Found: found}, err
		}
		found = true
	}
}

// LookAtOldRedo deletes the entries of the redo log that no base backup needs.
func LookAtOldRedo(ctx context.Context, l *activities.RedoLog) (ops.LookResult, error) {
	n, err := l.Prune(ctx)
	return ops.LookResult{Found: n > 0}, err
}
