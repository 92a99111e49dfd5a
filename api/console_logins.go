package api

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/ops"
)

const (
	// loginWithin is how long a code is good for.
	loginWithin = 5 * time.Minute
	// ConsoleSessionLife is how long a session of the console lasts, unless its token ends before.
	ConsoleSessionLife = 8 * time.Hour
)

// NewSecret returns a secret for a browser, and its hash for the database. The secret names the key that signed
// the token that it comes from, so removing that key also ends its sessions.
func NewSecret(key string) (secret string, hash []byte) {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // it never fails
	secret = base64.RawURLEncoding.EncodeToString(b)
	if key != "" {
		secret += "." + key
	}
	return secret, SecretHash(secret)
}

// KeyOfSecret is the key that NewSecret was given.
func KeyOfSecret(secret string) string {
	_, key, _ := strings.Cut(secret, ".")
	return key
}

// SecretHash is the hash of a secret of a browser.
func SecretHash(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// SessionOf is the session of the console that a caller can have: it ends with its token.
func SessionOf(p Principal, now time.Time) ops.ConsoleSession {
	ends := now.Add(ConsoleSessionLife)
	if !p.Expires.IsZero() && p.Expires.Before(ends) {
		ends = p.Expires
	}
	return ops.ConsoleSession{Subject: p.Subject, Operator: p.Operator, ExpiresAt: ends}
}

// Whoami shows the caller.
func (a *API) Whoami(c echo.Context) error {
	p := caller(c)
	out := Caller{Subject: p.Subject, Role: CallerRoleViewer, ApiVersion: cmp.Or(a.d.Version, "dev")}
	if p.Operator {
		out.Role = CallerRoleOperator
	}
	if !p.Expires.IsZero() {
		out.ExpiresAt = new(p.Expires.UTC())
	}
	return c.JSON(http.StatusOK, out)
}

// CreateConsoleLogin makes a link that logs its caller in to the console, once.
func (a *API) CreateConsoleLogin(c echo.Context, _ CreateConsoleLoginParams) error {
	code, hash := NewSecret(caller(c).Key)
	until, err := a.d.Store.CreateConsoleLogin(c.Request().Context(), hash, SessionOf(caller(c), time.Now()), loginWithin)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, ConsoleLogin{Path: "/console/login?code=" + code, ExpiresAt: until.UTC()})
}
