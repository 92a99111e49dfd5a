package activities

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// CertificateAuthority issues certificates. Every error that it returns is a
// *tenant.IssueError.
type CertificateAuthority interface {
	Directory() string
	Register(ctx context.Context, key crypto.Signer, contact string) (tenant.AuthorityAccount, error)
	Place(ctx context.Context, account tenant.AuthorityAccount, names []string, replaces string) (tenant.AuthorityOrder, error)
	Find(ctx context.Context, account tenant.AuthorityAccount, names []string, known []string) (o tenant.AuthorityOrder, ok bool, err error)
	Order(ctx context.Context, account tenant.AuthorityAccount, location string) (tenant.AuthorityOrder, error)
	Authorization(ctx context.Context, account tenant.AuthorityAccount, url string, kind tenant.ChallengeKind) (tenant.AuthorityAuthz, error)
	Accept(ctx context.Context, account tenant.AuthorityAccount, url string) error
	Finalize(ctx context.Context, account tenant.AuthorityAccount, o tenant.AuthorityOrder, csr []byte) (tenant.AuthorityOrder, error)
	Download(ctx context.Context, account tenant.AuthorityAccount, url string) ([]byte, error)
	RenewalInfo(ctx context.Context, chainPEM string) (w tenant.RenewalWindow, ok bool, err error)
	Replaces(chainPEM string) (string, error)
}

// KeySealing seals keys of certificates for who hands them to edges. Known are the keys
// under which that one can open them.
type KeySealing interface {
	Seal(belongsTo string, secret []byte) (sealed []byte, keyID string, err error)
	Known() []string
}

// AccountKeys seals and opens keys of accounts under the master key.
type AccountKeys interface {
	Seal(ctx context.Context, belongsTo string, secret []byte) (sealed []byte, keyID string, err error)
	Reseal(ctx context.Context, belongsTo, keyID string, sealed []byte) (sealedAnew []byte, newKeyID string, err error)
	Open(belongsTo, keyID string, sealed []byte) ([]byte, error)
}

// ChallengeProbe asks for the answer to a challenge over HTTP, as an authority does.
type ChallengeProbe interface {
	Answer(ctx context.Context, name, token string) (string, error)
}

// CertificateSettings configure which certificates exist and how they are ordered.
type CertificateSettings struct {
	Account     string   // which of the accounts at the authority
	Contact     string   // an e-mail address; "" for none
	SiteDomains []string // each has a wildcard
	Limits      tenant.IssueLimits
	ServeWithin time.Duration // until challenges can be seen
	IssueWithin time.Duration // until the authority has looked and issued
	Poll        time.Duration // between two looks, at least
	AskEvery    time.Duration // between two questions when to renew
}

// Certificates are the steps in the lives of certificates.
type Certificates struct {
	Store     *store.Store
	Authority CertificateAuthority // nil: none is asked
	Sealing   KeySealing
	Keys      AccountKeys
	DNS       Challenges // nil: no challenges by DNS
	Probe     ChallengeProbe
	// EdgesServe waits, for a bounded time, until all edges serve the state committed now; nil for an
	// installation without edges.
	EdgesServe func(ctx context.Context, names []string) (bool, error)
	Runs       Runs
	Settings   CertificateSettings
	Metrics    *CertificateMetrics
	Log        *zap.Logger
	Now        func() time.Time
	Hooks
}

// CertificateRef names a certificate.
type CertificateRef struct {
	CertificateID prego.CertificateID `json:"certificate_id"`
}

// CertificatePlan is the work due for a certificate, with the numbers that its run uses.
type CertificatePlan struct {
	Needed      bool                 `json:"needed"`
	Names       []string             `json:"names,omitempty"`
	Challenge   tenant.ChallengeKind `json:"challenge,omitempty"`
	OrgID       prego.OrgID          `json:"org_id,omitempty"`
	Failures    int                  `json:"failures,omitempty"`
	Left        int                  `json:"left,omitempty"` // answers of an earlier run that are still shown
	ServeWithin time.Duration        `json:"serve_within"`
	IssueWithin time.Duration        `json:"issue_within"`
	Poll        time.Duration        `json:"poll"`
}

// PlanCertificate reads the work due for a certificate.
func (a *Certificates) PlanCertificate(ctx context.Context, in CertificateRef) (CertificatePlan, error) {
	out := CertificatePlan{ServeWithin: a.Settings.ServeWithin, IssueWithin: a.Settings.IssueWithin, Poll: a.Settings.Poll}
	c, err := a.Store.GetCertificate(ctx, in.CertificateID)
	if prego.CodeOf(err) == prego.CodeCertificateNotFound {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	left, err := a.shownChallenges(ctx, in.CertificateID)
	if err != nil {
		return out, err
	}
	out.Names, out.Challenge, out.Failures, out.Left = c.Names, c.Challenge, c.Failures, len(left)
	if c.OrgID != nil {
		out.OrgID = *c.OrgID
	}
	out.Needed = a.Authority != nil && c.Status != tenant.CertificateRetired && c.DueAt != nil && !c.DueAt.After(a.Now())
	return out, nil
}

// OrderStep is how far an order is.
type OrderStep struct {
	OrderID string            `json:"order_id"`
	State   tenant.OrderState `json:"state"`
	Left    int               `json:"left,omitempty"`  // challenges to publish
	Again   time.Duration     `json:"again,omitempty"` // when the authority wants to be asked again
}

// OrderRef names an order of a certificate.
type OrderRef struct {
	CertificateID prego.CertificateID `json:"certificate_id"`
	OrderID       string              `json:"order_id"`
}

// PlaceOrder orders a certificate, or takes up the order that is open. Its intent, with
// sealed key and signed request, is written first; a lost answer is made up for by looking
// for the order at the authority.
func (a *Certificates) PlaceOrder(ctx context.Context, in CertificateRef) (OrderStep, error) {
	c, err := a.Store.GetCertificate(ctx, in.CertificateID)
	if err != nil {
		return OrderStep{}, issueError(err)
	}
	account, row, err := a.account(ctx)
	if err != nil {
		return OrderStep{}, issueError(err)
	}
	order, found, err := a.intend(ctx, c, row)
	if err != nil {
		return OrderStep{}, issueError(err)
	}
	a.hook("certificate/intended")
	placed, err := a.place(ctx, c, order, found, account)
	if err != nil {
		return OrderStep{}, a.forget(ctx, row, err)
	}
	a.hook("certificate/placed")
	step, err := a.recordOrder(ctx, c, order, placed, account)
	a.hook("certificate/recorded")
	return step, a.forget(ctx, row, err)
}

// intend writes the intent to order, or finds the open one. It abandons an intent of another
// account, or whose key can't be opened any more.
func (a *Certificates) intend(ctx context.Context, c tenant.Certificate, account tenant.IssuerAccount) (o tenant.CertificateOrder, found bool, err error) {
	open, err := a.Store.OpenOrder(ctx, c.CertificateID)
	if err != nil {
		return o, false, err
	}
	if open != nil {
		if open.AccountID == account.AccountID && slices.Contains(a.Sealing.Known(), open.KeyID) {
			return *open, true, nil
		}
		if err := a.Store.AbandonOrder(ctx, open.OrderID, tenant.IssueGone.Reason(), "its key or its account is not known any more"); err != nil {
			return o, false, err
		}
	}
	o = tenant.CertificateOrder{OrderID: "ord-" + rand.Text()[:20], CertificateID: c.CertificateID, AccountID: account.AccountID}
	if c.Directory == a.Authority.Directory() && c.Version > 0 {
		chain, err := a.Store.CertificateChain(ctx, c.CertificateID)
		if err != nil {
			return o, false, err
		}
		if o.Replaces, err = a.Authority.Replaces(chain); err != nil {
			return o, false, err
		}
	}
	if err := a.sign(&o, c); err != nil {
		return o, false, err
	}
	o, err = a.Store.BeginOrder(ctx, o, a.Settings.Limits.Charges(a.Authority.Directory(), account.Name, c.Names, o.Replaces != ""))
	return o, false, err
}

// sign makes an order's key, has it sign the request, and seals it. Nothing reads it again
// here.
func (a *Certificates) sign(o *tenant.CertificateOrder, c tenant.Certificate) error {
	key, text, err := newKey()
	if err != nil {
		return fmt.Errorf("key of %s: %w", c.CertificateID, err)
	}
	if o.CSR, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: c.Names}, key); err != nil {
		return fmt.Errorf("request of %s: %w", c.CertificateID, err)
	}
	o.SealedKey, o.KeyID, err = a.Sealing.Seal(tenant.CertificateKeyFor(c.CertificateID), text)
	return err
}

// newKey makes a key, which text is as PEM.
func newKey() (key *ecdsa.PrivateKey, text []byte, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

// account reads the account at the authority, and registers it if that is still to be done.
func (a *Certificates) account(ctx context.Context) (out tenant.AuthorityAccount, row tenant.IssuerAccount, err error) {
	id := tenant.IssuerAccountID(a.Authority.Directory(), a.Settings.Account)
	kept, err := a.Store.IssuerAccount(ctx, id)
	if err != nil {
		return out, row, err
	}
	if kept == nil {
		_, text, err := newKey()
		if err != nil {
			return out, row, fmt.Errorf("key of account %s: %w", id, err)
		}
		row = tenant.IssuerAccount{AccountID: id, Directory: a.Authority.Directory(), Name: a.Settings.Account, Contact: a.Settings.Contact}
		if row.SealedKey, row.KeyID, err = a.Keys.Seal(ctx, tenant.AccountKeyFor(id), text); err != nil {
			return out, row, err
		}
		if row, err = a.Store.PutIssuerAccount(ctx, row); err != nil {
			return out, row, err
		}
		kept = &row
	}
	row = *kept
	a.hook("certificate/account-kept")
	key, err := a.accountKey(ctx, row)
	if err != nil {
		return out, row, err
	}
	if row.Location != "" {
		return tenant.AuthorityAccount{Location: row.Location, OrdersURL: row.OrdersURL, Key: key}, row, nil
	}
	if out, err = a.Authority.Register(ctx, key, a.Settings.Contact); err != nil {
		return out, row, err
	}
	a.hook("certificate/registered")
	return out, row, a.Store.IssuerAccountRegistered(ctx, id, out.Location, out.OrdersURL, a.Settings.Contact)
}

// accountKey opens an account's key. A key sealed by an earlier master key is sealed again, so that
// a rotation ends by itself.
func (a *Certificates) accountKey(ctx context.Context, row tenant.IssuerAccount) (crypto.Signer, error) {
	text, err := a.Keys.Open(tenant.AccountKeyFor(row.AccountID), row.KeyID, row.SealedKey)
	if err != nil {
		return nil, &tenant.IssueError{Class: tenant.IssueSealed, Message: "the key of the account at " + row.Directory +
			" was sealed under a master key that is not known here: add that one to PREGO_MASTER_KEY_EARLIER, or name another account with PREGO_ACME_ACCOUNT"}
	}
	now := row
	if now.SealedKey, now.KeyID, err = a.Keys.Reseal(ctx, tenant.AccountKeyFor(row.AccountID), row.KeyID, row.SealedKey); err != nil {
		return nil, err
	}
	if now.KeyID != row.KeyID {
		if err := a.Store.ResealIssuerAccount(ctx, row, now); err != nil {
			return nil, err
		}
	}
	if block, _ := pem.Decode(text); block != nil {
		key, _ := x509.ParsePKCS8PrivateKey(block.Bytes) // nil if it can't be read
		if signer, ok := key.(crypto.Signer); ok {
			return signer, nil
		}
	}
	return nil, fmt.Errorf("the key of account %s is damaged", row.AccountID)
}

// forget makes the next attempt register again when the authority does not know the account any
// more.
func (a *Certificates) forget(ctx context.Context, row tenant.IssuerAccount, err error) error {
	if err != nil && tenant.ClassOfIssue(err) == tenant.IssueAccount {
		if e := a.Store.IssuerAccountRegistered(ctx, row.AccountID, "", "", row.Contact); e != nil {
			return e
		}
	}
	return issueError(err)
}

// place gets the authority's view of an order, and lets it have the order first if need be.
func (a *Certificates) place(ctx context.Context, c tenant.Certificate, o tenant.CertificateOrder, found bool, account tenant.AuthorityAccount) (tenant.AuthorityOrder, error) {
	if o.Location != "" {
		return a.Authority.Order(ctx, account, o.Location)
	}
	if found {
		// An earlier attempt may have ended after the authority had it.
		known, err := a.Store.OrderLocations(ctx, o.AccountID, c.Names)
		if err != nil {
			return tenant.AuthorityOrder{}, err
		}
		placed, ok, err := a.Authority.Find(ctx, account, c.Names, known)
		if err != nil || ok {
			return placed, err
		}
	}
	if c.Failures > 0 {
		// An authority refuses an order that names a certificate which it does not know (RFC 9773 §5).
		o.Replaces = ""
	}
	return a.Authority.Place(ctx, account, c.Names, o.Replaces)
}

// recordOrder writes the authority's state of an order, and the challenges of names that it
// has not verified yet.
func (a *Certificates) recordOrder(ctx context.Context, c tenant.Certificate, o tenant.CertificateOrder, placed tenant.AuthorityOrder, account tenant.AuthorityAccount) (OrderStep, error) {
	o.Location, o.FinalizeURL, o.State = placed.Location, placed.FinalizeURL, placed.State
	if !placed.Expires.IsZero() {
		o.ExpiresAt = &placed.Expires
	}
	step := OrderStep{OrderID: o.OrderID, State: placed.State, Again: placed.RetryAfter}
	if placed.State == tenant.OrderFailed {
		return step, a.failed(ctx, c, placed, account)
	}
	if placed.State == tenant.OrderValid {
		o.State = tenant.OrderProcessing // until its certificate is stored
	}
	var show []tenant.CertificateChallenge
	if placed.State == tenant.OrderPending {
		for _, url := range placed.Authz {
			z, err := a.Authority.Authorization(ctx, account, url, c.Challenge)
			if err != nil {
				return step, err
			}
			if z.Problem != nil && !z.Valid && !z.Pending {
				return step, z.Problem
			}
			if z.Pending {
				show = append(show, tenant.CertificateChallenge{
					OrderID: o.OrderID, AuthzURL: url, URL: z.ChallengeURL, Kind: c.Challenge, Name: z.Name, Token: z.Token, Answer: z.Answer,
				})
			}
		}
	}
	step.Left = len(show)
	return step, a.Store.OrderPlaced(ctx, o, show)
}

// failed returns why an order became invalid, with the name if the authority reports it.
func (a *Certificates) failed(ctx context.Context, c tenant.Certificate, placed tenant.AuthorityOrder, account tenant.AuthorityAccount) error {
	for _, url := range placed.Authz {
		z, err := a.Authority.Authorization(ctx, account, url, c.Challenge)
		if err == nil && z.Problem != nil && !z.Valid {
			return z.Problem
		}
	}
	if placed.Problem != nil {
		return placed.Problem
	}
	return &tenant.IssueError{Class: tenant.IssueGone, Message: "the order is no longer valid"}
}

// ShowChallenges lets the answers of an order be seen: TXT records are made. Over HTTP the
// rows are enough, which edges follow.
func (a *Certificates) ShowChallenges(ctx context.Context, in OrderRef) error {
	live, err := a.Store.LiveChallenges(ctx, in.OrderID)
	if err != nil {
		return issueError(err)
	}
	for _, c := range live {
		if c.Kind != tenant.ChallengeDNS {
			continue
		}
		if a.DNS == nil {
			return issueError(&tenant.IssueError{Class: tenant.IssueNotServed, Message: "no DNS zone is configured, which " + c.TXTName() + " would be made in"})
		}
		if err := a.DNS.AddTXT(ctx, c.TXTName(), c.Answer); err != nil {
			return dnsError("make "+c.TXTName(), err)
		}
		a.hook("certificate/shown")
	}
	return nil
}

// ServedStep is whether an order's answers can be seen.
type ServedStep struct {
	Served  bool   `json:"served"`
	Message string `json:"message,omitempty"` // why not
}

// LookAtChallenges looks for the answers of an order where the authority will: no attempt of
// the authority is spent on what can't be seen.
func (a *Certificates) LookAtChallenges(ctx context.Context, in OrderRef) (ServedStep, error) {
	live, err := a.Store.LiveChallenges(ctx, in.OrderID)
	if err != nil {
		return ServedStep{}, issueError(err)
	}
	var overHTTP []string
	for _, c := range live {
		if c.ServedAt == nil && c.Kind == tenant.ChallengeHTTP {
			overHTTP = append(overHTTP, c.Name)
		}
	}
	if len(overHTTP) > 0 && a.EdgesServe != nil {
		if ok, err := a.EdgesServe(ctx, overHTTP); err != nil || !ok {
			return ServedStep{Message: "not all edges have the answer yet"}, err
		}
	}
	for _, c := range live {
		if c.ServedAt != nil {
			continue
		}
		if why := a.visible(ctx, c); why != "" {
			return ServedStep{Message: why}, nil
		}
		if err := a.Store.ChallengeServed(ctx, c); err != nil {
			return ServedStep{}, err
		}
	}
	a.hook("certificate/served")
	return ServedStep{Served: true}, nil
}

// visible returns why an answer can't be seen, "" if it can.
func (a *Certificates) visible(ctx context.Context, c tenant.CertificateChallenge) string {
	if c.Kind == tenant.ChallengeDNS {
		ok, err := a.DNS.TXTVisible(ctx, c.TXTName(), c.Answer)
		switch {
		case err != nil:
			return "the TXT record of " + c.TXTName() + " can't be looked up: " + prego.Redact(err.Error())
		case !ok:
			return "the name servers don't have the TXT record of " + c.TXTName() + " yet"
		}
		return ""
	}
	got, err := a.Probe.Answer(ctx, c.Name, c.Token)
	switch {
	case err != nil:
		return prego.Redact(err.Error())
	case got != c.Answer:
		return "http://" + c.Name + "/.well-known/acme-challenge/ does not lead to this installation"
	}
	return ""
}

// AcceptChallenges lets the authority look.
func (a *Certificates) AcceptChallenges(ctx context.Context, in OrderRef) error {
	account, row, err := a.account(ctx)
	if err != nil {
		return issueError(err)
	}
	live, err := a.Store.LiveChallenges(ctx, in.OrderID)
	if err != nil {
		return issueError(err)
	}
	for _, c := range live {
		if c.AcceptedAt != nil {
			continue
		}
		a.hook("certificate/accepting")
		if err := a.Authority.Accept(ctx, account, c.URL); err != nil {
			return a.forget(ctx, row, err)
		}
		a.hook("certificate/accepted")
		if err := a.Store.ChallengeAccepted(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// ReadOrder asks the authority how far an order is.
func (a *Certificates) ReadOrder(ctx context.Context, in OrderRef) (OrderStep, error) {
	return a.withOrder(ctx, in, nil)
}

// FinalizeOrder hands in the request of a ready order. Doing it again returns what became of
// the first time.
func (a *Certificates) FinalizeOrder(ctx context.Context, in OrderRef) (OrderStep, error) {
	return a.withOrder(ctx, in, func(account tenant.AuthorityAccount, now tenant.AuthorityOrder, csr []byte) (tenant.AuthorityOrder, error) {
		a.hook("certificate/finalizing")
		now, err := a.Authority.Finalize(ctx, account, now, csr)
		a.hook("certificate/finalized")
		return now, err
	})
}

// withOrder reads an order at the authority; ready, unless it is nil, is for one that is ready.
func (a *Certificates) withOrder(
	ctx context.Context, in OrderRef,
	ready func(tenant.AuthorityAccount, tenant.AuthorityOrder, []byte) (tenant.AuthorityOrder, error),
) (OrderStep, error) {
	c, o, account, row, err := a.order(ctx, in)
	if err != nil {
		return OrderStep{}, issueError(err)
	}
	switch {
	case o.State == tenant.OrderValid:
		return OrderStep{OrderID: o.OrderID, State: o.State}, nil
	case o.EndedAt != nil: // its name was given up
		return OrderStep{}, permanentError(ErrTypeSuperseded, "the order "+o.OrderID+" has ended: "+o.Message, nil)
	}
	now, err := a.Authority.Order(ctx, account, o.Location)
	if err == nil && ready != nil && now.State == tenant.OrderReady {
		now, err = ready(account, now, o.CSR)
	}
	if err != nil {
		return OrderStep{}, a.forget(ctx, row, err)
	}
	if now.State == tenant.OrderFailed {
		return OrderStep{}, a.forget(ctx, row, a.failed(ctx, c, now, account))
	}
	return OrderStep{OrderID: o.OrderID, State: now.State, Again: now.RetryAfter}, nil
}

func (a *Certificates) order(ctx context.Context, in OrderRef) (c tenant.Certificate, o tenant.CertificateOrder, account tenant.AuthorityAccount, row tenant.IssuerAccount, err error) {
	if c, err = a.Store.GetCertificate(ctx, in.CertificateID); err != nil {
		return c, o, account, row, err
	}
	if o, err = a.Store.GetCertificateOrder(ctx, in.OrderID); err != nil {
		return c, o, account, row, err
	}
	account, row, err = a.account(ctx)
	return c, o, account, row, err
}

// StoreCertificate downloads the issued certificate, checks it, and stores it: edges serve it from
// then on.
func (a *Certificates) StoreCertificate(ctx context.Context, in OrderRef) error {
	c, o, account, row, err := a.order(ctx, in)
	if err != nil {
		return issueError(err)
	}
	if o.State == tenant.OrderValid {
		return nil
	}
	now, err := a.Authority.Order(ctx, account, o.Location)
	if err != nil {
		return a.forget(ctx, row, err)
	}
	if now.State != tenant.OrderValid {
		return issueError(&tenant.IssueError{Class: tenant.IssueServer, Message: "the order became " + string(now.State) + " again"})
	}
	chain, err := a.Authority.Download(ctx, account, now.Certificate)
	if err != nil {
		return a.forget(ctx, row, err)
	}
	a.hook("certificate/downloaded")
	issued, err := CheckChain(chain, o.CSR, c.Names, a.Now())
	if err != nil {
		return issueError(err)
	}
	renew := tenant.RenewAt(issued.NotBefore, issued.NotAfter, issued.Serial)
	if err := a.Store.CertificateIssued(ctx, o, a.Authority.Directory(), issued, renew, a.Now().Add(a.Settings.AskEvery)); err != nil {
		return issueError(err)
	}
	a.hook("certificate/stored")
	a.Metrics.Attempts.WithLabelValues("issued").Inc()
	a.Log.Info("a certificate was issued", zap.Strings("names", c.Names), zap.String("certificate_id", string(c.CertificateID)),
		zap.Time("not_after", issued.NotAfter), zap.Time("renew_at", renew))
	return nil
}

// CheckChain checks what an authority issued: for the key and the names that were asked
// for, valid now, each certificate signed by the next. Whether its root is trusted is the
// visitors' matter.
func CheckChain(chainPEM, csr []byte, names []string, now time.Time) (tenant.IssuedCertificate, error) {
	bad := func(format string, args ...any) (tenant.IssuedCertificate, error) {
		return tenant.IssuedCertificate{}, &tenant.IssueError{Class: tenant.IssueServer, Message: "the authority issued something else: " + fmt.Sprintf(format, args...)}
	}
	var chain []*x509.Certificate
	var clean []byte
	for rest := chainPEM; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return bad("%v", err)
		}
		chain = append(chain, c)
		clean = append(clean, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	if len(chain) == 0 {
		return bad("no certificate")
	}
	leaf := chain[0]
	request, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return bad("the stored request: %v", err)
	}
	public, ok := leaf.PublicKey.(*ecdsa.PublicKey)
	if !ok || !public.Equal(request.PublicKey) {
		return bad("for another key")
	}
	if got, want := slices.Sorted(slices.Values(leaf.DNSNames)), slices.Sorted(slices.Values(names)); !slices.Equal(got, want) {
		return bad("for %s", strings.Join(got, ", "))
	}
	if now.Before(leaf.NotBefore.Add(-time.Minute)) || !now.Before(leaf.NotAfter) {
		return bad("valid from %s to %s", leaf.NotBefore.Format(time.RFC3339), leaf.NotAfter.Format(time.RFC3339))
	}
	for i := 1; i < len(chain); i++ {
		if err := chain[i-1].CheckSignatureFrom(chain[i]); err != nil {
			return bad("certificate %d of the chain is not signed by the next one: %v", i, err)
		}
	}
	sum := sha256.Sum256(clean)
	return tenant.IssuedCertificate{
		Chain: string(clean), Digest: hex.EncodeToString(sum[:]), Serial: leaf.SerialNumber.Text(16), Issuer: leaf.Issuer.String(),
		NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
	}, nil
}

// RemoveChallenges removes the challenge answers of a certificate's orders, including earlier ones.
func (a *Certificates) RemoveChallenges(ctx context.Context, in CertificateRef) error {
	left, err := a.shownChallenges(ctx, in.CertificateID)
	if err != nil {
		return err
	}
	for _, c := range left {
		if c.Kind == tenant.ChallengeDNS && a.DNS != nil {
			if err := a.DNS.RemoveTXT(ctx, c.TXTName(), c.Answer); err != nil {
				return dnsError("remove "+c.TXTName(), err)
			}
		}
		a.hook("certificate/removed")
		if err := a.Store.ChallengeRemoved(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// shownChallenges are the answers of all of a certificate's orders that may still be seen.
func (a *Certificates) shownChallenges(ctx context.Context, id prego.CertificateID) ([]tenant.CertificateChallenge, error) {
	left, err := a.Store.LeftChallenges(ctx, id)
	if err != nil {
		return nil, err
	}
	open, err := a.Store.OpenOrder(ctx, id)
	if err != nil || open == nil {
		return left, err
	}
	live, err := a.Store.LiveChallenges(ctx, open.OrderID)
	if prego.CodeOf(err) == prego.CodeCertificateNotFound { // it has ended meanwhile
		return a.Store.LeftChallenges(ctx, id)
	}
	return append(left, live...), err
}

// IssueOutcome is how an attempt ended without a certificate.
type IssueOutcome struct {
	CertificateID prego.CertificateID `json:"certificate_id"`
	OrderID       string              `json:"order_id,omitempty"`
	Class         tenant.IssueClass   `json:"class"`
	Message       string              `json:"message"`
	Name          string              `json:"name,omitempty"` // whose validation failed
	RetryAfter    time.Duration       `json:"retry_after,omitempty"`
	Failures      int                 `json:"failures,omitempty"` // before this one
}

// IssueFailed records why an attempt failed, charges it to the authority's budget, and returns the
// time of the next one. A resumable order is kept.
func (a *Certificates) IssueFailed(ctx context.Context, in IssueOutcome) error {
	c, err := a.Store.GetCertificate(ctx, in.CertificateID)
	if err != nil {
		return issueError(err)
	}
	directory, account := a.Authority.Directory(), a.Settings.Account
	f := tenant.IssueFailure{
		CertificateID: in.CertificateID, OrderID: in.OrderID, Reason: in.Class.Reason(), Message: in.Message, Failures: in.Failures,
		Again: tenant.IssueAgain(in.Class, in.Failures+1, in.RetryAfter, string(in.CertificateID)),
	}
	switch in.Class {
	case tenant.IssueUnauthorized, tenant.IssueCAA, tenant.IssueDNS, tenant.IssueConnection:
		name := in.Name
		if name == "" {
			name = c.Names[0]
		}
		f.EndOrder = in.OrderID != ""
		f.Counted = &tenant.IssueCharge{Bucket: tenant.FailureBucket(directory, name), Limit: a.Settings.Limits.Failures}
	case tenant.IssueRateLimited:
		if in.RetryAfter > 0 {
			if f.Blocked = a.blocked(directory, account, c.Names, in.Message); f.Blocked.Limit.Most == 0 {
				f.Blocked = nil // not limited here
			}
			f.BlockedFor = in.RetryAfter
		}
	case tenant.IssueGone, tenant.IssueMalformed, tenant.IssueRejected, tenant.IssueAccount:
		f.EndOrder = in.OrderID != ""
	case tenant.IssueBudget, tenant.IssueNotServed, tenant.IssueServer, tenant.IssueSealed, tenant.IssueInternal:
	}
	recorded, err := a.Store.IssueFailed(ctx, f)
	if err != nil || !recorded {
		return err
	}
	a.Metrics.Attempts.WithLabelValues(string(in.Class)).Inc()
	a.Log.Warn("a certificate was not issued", zap.Strings("names", c.Names), zap.String("certificate_id", string(c.CertificateID)),
		zap.String("class", string(in.Class)), zap.String("error", prego.Redact(in.Message)), zap.Duration("again_in", f.Again))
	return nil
}

// blocked is the bucket that an authority's refusal fills: the domain it names, or else the
// account's orders.
func (a *Certificates) blocked(directory, account string, names []string, message string) *tenant.IssueCharge {
	for _, name := range names {
		if domain := tenant.RegisteredDomain(name); strings.Contains(message, domain) {
			return &tenant.IssueCharge{Bucket: tenant.DomainBucket(directory, domain), Limit: a.Settings.Limits.Domain}
		}
	}
	return &tenant.IssueCharge{Bucket: tenant.OrderBucket(directory, account), Limit: a.Settings.Limits.Orders}
}
