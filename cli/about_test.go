package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

func TestVersionOfTheProgramAndTheAPI(t *testing.T) {
	t.Parallel()
	on := always(map[string]any{"GET /v1/whoami": api.Caller{Name: "ann", ApiVersion: "v0.1.0"}})
	r := run(t, around{say: on}, "version")
	require.Zero(t, r.code, r.errs)
	require.Regexp(t, `^prego  dev\n(commit .*\n)?go     go1\.\S*.*\napi    http://127.0.0.1:\d+, version v0.1.0\n$`, r.out)
	r = run(t, around{say: on}, "version", "-o", "json")
	require.Contains(t, r.out, `"api_version": "v0.1.0"`)
	r = run(t, around{env: map[string]string{"PREGO_API_URL": "http://127.0.0.1:1"}}, "version")
	require.Zero(t, r.code, r.errs)
	require.Contains(t, r.out, "version unknown: the API at http://127.0.0.1:1 does not answer")
}

func TestWhoami(t *testing.T) {
	t.Parallel()
	until := born.Add(40 * time.Hour)
	on := always(map[string]any{"GET /v1/whoami": api.Caller{Name: "ann", PrincipalId: "sa-1", Grants: []api.CallerGrant{{AccessRole: "operator"}, {AccessRole: "developer", OrgId: "acme"}}, CredentialName: "laptop", ExpiresAt: &until, ApiVersion: "v0.1.0"}})
	r := run(t, around{say: on}, "whoami")
	require.Zero(t, r.code, r.errs)
	require.Regexp(t, `^name       ann\nprincipal  sa-1\naccess     operator on the installation, developer on acme\ntoken      laptop\nexpires    2026-01-03T19:04:05Z, in 4h\napi        http://\S+, version v0.1.0\n$`, r.out)
	dir := t.TempDir()
	env := map[string]string{"XDG_CONFIG_HOME": dir, "PREGO_TOKEN": ""}
	r = run(t, around{say: on, env: env, stdin: "secret\n"}, "login", "prod")
	require.Zero(t, r.code, r.errs)
	r = run(t, around{say: on, env: map[string]string{"XDG_CONFIG_HOME": dir}}, "whoami")
	require.NotContains(t, r.out, "context", "another API's context is not used")
}

func TestOpenPrintsTheConsolesPage(t *testing.T) {
	t.Parallel()
	on := always(map[string]any{
		"GET /v1/tenants?limit=200&slug=acme-eu": api.TenantPage{Tenants: []api.TenantSummary{{TenantId: "t-1", Slug: "acme-eu"}}},
		"POST /v1/console-logins":                api.ConsoleLogin{Path: "/console/login?code=abc"},
	})
	for args, want := range map[string]string{
		"":                          "/console",
		"server":                    "/console/servers",
		"server app-7":              "/console/servers/app-7",
		"tenant acme-eu":            "/console/tenants/t-1",
		"agent release 1.2":         "/console/agent-releases/1.2",
		"release 15.1":              "/console/releases/15.1",
		"tenant acme-eu --login":    "/console/login?code=abc&next=%2Fconsole%2Ftenants%2Ft-1",
		"--login":                   "/console/login?code=abc&next=%2Fconsole",
		"placement-pool":            "/console/placement-pools",
		"patch-wave pw-k3jq5x2m7ab": "/console/patch-waves/pw-k3jq5x2m7ab",
	} {
		r := run(t, around{say: on}, append([]string{"open"}, strings.Fields(args)...)...)
		require.Zero(t, r.code, r.errs)
		require.Regexp(t, `^http://127.0.0.1:\d+\Q`+want+`\E\n$`, r.out, args)
		require.Empty(t, r.browsed, "a pipe has no display")
	}
	r := run(t, around{say: on, width: 80, env: map[string]string{"DISPLAY": ":0"}}, "open", "server")
	require.Equal(t, strings.TrimSpace(r.out), r.browsed)
	for args, want := range map[string]string{
		"servr app-7":       `the console has no page of "servr"; did you mean server?`,
		"server app-7 gone": `the console has no page of "server app-7 gone"; prego open server NAME opens one of its objects`,
		"tenant ghost":      "there is no tenant ghost",
	} {
		r := run(t, around{say: always(map[string]any{"GET /v1/tenants": `{"tenants":[]}`})}, append([]string{"open"}, strings.Fields(args)...)...)
		require.NotZero(t, r.code, args)
		require.Contains(t, r.errs, want, args)
	}
}
