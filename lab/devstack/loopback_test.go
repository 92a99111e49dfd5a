package devstack

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRangesOfOneProcessDiffer(t *testing.T) {
	t.Parallel()
	seen := map[netip.Prefix]bool{}
	for n := range int64(loopbackRanges) {
		p, err := netip.ParsePrefix(NthLoopbackRange("a", n))
		require.NoError(t, err)
		require.Equal(t, p, p.Masked())
		require.GreaterOrEqual(t, p.Addr().As4()[1], byte(246), "hosts' public addresses are below")
		require.False(t, seen[p], p)
		seen[p] = true
	}
	require.Equal(t, LoopbackRange("a"), NthLoopbackRange("a", loopbackRanges))
}
