package api

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

func moveView(m tenant.Move) Move {
	if !m.MovesShard {
		m.FromShardID, m.ToShardID = "", ""
	}
	if !m.MovesPool {
		m.FromPoolID, m.ToPoolID = "", ""
	}
	if m.ToRegion == "" {
		m.FromRegion = ""
	}
	return viewOf[Move](m)
}

// CreateMove requests that a tenant, or a part of it, moves to another place.
func (a *API) CreateMove(c echo.Context, tenantID TenantID, _ CreateMoveParams) error {
	var in struct {
		To     prego.ServerID    `json:"to_server_id"`
		Shard  prego.ShardID     `json:"to_shard_id"`
		Pool   prego.RedisPoolID `json:"to_pool_id"`
		Region prego.Region      `json:"region"`
		Reason string            `json:"reason"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	m, err := a.d.Store.RequestMove(c.Request().Context(), tenant.MoveAsked{
		ID: prego.MoveID(newID("mov-")), TenantID: tenantID, To: in.To, Shard: in.Shard, Pool: in.Pool, Region: in.Region, Why: in.Reason, By: caller(c).By(),
	})
	if err != nil {
		return err
	}
	a.startRun(c, a.d.Runs.StartMove, m.OrgID, string(m.MoveID), tenant.MoveWorkflowID(m.MoveID))
	return accepted(a, c, m, moveView)
}

// ListMoves shows a page of a tenant's moves.
func (a *API) ListMoves(c echo.Context, tenant TenantID, _ ListMovesParams) error {
	return within(c, a.d.Store.GetTenant, "moves", store.Moves.In(a.d.Store), moveView, "tenant_id", string(tenant))
}

// GetMove shows a move.
func (a *API) GetMove(c echo.Context, tenant TenantID, id MoveInPath) error {
	m, err := a.d.Store.GetMove(c.Request().Context(), tenant, id)
	return answer(c, http.StatusOK, m, err, moveView)
}

// CancelMove has a move undone that has not switched.
func (a *API) CancelMove(c echo.Context, tenantID TenantID, id MoveInPath, _ CancelMoveParams) error {
	m, err := a.d.Store.CancelMove(c.Request().Context(), tenantID, id)
	if err != nil {
		return err
	}
	a.started(c, tenant.MoveWorkflowID(id), func(ctx context.Context) error {
		return a.d.Runs.CancelMove(ctx, id) // a look starts a run that reads the row
	})
	return accepted(a, c, m, moveView)
}
