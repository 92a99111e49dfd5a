package api

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

func TestLimiterRemembersABoundedNumberOfCallers(t *testing.T) {
	t.Parallel()
	l := newCallerLimiter(0.001, 1)
	allow := func(key string) error {
		_, err := l.allow(t.Context(), []budget{{policy: "token", key: key, times: 1}})
		return err
	}
	require.NoError(t, allow("first"))
	require.Equal(t, prego.CodeRateLimited, prego.CodeOf(allow("first")))
	for i := range 3 * maxCallers {
		require.NoError(t, allow(fmt.Sprint("caller ", i)))
	}
	require.Len(t, l.byKey, maxCallers)
	require.Equal(t, maxCallers, l.order.Len())
	require.Equal(t, prego.CodeRateLimited, prego.CodeOf(allow(fmt.Sprint("caller ", 3*maxCallers-1))), "the last ones are remembered")
	require.NoError(t, allow("first"), "a caller that was long absent starts over")
}

// TestRatesOfTokensPrincipalsAndOrgs: neither more tokens nor more service accounts let an org send more than its share,
// and a refused request takes nothing from the others.
func TestRatesOfTokensPrincipalsAndOrgs(t *testing.T) {
	t.Parallel()
	l := newCallerLimiter(0.001, 2)
	of := func(principal, credential string, orgs ...prego.OrgID) access.Principal {
		p := access.Principal{PrincipalID: principal, CredentialID: credential}
		for _, org := range orgs {
			p.Grants = append(p.Grants, access.Grant{Role: "developer", OrgID: org, Orgs: []prego.OrgID{org}})
		}
		return p
	}
	sent := func(p access.Principal) (n int, policy string) {
		for ; ; n++ {
			left, err := l.allow(t.Context(), budgetsOf(p))
			if err != nil {
				require.Equal(t, prego.CodeRateLimited, prego.CodeOf(err))
				require.Positive(t, left.reset)
				return n, left.policy
			}
		}
	}
	for _, tc := range []struct {
		p      access.Principal
		n      int
		policy string
	}{
		{of("a", "a1", "acme"), 2, "token"},
		{of("a", "a2", "acme"), 2, "token"},
		{of("a", "a3", "acme"), 0, "principal"},
		{of("b", "b1", "acme"), 2, "token"},
		{of("b", "b2", "acme"), 2, "token"},
		{of("c", "c1", "acme"), 0, "org"},
		{of("c", "c2", "acme", "other"), 2, "token"}, // its own rate only: it is not one org's
		{of("c", "c1", "mine"), 2, "token"},          // the refused one took nothing
		{of("d", "", ""), 2, "token"},
	} {
		n, policy := sent(tc.p)
		require.Equal(t, []any{tc.n, tc.policy}, []any{n, policy}, "%+v", tc.p)
	}
	require.Equal(t, `"token";q=2;w=2000, "principal";q=4;w=2000, "org";q=8;w=2000`, l.policies(budgetsOf(of("a", "a1", "acme"))))
}

func TestCallersByNetwork(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"192.0.2.7:1234":              "192.0.2.7",
		"[::ffff:192.0.2.7]:1234":     "192.0.2.7",
		"[2001:db8:1:2:3:4:5:6]:1":    "2001:db8:1:2::/64",
		"[2001:db8:1:2::9]:1":         "2001:db8:1:2::/64",
		"[fe80::1%eth0]:1":            "fe80::/64",
		"@":                           "@",
		"not-an-address.invalid:1234": "not-an-address.invalid",
	} {
		require.Equal(t, want, Network(&http.Request{RemoteAddr: address}), address)
	}
}
