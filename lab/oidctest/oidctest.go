// Package oidctest runs node-oidc-provider, an issuer that the OpenID Foundation certified: people log in on its own
// pages, in a real browser, with nothing of ours in between.
package oidctest

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/need"
)

// Start runs an issuer for as long as the test, with the public client prego, and returns its URL. On its pages anybody
// logs in, with any password; carol is in the group ops.
func Start(t testing.TB, redirect string) string {
	t.Helper()
	node := need.Program(t, "node")
	dir, err := filepath.EvalSymlinks(filepath.Join(need.Module(), ".prego", "bin", "oidc-provider"))
	if err != nil {
		need.Missing(t, "node-oidc-provider is not here: make oidc-provider")
	}
	cmd := exec.CommandContext(context.Background(), node, filepath.Join(need.Module(), "lab", "oidctest", "issuer.mjs"), dir, redirect)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	at, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, "the issuer does not start")
	return strings.TrimSpace(at)
}
