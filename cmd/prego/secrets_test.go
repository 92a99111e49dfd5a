package main

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// asPrego makes the tests' program the one that it tests.
const asPrego = "PREGO_TEST_AS_PREGO"

func TestMain(m *testing.M) {
	if os.Getenv(asPrego) != "" {
		os.Exit(run())
	}
	os.Exit(m.Run())
}

// TestSecretsFollowARotation runs deploy/secrets.sh as docs/keys.md says: once to
// make the secrets, and again after each step of a rotation.
func TestSecretsFollowARotation(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	script, err := filepath.Abs("../../deploy/secrets.sh")
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "secrets")
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Env = append(os.Environ(), asPrego+"=1", "PREGO="+self, "PREGO_SECRETS="+dir, "PREGO_ENV=test", "PREGO_KEYS_DIR="+filepath.Join(dir, "keys"))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	files := func() map[string]string {
		out := map[string]string{}
		require.NoError(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(name)
			short, _ := filepath.Rel(dir, name)
			out[short] = string(b)
			return err
		}))
		return out
	}
	run(script)
	made := files()
	for _, name := range []string{"postgres_password", "prego_db_password", "temporal_db_password", "master_key"} {
		require.Regexp(t, "^[0-9a-f]{64}$", made[name], name)
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o440), info.Mode(), name)
	}
	require.Contains(t, made["database_url"], made["prego_db_password"])
	for _, name := range []string{"master_key_earlier", "adviser_token"} {
		empty, ok := made[name]
		require.True(t, ok, name)
		require.Empty(t, empty, name)
	}
	for range 5 {
		run(script)
		require.True(t, maps.Equal(made, files()), "what is there stays")
	}

	const trusted, issuer = "keys-agentgw/ca/exec-client/bundle.pem", "keys-worker/ca/exec-client/issuer.pem"
	certificates := func(files map[string]string) int {
		return strings.Count(files[trusted], "BEGIN CERTIFICATE")
	}
	for _, step := range []struct {
		name     string
		trusted  int
		replaced bool // the key that the worker issues with
	}{{"add", 2, false}, {"activate", 2, true}, {"retire", 1, true}} {
		before := files()
		run(self, "keys", step.name, "exec-client")
		given := files()
		require.True(t, before[trusted] == given[trusted] && before[issuer] == given[issuer], "no process has heard of step %s", step.name)
		run(script)
		given = files()
		require.Equal(t, step.trusted, certificates(given), step.name)
		require.Equal(t, step.replaced, made[issuer] != given[issuer], step.name)
	}
}
