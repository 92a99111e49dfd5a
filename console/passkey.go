package console

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-webauthn/webauthn/protocol"
	"github.com/go-webauthn/webauthn/webauthn"
	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/store"
)

const (
	ceremonyCookie = "prego_ceremony"
	// ceremonyWithin is how long a person may take to answer a challenge.
	ceremonyWithin = 5 * time.Minute
)

// passkeys are those of one origin: the URL where callers reach the API. It is the setting and never a request's Host,
// which whoever sends the request chooses: a page of another origin gets no passkey accepted, whatever it sends.
type passkeys struct {
	rp     *webauthn.WebAuthn // nil: there are none
	Origin string
	Why    string // there are none
}

// newPasskeys makes those of a public URL. Browsers have none for an address, except that they let localhost stand for
// the loopback address, and none without TLS elsewhere.
func newPasskeys(public string) passkeys {
	u, err := url.Parse(public)
	if err != nil || u.Hostname() == "" {
		return passkeys{Why: "PREGO_API_PUBLIC_URL is not set to where browsers reach this page"}
	}
	host, port := u.Hostname(), u.Port()
	if ip := net.ParseIP(host); ip != nil {
		if !ip.IsLoopback() {
			return passkeys{Why: "PREGO_API_PUBLIC_URL has an address, and passkeys belong to a host name"}
		}
		host = "localhost"
	}
	if u.Scheme != "https" && host != "localhost" {
		return passkeys{Why: "PREGO_API_PUBLIC_URL is not https, and browsers keep passkeys from other pages"}
	}
	origin := u.Scheme + "://" + host
	if port != "" && port != map[string]string{"https": "443", "http": "80"}[u.Scheme] {
		origin += ":" + port
	}
	timeout := webauthn.TimeoutConfig{Enforce: true, Timeout: ceremonyWithin, TimeoutUVD: ceremonyWithin}
	rp, err := webauthn.New(&webauthn.Config{
		RPID: host, RPDisplayName: "prego", RPOrigins: []string{origin},
		AttestationPreference: protocol.PreferNoAttestation,
		AuthenticatorSelection: protocol.AuthenticatorSelection{
			ResidentKey: protocol.ResidentKeyRequirementRequired, RequireResidentKey: protocol.ResidentKeyRequired(), UserVerification: protocol.VerificationRequired,
		},
		Timeouts: webauthn.TimeoutsConfig{Login: timeout, Registration: timeout},
	})
	if err != nil {
		return passkeys{Why: "PREGO_API_PUBLIC_URL names no host that passkeys can belong to: " + err.Error()}
	}
	return passkeys{rp: rp, Origin: origin}
}

// passkeyUser is a user as the library knows one.
type passkeyUser struct {
	handle, name string
	keys         []webauthn.Credential
}

func (u passkeyUser) WebAuthnID() []byte                         { return []byte(u.handle) }
func (u passkeyUser) WebAuthnName() string                       { return u.name }
func (u passkeyUser) WebAuthnDisplayName() string                { return u.name }
func (u passkeyUser) WebAuthnCredentials() []webauthn.Credential { return u.keys }

// script answers a script: with what a handler returns, or with the sentence of its error.
func (c *Console) script(handler func(echo.Context) (any, error)) echo.HandlerFunc {
	return func(ec echo.Context) error {
		out, err := handler(ec)
		if err != nil {
			coded, status, _ := c.d.Refusal(err, ec)
			return ec.String(status, coded.Message)
		}
		return ec.JSON(http.StatusOK, out)
	}
}

// challenge keeps a ceremony for this browser, which gets a cookie.
func (c *Console) challenge(ec echo.Context, of store.Purpose, about string, session *webauthn.SessionData) error {
	secret, kept := rand.Text(), ec.Request()
	b, err := json.Marshal(session)
	if err != nil {
		return err
	}
	if err := c.d.Store.BeginCeremony(kept.Context(), access.SecretHash(secret), of, about, b, ceremonyWithin); err != nil {
		return err
	}
	ec.SetCookie(&http.Cookie{ //nolint:gosec // Secure wherever the browser came over TLS
		Name: ceremonyCookie, Value: secret, Path: "/console", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: encrypted(kept), MaxAge: int(ceremonyWithin.Seconds()),
	})
	return nil
}

// answered is the ceremony that this browser answers, once.
func (c *Console) answered(ec echo.Context, of store.Purpose, about string) (session webauthn.SessionData, err error) {
	if c.passkeys.rp == nil {
		return session, prego.Errorf(prego.CodeForbidden, "there are no passkeys here: %s", c.passkeys.Why)
	}
	k, err := ec.Cookie(ceremonyCookie)
	if err != nil {
		return session, prego.Errorf(prego.CodeUnauthenticated, "this took too long: try again")
	}
	kept, err := c.d.Store.EndCeremony(ec.Request().Context(), access.SecretHash(k.Value), of, about)
	if err != nil {
		return session, err
	}
	return session, json.Unmarshal(kept, &session)
}

// notAccepted is the refusal of an authenticator's answer.
func (c *Console) notAccepted(err error) error {
	var p *protocol.Error
	if errors.As(err, &p) {
		c.d.Log.Info("a passkey was not accepted", zap.String("error", p.Details), zap.String("details", prego.Redact(p.DevInfo)))
		err = errors.New(p.Details)
	}
	return prego.Errorf(prego.CodeUnauthenticated, "the passkey was not accepted: %s", err)
}

// options begins a login: a challenge that any passkey of this installation may answer.
func (c *Console) options(ec echo.Context, of store.Purpose, about string) (any, error) {
	if c.passkeys.rp == nil {
		return nil, prego.Errorf(prego.CodeForbidden, "there are no passkeys here: %s", c.passkeys.Why)
	}
	o, session, err := c.passkeys.rp.BeginDiscoverableLogin(webauthn.WithUserVerification(protocol.VerificationRequired))
	if err != nil {
		return nil, err
	}
	return o.Response, c.challenge(ec, of, about, session)
}

// creation begins the registration of a passkey.
func (c *Console) creation(ec echo.Context, of store.Purpose, about string, u passkeyUser, principal string) (any, error) {
	if c.passkeys.rp == nil {
		return nil, prego.Errorf(prego.CodeForbidden, "there are no passkeys here: %s", c.passkeys.Why)
	}
	var has []protocol.CredentialDescriptor
	if principal != "" {
		all, err := c.d.Store.Passkeys(ec.Request().Context(), principal)
		if err != nil {
			return nil, err
		}
		for _, k := range all {
			has = append(has, protocol.CredentialDescriptor{Type: protocol.PublicKeyCredentialType, CredentialID: k.KeyID})
		}
	}
	o, session, err := c.passkeys.rp.BeginRegistration(u, webauthn.WithExclusions(has))
	if err != nil {
		return nil, err
	}
	return o.Response, c.challenge(ec, of, about, session)
}

// created is the passkey that an answer registers, and the handle of its user.
func (c *Console) created(ec echo.Context, of store.Purpose, about, answer, name string) (k store.Passkey, handle string, err error) {
	session, err := c.answered(ec, of, about)
	if err != nil {
		return k, "", err
	}
	parsed, err := protocol.ParseCredentialCreationResponseBytes([]byte(answer))
	if err != nil {
		return k, "", c.notAccepted(err)
	}
	handle = string(session.UserID)
	cred, err := c.passkeys.rp.CreateCredential(passkeyUser{handle: handle}, session, parsed)
	if err != nil {
		return k, "", c.notAccepted(err)
	}
	cred.Attestation = webauthn.CredentialAttestation{} // who made the authenticator makes no difference
	record, err := json.Marshal(cred)
	return store.Passkey{PasskeyID: prego.NewID("passkey-"), KeyID: cred.ID, Record: record, Name: name}, handle, err
}

// use is an answer to the challenge of a login.
func (c *Console) use(ec echo.Context, of store.Purpose, about, answer string) (u store.PasskeyUse, err error) {
	session, err := c.answered(ec, of, about)
	if err != nil {
		return u, err
	}
	parsed, err := protocol.ParseCredentialRequestResponseBytes([]byte(answer))
	if err != nil {
		return u, c.notAccepted(err)
	}
	handle := string(parsed.Response.UserHandle)
	if !utf8.ValidString(handle) || strings.ContainsRune(handle, 0) {
		return u, c.notAccepted(errors.New("it is of no user here"))
	}
	check := func(record json.RawMessage) (json.RawMessage, error) {
		var k webauthn.Credential
		if err := json.Unmarshal(record, &k); err != nil {
			return nil, err
		}
		of := func(_, _ []byte) (webauthn.User, error) {
			return passkeyUser{handle: handle, keys: []webauthn.Credential{k}}, nil
		}
		_, now, err := c.passkeys.rp.ValidatePasskeyLogin(of, session, parsed)
		if err != nil {
			return nil, c.notAccepted(err)
		}
		if now.Authenticator.CloneWarning {
			c.d.Log.Warn("a passkey's counter went back: it may have been copied", zap.String("handle", handle))
			return nil, prego.Errorf(prego.CodeUnauthenticated,
				"the passkey's counter went back, so it may have been copied: log in with another one, and remove it")
		}
		return json.Marshal(now)
	}
	return store.PasskeyUse{Handle: handle, KeyID: parsed.RawID, Check: check}, nil
}

// beginLogin makes the challenge of a login. It is counted: it writes a row for a stranger.
func (c *Console) beginLogin(ec echo.Context) (any, error) {
	if err := readForm(ec, maxLogin); err != nil {
		return nil, err
	}
	if err := c.stranger(ec.Request()); err != nil {
		return nil, err
	}
	return c.options(ec, store.PurposeLogin, "")
}

// joining is the page of a link to join.
type joining struct {
	Code, Name, Wrong string
	Link              *store.JoinLink // nil: it is not open
	Passkeys          passkeys
}

func (c *Console) showJoin(ec echo.Context, status int, j joining) error {
	j.Passkeys = c.passkeys
	return c.show(ec, status, &page{Title: "Join", Template: "join", Body: j})
}

// joinLink reads the link of a form or a page. Opening it uses nothing up: chats and mail programs open links.
func (c *Console) joinLink(ec echo.Context, code string) (l store.JoinLink, err error) {
	l, err = c.d.Store.JoinLink(ec.Request().Context(), access.SecretHash(code))
	if prego.CodeOf(err) == prego.CodeUnauthenticated {
		if limited := c.stranger(ec.Request()); limited != nil {
			err = limited
		}
	}
	return l, err
}

// joinPage shows who invites to what.
func (c *Console) joinPage(ec echo.Context) error {
	code := ec.QueryParam("code")
	l, err := c.joinLink(ec, code)
	switch {
	case prego.CodeOf(err) == prego.CodeUnauthenticated:
		return c.showJoin(ec, http.StatusGone, joining{Wrong: messageOf(err)})
	case err != nil:
		return err
	}
	return c.showJoin(ec, http.StatusOK, joining{Code: code, Name: l.Name, Link: &l})
}

// joiner is who accepts a link: a known user, or a new one with the name of the form.
func joiner(l store.JoinLink, name string) (passkeyUser, error) {
	if l.PrincipalID != "" {
		return passkeyUser{handle: l.Handle, name: l.Name}, nil
	}
	name = strings.TrimSpace(name)
	if name == "" || len(name) > 100 {
		return passkeyUser{}, prego.Errorf(prego.CodeInvalidField, "your name must have 1 to 100 characters")
	}
	return passkeyUser{handle: rand.Text(), name: name}, nil
}

// beginJoin makes the challenge that registers the passkey of a link.
func (c *Console) beginJoin(ec echo.Context) (any, error) {
	if err := readForm(ec, maxLogin); err != nil {
		return nil, err
	}
	form := ec.Request().PostForm
	l, err := c.joinLink(ec, form.Get("code"))
	if err != nil {
		return nil, err
	}
	u, err := joiner(l, form.Get("name"))
	if err != nil {
		return nil, err
	}
	return c.creation(ec, store.PurposeJoin, l.LinkID, u, l.PrincipalID)
}

// join accepts a link, and logs in.
func (c *Console) join(ec echo.Context) error {
	if err := readForm(ec, maxLogin); err != nil {
		return err
	}
	r := ec.Request()
	code := r.PostForm.Get("code")
	l, err := c.joinLink(ec, code)
	if err == nil {
		err = c.accept(ec, l, code)
	}
	switch prego.CodeOf(err) {
	case prego.CodeUnauthenticated, prego.CodeForbidden, prego.CodeInvalidField:
		c.d.Log.Info("joining refused", zap.String("code", string(prego.CodeOf(err))), zap.String("from", api.Network(r)))
		j := joining{Code: code, Name: r.PostForm.Get("name"), Wrong: messageOf(err)}
		if l.LinkID != "" {
			j.Link = &l
		}
		return c.showJoin(ec, http.StatusUnauthorized, j)
	}
	return err
}

func (c *Console) accept(ec echo.Context, l store.JoinLink, code string) error {
	r := ec.Request()
	u, err := joiner(l, r.PostForm.Get("name"))
	if err != nil {
		return err
	}
	k, handle, err := c.created(ec, store.PurposeJoin, l.LinkID, r.PostForm.Get("credential"), "")
	if err != nil {
		return err
	}
	secret, login, err := api.NewLogin(access.Principal{Name: u.name}, c.d.Now(), api.Address(r))
	if err != nil {
		return err
	}
	ctx := c.by(r, access.Principal{PrincipalID: cmp.Or(l.PrincipalID, l.LinkID), Name: u.name}, "consoleJoin")
	p, err := c.d.Store.Join(ctx, access.SecretHash(code), store.Joining{
		IDs: [2]string{prego.NewID("user-"), prego.NewID("grant-")}, Handle: handle, Name: u.name, Passkey: k, Login: login,
	})
	if err != nil {
		return err
	}
	return c.enter(ec, secret, p, "/console")
}

// yours is the page of a user's own logins and passkeys.
type yours struct {
	Passkeys passkeys
	Keys     []store.Passkey
	Logins   []store.LoginView
	MayAdd   bool
	Wrong    string
}

// you shows the user's own logins and passkeys.
func (c *Console) you(ec echo.Context) error { return c.showYou(ec, http.StatusOK, "") }

func (c *Console) showYou(ec echo.Context, status int, wrong string) (err error) {
	v, ctx := ec.Get(visitorKey).(*visitor), ec.Request().Context()
	y := yours{Passkeys: c.passkeys, Wrong: wrong}
	if y.Keys, err = c.d.Store.Passkeys(ctx, v.PrincipalID); err != nil {
		return err
	}
	if y.Logins, err = c.d.Store.Logins(ctx, v.PrincipalID); err != nil {
		return err
	}
	if y.MayAdd, err = c.d.Store.MayAddPasskey(ctx, v.CredentialID, v.PrincipalID); err != nil {
		return err
	}
	return c.show(ec, status, &page{Title: "Your logins and passkeys", Template: "you", Body: y})
}

// yourOwn lets a user change their own logins and passkeys, and shows the page with what refused it.
func (c *Console) yourOwn(operation string, change func(ec echo.Context, v *visitor) error) echo.HandlerFunc {
	return func(ec echo.Context) error {
		v, r := ec.Get(visitorKey).(*visitor), ec.Request()
		ec.SetRequest(r.WithContext(c.by(r, v.Principal, operation)))
		err := change(ec, v)
		switch prego.CodeOf(err) {
		case prego.CodeUnauthenticated, prego.CodeForbidden, prego.CodeNotFound, prego.CodeLoginNotFresh:
			return c.showYou(ec, http.StatusForbidden, messageOf(err))
		}
		if err != nil {
			return err
		}
		return ec.Redirect(http.StatusSeeOther, "/console/you")
	}
}

// mayAdd refuses to register a passkey by a login that is not fresh or may not: it is a way in that lasts.
func (c *Console) mayAdd(ec echo.Context, v *visitor) error {
	if err := c.prove(ec, v); err != nil {
		return err
	}
	ok, err := c.d.Store.MayAddPasskey(ec.Request().Context(), v.CredentialID, v.PrincipalID)
	switch {
	case err != nil:
		return err
	case !ok:
		return prego.Errorf(prego.CodeForbidden, "this login may not register passkeys: log in with a passkey")
	case !c.d.Now().Before(v.FreshUntil):
		return prego.Errorf(prego.CodeLoginNotFresh, "you logged in too long ago: log out, and in again")
	}
	return nil
}

// beginAdd makes the challenge that registers another passkey.
func (c *Console) beginAdd(ec echo.Context) (any, error) {
	v := ec.Get(visitorKey).(*visitor)
	if err := c.mayAdd(ec, v); err != nil {
		return nil, err
	}
	return c.creation(ec, store.PurposeAdd, v.CredentialID, passkeyUser{handle: v.Subject, name: v.Name}, v.PrincipalID)
}

// addPasskey registers another passkey.
func (c *Console) addPasskey(ec echo.Context, v *visitor) error {
	if err := c.mayAdd(ec, v); err != nil {
		return err
	}
	form := ec.Request().PostForm
	name := strings.TrimSpace(form.Get("name"))
	k, _, err := c.created(ec, store.PurposeAdd, v.CredentialID, form.Get("credential"), name[:min(len(name), 100)])
	if err != nil {
		return err
	}
	k.PrincipalID = v.PrincipalID
	return c.d.Store.AddPasskey(ec.Request().Context(), v.CredentialID, k)
}

func (c *Console) removePasskey(ec echo.Context, v *visitor) error {
	return c.d.Store.RemovePasskey(ec.Request().Context(), v.PrincipalID, ec.Param("id"))
}

func (c *Console) endLogin(ec echo.Context, v *visitor) error {
	return c.d.Store.EndLogin(ec.Request().Context(), ec.Param("id"), v.PrincipalID, v.By())
}

// beginAgain makes the challenge that makes this login fresh.
func (c *Console) beginAgain(ec echo.Context) (any, error) {
	return c.options(ec, store.PurposeAgain, ec.Get(visitorKey).(*visitor).CredentialID)
}

// prove makes the login fresh if the form has the proof: a passkey's answer, or the token that the login was made with.
// The login stays the same, so that the form that needed it stays valid and goes on.
func (c *Console) prove(ec echo.Context, v *visitor) error {
	r := ec.Request()
	answer, token := r.PostForm.Get("again_credential"), strings.TrimSpace(r.PostForm.Get("again_token"))
	ctx := c.by(r, v.Principal, "consoleAgain")
	switch {
	case answer != "":
		u, err := c.use(ec, store.PurposeAgain, v.CredentialID, answer)
		if err != nil {
			return err
		}
		if err := c.d.Store.RefreshByPasskey(ctx, v.CredentialID, v.PrincipalID, u); err != nil {
			return err
		}
	case token != "":
		p, err := c.d.Auth(r.Context(), token)
		if ended(err) {
			if limited := c.stranger(r); limited != nil {
				return limited
			}
		}
		if err != nil {
			return err
		}
		if err := c.d.Store.RefreshLogin(ctx, v.CredentialID, v.PrincipalID, p.CredentialID); err != nil {
			return err
		}
	default:
		return nil
	}
	v.FreshUntil = c.d.Now().Add(store.LoginFresh)
	return nil
}
