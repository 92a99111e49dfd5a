// Command prego-agent runs on every host.
//
//	prego-agent bootstrap [--root DIR] [--addr IP]   exchange the bootstrap token for an identity
//	prego-agent run       [--root DIR] [--addr IP]   send heartbeats and take commands from the network
//	prego-agent exec      [--root DIR] [--caller NAME]   run the commands that run hands on
//	prego-agent bench     [--root DIR] [--caller NAME] [--watcher NAME] [--docker ADDR] [--lock FILE]   run bench in its container for exec, and report instances' containers to run
//	prego-agent devices   [--root DIR] [--caller NAME]   mount volumes and set addresses for exec, as root
//	prego-agent peers     [--root DIR] [--caller NAME]   apply peers documents for run
//	prego-agent firewall  [--root DIR]   reapply the last peers document, at boot
//	prego-agent certs     [--root DIR]   give containers the certificate of databases and caches
//	prego-agent update    [--root DIR] [--caller NAME] [--trial DURATION]   replace the agent by signed releases for run, as root
//	prego-agent patch     [--root DIR] [--caller NAME]   install security updates for exec, as root, until no request comes for a while
//	prego-agent undo      [--root DIR]   at boot, have the agent before back if another one was being tried
//	prego-agent prepare   [--root DIR] [--group NAME]    make what the containers of the host need
//	prego-agent version
//
// Inside containers, and beside commands, it is also:
//
//	prego-agent supervise [--for DURATION] -- PROGRAM ARGUMENTS   run a program and end with all that it started
//	prego-agent hold -- PROGRAM ARGUMENTS   run a program while the control plane confirms this host
//	prego-agent freeze DIRECTORY DURATION   keep a file system from being written to until the input ends
//	prego-agent site [--root DIR] VERB ARGUMENTS   run a verb on Frappe's sites; the first line of its input is secrets
//	prego-agent configure --db HOST:PORT --redis-cache HOST:PORT --redis-queue HOST:PORT [--redis-password-file FILE]   write what all sites have in common
//	prego-agent healthy worker|scheduler   check one of Frappe's processes that listen nowhere
//	prego-agent site-owner SITE [TENANT]   print a site's owner; with a tenant, make it that
//
// Exit status: 0 done or asked to stop, 1 failed (trying again may help), 2 wrong
// usage, 3 the bootstrap token was refused permanently, 4 no identity. bootstrap goes on
// trying until it is asked to stop; run stays up when the identity is revoked, and
// asks again every five minutes.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prego/prego/agent/exec"
	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/online"
	"github.com/prego/prego/agent/rooted"
	"github.com/prego/prego/agent/site"
	"github.com/prego/prego/agent/supervise"
	"github.com/prego/prego/agent/wire"
)

// version is set by the linker.
var version = "dev"

// releaseKeys may sign releases of this program, base64 of Ed25519 public keys, with commas
// between them; set by the linker. Without any it is not updated.
var releaseKeys string

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
	case supervise.Verb:
		return supervise.Main(args[1:])
	case supervise.HoldVerb:
		return supervise.HoldMain(args[1:])
	case rooted.FreezeVerb:
		return rooted.Freeze(args[1:])
	case host.SiteOwnerVerb:
		return siteOwner(args[1:])
	case site.Verb:
		return site.Main(args[1:])
	case site.HealthyVerb:
		return site.HealthyMain(args[1:])
	case site.ConfigureVerb:
		return site.ConfigureMain(args[1:])
	}
	if !slices.Contains([]string{"bootstrap", "run", "exec", "bench", "devices", "prepare", "peers", "firewall", "certs", "update", "undo", "patch"}, args[0]) {
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	var o options
	flags := flag.NewFlagSet("prego-agent "+args[0], flag.ContinueOnError)
	flags.StringVar(&o.root, "root", "/", "directory that stands for the host's root")
	flags.StringVar(&o.addr, "addr", "", "address to listen on and to call from; empty for all")
	flags.StringVar(&o.caller, "caller", "", "exec, bench, devices, peers, update, patch: the user that may ask; empty for its own")
	flags.StringVar(&o.watcher, "watcher", "", "bench: the user that may listen to what containers do; empty for its own")
	flags.StringVar(&o.docker, "docker", "", "bench: dockerd's address; empty for the host's own. run: the same, to watch it without the process bench")
	flags.StringVar(&o.lock, "lock", "", "bench: a file that is locked, shared, while something runs")
	flags.BoolVar(&o.noFirewall, "no-firewall", false, "run: the host has no firewall of its own; peers documents are checked and kept here, and filter nothing")
	flags.DurationVar(&o.trial, "trial", 5*time.Minute, "update: how long a new agent has until the gateway has taken its heartbeats")
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
	case errors.Is(err, rooted.ErrRefused):
		log.Error("bootstrap refused", "error", err.Error())
		return 3
	case errors.Is(err, online.ErrNoIdentity):
		log.Error("no identity", "error", err.Error())
		return 4
	case ctx.Err() != nil:
		return 0
	}
	log.Error("failed", "error", err.Error())
	return 1
}

const usage = "usage: prego-agent bootstrap|run|exec|bench|devices|peers|firewall|certs|update|undo|patch|prepare|version [--root DIR] [--addr IP] [--caller NAME] [--watcher NAME] [--docker ADDR] [--lock FILE] [--group NAME] [--no-firewall] [--trial DURATION]"

// dockerSocket is where dockerd listens on a host.
const dockerSocket = "unix:///run/docker.sock"

type options struct {
	root, addr, caller, watcher, docker, lock, group string

	noFirewall bool
	trial      time.Duration
}

func do(ctx context.Context, verb string, o options, log *slog.Logger) error {
	h, err := host.OpenHost(o.root)
	if err != nil {
		return err
	}
	switch verb {
	case "bootstrap":
		return rooted.Bootstrap(ctx, h, o.addr, version, log)
	case "prepare":
		return rooted.Prepare(h, o.group)
	case "peers":
		return listen(ctx, h, service{wire.PeersSocket, rooted.NewPeersFirewall(h, true, log).Run(o.caller)})
	case "update", "undo":
		u, err := rooted.NewUpdater(h, strings.FieldsFunc(releaseKeys, func(r rune) bool { return r == ',' }), o.trial, log)
		if err != nil {
			return err
		}
		if verb == "undo" {
			u.Undo()
			return nil
		}
		return listen(ctx, h, service{wire.UpdateSocket, u.Run(o.caller)})
	case "patch":
		return listen(ctx, h, service{wire.PatchSocket, rooted.NewPatcher(h, log).Run(o.caller)})
	case "firewall":
		return rooted.NewPeersFirewall(h, true, log).Restore(ctx)
	case "certs":
		return rooted.InstallServiceTLS(ctx, h)
	case "exec":
		var asRoot exec.AsRoot // the host's processes that may
		if h.Root != "/" {     // a directory has none
			asRoot = rooted.Here(h)
		}
		e, err := exec.New(h, o.caller, asRoot, log)
		if err != nil {
			return err
		}
		return listen(ctx, h, service{wire.ExecSocket, e.Run})
	case "devices":
		return listen(ctx, h, service{wire.DevicesSocket, rooted.NewDevices(h, o.caller, log).Run})
	case "bench":
		b, err := rooted.NewBenchHelper(h, o.caller, cmp.Or(o.docker, dockerSocket), o.lock, os.Getenv("CREDENTIALS_DIRECTORY"), log)
		if err != nil {
			return err
		}
		w, err := rooted.NewWatcher(h, o.watcher, cmp.Or(o.docker, dockerSocket), log)
		if err != nil {
			return err
		}
		return listen(ctx, h, service{wire.BenchSocket, b.Run}, service{wire.WatchSocket, w.Run})
	}
	a, err := online.New(h, o.addr, version, log)
	if err != nil {
		return err
	}
	if o.docker != "" {
		w, err := rooted.NewWatcher(h, "", o.docker, log)
		if err != nil {
			return err
		}
		a.WatchEngine(w.Stream)
	}
	if o.noFirewall {
		if err := a.WithoutFirewall(rooted.NewPeersFirewall(h, false, log).Apply, func() error { return rooted.CopyServiceTLS(h) }); err != nil {
			return err
		}
	}
	if err := a.Run(ctx); !errors.Is(err, online.ErrUpdated) {
		return err
	}
	return nil // the service manager restarts it
}

// siteOwner runs where the sites are, which may be a container.
func siteOwner(args []string) int {
	if len(args) < 1 || len(args) > 2 {
		fmt.Fprintln(os.Stderr, "usage: prego-agent site-owner SITE [TENANT]")
		return 2
	}
	owner, err := exec.SiteOwner("/", args[0], strings.Join(args[1:], ""))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(owner)
	return 0
}

// service is what is served on a socket.
type service struct {
	socket string
	serve  func(context.Context, net.Listener) error
}

// listen serves until ctx ends or one of the services fails. If a service manager has
// opened the sockets, so that it alone decides who may connect, the environment says so.
// It may have opened fewer: only these are served then.
func listen(ctx context.Context, h *host.Host, services ...service) error {
	opened, err := inherited()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended, running := make(chan error, len(services)), 0
	for _, s := range services {
		l := opened[filepath.Base(s.socket)]
		if l == nil && len(opened) > 0 {
			continue
		}
		if l == nil {
			if l, err = h.Listen(s.socket); err != nil {
				ended <- err
				running++
				break
			}
		}
		running++
		go func() { ended <- s.serve(ctx, l) }()
	}
	for range running {
		err = errors.Join(err, <-ended)
		cancel()
	}
	return err
}

// inherited are the sockets that a service manager passed, by the name of their file.
func inherited() (map[string]net.Listener, error) {
	n, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil || os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, nil //nolint:nilerr // there are none
	}
	out := make(map[string]net.Listener, n)
	for fd := range n {
		f := os.NewFile(uintptr(3+fd), "socket")
		l, err := net.FileListener(f)
		if err != nil {
			return nil, fmt.Errorf("socket: %w", err)
		}
		_ = f.Close() // commands must not inherit it
		out[filepath.Base(l.Addr().String())] = l
	}
	return out, nil
}
