package worker_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryKindOfRunIsDocumented: whoever finds a run in Temporal's UI finds what it does.
func TestEveryKindOfRunIsDocumented(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("worker.go")
	require.NoError(t, err)
	page, err := os.ReadFile("../docs/temporal.md")
	require.NoError(t, err)
	table := regexp.MustCompile(`(?s)## Which run does what\n(.*?)\n## `).FindSubmatch(page)
	require.NotNil(t, table)
	call := regexp.MustCompile(`(?:RegisterWorkflow\(|register\(r, )workflows\.(\w+)\)`)
	registered := call.FindAllSubmatch(source, -1)
	require.Greater(t, len(registered), 20)
	for _, r := range registered {
		require.Regexp(t, `\| [\w, ]*\b`+string(r[1])+`\b[\w, ]* \|`, string(table[1]))
	}
}
