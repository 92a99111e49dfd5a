package store

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org"
)

// verifiedOnly asks for the names that are served.
var verifiedOnly = prego.ListQuery{Limit: 10, Filters: map[string][]string{"status": {"verified"}}}

// claims is a store with orgs that want names.
type claims struct {
	*testing.T
	*Store
	pool *pgxpool.Pool
	now  time.Time
}

var domainRules = org.DomainRules{Retry: 30 * time.Second, RetryMax: time.Hour, Recheck: 6 * time.Hour, Grace: 72 * time.Hour}

func newClaims(t *testing.T, orgs ...string) *claims {
	t.Helper()
	c := &claims{T: t, pool: pgtest.Pool(t), now: time.Now().UTC().Truncate(time.Microsecond)}
	c.Store = New(c.pool)
	for _, o := range orgs {
		c.exec(`INSERT INTO orgs (org_id, created_by, tier) VALUES ($1, 'a', 'paid')`, o)
	}
	return c
}

func (c *claims) exec(sql string, args ...any) {
	c.Helper()
	_, err := c.pool.Exec(c.Context(), sql, args...)
	require.NoError(c, err)
}

func (c *claims) claim(orgID, name string) org.Domain {
	c.Helper()
	d, err := c.ClaimDomain(c.Context(), org.Domain{DomainID: prego.DomainID("dom-" + orgID + "-" + name), OrgID: prego.OrgID(orgID), Name: name, Token: org.NewDomainToken()}, "a")
	require.NoError(c, err)
	return d
}

// see lets the DNS show the records of some claims.
func (c *claims) see(d org.Domain, shown ...org.Domain) org.Domain {
	c.Helper()
	look := org.DomainAnswer{At: c.now}
	for _, s := range shown {
		look.TXT = append(look.TXT, s.ChallengeValue())
	}
	out, err := c.DomainSeen(c.Context(), d, look, domainRules)
	require.NoError(c, err)
	return out
}

func (c *claims) hostnames(orgID string) (n float64) {
	c.Helper()
	require.NoError(c, c.pool.QueryRow(c.Context(), `SELECT usage FROM org_usage_view WHERE org_id = $1 AND dimension = 'max_hostnames'`, orgID).Scan(&n))
	return n
}

func (c *claims) events(orgID string) (out []string) {
	c.Helper()
	rows, err := c.pool.Query(c.Context(), `SELECT type FROM org_events WHERE org_id = $1 ORDER BY event_id`, orgID)
	require.NoError(c, err)
	defer rows.Close()
	for rows.Next() {
		var s string
		require.NoError(c, rows.Scan(&s))
		out = append(out, s)
	}
	return out
}

func TestNameIsVerifiedLostAndFoundAgain(t *testing.T) {
	t.Parallel()
	c := newClaims(t, "acme")
	d := c.claim("acme", "www.example.com")
	require.Equal(t, d, c.claim("acme", "www.example.com"), "the same claim again")
	require.Equal(t, org.ReasonTXTMissing, c.see(d).Reason)
	require.Zero(t, c.hostnames("acme"), "a pending claim counts for nothing")
	c.now = c.now.Add(time.Hour)
	d = c.see(d, d)
	require.Equal(t, org.DomainVerified, d.Status, "the record came late")
	require.InDelta(t, 1, c.hostnames("acme"), 0)
	c.now = c.now.Add(time.Hour)
	d = c.see(d)
	require.Equal(t, org.DomainVerified, d.Status, "served through the grace period")
	c.now = c.now.Add(time.Hour)
	d = c.see(d, d)
	require.Nil(t, d.MissingSince)
	d = c.see(d)
	c.now = c.now.Add(domainRules.Grace)
	d = c.see(d)
	require.Equal(t, org.DomainLost, d.Status)
	require.Zero(t, c.hostnames("acme"))
	served, _, err := Domains.In(c.Store)(t.Context(), verifiedOnly)
	require.NoError(t, err)
	require.Empty(t, served)
	d = c.see(d, d)
	require.Equal(t, org.DomainVerified, d.Status)
	require.NoError(t, c.DeleteDomain(t.Context(), d.DomainID, "a"))
	require.Zero(t, c.hostnames("acme"))
	require.Equal(t, []string{"domain.create", "domain.verified", "domain.missing", "domain.found", "domain.missing", "domain.lost", "domain.verified", "domain.delete"}, c.events("acme"))
	require.Empty(t, c.see(d, d).DomainID, "a lookup under way does not verify a deleted name")
	again, err := c.ClaimDomain(t.Context(), org.Domain{DomainID: "dom-2", OrgID: "acme", Name: "www.example.com", Token: org.NewDomainToken()}, "a")
	require.NoError(t, err)
	require.Equal(t, d.Token, again.Token, "its TXT record may still be there")
}

// TestFirstToVerifyHasTheName: many orgs show their records concurrently, and one has the name.
func TestFirstToVerifyHasTheName(t *testing.T) {
	t.Parallel()
	const racers = 12
	var orgs []string
	for i := range racers {
		orgs = append(orgs, fmt.Sprintf("o%d", i))
	}
	c := newClaims(t, orgs...)
	var all []org.Domain
	for _, o := range orgs {
		all = append(all, c.claim(o, "example.com"))
	}
	look := org.DomainAnswer{At: c.now}
	for _, d := range all {
		look.TXT = append(look.TXT, d.ChallengeValue())
	}
	var wg sync.WaitGroup
	out := make([]org.Domain, racers)
	errs := make([]error, racers)
	for i, d := range all {
		wg.Go(func() { out[i], errs[i] = c.DomainSeen(context.Background(), d, look, domainRules) })
	}
	wg.Wait()
	won, used := 0, 0.0
	for i, d := range out {
		require.NoError(t, errs[i])
		used += c.hostnames(orgs[i])
		if d.Status == org.DomainVerified {
			won++
			continue
		}
		require.Equal(t, org.DomainPending, d.Status)
		require.Equal(t, org.ReasonDomainTaken, d.Reason)
	}
	require.Equal(t, 1, won)
	require.InDelta(t, 1, used, 0)
}

// TestNameChangesItsOwner: the controller of the name shows another org's record. The previous org keeps it only
// while its own record is there.
func TestNameChangesItsOwner(t *testing.T) {
	t.Parallel()
	c := newClaims(t, "old", "new")
	old, young := c.claim("old", "example.com"), c.claim("new", "example.com")
	old = c.see(old, old)
	young = c.see(young, old, young)
	require.Equal(t, org.ReasonDomainTaken, young.Reason)
	holder, err := c.GetDomain(t.Context(), string(old.DomainID))
	require.NoError(t, err)
	require.WithinDuration(t, c.now, *holder.NextCheck, time.Second, "it is looked up again now")
	require.Equal(t, org.DomainVerified, c.see(old, old, young).Status)
	require.Equal(t, org.DomainVerified, c.see(old, young).Status, "its record is gone: grace")
	require.Equal(t, org.DomainVerified, c.see(young, young).Status)
	holder, err = c.GetDomain(t.Context(), string(old.DomainID))
	require.NoError(t, err)
	require.Equal(t, org.DomainLost, holder.Status)
	require.Equal(t, org.ReasonDomainTaken, holder.Reason)
	require.Zero(t, c.hostnames("old"))
	require.InDelta(t, 1, c.hostnames("new"), 0)
	served, _, err := Domains.In(c.Store)(t.Context(), verifiedOnly)
	require.NoError(t, err)
	require.Len(t, served, 1)
	require.Equal(t, young.DomainID, served[0].DomainID)
}

// TestNamesBeyondTheQuota: with room for two, a third waits with a reason and is verified
// when a place is free.
func TestNamesBeyondTheQuota(t *testing.T) {
	t.Parallel()
	c := newClaims(t, "acme")
	c.exec(`INSERT INTO org_quotas (org_id, dimension, limit_value, updated_by) VALUES ('acme', 'max_hostnames', 2, 'a')`)
	a, b, third := c.claim("acme", "a.example.com"), c.claim("acme", "b.example.com"), c.claim("acme", "c.example.com")
	require.Equal(t, org.DomainVerified, c.see(a, a).Status)
	require.Equal(t, org.DomainVerified, c.see(b, b).Status)
	refused := c.see(third, third)
	require.Equal(t, org.DomainPending, refused.Status)
	require.Equal(t, org.ReasonDomainQuota, refused.Reason)
	require.Contains(t, refused.Message, "max_hostnames")
	_, err := c.ClaimDomain(t.Context(), org.Domain{DomainID: "dom-d", OrgID: "acme", Name: "d.example.com", Token: "t"}, "a")
	require.Equal(t, prego.CodeQuotaExceeded, prego.CodeOf(err), "a name that could not be verified is refused immediately")
	require.InDelta(t, 2, c.hostnames("acme"), 0)
	require.NoError(t, c.DeleteDomain(t.Context(), a.DomainID, "a"))
	require.Equal(t, org.DomainVerified, c.see(third, third).Status)
	require.InDelta(t, 2, c.hostnames("acme"), 0)
}

// TestOrgsTakeTurnsAtTheDNS: names of an org that wait for longer come no earlier than another org's first ones.
func TestOrgsTakeTurnsAtTheDNS(t *testing.T) {
	t.Parallel()
	c := newClaims(t, "acme", "corp")
	for i := range 8 {
		c.claim("acme", fmt.Sprintf("h%d.example.com", i))
	}
	c.claim("corp", "one.example.org")
	c.claim("corp", "two.example.org")
	c.exec(`UPDATE domains SET next_check = now() - make_interval(hours => CASE org_id WHEN 'acme' THEN 9 ELSE 1 END)`)
	of := map[prego.OrgID]int{}
	taken, err := c.TakeDomains(t.Context(), 4, time.Minute)
	require.NoError(t, err)
	for _, d := range taken {
		of[d.OrgID]++
	}
	require.Equal(t, map[prego.OrgID]int{"acme": 2, "corp": 2}, of)
	taken, err = c.TakeDomains(t.Context(), 10, time.Minute)
	require.NoError(t, err)
	require.Len(t, taken, 6, "and the rest after them")
}

func TestClaimsHaveAnEnd(t *testing.T) {
	t.Parallel()
	c := newClaims(t, "acme", "corp")
	for i := range maxUnverified {
		c.claim("acme", fmt.Sprintf("h%d.example.com", i))
	}
	_, err := c.ClaimDomain(t.Context(), org.Domain{DomainID: "dom-more", OrgID: "acme", Name: "more.example.com", Token: "t"}, "a")
	require.Equal(t, prego.CodeTooManyDomains, prego.CodeOf(err))
	d := c.claim("corp", "h0.example.com")
	taken, err := c.TakeDomains(t.Context(), 1000, time.Minute)
	require.NoError(t, err)
	require.Len(t, taken, maxUnverified+1)
	taken, err = c.TakeDomains(t.Context(), 1000, time.Minute)
	require.NoError(t, err)
	require.Empty(t, taken, "no other caller takes them meanwhile")
	c.now = c.now.Add(org.SoughtFor + time.Minute)
	require.Equal(t, org.DomainExpired, c.see(d).Status)
	d, err = c.CheckDomain(t.Context(), d.DomainID)
	require.NoError(t, err)
	require.Equal(t, org.DomainPending, d.Status)
	due, err := c.DomainsDue(t.Context())
	require.NoError(t, err)
	require.True(t, due)
	_, err = c.CheckDomain(t.Context(), "dom-nope")
	require.Equal(t, prego.CodeDomainNotFound, prego.CodeOf(err))
}

// TestFailedQueryIsNotARejection: after a failed query the caller must try again, and no conflict is reported.
func TestFailedQueryIsNotARejection(t *testing.T) {
	t.Parallel()
	c := newClaims(t, "o1")
	d := c.claim("o1", "www.example.org")
	c.exec(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, status, created_by) VALUES ('vol-a', 'o1', 'eu', 'fsn1', 'a', 10000000000, 'hetzner', 'v-a', 'ready', 'a')`)
	c.exec(`ALTER TABLE routes RENAME COLUMN hostname TO away`)
	c.exec(`ALTER TABLE volumes RENAME COLUMN lent_for TO away`)
	_, volume := c.DeleteVolume(impact.By(c.Context(), "test"), "vol-a", "", "a")
	for _, err := range []error{c.DeleteDomain(c.Context(), d.DomainID, "a"), volume} {
		require.Error(t, err)
		require.Equal(t, prego.CodeInternal, prego.CodeOf(err), "%v", err)
	}
}
