package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// moving is a tenant on server 1 or 2, and its moves.
type moving struct {
	at        int
	open      int // the move that has not ended, 0 for none
	state     tenant.MoveState
	cancelled bool
	ended     [1 + clients*requests]tenant.MoveState
}

// movingModel: a tenant has one move at a time, whose steps come in their order, it is switched only if
// it has not been cancelled, and the tenant counts where it is and where it has a reservation.
func movingModel(s moving, a request, got answered) []moving {
	after, said := s, ""
	open := s.open == a.n && a.n != 0
	state := s.state
	if !open {
		state = s.ended[a.n]
	}
	switch a.do {
	case "read":
		said = s.counts()
	case "ask":
		switch {
		case s.open == 0:
			after.open, after.state, after.cancelled = a.n, tenant.MoveQueued, false
			said = moveID(0, a.n)
		case !s.cancelled && s.state.Undoable():
			said = moveID(0, s.open)
		default:
			said = string(prego.CodeMoveUnderWay)
		}
	case "reserve":
		switch {
		case state == "":
			said = string(prego.CodeMoveNotFound)
		case !open || s.state != tenant.MoveQueued:
			said = "true"
		case s.cancelled:
			said = "superseded"
		default: // the other server is fit, and its own is not
			if said = fmt.Sprint(a.place != s.at); a.place != s.at {
				after.state = tenant.MoveCopying
			}
		}
	case "freeze":
		switch {
		case state == "":
			said = string(prego.CodeMoveNotFound)
		case !open || s.cancelled || s.state != tenant.MoveCopying && s.state != tenant.MoveFrozen:
			said = "superseded"
		default:
			after.state = tenant.MoveFrozen
		}
	case "switch":
		switch {
		case open && s.state == tenant.MoveFrozen && !s.cancelled:
			after.state, after.at = tenant.MoveSwitched, 3-s.at
		case state != tenant.MoveSwitched && state != tenant.MoveDone:
			said = "superseded"
		}
	case "cancel":
		switch {
		case state == "":
			said = string(prego.CodeMoveNotFound)
		case open && s.state.Undoable():
			after.cancelled = true
		case state != tenant.MoveCancelled:
			said = string(prego.CodeInvalidTransition)
		}
	case "done", "cancelled":
		if open && (s.state == tenant.MoveSwitched) == (a.do == "done") {
			after.open, after.state, after.cancelled = 0, "", false
			after.ended[a.n] = tenant.MoveState(a.do)
			state = tenant.MoveState(a.do)
		}
		if said = string(state); state == "" {
			said = string(prego.CodeMoveNotFound)
		}
	}
	switch {
	case got.unknown && after != s:
		return []moving{s, after}
	case !got.unknown && got.said != said:
		return nil
	}
	return []moving{after}
}

// counts is where the tenant is, and how many tenants each server has.
func (s moving) counts() string {
	n := map[int]int{s.at: 1}
	if s.open != 0 && s.state != tenant.MoveQueued {
		n[3-s.at] = 1
	}
	return fmt.Sprintf("app-%d %d %d", s.at, n[1], n[2])
}

// moveID leaves the round out of what the model compares.
func moveID(round, n int) string { return fmt.Sprintf("mov-%d-%d", round, n) }

// next is the step after a step.
var next = map[string]string{"ask": "reserve", "reserve": "freeze", "freeze": "switch", "switch": "done", "done": "ask", "cancel": "cancelled", "cancelled": "ask"}

func TestMovesAreLinearizable(t *testing.T) {
	t.Parallel()
	b := moveSetup(t)
	cfg := b.s.pool.Config()
	cfg.MaxConns = clients + 2
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := New(pool)
	where := `SELECT a.app_server_id || ' ' || (SELECT string_agg(tenant_count::text, ' ' ORDER BY server_id) FROM servers WHERE role = 'app') FROM tenant_allocations a WHERE a.released_at IS NULL`
	switched, undone := 0, 0
	for round := range deep.Times(25) {
		begins, err := value[string](t.Context(), pool, where)
		require.NoError(t, err)
		first := moving{at: 1}
		if begins != first.counts() {
			first.at = 2
		}
		require.Equal(t, first.counts(), begins)
		var asked, latest atomic.Int64
		var last atomic.Value
		last.Store("cancelled")
		// A round starts without a move, or with a move that is some steps on its way.
		for i, do := range []string{"ask", "reserve", "freeze"}[:round%4] {
			a := request{do: do, n: 1, place: 3 - first.at}
			said, err := moveStep(t.Context(), s, round, a, where)
			require.NoError(t, err)
			after := movingModel(first, a, answered{said: said})
			require.Len(t, after, 1, "step %d: %s", i, said)
			first = after[0]
			asked.Store(1)
			latest.Store(1)
			last.Store(do)
		}
		draw := func(r *rand.Rand, _, _ int) request {
			// Most continue from the previous client's step, at the newest move, and some act at random.
			n, do := int(latest.Load()), next[last.Load().(string)]
			if r.IntN(8) == 0 {
				n = int(asked.Load())
			}
			if r.IntN(3) == 0 {
				do = [...]string{"ask", "reserve", "freeze", "switch", "cancel", "cancel", "done", "cancelled", "read", "read"}[r.IntN(10)]
			}
			switch do {
			case "ask":
				n = int(asked.Add(1))
			case "read":
				n = 0
			}
			return request{do: do, n: n, place: 1 + r.IntN(2)}
		}
		history := playHistory(uint64(round), draw, func(ctx context.Context, a request) (answered, error) {
			said, err := moveStep(ctx, s, round, a, where)
			if err != nil && ctx.Err() == nil {
				t.Errorf("%+v: %v", a, err)
			}
			if a.do == "ask" && said == moveID(0, a.n) {
				latest.Store(int64(a.n))
			}
			if _, step := next[a.do]; step && err == nil {
				last.Store(a.do)
			}
			return answered{said: said}, err
		})
		for _, op := range history {
			if op.Input.(request).do == "switch" && op.Output.(answered) == (answered{}) {
				switched++
			}
		}
		linearizable(t, model(first, movingModel), history)
		// The next round begins without a move.
		for n := range int(asked.Load()) + 1 {
			for _, state := range []tenant.MoveState{tenant.MoveDone, tenant.MoveCancelled} {
				if m, err := s.FinishMove(t.Context(), prego.MoveID(moveID(round, n)), state, "", ""); err == nil && m.State == tenant.MoveCancelled {
					undone++
				}
			}
		}
	}
	require.Positive(t, switched)
	require.Positive(t, undone)
}

// moveStep carries out a client's request and reports the outcome; an error is not one of the
// expected refusals.
func moveStep(ctx context.Context, s *Store, round int, a request, where string) (said string, err error) {
	id := prego.MoveID(moveID(round, a.n))
	switch a.do {
	case "read":
		return value[string](ctx, s.pool, where)
	case "ask":
		var m tenant.Move
		if m, err = s.RequestMove(ctx, tenant.MoveAsked{ID: id, TenantID: "t-1", By: "ann"}); err == nil {
			var n int
			_, err = fmt.Sscanf(string(m.MoveID), moveIDPattern(round), &n)
			said = moveID(0, n)
		}
	case "reserve":
		place := somewhere
		place.ServerID = prego.ServerID(fmt.Sprintf("app-%d", a.place))
		var ok bool
		ok, err = s.ReserveMove(ctx, id, place)
		said = fmt.Sprint(ok)
	case "freeze":
		said, err = s.FreezeMove(ctx, id)
	case "switch":
		err = s.SwitchMove(ctx, id, 0)
	case "cancel":
		_, err = s.CancelMove(ctx, "t-1", id)
	case "done", "cancelled":
		var m tenant.Move
		m, err = s.FinishMove(ctx, id, tenant.MoveState(a.do), "", "")
		said = string(m.State)
	}
	var refused *prego.Error
	switch {
	case errors.Is(err, server.ErrSuperseded):
		return "superseded", nil
	case errors.As(err, &refused) && ctx.Err() == nil:
		return string(refused.Code), nil
	}
	return said, err
}

func moveIDPattern(round int) string { return fmt.Sprintf("mov-%d-%%d", round) }
