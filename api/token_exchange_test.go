package api_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/oidc"
)

// issuer signs tokens, as that of a CI does.
type issuer struct {
	t   *testing.T
	url string
	key *ecdsa.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": srv.URL, "jwks_uri": srv.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Algorithm: "ES256", Use: "sig"}}})
	})
	return &issuer{t: t, url: srv.URL, key: key}
}

func (i *issuer) token(other jwt.MapClaims) string {
	i.t.Helper()
	c := jwt.MapClaims{
		"iss": i.url, "aud": "https://prego.example.com", "sub": "repo:acme/shop:ref:refs/heads/main", "iat": time.Now().Unix(), "exp": time.Now().Add(5 * time.Minute).Unix(),
		"jti": rand.Text(), "repository": "acme/shop", "ref": "refs/heads/main", "run_attempt": 1,
	}
	maps.Copy(c, other)
	tok := jwt.NewWithClaims(jwt.SigningMethodES256, c)
	tok.Header["kid"] = "k"
	s, err := tok.SignedString(i.key)
	require.NoError(i.t, err)
	return s
}

// exchange returns the status, and the token or the code of the refusal.
func (b *bundle) exchange(kind, account, raw string) (int, string, api.ExchangedToken) {
	b.t.Helper()
	in := map[string]string{
		"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "subject_token": raw, "subject_token_type": "urn:ietf:params:oauth:token-type:" + kind,
	}
	if account != "" {
		in["account_id"] = account
	}
	body, err := json.Marshal(in)
	require.NoError(b.t, err)
	resp, answer := b.send("POST", "/v1/token-exchange", "", js, string(body))
	if resp.StatusCode != http.StatusCreated {
		return resp.StatusCode, as[api.Problem](b.t, answer).Code, api.ExchangedToken{}
	}
	out := as[api.ExchangedToken](b.t, answer)
	return resp.StatusCode, "", out
}

// live authenticates as the program does: tokens are rows.
func live(d *api.Deps) { d.Auth = api.Authenticate(d.Store) }

func TestExternalTokensAreExchangedByTheirClaims(t *testing.T) {
	t.Parallel()
	b := setup(t, live)
	ci := newIssuer(t)
	operator := b.token("operator", "operator")
	b.token("ci", "support")
	trust := map[string]any{"issuer": ci.url, "audience": "https://prego.example.com", "claims": map[string]string{"repository": "acme/shop", "ref": "refs/heads/main", "run_attempt": "1"}}
	body, err := json.Marshal(trust)
	require.NoError(t, err)
	status, _, _ := b.exchange("jwt", "ci", ci.token(nil))
	require.Equal(t, http.StatusUnauthorized, status, "before there is a trust")
	resp, answer := b.send("PUT", "/v1/service-accounts/ci/trust", operator, js, string(body))
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", answer)

	raw := ci.token(nil)
	status, code, out := b.exchange("jwt", "ci", raw)
	require.Equal(t, http.StatusCreated, status, code)
	require.Equal(t, "Bearer", out.TokenType)
	require.InDelta(t, 300, out.ExpiresIn, 5, "it ends with the issuer's token")
	resp, answer = b.send("GET", "/v1/whoami", out.AccessToken, "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", answer)
	require.Equal(t, "ci", as[api.Caller](t, answer).PrincipalId)
	_, _, out = b.exchange("jwt", "ci", ci.token(jwt.MapClaims{"exp": time.Now().Add(24 * time.Hour).Unix()}))
	require.InDelta(t, 900, out.ExpiresIn, 5, "after 15 minutes at most")
	require.Zero(t, b.logs.FilterMessage("a token was exchanged again").Len())
	status, _, _ = b.exchange("jwt", "ci", raw)
	require.Equal(t, http.StatusCreated, status)
	require.Equal(t, 1, b.logs.FilterMessage("a token was exchanged again").Len(), "a token that is used again is noted")
	require.Equal(t, 3, b.count(`SELECT count(*) FROM audit_entries WHERE kind = 'credential' AND verb = 'create' AND actor = 'ci' AND operation = 'exchangeToken'`))

	other := newIssuer(t)
	other.url = ci.url
	for name, tc := range map[string]struct{ account, raw string }{
		"another repository":       {"ci", ci.token(jwt.MapClaims{"repository": "evil/shop"})},
		"a prefix":                 {"ci", ci.token(jwt.MapClaims{"repository": "acme/shop2"})},
		"a list of values":         {"ci", ci.token(jwt.MapClaims{"repository": []string{"acme/shop"}})},
		"another branch":           {"ci", ci.token(jwt.MapClaims{"ref": "refs/heads/x"})},
		"another audience":         {"ci", ci.token(jwt.MapClaims{"aud": "https://other.example.com"})},
		"another issuer":           {"ci", newIssuer(t).token(nil)},
		"another issuer's key":     {"ci", other.token(nil)},
		"an account without trust": {"operator", ci.token(nil)},
		"no account":               {"nobody", ci.token(nil)},
		"one of our own":           {"ci", out.AccessToken},
		"rubbish":                  {"ci", "a.b.c"},
	} {
		status, code, _ := b.exchange("jwt", tc.account, tc.raw)
		require.Equal(t, []any{http.StatusUnauthorized, "unauthenticated"}, []any{status, code}, name)
	}
	status, code, _ = b.exchange("jwt", "ci", ci.token(jwt.MapClaims{"exp": time.Now().Add(-time.Minute).Unix()}))
	require.Equal(t, []any{http.StatusUnauthorized, "token_expired"}, []any{status, code})
	status, code, _ = b.exchange("jwt", "", ci.token(nil))
	require.Equal(t, []any{http.StatusUnprocessableEntity, "invalid_field"}, []any{status, code})

	b.sql(`UPDATE principals SET disabled_at = now() WHERE principal_id = 'ci'`)
	status, _, _ = b.exchange("jwt", "ci", ci.token(nil))
	require.Equal(t, http.StatusUnauthorized, status, "a disabled account")
	b.sql(`UPDATE principals SET disabled_at = NULL WHERE principal_id = 'ci'`)
	resp, _ = b.send("DELETE", "/v1/service-accounts/ci/trust", operator, "", "")
	require.Equal(t, http.StatusNoContent, resp.StatusCode)
	status, _, _ = b.exchange("jwt", "ci", ci.token(nil))
	require.Equal(t, http.StatusUnauthorized, status)
}

// TestTrustGivesNoMoreThanItsCallerHas: who sets it could get a token of the account.
func TestTrustGivesNoMoreThanItsCallerHas(t *testing.T) {
	t.Parallel()
	b := setup(t, live)
	b.sql(`INSERT INTO orgs (org_id, created_by) VALUES ('acme', 'x')`)
	b.token("robot", "operator")
	owner := b.token("owner", "billing")
	b.sql(`SET LOCAL session_replication_role = replica;
		DELETE FROM access_grants WHERE principal_id = 'owner';
		INSERT INTO access_grants (grant_id, principal_id, access_role, org_id, created_by) VALUES ('g', 'owner', 'org_owner', 'acme', 'x');
		UPDATE principals SET org_id = 'acme' WHERE principal_id = 'robot'`)
	const body = `{"issuer":"https://id.example.com","audience":"a","claims":{"sub":"x"}}`
	resp, answer := b.send("PUT", "/v1/service-accounts/robot/trust", owner, js, body)
	require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s", answer)
	b.sql(`SET LOCAL session_replication_role = replica; UPDATE access_grants SET access_role = 'developer', org_id = 'acme' WHERE principal_id = 'robot'`)
	resp, answer = b.send("PUT", "/v1/service-accounts/robot/trust", owner, js, body)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", answer)
	resp, answer = b.send("GET", "/v1/service-accounts/robot/trust", owner, "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", answer)
	require.Equal(t, map[string]string{"sub": "x"}, as[api.TokenTrust](t, answer).Claims)
	for _, bad := range []string{
		`{"issuer":"http://10.0.0.1?x","audience":"a","claims":{"sub":"x"}}`, `{"issuer":"https://id.example.com","audience":"a","claims":{}}`,
		`{"issuer":"https://id.example.com","audience":"a","claims":{"sub":" "}}`, `{"issuer":"https://id.example.com","audience":"","claims":{"sub":"x"}}`,
	} {
		resp, answer = b.send("PUT", "/v1/service-accounts/robot/trust", owner, js, bad)
		require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode, "%s %s", bad, answer)
	}
}

// TestPeopleGetTheGrantsOfTheirGroups, in a login by an ID token, until it ends.
func TestPeopleGetTheGrantsOfTheirGroups(t *testing.T) {
	t.Parallel()
	id := newIssuer(t)
	b := setup(t, func(d *api.Deps) {
		live(d)
		d.People = oidc.NewPeople(oidc.Config{Issuer: id.url, ClientID: "prego", GroupsClaim: "groups"})
	})
	b.sql(`SET LOCAL session_replication_role = replica;
		INSERT INTO principals (principal_id, kind, issuer, subject, name, created_by) VALUES
			('g-ops', 'group', '` + id.url + `', 'ops', 'ops', 'x'), ('g-evil', 'group', 'https://evil.example', 'dev', 'dev', 'x');
		INSERT INTO access_grants (grant_id, principal_id, access_role, created_by) VALUES ('1', 'g-ops', 'support', 'x'), ('2', 'g-evil', 'operator', 'x')`)
	carol := func(groups ...string) string {
		return id.token(jwt.MapClaims{"aud": "prego", "sub": "carol", "email": "carol@example.com", "email_verified": true, "groups": groups})
	}
	resp, answer := b.send("GET", "/v1/login-methods", "", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, api.LoginMethods{Issuer: id.url, ClientId: "prego"}, as[api.LoginMethods](t, answer))

	status, code, login := b.exchange("id_token", "", carol("ops", "dev", "unknown"))
	require.Equal(t, http.StatusCreated, status, code)
	require.InDelta(t, api.LoginLife.Seconds(), login.ExpiresIn, 5)
	kind, _ := access.KindOfSecret(login.AccessToken)
	require.Equal(t, access.Login, kind)
	who := func(secret string) api.Caller {
		resp, answer := b.send("GET", "/v1/whoami", secret, "", "")
		require.Equal(t, http.StatusOK, resp.StatusCode, "%s", answer)
		return as[api.Caller](t, answer)
	}
	first := who(login.AccessToken)
	require.Equal(t, []any{"carol@example.com", id.url, "carol", []api.CallerGrant{{AccessRole: "support"}}}, []any{first.Name, first.Issuer, first.Subject, first.Grants})
	require.Equal(t, 1, b.count(`SELECT count(*) FROM audit_entries WHERE kind = 'credential' AND verb = 'create' AND actor = '`+first.PrincipalId+`'`))

	_, _, again := b.exchange("id_token", "", carol())
	second := who(again.AccessToken)
	require.Equal(t, first.PrincipalId, second.PrincipalId, "the same person")
	require.Empty(t, second.Grants, "who is in no group any more has none of its grants in a new login")

	resp, _ = b.send("DELETE", "/v1/whoami", again.AccessToken, "", "")
	require.Equal(t, http.StatusNoContent, resp.StatusCode)
	resp, _ = b.send("GET", "/v1/whoami", again.AccessToken, "", "")
	require.Equal(t, http.StatusUnauthorized, resp.StatusCode)

	for name, raw := range map[string]string{
		"for another client": id.token(jwt.MapClaims{"sub": "carol"}), "another issuer's": newIssuer(t).token(jwt.MapClaims{"aud": "prego"}), "rubbish": "x",
	} {
		status, code, _ := b.exchange("id_token", "", raw)
		require.Equal(t, []any{http.StatusUnauthorized, "unauthenticated"}, []any{status, code}, name)
	}
	b.sql(`UPDATE principals SET disabled_at = now() WHERE subject = 'carol'`)
	status, code, _ = b.exchange("id_token", "", carol("ops"))
	require.Equal(t, []any{http.StatusForbidden, "forbidden"}, []any{status, code})
	resp, _ = b.send("GET", "/v1/whoami", login.AccessToken, "", "")
	require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
}

func (b *bundle) count(sql string) (n int) {
	b.t.Helper()
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), sql).Scan(&n))
	return n
}
