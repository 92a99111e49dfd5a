package cli

import (
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

var fleetTable = Table[api.Fleet]{
	ID: "fleet_id", Columns: "fleet_id, role, size, desired_capacity: desired, min_size: min, max, regions, profile, serves_tenants: serves", Spare: "serves, profile, min, max, regions, role",
	More: "region: home, spec.tags, offers: each offers, serves_workloads: serves workloads, patched: patched by itself, run_url: run, created_by, created_at",
	Computed: map[string]func(api.Fleet) any{
		"max": func(f api.Fleet) any { return noneBelow0(f.MaxSize) },
		"patched": func(f api.Fleet) any {
			w := f.PatchWindow
			switch {
			case w == nil:
				return nil // in the environment's window
			case w.Schedule == server.PatchNever:
				return w.Schedule
			}
			return fmt.Sprintf("%s, for %s", w.Schedule, time.Duration(w.Seconds)*time.Second)
		},
		"offers": func(f api.Fleet) any {
			if f.WorkloadMemoryBytes == 0 {
				return "nothing to workloads"
			}
			disk := ""
			if f.WorkloadDiskBytes > 0 {
				disk = ", " + bytesText(f.WorkloadDiskBytes) + " of disk"
			}
			return fmt.Sprintf("%s of memory%s and %g CPUs to workloads", bytesText(f.WorkloadMemoryBytes), disk, f.WorkloadCpus)
		},
	},
}

func fleetCommand(c *CLI) *cobra.Command {
	cmd := c.group("fleet", "Manage fleets: sets of servers of one role that grow and shrink by policies",
		fleetCreate(), fleetUpdate(),
		List[api.Fleet]{Short: "List fleets", Path: "/v1/fleets", Items: "fleets", Filters: "role, region", Sorts: "created_at, fleet_id", Table: fleetTable},
		Show[api.Fleet]{Use: "show FLEET…", Short: "Show fleets, their policies and how they are spread", Path: "/v1/fleets/{fleet}", Table: fleetTable, After: fleetPolicies},
		fleetMapVerb(),
		Delete("delete FLEET…", "fleet", "/v1/fleets/{fleet}"),
		fleetAttach(),
		Action[struct{}]{
			Use: "detach FLEET POLICY", Short: "Detach a policy from a fleet", Method: http.MethodDelete, Path: "/v1/fleets/{fleet}/policies/{policy}",
			Say: func(in *call, _ struct{}) string {
				return fmt.Sprintf("detached policy %s from fleet %s", in.args["policy"], in.args["fleet"])
			},
		})
	for _, v := range fleetActions() {
		cmd.AddCommand(v.command(c))
	}
	return cmd
}

func fleetPolicies(in *call, f api.Fleet) {
	if len(deref(f.Policies)) == 0 {
		return
	}
	fmt.Fprintln(in.w)
	_ = rows(in.printer, Table[api.AttachedPolicy]{Columns: "position, policy_id, type, enabled, last_used_at, spec"}, *f.Policies) // its columns are all there
}

// offerFlags are the flags of what a fleet's servers offer to workloads.
func offerFlags(f *pflag.FlagSet, bytes, disk *int64, cpus *float64) {
	f.Var(sizeFlag{bytes, memory, bytesText}, "workload-memory", "memory that each server offers to workloads, "+sizeHelp+"; 0 for none")
	f.Var(sizeFlag{disk, memory, bytesText}, "workload-disk", "disk that each server offers to workloads, "+sizeHelp+"; 0 for none")
	f.Float64Var(cpus, "workload-cpus", 0, "CPUs that each server offers to workloads")
}

// windowFlags are the flags of when a fleet's servers are patched by themselves.
func windowFlags(f *pflag.FlagSet, schedule *string, open *time.Duration) {
	f.StringVar(schedule, "patch-window", "", "when its servers get security updates by themselves: a cron expression of five fields in UTC, or never (default: the environment's window)")
	f.DurationVar(open, "patch-window-for", 4*time.Hour, "how long that window is open")
}

// windowOf is what the flags say.
func windowOf(v *call, schedule string, open time.Duration) (*server.FleetPatchWindow, error) {
	if !v.given("patch-window") {
		if v.given("patch-window-for") {
			return nil, usagef("--patch-window-for needs --patch-window")
		}
		return nil, nil //nolint:nilnil // nothing is said of it
	}
	w := server.FleetPatchWindow{Schedule: schedule}
	if v.given("patch-window-for") {
		w.Seconds = int(open / time.Second)
	}
	return &w, nil
}

func fleetCreate() Action[api.Fleet] {
	var in server.CreateFleetRequest
	var most int64
	var policies []string
	var schedule string
	var open time.Duration
	return Action[api.Fleet]{
		Use: "create NAME", Short: "Create an empty fleet", Path: "/v1/fleets", Table: fleetTable,
		Example: "  prego fleet create web --role app --max 12 --policy spread",
		Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
			pick(f, &in.Role, "role", "", "", sets["role"])
			pick(f, &in.Region, "region", "", "region of its servers unless a region placement policy decides", sets["region"])
			f.StringVar((*string)(&in.InfraProvider), "provider", "hetzner", "infrastructure provider")
			f.Int64Var(&in.MinSize, "min", 0, "minimum number of servers")
			f.Int64Var(&most, "max", server.NoMaxSize, "maximum number of servers; -1 for none")
			f.StringSliceVar(&in.Constraint.Require, "require", nil, "tag that its servers must have; may be repeated")
			f.StringSliceVar(&in.Constraint.Disallow, "disallow", nil, "tag that its servers must not have; may be repeated")
			f.BoolVar(&in.Serves, "serves-tenants", false, "create servers here for waiting tenants")
			f.BoolVar(&in.ServesWorkloads, "serves-workloads", false, "create servers here for waiting instances of process groups")
			f.StringSliceVar(&policies, "policy", nil, "policy to attach; may be repeated, in order")
			offerFlags(f, &in.WorkloadMemory, &in.WorkloadDisk, &in.WorkloadCPUs)
			windowFlags(f, &schedule, &open)
			specFlags(f, &in.Spec)
			required(cmd, "role")
		},
		Body: func(v *call) (_ any, err error) {
			in.FleetID, in.MaxSize = prego.FleetID(v.typed), &most
			in.PatchWindow, err = windowOf(v, schedule, open)
			return in, err
		},
		Finish: func(v *call) error {
			for _, p := range policies {
				if err := v.client.Do(v.Context(), http.MethodPut, string("/v1/fleets/"+in.FleetID+"/policies/")+p, nil, api.AttachPolicy{}, &v.answer); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func fleetUpdate() Action[api.Fleet] {
	var least, most, memory, disk int64
	var cpus float64
	var schedule string
	var open time.Duration
	var serves, servesWorkloads bool
	var spec server.Spec
	return Action[api.Fleet]{
		Use: "update FLEET", Short: "Change a fleet", Method: http.MethodPatch, Path: "/v1/fleets/{fleet}", Table: fleetTable,
		Long: `Change a fleet. Flags that are left out leave things as they are. Existing servers keep
their spec until prego fleet replace renews them; what they offer to workloads changes at
once.`,
		Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
			f.Int64Var(&least, "min", 0, "minimum number of servers")
			f.Int64Var(&most, "max", server.NoMaxSize, "maximum number of servers; -1 for none")
			f.BoolVar(&serves, "serves-tenants", false, "create servers here for waiting tenants")
			f.BoolVar(&servesWorkloads, "serves-workloads", false, "create servers here for waiting instances of process groups")
			offerFlags(f, &memory, &disk, &cpus)
			windowFlags(f, &schedule, &open)
			specFlags(f, &spec)
		},
		Body: func(v *call) (any, error) {
			var in server.UpdateFleetRequest
			var now struct {
				Spec server.Spec `json:"spec"`
			}
			// A spec is replaced as a whole: the flags left out are taken from the present one.
			ofSpec := changes{
				"type": set(&now.Spec.ServerType, &spec.ServerType), "location": set(&now.Spec.Location, &spec.Location),
				"image": set(&now.Spec.Image, &spec.Image), "volume-gb": set(&now.Spec.VolumeGB, &spec.VolumeGB), "tag": set(&now.Spec.Tags, &spec.Tags),
			}
			ofSpec["network"] = set(&now.Spec.Network, &spec.Network)
			others := changes{
				"min": func() { in.MinSize = &least }, "max": func() { in.MaxSize = &most }, "serves-tenants": func() { in.Serves = &serves },
				"serves-workloads": func() { in.ServesWorkloads = &servesWorkloads },
				"workload-memory":  func() { in.WorkloadMemory = &memory }, "workload-cpus": func() { in.WorkloadCPUs = &cpus },
				"workload-disk": func() { in.WorkloadDisk = &disk },
			}
			v.apply(others)
			window, err := windowOf(v, schedule, open)
			if err != nil {
				return nil, err
			}
			in.PatchWindow = window
			if !v.changed(ofSpec) {
				if !v.changed(others) && window == nil {
					return nil, usagef("nothing to change; give a flag")
				}
				return in, nil
			}
			in.Spec = &now.Spec
			err = v.client.Do(v.Context(), http.MethodGet, v.path("/v1/fleets/{fleet}"), nil, nil, &now)
			v.apply(ofSpec)
			return in, err
		},
	}
}

func fleetAttach() Action[api.Fleet] {
	position, disabled := 0, false
	return Action[api.Fleet]{
		Use: "attach FLEET POLICY", Short: "Attach a policy to a fleet, or change its order or whether it is enabled", Method: http.MethodPut,
		Path: "/v1/fleets/{fleet}/policies/{policy}", Table: fleetTable, After: fleetPolicies,
		Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
			f.IntVar(&position, "position", 0, "policies are evaluated in this order (default: last)")
			f.BoolVar(&disabled, "disabled", false, "attach it without enabling it")
		},
		Body: func(in *call) (any, error) {
			body := api.AttachPolicy{Enabled: new(!disabled)}
			if in.given("position") {
				body.Position = &position
			}
			return body, nil
		},
	}
}
