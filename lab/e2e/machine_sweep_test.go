//go:build machines

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/sim"
)

// TestMachineOfAKilledSimulatorIsRemoved starts a simulator, kills it, and lets the next
// one clean up.
func TestMachineOfAKilledSimulatorIsRemoved(t *testing.T) {
	t.Parallel()
	takeTurn(t, 1)
	dir := t.TempDir()
	port := freePort(t)
	addr := fmt.Sprintf("http://127.0.0.1:%d", port)
	cmd := exec.Command(filepath.Join(bins, "prego-lab"), "sim", "--hosts", "machine", "--machines", machineRoots(), "--state-dir", dir, "--listen", addr[len("http://"):], "--fast")
	var logs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &logs, &logs
	require.NoError(t, cmd.Start())
	killed := false
	kill := func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(kill)
	call := func(method, path string, body, into any) error {
		b, err := json.Marshal(body)
		require.NoError(t, err)
		req, err := http.NewRequest(method, addr+path, bytes.NewReader(b))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer simulated")
		resp, err := need.HTTP.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		return json.NewDecoder(resp.Body).Decode(into)
	}
	var hosts struct{ Hosts []sim.HostInfo }
	eventually(t, func() bool { return call(http.MethodGet, "/_sim/hosts", nil, &hosts) == nil }, patience, 50*time.Millisecond, "%s", &logs)
	var volume struct{ Volume struct{ ID int64 } }
	require.NoError(t, call(http.MethodPost, "/v1/volumes", map[string]any{"name": "v", "size": 10, "location": "fsn1", "format": "ext4"}, &volume))
	var made map[string]any
	require.NoError(t, call(http.MethodPost, "/v1/servers", map[string]any{"name": "left", "server_type": "cx23", "image": "debian-13", "location": "fsn1", "volumes": []int64{volume.Volume.ID}}, &made))
	eventually(t, func() bool {
		if call(http.MethodGet, "/_sim/hosts", nil, &hosts) != nil || len(hosts.Hosts) != 1 {
			return false
		}
		b, _ := os.ReadFile(filepath.Join(filepath.Dir(hosts.Hosts[0].Root), "console.log"))
		return bytes.Contains(b, []byte("Welcome to"))
	}, patience, 50*time.Millisecond, "it boots")
	kill()
	require.NoError(t, sim.SweepMachines())
	nothingLeft(t, hosts.Hosts[0])
}
