package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/store"
)

// People are logged in by an issuer.
type People interface {
	Issuer() string
	ClientID() string
	// Begin returns where the login with a secret continues, CodeNotReady if the issuer can't be used right now, and
	// Finish who it is that comes back. With again the person must prove who they are also if the issuer knows already.
	Begin(ctx context.Context, secret string, again bool) (url string, err error)
	Finish(ctx context.Context, secret string, query url.Values) (access.Identity, error)
	// Identity verifies an ID token for this installation.
	Identity(ctx context.Context, raw string) (access.Identity, error)
}

// Issuers verifies tokens of the issuers that service accounts trust.
type Issuers interface {
	Check(issuer string) error
	Identity(ctx context.Context, raw, issuer, audience string) (access.Identity, error)
}

const (
	idTokenType     = "urn:ietf:params:oauth:token-type:id_token"
	accessTokenType = "urn:ietf:params:oauth:token-type:access_token"
	// exchangedLife is how long an exchanged token lasts at most.
	exchangedLife = 15 * time.Minute
	// mostClaims is how many claims a trust names at most.
	mostClaims = 20
)

// GetLoginMethods shows how people log in.
func (a *API) GetLoginMethods(c echo.Context) error {
	out := LoginMethods{Passkeys: a.d.People == nil}
	if p := a.d.People; p != nil {
		out.Issuer, out.ClientId = p.Issuer(), p.ClientID()
	}
	return c.JSON(http.StatusOK, out)
}

// ExchangeToken exchanges an issuer's token for a login or a token.
func (a *API) ExchangeToken(c echo.Context) error {
	var in ExchangeTokenJSONRequestBody
	if err := decode(c, &in); err != nil {
		return err
	}
	exchange := a.exchangeForToken
	if in.SubjectTokenType == idTokenType {
		exchange = a.exchangeForLogin
	}
	secret, p, err := exchange(c, in)
	switch code := prego.CodeOf(err); {
	case code == prego.CodeUnauthenticated, code == prego.CodeTokenExpired, code == prego.CodeForbidden:
		a.d.Log.Info("exchange refused", zap.String("code", string(code)), zap.String("account", deref(in.AccountId)), zap.String("from", Network(c.Request())))
		if limited := a.limit(c, budgetOf("address", c.Request())); limited != nil {
			return limited
		}
		return err
	case err != nil:
		return err
	}
	return c.JSON(http.StatusCreated, ExchangedToken{
		AccessToken: secret, IssuedTokenType: accessTokenType, TokenType: "Bearer", ExpiresIn: int(time.Until(p.Expires).Seconds()),
	})
}

func (a *API) exchangeForLogin(c echo.Context, in ExchangeTokenJSONRequestBody) (string, access.Principal, error) {
	switch {
	case in.AccountId != nil:
		return "", access.Principal{}, prego.Invalid("account_id", "is for programs' tokens: an ID token logs its person in")
	case a.d.People == nil:
		return "", access.Principal{}, prego.Errorf(prego.CodeUnauthenticated, "nobody logs in with an issuer here: PREGO_API_OIDC_ISSUER is not set")
	}
	who, err := a.d.People.Identity(c.Request().Context(), in.SubjectToken)
	if err != nil {
		return "", access.Principal{}, err
	}
	return LogIn(c.Request().Context(), a.d.Store, who, "prego login", ops.AuditSource{
		From: Address(c.Request()), RequestID: requestID(c), Operation: "exchangeToken",
	})
}

// LogIn logs in a person whom an issuer vouches for, and returns the secret of the login. source says where from; its
// actor is the person.
func LogIn(ctx context.Context, s *store.Store, who access.Identity, name string, source ops.AuditSource) (string, access.Principal, error) {
	id, err := s.UserID(ctx, who)
	if err != nil {
		return "", access.Principal{}, err
	}
	p := access.Principal{PrincipalID: cmp.Or(id, newID("user-")), Kind: access.User, Name: who.Name}
	secret, login, err := NewLogin(p, time.Now(), source.From)
	if err != nil {
		return "", p, err
	}
	login.Name, login.FreshAt = name, who.AuthTime // an issuer may have asked for no proof now
	source.Actor, source.ActorName = p.PrincipalID, p.By()
	p, err = s.LogIn(ops.WithAuditSource(ctx, source), who, login)
	return secret, p, err
}

var errExchange = prego.Errorf(prego.CodeUnauthenticated, "the service account does not trust this token: see its trust for issuer, audience and claims")

func (a *API) exchangeForToken(c echo.Context, in ExchangeTokenJSONRequestBody) (string, access.Principal, error) {
	ctx, none, account := c.Request().Context(), access.Principal{}, deref(in.AccountId)
	if account == "" {
		return "", none, prego.Invalid("account_id", "is required for a program's token: the service account that trusts it")
	}
	t, err := a.d.Store.Trust(ctx, account)
	if prego.CodeOf(err) == prego.CodeNotFound { // as with another token: who asks is unknown
		return "", none, errExchange
	}
	if err != nil {
		return "", none, err
	}
	who, err := a.d.Issuers.Identity(ctx, in.SubjectToken, t.Issuer, t.Audience)
	switch code := prego.CodeOf(err); {
	case code == prego.CodeUnauthenticated:
		return "", none, errExchange
	case err != nil:
		return "", none, err
	case !t.Admits(who):
		return "", none, errExchange
	}
	secret, err := access.NewSecret(access.Token, rand.Reader)
	if err != nil {
		return "", none, err
	}
	now := time.Now()
	until := now.Add(exchangedLife)
	if who.Expires.Before(until) {
		until = who.Expires
	}
	source := ops.AuditSource{Actor: account, ActorName: who.Name, From: Address(c.Request()), RequestID: requestID(c), Operation: "exchangeToken"}
	p, before, err := a.d.Store.Exchange(ops.WithAuditSource(ctx, source), store.Credential{
		CredentialID: newID("token-"), Kind: access.Token, Hash: access.SecretHash(secret), Prefix: access.SecretPrefix(secret), PrincipalID: account,
		Name: exchangedName(who), Address: source.From, ExpiresAt: until,
	})
	if prego.CodeOf(err) == prego.CodeNotFound {
		return "", none, errExchange
	}
	if err == nil && before > 0 {
		a.d.Log.Warn("a token was exchanged again", zap.String("account", account), zap.String("token", who.TokenID), zap.Int("times", before+1),
			zap.String("from", Network(c.Request())))
	}
	return secret, p, err
}

// exchangedName names a token after the external one, so that lists show which were exchanged for the same.
func exchangedName(who access.Identity) string {
	name := []rune("exchanged " + cmp.Or(strings.ToValidUTF8(who.TokenID, ""), who.Subject) + " of " + who.Name)
	return string(name[:min(len(name), 200)])
}

// GetTokenTrust shows whose tokens a service account's are exchanged for.
func (a *API) GetTokenTrust(c echo.Context, id string) error {
	if _, err := a.d.Store.OrgOf(c.Request().Context(), "account", id); err != nil {
		return err
	}
	t, err := a.d.Store.Trust(c.Request().Context(), id)
	return answer(c, http.StatusOK, t, err, viewOf[TokenTrust, access.Trust])
}

// PutTokenTrust sets it. Who may set it could get a token of the service account, and must have all that it has.
func (a *API) PutTokenTrust(c echo.Context, id string, _ PutTokenTrustParams) error {
	var in access.Trust
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := a.d.Issuers.Check(in.Issuer); err != nil {
		return err
	}
	if len(in.Claims) == 0 || len(in.Claims) > mostClaims {
		return prego.Invalid("claims", "must be 1 to 20 claims")
	}
	for name, value := range in.Claims {
		if strings.TrimSpace(value) == "" {
			return prego.Invalid("claims."+name, "must not be blank")
		}
	}
	p := caller(c)
	if err := p.MayGiveAccess(); err != nil {
		return err
	}
	may := func(account []access.Grant) error { // who can get a token of the account has its access
		for _, g := range account {
			if err := a.mayGrant(c)(g); err != nil {
				return err
			}
		}
		return nil
	}
	if err := a.d.Store.PutTrust(c.Request().Context(), id, in, p.By(), may); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, viewOf[TokenTrust](in))
}

// DeleteTokenTrust ends it.
func (a *API) DeleteTokenTrust(c echo.Context, id string, _ DeleteTokenTrustParams) error {
	if _, err := a.d.Store.OrgOf(c.Request().Context(), "account", id); err != nil {
		return err
	}
	if err := a.d.Store.DeleteTrust(c.Request().Context(), id); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// EndOwnCredential ends the token or login of the request.
func (a *API) EndOwnCredential(c echo.Context, _ EndOwnCredentialParams) error {
	p := caller(c)
	if err := a.d.Store.EndCredential(c.Request().Context(), p.CredentialID, p.By()); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}
