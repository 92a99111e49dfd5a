package main

import (
	"cmp"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/prego/prego/app"
	"github.com/prego/prego/tenant"
)

func newImportBackupsCommand() *cobra.Command {
	apply := false
	cmd := &cobra.Command{
		Use: "import-backups", Short: "Write the rows of backups that are in the bucket and not in the database",
		Long: "After the database was lost, or restored to an earlier time: list the bucket of backups, check each manifest, and write the rows that the database lacks, " +
			"of backups, and of tenants without any other record. Run it with a worker's settings and keys. Without --apply nothing is written.",
		Args: cobra.NoArgs,
		RunE: withOptions(func(cmd *cobra.Command, o app.Options) error {
			found, err := app.ImportBackups(cmd.Context(), o, apply)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "OF\tNAME\tBACKUP\tOUTCOME\tMESSAGE")
			n := make(map[tenant.ImportOutcome]int)
			for _, b := range found {
				n[b.Outcome]++
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", cmp.Or(string(b.TenantID), string(b.VolumeID)), b.Slug, b.BackupID, b.Outcome, b.Message)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			would := ""
			if !apply {
				would = "; nothing was written: --apply writes it"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d known, %d imported, %d refused%s\n", n[tenant.ImportKnown], n[tenant.ImportBackup]+n[tenant.ImportTenant]+n[tenant.ImportVolume], n[tenant.ImportRefused], would)
			if n[tenant.ImportRefused] > 0 {
				return fmt.Errorf("%d backups can't be imported", n[tenant.ImportRefused])
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&apply, "apply", false, "write the rows")
	return cmd
}
