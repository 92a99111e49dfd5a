package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func figures(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bench.json")
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return path
}

func alone(ratios ...string) []string {
	var lines []string
	for _, r := range ratios {
		lines = append(lines, `{"name":"server_alone","value":1,"unit":"ms","bare":1,"ratio":`+r+`}`)
	}
	return lines
}

func TestRunComparesMediansAndNoise(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		recorded, now []string
		want          string
	}{
		"a change beyond noise": {alone("4", "4.1", "3.9", "4.05", "4.02"), alone("2", "2.1", "1.9", "2.05", "2.02"), "-49.8% (p=0.01)"},
		"noise":                 {alone("4", "5", "3", "4.5", "3.5"), alone("4.1", "5", "3", "4.6", "3.4"), "within noise"},
		"a single round":        {alone("4"), alone("2"), "-50.0%, too few rounds to exclude noise"},
		"the same":              {alone("4"), alone("4"), "none"},
		"a new figure":          {[]string{`{"name":"x","value":1,"unit":"ms","bare":null,"ratio":null}`}, alone("4"), "new"},
		"a figure that is gone": {append(alone("4"), `{"name":"x","value":1,"unit":"ms","bare":null,"ratio":null}`), alone("4"), "not measured"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			require.NoError(t, run(&out, figures(t, c.recorded...), figures(t, c.now...)))
			require.Contains(t, out.String(), c.want)
		})
	}
}

func TestRunRefusesUnreadableInput(t *testing.T) {
	t.Parallel()
	good := figures(t, alone("4")...)
	require.ErrorContains(t, run(&bytes.Buffer{}, figures(t, "{}", "no"), good), "line 2")
	require.ErrorContains(t, run(&bytes.Buffer{}, good, filepath.Join(t.TempDir(), "none")), "no such file")
}
