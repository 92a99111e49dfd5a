package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/placement/scale"
	"github.com/prego/prego/server"
)

// fleetAction queues an action, or shows its plan.
var fleetAction = hook{
	watch: watchAction,
	body: func(_ *call, body object) (any, error) {
		if body["inputs"] == nil {
			body["inputs"] = object{}
		}
		return body, nil
	},
	instead: func(in *call) (bool, error) {
		if !in.is("dry-run") {
			return false, nil
		}
		var tried struct {
			Impact impact.Impact
			Plan   api.FleetActionPlan
		}
		if err := json.Unmarshal(in.answer, &tried); err != nil {
			return false, err
		}
		p := tried.Plan
		in.keep(in.answer)
		if p.Reason != nil { // an impossible plan is an outcome, just as it is for the action itself
			return true, &Exit{Code: ExitOutcome, Err: fmt.Errorf("%s (%s)", deref(p.Message), *p.Reason)}
		}
		if !in.forPeople() {
			return true, nil
		}
		if len(tried.Impact.Affected) > 0 {
			printImpact(in.w, tried.Impact, in.Now())
		}
		return true, in.plan(p)
	},
}

// resizeFleet is an action whose adjustment is given by several flags.
var resizeFleet = func() hook {
	h := fleetAction
	adjustments := map[string]string{
		"to": "EXACT_CAPACITY", "by": "CHANGE_IN_CAPACITY", "percent": "CHANGE_IN_PERCENTAGE",
	}
	h.flags = func(cmd *cobra.Command, f *pflag.FlagSet) {
		f.Bool("best-effort", false, "stay within the bounds instead of being refused")
		f.Int("to", 0, "this many servers")
		f.Int("by", 0, "this many more, or fewer when negative")
		f.Int("percent", 0, "this many percent more, or fewer when negative")
		cmd.MarkFlagsMutuallyExclusive("to", "by", "percent")
	}
	h.body = func(in *call, body object) (any, error) {
		for flag, kind := range adjustments {
			if in.given(flag) {
				api.Put(body, "inputs.adjustment_type", kind)
				api.Put(body, "inputs.number", json.Number(in.text(flag)))
			}
		}
		if in.is("best-effort") {
			api.Put(body, "inputs.strict", false)
		}
		return fleetAction.body(in, body)
	}
	return h
}()

var showAction = hook{watch: watchAction, after: below("FleetActionStep", func(a api.FleetAction) []api.FleetActionStep {
	return deref(a.Steps)
})}

// plan prints counts per region, and the servers to remove.
func (in *call) plan(p api.FleetActionPlan) error {
	var data scale.NodeData
	if err := json.Unmarshal(p.Data, &data); err != nil {
		return fmt.Errorf("the plan's data: %w", err)
	}
	count, regions, servers := map[string]int{}, map[string]map[string]int64{"create": {}, "delete": {}}, []string{}
	for _, s := range p.Steps {
		op := string(s.Op)
		count[op]++
		regions[op][string(s.Region)]++
		if s.ServerId != nil && op == string(server.StepOpDelete) {
			servers = append(servers, *s.ServerId)
		}
	}
	var lines [][2]string
	for _, op := range []server.FleetStepOp{server.StepOpCreate, server.StepOpDelete} {
		if n := count[string(op)]; n > 0 {
			lines = append(lines, [2]string{string(op), fmt.Sprintf("%d: %s", n, counts(regions[string(op)]))})
		}
	}
	if len(lines) == 0 {
		fmt.Fprintln(in.w, "nothing to do")
	}
	lines = append(lines, [2]string{"servers", strings.Join(servers, " ")})
	if d := data.Deletion; d != nil && d.GracePeriod != nil {
		lines = append(lines, [2]string{"grace period", fmt.Sprintf("%s for servers that have tenants", time.Duration(*d.GracePeriod)*time.Second)})
	}
	if r := data.Replacement; r != nil && r.Count > 0 {
		lines = append(lines, [2]string{"surge", fmt.Sprintf("%d new servers before their old ones go", r.Surge)})
	}
	in.pairs(in.w, append(lines, [2]string{"desired", fmt.Sprintf("%d servers from then on", p.DesiredCapacity)})...)
	return nil
}

// watchAction follows a fleet's action to its end.
var watchAction = Watch[api.FleetAction]{
	Path: "/v1/fleets/{fleet}/actions/{action}", Again: "prego fleet action {fleet} {action} --watch", Lines: actionLines,
	Doing:   func(a api.FleetAction) string { return fmt.Sprintf("action %d is %s", a.Seq, a.Status) },
	Rests:   func(a api.FleetAction) bool { return server.FleetActionStatus(a.Status).Ended() },
	Outcome: func(_ *call, a api.FleetAction) error { return actionFailure(a) },
	Done:    func(_ *call, a api.FleetAction) string { return fmt.Sprintf("action %d %s", a.Seq, a.Status) },
}

// actionFailure is the error of an action that did not succeed; nil if it did.
func actionFailure(a api.FleetAction) error {
	if server.FleetActionStatus(a.Status) == server.ActionSucceeded {
		return nil
	}
	text := fmt.Sprintf("action %d of fleet %s %s", a.Seq, a.FleetId, a.Status)
	if a.Message != nil {
		text += ": " + oneLine(*a.Message)
	}
	if a.Reason != nil {
		text += " (" + *a.Reason + ")"
	}
	return fmt.Errorf("%s", text)
}

// actionLines are the events of an action: queued, planned, and each state of its
// steps.
func actionLines(a api.FleetAction) []line {
	lines := []line{{"queued", a.CreatedAt, fmt.Sprintf("queued  %s %s  [%s]", a.Action, compact(a.Inputs), a.RequestedBy)}}
	if a.StartedAt == nil {
		return lines
	}
	latest := *a.StartedAt
	for _, s := range deref(a.Steps) {
		if s.At.After(latest) {
			latest = s.At
		}
	}
	data := compact(a.Data)
	lines = append(lines, line{data, latest, "planned  " + data})
	for _, s := range deref(a.Steps) {
		text := fmt.Sprintf("%-6s %-22s %s  %s", s.Op, s.ServerId, s.Region, s.State)
		if s.Replan {
			text += "  replaces a failed action"
		}
		if s.Message != nil {
			text += "  " + oneLine(*s.Message)
		}
		lines = append(lines, line{fmt.Sprint(s.Op, s.ServerId, s.State), s.At, text})
	}
	return lines
}
