package child_test

import (
	"bytes"
	"fmt"
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
