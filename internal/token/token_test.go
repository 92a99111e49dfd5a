package token

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"maps"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
)

func TestDerivedTokens(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOfN(rapid.Byte(), 32, 64).Draw(t, "key")
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		d, err := NewDeriver(hex.EncodeToString(key))
		require.NoError(t, err)
		again := d.Derive(a)
		require.Equal(t, d.Derive(a), again, "the same id, the same token")
		require.Len(t, d.Derive(a), 43, "256 bits")
		if a != b {
			require.NotEqual(t, d.Derive(a), d.Derive(b))
		}
	})
	for _, bad := range []string{"", "zz", strings.Repeat("ab", 31)} {
		_, err := NewDeriver(bad)
		require.ErrorContains(t, err, "PREGO_MASTER_KEY must be at least 32 bytes", bad)
	}
}

// TestDerivedSecretsStayTheSame: hosts and databases have them.
func TestDerivedSecretsStayTheSame(t *testing.T) {
	t.Parallel()
	d, err := NewDeriver(strings.Repeat("ab", 32))
	require.NoError(t, err)
	require.Equal(t, "c9GEEYdwtweKZIAcnp6Oal3VZvLaDrCuDphvnkQNolI", d.Derive("a"))
	require.Equal(t, "ply5L1rlF8lMKUuO7yUYGLAOlHFAaGbk6f_qZTkowHc", d.Password("site", "db-1", 1))
	require.NotEqual(t, d.Password("site", "db-1", 1), d.Password("site", "db-1", 2))
	require.NotEqual(t, d.Password("site", "db-1", 1), d.Password("site", "db-2", 1))
	require.NotEqual(t, d.Password("site", "db-1", 1), d.Password("admin", "db-1", 1))
}

type fixture struct {
	rings map[Use]*Keyring
	cert  *x509.Certificate
	other *x509.Certificate
	agent *Agents
	exec  *Exec
}

func setup(t *testing.T) fixture {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, InitKeys(dir))
	f := fixture{rings: map[Use]*Keyring{}}
	for _, u := range Uses() {
		r, err := OpenKeyring(dir, u)
		require.NoError(t, err)
		f.rings[u] = r
	}
	f.cert, f.other = selfSigned(t), selfSigned(t)
	f.agent, f.exec = NewAgents(f.rings[UseAgent]), NewExec(f.rings[UseExec], func() int64 { return 0 })
	return f
}

func selfSigned(t testing.TB) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	require.NoError(t, err)
	c, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return c
}

// TestSwapMatrix shows the gateway a token of every kind, good and forged.
func TestSwapMatrix(t *testing.T) {
	t.Parallel()
	f := setup(t)
	stranger := setup(t)
	must := func(s string, err error) string { require.NoError(t, err); return s }
	agentToken := func(a *Agents, cert *x509.Certificate, ttl time.Duration) string {
		raw, _, err := a.Issue("app-1", prego.RoleApp, cert, ttl)
		require.NoError(t, err)
		return raw
	}
	own, strangerKey := f.rings[UseAgent].signer, stranger.rings[UseAgent].signer
	pub, kid := f.rings[UseAgent].keys[f.rings[UseAgent].sign], f.rings[UseAgent].sign
	pubDER, err := x509.MarshalPKIXPublicKey(pub)
	require.NoError(t, err)
	claims := jwt.MapClaims{
		"iss": Issuer, "aud": agentAudience, "sub": "app-1", "scopes": []string{wire.ScopeHeartbeat}, "exp": time.Now().Add(time.Hour).Unix(),
		"iat": time.Now().Unix(), "jti": "1", "cnf": map[string]string{"x5t#S256": Thumbprint(f.cert)},
	}
	sign := func(m jwt.SigningMethod, key any, c jwt.Claims, kid any) string {
		tok := jwt.NewWithClaims(m, c)
		tok.Header["kid"] = kid
		s, err := tok.SignedString(key)
		require.NoError(t, err)
		return s
	}
	without := func(drop string, set map[string]any) jwt.MapClaims {
		c := maps.Clone(claims)
		delete(c, drop)
		maps.Copy(c, set)
		return c
	}
	withHeader := func(key any, header string, value any) string {
		tok := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims)
		tok.Header["kid"], tok.Header[header] = kid, value
		s, err := tok.SignedString(key)
		require.NoError(t, err)
		return s
	}
	_, err = f.agent.Verify(sign(jwt.SigningMethodEdDSA, own, claims, kid), f.cert, wire.ScopeHeartbeat)
	require.NoError(t, err, "the forgeries below start from a good token")
	tokens := map[string]string{
		"agent":                   agentToken(f.agent, f.cert, time.Hour),
		"forged, but for the key": sign(jwt.SigningMethodEdDSA, strangerKey, claims, kid),
		"exec":                    must(f.exec.Issue("app-1", wire.KindBench, [32]byte{}, time.Minute)),
		"another gateway's":       agentToken(stranger.agent, f.cert, time.Hour),
		"another agent's cert":    agentToken(f.agent, f.other, time.Hour),
		"expired agent":           agentToken(f.agent, f.cert, -time.Hour),
		"alg none":                sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, claims, kid),
		"HS256 with public key":   sign(jwt.SigningMethodHS256, []byte(pub), claims, kid),
		"HS256 with public PEM":   sign(jwt.SigningMethodHS256, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pubDER}), claims, kid),
		"unknown kid":             sign(jwt.SigningMethodEdDSA, own, claims, "nobody"),
		"no kid":                  sign(jwt.SigningMethodEdDSA, own, claims, nil),
		"expired":                 sign(jwt.SigningMethodEdDSA, own, without("", map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}), kid),
		"without expiry":          sign(jwt.SigningMethodEdDSA, own, without("exp", nil), kid),
		"without id":              sign(jwt.SigningMethodEdDSA, own, without("jti", nil), kid),
		"without issue time":      sign(jwt.SigningMethodEdDSA, own, without("iat", nil), kid),
		"without subject":         sign(jwt.SigningMethodEdDSA, own, without("sub", nil), kid),
		"without certificate":     sign(jwt.SigningMethodEdDSA, own, without("cnf", nil), kid),
		"wrong issuer":            sign(jwt.SigningMethodEdDSA, own, without("", map[string]any{"iss": "evil"}), kid),
		"wrong audience":          sign(jwt.SigningMethodEdDSA, own, without("", map[string]any{"aud": "other"}), kid),
		"issued in the future":    sign(jwt.SigningMethodEdDSA, own, without("", map[string]any{"iat": time.Now().Add(time.Hour).Unix()}), kid),
		"key in header":           withHeader(strangerKey, "jwk", jose.JSONWebKey{Key: strangerKey.Public(), KeyID: kid}),
		"key by address":          withHeader(strangerKey, "jku", "https://evil.example/keys"),
		"certificate address":     withHeader(strangerKey, "x5u", "https://evil.example/cert"),
		"something critical":      withHeader(own, "crit", []string{"b64"}),
		"nothing critical":        withHeader(own, "crit", []string{}),
		"truncated":               agentToken(f.agent, f.cert, time.Hour)[:80],
		"empty":                   "",
	}
	for name, raw := range tokens {
		_, err := f.agent.Verify(raw, f.cert, wire.ScopeHeartbeat)
		require.Equal(t, name == "agent", err == nil, "%s: %v", name, err)
	}
	_, err = f.agent.Verify(tokens["expired agent"], f.cert, "")
	require.NoError(t, err, "a host that was off for an hour can renew its token")
	_, err = f.agent.Verify(tokens["expired agent"], f.other, "")
	require.ErrorContains(t, err, "bound to another certificate")
	_, err = f.agent.Verify(tokens["agent"], f.cert, "exec.bench")
	require.Equal(t, prego.CodeScopeMissing, prego.CodeOf(err))
	_, err = f.agent.Verify(tokens["expired"], f.cert, wire.ScopeHeartbeat)
	require.Equal(t, prego.CodeTokenExpired, prego.CodeOf(err))
}

func TestExecTokensAreShortAndOfAKnownKind(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for name, tc := range map[string]struct {
		kind wire.CommandKind
		ttl  time.Duration
		bad  bool
	}{
		"short": {wire.KindBench, time.Second, false}, "as long as it may be": {wire.KindRedisCLI, MaxExecTTL, false},
		"too long": {wire.KindBench, MaxExecTTL + time.Nanosecond, true}, "no life": {wire.KindBench, 0, true}, "unknown kind": {"sh", time.Minute, true},
	} {
		raw, err := f.exec.Issue("app-1", tc.kind, [32]byte{1}, tc.ttl)
		if tc.bad {
			require.ErrorContains(t, err, "a known kind and a life of at most 5 minutes", name)
			require.Empty(t, raw, name)
			continue
		}
		require.NoError(t, err, name)
		var c execClaims
		_, _, err = jwt.NewParser().ParseUnverified(raw, &c)
		require.NoError(t, err)
		require.Equal(t, []any{"exec." + string(tc.kind), "01" + strings.Repeat("00", 31), jwt.ClaimStrings{"app-1"}}, []any{c.Scope, c.Body, c.Audience}, name)
		require.InDelta(t, tc.ttl.Seconds(), c.ExpiresAt.Sub(c.IssuedAt.Time).Seconds(), 1, name)
	}
}
