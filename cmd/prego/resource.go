package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

// asked sends a request and prints its answer, as JSON or by show.
func asked[T any](cmd *cobra.Command, output, method, path string, in any, show func(io.Writer, T)) error {
	c, err := newAPIClient()
	if err != nil {
		return err
	}
	var out T
	if err := c.do(cmd.Context(), method, path, nil, in, &out); err != nil {
		return err
	}
	if output == "json" {
		return printJSON(cmd.OutOrStdout(), out)
	}
	show(cmd.OutOrStdout(), out)
	return nil
}

// verb is a command that sends a request without a body; path makes its path of the
// arguments.
func verb[T any](output *string, use, short string, args int, method string, path func(args []string) string, show func(io.Writer, T)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(args),
		RunE: func(cmd *cobra.Command, args []string) error {
			for i := range args {
				args[i] = url.PathEscape(args[i])
			}
			return asked(cmd, *output, method, path(args), nil, show)
		},
	}
}

// gone is a command whose answer is empty; the last argument is what it deletes.
func gone(use, short string, args int, path func(args []string) string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(args),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			escaped := make([]string, len(args))
			for i := range args {
				escaped[i] = url.PathEscape(args[i])
			}
			if err := c.do(cmd.Context(), http.MethodDelete, path(escaped), nil, nil, nil); err != nil {
				return err
			}
			fmt.Fprintln(cmd.ErrOrStderr(), "deleted:", args[len(args)-1])
			return nil
		},
	}
}

// listed is a command that walks a list and prints a table.
func listed[P, T any](output *string, use, short string, args int, path func(args []string) (string, url.Values), open func(P) ([]T, *string), table func(io.Writer, []T) error) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(args),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			p, q := path(args)
			all, err := walk(cmd.Context(), c, p, q, limit, open)
			if err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), all)
			}
			return table(cmd.OutOrStdout(), all)
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 1000, "at most so many")
	return cmd
}

func text(s *string) string {
	if s == nil || *s == "" {
		return "-"
	}
	return *s
}

func newRouteCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "route", Short: "Published ports of process groups"}
	output := outputFlag(cmd)
	of := func(args []string) string { return "/v1/envs/" + args[0] + "/routes" }
	one := func(args []string) string { return of(args) + "/" + args[1] }
	cmd.AddCommand(
		routeCreate(output),
		listed(output, "list ENV_ID", "List the routes of an env", 1,
			func(args []string) (string, url.Values) {
				return of([]string{url.PathEscape(args[0])}), url.Values{}
			},
			func(p api.RoutePage) ([]api.Route, *string) { return p.Routes, p.NextCursor }, routeTable),
		verb(output, "show ENV_ID ROUTE_ID", "Show a route", 2, http.MethodGet, one, printRoute),
		gone("delete ENV_ID ROUTE_ID", "Take a route down", 2, one),
	)
	return cmd
}

func routeCreate(output *string) *cobra.Command {
	var in api.CreateRoute
	var hostname, listener, protocol string
	cmd := &cobra.Command{
		Use: "create ENV_ID", Short: "Publish a port of a process group", Args: cobra.ExactArgs(1),
		Example: "  prego route create env-x --group grp-x --host www.example.com --port 443 --protocol https --target 8443",
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Hostname, in.Listener, in.Protocol = flagged(hostname), api.CreateRouteListener(listener), api.CreateRouteProtocol(protocol)
			return asked(cmd, *output, http.MethodPost, "/v1/envs/"+url.PathEscape(args[0])+"/routes", in, printRoute)
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.GroupId, "group", "", "process group that serves it")
	f.StringVar(&hostname, "host", "", "hostname; none for tcp")
	f.StringVar(&listener, "listener", "shared_v6", "shared_v6, or env_v4 for the env's own IPv4")
	f.IntVar(&in.ListenPort, "port", 443, "port that callers use")
	f.StringVar(&protocol, "protocol", "https", "http, https (passed through) or tcp")
	f.IntVar(&in.TargetPort, "target", 8080, "port of the group's containers")
	return cmd
}

func routeTable(w io.Writer, routes []api.Route) error {
	t := tabwriter.NewWriter(w, 2, 4, 2, ' ', 0)
	fmt.Fprintln(t, "ROUTE\tHOSTNAME\tLISTENER\tPORT\tPROTOCOL\tGROUP\tTARGET")
	for _, r := range routes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%d\n", r.RouteId, text(r.Hostname), r.Listener, r.ListenPort, r.Protocol, r.GroupId, r.TargetPort)
	}
	return t.Flush()
}

func printRoute(w io.Writer, r api.Route) {
	fmt.Fprintf(w, "route %s: %s %s on %s port %d to port %d of %s\n", r.RouteId, r.Protocol, text(r.Hostname), r.Listener, r.ListenPort, r.TargetPort, r.GroupId)
}

func newIPv4Command() *cobra.Command {
	cmd := &cobra.Command{Use: "ipv4", Short: "IPv4 addresses of envs"}
	output := outputFlag(cmd)
	of := func(args []string) string { return "/v1/envs/" + args[0] + "/ipv4" }
	cmd.AddCommand(
		verb(output, "enable ENV_ID", "Give an env an IPv4 address of its own", 1, http.MethodPost, of, printIPv4),
		verb(output, "show ENV_ID", "Show the IPv4 address of an env", 1, http.MethodGet, of, printIPv4),
		verb(output, "disable ENV_ID", "Give the address of an env back", 1, http.MethodDelete, of, printIPv4),
	)
	return cmd
}

// status is how something stands, and why.
func status(s api.ResourceStatus, reason, message *string) string {
	out := string(s)
	if reason != nil {
		out += " (" + *reason + ")"
	}
	if message != nil {
		out += ": " + *message
	}
	return out
}

func printIPv4(w io.Writer, v api.IPv4) {
	fmt.Fprintf(w, "address %s of %s: %s at %s, %s\n", v.AllocationId, v.EnvId, text(v.Address), v.Location, status(v.Status, v.Reason, v.Message))
}

func newVolumeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "volume", Short: "Volumes of orgs"}
	output := outputFlag(cmd)
	one := func(args []string) string { return "/v1/volumes/" + args[0] }
	var org string
	list := listed(output, "list", "List volumes", 0,
		func([]string) (string, url.Values) { return "/v1/volumes", filters(map[string]string{"org_id": org}) },
		func(p api.VolumePage) ([]api.Volume, *string) { return p.Volumes, p.NextCursor }, volumeTable)
	list.Flags().StringVar(&org, "org", "", "only of this org")
	cmd.AddCommand(
		list, volumeCreate(output), volumeAttach(output),
		verb(output, "show VOLUME_ID", "Show a volume", 1, http.MethodGet, one, printVolume),
		verb(output, "delete VOLUME_ID", "Delete a volume and what is on it", 1, http.MethodDelete, one, printVolume),
		gone("detach VOLUME_ID ATTACHMENT_ID", "Take a volume from its process group", 2, func(args []string) string { return one(args) + "/attachments/" + args[1] }),
	)
	return cmd
}

func volumeCreate(output *string) *cobra.Command {
	var region, location string
	var in api.CreateVolume
	var gb int64
	cmd := &cobra.Command{
		Use: "create ORG_ID NAME", Short: "Make a volume", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if gb < 0 || gb > math.MaxInt64/1_000_000_000 {
				return &exitError{code: 2, err: fmt.Errorf("--gb must be 10 to 10000, not %d", gb)}
			}
			in.OrgId, in.Name, in.Region, in.Location, in.SizeBytes = args[0], args[1], api.Region(region), flagged(location), gb*1_000_000_000
			return asked(cmd, *output, http.MethodPost, "/v1/volumes", in, printVolume)
		},
	}
	cmd.Flags().StringVar(&region, "region", "eu", "sg, eu or us")
	cmd.Flags().StringVar(&location, "location", "", "of the provider; the region's first when left out")
	cmd.Flags().Int64Var(&gb, "gb", 10, "size, 10 to 10000")
	return cmd
}

func volumeAttach(output *string) *cobra.Command {
	var in api.AttachVolume
	cmd := &cobra.Command{
		Use: "attach VOLUME_ID GROUP_ID", Short: "Make a volume that of a process group", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.GroupId = args[1]
			return asked(cmd, *output, http.MethodPost, "/v1/volumes/"+url.PathEscape(args[0])+"/attachments", in, func(w io.Writer, t api.VolumeAttachment) {
				fmt.Fprintf(w, "attachment %s: volume %s at %s of %s\n", t.AttachmentId, t.VolumeId, t.MountPath, t.GroupId)
			})
		},
	}
	cmd.Flags().StringVar(&in.MountPath, "mount", "/data", "where the group's containers have it")
	return cmd
}

func volumeTable(w io.Writer, volumes []api.Volume) error {
	t := tabwriter.NewWriter(w, 2, 4, 2, ' ', 0)
	fmt.Fprintln(t, "VOLUME\tORG\tNAME\tGB\tLOCATION\tGROUP\tSTATUS")
	for _, v := range volumes {
		group := "-"
		if v.Attachment != nil {
			group = v.Attachment.GroupId
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", v.VolumeId, v.OrgId, v.Name, (v.SizeBytes+999_999_999)/1_000_000_000, v.Location, group, status(v.Status, v.Reason, v.Message))
	}
	return t.Flush()
}

func printVolume(w io.Writer, v api.Volume) {
	_ = volumeTable(w, []api.Volume{v})
}

func newSnapshotCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "snapshot", Short: "Backups of tenants' sites"}
	output := outputFlag(cmd)
	of := func(args []string) string { return "/v1/tenants/" + args[0] + "/snapshots" }
	one := func(args []string) string { return of(args) + "/" + args[1] }
	cmd.AddCommand(
		verb(output, "create TENANT_ID", "Back a tenant's site up", 1, http.MethodPost, of, printSnapshot),
		verb(output, "show TENANT_ID SNAPSHOT_ID", "Show a snapshot", 2, http.MethodGet, one, printSnapshot),
		gone("delete TENANT_ID SNAPSHOT_ID", "Give a snapshot up", 2, one),
		listed(output, "list TENANT_ID", "List the snapshots of a tenant, newest first", 1,
			func(args []string) (string, url.Values) { return of([]string{url.PathEscape(args[0])}), url.Values{} },
			func(p api.SnapshotPage) ([]api.Snapshot, *string) { return p.Snapshots, p.NextCursor }, snapshotTable),
	)
	return cmd
}

func snapshotTable(w io.Writer, list []api.Snapshot) error {
	t := tabwriter.NewWriter(w, 2, 4, 2, ' ', 0)
	fmt.Fprintln(t, "SNAPSHOT\tAT\tBY\tSERVER\tSTATUS\tMESSAGE")
	for _, s := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", s.SnapshotId, s.CreatedAt.Format(time.RFC3339), s.CreatedBy, s.ServerId, s.Status, text(s.Message))
	}
	return t.Flush()
}

func printSnapshot(w io.Writer, s api.Snapshot) {
	fmt.Fprintf(w, "snapshot %s of %s: %s", s.SnapshotId, s.TenantId, s.Status)
	if s.Message != nil {
		fmt.Fprintf(w, ": %s", *s.Message)
	}
	fmt.Fprintf(w, "; on %s: %s\n", s.ServerId, cmp.Or(strings.Join(s.Files, ", "), "no files yet"))
}

func newRestoreCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "restore", Short: "Bring tenants' sites back to snapshots"}
	output := outputFlag(cmd)
	of := func(args []string) string { return "/v1/tenants/" + args[0] + "/restores" }
	cmd.AddCommand(
		&cobra.Command{
			Use: "create TENANT_ID SNAPSHOT_ID", Short: "Bring a tenant's site back to a snapshot", Args: cobra.ExactArgs(2),
			RunE: func(cmd *cobra.Command, args []string) error {
				return asked(cmd, *output, http.MethodPost, of([]string{url.PathEscape(args[0])}), api.CreateRestore{SnapshotId: args[1]}, printRestore)
			},
		},
		verb(output, "show TENANT_ID JOB_ID", "Show a restore", 2, http.MethodGet, func(args []string) string { return of(args) + "/" + args[1] }, printRestore),
		listed(output, "list TENANT_ID", "List the restores of a tenant, newest first", 1,
			func(args []string) (string, url.Values) { return of([]string{url.PathEscape(args[0])}), url.Values{} },
			func(p api.RestorePage) ([]api.RestoreJob, *string) { return p.Restores, p.NextCursor }, restoreTable),
	)
	return cmd
}

func restoreTable(w io.Writer, list []api.RestoreJob) error {
	t := tabwriter.NewWriter(w, 2, 4, 2, ' ', 0)
	fmt.Fprintln(t, "RESTORE\tAT\tBY\tSNAPSHOT\tSTATUS\tMESSAGE")
	for _, j := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", j.JobId, j.CreatedAt.Format(time.RFC3339), j.CreatedBy, j.SnapshotId, j.Status, text(j.Message))
	}
	return t.Flush()
}

func printRestore(w io.Writer, j api.RestoreJob) {
	fmt.Fprintf(w, "restore %s of %s to %s: %s", j.JobId, j.TenantId, j.SnapshotId, j.Status)
	if j.Message != nil {
		fmt.Fprintf(w, ": %s", *j.Message)
	}
	fmt.Fprintln(w)
}
