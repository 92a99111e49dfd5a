package main

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
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
	s.keepUp(&out, p, p.Again)
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

// TestTheWorkerIsReplacedWhenObjectStorageAppears: by one with the new settings, and without a report of a death.
func TestTheWorkerIsReplacedWhenObjectStorageAppears(t *testing.T) {
	t.Parallel()
	ready := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(ready.Close)
	ready.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	address, err := net.ResolveTCPAddr("tcp", ready.Listener.Addr().String())
	require.NoError(t, err)
	dir := t.TempDir()
	seen := filepath.Join(dir, "seen")
	var out bytes.Buffer
	s := &stack{
		dir: dir, out: &out, died: make(chan *devstack.Process, 1), f: devFlags{gwPort: address.Port - 10001},
		env: []string{"PREGO_BACKUP_ENDPOINT=before"},
	}
	launch := func() (*devstack.Process, error) {
		return devstack.Start(devstack.Spec{
			Name: "worker", Path: "/bin/sh", Env: s.env,
			Args: []string{"-c", `echo $PREGO_BACKUP_ENDPOINT >>` + seen + `; exec sleep 600`},
		})
	}
	p, err := launch()
	require.NoError(t, err)
	s.keepUp(&out, p, launch)
	wrote := func(want string) {
		require.Eventually(t, func() bool {
			b, _ := os.ReadFile(seen)
			return string(b) == want
		}, time.Minute, 20*time.Millisecond)
	}
	wrote("before\n")
	require.NoError(t, s.set(map[string]string{"PREGO_BACKUP_ENDPOINT": "after"}))
	t.Cleanup(func() { _ = os.Unsetenv("PREGO_BACKUP_ENDPOINT") })
	require.NoError(t, s.replaceWorker(t.Context()))
	wrote("before\nafter\n")
	s.stop()
	<-s.died
	require.Empty(t, out.String())
}

// TestPortsAreDistinct: with the defaults no two parts listen on the same port, and all ports are checked beforehand.
func TestPortsAreDistinct(t *testing.T) {
	t.Parallel()
	s := &stack{}
	s.f.add(pflag.NewFlagSet("", pflag.ContinueOnError))
	seen := map[int]string{}
	for _, p := range s.ports() {
		require.Empty(t, seen[p.port], "%s", p.what)
		seen[p.port] = p.what
	}
}
