package console

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/store"
)

const (
	sessionCookie = "prego_console"
	themeCookie   = "prego_theme"
	visitorKey    = "console.visitor"
)

const (
	// maxLogin is more than the longest token, in bytes.
	maxLogin = 64 << 10
	// maxForm is more than the largest form, in bytes: that of a packing plan, which the API takes up to 8 MiB of.
	maxForm = 16 << 20
)

// visitor is who is logged in.
type visitor struct {
	access.Principal

	secret string
}

// CSRF is what forms of this session carry. Other sites can't know it: it is derived from
// the secret of the cookie, which scripts can't read.
func (v *visitor) CSRF() string {
	m := hmac.New(sha256.New, []byte(v.secret))
	m.Write([]byte("csrf"))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// encrypted reports whether a browser reached us over TLS, perhaps through a proxy.
func encrypted(r *http.Request) bool {
	return r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
}

// session lets in who is logged in, and counts what they ask for.
func (c *Console) session(next echo.HandlerFunc) echo.HandlerFunc {
	return func(ec echo.Context) error {
		r := ec.Request()
		k, err := ec.Cookie(sessionCookie)
		if err != nil || k.Value == "" {
			return c.toLogin(ec)
		}
		p, err := c.loginOf(r.Context(), k.Value)
		if ended(err) {
			if err := c.stranger(r); err != nil {
				return err
			}
			return c.toLogin(ec)
		}
		if err != nil {
			return err
		}
		v := &visitor{Principal: p, secret: k.Value}
		ec.Set(visitorKey, v)
		if err := c.d.Allow(p, r); err != nil {
			return err
		}
		if r.Method == http.MethodPost {
			if err := readForm(ec, maxForm); err != nil {
				return err
			}
			if !hmac.Equal([]byte(r.PostForm.Get("csrf")), []byte(v.CSRF())) {
				return prego.Errorf(prego.CodeForbidden, "the form is not of this session: load the page again")
			}
		}
		if len(p.Grants) == 0 && r.Method == http.MethodGet {
			return c.newcomer(ec)
		}
		return next(ec)
	}
}

// loginOf is whose login the secret of a cookie belongs to, or CodeUnauthenticated or CodeTokenExpired if it has ended.
func (c *Console) loginOf(ctx context.Context, secret string) (access.Principal, error) {
	p, err := c.d.Auth(ctx, secret)
	if err == nil && !p.Login { // a token is not kept in browsers
		err = prego.Errorf(prego.CodeUnauthenticated, "log in first")
	}
	return p, err
}

// ended reports whether an error of loginOf means that there is no login any more.
func ended(err error) bool {
	code := prego.CodeOf(err)
	return code == prego.CodeUnauthenticated || code == prego.CodeTokenExpired
}

// sites detects requests from pages of other sites.
var sites = http.NewCrossOriginProtection()

// readForm reads a form of at most so many bytes into the request's PostForm, unless another site sent it.
func readForm(ec echo.Context, most int64) error {
	r := ec.Request()
	if sites.Check(r) != nil {
		return prego.Errorf(prego.CodeForbidden, "the form was sent from another site")
	}
	r.Body = http.MaxBytesReader(ec.Response(), r.Body, most)
	err := r.ParseForm()
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return prego.Errorf(prego.CodeBodyTooLarge, "the form is larger than %d bytes", most)
	case err != nil:
		return prego.Errorf(prego.CodeInvalidField, "the form can't be read")
	}
	return nil
}

// stranger counts a request without a valid login against the rate of its network,
// as the API does.
func (c *Console) stranger(r *http.Request) error { return c.d.Allow(access.Principal{}, r) }

// toLogin leads to the login page. A request by a script is refused, so that it does not get a
// login page in place of a part of the page.
func (c *Console) toLogin(ec echo.Context) error {
	r := ec.Request()
	if r.Header.Get("Hx-Request") != "" || r.Method != http.MethodGet || r.Header.Get(echo.HeaderAccept) == "text/event-stream" {
		ec.Response().Header().Set("Hx-Redirect", "/console/login")
		return prego.Errorf(prego.CodeUnauthenticated, "log in first: the session has ended")
	}
	if c.fromElsewhere(r) {
		return c.oneMoment(ec)
	}
	return ec.Redirect(http.StatusSeeOther, "/console/login?"+url.Values{"next": {localPath(r.URL.RequestURI())}}.Encode())
}

// fromElsewhere reports whether a page of another site led here, so that the browser kept its login to itself.
func (c *Console) fromElsewhere(r *http.Request) bool {
	_, err := r.Cookie(sessionCookie)
	return err != nil && r.Header.Get("Sec-Fetch-Site") == "cross-site"
}

// oneMoment loads the page once more: browsers send the cookie with what our own pages ask for.
func (c *Console) oneMoment(ec echo.Context) error {
	self := localPath(ec.Request().URL.RequestURI())
	return c.show(ec, http.StatusOK, &page{Title: "One moment", Template: "again", Body: self, Refresh: "0; url=" + self})
}

// loginPage asks for a token, or offers to use the code of a link. A link alone does not log
// in: who only previews it does not use it up.
func (c *Console) loginPage(ec echo.Context) error {
	code := ec.QueryParam("code")
	if len(code) > 300 {
		code = ""
	}
	return c.showLogin(ec, http.StatusOK, code, ec.QueryParam("next"), "")
}

func (c *Console) showLogin(ec echo.Context, status int, code, next, wrong string) error {
	body := map[string]any{"Code": code, "Next": localPath(next), "Wrong": wrong, "Passkeys": c.passkeys, "Issuer": c.issuer()}
	return c.show(ec, status, &page{Title: "Log in", Template: "login", Body: body})
}

// login begins a session with a passkey, a token, or the code of a link.
func (c *Console) login(ec echo.Context) error {
	r := ec.Request()
	if err := readForm(ec, maxLogin); err != nil {
		return err
	}
	next := r.PostForm.Get("next")
	secret, p, err := c.logIn(ec)
	if ended(err) || prego.CodeOf(err) == prego.CodeForbidden {
		c.d.Log.Info("login refused", zap.String("code", string(prego.CodeOf(err))), zap.String("from", api.Network(r)))
		if err := c.stranger(r); err != nil {
			return err
		}
		return c.showLogin(ec, http.StatusUnauthorized, "", next, prego.Redact(messageOf(err)))
	}
	if err != nil {
		return err
	}
	return c.enter(ec, secret, p, next)
}

// enter gives the browser a login, and ends the one that it had.
func (c *Console) enter(ec echo.Context, secret string, p access.Principal, next string) error {
	r := ec.Request()
	if k, err := ec.Cookie(sessionCookie); err == nil { // the replaced login is useless now
		if old, err := c.loginOf(r.Context(), k.Value); err == nil {
			if err := c.d.Store.EndCredential(c.by(r, old, "consoleLogout"), old.CredentialID, old.By()); err != nil {
				return err
			}
		}
	}
	ec.SetCookie(&http.Cookie{Name: sessionCookie, Value: secret, Path: "/console", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: encrypted(r), Expires: p.Expires}) //nolint:gosec // Secure wherever the browser came over TLS
	return ec.Redirect(http.StatusSeeOther, localPath(next))
}

// by names whose login begins or ends, for the audit.
func (c *Console) by(r *http.Request, p access.Principal, operation string) context.Context {
	return ops.WithAuditSource(r.Context(), ops.AuditSource{
		Actor: p.PrincipalID, ActorName: p.By(), Role: strings.Join(p.Roles(), " "), From: api.Address(r), RequestID: uuid.NewString(), Operation: operation,
	})
}

// logIn makes the login that a form asks for: with a passkey, with the code of a link, or with a token, which the login
// ends with.
func (c *Console) logIn(ec echo.Context) (secret string, p access.Principal, err error) {
	r := ec.Request()
	code, passkey := r.PostForm.Get("code"), r.PostForm.Get("credential")
	if code == "" && passkey == "" {
		if p, err = c.d.Auth(r.Context(), strings.TrimSpace(r.PostForm.Get("token"))); err != nil {
			return "", p, err
		}
	}
	secret, login, err := api.NewLogin(p, c.d.Now(), api.Address(r))
	if err != nil {
		return "", p, err
	}
	if passkey != "" {
		use, err := c.use(ec, store.PurposeLogin, "", passkey)
		if err != nil {
			return "", p, err
		}
		p, err = c.d.Store.LoginByPasskey(c.by(r, access.Principal{Name: "passkey"}, "consoleLogin"), use, login)
		return secret, p, err
	}
	if code != "" {
		p, err = c.d.Store.UseLoginLink(c.by(r, access.Principal{}, "consoleLogin"), access.SecretHash(code), login)
		return secret, p, err
	}
	p.Expires, err = c.d.Store.CreateCredential(c.by(r, p, "consoleLogin"), login)
	return secret, p, err
}

// logout ends the session.
func (c *Console) logout(ec echo.Context) error {
	v := ec.Get(visitorKey).(*visitor)
	if err := c.d.Store.EndCredential(c.by(ec.Request(), v.Principal, "consoleLogout"), v.CredentialID, v.By()); err != nil {
		return err
	}
	ec.SetCookie(&http.Cookie{Name: sessionCookie, Path: "/console", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: encrypted(ec.Request())}) //nolint:gosec // Secure wherever the browser came over TLS
	return ec.Redirect(http.StatusSeeOther, "/console/login")
}
