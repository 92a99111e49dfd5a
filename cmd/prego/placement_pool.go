package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

func newPlacementPoolCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "placement-pool", Short: "Constraints with names, for the tenants of orgs"}
	output := outputFlag(cmd)
	cmd.AddCommand(
		placementPoolList(output),
		placementPoolVerb(output, "show POOL", "Show a placement pool and who uses it", http.MethodGet, ""),
		placementPoolCreate(output), placementPoolUpdate(output), placementPoolDelete(), placementPoolDefault(output),
		orgPoolVerb(output, "associate ORG_ID POOL", "Make a placement pool apply to an org's tenants, from their next placement on", http.MethodPut),
		orgPoolVerb(output, "dissociate ORG_ID POOL", "End an org's association with a placement pool", http.MethodDelete),
		orgPools(output),
	)
	return cmd
}

func poolPath(name string) string { return "/v1/placement-pools/" + url.PathEscape(name) }

// tagFlags give a command the two lists of a constraint.
func tagFlags(cmd *cobra.Command, require, disallow *[]string) {
	cmd.Flags().StringSliceVar(require, "require", nil, "tag that a server must have; may be repeated")
	cmd.Flags().StringSliceVar(disallow, "disallow", nil, "tag that a server must not have; may be repeated")
}

func placementPoolList(output *string) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List placement pools by name", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			all, err := walk(cmd.Context(), c, "/v1/placement-pools", url.Values{}, limit,
				func(p api.PlacementPoolPage) ([]api.PlacementPool, *string) { return p.PlacementPools, p.NextCursor })
			if err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), all)
			}
			return poolTable(cmd.OutOrStdout(), all)
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 1000, "at most so many")
	return cmd
}

func poolTable(w io.Writer, pools []api.PlacementPool) error {
	t := tabwriter.NewWriter(w, 2, 4, 2, ' ', 0)
	fmt.Fprintln(t, "POOL\tREQUIRE\tDISALLOW\tDEFAULT\tORGS\tCHANGED BY\tAT")
	for _, p := range pools {
		fmt.Fprintf(t, "%s\t%s\t%s\t%t\t%d\t%s\t%s\n", p.Name, listOf(p.Require), listOf(p.Disallow), p.IsDefault, p.OrgCount, p.UpdatedBy, p.UpdatedAt.Format(time.RFC3339))
	}
	return t.Flush()
}

func listOf(tags []string) string { return cmp.Or(strings.Join(tags, ", "), "-") }

// onePlacementPool asks something of one pool and prints it.
func onePlacementPool(cmd *cobra.Command, output, method, path string, in any) error {
	c, err := newAPIClient()
	if err != nil {
		return err
	}
	var p api.PlacementPool
	if err := c.do(cmd.Context(), method, path, nil, in, &p); err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	if output == "json" {
		return printJSON(w, p)
	}
	printPlacementPool(w, p)
	return nil
}

func printPlacementPool(w io.Writer, p api.PlacementPool) {
	fmt.Fprintf(w, "placement pool %s: require %s; disallow %s", p.Name, listOf(p.Require), listOf(p.Disallow))
	if p.IsDefault {
		fmt.Fprint(w, "; the default")
	}
	switch {
	case p.OrgIds != nil && len(*p.OrgIds) > 0:
		fmt.Fprintf(w, "; orgs: %s", strings.Join(*p.OrgIds, ", "))
		if more := p.OrgCount - len(*p.OrgIds); more > 0 {
			fmt.Fprintf(w, " and %d more", more)
		}
	case p.OrgCount > 0:
		fmt.Fprintf(w, "; %d orgs", p.OrgCount)
	}
	fmt.Fprintf(w, "; changed by %s at %s\n", p.UpdatedBy, p.UpdatedAt.Format(time.RFC3339))
}

func placementPoolVerb(output *string, use, short, method, suffix string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onePlacementPool(cmd, *output, method, poolPath(args[0])+suffix, nil)
		},
	}
}

func placementPoolCreate(output *string) *cobra.Command {
	var require, disallow []string
	cmd := &cobra.Command{
		Use: "create POOL", Short: "Make a placement pool; the same one again changes nothing", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := api.CreatePlacementPool{Name: args[0], Require: given(require), Disallow: given(disallow)}
			return onePlacementPool(cmd, *output, http.MethodPost, "/v1/placement-pools", in)
		},
	}
	tagFlags(cmd, &require, &disallow)
	return cmd
}

// given is a list that somebody gave, nil for none.
func given(list []string) *[]string {
	if len(list) == 0 {
		return nil
	}
	return &list
}

func placementPoolUpdate(output *string) *cobra.Command {
	var require, disallow []string
	cmd := &cobra.Command{
		Use: "update POOL", Short: "Replace both lists of a placement pool; tenants that have a place keep it", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onePlacementPool(cmd, *output, http.MethodPut, poolPath(args[0]), api.PutPlacementPool{Require: given(require), Disallow: given(disallow)})
		},
	}
	tagFlags(cmd, &require, &disallow)
	return cmd
}

func placementPoolDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete POOL", Short: "Delete a placement pool that nothing uses", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			return c.do(cmd.Context(), http.MethodDelete, poolPath(args[0]), nil, nil, nil)
		},
	}
}

func placementPoolDefault(output *string) *cobra.Command {
	var unset bool
	cmd := &cobra.Command{
		Use: "default POOL", Short: "Make a placement pool that of the orgs that are associated with none", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			method := http.MethodPut
			if unset {
				method = http.MethodDelete
			}
			return onePlacementPool(cmd, *output, method, poolPath(args[0])+"/default", nil)
		},
	}
	cmd.Flags().BoolVar(&unset, "unset", false, "it is the default no longer")
	return cmd
}

func orgPoolVerb(output *string, use, short, method string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return showOrgPools(cmd, *output, method, args[0], "/"+url.PathEscape(args[1]))
		},
	}
}

func orgPools(output *string) *cobra.Command {
	return &cobra.Command{
		Use: "of ORG_ID", Short: "Show the placement pools that apply to an org's tenants", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return showOrgPools(cmd, *output, http.MethodGet, args[0], "")
		},
	}
}

func showOrgPools(cmd *cobra.Command, output, method, org, suffix string) error {
	c, err := newAPIClient()
	if err != nil {
		return err
	}
	var out api.OrgPlacementPools
	if err := c.do(cmd.Context(), method, "/v1/orgs/"+url.PathEscape(org)+"/placement-pools"+suffix, nil, nil, &out); err != nil {
		return err
	}
	if output == "json" {
		return printJSON(cmd.OutOrStdout(), out)
	}
	return poolTable(cmd.OutOrStdout(), out.PlacementPools)
}
