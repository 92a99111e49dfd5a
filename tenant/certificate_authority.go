package tenant

import (
	"crypto"
	"time"
)

// AuthorityAccount is a registered account at a certificate authority, with its key.
type AuthorityAccount struct {
	Location  string
	OrdersURL string // "" if the authority lists no orders
	Key       crypto.Signer
}

// AuthorityOrder is an authority's view of an order.
type AuthorityOrder struct {
	State       OrderState // never OrderIntended; OrderFailed if it is invalid
	Location    string
	FinalizeURL string
	Names       []string
	Authz       []string // URLs
	Certificate string   // URL, once it is valid
	Expires     time.Time
	Problem     *IssueError   // why it failed, if the authority gives a reason
	RetryAfter  time.Duration // until it should be asked again
}

// AuthorityAuthz is an authority's view of one name of an order.
type AuthorityAuthz struct {
	URL      string
	Name     string // without the *. of a wildcard
	Wildcard bool
	Valid    bool
	Pending  bool
	// The challenge of the kind that was asked for. Processing: the authority looks at it,
	// or has.
	ChallengeURL, Token, Answer string
	Processing                  bool
	Problem                     *IssueError // why it is neither valid nor pending
}

// RenewalWindow is when an authority suggests to renew a certificate (RFC 9773 §4.2).
type RenewalWindow struct {
	Start, End time.Time
	URL        string        // explains an early one
	AskAgain   time.Duration // 0 if the authority sets none
}
