package child_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/child"
)

// parentMode makes this test binary a process that has a child, prints its id, and waits.
const parentMode = "PREGO_TEST_CHILD_PARENT"

func TestMain(m *testing.M) {
	modes := map[string]func(string) error{"count": countingParent, "daemon": daemonParent}
	if mode, path, ok := strings.Cut(os.Getenv(parentMode), " "); ok {
		if err := modes[mode](path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		select {}
	}
	if os.Getenv(parentMode) != "" {
		p, err := child.Start(exec.Command("sleep", "600"), syscall.SIGKILL)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.PID())
		select {}
	}
	os.Exit(m.Run())
}

// runs reports whether there is a process that has not ended.
func runs(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(state, "Z")
}

func TestAChildDiesWithItsParent(t *testing.T) {
	t.Parallel()
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), parentMode+"=1")
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	line := make([]byte, 32)
	n, err := out.Read(line)
	require.NoError(t, err)
	pid, err := strconv.Atoi(string(bytes.TrimSpace(line[:n])))
	require.NoError(t, err)
	require.True(t, runs(pid))
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait()
	require.Eventually(t, func() bool { return !runs(pid) }, 10*time.Second, 5*time.Millisecond)
}

// TestADeathSignalIsSentOnce kills a process of many threads, each of which is a parent to the kernel.
func TestADeathSignalIsSentOnce(t *testing.T) {
	t.Parallel()
	counted := filepath.Join(t.TempDir(), "counted")
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), parentMode+"=count "+counted)
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	_, err = io.ReadFull(out, make([]byte, len("counts\nwaits\n")))
	require.NoError(t, err)
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait()
	var text []byte
	require.Eventually(t, func() bool {
		text, _ = os.ReadFile(counted)
		return bytes.HasSuffix(text, []byte("end\n"))
	}, 20*time.Second, 5*time.Millisecond)
	require.Equal(t, "TERM\nend\n", string(text))
}

// countTERM writes down each SIGTERM that it gets, until a second after the first.
const countTERM = `trap 'echo TERM >>"$1"' TERM; echo counts; while [ ! -s "$1" ]; do sleep 0.05; done; sleep 0.5; sleep 0.5; echo end >>"$1"`

func countingParent(file string) error {
	for range 20 { // threads
		go func() { runtime.LockOSThread(); select {} }()
	}
	time.Sleep(50 * time.Millisecond)
	cmd := exec.Command("bash", "-c", countTERM, "bash", file)
	cmd.Stdout = os.Stdout
	_, err := child.Start(cmd, syscall.SIGTERM)
	fmt.Println("waits")
	return err
}

// TestNothingIsLeftOfADaemon: the daemon obeys, and leaves a process in a session of its own.
func TestNothingIsLeftOfADaemon(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), parentMode+"=daemon "+dir)
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	_, err = io.ReadFull(out, make([]byte, len("waits\n")))
	require.NoError(t, err)
	var left int
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "pid"))
		_, scanErr := fmt.Sscanf(string(text), "%d\n", &left)
		return err == nil && scanErr == nil
	}, 20*time.Second, 5*time.Millisecond)
	require.True(t, runs(left))
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait()
	require.Eventually(t, func() bool { return !runs(left) }, 20*time.Second, 5*time.Millisecond)
}

func daemonParent(dir string) error {
	script := filepath.Join(dir, "left")
	if err := os.WriteFile(script, []byte("echo $$ >${0%left}pid; while :; do sleep 0.1; done"), 0o600); err != nil {
		return err
	}
	cmd := exec.Command("sh", "-c", `setsid sh "$0" & exec sleep 600`, script)
	_, err := child.StartDaemon(cmd, dir)
	fmt.Println("waits")
	return err
}

// TestChildOutlivesItsStartingThread: to the kernel a thread that ends is a
// parent that dies.
func TestChildOutlivesItsStartingThread(t *testing.T) {
	t.Parallel()
	asked := make(chan *child.Process)
	thread := make(chan int, 1)
	var ask func()
	ask = func() {
		runtime.LockOSThread()               // and not unlocked: the thread ends with the goroutine
		if syscall.Gettid() == os.Getpid() { // except the first, which never ends
			defer runtime.UnlockOSThread()
			other := make(chan struct{})
			go func() { defer close(other); ask() }()
			<-other
			return
		}
		thread <- syscall.Gettid()
		p, err := child.Start(exec.Command("sleep", "600"), syscall.SIGKILL)
		if err != nil {
			t.Error(err)
		}
		asked <- p
	}
	go ask()
	tid, p := <-thread, <-asked
	require.NotNil(t, p)
	require.Eventually(t, func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid))
		return os.IsNotExist(err)
	}, 10*time.Second, time.Millisecond)
	time.Sleep(50 * time.Millisecond) // a signal takes no longer
	require.True(t, runs(p.PID()))
	require.Equal(t, -1, p.ExitCode())
	p.Kill()
	require.Error(t, p.Wait())
	require.False(t, runs(p.PID()))
}

func TestHowAChildEnds(t *testing.T) {
	t.Parallel()
	_, err := child.Start(exec.Command("/nowhere/at/all"), syscall.SIGKILL)
	require.Error(t, err)

	p, err := child.Start(exec.Command("grep", "x", "/nowhere/at/all"), syscall.SIGKILL)
	require.NoError(t, err)
	require.Error(t, p.Wait())
	require.Equal(t, 2, p.ExitCode())
	p.Signal(syscall.SIGTERM) // to no process

	// What a child left in its group goes with it.
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _ = r.Close() }()
	script := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(script, []byte("sleep 600 & echo $!; wait"), 0o600))
	cmd := exec.Command("sh", script)
	cmd.Stdout = w
	p, err = child.Start(cmd, syscall.SIGKILL)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	line := make([]byte, 32)
	n, err := r.Read(line)
	require.NoError(t, err)
	grandchild, err := strconv.Atoi(string(bytes.TrimSpace(line[:n])))
	require.NoError(t, err)
	p.Stop(syscall.SIGCONT, time.Millisecond)
	require.Eventually(t, func() bool { return !runs(grandchild) }, 10*time.Second, 5*time.Millisecond)
}
