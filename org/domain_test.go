package org_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
)

func TestNormalizeDomain(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"WWW.Example.com": "www.example.com", "example.com.": "example.com", "xn--bcher-kva.example": "xn--bcher-kva.example", "a.github.io": "a.github.io"} {
		got, err := org.NormalizeDomain(in, "sites.prego.net")
		require.NoError(t, err, in)
		require.Equal(t, want, got)
	}
	for _, in := range []string{
		"foo.localhost", "localhost.localdomain", "printer.local", "x.onion", "x.INVALID", "x.alt.", "\u0130.com",
		"", "com", "co.uk", "github.io", "*.example.com", "192.0.2.1", "[::1]", "bücher.example", "a b.com", "sites.prego.net", "acme.sites.prego.net", "ACME.Sites.Prego.net.",
	} {
		_, err := org.NormalizeDomain(in, "sites.prego.net")
		require.Equal(t, prego.CodeInvalidField, prego.CodeOf(err), "%q", in)
	}
	_, err := org.NormalizeDomain("notsites.prego.net", "sites.prego.net")
	require.NoError(t, err)
}

func TestRecordsToMake(t *testing.T) {
	t.Parallel()
	text := org.DomainRecord{Type: "TXT", Name: "_prego-challenge.example.com", Value: "prego-verification=t", Purpose: "ownership"}
	for want, d := range map[org.DomainRecord]org.Domain{
		{Type: "ALIAS", Name: "example.com", Value: "acme.sites.net", Purpose: "routing"}:     {Name: "example.com", Token: "t", Slug: "acme"},
		{Type: "ALIAS", Name: "example.com", Value: "eu.edges.sites.net", Purpose: "routing"}: {Name: "example.com", Token: "t", Region: "eu"},
		{Type: "A", Name: "example.com", Value: "192.0.2.1", Purpose: "routing"}:              {Name: "example.com", Token: "t", Region: "eu", Address: "192.0.2.1"},
	} {
		require.Equal(t, []org.DomainRecord{text, want}, d.Records("sites.net"))
	}
	require.Equal(t, []org.DomainRecord{text}, org.Domain{Name: "example.com", Token: "t"}.Records("sites.net"), "no route has it yet")
	require.Equal(t, "CNAME", org.Domain{Name: "www.example.co.uk", Slug: "acme"}.Records("sites.net")[1].Type)
	require.Equal(t, "ALIAS", org.Domain{Name: "example.co.uk", Slug: "acme"}.Records("sites.net")[1].Type)
}

var rules = org.DomainRules{Retry: 30 * time.Second, RetryMax: time.Hour, Recheck: 6 * time.Hour, Grace: 72 * time.Hour}

// TestDomainRules plays any sequence of lookups: every served name had its TXT record within
// the grace period, one failed lookup changes no state, and a name that is
// still sought has a next look in the future.
func TestDomainRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
		d := org.Domain{Name: "example.com", Token: "right", Status: org.DomainPending, SoughtUntil: now.Add(org.SoughtFor)}
		var seen *time.Time // when the record was last there
		for range rapid.IntRange(1, 60).Draw(t, "looks") {
			look := org.DomainAnswer{At: now}
			switch rapid.SampledFrom([]string{"there", "gone", "wrong", "failed"}).Draw(t, "dns") {
			case "there":
				look.TXT = []string{"v=spf1", d.ChallengeValue()}
				seen = &now
			case "wrong":
				look.TXT = []string{"prego-verification=another"}
			case "failed":
				look.Failed = "timeout"
			}
			was := d
			d = rules.Next(d, look)
			switch {
			case look.Failed != "":
				if d.Status != was.Status && d.Status != org.DomainExpired {
					t.Fatalf("a look that failed made %s of %s", d.Status, was.Status)
				}
			case len(look.TXT) == 2 && d.Status != org.DomainVerified:
				t.Fatalf("the record is there and the name is %s", d.Status)
			case len(look.TXT) < 2 && d.Status == org.DomainVerified && seen == nil:
				t.Fatal("verified without a record")
			case len(look.TXT) < 2 && was.Status != org.DomainVerified && d.Status == org.DomainVerified:
				t.Fatal("verified by another's record")
			}
			if d.Status == org.DomainVerified && d.MissingSince != nil && now.Sub(*d.MissingSince) >= rules.Grace && look.Failed == "" {
				t.Fatal("served beyond the grace period")
			}
			if d.Status == org.DomainLost && was.Status == org.DomainVerified && now.Sub(*d.MissingSince) < rules.Grace {
				t.Fatal("lost within the grace period")
			}
			if d.NextCheck == nil {
				if d.Status == org.DomainVerified || now.Before(d.SoughtUntil) {
					t.Fatalf("%s and not looked for any more", d.Status)
				}
				return
			}
			if !d.NextCheck.After(now) || d.NextCheck.Sub(now) > rules.Recheck {
				t.Fatalf("the next look is in %s", d.NextCheck.Sub(now))
			}
			next := d.NextCheck.Add(time.Duration(rapid.Int64Range(0, int64(10*time.Minute)).Draw(t, "late")))
			now = next
		}
	})
}

func TestPausesGrow(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	d := org.Domain{Name: "example.com", Token: "t", Status: org.DomainPending, SoughtUntil: now.Add(org.SoughtFor)}
	var pauses []time.Duration
	for range 9 {
		d = rules.Next(d, org.DomainAnswer{At: now})
		pauses = append(pauses, d.NextCheck.Sub(now))
	}
	require.Equal(t, []time.Duration{30e9, 60e9, 120e9, 240e9, 480e9, 960e9, 1920e9, 3600e9, 3600e9}, pauses)
	d = rules.Next(d, org.DomainAnswer{At: now.Add(org.SoughtFor)})
	require.Equal(t, org.DomainExpired, d.Status)
	require.Equal(t, org.ReasonClaimExpired, d.Reason)
	require.Nil(t, d.NextCheck)
}

// TestLeads names the addresses that are not ours.
func TestLeads(t *testing.T) {
	t.Parallel()
	ours := []string{"192.0.2.1", "2001:db8::1"}
	for _, c := range []struct {
		found     []string
		here      bool
		elsewhere string
	}{
		{[]string{"192.0.2.1", "2001:db8::1"}, true, ""},
		{[]string{"192.0.2.1"}, true, ""},
		{nil, false, "it has no A or AAAA record"},
		{[]string{"192.0.2.1", "::1"}, false, "AAAA ::1 is not an edge"},
		{[]string{"203.0.113.7", "2001:db8::1", "::1"}, false, "A 203.0.113.7, AAAA ::1 are not edges"},
		{
			[]string{"203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4", "203.0.113.5"},
			false,
			"A 203.0.113.1, A 203.0.113.2, A 203.0.113.3, A 203.0.113.4, 1 more are not edges",
		},
	} {
		here, elsewhere := org.Leads(c.found, ours)
		require.Equal(t, c.here, here, c.found)
		require.Equal(t, c.elsewhere, elsewhere)
	}
}

// TestANameThatLeadsElsewhere is looked up each hour, and its reason gives way to that of a missing TXT record.
func TestANameThatLeadsElsewhere(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	d := org.Domain{Name: "example.com", Token: "t", Status: org.DomainPending, SoughtUntil: now.Add(org.SoughtFor)}
	d = rules.Next(d, org.DomainAnswer{At: now, Elsewhere: "A 203.0.113.7 is not an edge"})
	require.Nil(t, d.ElsewhereSince, "it is not served")
	there := []string{d.ChallengeValue()}
	d = rules.Next(d, org.DomainAnswer{At: now, TXT: there, Elsewhere: "A 203.0.113.7 is not an edge"})
	require.Equal(t, org.ReasonPointsElsewhere, d.Reason)
	require.Equal(t, "A 203.0.113.7 is not an edge", d.Message)
	require.Equal(t, now, *d.ElsewhereSince)
	require.Equal(t, now.Add(time.Hour), *d.NextCheck)
	later := now.Add(time.Hour)
	d = rules.Next(d, org.DomainAnswer{At: later, Elsewhere: "A 203.0.113.7 is not an edge"})
	require.Equal(t, org.ReasonTXTMissing, d.Reason)
	require.Equal(t, now, *d.ElsewhereSince)
	d = rules.Next(d, org.DomainAnswer{At: later, Failed: "timeout"})
	require.Equal(t, now, *d.ElsewhereSince, "a failed lookup shows nothing")
	d = rules.Next(d, org.DomainAnswer{At: later, TXT: there, Points: true})
	require.Nil(t, d.ElsewhereSince)
	require.Empty(t, d.Reason)
	require.Equal(t, later.Add(6*time.Hour), *d.NextCheck)
}
