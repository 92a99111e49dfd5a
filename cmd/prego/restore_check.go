package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/prego/prego/app"
)

func newRestoreCheckCommand() *cobra.Command {
	hosts := true
	cmd := &cobra.Command{
		Use: "check", Short: "Compare a restored database with the provider, Temporal and hosts, and show what will happen",
		Long: "After the database was restored to an earlier moment, and before any worker runs: list in what the database differs from the provider's list, from Temporal's open runs and " +
			"from what hosts run, and what the reconciliation will do about each. Run it with a worker's settings and keys. Nothing is changed. It ends with status 1 if something that exists would be destroyed.",
		Args: cobra.NoArgs,
		RunE: withOptions(func(cmd *cobra.Command, o app.Options) error {
			found, err := app.CheckRestore(cmd.Context(), o, hosts)
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
		}),
	}
	cmd.Flags().BoolVar(&hosts, "hosts", true, "also ask the hosts of active servers")
	return cmd
}
