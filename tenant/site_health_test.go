package tenant

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUptimeIsAtMost100: rounding must not show more.
func TestUptimeIsAtMost100(t *testing.T) {
	t.Parallel()
	for i := range 10_000 {
		require.Equal(t, 100.0, *Uptime{UpSeconds: float64(i+1) * 0.37}.Pct())
	}
	require.Equal(t, 75.0, *Uptime{UpSeconds: 3, DownSeconds: 1, UnobservedSeconds: 9}.Pct())
	require.Nil(t, Uptime{UnobservedSeconds: 9}.Pct())
}
