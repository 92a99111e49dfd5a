package token

import (
	"context"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/prego/prego"
)

// Role is what a caller of the API may do.
type Role string

// The roles: an operator may do everything, a viewer may only read.
const (
	RoleOperator Role = "operator"
	RoleViewer   Role = "viewer"
)

// Principal is an authenticated caller.
type Principal struct {
	Subject string
	Role    Role
	Expires time.Time // the token's
	Key     string    // the id of our own key that signed the token, "" for another issuer's
}

// API issues and verifies callers' tokens. It accepts tokens of its own keys and, if
// configured, of an OIDC issuer.
type API struct {
	keys       *Keyring
	issuer     string
	audience   string
	rolesClaim string
	remote     *Remote // nil: own keys only
}

// APIConfig says whose tokens to accept.
type APIConfig struct {
	Keys       *Keyring
	Issuer     string
	Audience   string
	RolesClaim string
	Remote     *Remote
}

// NewAPI verifies with a ring of UseAPI, and remote keys if there are any.
func NewAPI(c APIConfig) *API {
	return &API{keys: c.Keys, issuer: c.Issuer, audience: c.Audience, rolesClaim: c.RolesClaim, remote: c.Remote}
}

// Issue issues a token for a caller.
func (a *API) Issue(subject string, role Role, ttl time.Duration) (string, error) {
	if subject == "" || (role != RoleOperator && role != RoleViewer) || ttl <= 0 {
		return "", prego.Errorf(prego.CodeInvalidField, "a token needs a subject, role operator or viewer, and a life")
	}
	now := time.Now()
	r := registered(a.issuer, subject, a.audience, now, ttl)
	return a.keys.issue(jwt.MapClaims{
		"iss": r.Issuer, "sub": r.Subject, "aud": a.audience, "jti": r.ID, "iat": now.Unix(), "nbf": now.Unix(),
		"exp": now.Add(ttl).Unix(), a.rolesClaim: string(role),
	})
}

// Authenticate verifies a token. The named issuer decides which keys and algorithms are
// tried; each issuer's are pinned.
func (a *API) Authenticate(ctx context.Context, raw string) (Principal, error) {
	claims := jwt.MapClaims{}
	kid := ""
	own := func(t *jwt.Token) (any, error) {
		kid, _ = t.Header["kid"].(string)
		return a.keys.key(t)
	}
	if a.remote != nil && a.remote.issued(raw) {
		if err := a.remote.parse(ctx, raw, claims, a.audience); err != nil {
			return Principal{}, err
		}
	} else if err := parse(raw, claims, own, a.issuer, a.audience, leeway); err != nil {
		return Principal{}, err
	}
	sub, _ := claims.GetSubject()
	role := roleOf(claims[a.rolesClaim])
	if role == "" {
		return Principal{}, prego.Errorf(prego.CodeForbidden, "the token's claim %q holds neither operator nor viewer", a.rolesClaim)
	}
	p := Principal{Subject: sub, Role: role, Key: kid}
	if exp, err := claims.GetExpirationTime(); err == nil && exp != nil {
		p.Expires = exp.Time
	}
	return p, nil
}

// Knows reports whether tokens that a key signed are accepted; another issuer's keys, which have no id here, are its own affair.
func (a *API) Knows(key string) bool {
	_, ok := a.keys.keys[key]
	return ok || key == ""
}

// roleOf reads a claim with one role or a list; the highest counts.
func roleOf(claim any) Role {
	var names []string
	switch v := claim.(type) {
	case string:
		names = []string{v}
	case []any:
		for _, e := range v {
			if s, ok := e.(string); ok {
				names = append(names, s)
			}
		}
	}
	role := Role("")
	for _, n := range names {
		switch Role(n) {
		case RoleOperator:
			return RoleOperator
		case RoleViewer:
			role = RoleViewer
		}
	}
	return role
}
