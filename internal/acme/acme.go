// Package acme requests certificates from an ACME certificate authority (RFC 8555, RFC 9773), one request at a time:
// the workflow decides what happens between them. Every error is a *tenant.IssueError, and none holds a key.
package acme

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/mholt/acmez/v3/acme"

	"github.com/prego/prego/tenant"
)

// Config names the authority and how to reach it.
type Config struct {
	Directory string
	UserAgent string
	// EABKeyID and EABKey (base64url, of an HMAC) bind a new account to a customer's account
	// at the authority (RFC 8555 §7.3.4); empty for none.
	EABKeyID, EABKey string
	// Roots are trusted for the authority's own HTTPS; nil are the system's.
	Roots *x509.CertPool
	// Timeout bounds one request.
	Timeout time.Duration
	// Transport sends requests; nil for a transport that trusts Roots.
	Transport http.RoundTripper
}

// Authority is a certificate authority.
type Authority struct {
	cfg  Config
	http *http.Client
}

// finalizeWait is how long Finalize waits itself for a certificate: most take a second.
const finalizeWait = 5 * time.Second

// New makes a client of an authority. It sends nothing.
func New(cfg Config) (*Authority, error) {
	if cfg.Directory == "" {
		return nil, errors.New("the URL of the authority's directory is required")
	}
	if (cfg.EABKeyID == "") != (cfg.EABKey == "") {
		return nil, errors.New("an external account binding needs both its key id and its key")
	}
	if _, err := base64.RawURLEncoding.DecodeString(cfg.EABKey); err != nil {
		return nil, errors.New("the key of the external account binding must be base64url without padding")
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 30 * time.Second
	}
	if cfg.Transport == nil {
		base := http.DefaultTransport.(*http.Transport).Clone()
		base.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.Roots}
		base.ResponseHeaderTimeout = cfg.Timeout
		cfg.Transport = base
	}
	return &Authority{cfg: cfg, http: &http.Client{Transport: careful{cfg.Transport}, Timeout: cfg.Timeout}}, nil
}

// Directory is the URL of the authority's directory.
func (a *Authority) Directory() string { return a.cfg.Directory }

// client makes a client for one call: its nonces are not shared, so that calls of several workers don't spoil each
// other's.
func (a *Authority) client() *acme.Client {
	return &acme.Client{
		Directory: a.cfg.Directory, HTTPClient: a.http, UserAgent: a.cfg.UserAgent,
		PollTimeout: finalizeWait, PollInterval: time.Second,
	}
}

func known(a tenant.AuthorityAccount) acme.Account {
	return acme.Account{Location: a.Location, Orders: a.OrdersURL, PrivateKey: a.Key, Status: acme.StatusValid}
}

// Register creates an account for a key, or finds the existing one. It agrees to the terms of service: the operator
// who configured the authority has read them.
func (a *Authority) Register(ctx context.Context, key crypto.Signer, contact string) (tenant.AuthorityAccount, error) {
	ctx, seen := watched(ctx)
	c := a.client()
	account := acme.Account{TermsOfServiceAgreed: true, PrivateKey: key}
	if contact != "" {
		account.Contact = []string{"mailto:" + contact}
	}
	if a.cfg.EABKeyID != "" {
		if err := account.SetExternalAccountBinding(ctx, c, acme.EAB{KeyID: a.cfg.EABKeyID, MACKey: a.cfg.EABKey}); err != nil {
			return tenant.AuthorityAccount{}, classed("bind the account", err, seen)
		}
	}
	made, err := c.NewAccount(ctx, account)
	if err != nil {
		return tenant.AuthorityAccount{}, classed("register the account", err, seen)
	}
	return tenant.AuthorityAccount{Location: made.Location, OrdersURL: made.Orders, Key: key}, nil
}

func orderOf(o acme.Order, seen *trail) tenant.AuthorityOrder {
	out := tenant.AuthorityOrder{
		Location: o.Location, FinalizeURL: o.Finalize, Authz: o.Authorizations,
		Certificate: o.Certificate, Expires: o.Expires, RetryAfter: seen.retryAfter,
	}
	for _, id := range o.Identifiers {
		out.Names = append(out.Names, id.Value)
	}
	switch o.Status {
	case acme.StatusPending:
		out.State = tenant.OrderPending
	case acme.StatusReady:
		out.State = tenant.OrderReady
	case acme.StatusProcessing:
		out.State = tenant.OrderProcessing
	case acme.StatusValid:
		out.State = tenant.OrderValid
	default:
		out.State = tenant.OrderFailed
	}
	if o.Error != nil {
		out.Problem = ofProblem("the order failed", *o.Error)
	}
	return out
}

// Place orders a certificate. replaces names the certificate that it renews, "" for none. If the authority already
// knows another replacement, the order names none.
func (a *Authority) Place(
	ctx context.Context, account tenant.AuthorityAccount, names []string, replaces string,
) (tenant.AuthorityOrder, error) {
	ctx, seen := watched(ctx)
	order := acme.Order{Replaces: replaces}
	for _, name := range names {
		order.Identifiers = append(order.Identifiers, acme.Identifier{Type: "dns", Value: name})
	}
	placed, err := a.client().NewOrder(ctx, known(account), order)
	if problemType(err) == acme.ProblemTypeAlreadyReplaced {
		order.Replaces = ""
		placed, err = a.client().NewOrder(ctx, known(account), order)
	}
	if err != nil {
		return tenant.AuthorityOrder{}, classed("place the order", err, seen)
	}
	return orderOf(placed, seen), nil
}

// Order reads an order. A missing order is IssueGone.
func (a *Authority) Order(
	ctx context.Context, account tenant.AuthorityAccount, location string,
) (tenant.AuthorityOrder, error) {
	ctx, seen := watched(ctx)
	o, err := a.client().GetOrder(ctx, known(account), acme.Order{Location: location})
	if err != nil {
		return tenant.AuthorityOrder{}, gone(classed("read the order", err, seen), seen)
	}
	o.Location = location
	return orderOf(o, seen), nil
}

// Authorization reads the authorization of a name, with the challenge of a kind.
func (a *Authority) Authorization(
	ctx context.Context, account tenant.AuthorityAccount, url string, kind tenant.ChallengeKind,
) (tenant.AuthorityAuthz, error) {
	ctx, seen := watched(ctx)
	z, err := a.client().GetAuthorization(ctx, known(account), url)
	if err != nil {
		return tenant.AuthorityAuthz{}, gone(classed("read the authorization", err, seen), seen)
	}
	name := strings.TrimPrefix(z.Identifier.Value, "*.")
	out := tenant.AuthorityAuthz{
		URL: url, Name: name, Wildcard: z.Wildcard || name != z.Identifier.Value,
		Valid: z.Status == acme.StatusValid, Pending: z.Status == acme.StatusPending,
	}
	offered := make([]string, 0, len(z.Challenges))
	for _, c := range z.Challenges {
		if c.Error != nil {
			out.Problem = ofProblem("validation of "+name, *c.Error)
			out.Problem.Name = name
		}
		offered = append(offered, c.Type)
		if c.Type != string(kind) {
			continue
		}
		out.ChallengeURL, out.Token = c.URL, c.Token
		out.Processing = c.Status == acme.StatusProcessing || c.Status == acme.StatusValid
		if out.Answer = c.KeyAuthorization; kind == tenant.ChallengeDNS {
			out.Answer = c.DNS01KeyAuthorization()
		}
	}
	switch {
	case out.Valid || (out.Pending && out.ChallengeURL != ""):
	case out.Pending:
		return out, &tenant.IssueError{Class: tenant.IssueRejected, Name: name, Message: fmt.Sprintf(
			"the authority offers no %s for %s, but %s", kind, name, strings.Join(offered, ", "))}
	case out.Problem == nil:
		message := "the authorization of " + name + " is " + z.Status
		out.Problem = &tenant.IssueError{Class: tenant.IssueGone, Message: message}
	}
	return out, nil
}

// Accept asks the authority to validate a challenge. Repeating it changes nothing.
func (a *Authority) Accept(ctx context.Context, account tenant.AuthorityAccount, url string) error {
	ctx, seen := watched(ctx)
	_, err := a.client().InitiateChallenge(ctx, known(account), acme.Challenge{URL: url})
	if err != nil && problemType(err) == acme.ProblemTypeMalformed {
		return nil // already validated: the authorization holds the result
	}
	return classed("accept the challenge", err, seen)
}

// Finalize hands in the request of a ready order. The order that it returns may still be processing.
func (a *Authority) Finalize(
	ctx context.Context, account tenant.AuthorityAccount, o tenant.AuthorityOrder, csr []byte,
) (tenant.AuthorityOrder, error) {
	ctx, seen := watched(ctx)
	ready := acme.Order{Location: o.Location, Finalize: o.FinalizeURL}
	done, err := a.client().FinalizeOrder(ctx, known(account), ready, csr)
	if err != nil {
		var problem acme.Problem
		if !errors.As(err, &problem) && done.Status == acme.StatusProcessing {
			return orderOf(done, seen), nil // not finished in finalizeWait
		}
		// The authority may have accepted the request nevertheless: the order's state decides.
		if now, readErr := a.Order(ctx, account, o.Location); readErr == nil && now.State != tenant.OrderReady {
			return now, nil
		}
		return tenant.AuthorityOrder{}, classed("finalize the order", err, seen)
	}
	return orderOf(done, seen), nil
}

// Download reads a certificate's chain, leaf first, as PEM.
func (a *Authority) Download(ctx context.Context, account tenant.AuthorityAccount, url string) ([]byte, error) {
	ctx, seen := watched(ctx)
	chains, err := a.client().GetCertificateChain(ctx, known(account), url)
	if err != nil {
		return nil, gone(classed("download the certificate", err, seen), seen)
	}
	if len(chains) == 0 {
		return nil, &tenant.IssueError{
			Class: tenant.IssueServer, Message: "the authority answered without a certificate",
		}
	}
	return chains[0].ChainPEM, nil
}

// RenewalInfo asks when to renew a certificate; ok is false if the authority does not support the question.
func (a *Authority) RenewalInfo(ctx context.Context, chainPEM string) (r tenant.RenewalWindow, ok bool, err error) {
	ctx, seen := watched(ctx)
	leaf, err := leafOf(chainPEM)
	if err != nil {
		return r, false, err
	}
	info, err := a.client().GetRenewalInfo(ctx, leaf)
	if errors.Is(err, acme.ErrUnsupported) {
		return r, false, nil
	}
	if err != nil {
		return r, false, classed("ask when to renew", err, seen)
	}
	r = tenant.RenewalWindow{
		Start: info.SuggestedWindow.Start, End: info.SuggestedWindow.End, URL: info.ExplanationURL,
	}
	if info.RetryAfter != nil {
		r.AskAgain = time.Until(*info.RetryAfter)
	}
	return r, true, nil
}

// Replaces is how an authority names a certificate in the order that replaces it.
func (*Authority) Replaces(chainPEM string) (string, error) {
	leaf, err := leafOf(chainPEM)
	if err != nil {
		return "", err
	}
	if len(leaf.AuthorityKeyId) == 0 {
		return "", nil
	}
	id, err := acme.ARIUniqueIdentifier(leaf)
	if err != nil {
		return "", &tenant.IssueError{Class: tenant.IssueInternal, Message: err.Error()}
	}
	return id, nil
}

func leafOf(chainPEM string) (*x509.Certificate, error) {
	block, _ := pem.Decode([]byte(chainPEM))
	if block == nil {
		return nil, &tenant.IssueError{Class: tenant.IssueInternal, Message: "the stored chain is not PEM"}
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, &tenant.IssueError{Class: tenant.IssueInternal, Message: "the stored certificate: " + err.Error()}
	}
	return leaf, nil
}
