package host

import (
	"encoding/json"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

// configured is the root directory of a host with a configuration.
func configured(t *testing.T, cfg wire.HostConfig) string {
	t.Helper()
	root := t.TempDir()
	b, err := json.Marshal(cfg)
	require.NoError(t, err)
	name := filepath.Join(root, wire.HostConfigPath)
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, b, 0o600))
	return root
}

func TestOpenHostRefusesWhatNoAgentCouldWorkWith(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spoil func(c *wire.HostConfig)
		want  string
	}{
		"no server":      {func(c *wire.HostConfig) { c.ServerID = "" }, "server_id"},
		"no environment": {func(c *wire.HostConfig) { c.Environment = "" }, "environment"},
		"no name":        {func(c *wire.HostConfig) { c.GatewayServerName = "" }, "gateway_server_name"},
		"plain HTTP":     {func(c *wire.HostConfig) { c.GatewayURL = "http://gw.example.com" }, "https"},
		"no URL":         {func(c *wire.HostConfig) { c.GatewayURL = "" }, "https"},
		"no port":        {func(c *wire.HostConfig) { c.AgentPort = 0 }, "agent_port"},
		"port too high":  {func(c *wire.HostConfig) { c.AgentPort = 65536 }, "agent_port"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := wire.HostConfig{ServerID: "app-1", Environment: "test", GatewayURL: "https://gw.example.com", GatewayServerName: "gw", AgentPort: 8443}
			_, err := OpenHost(configured(t, cfg))
			require.NoError(t, err)
			tc.spoil(&cfg)
			_, err = OpenHost(configured(t, cfg))
			require.ErrorContains(t, err, tc.want)
		})
	}
	t.Run("not JSON", func(t *testing.T) {
		t.Parallel()
		root := configured(t, wire.HostConfig{})
		require.NoError(t, os.WriteFile(filepath.Join(root, wire.HostConfigPath), []byte("{"), 0o600))
		_, err := OpenHost(root)
		require.ErrorContains(t, err, wire.HostConfigPath)
	})
}

func TestWriteFileLeavesTheOldOrTheNewAndNoLitter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	require.NoError(t, WriteFile(name, []byte("one"), 0o600))
	require.NoError(t, WriteFile(name, []byte("two"), 0o600))
	require.ErrorIs(t, WriteFile(filepath.Join(dir, "none", "f"), []byte("x"), 0o600), fs.ErrNotExist)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
	require.ErrorIs(t, WriteFile(filepath.Join(dir, "d"), []byte("x"), 0o600), fs.ErrExist, "a directory is not replaced")
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "two", string(b))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 2)
}

func TestWhoCantBeNamedIsAStranger(t *testing.T) {
	t.Parallel()
	conn, other := net.Pipe()
	defer func() { _, _ = conn.Close(), other.Close() }()
	_, err := peerUID(conn)
	require.ErrorContains(t, err, "not a socket of the host")
}
