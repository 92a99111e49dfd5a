package tenant

import (
	"cmp"

	"github.com/prego/prego"
)

// CloneRequest is the body of POST /v1/tenants/{tenant_id}/clones.
type CloneRequest struct {
	Slug string `json:"slug"`
	// ReservedSlug allows a reserved label as slug.
	ReservedSlug bool           `json:"reserved_slug,omitempty"`
	BackupID     prego.BackupID `json:"backup_id,omitempty"` // the newest when empty
	Plan         prego.Plan     `json:"plan,omitempty"`      // the tenant's when empty
}

// Validate checks the request's own fields.
func (r CloneRequest) Validate() error {
	if r.Plan != "" && !r.Plan.Valid() {
		return prego.Invalid("plan", "must be one of trial, starter, business, enterprise")
	}
	return cmp.Or(validateSlug(r.Slug), checkReserved(r.Slug, r.ReservedSlug))
}

// Like is the request for a tenant like another one. Its first user is in the backup.
func (r CloneRequest) Like(t Tenant) CreateRequest {
	out := CreateRequest{
		Slug: r.Slug, ReservedSlug: r.ReservedSlug,
		OrgID: t.OrgID, ParentOrgID: t.ParentOrgID, Region: t.Region, Plan: t.Plan, ExpectedUsers: t.ExpectedUsers, StorageQuotaGB: t.StorageQuotaGB,
		DataResidency: t.DataResidency, Constraint: t.Constraint, DedicatedRedis: t.DedicatedRedis, Apps: t.Apps, Policy: t.Policy,
	}
	if r.Plan != "" {
		out.Plan, out.DedicatedRedis = r.Plan, out.DedicatedRedis && (r.Plan == prego.PlanBusiness || r.Plan == prego.PlanEnterprise)
	}
	return out
}

// Mute are the commands that hold a site back: no mail leaves it (frappe/__init__.py,
// are_emails_muted), and its scheduler queues nothing (frappe/utils/scheduler.py,
// is_scheduler_inactive). Both stay so when its database is replaced.
func Mute() [][]string {
	return [][]string{{"set-config", "mute_emails", "1"}, {"set-config", "pause_scheduler", "1"}}
}

// Unmute are the commands that release it. The scheduler of a site that is offline stays off.
func Unmute(online bool) [][]string {
	out := [][]string{{"set-config", "mute_emails", "None"}, {"set-config", "pause_scheduler", "None"}}
	if online {
		out = append(out, []string{"enable-scheduler"})
	}
	return out
}
