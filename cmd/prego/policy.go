package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

func newPolicyCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "What fleets ask before they grow or shrink: how many, where, and which ones"}
	output := outputFlag(cmd)
	cmd.AddCommand(policyList(output), policyShow(output), policyCreate(output), policyUpdate(output), policyDelete())
	return cmd
}

func policyPath(id string) string { return "/v1/policies/" + url.PathEscape(id) }

func policyList(output *string) *cobra.Command {
	var kind string
	var limit int
	cmd := lister("list", "List policies", output, func(ctx context.Context, c *apiClient, out *[]api.Policy) (err error) {
		*out, err = walk(ctx, c, "/v1/policies", filters(map[string]string{"type": kind}), limit,
			func(p api.PolicyPage) ([]api.Policy, *string) { return p.Policies, p.NextCursor })
		return err
	}, func(w io.Writer, v []api.Policy) {
		fmt.Fprintln(w, "POLICY\tTYPE\tSPEC")
		for _, p := range v {
			fmt.Fprintf(w, "%s\t%s\t%s\n", p.PolicyId, p.Type, compact(p.Spec))
		}
	})
	cmd.Flags().StringVar(&kind, "type", "", "only this type: scaling, region_placement or deletion")
	cmd.Flags().IntVar(&limit, "limit", 1000, "at most so many")
	return cmd
}

func policyShow(output *string) *cobra.Command {
	return &cobra.Command{
		Use: "show POLICY_ID", Short: "Show a policy", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onePolicy(cmd, *output, http.MethodGet, policyPath(args[0]), nil)
		},
	}
}

func onePolicy(cmd *cobra.Command, output, method, path string, in any) error {
	return answered(cmd, output, method, path, in, printPolicy)
}

func printPolicy(out io.Writer, p api.Policy) error {
	w := tabwriter.NewWriter(out, 2, 4, 2, ' ', 0)
	for _, row := range [][2]string{
		{"policy", p.PolicyId},
		{"type", string(p.Type)},
		{"spec", compact(p.Spec)},
		{"created", p.CreatedAt.Format(time.RFC3339) + " by " + p.CreatedBy},
		{"updated", p.UpdatedAt.Format(time.RFC3339)},
	} {
		fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
	}
	return w.Flush()
}

// policyFlags are the flags that a spec is put together from.
type policyFlags struct {
	regions                 []string
	criteria                string
	grace, cooldown         time.Duration
	event, adjustment, spec string
	number, minStep         int64
	bestEffort              bool
}

func (p *policyFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&p.regions, "region", nil, "of a region placement: NAME, NAME=WEIGHT or NAME=WEIGHT:CAP; may be repeated, in order")
	f.StringVar(&p.criteria, "criteria", "", "of a deletion: OLDEST_FIRST, YOUNGEST_FIRST, OLDEST_PROFILE_FIRST or RANDOM")
	f.DurationVar(&p.grace, "grace-period", 0, "of a deletion: how long a server that has tenants is given to lose them")
	f.StringVar(&p.event, "event", "", "of a scaling: CLUSTER_SCALE_OUT or CLUSTER_SCALE_IN")
	f.StringVar(&p.adjustment, "adjustment", "", "of a scaling: CHANGE_IN_CAPACITY, CHANGE_IN_PERCENTAGE or EXACT_CAPACITY")
	f.Int64Var(&p.number, "number", 1, "of a scaling: servers, or percent")
	f.Int64Var(&p.minStep, "min-step", 0, "of a scaling: the least servers that a percentage changes")
	f.DurationVar(&p.cooldown, "cooldown", 0, "of a scaling: how long after it had a say it refuses")
	f.BoolVar(&p.bestEffort, "best-effort", false, "of a scaling: within the fleet's bounds, instead of being refused")
	f.StringVar(&p.spec, "spec", "", "the spec as JSON, in a FILE or - for standard input")
}

// flagsOf are the flags of each type of policy.
var flagsOf = map[server.PolicyType][]string{
	server.PolicyRegionPlacement: {"region"},
	server.PolicyDeletion:        {"criteria", "grace-period"},
	server.PolicyScaling:         {"event", "adjustment", "number", "min-step", "cooldown", "best-effort"},
}

// kind is the type whose flags were given, "" for none.
func (p *policyFlags) kind(given func(string) bool) (server.PolicyType, error) {
	var kind server.PolicyType
	for _, k := range []server.PolicyType{server.PolicyRegionPlacement, server.PolicyDeletion, server.PolicyScaling} {
		for _, name := range flagsOf[k] {
			if !given(name) {
				continue
			}
			if kind != "" && kind != k {
				return "", fmt.Errorf("--%s is not of a policy of type %s", name, kind)
			}
			kind = k
		}
	}
	return kind, nil
}

// build puts the spec together, and tells its type ("" when it comes as JSON).
func (p *policyFlags) build(cmd *cobra.Command) (server.PolicyType, json.RawMessage, error) {
	kind, err := p.kind(cmd.Flags().Changed)
	switch {
	case err != nil:
		return "", nil, err
	case p.spec != "" && kind != "":
		return "", nil, errors.New("give either --spec or the flags of a policy")
	case p.spec != "":
		raw, err := readSpec(cmd.InOrStdin(), p.spec)
		return "", raw, err
	case kind == "":
		return "", nil, errors.New("what does it say? Give --region, --criteria, --event or --spec")
	}
	spec := map[string]any{}
	switch kind {
	case server.PolicyRegionPlacement:
		regions := []map[string]any{}
		for _, text := range p.regions {
			r, err := parseWeighted(text)
			if err != nil {
				return "", nil, err
			}
			regions = append(regions, r)
		}
		spec["regions"] = regions
	case server.PolicyDeletion:
		if p.criteria != "" {
			spec["criteria"] = p.criteria
		}
		spec["grace_period"] = int64(p.grace / time.Second)
	case server.PolicyScaling:
		adjustment := map[string]any{"number": p.number, "min_step": p.minStep, "best_effort": p.bestEffort, "cooldown": int64(p.cooldown / time.Second)}
		if p.adjustment != "" {
			adjustment["type"] = p.adjustment
		}
		spec["event"], spec["adjustment"] = p.event, adjustment
	}
	raw, err := json.Marshal(spec)
	return kind, raw, err
}

func readSpec(stdin io.Reader, from string) (json.RawMessage, error) {
	var b []byte
	var err error
	if from == "-" {
		b, err = io.ReadAll(io.LimitReader(stdin, 1<<20))
	} else {
		b, err = os.ReadFile(from)
	}
	if err != nil {
		return nil, err
	}
	if !json.Valid(b) {
		return nil, errors.New("--spec is not a JSON document")
	}
	return b, nil
}

// parseWeighted reads NAME, NAME=WEIGHT or NAME=WEIGHT:CAP.
func parseWeighted(text string) (map[string]any, error) {
	name, rest, hasWeight := strings.Cut(text, "=")
	out := map[string]any{"name": name}
	if !hasWeight {
		return out, nil
	}
	weight, limit, hasCap := strings.Cut(rest, ":")
	for _, part := range []struct {
		field, text string
		given       bool
	}{{"weight", weight, true}, {"cap", limit, hasCap}} {
		if !part.given {
			continue
		}
		n, err := strconv.ParseInt(part.text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("--region %q: the %s %q is not a whole number", text, part.field, part.text)
		}
		out[part.field] = n
	}
	return out, nil
}

func policyCreate(output *string) *cobra.Command {
	var flags policyFlags
	var kind string
	cmd := &cobra.Command{
		Use: "create POLICY_ID", Short: "Make a policy, from flags or JSON", Args: cobra.ExactArgs(1),
		Example: `  prego policy create spread --region eu=100 --region us=50:3
  prego policy create oldest --criteria OLDEST_FIRST --grace-period 1h
  prego policy create grow --event CLUSTER_SCALE_OUT --adjustment CHANGE_IN_PERCENTAGE --number 20 --cooldown 5m
  prego policy create spread --type region_placement --spec - < spread.json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			built, spec, err := flags.build(cmd)
			if err == nil && built == "" && kind == "" {
				err = errors.New("--spec needs --type: scaling, region_placement or deletion")
			}
			if err == nil && built != "" && kind != "" && kind != string(built) {
				err = fmt.Errorf("these are flags of type %s, not %s", built, kind)
			}
			if err != nil {
				return &exitError{code: 2, err: err}
			}
			if built != "" {
				kind = string(built)
			}
			return onePolicy(cmd, *output, http.MethodPost, "/v1/policies", api.CreatePolicy{PolicyId: args[0], Type: api.PolicyType(kind), Spec: spec})
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&kind, "type", "", "scaling, region_placement or deletion; the flags tell it by themselves")
	return cmd
}

func policyUpdate(output *string) *cobra.Command {
	var flags policyFlags
	cmd := &cobra.Command{
		Use: "update POLICY_ID", Short: "Replace what a policy says, for actions that begin later", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, spec, err := flags.build(cmd)
			if err != nil {
				return &exitError{code: 2, err: err}
			}
			return onePolicy(cmd, *output, http.MethodPut, policyPath(args[0]), api.PutPolicy{Spec: spec})
		},
	}
	flags.add(cmd)
	return cmd
}

func policyDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete POLICY_ID", Short: "Delete a policy that no fleet has", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			if err := c.do(cmd.Context(), http.MethodDelete, policyPath(args[0]), nil, nil, nil); err != nil {
				return err
			}
			fmt.Fprintln(cmd.ErrOrStderr(), "deleted: policy", args[0])
			return nil
		},
	}
}
