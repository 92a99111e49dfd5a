package tenant

import (
	"encoding/binary"
	"hash/fnv"
	"time"

	"github.com/prego/prego"
)

// RenewAt is when a certificate is renewed: after two thirds of its life, and up to a
// twentieth of it earlier, so that certificates issued together are not all renewed together. seed,
// such as the certificate's serial number, decides how much.
func RenewAt(notBefore, notAfter time.Time, seed string) time.Time {
	life := notAfter.Sub(notBefore)
	if life <= 0 {
		return notAfter
	}
	return notBefore.Add(life*2/3 - time.Duration(fraction(seed)*float64(life/20)))
}

// RenewWithin is when a certificate is renewed if its authority suggests a window
// (RFC 9773 §4.2): at some time in it, but never later than RenewAt, so that a wrong
// window can't let a certificate end.
func RenewWithin(start, end time.Time, seed string, latest time.Time) time.Time {
	at := start
	if end.After(start) {
		at = start.Add(time.Duration(fraction(seed) * float64(end.Sub(start))))
	}
	if at.After(latest) {
		return latest
	}
	return at
}

// fraction is a number in [0, 1) that depends on a text alone.
func fraction(seed string) float64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(seed))
	sum := binary.BigEndian.Uint64(h.Sum(nil))
	// FNV's last step mixes little into the high bits.
	sum ^= sum >> 33
	sum *= 0xff51afd7ed558ccd
	sum ^= sum >> 33
	return float64(sum>>11) / (1 << 53)
}

// IssueClass is what kind of failure an attempt met.
type IssueClass string

// The classes. The first five are an authority's errors, as RFC 8555 §6.7 names them.
const (
	IssueRateLimited  IssueClass = "rate_limited"
	IssueUnauthorized IssueClass = "unauthorized" // the answer to the challenge was not the right one
	IssueCAA          IssueClass = "caa"          // a CAA record forbids this authority
	IssueDNS          IssueClass = "dns"          // the name's records could not be looked up
	IssueConnection   IssueClass = "connection"   // the name's address could not be reached
	IssueBudget       IssueClass = "budget"       // our own account of the authority's limits is used up; it was not asked
	IssueNotServed    IssueClass = "not_served"   // we did not see the answer ourselves; no authority was asked
	IssueRejected     IssueClass = "rejected"     // the authority never issues for this name
	IssueAccount      IssueClass = "account"      // the account is unknown, closed, or must do something first
	IssueServer       IssueClass = "server"       // the authority failed or did not answer
	IssueMalformed    IssueClass = "malformed"    // the authority does not understand us
	IssueSealed       IssueClass = "sealed"       // a key was sealed under a master key that is not known
	IssueGone         IssueClass = "gone"         // the authority no longer has the order
	IssueInternal     IssueClass = "internal"
)

// IssueClasses lists them.
func IssueClasses() []IssueClass {
	return []IssueClass{
		IssueRateLimited, IssueUnauthorized, IssueCAA, IssueDNS, IssueConnection, IssueBudget, IssueNotServed, IssueRejected,
		IssueAccount, IssueServer, IssueMalformed, IssueSealed, IssueGone, IssueInternal,
	}
}

// Reason is the reason of a certificate whose last attempt failed in this way.
func (c IssueClass) Reason() prego.Reason { return prego.Reason("certificate_" + string(c)) }

// IssueAgain is how long the next attempt waits after the nth failure in a row. Errors that
// pass by themselves are retried soon and then ever less often; errors that a person must fix,
// rarely, well inside the five failed validations an hour that an authority allows;
// permanent errors, once a day. after is the wait that the authority requested, the
// minimum; seed spreads simultaneous failures.
func IssueAgain(class IssueClass, failures int, after time.Duration, seed string) time.Duration {
	first, most := time.Minute, time.Hour
	switch class {
	case IssueServer, IssueInternal, IssueGone, IssueBudget:
	case IssueNotServed:
		first, most = 2*time.Minute, 6*time.Hour
	case IssueRateLimited:
		first, most = 5*time.Minute, 6*time.Hour
	case IssueUnauthorized, IssueDNS, IssueConnection:
		first, most = 30*time.Minute, 24*time.Hour
	case IssueCAA:
		first, most = time.Hour, 24*time.Hour
	case IssueAccount, IssueMalformed, IssueSealed:
		first, most = time.Hour, 6*time.Hour
	case IssueRejected:
		first, most = 24*time.Hour, 7*24*time.Hour
	}
	wait := first
	for range min(max(failures, 1)-1, 16) {
		wait = min(2*wait, most)
	}
	wait = max(wait, after)
	return wait + time.Duration(fraction(seed)*float64(wait/10))
}
