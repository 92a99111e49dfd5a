package world

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	// AuthorityDirectory is where the play's certificate authority begins.
	AuthorityDirectory = authorityURL + "/directory"
	authorityURL       = "https://acme.world"

	// certificateLife is so short that some are renewed within a play, at two thirds of it.
	certificateLife = 24 * time.Minute
	// The authority's limits, as newPlayed (app/world_test.go) configures them in the control plane. The authority
	// allows three times as much: orders may come some time after they are accounted for, and together.
	authorityOrders, authorityOrdersPer     = 2, 8 * time.Minute
	authorityFailures, authorityFailuresPer = 5, time.Hour
)

// authority implements ACME (RFC 8555) in memory: it checks signatures, nonces, and the answers to its challenges,
// which it fetches itself. Statuses, problems and documents follow the RFC; a pending order for the same names is
// returned again, as Let's Encrypt does (github.com/letsencrypt/boulder, ra.NewOrder).
type authority struct {
	w       *World
	key     *ecdsa.PrivateKey
	ca      *x509.Certificate
	mu      sync.Mutex
	serial  int64
	nonces  map[string]bool
	account []*acmeAccount
	orders  []*acmeOrder
	authz   []*acmeAuthz
	certs   [][]byte // chains
	ordered []time.Time
	failed  map[string][]time.Time // validations, by name
}

type acmeAccount struct{ key jose.JSONWebKey }

type acmeOrder struct {
	account     int
	names       []string
	authz       []int
	replaces    string
	state       string // pending and ready follow from its authorizations
	expires     time.Time
	csr         *x509.CertificateRequest
	issue       time.Time
	certificate int
}

type acmeAuthz struct {
	name    string
	wild    bool
	state   string
	asked   bool // a lookup is under way
	problem map[string]any
	token   string
}

func newAuthority(w *World) *authority {
	a := &authority{w: w, nonces: map[string]bool{}, failed: map[string][]time.Time{}}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		panic("world: " + err.Error())
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "world"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(1000 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: []byte{1, 2, 3, 4},
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, a.key.Public(), a.key)
	if err != nil {
		panic("world: " + err.Error())
	}
	if a.ca, err = x509.ParseCertificate(der); err != nil {
		panic("world: " + err.Error())
	}
	return a
}

// Outside is how a process reaches the authority, and tenants' names on port 80.
func (l *Life) Outside() http.RoundTripper { return outside{l} }

type outside struct{ l *Life }

func (o outside) RoundTrip(r *http.Request) (*http.Response, error) {
	w, ctx := o.l.w, r.Context()
	if !strings.HasPrefix(r.URL.String(), authorityURL) {
		return o.probe(r)
	}
	rec := httptest.NewRecorder()
	answer := func() (*http.Response, error) {
		resp := rec.Result()
		resp.Request = r
		if r.Method == http.MethodHead {
			resp.Body = http.NoBody
		}
		return resp, nil
	}
	what := "acme " + r.Method + " " + r.URL.Path
	if r.URL.Path == "/directory" {
		// The client keeps it for all that is in this program, also from one play to the next: whether it is asked for
		// must change nothing.
		w.authority.directory(rec)
		return answer()
	}
	if err := o.l.step(ctx, what); err != nil {
		return nil, err
	}
	body, err := sent(r)
	if err != nil {
		return nil, err
	}
	f, where := w.Faults, o.l.actor(ctx)+" "+what
	switch {
	case f.hit("acme_refused", where):
		return nil, errors.New("connection refused")
	case f.hit("acme_500", where):
		refuseACME(rec, http.StatusInternalServerError, "serverInternal", "world")
		return answer()
	case r.Method == http.MethodPost && f.hit("acme_nonce", where):
		w.authority.mu.Lock()
		clear(w.authority.nonces)
		w.authority.mu.Unlock()
	}
	w.authority.serve(rec, r, body)
	if f.hit("acme_lost", where) {
		return nil, errLost
	}
	if err := o.l.step(ctx, "acme answers "+what[5:]); err != nil {
		return nil, err
	}
	return answer()
}

// probe looks at what a name answers on port 80.
func (o outside) probe(r *http.Request) (*http.Response, error) {
	what := "GET " + r.URL.String()
	if err := o.l.step(r.Context(), what[:min(len(what), 60)]); err != nil {
		return nil, err
	}
	if r.Context().Err() != nil {
		return nil, r.Context().Err()
	}
	if o.l.w.Faults.hit("resolver_fails", o.l.actor(r.Context())+" "+what) {
		return nil, errors.New("i/o timeout")
	}
	status, body, err := o.l.w.names.browse(r.URL.Hostname(), r.URL.Path)
	if err != nil {
		return nil, err
	}
	rec := httptest.NewRecorder()
	rec.WriteHeader(status)
	_, _ = rec.WriteString(body)
	resp := rec.Result()
	resp.Request = r
	return resp, nil
}

func writeACME(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func refuseACME(w http.ResponseWriter, status int, typ, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(problemACME(status, typ, detail))
}

func problemACME(status int, typ, detail string) map[string]any {
	return map[string]any{"type": "urn:ietf:params:acme:error:" + typ, "detail": detail, "status": status}
}

func (a *authority) directory(w http.ResponseWriter) {
	writeACME(w, http.StatusOK, map[string]any{
		"newNonce":   authorityURL + "/new-nonce",
		"newAccount": authorityURL + "/new-account", "newOrder": authorityURL + "/new-order",
	})
}

// signedBy verifies the signature of a request (RFC 8555 §6.2 to §6.5) and returns its account; nil after it has
// answered.
func (a *authority) signedBy(w http.ResponseWriter, r *http.Request, body []byte) (payload []byte, key *jose.JSONWebKey,
	account int,
) {
	bad := func(typ, detail string) ([]byte, *jose.JSONWebKey, int) {
		refuseACME(w, http.StatusBadRequest, typ, detail)
		return nil, nil, 0
	}
	jws, err := jose.ParseSignedJSON(string(body), []jose.SignatureAlgorithm{jose.ES256})
	if err != nil || len(jws.Signatures) != 1 {
		return bad("malformed", fmt.Sprintf("the JWS: %v", err))
	}
	head := jws.Signatures[0].Protected
	if url, _ := head.ExtraHeaders["url"].(string); url != r.URL.String() {
		return bad("unauthorized", "the JWS is for "+url)
	}
	if !a.nonces[head.Nonce] {
		return bad("badNonce", "the nonce is not known")
	}
	delete(a.nonces, head.Nonce)
	if r.URL.Path == "/new-account" {
		if key = head.JSONWebKey; key == nil || head.KeyID != "" {
			return bad("malformed", "a new account is signed with its key")
		}
	} else {
		n, err := strconv.Atoi(strings.TrimPrefix(head.KeyID, authorityURL+"/account/"))
		if err != nil || n < 1 || n > len(a.account) {
			return bad("accountDoesNotExist", "there is no account "+head.KeyID)
		}
		account, key = n, &a.account[n-1].key
	}
	if payload, err = jws.Verify(key); err != nil {
		return bad("malformed", "the signature is wrong")
	}
	return payload, key, account
}

func (a *authority) serve(w http.ResponseWriter, r *http.Request, body []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serial++
	nonce := base64.RawURLEncoding.EncodeToString([]byte("nonce-" + strconv.FormatInt(a.serial, 10)))
	a.nonces[nonce] = true
	w.Header().Set("Replay-Nonce", nonce)
	if r.URL.Path == "/new-nonce" {
		w.WriteHeader(http.StatusOK)
		return
	}
	payload, key, account := a.signedBy(w, r, body)
	if key == nil {
		return
	}
	kind, id, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	id, _, _ = strings.Cut(id, "/")
	n, _ := strconv.Atoi(id)
	switch {
	case kind == "new-account":
		a.newAccount(w, *key)
	case kind == "new-order":
		a.newOrder(w, account, payload)
	case kind == "orders" && n == account:
		urls := []string{}
		for i, o := range a.orders {
			if o.account == account && a.stateOf(o) != "invalid" {
				urls = append(urls, fmt.Sprintf("%s/order/%d", authorityURL, i+1))
			}
		}
		writeACME(w, http.StatusOK, map[string]any{"orders": urls})
	case kind == "order" && 1 <= n && n <= len(a.orders) && a.orders[n-1].account == account:
		a.order(w, http.StatusOK, n)
	case kind == "finalize" && 1 <= n && n <= len(a.orders) && a.orders[n-1].account == account:
		a.finalize(w, n, payload)
	case kind == "authz" && 1 <= n && n <= len(a.authz):
		writeACME(w, http.StatusOK, a.authorization(n))
	case kind == "challenge" && 1 <= n && n <= len(a.authz):
		a.challenge(w, n, account)
	case kind == "cert" && 1 <= n && n <= len(a.certs):
		w.Header().Set("Content-Type", "application/pem-certificate-chain")
		_, _ = w.Write(a.certs[n-1])
	default:
		a.w.violationf("the world: the authority has no %s", r.URL.Path)
		refuseACME(w, http.StatusNotFound, "malformed", "there is no "+r.URL.Path)
	}
}

func (a *authority) newAccount(w http.ResponseWriter, key jose.JSONWebKey) {
	status, n := http.StatusOK, 0
	for i, there := range a.account {
		if is, ok := there.key.Key.(*ecdsa.PublicKey); ok && is.Equal(key.Key) {
			n = i + 1
		}
	}
	if n == 0 {
		a.account = append(a.account, &acmeAccount{key: key})
		status, n = http.StatusCreated, len(a.account)
	}
	w.Header().Set("Location", fmt.Sprintf("%s/account/%d", authorityURL, n))
	writeACME(w, status, map[string]any{"status": "valid", "orders": fmt.Sprintf("%s/orders/%d", authorityURL, n)})
}

func (a *authority) newOrder(w http.ResponseWriter, account int, payload []byte) {
	var in struct {
		Identifiers []struct{ Type, Value string }
		Replaces    string
	}
	if err := json.Unmarshal(payload, &in); err != nil || len(in.Identifiers) == 0 {
		refuseACME(w, http.StatusBadRequest, "malformed", "an order has names")
		return
	}
	o := &acmeOrder{account: account, replaces: in.Replaces, expires: time.Now().Add(time.Hour)}
	for _, id := range in.Identifiers {
		o.names = append(o.names, id.Value)
	}
	slices.Sort(o.names)
	for i, there := range a.orders {
		if state := a.stateOf(there); there.account == account && slices.Equal(there.names, o.names) &&
			(state == "pending" || state == "ready") {
			a.w.Met("an order was asked for twice, and placed once")
			a.order(w, http.StatusCreated, i+1)
			return
		}
	}
	if o.replaces == "" {
		recent := func(at time.Time) bool { return time.Since(at) < authorityOrdersPer }
		if a.ordered = slices.DeleteFunc(a.ordered,
			func(at time.Time) bool { return !recent(at) }); len(a.ordered) > 3*authorityOrders {
			a.w.violationf("I3 the authority's limit of orders is kept: %v is one more", o.names)
		}
		a.ordered = append(a.ordered, time.Now())
	}
	for _, name := range o.names {
		bare := strings.TrimPrefix(name, "*.")
		a.authz = append(a.authz, &acmeAuthz{
			name: bare, wild: bare != name, state: "pending",
			token: fmt.Sprintf("token-%d", len(a.authz)+1),
		})
		o.authz = append(o.authz, len(a.authz))
	}
	a.orders = append(a.orders, o)
	a.order(w, http.StatusCreated, len(a.orders))
}

// stateOf is an order's state, which its authorizations and the clock decide.
func (a *authority) stateOf(o *acmeOrder) string {
	if o.state == "processing" && !time.Now().Before(o.issue) {
		a.issue(o)
	}
	if o.state != "" {
		return o.state
	}
	if time.Now().After(o.expires) {
		return "invalid"
	}
	state := "ready"
	for _, n := range o.authz {
		switch a.authz[n-1].state {
		case "invalid":
			return "invalid"
		case "pending":
			state = "pending"
		}
	}
	return state
}

func (a *authority) order(w http.ResponseWriter, status, n int) {
	o := a.orders[n-1]
	out := map[string]any{
		"status": a.stateOf(o), "expires": o.expires.UTC().Format(time.RFC3339),
		"finalize": fmt.Sprintf("%s/finalize/%d", authorityURL, n),
	}
	var ids []map[string]string
	var authz []string
	for i, name := range o.names {
		ids = append(ids, map[string]string{"type": "dns", "value": name})
		authz = append(authz, fmt.Sprintf("%s/authz/%d", authorityURL, o.authz[i]))
	}
	out["identifiers"], out["authorizations"] = ids, authz
	if o.certificate > 0 {
		out["certificate"] = fmt.Sprintf("%s/cert/%d", authorityURL, o.certificate)
	}
	w.Header().Set("Location", fmt.Sprintf("%s/order/%d", authorityURL, n))
	writeACME(w, status, out)
}

func (a *authority) authorization(n int) map[string]any {
	z := a.authz[n-1]
	kinds := []string{"dns-01", "http-01"}
	if z.wild {
		kinds = kinds[:1]
	}
	var challenges []map[string]any
	for _, kind := range kinds {
		c := map[string]any{
			"type": kind, "url": fmt.Sprintf("%s/challenge/%d/%s", authorityURL, n, kind),
			"status": z.state, "token": z.token,
		}
		if z.problem != nil {
			c["error"] = z.problem
		}
		challenges = append(challenges, c)
	}
	return map[string]any{
		"status": z.state, "identifier": map[string]string{"type": "dns", "value": z.name},
		"wildcard": z.wild, "challenges": challenges,
	}
}

// challenge has the answer looked for, once.
func (a *authority) challenge(w http.ResponseWriter, n, account int) {
	kind, z := "http-01", a.authz[n-1]
	if z.wild {
		kind = "dns-01"
	}
	if z.state == "pending" && !z.asked {
		z.asked = true
		a.w.ending.Add(1)
		go func() {
			defer a.w.ending.Done()
			time.Sleep(2 * time.Second)
			a.w.Schedule.yield(nil, "authority", "validates "+z.name)
			a.validate(z, kind, account)
		}()
	}
	writeACME(w, http.StatusOK, map[string]any{
		"type": kind,
		"url":  fmt.Sprintf("%s/challenge/%d/%s", authorityURL, n, kind), "status": z.state, "token": z.token,
	})
}

// validate looks for the answer where RFC 8555 §8.3 and §8.4 have it.
func (a *authority) validate(z *acmeAuthz, kind string, account int) {
	a.mu.Lock()
	thumb, err := a.account[account-1].key.Thumbprint(crypto.SHA256)
	a.mu.Unlock()
	if err != nil {
		panic("world: " + err.Error())
	}
	want := z.token + "." + base64.RawURLEncoding.EncodeToString(thumb)
	var problem map[string]any
	if kind == "dns-01" {
		sum := sha256.Sum256([]byte(want))
		if texts := a.w.names.texts("_acme-challenge." + z.name); !slices.Contains(texts,
			base64.RawURLEncoding.EncodeToString(sum[:])) {
			problem = problemACME(http.StatusForbidden, "unauthorized",
				fmt.Sprintf("the TXT record of %s is %v", z.name, texts))
		}
	} else {
		// It looks from several places, and some resolve another address.
		for range 2 {
			status, body, err := a.w.names.browse(z.name, "/.well-known/acme-challenge/"+z.token)
			switch {
			case err != nil:
				problem = problemACME(http.StatusBadRequest, "connection", err.Error())
			case status != http.StatusOK || strings.TrimSpace(body) != want:
				problem = problemACME(http.StatusForbidden, "unauthorized",
					fmt.Sprintf("%s answers %d", z.name, status))
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if problem == nil {
		z.state = "valid"
		a.w.Met("the authority validated " + kind)
		return
	}
	z.state, z.problem = "invalid", problem
	a.w.Met("the authority did not find an answer")
	a.w.Schedule.Sayf("authority: %s is not validated: %v", z.name, problem["detail"])
	a.failed[z.name] = slices.DeleteFunc(append(a.failed[z.name], time.Now()),
		func(at time.Time) bool { return time.Since(at) > authorityFailuresPer })
	if len(a.failed[z.name]) > 2*authorityFailures {
		a.w.violationf("I3 the authority's limit of failed validations is kept: %s fails once more", z.name)
	}
}

func (a *authority) finalize(w http.ResponseWriter, n int, payload []byte) {
	o := a.orders[n-1]
	if state := a.stateOf(o); state != "ready" {
		refuseACME(w, http.StatusForbidden, "orderNotReady", "the order is "+state)
		return
	}
	var in struct{ CSR string }
	_ = json.Unmarshal(payload, &in)
	der, err := base64.RawURLEncoding.DecodeString(in.CSR)
	if err == nil {
		o.csr, err = x509.ParseCertificateRequest(der)
	}
	if err == nil {
		err = o.csr.CheckSignature()
	}
	if err != nil || !slices.Equal(slices.Sorted(slices.Values(o.csr.DNSNames)), o.names) {
		refuseACME(w, http.StatusBadRequest, "badCSR", fmt.Sprintf("the request: %v", err))
		return
	}
	o.state, o.issue = "processing", time.Now().Add(3*time.Second)
	a.order(w, http.StatusOK, n)
}

func (a *authority) issue(o *acmeOrder) {
	a.serial++
	now := time.Now().UTC().Truncate(time.Second)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(1000 + a.serial), DNSNames: o.names, NotBefore: now,
		NotAfter: now.Add(certificateLife), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.ca, o.csr.PublicKey, a.key)
	if err != nil {
		panic("world: " + err.Error())
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.ca.Raw})...)
	a.certs = append(a.certs, chain)
	o.state, o.certificate = "valid", len(a.certs)
	a.w.Met("the authority issued a certificate")
	if o.replaces != "" {
		a.w.Met("a certificate was renewed")
	}
}
