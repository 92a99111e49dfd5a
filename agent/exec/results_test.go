package exec

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

func TestResultsAreBoundedAndSurviveRubbish(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, resultFile("half")), []byte(`{"digest":`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".x-1"), nil, 0o600))
	for i := range keptResults + 5 { // without keep's patience with the disk
		b, err := json.Marshal(kept{At: time.Unix(int64(i), 0), Result: wire.ExecResult{AuditID: fmt.Sprint("../", i)}})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, resultFile(fmt.Sprint("../", i))), b, 0o600))
	}
	r, err := openResults(dir)
	require.NoError(t, err)
	_, ok := r.find("../4")
	require.False(t, ok, "the oldest are forgotten")
	_, ok = r.find("../5")
	require.True(t, ok)
	require.NoError(t, r.keep(&call{Command: &policy.Command{In: wire.ExecRequest{AuditID: "new"}}, result: wire.ExecResult{AuditID: "new"}}))
	_, ok = r.find("../5")
	require.False(t, ok)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, keptResults+1, "and the key of digests")
}

func TestATailIsValidTextAndBounded(t *testing.T) {
	t.Parallel()
	for name, written := range map[string]string{
		"nothing": "", "short": "ü", "cut characters": strings.Repeat("€", 10_000), "not UTF-8": strings.Repeat("a\xff", 10_000), "zeros": strings.Repeat("\x80", 20_000),
	} {
		var tl tail
		for i := 0; i < len(written); i += 1000 {
			_, _ = tl.Write([]byte(written[i:min(len(written), i+1000)]))
		}
		got := tl.String()
		require.True(t, utf8.ValidString(got), name)
		require.LessOrEqual(t, len(got), MaxOutput, name)
		if utf8.ValidString(written) {
			require.True(t, strings.HasSuffix(written, got) && (len(written) <= MaxOutput) == (got == written), name)
		}
	}
}

// TestDigestsOfSecretsTakeAKey: the next process of a host has it, and nobody else.
func TestDigestsOfSecretsTakeAKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secrets := map[string]string{wire.SecretAdminPassword: "Xq7-never-written"}
	plain, refused := policy.Check(wire.ExecRequest{Kind: wire.KindBench, Args: []string{"--site", "a.example.com", "set-admin-password"}, Secrets: secrets})
	require.Nil(t, refused)
	first, err := openResults(dir)
	require.NoError(t, err)
	was := first.withSecrets(plain.Digest, secrets)
	require.NotEqual(t, plain.Digest, was)
	again, err := openResults(dir)
	require.NoError(t, err)
	require.Equal(t, was, again.withSecrets(plain.Digest, secrets), "the key outlives the process")
	require.NotEqual(t, was, again.withSecrets(plain.Digest, map[string]string{wire.SecretAdminPassword: "another"}))
	other, err := openResults(t.TempDir())
	require.NoError(t, err)
	require.NotEqual(t, was, other.withSecrets(plain.Digest, secrets), "nobody can compare a guess without the key")
}
