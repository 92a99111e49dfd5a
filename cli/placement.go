package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

func placementCommand(c *CLI) *cobra.Command {
	var in tenant.PlacementOverride
	return c.group("placement", "Try placements, and force them",
		Action[api.SimulationResult]{
			Use: "simulate FILE", Short: "Decide on requests without writing anything, one JSON line each; - is standard input", Path: "/v1/placements/simulate",
			Long: "Decide on requests without writing anything, one JSON line each.\n\nFILE holds {\"requests\": […]} and, to decide over another fleet than the live one, \"fleet\".\nA dash is standard input.",
			Body: func(in *call) (any, error) {
				b, err := read(in.InOrStdin(), in.typed)
				if b = bytes.TrimSpace(b); err == nil && !json.Valid(b) {
					err = usagef("%s is not one valid JSON document", in.typed)
				}
				return json.RawMessage(b), err
			},
			Say: func(_ *call, r api.SimulationResult) string {
				var out bytes.Buffer
				enc := json.NewEncoder(&out)
				enc.SetEscapeHTML(false)
				for _, line := range r.Results {
					_ = enc.Encode(line) // it came as JSON
				}
				return string(bytes.TrimSpace(out.Bytes()))
			},
		},
		whatIfVerb(),
		Action[placement.Line]{
			Use: "override TENANT", Short: "Force a tenant's placement; capacity is ignored, invariants hold", Path: "/internal/placement-overrides",
			Example: "  prego placement override acme-eu --app-server app-sgp-007 --reason \"colocate with parent tenant\"",
			Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
				f.StringVar((*string)(&in.ForceAppServerID), "app-server", "", "the app server or node")
				f.StringVar((*string)(&in.ForceDBShardID), "db-shard", "", "the DB shard")
				f.BoolVar(&in.IgnoreConstraint, "ignore-constraint", false, "even if the server violates the tenant's constraint")
				f.StringVar(&in.Reason, "reason", "", "reason for the audit")
				required(cmd, "reason")
			},
			Body: func(v *call) (any, error) {
				in.TenantID = prego.TenantID(v.args["tenant"])
				return in, nil
			},
			Say: func(v *call, l placement.Line) string {
				return fmt.Sprintf("%s: %s, shard %s, pool %s, site %s", l.Outcome, l.AppServerID, l.DBShardID, l.RedisPoolID, l.PoolSiteID)
			},
			After: func(v *call, l placement.Line) { v.pairs(v.w, explained(l.Decision)...) },
		},
	)
}

var placementPoolTable = Table[api.PlacementPool]{
	ID: "name", Columns: "name: pool, require, disallow, is_default: default, org_count: orgs, updated_by: by, updated_at: changed", Spare: "by, changed, orgs, default", More: "org_ids: org ids, created_at",
}

// tagFlags are the flags for a constraint's two lists.
func tagFlags(f *pflag.FlagSet, require, disallow *[]string) {
	f.StringSliceVar(require, "require", nil, "tag that a server must have; may be repeated")
	f.StringSliceVar(disallow, "disallow", nil, "tag that a server must not have; may be repeated")
}

// optionalList is a given list, nil if it is empty.
func optionalList(list []string) *[]string {
	if len(list) == 0 {
		return nil
	}
	return &list
}

func placementPoolCommand(c *CLI) *cobra.Command {
	var require, disallow []string
	unset := false
	tags := func(_ *cobra.Command, f *pflag.FlagSet) { tagFlags(f, &require, &disallow) }
	one, list := "/v1/placement-pools/{placement-pool}", "/v1/orgs/{org}/placement-pools"
	of := func(use, short, method string) Action[api.OrgPlacementPools] {
		return Action[api.OrgPlacementPools]{
			Use: use, Short: short, Method: method, Path: list + "/{placement-pool}",
			Say: func(in *call, _ api.OrgPlacementPools) string {
				return "these apply to org " + in.args["org"] + " now:"
			},
			After: func(in *call, o api.OrgPlacementPools) { _ = rows(in.printer, placementPoolTable, o.PlacementPools) }, // its columns are all there
		}
	}
	return c.group("placement-pool", "Manage named constraints for the tenants of orgs",
		Action[api.PlacementPool]{
			Use: "create NAME", Short: "Create a placement pool", Path: "/v1/placement-pools", Table: placementPoolTable, Flags: tags, Example: "  prego placement-pool create gpu --require gpu",
			Body: func(in *call) (any, error) {
				return api.CreatePlacementPool{Name: in.typed, Require: optionalList(require), Disallow: optionalList(disallow)}, nil
			},
		},
		Action[api.PlacementPool]{
			Use: "update PLACEMENT-POOL", Short: "Replace both lists of a placement pool; placed tenants stay", Method: http.MethodPut, Path: one, Table: placementPoolTable, Flags: tags,
			Body: func(*call) (any, error) {
				return api.PutPlacementPool{Require: optionalList(require), Disallow: optionalList(disallow)}, nil
			},
		},
		List[api.PlacementPool]{Short: "List placement pools, newest first", Path: "/v1/placement-pools", Items: "placement_pools", Sorts: "created_at, name", Table: placementPoolTable},
		Show[api.PlacementPool]{Use: "show PLACEMENT-POOL…", Short: "Show placement pools and the orgs that use them", Path: one, Table: placementPoolTable},
		Delete("delete PLACEMENT-POOL…", "placement pool", one),
		Action[api.PlacementPool]{
			Use: "default PLACEMENT-POOL", Short: "Make a placement pool the default of orgs that are associated with none", Path: one + "/default", Table: placementPoolTable,
			Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
				f.BoolVar(&unset, "unset", false, "unset it as the default")
			},
			Method: http.MethodPut, MethodOf: func() string { return map[bool]string{true: http.MethodDelete, false: http.MethodPut}[unset] },
		},
		of("associate ORG PLACEMENT-POOL", "Associate an org with a placement pool, from its tenants' next placement on", http.MethodPut),
		of("dissociate ORG PLACEMENT-POOL", "End an org's association with a placement pool", http.MethodDelete),
		List[api.PlacementPool]{Use: "of ORG", Short: "List the placement pools that apply to an org's tenants", Path: list, Items: "placement_pools", Whole: true, Table: placementPoolTable},
	)
}
