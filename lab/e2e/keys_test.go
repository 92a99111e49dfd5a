package e2e

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/internal/keyset"
	"github.com/prego/prego/lab/devstack"
)

// TestProcessesHaveOnlyTheKeysTheyNeed: every process of a cell runs only with its own keys (cell.start); without any
// of them it doesn't start, and names it.
func TestProcessesHaveOnlyTheKeysTheyNeed(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{processes: true})
	tried := 0
	for _, process := range keyset.Processes() {
		var files []string
		own := filepath.Join(c.dir, "keys-"+process)
		require.NoError(t, filepath.WalkDir(own, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				files = append(files, path)
			}
			return err
		}))
		require.NotEmpty(t, files)
		for _, file := range files {
			name, err := filepath.Rel(own, file)
			require.NoError(t, err)
			dir := filepath.Join(t.TempDir(), "keys")
			require.NoError(t, os.CopyFS(dir, os.DirFS(own)))
			require.NoError(t, os.Remove(filepath.Join(dir, name)))
			said := c.refusesToStart(process, map[string]string{"PREGO_KEYS_DIR": dir})
			missing := filepath.Join(dir, name)
			switch {
			case filepath.Dir(name) == "seal", filepath.Dir(name) == "backup":
				missing = "no keys for sealing in " + dir
			case filepath.Dir(filepath.Dir(name)) == "jwt":
				missing = "no signing keys for " + filepath.Base(filepath.Dir(name)) + " in " + dir
			}
			require.Contains(t, said, missing, "%s without %s", process, name)
			tried++
		}
		for _, variable := range secretsOf[process] {
			require.Contains(t, c.refusesToStart(process, map[string]string{variable: "", "PREGO_KEYS_DIR": own}), variable, "%s without %s", process, variable)
		}
	}
	require.Equal(t, 2+16+10, tried)
}

// refusesToStart starts one more of a process with other variables, waits until it has ended with an error, and returns
// its output.
func (c *cell) refusesToStart(name string, vars map[string]string) string {
	c.t.Helper()
	logFile := filepath.Join(c.t.TempDir(), "log")
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.dir}
	for k, v := range c.vars {
		if _, other := vars[k]; !other {
			env = append(env, k+"="+v)
		}
	}
	for k, v := range vars {
		env = append(env, k+"="+v)
	}
	// Separate ports, so that only the key is wrong.
	env = append(env, "PREGO_API_LISTEN=127.0.0.1:0", "PREGO_AGENTGW_LISTEN=127.0.0.1:0", "PREGO_RELAY_LISTEN=127.0.0.1:0", "PREGO_METRICS_LISTEN=127.0.0.1:0")
	p, err := devstack.Start(devstack.Spec{Name: name, Path: filepath.Join(bins, "prego"), Args: []string{name}, Env: env, Dir: c.dir, LogFile: logFile})
	require.NoError(c.t, err)
	defer p.Stop(10 * time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	select {
	case <-p.Done():
	case <-ctx.Done():
		c.t.Fatalf("%s runs with %v", name, vars)
	}
	b, err := os.ReadFile(logFile)
	require.NoError(c.t, err)
	require.ErrorContains(c.t, p.Err(), "exit status 1")
	return string(b)
}
