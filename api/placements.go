package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// simulation is the body of POST /v1/placements/simulate.
type simulation struct {
	Requests []placement.DocRequest `json:"requests"`
	Fleet    *placement.DocFleet    `json:"fleet"`
}

// SimulatePlacements decides without writing anything.
func (a *API) SimulatePlacements(c echo.Context, _ SimulatePlacementsParams) error {
	leave, err := a.simulations.enter(caller(c))
	if err != nil {
		return err
	}
	defer leave()
	var in simulation
	if err := decode(c, &in); err != nil {
		return err
	}
	_, _, requests, err := placement.Document{Requests: in.Requests}.Build(a.d.Placer.Policy)
	if err != nil {
		return err
	}
	var decisions []placement.Decision
	ctx := c.Request().Context()
	if in.Fleet != nil {
		decisions, err = simulateOn(ctx, a.d.Placer.Policy, *in.Fleet, requests)
	} else {
		decisions, err = a.d.Placer.Simulate(ctx, requests)
	}
	if err != nil {
		return err
	}
	if len(decisions) != len(requests) {
		return fmt.Errorf("simulation: %d decisions on %d requests", len(decisions), len(requests))
	}
	out := SimulationResult{Results: make([]PlacementLine, 0, len(requests))}
	for i, r := range requests {
		out.Results = append(out.Results, placement.LineOf(r, decisions[i]))
	}
	return c.JSON(http.StatusOK, out)
}

// simulateOn decides over a fleet from the request, by its changes of the active policy.
func simulateOn(
	ctx context.Context, active placement.Policy, f placement.DocFleet, requests []placement.Request,
) ([]placement.Decision, error) {
	policy, data, _, err := placement.Document{DocFleet: f}.Build(active)
	if err != nil {
		var invalid *prego.Error
		if errors.As(err, &invalid) {
			invalid.Field = joinPath("fleet", invalid.Field)
		}
		return nil, err
	}
	fleet := placement.NewSnapshot(policy, data)
	out := make([]placement.Decision, 0, len(requests))
	for _, r := range requests {
		if err := ctx.Err(); errors.Is(err, context.DeadlineExceeded) {
			return nil, placement.ErrOutOfTime
		} else if err != nil {
			return nil, err
		}
		d := fleet.Decide(r)
		fleet.Apply(r, d)
		out = append(out, d)
	}
	return out, nil
}

// OverridePlacement forces a place for a tenant (placement-policy §8).
func (a *API) OverridePlacement(c echo.Context, _ OverridePlacementParams) error {
	var in tenant.PlacementOverride
	if err := decode(c, &in); err != nil {
		return err
	}
	d, err := a.d.Placer.Override(c.Request().Context(), in, caller(c).By())
	if err != nil {
		return namingTheForced(err)
	}
	return c.JSON(http.StatusOK, placement.LineOf(placement.Request{TenantID: in.TenantID}, d))
}

// namingTheForced names the unknown forced id.
func namingTheForced(err error) error {
	var refused *prego.Error
	if !errors.As(err, &refused) || refused.Field != "" {
		return err
	}
	switch refused.Code {
	case prego.CodeServerUnknown:
		return &prego.Error{Code: refused.Code, Field: "force_app_server_id", Message: refused.Message}
	case prego.CodeShardUnknown:
		return &prego.Error{Code: refused.Code, Field: "force_db_shard_id", Message: refused.Message}
	case prego.CodePoolUnknown:
		return &prego.Error{Code: refused.Code, Field: "force_redis_pool_id", Message: refused.Message}
	}
	return err
}
