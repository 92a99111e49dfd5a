package keyset

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/internal/token"
)

func originals(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, pki.Init(dir, "test"))
	require.NoError(t, token.InitKeys(dir))
	return dir
}

var keyID = regexp.MustCompile(`[0-9]{8}-([0-9]{4}-)?[0-9a-f]{8}`)

// inside lists a directory: each file with the half of a key that it holds.
func inside(t *testing.T, dir string) (out []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		half := "public"
		if strings.Contains(string(b), "PRIVATE KEY") {
			half = "private"
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		require.Equal(t, fs.FileMode(0o440), info.Mode(), path)
		out = append(out, keyID.ReplaceAllString(name, "ID")+" "+half)
		return nil
	}))
	return out
}

// TestEachProcessIsGivenItsKeysAlone is the list that an auditor reads.
func TestEachProcessIsGivenItsKeysAlone(t *testing.T) {
	t.Parallel()
	from := originals(t)
	for process, want := range map[string][]string{
		"api": {
			"ca/relay-client/issuer.pem private", "ca/relay-server/bundle.pem public",
		},
		"agentgw": {
			"ca/agent-client/bundle.pem public", "ca/agent-client/issuer.pem private", "ca/agent-server/issuer.pem private",
			"ca/docker-client/bundle.pem public", "ca/docker-server/issuer.pem private", "ca/exec-client/bundle.pem public",
			"ca/gateway/bundle.pem public", "ca/gateway/issuer.pem private",
			"ca/service-client/bundle.pem public", "ca/service-client/issuer.pem private", "ca/service-server/bundle.pem public", "ca/service-server/issuer.pem private",
			"jwt/agent/ID.pem private", "jwt/exec/ID.pem public", "jwt/peers/ID.pem private", "seal/ID.pem private",
		},
		"worker": {
			"backup/ID.pem private",
			"ca/agent-server/bundle.pem public", "ca/docker-client/issuer.pem private", "ca/docker-server/bundle.pem public",
			"ca/exec-client/issuer.pem private", "ca/gateway/bundle.pem public",
			"ca/relay-client/bundle.pem public", "ca/relay-server/issuer.pem private",
			"jwt/exec/ID.pem private", "seal/ID.pem public",
		},
	} {
		dir := filepath.Join(t.TempDir(), process)
		require.NoError(t, Share(from, process, dir, -1))
		require.Equal(t, want, inside(t, dir), process)
		// No signing key: its file is named for the day.
		file := filepath.Join(dir, strings.Fields(want[len(want)/2])[0])
		before, err := os.Stat(file)
		require.NoError(t, err)
		require.NoError(t, Share(from, process, dir, -1))
		after, err := os.Stat(file)
		require.NoError(t, err)
		require.True(t, os.SameFile(before, after), "correct files are left alone")
	}
	require.Equal(t, []string{"agentgw", "api", "worker"}, Processes())
	require.ErrorContains(t, Share(from, "sim", t.TempDir(), -1), "there are [agentgw api worker]")
}

// TestSharingFollowsTheOriginals: a rotation gives and takes away, and so does a change
// of what a process may have.
func TestSharingFollowsTheOriginals(t *testing.T) {
	t.Parallel()
	from, dir := originals(t), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "jwt", "agent"), 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "jwt", "agent", "left.pem"), []byte("of an earlier version"), 0o440))
	require.NoError(t, Share(from, "worker", dir, -1))
	require.NoDirExists(t, filepath.Join(dir, "jwt", "agent"))

	issuer := func(d string) string {
		b, err := os.ReadFile(pki.IssuerFile(d, pki.DockerClient))
		require.NoError(t, err)
		return string(b)
	}
	old := issuer(dir)
	require.NoError(t, pki.Add(from, "test", pki.DockerClient))
	require.NoError(t, Share(from, "worker", dir, -1))
	require.Equal(t, old, issuer(dir), "a CA that does not issue yet is not shared")
	require.NoError(t, pki.Activate(from, pki.DockerClient))
	require.NoError(t, Share(from, "worker", dir, -1))
	require.NotEqual(t, old, issuer(dir))
	require.Equal(t, issuer(from), issuer(dir))

	// A second signing key: who signs gets the newest alone, who checks all public halves.
	first, err := token.KeyFiles(from, token.UseAgent)
	require.NoError(t, err)
	b, err := os.ReadFile(first[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(first[0]), "99990101-00000000.pem"), b, 0o600))
	gw := t.TempDir()
	require.NoError(t, Share(from, "agentgw", gw, -1))
	require.True(t, slices.Contains(inside(t, gw), "jwt/agent/ID.pem public"))
	require.True(t, slices.Contains(inside(t, gw), "jwt/agent/ID.pem private"))
	ring, err := token.OpenSigner(gw, token.UseAgent)
	require.NoError(t, err)
	public, err := ring.PublicPEM()
	require.NoError(t, err)
	require.Len(t, public, 2)
}

// TestPublicHalvesCannotSign: a process that passes keys on can't make tokens.
func TestPublicHalvesCannotSign(t *testing.T) {
	t.Parallel()
	from, dir := originals(t), t.TempDir()
	require.NoError(t, Share(from, "agentgw", dir, -1))
	_, err := token.OpenSigner(dir, token.UseExec)
	require.ErrorContains(t, err, "public halves")
	_, err = token.OpenKeyring(dir, token.UseExec)
	require.NoError(t, err)
	_, err = token.OpenSigner(from, token.UseExec)
	require.NoError(t, err)
}
