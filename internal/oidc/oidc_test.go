package oidc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/need"
)

// fake is an issuer in this process, for what a real one does not do: see lab/e2e for that.
type fake struct {
	url     string
	key     *ecdsa.PrivateKey
	more    []jose.JSONWebKey // besides its own
	claims  jwt.MapClaims     // of the next login, besides those that it must have
	nonce   string            // "" for the login's
	fetches atomic.Int64
	fail    atomic.Bool

	mu    sync.Mutex
	codes map[string]url.Values // the login's request, by code
}

func newFake(t *testing.T) *fake {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	f := &fake{key: key, codes: map[string]url.Values{}}
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	f.url = srv.URL
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		if f.fail.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": srv.URL, "jwks_uri": srv.URL + "/keys", "authorization_endpoint": srv.URL + "/auth", "token_endpoint": srv.URL + "/token",
			"scopes_supported": []string{"openid", "groups"}, "id_token_signing_alg_values_supported": []string{"ES256"},
		})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		f.fetches.Add(1)
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: append(f.more, jose.JSONWebKey{Key: key.Public(), KeyID: "r1", Algorithm: "ES256", Use: "sig"})})
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		asked, ok := f.codes[r.FormValue("code")]
		f.mu.Unlock()
		sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
		if !ok || base64.RawURLEncoding.EncodeToString(sum[:]) != asked.Get("code_challenge") {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": "invalid_grant"})
			return
		}
		c := jwt.MapClaims{"aud": asked.Get("client_id"), "nonce": asked.Get("nonce")}
		if f.nonce != "" {
			c["nonce"] = f.nonce
		}
		maps.Copy(c, f.claims)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "x", "token_type": "Bearer", "id_token": f.token(t, c)})
	})
	return f
}

// token is a good token of the issuer for prego, with other claims where they are given; nil drops one.
func (f *fake) token(t *testing.T, other jwt.MapClaims) string {
	t.Helper()
	return f.signed(t, jwt.SigningMethodES256, f.key, map[string]any{"kid": "r1"}, other)
}

func (f *fake) signed(t *testing.T, m jwt.SigningMethod, key any, header map[string]any, other jwt.MapClaims) string {
	t.Helper()
	c := jwt.MapClaims{"iss": f.url, "aud": "prego", "sub": "carol", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix()}
	maps.Copy(c, other)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	tok := jwt.NewWithClaims(m, c)
	maps.Copy(tok.Header, header)
	s, err := tok.SignedString(key)
	require.NoError(t, err)
	return s
}

// begun begins a login, and returns what the issuer sends the browser back with.
func (f *fake) begun(t *testing.T, p *People, secret string) url.Values {
	t.Helper()
	at, err := p.Begin(t.Context(), secret, false)
	require.NoError(t, err)
	u, err := url.Parse(at)
	require.NoError(t, err)
	code := rand.Text()
	f.mu.Lock()
	f.codes[code] = u.Query()
	f.mu.Unlock()
	return url.Values{"code": {code}, "state": {u.Query().Get("state")}}
}

func people(f *fake) *People {
	return NewPeople(Config{Issuer: f.url, ClientID: "prego", RedirectURL: "https://prego.example.com/cb", GroupsClaim: "groups"})
}

func TestLoginIsThePersonsWhoStartedIt(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	p := people(f)
	f.claims = jwt.MapClaims{"groups": []any{"staff", "ops", "", "staff", 7}, "name": "Carol", "email": "carol@example.com", "email_verified": true}
	back := f.begun(t, p, "secret")
	who, err := p.Finish(t.Context(), "secret", back)
	require.NoError(t, err)
	require.Equal(t, []any{f.url, "carol", "carol@example.com", []string{"ops", "staff"}}, []any{who.Issuer, who.Subject, who.Name, who.Groups})
	at, err := p.Begin(t.Context(), "secret", false)
	require.NoError(t, err)
	require.Contains(t, at, "code_challenge_method=S256")
	require.Contains(t, at, "scope=openid+profile+email+groups")
	require.NotContains(t, at, "secret")
	require.NotContains(t, at, "prompt")
	require.Zero(t, who.AuthTime)
	at, err = p.Begin(t.Context(), "secret", true)
	require.NoError(t, err)
	require.Contains(t, at, "max_age=0")
	require.Contains(t, at, "prompt=login")
	f.claims["auth_time"] = 1790000000
	who, err = p.Finish(t.Context(), "secret", f.begun(t, p, "secret"))
	require.NoError(t, err)
	require.Equal(t, time.Unix(1790000000, 0), who.AuthTime)

	refused := func(why, secret string, back url.Values) {
		t.Helper()
		_, err := p.Finish(t.Context(), secret, back)
		require.Equal(t, prego.CodeUnauthenticated, prego.CodeOf(err), "%s: %v", why, err)
	}
	with := func(name, value string) url.Values {
		v := maps.Clone(f.begun(t, p, "secret"))
		v.Set(name, value)
		return v
	}
	refused("another browser's", "other", f.begun(t, p, "secret"))
	refused("no cookie", "", with("state", part("", "state")))
	refused("another state", "secret", with("state", part("other", "state")))
	refused("another code", "secret", with("code", "guessed"))
	refused("another issuer (RFC 9207)", "secret", with("iss", "https://evil.example"))
	refused("refused at the issuer", "secret", with("error", "access_denied"))
	// The code of another login, with its own verifier and nonce.
	swapped := with("code", f.begun(t, p, "mallory").Get("code"))
	refused("another login's code", "secret", swapped)
	f.nonce = "another"
	refused("another nonce", "secret", f.begun(t, p, "secret"))
	f.nonce, f.claims = "", jwt.MapClaims{"aud": "another-client"}
	refused("another client's", "secret", f.begun(t, p, "secret"))
}

func TestNamesOfPeople(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	p := people(f)
	for want, claims := range map[string]jwt.MapClaims{
		"carol":  {"email": "ceo@example.com"},
		"Carol":  {"name": "Carol", "email": "ceo@example.com", "email_verified": false},
		"cc":     {"preferred_username": "c\u202ec\n", "name": "Carol"},
		"c@x.yz": {"email": "c@x.yz", "email_verified": true, "name": "Carol"},
	} {
		who, err := p.Identity(t.Context(), f.token(t, claims))
		require.NoError(t, err)
		require.Equal(t, want, who.Name)
	}
	_, err := p.Identity(t.Context(), f.token(t, jwt.MapClaims{"nonce": "n"}))
	require.Error(t, err, "a token of the console's logins")
}

// TestForgedTokensAreRefused shows an issuer's tokens, good and forged.
func TestForgedTokensAreRefused(t *testing.T) {
	t.Parallel()
	f, other := newFake(t), newFake(t)
	rsaKeys := map[string]*rsa.PrivateKey{}
	for kid, bits := range map[string]int{"short": 2040, "long": 2048} {
		key, err := rsa.GenerateKey(rand.Reader, bits)
		require.NoError(t, err)
		rsaKeys[kid] = key
		f.more = append(f.more, jose.JSONWebKey{Key: key.Public(), KeyID: kid, Use: "sig"})
	}
	f.more = append(f.more, jose.JSONWebKey{Key: f.key.Public(), KeyID: "enc", Use: "enc"}, jose.JSONWebKey{Key: f.key.Public(), KeyID: "es384", Algorithm: "ES384"},
		jose.JSONWebKey{Key: []byte("shared secret of 32 bytes, at least"), KeyID: "shared"})
	kid := func(id any) map[string]any { return map[string]any{"kid": id} }
	now, es, hs, none := time.Now(), jwt.SigningMethodES256, jwt.SigningMethodHS256, jwt.SigningMethodNone
	public, err := x509.MarshalPKIXPublicKey(rsaKeys["long"].Public())
	require.NoError(t, err)
	asPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	theirs := jose.JSONWebKey{Key: other.key.Public(), KeyID: "r1", Algorithm: "ES256", Use: "sig"}
	s := NewIssuers(true)
	for name, tc := range map[string]struct {
		raw  string
		code prego.Code
	}{
		"good":                     {f.token(t, nil), ""},
		"RSA of 2048 bits":         {f.signed(t, jwt.SigningMethodRS256, rsaKeys["long"], kid("long"), nil), ""},
		"for several, by us":       {f.token(t, jwt.MapClaims{"aud": []string{"prego", "x"}, "azp": "prego"}), ""},
		"issued within the leeway": {f.token(t, jwt.MapClaims{"iat": now.Add(leeway / 2).Unix()}), ""},
		"expired":                  {f.token(t, jwt.MapClaims{"exp": now.Add(-time.Second).Unix()}), prego.CodeTokenExpired},
		"RSA of 2040 bits":         {f.signed(t, jwt.SigningMethodRS256, rsaKeys["short"], kid("short"), nil), prego.CodeUnauthenticated},
		"another key":              {f.signed(t, es, other.key, kid("r1"), nil), prego.CodeUnauthenticated},
		"unknown kid":              {f.signed(t, es, f.key, kid("r2"), nil), prego.CodeUnauthenticated},
		"no kid":                   {f.signed(t, es, f.key, nil, nil), prego.CodeUnauthenticated},
		"key for encryption":       {f.signed(t, es, f.key, kid("enc"), nil), prego.CodeUnauthenticated},
		"key of another algorithm": {f.signed(t, es, f.key, kid("es384"), nil), prego.CodeUnauthenticated},
		"alg none":                 {f.signed(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, kid("r1"), nil), prego.CodeUnauthenticated},
		"HS256":                    {f.signed(t, jwt.SigningMethodHS256, []byte("shared secret of 32 bytes, at least"), kid("shared"), nil), prego.CodeUnauthenticated},
		"critical":                 {f.signed(t, es, f.key, map[string]any{"kid": "r1", "crit": []string{"b64"}, "b64": true}, nil), prego.CodeUnauthenticated},
		"another issuer":           {other.token(t, nil), prego.CodeUnauthenticated},
		"names another issuer":     {f.token(t, jwt.MapClaims{"iss": other.url}), prego.CodeUnauthenticated},
		"another audience":         {f.token(t, jwt.MapClaims{"aud": "prego2"}), prego.CodeUnauthenticated},
		"for several, by another":  {f.token(t, jwt.MapClaims{"aud": []string{"prego", "x"}, "azp": "x"}), prego.CodeUnauthenticated},
		"for several":              {f.token(t, jwt.MapClaims{"aud": []string{"prego", "x"}}), prego.CodeUnauthenticated},
		"no audience":              {f.token(t, jwt.MapClaims{"aud": nil}), prego.CodeUnauthenticated},
		"no subject":               {f.token(t, jwt.MapClaims{"sub": nil}), prego.CodeUnauthenticated},
		"no expiry":                {f.token(t, jwt.MapClaims{"exp": nil}), prego.CodeTokenExpired},
		"no time of issue":         {f.token(t, jwt.MapClaims{"iat": nil}), prego.CodeUnauthenticated},
		"issued beyond the leeway": {f.token(t, jwt.MapClaims{"iat": now.Add(leeway + time.Minute).Unix()}), prego.CodeUnauthenticated},
		"not yet good":             {f.token(t, jwt.MapClaims{"nbf": now.Add(time.Hour).Unix()}), prego.CodeUnauthenticated},
		"truncated":                {f.token(t, nil)[:100], prego.CodeUnauthenticated},
		// Another key or algorithm than the issuer's.
		"HS256 by a public key":        {f.signed(t, hs, asPEM, kid("long"), nil), prego.CodeUnauthenticated},
		"HS256 by a public key, DER":   {f.signed(t, hs, public, kid("long"), nil), prego.CodeUnauthenticated},
		"ES256 named RS256":            {f.signed(t, es, f.key, map[string]any{"kid": "r1", "alg": "RS256"}, nil), prego.CodeUnauthenticated},
		"alg None":                     {f.signed(t, none, jwt.UnsafeAllowNoneSignatureType, map[string]any{"kid": "r1", "alg": "None"}, nil), prego.CodeUnauthenticated},
		"kid of another key":           {f.signed(t, es, f.key, kid("long"), nil), prego.CodeUnauthenticated},
		"kid is a path":                {f.signed(t, es, f.key, kid("../keys/r1"), nil), prego.CodeUnauthenticated},
		"kid is a number":              {f.signed(t, es, f.key, kid(1), nil), prego.CodeUnauthenticated},
		"kid is a list":                {f.signed(t, es, f.key, kid([]string{"r1"}), nil), prego.CodeUnauthenticated},
		"its own key":                  {f.signed(t, es, other.key, map[string]any{"kid": "r1", "jwk": theirs}, nil), prego.CodeUnauthenticated},
		"its own key without kid":      {f.signed(t, es, other.key, map[string]any{"jwk": theirs}, nil), prego.CodeUnauthenticated},
		"its own key's address":        {f.signed(t, es, other.key, map[string]any{"kid": "r1", "jku": other.url + "/keys"}, nil), prego.CodeUnauthenticated},
		"another issuer's, by its key": {f.signed(t, es, other.key, kid("r1"), jwt.MapClaims{"iss": f.url}), prego.CodeUnauthenticated},
		// Claims of another form than the issuer's.
		"issuer with a slash":     {f.token(t, jwt.MapClaims{"iss": f.url + "/"}), prego.CodeUnauthenticated},
		"issuer in capitals":      {f.token(t, jwt.MapClaims{"iss": strings.ToUpper(f.url)}), prego.CodeUnauthenticated},
		"several issuers":         {f.token(t, jwt.MapClaims{"iss": []string{f.url}}), prego.CodeUnauthenticated},
		"nested audiences":        {f.token(t, jwt.MapClaims{"aud": [][]string{{"prego"}}}), prego.CodeUnauthenticated},
		"audience is an object":   {f.token(t, jwt.MapClaims{"aud": map[string]any{"prego": 1}}), prego.CodeUnauthenticated},
		"prefix of the audience":  {f.token(t, jwt.MapClaims{"aud": "preg"}), prego.CodeUnauthenticated},
		"party of one audience":   {f.token(t, jwt.MapClaims{"aud": "x", "azp": "prego"}), prego.CodeUnauthenticated},
		"parties":                 {f.token(t, jwt.MapClaims{"aud": []string{"prego", "x"}, "azp": []string{"prego"}}), prego.CodeUnauthenticated},
		"several subjects":        {f.token(t, jwt.MapClaims{"sub": []string{"carol"}}), prego.CodeUnauthenticated},
		"expiry is no time":       {f.token(t, jwt.MapClaims{"exp": 1e300}), prego.CodeTokenExpired},
		"audience in capitals":    {f.token(t, jwt.MapClaims{"aud": "x", "AUD": "prego"}), prego.CodeUnauthenticated},
		"audience in lower case":  {f.token(t, jwt.MapClaims{"Aud": "x"}), prego.CodeUnauthenticated},
		"subject in capitals":     {f.token(t, jwt.MapClaims{"Sub": "admin"}), prego.CodeUnauthenticated},
		"issued years ago, valid": {f.token(t, jwt.MapClaims{"iat": now.AddDate(-9, 0, 0).Unix()}), ""},
		"empty":                   {"", prego.CodeUnauthenticated},
	} {
		_, err := s.Identity(t.Context(), tc.raw, f.url, "prego")
		if tc.code == "" {
			require.NoError(t, err, name)
			continue
		}
		require.Equal(t, tc.code, prego.CodeOf(err), "%s: %v", name, err)
	}
	require.Zero(t, other.fetches.Load(), "no address in a token is called")
	// An issuer is known by its exact URL.
	_, err = s.Identity(t.Context(), f.token(t, jwt.MapClaims{"iss": f.url + "/"}), f.url+"/", "prego")
	require.Equal(t, prego.CodeNotReady, prego.CodeOf(err), "its document names another one")
}

// TestIssuerIsNotOverloaded: neither many callers nor unknown keys cause more than one fetch.
func TestIssuerIsNotOverloaded(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	s := NewIssuers(true)
	good := f.token(t, nil)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, err := s.Identity(t.Context(), good, f.url, "prego")
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	for range 20 {
		_, err := s.Identity(t.Context(), f.signed(t, jwt.SigningMethodES256, f.key, map[string]any{"kid": "new"}, nil), f.url, "prego")
		require.Equal(t, prego.CodeUnauthenticated, prego.CodeOf(err))
	}
	require.EqualValues(t, 1, f.fetches.Load())
}

// TestIssuerThatIsAway: known keys are good for an hour, and an unknown issuer is reported as such. A new key is found.
func TestIssuerThatIsAway(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	var passed atomic.Int64
	pass := func(d time.Duration) { passed.Add(int64(d)) }
	now := func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	i := &issuer{url: f.url, client: need.HTTP, now: now}
	check := func(raw string) error { _, err := i.verify(t.Context(), raw, "prego"); return err }
	f.fail.Store(true)
	require.Equal(t, prego.CodeNotReady, prego.CodeOf(check(f.token(t, nil))))
	require.Equal(t, prego.CodeNotReady, prego.CodeOf(i.known(t.Context(), "")))
	f.fail.Store(false)
	require.Equal(t, prego.CodeNotReady, prego.CodeOf(check(f.token(t, nil))), "it is asked again after a while")
	pass(minRefresh + time.Second)
	require.NoError(t, check(f.token(t, nil)))

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	f.more = append(f.more, jose.JSONWebKey{Key: key.Public(), KeyID: "r2", Use: "sig"})
	pass(minRefresh + time.Second)
	require.NoError(t, check(f.signed(t, jwt.SigningMethodES256, key, map[string]any{"kid": "r2"}, nil)))

	f.fail.Store(true)
	later := jwt.MapClaims{"exp": now().Add(3 * time.Hour).Unix()}
	pass(maxKeyAge - time.Minute)
	require.NoError(t, check(f.token(t, later)))
	pass(2 * time.Minute)
	require.Eventually(t, func() bool {
		pass(minRefresh + time.Second)
		return prego.CodeOf(check(f.token(t, later))) == prego.CodeNotReady
	}, 10*time.Second, time.Millisecond)
}

// TestOnlyIssuersOfTheInternetAreCalled: customers name them.
func TestOnlyIssuersOfTheInternetAreCalled(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	s := NewIssuers(false)
	_, err := s.Identity(t.Context(), f.token(t, nil), f.url, "prego")
	require.Equal(t, prego.CodeInvalidField, prego.CodeOf(err), "without TLS")
	_, err = s.Identity(t.Context(), f.token(t, nil), strings.Replace(f.url, "http://", "https://", 1), "prego")
	require.Equal(t, prego.CodeNotReady, prego.CodeOf(err), "on this host")
	require.Zero(t, f.fetches.Load())
	for at, want := range map[string]bool{
		"1.1.1.1": true, "2606:4700::1111": true, "127.0.0.1": false, "10.1.2.3": false, "169.254.169.254": false, "100.64.0.1": false, "0.0.0.0": false,
		"::1": false, "fe80::1": false, "fd00::1": false, "::ffff:10.0.0.1": false, "64:ff9b::a00:1": false, "224.0.0.1": false,
	} {
		require.Equal(t, want, public(netip.MustParseAddr(at)), at)
	}
	for _, bad := range []string{"", "token.example", "http://a.example", "https://", "https://u:p@a.example", "https://a.example?x=1", "https://a.example#x", "file:///etc/passwd"} {
		require.Error(t, s.Check(bad), bad)
	}
	require.NoError(t, s.Check("https://token.actions.githubusercontent.com"))
}
