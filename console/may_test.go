package console

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

var operator = &visitor{Principal: access.Principal{PrincipalID: "ada", Name: "ada", Grants: []access.Grant{{Role: "operator"}}}}

// of is a user with an access role on orgs.
func of(role string, orgs ...prego.OrgID) *visitor {
	v := &visitor{Principal: access.Principal{PrincipalID: "eve", Name: "eve"}}
	for _, org := range orgs {
		v.Grants = append(v.Grants, access.Grant{Role: role, OrgID: org, Orgs: []prego.OrgID{org}})
	}
	return v
}

// TestPagesAreThoseOfTheUser: nobody is led to a page that answers with a refusal.
func TestPagesAreThoseOfTheUser(t *testing.T) {
	t.Parallel()
	pages := func(v *visitor) (out []string) {
		for _, g := range v.offered(navigation("")) {
			for _, i := range g.Items {
				out = append(out, i.Text)
			}
		}
		return out
	}
	require.Greater(t, len(pages(operator)), 30)
	require.Equal(t, pages(operator), pages(&visitor{Principal: access.Principal{Grants: []access.Grant{{Role: "support"}}}}))
	owner := pages(of("org_owner", "acme"))
	require.Subset(t, owner, []string{"Queue", "Tenants", "Orgs and quotas", "Custom domains", "Backups", "Apps", "Volumes", "Costs", "Upcoming deletions", "Audit"})
	for _, theirs := range []string{"Now", "Fleet map", "Servers", "Fleets", "Policies", "Placement pools", "Releases", "Ledger", "Registries"} {
		require.NotContains(t, owner, theirs)
	}
	require.Equal(t, []string{"Orgs and quotas", "Limit requests", "Tokens", "Logins", "Costs"}, pages(of("billing", "acme")))
	require.Equal(t, []string{"Tokens", "Logins"}, pages(of("org_owner")))
}

// TestButtonsAreThoseOfTheUser: by capability, and by the org of the thing on the page.
func TestButtonsAreThoseOfTheUser(t *testing.T) {
	t.Parallel()
	c := &Console{}
	labels := func(v *visitor, thing object) (out []string) {
		ec := echo.New().NewContext(httptest.NewRequest(http.MethodGet, "/", http.NoBody), httptest.NewRecorder())
		ec.Set(visitorKey, v)
		for _, b := range c.buttons(ec, "createBackup, createMove, setOrgQuota", map[string]string{"tenant_id": "t-1"}, thing) {
			out = append(out, b.Label)
		}
		return out
	}
	acme := object{"org_id": "acme", "state": "active", "allocation": map[string]any{"app_server_id": "app-1"}}
	require.Equal(t, []string{"Back up", "Move", "Override a quota"}, labels(operator, acme))
	require.Equal(t, []string{"Back up"}, labels(of("developer", "acme"), acme))
	require.Empty(t, labels(of("developer", "other"), acme))
	require.Empty(t, labels(of("org_viewer", "acme"), acme))
}

// TestHomeIsTheUsersOrg: who may not see the installation begins at an org, or at the list of several.
func TestHomeIsTheUsersOrg(t *testing.T) {
	t.Parallel()
	c := &Console{}
	to := func(v *visitor) string {
		w := httptest.NewRecorder()
		ec := echo.New().NewContext(httptest.NewRequest(http.MethodGet, "/console", http.NoBody), w)
		ec.Set(visitorKey, v)
		require.NoError(t, c.home(func(ec echo.Context) error { return ec.NoContent(http.StatusOK) })(ec))
		return w.Header().Get("Location")
	}
	require.Empty(t, to(operator))
	require.Equal(t, "/console/orgs/acme", to(of("org_owner", "acme")))
	require.Equal(t, "/console/orgs", to(of("org_owner", "acme", "other")))
	require.Equal(t, "/console/orgs", to(of("org_owner")))
}
