package tenant

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
)

func TestCertificateIDIsOfTheNames(t *testing.T) {
	t.Parallel()
	a := CertificateID([]string{"b.example.com", "a.example.com"})
	require.Equal(t, a, CertificateID([]string{"a.example.com", "b.example.com"}))
	require.NotEqual(t, a, CertificateID([]string{"a.example.com"}))
	require.NotEqual(t, CertificateID([]string{"a", "b"}), CertificateID([]string{"a\nb"[:1], "c"}))
	require.Equal(t, "certificate/"+string(a), CertificateWorkflowID(a))
}

func TestCoveredBy(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"acme.sites.example.com", "*.sites.example.com"}, CoveredBy("acme.sites.example.com"))
	require.Equal(t, []string{"localhost"}, CoveredBy("localhost"))
}

// TestRenewal: between 61 and 67 percent of a life, spread out, and never later
// at an authority's suggestion.
func TestRenewal(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		life := time.Duration(rapid.Int64Range(int64(time.Minute), int64(398*24*time.Hour)).Draw(t, "life"))
		seed := rapid.String().Draw(t, "seed")
		at := RenewAt(begin, begin.Add(life), seed)
		share := float64(at.Sub(begin)) / float64(life)
		require.GreaterOrEqual(t, share, 2./3-0.051)
		require.LessOrEqual(t, share, 2./3+0.001)
		require.Equal(t, at, RenewAt(begin, begin.Add(life), seed))

		start := begin.Add(time.Duration(rapid.Int64Range(-int64(life), int64(2*life)).Draw(t, "start")))
		end := start.Add(time.Duration(rapid.Int64Range(-int64(life), int64(life)).Draw(t, "window")))
		within := RenewWithin(start, end, seed, at)
		require.False(t, within.After(at))
		if start.Before(at) {
			require.False(t, within.Before(start))
		}
	})
	days := map[int]bool{}
	for i := range 100 {
		days[RenewAt(begin, begin.Add(90*24*time.Hour), fmt.Sprint(i)).YearDay()] = true
	}
	require.GreaterOrEqual(t, len(days), 4, "they are spread")
	require.Equal(t, begin, RenewAt(begin, begin, "x"), "one without a life")
}

// TestIssueAgain: every class waits, ever longer, and what an authority asked for at least.
// Failed validations stay within what it allows in an hour.
func TestIssueAgain(t *testing.T) {
	t.Parallel()
	for _, class := range IssueClasses() {
		last := time.Duration(0)
		for n := 1; n < 40; n++ {
			wait := IssueAgain(class, n, 0, "")
			require.GreaterOrEqual(t, wait, last, "%s, failure %d", class, n)
			require.GreaterOrEqual(t, wait, time.Minute)
			require.LessOrEqual(t, wait, 8*24*time.Hour)
			if slices.Contains([]IssueClass{IssueUnauthorized, IssueCAA, IssueDNS, IssueConnection}, class) { // that an authority counts
				require.GreaterOrEqual(t, wait, 20*time.Minute)
			}
			last = wait
		}
		require.GreaterOrEqual(t, IssueAgain(class, 1, 30*24*time.Hour, ""), 30*24*time.Hour, class)
		require.NotEqual(t, IssueAgain(class, 3, 0, "a"), IssueAgain(class, 3, 0, "b"))
		require.Contains(t, string(class.Reason()), string(class))
	}
}

func TestChargesOfAnOrder(t *testing.T) {
	t.Parallel()
	l := IssueLimits{Orders: IssueLimit{300, 3 * time.Hour}, Domain: IssueLimit{50, 7 * 24 * time.Hour}, Duplicates: IssueLimit{5, 7 * 24 * time.Hour}, Failures: IssueLimit{5, time.Hour}}
	buckets := func(names []string, replaces bool) (out []string) {
		for _, c := range l.Charges("https://ca.example/dir", "a1", names, replaces) {
			out = append(out, fmt.Sprintf("%s %g %g", c.Bucket[len("acme/12345678/"):], c.Take, c.Keep))
		}
		return out
	}
	id := func(names ...string) string { return "names/" + string(CertificateID(names)) + " 1 0" }
	require.Equal(t, []string{"domain/example.co.uk 1 0", "failures/www.example.co.uk 0 1", id("www.example.co.uk"), "orders/a1 1 0"}, buckets([]string{"www.example.co.uk"}, false))
	require.Equal(t, []string{"failures/www.example.co.uk 0 1"}, buckets([]string{"www.example.co.uk"}, true), "a renewal that names what it replaces")
	require.Equal(t, []string{"domain/example.com 1 0", "failures/example.com 0 1", id("*.example.com", "example.com"), "orders/a1 1 0"},
		buckets([]string{"*.example.com", "example.com"}, false), "a wildcard fails with its parent")
	require.NotEqual(t, OrderBucket("https://ca.example/dir", "a"), OrderBucket("https://other.example/dir", "a"))
	require.Equal(t, "internal", RegisteredDomain("internal"))
	require.Equal(t, "a.github.io", RegisteredDomain("x.a.github.io"), "private suffixes count")

	l.Domain = IssueLimit{}
	require.NotContains(t, fmt.Sprint(buckets([]string{"www.example.co.uk"}, false)), "domain/")
	require.InDelta(t, 1./36, l.Orders.PerSecond(), 1e-9)
}

func TestCertificateNames(t *testing.T) {
	t.Parallel()
	org, id := prego.OrgID("acme"), prego.TenantID("t-1")
	require.NoError(t, CheckCertificateNames(SiteCertificate("sites.example.com")))
	require.NoError(t, CheckCertificateNames(HostCertificate("www.example.com", &org, &id)))
	for name, w := range map[string]CertificateWant{
		"none":      {Challenge: ChallengeHTTP},
		"wildcard":  {Names: []string{"*.example.com"}, Challenge: ChallengeHTTP},
		"capitals":  {Names: []string{"Example.com"}, Challenge: ChallengeHTTP},
		"one label": {Names: []string{"localhost"}, Challenge: ChallengeHTTP},
		"stars":     {Names: []string{"*.*.example.com"}, Challenge: ChallengeDNS},
	} {
		require.Equal(t, prego.CodeInvalidField, prego.CodeOf(CheckCertificateNames(w)), name)
	}
}
