package main

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/tenant"
)

func newRestoreCheckCommand() *cobra.Command {
	hosts := true
	cmd := &cobra.Command{
		Use: "check", Short: "Compare a restored database with the provider, Temporal and hosts, and say what will happen",
		Long: "After the database was restored to an earlier moment, and before any worker runs: list in what the database differs from the provider's list, from Temporal's open runs and " +
			"from what hosts run, and what the reconciliation will do about each. Run it with a worker's settings and keys. Nothing is changed. It ends with status 1 if something that exists would be destroyed.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			p, err := newProcess(ctx, "restore-check")
			if err != nil {
				return err
			}
			defer p.close()
			runs, err := p.runs()
			if err != nil {
				return err
			}
			defer runs.Temporal.Close()
			servers, fleet, err := buildActivities(ctx, p, runs)
			if err != nil {
				return err
			}
			if fleet.Images, err = newImages(p, servers, runs); err != nil {
				return err
			}
			var ask *activities.HostChecks
			if hosts {
				if ask, err = newHostChecks(p, servers); err != nil {
					return err
				}
			}
			found, err := activities.CheckRestore(ctx, fleet, runs, ask)
			if err != nil {
				return err
			}
			destroys := 0
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
			if len(found) > 0 {
				fmt.Fprintln(w, "WHERE\tWHAT\tDIFFERENCE\tWHAT WILL HAPPEN")
			}
			for _, d := range found {
				mark := ""
				if d.Destroys {
					destroys++
					mark = "! "
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s%s\n", d.Where, d.What, d.Is, mark, d.Then)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d differences, %d of which destroy something (!)\n", len(found), destroys)
			if destroys > 0 {
				return fmt.Errorf("%d things that exist would be destroyed: set PREGO_ORPHAN_MAX_PER_RUN=0, and see docs/production.md", destroys)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&hosts, "hosts", true, "ask the hosts of active servers, too")
	return cmd
}

// newHostChecks asks hosts without a record of it: nothing is written.
func newHostChecks(p *process, servers *activities.Servers) (*activities.HostChecks, error) {
	ca, err := pki.Open(p.cfg.KeysDir, p.cfg.Environment)
	if err != nil {
		return nil, err
	}
	agents, err := newAgents(p, ca)
	if err != nil {
		return nil, err
	}
	return &activities.HostChecks{
		Containers: activities.CompareContainers(servers),
		Rows: func(ctx context.Context) ([]tenant.HostSites, error) {
			return p.db.HostSites(ctx, p.cfg.Tenants.SiteDomain)
		},
		Sites: func(ctx context.Context, id prego.ServerID, addr string) (sites []string, err error) {
			out, err := agents.Exec(ctx, id, addr, wire.ExecRequest{WorkflowID: "restore-check", Kind: wire.KindBench, Args: []string{"list-sites"}, TimeoutSeconds: 10})
			if err != nil {
				return nil, err
			}
			if out.ExitCode != 0 {
				return nil, fmt.Errorf("bench list-sites: exit status %d: %s", out.ExitCode, out.StderrTruncated)
			}
			return sites, json.Unmarshal([]byte(out.StdoutTruncated), &sites)
		},
	}, nil
}
