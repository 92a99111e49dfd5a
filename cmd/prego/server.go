package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

// exitOutcome is the status when what was waited for failed.
const exitOutcome = 3

func newServerCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "server", Short: "Create, list, show, retry, delete and import servers, and see what was run on them"}
	output := cmd.PersistentFlags().StringP("output", "o", "table", "table or json")
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error {
		if *output != "table" && *output != "json" {
			return fmt.Errorf("--output must be table or json, not %q", *output)
		}
		return nil
	}
	cmd.AddCommand(serverCreate(output), serverList(output), serverShow(output), serverStats(output), serverRetry(output), serverDelete(output), serverImport(output), serverCommands(output))
	return cmd
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// follow prints an acceptance and, when asked to, the progress until the server
// rests; wanted is the state that is success.
func follow(ctx context.Context, cmd *cobra.Command, c *apiClient, a api.Accepted, output string, watch bool, wanted api.ServerStatus) error {
	w := cmd.OutOrStdout()
	if !watch {
		if output == "json" {
			return printJSON(w, a)
		}
		fmt.Fprintf(w, "accepted: server %s, workflow %s\n", a.ServerId, a.WorkflowId)
		return nil
	}
	progress := w
	if output == "json" {
		progress = cmd.ErrOrStderr()
	}
	s, err := c.watch(ctx, progress, a.ServerId, func(s api.Server) bool { return s.Status == wanted || rests(s.Status) })
	if err != nil {
		return err
	}
	if output == "json" {
		if err := printJSON(w, s); err != nil {
			return err
		}
	}
	if s.Status != wanted {
		return &exitError{code: exitOutcome, err: fmt.Errorf("server %s is %s%s", s.ServerId, s.Status, reasonOf(s))}
	}
	return nil
}

func rests(s api.ServerStatus) bool {
	switch server.Status(s) {
	case server.Active, server.Failed, server.Terminated:
		return true
	case server.Provisioning, server.Draining:
	}
	return false
}

func reasonOf(s api.Server) string {
	out := ""
	if s.StatusReason != nil {
		out = ": " + *s.StatusReason
	}
	if s.StatusMessage != nil {
		out += ", " + *s.StatusMessage
	}
	return out
}

func serverCreate(output *string) *cobra.Command {
	var in server.CreateRequest
	var watch bool
	cmd := &cobra.Command{
		Use: "create SERVER_ID", Short: "Request a server", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			in.ServerID = args[0]
			var a api.Accepted
			if err := c.do(cmd.Context(), http.MethodPost, "/internal/servers/create", nil, in, &a); err != nil {
				return err
			}
			return follow(cmd.Context(), cmd, c, a, *output, watch, api.ServerStatus(server.Active))
		},
	}
	f := cmd.Flags()
	f.StringVar((*string)(&in.Role), "role", "node", "app, db-shard, redis-pool or node")
	f.StringVar((*string)(&in.Region), "region", "", "sg, eu or us")
	f.StringVar((*string)(&in.InfraProvider), "provider", "hetzner", "infrastructure provider")
	f.StringVar(&in.Spec.ServerType, "type", "", "machine type; empty takes the configured ones")
	f.StringVar(&in.Spec.Location, "location", "", "provider location; empty takes the region's")
	f.StringVar(&in.Spec.Image, "image", "", "operating system image; empty takes the configured one")
	f.IntVar(&in.Spec.VolumeGB, "volume-gb", 0, "size of a data volume in GB; 0 for none")
	f.StringSliceVar(&in.Spec.Tags, "tag", nil, "placement tag; may be repeated")
	f.BoolVar(&watch, "watch", false, "show the progress until the server is active or failed")
	_ = cmd.MarkFlagRequired("region")
	return cmd
}

func serverStats(output *string) *cobra.Command {
	var days int
	cmd := &cobra.Command{
		Use: "stats", Short: "Show how long servers took from their request to active", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var stats api.ServerStats
			if err := c.do(cmd.Context(), http.MethodGet, "/v1/server-stats", url.Values{"days": {strconv.Itoa(days)}}, nil, &stats); err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), stats)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 2, 4, 2, ' ', 0)
			fmt.Fprintf(w, "ROLE\tLOCATION\tIMAGE\tSERVERS\tP50\tP95\tP99\tMAX\tWITHIN %g s\n", stats.TargetSeconds)
			for _, s := range stats.Activations {
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%.1f s\t%.1f s\t%.1f s\t%.1f s\t%.1f %%\n", s.Role, s.Location, s.Image, s.Servers,
					s.P50Seconds, s.P95Seconds, s.P99Seconds, s.MaxSeconds, 100*float64(s.InTime)/float64(s.Servers))
			}
			return w.Flush()
		},
	}
	cmd.Flags().IntVar(&days, "days", 30, "of those that became active within so many days")
	return cmd
}

func serverList(output *string) *cobra.Command {
	var region, role, status, tag string
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List servers, newest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			all, err := walk(cmd.Context(), c, "/v1/servers", filters(map[string]string{"region": region, "role": role, "status": status, "tag": tag}), limit,
				func(p api.ServerPage) ([]api.ServerSummary, *string) { return p.Servers, p.NextCursor })
			if err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), all)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 2, 4, 2, ' ', 0)
			fmt.Fprintln(w, "SERVER\tROLE\tREGION\tSTATUS\tAGENT\tADDRESS\tAGE\tREASON")
			for _, s := range all {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.ServerId, s.Role, s.Region, s.Status, s.AgentStatus,
					deref(s.Host), time.Since(s.CreatedAt).Round(time.Second), deref(s.StatusReason))
			}
			return w.Flush()
		},
	}
	f := cmd.Flags()
	f.StringVar(&region, "region", "", "only this region")
	f.StringVar(&role, "role", "", "only this role")
	f.StringVar(&status, "status", "", "only this status")
	f.StringVar(&tag, "tag", "", "only with this tag")
	f.IntVar(&limit, "limit", 1000, "at most so many")
	return cmd
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func serverShow(output *string) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use: "show SERVER_ID", Short: "Show a server and its timeline", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			s, err := c.server(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			if *output == "json" {
				return printJSON(w, s)
			}
			t := tabwriter.NewWriter(w, 2, 4, 2, ' ', 0)
			for _, row := range [][2]string{
				{"server", s.ServerId},
				{"role, region", string(s.Role) + ", " + string(s.Region)},
				{"status", string(s.Status) + reasonOf(s)},
				{"agent", string(s.Agent.Status) + " " + deref(s.Agent.Version)},
				{"host", hostOf(s)},
				{"provider", fmt.Sprintf("%s %s, %s in %s, %s", s.InfraProvider, deref(s.Provider.ProviderServerId), deref(s.Provider.ServerType), deref(s.Provider.Location), deref(s.Provider.Ipv4))},
				{"cost", costOf(s.Cost)},
				{"tags", tagsOf(s)},
				{"workflow", s.WorkflowId},
				{"run", deref(s.RunUrl)},
				{"created", s.CreatedAt.Format(time.RFC3339)},
			} {
				fmt.Fprintf(t, "%s\t%s\n", row[0], row[1])
			}
			if err := t.Flush(); err != nil {
				return err
			}
			fmt.Fprintln(w)
			if watch {
				_, err = c.watch(cmd.Context(), w, args[0], func(s api.Server) bool { return rests(s.Status) })
				return err
			}
			for _, e := range s.Timeline {
				printEvent(w, s, e)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "go on until the server is active, failed or terminated")
	return cmd
}

// hostOf is what is worth a look on the host.
func hostOf(s api.Server) string {
	docker := deref(s.Agent.DockerState)
	if docker == "" {
		return ""
	}
	out := "docker " + docker
	if ahead := s.Agent.ClockAheadSeconds; ahead != nil {
		out += fmt.Sprintf(", clock %+.1f s", *ahead)
		if s.Agent.ClockSkewed != nil && *s.Agent.ClockSkewed {
			out += " (clock_skew: tokens and certificates may be refused)"
		}
	}
	return out
}

// tagsOf are a server's tags, with what its host says when that is something else.
func tagsOf(s api.Server) string {
	tags := listOf(s.Tags)
	if s.Agent.TagsDiffer != nil && *s.Agent.TagsDiffer && s.Agent.Tags != nil {
		tags += " (its agent says: " + listOf(*s.Agent.Tags) + ")"
	}
	return tags
}

func serverRetry(output *string) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use: "retry SERVER_ID", Short: "Provision a failed server again", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var a api.Accepted
			if err := c.do(cmd.Context(), http.MethodPost, "/v1/servers/"+url.PathEscape(args[0])+"/retry", nil, nil, &a); err != nil {
				return err
			}
			return follow(cmd.Context(), cmd, c, a, *output, watch, api.ServerStatus(server.Active))
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "show the progress")
	return cmd
}

func serverDelete(output *string) *cobra.Command {
	var watch, force bool
	cmd := &cobra.Command{
		Use: "delete SERVER_ID", Short: "Decommission a server, at any moment of its life", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var a api.Accepted
			var q url.Values
			if force {
				q = url.Values{"force": {"true"}}
			}
			if err := c.do(cmd.Context(), http.MethodDelete, "/v1/servers/"+url.PathEscape(args[0]), q, nil, &a); err != nil {
				return err
			}
			return follow(cmd.Context(), cmd, c, a, *output, watch, api.ServerStatus(server.Terminated))
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also when tenants live on it: they are lost")
	cmd.Flags().BoolVar(&watch, "watch", false, "show the progress")
	return cmd
}

func serverImport(output *string) *cobra.Command {
	var in server.ImportRequest
	cmd := &cobra.Command{
		Use: "import SERVER_ID", Short: "Take over a server that exists; prints what to run on it", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			in.ServerID = args[0]
			var a api.ImportAccepted
			if err := c.do(cmd.Context(), http.MethodPost, "/v1/servers/import", nil, in, &a); err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), a)
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "accepted: server %s, workflow %s; apply this cloud-init document on the host:\n", a.ServerId, a.WorkflowId)
			fmt.Fprint(cmd.OutOrStdout(), a.Bootstrap)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar((*string)(&in.Role), "role", "", "app, db-shard, redis-pool or node")
	f.StringVar((*string)(&in.Region), "region", "", "sg, eu or us")
	f.StringVar((*string)(&in.InfraProvider), "provider", "hetzner", "infrastructure provider")
	f.StringVar(&in.ProviderServerID, "provider-server-id", "", "the provider's id of the server")
	f.StringVar((*string)(&in.ManagedBy), "managed-by", "worker_direct", "who made it: worker_direct or pulumi")
	f.StringSliceVar(&in.Tags, "tag", nil, "placement tag; may be repeated")
	for _, required := range []string{"role", "region", "provider-server-id"} {
		_ = cmd.MarkFlagRequired(required)
	}
	return cmd
}

func newReconcileCommand() *cobra.Command {
	return &cobra.Command{
		Use: "reconcile", Short: "Compare rows and provider now", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var out api.WorkflowStarted
			if err := c.do(cmd.Context(), http.MethodPost, "/internal/reconcile", nil, nil, &out); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "started: workflow", out.WorkflowId)
			return nil
		},
	}
}
