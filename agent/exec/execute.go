package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/site"
	"github.com/prego/prego/agent/supervise"
	"github.com/prego/prego/agent/wire"
)

// MaxOutput is how many bytes of the end of each stream are kept.
const MaxOutput = 8 << 10

// ExitTimeout is the exit code of a command that was killed at its timeout, as with
// timeout(1).
const ExitTimeout = 124

// errNotStarted says that bench could not be started; nothing ran.
var errNotStarted = errors.New("bench can't be started")

// execute runs a command. Before it returns, everything that the command started is killed: nothing outlives its
// command.
func (c *commands) execute(k *call) (wire.ExecResult, *policy.Problem) {
	ctx, cancel := context.WithTimeoutCause(c.ctx, k.Limit(), errTimeout)
	defer cancel()
	var stdout, stderr tail
	outLines, errLines := &lineWriter{to: k.progress, stream: "stdout"}, &lineWriter{to: k.progress, stream: "stderr"}
	run := c.serve
	if k.In.Kind == wire.KindBench {
		run = c.runBench
	}
	began := time.Now()
	code, err := run(ctx, k, io.MultiWriter(&stdout, outLines), io.MultiWriter(&stderr, errLines))
	outLines.end()
	errLines.end()
	if text, ok := strings.CutPrefix(stderr.String(), supervise.NotStarted); ok && err == nil && code == supervise.ExitNotStarted {
		err = fmt.Errorf("%w: %s", errNotStarted, strings.TrimSpace(text))
	}
	out := wire.ExecResult{ExitCode: code, DurationMs: time.Since(began).Milliseconds(), AuditID: k.In.AuditID}
	switch cause := context.Cause(ctx); {
	case err == nil && !bySignal(code):
	case errors.Is(cause, errStopping):
		return out, policy.Stopping()
	case errors.Is(err, host.ErrUnavailable):
		return out, &policy.Problem{Status: http.StatusServiceUnavailable, Code: "service_unavailable", Detail: string(k.In.Kind) + ": " + err.Error(), RetryAfter: 5}
	case errors.Is(err, errNotStarted):
		return out, &policy.Problem{Status: http.StatusInternalServerError, Code: "start_failed", Detail: err.Error()}
	case err == nil && errors.Is(cause, errTimeout):
		out.ExitCode = ExitTimeout
		_, _ = fmt.Fprintf(&stderr, "\nprego-agent: killed after %s\n", k.Limit())
	case err == nil: // killed by the kernel or a person: not the command's own result
		err = fmt.Errorf("%s", syscall.Signal(code-supervise.ExitSignal))
		fallthrough
	default:
		return out, &policy.Problem{Status: http.StatusServiceUnavailable, Code: "command_killed", Detail: "the command was killed: " + err.Error(), RetryAfter: 5}
	}
	out.StdoutTruncated, out.StderrTruncated = stdout.String(), stderr.String()
	return out, nil
}

// runBench runs bench, here or in the container that holds it, never in a shell.
func (c *commands) runBench(ctx context.Context, k *call, stdout, stderr io.Writer) (code int, err error) {
	return c.host.bench(ctx, k.Command, nil, stdout, stderr)
}

// bySignal reports whether a supervisor's status means that a signal ended its command.
func bySignal(code int) bool { return code > supervise.ExitSignal && code <= supervise.ExitSignal+64 }

// bench runs bench, here or in its container. If ctx killed it, the status says so.
func (h *workplace) bench(ctx context.Context, k *policy.Command, input io.Reader, stdout, stderr io.Writer) (status int, err error) {
	s, err := h.Services()
	if err != nil {
		return 0, err
	}
	if s.Bench.Socket == "" {
		return h.benchHere(ctx, k, s.Bench, input, stdout, stderr)
	}
	return h.askBench(ctx, s.Bench.Socket, host.BenchRequest{
		Args: k.In.Args, WorkingDir: k.In.WorkingDir, TimeoutSeconds: k.In.TimeoutSeconds, Secrets: k.In.Secrets, Spool: k.In.Kind == policy.KindSpool,
	}, input, stdout, stderr)
}

// benchHere runs a verb as a process of this host. Its supervisor's standard input is a
// pipe that only this process holds: when it dies, in whatever way, the supervisor
// kills everything.
//
// If no database root is configured, bench itself gets the request's arguments.
func (h *workplace) benchHere(ctx context.Context, k *policy.Command, database wire.Service, input io.Reader, stdout, stderr io.Writer) (status int, err error) {
	root, err := filepath.Abs(h.Root)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNotStarted, err)
	}
	here := database.User != "" || k.In.Kind == policy.KindSpool
	argv := []string{supervise.Verb, supervise.InputFlag(input), "--", host.OwnProgram, site.Verb, "--root", root}
	if !here {
		argv = []string{supervise.Verb, "--", filepath.Join(root, wire.BenchBinary)}
	}
	line, err := k.SecretsLine(k.In.Secrets, database)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNotStarted, err)
	}
	cmd := exec.Command(host.OwnProgram, append(argv, k.In.Args...)...) //nolint:noctx // the arguments were checked against the table; the pipe ends it
	cmd.Dir = h.Path(k.In.WorkingDir)
	cmd.Env = []string{"GOMAXPROCS=1", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + filepath.Join(root, wire.BenchHome), "LANG=C.UTF-8"}
	cmd.Stdout, cmd.Stderr = stdout, &supervise.AfterPreamble{To: stderr}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a signal to this process's group must not stop the supervisor
	cmd.WaitDelay = time.Second                           // for a process that can't be killed and holds a stream open
	pipe, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNotStarted, err)
	}
	if here {
		_, _ = io.WriteString(pipe, line) // if it has already ended, its state says so
	}
	if input != nil {
		go func() {
			if supervise.Feed(pipe, input) != nil {
				_ = pipe.Close()
			}
		}()
	}
	defer context.AfterFunc(ctx, func() { _ = pipe.Close() })()
	_ = cmd.Wait() // the outcome is read from its state
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return supervise.ExitSignal + int(ws.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

// tail keeps the end of what is written to it.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p[max(0, len(p)-2*MaxOutput):]...)
	if len(t.b) > 4*MaxOutput {
		t.b = append(t.b[:0], t.b[len(t.b)-2*MaxOutput:]...)
	}
	return len(p), nil
}

// String returns the end as valid UTF-8, at most MaxOutput bytes of it.
func (t *tail) String() string {
	b := t.b[max(0, len(t.b)-MaxOutput):]
	for i := 0; len(t.b) > MaxOutput && i < utf8.UTFMax-1 && len(b) > 0 && !utf8.RuneStart(b[0]); i++ {
		b = b[1:] // the rest of a character that was cut
	}
	s := strings.ToValidUTF8(string(b), "\uFFFD")
	for s = s[max(0, len(s)-MaxOutput):]; s != "" && !utf8.RuneStart(s[0]); {
		s = s[1:]
	}
	return s
}
