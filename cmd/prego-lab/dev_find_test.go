package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPregoIsFoundBesideThisProgramOrOnPath, in this order.
func TestPregoIsFoundBesideThisProgramOrOnPath(t *testing.T) {
	beside, onPath := t.TempDir(), t.TempDir()
	t.Setenv("PATH", onPath)
	_, err := findPrego(beside)
	require.ErrorContains(t, err, "there is no prego in "+beside)
	for _, dir := range []string{onPath, beside} {
		file := filepath.Join(dir, "prego")
		require.NoError(t, os.WriteFile(file, nil, 0o755))
		found, err := findPrego(beside)
		require.NoError(t, err)
		require.Equal(t, file, found)
	}
}
