package wire

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSignedPeers(t *testing.T) {
	t.Parallel()
	key := func() (ed25519.PrivateKey, string) {
		public, private, err := ed25519.GenerateKey(rand.Reader)
		require.NoError(t, err)
		der, err := x509.MarshalPKIXPublicKey(public)
		require.NoError(t, err)
		return private, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	}
	oldKey, oldText := key()
	newKey, newText := key()
	doc := PeersDocument{
		Environment: "test", ServerID: "app-1", Version: 7, Address: "10.64.0.2",
		Control: PeersControl{CIDRs: []string{"203.0.113.7/32"}, Ports: []int{443}},
		Access:  []PeersAccess{{Ports: []int{8080}, From: []string{"10.64.0.3"}}}, Keys: map[string]string{"new": newText},
	}
	signed, err := SignPeers(doc, map[string]ed25519.PrivateKey{"old": oldKey, "new": newKey})
	require.NoError(t, err)
	for _, trusted := range []map[string]string{{"old": oldText}, {"new": newText}, {"old": oldText, "new": newText}} {
		got, err := signed.Open(trusted)
		require.NoError(t, err)
		require.Equal(t, doc, got)
	}
	_, err = SignPeers(doc, nil)
	require.Error(t, err)

	for name, change := range map[string]func(s *SignedPeers, trusted map[string]string){
		"another document":       func(s *SignedPeers, _ map[string]string) { s.Document = append([]byte(" "), s.Document...) },
		"a key that it pretends": func(_ *SignedPeers, trusted map[string]string) { trusted["old"] = newText },
		"an unknown key": func(s *SignedPeers, _ map[string]string) {
			s.Signatures = map[string][]byte{"other": s.Signatures["old"]}
		},
		"no signature": func(s *SignedPeers, _ map[string]string) { s.Signatures = nil },
		"too large": func(s *SignedPeers, _ map[string]string) {
			s.Document = make([]byte, MaxPeersDocument+1)
			s.Signatures["old"] = ed25519.Sign(oldKey, append([]byte(peersContext), s.Document...))
		},
		"not JSON": func(s *SignedPeers, _ map[string]string) {
			s.Document = []byte("{")
			s.Signatures["old"] = ed25519.Sign(oldKey, append([]byte(peersContext), s.Document...))
		},
		"signed for another use": func(s *SignedPeers, _ map[string]string) { s.Signatures["old"] = ed25519.Sign(oldKey, s.Document) },
	} {
		s, err := SignPeers(doc, map[string]ed25519.PrivateKey{"old": oldKey})
		require.NoError(t, err)
		trusted := map[string]string{"old": oldText}
		change(&s, trusted)
		_, err = s.Open(trusted)
		require.Error(t, err, name)
	}
}
