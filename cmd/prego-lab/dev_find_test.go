package main

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPregoIsFoundBesideThisProgramOrOnPath, and first as a release file.
func TestPregoIsFoundBesideThisProgramOrOnPath(t *testing.T) {
	beside, onPath := t.TempDir(), t.TempDir()
	t.Setenv("PATH", onPath)
	_, err := findPrego(beside)
	require.ErrorContains(t, err, "there is no prego in "+beside)
	for _, file := range []string{
		filepath.Join(onPath, "prego"), filepath.Join(beside, "prego"), filepath.Join(beside, "prego-linux-"+runtime.GOARCH),
	} {
		require.NoError(t, os.WriteFile(file, nil, 0o755))
		found, err := findPrego(beside)
		require.NoError(t, err)
		require.Equal(t, file, found)
	}
}
