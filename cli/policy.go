package cli

import (
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/server"
)

var policyTypes = []string{string(server.PolicyScaling), string(server.PolicyRegionPlacement), string(server.PolicyDeletion)}

// createPolicy builds a policy from flags or JSON.
var createPolicy = hook{
	flags: policyFlags,
	check: func(in *call) error {
		if in.given("spec") && !in.given("type") {
			return usagef("--spec needs --type: %s", oneOrOther(policyTypes))
		}
		_, err := policyKind(in)
		return err
	},
	body: func(in *call, body object) (_ any, err error) {
		if body["type"], err = policyKind(in); err == nil && body["spec"] == nil {
			body["spec"], err = policyOf(in)
		}
		return body, err
	},
}

var updatePolicy = hook{
	flags: policyFlags,
	body: func(in *call, body object) (_ any, err error) {
		if body["spec"] == nil {
			body["spec"], err = policyOf(in)
		}
		return body, err
	},
}

// policyFlags are the flags from which a spec is built.
func policyFlags(_ *cobra.Command, f *pflag.FlagSet) {
	f.StringArray("region", nil, "of a region placement: NAME, NAME=WEIGHT or NAME=WEIGHT:CAP; may be repeated, in order")
	f.String("criteria", "", "of a deletion: OLDEST_FIRST, YOUNGEST_FIRST, OLDEST_PROFILE_FIRST or RANDOM")
	f.Duration("grace-period", 0, "of a deletion: how long tenants have to move off a server")
	f.String("event", "", "of a scaling: CLUSTER_SCALE_OUT or CLUSTER_SCALE_IN")
	f.String("adjustment", "", "of a scaling: CHANGE_IN_CAPACITY, CHANGE_IN_PERCENTAGE or EXACT_CAPACITY")
	f.Int64("number", 1, "of a scaling: servers, or percent")
	f.Int64("min-step", 0, "of a scaling: minimum number of servers that a percentage changes")
	f.Duration("cooldown", 0, "of a scaling: how long it refuses to act again")
	f.Bool("best-effort", false, "of a scaling: stay within the fleet's bounds instead of being refused")
}

// typeOf is the policy type that a flag belongs to.
var typeOf = map[string]string{
	"region": "region_placement", "criteria": "deletion", "grace-period": "deletion",
	"event": "scaling", "adjustment": "scaling", "number": "scaling", "min-step": "scaling", "cooldown": "scaling", "best-effort": "scaling",
}

// policyKind is the type that is given, or that the flags belong to.
func policyKind(in *call) (kind string, err error) {
	if f := in.Flag("type"); f != nil {
		kind = f.Value.String()
	}
	in.Flags().Visit(func(f *pflag.Flag) {
		switch of := typeOf[f.Name]; {
		case of == "":
		case in.given("spec"):
			err = usagef("give either --spec or the flags of a policy")
		case kind != "" && kind != of:
			err = usagef("--%s is not for a policy of type %s", f.Name, kind)
		default:
			kind = of
		}
	})
	return kind, err
}

// policyOf builds the spec from flags.
func policyOf(in *call) (any, error) {
	kind, err := policyKind(in)
	if err != nil {
		return nil, err
	}
	f := in.Flags()
	whole := func(flag string) int64 {
		n, _ := f.GetInt64(flag)
		return n
	}
	span := func(flag string) int64 {
		d, _ := f.GetDuration(flag)
		return int64(d / time.Second)
	}
	switch kind {
	case "region_placement":
		regions := []map[string]any{}
		texts, _ := f.GetStringArray("region")
		for _, text := range texts {
			r, err := weighted(text)
			if err != nil {
				return nil, err
			}
			regions = append(regions, r)
		}
		return object{"regions": regions}, nil
	case "deletion":
		out := object{"grace_period": span("grace-period")}
		if criteria := in.text("criteria"); criteria != "" {
			out["criteria"] = criteria
		}
		return out, nil
	case "scaling":
		adjustment := object{"number": whole("number"), "min_step": whole("min-step"), "best_effort": in.is("best-effort"), "cooldown": span("cooldown")}
		if text := in.text("adjustment"); text != "" {
			adjustment["type"] = text
		}
		return object{"event": in.text("event"), "adjustment": adjustment}, nil
	}
	return nil, usagef("the policy is empty; give --region, --criteria, --event or --spec")
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
