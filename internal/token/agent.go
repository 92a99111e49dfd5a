package token

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
)

// Issuer is the iss of every token that prego itself signs.
const Issuer = "prego"

// agentAudience is the aud of agents' tokens.
const agentAudience = "prego-agentgw"

// leeway tolerates clock differences.
const leeway = 30 * time.Second

type confirmation struct {
	Thumbprint string `json:"x5t#S256"` // RFC 8705 §3.1
}

type agentClaims struct {
	jwt.RegisteredClaims
	Scopes []string     `json:"scopes"`
	Cnf    confirmation `json:"cnf"`
}

// Agents issues and verifies agents' tokens: for one server, bound to its client
// certificate.
type Agents struct {
	keys *Keyring
}

// NewAgents signs and verifies with a ring of UseAgent.
func NewAgents(keys *Keyring) *Agents { return &Agents{keys: keys} }

// HashBootstrap is the SHA-256 of a raw bootstrap token.
func (*Agents) HashBootstrap(raw string) []byte { return Hash(raw) }

// Thumbprint identifies a certificate: base64url of its SHA-256.
func Thumbprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Issue issues a token for the gateway, valid with cert only, with the scopes of its
// server's role.
func (a *Agents) Issue(serverID prego.ServerID, role prego.Role, cert *x509.Certificate, ttl time.Duration) (raw string, expires time.Time, err error) {
	now := time.Now()
	scopes := []string{wire.ScopeHeartbeat, wire.ScopeMetrics, wire.ScopeLogs, wire.ScopeBackupReport}
	if role == prego.RoleEdge {
		scopes = append(scopes, wire.ScopeEdge)
	}
	expires = now.Add(ttl)
	raw, err = a.keys.issue(agentClaims{
		RegisteredClaims: registered(Issuer, string(serverID), agentAudience, now, ttl),
		Scopes:           scopes,
		Cnf:              confirmation{Thumbprint: Thumbprint(cert)},
	})
	return raw, expires, err
}

// rotationGrace is how long an expired token can still be exchanged for a new one, so
// that a host that was off for an hour can return. The certificate that it is bound to,
// and the row, are still checked.
const rotationGrace = 24 * time.Hour

// Verify verifies a token that came with cert, and returns its server. scope "" is for
// rotation: it accepts any scope, and tokens that expired within rotationGrace.
func (a *Agents) Verify(raw string, cert *x509.Certificate, scope string) (serverID prego.ServerID, err error) {
	var c agentClaims
	forgive := leeway
	if scope == "" {
		forgive = rotationGrace
	}
	if err := parse(raw, &c, a.keys.key, Issuer, agentAudience, forgive); err != nil {
		return "", err
	}
	if subtle.ConstantTimeCompare([]byte(c.Cnf.Thumbprint), []byte(Thumbprint(cert))) != 1 {
		return "", prego.Errorf(prego.CodeUnauthenticated, "the token is bound to another certificate")
	}
	if scope != "" && !slices.Contains(c.Scopes, scope) {
		return "", prego.Errorf(prego.CodeScopeMissing, "the token lacks scope %s", scope)
	}
	return prego.ServerID(c.Subject), nil
}

func registered(issuer, subject, audience string, now time.Time, ttl time.Duration) jwt.RegisteredClaims {
	return jwt.RegisteredClaims{
		Issuer: issuer, Subject: subject, Audience: jwt.ClaimStrings{audience}, ID: uuid.NewString(),
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(ttl)),
	}
}

// parse checks signature, algorithm, issuer, audience and times, and that the token has
// an issue time and an id. The reason of a rejection is reported in general terms only.
func parse(raw string, claims jwt.Claims, key jwt.Keyfunc, issuer, audience string, forgive time.Duration) error {
	_, err := jwt.ParseWithClaims(raw, claims, uncritical(key),
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithIssuer(issuer), jwt.WithAudience(audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(forgive))
	if err := refusal(err, claims); err != nil {
		return err
	}
	if at, err := claims.GetIssuedAt(); err != nil || at == nil || tokenID(claims) == "" {
		return errNotValid
	}
	return nil
}

// uncritical refuses tokens that say that something of theirs must be understood which is
// not (RFC 7515 §4.1.11); the library does not look.
func uncritical(key jwt.Keyfunc) jwt.Keyfunc {
	return func(t *jwt.Token) (any, error) {
		if _, ok := t.Header["crit"]; ok {
			return nil, jwt.ErrTokenUnverifiable
		}
		return key(t)
	}
}

func tokenID(claims jwt.Claims) string {
	switch c := claims.(type) {
	case *agentClaims:
		return c.ID
	case jwt.MapClaims:
		id, _ := c["jti"].(string)
		return id
	}
	return ""
}

var errNotValid = prego.Errorf(prego.CodeUnauthenticated, "the token is not valid here")

func refusal(err error, claims jwt.Claims) error {
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return prego.Errorf(prego.CodeTokenExpired, "the token has expired")
	case err != nil:
		return errNotValid
	}
	if sub, err := claims.GetSubject(); err != nil || sub == "" {
		return prego.Errorf(prego.CodeUnauthenticated, "the token names no subject")
	}
	return nil
}
