package cli

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
	"github.com/prego/prego/placement/scale"
	"github.com/prego/prego/server"
)

var actionTable = Table[api.FleetAction]{
	ID: "seq", Columns: "seq, action, status, created_at: age, requested_by: by, cause, reason, data", Spare: "data, by, cause, age", More: "message, created_at, inputs, run_url: run",
}

// input is the name of an action's input and its flag's value.
type input struct {
	name  string
	value func() any
}

// fleetActions are the verbs for actions.
func fleetActions() []verb {
	return []verb{
		fleetAction(server.ClusterScaleOut, "scale-out FLEET", "Add servers", "  prego fleet scale-out web --count 4 --dry-run", func(f *pflag.FlagSet) map[string]input {
			return map[string]input{
				"count":  {"count", intFlag(f, "count", 0, "how many (default: as the scaling policy says, or 1)")},
				"region": {"regions", listFlag(f, "region", "only in this region; may be repeated")},
			}
		}),
		fleetAction(server.ClusterScaleIn, "scale-in FLEET", "Remove servers", "", func(f *pflag.FlagSet) map[string]input {
			return map[string]input{"count": {"count", intFlag(f, "count", 0, "how many (default: as the scaling policy says, or 1)")}}
		}),
		fleetAction(server.ClusterResize, "resize FLEET", "Resize a fleet: --to, --by or --percent, within --min and --max", "  prego fleet resize web --to 5 --watch", func(f *pflag.FlagSet) map[string]input {
			f.Bool("best-effort", false, "stay within the bounds instead of being refused")
			return map[string]input{
				"to":          {"EXACT_CAPACITY", intFlag(f, "to", 0, "this many servers")},
				"by":          {"CHANGE_IN_CAPACITY", intFlag(f, "by", 0, "this many more, or fewer when negative")},
				"percent":     {"CHANGE_IN_PERCENTAGE", intFlag(f, "percent", 0, "this many percent more, or fewer when negative")},
				"min-step":    {"min_step", intFlag(f, "min-step", 0, "minimum number of servers that --percent changes")},
				"min":         {"min_size", intFlag(f, "min", 0, "minimum, instead of the fleet's")},
				"max":         {"max_size", intFlag(f, "max", 0, "maximum, instead of the fleet's; -1 for none")},
				"best-effort": {"strict", func() any { return false }},
			}
		}),
		fleetAction(server.ClusterReplace, "replace FLEET", "Renew the servers of earlier specs", "", func(f *pflag.FlagSet) map[string]input {
			grace := f.Duration("grace-period", 0, "how long tenants have to move off a server")
			return map[string]input{
				"max-surge":    {"max_surge", intFlag(f, "max-surge", 1, "how many extra servers the fleet may have during the replacement")},
				"grace-period": {"grace_period", func() any { return int64(*grace / time.Second) }},
			}
		}),
		fleetAction(server.NodeCreate, "node-create FLEET", "Add one server", "", func(f *pflag.FlagSet) map[string]input {
			region := f.String("region", "", "region, whatever the policy says")
			return map[string]input{"region": {"region", func() any { return *region }}}
		}),
		List[api.FleetAction]{Use: "actions FLEET", Short: "List a fleet's actions, newest first", Path: "/v1/fleets/{fleet}/actions", Items: "actions", Limit: 50, Filters: "status, action", Sorts: "created_at", Table: actionTable},
		Show[api.FleetAction]{
			Use: "action FLEET ACTION", Short: "Show an action, its plan and each of its servers", Path: "/v1/fleets/{fleet}/actions/{action}", Table: actionTable, Watch: watchAction(),
			After: func(in *call, a api.FleetAction) {
				if len(deref(a.Steps)) > 0 {
					fmt.Fprintln(in.w)
					_ = rows(in.printer, Table[api.FleetActionStep]{Columns: "round, op, server_id, region, state, at: since, message", Spare: "since, region, round"}, *a.Steps) // its columns are all there
				}
			},
		},
		Action[api.FleetAction]{
			Use: "cancel FLEET ACTION", Short: "Cancel an action; steps that have not begun are skipped", Path: "/v1/fleets/{fleet}/actions/{action}/cancel", Table: actionTable,
			Say: func(_ *call, a api.FleetAction) string { return fmt.Sprintf("action %d is %s", a.Seq, a.Status) },
		},
	}
}

func intFlag(f *pflag.FlagSet, name string, value int64, help string) func() any {
	n := f.Int64(name, value, help)
	return func() any { return *n }
}

func listFlag(f *pflag.FlagSet, name, help string) func() any {
	v := f.StringSlice(name, nil, help)
	return func() any { return *v }
}

// fleetAction is a verb that queues an action. An adjustment's input, written in
// capitals, is its type, sent together with the number.
func fleetAction(action server.FleetActionKind, use, short, example string, flags func(f *pflag.FlagSet) map[string]input) Action[api.FleetActionAccepted] {
	var inputs map[string]input
	dryRun := false
	destroys := map[server.FleetActionKind]string{
		server.ClusterScaleIn: "removes servers of fleet", server.ClusterResize: "may remove servers of fleet", server.ClusterReplace: "replaces the servers of fleet",
	}
	return Action[api.FleetActionAccepted]{
		Use: use, Short: short, Example: example, Path: "/v1/fleets/{fleet}/actions", Watch: watchAction(), Table: Table[api.FleetActionAccepted]{ID: "seq"},
		Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
			f.BoolVar(&dryRun, "dry-run", false, "show what would be done, and do nothing")
			cmd.MarkFlagsMutuallyExclusive("dry-run", "watch")
			if inputs = flags(f); inputs["to"].name != "" {
				cmd.MarkFlagsMutuallyExclusive("to", "by", "percent")
			}
		},
		Destroys: destroys[action],
		Harmless: func(in *call) bool { return dryRun || grows(in) },
		Query: func(*call) url.Values {
			if dryRun {
				return url.Values{"dry_run": {"true"}}
			}
			return nil
		},
		Body: func(in *call) (any, error) {
			values := map[string]any{}
			for flag, i := range inputs {
				switch {
				case !in.given(flag):
				case i.name == strings.ToUpper(i.name):
					values["adjustment_type"], values["number"] = i.name, i.value()
				default:
					values[i.name] = i.value()
				}
			}
			return map[string]any{"action": action, "inputs": values}, nil
		},
		Say: func(_ *call, a api.FleetActionAccepted) string {
			return fmt.Sprintf("accepted: fleet %s action %d is %s, workflow %s", a.FleetId, a.Seq, a.Status, a.WorkflowId)
		},
		Instead: func(in *call) (bool, error) {
			var p api.FleetActionPlan
			if err := json.Unmarshal(in.answer, &p); !dryRun || err != nil {
				return false, err
			}
			in.keep(in.answer)
			if p.Reason != nil { // an impossible plan is an outcome, just as it is for the action itself
				return true, &Exit{Code: ExitOutcome, Err: fmt.Errorf("%s (%s)", deref(p.Message), *p.Reason)}
			}
			if in.forPeople() {
				return true, in.plan(p)
			}
			return true, nil
		},
	}
}

// grows reports whether a resize by a number can't remove anything.
func grows(in *call) bool {
	for _, flag := range []string{"by", "percent"} {
		if in.given(flag) {
			return !in.given("max") && !strings.HasPrefix(in.Flag(flag).Value.String(), "-")
		}
	}
	return false
}

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
func watchAction() Watch[api.FleetAction] {
	return Watch[api.FleetAction]{
		Path: "/v1/fleets/{fleet}/actions/{action}", Again: "prego fleet action {fleet} {action} --watch", Lines: actionLines,
		Doing:   func(a api.FleetAction) string { return fmt.Sprintf("action %d is %s", a.Seq, a.Status) },
		Rests:   func(a api.FleetAction) bool { return server.FleetActionStatus(a.Status).Ended() },
		Outcome: func(_ *call, a api.FleetAction) error { return actionFailure(a) },
		Done:    func(_ *call, a api.FleetAction) string { return fmt.Sprintf("action %d %s", a.Seq, a.Status) },
	}
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
			text += "  replaces one that failed"
		}
		if s.Message != nil {
			text += "  " + oneLine(*s.Message)
		}
		lines = append(lines, line{fmt.Sprint(s.Op, s.ServerId, s.State), s.At, text})
	}
	return lines
}
