package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/prego/prego/agent/wire"
)

// maxOutput is how much of the end of each stream is kept.
const maxOutput = 8 << 10

// exitTimeout is the exit code of a command that was killed at its timeout, as
// timeout(1) has it.
const exitTimeout = 124

// GuardVerb makes the agent's program a guard, see Guard.
const GuardVerb = "guard"

// Guard leads the process group of a command. Its standard input is a pipe that
// only the agent holds: when the agent dies, however it dies, the guard kills the
// whole group. The parent-death signal alone would reach the command but none of
// the processes that the command started.
func Guard() {
	// Stopping the agent's unit signals every process of it; the guard's time comes
	// only when the agent is gone.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = syscall.Kill(0, syscall.SIGKILL)
}

func (k *call) timeout() time.Duration {
	if k.in.TimeoutSeconds == 0 {
		return defaultTimeout
	}
	return time.Duration(k.in.TimeoutSeconds) * time.Second
}

// execute runs the program with its arguments, never a shell. On the way out the
// command's whole group is killed: nothing outlives its command.
func (c *commands) execute(k *call) (wire.ExecResult, *problem) {
	timeout := k.timeout()
	ctx, cancel := context.WithTimeoutCause(c.ctx, timeout, errTimeout)
	defer cancel()
	notRun := func(err error) *problem {
		return &problem{status: http.StatusInternalServerError, code: "start_failed", detail: "bench can't be started: " + err.Error()}
	}
	root, err := filepath.Abs(c.host.Root)
	if err != nil {
		return wire.ExecResult{}, notRun(err)
	}
	// The parent-death signal is bound to the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	group, release, err := guarded()
	if err != nil {
		return wire.ExecResult{}, notRun(err)
	}
	defer release()

	var stdout, stderr tail
	outLines, errLines := &lineWriter{to: k.progress, stream: "stdout"}, &lineWriter{to: k.progress, stream: "stderr"}
	start := func() (*exec.Cmd, error) {
		cmd := exec.CommandContext(ctx, filepath.Join(root, wire.BenchBinary), k.in.Args...) //nolint:gosec // the arguments were checked against the table
		cmd.Dir = k.dir
		cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + filepath.Join(root, wire.BenchHome), "LANG=C.UTF-8"}
		cmd.Stdout, cmd.Stderr = io.MultiWriter(&stdout, outLines), io.MultiWriter(&stderr, errLines)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: group, Pdeathsig: syscall.SIGKILL}
		cmd.Cancel = func() error { return syscall.Kill(-group, syscall.SIGKILL) }
		cmd.WaitDelay = time.Second // for a process that left the group and holds a stream
		return cmd, cmd.Start()
	}
	began := time.Now()
	cmd, err := start()
	for n := 0; n < 20 && errors.Is(err, syscall.ETXTBSY); n++ { // the program is being replaced
		time.Sleep(50 * time.Millisecond)
		cmd, err = start()
	}
	switch {
	case err != nil && errors.Is(context.Cause(ctx), errStopping):
		return wire.ExecResult{}, stopping()
	case err != nil:
		return wire.ExecResult{}, notRun(err)
	}
	err = cmd.Wait() // how it ended is read from the state
	outLines.end()
	errLines.end()
	out := wire.ExecResult{ExitCode: cmd.ProcessState.ExitCode(), DurationMs: time.Since(began).Milliseconds(), AuditID: k.in.AuditID}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); err != nil && ok && status.Signaled() {
		switch cause := context.Cause(ctx); {
		case errors.Is(cause, errTimeout):
			out.ExitCode = exitTimeout
			_, _ = fmt.Fprintf(&stderr, "\nprego-agent: killed after %s\n", timeout)
		case errors.Is(cause, errStopping):
			return out, stopping()
		default: // by the kernel or a person: not what the command came to
			return out, &problem{status: http.StatusServiceUnavailable, code: "command_killed", detail: "the command was killed: " + status.Signal().String(), retryAfter: 5}
		}
	}
	out.StdoutTruncated, out.StderrTruncated = stdout.String(), stderr.String()
	return out, nil
}

// guarded starts a guard and returns its process group. release kills what is
// left of the group; the group's number can't be taken by another before that.
func guarded() (group int, release func(), err error) {
	guard := exec.Command("/proc/self/exe", GuardVerb) //nolint:noctx // release ends it
	guard.Env = []string{"GOMAXPROCS=1"}
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pipe, err := guard.StdinPipe()
	if err != nil {
		return 0, nil, err
	}
	if err := guard.Start(); err != nil {
		return 0, nil, fmt.Errorf("guard: %w", err)
	}
	return guard.Process.Pid, func() {
		_ = syscall.Kill(-guard.Process.Pid, syscall.SIGKILL)
		_ = pipe.Close()
		_ = guard.Wait()
	}, nil
}

// tail keeps the end of what is written to it.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p[max(0, len(p)-2*maxOutput):]...)
	if len(t.b) > 4*maxOutput {
		t.b = append(t.b[:0], t.b[len(t.b)-2*maxOutput:]...)
	}
	return len(p), nil
}

// String is the end as valid UTF-8, at most maxOutput bytes of it.
func (t *tail) String() string {
	b := t.b[max(0, len(t.b)-maxOutput):]
	for i := 0; len(t.b) > maxOutput && i < utf8.UTFMax-1 && len(b) > 0 && !utf8.RuneStart(b[0]); i++ {
		b = b[1:] // the rest of a character that was cut
	}
	s := strings.ToValidUTF8(string(b), "\uFFFD")
	for s = s[max(0, len(s)-maxOutput):]; s != "" && !utf8.RuneStart(s[0]); {
		s = s[1:]
	}
	return s
}
