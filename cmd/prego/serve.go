package main

import (
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/prego/prego/app"
)

// withOptions runs f with what the environment makes of this program.
func withOptions(f func(cmd *cobra.Command, o app.Options) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		o, err := app.FromEnvironment(version)
		if err != nil {
			return err
		}
		return f(cmd, o)
	}
}

func newAPICommand() *cobra.Command {
	return &cobra.Command{
		Use: "api", Short: "Serve callers and operators", Args: cobra.NoArgs,
		RunE: withOptions(func(cmd *cobra.Command, o app.Options) error { return app.RunAPI(cmd.Context(), o) }),
	}
}

// gatewayGC replaces Go's 100: most of the gateway's heap is the TLS state of idle
// connections, so a garbage as large as that would be many requests'.
const gatewayGC = 50

func newGatewayCommand() *cobra.Command {
	return &cobra.Command{
		Use: "agentgw", Short: "Serve agents", Args: cobra.NoArgs,
		RunE: withOptions(func(cmd *cobra.Command, o app.Options) error {
			if _, set := os.LookupEnv("GOGC"); !set {
				debug.SetGCPercent(gatewayGC)
			}
			return app.RunGateway(cmd.Context(), o)
		}),
	}
}

func newWorkerCommand() *cobra.Command {
	var queues []string
	cmd := &cobra.Command{
		Use: "worker", Short: "Run workflows and their steps", Args: cobra.NoArgs,
		RunE: withOptions(func(cmd *cobra.Command, o app.Options) error { return app.RunWorker(cmd.Context(), o, queues) }),
	}
	cmd.Flags().StringSliceVar(&queues, "queues", nil, "task queues to serve: main, long, periodic (default all)")
	return cmd
}

func newMigrateCommand() *cobra.Command {
	return &cobra.Command{
		Use: "migrate", Short: "Bring the database to the newest schema", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return app.Migrate(cmd.Context()) },
	}
}
