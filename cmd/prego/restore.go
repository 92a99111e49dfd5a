package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/prego/prego/app"
	"github.com/prego/prego/cli"
)

func newRestoreCheckCommand() *cobra.Command {
	hosts := true
	cmd := &cobra.Command{
		Use: "check", Short: "Show what a restored database lacks, and in what it differs from the world",
		Long: `After the database was restored to an earlier moment: list what the redo log in the storage has that
the database lacks. Once it lacks nothing, list in what the database differs from the provider's list, from
Temporal's open runs and from what hosts run, and what the reconciliation will do about each. Run it with a
worker's settings and keys. Nothing is changed. It ends with status 1 if the database lacks something, or if
something that exists would be destroyed.`,
		Args: cobra.NoArgs,
		RunE: withOptions(func(cmd *cobra.Command, o app.Options) error {
			out := cmd.OutOrStdout()
			plan, err := app.PlanRestore(cmd.Context(), o)
			if err != nil {
				return err
			}
			if plan.Lacks() {
				if err := printRestore(out, plan); err != nil {
					return err
				}
				return fmt.Errorf("the database lacks %d entries of its redo log: prego restore apply completes it",
					len(plan.Entries))
			}
			found, err := app.CheckRestore(cmd.Context(), o, hosts)
			if err != nil {
				return err
			}
			destroys := 0
			w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
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
			fmt.Fprintf(out, "%d differences, %d of which destroy something (!)\n", len(found), destroys)
			if destroys > 0 {
				return fmt.Errorf("%d things that exist would be destroyed: set PREGO_ORPHAN_MAX_PER_RUN=0, "+
					"and see docs/restore-control-plane.md", destroys)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&hosts, "hosts", true, "also ask the hosts of active servers")
	return cmd
}

func newRestoreApplyCommand() *cobra.Command {
	var asIs, yes bool
	cmd := &cobra.Command{
		Use: "apply", Short: "Complete a restored database from its redo log",
		Annotations: map[string]string{cli.Harms: "true"},
		Long: `After the database was restored to an earlier moment: bring every row to where the redo log in the
storage has it, and end Temporal's open runs, since the rows decide what continues. Run it with a worker's
settings and keys. Hosts and the provider are not asked for anything. Workers continue within a second.`,
		Args: cobra.NoArgs,
		RunE: withOptions(func(cmd *cobra.Command, o app.Options) error {
			out := cmd.OutOrStdout()
			if asIs {
				fmt.Fprintln(out, "What happened after the restored moment is forgotten: sites of tenants that moved or "+
					"were made since have no row, what was deleted since is missing, and revoked tokens and "+
					"grants are accepted again.")
			} else {
				plan, err := app.PlanRestore(cmd.Context(), o)
				if err != nil {
					return err
				}
				if err := printRestore(out, plan); err != nil {
					return err
				}
				if !plan.Lacks() {
					return nil
				}
			}
			if !yes {
				fmt.Fprint(out, "Continue? [y/N] ")
				answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
				if a := strings.ToLower(strings.TrimSpace(answer)); err != nil || a != "y" && a != "yes" {
					return fmt.Errorf("nothing was changed; --yes answers the question")
				}
			}
			done, err := app.ApplyRestore(cmd.Context(), o, asIs)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "applied %d entries, %d changed rows; ended %d runs, which start again from the rows\n",
				len(done.Entries), len(done.Changes), done.Ended)
			return nil
		}),
	}
	cmd.Flags().BoolVar(&asIs, "as-is", false, "take the database as it is, without what the redo log has")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// printRestore says what a restored database lacks: things that operators know by their names, and how much else.
func printRestore(out io.Writer, r app.Restore) error {
	if !r.Lacks() {
		fmt.Fprintf(out, "the database lacks nothing of its redo log, whose newest entry is %d\n", r.Newest)
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	others := 0
	for _, c := range r.Changes {
		if c.Name == "" {
			others++
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", strings.ReplaceAll(c.Table, "_", " "), c.Name, c.Is)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	first, last := "-", "-"
	if n := len(r.Entries); n > 0 {
		first, last = r.Entries[0].At.Format("2006-01-02 15:04:05Z"), r.Entries[n-1].At.Format("2006-01-02 15:04:05Z")
	}
	_, err := fmt.Fprintf(out, "and %d other rows: entries %d to %d of the redo log, from %s to %s\n",
		others, r.State.Number+1, r.Newest, first, last)
	return err
}
