package gateway

import (
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

func TestBackoffIsFullJitter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := Backoff{Base: time.Duration(rapid.Int64Range(1, 1e10).Draw(t, "base")), Cap: time.Duration(rapid.Int64Range(1, 1e12).Draw(t, "cap"))}
		atLeast := time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "atLeast"))
		for n := range rapid.IntRange(1, 100).Draw(t, "n") {
			bound := b.Cap
			if n < 30 {
				bound = min(b.Cap, b.Base<<n)
			}
			d := b.Next(atLeast)
			if d < atLeast || d > max(atLeast, bound) {
				t.Fatalf("pause %d is %s, not in [%s, %s]", n, d, atLeast, max(atLeast, bound))
			}
		}
	})
}

// TestExecKeysAreEd25519, each of them, or none is taken.
func TestExecKeysAreEd25519(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	good := g.Bundles.ExecKeys["k1"]
	der, err := x509.MarshalPKIXPublicKey(g.ExecCA.Key.Public())
	require.NoError(t, err)
	for key, says := range map[string]string{
		"":  "exec key k2 is not PEM",
		"k": "exec key k2 is not PEM",
		string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")})): "exec key k2: ",
		string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})):         "exec key k2 is not Ed25519",
	} {
		_, err := parseExecKeys(map[string]string{"k1": good, "k2": key})
		require.ErrorContains(t, err, says)
	}
	keys, err := parseExecKeys(map[string]string{"k1": good, "k2": good})
	require.NoError(t, err)
	require.Len(t, keys, 2)
}

func TestWhatIsDue(t *testing.T) {
	t.Parallel()
	now := time.Now()
	at := func(m int) time.Time { return now.Add(time.Duration(m) * time.Minute) }
	for name, tc := range map[string]struct {
		tokenFrom, tokenTo, certFrom, certTo, earliest time.Time
		token, certificates                            bool
	}{
		"fresh":                    {at(0), at(60), at(0), at(60), at(60), false, false},
		"short of half":            {at(-29), at(31), at(-29), at(31), at(31), false, false},
		"token past half":          {at(-31), at(29), at(0), at(60), at(60), true, false},
		"certificates past half":   {at(0), at(60), at(-31), at(29), at(29), false, true},
		"another ends earlier":     {at(0), at(60), at(-20), at(600), at(19), false, true},
		"expired while it was off": {at(0), at(-60), at(0), at(600), at(600), true, false},
		"no earliest":              {at(0), at(60), at(-29), at(31), time.Time{}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ca := agenttest.NewAuthority(t, "ca")
			der := ca.Sign(t, ca.Key.Public(), agenttest.Leaf{NotBefore: tc.certFrom, NotAfter: tc.certTo})
			client, err := loadCertificate(agenttest.CertPEM(der), ca.Key)
			require.NoError(t, err)
			s := &Session{Client: client, Since: tc.tokenFrom, ID: &wire.Identity{TokenExpires: tc.tokenTo, Certificates: wire.Certificates{NotAfter: tc.earliest}}}
			require.Equal(t, tc.token, s.TokenDue(now))
			require.Equal(t, tc.certificates, s.CertificatesDue(now))
		})
	}
}

func TestChainsAreShownWhole(t *testing.T) {
	t.Parallel()
	ca := agenttest.NewAuthority(t, "ca")
	leafDER := ca.Sign(t, ca.Key.Public(), agenttest.Leaf{})
	got, err := loadCertificate(agenttest.CertPEM(leafDER)+ca.PEM, ca.Key)
	require.NoError(t, err)
	require.Equal(t, [][]byte{leafDER, ca.Cert.Raw}, got.Certificate)
}
