package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// A policy in a document changes what it names: absent fields, nulls and empty words have the defaults.
func TestPolicyOfDocumentStartsAtDefaults(t *testing.T) {
	t.Parallel()
	want := placement.DefaultPolicy()
	want.Mode = tenant.ModeShared
	for _, doc := range []string{
		`{}`, `{"policy":{}}`, `{"policy":{"memory_pct_max":null,"max_rejected":null,"weights":null}}`,
		`{"policy":{"mode":"","algorithm":"","empty_pool":"","weights":{"app_load":null}}}`,
	} {
		var d placement.Document
		require.NoError(t, readDocument(strings.NewReader(doc), &d), doc)
		p, _, _, err := d.Build()
		require.NoError(t, err, doc)
		require.Equal(t, want, p, doc)
	}
	want.Weights.Affinity, want.CPUPctMax, want.MaxRejected, want.SameShard = 0, 7, 0, true
	var d placement.Document
	require.NoError(t, readDocument(strings.NewReader(
		`{"policy":{"weights":{"affinity":0},"cpu_pct_max":7,"max_rejected":0,"same_shard_affinity":true}}`), &d))
	p, _, _, err := d.Build()
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
		_, _, _, err := d.Build()
		if want == "" {
			require.NoError(t, err, doc)
			continue
		}
		var refused *prego.Error
		require.ErrorAs(t, err, &refused, doc)
		require.Equal(t, strings.TrimSpace(want), refused.Field, doc)
	}
}
