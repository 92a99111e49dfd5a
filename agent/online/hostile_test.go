package online

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	agentexec "github.com/prego/prego/agent/exec"
	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

func TestATokenIsNotTakenByTheNextAgentEither(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.serve(ctx, agenttest.Quiet()) }()
	c := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	token := g.Token(t, nil)
	status, _ := a.call(t, c, token, agenttest.Body)
	require.Equal(t, http.StatusUnprocessableEntity, status)
	cancel()
	require.NoError(t, <-done)

	again, err := New(a.host, "127.0.0.1", "v-test", agenttest.Quiet())
	require.NoError(t, err)
	agenttest.Loop(t, func(ctx context.Context) error { return again.serve(ctx, agenttest.Quiet()) })
	c = g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	status, code := again.call(t, c, token, agenttest.Body)
	require.Equal(t, []any{http.StatusUnauthorized, "unauthenticated"}, []any{status, code})
	status, _ = again.call(t, c, g.Token(t, nil), agenttest.Body)
	require.Equal(t, http.StatusUnprocessableEntity, status, "another one is")
}

// TestATokenIsForOneKind sends well-formed requests of each kind with tokens of
// the others, on both paths.
func TestATokenIsForOneKind(t *testing.T) {
	t.Parallel()
	g, a := serving(t)
	c := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	bodies := map[string]string{
		"bench": `{"serverId":"app-1","kind":"bench","args":["list-sites"]}`, "mariadb": `{"serverId":"app-1","kind":"mariadb","args":["databases"]}`,
		"redis-cli": `{"serverId":"app-1","kind":"redis-cli","args":["ping"]}`,
	}
	for kind, body := range bodies {
		for other := range bodies {
			if kind == other {
				continue
			}
			for _, path := range []string{wire.PathExec, wire.PathExecStream} {
				token := g.Token(t, func(c jwt.MapClaims) { c["scope"], c["body"] = "exec."+other, policy.Digest([]byte(body)) })
				resp, err := a.send(c, http.MethodPost, path, "Bearer "+token, body)
				require.NoError(t, err)
				require.Equal(t, []any{http.StatusForbidden, "scope_missing"}, []any{resp.StatusCode, resp.problem.Code})
			}
		}
	}
}

// TestBenchHasNoEscapes asks the process behind, as one would who took over the
// one in front.
func TestBenchHasNoEscapes(t *testing.T) {
	t.Parallel()
	a, _ := withBench(t, `echo ran >> ran`)
	behind := executorClient(a.host)
	site := "a.example.com"
	for _, args := range [][]string{
		{"console"},
		{"--site", site, "console"},
		{"--site", site, "execute", "frappe.utils.get_site_name"},
		{"--site", site, "execute", "os.system", "--args", "['id']"},
		{"--site", site, "mariadb"},
		{"--site", site, "db-console"},
		{"--site", site, "--", "console"},
		{"--", "list-sites"},
		{"list-sites", "--"},
		{"--site", site, "backup", "--", "-x"},
		{"--site", site, "backup", "--backup-path", "/etc"},
		{"--site", site, "restore", "/etc/passwd"},
		{"--site", site, "run-patch", "x"},
		{"--site", site, "request", "--path", "/"},
		{"--site", site, "jupyter"},
		{"--site", site, "run-tests"},
		{"--site", site, "build"},
		{"--site", site, "set-admin-password", "x"},
		{"--site", site, "add-system-manager", "x@y.z"},
		{"--site", site, "data-import", "--file", "/etc/passwd"},
		{"get-app", "https://example.com/x"},
		{"init", "x"},
		{"update"},
		{"pip", "install", "x"},
		{"setup", "sudoers", "root"},
		{"--verbose", "list-sites"},
		{"--site=" + site, "list-apps"},
		{"--site", site + ";id", "list-apps"},
		{"--site", "$(id).example.com", "list-apps"},
		{"--site", "`id`.com", "list-apps"},
		{"--site", site + " x", "list-apps"},
		{"--site", "all", "list-apps"},
		{"--site", "../" + site, "list-apps"},
		{"list-sites;id"},
		{"list-sites|id"},
		{"list-sites\nid"},
		{"list-sites", "&&", "id"},
		{"--site", site, "install-app", "--force"},
		{"--site", site, "install-app", "x;id"},
		{"drop-site", site, "--force", "--no-backup", "--archived-sites-path", "/"},
		{"--site", site, "set-config", "k", "v", "--parse"},
		{"--site", site, "set-config", "prego_tenant_id", "a\tb"},
		{"--site", site, "set-config", "prego_tenant_id", ""},
		{"new-site", site, "--db-name", "x", "--db-root-password", "y"},
		{"new-site", "--db-name", "x", site},
	} {
		in := wire.ExecRequest{ServerID: agenttest.Server, Kind: wire.KindBench, Args: args}
		for _, path := range []string{wire.PathExec, wire.PathExecStream} {
			status, p := ask(t, behind, path, in)
			require.Equal(t, http.StatusUnprocessableEntity, status, "%q", args)
			require.Contains(t, []string{"command_not_allowed", "invalid_field"}, p.Code, "%q", args)
		}
	}
	for name, body := range map[string]string{
		"another server": `{"serverId":"app-2","kind":"bench","args":["list-sites"]}`, "no kind": `{"serverId":"app-1","args":["list-sites"]}`, "a shell": `{"serverId":"app-1","kind":"sh","args":["-c","id"]}`,
		"another field": `{"serverId":"app-1","kind":"bench","args":["list-sites"],"env":{"LD_PRELOAD":"x"}}`, "a directory": `{"serverId":"app-1","kind":"bench","args":["list-sites"],"workingDir":"/"}`,
	} {
		resp, err := behind.Post("http://exec"+wire.PathExec, "application/json", strings.NewReader(body))
		require.NoError(t, err)
		_ = resp.Body.Close()
		require.GreaterOrEqual(t, resp.StatusCode, 400, name)
	}
	for _, path := range []string{"/", "/agent/v1", "/healthz", wire.PathExec + "/x"} {
		status, _ := ask(t, behind, path, wire.ExecRequest{})
		require.Equal(t, http.StatusNotFound, status, path)
	}
	require.NoFileExists(t, a.inBench("ran"))
	status, _ := ask(t, behind, wire.PathExec, wire.ExecRequest{ServerID: agenttest.Server, Kind: wire.KindBench, Args: []string{"list-sites"}})
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, 1, agenttest.Lines(t, a.inBench("ran")))
}

// ask sends a request to the process behind.
func ask(t testing.TB, c *http.Client, path string, in wire.ExecRequest) (int, wire.Problem) {
	t.Helper()
	b, err := json.Marshal(in)
	require.NoError(t, err)
	resp, err := c.Post("http://exec"+path, "application/json", strings.NewReader(string(b)))
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	var p wire.Problem
	_ = json.NewDecoder(resp.Body).Decode(&p)
	return resp.StatusCode, p
}

func TestASocketsNameMayBeLong(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	h := &host.Host{Root: root, Config: wire.HostConfig{ServerID: agenttest.Server}}
	for range 2 {
		executing(t, h)
		status, p := ask(t, executorClient(h), wire.PathExec, wire.ExecRequest{ServerID: agenttest.Server, Kind: wire.KindBench, Args: []string{"console"}})
		require.Equal(t, []any{http.StatusUnprocessableEntity, "command_not_allowed"}, []any{status, p.Code})
	}
}

func TestWhatACommandPrintsIsBounded(t *testing.T) {
	t.Parallel()
	_, call := withBench(t, `case $1 in
list-sites) head -c 10485760 /dev/zero | tr '\0' 'x'; echo end ;;
*) yes "no end" ;;
esac`)
	out := call(wire.ExecRequest{TimeoutSeconds: 60})
	require.Equal(t, http.StatusOK, out.StatusCode)
	require.Len(t, out.result.StdoutTruncated, agentexec.MaxOutput)
	require.True(t, strings.HasSuffix(out.result.StdoutTruncated, "xend\n"))
	out = call(wire.ExecRequest{TimeoutSeconds: 1, Args: []string{"--site", "a.b", "backup", "one"}})
	require.Equal(t, agentexec.ExitTimeout, out.result.ExitCode)
	require.LessOrEqual(t, len(out.result.StdoutTruncated), agentexec.MaxOutput)
}

// TestNobodyEscapesTheTimeout starts commands that don't want to end.
func TestNobodyEscapesTheTimeout(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"ignores every signal": `trap '' TERM INT HUP QUIT PIPE; echo $$ > child; while :; do sleep 0.1; done`,
		"forks and continues":  `(trap '' HUP TERM; while :; do sleep 0.1; done) & echo $! > child; wait`,
		"forks and forks":      `f() { sh -c 'sleep 300 & sleep 300 & wait' & }; for i in 1 2 3 4 5 6 7 8 9 10; do f; done; echo $! > child; wait`,
		"holds the streams":    `sleep 300 & echo $! > child; exec sleep 300`,
		"stops itself":         `echo $$ > child; kill -STOP $$; sleep 300`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, call := withBench(t, script)
			began := time.Now()
			out := call(wire.ExecRequest{TimeoutSeconds: 1})
			require.Equal(t, agentexec.ExitTimeout, out.result.ExitCode)
			require.Less(t, time.Since(began), 20*time.Second)
			agenttest.Gone(t, agenttest.PIDIn(t, a.inBench("child")))
		})
	}
}

// TestARunawayHoldsUpNothing leaves the process group with a stream in its hand.
func TestARunawayHoldsUpNothing(t *testing.T) {
	t.Parallel()
	a, call := withBench(t, `setsid sleep 300 & echo $! > child; sleep 0.3; echo done`)
	began := time.Now()
	out := call(wire.ExecRequest{})
	require.Equal(t, "done\n", out.result.StdoutTruncated)
	require.Less(t, time.Since(began), 10*time.Second)
	_ = syscall.Kill(agenttest.PIDIn(t, a.inBench("child")), syscall.SIGKILL) // on a host its unit has it
}

func TestSitesBelongToTheirTenants(t *testing.T) {
	t.Parallel()
	a, call := withBench(t, `echo "$@" >> ran
case $1/x in
new-site/*) mkdir -p "sites/$2" ;;
promote-site/*) [ ! -d "sites/$2" ] || mv "sites/$2" "sites/$3" ;;
erase-site/*) rm -rf "sites/$2" ;;
esac`)
	do := func(tenant string, args ...string) (int, string) {
		out := call(wire.ExecRequest{TenantID: tenant, Args: args})
		return out.StatusCode, out.problem.Code
	}
	good := func(tenant string, args ...string) {
		t.Helper()
		status, code := do(tenant, args...)
		require.Equal(t, http.StatusOK, status, code)
	}
	refused := func(tenant string, args ...string) {
		t.Helper()
		before := agenttest.Lines(t, a.inBench("ran"))
		status, code := do(tenant, args...)
		require.Equal(t, []any{http.StatusForbidden, "site_not_owned"}, []any{status, code})
		require.Equal(t, before, agenttest.Lines(t, a.inBench("ran")), "it did not run")
	}
	good("", "new-site", "pool.example.com", "--db-name", "pool_1")
	good("t-1", "promote-site", "pool.example.com", "one.example.com")
	refused("t-1", "--site", "one.example.com", "configure", `{"prego_tenant_id":"t-2"}`)
	good("t-1", "--site", "one.example.com", "configure", `{"prego_tenant_id":"t-1"}`)
	good("t-2", "new-site", "two.example.com", "--db-name", "pool_2")
	good("", "--site", "two.example.com", "configure", `{"prego_tenant_id":"t-2"}`)
	for _, tc := range []struct{ mine, theirs, site string }{{"t-1", "t-2", "one.example.com"}, {"t-2", "t-1", "two.example.com"}} {
		for _, args := range [][]string{
			{"--site", tc.site, "list-apps"},
			{"--site", tc.site, "backup", "one"},
			{"--site", tc.site, "set-config", "host_name", "x"},
			{"--site", tc.site, "install-app", "erpnext"},
			{"--site", tc.site, "set-maintenance-mode", "on"},
		} {
			good(tc.mine, args...)
			good("", args...)
			refused(tc.theirs, args...)
		}
		refused(tc.theirs, "erase-site", tc.site, "--db-name", "pool_1")
		refused(tc.theirs, "new-site", tc.site, "--db-name", "pool_x")
		refused(tc.theirs, "--site", tc.site, "configure", `{"prego_tenant_id":"`+tc.theirs+`"}`)
		refused(tc.theirs, "promote-site", "free.example.com", tc.site)
		refused(tc.theirs, "promote-site", tc.site, "free.example.com")
	}
	good("t-1", "promote-site", "one.example.com", "uno.example.com")
	refused("t-2", "--site", "uno.example.com", "list-apps")
	good("t-2", "--site", "one.example.com", "list-apps")
	good("t-1", "erase-site", "uno.example.com", "--db-name", "pool_1")
	good("t-2", "--site", "uno.example.com", "list-apps")

	// No link leads out of the sites.
	out := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(out, wire.SiteOwnerFile), []byte("t-1\n"), 0o600))
	require.NoError(t, os.Symlink(out, a.inBench("sites/link.example.com")))
	status, code := do("t-1", "--site", "link.example.com", "list-apps")
	require.Equal(t, []any{http.StatusInternalServerError, "site_owner_unknown"}, []any{status, code})
	status, code = do("", "--site", "link.example.com", "configure", `{"prego_tenant_id":"t-9"}`)
	require.Equal(t, []any{http.StatusInternalServerError, "site_owner_unknown"}, []any{status, code})
	b, err := os.ReadFile(filepath.Join(out, wire.SiteOwnerFile))
	require.NoError(t, err)
	require.Equal(t, "t-1\n", string(b))
	require.NoError(t, os.WriteFile(a.inBench("sites/two.example.com/"+wire.SiteOwnerFile), nil, 0o600))
	status, _ = do("t-2", "--site", "two.example.com", "list-apps")
	require.Equal(t, http.StatusInternalServerError, status, "an owner that can't be read is not no owner")

	bad := call(wire.ExecRequest{TenantID: "../x"})
	require.Equal(t, "tenantId", bad.problem.Field)
	bad = call(wire.ExecRequest{TenantID: "t-1", Kind: wire.KindRedisCLI, Args: []string{"ping"}})
	require.Equal(t, "tenantId", bad.problem.Field)
}
