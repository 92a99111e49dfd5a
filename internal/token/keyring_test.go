package token

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
)

func keyFile(dir string, use Use, id string) string {
	return filepath.Join(dir, "jwt", string(use), id+".pem")
}

// onlyKey reads the one key of a use, private.
func onlyKey(t *testing.T, dir string, use Use) []byte {
	t.Helper()
	files, err := KeyFiles(dir, use)
	require.NoError(t, err)
	require.Len(t, files, 1)
	b, err := os.ReadFile(files[0])
	require.NoError(t, err)
	return b
}

// TestInitKeepsTheKeysThatAreThere: what was issued stays good.
func TestInitKeepsTheKeysThatAreThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, InitKeys(dir))
	before := onlyKey(t, dir, UseAgent)
	require.NoError(t, InitKeys(dir))
	require.Equal(t, before, onlyKey(t, dir, UseAgent))

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorContains(t, InitKeys(file), "keys: ")
}

// TestTheLastPrivateKeySignsAndAllVerify, whatever order the directory lists them in.
func TestTheLastPrivateKeySignsAndAllVerify(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	require.NoError(t, InitKeys(dir))
	require.NoError(t, InitKeys(other))
	first := onlyKey(t, dir, UseExec)
	second, err := PublicHalf(onlyKey(t, other, UseExec))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(keyFile(dir, UseExec, "99990101-b"), first, 0o600))
	require.NoError(t, os.WriteFile(keyFile(dir, UseExec, "99990102-c"), second, 0o600))
	files, err := KeyFiles(dir, UseExec)
	require.NoError(t, err)
	require.IsIncreasing(t, files)
	r, err := OpenSigner(dir, UseExec)
	require.NoError(t, err)
	require.Equal(t, "99990101-b", r.sign, "a public half is no signer, however new")
	public, err := r.PublicPEM()
	require.NoError(t, err)
	require.Len(t, public, 3)
	require.Equal(t, string(second), public["99990102-c"])
	half, err := PublicHalf(first)
	require.NoError(t, err)
	require.Equal(t, string(half), public["99990101-b"])
	require.NotContains(t, strings.Join([]string{public["99990101-b"], string(half)}, ""), "PRIVATE")
	again, err := PublicHalf(half)
	require.NoError(t, err)
	require.Equal(t, half, again)
}

// TestPublicHalvesSignNothing: a process that checks tokens can't make them.
func TestPublicHalvesSignNothing(t *testing.T) {
	t.Parallel()
	dir, public := t.TempDir(), t.TempDir()
	require.NoError(t, InitKeys(dir))
	half, err := PublicHalf(onlyKey(t, dir, UseExec))
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(keyFile(public, UseExec, "k")), 0o700))
	require.NoError(t, os.WriteFile(keyFile(public, UseExec, "k"), half, 0o600))
	_, err = OpenSigner(public, UseExec)
	require.ErrorContains(t, err, "none can sign")
	r, err := OpenKeyring(public, UseExec)
	require.NoError(t, err)
	_, err = NewExec(r, func() int64 { return 0 }).Issue("app-1", wire.KindBench, [32]byte{}, time.Minute)
	require.ErrorContains(t, err, "only the public halves")
}

// TestADirectoryThatCannotBeReadIsNoEmptyOne: a key would be made beside those that are there, and sign from then on.
func TestADirectoryThatCannotBeReadIsNoEmptyOne(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"jwt/agent", "backup"} {
		dir := filepath.Join(t.TempDir(), "keys [old]") // special to a pattern of names
		require.NoError(t, InitKeys(dir))
		require.NoError(t, InitKeys(dir))
		half := keyFile(dir, UseAgent, "99999999-half") + ".tmp"
		require.NoError(t, os.WriteFile(half, nil, 0o600), "left by a process that died")
		files, err := KeyFiles(dir, UseAgent)
		require.NoError(t, err)
		require.Len(t, files, 1)
		for _, use := range []SealUse{SealBackups, SealCertificates} {
			files, err := SealingFiles(dir, use)
			require.NoError(t, err)
			require.Len(t, files, 1)
		}
		require.NoError(t, os.RemoveAll(filepath.Join(dir, at)))
		require.NoError(t, os.WriteFile(filepath.Join(dir, at), nil, 0o600)) // no directory
		require.ErrorIs(t, InitKeys(dir), syscall.ENOTDIR, at)
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "jwt"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "seal"), nil, 0o600))
	_, err := KeyFiles(dir, UseAgent)
	require.ErrorIs(t, err, syscall.ENOTDIR)
	_, err = SealingFiles(dir, SealCertificates)
	require.ErrorIs(t, err, syscall.ENOTDIR)
	require.ErrorIs(t, AddSealing(dir, SealCertificates), syscall.ENOTDIR)
}

// TestPeersNameTheKeys: a host that trusts one of them learns of the others.
func TestPeersNameTheKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, InitKeys(dir))
	ring, err := OpenSigner(dir, UsePeers)
	require.NoError(t, err)
	p, err := NewPeers(ring)
	require.NoError(t, err)
	require.Len(t, p.Keys(), 1)
	signed, err := p.Sign(wire.PeersDocument{})
	require.NoError(t, err)
	var doc wire.PeersDocument
	require.NoError(t, json.Unmarshal(signed.Document, &doc))
	require.Equal(t, p.Keys(), doc.Keys)
}

func TestKeysThatAreNoneAreNamed(t *testing.T) {
	t.Parallel()
	_, err := OpenKeyring(t.TempDir(), UseAgent)
	require.ErrorContains(t, err, "no signing keys for agent")
	_, err = OpenSigner(t.TempDir(), UseAgent)
	require.ErrorContains(t, err, "no signing keys for agent")
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(ec)
	require.NoError(t, err)
	for name, tc := range map[string]struct{ text, says string }{
		"empty":             {"", "not PEM"},
		"rubbish":           {"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "asn1"},
		"rubbish, public":   {"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "asn1"},
		"another algorithm": {string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})), "not Ed25519"},
	} {
		dir := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Dir(keyFile(dir, UseAgent, "k")), 0o700))
		require.NoError(t, os.WriteFile(keyFile(dir, UseAgent, "k"), []byte(tc.text), 0o600))
		_, err := OpenKeyring(dir, UseAgent)
		require.ErrorContains(t, err, tc.says, name)
		require.ErrorContains(t, err, keyFile(dir, UseAgent, "k"), name)
		_, err = PublicHalf([]byte(tc.text))
		require.ErrorContains(t, err, tc.says, name)
	}
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(keyFile(dir, UseAgent, "k"), 0o700))
	_, err = OpenKeyring(dir, UseAgent)
	require.ErrorContains(t, err, "signing key: ")
}

// TestAnAgentIsToldWhenItsTokenEnds: it renews by that.
func TestAnAgentIsToldWhenItsTokenEnds(t *testing.T) {
	t.Parallel()
	f := setup(t)
	began := time.Now()
	_, expires, err := f.agent.Issue("app-1", prego.RoleApp, f.cert, time.Hour)
	require.NoError(t, err)
	require.WithinDuration(t, began.Add(time.Hour), expires, 5*time.Second)
}

// TestOnlyAnEdgeGetsTheDocumentOfEdges, which has the keys of certificates.
func TestOnlyAnEdgeGetsTheDocumentOfEdges(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, role := range prego.Roles() {
		raw, _, err := f.agent.Issue("s-1", role, f.cert, time.Hour)
		require.NoError(t, err)
		_, err = f.agent.Verify(raw, f.cert, wire.ScopeHeartbeat)
		require.NoError(t, err, role)
		_, err = f.agent.Verify(raw, f.cert, wire.ScopeEdge)
		require.Equal(t, role == prego.RoleEdge, err == nil, role)
	}
}

func TestAShortMasterKeySealsNothing(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "00ff", strings.Repeat("0", 62), strings.Repeat("z", 64)} {
		_, err := NewBox(key)
		require.ErrorContains(t, err, "PREGO_MASTER_KEY must be at least 32 bytes", key)
		_, err = NewBox(strings.Repeat("0", 64), key)
		require.ErrorContains(t, err, "PREGO_MASTER_KEY_EARLIER", key)
	}
}
