package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/scale"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// CreateFleet creates an empty fleet.
func (a *API) CreateFleet(c echo.Context, _ CreateFleetParams) error {
	var in server.CreateFleetRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	ctx := c.Request().Context()
	if refused := a.checkSpec(ctx, in.InfraProvider, in.Region, in.Spec); refused != nil {
		if _, err := a.d.Store.GetFleet(ctx, in.FleetID); err != nil {
			return refused
		}
	}
	promised := server.Fleet{Role: in.Role, Region: in.Region, InfraProvider: in.InfraProvider, Spec: in.Spec, WorkloadMemory: in.WorkloadMemory, WorkloadDisk: in.WorkloadDisk}
	if refused := a.checkOffer(ctx, promised); refused != nil {
		if _, err := a.d.Store.GetFleet(ctx, in.FleetID); err != nil {
			return refused
		}
	}
	f, created, err := a.d.Store.CreateFleet(ctx, in, caller(c).By())
	return answer(c, madeOrMet(created), f, err, a.fleetView)
}

func madeOrMet(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// ListFleets shows a page of fleets.
func (a *API) ListFleets(c echo.Context, _ ListFleetsParams) error {
	return list(c, "fleets", store.Fleets.In(a.d.Store), func(f server.Fleet) Fleet {
		v := a.fleetView(f)
		v.Policies = nil
		return v
	})
}

// GetFleet shows a fleet.
func (a *API) GetFleet(c echo.Context, id FleetID) error {
	return show(c, a.d.Store.GetFleet, id, a.fleetView)
}

// UpdateFleet changes a fleet.
func (a *API) UpdateFleet(c echo.Context, id FleetID, _ UpdateFleetParams) error {
	var in server.UpdateFleetRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	ctx := c.Request().Context()
	if in.Spec != nil || in.WorkloadMemory != nil || in.WorkloadDisk != nil {
		if err := a.checkFleetUpdate(ctx, id, in); err != nil {
			return err
		}
	}
	f, err := a.d.Store.UpdateFleet(ctx, id, in)
	return answer(c, http.StatusOK, f, err, a.fleetView)
}

// checkFleetUpdate checks a fleet's spec and offer against what the provider sells.
func (a *API) checkFleetUpdate(ctx context.Context, id prego.FleetID, in server.UpdateFleetRequest) error {
	f, err := a.d.Store.GetFleet(ctx, id)
	if err != nil {
		return err
	}
	if in.Spec != nil {
		if err := in.Spec.Validate(); err != nil {
			return err
		}
		if err := a.checkSpec(ctx, f.InfraProvider, f.Region, *in.Spec); err != nil {
			return err
		}
	}
	if err := in.Apply(&f); err != nil {
		return err
	}
	return a.checkOffer(ctx, f)
}

// DeleteFleet deletes an empty fleet.
func (a *API) DeleteFleet(c echo.Context, id FleetID, _ DeleteFleetParams) error {
	return noContent(c, a.d.Store.DeleteFleet(c.Request().Context(), id))
}

// AttachPolicy attaches a policy to a fleet.
func (a *API) AttachPolicy(c echo.Context, id FleetID, policy PolicyID, _ AttachPolicyParams) error {
	var in AttachPolicy
	if err := decode(c, &in); err != nil {
		return err
	}
	f, err := a.d.Store.AttachPolicy(c.Request().Context(), id, policy, in.Position, in.Enabled == nil || *in.Enabled)
	return answer(c, http.StatusOK, f, err, a.fleetView)
}

// DetachPolicy detaches a policy from a fleet.
func (a *API) DetachPolicy(c echo.Context, id FleetID, policy PolicyID, _ DetachPolicyParams) error {
	return noContent(c, a.d.Store.DetachPolicy(c.Request().Context(), id, policy))
}

// CreatePolicy creates a policy.
func (a *API) CreatePolicy(c echo.Context, _ CreatePolicyParams) error {
	var in struct {
		PolicyID prego.PolicyID    `json:"policy_id"`
		Type     server.PolicyType `json:"type"`
		Spec     json.RawMessage   `json:"spec"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	spec, err := scale.ParsePolicy(in.Type, in.Spec)
	if err != nil {
		return err
	}
	p, created, err := a.d.Store.CreatePolicy(c.Request().Context(), server.FleetPolicy{PolicyID: in.PolicyID, Type: in.Type, Spec: spec, CreatedBy: caller(c).By()})
	return answer(c, madeOrMet(created), p, err, viewOf[Policy])
}

// ListPolicies shows a page of policies.
func (a *API) ListPolicies(c echo.Context, _ ListPoliciesParams) error {
	return list(c, "policies", store.Policies.In(a.d.Store), viewOf[Policy])
}

// GetPolicy shows a policy.
func (a *API) GetPolicy(c echo.Context, id PolicyID, _ GetPolicyParams) error {
	return a.showTagged(c, prego.ReplaceablePolicy, []any{id}, func() error { return show(c, a.d.Store.GetPolicy, id, viewOf[Policy]) })
}

// PutPolicy changes a policy's spec.
func (a *API) PutPolicy(c echo.Context, id PolicyID, _ PutPolicyParams) error {
	var in struct {
		Spec json.RawMessage `json:"spec"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	ctx := c.Request().Context()
	p, err := a.d.Store.GetPolicy(ctx, id)
	if err != nil {
		return err
	}
	spec, err := scale.ParsePolicy(p.Type, in.Spec)
	if err != nil {
		return err
	}
	if p, err = a.d.Store.UpdatePolicy(ctx, id, p.Type, spec, ifMatch(c)...); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, viewOf[Policy](p))
}

// DeletePolicy deletes a policy that is attached to no fleet.
func (a *API) DeletePolicy(c echo.Context, id PolicyID, _ DeletePolicyParams) error {
	return noContent(c, a.d.Store.DeletePolicy(c.Request().Context(), id))
}

// CreateFleetAction queues an action, or returns what it would do.
func (a *API) CreateFleetAction(c echo.Context, id FleetID, p CreateFleetActionParams) error {
	var in struct {
		Action server.FleetActionKind `json:"action"`
		Inputs json.RawMessage        `json:"inputs"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	inputs, err := scale.ParseInputs(in.Action, in.Inputs, true)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(inputs)
	if err != nil {
		return err
	}
	act, err := a.d.Store.RequestFleetAction(c.Request().Context(), server.FleetActionRequest{
		FleetID: id, Action: in.Action, Inputs: raw, Cause: "operator", By: caller(c).By(), IdempotencyKey: deref(p.IdempotencyKey),
	}, scale.Plan)
	if err != nil {
		return err
	}
	if dryRun(c) {
		return a.planFleetAction(c, id, act)
	}
	if !act.Status.Ended() {
		a.started(c, a.d.Runs.FleetRunID(id), func(ctx context.Context) error { return a.d.Runs.EnsureScaleFleet(ctx, id) })
	}
	return c.JSON(http.StatusAccepted, FleetActionAccepted{
		FleetId: string(id), Seq: act.Seq, Status: FleetActionAcceptedStatus(act.Status), WorkflowId: a.d.Runs.FleetRunID(id),
		StatusUrl: fmt.Sprintf("/v1/fleets/%s/actions/%d", id, act.Seq), Operation: a.actionOperation(c, act),
	})
}

// actionOperation is the operation of one action of a fleet.
func (a *API) actionOperation(c echo.Context, act server.FleetAction) *Operation {
	return a.operation(c, a.d.Runs.FleetRunID(act.FleetID)+"/"+strconv.Itoa(act.Seq))
}

func (a *API) planFleetAction(c echo.Context, id prego.FleetID, act server.FleetAction) error {
	st, err := a.d.Store.FleetState(c.Request().Context(), id)
	if err != nil {
		return err
	}
	plan, err := scale.Plan(st, act)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, FleetActionPlan{
		Data: plan.Data, Reason: optional(plan.Reason), Message: optional(plan.Message), DesiredCapacity: plan.Desired, Steps: views(plan.Steps, viewOf[FleetPlannedStep]),
	})
}

// ListFleetActions shows a page of a fleet's actions.
func (a *API) ListFleetActions(c echo.Context, id FleetID, _ ListFleetActionsParams) error {
	return within(c, a.d.Store.GetFleet, "actions", store.FleetActions.In(a.d.Store), a.actionView, "fleet_id", id)
}

// GetFleetAction shows an action with each of its steps.
func (a *API) GetFleetAction(c echo.Context, id FleetID, seq ActionSeq) error {
	act, err := a.d.Store.GetFleetAction(c.Request().Context(), id, seq)
	if err != nil {
		return err
	}
	out := a.actionView(act)
	out.Steps = new(views(act.Steps, viewOf[FleetActionStep]))
	return c.JSON(http.StatusOK, out)
}

// CancelFleetAction cancels a queued action, or the rest of a running one.
func (a *API) CancelFleetAction(c echo.Context, id FleetID, seq ActionSeq, _ CancelFleetActionParams) error {
	act, err := a.d.Store.CancelFleetAction(c.Request().Context(), id, seq, caller(c).By())
	if err != nil {
		return err
	}
	out := a.actionView(act)
	out.Operation = a.actionOperation(c, act)
	return c.JSON(http.StatusAccepted, out)
}

func (a *API) fleetView(f server.Fleet) Fleet {
	out := viewOf[Fleet](f)
	out.RunUrl, out.Policies = optional(a.d.Runs.RunURL(a.d.Runs.FleetRunID(f.FleetID))), new(views(f.Policies, viewOf[AttachedPolicy]))
	if f.PatchWindow.Schedule == "" {
		out.PatchWindow = nil
	}
	return out
}

func (a *API) actionView(v server.FleetAction) FleetAction {
	out := viewOf[FleetAction](v)
	out.Steps, out.RunUrl = nil, optional(a.d.Runs.RunURL(a.d.Runs.FleetRunID(v.FleetID)))
	return out
}
