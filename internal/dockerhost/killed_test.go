package dockerhost_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// engineAlone makes the tests' program start an engine with a container and wait.
const engineAlone = "PREGO_TEST_ENGINE_ALONE"

func runEngineAlone() {
	e, err := newEngine("{}")
	if err == nil {
		err = e.runOne()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(e.dir)
	select {}
}

func (e *engine) runOne() error {
	c, err := e.local()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	atOnce := 0
	made, err := c.ContainerCreate(context.Background(), client.ContainerCreateOptions{
		Config: &container.Config{Image: "stub:1", StopTimeout: &atOnce}, HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	if err != nil {
		return err
	}
	_, err = c.ContainerStart(context.Background(), made.ID, client.ContainerStartOptions{})
	return err
}

// TestNothingIsLeftOfAKilledTest kills a test's process, as a timeout or the kernel's
// killer does.
func TestNothingIsLeftOfAKilledTest(t *testing.T) {
	t.Parallel()
	needEngine(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), engineAlone+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, _ := bufio.NewReader(out).ReadString('\n')
	dir := strings.TrimSpace(line)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if dir == "" {
			return
		}
		for pid := range processesOf(dir) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		(&engine{dir: dir}).sweep()
		_ = os.RemoveAll(dir)
	})
	require.NotEmpty(t, dir, "the engine did not start")
	of := func(program string) (n int) {
		for _, line := range processesOf(dir) {
			if strings.Contains(line, program) {
				n++
			}
		}
		return n
	}
	require.Equal(t, 1, of("dockerd\x00"))
	require.Equal(t, 1, of("containerd\x00"))
	require.Equal(t, 1, of("containerd-shim"))
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if !assert.Eventually(t, func() bool { return len(processesOf(dir)) == 0 }, 30*time.Second, 100*time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(dir, "log"))
		t.Errorf("left: %v\nthe end of the engine's log:\n%s", processesOf(dir), text[max(0, len(text)-2000):])
	}
}

// processesOf are the command lines that name a directory, by process.
func processesOf(dir string) map[int]string {
	out := map[int]string{}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if b, readErr := os.ReadFile(f); err == nil && readErr == nil && bytes.Contains(b, []byte(dir+"/")) {
			out[pid] = string(b)
		}
	}
	return out
}
