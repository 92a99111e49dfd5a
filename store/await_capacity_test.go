package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/server"
)

// TestWaitingForCapacityIsTwoLines: an hour of rounds with the same refusal is on the timeline once, and another refusal
// once more.
func TestWaitingForCapacityIsTwoLines(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := tenantStore(t)
	exec(t, s, benchesHere, "app-1", "app", "provisioning")
	lines := func() (out []string) {
		t.Helper()
		out, err := values[string](ctx, s.pool, `SELECT step || ' ' || reason || ' ' || message FROM server_events
			WHERE server_id = 'app-1' AND step IN ('create_refused', 'awaiting_capacity') ORDER BY event_id`)
		require.NoError(t, err)
		return out
	}
	attempt := 0
	round := func(generation int, code, text string) {
		t.Helper()
		attempt++
		refusal := &server.InfraError{Class: server.InfraNext, Code: code, Message: text}
		require.NoError(t, s.IntentRefused(ctx, "app-1", generation, attempt, server.Candidate{ServerType: "cx43", Location: "fsn1"}, refusal))
		require.NoError(t, s.AwaitCapacity(ctx, "app-1", generation, attempt, refusal.Error()))
	}
	for range 10 {
		round(1, "resource_unavailable", "error during placement")
	}
	want := []string{
		"create_refused resource_unavailable cx43 in fsn1: error during placement",
		"awaiting_capacity awaiting_capacity provider: error during placement (resource_unavailable)",
	}
	require.Equal(t, want, lines())
	round(1, "invalid_input", "server type is deprecated")
	want = append(want,
		"create_refused invalid_input cx43 in fsn1: server type is deprecated",
		"awaiting_capacity awaiting_capacity provider: server type is deprecated (invalid_input)")
	require.Equal(t, want, lines())
	exec(t, s, `UPDATE servers SET generation = 2`)
	round(2, "invalid_input", "server type is deprecated")
	require.Equal(t, append(want, want[2:]...), lines(), "a retried server waits anew")
}
