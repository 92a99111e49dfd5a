package main

import (
	"cmp"
	"fmt"
	"net/http"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/objects"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/tenant"
)

func newImportBackupsCommand() *cobra.Command {
	apply := false
	cmd := &cobra.Command{
		Use: "import-backups", Short: "Write the rows of backups that are in the bucket and not in the database",
		Long: "After the database was lost, or restored to an earlier time: list the bucket of backups, check each manifest, and write the rows that the database lacks, " +
			"of backups and of tenants of which nothing else is known. Run it with a worker's settings and keys. Without --apply nothing is written.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := newProcess(cmd.Context(), "import-backups")
			if err != nil {
				return err
			}
			defer p.pool.Close()
			backups, err := newImport(p)
			if err != nil {
				return err
			}
			found, err := backups.ImportBackups(cmd.Context(), p.db, apply)
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
		},
	}
	cmd.Flags().BoolVar(&apply, "apply", false, "write the rows")
	return cmd
}

// newImport has what reads the bucket and believes its manifests.
func newImport(p *process) (*activities.StoredBackups, error) {
	out := &activities.StoredBackups{Settings: activities.StoredBackupSettings{Environment: p.cfg.Environment}, Log: p.log}
	vault, err := token.OpenSealing(p.cfg.KeysDir, token.SealBackups)
	if err != nil || p.cfg.Backups.Endpoint == "" {
		return out, err
	}
	storage, err := newStorage(p.cfg.Backups, nil)
	out.Objects, out.Vault = storage, vault
	return out, err
}

// newStorage reaches the storage of backups.
func newStorage(s config.Backups, over http.RoundTripper) (*objects.Store, error) {
	storage, err := objects.New(objects.Config{Endpoint: s.Endpoint, Bucket: s.Bucket, Region: s.Region, AccessKey: s.AccessKey, SecretKey: s.SecretKey, PathStyle: s.PathStyle, Transport: over})
	if err != nil {
		return nil, fmt.Errorf("PREGO_BACKUP_…: %w", err)
	}
	return storage, nil
}
