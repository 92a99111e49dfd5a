package access_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

// TestAccessRolesIncludeWhatTheirHoldersNeed and nothing that is another's.
func TestAccessRolesIncludeWhatTheirHoldersNeed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ role, may, mayNot string }{
		{"operator", "server:drain quota:override tenant:reveal access:grant placement:override", ""},
		{
			"support", "tenant:read server:read audit:read command:read cost:read access:read freeze:read",
			"tenant:reveal server:exec container:logs instance:logs backup:download tenant:create server:delete freeze:create access:grant",
		},
		{
			"auditor", "audit:read audit_chain:read access:read org:read token:read",
			"tenant:read server:read decision:read cost:read access:grant tenant:reveal",
		},
		{"billing", "cost:read quota:read org:read", "quota:override tenant:read audit:read ledger:read org:change"},
		{
			"org_owner",
			"tenant:create tenant:cancel tenant:terminate tenant:reveal tenant:clone backup:restore backup:release backup_policy:change domain:create " +
				"volume:grow group:deploy instance:logs move:read quota:read cost:read audit:read access:grant service_account:create token:revoke " +
				"invitation:create limit_request:create queue:cancel org:read",
			"quota:override move:create move:cancel server:drain server:read server:exec org:create org:change limit_request:decide " +
				"tenant:suspend tenant:resume placement:override placement_pool:associate attention:read stack_registry:change catalog:read access_role:create",
		},
		{
			"developer", "tenant:create tenant:reveal mail:change volume:attach group:roll instance:logs quota:read cost:read limit_request:read",
			"access:grant access:read token:create service_account:read invitation:create limit_request:create audit:read quota:override move:create tenant:resume",
		},
		{
			"org_viewer", "tenant:read backup:read instance:read decision:read event:read search:read quota:read cost:read org:read",
			"instance:logs tenant:reveal tenant:create backup:restore access:read token:read audit:read",
		},
		{
			"provisioner", "org:create org:read tenant:create tenant:read domain:create operation:read progress:read progress:share event:read",
			"server:delete server:read tenant:cancel tenant:terminate tenant:reveal backup:restore org:change quota:override access:grant token:create",
		},
	} {
		r, ok := access.BuiltIn(tc.role)
		require.True(t, ok, tc.role)
		for c := range strings.FieldsSeq(tc.may) {
			require.True(t, r.Includes(access.Capability(c)), "%s: %s", tc.role, c)
		}
		for c := range strings.FieldsSeq(tc.mayNot) {
			require.False(t, r.Includes(access.Capability(c)), "%s: %s", tc.role, c)
		}
	}
	require.Len(t, access.Roles(), 8)
	require.Equal(t, "auditor", access.Roles()[0].Name)
}

// TestProvisionerReachesOnlyItsOrgs: on something larger than an org it may create orgs, and nothing in those of others.
func TestProvisionerReachesOnlyItsOrgs(t *testing.T) {
	t.Parallel()
	p := access.Principal{Grants: []access.Grant{
		{Role: "provisioner"},
		{Role: "provisioner", OrgID: "mine", Orgs: []prego.OrgID{"below", "mine"}},
	}}
	require.Equal(t, access.Reach{Everywhere: true}, p.Reach("org:create"))
	require.Equal(t, access.Reach{Orgs: []prego.OrgID{"mine"}}, p.Reach("tenant:create"))
	require.Equal(t, access.Reach{Orgs: []prego.OrgID{"mine"}}, p.Reach("org:read"))
	require.True(t, p.Reach("server:delete").None())
	require.Equal(t, access.ReasonOtherOrg, access.Decide(p, "tenant:read", "other").Reason)
	require.Equal(t, access.ReasonNoCapability, access.Decide(p, "server:delete", "").Reason)
}

// TestOwnerReachesBelow: a grant on an org holds in all orgs below it, and not on the installation.
func TestOwnerReachesBelow(t *testing.T) {
	t.Parallel()
	p := access.Principal{Grants: []access.Grant{{Role: "org_owner", OrgID: "parent", Orgs: []prego.OrgID{"child", "parent"}}}}
	require.Equal(t, access.Reach{Orgs: []prego.OrgID{"child", "parent"}}, p.Reach("tenant:create"))
	require.True(t, access.Decide(p, "access:grant", "child").Allowed)
	require.False(t, access.Decide(p, "access:grant", "").Allowed)
	require.False(t, access.Decide(p, "quota:override", "child").Allowed)
}
