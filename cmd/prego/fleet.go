package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

func newFleetCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "fleet", Short: "Sets of servers of one role, and what makes them grow and shrink"}
	output := outputFlag(cmd)
	cmd.AddCommand(fleetList(output), fleetShow(output), fleetCreate(output), fleetUpdate(output), fleetDelete(), fleetAttach(output), fleetDetach(),
		fleetActions(output), fleetAction(output), fleetCancel(output))
	cmd.AddCommand(fleetVerbs(output)...)
	return cmd
}

func fleetPath(id string, more ...string) string {
	path := "/v1/fleets/" + url.PathEscape(id)
	for _, m := range more {
		path += "/" + url.PathEscape(m)
	}
	return path
}

func fleetList(output *string) *cobra.Command {
	var role string
	var limit int
	cmd := lister("list", "List fleets", output, func(ctx context.Context, c *apiClient, out *[]api.ServerFleet) (err error) {
		*out, err = walk(ctx, c, "/v1/fleets", filters(map[string]string{"role": role}), limit,
			func(p api.ServerFleetPage) ([]api.ServerFleet, *string) { return p.Fleets, p.NextCursor })
		return err
	}, func(w io.Writer, v []api.ServerFleet) {
		fmt.Fprintln(w, "FLEET\tROLE\tSIZE\tDESIRED\tMIN\tMAX\tREGIONS\tPROFILE\tSERVES TENANTS")
		for _, f := range v {
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%d\t%t\n", f.FleetId, f.Role, f.Size, f.DesiredCapacity, f.MinSize, noneBelow0(f.MaxSize),
				perRegion(f.Regions), f.Profile, f.ServesTenants)
		}
	})
	cmd.Flags().StringVar(&role, "role", "", "only this role")
	cmd.Flags().IntVar(&limit, "limit", 1000, "at most so many")
	return cmd
}

func noneBelow0(n int64) string {
	if n < 0 {
		return "none"
	}
	return strconv.FormatInt(n, 10)
}

// perRegion is a count by region in the order of their names.
func perRegion(regions map[string]int64) string {
	parts := []string{}
	for _, name := range slices.Sorted(maps.Keys(regions)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, regions[name]))
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

func fleetShow(output *string) *cobra.Command {
	return &cobra.Command{
		Use: "show FLEET_ID", Short: "Show a fleet, its policies and how it is spread", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return oneFleet(cmd, *output, http.MethodGet, fleetPath(args[0]), nil)
		},
	}
}

// oneFleet asks for something that is answered with a fleet, and shows it.
func oneFleet(cmd *cobra.Command, output, method, path string, in any) error {
	return answered(cmd, output, method, path, in, printFleet)
}

// answered sends a request, and shows what it is answered with.
func answered[T any](cmd *cobra.Command, output, method, path string, in any, show func(io.Writer, T) error) error {
	c, err := newAPIClient()
	if err != nil {
		return err
	}
	var v T
	if err := c.do(cmd.Context(), method, path, nil, in, &v); err != nil {
		return err
	}
	if output == "json" {
		return printJSON(cmd.OutOrStdout(), v)
	}
	return show(cmd.OutOrStdout(), v)
}

func printFleet(out io.Writer, f api.ServerFleet) error {
	w := tabwriter.NewWriter(out, 2, 4, 2, ' ', 0)
	home := "by policy"
	if f.Region != nil {
		home = string(*f.Region)
	}
	for _, row := range [][2]string{
		{"fleet", f.FleetId},
		{"role, region", string(f.Role) + ", " + home + " at " + f.InfraProvider},
		{"size", fmt.Sprintf("%d, desired %d, min %d, max %s", f.Size, f.DesiredCapacity, f.MinSize, noneBelow0(f.MaxSize))},
		{"regions", perRegion(f.Regions)},
		{"tags", cmp.Or(strings.Join(specTags(f.Spec), " "), "-")},
		{"each offers", offer(f)},
		{"profile", fmt.Sprintf("%d, serves tenants: %t", f.Profile, f.ServesTenants)},
		{"run", deref(f.RunUrl)},
		{"created", f.CreatedAt.Format(time.RFC3339) + " by " + f.CreatedBy},
	} {
		fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
	}
	if f.Policies != nil && len(*f.Policies) > 0 {
		fmt.Fprintln(w, "\nPOSITION\tPOLICY\tTYPE\tENABLED\tLAST USED\tSPEC")
		for _, p := range *f.Policies {
			used := "-"
			if p.LastUsedAt != nil {
				used = p.LastUsedAt.Format(time.RFC3339)
			}
			fmt.Fprintf(w, "%d\t%s\t%s\t%t\t%s\t%s\n", p.Position, p.PolicyId, p.Type, p.Enabled, used, p.Spec)
		}
	}
	return w.Flush()
}

// offer is what each server of a fleet has for instances.
func offer(f api.ServerFleet) string {
	if f.WorkloadMemoryBytes == 0 {
		return "nothing to workloads"
	}
	return fmt.Sprintf("%s of memory and %g CPUs to workloads", sized(f.WorkloadMemoryBytes), f.WorkloadCpus)
}

func specTags(s api.ServerSpec) []string {
	if s.Tags == nil {
		return nil
	}
	return *s.Tags
}

// specFlags are the flags of a fleet's servers.
func specFlags(cmd *cobra.Command, s *server.Spec) {
	f := cmd.Flags()
	f.StringVar(&s.ServerType, "type", "", "machine type; empty takes the configured ones")
	f.StringVar(&s.Location, "location", "", "provider location; empty takes the region's")
	f.StringVar(&s.Image, "image", "", "operating system image; empty takes the configured one")
	f.IntVar(&s.VolumeGB, "volume-gb", 0, "size of a data volume in GB; 0 for none")
	f.StringSliceVar(&s.Tags, "tag", nil, "placement tag; may be repeated")
}

// offerFlags are the flags of what a fleet's servers offer to instances.
type offerFlags struct {
	memory string
	cpus   float64
}

func (o *offerFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.memory, "workload-memory", "0", "memory that each server offers to workloads: bytes, or with K, M, G, T for powers of 1024; 0 is nothing")
	cmd.Flags().Float64Var(&o.cpus, "workload-cpus", 0, "CPUs that each server offers to workloads, as a share")
}

func (o *offerFlags) bytes() (int64, error) {
	n, err := parseBytes(o.memory)
	if err != nil {
		return 0, &exitError{code: 2, err: fmt.Errorf("--workload-memory: %w", err)}
	}
	return n, nil
}

func fleetCreate(output *string) *cobra.Command {
	var in server.CreateFleetRequest
	var most int64
	var offered offerFlags
	var policies []string
	cmd := &cobra.Command{
		Use: "create FLEET_ID", Short: "Make an empty fleet", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			memory, err := offered.bytes()
			if err != nil {
				return err
			}
			in.FleetID, in.MaxSize, in.WorkloadMemory, in.WorkloadCPUs = args[0], &most, memory, offered.cpus
			if err := oneFleetQuietly(cmd, http.MethodPost, "/v1/fleets", in); err != nil {
				return err
			}
			for _, p := range policies {
				if err := oneFleetQuietly(cmd, http.MethodPut, fleetPath(in.FleetID, "policies", p), api.AttachPolicy{}); err != nil {
					return err
				}
			}
			return oneFleet(cmd, *output, http.MethodGet, fleetPath(in.FleetID), nil)
		},
	}
	f := cmd.Flags()
	f.StringVar((*string)(&in.Role), "role", "", "app, db-shard, redis-pool or node")
	f.StringVar((*string)(&in.Region), "region", "", "where its servers stand without a region placement policy: sg, eu or us")
	f.StringVar((*string)(&in.InfraProvider), "provider", "hetzner", "infrastructure provider")
	f.Int64Var(&in.MinSize, "min", 0, "least servers")
	f.Int64Var(&most, "max", server.NoMaxSize, "most servers; -1 for none")
	f.StringSliceVar(&in.Constraint.Require, "require", nil, "tag that its servers have; may be repeated")
	f.StringSliceVar(&in.Constraint.Disallow, "disallow", nil, "tag that its servers don't have; may be repeated")
	f.BoolVar(&in.Serves, "serves-tenants", false, "make servers here that waiting tenants need")
	f.StringSliceVar(&policies, "policy", nil, "policy to attach; may be repeated, in order")
	offered.add(cmd)
	specFlags(cmd, &in.Spec)
	_ = cmd.MarkFlagRequired("role")
	return cmd
}

// oneFleetQuietly is oneFleet without showing it.
func oneFleetQuietly(cmd *cobra.Command, method, path string, in any) error {
	c, err := newAPIClient()
	if err != nil {
		return err
	}
	return c.do(cmd.Context(), method, path, nil, in, nil)
}

func fleetUpdate(output *string) *cobra.Command {
	var least, most int64
	var serves bool
	var spec server.Spec
	var offered offerFlags
	cmd := &cobra.Command{
		Use: "update FLEET_ID", Short: "Change a fleet; flags that are left out leave things as they are", Args: cobra.ExactArgs(1),
		Long: "Change a fleet. Flags that are left out leave things as they are. The servers stay\nas they are until prego fleet replace brings them up to a new spec; what they offer to\nworkloads changes at once.",
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := fleetChange(cmd, args[0], least, most, serves, spec, offered)
			if err != nil {
				return err
			}
			return oneFleet(cmd, *output, http.MethodPatch, fleetPath(args[0]), in)
		},
	}
	f := cmd.Flags()
	f.Int64Var(&least, "min", 0, "least servers")
	f.Int64Var(&most, "max", server.NoMaxSize, "most servers; -1 for none")
	f.BoolVar(&serves, "serves-tenants", false, "make servers here that waiting tenants need")
	offered.add(cmd)
	specFlags(cmd, &spec)
	return cmd
}

// fleetChange is what the flags that were given change. A spec is replaced as a
// whole, so that the flags left out are taken from the one that there is.
func fleetChange(cmd *cobra.Command, id string, least, most int64, serves bool, spec server.Spec, offered offerFlags) (in server.UpdateFleetRequest, err error) {
	given := cmd.Flags().Changed
	if given("min") {
		in.MinSize = &least
	}
	if given("max") {
		in.MaxSize = &most
	}
	if given("serves-tenants") {
		in.Serves = &serves
	}
	if given("workload-memory") {
		memory, err := offered.bytes()
		if err != nil {
			return in, err
		}
		in.WorkloadMemory = &memory
	}
	if given("workload-cpus") {
		in.WorkloadCPUs = &offered.cpus
	}
	ofSpec := []string{"type", "location", "image", "volume-gb", "tag"}
	if !slices.ContainsFunc(ofSpec, given) {
		if in == (server.UpdateFleetRequest{}) {
			return in, &exitError{code: 2, err: errors.New("nothing to change: give a flag")}
		}
		return in, nil
	}
	c, err := newAPIClient()
	if err != nil {
		return in, err
	}
	var now struct {
		Spec server.Spec `json:"spec"`
	}
	if err := c.do(cmd.Context(), http.MethodGet, fleetPath(id), nil, nil, &now); err != nil {
		return in, err
	}
	in.Spec = &now.Spec
	for name, set := range map[string]func(){
		"type": func() { in.Spec.ServerType = spec.ServerType }, "location": func() { in.Spec.Location = spec.Location },
		"image": func() { in.Spec.Image = spec.Image }, "volume-gb": func() { in.Spec.VolumeGB = spec.VolumeGB },
		"tag": func() { in.Spec.Tags = spec.Tags },
	} {
		if given(name) {
			set()
		}
	}
	return in, nil
}

func fleetDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete FLEET_ID", Short: "Forget a fleet that has no servers", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := oneFleetQuietly(cmd, http.MethodDelete, fleetPath(args[0]), nil); err != nil {
				return err
			}
			fmt.Fprintln(cmd.ErrOrStderr(), "deleted: fleet", args[0])
			return nil
		},
	}
}

func fleetAttach(output *string) *cobra.Command {
	var position int
	var disabled bool
	cmd := &cobra.Command{
		Use: "attach FLEET_ID POLICY_ID", Short: "Give a fleet a policy, or change its order or whether it is enabled", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			enabled := !disabled
			in := api.AttachPolicy{Enabled: &enabled}
			if cmd.Flags().Changed("position") {
				in.Position = &position
			}
			return oneFleet(cmd, *output, http.MethodPut, fleetPath(args[0], "policies", args[1]), in)
		},
	}
	cmd.Flags().IntVar(&position, "position", 0, "policies are asked in this order; last if left out")
	cmd.Flags().BoolVar(&disabled, "disabled", false, "attached, and not asked")
	return cmd
}

func fleetDetach() *cobra.Command {
	return &cobra.Command{
		Use: "detach FLEET_ID POLICY_ID", Short: "Take a policy from a fleet", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := oneFleetQuietly(cmd, http.MethodDelete, fleetPath(args[0], "policies", args[1]), nil); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "detached: policy %s from fleet %s\n", args[1], args[0])
			return nil
		},
	}
}
