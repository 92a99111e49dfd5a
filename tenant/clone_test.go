package tenant

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

func TestACloneIsLikeItsTenant(t *testing.T) {
	t.Parallel()
	of := Tenant{
		TenantID: "t-1", Slug: "one", OrgID: "acme", ParentOrgID: "group", Region: prego.RegionEU, Plan: prego.PlanBusiness, ExpectedUsers: 7, StorageQuotaGB: 9, DataResidency: "DE",
		Constraint: prego.Constraint{Require: []string{"blue"}}, DedicatedRedis: true, Apps: []string{"erpnext"}, Policy: ModeShared, AdminEmail: "a@example.com",
	}
	got := CloneRequest{Slug: "two"}.Like(of)
	require.Equal(t, CreateRequest{
		Slug: "two", OrgID: "acme", ParentOrgID: "group", Region: prego.RegionEU, Plan: prego.PlanBusiness, ExpectedUsers: 7, StorageQuotaGB: 9, DataResidency: "DE",
		Constraint: prego.Constraint{Require: []string{"blue"}}, DedicatedRedis: true, Apps: []string{"erpnext"}, Policy: ModeShared,
	}, got)
	smaller := CloneRequest{Slug: "two", Plan: prego.PlanTrial}.Like(of)
	require.False(t, smaller.DedicatedRedis, "not part of that plan")
	require.NoError(t, smaller.Validate())
	require.Error(t, CloneRequest{Slug: "Two"}.Validate())
	require.Error(t, CloneRequest{Slug: "two", Plan: "gold"}.Validate())
}
