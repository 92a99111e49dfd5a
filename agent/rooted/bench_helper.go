package rooted

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/site"
	"github.com/prego/prego/agent/supervise"
	"github.com/prego/prego/agent/wire"
)

// BenchHelper is the process that holds the engine's socket, and so could do anything on the host. It accepts
// requests from one user, and only turns them into an exec of an allowed bench command line in one container.
type BenchHelper struct {
	host   *host.Host
	engine *client.Client
	caller string // the only allowed one
	slots  chan struct{}
	lock   string // held while something runs; "" for none
	// secrets is a directory that holds the password of MariaDB's root.
	secrets string
	log     *slog.Logger
}

// maxAsked bounds the concurrent processes in the container: commands and owner queries.
const maxAsked = 2 * policy.MaxRunning

// NewBenchHelper accepts requests from the named user only; "" is its own. engine is dockerd's address. The lock
// file, if any, is held shared while something runs, so that a restart of dockerd can wait for it. secrets is the
// service manager's directory; "" for the host's default.
func NewBenchHelper(h *host.Host, caller, engine, lock, secrets string, log *slog.Logger) (*BenchHelper, error) {
	c, err := client.New(client.WithHost(engine))
	if err != nil {
		return nil, fmt.Errorf("docker client: %w", err)
	}
	secrets = cmp.Or(secrets, h.Path(wire.SecretsDir))
	return &BenchHelper{host: h, engine: c, caller: caller, slots: make(chan struct{}, maxAsked), lock: lock, secrets: secrets, log: log}, nil
}

// Run serves until ctx ends, and then kills what runs.
func (b *BenchHelper) Run(ctx context.Context, l net.Listener) error {
	defer func() { _ = b.engine.Close() }()
	b.log.Info("running bench in its container", "container", b.container(), "for", b.caller)
	return host.Serve(ctx, l, b.caller, b.log, func(conn net.Conn) { b.answer(ctx, conn) })
}

func (b *BenchHelper) container() string {
	return wire.ContainerName(b.host.Config.ServerID, wire.BenchContainer)
}

func (b *BenchHelper) answer(ctx context.Context, conn net.Conn) {
	to := &frames{enc: json.NewEncoder(conn)}
	select {
	case b.slots <- struct{}{}:
		defer func() { <-b.slots }()
	default:
		to.send(host.BenchFrame{Refused: "too much runs in the container"})
		return
	}
	var in host.BenchRequest
	rest, err := host.ReadRequest(conn, policy.MaxBody, &in)
	if err != nil {
		to.send(host.BenchFrame{Refused: "this is no request"})
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	argv, dir, line, refused := b.argv(in)
	if refused != "" {
		b.log.Warn("refused", "why", refused)
		to.send(host.BenchFrame{Refused: refused})
		return
	}
	// When the caller's half is closed, or this process ends, the command is killed.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var feed io.Reader
	if slices.Contains(argv, supervise.FeedFlag) {
		feed = rest
	} else {
		go func() {
			_, _ = io.Copy(io.Discard, rest)
			cancel()
		}()
	}
	last := b.exec(ctx, cancel, argv, dir, line, feed, to)
	if last.Exit == nil {
		b.log.Warn("not run to its end", "refused", last.Refused, "lost", last.Lost)
	}
	to.send(last)
}

// argv is the command line of a request in the container, and its input. The table is
// checked here as well: this process does not trust the ones before it.
func (b *BenchHelper) argv(in host.BenchRequest) (argv []string, dir, line, refused string) {
	input := "--input"
	under := func(limit time.Duration, command ...string) []string {
		return append([]string{wire.ContainerAgent, supervise.Verb, input, "--for", limit.String(), "--silence", silence.String(), "--", wire.ContainerAgent}, command...)
	}
	if in.OwnerOf != "" {
		if in.Args != nil || !policy.Is("SITE", in.OwnerOf) || (in.GiveTo != "" && !policy.TenantPattern.MatchString(in.GiveTo)) {
			return nil, "", "", "this is no site, or no tenant"
		}
		command := []string{host.SiteOwnerVerb, in.OwnerOf}
		if in.GiveTo != "" {
			command = append(command, in.GiveTo)
		}
		return under(host.OwnerTime, command...), wire.BenchDir, "\n", ""
	}
	kind := wire.KindBench
	if in.Spool {
		kind = policy.KindSpool
	}
	k, bad := policy.Check(wire.ExecRequest{Kind: kind, Args: in.Args, WorkingDir: in.WorkingDir, TimeoutSeconds: in.TimeoutSeconds, Secrets: in.Secrets})
	if bad != nil || in.GiveTo != "" {
		return nil, "", "", "bench may not be called like this"
	}
	if k.Verb == policy.VerbWriteSealed {
		input = supervise.FeedFlag
	}
	line, err := k.SecretsLine(in.Secrets, wire.Service{User: "root", Password: b.rootPassword()})
	if err != nil {
		return nil, "", "", "its secrets can't be passed on"
	}
	// The caller's own limit comes first; this one is for when all callers are gone.
	return under(k.Limit()+supervise.KillTime, append([]string{site.Verb}, in.Args...)...), k.In.WorkingDir, line, ""
}

// rootPassword is the password of MariaDB's root, "" if the host has none. It is not
// stored in any container, where other programs could read it.
func (b *BenchHelper) rootPassword() string {
	text, err := os.ReadFile(filepath.Join(b.secrets, host.MariaDBRoot))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// A supervisor that gets no pulse for so long kills its command: its engine may be
// gone, and the next one would not know about it.
const (
	silence    = 15 * time.Second
	pulseEvery = 2 * time.Second
)

// sendPulse shows a supervisor that its caller is alive.
func sendPulse(ctx context.Context, ended <-chan struct{}, to io.Writer) {
	t := time.NewTicker(pulseEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if _, err := to.Write([]byte{'\n'}); err != nil {
				return
			}
		case <-ended:
			return
		case <-ctx.Done():
			return
		}
	}
}

// exec runs a supervisor in the container until it ends. The engine can't kill an exec;
// instead, the end of ctx closes the supervisor's input, and the supervisor kills. feed, if it
// is not nil, is what the caller sends for the command, and its end cancels.
func (b *BenchHelper) exec(ctx context.Context, cancel context.CancelFunc, argv []string, dir, line string, feed io.Reader, to *frames) host.BenchFrame {
	defer b.hold()()
	if ctx.Err() != nil {
		return host.BenchFrame{Refused: "its caller has gone"}
	}
	asking, enough := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer enough()
	made, err := b.engine.ExecCreate(asking, b.container(), client.ExecCreateOptions{
		User: wire.BenchUser, WorkingDir: dir, Cmd: argv, AttachStdin: true, AttachStdout: true, AttachStderr: true,
		Env: []string{"GOMAXPROCS=1", "HOME=" + wire.BenchHome, "LANG=C.UTF-8"},
	})
	if err != nil {
		return host.BenchFrame{Refused: err.Error()}
	}
	at, err := b.engine.ExecAttach(asking, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return host.BenchFrame{Lost: err.Error()}
	}
	defer at.Close()
	defer context.AfterFunc(ctx, func() {
		_ = at.CloseWrite()
		_ = at.Conn.SetReadDeadline(time.Now().Add(supervise.AskTime))
	})()
	if _, err := io.WriteString(at.Conn, line); err != nil {
		return host.BenchFrame{Lost: err.Error()}
	}
	ended := make(chan struct{})
	defer close(ended)
	go sendPulse(ctx, ended, at.Conn)
	if feed != nil {
		go func() {
			supervise.CopyLines(at.Conn, feed)
			cancel()
		}()
	}
	if _, err := stdcopy.StdCopy(to.stream(false), to.stream(true), at.Reader); err != nil {
		return host.BenchFrame{Lost: err.Error()}
	}
	for end := time.Now().Add(supervise.AskTime); ; time.Sleep(10 * time.Millisecond) {
		got, err := b.inspect(context.WithoutCancel(ctx), made.ID)
		switch {
		case err != nil:
			return host.BenchFrame{Lost: err.Error()}
		case !got.Running:
			return host.BenchFrame{Exit: &got.ExitCode}
		case time.Now().After(end):
			return host.BenchFrame{Lost: "it continues without its streams"}
		}
	}
}

func (b *BenchHelper) inspect(ctx context.Context, id string) (client.ExecInspectResult, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return b.engine.ExecInspect(ctx, id, client.ExecInspectOptions{})
}

// hold takes the lock. Commands run even if it can't be taken.
func (b *BenchHelper) hold() (release func()) {
	if b.lock == "" {
		return func() {}
	}
	f, err := os.OpenFile(filepath.Clean(b.lock), os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		b.log.Warn("the lock can't be held", "error", err.Error())
		return func() {}
	}
	for {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	return func() { _ = f.Close() }
}

// frames writes an answer; both streams share it.
type frames struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func (f *frames) send(b host.BenchFrame) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = f.enc.Encode(b) // the end of the connection is noticed elsewhere
}

func (f *frames) stream(errs bool) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		if errs {
			f.send(host.BenchFrame{Stderr: p})
		} else {
			f.send(host.BenchFrame{Stdout: p})
		}
		return len(p), nil
	})
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }
