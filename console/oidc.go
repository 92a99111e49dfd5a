package console

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/ops"
)

const (
	// issuerWithin is how long a person may take at the issuer.
	issuerWithin = 10 * time.Minute
	// reachableWithin is how long the login page waits for an issuer that it does not know.
	reachableWithin = 2 * time.Second
)

// issuerCookie is the cookie of a login at the issuer that has begun. By TLS no other host, also not one of the same
// domain, can set it.
func issuerCookie(r *http.Request) *http.Cookie {
	k := &http.Cookie{Name: "prego_oidc", Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: encrypted(r)} //nolint:gosec // Secure wherever the browser came over TLS
	if k.Secure {
		k.Name = "__Host-" + k.Name
	}
	return k
}

// issuer is what the login page shows of the issuer that people log in with, nil for none.
func (c *Console) issuer(ctx context.Context) map[string]any {
	if c.d.People == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, reachableWithin)
	defer cancel()
	return map[string]any{"URL": c.d.People.Issuer(), "Away": c.d.People.Reachable(ctx) != nil}
}

// toIssuer begins a login at the issuer. The cookie has a secret, from which state, nonce and the verifier of PKCE
// derive, and where the person wants to go.
func (c *Console) toIssuer(ec echo.Context) error {
	r := ec.Request()
	if c.d.People == nil {
		return echo.ErrNotFound
	}
	if err := c.stranger(r); err != nil {
		return err
	}
	secret, next := rand.Text(), localPath(ec.QueryParam("next"))
	to, err := c.d.People.Begin(r.Context(), secret)
	if prego.CodeOf(err) == prego.CodeNotReady {
		return c.showLogin(ec, http.StatusServiceUnavailable, "", next, messageOf(err))
	}
	if err != nil {
		return err
	}
	if len(next) > 2000 {
		next = "/console"
	}
	k := issuerCookie(r) //nolint:gosec // Secure wherever the browser came over TLS
	k.Value, k.MaxAge = secret+"."+base64.RawURLEncoding.EncodeToString([]byte(next)), int(issuerWithin.Seconds())
	ec.SetCookie(k)
	return ec.Redirect(http.StatusSeeOther, to)
}

// fromIssuer ends a login at the issuer.
func (c *Console) fromIssuer(ec echo.Context) error {
	r := ec.Request()
	if c.d.People == nil {
		return echo.ErrNotFound
	}
	k := issuerCookie(r) //nolint:gosec // Secure wherever the browser came over TLS
	var secret, next string
	if given, err := ec.Cookie(k.Name); err == nil {
		secret, next, _ = strings.Cut(given.Value, ".")
	}
	k.MaxAge = -1 // it is good once
	ec.SetCookie(k)
	to, _ := base64.RawURLEncoding.DecodeString(next)
	login, p, err := c.logInAs(r, secret)
	switch {
	case err == nil:
		return c.enter(ec, login, p, string(to))
	case ended(err), prego.CodeOf(err) == prego.CodeForbidden:
		c.d.Log.Info("login refused", zap.String("code", string(prego.CodeOf(err))), zap.String("from", api.Network(r)))
		if err := c.stranger(r); err != nil {
			return err
		}
		return c.showLogin(ec, http.StatusUnauthorized, "", string(to), prego.Redact(messageOf(err)))
	case prego.CodeOf(err) == prego.CodeNotReady:
		return c.showLogin(ec, http.StatusServiceUnavailable, "", string(to), messageOf(err))
	}
	return err
}

// logInAs makes the login of the person who comes back from the issuer.
func (c *Console) logInAs(r *http.Request, secret string) (login string, p access.Principal, err error) {
	who, err := c.d.People.Finish(r.Context(), secret, r.URL.Query())
	if err != nil {
		return "", p, err
	}
	return api.LogIn(r.Context(), c.d.Store, who, "console", ops.AuditSource{From: api.Address(r), RequestID: uuid.NewString(), Operation: "consoleLogin"})
}

// newcomer is the page of a user without a grant.
func (c *Console) newcomer(ec echo.Context) error {
	return c.show(ec, http.StatusForbidden, &page{Title: "No access yet", Template: "newcomer"})
}
