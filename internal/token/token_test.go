package token

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/assert"
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
	api   *API
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
	f.api = NewAPI(APIConfig{Keys: f.rings[UseAPI], Issuer: "prego", Audience: "prego-api", RolesClaim: "role"})
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

// TestSwapMatrix shows a token of every kind, good and forged, to every verifier.
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
	pub := f.rings[UseAPI].keys[f.rings[UseAPI].sign]
	pubDER, err := x509.MarshalPKIXPublicKey(pub)
	require.NoError(t, err)
	claims := jwt.MapClaims{"iss": "prego", "aud": "prego-api", "sub": "mallory", "role": "operator", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(), "jti": "1"}
	sign := func(m jwt.SigningMethod, key any, c jwt.Claims, kid any) string {
		tok := jwt.NewWithClaims(m, c)
		tok.Header["kid"] = kid
		s, err := tok.SignedString(key)
		require.NoError(t, err)
		return s
	}
	own := f.rings[UseAPI].signer
	without := func(drop string, set map[string]any) jwt.MapClaims {
		c := jwt.MapClaims{}
		for k, v := range claims {
			if k != drop {
				c[k] = v
			}
		}
		maps.Copy(c, set)
		return c
	}
	kid := f.rings[UseAPI].sign
	strangerKey := stranger.rings[UseAPI].signer
	embedded := func(header string, value any) string {
		tok := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims)
		tok.Header["kid"], tok.Header[header] = kid, value
		s, err := tok.SignedString(strangerKey)
		require.NoError(t, err)
		return s
	}
	_, err = f.api.Authenticate(context.Background(), sign(jwt.SigningMethodEdDSA, own, claims, kid))
	require.NoError(t, err, "what the forgeries below start from is good")
	tokens := map[string]string{
		"api":                     must(f.api.Issue("alice", RoleOperator, time.Hour)),
		"forged, but for the key": sign(jwt.SigningMethodEdDSA, strangerKey, claims, kid),
		"agent":                   agentToken(f.agent, f.cert, time.Hour),
		"exec":                    must(f.exec.Issue("app-1", wire.KindBench, [32]byte{}, time.Minute)),
		"another API's":           must(stranger.api.Issue("alice", RoleOperator, time.Hour)),
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
		"without role":            sign(jwt.SigningMethodEdDSA, own, without("role", nil), kid),
		"wrong issuer":            sign(jwt.SigningMethodEdDSA, own, without("", map[string]any{"iss": "evil"}), kid),
		"wrong audience":          sign(jwt.SigningMethodEdDSA, own, without("", map[string]any{"aud": "other"}), kid),
		"issued in the future":    sign(jwt.SigningMethodEdDSA, own, without("", map[string]any{"iat": time.Now().Add(time.Hour).Unix()}), kid),
		"key in header":           embedded("jwk", jose.JSONWebKey{Key: strangerKey.Public(), KeyID: kid}),
		"key by address":          embedded("jku", "https://evil.example/keys"),
		"certificate address":     embedded("x5u", "https://evil.example/cert"),
		"truncated":               must(f.api.Issue("alice", RoleOperator, time.Hour))[:80],
		"empty":                   "",
	}
	for name, raw := range tokens {
		_, apiErr := f.api.Authenticate(context.Background(), raw)
		_, agentErr := f.agent.Verify(raw, f.cert, wire.ScopeHeartbeat)
		require.Equal(t, name == "api", apiErr == nil, "%s at the API: %v", name, apiErr)
		require.Equal(t, name == "agent", agentErr == nil, "%s at the gateway: %v", name, agentErr)
	}
	_, err = f.agent.Verify(tokens["expired agent"], f.cert, "")
	require.NoError(t, err, "a host that was off for an hour can renew its token")
	_, err = f.agent.Verify(tokens["expired agent"], f.other, "")
	require.ErrorContains(t, err, "bound to another certificate")
	_, err = f.agent.Verify(tokens["agent"], f.cert, "exec.bench")
	require.Equal(t, prego.CodeScopeMissing, prego.CodeOf(err))
	_, err = f.api.Authenticate(context.Background(), tokens["expired"])
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

type remoteIssuer struct {
	url     string
	key     *ecdsa.PrivateKey
	more    []jose.JSONWebKey // besides its own
	fetches atomic.Int64
	fail    atomic.Bool
	block   chan struct{} // closed: answers at once
}

func newRemoteIssuer(t *testing.T) *remoteIssuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	r := &remoteIssuer{key: key, block: make(chan struct{})}
	close(r.block)
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	r.url = srv.URL
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": srv.URL, "jwks_uri": srv.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		r.fetches.Add(1)
		<-r.block
		if r.fail.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: append(r.more, jose.JSONWebKey{Key: key.Public(), KeyID: "r1", Algorithm: "ES256", Use: "sig"})})
	})
	return r
}

func (r *remoteIssuer) mint(t *testing.T, kid string, groups any) string {
	t.Helper()
	tok := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{"iss": r.url, "aud": "prego-api", "sub": "carol", "groups": groups, "iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix()})
	tok.Header["kid"] = kid
	s, err := tok.SignedString(r.key)
	require.NoError(t, err)
	return s
}

// TestWhatMustBeUnderstood: a token that names something critical is refused, whoever has signed it.
func TestWhatMustBeUnderstood(t *testing.T) {
	t.Parallel()
	f, issuer := setup(t), newRemoteIssuer(t)
	a := NewAPI(APIConfig{Keys: f.rings[UseAPI], Issuer: "prego", Audience: "prego-api", RolesClaim: "groups", Remote: NewRemote(issuer.url, "")})
	critical := func(crit []string) error {
		tok := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{"iss": issuer.url, "aud": "prego-api", "sub": "carol", "groups": []string{"viewer"}, "iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix()})
		tok.Header["kid"] = "r1"
		if crit != nil {
			tok.Header["crit"], tok.Header["b64"] = crit, true
		}
		raw, err := tok.SignedString(issuer.key)
		require.NoError(t, err)
		_, err = a.Authenticate(context.Background(), raw)
		return err
	}
	require.NoError(t, critical(nil))
	require.Error(t, critical([]string{"b64"}))
	require.Error(t, critical([]string{}))
}

// TestAnIssuersKeysAndTimesAreHeldToOurs: short RSA keys are not keys, and a token has a time of issue, which is past.
func TestAnIssuersKeysAndTimesAreHeldToOurs(t *testing.T) {
	t.Parallel()
	f, issuer := setup(t), newRemoteIssuer(t)
	rsaKeys := map[string]*rsa.PrivateKey{}
	for kid, bits := range map[string]int{"short": 2040, "long": 2048} {
		key, err := rsa.GenerateKey(rand.Reader, bits)
		require.NoError(t, err)
		rsaKeys[kid] = key
		issuer.more = append(issuer.more, jose.JSONWebKey{Key: key.Public(), KeyID: kid, Use: "sig"})
	}
	a := NewAPI(APIConfig{Keys: f.rings[UseAPI], Issuer: "prego", Audience: "prego-api", RolesClaim: "groups", Remote: NewRemote(issuer.url, "")})
	now := time.Now()
	for name, tc := range map[string]struct {
		kid string
		iat any
		ok  bool
	}{
		"EC":                       {"r1", now.Unix(), true},
		"RSA of 2048 bits":         {"long", now.Unix(), true},
		"RSA of 2040 bits":         {"short", now.Unix(), false},
		"no time of issue":         {"r1", nil, false},
		"a text as time of issue":  {"r1", "now", false},
		"issued within the leeway": {"r1", now.Add(leeway / 2).Unix(), true},
		"issued beyond the leeway": {"r1", now.Add(leeway + time.Minute).Unix(), false},
		"issued an hour ago":       {"long", now.Add(-time.Hour).Unix(), true},
	} {
		claims := jwt.MapClaims{"iss": issuer.url, "aud": "prego-api", "sub": "carol", "groups": "viewer", "exp": now.Add(time.Hour).Unix()}
		if tc.iat != nil {
			claims["iat"] = tc.iat
		}
		method, key := jwt.SigningMethod(jwt.SigningMethodES256), any(issuer.key)
		if k := rsaKeys[tc.kid]; k != nil {
			method, key = jwt.SigningMethodRS256, k
		}
		tok := jwt.NewWithClaims(method, claims)
		tok.Header["kid"] = tc.kid
		raw, err := tok.SignedString(key)
		require.NoError(t, err, name)
		_, err = a.Authenticate(t.Context(), raw)
		if tc.ok {
			require.NoError(t, err, name)
			continue
		}
		require.Equal(t, prego.CodeUnauthenticated, prego.CodeOf(err), "%s: %v", name, err)
	}
}

// age makes what was fetched older than it is.
func (r *Remote) age(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fetched, r.tried = r.fetched.Add(-d), r.tried.Add(-d)
}

func TestRemoteIssuer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	f, issuer := setup(t), newRemoteIssuer(t)
	remote := NewRemote(issuer.url, "")
	a := NewAPI(APIConfig{Keys: f.rings[UseAPI], Issuer: "prego", Audience: "prego-api", RolesClaim: "groups", Remote: remote})
	good := issuer.mint(t, "r1", []string{"staff", "viewer"})
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			p, err := a.Authenticate(ctx, good)
			if assert.NoError(t, err) {
				assert.False(t, p.Expires.IsZero())
				p.Expires = time.Time{}
				assert.Equal(t, Principal{Subject: "carol", Role: RoleViewer}, p)
			}
		}()
	}
	wg.Wait()
	for range 20 {
		_, err := a.Authenticate(ctx, issuer.mint(t, "unknown", "operator"))
		require.Equal(t, prego.CodeUnauthenticated, prego.CodeOf(err))
	}
	require.EqualValues(t, 1, issuer.fetches.Load(), "neither many callers nor unknown keys make us hammer the issuer")
	_, err := a.Authenticate(ctx, issuer.mint(t, "r1", "staff"))
	require.Equal(t, prego.CodeForbidden, prego.CodeOf(err))

	other := newRemoteIssuer(t)
	forged := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{"iss": issuer.url, "aud": "prego-api", "sub": "carol", "groups": "operator", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix()})
	forged.Header["kid"] = "r1"
	raw, err := forged.SignedString(other.key)
	require.NoError(t, err)
	_, err = a.Authenticate(ctx, raw)
	require.Equal(t, prego.CodeUnauthenticated, prego.CodeOf(err))
	_, err = a.Authenticate(ctx, other.mint(t, "r1", "operator"))
	require.Equal(t, prego.CodeUnauthenticated, prego.CodeOf(err), "an issuer that is not configured")
}

// TestANewKeyOfAnIssuerIsFetched when a token names it, at most once per minRefresh. An issuer whose keys' address is
// configured needs no discovery document.
func TestANewKeyOfAnIssuerIsFetched(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	var ids atomic.Pointer[[]string]
	ids.Store(&[]string{"r1"})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/keys" {
			http.NotFound(w, r)
			return
		}
		var set jose.JSONWebKeySet
		for _, id := range *ids.Load() {
			set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: id, Use: "sig"})
		}
		_ = json.NewEncoder(w).Encode(set)
	}))
	t.Cleanup(srv.Close)
	remote := NewRemote(srv.URL, srv.URL+"/keys")
	a := NewAPI(APIConfig{Keys: setup(t).rings[UseAPI], Issuer: "prego", Audience: "prego-api", RolesClaim: "groups", Remote: remote})
	asks := func(kid string) error {
		now := time.Now()
		tok := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{
			"iss": srv.URL, "aud": "prego-api", "sub": "carol", "groups": "viewer", "iat": now.Unix(), "exp": now.Add(time.Minute).Unix(),
		})
		tok.Header["kid"] = kid
		raw, err := tok.SignedString(key)
		require.NoError(t, err)
		_, err = a.Authenticate(t.Context(), raw)
		return err
	}
	require.NoError(t, asks("r1"))
	ids.Store(&[]string{"r1", "r2"})
	require.Error(t, asks("r2"), "just fetched")
	remote.age(minRefresh)
	require.NoError(t, asks("r2"))
}

func TestAnIssuerThatIsAwayStopsNobodyItKnows(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	f, issuer := setup(t), newRemoteIssuer(t)
	remote := NewRemote(issuer.url, issuer.url+"/keys")
	a := NewAPI(APIConfig{Keys: f.rings[UseAPI], Issuer: "prego", Audience: "prego-api", RolesClaim: "groups", Remote: remote})
	good := issuer.mint(t, "r1", "operator")
	issuer.fail.Store(true)
	_, err := a.Authenticate(ctx, good)
	require.Equal(t, prego.CodeNotReady, prego.CodeOf(err), "not the caller's fault")
	issuer.fail.Store(false)
	remote.age(minRefresh)
	_, err = a.Authenticate(ctx, good)
	require.NoError(t, err)

	// The issuer hangs. Its keys are due, and are used all the same meanwhile.
	issuer.block = make(chan struct{})
	release := sync.OnceFunc(func() { close(issuer.block) })
	t.Cleanup(release)
	remote.age(refreshAfter)
	before := issuer.fetches.Load()
	_, err = a.Authenticate(ctx, good)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return issuer.fetches.Load() == before+1 }, 5*time.Second, time.Millisecond, "it was asked")
	impatient, cancel := context.WithCancel(ctx)
	cancel()
	_, err = a.Authenticate(impatient, issuer.mint(t, "r2", "operator"))
	require.Equal(t, prego.CodeUnauthenticated, prego.CodeOf(err), "who waits for a new key can give up")
	issuer.fail.Store(true)
	release()
	require.Eventually(t, remote.failing, 5*time.Second, time.Millisecond)

	remote.age(maxKeyAge)
	_, err = a.Authenticate(ctx, good)
	require.Equal(t, prego.CodeNotReady, prego.CodeOf(err), "keys that could not be confirmed for an hour are not used")
}

// TestAnIssuersKeysAreForWhatTheySay: a key for another algorithm or use, a private or
// nameless one, an answer that is none, and a discovery document of somebody else let
// nobody in.
func TestAnIssuersKeysAreForWhatTheySay(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	public := func(change func(k *jose.JSONWebKey)) jose.JSONWebKey {
		k := jose.JSONWebKey{Key: key.Public(), KeyID: "r1", Algorithm: "ES256", Use: "sig"}
		change(&k)
		return k
	}
	for name, tc := range map[string]struct {
		keys   any
		kid    string
		status int
		issuer string // of the discovery document; "" for its own
		uri    string // that it names; "" for its own
		want   prego.Code
	}{
		"good":                       {keys: public(func(*jose.JSONWebKey) {})},
		"without algorithm":          {keys: public(func(k *jose.JSONWebKey) { k.Algorithm = "" })},
		"without use":                {keys: public(func(k *jose.JSONWebKey) { k.Use = "" })},
		"another algorithm":          {keys: public(func(k *jose.JSONWebKey) { k.Algorithm = "ES384" }), want: prego.CodeUnauthenticated},
		"for encryption":             {keys: public(func(k *jose.JSONWebKey) { k.Use = "enc" }), want: prego.CodeUnauthenticated},
		"another algorithm, no use":  {keys: public(func(k *jose.JSONWebKey) { k.Algorithm, k.Use = "ES384", "" }), want: prego.CodeUnauthenticated},
		"no algorithm, not for this": {keys: public(func(k *jose.JSONWebKey) { k.Algorithm, k.Use = "", "enc" }), want: prego.CodeUnauthenticated},
		"a private key":              {keys: public(func(k *jose.JSONWebKey) { k.Key = key }), want: prego.CodeUnauthenticated},
		"without a name":             {keys: public(func(k *jose.JSONWebKey) { k.KeyID = "" }), kid: "-", want: prego.CodeUnauthenticated},
		"an error":                   {keys: public(func(*jose.JSONWebKey) {}), status: http.StatusForbidden, want: prego.CodeNotReady},
		"another's document":         {keys: public(func(*jose.JSONWebKey) {}), issuer: "https://elsewhere.example", want: prego.CodeNotReady},
		"a document without keys":    {keys: public(func(*jose.JSONWebKey) {}), uri: "-", want: prego.CodeNotReady},
		"a place that is none":       {keys: public(func(*jose.JSONWebKey) {}), uri: "http://127.0.0.1:1/keys", want: prego.CodeNotReady},
		"no URL":                     {keys: public(func(*jose.JSONWebKey) {}), uri: ":", want: prego.CodeNotReady},
		"no keys":                    {keys: "none", want: prego.CodeNotReady},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mux := http.NewServeMux()
			srv := httptest.NewServer(mux)
			t.Cleanup(srv.Close)
			mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
				doc := map[string]string{"issuer": cmp.Or(tc.issuer, srv.URL), "jwks_uri": cmp.Or(tc.uri, srv.URL+"/keys")}
				if tc.uri == "-" {
					delete(doc, "jwks_uri")
				}
				_ = json.NewEncoder(w).Encode(doc)
			})
			mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
				if tc.status != 0 {
					w.WriteHeader(tc.status)
				}
				_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{tc.keys}})
			})
			tok := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{"iss": srv.URL, "aud": "prego-api", "sub": "carol", "groups": "viewer", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix()})
			if tc.kid == "" {
				tok.Header["kid"] = "r1"
			}
			raw, err := tok.SignedString(key)
			require.NoError(t, err)
			a := NewAPI(APIConfig{Keys: setup(t).rings[UseAPI], Issuer: "prego", Audience: "prego-api", RolesClaim: "groups", Remote: NewRemote(srv.URL, "")})
			_, err = a.Authenticate(t.Context(), raw)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.Equal(t, tc.want, prego.CodeOf(err), "%v", err)
		})
	}
}

// TestKeysThatAreFreshAreNotFetchedAgain, and those that are used up are not used.
func TestKeysThatAreFreshAreNotFetchedAgain(t *testing.T) {
	t.Parallel()
	f, issuer := setup(t), newRemoteIssuer(t)
	remote := NewRemote(issuer.url, issuer.url+"/keys")
	a := NewAPI(APIConfig{Keys: f.rings[UseAPI], Issuer: "prego", Audience: "prego-api", RolesClaim: "groups", Remote: remote})
	for range 3 {
		_, err := a.Authenticate(t.Context(), issuer.mint(t, "r1", "operator"))
		require.NoError(t, err)
	}
	remote.age(refreshAfter - time.Minute)
	_, err := a.Authenticate(t.Context(), issuer.mint(t, "r1", "operator"))
	require.NoError(t, err)
	require.EqualValues(t, 1, issuer.fetches.Load())
	// Due, and the issuer hangs: it is not waited for.
	issuer.block = make(chan struct{})
	t.Cleanup(sync.OnceFunc(func() { close(issuer.block) }))
	remote.age(2 * time.Minute)
	began := time.Now()
	_, err = a.Authenticate(t.Context(), issuer.mint(t, "r1", "operator"))
	require.NoError(t, err)
	require.Less(t, time.Since(began), 2*time.Second)
}
