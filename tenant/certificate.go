package tenant

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/prego/prego"
)

// CertificateStatus is the status of a certificate.
type CertificateStatus string

// The statuses. A certificate that can't be renewed stays active until its end: Reason says why.
const (
	CertificatePending CertificateStatus = "pending" // none was issued yet
	CertificateActive  CertificateStatus = "active"  // edges serve it until its end
	CertificateFailed  CertificateStatus = "failed"  // none was issued, and the last attempt failed
	CertificateRetired CertificateStatus = "retired" // no longer needed; its key is deleted
)

// ChallengeKind is how a name is shown to be ours (RFC 8555 §8).
type ChallengeKind string

// The kinds of challenges.
const (
	ChallengeDNS  ChallengeKind = "dns-01"  // a TXT record; the only one for a wildcard
	ChallengeHTTP ChallengeKind = "http-01" // an answer of the edges on port 80
)

// Certificate is a set of names, with the last certificate issued for them.
type Certificate struct {
	CertificateID prego.CertificateID
	Names         []string // sorted; a wildcard as "*.example.com"
	Challenge     ChallengeKind
	OrgID         *prego.OrgID    // nil for sites' own names
	TenantID      *prego.TenantID // nil for those and for routes
	Status        CertificateStatus
	Reason        prego.Reason // of the last attempt, if it failed
	Message       string
	Renews        bool       // false: its names were lost; it is served until its end
	Failures      int        // attempts that failed since the last success
	DueAt         *time.Time `json:"next_attempt_at"`
	Version       int64      // counts the issued certificates
	Directory     string
	Serial        string // hex
	Issuer        string
	NotBefore     *time.Time
	NotAfter      *time.Time
	AriURL        string `json:"explanation_url"` // the authority's explanation of an early renewal
	IssuedAt      *time.Time
	RetiredAt     *time.Time
	CreatedBy     string
	CreatedAt     time.Time
	UpdatedAt     time.Time
}

// WorkflowID is the id of its run.
func (c Certificate) WorkflowID() string { return CertificateWorkflowID(c.CertificateID) }

// CertificateWant is a needed certificate.
type CertificateWant struct {
	Names     []string
	Challenge ChallengeKind
	OrgID     *prego.OrgID
	TenantID  *prego.TenantID
}

// SiteCertificate is what a domain's sites share: they have one label below it. A
// certificate of each site would use up what an authority issues in a week for the
// domain, and its public log would list the customers.
func SiteCertificate(domain string) CertificateWant {
	return CertificateWant{Names: []string{"*." + domain}, Challenge: ChallengeDNS}
}

// HostCertificate is that of a customer's own name. Each name has its own: with several in
// one, the first that is lost would keep the others from being renewed, and each change
// would cost an order for all of them.
func HostCertificate(name string, org *prego.OrgID, tenantID *prego.TenantID) CertificateWant {
	return CertificateWant{Names: []string{name}, Challenge: ChallengeHTTP, OrgID: org, TenantID: tenantID}
}

// CertificateID is the id of a certificate for these names, in any order.
func CertificateID(names []string) prego.CertificateID {
	sorted := slices.Sorted(slices.Values(names))
	sum := sha256.Sum256([]byte(strings.Join(sorted, "\n")))
	return prego.CertificateID("crt-" + hex.EncodeToString(sum[:10]))
}

// CertificateWorkflowID is the id of the run that gets a certificate issued.
func CertificateWorkflowID(id prego.CertificateID) string { return "certificate/" + string(id) }

// CertificateSweepWorkflowID is the id of the run that starts due orders.
func CertificateSweepWorkflowID(environment string) string {
	return "certificate-sweep/" + environment + "/found"
}

// CoveredBy are the names, exact or a wildcard, under which a certificate for a host name
// may be listed.
func CoveredBy(name string) []string {
	if _, parent, ok := strings.Cut(name, "."); ok {
		return []string{name, "*." + parent}
	}
	return []string{name}
}

// ServedCertificate is a certificate as edges need it. The key is sealed for who hands it
// to them: see CertificateKey.
type ServedCertificate struct {
	CertificateID prego.CertificateID
	Version       int64
	Names         []string
	Chain         string // PEM, leaf first
	SealedKey     []byte
	KeyID         string
	Digest        string // hex SHA-256 of the chain's PEM, whose leaf names the key
	NotAfter      time.Time
}

// CertificateKeyFor is what a certificate's private key is sealed for.
func CertificateKeyFor(id prego.CertificateID) string { return "certificate/" + string(id) }

// ServedChallenge is an answer that edges give to an authority over HTTP, on port 80 at
// /.well-known/acme-challenge/ and the token.
type ServedChallenge struct {
	Name   string
	Token  string
	Answer string
}
