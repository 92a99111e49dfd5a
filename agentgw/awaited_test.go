package agentgw

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

// TestARunIsToldOnce: one signal per attempt, again after a minute, after a new handshake, and after a failed signal.
func TestARunIsToldOnce(t *testing.T) {
	t.Parallel()
	a, now := newAwaited(), time.Now()
	require.False(t, a.arrived("s"), "no run waits for it")
	a.expect("s")
	require.True(t, a.arrived("s"))
	require.False(t, a.arrived("s"), "it was the first one")

	require.True(t, a.tell("s", 1, now))
	require.False(t, a.tell("s", 1, now.Add(tellAgain-time.Second)))
	require.True(t, a.tell("s", 1, now.Add(tellAgain)), "the signal may have been lost")
	require.True(t, a.tell("s", 2, now.Add(tellAgain)), "another attempt")
	require.True(t, a.tell("other", 1, now))
	a.forget("s")
	require.True(t, a.tell("s", 2, now.Add(tellAgain)), "it was not sent")
	a.expect("s")
	require.True(t, a.tell("s", 2, now.Add(tellAgain)), "an import that is taken over again keeps its attempt")
}

// TestAwaitedServersAreBounded: hosts that never become active leave nothing behind permanently.
func TestAwaitedServersAreBounded(t *testing.T) {
	t.Parallel()
	a := newAwaited()
	for i := range 2*maxAwaited + 1 {
		id := prego.ServerID(strconv.Itoa(i))
		a.expect(id)
		a.tell(id, 1, time.Now())
	}
	require.LessOrEqual(t, len(a.expected), maxAwaited)
	require.LessOrEqual(t, len(a.told), maxAwaited)
}
