package main

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/store"
)

func newTokenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Tokens for callers of the API"}
	var subject, role string
	var ttl time.Duration
	create := &cobra.Command{
		Use: "create", Short: "Print a token signed with the keys in PREGO_KEYS_DIR", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.FromEnvironment()
			if err != nil {
				return err
			}
			tokens, err := newAPITokens(cfg)
			if err != nil {
				return err
			}
			raw, err := tokens.Issue(subject, token.Role(role), ttl)
			if err != nil {
				return err
			}
			if err := noteToken(cmd.Context(), cfg, subject); err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "the token is not in the audit:", prego.Redact(err.Error()))
			}
			fmt.Fprintln(cmd.OutOrStdout(), raw)
			return nil
		},
	}
	create.Flags().StringVar(&subject, "subject", "", "subject of the token; shown in the audit")
	create.Flags().StringVar(&role, "role", "viewer", "operator or viewer")
	create.Flags().DurationVar(&ttl, "ttl", 8*time.Hour, "how long it is valid")
	_ = create.MarkFlagRequired("subject")
	cmd.AddCommand(create)
	return cmd
}

// noteToken writes an entry to the audit, where there is a database: who has the keys can make
// tokens without one.
func noteToken(ctx context.Context, cfg config.Config, subject string) error {
	if cfg.DatabaseURL == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	pool, err := store.Open(ctx, cfg.DatabaseURL, 1, nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	by := prego.AuditSource{Actor: "unknown", Role: "host", Operation: "prego token create"}
	if u, err := user.Current(); err == nil {
		by.Actor = u.Username
	}
	by.From, _ = os.Hostname()
	return store.New(pool).NoteRequest(prego.WithAuditSource(ctx, by), "token", subject, "")
}
