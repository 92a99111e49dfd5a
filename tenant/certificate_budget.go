package tenant

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"

	"github.com/prego/prego"
)

// IssueLimit is how much an authority allows in a time. It refills evenly: of 300 in 3
// hours, one comes back every 36 seconds.
type IssueLimit struct {
	Most int
	Per  time.Duration
}

// String is how the limit is written in settings.
func (l IssueLimit) String() string { return fmt.Sprintf("%d/%s", l.Most, l.Per) }

// UnmarshalText reads a limit as in settings: 300/3h. 0 is none.
func (l *IssueLimit) UnmarshalText(text []byte) error {
	if string(text) == "0" {
		*l = IssueLimit{}
		return nil
	}
	most, per, _ := strings.Cut(string(text), "/")
	n, errMost := strconv.Atoi(most)
	d, errPer := time.ParseDuration(per)
	if errMost != nil || errPer != nil || n < 1 || d <= 0 {
		return fmt.Errorf("%q is not a number and a time, such as 300/3h, or 0 for no limit", text)
	}
	*l = IssueLimit{Most: n, Per: d}
	return nil
}

// PerSecond is how much comes back each second.
func (l IssueLimit) PerSecond() float64 { return float64(l.Most) / l.Per.Seconds() }

// IssueLimits are an authority's rate limits. A limit of 0 is none.
type IssueLimits struct {
	Orders     IssueLimit // of an account
	Domain     IssueLimit // certificates for a registered domain
	Duplicates IssueLimit // certificates for exactly the same names
	Failures   IssueLimit // failed validations of a name
}

// IssueCharge is what an order takes out of a bucket.
type IssueCharge struct {
	Bucket string
	Limit  IssueLimit
	// Keep is how much must be left. Validations that fail are counted when they have
	// failed: until then, one must be possible (Take 0, Keep 1).
	Take, Keep float64
}

// RegisteredDomain is the domain registered for a name: example.co.uk for
// www.example.co.uk. A public suffix is its own.
func RegisteredDomain(name string) string {
	name = strings.TrimPrefix(name, "*.")
	if domain, err := publicsuffix.EffectiveTLDPlusOne(name); err == nil {
		return domain
	}
	return name
}

// Charges are what an order for these names costs at an authority, in the order of their
// buckets. replaces means that it names the certificate that it renews: such orders are exempt
// from all limits except the limit of failures (Let's Encrypt, "ARI renewals"). Other renewals are
// exempt from none here: the authority recognises them, and may be more generous.
func (l IssueLimits) Charges(directory, account string, names []string, replaces bool) []IssueCharge {
	at := bucketsAt(directory)
	var out []IssueCharge
	add := func(c IssueCharge) {
		if c.Limit.Most > 0 {
			out = append(out, c)
		}
	}
	domains := map[string]bool{}
	for _, name := range names {
		domains[RegisteredDomain(name)] = true
		add(IssueCharge{Bucket: FailureBucket(directory, name), Limit: l.Failures, Keep: 1})
	}
	if !replaces {
		add(IssueCharge{Bucket: OrderBucket(directory, account), Limit: l.Orders, Take: 1})
		add(IssueCharge{Bucket: at + "/names/" + string(CertificateID(names)), Limit: l.Duplicates, Take: 1})
		for domain := range domains {
			add(IssueCharge{Bucket: DomainBucket(directory, domain), Limit: l.Domain, Take: 1})
		}
	}
	slices.SortFunc(out, func(x, y IssueCharge) int { return strings.Compare(x.Bucket, y.Bucket) })
	return slices.CompactFunc(out, func(x, y IssueCharge) bool { return x.Bucket == y.Bucket })
}

// OrderBucket holds the orders of an account.
func OrderBucket(directory, account string) string {
	return bucketsAt(directory) + "/orders/" + account
}

// DomainBucket holds the certificates of a registered domain.
func DomainBucket(directory, domain string) string {
	return bucketsAt(directory) + "/domain/" + domain
}

// FailureBucket holds the failed validations of a name.
func FailureBucket(directory, name string) string {
	return bucketsAt(directory) + "/failures/" + strings.TrimPrefix(name, "*.")
}

// bucketsAt begins the names of an authority's buckets.
func bucketsAt(directory string) string {
	sum := sha256.Sum256([]byte(directory))
	return "acme/" + hex.EncodeToString(sum[:4])
}

// CheckCertificateNames rejects what no authority issues one certificate for.
func CheckCertificateNames(w CertificateWant) error {
	if len(w.Names) == 0 || len(w.Names) > 100 {
		return prego.Invalid("names", "must be 1 to 100 names")
	}
	for _, name := range w.Names {
		if len(name) > maxHostName || !hostName.MatchString(strings.TrimPrefix(name, "*.")) || name != strings.ToLower(name) || !strings.Contains(name, ".") {
			return prego.Invalid("names", fmt.Sprintf("must be lower-case host names, not %q", name))
		}
		if strings.HasPrefix(name, "*.") && w.Challenge != ChallengeDNS {
			return prego.Invalid("challenge", "must be dns-01 for a wildcard")
		}
	}
	return nil
}
