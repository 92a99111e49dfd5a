package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/app"
	"github.com/prego/prego/internal/config"
)

func newTokenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Tokens for callers of the API"}
	var name, role, org string
	var ttl time.Duration
	create := &cobra.Command{
		Use: "create", Short: "Print a new token of a service account of the installation", Args: cobra.NoArgs,
		RunE: withConfig(func(cmd *cobra.Command, cfg config.Config, _ []string) error {
			raw, err := app.NewToken(cmd.Context(), cfg, name, role, prego.OrgID(org), ttl)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), raw)
			return nil
		}),
	}
	create.Flags().StringVar(&name, "name", "", "name of the service account and the token; shown in the audit")
	create.Flags().StringVar(&role, "role", "support", "access role: "+strings.Join(access.RoleNames(), ", "))
	create.Flags().StringVar(&org, "org", "", "org that the role is granted on, with all below it; without it the installation")
	create.Flags().DurationVar(&ttl, "ttl", 8*time.Hour, "how long it is valid")
	_ = create.MarkFlagRequired("name")
	cmd.AddCommand(create)
	return cmd
}
