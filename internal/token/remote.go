package token

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/sync/singleflight"

	"github.com/prego/prego"
)

// Remote are an OIDC issuer's keys, fetched from its JWKS and cached. A token with an
// unknown key id causes a fetch, at most once per minRefresh, so that nobody can make
// it overload the issuer; tokens with a known, fresh key never wait for a fetch.
type Remote struct {
	issuer  string
	jwksURL string // "" to use the discovery document
	client  *http.Client

	fetching singleflight.Group

	mu      sync.Mutex
	keys    map[string]jose.JSONWebKey
	fetched time.Time
	tried   time.Time
	failed  bool // the last fetch
}

const (
	refreshAfter = 10 * time.Minute // age at which known keys are fetched again, while they are used
	maxKeyAge    = time.Hour        // age at which keys are no longer used, if fetching keeps failing
	minRefresh   = 15 * time.Second
)

// remoteAlgorithms are the accepted algorithms of an issuer's keys, without symmetric
// ones and "none".
var remoteAlgorithms = []string{"EdDSA", "ES256", "ES384", "RS256", "RS384", "RS512", "PS256"}

// NewRemote trusts an issuer's keys at jwksURL or, if that is "", where its discovery
// document says.
func NewRemote(issuer, jwksURL string) *Remote {
	return &Remote{issuer: issuer, jwksURL: jwksURL, client: &http.Client{Timeout: 5 * time.Second}}
}

// issued reports whether a token claims to come from this issuer. Nothing is
// verified yet.
func (r *Remote) issued(raw string) bool {
	var c jwt.RegisteredClaims
	_, _, err := jwt.NewParser().ParseUnverified(raw, &c)
	return err == nil && c.Issuer == r.issuer
}

func (r *Remote) parse(ctx context.Context, raw string, claims jwt.MapClaims, audience string) error {
	_, err := jwt.ParseWithClaims(raw, claims, uncritical(func(t *jwt.Token) (any, error) { return r.key(ctx, t) }),
		jwt.WithValidMethods(remoteAlgorithms), jwt.WithIssuer(r.issuer), jwt.WithAudience(audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(leeway))
	if unable, ok := errors.AsType[*prego.Error](err); ok {
		return unable
	}
	if err := refusal(err, claims); err != nil {
		return err
	}
	// OpenID Connect Core §2 requires it; the library checks it only where it is present.
	if at, err := claims.GetIssuedAt(); err != nil || at == nil {
		return errNotValid
	}
	return nil
}

func (r *Remote) key(ctx context.Context, t *jwt.Token) (any, error) {
	kid, _ := t.Header["kid"].(string)
	key, age, due := r.known(kid)
	if due {
		// All callers share one fetch, which goes on if one of them gives up. It may have ended since this one looked.
		done := r.fetching.DoChan("", func() (any, error) {
			if _, _, due := r.known(kid); !due {
				return nil, nil
			}
			return nil, r.fetch(context.WithoutCancel(ctx))
		})
		if age > maxKeyAge {
			select {
			case <-done:
				key, age, _ = r.known(kid)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	if age > maxKeyAge {
		if r.failing() {
			return nil, prego.Errorf(prego.CodeNotReady, "the issuer's keys can't be fetched right now")
		}
		return nil, errKey
	}
	// A key with a declared use is used for that only.
	if (key.Algorithm != "" && key.Algorithm != t.Method.Alg()) || (key.Use != "" && key.Use != "sig") {
		return nil, errKey
	}
	return key.Key, nil
}

// never is the age of an unknown key.
const never = time.Duration(math.MaxInt64)

// known looks up a key and its age, and reports whether it is time to fetch.
func (r *Remote) known(kid string) (key jose.JSONWebKey, age time.Duration, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	age = never
	key, ok := r.keys[kid]
	if ok {
		age = time.Since(r.fetched)
	}
	return key, age, age > refreshAfter && time.Since(r.tried) > minRefresh
}

func (r *Remote) failing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *Remote) fetch(ctx context.Context) (err error) {
	defer func() {
		r.mu.Lock()
		r.tried = time.Now()
		r.failed = err != nil
		r.mu.Unlock()
	}()
	from := r.jwksURL
	if from == "" {
		var doc struct {
			Issuer  string `json:"issuer"`
			JWKSURI string `json:"jwks_uri"`
		}
		if err := r.get(ctx, strings.TrimSuffix(r.issuer, "/")+"/.well-known/openid-configuration", &doc); err != nil {
			return err
		}
		if doc.Issuer != r.issuer || doc.JWKSURI == "" {
			return prego.Errorf(prego.CodeUnauthenticated, "the issuer's discovery document is not its own")
		}
		from = doc.JWKSURI
	}
	var set jose.JSONWebKeySet
	if err := r.get(ctx, from, &set); err != nil {
		return err
	}
	keys := make(map[string]jose.JSONWebKey, len(set.Keys))
	for _, k := range set.Keys {
		if k.KeyID != "" && k.IsPublic() && k.Valid() && !weak(k) {
			keys[k.KeyID] = k
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys, r.fetched = keys, time.Now()
	return nil
}

// minRSABits is the shortest RSA key of an issuer (RFC 7518 §3.3); shorter ones can be broken.
const minRSABits = 2048

func weak(k jose.JSONWebKey) bool {
	key, ok := k.Key.(*rsa.PublicKey)
	return ok && key.N.BitLen() < minRSABits
}

func (r *Remote) get(ctx context.Context, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("issuer's keys: %w", err)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return fmt.Errorf("issuer's keys: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("issuer's keys: %s answered %d", url, resp.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(into); err != nil {
		return fmt.Errorf("issuer's keys: %w", err)
	}
	return nil
}
