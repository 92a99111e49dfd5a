package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/placement/scale"
	"github.com/prego/prego/server"
)

// fleetVerbs are those that queue an action.
func fleetVerbs(output *string) []*cobra.Command {
	return []*cobra.Command{
		fleetVerb(output, server.ClusterScaleOut, "scale-out FLEET_ID", "Add servers", func(cmd *cobra.Command) func(in inputs) {
			f := cmd.Flags()
			count := f.Int64("count", 0, "how many; left out it is the scaling policy's to say, or 1")
			regions := f.StringSlice("region", nil, "only in this region; may be repeated")
			return func(in inputs) { in.set("count", count); in.set("region", regions, "regions") }
		}),
		fleetVerb(output, server.ClusterScaleIn, "scale-in FLEET_ID", "Take servers down", func(cmd *cobra.Command) func(in inputs) {
			f := cmd.Flags()
			count := f.Int64("count", 0, "how many; left out it is the scaling policy's to say, or 1")
			return func(in inputs) { in.set("count", count) }
		}),
		fleetVerb(output, server.ClusterResize, "resize FLEET_ID", "Bring a fleet to a size: --to, --by or --percent, or within --min and --max", func(cmd *cobra.Command) func(in inputs) {
			f := cmd.Flags()
			to := f.Int64("to", 0, "so many servers")
			by := f.Int64("by", 0, "so many more, or fewer when negative")
			percent := f.Int64("percent", 0, "so many percent more, or fewer when negative")
			step := f.Int64("min-step", 0, "the least servers that --percent changes")
			least := f.Int64("min", 0, "least servers, instead of the fleet's")
			most := f.Int64("max", 0, "most servers, instead of the fleet's; -1 for none")
			best := f.Bool("best-effort", false, "within the bounds, instead of being refused")
			return func(in inputs) {
				for name, kind := range map[string]string{"to": "EXACT_CAPACITY", "by": "CHANGE_IN_CAPACITY", "percent": "CHANGE_IN_PERCENTAGE"} {
					if in.given(name) {
						in.values["adjustment_type"] = kind
						in.values["number"] = *map[string]*int64{"to": to, "by": by, "percent": percent}[name]
					}
				}
				in.set("min-step", step, "min_step")
				in.set("min", least, "min_size")
				in.set("max", most, "max_size")
				if *best {
					in.values["strict"] = false
				}
			}
		}),
		fleetVerb(output, server.ClusterReplace, "replace FLEET_ID", "Make the servers of earlier specs anew", func(cmd *cobra.Command) func(in inputs) {
			f := cmd.Flags()
			surge := f.Int64("max-surge", 1, "how many more servers than its size the fleet may have meanwhile")
			grace := f.Duration("grace-period", 0, "how long a server that has tenants is given to lose them")
			return func(in inputs) {
				in.set("max-surge", surge, "max_surge")
				if in.given("grace-period") {
					in.values["grace_period"] = int64(*grace / time.Second)
				}
			}
		}),
		fleetVerb(output, server.NodeCreate, "node-create FLEET_ID", "Add one server", func(cmd *cobra.Command) func(in inputs) {
			f := cmd.Flags()
			region := f.String("region", "", "where, whatever the policy says")
			return func(in inputs) { in.set("region", region) }
		}),
	}
}

// inputs are an action's, of the flags that were given.
type inputs struct {
	given  func(flag string) bool
	values map[string]any
}

func (in inputs) set(flag string, v any, name ...string) {
	if !in.given(flag) {
		return
	}
	if len(name) == 0 {
		name = []string{flag}
	}
	in.values[name[0]] = v
}

func fleetVerb(output *string, action server.FleetActionKind, use, short string, flags func(*cobra.Command) func(inputs)) *cobra.Command {
	var dryRun, watch bool
	var key string
	var fill func(inputs)
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := inputs{given: cmd.Flags().Changed, values: map[string]any{}}
			fill(in)
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			body := map[string]any{"action": action, "inputs": in.values}
			if dryRun {
				return dryRunAction(cmd, c, args[0], body, *output)
			}
			header := http.Header{}
			if key != "" {
				header.Set("Idempotency-Key", key)
			}
			var a api.FleetActionAccepted
			if err := c.send(cmd.Context(), http.MethodPost, fleetPath(args[0], "actions"), nil, header, body, &a); err != nil {
				return err
			}
			return followAction(cmd, c, a, *output, watch)
		},
	}
	fill = flags(cmd)
	f := cmd.Flags()
	f.BoolVar(&dryRun, "dry-run", false, "show what would be done now, and do nothing")
	f.BoolVar(&watch, "watch", false, "show each step until the action ended")
	f.StringVar(&key, "idempotency-key", "", "makes sending the same request again harmless")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "watch")
	if action == server.ClusterResize {
		cmd.MarkFlagsMutuallyExclusive("to", "by", "percent")
	}
	return cmd
}

// dryRunAction shows a plan. One that can't be done is an outcome, as it is of the
// action itself.
func dryRunAction(cmd *cobra.Command, c *apiClient, fleet string, body any, output string) error {
	var p api.FleetActionPlan
	if err := c.do(cmd.Context(), http.MethodPost, fleetPath(fleet, "actions"), url.Values{"dry_run": {"true"}}, body, &p); err != nil {
		return err
	}
	if output == "json" {
		if err := printJSON(cmd.OutOrStdout(), p); err != nil {
			return err
		}
	} else if p.Reason == nil {
		if err := printPlan(cmd.OutOrStdout(), p); err != nil {
			return err
		}
	}
	if p.Reason != nil {
		return &exitError{code: exitOutcome, err: fmt.Errorf("%s (%s)", deref(p.Message), *p.Reason)}
	}
	return nil
}

// printPlan shows counts per region, and the servers that go.
func printPlan(out io.Writer, p api.FleetActionPlan) error {
	var data scale.NodeData
	if err := json.Unmarshal(p.Data, &data); err != nil {
		return fmt.Errorf("the plan's data: %w", err)
	}
	w := tabwriter.NewWriter(out, 2, 4, 2, ' ', 0)
	counts := func(op api.FleetPlannedStepOp) (n int64, regions map[string]int64, ids []string) {
		regions = map[string]int64{}
		for _, s := range p.Steps {
			if s.Op == op {
				n++
				regions[string(s.Region)]++
				if s.ServerId != nil {
					ids = append(ids, *s.ServerId)
				}
			}
		}
		return n, regions, ids
	}
	made, in, _ := counts(api.FleetPlannedStepOp(server.StepOpCreate))
	gone, from, ids := counts(api.FleetPlannedStepOp(server.StepOpDelete))
	if made == 0 && gone == 0 {
		fmt.Fprintln(w, "nothing to do")
	}
	if made > 0 {
		fmt.Fprintf(w, "make\t%d\t%s\n", made, perRegion(in))
	}
	if gone > 0 {
		fmt.Fprintf(w, "take down\t%d\t%s\n", gone, perRegion(from))
		fmt.Fprintf(w, "servers\t\t%s\n", strings.Join(ids, " "))
	}
	if d := data.Deletion; d != nil && d.GracePeriod != nil {
		fmt.Fprintf(w, "grace period\t\t%s for servers that have tenants\n", time.Duration(*d.GracePeriod)*time.Second)
	}
	if r := data.Replacement; r != nil && r.Count > 0 {
		fmt.Fprintf(w, "at once\t%d\tnew servers before their old ones go\n", r.Surge)
	}
	fmt.Fprintf(w, "desired\t%d\tservers from then on\n", p.DesiredCapacity)
	return w.Flush()
}

func (c *apiClient) fleetAction(ctx context.Context, fleet string, seq int) (api.FleetAction, error) {
	var a api.FleetAction
	err := c.do(ctx, http.MethodGet, fleetPath(fleet, "actions", strconv.Itoa(seq)), nil, nil, &a)
	return a, err
}

// followAction prints an acceptance and, when asked to, the action's steps until it
// ended.
func followAction(cmd *cobra.Command, c *apiClient, a api.FleetActionAccepted, output string, watch bool) error {
	w := cmd.OutOrStdout()
	if !watch {
		if output == "json" {
			return printJSON(w, a)
		}
		fmt.Fprintf(w, "accepted: fleet %s action %d is %s, workflow %s\n", a.FleetId, a.Seq, a.Status, a.WorkflowId)
		return nil
	}
	progress := w
	if output == "json" {
		progress = cmd.ErrOrStderr()
	} else {
		fmt.Fprintf(w, "accepted: fleet %s action %d\n", a.FleetId, a.Seq)
	}
	act, err := c.watchAction(cmd.Context(), progress, a.FleetId, a.Seq, watchPatience)
	if err != nil {
		return err
	}
	if output == "json" {
		if err := printJSON(w, act); err != nil {
			return err
		}
	}
	if server.FleetActionStatus(act.Status) != server.ActionSucceeded {
		return &exitError{code: exitOutcome, err: fmt.Errorf("fleet %s action %d is %s%s", act.FleetId, act.Seq, act.Status, whyAction(act))}
	}
	if output != "json" {
		fmt.Fprintf(w, "fleet %s action %d is %s\n", act.FleetId, act.Seq, act.Status)
	}
	return nil
}

func whyAction(a api.FleetAction) string {
	out := ""
	if a.Message != nil {
		out = ": " + oneLine(*a.Message)
	}
	if a.Reason != nil {
		out += " (" + *a.Reason + ")"
	}
	return out
}

// watchAction prints an action's plan and steps as they happen, until it ended. It
// goes on through an outage of the API of up to patience.
func (c *apiClient) watchAction(ctx context.Context, w io.Writer, fleet string, seq int, patience time.Duration) (api.FleetAction, error) {
	seen := actionSeen{w: w, steps: map[string]server.FleetStepState{}}
	return watchUntil(ctx, w, patience, func() (api.FleetAction, error) { return c.fleetAction(ctx, fleet, seq) }, func(a api.FleetAction) bool {
		seen.print(a)
		return server.FleetActionStatus(a.Status).Ended()
	})
}

// actionSeen is what of an action is printed already.
type actionSeen struct {
	w      io.Writer
	status server.FleetActionStatus
	data   string
	steps  map[string]server.FleetStepState
}

func (s *actionSeen) line(a api.FleetAction, at *time.Time, text string) {
	since := 0.0
	if at != nil {
		since = at.Sub(a.CreatedAt).Seconds()
	}
	fmt.Fprintf(s.w, "%8.2fs  %s\n", since, text)
}

func (s *actionSeen) print(a api.FleetAction) {
	if s.status == "" {
		s.line(a, &a.CreatedAt, fmt.Sprintf("queued  %s %s  [%s]", a.Action, compact(a.Inputs), a.RequestedBy))
	}
	status := server.FleetActionStatus(a.Status)
	if data := compact(a.Data); data != s.data && a.StartedAt != nil {
		word := "planned"
		if s.data != "" {
			word = "planned anew"
		}
		s.line(a, latest(a), word+"  "+data)
		s.data = data
	}
	if a.Steps != nil {
		for _, st := range *a.Steps {
			s.step(a, st)
		}
	}
	if s.status != status && status.Ended() {
		s.line(a, a.FinishedAt, string(status)+whyAction(a))
	}
	s.status = status
}

// latest is when the last of its steps changed, or else when it began.
func latest(a api.FleetAction) *time.Time {
	at := a.StartedAt
	if a.Steps != nil {
		for i, st := range *a.Steps {
			if at == nil || st.At.After(*at) {
				at = &(*a.Steps)[i].At
			}
		}
	}
	return at
}

func (s *actionSeen) step(a api.FleetAction, st api.FleetActionStep) {
	key, state := string(st.Op)+" "+st.ServerId, server.FleetStepState(st.State)
	before, known := s.steps[key]
	if known && before == state {
		return
	}
	s.steps[key] = state
	text := fmt.Sprintf("%-6s %-22s %s  %s", st.Op, st.ServerId, st.Region, st.State)
	if st.Replan {
		text += "  in place of one that failed"
	}
	if st.Message != nil {
		text += "  " + oneLine(*st.Message)
	}
	s.line(a, &st.At, text)
}

func compact(raw json.RawMessage) string {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return string(raw)
	}
	return string(b)
}

func fleetActions(output *string) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "actions FLEET_ID", Short: "List a fleet's actions, newest first", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			all, err := walk(cmd.Context(), c, fleetPath(args[0], "actions"), url.Values{}, limit,
				func(p api.FleetActionPage) ([]api.FleetAction, *string) { return p.Actions, p.NextCursor })
			if err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), all)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 2, 4, 2, ' ', 0)
			fmt.Fprintln(w, "SEQ\tACTION\tSTATUS\tAT\tBY\tCAUSE\tREASON\tDATA")
			for _, a := range all {
				fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", a.Seq, a.Action, a.Status, a.CreatedAt.Format(time.RFC3339), a.RequestedBy, a.Cause,
					cmp.Or(deref(a.Reason), "-"), compact(a.Data))
			}
			return w.Flush()
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "at most so many")
	return cmd
}

func seqOf(arg string) (int, error) {
	seq, err := strconv.Atoi(arg)
	if err != nil || seq < 1 {
		return 0, &exitError{code: 2, err: fmt.Errorf("%q is not the number of an action", arg)}
	}
	return seq, nil
}

func fleetAction(output *string) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use: "action FLEET_ID SEQ", Short: "Show an action, its plan and each server of it", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			seq, err := seqOf(args[1])
			if err != nil {
				return err
			}
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			if watch {
				return followAction(cmd, c, api.FleetActionAccepted{FleetId: args[0], Seq: seq}, *output, true)
			}
			a, err := c.fleetAction(cmd.Context(), args[0], seq)
			if err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), a)
			}
			return printAction(cmd.OutOrStdout(), a)
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "go on until the action ended, with its outcome as exit status")
	return cmd
}

func printAction(out io.Writer, a api.FleetAction) error {
	w := tabwriter.NewWriter(out, 2, 4, 2, ' ', 0)
	for _, row := range [][2]string{
		{"action", fmt.Sprintf("%s of fleet %s, %d", a.Action, a.FleetId, a.Seq)},
		{"status", string(a.Status) + whyAction(a)},
		{"inputs", compact(a.Inputs)},
		{"data", compact(a.Data)},
		{"asked", a.CreatedAt.Format(time.RFC3339) + " by " + a.RequestedBy + " for " + a.Cause},
		{"run", deref(a.RunUrl)},
	} {
		fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
	}
	if a.Steps != nil && len(*a.Steps) > 0 {
		fmt.Fprintln(w, "\nROUND\tOP\tSERVER\tREGION\tSTATE\tAT\tMESSAGE")
		for _, s := range *a.Steps {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Round, s.Op, s.ServerId, s.Region, s.State, s.At.Format(time.RFC3339), oneLine(deref(s.Message)))
		}
	}
	return w.Flush()
}

func fleetCancel(output *string) *cobra.Command {
	return &cobra.Command{
		Use: "cancel FLEET_ID SEQ", Short: "Cancel an action; of one that runs what was not begun is left out", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			seq, err := seqOf(args[1])
			if err != nil {
				return err
			}
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var a api.FleetAction
			if err := c.do(cmd.Context(), http.MethodPost, fleetPath(args[0], "actions", strconv.Itoa(seq), "cancel"), nil, nil, &a); err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), a)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "fleet %s action %d is %s\n", a.FleetId, a.Seq, a.Status)
			return nil
		},
	}
}
