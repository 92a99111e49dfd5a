package online

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/rooted"
	"github.com/prego/prego/lab/agenttest"
)

// enrolled is an agent on a host that went through its bootstrap.
func enrolled(t testing.TB, g *agenttest.Gateway) *Agent {
	t.Helper()
	h := g.Host(t)
	require.NoError(t, rooted.Bootstrap(t.Context(), h, "127.0.0.1", "v-test", agenttest.Quiet()))
	a, err := New(h, "127.0.0.1", "v-test", agenttest.Quiet())
	require.NoError(t, err)
	return a
}
