package api_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

// TestBackupPoliciesAreSetAndTried: of a plan, of a tenant, and back.
func TestBackupPoliciesAreSetAndTried(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	id := b.withSite("acme", "alpha")
	of := "/v1/backup-policies/" + id
	policy := func(status int, method, path, body string) api.BackupPolicy {
		t.Helper()
		return as[api.BackupPolicy](t, b.ok(status, method, path, body))
	}
	plan := policy(200, http.MethodGet, of, "")
	require.Equal(t, "plan", plan.Source)
	require.Len(t, *plan.Next, 5)

	const wanted = `{"schedule":" 30  1,13 * * * ","spread_seconds":0,"keep_daily":14,"keep_weekly":8,"keep_monthly":12}`
	tried := planned[api.BackupPolicy](t, b.ok(200, http.MethodPut, of+"?dry_run=true", wanted))
	require.Equal(t, "tenant", tried.Source)
	require.Equal(t, 30, (*tried.Next)[0].Minute())
	require.Equal(t, "plan", policy(200, http.MethodGet, of, "").Source, "nothing is written")
	own := policy(200, http.MethodPut, of, wanted)
	require.Equal(t, "tenant", own.Source)
	require.Equal(t, "30 1,13 * * *", own.Schedule)
	require.Equal(t, *tried.Next, *own.Next)
	require.Len(t, *own.Changes, 1)
	require.Len(t, as[api.BackupPolicyPage](t, b.ok(200, http.MethodGet, "/v1/backup-policies", "")).BackupPolicies, 6)

	for body, field := range map[string]string{
		`{"schedule":"0 0 30 2 *","keep_daily":1,"keep_weekly":0,"keep_monthly":0}`:                       "schedule", // never
		`{"schedule":"*/5 * * * *","keep_daily":1,"keep_weekly":0,"keep_monthly":0}`:                      "schedule", // too often
		`{"schedule":"@daily","keep_daily":1,"keep_weekly":0,"keep_monthly":0}`:                           "schedule",
		`{"schedule":"0 2 * * *","keep_daily":0,"keep_weekly":0,"keep_monthly":0}`:                        "keep_daily", // nothing
		`{"schedule":"0 2 * * *","keep_daily":1,"keep_weekly":0,"keep_monthly":0,"spread_seconds":86401}`: "spread_seconds",
		`{"schedule":"0 2 * * *","keep_daily":367,"keep_weekly":0,"keep_monthly":0}`:                      "keep_daily",
		`{"schedule":"TZ=Asia/Kolkata 0 2 * * *","keep_daily":1,"keep_weekly":0,"keep_monthly":0}`:        "schedule",
	} {
		p := as[api.Problem](t, b.ok(422, http.MethodPut, of, body))
		require.Equal(t, field, *p.Field, body)
	}
	require.Contains(t, *as[api.Problem](t, b.ok(422, http.MethodPut, of, `{"schedule":"*/5 * * * *","keep_daily":1,"keep_weekly":0,"keep_monthly":0}`)).Detail, "15 minutes")

	require.Equal(t, "a case", policy(200, http.MethodPut, of+"/hold", `{"reason":"a case"}`).Hold.Reason)
	require.Nil(t, policy(200, http.MethodDelete, of+"/hold", "").Hold)
	require.Equal(t, "plan", policy(200, http.MethodDelete, of, "").Source)
	require.Empty(t, policy(200, http.MethodPut, "/v1/backup-policies/trial", `{"schedule":"","keep_daily":1,"keep_weekly":0,"keep_monthly":0}`).Schedule)
	require.Nil(t, policy(200, http.MethodGet, "/v1/backup-policies/trial", "").Next)
	for _, path := range []string{"/v1/backup-policies/trial", "/v1/backup-policies/trial/hold"} {
		require.Equal(t, "owner", *as[api.Problem](t, b.ok(422, http.MethodDelete, path, "")).Field)
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		require.Equal(t, "tenant_not_found", as[api.Problem](t, b.ok(404, method, "/v1/backup-policies/t-ghost", "")).Code)
	}
	require.Equal(t, "tenant_not_found", as[api.Problem](t, b.ok(404, http.MethodPut, "/v1/backup-policies/t-ghost?dry_run=true", wanted)).Code)
}

// TestAnOrgsBackupsHaveALimit: a request above it is refused with the current use and the limit.
func TestAnOrgsBackupsHaveALimit(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.reachable("app-1")
	id := b.withSite("acme", "alpha")
	space := as[api.BackupSpace](t, b.ok(200, http.MethodGet, "/v1/orgs/acme/backup-space", ""))
	require.Equal(t, "quota", space.Source)
	require.False(t, space.Over)
	space = as[api.BackupSpace](t, b.ok(200, http.MethodPut, "/v1/orgs/acme/backup-space", `{"limit_bytes":0,"reason":"unpaid"}`))
	require.Equal(t, "override", space.Source)
	require.True(t, space.Over)
	p := as[api.Problem](t, b.ok(409, http.MethodPost, "/v1/tenants/"+id+"/backups", ""))
	require.Equal(t, "backup_limit_reached", p.Code)
	require.Contains(t, *p.Detail, "its limit is 0.0 GB")
	require.Equal(t, "quota", as[api.BackupSpace](t, b.ok(200, http.MethodDelete, "/v1/orgs/acme/backup-space", "")).Source)
	b.ok(202, http.MethodPost, "/v1/tenants/"+id+"/backups", "")
	require.Equal(t, "not_found", as[api.Problem](t, b.ok(404, http.MethodGet, "/v1/orgs/ghost/backup-space", "")).Code)
	require.Len(t, b.orgEvents("acme", "?type=org.backup_limit_set").Events, 2)
}
