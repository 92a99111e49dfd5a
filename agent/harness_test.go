package agent

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// enrolled is an agent on a host that went through its bootstrap.
func enrolled(t testing.TB, g *testGateway) *Agent {
	t.Helper()
	h := g.host(t)
	require.NoError(t, Bootstrap(t.Context(), h, "127.0.0.1", "v-test", quiet()))
	a, err := New(h, "127.0.0.1", "v-test", quiet())
	require.NoError(t, err)
	return a
}
