package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

var policyTable = Table[api.Policy]{ID: "policy_id", Columns: "policy_id, type, spec", More: "created_by, created_at, updated_at"}

var policyTypes = []string{string(server.PolicyScaling), string(server.PolicyRegionPlacement), string(server.PolicyDeletion)}

func policyCommand(c *CLI) *cobra.Command {
	var create, update policyFlags
	return c.group("policy", "Manage the policies that decide how fleets grow and shrink",
		Action[api.Policy]{
			Use: "create NAME", Short: "Create a policy, from flags or JSON", Path: "/v1/policies", Table: policyTable,
			Example: `  prego policy create spread --region eu=100 --region us=50:3
  prego policy create oldest --criteria OLDEST_FIRST --grace-period 1h
  prego policy create grow --event CLUSTER_SCALE_OUT --adjustment CHANGE_IN_PERCENTAGE --number 20 --cooldown 5m
  prego policy create spread --type region_placement --spec - < spread.json`,
			Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
				create.add(f)
				pick(f, &create.kind, "type", "", "needed with --spec only", policyTypes)
			},
			Body: func(in *call) (any, error) {
				if create.spec != "" && create.kind == "" {
					return nil, usagef("--spec needs --type: %s", oneOrOther(policyTypes))
				}
				kind, spec, err := create.build(in)
				return api.CreatePolicy{PolicyId: api.PolicyID(in.typed), Type: api.PolicyType(kind), Spec: spec}, err
			},
		},
		Action[api.Policy]{
			Use: "update POLICY", Short: "Replace a policy's spec, for actions that begin later", Method: http.MethodPut, Path: "/v1/policies/{policy}", Table: policyTable,
			Flags: func(_ *cobra.Command, f *pflag.FlagSet) { update.add(f) },
			Body: func(in *call) (any, error) {
				_, spec, err := update.build(in)
				return api.PutPolicy{Spec: spec}, err
			},
		},
		List[api.Policy]{Short: "List policies", Path: "/v1/policies", Items: "policies", Sorts: "created_at, policy_id", Filters: "type", Values: map[string][]string{"type": policyTypes}, Table: policyTable},
		Show[api.Policy]{Use: "show POLICY…", Short: "Show policies", Path: "/v1/policies/{policy}", Table: policyTable},
		Delete("delete POLICY…", "policy", "/v1/policies/{policy}"),
	)
}

// policyFlags are the flags from which a spec is built.
type policyFlags struct {
	kind                              string
	regions                           []string
	criteria, event, adjustment, spec string
	grace, cooldown                   time.Duration
	number, minStep                   int64
	bestEffort                        bool
}

func (p *policyFlags) add(f *pflag.FlagSet) {
	f.StringArrayVar(&p.regions, "region", nil, "of a region placement: NAME, NAME=WEIGHT or NAME=WEIGHT:CAP; may be repeated, in order")
	f.StringVar(&p.criteria, "criteria", "", "of a deletion: OLDEST_FIRST, YOUNGEST_FIRST, OLDEST_PROFILE_FIRST or RANDOM")
	f.DurationVar(&p.grace, "grace-period", 0, "of a deletion: how long tenants have to move off a server")
	f.StringVar(&p.event, "event", "", "of a scaling: CLUSTER_SCALE_OUT or CLUSTER_SCALE_IN")
	f.StringVar(&p.adjustment, "adjustment", "", "of a scaling: CHANGE_IN_CAPACITY, CHANGE_IN_PERCENTAGE or EXACT_CAPACITY")
	f.Int64Var(&p.number, "number", 1, "of a scaling: servers, or percent")
	f.Int64Var(&p.minStep, "min-step", 0, "of a scaling: minimum number of servers that a percentage changes")
	f.DurationVar(&p.cooldown, "cooldown", 0, "of a scaling: how long it refuses to act again")
	f.BoolVar(&p.bestEffort, "best-effort", false, "of a scaling: stay within the fleet's bounds instead of being refused")
	f.StringVar(&p.spec, "spec", "", "the spec as JSON in a file; - for standard input")
}

// typeOf is the policy type that a flag belongs to.
var typeOf = map[string]string{
	"region": "region_placement", "criteria": "deletion", "grace-period": "deletion",
	"event": "scaling", "adjustment": "scaling", "number": "scaling", "min-step": "scaling", "cooldown": "scaling", "best-effort": "scaling",
}

// build builds the spec, and returns its type.
func (p *policyFlags) build(in *call) (kind string, spec json.RawMessage, err error) {
	kind = p.kind
	in.Flags().Visit(func(f *pflag.Flag) {
		switch of := typeOf[f.Name]; {
		case of == "":
		case p.spec != "":
			err = usagef("give either --spec or the flags of a policy")
		case kind != "" && kind != of:
			err = usagef("--%s is not for a policy of type %s", f.Name, kind)
		default:
			kind = of
		}
	})
	if err != nil {
		return "", nil, err
	}
	if p.spec != "" {
		b, err := read(in.InOrStdin(), p.spec)
		if err == nil && !json.Valid(b) {
			err = usagef("%s is not a JSON document", p.spec)
		}
		return kind, b, err
	}
	out := map[string]any{}
	switch kind {
	case "region_placement":
		regions := []map[string]any{}
		for _, text := range p.regions {
			r, err := weighted(text)
			if err != nil {
				return "", nil, err
			}
			regions = append(regions, r)
		}
		out["regions"] = regions
	case "deletion":
		if p.criteria != "" {
			out["criteria"] = p.criteria
		}
		out["grace_period"] = int64(p.grace / time.Second)
	case "scaling":
		adjustment := map[string]any{"number": p.number, "min_step": p.minStep, "best_effort": p.bestEffort, "cooldown": int64(p.cooldown / time.Second)}
		if p.adjustment != "" {
			adjustment["type"] = p.adjustment
		}
		out["event"], out["adjustment"] = p.event, adjustment
	default:
		return "", nil, usagef("the policy is empty; give --region, --criteria, --event or --spec")
	}
	spec, err = json.Marshal(out)
	return kind, spec, err
}

// weighted parses NAME, NAME=WEIGHT or NAME=WEIGHT:CAP.
func weighted(text string) (map[string]any, error) {
	name, rest, _ := strings.Cut(text, "=")
	out := map[string]any{"name": name}
	weight, limit, capped := strings.Cut(rest, ":")
	for field, part := range map[string]string{"weight": weight, "cap": limit} {
		if part == "" && (field == "cap" && !capped || rest == "" && !strings.Contains(text, "=")) {
			continue
		}
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			return nil, usagef("--region %q: the %s %q is not a whole number", text, field, part)
		}
		out[field] = n
	}
	return out, nil
}

// maxDocument limits the size of a document, in bytes.
const maxDocument = 16 << 20

// read reads a file, or standard input for "-".
func read(stdin io.Reader, name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(io.LimitReader(stdin, maxDocument))
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, usagef("%w", err)
	}
	return b, nil
}
