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
)

// ReconcilerStore is the part of Postgres that fleets and their policies use.
type FleetStore interface {
	CreateFleet(ctx context.Context, r server.CreateFleetRequest, by string) (f server.Fleet, created bool, err error)
	GetFleet(ctx context.Context, id string) (server.Fleet, error)
	ListFleets(ctx context.Context, role prego.Role, after string, limit int) (page []server.Fleet, more bool, err error)
	UpdateFleet(ctx context.Context, id string, r server.UpdateFleetRequest) (server.Fleet, error)
	DeleteFleet(ctx context.Context, id string) error
	AttachPolicy(ctx context.Context, fleetID, policyID string, position *int, enabled bool) (server.Fleet, error)
	DetachPolicy(ctx context.Context, fleetID, policyID string) error

	CreatePolicy(ctx context.Context, p server.FleetPolicy) (made server.FleetPolicy, created bool, err error)
	GetPolicy(ctx context.Context, id string) (server.FleetPolicy, error)
	ListPolicies(ctx context.Context, kind server.PolicyType, after string, limit int) (page []server.FleetPolicy, more bool, err error)
	UpdatePolicy(ctx context.Context, id string, spec json.RawMessage) (server.FleetPolicy, error)
	DeletePolicy(ctx context.Context, id string) error

	FleetState(ctx context.Context, id string) (server.FleetState, error)
	RequestFleetAction(ctx context.Context, r server.FleetActionRequest) (server.FleetAction, error)
	GetFleetAction(ctx context.Context, fleetID string, seq int) (server.FleetAction, error)
	ListFleetActions(ctx context.Context, fleetID string, before, limit int) (page []server.FleetAction, more bool, err error)
	CancelFleetAction(ctx context.Context, fleetID string, seq int, by string) (server.FleetAction, error)
}

// FleetRuns has actions carried out. A start that fails is made up for by the
// periodic sweep: the row is what counts.
type FleetRuns interface {
	FleetRunID(fleetID string) string
	EnsureScaleFleet(ctx context.Context, fleetID string) error
}

func checkFleetPath(c echo.Context, id string, known ...string) error {
	if err := onlyParameters(c, known...); err != nil {
		return err
	}
	return server.ValidateFleetID(id)
}

func checkPolicyPath(c echo.Context, id string) error {
	if err := onlyParameters(c); err != nil {
		return err
	}
	return server.ValidatePolicyID(id)
}

// pageSize is a list's limit.
func pageSize(limit *int) (int, error) {
	switch {
	case limit == nil:
		return 50, nil
	case *limit < 1 || *limit > 200:
		return 0, prego.Invalid("limit", "must be 1 to 200")
	}
	return *limit, nil
}

func checkCursor(cursor *string, valid func(string) error) (string, error) {
	if cursor == nil {
		return "", nil
	}
	if valid(*cursor) != nil {
		return "", prego.Invalid("cursor", "must be the next_cursor of an earlier answer")
	}
	return *cursor, nil
}

// CreateFleet makes an empty fleet.
func (a *API) CreateFleet(c echo.Context) error {
	if err := onlyParameters(c); err != nil {
		return err
	}
	var in server.CreateFleetRequest
	if err := decodeBody(c.Response(), c.Request(), &in); err != nil {
		return err
	}
	if err := in.Validate(); err != nil {
		return err
	}
	ctx := c.Request().Context()
	if refused := a.checkSpec(ctx, in.InfraProvider, in.Region, in.Spec); refused != nil {
		if _, err := a.d.Fleets.GetFleet(ctx, in.FleetID); err != nil {
			return refused
		}
	}
	f, created, err := a.d.Fleets.CreateFleet(ctx, in, caller(c).Subject)
	if err != nil {
		return err
	}
	return c.JSON(madeOrMet(created), a.fleetView(f))
}

func madeOrMet(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// ListFleets shows a page of fleets.
func (a *API) ListFleets(c echo.Context, p ListFleetsParams) error {
	if err := onlyParameters(c, "role", "limit", "cursor"); err != nil {
		return err
	}
	limit, err := pageSize(p.Limit)
	if err != nil {
		return err
	}
	after, err := checkCursor(p.Cursor, server.ValidateFleetID)
	if err != nil {
		return err
	}
	var role prego.Role
	if p.Role != nil {
		if role = prego.Role(*p.Role); !role.Valid() {
			return prego.Invalid("role", "must be one of app, db-shard, redis-pool, node")
		}
	}
	fleets, more, err := a.d.Fleets.ListFleets(c.Request().Context(), role, after, limit)
	if err != nil {
		return err
	}
	out := ServerFleetPage{Fleets: []ServerFleet{}}
	for _, f := range fleets {
		v := a.fleetView(f)
		v.Policies = nil
		out.Fleets = append(out.Fleets, v)
	}
	if more {
		out.NextCursor = &out.Fleets[len(out.Fleets)-1].FleetId
	}
	return c.JSON(http.StatusOK, out)
}

// GetFleet shows a fleet.
func (a *API) GetFleet(c echo.Context, id FleetID) error {
	if err := checkFleetPath(c, id); err != nil {
		return err
	}
	f, err := a.d.Fleets.GetFleet(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, a.fleetView(f))
}

// UpdateFleet changes a fleet.
func (a *API) UpdateFleet(c echo.Context, id FleetID) error {
	if err := checkFleetPath(c, id); err != nil {
		return err
	}
	var in server.UpdateFleetRequest
	if err := decodeBody(c.Response(), c.Request(), &in); err != nil {
		return err
	}
	ctx := c.Request().Context()
	if in.Spec != nil {
		f, err := a.d.Fleets.GetFleet(ctx, id)
		if err != nil {
			return err
		}
		if err := in.Spec.Validate(); err != nil {
			return err
		}
		if err := a.checkSpec(ctx, f.InfraProvider, f.Region, *in.Spec); err != nil {
			return err
		}
	}
	f, err := a.d.Fleets.UpdateFleet(ctx, id, in)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, a.fleetView(f))
}

// DeleteFleet forgets an empty fleet.
func (a *API) DeleteFleet(c echo.Context, id FleetID) error {
	if err := checkFleetPath(c, id); err != nil {
		return err
	}
	if err := a.d.Fleets.DeleteFleet(c.Request().Context(), id); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// AttachPolicy gives a fleet a policy.
func (a *API) AttachPolicy(c echo.Context, id FleetID, policy PolicyID) error {
	if err := checkFleetPath(c, id); err != nil {
		return err
	}
	if err := server.ValidatePolicyID(policy); err != nil {
		return err
	}
	in := struct {
		Position *int  `json:"position"`
		Enabled  *bool `json:"enabled"`
	}{}
	if err := decodeBody(c.Response(), c.Request(), &in); err != nil {
		return err
	}
	if in.Position != nil && (*in.Position < 1 || *in.Position > 1_000_000) {
		return prego.Invalid("position", "must be 1 to 1000000")
	}
	f, err := a.d.Fleets.AttachPolicy(c.Request().Context(), id, policy, in.Position, in.Enabled == nil || *in.Enabled)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, a.fleetView(f))
}

// DetachPolicy takes a policy from a fleet.
func (a *API) DetachPolicy(c echo.Context, id FleetID, policy PolicyID) error {
	if err := checkFleetPath(c, id); err != nil {
		return err
	}
	if err := server.ValidatePolicyID(policy); err != nil {
		return err
	}
	if err := a.d.Fleets.DetachPolicy(c.Request().Context(), id, policy); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// CreatePolicy makes a policy.
func (a *API) CreatePolicy(c echo.Context) error {
	if err := onlyParameters(c); err != nil {
		return err
	}
	var in struct {
		PolicyID string            `json:"policy_id"`
		Type     server.PolicyType `json:"type"`
		Spec     json.RawMessage   `json:"spec"`
	}
	if err := decodeBody(c.Response(), c.Request(), &in); err != nil {
		return err
	}
	if err := server.ValidatePolicyID(in.PolicyID); err != nil {
		return err
	}
	spec, err := scale.ParsePolicy(in.Type, in.Spec)
	if err != nil {
		return err
	}
	p, created, err := a.d.Fleets.CreatePolicy(c.Request().Context(), server.FleetPolicy{PolicyID: in.PolicyID, Type: in.Type, Spec: spec, CreatedBy: caller(c).Subject})
	if err != nil {
		return err
	}
	return c.JSON(madeOrMet(created), policyView(p))
}

// ListPolicies shows a page of policies.
func (a *API) ListPolicies(c echo.Context, p ListPoliciesParams) error {
	if err := onlyParameters(c, "type", "limit", "cursor"); err != nil {
		return err
	}
	limit, err := pageSize(p.Limit)
	if err != nil {
		return err
	}
	after, err := checkCursor(p.Cursor, server.ValidatePolicyID)
	if err != nil {
		return err
	}
	var kind server.PolicyType
	if p.Type != nil {
		switch kind = server.PolicyType(*p.Type); kind {
		case server.PolicyScaling, server.PolicyRegionPlacement, server.PolicyDeletion:
		default:
			return prego.Invalid("type", "must be scaling, region_placement or deletion")
		}
	}
	policies, more, err := a.d.Fleets.ListPolicies(c.Request().Context(), kind, after, limit)
	if err != nil {
		return err
	}
	out := PolicyPage{Policies: []Policy{}}
	for _, v := range policies {
		out.Policies = append(out.Policies, policyView(v))
	}
	if more {
		out.NextCursor = &out.Policies[len(out.Policies)-1].PolicyId
	}
	return c.JSON(http.StatusOK, out)
}

// GetPolicy shows a policy.
func (a *API) GetPolicy(c echo.Context, id PolicyID) error {
	if err := checkPolicyPath(c, id); err != nil {
		return err
	}
	p, err := a.d.Fleets.GetPolicy(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, policyView(p))
}

// PutPolicy changes what a policy says.
func (a *API) PutPolicy(c echo.Context, id PolicyID) error {
	if err := checkPolicyPath(c, id); err != nil {
		return err
	}
	var in struct {
		Spec json.RawMessage `json:"spec"`
	}
	if err := decodeBody(c.Response(), c.Request(), &in); err != nil {
		return err
	}
	ctx := c.Request().Context()
	p, err := a.d.Fleets.GetPolicy(ctx, id)
	if err != nil {
		return err
	}
	spec, err := scale.ParsePolicy(p.Type, in.Spec)
	if err != nil {
		return err
	}
	if p, err = a.d.Fleets.UpdatePolicy(ctx, id, spec); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, policyView(p))
}

// DeletePolicy deletes a policy that no fleet has.
func (a *API) DeletePolicy(c echo.Context, id PolicyID) error {
	if err := checkPolicyPath(c, id); err != nil {
		return err
	}
	if err := a.d.Fleets.DeletePolicy(c.Request().Context(), id); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// CreateFleetAction queues an action, or shows what it would do.
func (a *API) CreateFleetAction(c echo.Context, id FleetID, p CreateFleetActionParams) error {
	if err := checkFleetPath(c, id, "dry_run"); err != nil {
		return err
	}
	key := ""
	if p.IdempotencyKey != nil {
		key = *p.IdempotencyKey
		if err := prego.ValidateIdempotencyKey(key); err != nil {
			return err
		}
	}
	var in struct {
		Action server.FleetActionKind `json:"action"`
		Inputs json.RawMessage        `json:"inputs"`
	}
	if err := decodeBody(c.Response(), c.Request(), &in); err != nil {
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
	ctx := c.Request().Context()
	if p.DryRun != nil && *p.DryRun {
		return a.planFleetAction(c, id, server.FleetAction{FleetID: id, Action: in.Action, Inputs: raw})
	}
	act, err := a.d.Fleets.RequestFleetAction(ctx, server.FleetActionRequest{
		FleetID: id, Action: in.Action, Inputs: raw, Cause: "operator", By: caller(c).Subject, IdempotencyKey: key,
	})
	if err != nil {
		return err
	}
	if !act.Status.Ended() {
		start, cancel := startContext(c)
		defer cancel()
		if err := a.d.FleetRuns.EnsureScaleFleet(start, id); err != nil {
			a.leftToTheSweep(c, a.d.FleetRuns.FleetRunID(id), err)
		}
	}
	return c.JSON(http.StatusAccepted, FleetActionAccepted{
		FleetId: id, Seq: act.Seq, Status: FleetActionAcceptedStatus(act.Status), WorkflowId: a.d.FleetRuns.FleetRunID(id),
		StatusUrl: fmt.Sprintf("/v1/fleets/%s/actions/%d", id, act.Seq),
	})
}

func (a *API) planFleetAction(c echo.Context, id string, act server.FleetAction) error {
	st, err := a.d.Fleets.FleetState(c.Request().Context(), id)
	if err != nil {
		return err
	}
	plan, err := scale.Plan(st, act)
	if err != nil {
		return err
	}
	out := FleetActionPlan{
		Data: plan.Data, Reason: optional(plan.Reason), Message: optional(plan.Message), DesiredCapacity: plan.Desired, Steps: []FleetPlannedStep{},
	}
	for _, s := range plan.Steps {
		out.Steps = append(out.Steps, FleetPlannedStep{Op: FleetPlannedStepOp(s.Op), ServerId: optional(s.ServerID), Region: Region(s.Region), Round: s.Round})
	}
	return c.JSON(http.StatusOK, out)
}

// ListFleetActions shows a page of a fleet's actions.
func (a *API) ListFleetActions(c echo.Context, id FleetID, p ListFleetActionsParams) error {
	if err := checkFleetPath(c, id, "limit", "cursor"); err != nil {
		return err
	}
	limit, err := pageSize(p.Limit)
	if err != nil {
		return err
	}
	before := 0
	if p.Cursor != nil {
		if before, err = strconv.Atoi(*p.Cursor); err != nil || before < 1 || before > 1<<31-1 {
			return prego.Invalid("cursor", "must be the next_cursor of an earlier answer")
		}
	}
	ctx := c.Request().Context()
	if _, err := a.d.Fleets.GetFleet(ctx, id); err != nil {
		return err
	}
	actions, more, err := a.d.Fleets.ListFleetActions(ctx, id, before, limit)
	if err != nil {
		return err
	}
	out := FleetActionPage{Actions: []FleetAction{}}
	for _, v := range actions {
		out.Actions = append(out.Actions, a.actionView(v))
	}
	if more {
		next := strconv.Itoa(actions[len(actions)-1].Seq)
		out.NextCursor = &next
	}
	return c.JSON(http.StatusOK, out)
}

func checkSeq(seq int) error {
	if seq < 1 || seq > 1<<31-1 {
		return prego.Invalid("seq", "must be the number of an action")
	}
	return nil
}

// GetFleetAction shows an action with each of its steps.
func (a *API) GetFleetAction(c echo.Context, id FleetID, seq ActionSeq) error {
	if err := checkFleetPath(c, id); err != nil {
		return err
	}
	if err := checkSeq(seq); err != nil {
		return err
	}
	act, err := a.d.Fleets.GetFleetAction(c.Request().Context(), id, seq)
	if err != nil {
		return err
	}
	out := a.actionView(act)
	steps := []FleetActionStep{}
	for _, s := range act.Steps {
		steps = append(steps, FleetActionStep{
			Op: FleetActionStepOp(s.Op), ServerId: s.ServerID, Region: Region(s.Region), Round: s.Round, Replan: s.Replan,
			State: FleetActionStepState(s.State), Message: optional(s.Message), At: s.At.UTC(),
		})
	}
	out.Steps = &steps
	return c.JSON(http.StatusOK, out)
}

// CancelFleetAction ends an action that waits, or what is left of one.
func (a *API) CancelFleetAction(c echo.Context, id FleetID, seq ActionSeq) error {
	if err := checkFleetPath(c, id); err != nil {
		return err
	}
	if err := checkSeq(seq); err != nil {
		return err
	}
	act, err := a.d.Fleets.CancelFleetAction(c.Request().Context(), id, seq, caller(c).Subject)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusAccepted, a.actionView(act))
}

func (a *API) fleetView(f server.Fleet) ServerFleet {
	out := ServerFleet{
		FleetId: f.FleetID, Role: Role(f.Role), InfraProvider: string(f.InfraProvider), MinSize: f.MinSize, MaxSize: f.MaxSize,
		DesiredCapacity: f.DesiredCapacity, Size: f.Size, Regions: map[string]int64{}, Spec: specView(f.Spec), Constraint: constraintView(f.Constraint),
		ServesTenants: f.Serves, WorkloadMemoryBytes: f.WorkloadMemory, WorkloadCpus: f.WorkloadCPUs, Profile: f.Profile, RunUrl: optional(a.d.Orchestrator.RunURL(a.d.FleetRuns.FleetRunID(f.FleetID))),
		CreatedBy: f.CreatedBy, CreatedAt: f.CreatedAt.UTC(), UpdatedAt: f.UpdatedAt.UTC(),
	}
	if f.Region != "" {
		r := Region(f.Region)
		out.Region = &r
	}
	for r, n := range f.Regions {
		out.Regions[string(r)] = n
	}
	policies := []AttachedPolicy{}
	for _, p := range f.Policies {
		policies = append(policies, AttachedPolicy{
			PolicyId: p.PolicyID, Type: PolicyType(p.Type), Spec: p.Spec, Position: p.Position, Enabled: p.Enabled, LastUsedAt: utc(p.LastUsedAt),
		})
	}
	out.Policies = &policies
	return out
}

func policyView(p server.FleetPolicy) Policy {
	return Policy{PolicyId: p.PolicyID, Type: PolicyType(p.Type), Spec: p.Spec, CreatedBy: p.CreatedBy, CreatedAt: p.CreatedAt.UTC(), UpdatedAt: p.UpdatedAt.UTC()}
}

func (a *API) actionView(v server.FleetAction) FleetAction {
	return FleetAction{
		FleetId: v.FleetID, Seq: v.Seq, Action: FleetActionKind(v.Action), Inputs: v.Inputs, Data: v.Data, Status: FleetActionStatus(v.Status),
		Reason: optional(v.Reason), Message: optional(v.Message), Cause: v.Cause, RequestedBy: v.RequestedBy, CancelRequested: v.CancelRequested,
		RunUrl:    optional(a.d.Orchestrator.RunURL(a.d.FleetRuns.FleetRunID(v.FleetID))),
		CreatedAt: v.CreatedAt.UTC(), StartedAt: utc(v.StartedAt), FinishedAt: utc(v.FinishedAt),
	}
}
