package main

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

func newQuotaCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "quota", Short: "What orgs may use, and what they use"}
	output := outputFlag(cmd)
	cmd.AddCommand(quotaShow(output), quotaSet(output), quotaUnset(output))
	return cmd
}

func quotaPath(org, dimension string) string {
	return "/v1/orgs/" + url.PathEscape(org) + "/quotas/" + url.PathEscape(dimension)
}

func quotaShow(output *string) *cobra.Command {
	return &cobra.Command{
		Use: "show ORG_ID", Short: "Each limit of an org, where it is from, and what is used of it", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var q api.OrgQuotas
			if err := c.do(cmd.Context(), http.MethodGet, "/v1/orgs/"+url.PathEscape(args[0])+"/quotas", nil, nil, &q); err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			if *output == "json" {
				return printJSON(w, q)
			}
			fmt.Fprintf(w, "org %s, %s\n", q.OrgId, q.Tier)
			return quotaTable(w, q.Quotas)
		},
	}
}

func quotaTable(w io.Writer, quotas []api.OrgQuota) error {
	t := tabwriter.NewWriter(w, 2, 4, 2, ' ', 0)
	fmt.Fprintln(t, "DIMENSION\tLIMIT\tFROM\tUSED\tLEFT\tWHY")
	for _, q := range quotas {
		why := deref(q.Reason)
		if q.UpdatedBy != nil {
			why = strings.TrimPrefix(why+", by "+*q.UpdatedBy, ", ")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", q.Dimension, number(q.Limit), q.Source, number(q.Usage), number(q.Headroom), why)
	}
	return t.Flush()
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// changeQuota asks something of one limit and prints it.
func changeQuota(cmd *cobra.Command, output, method, path string, in any) error {
	c, err := newAPIClient()
	if err != nil {
		return err
	}
	var q api.OrgQuota
	if err := c.do(cmd.Context(), method, path, nil, in, &q); err != nil {
		return err
	}
	if output == "json" {
		return printJSON(cmd.OutOrStdout(), q)
	}
	return quotaTable(cmd.OutOrStdout(), []api.OrgQuota{q})
}

func quotaSet(output *string) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "set ORG_ID DIMENSION LIMIT --reason TEXT", Short: "Give an org a limit of its own", Args: cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			limit, err := strconv.ParseFloat(args[2], 64)
			if err != nil || math.IsNaN(limit) || math.IsInf(limit, 0) {
				return &exitError{code: 2, err: fmt.Errorf("LIMIT must be a number, not %q", args[2])}
			}
			return changeQuota(cmd, *output, http.MethodPut, quotaPath(args[0], args[1]), api.SetQuota{Limit: limit, Reason: reason})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the org's events")
	_ = cmd.MarkFlagRequired("reason") // it is defined above
	return cmd
}

func quotaUnset(output *string) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "unset ORG_ID DIMENSION", Short: "Give an org the limit of its tier again", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var in api.QuotaReason
			if reason != "" {
				in.Reason = &reason
			}
			return changeQuota(cmd, *output, http.MethodDelete, quotaPath(args[0], args[1]), in)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the org's events")
	return cmd
}
