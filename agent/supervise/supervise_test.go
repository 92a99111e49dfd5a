package supervise

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/agenttest"
)

// supervisor starts one around an unruly program.
func supervisor(t *testing.T, kind string, flags ...string) (cmd *exec.Cmd, close func(), mark string, log *agenttest.Output) {
	t.Helper()
	pipe, cmd, mark, log := supervisorFed(t, kind, flags...)
	return cmd, func() { _ = pipe.Close() }, mark, log
}

// supervisorFed starts one whose input is the test's.
func supervisorFed(t *testing.T, kind string, flags ...string) (pipe io.WriteCloser, cmd *exec.Cmd, mark string, log *agenttest.Output) {
	t.Helper()
	name, err := agenttest.Binary()
	require.NoError(t, err)
	me, err := os.Executable()
	require.NoError(t, err)
	mark, log = fmt.Sprintf("%s-%d", filepath.Base(t.Name()), time.Now().UnixNano()), &agenttest.Output{}
	cmd = exec.Command(name, append(append([]string{Verb}, flags...), "--", me, "unruly", kind, mark)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "SECRET=1"}
	cmd.Stdout, cmd.Stderr = log, log
	pipe, err = cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = pipe.Close()
		for _, pid := range agenttest.Marked(mark) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = cmd.Wait()
	})
	return pipe, cmd, mark, log
}

func TestASupervisorEndsWithAllThatItStarted(t *testing.T) {
	t.Parallel()
	ends := map[string]func(cmd *exec.Cmd, close func()){
		"the pipe ends": func(_ *exec.Cmd, close func()) { close() },
		"SIGTERM":       func(cmd *exec.Cmd, _ func()) { _ = cmd.Process.Signal(syscall.SIGTERM) },
		"the time":      func(*exec.Cmd, func()) {},
	}
	for kind, processes := range map[string]int{"deaf": 1, "session": 2, "orphan": 2, "storm": 20} {
		for how, end := range ends {
			if kind == "storm" && how != "SIGTERM" {
				continue // TestAStormIsKilledWhileItBlows has the other
			}
			t.Run(kind+", "+how, func(t *testing.T) {
				t.Parallel()
				var flags []string
				if how == "the time" {
					flags = []string{"--for", "8s"}
				}
				cmd, close, mark, _ := supervisor(t, kind, flags...)
				most := 0
				agenttest.Eventually(t, "they run", func() bool {
					most = max(most, len(agenttest.Marked(mark)))
					return most >= processes
				})
				end(cmd, close)
				err := cmd.Wait()
				require.EqualError(t, err, "exit status 137")
				require.Equal(t, ExitSignal+int(syscall.SIGKILL), cmd.ProcessState.ExitCode(), "it was killed")
				require.Empty(t, agenttest.Marked(mark), "nothing is left when the supervisor ends")
			})
		}
	}
	t.Run("nothing is heard", func(t *testing.T) {
		t.Parallel()
		cmd, _, mark, _ := supervisor(t, "session", "--silence", "3s", "--for", "1h")
		agenttest.Eventually(t, "they run", func() bool { return len(agenttest.Marked(mark)) == 2 })
		_ = cmd.Wait()
		require.Empty(t, agenttest.Marked(mark))
	})
	t.Run("something is heard", func(t *testing.T) {
		t.Parallel()
		pipe, _, mark, _ := supervisorFed(t, "session", "--silence", "2s")
		for range 12 {
			_, _ = pipe.Write([]byte{'\n'})
			time.Sleep(400 * time.Millisecond)
		}
		require.Len(t, agenttest.Marked(mark), 2)
	})
	t.Run("the command ends", func(t *testing.T) {
		t.Parallel()
		cmd, _, mark, log := supervisor(t, "ends")
		_ = cmd.Wait()
		require.Equal(t, 7, cmd.ProcessState.ExitCode(), "the status is the command's")
		require.Contains(t, log.String(), "done\n")
		require.Empty(t, agenttest.Marked(mark))
	})
	t.Run("the supervisor is killed", func(t *testing.T) {
		t.Parallel()
		cmd, _, mark, _ := supervisor(t, "deaf")
		agenttest.Eventually(t, "it runs", func() bool { return len(agenttest.Marked(mark)) == 1 })
		require.NoError(t, cmd.Process.Kill())
		agenttest.Eventually(t, "the command goes with it", func() bool { return len(agenttest.Marked(mark)) == 0 })
	})
}

// TestAStormIsKilledWhileItBlows kills a command in the midst of its forking.
func TestAStormIsKilledWhileItBlows(t *testing.T) {
	t.Parallel()
	for i := range 3 {
		cmd, close, mark, _ := supervisor(t, "storm")
		agenttest.Eventually(t, "it begins", func() bool { return len(agenttest.Marked(mark)) > i*9 })
		close()
		_ = cmd.Wait()
		require.Empty(t, agenttest.Marked(mark))
	}
}

func TestASupervisorSaysWhetherItBegan(t *testing.T) {
	t.Parallel()
	name, err := agenttest.Binary()
	require.NoError(t, err)
	run := func(args ...string) (status int, stdout, stderr string) {
		var out, errs bytes.Buffer
		cmd := exec.Command(name, append([]string{Verb}, args...)...)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/h", "LANG=C", "SECRET=1"}
		cmd.Stdout, cmd.Stderr = &out, &errs
		pipe, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		defer func() { _ = pipe.Close() }()
		_ = cmd.Wait()
		return cmd.ProcessState.ExitCode(), out.String(), errs.String()
	}
	for _, args := range [][]string{nil, {"--"}, {"/bin/true"}, {"--", "true"}, {"--for", "soon", "--", "/bin/true"}, {"--for", "-1s", "--", "/bin/true"}, {"--silence", "0s", "--", "/bin/true"}, {"--loud", "--", "/bin/true"}, {"--for", "--", "/bin/true"}, {"--", "/no/such"}} {
		status, _, errs := run(args...)
		require.Equal(t, ExitNotStarted, status, "%q", args)
		require.Contains(t, errs, supervising+NotStarted, "%q", args)
	}
	status, out, errs := run("--", "/usr/bin/env")
	require.Zero(t, status)
	require.Equal(t, "PATH=/usr/bin:/bin\nHOME=/h\nLANG=C\n", out, "nothing else of the environment")
	require.Equal(t, supervising, errs)
	status, _, _ = run("--", "/bin/sh", "-c", "kill -TERM $$")
	require.Equal(t, ExitSignal+int(syscall.SIGTERM), status)
	status, _, _ = run("--", "/bin/sh", "-c", "kill -TERM 0; sleep 9")
	require.Equal(t, ExitSignal+int(syscall.SIGTERM), status, "a command's group is its own")

	for _, pieces := range [][]string{{supervising + "x"}, {supervising[:5], supervising[5:] + "x"}, strings.Split(supervising+"x", "")} {
		var to bytes.Buffer
		a := &AfterPreamble{To: &to}
		for _, p := range pieces {
			_, err := a.Write([]byte(p))
			require.NoError(t, err)
		}
		require.True(t, a.Begun)
		require.Equal(t, "x", to.String())
	}
	var to bytes.Buffer
	a := &AfterPreamble{To: &to}
	_, _ = a.Write([]byte("prego-ag"))
	_, _ = a.Write([]byte("OCI runtime exec failed"))
	require.False(t, a.Begun)
	require.Equal(t, "prego-agOCI runtime exec failed", to.String())
}
