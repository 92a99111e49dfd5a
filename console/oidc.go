package console

import (
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

// issuerWithin is how long a person may take at the issuer.
const issuerWithin = 10 * time.Minute

// issuerCookie is the cookie of a login at the issuer that has begun. By TLS no other host, also not one of the same
// domain, can set it.
func issuerCookie(r *http.Request) *http.Cookie {
	k := &http.Cookie{Name: "prego_oidc", Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: encrypted(r)} //nolint:gosec // Secure wherever the browser came over TLS
	if k.Secure {
		k.Name = "__Host-" + k.Name
	}
	return k
}

// issuer is the URL of the issuer that people log in with, "" for none.
func (c *Console) issuer() string {
	if c.d.People == nil {
		return ""
	}
	return c.d.People.Issuer()
}

// atIssuer is a login at the issuer that has begun: a secret, from which state, nonce and the verifier of PKCE derive,
// where the person wants to go, and whether they only prove again who they are.
type atIssuer struct {
	secret, next string
	again        bool
}

func (l atIssuer) cookie() string {
	parts := []string{l.secret, base64.RawURLEncoding.EncodeToString([]byte(l.next))}
	if l.again {
		parts = append(parts, "again")
	}
	return strings.Join(parts, ".")
}

func readAtIssuer(cookie string) (l atIssuer) {
	parts := strings.Split(cookie, ".")
	if len(parts) < 2 {
		return l
	}
	next, _ := base64.RawURLEncoding.DecodeString(parts[1])
	return atIssuer{secret: parts[0], next: string(next), again: len(parts) > 2}
}

// toIssuer begins a login at the issuer.
func (c *Console) toIssuer(ec echo.Context) error {
	r := ec.Request()
	if c.d.People == nil {
		return echo.ErrNotFound
	}
	if err := c.stranger(r); err != nil {
		return err
	}
	l := atIssuer{secret: rand.Text(), next: localPath(ec.QueryParam("next")), again: ec.QueryParam("again") != ""}
	if len(l.next) > 2000 {
		l.next = "/console"
	}
	to, err := c.d.People.Begin(r.Context(), l.secret, l.again)
	if prego.CodeOf(err) == prego.CodeNotReady {
		return c.notAtIssuer(ec, http.StatusServiceUnavailable, l, messageOf(err)+". Tokens and links still work.")
	}
	if err != nil {
		return err
	}
	k := issuerCookie(r) //nolint:gosec // Secure wherever the browser came over TLS
	k.Value, k.MaxAge = l.cookie(), int(issuerWithin.Seconds())
	ec.SetCookie(k)
	return ec.Redirect(http.StatusSeeOther, to)
}

// notAtIssuer shows why a login at the issuer failed. Who only had to prove again who they are goes back to the form.
func (c *Console) notAtIssuer(ec echo.Context, status int, l atIssuer, why string) error {
	if !l.again {
		return c.showLogin(ec, status, "", l.next, why)
	}
	return c.show(ec, status, &page{Title: "Not proved", Template: "unproved", Body: map[string]any{"Text": why, "Back": localPath(l.next)}})
}

// fromIssuer ends a login at the issuer.
func (c *Console) fromIssuer(ec echo.Context) error {
	r := ec.Request()
	if c.d.People == nil {
		return echo.ErrNotFound
	}
	k := issuerCookie(r) //nolint:gosec // Secure wherever the browser came over TLS
	var l atIssuer
	if given, err := ec.Cookie(k.Name); err == nil {
		l = readAtIssuer(given.Value)
	}
	if l.again && c.fromElsewhere(r) {
		return c.oneMoment(ec)
	}
	k.MaxAge = -1 // it is good once
	ec.SetCookie(k)
	if l.again {
		err := c.proveAtIssuer(ec, l)
		if err == nil {
			return ec.Redirect(http.StatusSeeOther, localPath(l.next))
		}
		return c.refusedAtIssuer(ec, l, err)
	}
	login, p, err := c.logInAs(r, l.secret)
	if err == nil {
		return c.enter(ec, login, p, l.next)
	}
	return c.refusedAtIssuer(ec, l, err)
}

func (c *Console) refusedAtIssuer(ec echo.Context, l atIssuer, err error) error {
	r := ec.Request()
	switch {
	case ended(err), prego.CodeOf(err) == prego.CodeForbidden:
		c.d.Log.Info("login refused", zap.String("code", string(prego.CodeOf(err))), zap.String("from", api.Network(r)))
		if err := c.stranger(r); err != nil {
			return err
		}
		return c.notAtIssuer(ec, http.StatusUnauthorized, l, prego.Redact(messageOf(err)))
	case prego.CodeOf(err) == prego.CodeNotReady:
		return c.notAtIssuer(ec, http.StatusServiceUnavailable, l, messageOf(err))
	}
	return err
}

// proveAtIssuer makes this browser's login fresh, whose person has come back from the issuer.
func (c *Console) proveAtIssuer(ec echo.Context, l atIssuer) error {
	r := ec.Request()
	k, err := ec.Cookie(sessionCookie)
	if err != nil {
		return prego.Errorf(prego.CodeUnauthenticated, "log in first")
	}
	p, err := c.loginOf(r.Context(), k.Value)
	if err != nil {
		return err
	}
	who, err := c.d.People.Finish(r.Context(), l.secret, r.URL.Query())
	switch {
	case err != nil:
		return err
	case who.Issuer != p.Issuer || who.Subject != p.Subject:
		return prego.Errorf(prego.CodeForbidden, "you logged in at the issuer as %s, and here as %s", who.Name, p.Name)
	case who.AuthTime.IsZero():
		return prego.Errorf(prego.CodeForbidden, "the issuer %s does not state when you proved who you are (auth_time): log out, and in again", who.Issuer)
	case who.AuthTime.Before(c.d.Now().Add(-issuerWithin)):
		return prego.Errorf(prego.CodeForbidden, "the issuer %s did not ask you to prove who you are: log out there, and try again", who.Issuer)
	}
	return c.d.Store.RefreshLogin(c.by(r, p, "consoleAgain"), p.CredentialID, p.PrincipalID, "")
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
