// Package golden compares what code writes with files that are kept beside its tests. Tests that use it have the
// flag -update, which writes the files anew (`make golden`).
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Update is whether the flag is set.
var Update = flag.Bool("update", false, "rewrite the golden files")

// Equal fails with the first line of got that the file does not have, or writes the file.
func Equal(t testing.TB, file, got string) {
	t.Helper()
	if *Update {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o750))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
		return
	}
	if want := read(t, file); want != got {
		differs(t, file, want, got)
	}
}

// Begins is Equal for the part of a long file that is made so far.
func Begins(t testing.TB, file, got string) {
	t.Helper()
	if *Update {
		return
	}
	if want := read(t, file); !strings.HasPrefix(want, got) {
		differs(t, file, want, got)
	}
}

func read(t testing.TB, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err, "-update writes it")
	return string(b)
}

func differs(t testing.TB, file, want, got string) {
	t.Helper()
	wants, lines := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i, line := range lines {
		if i >= len(wants) {
			require.FailNow(t, "the file is shorter", "%s has no line %d: %s", file, i+1, line)
		}
		require.Equal(t, wants[i], line, "line %d of %s; -update if the change is meant", i+1, file)
	}
	require.FailNow(t, "the file is longer", "%s has a line %d: %s", file, len(lines)+1, wants[len(lines)])
}
