//go:build machines

package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

// TestMachineGoldenImage builds an image with the real scripts on a real Debian, boots a
// machine from it, and looks at what a copy must not share with its builder.
func TestMachineGoldenImage(t *testing.T) {
	t.Parallel()
	for _, debian := range []string{"12", "13"} {
		t.Run("debian-"+debian, func(t *testing.T) {
			t.Parallel()
			c := machineCell(t, options{})
			c.machines(2)
			began := time.Now()
			status, body := c.request(http.MethodPost, "/v1/images", map[string]any{"debian": debian})
			require.Equal(t, http.StatusAccepted, status, "%s", body)
			var g api.GoldenImage
			require.NoError(t, json.Unmarshal(body, &g))
			eventually(t, func() bool { return server.ImageStatus(c.image(g.ImageId).Status).Rests() }, 8*time.Minute, 500*time.Millisecond)
			g = c.awaitImage(g.ImageId, server.ImageReady, "")
			t.Logf("built and verified in %s", time.Since(began).Round(time.Second))
			require.Empty(t, c.billed("server"))

			var boots []time.Duration
			var ids []string
			for _, name := range []string{"one", "two"} {
				m := c.machine(name, prego.RoleApp, server.Spec{Image: deref(g.ProviderImageId)})
				s := m.awaitActive()
				boots = append(boots, s.ActiveAt.Sub(s.CreatedAt).Round(100*time.Millisecond))
				require.Equal(t, debian, m.run(`. /etc/os-release; echo "$VERSION_ID"`))
				require.Contains(t, m.run("cat /etc/prego-image.json"), `"debian-`+debian+`"`)
				m.run("! test -e /etc/prego-image && ! test -e /etc/systemd/system/prego-image-seal.service")
				m.run("! test -e /var/log/apt/history.log && ! ls /var/lib/apt/lists/*_InRelease") // no mirror was asked
				m.awaitRun(`[ "$(systemctl is-system-running)" = running ]`)
				for _, image := range g.Containers {
					m.run(`python3 -c 'import http.client, socket, sys; c = http.client.HTTPConnection("x"); c.sock = socket.socket(socket.AF_UNIX); c.sock.connect("/run/docker.sock"); c.request("GET", "/images/" + sys.argv[1] + "/json"); sys.exit(c.getresponse().status != 200)' ` + image)
				}
				m.containersRun()
				ids = append(ids, m.run("cat /etc/machine-id"), m.run("cat /var/lib/docker/engine-id 2>/dev/null || cat /etc/docker/key.json"), m.run("hostname"))
			}
			require.Len(t, ids, 6)
			for i := range 3 {
				require.NotEmpty(t, ids[i])
				require.NotEqual(t, ids[i], ids[i+3], "two machines made from one image share their identity")
			}
			require.Len(t, strings.TrimSpace(ids[0]), 32, "a machine-id")
			t.Logf("made from it: active in %v", boots)
		})
	}
}
