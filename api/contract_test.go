package api_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

// TestTheContractHoldsTheRules: what no handler checks any more is refused by the
// contract, with the field and a code.
func TestTheContractHoldsTheRules(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	long := strings.Repeat("x", 4097)
	for _, tc := range []struct{ request, body, refusal string }{
		{"POST /v1/servers/app-1/exec", `{"kind":"sh","args":["x"]}`, "kind_unknown kind must be one of bench, mariadb, redis-cli"},
		{"POST /v1/servers/app-1/exec", `{"kind":"bench","args":[]}`, "invalid_field args must be 1 to 32 items"},
		{"POST /v1/servers/app-1/exec", `{"kind":"bench","args":["` + long + `"]}`, "invalid_field args[0] must be 0 to 4096 characters"},
		{"POST /v1/servers/app-1/exec", `{"kind":"bench","args":["a\u0000b"]}`, "invalid_field args[0] must not contain NUL"},
		{"POST /v1/servers/app-1/exec", `{"kind":"bench","args":["x"],"timeout_seconds":721}`, "invalid_field timeout_seconds must be 1 to 720"},
		{"POST /v1/servers/app-1/exec", `{"kind":"bench","args":["x"],"tenant_id":"T"}`, "invalid_field tenant_id must be lower-case letters, digits and hyphens, with a letter or digit at both ends"},
		{"GET /v1/servers/app-1/containers/A/logs", "", "invalid_field name must be lower-case letters, digits and hyphens, with a letter or digit at both ends"},
		{"GET /v1/servers/app-1/containers/a/logs?tail=10001", "", "invalid_field tail must be 1 to 10000"},
		{"GET /v1/servers/app-1/containers/a/logs?tenant_id=T", "", "invalid_field tenant_id must be lower-case letters, digits and hyphens, with a letter or digit at both ends"},
		{"GET /v1/server-stats?days=367", "", "invalid_field days must be 1 to 366"},
		{"PATCH /v1/servers/app-1", `{"tags":["a b"]}`, "invalid_field tags[0] must be printable ASCII without spaces"},
		{"PATCH /v1/tenants/t-1", `{}`, "invalid_field constraint is required, where nothing else is given"},
		{"PATCH /v1/tenants/t-1", `{"constraint":{"require":["a b"]}}`, "invalid_field constraint.require[0] must be printable ASCII without spaces"},
		{"PATCH /v1/tenants/t-1", `{"stack":"a b"}`, "invalid_field stack must be printable ASCII without spaces"},
		{"POST /v1/tenants", `{"slug":"xn--e1afmkfd-385f3","org_id":"acme","region":"eu","plan":"starter"}`, `invalid_field slug is no name that browsers or certificate authorities take: idna: invalid label "e1afmkfd-385f3"`},
		{"POST /v1/tenants", `{"slug":"ab--cd","org_id":"acme","region":"eu","plan":"starter"}`, `invalid_field slug is no name that browsers or certificate authorities take: idna: invalid label "ab--cd"`},
		{"POST /v1/tenants/t-1/clones", `{"slug":"xn--e1afmkfd-385f3"}`, `invalid_field slug is no name that browsers or certificate authorities take: idna: invalid label "e1afmkfd-385f3"`},
		{
			"POST /v1/tenants", `{"slug":"autodiscover","org_id":"acme","region":"eu","plan":"starter"}`,
			"invalid_field slug is reserved: mail programs look for their settings there; " +
				"an operator who means it sets reserved_slug",
		},
		{
			"POST /v1/tenants/t-1/clones", `{"slug":"0"}`,
			"invalid_field slug is reserved: numbers are read as parts of addresses; " +
				"an operator who means it sets reserved_slug",
		},
		{"POST /v1/domains", `{"org_id":"acme","name":"xn--e1afmkfd-385f3.shop.example"}`, `invalid_field hostname is no name that browsers or certificate authorities take: idna: invalid label "e1afmkfd-385f3"`},
		{"POST /v1/envs/env-a/routes", `{"group_id":"grp-0123456789ab","hostname":"xn--e1afmkfd-385f3.shop.example","listener":"shared_v6","listen_port":443,"protocol":"http","target_port":80}`, `invalid_field hostname is no name that browsers or certificate authorities take: idna: invalid label "e1afmkfd-385f3"`},
		{"POST /v1/tenants/t-1/suspend", `{"reason":"a\u0007"}`, "invalid_field reason must be text without control characters"},
		{"POST /v1/tenants/t-1/users", `{"email":"a@b.c","password":"secret"}`, "invalid_field password must be one of generate, none"},
		{"POST /v1/tenants/t-1/restores", `{"snapshot_id":"x"}`, "invalid_field snapshot_id must be an id like snp-0123456789ab"},
		{"PUT /v1/tenants/t-1/storage-quota", `{"gb":0}`, "invalid_field gb must be 1 to 100000"},
		{"POST /internal/placement-overrides", `{"tenant_id":"t-1","reason":" \n"}`, "invalid_field reason must be text without control characters, and not blank"},
		{"POST /v1/placements/simulate", `{"requests":[]}`, "invalid_field requests must be 1 to 10000 items"},
		{"PUT /v1/site-pool-policies/trial", `{"low_watermark":-1,"target":101,"slo_seconds":86401}`, "invalid_field low_watermark must be 0 to 100; slo_seconds must be 1 to 86400; target must be 0 to 100"},
		{"PUT /v1/site-pool-policies/trial", `{}`, "invalid_field low_watermark is required; slo_seconds is required; target is required"},
		{"PUT /v1/site-pool-policies/trial", `{"low_watermark":2,"target":1,"slo_seconds":1}`, "invalid_field target must be at least low_watermark"},
		{"PUT /v1/warm-pools/eu/trial", `{"target":101}`, "invalid_field target must be 0 to 100"},
		{"PUT /v1/warm-pools/eu/trial", `{}`, "invalid_field target is required"},
		{"PUT /v1/orgs/acme", `{"parent_org_id":"A","tier":"gold"}`, "invalid_field parent_org_id must be lower-case letters, digits and hyphens, with a letter or digit at both ends; tier must be free, paid or enterprise"},
		{"PUT /v1/orgs/acme/quotas/max_apps", `{}`, "invalid_field limit is required; reason is required"},
		{"PUT /v1/orgs/acme/quotas/max_apps", `{"limit":-1,"reason":" "}`, "invalid_field limit must be 0 to 9007199254740991; reason must be text without control characters, and not blank"},
		{"PUT /v1/orgs/acme/quotas/max_apps", `{"limit":0.5,"reason":"x"}`, "invalid_field limit must be a whole number for max_apps"},
		{"DELETE /v1/orgs/acme/quotas/max_apps", `{"reason":"\u001b[1m"}`, "invalid_field reason must be text without control characters"},
		{"POST /v1/apps", `{"org_id":"acme","name":"A"}`, "invalid_field name must be lower-case letters, digits and hyphens, with a letter or digit at both ends"},
		{"POST /v1/apps/app-1/envs", `{"name":"","region":"mars"}`, "invalid_field name must be 1 to 63 characters; region must be one of sg, eu, us"},
		{"PUT /v1/fleets/web/policies/spread", `{"position":0}`, "invalid_field position must be 1 to 1000000"},
		{"POST /v1/groups/grp-0123456789ab/scale", `{"replicas":10001}`, "invalid_field replicas must be 0 to 10000"},
		{"POST /v1/groups/grp-0123456789ab/scale", `{}`, "invalid_field replicas is required"},
		{"POST /v1/groups/grp-0123456789ab/deploys", `{}`, "invalid_field spec is required"},
		{"POST /v1/volumes/vol-1/attachments", `{"group_id":"x","mount_path":"/data"}`, "invalid_field group_id must be an id like grp-0123456789ab"},
	} {
		method, path, _ := strings.Cut(tc.request, " ")
		contentType := js
		if tc.body == "" {
			contentType = ""
		}
		_, body := b.do(method, path, "operator", contentType, tc.body)
		p := as[api.Problem](t, body)
		var said []string
		require.NotNil(t, p.Errors, "%s %s: %s", tc.request, tc.body, body)
		for _, e := range *p.Errors {
			require.Equal(t, p.Code, e.Code)
			said = append(said, e.Field+" "+e.Message)
		}
		require.Equal(t, tc.refusal, p.Code+" "+strings.Join(said, "; "), "%s %s", tc.request, tc.body)
	}
	for _, path := range []string{"/v1/tenants", "/v1/apps", "/v1/apps/app-1/envs", "/v1/fleets/web/actions"} {
		for _, key := range []string{"", "a b", strings.Repeat("k", 256)} {
			resp, body := b.sendWith("POST", path, `{}`, "Idempotency-Key", key)
			require.Equal(t, 422, resp.StatusCode, "%s", body)
			require.Contains(t, string(body), `"field":"Idempotency-Key"`)
		}
	}
}
