// Command prego-lab plays the world around prego on one machine: the development stack, the demo and the
// simulated cloud. It is not shipped.
package main

import (
	"context"
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
		Use: "prego-lab", Short: "Run prego on this machine, with a simulated cloud", Version: version,
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(newDevCommand(), newDemoCommand(), newSimCommand(), newStandInCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "prego-lab:", err)
		return 1
	}
	return 0
}
