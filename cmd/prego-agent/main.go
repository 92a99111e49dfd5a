// Command prego-agent runs on every host.
//
//	prego-agent bootstrap [--root DIR] [--addr IP]   exchange the bootstrap token for an identity
//	prego-agent run       [--root DIR] [--addr IP]   send heartbeats and take commands from the network
//	prego-agent exec      [--root DIR] [--caller NAME]   run the commands that run hands on
//	prego-agent bench     [--root DIR] [--caller NAME] [--docker ADDR] [--lock FILE]   run bench in its container for exec
//	prego-agent prepare   [--root DIR] [--group NAME]    make what the containers of the host need
//	prego-agent version
//
// Inside containers, and beside commands, it is also:
//
//	prego-agent supervise [--for DURATION] -- PROGRAM ARGUMENTS   run a program and end with all that it started
//	prego-agent site [--root DIR] VERB ARGUMENTS   run a verb on Frappe's sites; the first line of its input is secrets
//	prego-agent configure --db HOST:PORT --redis-cache HOST:PORT --redis-queue HOST:PORT [--redis-password-file FILE]   write what all sites have in common
//	prego-agent healthy worker|scheduler   check one of Frappe's processes that listen nowhere
//	prego-agent site-owner SITE [TENANT]   print a site's owner; with a tenant, make it that
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
	"strings"
	"syscall"

	"github.com/prego/prego/agent"
	"github.com/prego/prego/agent/site"
	"github.com/prego/prego/agent/wire"
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
	switch args[0] {
	case agent.SuperviseVerb:
		return agent.Supervise(args[1:])
	case agent.SiteOwnerVerb:
		return siteOwner(args[1:])
	case site.Verb:
		return site.Main(args[1:])
	case site.HealthyVerb:
		return site.HealthyMain(args[1:])
	case site.ConfigureVerb:
		return site.ConfigureMain(args[1:])
	}
	if !slices.Contains([]string{"bootstrap", "run", "exec", "bench", "prepare"}, args[0]) {
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	var o options
	flags := flag.NewFlagSet("prego-agent "+args[0], flag.ContinueOnError)
	flags.StringVar(&o.root, "root", "/", "directory that stands for the host's root")
	flags.StringVar(&o.addr, "addr", "", "address to listen on and to call from; empty for all")
	flags.StringVar(&o.caller, "caller", "", "exec, bench: the user that may ask; empty for its own")
	flags.StringVar(&o.docker, "docker", "unix:///run/docker.sock", "bench: dockerd's address")
	flags.StringVar(&o.lock, "lock", "", "bench: a file that is locked, shared, while something runs")
	flags.StringVar(&o.group, "group", "", "prepare: the group of the process that runs commands; empty for its own")
	switch err := flags.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(os.Stderr, "prego-agent %s takes no argument %q\n", args[0], flags.Arg(0))
		return 2
	case o.addr != "" && net.ParseIP(o.addr) == nil:
		fmt.Fprintf(os.Stderr, "--addr %q is not an IP address\n", o.addr)
		return 2
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := do(ctx, args[0], o, log)
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

const usage = "usage: prego-agent bootstrap|run|exec|bench|prepare|version [--root DIR] [--addr IP] [--caller NAME] [--docker ADDR] [--lock FILE] [--group NAME]"

type options struct{ root, addr, caller, docker, lock, group string }

func do(ctx context.Context, verb string, o options, log *slog.Logger) error {
	host, err := agent.OpenHost(o.root)
	if err != nil {
		return err
	}
	switch verb {
	case "bootstrap":
		return host.Bootstrap(ctx, o.addr, version, log)
	case "prepare":
		return host.Prepare(o.group)
	case "exec":
		e, err := agent.NewExecutor(host, o.caller, log)
		if err != nil {
			return err
		}
		return listen(ctx, host, wire.ExecSocket, e.Run)
	case "bench":
		b, err := agent.NewBenchHelper(host, o.caller, o.docker, o.lock, os.Getenv("CREDENTIALS_DIRECTORY"), log)
		if err != nil {
			return err
		}
		return listen(ctx, host, wire.BenchSocket, b.Run)
	}
	a, err := agent.New(host, o.addr, version, log)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// siteOwner runs where the sites are, which may be a container.
func siteOwner(args []string) int {
	if len(args) < 1 || len(args) > 2 {
		fmt.Fprintln(os.Stderr, "usage: prego-agent site-owner SITE [TENANT]")
		return 2
	}
	owner, err := (&agent.Host{Root: "/"}).SiteOwner(args[0], strings.Join(args[1:], ""))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(owner)
	return 0
}

// listen serves on a socket. If a service manager has opened it, so that it alone
// decides who may connect, the environment says so.
func listen(ctx context.Context, host *agent.Host, socket string, serve func(context.Context, net.Listener) error) error {
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) || os.Getenv("LISTEN_FDS") != "1" {
		l, err := host.Listen(socket)
		if err != nil {
			return err
		}
		return serve(ctx, l)
	}
	f := os.NewFile(3, "socket") // the first that is passed
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	_ = f.Close() // commands must not inherit it
	return serve(ctx, l)
}
