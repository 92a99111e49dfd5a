package token

import (
	"crypto/ecdh"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// publicHalves is a directory with the public halves of another's keys.
func publicHalves(t *testing.T, from string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "seal"), 0o700))
	files, err := SealingFiles(from, SealCertificates)
	require.NoError(t, err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		half, err := SealingPublicHalf(b)
		require.NoError(t, err)
		require.NotContains(t, string(half), "PRIVATE")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "seal", filepath.Base(f)), half, 0o600))
	}
	return dir
}

// TestWhoSealsCannotOpen: a worker seals, only who has the private key opens, and only for
// what it was sealed for.
func TestWhoSealsCannotOpen(t *testing.T) {
	t.Parallel()
	originals := t.TempDir()
	require.NoError(t, InitSealing(originals, SealCertificates))
	require.NoError(t, InitSealing(originals, SealCertificates))
	files, err := SealingFiles(originals, SealCertificates)
	require.NoError(t, err)
	require.Len(t, files, 1, "what is there stays")
	gateway, err := OpenSealing(originals, SealCertificates)
	require.NoError(t, err)
	worker, err := OpenSealing(publicHalves(t, originals), SealCertificates)
	require.NoError(t, err)

	sealed, id, err := worker.Seal("certificate/crt-1", []byte("a key"))
	require.NoError(t, err)
	require.NotContains(t, string(sealed), "a key")
	_, err = worker.Open("certificate/crt-1", id, sealed)
	require.ErrorIs(t, err, ErrSealed)
	got, err := gateway.Open("certificate/crt-1", id, sealed)
	require.NoError(t, err)
	require.Equal(t, "a key", string(got))
	for name, open := range map[string]func() ([]byte, error){
		"for another": func() ([]byte, error) { return gateway.Open("certificate/crt-2", id, sealed) },
		"another key": func() ([]byte, error) { return gateway.Open("certificate/crt-1", "x", sealed) },
		"damaged":     func() ([]byte, error) { return gateway.Open("certificate/crt-1", id, append([]byte{1}, sealed...)) },
		"too short":   func() ([]byte, error) { return gateway.Open("certificate/crt-1", id, nil) },
	} {
		_, err := open()
		require.ErrorIs(t, err, ErrSealed, name)
	}
	again, _, err := worker.Seal("certificate/crt-1", []byte("a key"))
	require.NoError(t, err)
	require.NotEqual(t, sealed, again)
}

// TestSealingKeyIsRotated: the newest seals; what the one before sealed opens until it is
// taken away.
func TestSealingKeyIsRotated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, InitSealing(dir, SealCertificates))
	first, err := OpenSealing(dir, SealCertificates)
	require.NoError(t, err)
	old, oldID, err := first.Seal("x", []byte("old"))
	require.NoError(t, err)
	for range 12 { // more than one digit's worth in one day
		require.NoError(t, AddSealing(dir, SealCertificates))
	}
	second, err := OpenSealing(dir, SealCertificates)
	require.NoError(t, err)
	_, newID, err := second.Seal("x", []byte("new"))
	require.NoError(t, err)
	require.Greater(t, newID, oldID)
	require.Contains(t, newID, "-0013-")
	require.Contains(t, second.Known(), oldID)
	got, err := second.Open("x", oldID, old)
	require.NoError(t, err)
	require.Equal(t, "old", string(got))

	files, err := SealingFiles(dir, SealCertificates)
	require.NoError(t, err)
	require.NoError(t, os.Remove(files[0]))
	third, err := OpenSealing(dir, SealCertificates)
	require.NoError(t, err)
	require.NotContains(t, third.Known(), oldID)
	_, err = third.Open("x", oldID, old)
	require.ErrorIs(t, err, ErrSealed)
}

func TestSealingKeysThatAreNone(t *testing.T) {
	t.Parallel()
	_, err := OpenSealing(t.TempDir(), SealCertificates)
	require.ErrorContains(t, err, "prego keys init")
	dir := t.TempDir()
	require.NoError(t, InitKeys(dir))
	signing, err := KeyFiles(dir, UseExec)
	require.NoError(t, err)
	b, err := os.ReadFile(signing[0])
	require.NoError(t, err)
	for text, want := range map[string]string{string(b): "not X25519", "x": "not PEM"} {
		bad := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(bad, "seal"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(bad, "seal", "20260101-0001-a.pem"), []byte(text), 0o600))
		_, err = OpenSealing(bad, SealCertificates)
		require.ErrorContains(t, err, want)
		_, err = SealingPublicHalf([]byte(text))
		require.ErrorContains(t, err, want)
	}
}

// TestAManifestIsAuthenticated: only who has the private key, and only with the same key.
func TestAManifestIsAuthenticated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, InitSealing(dir, SealBackups))
	first, err := OpenSealing(dir, SealBackups)
	require.NoError(t, err)
	_, id, err := first.Seal("backup/bak-1", []byte("x"))
	require.NoError(t, err)
	mac, err := first.MAC("", []byte("a manifest"))
	require.NoError(t, err)
	require.NoError(t, AddSealing(dir, SealBackups))
	second, err := OpenSealing(dir, SealBackups)
	require.NoError(t, err)
	again, err := second.MAC(id, []byte("a manifest"))
	require.NoError(t, err)
	require.Equal(t, mac, again, "an earlier key is known for as long as it is there")
	other, err := second.MAC("", []byte("a manifest"))
	require.NoError(t, err)
	require.NotEqual(t, mac, other)
	changed, err := second.MAC(id, []byte("another manifest"))
	require.NoError(t, err)
	require.NotEqual(t, mac, changed)
	_, err = second.MAC("no-such", nil)
	require.ErrorIs(t, err, ErrSealed)

	// A key of one use opens nothing of another.
	require.NoError(t, os.Rename(filepath.Join(dir, string(SealBackups)), filepath.Join(dir, string(SealCertificates))))
	certificates, err := OpenSealing(dir, SealCertificates)
	require.NoError(t, err)
	sealed, id, err := second.Seal("backup/bak-1", []byte("x"))
	require.NoError(t, err)
	_, err = certificates.Open("backup/bak-1", id, sealed)
	require.ErrorIs(t, err, ErrSealed)
}

// TestWhatWasSealedOpens: backups outlive releases, and their keys separate them from certificates.
func TestWhatWasSealedOpens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := make([]byte, 32)
	for i := range secret {
		secret[i] = byte(i)
	}
	key, err := ecdh.X25519().NewPrivateKey(secret)
	require.NoError(t, err)
	for use, sealed := range map[SealUse]string{
		SealBackups:      "70b66f4eeab0da5b4b8867e6b3e6ac7ecb312169323f40431be1c0efbf895e6e56b55391a3db28a188c3d745c38a67b2e61da9e919f3fb53",
		SealCertificates: "7fd83089cda8e269a02613866fad191f1d99d15760b4311bf31ec858fe144d6a95e066d87beade0784f3e109584bbcaa78d023897352f92b",
	} {
		require.NoError(t, addKeyFile(filepath.Join(dir, string(use), "k.pem"), key))
		s, err := OpenSealing(dir, use)
		require.NoError(t, err)
		text, err := hex.DecodeString(sealed)
		require.NoError(t, err)
		got, err := s.Open("x", "k", text)
		require.NoError(t, err, use)
		require.Equal(t, "a secret", string(got))
	}
}
