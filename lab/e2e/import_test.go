package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

// TestImportedServerIsEnrolledAndNeverDestroyedByAFailure takes over a foreign server: the operator runs the API's
// answer on it.
func TestImportedServerIsEnrolledAndNeverDestroyedByAFailure(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: map[string]string{"PREGO_BOOTSTRAP_TOKEN_TTL": "6s"}})
	cloud := hcloud.NewClient(hcloud.WithEndpoint(c.sim.URL()), hcloud.WithToken(c.vars["HCLOUD_TOKEN"]))
	makeServer := func(name string) *hcloud.Server {
		r, _, err := cloud.Server.Create(context.Background(), hcloud.ServerCreateOpts{
			Name: name, ServerType: &hcloud.ServerType{Name: "cx23"}, Image: &hcloud.Image{Name: "debian-12"}, Location: &hcloud.Location{Name: "fsn1"},
			Labels: map[string]string{"team": "legacy"},
		})
		require.NoError(t, err)
		return r.Server
	}
	imported := func(id string, s *hcloud.Server) api.ImportAccepted {
		status, body := c.request(http.MethodPost, "/v1/servers/import", server.ImportRequest{
			ServerID: prego.ServerID(c.id(id)), Role: prego.RoleApp, Region: prego.RegionEU, InfraProvider: prego.ProviderHetzner,
			ProviderServerID: strconv.FormatInt(s.ID, 10), Tags: []string{"legacy"}, ManagedBy: prego.ManagedByPulumi,
		})
		require.Equal(t, http.StatusAccepted, status, "%s", body)
		var a api.ImportAccepted
		require.NoError(t, json.Unmarshal(body, &a))
		return a
	}

	old := makeServer("legacy-1")
	a := imported("old", old)
	c.await("old", "recorded", func(s api.Server) bool { return deref(s.Provider.Ipv4) != "" })
	root := t.TempDir()
	var doc struct {
		WriteFiles []struct{ Path, Content string } `yaml:"write_files"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(a.Bootstrap), &doc))
	for _, f := range doc.WriteFiles {
		target := filepath.Join(root, f.Path)
		require.NoError(t, os.MkdirAll(filepath.Dir(target), 0o755))
		require.NoError(t, os.WriteFile(target, []byte(f.Content), 0o600))
	}
	agent := filepath.Join(bins, "prego-agent")
	addr := old.PublicNet.IPv4.IP.String()
	out, err := exec.Command(agent, "bootstrap", "--root", root, "--addr", addr).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoFileExists(t, filepath.Join(root, wire.BootstrapTokenPath))
	run := exec.Command(agent, "run", "--root", root, "--addr", addr)
	require.NoError(t, run.Start())
	t.Cleanup(func() { _ = run.Process.Kill(); _ = run.Wait() })
	s := c.awaitStatus("old", server.Active)
	require.Equal(t, api.ServerManagedBy("pulumi"), s.ManagedBy)
	require.NotNil(t, s.ImportedFromPulumiAt)
	labels, _, err := cloud.Server.GetByID(context.Background(), old.ID)
	require.NoError(t, err)
	require.Equal(t, "legacy", labels.Labels["team"], "its own labels stay")
	require.Equal(t, c.id("old"), labels.Labels[server.LabelServerID])
	var purpose string
	c.query(&purpose, `SELECT purpose FROM server_bootstrap_tokens WHERE server_id = $1`, c.id("old"))
	require.Equal(t, "import_existing_server", purpose)

	never := makeServer("legacy-2")
	imported("never", never)
	c.awaitFailed("never", prego.ReasonFailedHandshake)
	there, _, err := cloud.Server.GetByID(context.Background(), never.ID)
	require.NoError(t, err)
	require.NotNil(t, there, "a server that was not ours is not destroyed because it was not enrolled")
}
