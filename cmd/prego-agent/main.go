// Command prego-agent runs on every host.
//
//	prego-agent bootstrap [--root DIR] [--addr IP]   exchange the bootstrap token for an identity
//	prego-agent run       [--root DIR] [--addr IP]   send heartbeats and serve commands
//	prego-agent version
//
// Exit status: 0 done or asked to stop, 1 failed (trying again may help), 2 wrong
// usage, 3 the bootstrap token was refused for good, 4 no identity. bootstrap goes on
// trying until it is asked to stop; run stays up when the identity is revoked, and
// asks again every five minutes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/prego/prego/agent"
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	if args[0] == "version" {
		fmt.Println(version)
		return 0
	}
	if args[0] == agent.GuardVerb { // started by the agent itself, beside each command
		agent.Guard()
		return 0
	}
	if args[0] != "bootstrap" && args[0] != "run" {
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	flags := flag.NewFlagSet("prego-agent "+args[0], flag.ContinueOnError)
	root := flags.String("root", "/", "directory that stands for the host's root")
	addr := flags.String("addr", "", "address to listen on and to call from; empty for all")
	switch err := flags.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(os.Stderr, "prego-agent %s takes no argument %q\n", args[0], flags.Arg(0))
		return 2
	case *addr != "" && net.ParseIP(*addr) == nil:
		fmt.Fprintf(os.Stderr, "--addr %q is not an IP address\n", *addr)
		return 2
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := do(ctx, args[0], *root, *addr, log)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, agent.ErrRefused):
		log.Error("bootstrap refused", "error", err.Error())
		return 3
	case errors.Is(err, agent.ErrNoIdentity):
		log.Error("no identity", "error", err.Error())
		return 4
	case ctx.Err() != nil:
		return 0
	}
	log.Error("failed", "error", err.Error())
	return 1
}

const usage = "usage: prego-agent bootstrap|run|version [--root DIR] [--addr IP]"

func do(ctx context.Context, verb, root, addr string, log *slog.Logger) error {
	host, err := agent.OpenHost(root)
	if err != nil {
		return err
	}
	if verb == "bootstrap" {
		return host.Bootstrap(ctx, addr, version, log)
	}
	a, err := agent.New(host, addr, version, log)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}
