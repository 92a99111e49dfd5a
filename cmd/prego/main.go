// Command prego is the whole control plane: the API, the agent gateway, the
// worker, the operators' verbs, and a development stack. It is the only place
// that wires the rooms together.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use: "prego", Short: "Provision the servers of a multi-tenant SaaS, durably", Version: version,
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(
		newAPICommand(), newGatewayCommand(), newWorkerCommand(), newMigrateCommand(), newKeysCommand(), newTokenCommand(),
		newServerCommand(), newExecCommand(), newContainerCommand(), newTenantCommand(), newPlacementCommand(), newPoolCommand(), newPlacementPoolCommand(), newFleetCommand(), newPolicyCommand(), newOrgCommand(), newGroupCommand(), newInstanceCommand(), newRouteCommand(), newIPv4Command(), newVolumeCommand(), newSnapshotCommand(), newRestoreCommand(), newRegistryCommand(), newQuotaCommand(), newAppCommand(), newEnvCommand(), newScalingCommand(), newPlanCommand(), newSimulateCommand(), newReconcileCommand(), newSimCommand(), newDevCommand(), newStandInCommand(), newHealthCommand(),
		newCatalogCommand(), newImageCommand(),
	)
	err := root.ExecuteContext(ctx)
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		if exit.err != nil {
			fmt.Fprintln(os.Stderr, "prego:", exit.err)
		}
		return exit.code
	case err != nil:
		fmt.Fprintln(os.Stderr, "prego:", err)
		return 1
	}
	return 0
}

// exitError ends the program with a status: 1 failed, 2 refused, 3 the outcome
// waited for was a failure.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return fmt.Sprint(e.err) }

func (e *exitError) Unwrap() error { return e.err }
