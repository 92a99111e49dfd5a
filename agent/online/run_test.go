package online

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/rooted"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

func TestHostsDoNotShareIdentities(t *testing.T) {
	t.Parallel()
	a := enrolled(t, agenttest.NewGateway(t))
	copied := *a.host
	copied.Config.ServerID = "app-2"
	_, err := New(&copied, "", "v", agenttest.Quiet())
	require.ErrorContains(t, err, `this host is "app-2"`)
	require.ErrorContains(t, rooted.Bootstrap(t.Context(), &copied, "", "v", agenttest.Quiet()), `this host is "app-2"`)
}

func TestBrokenFilesAreNamed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ file, content, want string }{
		"identity": {wire.IdentityDir + "/identity.json", "{", "identity"},
		"key":      {wire.IdentityDir + "/client.key", "", "client.key is not PEM"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := enrolled(t, agenttest.NewGateway(t))
			require.NoError(t, os.WriteFile(a.host.Path(tc.file), []byte(tc.content), 0o600))
			_, err := New(a.host, "", "v", agenttest.Quiet())
			require.ErrorContains(t, err, tc.want)
		})
	}
	h := agenttest.NewGateway(t).Host(t)
	_, err := New(h, "", "v", agenttest.Quiet())
	require.ErrorIs(t, err, ErrNoIdentity)
	require.NoError(t, os.Remove(h.Path(wire.BootstrapTokenPath)))
	require.ErrorContains(t, rooted.Bootstrap(t.Context(), h, "", "v", agenttest.Quiet()), "bootstrap token")
}
