package placer_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/placer"
	"github.com/prego/prego/store"
)

// TestRequestIsFilledFromTheRow: each field of a request comes from the tenant's row, from its org's pools, or from the
// caller. A new field has to be added here.
func TestRequestIsFilledFromTheRow(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	_, err := pool.Exec(t.Context(), `
		INSERT INTO orgs (org_id, tier, created_by) VALUES ('acme', 'paid', 'test'), ('parent', 'paid', 'test');
		INSERT INTO placement_pools (pool_id, name, require_tags, disallow_tags, created_by, updated_by)
			VALUES ('fast', 'fast', '{nvme}', '{old}', 'test', 'test'), ('gpus', 'gpus', '{gpu}', '{}', 'test', 'test');
		INSERT INTO org_placement_pools (org_id, pool_id, created_by)
			VALUES ('acme', 'fast', 'test'), ('parent', 'gpus', 'test');
		INSERT INTO tenants (tenant_id, slug, org_id, parent_org_id, region, plan, expected_users, storage_quota_gb,
			data_residency, require_tags, disallow_tags, dedicated_redis, policy, request_hash, state, created_by)
		VALUES ('t', 't', 'acme', 'parent', 'sg', 'business', 7, 8,
			'KR', '{red}', '{blue}', true, 'shared', '', 'trial', 'test')`)
	require.NoError(t, err)
	record, err := store.New(pool).TenantRecord(t.Context(), "t")
	require.NoError(t, err)
	request := placer.RequestOf(record)
	require.Equal(t, placement.Request{
		TenantID: "t", OrgID: "acme", ParentOrgID: "parent", Region: "sg", Plan: "business", DataResidency: "KR",
		Constraint:     prego.Constraint{Require: []string{"nvme", "red"}, Disallow: []string{"blue", "old"}},
		Pools:          []string{"fast"},
		DedicatedRedis: true, Mode: "shared",
	}, request)
	callers := map[string]bool{"Algorithm": true, "Override": true, "Advice": true, "Busy": true}
	for v, i := reflect.ValueOf(request), 0; i < v.NumField(); i++ {
		name := v.Type().Field(i).Name
		require.Equal(t, callers[name], v.Field(i).IsZero(), "%s of the request", name)
	}
}
