package online

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

// BenchmarkExec is a command's whole way: connection kept, token, both processes'
// checks (here in one), supervisor, result on disk. BenchmarkSpawn is its bare limit:
// the same program, started and waited for.
func BenchmarkExec(b *testing.B) {
	_, call := withBench(b, `:`)
	require.Equal(b, http.StatusOK, call(wire.ExecRequest{}).StatusCode)
	for b.Loop() {
		call(wire.ExecRequest{})
	}
}

func BenchmarkSpawn(b *testing.B) {
	root := b.TempDir()
	agenttest.PutBench(b, root, `:`)
	for b.Loop() {
		require.NoError(b, exec.CommandContext(b.Context(), filepath.Join(root, wire.BenchBinary), "list-sites").Run())
	}
}
