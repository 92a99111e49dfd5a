package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/spf13/cobra"
	"golang.org/x/oauth2"

	"github.com/prego/prego/api"
)

func loginCommand(c *CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use: "login [CONTEXT]", Short: "Log in, or store a token", Args: cobra.MaximumNArgs(1),
		Long: `Log in to an API, and store the login in a context. Where people log in with an issuer,
it prints an address and a code to confirm in a browser. Otherwise, or when standard
input is no terminal, it stores a token: the first line of standard input, or of the
file that --token-file names. The context is the one named, or the current one, or
else one called default; --api-url creates it or changes its API.`,
		Example: "  prego login prod --api-url https://prego.example.com\n  prego token create --name ci --role operator | prego login\n  prego login prod --api-url https://prego.example.com --token-file ~/prod.token",
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := c.load()
			if err != nil {
				return err
			}
			name := cmp.Or(append(args, c.context, c.Getenv("PREGO_CONTEXT"), s.Current, "default")...)
			p := place{API: cmp.Or(c.api, c.Getenv("PREGO_API_URL"), s.Contexts[name].API, defaultAPI)}
			if err := checkURL(p.API); err != nil {
				return err
			}
			if p.Token, err = c.newToken(cmd, p.API); err != nil {
				return err
			}
			var who api.Caller
			if err := NewClient(p.API, p.Token).Do(cmd.Context(), http.MethodGet, "/v1/whoami", nil, nil, &who); err != nil {
				return err
			}
			s.Contexts[name], s.Current = p, name
			if err := s.save(); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "logged in to %s; its token is in context %s\n", p.API, name)
			if len(who.Grants) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "nothing has been granted to you yet: give the id %s to an operator or to an owner of your org\n", who.PrincipalId)
			}
			return nil
		},
	}
	cmd.Flags().Bool("device", false, "log in with the issuer, also where standard input is no terminal")
	return cmd
}

// newToken is a login with the issuer of an API or, without an issuer or a person at a terminal, a given token.
func (c *CLI) newToken(cmd *cobra.Command, base string) (string, error) {
	device, _ := cmd.Flags().GetBool("device")
	if c.tokenFile == "" && (device || c.Width(cmd.InOrStdin()) > 0) {
		var m api.LoginMethods
		if err := NewClient(base, "").Do(cmd.Context(), http.MethodGet, "/v1/login-methods", nil, nil, &m); err != nil {
			return "", err
		}
		switch {
		case m.Issuer != "":
			return c.byDevice(cmd, base, m)
		case device:
			return "", usagef("people log in to %s without an issuer: run prego login with a token", base)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "Token for %s: ", base)
	}
	return c.secret(cmd.InOrStdin(), c.tokenFile)
}

const (
	exchangeGrant = "urn:ietf:params:oauth:grant-type:token-exchange"
	idTokenType   = "urn:ietf:params:oauth:token-type:id_token"
)

// byDevice logs in with a code that the person confirms in any browser (RFC 8628), and exchanges the issuer's ID token for a
// login of the API.
func (c *CLI) byDevice(cmd *cobra.Command, base string, m api.LoginMethods) (string, error) {
	ctx := oidc.ClientContext(cmd.Context(), &http.Client{Timeout: 30 * time.Second})
	provider, err := oidc.NewProvider(ctx, m.Issuer)
	if err != nil {
		return "", usagef("the issuer %s of %s can't be reached: %w", m.Issuer, base, err)
	}
	conf := oauth2.Config{ClientID: m.ClientId, Endpoint: provider.Endpoint(), Scopes: []string{oidc.ScopeOpenID, "profile", "email"}}
	var offers struct {
		Scopes []string `json:"scopes_supported"`
	}
	if err := provider.Claims(&offers); err == nil {
		for _, s := range offers.Scopes {
			if s == "groups" {
				conf.Scopes = append(conf.Scopes, s)
			}
		}
	}
	if conf.Endpoint.DeviceAuthURL == "" {
		return "", usagef("the issuer %s has no login for devices: store a token with prego login --token-file", m.Issuer)
	}
	d, err := conf.DeviceAuth(ctx, oauth2.SetAuthURLParam("max_age", "0")) // a login is as fresh as its proof
	if err != nil {
		return "", refusedBy(ctx, m.Issuer, err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "Open %s and confirm the code %s\n", cmp.Or(d.VerificationURIComplete, d.VerificationURI), d.UserCode)
	tokens, err := conf.DeviceAccessToken(ctx, d)
	if err != nil {
		return "", refusedBy(ctx, m.Issuer, err)
	}
	id, _ := tokens.Extra("id_token").(string)
	if id == "" {
		return "", usagef("the issuer %s sent no ID token", m.Issuer)
	}
	var login api.ExchangedToken
	err = NewClient(base, "").Do(ctx, http.MethodPost, "/v1/token-exchange", nil, map[string]string{
		"grant_type": exchangeGrant, "subject_token": id, "subject_token_type": idTokenType,
	}, &login)
	return login.AccessToken, err
}

func refusedBy(ctx context.Context, issuer string, err error) error {
	if ctx.Err() != nil {
		return usagef("interrupted before the login was confirmed")
	}
	if r := new(oauth2.RetrieveError); errors.As(err, &r) {
		switch r.ErrorCode {
		case "expired_token":
			return usagef("the code was not confirmed in time: run prego login again")
		case "access_denied":
			return usagef("the login was refused in the browser")
		case "invalid_client", "unauthorized_client":
			return usagef("the issuer %s does not let this installation log in by device (%s): its client must be public and have the device grant", issuer, r.ErrorCode)
		}
	}
	return usagef("the issuer %s refused the login: %w", issuer, err)
}

func logoutCommand(c *CLI) *cobra.Command {
	return &cobra.Command{
		Use: "logout [CONTEXT]", Short: "End the login of a context, and forget it", Args: cobra.MaximumNArgs(1),
		Long: `End the login or token that a context has stored, so that the API refuses it from now on,
and forget it. The context is the one named, or the current one. A token in a file of
yours, which several places may share, is not ended.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := c.load()
			if err != nil {
				return err
			}
			name := cmp.Or(append(args, c.context, c.Getenv("PREGO_CONTEXT"), s.Current)...)
			if name == "" {
				return usagef("there is no context to log out of")
			}
			if err := s.known(name); err != nil {
				return err
			}
			p := s.Contexts[name]
			if p.Token == "" {
				return usagef("context %s has no login of its own", name)
			}
			err = NewClient(p.API, p.Token).Do(cmd.Context(), http.MethodDelete, "/v1/whoami", nil, nil, nil)
			if r := new(Refusal); errors.As(err, &r) && r.Status == http.StatusUnauthorized {
				err = nil // it has ended before
			}
			if err != nil {
				return err
			}
			p.Token = ""
			s.Contexts[name] = p
			if err := s.save(); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "logged out of %s\n", p.API)
			return nil
		},
	}
}
