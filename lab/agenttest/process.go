package agenttest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// Binary is the real agent, built once as it is released.
var Binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "prego-agent")
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "prego-agent")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=v-built", "-o", name,
		"github.com/prego/prego/cmd/prego-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", &os.PathError{Op: "build: " + string(out), Path: name, Err: err}
	}
	return name, nil
})

// Run runs the tests of a package in which the processes of a host start the released agent: the tests' own program is
// larger, and slow to start. verbs are handled by that program itself, by its first argument.
func Run(m *testing.M, verbs map[string]func(args []string) int) {
	if len(os.Args) > 1 {
		if verb := verbs[os.Args[1]]; verb != nil {
			os.Exit(verb(os.Args[2:]))
		}
	}
	if len(os.Args) == 4 && os.Args[1] == "unruly" {
		unruly(os.Args[2], os.Args[3])
	}
	name, err := Binary()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	host.OwnProgram = name
	status := m.Run()
	_ = os.RemoveAll(filepath.Dir(name))
	os.Exit(status)
}

// Process is a running agent.
type Process struct {
	*exec.Cmd
	Log Output
}

// Output is what a process wrote so far.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Start runs the real agent until the test ends.
func Start(t *testing.T, args ...string) *Process {
	t.Helper()
	name, err := Binary()
	require.NoError(t, err)
	p := &Process{Cmd: exec.CommandContext(t.Context(), name, args...)}
	p.Stdout, p.Stderr = &p.Log, &p.Log
	p.Env = []string{"PATH=/usr/bin:/bin"}
	require.NoError(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
	return p
}

// Status waits for the end of a process.
func (p *Process) Status(t *testing.T) int {
	t.Helper()
	_ = p.Wait()
	return p.ProcessState.ExitCode()
}

// ResidentKiB is the resident memory of a process.
func ResidentKiB(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			require.NoError(t, err)
			return n
		}
	}
	require.Fail(t, "the kernel reports no VmRSS")
	return 0
}

// Loop runs a loop until the test ends or stop is called.
func Loop(t testing.TB, loop func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- loop(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				require.NoError(t, err)
			case <-time.After(15 * time.Second):
				require.Fail(t, "the loop does not end")
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// unruly makes the tests' own program a process that is hard to end. Each kind leaves a mark in its arguments, for
// Marked.
func unruly(kind, mark string) {
	self := func(kind string, attr *syscall.SysProcAttr) {
		cmd := exec.Command("/proc/self/exe", "unruly", kind, mark) //nolint:noctx // nothing of the test ends it
		cmd.SysProcAttr = attr
		if err := cmd.Start(); err != nil {
			fmt.Println(err)
		}
	}
	switch kind {
	case "deaf": // ignores what can be ignored
		ignoreAll()
	case "session": // leaves its group and its session
		self("deaf", &syscall.SysProcAttr{Setsid: true})
	case "orphan": // forks twice, so that its parent is unknown
		self("leaver", &syscall.SysProcAttr{Setsid: true})
	case "leaver":
		self("deaf", &syscall.SysProcAttr{Setsid: true})
		os.Exit(0)
	case "storm": // forks, and so do its children, up to a bound
		ignoreAll()
		for range 6 {
			self("gust", &syscall.SysProcAttr{Setsid: true})
		}
	case "gust":
		ignoreAll()
		for range 6 {
			self("leaver", &syscall.SysProcAttr{Setsid: true})
		}
	case "ends": // by itself, and leaves others behind
		self("orphan", &syscall.SysProcAttr{Setsid: true})
		self("session", nil)
		time.Sleep(300 * time.Millisecond)
		fmt.Println("done")
		os.Exit(7)
	}
	fmt.Println("up")
	time.Sleep(time.Hour)
}

// Marked are the living processes that have the mark.
func Marked(mark string) (pids []int) {
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range found {
		b, err := os.ReadFile(f)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err == nil && living(pid) && bytes.HasSuffix(b, []byte("\x00"+mark+"\x00")) &&
			bytes.Contains(b, []byte("\x00unruly\x00")) &&
			!bytes.Contains(b, []byte("\x00supervise\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func ignoreAll() {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGPIPE)
}

// living reports whether a process exists and is no zombie.
func living(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ") && !strings.Contains(string(b), ") X ")
}

// PutBench gives a host a bench of the test's own.
func PutBench(t testing.TB, root, script string) {
	t.Helper()
	name := filepath.Join(root, wire.BenchBinary)
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(root, wire.BenchDir, "sites"), 0o755))
	require.NoError(t, os.WriteFile(name, []byte("#!/bin/sh\n"+script), 0o755))
}

// Lines is how many lines a file has, 0 if it is not there.
func Lines(t testing.TB, name string) int {
	t.Helper()
	b, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		return 0
	}
	require.NoError(t, err)
	return strings.Count(string(b), "\n")
}

// PIDIn reads the process id that a script left.
func PIDIn(t testing.TB, name string) int {
	t.Helper()
	var pid int
	Eventually(t, "the script runs", func() bool {
		b, err := os.ReadFile(name)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil && strings.HasSuffix(string(b), "\n") && pid > 0
	})
	return pid
}

// Gone waits until a process is gone, or a zombie.
func Gone(t testing.TB, pid int) {
	t.Helper()
	Eventually(t, "the process is gone", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(b), ") Z ")
	})
}
