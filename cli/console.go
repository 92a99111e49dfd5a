package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

func consoleCommand(c *CLI) *cobra.Command {
	return c.alone(Action[api.ConsoleLogin]{
		Use: "console", Short: "Print a link that logs you in to the console, once", Path: "/v1/console-logins",
		Long:  "Print a link that logs you in to the console, once and within five minutes. The session ends with your token, after eight hours at the latest.",
		Table: Table[api.ConsoleLogin]{ID: "path", Columns: "path, expires_at"},
		Say:   func(in *call, l api.ConsoleLogin) string { return fmt.Sprint(in.client.Base, l.Path) },
	})
}
