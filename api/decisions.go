package api

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// ListAllDecisions shows a page of the decisions on all tenants.
func (a *API) ListAllDecisions(c echo.Context, _ ListAllDecisionsParams) error {
	page, next, err := store.Decisions.In(a.d.Store)(c.Request().Context(), listQuery(c))
	if err != nil {
		return err
	}
	out := DecisionPage{Decisions: []Decision{}, NextCursor: optional(next)}
	for _, r := range page {
		d, err := anyDecisionView(r)
		if err != nil {
			return err
		}
		redactDecision(c.Request().Context(), &d)
		out.Decisions = append(out.Decisions, d)
	}
	return c.JSON(http.StatusOK, out)
}

func anyDecisionView(r tenant.Decision) (Decision, error) {
	out, err := decisionView(r.DecisionRecord)
	out.OrgId, out.Region = optional(string(r.OrgID)), &r.Region
	return out, err
}

// GetDecision shows a decision with its funnel, if its input is kept.
func (a *API) GetDecision(c echo.Context, id DecisionInPath) error {
	ctx := c.Request().Context()
	d, err := a.d.Store.GetDecision(ctx, id)
	if err != nil {
		return err
	}
	out := ExplainedDecision{Input: "not_kept"}
	if out.Decision, err = anyDecisionView(d); err != nil {
		return err
	}
	if access.OfCustomer(ctx) { // the funnel names the candidates
		redactDecision(ctx, &out.Decision)
		return c.JSON(http.StatusOK, out)
	}
	k, funnel, err := a.d.Placer.Explain(ctx, d.DecisionRecord)
	switch {
	case err == nil:
		out.Input, out.Funnel, out.Request = "kept", &funnel, decidedRequest(k)
	case prego.CodeOf(err) != prego.CodeInputNotKept:
		return err
	}
	return c.JSON(http.StatusOK, out)
}

func decidedRequest(k placement.Kept) *DecidedRequest {
	r := k.Decision.Request
	out := &DecidedRequest{
		TenantId: string(r.TenantID), OrgId: string(r.OrgID), ParentOrgId: optional(string(r.ParentOrgID)), Region: r.Region, Plan: r.Plan, Mode: string(r.Mode),
		DataResidency: optional(r.DataResidency), Require: notNil(r.Constraint.Require), Disallow: notNil(r.Constraint.Disallow),
	}
	if out.Mode == "" {
		out.Mode = string(k.State.Policy.Mode)
	}
	if r.DedicatedRedis {
		out.DedicatedRedis = &r.DedicatedRedis
	}
	if len(r.Pools) > 0 {
		out.PlacementPools = &r.Pools
	}
	if o := r.Override; o != nil {
		out.ForcedAppServerId, out.ForcedDbShardId = optional(string(o.AppServerID)), optional(string(o.DBShardID))
	}
	if len(r.Busy) > 0 {
		busy := slices.Sorted(maps.Keys(r.Busy))
		out.Busy = &busy
	}
	return out
}

func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// ReplayDecision decides again on the input of a decision.
func (a *API) ReplayDecision(c echo.Context, id DecisionInPath, _ ReplayDecisionParams) error {
	ctx := c.Request().Context()
	d, err := a.d.Store.GetDecision(ctx, id)
	if err != nil {
		return err
	}
	k, r, err := a.d.Placer.Replay(ctx, d.DecisionRecord)
	if err != nil {
		return err
	}
	recorded, err := decisionView(d.DecisionRecord)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, DecisionReplay{
		Same: r.Same, Decided: k.Decision.Line(recorded.DecisionLog), Replayed: r.Then, Now: r.Now, Differences: r.Differences, Funnel: r.Funnel,
		VersionThen: k.State.Version, VersionNow: r.Version,
	})
}

// whatIf is the body of POST /v1/placements/what-if.
type whatIf struct {
	TenantID prego.TenantID        `json:"tenant_id"`
	Request  *placement.DocRequest `json:"request"`
	Change   struct {
		Plan           *prego.Plan       `json:"plan"`
		Region         *prego.Region     `json:"region"`
		Constraint     *prego.Constraint `json:"constraint"`
		DedicatedRedis *bool             `json:"dedicated_redis"`
		Cordon         []string          `json:"cordon"`
		Uncordon       []string          `json:"uncordon"`
		AddServer      *struct {
			Role       prego.Role      `json:"role"`
			Region     prego.Region    `json:"region"`
			NetworkID  prego.NetworkID `json:"network_id"`
			ServerType string          `json:"server_type"`
			Tags       []string        `json:"tags"`
			Capacity   int             `json:"capacity"`
		} `json:"add_server"`
	} `json:"change"`
}

// addedCapacity is what a shard or pool takes that is tried without a capacity.
const addedCapacity = 1000

// WhatIf compares a placement as it is with one under other circumstances.
func (a *API) WhatIf(c echo.Context, _ WhatIfParams) error {
	var in whatIf
	if err := decode(c, &in); err != nil {
		return err
	}
	var r placement.Request
	switch {
	case (in.TenantID == "") == (in.Request == nil):
		return prego.Invalid("request", "or tenant_id is required, and not both")
	case in.Request != nil:
		_, _, requests, err := placement.Document{Requests: []placement.DocRequest{*in.Request}}.
			Build(a.d.Placer.Policy)
		if err != nil {
			var invalid *prego.Error
			if errors.As(err, &invalid) { // of the first of several
				invalid.Field = strings.Replace(invalid.Field, "requests[0]", "request", 1)
			}
			return err
		}
		r = requests[0]
	}
	w := placement.WhatIf{Plan: in.Change.Plan, Region: in.Change.Region, Constraint: in.Change.Constraint, DedicatedRedis: in.Change.DedicatedRedis, Cordon: in.Change.Cordon, Uncordon: in.Change.Uncordon}
	if w.Constraint != nil {
		if err := w.Constraint.Normalize("change.constraint"); err != nil {
			return err
		}
	}
	add := in.Change.AddServer
	if add != nil {
		tags := prego.Constraint{Require: add.Tags}
		if err := tags.Normalize("change.add_server"); err != nil {
			return err
		}
		w.Add = &placement.AddedServer{Role: add.Role, Region: add.Region, NetworkID: add.NetworkID, Tags: tags.Require, Capacity: cmp.Or(add.Capacity, addedCapacity)}
	}
	ctx := c.Request().Context()
	answers, err := a.d.Placer.WhatIf(ctx, in.TenantID, r, w)
	if err != nil {
		return err
	}
	out := WhatIfResult{AsIs: whatIfAnswer(answers[0]), Changed: whatIfAnswer(answers[1]), Same: placement.SamePlace(answers[0].Line, answers[1].Line)}
	if add != nil {
		out.AddedServerId = new(placement.AddedID)
		if err := a.priceAdded(ctx, add.ServerType, &out); err != nil {
			return err
		}
	}
	return c.JSON(http.StatusOK, out)
}

// priceAdded shows the lowest price of a server type.
func (a *API) priceAdded(ctx context.Context, serverType string, out *WhatIfResult) error {
	if serverType == "" {
		return nil
	}
	catalog, err := a.d.Store.ProviderCatalog(ctx, prego.ProviderHetzner)
	if err != nil {
		return err
	}
	typ, known := catalog.Type(serverType)
	if catalog.Known() && !known {
		return prego.Invalid("change.add_server.server_type", "is not a machine type of the provider")
	}
	for _, l := range catalog.Locations {
		cost, ok := catalog.ServerCost(typ.Name, l.Name, 0)
		if amount := cost.Monthly.NetAmount(); ok && (out.AddedMonthly == nil || amount < *out.AddedMonthly) {
			out.AddedMonthly, out.Currency = &amount, optional(cost.Currency)
		}
	}
	return nil
}

func whatIfAnswer(a placement.Answer) WhatIfAnswer {
	return WhatIfAnswer{Line: a.Line, Funnel: a.Funnel}
}
