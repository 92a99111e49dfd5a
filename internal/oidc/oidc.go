// Package oidc verifies what OpenID Connect issuers vouch for: the people who log in (People), and the tokens of
// programs (Issuers).
package oidc

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

// algorithms are those of issuers' keys, without symmetric ones and "none".
var algorithms = []jose.SignatureAlgorithm{jose.EdDSA, jose.ES256, jose.ES384, jose.RS256, jose.RS384, jose.RS512, jose.PS256}

const (
	refreshAfter = 10 * time.Minute // age at which keys are fetched again, while they are used
	maxKeyAge    = time.Hour        // age at which keys are no longer used, if fetching keeps failing
	minRefresh   = 15 * time.Second // between two fetches: unknown keys can't make us overload an issuer
	leeway       = 30 * time.Second // tolerates clock differences
	patience     = 5 * time.Second  // of a call to an issuer
	mostBytes    = 1 << 20          // of an answer
	minRSABits   = 2048             // RFC 7518 §3.3: shorter keys can be broken
)

// issuer is an issuer with its endpoints and keys, which are discovered when they are first needed.
type issuer struct {
	url    string
	client *http.Client
	now    func() time.Time

	fetching singleflight.Group

	mu       sync.Mutex
	provider *oidc.Provider
	keys     map[string]jose.JSONWebKey
	fetched  time.Time
	tried    time.Time
	failed   error // of the last fetch
}

// never is the age of what is unknown.
const never = time.Duration(math.MaxInt64)

// state returns the age of what is known, and whether it is time to fetch. A known issuer's unknown key is of the age
// never.
func (i *issuer) state(kid string) (age time.Duration, due bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	age = never
	if _, ok := i.keys[kid]; i.provider != nil && (ok || kid == "") {
		age = i.now().Sub(i.fetched)
	}
	return age, age > refreshAfter && i.now().Sub(i.tried) > minRefresh
}

// known discovers the issuer if that is due. Callers whose key is known and not too old don't wait for it.
func (i *issuer) known(ctx context.Context, kid string) error {
	age, due := i.state(kid)
	if due {
		// All callers share one fetch, which continues if one of them gives up.
		done := i.fetching.DoChan("", func() (any, error) {
			if _, due := i.state(kid); due {
				i.fetch(context.WithoutCancel(ctx))
			}
			return nil, nil
		})
		if age > maxKeyAge {
			select {
			case <-done:
				age, _ = i.state(kid)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	if age <= maxKeyAge {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.failed != nil {
		return prego.Errorf(prego.CodeNotReady, "the issuer %s can't be reached right now", i.url)
	}
	return errToken
}

func (i *issuer) fetch(ctx context.Context) {
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, i.client), patience)
	defer cancel()
	provider, keys, err := i.discover(ctx)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.tried, i.failed = i.now(), err
	if err == nil {
		i.provider, i.keys, i.fetched = provider, keys, i.tried
	}
}

// discover reads the issuer's endpoints and keys. The library compares the document's issuer with the URL.
func (i *issuer) discover(ctx context.Context) (*oidc.Provider, map[string]jose.JSONWebKey, error) {
	provider, err := oidc.NewProvider(ctx, i.url)
	if err != nil {
		return nil, nil, fmt.Errorf("issuer: %w", err)
	}
	var doc struct {
		JWKSURI string `json:"jwks_uri"`
	}
	if err := provider.Claims(&doc); err != nil {
		return nil, nil, fmt.Errorf("issuer: %w", err)
	}
	if strings.HasPrefix(i.url, "https://") && !strings.HasPrefix(doc.JWKSURI, "https://") {
		return nil, nil, errors.New("issuer: its keys are not at an https address")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, doc.JWKSURI, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("issuer's keys: %w", err)
	}
	resp, err := i.client.Do(req)
	if err != nil {
		return nil, nil, fmt.Errorf("issuer's keys: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("issuer's keys: the answer is %d", resp.StatusCode)
	}
	var set jose.JSONWebKeySet
	if err := json.NewDecoder(resp.Body).Decode(&set); err != nil {
		return nil, nil, fmt.Errorf("issuer's keys: %w", err)
	}
	keys := make(map[string]jose.JSONWebKey, len(set.Keys))
	for _, k := range set.Keys {
		if k.KeyID != "" && k.IsPublic() && k.Valid() && !weak(k) {
			keys[k.KeyID] = k
		}
	}
	return provider, keys, nil
}

func weak(k jose.JSONWebKey) bool {
	key, ok := k.Key.(*rsa.PublicKey)
	return ok && key.N.BitLen() < minRSABits
}

var errToken = prego.Errorf(prego.CodeUnauthenticated, "the issuer's token is not valid here")

// verify returns what a token of the issuer for an audience states. The token's key is found by its id alone.
func (i *issuer) verify(ctx context.Context, raw, audience string) (*oidc.IDToken, error) {
	jws, err := jose.ParseSignedCompact(raw, algorithms)
	if err != nil || len(jws.Signatures) != 1 {
		return nil, errToken
	}
	head := jws.Signatures[0].Protected
	if _, critical := head.ExtraHeaders["crit"]; critical || head.KeyID == "" { // we understand nothing that is critical
		return nil, errToken
	}
	if err := i.known(ctx, head.KeyID); err != nil {
		return nil, err
	}
	i.mu.Lock()
	key := i.keys[head.KeyID]
	i.mu.Unlock()
	// A key with a declared use or algorithm is used for that only.
	if (key.Algorithm != "" && key.Algorithm != head.Algorithm) || (key.Use != "" && key.Use != "sig") {
		return nil, errToken
	}
	v := oidc.NewVerifier(i.url, &oidc.StaticKeySet{PublicKeys: []crypto.PublicKey{key.Key}}, &oidc.Config{
		ClientID: audience, SupportedSigningAlgs: names(algorithms), Now: i.now,
	})
	t, err := v.Verify(ctx, raw)
	if expired := new(oidc.TokenExpiredError); errors.As(err, &expired) {
		return nil, prego.Errorf(prego.CodeTokenExpired, "the issuer's token expired at %s", expired.Expiry.UTC().Format(time.RFC3339))
	}
	if err != nil {
		return nil, errToken
	}
	if err := exact(t); err != nil {
		return nil, err
	}
	if t.Subject == "" || t.IssuedAt.Unix() <= 0 || t.IssuedAt.After(i.now().Add(leeway)) {
		return nil, errToken
	}
	if len(t.Audience) > 1 { // others could use it here
		var c struct {
			Party string `json:"azp"`
		}
		if err := t.Claims(&c); err != nil || c.Party != audience {
			return nil, errToken
		}
	}
	return t, nil
}

// exact refuses claims that only look like registered ones. Names of claims differ by case (RFC 7519 §4), but those of
// JSON in Go don't: an "AUD" that a user of the issuer may set would be taken for the "aud" that the issuer sets.
func exact(t *oidc.IDToken) error {
	claims := map[string]json.RawMessage{}
	if err := t.Claims(&claims); err != nil {
		return errToken
	}
	for name := range claims {
		plain := strings.ToLower(name)
		if name != plain && slices.Contains([]string{"iss", "sub", "aud", "exp", "nbf", "iat", "nonce", "azp"}, plain) {
			return errToken
		}
	}
	return nil
}

func names(algs []jose.SignatureAlgorithm) (out []string) {
	for _, a := range algs {
		out = append(out, string(a))
	}
	return out
}

// identity is what a verified token vouches for. groups names the claim with the groups, "" for none.
func identity(t *oidc.IDToken, groups string) (access.Identity, error) {
	var raw json.RawMessage
	if err := t.Claims(&raw); err != nil {
		return access.Identity{}, errToken
	}
	claims := map[string]any{}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&claims); err != nil {
		return access.Identity{}, errToken
	}
	text := func(name string) string { s, _ := claims[name].(string); return s }
	email := text("email")
	if verified, _ := claims["email_verified"].(bool); !verified {
		email = ""
	}
	out := access.Identity{
		Issuer: t.Issuer, Subject: t.Subject, TokenID: text("jti"), Expires: t.Expiry, Claims: claims,
		Name: shown(cmp.Or(email, text("preferred_username"), text("name"), t.Subject)),
	}
	if n, ok := claims["auth_time"].(json.Number); ok {
		if at, err := n.Float64(); err == nil && at > 0 {
			out.AuthTime = time.Unix(int64(at), 0)
		}
	}
	if groups != "" {
		out.Groups = texts(claims[groups])
	}
	return out, nil
}

// mostGroups is how many groups of a person count.
const mostGroups = 200

func texts(claim any) (out []string) {
	switch v := claim.(type) {
	case string:
		out = append(out, v)
	case []any:
		for _, e := range v {
			if s, ok := e.(string); ok && s != "" {
				out = append(out, s)
			}
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return out[:min(len(out), mostGroups)]
}

// shown is a name as it can be shown and stored: one line of at most 200 characters.
func shown(name string) string {
	clean := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) && r != unicode.ReplacementChar {
			return r
		}
		return -1
	}, name)
	runes := []rune(strings.TrimSpace(clean))
	return cmp.Or(string(runes[:min(len(runes), 200)]), "unnamed")
}

// limited bounds the answers of issuers.
type limited struct{ http.RoundTripper }

func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, mostBytes), resp.Body}
	}
	return resp, err
}
