package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// testsOf are the names of a package's tests.
func testsOf(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, m := range testFunction.FindAllSubmatch(b, -1) {
			names = append(names, string(m[1]))
		}
	}
	return names
}

// TestMutantsCanBePlanted: each mutant's text occurs once in its file, and its test exists. A moved file gets its new
// path in the list; a changed text has the mutant ported, so that it plants the same fault.
func TestMutantsCanBePlanted(t *testing.T) {
	t.Parallel()
	const root = "../.."
	all, err := parse(text)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(all), 150)
	tests := map[string][]string{}
	for _, m := range all {
		if m.bug != "" {
			require.FileExists(t, filepath.Join(root, "lab/world/testdata/bugs", m.bug+".patch"))
		} else {
			mutated, err := m.plant(root)
			require.NoError(t, err, m.id)
			is, err := os.ReadFile(filepath.Join(root, m.file))
			require.NoError(t, err)
			require.NotEqual(t, string(is), string(mutated), m.id)
		}
		if _, ok := tests[m.pkg]; !ok {
			tests[m.pkg] = testsOf(t, filepath.Join(root, m.pkg))
		}
		found := slices.ContainsFunc(tests[m.pkg], regexp.MustCompile(m.test).MatchString)
		require.True(t, found, "%s: %s has no test %s", m.id, m.pkg, m.test)
	}
}
