package cli

import (
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

var fleetColumns = computed(map[string]func(api.Fleet) string{
	"max": func(f api.Fleet) string {
		if f.MaxSize < 0 {
			return "none"
		}
		return fmt.Sprint(f.MaxSize)
	},
	"patched": func(f api.Fleet) string {
		w := f.PatchWindow
		switch {
		case w == nil:
			return "" // in the environment's window
		case w.Schedule == server.PatchNever:
			return w.Schedule
		}
		return fmt.Sprintf("%s, for %s", w.Schedule, time.Duration(w.Seconds)*time.Second)
	},
	"offers": func(f api.Fleet) string {
		if f.WorkloadMemoryBytes == 0 {
			return "nothing to workloads"
		}
		disk := ""
		if f.WorkloadDiskBytes > 0 {
			disk = ", " + bytesText(f.WorkloadDiskBytes) + " of disk"
		}
		return fmt.Sprintf("%s of memory%s and %g CPUs to workloads", bytesText(f.WorkloadMemoryBytes), disk, f.WorkloadCpus)
	},
})

var fleetPolicies = below("AttachedPolicy", func(f api.Fleet) []api.AttachedPolicy { return deref(f.Policies) })

// windowed rejects how long a window is open without one.
func windowed(in *call) error {
	if in.given("patch-window-for") && !in.given("patch-window") {
		return usagef("--patch-window-for needs --patch-window")
	}
	return nil
}

var createFleet = hook{
	flags: func(_ *cobra.Command, f *pflag.FlagSet) {
		f.StringSlice("policy", nil, "policy to attach; may be repeated, in order")
	},
	check: windowed,
	finish: func(in *call) error {
		policies, err := in.Flags().GetStringSlice("policy")
		for _, p := range policies {
			if err := in.client.Do(in.Context(), http.MethodPut, "/v1/fleets/"+in.typed+"/policies/"+p, nil, api.AttachPolicy{}, &in.answer); err != nil {
				return err
			}
		}
		return err
	},
}

// updateFleet completes a spec with the present one: the API replaces it as a whole.
var updateFleet = hook{check: windowed, body: func(in *call, body object) (any, error) {
	if len(body) == 0 {
		return nil, usagef("nothing to change; give a flag")
	}
	if spec, ok := body["spec"].(map[string]any); ok {
		var now struct {
			Spec map[string]any `json:"spec"`
		}
		if err := in.client.Do(in.Context(), http.MethodGet, in.path("/v1/fleets/{fleet_id}"), nil, nil, &now); err != nil {
			return nil, err
		}
		for name, v := range now.Spec {
			if _, ok := spec[name]; !ok {
				spec[name] = v
			}
		}
	}
	return body, nil
}}

var attachPolicy = hook{
	flags: func(_ *cobra.Command, f *pflag.FlagSet) {
		f.Bool("disabled", false, "attach it without enabling it")
	},
	body: func(in *call, body object) (any, error) {
		body["enabled"] = !in.is("disabled")
		return body, nil
	},
	after: fleetPolicies,
}
