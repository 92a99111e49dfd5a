package e2e

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

// agentReleaseKey signs releases of the agent; the agents of tests are built with its public half.
var agentReleaseKey = ed25519.NewKeyFromSeed([]byte("a key for releases in tests only"))

func agentReleaseKeys() string {
	return base64.StdEncoding.EncodeToString(agentReleaseKey[ed25519.SeedSize:])
}

// built builds a program as a release of the agent, and returns its file.
func built(t *testing.T, version, from string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "prego-agent-"+version)
	build := exec.CommandContext(t.Context(), "go", "build", buildTags, "-trimpath", "-ldflags", "-s -w -X main.version="+version+" -X main.releaseKeys="+agentReleaseKeys(), "-o", file, from)
	build.Dir, build.Env = repo, append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return file
}

// agentReleases are releases of the agent in a cell.
type agentReleases struct {
	*cell
	dir    string // that gateways serve
	serial int64
}

// offer puts a program where gateways serve it, signs it, and starts its release.
func (r *agentReleases) offer(version, file string, key ed25519.PrivateKey, percents ...int) {
	r.t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(r.t, err)
	sum := sha256.Sum256(b)
	require.NoError(r.t, os.WriteFile(filepath.Join(r.dir, hex.EncodeToString(sum[:])), b, 0o600))
	r.serial++
	signed, err := wire.SignAgentUpdate(wire.AgentUpdate{Version: version, Serial: r.serial, SHA256: hex.EncodeToString(sum[:]), Bytes: int64(len(b)), Arch: runtime.GOARCH}, key)
	require.NoError(r.t, err)
	r.create(version, signed, percents...)
}

func (r *agentReleases) create(version string, signed wire.SignedAgentUpdate, percents ...int) {
	r.t.Helper()
	rings := []map[string]any{}
	for _, n := range percents {
		rings = append(rings, map[string]any{"name": fmt.Sprint("first-", n), "percent": n})
	}
	r.post("/v1/agent-releases", map[string]any{"signed": signed, "rings": rings}, http.StatusCreated, nil)
	r.post("/v1/agent-releases/"+version+"/start", nil, http.StatusOK, nil)
}

func (r *agentReleases) rests(version, status string) (out api.AgentRelease) {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		r.send(http.MethodGet, "/v1/agent-releases/"+version, nil, http.StatusOK, &out)
		if out.Status == status {
			return out
		}
		if time.Now().After(deadline) || server.ReleaseStatus(out.Status).Rests() {
			b, _ := json.MarshalIndent(out, "", " ")
			r.t.Fatalf("release %s of the agent is not %s:\n%s", version, status, b)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestAgentsAreUpdated: by rings; a program without heartbeats is rolled back by itself, and its release stops; a
// program with a foreign signature or another digest is never run.
func TestAgentsAreUpdated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := newCell(t, options{
		vars: map[string]string{"PREGO_AGENTGW_AGENT_RELEASES": dir, "PREGO_AGENT_RELEASE_SERVERS": "1"},
		sim:  func(cfg *sim.Config) { cfg.UpdateTrial = 8 * time.Second },
	})
	names := []string{"a", "b", "c"}
	for _, name := range names {
		c.create(name, prego.RoleRedisPool, server.Spec{})
	}
	for _, name := range names {
		c.awaitStatus(name, server.Active)
	}
	run := func(version string, names ...string) {
		t.Helper()
		for _, name := range names {
			eventually(t, func() bool {
				var v, status string
				c.query(&v, `SELECT agent_version FROM servers WHERE server_id = $1 AND agent_last_heartbeat_at > now() - interval '5 seconds'`, c.id(name))
				c.query(&status, `SELECT agent_status FROM servers WHERE server_id = $1`, c.id(name))
				return v == version && status == "connected"
			}, patience, 50*time.Millisecond, "%s runs %s", name, version)
		}
	}
	r := &agentReleases{cell: c, dir: dir, serial: time.Now().Add(-time.Hour).Unix()}

	// A good one, signed as an operator does.
	file := built(t, "e2e-2", "./cmd/prego-agent")
	key, err := x509.MarshalPKCS8PrivateKey(agentReleaseKey)
	require.NoError(t, err)
	pemFile := filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, os.WriteFile(pemFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	out, err := exec.CommandContext(t.Context(), filepath.Join(bins, "prego"), "keys", "sign-agent", file, "--key", pemFile).Output()
	require.NoError(t, err)
	var signed wire.SignedAgentUpdate
	require.NoError(t, json.Unmarshal(out, &signed))
	said, err := signed.Read()
	require.NoError(t, err)
	require.Equal(t, "e2e-2", said.Version)
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, said.SHA256), b, 0o600))
	r.serial = said.Serial
	began := time.Now()
	r.create("e2e-2", signed, 30)
	done := r.rests("e2e-2", "done")
	require.Len(t, done.Servers, 3)
	require.Equal(t, "first-30", done.Servers[0].Ring)
	run("e2e-2", names...)
	t.Logf("3 agents were updated one by one in %.1f s", time.Since(began).Seconds())
	// The processes that run commands, and the updaters, follow.
	for _, name := range names {
		root := c.rootOf(c.id(name))
		eventually(t, func() bool {
			for _, h := range c.sim.Hosts() {
				if h.Root == root && h.ExecPID > 0 {
					exe, err := os.Stat(fmt.Sprintf("/proc/%d/exe", h.ExecPID))
					now, nerr := os.Stat(filepath.Join(root, wire.AgentBinary))
					return err == nil && nerr == nil && os.SameFile(exe, now)
				}
			}
			return false
		}, patience, 100*time.Millisecond)
		copied, err := os.ReadFile(filepath.Join(root, wire.UpdateProgram))
		require.NoError(t, err)
		require.Equal(t, b, copied)
	}

	// A release without heartbeats: the host goes back by itself.
	r.offer("e2e-3", built(t, "e2e-3", "./lab/e2e/testdata/mute-agent"), agentReleaseKey, 30)
	began = time.Now()
	stopped := r.rests("e2e-3", "stopped")
	require.Equal(t, "went_back", deref(stopped.Reason))
	require.Equal(t, "back", stopped.Servers[0].Status)
	require.Contains(t, deref(stopped.Message), "was not heard of within 8s")
	for _, s := range stopped.Servers[1:] {
		require.Equal(t, "pending", s.Status, "the wave has stopped")
	}
	run("e2e-2", names...)
	t.Logf("a host with an agent that never beats had its old one back, and the release had stopped, after %.1f s", time.Since(began).Seconds())
	r.post("/v1/agent-releases/e2e-3/cancel", nil, http.StatusOK, nil)

	// A release with a foreign signature.
	_, stranger, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	good := built(t, "e2e-4", "./cmd/prego-agent")
	r.offer("e2e-4", good, stranger)
	refused := r.rests("e2e-4", "stopped")
	require.Equal(t, "refused", deref(refused.Reason))
	require.Contains(t, deref(refused.Message), "no key that is trusted here")
	r.post("/v1/agent-releases/e2e-4/cancel", nil, http.StatusOK, nil)

	// A release with another digest, and a release signed earlier than the running one.
	five := built(t, "e2e-5", "./cmd/prego-agent")
	b, err = os.ReadFile(five)
	require.NoError(t, err)
	sum := sha256.Sum256(b)
	r.serial++
	signed, err = wire.SignAgentUpdate(wire.AgentUpdate{Version: "e2e-5", Serial: r.serial, SHA256: hex.EncodeToString(sum[:]), Bytes: int64(len(b)), Arch: runtime.GOARCH}, agentReleaseKey)
	require.NoError(t, err)
	changed := slices.Clone(b)
	changed[len(changed)/2] ^= 1
	require.NoError(t, os.WriteFile(filepath.Join(dir, hex.EncodeToString(sum[:])), changed, 0o600))
	r.create("e2e-5", signed)
	refused = r.rests("e2e-5", "stopped")
	require.Contains(t, deref(refused.Message), "differs from the signed one")
	r.post("/v1/agent-releases/e2e-5/cancel", nil, http.StatusOK, nil)
	run("e2e-2", names...)
	require.Equal(t, 0, c.number(`SELECT count(*) FROM servers WHERE status = 'active' AND agent_version <> 'e2e-2'`))
}
