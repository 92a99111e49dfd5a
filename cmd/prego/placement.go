package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

func newPlacementCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "placement", Short: "Try placements, and force them"}
	output := outputFlag(cmd)
	cmd.AddCommand(placementSimulate(), placementOverride(output))
	return cmd
}

func placementSimulate() *cobra.Command {
	return &cobra.Command{
		Use: "simulate FILE", Short: "Decide on requests without writing anything, one JSON line each; - is standard input",
		Long: `FILE holds {"requests": […]} and, to decide over another fleet than the live one, "fleet".`, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var b []byte
			if args[0] == "-" {
				b, err = io.ReadAll(cmd.InOrStdin())
			} else {
				b, err = os.ReadFile(args[0])
			}
			if err != nil {
				return err
			}
			if b = bytes.TrimSpace(b); !json.Valid(b) {
				return &exitError{code: 2, err: errors.New(args[0] + " is not one valid JSON document")}
			}
			var out api.SimulationResult
			if err := c.do(cmd.Context(), http.MethodPost, "/v1/placements/simulate", nil, json.RawMessage(b), &out); err != nil {
				return err
			}
			enc := json.NewEncoder(cmd.OutOrStdout())
			enc.SetEscapeHTML(false)
			for _, line := range out.Results {
				if err := enc.Encode(line); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func placementOverride(output *string) *cobra.Command {
	var in tenant.PlacementOverride
	cmd := &cobra.Command{
		Use: "override TENANT_ID", Short: "Force a place for a tenant that has none; capacity is not looked at, invariants hold", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			in.TenantID = args[0]
			var line placement.Line
			if err := c.do(cmd.Context(), http.MethodPost, "/internal/placement-overrides", nil, in, &line); err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), line)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 2, 4, 2, ' ', 0)
			rows := [][2]string{
				{"outcome", string(line.Outcome)},
				{"place", fmt.Sprintf("%s, shard %s, pool %s, site %s", line.AppServerID, line.DBShardID, line.RedisPoolID, line.PoolSiteID)},
			}
			for _, row := range append(rows, explanationRows(line.Decision)...) {
				fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
			}
			return w.Flush()
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.ForceAppServerID, "app-server", "", "the app server or node")
	f.StringVar(&in.ForceDBShardID, "db-shard", "", "the DB shard")
	f.BoolVar(&in.IgnoreConstraint, "ignore-constraint", false, "also when the tenant's constraint does not allow the server")
	f.StringVar(&in.Reason, "reason", "", "why, for the audit")
	_ = cmd.MarkFlagRequired("reason")
	return cmd
}
