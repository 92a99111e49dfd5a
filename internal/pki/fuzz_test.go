package pki

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

// FuzzCSR: a certificate request is refused with a code, or is signed with its own key, of a
// kind that is accepted.
func FuzzCSR(f *testing.F) {
	for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384()} {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		require.NoError(f, err)
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
		require.NoError(f, err)
		text := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
		f.Add(text)
		f.Add(text + text)
	}
	f.Add("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n")
	f.Fuzz(func(t *testing.T, text string) {
		csr, err := ParseCSR("csr", text)
		if err != nil {
			var coded *prego.Error
			require.ErrorAs(t, err, &coded)
			require.NotEqual(t, prego.CodeInternal, coded.Code)
			return
		}
		require.NoError(t, csr.CheckSignature())
		switch key := csr.PublicKey.(type) {
		case ed25519.PublicKey:
		case *ecdsa.PublicKey:
			require.Equal(t, elliptic.P256(), key.Curve)
		default:
			t.Errorf("a key of %T was accepted", key)
		}
	})
}
