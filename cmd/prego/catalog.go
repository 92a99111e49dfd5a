package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

func newCatalogCommand() *cobra.Command {
	var output, location string
	cmd := &cobra.Command{
		Use: "catalog", Short: "Show what the provider sells, what it costs, and what is configured in vain", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("--output must be table or json, not %q", output)
			}
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			out, err := c.catalog(cmd.Context())
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), out)
			}
			return printCatalog(cmd.OutOrStdout(), out, location, time.Now())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	cmd.Flags().StringVar(&location, "location", "", "only what is sold at this location")
	cmd.AddCommand(&cobra.Command{
		Use: "refresh", Short: "Have the provider asked now", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var out api.WorkflowStarted
			if err := c.do(cmd.Context(), http.MethodPost, "/internal/catalog/refresh", nil, nil, &out); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "started: workflow", out.WorkflowId)
			return nil
		},
	})
	return cmd
}

func (c *apiClient) catalog(ctx context.Context) (api.Catalog, error) {
	var out api.Catalog
	err := c.do(ctx, http.MethodGet, "/v1/catalog", nil, nil, &out)
	return out, err
}

func printCatalog(w io.Writer, c api.Catalog, location string, now time.Time) error {
	switch {
	case !c.Known:
		fmt.Fprintf(w, "%s never said what it sells%s; requests are held against the configured locations alone\n", c.Provider, because(c.Failure))
	case c.Stale:
		fmt.Fprintf(w, "STALE: read %s ago%s\n", now.Sub(*c.RefreshedAt).Round(time.Second), because(c.Failure))
	default:
		fmt.Fprintf(w, "read %s ago%s\n", now.Sub(*c.RefreshedAt).Round(time.Second), because(c.Failure))
	}
	for _, p := range c.Problems {
		fmt.Fprintf(w, "WARNING: configured %s %s %s\n", strings.ReplaceAll(string(p.Kind), "_", " "), p.Name, p.Message)
	}
	t := tabwriter.NewWriter(w, 2, 4, 2, ' ', 0)
	fmt.Fprintf(t, "TYPE\tCORES\tMEMORY\tDISK\tCPU\tLOCATION\t%s/MONTH\tGROSS\t%s/HOUR\tSTATE\n", deref(c.Currency), deref(c.Currency))
	for _, s := range c.ServerTypes {
		for _, at := range s.Locations {
			if location != "" && at.Location != location {
				continue
			}
			fmt.Fprintf(t, "%s\t%d\t%g GB\t%d GB\t%s %s\t%s\t%s\t%s\t%s\t%s\n", s.Name, s.Cores, s.MemoryGb, s.DiskGb, s.Cpu, s.Architecture, at.Location,
				at.Price.Monthly.Net, at.Price.Monthly.Gross, at.Price.Hourly.Net, offerState(at, now))
		}
	}
	fmt.Fprintf(t, "\nIMAGE\tID\tKIND\tARCH\tDISK\tSTATE\n")
	for _, i := range c.Images {
		state := ""
		if i.DeprecatedAt != nil {
			state = "deprecated"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%g GB\t%s\n", deref(i.Name), i.Id, i.Kind, i.Architecture, i.DiskGb, state)
	}
	if c.VolumeGbMonth != nil && c.ImageGbMonth != nil {
		fmt.Fprintf(t, "\nvolume, GB and month\t%s\nsnapshot, GB and month\t%s\n", c.VolumeGbMonth.Net, c.ImageGbMonth.Net)
	}
	for _, l := range c.Locations {
		if l.Ipv4 != nil && (location == "" || l.Name == location) {
			fmt.Fprintf(t, "IPv4 address in %s, month\t%s\n", l.Name, l.Ipv4.Monthly.Net)
		}
	}
	return t.Flush()
}

func because(failure *string) string {
	if failure == nil {
		return ""
	}
	return " (" + *failure + ")"
}

func offerState(at api.CatalogOffer, now time.Time) string {
	switch {
	case at.UnavailableAfter != nil && !now.Before(*at.UnavailableAfter):
		return "retired"
	case at.UnavailableAfter != nil:
		return "deprecated, goes on " + at.UnavailableAfter.Format(time.DateOnly)
	case !at.Available:
		return "out of stock"
	}
	return "available"
}

// costOf is what something is charged, for people.
func costOf(c *api.Cost) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s per month (%s gross), for %s", c.Monthly.Net, c.Currency, c.Monthly.Gross, strings.Join(c.Parts, ", "))
}
