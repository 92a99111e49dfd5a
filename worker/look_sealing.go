package worker

import (
	"context"

	"go.uber.org/zap"

	"github.com/prego/prego/ops"
	"github.com/prego/prego/store"
)

// Audit adds entries to the audit's chain.
type Audit struct {
	Store *store.Store
	Log   *zap.Logger
}

// sealAtOnce is how many entries one transaction seals.
const sealAtOnce = 1000

// LookAtAudit seals new entries, without a workflow. The head goes to the log, which is outside the database:
// verification compares with it.
func LookAtAudit(a *Audit) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) {
		var r ops.LookResult
		for {
			n, head, err := a.Store.SealAudit(ctx, sealAtOnce)
			if err != nil {
				return r, err
			}
			if r.Found = r.Found || n > 0; n == sealAtOnce {
				continue
			}
			if r.Found {
				a.Log.Info("the audit is sealed", zap.Int64("seq", head.Seq), zap.Stringer("hash", head.Hash))
			}
			return r, nil
		}
	}
}
