package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/devstack"
)

// TestDevRestartsDeadProcesses, and its files are private.
func TestDevRestartsDeadProcesses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lives, log := filepath.Join(dir, "lives"), filepath.Join(dir, "log")
	s := &stack{died: make(chan *devstack.Process, 1)}
	p, err := devstack.Start(devstack.Spec{
		Name: "mortal", Path: "/bin/sh", Args: []string{"-c", `echo life >>` + lives + `; echo output; [ "$(wc -l <` + lives + `)" -lt 2 ] || exec sleep 600; exit 3`}, Dir: dir, LogFile: log,
	})
	require.NoError(t, err)
	var out bytes.Buffer
	s.keepUp(&out, p)
	require.Eventually(t, func() bool {
		b, _ := os.ReadFile(lives)
		return bytes.Count(b, []byte("\n")) == 2
	}, time.Minute, 20*time.Millisecond)
	require.Empty(t, s.died, "the second one lives")
	s.stop()
	<-s.died // who ends with everything is not started again
	require.Contains(t, out.String(), "started again: mortal")
	info, err := os.Stat(log)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}
