package agent

import (
	"os"
	"testing"

	"github.com/prego/prego/agent/wire"
	"github.com/stretchr/testify/require"
)

func TestHostsDoNotShareIdentities(t *testing.T) {
	t.Parallel()
	a := enrolled(t, newTestGateway(t))
	copied := *a.host
	copied.Config.ServerID = "app-2"
	_, err := New(&copied, "", "v", quiet())
	require.ErrorContains(t, err, `this host is "app-2"`)
	require.ErrorContains(t, Bootstrap(t.Context(), &copied, "", "v", quiet()), `this host is "app-2"`)
}

func TestBrokenFilesAreNamed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ file, content, want string }{
		"identity": {wire.IdentityDir + "/identity.json", "{", "identity"},
		"key":      {wire.IdentityDir + "/client.key", "", "client.key is not PEM"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := enrolled(t, newTestGateway(t))
			require.NoError(t, os.WriteFile(a.host.path(tc.file), []byte(tc.content), 0o600))
			_, err := New(a.host, "", "v", quiet())
			require.ErrorContains(t, err, tc.want)
		})
	}
	h := newTestGateway(t).host(t)
	_, err := New(h, "", "v", quiet())
	require.ErrorIs(t, err, ErrNoIdentity)
	require.NoError(t, os.Remove(h.path(wire.BootstrapTokenPath)))
	require.ErrorContains(t, Bootstrap(t.Context(), h, "", "v", quiet()), "bootstrap token")
}
