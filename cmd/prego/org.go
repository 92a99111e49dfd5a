package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

func newOrgCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "org", Short: "Make, change, show and list customers"}
	output := outputFlag(cmd)
	cmd.AddCommand(orgSet(output), orgShow(output), orgList(output), orgEvents(output))
	return cmd
}

func orgSet(output *string) *cobra.Command {
	var parent, tier string
	cmd := &cobra.Command{
		Use: "set ORG_ID", Aliases: []string{"put"}, Args: cobra.ExactArgs(1),
		Short: "Make an org, or change its parent or tier; what is left out stays as it is; --parent= removes the parent",
		RunE: func(cmd *cobra.Command, args []string) error {
			in := api.PutOrg{}
			if cmd.Flags().Changed("parent") {
				in.ParentOrgId = &parent
			}
			if tier != "" {
				in.Tier = &tier
			}
			return oneOrg(cmd, *output, http.MethodPut, args[0], in)
		},
	}
	cmd.Flags().StringVar(&parent, "parent", "", "the org that it is part of")
	cmd.Flags().StringVar(&tier, "tier", "", "free, paid or enterprise: decides what the org may use")
	return cmd
}

func orgShow(output *string) *cobra.Command {
	return &cobra.Command{
		Use: "show ORG_ID", Short: "Show an org", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return oneOrg(cmd, *output, http.MethodGet, args[0], nil)
		},
	}
}

func oneOrg(cmd *cobra.Command, output, method, id string, in any) error {
	c, err := newAPIClient()
	if err != nil {
		return err
	}
	var o api.Org
	if err := c.do(cmd.Context(), method, "/v1/orgs/"+url.PathEscape(id), nil, in, &o); err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	if output == "json" {
		return printJSON(w, o)
	}
	fmt.Fprintf(w, "org %s, %s", o.OrgId, o.Tier)
	if o.ParentOrgId != nil {
		fmt.Fprintf(w, ", part of %s", *o.ParentOrgId)
	}
	fmt.Fprintf(w, ", made by %s at %s\n", o.CreatedBy, o.CreatedAt.Format(time.RFC3339))
	return nil
}

func orgList(output *string) *cobra.Command {
	return lister("list", "List orgs by id", output, func(ctx context.Context, c *apiClient, out *[]api.Org) error {
		*out = []api.Org{}
		q := url.Values{"limit": {"200"}}
		for {
			var page api.OrgPage
			if err := c.do(ctx, http.MethodGet, "/v1/orgs", q, nil, &page); err != nil {
				return err
			}
			*out = append(*out, page.Orgs...)
			if page.NextCursor == nil {
				return nil
			}
			q.Set("cursor", *page.NextCursor)
		}
	}, func(w io.Writer, v []api.Org) {
		fmt.Fprintln(w, "ORG\tTIER\tPART OF\tMADE BY\tAT")
		for _, o := range v {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", o.OrgId, o.Tier, deref(o.ParentOrgId), o.CreatedBy, o.CreatedAt.Format(time.RFC3339))
		}
	})
}

func orgEvents(output *string) *cobra.Command {
	var kind string
	var limit int
	cmd := &cobra.Command{
		Use: "events ORG_ID", Short: "What happened to an org's resources and limits, newest first", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			all, err := walk(cmd.Context(), c, "/v1/orgs/"+url.PathEscape(args[0])+"/events", filters(map[string]string{"type": kind}), limit,
				func(p api.OrgEventPage) ([]api.OrgEvent, *string) { return p.Events, p.NextCursor })
			if err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), all)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 2, 4, 2, ' ', 0)
			fmt.Fprintln(w, "AT\tTYPE\tSUBJECT\tBY\tREASON\tDATA")
			for _, e := range all {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", e.At.Format(time.RFC3339), e.Type, e.Subject, e.Actor, deref(e.Reason), e.Payload)
			}
			return w.Flush()
		},
	}
	cmd.Flags().StringVar(&kind, "type", "", "only types that begin so, for example tenant.")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most so many")
	return cmd
}
