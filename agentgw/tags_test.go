package agentgw_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

// TestTagsOfAHandshake: the reported tags are kept and compared with the requested ones; invalid tags are refused.
func TestTagsOfAHandshake(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.server("one")
	key := newKey(t)
	status, p, _ := b.handshake("one", key, func(in *wire.HandshakeRequest) { in.Tags = []string{"a b"} })
	require.Equal(t, 422, status)
	require.Equal(t, "tags", p.Field)
	status, _, _ = b.handshake("one", key, func(in *wire.HandshakeRequest) { in.Tags = []string{"Green"} })
	require.Equal(t, 200, status)
	srv, err := b.store.GetServer(t.Context(), "one")
	require.NoError(t, err)
	require.Equal(t, []string{"green"}, srv.AgentTags)
	require.Empty(t, srv.Tags, "the row stands")
	events, err := b.store.ServerEvents(t.Context(), "one")
	require.NoError(t, err)
	require.Equal(t, "the agent says green; the server was asked for with none", events[len(events)-1].Message)
}
