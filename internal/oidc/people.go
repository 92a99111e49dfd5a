package oidc

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

// Config is this installation as a client of the issuer that people log in with.
type Config struct {
	Issuer       string
	ClientID     string
	ClientSecret string // "" for a public client
	RedirectURL  string
	GroupsClaim  string
}

// People logs people in at an issuer.
type People struct {
	c      Config
	issuer *issuer
}

// NewPeople calls nobody: the issuer is discovered when it is needed.
func NewPeople(c Config) *People {
	client := &http.Client{Timeout: patience, Transport: limited{http.DefaultTransport}}
	return &People{c: c, issuer: &issuer{url: c.Issuer, client: client, now: time.Now}}
}

// Issuer is the URL of the issuer.
func (p *People) Issuer() string { return p.c.Issuer }

// ClientID is this installation's name at the issuer.
func (p *People) ClientID() string { return p.c.ClientID }

func (p *People) config(ctx context.Context) (oauth2.Config, context.Context, error) {
	if err := p.issuer.known(ctx, ""); err != nil {
		return oauth2.Config{}, ctx, err
	}
	p.issuer.mu.Lock()
	provider := p.issuer.provider
	p.issuer.mu.Unlock()
	scopes := []string{oidc.ScopeOpenID, "profile", "email"}
	var doc struct {
		Scopes []string `json:"scopes_supported"`
	}
	if err := provider.Claims(&doc); err == nil && slices.Contains(doc.Scopes, "groups") {
		scopes = append(scopes, "groups")
	}
	return oauth2.Config{
		ClientID: p.c.ClientID, ClientSecret: p.c.ClientSecret, Endpoint: provider.Endpoint(), RedirectURL: p.c.RedirectURL, Scopes: scopes,
	}, oidc.ClientContext(ctx, p.issuer.client), nil
}

// part derives the values of a login from its secret, which only the browser's cookie has: the state, which URLs show,
// betrays neither the nonce nor the verifier of PKCE.
func part(secret, name string) string {
	m := hmac.New(sha256.New, []byte(secret))
	m.Write([]byte("oidc login " + name))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// Begin returns the address at the issuer where the login with a secret continues. With again, the person must prove
// who they are even if they are logged in there, and the issuer states when they did.
func (p *People) Begin(ctx context.Context, secret string, again bool) (string, error) {
	c, _, err := p.config(ctx)
	if err != nil {
		return "", err
	}
	options := []oauth2.AuthCodeOption{oidc.Nonce(part(secret, "nonce")), oauth2.S256ChallengeOption(part(secret, "verifier"))}
	if again {
		options = append(options, oauth2.SetAuthURLParam("prompt", "login"), oauth2.SetAuthURLParam("max_age", "0"))
	}
	return c.AuthCodeURL(part(secret, "state"), options...), nil
}

// Finish returns the person of a login, given its secret and what the issuer sent the browser back with.
func (p *People) Finish(ctx context.Context, secret string, query url.Values) (access.Identity, error) {
	if secret == "" || subtle.ConstantTimeCompare([]byte(query.Get("state")), []byte(part(secret, "state"))) != 1 {
		return access.Identity{}, prego.Errorf(prego.CodeUnauthenticated, "this login was not started in this browser, or is too old: log in again")
	}
	if iss := query.Get("iss"); iss != "" && iss != p.c.Issuer { // RFC 9207
		return access.Identity{}, prego.Errorf(prego.CodeUnauthenticated, "another issuer answered: log in again")
	}
	if refused := query.Get("error"); refused != "" {
		return access.Identity{}, prego.Errorf(prego.CodeUnauthenticated, "the issuer did not log you in: %s", shown(refused))
	}
	c, ctx, err := p.config(ctx)
	if err != nil {
		return access.Identity{}, err
	}
	tokens, err := c.Exchange(ctx, query.Get("code"), oauth2.VerifierOption(part(secret, "verifier")))
	if refused := new(oauth2.RetrieveError); errors.As(err, &refused) && refused.Response.StatusCode < http.StatusInternalServerError {
		return access.Identity{}, prego.Errorf(prego.CodeUnauthenticated, "the issuer refused the login: %s", shown(refused.ErrorCode))
	}
	if err != nil {
		return access.Identity{}, prego.Errorf(prego.CodeNotReady, "the issuer %s can't be reached right now", p.c.Issuer)
	}
	raw, _ := tokens.Extra("id_token").(string)
	t, err := p.issuer.verify(ctx, raw, p.c.ClientID)
	if err != nil {
		return access.Identity{}, err
	}
	if subtle.ConstantTimeCompare([]byte(t.Nonce), []byte(part(secret, "nonce"))) != 1 {
		return access.Identity{}, errToken
	}
	return identity(t, p.c.GroupsClaim)
}

// Identity returns the person of an ID token that the issuer made for this installation, as a login by device does.
func (p *People) Identity(ctx context.Context, raw string) (access.Identity, error) {
	t, err := p.issuer.verify(ctx, raw, p.c.ClientID)
	if err != nil {
		return access.Identity{}, err
	}
	if t.Nonce != "" { // of the console's logins, whose tokens no browser or program gets
		return access.Identity{}, errToken
	}
	return identity(t, p.c.GroupsClaim)
}
