// Package s3test runs versitygw, an S3 server that keeps its objects in a directory: real
// signatures, uploads in parts and errors, with nothing of ours in between.
package s3test

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/child"
	"github.com/prego/prego/lab/need"
)

// Version is the version that make installs.
const Version = "v1.8.0"

// Program is its name below .prego/bin.
const Program = "versitygw-" + Version

// Server is an S3 server with one bucket.
type Server struct {
	Endpoint  string // URL
	Bucket    string
	Region    string
	AccessKey string
	SecretKey string
	Dir       string // its buckets are directories there, its objects files in them

	t       testing.TB
	program string
	listen  string
	state   string
	mu      sync.Mutex
	run     *child.Process
}

// MayDelete lets everything be deleted: the last gate is in the database, and these tests have none.
func MayDelete(context.Context, string) error { return nil }

// Start starts a server that ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartAt(t, "127.0.0.1")
}

// StartAt starts a server at an address of this machine.
func StartAt(t testing.TB, address string) *Server {
	t.Helper()
	s := &Server{
		Bucket: "backups", Region: "eu-central", AccessKey: "prego-test", SecretKey: "not-a-secret-of-anyone",
		t: t, program: need.Program(t, Program), listen: free(t, address),
	}
	s.Endpoint = "http://" + s.listen
	base := t.TempDir()
	s.Dir, s.state = filepath.Join(base, "objects"), filepath.Join(base, "state")
	for _, d := range []string{s.Dir, filepath.Join(s.Dir, s.Bucket), s.state} {
		require.NoError(t, os.Mkdir(d, 0o700))
	}
	s.Boot()
	return s
}

// Boot starts the server, again after Kill: its objects and uploads are still there.
func (s *Server) Boot() {
	s.t.Helper()
	log, err := os.CreateTemp(s.state, "log")
	require.NoError(s.t, err)
	cmd := exec.Command(s.program, "--access", s.AccessKey, "--secret", s.SecretKey, "--region", s.Region, "--port", s.listen, "--quiet", //nolint:noctx // it ends with the test
		"posix", "--sidecar", s.sidecar(), s.Dir)
	cmd.Stdout, cmd.Stderr = log, log
	run, err := child.Start(cmd, syscall.SIGKILL)
	require.NoError(s.t, err)
	s.mu.Lock()
	s.run = run
	s.mu.Unlock()
	s.t.Cleanup(func() {
		run.Stop(syscall.SIGKILL, 5*time.Second)
		_ = log.Close()
		if s.t.Failed() {
			b, _ := os.ReadFile(log.Name())
			s.t.Logf("versitygw: %s", b[max(0, len(b)-2000):])
		}
	})
	require.Eventually(s.t, func() bool {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, s.Endpoint, nil)
		require.NoError(s.t, err)
		resp, err := need.HTTP.Do(req)
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return true
	}, 20*time.Second, 20*time.Millisecond, "versitygw does not answer")
}

// sidecar keeps the metadata of objects in separate files: not every file system that tests run on has extended
// attributes.
func (s *Server) sidecar() string {
	dir := filepath.Join(s.state, "sidecar")
	require.NoError(s.t, os.MkdirAll(dir, 0o700))
	return dir
}

// Kill ends the server immediately, in the middle of its work.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run.Stop(syscall.SIGKILL, 5*time.Second)
	<-s.run.Done()
}

// File is the file of an object.
func (s *Server) File(key string) string { return filepath.Join(s.Dir, s.Bucket, key) }

func free(t testing.TB, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", address+":0") //nolint:noctx // closed immediately
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
