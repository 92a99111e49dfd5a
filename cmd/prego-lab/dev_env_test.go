package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAChildHasOnlyItsSecrets; that real children do is looked at while the demo runs
// (lab/docsrun).
func TestAChildHasOnlyItsSecrets(t *testing.T) {
	t.Parallel()
	env := []string{"PATH=/bin", "DATABASE_URL=postgres://", "PREGO_MASTER_KEY=00", "HCLOUD_TOKEN_FILE=/run/token", "PREGO_BACKUP_ENDPOINT=http://s3", "PREGO_BACKUP_SECRET_KEY=k"}
	require.Equal(t, env, childEnvironment("worker", env))
	for _, name := range []string{"api", "agentgw"} {
		require.Equal(t, env[:2], childEnvironment(name, env), name)
	}
	require.Equal(t, env[:1], childEnvironment("sim", env))
	require.Len(t, env, 6, "the parent's own is left alone")
}
