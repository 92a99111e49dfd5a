package token

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

// FuzzAgentToken: of all texts only the token that was issued is good; every other is refused
// with a code.
func FuzzAgentToken(f *testing.F) {
	dir := f.TempDir()
	require.NoError(f, InitKeys(dir))
	ring, err := OpenKeyring(dir, UseAgent)
	require.NoError(f, err)
	agents := NewAgents(ring)
	none := "eyJhbGciOiJub25lIn0." // {"alg":"none"}
	for _, raw := range []string{"", "a.b.c", none + "e30.", "eyJhbGciOiJFZERTQSIsImtpZCI6Ii4uL3gifQ.e30.AA", "eyJhbGciOiJFZERTQSIsImNyaXQiOlsieCJdfQ.e30.AA", strings.Repeat(".", 1000)} {
		f.Add(raw)
	}
	cert := selfSigned(f)
	f.Fuzz(func(t *testing.T, raw string) {
		_, err := agents.Verify(raw, cert, "")
		var coded *prego.Error
		require.ErrorAs(t, err, &coded, "nobody can make a token without the key")
		require.NotEqual(t, prego.CodeInternal, coded.Code)
		if raw != "" {
			require.NotEqual(t, raw, coded.Error(), "a refusal quotes no token")
		}
	})
}

// FuzzCallerToken: whatever a token says that our key signed, it is good only if it says all
// that it must; and none is that another key signed. KID, NOW and SOON stand for values of the
// run, so that inputs keep their meaning.
func FuzzCallerToken(f *testing.F) {
	dir, strangers := f.TempDir(), f.TempDir()
	require.NoError(f, errors.Join(InitKeys(dir), InitKeys(strangers)))
	ring, err := OpenKeyring(dir, UseAPI)
	require.NoError(f, err)
	stranger, err := OpenKeyring(strangers, UseAPI)
	require.NoError(f, err)
	api := NewAPI(APIConfig{Keys: ring, Issuer: "prego", Audience: "prego-api", RolesClaim: "role"})
	const good = `{"iss":"prego","aud":"prego-api","sub":"ann","jti":"1","iat":NOW,"exp":SOON,"role":"viewer"}`
	for _, header := range []string{
		`{"alg":"EdDSA","kid":"KID"}`, `{"alg":"none","kid":"KID"}`, `{"alg":"HS256","kid":"KID"}`, `{"alg":"EdDSA","kid":"KID","crit":["x"],"x":1}`,
		`{"alg":"EdDSA","kid":"KID","crit":[]}`, `{"alg":"EdDSA","kid":["KID"]}`, `{"alg":"EdDSA"}`, `{"alg":"EdDSA","kid":"../KID"}`,
	} {
		f.Add(header, good)
	}
	for _, claims := range []string{
		`{}`, `null`, `[]`, strings.Replace(good, `"viewer"`, `["x","operator"]`, 1), strings.Replace(good, `"viewer"`, `{"operator":1}`, 1),
		strings.Replace(good, "SOON", "1e300", 1), strings.Replace(good, "SOON", `"SOON"`, 1), strings.Replace(good, "SOON", "1", 1), strings.Replace(good, `"prego-api"`, `["x","prego-api"]`, 1),
		strings.Replace(good, `"role"`, `"role":"operator","role"`, 1), strings.Replace(good, "NOW", "SOON", 1), strings.Replace(good, `"iat"`, `"nbf":SOON,"iat"`, 1),
	} {
		f.Add(`{"alg":"EdDSA","kid":"KID"}`, claims)
	}
	now := time.Now()
	meant := strings.NewReplacer("KID", ring.sign, "NOW", strconv.FormatInt(now.Unix(), 10), "SOON", strconv.FormatInt(now.Add(24*time.Hour).Unix(), 10))
	f.Fuzz(func(t *testing.T, header, claims string) {
		header, claims = meant.Replace(header), meant.Replace(claims)
		signed := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
		with := func(key ed25519.PrivateKey) string {
			return signed + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(signed)))
		}
		_, err := api.Authenticate(t.Context(), with(stranger.signer))
		require.Equal(t, prego.CodeUnauthenticated, prego.CodeOf(err), "another's key signed it")
		p, err := api.Authenticate(t.Context(), with(ring.signer))
		if err != nil {
			require.Contains(t, []prego.Code{prego.CodeUnauthenticated, prego.CodeTokenExpired, prego.CodeForbidden}, prego.CodeOf(err), "%v", err)
			return
		}
		var h, c map[string]any
		require.NoError(t, errors.Join(json.Unmarshal([]byte(header), &h), json.Unmarshal([]byte(claims), &c)))
		require.Equal(t, "EdDSA", h["alg"])
		require.Equal(t, ring.sign, h["kid"])
		require.NotContains(t, h, "crit")
		require.Equal(t, "prego", c["iss"])
		require.Contains(t, fmt.Sprint(c["aud"]), "prego-api")
		require.NotEmpty(t, c["jti"])
		exp, ok := c["exp"].(float64)
		require.True(t, ok && exp > float64(now.Add(-leeway-time.Minute).Unix()), "it has an end, which is to come")
		iat, ok := c["iat"].(float64)
		require.True(t, ok && iat < float64(now.Add(leeway+time.Hour).Unix()), "it was issued")
		require.Contains(t, fmt.Sprint(c["role"]), string(p.Role))
		require.Contains(t, []Role{RoleOperator, RoleViewer}, p.Role)
	})
}
