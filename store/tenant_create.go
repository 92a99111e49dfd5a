package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/tenant"
)

// What a request must agree with: its org and that one's parent, the country's
// zone, and the clouds of the region, as far as the zone allows them; and what it
// takes.
const sqlTenantFacts = `
SELECT EXISTS (SELECT FROM orgs WHERE org_id = $3) AS org,
    COALESCE((SELECT parent_org_id FROM orgs WHERE org_id = $3), '') AS parent,
    EXISTS (SELECT FROM orgs WHERE org_id = $4) AS parent_known,
    EXISTS (SELECT FROM residency_zones WHERE country = $5) AS country,
    EXISTS (SELECT FROM residency_zones WHERE country = $5 AND $6 = ANY (regions)) AS in_zone,
    EXISTS (SELECT FROM infra_providers WHERE enabled AND $6 = ANY (regions)) AS served,
    EXISTS (SELECT FROM infra_providers i WHERE i.enabled AND $6 = ANY (i.regions) AND residency_allows($5, $6, i.id)) AS served_in_zone,
    size.* FROM (` + sqlTenantSize + `) size`

// As the view counted_tenants counts (TestTakenQuotaMatchesCountedQuota).
const sqlTenantSize = `
SELECT z.memory_bytes + w.overhead_bytes_per_instance AS memory, z.cpu_request AS cpu, GREATEST(z.storage_bytes, $2::bigint * 1000000000) AS storage
FROM tenant_sizes z, workload_settings w WHERE z.plan = $1`

// tenantSize is a tenant's share of its org's quota.
type tenantSize struct{ Memory, CPU, Storage float64 }

func sizeOf(ctx context.Context, tx *txn, plan prego.Plan, storageQuotaGB int) (tenantSize, error) {
	size, err := one[tenantSize](ctx, tx, sqlTenantSize, plan, storageQuotaGB)
	return size, failed("size of a tenant", err)
}

func (z tenantSize) deltas() []quota.Delta {
	return []quota.Delta{
		{Dimension: quota.MaxInstances, By: 1},
		{Dimension: quota.MaxTotalMemoryBytes, By: z.Memory},
		{Dimension: quota.MaxTotalCPURequest, By: z.CPU},
		{Dimension: quota.MaxTotalVolumeBytes, By: z.Storage},
	}
}

// checkTenantFacts refuses what validation of the request alone could not, fills in the parent
// that the org has, and returns what the tenant takes.
func checkTenantFacts(ctx context.Context, tx *txn, r *tenant.CreateRequest) (tenantSize, error) {
	type facts struct {
		tenantSize
		Org                                                bool
		Parent                                             prego.OrgID
		ParentKnown, Country, InZone, Served, ServedInZone bool
	}
	f, err := one[facts](ctx, tx, sqlTenantFacts, r.Plan, r.StorageQuotaGB, r.OrgID, r.ParentOrgID, r.DataResidency, r.Region)
	if err != nil {
		return tenantSize{}, failed("tenant facts", err)
	}
	refuse := func(code prego.Code, field, format string, args ...any) (tenantSize, error) {
		return tenantSize{}, &prego.Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case !f.Org:
		return tenantSize{}, OrgUnknown("org_id")
	case r.ParentOrgID != "" && !f.ParentKnown:
		return tenantSize{}, OrgUnknown("parent_org_id")
	case r.ParentOrgID != "" && f.Parent != "" && f.Parent != r.ParentOrgID:
		return tenantSize{}, prego.Invalid("parent_org_id", fmt.Sprintf("must be %s, the parent of org %s", f.Parent, r.OrgID))
	case r.DataResidency != "" && !f.Country:
		return refuse(prego.CodeResidencyUnknown, "data_residency", "is not a country whose zone is known here")
	case r.DataResidency != "" && !f.InZone:
		return refuse(prego.CodeResidencyViolation, "data_residency", "does not allow region %s", r.Region)
	case !f.Served:
		return refuse(prego.CodeRegionNotServed, "region", "is not served by any provider that is enabled")
	case r.DataResidency != "" && !f.ServedInZone:
		return refuse(prego.CodeResidencyViolation, "data_residency", "allows none of the providers that serve region %s", r.Region)
	}
	if f.Parent != "" {
		r.ParentOrgID = f.Parent
	}
	return f.tenantSize, nil
}

// CreateTenant accepts a request that is validated: the row, its key and its first
// event, in one transaction that also takes the org's quota. Repeating the request with the same key returns
// its tenant, in any state; another request with that key is
// CodeIdempotencyConflict.
func (s *Store) CreateTenant(ctx context.Context, r tenant.CreateRequest, tenantID prego.TenantID, mode tenant.PlacementMode, idempotencyKey, by string) (t tenant.Tenant, created bool, err error) {
	hash := r.Hash() // of the request as it was sent, before the org's parent is filled in
	if r.Policy != "" {
		mode = r.Policy
	}
	var made tenant.Tenant
	read := func(ctx context.Context, id string) (tenant.Tenant, error) {
		if id == string(made.TenantID) {
			return made, nil
		}
		return s.GetTenant(ctx, id)
	}
	return once(ctx, s, keyedRequest(ctx, by, idempotencyKey, "tenant", string(hash[:])), read, func(tx *txn) (string, error) {
		made, err = s.createTenant(ctx, tx, r, hash[:], tenantID, mode, by)
		return string(tenantID), err
	})
}

func (s *Store) createTenant(ctx context.Context, tx *txn, r tenant.CreateRequest, hash []byte, id prego.TenantID, mode tenant.PlacementMode, by string) (t tenant.Tenant, err error) {
	size := got(checkTenantFacts(ctx, tx, &r)).in(tx)
	var cents int64
	deltas := size.deltas()
	if mode == tenant.ModeOneTenantOneServer {
		cents = s.ownServerCents(ctx, tx, r.Region)
		deltas = append(deltas, ownServer(cents)...)
	}
	tx.check(s.takeQuota(ctx, tx, r.OrgID, deltas...))
	payload, err := json.Marshal(map[string]any{"slug": r.Slug, "plan": r.Plan, "region": r.Region, "storage_quota_gb": r.StorageQuotaGB})
	if err != nil {
		return t, fmt.Errorf("event tenant.create: %w", err)
	}
	t, err = insertTenant(ctx, tx, id, r, mode, hash, by, []byte(prego.Redact(string(payload))), cents)
	return t, ifNoRows(err, &prego.Error{Code: prego.CodeSlugTaken, Field: "slug", Message: "belongs to another tenant"})
}
