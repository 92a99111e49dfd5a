package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// TestPolicyOfDocumentChangesTheActiveOne: absent fields, nulls and empty words change nothing.
func TestPolicyOfDocumentChangesTheActiveOne(t *testing.T) {
	t.Parallel()
	active := placement.DefaultPolicy()
	active.Mode, active.MemoryPctMax, active.Weights.Affinity = tenant.ModeShared, 61, 0.3
	for _, doc := range []string{
		`{}`, `{"policy":{}}`, `{"policy":{"memory_pct_max":null,"max_rejected":null,"weights":null}}`,
		`{"policy":{"mode":"","algorithm":"","empty_pool":"","weights":{"app_load":null}}}`,
	} {
		var d placement.Document
		require.NoError(t, readDocument(strings.NewReader(doc), &d), doc)
		p, _, _, err := d.Build(active)
		require.NoError(t, err, doc)
		require.Equal(t, active, p, doc)
	}
	want := active
	want.Mode, want.Weights.Affinity, want.CPUPctMax, want.MaxRejected = tenant.ModeOneTenantOneServer, 0, 7, 0
	want.SameShard = true
	var d placement.Document
	require.NoError(t, readDocument(strings.NewReader(`{"policy":{"mode":"one_tenant_one_server",
		"weights":{"affinity":0},"cpu_pct_max":7,"max_rejected":0,"same_shard_affinity":true}}`), &d))
	p, _, _, err := d.Build(active)
	require.NoError(t, err)
	require.Equal(t, want, p)
	for doc, field := range map[string]string{
		`{"policy":{"weights":{"app":1}}}`: "policy.weights.app", `{"policy":{"cpu_pct_max":"7"}}`: "policy.cpu_pct_max",
		`{"policy":{"Mode":"shared"}}`: "policy.Mode", `{"policy":{"mode":"shared"},"server":[]}`: "server",
	} {
		var refused *prego.Error
		require.ErrorAs(t, readDocument(strings.NewReader(doc), &placement.Document{}), &refused, doc)
		require.Equal(t, field, refused.Field, doc)
	}
}

// TestDocumentsAreCheckedAsTheAPIDoes: a plan that the API would refuse is refused before it is calculated.
func TestDocumentsAreCheckedAsTheAPIDoes(t *testing.T) {
	t.Parallel()
	const app = `{"servers":[{"server_id":"app-1","role":"app","region":"eu","tags":[`
	const redis = `{"requests":[{"tenant_id":"t-1","region":"eu","dedicated_redis":true,"plan":`
	for want, doc := range map[string]string{
		"servers[0].tags":             app + `"with space"]}]}`,
		"servers[0].tags ":            app + `"` + strings.Repeat("x", 64) + `"]}]}`,
		"requests[0].dedicated_redis": redis + `"starter"}]}`,
		"":                            redis + `"business"}]}`,
	} {
		var d placement.Document
		require.NoError(t, readDocument(strings.NewReader(doc), &d), doc)
		_, _, _, err := d.Build(placement.DefaultPolicy())
		if want == "" {
			require.NoError(t, err, doc)
			continue
		}
		var refused *prego.Error
		require.ErrorAs(t, err, &refused, doc)
		require.Equal(t, strings.TrimSpace(want), refused.Field, doc)
	}
}

// TestPlanPlaceUsesTheActivePolicy: without a policy in the document, the settings of the API and worker decide.
func TestPlanPlaceUsesTheActivePolicy(t *testing.T) {
	const doc = `{"servers":[{"server_id":"app-1","role":"app","region":"eu","infra_provider":"h","memory_pct":40}],
		"db_shards":[{"shard_id":"db-1","region":"eu","tenant_capacity":9}],
		"redis_pools":[{"pool_id":"redis-1","region":"eu","tenant_capacity":9}],
		"infra_providers":[{"id":"h","enabled":true,"regions":["eu"]}],
		"requests":[{"tenant_id":"one","region":"eu","plan":"starter"}]}`
	outcome := func() string {
		cmd, out := newPlanPlaceCommand(), new(strings.Builder)
		cmd.SetIn(strings.NewReader(doc))
		cmd.SetOut(out)
		require.NoError(t, cmd.Execute())
		var line placement.Line
		require.NoError(t, json.Unmarshal([]byte(out.String()), &line), out)
		return string(line.Outcome)
	}
	require.Equal(t, "new_server", outcome(), "one tenant, one server is the system's default")
	t.Setenv("PREGO_SHARED_PLACEMENT_LEGACY", "1")
	require.Equal(t, "on_demand", outcome())
	t.Setenv("PLACEMENT_MEMORY_PCT_MAX", "40")
	require.Equal(t, "awaiting_capacity", outcome())
}
