package cli

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

// gate is an API that knows one token, and records the tokens it gets.
func gate(t *testing.T, knows string) (url string, sent *[]string) {
	t.Helper()
	sent = &[]string{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if *sent = append(*sent, token); token != knows {
			refuse(http.StatusUnauthorized, "unauthenticated", "the token is unknown")(w)
			return
		}
		say(http.StatusOK, `{"servers":[],"tenants":[{"tenant_id":"t-1","slug":"acme-eu"}]}`)(w)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, sent
}

// at runs the program with an environment.
func at(t *testing.T, env map[string]string, stdin string, args ...string) (out, errs string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	root := program(&CLI{Getenv: func(k string) string { return env[k] }, Now: New(nil).Now, Width: func(any) int { return 0 }}, &o)
	root.SetErr(&e)
	root.SetIn(strings.NewReader(stdin))
	root.SetArgs(args)
	code = Report(&e, root.ExecuteContext(t.Context()))
	return o.String(), e.String(), code
}

func TestContextsAndLogin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := map[string]string{"XDG_CONFIG_HOME": dir}
	prod, sentProd := gate(t, "secret")
	staging, sentStaging := gate(t, "other")
	good := func(stdin string, args ...string) string {
		t.Helper()
		out, errs, code := at(t, env, stdin, args...)
		require.Zero(t, code, "%v: %s", args, errs)
		return out
	}
	bad := func(want, stdin string, args ...string) {
		t.Helper()
		_, errs, code := at(t, env, stdin, args...)
		require.NotZero(t, code, args)
		require.Contains(t, errs, want, args)
	}
	bad("no token for http://127.0.0.1:8080: run prego login", "", "server", "list")
	bad("the token is unknown (unauthenticated)", "wrong\n", "login", "prod", "--api-url", prod)
	require.NoFileExists(t, filepath.Join(dir, "prego", "config.yaml"), "a token that is refused is not stored")
	bad("holds no password or token", "", "login", "prod", "--api-url", prod)
	require.Contains(t, good("secret\n", "login", "prod", "--api-url", prod), "in context prod")
	info, err := os.Stat(filepath.Join(dir, "prego", "config.yaml"))
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	good("", "server", "list")

	file := filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(file, []byte("other\n"), 0o600))
	good("", "context", "add", "staging", "--api-url", staging, "--token-file", file)
	good("", "server", "list", "--context", "staging")
	require.Equal(t, "other", (*sentStaging)[len(*sentStaging)-1])
	env["PREGO_CONTEXT"] = "staging"
	good("", "server", "list")
	delete(env, "PREGO_CONTEXT")
	good("", "context", "use", "staging")
	list := good("", "context", "list", "--no-header")
	require.Regexp(t, `prod +no +`+prod+` +stored\nstaging +yes +`+staging+` +`+file, list)
	require.NotContains(t, list+good("", "context", "list", "-o", "json"), "secret")
	require.Equal(t, "prod\nstaging\n", good("", "context", "list", "-q"))

	// Flags are stronger than the environment, and that is stronger than the context.
	env["PREGO_API_URL"], env["PREGO_TOKEN"] = prod, "secret"
	*sentProd = nil
	good("", "server", "list")
	require.Equal(t, []string{"secret"}, *sentProd)
	good("", "server", "list", "--api-url", staging, "--token-file", file)
	delete(env, "PREGO_TOKEN")
	*sentProd = nil
	bad("no token for "+prod, "", "server", "list")
	require.Empty(t, *sentProd, "a context's token goes to its API only")
	delete(env, "PREGO_API_URL")

	bad(`there is no context "stagin"; did you mean staging?`, "", "context", "use", "stagin")
	bad(`there is no context "nowhere"`, "", "server", "list", "--context", "nowhere")
	good("", "context", "delete", "staging")
	bad("no token", "", "server", "list")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prego", "config.yaml"), []byte("{"), 0o600))
	bad("config.yaml", "", "server", "list")
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	tenants := api.TenantPage{Tenants: []api.TenantSummary{{TenantId: "t-1", Slug: "acme-eu"}, {TenantId: "t-2", Slug: "corp"}}}
	on := always(map[string]any{
		"GET /v1/tenants": tenants, "GET /v1/servers": api.ServerPage{Servers: []api.ServerSummary{{ServerId: "app-1"}}},
		"GET /v1/tenants/t-1/snapshots": api.SnapshotPage{Snapshots: []api.Snapshot{{SnapshotId: "snp-1"}}}, "GET /v1/orgs": api.OrgPage{Orgs: []api.Org{{OrgId: "acme"}}},
	})
	for args, want := range map[string]string{
		"tenant show ":                      "acme-eu\tt-1\ncorp\tt-2\n",
		"tenant show acme-eu ":              "acme-eu\tt-1\ncorp\tt-2\n",
		"snapshot show t-1 ":                "snp-1\n",
		"server show ":                      "app-1\n",
		"server create app-7 --role ":       "app\ndb-shard\nredis-pool\nnode\nedge\n",
		"server list --state ":              "provisioning\nactive\ndraining\nterminated\nfailed\n",
		"pool warm set eu ":                 "trial\nstarter\nbusiness\nenterprise\n",
		"tenant create x --org ":            "acme\n",
		"tenant show -o ":                   "table\njson\nyaml\n",
		"tenant list -o ":                   "table\njson\nyaml\ncsv\n",
		"server exec-nothing-like-it show ": "",
	} {
		words := strings.Fields(args)
		r := run(t, around{say: on}, append(append([]string{"__complete"}, words...), "")...)
		require.Zero(t, r.code, r.errs)
		got, _, _ := strings.Cut(r.out, ":")
		require.Equal(t, want, got, args)
	}
	r := run(t, around{env: map[string]string{"PREGO_API_URL": "http://127.0.0.1:1"}}, "__complete", "tenant", "show", "")
	require.Zero(t, r.code)
	require.NotContains(t, r.out, "acme", "without an API there is nothing to offer")
	for _, shell := range []string{"bash", "zsh", "fish"} {
		require.NotEmpty(t, run(t, around{}, "completion", shell).out)
	}
	r = run(t, around{}, "completion", "bahs")
	require.Equal(t, ExitUsage, r.code)
	require.Contains(t, r.errs, "did you mean bash")
}

func TestSizesAreReadAndWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"64G": 64 << 30, "1.5 GiB": 3 << 29, "512m": 512 << 20, "7": 7, "2GB": 2 << 30, "1T": 1 << 40} {
		n, err := memory(text)
		require.NoError(t, err, text)
		require.Equal(t, want, n, text)
		again, err := memory(bytesText(n))
		require.NoError(t, err)
		require.Equal(t, n, again, "a written file can be read")
	}
	for text, want := range map[string]int64{"20GB": 20e9, "20G": 20e9, "1.5TB": 15e11, "10GiB": 10 << 30} {
		n, err := disk(text)
		require.NoError(t, err, text)
		require.Equal(t, want, n, text)
	}
	for _, text := range []string{"", "lots", "-1", "1X", "9223372036854775807T"} {
		_, err := memory(text)
		require.Error(t, err, text)
		_, err = disk(text)
		require.Error(t, err, text)
	}
	require.Equal(t, "20 GB", diskText(20e9))
}
