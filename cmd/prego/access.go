package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/app"
	"github.com/prego/prego/internal/config"
)

// accessCommands are those for who is at the control plane's host.
func accessCommands() []*cobra.Command {
	var name, who string
	link := &cobra.Command{
		Use: "link", Short: "Print a link with which a new operator registers a passkey, once and within an hour", Args: cobra.NoArgs,
		Long: "Print a link with which a new operator registers a passkey, once and within an hour: the first one of an\n" +
			"installation, or one more. With --user the link is for a known user who has lost their passkeys.\n\n" +
			"It needs DATABASE_URL, and no API. The audit names who was logged in to this host.",
		RunE: withConfig(func(cmd *cobra.Command, cfg config.Config, _ []string) error {
			url, until, err := app.NewJoinLink(cmd.Context(), cfg, name, who)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), url)
			fmt.Fprintf(cmd.ErrOrStderr(), "good once, until %s\n", until.Format(time.RFC3339))
			hintAt(cmd)
			return nil
		}),
	}
	link.Flags().StringVar(&name, "name", "", "name of the new operator, who may change it")
	link.Flags().StringVar(&who, "user", "", "id or name of a known user")
	link.MarkFlagsMutuallyExclusive("name", "user")

	var end bool
	glass := &cobra.Command{
		Use: "break-glass", Short: "Print a link that logs in as an operator for at most 15 minutes, without issuer and passkey", Args: cobra.NoArgs,
		Long: "Print a link that logs in once as an operator, for when the issuer is down or passkeys are lost. Link and login\n" +
			"end 15 minutes after this command. Meanwhile prego status shows it as critical.\n\n" +
			"It needs DATABASE_URL, and no API. The audit names who was logged in to this host.",
		RunE: withConfig(func(cmd *cobra.Command, cfg config.Config, _ []string) error {
			if end {
				err := app.EndBreakGlass(cmd.Context(), cfg)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), "all break-glass links and logins have ended")
				}
				return err
			}
			url, until, err := app.NewBreakGlass(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), url)
			fmt.Fprintf(cmd.ErrOrStderr(), "good once; the login ends at %s\n", until.Format(time.RFC3339))
			hintAt(cmd)
			return nil
		}),
	}
	glass.Flags().BoolVar(&end, "end", false, "end all such links and logins now")
	return []*cobra.Command{link, glass}
}

// hintAt reports that a link may lead to the wrong host.
func hintAt(cmd *cobra.Command) {
	if os.Getenv("PREGO_API_PUBLIC_URL") == "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "PREGO_API_PUBLIC_URL is not set here: the link leads to this host")
	}
}
