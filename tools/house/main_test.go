package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFilesAreCountedByKind(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]string{
		"store/server.go": "product", "cmd/prego/main.go": "product", "lab/sim/sim.go": "lab", "cmd/prego-lab/dev.go": "lab", "tools/house/main.go": "lab",
		"store/server_test.go": "tests", "lab/e2e/cell_test.go": "tests", "api/openapi.gen.go": "generated", "migrations/functions/a.sql": "SQL",
		"agent/testdata/a.go": "", "README.md": "",
	} {
		require.Equal(t, kind, kindOf(name), name)
	}
}

func TestHabitsAreCountedInProse(t *testing.T) {
	t.Parallel()
	habits, err := parseHabits(habitsText)
	require.NoError(t, err)
	c := census{lines: map[string]int{}, rooms: map[string]bool{}, habits: habits, hits: map[string]int{}}
	c.count("store/a.go", "// It is tried at once, and nobody waits.\nx := nobody(\"it says so, too\")\n")
	c.count("docs/a.md", "The run goes on.\n")
	require.Equal(t, 1, c.hits["at once"])
	require.Equal(t, 1, c.hits["nobody/somebody/everybody"], "names of code are not read")
	require.Equal(t, 1, c.hits["say/tell/told for programs"])
	require.Equal(t, 1, c.hits[", too"])
	require.Equal(t, 1, c.hits["go on / goes on"])
	require.Equal(t, 2, c.lines["product"])
	_, err = parseHabits("a name without a pattern\n")
	require.Error(t, err)
}
