package child

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFreePortGivesEachOnce: who got a port may not listen on it yet.
func TestFreePortGivesEachOnce(t *testing.T) {
	t.Parallel()
	got := map[int]bool{}
	for range 2000 {
		port, err := FreePort()
		require.NoError(t, err)
		require.False(t, got[port], "port %d is given twice", port)
		got[port] = true
	}
}
