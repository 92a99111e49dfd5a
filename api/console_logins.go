package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/store"
)

const (
	// linkWithin is how long a link to the console is good for.
	linkWithin = 5 * time.Minute
	// LoginLife is how long a login lasts, unless what it comes from ends before.
	LoginLife = 8 * time.Hour
)

// Authenticate finds the principal of a token's or login's secret in the database.
func Authenticate(s *store.Store) Authenticator {
	return func(ctx context.Context, raw string) (access.Principal, error) {
		if kind, ok := access.KindOfSecret(raw); !ok || kind == access.Link {
			return access.Principal{}, prego.Errorf(prego.CodeUnauthenticated, "the token is not valid here")
		}
		return s.Authenticate(ctx, access.SecretHash(raw))
	}
}

// NewLogin returns a login of a principal, below the credential that it comes from, and its secret.
func NewLogin(p access.Principal, now time.Time, address string) (secret string, c store.Credential, err error) {
	secret, err = access.NewSecret(access.Login, rand.Reader)
	return secret, store.Credential{
		CredentialID: newID("login-"), Kind: access.Login, Hash: access.SecretHash(secret), Prefix: access.SecretPrefix(secret), PrincipalID: p.PrincipalID,
		ParentID: p.CredentialID, Name: "console", Address: address, CreatedBy: p.By(), ExpiresAt: now.Add(LoginLife),
	}, err
}

// Whoami shows the caller.
func (a *API) Whoami(c echo.Context) error {
	p := caller(c)
	out := Caller{
		PrincipalId: p.PrincipalID, Kind: p.Kind, Name: p.Name, Issuer: p.Issuer, Subject: p.Subject, CredentialId: p.CredentialID, CredentialName: p.CredentialName,
		Grants: []CallerGrant{}, ApiVersion: cmp.Or(a.d.Version, "dev"),
	}
	for _, g := range p.Grants {
		out.Grants = append(out.Grants, CallerGrant{AccessRole: g.Role, OrgId: g.OrgID})
	}
	if !p.Expires.IsZero() {
		out.ExpiresAt = new(p.Expires.UTC())
	}
	return c.JSON(http.StatusOK, out)
}

// CreateConsoleLogin makes a link that logs its caller in to the console, once.
func (a *API) CreateConsoleLogin(c echo.Context, _ CreateConsoleLoginParams) error {
	p := caller(c)
	code, err := access.NewSecret(access.Link, rand.Reader)
	if err != nil {
		return err
	}
	until, err := a.d.Store.CreateLoginLink(c.Request().Context(), store.LoginLink{
		LinkID: newID("link-"), Kind: store.LinkLogin, PrincipalID: p.PrincipalID, ParentID: p.CredentialID, Name: p.Name, CreatedBy: p.By(),
	}, access.SecretHash(code), linkWithin)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, ConsoleLogin{Path: "/console/login?code=" + code, ExpiresAt: until.UTC()})
}
