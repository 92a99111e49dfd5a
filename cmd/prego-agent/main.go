// Command prego-agent runs on every host.
//
//	prego-agent bootstrap [--root DIR] [--addr IP]   exchange the bootstrap token for an identity
//	prego-agent run       [--root DIR] [--addr IP]   send heartbeats and take commands from the network
//	prego-agent exec      [--root DIR] [--agent-user NAME]   run the commands that run hands on
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
	"slices"
	"strconv"
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
	if !slices.Contains([]string{"bootstrap", "run", "exec"}, args[0]) {
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	flags := flag.NewFlagSet("prego-agent "+args[0], flag.ContinueOnError)
	root := flags.String("root", "/", "directory that stands for the host's root")
	addr := flags.String("addr", "", "address to listen on and to call from; empty for all")
	agentUser := flags.String("agent-user", "", "exec: the user that run has; empty for its own")
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
	err := do(ctx, args[0], *root, *addr, *agentUser, log)
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

const usage = "usage: prego-agent bootstrap|run|exec|version [--root DIR] [--addr IP] [--agent-user NAME]"

func do(ctx context.Context, verb, root, addr, agentUser string, log *slog.Logger) error {
	host, err := agent.OpenHost(root)
	if err != nil {
		return err
	}
	if verb == "bootstrap" {
		return host.Bootstrap(ctx, addr, version, log)
	}
	if verb == "exec" {
		return execute(ctx, host, agentUser, log)
	}
	a, err := agent.New(host, addr, version, log)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// execute runs commands. A service manager may have opened the socket, so that
// only it decides who may connect; its environment says so.
func execute(ctx context.Context, host *agent.Host, agentUser string, log *slog.Logger) error {
	e, err := agent.NewExecutor(host, agentUser, log)
	if err != nil {
		return err
	}
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) || os.Getenv("LISTEN_FDS") != "1" {
		l, err := host.ListenExec()
		if err != nil {
			return err
		}
		return e.Run(ctx, l)
	}
	f := os.NewFile(3, "socket") // the first that is passed
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	_ = f.Close() // commands must not inherit it
	return e.Run(ctx, l)
}
