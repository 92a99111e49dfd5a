package tenant

import (
	"errors"
	"fmt"
	"time"

	"github.com/prego/prego"
)

// OrderState is the state of an authority's order (RFC 8555 §7.1.6), as far as it
// is known.
type OrderState string

// The states of orders. The last two are final.
const (
	OrderIntended   OrderState = "intended" // the authority may not have it yet
	OrderPending    OrderState = "pending"  // the authority waits for challenges
	OrderReady      OrderState = "ready"    // it waits for the request
	OrderProcessing OrderState = "processing"
	OrderValid      OrderState = "valid" // its certificate is stored
	OrderFailed     OrderState = "failed"
)

// CertificateOrder is one attempt to get a certificate issued. Its key is sealed, and its
// request signed, before the authority is asked.
type CertificateOrder struct {
	OrderID       string
	CertificateID prego.CertificateID
	AccountID     string
	State         OrderState
	Location      string // "" until it is known that the authority has it
	FinalizeURL   string
	Replaces      string // the certificate that it renews (RFC 9773 §4.1)
	CSR           []byte // DER
	SealedKey     []byte
	KeyID         string
	Reason        prego.Reason
	Message       string
	ExpiresAt     *time.Time
	CreatedAt     time.Time
	EndedAt       *time.Time
}

// CertificateChallenge is how one name of an order is shown to be ours.
type CertificateChallenge struct {
	OrderID    string
	AuthzURL   string
	URL        string
	Kind       ChallengeKind
	Name       string // without the *. of a wildcard
	Token      string
	Answer     string // the body over HTTP, or the value of the TXT record
	ServedAt   *time.Time
	AcceptedAt *time.Time
	RemovedAt  *time.Time
	CreatedAt  time.Time
}

// TXTName is where a challenge's TXT record belongs.
func (c CertificateChallenge) TXTName() string { return "_acme-challenge." + c.Name }

// IssuerAccount is an account at an authority.
type IssuerAccount struct {
	AccountID string
	Directory string
	Name      string
	Contact   string
	Location  string // "" until it is registered
	OrdersURL string // "" if the authority lists no orders
	SealedKey []byte
	KeyID     string
}

// IssuerAccountID is the id of an account; an authority can have several.
func IssuerAccountID(directory, name string) string { return bucketsAt(directory) + "/" + name }

// AccountKeyFor is what an account's private key is sealed for.
func AccountKeyFor(id string) string { return "acme-account/" + id }

// IssuedCertificate is what an authority issued, checked.
type IssuedCertificate struct {
	Chain               string // PEM, leaf first
	Digest              string
	Serial, Issuer      string
	NotBefore, NotAfter time.Time
}

// IssueError is why an attempt failed. Its message holds no secret.
type IssueError struct {
	Class      IssueClass
	Message    string
	Name       string        // whose validation failed; "" when it was none
	RetryAfter time.Duration // what the authority asked for; 0 for nothing
}

func (e *IssueError) Error() string { return fmt.Sprintf("%s: %s", e.Class, e.Message) }

// ClassOfIssue is the class of an error, IssueInternal for one without.
func ClassOfIssue(err error) IssueClass {
	if e, ok := errors.AsType[*IssueError](err); ok {
		return e.Class
	}
	return IssueInternal
}

// IssueFailure is how an attempt failed, as it is recorded.
type IssueFailure struct {
	CertificateID prego.CertificateID
	OrderID       string // "" if there was none
	EndOrder      bool   // it can't be taken up again
	Reason        prego.Reason
	Message       string
	Again         time.Duration // until the next attempt
	// Failures is how many there were before it: recorded twice, it counts once.
	Failures int
	// Counted is the bucket of a failed validation, Blocked the bucket where the authority
	// refused an order, for as long as BlockedFor.
	Counted, Blocked *IssueCharge
	BlockedFor       time.Duration
}

// CertificateToAsk is a certificate whose authority is asked when to renew it.
type CertificateToAsk struct {
	CertificateID       prego.CertificateID
	Version             int64
	Serial              string
	Directory           string
	Chain               string
	NotBefore, NotAfter time.Time
}

// CertificateCounts count certificates.
type CertificateCounts struct {
	FirstEnd float64 // when the first that is renewed ends, in seconds since 1970; 0 for none
	Active   int
	Pending  int
	Failed   int
	Failing  int // active, and the last attempt to renew failed
}
