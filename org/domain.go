package org

import (
	"crypto/rand"
	"encoding/base32"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"

	"github.com/prego/prego"
)

// DomainStatus is the state of an org's claim to a name.
type DomainStatus string

// The states of a domain. Only a verified one is served and counted. Any number of orgs may
// have the same name pending: the first one to verify it has it.
const (
	DomainPending  DomainStatus = "pending"  // its TXT record was not seen yet
	DomainVerified DomainStatus = "verified" // the org's
	DomainLost     DomainStatus = "lost"     // was verified; its TXT record is gone
	DomainExpired  DomainStatus = "expired"  // pending for too long: no longer looked for
)

// Domain is a name that an org wants served: by a tenant, or by its routes.
type Domain struct {
	DomainID prego.DomainID
	OrgID    prego.OrgID
	TenantID prego.TenantID // "" for a name of the org's routes
	Name     string
	Status   DomainStatus
	Reason   prego.Reason
	Message  string
	Token    string // the text of the TXT record; no secret
	// Points is whether the name led to this installation when it was last looked up.
	Points     bool `json:"points_here"`
	ByRoute    bool // made with a route; goes with the last route of the name
	Failures   int  // looks in a row that did not find the TXT record
	CheckedAt  *time.Time
	NextCheck  *time.Time `json:"next_check_at"` // nil when it is looked for no longer
	VerifiedAt *time.Time
	// MissingSince is since when the TXT record of a verified name is gone.
	MissingSince *time.Time
	// ElsewhereSince is since when a verified name does not lead here.
	ElsewhereSince *time.Time
	// SoughtUntil is until when a name that is not verified is looked for.
	SoughtUntil time.Time
	CreatedBy   string
	CreatedAt   time.Time
	DeletedAt   *time.Time

	// Where the name is to lead: the tenant's slug, or the region of its routes and the
	// IPv4 address of their environment, if they listen on that.
	Slug    string
	Region  prego.Region
	Address string
}

// DomainRecord is a DNS record that the owner of a name makes.
type DomainRecord struct {
	Type    string // TXT, CNAME, ALIAS or A
	Name    string
	Value   string
	Purpose string // ownership or routing
}

// Records are the records that the owner of the name makes. An apex can't have a CNAME
// (RFC 1034 §3.6.2): many providers have ALIAS records, or flatten a CNAME there.
func (d Domain) Records(siteDomain string) []DomainRecord {
	out := []DomainRecord{{Type: "TXT", Name: d.ChallengeName(), Value: d.ChallengeValue(), Purpose: "ownership"}}
	var target string
	switch {
	case d.Slug != "":
		target = d.Slug + "." + siteDomain
	case d.Address != "":
		return append(out, DomainRecord{Type: "A", Name: d.Name, Value: d.Address, Purpose: "routing"})
	case d.Region != "":
		target = string(d.Region) + ".edges." + siteDomain
	default:
		return out // no route has it yet
	}
	typ := "CNAME"
	if registrable, err := publicsuffix.EffectiveTLDPlusOne(d.Name); err == nil && registrable == d.Name {
		typ = "ALIAS"
	}
	return append(out, DomainRecord{Type: typ, Name: d.Name, Value: target, Purpose: "routing"})
}

// Reasons of domains.
const (
	ReasonTXTMissing   prego.Reason = "txt_missing"
	ReasonTXTWrong     prego.Reason = "txt_wrong" // there are others
	ReasonLookupFailed prego.Reason = "lookup_failed"
	ReasonDomainTaken  prego.Reason = "domain_taken" // verified by another org
	ReasonDomainQuota  prego.Reason = "quota_exceeded"
	ReasonClaimExpired prego.Reason = "claim_expired"
	// ReasonPointsElsewhere is of a verified name that does not lead here.
	ReasonPointsElsewhere prego.Reason = "points_elsewhere"
)

// ChallengeLabel is put before a name to make the name of its TXT record.
const ChallengeLabel = "_prego-challenge"

// challengePrefix makes the TXT record recognizable to people.
const challengePrefix = "prego-verification="

// ChallengeName is where a name's TXT record belongs.
func (d Domain) ChallengeName() string { return ChallengeLabel + "." + d.Name }

// ChallengeValue is the required text of a name's TXT record.
func (d Domain) ChallengeValue() string { return challengePrefix + d.Token }

// NewDomainToken makes the token of a claim: 160 bits, so that no two are equal.
func NewDomainToken() string {
	b := make([]byte, 20)
	_, _ = rand.Read(b) // never fails
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b))
}

// maxDomain leaves room for the challenge's label: 253 characters are a name's most.
const maxDomain = 253 - len(ChallengeLabel) - 1

// unresolved are the last labels of names that no public name server has, and what they are for. Private networks have
// names in others that are not public either, such as internal and test.
var unresolved = map[string]string{
	"alt":         "names outside of the DNS (RFC 9476)",
	"invalid":     "names that are certainly invalid (RFC 6761)",
	"local":       "names of the local link (RFC 6762)",
	"localdomain": "each machine itself",
	"localhost":   "each machine itself (RFC 6761)",
	"onion":       "Tor (RFC 7686)",
}

// NormalizeDomain lower-cases a name that an org claims and checks it. own are the domains
// of this installation, whose names can't be claimed.
func NormalizeDomain(name string, own ...string) (string, error) {
	name, err := prego.NormalizeHostname(name)
	if err != nil {
		return "", err
	}
	if len(name) > maxDomain {
		return "", prego.Invalid("hostname", "is too long for a TXT record before it")
	}
	for _, o := range own {
		if o != "" && prego.Within(name, o) {
			return "", prego.Invalid("hostname", "must not be in "+o+": those names are this installation's own")
		}
	}
	last := name[strings.LastIndexByte(name, '.')+1:]
	if unresolved[last] != "" {
		return "", prego.Invalid("hostname", "must be in the DNS: "+last+" is for "+unresolved[last])
	}
	// A name that the list does not know is its own suffix's only label, by the list's rule "*".
	if suffix, _ := publicsuffix.PublicSuffix(name); suffix == name {
		return "", prego.Invalid("hostname", "must not be a public suffix, under which anybody can have names")
	}
	return name, nil
}
