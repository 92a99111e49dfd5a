package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/tools/go/analysis/analysistest"
)

// TestForbiddenPatternsAreFound: each way to write one, and what looks like one and is none.
func TestForbiddenPatternsAreFound(t *testing.T) {
	t.Setenv("GOFLAGS", "") // -trimpath hides where the files are
	analysistest.Run(t, analysistest.TestData(), Analyzer, "a", "clean", "lab/sim", "wire")
}

func TestForbiddenTextIsFound(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/text.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		says, planted, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " | ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			got := inText("clean\n" + planted + "\n")
			if says == "ok" {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Contains(t, got[0].says, says)
			require.Equal(t, 2, got[0].line)
		})
	}
}

// TestTheAgentsKindsAreEight: the list is not widened without a decision.
func TestTheAgentsKindsAreEight(t *testing.T) {
	t.Parallel()
	require.Len(t, kinds, 8+2, "and spool, and none")
}
