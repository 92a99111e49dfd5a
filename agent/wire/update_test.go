package wire

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSignedAgentUpdate(t *testing.T) {
	t.Parallel()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	other, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	good := AgentUpdate{Version: "v1.2.3", Serial: 7, SHA256: strings.Repeat("0a", 32), Bytes: 1 << 20, Arch: "amd64"}
	signed, err := SignAgentUpdate(good, key)
	require.NoError(t, err)
	got, err := signed.Open([]ed25519.PublicKey{other, public})
	require.NoError(t, err)
	require.Equal(t, good, got)

	const untrusted = "no key that is trusted here"
	for name, s := range map[string]SignedAgentUpdate{
		"no signature":     {Document: signed.Document},
		"another document": {Document: bytes.Replace(signed.Document, []byte(":7,"), []byte(":8,"), 1), Signature: signed.Signature},
		"another use of the key": {
			Document: signed.Document, Signature: ed25519.Sign(key, append([]byte(peersContext), signed.Document...)),
		},
		"no context": {Document: signed.Document, Signature: ed25519.Sign(key, signed.Document)},
	} {
		_, err := s.Open([]ed25519.PublicKey{public})
		require.ErrorContains(t, err, untrusted, name)
	}
	_, err = signed.Open(nil)
	require.ErrorContains(t, err, untrusted)
	_, err = signed.Open([]ed25519.PublicKey{other})
	require.ErrorContains(t, err, untrusted)
	_, err = SignedAgentUpdate{Document: []byte("{")}.Read()
	require.ErrorContains(t, err, "agent update: ")

	for name, change := range map[string]func(*AgentUpdate){
		"no version":        func(u *AgentUpdate) { u.Version = "" },
		"a version's path":  func(u *AgentUpdate) { u.Version = "../../etc/passwd" },
		"a serial of zero":  func(u *AgentUpdate) { u.Serial = 0 },
		"half a digest":     func(u *AgentUpdate) { u.SHA256 = u.SHA256[:32] },
		"nothing":           func(u *AgentUpdate) { u.Bytes = 0 },
		"too large":         func(u *AgentUpdate) { u.Bytes = MaxAgentBytes + 1 },
		"for no processors": func(u *AgentUpdate) { u.Arch = "" },
	} {
		u := good
		change(&u)
		_, err := SignAgentUpdate(u, key)
		require.ErrorContains(t, err, "are required", name)
		// A builder's key can sign what our builder would not.
		b, err := json.Marshal(u)
		require.NoError(t, err)
		s := SignedAgentUpdate{Document: b, Signature: ed25519.Sign(key, append([]byte(updateContext), b...))}
		_, err = s.Open([]ed25519.PublicKey{public})
		require.ErrorContains(t, err, "are required", name)
	}
}

func TestGroupedDigest(t *testing.T) {
	t.Parallel()
	for _, digest := range []string{"", "ab", strings.Repeat("a", 16), strings.Repeat("a", 17), strings.Repeat("0f", 32)} {
		grouped := Grouped(digest)
		require.Equal(t, digest, Ungrouped(grouped))
		for group := range strings.SplitSeq(grouped, ":") {
			require.LessOrEqual(t, len(group), 16, "a longer run of hex is masked")
		}
	}
}
