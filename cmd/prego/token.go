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

// newTokenCreateCommand makes the first token, before there is a caller of the API.
func newTokenCreateCommand() *cobra.Command {
	var name, role, org string
	var ttl time.Duration
	create := &cobra.Command{
		Use: "create", Long: "Print a new token of a service account of the installation, which is created with a grant unless it is there. It needs\n" +
			"DATABASE_URL and no token: it makes the first one. prego service-account token makes all others.", Short: "Create a token on the control plane's host, without the API", Args: cobra.NoArgs,
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
	return create
}
