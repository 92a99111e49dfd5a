package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego"
	"github.com/prego/prego/app"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/token"
)

func newTokenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Tokens for callers of the API"}
	var subject, role string
	var ttl time.Duration
	create := &cobra.Command{
		Use: "create", Short: "Print a token signed with the keys in PREGO_KEYS_DIR", Args: cobra.NoArgs,
		RunE: withConfig(func(cmd *cobra.Command, cfg config.Config, _ []string) error {
			tokens, err := app.APITokens(cfg)
			if err != nil {
				return err
			}
			raw, err := tokens.Issue(subject, token.Role(role), ttl)
			if err != nil {
				return err
			}
			if err := app.NoteToken(cmd.Context(), cfg, subject); err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "the token is not in the audit:", prego.Redact(err.Error()))
			}
			fmt.Fprintln(cmd.OutOrStdout(), raw)
			return nil
		}),
	}
	create.Flags().StringVar(&subject, "subject", "", "subject of the token; shown in the audit")
	create.Flags().StringVar(&role, "role", "viewer", "operator or viewer")
	create.Flags().DurationVar(&ttl, "ttl", 8*time.Hour, "how long it is valid")
	_ = create.MarkFlagRequired("subject")
	cmd.AddCommand(create)
	return cmd
}
