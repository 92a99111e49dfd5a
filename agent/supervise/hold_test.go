package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/agenttest"
)

// holding starts a holder of an unruly program, as a process.
func holding(t *testing.T, kind string) (confirmed string, cmd *exec.Cmd, mark string) {
	t.Helper()
	me, err := os.Executable()
	require.NoError(t, err)
	mark = fmt.Sprintf("%s-%d", filepath.Base(t.Name()), time.Now().UnixNano())
	confirmed = filepath.Join(t.TempDir(), "yes")
	cmd = exec.Command(me, "hold-for", confirmed, "--", me, "unruly", kind, mark)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		for _, pid := range agenttest.Marked(mark) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return confirmed, cmd, mark
}

func confirm(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, os.WriteFile(name, nil, 0o600))
}

// TestAProgramIsHeldUntilItsHostIsConfirmed, and ends with all that it started, deaf to signals or in sessions of their
// own, when that is withdrawn.
func TestAProgramIsHeldUntilItsHostIsConfirmed(t *testing.T) {
	t.Parallel()
	for kind, processes := range map[string]int{"deaf": 1, "session": 2, "orphan": 2} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			confirmed, cmd, mark := holding(t, kind)
			running := func(n int) {
				t.Helper()
				// The holder is marked as well.
				require.Eventually(t, func() bool { return len(agenttest.Marked(mark)) == n+1 }, time.Minute, 20*time.Millisecond)
			}
			running(0)
			for range 2 {
				confirm(t, confirmed)
				running(processes)
				require.NoError(t, os.Remove(confirmed))
				running(0)
			}
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			_ = cmd.Wait() // it ends, whatever it was ending just then
		})
	}
}

// TestAHeldProgramsEndIsTheHolders, so that the engine starts the container again.
func TestAHeldProgramsEndIsTheHolders(t *testing.T) {
	t.Parallel()
	confirmed := filepath.Join(t.TempDir(), "yes")
	confirm(t, confirmed)
	me, err := os.Executable()
	require.NoError(t, err)
	for status, argv := range map[int][]string{0: {"true"}, 7: {"sh", "-c", "exit 7"}, 143: {"sh", "-c", "kill $$"}, 125: {"/nonexistent"}} {
		cmd := exec.Command(me, append([]string{"hold-for", confirmed, "--"}, argv...)...)
		_ = cmd.Run()
		require.Equal(t, status, cmd.ProcessState.ExitCode(), argv)
	}
	// Asked to stop, the program ends in its own time.
	cmd := exec.Command(me, "hold-for", confirmed, "--", "sh", "-c", "trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = out.Read(make([]byte, 3))
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	require.Equal(t, 9, cmd.ProcessState.ExitCode())
}
