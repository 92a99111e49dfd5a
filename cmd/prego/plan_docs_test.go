package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// TestDocsOfRegions runs every example of docs/regions.md.
func TestDocsOfRegions(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/regions.md")
	require.NoError(t, err)
	verbs := map[string]func() *cobra.Command{"region": newPlanRegionCommand, "resize": newPlanResizeCommand, "constraint": newPlanConstraintCommand}
	ran := map[string]int{}
	lines := strings.Split(string(page), "\n")
	for i, line := range lines {
		command, ok := strings.CutPrefix(line, "$ prego plan ")
		if !ok {
			continue
		}
		verb, stdin, ok := strings.Cut(command, " <<< ")
		require.True(t, ok && verbs[verb] != nil, line)
		out, err := plan(verbs[verb], strings.Trim(stdin, "'"))
		require.NoError(t, err, line)
		require.Equal(t, lines[i+1]+"\n", out, line)
		ran[verb]++
	}
	require.Equal(t, map[string]int{"region": 5, "resize": 4, "constraint": 3}, ran)
}
