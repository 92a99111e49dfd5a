package main

import (
	"cmp"
	"context"
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
)

// lister makes a verb that reads one thing and prints it as a table or JSON.
func lister[T any](use, short string, output *string, read func(ctx context.Context, c *apiClient, out *T) error, table func(w io.Writer, v T)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var v T
			if err := read(cmd.Context(), c, &v); err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), v)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 2, 4, 2, ' ', 0)
			table(w, v)
			return w.Flush()
		},
	}
}

func query(name, value string) url.Values {
	if value == "" {
		return nil
	}
	return url.Values{name: {value}}
}

func newPoolCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "pool", Short: "Sites and servers that stand ready"}
	output := outputFlag(cmd)
	cmd.AddCommand(poolList(output), poolRefill(output), poolPolicies(output), poolWarm(output))
	return cmd
}

func poolList(output *string) *cobra.Command {
	var region string
	cmd := lister("list", "Show the site pool of each app server", output, func(ctx context.Context, c *apiClient, out *api.SitePoolList) error {
		return c.do(ctx, http.MethodGet, "/v1/site-pools", query("region", region), nil, out)
	}, func(w io.Writer, v api.SitePoolList) {
		fmt.Fprintln(w, "SERVER\tROLE\tREGION\tSTATUS\tTENANTS\tAVAILABLE\tRESERVED\tASSIGNED\tFAILED\tDRAINING\tBUILDING FOR")
		for _, p := range v.SitePools {
			building := ""
			if p.OldestBuildAt != nil {
				building = time.Since(*p.OldestBuildAt).Round(time.Second).String()
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", p.ServerId, p.Role, p.Region, p.Status, p.TenantCount,
				p.Available, p.Reserved, p.Assigned, p.Failed, p.Draining, building)
		}
	})
	cmd.Flags().StringVar(&region, "region", "", "only this region")
	return cmd
}

func poolRefill(output *string) *cobra.Command {
	return &cobra.Command{
		Use: "refill SERVER_ID", Short: "Fill the site pool of an app server now", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var out api.WorkflowStarted
			if err := c.do(cmd.Context(), http.MethodPost, "/v1/site-pools/"+url.PathEscape(args[0])+"/refill", nil, nil, &out); err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), out)
			}
			fmt.Fprintln(cmd.OutOrStdout(), "started: workflow", out.WorkflowId)
			return nil
		},
	}
}

func poolPolicies(output *string) *cobra.Command {
	return lister("policies", "Show how many sites are kept per app server", output, func(ctx context.Context, c *apiClient, out *api.SitePoolPolicyList) error {
		return c.do(ctx, http.MethodGet, "/v1/site-pool-policies", nil, nil, out)
	}, func(w io.Writer, v api.SitePoolPolicyList) {
		fmt.Fprintln(w, "PLAN\tLOW WATERMARK\tTARGET\tREFILLED WITHIN")
		for _, p := range v.SitePoolPolicies {
			fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", p.Plan, p.LowWatermark, p.Target, time.Duration(p.SloSeconds)*time.Second)
		}
	})
}

func poolWarm(output *string) *cobra.Command {
	cmd := &cobra.Command{Use: "warm", Short: "Servers that stand ready for a plan"}
	cmd.AddCommand(lister("list", "Show the warm server pools", output, func(ctx context.Context, c *apiClient, out *api.WarmPoolList) error {
		return c.do(ctx, http.MethodGet, "/v1/warm-pools", nil, nil, out)
	}, func(w io.Writer, v api.WarmPoolList) {
		fmt.Fprintln(w, "REGION\tPLAN\tTARGET\tCLAIMABLE\tBUILDING\tSET BY\tAT")
		for _, p := range v.WarmPools {
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t%s\n", p.Region, p.Plan, p.Target, p.Claimable, p.Building, p.UpdatedBy, p.UpdatedAt.Format(time.RFC3339))
		}
	}), poolWarmSet(output))
	return cmd
}

func poolWarmSet(output *string) *cobra.Command {
	return &cobra.Command{
		Use: "set REGION PLAN SERVERS", Short: "Set how many servers stand ready", Args: cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[2])
			if err != nil {
				return &exitError{code: 2, err: fmt.Errorf("%q is not a number of servers", args[2])}
			}
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var out api.WarmPoolAccepted
			path := "/v1/warm-pools/" + url.PathEscape(args[0]) + "/" + url.PathEscape(args[1])
			if err := c.do(cmd.Context(), http.MethodPut, path, nil, api.PutWarmPool{Target: n}, &out); err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), out)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "accepted: target %d for plan %s in %s, workflow %s\n", out.Target, out.Plan, out.Region, cmp.Or(deref(out.WorkflowId), "none"))
			return nil
		},
	}
}

func newScalingCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "scaling", Short: "What made the fleet grow"}
	output := outputFlag(cmd)
	var region string
	var limit int
	list := lister("list", "List scaling events, newest first", output, func(ctx context.Context, c *apiClient, out *api.ScalingEventList) error {
		q := url.Values{"limit": {strconv.Itoa(limit)}}
		if region != "" {
			q.Set("region", region)
		}
		return c.do(ctx, http.MethodGet, "/v1/scaling-events", q, nil, out)
	}, func(w io.Writer, v api.ScalingEventList) {
		fmt.Fprintln(w, "AT\tREGION\tROLE\tTRIGGER\tWAITING\tREQUESTED\tMADE\tSERVERS\tMESSAGE")
		for _, e := range v.ScalingEvents {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", e.CreatedAt.Format(time.RFC3339), e.Region, e.Role, e.Trigger, e.Waiting,
				e.Requested, e.Made, strings.Join(e.ServerIds, " "), deref(e.Message))
		}
	})
	list.Flags().StringVar(&region, "region", "", "only this region")
	list.Flags().IntVar(&limit, "limit", 50, "at most so many, 200 at once")
	cmd.AddCommand(list)
	return cmd
}
