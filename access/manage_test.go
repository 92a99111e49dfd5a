package access_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

var capabilities = []access.Capability{
	"org:create", "org:read", "quota:read", "tenant:create", "tenant:read", "domain:create", "domain:read", "access:grant", "access:read",
	"server:delete", "server:read", "token:create", "token:read", "audit:read", "quota:override", "tenant:resume",
}

// TestNobodyGrantsMoreThanTheyHaveThere: not by a built-in access role, a custom one, another org, or a limited token.
func TestNobodyGrantsMoreThanTheyHaveThere(t *testing.T) {
	t.Parallel()
	on := func(role string, org prego.OrgID, below ...prego.OrgID) access.Grant {
		g := access.Grant{Role: role, OrgID: org}
		if org != "" {
			g.Orgs = append(below, org)
		}
		return g
	}
	custom := func(org prego.OrgID, patterns ...string) access.Grant {
		g := on("mine", org)
		g.Custom = patterns
		return g
	}
	by := func(grants ...access.Grant) access.Principal { return access.Principal{Grants: grants} }
	owner, operator := by(on("org_owner", "a", "below")), by(on("operator", ""))
	for what, tc := range map[string]struct {
		by    access.Principal
		grant access.Grant
		may   bool
	}{
		"operator":                                {operator, on("operator", ""), true},
		"operator on an org":                      {operator, on("operator", "a"), true},
		"operator, a provisioner":                 {operator, on("provisioner", ""), true},
		"operator, everything by a custom role":   {operator, custom("", "*"), true},
		"owner, an owner":                         {owner, on("org_owner", "a"), true},
		"owner, a developer below":                {owner, on("developer", "below"), true},
		"owner, elsewhere":                        {owner, on("developer", "b"), false},
		"owner, on the installation":              {owner, on("org_viewer", ""), false},
		"owner, an operator of the org":           {owner, on("operator", "a"), false},
		"owner, support, which reads servers":     {owner, on("support", "a"), false},
		"owner, a provisioner, which makes orgs":  {owner, on("provisioner", "a"), false},
		"owner, a custom role":                    {owner, custom("a", "tenant:create", "*:grant"), true},
		"owner, a custom role with a server":      {owner, custom("a", "tenant:create", "server:delete"), false},
		"owner, all verbs of a thing":             {owner, custom("a", "tenant:*"), false}, // has tenant:resume
		"owner, everything":                       {owner, custom("a", "*"), false},
		"who may only grant":                      {by(custom("a", "access:grant")), on("developer", "a"), false},
		"who may only grant, grants":              {by(custom("a", "access:grant")), custom("a", "access:grant"), true},
		"all parts are not everything":            {by(custom("", "*:*")), on("operator", ""), false},
		"support, everything that it reads":       {by(on("support", "")), custom("b", "*:read"), true},
		"provisioner, its own on its org":         {by(on("provisioner", "mine", "below")), on("provisioner", "mine"), true},
		"provisioner, reads below":                {by(on("provisioner", "mine", "below")), on("org_viewer", "below"), false},
		"provisioner, a role that reaches below":  {by(on("provisioner", "mine", "below")), custom("mine", "tenant:create"), false},
		"provisioner, its own on another's org":   {by(on("provisioner", "")), on("provisioner", "b"), false},
		"provisioner, itself on the installation": {by(on("provisioner", "")), on("provisioner", ""), false},
		"nobody":              {by(), on("billing", "a"), false},
		"a role that is gone": {owner, on("gone", "a"), true}, // it gives nothing
	} {
		err := access.MayGrant(tc.by, tc.grant, capabilities)
		if tc.may {
			require.NoError(t, err, what)
			continue
		}
		require.Equal(t, prego.CodeForbidden, prego.CodeOf(err), what)
	}
	require.EqualError(t, access.MayGrant(owner, on("operator", "a"), capabilities),
		"forbidden: the access role operator includes capabilities that you do not have there yourself: org:create, server:delete, server:read, …")
	for _, limited := range []access.Principal{
		{Grants: operator.Grants, Narrowed: true}, {Grants: operator.Grants, Caveats: []access.Caveats{{RevealsNothing: true}}},
	} {
		require.ErrorContains(t, access.MayGrant(limited, on("billing", "a"), capabilities), "can't give access to others")
	}
}

// TestCreatorsInheritWhatTheyMayOnlyDoInTheirOwnOrgs.
func TestCreatorsInheritWhatTheyMayOnlyDoInTheirOwnOrgs(t *testing.T) {
	t.Parallel()
	provisioner := access.Principal{Grants: []access.Grant{{Role: "provisioner"}, {Role: "provisioner", OrgID: "mine", Orgs: []prego.OrgID{"mine"}}, {Role: "billing"}}}
	require.Equal(t, []string{"provisioner"}, provisioner.Heirs(""))
	require.Equal(t, []string{"provisioner"}, provisioner.Heirs("mine"))
	require.Empty(t, access.Principal{Grants: []access.Grant{{Role: "operator"}}}.Heirs(""), "it reaches the org already")
	require.Empty(t, access.Principal{Grants: []access.Grant{{Role: "provisioner", OrgID: "mine", Orgs: []prego.OrgID{"mine"}}}}.Heirs("other"))
}

func TestPatternsIncludeSomething(t *testing.T) {
	t.Parallel()
	require.NoError(t, access.CheckPatterns([]string{"*", "tenant:*", "*:read", "org:create"}, capabilities))
	for _, p := range []string{"tenants:*", "tenant:fly", "*:fly", "tenant", "", "tenant:*:*", "*:*:*"} {
		require.ErrorContains(t, access.CheckPatterns([]string{"tenant:read", p}, capabilities), "includes no capability", p)
	}
}
