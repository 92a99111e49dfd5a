package sim

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

// Certificates: uploaded ones are checked, managed ones are issued by an authority of one
// certificate if their names are in a zone of the project.

func (s *Sim) certificates() *kind[schema.Certificate] {
	return &kind[schema.Certificate]{
		sim: s, one: "certificate", many: "certificates", title: "certificate", all: s.st.Certificates,
		show: func(c *schema.Certificate) item {
			out := *c
			out.UsedBy = s.usersOf(c.ID)
			return item{id: c.ID, name: c.Name, labels: c.Labels, created: c.Created, filters: map[string]string{"type": c.Type}, body: out}
		},
		name:   func(c *schema.Certificate) *string { return &c.Name },
		labels: func(c *schema.Certificate) *map[string]string { return &c.Labels },
		create: s.createCertificate,
		remove: func(c *schema.Certificate) (any, error) {
			if len(s.usersOf(c.ID)) > 0 {
				return nil, refused("resource_in_use", "certificate is used by a load balancer")
			}
			delete(s.st.Certificates, c.ID)
			return nil, nil
		},
		actions: map[string]action[schema.Certificate]{"retry": s.retryCertificate},
	}
}

// usersOf are the load balancers that use a certificate.
func (s *Sim) usersOf(id int64) []schema.CertificateUsedByRef {
	out := []schema.CertificateUsedByRef{}
	for _, b := range s.st.LoadBalancers {
		if slices.ContainsFunc(b.Services, func(v schema.LoadBalancerService) bool {
			return v.HTTP != nil && slices.Contains(v.HTTP.Certificates, id)
		}) {
			out = append(out, schema.CertificateUsedByRef{ID: b.ID, Type: "load_balancer"})
		}
	}
	return out
}

func (s *Sim) createCertificate(r *http.Request) (any, error) {
	var req schema.CertificateCreateRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if err := s.certificates().free(req.Name, 0); err != nil {
		return nil, err
	}
	labels, err := labelsOf(req.Labels)
	if err != nil {
		return nil, err
	}
	c := &schema.Certificate{Name: req.Name, Labels: labels, Type: req.Type, Created: time.Now().UTC(), DomainNames: []string{}, UsedBy: []schema.CertificateUsedByRef{}}
	switch req.Type {
	case "", "uploaded":
		c.Type = "uploaded"
		pair, err := tls.X509KeyPair([]byte(req.Certificate), []byte(req.PrivateKey))
		if err != nil {
			return nil, invalid("certificate and private key don't belong together, or are no PEM", "certificate")
		}
		c.ID = s.st.id()
		describe(c, req.Certificate, pair.Leaf)
		s.st.Certificates[c.ID] = c
		return map[string]any{"certificate": c, "action": nil}, nil
	case "managed":
		if len(req.DomainNames) == 0 {
			return nil, invalid("domain_names is required", "domain_names")
		}
		c.ID, c.DomainNames = s.st.id(), req.DomainNames
		s.st.Certificates[c.ID] = c
		a := s.issue(c)
		return map[string]any{"certificate": c, "action": a}, nil
	}
	return nil, invalid("type must be uploaded or managed", "type")
}

// describe fills in what a certificate says of itself.
func describe(c *schema.Certificate, chain string, leaf *x509.Certificate) {
	c.Certificate, c.NotValidBefore, c.NotValidAfter = chain, leaf.NotBefore.UTC(), leaf.NotAfter.UTC()
	c.DomainNames = append([]string{}, leaf.DNSNames...)
	pairs := make([]string, 0, sha256.Size)
	for _, b := range sha256.Sum256(leaf.Raw) {
		pairs = append(pairs, fmt.Sprintf("%02x", b))
	}
	c.Fingerprint = strings.Join(pairs, ":")
}

// issue starts the issuance of a managed certificate.
func (s *Sim) issue(c *schema.Certificate) schema.Action {
	c.Status = &schema.CertificateStatusRef{Issuance: "pending", Renewal: "unavailable"}
	return s.act("create_certificate", s.cfg.Profile.Action, func() *schema.ActionError {
		for _, name := range c.DomainNames {
			if !s.hasZoneOf(name) {
				const code, message = "dns_zone_not_found", "DNS zone not found"
				c.Status.Issuance, c.Status.Error = "failed", &schema.Error{Code: code, Message: message}
				return &schema.ActionError{Code: code, Message: message}
			}
		}
		chain, leaf, err := selfSigned(c.DomainNames)
		if err != nil {
			return &schema.ActionError{Code: "action_failed", Message: err.Error()}
		}
		names := c.DomainNames
		describe(c, chain, leaf)
		c.DomainNames = names
		c.Status = &schema.CertificateStatusRef{Issuance: "completed", Renewal: "scheduled"}
		return nil
	}, schema.ActionResourceReference{ID: c.ID, Type: "certificate"})
}

func (s *Sim) hasZoneOf(name string) bool {
	for _, z := range s.st.Zones {
		if name == z.Name || strings.HasSuffix(name, "."+z.Name) {
			return true
		}
	}
	return false
}

func selfSigned(names []string) (string, *x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", nil, err
	}
	now := time.Now().UTC()
	leaf := &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names, NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(0, 3, 0)}
	der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, key.Public(), key)
	if err != nil {
		return "", nil, err
	}
	leaf, err = x509.ParseCertificate(der)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), leaf, err
}

func (s *Sim) retryCertificate(_ *http.Request, c *schema.Certificate) (any, error) {
	if c.Status == nil || c.Status.Issuance != "failed" && c.Status.Renewal != "failed" {
		return nil, refused("unsupported_error", "only a managed certificate whose issuance or renewal failed can be tried again")
	}
	return map[string]any{"action": s.issue(c)}, nil
}
