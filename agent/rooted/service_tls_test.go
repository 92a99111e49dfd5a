package rooted

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

func TestServiceTLSIsInstalled(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	h := g.Host(t)
	require.NoError(t, InstallServiceTLS(t.Context(), h), "there is none yet")
	k, err := h.LoadKeys()
	require.NoError(t, err)
	csrs, err := k.CSRs(h.Config)
	require.NoError(t, err)
	require.NotEmpty(t, csrs.Service, "an app server has one as a client")
	id := &wire.Identity{Bundles: wire.Bundles{ServiceServer: "servers", ServiceClient: "clients"}, Certificates: wire.Certificates{Service: "first"}}
	require.NoError(t, h.SaveIdentity(id, k))
	require.NoError(t, InstallServiceTLS(t.Context(), h))
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(h.Path(wire.BenchMount), wire.TLSDir, name))
		require.NoError(t, err)
		return string(b)
	}
	require.Equal(t, "servers", read("ca.pem"), "a client trusts servers")
	require.Equal(t, "first", read("cert.pem"))
	key := read("key.pem")
	require.Contains(t, key, "PRIVATE KEY")
	id.Certificates.Service = "second"
	require.NoError(t, h.SaveIdentity(id, k))
	require.NoError(t, InstallServiceTLS(t.Context(), h))
	require.Equal(t, "second", read("cert.pem"))
	require.Equal(t, key, read("key.pem"), "the key stays")

	h.Config.Role = "node"
	none, err := k.CSRs(h.Config)
	require.NoError(t, err)
	require.Empty(t, none.Service)
	h.Config.Role = "redis-pool"
	require.NoError(t, h.SaveIdentity(id, k))
	b, err := os.ReadFile(h.Path(wire.ServiceTLSDir + "/ca.pem"))
	require.NoError(t, err)
	require.Equal(t, "clients", string(b), "a server trusts clients")
}
