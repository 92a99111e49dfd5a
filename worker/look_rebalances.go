package worker

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workflows"
)

// Rebalances carry out packing plans.
type Rebalances struct {
	Store *store.Store
	Runs  *workflows.Client
	Log   *zap.Logger
	Hook  func(point string) // see Servers
}

func (a *Rebalances) hook(point string) {
	if a.Hook != nil {
		a.Hook(point)
	}
}

// LookAtRebalances starts the next moves of plans. Each move is a row before it is requested, so that the next look
// continues what a worker left that died.
func LookAtRebalances(ctx context.Context, a *Rebalances) (ops.LookResult, error) {
	open, err := a.Store.OpenRebalances(ctx)
	var try activities.Attempts
	try.OK(err)
	for id := range activities.Each(&try, open) {
		try.OK(a.step(ctx, id))
	}
	return ops.LookResult{Found: len(open) > 0}, try.Err()
}

func (a *Rebalances) step(ctx context.Context, id prego.RebalanceID) error {
	st, err := a.Store.StepRebalance(ctx, id)
	if err != nil {
		return err
	}
	a.hook("rebalance/stepped")
	for _, m := range st.Begin {
		if err := a.begin(ctx, id, m); err != nil {
			return err
		}
	}
	for _, s := range st.Remove {
		srv, err := a.Store.RemoveFreed(ctx, s, "rebalance "+string(id))
		if err != nil {
			// It has tenants again: the next step of the plan decides.
			a.Log.Info("a server that was freed is not removed", zap.String("server_id", string(s)), zap.String("error", prego.Redact(err.Error())))
			continue
		}
		if srv.Status == server.Decommissioning {
			if _, err := a.Runs.EnsureDecommission(ctx, s); err != nil {
				a.Log.Warn("a server that was freed is removed later", zap.String("server_id", string(s)), zap.Error(err))
			}
		}
	}
	return nil
}

func (a *Rebalances) begin(ctx context.Context, id prego.RebalanceID, m server.PlannedMoveSeq) error {
	move, err := a.Store.RequestMove(ctx, tenant.MoveAsked{ID: prego.MoveID(m.MoveID(id)), TenantID: m.TenantID, To: m.To, Why: "rebalance " + string(id), By: "rebalance"})
	if coded, ok := errors.AsType[*prego.Error](err); ok {
		return a.Store.RebalanceMoveRefused(ctx, id, m.Seq, coded.Code, coded.Message)
	}
	if err != nil {
		return err
	}
	if move.MoveID != prego.MoveID(m.MoveID(id)) {
		return a.Store.RebalanceMoveRefused(ctx, id, m.Seq, prego.CodeMoveUnderWay, "another request moves it there: "+string(move.MoveID))
	}
	a.hook("rebalance/asked")
	if _, err := a.Runs.EnsureMove(ctx, move.MoveID); err != nil {
		a.Log.Warn("a move begins later", zap.String("move_id", string(move.MoveID)), zap.Error(err))
	}
	return nil
}
