package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSecretsComeFromFiles(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	for text, want := range map[string][]string{"": nil, "\n": nil, "ab\n": {"ab"}, "ab,cd\n": {"ab", "cd"}} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		cfg, err := From(map[string]string{"PREGO_MASTER_KEY_EARLIER_FILE": file})
		require.NoError(t, err)
		require.Equal(t, want, cfg.Worker.MasterKeysEarlier, "%q", text)
	}
	for _, name := range Secrets() {
		_, err := From(map[string]string{name: "x", name + "_FILE": file})
		require.ErrorContains(t, err, "set "+name+" or "+name+"_FILE, not both")
		_, err = From(map[string]string{name + "_FILE": file + ".absent"})
		require.ErrorContains(t, err, name+"_FILE: open ")
	}
}
