package console

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
)

const (
	sessionCookie = "prego_console"
	themeCookie   = "prego_theme"
	visitorKey    = "console.visitor"
)

// visitor is who is logged in.
type visitor struct {
	prego.ConsoleSession
	secret string
}

// CSRF is what forms of this session carry. Other sites can't know it: it is derived from
// the secret of the cookie, which scripts can't read.
func (v *visitor) CSRF() string {
	m := hmac.New(sha256.New, []byte(v.secret))
	m.Write([]byte("csrf"))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

func (v *visitor) principal() api.Principal {
	return api.Principal{Subject: v.Subject, Operator: v.Operator, Expires: v.ExpiresAt}
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
		s, err := c.d.Sessions.ConsoleSession(r.Context(), api.SecretHash(k.Value))
		if prego.CodeOf(err) == prego.CodeUnauthenticated {
			return c.toLogin(ec)
		}
		if err != nil {
			return err
		}
		v := &visitor{ConsoleSession: s, secret: k.Value}
		ec.Set(visitorKey, v)
		if err := c.d.Allow("subject " + s.Subject); err != nil {
			return err
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			if err := sameSite(r, v); err != nil {
				return err
			}
		}
		return next(ec)
	}
}

// sameSite refuses what a page of another site sent.
func sameSite(r *http.Request, v *visitor) error {
	if o := r.Header.Get("Origin"); o != "" && o != "null" {
		if u, err := url.Parse(o); err != nil || u.Host != r.Host {
			return prego.Errorf(prego.CodeForbidden, "the form was sent from another site")
		}
	}
	given := r.FormValue("csrf")
	if given == "" {
		given = r.Header.Get("X-CSRF-Token")
	}
	if !hmac.Equal([]byte(given), []byte(v.CSRF())) {
		return prego.Errorf(prego.CodeForbidden, "the form is not of this session: load the page again")
	}
	return nil
}

// toLogin asks who it is. What is fetched by a script is refused, so that it does not get a
// login page in place of a part of its own.
func (c *Console) toLogin(ec echo.Context) error {
	r := ec.Request()
	if r.Header.Get("Hx-Request") != "" || r.Method != http.MethodGet || strings.HasPrefix(r.URL.Path, "/console/events") {
		ec.Response().Header().Set("Hx-Redirect", "/console/login")
		return prego.Errorf(prego.CodeUnauthenticated, "log in first: the session has ended")
	}
	return ec.Redirect(http.StatusSeeOther, "/console/login?"+url.Values{"next": {localPath(r.URL.RequestURI())}}.Encode())
}

// loginPage asks for a token, or offers to use the code of a link. A link alone does not log
// in: who only previews it does not use it up.
func (c *Console) loginPage(ec echo.Context) error { return c.showLogin(ec, http.StatusOK, "") }

func (c *Console) showLogin(ec echo.Context, status int, wrong string) error {
	code := ec.QueryParam("code")
	if len(code) > 100 || wrong != "" {
		code = ""
	}
	return c.show(ec, status, &page{Title: "Log in", Template: "login", Body: map[string]any{"Code": code, "Next": localPath(ec.QueryParam("next")), "Wrong": wrong}})
}

// login begins a session with a token, or with the code of a link.
func (c *Console) login(ec echo.Context) error {
	r := ec.Request()
	if err := c.d.Allow("address " + address(r)); err != nil {
		return err
	}
	if o := r.Header.Get("Origin"); o != "" && o != "null" {
		if u, err := url.Parse(o); err != nil || u.Host != r.Host {
			return prego.Errorf(prego.CodeForbidden, "the form was sent from another site")
		}
	}
	s, err := c.whose(r)
	if code := prego.CodeOf(err); code == prego.CodeUnauthenticated || code == prego.CodeTokenExpired || code == prego.CodeForbidden {
		return c.showLogin(ec, http.StatusUnauthorized, prego.Redact(messageOf(err)))
	}
	if err != nil {
		return err
	}
	s.Address = address(r)
	secret, hash := api.NewSecret()
	if err := c.d.Sessions.CreateConsoleSession(r.Context(), hash, s); err != nil {
		return err
	}
	if err := c.note(r, s, "consoleLogin"); err != nil {
		return err
	}
	ec.SetCookie(&http.Cookie{Name: sessionCookie, Value: secret, Path: "/console", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: encrypted(r), Expires: s.ExpiresAt}) //nolint:gosec // Secure wherever the browser came over TLS
	return ec.Redirect(http.StatusSeeOther, localPath(r.FormValue("next")))
}

// note tells the audit who logged in or out, and from where.
func (c *Console) note(r *http.Request, s prego.ConsoleSession, operation string) error {
	role := "viewer"
	if s.Operator {
		role = "operator"
	}
	ctx := prego.WithAuditSource(r.Context(), prego.AuditSource{Actor: s.Subject, Role: role, From: address(r), RequestID: uuid.NewString(), Operation: operation})
	return c.d.Sessions.NoteRequest(ctx, "console_session", s.Subject, "")
}

// whose session a login form begins.
func (c *Console) whose(r *http.Request) (prego.ConsoleSession, error) {
	if code := r.FormValue("code"); code != "" {
		return c.d.Sessions.UseConsoleLogin(r.Context(), api.SecretHash(code))
	}
	p, err := c.d.Auth.Authenticate(r.Context(), strings.TrimSpace(r.FormValue("token")))
	if err != nil {
		return prego.ConsoleSession{}, err
	}
	if !api.Nameable(p.Subject) {
		return prego.ConsoleSession{}, prego.Errorf(prego.CodeUnauthenticated, "the token's subject must be 1 to 255 printable characters")
	}
	return api.SessionOf(p, c.d.Now()), nil
}

// logout ends the session.
func (c *Console) logout(ec echo.Context) error {
	v := ec.Get(visitorKey).(*visitor)
	if err := c.d.Sessions.EndConsoleSession(ec.Request().Context(), api.SecretHash(v.secret)); err != nil {
		return err
	}
	if err := c.note(ec.Request(), v.ConsoleSession, "consoleLogout"); err != nil {
		return err
	}
	ec.SetCookie(&http.Cookie{Name: sessionCookie, Path: "/console", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: encrypted(ec.Request())}) //nolint:gosec // Secure wherever the browser came over TLS
	return ec.Redirect(http.StatusSeeOther, "/console/login")
}

// address is that of who sent a request.
func address(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
