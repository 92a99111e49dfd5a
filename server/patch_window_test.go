package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPatchWindow(t *testing.T) {
	t.Parallel()
	w, err := NewPatchWindow("0 2 * * 2", 3*time.Hour) // Tuesdays at two
	require.NoError(t, err)
	tuesday := time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC)
	for after, open := range map[time.Duration]bool{-time.Second: false, 0: true, time.Hour: true, 3*time.Hour - time.Second: true, 3 * time.Hour: false, 24 * time.Hour: false, 7 * 24 * time.Hour: true} {
		since, is := w.OpenSince(tuesday.Add(after).In(time.FixedZone("", 7200)))
		require.Equal(t, open, is, after)
		if open && after < 24*time.Hour {
			require.Equal(t, tuesday, since)
		}
	}
	never, err := NewPatchWindow("", 0)
	require.NoError(t, err)
	_, is := never.OpenSince(tuesday)
	require.False(t, is)
	for expression, open := range map[string]time.Duration{"0 2 * *": time.Hour, "0 2 * * 2": time.Second, "0 25 * * 2": time.Hour, "@daily": time.Hour, "0 3 * * *": 25 * time.Hour} {
		_, err := NewPatchWindow(expression, open)
		require.Error(t, err, expression)
	}
}
