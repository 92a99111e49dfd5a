// Command prego is the whole control plane: the API, the agent gateway, the worker, and the
// operators' verbs. Package app wires what it starts.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/prego/prego/cli"
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return cli.Report(os.Stderr, newRoot().ExecuteContext(ctx))
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use: "prego", Short: "Provision the servers of a multi-tenant SaaS, durably", Version: version,
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(
		newAPICommand(), newGatewayCommand(), newWorkerCommand(), newMigrateCommand(), newKeysCommand(),
		newPlanCommand(), newSimulateCommand(), newImportBackupsCommand(),
	)
	verbs := cli.New(os.Getenv)
	root.AddCommand(newHealthCommand(verbs.API))
	for _, cmd := range root.Commands() {
		cmd.GroupID = "processes"
	}
	verbs.AddTo(root)
	root.AddGroup(&cobra.Group{
		ID: "processes", Title: "Processes of the control plane, and commands that need no API:",
	})
	if restore, _, err := root.Find([]string{"restore"}); err == nil {
		restore.AddCommand(newRestoreCheckCommand(), newRestoreApplyCommand()) // needs a worker's keys, and no API
	}
	if token, _, err := root.Find([]string{"token"}); err == nil {
		token.AddCommand(newTokenCreateCommand())
	}
	if of, _, err := root.Find([]string{"access"}); err == nil && of != root {
		of.AddCommand(accessCommands()...) // they need a database, and no API
	} else {
		of := &cobra.Command{Use: "access", Short: "Let the first admin in, and admins who have lost their way in", GroupID: "processes"}
		of.AddCommand(accessCommands()...)
		root.AddCommand(of)
	}
	return root
}
